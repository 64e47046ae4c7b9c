"""The number of rows that people have: found privately, and moved by made-up accounts, which the result says."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import pytest

import dither
from dither.errors import NotFound, Unsupported

DESCRIPTION = """
version: 1
name: visits
population: visits
data_version: "1"
tables:
  visits:
    private: true
    source: {kind: parquet, path: visits.parquet}
    columns:
      person: {type: identifier, kind: integer}
      kind: {type: category, values: [view, click], default: view}
units:
  person: {kind: user, keys: {visits: person}}
  visit: {kind: row, tables: [visits]}
budgets:
  - {unit: person, kind: pure, epsilon: 1000}
"""


def open_visits(folder: Path, accounts_without_use: int) -> dither.Session:
    """Write 300 people with 50 visits, and made-up accounts with one visit each."""
    folder.mkdir()
    duckdb.sql(
        "SELECT * FROM (SELECT p AS person, CASE WHEN v = 0 THEN 'click' ELSE 'view' END AS kind "
        "FROM range(300) AS people(p), range(50) AS times(v) "
        f"UNION ALL SELECT 1000 + q, 'view' FROM range({accounts_without_use}) AS made_up(q))"
    ).write_parquet(str(folder / "visits.parquet"))
    (folder / "dataset.yml").write_text(DESCRIPTION)
    return dither.connect(folder / "dataset.yml", account="ann")


@pytest.mark.tier("test")
def test_the_k_of_99_percent_is_found_and_made_up_accounts_lower_it(tmp_path: Path) -> None:
    """At epsilon 400 the quantile is exact but for its grid; 60,000 made-up accounts hide all real people from it."""
    real = open_visits(tmp_path / "real", 0).contributions("visits", epsilon=400)
    fake = open_visits(tmp_path / "fake", 60_000).contributions("visits", epsilon=400)
    assert real.to_dicts()[0]["rows"] == pytest.approx(50, rel=0.08)
    assert fake.to_dicts()[0]["rows"] == pytest.approx(1, abs=1)
    for found in (real, fake):
        assert any("made-up accounts with few rows make these numbers smaller" in note for note in found.notes)
        assert found.to_dicts()[0]["rows_low"] <= found.to_dicts()[0]["rows_high"]


def test_some_rows_only(tmp_path: Path) -> None:
    found = open_visits(tmp_path / "clicks", 0).contributions("visits", 0.5, where="kind = 'click'", epsilon=400)
    assert found.to_dicts()[0]["rows"] == pytest.approx(1, abs=1)


def test_numbers_that_noise_hides_are_unknown(tmp_path: Path) -> None:
    """Regression test: noise made 99% of people have under 58,150,535 rows, in a table of 15,000."""
    session = open_visits(tmp_path / "hidden", 0)
    found = session.contributions("visits", [0.5, 0.99], epsilon="0.01")
    known = session.context.noisy_rows("visits")
    assert known is not None and all(row["rows_high"] < max(known, 0) + 10_000_000 for row in found.to_dicts())
    assert np.isnan(found.to_dicts()[1]["rows"]) and "0.99 | unknown [" in str(found)
    assert "unknown: at this loss, noise hides how many rows 0.99 of all persons" in found.summary[-1]
    assert "nan" not in found._repr_html_()


def test_a_quote_is_free_and_names_the_cost(tmp_path: Path) -> None:
    session = open_visits(tmp_path / "quote", 0)
    session.contributions.quote("visits", epsilon=1)  # the noisy sizes are measured before the first quote
    before = str(session.budget)
    assert "epsilon 1" in str(session.contributions.quote("visits", epsilon=1))
    assert str(session.budget) == before


def test_a_table_or_unit_without_people_is_refused(tmp_path: Path) -> None:
    session = open_visits(tmp_path / "refused", 0)
    with pytest.raises(NotFound, match="visits"):
        session.contributions("visit", epsilon=1)
    with pytest.raises(Unsupported, match="counts the rows of people"):
        session.contributions("visits", epsilon=1, unit="visit")
