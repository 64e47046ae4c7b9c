"""Moments moved by months: the domain holds every value, also where the last days of a month meet on one day."""

from __future__ import annotations

from datetime import datetime, timedelta
from fractions import Fraction

import pytest

from dither.errors import InvalidParameter, Unsupported
from dither.plan import expressions as x
from dither.plan.domains import DAY, EPOCH, move_months
from dither.plan.sql.scope import Scope
from dither.schema import Moment
from plan.reference import in_months

HOUR = DAY // 24
FIRST = (datetime(2020, 1, 26) - EPOCH) // timedelta(microseconds=1)


def values(lo: int, hi: int, months: int) -> list[int]:
    return [in_months(moment, months) for moment in range(lo, hi + 1, HOUR)]


@pytest.mark.parametrize("months", [1, -2, 13, 37])
@pytest.mark.parametrize("hours", [(0, 143), (80, 130), (119, 120), (121, 121)])
def test_the_domain_holds_every_value(months: int, hours: tuple[int, int]) -> None:
    lo, hi = (FIRST + hour * HOUR for hour in hours)
    domain = x.MovedMoment(x.ColumnRef("t"), months, 5).domain(Scope({"t": Moment(lo, hi, "hour")}))
    assert isinstance(domain, Moment)
    assert all(domain.lo <= value + 5 <= domain.hi for value in values(lo, hi, months))


def test_the_ends_alone_would_not_hold_every_value() -> None:
    """The fault that the domain avoids: 30 January 23:00 moves behind 31 January 01:00."""
    lo, hi = FIRST + 4 * DAY, FIRST + 5 * DAY + HOUR
    assert max(values(lo, hi, 1)) > move_months(hi, 1)


def test_the_calendar_has_an_end() -> None:
    scope = Scope({"t": Moment(FIRST, FIRST + DAY, "day")})
    for months, more in ((12 * 9000, 0), (-12 * 2100, 0), (0, 10**18 * 3 // 10)):
        with pytest.raises((Unsupported, InvalidParameter)):
            x.MovedMoment(x.ColumnRef("t"), months, more).domain(scope)
    assert Fraction(move_months(FIRST, 1) - FIRST, DAY) == 31
