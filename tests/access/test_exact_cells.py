"""Exact cells in files: a part reads its own cells, of kept items alone, in their places."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dither.access.exact_cells import SCHEMA, CellReader, RowRange, TableKeys

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
