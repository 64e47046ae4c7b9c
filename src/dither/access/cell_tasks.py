"""The work of a cluster's tasks for a table's release: functions over Arrow batches, which travel to the workers.

Any attempt of a task may fail, be copied or be killed. Each writes a file of its own and reports its name; the driver
gets the report of one attempt of each task, and a file that no report names is never read. Proof: table_release.md.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from math import prod
from pathlib import Path

import numpy as np
import pyarrow as pa

from dither.access.exact_cells import SCHEMA, CellReader, RowRange, TableKeys, cell_batches, write_batches
from dither.access.result_vector import corrections_in
from dither.plan.measures.core import Vector, VectorQuery

RANGES = 4096  # of cells, which are sorted apart
NO_CELL = -1  # its count is a number of corrections
CELLS = "cell bigint, count bigint"
FILES = "file string, corrections bigint"
REPORTS = "report string, problem int"
PROBLEMS = "problem string"


def range_width(query: VectorQuery) -> int:
    """Return the number of cells in a range that is sorted apart: by public facts alone."""
    return -(-prod(map(len, query.keys)) * query.value_count // RANGES)


@dataclass(frozen=True)
class NumberCells:
    """Replaces the encoded keys of groups by the numbers of their cells; a line without a cell counts corrections."""

    query: VectorQuery

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the cells of each batch of groups."""
        for batch in batches:
            yield from cell_batches(self.query, [batch])
            if corrections := corrections_in(batch):
                yield pa.record_batch([pa.array([NO_CELL]), pa.array([corrections])], schema=SCHEMA)


@dataclass(frozen=True)
class WriteCells:
    """Writes the sorted cells of a task to a new file of a private folder."""

    folder: Path

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the name of the file, which is durable, and the number of corrections in its cells."""
        name, corrections = f"{secrets.token_hex(16)}.parquet", [0]
        write_batches(self._split(batches, corrections), self.folder / name)
        yield pa.record_batch({"file": [name], "corrections": corrections})

    def _split(self, batches: Iterable[pa.RecordBatch], corrections: list[int]) -> Iterator[pa.RecordBatch]:
        """Yield the cells, and add up the corrections."""
        for batch in batches:
            is_cell = np.asarray(batch.column("cell").to_numpy()) != NO_CELL
            counts = np.asarray(batch.column("count").to_numpy())
            corrections[0] += int(counts[~is_cell].sum())
            yield pa.record_batch(batch.columns, schema=SCHEMA).filter(pa.array(is_cell))


@dataclass(frozen=True)
class WorkOnParts:
    """Calls `work` on the exact columns of those parts whose places in `parts` it is given."""

    folder: Path
    keys: TableKeys
    parts: tuple[RowRange, ...]
    work: Callable[[RowRange, Vector], str]
    release: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield what `work` returns for each part, or the number of the file system's error."""
        for batch in batches:
            for place in batch.column(0).to_pylist():
                report, problem = self._report(self.parts[place])
                yield pa.record_batch([pa.array([report]), pa.array([problem], pa.int32())], ["report", "problem"])

    def _report(self, part: RowRange) -> tuple[str, int]:
        """Return what `work` says of a part, and 0 or the number of an error."""
        try:
            return self.work(part, cell_reader(self.folder, self.keys, self.release).read(part)), 0
        except OSError as error:
            return "", error.errno or errno.EIO


@lru_cache(maxsize=1)
def cell_reader(folder: Path, keys: TableKeys, release: str) -> CellReader:
    """Return the reader of a release's cells, the same for all parts that this process works on."""
    return CellReader(folder, keys)


@dataclass(frozen=True)
class CheckWorker:
    """Checks that a worker reads and writes the driver's private folder, and runs the same version of Dither."""

    sample: Path
    content: bytes
    version: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield what is wrong on this worker, or an empty text."""
        for _ in batches:
            yield pa.record_batch({"problem": [self._problem()]})

    def _problem(self) -> str:
        """Return what is wrong here, or an empty text."""
        if installed_version() != self.version:
            return f"a worker has version {installed_version()} of Dither, the driver {self.version}"
        try:
            found = self.sample.read_bytes()
            written = self.sample.with_name(f"{secrets.token_hex(16)}.check")
            written.write_bytes(found)
            os.unlink(written)
        except OSError as error:
            return (
                f"a worker cannot use the folder {self.sample.parent}: {os.strerror(error.errno or errno.EIO).lower()}"
            )
        return "" if found == self.content else f"a worker has another folder at {self.sample.parent}"


def installed_version() -> str:
    """Return the version of Dither in this process."""
    try:
        return version("dither")
    except PackageNotFoundError:
        return "unknown"
