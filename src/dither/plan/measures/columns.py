"""Counts by key and column: a table to release, whose columns filter the same rows and have noise of their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod

from sqlglot import exp

from dither.errors import InvalidPlan, Unsupported
from dither.loss import Sensitivity
from dither.plan.context import Context
from dither.plan.expressions.core import ColumnRef, Expr, LiteralValue
from dither.plan.expressions.logic import And, Case, Compare, In
from dither.plan.measures.core import (
    Axis,
    GroupKey,
    Measure,
    VectorQuery,
    axis_of,
    require_row_bound,
    stability_of,
)
from dither.plan.measures.grouped import (
    encode_axes,
    grouped_select,
    keyed_subquery,
    numeric_domains,
    sums_sensitivity,
)
from dither.plan.relations.core import Relation
from dither.plan.sql.builders import Sql, count_star
from dither.plan.sql.scope import Scope
from dither.plan.sql.statement import SqlStatement, column_ref
from dither.plan.stability import Stability

MAX_TABLE_CELLS = 1 << 56  # numbers of cells fit into 64 bits
MAX_COLUMNS = 256
MAX_SPLITS = 10_000


@dataclass(frozen=True)
class CountColumn:
    """A column of counts: the rows for which the condition is true, or all rows."""

    name: str
    condition: Expr | None = None


@dataclass(frozen=True)
class ColumnCounts(Measure):
    """For each key and column, the rows that the column counts; one row counts in few columns, most often in one."""

    proof = "column_counts.md"
    child: Relation
    columns: tuple[CountColumn, ...]
    keys: tuple[GroupKey, ...] = ()

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        if not 1 <= len(names) <= MAX_COLUMNS or len(set(names)) != len(names):
            raise InvalidPlan(f"a table needs 1 to {MAX_COLUMNS} columns with different names, got {len(names)}")

    def axes(self, ctx: Context) -> tuple[Axis, ...]:
        columns = self.child.domain(ctx)
        axes = tuple(axis_of(ctx, key, columns) for key in self.keys)
        if prod(len(axis.values) for axis in axes) * len(self.columns) > MAX_TABLE_CELLS:
            raise Unsupported(f"a table may have at most {MAX_TABLE_CELLS} cells; use fewer or coarser keys")
        return axes

    def steps(self, ctx: Context) -> tuple[Fraction, ...]:
        numeric_domains(ctx, self.child, self.summands())
        return (Fraction(1),) * len(self.columns)

    def sensitivity(self, ctx: Context, unit: str) -> Sensitivity:
        overlap = max(map(len, self._column_sets(ctx)), default=0)
        keys, domains = tuple(key.value for key in self.keys), self.child.domain(ctx)
        bound, cells = stability_of(ctx, self.child, unit), self._key_count(ctx)
        groups = sums_sensitivity(bound, unit, [1], cells, keys, domains).l0
        summed = sums_sensitivity(bound, unit, [1] * overlap, cells, keys, domains)
        return replace(summed, l0=min(summed.l1, groups * len(self.columns)))

    def weighted_square(self, ctx: Context, unit: str, weights: Sequence[Fraction]) -> Fraction:
        """Return the most by which one unit changes the table, as the sum of squared changes times column weights."""
        bound = stability_of(ctx, self.child, unit)
        rows = require_row_bound(bound, unit)
        sets = self._column_sets(ctx)
        heaviest = max((sum((weights[c] for c in each), Fraction(0)) for each in sets), default=Fraction(0))
        keys, domains = tuple(key.value for key in self.keys), self.child.domain(ctx)
        squared_rows = sums_sensitivity(bound, unit, [1], self._key_count(ctx), keys, domains).l2_squared
        limits = self._column_limits(ctx, bound)
        if limits is None:
            return squared_rows * heaviest
        return min(squared_rows * heaviest, worst_split(weights, limits, rows))

    def _key_count(self, ctx: Context) -> int:
        """Return the number of keys."""
        return prod(len(axis.values) for axis in self.axes(ctx))

    def _column_sets(self, ctx: Context) -> list[frozenset[int]]:
        """Return sets of columns such that every row counts in columns of one of them only.

        Every way of telling columns apart by a column of the data is right: the one with the smallest sets is used.
        """
        ways = [list(self._sets_by(ctx, name)) for name in self._separating_columns()]
        every = [frozenset(range(len(self.columns)))]
        return min([every, *ways], key=lambda sets: max(map(len, sets)))

    def _separating_columns(self) -> list[str]:
        """Return the columns of the data that conditions restrict to listed values."""
        parts = [part for column in self.columns for part in conjuncts(column.condition)]
        return sorted({name for part in parts if (name := restricted_column(part)) is not None})

    def _sets_by(self, ctx: Context, name: str) -> Iterator[frozenset[int]]:
        """Yield, for each value of a column of the data and for every other value, the columns that may count it."""
        allowed = [self._allowed_values(ctx, column, name) for column in self.columns]
        for value in {value for values in allowed if values is not None for value in values}:
            yield frozenset(c for c, values in enumerate(allowed) if values is None or value in values)
        yield frozenset(c for c, values in enumerate(allowed) if values is None)

    def _allowed_values(self, ctx: Context, column: CountColumn, name: str) -> frozenset[object] | None:
        """Return the encoded values of a column of the data that a condition allows; None if it allows others."""
        scope = Scope(self.child.domain(ctx))
        allowed: frozenset[object] | None = None
        for part in conjuncts(column.condition):
            if restricted_column(part) == name:
                values = frozenset((type(v), v) for v in listed_values(part, scope))
                allowed = values if allowed is None else allowed & values
        return allowed

    def _column_limits(self, ctx: Context, bound: Stability) -> list[int] | None:
        """Return the most rows of one unit in each column, if the child bounds them and no row counts twice."""
        domains = self.child.domain(ctx)
        for name in self._separating_columns():
            per_value = bound.per_key
            if per_value is None or not per_value.applies_to((ColumnRef(name),), domains):
                continue
            allowed = [self._allowed_values(ctx, column, name) for column in self.columns]
            listed = [values for values in allowed if values is not None]
            if len(listed) == len(allowed) and len(frozenset().union(*listed)) == sum(map(len, listed)):
                return [min(len(values), per_value.max_groups) * per_value.max_rows for values in listed]
        return None

    def summands(self) -> tuple[Expr, ...]:
        """Return the counts as sums of 1, and of NULL, which adds nothing, for rows that a column does not count."""
        one, nothing = LiteralValue(1), LiteralValue(None)
        return tuple(one if c.condition is None else Case(((c.condition, one),), nothing) for c in self.columns)

    def vector_query(self, statement: SqlStatement) -> VectorQuery:
        if max(map(len, self._column_sets(statement.ctx))) <= 1:
            return self._disjoint_query(statement)
        scope = statement.scope(self.child)
        keys = encode_axes(statement.ctx, self.keys, self.axes(statement.ctx), scope)
        table = keyed_subquery(statement, self.child, self.keys, keys, self.summands(), ())
        counts: list[Sql] = [exp.Count(this=column_ref(f"v{i}")) for i in range(len(self.columns))]
        return VectorQuery(grouped_select(statement, table, len(self.keys), counts), keys, len(counts))

    def _disjoint_query(self, statement: SqlStatement) -> VectorQuery:
        """Return SQL that groups by keys and by the number of the one column that counts a row: half the work."""
        numbers = tuple(range(len(self.columns)))
        everything = LiteralValue(True)
        branches = tuple((c.condition or everything, LiteralValue(i)) for i, c in enumerate(self.columns))
        keys = (*self.keys, GroupKey("column", Case(branches, LiteralValue(None)), numbers))
        axes = (*self.axes(statement.ctx), Axis("column", numbers))
        encoded = encode_axes(statement.ctx, keys, axes, statement.scope(self.child))
        table = keyed_subquery(statement, self.child, keys, encoded, (), ())
        return VectorQuery(grouped_select(statement, table, len(keys), [count_star()]), encoded, 1)


def conjuncts(condition: Expr | None) -> Iterator[Expr]:
    """Yield the conditions that are joined by AND."""
    match condition:
        case None:
            return
        case And(children=children):
            for child in children:
                yield from conjuncts(child)
        case _:
            yield condition


def restricted_column(part: Expr) -> str | None:
    """Return the column that a condition compares with listed constants, or None."""
    match part:
        case Compare(op="=", left=ColumnRef(name=name), right=LiteralValue(value=value)) if value is not None:
            return name
        case In(child=ColumnRef(name=name)):
            return name
        case _:
            return None


def listed_values(part: Expr, scope: Scope) -> list[int | str | bool]:
    """Return the encoded constants that a condition allows its column to equal."""
    match part:
        case Compare(left=ColumnRef() as column, right=LiteralValue(value=value)):
            return In(column, (value,)).encoded_values(column.domain(scope))
        case In(child=child):
            return part.encoded_values(child.domain(scope))
        case _:
            return []


def worst_split(weights: Sequence[Fraction], limits: Sequence[int], rows: int) -> Fraction:
    """Return the most of the sum of weights times squared rows, for at most `rows` rows and `limits` in each column.

    Every column is full or empty, except one that has what the full ones leave. After MAX_SPLITS steps the search gives
    up and returns an upper bound. Proof: column_counts.md.
    """
    order = sorted(range(len(weights)), key=lambda c: weights[c] * limits[c], reverse=True)
    best, steps = Fraction(0), 0
    pending: list[tuple[int, int, Fraction, list[int]]] = [(0, rows, Fraction(0), [])]
    while pending:
        depth, left, value, rest = pending.pop()
        if (steps := steps + 1) > MAX_SPLITS:
            return _linear_split(weights, limits, rows, order)
        if value + _linear_split(weights, limits, left, [*rest, *order[depth:]]) <= best:
            continue
        if depth == len(order):
            best = max(best, value + sum(weights[c] * min(limits[c], left) ** 2 for c in rest))
            continue
        column = order[depth]
        pending.append((depth + 1, left, value, rest))
        if not rest:
            pending.append((depth + 1, left, value, [column]))
        if limits[column] <= left:
            full = weights[column] * limits[column] ** 2
            pending.append((depth + 1, left - limits[column], value + full, rest))
    return best


def _linear_split(weights: Sequence[Fraction], limits: Sequence[int], rows: int, order: Sequence[int]) -> Fraction:
    """Return an upper bound of the worst split: a row in a column adds at most its weight times its limit."""
    total = Fraction(0)
    for column in order:
        taken = min(limits[column], rows)
        total, rows = total + weights[column] * limits[column] * taken, rows - taken
    return total
