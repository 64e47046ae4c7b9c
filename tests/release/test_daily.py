"""Incremental releases: the example of examples/daily, a release for each day, charged to that day's window alone."""

from __future__ import annotations

import json
import runpy
import shutil
from fractions import Fraction
from pathlib import Path

import duckdb
import pytest

from dither.errors import BudgetExceeded
from dither.release.api import open_release

HOME = Path(__file__).parents[2] / "examples" / "daily"
FIRST, SECOND = "2024-05-01", "2024-05-02"
CONDITION = "where: at >= TIMESTAMP 'DAY' AND at < TIMESTAMP 'DAY' + INTERVAL '1 day'"

pytestmark = pytest.mark.tier("test")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in ("dataset.yml", "day.yml"):
        shutil.copy(HOME / name, tmp_path)
    return tmp_path


def write_day(place: Path, day: str, *changes: tuple[str, str]) -> Path:
    """The day's records arrive, and its description is written; return its path."""
    runpy.run_path(str(HOME / "write_day.py"))["main"](day, 300, place)
    text = (place / "day.yml").read_text()
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    spec = place / f"{day}.yml"
    spec.write_text(text.replace("DAY", day))
    return spec


def spent(place: Path, day: str) -> dict[str, Fraction]:
    """What each day's window has spent, of those that have spent anything."""
    with open_release(place / f"{day}.yml") as release:
        balances = release.kernel.budget("visits", "curator")
    found = {each.window: Fraction(each.spent[0]) for each in balances}
    assert len(found) == 1096  # all days of three years
    return {window: amount for window, amount in found.items() if amount}


def test_each_day_charges_its_own_window(place: Path) -> None:
    """Sigma 40 on 96 cells of 4 columns: one is 12 sigma off with probability below 1e-28."""
    with open_release(write_day(place, FIRST)) as release:
        assert "rho 0.125, in the day of 2024-05-01\n" in release.quote().text
        assert release.write(place / FIRST)
    after_one = spent(place, FIRST)
    assert list(after_one) == [FIRST]
    with open_release(write_day(place, SECOND)) as release:
        assert release.write(place / SECOND)
    after_two = spent(place, SECOND)
    assert list(after_two) == [FIRST, SECOND] and len(set(after_two.values())) == 1
    assert after_two[FIRST] == after_one[FIRST]
    statement = (place / SECOND / "privacy_statement.md").read_text()
    assert "in the day of 2024-05-02" in statement and "2024-05-01" not in statement
    (loss,) = json.loads((place / SECOND / "codebook.json").read_text())["losses"]
    assert loss["windows"] == f"in the day of {SECOND}"
    for day in (FIRST, SECOND):
        counts = "SELECT EXTRACT(hour FROM \"at\"), country, COUNT(*) FILTER (WHERE page = 'article')"
        found = duckdb.sql(f"{counts} FROM '{place}/days/{day}.parquet' GROUP BY ALL").fetchall()
        truth = {(hour, country): count for hour, country, count in found}
        rows = duckdb.sql(f"SELECT hour, country, articles FROM '{place}/{day}/data/*.parquet'").fetchall()
        assert len(rows) == 96
        assert all(abs(noisy - truth.get((hour, country), 0)) < 480 for hour, country, noisy in rows)


def test_a_day_that_was_released_can_not_be_released_again_for_free(place: Path) -> None:
    """Late records need another `repeat`, which is charged to that day's budget."""
    with open_release(write_day(place, FIRST)) as release:
        release.write(place / FIRST)
    late = write_day(place, FIRST, ("version: 1\n", "version: 1\nrepeat: 1\n"))
    with open_release(late) as release, pytest.raises(BudgetExceeded, match="window 2024-05-01"):
        release.write(place / "again")
    assert not (place / "again").exists()


def test_a_condition_that_leaves_every_window_is_told(place: Path) -> None:
    """Regression: the first day's release could spend the budgets of all days, and its quote did not show it."""
    spec = write_day(place, FIRST, (CONDITION, "where: DATE_TRUNC('day', at) = TIMESTAMP 'DAY'"))
    with open_release(spec) as release:
        text = release.quote().text
    assert "in each of 1,096 days, from that of 2024-01-01 to that of 2026-12-31\n" in text
    assert "every window that is declared is charged; a condition such as `at >= TIMESTAMP" in text
