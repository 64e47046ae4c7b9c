"""Timestamps of every spelling and precision on three engines: no stored instant changes without being counted."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from access.instants import FORMS, ZONES, RandomTable, described, differences, random_table
from dither.access.engines import open_engine
from dither.access.engines.duckdb import DuckDBEngine
from dither.access.engines.spark import SparkEngine
from dither.access.snapshot import SnapshotEngine, prepare
from dither.plan import expressions as x
from dither.plan import measures as m
from dither.plan import relations as r
from dither.schema import Column, Dataset, Identifier, Moment, Source, Table
from plan.benches import moment as postgres_moment

ALL = tuple(FORMS)
FOR_POSTGRES = ("text", "naive_us", "aware_us", "day", "number")
FOR_SPARK = ("text", "naive_ms", "naive_us", "aware_s", "aware_us", "day", "number")
POSTGRES_TYPES = {"text": "text", "naive_us": "timestamp", "aware_us": "timestamptz", "day": "date", "number": "bigint"}
DSN = "DITHER_TIMES_DSN"


def random_tables(seed: str, zone: str, forms: tuple[str, ...], count: int) -> dict[str, RandomTable]:
    return {f"t{i}": random_table(Random(f"{seed}:{i}"), f"t{i}", zone, forms) for i in range(count)}


def narrow_tables(seed: str, zone: str, forms: tuple[str, ...], count: int) -> dict[str, RandomTable]:
    """Tables with one way of storing a time each, texts most often: many take less time than a few wide ones."""
    rng = Random(seed)
    picked = [(rng.choice(("text", *forms)),) for _ in range(count)]
    return {f"t{i}": random_table(rng, f"t{i}", zone, form) for i, form in enumerate(picked)}


def zone_of(dataset: int) -> str:
    return ZONES[dataset % len(ZONES)]


def in_files(tables: dict[str, RandomTable], path: Path, zone: str, kind: Any) -> Dataset:
    path.mkdir()
    for name, table in tables.items():
        pq.write_table(table.arrow(), path / f"{name}.parquet")
    places = {name: Source(kind, {"path": str(path / f"{name}.parquet")}) for name in tables}
    return described({name: table.declared(places[name]) for name, table in tables.items()}, zone)


def on_duckdb(seed: str, path: Path, datasets: int, each: int, tally: Counter[str]) -> list[str]:
    """Every table as it is, and prepared."""
    problems = []
    for number in range(datasets):
        zone = zone_of(number)
        tables = (random_tables if each < 20 else narrow_tables)(f"{seed}:duckdb:{number}", zone, ALL, each)
        data = in_files(tables, path / str(number), zone, "parquet")
        plain = DuckDBEngine(data, threads=1)
        problems += differences(plain, tables, tally)
        prepare(data)
        ready = open_engine(data)
        assert isinstance(ready, SnapshotEngine)
        problems += differences(ready, tables, Counter(), counted=False)
        assert ready.inspect() == plain.inspect()
        plain.close()
        ready.close()
    return problems


def on_postgres(seed: str, address: str, datasets: int, each: int, tally: Counter[str]) -> list[str]:
    problems = []
    for number in range(datasets):
        zone = zone_of(number)
        make = random_tables if each < 20 else narrow_tables
        tables = make(f"{seed}:postgres:{number}", zone, FOR_POSTGRES, each)
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute("SET TimeZone = 'Asia/Tokyo'")
            for name, table in tables.items():
                into_postgres(connection, f"d{number}_{name}", table)
        places = {name: Source("postgres", {"dsn_env": DSN, "table": f"d{number}_{name}"}) for name in tables}
        engine = open_engine(described({name: table.declared(places[name]) for name, table in tables.items()}, zone))
        problems += differences(engine, tables, tally)
        engine.close()
    return problems


def into_postgres(connection: psycopg.Connection[Any], name: str, table: RandomTable) -> None:
    types = ", ".join(f"{form} {POSTGRES_TYPES[form]}" for form in table.domains)
    connection.execute(f"CREATE TABLE {name} (u bigint, {types})")
    spelt = {
        "naive_us": postgres_moment,
        "aware_us": lambda value: postgres_moment(value) + "+00",
        "text": lambda value: value.replace("\0", "?"),
        "day": lambda value: postgres_moment(value * 86_400_000_000)[:10],
    }
    records = [
        [None if v is None else spelt.get(f, lambda x: x)(v.value) for v in table.records[f]] for f in table.domains
    ]
    rows = [(key, *values) for key, values in enumerate(zip(*records, strict=True))]
    marks = ", ".join(["%s"] * (len(table.domains) + 1))
    connection.cursor().executemany(f"INSERT INTO {name} VALUES ({marks})", rows)


def on_spark(seed: str, session: Any, path: Path, datasets: int, each: int, tally: Counter[str]) -> list[str]:
    problems = []
    for number in range(datasets):
        zone = zone_of(number)
        tables = narrow_tables(f"{seed}:spark:{number}", zone, FOR_SPARK, each)
        own = session.newSession()
        if number % 4:  # for a few rows, compiling a statement takes longer than interpreting it
            own.conf.set("spark.sql.codegen.wholeStage", "false")
            own.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        engine = SparkEngine(in_files(tables, path / str(number), zone, "spark"), "1", own)
        problems += differences(engine, tables, tally)
        engine.close()
    return problems


def test_an_int96_of_parquet_is_an_instant(tmp_path: Path) -> None:
    """Spark writes instants so, and reads them so; DuckDB would call them timestamps without a zone."""
    columns = {"u": Column("u", Identifier("integer")), "at": Column("at", Moment(0, 10**15, "hour"))}
    table = Table("t", True, columns, Source("parquet", {"path": str(tmp_path / "t.parquet")}))
    stored = pa.table({"u": [1], "at": pa.array([3 * 36 * 10**8], pa.int64()).cast(pa.timestamp("us"))})
    pq.write_table(stored, tmp_path / "t.parquet", use_deprecated_int96_timestamps=True)
    engine = open_engine(described({"t": table}, "Asia/Tokyo"))
    hours = m.Sum(r.LimitRowsPerUnit(r.Scan("t"), "user", 1), x.DatePart("hour", x.ColumnRef("at")))
    assert engine.vector(hours).tolist() == [3 + 9]
    engine.close()


def test_nanoseconds_are_cut_and_never_rounded_into_the_next_year(tmp_path: Path) -> None:
    """DuckDB's own cast of nanoseconds rounds to the nearest microsecond."""
    end = 1_388_534_400 * 10**9
    columns = {"u": Column("u", Identifier("integer")), "at": Column("at", Moment(0, 2 * end // 1000))}
    table = Table("t", True, columns, Source("parquet", {"path": str(tmp_path / "t.parquet")}))
    moments = pa.array([end - 1, 1 - 2**63], pa.int64()).cast(pa.timestamp("ns"))
    pq.write_table(pa.table({"u": [1, 2], "at": moments}), tmp_path / "t.parquet")
    engine = open_engine(described({"t": table}, "UTC"))
    years = m.Sum(r.LimitRowsPerUnit(r.Scan("t"), "user", 1), x.DatePart("year", x.ColumnRef("at")))
    assert engine.vector(years).tolist() == [2013 + 1970]
    engine.close()


def report(capsys: pytest.CaptureFixture[str], engine: str, tally: Counter[str]) -> None:
    with capsys.disabled():
        print(
            f"\n  tests/access: timestamps on {engine}: {tally['tables']} tables, {tally['values']} values,"
            f" {tally['corrections']} corrections, all counted; 0 values changed without one"
        )


def test_no_instant_changes_uncounted_on_duckdb(tier: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tally = Counter[str]()
    assert (
        on_duckdb("times", tmp_path, tier.pick(quick=2, test=8, deep=100), tier.pick(quick=1, test=3, deep=20), tally)
        == []
    )
    report(capsys, "duckdb", tally)


def test_no_instant_changes_uncounted_on_postgres(
    tier: Any, postgres_database: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(DSN, postgres_database)
    tally = Counter[str]()
    assert (
        on_postgres(
            "times",
            postgres_database,
            tier.pick(quick=2, test=8, deep=100),
            tier.pick(quick=1, test=3, deep=20),
            tally,
        )
        == []
    )
    report(capsys, "postgres", tally)


@pytest.mark.tier("test")
def test_no_instant_changes_uncounted_on_spark(
    tier: Any, spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tally = Counter[str]()
    assert (
        on_spark(
            "times", spark, tmp_path, tier.pick(quick=0, test=2, deep=100), tier.pick(quick=0, test=8, deep=20), tally
        )
        == []
    )
    report(capsys, "spark", tally)
