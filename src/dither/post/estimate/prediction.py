"""Predict, from the dataset's profile and noisy sizes, how large groups are and what a question's searches will find.

Nothing here reads or spends anything. A question with conditions or public joins is predicted as if every row
took part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache

import numpy as np
from sqlglot import select

from dither.errors import DitherError
from dither.plan import expressions as expr
from dither.plan.context import Context
from dither.plan.domains import cardinality
from dither.plan.expressions.core import EstimatedValue, Expr
from dither.plan.relations.bounding import LimitGroupsPerUnit, LimitRowsPerUnit
from dither.plan.relations.core import Relation
from dither.plan.relations.filter import Filter
from dither.plan.relations.group_by import GroupBy
from dither.plan.relations.joins import PublicJoin
from dither.plan.relations.mark_join import MarkJoin
from dither.plan.relations.project import Project, Union
from dither.plan.relations.scan import Scan
from dither.plan.sql.scope import Scope
from dither.plan.stability import smallest
from dither.plan.traversal import walk
from dither.post.contribution_bound import ContributionBound
from dither.post.estimate.contribution import EstimatedBound
from dither.post.estimate.profile import (
    Profile,
    ProfiledHistogram,
    quoted_table,
    rows_key,
    search_key,
    sum_key,
    typical_bound,
    without_tags,
)
from dither.post.query.parser import parse_query
from dither.post.query.planner import Planner
from dither.post.query.query_plan import CentreSearch, ContributionSearch, QueryPlan, at_largest_bounds
from dither.post.query.request import bound_search, mechanism_of
from dither.post.query.spend import Spend
from dither.post.query.typical_rows import CLEAR, known_units, row_noise, size_noise
from dither.privacy.contribution_bound import fit_contributions
from dither.privacy.protocol import Measurement
from dither.schema import Boolean, Category, Number

# Sums over several groups of a unit add up to about this many times the size of its whole sum: signs no longer cancel.
UNCANCELLED = 1.25


# --- the size of groups --------------------------------------------------------------------------------------------


def expected_rows(context: Context, relation: Relation, unit: str) -> float | None:
    """Return about how many rows a relation has, from the profile or from noisy sizes; None if neither is known.

    A subquery for each unit has as many rows as there are units, or as their groups allow. Conditions and inner joins
    may leave fewer rows than this.
    """
    match relation:
        case Scan(table=table):
            sizes = profiled_sizes(context, relation, unit)
            return _noisy_rows(context, table, unit) if sizes is None else sizes[1]
        case Union(left=left, right=right):
            sides = [expected_rows(context, side, unit) for side in (left, right)]
            return sum(side or 0 for side in sides) if any(sides) else None
        case _:
            inner = [part for part in vars(relation).values() if isinstance(part, Relation)]
            found = [expected_rows(context, part, unit) for part in inner]
            rows = max((each for each in found if each is not None), default=None)
            return _within_limits(context, relation, unit, rows)


def _noisy_rows(context: Context, table: str, unit: str) -> float | None:
    """Return the noisy number of rows of a table; where noise hides it, at least one for each of many units."""
    rows, units = context.noisy_rows(table), known_units(context, unit) or 0
    hidden = rows is not None and rows < CLEAR * row_noise(context) and units >= CLEAR * size_noise(context)
    return max(rows or 0, units) if hidden else rows


def _within_limits(context: Context, relation: Relation, unit: str, rows: float | None) -> float | None:
    """Return a number of rows, but at most as many as the units may have in a relation."""
    most, units = _most_of_unit(context, relation, unit), expected_units(context, relation, unit)
    if most is None or units is None:
        return rows
    return min(units * most, math.inf if rows is None else rows)


def _most_of_unit(context: Context, relation: Relation, unit: str) -> int | None:
    """Return the most rows that a unit may have in a relation; None if they are not limited, or not known to be."""
    try:
        stability = at_largest_bounds(relation).stability(context, unit)
    except DitherError:
        return None
    most = smallest(stability.max_rows, _groups_of_unit(context, relation))
    return most if stability.tracks_unit else None


def counts_units(context: Context, relation: Relation, unit: str) -> bool:
    """Return True if `expected_rows` is a number of units: of each there is one row, of several in the tables."""
    nodes = list(walk(relation))
    several = any(isinstance(node, Scan) and _most_of_unit(context, node, unit) != 1 for node in nodes)
    single = any(isinstance(node, Relation) and _most_of_unit(context, node, unit) == 1 for node in nodes)
    return several and single and expected_units(context, relation, unit) is not None


def _groups_of_unit(context: Context, relation: Relation) -> int | None:
    """Return the most groups that a unit has in a subquery for each unit; its own key does not divide its rows."""
    if not isinstance(relation, GroupBy) or relation.unit is None:
        return None
    own = set(context.unit(relation.unit).keys.values())
    keys = [key for _, key in relation.keys if not (isinstance(key, expr.ColumnRef) and key.name in own)]
    scope = Scope(at_largest_bounds(relation.child).domain(context))
    domains = [key.domain(scope) for key in keys]
    listed = all(isinstance(domain, Number | Category | Boolean) for domain in domains)
    return math.prod(cardinality(domain) for domain in domains) if listed else None


def drops_rows(relation: Relation) -> bool:
    """Return True if conditions or inner joins may leave out rows that a size or the profile counted."""
    return any(
        isinstance(node, Filter | MarkJoin) or (isinstance(node, PublicJoin) and node.how != "left")
        for node in walk(relation)
    )


def expected_units(context: Context, relation: Relation, unit: str) -> float | None:
    """Return about how many units have rows in a relation: by the profile, or by the noisy number of all units."""
    for node in walk(relation):
        sizes = profiled_sizes(context, node, unit) if isinstance(node, Scan) else None
        if sizes is not None:
            return sizes[0]
    return known_units(context, unit)


def profiled_sizes(context: Context, table: Scan, unit: str) -> tuple[float, float] | None:
    """Return about how many units and rows a table has by the profile, or None if the profile does not say."""
    profile = Profile.of(context.dataset)
    histogram = profile.histograms.get(rows_key(table, unit)) if profile is not None else None
    return None if histogram is None else _sizes(histogram)


@lru_cache(maxsize=64)
def _sizes(histogram: ProfiledHistogram) -> tuple[float, float]:
    """Return the likely number of units and of rows in a histogram of rows."""
    model = fit_contributions([int(cut) for cut in histogram.cuts], histogram.counts, histogram.scale)
    return max(1.0, float(np.median(model.draws.sum(axis=1)))), max(1.0, model.total())


# --- the bounds that searches will choose --------------------------------------------------------------------------


def predict_bounds(
    plan: QueryPlan, profile: Profile, spend: Spend, context: Context, known: Mapping[str, EstimatedBound]
) -> dict[str, EstimatedBound]:
    """Return the bounds that are known, and predict, by tag, what the other searches of a plan will choose."""
    predicted = dict(known)
    for search in plan.searches:
        if search.tag in known or not isinstance(search, ContributionSearch):
            continue
        if (histogram := predicted_histogram(search, profile, context, plan.unit)) is not None:
            own = bound_search(plan, search, spend, context)
            mechanism = mechanism_of(
                Measurement(search.measure, own.mechanism), search.measure.sensitivity(context, plan.unit)
            )
            predicted[search.tag], _ = typical_bound(histogram, mechanism, search, own)
    return predicted


def predicted_histogram(
    search: ContributionSearch, profile: Profile, context: Context, unit: str
) -> ProfiledHistogram | None:
    """Return a histogram from which to guess what a search will find: the same one, or one of all rows and groups."""
    exact, grouped = profile.histogram(search), without_tags(search.measure).child
    if exact is not None or not isinstance(grouped, GroupBy):
        return exact
    if search.quantity is None:
        rows = profile.histograms.get(rows_key(every_row(grouped.child, context), unit))
        return None if rows is None else rows.scale_by(_counts_per_row(grouped))
    keyed = isinstance(grouped.child, GroupBy) and bool(grouped.child.keys)
    per_unit = grouped.child if keyed and isinstance(grouped.child, GroupBy) else grouped
    every = replace(per_unit, child=every_row(per_unit.child, context), keys=())
    found = profile.histograms.get(sum_key(every)) or _plain_sum(every, profile, context, unit)
    return found if found is None or not keyed else found.scale_by(UNCANCELLED)


def every_row(relation: Relation, context: Context) -> Relation:
    """Return the relation below conditions, limits and joins that do not repeat rows."""
    match relation:
        case Filter(child=child) | Project(child=child):
            return every_row(child, context)
        case LimitRowsPerUnit(child=child) | LimitGroupsPerUnit(child=child):
            return every_row(child, context)
        case MarkJoin(left=left):
            return every_row(left, context)
        case PublicJoin(child=child) if relation.multiplicity(context) == 1:
            return every_row(child, context)
        case GroupBy(child=child, keys=(_, *_), aggregates=()):  # a row for each group of a unit: at most one a row
            return every_row(child, context)
        case _:
            return relation


def _counts_per_row(grouped: GroupBy) -> float:
    """Return how many counts a row adds to at most: the summands of the value that is added up."""
    (aggregate,) = grouped.aggregates
    value = aggregate.value
    return 1.0 if value is None else 1.0 + sum(isinstance(node, expr.Arithmetic) for node in walk(value))


def _plain_sum(grouped: GroupBy, profile: Profile, context: Context, unit: str) -> ProfiledHistogram | None:
    """Guess the sizes of units' sums of a column: about its median for each row, or what they add around that."""
    match grouped:
        case GroupBy(child=Scan(table=table), aggregates=(aggregate,)):
            value = aggregate.value
        case _:
            return None
    rows, column = profile.histograms.get(rows_key(grouped.child, unit)), _only_column(value)
    if rows is None or column is None:
        return None
    query = select(f'AVG("{column.name}")').from_(quoted_table(table)).sql()
    try:
        plan = Planner(context, ContributionBound(auto=True)).plan(parse_query(query, context.dataset, unit))
    except DitherError:
        return None
    around = next((s for s in plan.searches if isinstance(s, ContributionSearch) and s.quantity is not None), None)
    centre = _profiled_centre(plan, profile)
    spread = profile.histogram(around) if around is not None else None
    if centre is None or spread is None:
        return None
    by_rows = rows.scale_by(abs(centre)) if centre else None
    return max((each for each in (by_rows, spread) if each is not None), key=_total)


def _only_column(value: Expr | None) -> expr.ColumnRef | None:
    """Return the column that a sum adds up as it is, with 0 for NULL; None for any other sum."""
    match value:
        case expr.Coalesce(children=(expr.ColumnRef() as column, expr.LiteralValue())):
            return column
        case _:
            return None


def _profiled_centre(plan: QueryPlan, profile: Profile) -> float | None:
    """Return the median of units' means around which a plan sums, if the profile has it."""
    search = next((search for search in plan.searches if isinstance(search, CentreSearch)), None)
    found = profile.centres.get(search_key(search)) if search is not None else None
    ranges = [node for each in plan.searches for node in walk(each.measure) if isinstance(node, EstimatedValue)]
    return None if found is None or not ranges else float((ranges[0].lo + found[0] - 1) * ranges[0].step)


def _total(histogram: ProfiledHistogram) -> float:
    """Return about how much all units add; sizes are in the unit of the column."""
    scale = Fraction(max(1, int(1 / min(histogram.cuts)) + 1))
    points = sorted({max(1, round(cut * scale)) for cut in histogram.cuts})
    counts = histogram.counts[: 1 + len(points)]
    return fit_contributions(points, counts, histogram.scale).total() / float(scale)
