"""Quantiles over a public grid, from exact counts of the rows at each grid point."""

from __future__ import annotations

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

MAX_QUANTILES = 1 << 10
LARGEST_DENOMINATOR = 10_000


@final
@dataclass(frozen=True)
class Quantiles(Mechanism):
    """Chooses a grid point for each quantile by exponential mechanisms: the middle quantile first, then each side."""

    name = "quantiles"
    proof = "quantiles.md"
    quantiles: tuple[Fraction, ...]
    scale: Fraction

    def __post_init__(self) -> None:
        check_scale(self)
        wanted = tuple(rational(quantile, "quantile") for quantile in self.quantiles)
        if not 1 <= len(wanted) <= MAX_QUANTILES or sorted(set(wanted)) != list(wanted):
            raise InvalidParameter(f"quantiles must be 1 to {MAX_QUANTILES} increasing numbers")
        if not 0 < wanted[0] <= wanted[-1] < 1 or lcm(*(q.denominator for q in wanted)) > LARGEST_DENOMINATOR:
            raise InvalidParameter(
                f"quantiles must be above 0 and below 1, with a common denominator up to {LARGEST_DENOMINATOR}"
            )
        object.__setattr__(self, "quantiles", wanted)

    @property
    def common_denominator(self) -> int:
        """The common denominator of the quantiles; ranks are multiples of 1 over it."""
        return lcm(*(quantile.denominator for quantile in self.quantiles))

    @property
    def ranks(self) -> list[int]:
        """The quantiles as integers over `common_denominator`."""
        return [int(quantile * self.common_denominator) for quantile in self.quantiles]

    def check_length(self, size: int) -> None:
        check_candidates(size)

    def loss(self, sensitivity: Sensitivity) -> Pure:
        shares = deepest_path(self.ranks, 0, self.common_denominator, power=1)
        return Pure(round_up(2 * sensitivity.l1 / self.scale * shares))

    def zcdp_loss(self, sensitivity: Sensitivity) -> ZCDP:
        shares = deepest_path(self.ranks, 0, self.common_denominator, power=2)
        return ZCDP(round_up((2 * sensitivity.l1 / self.scale) ** 2 / 8 * shares))

    def release(self, exact: Vector, bits: Bits) -> Vector:
        self.check_length(len(exact))
        most = HALF_INT64 // (len(exact) * self.common_denominator)  # no rank times `common_denominator` can overflow
        clipped = np.clip(exact, -most, most)
        return np.array(choose_points(clipped, self.ranks, 0, self.common_denominator, 1 / self.scale, bits), np.int64)


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
    """Return how far each point is from splitting the rows in the ratio below : above, times (below + above)."""
    through = np.cumsum(counts)
    less, total = through - counts, through[-1]
    too_high = above * less - below * (total - less)
    too_low = below * (total - through) - above * through
    return np.asarray(np.maximum(0, np.maximum(too_high, too_low)))


def choose_points(counts: Vector, ranks: list[int], low: int, high: int, rate: Fraction, bits: Bits) -> list[int]:
    """Return the index of the point chosen for each rank; `counts` are the rows at the points from `low` to `high`."""
    if not ranks:
        return []
    middle = len(ranks) // 2
    rank = ranks[middle]
    errors = rank_errors(counts, rank - low, high - rank)
    point = draw_index(gaps_below_best(-errors), rate / (high - low), bits)
    left, right = counts[: point + 1].copy(), counts[point:].copy()
    # Divide the rows at the chosen point between the two sides.
    left[-1] = counts[point] * (rank - low) // (high - low)
    right[0] -= left[-1]
    below = choose_points(left, ranks[:middle], low, rank, rate, bits)
    above = choose_points(right, ranks[middle + 1 :], rank, high, rate, bits)
    return [*below, point, *(point + place for place in above)]
