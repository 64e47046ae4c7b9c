"""Descriptions, proportions and ratios."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest

from dither.errors import NotFound
from dither.plan.context import Context
from dither.post.session import Session
from dither.schema import load
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


QUANTILE_COLUMNS = ("5%", "25%", "50%", "75%", "95%")


@pytest.mark.tier("test")
@pytest.mark.parametrize("spend", [{"epsilon": 20}, {"rho": 20}], ids=["laplace", "gaussian"])
def test_rows_of_one_unit_are_described_at_one_bound(
    session: Session, kernel: BareKernel, truth: duckdb.DuckDBPyConnection, spend: Any
) -> None:
    """Counts, trees and sums share one bound, chosen once; all figures have intervals, and quantiles are in order."""
    found = session.describe("actions", ["seconds", "price", "action"], **spend)
    request = kernel.requests[-1]
    assert len([search for search in request.searches if search.tag == "mass"]) == 1
    exact = truth.sql("SELECT COUNT(*), AVG(seconds), MEDIAN(seconds) FROM actions").fetchall()[0]
    row = found.to_dicts()[0]
    for name, value in zip(("n", "mean", "50%"), exact, strict=True):
        assert row[f"{name}_low"] - 1 <= value <= row[f"{name}_high"] + 1
    for own in found.to_dicts():
        assert [own[name] for name in QUANTILE_COLUMNS] == sorted(own[name] for name in QUANTILE_COLUMNS)
        assert all(own[f"{name}_low"] <= own[name] <= own[f"{name}_high"] for name in ("n", "mean", "std", "50%"))
    counts = found.categories["action"].to_pandas()
    assert counts.iloc[:, 1].sum() == pytest.approx(exact[0], rel=0.2)


@pytest.mark.tier("test")
def test_figures_of_few_rows_cover_the_truth(session: Session, truth: duckdb.DuckDBPyConnection) -> None:
    """40 descriptions of 400 people: an interval of each figure misses fewer than 14 times, but for one in 1e9."""
    wanted = truth.sql("SELECT COUNT(age), AVG(age), STDDEV(age), QUANTILE_DISC(age, 0.25) FROM users").fetchall()[0]
    missed = dict.fromkeys(("n", "mean", "std", "25%"), 0)
    for repeat in range(40):
        (row,) = session.describe("users", ["age"], epsilon=1, repeat=repeat).to_dicts()
        for name, value in zip(missed, wanted, strict=True):
            missed[name] += not row[f"{name}_low"] <= value <= row[f"{name}_high"]
    assert max(missed.values()) < 14


def test_a_column_that_is_never_missing_has_as_many_values_as_there_are_rows(session: Session) -> None:
    rows = session.describe("users", ["age", "salary", "gender"], epsilon=1).to_dicts()
    assert rows[0]["n"] == rows[1]["n"]


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


RESERVED = """version: 1
name: survey
population: survey
data_version: "1"
tables:
  replies:
    private: true
    source: {kind: parquet, path: replies.parquet}
    columns:
      any: {type: boolean}
      order: {type: integer, min: 1, max: 9}
units:
  reply: {kind: row, tables: [replies]}
budgets:
  - {unit: reply, kind: pure, epsilon: 1000}
"""


def test_columns_with_reserved_names_need_no_quotes(tmp_path: Path) -> None:
    (tmp_path / "dataset.yml").write_text(RESERVED)
    session = Session.from_kernel(BareKernel(Context(load(tmp_path / "dataset.yml")), lambda _: []), "analyst")
    assert "proportion" in str(session.proportion.quote("replies", "any", epsilon=1))
    assert "ratio" in str(session.ratio.quote("replies", "order", "order", epsilon=1))
