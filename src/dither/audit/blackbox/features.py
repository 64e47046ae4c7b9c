"""Encode outputs of any type as columns of numbers: values, positions, lengths, differences, and bits of floats.

The lowest set bit of a float shows the lattice that it lies on. If neighbours' outputs lie on different lattices, that
feature alone distinguishes them; so the audit detects floating-point attacks without searching for any one of them. The
encoder is learned before the outputs of the test are drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
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
from dither.audit.sampling import MAX_SEQUENCE_LENGTH
from dither.errors import InvalidParameter

# The code of every category that the encoder did not see while learning.
UNSEEN = -1
# The code of numbers in the columns of kinds, beside the codes of categories.
NUMBER_CODE = -2
MAX_DIFFERENCES = 64
MAX_NAMED_CATEGORIES = 12
# The words for a key are chosen from the values of at most this many outputs.
MAX_LABELLED = 200
LARGEST_EXACT_INTEGER = 2**53  # larger integers are not all floats
NUMBER_TYPES = (int, float, np.integer, np.floating, np.bool_, Fraction, Decimal)
KEYED_TYPES = (dict, set, frozenset)
NESTED_TYPES = (list, tuple, dict, set, frozenset, complex)
BUILTIN_TYPES = frozenset({int, float, bool, str, bytes, list, tuple, dict, set, frozenset, type(None)})
CONTAINER_TYPES = frozenset({list, tuple, dict, set, frozenset, np.ndarray})
EPOCH = datetime(1970, 1, 1)

Column = Callable[[Floats], Floats]


@dataclass(frozen=True)
class Label:
    """The words for one column of the matrix of outputs.

    `name` is the value, as Python writes it wherever possible; `missing` is said of it where the column is NaN. If the
    values are codes, `codes` has their names. `code` is a Python expression of the value, if there is one.
    """

    name: str
    missing: str = "is not a number"
    codes: Mapping[int, str] = field(default_factory=dict)
    present: str = ""
    code: str = ""


@dataclass(frozen=True)
class Feature:
    """A named column computed from the matrix of outputs; `value`, for bits, is the column of numbers they are of."""

    label: Label
    group: str
    column: Column = field(repr=False, compare=False)
    value: Column | None = field(default=None, repr=False, compare=False)

    @property
    def name(self) -> str:
        """The name of the value."""
        return self.label.name


class CategoryCodes(dict[Hashable, int]):
    """A code for each category seen while learning.

    Codes are frozen before the test: if new categories still got codes as they appear, a code would depend on earlier
    outputs, and categories of the input that is read first would have smaller codes.
    """

    frozen = False

    def freeze(self) -> None:
        """Renumber the categories in an order that does not depend on the inputs' order, and add none from now on."""
        items = sorted(self, key=repr)
        self.clear()
        self.update({item: code for code, item in enumerate(items)})
        self.frozen = True


@dataclass(frozen=True)
class Encoder:
    """Reads outputs into a matrix and derives features from it; learned from a sample of outputs."""

    read: Callable[[Any], Floats] = field(repr=False)
    labels: tuple[Label, ...]
    codes: CategoryCodes
    features: tuple[Feature, ...]


def learn_encoder(outputs: Any, timed: bool = False, bits: bool = True) -> Encoder:
    """Learn an encoder from a sample of outputs.

    If `timed`, the first entry of each output is its time. `bits=False` leaves out the features of the bits of floats.
    """
    encoder = _learn_all_features(outputs, timed)
    return replace(encoder, features=tuple(each for each in encoder.features if bits or each.group != "bits"))


def _learn_all_features(outputs: Any, timed: bool) -> Encoder:
    codes = CategoryCodes()
    if isinstance(outputs, np.ndarray) and outputs.dtype.kind in "biuf" and not _exceeds_float_precision(outputs):
        labels = _numeric_labels(outputs)
        labels = (Label("time"), *labels[1:]) if timed else labels
        read = _matrix_reader(len(labels))
        return Encoder(read, labels, codes, _features(read(outputs), labels))
    items = _as_builtins(outputs)
    if all(isinstance(item, NUMBER_TYPES) for item in items):
        return _learn_numbers(items, codes)
    return _learn_structured(items, codes)


def _exceeds_float_precision(outputs: NDArray[Any]) -> bool:
    """Return True if some of these integers are too large to be exact as floats."""
    if outputs.dtype.kind not in "iu" or outputs.ndim != 1 or not len(outputs):
        return False
    return max(int(outputs.max()), -int(outputs.min())) > LARGEST_EXACT_INTEGER


def _learn_numbers(items: list[Any], codes: CategoryCodes) -> Encoder:
    """Learn an encoder of numbers; large integers are read relative to their median, so that floats are exact."""
    whole = all(isinstance(item, int | np.integer) for item in items)
    large = whole and max((abs(int(item)) for item in items), default=0) > LARGEST_EXACT_INTEGER
    start = int(sorted(items)[len(items) // 2]) if large else 0

    def read(outputs: Any) -> Floats:
        return np.array([_as_float(item, start) for item in _as_builtins(outputs)], dtype=np.float64)[:, None]

    name = f"output - {start}" if start else "output"
    labels = (Label(name, "is NaN", code=name),)
    return Encoder(read, labels, codes, _features(read(items), labels))


def _as_float(item: Any, start: int = 0) -> float:
    """Convert a number to a float, too large ones to infinities, anything else to NaN."""
    if type(item) is float:
        return item
    if not isinstance(item, NUMBER_TYPES):
        return nan
    try:
        return float(int(item) - start) if start and isinstance(item, int | np.integer) else float(item)
    except OverflowError:
        return inf if item > 0 else -inf
    except ValueError:  # a signalling NaN of Decimal
        return nan


def row_keys(matrix: Floats) -> NDArray[np.uint64]:
    """Return a 64-bit key for each row, equal for equal rows."""
    words = np.ascontiguousarray(matrix).view(np.uint64)
    key = np.full(len(matrix), 0x9E3779B97F4A7C15, dtype=np.uint64)
    for column in range(words.shape[1]):
        key = (key ^ words[:, column]) * np.uint64(0xFF51AFD7ED558CCD)
        key ^= key >> np.uint64(32)
    return key


def lowest_bit(values: Floats) -> Floats:
    """Return the exponent of the lowest set bit: 0.75 gives -2, 6 gives 1, zero and non-finite give NaN.

    >>> lowest_bit(np.array([0.75, 6.0, 0.0])).tolist()
    [-2.0, 1.0, nan]
    """
    with np.errstate(invalid="ignore"):
        fraction, exponent = np.frexp(values)
    whole = np.where(np.isfinite(fraction), np.abs(fraction) * 2.0**53, 0).astype(np.int64)
    lowest = np.log2(np.maximum(whole & -whole, 1).astype(np.float64))
    result: Floats = np.where(whole == 0, np.nan, lowest + exponent - 53)
    return result


def _numeric_labels(outputs: NDArray[Any]) -> tuple[Label, ...]:
    if outputs.ndim == 1:
        return (Label("output", "is NaN", code="output"),)
    names = (f"output[{', '.join(map(str, place))}]" for place in np.ndindex(outputs.shape[1:]))
    return tuple(Label(name, "is NaN", code=name) for name in names)


def _matrix_reader(width: int) -> Callable[[Any], Floats]:
    """Return a reader of numbers, or vectors of `width` numbers; any other output becomes a row of NaN."""

    def read(outputs: Any) -> Floats:
        if isinstance(outputs, np.ndarray) and outputs.dtype.kind in "biuf" and outputs[:1].size in (0, width):
            return outputs.reshape(len(outputs), width).astype(np.float64, copy=False)
        matrix = np.full((len(outputs), width), nan)
        for row, item in enumerate(_as_builtins(outputs)):
            entries = flatten(item)
            if len(entries) == width:
                matrix[row] = [_as_float(entry) for entry in entries]
        return matrix

    return read


def _as_builtins(outputs: Any) -> list[Any]:
    """Convert outputs to built-in types: arrays to lists, dataclasses to dictionaries, dates to seconds since 1970."""
    if isinstance(outputs, np.ndarray):
        return outputs.tolist()  # type: ignore[no-any-return]
    return [item if type(item) in BUILTIN_TYPES else _as_builtin(item) for item in outputs]


def _as_builtin(item: Any) -> Any:
    """Convert one output, or one entry of it, to a built-in type."""
    if isinstance(item, np.ndarray | np.void | np.str_ | np.bytes_):
        return item.tolist()
    if isinstance(item, np.datetime64 | np.timedelta64):
        return int(item.astype(np.int64))
    if isinstance(item, date | timedelta):
        return _seconds(item)
    if is_dataclass(item) and not isinstance(item, type):
        return {attribute.name: getattr(item, attribute.name) for attribute in fields(item)}
    return item


def _seconds(when: date | timedelta) -> float:
    if isinstance(when, timedelta):
        return when.total_seconds()
    moment = when if isinstance(when, datetime) else datetime(when.year, when.month, when.day)
    return (moment.replace(tzinfo=None) - (moment.utcoffset() or timedelta(0)) - EPOCH).total_seconds()


def flatten(item: Any) -> list[Any]:
    """Return the entries of an output in one list, including those of nested ones.

    >>> flatten([("a", 1.5), {"n": 2}])
    ['a', 1.5, 2]
    """
    if isinstance(item, complex):
        return [item.real, item.imag]
    if isinstance(item, dict):
        return [leaf for key in sorted(item, key=repr) for leaf in flatten(item[key])]
    if isinstance(item, set | frozenset):
        return sorted(item, key=repr)
    if isinstance(item, list | tuple | np.ndarray):
        return [leaf for entry in item for leaf in flatten(entry)]
    return [_as_builtin(item)]


def _nesting(item: Any) -> Hashable:
    """Return the nesting of an output: its keys and sequence lengths, without its values."""
    if isinstance(item, dict):
        return tuple((repr(key), _nesting(item[key])) for key in sorted(item, key=repr))
    return tuple(_nesting(entry) for entry in item) if isinstance(item, list | tuple | np.ndarray) else 0


def _learn_structured(items: list[Any], codes: CategoryCodes) -> Encoder:
    """Learn an encoder of categories, sequences, sets or dictionaries."""
    _check_comparable(items)
    if any(isinstance(item, KEYED_TYPES) for item in items):
        return _learn_keyed(items, codes)
    nested = any(_is_nested(item) for item in items)
    flat = [flatten(item) for item in items] if nested else items
    longest = max((len(item) for item in flat if isinstance(item, list | tuple)), default=0)
    if longest > MAX_SEQUENCE_LENGTH:
        raise InvalidParameter(
            f"outputs that are sequences must have at most {MAX_SEQUENCE_LENGTH} entries, got {longest}"
        )
    if longest == 0 and not any(isinstance(item, NUMBER_TYPES) for item in items):
        return _learn_categories(items, codes)

    nestings = CategoryCodes() if nested else None

    def read(outputs: Any) -> Floats:
        return _read_sequences(_as_builtins(outputs), max(longest, 1), codes, nestings)

    read(items)
    codes.freeze()
    if nestings is not None:
        nestings.freeze()
    matrix = read(items)
    labels = (
        Label("len(output)"),
        *_sequence_labels(longest, codes),
        *((Label("nesting of the output"),) if nested else ()),
    )
    return Encoder(read, labels, codes, _features(matrix, labels, "sequence"))


def _is_nested(item: Any) -> bool:
    """Return True if the output is a complex number or a sequence with nested entries."""
    if isinstance(item, list | tuple):
        return any(isinstance(entry, NESTED_TYPES) for entry in item)
    return isinstance(item, complex)


def _learn_categories(items: list[Any], codes: CategoryCodes) -> Encoder:
    """Learn an encoder of categories: one column of codes."""
    for item in items:
        _code(item, codes)
    codes.freeze()

    def read(outputs: Any) -> Floats:
        return np.array([float(_code(item, codes)) for item in _as_builtins(outputs)])[:, None]

    labels = (Label("output", codes=_code_names(codes)),)
    return Encoder(read, labels, codes, _features(read(items), labels, "category"))


def _check_comparable(items: list[Any]) -> None:
    """Refuse many objects that are compared by identity: their contents would go unseen."""
    identity: Any = object.__eq__
    opaque = [item for item in items if type(item).__eq__ is identity and not isinstance(item, Enum | type | None)]
    if len({id(item) for item in opaque}) > MAX_SEQUENCE_LENGTH:
        kind = type(opaque[0]).__name__
        raise InvalidParameter(
            f"outputs of type {kind} cannot be compared: return numbers, strings, lists, sets or dictionaries of them"
        )


def _code_names(codes: CategoryCodes) -> dict[int, str]:
    """Return the name of each code; those of numbers and of categories that were not seen come first."""
    names = {code: repr(category) for category, code in codes.items()}
    return {NUMBER_CODE: "a number", UNSEEN: "anything else", **names}


def _sequence_labels(longest: int, codes: CategoryCodes) -> list[Label]:
    """Return the labels of the kind and value of each entry; of the output itself if no output is a sequence."""
    names = [f"output[{index}]" for index in range(longest)] or ["output"]
    missing, not_number = ("is absent", "is absent or not a number") if longest else ("is nothing", "is not a number")
    return [label for name in names for label in (Label(name, missing, _code_names(codes)), Label(name, not_number))]


def _read_sequences(items: Sequence[Any], longest: int, codes: CategoryCodes, nestings: CategoryCodes | None) -> Floats:
    """Return a row for each output: its length, the kind and value of each entry, and the code of its nesting."""
    matrix = np.full((len(items), 1 + 2 * longest + (nestings is not None)), nan)
    for row, item in enumerate(items):
        entries = flatten(item) if nestings is not None else item if isinstance(item, list | tuple) else [item]
        matrix[row, 0] = len(entries)
        for index, entry in enumerate(entries[:longest]):
            if _is_number(entry):
                matrix[row, 1 + 2 * index], matrix[row, 2 + 2 * index] = NUMBER_CODE, _as_float(entry)
            else:
                matrix[row, 1 + 2 * index] = _code(entry, codes)
        if nestings is not None:
            matrix[row, -1] = _code(_nesting(item), nestings)
    return matrix


def _is_number(entry: Any) -> bool:
    """Return True if an entry of a sequence is a number, not a boolean."""
    kind = type(entry)
    if kind in BUILTIN_TYPES:  # a fast path
        return kind is float or kind is int
    return isinstance(entry, NUMBER_TYPES) and not isinstance(entry, np.bool_)


def _code(item: Any, codes: CategoryCodes) -> int:
    """Return the code of a category; once codes are frozen, all new categories share one."""
    key = item if isinstance(item, Hashable) else repr(item)
    return codes.get(key, UNSEEN) if codes.frozen else codes.setdefault(key, len(codes))


def _learn_keyed(items: list[Any], codes: CategoryCodes) -> Encoder:
    """Learn an encoder of sets and dictionaries: a column for each key, NaN if absent; other outputs have key `()`."""
    keys = sorted({key for item in items for key in _flatten_keys(item)}, key=repr)[:MAX_SEQUENCE_LENGTH]

    def read(outputs: Any) -> Floats:
        rows = [_keyed_row(item, keys, codes) for item in _as_builtins(outputs)]
        return np.array(rows, dtype=np.float64).reshape(len(rows), len(keys) + 1)

    read(items)
    codes.freeze()
    labels = (*(_keyed_label(items, key, codes) for key in keys), Label("len(output)", code="len(output)"))
    return Encoder(read, labels, codes, _features(read(items), labels))


def _keyed_label(items: list[Any], key: Hashable, codes: CategoryCodes) -> Label:
    """Return the label of a key: of a member if all outputs are sets, of names if all its values are categories."""
    if all(isinstance(item, set | frozenset) for item in items):
        return Label("output", f"does not contain {key!r}", present=f"contains {key!r}", code=f"{key!r} in output")
    is_key = any(isinstance(item, dict) and key in item for item in items)
    path = key if isinstance(key, tuple) and not is_key else (key,)
    name = f"output{''.join(f'[{part!r}]' for part in path)}"
    values = [values[key] for item in items[:MAX_LABELLED] if key in (values := _flatten_keys(item))]
    if values and not any(isinstance(_as_builtin(value), NUMBER_TYPES) for value in values):
        return Label(name, "is absent", _code_names(codes))
    return Label(name, "is absent", code=f"output.get({key!r}, nan)" if is_key else "")


def _keyed_row(item: Any, keys: list[Hashable], codes: CategoryCodes) -> list[float]:
    """Return the values under the keys, then the size of the output."""
    is_flat = isinstance(item, dict) and CONTAINER_TYPES.isdisjoint(map(type, item.values()))
    values = item if is_flat else _flatten_keys(item)
    size = float(len(item)) if isinstance(item, KEYED_TYPES) else nan
    return [*(_keyed_value(values, key, codes) for key in keys), size]


def _flatten_keys(item: Any, path: tuple[Hashable, ...] = ()) -> dict[Hashable, Any]:
    """Return the value under each key; nested keys are tuples, and members of a set have the value 1."""
    if isinstance(item, set | frozenset):
        item = dict.fromkeys(item, 1.0)
    elif path and isinstance(item, list | tuple | np.ndarray):
        item = dict(enumerate(item))
    if not isinstance(item, dict):
        return {path[0] if len(path) == 1 else path: item}
    return {name: leaf for key, value in item.items() for name, leaf in _flatten_keys(value, (*path, key)).items()}


def _keyed_value(values: dict[Hashable, Any], key: Hashable, codes: CategoryCodes) -> float:
    """Return the value under a key as a number: its code if it is a category, NaN if the key is absent."""
    if key not in values:
        return nan
    value = values[key]
    if type(value) is float:
        return value
    value = _as_builtin(value)
    return _as_float(value) if isinstance(value, NUMBER_TYPES) else float(_code(value, codes))


def _features(matrix: Floats, labels: tuple[Label, ...], kind: str = "number") -> tuple[Feature, ...]:
    """Return the features: the columns themselves, features derived from them, and their bits.

    Features that are constant, or equal to an earlier one, are dropped.
    """
    base = [Feature(label, "base", _nth_column(index)) for index, label in enumerate(labels)]
    if kind == "category":
        return tuple(base)
    derived = _derived_features(matrix, labels) if matrix.shape[1] > 1 else []
    distinct: dict[bytes, Feature] = {}
    for feature in base + derived + _bit_features(matrix, labels):
        column = feature.column(matrix)
        if _varies(column):
            distinct.setdefault(np.ascontiguousarray(column).tobytes(), feature)
    return tuple(distinct.values()) or tuple(base[:1])


def _varies(column: Floats) -> bool:
    return len(column) > 1 and not np.array_equal(column, np.broadcast_to(column[:1], column.shape), equal_nan=True)


def _nth_column(index: int) -> Column:
    return lambda matrix: matrix[:, index]


def _derived_features(matrix: Floats, labels: tuple[Label, ...]) -> list[Feature]:
    """Return features of a row: differences of neighbouring entries, and summaries."""
    width = matrix.shape[1]
    differences = [
        Feature(_difference_label(labels[index + 1], labels[index]), "difference", _difference_column(index))
        for index in range(min(width - 1, MAX_DIFFERENCES))
    ]
    summaries: list[tuple[str, Column]] = [
        ("the largest number", _largest),
        ("the index of the first number", lambda m: np.isfinite(m).argmax(axis=1).astype(np.float64)),
        ("the sum of the numbers", lambda m: np.where(np.isfinite(m), m, 0.0).sum(axis=1)),
        ("the count of numbers", lambda m: np.isfinite(m).sum(axis=1).astype(np.float64)),
        ("the smallest number", _smallest),
        (
            "the index from the end of the last number",
            lambda m: np.isfinite(m)[:, ::-1].argmax(axis=1).astype(np.float64),
        ),
        (
            "the index of the largest number",
            lambda m: np.where(np.isfinite(m), m, -np.inf).argmax(axis=1).astype(np.float64),
        ),
    ]
    return differences + [Feature(Label(name), "summary", column) for name, column in summaries]


def _difference_label(one: Label, other: Label) -> Label:
    """Return the label of a difference; the numbers that stand for names or members are named as such."""
    names = [f"code({label.name})" if label.codes or label.present else label.name for label in (one, other)]
    code = f"{one.code} - {other.code}" if one.code and other.code and not one.present else ""
    return Label(f"({names[0]} - {names[1]})", code=code)


def _difference_column(index: int) -> Column:
    return lambda matrix: _finite_or_nan(matrix[:, index + 1]) - _finite_or_nan(matrix[:, index])


def _finite_or_nan(values: Floats) -> Floats:
    return np.where(np.isfinite(values), values, np.nan)


def _largest(matrix: Floats) -> Floats:
    """Return the largest finite number of each row, NaN if there is none."""
    largest = np.where(np.isfinite(matrix), matrix, -np.inf).max(axis=1)
    return np.where(np.isinf(largest), np.nan, largest)


def _smallest(matrix: Floats) -> Floats:
    return -_largest(-matrix)


def _bit_features(matrix: Floats, labels: tuple[Label, ...]) -> list[Feature]:
    """Return features of the bits of columns with fractions: the lowest set bit and the number of significant bits."""
    fractional = [index for index in range(matrix.shape[1]) if _has_fractions(matrix[:, index])]
    features: list[Feature] = []
    for index in fractional[:2]:
        name, code, value = labels[index].name, labels[index].code, _nth_column(index)
        lowest = Label(f"lowest bit of {name}", "is undefined", code=f"lowest_bit({code})" if code else "")
        significant = Label(f"significant bits of {name}", "is undefined")
        features.append(Feature(lowest, "bits", _lowest_bit_column(index), value))
        features.append(Feature(significant, "bits", _significant_bits_column(index), value))
    if len(fractional) > 1:
        label, value = Label("lowest bit of any number", "is undefined"), _nth_column(fractional[0])
        features.append(Feature(label, "bits", lambda m: _smallest(_lowest_bits(m, fractional)), value))
    return features


def _has_fractions(column: Floats) -> bool:
    finite = column[np.isfinite(column)]
    return bool(np.any(finite != np.round(finite)))


def _lowest_bit_column(index: int) -> Column:
    return lambda matrix: lowest_bit(matrix[:, index])


def _significant_bits_column(index: int) -> Column:
    return lambda matrix: np.frexp(_finite_or_nan(matrix[:, index]))[1] - lowest_bit(matrix[:, index])


def _lowest_bits(matrix: Floats, columns: list[int]) -> Floats:
    return np.column_stack([lowest_bit(matrix[:, index]) for index in columns])
