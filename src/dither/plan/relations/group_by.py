"""Part of the former access.relation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sqlglot import exp

from dither.errors import InvalidPlan
from dither.plan.context import Context
from dither.plan.domains import bounds_of, cardinality, number, span, with_null
from dither.plan.expressions.core import ColumnRef, Expr, domain_of
from dither.plan.relations.core import Relation, _unit_domain, require_unit
from dither.plan.relations.project import distinct_names
from dither.plan.sql.builders import Sql, integer, rows_count, select
from dither.plan.sql.scope import Scope
from dither.plan.sql.statement import SqlStatement, column_ref, saturate, with_alias
from dither.plan.stability import MOST_ROWS, PerKeyBound, Stability, multiply, smaller
from dither.schema import Domain, Identifier, Number, Reference

MOST_SUM = 1 << 53


@dataclass(frozen=True)
class Distinct(Relation):
    """Each different row once; with `unit`, once per unit (SELECT DISTINCT with the unit's key among the columns)."""

    proof = "distinct.md"
    child: Relation
    unit: str | None = None

    def domain(self, ctx: Context) -> dict[str, Domain]:
        if self.unit is not None:
            require_unit(ctx, self.child, self.unit, "DISTINCT")
        return self.child.domain(ctx)

    def stability(self, ctx: Context, unit: str) -> Stability:
        child = self.child.stability(ctx, unit)
        rows = smaller(child.max_distinct_rows, self._most(ctx))
        if self.unit is None:
            return Stability(False, rows, rows)
        if unit == self.unit:
            return Stability(True, rows, rows)
        if ctx.coarser(unit, self.unit) and child.tracks_unit:
            return Stability(True, child.max_rows, child.max_rows)
        rows = rows if ctx.coarser(self.unit, unit) else child.max_rows
        return Stability(False, rows, rows)

    def _most(self, ctx: Context) -> int | None:
        """The number of different rows that the domains allow."""
        return multiply(*(_size(domain) for domain in self.child.domain(ctx).values()))

    def select(self, statement: SqlStatement) -> exp.Select:
        units = [self.unit] if self.unit else []
        coarse = [u for u in statement.known(self) if u not in units]
        table, keys = statement.table(self.child), statement.visible(self.child)
        return group_rows(statement, table, keys, [], self.domain(statement.ctx), units + coarse)


def _size(domain: Domain) -> int | None:
    """How many values a domain has, at least one; None where records may hold others than the listed ones."""
    # A zero would say that no unit moves anything: a domain that counts as empty must never make an answer free.
    return None if isinstance(domain, Identifier | Reference) else max(1, cardinality(domain))


def group_rows(
    statement: SqlStatement,
    table: exp.Table,
    keys: list[Sql],
    values: list[Sql],
    domain: dict[str, Domain],
    units: list[str],
) -> exp.Select:
    """One row per group, with an order that depends on the visible row and its unit alone."""
    hidden = [column_ref(column) for unit in units for column in statement.unit_columns(unit)]
    picked = [with_alias(value, f"g{index}") for index, value in enumerate([*keys, *values])]
    corrections = with_alias(saturate(statement.dialect.total(column_ref("b")), MOST_SUM), "b")
    body = select(*picked, *hidden, corrections, *map(column_ref, statement.trials())).from_(table, copy=False)
    trials: list[Sql] = [column_ref(column) for column in statement.trials()]
    by = [*keys, *hidden, *trials]
    body = body.group_by(*(key.copy() for key in by), copy=False) if by else body
    columns = [(column_ref(f"g{index}"), each) for index, each in enumerate(domain.values())]
    columns += [(column, _unit_domain(statement, column)) for column in hidden]
    order = with_alias(statement.mix(columns, 3) if statement.ordered else integer(0), "o")
    names = [with_alias(column_ref(f"g{index}"), f"c{index}") for index in range(len(domain))]
    return select(*names, *hidden, order, column_ref("b"), *trials).from_(statement.add(body), copy=False)


@dataclass(frozen=True)
class GroupAggregate:
    """A column of a GroupBy: count of rows or of non-NULL values, distinct values, sum, min or max.

    `value` is None for COUNT(*). Counts stop at 2^31 and sums at +-2^53 steps, or lower where the unit's rows are
    bounded; the sum of no values is 0.
    """

    name: str
    kind: Literal["count", "distinct", "sum", "min", "max"]
    value: Expr | None = None

    def __post_init__(self) -> None:
        if self.value is None and self.kind != "count":
            raise InvalidPlan(f"the aggregate {self.kind} needs a value")

    def domain(self, scope: Scope, rows: int, always: bool) -> Domain:
        """Its domain, for groups of at most `rows` rows; `always`: there is a row even when the group is empty."""
        value = domain_of(self.value, scope) if self.value is not None else None
        if self.kind in ("count", "distinct") or value is None:
            return number(0, min(rows, MOST_ROWS))
        if self.kind == "sum":
            if not isinstance(value, Number):
                raise InvalidPlan("SUM takes numbers")
            lo, hi = bounds_of(value)
            return number(max(min(lo, 0) * rows, -MOST_SUM), min(max(hi, 0) * rows, MOST_SUM), value.step)
        span(value)
        return with_null(value, value.nullable or always)

    def sql(self, statement: SqlStatement, scope: Scope, domain: Domain) -> Sql:
        """The aggregate, held inside its domain."""
        if self.value is None:
            return saturate(rows_count(), span(domain)[1])
        value = self.value.sql(scope)
        match self.kind:
            case "count":
                return saturate(exp.Count(this=value), span(domain)[1])
            case "distinct":
                return saturate(exp.Count(this=exp.Distinct(expressions=[value])), span(domain)[1])
            case "sum":
                lo, hi = span(domain)
                return saturate(statement.dialect.total(value), hi, lo)
            case "min":
                return exp.Min(this=value)
            case "max":
                return exp.Max(this=value)


@dataclass(frozen=True)
class GroupBy(Relation):
    """One row per group that occurs: key columns, then aggregates; with `unit`, groups are also split by unit."""

    proof = "group_by.md"
    child: Relation
    keys: tuple[tuple[str, Expr], ...]
    aggregates: tuple[GroupAggregate, ...] = ()
    unit: str | None = None

    def domain(self, ctx: Context) -> dict[str, Domain]:
        if self.unit is not None:
            require_unit(ctx, self.child, self.unit, "GROUP BY")
        distinct_names([name for name, _ in self.keys] + [aggregate.name for aggregate in self.aggregates])
        scope = Scope(self.child.domain(ctx))
        columns = {name: domain_of(key, scope) for name, key in self.keys}
        rows, always = self._rows(ctx), not self.keys and self.unit is None
        return columns | {a.name: a.domain(scope, rows, always) for a in self.aggregates}

    def _rows(self, ctx: Context) -> int:
        """The most rows of one group."""
        if self.unit is None:
            return MOST_ROWS
        return smaller(self.child.stability(ctx, self.unit).max_rows, MOST_ROWS) or 0

    def stability(self, ctx: Context, unit: str) -> Stability:
        child, groups = self.child.stability(ctx, unit), self._groups(ctx)
        if self.unit is not None and unit == self.unit:
            rows = smaller(child.max_rows, groups)
            keys = tuple(ColumnRef(name) for name, _ in self.keys)
            return Stability(True, rows, rows, PerKeyBound(keys, rows, 1) if rows is not None else None)
        if self.unit is not None and ctx.coarser(unit, self.unit) and child.tracks_unit:
            rows = smaller(child.max_rows, multiply(groups, ctx.windows(self.unit)))
            return Stability(True, rows, rows)
        one_place = self.unit is None or ctx.coarser(self.unit, unit)
        changed = multiply(2, smaller(child.max_rows, groups) if one_place and child.max_rows != 0 else child.max_rows)
        return Stability(False, changed, changed)

    def _groups(self, ctx: Context) -> int | None:
        """The number of groups (of each unit) that the keys' domains allow."""
        scope = Scope(self.child.domain(ctx))
        return multiply(*(_size(key.domain(scope)) for _, key in self.keys))

    def select(self, statement: SqlStatement) -> exp.Select:
        domain, scope = self.domain(statement.ctx), statement.scope(self.child)
        inputs = [with_alias(key.sql(scope), f"k{index}") for index, (_, key) in enumerate(self.keys)]
        keys: list[Sql] = [column_ref(f"k{index}") for index in range(len(self.keys))]
        values = [a.sql(statement, scope, domain[a.name]) for a in self.aggregates]
        table = statement.table(self.child)
        table = statement.add(select(exp.Star(), *inputs).from_(table, copy=False)) if inputs else table
        return group_rows(statement, table, keys, values, domain, statement.known(self))
