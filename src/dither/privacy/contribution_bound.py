"""Choose a contribution bound from a noisy histogram of how much units contribute.

All of this is postprocessing of a release. It runs inside the kernel so that one charge pays for choosing the bound and
for answering at it. A unit's contribution is its number of rows, or the weighted size of its values. A bound T clips a
contribution x to min(x, T). The total clipped off is estimated from the number of units above each power of two; where
noise hides the tail, the counts are extrapolated to fall by a constant ratio or faster.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dither.privacy.mechanisms import Mechanism
from dither.privacy.protocol import BoundRule, BoundSearch

Floats = NDArray[np.float64]

# In standard deviations of the noise: a bin that stands out, and the margin of a cautious upper bound.
# By chance alone, one of 26 bins of Laplace noise exceeds SIGNIFICANT_STDS in 1 of 400 searches.
SIGNIFICANT_STDS, CAUTIOUS_STDS = 6.0, 3.0
# Limits on the ratio of the counts of a bin and the one before it, and the factor by which a cautious ratio is raised.
MIN_RATIO, MAX_RATIO, MAX_RATIO_HIGH, RATIO_SLACK = 0.1, 0.45, 0.5, 1.1
# Extrapolated bins with fewer units than this count as empty.
MIN_UNITS, MIN_UNITS_HIGH = 4.0, 0.5
# The share of the clipping error that postprocessing does not correct.
UNCORRECTED_SHARE = 0.35
# The most rows of a unit, as long as no bin stands out from the noise.
TYPICAL_ROWS = 16


@dataclass(frozen=True)
class ContributionTail:
    """The number of units whose contribution is above each edge: an estimate, and a cautious upper bound."""

    edges: Floats
    above: Floats
    above_high: Floats

    def clipped_total(self, bound: float) -> float:
        """Estimate the sum of (contribution - bound) over the units above the bound."""
        points, counts = self._tail_from(bound, self.above)
        return float((np.diff(points) * (counts[1:] + counts[:-1]) / 2).sum())

    def clipped_total_high(self, bound: float) -> float:
        """Return a cautious upper bound of `clipped_total`: every unit at the upper end of its bin."""
        points, _ = self._tail_from(bound, self.above_high)
        beyond = self.above_high[self.edges > bound]
        first = self.above_high[max(0, int(np.searchsorted(self.edges, bound, side="right")) - 1)]
        return float((np.diff(points) * np.concatenate([[first], beyond])[:-1]).sum())

    def clipped_squares(self, bound: float) -> float:
        """Estimate the sum of (contribution - bound)^2 over the units above the bound: how uneven clipping may be."""
        points, counts = self._tail_from(bound, self.above)
        return float((np.diff((points - bound) ** 2) * (counts[1:] + counts[:-1]) / 2).sum())

    def _tail_from(self, bound: float, above: Floats) -> tuple[Floats, Floats]:
        """Return the edges from `bound` on, and the (interpolated) number of units above each."""
        beyond = self.edges > bound
        count_at_bound = float(np.interp(np.log(bound), np.log(self.edges), above))
        return np.concatenate([[bound], self.edges[beyond]]), np.concatenate([[count_at_bound], above[beyond]])

    def retained_total(self, bound: float) -> float:
        """Estimate the sum of min(contribution, bound) over all units."""
        inside = self.edges < bound
        count_at_bound = float(np.interp(np.log(bound), np.log(self.edges), self.above))
        points = np.concatenate([[0.0], self.edges[inside], [bound]])
        counts = np.concatenate([[self.above[0]], self.above[inside], [count_at_bound]])
        return float((np.diff(points) * (counts[1:] + counts[:-1]) / 2).sum())


def fit_tail(points: Sequence[int], noisy: Floats, std: float, row: int = 1) -> ContributionTail:
    """Estimate the units above each edge from noisy counts; bin j + 1 counts contributions from edge j to the next.

    Beyond the last bin that stands out from the noise, counts are assumed to fall by at least half from one power of
    two to the next, and at least as fast as before. If no bin stands out, units are assumed to have at most
    `TYPICAL_ROWS` rows.
    """
    edges = np.asarray(points, float)
    last = _last_significant_bin(noisy, std)
    if last is None:
        last = int(np.searchsorted(edges, TYPICAL_ROWS * row, side="right"))
        noisy = np.where(np.arange(len(noisy)) < last, 0.0, noisy)
    ratio, ratio_high = _decay_ratios(noisy, last, std)
    estimate = _extrapolate_tail(noisy, last, ratio, 0.5 * std, MIN_UNITS)
    raised = noisy + np.where(np.abs(np.arange(len(noisy)) - last) < 2, CAUTIOUS_STDS * std, 0.0)
    upper = np.maximum(_extrapolate_tail(raised, last, ratio_high, CAUTIOUS_STDS * std, MIN_UNITS_HIGH), estimate)
    above, above_high = (np.maximum(np.cumsum(part[::-1])[::-1][1:], 0.0) for part in (estimate, upper))
    return ContributionTail(edges, above, above_high)


def _extrapolate_tail(noisy: Floats, last: int, ratio: float, slack: float, fewest: float) -> Floats:
    """Return the noisy counts up to bin `last`, then counts that fall by `ratio` or faster until below `fewest`."""
    counts = noisy.copy()
    for index in range(last + 1, len(counts)):
        before = max(counts[index - 1], 0.0)
        expected = min(before * ratio, max(noisy[index] + slack, 0.0))
        counts[index] = expected if expected >= fewest else 0.0
        ratio = min(ratio, 1.5 * counts[index] / before) if before > 0 else 0.0
    return counts


def _last_significant_bin(noisy: Floats, std: float) -> int | None:
    """Return the last bin that noise alone does not explain, or None."""
    significant = np.flatnonzero(noisy > SIGNIFICANT_STDS * std + 0.5)
    return int(significant[-1]) if len(significant) else None


def _decay_ratios(noisy: Floats, last: int, std: float) -> tuple[float, float]:
    """Return the ratio of counts between powers of two near bin `last`: an estimate, and a cautious upper bound."""
    before, after = (noisy[index] + noisy[index - 1] if index > 0 else 0.0 for index in (last - 1, last))
    if before <= 2 * std:
        return MAX_RATIO, MAX_RATIO_HIGH
    high = RATIO_SLACK * (after + 2 * std) / (before - 2 * std) if before > 4 * std else MAX_RATIO_HIGH
    return float(np.clip(after / before, MIN_RATIO, MAX_RATIO)), float(np.clip(high, MIN_RATIO, MAX_RATIO_HIGH))


def bound_error(tail: ContributionTail, bound: float, rule: BoundRule) -> float:
    """Return the error of a typical cell at this bound: the noise, and the clipping error that correction leaves.

    Groups are unequal: the more there are, the further the typical one is below the average.
    """
    share = rule.cells * (1 + math.log2(rule.cells))
    return math.hypot(float(rule.noise) * bound, UNCORRECTED_SHARE * tail.clipped_total(bound) / share)


def choose_contribution_bound(search: BoundSearch, values: Sequence[int], mechanism: Mechanism) -> int:
    """Return the grid point that a search chose: the one of least error by its rule, or at the released index."""
    grid, rule = search.grid, search.rule
    if rule is None:
        index = values[0] if values else 0
        return grid[min(max(index, 0), len(grid) - 1)]
    tail = fit_tail(rule.points, np.array(values, float), mechanism.std(), rule.row)
    return min(grid, key=lambda bound: bound_error(tail, bound, rule))
