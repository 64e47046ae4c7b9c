"""Dates and timestamps in answers: microseconds become dates to show, and distances become days or seconds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np

from dither.plan.domains import PERIOD_LENGTHS
from dither.post.estimate.intervals import Estimate
from dither.schema import Precision

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def show_moment(microseconds: int, precision: Precision) -> date:
    """Return a moment as a date, or as a timestamp without a zone."""
    moment = EPOCH + timedelta(microseconds=microseconds)
    return date(moment.year, moment.month, moment.day) if precision == "day" else moment.replace(tzinfo=None)


def show_moments(values: Iterable[float], precision: Precision) -> np.ndarray[Any, Any]:
    """Return noisy moments as dates or timestamps, rounded to their precision; None for what is missing."""
    length = PERIOD_LENGTHS[precision]
    shown = [None if value != value else show_moment(round(value / length) * length, precision) for value in values]
    return np.array([*shown, None], dtype=object)[:-1]


def distance_unit(precision: Precision) -> tuple[str, int]:
    """Return the unit of errors of a moment, and its microseconds: days for dates, else seconds."""
    return ("days", PERIOD_LENGTHS["day"]) if precision == "day" else ("seconds", PERIOD_LENGTHS["second"])


def show_estimate(found: Estimate, precision: Precision) -> Estimate:
    """Return an estimate in microseconds as dates, with its standard error in days or seconds."""
    _, length = distance_unit(precision)
    value, low, high = (show_moments(np.atleast_1d(part), precision) for part in (found.value, found.low, found.high))
    return replace(found, value=value, std_error=np.asarray(found.std_error) / length, low=low, high=high)
