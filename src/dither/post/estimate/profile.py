"""The profile of a dataset: what units contribute, and where their values lie, measured once and public from then on.

It is one request of the searches that simple questions would make: for each private table the number of units by their
rows, and for each column of numbers the middle of the units' means and the number of units by the size of what they add
around it. Questions whose search the profile has answered need none of their own; quotes predict what a search will
choose.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
from sqlglot import exp, select

from dither.errors import InvalidParameter
from dither.loss import Loss, Pure
from dither.plan import expressions as expr
from dither.plan.context import PROFILE, Context
from dither.plan.expressions.core import EstimatedValue
from dither.plan.measures.sums import Count
from dither.plan.relations.core import Relation
from dither.plan.relations.group_by import GroupAggregate, GroupBy
from dither.plan.traversal import transform, walk
from dither.post.contribution_bound import ContributionBound
from dither.post.estimate.contribution import EstimatedBound
from dither.post.query.parser import parse_query
from dither.post.query.planner import Planner
from dither.post.query.query_plan import (
    CentreSearch,
    ContributionSearch,
    QueryPlan,
    bound_text,
    fill_chosen,
    with_tags,
)
from dither.post.query.request import bound_search, mechanism_of
from dither.post.query.spend import Spend
from dither.privacy.codec import RESPONSE, decode
from dither.privacy.contribution_bound import bound_errors, fit_contributions
from dither.privacy.mechanisms import Mechanism
from dither.privacy.protocol import BoundRule, BoundSearch, Calibrate, Measurement, Release, Request
from dither.schema import Dataset, Number

# Weights by which the profile's loss is divided: for the rows of units, for the middle of their means of a column, and
# for what they add around it.
ROWS_WEIGHT, CENTRE_WEIGHT, VALUES_WEIGHT = Fraction(3), Fraction(1, 2), Fraction(2)
# A profile's centre replaces a question's own if at most this many times as much would be spent on that.
MAX_RATIO = 3.0
ROWS_OF_UNIT, SIZE_OF_SUM = GroupAggregate("mass", "count"), expr.Absolute(expr.ColumnRef("mass"))


@dataclass(frozen=True)
class ProfileItem:
    """Something that a profile measures: its name for people, the search that it answers, and its share of the loss."""

    name: str
    search: CentreSearch | ContributionSearch
    weight: Fraction


def profile_items(context: Context, unit: str, columns: Sequence[str] = ()) -> tuple[ProfileItem, ...]:
    """List what a profile measures: for every private table of the unit, or only for these "table.column"s."""
    planner, items = Planner(context, ContributionBound(auto=True)), dict[str, ProfileItem]()
    for number, (name, query) in enumerate(_simple_questions(context.dataset, unit, columns)):
        plan = with_tags(planner.plan(parse_query(query, context.dataset, unit)), f" {number}")
        for search in plan.searches:
            if not isinstance(search, ContributionSearch) or search.quantity is not None or "." not in name:
                item = ProfileItem(f"{name}: {_item_text(search)}", search, _weight(search))
                items.setdefault(search_key(search), item)
    return tuple(items.values())


def profile_request(context: Context, unit: str, epsilon: Fraction, items: Sequence[ProfileItem]) -> Request:
    """Build the request of a profile: private medians as searches, histograms as parts, for `epsilon` in all."""
    if not items:
        raise InvalidParameter(f"there is nothing to profile: no unit {unit} can have several rows in a private table")
    total = sum((item.weight for item in items), Fraction(0))
    losses = [Pure(epsilon * item.weight / total) for item in items]
    pairs = list(zip((item.search for item in items), losses, strict=True))
    searches = tuple(
        BoundSearch(search.measure, Calibrate("quantiles", loss), search.candidates, search.tag)
        for search, loss in pairs
        if isinstance(search, CentreSearch)
    )
    parts = tuple(
        Measurement(search.measure, Calibrate("discrete_laplace", loss))
        for search, loss in pairs
        if isinstance(search, ContributionSearch)
    )
    return Request(context.dataset.name, parts, searches, unit=unit)


def _simple_questions(dataset: Dataset, unit: str, columns: Sequence[str]) -> list[tuple[str, str]]:
    """Return the questions whose searches a profile answers, each with the name of its table or column."""
    keys = dataset.units[unit].keys
    tables = [table for table in dataset.tables.values() if table.private and keys.get(table.name) is not None]
    counted = [(table.name, select("COUNT(*)").from_(quoted_table(table.name)).sql()) for table in tables]
    known = {
        f"{table.name}.{column.name}": select(f'AVG("{column.name}")').from_(quoted_table(table.name)).sql()
        for table in tables
        for column in table.columns.values()
        if isinstance(column.domain, Number) and column.name != keys[table.name]
    }
    if unknown := [name for name in columns if name not in known]:
        raise InvalidParameter(f"no column {unknown[0]!r} to profile; there are: {', '.join(known) or 'none'}")
    return [*counted, *((name, query) for name, query in known.items() if not columns or name in columns)]


def quoted_table(name: str) -> exp.Table:
    """Return a table by name, as part of a query."""
    return exp.table_(name, quoted=True)


def _item_text(search: CentreSearch | ContributionSearch) -> str:
    """Say what an item measures."""
    if isinstance(search, CentreSearch):
        return "the median of the units' means"
    return "the units by their rows" if search.quantity is None else "the units by what they add around the median"


def _weight(search: CentreSearch | ContributionSearch) -> Fraction:
    """Return the weight of an item in the profile's loss."""
    if isinstance(search, CentreSearch):
        return CENTRE_WEIGHT
    return VALUES_WEIGHT if search.quantity is not None else ROWS_WEIGHT


# --- what was measured ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProfiledHistogram:
    """Noisy numbers of units by contribution: in rows or in units of the column, cut at `cuts`."""

    cuts: tuple[Fraction, ...]
    counts: tuple[int, ...]
    mechanism: Mechanism

    @property
    def scale(self) -> float:
        """The Laplace scale of the noise."""
        return self.mechanism.std() / math.sqrt(2)

    def scale_by(self, factor: float) -> ProfiledHistogram:
        """Return the histogram of contributions that are `factor` times as large."""
        return replace(self, cuts=tuple(cut * Fraction(factor).limit_denominator(10**6) for cut in self.cuts))

    def in_steps_of(self, search: ContributionSearch) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return edges in the steps of a search, up to its largest candidate, and the counts between them."""
        per_unit = Fraction(search.row_size) if search.quantity is None else 1 / search.quantity
        edges: dict[int, int] = {}
        for cut, count in zip(self.cuts, self.counts[1:], strict=True):
            edge = max(1, round(cut * per_unit))
            if edge <= search.candidates[-1]:
                edges[edge] = edges.get(edge, 0) + count
        return tuple(edges), (self.counts[0], *edges.values())


@dataclass(frozen=True)
class Profile:
    """The profile of a dataset, by what was measured; centres come with the loss that was spent on them."""

    histograms: Mapping[str, ProfiledHistogram]
    centres: Mapping[str, tuple[int, Loss]]

    @classmethod
    def of(cls, dataset: Dataset) -> Profile | None:
        """Return the profile that a kernel publishes with a schema, or None if there is none."""
        options = next(iter(dataset.tables.values())).source.options
        request, release = (options.get(name) for name in PROFILE)
        return None if request is None or release is None else _read_profile(request, release)

    def histogram(self, search: ContributionSearch) -> ProfiledHistogram | None:
        """Return the histogram that a search would measure, or None."""
        return self.histograms.get(search_key(search))

    def bounding_histogram(self, search: ContributionSearch) -> ProfiledHistogram | None:
        """Return the histogram that a search would measure, or that of all rows if it counts rows that have a value."""
        match search.measure:
            case Count(child=GroupBy(child=relation, keys=(), aggregates=(aggregate,), unit=str(unit))):
                present = search.quantity is None and _counts_present(aggregate)
                return self.histogram(search) or (self.histograms.get(rows_key(relation, unit)) if present else None)
            case _:
                return self.histogram(search)


def _counts_present(aggregate: GroupAggregate) -> bool:
    """Return True for a count of the rows that have a value: nearly all rows, or fewer."""
    match aggregate.value:
        case expr.Case(
            branches=((expr.Not(child=expr.IsNull()), expr.LiteralValue(one)),), default=expr.LiteralValue(0)
        ):
            return one == 1
        case _:
            return False


@lru_cache(maxsize=16)
def _read_profile(request_text: str, release_text: str) -> Profile:
    """Decode a published profile."""
    request = decode(request_text.encode(), Request)
    release = decode(release_text.encode(), Release, RESPONSE)
    histograms = {
        _measure_key(part.measure): ProfiledHistogram(bucket_of(part.measure).edges, found.values, found.mechanism)
        for part, found in zip(request.parts, release.parts, strict=True)
    }
    chosen = zip(request.searches, release.chosen_bounds or (), release.search_results or (), strict=True)
    return Profile(
        histograms, {_centre_key(search.histogram): (number, found.loss) for search, number, found in chosen}
    )


def bucket_of(measure: Any) -> expr.Bucket:
    """Return the buckets by which a histogram counts."""
    bucket = measure.keys[0].value
    if not isinstance(bucket, expr.Bucket):
        raise InvalidParameter("a profile consists of histograms")
    return bucket


def search_key(search: CentreSearch | ContributionSearch) -> str:
    """Return a name of what a search measures, which does not depend on its tags."""
    return _centre_key(search.measure) if isinstance(search, CentreSearch) else _measure_key(search.measure)


def _centre_key(measure: Any) -> str:
    """Return a name of the means that a private median is taken of."""
    return repr(without_tags(measure).child)


def _measure_key(measure: Any) -> str:
    """Return a name of a histogram's relation and of the value that it counts by; the cuts are no part of it."""
    plain = without_tags(measure)
    return repr((plain.child, bucket_of(plain).child))


def rows_key(relation: Relation, unit: str) -> str:
    """Return the name of the histogram of the rows that units have in a relation."""
    return repr((GroupBy(relation, (), (ROWS_OF_UNIT,), unit), expr.ColumnRef("mass")))


def sum_key(per_unit: GroupBy) -> str:
    """Return the name of the histogram of the sizes of units' sums."""
    return repr((per_unit, SIZE_OF_SUM))


def without_tags(node: Any) -> Any:
    """Return a node without the tags of chosen values, which differ from plan to plan."""

    def rename(part: Any) -> Any:
        return replace(part, tag="", value=None) if isinstance(part, EstimatedValue) else part

    return transform(node, rename)


# --- in words ------------------------------------------------------------------------------------------------------

SHARES = (0.5, 0.95, 0.99)


def profile_lines(context: Context, unit: str) -> list[str]:
    """Describe the profile that a kernel publishes, a sentence for each thing measured; none without a profile."""
    profile = Profile.of(context.dataset)
    if profile is None:
        return []
    items = profile_items(context, unit)
    ranges = {
        node.tag: node for item in items for node in walk(item.search.measure) if isinstance(node, EstimatedValue)
    }
    lines = (_item_line(profile, item, ranges) for item in items)
    return [line for line in lines if line]


def _item_line(profile: Profile, item: ProfileItem, ranges: Mapping[str, EstimatedValue]) -> str:
    """Describe one thing measured, or return nothing if the profile lacks it."""
    subject = item.name.partition(":")[0]
    if isinstance(item.search, CentreSearch):
        found, place = profile.centres.get(search_key(item.search)), ranges.get(item.search.tag)
        if found is None or place is None:
            return ""
        centre = float((place.lo + found[0] - 1) * place.step)
        return f"{subject}: the median of the units' means is about {centre:,.4g}"
    histogram = profile.histogram(item.search)
    if histogram is None:
        return ""
    points, counts = _without_noise(histogram, item.search).in_steps_of(item.search)
    reached = np.searchsorted(np.cumsum(counts), np.array(SHARES) * sum(counts))
    per_step = item.search.quantity or Fraction(1, item.search.row_size)
    limits = [float(points[min(int(place), len(points) - 1)] * per_step) for place in reached]
    sizes = [f"{100 * share:.0f}% below {limit:,.4g}" for share, limit in zip(SHARES, limits, strict=True)]
    counted = "rows" if item.search.quantity is None else "in absolute value, added around that median"
    return f"{subject}: of about {sum(counts):,} units, {', '.join(sizes)} {counted}"


def share_beyond(context: Context, unit: str, table: str, rows: int) -> tuple[float, float] | None:
    """Return the share of a table's rows that units have beyond `rows`, by the profile: about, and at most.

    None if there is no profile of the table.
    """
    profile = Profile.of(context.dataset)
    items = profile_items(context, unit) if profile is not None else ()
    for search in (item.search for item in items if item.name.partition(":")[0] == table):
        histogram = None if isinstance(search, CentreSearch) or profile is None else profile.histogram(search)
        if histogram is not None and isinstance(search, ContributionSearch) and search.quantity is None:
            points, counts = histogram.in_steps_of(search)
            top, size = search.candidates[-1], search.row_size
            model = fit_contributions(points, counts, histogram.scale, search.step, top, size)
            bound = EstimatedBound(rows * size, model)
            return bound.removed_share, bound.removed_share_high
    return None


# --- used by questions and quotes ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProfiledPlan:
    """A plan whose searches the profile has answered as far as it can, and the bounds that it gave, by tag."""

    plan: QueryPlan
    bounds: Mapping[str, EstimatedBound]


def use_profile(plan: QueryPlan, profile: Profile | None, spend: Spend, context: Context) -> ProfiledPlan:
    """Fill in the centres and bounds that a profile knows about as well as the question's own searches would."""
    if profile is None or not plan.searches:
        return ProfiledPlan(plan, {})
    limits: dict[str, int] = {}
    bounds: dict[str, EstimatedBound] = {}
    for search in plan.searches:
        own = bound_search(plan, search, spend, context)
        if isinstance(search, CentreSearch):
            found = profile.centres.get(search_key(search))
            if found is not None and found[0] in search.candidates and _is_precise(found[1], spend, search):
                limits[search.tag] = found[0]
        elif (histogram := profile.bounding_histogram(search)) is not None and _centres_of(search) <= limits.keys():
            known = _known_bound(histogram, search, own, plan.unit, context)
            at_most = profile.histogram(search) is None
            bounds |= {} if known is None else {search.tag: replace(known, at_most=at_most)}
    limits |= {tag: bound.bound for tag, bound in bounds.items()}
    rest = tuple(search for search in plan.searches if search.tag not in limits)
    notes = (*plan.notes, PROFILE_NOTE) if limits else plan.notes
    return ProfiledPlan(fill_chosen(replace(plan, searches=rest, notes=notes), limits), bounds)


PROFILE_NOTE = "contribution bounds or centres come from the dataset's profile, and cost this query nothing"


def _known_bound(
    histogram: ProfiledHistogram, search: ContributionSearch, own: BoundSearch, unit: str, context: Context
) -> EstimatedBound | None:
    """Return the bound that a profile leads to, or None if the question's own search will probably do better.

    The own search costs a share of the loss, and so makes the answer noisier; the profile's histogram may be noisier
    than that of the own search.
    """
    mechanism = mechanism_of(Measurement(own.histogram, own.mechanism), own.histogram.sensitivity(context, unit))
    _, searched_error = typical_bound(histogram, mechanism, search, own)
    known, known_error = _bound_from(histogram, histogram.mechanism, search, own, 1 - search.share)
    return known if known_error <= searched_error else None


def typical_bound(
    histogram: ProfiledHistogram, mechanism: Mechanism, search: ContributionSearch, own: BoundSearch
) -> tuple[EstimatedBound, float]:
    """Predict a search: what it would choose from the likeliest counts, with the noise of `mechanism` around them.

    This changes little with the noise, unlike a search with made-up noise, so that quotes fall as epsilon grows.
    """
    likely = _without_noise(histogram, search)
    return _bound_from(likely, mechanism, search, own, Fraction(1))


def _bound_from(
    histogram: ProfiledHistogram, mechanism: Mechanism, search: ContributionSearch, own: BoundSearch, noise: Fraction
) -> tuple[EstimatedBound, float]:
    """Choose a bound from a histogram as a kernel would, if answers had `noise` times the noise; and its squared error.

    The histogram has the noise of `mechanism`.
    """
    return _bound_at(*histogram.in_steps_of(search), mechanism, search, own, noise)


def _bound_at(
    points: tuple[int, ...],
    counts: Sequence[int],
    mechanism: Mechanism,
    search: ContributionSearch,
    own: BoundSearch,
    noise: Fraction,
) -> tuple[EstimatedBound, float]:
    """Choose a bound from counts of units between points, which have the noise of `mechanism`."""
    if not isinstance(own.rule, BoundRule):
        raise InvalidParameter("a contribution bound is chosen by a rule")
    rule, scale = replace(own.rule, points=points, noise=own.rule.noise * noise), mechanism.std() / math.sqrt(2)
    model = fit_contributions(points, counts, scale, search.step, search.candidates[-1], search.row_size)
    errors = bound_errors(model, own.grid, rule)
    place = int(np.argmin(errors))
    bound, seen = own.grid[place], bound_text(round(model.seen), search)
    text = bound_text(bound, search)
    return EstimatedBound(bound, model, search.signed, text, seen, search.row_size), float(errors[place])


def _without_noise(histogram: ProfiledHistogram, search: ContributionSearch) -> ProfiledHistogram:
    """Return a histogram with the likeliest counts, instead of the noisy ones."""
    points, counts = histogram.in_steps_of(search)
    model = fit_contributions(points, counts, histogram.scale, search.step, search.candidates[-1], search.row_size)
    likely = np.maximum(np.median(model.draws, axis=0), 0).round()
    unused = len(histogram.counts) - len(likely)
    return replace(histogram, counts=(*map(int, likely), *[0] * unused))


def _centres_of(search: ContributionSearch) -> set[str]:
    """Return the tags of the centres around which a search sums."""
    return {node.tag for node in walk(search.measure) if isinstance(node, EstimatedValue)}


def _is_precise(loss: Loss, spend: Spend, search: CentreSearch) -> bool:
    """Return True if as much was spent on a centre as the question would spend, or nearly."""
    wanted = spend.share(search.share)
    wanted_epsilon = wanted.epsilon if isinstance(wanted, Pure) else math.sqrt(2 * wanted.rho)
    return isinstance(loss, Pure) and float(wanted_epsilon) <= MAX_RATIO * float(loss.epsilon)
