"""Part of the former access.relation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from hashlib import sha256
from math import floor

from sqlglot import exp

from dither.errors import InvalidParameter
from dither.plan.context import Context
from dither.plan.expressions.core import Expr, legible, typed
from dither.plan.relations.core import Relation, _unit_domain, handed_on, needs_unit
from dither.plan.relations.project import computed_with
from dither.plan.sql.builders import (
    Sql,
    binary,
    cast,
    plain,
    select,
    text,
)
from dither.plan.sql.scope import Scope
from dither.plan.sql.statement import Statement, aliased, inner, named
from dither.plan.stability import Influence, Limit, PerKey, check_limit, fixed, moved
from dither.schema import Domain


@dataclass(frozen=True)
class Sample(Relation):
    """Each row, or each whole unit, kept with probability `rate` by a fresh secret; tags tell samples apart."""

    proof = "sample.md"
    child: Relation
    rate: Fraction
    unit: str | None = None
    tag: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise InvalidParameter("a sampling rate must be above 0 and at most 1")
        legible(self.tag)

    def domain(self, ctx: Context) -> dict[str, Domain]:
        if self.unit is not None:
            needs_unit(ctx, self.child, self.unit, "sampling")
        return self.child.domain(ctx)

    def influence(self, ctx: Context, unit: str) -> Influence:
        return self.child.influence(ctx, unit)

    def packed(self, statement: Statement) -> frozenset[str]:
        return self.child.packed(statement)

    def select(self, statement: Statement) -> exp.Select:
        names = statement.unit_columns(self.unit) if self.unit is not None else ["o"]
        # A keyed hash: whether one unit is kept says nothing about another, as amplification by sampling needs.
        text_of: Sql = text(sha256(f"{statement.secret}:{self.tag}".encode()).hexdigest())
        for name in names:
            text_of = binary(exp.DPipe, binary(exp.DPipe, text_of, text(":")), cast(named(name), "varchar"))
        kept = binary(exp.LT, statement.spelling.fingerprint(text_of), plain(floor(self.rate * (1 << 32))))
        columns = handed_on(statement, self.child)
        return select(*columns).from_(statement.table(self.child), copy=False).where(kept, copy=False)


@dataclass(frozen=True)
class BoundRows(Relation):
    """At most `limit` rows of each unit, chosen pseudo-randomly among that unit's own rows."""

    proof = "bound_rows.md"
    child: Relation
    unit: str
    limit: Limit

    def __post_init__(self) -> None:
        check_limit(self.limit, "a bound on rows")

    def domain(self, ctx: Context) -> dict[str, Domain]:
        needs_unit(ctx, self.child, self.unit, "a bound")
        return self.child.domain(ctx)

    def influence(self, ctx: Context, unit: str) -> Influence:
        needs_unit(ctx, self.child, self.unit, "a bound")
        child = self.child.influence(ctx, unit)
        after = moved(ctx, child, unit, self.unit, each=2, bound=fixed(self.limit))
        return replace(after, per_key=child.per_key) if after.unit else after

    def packed(self, statement: Statement) -> frozenset[str]:
        return self.child.packed(statement)

    def select(self, statement: Statement) -> exp.Select:
        table, limit = statement.table(self.child), fixed(self.limit)
        columns = handed_on(statement, self.child)
        if self.child.ranked(statement, self.unit):
            rank = named(statement.rank_column(self.unit))
            return select(*columns).from_(table, copy=False).where(binary(exp.LTE, rank, plain(limit)), copy=False)
        # The partition is the unit: the choice depends on this unit's rows alone (proof, step 2).
        by = [named(column) for column in statement.unit_columns(self.unit)]
        return statement.numbered(table, [column.name for column in columns], by, limit)


@dataclass(frozen=True)
class BoundGroups(Relation):
    """At most `rows` rows in each of at most `groups` values of `keys`, for each unit."""

    proof = "bound_groups.md"
    child: Relation
    unit: str
    keys: tuple[Expr, ...]
    groups: Limit
    rows: Limit

    def __post_init__(self) -> None:
        check_limit(self.groups, "a bound on groups")
        check_limit(self.rows, "a bound on rows per group")

    def domain(self, ctx: Context) -> dict[str, Domain]:
        needs_unit(ctx, self.child, self.unit, "a bound")
        columns = self.child.domain(ctx)
        for key in self.keys:
            typed(key, Scope(columns))
        return columns

    def influence(self, ctx: Context, unit: str) -> Influence:
        needs_unit(ctx, self.child, self.unit, "a bound")
        groups, rows = fixed(self.groups), fixed(self.rows)
        after = moved(ctx, self.child.influence(ctx, unit), unit, self.unit, each=1 + rows, bound=groups * rows)
        bound = PerKey(self.keys, groups, rows, computed_with(self.keys, self.child.domain(ctx)))
        return replace(after, per_key=bound) if unit == self.unit else after

    def packed(self, statement: Statement) -> frozenset[str]:
        return self.child.packed(statement)

    def select(self, statement: Statement) -> exp.Select:
        scope = statement.scope(self.child)
        columns = handed_on(statement, self.child)
        names, unit = [column.name for column in columns], [named(c) for c in statement.unit_columns(self.unit)]
        trials: list[Sql] = [named(column) for column in statement.trials()]
        domains = [key.domain(scope) for key in self.keys]
        picked = [aliased(key.sql(scope), f"k{index}") for index, key in enumerate(self.keys)]
        keys = [named(f"k{index}") for index in range(len(self.keys))]
        keyed = statement.add(select(*columns, *picked).from_(statement.table(self.child), copy=False))
        extended = [(c, _unit_domain(statement, c)) for c in unit] + list(zip(keys, domains, strict=True))
        mixed = aliased(statement.mix(extended, 51), "g")
        ordered = statement.add(select(*(named(n) for n in names), *keys, mixed).from_(keyed, copy=False))
        carried = [*names, *(key.name for key in keys), "g"]
        within = statement.numbered(ordered, carried, [*unit, *keys], fixed(self.rows))
        return self._groups(statement, statement.add(within), names, [*unit, *trials], keys)

    def _groups(
        self, statement: Statement, table: exp.Table, names: list[str], unit: list[Sql], keys: list[Sql]
    ) -> exp.Select:
        """The first groups of each unit, in an order of the group's keys and unit alone."""
        order = exp.Order(expressions=[statement.sorted_by("g"), *(key.copy() for key in keys)])
        window = exp.Window(this=exp.DenseRank(), partition_by=[u.copy() for u in unit], order=order)
        ranked = select(*(named(n) for n in names), aliased(window, "n")).from_(table, copy=False)
        kept = binary(exp.LTE, named("n"), plain(fixed(self.groups)))
        return select(*(named(n) for n in names)).from_(inner(ranked), copy=False).where(kept, copy=False)
