"""How often: a bucket of tokens for each account, and one for each address that shows tokens nobody knows."""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from dither.errors import Busy


@dataclass(frozen=True)
class Rate:
    """So many requests a second in the long run, and so many at once."""

    per_second: float
    burst: int


class TokenBuckets:
    """A bucket for each name; the ones used longest ago are forgotten, full as they are by then."""

    def __init__(self, rate: Rate, most: int = 10_000, now: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._most, self._now = rate, most, now
        self._lock = threading.Lock()
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, name: str) -> float:
        """Takes one; 0, or the seconds after which to come back."""
        with self._lock:
            now = self._now()
            level, at = self._levels.pop(name, (float(self._rate.burst), now))
            level = min(float(self._rate.burst), level + (now - at) * self._rate.per_second)
            wait = 0.0 if level >= 1 else (1 - level) / self._rate.per_second
            self._levels[name] = (level - 1 if level >= 1 else level, now)
            if len(self._levels) > self._most:
                self._levels.popitem(last=False)
            return wait


class InFlight:
    """How many requests of each account are being worked on: one account cannot keep every thread busy."""

    def __init__(self, each: int) -> None:
        self._each, self._lock = each, threading.Lock()
        self._counts: Counter[str] = Counter()

    @contextmanager
    def one_more(self, name: str) -> Iterator[None]:
        """Counts one more while it lasts; refuses it where there are too many."""
        with self._lock:
            if self._counts[name] >= self._each:
                raise Busy(f"this account has {self._each} requests under way already; nothing was charged")
            self._counts[name] += 1
        try:
            yield
        finally:
            with self._lock:
                self._counts[name] -= 1
                if not self._counts[name]:
                    del self._counts[name]


class RecentTokens:
    """The last so many tokens (as hashes), and the account of each."""

    def __init__(self, most: int = 10_000) -> None:
        self._most, self._lock = most, threading.Lock()
        self._names: OrderedDict[str, str] = OrderedDict()

    def add(self, name: str, account: str) -> None:
        """Remembers a token."""
        with self._lock:
            self._names[name] = account
            self._names.move_to_end(name)
            if len(self._names) > self._most:
                self._names.popitem(last=False)

    def discard(self, name: str) -> None:
        """Forgets a token."""
        with self._lock:
            self._names.pop(name, None)

    def get(self, name: str) -> str | None:
        """The account of a token; it is the last to be forgotten now."""
        with self._lock:
            if name in self._names:
                self._names.move_to_end(name)
            return self._names.get(name)
