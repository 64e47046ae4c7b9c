"""Enumerate the executions of code that reads its randomness from a `Bits` source, most probable first.

One execution is a path of decisions. The tape replays a path, then follows the most probable branch and queues the
others. Masses are integers in units of 2^-256, rounded down: the probability of an outcome is at least its mass, and at
most its mass plus the undecided mass. Code that reads other randomness decides differently on a replay, or ends
differently when the same executions are repeated (`check_reproducible`), and is refused.
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

from dither.audit.enumeration.symbolic import NOT_REPRODUCIBLE, Branches, LazyNumber, Uniform
from dither.audit.enumeration.symbolic_arrays import LazyArray, decide
from dither.errors import DitherError, InvalidParameter, Unsupported
from dither.privacy.bits import word_bytes

UNIT = 1 << 256  # the mass of probability 1
FLOAT_BITS = 53
Run = Callable[["Tape"], Any]
Path = tuple[Any, Any] | None  # a linked list: (earlier decisions, last decision)
MOST_RANDOM_NUMBERS = 4_000_000  # in one execution
# check_reproducible repeats rounds of RUNS_PER_ROUND executions until it has made REPEATED_RUNS.
REPEATED_RUNS = 500
RUNS_PER_ROUND = 50
# The methods for code under test; `draw` is for the auditor's own models.
METHODS = "random(), below(n), integer(bits), words(size, bits)"


class Undecided(Exception):
    """Raised inside a run to abandon it: its mass stays undecided."""


class Rejected(Exception):
    """Raised inside a run that starts over, as a rejection sampler does: its outcome is `REJECTED`."""


@dataclass(frozen=True)
class TypedOutcome:
    """An outcome tagged with its type: Python takes 1.0, True and 1 for equal, and some outcomes are not hashable."""

    kind: type
    content: Hashable
    outcome: Any = field(compare=False)

    def __repr__(self) -> str:
        return repr(self.outcome)

    def __bool__(self) -> bool:
        return bool(self.outcome)


SELF_DESCRIBING = (int, str, bytes, type(None))  # types whose values are outcome keys as they are
REJECTED = TypedOutcome(Rejected, "", "starts over")


@dataclass(frozen=True)
class ExactDistribution:
    """A lower bound of each outcome's probability, in units of 2^-256; the undecided rest may belong to any outcome."""

    masses: Mapping[Hashable, int]
    runs: int

    @property
    def undecided(self) -> int:
        """The undecided mass, in units of 2^-256."""
        return UNIT - sum(self.masses.values())

    @property
    def residual(self) -> float:
        """The undecided mass, as a probability."""
        return float(Fraction(self.undecided, UNIT))

    def interval(self, outcome: Hashable) -> tuple[Fraction, Fraction]:
        """Return rigorous bounds of the probability of an outcome."""
        mass = self.masses.get(outcome_key(outcome), 0)
        return Fraction(mass, UNIT), Fraction(mass + self.undecided, UNIT)

    def given_acceptance(self) -> ExactDistribution:
        """Return the distribution of the first attempt that is not rejected.

        Each mass is divided by 1 - r, where r is the mass of rejection, a lower bound of its probability.
        """
        not_rejected = UNIT - self.masses.get(REJECTED, 0)
        masses = {outcome: mass * UNIT // not_rejected for outcome, mass in self.masses.items() if outcome != REJECTED}
        return ExactDistribution(masses, self.runs)

    def map_outcomes(self, function: Callable[[Any], Hashable]) -> ExactDistribution:
        """Return the distribution of a function of the outcome."""
        masses: dict[Hashable, int] = {}
        for outcome, mass in self.masses.items():
            image = function(outcome)
            masses[image] = masses.get(image, 0) + mass
        return ExactDistribution(masses, self.runs)


class Tape:
    """The random numbers of one execution: a `Bits` source that also has `random`, `below` and `draw`."""

    def __init__(self, path: Path, mass: int, queue_branch: Callable[[int, Path], None]) -> None:
        self.mass, self._queue_branch, self._numbers_read = mass, queue_branch, 0
        self._path, self._replay = path, _decisions(path)
        self.refused: Unsupported | None = None

    def choose(self, branches: Branches, total: int) -> Any:
        """Return the result of one branch: the replayed one, or else the most probable; queue the other branches."""
        if self._replay:
            return self._replay.pop()
        if not self.mass:
            raise Undecided
        options = branches()
        chosen = max(range(len(options)), key=lambda place: options[place][0])
        for place, (weight, result) in enumerate(options):
            if place != chosen and weight:
                self._queue_branch(self.mass * weight // total, (self._path, result))
        weight, result = options[chosen]
        self.mass, self._path = self.mass * weight // total, (self._path, result)
        return result

    def refuse(self, reason: str) -> Unsupported:
        """Mark the run as refused and return the error to raise; the mark remains if the code catches the error."""
        self.refused = Unsupported(reason)
        return self.refused

    def __copy__(self) -> Any:
        raise self.refuse("the code copies its source of randomness; pass the same source on instead")

    def __deepcopy__(self, memo: Any) -> Any:
        return self.__copy__()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"bits has no {name!r}; it has: {METHODS}", name=name, obj=self)

    def integer(self, bits: int) -> Any:
        """Return one uniform integer of `bits` bits."""
        self._numbers_read += 1
        if self._numbers_read > MOST_RANDOM_NUMBERS:
            raise self.refuse(f"an execution asked for more than {MOST_RANDOM_NUMBERS} random numbers without ending")
        return LazyNumber(Uniform(self, 0, (1 << bits) - 1)) if bits else 0

    def words(self, size: int, bits: int) -> Any:
        """Return `size` uniform integers of `bits` bits each."""
        cells = np.empty(size, object)
        for place in range(size):
            cells[place] = self.integer(bits)
        return LazyArray(cells, f"u{word_bytes(bits)}")

    def below(self, n: int) -> Any:
        """Return a uniform integer from 0 to n - 1."""
        return LazyNumber(Uniform(self, 0, n - 1))

    def random(self) -> Any:
        """Return a float of 53 uniform bits, as Python's and numpy's generators do."""
        return self.integer(FLOAT_BITS) * 2.0**-FLOAT_BITS

    def draw(self, distribution: ExactDistribution) -> Any:
        """Return an outcome of a distribution that was enumerated before."""
        if not distribution.masses:
            self.mass = 0  # stays undecided even if the code catches the exception
            raise Undecided
        outcome = self.choose(lambda: [(mass, each) for each, mass in distribution.masses.items()], UNIT)
        if outcome not in distribution.masses:
            raise self.refuse(NOT_REPRODUCIBLE)
        return outcome


def _decisions(path: Path) -> list[Any]:
    """Return the decisions of a path, the last decision first."""
    decisions = []
    while path is not None:
        path, decision = path
        decisions.append(decision)
    return decisions


def enumerate_paths(run: Run, residual: float, most_runs: int) -> ExactDistribution:
    """Return the distribution of `run(tape)`; stop once at most `residual` is undecided, or after `most_runs` runs."""
    if not 0 <= residual < 1 or most_runs < 1:
        raise InvalidParameter(f"residual must be in [0, 1) and most_runs at least 1; got {residual} and {most_runs}")
    enough = UNIT - int(Fraction(residual) * UNIT)
    masses: dict[Hashable, int] = {}
    queue: list[tuple[int, int, Path]] = [(-UNIT, 0, None)]
    decided = runs = order = 0

    def queue_branch(mass: int, path: Path) -> None:
        nonlocal order
        order += 1
        heappush(queue, (-mass, order, path))

    with np.errstate(all="ignore"):
        while queue and decided < enough and runs < most_runs:
            negative_mass, _, path = heappop(queue)
            tape = Tape(path, -negative_mass, queue_branch)
            runs += 1
            with suppress(Undecided):
                outcome = _run_outcome(run, tape)
                if tape.refused is not None:
                    raise tape.refused
                masses[outcome] = masses.get(outcome, 0) + tape.mass
                decided += tape.mass
    return ExactDistribution(masses, runs)


def check_reproducible(run: Run) -> None:
    """Refuse code whose most probable executions end differently when they are repeated."""
    states = _shared_generator_states()
    first = enumerate_paths(run, 0.0, RUNS_PER_ROUND)
    runs = first.runs
    while runs < REPEATED_RUNS:
        again = enumerate_paths(run, 0.0, RUNS_PER_ROUND)
        runs += again.runs
        if again.masses != first.masses:
            raise Unsupported(NOT_REPRODUCIBLE)
    if _shared_generator_states() != states:
        raise Unsupported(NOT_REPRODUCIBLE)


def _shared_generator_states() -> tuple[Any, Any]:
    """Return the states of Python's and numpy's global generators."""
    kind, words, *rest = np.random.get_state(legacy=True)
    return random.getstate(), (kind, np.asarray(words).tobytes(), *rest)


def _run_outcome(run: Run, tape: Tape) -> Hashable:
    """Return the key of the run's outcome; an arithmetic error is visible to analysts, so it is an outcome."""
    try:
        return outcome_key(run(tape))
    except Rejected:
        return REJECTED
    except (ArithmeticError, ValueError) as error:
        if isinstance(error, DitherError):
            raise
        return TypedOutcome(type(error), "", f"raises {type(error).__name__}")


def outcome_key(outcome: Any) -> Hashable:
    """Return a hashable key of an outcome; outcomes that an analyst can tell apart have different keys.

    Integers, strings, tuples and floats with a fractional part are their own keys. Numpy's numbers have the keys of
    Python's numbers of their kind, because lazy random numbers are Python's here, whatever they are in production.
    """
    decided = decide(outcome)
    if isinstance(decided, np.ndarray) and not decided.ndim:
        decided = decided[()]
    if isinstance(decided, np.generic) and not isinstance(decided, np.datetime64 | np.timedelta64):
        decided = decided.tolist()
    fractional = type(decided) is float and isfinite(decided) and not decided.is_integer()
    if fractional or isinstance(decided, TypedOutcome) or type(decided) in SELF_DESCRIBING:
        return decided  # type: ignore[no-any-return]
    content = _distinguishing_content(decided)
    return content if type(decided) is tuple else TypedOutcome(type(decided), content, decided)


def _distinguishing_content(decided: Any) -> Hashable:
    """Return a value that differs between different outcomes of one type: NaN equals itself, -0.0 is not 0.0."""
    if isinstance(decided, float | complex):
        return repr(decided)
    if isinstance(decided, np.ndarray):
        dtype = str(decided.dtype) if decided.dtype.kind in "mMV" else ""  # their numbers alone would look alike
        return decided.shape, dtype, outcome_key(tuple(decided.tolist()))
    if isinstance(decided, list | tuple):
        return tuple(outcome_key(each) for each in decided)
    if isinstance(decided, dict):
        return tuple(sorted(((outcome_key(name), outcome_key(each)) for name, each in decided.items()), key=repr))
    if isinstance(decided, set | frozenset):
        return frozenset(outcome_key(each) for each in decided)
    if is_dataclass(decided) and not isinstance(decided, type):
        return tuple(outcome_key(getattr(decided, each.name)) for each in fields(decided))
    if not isinstance(decided, Hashable):
        raise Unsupported(
            f"outcomes of type {type(decided).__name__} cannot be compared: return numbers, strings or lists"
        )
    return decided, repr(decided)  # Decimal("1") and Decimal("1.0") are equal
