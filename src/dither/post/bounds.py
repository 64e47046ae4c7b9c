"""Bounds that nobody has to guess: chosen from a private histogram of contributions, with the clipping they cause.

One unit contributes a mass (rows, or the weighted size of its values). A clip at T leaves min(mass, T); what it removes
is estimated from how many units lie above each power of two, continued as a power law where noise hides the tail.
"""

from __future__ import annotations

import math
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
SURE = 4.5
FASTEST, SLOWEST = 0.1, 0.45
FEWEST = 4.0
RESIDUAL = 0.35


@dataclass(frozen=True)
class Bound:
    """How one unit is bounded: `auto`, at most `rows` rows' worth, or `rows` in each of at most `groups` groups.

    `how`: its sums are scaled down to the bound (clip), or so many of its rows are kept (rows: cheaper where the
    curator has prepared the data, since ranks are then stored).
    """

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
    rows, groups, how = given.pop("rows", "auto"), given.pop("groups", None), given.pop("how", "clip")
    if rows == "auto" and groups is None and not given and how in ("clip", "rows"):
        return Bound(auto=True, how="rows" if how == "rows" else "clip")
    if given or how not in ("clip", "rows") or not isinstance(rows, int) or rows < 1:
        raise InvalidParameter(
            "a bound is {'rows': T or 'auto'}, {'groups': G, 'rows': R}, and 'how': 'clip' or 'rows'"
        )
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


def choose(shape: Tail, epsilon: float, cells: int) -> Found:
    """The bound at which noise and what remains of the clipping are smallest together, in a cell of middling size.

    Groups are unequal: with more of them, the middling one is further below the average.
    """
    share = cells * (1 + math.log2(cells))
    best, least = float(shape.edges[0]), np.inf
    for bound in np.geomspace(shape.edges[0], shape.edges[-1], 4 * len(shape.edges)):
        noise = np.sqrt(2) * bound / epsilon
        clipped = RESIDUAL * shape.removed(bound, shape.above) / share
        if np.hypot(noise, clipped) < least:
            best, least = float(bound), float(np.hypot(noise, clipped))
    bound = max(1, round(best))
    removed = shape.removed(bound, shape.above)
    return Found(bound, shape.kept(bound), removed, max(shape.removed(bound, shape.above_high), removed))
