"""When an answer may leave: at instants that follow from public facts, whatever the data did.

Predictive mitigation (Askarov, Zhang and Myers 2010): an answer leaves at the first of a fixed series of instants after
its charge by which it is ready. Being later than the first is a miss; misses are counted, make later predictions
longer, and at a cap lock the dataset.
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

MOST_MISSES = 3
LOCKED = "the dataset is locked after late answers, until its curator acts"
DOUBLINGS = 4


class Clock(Protocol):
    """Time, so that tests can hold it."""

    def utc(self) -> datetime:
        """The calendar's time; it may jump, also backwards."""

    def milliseconds(self) -> int:
        """Time that only goes forward."""

    def wait_until(self, instant: int) -> None:
        """Returns at that instant of `milliseconds`, or at once if it has passed."""


class SystemClock:
    """The machine's own clocks."""

    def utc(self) -> datetime:
        """The calendar's time."""
        return datetime.now(UTC)

    def milliseconds(self) -> int:
        """Milliseconds of the monotonic clock."""
        return time.monotonic_ns() // 1_000_000

    def wait_until(self, instant: int) -> None:
        """Sleeps until the instant."""
        while (left := instant - self.milliseconds()) > 0:
            time.sleep(left / 1000)


@dataclass(frozen=True)
class Work:
    """What is public about the work that a plan asks for: passes and sorts over (noisily counted) rows, cells out.

    `nodes` is the plan's own size: long conditions take time to spell and to parse, however few the rows.
    """

    passes: int
    sorts: int
    rows: int
    cells: int
    nodes: int = 0

    @property
    def time_class(self) -> str:
        """Its name: plans of one class wait equally long."""
        done = f"{_power(self.passes + 4 * self.sorts)}x{_power(self.rows)}"
        return f"{done}+{_power(self.cells)}+{_power(self.nodes)}"


def _power(count: int) -> int:
    """The number of bits of a count: what is told apart is only its order of magnitude."""
    return max(0, count).bit_length()


@dataclass(frozen=True)
class Schedule:
    """The predicted time of a class: `floor` milliseconds, and nanoseconds for a row and pass, a cell, and a node."""

    floor: int = 200
    row: int = 400
    cell: int = 2_000
    node: int = 1_000_000
    most_misses: int = MOST_MISSES

    def __post_init__(self) -> None:
        if min(self.floor, self.row, self.cell, self.node) < 0 or self.floor < 1 or self.most_misses < 1:
            raise InvalidParameter("a schedule needs a floor of at least 1 ms, costs from 0 up and at least one miss")

    def prediction(self, work: Work, misses: int) -> int:
        """Milliseconds from the charge to the first instant; each miss so far doubles it."""
        weight = 1 << _power(work.passes + 4 * work.sorts)
        nanoseconds = self.row * weight * (1 << _power(work.rows)) + self.cell * (1 << _power(work.cells))
        nanoseconds += self.node * (1 << _power(work.nodes))
        return (self.floor + nanoseconds // 1_000_000) << min(misses, 2 * DOUBLINGS)

    def instants(self, start: int, work: Work, misses: int) -> tuple[int, ...]:
        """When an answer may leave: at the prediction, or at its doublings; the last is where the engine is cut off."""
        first = self.prediction(work, misses)
        return tuple(start + (first << doubling) for doubling in range(DOUBLINGS))

    def residual_bits(self, charges: int, unlocked: int = 0) -> int:
        """Bits that misses among so many charges could tell at most: which were late or failed, and when they left.

        Each time that the curator unlocked the dataset has allowed as many misses again.
        """
        most = min(charges, self.most_misses * (1 + unlocked))
        ways: int = sum(comb(charges, late) * (2 * DOUBLINGS) ** late for late in range(most + 1))
        return (ways - 1).bit_length()


class Gate:
    """Lets so few answers be under way at once that, were all of them late, the cap on misses would still hold."""

    def __init__(self) -> None:
        self._changed, self._under_way = threading.Condition(), 0

    @contextmanager
    def passing(self, allowed: Callable[[], int]) -> Iterator[None]:
        """Waits for a turn, and ends it when the answer has left; refuses where no more may be late (`allowed`)."""
        with self._changed:
            self._changed.wait_for(lambda: not 0 < allowed() <= self._under_way)
            if allowed() <= 0:
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
    """When an answer leaves, and whether that is later than was predicted."""

    instant: int
    missed: bool


def departure(instants: tuple[int, ...], ready: int) -> Departure:
    """The first instant at which what is ready may leave; past the last, that last one (it was cut off there)."""
    for number, instant in enumerate(instants):
        if ready <= instant:
            return Departure(instant, number > 0)
    return Departure(instants[-1], True)
