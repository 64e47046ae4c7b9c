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
from dither.wire.model import AutoBound, Tradeoff

Floats = NDArray[np.float64]

SURE = 4.5
FASTEST, SLOWEST = 0.1, 0.45
FEWEST = 4.0
RESIDUAL = 0.35


@dataclass(frozen=True)
class Tail:
    """How many units lie above each edge: an estimate and a cautious upper end."""

    edges: Floats
    above: Floats
    above_high: Floats

    def removed(self, bound: float, above: Floats) -> float:
        """The sum of (mass - bound) over the units above the bound."""
        points = np.concatenate([[bound], self.edges[self.edges > bound]])
        if len(points) < 2:
            return 0.0
        counts = np.concatenate([[self._at(bound, above)], above[self.edges > bound]])
        return float((np.diff(points) * (counts[1:] + counts[:-1]) / 2).sum())

    def _at(self, bound: float, above: Floats) -> float:
        return float(np.interp(np.log(bound), np.log(self.edges), above))

    def kept(self, bound: float) -> float:
        """The sum of min(mass, bound) over all units."""
        points = np.concatenate([[0.0], self.edges[self.edges < bound], [bound]])
        counts = np.concatenate([[self.above[0]], self.above[self.edges < bound], [self._at(bound, self.above)]])
        return float((np.diff(points) * (counts[1:] + counts[:-1]) / 2).sum())


def tail(points: tuple[int, ...], noisy: Floats, std: float) -> Tail:
    """Units above each edge, from a noisy count of units per bin; bin j + 1 holds masses from edge j to the next."""
    last = _last(noisy, std)
    ratio = _ratio(noisy, last, std)
    held = _continued(noisy, last, ratio, std, FEWEST)
    wide = _continued(noisy, last, min(1.3 * ratio, 0.5), 3 * std, 0.5)
    wide[last] += 2 * std * math.sqrt(last + 1)
    above, above_high = (np.maximum(np.cumsum(part[::-1])[::-1][1:], 0.0) for part in (held, np.maximum(wide, held)))
    return Tail(np.asarray(points, float), above, above_high)


def _continued(noisy: Floats, last: int, ratio: float, slack: float, fewest: float) -> Floats:
    """The counts as seen up to the last sure bin, then falling by `ratio` to `fewest`, near what was seen."""
    counts = noisy.copy()
    if slack > 0:
        for place in range(last + 1, len(counts)):
            expected = min(max(counts[place - 1], 0.0) * ratio, max(noisy[place] + slack, 0.0))
            counts[place] = expected if expected >= fewest else 0.0
    return counts


def _last(noisy: Floats, std: float) -> int:
    """The last bin, going up from the fullest, that noise does not explain; a gap of two bins ends the search."""
    last = place = int(np.argmax(noisy))
    while place < len(noisy) and (noisy[place : place + 2] > 2 * std + 0.5).any():
        last = place if noisy[place] > SURE * std + 0.5 else last
        place += 1
    return last


def _ratio(noisy: Floats, last: int, std: float) -> float:
    """How fast counts fall from one power of two to the next, near the last bin that is sure."""
    if last < 2 or std <= 0:
        return 0.5
    before, after = noisy[last - 2] + noisy[last - 1], noisy[last - 1] + noisy[last]
    return float(np.clip(after / before, FASTEST, SLOWEST)) if before > 0 else SLOWEST


def cost(shape: Tail, bound: float, rule: Tradeoff) -> float:
    """Noise and what remains of the clipping together, in a cell of middling size.

    Groups are unequal: with more of them, the middling one is further below the average.
    """
    share = rule.cells * (1 + math.log2(rule.cells))
    return math.hypot(float(rule.noise) * bound, RESIDUAL * shape.removed(bound, shape.above) / share)


def rung(search: AutoBound, values: Sequence[int], mechanism: Mechanism) -> int:
    """The bound that a first step chose: the cheapest of the grid by the rule, or the one at the index released."""
    grid, rule = search.grid, search.rule
    if rule is None:
        place = values[0] if values else 0
        return grid[min(max(place, 0), len(grid) - 1)]
    shape = tail(rule.points, np.array(values, float), mechanism.std())
    return min(grid, key=lambda bound: cost(shape, bound, rule))
