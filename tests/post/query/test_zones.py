"""Literals, bounds and months of a dataset with a time zone: one wall clock, whatever spelling the records have."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from dither.access.engines import open_engine
from dither.errors import InvalidQuery
from dither.post.session import Session
from dither.schema import load
from post.bare import BareKernel

ZONE = ZoneInfo("America/New_York")
DATASET = """
version: 1
name: flights
timezone: America/New_York
tables:
  flights:
    private: true
    source: {kind: csv, path: flights.csv}
    columns:
      plane: {type: identifier, kind: integer}
      at: {type: timestamp, min: 2013-01-01, max: 2013-12-31, precision: hour}
      day: {type: date, min: 2013-01-01, max: 2013-12-31}
units:
  plane: {kind: user, keys: {flights: plane}}
budgets:
  - {unit: plane, kind: pure, epsilon: 1000}
"""
# Every hour of the year by the clock of New York, in UTC; the clocks changed on March 10 and November 3.
HOURS = [datetime(2013, 1, 1, 5, tzinfo=UTC) + timedelta(hours=hour) for hour in range(8760)]
SPELLINGS = ("%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%d %H:%M:%S+00:00", "%Y-%m-%d %H:%M:%S.000 UTC")


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    folder = tmp_path_factory.mktemp("flights")
    (folder / "dataset.yml").write_text(DATASET)
    rows = [f"{i},{h.strftime(SPELLINGS[i % 3])},{h.strftime(SPELLINGS[i % 3])}" for i, h in enumerate(HOURS)]
    (folder / "flights.csv").write_text("plane,at,day\n" + "\n".join(rows) + "\n")
    engine = open_engine(load(folder / "dataset.yml"))
    yield Session.from_kernel(BareKernel(engine.ctx, engine.vector), "analyst")
    engine.close()


def counted(session: Session, condition: str) -> int:
    """The count, with noise so small that rounding removes it (it errs with a chance below 1e-20)."""
    answer = session.sql(f"SELECT COUNT(*) AS n FROM flights WHERE {condition}", epsilon=100, max_contributions=1)
    return round(answer.value())


JUNE = datetime(2013, 6, 1, tzinfo=UTC)
QUESTIONS = {
    "at >= TIMESTAMPTZ '2013-06-01 00:00:00+00:00'": lambda h: h >= JUNE,
    "at < TIMESTAMPTZ '2013-06-01 00:00:00+00:00'": lambda h: h < JUNE,
    "at >= '2013-06-01T00:00:00Z'": lambda h: h >= JUNE,
    "at < CAST('2013-06-01 05:30:00+0530' AS TIMESTAMP)": lambda h: h < JUNE,
    "at BETWEEN '2013-05-31 19:00:00-05' AND TIMESTAMPTZ '2013-06-02 00:00:00+00:00'": lambda h: (
        JUNE <= h <= JUNE + timedelta(days=1)
    ),
    "at IN ('2013-06-01 00:00:00+00:00', TIMESTAMP '2013-06-01 01:00:00')": lambda h: (
        h in (JUNE, JUNE + timedelta(hours=5))
    ),
    "at >= '2013-06-01'": lambda h: h.astimezone(ZONE).month >= 6,
    "at < TIMESTAMP '2013-06-01 00:00:00'": lambda h: h.astimezone(ZONE).month < 6,
    "DATE_TRUNC('day', at) = DATE '2013-12-31'": lambda h: h.astimezone(ZONE).date().timetuple().tm_yday == 365,
    "EXTRACT(hour FROM at) = 2": lambda h: h.astimezone(ZONE).hour == 2,
    "day = DATE '2013-12-31'": lambda h: h.astimezone(ZONE).date().timetuple().tm_yday == 365,
}


@pytest.mark.parametrize("condition", QUESTIONS)
def test_a_literal_means_the_instant_that_it_names(session: Session, condition: str) -> None:
    assert counted(session, condition) == sum(map(QUESTIONS[condition], HOURS))


def test_a_year_has_twelve_months(session: Session) -> None:
    answer = session.sql(
        "SELECT DATE_TRUNC('month', at) AS month, COUNT(*) AS n FROM flights GROUP BY month",
        epsilon=100,
        max_contributions=1,
    )
    expected = [sum(h.astimezone(ZONE).month == month for h in HOURS) for month in range(1, 13)]
    found = [(row["month"].month, round(row["n"])) for row in answer.to_dicts()]
    assert found == list(enumerate(expected, start=1))


@pytest.mark.parametrize("literal", ["TIMESTAMPTZ '0001-01-01 00:00:00+14:00'", "'9999-12-31T23:00:00-12:00'"])
def test_a_literal_beyond_the_calendar_is_refused(session: Session, literal: str) -> None:
    with pytest.raises(InvalidQuery, match="is not a date"):
        session.sql(f"SELECT COUNT(*) FROM flights WHERE at < {literal}", epsilon=1)


def test_bounds_are_shown_by_the_wall_clock(session: Session, tmp_path: Path) -> None:
    from dither.schema.summary import public_facts

    columns = public_facts(session.dataset)["tables"]["flights"]["columns"]
    assert columns["at"] == "time from 2013-01-01 to 2013-12-31T23:00:00, to the hour"
    assert columns["day"] == "date from 2013-01-01 to 2013-12-31, to the day"
