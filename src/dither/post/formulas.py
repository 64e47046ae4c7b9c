"""What is computed from noisy columns: a small tree of arithmetic, and the two shapes that have exact intervals."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dither.errors import InvalidQuery

Values = NDArray[Any]


@dataclass(frozen=True)
class NoisyCell:
    """The measured column of that index."""

    index: int


@dataclass(frozen=True)
class FixedValue:
    """A literal; None is NULL."""

    value: float | str | bool | None


@dataclass(frozen=True)
class KeyValue:
    """A grouping key, known without any measurement."""

    index: int


@dataclass(frozen=True)
class FunctionCall:
    """A function of other nodes."""

    name: str
    arguments: tuple[Formula, ...]


@dataclass(frozen=True)
class Average:
    """centre + total / size, which lies in [low, high] because every value does."""

    total: Formula
    size: Formula
    centre: float
    low: float
    high: float


@dataclass(frozen=True)
class ClampedTo:
    """A function that is known to lie in [low, high], whatever the noise says."""

    inner: Formula
    low: float
    high: float


Formula = NoisyCell | FixedValue | KeyValue | FunctionCall | Average | ClampedTo


@dataclass(frozen=True)
class Affine:
    """constant + sum of weight * cell."""

    constant: float
    weights: Mapping[int, float]


@dataclass(frozen=True)
class Ratio:
    """offset + factor * over / under, kept within [low, high]."""

    over: Affine
    under: Affine
    offset: float = 0.0
    factor: float = 1.0
    low: float = -math.inf
    high: float = math.inf


def evaluate(node: Formula, cells: Sequence[Values], keys: Sequence[Values]) -> Values:
    """The node's value for every group; what is undefined or unknown is NaN (numbers, truth as 1 or 0) or None."""
    match node:
        case NoisyCell(index):
            return cells[index]
        case KeyValue(index):
            return keys[index]
        case FixedValue(str() as value):
            return np.asarray(value, dtype=object)
        case FixedValue(value):
            return np.asarray(math.nan if value is None else float(value))
        case Average():
            return _mean(node, cells, keys)
        case ClampedTo(inner, low, high):
            return np.asarray(np.clip(evaluate(inner, cells, keys), low, high))
        case FunctionCall(name, arguments):
            with np.errstate(all="ignore"):
                return np.asarray(FUNCTIONS[name](*(evaluate(part, cells, keys) for part in arguments)))


def _mean(node: Average, cells: Sequence[Values], keys: Sequence[Values]) -> Values:
    total, size = evaluate(node.total, cells, keys), evaluate(node.size, cells, keys)
    safe = np.where(size > 0, size, 1.0)
    shift = np.where(size > 0, total / safe, 0.0)
    return np.asarray(np.clip(node.centre + shift, node.low, node.high))


def _divide(over: Values, under: Values) -> Values:
    return np.asarray(np.where(under == 0, math.nan, over / np.where(under == 0, 1.0, under)))


def _round(value: Values, digits: Values | float = 0.0) -> Values:
    power = 10.0 ** np.asarray(digits)
    return np.asarray(np.sign(value) * np.floor(np.abs(value) * power + 0.5) / power)


def _variance(squares: Values, total: Values, size: Values, lost: Values) -> Values:
    """Around a centre: (sum of squares - total^2 / size) / (size - lost), never negative."""
    size = np.where(size > lost, size, math.nan)
    return np.asarray(np.maximum((squares - total**2 / size) / (size - lost), 0.0))


def _covariance(product: Values, first: Values, second: Values, size: Values, lost: Values) -> Values:
    size = np.where(size > lost, size, math.nan)
    return np.asarray((product - first * second / size) / (size - lost))


def _case(*arguments: Values) -> Values:
    arguments = (*arguments, np.asarray(math.nan)) if len(arguments) % 2 == 0 else arguments
    results = _aligned(*arguments[1::2], arguments[-1])
    chosen = results[-1]
    for condition, result in zip(arguments[-3::-2], results[-2::-1], strict=True):
        chosen = np.where(condition == 1, result, chosen)
    return chosen


def _coalesce(*arguments: Values) -> Values:
    *others, result = _aligned(*arguments)
    for value in reversed(others):
        result = np.where(missing(value), result, value)
    return result


def _aligned(*arguments: Values) -> list[Values]:
    """Texts and NULLs as objects, numbers as they are: NaN beside a text would become the text 'nan'."""
    if all(value.dtype.kind == "f" for value in arguments):
        return list(arguments)
    return [np.where(missing(value), np.asarray(None, dtype=object), value.astype(object)) for value in arguments]


def missing(value: Values) -> Values:
    """Where a value is NULL or undefined."""
    if value.dtype.kind != "O":
        return np.isnan(value)
    return np.array([item is None or item != item for item in value.ravel()]).reshape(value.shape)


def _nullif(value: Values, other: Values) -> Values:
    one, none = _aligned(value, np.asarray(math.nan))
    return np.where(_equal(value, other) == 1, none, one)


def _isin(value: Values, *options: Values) -> Values:
    found = _equal(value, options[0])
    for option in options[1:]:
        found = _or(found, _equal(value, option))
    return found


def _compared(operation: Callable[[Any, Any], Any]) -> Callable[[Values, Values], Values]:
    """A comparison that is unknown where a side is."""

    def compare(one: Values, two: Values) -> Values:
        one, two = np.broadcast_arrays(one, two)
        known = ~(missing(one) | missing(two))
        result = np.full(one.shape, math.nan)
        result[known] = operation(one[known], two[known])
        return result

    return compare


_equal = _compared(operator.eq)


def _and(one: Values, two: Values) -> Values:
    """False where a side is false, else unknown where a side is: the lesser of the two, NaN between them."""
    return np.where((one == 0) | (two == 0), 0.0, one * two)


def _or(one: Values, two: Values) -> Values:
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
    "case": _case,
    "coalesce": _coalesce,
    "nullif": _nullif,
    "isnull": lambda value: missing(value).astype(float),
    "isin": _isin,
    "eq": _equal,
    "ne": _compared(operator.ne),
    "lt": _compared(operator.lt),
    "le": _compared(operator.le),
    "gt": _compared(operator.gt),
    "ge": _compared(operator.ge),
    "and": _and,
    "or": _or,
    "not": lambda value: 1 - value,
}
RISING = frozenset({"round", "floor", "ceil", "sqrt", "exp", "ln", "log10", "sign"})
FOLDING = frozenset(
    {"abs", "mod", "power", "case", "nullif", "isnull", "isin", "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "not"}
)


def cells_of(node: Formula) -> frozenset[int]:
    """The measured columns that the node reads."""
    match node:
        case NoisyCell(index):
            return frozenset({index})
        case FunctionCall(_, arguments):
            return frozenset().union(*map(cells_of, arguments))
        case Average(total, size):
            return cells_of(total) | cells_of(size)
        case ClampedTo(inner):
            return cells_of(inner)
        case _:
            return frozenset()


def reads_keys(node: Formula) -> bool:
    """Whether the node reads a grouping key."""
    match node:
        case KeyValue():
            return True
        case FunctionCall(_, arguments):
            return any(map(reads_keys, arguments))
        case _:
            return False


def folds_at(node: Formula) -> bool:
    """Whether a function in it turns back or jumps, so that its most common values need not include its true one."""
    match node:
        case FunctionCall(name, arguments):
            square = name == "mul" and arguments[0] == arguments[1]
            return square or name in FOLDING or any(map(folds_at, arguments))
        case Average(total, size):
            return folds_at(total) or folds_at(size)
        case ClampedTo(inner):
            return folds_at(inner)
        case _:
            return False


def strip_monotone(node: Formula) -> tuple[tuple[FunctionCall, ...], Formula]:
    """The rising functions around a core: an interval of the core, mapped through them, is one of the whole."""
    if (
        isinstance(node, FunctionCall)
        and node.name in RISING
        and all(isinstance(a, FixedValue) for a in node.arguments[1:])
    ):
        outer, core = strip_monotone(node.arguments[0])
        return (node, *outer), core
    return (), node


def as_affine(node: Formula) -> Affine | None:
    """The node as constant + sum of weight * cell, where it is one."""
    match node:
        case NoisyCell(index):
            return Affine(0.0, {index: 1.0})
        case FixedValue(bool()):
            return None
        case FixedValue(float() | int() as value):
            return Affine(float(value), {})
        case FunctionCall(name, arguments) if name in {"add", "sub", "mul", "div", "neg"}:
            parts = [as_affine(argument) for argument in arguments]
            return None if any(part is None for part in parts) else _combine(name, *(p for p in parts if p is not None))
        case _:
            return None


def _combine(name: str, first: Affine, second: Affine | None = None) -> Affine | None:
    if second is None:
        return scale(first, -1.0)
    if name in {"add", "sub"}:
        return plus(first, scale(second, 1.0 if name == "add" else -1.0))
    if name == "div":
        return scale(first, 1 / second.constant) if not second.weights and second.constant else None
    if not second.weights:
        return scale(first, second.constant)
    return scale(second, first.constant) if not first.weights else None


def plus(first: Affine, second: Affine) -> Affine:
    """The sum of two affine forms."""
    names = {**first.weights, **second.weights}
    weights = {name: first.weights.get(name, 0.0) + second.weights.get(name, 0.0) for name in names}
    return Affine(first.constant + second.constant, weights)


def scale(form: Affine, factor: float) -> Affine:
    """The form times a number."""
    return Affine(form.constant * factor, {name: weight * factor for name, weight in form.weights.items()})


def ratio(node: Formula) -> Ratio | None:
    """The node as offset + factor * affine / affine, where it is one."""
    match node:
        case Average(total, size, centre, low, high):
            over, under = as_affine(total), as_affine(size)
            return Ratio(over, under, centre, 1.0, low, high) if over and under else None
        case FunctionCall("div", (first, second)):
            return _quotient(first, second)
        case FunctionCall("add" | "sub" | "mul" | "neg" as name, arguments):
            return _shifted(name, arguments)
        case _:
            return None


def _quotient(first: Formula, second: Formula) -> Ratio | None:
    over, under = as_affine(first), as_affine(second)
    if over and under and under.weights:
        return Ratio(over, under)
    inner = ratio(first)
    if inner and under and not under.weights and under.constant:
        return _moved(inner, 0.0, 1 / under.constant)
    return None


def _shifted(name: str, arguments: tuple[Formula, ...]) -> Ratio | None:
    if name == "neg":
        inner = ratio(arguments[0])
        return _moved(inner, 0.0, -1.0) if inner else None
    for position in (0, 1):
        inner, other = ratio(arguments[position]), as_affine(arguments[1 - position])
        if inner and other and not other.weights:
            return _adjusted(name, inner, other.constant, position)
    return None


def _adjusted(name: str, inner: Ratio, number: float, position: int) -> Ratio:
    if name == "mul":
        return _moved(inner, 0.0, number)
    if name == "add":
        return _moved(inner, number, 1.0)
    return _moved(inner, -number, 1.0) if position == 0 else _moved(inner, number, -1.0)


def _moved(form: Ratio, add: float, times: float) -> Ratio:
    ends = sorted((form.low * times + add, form.high * times + add)) if times else [add, add]
    return Ratio(form.over, form.under, form.offset * times + add, form.factor * times, ends[0], ends[1])


def check(name: str) -> str:
    """The function's name, if answers may be passed through it."""
    if name not in FUNCTIONS:
        raise InvalidQuery(
            f"{name.upper()} cannot be applied to an aggregate; these can: {', '.join(sorted(FUNCTIONS))}"
        )
    return name
