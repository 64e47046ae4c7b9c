"""Convert the groups that an engine returns to the vector over all declared keys."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dither.plan.context import Context
from dither.plan.domains import Lattice, normalise
from dither.plan.measures.core import Measure, Vector, VectorQuery
from dither.plan.measures.partitions import KeyShares, PartitionCounts, share_of
from dither.plan.relations.project import columns_read
from dither.plan.sql.scope import Scope
from dither.schema import Number, Scalar

EncodedValue = int | str | bool | None


Key = tuple[Scalar, ...]


@dataclass(frozen=True)
class GroupCounts:
    """Exact counts of undeclared keys: the input of partition selection, never released directly."""

    keys: tuple[Key, ...]
    counts: Vector

    def without(self, closed: Collection[Key]) -> Vector:
        """Return the counts, 0 for closed keys."""
        return np.where(_open_keys(self.keys, closed), self.counts, 0)


@dataclass(frozen=True)
class KeyHolders:
    """The keys that each unit has, one pair of numbers for each: the input of partition selection, never released."""

    keys: tuple[Key, ...]
    pair_units: NDArray[np.int64]
    pair_keys: NDArray[np.int64]

    def without(self, closed: Collection[Key]) -> Vector:
        """Return the sum of the units' shares in each key; a unit divides its share among its keys that are open."""
        is_open = _open_keys(self.keys, closed)[self.pair_keys]
        units, keys = self.pair_units[is_open], self.pair_keys[is_open]
        held = np.bincount(units)
        shares = np.array([0, *map(share_of, range(1, 1 + held.max(initial=0)))], dtype=np.int64)
        totals = np.zeros(len(self.keys), dtype=np.int64)
        np.add.at(totals, keys, shares[held[units]])
        return totals


def _open_keys(keys: Sequence[Key], closed: Collection[Key]) -> NDArray[np.bool_]:
    """Return which of the keys are not closed."""
    return np.array([key not in closed for key in keys], dtype=bool)


def to_vector(measure: Measure, query: VectorQuery, table: pa.Table) -> Vector:
    """Return the vector over all declared keys: 0 for keys without rows; undeclared keys are dropped."""
    positions, valid = key_positions(query, table)
    cells = np.zeros((prod(len(axis) for axis in query.keys), query.value_count), dtype=np.int64)
    for index in range(query.value_count):
        cells[positions[valid], index] = integer_column(table.column(f"v{index}"))[valid]
    return measure.finish(cells.reshape(-1))


def key_positions(query: VectorQuery, table: pa.Table) -> tuple[Vector, NDArray[np.bool_]]:
    """Return the number of each group's key, row by row over the axes, and whether the key is declared."""
    positions = np.zeros(table.num_rows, dtype=np.int64)
    valid = np.ones(table.num_rows, dtype=np.bool_)
    for index, axis in enumerate(query.keys):
        on_axis = _positions(table.column(f"k{index}"), axis)
        valid &= on_axis >= 0
        positions = positions * len(axis) + np.maximum(on_axis, 0)
    return positions, valid


def _positions(column: pa.ChunkedArray, axis: Sequence[EncodedValue]) -> NDArray[np.int64]:
    """Return the position of each key on its axis, or -1 if it is not there."""
    if isinstance(axis, Lattice):
        return _lattice_positions(column, axis)
    text_types = pa.types.is_dictionary, pa.types.is_string, pa.types.is_large_string
    is_textual = any(is_text(column.type) for is_text in text_types) or any(isinstance(value, str) for value in axis)
    kind = pa.string() if is_textual else pa.int64()
    values = pa.array([int(v) if isinstance(v, int) else v for v in axis], type=kind)
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    matches = pc.fill_null(pc.index_in(column.cast(kind), value_set=values), -1)
    return np.asarray(matches.to_numpy(), dtype=np.int64)


def _lattice_positions(column: pa.ChunkedArray, axis: Lattice) -> NDArray[np.int64]:
    """Compute the positions of evenly spaced keys, of which there may be millions, without a lookup."""
    indices_range = axis.indices
    encoded = np.asarray(pc.fill_null(column.cast(pa.int64()), indices_range.start).to_numpy(), dtype=np.int64)
    quotient, remainder = np.divmod(encoded - indices_range.start, indices_range.step)
    listed_positions = np.where(
        (encoded >= indices_range.start) & (encoded < indices_range.stop) & (remainder == 0), quotient, -1
    )
    is_missing = np.asarray(pc.is_null(column).to_numpy(), dtype=bool)
    return np.where(is_missing, len(indices_range) if axis.nullable else -1, listed_positions)


def integer_column(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """Convert a column to int64, NULL to 0."""
    return np.asarray(pc.fill_null(column.cast(pa.int64()), 0).to_numpy(), dtype=np.int64)


def to_groups(ctx: Context, measure: PartitionCounts, table: pa.Table) -> GroupCounts | KeyHolders:
    """Return the keys that occur, as public values in a fixed order, with their counts or their holders."""
    key_columns = [f"k{index}" for index in range(len(measure.keys))]
    if isinstance(measure, KeyShares):
        pair_keys, first = _number_rows(table, key_columns)
        pair_units, _ = _number_rows(table, [name for name in table.column_names if name not in {*key_columns, "b"}])
        keys, order = _public_keys(ctx, measure, table.select(key_columns).take(first))
        return KeyHolders(keys, pair_units, np.argsort(order)[pair_keys])
    keys, order = _public_keys(ctx, measure, table)
    return GroupCounts(keys, integer_column(table.column("v0"))[order])


def _number_rows(table: pa.Table, names: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Number the different rows of some columns; return the number of each row, and the first row of each number."""
    numbers = np.zeros(table.num_rows, dtype=np.int64)
    first = np.zeros(0, dtype=np.int64)
    for name in names:
        encoded = table.column(name).combine_chunks().dictionary_encode(null_encoding="encode")
        codes = np.asarray(encoded.indices.to_numpy(zero_copy_only=False), dtype=np.int64)
        pairs = numbers * max(1, len(encoded.dictionary)) + codes
        _, first, numbers = np.unique(pairs, return_index=True, return_inverse=True)
    return numbers, first


def _public_keys(ctx: Context, measure: PartitionCounts, table: pa.Table) -> tuple[tuple[Key, ...], list[int]]:
    """Return the keys of a table's rows as public values, sorted, and the place of each of them in the table."""
    scope = Scope(measure.child.domain(ctx))
    columns = [table.column(f"k{index}").to_pylist() for index in range(len(measure.keys))]
    domains = [key.value.domain(scope) for key in measure.keys]
    public_columns = [
        [
            normalise(value * domain.step) if isinstance(domain, Number) and value is not None else value
            for value in column
        ]
        for column, domain in zip(columns, domains, strict=True)
    ]
    keys = list(zip(*public_columns, strict=True))
    order = sorted(range(len(keys)), key=lambda row: tuple((value is None, str(value)) for value in keys[row]))
    return tuple(keys[row] for row in order), order


def corrections_in(table: pa.Table | pa.RecordBatch) -> int:
    """Count the corrected values that went into an answer."""
    return int(pc.sum(table.column("b")).as_py() or 0)


def columns_to_count(measure: Measure) -> frozenset[str]:
    """Return the names of the columns that a plan's expressions read: the columns whose corrections are counted."""
    return frozenset(columns_read(measure))
