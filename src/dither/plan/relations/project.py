"""Part of the former access.relation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlglot import exp

from dither.errors import InvalidPlan
from dither.plan.context import Context
from dither.plan.domains import merge
from dither.plan.expressions.core import Column, Expr, convert, typed
from dither.plan.relations.core import Relation, passed
from dither.plan.sql.builders import (
    select,
)
from dither.plan.sql.scope import Scope
from dither.plan.sql.statement import Statement, aliased, named
from dither.plan.stability import Influence, total
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
        return {name: typed(value, scope) for name, value in self.columns}

    def influence(self, ctx: Context, unit: str) -> Influence:
        child = self.child.influence(ctx, unit)
        kept = {value.name for name, value in self.columns if isinstance(value, Column) and value.name == name}
        if child.per_key is None or all(reads(key) <= kept for key in child.per_key.keys):
            return child
        return replace(child, per_key=None)

    def select(self, statement: Statement) -> exp.Select:
        table, scope = statement.table(self.child), statement.scope(self.child)
        same = self._same(statement)
        picked = [
            aliased(named(same[f"c{index}"]) if f"c{index}" in same else value.sql(scope), f"c{index}")
            for index, (_, value) in enumerate(self.columns)
        ]
        return select(*picked, *passed(statement, self.child, ranks=True)).from_(table, copy=False)

    def _same(self, statement: Statement) -> dict[str, str]:
        """The columns that are packed columns of the child under another name."""
        names = {name: f"c{index}" for index, name in enumerate(self.child.domain(statement.ctx))}
        bare = {f"c{i}": names[v.name] for i, (_, v) in enumerate(self.columns) if isinstance(v, Column)}
        packed = self.child.packed(statement)
        return {new: old for new, old in bare.items() if old in packed}

    def packed(self, statement: Statement) -> frozenset[str]:
        return frozenset(self._same(statement))

    def ranked(self, statement: Statement, unit: str) -> bool:
        return self.child.ranked(statement, unit)


def distinct_names(names: list[str]) -> None:
    """Column names must differ."""
    if len(set(names)) != len(names):
        raise InvalidPlan("two columns have the same name; rename one of them")


def reads(node: Any) -> set[str]:
    """The columns that an expression, or a whole plan, reads."""
    return {part.name for part in walk(node) if isinstance(part, Column)}


def computed_with(keys: tuple[Expr, ...], columns: Mapping[str, Domain]) -> tuple[tuple[str, Domain], ...]:
    """The columns that keys compute with, and their domains; a bare column is handed on, whatever its domain."""
    names = {name for key in keys if not isinstance(key, Column) for name in reads(key)}
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

    def influence(self, ctx: Context, unit: str) -> Influence:
        left = self.left.influence(ctx, unit)
        right = left if self.left == self.right else self.right.influence(ctx, unit)
        # Equal leaves are equal tables: a unit moves the same different rows in each.
        distinct = total(*(leaf.influence(ctx, unit).distinct for leaf in dict.fromkeys(self.leaves())))
        return Influence(left.unit and right.unit, total(left.rows, right.rows), distinct)

    def leaves(self) -> Iterator[Relation]:
        """What is united, through unions of unions."""
        for side in (self.left, self.right):
            if isinstance(side, Union):
                yield from side.leaves()
            else:
                yield side

    def select(self, statement: Statement) -> exp.SetOperation:
        merged, known = self.domain(statement.ctx), statement.known(self)
        sides = [
            self._side(statement, side, branch, merged, known) for branch, side in enumerate((self.left, self.right))
        ]
        return exp.union(*sides, distinct=False)

    def _side(
        self, statement: Statement, side: Relation, branch: int, merged: dict[str, Domain], known: list[str]
    ) -> exp.Select:
        table, scope = statement.table(side), statement.scope(side)
        picked = [
            aliased(convert(scope.names[name], scope.columns[name], merged[name]), f"c{index}")
            for index, name in enumerate(merged)
        ]
        hidden = [named(column) for unit in known for column in statement.unit_columns(unit)]
        order = aliased(statement.mix_orders([named("o")], 11 + branch), "o")
        return select(*picked, *hidden, order, *map(named, ["b", *statement.trials()])).from_(table, copy=False)
