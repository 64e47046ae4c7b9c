"""Quantiles over a public grid, from exact counts of the rows at each grid point."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from typing import final

import numpy as np

from dither.errors import InvalidParameter
from dither.loss import ZCDP, Pure, Sensitivity, rational, round_up
from dither.privacy.bits import Bits
from dither.privacy.mechanisms.base import HALF_INT64, Mechanism, Vector, check_scale
from dither.privacy.mechanisms.selection import check_candidates, draw_index, gaps_below_best
from dither.privacy.noise import noisy_max

MAX_QUANTILES = 1 << 10
LARGEST_DENOMINATOR = 10_000
MAX_POINTS = 1 << 20  # one variable for each, where the exponential mechanism makes 16 proposals

Select = Callable[[Vector, Fraction], int]  # (distances from the wanted rank, rate) -> a place


@final
@dataclass(frozen=True)
class Quantiles(Mechanism):
    """Chooses a grid point for each quantile by exponential mechanisms: the middle quantile first, then each side."""

    name = "quantiles"
    proof = "quantiles.md"
    quantiles: tuple[Fraction, ...]
    scale: Fraction

    def __post_init__(self) -> None:
        check_quantiles(self)

    def check_length(self, size: int) -> None:
        check_candidates(size)

    def loss(self, sensitivity: Sensitivity) -> Pure:
        return path_loss(self, sensitivity)

    def zcdp_loss(self, sensitivity: Sensitivity) -> ZCDP:
        shares = deepest_path(*ranks_of(self.quantiles), power=2)
        return ZCDP(round_up((2 * sensitivity.l1 / self.scale) ** 2 / 8 * shares))

    def release(self, exact: Vector, bits: Bits) -> Vector:
        return release_points(self, exact, lambda errors, rate: draw_index(gaps_below_best(-errors), rate, bits))


@final
@dataclass(frozen=True)
class NoisyMaxQuantiles(Mechanism):
    """Chooses grid points as `Quantiles` does, by noisy maxima: nearer for the same pure loss, dearer in zCDP."""

    name = "noisy_max_quantiles"
    proof = "noisy_max_quantiles.md"
    quantiles: tuple[Fraction, ...]
    scale: Fraction

    def __post_init__(self) -> None:
        check_quantiles(self)

    def check_length(self, size: int) -> None:
        check_candidates(size, most=MAX_POINTS)

    def loss(self, sensitivity: Sensitivity) -> Pure:
        return path_loss(self, sensitivity)

    def release(self, exact: Vector, bits: Bits) -> Vector:
        return release_points(self, exact, lambda errors, rate: noisy_max(-gaps_below_best(-errors), rate, bits))


def check_quantiles(mechanism: Quantiles | NoisyMaxQuantiles) -> None:
    """Convert the fields of a mechanism to rationals; refuse quantiles that are out of order or too fine."""
    check_scale(mechanism)
    wanted = tuple(rational(quantile, "quantile") for quantile in mechanism.quantiles)
    if not 1 <= len(wanted) <= MAX_QUANTILES or sorted(set(wanted)) != list(wanted):
        raise InvalidParameter(f"quantiles must be 1 to {MAX_QUANTILES} increasing numbers")
    if not 0 < wanted[0] <= wanted[-1] < 1 or lcm(*(q.denominator for q in wanted)) > LARGEST_DENOMINATOR:
        raise InvalidParameter(
            f"quantiles must be above 0 and below 1, with a common denominator up to {LARGEST_DENOMINATOR}"
        )
    object.__setattr__(mechanism, "quantiles", wanted)


def ranks_of(quantiles: tuple[Fraction, ...]) -> tuple[list[int], int, int]:
    """Return the quantiles as integers over their common denominator, and the ends 0 and that denominator."""
    whole = lcm(*(quantile.denominator for quantile in quantiles))
    return [int(quantile * whole) for quantile in quantiles], 0, whole


def path_loss(mechanism: Quantiles | NoisyMaxQuantiles, sensitivity: Sensitivity) -> Pure:
    """Return the loss of the choices on the most expensive path of the recursion."""
    shares = deepest_path(*ranks_of(mechanism.quantiles), power=1)
    return Pure(round_up(2 * sensitivity.l1 / mechanism.scale * shares))


def release_points(mechanism: Quantiles | NoisyMaxQuantiles, exact: Vector, select: Select) -> Vector:
    """Choose the point of each quantile, after clipping the counts so that no rank can overflow."""
    mechanism.check_length(len(exact))
    ranks, low, high = ranks_of(mechanism.quantiles)
    most = HALF_INT64 // (4 * len(exact) * high)  # no rank times `high`, in halves, can overflow
    clipped = np.clip(exact, -most, most)
    return np.array(choose_points(clipped, ranks, low, high, 1 / mechanism.scale, select), np.int64)


def deepest_path(ranks: list[int], low: int, high: int, *, power: int) -> Fraction:
    """Return the largest sum of max(q, 1 - q)**power over the paths that a row can take through the recursion."""
    if not ranks:
        return Fraction(0)
    middle = len(ranks) // 2
    rank = ranks[middle]
    share = Fraction(max(rank - low, high - rank), high - low) ** power
    below = deepest_path(ranks[:middle], low, rank, power=power)
    above = deepest_path(ranks[middle + 1 :], rank, high, power=power)
    return share + max(below, above)


def rank_errors(counts: Vector, below: int, above: int) -> Vector:
    """Return how far each point is from splitting the rows in the ratio below : above, times 2 (below + above).

    A row lies in the middle of its rank: the rows of a point split the others from half a row after the first to half a
    row before the last.
    """
    through = np.cumsum(counts)
    less, more, half = through - counts, through[-1] - through, np.clip(counts, 0, 1)  # half is in halves of a row
    too_high = above * (2 * less + half) - below * (2 * (counts + more) - half)
    too_low = below * (2 * more + half) - above * (2 * (less + counts) - half)
    return np.asarray(np.maximum(0, np.maximum(too_high, too_low)))


def choose_points(counts: Vector, ranks: list[int], low: int, high: int, rate: Fraction, select: Select) -> list[int]:
    """Return the index of the point chosen for each rank; `counts` are the rows at the points from `low` to `high`."""
    if not ranks:
        return []
    middle = len(ranks) // 2
    rank = ranks[middle]
    errors = rank_errors(counts, rank - low, high - rank)
    point = select(errors, rate / (2 * (high - low)))
    left, right = counts[: point + 1].copy(), counts[point:].copy()
    # Divide the rows at the chosen point between the two sides.
    left[-1] = counts[point] * (rank - low) // (high - low)
    right[0] -= left[-1]
    below = choose_points(left, ranks[:middle], low, rank, rate, select)
    above = choose_points(right, ranks[middle + 1 :], rank, high, rate, select)
    return [*below, point, *(point + place for place in above)]
