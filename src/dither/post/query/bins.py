"""Histogram bins over a declared range, from which quantiles, minima and maxima are estimated."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np

from dither.errors import Unsupported
from dither.plan import expressions as expr
from dither.plan.domains import PERIOD_LENGTHS, bounds_of, truncate
from dither.plan.expressions.core import Expr
from dither.plan.expressions.time import DateDiff, Instant
from dither.post.noise import Floats
from dither.post.query.value_grid import ValueGrid, cell_key, make_equal_grid, make_grid
from dither.schema import Moment, Number

# A range of at most this many values has a bin for each of them. A wider one has at least so many bins. There are fewer
# of either where noise hides units with many rows.
MAX_SINGLE_VALUE_BINS, FEWEST_BINS = 512, 256
# Groups of at least so many rows have more bins: noise then hides about as many rows as a bin has.
MORE_BINS = ((150_000, 4096), (15_000, 2048), (4_000, 1024), (2_500, 512))
# With fewer rows than these for each that noise hides, there are fewer bins, since each adds its noise to their sums.
NOISY_BINS, FEWEST_NOISY_BINS = ((1_000, 256), (200, 128), (100, 64)), 48
# Where a range depends on a bound still to be chosen, the width of a bin is its distance from zero divided by this.
GROWING_FRACTION = 16

QuantileLevel = Fraction | Literal["min", "max"]


@dataclass(frozen=True)
class Bins:
    """Histogram bins: bin i has the values from low[i] to high[i]; `cells` says which bin a value is in."""

    low: Floats
    high: Floats
    cells: ValueGrid | tuple[Fraction, ...]

    def key(self, value: Expr) -> Expr:
        """Return the expression of the bin of a value: of its cell, or of the edges up to it."""
        return cell_key(value, self.cells) if isinstance(self.cells, ValueGrid) else expr.Bucket(value, self.cells)

    def as_moments(self, domain: Moment) -> Bins:
        """Return bins of periods after the first moment of a domain as bins of moments, in microseconds."""
        start, length = truncate(domain.lo, period_of(domain)), PERIOD_LENGTHS[period_of(domain)]
        return Bins(start + self.low * length, start + self.high * length, self.cells)

    def between(self, first: int, last: int) -> Bins:
        """Return the bins from index `first` to `last`, both included; there are edges between them."""
        cells = self.cells[first:last] if isinstance(self.cells, tuple) else self.cells
        return Bins(self.low[first : last + 1], self.high[first : last + 1], cells)


def period_of(domain: Moment) -> Literal["day", "hour", "minute", "second"]:
    """Return the period by which moments are ranked: their precision, but no finer than a second."""
    return domain.precision if domain.precision in ("day", "hour", "minute", "second") else "second"


def periods_after_first(value: Expr, domain: Moment) -> Expr:
    """Return the number of periods from the first moment of a domain to a value."""
    period = period_of(domain)
    return DateDiff(period, Instant(truncate(domain.lo, period)), value)


def bins_for(rows: float) -> int:
    """Return the most bins for groups of a number of rows.

    >>> bins_for(200), bins_for(100_000)
    (256, 2048)
    """
    return next((bins for least, bins in MORE_BINS if rows >= least), FEWEST_BINS)


def noisy_bins_for(rows: float) -> int:
    """Return the most bins for groups of so many rows, counted in the noise of one bin.

    >>> noisy_bins_for(20), noisy_bins_for(100), noisy_bins_for(500), noisy_bins_for(5_000)
    (48, 64, 128, 1024)
    """
    return next((bins for least, bins in (*MORE_BINS, *NOISY_BINS) if rows >= least), FEWEST_NOISY_BINS)


def make_bins(domain: object, most: int) -> Bins:
    """Make a bin for each value of a small range, else at most so many bins, which are narrower near zero."""
    return _single_values(domain, most) or _grid_bins(make_grid(domain, most))


def make_equal_bins(domain: object, most: int = FEWEST_BINS) -> Bins:
    """Make a bin for each value of a small range, else equal bins: for moments, whose zero means nothing."""
    return _single_values(domain, most) or _grid_bins(make_equal_grid(domain, min(most, FEWEST_BINS)))


def make_growing_bins(domain: object) -> Bins:
    """Make bins that widen with the distance from zero, for a range that depends on a bound still to be chosen."""
    number = check_ranked(domain)
    first, last = bounds_of(number)
    starts = _growing_starts(first, last)
    stops = [start - 1 for start in starts[1:]] + [last]
    low, high = (np.array([float(point * number.step) for point in points]) for points in (starts, stops))
    # A range of a single value has one bin, and an edge beyond it that no value reaches.
    return Bins(low, high, tuple(start * number.step for start in starts[1:] or [last + 1]))


def _single_values(domain: object, most: int) -> Bins | None:
    """Make a bin for each value of a range, if there are few; at most `most` where that is few because of noise."""
    grid = make_equal_grid(check_ranked(domain), MAX_SINGLE_VALUE_BINS if most >= FEWEST_BINS else most)
    return _grid_bins(grid) if grid.pieces[0].width == 1 else None


def _grid_bins(grid: ValueGrid) -> Bins:
    return Bins(grid.low_ends(), grid.high_ends(), grid)


def check_ranked(domain: object) -> Number:
    """Return the domain of a number with a range; refuse other columns."""
    if not isinstance(domain, Number):
        raise Unsupported(
            "MIN, MAX, MEDIAN and quantiles need a number or a date with a declared range; for other columns, "
            "ask for COUNT(*) grouped by the value"
        )
    return domain


def _growing_starts(first: int, last: int) -> list[int]:
    """The starts of bins that have one value each near zero, and widen on both sides."""
    sizes, size = [0], 1
    while size <= max(last, -first):
        sizes.append(size)
        size += max(1, size // GROWING_FRACTION)
    return sorted({first} | {start for size in sizes for start in (size, 1 - size) if first <= start <= last})
