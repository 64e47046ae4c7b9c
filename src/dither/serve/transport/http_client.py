"""A client for a kernel behind a gateway, over HTTP; `dither.connect("https://...", token=...)` uses it."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

from dither.errors import Busy, DitherError, InvalidParameter
from dither.serve.transport.errors import remote_error
from dither.serve.transport.rpc import RpcKernel, decode_result
from dither.serve.transport.vectors import FORM

LOOPBACK = ("localhost", "127.0.0.1", "::1")
TRIES = 3
WIRE = "application/vnd.dither+json"
PACKED = "application/vnd.dither+int64"


@dataclass(frozen=True)
class HttpKernel(RpcKernel):
    """The kernel protocol over HTTP; an interrupted call is repeated, which never charges twice."""

    scheme: str
    host: str
    port: int
    prefix: str
    timeout: float
    context: ssl.SSLContext | None = field(repr=False)
    _local: threading.local = field(default_factory=threading.local, repr=False)

    def call(self, name: str, token: str, dataset: str = "", body: bytes = b"") -> Any:
        """Make one call and return its result; raise the error that the kernel or the gateway sent."""
        path = f"{self.prefix}/v1/kernel/{name}?dataset={quote(dataset, safe='')}"
        status, data, media_type = self._exchange(path, token, body)
        if status != 200:
            raise _response_error(data)
        return decode_result(name, data, FORM if media_type == PACKED else "")

    def _exchange(self, path: str, token: str, body: bytes) -> tuple[int, bytes, str]:
        """Send a request, up to TRIES times if the connection fails; return the status, body and media type."""
        headers = {"Authorization": f"Bearer {token}", "Content-Type": WIRE, "Accept": f"{PACKED}, {WIRE}"}
        for _ in range(TRIES):
            connection = self._connection()
            try:
                connection.request("POST", path, body, headers)
                response = connection.getresponse()
                return response.status, response.read(), response.headers.get_content_type()
            except ssl.SSLCertVerificationError:
                raise InvalidParameter(
                    "this machine does not trust the gateway's certificate; add its authority to those that are trusted"
                ) from None
            except (OSError, http.client.HTTPException):
                connection.close()
                self._local.connection = None
        raise Busy("the gateway cannot be reached; ask again: repeating a request never charges twice")

    def _connection(self) -> http.client.HTTPConnection:
        """Return this thread's connection; open it if necessary."""
        connection: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = (
                http.client.HTTPSConnection(self.host, self.port, timeout=self.timeout, context=self.context)
                if self.scheme == "https"
                else http.client.HTTPConnection(self.host, self.port, timeout=self.timeout)
            )
            self._local.connection = connection
        return connection


def _response_error(data: bytes) -> DitherError:
    """Return the error in a response body; a body in another format comes from a proxy in between."""
    try:
        error = json.loads(data)["error"]
        return remote_error(str(error["code"]), str(error["message"]))
    except (ValueError, LookupError, TypeError):
        return Busy(
            "the response is not a gateway's; check the address and ask again: repeating a request never charges twice"
        )


def connect(url: str, token: str, *, timeout: float = 600.0, insecure: bool = False) -> HttpKernel:
    """Return a client for the gateway at `url`; use plain HTTP to this machine only, unless `insecure` is true."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        raise InvalidParameter("the port in the gateway's address must be a number") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username is not None:
        raise InvalidParameter(
            "the gateway's address must look like https://dither.example.org or http://127.0.0.1:8765"
        )
    if parts.scheme == "http" and parts.hostname not in LOOPBACK and not insecure:
        raise InvalidParameter("refusing to send a token over plain HTTP; use https://, or insecure=True")
    if not token or not token.isascii() or not token.isprintable():
        raise InvalidParameter("the token must be the printable ASCII string that the curator issued")
    context = ssl.create_default_context() if parts.scheme == "https" else None
    default = 443 if parts.scheme == "https" else 80
    return HttpKernel(parts.scheme, parts.hostname, port or default, parts.path.rstrip("/"), timeout, context)
