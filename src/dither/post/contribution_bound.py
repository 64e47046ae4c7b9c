"""Part of the former post.bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from dither.errors import InvalidParameter

FIND_SHARE = Fraction(1, 5)
How = Literal["auto", "clip", "rows"]
HOWS: dict[object, How] = {"auto": "auto", "clip": "clip", "rows": "rows"}
OCTAVES = 26
LARGEST = 1 << 31


@dataclass(frozen=True)
class Bound:
    """How one unit is bounded: `auto`, at most `rows` rows' worth, or `rows` in each of at most `groups` groups.

    `how`: its sums are scaled down to the bound (clip), or so many of its rows are kept (rows: cheaper where the
    curator has prepared the data, since ranks are then stored); by default the planner chooses.
    """

    auto: bool = False
    rows: int | None = None
    groups: int | None = None
    how: How = "auto"


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
    rows, groups, named = given.pop("rows", "auto"), given.pop("groups", None), given.pop("how", "auto")
    how = HOWS.get(named) if isinstance(named, str) else None
    if rows == "auto" and groups is None and not given and how is not None:
        return Bound(auto=True, how=how)
    if given or how is None or type(rows) is not int or rows < 1:
        raise InvalidParameter(
            "a bound is {'rows': T or 'auto'}, {'groups': G, 'rows': R}, and 'how': 'clip', 'rows' or 'auto'"
        )
    if groups is not None and (type(groups) is not int or groups < 1):
        raise InvalidParameter("groups of a bound must be a positive whole number")
    return Bound(rows=rows, groups=groups, how=how)


def edges(mass: int) -> tuple[int, ...]:
    """Powers of two times the mass of one row, and a few below it."""
    first = max(1, mass // 16)
    return tuple(first << octave for octave in range(OCTAVES) if first << octave <= LARGEST)


def ladder(points: tuple[int, ...], most: int) -> tuple[int, ...]:
    """The bounds that may be found: powers of the root of two from the first point on, at most `most`."""
    last = min(points[-1], most)
    rungs = {min(round(points[0] * 2 ** (half / 2)), last) for half in range(2 * len(points))}
    return tuple(sorted(rungs))
