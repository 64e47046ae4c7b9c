"""Operators on tables: each states its domain, how far one unit moves it, and its SQL.

A plan is pure data that names tables, columns and units; it is read in a `Context(dataset, facts)` from
`dither.access.context`:

    relation.domain(ctx)           -> dict[str, Domain], the visible columns in order
    relation.influence(ctx, unit)  -> Influence(unit, rows, distinct): does each row know its unit; most rows that
                                      one unit moves (None: no bound); most distinct rows
    Statement(ctx).relation(node)  -> SQL (engines only)

Rows carry hidden provenance columns for every unit; no expression can read or rewrite them. A GroupBy, Distinct,
UnitJoin, BoundRows or BoundGroups names the unit that it works by. Column names of two joined sides must differ
(rename with Project). A limit may be `Auto(tag)`: the kernel replaces it by `fill(plan, {tag: value})`.
"""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from dither.access.expr import Expr


@dataclass(frozen=True)
class Auto:
    """A bound that the kernel finds privately first, between 1 and `most`; the same tag means the same bound."""

    tag: str = "bound"
    most: int = 1 << 20


Limit = int | Auto


class Relation(ABC):
    """A table computed from tables."""


@dataclass(frozen=True)
class Scan(Relation):
    """A table of the dataset, each value corrected into its declared domain, rows without a valid unit key dropped."""

    table: str


@dataclass(frozen=True)
class Where(Relation):
    """The rows for which the condition is true; refines the domains of columns compared with constants."""

    child: Relation
    condition: Expr


@dataclass(frozen=True)
class Project(Relation):
    """New columns (name, expression), in order; hidden provenance stays."""

    child: Relation
    columns: tuple[tuple[str, Expr], ...]


@dataclass(frozen=True)
class Union(Relation):
    """UNION ALL of two relations with the same column names and kinds of domain."""

    left: Relation
    right: Relation


@dataclass(frozen=True)
class Distinct(Relation):
    """Each different row once; with `unit`, once per unit (SELECT DISTINCT with the unit's key among the columns)."""

    child: Relation
    unit: str | None = None


@dataclass(frozen=True)
class PublicJoin(Relation):
    """Join with a public table, or with a context table by its unique key; `on` pairs (child column, public column).

    inner; left: the private side is preserved; right: the public side is preserved (`urls LEFT JOIN actions`).
    `public` may be a Scan with Where and Project above it.
    """

    child: Relation
    public: Relation
    on: tuple[tuple[str, str], ...]
    how: Literal["inner", "left", "right"] = "inner"


@dataclass(frozen=True)
class UnitJoin(Relation):
    """Join of two relations whose rows know their unit, on that unit's hidden key."""

    left: Relation
    right: Relation
    unit: str
    how: Literal["inner", "left"] = "inner"


@dataclass(frozen=True)
class KeyJoin(Relation):
    """Inner join on other columns, after each side keeps at most so many rows per key, by an order of the row alone."""

    left: Relation
    right: Relation
    on: tuple[tuple[str, str], ...]
    left_limit: Limit
    right_limit: Limit


@dataclass(frozen=True)
class Aggregate:
    """A column of a GroupBy: count of rows or of non-NULL values, distinct values, sum, min or max.

    `value` is None for COUNT(*). Counts stop at 2^31; sums are held at +-2^53 steps; both less where rows are bounded.
    """

    name: str
    kind: Literal["count", "distinct", "sum", "min", "max"]
    value: Expr | None = None


@dataclass(frozen=True)
class GroupBy(Relation):
    """One row per group: key columns, then aggregates; with `unit`, groups are also split by unit and know it."""

    child: Relation
    keys: tuple[tuple[str, Expr], ...]
    aggregates: tuple[Aggregate, ...] = ()
    unit: str | None = None


@dataclass(frozen=True)
class Sample(Relation):
    """Each row (or each whole unit, with `unit`) kept with probability `rate`, by a fresh secret; tags tell samples apart."""

    child: Relation
    rate: Fraction
    unit: str | None = None
    tag: str = ""


@dataclass(frozen=True)
class BoundRows(Relation):
    """At most `limit` rows of each unit, chosen pseudo-randomly among that unit's own rows."""

    child: Relation
    unit: str
    limit: Limit


@dataclass(frozen=True)
class BoundGroups(Relation):
    """At most `rows` rows in each of at most `groups` values of `keys`, for each unit."""

    child: Relation
    unit: str
    keys: tuple[Expr, ...]
    groups: Limit
    rows: Limit


BY_NAME: dict[str, type] = {
    node.__name__: node
    for node in (
        Auto, Scan, Where, Project, Union, Distinct, PublicJoin, UnitJoin, KeyJoin, Aggregate, GroupBy, Sample, BoundRows,
        BoundGroups,
    )
}  # fmt: skip
