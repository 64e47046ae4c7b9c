"""The described releases: the figures of the codebook, and a release of flights."""

from __future__ import annotations

import shutil
from fractions import Fraction
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dither.examples.url_shares import codebook_data
from dither.loss import ZCDP
from dither.release.api import open_release
from dither.release.losses import formula_epsilon, tight_epsilon, total_for_k

ROOT = Path(__file__).parents[2]


def copy_example(name: str, folder: Path, *files: str) -> Path:
    for file in files:
        shutil.copy(ROOT / "examples" / name / file, folder)
    return folder / "release.yml"


@pytest.mark.tier("test")
def test_the_codebook_figures(tmp_path: Path) -> None:
    """0.44 to 0.45 a column, 1.82 in total from k and sigma, 1.58 tight; one action costs the largest of the losses."""
    spec = copy_example("url_shares", tmp_path, "release.yml", "codebook_dataset.yml")
    codebook_data.generate(tmp_path / "codebook_data", 50, 3, 5.0)
    with open_release(spec) as release:
        columns, losses, rows = release.quote().columns, release.cost.losses, release.question.rows
        table = release.cost.parts[1]
    assert {round(column.k_epsilon, 2) for column in columns} == {0.44, 0.45}
    total = total_for_k(columns)
    assert round(formula_epsilon(float(total), 1e-5), 2) == 1.82
    assert round(tight_epsilon(ZCDP(total), Fraction(1, 10**5)), 2) == 1.58
    assert table.loss == ZCDP("1/200") and rows == 3 * 32 * 9 * 7 * 3
    assert losses[0].unit == "action" and isinstance(losses[0].loss, ZCDP) and losses[0].loss.rho < Fraction(1, 40)


@pytest.mark.tier("test")
def test_flights_by_plane(tmp_path: Path) -> None:
    """The table has the columns of the PyPI package; one plane costs its 24 rows of 20 flights."""
    spec = copy_example("flights", tmp_path, "release.yml", "dataset.yml")
    (tmp_path / "data").mkdir()
    days = [f"2013-{1 + n % 12:02d}-{1 + n % 28:02d}" for n in range(600)]
    delays = [None if n % 9 == 0 else float(n % 40) for n in range(600)]
    numbers = [f"N{n % 30}" for n in range(600)]
    places = {"carrier": ["AA", "DL", "UA"] * 200, "origin": ["EWR", "JFK"] * 300}
    table = pa.table({"tailnum": numbers, **places, "day": days, "dep_delay": delays})
    pq.write_table(table, tmp_path / "data" / "flights.parquet")
    with open_release(spec) as release:
        sigma = release.quote().columns[0].sigma
        assert sigma == pytest.approx((24 * 20**2 / 2) ** 0.5, rel=1e-4)  # rho = 24 20^2 / (2 sigma^2) = 1
        assert release.write(tmp_path / "out")
    assert (tmp_path / "out" / "data" / "part-00000.csv").read_text().count("\n") == 12 * 17 * 3 + 1


@pytest.mark.tier("test")
def test_two_populations_at_user_level(tmp_path: Path) -> None:
    """Nobody within the threshold loses a row; the others have ten times the noise; both fit the budget by user."""
    names = ("users_dataset.yml", "release_users.yml", "release_power_users.yml")
    copy_example("url_shares", tmp_path, *names)
    codebook_data.generate(tmp_path / "codebook_data", 400, 3, 60.0)
    sigmas = []
    for name in names[1:]:
        with open_release(tmp_path / name) as release:
            sigmas.append(release.quote().columns[0].sigma)
            (loss,) = release.cost.losses
            assert loss.unit == "user" and isinstance(loss.loss, ZCDP) and 0.2499 < loss.loss.rho <= Fraction(1, 4)
            assert release.write(tmp_path / name.removesuffix(".yml"))
    assert sigmas == pytest.approx([2**0.5 * 200, 2**0.5 * 2_000], rel=1e-3)  # rho = rows^2 / (2 sigma^2) = 1/4
    table = pq.read_table(tmp_path / "release_users" / "data")
    assert table.num_rows == 32 * 9 * 3
    total, noise = sum(table["views"].to_pylist()), sigmas[0] * table.num_rows**0.5
    assert abs(total - count_views(tmp_path / "codebook_data", 200)) < 6.5 * noise  # false alarms: 1e-10


def count_views(folder: Path, most: int) -> int:
    """Count the views of people with at most so many actions, without privacy."""
    actions = pq.read_table(folder / "actions.parquet").to_pandas()
    counts = actions.groupby("user_id")["action"].transform("size")
    return int(((actions["action"] == "view") & (counts <= most)).sum())
