"""Outputs of any shape as columns of numbers: values, positions, lengths, differences, and the bits of floats.

The lowest set bit of a float tells the lattice that it lies on; neighbours whose outputs lie on different lattices are
told apart by it alone, which is how the floating-point attacks show up without being looked for. Whatever an output is,
it is read by a function that was fixed before the judged outputs were drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from math import inf, nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dither.audit.claims import Floats
from dither.audit.sampling import LONGEST
from dither.errors import InvalidParameter

# The number of every category that was not seen while learning.
UNSEEN = -1
MOST_DERIVED = 64
MOST_NAMED = 12
EXACT = 2**53  # beyond this, floats do not hold every integer
NUMBERS = (int, float, np.integer, np.floating, np.bool_, Fraction, Decimal)
KEYED = (dict, set, frozenset)
NESTED = (list, tuple, dict, set, frozenset, complex)
OWN = frozenset({int, float, bool, str, bytes, list, tuple, dict, set, frozenset, type(None)})
OPEN = frozenset({list, tuple, dict, set, frozenset, np.ndarray})
EPOCH = datetime(1970, 1, 1)

Column = Callable[[Floats], Floats]


@dataclass(frozen=True)
class Feature:
    """A named column computed from the matrix of outputs."""

    name: str
    group: str
    column: Column = field(repr=False, compare=False)


class Codes(dict[Hashable, int]):
    """A number for each category that was seen while learning.

    Numbers are settled before anything is judged: were new ones given as outputs appear, an output's number would
    depend on those before it, and the input that is read first would have the smaller ones.
    """

    settled = False

    def settle(self) -> None:
        """Numbers in an order that does not tell which input came first, and no new ones from now on."""
        items = sorted(self, key=repr)
        self.clear()
        self.update({item: place for place, item in enumerate(items)})
        self.settled = True


@dataclass(frozen=True)
class Encoder:
    """How one mechanism's outputs become a matrix, learned from a few of them; its only column may be categories."""

    read: Callable[[Any], Floats] = field(repr=False)
    labels: tuple[str, ...]
    codes: Codes
    features: tuple[Feature, ...]
    categories: bool = False

    def members(self, chosen: Callable[[float], bool]) -> str:
        """The categories whose numbers are chosen, for people; those that were not seen before have one number."""
        others = chosen(UNSEEN)
        named = [repr(value) for value, number in self.codes.items() if chosen(number) != others]
        more = [f"{len(named) - MOST_NAMED} more"] if len(named) > MOST_NAMED else []
        return f"{'not ' if others else ''}in ({', '.join(named[:MOST_NAMED] + more)})"


def learn(outputs: Any, timed: bool = False, bits: bool = True) -> Encoder:
    """The encoder for outputs like these; if timed, the first entry of each is the time that it took."""
    found = _learn(outputs, timed)
    kept = tuple(feature for feature in found.features if bits or feature.group != "bits")
    return replace(found, features=kept)


def _learn(outputs: Any, timed: bool) -> Encoder:
    codes = Codes()
    if isinstance(outputs, np.ndarray) and outputs.dtype.kind in "biuf" and not _is_large(outputs):
        labels = _numeric_labels(outputs)
        labels = ("time", *labels[1:]) if timed else labels
        read = _matrix_reader(len(labels))
        return Encoder(read, labels, codes, _features(read(outputs), labels))
    items = _items(outputs)
    if all(isinstance(item, NUMBERS) for item in items):
        return _learn_numbers(items, codes)
    return _learn_structured(items, codes)


def _is_large(outputs: NDArray[Any]) -> bool:
    """Whether these are integers that floats do not hold."""
    if outputs.dtype.kind not in "iu" or outputs.ndim != 1 or not len(outputs):
        return False
    return max(int(outputs.max()), -int(outputs.min())) > EXACT


def _learn_numbers(items: list[Any], codes: Codes) -> Encoder:
    """Numbers; large integers are counted from one in their middle, so that floats hold the difference."""
    whole = all(isinstance(item, int | np.integer) for item in items)
    large = whole and max((abs(int(item)) for item in items), default=0) > EXACT
    start = int(sorted(items)[len(items) // 2]) if large else 0

    def read(outputs: Any) -> Floats:
        return np.array([_number(item, start) for item in _items(outputs)], dtype=np.float64)[:, None]

    labels = (f"output - {start}" if start else "output",)
    return Encoder(read, labels, codes, _features(read(items), labels))


def _number(item: Any, start: int = 0) -> float:
    """A number as a float, too large ones as infinities; NaN for anything else."""
    if type(item) is float:
        return item
    if not isinstance(item, NUMBERS):
        return nan
    try:
        return float(int(item) - start) if start and isinstance(item, int | np.integer) else float(item)
    except OverflowError:
        return inf if item > 0 else -inf
    except ValueError:  # a signalling NaN of Decimal
        return nan


def row_keys(matrix: Floats) -> NDArray[np.uint64]:
    """A 64-bit key for each row, equal for equal rows."""
    words = np.ascontiguousarray(matrix).view(np.uint64)
    key = np.full(len(matrix), 0x9E3779B97F4A7C15, dtype=np.uint64)
    for column in range(words.shape[1]):
        key = (key ^ words[:, column]) * np.uint64(0xFF51AFD7ED558CCD)
        key ^= key >> np.uint64(32)
    return key


def lowest_bit(values: Floats) -> Floats:
    """The exponent of the lowest set bit: 0.75 gives -2, 6 gives 1, zero and non-finite give NaN.

    >>> lowest_bit(np.array([0.75, 6.0, 0.0])).tolist()
    [-2.0, 1.0, nan]
    """
    with np.errstate(invalid="ignore"):
        fraction, exponent = np.frexp(values)
    whole = np.where(np.isfinite(fraction), np.abs(fraction) * 2.0**53, 0).astype(np.int64)
    lowest = np.log2(np.maximum(whole & -whole, 1).astype(np.float64))
    result: Floats = np.where(whole == 0, np.nan, lowest + exponent - 53)
    return result


def _numeric_labels(outputs: NDArray[Any]) -> tuple[str, ...]:
    if outputs.ndim == 1:
        return ("output",)
    return tuple(f"output[{index}]" for index in range(int(np.prod(outputs.shape[1:]))))


def _matrix_reader(width: int) -> Callable[[Any], Floats]:
    """Reads numbers or vectors of so many numbers; an output that is none has NaN everywhere."""

    def read(outputs: Any) -> Floats:
        if isinstance(outputs, np.ndarray) and outputs.dtype.kind in "biuf" and outputs[:1].size in (0, width):
            return outputs.reshape(len(outputs), width).astype(np.float64, copy=False)
        matrix = np.full((len(outputs), width), nan)
        for row, item in enumerate(_items(outputs)):
            entries = leaves(item)
            if len(entries) == width:
                matrix[row] = [_number(entry) for entry in entries]
        return matrix

    return read


def _items(outputs: Any) -> list[Any]:
    """Outputs as Python's own: arrays as lists, records as dictionaries, times as seconds since 1970."""
    if isinstance(outputs, np.ndarray):
        return outputs.tolist()  # type: ignore[no-any-return]
    return [item if type(item) in OWN else _item(item) for item in outputs]


def _item(item: Any) -> Any:
    if isinstance(item, np.ndarray | np.void | np.str_ | np.bytes_):
        return item.tolist()
    if isinstance(item, np.datetime64 | np.timedelta64):
        return int(item.astype(np.int64))
    if isinstance(item, date | timedelta):
        return _seconds(item)
    if is_dataclass(item) and not isinstance(item, type):
        return {each.name: getattr(item, each.name) for each in fields(item)}
    return item


def _seconds(when: date | timedelta) -> float:
    if isinstance(when, timedelta):
        return when.total_seconds()
    moment = when if isinstance(when, datetime) else datetime(when.year, when.month, when.day)
    return (moment.replace(tzinfo=None) - (moment.utcoffset() or timedelta(0)) - EPOCH).total_seconds()


def leaves(item: Any) -> list[Any]:
    """The entries of an output one after another, those of nested ones too.

    >>> leaves([("a", 1.5), {"n": 2}])
    ['a', 1.5, 2]
    """
    if isinstance(item, complex):
        return [item.real, item.imag]
    if isinstance(item, dict):
        return [leaf for key in sorted(item, key=repr) for leaf in leaves(item[key])]
    if isinstance(item, set | frozenset):
        return sorted(item, key=repr)
    if isinstance(item, list | tuple | np.ndarray):
        return [leaf for entry in item for leaf in leaves(entry)]
    return [_item(item)]


def _shape(item: Any) -> Hashable:
    """How an output is nested."""
    if isinstance(item, dict):
        return tuple((repr(key), _shape(item[key])) for key in sorted(item, key=repr))
    return tuple(_shape(entry) for entry in item) if isinstance(item, list | tuple | np.ndarray) else 0


def _learn_structured(items: list[Any], codes: Codes) -> Encoder:
    """Categories, sequences of any length, sets and dictionaries."""
    _check_comparable(items)
    if any(isinstance(item, KEYED) for item in items):
        return _learn_keyed(items, codes)
    nested = any(
        isinstance(item, complex) or (isinstance(item, list | tuple) and any(isinstance(each, NESTED) for each in item))
        for item in items
    )
    spread = [leaves(item) for item in items] if nested else items
    longest = max((len(item) for item in spread if isinstance(item, list | tuple)), default=0)
    if longest > LONGEST:
        raise InvalidParameter(f"outputs may be sequences of at most {LONGEST} entries; got {longest}")
    if longest == 0 and not any(isinstance(item, NUMBERS) for item in items):
        return _learn_categories(items, codes)

    nestings = Codes() if nested else None

    def read(outputs: Any) -> Floats:
        return _read_sequences(_items(outputs), max(longest, 1), codes, nestings)

    read(items)
    codes.settle()
    if nestings is not None:
        nestings.settle()
    matrix = read(items)
    labels = ("length", *_positions(longest, _legend(codes)), *(("nesting",) if nested else ()))
    return Encoder(read, labels, codes, _features(matrix, labels, "sequence"))


def _learn_categories(items: list[Any], codes: Codes) -> Encoder:
    """One of several: each has a number, in an order that does not tell which input came first."""
    for item in items:
        _code(item, codes)
    codes.settle()

    def read(outputs: Any) -> Floats:
        return np.array([float(_code(item, codes)) for item in _items(outputs)])[:, None]

    labels = (f"place of the output in {_named(codes)}",)
    return Encoder(read, labels, codes, _features(read(items), labels, "category"), categories=True)


def _check_comparable(items: list[Any]) -> None:
    """Objects that are equal to nothing but themselves hide whatever they hold."""
    equal: Any = object.__eq__
    alone = [each for each in items if type(each).__eq__ is equal and not isinstance(each, Enum | type | None)]
    if len({id(each) for each in alone}) > LONGEST:
        kind = type(alone[0]).__name__
        raise InvalidParameter(
            f"outputs of type {kind} cannot be compared: return numbers, texts, lists, sets or dictionaries of them"
        )


def _named(codes: Codes) -> str:
    """The categories that have numbers, in their order."""
    shown = [repr(each) for each in codes][:MOST_NAMED]
    return f"({', '.join(shown)}{', ...' if len(codes) > MOST_NAMED else ''})"


def _legend(codes: Codes) -> str:
    """What the numbers in the columns of kinds stand for."""
    return f" (-2 a number, or the place in {_named(codes)})" if codes else ""


def _positions(longest: int, legend: str) -> list[str]:
    if longest == 0:
        return [f"kind{legend}", "value"]
    return [name for index in range(longest) for name in (f"kind[{index}]{legend}", f"value[{index}]")]


def _read_sequences(items: Sequence[Any], longest: int, codes: Codes, nestings: Codes | None) -> Floats:
    matrix = np.full((len(items), 1 + 2 * longest + (nestings is not None)), nan)
    for row, item in enumerate(items):
        entries = leaves(item) if nestings is not None else item if isinstance(item, list | tuple) else [item]
        matrix[row, 0] = len(entries)
        for index, entry in enumerate(entries[:longest]):
            if _is_number(entry):
                matrix[row, 1 + 2 * index], matrix[row, 2 + 2 * index] = -2, _number(entry)
            else:
                matrix[row, 1 + 2 * index] = _code(entry, codes)
        if nestings is not None:
            matrix[row, -1] = _code(_shape(item), nestings)
    return matrix


def _is_number(entry: Any) -> bool:
    """Whether an entry of a sequence is a number; yes and no are not. Python's own types are told at once."""
    kind = type(entry)
    if kind in OWN:
        return kind is float or kind is int
    return isinstance(entry, NUMBERS) and not isinstance(entry, np.bool_)


def _code(item: Any, codes: Codes) -> int:
    """The number of a category; all that appear once the numbers are settled have one and the same."""
    key = item if isinstance(item, Hashable) else repr(item)
    return codes.get(key, UNSEEN) if codes.settled else codes.setdefault(key, len(codes))


def _learn_keyed(items: list[Any], codes: Codes) -> Encoder:
    """Sets and dictionaries: a column for each key, NaN where it is absent; other outputs stand under `()`."""
    keys = sorted({key for item in items for key in _spread(item)}, key=repr)[:LONGEST]

    def read(outputs: Any) -> Floats:
        rows = [_keyed_row(item, keys, codes) for item in _items(outputs)]
        return np.array(rows, dtype=np.float64).reshape(len(rows), len(keys) + 1)

    read(items)
    codes.settle()
    labels = (*(f"output[{key!r}]" for key in keys), "size")
    return Encoder(read, labels, codes, _features(read(items), labels))


def _keyed_row(item: Any, keys: list[Hashable], codes: Codes) -> list[float]:
    held = item if isinstance(item, dict) and OPEN.isdisjoint(map(type, item.values())) else _spread(item)
    return [*(_entry(held, key, codes) for key in keys), float(len(item)) if isinstance(item, KEYED) else nan]


def _spread(item: Any, path: tuple[Hashable, ...] = ()) -> dict[Hashable, Any]:
    """What stands under each key, nested keys as tuples; 1 for the members of a set."""
    if isinstance(item, set | frozenset):
        item = dict.fromkeys(item, 1.0)
    elif path and isinstance(item, list | tuple | np.ndarray):
        item = dict(enumerate(item))
    if not isinstance(item, dict):
        return {path[0] if len(path) == 1 else path: item}
    return {name: held for key, value in item.items() for name, held in _spread(value, (*path, key)).items()}


def _entry(held: dict[Hashable, Any], key: Hashable, codes: Codes) -> float:
    if key not in held:
        return nan
    value = held[key]
    if type(value) is float:
        return value
    value = _item(value)
    return _number(value) if isinstance(value, NUMBERS) else float(_code(value, codes))


def _features(matrix: Floats, labels: tuple[str, ...], kind: str = "number") -> tuple[Feature, ...]:
    """The columns worth looking at: the outputs themselves, what is derived from them, and their bits."""
    base = [Feature(label, "base", _nth(index)) for index, label in enumerate(labels)]
    if kind == "category":
        return tuple(base)
    derived = _derived(matrix, labels) if matrix.shape[1] > 1 else []
    found: dict[bytes, Feature] = {}
    for feature in base + derived + _bits(matrix, labels):
        column = feature.column(matrix)
        if _varies(column):
            found.setdefault(np.ascontiguousarray(column).tobytes(), feature)
    return tuple(found.values()) or tuple(base[:1])


def _varies(column: Floats) -> bool:
    return len(column) > 1 and not np.array_equal(column, np.broadcast_to(column[:1], column.shape), equal_nan=True)


def _nth(index: int) -> Column:
    return lambda matrix: matrix[:, index]


def _derived(matrix: Floats, labels: tuple[str, ...]) -> list[Feature]:
    """Differences of neighbouring entries, and summaries of the whole row."""
    width = matrix.shape[1]
    found = [
        Feature(f"{labels[index + 1]} - {labels[index]}", "difference", _difference(index))
        for index in range(min(width - 1, MOST_DERIVED))
    ]
    summaries: list[tuple[str, Column]] = [
        ("largest", _largest),
        ("place of the first number", lambda m: np.isfinite(m).argmax(axis=1).astype(np.float64)),
        ("sum", lambda m: np.where(np.isfinite(m), m, 0.0).sum(axis=1)),
        ("entries that are numbers", lambda m: np.isfinite(m).sum(axis=1).astype(np.float64)),
        ("smallest", _smallest),
        ("place of the last number", lambda m: np.isfinite(m)[:, ::-1].argmax(axis=1).astype(np.float64)),
        ("place of the largest", lambda m: np.where(np.isfinite(m), m, -np.inf).argmax(axis=1).astype(np.float64)),
    ]
    return found + [Feature(name, "summary", column) for name, column in summaries]


def _difference(index: int) -> Column:
    return lambda matrix: _finite(matrix[:, index + 1]) - _finite(matrix[:, index])


def _finite(values: Floats) -> Floats:
    return np.where(np.isfinite(values), values, np.nan)


def _largest(matrix: Floats) -> Floats:
    """The largest number of each row; NaN where there is none."""
    found = np.where(np.isfinite(matrix), matrix, -np.inf).max(axis=1)
    return np.where(np.isinf(found), np.nan, found)


def _smallest(matrix: Floats) -> Floats:
    return -_largest(-matrix)


def _bits(matrix: Floats, labels: tuple[str, ...]) -> list[Feature]:
    """Lattice features, for columns that hold fractions."""
    fractional = [index for index in range(matrix.shape[1]) if _has_fractions(matrix[:, index])]
    found: list[Feature] = []
    for index in fractional[:2]:
        found.append(Feature(f"lowest bit of {labels[index]}", "bits", _lowest(index)))
        found.append(Feature(f"significant bits of {labels[index]}", "bits", _significant(index)))
    if len(fractional) > 1:
        found.append(Feature("lowest bit of any", "bits", lambda m: _smallest(_all_lowest(m, fractional))))
    return found


def _has_fractions(column: Floats) -> bool:
    finite = column[np.isfinite(column)]
    return bool(np.any(finite != np.round(finite)))


def _lowest(index: int) -> Column:
    return lambda matrix: lowest_bit(matrix[:, index])


def _significant(index: int) -> Column:
    return lambda matrix: np.frexp(_finite(matrix[:, index]))[1] - lowest_bit(matrix[:, index])


def _all_lowest(matrix: Floats, columns: list[int]) -> Floats:
    return np.column_stack([lowest_bit(matrix[:, index]) for index in columns])
