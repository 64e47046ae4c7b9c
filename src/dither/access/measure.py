"""Measures: relation -> vector of integers, with its public shape, its sensitivity and its SQL.

    measure.axes(ctx)              -> tuple[Axis(name, values)], the declared keys in their fixed order
    measure.size(ctx)              -> number of cells = product of the axes' lengths x number of values
    measure.labels(ctx)            -> iterator over key tuples, in the order of the vector (values innermost)
    measure.steps(ctx)             -> one lattice step per value: cell integer * step = the quantity
    measure.sensitivity(ctx, unit) -> Sensitivity, exact; raises Unbounded when one unit moves it without limit
    engine.vector(measure)         -> int64 vector of that size (cells without rows are 0)

The vector is flat in C order over shape (len(axis_1), ..., len(axis_k), len(values)). Key values are Fractions or
ints for numbers, text, booleans, microseconds for moments, None for NULL (last). `PartitionCounts` has no axes: its keys
come from the data, `engine.groups(measure)` returns them with their counts for partition selection only.

    count_units(child, unit, keys)       distinct units (per key)
    histogram(child, value, edges, keys) rows per bin
    contributions(child, unit, grid)     units by number of rows: what an automatic bound is found from
    covariance(child, values)            sums of products of all pairs, with 1 as the first value
    gradient(child, ...)                 per-unit clipped gradient sums
"""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from dither.access.expr import Expr
from dither.access.relation import Limit, Relation
from dither.schema import Scalar


@dataclass(frozen=True)
class Key:
    """A grouping expression; its keys are its declared domain, or the listed public `values` (other rows are left out)."""

    name: str
    value: Expr
    values: tuple[Scalar, ...] | None = None


@dataclass(frozen=True)
class Axis:
    """The declared keys of one grouping expression, in their fixed order."""

    name: str
    values: tuple[Scalar, ...]


class Measure(ABC):
    """A vector of integers computed from a relation."""


@dataclass(frozen=True)
class Count(Measure):
    """Rows per key."""

    child: Relation
    keys: tuple[Key, ...] = ()


@dataclass(frozen=True)
class Sum(Measure):
    """Sum of a value per key, in steps of its lattice; NULL adds nothing."""

    child: Relation
    value: Expr
    keys: tuple[Key, ...] = ()


@dataclass(frozen=True)
class Sums(Measure):
    """Several sums per key in one pass, with their joint sensitivity; Constant(1) counts rows."""

    child: Relation
    values: tuple[Expr, ...]
    keys: tuple[Key, ...] = ()


@dataclass(frozen=True)
class RankCounts(Measure):
    """For each point of a public ascending grid, how many values are at most it; then how many values there are."""

    child: Relation
    value: Expr
    grid: tuple[Fraction, ...]


@dataclass(frozen=True)
class Clipped(Measure):
    """Sums per key where each unit's whole vector is first scaled into an L1 or L2 ball of radius `bound` (steps).

    Integer division towards zero, so the norm is at most `bound` exactly, however many rows the unit has.
    """

    child: Relation
    unit: str
    values: tuple[Expr, ...]
    bound: Limit
    norm: Literal["l1", "l2"] = "l2"
    keys: tuple[Key, ...] = ()


@dataclass(frozen=True)
class Linear(Measure):
    """Integer combinations of another measure's cells; each row of `weights` gives one cell."""

    child: Measure
    weights: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class PartitionCounts(Measure):
    """Rows per key that occurs, keys not declared: for partition selection; child bounded by BoundGroups or GroupBy."""

    child: Relation
    keys: tuple[Key, ...]


BY_NAME: dict[str, type] = {
    node.__name__: node for node in (Key, Count, Sum, Sums, RankCounts, Clipped, Linear, PartitionCounts)
}
