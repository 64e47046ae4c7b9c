"""Every execution of code that reads its randomness from a `Bits` source, likeliest first.

One execution is a path of decisions; the tape replays a path, then follows the heaviest branch and notes the others.
Masses are integers of 2^-256, rounded down, so that each outcome has at least its mass and at most its mass and what
is left. Code that reads randomness elsewhere takes different turns on a replay, and is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from fractions import Fraction
from heapq import heappop, heappush
from threading import RLock
from typing import Any

import numpy as np

from dither.audit.lazily import ELSEWHERE, Branches, Lazy, LazyWords, Table, Uniform, known
from dither.errors import DitherError, InvalidParameter, Unsupported
from dither.privacy.bits import word_bytes
from dither.privacy.noise import lattice

UNIT = 1 << 256
FLOAT_BITS = 53
Run = Callable[["Tape"], Any]
Path = tuple[Any, Any] | None  # the decisions before, and one more


@dataclass(frozen=True)
class ExactLaw:
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
        mass = self.masses.get(outcome, 0)
        return Fraction(mass, UNIT), Fraction(mass + self.left, UNIT)

    def moved(self, by: Callable[[Any], Hashable]) -> ExactLaw:
        """The law of a function of the outcome."""
        masses: dict[Hashable, int] = {}
        for outcome, mass in self.masses.items():
            masses[by(outcome)] = masses.get(by(outcome), 0) + mass
        return ExactLaw(masses, self.runs)


class Tape:
    """One execution's random numbers: a `Bits` source, with `random`, `below` and known laws besides."""

    def __init__(self, path: Path, mass: int, branches: Callable[[int, Path], None]) -> None:
        self.mass, self._branches = mass, branches
        self._end, self._replay = path, _unrolled(path)

    def split(self, branches: Branches, total: int) -> Any:
        """What the branch taken brings: as on the path, then the heaviest; the others are noted."""
        if self._replay:
            return self._replay.pop()
        found = branches()
        chosen = max(range(len(found)), key=lambda place: found[place][0])
        for place, (weight, what) in enumerate(found):
            if place != chosen and weight:
                self._branches(self.mass * weight // total, (self._end, what))
        weight, what = found[chosen]
        self.mass, self._end = self.mass * weight // total, (self._end, what)
        return what

    def integer(self, bits: int) -> Any:
        """One uniform integer of `bits` bits."""
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

    def draw(self, law: ExactLaw) -> Any:
        """An outcome of a law that is known already."""
        outcome = self.split(lambda: [(mass, each) for each, mass in law.masses.items()], UNIT)
        if outcome not in law.masses:
            raise Unsupported(ELSEWHERE)
        return outcome


def _unrolled(path: Path) -> list[Any]:
    """The decisions of a path, the first one last."""
    listed = []
    while path is not None:
        path, what = path
        listed.append(what)
    return listed


def law(run: Run, residual: float = 1e-15, most_runs: int = 1_000_000) -> ExactLaw:
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

    with enumerable(), np.errstate(all="ignore"):
        while waiting and settled < enough and runs < most_runs:
            negative, _, path = heappop(waiting)
            tape = Tape(path, -negative, note)
            outcome = _outcome(run, tape)
            masses[outcome] = masses.get(outcome, 0) + tape.mass
            settled, runs = settled + tape.mass, runs + 1
    return ExactLaw(masses, runs)


def _outcome(run: Run, tape: Tape) -> Hashable:
    """What the run gives back; an error of arithmetic is seen by whoever asked, so it is an outcome too."""
    try:
        return key(run(tape))
    except (ArithmeticError, ValueError) as error:
        if isinstance(error, DitherError):
            raise
        return f"raises {type(error).__name__}"


def key(outcome: Any) -> Hashable:
    """An outcome as something to count by: arrays and lists as tuples, numbers as Python's own."""
    decided = known(outcome)
    if isinstance(decided, np.ndarray):
        decided = decided.tolist()
    if isinstance(decided, list | tuple):
        return tuple(key(each) for each in decided)
    return decided  # type: ignore[no-any-return]


# ---- Dither's own samplers -------------------------------------------------------------------------------------------

_lock = RLock()


@dataclass
class _Memory:
    """Laws of samplers that were enumerated before, and how deep the replacement stands."""

    laws: dict[Any, ExactLaw] = field(default_factory=dict)
    depth: int = 0


_memory = _Memory()
SAMPLER_RESIDUAL = 1e-24


@contextmanager
def enumerable() -> Any:
    """While code is enumerated, Dither's table-driven samplers stand by their own enumerated laws.

    A sampler's one attempt is enumerated at full width, once for each law; the rejection around it is summed as the
    geometric series that it is. Padding, which draws numbers only to spend time, is left out.
    """
    with _lock:
        original, padding = lattice.Sampler.draw, lattice.Sampler._pad

        def draw(self: lattice.Sampler, size: int, bits: Any) -> Any:
            if not isinstance(bits, Tape):
                return original(self, size, bits)
            found = sampler_law(self)
            return np.array([bits.draw(found) for _ in range(size)], np.int64)

        if _memory.depth == 0:
            lattice.Sampler.draw = draw  # type: ignore[method-assign]
            lattice.Sampler._pad = lambda self, slow, size: slow  # type: ignore[method-assign]
        _memory.depth += 1
        try:
            yield
        finally:
            _memory.depth -= 1
            if _memory.depth == 0:
                lattice.Sampler.draw = original  # type: ignore[method-assign]
                lattice.Sampler._pad = padding  # type: ignore[method-assign]


def sampler_law(sampler: lattice.Sampler) -> ExactLaw:
    """The law of one draw of a table-driven sampler."""
    place = (type(sampler), sampler.law, sampler.widths)
    if place not in _memory.laws:
        tried = copy(sampler)
        tried._guide = sampler._guide.view(Table)
        _memory.laws[place] = _accepted(law(lambda tape: _attempt(tried, tape), SAMPLER_RESIDUAL))
    return _memory.laws[place]


def _attempt(sampler: lattice.Sampler, tape: Tape) -> int | None:
    values = np.zeros(1, np.int64)
    return None if len(sampler.attempt(values, tape)) else int(values[0])


def _accepted(attempt: ExactLaw) -> ExactLaw:
    """The law of the first attempt that is not rejected: each mass over 1 - r, r at least the chance of a rejection."""
    kept = UNIT - attempt.masses.get(None, 0)
    masses = {outcome: mass * UNIT // kept for outcome, mass in attempt.masses.items() if outcome is not None}
    return ExactLaw(masses, attempt.runs)
