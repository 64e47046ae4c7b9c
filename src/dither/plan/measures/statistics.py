"""Measures composed of others: histograms, contributions per unit, covariances and gradients."""

from __future__ import annotations

from fractions import Fraction
from typing import Literal

from dither.plan.expressions.core import ColumnRef, Expr, LiteralValue
from dither.plan.expressions.numeric import Arithmetic, Bucket, Function, Rounded
from dither.plan.measures.clipped import ClippedSums
from dither.plan.measures.core import GroupKey
from dither.plan.measures.sums import Count, SumVector
from dither.plan.relations.core import Relation
from dither.plan.relations.group_by import GroupAggregate, GroupBy
from dither.plan.stability import RowLimit


def histogram(child: Relation, value: Expr, edges: tuple[Fraction, ...], keys: tuple[GroupKey, ...] = ()) -> Count:
    """Count rows per bin: bin i contains the values from edge i-1 (included) to edge i (excluded)."""
    return Count(child, (*keys, GroupKey("bin", Bucket(value, edges), tuple(range(len(edges) + 1)))))


def contributions(child: Relation, unit: str, edges: tuple[Fraction, ...]) -> Count:
    """Count units by their number of rows: bin i contains those with at least edge i-1 and fewer than edge i rows."""
    per_unit = GroupBy(child, (), (GroupAggregate("rows", "count"),), unit)
    return histogram(per_unit, ColumnRef("rows"), edges)


def covariance(child: Relation, values: tuple[Expr, ...]) -> SumVector:
    """Sum the products of all pairs i <= j of (1, *values): the count, the sums, the squares and the products."""
    terms = (LiteralValue(1), *values)
    pairs = [(i, j) for i in range(len(terms)) for j in range(i, len(terms))]
    return SumVector(child, tuple(_product(terms[i], terms[j]) for i, j in pairs))


def _product(left: Expr, right: Expr) -> Expr:
    """Multiply two terms; a left factor of 1 is left out."""
    return right if left == LiteralValue(1) else Arithmetic("*", left, right)


def gradient(
    child: Relation,
    unit: str,
    features: tuple[Expr, ...],
    target: Expr,
    weights: tuple[Fraction, ...],
    *,
    kind: Literal["linear", "logistic"],
    bound: RowLimit,
    step: Fraction = Fraction(1, 1000),
) -> ClippedSums:
    """Sum the gradient of a loss at public weights over units, each unit clipped to an L2 norm of `bound` steps."""
    score: Expr = LiteralValue(0)
    for weight, feature in zip(weights, features, strict=True):
        score = Arithmetic("+", score, Rounded("round", Arithmetic("*", LiteralValue(weight), feature), step))
    if kind == "logistic":
        score = Function("logistic", score, step)
    residual = Arithmetic("-", score, target)
    parts = tuple(Rounded("round", Arithmetic("*", residual, feature), step) for feature in features)
    return ClippedSums(child, unit, parts, bound)
