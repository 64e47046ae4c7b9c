"""A fair queue: limited concurrent answers per dataset, accounts served in rotation, and refusals before any charge.

The waiting time depends only on other requests and on the schedule of answers, which are public.
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
    """The limits of a dataset: requests running, requests waiting, and requests of one account in either state."""

    running: int = 4
    waiting: int = 64
    account: int = 8


@dataclass
class _AccountQueue:
    """The requests waiting for one dataset: a queue per account, and the accounts in rotation."""

    running: int = 0
    waiting: OrderedDict[str, deque[threading.Event]] = field(default_factory=OrderedDict)
    in_progress: dict[str, int] = field(default_factory=dict)

    def length(self) -> int:
        """Return the number of waiting requests."""
        return sum(map(len, self.waiting.values()))

    def pop_next(self) -> threading.Event | None:
        """Remove and return the next request; its account moves to the end of the rotation."""
        if not self.waiting:
            return None
        account, queue = self.waiting.popitem(last=False)
        first = queue.popleft()
        if queue:
            self.waiting[account] = queue
        return first


class FairQueue:
    """The queues of all datasets."""

    def __init__(self, limits: QueueLimits | None = None) -> None:
        self.limits = limits or QueueLimits()
        self._lock = threading.Lock()
        self._queues: dict[str, _AccountQueue] = {}

    @contextmanager
    def turn(self, dataset: str, account: str) -> Iterator[None]:
        """Wait for a turn; raise Busy at once if too many requests are waiting."""
        ready = self._enter(dataset, account)
        ready.wait()
        try:
            yield
        finally:
            self._leave(dataset, account)

    def waiting(self, dataset: str) -> int:
        """Return the number of requests that wait for a dataset."""
        with self._lock:
            return self._queues[dataset].length() if dataset in self._queues else 0

    def _enter(self, dataset: str, account: str) -> threading.Event:
        with self._lock:
            queue = self._queues.setdefault(dataset, _AccountQueue())
            if queue.in_progress.get(account, 0) >= self.limits.account:
                raise Busy(
                    f"an account may have at most {self.limits.account} queries in progress; nothing was charged"
                )
            if queue.length() >= self.limits.waiting:
                raise Busy(
                    f"the dataset's queue is full ({self.limits.waiting} waiting); ask again later; nothing was charged"
                )
            queue.in_progress[account] = queue.in_progress.get(account, 0) + 1
            ready = threading.Event()
            queue.waiting.setdefault(account, deque()).append(ready)
            self._admit(queue)
            return ready

    def _leave(self, dataset: str, account: str) -> None:
        with self._lock:
            queue = self._queues[dataset]
            queue.running -= 1
            queue.in_progress[account] -= 1
            if not queue.in_progress[account]:
                del queue.in_progress[account]
            self._admit(queue)

    def _admit(self, queue: _AccountQueue) -> None:
        while queue.running < self.limits.running and (first := queue.pop_next()) is not None:
            queue.running += 1
            first.set()
