"""Rate limits: a token bucket for each account, and one for each address that sends unknown tokens."""

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
    """A long-run rate of requests per second and the largest burst."""

    per_second: float
    burst: int


class TokenBuckets:
    """One token bucket per name; the least recently used buckets are dropped."""

    def __init__(self, rate: Rate, max_names: int = 10_000, now: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._max_names, self._now = rate, max_names, now
        self._lock = threading.Lock()
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, name: str) -> float:
        """Take one token; return 0, or the seconds to wait if the bucket is empty."""
        with self._lock:
            now = self._now()
            level, updated = self._levels.pop(name, (float(self._rate.burst), now))
            level = min(float(self._rate.burst), level + (now - updated) * self._rate.per_second)
            wait = 0.0 if level >= 1 else (1 - level) / self._rate.per_second
            self._levels[name] = (level - 1 if level >= 1 else level, now)
            if len(self._levels) > self._max_names:
                self._levels.popitem(last=False)
            return wait


class InFlight:
    """Count the requests in progress of each account, so that one account cannot occupy every thread."""

    def __init__(self, max_per_account: int) -> None:
        self._max_per_account, self._lock = max_per_account, threading.Lock()
        self._counts: Counter[str] = Counter()

    @contextmanager
    def admit(self, name: str) -> Iterator[None]:
        """Count a request while it is handled; raise Busy if the account has too many in progress."""
        with self._lock:
            if self._counts[name] >= self._max_per_account:
                raise Busy(
                    f"an account may have at most {self._max_per_account} requests in progress; nothing was charged"
                )
            self._counts[name] += 1
        try:
            yield
        finally:
            with self._lock:
                self._counts[name] -= 1
                if not self._counts[name]:
                    del self._counts[name]


class RecentTokens:
    """The hashes of recently used tokens, and the account and role of each."""

    def __init__(self, max_tokens: int = 10_000) -> None:
        self._max_tokens, self._lock = max_tokens, threading.Lock()
        self._accounts: OrderedDict[str, tuple[str, str]] = OrderedDict()

    def add(self, token_hash: str, account: str, role: str = "") -> None:
        """Store the account and role of a token."""
        with self._lock:
            self._accounts[token_hash] = account, role
            self._accounts.move_to_end(token_hash)
            if len(self._accounts) > self._max_tokens:
                self._accounts.popitem(last=False)

    def discard(self, token_hash: str) -> None:
        """Remove a token."""
        with self._lock:
            self._accounts.pop(token_hash, None)

    def get(self, token_hash: str) -> str | None:
        """Return the account of a token, or None, and mark the token as recently used."""
        with self._lock:
            if token_hash in self._accounts:
                self._accounts.move_to_end(token_hash)
            return self._accounts.get(token_hash, (None, ""))[0]

    def role(self, token_hash: str) -> str:
        """Return the role of a token, or "" if it was not used recently."""
        with self._lock:
            return self._accounts.get(token_hash, ("", ""))[1]
