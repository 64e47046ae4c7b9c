"""The curator's desk: a web page on this machine, in front of the kernel's admin socket, separate from the gateway.

Only the curator can start it. The address that it prints ends with a code, which a browser does not send to any server.
The page exchanges the code, once, for a token, keeps the token in its own tab, and sends it as a header. A cookie would
reach every other port of this machine, such as the gateway's.
"""

from __future__ import annotations

import hmac
import json
import secrets
import threading
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from dither.errors import DitherError, InvalidToken, NotFound
from dither.serve.kernel.admin import call_admin

MOST_BODY = 4096
WEB = Path(__file__).parent / "web"
FILES = {"/": ("desk.html", "text/html; charset=utf-8"), "/desk.js": ("desk.js", "text/javascript; charset=utf-8")}
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; connect-src 'self'; form-action 'none'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff", "cache-control": "no-store", "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin", "cross-origin-resource-policy": "same-origin",
}  # fmt: skip
CALLS: dict[str, tuple[str, ...]] = {
    "status": (), "accounts": (), "budget": ("dataset",), "unlock": ("dataset",), "reset_latency": ("dataset",),
    "revoke": ("name",), "log": (), "corrections": ("dataset",),
}  # fmt: skip


def _new_secret() -> str:
    return secrets.token_urlsafe(32)


@dataclass
class DeskPage:
    """A desk for the kernel behind `socket`; `code` opens it once, then `token` comes with every call."""

    socket: Path
    code: str = field(default_factory=_new_secret, repr=False)
    token: str = field(default_factory=_new_secret, repr=False)
    _unused: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(1), repr=False)

    def sign_in(self, code: str) -> str:
        """Return the token for the code of the address; raise InvalidToken for another code, and after the first."""
        if not hmac.compare_digest(code.encode(), self.code.encode()) or not self._unused.acquire(blocking=False):
            raise InvalidToken("this address was opened before; if not by you, stop the desk; else start it again")
        return self.token

    def run(self, name: str, token: str, given: dict[str, Any]) -> Any:
        """Make an admin call as the user that runs this process; raise InvalidToken without the desk's token."""
        if not hmac.compare_digest(token.encode(), self.token.encode()):
            raise InvalidToken("open the address that `dither curator desk` prints")
        if name not in CALLS:
            raise NotFound(f"unknown call; the calls are: {', '.join(CALLS)}")
        return call_admin(self.socket, name, **{key: str(given.get(key, "")) for key in CALLS[name]})


class DeskHandler(BaseHTTPRequestHandler):
    """Serve the page, which contains no secret, and the calls of its script."""

    server: DeskServer
    timeout = 10

    def do_GET(self) -> None:
        """Return a file of the page."""
        if self.path not in FILES or not self._host_matches():
            return self._reply(HTTPStatus.NOT_FOUND, b"", "text/plain")
        name, kind = FILES[self.path]
        return self._reply(HTTPStatus.OK, (WEB / name).read_bytes(), kind)

    def do_POST(self) -> None:
        """Sign in with the code, or make a call with the token."""
        try:
            status, result = HTTPStatus.OK, self._call(self.headers.get("authorization", "").removeprefix("Bearer "))
        except InvalidToken as problem:
            status, result = HTTPStatus.FORBIDDEN, {"error": str(problem)}
        except DitherError as problem:
            status, result = HTTPStatus.BAD_REQUEST, {"error": str(problem)}
        return self._reply(status, json.dumps(result).encode(), "application/json")

    def _call(self, secret: str) -> Any:
        """Return the result of a call; a request of another page or to another host name counts as one without token.

        Another page cannot set the header, and cannot read the reply: no response allows another origin.
        """
        own = self._host_matches() and self.headers.get("origin") in (None, f"http://{self.headers.get('host')}")
        size, name = self.headers.get("content-length", ""), self.path.removeprefix("/")
        body = self.rfile.read(int(size)) if own and size.isdigit() and int(size) <= MOST_BODY else b"{}"
        if name == "sign_in":
            return {"token": self.server.page.sign_in(secret if own else "")}
        return self.server.page.run(name, secret if own else "", _parse(body))

    def _host_matches(self) -> bool:
        """Return true if the Host header names this server: another name would be DNS rebinding."""
        port = self.server.server_address[1]
        return self.headers.get("host") in (f"127.0.0.1:{port}", f"localhost:{port}")

    def _reply(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        for name, value in {**HEADERS, "content-type": kind, "content-length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


def _parse(body: bytes) -> dict[str, Any]:
    """Parse the JSON object of a call; anything else counts as a call without arguments."""
    try:
        given = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return given if isinstance(given, dict) else {}


class DeskServer(ThreadingHTTPServer):
    """The HTTP server of the page, on a port of this machine."""

    daemon_threads = True

    def __init__(self, page: DeskPage, port: int) -> None:
        super().__init__(("127.0.0.1", port), DeskHandler)
        self.page = page

    @property
    def url(self) -> str:
        """The address to open, once; browsers send no server what follows the #."""
        return f"http://127.0.0.1:{self.server_address[1]}/#{self.page.code}"
