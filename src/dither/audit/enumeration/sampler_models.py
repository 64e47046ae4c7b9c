"""While code is enumerated, Dither's own samplers stand by their laws, each enumerated from the sampler's own code.

What every stand-in rests on is said beside it. Three things differ from production. Padding, which draws numbers only
to spend time, is left out. The race of exponential variables reads few digits at once (`NARROW`), so that all of them
can be enumerated. And the exponential mechanism makes as many proposals at once as there are candidates, instead of
sixteen times as many. Their proofs hold for every width and every number of proposals.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from itertools import count
from threading import RLock
from typing import Any

import numpy as np

from dither.audit.enumeration.paths import (
    ExactDistribution,
    Rejected,
    Run,
    Tape,
    Undecided,
    check_steady,
    enumerate_paths,
)
from dither.audit.enumeration.symbolic_arrays import ExactTable
from dither.privacy.mechanisms import quantiles, selection
from dither.privacy.noise import FULL, exp_enclosure, lattice, race

NARROW = replace(FULL, ticks=1, more=3)
FURTHEST = 60  # digits of a tie that is still followed: beyond it 2^-58 of its mass is left
RESIDUAL = 1e-24
MOST_RUNS = 1_000_000
Vector = Any


@dataclass
class _Memory:
    """Laws of samplers that were enumerated before, the production code, and how deep the replacement stands."""

    laws: dict[Hashable, ExactDistribution] = field(default_factory=dict)
    original: dict[tuple[Any, str], Any] = field(default_factory=dict)
    depth: int = 0


_memory, _lock = _Memory(), RLock()


def exact_distribution(run: Run, residual: float = 1e-15, most_runs: int = MOST_RUNS) -> ExactDistribution:
    """The law of `run(tape)`, with Dither's samplers replaced by their laws."""
    with enumerable():
        return enumerate_paths(run, residual, most_runs)


def steady(run: Run) -> None:
    """Refuses code that reads randomness or keeps state elsewhere."""
    with enumerable():
        check_steady(run)


@contextmanager
def enumerable() -> Iterator[None]:
    """Production code is replaced inside, and put back after."""
    with _lock:
        if _memory.depth == 0:
            _replace()
        _memory.depth += 1
        try:
            yield
        finally:
            _memory.depth -= 1
            if _memory.depth == 0:
                for (home, name), value in _memory.original.items():
                    setattr(home, name, value)


def _replace() -> None:
    for home, name, stand_in in SAMPLER_MODELS:
        _memory.original[home, name] = getattr(home, name)
        setattr(home, name, stand_in)


def _production(home: Any, name: str) -> Any:
    return _memory.original.get((home, name)) or getattr(home, name)


@contextmanager
def _swapped(home: Any, **values: Any) -> Iterator[None]:
    before = {name: getattr(home, name) for name in values}
    try:
        for name, value in values.items():
            setattr(home, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(home, name, value)


def _known(place: Hashable, run: Run) -> ExactDistribution:
    """The law of a sampler, enumerated once."""
    if place not in _memory.laws:
        _memory.laws[place] = exact_distribution(run, RESIDUAL, MOST_RUNS).accepted()
    return _memory.laws[place]


def executions() -> int:
    """How often samplers have been run to know their laws."""
    return sum(each.runs for each in _memory.laws.values())


# ---- the table-driven samplers: one attempt at full width; the rejection around it is a geometric series -----------


def sampler_distribution(sampler: lattice.Sampler) -> ExactDistribution:
    """The law of one draw of a table-driven sampler."""
    tried = copy(sampler)
    tried._guide = sampler._guide.view(ExactTable)
    return _known((type(sampler), sampler.law, sampler.widths), lambda tape: _attempt(tried, tape))


def _attempt(sampler: lattice.Sampler, tape: Tape) -> int:
    values = np.zeros(1, np.int64)
    if len(sampler.attempt(values, tape)):
        raise Rejected
    return int(values[0])


def _draw(self: lattice.Sampler, size: int, bits: Any) -> Vector:
    if not isinstance(bits, Tape):
        return _production(lattice.Sampler, "draw")(self, size, bits)
    found = sampler_distribution(self)
    return np.array([bits.draw(found) for _ in range(size)], np.int64)


def _unpadded(self: lattice.Sampler, slow: Vector, size: int) -> Vector:
    return slow


# ---- the race of exponential variables, at narrow widths -----------------------------------------------------------


def _extend(known: int, precision: int, bits: Any, more: int) -> tuple[int, int]:
    """Further digits; by the code, their law depends on the precision alone, and a refused try starts over."""
    if not isinstance(bits, Tape):
        return _production(race, "extend")(known, precision, bits, more)  # type: ignore[no-any-return]
    if precision > FURTHEST:
        bits.mass = 0  # also where the code catches everything
        raise Undecided
    digits = bits.draw(_known(("digits", precision, more), lambda tape: _digits(precision, more, tape)))
    return known << more | digits, precision + more


class _DigitsFirst:
    """A tape whose first number is decided at once: the code makes a fraction of it."""

    def __init__(self, tape: Tape) -> None:
        self._tape, self._reads = tape, count()

    def integer(self, bits: int) -> Any:
        read = self._tape.integer(bits)
        return read if next(self._reads) else int(read)


def _digits(precision: int, more: int, tape: Tape) -> int:
    refine: Any = vars(race)["refine"]

    def kept_or_over(*given: Any) -> bool:
        if not refine(*given):
            raise Rejected
        return True

    with _swapped(race, refine=kept_or_over):
        return int(_production(race, "extend")(0, precision, _DigitsFirst(tape), more)[0])


def _compare_exponentials(rivals: dict[int, tuple[Fraction, int]], precision: int, bits: Any, more: int) -> int:
    """One round; the code compares sums with each other only, so all may be moved by the same whole number."""
    whole = _production(race, "compare_exponentials")
    if not isinstance(bits, Tape):
        return int(whole(rivals, precision, bits, more))
    least = min(known for _, known in rivals.values())
    state = {place: (shift, known - least) for place, (shift, known) in rivals.items()}
    place = ("duel", tuple(sorted(state.items())), precision, more)
    return int(bits.draw(_known(place, lambda tape: int(whole(dict(state), precision, tape, more)))))


def _noisy_max(scores: Vector, rate: Fraction, bits: Any, widths: Any = FULL) -> int:
    narrow = NARROW if isinstance(bits, Tape) else widths
    return int(_production(selection, "noisy_max")(scores, rate, bits, narrow))


# ---- the exponential mechanism: coins and proposals are drawn place by place ---------------------------------------


def _coins(rate: Fraction, counts: Vector, bits: Any, widths: Any = FULL) -> Vector:
    """Each place is decided by digits of its own, so one place's law stands for each."""
    toss = _production(selection, "bernoulli_exp_each")
    if not isinstance(bits, Tape):
        return toss(rate, counts, bits, widths)

    def one(misses: int) -> ExactDistribution:
        return _known(("coin", rate, misses), lambda tape: int(toss(rate, np.array([misses]), tape, NARROW)[0]))

    return np.array([bits.draw(one(int(misses))) for misses in counts], np.int64)


def _uniform_below(n: int, size: int, bits: Any) -> Vector:
    """Each place is drawn again on its own until it fits."""
    below = _production(selection, "uniform_below")
    if not isinstance(bits, Tape):
        return below(n, size, bits)
    found = _known(("below", n), lambda tape: int(below(n, 1, tape)[0]))
    return np.array([bits.draw(found) for _ in range(size)], np.int64)


def _choice(misses: Vector, rate: Fraction, bits: Any) -> int:
    """One round; if all proposals are refused, the code starts over from the same state."""
    choose = _production(selection, "draw")
    if not isinstance(bits, Tape):
        return int(choose(misses, rate, bits))
    place = ("choice", tuple(misses.tolist()), rate)
    return int(bits.draw(_known(place, lambda tape: _round(choose, misses, rate, tape))))


def _round(choose: Callable[..., int], misses: Vector, rate: Fraction, tape: Tape) -> int:
    rounds, propose = count(), vars(selection)["uniform_below"]

    def proposed_once(*given: Any) -> Vector:
        if next(rounds):
            raise Rejected
        return propose(*given)

    with _swapped(selection, PROPOSALS=1, uniform_below=proposed_once):
        return int(choose(misses, rate, tape))


SAMPLER_MODELS: tuple[tuple[Any, str, Any], ...] = (
    (lattice.Sampler, "draw", _draw),
    (lattice.Sampler, "_pad", _unpadded),
    (race, "exp_enclosure", lru_cache(1 << 16)(exp_enclosure)),  # runs are replayed, and ask for the same ones
    (race, "extend", _extend),
    (race, "compare_exponentials", _compare_exponentials),
    (selection, "noisy_max", _noisy_max),
    (selection, "bernoulli_exp_each", _coins),
    (selection, "uniform_below", _uniform_below),
    (selection, "draw", _choice),
    (quantiles, "draw", _choice),
)
