"""One kernel process: its data, its ledger, its sockets, and its shutdown."""

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
from dither.serve.kernel.admin import AdminService, admin_server, load_registered_paths
from dither.serve.kernel.fair_queue import FairQueue, QueueLimits
from dither.serve.kernel.oidc import read_issuer
from dither.serve.kernel.server import READ_LIMITS, CallQueues, FrameServer, KernelServer, tls_listener, unix_listener
from dither.serve.operations.logs import PUBLIC, open_logs
from dither.serve.operations.permissions import secure_private_folder
from dither.serve.operations.supervisor import exit_with_parent, tune_interpreter

CLOSE_SECONDS = 5.0


@dataclass(frozen=True)
class TlsSettings:
    """The address for gateways on other machines, and the files of mutual TLS."""

    host: str
    port: int
    certificate: Path
    key: Path
    authority: Path


@dataclass(frozen=True)
class KernelSettings:
    """The settings of a kernel process."""

    descriptions: tuple[Path, ...]
    state: Path
    ledger: str = ""
    socket: Path | None = None
    admin: Path | None = None
    tls: TlsSettings | None = None
    group: str | None = None
    schedule: Schedule = field(default_factory=Schedule)
    limits: QueueLimits = field(default_factory=QueueLimits)
    slots: int = 2
    oidc: Path | None = None

    @property
    def socket_path(self) -> Path:
        """The socket for gateways."""
        return self.socket or self.state / "kernel.sock"

    @property
    def admin_path(self) -> Path:
        """The socket for the curator."""
        return self.admin or self.state / "private" / "admin.sock"

    @property
    def ledger_location(self) -> str:
        """The ledger's path or database address."""
        return self.ledger or str(self.state / "private" / "ledger.sqlite")


class KernelProcess:
    """A kernel that serves until it is stopped."""

    def __init__(self, settings: KernelSettings) -> None:
        settings.state.mkdir(parents=True, exist_ok=True)
        private = settings.state / "private"
        notice = secure_private_folder(private)
        self._logs = open_logs(private / "logs")
        if notice:
            print(f"dither: {notice}", file=sys.stderr, flush=True)
        paths_file = private / "datasets.json"
        paths = dict.fromkeys([*map(str, settings.descriptions), *load_registered_paths(paths_file)])
        self.kernel = LocalKernel(
            [load(Path(path)) for path in paths], settings.ledger_location, trusted=False, schedule=settings.schedule,
            slots=settings.slots, sign_in=_sign_in(settings.oidc),
        )  # fmt: skip
        limits = QueueLimits(settings.slots, settings.limits.waiting, settings.limits.per_account)
        queues = CallQueues(FairQueue(limits), FairQueue(READ_LIMITS))
        self._servers: list[FrameServer] = [
            KernelServer(
                self.kernel,
                listener,
                ledger=self.kernel.ledger,
                queues=queues,
                account_of=self.kernel.account_name,
                descriptions_hash=partial(descriptions_hash, self.kernel),
            )
            for listener in _listeners(settings)
        ]
        admin = AdminService(self.kernel, paths_file)
        self._servers.append(admin_server(admin, unix_listener(settings.admin_path, mode=0o600)))

    def run(self) -> None:
        """Serve until `stop`; charges made by then stand."""
        threads = [threading.Thread(target=server.serve_forever, daemon=True) for server in self._servers]
        for thread in threads:
            thread.start()
        logging.getLogger(PUBLIC).info("kernel ready", extra={"event": {"pid": os.getpid()}})
        for thread in threads:
            thread.join()
        closing = threading.Thread(target=self.kernel.close, daemon=True)  # waits for running engines
        closing.start()
        closing.join(CLOSE_SECONDS)
        self._logs.close()

    def stop(self, *_: Any) -> None:
        """Close all connections."""
        for server in self._servers:
            server.close()


def descriptions_hash(kernel: LocalKernel) -> str:
    """Return a hash that changes when a dataset is registered or its description changes."""
    return hashlib.sha256(
        "".join(kernel.ledger.describe(name).version for name in kernel.registered).encode()
    ).hexdigest()


def _sign_in(path: Path | None) -> Callable[[str], str | None]:
    """Return the function that maps an ID token to an account; without OpenID Connect it returns None."""
    return (lambda token: None) if path is None else read_issuer(path, lambda: datetime.now(UTC)).account


def _listeners(settings: KernelSettings) -> list[socket.socket]:
    """Open the sockets for gateways."""
    listeners = [unix_listener(settings.socket_path, settings.group)]
    if settings.tls is not None:
        tls = settings.tls
        listeners.append(tls_listener(tls.host, tls.port, tls.certificate, tls.key, tls.authority))
    return listeners


def run_kernel(settings: KernelSettings) -> None:
    """Run a kernel in this process until SIGTERM or SIGINT."""
    process = KernelProcess(settings)
    signal.signal(signal.SIGTERM, process.stop)
    signal.signal(signal.SIGINT, process.stop)
    exit_with_parent(process.stop)
    tune_interpreter()
    process.run()
    sys.stdout.flush()
    os._exit(0)  # do not wait for threads that may be inside a database driver
