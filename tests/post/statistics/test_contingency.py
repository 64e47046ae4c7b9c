"""Contingency tables: exact at a huge epsilon, one charge for all margins, agreeing on request."""

from __future__ import annotations

import duckdb
import numpy as np
import pytest

from dither.errors import InvalidParameter, Unsupported
from dither.post.session import Session


def test_cells_equal_the_truth_at_a_huge_epsilon(session: Session, truth: duckdb.DuckDBPyConnection) -> None:
    table = session.table("users", ["country", "gender"], margins="all", epsilon=1000)
    rows = {(row["country"], row["gender"]): row["n"] for row in table.to_dicts()}
    exact = truth.sql("SELECT country, gender, COUNT(*) FROM users GROUP BY ALL").fetchall()
    assert all(rows[country, gender] == n for country, gender, n in exact)
    assert table.margin().value() == 400
    assert sum(row["n"] for row in table.margin("gender").to_dicts()) == 400


@pytest.mark.parametrize("options", [{"consistent": True}, {"nonnegative": True}, {"whole": True, "nonnegative": True}])
def test_margins_agree(session: Session, options: dict[str, bool]) -> None:
    table = session.table("users", ["country", "gender"], margins="all", epsilon="1/5", **options)  # type: ignore[arg-type]
    cells = np.asarray(table["n"].value).reshape(6, 3)
    assert np.allclose(cells.sum(axis=1), table.margin("country")["n"].value)
    assert np.allclose(cells.sum(axis=0), table.margin("gender")["n"].value)
    assert cells.sum() == pytest.approx(table.margin()["n"].value)
    if "nonnegative" in options:
        assert cells.min() >= 0
    if "whole" in options:
        assert np.array_equal(cells, np.round(cells))
    assert table.raw[("country", "gender")]["n"].value.tolist() == table.measurements[0]["values"]


def test_fitted_errors_are_smaller_than_measured_ones(session: Session) -> None:
    table = session.table("users", ["country", "gender"], margins="all", consistent=True, epsilon=1)
    for margin, answer in table.margins.items():
        fitted, raw = answer.columns[-1].estimate, table.raw[margin].columns[-1].estimate
        assert np.all(fitted.std_error < raw.std_error)


def test_sums_are_cells_too(session: Session, truth: duckdb.DuckDBPyConnection) -> None:
    table = session.table("users", "gender", value="SUM(age)", epsilon=1000)
    exact = dict(truth.sql("SELECT gender, SUM(age) FROM users GROUP BY ALL").fetchall())
    assert {row["gender"]: row["n"] for row in table.to_dicts()} == pytest.approx(exact)


@pytest.mark.parametrize(
    ("by", "extra", "error", "message"),
    [
        (["country", "country"], {}, InvalidParameter, "different columns"),
        (["country"], {"margins": [["gender"]]}, InvalidParameter, "margins must be"),
        (["country"], {"margins": []}, InvalidParameter, "margins must be"),
        (["country"], {"value": "AVG(age)"}, Unsupported, "counts or sums"),
    ],
)
def test_refusals(
    blind: Session, by: list[str], extra: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        blind.table("users", by, epsilon=1, **extra)  # type: ignore[arg-type]


def test_a_margin_that_was_not_asked_for_is_named(session: Session) -> None:
    table = session.table("users", ["country", "gender"], epsilon=1)
    with pytest.raises(KeyError, match="no margin over"):
        table.margin("gender")
