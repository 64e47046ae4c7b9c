"""A kernel behind a gateway, over HTTP: what `dither.connect("https://...", token=...)` asks."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote as quoted
from urllib.parse import urlsplit

from dither.errors import Busy, DitherError, InvalidParameter
from dither.serve.transport.errors import raise_remote
from dither.serve.transport.rpc import RpcKernel, decode_result
from dither.serve.transport.vectors import FORM

LOOPBACK = ("localhost", "127.0.0.1", "::1")
TRIES = 3
WIRE = "application/vnd.dither+json"
PACKED = "application/vnd.dither+arrow"


@dataclass(frozen=True)
class HttpKernel(RpcKernel):
    """The kernel protocol over HTTP; a call that was cut off is tried again, which never charges twice."""

    scheme: str
    host: str
    port: int
    prefix: str
    timeout: float
    context: ssl.SSLContext | None = field(repr=False)
    _own: threading.local = field(default_factory=threading.local, repr=False)

    def call(self, name: str, token: str, dataset: str = "", body: bytes = b"") -> Any:
        """One call and its result, or the error that the kernel or the gateway gave."""
        path = f"{self.prefix}/v1/kernel/{name}?dataset={quoted(dataset, safe='')}"
        status, data, kind = self._exchange(path, token, body)
        if status != 200:
            raise _problem(data)
        return decode_result(name, data, FORM if kind == PACKED else "")

    def _exchange(self, path: str, token: str, body: bytes) -> tuple[int, bytes, str]:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": WIRE, "Accept": f"{PACKED}, {WIRE}"}
        for _ in range(TRIES):
            connection = self._connection()
            try:
                connection.request("POST", path, body, headers)
                response = connection.getresponse()
                return response.status, response.read(), response.headers.get_content_type()
            except ssl.SSLCertVerificationError:
                raise InvalidParameter("the gateway's certificate is not one that this machine trusts") from None
            except (OSError, http.client.HTTPException):
                connection.close()
                self._own.connection = None
        raise Busy("the gateway cannot be reached; ask again: nothing is charged twice")

    def _connection(self) -> http.client.HTTPConnection:
        """This thread's connection."""
        kept: http.client.HTTPConnection | None = getattr(self._own, "connection", None)
        if kept is None:
            kept = (
                http.client.HTTPSConnection(self.host, self.port, timeout=self.timeout, context=self.context)
                if self.scheme == "https"
                else http.client.HTTPConnection(self.host, self.port, timeout=self.timeout)
            )
            self._own.connection = kept
        return kept


def _problem(data: bytes) -> DitherError:
    """The error that a body stands for; one that is not ours comes from something in between."""
    try:
        error = json.loads(data)["error"]
        return raise_remote(str(error["code"]), str(error["message"]))
    except (ValueError, LookupError, TypeError):
        return Busy("something between here and the gateway refused; nothing was charged")


def connect(url: str, token: str, *, timeout: float = 600.0, insecure: bool = False) -> HttpKernel:
    """A kernel behind the gateway at `url`; without TLS only on this machine, unless `insecure` says otherwise."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        raise InvalidParameter("the address's port must be a number") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username is not None:
        raise InvalidParameter("an address looks like https://dither.example.org or http://127.0.0.1:8765")
    if parts.scheme == "http" and parts.hostname not in LOOPBACK and not insecure:
        raise InvalidParameter("a token crosses networks by https only; insecure=True if you know better")
    if not token or not token.isascii() or not token.isprintable():
        raise InvalidParameter("the token must be the text that the curator handed out")
    context = ssl.create_default_context() if parts.scheme == "https" else None
    default = 443 if parts.scheme == "https" else 80
    return HttpKernel(parts.scheme, parts.hostname, port or default, parts.path.rstrip("/"), timeout, context)
