"""Snapshots of PostgreSQL tables: the server cleans, orders and ranks the rows, and DuckDB sorts them into a file."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pyarrow.parquet as pq
from sqlglot import exp

from dither.access.engines.postgres import ROWS_PER_FETCH, PostgresEngine, as_arrow
from dither.access.snapshot import Progress, SnapshotTable, copy_to_parquet, snapshot_rows, sort_columns
from dither.errors import EngineFailure
from dither.plan.sql.builders import Sql, select
from dither.plan.sql.dialect import Dialect
from dither.plan.sql.statement import SqlStatement
from dither.schema import Dataset, Table


class PostgresSnapshotWriter(PostgresEngine):
    """Writes all tables as they are at one moment: in one transaction, whose rows are fetched through a cursor."""

    def __init__(self, dataset: Dataset, directory: Path, memory: str, disk: str) -> None:
        super().__init__(dataset)
        self._directory = directory
        self._limits: dict[str, Any] = {
            "memory_limit": memory,
            "max_temp_directory_size": disk,
            "temp_directory": str(directory),
        }
        # This begins the transaction; the transactions of later statements are parts of it.
        self._connection.execute("SELECT pg_catalog.set_config('search_path', 'pg_catalog', true)")

    def table(self, table: Table, progress: Progress) -> SnapshotTable:
        """Write one table."""
        directory = self._directory / table.name
        directory.mkdir()
        progress(table.name, 0, 1)
        fetched = self._directory / f"{table.name}.fetched"
        try:
            inspection = self._inspect_table(table.name)
            statement = SqlStatement(self.ctx, self._sources, self.dialect, keeps_order=True)
            self._fetch(statement.finish(snapshot_rows(statement, table)), fetched)
            rows = self._sort(table, fetched, directory / "part-0000.parquet")
        except (psycopg.Error, duckdb.Error) as error:
            self.failure = str(error)
            raise EngineFailure from None
        finally:
            fetched.unlink(missing_ok=True)
        progress(table.name, 1, 1)
        return SnapshotTable(table.name, rows, inspection)

    def _fetch(self, rows: Sql, file: Path) -> None:
        """Fetch rows in batches, and write them to a file as they come."""
        with self._connection.cursor(name="snapshot", binary=True) as cursor:
            cursor.execute(self.dialect.render(rows).encode())
            batch = as_arrow(cursor, ROWS_PER_FETCH)
            with pq.ParquetWriter(file, batch.schema) as writer:
                while batch.num_rows:
                    writer.write_table(batch)
                    batch = as_arrow(cursor, ROWS_PER_FETCH)

    def _sort(self, table: Table, fetched: Path, file: Path) -> int:
        """Sort the fetched rows as those of every snapshot are, and return their number."""
        source = exp.Anonymous(this="read_parquet", expressions=[exp.Literal.string(str(fetched))])
        rows = select(exp.Star()).from_(source, copy=False).order_by(*sort_columns(self.ctx, table), copy=False)
        with closing(duckdb.connect(":memory:", config=self._limits)) as database:
            copied = database.execute(Dialect().render(copy_to_parquet(rows, file))).fetchone()
        with file.open("rb") as written:
            os.fsync(written.fileno())
        return int(copied[0]) if copied else 0


def open_writer(dataset: Dataset, directory: Path, memory: str, disk: str) -> PostgresSnapshotWriter:
    """Open the writer of a snapshot of PostgreSQL tables."""
    return PostgresSnapshotWriter(dataset, directory, memory, disk)
