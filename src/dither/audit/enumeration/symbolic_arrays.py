"""Arrays of lazy random numbers, for code that uses numpy.

Numpy's functions are applied cell by cell where Python's arithmetic gives the same result. Where it does not (short
floats, integers that would wrap around, division by zero), the numbers are decided and numpy computes the result.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np

from dither.audit.enumeration.symbolic import FAILS_FOR_SOME, MONOTONE, OPERATORS, LazyNumber, to_python

FLOAT_BYTES = 8  # the size of Python's floats; numpy's shorter ones round differently


class LazyArray:
    """An array of lazy numbers that numpy's functions accept."""

    __array_priority__ = 1000
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, cells: Any, dtype: Any) -> None:
        self.cells, self.dtype = cells, np.dtype(dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.cells.shape)

    def __deepcopy__(self, memo: Any) -> LazyArray:
        return self

    def __len__(self) -> int:
        return len(self.cells)

    def __iter__(self) -> Any:
        return iter(self.cells)

    def __getitem__(self, key: Any) -> Any:
        selected = self.cells[key]
        return LazyArray(selected, self.dtype) if isinstance(selected, np.ndarray) else selected

    def reshape(self, *shape: Any) -> LazyArray:
        """Return the same cells in another shape."""
        return LazyArray(self.cells.reshape(*shape), self.dtype)

    def astype(self, dtype: Any) -> Any:
        """Convert the type: cells stay lazy if an integer type holds all their values, and are decided otherwise."""
        if np.dtype(dtype).kind in "iu":
            cells = _truncate_cells(self.cells) if self.dtype.kind == "f" else self.cells
            if all(_fits(cell, np.dtype(dtype)) for cell in cells.ravel()):
                return LazyArray(cells, dtype)
        return self.__array__().astype(dtype)

    def tolist(self) -> Any:
        """Decide the cells and return them as a list."""
        return self.__array__().tolist()

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        values = [to_python(cell) for cell in self.cells.ravel()]
        return np.array(values, dtype or self.dtype).reshape(self.cells.shape)

    def __repr__(self) -> str:
        return repr(self.__array__())

    def __str__(self) -> str:
        return str(self.__array__())

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__" or options or ufunc.__name__ not in {*OPERATORS, *MONOTONE, "absolute"}:
            return getattr(ufunc, method)(*(decide(each) for each in inputs), **options)
        samples = [_dtype_sample(each) for each in inputs]
        result_dtype = ufunc(*samples).dtype
        any_float = any(np.asarray(each).dtype.kind == "f" for each in samples)
        working_dtype = np.result_type(*samples) if any_float else result_dtype
        short_floats = any(each.kind == "f" and each.itemsize != FLOAT_BYTES for each in (result_dtype, working_dtype))
        if short_floats or _may_divide_by_zero(ufunc, inputs):
            return ufunc(*(decide(each) for each in inputs))
        out = _map_cells(ufunc, inputs, floats=working_dtype.kind == "f" and len(inputs) == 2)
        if result_dtype.kind in "iu" and not all(_fits(cell, result_dtype) for cell in out.ravel()):
            return ufunc(*(decide(each) for each in inputs))
        return out.astype(bool) if result_dtype.kind == "b" else LazyArray(out, result_dtype)

    def __array_function__(self, function: Any, types: Any, inputs: Any, options: Any) -> Any:
        if function is np.searchsorted and isinstance(inputs[1], LazyArray):
            return search_sorted(*inputs)
        return function(*(decide(each) for each in inputs), **options)

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
        return self.__array__() ^ decide(other)

    def __and__(self, other: Any) -> Any:
        return self.__array__() & decide(other)

    def __mod__(self, other: Any) -> Any:
        return self.__array__() % decide(other)


def decide(value: Any) -> Any:
    """Return an array, number or sequence with every lazy number in it decided."""
    if isinstance(value, LazyArray):
        return value.__array__()
    if isinstance(value, list | tuple):
        make = getattr(type(value), "_make", type(value))  # named tuples take their fields one by one
        return make(decide(each) for each in value)
    return value.decide() if isinstance(value, LazyNumber) else value


def _dtype_sample(value: Any) -> Any:
    """Return a value of the same type, from which numpy shows the type of a result."""
    if isinstance(value, LazyArray):
        return np.ones(1, value.dtype)
    if isinstance(value, LazyNumber):
        try:
            return type(value.value_at(value.uniform.low))(1)
        except (ArithmeticError, ValueError):
            raise value.uniform.chooser.refuse(FAILS_FOR_SOME) from None
    return np.asarray(value) if isinstance(value, list | tuple) else value


def _may_divide_by_zero(ufunc: Any, inputs: Any) -> bool:
    """Return True if the function may divide by zero, where numpy and Python differ."""
    return ufunc in (np.divide, np.floor_divide) and (
        isinstance(inputs[1], LazyArray | LazyNumber) or not np.all(inputs[1])
    )


def _map_cells(ufunc: Any, inputs: Any, *, floats: bool) -> Any:
    """Apply the function to every cell; with `floats`, as numpy does, convert integers to floats first."""
    cells = np.broadcast_arrays(*(_cells(each) for each in inputs))
    function = OPERATORS.get(ufunc.__name__, abs if ufunc.__name__ == "absolute" else ufunc)
    out = np.empty(cells[0].shape, object)
    for place in np.ndindex(out.shape):
        out[place] = function(*(_to_float(each[place]) if floats else each[place] for each in cells))
    return out


def _truncate_cells(cells: Any) -> Any:
    out = np.empty(cells.shape, object)
    for place in np.ndindex(out.shape):
        cell = cells[place]
        out[place] = math.trunc(cell) if isinstance(cell, LazyNumber) or math.isfinite(cell) else cell
    return out


def _to_float(cell: Any) -> Any:
    return cell.then(float) if isinstance(cell, LazyNumber) else float(cell)


def _fits(cell: Any, dtype: Any) -> bool:
    """Return True if an integer type holds every value of a number; steps are monotone, so its ends are extreme."""
    info = np.iinfo(dtype)
    try:
        ends = (
            [cell.value_at(end) for end in (cell.uniform.low, cell.uniform.high)]
            if isinstance(cell, LazyNumber)
            else [cell]
        )
    except (OverflowError, ValueError):
        return False
    return all(info.min <= each <= info.max for each in ends)


def _cells(value: Any) -> Any:
    if isinstance(value, LazyArray):
        return value.cells
    array = np.asarray(value)
    return array.astype(object)


class LazyTable(np.ndarray[Any, Any]):
    """A table that lazy numbers can index; np.take itself would decide them completely."""

    @cached_property
    def run_numbers(self) -> Any:
        """For each entry, the number of the run of equal entries that it belongs to."""
        table = np.asarray(self)
        return np.concatenate([[0], np.cumsum(table[1:] != table[:-1])])

    def take(self, indices: Any, *rest: Any, **options: Any) -> Any:
        """Return entries of the table; each index is decided only as far as its entry depends on it."""
        table = np.asarray(self)
        if not isinstance(indices, LazyArray):
            return table.take(indices, *rest, **options)
        entries = [table[self._place(index)] for index in indices.cells.ravel()]
        return np.array(entries, self.dtype).reshape(indices.cells.shape)

    def _place(self, index: Any) -> int:
        if not isinstance(index, LazyNumber) or index.steps or index.shift or index.offset:
            return int(to_python(index))
        index.uniform.narrow(lambda raw: int(self.run_numbers[raw]))
        return index.uniform.low


def search_sorted(table: Any, values: LazyArray, side: Any = "left") -> Any:
    """Return np.searchsorted(table, values, side); each value is decided only as far as its place depends on it."""

    def place_of(value: Any) -> int:
        return int(np.searchsorted(table, table.dtype.type(value), side))

    def decide_place(cell: Any) -> int:
        if not isinstance(cell, LazyNumber):
            return place_of(cell)
        return int(cell.uniform.narrow(lambda raw: place_of(cell.value_at(raw))))

    places = [decide_place(cell) for cell in values.cells.ravel()]
    return np.array(places, np.int64).reshape(values.cells.shape)
