"""The cost of a release, for its quote and its documents: for one unit, and for a user with k actions."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import log, pi, sqrt

from dither.loss import ZCDP, Loss, Pure
from dither.privacy.accounting.conversion import as_zcdp, epsilon_at
from dither.privacy.mechanisms import DiscreteGaussian
from dither.release.question import NORMAL_95, ReleaseQuestion

GROUPS = (1, 2, 5, 10, 50, 100, 1000)


@dataclass(frozen=True)
class ColumnFacts:
    """The noise of one column, and its loss for a user with k actions in it, each in a cell of its own."""

    name: str
    description: str
    condition: str
    sigma: float
    variance: Fraction
    error_95: float
    k: int
    k_rho: Fraction
    k_epsilon: float
    k_epsilon_tight: float


@dataclass(frozen=True)
class GroupRow:
    """The loss of somebody with `size` units, all in different cells or all in one cell."""

    size: int
    distinct_rho: float
    distinct_epsilon: float
    same_rho: float
    same_epsilon: float


def formula_epsilon(rho: float, delta: float) -> float:
    """Return rho + sqrt(4 rho ln(sqrt(pi rho) / delta)), a simple conversion that is never too small.

    >>> round(formula_epsilon(0.005, 1e-5), 2)
    0.44
    """
    if rho == 0:
        return 0.0
    inside = 4 * rho * log(sqrt(pi * rho) / delta)
    return rho + sqrt(max(0.0, inside))


@cache
def tight_epsilon(loss: Loss, delta: Fraction) -> float:
    """Return the smallest epsilon that the whole curve of the loss gives at this delta; every document asks for it."""
    return float(epsilon_at(loss, delta))


def column_facts(question: ReleaseQuestion) -> tuple[ColumnFacts, ...]:
    """Return the facts of every column."""
    delta = question.spec.privacy.delta
    found = []
    for column, variance, square in zip(
        question.spec.columns, question.mechanism.variances, question.squares, strict=True
    ):
        sigma, rho = DiscreteGaussian(variance).std(), column.k * square / (2 * variance)
        epsilon, tight = formula_epsilon(float(rho), float(delta)), tight_epsilon(ZCDP(rho), delta)
        condition, error = column.where or "all rows", float(NORMAL_95) * sigma
        found.append(
            ColumnFacts(
                column.name, column.description, condition, sigma, variance, error, column.k, rho, epsilon, tight
            )
        )
    return tuple(found)


def total_for_k(columns: tuple[ColumnFacts, ...]) -> Fraction:
    """Return the rho of a user who has k actions in every column, each in a cell of its own."""
    return sum((column.k_rho for column in columns), Fraction(0))


def group_rows(loss: Loss, delta: Fraction) -> tuple[GroupRow, ...]:
    """Return the loss of several units that change together, by size; empty for losses without a simple rule."""
    if isinstance(loss, Pure):
        loss = as_zcdp(loss)
    if not isinstance(loss, ZCDP) or loss.delta:
        return ()
    rows = []
    for size in GROUPS:
        distinct, same = ZCDP(size * loss.rho), ZCDP(size * size * loss.rho)
        rows.append(
            GroupRow(
                size,
                float(distinct.rho),
                tight_epsilon(distinct, delta),
                float(same.rho),
                tight_epsilon(same, delta),
            )
        )
    return tuple(rows)
