"""A parsed query: a relation, GROUP BY keys, aggregates, and the formulas that compute columns from them."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, get_args

from dither.plan.expressions.core import Expr
from dither.plan.relations.core import Relation
from dither.post.formulas import Formula

AggregateKind = Literal[
    "count", "sum", "avg", "var_samp", "var_pop", "covar_samp", "covar_pop", "corr", "units", "distinct", "quantile",
    "min", "max", "regr_slope", "regr_intercept", "regr_r2", "regr_count", "regr_avgx", "regr_avgy", "regr_sxx",
    "regr_syy", "regr_sxy",
]  # fmt: skip
# The aggregates of SQL's linear regression; their arguments are y and x, in rows where neither is NULL.
REGRESSIONS = frozenset(kind for kind in get_args(AggregateKind) if kind.startswith("regr_"))
# The aggregates that are computed from sums over rows.
SUMS = frozenset({"count", "sum", "avg", "var_samp", "var_pop", "covar_samp", "covar_pop", "corr", *REGRESSIONS})


@dataclass(frozen=True)
class AggregateCall:
    """An aggregate of a query.

    `values` are its arguments (none for COUNT(*)), `condition` is its FILTER, and `level` that of a quantile.
    """

    kind: AggregateKind
    values: tuple[Expr, ...] = ()
    condition: Expr | None = None
    level: Fraction | None = None


@dataclass(frozen=True)
class OutputColumn:
    """A column of the answer: a key, or a formula whose cells are indexes of aggregates."""

    name: str
    node: Formula


@dataclass(frozen=True)
class Ordering:
    """One ORDER BY term, applied to the noisy answer; NULLs come last unless `nulls_first`."""

    node: Formula
    descending: bool
    nulls_first: bool = False


@dataclass(frozen=True)
class Question:
    """A parsed query, before measures, bounds and noise are chosen; `knows_unit` if each row belongs to one unit.

    `sets` has the keys of each grouping set, by their places; it is empty for a plain GROUP BY.
    """

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
    sets: tuple[tuple[int, ...], ...] = ()
