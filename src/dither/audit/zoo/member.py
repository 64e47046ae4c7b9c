"""What every animal of the zoo states about itself."""

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
Law = Callable[[Any, Any], tuple[Floats, Floats]]

STEP = 2.0**-20


def pure(epsilon: Rational) -> Pure:
    """A pure claim."""
    return Pure(rational(epsilon))


def approximate(epsilon: Rational, delta: Rational) -> Approximate:
    """An approximate claim."""
    return Approximate(rational(epsilon), rational(delta))


def zcdp(rho: Rational) -> ZCDP:
    """A concentrated claim."""
    return ZCDP(rational(rho))


@dataclass(frozen=True)
class Member:
    """A mechanism with its claim, and whether the claim is true.

    `true_epsilon` is the largest loss over all neighbours at the claim's delta, where it is known; `law(a, b)` gives
    the probabilities of a partition of the outputs that keeps every likelihood ratio, on both inputs.
    """

    name: str
    claim: Loss
    private: bool
    sample: Sampler = field(repr=False)
    neighbours: tuple[Pair, ...] = field(repr=False)
    about: str
    true_epsilon: float | None = None
    law: Law | None = field(default=None, repr=False)
    timed: bool = False
    one_by_one: bool = False
    published: Mapping[str, float] = field(default_factory=dict, repr=False)

    def mechanism(self, seed: int | None = None) -> Callable[..., Any]:
        """The mechanism as a caller would meet it: f(input, size), or f(input) if it answers once a call."""
        rng = np.random.default_rng(seed)
        if self.one_by_one:
            return lambda value: self.sample(value, 1, rng)[0]
        return lambda value, size: self.sample(value, size, rng)


def on_lattice(values: Floats, step: float = STEP) -> Floats:
    """Values rounded to multiples of a power of two, so that their bits tell nothing about the input."""
    result: Floats = np.rint(values / step) * step
    return result
