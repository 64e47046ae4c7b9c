"""MIN, MAX, MEDIAN and quantiles of dates and timestamps: dates with intervals, everywhere that answers are shown."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from dither.errors import Unsupported
from dither.post.session import Session
from dither.views.answers import answer_data

QUERY = "SELECT country, MEDIAN(joined) AS middle FROM users GROUP BY country"


def test_a_date_has_an_interval_of_dates_that_contains_the_truth(
    session: Session, truth: duckdb.DuckDBPyConnection
) -> None:
    answer = session.sql("SELECT MIN(joined) AS a, MEDIAN(joined) AS b, MAX(joined) AS c FROM users", epsilon=200)
    exact = truth.sql("SELECT MIN(joined), QUANTILE_DISC(joined, 0.5), MAX(joined) FROM users").fetchall()[0]
    for name, wanted in zip("abc", exact, strict=True):
        low, high = answer[name].interval
        assert type(low) is type(high) is type(answer[name].value) is date
        assert low - timedelta(8) <= wanted <= high + timedelta(8)
        assert low <= answer[name].value <= high


def test_timestamps_keep_their_hours_and_their_errors_are_seconds(session: Session) -> None:
    column = session.sql("SELECT MAX(moment) AS last FROM actions", epsilon=100, max_contributions=50)["last"]
    low, high = column.interval
    assert type(column.value) is datetime and column.value.tzinfo is None
    assert 0 < column.std_error <= (high - low).total_seconds()


def test_dates_are_dates_in_tables_texts_and_json(session: Session) -> None:
    answer = session.sql(QUERY, epsilon=100)
    assert answer.table.schema.field("middle").type == pa.date32() == answer.table.schema.field("middle_low").type
    row = answer.to_dicts()[0]
    assert row["middle_low"] <= row["middle"] <= row["middle_high"]
    assert answer_data(answer)["rows"][0]["middle"] == row["middle"].isoformat()
    assert f"{row['middle']} [{row['middle_low']}, {row['middle_high']}]" in str(answer)
    assert "<svg" in answer._repr_html_()
    with pytest.raises(Unsupported, match="this is a date"):
        session.sql("SELECT MIN(joined) AS a FROM users", epsilon=1).value()


def test_quotes_and_refined_answers_of_dates(session: Session) -> None:
    quote = session.quote(QUERY, epsilon=10)
    (expected,) = quote.expected
    assert expected.unit == "days" and 0 < expected.half_width < 1826
    assert "middle: unknown until asked" in str(quote)
    first = session.sql(QUERY, epsilon=2)
    better = session.refine(first, epsilon=50)
    assert isinstance(better["middle"].value[0], date)
    assert np.sum(better["middle"].std_error) < np.sum(first["middle"].std_error)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT MAX(joined) - MIN(joined) FROM users", "takes a number here, not a date"),
        ("SELECT COALESCE(MAX(joined), NULL) FROM users", "a text or a date that noisy numbers decide on"),
        ("SELECT COUNT(*) FROM users HAVING MAX(joined) > 5", "values of one type"),
    ],
)
def test_computing_with_noisy_dates_is_refused(blind: Session, query: str, message: Any) -> None:
    with pytest.raises(Unsupported, match=message):
        blind.quote(query, epsilon=1)
