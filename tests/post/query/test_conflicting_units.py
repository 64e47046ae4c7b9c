"""Two units with budgets on one table: where no limit on rows holds for both, this is said by name, with a way out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dither
from dither.cli.advice import warnings
from dither.errors import Unbounded
from dither.plan.context import Context
from dither.post.query.conflicting_units import conflicting_units, conflicts
from dither.schema import load

DESCRIPTION = """
version: 1
name: ratings
tables:
  ratings:
    private: true
    source: {kind: parquet, path: ratings.parquet}
    columns:
      student: {type: identifier, kind: integer}
      lecturer: {type: identifier, kind: integer}
      at: {type: date, min: 2024-01-01, max: 2024-12-31}
      rating: {type: integer, min: 1, max: 5}
units:
  student: {kind: user, keys: {ratings: student}}
  lecturer: {kind: user, keys: {ratings: lecturer}}
  month: {kind: window, keys: {ratings: student}, times: {ratings: at}, every: month}
  rating: {kind: row, tables: [ratings]}
budgets:
  - {unit: student, kind: pure, epsilon: 4}
  - {unit: lecturer, kind: pure, epsilon: 4}
"""


@pytest.fixture
def description(tmp_path: Path) -> Path:
    columns = {name: pa.array([1, 2, 3] * 20, pa.int64()) for name in ("student", "lecturer", "rating")}
    pq.write_table(pa.table({**columns, "at": pa.array(["2024-02-03"] * 60)}), tmp_path / "ratings.parquet")
    (tmp_path / "dataset.yml").write_text(DESCRIPTION)
    return tmp_path / "dataset.yml"


def test_a_table_that_no_query_can_read_is_named_by_check_connect_and_every_query(
    description: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Regression: `check` said nothing, and COUNT(*) was told to put a limit below the join, of which it has none."""
    (said,) = conflicts(Context(load(description)))
    for part in ("student and lecturer both have a budget", "table ratings", "leave one of the two out of budgets"):
        assert part in said
    advice = list(warnings(load(description)))
    assert said in advice and not any("declare max_rows" in each for each in advice)
    session = dither.connect(description, account="ann")
    assert f"WARNING: {said}" in capsys.readouterr().err
    for query in ("SELECT COUNT(*) FROM ratings", "SELECT AVG(rating) FROM ratings GROUP BY rating"):
        for options in ({}, {"unit": "lecturer"}, {"max_contributions": 5}):
            with pytest.raises(Unbounded, match="both have a budget and cover table ratings by different keys"):
                session.quote(query, epsilon=1, **options)


@pytest.mark.parametrize(("budgeted", "found"), [
    (("student",), None), (("student", "rating"), None), (("student", "month"), None), (("rating",), None),
    (("student", "lecturer"), ("student", "lecturer")), (("lecturer", "month"), ("lecturer", "month")),
])  # fmt: skip
def test_units_whose_limits_hold_for_each_other_are_no_conflict(
    description: Path, budgeted: tuple[str, ...], found: tuple[str, str] | None
) -> None:
    dataset = load(description)
    budgets = tuple(replace(dataset.budgets[0], unit=unit) for unit in budgeted)
    context = Context(replace(dataset, budgets=budgets))
    assert conflicting_units(context, "ratings") == found
