"""Sums over declared keys: their joint sensitivity, and the SQL that groups rows by key."""

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
from dither.plan.domains import Lattice, bounds_of, encode_value
from dither.plan.expressions.core import ColumnRef, Expr, LiteralValue, constant_sql, domain_of
from dither.plan.measures.core import (
    LARGEST_INT64,
    MAX_CELLS,
    Axis,
    GroupKey,
    Measure,
    SelectedValues,
    VectorQuery,
    axis_of,
    require_row_bound,
    stability_of,
)
from dither.plan.relations.core import Relation
from dither.plan.sql.builders import Sql, and_, count_star, detach, fits_64_bits, integer, is_null, or_, select
from dither.plan.sql.scope import Scope
from dither.plan.sql.statement import SqlStatement, column_ref, saturate, with_alias
from dither.plan.stability import PerKeyBound, Stability
from dither.schema import Domain, Number


def sums_sensitivity(
    unit_stability: Stability,
    unit: str,
    sizes: Sequence[int],
    cells: int,
    keys: tuple[Expr, ...],
    columns: Mapping[str, Domain],
) -> Sensitivity:
    """Return the joint sensitivity of sums of values up to these sizes, grouped by `keys` of `columns` into `cells`."""
    rows = require_row_bound(unit_stability, unit)
    nonzero_sizes = [size for size in sizes if size]
    largest_size, total_size, total_squares = (
        max(nonzero_sizes, default=0),
        sum(nonzero_sizes),
        sum(size * size for size in nonzero_sizes),
    )
    groups, rows_per_group, squared_rows = min(rows, cells), rows, rows * rows
    total_rows = rows
    if unit_stability.per_key is not None and unit_stability.per_key.applies_to(keys, columns) and rows:
        groups, rows_per_group, total_rows, squared_rows = _per_key_norms(unit_stability.per_key, rows, cells)
    return Sensitivity(
        *(
            Fraction(norm)
            for norm in (
                groups * len(nonzero_sizes),
                rows_per_group * largest_size,
                total_rows * total_size,
                squared_rows * total_squares,
            )
        )
    )


def _per_key_norms(bound: PerKeyBound, rows: int, cells: int) -> tuple[int, int, int, int]:
    """Return the most groups, rows in one group, rows in total, and sum of squared rows per group, of one unit."""
    groups, rows_per_group = min(bound.max_groups, cells, rows), min(bound.max_rows, rows)
    total_rows = min(rows, groups * rows_per_group)
    full, remainder = divmod(total_rows, rows_per_group)
    return groups, rows_per_group, total_rows, full * rows_per_group * rows_per_group + remainder * remainder


class GroupedMeasure(Measure):
    """Sums of values over declared keys."""

    proof = "sum_vector.md"
    child: Relation
    keys: tuple[GroupKey, ...]

    @abstractmethod
    def summands(self) -> tuple[Expr, ...]:
        """Return the expressions to sum; NULL adds nothing."""

    def axes(self, ctx: Context) -> tuple[Axis, ...]:
        columns = self.child.domain(ctx)
        axes = tuple(axis_of(ctx, key, columns) for key in self.keys)
        if prod(len(axis.values) for axis in axes) * len(self.summands()) > MAX_CELLS:
            raise Unsupported(f"an answer may have at most {MAX_CELLS} cells; group by fewer or coarser keys")
        return axes

    def steps(self, ctx: Context) -> tuple[Fraction, ...]:
        return tuple(domain.step for domain in numeric_domains(ctx, self.child, self.summands()))

    def sensitivity(self, ctx: Context, unit: str) -> Sensitivity:
        unit_stability = stability_of(ctx, self.child, unit)
        sizes = [max(map(abs, bounds_of(domain))) for domain in numeric_domains(ctx, self.child, self.summands())]
        cells = prod(len(axis.values) for axis in self.axes(ctx))
        keys, columns = tuple(key.value for key in self.keys), self.child.domain(ctx)
        return sums_sensitivity(unit_stability, unit, sizes, cells, keys, columns)

    def vector_query(self, statement: SqlStatement) -> VectorQuery:
        scope = statement.scope(self.child)
        keys = encode_axes(statement.ctx, self.keys, self.axes(statement.ctx), scope)
        table = keyed_subquery(statement, self.child, self.keys, keys, self.summands(), ())
        totals = [self._total(statement, index, value) for index, value in enumerate(self.summands())]
        return VectorQuery(grouped_select(statement, table, len(self.keys), totals), keys, len(totals))

    def _total(self, statement: SqlStatement, index: int, value: Expr) -> Sql:
        """Build the total of one value; the constant 1 is counted by COUNT(*)."""
        if value == LiteralValue(1):
            return saturate(count_star(), LARGEST_INT64)
        return saturate(statement.dialect.exact_sum(column_ref(f"v{index}")), LARGEST_INT64)


def numeric_domains(ctx: Context, child: Relation, values: tuple[Expr, ...]) -> list[Number]:
    """Return the domains of the expressions to sum; refuse those that are not numbers."""
    scope = Scope(child.domain(ctx))
    domains = [domain_of(value, scope) for value in values]
    for domain in domains:
        if not isinstance(domain, Number):
            raise InvalidPlan("only numbers can be summed; to count rows, use COUNT with a condition")
    return [domain for domain in domains if isinstance(domain, Number)]


def encode_axes(
    ctx: Context, keys: tuple[GroupKey, ...], axes: tuple[Axis, ...], scope: Scope
) -> tuple[Sequence[Any], ...]:
    """Encode the values of each axis as the engine does; refuse values off the lattice or beyond 64 bits."""
    domains = [key.value.domain(scope) for key in keys]
    encoded_axes: list[Sequence[Any]] = []
    for key, axis, domain in zip(keys, axes, domains, strict=True):
        if isinstance(key.values, SelectedValues):  # the SQL is only checked; it is built again to be run
            encoded_axes.append(())
            continue
        if isinstance(axis.values, Lattice):
            encoded_axes.append(axis.values.encoded)
            continue
        encoded = tuple(encode_value(value, domain) for value in axis.values)
        if any(code is None and value is not None for code, value in zip(encoded, axis.values, strict=True)):
            raise InvalidPlan(f"a listed value of the key {axis.name[:40]!r} is not on its lattice")
        if any(isinstance(code, int) and not fits_64_bits(code) for code in encoded):
            raise InvalidPlan(f"a listed value of the key {axis.name[:40]!r} does not fit into 64 bits")
        encoded_axes.append(encoded)
    return tuple(encoded_axes)


def keyed_subquery(
    statement: SqlStatement,
    child: Relation,
    keys: tuple[GroupKey, ...],
    encoded: tuple[Sequence[Any], ...],
    values: tuple[Expr, ...],
    hidden: Sequence[str],
) -> exp.Table:
    """Add a subquery of keys k0.., values v0.., hidden columns and corrections; drop rows with unlisted keys."""
    scope = statement.scope(child)
    columns_sql = [
        with_alias(_group_key_sql(statement, child, key, scope), f"k{index}") for index, key in enumerate(keys)
    ]
    columns_sql += [with_alias(value.sql(scope), f"v{index}") for index, value in enumerate(values)]
    hidden = [*hidden, *statement.trial_columns()]
    body = select(*columns_sql, *(column_ref(column) for column in hidden), column_ref("b")).from_(
        statement.table(child), copy=False
    )
    listed = [i for i, key in enumerate(keys) if isinstance(key.values, tuple)]
    listed_keys = [_is_listed(column_ref(f"k{i}"), encoded[i]) for i in listed]
    if not listed_keys:
        return statement.add_subquery(body)
    columns = [*(f"k{i}" for i in range(len(keys))), *(f"v{i}" for i in range(len(values))), *hidden, "b"]
    return statement.add_subquery(
        select(*map(column_ref, columns))
        .from_(statement.add_subquery(body), copy=False)
        .where(and_(listed_keys), copy=False)
    )


def _group_key_sql(statement: SqlStatement, child: Relation, key: GroupKey, scope: Scope) -> Sql:
    """Build the SQL of a group key; an ENUM stays an ENUM if its values are not compared with a list."""
    if isinstance(key.value, ColumnRef) and key.values is None and key.value.name in scope.columns:
        column = f"c{list(scope.columns).index(key.value.name)}"
        if column in child.enum_columns(statement):
            return column_ref(column)
    return key.value.sql(scope)


def _is_listed(value: Sql, encoded: Sequence[int | str | bool | None]) -> Sql:
    """Build the condition that a key is one of the encoded values, which may include NULL."""
    listed_values = exp.In(this=detach(value), expressions=[constant_sql(v) for v in encoded if v is not None])
    empty = is_null(value)
    if None not in encoded:
        return listed_values
    return or_([listed_values, empty]) if len(encoded) > 1 else empty


def grouped_select(statement: SqlStatement, table: exp.Table, keys: int, totals: list[Sql]) -> exp.Select:
    """Return the statement that computes the totals of each group of keys, and the number of corrections in them."""
    names = [column_ref(f"k{index}") for index in range(keys)]
    columns_sql = [*names, *(with_alias(value, f"v{index}") for index, value in enumerate(totals))]
    corrections = (
        saturate(statement.dialect.exact_sum(column_ref("b")), LARGEST_INT64)
        if statement.counts_corrections()
        else integer(0)
    )
    columns_sql.append(with_alias(corrections, "b"))
    trials = [column_ref(column) for column in statement.trial_columns()]
    body, by = select(*columns_sql, *trials).from_(table, copy=False), [*names, *trials]
    return statement.finish(body.group_by(*(name.copy() for name in by), copy=False) if by else body)
