"""The smallest differences that four of five tests find at a level of 5%, from public facts alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from scipy import special

from dither.post.estimate.explain import Expected, unknown_error

LEVEL, POWER = 0.05, 0.8
# A difference of so many standard errors is found by four of five tests of two means.
DETECTABLE = float(special.ndtri(1 - LEVEL / 2) + special.ndtri(POWER))
FOUND = "that four of five tests find"


def smallest_dependence(shape: tuple[int, ...], rows: float, variance: float) -> float:
    """Return the smallest Cramér's V that four of five tests find in a table of even cells with noise of a variance.

    A test divides squares by a cell's count plus the noise's variance, which makes dependence count for less.
    """
    freedom = (shape[0] - 1) * (shape[1] - 1)
    if freedom < 1:
        return math.inf
    needed = float(special.chndtrinc(special.chdtri(freedom, LEVEL), freedom, 1 - POWER))
    cell = rows / math.prod(shape)
    found = math.sqrt(needed / (rows * (min(shape) - 1)) * (cell + variance) / cell)
    return found if found <= 1 else math.inf


def share_with_sampling(columns: Sequence[Expected], confidence: float) -> list[Expected]:
    """Return the expected errors of shares with sampling, which is largest for shares of a half."""
    factor = float(special.ndtri((1 + confidence) / 2))
    return [_wider(column, 0.5, factor) if column.name == "proportion" else column for column in columns]


def _wider(column: Expected, spread: float, factor: float) -> Expected:
    """Return the expected error of a mean with the sampling of values of a standard deviation."""
    sampling = spread / math.sqrt(column.rows or 1.0)
    error, half = math.hypot(column.std_error, sampling), math.hypot(column.half_width, factor * sampling)
    return replace(column, std_error=error, half_width=half, given="with sampling" if column.known else "")


def with_sampling(columns: Sequence[Expected], value: str, spread: float | None, confidence: float) -> list[Expected]:
    """Return the expected errors of means with sampling, and the smallest difference that tests find.

    `spread` is the standard deviation of the value, if it is known about as well as that of booleans: half or less.
    """
    found = []
    for column in columns:
        if column.name == "mean":
            found += _of_means(column, value, spread, float(special.ndtri((1 + confidence) / 2)))
        elif column.name != "variance":
            found.append(column)
    return found


def _of_means(mean: Expected, value: str, spread: float | None, factor: float) -> list[Expected]:
    """Return the expected errors of a mean and of the difference of two, of noise and sampling."""
    rows, smallest = mean.rows or 1.0, DETECTABLE * math.sqrt(2)
    difference = f"difference of two means {FOUND}"
    if spread is not None:
        both = _wider(mean, spread, factor)
        found = smallest * both.std_error
        return [both, Expected(difference, found, found, True, mean.rows, mean.known)]
    sampling = f"times the standard deviation of {value}"
    noise = replace(mean, given="from noise alone" if mean.known else "from noise alone, at the bounds assumed")
    reason = f"sampling adds about {factor / math.sqrt(rows):.2g} {sampling} to what noise makes of it"
    least = f"at least {smallest * mean.std_error:.3g} by noise" if mean.known else "noise hides small ones"
    more = f"{least}, and sampling alone hides those below {smallest / math.sqrt(rows):.2g} {sampling}"
    return [noise, unknown_error("mean with sampling", reason), unknown_error(difference, more)]
