"""Measures: relation -> vector of integers, with its public shape, its sensitivity and its SQL.

    measure.axes(ctx)              -> tuple[Axis(name, values)], the declared keys in their fixed order
    measure.size(ctx)              -> number of cells = product of the axes' lengths x number of values
    measure.labels(ctx)            -> iterator over key tuples, in the order of the vector (values innermost)
    measure.steps(ctx)             -> one lattice step per value: a cell stands for its integer * step
    measure.sensitivity(ctx, unit) -> Sensitivity in steps, exact; raises Unbounded if one unit's effect is unbounded
    engine.vector(measure)         -> int64 vector of that size (cells without rows are 0)

The vector is flat in C order over shape (len(axis_1), ..., len(axis_k), len(values)). Key values are Fractions or ints
for numbers, text, booleans, microseconds for moments, None for NULL (last). `PartitionCounts` has no axes: its keys
come from the data; `engine.groups(measure)` returns them with their counts, for partition selection only.

    count_units(child, unit, keys)       distinct units (per key)
    histogram(child, value, edges, keys) rows per bin
    contributions(child, unit, edges)    units by number of rows: the input for estimating a limit

A unit whose stability is 0 (it does not cover the table) costs nothing, provided that another unit with a budget can
change the rows; a measure that no unit with a budget can change is refused.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product as cartesian
from math import prod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sqlglot import exp

from dither.errors import InvalidPlan, Unbounded, Unsupported
from dither.loss import Sensitivity
from dither.plan.context import Context
from dither.plan.domains import domain_values
from dither.plan.expressions.core import Expr, check_text, domain_of
from dither.plan.relations.core import Relation, memoize
from dither.plan.sql.scope import Scope
from dither.plan.sql.statement import SqlStatement
from dither.plan.stability import Stability
from dither.schema import Domain, Identifier, Reference, Scalar

MAX_CELLS = 1 << 26
LARGEST_INT64 = (1 << 63) - 1
MAX_PER_UNIT = 1 << 31
MAX_SELECTED = 1 << 16

Vector = NDArray[np.int64]


@dataclass(frozen=True)
class SelectedValues:
    """Stands for the listed values of a key that the same request selects first: those at `position` of its keys."""

    position: int


@dataclass(frozen=True)
class GroupKey:
    """A grouping expression; its keys are its declared domain, or the listed public `values` (others are dropped)."""

    name: str
    value: Expr
    values: tuple[Scalar, ...] | SelectedValues | None = None

    def __post_init__(self) -> None:
        for value in self.values if isinstance(self.values, tuple) else ():
            if isinstance(value, str):
                check_text(value)


@dataclass(frozen=True)
class Axis:
    """The declared keys of one grouping expression, in their fixed order."""

    name: str
    values: Sequence[Scalar]


class Measure(ABC):
    """A vector of integers computed from a relation."""

    proof: ClassVar[str]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "proof" not in cls.__dict__:
            raise TypeError(f"{cls.__name__} must name its proof: proof = '<file>.md'")
        for name in {"steps", "sensitivity"} & vars(cls).keys():  # axes may be long, and would be kept
            setattr(cls, name, memoize(vars(cls)[name]))

    @abstractmethod
    def axes(self, ctx: Context) -> tuple[Axis, ...]:
        """Return the declared keys, in their fixed order."""

    @abstractmethod
    def steps(self, ctx: Context) -> tuple[Fraction, ...]:
        """Return one lattice step for each value."""

    @abstractmethod
    def sensitivity(self, ctx: Context, unit: str) -> Sensitivity:
        """Return the most by which one unit can change the vector, in steps."""

    @abstractmethod
    def vector_query(self, statement: SqlStatement) -> VectorQuery:
        """Return SQL for the cells that have rows, and the layout of the vector."""

    def size(self, ctx: Context) -> int:
        """Return the number of cells."""
        return prod(len(axis.values) for axis in self.axes(ctx)) * len(self.steps(ctx))

    def labels(self, ctx: Context) -> Iterator[tuple[Scalar, ...]]:
        """Return the key tuples in the order of the vector; each labels `len(steps)` cells."""
        return cartesian(*(axis.values for axis in self.axes(ctx)))

    def finish(self, cells: Vector) -> Vector:
        """Compute the vector from the cells that the query returned; by default they are the vector."""
        return cells


@dataclass(frozen=True)
class VectorQuery:
    """The statement of a measure and the layout of its vector.

    The statement returns, for each group, columns k0.. (encoded keys), v0.. (`value_count` integers) and b (the number
    of corrected values). `keys` lists the encoded keys of each axis in the order of the vector.
    """

    select: exp.Select
    keys: tuple[Sequence[Any], ...]
    value_count: int


NO_CHANGE = Sensitivity(Fraction(0), Fraction(0), Fraction(0), Fraction(0))


def stability_of(ctx: Context, child: Relation, unit: str) -> Stability:
    """Return the stability of the measured rows for a unit; refuse rows that no unit with a budget can change."""
    unit_stability = child.stability(ctx, unit)
    if unit_stability.max_rows == 0 and all(child.stability(ctx, other).max_rows == 0 for other in ctx.budgeted_units):
        raise Unsupported("no privacy unit with a budget covers these rows; join them to a table that one covers")
    return unit_stability


def require_row_bound(unit_stability: Stability, unit: str) -> int:
    """Return the most rows that one unit can change; if there is no bound, raise Unbounded and say how to set one."""
    if unit_stability.max_rows is not None:
        return unit_stability.max_rows
    if unit_stability.tracks_unit:
        raise Unbounded(
            f"one {unit} could change any number of rows; limit the rows of each {unit} first (max_contributions)"
        )
    raise Unbounded(
        f"one {unit} could change any number of rows; limit them below the join or grouping that drops the {unit}"
    )


def changed_vectors(ctx: Context, own: str, unit: str, unit_stability: Stability) -> int:
    """Return the most vectors, one for each `own` unit, that one `unit` adds or removes; a changed one counts twice."""
    if unit == own:
        return 1
    if ctx.is_coarser(unit, own) and unit_stability.tracks_unit:
        return ctx.number_of_windows(own)
    return 2 if ctx.is_coarser(own, unit) else 2 * require_row_bound(unit_stability, unit)


def axis_of(ctx: Context, key: GroupKey, columns: Mapping[str, Domain]) -> Axis:
    """Return the declared or listed keys of a grouping expression.

    Keys that are still to be selected stand for MAX_SELECTED combinations: their first axis has them all.
    """
    domain = domain_of(key.value, Scope(columns))
    if isinstance(domain, Identifier):
        raise Unsupported("identifiers cannot be GROUP BY keys, since their values are private")
    if isinstance(key.values, SelectedValues):
        return Axis(key.name, range(1 if key.values.position else MAX_SELECTED))
    if key.values is not None:
        if len(set(key.values)) != len(key.values) or not key.values:
            raise InvalidPlan(f"the key {key.name[:40]!r} needs at least one listed value, and no value twice")
        return Axis(key.name, key.values)
    public = ctx.public_values(domain.table, domain.column) if isinstance(domain, Reference) else None
    return Axis(key.name, domain_values(domain, MAX_CELLS, public))
