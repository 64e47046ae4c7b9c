"""The curator's desk: a web page on this machine, in front of the kernel's admin socket, separate from the gateway.

Only the curator can start it. Its address contains a secret, so that other users of the machine cannot open the page.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from html import escape
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from dither.errors import DitherError
from dither.serve.kernel.admin import call_admin

MOST_BODY = 4096
HEADERS = {
    "content-security-policy": "default-src 'none'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "content-type": "text/html; charset=utf-8", "x-content-type-options": "nosniff", "cache-control": "no-store",
    "referrer-policy": "no-referrer", "cross-origin-opener-policy": "same-origin",
}  # fmt: skip
ACTIONS: dict[str, tuple[str, ...]] = {
    "unlock": ("dataset",), "reset_latency": ("dataset",), "revoke": ("name",), "log": (), "corrections": ("dataset",),
}  # fmt: skip


@dataclass(frozen=True)
class DeskPage:
    """The HTML of the desk for the kernel behind `socket`; `secret` opens the page."""

    socket: Path
    secret: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)

    @property
    def form_token(self) -> str:
        """A value derived from the secret; every form contains it, so that no other page can submit one."""
        return hashlib.sha256(f"form {self.secret}".encode()).hexdigest()

    def render(self) -> str:
        """Return the HTML of datasets, budgets and accounts, with a button for each action."""
        status = call_admin(self.socket, "status")
        parts = [f"<h1>Curator's desk</h1><p>ledger head: {escape(status['head'])}</p>", "<h2>Datasets</h2>"]
        for each in status["datasets"]:
            name = each["name"]
            buttons = "".join(
                self._button(action, dataset=name) for action in ("unlock", "reset_latency", "corrections")
            )
            parts += [
                f"<h3>{escape(name)}</h3>",
                html_table([each]),
                html_table(call_admin(self.socket, "budget", dataset=name)),
                buttons,
            ]
        rows = call_admin(self.socket, "accounts")
        parts += [
            "<h2>Accounts</h2>",
            html_table(rows),
            *(self._button("revoke", name=str(row["name"])) for row in rows),
        ]
        return "".join([*parts, "<h2>Private log</h2>", self._button("log")])

    def run(self, name: str, given: Mapping[str, str]) -> str:
        """Make an admin call as the user that runs this process, and return its result as HTML."""
        data = call_admin(self.socket, name, **{key: given.get(key, "") for key in ACTIONS[name]})
        return f"<h1>{escape(name)}</h1>{html_table([data])}<p><a href='/'>back</a></p>"

    def _button(self, action: str, **given: str) -> str:
        hidden = {"form": self.form_token, **given}
        fields = "".join(f'<input type="hidden" name="{key}" value="{escape(value)}">' for key, value in hidden.items())
        label = escape(" ".join([action, *given.values()]))
        return f'<form method="post" action="/{action}">{fields}<button>{label}</button></form>'


def html_table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows of plain data as an HTML table; all values are escaped."""
    listed = list(rows)
    names = list(dict.fromkeys(name for row in listed for name in row))
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    cells = ([f"<td>{escape(str(row.get(name, '')))}</td>" for name in names] for row in listed)
    body = "".join(f"<tr>{''.join(line)}</tr>" for line in cells)
    return f"<table><tr>{head}</tr>{body}</table>"


class DeskHandler(BaseHTTPRequestHandler):
    """Serve the page to requests with its secret, and execute the actions of its own forms."""

    server: DeskServer
    timeout = 30

    def do_GET(self) -> None:
        """Return the page; turn an address with the secret into a cookie."""
        parts = urlsplit(self.path)
        given = parse_qs(parts.query).get("secret", [""])[0]
        if self._host_matches() and parts.path == "/" and given and _equal(given, self.server.page.secret):
            cookie = f"desk={given}; HttpOnly; SameSite=Strict; Path=/"
            return self._reply(HTTPStatus.SEE_OTHER, "", {"location": "/", "set-cookie": cookie})
        if not self._has_cookie() or parts.path != "/":
            return self._reply(HTTPStatus.FORBIDDEN, "open the address that `dither curator desk` printed")
        return self._respond(self.server.page.render)

    def do_POST(self) -> None:
        """Execute an action that a form of the page requests."""
        size = self.headers.get("content-length", "")
        body = self.rfile.read(int(size)).decode("latin-1") if size.isdigit() and int(size) <= MOST_BODY else ""
        given = {name: values[0] for name, values in parse_qs(body).items()}
        action = self.path.removeprefix("/")
        own_form = _equal(given.get("form", ""), self.server.page.form_token)
        if not self._has_cookie() or action not in ACTIONS or not own_form:
            return self._reply(
                HTTPStatus.FORBIDDEN, "this request did not come from the page's own form; reload the page"
            )
        return self._respond(lambda: self.server.page.run(action, given))

    def _has_cookie(self) -> bool:
        """Return true if the request carries the page's secret as a cookie."""
        try:
            cookie = SimpleCookie(self.headers.get("cookie", "")).get("desk")
        except CookieError:
            return False
        return self._host_matches() and cookie is not None and _equal(cookie.value, self.server.page.secret)

    def _host_matches(self) -> bool:
        """Return true if the Host header names this server: another name would be DNS rebinding."""
        port = self.server.server_address[1]
        return self.headers.get("host") in (f"127.0.0.1:{port}", f"localhost:{port}")

    def _respond(self, render: Callable[[], str]) -> None:
        """Reply with rendered HTML, or with the message of the error."""
        try:
            self._reply(HTTPStatus.OK, render())
        except DitherError as problem:
            self._reply(HTTPStatus.BAD_REQUEST, escape(str(problem)))

    def _reply(self, status: HTTPStatus, content: str, more: Mapping[str, str] | None = None) -> None:
        body = f"<!doctype html><html lang='en'><title>Curator's desk</title>{content}</html>".encode()
        self.send_response(status)
        for name, value in {**HEADERS, "content-length": str(len(body)), **(more or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing, because addresses contain the secret."""


class DeskServer(ThreadingHTTPServer):
    """The HTTP server of the page, on a port of this machine."""

    daemon_threads = True

    def __init__(self, page: DeskPage, port: int) -> None:
        super().__init__(("127.0.0.1", port), DeskHandler)
        self.page = page

    @property
    def url(self) -> str:
        """The address to open; it contains the secret."""
        return f"http://127.0.0.1:{self.server_address[1]}/?secret={self.page.secret}"


def _equal(one: str, other: str) -> bool:
    """Compare two secrets in constant time."""
    return hmac.compare_digest(one.encode(), other.encode())
