"""One gateway process: an HTTP server with timeouts, connected to a kernel by a socket."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn

from dither.serve.gateway.app import application
from dither.serve.gateway.connections import ACCEPTED_AT_ONCE, IdleConnections, TimeoutProtocol, listen
from dither.serve.gateway.endpoints import AppSettings
from dither.serve.operations.logs import open_access_log
from dither.serve.operations.state_lock import lock_folder
from dither.serve.operations.supervisor import exit_with_parent, tune_interpreter
from dither.serve.transport.socket_client import MutualTls, RemoteKernel, SeenHeads

MOST_HEADERS = 1 << 15


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
    proxy: str | None = None


def run_gateway(settings: GatewaySettings, announce: Callable[[str], None] = lambda url: None) -> None:
    """Run a gateway in this process until SIGTERM or SIGINT; `announce` receives its address."""
    settings.state.mkdir(parents=True, exist_ok=True)
    with lock_folder(settings.state, "gateway"):
        kernel = RemoteKernel(settings.kernel, SeenHeads(settings.state / "head"))
        connections = IdleConnections(proxies=[settings.proxy] if settings.proxy else [])
        listener = listen(settings.host, settings.port, connections)
        server = uvicorn.Server(_config(settings, application(kernel, settings.limits), connections))
        host, port = listener.getsockname()[:2]
        url = f"{'https' if settings.certificate else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
        (settings.state / "address").write_text(url)
        open_access_log(settings.state / "access.jsonl")
        announce(url)
        exit_with_parent(lambda: os.kill(os.getpid(), signal.SIGTERM))
        tune_interpreter()
        server.run(sockets=[listener])


def _config(settings: GatewaySettings, app: Any, connections: IdleConnections) -> uvicorn.Config:
    """Return the configuration of uvicorn."""
    return uvicorn.Config(
        app,
        log_level="error",
        access_log=False,
        server_header=False,
        date_header=False,
        ws="none",
        http=type("GatewayProtocol", (TimeoutProtocol,), {"idle_connections": connections}),
        loop="asyncio",  # another loop would not call CountingListener.accept
        backlog=ACCEPTED_AT_ONCE,
        limit_concurrency=1024,
        timeout_keep_alive=10,
        timeout_graceful_shutdown=10,
        h11_max_incomplete_event_size=MOST_HEADERS,
        ssl_certfile=settings.certificate,
        ssl_keyfile=settings.key,
        proxy_headers=settings.proxy is not None,
        forwarded_allow_ips=settings.proxy or "",
    )
