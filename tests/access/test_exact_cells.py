"""Exact cells in files: a part reads its own cells, of kept items alone, in their places."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dither.access.cell_tasks import CheckWorker, WriteCells, installed_version
from dither.access.exact_cells import SCHEMA, CellReader, RowRange, TableKeys, begin_cells, finish_cells

OUTER, INNER, COLUMNS = 6, 4, 3


@pytest.mark.parametrize("kept", [None, (1, 3), (0, 5), (2,)])
@pytest.mark.parametrize("size", [3, 4, 7, 100])
def test_parts_put_together_are_the_kept_items(kept: tuple[int, ...] | None, size: int, tmp_path: Path) -> None:
    dense = np.arange(1, OUTER * INNER * COLUMNS + 1).reshape(OUTER * INNER, COLUMNS)
    dense[::5] = 0
    cells = np.flatnonzero(dense.reshape(-1))
    table = pa.table([pa.array(cells), pa.array(dense.reshape(-1)[cells])], schema=SCHEMA)
    pq.write_table(table, tmp_path / "cells.parquet", row_group_size=7)
    keys = TableKeys(OUTER, INNER, COLUMNS, kept)
    reader = CellReader(tmp_path, keys)
    starts = range(0, keys.rows, size)
    parts = [reader.read(RowRange(n, first, min(size, keys.rows - first))) for n, first in enumerate(starts)]
    wanted = dense.reshape(OUTER, INNER, COLUMNS)[list(range(OUTER) if kept is None else kept)].reshape(-1, COLUMNS)
    assert np.array_equal(np.concatenate(parts, axis=1).T, wanted)


def batch(*cells: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(cells), pa.array([cell + 5 for cell in cells])], schema=SCHEMA)


def test_only_reported_attempts_become_the_exact_cells(tmp_path: Path) -> None:
    """Two attempts of one task, one of which was reported; a third one writes on while the cells are finished."""
    folder = tmp_path / "exact"
    attempts = begin_cells(folder)
    assert attempts.stat().st_mode & 0o777 == 0o700
    (lost,), (reported,) = (list(WriteCells(attempts)([batch(-1, 1, 4)])) for _ in range(2))
    assert lost.column("file") != reported.column("file")
    assert reported.column("corrections").to_pylist() == [4]  # of a line without a cell
    with open(attempts / "busy.parquet", "wb") as busy:
        finish_cells(attempts, reported.column("file").to_pylist(), folder)
        busy.write(b"late")
    assert [path.name for path in folder.iterdir()] == reported.column("file").to_pylist()
    assert pq.read_table(next(folder.iterdir())).to_pydict() == {"cell": [1, 4], "count": [6, 9]}
    assert [path.name for path in tmp_path.iterdir()] == ["exact"]
    with pytest.raises(FileNotFoundError):  # an attempt that goes on cannot bring the folder back
        list(WriteCells(attempts)([batch(1)]))


def test_a_worker_says_why_it_cannot_take_part(tmp_path: Path) -> None:
    sample = tmp_path / "sample"
    sample.write_bytes(b"here")

    def problem(path: Path, content: bytes = b"here", version: str = installed_version()) -> str:
        (found,) = CheckWorker(path, content, version)([batch()])
        return str(found.column("problem")[0])

    assert problem(sample) == "" and [path.name for path in tmp_path.iterdir()] == ["sample"]
    assert "no such file" in problem(tmp_path / "elsewhere" / "sample")
    assert "another folder" in problem(sample, content=b"there")
    assert "version" in problem(sample, version="0.0.1")
