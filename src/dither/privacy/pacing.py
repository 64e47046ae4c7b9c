"""Release schedules: answers leave at times computed from public facts; timing depends on data through misses only.

Predictive mitigation (Askarov, Zhang and Myers 2010): after its charge, an answer leaves at the first of a fixed series
of instants by which it is ready. An answer that leaves later than the first instant is a miss. Misses are counted, make
later predictions longer, and lock the dataset once they reach a cap.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from math import comb
from typing import Protocol

from dither.errors import InvalidParameter, NotAllowed

MAX_MISSES = 3
LOCKED = "the dataset is locked after late answers, until its curator acts"
DOUBLINGS = 4


class Clock(Protocol):
    """A source of time that tests can replace."""

    def utc(self) -> datetime:
        """Return the calendar time, which may jump forwards or backwards."""

    def milliseconds(self) -> int:
        """Return the milliseconds of a clock that never goes backwards."""

    def wait_until(self, instant: int) -> None:
        """Wait until `milliseconds` reaches the instant; return at once if it has passed."""


class SystemClock:
    """The clocks of this machine."""

    def utc(self) -> datetime:
        """Return the calendar time in UTC."""
        return datetime.now(UTC)

    def milliseconds(self) -> int:
        """Return the milliseconds of the monotonic clock."""
        return time.monotonic_ns() // 1_000_000

    def wait_until(self, instant: int) -> None:
        """Sleep until the instant."""
        while (remaining := instant - self.milliseconds()) > 0:
            time.sleep(remaining / 1000)


@dataclass(frozen=True)
class Work:
    """The public amount of work in a plan: passes and sorts over rows (a noisy count), and cells in the result.

    `nodes` is the size of the plan itself: long conditions take time to compile and to parse, however few the rows.
    """

    passes: int
    sorts: int
    rows: int
    cells: int
    nodes: int = 0

    @property
    def time_class(self) -> str:
        """The name of the work's time class; all plans of one class wait equally long."""
        reading = f"{_magnitude(self.passes + 4 * self.sorts)}x{_magnitude(self.rows)}"
        return f"{reading}+{_magnitude(self.cells)}+{_magnitude(self.nodes)}"


def _magnitude(count: int) -> int:
    """Return the number of bits of a count, which distinguishes only its order of magnitude."""
    return max(0, count).bit_length()


@dataclass(frozen=True)
class Schedule:
    """Predicts how long work takes.

    `floor` is in milliseconds; `row` (per row and pass), `cell` and `node` are in nanoseconds.
    """

    floor: int = 200
    row: int = 400
    cell: int = 2_000
    node: int = 1_000_000
    max_misses: int = MAX_MISSES

    def __post_init__(self) -> None:
        if min(self.floor, self.row, self.cell, self.node) < 0 or self.floor < 1 or self.max_misses < 1:
            raise InvalidParameter(
                "a schedule needs floor >= 1 (ms), max_misses >= 1, and row, cell and node >= 0 (ns)"
            )

    def prediction(self, work: Work, misses: int) -> int:
        """Return the time in milliseconds from charge to first instant; each earlier miss doubles it, up to a limit."""
        weight = 1 << _magnitude(work.passes + 4 * work.sorts)
        nanoseconds = self.row * weight * (1 << _magnitude(work.rows)) + self.cell * (1 << _magnitude(work.cells))
        nanoseconds += self.node * (1 << _magnitude(work.nodes))
        return (self.floor + nanoseconds // 1_000_000) << min(misses, 2 * DOUBLINGS)

    def instants(self, start: int, work: Work, misses: int) -> tuple[int, ...]:
        """Return the times at which an answer may leave: the prediction and its doublings. The last is the deadline."""
        first = self.prediction(work, misses)
        return tuple(start + (first << doubling) for doubling in range(DOUBLINGS))

    def residual_bits(self, attempts: int, unlocked: int = 0) -> int:
        """Return an upper bound on the bits that `attempts` to answer reveal by their timing: which missed, and when.

        Each of the `unlocked` times that the curator unlocked the dataset allowed `max_misses` more misses.
        """
        most = min(attempts, self.max_misses * (1 + unlocked))
        ways: int = sum(comb(attempts, late) * (2 * DOUBLINGS) ** late for late in range(most + 1))
        return (ways - 1).bit_length()


class Gate:
    """Limits the answers in progress to the misses that are left, so that the cap holds even if all are late."""

    def __init__(self) -> None:
        self._changed, self._under_way = threading.Condition(), 0

    @contextmanager
    def enter(self, misses_left: Callable[[], int]) -> Iterator[None]:
        """Wait for a place and hold it until the answer has left; refuse if no further miss is allowed."""
        with self._changed:
            self._changed.wait_for(lambda: not 0 < misses_left() <= self._under_way)
            if misses_left() <= 0:
                raise NotAllowed(LOCKED)
            self._under_way += 1
        try:
            yield
        finally:
            with self._changed:
                self._under_way -= 1
                self._changed.notify_all()


@dataclass(frozen=True)
class Departure:
    """The time at which an answer leaves, and whether it is later than predicted."""

    instant: int
    missed: bool


def departure(instants: tuple[int, ...], ready: int) -> Departure:
    """Return the first instant at or after `ready`; after the last one, the last, since the engine is cut off there."""
    for number, instant in enumerate(instants):
        if ready <= instant:
            return Departure(instant, number > 0)
    return Departure(instants[-1], True)
