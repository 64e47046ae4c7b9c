"""The GroupBy and Distinct operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sqlglot import exp

from dither.errors import InvalidPlan
from dither.plan.context import Context
from dither.plan.domains import bounds_of, cardinality, number, span, with_null
from dither.plan.expressions.core import ColumnRef, Expr, domain_of
from dither.plan.expressions.numeric import null_if_zero
from dither.plan.relations.core import Relation, require_unit, unit_column_domain
from dither.plan.relations.project import check_distinct_names
from dither.plan.relations.unit_sizes import sizes_of_units
from dither.plan.sql.builders import Sql, binary, case, clamp_integer, count_star, integer, literal, select
from dither.plan.sql.scope import Scope
from dither.plan.sql.statement import SqlStatement, column_ref, saturate, with_alias
from dither.plan.stability import MAX_ROWS, PerKeyBound, Stability, multiply, smallest
from dither.schema import Domain, Identifier, Number, Reference

MAX_SUM = 1 << 53


@dataclass(frozen=True)
class Distinct(Relation):
    """Each distinct row once; with `unit`, once per unit (SELECT DISTINCT with the unit's key among the columns)."""

    proof = "distinct.md"
    child: Relation
    unit: str | None = None

    def domain(self, ctx: Context) -> dict[str, Domain]:
        if self.unit is not None:
            require_unit(ctx, self.child, self.unit, "DISTINCT")
        return self.child.domain(ctx)

    def stability(self, ctx: Context, unit: str) -> Stability:
        child = self.child.stability(ctx, unit)
        rows = smallest(child.max_distinct_rows, self._max_distinct_rows(ctx))
        if self.unit is None:
            return Stability(False, rows, rows)
        if unit == self.unit:
            return Stability(True, rows, rows)
        if ctx.is_coarser(unit, self.unit) and child.tracks_unit:
            return Stability(True, child.max_rows, child.max_rows)
        rows = rows if ctx.is_coarser(self.unit, unit) else child.max_rows
        return Stability(False, rows, rows)

    def _max_distinct_rows(self, ctx: Context) -> int | None:
        """Return the number of distinct rows that the domains allow."""
        return multiply(*(_max_values(domain) for domain in self.child.domain(ctx).values()))

    def select(self, statement: SqlStatement) -> exp.Select:
        units = [self.unit] if self.unit else []
        coarser_units = [u for u in statement.tracked_units(self) if u not in units]
        table, keys = statement.table(self.child), statement.visible_columns(self.child)
        return group_rows(statement, table, keys, [], self.domain(statement.ctx), units + coarser_units)


def _max_values(domain: Domain) -> int | None:
    """Count the values of a domain, at least one; None for identifiers and references: their values are undeclared."""
    # Zero would mean that no unit changes anything: a domain that counts as empty must not make an answer free.
    return None if isinstance(domain, Identifier | Reference) else max(1, cardinality(domain))


def group_rows(
    statement: SqlStatement,
    table: exp.Table,
    keys: list[Sql],
    values: list[Sql],
    domain: dict[str, Domain],
    units: list[str],
) -> exp.Select:
    """Select one row per group, with an order that depends only on the visible row and its unit."""
    hidden = [column_ref(column) for unit in units for column in statement.unit_columns(unit)]
    group_columns = [with_alias(value, f"g{index}") for index, value in enumerate([*keys, *values])]
    corrections = with_alias(saturate(statement.dialect.exact_sum(column_ref("b")), MAX_SUM), "b")
    body = select(*group_columns, *hidden, corrections, *map(column_ref, statement.trial_columns())).from_(
        table, copy=False
    )
    trials: list[Sql] = [column_ref(column) for column in statement.trial_columns()]
    by = [*keys, *hidden, *trials]
    body = body.group_by(*(key.copy() for key in by), copy=False) if by else body
    return _ordered_groups(statement, body, domain, hidden)


def _ordered_groups(
    statement: SqlStatement, body: exp.Select, domain: dict[str, Domain], hidden: Sequence[Sql]
) -> exp.Select:
    """Select groups with an order that depends only on the visible row and its unit."""
    trials: list[Sql] = [column_ref(column) for column in statement.trial_columns()]
    columns = [(column_ref(f"g{index}"), column_domain) for index, column_domain in enumerate(domain.values())]
    columns += [(column, unit_column_domain(statement, column)) for column in hidden]
    order = with_alias(statement.mix_values(columns, 3) if statement.keeps_order else integer(0), "o")
    names = [with_alias(column_ref(f"g{index}"), f"c{index}") for index in range(len(domain))]
    return select(*names, *hidden, order, column_ref("b"), *trials).from_(statement.add_subquery(body), copy=False)


@dataclass(frozen=True)
class GroupAggregate:
    """A column of a GroupBy: count of rows or of non-NULL values, distinct values, sum, average, min or max.

    `value` is None for COUNT(*). Counts saturate at 2^31 and sums at +-2^53 steps, or lower where the unit's rows are
    bounded; the sum of no values is 0. An average is a multiple of the step, truncated towards zero.
    """

    name: str
    kind: Literal["count", "distinct", "sum", "avg", "min", "max"]
    value: Expr | None = None

    def __post_init__(self) -> None:
        if self.value is None and self.kind != "count":
            raise InvalidPlan(f"the aggregate {self.kind} needs a value")

    def domain(self, scope: Scope, rows: int, has_empty_group: bool) -> Domain:
        """Return the domain for groups of at most `rows` rows; `has_empty_group`: a group may have none."""
        value = domain_of(self.value, scope) if self.value is not None else None
        if self.kind in ("count", "distinct") or value is None:
            return number(0, min(rows, MAX_ROWS))
        if self.kind == "sum":
            if not isinstance(value, Number):
                raise InvalidPlan("SUM takes numbers")
            lo, hi = bounds_of(value)
            return number(max(min(lo, 0) * rows, -MAX_SUM), min(max(hi, 0) * rows, MAX_SUM), value.step)
        if self.kind == "avg" and not isinstance(value, Number):
            raise InvalidPlan("AVG takes numbers")
        span(value)
        return with_null(value, value.nullable or has_empty_group)

    def sql(self, statement: SqlStatement, scope: Scope, domain: Domain) -> Sql:
        """Return the SQL of the aggregate, saturated at the bounds of its domain."""
        if self.value is None:
            return saturate(count_star(), span(domain)[1])
        value = self.value.sql(scope)
        match self.kind:
            case "count":
                return saturate(exp.Count(this=value), span(domain)[1])
            case "distinct":
                return saturate(exp.Count(this=exp.Distinct(expressions=[value])), span(domain)[1])
            case "sum":
                lo, hi = span(domain)
                return saturate(statement.dialect.exact_sum(value), hi, lo)
            case "avg":
                (lo, hi), values = span(domain), exp.Count(this=value.copy())
                total = saturate(statement.dialect.exact_sum(value), MAX_SUM)
                mean = clamp_integer(statement.dialect.quotient(total, null_if_zero(values)), lo, hi)
                return case([(binary(exp.GT, values.copy(), literal(0)), mean)])
            case "min":
                return exp.Min(this=value)
            case "max":
                return exp.Max(this=value)


@dataclass(frozen=True)
class GroupBy(Relation):
    """One row per group that occurs: key columns, then aggregates; with `unit`, each unit has groups of its own."""

    proof = "group_by.md"
    child: Relation
    keys: tuple[tuple[str, Expr], ...]
    aggregates: tuple[GroupAggregate, ...] = ()
    unit: str | None = None

    def domain(self, ctx: Context) -> dict[str, Domain]:
        if self.unit is not None:
            require_unit(ctx, self.child, self.unit, "GROUP BY")
        check_distinct_names([name for name, _ in self.keys] + [aggregate.name for aggregate in self.aggregates])
        scope = Scope(self.child.domain(ctx))
        columns = {name: domain_of(key, scope) for name, key in self.keys}
        rows, has_empty_group = self._max_rows_per_group(ctx), not self.keys and self.unit is None
        return columns | {a.name: a.domain(scope, rows, has_empty_group) for a in self.aggregates}

    def _max_rows_per_group(self, ctx: Context) -> int:
        """Return the most rows of one group."""
        if self.unit is None:
            return MAX_ROWS
        return smallest(self.child.stability(ctx, self.unit).max_rows, MAX_ROWS) or 0

    def stability(self, ctx: Context, unit: str) -> Stability:
        child, groups = self.child.stability(ctx, unit), self._max_groups(ctx)
        if self.unit is not None and unit == self.unit:
            rows = smallest(child.max_rows, groups)
            keys = tuple(ColumnRef(name) for name, _ in self.keys)
            return Stability(True, rows, rows, PerKeyBound(keys, rows, 1) if rows is not None else None)
        if self.unit is not None and ctx.is_coarser(unit, self.unit) and child.tracks_unit:
            rows = smallest(child.max_rows, multiply(groups, ctx.number_of_windows(self.unit)))
            return Stability(True, rows, rows)
        single_group = self.unit is None or ctx.is_coarser(self.unit, unit)
        changed = multiply(
            2, smallest(child.max_rows, groups) if single_group and child.max_rows != 0 else child.max_rows
        )
        return Stability(False, changed, changed)

    def _max_groups(self, ctx: Context) -> int | None:
        """Return the number of groups (of each unit) that the keys' domains allow; None if they set no limit."""
        scope = Scope(self.child.domain(ctx))
        return multiply(*(_max_values(key.domain(scope)) for _, key in self.keys))

    def select(self, statement: SqlStatement) -> exp.Select:
        counted = self._counts_from_sizes(statement)
        if counted is not None:
            return counted
        domain, scope = self.domain(statement.ctx), statement.scope(self.child)
        key_columns = [with_alias(key.sql(scope), f"k{index}") for index, (_, key) in enumerate(self.keys)]
        keys: list[Sql] = [column_ref(f"k{index}") for index in range(len(self.keys))]
        values = [a.sql(statement, scope, domain[a.name]) for a in self.aggregates]
        table = statement.table(self.child)
        table = (
            statement.add_subquery(select(exp.Star(), *key_columns).from_(table, copy=False)) if key_columns else table
        )
        return group_rows(statement, table, keys, values, domain, statement.tracked_units(self))

    def _counts_from_sizes(self, statement: SqlStatement) -> exp.Select | None:
        """Count each unit's rows from their sizes, stored or before a cap; None where other rows or values count."""
        if self.keys or self.unit is None or any(a.value is not None for a in self.aggregates):
            return None
        hidden = [c for unit in statement.tracked_units(self) for c in statement.unit_columns(unit)]
        sizes = sizes_of_units(statement, self.child, self.unit, [*hidden, *statement.trial_columns()])
        if sizes is None:
            return None
        domain = self.domain(statement.ctx)
        counts = [
            with_alias(saturate(column_ref("n"), span(column)[1]), f"g{index}")
            for index, column in enumerate(domain.values())
        ]
        units: list[Sql] = [column_ref(column) for column in hidden]
        columns = [*counts, *units, with_alias(integer(0), "b"), *map(column_ref, statement.trial_columns())]
        body = select(*columns).from_(statement.add_subquery(sizes), copy=False)
        return _ordered_groups(statement, body, domain, units)
