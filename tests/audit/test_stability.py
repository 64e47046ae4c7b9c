from __future__ import annotations

from collections import Counter
from typing import Any

import duckdb
import pandas
import pytest

from dither.audit.stability import ValueDomain, Vectors, frame, result_distance, sql, summarize_data, transformation
from dither.errors import InvalidParameter

SALARIES = ValueDomain({"who": ["a", "b", "c", "d"], "salary": [0, 300_000], "city": ["x", "y"]}, unit="who", rows=3)
ROWS = ValueDomain({"salary": [0, 300_000], "city": ["x", "y"]})


def total(rows: list[dict[str, Any]]) -> int:
    return sum(row["salary"] for row in rows)


def test_right_claims_pass() -> None:
    assert not transformation(total, ROWS, 300_000).refuted
    assert transformation(lambda rows: 2 * total(rows), ROWS, 600_000).largest == 600_000
    assert not transformation(lambda rows: [row for row in rows if row["city"] == "x"], ROWS, 1).refuted
    assert not transformation(lambda rows: rows * 32, ROWS, 32).refuted
    assert not transformation(total, SALARIES, 900_000).refuted
    assert not transformation(lambda rows: Counter(row["city"] for row in rows), ROWS, 1).refuted


def test_wrong_claims_shrink_to_the_smallest_tables() -> None:
    found = transformation(lambda rows: 2 * total(rows), ROWS, 300_000)
    assert found.refuted and found.counterexample is not None
    a, b = found.counterexample
    assert a == [] and len(b) == 1 and b[0]["salary"] > 150_000 and "REFUTED" in str(found)
    users = transformation(lambda rows: len(rows), SALARIES, 1)
    assert users.counterexample is not None and [len(side) for side in users.counterexample] == [0, 2]


def test_an_average_moves_more_than_its_claim() -> None:
    found = transformation(lambda rows: total(rows) / max(1, len(rows)), ROWS, 100_000)
    assert found.refuted


def test_an_error_on_one_side_is_seen() -> None:
    found = transformation(lambda rows: total(rows) / len(rows), ROWS, 10**9)
    assert found.counterexample is not None and found.counterexample[0] == []


def test_sql_and_data_frames() -> None:
    with duckdb.connect() as connection:
        grouped = sql("SELECT city, count(*) AS n FROM t GROUP BY city", connection, ROWS)
        assert not transformation(grouped, ROWS, 2, pairs=100).refuted  # one row may replace one group by another
        assert transformation(grouped, ROWS, 1, pairs=100).refuted
        limited = sql("SELECT salary FROM t ORDER BY salary LIMIT 1", connection, ROWS)
        assert transformation(limited, ROWS, 1, pairs=100).refuted
    assert not transformation(frame(lambda data: data[data.salary > 5], ROWS), ROWS, 1, pairs=50).refuted
    assert transformation(frame(lambda data: data.groupby("city").size(), ROWS), ROWS, 0.5, pairs=50).refuted


def test_a_plain_pandas_function_is_given_data_frames() -> None:
    """The named bug: it had to be wrapped, and was otherwise refuted or refused for failing on a list."""
    domain = {"salary": [0, 300_000], "city": ["x", "y"]}

    def clipped_total(data: Any) -> Any:
        return data["salary"].clip(0, 100_000).sum()

    assert not transformation(clipped_total, domain, 100_000, pairs=50).refuted
    found = transformation(clipped_total, domain, 50_000, pairs=50)
    assert found.refuted and found.counterexample is not None and found.counterexample[0] == []

    def counts(data: pandas.DataFrame) -> Any:
        return len(data)

    assert not transformation(counts, domain, 1, pairs=20).refuted
    assert not transformation(len, domain, 1, pairs=20, data_frames=True).refuted
    assert not transformation(total, ROWS, 300_000, pairs=20).refuted  # a function of rows still gets rows
    with pytest.raises(InvalidParameter, match="failed on every pair"):
        transformation(lambda data: data["salary"].sum(), domain, 1, pairs=20, data_frames=False)


def test_distances_and_domains() -> None:
    assert result_distance([1, 2], [1, 5]) == 3 and result_distance({"a": 1}, {"b": 2}) == 3
    assert result_distance([{"a": 1}], [{"a": 2}]) == 2 and result_distance("x", "y") == float("inf")
    with pytest.raises(InvalidParameter, match="no column"):
        ValueDomain({"a": [1]}, unit="b")


def test_vectors_of_a_public_length() -> None:
    numbers = Vectors(50, 0.0, 2.0)
    assert not transformation(sum, numbers, 2).refuted
    found = transformation(sum, numbers, 1.9)
    assert found.counterexample is not None and [len(set(side)) for side in found.counterexample] == [1, 2]
    assert "50 x" in str(found) and found.as_dict()["refuted"]
    assert transformation(max, numbers, 1).refuted and not transformation(max, numbers, 2).refuted
    assert transformation(lambda values: 1 / (values[0] - 2), numbers, 1e12).refuted  # fails on one side only
    assert summarize_data([1, 2]) == "[1, 2]" and summarize_data(list(range(99))).endswith(", ...]")
    with pytest.raises(InvalidParameter, match="low < high"):
        Vectors(3, 1.0, 1.0)


def test_without_pandas_a_function_of_data_frames_is_told_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The named bug: it was told that list indices must be integers, as if its code were wrong."""
    monkeypatch.setattr("dither.audit.stability.find_spec", lambda name: None)

    def total_pay(frame: Any) -> Any:
        return frame["pay"].clip(0, 1000).sum()

    def rows_in(frame: pandas.DataFrame) -> int:
        return len(frame)

    install = r"pandas is not installed; run: pip install 'dither\[pandas\]'"
    for function in (total_pay, rows_in, lambda frame: frame.pay.sum()):
        with pytest.raises(InvalidParameter, match=f"takes? data frames, but {install}"):
            transformation(function, {"pay": [0, 5000]}, 500, pairs=20)
    with pytest.raises(InvalidParameter, match=f"failed on every pair: ZeroDivisionError.*if it takes.*{install}"):
        transformation(lambda rows: 1 / 0, {"pay": [0, 5000]}, 500, pairs=20)
    with pytest.raises(InvalidParameter, match=r"failed on every pair: ZeroDivisionError: division by zero$"):
        transformation(lambda vector: 1 / 0, Vectors(3, 0, 1), 500, pairs=20)
    assert not transformation(total, ROWS, 300_000, pairs=20).refuted  # a function of rows needs no pandas


def test_vectors_of_counts_change_by_at_most_their_change() -> None:
    counts = Vectors(4, 0, 100, change=1)
    assert not transformation(sum, counts, 1).refuted
    found = transformation(lambda vector: sum(each >= 50 for each in vector), counts, 0, pairs=2000)
    assert found.counterexample is not None
    a, b = found.counterexample
    assert (
        sum(abs(x - y) for x, y in zip(a, b, strict=True)) <= 1 and sum(x != y for x, y in zip(a, b, strict=True)) == 1
    )
    with pytest.raises(InvalidParameter, match="change of a number must be finite and above 0"):
        Vectors(4, 0, 100, change=0)
