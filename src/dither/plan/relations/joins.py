"""The join operators: with a public table, on a unit's key, and on other columns with limited rows per key."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from sqlglot import exp

from dither.errors import InvalidPlan, Unbounded, Unsupported
from dither.plan.context import Context
from dither.plan.domains import merge, with_null
from dither.plan.expressions.core import ColumnRef, convert
from dither.plan.expressions.logic import Compare
from dither.plan.relations.core import Relation, require_unit
from dither.plan.relations.filter import Filter
from dither.plan.relations.project import Project, check_distinct_names
from dither.plan.relations.scan import Scan
from dither.plan.sql.builders import Sql, add, binary, count_star, is_null, literal, or_, select
from dither.plan.sql.scope import Scope
from dither.plan.sql.statement import SqlStatement, all_equal, column_ref, join_select, subquery, with_alias
from dither.plan.stability import RowLimit, Stability, add_up, check_limit, known_limit, multiply, smallest
from dither.schema import Domain, Number, Table


@dataclass(frozen=True)
class PublicJoin(Relation):
    """Join with a table that the unit does not cover: a public one, or a private one by its unique key.

    `on` lists pairs (child column, public column). `how`: left keeps unmatched rows of the child; right keeps unmatched
    rows of the public side (`urls LEFT JOIN actions`). `public` is a Scan, optionally under Filter and Project.
    """

    proof = "public_join.md"
    child: Relation
    public: Relation
    on: tuple[tuple[str, str], ...]
    how: Literal["inner", "left", "right"] = "inner"

    def __post_init__(self) -> None:
        if not self.on:
            raise InvalidPlan("a join needs at least one pair of columns")

    def domain(self, ctx: Context) -> dict[str, Domain]:
        self.source(ctx)
        left, right = self.child.domain(ctx), self.public.domain(ctx)
        check_join_columns(left, right, self.on)
        return join_domain(left, right, left_missing=self.how == "right", right_missing=self.how == "left")

    def stability(self, ctx: Context, unit: str) -> Stability:
        if self.public.stability(ctx, unit).max_rows != 0:
            raise Unsupported(f"the unit {unit} covers the side of this join that is held fixed; ask with unit={unit}")
        child, max_matches = self.child.stability(ctx, unit), self.multiplicity(ctx)
        match self.how:
            case "inner":
                return Stability(
                    child.tracks_unit,
                    multiply(child.max_rows, max_matches),
                    multiply(child.max_distinct_rows, max_matches),
                )
            case "left":
                max_matches = max(1, max_matches)
                return Stability(
                    child.tracks_unit,
                    multiply(child.max_rows, max_matches),
                    multiply(child.max_distinct_rows, max_matches),
                )
            case "right":
                return Stability(
                    False, multiply(2, max_matches, child.max_rows), multiply(2, max_matches, child.max_distinct_rows)
                )

    def multiplicity(self, ctx: Context) -> int:
        """Return the most public rows that can match one private row."""
        return self._narrowest_key(ctx)[0]

    def _narrowest_key(self, ctx: Context) -> tuple[int, str]:
        """Return the joined public column with the fewest rows of one value, after their number."""
        table, names = self.source(ctx)
        counts = [(ctx.multiplicity(table, names[column]), column) for _, column in self.on if column in names]
        known = [(count, column) for count, column in counts if count is not None]
        if not known:
            raise Unbounded(f"the rows per key of {table.name} are not known; join it by its unique column")
        return min(known)

    def source(self, ctx: Context) -> tuple[Table, dict[str, str]]:
        """Return the table behind the public side, and the table's column behind each visible name."""
        match self.public:
            case Scan(table=name):
                return ctx.table(name), {column: column for column in ctx.table(name).columns}
            case Filter(child=child):
                return replace(self, public=child).source(ctx)
            case Project(child=child, columns=columns):
                table, names = replace(self, public=child).source(ctx)
                kept = {new: old.name for new, old in columns if isinstance(old, ColumnRef)}
                return table, {new: names[old] for new, old in kept.items() if old in names}
            case _:
                raise Unsupported("the public side of a join must be a table, optionally with filters and projections")

    def select(self, statement: SqlStatement) -> exp.Select:
        tracked = statement.tracked_units(self)
        private, public = statement.table(self.child), self._counted_rows(statement)
        columns = join_columns(statement, self.child, self.public)
        hidden = [with_alias(column_ref(c, "l"), c) for unit in tracked for c in statement.unit_columns(unit)]
        hidden += join_hidden_columns(statement, seed=21, left=self.how != "right", right=self.how != "left")
        matched = all_equal([*join_pairs(statement, self.child, self.public, self.on), *trial_pairs(statement)])
        sides = (private, "l"), (public, "r")
        first, second = reversed(sides) if self.how == "right" else sides
        return join_select([*columns, *hidden], first, second, matched, "inner" if self.how == "inner" else "left")

    def _counted_rows(self, statement: SqlStatement) -> exp.Table:
        """Return the public rows, without those of keys that got more rows since they were counted."""
        rows, (most, column) = statement.table(self.public), self._narrowest_key(statement.ctx)
        table, names = self.source(statement.ctx)
        is_enforced = names[column] == table.unique and statement.ctx.enforces_unique_key(table)
        if is_enforced or statement.sources[table.name].is_prepared:
            return rows
        key = statement.scope(self.public).names[column]
        window = exp.Window(this=count_star(), partition_by=[key.copy(), *map(column_ref, statement.trial_columns())])
        counted = select(exp.Star(), with_alias(window, "m")).from_(rows.copy(), copy=False)
        kept = or_([binary(exp.LTE, column_ref("m"), literal(most)), is_null(key.copy())])
        return statement.add_subquery(select(exp.Star()).from_(subquery(counted), copy=False).where(kept, copy=False))


def check_join_columns(left: dict[str, Domain], right: dict[str, Domain], on: tuple[tuple[str, str], ...]) -> None:
    """Refuse join columns that do not exist or cannot be compared."""
    scope = {**{f"l.{name}": d for name, d in left.items()}, **{f"r.{name}": d for name, d in right.items()}}
    for left_name, right_name in on:
        Compare("=", ColumnRef(f"l.{left_name}"), ColumnRef(f"r.{right_name}")).domain(Scope(scope))


def join_domain(
    left: dict[str, Domain], right: dict[str, Domain], *, left_missing: bool = False, right_missing: bool = False
) -> dict[str, Domain]:
    """Return the columns of both sides, nullable on a side that may be missing."""
    check_distinct_names([*left, *right])
    first = {name: with_null(domain, domain.nullable or left_missing) for name, domain in left.items()}
    return first | {name: with_null(domain, domain.nullable or right_missing) for name, domain in right.items()}


def join_columns(statement: SqlStatement, left: Relation, right: Relation) -> list[Sql]:
    """Return the visible columns of both sides, renumbered."""
    both_sides = [*statement.visible_columns(left, "l"), *statement.visible_columns(right, "r")]
    return [with_alias(column, f"c{index}") for index, column in enumerate(both_sides)]


def join_pairs(
    statement: SqlStatement, left: Relation, right: Relation, on: tuple[tuple[str, str], ...]
) -> list[tuple[Sql, Sql]]:
    """Return the pairs of columns that must be equal, on a common lattice."""
    left_scope, right_scope = statement.scope(left, "l"), statement.scope(right, "r")
    pairs = []
    for a, b in on:
        first, second = left_scope.columns[a], right_scope.columns[b]
        target = merge([first, second]) if isinstance(first, Number) and isinstance(second, Number) else first
        shared = target if isinstance(target, Number) else second
        pairs.append((convert(left_scope.names[a], first, target), convert(right_scope.names[b], second, shared)))
    return pairs


def join_hidden_columns(statement: SqlStatement, seed: int, left: bool = True, right: bool = True) -> list[Sql]:
    """Return the order and the corrections of a joined row; a missing side counts as zero."""
    sides = [(column_ref("o", "l"), column_ref("b", "l"), left), (column_ref("o", "r"), column_ref("b", "r"), right)]
    orders = [
        order if is_present else exp.Coalesce(this=order, expressions=[literal(0)]) for order, _, is_present in sides
    ]
    corrections = [
        count if is_present else exp.Coalesce(this=count, expressions=[literal(0)]) for _, count, is_present in sides
    ]
    trials = [with_alias(column_ref(column, "l" if left else "r"), column) for column in statement.trial_columns()]
    return [with_alias(statement.mix_orders(orders, seed), "o"), with_alias(add(*corrections), "b"), *trials]


def trial_pairs(statement: SqlStatement) -> list[tuple[Sql, Sql]]:
    """Return the join condition that both rows are of the same trial."""
    return [(column_ref(column, "l"), column_ref(column, "r")) for column in statement.trial_columns()]


@dataclass(frozen=True)
class UnitJoin(Relation):
    """Join of two relations whose rows track the unit, on that unit's hidden key."""

    proof = "unit_join.md"
    left: Relation
    right: Relation
    unit: str
    how: Literal["inner", "left"] = "inner"

    def domain(self, ctx: Context) -> dict[str, Domain]:
        for side in (self.left, self.right):
            require_unit(ctx, side, self.unit, "a join")
        return join_domain(self.left.domain(ctx), self.right.domain(ctx), right_missing=self.how == "left")

    def stability(self, ctx: Context, unit: str) -> Stability:
        left, right = self.left.stability(ctx, unit), self.right.stability(ctx, unit)
        if unit == self.unit:
            return Stability(
                True,
                self._pair_bound(left.max_rows, right.max_rows),
                self._pair_bound(left.max_distinct_rows, right.max_distinct_rows),
            )
        max_left = self.left.stability(ctx, self.unit).max_rows
        max_right = self.right.stability(ctx, self.unit).max_rows
        if ctx.is_coarser(unit, self.unit) and left.tracks_unit and right.tracks_unit:
            rows = self._pair_bound(left.max_rows, max_right)
            rows = smallest(rows, multiply(max_left, right.max_rows)) if self.how == "inner" else rows
            return Stability(True, rows, rows)
        rows = add_up(
            self._pair_bound(left.max_rows, max_right), multiply(self._changes_per_right_row, max_left, right.max_rows)
        )
        return Stability(left.tracks_unit and right.max_rows == 0, rows, rows)

    def _pair_bound(self, left: int | None, right: int | None) -> int | None:
        """Return the most joined rows of `left` and `right` rows; a left join keeps unmatched left rows."""
        if self.how == "inner" or right is None:
            return multiply(left, right)
        return multiply(left, max(1, right))

    @property
    def _changes_per_right_row(self) -> int:
        """The rows that one right row changes per left row: its pair and, in a left join, the unmatched row."""
        return 2 if self.how == "left" else 1

    def sides_with_one_row(self, ctx: Context, unit: str) -> tuple[Relation, Relation] | None:
        """Return a side, and the other if it has at most one row of each unit: then each row of the first stays one."""
        sides = [(self.left, self.right), *([(self.right, self.left)] if self.how == "inner" else [])]
        single = [(side, other) for side, other in sides if other.stability(ctx, unit).max_rows == 1]
        return single[0] if single and unit == self.unit else None

    def select(self, statement: SqlStatement) -> exp.Select:
        columns, tracked = join_columns(statement, self.left, self.right), statement.tracked_units(self)
        hidden = [with_alias(column_ref(c, "l"), c) for unit in tracked for c in statement.unit_columns(unit)]
        hidden += join_hidden_columns(statement, seed=31, right=self.how == "inner")
        keys = [(column_ref(c, "l"), column_ref(c, "r")) for c in statement.unit_columns(self.unit)]
        matched = all_equal([*keys, *trial_pairs(statement)])
        left, right = statement.table(self.left), statement.table(self.right)
        return join_select([*columns, *hidden], (left, "l"), (right, "r"), matched, self.how)


@dataclass(frozen=True)
class KeyJoin(Relation):
    """Inner join on any columns, after each side keeps a limited number of rows per key, by the rows' own order."""

    proof = "key_join.md"
    left: Relation
    right: Relation
    on: tuple[tuple[str, str], ...]
    left_limit: RowLimit
    right_limit: RowLimit

    def __post_init__(self) -> None:
        check_limit(self.left_limit, "the left limit of a join")
        check_limit(self.right_limit, "the right limit of a join")
        if not self.on:
            raise InvalidPlan("a join needs at least one pair of columns")

    def domain(self, ctx: Context) -> dict[str, Domain]:
        left, right = self.left.domain(ctx), self.right.domain(ctx)
        check_join_columns(left, right, self.on)
        return join_domain(left, right)

    def stability(self, ctx: Context, unit: str) -> Stability:
        left, right = self.left.stability(ctx, unit), self.right.stability(ctx, unit)
        rows = add_up(
            multiply(2, left.max_rows, known_limit(self.right_limit)),
            multiply(2, right.max_rows, known_limit(self.left_limit)),
        )
        return Stability(False, rows, rows)

    def select(self, statement: SqlStatement) -> exp.Select:
        columns = join_columns(statement, self.left, self.right)
        hidden = join_hidden_columns(statement, seed=41)
        matched = all_equal([*join_pairs(statement, self.left, self.right, self.on), *trial_pairs(statement)])
        left = self._limited_side(
            statement, self.left, [left_name for left_name, _ in self.on], known_limit(self.left_limit)
        )
        right = self._limited_side(
            statement, self.right, [right_name for _, right_name in self.on], known_limit(self.right_limit)
        )
        return join_select([*columns, *hidden], (left, "l"), (right, "r"), matched, "inner")

    def _limited_side(self, statement: SqlStatement, side: Relation, keys: list[str], limit: int) -> exp.Table:
        """Select at most `limit` rows per key of one side."""
        scope, table = statement.scope(side), statement.table(side)
        columns = [*(f"c{index}" for index in range(len(scope.columns))), "o", "b", *statement.trial_columns()]
        return statement.add_subquery(statement.first_rows(table, columns, [scope.names[key] for key in keys], limit))
