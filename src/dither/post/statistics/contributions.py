"""Quantiles of the number of rows that units have: the k that, for example, 99% of users stay under."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dither.errors import NotFound, Unsupported
from dither.post.estimate.intervals import Estimate
from dither.post.query.typical_rows import row_noise
from dither.post.statistics.core import Measurements, Statistic
from dither.post.statistics.quantiles import QuantileTable, make_quantiles
from dither.post.statistics.source_rows import Asker, StatisticOptions, quote_name, read_rows

# Counts of rows are rounded: to whole numbers at first, then to numbers that are each 7% more than the one before.
LARGEST_COUNT = 10**8
# No unit has more rows than the table, whose noisy size is off by less than this many scales of its noise.
FAR = 20
# An interval whose ends are further apart than this ratio says nothing.
WIDEST_RATIO = 100
FAKE_UNITS_NOTE = (
    "only a {unit} with at least one row counts; made-up accounts with few rows make these numbers smaller, and the "
    "promise to a real {unit} with more rows weaker"
)


def make_contributions(
    asker: Asker, table: str, levels: Sequence[Any], where: str, options: StatisticOptions
) -> Statistic[QuantileTable]:
    """Make the statistic of the quantiles, over units, of the number of rows in a table."""
    unit = read_rows(asker, table, options).settings.unit
    rows = read_rows(asker, _rows_per_unit(asker, unit, table, where), options)
    steps = count_steps()
    quantiles = make_quantiles(rows, f"BUCKET(rows_of_unit, {', '.join(map(str, steps))})", levels, population=False)

    known = rows.context.noisy_rows(table)
    largest = math.inf if known is None else known + FAR * row_noise(rows.context)

    def build(measured: Measurements) -> QuantileTable:
        found = quantiles.build(measured)
        level, places = found.columns
        estimate = hide_unknown(_in_rows(places.estimate, steps, largest))
        rows_column = replace(places, name="rows", estimate=estimate)
        notes = (*found.notes, FAKE_UNITS_NOTE.format(unit=unit))
        return replace(
            found, query=f"rows of a {unit} in {table}", columns=(level, rows_column), notes=notes,
            summary=unknown_lines(map(float, level.estimate.value), estimate, unit),
        )  # fmt: skip

    return replace(quantiles, build=build)


def count_steps() -> tuple[int, ...]:
    """Return increasing numbers of rows; counts between two of them are treated alike.

    >>> count_steps()[:3], count_steps()[40:43]
    ((1, 2, 3), (58, 62, 66))
    """
    steps = [1]
    while steps[-1] < LARGEST_COUNT:
        steps.append(max(steps[-1] + 1, steps[-1] * 107 // 100))
    return tuple(steps)


def _in_rows(places: Estimate, steps: Sequence[int], largest: float) -> Estimate:
    """Return the largest number of rows of each place, at most those of the table, and the standard error."""
    ends = np.array([0, *(step - 1 for step in steps[1:]), steps[-1]], float)
    value, low, high = (
        ends[np.clip(np.rint(each), 0, len(steps)).astype(int)] for each in (places.value, places.low, places.high)
    )
    value, low, high = (np.minimum(each, largest) for each in (value, low, np.maximum(value, high)))
    width = np.maximum(places.high - places.low, 1e-9)
    return Estimate(value, (high - low) * places.std_error / width, low, high)


def hide_unknown(found: Estimate) -> Estimate:
    """Leave out numbers whose intervals say nothing: rows are so many times fewer at one end than at the other."""
    hidden = found.high > WIDEST_RATIO * np.maximum(found.low, 1.0)
    value, error = np.where(hidden, np.nan, found.value), np.where(hidden, np.inf, found.std_error)
    return replace(found, value=value, std_error=error)


def unknown_lines(levels: Iterable[float], found: Estimate, unit: str) -> tuple[str, ...]:
    """Say which quantiles noise hides, and what is known of them."""
    lines = []
    for level, value, low, high in zip(levels, found.value, found.low, found.high, strict=True):
        if np.isnan(value):
            known = f"at least {low:,.0f} and at most {high:,.0f} rows" if low else f"at most {high:,.0f} rows"
            lines.append(
                f"unknown: at this loss, noise hides how many rows {level:.6g} of all {unit}s stay under; "
                f"{known}; spend more, or ask for a lower level"
            )
    return tuple(lines)


def _rows_per_unit(asker: Asker, unit: str, table: str, where: str) -> str:
    """Write the query that counts the rows of each unit."""
    described = asker.context.dataset.units[unit]
    if described.kind != "user":
        raise Unsupported(f"contributions counts the rows of people; the unit {unit} is a {described.kind}")
    key = described.keys.get(table)
    if key is None:
        tables = ", ".join(name for name, column in described.keys.items() if column)
        raise NotFound(f"the unit {unit} does not cover the table {table!r}; it covers: {tables}")
    condition = f" WHERE {where}" if where else ""
    name = quote_name(key)
    # The kernel parses and checks this text like any other query.
    return f"SELECT {name}, COUNT(*) AS rows_of_unit FROM {quote_name(table)}{condition} GROUP BY {name}"  # noqa: S608
