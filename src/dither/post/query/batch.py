"""Several questions in one charge: counts over one table are answered together, at the cost of their joint norm.

Counts of rows under different conditions are rows of one linear map over the table's finest partition. Noise on them
all costs the largest column of that map, not their number: ten disjoint ranges cost what one does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from math import prod
from typing import Any

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
from dither.plan.traversal import unfilled_limits
from dither.post.query import request as asking
from dither.post.query.planner import CellRef, PlannedMeasure, QueryPlan, with_tags
from dither.post.query.spend import Spend
from dither.privacy.protocol import BoundSearch, Measurement, ReleasedMeasurement
from dither.schema import Boolean, Category, Domain, Number, Scalar

MOST_CELLS = 4096
MOST_WEIGHTS = 1 << 16
MOST_LISTED = 128
MOST_RUNGS = 1_000


@dataclass(frozen=True)
class MergedQuery:
    """Questions answered by one plan; alone, or merged as rows of a linear map."""

    places: tuple[int, ...]
    plan: QueryPlan
    weight: Fraction


@dataclass(frozen=True)
class BatchPlan:
    """A batch: its groups share the loss by weight."""

    groups: tuple[MergedQuery, ...]

    def spend(self, group: MergedQuery, budget: Spend) -> Spend:
        """What a group may cost."""
        return Spend(budget.share(group.weight / sum(other.weight for other in self.groups)))

    def searches(self, budget: Spend, context: Context) -> tuple[BoundSearch, ...]:
        """How the bounds of all groups are found."""
        own = (asking.bound_searches(group.plan, self.spend(group, budget), context) for group in self.groups)
        found = [search for searches in own for search in searches]
        stride = -(-sum(map(_rungs, self.groups)) // MOST_RUNGS)
        return tuple(replace(search, grid=thin_grid(search.grid, stride)) for search in found)

    def answer_measurements(self, budget: Spend, context: Context) -> tuple[Measurement, ...]:
        """The pieces of all groups, in order."""
        own = (asking.answer_measurements(group.plan, self.spend(group, budget), context) for group in self.groups)
        return tuple(part for parts in own for part in parts)

    def default_bounds(self) -> dict[str, int]:
        """A bound for each that is still to be found."""
        return {search.tag: asking.default_bound(search) for group in self.groups for search in group.plan.searches}

    def plan_of(self, place: int, plan: QueryPlan) -> QueryPlan:
        """The plan of one question, with the tags that its bounds have in the batch."""
        group, _ = self.slice_of(place)
        return plan if len(group.places) > 1 else group.plan

    def slice_of(self, place: int) -> tuple[MergedQuery, slice]:
        """The group that answers a question, and where its pieces stand among all."""
        start = 0
        for group in self.groups:
            if place in group.places:
                return group, slice(start, start + len(group.plan.pieces))
            start += len(group.plan.pieces)
        raise InvalidParameter(f"the batch has no question {place}")

    def parts_of(self, place: int, parts: Sequence[Measurement]) -> Sequence[Measurement]:
        """The parts that answer one question."""
        return parts[self.slice_of(place)[1]]


def _rungs(group: MergedQuery) -> int:
    """At how many bounds the kernel works out what the pieces of a group cost."""
    grids = {search.tag: len(search.grid) for search in group.plan.searches}
    tags = ({auto.tag for auto in unfilled_limits(piece.measure)} for piece in group.plan.pieces)
    return sum(prod(grids[tag] for tag in each) for each in tags if each)


def thin_grid(grid: tuple[int, ...], stride: int) -> tuple[int, ...]:
    """Every so many of the bounds, the largest among them."""
    return grid[::-1][:: max(1, stride)][::-1]


def parts_of_query(whole: BatchPlan, place: int, released: Sequence[ReleasedMeasurement]) -> list[ReleasedMeasurement]:
    """The released parts of one question; of a merged one, its own row."""
    group, where = whole.slice_of(place)
    parts = list(released[where])
    if len(group.places) == 1:
        return parts
    row = group.places.index(place)
    return [replace(parts[0], values=(parts[0].values[row],), shape=(1,))]


def plan_batch(context: Context, plans: Sequence[QueryPlan], budget: Spend) -> BatchPlan:
    """The questions in as few groups as possible."""
    kinds: dict[Relation, list[int]] = {}
    for place, plan in enumerate(plans):
        if _mergeable(plan):
            kinds.setdefault(_base(plan.question.relation), []).append(place)
    groups: list[MergedQuery] = []
    merged: set[int] = set()
    for places in kinds.values():
        group = _merged(context, plans, tuple(places)) if len(places) > 1 else None
        if group is not None:
            groups.append(group)
            merged |= set(places)
    groups += [
        MergedQuery((place,), with_tags(plan, f" {place}") if place else plan, Fraction(1))
        for place, plan in enumerate(plans)
        if place not in merged
    ]
    return BatchPlan(tuple(sorted(groups, key=lambda group: group.places)))


def _mergeable(plan: QueryPlan) -> bool:
    """A single count without keys, of rows that no automatic bound limits."""
    question = plan.question
    simple = len(plan.pieces) == len(plan.sources) == len(question.aggregates) == 1 and not plan.keys
    return (
        simple
        and question.aggregates[0].kind == "count"
        and not plan.searches
        and isinstance(plan.pieces[0].measure, Count | Sum)
    )


def _base(relation: Relation) -> Relation:
    while isinstance(relation, Filter):
        relation = relation.child
    return relation


def _conditions(plan: QueryPlan) -> list[Expr]:
    found, relation = [], plan.question.relation
    while isinstance(relation, Filter):
        found.append(relation.condition)
        relation = relation.child
    aggregate = plan.question.aggregates[0]
    found += [expr.Not(expr.IsNull(value)) for value in aggregate.values]
    return found + ([aggregate.condition] if aggregate.condition is not None else [])


def _merged(context: Context, plans: Sequence[QueryPlan], places: tuple[int, ...]) -> MergedQuery | None:
    """One linear map for several counts, where its partition is small enough to be written down."""
    base = _base(plans[places[0]].question.relation)
    conditions = [expr.And(tuple(_conditions(plans[place]))) if _conditions(plans[place]) else None for place in places]
    columns = base.domain(context)
    try:
        axes = _partition(columns, [condition for condition in conditions if condition is not None])
    except (DitherError, _Unreadable):
        return None
    cells = 1
    for _, points in axes.values():
        cells *= len(points)
    if cells > MOST_CELLS or cells * len(places) > MOST_WEIGHTS:
        return None
    weights = _weights(axes, conditions)
    if weights is None:
        return None
    measure = LinearQuery(Count(base, tuple(key for key, _ in axes.values())), weights)
    norm = max(sum(column) for column in zip(*weights, strict=True))
    first = plans[places[0]]
    plan = replace(first, pieces=(PlannedMeasure(measure, Fraction(1)),), sources=(CellRef(0, 0, 1, False, None),))
    return MergedQuery(places, plan, Fraction(max(1, norm)))


Axes = dict[str, tuple[GroupKey, Sequence[Scalar]]]


def _partition(columns: Mapping[str, Domain], conditions: Sequence[Expr]) -> Axes:
    """For every column that a condition reads, classes within which no condition can change."""
    axes: Axes = {}
    for name in sorted(set().union(*(_reads(condition) for condition in conditions))):
        domain = columns[name]
        if isinstance(domain, Number) and cardinality(domain) > MOST_LISTED:
            axes[name] = _cut(name, domain, conditions)
        elif isinstance(domain, Number | Category | Boolean):
            axes[name] = GroupKey(name, expr.ColumnRef(name)), domain_values(domain, MOST_CELLS)
        else:
            raise _Unreadable
    return axes


def _cut(name: str, domain: Number, conditions: Sequence[Expr]) -> tuple[GroupKey, tuple[Scalar, ...]]:
    """A wide range cut at every constant that the column is compared with; one value stands for each class."""
    if domain.nullable:
        raise _Unreadable
    edges: set[Fraction] = set()
    for condition in conditions:
        _collect(condition, name, edges, domain.step)
    kept = tuple(sorted(edge for edge in edges if domain.lo < edge <= domain.hi))
    if not kept:
        raise _Unreadable
    return GroupKey(name, expr.Bucket(expr.ColumnRef(name), kept)), (domain.lo, *kept)


def _collect(node: Expr, name: str, edges: set[Fraction], step: Fraction) -> None:
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
                _collect(child, name, edges, step)
        case expr.Not(child):
            _collect(child, name, edges, step)
        case _ if name in _reads(node):
            raise _Unreadable


def _weights(axes: Axes, conditions: Sequence[Expr | None]) -> tuple[tuple[int, ...], ...] | None:
    names = list(axes)
    cells = [dict(zip(names, cell, strict=True)) for cell in product(*(points for _, points in axes.values()))]
    try:
        return tuple(
            tuple(1 if condition is None or value_of(condition, cell) is True else 0 for cell in cells)
            for condition in conditions
        )
    except (_Unreadable, TypeError):
        return None


class _Unreadable(Exception):
    """An expression that is not evaluated here; such questions are asked apart."""


def _reads(node: Any) -> set[str]:
    if isinstance(node, expr.ColumnRef):
        return {node.name}
    if isinstance(node, tuple):
        return set().union(*map(_reads, node))
    return set().union(*map(_reads, vars(node).values())) if isinstance(node, Expr) else set()


def value_of(node: Expr, row: Mapping[str, Scalar]) -> Any:
    """The value of a condition on one public cell, three-valued as in SQL."""
    match node:
        case expr.ColumnRef(name):
            return row[name]
        case expr.LiteralValue(value):
            return value
        case expr.IsNull(child):
            return value_of(child, row) is None
        case expr.Not(child):
            inner = value_of(child, row)
            return None if inner is None else not inner
        case expr.And(children):
            return _connected([value_of(child, row) for child in children], False)
        case expr.Or(children):
            return _connected([value_of(child, row) for child in children], True)
        case expr.In(child, values):
            inner = value_of(child, row)
            return None if inner is None else inner in values
        case expr.Compare(op, left, right):
            return _compared(op, value_of(left, row), value_of(right, row))
        case expr.Arithmetic("+" | "-" | "*" as op, left, right):
            return _computed(op, value_of(left, row), value_of(right, row))
        case _:
            raise _Unreadable


def _connected(values: list[Any], wins: bool) -> Any:
    if wins in values:
        return wins
    return None if None in values else not wins


def _compared(op: str, left: Any, right: Any) -> Any:
    if left is None or right is None:
        return None
    tests = {"=": left == right, "<>": left != right}
    if op in tests:
        return tests[op]
    return {"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}[op]


def _computed(op: str, left: Any, right: Any) -> Any:
    if left is None or right is None:
        return None
    return left + right if op == "+" else left - right if op == "-" else left * right
