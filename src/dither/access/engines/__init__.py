"""Engines: the only modules that import a database driver or read a record.

    engine = open_engine(dataset)              # duckdb, postgres or spark, by the tables' sources
    engine.ctx                                 # Context: the dataset and the facts about its public tables
    engine.vector(measure, deadline, secret)   # the exact integers, one per declared cell
    engine.groups(measure, deadline, secret)   # undeclared keys with their counts, for partition selection
    engine.write_cells(measure, folder)        # the exact cells of a table, once, to private files
    engine.each_part(folder, keys, parts, work)  # calls `work(part, exact)` for each part of these cells
    engine.check_workers(folder)               # refuses workers that cannot use a private folder
    engine.corrections()                       # curator only: values corrected into their domain, in all answers so far
    engine.inspect()                           # curator only: corrected values and dropped rows of every table
    engine.findings()                          # curator only: sentences on columns that are largely corrected

To write an engine: subclass `Dialect` for its SQL and `SqlEngine` for its connection: find each table's `TableSource`,
run a statement to an Arrow table, cancel it, and close the connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from dither.access.exact_cells import RowRange, TableKeys
from dither.access.inspection import TableInspection
from dither.access.result_vector import GroupCounts, KeyHolders
from dither.errors import InvalidSchema
from dither.plan.context import Context
from dither.plan.measures.columns import ColumnCounts
from dither.plan.measures.core import Measure, Vector
from dither.plan.measures.partitions import PartitionCounts
from dither.schema import Dataset

MODULES = {
    "parquet": "dither.access.snapshot",
    "csv": "dither.access.snapshot",
    "duckdb": "dither.access.snapshot",
    "postgres": "dither.access.engines.postgres",
    "spark": "dither.access.engines.spark",
}
SNAPSHOTS = MODULES["parquet"]
WRITERS = {**MODULES, "postgres": "dither.access.engines.postgres_snapshot"}


class Engine(Protocol):
    """Computes exact results, without noise; a failed query raises `EngineFailure`, whose message is constant."""

    ctx: Context

    def vector(self, measure: Measure, deadline: float | None = None, secret: int = 0) -> Vector:
        """Return the integers of a measure, one per declared cell; `deadline` in seconds, `secret` keys its samples."""

    def groups(
        self, measure: PartitionCounts, deadline: float | None = None, secret: int = 0
    ) -> GroupCounts | KeyHolders:
        """Return the keys that occur and their counts, or the units that have them."""

    def write_cells(self, measure: ColumnCounts, folder: Path, secret: int = 0) -> None:
        """Write the exact cells that have rows to a new private folder, sorted: the one read of a table's release."""

    def check_workers(self, folder: Path) -> None:
        """Refuse, before anything is charged, a private folder that a worker of this engine cannot use."""

    def each_part(
        self, folder: Path, keys: TableKeys, parts: Sequence[RowRange], work: Callable[[RowRange, Vector], str]
    ) -> Iterator[str]:
        """Call `work` on the exact columns of each part of the written cells, perhaps on workers, where a call may be
        repeated; yield what one call for each part returns."""

    def corrections(self) -> Mapping[str, int]:
        """Return, for the curator, the number of values corrected in the answers so far."""

    def inspect_tables(self) -> Mapping[str, TableInspection]:
        """Return, for the curator, what cleaning corrects in every record of every table."""

    def findings(self) -> list[str]:
        """Return, for the curator, sentences on empty tables and columns that are largely corrected; never fails."""

    def cancel(self) -> None:
        """Stop the running statement, from another thread."""

    def close(self) -> None:
        """Close the connection to the data."""


def open_engine(dataset: Dataset, **options: str) -> Engine:
    """Open the engine that reads this dataset's sources, or their snapshot; all tables must belong to one engine."""
    in_snapshot = any("snapshot" in table.source.options for table in dataset.tables.values())
    module = _common_module(dataset, MODULES)
    # A driver is imported only when its engine is used.
    engine: Engine = import_module(SNAPSHOTS if in_snapshot else module).open_engine(dataset, **options)
    return engine


def open_snapshot_writer(dataset: Dataset, *options: Any) -> Any:
    """Open the writer of a snapshot of this dataset's sources, which needs the driver of their engine alone."""
    return import_module(_common_module(dataset, WRITERS)).open_writer(dataset, *options)


def _common_module(dataset: Dataset, modules: Mapping[str, str]) -> str:
    """Return the module for all tables of a dataset; refuse sources of different engines."""
    found = {modules[table.source.kind] for table in dataset.tables.values()}
    if len(found) != 1:
        kinds = sorted({table.source.kind for table in dataset.tables.values()})
        raise InvalidSchema(
            f"all tables of one dataset must be read by the same engine, got sources of kinds {', '.join(kinds)}"
        )
    return found.pop()


def another_engine(engine: Engine, open_new: Callable[[], Engine]) -> Engine:
    """Return one more engine over the same data, on the same database if it can be shared, else opened separately."""
    another: Callable[[], Engine] = getattr(engine, "another", open_new)
    return another()


def engine_pool(count: int, open_new: Callable[[], Engine]) -> tuple[Engine, ...]:
    """Open `count` engines over the same data, on one database if it can be shared, else each separately."""
    first = open_new()
    return (first, *(another_engine(first, open_new) for _ in range(count - 1)))
