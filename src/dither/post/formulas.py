"""Formulas over noisy columns: a small expression tree, and its two forms (affine and ratio) with exact intervals."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dither.plan.expressions.core import EstimatedValue

Values = NDArray[Any]


@dataclass(frozen=True)
class NoisyCell:
    """A noisy column, by its index among the cells of a plan."""

    index: int


@dataclass(frozen=True)
class FixedValue:
    """A literal; None is NULL."""

    value: float | str | bool | None


@dataclass(frozen=True)
class ChosenValue:
    """A number that the kernel chooses privately; it becomes a `FixedValue` once it is known.

    With `half`, it is the middle of a span of this half length: around the value, and moved into the value's range.
    """

    value: EstimatedValue
    half: EstimatedValue | None = None


@dataclass(frozen=True)
class KeyValue:
    """A GROUP BY key, by its index; it carries no noise."""

    index: int


@dataclass(frozen=True)
class FunctionCall:
    """A call of one of `FUNCTIONS`."""

    name: str
    arguments: tuple[Formula, ...]


@dataclass(frozen=True)
class Average:
    """An average, centre + total / size; it lies in [low, high] because every averaged value does."""

    total: Formula
    size: Formula
    centre: FixedValue | ChosenValue
    low: float
    high: float


@dataclass(frozen=True)
class ClampedTo:
    """A formula clamped to [low, high], where its exact value is known to lie."""

    inner: Formula
    low: float
    high: float


@dataclass(frozen=True)
class WindowSum:
    """SUM(inner) OVER (PARTITION BY ... ORDER BY ...), over the rows of the answer that HAVING keeps.

    `order` has terms, each with whether it descends; without any, the sum is that of the whole partition.
    """

    inner: Formula
    partition: tuple[Formula, ...]
    order: tuple[tuple[Formula, bool], ...] = ()


Formula = NoisyCell | FixedValue | ChosenValue | KeyValue | FunctionCall | Average | ClampedTo | WindowSum


@dataclass(frozen=True)
class Affine:
    """The affine form constant + sum of weight * cell, with weights by cell index."""

    constant: float
    weights: Mapping[int, float]


@dataclass(frozen=True)
class Ratio:
    """The form offset + factor * over / under, clamped to [low, high]."""

    over: Affine
    under: Affine
    offset: float = 0.0
    factor: float = 1.0
    low: float = -math.inf
    high: float = math.inf


def evaluate(node: Formula, cells: Sequence[Values], keys: Sequence[Values]) -> Values:
    """Compute a formula for every group.

    Booleans are 1.0 and 0.0. Undefined and NULL results are NaN among numbers and booleans, None among texts.
    """
    match node:
        case NoisyCell(index):
            return cells[index]
        case KeyValue(index):
            return keys[index]
        case FixedValue(str() as value):
            return np.asarray(value, dtype=object)
        case FixedValue(value):
            return np.asarray(math.nan if value is None else float(value))
        case ChosenValue():
            raise TypeError("the value is not chosen yet")
        case WindowSum():
            raise TypeError("windows are replaced by sums before formulas are computed")
        case Average():
            return _evaluate_average(node, cells, keys)
        case ClampedTo(inner, low, high):
            return np.asarray(np.clip(evaluate(inner, cells, keys), low, high))
        case FunctionCall(name, arguments):
            with np.errstate(all="ignore"):
                return np.asarray(FUNCTIONS[name](*(evaluate(part, cells, keys) for part in arguments)))


def _evaluate_average(node: Average, cells: Sequence[Values], keys: Sequence[Values]) -> Values:
    """Compute an average; where the noisy size is not positive, return the centre, or NaN if there is no range."""
    total, size = evaluate(node.total, cells, keys), evaluate(node.size, cells, keys)
    safe = np.where(size > 0, size, 1.0)
    shift = np.where(size > 0, total / safe, 0.0 if math.isfinite(node.high - node.low) else math.nan)
    return np.asarray(np.clip(evaluate(node.centre, cells, keys) + shift, node.low, node.high))


def _divide(over: Values, under: Values) -> Values:
    return np.asarray(np.where(under == 0, math.nan, over / np.where(under == 0, 1.0, under)))


def _round(value: Values, digits: Values | float = 0.0) -> Values:
    power = 10.0 ** np.asarray(digits)
    return np.asarray(np.sign(value) * np.floor(np.abs(value) * power + 0.5) / power)


def _variance(squares: Values, total: Values, size: Values, ddof: Values) -> Values:
    """Compute max(0, (squares - total^2 / size) / (size - lost)) from sums around a centre; `ddof` is 0 or 1."""
    size = np.where(size > ddof, size, math.nan)
    return np.asarray(np.maximum((squares - total**2 / size) / (size - ddof), 0.0))


def _covariance(product: Values, first: Values, second: Values, size: Values, ddof: Values) -> Values:
    size = np.where(size > ddof, size, math.nan)
    return np.asarray((product - first * second / size) / (size - ddof))


def _case_when(*arguments: Values) -> Values:
    """Compute CASE: conditions and results in turn, then the result of ELSE if there is one."""
    arguments = (*arguments, np.asarray(math.nan)) if len(arguments) % 2 == 0 else arguments
    results = _align_types(*arguments[1::2], arguments[-1])
    chosen = results[-1]
    for condition, result in zip(arguments[-3::-2], results[-2::-1], strict=True):
        chosen = np.where(condition == 1, result, chosen)
    return chosen


def _coalesce(*arguments: Values) -> Values:
    *others, result = _align_types(*arguments)
    for value in reversed(others):
        result = np.where(is_missing(value), result, value)
    return result


def _align_types(*arguments: Values) -> list[Values]:
    """Convert mixed arrays to objects with None for NULL: NumPy would turn NaN beside a text into the text 'nan'."""
    if all(value.dtype.kind == "f" for value in arguments):
        return list(arguments)
    return [np.where(is_missing(value), np.asarray(None, dtype=object), value.astype(object)) for value in arguments]


def is_missing(value: Values) -> Values:
    """Return a mask of the elements that are NULL or undefined."""
    if value.dtype.kind != "O":
        return np.isnan(value)
    return np.array([item is None or item != item for item in value.ravel()]).reshape(value.shape)


def _nullif(value: Values, other: Values) -> Values:
    kept, null = _align_types(value, np.asarray(math.nan))
    return np.where(_equals(value, other) == 1, null, kept)


def _isin(value: Values, *options: Values) -> Values:
    matches = _equals(value, options[0])
    for option in options[1:]:
        matches = _or(matches, _equals(value, option))
    return matches


def _comparison(operation: Callable[[Any, Any], Any]) -> Callable[[Values, Values], Values]:
    """Make a comparison that returns NaN where a side is NULL."""

    def compare(one: Values, two: Values) -> Values:
        one, two = np.broadcast_arrays(one, two)
        known = ~(is_missing(one) | is_missing(two))
        result = np.full(one.shape, math.nan)
        result[known] = operation(one[known], two[known])
        return result

    return compare


_equals = _comparison(operator.eq)


def _and(one: Values, two: Values) -> Values:
    """Three-valued AND: false where a side is false, else NaN where a side is NULL."""
    return np.where((one == 0) | (two == 0), 0.0, one * two)


def _or(one: Values, two: Values) -> Values:
    """Three-valued OR: true where a side is true, else NaN where a side is NULL."""
    return np.asarray(1 - _and(1 - one, 1 - two))


def _least(*arguments: Values) -> Values:
    return np.asarray(np.fmin.reduce(np.broadcast_arrays(*arguments)))


def _greatest(*arguments: Values) -> Values:
    return np.asarray(np.fmax.reduce(np.broadcast_arrays(*arguments)))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": lambda one, two: one + two,
    "sub": lambda one, two: one - two,
    "mul": lambda one, two: one * two,
    "div": _divide,
    "mod": lambda one, two: np.where(two == 0, math.nan, np.fmod(one, np.where(two == 0, 1, two))),
    "neg": lambda value: -value,
    "abs": np.abs,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": _round,
    "sign": np.sign,
    "sqrt": lambda value: np.sqrt(np.where(value < 0, math.nan, value)),
    "ln": lambda value: np.log(np.where(value > 0, value, math.nan)),
    "log10": lambda value: np.log10(np.where(value > 0, value, math.nan)),
    "exp": np.exp,
    "power": np.power,
    "least": _least,
    "greatest": _greatest,
    "variance": _variance,
    "covariance": _covariance,
    "case": _case_when,
    "coalesce": _coalesce,
    "nullif": _nullif,
    "isnull": lambda value: is_missing(value).astype(float),
    "isin": _isin,
    "eq": _equals,
    "ne": _comparison(operator.ne),
    "lt": _comparison(operator.lt),
    "le": _comparison(operator.le),
    "gt": _comparison(operator.gt),
    "ge": _comparison(operator.ge),
    "and": _and,
    "or": _or,
    "not": lambda value: 1 - value,
}
# An interval maps through these end by end.
INCREASING_FUNCTIONS = frozenset({"round", "floor", "ceil", "sqrt", "exp", "ln", "log10", "sign"})
# These may decrease or jump, so quantiles of simulated values may miss the true one.
FOLDING_FUNCTIONS = frozenset(
    {"abs", "mod", "power", "case", "nullif", "isnull", "isin", "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "not"}
)


def cells_of(node: Formula) -> frozenset[int]:
    """Return the indexes of the noisy columns that a formula reads."""
    match node:
        case NoisyCell(index):
            return frozenset({index})
        case FunctionCall(_, arguments):
            return frozenset().union(*map(cells_of, arguments))
        case Average(total, size):
            return cells_of(total) | cells_of(size)
        case ClampedTo(inner) | WindowSum(inner):
            return cells_of(inner)
        case _:
            return frozenset()


def is_folding(node: Formula) -> bool:
    """Return True if a formula may decrease or jump, so that quantiles of simulated values may miss the truth."""
    match node:
        case FunctionCall(name, arguments):
            square = name == "mul" and arguments[0] == arguments[1]
            return square or name in FOLDING_FUNCTIONS or any(map(is_folding, arguments))
        case Average(total, size):
            return is_folding(total) or is_folding(size)
        case ClampedTo(inner) | WindowSum(inner):
            return is_folding(inner)
        case _:
            return False


def range_of(node: Formula) -> tuple[float, float] | None:
    """Return the range in which the exact value of an average lies; None for other formulas."""
    return (node.low, node.high) if isinstance(node, Average) else None


def without_range(node: Formula) -> Formula:
    """Return a formula whose value noise may move out of its range: an average, or a variance that may be negative."""
    match node:
        case Average():
            return replace(node, low=-math.inf, high=math.inf)
        case FunctionCall("variance", (squares, total, size, ddof)):
            return FunctionCall("covariance", (squares, total, total, size, ddof))
        case _:
            return node


def strip_increasing(node: Formula) -> tuple[tuple[FunctionCall, ...], Formula]:
    """Split a formula into the increasing functions around it, outermost first, and its core.

    An interval of the core, mapped through these functions, is an interval of the formula.
    """
    if (
        isinstance(node, FunctionCall)
        and node.name in INCREASING_FUNCTIONS
        and all(isinstance(a, FixedValue) for a in node.arguments[1:])
    ):
        outer, core = strip_increasing(node.arguments[0])
        return (node, *outer), core
    return (), node


def as_affine(node: Formula) -> Affine | None:
    """Return a formula as constant + sum of weight * cell, or None if it is not affine."""
    match node:
        case NoisyCell(index):
            return Affine(0.0, {index: 1.0})
        case FixedValue(bool()):
            return None
        case FixedValue(float() | int() as value):
            return Affine(float(value), {})
        case FunctionCall(name, arguments) if name in {"add", "sub", "mul", "div", "neg"}:
            parts = [as_affine(argument) for argument in arguments]
            return (
                None
                if any(part is None for part in parts)
                else _combine_affine(name, *(p for p in parts if p is not None))
            )
        case _:
            return None


def _combine_affine(name: str, first: Affine, second: Affine | None = None) -> Affine | None:
    """Add, subtract, multiply, divide or (without `second`) negate affine forms; None if the result is not affine."""
    if second is None:
        return scale_affine(first, -1.0)
    if name in {"add", "sub"}:
        return add_affine(first, scale_affine(second, 1.0 if name == "add" else -1.0))
    if name == "div":
        return scale_affine(first, 1 / second.constant) if not second.weights and second.constant else None
    if not second.weights:
        return scale_affine(first, second.constant)
    return scale_affine(second, first.constant) if not first.weights else None


def add_affine(first: Affine, second: Affine) -> Affine:
    """Add two affine forms."""
    names = {**first.weights, **second.weights}
    weights = {name: first.weights.get(name, 0.0) + second.weights.get(name, 0.0) for name in names}
    return Affine(first.constant + second.constant, weights)


def scale_affine(form: Affine, factor: float) -> Affine:
    """Multiply an affine form by a number."""
    return Affine(form.constant * factor, {name: weight * factor for name, weight in form.weights.items()})


def as_ratio(node: Formula) -> Ratio | None:
    """Return a formula as offset + factor * affine / affine, or None if it is not such a ratio."""
    match node:
        case Average(total, size, FixedValue(float() as centre), low, high):
            over, under = as_affine(total), as_affine(size)
            return Ratio(over, under, centre, 1.0, low, high) if over and under else None
        case FunctionCall("div", (first, second)):
            return _ratio_of_quotient(first, second)
        case FunctionCall("add" | "sub" | "mul" | "neg" as name, arguments):
            return _ratio_with_constant(name, arguments)
        case _:
            return None


def _ratio_of_quotient(first: Formula, second: Formula) -> Ratio | None:
    """The form of affine / affine, or of ratio / constant."""
    over, under = as_affine(first), as_affine(second)
    if over and under and under.weights:
        return Ratio(over, under)
    inner = as_ratio(first)
    if inner and under and not under.weights and under.constant:
        return _transform_ratio(inner, 0.0, 1 / under.constant)
    return None


def _ratio_with_constant(name: str, arguments: tuple[Formula, ...]) -> Ratio | None:
    """The form of a ratio that is negated, or added to, subtracted from or multiplied by a constant."""
    if name == "neg":
        inner = as_ratio(arguments[0])
        return _transform_ratio(inner, 0.0, -1.0) if inner else None
    for position in (0, 1):
        inner, other = as_ratio(arguments[position]), as_affine(arguments[1 - position])
        if inner and other and not other.weights:
            return _apply_constant(name, inner, other.constant, position)
    return None


def _apply_constant(name: str, inner: Ratio, number: float, position: int) -> Ratio:
    """Add, subtract or multiply a ratio and a number; `position` is the ratio's among the two operands."""
    if name == "mul":
        return _transform_ratio(inner, 0.0, number)
    if name == "add":
        return _transform_ratio(inner, number, 1.0)
    return _transform_ratio(inner, -number, 1.0) if position == 0 else _transform_ratio(inner, number, -1.0)


def _transform_ratio(form: Ratio, add: float, times: float) -> Ratio:
    """The form of ratio * times + add."""
    ends = sorted((form.low * times + add, form.high * times + add)) if times else [add, add]
    return Ratio(form.over, form.under, form.offset * times + add, form.factor * times, ends[0], ends[1])
