"""Contribution bounds: how many rows one unit may add, given by the analyst or chosen privately from candidates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from operator import index
from typing import Literal

from dither.errors import InvalidParameter

# Weights by which a query's loss is divided: for counts alone, for counts beside values, for the sum of values, and
# for values around a private centre.
COUNT_WEIGHTS = {"search": Fraction(1), "answer": Fraction(4)}
SIDE_COUNT_WEIGHTS = {"search": Fraction(1), "answer": Fraction(2)}
SUM_WEIGHTS = {"search": Fraction(3, 2), "answer": Fraction(6)}
CENTRED_WEIGHTS = {"centre": Fraction(4, 5), "search": Fraction(2), "answer": Fraction(21, 5)}
# What a chosen bound is best for: the whole answer, the total of its groups, a typical group, or the smallest ones.
OptimizeFor = Literal["answer", "total", "typical", "smallest"]
OPTIMIZE_FOR: dict[object, OptimizeFor] = {
    "answer": "answer", "total": "total", "typical": "typical", "smallest": "smallest",
}  # fmt: skip
# Up to this many cells, the whole answer is judged by a typical group; with more groups than that, by the large ones.
MANY_CELLS = 1 << 14
# The smallest groups have about this part of a group's equal share.
SMALL_PART = 10
BoundMethod = Literal["auto", "clip", "rows"]
BOUND_METHODS: dict[object, BoundMethod] = {"auto": "auto", "clip": "clip", "rows": "rows"}
# Contributions are told apart from this share of the largest row on.
FINEST_SHARE, FINEST_PRODUCT_SHARE = 1 << 12, 1 << 20
# Candidates for a centre: points evenly over the range, and points on either side of zero at these many an octave.
EVEN_CENTRES, CENTRES_PER_OCTAVE = 256, 4
ACCEPTED_FORMS = (
    "'auto', a number of rows such as 20, {'max_rows': 20} or {'max_groups': 3, 'max_rows_per_group': 5}; "
    "the last two may also have 'how': 'clip', 'rows' or 'auto', and max_rows 'report': True; as text '20,report' or "
    "'max_groups=3,max_rows_per_group=5'"
)
LARGEST_CONTRIBUTION = 1 << 31
# A cap of this many rows bounds counts at once; a search would cost more than it could save. Values are searched still.
FEW_ROWS = 8
COUNT_NAMES = ("max_rows", "max_groups", "max_rows_per_group")
PART_NAMES = (*COUNT_NAMES, "how", "report")
TRUTH_VALUES = {"true": True, "false": False}
LONGEST_COUNT = 10


@dataclass(frozen=True)
class ContributionBound:
    """A bound on what one unit contributes.

    It is `auto` (chosen privately), at most `max_rows` rows, or, with `max_groups`, at most `max_rows` rows in each of
    at most `max_groups` groups. `how` is "clip" to scale a unit's sums down to the bound, "rows" to keep that
    many of its rows (cheaper where the curator has prepared the data, since ranks are then stored), or "auto" to let
    the planner choose. With `report`, a part of the loss estimates what a given bound clips, so that answers are about
    all rows; without, they are about the clipped data.
    """

    auto: bool = False
    max_rows: int | None = None
    max_groups: int | None = None
    how: BoundMethod = "auto"
    report: bool = False

    @property
    def searched(self) -> bool:
        """True if a noisy histogram of contributions is released, to choose a bound or to report on a given one."""
        return self.auto or self.report


def parse_contribution_bound(value: object) -> ContributionBound:
    """Read the option max_contributions in one of its forms: None, a number, a mapping of its parts, or a text."""
    match value:
        case None:
            return ContributionBound(auto=True)
        case ContributionBound():
            return value
        case Mapping():
            return _parse_mapping(dict(value))
        case str() if parts := _text_parts(value):
            return _parse_mapping(parts)
    if (rows := _row_count(value)) is not None:
        return ContributionBound(max_rows=rows)
    raise InvalidParameter(f"max_contributions must be {ACCEPTED_FORMS}; got {repr(value)[:40]}")


def _text_parts(text: str) -> dict[object, object]:
    """Return the parts of a bound that is written as text; a bare number is max_rows. Empty if it is not one.

    >>> _text_parts("20,report"), _text_parts("max_groups=3,max_rows_per_group=5")
    ({'max_rows': 20, 'report': True}, {'max_groups': 3, 'max_rows_per_group': 5})
    """
    parts: dict[object, object] = {}
    for number, part in enumerate(text.split(",")):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            name, value = ("report", "true") if number and name == "report" else ("max_rows", name)
        is_count = value.isascii() and value.isdigit() and len(value) <= LONGEST_COUNT
        is_known = is_count if name in COUNT_NAMES and value != "auto" else name in PART_NAMES
        if name in parts or not is_known or text != text.strip():
            return {}
        parts[name] = int(value) if is_count else TRUTH_VALUES.get(value, value)
    return parts


def _row_count(value: object) -> int | None:
    """Return a whole number of rows from 1 to 2^31 - 1, which may be one of numpy's; None for anything else."""
    try:
        rows = index(value)  # type: ignore[arg-type]
    except TypeError:
        return None
    return rows if 1 <= rows < LARGEST_CONTRIBUTION and not isinstance(value, bool) else None


def _parse_mapping(parts: dict[object, object]) -> ContributionBound:
    groups, method = parts.pop("max_groups", None), parts.pop("how", "auto")
    rows = parts.pop("max_rows" if groups is None else "max_rows_per_group", "auto")
    report = parts.pop("report", False) if groups is None else False
    how = BOUND_METHODS.get(method) if isinstance(method, str) else None
    if rows == "auto" and groups is None and not parts and how is not None:
        return ContributionBound(auto=True, how=how)
    max_rows, max_groups = _row_count(rows), _row_count(groups)
    if parts or how is None or max_rows is None or not isinstance(report, bool):
        raise InvalidParameter(f"max_contributions must be {ACCEPTED_FORMS}")
    if groups is not None and max_groups is None:
        raise InvalidParameter("max_groups must be a positive whole number")
    return ContributionBound(max_rows=max_rows, max_groups=max_groups, how=how, report=report)


def judged_cells(groups: int, optimize_for: OptimizeFor) -> int:
    """Return the number of cells by which a rule judges bounds: it looks at a cell with 1 / sqrt(cells) of the total.

    For the whole answer that share is nearly that of equal groups, 1 / groups; larger where groups are few, since one
    then often has most of the rows, and where they are very many. Most of several unequal groups have less than an
    equal share: so does a typical one. For the smallest groups the noise counts almost alone.

    >>> judged_cells(16, "answer"), judged_cells(20_000, "answer"), judged_cells(16, "typical")
    (224, 20000, 1024)
    """
    match optimize_for:
        case "answer":
            return max(groups, min(max(math.isqrt(groups**3), groups * (groups - 2)), MANY_CELLS))
        case "total":
            return 1
        case "typical":
            return min(math.isqrt(groups**5), (SMALL_PART * groups) ** 2)
        case "smallest":
            return (SMALL_PART * groups) ** 2 if groups > 1 else 1


def up_to(bins: tuple[int, ...], most: int | None) -> tuple[int, ...]:
    """Return the bins below the most that a unit may contribute, and this as the last one; all if there is no most.

    >>> up_to((1, 2, 3, 4, 6, 8), 5)
    (1, 2, 3, 4, 5)
    """
    return bins if most is None or most > bins[-1] else (*(bin for bin in bins if bin < most), most)


def row_bins(unit: int) -> tuple[int, ...]:
    """Return the bins of contributions: multiples of `unit` that grow by the square root of two.

    >>> row_bins(1)[:9]
    (1, 2, 3, 4, 6, 8, 11, 16, 23)
    """
    bins = {min(round(unit * math.floor(2 ** (half / 2) + 1e-9)), LARGEST_CONTRIBUTION) for half in range(63)}
    return tuple(sorted(bins))


def value_bins(row_size: int, finest_share: int = FINEST_SHARE) -> tuple[int, ...]:
    """Return the bins of contributions that may be any share of a row's largest value."""
    first = max(1, row_size // finest_share)
    bins = {min(round(first * 2 ** (half / 2)), LARGEST_CONTRIBUTION) for half in range(63)}
    return tuple(sorted(bins))


def centre_candidates(low: int, high: int) -> tuple[int, ...]:
    """Return the candidates for a centre of values from `low` to `high`: evenly spaced ones, and more near zero."""
    even = {low + (high - low) * place // EVEN_CENTRES for place in range(EVEN_CENTRES + 1)}
    octaves = max(abs(low), abs(high), 1).bit_length()
    sizes = {round(2 ** (place / CENTRES_PER_OCTAVE)) for place in range(CENTRES_PER_OCTAVE * octaves)}
    near_zero = {sign * size for size in sizes for sign in (-1, 1)} | {0}
    return tuple(sorted(even | {point for point in near_zero if low <= point <= high}))
