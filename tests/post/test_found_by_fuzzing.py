"""Faults that random questions found, each with the shortest question that shows it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest

from dither.errors import InvalidParameter, NotFound, Unsupported
from dither.post.estimate import clipping
from dither.post.session import Session
from post.fuzz_charges import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A pure world with hostile values."""
    opened = World.open(tmp_path, "pure", 2)
    yield opened
    opened.kernel.close()


@pytest.fixture
def session(world: World) -> Session:
    """A session over the hostile world."""
    return world.session


def test_refine_a_quantile_beside_other_columns(session: Session) -> None:
    """A refined answer has more noisy columns than its plan has sources: the note on bounds failed after the charge."""
    answer = session.sql("SELECT COUNT(*) AS n, MEDIAN(minutes) AS m FROM visits", epsilon=1)
    for _ in range(2):
        answer = session.refine(answer, epsilon=1)
    assert -60 <= answer["m"].value <= 600


@pytest.mark.tier("test")
def test_refined_dates_stay_dates(session: Session) -> None:
    """A median of dates became microseconds when it was refined."""
    answer = session.sql("SELECT COUNT(*) AS n, MEDIAN(born) AS m FROM people", epsilon=1)
    assert isinstance(answer["m"].value, date)
    assert isinstance(session.refine(answer, epsilon=1)["m"].value, date)


def test_refining_is_rehearsed_with_its_bounds(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure that needs the bounds of the first draw is found before the second is charged."""
    answer = world.session.sql("SELECT COUNT(*) AS n FROM visits", epsilon=1)
    before = world.charges()
    monkeypatch.setattr(clipping, "raised_notes", lambda *_: 1 / 0)
    with pytest.raises(Unsupported, match="cannot be put together"):
        world.session.refine(answer, epsilon=1)
    assert world.charges() == before


@pytest.mark.tier("test")
@pytest.mark.parametrize(("every", "count"), [("year", 126), ("quarter", 501), ("month", 1501)])
def test_long_calendar_periods_are_listed(session: Session, every: str, count: int) -> None:
    """More than 64 years, quarters or months were listed as every day between the first and the last."""
    answer = session.sql(f"SELECT DATE_TRUNC('{every}', born) AS k, COUNT(*) AS n FROM people GROUP BY k", epsilon=1)
    assert len(answer) == count


def test_a_selected_key_that_is_always_null(tmp_path: Path) -> None:
    """A key without any value but NULL had no sample value: a Python error before the charge."""
    world = World.open(tmp_path, "zcdp", 2)
    question = "SELECT NULL::INT AS k, huge AS h, COUNT(*) AS n FROM people GROUP BY NULL::INT, huge"
    with pytest.raises((NotFound, Unsupported)):
        world.session.sql(question, epsilon=1, delta="1e-6", max_contributions=1)
    world.kernel.close()


def test_a_column_is_not_tested_against_itself(world: World) -> None:
    """The table of a column and itself has one key: the chi-squared test failed after the charge."""
    before = world.charges()
    with pytest.raises(InvalidParameter, match="two different columns"):
        world.session.independence("people", "member", "member", epsilon=1)
    assert world.charges() == before


def test_shares_lie_between_0_and_1(session: Session) -> None:
    """A share of noisy counts was -14 with an interval from 0 to 1."""
    for repeat in range(5):
        for population in (False, True):
            found = session.proportion(
                "visits", "place IS NULL", by="paid", epsilon="1/100", population=population, repeat=repeat
            )
            for row in found.to_dicts():
                ends = (row["proportion_low"], row["proportion"], row["proportion_high"])
                assert all(0 <= end <= 1 for end in ends) and ends == tuple(sorted(ends))


def test_statistics_of_rows_that_the_planner_bounds_by_rows(session: Session) -> None:
    """A histogram over a join that keeps public rows was planned twice: a KeyError before the charge."""
    joined = "SELECT minutes, opened, zone FROM visits RIGHT JOIN places USING (place)"
    for epsilon in (1, 3):
        assert len(session.histogram(joined, "YEAR(opened)", epsilon=epsilon, max_contributions="auto,how=rows")) > 1
        top = session.top("visits", "place", 2, epsilon=epsilon, max_contributions="auto,how=rows")
        assert len(top.selected) == 2
