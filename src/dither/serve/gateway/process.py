"""One gateway process: an HTTP server with timeouts, connected to a kernel by a socket."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from dither.errors import InvalidParameter
from dither.serve.gateway.app import AppSettings, application
from dither.serve.operations.supervisor import exit_with_parent, tune_interpreter
from dither.serve.transport.socket_client import MutualTls, RemoteKernel, SeenHeads

HEAD_SECONDS = 10.0
MOST_HEADERS = 1 << 15


class TimeoutProtocol(H11Protocol):
    """Close a connection whose request line and headers take more than HEAD_SECONDS."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Start the timer of a new connection."""
        super().connection_made(transport)
        self._timer = self.loop.call_later(HEAD_SECONDS, self._hang_up)

    def data_received(self, data: bytes) -> None:
        """Stop the timer once the headers are complete; start it when the next request begins."""
        before: Any = self.cycle
        super().data_received(data)
        after: Any = self.cycle
        if after is not before and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        elif self._timer is None and (after is None or after.response_complete):
            self._timer = self.loop.call_later(HEAD_SECONDS, self._hang_up)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer of a closed connection."""
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def _hang_up(self) -> None:
        """Close the connection."""
        self._timer = None
        if not self.transport.is_closing():
            self.transport.close()


@dataclass(frozen=True)
class GatewaySettings:
    """The settings of a gateway process; they include no access to data."""

    kernel: str | MutualTls
    state: Path
    host: str = "127.0.0.1"
    port: int = 8765
    certificate: Path | None = None
    key: Path | None = None
    limits: AppSettings = field(default_factory=AppSettings)


def run_gateway(settings: GatewaySettings) -> None:
    """Run a gateway in this process until SIGTERM or SIGINT."""
    settings.state.mkdir(parents=True, exist_ok=True)
    kernel = RemoteKernel(settings.kernel, SeenHeads(settings.state / "head"))
    listener = _listener(settings.host, settings.port)
    host, port = listener.getsockname()[:2]
    (settings.state / "address").write_text(f"{'https' if settings.certificate else 'http'}://{host}:{port}")
    server = uvicorn.Server(_config(settings, application(kernel, settings.limits)))
    exit_with_parent(lambda: os.kill(os.getpid(), signal.SIGTERM))
    tune_interpreter()
    server.run(sockets=[listener])


def _config(settings: GatewaySettings, app: Any) -> uvicorn.Config:
    """Return the configuration of uvicorn."""
    return uvicorn.Config(
        app,
        log_level="error",
        access_log=False,
        server_header=False,
        date_header=False,
        ws="none",
        http=TimeoutProtocol,
        limit_concurrency=1024,
        timeout_keep_alive=10,
        timeout_graceful_shutdown=10,
        h11_max_incomplete_event_size=MOST_HEADERS,
        ssl_certfile=settings.certificate,
        ssl_keyfile=settings.key,
        proxy_headers=False,
    )


def _listener(host: str, port: int) -> socket.socket:
    """Open the TCP socket that the gateway listens on."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=1024, reuse_port=False)
    except OSError:
        raise InvalidParameter(
            f"cannot listen on {host} port {port}; choose another --port, or stop the program that uses it"
        ) from None
    # Accepted connections inherit this; without it the second part of a reply waits 40 ms for an acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
