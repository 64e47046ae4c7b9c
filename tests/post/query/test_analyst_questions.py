"""The questions of an analyst's week against raw DuckDB, at an epsilon that leaves no noise, on three engines."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from dither.access.engines import open_engine
from dither.access.engines.base import SqlEngine
from dither.post.session import Session
from dither.schema import Dataset, Source, load
from plan.benches import POSTGRES_TYPES, copied_texts
from post.analyst_world import build, raw, tables
from post.bare import BareKernel
from post.small_world import statements

QUESTIONS = statements("analyst.sql")
HUGE = 10**12
DSN = "DITHER_TEST_DSN"
# The 66 years of birthdays have the widest bins.
RANKED_DATE, DAYS_OF_A_BIN = re.compile(r"\d{4}-\d\d-\d\d"), 95


@pytest.fixture(scope="module")
def clinic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("clinic"))


@pytest.fixture(scope="module")
def exact(clinic: Path) -> dict[str, list[tuple[Any, ...]]]:
    """What DuckDB answers without any privacy."""
    connection = raw(clinic.parent)
    return {question: connection.execute(question).fetchall() for question in QUESTIONS}


def opened(engine: SqlEngine) -> Session:
    return Session.from_kernel(BareKernel(engine.ctx, engine.vector), "analyst")


@pytest.fixture(scope="module")
def session(clinic: Path) -> Iterator[Session]:
    engine = open_engine(load(clinic))
    yield opened(engine)
    engine.close()


def plain(value: Any) -> Any:
    """A value as either side spells it: dates as text, every number as a float."""
    if isinstance(value, datetime) and value.time().isoformat() == "00:00:00":
        value = value.date()
    if isinstance(value, date):
        return value.isoformat()
    return value if value is None or isinstance(value, str | bool) else round(float(value), 6)


def rows_of(session: Session, question: str) -> tuple[list[bool], list[tuple[Any, ...]]]:
    """Tell which columns are keys, and return the rows."""
    answer = session.sql(question, epsilon=HUGE, max_contributions=100)
    rows = [tuple(plain(row[column.name]) for column in answer.columns) for row in answer.to_dicts()]
    return [column.key or column.name.startswith("grouping") for column in answer.columns], rows


def by_key(rows: list[tuple[Any, ...]], keys: list[bool]) -> dict[tuple[Any, ...], list[Any]]:
    """Arrange rows by their keys, which occur once each."""
    found = {tuple(v for v, key in zip(row, keys, strict=True) if key): row for row in rows}
    assert len(found) == len(rows) or not any(keys)
    return {key: [v for v, is_key in zip(row, keys, strict=True) if not is_key] for key, row in found.items()}


def days_apart(one: str, two: str) -> float:
    """The days between two dates or timestamps as texts."""
    return abs((datetime.fromisoformat(one) - datetime.fromisoformat(two)) / timedelta(days=1))


def near(got: Any, wanted: Any, slack: float) -> bool:
    if isinstance(wanted, str) and RANKED_DATE.match(wanted) and isinstance(got, str):
        return days_apart(got, wanted) <= DAYS_OF_A_BIN
    if wanted is None or isinstance(wanted, str):
        return wanted is None or got == wanted
    return got is not None and math.isclose(got, wanted, rel_tol=1e-4, abs_tol=slack)


def check(session: Session, question: str, exact: list[tuple[Any, ...]]) -> None:
    """Every row of DuckDB is answered; other rows, of declared keys without a record, count nothing."""
    keys, rows = rows_of(session, question)
    wanted = [tuple(map(plain, row)) for row in exact]
    got, expected = by_key(rows, keys), by_key(wanted, keys)
    slack = 0.5 if "MEDIAN" in question else 1e-3  # quantiles are read from bins
    for key, values in expected.items():
        assert key in got, (question, key)
        assert all(near(*pair, slack) for pair in zip(got[key], values, strict=True)), (question, key, got[key], values)
    if "HAVING" in question or "ORDER BY" in question:
        assert set(got) == set(expected), question
    if question.endswith(" DESC") or " LIMIT " in question:
        assert [row[:1] for row in rows] == [row[:1] for row in wanted], question


def test_there_are_enough_questions() -> None:
    assert len(QUESTIONS) == len(set(QUESTIONS)) >= 100


@pytest.mark.parametrize("question", QUESTIONS[::6])
def test_a_sample_of_questions(question: str, session: Session, exact: dict[str, list[tuple[Any, ...]]]) -> None:
    check(session, question, exact[question])


@pytest.mark.tier("test")
def test_every_question(session: Session, exact: dict[str, list[tuple[Any, ...]]]) -> None:
    for question in QUESTIONS:
        check(session, question, exact[question])


def stored(dataset: Dataset, kind: str, options: dict[str, dict[str, str]]) -> Dataset:
    """The dataset with its tables in another place."""
    moved = {name: replace(table, source=Source(kind, options[name])) for name, table in dataset.tables.items()}
    return replace(dataset, tables=moved)


@pytest.mark.tier("test")
def test_every_question_on_postgres(
    clinic: Path,
    exact: dict[str, list[tuple[Any, ...]]],
    postgres_database: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(DSN, postgres_database)
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        for name, table in tables().items():
            columns = ", ".join(f'"{field.name}" {POSTGRES_TYPES[field.type]}' for field in table.schema)
            connection.execute(f"CREATE TABLE {name} ({columns})")
            with connection.cursor() as cursor, cursor.copy(f"COPY {name} FROM STDIN") as copy:
                for row in zip(*map(copied_texts, table.columns), strict=True):
                    copy.write_row(row)
    places = {name: {"dsn_env": DSN, "table": name} for name in tables()}
    engine = open_engine(stored(load(clinic), "postgres", places))
    for question in QUESTIONS:
        check(opened(engine), question, exact[question])
    engine.close()


@pytest.mark.tier("deep")
def test_every_question_on_spark(clinic: Path, exact: dict[str, list[tuple[Any, ...]]], spark: Any) -> None:
    from dither.access.engines.spark import SparkEngine

    places = {name: {"path": str(clinic.parent / f"{name}.parquet")} for name in tables()}
    engine = SparkEngine(stored(load(clinic), "spark", places), "1", spark)
    for question in QUESTIONS:
        check(opened(engine), question, exact[question])
    engine.close()
