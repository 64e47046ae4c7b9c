"""Bins of numbers within private ranges, for counts over keys: a declared range that is far too wide costs little.

A number becomes z, from -1 to 1 within its private range, and bins are cut from z. What lies beyond the range is in its
first or last bin. Where the bins are in raw units is known when the range has been chosen.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import floor

from dither.plan.relations.core import Relation
from dither.post.statistics.core import SourceRows
from dither.post.statistics.design import Design, read_columns, rows_without_null
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
from dither.privacy.protocol import BoundSearch
from dither.schema import Number

# Bins that are narrow around the median, of which a skewed column leaves some empty, and wide at the ends.
NARROW_BINS = tuple(Fraction(cut, 8) for cut in (-8, -4, -2, -1, 0, 1, 2, 4, 8))
BIN_NOTE = "bins of {} are cut from private ranges: values beyond are in the first or last bin; bins= gives others"


@dataclass(frozen=True)
class BinRange(MomentPlan):
    """The private range of one number: bins need no longer one than holds nearly all rows."""

    @property
    def moved_rows(self) -> Fraction:
        """The share of rows beyond the range."""
        return max(MOVED_ROWS, super().moved_rows)


@dataclass(frozen=True)
class PrivateBins:
    """Attributes of which some numbers have bins in private ranges, by place; `cuts` has those bins in z."""

    declared: tuple[Attribute, ...]
    ranges: Mapping[int, BinRange]
    cuts: tuple[Fraction, ...]

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
) -> PrivateBins:
    """Give private ranges to numbers of many steps without given bins, if each unit has one of many rows."""
    settings, declared = rows.settings, tuple(attributes)
    if not has_single_rows(settings, relation):
        return PrivateBins(declared, {}, cuts)
    wide = [place for place, each in enumerate(declared) if each.name not in given and is_wide(rows, each)]
    known = known_rows(relation, settings.context)
    shares = range_shares(known, settings.spend, len(wide)) if wide else None
    if shares is None:
        return PrivateBins(declared, {}, cuts)
    designs = {place: own_design(rows, declared[place].name, place) for place in wide}
    return PrivateBins(declared, {place: BinRange(settings, each, shares) for place, each in designs.items()}, cuts)


def is_wide(rows: SourceRows, attribute: Attribute) -> bool:
    """Return True for a number in bins, of many more steps than bins."""
    is_number = bool(attribute.edges) and isinstance(rows.domain(attribute.name), Number)
    return is_number and read_columns(rows, [attribute.name])[0].is_wide


def own_design(rows: SourceRows, name: str, place: int) -> Design:
    """Return the design of one number, over the rows in which it is not NULL."""
    return Design(rows_without_null(rows, [name]), read_columns(rows, [name]), "private", ROW_REACH, f"_{place}")


def with_private_bins(plan: MarginalPlan, bins: PrivateBins) -> MarginalPlan:
    """Add the searches for private ranges to a plan of counts."""
    return replace(
        plan,
        notes=(*plan.notes, *bins.notes),
        range_searches=bins.searches,
        range_share=bins.searched_share,
    )
