"""Jobs: queries answered in the background. Their progress depends on the clock and the quote, which are public."""

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
    """A query in progress; only the account that submitted it can see it."""

    name: str
    request_hash: str
    predicted_ms: int
    future: Future[dict[str, Any]]
    started: float = field(default_factory=time.monotonic)

    @property
    def failed(self) -> bool:
        """Return true if the job ended without an answer."""
        return self.future.done() and (self.future.cancelled() or self.future.exception() is not None)

    def data(self) -> dict[str, Any]:
        """Return the job's state; while it runs, its progress is the share of the predicted time that has passed."""
        if not self.future.done():
            passed = 1000 * (time.monotonic() - self.started) / max(1, self.predicted_ms)
            return {"job": self.name, "status": "waiting", "milliseconds": self.predicted_ms,
                    "progress": round(min(0.99, passed), 2)}  # fmt: skip
        exception = self.future.exception()
        if exception is None:
            return {"job": self.name, "status": "done", "answer": self.future.result()}
        error = (
            exception
            if isinstance(exception, DitherError)
            else DitherError("the gateway failed to process this request")
        )
        return {"job": self.name, "status": "failed", "error": {"code": error.code, "message": str(error)}}


class Jobs:
    """The jobs of all accounts, limited per account and in total; an ended job is deleted an hour after its start."""

    def __init__(self, workers: int = 32, max_per_account: int = 16, max_jobs: int = 1000) -> None:
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="job")
        self._max_per_account, self._max_jobs = max_per_account, max_jobs
        self._lock = threading.Lock()
        self._jobs: OrderedDict[tuple[str, str], Job] = OrderedDict()

    def submit(
        self, account: str, name: str, request_hash: str, predicted_ms: int, work: Callable[[], dict[str, Any]]
    ) -> Job:
        """Start a job, or return the job of that name if it is for the same request; a failed job starts again."""
        with self._lock:
            self._delete_old()
            existing = self._jobs.get((account, name))
            if existing is not None and existing.request_hash != request_hash:
                raise InvalidParameter("this request_id belongs to a different query; use a new one")
            if existing is not None and not existing.failed:
                return existing
            self._jobs.pop((account, name), None)
            own = sum(owner == account for owner, _ in self._jobs)
            if own >= self._max_per_account or len(self._jobs) >= self._max_jobs:
                raise Busy("too many jobs; delete finished ones with DELETE /v1/jobs/NAME; nothing was charged")
            job = self._jobs[account, name] = Job(name, request_hash, predicted_ms, self._pool.submit(work))
            return job

    def find(self, account: str, name: str) -> Job:
        """Return a job of an account."""
        with self._lock:
            if (account, name) not in self._jobs:
                raise NotFound("this account has no job of that name")
            return self._jobs[account, name]

    def delete(self, account: str, name: str) -> None:
        """Delete a job; its charge stands, and the same query returns the same answer without another charge."""
        job = self.find(account, name)
        job.future.cancel()
        with self._lock:
            self._jobs.pop((account, name), None)

    def _delete_old(self) -> None:
        """Delete ended jobs that started more than KEPT_SECONDS ago."""
        now = time.monotonic()
        for key, job in list(self._jobs.items()):
            if job.future.done() and now - job.started > KEPT_SECONDS:
                del self._jobs[key]

    def close(self) -> None:
        """Start no more jobs."""
        self._pool.shutdown(wait=False, cancel_futures=True)
