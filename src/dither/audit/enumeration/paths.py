"""Every execution of code that reads its randomness from a `Bits` source, likeliest first.

One execution is a path of decisions; the tape replays a path, then follows the heaviest branch and notes the others.
Masses are integers of 2^-256, rounded down, so that each outcome has at least its mass and at most its mass and what
is left. Code that reads randomness elsewhere takes different turns on a replay, or ends differently when the same
executions are repeated (`check_steady`), and is refused.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass
from fractions import Fraction
from heapq import heappop, heappush
from math import isfinite
from typing import Any

import numpy as np

from dither.audit.enumeration.symbolic import ELSEWHERE, Branches, Lazy, Uniform
from dither.audit.enumeration.symbolic_arrays import LazyWords, known
from dither.errors import DitherError, InvalidParameter, Unsupported
from dither.privacy.bits import word_bytes

UNIT = 1 << 256
FLOAT_BITS = 53
Run = Callable[["Tape"], Any]
Path = tuple[Any, Any] | None  # the decisions before, and one more
MOST_ASKED = 4_000_000  # random numbers in one execution
REPEATED = 500
AT_ONCE = 50


class Undecided(Exception):
    """Raised inside a run that is not worth following: its mass stays undecided."""


class Rejected(Exception):
    """Raised inside a run that starts over, as a rejection sampler does: the outcome `AGAIN`."""


@dataclass(frozen=True)
class Typed:
    """An outcome that Python may take for one of another type (1.0, yes and 1), or that has no hash of its own."""

    kind: type
    content: Hashable
    outcome: Any = field(compare=False)

    def __repr__(self) -> str:
        return repr(self.outcome)

    def __bool__(self) -> bool:
        return bool(self.outcome)


PLAIN = (int, str, bytes, type(None))
AGAIN = Typed(Rejected, "", "starts over")


@dataclass(frozen=True)
class ExactDistribution:
    """At least how likely each outcome is, in units of 2^-256; what is missing to 1 may belong to any outcome."""

    masses: Mapping[Hashable, int]
    runs: int

    @property
    def left(self) -> int:
        """The mass that is not decided, in the same units."""
        return UNIT - sum(self.masses.values())

    @property
    def residual(self) -> float:
        """The mass that is not decided."""
        return float(Fraction(self.left, UNIT))

    def interval(self, outcome: Hashable) -> tuple[Fraction, Fraction]:
        """Rigorous bounds of the probability of an outcome."""
        mass = self.masses.get(key(outcome), 0)
        return Fraction(mass, UNIT), Fraction(mass + self.left, UNIT)

    def accepted(self) -> ExactDistribution:
        """The law of the first try that is not rejected: each mass over 1 - r, r at least the chance of rejection."""
        kept = UNIT - self.masses.get(AGAIN, 0)
        masses = {outcome: mass * UNIT // kept for outcome, mass in self.masses.items() if outcome != AGAIN}
        return ExactDistribution(masses, self.runs)

    def moved(self, by: Callable[[Any], Hashable]) -> ExactDistribution:
        """The law of a function of the outcome."""
        masses: dict[Hashable, int] = {}
        for outcome, mass in self.masses.items():
            masses[by(outcome)] = masses.get(by(outcome), 0) + mass
        return ExactDistribution(masses, self.runs)


class Tape:
    """One execution's random numbers: a `Bits` source, with `random`, `below` and known laws besides."""

    def __init__(self, path: Path, mass: int, branches: Callable[[int, Path], None]) -> None:
        self.mass, self._branches, self._asked = mass, branches, 0
        self._end, self._replay = path, _unrolled(path)
        self.refused: Unsupported | None = None

    def split(self, branches: Branches, total: int) -> Any:
        """What the branch taken brings: as on the path, then the heaviest; the others are noted."""
        if self._replay:
            return self._replay.pop()
        if not self.mass:
            raise Undecided
        found = branches()
        chosen = max(range(len(found)), key=lambda place: found[place][0])
        for place, (weight, what) in enumerate(found):
            if place != chosen and weight:
                self._branches(self.mass * weight // total, (self._end, what))
        weight, what = found[chosen]
        self.mass, self._end = self.mass * weight // total, (self._end, what)
        return what

    def refuse(self, reason: str) -> Unsupported:
        """The error to raise; the run counts as refused also where the code catches it."""
        self.refused = Unsupported(reason)
        return self.refused

    def __copy__(self) -> Any:
        raise self.refuse("the code copies its source of randomness")

    def __deepcopy__(self, memo: Any) -> Any:
        return self.__copy__()

    def integer(self, bits: int) -> Any:
        """One uniform integer of `bits` bits."""
        self._asked += 1
        if self._asked > MOST_ASKED:
            raise self.refuse(f"an execution asked for more than {MOST_ASKED} random numbers and had not ended")
        return Lazy(Uniform(self, 0, (1 << bits) - 1)) if bits else 0

    def words(self, size: int, bits: int) -> Any:
        """`size` uniform integers of `bits` bits."""
        cells = np.empty(size, object)
        for place in range(size):
            cells[place] = self.integer(bits)
        return LazyWords(cells, f"u{word_bytes(bits)}")

    def below(self, n: int) -> Any:
        """A uniform integer from 0 to n - 1."""
        return Lazy(Uniform(self, 0, n - 1))

    def random(self) -> Any:
        """A float as Python's and numpy's generators make it: 53 uniform bits."""
        return self.integer(FLOAT_BITS) * 2.0**-FLOAT_BITS

    def draw(self, law: ExactDistribution) -> Any:
        """An outcome of a law that is known already."""
        if not law.masses:
            self.mass = 0  # also where the code catches everything
            raise Undecided
        outcome = self.split(lambda: [(mass, each) for each, mass in law.masses.items()], UNIT)
        if outcome not in law.masses:
            raise self.refuse(ELSEWHERE)
        return outcome


def _unrolled(path: Path) -> list[Any]:
    """The decisions of a path, the first one last."""
    listed = []
    while path is not None:
        path, what = path
        listed.append(what)
    return listed


def enumerate_paths(run: Run, residual: float, most_runs: int) -> ExactDistribution:
    """The law of `run(tape)`, until the mass that is not decided is at most `residual` or the runs are used up."""
    if not 0 <= residual < 1 or most_runs < 1:
        raise InvalidParameter("the residual must be in [0, 1) and there must be at least one run")
    enough = UNIT - int(Fraction(residual) * UNIT)
    masses: dict[Hashable, int] = {}
    waiting: list[tuple[int, int, Path]] = [(-UNIT, 0, None)]
    settled = runs = order = 0

    def note(mass: int, path: Path) -> None:
        nonlocal order
        order += 1
        heappush(waiting, (-mass, order, path))

    with np.errstate(all="ignore"):
        while waiting and settled < enough and runs < most_runs:
            negative, _, path = heappop(waiting)
            tape = Tape(path, -negative, note)
            runs += 1
            with suppress(Undecided):
                outcome = _outcome(run, tape)
                if tape.refused is not None:
                    raise tape.refused
                masses[outcome] = masses.get(outcome, 0) + tape.mass
                settled += tape.mass
    return ExactDistribution(masses, runs)


def check_steady(run: Run) -> None:
    """Refuses code that does not end as before when its likeliest executions are repeated."""
    states = _states()
    first = enumerate_paths(run, 0.0, AT_ONCE)
    done = first.runs
    while done < REPEATED:
        again = enumerate_paths(run, 0.0, AT_ONCE)
        done += again.runs
        if again.masses != first.masses:
            raise Unsupported(ELSEWHERE)
    if _states() != states:
        raise Unsupported(ELSEWHERE)


def _states() -> tuple[Any, Any]:
    """Where the generators that everybody shares are."""
    kind, words, *rest = np.random.get_state(legacy=True)
    return random.getstate(), (kind, np.asarray(words).tobytes(), *rest)


def _outcome(run: Run, tape: Tape) -> Hashable:
    """What the run gives back; an error of arithmetic is seen by whoever asked, so it is an outcome too."""
    try:
        return key(run(tape))
    except Rejected:
        return AGAIN
    except (ArithmeticError, ValueError) as error:
        if isinstance(error, DitherError):
            raise
        return Typed(type(error), "", f"raises {type(error).__name__}")


def key(outcome: Any) -> Hashable:
    """An outcome as something to count by: whatever an analyst can tell apart is not equal.

    Integers, texts, tuples and broken numbers stand for themselves. Numpy's numbers count as Python's of their kind,
    since random numbers that are decided late are Python's here whatever they are in production.
    """
    decided = known(outcome)
    if isinstance(decided, np.ndarray) and not decided.ndim:
        decided = decided[()]
    if isinstance(decided, np.generic) and not isinstance(decided, np.datetime64 | np.timedelta64):
        decided = decided.tolist()
    broken = type(decided) is float and isfinite(decided) and not decided.is_integer()
    if broken or isinstance(decided, Typed) or type(decided) in PLAIN:
        return decided  # type: ignore[no-any-return]
    same = _content(decided)
    return same if type(decided) is tuple else Typed(type(decided), same, decided)


def _content(decided: Any) -> Hashable:
    """What tells outcomes of one type apart: not-a-number is equal to itself, and minus zero is not zero."""
    if isinstance(decided, float | complex):
        return repr(decided)
    if isinstance(decided, np.ndarray):
        form = str(decided.dtype) if decided.dtype.kind in "mMV" else ""  # as numbers these look alike
        return decided.shape, form, key(tuple(decided.tolist()))
    if isinstance(decided, list | tuple):
        return tuple(key(each) for each in decided)
    if isinstance(decided, dict):
        return tuple(sorted(((key(name), key(each)) for name, each in decided.items()), key=repr))
    if isinstance(decided, set | frozenset):
        return frozenset(key(each) for each in decided)
    if is_dataclass(decided) and not isinstance(decided, type):
        return tuple(key(getattr(decided, each.name)) for each in fields(decided))
    if not isinstance(decided, Hashable):
        raise Unsupported(
            f"outcomes of type {type(decided).__name__} cannot be counted: return numbers, texts or lists"
        )
    return decided, repr(decided)  # Decimal("1") and Decimal("1.0") are equal
