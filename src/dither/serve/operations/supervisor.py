"""Start the kernel and the gateway as processes, restart them when they end, and stop them together."""

from __future__ import annotations

import gc
import os
import pwd
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dither.errors import InvalidParameter

GATEWAY_ENVIRONMENT = ("PATH", "LANG", "LC_ALL", "TZ", "VIRTUAL_ENV", "PYTHONPATH", "PYTHONHASHSEED", "SSL_CERT_FILE")
ALLOCATOR_ENVIRONMENT = {"MALLOC_ARENA_MAX": "2"}  # otherwise the C library's memory grows with the threads
STOP_SECONDS = 15.0
LONGEST_RESTART_DELAY = 10.0
SWITCH_INTERVAL = 0.0005  # seconds after which a busy thread lets others of its process run


def exit_with_parent(stop: Callable[[], object]) -> None:
    """Call `stop` once the parent process is gone, if this process was started by a supervisor."""
    parent = os.environ.get("DITHER_SUPERVISOR", "")
    if not parent:
        return

    def watch() -> None:
        while os.getppid() == int(parent):
            time.sleep(0.5)
        stop()

    threading.Thread(target=watch, daemon=True).start()


def gateway_environment() -> dict[str, str]:
    """Return the environment variables that a gateway may see: none that could hold a secret."""
    return {name: os.environ[name] for name in GATEWAY_ENVIRONMENT if name in os.environ}


def primary_group(user: str) -> int:
    """Return the id of a user's primary group."""
    try:
        return pwd.getpwnam(user).pw_gid
    except KeyError:
        raise InvalidParameter(f"this machine has no user {user}") from None


@dataclass
class ManagedProcess:
    """A child process: its command, environment and working directory, and the delay before its next restart."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    directory: Path
    user: str | None = None
    process: subprocess.Popen[bytes] | None = None
    restart_delay: float = 0.1
    started: float = 0.0

    def start(self) -> None:
        """Start the process; it inherits no open files but the standard streams."""
        environment = {**ALLOCATOR_ENVIRONMENT, **self.environment, "DITHER_SUPERVISOR": str(os.getpid())}
        self.started = time.monotonic()
        try:
            self.process = subprocess.Popen(
                self.command, env=environment, cwd=self.directory, stdin=subprocess.DEVNULL, user=self.user,
                group=None if self.user is None else primary_group(self.user),
                extra_groups=None if self.user is None else (), start_new_session=True,
            )  # fmt: skip
        except (PermissionError, KeyError):
            raise InvalidParameter(
                f"cannot run the {self.name} as user {self.user}; run as root, or omit --gateway-user"
            ) from None

    def has_ended(self) -> bool:
        """Return true if the process is not running."""
        return self.process is None or self.process.poll() is not None

    def stop(self) -> None:
        """Terminate the process, and kill it if it does not end in time."""
        if self.process is None or self.has_ended():
            return
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Supervisor:
    """Keep child processes running: restart one that ends, with a growing delay if it ends soon again."""

    def __init__(self, children: Sequence[ManagedProcess]) -> None:
        self._children = children
        self._stopping = threading.Event()

    def run(self) -> None:
        """Run the children until a signal arrives; stop them in reverse order."""
        signal.signal(signal.SIGTERM, self.stop)
        signal.signal(signal.SIGINT, self.stop)
        try:
            for child in self._children:
                child.start()
            while not self._stopping.wait(0.1):
                for child in self._children:
                    self._restart_if_ended(child)
        finally:
            for child in reversed(self._children):
                child.stop()

    def stop(self, *_: object) -> None:
        """Stop everything soon."""
        self._stopping.set()

    def _restart_if_ended(self, child: ManagedProcess) -> None:
        """Restart a child that ended, after its delay; reset the delay of one that runs long enough."""
        age = time.monotonic() - child.started
        if not child.has_ended():
            child.restart_delay = 0.1 if age > LONGEST_RESTART_DELAY else child.restart_delay
            return
        if age >= child.restart_delay:
            print(f"dither: the {child.name} ended; starting it again", file=sys.stderr, flush=True)
            child.restart_delay = min(LONGEST_RESTART_DELAY, 2 * child.restart_delay)
            child.start()


def tune_interpreter() -> None:
    """Tune garbage collection and thread switching for low latency, once a server has started.

    Freeze the objects that exist now: scanning them for garbage takes 40 ms each time. Switch threads after half a
    millisecond instead of five, so that a thread with a deadline waits less for busy threads.
    """
    gc.freeze()
    sys.setswitchinterval(SWITCH_INTERVAL)
