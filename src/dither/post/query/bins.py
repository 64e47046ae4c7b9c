"""Histogram bins over a declared range, from which quantiles, minima and maxima are estimated."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np

from dither.errors import Unsupported
from dither.plan.domains import PERIOD_LENGTHS, bounds_of, truncate
from dither.plan.expressions.core import Expr
from dither.plan.expressions.time import DateDiff, Instant
from dither.post.noise import Floats
from dither.schema import Moment, Number

# A range of at most this many values has a bin for each of them; a wider one has equal bins.
MAX_SINGLE_VALUE_BINS = 512
EQUAL_BINS = 256
# The width of a growing bin is the distance of its values from zero divided by this.
GROWING_FRACTION = 16

QuantileLevel = Fraction | Literal["min", "max"]


@dataclass(frozen=True)
class Bins:
    """Histogram bins: bin i has the values from low[i] to high[i]; `edges` are the lower ends of all but the first."""

    low: Floats
    high: Floats
    edges: tuple[Fraction, ...]

    def as_moments(self, domain: Moment) -> Bins:
        """Return bins of periods after the first moment of a domain as bins of moments, in microseconds."""
        start, length = truncate(domain.lo, period_of(domain)), PERIOD_LENGTHS[period_of(domain)]
        return Bins(start + self.low * length, start + self.high * length, self.edges)

    def between(self, first: int, last: int) -> Bins:
        """Return the bins from index `first` to `last`, both included."""
        return Bins(self.low[first : last + 1], self.high[first : last + 1], self.edges[first:last])


def period_of(domain: Moment) -> Literal["day", "hour", "minute", "second"]:
    """Return the period by which moments are ranked: their precision, but no finer than a second."""
    return domain.precision if domain.precision in ("day", "hour", "minute", "second") else "second"


def periods_after_first(value: Expr, domain: Moment) -> Expr:
    """Return the number of periods from the first moment of a domain to a value."""
    period = period_of(domain)
    return DateDiff(period, Instant(truncate(domain.lo, period)), value)


def make_bins(domain: object, growing: bool = False) -> Bins:
    """Make a bin for each value of a small range, else equal bins.

    `growing` bins, for a range that depends on a bound still to be chosen, widen with the distance from zero.
    """
    if not isinstance(domain, Number):
        raise Unsupported(
            "MIN, MAX, MEDIAN and quantiles need a number or a date with a declared range; for other columns, "
            "ask for COUNT(*) grouped by the value"
        )
    first, last = bounds_of(domain)
    width = max(1, -(-(last - first + 1) // EQUAL_BINS)) if last - first >= MAX_SINGLE_VALUE_BINS else 1
    starts = _growing_starts(first, last) if growing else list(range(first, last + 1, width))
    stops = [start - 1 for start in starts[1:]] + [last]
    low, high = (np.array([float(point * domain.step) for point in points]) for points in (starts, stops))
    # A range of a single value has one bin, and an edge beyond it that no value reaches.
    return Bins(low, high, tuple(start * domain.step for start in starts[1:] or [last + 1]))


def _growing_starts(first: int, last: int) -> list[int]:
    """The starts of bins that have one value each near zero, and widen on both sides."""
    sizes, size = [0], 1
    while size <= max(last, -first):
        sizes.append(size)
        size += max(1, size // GROWING_FRACTION)
    return sorted({first} | {start for size in sizes for start in (size, 1 - size) if first <= start <= last})
