"""Statistics of a clinic's records as they come: missing values, long tails, and patients with any number of rows."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dither import Session, connect
from dither.access.snapshot import prepare
from dither.errors import Unsupported
from dither.schema import load

PATIENTS = 2_000
DESCRIPTION = """
version: 1
name: clinic
tables:
  surveys:
    private: true
    source: {kind: parquet, path: surveys.parquet}
    columns:
      patient: {type: identifier, kind: integer}
      born: {type: integer, min: 1900, max: 1990}
      income: {type: decimal, min: 0, max: 50000, step: 1, nullable: true}
      stays: {type: integer, min: 0, max: 60}
      visits: {type: integer, min: 0, max: 200}
      married: {type: boolean}
      at: {type: timestamp, min: 1984-01-01, max: 1988-12-31, precision: minute}
units:
  patient: {kind: user, keys: {surveys: patient}}
budgets:
  - {unit: patient, kind: zcdp, rho: 1000, delta: 1e-6}
"""
SPENDS = [{"rho": "0.05"}, {"epsilon": "0.5"}]


def surveys() -> pa.Table:
    """Return the surveys: a few for each patient, most of them without a stay, some without an income."""
    random = np.random.default_rng(7)
    who = np.repeat(np.arange(PATIENTS), random.integers(1, 7, PATIENTS))
    size = len(who)
    stays = np.where(random.random(size) < 0.08, np.minimum(random.geometric(0.5, size), 60), 0)
    income = np.round(np.exp(random.normal(7.9, 0.5, size)))
    minutes = random.integers(0, 5 * 365 * 24 * 60, size)
    return pa.table(
        {
            "patient": who,
            "born": random.integers(1900, 1991, size),
            "income": pa.array(np.minimum(income, 50_000), mask=random.random(size) < 0.1),
            "stays": stays,
            "visits": np.minimum(random.poisson(2 + 2 * stays), 200),
            "married": random.random(size) < 0.6,
            "at": pa.array(np.datetime64("1984-01-01T00:00", "us") + minutes.astype("timedelta64[m]")),
        }
    )


@pytest.fixture(scope="module")
def clinic(tmp_path_factory: pytest.TempPathFactory) -> Session:
    """A session over the prepared records: the ranks of rows are stored, and no cap is declared."""
    folder: Path = tmp_path_factory.mktemp("clinic")
    pq.write_table(surveys(), folder / "surveys.parquet")
    (folder / "clinic.yml").write_text(DESCRIPTION)
    prepare(load(folder / "clinic.yml"))
    return connect(str(folder / "clinic.yml"), account="analyst")


@pytest.fixture(scope="module")
def incomes() -> np.ndarray:
    """The incomes that are known."""
    return np.array(surveys()["income"].drop_null().to_numpy())


@pytest.mark.parametrize("spend", SPENDS, ids=["gaussian", "laplace"])
def test_a_number_that_may_be_missing_is_described(clinic: Session, incomes: np.ndarray, spend: Any) -> None:
    """Regression test: its counts had a bound of another kind than that of all rows, which nothing chose."""
    clinic.describe.quote("surveys", ["income"], **spend)
    (row,) = clinic.describe("surveys", ["income"], **spend).to_dicts()
    assert row["n"] == pytest.approx(len(incomes), rel=0.4)
    assert row["50%"] == pytest.approx(np.median(incomes), rel=0.3)


@pytest.mark.parametrize("source", ["surveys", "SELECT income FROM surveys WHERE income > 0"], ids=["table", "query"])
@pytest.mark.parametrize("spend", SPENDS, ids=["gaussian", "laplace"])
def test_quantiles_of_such_a_number_are_as_near_in_rho(
    clinic: Session, incomes: np.ndarray, source: str, spend: Any
) -> None:
    """Regression test: the ranks of counts that are bounded in L2 moved by that times the root of all cells."""
    (row,) = clinic.quantiles(source, "income", [0.5], **spend).to_dicts()
    assert row["income"] == pytest.approx(np.median(incomes), rel=0.1)


def test_private_bins_of_such_a_number_follow_the_rows(clinic: Session, incomes: np.ndarray) -> None:
    found = clinic.histogram("surveys", "income", bins="private", most=4, rho="0.05")
    shares = [np.mean(incomes < edge) for edge in found.edges[1:-1]]
    assert shares == pytest.approx([0.25, 0.5, 0.75], abs=0.1)


@pytest.mark.parametrize("spend", [{"rho": "0.5"}, {"epsilon": 4}], ids=["gaussian", "laplace"])
def test_a_column_of_mostly_one_value_keeps_the_others(clinic: Session, spend: Any) -> None:
    """Regression test: a private range ended below the first value above 0, and the slope was several times too large.

    Patients have up to 2 visits for each stay.
    """
    found = clinic.regress("surveys", "visits", ["stays"], **spend)
    _, row = found.to_dicts()
    assert row["coefficient"] == pytest.approx(2, abs=0.5)
    assert row["limited to"].startswith("0 to ") and float(row["limited to"].split()[-1]) >= 1
    assert "visits (limited to" in found.summary[0] and "limited to" in repr(found)
    assert any("results are about the columns so limited" in note for note in found.notes)
    assert any("most patients have nearly one value of stays" in note for note in found.notes)
    assert not any("nearly one value of visits" in note for note in found.notes)


def test_a_classifier_has_such_a_range_beside_its_coefficient(clinic: Session) -> None:
    found = clinic.classify("surveys", "married", ["stays"], rho="0.5")
    assert float(found.to_dicts()[1]["limited to"].split()[-1]) >= 1


def test_moments_of_such_a_column_are_described(clinic: Session) -> None:
    (row,) = clinic.describe("surveys", ["stays"], rho=1).to_dicts()
    stays = surveys()["stays"].to_numpy()
    assert row["mean"] == pytest.approx(stays.mean(), rel=0.2)
    assert row["std"] == pytest.approx(stays.std(), rel=0.2)


def test_independence_of_expressions_has_no_cells_of_null(clinic: Session) -> None:
    """Regression test: a comparison with a number that may be missing kept cells of NULL that no row can be in."""
    found = clinic.independence("surveys", "married", "income > 3000", rho=1)
    assert len(found) == 4 and not any(None in row.values() for row in found.to_dicts())
    low, high = found.cramers_v_interval
    assert low <= found.cramers_v <= high < 0.1
    levels = "SELECT married, CASE WHEN income > 3000 THEN 'high' WHEN income > 0 THEN 'low' END AS level FROM surveys"
    assert len(clinic.independence(levels, "married", "level", rho=1)) == 4


def test_groups_by_an_expression_have_no_group_of_null(clinic: Session) -> None:
    found = clinic.compare("surveys", "visits", "income > 3000", rho=1)
    assert [next(iter(row.values())) for row in found.to_dicts()] == ["False", "True"]


def test_a_strength_that_noise_hides_is_not_shown(clinic: Session) -> None:
    found = clinic.independence("surveys", "married", "FLOOR(born / 10)", rho="0.00001")
    assert "noise hides Cramér's V" in found.summary[0] and np.isnan(found.cramers_v)


def test_keys_that_are_dates_are_shown_as_dates(clinic: Session) -> None:
    """Regression test: a month was shown in microseconds, 465436800000000."""
    query = "SELECT DATE_TRUNC('month', at) AS month, COUNT(*) AS n FROM surveys GROUP BY month"
    found = clinic.watch(query, above=10, rho=100)
    assert found.keys_above == ((date(1984, 1, 1),),) and "1984-01-01" in str(found)
    years = clinic.top("SELECT DATE_TRUNC('year', at) AS year FROM surveys", ["year"], 3, rho=100)
    assert all(row["year"].day == 1 for row in years.to_dicts())


def test_a_histogram_ends_at_the_declared_bound(clinic: Session) -> None:
    """Regression test: an edge at the upper bound made one more bin, from 1990 to 1990."""
    edges = [1900, 1920, 1940, 1960, 1990]
    found = clinic.histogram("surveys", "born", bins=edges, rho=100)
    assert found.edges == tuple(edges) and len(found) == 4
    born = surveys()["born"].to_numpy()
    assert found.to_dicts()[-1]["n"] == pytest.approx(np.sum(born >= 1960), rel=0.1)


def test_dates_are_not_described_and_the_message_says_what_to_do(clinic: Session) -> None:
    with pytest.raises(Unsupported, match="at is a date or a time") as refused:
        clinic.describe("surveys", ["at", "born"], rho=1)
    assert "DATE_TRUNC('year', at)" in str(refused.value)
    assert len(clinic.table("surveys", ["DATE_TRUNC('year', at)"], rho=1)) == 5


@pytest.mark.tier("test")
def test_the_mean_of_a_long_tail_is_covered(tmp_path: Path) -> None:
    """Regression test: people with many visits count less, and intervals took them to be like the rest: 0 of 12 held.

    If 19 of 20 held, fewer than 7 of 12 would in one run of 60 million.
    """
    random = np.random.default_rng(3)
    who = np.repeat(np.arange(4_000), random.integers(1, 6, 4_000))
    usual = np.exp(random.normal(0.3, 1.2, 4_000))
    visits = np.minimum(random.poisson(usual[who]), 200)
    pq.write_table(pa.table({"patient": who, "visits": visits}), tmp_path / "surveys.parquet")
    lines = DESCRIPTION.splitlines()
    kept = [
        line for line in lines if not any(f" {name}:" in line for name in ("born", "income", "stays", "married", "at"))
    ]
    (tmp_path / "clinic.yml").write_text("\n".join(kept))
    session = connect(str(tmp_path / "clinic.yml"), account="analyst")
    held = 0
    for number in range(12):
        low, high = session.describe("surveys", ["visits"], rho="0.05", repeat=number)["mean"].interval
        held += bool(low <= visits.mean() <= high)
    assert held >= 7
