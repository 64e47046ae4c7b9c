"""Quantiles over a public grid, from exact counts of the rows at each grid point."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from typing import final

import numpy as np

from dither.errors import InvalidParameter
from dither.loss import ZCDP, Pure, Sensitivity, rational, rounded_up
from dither.privacy.bits import Bits
from dither.privacy.mechanisms.base import HALF, Mechanism, Vector, check_scale
from dither.privacy.mechanisms.selection import admit_candidates, draw, gaps

MOST_QUANTILES = 1 << 10
LARGEST_DENOMINATOR = 10_000


@final
@dataclass(frozen=True)
class Quantiles(Mechanism):
    """A grid point for each quantile, by exponential mechanisms: the middle one, then each half on its own side."""

    name = "quantiles"
    proof = "quantiles.md"
    quantiles: tuple[Fraction, ...]
    scale: Fraction

    def __post_init__(self) -> None:
        check_scale(self)
        wanted = tuple(rational(quantile, "quantile") for quantile in self.quantiles)
        if not 1 <= len(wanted) <= MOST_QUANTILES or sorted(set(wanted)) != list(wanted):
            raise InvalidParameter(f"quantiles must be 1 to {MOST_QUANTILES} increasing numbers")
        if not 0 < wanted[0] <= wanted[-1] < 1 or lcm(*(q.denominator for q in wanted)) > LARGEST_DENOMINATOR:
            raise InvalidParameter(f"quantiles must lie between 0 and 1, over a denominator of {LARGEST_DENOMINATOR}")
        object.__setattr__(self, "quantiles", wanted)

    @property
    def whole(self) -> int:
        """The common denominator: ranks are counted in these parts of all rows."""
        return lcm(*(quantile.denominator for quantile in self.quantiles))

    @property
    def ranks(self) -> list[int]:
        """The quantiles as integers out of `whole`."""
        return [int(quantile * self.whole) for quantile in self.quantiles]

    def admit(self, size: int) -> None:
        admit_candidates(size)

    def loss(self, sensitivity: Sensitivity) -> Pure:
        shares = deepest(self.ranks, 0, self.whole, power=1)
        return Pure(rounded_up(2 * sensitivity.l1 / self.scale * shares))

    def zcdp_loss(self, sensitivity: Sensitivity) -> ZCDP:
        shares = deepest(self.ranks, 0, self.whole, power=2)
        return ZCDP(rounded_up((2 * sensitivity.l1 / self.scale) ** 2 / 8 * shares))

    def release(self, exact: Vector, bits: Bits) -> Vector:
        self.admit(len(exact))
        most = HALF // (len(exact) * self.whole)  # no rank times `whole` can overflow
        held = np.clip(exact, -most, most)
        return np.array(split(held, self.ranks, 0, self.whole, 1 / self.scale, bits), np.int64)


def deepest(ranks: list[int], low: int, high: int, *, power: int) -> Fraction:
    """The largest sum, over the paths that a row can take, of max(q, 1 - q) to a power."""
    if not ranks:
        return Fraction(0)
    middle = len(ranks) // 2
    rank = ranks[middle]
    share = Fraction(max(rank - low, high - rank), high - low) ** power
    below = deepest(ranks[:middle], low, rank, power=power)
    above = deepest(ranks[middle + 1 :], rank, high, power=power)
    return share + max(below, above)


def misses(counts: Vector, below: int, above: int) -> Vector:
    """How far, in parts of below + above, each point is from having that share of the rows on each side of it."""
    through = np.cumsum(counts)
    less, total = through - counts, through[-1]
    too_high = above * less - below * (total - less)
    too_low = below * (total - through) - above * through
    return np.asarray(np.maximum(0, np.maximum(too_high, too_low)))


def split(counts: Vector, ranks: list[int], low: int, high: int, rate: Fraction, bits: Bits) -> list[int]:
    """The points for `ranks`; `counts` holds the rows between the points for ranks `low` and `high`, shared out."""
    if not ranks:
        return []
    middle = len(ranks) // 2
    rank = ranks[middle]
    missed = misses(counts, rank - low, high - rank)
    at = draw(gaps(-missed), rate / (high - low), bits)
    left, right = counts[: at + 1].copy(), counts[at:].copy()
    left[-1] = counts[at] * (rank - low) // (high - low)  # the chosen point's rows, each on one side
    right[0] -= left[-1]
    below = split(left, ranks[:middle], low, rank, rate, bits)
    above = split(right, ranks[middle + 1 :], rank, high, rate, bits)
    return [*below, at, *(at + place for place in above)]
