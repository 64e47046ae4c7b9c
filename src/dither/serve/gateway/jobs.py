"""Questions that are answered later. Their progress follows from the clock and the quote: from public facts alone."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from dither.errors import Busy, DitherError, InvalidParameter, NotFound

KEPT_SECONDS = 3600.0


@dataclass(frozen=True)
class Job:
    """A question under way; only the account that asked can see it."""

    name: str
    question: str
    predicted: int
    future: Future[dict[str, Any]]
    began: float = field(default_factory=time.monotonic)

    @property
    def failed(self) -> bool:
        """Whether it has ended without an answer."""
        return self.future.done() and (self.future.cancelled() or self.future.exception() is not None)

    def data(self) -> dict[str, Any]:
        """Its state; while it lasts, the share of the predicted time that has passed, whatever the kernel is doing."""
        if not self.future.done():
            passed = 1000 * (time.monotonic() - self.began) / max(1, self.predicted)
            return {"job": self.name, "status": "waiting", "milliseconds": self.predicted,
                    "progress": round(min(0.99, passed), 2)}  # fmt: skip
        problem = self.future.exception()
        if problem is None:
            return {"job": self.name, "status": "done", "answer": self.future.result()}
        known = problem if isinstance(problem, DitherError) else DitherError("the gateway could not do this")
        return {"job": self.name, "status": "failed", "error": {"code": known.code, "message": str(known)}}


class Jobs:
    """The jobs of all accounts: so many for each, so many in all, and none for longer than an hour."""

    def __init__(self, workers: int = 32, each: int = 16, most: int = 1000) -> None:
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="job")
        self._each, self._most = each, most
        self._lock = threading.Lock()
        self._jobs: OrderedDict[tuple[str, str], Job] = OrderedDict()

    def submit(self, account: str, name: str, question: str, predicted: int, work: Callable[[], dict[str, Any]]) -> Job:
        """Begins a job, or finds the one of that name, which stands for one question; one that failed begins anew."""
        with self._lock:
            self._forget_old()
            found = self._jobs.get((account, name))
            if found is not None and found.question != question:
                raise InvalidParameter("this request id stands for another question; use a new one")
            if found is not None and not found.failed:
                return found
            self._jobs.pop((account, name), None)
            mine = sum(owner == account for owner, _ in self._jobs)
            if mine >= self._each or len(self._jobs) >= self._most:
                raise Busy("too many jobs; collect or delete some; nothing was charged")
            job = self._jobs[account, name] = Job(name, question, predicted, self._pool.submit(work))
            return job

    def find(self, account: str, name: str) -> Job:
        """A job of an account."""
        with self._lock:
            if (account, name) not in self._jobs:
                raise NotFound("this account has no such job")
            return self._jobs[account, name]

    def delete(self, account: str, name: str) -> None:
        """Forgets a job; what was charged stays charged, and the answer is there for whoever asks again."""
        job = self.find(account, name)
        job.future.cancel()
        with self._lock:
            self._jobs.pop((account, name), None)

    def _forget_old(self) -> None:
        now = time.monotonic()
        for key, job in list(self._jobs.items()):
            if job.future.done() and now - job.began > KEPT_SECONDS:
                del self._jobs[key]

    def close(self) -> None:
        """Begins no more of them."""
        self._pool.shutdown(wait=False, cancel_futures=True)
