"""The curator's desk as a page, on this machine alone, in front of the kernel's admin socket and not of the gateway.

Whoever runs it is the curator already; the page's address holds a secret that nobody else on the machine is told.
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
ACTS: dict[str, tuple[str, ...]] = {
    "unlock": ("dataset",), "quicken": ("dataset",), "revoke": ("name",), "log": (), "corrections": ("dataset",),
}  # fmt: skip


@dataclass(frozen=True)
class Page:
    """What the desk shows, of the kernel behind a socket; `secret` opens it, and `form` is in every form of it."""

    at: Path
    secret: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)

    @property
    def form(self) -> str:
        """What only a page that was shown to its owner can send back."""
        return hashlib.sha256(f"form {self.secret}".encode()).hexdigest()

    def show(self) -> str:
        """Datasets, budgets and accounts, and what can be done about them."""
        status = call_admin(self.at, "status")
        parts = [f"<h1>Curator's desk</h1><p>end of the ledger: {escape(status['head'])}</p>", "<h2>Datasets</h2>"]
        for each in status["datasets"]:
            name = each["name"]
            acts = "".join(self._button(act, dataset=name) for act in ("unlock", "quicken", "corrections"))
            parts += [
                f"<h3>{escape(name)}</h3>",
                table([each]),
                table(call_admin(self.at, "budget", dataset=name)),
                acts,
            ]
        rows = call_admin(self.at, "accounts")
        parts += ["<h2>Accounts</h2>", table(rows), *(self._button("revoke", name=str(row["name"])) for row in rows)]
        return "".join([*parts, "<h2>Private log</h2>", self._button("log")])

    def act(self, name: str, given: Mapping[str, str]) -> str:
        """Does something, under the name of whoever runs this; and shows what came of it."""
        data = call_admin(self.at, name, **{key: given.get(key, "") for key in ACTS[name]})
        return f"<h1>{escape(name)}</h1>{table([data])}<p><a href='/'>back</a></p>"

    def _button(self, act: str, **given: str) -> str:
        hidden = {"form": self.form, **given}
        fields = "".join(f'<input type="hidden" name="{key}" value="{escape(value)}">' for key, value in hidden.items())
        words = escape(" ".join([act, *given.values()]))
        return f'<form method="post" action="/{act}">{fields}<button>{words}</button></form>'


def table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Rows of plain data as a table; nothing of it is taken for HTML."""
    made = list(rows)
    names = list(dict.fromkeys(name for row in made for name in row))
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    cells = ([f"<td>{escape(str(row.get(name, '')))}</td>" for name in names] for row in made)
    body = "".join(f"<tr>{''.join(line)}</tr>" for line in cells)
    return f"<table><tr>{head}</tr>{body}</table>"


class Handler(BaseHTTPRequestHandler):
    """Shows the page to whoever has its secret, and does what its own forms ask."""

    server: AdminPageServer
    timeout = 30

    def do_GET(self) -> None:
        """The page; its address with the secret becomes a cookie."""
        parts = urlsplit(self.path)
        given = parse_qs(parts.query).get("secret", [""])[0]
        if self._is_ours() and parts.path == "/" and given and _same(given, self.server.page.secret):
            cookie = f"desk={given}; HttpOnly; SameSite=Strict; Path=/"
            return self._reply(HTTPStatus.SEE_OTHER, "", {"location": "/", "set-cookie": cookie})
        if not self._known() or parts.path != "/":
            return self._reply(HTTPStatus.FORBIDDEN, "open the address that `dither curator desk` printed")
        return self._shown(self.server.page.show)

    def do_POST(self) -> None:
        """One of the acts, if a form of the page asks for it."""
        size = self.headers.get("content-length", "")
        body = self.rfile.read(int(size)).decode("latin-1") if size.isdigit() and int(size) <= MOST_BODY else ""
        given = {name: values[0] for name, values in parse_qs(body).items()}
        act = self.path.removeprefix("/")
        if not self._known() or act not in ACTS or not _same(given.get("form", ""), self.server.page.form):
            return self._reply(HTTPStatus.FORBIDDEN, "only the page's own forms are followed")
        return self._shown(lambda: self.server.page.act(act, given))

    def _known(self) -> bool:
        try:
            cookie = SimpleCookie(self.headers.get("cookie", "")).get("desk")
        except CookieError:
            return False
        return self._is_ours() and cookie is not None and _same(cookie.value, self.server.page.secret)

    def _is_ours(self) -> bool:
        """Whether the browser meant this server: another name that leads here is somebody's trick."""
        port = self.server.server_address[1]
        return self.headers.get("host") in (f"127.0.0.1:{port}", f"localhost:{port}")

    def _shown(self, make: Callable[[], str]) -> None:
        try:
            self._reply(HTTPStatus.OK, make())
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
        """Nothing: addresses hold the secret."""


class AdminPageServer(ThreadingHTTPServer):
    """The page on a port of this machine."""

    daemon_threads = True

    def __init__(self, page: Page, port: int) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.page = page

    @property
    def url(self) -> str:
        """The address to open; whoever has it is the curator."""
        return f"http://127.0.0.1:{self.server_address[1]}/?secret={self.page.secret}"


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())
