"""Lazy random numbers: intervals of integers that are split only where the running code compares them.

A `LazyNumber` is computed from one uniform integer by monotone steps (shifts, additions, products with constants,
floors, logarithms...). A comparison only asks on which side the number falls, so it splits the interval in two, and
nothing else has to be enumerated. A number that cannot be split is enumerated value by value, and refused beyond
`MOST_VALUES` values. Floating-point steps are rounded by the machine as in the real run; rounding is monotone, and the
neighbours of every split are checked.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Number
from typing import Any, Protocol

import numpy as np

from dither.errors import Unsupported

MOST_VALUES = 1 << 16
CHECKED_NEIGHBOURS = 3
NOT_REPRODUCIBLE = (
    "a replay ended differently: the code reads randomness that is not from `bits`, or keeps state between runs"
)
FAILS_FOR_SOME = (
    "the code fails for some values of a random number that is still undecided: convert it by int() or float() first"
)
Step = Callable[[Any], Any]
Branches = Callable[[], list[tuple[int, Any]]]  # returns (weight, result) of each branch


class Chooser(Protocol):
    """Chooses among weighted branches."""

    def choose(self, branches: Branches, total: int) -> Any:
        """Return the result of one branch; a branch (weight, result) has probability weight / total."""

    def refuse(self, reason: str) -> Unsupported:
        """Mark the run as refused and return the error to raise; the mark remains if the code catches the error."""


@dataclass
class Uniform:
    """One uniform integer, which the run has so far narrowed to `low` ... `high`."""

    chooser: Chooser
    low: int
    high: int
    consumed: bool = False

    def narrow(self, label: Step) -> Any:
        """Decide and return the label of the number, where labels are constant on intervals.

        An error raised by `label` is not an outcome of the code, which would raise it for some of the numbers only, or
        at another place; it refuses the run.
        """
        try:
            return self._narrow(label)
        except (ArithmeticError, ValueError, TypeError):
            raise self.chooser.refuse(FAILS_FOR_SOME) from None

    def _narrow(self, label: Step) -> Any:
        if self.consumed:
            raise self.chooser.refuse(
                "a random word was used again after it was joined to another; use the joined word instead"
            )
        total = self.high - self.low + 1
        low, high, value = self.chooser.choose(lambda: [(run[1] - run[0] + 1, run) for run in self._runs(label)], total)
        constant_inside, outside = label(low) == value == label(high), (low - 1, high + 1)
        if not constant_inside or any(self.low <= near <= self.high and label(near) == value for near in outside):
            raise self.chooser.refuse(NOT_REPRODUCIBLE)
        self.low, self.high = low, high
        return value

    def _runs(self, label: Step) -> list[tuple[int, int, Any]]:
        """Return the maximal intervals on which the label is constant, as (first, last, label)."""
        runs: list[tuple[int, int, Any]] = []
        start, value, last = self.low, label(self.low), label(self.high)
        while value != last:
            inside, outside = start, self.high
            while outside - inside > 1:
                middle = (inside + outside) // 2
                inside, outside = (middle, outside) if label(middle) == value else (inside, middle)
            self._check(label, start, outside)
            runs.append((start, inside, value))
            if len(runs) > MOST_VALUES:
                raise self.chooser.refuse(f"an operation on a random number has more than {MOST_VALUES} cases")
            start, value = outside, label(outside)
        return [*runs, (start, self.high, value)]

    def _check(self, label: Step, start: int, place: int) -> None:
        """Check that the label changes at `place` and at no number near it."""
        value = label(start)
        before = range(max(start, place - CHECKED_NEIGHBOURS), place)
        after = range(place, min(self.high, place + CHECKED_NEIGHBOURS) + 1)
        if any(label(near) != value for near in before) or any(label(near) == value for near in after):
            raise self.chooser.refuse("an operation on a random number is not monotone; its cases are not intervals")


def _identity(value: Any) -> tuple[Any, ...]:
    """Return a key that is equal only for the same number of the same type; 0.0 and -0.0 differ."""
    return type(value), value, isinstance(value, float) and math.copysign(1.0, value)


def _is_finite(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def _three_way_comparison(value: Any, other: Any) -> int:
    """Return -1, 0 or 1 for less, equal or greater; 2 if one of them is NaN."""
    return 2 if value != value or other != other else int(value > other) - int(value < other)


def _comparison(value: Any, other: Any, operation: Callable[[Any, Any], bool]) -> tuple[bool, bool]:
    """Return whether the value is a number rather than NaN, and the result of the comparison."""
    return bool(value == value), bool(operation(value, other))


@dataclass(frozen=True)
class Raised:
    """Stands for a value whose conversion raises an exception of this kind."""

    kind: type[Exception]


def _to_int(value: Any) -> Any:
    """Return int(value), or `Raised` where int() raises, as for infinities."""
    try:
        return int(value)
    except (OverflowError, ValueError) as error:
        return Raised(type(error))


class LazyNumber:
    """A number computed from one uniform integer: (integer << shift) + offset, followed by monotone steps."""

    __slots__ = ("offset", "shift", "steps", "uniform")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, uniform: Uniform, shift: int = 0, offset: int = 0, steps: tuple[Step, ...] = ()) -> None:
        self.uniform, self.shift, self.offset, self.steps = uniform, shift, offset, steps

    def value_at(self, raw: int) -> Any:
        """Return the number for the case that the uniform integer is `raw`."""
        value: Any = (raw << self.shift) + self.offset
        for step in self.steps:
            value = step(value)
        return value

    def decide(self) -> Any:
        """Decide and return the number itself; every value that it can have is enumerated."""
        return self.uniform.narrow(lambda raw: _identity(self.value_at(raw)))[1]

    def __repr__(self) -> str:
        return repr(self._display_value())

    def __str__(self) -> str:
        return str(self._display_value())

    def __format__(self, form: str) -> str:
        return format(self._display_value(), form)

    def _display_value(self) -> Any:
        low, high = self.uniform.low, self.uniform.high
        return self.value_at(low) if low == high else self.decide()

    def __deepcopy__(self, memo: Any) -> LazyNumber:
        return self

    def item(self) -> LazyNumber:
        """Return the number itself, still undecided, as numpy's method takes a number out of an array."""
        return self

    def then(self, step: Step) -> LazyNumber:
        """Return the number after one more monotone step."""
        return LazyNumber(self.uniform, self.shift, self.offset, (*self.steps, step))

    def _combine(self, other: Any, operation: Callable[[Any, Any], Any]) -> Any:
        known = to_python(other)
        if not isinstance(known, Number) or not _is_finite(known):
            return operation(self.decide(), known)
        return self.then(lambda value: operation(value, known))

    def _compare(self, other: Any) -> int:
        known = to_python(other)
        return int(self.uniform.narrow(lambda raw: _three_way_comparison(self.value_at(raw), known)))

    def _test(self, other: Any, operation: Callable[[Any, Any], bool]) -> Any:
        """Decide a comparison; values that are NaN, such as logarithms of negative numbers, are a case of their own."""
        known = to_python(other)
        if not isinstance(known, Number):
            return operation(self.decide(), known)
        return self.uniform.narrow(lambda raw: _comparison(self.value_at(raw), known, operation))[1]

    def __lt__(self, other: Any) -> Any:
        return self._test(other, operator.lt)

    def __le__(self, other: Any) -> Any:
        return self._test(other, operator.le)

    def __gt__(self, other: Any) -> Any:
        return self._test(other, operator.gt)

    def __ge__(self, other: Any) -> Any:
        return self._test(other, operator.ge)

    def __eq__(self, other: object) -> bool:
        return self._compare(other) == 0

    def __ne__(self, other: object) -> bool:
        return self._compare(other) != 0

    def __bool__(self) -> bool:
        return self._compare(0) != 0

    def __int__(self) -> int:
        whole = self.then(_to_int).decide()
        if isinstance(whole, Raised):
            raise whole.kind("int() fails for this value of a random number")
        return int(whole)

    def __index__(self) -> int:
        return operator.index(self.decide())

    def __float__(self) -> float:
        return float(self.decide())

    def __round__(self, digits: int | None = None) -> Any:
        return self.then(lambda value: round(value, digits))

    def __floor__(self) -> Any:
        return self.then(math.floor)

    def __ceil__(self) -> Any:
        return self.then(math.ceil)

    def __trunc__(self) -> Any:
        return self.then(math.trunc)

    def __abs__(self) -> Any:
        return self.then(abs) if self._test(0, operator.ge) else self.then(operator.neg)

    def __neg__(self) -> Any:
        return self.then(operator.neg)

    def __add__(self, other: Any) -> Any:
        return self._combine(other, operator.add)

    def __radd__(self, other: Any) -> Any:
        return self._combine(other, lambda value, known: known + value)

    def __sub__(self, other: Any) -> Any:
        return self._combine(other, operator.sub)

    def __rsub__(self, other: Any) -> Any:
        return self._combine(other, lambda value, known: known - value)

    def __mul__(self, other: Any) -> Any:
        return self._combine(other, operator.mul)

    def __rmul__(self, other: Any) -> Any:
        return self._combine(other, lambda value, known: known * value)

    def __truediv__(self, other: Any) -> Any:
        return self._combine(other, operator.truediv)

    def __floordiv__(self, other: Any) -> Any:
        return self._combine(other, operator.floordiv)

    def __rshift__(self, other: Any) -> Any:
        return self._combine(other, operator.rshift)

    def __lshift__(self, other: Any) -> Any:
        known = int(to_python(other))
        if self.steps:
            return self.then(lambda value: value << known)
        return LazyNumber(self.uniform, self.shift + known, self.offset << known)

    def __rtruediv__(self, other: Any) -> Any:
        return to_python(other) / self.decide()

    def __or__(self, other: Any) -> Any:
        if isinstance(other, LazyNumber):
            return concatenate_words(self, other)
        return self.decide() | to_python(other)

    def __ror__(self, other: Any) -> Any:
        known = int(to_python(other))
        top = self.value_at(self.uniform.high)
        if self.steps or self.offset < 0 or known & ((1 << top.bit_length()) - 1):
            return known | self.decide()
        return LazyNumber(self.uniform, self.shift, self.offset + known)

    def __and__(self, other: Any) -> Any:
        return self.decide() & to_python(other)

    def __xor__(self, other: Any) -> Any:
        return self.decide() ^ to_python(other)

    def __mod__(self, other: Any) -> Any:
        return self.decide() % to_python(other)

    def __pow__(self, other: Any) -> Any:
        return self.decide() ** to_python(other)

    __rand__, __rxor__ = __and__, __xor__

    def round(self, decimals: int = 0, out: Any = None) -> Any:
        """Round as numpy's method does."""
        return self.then(lambda value: np.round(value, decimals))

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """Apply numpy's monotone functions lazily; decide the number for all others."""
        if method == "__call__" and not options and ufunc.__name__ in MONOTONE and len(inputs) == 1:
            return self.then(ufunc)
        no_arrays = not any(isinstance(each, np.ndarray) for each in inputs)
        if no_arrays and method == "__call__" and not options and ufunc.__name__ in OPERATORS and len(inputs) == 2:
            first, second = inputs
            operation = OPERATORS[ufunc.__name__]
            return operation(first, second) if isinstance(first, LazyNumber) else operation(to_python(first), second)
        return getattr(ufunc, method)(*(to_python(each) for each in inputs), **options)


MONOTONE = frozenset(
    {"log", "log2", "log10", "log1p", "exp", "expm1", "sqrt", "floor", "ceil", "rint", "trunc", "negative"}
)
OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "divide": operator.truediv,
    "less": operator.lt, "less_equal": operator.le, "greater": operator.gt, "greater_equal": operator.ge,
    "equal": operator.eq, "not_equal": operator.ne, "left_shift": operator.lshift, "right_shift": operator.rshift,
    "bitwise_or": operator.or_, "floor_divide": operator.floordiv,
}  # fmt: skip


def to_python(value: Any) -> Any:
    """Return a number as one of Python's types; decide a lazy one."""
    if isinstance(value, LazyNumber):
        return value.decide()
    return value.item() if isinstance(value, np.generic) else value


def concatenate_words(high: LazyNumber, low: LazyNumber) -> Any:
    """Return `high | low`, as one longer uniform integer where high ends in as many zero bits as low has bits."""
    first, second = high.uniform, low.uniform
    if high.steps or low.steps or low.shift or low.offset or first is second:
        return high.decide() | low.decide()
    if second.high >= 1 << high.shift or high.offset & ((1 << high.shift) - 1):
        return high.decide() | low.decide()
    if first.low == first.high:
        return LazyNumber(second, 0, high.value_at(first.low))
    if second.low != 0 or second.high != (1 << high.shift) - 1:
        return LazyNumber(second, 0, high.decide())
    combined = Uniform(first.chooser, first.low << high.shift, first.high << high.shift | second.high)
    first.consumed = second.consumed = True
    return LazyNumber(combined, 0, high.offset)
