"""Whose turn it is: so many answers of a dataset at once, accounts in rotation, and refusals before any charge.

How long one waits depends on who else asks and on the schedule by which answers leave: on public facts alone.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from dither.errors import Busy


@dataclass(frozen=True)
class QueueLimits:
    """How many answers of a dataset are worked on at once, how many wait, and how many of either one account has."""

    running: int = 4
    waiting: int = 64
    account: int = 8


@dataclass
class _AccountQueue:
    """Those who wait for one dataset: a line for each account, and the accounts in rotation."""

    running: int = 0
    waiting: OrderedDict[str, deque[threading.Event]] = field(default_factory=OrderedDict)
    held: dict[str, int] = field(default_factory=dict)

    def length(self) -> int:
        """How many wait."""
        return sum(map(len, self.waiting.values()))

    def next(self) -> threading.Event | None:
        """Takes the first of the account whose turn it is; that account goes to the end of the rotation."""
        if not self.waiting:
            return None
        account, line = self.waiting.popitem(last=False)
        first = line.popleft()
        if line:
            self.waiting[account] = line
        return first


class FairQueue:
    """The lines of all datasets."""

    def __init__(self, limits: QueueLimits | None = None) -> None:
        self.limits = limits or QueueLimits()
        self._lock = threading.Lock()
        self._lines: dict[str, _AccountQueue] = {}

    @contextmanager
    def turn(self, dataset: str, account: str) -> Iterator[None]:
        """Waits for a turn; refuses at once where too many wait already."""
        ready = self._enter(dataset, account)
        ready.wait()
        try:
            yield
        finally:
            self._leave(dataset, account)

    def waiting(self, dataset: str) -> int:
        """How many wait for a dataset."""
        with self._lock:
            return self._lines[dataset].length() if dataset in self._lines else 0

    def _enter(self, dataset: str, account: str) -> threading.Event:
        with self._lock:
            line = self._lines.setdefault(dataset, _AccountQueue())
            if line.held.get(account, 0) >= self.limits.account:
                raise Busy(f"this account has {self.limits.account} questions under way already; nothing was charged")
            if line.length() >= self.limits.waiting:
                raise Busy(f"{self.limits.waiting} questions wait for this dataset already; nothing was charged")
            line.held[account] = line.held.get(account, 0) + 1
            ready = threading.Event()
            line.waiting.setdefault(account, deque()).append(ready)
            self._admit(line)
            return ready

    def _leave(self, dataset: str, account: str) -> None:
        with self._lock:
            line = self._lines[dataset]
            line.running -= 1
            line.held[account] -= 1
            if not line.held[account]:
                del line.held[account]
            self._admit(line)

    def _admit(self, line: _AccountQueue) -> None:
        while line.running < self.limits.running and (first := line.next()) is not None:
            line.running += 1
            first.set()
