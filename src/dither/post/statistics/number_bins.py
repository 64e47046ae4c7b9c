"""Bins of numbers, chosen so that a declared range that is far too wide, to be safe, costs little.

Where each of many units has one row, a number gets a private range: it becomes z, from -1 to 1 within that range, and
bins are cut from z. What lies beyond the range is in its first or last bin. Where the bins are in raw units is known
when the range has been chosen.

Without a private range, bins may grow from zero: those of equal width that are next to it are split. Once they are
measured, bins at either end of the declared range in which noise hides all rows are left out again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import floor

import numpy as np

from dither.plan.relations.core import Relation
from dither.post.noise import Floats
from dither.post.statistics.design import Design, read_columns, rows_without_null
from dither.post.statistics.joint import Pairs
from dither.post.statistics.linear import ROW_REACH
from dither.post.statistics.marginals import Attribute, MarginalPlan
from dither.post.statistics.moments import (
    MOVED_ROWS,
    MomentPlan,
    has_single_rows,
    known_rows,
    range_shares,
    searches_with_shares,
)
from dither.post.statistics.source_rows import SourceRows
from dither.privacy.protocol import BoundSearch
from dither.schema import Number

# Bins that are narrow around the median, of which a skewed column leaves some empty, and wide at the ends.
NARROW_BINS = tuple(Fraction(cut, 8) for cut in (-8, -4, -2, -1, 0, 1, 2, 4, 8))
BIN_NOTE = "bins of {} are cut from private ranges: values beyond are in the first or last bin; bins= gives others"
# A bin at zero is split into parts, each this fraction of the one before, so many times; more coarsely on two sides.
ONE_SIDE, TWO_SIDES = (2, 12), (3, 8)
# Bins at an end are left out while none, nor all of them together, has more rows than so many standard deviations.
SEEN = 4.0


@dataclass(frozen=True)
class BinRange(MomentPlan):
    """The private range of one number: bins need no longer one than holds nearly all rows."""

    @property
    def moved_rows(self) -> Fraction:
        """The share of rows beyond the range."""
        return max(MOVED_ROWS, super().moved_rows)


@dataclass(frozen=True)
class NumberBins:
    """Attributes, of which some have bins in private ranges, by place; `cuts` has those bins in z.

    `growing` has the places of those whose bins grow from zero.
    """

    declared: tuple[Attribute, ...]
    ranges: Mapping[int, BinRange]
    cuts: tuple[Fraction, ...]
    growing: tuple[int, ...] = ()

    @property
    def attributes(self) -> tuple[Attribute, ...]:
        """The attributes as keys, with bins of z for numbers with private ranges."""
        return tuple(self._key_attribute(place, attribute) for place, attribute in enumerate(self.declared))

    def _key_attribute(self, place: int, attribute: Attribute) -> Attribute:
        if place not in self.ranges:
            return attribute
        return replace(attribute, value=self.ranges[place].design.standard_value(0), edges=self.cuts)

    @property
    def searches(self) -> tuple[BoundSearch, ...]:
        """The searches for the ranges, with their losses."""
        return tuple(search for plan in self.ranges.values() for search in searches_with_shares(plan)[0])

    @property
    def searched_share(self) -> Fraction:
        """The share of the loss that the searches take."""
        return sum((1 - searches_with_shares(plan)[1] for plan in self.ranges.values()), Fraction(0))

    @property
    def notes(self) -> tuple[str, ...]:
        """Say which numbers have bins in private ranges."""
        names = ", ".join(self.declared[place].name for place in self.ranges)
        return (BIN_NOTE.format(names),) if names else ()

    def raw(self, chosen: Mapping[str, int]) -> tuple[Attribute, ...]:
        """Return the attributes with bins in raw units; bins outside of the declared range have no width."""
        return tuple(self._raw_attribute(place, each, chosen) for place, each in enumerate(self.declared))

    def assumed_attributes(self) -> tuple[Attribute, ...]:
        """Return the attributes with bins in raw units as quotes assume them."""
        return self.raw({tag: value for plan in self.ranges.values() for tag, value in plan.assumed_choices(1).items()})

    def _raw_attribute(self, place: int, attribute: Attribute, chosen: Mapping[str, int]) -> Attribute:
        if place not in self.ranges:
            return attribute
        scaling = self.ranges[place].design.scaling(chosen)
        low, high, step = attribute.edges[0], attribute.edges[-1], attribute.step
        raw = [float(scaling.centres[0] + scaling.scales[0] * float(cut)) for cut in self.cuts]
        edges = [low + step * floor((Fraction(edge) - low) / step) for edge in raw[:-1]]
        edges.append(low + step * (floor((Fraction(raw[-1]) - low) / step) + 1))
        return replace(attribute, edges=tuple(min(max(edge, low), high) for edge in edges))


def choose_bins(
    rows: SourceRows,
    relation: Relation,
    attributes: Sequence[Attribute],
    given: Collection[str] = (),
    cuts: tuple[Fraction, ...] = NARROW_BINS,
) -> NumberBins:
    """Give private ranges to numbers of many steps without given bins, if each unit has one of many rows."""
    settings, declared = rows.settings, tuple(attributes)
    if not has_single_rows(settings, relation):
        return NumberBins(declared, {}, cuts)
    wide = [place for place, each in enumerate(declared) if each.name not in given and is_wide(rows, each)]
    known = known_rows(relation, settings.context)
    shares = range_shares(known, settings.spend, len(wide)) if wide else None
    if shares is None:
        return NumberBins(declared, {}, cuts)
    designs = {place: own_design(rows, declared[place].name, place) for place in wide}
    return NumberBins(declared, {place: BinRange(settings, each, shares) for place, each in designs.items()}, cuts)


def is_wide(rows: SourceRows, attribute: Attribute) -> bool:
    """Return True for a number in bins, of many more steps than bins."""
    is_number = bool(attribute.edges) and isinstance(rows.domain(attribute.name), Number)
    return is_number and read_columns(rows, [attribute.name])[0].is_wide


def own_design(rows: SourceRows, name: str, place: int) -> Design:
    """Return the design of one number, over the rows in which it is not NULL."""
    return Design(rows_without_null(rows, [name]), read_columns(rows, [name]), "private", ROW_REACH, f"_{place}")


def with_range_searches(plan: MarginalPlan, bins: NumberBins) -> MarginalPlan:
    """Add the searches for private ranges to a plan of counts."""
    return replace(
        plan,
        notes=(*plan.notes, *bins.notes),
        range_searches=bins.searches,
        range_share=bins.searched_share,
    )


# --- bins that grow from zero ----------------------------------------------------------------------------------------


def grow_bins(bins: NumberBins, given: Collection[str] = ()) -> NumberBins:
    """Return bins that grow from zero, for numbers without given bins or a private range."""
    growing, declared = [], list(bins.declared)
    for place, each in enumerate(bins.declared):
        if each.edges and each.name not in given and place not in bins.ranges:
            growing.append(place)
            declared[place] = replace(each, edges=split_near_zero(each.edges, each.step))
    return replace(bins, declared=tuple(declared), growing=tuple(growing))


def split_near_zero(edges: Sequence[Fraction], step: Fraction) -> tuple[Fraction, ...]:
    """Return edges with more of them between zero and the nearest ones, and a bin for zero alone.

    >>> [str(edge) for edge in split_near_zero([Fraction(0), Fraction(8), Fraction(16)], Fraction(1))]
    ['0', '1', '2', '4', '8', '16']
    """
    low, high, zero = edges[0], edges[-1], Fraction(0)
    factor, most = TWO_SIDES if low < 0 < high - step else ONE_SIDE
    above = [edge for edge in edges if edge > max(low, zero)][:1]
    below = [-edge for edge in edges if edge < min(high, zero)][-1:]
    found = {sign * place for sign, far in ((1, above), (-1, below)) for place in _parts(far, factor, most, step)}
    found |= {zero, step} if low <= 0 < high else set()
    return tuple(sorted({*edges, *(edge for edge in found if low < edge < high)}))


def _parts(far: Sequence[Fraction], factor: int, most: int, step: Fraction) -> list[Fraction]:
    """Return the edges between zero and a far end: multiples of the step, each a fraction of the one before."""
    return [end / factor**number // step * step for end in far for number in range(1, most + 1)]


def trim_bins(
    pairs: Pairs, attributes: Sequence[Attribute], trimmed: Sequence[int], std: float
) -> tuple[dict[tuple[int, int], Floats], list[Attribute]]:
    """Leave out bins at the ends of some attributes, where noise hides all rows; two are kept."""
    kept, found = [slice(0, attribute.size) for attribute in attributes], list(attributes)
    for column in trimmed:
        counts, error = column_counts(pairs, column, std)
        first = _unseen(counts, error)
        last = len(counts) - _unseen(counts[::-1], error)
        if last - first < 2:  # a fit needs two bins
            first = int(np.argmax(counts[:-1] + counts[1:]))
            last = first + 2
        kept[column] = slice(first, last)
        found[column] = replace(attributes[column], edges=attributes[column].edges[first : last + 1])
    return {(i, j): table[kept[i], kept[j]] for (i, j), table in pairs.items()}, found


def column_counts(pairs: Pairs, column: int, std: float) -> tuple[Floats, float]:
    """Return the noisy counts of a column, from the sums of its pairs, and the standard deviation of their noise."""
    own = [
        table.sum(axis=1) if i == column else table.sum(axis=0) for (i, j), table in pairs.items() if column in (i, j)
    ]
    weights = np.array([len(counts) / table.size for counts, table in zip(own, _tables_of(pairs, column), strict=True)])
    return np.asarray(weights @ np.array(own) / weights.sum()), std / float(weights.sum()) ** 0.5


def _tables_of(pairs: Pairs, column: int) -> list[Floats]:
    return [table for pair, table in pairs.items() if column in pair]


def _unseen(counts: Floats, error: float) -> int:
    """Return how many of the first counts are hidden by noise, each and several together."""
    together = np.cumsum(counts) / np.sqrt(np.arange(1, len(counts) + 1))
    seen = np.flatnonzero(np.maximum(counts, together) > SEEN * error)
    if not len(seen):
        return len(counts)
    # Where several are seen together, the first of those that stand out most is kept.
    up_to = counts[: seen[0] + 1][::-1]
    return int(seen[0] - np.argmax(np.cumsum(up_to) / np.sqrt(np.arange(1, len(up_to) + 1))))


def trim_note(before: Attribute, after: Attribute) -> list[str]:
    """Say which bins were left out."""
    if before.edges == after.edges:
        return []
    low, high = (float(edge) for edge in (after.edges[0], after.edges[-1]))
    return [
        f"synthetic values of {after.name} lie from {low:g} to {high:g}: beyond, rows are too few to tell from noise"
    ]
