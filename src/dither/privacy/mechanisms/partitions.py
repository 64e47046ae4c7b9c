"""Mechanisms that select the groups to release: optimal partition selection, and noisy thresholds on counts."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from math import isqrt
from typing import final

import numpy as np
from numpy.typing import NDArray

from dither.errors import InvalidParameter
from dither.loss import ZCDP, Approximate, Pure, Sensitivity, round_up
from dither.privacy.accounting.conversion import pure_as_rho
from dither.privacy.accounting.rounding import digits_up, exp_down, exp_up, log_down
from dither.privacy.bits import Bits
from dither.privacy.mechanisms.additive import laplace_rho
from dither.privacy.mechanisms.base import (
    HALF_INT64,
    Mechanism,
    Vector,
    changed_cells,
    check_integer,
    check_parameter,
    check_scale,
    saturating_add,
)
from dither.privacy.noise import LARGEST_SCALE, SMALLEST_SCALE, discrete_gaussian, discrete_laplace

SMALLEST_EPSILON = Fraction(1, 10_000)  # per group: keeps the table below under a million rows
LARGEST_EPSILON = Fraction(1_000)
SMALLEST_DELTA = Fraction(1, 1 << 60)
ONE = 1 << 128  # probability 1 in the units of the table
FINE = 1 << 192  # the number 1 in the units of its growth factors


def any_probability(delta: Fraction, groups: int) -> Fraction:
    """Return at least 1 - (1 - delta)^groups, the probability that any of several independent events happens."""
    if delta >= 1:
        return Fraction(min(1, groups))
    union = 1 - exp_down(groups * log_down(1 - delta))
    return digits_up(max(Fraction(0), min(Fraction(1), groups * delta, union)))


@lru_cache(maxsize=64)
def keep_probabilities(epsilon: Fraction, delta: Fraction) -> NDArray[np.uint64]:
    """Return the probability of keeping a group of n = 1, 2, ... units, up to the first n that is always kept.

    Each is rounded down to a multiple of 2^-128 and stored as that multiple minus 1: row 0 holds its upper 64 bits,
    row 1 its lower 64.
    """
    grow, shrink = int(exp_down(epsilon) * FINE), -int(-exp_up(-epsilon) * FINE // 1)
    start = int(delta * ONE)
    table, chance = [], 0
    while chance < ONE:
        rest = max(0, ONE - chance - start)
        chance = min(grow * chance // FINE + start, ONE + (-shrink * rest // FINE), ONE)
        table.append(chance - 1)
    halves = np.array([[word >> 64 for word in table], [word % (1 << 64) for word in table]], np.uint64)
    halves.setflags(write=False)
    return halves


@final
@dataclass(frozen=True)
class PartitionSelection(Mechanism):
    """Keeps a nonempty group of n units with the largest probability that (epsilon, delta) per group allows."""

    name = "partition_selection"
    proof = "partition_selection.md"
    epsilon: Fraction
    delta: Fraction

    def __post_init__(self) -> None:
        check_parameter(self, "epsilon", SMALLEST_EPSILON, LARGEST_EPSILON)
        check_parameter(self, "delta", SMALLEST_DELTA, 1)

    def loss(self, sensitivity: Sensitivity) -> Approximate:
        groups = self._groups(sensitivity)
        return Approximate(round_up(groups * self.epsilon), any_probability(self.delta, groups))

    def zcdp_loss(self, sensitivity: Sensitivity) -> ZCDP:
        groups = self._groups(sensitivity)
        return ZCDP(round_up(groups * pure_as_rho(self.epsilon)), any_probability(self.delta, groups))

    def _groups(self, sensitivity: Sensitivity) -> int:
        """Return the number of groups that one unit can be in; refuse a unit that adds more than 1 to a group."""
        if sensitivity.linf > 1:
            raise InvalidParameter(
                "partition selection needs counts of distinct units, to which one unit adds at most 1 per group"
            )
        return changed_cells(sensitivity)

    def release(self, exact: Vector, bits: Bits) -> Vector:
        table = keep_probabilities(self.epsilon, self.delta)
        units = np.clip(exact, 0, table.shape[1])
        upper, lower = table[:, units - 1]
        high, low = bits.words(2 * len(exact), 64).reshape(2, -1)
        selected = (high < upper) | ((high == upper) & (low <= lower))
        return np.flatnonzero((units > 0) & selected).astype(np.int64)


def laplace_tail(scale: Fraction, least: int) -> Fraction:
    """Return an upper bound of the probability that discrete Laplace noise is at least `least`."""
    if least < 1:
        return Fraction(1)
    return min(Fraction(1), exp_up(-least / scale) / (1 + exp_down(-1 / scale)))


def gaussian_tail(variance: Fraction, least: int) -> Fraction:
    """Return an upper bound of the probability that discrete Gaussian noise is at least `least`.

    It divides a geometric series that bounds the tail by a lower bound of the total weight.
    """
    if least < 1:
        return Fraction(1)
    series = exp_up(-(least**2) / (2 * variance)) / (1 - exp_up(-least / variance))
    root = Fraction(isqrt(int(variance * ONE * Fraction(314159, 50000))), 1 << 64)  # below sqrt(2 pi variance)
    return min(Fraction(1), series / max(Fraction(1), root))


@final
@dataclass(frozen=True)
class LaplaceThreshold(Mechanism):
    """Releases the non-empty groups whose count plus discrete Laplace noise reaches the threshold."""

    name = "laplace_threshold"
    proof = "laplace_threshold.md"
    scale: Fraction
    threshold: int

    def __post_init__(self) -> None:
        check_scale(self)
        check_integer(self, "threshold", 1, HALF_INT64)

    def loss(self, sensitivity: Sensitivity) -> Approximate:
        return Approximate(round_up(sensitivity.l1 / self.scale), self._delta(sensitivity))

    def zcdp_loss(self, sensitivity: Sensitivity) -> ZCDP:
        return ZCDP(laplace_rho(self.scale, sensitivity).rho, self._delta(sensitivity))

    def _delta(self, sensitivity: Sensitivity) -> Fraction:
        """Return the probability that some group that only this unit is in is released."""
        alone = laplace_tail(self.scale, self.threshold - int(sensitivity.linf))
        return any_probability(alone, changed_cells(sensitivity))

    def release(self, exact: Vector, bits: Bits) -> Vector:
        noisy = saturating_add(exact, discrete_laplace(self.scale, len(exact), bits))
        return np.flatnonzero((exact > 0) & (noisy >= self.threshold)).astype(np.int64)


def lone_counts(sensitivity: Sensitivity) -> list[tuple[int, int]]:
    """Return numbers of groups that a unit alone may be in, each with the most that it then adds to one of them.

    Every number is at most one of those returned, with at least as large a count: if shares are equal, a number from
    `few` + 1 to `many` counts as `many` groups with the share of `few` + 1.
    """
    groups, most = changed_cells(sensitivity), int(sensitivity.linf)
    if not sensitivity.equal_shares or not groups:
        return [(groups, most)]
    ends = [0]
    while ends[-1] < groups:
        ends.append(min(groups, ends[-1] + 1 + ends[-1] // 8))
    return [(many, min(most, isqrt(int(sensitivity.l2_squared / (few + 1))))) for few, many in pairwise(ends)]


@final
@dataclass(frozen=True)
class GaussianThreshold(Mechanism):
    """Releases the non-empty groups whose count plus discrete Gaussian noise reaches the threshold."""

    name = "gaussian_threshold"
    proof = "gaussian_threshold.md"
    variance: Fraction
    threshold: int

    def __post_init__(self) -> None:
        check_parameter(self, "variance", SMALLEST_SCALE**2, LARGEST_SCALE**2)
        check_integer(self, "threshold", 1, HALF_INT64)

    def loss(self, sensitivity: Sensitivity) -> ZCDP:
        rho = round_up(sensitivity.l2_squared / (2 * self.variance))
        return ZCDP(rho, max(self._delta(count, most) for count, most in lone_counts(sensitivity)))

    def _delta(self, groups: int, most: int) -> Fraction:
        """Return the probability that one of `groups` groups with a count of at most `most` each is released."""
        return any_probability(gaussian_tail(self.variance, self.threshold - most), groups)

    def release(self, exact: Vector, bits: Bits) -> Vector:
        noisy = saturating_add(exact, discrete_gaussian(self.variance, len(exact), bits))
        return np.flatnonzero((exact > 0) & (noisy >= self.threshold)).astype(np.int64)


@final
@dataclass(frozen=True)
class PublicThreshold(Mechanism):
    """Releases the declared keys, empty or not, whose count plus discrete Laplace noise reaches the threshold."""

    name = "public_threshold"
    proof = "public_threshold.md"
    scale: Fraction
    threshold: int

    def __post_init__(self) -> None:
        check_scale(self)
        check_integer(self, "threshold", -HALF_INT64, HALF_INT64)

    def loss(self, sensitivity: Sensitivity) -> Pure:
        return Pure(round_up(sensitivity.l1 / self.scale))

    def zcdp_loss(self, sensitivity: Sensitivity) -> ZCDP:
        return laplace_rho(self.scale, sensitivity)

    def release(self, exact: Vector, bits: Bits) -> Vector:
        noisy = saturating_add(exact, discrete_laplace(self.scale, len(exact), bits))
        return np.flatnonzero(noisy >= self.threshold).astype(np.int64)
