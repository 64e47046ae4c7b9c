"""The rows of an answer: which groups it shows, in which order, and their keys as they are shown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from dither.plan.context import Context
from dither.plan.sql.scope import Scope
from dither.post.estimate.intervals import Estimate, NoisyColumn
from dither.post.estimate.moments import show_moment
from dither.post.estimate.typecheck import domain_type
from dither.post.formulas import Values, evaluate, is_missing
from dither.post.query.query_plan import QueryPlan
from dither.post.query.question import Ordering
from dither.schema import Domain, Moment, Scalar


def take_rows(result: Estimate, rows: Sequence[int], size: int) -> Estimate:
    """Broadcast an estimate to all groups, and take some of them."""

    def take(values: Values) -> Any:
        return np.broadcast_to(np.asarray(values), (size,))[list(rows)]

    return Estimate(take(result.value), take(result.std_error), take(result.low), take(result.high))


def select_rows(
    plan: QueryPlan, columns: Sequence[NoisyColumn], keys: list[Values], groups: Sequence[tuple[Scalar, ...]]
) -> list[int]:
    """Apply HAVING, ORDER BY, LIMIT and OFFSET to noisy values; return the indexes of the groups in their order."""
    cells, size = [column.estimate for column in columns], len(groups)
    passes = np.ones(size, bool)
    if plan.having is not None:
        passes = np.broadcast_to(evaluate(plan.having, cells, keys), (size,)) == 1
    rows = [row for row in range(size) if passes[row] and (plan.selected is None or groups[row] in plan.selected)]
    for term in reversed(plan.order):
        rows = sort_rows(rows, np.broadcast_to(evaluate(term.node, cells, keys), (size,)), term)
    first = plan.question.offset
    return rows[first:] if plan.question.limit is None else rows[first : first + plan.question.limit]


def sort_rows(rows: list[int], values: Values, term: Ordering) -> list[int]:
    """Sort rows by their values, as one term of ORDER BY asks for."""
    null = is_missing(values)
    known = sorted((row for row in rows if not null[row]), key=lambda row: values[row], reverse=term.descending)
    nulls = [row for row in rows if null[row]]
    return nulls + known if term.nulls_first else known + nulls


def key_domains(plan: QueryPlan, context: Context) -> list[Domain]:
    """Return the domain of each GROUP BY key."""
    scope = Scope(plan.question.relation.domain(context))
    return [key.value.domain(scope) for key in plan.keys]


def keys_for_formulas(values: list[Scalar], domain: Domain) -> Values:
    """Key values for formulas: numbers, dates and booleans as floats, texts as objects."""
    if domain_type(domain) != "text":
        return np.array([math.nan if value is None else float(value) for value in values])
    return np.array(values, dtype=object)


def display_keys(values: list[Scalar], domain: Domain) -> list[Any]:
    """Key values for display: dates as dates, rationals as floats."""
    return [display_value(value, domain) for value in values]


def display_value(value: Scalar, domain: Domain) -> Any:
    """Return a key's value for display."""
    if isinstance(domain, Moment) and isinstance(value, int) and not isinstance(value, bool):
        return show_moment(value, domain.precision)
    return float(value) if isinstance(value, Fraction) else value
