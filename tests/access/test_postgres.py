"""PostgreSQL: the integers of the reference on random plans; hostile types; read-only, limited, stoppable."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlglot import exp

import plan.worlds as worlds
from dither.access.engines import open_engine
from dither.access.engines.guarded_dialect import GuardedDialect
from dither.access.engines.postgres import PostgresDialect, PostgresEngine
from dither.errors import EngineFailure, InvalidSchema
from dither.plan import expressions as x
from dither.plan import measures as m
from dither.plan import relations as r
from dither.plan.sql.builders import cast
from dither.plan.sql.statement import SqlStatement, column_ref
from dither.schema import Boolean, Category, Column, Dataset, Identifier, Moment, Number, Source, Table, Unit
from plan.agreement import MEASURES, largest_difference, promises_hold, random_plans
from plan.benches import PostgresBench
from plan.trials import Violation

DSN = "DITHER_TEST_DSN"


@pytest.fixture
def bench(postgres_database: str) -> Iterator[PostgresBench]:
    found = PostgresBench(postgres_database)
    yield found
    found.connection.close()


@pytest.mark.tier("test")
def test_promises_hold_on_postgres(tier: Any, bench: PostgresBench, capsys: pytest.CaptureFixture[str]) -> None:
    promises_hold(bench, "postgres", tier.pick(quick=0, test=100, deep=2_000), 4, capsys)


def test_functions_are_within_a_step_of_duckdb(bench: PostgresBench) -> None:
    assert largest_difference(bench) <= 1


FAULTS = {
    "unguarded cast": (GuardedDialect, "parse_number", lambda self, value: cast(value, "double")),
    "unguarded date": (PostgresDialect, "parse_timestamp", lambda self, value: cast(value, "timestamp")),
    "integer by pattern alone": (GuardedDialect, "parse_integer", lambda self, value: cast(value, "bigint")),
}


@pytest.mark.tier("test")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_spelling_is_found(fault: str, bench: PostgresBench, monkeypatch: pytest.MonkeyPatch) -> None:
    where, name, broken = FAULTS[fault]
    monkeypatch.setattr(where, name, broken)
    with pytest.raises(Violation):
        random_plans(bench, 150, seed=5)


# ---------------------------------------------------------------- the engine


def postgres_dataset(tables: dict[str, Table], *units: Unit) -> Dataset:
    return Dataset("web", "web", "1", tables, {unit.name: unit for unit in units}, ())


def stored(name: str, columns: dict[str, Any], place: str | None = None, *, private: bool = True) -> Table:
    described = {key: Column(key, domain) for key, domain in columns.items()}
    return Table(name, private, described, Source("postgres", {"dsn_env": DSN, "table": place or name}))


@pytest.fixture
def database(postgres_database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[psycopg.Connection[Any]]:
    monkeypatch.setenv(DSN, postgres_database)
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        yield connection


ROWS = worlds.many()


def copied(connection: psycopg.Connection[Any]) -> Dataset:
    """The tables of worlds.py in PostgreSQL."""
    connection.execute("CREATE SCHEMA web")
    connection.execute("CREATE TABLE web.users (id bigint, age double precision, country text)")
    connection.execute("CREATE TABLE web.actions (user_id bigint, url text, action varchar(9), t timestamp)")
    connection.execute("CREATE TABLE web.urls (url text, topic text)")
    at = "timestamp '1970-01-01' + %s * interval '1 microsecond'"
    cursor = connection.cursor()
    cursor.executemany("INSERT INTO web.users VALUES (%s, %s, %s)", ROWS["users"])
    cursor.executemany(f"INSERT INTO web.actions VALUES (%s, %s, %s, {at})", ROWS["actions"])
    cursor.executemany("INSERT INTO web.urls VALUES (%s, %s)", ROWS["urls"])
    uniques = {"users": "id", "actions": None, "urls": "url"}
    tables = {
        name: Table(
            name,
            name != "urls",
            {key: Column(key, domain) for key, domain in columns.items()},
            Source("postgres", {"dsn_env": DSN, "table": f"web.{name}"}),
            uniques[name],
        )
        for name, columns in worlds.COLUMNS.items()
    }
    return postgres_dataset(tables, worlds.USER, worlds.ACTION, worlds.MONTH)


def test_the_engine_agrees_with_duckdb(database: psycopg.Connection[Any], tmp_path: Path) -> None:
    """Vectors, facts of public tables, corrections in the same pass, and the curator's inspection."""
    engine, duck = (
        open_engine(copied(database)),
        worlds.engine(tmp_path, worlds.USER, worlds.ACTION, worlds.MONTH, **ROWS),
    )
    assert isinstance(engine, PostgresEngine)
    assert engine.ctx.facts == duck.ctx.facts
    for measure in MEASURES:
        assert engine.vector(measure, secret=3).tolist() == duck.vector(measure, secret=3).tolist()
        assert engine.corrections() == duck.corrections()
    assert engine.corrections()["values"] > 0
    assert engine.inspect() == duck.inspect()
    found = m.PartitionCounts(
        r.LimitGroupsPerUnit(r.Scan("actions"), "user", (x.ColumnRef("url"),), 3, 1),
        (m.GroupKey("url", x.ColumnRef("url")),),
    )
    assert engine.groups(found).keys == duck.groups(found).keys
    assert engine.groups(found).counts.tolist() == duck.groups(found).counts.tolist()
    engine.close()
    duck.close()


DAY = worlds.DAY
LAST = 20_000 * DAY
HOSTILE: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "n": ("numeric", Number(Fraction(0), Fraction(100)), {
        "'NaN'": 0, "'Infinity'": 100, "'-Infinity'": 0, "1e500": 100, "1e-500": 0, "49.5": 50, "NULL": 0, "-3": 0,
    }),
    "f": ("float8", Number(Fraction(0), Fraction(1), Fraction(1, 3)), {
        "'NaN'": 0, "'Infinity'": 3, "5e-324": 0, "1e308": 3, "-0.0": 0, "0.5": 2, "NULL": 0, "1e-310": 0,
    }),
    "d": ("date", Moment(0, LAST, "day"), {
        "'infinity'": 0, "'-infinity'": 0, "'5874897-12-31'": 0, "'4713-01-01 BC'": 0, "'1980-02-29'": 3711 * DAY,
        "NULL": 0, "'0001-01-01'": 0, "'9999-12-31'": LAST,
    }),
    "t": ("timestamp", Moment(0, LAST), {
        "'infinity'": 0, "'-infinity'": 0, "'294276-12-31 23:59:59.999999'": LAST, "'4713-01-01 BC'": 0,
        "'1970-01-02 00:00:00.000001'": DAY + 1, "NULL": 0, "'9999-12-31'": LAST, "'0001-01-01'": 0,
    }),
    "z": ("timestamptz", Moment(0, LAST), {
        "'infinity'": 0, "'-infinity'": 0, "'294276-12-31 23:59:59+00'": LAST, "'4713-01-02 BC'": 0,
        "'1970-01-02 05:00+05'": DAY, "NULL": 0, "'9999-12-31'": LAST, "'0001-01-01'": 0,
    }),
    "c": ("text", Category(("FR", "de")), {
        "'fr'": "FR", "'FR'": "FR", "'de'": "de", "''": "FR", "'x''y'": "FR", "NULL": "FR", "'de '": "FR",
        "E'de\\n'": "FR",
    }),
    "p": ("char(4)", Category(("FR", "de")), {
        "'fr'": "FR", "'FR'": "FR", "'de'": "de", "''": "FR", "'xy'": "FR", "NULL": "FR", "'de '": "de", "'DE'": "FR",
    }),
    "e": ("mood", Category(("sad", "ok"), nullable=True), {
        "'sad'": "sad", "'ok'": "ok", "'odd'": None, "NULL": None, "'sad' ": "sad", "'ok' ": "ok", "'odd' ": None,
        "NULL ": None,
    }),
    "g": ("positive", Number(Fraction(0), Fraction(9)), {
        "1": 1, "2": 2, "3": 3, "2000000000": 9, "5": 5, "NULL": 0, "7": 7, "9223372036854775807": 9,
    }),
    "b": ("text", Boolean(), {
        "'TRUE'": True, "'f'": False, "'yes '": False, "''": False, "'0'": False, "NULL": False, "'1'": True,
        "'nan'": False,
    }),
    "s": ("text", Number(Fraction(-9), Fraction(9), Fraction(1, 10)), {
        "'1e5'": 90, "'nan'": -90, "'1e400'": -90, "' 7 '": 70, "'-.5'": -5, "NULL": -90, "'-3.5'": -35,
        "E'4\\n'": -90,
    }),
    "i": ("text", Identifier("integer"), {
        "'9223372036854775808'": None, "'9223372036854775807'": 2**63 - 1, "'-9223372036854775808'": -(2**63),
        "'007'": None, "'-0'": None, "NULL": None, "'12'": 12, "E'12\\n'": None,
    }),
    "j": ("jsonb", Number(Fraction(0), Fraction(9)), {
        "'{}'": 0, "'1'": 0, "'null'": 0, "'[]'": 0, "'2'": 0, "NULL": 0, "'3'": 0, "'4'": 0,
    }),
    "m": ("text", Moment(0, LAST), {
        "'2021-02-29'": 0, "'2020-02-29 24:00:00'": 0, "'0000-01-01'": 0, "'2020-13-01'": 0, "'now'": 0, "NULL": 0,
        "'infinity'": 0, "'1970-01-03T00:00:00.5'": 2 * DAY + 500_000,
    }),
}  # fmt: skip


def test_hostile_types_never_fail(database: psycopg.Connection[Any]) -> None:
    """Infinities, numbers of 500 digits, the ends of the calendar, domains, enumerations, wrong spellings."""
    database.execute("CREATE TYPE mood AS ENUM ('sad', 'ok', 'odd')")
    database.execute("CREATE DOMAIN positive AS bigint CHECK (VALUE > 0)")
    columns = ", ".join(f"{name} {kind}" for name, (kind, _, _) in HOSTILE.items())
    database.execute(f"CREATE TABLE hostile (u bigint, {columns})")
    for index in range(8):
        values = ", ".join(list(records)[index] for _, _, records in HOSTILE.values())
        database.execute(f"INSERT INTO hostile VALUES ({index}, {values})")
    table = stored("hostile", {"u": Identifier("integer")} | {name: domain for name, (_, domain, _) in HOSTILE.items()})
    engine = open_engine(postgres_dataset({"hostile": table}, Unit("user", "user", {"hostile": "u"})))
    assert isinstance(engine, PostgresEngine)
    statement = SqlStatement(engine.ctx, engine._sources, engine.dialect)
    columns_read = [column_ref(f"c{index}") for index in range(len(HOSTILE) + 1)]
    found = engine._run(statement.finish(exp.select(*columns_read).from_(statement.table(r.Scan("hostile")))))
    rows = {row["c0"]: row for row in found.to_pylist()}
    for place, (name, (_, _, records)) in enumerate(HOSTILE.items(), start=1):
        assert {literal: rows[index][f"c{place}"] for index, literal in enumerate(records)} == records, name
    assert engine.inspect()["hostile.j"] == 8
    engine.close()


def test_nothing_can_be_written(database: psycopg.Connection[Any]) -> None:
    engine = open_engine(copied(database))
    assert isinstance(engine, PostgresEngine)
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction), engine._connection.transaction():
        engine._connection.execute("DELETE FROM web.users")
    engine.close()


def slow(database: psycopg.Connection[Any]) -> Dataset:
    """A view that takes an hour."""
    database.execute("CREATE VIEW slow AS SELECT i::bigint AS u FROM generate_series(1, 3600) i, pg_sleep(1 + 0 * i)")
    return postgres_dataset({"slow": stored("slow", {"u": Identifier("integer")})}, Unit("user", "user", {"slow": "u"}))


def test_a_deadline_stops_a_statement_with_the_constant_error(database: psycopg.Connection[Any]) -> None:
    engine, before = open_engine(slow(database)), str(EngineFailure())
    with pytest.raises(EngineFailure) as caught:
        engine.vector(m.count_units(r.Scan("slow"), "user"), deadline=0.3)
    assert str(caught.value) == before
    assert "timeout" in str(engine.failure)  # type: ignore[attr-defined]
    engine.close()


def test_cancel_stops_a_statement_from_another_thread(database: psycopg.Connection[Any]) -> None:
    engine = open_engine(slow(database))
    timer = threading.Timer(0.5, engine.cancel)
    timer.start()
    with pytest.raises(EngineFailure):
        engine.vector(m.count_units(r.Scan("slow"), "user"))
    timer.join()
    engine.close()


def test_a_lost_connection_fails_once_and_is_made_anew(database: psycopg.Connection[Any]) -> None:
    engine = open_engine(copied(database))
    assert isinstance(engine, PostgresEngine)
    pid = engine._connection.info.backend_pid
    database.execute("SELECT pg_terminate_backend(%s)", (pid,))
    time.sleep(0.2)
    with pytest.raises(EngineFailure):
        engine.vector(MEASURES[0])
    assert engine.vector(MEASURES[0]).sum() > 0
    engine.close()


def test_a_function_in_the_search_path_cannot_take_part(database: psycopg.Connection[Any]) -> None:
    """Names are looked up in pg_catalog alone, whatever the role's search path holds."""
    data = copied(database)
    database.execute("CREATE FUNCTION public.md5(text) RETURNS text LANGUAGE sql AS $$ SELECT 'evil' $$")
    database.execute("CREATE FUNCTION public.isfinite(timestamp) RETURNS boolean LANGUAGE sql AS $$ SELECT false $$")
    name = database.info.dbname
    database.execute(f"ALTER DATABASE {name} SET search_path = public, pg_catalog")
    engine = open_engine(data)
    assert engine.vector(MEASURES[1])[:-1].sum() > 37 * 7 - 40
    engine.close()


@pytest.mark.parametrize("place", ["web.nothing", "nowhere.users", "web.users; DROP TABLE web.users"])
def test_a_missing_table_is_named(place: str, database: psycopg.Connection[Any]) -> None:
    copied(database)
    table = stored("users", worlds.COLUMNS["users"], place)
    with pytest.raises(InvalidSchema, match="the source of table users cannot be read"):
        open_engine(postgres_dataset({"users": table}, Unit("user", "user", {"users": "id"})))


def test_a_missing_column_or_address_is_named(
    database: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    copied(database)
    table = stored("users", worlds.COLUMNS["users"] | {"height": Number(Fraction(0), Fraction(9))}, "web.users")
    data = postgres_dataset({"users": table}, Unit("user", "user", {"users": "id"}))
    with pytest.raises(InvalidSchema, match="has no column height"):
        open_engine(data)
    monkeypatch.delenv(DSN)
    with pytest.raises(InvalidSchema, match=DSN):
        open_engine(data)
