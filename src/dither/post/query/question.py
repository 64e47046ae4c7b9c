"""A question as the SQL front understands it: a relation, grouping keys, aggregates, and a recipe for the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

from dither.plan.expressions.core import Expr
from dither.plan.relations.core import Relation
from dither.post.formulas import Formula

Kind = Literal[
    "count", "sum", "avg", "var_samp", "var_pop", "covar_samp", "covar_pop", "corr", "units", "distinct", "quantile",
    "min", "max",
]  # fmt: skip


@dataclass(frozen=True)
class AggregateCall:
    """An aggregate of a query; `values` is empty for COUNT(*), `condition` is its FILTER, `level` a quantile's."""

    kind: Kind
    values: tuple[Expr, ...] = ()
    condition: Expr | None = None
    level: Fraction | None = None


@dataclass(frozen=True)
class OutputColumn:
    """A column of the answer: a key (cells of none) or something computed from aggregates (cells index them)."""

    name: str
    node: Formula


@dataclass(frozen=True)
class Ordering:
    """One ORDER BY term, applied to the noisy answer; NULLs come last unless they are asked for first."""

    node: Formula
    descending: bool
    nulls_first: bool = False


@dataclass(frozen=True)
class Question:
    """All that a query asks, before any choice of measures, bounds or noise."""

    text: str
    unit: str
    relation: Relation
    knows_unit: bool
    keys: tuple[tuple[str, Expr], ...]
    aggregates: tuple[AggregateCall, ...]
    outputs: tuple[OutputColumn, ...]
    having: Formula | None = None
    order: tuple[Ordering, ...] = ()
    limit: int | None = None
    offset: int = 0
    options: Mapping[str, str] = field(default_factory=dict)
