"""Bounds that nobody has to guess: found by a private histogram of contributions, with the clipping they cause."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from dither.errors import InvalidParameter
from dither.post.laws import Floats
from dither.privacy.tails import tail

FIND_SHARE = Fraction(1, 10)
OCTAVES = 26
LARGEST = 1 << 31


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


def ladder(points: tuple[int, ...], most: int) -> tuple[int, ...]:
    """The bounds that may be found: powers of the root of two from the first point on, at most `most`."""
    last = min(points[-1], most)
    rungs = {min(round(points[0] * 2 ** (half / 2)), last) for half in range(2 * len(points))}
    return tuple(sorted(rungs))


def found(bound: int, points: tuple[int, ...], noisy: Floats, std: float) -> Found:
    """A bound with what it keeps and removes, from the noisy counts by which it was found."""
    shape = tail(points, noisy, std)
    removed = shape.removed(bound, shape.above)
    return Found(bound, shape.kept(bound), removed, max(shape.removed(bound, shape.above_high), removed))
