"""Relational operators: each states its domain, its stability under the change of one unit, and its SQL.

A plan is pure data that names tables, columns and units; it is read in a `Context(dataset, facts)` from
`dither.plan.context`, which contains public facts only:

    relation.domain(ctx)           -> dict[str, Domain], the visible columns in order
    relation.stability(ctx, unit)  -> Stability(tracks_unit, max_rows, max_distinct_rows): does each row carry its unit;
                                      the most rows and the most distinct rows that one unit changes (None: unbounded)
    relation.select(statement)     -> SQL, for engines

Rows carry hidden columns that identify their units; no expression can read or rewrite them. A GroupBy, Distinct,
UnitJoin, MarkJoin, LimitRowsPerUnit or LimitGroupsPerUnit names the unit that it works by. Column names of two joined
sides must differ (rename with Project). A limit may be an `EstimatedLimit(tag)`: the kernel replaces it by
`fill_limits(plan, {tag: value})`; `unfilled_limits(plan)` lists them. `window_range(ctx, plan, unit)` returns the
public time range of a plan for window units.
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

MAX_MEMO_ENTRIES = 1 << 14


def memoize(method: Callable[..., Any]) -> Callable[..., Any]:
    """Cache a method of a relation or measure per context, so that deep plans do not take exponential time."""

    @wraps(method)
    def cached_method(self: object, ctx: Context, *unit: str) -> Any:
        """Return the cached result, or compute and store it."""
        # By identity: nodes that compare equal may differ, since In(x, (1,)) == In(x, (True,)). The entry holds the
        # node, so that its id is not reused.
        memo_key = (id(self), method.__qualname__, *unit)
        entry = ctx.memo.get(memo_key)
        if entry is None:
            if len(ctx.memo) >= MAX_MEMO_ENTRIES:
                ctx.memo.clear()
            entry = ctx.memo[memo_key] = (self, method(self, ctx, *unit))
        return entry[1]

    return cached_method


class Relation(ABC):
    """A table computed from tables."""

    proof: ClassVar[str]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "proof" not in cls.__dict__:
            raise TypeError(f"{cls.__name__} must name its proof: proof = '<file>.md'")
        for name in {"domain", "stability"} & vars(cls).keys():
            setattr(cls, name, memoize(vars(cls)[name]))

    @abstractmethod
    def domain(self, ctx: Context) -> dict[str, Domain]:
        """Return the visible columns in order, from the schema and public facts alone."""

    @abstractmethod
    def stability(self, ctx: Context, unit: str) -> Stability:
        """Return the most rows that one unit can change."""

    @abstractmethod
    def select(self, statement: SqlStatement) -> exp.Select | exp.SetOperation:
        """Return SQL for the visible and hidden columns."""

    def has_stored_rank(self, statement: SqlStatement, unit: str) -> bool:
        """Tell whether the rows are still those of a scan with a stored rank within the unit."""
        return False

    def enum_columns(self, statement: SqlStatement) -> frozenset[str]:
        """Return the names c0, c1, ... of the columns that hold an ENUM instead of text."""
        return frozenset()


def require_unit(ctx: Context, child: Relation, unit: str, operation: str) -> None:
    """Refuse a relation whose rows do not track the unit."""
    ctx.keyed_unit(unit)
    if not child.stability(ctx, unit).tracks_unit:
        raise Unsupported(
            f"{operation} by {unit} needs rows that still track their {unit}: apply it below the join or grouping that"
            f" drops the {unit}"
        )


def hidden_columns(statement: SqlStatement, node: Relation, ranks: bool, table: str | None = None) -> list[Sql]:
    """Return the hidden columns of a relation, to pass them on unchanged."""
    columns = statement.hidden_column_names(statement.tracked_units(node))
    if ranks:
        columns += [statement.rank_column(unit) for unit in statement.units_with_rank(node)]
    return [column_ref(column, table) for column in columns]


def all_columns(statement: SqlStatement, node: Relation) -> list[Sql]:
    """Return all columns of a relation except its stored ranks, unchanged, for operators that only select rows."""
    columns: list[Sql] = [column_ref(f"c{index}") for index in range(len(node.domain(statement.ctx)))]
    return [*columns, *hidden_columns(statement, node, ranks=False)]


def unit_column_domain(statement: SqlStatement, column: Sql) -> Domain:
    """Return the domain used to hash a hidden unit column: integer for a window, else as the key is declared."""
    index = int(column.name[1:])
    unit = list(statement.ctx.dataset.units.values())[index]
    table, key = next(iter(unit.keys.items()))
    declared = statement.ctx.table(table).columns[str(key)].domain
    kind: Literal["integer", "text"] = (
        "text" if storage_type(declared) == "varchar" and column.name[0] == "u" else "integer"
    )
    return Identifier(kind)
