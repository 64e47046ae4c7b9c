"""The exact cells of a table, written once, sorted, to a private folder; every draw of a release reads them there.

    folder/*.parquet      columns cell (row by row over the keys' axes, columns of the table innermost) and count

Cells without rows are absent. The rows of each file are sorted by cell. A folder appears by one rename.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from sqlglot import exp

from dither.access.result_vector import integer_column, key_positions
from dither.plan.measures.core import Vector, VectorQuery
from dither.plan.sql.builders import Sql, select
from dither.plan.sql.dialect import Dialect

SORT_MEMORY = "512MB"
ROWS_PER_GROUP = 1 << 17


@dataclass(frozen=True)
class TableKeys:
    """The released rows of a table: `inner` keys for each kept value of the first key, or for all `outer` values."""

    outer: int
    inner: int
    columns: int
    kept: tuple[int, ...] | None = None

    @property
    def rows(self) -> int:
        """The number of released rows."""
        return (self.outer if self.kept is None else len(self.kept)) * self.inner


@dataclass(frozen=True)
class RowRange:
    """A part of a table: `rows` consecutive released rows from `first`."""

    number: int
    first: int
    rows: int


SCHEMA = pa.schema([("cell", pa.int64()), ("count", pa.int64())])


def cell_batches(query: VectorQuery, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Replace the encoded keys of each group by the numbers of its cells; undeclared keys and zeros are dropped."""
    for batch in batches:
        table = pa.Table.from_batches([batch])
        positions, valid = key_positions(query, table)
        for index in range(query.value_count):
            counts = integer_column(table.column(f"v{index}"))
            kept = valid & (counts != 0)
            cells = positions[kept] * query.value_count + index
            yield pa.record_batch([pa.array(cells), pa.array(counts[kept])], schema=SCHEMA)


def write_sorted(query: VectorQuery, batches: Iterable[pa.RecordBatch], folder: Path) -> None:
    """Sort the groups of a query by cell and write them to a new folder, which appears whole or not at all."""
    attempts = begin_cells(folder)
    reader = pa.RecordBatchReader.from_batches(SCHEMA, cell_batches(query, batches))
    with tempfile.TemporaryDirectory(dir=attempts) as spill, closing(duckdb.connect(":memory:")) as connection:
        for name, value in {"temp_directory": spill, "memory_limit": SORT_MEMORY, "threads": "1"}.items():
            connection.execute(f"SET {name} = '{value}'")
        connection.register("cells", reader)
        ordered = connection.sql(Dialect().render(_sorted_cells())).fetch_record_batch(ROWS_PER_GROUP)
        write_batches(ordered, attempts / "cells.parquet")
    finish_cells(attempts, ["cells.parquet"], folder)


def begin_cells(folder: Path) -> Path:
    """Return a new private folder, under a name of its own, for the files of the exact cells."""
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    attempts = unfinished / secrets.token_hex(16)
    attempts.mkdir(mode=0o700, parents=True)
    return attempts


def finish_cells(attempts: Path, names: Iterable[str], folder: Path) -> None:
    """Make the named files, and no others, the exact cells, in one step; delete the others."""
    chosen = attempts.with_name("chosen")
    chosen.mkdir(mode=0o700)
    for name in names:
        os.rename(attempts / name, chosen / name)
    sync_folder(chosen)
    os.rename(chosen, folder)
    sync_folder(folder.parent)
    shutil.rmtree(attempts.parent, ignore_errors=True)


def _sorted_cells() -> Sql:
    """Build the statement that sorts the cells."""
    return select(exp.Star()).from_("cells", copy=False).order_by("cell", copy=False)


def write_batches(batches: Iterable[pa.RecordBatch], path: Path) -> None:
    """Write batches of cells as the row groups of one file, durably."""
    with open(path, "wb") as file:
        with pq.ParquetWriter(file, SCHEMA, compression="zstd") as writer:
            for batch in batches:
                writer.write_batch(batch, row_group_size=ROWS_PER_GROUP)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class CellReader:
    """Reads the exact cells of one part at a time from the folder that an engine wrote."""

    def __init__(self, folder: Path, keys: TableKeys) -> None:
        self._keys = keys
        self._kept = None if keys.kept is None else np.array(keys.kept, np.int64)
        self._groups: list[tuple[int, int, Path, pq.FileMetaData, int]] = []
        for path in sorted(folder.glob("*.parquet")):
            metadata = pq.read_metadata(path)
            for group in range(metadata.num_row_groups):
                statistics = metadata.row_group(group).column(0).statistics
                self._groups.append((statistics.min, statistics.max, path, metadata, group))

    def read(self, part: RowRange) -> Vector:
        """Return the exact columns of a part, one line of the matrix for each, 0 where a key has no rows."""
        columns = self._keys.columns
        matrix = np.zeros((columns, part.rows), np.int64)
        low, high = self._key_of(part.first) * columns, (self._key_of(part.first + part.rows - 1) + 1) * columns
        for smallest, largest, path, metadata, group in self._groups:
            if smallest < high and largest >= low:
                with pq.ParquetFile(path, metadata=metadata) as file:
                    self._place(matrix, part, file.read_row_group(group))
        return matrix

    def _place(self, matrix: Vector, part: RowRange, table: pa.Table) -> None:
        """Put the cells of a row group that belong to a part into its matrix."""
        keys, columns = np.divmod(np.asarray(table.column("cell").to_numpy()), self._keys.columns)
        rows, released = self._rows_of(keys)
        inside = released & (rows >= part.first) & (rows < part.first + part.rows)
        matrix[columns[inside], rows[inside] - part.first] = np.asarray(table.column("count").to_numpy())[inside]

    def _key_of(self, row: int) -> int:
        """Return the number of the key of a released row."""
        outer, inner = divmod(row, self._keys.inner)
        return (outer if self._kept is None else int(self._kept[outer])) * self._keys.inner + inner

    def _rows_of(self, keys: Vector) -> tuple[Vector, NDArray[np.bool_]]:
        """Return the released row of each key, and whether it is released at all."""
        if self._kept is None:
            return keys, np.ones(len(keys), np.bool_)
        outer, inner = np.divmod(keys, self._keys.inner)
        places = np.minimum(np.searchsorted(self._kept, outer), max(0, len(self._kept) - 1))
        return places * self._keys.inner + inner, self._kept[places] == outer
