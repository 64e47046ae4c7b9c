"""Part of the former access.measure."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import prod
from typing import Any

from sqlglot import exp

from dither.errors import InvalidPlan, Unsupported
from dither.loss import Sensitivity
from dither.plan.context import Context
from dither.plan.domains import Lattice, bounds_of, index_of
from dither.plan.expressions.core import ColumnRef, Expr, LiteralValue, constant_value, domain_of
from dither.plan.measures.core import (
    MOST_CELLS,
    SATURATED,
    Axis,
    GroupKey,
    Measure,
    VectorQuery,
    axis_of,
    bounded_sensitivity,
    stability_of,
)
from dither.plan.relations.core import Relation
from dither.plan.sql.builders import Sql, and_, detached, fits_64_bits, integer, is_null, or_, rows_count, select
from dither.plan.sql.scope import Scope
from dither.plan.sql.statement import SqlStatement, column_ref, saturate, with_alias
from dither.plan.stability import PerKeyBound, Stability
from dither.schema import Domain, Number


def sums_sensitivity(
    found: Stability,
    unit: str,
    sizes: Sequence[int],
    cells: int,
    keys: tuple[Expr, ...],
    columns: Mapping[str, Domain],
) -> Sensitivity:
    """The joint sensitivity of sums of values of at most these sizes, grouped by `keys` of `columns` into `cells`."""
    rows = bounded_sensitivity(found, unit)
    moving = [size for size in sizes if size]
    most, one, two = max(moving, default=0), sum(moving), sum(size * size for size in moving)
    groups, each, squares = min(rows, cells), rows, rows * rows
    ones = rows
    if found.per_key is not None and found.per_key.means(keys, columns) and rows:
        groups, each, ones, squares = _by_key(found.per_key, rows, cells)
    return Sensitivity(*(Fraction(norm) for norm in (groups * len(moving), each * most, ones * one, squares * two)))


def _by_key(bound: PerKeyBound, rows: int, cells: int) -> tuple[int, int, int, int]:
    """Groups, rows in one group, rows in all, and the largest sum of squares of rows per group."""
    groups, each = min(bound.max_groups, cells, rows), min(bound.max_rows, rows)
    ones = min(rows, groups * each)
    full, rest = divmod(ones, each)
    return groups, each, ones, full * each * each + rest * rest


class GroupedMeasure(Measure):
    """Sums of values over declared keys."""

    proof = "sums.md"
    child: Relation
    keys: tuple[GroupKey, ...]

    @abstractmethod
    def summed(self) -> tuple[Expr, ...]:
        """What is summed; NULL adds nothing."""

    def axes(self, ctx: Context) -> tuple[Axis, ...]:
        columns = self.child.domain(ctx)
        axes = tuple(axis_of(ctx, key, columns) for key in self.keys)
        if prod(len(axis.values) for axis in axes) * len(self.summed()) > MOST_CELLS:
            raise Unsupported(f"an answer may have at most {MOST_CELLS} cells; group by fewer or coarser keys")
        return axes

    def steps(self, ctx: Context) -> tuple[Fraction, ...]:
        return tuple(domain.step for domain in numeric_domains(ctx, self.child, self.summed()))

    def sensitivity(self, ctx: Context, unit: str) -> Sensitivity:
        found = stability_of(ctx, self.child, unit)
        sizes = [max(map(abs, bounds_of(domain))) for domain in numeric_domains(ctx, self.child, self.summed())]
        cells = prod(len(axis.values) for axis in self.axes(ctx))
        keys, columns = tuple(key.value for key in self.keys), self.child.domain(ctx)
        return sums_sensitivity(found, unit, sizes, cells, keys, columns)

    def plan(self, statement: SqlStatement) -> VectorQuery:
        scope = statement.scope(self.child)
        keys = declared_keys(statement.ctx, self.keys, self.axes(statement.ctx), scope)
        table = with_keys(statement, self.child, self.keys, keys, self.summed(), ())
        totals = [self._total(statement, index, value) for index, value in enumerate(self.summed())]
        return VectorQuery(grouped_select(statement, table, len(self.keys), totals), keys, len(totals))

    def _total(self, statement: SqlStatement, index: int, value: Expr) -> Sql:
        if value == LiteralValue(1):
            return saturate(rows_count(), SATURATED)
        return saturate(statement.dialect.total(column_ref(f"v{index}")), SATURATED)


def numeric_domains(ctx: Context, child: Relation, values: tuple[Expr, ...]) -> list[Number]:
    """The domains of what is summed."""
    scope = Scope(child.domain(ctx))
    domains = [domain_of(value, scope) for value in values]
    for domain in domains:
        if not isinstance(domain, Number):
            raise InvalidPlan("only numbers can be summed; count with a condition instead")
    return [domain for domain in domains if isinstance(domain, Number)]


def declared_keys(
    ctx: Context, keys: tuple[GroupKey, ...], axes: tuple[Axis, ...], scope: Scope
) -> tuple[Sequence[Any], ...]:
    """Each axis in the form in which the engine holds its values; what is off the lattice can never occur."""
    domains = [key.value.domain(scope) for key in keys]
    found: list[Sequence[Any]] = []
    for axis, domain in zip(axes, domains, strict=True):
        if isinstance(axis.values, Lattice):
            found.append(axis.values.held)
            continue
        held = tuple(index_of(value, domain) for value in axis.values)
        if any(h is None and value is not None for h, value in zip(held, axis.values, strict=True)):
            raise InvalidPlan(f"a listed value of the key {axis.name[:40]!r} is not on its lattice")
        if any(isinstance(h, int) and not fits_64_bits(h) for h in held):
            raise InvalidPlan(f"a listed value of the key {axis.name[:40]!r} does not fit into 64 bits")
        found.append(held)
    return tuple(found)


def with_keys(
    statement: SqlStatement,
    child: Relation,
    keys: tuple[GroupKey, ...],
    held: tuple[Sequence[Any], ...],
    values: tuple[Expr, ...],
    hidden: Sequence[str],
) -> exp.Table:
    """A subquery of keys k0.., values v0.., hidden columns and corrections; rows with unlisted keys left out."""
    scope = statement.scope(child)
    picked = [with_alias(_group_columns(statement, child, key, scope), f"k{index}") for index, key in enumerate(keys)]
    picked += [with_alias(value.sql(scope), f"v{index}") for index, value in enumerate(values)]
    hidden = [*hidden, *statement.trials()]
    body = select(*picked, *(column_ref(column) for column in hidden), column_ref("b")).from_(
        statement.table(child), copy=False
    )
    listed_keys = [_among(column_ref(f"k{i}"), held[i]) for i, key in enumerate(keys) if key.values is not None]
    if not listed_keys:
        return statement.add(body)
    columns = [*(f"k{i}" for i in range(len(keys))), *(f"v{i}" for i in range(len(values))), *hidden, "b"]
    return statement.add(
        select(*map(column_ref, columns)).from_(statement.add(body), copy=False).where(and_(listed_keys), copy=False)
    )


def _group_columns(statement: SqlStatement, child: Relation, key: GroupKey, scope: Scope) -> Sql:
    """A key as groups are told apart by it: a packed text stays packed where it is compared with nothing."""
    if isinstance(key.value, ColumnRef) and key.values is None and key.value.name in scope.columns:
        column = f"c{list(scope.columns).index(key.value.name)}"
        if column in child.packed(statement):
            return column_ref(column)
    return key.value.sql(scope)


def _among(value: Sql, held: Sequence[int | str | bool | None]) -> Sql:
    listed_values = exp.In(this=detached(value), expressions=[constant_value(v) for v in held if v is not None])
    empty = is_null(value)
    if None not in held:
        return listed_values
    return or_([listed_values, empty]) if len(held) > 1 else empty


def grouped_select(statement: SqlStatement, table: exp.Table, keys: int, totals: list[Sql]) -> exp.Select:
    """The totals of each group of keys, and how many corrections went into them."""
    names = [column_ref(f"k{index}") for index in range(keys)]
    picked = [*names, *(with_alias(value, f"v{index}") for index, value in enumerate(totals))]
    corrections = saturate(statement.dialect.total(column_ref("b")), SATURATED) if statement.counts() else integer(0)
    picked.append(with_alias(corrections, "b"))
    trials = [column_ref(column) for column in statement.trials()]
    body, by = select(*picked, *trials).from_(table, copy=False), [*names, *trials]
    return statement.finish(body.group_by(*(name.copy() for name in by), copy=False) if by else body)
