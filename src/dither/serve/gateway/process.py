"""One gateway process: a patient HTTP server over a socket to a kernel."""

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
from dither.serve.gateway.app import Settings, application
from dither.serve.operations.supervisor import exit_with_parent, tune_interpreter
from dither.serve.transport.socket_client import MutualTls, RemoteKernel, SeenHeads

HEAD_SECONDS = 10.0
MOST_HEADERS = 1 << 15


class TimeoutProtocol(H11Protocol):
    """Hangs up on whoever takes too long over the first line and the headers of a request."""

    _alarm: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Somebody called."""
        super().connection_made(transport)
        self._alarm = self.loop.call_later(HEAD_SECONDS, self._too_slow)

    def data_received(self, data: bytes) -> None:
        """Something came; a request whose headers are complete has a cycle of its own."""
        before: Any = self.cycle
        super().data_received(data)
        after: Any = self.cycle
        if after is not before and self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        elif self._alarm is None and (after is None or after.response_complete):
            self._alarm = self.loop.call_later(HEAD_SECONDS, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        """They hung up."""
        if self._alarm is not None:
            self._alarm.cancel()
        super().connection_lost(exc)

    def _too_slow(self) -> None:
        self._alarm = None
        if not self.transport.is_closing():
            self.transport.close()


@dataclass(frozen=True)
class GatewaySettings:
    """What a gateway process needs to know; none of it leads to data."""

    kernel: str | MutualTls
    state: Path
    host: str = "127.0.0.1"
    port: int = 8765
    certificate: Path | None = None
    key: Path | None = None
    limits: Settings = field(default_factory=Settings)


def run_gateway(settings: GatewaySettings) -> None:
    """Runs a gateway in this process until it is told to stop."""
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
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=1024, reuse_port=False)
    except OSError:
        raise InvalidParameter(f"cannot listen on {host} port {port}; is something else there?") from None
    # Whoever is accepted inherits it: else the second part of a reply waits until the first is acknowledged, for 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
