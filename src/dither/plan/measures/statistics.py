"""Measures composed of others: histograms, and contributions per unit."""

from __future__ import annotations

from fractions import Fraction

from dither.plan.expressions.core import ColumnRef, Expr
from dither.plan.expressions.numeric import Bucket
from dither.plan.measures.core import GroupKey
from dither.plan.measures.sums import Count
from dither.plan.relations.core import Relation
from dither.plan.relations.group_by import GroupAggregate, GroupBy


def histogram(child: Relation, value: Expr, edges: tuple[Fraction, ...], keys: tuple[GroupKey, ...] = ()) -> Count:
    """Count rows per bin: bin i contains the values from edge i-1 (included) to edge i (excluded)."""
    return Count(child, (*keys, GroupKey("bin", Bucket(value, edges), tuple(range(len(edges) + 1)))))


def contributions(child: Relation, unit: str, edges: tuple[Fraction, ...]) -> Count:
    """Count units by their number of rows: bin i contains those with at least edge i-1 and fewer than edge i rows."""
    per_unit = GroupBy(child, (), (GroupAggregate("rows", "count"),), unit)
    return histogram(per_unit, ColumnRef("rows"), edges)
