"""Contribution bounds: how many rows one unit may add, given by the analyst or chosen privately from candidates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from dither.errors import InvalidParameter

# The share of a query's loss that choosing its bounds takes.
SEARCH_SHARE = Fraction(1, 5)
BoundMethod = Literal["auto", "clip", "rows"]
BOUND_METHODS: dict[object, BoundMethod] = {"auto": "auto", "clip": "clip", "rows": "rows"}
# Histograms of contributions have at most this many edges, each twice the one before.
OCTAVES = 26
ACCEPTED_FORMS = (
    "'auto', a number of rows such as 20, {'max_rows': 20} or {'max_groups': 3, 'max_rows_per_group': 5}; "
    "the last two may also have 'how': 'clip', 'rows' or 'auto'"
)
LARGEST_EDGE = 1 << 31


@dataclass(frozen=True)
class ContributionBound:
    """A bound on what one unit contributes.

    It is `auto` (chosen privately), at most `max_rows` rows, or, with `max_groups`, at most `max_rows` rows in each of
    at most `max_groups` groups. `how` is "clip" to scale a unit's sums down to the bound, "rows" to keep that
    many of its rows (cheaper where the curator has prepared the data, since ranks are then stored), or "auto" to let
    the planner choose.
    """

    auto: bool = False
    max_rows: int | None = None
    max_groups: int | None = None
    how: BoundMethod = "auto"


def parse_contribution_bound(value: object) -> ContributionBound:
    """Read the option max_contributions: None, "auto", 20, or {"max_groups": 3, "max_rows_per_group": 5}."""
    match value:
        case None | "auto":
            return ContributionBound(auto=True)
        case ContributionBound():
            return value
        case bool():
            pass
        case int() if value >= 1:
            return ContributionBound(max_rows=value)
        case str() if value.isdigit() and int(value) >= 1:
            return ContributionBound(max_rows=int(value))
        case Mapping():
            return _parse_mapping(dict(value))
    raise InvalidParameter(f"max_contributions must be {ACCEPTED_FORMS}; got {value!r}")


def _parse_mapping(parts: dict[str, object]) -> ContributionBound:
    groups, method = parts.pop("max_groups", None), parts.pop("how", "auto")
    rows = parts.pop("max_rows" if groups is None else "max_rows_per_group", "auto")
    how = BOUND_METHODS.get(method) if isinstance(method, str) else None
    if rows == "auto" and groups is None and not parts and how is not None:
        return ContributionBound(auto=True, how=how)
    if parts or how is None or type(rows) is not int or rows < 1:
        raise InvalidParameter(f"max_contributions must be {ACCEPTED_FORMS}")
    if groups is not None and (type(groups) is not int or groups < 1):
        raise InvalidParameter("max_groups must be a positive whole number")
    return ContributionBound(max_rows=rows, max_groups=groups, how=how)


def histogram_edges(row_size: int) -> tuple[int, ...]:
    """Return the edges of a histogram of contributions: powers of two times a sixteenth of the largest row."""
    first = max(1, row_size // 16)
    return tuple(first << octave for octave in range(OCTAVES) if first << octave <= LARGEST_EDGE)


def candidate_bounds(edges: tuple[int, ...], largest: int) -> tuple[int, ...]:
    """Return the bounds that may be chosen: powers of the square root of two from the first edge, up to `largest`."""
    last = min(edges[-1], largest)
    bounds = {min(round(edges[0] * 2 ** (half / 2)), last) for half in range(2 * len(edges))}
    return tuple(sorted(bounds))
