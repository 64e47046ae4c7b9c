"""How much units contribute, from noisy counts of them: a rule that turns what was released into a bound.

All of it is postprocessing of a release; it stands on this side of the door so that finding a bound and answering at it
are one charge. One unit contributes a mass (rows, or the weighted size of its values). A clip at T leaves min(mass, T);
what it removes is estimated from how many units lie above each power of two, continued as a power law where noise hides
the tail.
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

# In standard deviations: by chance alone, one of 26 bins of Laplace noise passes SURE in one of 400 searches.
SURE, WIDER = 6.0, 3.0
FASTEST, SLOWEST, HALF, CURVED = 0.1, 0.45, 0.5, 1.1
FEWEST, FEWEST_HIGH = 4.0, 0.5
RESIDUAL = 0.35
TYPICAL = 16


@dataclass(frozen=True)
class ContributionTail:
    """How many units lie above each edge: an estimate and a cautious upper end."""

    edges: Floats
    above: Floats
    above_high: Floats

    def removed(self, bound: float) -> float:
        """The sum of (mass - bound) over the units above the bound, about."""
        points, counts = self._from(bound, self.above)
        return float((np.diff(points) * (counts[1:] + counts[:-1]) / 2).sum())

    def removed_high(self, bound: float) -> float:
        """The most that it may be: every unit at the upper end of its bin."""
        points, _ = self._from(bound, self.above_high)
        later = self.above_high[self.edges > bound]
        first = self.above_high[max(0, int(np.searchsorted(self.edges, bound, side="right")) - 1)]
        return float((np.diff(points) * np.concatenate([[first], later])[:-1]).sum())

    def squares(self, bound: float) -> float:
        """The sum of (mass - bound)^2 over the units above the bound, about: how unevenly what is removed may fall."""
        points, counts = self._from(bound, self.above)
        return float((np.diff((points - bound) ** 2) * (counts[1:] + counts[:-1]) / 2).sum())

    def _from(self, bound: float, above: Floats) -> tuple[Floats, Floats]:
        later = self.edges > bound
        at = float(np.interp(np.log(bound), np.log(self.edges), above))
        return np.concatenate([[bound], self.edges[later]]), np.concatenate([[at], above[later]])

    def kept(self, bound: float) -> float:
        """The sum of min(mass, bound) over all units, about."""
        lower = self.edges < bound
        at = float(np.interp(np.log(bound), np.log(self.edges), self.above))
        points = np.concatenate([[0.0], self.edges[lower], [bound]])
        counts = np.concatenate([[self.above[0]], self.above[lower], [at]])
        return float((np.diff(points) * (counts[1:] + counts[:-1]) / 2).sum())


def fit_tail(points: Sequence[int], noisy: Floats, std: float, row: int = 1) -> ContributionTail:
    """Units above each edge, from a noisy count of units per bin; bin j + 1 holds masses from edge j to the next.

    Beyond the last bin that can be told from noise, counts are taken to fall at least by half from one power of two to
    the next, and at least as fast as they did before. Where nothing can be seen, units are taken to have `TYPICAL` rows
    or fewer.
    """
    edges = np.asarray(points, float)
    last = _last(noisy, std)
    if last is None:
        last = int(np.searchsorted(edges, TYPICAL * row, side="right"))
        noisy = np.where(np.arange(len(noisy)) < last, 0.0, noisy)
    ratio, ratio_high = _ratios(noisy, last, std)
    held = _continued(noisy, last, ratio, 0.5 * std, FEWEST)
    lifted = noisy + np.where(np.abs(np.arange(len(noisy)) - last) < 2, WIDER * std, 0.0)
    wide = np.maximum(_continued(lifted, last, ratio_high, WIDER * std, FEWEST_HIGH), held)
    above, above_high = (np.maximum(np.cumsum(part[::-1])[::-1][1:], 0.0) for part in (held, wide))
    return ContributionTail(edges, above, above_high)


def _continued(noisy: Floats, last: int, ratio: float, slack: float, fewest: float) -> Floats:
    """The counts as seen up to the last sure bin, then falling by `ratio` or faster down to `fewest`."""
    counts = noisy.copy()
    for place in range(last + 1, len(counts)):
        before = max(counts[place - 1], 0.0)
        expected = min(before * ratio, max(noisy[place] + slack, 0.0))
        counts[place] = expected if expected >= fewest else 0.0
        ratio = min(ratio, 1.5 * counts[place] / before) if before > 0 else 0.0
    return counts


def _last(noisy: Floats, std: float) -> int | None:
    """The last bin that noise does not explain, in whichever place."""
    sure = np.flatnonzero(noisy > SURE * std + 0.5)
    return int(sure[-1]) if len(sure) else None


def _ratios(noisy: Floats, last: int, std: float) -> tuple[float, float]:
    """How fast counts fall from one power of two to the next near the last bin that is sure: about, and at slowest."""
    before, after = (noisy[place] + noisy[place - 1] if place > 0 else 0.0 for place in (last - 1, last))
    if before <= 2 * std:
        return SLOWEST, HALF
    high = CURVED * (after + 2 * std) / (before - 2 * std) if before > 4 * std else HALF
    return float(np.clip(after / before, FASTEST, SLOWEST)), float(np.clip(high, FASTEST, HALF))


def bound_error(shape: ContributionTail, bound: float, rule: BoundRule) -> float:
    """Noise and what remains of the clipping together, in a cell of middling size.

    Groups are unequal: with more of them, the middling one is further below the average.
    """
    share = rule.cells * (1 + math.log2(rule.cells))
    return math.hypot(float(rule.noise) * bound, RESIDUAL * shape.removed(bound) / share)


def choose_contribution_bound(search: BoundSearch, values: Sequence[int], mechanism: Mechanism) -> int:
    """The bound that a first step chose: the cheapest of the grid by the rule, or the one at the index released."""
    grid, rule = search.grid, search.rule
    if rule is None:
        place = values[0] if values else 0
        return grid[min(max(place, 0), len(grid) - 1)]
    shape = fit_tail(rule.points, np.array(values, float), mechanism.std(), rule.row)
    return min(grid, key=lambda bound: bound_error(shape, bound, rule))
