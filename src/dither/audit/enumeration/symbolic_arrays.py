"""Arrays of random numbers that are decided as late as possible, for code that works with numpy.

Functions of numpy are taken cell by cell where Python's own arithmetic does the same; where it does not (short floats,
integers that would wrap around, division by zero) the numbers are decided and numpy is asked.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np

from dither.audit.enumeration.symbolic import FAILS, MONOTONE, OPERATORS, Lazy, plain

FLOAT_BYTES = 8  # Python's own floats; numpy's shorter ones round otherwise


class LazyWords:
    """An array of lazy integers that numpy's functions may be called on."""

    __array_priority__ = 1000
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, cells: Any, dtype: Any) -> None:
        self.cells, self.dtype = cells, np.dtype(dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.cells.shape)

    def __deepcopy__(self, memo: Any) -> LazyWords:
        return self

    def __len__(self) -> int:
        return len(self.cells)

    def __iter__(self) -> Any:
        return iter(self.cells)

    def __getitem__(self, key: Any) -> Any:
        found = self.cells[key]
        return LazyWords(found, self.dtype) if isinstance(found, np.ndarray) else found

    def reshape(self, *shape: Any) -> LazyWords:
        """The same words in another shape."""
        return LazyWords(self.cells.reshape(*shape), self.dtype)

    def astype(self, dtype: Any) -> Any:
        """Integers that hold every value stay lazy; anything else is decided."""
        if np.dtype(dtype).kind in "iu":
            cells = _truncated(self.cells) if self.dtype.kind == "f" else self.cells
            if all(_fits(cell, np.dtype(dtype)) for cell in cells.ravel()):
                return LazyWords(cells, dtype)
        return self.__array__().astype(dtype)

    def tolist(self) -> Any:
        """The words, decided."""
        return self.__array__().tolist()

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        decided = [plain(cell) for cell in self.cells.ravel()]
        return np.array(decided, dtype or self.dtype).reshape(self.cells.shape)

    def __repr__(self) -> str:
        return repr(self.__array__())

    def __str__(self) -> str:
        return str(self.__array__())

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__" or options or ufunc.__name__ not in {*OPERATORS, *MONOTONE, "absolute"}:
            return getattr(ufunc, method)(*(known(each) for each in inputs), **options)
        samples = [_sample(each) for each in inputs]
        found = ufunc(*samples).dtype
        works = np.result_type(*samples) if any(np.asarray(each).dtype.kind == "f" for each in samples) else found
        if any(each.kind == "f" and each.itemsize != FLOAT_BYTES for each in (found, works)) or _divides(ufunc, inputs):
            return ufunc(*(known(each) for each in inputs))
        out = _mapped(ufunc, inputs, floats=works.kind == "f" and len(inputs) == 2)
        if found.kind in "iu" and not all(_fits(cell, found) for cell in out.ravel()):
            return ufunc(*(known(each) for each in inputs))
        return out.astype(bool) if found.kind == "b" else LazyWords(out, found)

    def __array_function__(self, function: Any, types: Any, inputs: Any, options: Any) -> Any:
        if function is np.searchsorted and isinstance(inputs[1], LazyWords):
            return sorted_places(*inputs)
        return function(*(known(each) for each in inputs), **options)

    def _operate(self, name: str, *inputs: Any) -> Any:
        return self.__array_ufunc__(getattr(np, name), "__call__", *inputs)

    def __lt__(self, other: Any) -> Any:
        return self._operate("less", self, other)

    def __le__(self, other: Any) -> Any:
        return self._operate("less_equal", self, other)

    def __gt__(self, other: Any) -> Any:
        return self._operate("greater", self, other)

    def __ge__(self, other: Any) -> Any:
        return self._operate("greater_equal", self, other)

    def __eq__(self, other: object) -> Any:
        return self._operate("equal", self, other)

    def __ne__(self, other: object) -> Any:
        return self._operate("not_equal", self, other)

    def __or__(self, other: Any) -> Any:
        return self._operate("bitwise_or", self, other)

    def __lshift__(self, other: Any) -> Any:
        return self._operate("left_shift", self, other)

    def __rshift__(self, other: Any) -> Any:
        return self._operate("right_shift", self, other)

    def __add__(self, other: Any) -> Any:
        return self._operate("add", self, other)

    def __sub__(self, other: Any) -> Any:
        return self._operate("subtract", self, other)

    def __mul__(self, other: Any) -> Any:
        return self._operate("multiply", self, other)

    def __xor__(self, other: Any) -> Any:
        return self.__array__() ^ known(other)

    def __and__(self, other: Any) -> Any:
        return self.__array__() & known(other)

    def __mod__(self, other: Any) -> Any:
        return self.__array__() % known(other)


def known(value: Any) -> Any:
    """An array or number without anything undecided."""
    if isinstance(value, LazyWords):
        return value.__array__()
    if isinstance(value, list | tuple):
        made = getattr(type(value), "_make", type(value))  # named tuples take their fields one by one
        return made(known(each) for each in value)
    return value.decide() if isinstance(value, Lazy) else value


def _sample(value: Any) -> Any:
    """Something of the same type to ask numpy what it would make of it."""
    if isinstance(value, LazyWords):
        return np.ones(1, value.dtype)
    if isinstance(value, Lazy):
        try:
            return type(value.at(value.uniform.low))(1)
        except (ArithmeticError, ValueError):
            raise value.uniform.fork.refuse(FAILS) from None
    return np.asarray(value) if isinstance(value, list | tuple) else value


def _divides(ufunc: Any, inputs: Any) -> bool:
    """Whether it may divide by zero, of which numpy and Python make different things."""
    return ufunc in (np.divide, np.floor_divide) and (isinstance(inputs[1], LazyWords | Lazy) or not np.all(inputs[1]))


def _mapped(ufunc: Any, inputs: Any, *, floats: bool) -> Any:
    """The function of every cell; where numpy works in floating point, integers become floats first."""
    cells = np.broadcast_arrays(*(_cells(each) for each in inputs))
    act = OPERATORS.get(ufunc.__name__, abs if ufunc.__name__ == "absolute" else ufunc)
    out = np.empty(cells[0].shape, object)
    for place in np.ndindex(out.shape):
        out[place] = act(*(_floating(each[place]) if floats else each[place] for each in cells))
    return out


def _truncated(cells: Any) -> Any:
    out = np.empty(cells.shape, object)
    for place in np.ndindex(out.shape):
        cell = cells[place]
        out[place] = math.trunc(cell) if isinstance(cell, Lazy) or math.isfinite(cell) else cell
    return out


def _floating(cell: Any) -> Any:
    return cell.then(float) if isinstance(cell, Lazy) else float(cell)


def _fits(cell: Any, dtype: Any) -> bool:
    """Whether an integer type holds every value of a number: those at its ends are the extremes."""
    info = np.iinfo(dtype)
    try:
        ends = [cell.at(end) for end in (cell.uniform.low, cell.uniform.high)] if isinstance(cell, Lazy) else [cell]
    except (OverflowError, ValueError):
        return False
    return all(info.min <= each <= info.max for each in ends)


def _cells(value: Any) -> Any:
    if isinstance(value, LazyWords):
        return value.cells
    array = np.asarray(value)
    return array.astype(object)


class ExactTable(np.ndarray[Any, Any]):
    """A table that lazy words can look up: np.take never asks its indices how they want to be taken."""

    @cached_property
    def runs(self) -> Any:
        """The number of the run of equal entries that each entry stands in."""
        plain_table = np.asarray(self)
        return np.concatenate([[0], np.cumsum(plain_table[1:] != plain_table[:-1])])

    def take(self, indices: Any, *rest: Any, **options: Any) -> Any:
        """Entries of the table, each word decided only as far as the entry."""
        plain_table = np.asarray(self)
        if not isinstance(indices, LazyWords):
            return plain_table.take(indices, *rest, **options)
        entries = [plain_table[self._place(word)] for word in indices.cells.ravel()]
        return np.array(entries, self.dtype).reshape(indices.cells.shape)

    def _place(self, word: Any) -> int:
        if not isinstance(word, Lazy) or word.steps or word.shift or word.offset:
            return int(plain(word))
        word.uniform.narrow(lambda raw: int(self.runs[raw]))
        return word.uniform.low


def sorted_places(table: Any, words: LazyWords, side: Any = "left") -> Any:
    """np.searchsorted, each word decided only as far as its place."""

    def place(value: Any) -> int:
        return int(np.searchsorted(table, table.dtype.type(value), side))

    def decided(word: Any) -> int:
        return int(word.uniform.narrow(lambda raw: place(word.at(raw)))) if isinstance(word, Lazy) else place(word)

    found = [decided(word) for word in words.cells.ravel()]
    return np.array(found, np.int64).reshape(words.cells.shape)
