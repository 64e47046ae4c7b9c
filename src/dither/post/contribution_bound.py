"""How many rows one unit may contribute: as the analyst says, or as candidates among which the kernel chooses."""

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
FORMS = (
    "'auto', a number of rows, {'max_rows': T} or {'max_groups': G, 'max_rows_per_group': R}, "
    "the last two also with 'how': 'clip', 'rows' or 'auto'"
)
LARGEST = 1 << 31


@dataclass(frozen=True)
class ContributionBound:
    """How one unit is bounded: `auto`, at most `rows` rows' worth, or `rows` in each of at most `groups` groups.

    `how`: its sums are scaled down to the bound (clip), or so many of its rows are kept (rows: cheaper where the
    curator has prepared the data, since ranks are then stored); by default the planner chooses.
    """

    auto: bool = False
    max_rows: int | None = None
    max_groups: int | None = None
    how: How = "auto"


def parse_contribution_bound(given: object) -> ContributionBound:
    """Read a bound: None and "auto", 20, or {"max_groups": 3, "max_rows_per_group": 5}."""
    match given:
        case None | "auto":
            return ContributionBound(auto=True)
        case ContributionBound():
            return given
        case bool():
            pass
        case int() if given >= 1:
            return ContributionBound(max_rows=given)
        case str() if given.isdigit() and int(given) >= 1:
            return ContributionBound(max_rows=int(given))
        case Mapping():
            return _described(dict(given))
    raise InvalidParameter(f"max_contributions must be {FORMS}; got {given!r}")


def _described(given: dict[str, object]) -> ContributionBound:
    groups, named = given.pop("max_groups", None), given.pop("how", "auto")
    rows = given.pop("max_rows" if groups is None else "max_rows_per_group", "auto")
    how = HOWS.get(named) if isinstance(named, str) else None
    if rows == "auto" and groups is None and not given and how is not None:
        return ContributionBound(auto=True, how=how)
    if given or how is None or type(rows) is not int or rows < 1:
        raise InvalidParameter(f"max_contributions must be {FORMS}")
    if groups is not None and (type(groups) is not int or groups < 1):
        raise InvalidParameter("max_groups must be a positive whole number")
    return ContributionBound(max_rows=rows, max_groups=groups, how=how)


def histogram_edges(mass: int) -> tuple[int, ...]:
    """Powers of two times the mass of one row, and a few below it."""
    first = max(1, mass // 16)
    return tuple(first << octave for octave in range(OCTAVES) if first << octave <= LARGEST)


def candidate_bounds(points: tuple[int, ...], most: int) -> tuple[int, ...]:
    """The bounds that may be found: powers of the root of two from the first point on, at most `most`."""
    last = min(points[-1], most)
    rungs = {min(round(points[0] * 2 ** (half / 2)), last) for half in range(2 * len(points))}
    return tuple(sorted(rungs))
