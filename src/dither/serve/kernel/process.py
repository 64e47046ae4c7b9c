"""One kernel process: its data, its ledger, its two sockets, and how it stops."""

from __future__ import annotations

import hashlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from dither.privacy.kernel import LocalKernel
from dither.privacy.pacing import Schedule
from dither.schema import load
from dither.serve.kernel.admin import AdminService, admin_server, load_seen_heads
from dither.serve.kernel.fair_queue import FairQueue, QueueLimits
from dither.serve.kernel.oidc import read_issuer
from dither.serve.kernel.server import READERS, FrameServer, KernelServer, ReaderLines, tls_listener, unix_listener
from dither.serve.operations.logs import PUBLIC, open_logs
from dither.serve.operations.permissions import private_folder
from dither.serve.operations.supervisor import exit_with_parent, tune_interpreter

GRACE = 5.0


@dataclass(frozen=True)
class Tls:
    """Where a kernel listens for gateways on other machines, and the files that prove who is who."""

    host: str
    port: int
    certificate: Path
    key: Path
    authority: Path


@dataclass(frozen=True)
class KernelSettings:
    """What a kernel process needs to know."""

    descriptions: tuple[Path, ...]
    state: Path
    ledger: str = ""
    socket: Path | None = None
    admin: Path | None = None
    tls: Tls | None = None
    group: str | None = None
    schedule: Schedule = field(default_factory=Schedule)
    limits: QueueLimits = field(default_factory=QueueLimits)
    slots: int = 2
    oidc: Path | None = None

    @property
    def socket_path(self) -> Path:
        """Where gateways call."""
        return self.socket or self.state / "kernel.sock"

    @property
    def admin_path(self) -> Path:
        """Where the curator calls."""
        return self.admin or self.state / "private" / "admin.sock"

    @property
    def ledger_place(self) -> str:
        """Where the ledger is."""
        return self.ledger or str(self.state / "private" / "ledger.sqlite")


class KernelProcess:
    """A kernel that serves until it is stopped."""

    def __init__(self, settings: KernelSettings) -> None:
        settings.state.mkdir(parents=True, exist_ok=True)
        private = settings.state / "private"
        said = private_folder(private)
        self._logs = open_logs(private / "logs")
        if said:
            print(f"dither: {said}", file=sys.stderr, flush=True)
        again = private / "datasets.json"
        paths = dict.fromkeys([*map(str, settings.descriptions), *load_seen_heads(again)])
        self.kernel = LocalKernel(
            [load(Path(path)) for path in paths], settings.ledger_place, trusted=False, schedule=settings.schedule,
            slots=settings.slots, sign_in=_sign_in(settings.oidc),
        )  # fmt: skip
        limits = QueueLimits(settings.slots, settings.limits.waiting, settings.limits.account)
        lines = ReaderLines(FairQueue(limits), FairQueue(READERS))
        self._servers: list[FrameServer] = [
            KernelServer(
                self.kernel,
                listener,
                ledger=self.kernel.ledger,
                lines=lines,
                whose=self.kernel.whose,
                described=partial(descriptions, self.kernel),
            )
            for listener in _doors(settings)
        ]
        desk = AdminService(self.kernel, again)
        self._servers.append(admin_server(desk, unix_listener(settings.admin_path, mode=0o600)))

    def run(self) -> None:
        """Serves until `stop`; whatever is charged by then stays charged."""
        threads = [threading.Thread(target=server.serve_forever, daemon=True) for server in self._servers]
        for thread in threads:
            thread.start()
        logging.getLogger(PUBLIC).info("kernel ready", extra={"event": {"pid": os.getpid()}})
        for thread in threads:
            thread.join()
        closing = threading.Thread(target=self.kernel.close, daemon=True)  # waits for engines that are at work
        closing.start()
        closing.join(GRACE)
        self._logs.close()

    def stop(self, *_: Any) -> None:
        """Hangs up."""
        for server in self._servers:
            server.close()


def descriptions(kernel: LocalKernel) -> str:
    """What changes when a dataset is registered or described anew."""
    return hashlib.sha256(
        "".join(kernel.ledger.describe(name).version for name in kernel.registered).encode()
    ).hexdigest()


def _sign_in(path: Path | None) -> Callable[[str], str | None]:
    """How accounts sign in beside their tokens."""
    return (lambda token: None) if path is None else read_issuer(path, lambda: datetime.now(UTC)).account


def _doors(settings: KernelSettings) -> list[socket.socket]:
    doors = [unix_listener(settings.socket_path, settings.group)]
    if settings.tls is not None:
        tls = settings.tls
        doors.append(tls_listener(tls.host, tls.port, tls.certificate, tls.key, tls.authority))
    return doors


def run_kernel(settings: KernelSettings) -> None:
    """Runs a kernel in this process until it is told to stop."""
    process = KernelProcess(settings)
    signal.signal(signal.SIGTERM, process.stop)
    signal.signal(signal.SIGINT, process.stop)
    exit_with_parent(process.stop)
    tune_interpreter()
    process.run()
    sys.stdout.flush()
    os._exit(0)  # threads may be inside a driver, whose teardown is not worth waiting for
