"""Descriptions, proportions and ratios."""

from __future__ import annotations

import duckdb
import pytest

from dither.errors import NotFound
from dither.post.session import Session
from post.bare import BareKernel


def test_a_description_equals_the_truth_at_a_huge_epsilon(
    session: Session, kernel: BareKernel, truth: duckdb.DuckDBPyConnection
) -> None:
    before = len(kernel.requests)
    found = session.describe("users", ["age", "gender", "vip"], epsilon=1000)
    assert len(kernel.requests) == before + 1
    (row,) = found.to_dicts()
    exact = truth.sql("SELECT COUNT(age), AVG(age), STDDEV(age), MEDIAN(age) FROM users").fetchall()[0]

    assert (row["n"], row["mean"], row["std"]) == pytest.approx(exact[:3], rel=1e-3)
    assert abs(row["50%"] - exact[3]) <= 1
    assert set(found.categories) == {"gender", "vip"}
    assert "400 [400, 400] rows" in repr(found)
    assert "<table>" in found._repr_html_()


def test_all_columns_are_described_by_default(blind: Session) -> None:
    quote = blind.describe.quote("users", epsilon=1)
    names = {column.name for column in quote.expected}
    assert {"rows", "mean of age", "mean of salary", "rows by country", "rows by vip"} <= names


def test_unknown_columns_are_refused(blind: Session) -> None:
    with pytest.raises(NotFound, match="columns must be some of"):
        blind.describe("users", ["user_id"], epsilon=1)


def test_categories_alone(session: Session) -> None:
    found = session.describe("users", ["gender"], epsilon=1)
    assert len(found.categories["gender"]) == 3 and "rows by gender" in repr(found)


def test_proportions(session: Session, truth: duckdb.DuckDBPyConnection) -> None:
    found = session.proportion("users", "vip", by="gender", epsilon=900)
    exact = dict(truth.sql("SELECT gender, AVG(vip::INT) FROM users GROUP BY ALL").fetchall())
    assert {row["gender"]: row["proportion"] for row in found.to_dicts()} == pytest.approx(exact, abs=1e-6)
    whole = session.proportion("users", "vip", epsilon=900, population=True).to_dicts()[0]
    assert whole["proportion_high"] - whole["proportion_low"] == pytest.approx(0.078, abs=0.03)
    assert 0 <= whole["proportion_low"] <= whole["proportion"] <= whole["proportion_high"] <= 1


def test_ratios(session: Session, truth: duckdb.DuckDBPyConnection) -> None:
    found = session.ratio("users", "salary", "age", epsilon=900)
    exact = truth.sql("SELECT SUM(salary) / SUM(age) FROM users").fetchall()[0]
    assert found.to_dicts()[0]["ratio"] == pytest.approx(exact[0], rel=1e-3)
