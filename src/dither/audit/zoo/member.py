"""A member of the zoo: a mechanism, its claim, and whether the claim is true."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dither.audit.neighbours import Pair
from dither.loss import ZCDP, Approximate, Loss, Pure, Rational, rational

Generator = np.random.Generator
Floats = NDArray[np.float64]
Sampler = Callable[[Any, int, Generator], Any]
PairDistribution = Callable[[Any, Any], tuple[Floats, Floats]]

STEP = 2.0**-20


def pure(epsilon: Rational) -> Pure:
    """Return a claim of pure differential privacy."""
    return Pure(rational(epsilon))


def approximate(epsilon: Rational, delta: Rational) -> Approximate:
    """Return a claim of approximate differential privacy."""
    return Approximate(rational(epsilon), rational(delta))


def zcdp(rho: Rational) -> ZCDP:
    """Return a claim of zCDP."""
    return ZCDP(rational(rho))


@dataclass(frozen=True)
class Member:
    """A mechanism with its claim; `private` is True if the claim is true.

    `true_epsilon` is the largest loss over all neighbours at the claim's delta, where it is known.
    `distribution(a, b)` returns the probabilities, on both inputs, of a partition of the outputs that preserves every
    likelihood ratio. The output of a `timed` member includes its running time; a `one_by_one` member is called once
    for each output. `published` holds the epsilon that other tools reported, by tool.
    """

    name: str
    claim: Loss
    private: bool
    sample: Sampler = field(repr=False)
    neighbours: tuple[Pair, ...] = field(repr=False)
    about: str
    true_epsilon: float | None = None
    distribution: PairDistribution | None = field(default=None, repr=False)
    timed: bool = False
    one_by_one: bool = False
    published: Mapping[str, float] = field(default_factory=dict, repr=False)

    def mechanism(self, seed: int | None = None) -> Callable[..., Any]:
        """Return the mechanism as a function f(input, size), or f(input) for a `one_by_one` member."""
        rng = np.random.default_rng(seed)
        if self.one_by_one:
            return lambda value: self.sample(value, 1, rng)[0]
        return lambda value, size: self.sample(value, size, rng)


def round_to_lattice(values: Floats, step: float = STEP) -> Floats:
    """Round values to multiples of a power of two, so that their bits reveal nothing about the input."""
    result: Floats = np.rint(values / step) * step
    return result
