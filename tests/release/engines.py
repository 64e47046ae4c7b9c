"""The small world of `world.py` on PostgreSQL and Spark: the same records, description and release."""

from __future__ import annotations

import re
from pathlib import Path

import duckdb
import psycopg

from release.world import DATASET, SPEC, write_world

DSN = "DITHER_TEST_RELEASE_DSN"
SOURCE = re.compile(r"source: \{kind: parquet, path: (\w+)\.parquet\}")
TYPES = {"BIGINT": "bigint", "INTEGER": "integer", "VARCHAR": "text", "TIMESTAMP": "timestamp"}


def write_spark_world(folder: Path, spec: str = SPEC, dataset: str = DATASET, **options: str) -> Path:
    """Write the world with sources that Spark reads; return the release's path."""
    more = "".join(f", {name}: '{value}'" for name, value in options.items())
    return write_world(folder, spec, SOURCE.sub(rf"source: {{kind: spark, path: {folder}/\1.parquet{more}}}", dataset))


def write_postgres_world(folder: Path, address: str, spec: str = SPEC, dataset: str = DATASET) -> Path:
    """Write the world, copy its tables into a database, and return the release's path."""
    found = write_world(folder, spec, SOURCE.sub(rf"source: {{kind: postgres, table: \1, dsn_env: {DSN}}}", dataset))
    with psycopg.connect(address) as connection:
        for table in SOURCE.findall(DATASET):
            copy_table(connection, folder, table)
    return found


def copy_table(connection: psycopg.Connection, folder: Path, table: str) -> None:
    """Copy a Parquet file into a new table."""
    rows = duckdb.sql(f"FROM '{folder}/{table}.parquet'")
    columns = ", ".join(f'"{name}" {TYPES[str(kind)]}' for name, kind in zip(rows.columns, rows.types, strict=True))
    connection.execute(f"CREATE TABLE {table} ({columns})".encode())
    with connection.cursor().copy(f"COPY {table} FROM STDIN".encode()) as copy:
        for row in rows.fetchall():
            copy.write_row(row)
