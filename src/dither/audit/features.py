"""Outputs of any shape as columns of numbers: values, positions, lengths, differences, and the bits of floats.

The lowest set bit of a float tells the lattice that it lies on; neighbours whose outputs lie on different lattices are
told apart by it alone, which is how the floating-point attacks show up without being looked for.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dither.audit.claims import Floats
from dither.errors import InvalidParameter

LONGEST = 64
MOST_DERIVED = 64

Column = Callable[[Floats], Floats]


@dataclass(frozen=True)
class Feature:
    """A named column computed from the matrix of outputs."""

    name: str
    group: str
    column: Column = field(repr=False, compare=False)


@dataclass(frozen=True)
class Encoder:
    """How one mechanism's outputs become a matrix, learned from a few of them."""

    read: Callable[[Any], Floats] = field(repr=False)
    labels: tuple[str, ...]
    codes: dict[Hashable, int]
    features: tuple[Feature, ...]

    def category(self, code: float) -> str:
        """The output that stands behind a code, for people."""
        names = {number: repr(value) for value, number in self.codes.items()}
        return names.get(int(code), "another") if np.isfinite(code) else "none"


def learn(outputs: Any, timed: bool = False, bits: bool = True) -> Encoder:
    """The encoder for outputs like these; if timed, the first entry of each is the time that it took."""
    found = _learn(outputs, timed)
    kept = tuple(feature for feature in found.features if bits or feature.group != "bits")
    return replace(found, features=kept)


def _learn(outputs: Any, timed: bool) -> Encoder:
    codes: dict[Hashable, int] = {}
    if isinstance(outputs, np.ndarray) and outputs.dtype.kind in "biuf":
        labels = _numeric_labels(outputs)
        labels = ("time", *labels[1:]) if timed else labels
        return Encoder(_matrix, labels, codes, _features(_matrix(outputs), labels))
    items = _items(outputs)
    if all(isinstance(item, int | float | np.number | np.bool_) for item in items[:1000]):
        values = _numbers(items)
        return Encoder(_numbers, ("output",), codes, _features(values, ("output",)))
    return _learn_structured(items, codes)


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


def _matrix(outputs: Any) -> Floats:
    array = np.asarray(outputs)
    return array.reshape(len(array), -1).astype(np.float64, copy=False)


def _numbers(outputs: Any) -> Floats:
    return np.array([float(item) for item in outputs], dtype=np.float64)[:, None]


def _items(outputs: Any) -> list[Any]:
    return [item.tolist() if isinstance(item, np.ndarray) else item for item in outputs]


def _learn_structured(items: list[Any], codes: dict[Hashable, int]) -> Encoder:
    """Categories, sequences of any length, sets and dictionaries."""
    if any(isinstance(item, dict | set | frozenset) for item in items):
        return _learn_keyed(items, codes)
    longest = max((len(item) for item in items if isinstance(item, list | tuple)), default=0)
    if longest > LONGEST:
        raise InvalidParameter(f"outputs may be sequences of at most {LONGEST} entries; got {longest}")

    def read(outputs: Any) -> Floats:
        return _read_sequences(_items(outputs), longest, codes)

    labels = ("output",) if longest == 0 else ("length", *_positions(longest))
    matrix = read(items)
    return Encoder(read, labels, codes, _features(matrix, labels, "category" if longest == 0 else "sequence"))


def _positions(longest: int) -> list[str]:
    return [name for index in range(longest) for name in (f"kind[{index}]", f"value[{index}]")]


def _read_sequences(items: Sequence[Any], longest: int, codes: dict[Hashable, int]) -> Floats:
    if longest == 0:
        return np.array([float(_code(item, codes)) for item in items])[:, None]
    matrix = np.full((len(items), 1 + 2 * longest), np.nan)
    for row, item in enumerate(items):
        entries = item if isinstance(item, list | tuple) else [item]
        matrix[row, 0] = len(entries)
        for index, entry in enumerate(entries[:longest]):
            numeric = isinstance(entry, int | float | np.number) and not isinstance(entry, bool)
            matrix[row, 1 + 2 * index] = -2 if numeric else _code(entry, codes)
            matrix[row, 2 + 2 * index] = float(entry) if numeric else np.nan
    return matrix


def _code(item: Any, codes: dict[Hashable, int]) -> int:
    """A stable number for a category; the dictionary grows as new ones appear."""
    key = item if isinstance(item, Hashable) else repr(item)
    return codes.setdefault(key, len(codes))


def _learn_keyed(items: list[Any], codes: dict[Hashable, int]) -> Encoder:
    """Sets and dictionaries: a column for each key, NaN where it is absent."""
    keys = sorted({key for item in items for key in item}, key=repr)[:LONGEST]

    def read(outputs: Any) -> Floats:
        rows = [[_entry(item, key, codes) for key in keys] + [float(len(item))] for item in outputs]
        return np.array(rows, dtype=np.float64)

    labels = (*(f"output[{key!r}]" for key in keys), "size")
    return Encoder(read, labels, codes, _features(read(items), labels))


def _entry(item: Any, key: Hashable, codes: dict[Hashable, int]) -> float:
    if key not in item:
        return float("nan")
    value = item[key] if isinstance(item, dict) else 1.0
    return float(value) if isinstance(value, int | float | np.number) else float(_code(value, codes))


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
    return bool(len(column) > 1 and (np.ptp(np.nan_to_num(column, nan=1e300, posinf=1e301, neginf=-1e301)) > 0))


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
        ("largest", lambda m: _reduce(np.nanmax, m)),
        ("place of the first number", lambda m: np.isfinite(m).argmax(axis=1).astype(np.float64)),
        ("sum", lambda m: np.nansum(_finite(m), axis=1)),
        ("entries that are numbers", lambda m: np.isfinite(m).sum(axis=1).astype(np.float64)),
        ("smallest", lambda m: _reduce(np.nanmin, m)),
        ("place of the last number", lambda m: np.isfinite(m)[:, ::-1].argmax(axis=1).astype(np.float64)),
        ("place of the largest", lambda m: np.where(np.isfinite(m), m, -np.inf).argmax(axis=1).astype(np.float64)),
    ]
    return found + [Feature(name, "summary", column) for name, column in summaries]


def _difference(index: int) -> Column:
    return lambda matrix: _finite(matrix[:, index + 1]) - _finite(matrix[:, index])


def _finite(values: Floats) -> Floats:
    return np.where(np.isfinite(values), values, np.nan)


def _reduce(function: Callable[..., Floats], matrix: Floats) -> Floats:
    finite = _finite(matrix)
    empty = np.asarray(np.isnan(finite).all(axis=1))
    return np.where(empty, np.nan, function(np.where(empty[:, None], 0.0, finite), axis=1))


def _bits(matrix: Floats, labels: tuple[str, ...]) -> list[Feature]:
    """Lattice features, for columns that hold fractions."""
    fractional = [index for index in range(matrix.shape[1]) if _has_fractions(matrix[:, index])]
    found: list[Feature] = []
    for index in fractional[:2]:
        found.append(Feature(f"lowest bit of {labels[index]}", "bits", _lowest(index)))
        found.append(Feature(f"significant bits of {labels[index]}", "bits", _significant(index)))
    if len(fractional) > 1:
        found.append(Feature("lowest bit of any", "bits", lambda m: _reduce(np.nanmin, _all_lowest(m, fractional))))
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
