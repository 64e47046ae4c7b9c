"""Part of the former access.relation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sqlglot import exp

from dither.errors import InvalidPlan
from dither.plan.context import Context
from dither.plan.domains import cardinality, ends, number, span, with_null
from dither.plan.expressions.core import Column, Expr, typed
from dither.plan.relations.core import Relation, _unit_domain, needs_unit
from dither.plan.relations.project import distinct_names
from dither.plan.sql.builders import (
    Sql,
    rows_count,
    select,
    whole,
)
from dither.plan.sql.scope import Scope
from dither.plan.sql.statement import Statement, aliased, named, saturated
from dither.plan.stability import MOST_ROWS, Influence, PerKey, least, product
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
            needs_unit(ctx, self.child, self.unit, "DISTINCT")
        return self.child.domain(ctx)

    def influence(self, ctx: Context, unit: str) -> Influence:
        child = self.child.influence(ctx, unit)
        rows = least(child.distinct, self._most(ctx))
        if self.unit is None:
            return Influence(False, rows, rows)
        if unit == self.unit:
            return Influence(True, rows, rows)
        if ctx.coarser(unit, self.unit) and child.unit:
            return Influence(True, child.rows, child.rows)
        rows = rows if ctx.coarser(self.unit, unit) else child.rows
        return Influence(False, rows, rows)

    def _most(self, ctx: Context) -> int | None:
        """The number of different rows that the domains allow."""
        return product(*(_size(domain) for domain in self.child.domain(ctx).values()))

    def select(self, statement: Statement) -> exp.Select:
        units = [self.unit] if self.unit else []
        coarse = [u for u in statement.known(self) if u not in units]
        table, keys = statement.table(self.child), statement.visible(self.child)
        return grouped(statement, table, keys, [], self.domain(statement.ctx), units + coarse)


def _size(domain: Domain) -> int | None:
    """How many values a domain has, at least one; None where records may hold others than the listed ones."""
    # A zero would say that no unit moves anything: a domain that counts as empty must never make an answer free.
    return None if isinstance(domain, Identifier | Reference) else max(1, cardinality(domain))


def grouped(
    statement: Statement,
    table: exp.Table,
    keys: list[Sql],
    values: list[Sql],
    domain: dict[str, Domain],
    units: list[str],
) -> exp.Select:
    """One row per group, with an order that depends on the visible row and its unit alone."""
    hidden = [named(column) for unit in units for column in statement.unit_columns(unit)]
    picked = [aliased(value, f"g{index}") for index, value in enumerate([*keys, *values])]
    corrections = aliased(saturated(statement.spelling.total(named("b")), MOST_SUM), "b")
    body = select(*picked, *hidden, corrections, *map(named, statement.trials())).from_(table, copy=False)
    trials: list[Sql] = [named(column) for column in statement.trials()]
    by = [*keys, *hidden, *trials]
    body = body.group_by(*(key.copy() for key in by), copy=False) if by else body
    columns = [(named(f"g{index}"), each) for index, each in enumerate(domain.values())]
    columns += [(column, _unit_domain(statement, column)) for column in hidden]
    order = aliased(statement.mix(columns, 3) if statement.ordered else whole(0), "o")
    names = [aliased(named(f"g{index}"), f"c{index}") for index in range(len(domain))]
    return select(*names, *hidden, order, named("b"), *trials).from_(statement.add(body), copy=False)


@dataclass(frozen=True)
class Aggregate:
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
        value = typed(self.value, scope) if self.value is not None else None
        if self.kind in ("count", "distinct") or value is None:
            return number(0, min(rows, MOST_ROWS))
        if self.kind == "sum":
            if not isinstance(value, Number):
                raise InvalidPlan("SUM takes numbers")
            lo, hi = ends(value)
            return number(max(min(lo, 0) * rows, -MOST_SUM), min(max(hi, 0) * rows, MOST_SUM), value.step)
        span(value)
        return with_null(value, value.nullable or always)

    def sql(self, statement: Statement, scope: Scope, domain: Domain) -> Sql:
        """The aggregate, held inside its domain."""
        if self.value is None:
            return saturated(rows_count(), span(domain)[1])
        value = self.value.sql(scope)
        match self.kind:
            case "count":
                return saturated(exp.Count(this=value), span(domain)[1])
            case "distinct":
                return saturated(exp.Count(this=exp.Distinct(expressions=[value])), span(domain)[1])
            case "sum":
                lo, hi = span(domain)
                return saturated(statement.spelling.total(value), hi, lo)
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
    aggregates: tuple[Aggregate, ...] = ()
    unit: str | None = None

    def domain(self, ctx: Context) -> dict[str, Domain]:
        if self.unit is not None:
            needs_unit(ctx, self.child, self.unit, "GROUP BY")
        distinct_names([name for name, _ in self.keys] + [aggregate.name for aggregate in self.aggregates])
        scope = Scope(self.child.domain(ctx))
        columns = {name: typed(key, scope) for name, key in self.keys}
        rows, always = self._rows(ctx), not self.keys and self.unit is None
        return columns | {a.name: a.domain(scope, rows, always) for a in self.aggregates}

    def _rows(self, ctx: Context) -> int:
        """The most rows of one group."""
        if self.unit is None:
            return MOST_ROWS
        return least(self.child.influence(ctx, self.unit).rows, MOST_ROWS) or 0

    def influence(self, ctx: Context, unit: str) -> Influence:
        child, groups = self.child.influence(ctx, unit), self._groups(ctx)
        if self.unit is not None and unit == self.unit:
            rows = least(child.rows, groups)
            keys = tuple(Column(name) for name, _ in self.keys)
            return Influence(True, rows, rows, PerKey(keys, rows, 1) if rows is not None else None)
        if self.unit is not None and ctx.coarser(unit, self.unit) and child.unit:
            rows = least(child.rows, product(groups, ctx.windows(self.unit)))
            return Influence(True, rows, rows)
        one_place = self.unit is None or ctx.coarser(self.unit, unit)
        changed = product(2, least(child.rows, groups) if one_place and child.rows != 0 else child.rows)
        return Influence(False, changed, changed)

    def _groups(self, ctx: Context) -> int | None:
        """The number of groups (of each unit) that the keys' domains allow."""
        scope = Scope(self.child.domain(ctx))
        return product(*(_size(key.domain(scope)) for _, key in self.keys))

    def select(self, statement: Statement) -> exp.Select:
        domain, scope = self.domain(statement.ctx), statement.scope(self.child)
        inputs = [aliased(key.sql(scope), f"k{index}") for index, (_, key) in enumerate(self.keys)]
        keys: list[Sql] = [named(f"k{index}") for index in range(len(self.keys))]
        values = [a.sql(statement, scope, domain[a.name]) for a in self.aggregates]
        table = statement.table(self.child)
        table = statement.add(select(exp.Star(), *inputs).from_(table, copy=False)) if inputs else table
        return grouped(statement, table, keys, values, domain, statement.known(self))
