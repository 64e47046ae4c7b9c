"""Engines: the only files that import a driver or see a record.

    engine = open_engine(dataset)              # duckdb, postgres or spark, by the tables' sources
    engine.ctx                                 # Context: the dataset and the facts about its public tables
    engine.vector(measure, deadline, secret)   # the exact integers, one per declared cell
    engine.groups(measure, deadline, secret)   # undeclared keys with their counts, for partition selection
    engine.corrections()                       # curator only: values corrected into their domain, in the last answers
    engine.inspect()                           # curator only: corrected values and dropped rows of every table

To write an engine: subclass `Spelling` for the dialect, find each table's `Origin`, run
`measure.plan(Statement(ctx, origins, spelling, secret, counted)).select`, and give its Arrow table to `laid_out`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Protocol

from dither.access.result_vector import ReleasedGroups
from dither.errors import InvalidSchema
from dither.plan.context import Context
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


class Engine(Protocol):
    """Computes exactly; knows no noise. Any failure is an `EngineFailure` with a constant message."""

    ctx: Context

    def vector(self, measure: Measure, deadline: float | None = None, secret: int = 0) -> Vector:
        """The integers of a measure, one per declared cell; `deadline` in seconds, `secret` keys its samples."""

    def groups(self, measure: PartitionCounts, deadline: float | None = None, secret: int = 0) -> ReleasedGroups:
        """The keys that occur and their counts."""

    def corrections(self) -> Mapping[str, int]:
        """For the curator: how many values had to be corrected in the answers so far."""

    def cancel(self) -> None:
        """Stops what is running, from another thread."""

    def close(self) -> None:
        """Lets go of the data."""


def open_engine(dataset: Dataset, **options: str) -> Engine:
    """The engine that reads this dataset's sources; all tables must be of one engine."""
    modules = {MODULES[table.source.kind] for table in dataset.tables.values()}
    if len(modules) != 1:
        kinds = sorted({table.source.kind for table in dataset.tables.values()})
        raise InvalidSchema(
            f"the tables of one dataset must be read by one engine, got sources of kinds {', '.join(kinds)}"
        )
    # The registry: a driver is imported only when its engine is wanted.
    engine: Engine = import_module(modules.pop()).open_engine(dataset, **options)
    return engine


def another_engine(engine: Engine, opened: Callable[[], Engine]) -> Engine:
    """One more engine over the same data: on the same database where it can share that, else opened for itself."""
    another: Callable[[], Engine] = getattr(engine, "another", opened)
    return another()


def engine_pool(count: int, opened: Callable[[], Engine]) -> tuple[Engine, ...]:
    """So many engines over the same data: on one database where they can share it, else each opened for itself."""
    first = opened()
    return (first, *(another_engine(first, opened) for _ in range(count - 1)))
