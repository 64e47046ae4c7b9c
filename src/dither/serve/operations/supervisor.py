"""Starting two processes, starting them again, and ending them together."""

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
from dataclasses import dataclass, field
from pathlib import Path

from dither.errors import InvalidParameter

PASSED_ON = ("PATH", "LANG", "LC_ALL", "TZ", "VIRTUAL_ENV", "PYTHONPATH", "PYTHONHASHSEED", "SSL_CERT_FILE")
FEW_ARENAS = {"MALLOC_ARENA_MAX": "2"}  # the C library keeps memory for every thread otherwise, and it only grows
GRACE = 15.0
LONGEST_PAUSE = 10.0
TURN = 0.0005  # seconds for which a busy thread may keep the others of its process waiting


def exit_with_parent(stop: Callable[[], object]) -> None:
    """Stops once the process that started this one is gone, where that one asked for it."""
    parent = os.environ.get("DITHER_SUPERVISOR", "")
    if not parent:
        return

    def watch() -> None:
        while os.getppid() == int(parent):
            time.sleep(0.5)
        stop()

    threading.Thread(target=watch, daemon=True).start()


def bare_environment() -> dict[str, str]:
    """What a gateway may know of this process's environment: nothing that could hold a secret."""
    return {name: os.environ[name] for name in PASSED_ON if name in os.environ}


def group_of(user: str) -> int:
    """The number of a user's own group."""
    try:
        return pwd.getpwnam(user).pw_gid
    except KeyError:
        raise InvalidParameter(f"there is no user {user} on this machine") from None


@dataclass
class ManagedProcess:
    """A process that is to run: its command, its environment, and where it runs."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    directory: Path
    user: str | None = None
    process: subprocess.Popen[bytes] | None = None
    pause: float = 0.1
    began: float = field(default=0.0)

    def start(self) -> None:
        """Starts it, with no open file of this process but the standard ones."""
        environment = {**FEW_ARENAS, **self.environment, "DITHER_SUPERVISOR": str(os.getpid())}
        self.began = time.monotonic()
        try:
            self.process = subprocess.Popen(
                self.command, env=environment, cwd=self.directory, stdin=subprocess.DEVNULL, user=self.user,
                group=None if self.user is None else group_of(self.user),
                extra_groups=None if self.user is None else (), start_new_session=True,
            )  # fmt: skip
        except (PermissionError, KeyError):
            raise InvalidParameter(f"the {self.name} cannot be run as user {self.user}") from None

    def ended(self) -> bool:
        """Whether it is not running."""
        return self.process is None or self.process.poll() is not None

    def stop(self) -> None:
        """Asks it to end, and makes it."""
        if self.process is None or self.ended():
            return
        self.process.terminate()
        try:
            self.process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Supervisor:
    """Keeps its children running: one that ends is started again, later each time if it does not last."""

    def __init__(self, children: Sequence[ManagedProcess]) -> None:
        self._children = children
        self._stopping = threading.Event()

    def run(self) -> None:
        """Until told to stop; the last child is stopped first."""
        signal.signal(signal.SIGTERM, self.stop)
        signal.signal(signal.SIGINT, self.stop)
        try:
            for child in self._children:
                child.start()
            while not self._stopping.wait(0.1):
                for child in self._children:
                    self._look_after(child)
        finally:
            for child in reversed(self._children):
                child.stop()

    def stop(self, *_: object) -> None:
        """Ends everything soon."""
        self._stopping.set()

    def _look_after(self, child: ManagedProcess) -> None:
        lasted = time.monotonic() - child.began
        if not child.ended():
            child.pause = 0.1 if lasted > LONGEST_PAUSE else child.pause
            return
        if lasted >= child.pause:
            print(f"dither: the {child.name} ended; starting it again", file=sys.stderr, flush=True)
            child.pause = min(LONGEST_PAUSE, 2 * child.pause)
            child.start()


def tune_interpreter() -> None:
    """Once a server has started: nothing that is due soon waits long for what is busy.

    What is there by now stays, so it is not looked through for garbage again and again, for 40 ms each time; and a
    thread whose instant has come waits for half a millisecond of each busy thread, not for five.
    """
    gc.freeze()
    sys.setswitchinterval(TURN)
