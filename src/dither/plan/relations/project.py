"""Part of the former access.relation."""

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
    """New columns (name, expression), in order; hidden provenance stays."""

    proof = "project.md"
    child: Relation
    columns: tuple[tuple[str, Expr], ...]

    def __post_init__(self) -> None:
        distinct_names([name for name, _ in self.columns])

    def domain(self, ctx: Context) -> dict[str, Domain]:
        scope = Scope(self.child.domain(ctx))
        return {name: domain_of(value, scope) for name, value in self.columns}

    def stability(self, ctx: Context, unit: str) -> Stability:
        child = self.child.stability(ctx, unit)
        kept = {value.name for name, value in self.columns if isinstance(value, ColumnRef) and value.name == name}
        if child.per_key is None or all(columns_read(key) <= kept for key in child.per_key.keys):
            return child
        return replace(child, per_key=None)

    def select(self, statement: SqlStatement) -> exp.Select:
        table, scope = statement.table(self.child), statement.scope(self.child)
        same = self._same(statement)
        picked = [
            with_alias(column_ref(same[f"c{index}"]) if f"c{index}" in same else value.sql(scope), f"c{index}")
            for index, (_, value) in enumerate(self.columns)
        ]
        return select(*picked, *hidden_columns(statement, self.child, ranks=True)).from_(table, copy=False)

    def _same(self, statement: SqlStatement) -> dict[str, str]:
        """The columns that are packed columns of the child under another name."""
        names = {name: f"c{index}" for index, name in enumerate(self.child.domain(statement.ctx))}
        bare = {f"c{i}": names[v.name] for i, (_, v) in enumerate(self.columns) if isinstance(v, ColumnRef)}
        packed = self.child.packed(statement)
        return {new: old for new, old in bare.items() if old in packed}

    def packed(self, statement: SqlStatement) -> frozenset[str]:
        return frozenset(self._same(statement))

    def ranked(self, statement: SqlStatement, unit: str) -> bool:
        return self.child.ranked(statement, unit)


def distinct_names(names: list[str]) -> None:
    """Column names must differ."""
    if len(set(names)) != len(names):
        raise InvalidPlan("two columns have the same name; rename one of them")


def columns_read(node: Any) -> set[str]:
    """The columns that an expression, or a whole plan, reads."""
    return {part.name for part in walk(node) if isinstance(part, ColumnRef)}


def expressions_over(keys: tuple[Expr, ...], columns: Mapping[str, Domain]) -> tuple[tuple[str, Domain], ...]:
    """The columns that keys compute with, and their domains; a bare column is handed on, whatever its domain."""
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
        # Equal leaves are equal tables: a unit moves the same different rows in each.
        distinct = add_up(*(leaf.stability(ctx, unit).max_distinct_rows for leaf in dict.fromkeys(self.leaves())))
        return Stability(left.tracks_unit and right.tracks_unit, add_up(left.max_rows, right.max_rows), distinct)

    def leaves(self) -> Iterator[Relation]:
        """What is united, through unions of unions."""
        for side in (self.left, self.right):
            if isinstance(side, Union):
                yield from side.leaves()
            else:
                yield side

    def select(self, statement: SqlStatement) -> exp.SetOperation:
        merged, known = self.domain(statement.ctx), statement.known(self)
        sides = [
            self._side(statement, side, branch, merged, known) for branch, side in enumerate((self.left, self.right))
        ]
        return exp.union(*sides, distinct=False)

    def _side(
        self, statement: SqlStatement, side: Relation, branch: int, merged: dict[str, Domain], known: list[str]
    ) -> exp.Select:
        table, scope = statement.table(side), statement.scope(side)
        picked = [
            with_alias(convert(scope.names[name], scope.columns[name], merged[name]), f"c{index}")
            for index, name in enumerate(merged)
        ]
        hidden = [column_ref(column) for unit in known for column in statement.unit_columns(unit)]
        order = with_alias(statement.mix_orders([column_ref("o")], 11 + branch), "o")
        return select(*picked, *hidden, order, *map(column_ref, ["b", *statement.trials()])).from_(table, copy=False)
