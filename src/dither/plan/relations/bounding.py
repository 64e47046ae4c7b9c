"""Operators that bound the contribution of each unit, and random samples."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from hashlib import sha256
from math import floor

from sqlglot import exp

from dither.errors import InvalidParameter
from dither.plan.context import Context
from dither.plan.expressions.core import Expr, check_text, domain_of
from dither.plan.relations.core import Relation, all_columns, require_unit, unit_column_domain
from dither.plan.relations.project import computed_key_columns
from dither.plan.relations.scan import Scan
from dither.plan.sql.builders import Sql, binary, cast, literal, select, string
from dither.plan.sql.scope import Scope
from dither.plan.sql.statement import SqlStatement, column_ref, subquery, with_alias
from dither.plan.stability import PerKeyBound, RowLimit, Stability, check_limit, known_limit, stability_after_bounding
from dither.schema import Domain


@dataclass(frozen=True)
class Sample(Relation):
    """A sample: each row, or each whole unit, with probability `rate`, by the request's secret and the sample's tag."""

    proof = "sample.md"
    child: Relation
    rate: Fraction
    unit: str | None = None
    tag: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise InvalidParameter("a sampling rate must be greater than 0 and at most 1")
        check_text(self.tag)

    def domain(self, ctx: Context) -> dict[str, Domain]:
        if self.unit is not None:
            require_unit(ctx, self.child, self.unit, "sampling")
        return self.child.domain(ctx)

    def stability(self, ctx: Context, unit: str) -> Stability:
        return self.child.stability(ctx, unit)

    def enum_columns(self, statement: SqlStatement) -> frozenset[str]:
        return self.child.enum_columns(statement)

    def select(self, statement: SqlStatement) -> exp.Select:
        names = statement.unit_columns(self.unit) if self.unit is not None else ["o"]
        # A keyed hash: the choice of one unit reveals nothing about another, as amplification by sampling requires.
        hash_input: Sql = string(sha256(f"{statement.secret}:{self.tag}".encode()).hexdigest())
        for name in names:
            hash_input = binary(
                exp.DPipe, binary(exp.DPipe, hash_input, string(":")), cast(column_ref(name), "varchar")
            )
        row_filter = binary(exp.LT, statement.dialect.fingerprint(hash_input), literal(floor(self.rate * (1 << 32))))
        columns = all_columns(statement, self.child)
        return select(*columns).from_(statement.table(self.child), copy=False).where(row_filter, copy=False)


@dataclass(frozen=True)
class LimitRowsPerUnit(Relation):
    """At most `limit` rows of each unit, chosen pseudo-randomly among that unit's own rows."""

    proof = "limit_rows_per_unit.md"
    child: Relation
    unit: str
    limit: RowLimit

    def __post_init__(self) -> None:
        check_limit(self.limit, "a bound on rows")

    def domain(self, ctx: Context) -> dict[str, Domain]:
        require_unit(ctx, self.child, self.unit, "a bound")
        return self.child.domain(ctx)

    def stability(self, ctx: Context, unit: str) -> Stability:
        require_unit(ctx, self.child, self.unit, "a bound")
        child = self.child.stability(ctx, unit)
        after = stability_after_bounding(ctx, child, unit, self.unit, changes_per_row=2, bound=known_limit(self.limit))
        return replace(after, per_key=child.per_key) if after.tracks_unit else after

    def enum_columns(self, statement: SqlStatement) -> frozenset[str]:
        return self.child.enum_columns(statement)

    def select(self, statement: SqlStatement) -> exp.Select:
        limit, columns = known_limit(self.limit), all_columns(statement, self.child)
        if self.child.has_stored_rank(statement, self.unit):
            rank = column_ref(statement.rank_column(self.unit))
            within = binary(exp.LTE, rank, literal(limit))
            return select(*columns).from_(statement.table(self.child), copy=False).where(within, copy=False)
        cap = statement.ctx.row_cap(self.child.table) if isinstance(self.child, Scan) else None
        if isinstance(self.child, Scan) and cap is not None and cap[0] == self.unit:
            # The first rows among a unit's first rows are its first rows: one choice instead of two (proof, step 6).
            return self.child.select_rows(statement, (self.unit, min(limit, cap[1])))
        # The partition is the unit: the choice depends on this unit's rows alone (proof, step 2).
        unit_key = [column_ref(column) for column in statement.unit_columns(self.unit)]
        names = [column.name for column in columns]
        return statement.first_rows(statement.table(self.child), names, unit_key, limit)


@dataclass(frozen=True)
class LimitGroupsPerUnit(Relation):
    """At most `rows` rows in each of at most `groups` values of `keys`, for each unit."""

    proof = "limit_groups_per_unit.md"
    child: Relation
    unit: str
    keys: tuple[Expr, ...]
    groups: RowLimit
    rows: RowLimit

    def __post_init__(self) -> None:
        check_limit(self.groups, "a bound on groups")
        check_limit(self.rows, "a bound on rows per group")

    def domain(self, ctx: Context) -> dict[str, Domain]:
        require_unit(ctx, self.child, self.unit, "a bound")
        columns = self.child.domain(ctx)
        for key in self.keys:
            domain_of(key, Scope(columns))
        return columns

    def stability(self, ctx: Context, unit: str) -> Stability:
        require_unit(ctx, self.child, self.unit, "a bound")
        groups, rows = known_limit(self.groups), known_limit(self.rows)
        after = stability_after_bounding(
            ctx, self.child.stability(ctx, unit), unit, self.unit, changes_per_row=1 + rows, bound=groups * rows
        )
        bound = PerKeyBound(self.keys, groups, rows, computed_key_columns(self.keys, self.child.domain(ctx)))
        return replace(after, per_key=bound) if unit == self.unit else after

    def enum_columns(self, statement: SqlStatement) -> frozenset[str]:
        return self.child.enum_columns(statement)

    def select(self, statement: SqlStatement) -> exp.Select:
        scope = statement.scope(self.child)
        columns = all_columns(statement, self.child)
        names, unit = [column.name for column in columns], [column_ref(c) for c in statement.unit_columns(self.unit)]
        trials: list[Sql] = [column_ref(column) for column in statement.trial_columns()]
        domains = [key.domain(scope) for key in self.keys]
        picked = [with_alias(key.sql(scope), f"k{index}") for index, key in enumerate(self.keys)]
        keys = [column_ref(f"k{index}") for index in range(len(self.keys))]
        with_keys = statement.add_subquery(select(*columns, *picked).from_(statement.table(self.child), copy=False))
        extended = [(c, unit_column_domain(statement, c)) for c in unit] + list(zip(keys, domains, strict=True))
        group_order = with_alias(statement.mix_values(extended, 51), "g")
        ordered = statement.add_subquery(
            select(*(column_ref(n) for n in names), *keys, group_order).from_(with_keys, copy=False)
        )
        carried = [*names, *(key.name for key in keys), "g"]
        limited_rows = statement.first_rows(ordered, carried, [*unit, *keys], known_limit(self.rows))
        return self._first_groups(statement, statement.add_subquery(limited_rows), names, [*unit, *trials], keys)

    def _first_groups(
        self, statement: SqlStatement, table: exp.Table, names: list[str], unit: list[Sql], keys: list[Sql]
    ) -> exp.Select:
        """Select the first groups of each unit, in an order that depends only on the group's keys and unit."""
        order = exp.Order(expressions=[statement.sort_key("g"), *(key.copy() for key in keys)])
        window = exp.Window(this=exp.DenseRank(), partition_by=[u.copy() for u in unit], order=order)
        ranked = select(*(column_ref(n) for n in names), with_alias(window, "n")).from_(table, copy=False)
        row_filter = binary(exp.LTE, column_ref("n"), literal(known_limit(self.groups)))
        return select(*(column_ref(n) for n in names)).from_(subquery(ranked), copy=False).where(row_filter, copy=False)
