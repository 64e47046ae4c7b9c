"""The columns of a model: numbers in standard units, and indicators of categories, as plan expressions and for frames.

A number x becomes z = (x - centre) / scale. By its declared bounds, the centre is the middle of the range and the scale
half its width. By private ones, the centre is the median over units of their means, and the scale follows from their
mean distances from it, but is at least a step of the column; values further away than `reach` scales are moved to
there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from dither.errors import InvalidParameter, Unsupported
from dither.plan import expressions as expr
from dither.plan.context import Context
from dither.plan.expressions.core import EstimatedValue, Expr, LiteralValue
from dither.plan.relations.core import Relation
from dither.plan.relations.filter import Filter
from dither.plan.relations.project import Project
from dither.post.noise import Floats
from dither.post.query.span_terms import MANY_STEPS
from dither.post.statistics.source_rows import SourceRows
from dither.schema import Boolean, Category, Number, Reference, Scalar

Standard = Literal["declared", "private"]
# Declared ranges are rounded to this many steps on each side of the middle, private ones to as many in `reach` scales.
RESOLUTION = 1 << 13
# Before a private centre and scale are applied, a declared range has this many steps on each side of its middle.
FINE = 1 << 20
# A private scale is a declared half width divided by a number up to LARGEST_ZOOM, in steps of 1 / ZOOM_STEPS.
LARGEST_ZOOM, ZOOM_STEPS = 1 << 10, 16
MAX_LEVELS = 64
MAX_COLUMNS = 64
ONE = LiteralValue(Fraction(1))


@dataclass(frozen=True)
class ModelColumn:
    """A column of a model: a number with its declared bounds and step, or the indicator of one level of a category."""

    name: str
    source: str
    value: Expr
    low: Fraction
    high: Fraction
    level: Scalar = None
    indicator: bool = False
    step: Fraction = Fraction(0)

    @property
    def middle(self) -> float:
        """The middle of the declared range."""
        return float(self.low + self.high) / 2

    @property
    def is_wide(self) -> bool:
        """True for a number of so many steps that a private range may be far narrower than the declared one."""
        return not self.indicator and self.step > 0 and self.high - self.low >= MANY_STEPS * self.step

    @property
    def half_width(self) -> float:
        """Half the width of the declared range."""
        return float(self.high - self.low) / 2


@dataclass(frozen=True)
class Scaling:
    """The centre and scale of each column, and how far in scales a value may be from it: a number, or one for each."""

    centres: Floats
    scales: Floats
    reach: float | Floats

    def standard(self, raw: Floats) -> Floats:
        """Return the standard units of raw values, one column each."""
        return np.asarray(np.clip((raw - self.centres) / self.scales, -self.reach, self.reach))


@dataclass(frozen=True)
class Design:
    """The columns of a model over rows without NULL, and how their numbers are standardised.

    `rows` is the relation after rows with a NULL in any column were left out. `suffix` ends the tags of private values,
    where one request has several designs. With `wide_only`, only numbers of many steps have private bounds.
    """

    rows: Relation
    columns: tuple[ModelColumn, ...]
    standard: Standard
    reach: int
    suffix: str = ""
    wide_only: bool = False

    @property
    def numbers(self) -> list[int]:
        """The places of the columns that are numbers."""
        return [place for place, column in enumerate(self.columns) if not column.indicator]

    @property
    def private_numbers(self) -> list[int]:
        """The places of the numbers that have private bounds."""
        if self.standard == "declared":
            return []
        return [place for place in self.numbers if self.columns[place].is_wide or not self.wide_only]

    def centre(self, place: int) -> EstimatedValue:
        """Return the private centre of a column, in fine steps of its declared range."""
        return EstimatedValue(f"centre{place}{self.suffix}", -FINE, FINE)

    def zoom(self, place: int) -> EstimatedValue:
        """Return the private zoom of a column: its declared half width over its scale."""
        return EstimatedValue(f"zoom{place}{self.suffix}", 1, LARGEST_ZOOM * ZOOM_STEPS, Fraction(1, ZOOM_STEPS))

    def distance(self, place: int) -> Expr:
        """Return the distance of a column from its private centre, in fine steps."""
        return expr.Arithmetic("-", expr.Rescale(self.columns[place].value, FINE), self.centre(place))

    def standard_value(self, place: int) -> Expr:
        """Return a column in standard units; an indicator is 0 or 1."""
        column = self.columns[place]
        if column.indicator:
            return column.value
        if place not in self.private_numbers:
            return _multiply(expr.Rescale(column.value, RESOLUTION), Fraction(1, RESOLUTION))
        zoomed = expr.Arithmetic("*", self.distance(place), self.zoom(place))
        rounded = expr.Rounded("round", zoomed, Fraction(FINE * self.reach, RESOLUTION))
        return expr.Clamp(_multiply(rounded, Fraction(1, FINE)), Fraction(-self.reach), Fraction(self.reach))

    def relation(self) -> Relation:
        """Return the rows with the columns in standard units, named z0, z1, ..."""
        names = [f"z{place}" for place in range(len(self.columns))]
        return Project(self.rows, tuple((name, self.standard_value(p)) for p, name in enumerate(names)))

    def scaling(self, chosen: Mapping[str, int]) -> Scaling:
        """Return the centres and scales in raw units, from the values that the kernel chose."""
        centres, scales = np.zeros(len(self.columns)), np.ones(len(self.columns))
        for place in self.numbers:
            column = self.columns[place]
            centres[place], scales[place] = column.middle, column.half_width
            if place in self.private_numbers:
                steps = -FINE + chosen[f"centre{place}{self.suffix}"] - 1
                centres[place] += steps / FINE * column.half_width
                scales[place] /= chosen[f"zoom{place}{self.suffix}"] / ZOOM_STEPS
        reach = float(self.reach) if self.standard == "private" else 1.0
        return Scaling(centres, scales, reach if self.numbers else 1.0)


def _multiply(value: Expr, factor: Fraction) -> Expr:
    return expr.Arithmetic("*", LiteralValue(factor), value)


def read_columns(rows: SourceRows, names: Sequence[str], all_levels: bool = False) -> tuple[ModelColumn, ...]:
    """Return the columns of a model; a category has an indicator for each level but its first, or for all of them."""
    columns: list[ModelColumn] = []
    for name in names:
        columns += _columns_of(rows, name, all_levels)
    if len(columns) > MAX_COLUMNS:
        raise Unsupported(f"a model may have at most {MAX_COLUMNS} columns, categories counted by level")
    return tuple(columns)


def _columns_of(rows: SourceRows, name: str, all_levels: bool) -> list[ModelColumn]:
    """Return the columns that one column or expression of the source makes."""
    value, domain = rows.expression(name), rows.domain(name)
    match domain:
        case Number(lo=low, hi=high):
            if low == high:
                raise InvalidParameter(f"{name} has only one declared value; leave it out")
            if low == 0 and high == domain.step == 1:  # what is 0 or 1 needs no centre and no scale
                return [ModelColumn(name, name, _present(value), low, high, True, True)]
            return [ModelColumn(name, name, value, low, high, step=Fraction(domain.step))]
        case Boolean():
            return [ModelColumn(name, name, _present(expr.AsNumber(value)), Fraction(0), Fraction(1), True, True)]
        case Category() | Reference():
            levels = levels_of(rows.context, name, domain)
            return [_indicator(name, value, level) for level in (levels if all_levels else levels[1:])]
        case _:
            raise Unsupported(f"{name} cannot be a column of a model: give numbers, booleans or declared categories")


def _present(value: Expr) -> Expr:
    """Return a value with 0 for NULL; rows with NULL in a column of a model are left out before."""
    return expr.Coalesce((value, LiteralValue(Fraction(0))))


def _indicator(name: str, value: Expr, level: Scalar) -> ModelColumn:
    present = _present(expr.AsNumber(expr.Compare("=", value, LiteralValue(level))))
    return ModelColumn(f"{name}={level}", name, present, Fraction(0), Fraction(1), level, True)


def levels_of(context: Context, name: str, domain: Category | Reference) -> tuple[Scalar, ...]:
    """Return the declared values of a category; refuse too many of them."""
    public = context.public_values(domain.table, domain.column) if isinstance(domain, Reference) else domain.values
    if not public or not 2 <= len(public) <= MAX_LEVELS:
        raise Unsupported(f"{name} must have 2 to {MAX_LEVELS} declared values to be a column of a model")
    return tuple(public)


def rows_without_null(rows: SourceRows, names: Sequence[str]) -> Relation:
    """Return the relation of the source without the rows in which one of the columns is NULL."""
    relation, scope = rows.question(["COUNT(*)"]).relation, rows.scope
    values = [rows.expression(name) for name in names]
    present = [expr.Not(expr.IsNull(value)) for value in values if value.domain(scope).nullable]
    return Filter(relation, expr.And(tuple(present))) if present else relation


def read_frame(columns: Sequence[ModelColumn], frame: Any) -> Floats:
    """Return the raw values of a frame, one column for each of the model's; the frame maps names to sequences."""
    missing = [column.source for column in columns if column.source not in _names(frame)]
    if missing:
        raise InvalidParameter(f"the data lack the column {missing[0]!r}; the model needs it")
    return np.column_stack([_read_values(column, frame) for column in columns])


def _names(frame: Any) -> Sequence[str]:
    names: Sequence[str] = frame.column_names if hasattr(frame, "column_names") else list(frame)
    return names


def frame_column(frame: Any, name: str) -> list[Any]:
    """Return a column of a pandas, polars or Arrow frame, or of a mapping, as a list."""
    values = frame[name]
    for method in ("to_pylist", "tolist", "to_list"):
        if hasattr(values, method):
            return list(getattr(values, method)())
    return list(values)


def _read_values(column: ModelColumn, frame: Any) -> Floats:
    values = frame_column(frame, column.source)
    if column.indicator:
        return np.array([float(value == column.level) for value in values])
    return np.asarray(np.clip(np.array(values, float), float(column.low), float(column.high)), np.float64)
