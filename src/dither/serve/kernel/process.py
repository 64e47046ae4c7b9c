"""One kernel process: its data, its ledger, its sockets, and its shutdown."""

from __future__ import annotations

import hashlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from dither.privacy.kernel import LocalKernel
from dither.privacy.ledger.location import file_beside, find_ledger, note_ledger
from dither.privacy.pacing import Schedule
from dither.schema import load
from dither.serve.kernel.admin import AdminService, admin_server, load_registered_paths
from dither.serve.kernel.anchor import HeadAnchor
from dither.serve.kernel.fair_queue import FairQueue, QueueLimits
from dither.serve.kernel.oidc import IssuerFile
from dither.serve.kernel.server import READ_LIMITS, CallQueues, FrameServer, KernelServer, tls_listener, unix_listener
from dither.serve.operations.logs import PUBLIC, open_logs
from dither.serve.operations.permissions import secure_private_folder
from dither.serve.operations.state_lock import lock_folder
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
    another_ledger: bool = False
    anchor: Path | None = None

    @property
    def socket_path(self) -> Path:
        """The socket for gateways."""
        return self.socket or self.state / "kernel.sock"

    @property
    def admin_path(self) -> Path:
        """The socket for the curator."""
        return self.admin or self.state / "private" / "admin.sock"

    def ledger_location(self, descriptions: Sequence[Path]) -> str:
        """Return the place of the ledger: as given, as the descriptions have it, or for a new one the state folder."""
        new = self.state.absolute() / "private" / "ledger.sqlite"
        return find_ledger(descriptions, new, self.ledger or None, another=self.another_ledger)


class KernelProcess:
    """A kernel that serves until it is stopped."""

    def __init__(self, settings: KernelSettings) -> None:
        settings.state.mkdir(parents=True, exist_ok=True)
        private = settings.state / "private"
        notice = secure_private_folder(private)
        self._lock = lock_folder(private, "kernel")
        self._logs = open_logs(private / "logs")
        if notice:
            print(f"dither: {notice}", file=sys.stderr, flush=True)
        paths_file = private / "datasets.json"
        registered = map(Path, load_registered_paths(paths_file))
        paths = list(dict.fromkeys([*settings.descriptions, *registered]))
        place = settings.ledger_location(paths)
        self._anchor = HeadAnchor(place, settings.anchor)
        self.kernel = LocalKernel(
            list(map(load, paths)), place, trusted=False, schedule=settings.schedule, slots=settings.slots,
            sign_in=_sign_in(settings.oidc, lambda: self.kernel.ledger.now()),
        )  # fmt: skip
        for path in note_ledger(paths, place, self.kernel.ledger.identity):
            print(f"dither: cannot write {file_beside(path)}; sessions in other processes would start a ledger of "
                  "their own: give them --ledger", file=sys.stderr, flush=True)  # fmt: skip
        limits = QueueLimits(settings.slots, settings.limits.waiting, settings.limits.per_account)
        queues = CallQueues(FairQueue(limits), FairQueue(READ_LIMITS))
        self._servers: list[FrameServer] = [
            KernelServer(
                self.kernel,
                listener,
                ledger=self.kernel.ledger,
                queues=queues,
                account_of=self.kernel.account_name,
                role_of=self.kernel.account_role,
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
        self._anchor.follow(self.kernel.ledger)
        logging.getLogger(PUBLIC).info("kernel ready", extra={"event": {"pid": os.getpid()}})
        for thread in threads:
            thread.join()
        self._anchor.stop()
        closing = threading.Thread(target=self.kernel.close, daemon=True)  # waits for running engines
        closing.start()
        closing.join(CLOSE_SECONDS)
        self._logs.close()
        self._lock.close()

    def stop(self, *_: Any) -> None:
        """Close all connections."""
        for server in self._servers:
            server.close()


def descriptions_hash(kernel: LocalKernel) -> str:
    """Return a hash that changes when a dataset is registered or its description changes."""
    return hashlib.sha256(
        "".join(kernel.ledger.describe(name).version for name in kernel.registered).encode()
    ).hexdigest()


def _sign_in(path: Path | None, now: Callable[[], datetime]) -> Callable[[str], str | None]:
    """Return the function that maps an ID token to an account; without OpenID Connect it returns None."""
    return (lambda token: None) if path is None else IssuerFile(path, now).account


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
