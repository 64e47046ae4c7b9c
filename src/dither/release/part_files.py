"""Write the noisy columns of a part with their keys: Parquet or CSV, the same columns and order in every file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dither.access.exact_cells import RowRange, TableKeys
from dither.plan.domains import EPOCH, Periods
from dither.plan.measures.core import Vector
from dither.schema import Domain, Moment, Scalar

ROWS_PER_GROUP = 1 << 20
PERIOD_FORMATS = {"month": "%Y-%m", "quarter": "%Y-%m", "year": "%Y"}


def key_labels(values: Sequence[Scalar], domain: Domain) -> list[Any]:
    """Return the values of a key as they stand in the files: texts, integers, or dates as text."""
    return [_label(value, domain) for value in values]


def _label(value: Scalar, domain: Domain) -> Any:
    """Return one value of a key as it stands in the files."""
    if value is None:
        return None
    if isinstance(domain, Moment) and isinstance(value, int):
        moment = EPOCH + timedelta(microseconds=value)
        form = PERIOD_FORMATS.get(domain.every) if isinstance(domain, Periods) else None
        return moment.strftime(form) if form else moment.isoformat(sep=" ").removesuffix(" 00:00:00")
    if isinstance(value, Fraction):
        return float(value)
    return value


@dataclass(frozen=True)
class PartFile:
    """Writes one part; it can be sent to other processes, and knows public labels alone."""

    key_names: tuple[str, ...]
    labels: tuple[tuple[Any, ...], ...]
    columns: tuple[str, ...]
    nonnegative: bool
    format: Literal["parquet", "csv"]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all columns of the files, in their order."""
        copies = tuple(f"{name}_nonnegative" for name in self.columns) if self.nonnegative else ()
        return (*self.key_names, *self.columns, *copies)

    @cached_property
    def _types(self) -> tuple[tuple[pa.DataType, bool], ...]:
        """The Arrow type of each key's labels and whether one is NULL: the same in every file."""
        arrays = [pa.array(labels) for labels in self.labels]
        return tuple((array.type, array.null_count > 0) for array in arrays)

    def __call__(self, part: RowRange, keys: TableKeys, noisy: Vector, path: Path) -> None:
        """Write the rows of a part, every key with every column."""
        table = pa.table({**self._key_columns(part, keys), **self._value_columns(noisy)})
        if self.format == "csv":
            pa_csv.write_csv(table, path)
            return
        pq.write_table(
            table, path, compression="zstd", use_dictionary=True, write_statistics=False, row_group_size=ROWS_PER_GROUP
        )

    def _key_columns(self, part: RowRange, keys: TableKeys) -> dict[str, pa.Array]:
        """Return the key columns of a range of rows, generated from their declared order."""
        found: dict[str, pa.Array] = {}
        stride = prod(len(labels) for labels in self.labels[1:])
        for place, (name, labels) in enumerate(zip(self.key_names, self.labels, strict=True)):
            if place:
                stride //= len(labels)
            size = keys.rows // keys.inner if place == 0 else len(labels)
            codes = _codes(part, stride, size)
            if place == 0 and keys.kept is not None:
                codes = np.array(keys.kept, np.int64)[codes]
            found[name] = _label_codes(codes, labels, *self._types[place], self.format)
        return found

    def _value_columns(self, noisy: Vector) -> dict[str, pa.Array]:
        """Return the noisy columns, and their nonnegative copies if wanted."""
        found = {name: pa.array(values) for name, values in zip(self.columns, noisy, strict=True)}
        if self.nonnegative:
            pairs = zip(self.columns, noisy, strict=True)
            found |= {f"{name}_nonnegative": pa.array(np.maximum(values, 0)) for name, values in pairs}
        return found


def _codes(part: RowRange, stride: int, size: int) -> NDArray[np.int64]:
    """Return the places on an axis of consecutive rows, of which `stride` share a place."""
    period = stride * size
    if part.rows < period or part.first % period:
        return (np.arange(part.first, part.first + part.rows) // stride) % size
    once = np.repeat(np.arange(size), stride)
    return np.tile(once, -(-part.rows // period))[: part.rows]


def _label_codes(
    codes: NDArray[np.int64], labels: tuple[Any, ...], kind: pa.DataType, nullable: bool, form: str
) -> pa.Array:
    """Return the labels of places; texts as a dictionary. The time depends on the labels used, not on all."""
    low, high = (int(codes.min()), int(codes.max()) + 1) if len(codes) else (0, 1)
    used, codes = labels[low:high], codes - low
    if pa.types.is_integer(kind) and not nullable:
        return pa.array(np.array(used, np.int64)[codes])
    # Parquet takes no dictionary with NULL in it: the codes are NULL instead, and some other label stands in its place.
    some = next((label for label in labels if label is not None), None)
    missing = np.array([label is None for label in used])
    dictionary = pa.array([some if label is None else label for label in used], kind)
    array = pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32), mask=missing[codes]), dictionary)
    return array.cast(kind) if form == "csv" else array
