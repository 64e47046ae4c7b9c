"""Noisy counts over several sets of keys in one charge: the marginals that synthetic data and clusters start from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from dither.errors import InvalidParameter, Unsupported
from dither.plan import expressions as expr
from dither.plan.domains import bounds_of, cardinality
from dither.plan.expressions.core import Expr
from dither.plan.measures.core import GroupKey
from dither.plan.measures.sums import Count
from dither.plan.relations.bounding import LimitRowsPerUnit
from dither.plan.relations.core import Relation
from dither.plan.relations.group_by import GroupAggregate, GroupBy
from dither.plan.stability import EstimatedLimit
from dither.plan.traversal import fill_limits
from dither.post.estimate.explain import DEFAULT_GROUP_SIZE, Expected
from dither.post.estimate.prediction import expected_rows
from dither.post.noise import Floats, ScaledNoise
from dither.post.query.typical_rows import typical_rows
from dither.post.statistics.design import frame_column, levels_of
from dither.post.statistics.linear import not_built
from dither.post.statistics.source_rows import Settings, SourceRows
from dither.post.statistics.steps import Released, Step, SteppedStatistic, expected_noise, with_shares
from dither.privacy.protocol import BoundSearch, Calibrate, Measurement
from dither.schema import Boolean, Category, Domain, Number, Reference, Scalar

# Numbers with more values than this are cut into bins.
MOST_VALUES, BINS = 16, 8
# The share of the loss for choosing how many rows of a unit count, and the share of units that have more.
BOUND_SHARE, BOUNDED_UNITS = Fraction(1, 10), Fraction(1, 20)
# Candidates for that bound, in all parts of a request together.
MAX_CANDIDATES, LARGEST_ROWS = 600, 1 << 12

ExpectErrors = Callable[[Sequence[Sequence[Measurement]]], Sequence[Expected]]


@dataclass(frozen=True)
class Attribute:
    """A column with finitely many places: declared values, or bins of a number between `edges`."""

    name: str
    value: Expr
    values: tuple[Scalar, ...]
    edges: tuple[Fraction, ...] = ()
    step: Fraction = Fraction(1)

    @property
    def size(self) -> int:
        """The number of places."""
        return len(self.values) if not self.edges else len(self.edges) - 1

    @property
    def key(self) -> GroupKey:
        """The grouping key of the places; values that are none of them do not count."""
        if not self.edges:
            return GroupKey(self.name, self.value, self.values)
        places = tuple(map(Fraction, range(self.size)))
        return GroupKey(self.name, expr.Bucket(self.value, self.edges[1:-1]), places)

    @property
    def labels(self) -> list[str]:
        """The places in words."""
        if not self.edges:
            return [str(value) for value in self.values]
        ends = [f"{float(edge):g}" for edge in self.edges]
        return [f"{low} to {high}" for low, high in pairwise(ends)]

    def place_of(self, frame: Any) -> Any:
        """Return the places of a frame's values; -1 for a value that has none."""
        values = frame_column(frame, self.name)
        if self.edges:
            cuts = np.array([float(edge) for edge in self.edges[1:-1]])
            return np.searchsorted(cuts, np.array(values, float), side="right")
        places = {value: place for place, value in enumerate(self.values)}
        return np.array([places.get(value, -1) for value in values])

    def middle(self, place: int) -> float:
        """Return the number in the middle of a place."""
        if not self.edges:
            return float(self.values[place])  # type: ignore[arg-type]
        return float(self.edges[place] + self.edges[place + 1] - self.step) / 2

    def draw(self, places: Any, random: np.random.Generator) -> list[Any]:
        """Return values at places: declared ones, or evenly spread over the bin and its lattice."""
        if not self.edges:
            return [plain(self.values[place]) for place in places]
        lows = np.array([float(edge) for edge in self.edges[:-1]])[places]
        highs = np.array([float(edge) for edge in self.edges[1:]])[places]
        return self.values_at(np.floor((lows + (highs - lows) * random.random(len(places))) / float(self.step)))

    def values_at(self, steps: Floats) -> list[Any]:
        """Return the values that are so many steps."""
        if self.step.denominator == 1:
            return [int(count) * int(self.step) for count in steps]
        return [round(float(count) * float(self.step), 10) for count in steps]


def plain(value: Scalar) -> Any:
    """Return a declared value as people write it: a whole rational as an integer, any other as a float."""
    if not isinstance(value, Fraction):
        return value
    return int(value) if value.denominator == 1 else float(value)


def read_attributes(rows: SourceRows, names: Sequence[str], bins: Mapping[str, Any]) -> tuple[Attribute, ...]:
    """Return the attributes of columns; `bins` has the number of bins, or their edges, of some numbers."""
    if unknown := [name for name in bins if name not in names]:
        raise InvalidParameter(f"bins= names {unknown[0]!r}, which is none of the columns")
    return tuple(_attribute(rows, name, bins.get(name)) for name in names)


def _attribute(rows: SourceRows, name: str, bins: Any) -> Attribute:
    """Return the attribute of one column, with a place for NULL if it may be NULL and has declared values."""
    value, domain = rows.expression(name), rows.domain(name)
    match domain:
        case Number() if bins is not None or cardinality(domain) - domain.nullable > MOST_VALUES:
            return Attribute(name, value, (), _edges(name, domain, bins), domain.step)
        case Number(lo=low, step=step):
            first, last = bounds_of(domain)
            values: tuple[Scalar, ...] = tuple(low + step * place for place in range(last - first + 1))
        case Boolean():
            values = (False, True)
        case Category() | Reference():
            values = levels_of(rows.context, name, domain)
        case _:
            raise Unsupported(f"{name} has no declared values to count: give categories, booleans or numbers")
    return Attribute(name, value, (*values, *_null_of(domain)))


def _null_of(domain: Domain) -> tuple[None, ...]:
    return (None,) if domain.nullable else ()


def _edges(name: str, domain: Number, bins: Any) -> tuple[Fraction, ...]:
    """Return the edges of bins over a declared range: as given, or as many of equal width as wanted."""
    if isinstance(bins, Sequence) and not isinstance(bins, str):
        inner = [Fraction(str(edge)) for edge in bins]
        kept = [edge for edge in inner if domain.lo < edge <= domain.hi]
        if inner != sorted(set(inner)) or not kept:
            raise InvalidParameter(f"the bins of {name} must be increasing numbers within its declared range")
        return (domain.lo, *kept, domain.hi + domain.step)
    count = BINS if bins is None else bins
    if isinstance(count, bool) or not isinstance(count, int) or not 2 <= count <= 1000:
        raise InvalidParameter(f"the bins of {name} must be a number from 2 to 1000, or a list of edges")
    steps = bounds_of(domain)[1] - bounds_of(domain)[0] + 1
    count = min(count, steps)
    return tuple(domain.lo + domain.step * (steps * place // count) for place in range(count + 1))


@dataclass(frozen=True)
class MarginalPlan:
    """Counts over several lists of keys, of rows bounded for each unit; `searches` choose the bound.

    `range_searches` choose the private ranges from which bins are cut, for `range_share` of the loss.
    """

    settings: Settings
    relation: Relation
    tables: tuple[tuple[GroupKey, ...], ...]
    searches: tuple[BoundSearch, ...]
    notes: tuple[str, ...]
    range_searches: tuple[BoundSearch, ...] = ()
    range_share: Fraction = Fraction(0)

    @property
    def size(self) -> float:
        """The number of rows that quotes assume: that of the profile or of the noisy sizes, or a thousand."""
        return max(1.0, expected_rows(self.settings.context, self.relation, self.settings.unit) or DEFAULT_GROUP_SIZE)

    def expected_noise(self, measurement: Measurement) -> ScaledNoise:
        """Return the noise that a table's cells will have; a bound that is chosen later is taken to be typical."""
        context, unit = self.settings.context, self.settings.unit
        assumed = {search.tag: typical_rows(context, self.relation, unit) for search in self.searches}
        return expected_noise(context, unit, replace(measurement, measure=fill_limits(measurement.measure, assumed)))

    def error(self, name: str, std_error: float, factor: float, needs_rows: bool = False, given: str = "") -> Expected:
        """Return an expected error, which is unknown until a bound is chosen, or if something is assumed for it."""
        rows, known = self.size if needs_rows else None, not self.searches and not given
        return Expected(name, std_error, factor * std_error, needs_rows, rows, known, given=given)

    def statistic(self, finish: Callable[[Released], Any], expect: ExpectErrors) -> SteppedStatistic[Any]:
        """Make the statistic: the tables share the loss equally, after the bound is chosen."""
        rest = 1 - (BOUND_SHARE if self.searches else 0) - self.range_share
        share = Fraction(rest) / len(self.tables)
        steps = tuple(Step(Count(self.relation, keys), share) for keys in self.tables)
        searches = (*with_shares(self.searches, self.settings, BOUND_SHARE), *self.range_searches)
        return SteppedStatistic(self.settings, (), not_built, expect, self.notes, searches, steps, finish)


def plan_marginals(rows: SourceRows, relation: Relation, tables: Sequence[tuple[GroupKey, ...]]) -> MarginalPlan:
    """Plan counts over several lists of keys; the rows of a unit are limited as given, or by a private quantile."""
    settings, notes = rows.settings, [f"unit of privacy: {rows.settings.unit}"]
    searches: tuple[BoundSearch, ...] = ()
    if relation.stability(settings.context, settings.unit).max_rows is None:
        limit: int | EstimatedLimit = settings.bound.max_rows or EstimatedLimit("rows", LARGEST_ROWS)
        if isinstance(limit, EstimatedLimit):
            searches = (row_search(settings, relation, MAX_CANDIDATES // len(tables)),)
        relation = LimitRowsPerUnit(relation, settings.unit, limit)
        how = f"at most {limit}" if isinstance(limit, int) else "a number chosen privately"
        notes.append(f"rows of each {settings.unit} that count: {how}; rows beyond are left out")
    return MarginalPlan(settings, relation, tuple(tables), searches, tuple(notes))


def row_search(settings: Settings, relation: Relation, candidates: int) -> BoundSearch:
    """Build the search for the number of rows that all but a few units keep to."""
    every = sorted({int(2 ** (half / 2)) for half in range(2 * LARGEST_ROWS.bit_length() - 1)})
    stride = max(1, -(-len(every) // max(2, candidates)))
    bounds = every[::-1][::stride][::-1]
    per_unit = GroupBy(relation, (), (GroupAggregate("rows", "count"),), settings.unit)
    edges = tuple(Fraction(bound + 1) for bound in bounds[:-1])
    histogram = Count(per_unit, (GroupKey("rows", expr.Bucket(expr.ColumnRef("rows"), edges)),))
    mechanism = Calibrate(settings.spend.quantile_kind, settings.spend.loss, (("quantiles", (1 - BOUNDED_UNITS,)),))
    return BoundSearch(histogram, mechanism, tuple(bounds), "rows")


def table_of(released: Released, part: int) -> Floats:
    """Return a released table as an array with an axis for each key."""
    own = released.parts[part]
    shape = own.shape[:-1] if len(own.shape) > 1 else own.shape
    return released.values(part).reshape(shape if prod(shape) == len(own.values) else -1)
