"""Random numbers that are decided as late as possible: an interval of integers, split where the code compares it.

A `Lazy` is a number that the running code computes from one uniform integer by steps that never turn back (shifts,
additions, products with constants, floors, logarithms...). A comparison asks only on which side the number falls, so
it splits the interval in two and nothing else has to be enumerated. What cannot be split is enumerated value by value,
and refused beyond `MOST_VALUES`. Floating-point steps are rounded by the machine as in the real run; rounding keeps
order, and the neighbours of every split are checked.
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
NEIGHBOURS = 3
ELSEWHERE = "a replay took another turn: the code reads randomness or keeps state elsewhere"
FAILS = "the code fails for some values of a random number that is not decided: take it by int() or float() first"
Step = Callable[[Any], Any]


Branches = Callable[[], list[tuple[int, Any]]]


class Fork(Protocol):
    """Who chooses among weighted branches."""

    def split(self, branches: Branches, total: int) -> Any:
        """What the branch taken brings; each (weight, what) has probability weight / total."""

    def refuse(self, reason: str) -> Unsupported:
        """The error to raise; the run counts as refused also where the code catches it."""


@dataclass
class Uniform:
    """One uniform integer from `low` to `high`, as far as the run has decided it."""

    fork: Fork
    low: int
    high: int
    spent: bool = False

    def narrow(self, label: Step) -> Any:
        """Decides the label of the number; labels are constant on intervals.

        An error in between is not the code's: it would be raised for some of the numbers only, or elsewhere.
        """
        try:
            return self._narrowed(label)
        except (ArithmeticError, ValueError, TypeError):
            raise self.fork.refuse(FAILS) from None

    def _narrowed(self, label: Step) -> Any:
        if self.spent:
            raise self.fork.refuse("a random word was used again after it had been joined to another")
        whole = self.high - self.low + 1
        low, high, value = self.fork.split(lambda: [(run[1] - run[0] + 1, run) for run in self._runs(label)], whole)
        inside, outside = label(low) == value == label(high), (low - 1, high + 1)
        if not inside or any(self.low <= near <= self.high and label(near) == value for near in outside):
            raise self.fork.refuse(ELSEWHERE)
        self.low, self.high = low, high
        return value

    def _runs(self, label: Step) -> list[tuple[int, int, Any]]:
        """The maximal intervals on which the label is constant."""
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
                raise self.fork.refuse(f"a random number was used in a way that has more than {MOST_VALUES} cases")
            start, value = outside, label(outside)
        return [*runs, (start, self.high, value)]

    def _check(self, label: Step, start: int, place: int) -> None:
        """The label changes at `place` and nowhere near it."""
        value = label(start)
        before = range(max(start, place - NEIGHBOURS), place)
        after = range(place, min(self.high, place + NEIGHBOURS) + 1)
        if any(label(near) != value for near in before) or any(label(near) == value for near in after):
            raise self.fork.refuse("the code turns a random number back and forth; its cases are not intervals")


def _told(value: Any) -> tuple[Any, ...]:
    """Equal for the same numbers only: of one type, and zeros of one sign."""
    return type(value), value, isinstance(value, float) and math.copysign(1.0, value)


def _finite(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def _order(value: Any, other: Any) -> int:
    """-1, 0 or 1 for less, equal or more; 2 where one of them is not a number."""
    return 2 if value != value or other != other else int(value > other) - int(value < other)


def _compared(value: Any, other: Any, operation: Callable[[Any, Any], bool]) -> tuple[bool, bool]:
    """Whether the number is one at all, and how the comparison ends."""
    return bool(value == value), bool(operation(value, other))


@dataclass(frozen=True)
class Raised:
    """In place of a number: the code raises."""

    kind: type[Exception]


def _whole(value: Any) -> Any:
    """As int(), with infinities and the like set apart."""
    try:
        return int(value)
    except (OverflowError, ValueError) as error:
        return Raised(type(error))


class Lazy:
    """A number computed from one uniform integer: (integer << shift) + offset, then steps that keep or turn order."""

    __slots__ = ("offset", "shift", "steps", "uniform")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, uniform: Uniform, shift: int = 0, offset: int = 0, steps: tuple[Step, ...] = ()) -> None:
        self.uniform, self.shift, self.offset, self.steps = uniform, shift, offset, steps

    def at(self, raw: int) -> Any:
        """The number if the uniform integer is `raw`."""
        value: Any = (raw << self.shift) + self.offset
        for step in self.steps:
            value = step(value)
        return value

    def decide(self) -> Any:
        """The number itself: every value that it can have is enumerated."""
        return self.uniform.narrow(lambda raw: _told(self.at(raw)))[1]

    def __repr__(self) -> str:
        return repr(self._shown())

    def __str__(self) -> str:
        return str(self._shown())

    def __format__(self, form: str) -> str:
        return format(self._shown(), form)

    def _shown(self) -> Any:
        low, high = self.uniform.low, self.uniform.high
        return self.at(low) if low == high else self.decide()

    def __deepcopy__(self, memo: Any) -> Lazy:
        return self

    def item(self) -> Lazy:
        """As numpy's method, which takes a number out of an array: still undecided."""
        return self

    def then(self, step: Step) -> Lazy:
        """The number that one more step makes of this one."""
        return Lazy(self.uniform, self.shift, self.offset, (*self.steps, step))

    def _with(self, other: Any, operation: Callable[[Any, Any], Any]) -> Any:
        known = plain(other)
        if not isinstance(known, Number) or not _finite(known):
            return operation(self.decide(), known)
        return self.then(lambda value: operation(value, known))

    def _sign(self, other: Any) -> int:
        known = plain(other)
        return int(self.uniform.narrow(lambda raw: _order(self.at(raw), known)))

    def _below(self, other: Any, operation: Callable[[Any, Any], bool]) -> Any:
        """A comparison; not-a-number, from where a logarithm does not exist, lies to one side of the numbers."""
        known = plain(other)
        if not isinstance(known, Number):
            return operation(self.decide(), known)
        return self.uniform.narrow(lambda raw: _compared(self.at(raw), known, operation))[1]

    def __lt__(self, other: Any) -> Any:
        return self._below(other, operator.lt)

    def __le__(self, other: Any) -> Any:
        return self._below(other, operator.le)

    def __gt__(self, other: Any) -> Any:
        return self._below(other, operator.gt)

    def __ge__(self, other: Any) -> Any:
        return self._below(other, operator.ge)

    def __eq__(self, other: object) -> bool:
        return self._sign(other) == 0

    def __ne__(self, other: object) -> bool:
        return self._sign(other) != 0

    def __bool__(self) -> bool:
        return self._sign(0) != 0

    def __int__(self) -> int:
        found = self.then(_whole).decide()
        if isinstance(found, Raised):
            raise found.kind("raised by the code for some random numbers")
        return int(found)

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
        return self.then(abs) if self._below(0, operator.ge) else self.then(operator.neg)

    def __neg__(self) -> Any:
        return self.then(operator.neg)

    def __add__(self, other: Any) -> Any:
        return self._with(other, operator.add)

    def __radd__(self, other: Any) -> Any:
        return self._with(other, lambda value, known: known + value)

    def __sub__(self, other: Any) -> Any:
        return self._with(other, operator.sub)

    def __rsub__(self, other: Any) -> Any:
        return self._with(other, lambda value, known: known - value)

    def __mul__(self, other: Any) -> Any:
        return self._with(other, operator.mul)

    def __rmul__(self, other: Any) -> Any:
        return self._with(other, lambda value, known: known * value)

    def __truediv__(self, other: Any) -> Any:
        return self._with(other, operator.truediv)

    def __floordiv__(self, other: Any) -> Any:
        return self._with(other, operator.floordiv)

    def __rshift__(self, other: Any) -> Any:
        return self._with(other, operator.rshift)

    def __lshift__(self, other: Any) -> Any:
        known = int(plain(other))
        if self.steps:
            return self.then(lambda value: value << known)
        return Lazy(self.uniform, self.shift + known, self.offset << known)

    def __rtruediv__(self, other: Any) -> Any:
        return plain(other) / self.decide()

    def __or__(self, other: Any) -> Any:
        if isinstance(other, Lazy):
            return joined(self, other)
        return self.decide() | plain(other)

    def __ror__(self, other: Any) -> Any:
        known = int(plain(other))
        top = self.at(self.uniform.high)
        if self.steps or self.offset < 0 or known & ((1 << top.bit_length()) - 1):
            return known | self.decide()
        return Lazy(self.uniform, self.shift, self.offset + known)

    def __and__(self, other: Any) -> Any:
        return self.decide() & plain(other)

    def __xor__(self, other: Any) -> Any:
        return self.decide() ^ plain(other)

    def __mod__(self, other: Any) -> Any:
        return self.decide() % plain(other)

    def __pow__(self, other: Any) -> Any:
        return self.decide() ** plain(other)

    __rand__, __rxor__ = __and__, __xor__

    def round(self, decimals: int = 0, out: Any = None) -> Any:
        """As numpy's method."""
        return self.then(lambda value: np.round(value, decimals))

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """Numpy's functions of one number, where they keep order; others see the number itself."""
        if method == "__call__" and not options and ufunc.__name__ in MONOTONE and len(inputs) == 1:
            return self.then(ufunc)
        single = not any(isinstance(each, np.ndarray) for each in inputs)
        if single and method == "__call__" and not options and ufunc.__name__ in OPERATORS and len(inputs) == 2:
            first, second = inputs
            dunder = OPERATORS[ufunc.__name__]
            return dunder(first, second) if isinstance(first, Lazy) else dunder(plain(first), second)
        return getattr(ufunc, method)(*(plain(each) for each in inputs), **options)


MONOTONE = frozenset(
    {"log", "log2", "log10", "log1p", "exp", "expm1", "sqrt", "floor", "ceil", "rint", "trunc", "negative"}
)
OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "divide": operator.truediv,
    "less": operator.lt, "less_equal": operator.le, "greater": operator.gt, "greater_equal": operator.ge,
    "equal": operator.eq, "not_equal": operator.ne, "left_shift": operator.lshift, "right_shift": operator.rshift,
    "bitwise_or": operator.or_, "floor_divide": operator.floordiv,
}  # fmt: skip


def plain(value: Any) -> Any:
    """A number of Python's own; a lazy one is decided."""
    if isinstance(value, Lazy):
        return value.decide()
    return value.item() if isinstance(value, np.generic) else value


def joined(high: Lazy, low: Lazy) -> Any:
    """`high | low` where high ends in as many zeros as low has digits: one longer uniform integer."""
    first, second = high.uniform, low.uniform
    if high.steps or low.steps or low.shift or low.offset or first is second:
        return high.decide() | low.decide()
    if second.high >= 1 << high.shift or high.offset & ((1 << high.shift) - 1):
        return high.decide() | low.decide()
    if first.low == first.high:
        return Lazy(second, 0, high.at(first.low))
    if second.low != 0 or second.high != (1 << high.shift) - 1:
        return Lazy(second, 0, high.decide())
    whole = Uniform(first.fork, first.low << high.shift, first.high << high.shift | second.high)
    first.spent = second.spent = True
    return Lazy(whole, 0, high.offset)
