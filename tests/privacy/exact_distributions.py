"""Exact probabilities of the distributions that the samplers promise, from arbitrary precision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import mpmath as mp
import numpy as np
from numpy.typing import NDArray

mp.mp.dps = 50


def real(x: Fraction | int) -> mp.mpf:
    x = Fraction(x)
    return mp.mpf(x.numerator) / x.denominator


def laplace(scale: Fraction) -> Callable[[int], mp.mpf]:
    q = mp.exp(-1 / real(scale))
    return lambda x: (1 - q) / (1 + q) * q ** abs(x)


def geometric(scale: Fraction) -> Callable[[int], mp.mpf]:
    q = mp.exp(-1 / real(scale))
    return lambda x: (1 - q) * q**x if x >= 0 else mp.mpf(0)


def gaussian_total(variance: Fraction) -> mp.mpf:
    """The sum of exp(-x^2 / 2 variance) over all integers."""
    return mp.jtheta(3, 0, mp.exp(-1 / (2 * real(variance)))) if variance < 100 else mp.sqrt(2 * mp.pi * real(variance))


def gaussian(variance: Fraction) -> Callable[[int], mp.mpf]:
    total = gaussian_total(variance)
    return lambda x: mp.exp(-real(x * x) / (2 * real(variance))) / total


def staircase(epsilon: Fraction, width: int, rise: int) -> Callable[[int], mp.mpf]:
    b = mp.exp(-real(epsilon))
    total = (2 * rise - 1) + 2 * width * b / (1 - b)
    return lambda x: b ** (-((rise - 1 - abs(x)) // width)) / total


def permute_and_flip(scores: list[int], rate: Fraction) -> list[mp.mpf]:
    """By integration over the largest variable's level: P(i wins) = int exp(-y) prod F_j(y + gap)."""
    gaps = [real(rate) * (max(scores) - score) for score in scores]

    def wins(i: int) -> mp.mpf:
        def density(e: mp.mpf) -> mp.mpf:
            level = e - gaps[i]
            others = [1 - mp.exp(-(level + gap)) for j, gap in enumerate(gaps) if j != i]
            return mp.exp(-e) * mp.fprod(others)

        return mp.quad(density, [gaps[i], gaps[i] + 5, gaps[i] + 20, gaps[i] + 120])

    return [wins(i) for i in range(len(scores))]


@dataclass(frozen=True)
class Cumulative:
    """P(X <= x) of the two distributions, for many x at once, to 1e-13."""

    power: int
    parameter: Fraction

    @cached_property
    def _table(self) -> tuple[int, NDArray[np.float64]]:
        """Partial sums over -reach, ..., reach."""
        distribution = laplace(self.parameter) if self.power == 1 else gaussian(self.parameter)
        reach = int(60 * self.parameter + 60) if self.power == 1 else int(12 * mp.sqrt(real(self.parameter)) + 12)
        sums = np.cumsum([distribution(x) for x in range(-reach, reach + 1)])
        return reach, sums.astype(np.float64)

    def __call__(self, x: NDArray[np.int64]) -> NDArray[np.float64]:
        if self.power == 1 and self.parameter >= 50:
            return self._laplace(x)
        if self.power == 2 and self.parameter >= 2500:
            return self._gaussian(x)
        reach, sums = self._table
        return sums[np.clip(x + reach, 0, 2 * reach)]

    def _laplace(self, x: NDArray[np.int64]) -> NDArray[np.float64]:
        scale = float(self.parameter)
        lower = np.exp(np.minimum(x, -1) / scale) / (1 + np.exp(-1 / scale))
        upper = np.exp(-(np.maximum(x, 0) + 1) / scale) / (1 + np.exp(-1 / scale))
        return np.where(x < 0, lower, 1 - upper)

    def _gaussian(self, x: NDArray[np.int64]) -> NDArray[np.float64]:
        """The midpoint rule with its first correction; the next is below sigma^-4 / 100."""
        from scipy.special import ndtr

        sigma = float(self.parameter) ** 0.5
        y = (x + 0.5) / sigma
        return ndtr(y) + y * np.exp(-y * y / 2) / np.sqrt(2 * np.pi) / (24 * sigma**2)
