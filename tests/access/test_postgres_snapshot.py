"""Snapshots of PostgreSQL tables: the rows that a snapshot of the same records in files has, and one moment of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import plan.worlds as worlds
from access.test_postgres import DSN, ROWS, copied
from dither.access.engines import open_engine
from dither.access.engines.postgres import PostgresEngine
from dither.access.snapshot import SnapshotEngine, prepare, read_manifest, snapshot_path
from dither.cli import app
from dither.errors import InvalidSchema
from dither.plan import measures as m
from dither.plan import relations as r
from dither.schema import Dataset, Source
from plan.agreement import MEASURES


@pytest.fixture
def database(postgres_database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[psycopg.Connection[Any]]:
    monkeypatch.setenv(DSN, postgres_database)
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        yield connection


def with_snapshot(dataset: Dataset, folder: Path) -> Dataset:
    tables = {
        name: replace(table, source=Source("postgres", {**table.source.options, "snapshot": str(folder)}))
        for name, table in dataset.tables.items()
    }
    return replace(dataset, tables=tables)


def stored_rows(folder: Path, table: str) -> list[dict[str, Any]]:
    manifest = read_manifest(folder)
    assert manifest is not None
    rows = pq.read_table(folder / manifest.generation / table).to_pylist()
    return sorted(rows, key=lambda row: repr(sorted(row.items())))


@pytest.mark.tier("test")
def test_the_snapshot_is_that_of_the_same_records_in_files(database: psycopg.Connection[Any], tmp_path: Path) -> None:
    """Values, orders and ranks; then the same integers for every measure."""
    data = with_snapshot(copied(database), tmp_path / "snapshot")
    worlds.write(tmp_path, **ROWS)
    files = worlds.dataset(tmp_path, worlds.USER, worlds.ACTION, worlds.MONTH)
    made, wanted = prepare(data), prepare(files)
    assert {name: (table.rows, table.inspection) for name, table in made.tables.items()} == {
        name: (table.rows, table.inspection) for name, table in wanted.tables.items()
    }
    for name in data.tables:
        assert stored_rows(tmp_path / "snapshot", name) == stored_rows(snapshot_path(files), name), name
    digits = [len(bin(rank)) for rank in _ranks(tmp_path / "snapshot", "actions")]
    assert digits == sorted(digits)
    ready, live = open_engine(data), PostgresEngine(copied_again(data))
    assert isinstance(ready, SnapshotEngine) and ready.prepared
    for measure in MEASURES:
        assert ready.vector(measure, secret=3).tolist() == live.vector(measure, secret=3).tolist()
    ready.close()
    live.close()


def _ranks(folder: Path, table: str) -> list[int]:
    manifest = read_manifest(folder)
    assert manifest is not None
    ranks: list[int] = pq.read_table(folder / manifest.generation / table).column("rank$user").to_pylist()
    return ranks


def copied_again(data: Dataset) -> Dataset:
    """The same dataset without its snapshot."""
    tables = {
        name: replace(
            table, source=Source("postgres", {key: v for key, v in table.source.options.items() if key != "snapshot"})
        )
        for name, table in data.tables.items()
    }
    return replace(data, tables=tables)


def test_answers_come_from_the_snapshot_until_the_next(database: psycopg.Connection[Any], tmp_path: Path) -> None:
    data = with_snapshot(copied(database), tmp_path / "snapshot")
    with pytest.raises(InvalidSchema, match="there is no snapshot in snapshot; run `dither prepare` first"):
        open_engine(data)
    first = prepare(data)
    database.execute("DELETE FROM web.actions")
    assert read_manifest(tmp_path / "snapshot") == first
    open_engine(data).close()
    with pytest.raises(InvalidSchema, match="have changed since the snapshot: run `dither prepare` again"):
        open_engine(replace(data, data_version="2"))
    second = prepare(replace(data, data_version="2"))
    assert second.tables["actions"].rows == 0 < first.tables["actions"].rows
    empty = open_engine(replace(data, data_version="2"))
    assert empty.vector(m.Count(r.Scan("actions"))).tolist() == [0]
    empty.close()


def test_a_failed_snapshot_leaves_nothing(database: psycopg.Connection[Any], tmp_path: Path) -> None:
    data = with_snapshot(copied(database), tmp_path / "snapshot")
    database.execute("DROP TABLE web.urls")
    with pytest.raises(InvalidSchema):
        prepare(data)
    assert not (tmp_path / "snapshot").exists()


DESCRIPTION = """
version: 1
name: web
tables:
  users:
    private: true
    source: {kind: postgres, dsn_env: DITHER_TEST_DSN, table: web.users}
    columns:
      id: {type: identifier, kind: integer}
      age: {type: integer, min: 18, max: 65}
units:
  user: {kind: user, keys: {users: id}}
budgets:
  - {unit: user, kind: pure, epsilon: 1}
"""


def test_the_command_asks_where_to_keep_the_records(database: psycopg.Connection[Any], tmp_path: Path) -> None:
    copied(database)
    file = tmp_path / "dataset.yml"
    file.write_text(DESCRIPTION)
    refused = CliRunner().invoke(app, ["prepare", str(file)])
    assert refused.exit_code == 2 and "add snapshot: web.snapshot to the source of users" in refused.stderr
    file.write_text(DESCRIPTION.replace("web.users}", "web.users, snapshot: web.snapshot}"))
    done = CliRunner().invoke(app, ["prepare", str(file)])
    assert done.exit_code == 0, done.output
    assert "41 rows of users" in done.stdout and "1 row of users dropped" in done.stdout
    assert (tmp_path / "web.snapshot" / "manifest.json").exists()
