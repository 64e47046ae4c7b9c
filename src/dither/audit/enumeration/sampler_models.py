"""Replace Dither's samplers by their exact distributions during enumeration.

Each distribution is enumerated from the sampler's own code, and each replacement documents the property it relies on.
Three things differ from production. Padding, which draws numbers only to take time, is left out. The race of
exponential variables reads few digits at once (`NARROW`), so that all of them can be enumerated. The exponential
mechanism makes as many proposals at once as there are candidates, instead of sixteen times as many. The proofs hold
for every width and every number of proposals.
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
    check_reproducible,
    enumerate_paths,
)
from dither.audit.enumeration.symbolic_arrays import LazyTable
from dither.privacy.mechanisms import quantiles, selection
from dither.privacy.noise import FULL, exp_enclosure, lattice, race

NARROW = replace(FULL, ticks=1, more=3)
MOST_TIED_DIGITS = 60  # ties are followed this far; longer ones stay undecided, about 2^-58 of the mass
RESIDUAL = 1e-24
MOST_RUNS = 1_000_000
Vector = Any


@dataclass
class _ModelState:
    """The distributions enumerated so far, the production code that was replaced, and the nesting depth."""

    distributions: dict[Hashable, ExactDistribution] = field(default_factory=dict)
    original: dict[tuple[Any, str], Any] = field(default_factory=dict)
    depth: int = 0


_state, _lock = _ModelState(), RLock()


def exact_distribution(run: Run, residual: float = 1e-15, most_runs: int = MOST_RUNS) -> ExactDistribution:
    """Return the distribution of `run(tape)`, with Dither's samplers replaced by their distributions."""
    with install_sampler_models():
        return enumerate_paths(run, residual, most_runs)


def check_reproducible_code(run: Run) -> None:
    """Refuse code that reads other randomness or keeps state between runs, with Dither's samplers replaced."""
    with install_sampler_models():
        check_reproducible(run)


@contextmanager
def install_sampler_models() -> Iterator[None]:
    """Replace the samplers of SAMPLER_MODELS inside the context, and restore the production code afterwards."""
    with _lock:
        if _state.depth == 0:
            _install()
        _state.depth += 1
        try:
            yield
        finally:
            _state.depth -= 1
            if _state.depth == 0:
                for (home, name), value in _state.original.items():
                    setattr(home, name, value)


def _install() -> None:
    for home, name, model in SAMPLER_MODELS:
        _state.original[home, name] = getattr(home, name)
        setattr(home, name, model)


def _production(home: Any, name: str) -> Any:
    """Return the production code of a sampler, replaced or not."""
    return _state.original.get((home, name)) or getattr(home, name)


@contextmanager
def _patch(home: Any, **values: Any) -> Iterator[None]:
    """Set attributes of `home` inside the context."""
    before = {name: getattr(home, name) for name in values}
    try:
        for name, value in values.items():
            setattr(home, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(home, name, value)


def _cached_distribution(key: Hashable, run: Run) -> ExactDistribution:
    """Return the distribution of a sampler, enumerated on the first call with this key."""
    if key not in _state.distributions:
        _state.distributions[key] = exact_distribution(run, RESIDUAL, MOST_RUNS).given_acceptance()
    return _state.distributions[key]


def sampler_runs() -> int:
    """Return the number of sampler executions behind the distributions enumerated so far."""
    return sum(distribution.runs for distribution in _state.distributions.values())


# ---- table-driven samplers: one attempt at full width is enumerated; repeated rejection is a geometric series ------


def sampler_distribution(sampler: lattice.Sampler) -> ExactDistribution:
    """Return the distribution of one draw of a table-driven sampler."""
    with_lazy_table = copy(sampler)
    with_lazy_table._guide = sampler._guide.view(LazyTable)
    key = (type(sampler), sampler.distribution, sampler.widths)
    return _cached_distribution(key, lambda tape: _attempt(with_lazy_table, tape))


def _attempt(sampler: lattice.Sampler, tape: Tape) -> int:
    values = np.zeros(1, np.int64)
    if len(sampler.attempt(values, tape)):
        raise Rejected
    return int(values[0])


def _draw_noise(self: lattice.Sampler, size: int, bits: Any) -> Vector:
    if not isinstance(bits, Tape):
        return _production(lattice.Sampler, "draw")(self, size, bits)
    distribution = sampler_distribution(self)
    return np.array([bits.draw(distribution) for _ in range(size)], np.int64)


def _skip_padding(self: lattice.Sampler, slow: Vector, size: int) -> Vector:
    return slow


# ---- the race of exponential variables, at narrow widths -----------------------------------------------------------


def _extend_digits(known: int, precision: int, bits: Any, more: int) -> tuple[int, int]:
    """Draw `more` digits; in the code their distribution depends on the precision alone, and rejection starts over."""
    if not isinstance(bits, Tape):
        return _production(race, "extend_digits")(known, precision, bits, more)  # type: ignore[no-any-return]
    if precision > MOST_TIED_DIGITS:
        bits.mass = 0  # stays undecided even if the code catches the exception
        raise Undecided
    key = ("digits", precision, more)
    digits = bits.draw(_cached_distribution(key, lambda tape: _draw_digits(precision, more, tape)))
    return known << more | digits, precision + more


class _FirstReadDecided:
    """A tape that decides the first number read at once, because the code makes a `Fraction` of it."""

    def __init__(self, tape: Tape) -> None:
        self._tape, self._reads = tape, count()

    def integer(self, bits: int) -> Any:
        read = self._tape.integer(bits)
        return read if next(self._reads) else int(read)


def _draw_digits(precision: int, more: int, tape: Tape) -> int:
    """Run one round of the production code; raise Rejected where it would start over."""
    decide_below: Any = vars(race)["decide_below"]

    def decide_or_reject(*arguments: Any) -> bool:
        if not decide_below(*arguments):
            raise Rejected
        return True

    with _patch(race, decide_below=decide_or_reject):
        return int(_production(race, "extend_digits")(0, precision, _FirstReadDecided(tape), more)[0])


def _compare_exponentials(rivals: dict[int, tuple[Fraction, int]], precision: int, bits: Any, more: int) -> int:
    """Draw the winner; the code only compares sums with each other, so all may be shifted by the same integer."""
    compare = _production(race, "compare_exponentials")
    if not isinstance(bits, Tape):
        return int(compare(rivals, precision, bits, more))
    least = min(known for _, known in rivals.values())
    state = {place: (shift, known - least) for place, (shift, known) in rivals.items()}
    key = ("duel", tuple(sorted(state.items())), precision, more)
    return int(bits.draw(_cached_distribution(key, lambda tape: int(compare(dict(state), precision, tape, more)))))


def _noisy_max(scores: Vector, rate: Fraction, bits: Any, widths: Any = FULL) -> int:
    narrow = NARROW if isinstance(bits, Tape) else widths
    return int(_production(selection, "noisy_max")(scores, rate, bits, narrow))


# ---- the exponential mechanism: coins and proposals are drawn one by one -------------------------------------------


def _bernoulli_exp_each(rate: Fraction, counts: Vector, bits: Any, widths: Any = FULL) -> Vector:
    """Toss each coin on its own: in the code each is decided by digits of its own."""
    toss = _production(selection, "bernoulli_exp_each")
    if not isinstance(bits, Tape):
        return toss(rate, counts, bits, widths)

    def coin(misses: int) -> ExactDistribution:
        key = ("coin", rate, misses)
        return _cached_distribution(key, lambda tape: int(toss(rate, np.array([misses]), tape, NARROW)[0]))

    return np.array([bits.draw(coin(int(misses))) for misses in counts], np.int64)


def _uniform_below(n: int, size: int, bits: Any) -> Vector:
    """Draw each integer on its own: in the code each is drawn again on its own until it is below n."""
    draw_below = _production(selection, "uniform_below")
    if not isinstance(bits, Tape):
        return draw_below(n, size, bits)
    distribution = _cached_distribution(("below", n), lambda tape: int(draw_below(n, 1, tape)[0]))
    return np.array([bits.draw(distribution) for _ in range(size)], np.int64)


def _draw_index(misses: Vector, rate: Fraction, bits: Any) -> int:
    """Draw a candidate by one round; if all proposals are rejected, the code starts over from the same state."""
    draw_index = _production(selection, "draw_index")
    if not isinstance(bits, Tape):
        return int(draw_index(misses, rate, bits))
    key = ("choice", tuple(misses.tolist()), rate)
    return int(bits.draw(_cached_distribution(key, lambda tape: _one_round(draw_index, misses, rate, tape))))


def _one_round(choose: Callable[..., int], misses: Vector, rate: Fraction, tape: Tape) -> int:
    """Run one round of the production code, one proposal for each candidate; raise Rejected if it makes a second."""
    rounds, propose = count(), vars(selection)["uniform_below"]

    def propose_once(*arguments: Any) -> Vector:
        if next(rounds):
            raise Rejected
        return propose(*arguments)

    with _patch(selection, PROPOSALS=1, uniform_below=propose_once):
        return int(choose(misses, rate, tape))


SAMPLER_MODELS: tuple[tuple[Any, str, Any], ...] = (
    (lattice.Sampler, "draw", _draw_noise),
    (lattice.Sampler, "_pad", _skip_padding),
    (race, "exp_enclosure", lru_cache(1 << 16)(exp_enclosure)),  # replayed runs ask for the same values again
    (race, "extend_digits", _extend_digits),
    (race, "compare_exponentials", _compare_exponentials),
    (selection, "noisy_max", _noisy_max),
    (selection, "bernoulli_exp_each", _bernoulli_exp_each),
    (selection, "uniform_below", _uniform_below),
    (selection, "draw_index", _draw_index),
    (quantiles, "draw_index", _draw_index),
    (quantiles, "noisy_max", _noisy_max),
)
