"""Operators on tables: each states its domain, how far one unit moves it, and its SQL.

A plan is pure data that names tables, columns and units; it is read in a `Context(dataset, facts)` from
`dither.plan.context`, which holds public knowledge only:

    relation.domain(ctx)           -> dict[str, Domain], the visible columns in order
    relation.influence(ctx, unit)  -> Influence(unit, rows, distinct): does each row know its unit; most rows that
                                      one unit moves (None: no bound); most distinct rows
    relation.select(statement)     -> SQL, for engines

Rows carry hidden provenance columns for every unit; no expression can read or rewrite them. A GroupBy, Distinct,
UnitJoin, BoundRows or BoundGroups names the unit that it works by. Column names of two joined sides must differ
(rename with Project). A limit may be `Auto(tag)`: the kernel replaces it by `fill(plan, {tag: value})`; `autos(plan)`
lists them. `windows_touched(ctx, plan, unit)` gives the public time range of a plan for window units.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import wraps
from typing import Any, ClassVar, Literal

from sqlglot import exp

from dither.errors import Unsupported
from dither.plan.context import Context
from dither.plan.domains import storage_type
from dither.plan.sql.builders import Sql
from dither.plan.sql.statement import SqlStatement, column_ref
from dither.plan.stability import Stability
from dither.schema import Domain, Identifier

MOST_REMEMBERED = 1 << 14


def memoized(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of a relation that is worked out once in a context, so that deep plans take no exponential time."""

    @wraps(method)
    def once(self: Relation, ctx: Context, *unit: str) -> Any:
        # By identity: equal nodes may differ, since In(x, (1,)) == In(x, (True,)). A held node keeps its id to itself.
        which = (id(self), method.__qualname__, *unit)
        held = ctx.memo.get(which)
        if held is None:
            if len(ctx.memo) >= MOST_REMEMBERED:
                ctx.memo.clear()
            held = ctx.memo[which] = (self, method(self, ctx, *unit))
        return held[1]

    return once


class Relation(ABC):
    """A table computed from tables."""

    proof: ClassVar[str]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "proof" not in cls.__dict__:
            raise TypeError(f"{cls.__name__} must name its proof: proof = '<file>.md'")
        for name in {"domain", "stability"} & vars(cls).keys():
            setattr(cls, name, memoized(vars(cls)[name]))

    @abstractmethod
    def domain(self, ctx: Context) -> dict[str, Domain]:
        """The visible columns in order; from the schema alone."""

    @abstractmethod
    def stability(self, ctx: Context, unit: str) -> Stability:
        """How far one unit moves it."""

    @abstractmethod
    def select(self, statement: SqlStatement) -> exp.Select | exp.SetOperation:
        """SQL for visible and hidden columns."""

    def ranked(self, statement: SqlStatement, unit: str) -> bool:
        """Whether rows are still those of a scan with a stored rank within the unit."""
        return False

    def packed(self, statement: SqlStatement) -> frozenset[str]:
        """The columns c0, c1, ... in which a byte stands for one of few texts; all others are as they are read."""
        return frozenset()


def require_unit(ctx: Context, child: Relation, unit: str, what: str) -> None:
    """Refuses where rows no longer know the unit."""
    ctx.keyed(unit)
    if not child.stability(ctx, unit).tracks_unit:
        raise Unsupported(
            f"{what} by {unit} needs rows that know their {unit}: do it below the join or grouping that lost it"
        )


def hidden_columns(statement: SqlStatement, node: Relation, ranks: bool, table: str | None = None) -> list[Sql]:
    """The hidden columns of a relation, handed on as they are."""
    columns = statement.hidden(statement.known(node))
    if ranks:
        columns += [statement.rank_column(unit) for unit in statement.ranks(node)]
    return [column_ref(column, table) for column in columns]


def all_columns(statement: SqlStatement, node: Relation) -> list[Sql]:
    """All columns of a relation but its stored ranks, as they are: for operators that only choose among rows."""
    columns: list[Sql] = [column_ref(f"c{index}") for index in range(len(node.domain(statement.ctx)))]
    return [*columns, *hidden_columns(statement, node, ranks=False)]


def _unit_domain(statement: SqlStatement, column: Sql) -> Domain:
    """How a hidden column is mixed into an order: a window is an integer, a key is as its table declares it."""
    index = int(column.name[1:])
    unit = list(statement.ctx.dataset.units.values())[index]
    table, key = next(iter(unit.keys.items()))
    declared = statement.ctx.table(table).columns[str(key)].domain
    kind: Literal["integer", "text"] = (
        "text" if storage_type(declared) == "varchar" and column.name[0] == "u" else "integer"
    )
    return Identifier(kind)
