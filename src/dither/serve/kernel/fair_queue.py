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
    per_account: int = 8


@dataclass
class _DatasetQueue:
    """The requests of one dataset: the number running, those waiting by account in rotation, and totals by account."""

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
        self._queues: dict[str, _DatasetQueue] = {}

    @contextmanager
    def turn(self, dataset: str, account: str) -> Iterator[None]:
        """Wait for a turn; raise Busy at once if too many requests are waiting."""
        ready = self._enter(dataset, account)
        ready.wait()
        try:
            yield
        finally:
            self._leave(dataset, account)

    def waiting(self, dataset: str, account: str) -> int:
        """Return the number of an account's own requests that wait for a dataset; others' would show who asks."""
        with self._lock:
            return len(self._queues[dataset].waiting.get(account, ())) if dataset in self._queues else 0

    def _enter(self, dataset: str, account: str) -> threading.Event:
        """Queue a request, or raise Busy; return the event that is set when its turn comes."""
        with self._lock:
            queue = self._queues.setdefault(dataset, _DatasetQueue())
            if queue.in_progress.get(account, 0) >= self.limits.per_account:
                raise Busy(
                    f"an account may have at most {self.limits.per_account} queries in progress; nothing was charged"
                )
            if queue.length() >= self.limits.waiting:
                raise Busy(
                    f"the dataset's queue is full ({self.limits.waiting} waiting); ask again later; nothing was charged"
                )
            queue.in_progress[account] = queue.in_progress.get(account, 0) + 1
            ready = threading.Event()
            queue.waiting.setdefault(account, deque()).append(ready)
            self._start_waiting(queue)
            return ready

    def _leave(self, dataset: str, account: str) -> None:
        """Remove a request that has run, and start the next."""
        with self._lock:
            queue = self._queues[dataset]
            queue.running -= 1
            queue.in_progress[account] -= 1
            if not queue.in_progress[account]:
                del queue.in_progress[account]
            self._start_waiting(queue)

    def _start_waiting(self, queue: _DatasetQueue) -> None:
        """Start waiting requests while fewer than the limit are running."""
        while queue.running < self.limits.running and (first := queue.pop_next()) is not None:
            queue.running += 1
            first.set()
