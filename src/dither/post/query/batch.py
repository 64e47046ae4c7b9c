"""Plan several queries for one charge; counts over one table are merged, and cost only their joint sensitivity.

Counts under different conditions are the rows of one matrix over the cells of a common partition. Noise on all of them
costs the largest column norm of that matrix, not their number: ten disjoint ranges cost as much as one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from math import prod

from dither.errors import DitherError, InvalidParameter
from dither.plan import expressions as expr
from dither.plan.context import Context
from dither.plan.domains import cardinality, domain_values
from dither.plan.expressions.core import Expr
from dither.plan.measures.core import GroupKey
from dither.plan.measures.linear import LinearQuery
from dither.plan.measures.sums import Count, Sum
from dither.plan.relations.core import Relation
from dither.plan.relations.filter import Filter
from dither.plan.relations.project import columns_read
from dither.plan.traversal import unfilled_limits
from dither.post.query.public_values import NotEvaluable, value_of
from dither.post.query.query_plan import CellRef, PlannedMeasure, QueryPlan, with_tags
from dither.post.query.request import answer_measurements, bound_searches, default_bound
from dither.post.query.spend import Spend
from dither.privacy.protocol import BoundSearch, Measurement, ReleasedMeasurement
from dither.schema import Boolean, Category, Domain, Number, Scalar

MAX_CELLS = 4096
MAX_WEIGHTS = 1 << 16
MAX_LISTED_VALUES = 128
MAX_CANDIDATE_BOUNDS = 1_000


@dataclass(frozen=True)
class QueryGroup:
    """Queries that one plan answers: a single one, or several counts merged as rows of a matrix.

    `positions` are those of the queries in the batch; the loss is shared in proportion to `weight`.
    """

    positions: tuple[int, ...]
    plan: QueryPlan
    weight: Fraction


@dataclass(frozen=True)
class BatchPlan:
    """The plan of a batch: groups of queries, which share the loss in proportion to their weights."""

    groups: tuple[QueryGroup, ...]

    def spend(self, group: QueryGroup, budget: Spend) -> Spend:
        """Return the share of the loss that a group may spend."""
        return Spend(budget.share(group.weight / sum(other.weight for other in self.groups)))

    def searches(self, budget: Spend, context: Context) -> tuple[BoundSearch, ...]:
        """Build the bound searches of all groups; thin out their candidates if there are too many."""
        per_group = (bound_searches(group.plan, self.spend(group, budget), context) for group in self.groups)
        stride = -(-sum(map(_count_candidate_bounds, self.groups)) // MAX_CANDIDATE_BOUNDS)
        return tuple(
            search if search.rule is None else replace(search, grid=thin_grid(search.grid, stride))
            for searches in per_group
            for search in searches
        )

    def answer_measurements(self, budget: Spend, context: Context) -> tuple[Measurement, ...]:
        """Build the measurements of all groups, in order."""
        per_group = (answer_measurements(group.plan, self.spend(group, budget), context) for group in self.groups)
        return tuple(part for parts in per_group for part in parts)

    def default_bounds(self) -> dict[str, int]:
        """Return the bounds that quotes assume before they are chosen, by tag."""
        return {search.tag: default_bound(search) for group in self.groups for search in group.plan.searches}

    def plan_of(self, position: int, plan: QueryPlan) -> QueryPlan:
        """Return the plan of one query of the batch, whose own plan was `plan`, with the batch's tags of bounds."""
        group, _ = self.slice_of(position)
        return plan if len(group.positions) > 1 else group.plan

    def slice_of(self, position: int) -> tuple[QueryGroup, slice]:
        """Return the group that answers a query, and the slice of its measurements among all."""
        start = 0
        for group in self.groups:
            if position in group.positions:
                return group, slice(start, start + len(group.plan.measures))
            start += len(group.plan.measures)
        raise InvalidParameter(f"the batch has no query {position}")

    def measurements_of(self, position: int, parts: Sequence[Measurement]) -> Sequence[Measurement]:
        """Return the measurements that answer one query."""
        return parts[self.slice_of(position)[1]]


def _count_candidate_bounds(group: QueryGroup) -> int:
    """The number of combinations of candidate bounds at which the kernel computes the cost of a group."""
    candidates = {search.tag: len(search.candidates) for search in group.plan.searches}
    tags_per_measure = ({limit.tag for limit in unfilled_limits(planned.measure)} for planned in group.plan.measures)
    return sum(prod(candidates[tag] for tag in tags) for tags in tags_per_measure if tags)


def thin_grid(grid: tuple[int, ...], stride: int) -> tuple[int, ...]:
    """Keep every `stride`-th bound, counted from the largest, which stays."""
    return grid[::-1][:: max(1, stride)][::-1]


def released_parts_of(
    batch: BatchPlan, position: int, released: Sequence[ReleasedMeasurement]
) -> list[ReleasedMeasurement]:
    """Return the released measurements of one query; of merged counts, the query's own row."""
    group, where = batch.slice_of(position)
    parts = list(released[where])
    if len(group.positions) == 1:
        return parts
    row = group.positions.index(position)
    return [replace(parts[0], values=(parts[0].values[row],), shape=(1,))]


def plan_batch(context: Context, plans: Sequence[QueryPlan]) -> BatchPlan:
    """Merge the counts over one relation into one group each; every other query is a group by itself."""
    counts_by_relation: dict[Relation, list[int]] = {}
    for position, plan in enumerate(plans):
        if _is_mergeable(plan):
            counts_by_relation.setdefault(_strip_filters(plan.question.relation), []).append(position)
    groups: list[QueryGroup] = []
    merged: set[int] = set()
    for positions in counts_by_relation.values():
        group = _merge_counts(context, plans, tuple(positions)) if len(positions) > 1 else None
        if group is not None:
            groups.append(group)
            merged |= set(positions)
    groups += [
        QueryGroup((position,), with_tags(plan, f" {position}") if position else plan, Fraction(1))
        for position, plan in enumerate(plans)
        if position not in merged
    ]
    return BatchPlan(tuple(sorted(groups, key=lambda group: group.positions)))


def _is_mergeable(plan: QueryPlan) -> bool:
    """Return True for a single count without keys whose bound is not chosen privately."""
    question = plan.question
    single = len(plan.measures) == len(plan.sources) == len(question.aggregates) == 1
    return (
        single
        and not plan.keys
        and question.aggregates[0].kind == "count"
        and not plan.searches
        and isinstance(plan.measures[0].measure, Count | Sum)
    )


def _strip_filters(relation: Relation) -> Relation:
    while isinstance(relation, Filter):
        relation = relation.child
    return relation


def _conditions(plan: QueryPlan) -> list[Expr]:
    """The conditions that a row must meet to count."""
    conditions, relation = [], plan.question.relation
    while isinstance(relation, Filter):
        conditions.append(relation.condition)
        relation = relation.child
    aggregate = plan.question.aggregates[0]
    conditions += [expr.Not(expr.IsNull(value)) for value in aggregate.values]
    return conditions + ([aggregate.condition] if aggregate.condition is not None else [])


def _merge_counts(context: Context, plans: Sequence[QueryPlan], positions: tuple[int, ...]) -> QueryGroup | None:
    """Merge counts into one linear query; None if the partition is too large, or a condition cannot be evaluated."""
    base = _strip_filters(plans[positions[0]].question.relation)
    conditions = [
        expr.And(tuple(_conditions(plans[position]))) if _conditions(plans[position]) else None
        for position in positions
    ]
    columns = base.domain(context)
    try:
        axes = _partition(columns, [condition for condition in conditions if condition is not None])
    except (DitherError, NotEvaluable):
        return None
    cells = prod(len(points) for _, points in axes.values())
    if cells > MAX_CELLS or cells * len(positions) > MAX_WEIGHTS:
        return None
    weights = _condition_matrix(axes, conditions)
    if weights is None:
        return None
    measure = LinearQuery(Count(base, tuple(key for key, _ in axes.values())), weights)
    norm = max(sum(column) for column in zip(*weights, strict=True))
    first = plans[positions[0]]
    plan = replace(first, measures=(PlannedMeasure(measure, Fraction(1)),), sources=(CellRef(0, 0, 1, False, None),))
    return QueryGroup(positions, plan, Fraction(max(1, norm)))


Axes = dict[str, tuple[GroupKey, Sequence[Scalar]]]


def _partition(columns: Mapping[str, Domain], conditions: Sequence[Expr]) -> Axes:
    """Partition every column that a condition reads into classes within which no condition changes."""
    axes: Axes = {}
    for name in sorted(set().union(*(columns_read(condition) for condition in conditions))):
        domain = columns[name]
        if isinstance(domain, Number) and cardinality(domain) > MAX_LISTED_VALUES:
            axes[name] = _bucket_axis(name, domain, conditions)
        elif isinstance(domain, Number | Category | Boolean):
            axes[name] = GroupKey(name, expr.ColumnRef(name)), domain_values(domain, MAX_CELLS)
        else:
            raise NotEvaluable
    return axes


def _bucket_axis(name: str, domain: Number, conditions: Sequence[Expr]) -> tuple[GroupKey, tuple[Scalar, ...]]:
    """Cut a wide range at every constant that the column is compared with; each class has one representative value."""
    if domain.nullable:
        raise NotEvaluable
    edges: set[Fraction] = set()
    for condition in conditions:
        _collect_edges(condition, name, edges, domain.step)
    inside = tuple(sorted(edge for edge in edges if domain.lo < edge <= domain.hi))
    if not inside:
        raise NotEvaluable
    return GroupKey(name, expr.Bucket(expr.ColumnRef(name), inside)), (domain.lo, *inside)


def _collect_edges(node: Expr, name: str, edges: set[Fraction], step: Fraction) -> None:
    """Add the constants that a condition compares a column with, and the next value after each, to `edges`."""
    column = expr.ColumnRef(name)
    match node:
        case expr.Compare(_, left, expr.LiteralValue(value)) if left == column:
            edges |= {Fraction(value), Fraction(value) + step}  # type: ignore[arg-type]
        case expr.Compare(_, expr.LiteralValue(value), right) if right == column:
            edges |= {Fraction(value), Fraction(value) + step}  # type: ignore[arg-type]
        case expr.In(child, values) if child == column:
            edges |= {Fraction(v) for v in values} | {Fraction(v) + step for v in values}  # type: ignore[arg-type]
        case expr.IsNull(child) if child == column:
            pass
        case expr.And(children) | expr.Or(children):
            for child in children:
                _collect_edges(child, name, edges, step)
        case expr.Not(child):
            _collect_edges(child, name, edges, step)
        case _ if name in columns_read(node):
            raise NotEvaluable


def _condition_matrix(axes: Axes, conditions: Sequence[Expr | None]) -> tuple[tuple[int, ...], ...] | None:
    """The matrix with 1 where a cell of the partition meets a condition; None if one cannot be evaluated."""
    names = list(axes)
    cells = [dict(zip(names, cell, strict=True)) for cell in product(*(points for _, points in axes.values()))]
    try:
        return tuple(
            tuple(1 if condition is None or value_of(condition, cell) is True else 0 for cell in cells)
            for condition in conditions
        )
    except (NotEvaluable, TypeError):
        return None
