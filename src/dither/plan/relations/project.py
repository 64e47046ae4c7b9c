"""The Project and Union operators, and the columns that expressions read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlglot import exp

from dither.errors import InvalidPlan
from dither.plan.context import Context
from dither.plan.domains import merge
from dither.plan.expressions.core import ColumnRef, Expr, convert, domain_of
from dither.plan.relations.core import Relation, hidden_columns
from dither.plan.sql.builders import select
from dither.plan.sql.scope import Scope
from dither.plan.sql.statement import SqlStatement, column_ref, with_alias
from dither.plan.stability import Stability, add_up
from dither.plan.traversal import walk
from dither.schema import Domain


@dataclass(frozen=True)
class Project(Relation):
    """New columns (name, expression), in order; the hidden columns are passed on."""

    proof = "project.md"
    child: Relation
    columns: tuple[tuple[str, Expr], ...]

    def __post_init__(self) -> None:
        check_distinct_names([name for name, _ in self.columns])

    def domain(self, ctx: Context) -> dict[str, Domain]:
        scope = Scope(self.child.domain(ctx))
        return {name: domain_of(value, scope) for name, value in self.columns}

    def stability(self, ctx: Context, unit: str) -> Stability:
        child = self.child.stability(ctx, unit)
        unchanged = {value.name for name, value in self.columns if isinstance(value, ColumnRef) and value.name == name}
        if child.per_key is None or all(columns_read(key) <= unchanged for key in child.per_key.keys):
            return child
        return replace(child, per_key=None)

    def select(self, statement: SqlStatement) -> exp.Select:
        table, scope = statement.table(self.child), statement.scope(self.child)
        enum_sources = self._enum_columns_of_child(statement)
        selected = [
            with_alias(
                column_ref(enum_sources[f"c{index}"]) if f"c{index}" in enum_sources else value.sql(scope), f"c{index}"
            )
            for index, (_, value) in enumerate(self.columns)
        ]
        return select(*selected, *hidden_columns(statement, self.child, ranks=True)).from_(table, copy=False)

    def _enum_columns_of_child(self, statement: SqlStatement) -> dict[str, str]:
        """Map the new columns that are ENUM columns of the child to their names in the child."""
        names = {name: f"c{index}" for index, name in enumerate(self.child.domain(statement.ctx))}
        renamed = {f"c{i}": names[v.name] for i, (_, v) in enumerate(self.columns) if isinstance(v, ColumnRef)}
        child_enum_columns = self.child.enum_columns(statement)
        return {new: old for new, old in renamed.items() if old in child_enum_columns}

    def enum_columns(self, statement: SqlStatement) -> frozenset[str]:
        return frozenset(self._enum_columns_of_child(statement))

    def has_stored_rank(self, statement: SqlStatement, unit: str) -> bool:
        return self.child.has_stored_rank(statement, unit)


def check_distinct_names(names: list[str]) -> None:
    """Refuse two columns of the same name."""
    if len(set(names)) != len(names):
        raise InvalidPlan("two columns have the same name; rename one of them")


def columns_read(node: Any) -> set[str]:
    """Return the names of the columns that an expression, or a whole plan, reads."""
    return {part.name for part in walk(node) if isinstance(part, ColumnRef)}


def computed_key_columns(keys: tuple[Expr, ...], columns: Mapping[str, Domain]) -> tuple[tuple[str, Domain], ...]:
    """Return the columns that keys compute with, and their domains; keys that are bare columns are left out."""
    names = {name for key in keys if not isinstance(key, ColumnRef) for name in columns_read(key)}
    return tuple((name, columns[name]) for name in sorted(names & columns.keys()))


@dataclass(frozen=True)
class Union(Relation):
    """UNION ALL of two relations with the same column names and kinds of domain."""

    proof = "union.md"
    left: Relation
    right: Relation

    def domain(self, ctx: Context) -> dict[str, Domain]:
        left = self.left.domain(ctx)
        right = left if self.left == self.right else self.right.domain(ctx)
        if list(left) != list(right):
            raise InvalidPlan("the two sides of a union must have the same columns in the same order")
        return {name: merge([left[name], right[name]]) for name in left}

    def stability(self, ctx: Context, unit: str) -> Stability:
        left = self.left.stability(ctx, unit)
        right = left if self.left == self.right else self.right.stability(ctx, unit)
        # Equal leaves are equal tables: a unit changes the same distinct rows in each.
        distinct = add_up(*(leaf.stability(ctx, unit).max_distinct_rows for leaf in dict.fromkeys(self.leaves())))
        return Stability(left.tracks_unit and right.tracks_unit, add_up(left.max_rows, right.max_rows), distinct)

    def leaves(self) -> Iterator[Relation]:
        """Yield the relations united, through unions of unions."""
        for side in (self.left, self.right):
            if isinstance(side, Union):
                yield from side.leaves()
            else:
                yield side

    def select(self, statement: SqlStatement) -> exp.SetOperation:
        merged, tracked = self.domain(statement.ctx), statement.tracked_units(self)
        sides = [
            self._side(statement, side, branch, merged, tracked) for branch, side in enumerate((self.left, self.right))
        ]
        return exp.union(*sides, distinct=False)

    def _side(
        self, statement: SqlStatement, side: Relation, branch: int, merged: dict[str, Domain], tracked: list[str]
    ) -> exp.Select:
        """Select one side's columns on the merged domains, with an order that depends on the side."""
        table, scope = statement.table(side), statement.scope(side)
        selected = [
            with_alias(convert(scope.names[name], scope.columns[name], merged[name]), f"c{index}")
            for index, name in enumerate(merged)
        ]
        hidden = [column_ref(column) for unit in tracked for column in statement.unit_columns(unit)]
        order = with_alias(statement.mix_orders([column_ref("o")], 11 + branch), "o")
        return select(*selected, *hidden, order, *map(column_ref, ["b", *statement.trial_columns()])).from_(
            table, copy=False
        )
