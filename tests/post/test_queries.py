"""Every query of the corpus against raw DuckDB: without noise and with bounds that cut nothing, the same numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date, datetime, time, timedelta
from typing import Any

import duckdb
import pytest

from dither.post.estimate.answer import Answer
from dither.post.session import Session
from post.bare import BareKernel
from post.small_world import statements

HUGE = 10**12
LOOSE = 100
QUERIES = statements("queries.sql")
DAYS_OF_A_BIN = 8
QUANTILE = ("MEDIAN", "QUANTILE", "PERCENTILE")


def plain(value: Any) -> str:
    """A key as text, however either side spells it."""
    if isinstance(value, datetime):
        return value.isoformat() if value.time().isoformat() != "00:00:00" else value.date().isoformat()
    if isinstance(value, date):
        return value.isoformat()
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def split(rows: Sequence[Sequence[Any]], answer: Answer) -> list[tuple[tuple[str, ...], list[Any]]]:
    """Keys and computed values of each row."""
    keys = [column.key for column in answer.columns]
    return [
        (tuple(plain(v) for v, key in zip(row, keys, strict=True) if key),
         [v for v, key in zip(row, keys, strict=True) if not key])
        for row in rows
    ]  # fmt: skip


def mine(answer: Answer) -> list[list[Any]]:
    columns = []
    for place, column in enumerate(answer.columns):
        columns.append(answer.keys.column(place).to_pylist() if column.key else list(column.estimate.value))
    return [list(row) for row in zip(*columns, strict=True)]


def near(got: float, wanted: Any, query: str) -> bool:
    if wanted is None:
        return True
    if isinstance(wanted, date):
        moment = datetime.combine(wanted, time()) if not isinstance(wanted, datetime) else wanted
        days = abs(timedelta(microseconds=float(got)) - (moment - datetime(1970, 1, 1))) / timedelta(days=1)
        return days <= DAYS_OF_A_BIN
    slack = 2400.0 if "salary" in query and any(word in query for word in QUANTILE) else 0.0
    slack = max(slack, 0.5 if any(word in query for word in QUANTILE) else 0.0)
    return math.isclose(float(got), float(wanted), rel_tol=1e-4, abs_tol=max(1e-4, slack))


def compare(answer: Answer, rows: Sequence[Sequence[Any]], query: str) -> None:
    """The same values for every key that exists; keys that do not exist have counts of nothing."""
    got, wanted = split(mine(answer), answer), split(rows, answer)
    if any(column.key for column in answer.columns):
        table = dict(got)
        for key, values in wanted:
            assert key in table, f"{query}: no key {key}"
            assert all(near(a, b, query) for a, b in zip(table[key], values, strict=True)), (
                query,
                key,
                table[key],
                values,
            )
    else:
        ours, theirs = (sorted(values for _, values in side) for side in (got, wanted))
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            assert all(near(x, y, query) for x, y in zip(a, b, strict=True)), (query, a, b)
    if "HAVING" in query and any(column.key for column in answer.columns):
        assert {key for key, _ in got} == {key for key, _ in wanted}, query
    if "ORDER BY" in query and "WITHIN" not in query:
        # Equal values may stand in any order, so the values are compared place by place, and the keys as a set.
        assert {key for key, _ in got} == {key for key, _ in wanted}
        for (_, ours), (_, theirs) in zip(got, wanted, strict=True):
            assert all(near(a, b, query) for a, b in zip(ours, theirs, strict=True)), query


def check(query: str, session: Session, truth: duckdb.DuckDBPyConnection) -> None:
    compare(session.sql(query, epsilon=HUGE, max_contributions=LOOSE), truth.execute(query).fetchall(), query)


def test_the_corpus_is_large_enough() -> None:
    assert len(QUERIES) >= 150
    assert len(set(QUERIES)) == len(QUERIES)


@pytest.mark.parametrize("query", QUERIES[::9])
def test_a_sample_of_queries(query: str, session: Session, truth: duckdb.DuckDBPyConnection) -> None:
    check(query, session, truth)


@pytest.mark.tier("test")
def test_every_query(session: Session, truth: duckdb.DuckDBPyConnection) -> None:
    for query in QUERIES:
        check(query, session, truth)
    print(f"{len(QUERIES)} queries equal to raw DuckDB")


@pytest.mark.parametrize("query", QUERIES[::25])
def test_row_bounds_give_the_same_where_they_cut_nothing(
    query: str, session: Session, truth: duckdb.DuckDBPyConnection
) -> None:
    answer = session.sql(query, epsilon=HUGE, max_contributions={"max_rows": LOOSE, "how": "rows"})
    compare(answer, truth.execute(query).fetchall(), query)


def test_groups_that_do_not_exist_are_answered_too(session: Session, kernel: BareKernel) -> None:
    answer = session.sql("SELECT age, COUNT(*) AS n FROM users WHERE country = 'DE' GROUP BY age", epsilon=HUGE)
    assert len(answer) == 48
    assert min(answer["n"].estimate.value) == 0


def test_bounds_by_groups(session: Session, truth: duckdb.DuckDBPyConnection) -> None:
    query = "SELECT action, COUNT(*) AS n FROM actions GROUP BY action"
    compare(
        session.sql(query, epsilon=HUGE, max_contributions={"max_groups": 6, "max_rows_per_group": 60}),
        truth.execute(query).fetchall(),
        query,
    )


def test_joins_on_other_keys(session: Session, truth: duckdb.DuckDBPyConnection) -> None:
    query = "SELECT COUNT(*) AS n FROM users a JOIN users b ON a.age = b.age"
    answer = session.sql(query, epsilon=HUGE, max_contributions=1, max_rows_per_key=50)
    compare(answer, truth.execute(query).fetchall(), query)
