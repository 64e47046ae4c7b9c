"""Sessions over tables that a test writes, in which the numbers of rows are public; and incomes to write."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dither.access.engines import Engine, open_engine
from dither.plan.context import Context, with_public_facts
from dither.post.session import Session
from dither.schema.parser import load
from post.bare import BareKernel

# The largest income that occurs, and a declared range that is a hundred times too wide.
NARROW, WIDE = 400_000, 40_000_000
Opened = Callable[[str, Mapping[str, Any]], Engine]


def draw_incomes(random: np.random.Generator, people: int) -> np.ndarray:
    """Draw incomes below 400,000, whose logarithm is normal."""
    return np.minimum(np.round(np.exp(random.normal(10.3, 0.6, people))), NARROW).astype(int)


@contextmanager
def opened_engines(factory: pytest.TempPathFactory) -> Iterator[Opened]:
    """Write tables and a description, each to `<name>.parquet`, and open an engine; all are closed at the end."""
    engines: list[Engine] = []

    def opened(description: str, tables: Mapping[str, Any]) -> Engine:
        folder = factory.mktemp("written")
        for name, table in tables.items():
            pq.write_table(table if isinstance(table, pa.Table) else pa.table(table), folder / f"{name}.parquet")
        (folder / "dataset.yml").write_text(description)
        engines.append(open_engine(load(folder / "dataset.yml")))
        return engines[-1]

    yield opened
    for engine in engines:
        engine.close()


def session_of(engine: Engine, units: int, **rows: int) -> Session:
    """Open a session in which the numbers of units, and of the rows of each table, are public."""
    dataset = with_public_facts(engine.ctx.dataset, False, {**rows, "": units})
    return Session.from_kernel(BareKernel(Context(dataset, engine.ctx.facts), engine.vector), "analyst")
