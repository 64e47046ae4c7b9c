"""Readiness: ask the kernel if it can answer now; one check at a time, and one a second while all is well."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from dither.errors import Busy, DitherError

KEPT_SECONDS = 1.0
PROBE_SECONDS = 5.0


class Readiness:
    """The result of the latest check; concurrent probes share one check."""

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check
        self._asked = 0.0
        self._task: asyncio.Task[None] | None = None

    async def problem(self) -> DitherError | None:
        """Return why the service is not ready, or None if it is."""
        if self._task is None or (self._task.done() and not self._is_fresh(self._task)):
            self._asked = time.monotonic()
            self._task = asyncio.create_task(asyncio.to_thread(self._check))  # not one of the threads for requests
        done, _ = await asyncio.wait([self._task], timeout=PROBE_SECONDS)
        if not done:
            return Busy("the kernel does not answer")
        problem = self._task.exception()
        return problem if problem is None or isinstance(problem, DitherError) else DitherError("the check failed")

    def _is_fresh(self, task: asyncio.Task[None]) -> bool:
        """Return true if a check that ended still counts; a problem is looked for again at every probe."""
        return task.exception() is None and time.monotonic() - self._asked < KEPT_SECONDS
