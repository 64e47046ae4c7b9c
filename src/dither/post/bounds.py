"""Bounds that nobody has to guess: chosen from a private histogram of contributions, with the clipping they cause.

One unit contributes a mass (rows, or the weighted size of its values). A clip at T leaves min(mass, T); what it removes
is estimated from how many units lie above each power of two, continued as a power law where noise hides the tail.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np

from dither.errors import InvalidParameter
from dither.post.laws import Floats

FIND_SHARE = Fraction(1, 10)
OCTAVES = 26
LARGEST = 1 << 31
SURE = 4.0
STEEPEST, FLATTEST = 4.0, 0.6
DOUBT = 2.0
RESIDUAL = 0.35


@dataclass(frozen=True)
class Bound:
    """How one unit is bounded: `auto`, at most `rows` rows' worth, or `rows` in each of at most `groups` groups."""

    auto: bool = False
    rows: int | None = None
    groups: int | None = None
    how: Literal["clip", "rows"] = "clip"


def bound_of(given: object) -> Bound:
    """The bound that an argument means: None and "auto", 20, or {"groups": 3, "rows": 5}."""
    match given:
        case None | "auto":
            return Bound(auto=True)
        case Bound():
            return given
        case bool():
            pass
        case int() if given >= 1:
            return Bound(rows=given)
        case str() if given.isdigit() and int(given) >= 1:
            return Bound(rows=int(given))
        case Mapping():
            return _described(dict(given))
    raise InvalidParameter(f"bound must be 'auto', a number of rows, or {{'groups': G, 'rows': R}}, got {given!r}")


def _described(given: dict[str, object]) -> Bound:
    rows, groups, how = given.pop("rows", None), given.pop("groups", None), given.pop("how", "clip")
    if given or how not in ("clip", "rows") or not isinstance(rows, int) or rows < 1:
        raise InvalidParameter("a bound is {'rows': T}, {'groups': G, 'rows': R}, and 'how': 'clip' or 'rows'")
    if groups is not None and (not isinstance(groups, int) or groups < 1):
        raise InvalidParameter("groups of a bound must be a positive whole number")
    return Bound(rows=rows, groups=groups, how="rows" if how == "rows" else "clip")


def edges(mass: int) -> tuple[int, ...]:
    """Powers of two times the mass of one row, and a few below it."""
    first = max(1, mass // 16)
    return tuple(first << octave for octave in range(OCTAVES) if first << octave <= LARGEST)


@dataclass(frozen=True)
class Found:
    """A bound, and the estimated mass that it keeps and removes (with a cautious upper end)."""

    bound: int
    kept: float
    removed: float
    removed_high: float

    @property
    def inflation(self) -> float:
        """What was removed, relative to what was kept."""
        return self.removed / self.kept if self.kept > 0 else 0.0

    @property
    def inflation_high(self) -> float:
        """The same with caution."""
        return self.removed_high / self.kept if self.kept > 0 else 0.0


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
    counts = np.cumsum(noisy[::-1])[::-1][1:]
    spread = std * np.sqrt(np.arange(len(counts), 0, -1))
    counts = np.maximum.accumulate(counts[::-1])[::-1] if std > 0 else counts
    sure = np.flatnonzero(counts > SURE * spread + 1)
    last = int(sure[-1]) if len(sure) else 0
    slope = _slope(counts, last)
    law = max(counts[last], 0.0) * 2.0 ** (-slope * (np.arange(len(counts)) - last))
    flat = DOUBT * max(counts[last], 1.0) * 2.0 ** (-0.8 * slope * (np.arange(len(counts)) - last))
    beyond = np.arange(len(counts)) > last
    above = np.where(beyond, np.clip(law, np.maximum(counts - 2 * spread, 0), np.maximum(counts + 2 * spread, 0)), counts)
    high = np.where(beyond, np.minimum(counts + 2.5 * spread, flat), counts + 2.5 * spread)
    quiet = std < 1e-3
    return Tail(np.asarray(points, float), counts if quiet else above, counts if quiet else np.maximum(high, above))


def _slope(counts: Floats, last: int) -> float:
    """The power by which counts fall, over the last two octaves that noise does not hide."""
    first = max(0, last - 2)
    if last == first or counts[first] <= 0 or counts[last] <= 0:
        return 1.5
    return float(np.clip(np.log2(counts[first] / counts[last]) / (last - first), FLATTEST, STEEPEST))


def choose(shape: Tail, epsilon: float, cells: int) -> Found:
    """The bound at which noise and what remains of the clipping, cell by cell, are smallest together."""
    best, least = float(shape.edges[0]), np.inf
    for bound in np.geomspace(shape.edges[0], shape.edges[-1], 4 * len(shape.edges)):
        noise = np.sqrt(2) * bound / epsilon
        clipped = RESIDUAL * shape.removed(bound, shape.above) / cells
        if np.hypot(noise, clipped) < least:
            best, least = float(bound), float(np.hypot(noise, clipped))
    bound = max(1, round(best))
    removed = shape.removed(bound, shape.above)
    return Found(bound, shape.kept(bound), removed, max(shape.removed(bound, shape.above_high), removed))
