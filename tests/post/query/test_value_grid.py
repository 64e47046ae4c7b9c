"""Cells that are narrow near zero: their expression on DuckDB, their number, and what a range far too wide costs."""

from __future__ import annotations

from fractions import Fraction

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from sqlglot import exp

from dither.plan import expressions as expr
from dither.plan.domains import cardinality
from dither.plan.expressions.core import domain_of
from dither.plan.sql.dialect import Dialect
from dither.plan.sql.scope import Scope
from dither.post.query.bins import bins_for, make_bins, make_equal_bins
from dither.post.query.value_grid import ValueGrid, cell_key, make_equal_grid, make_grid
from dither.schema import Number


def declared(low: object, high: object, step: object = 1) -> Number:
    return Number(*(Fraction(str(end)) for end in (low, high, step)))


RANGES = [
    declared(0, 10_000_000),
    declared(-10_000_000, 10_000_000),
    declared(-100, 10_000_000),
    declared(-1_000_000, -3, 5),
    declared(5, 1_000_000, 5),
    declared("-5000.25", "1000000.5", "0.25"),
    declared(-(1 << 50), 1 << 50),
    declared(1_600_000_000, 1_800_000_000),
    declared(1900, 2100),
    declared(-7, -7),
]


def keys_of(grid: ValueGrid, domain: Number, steps: np.ndarray) -> list[int]:
    """Compute the keys of values on DuckDB."""
    scope = Scope({"x": domain}, {"x": exp.column("x")}, Dialect())
    sql = cell_key(expr.ColumnRef("x"), grid).sql(scope).sql(dialect="duckdb")
    table = duckdb.from_arrow(pa.table({"x": steps, "place": np.arange(len(steps))}))
    return [key for key, _ in table.query("t", f"SELECT {sql} AS key, place FROM t ORDER BY place").fetchall()]


@pytest.mark.parametrize("domain", RANGES, ids=str)
@pytest.mark.parametrize("most", [48, 64, 1000, 4096])
@pytest.mark.parametrize("merged", [1, 16])
def test_keys_are_the_cells_also_at_borders_and_ends(domain: Number, most: int, merged: int) -> None:
    grid = make_grid(domain, most).coarser(merged)
    lows = np.array([round(float(Fraction(value) / domain.step)) for value in grid.low_ends()])
    first, last = round(domain.lo / domain.step), round(domain.hi / domain.step)
    near = np.unique(np.clip(np.concatenate([lows - 1, lows, lows + 1, [first, last]]), first, last))
    by_hand = np.searchsorted(lows, near, side="right") - 1
    keys = np.array(keys_of(grid, domain, near))
    assert np.array_equal(np.searchsorted(np.unique(keys), keys), by_hand)
    scope = Scope({"x": domain}, {"x": exp.column("x")}, Dialect())
    assert cardinality(domain_of(cell_key(expr.ColumnRef("x"), grid), scope)) == grid.size


@pytest.mark.parametrize("domain", RANGES, ids=str)
def test_cells_cover_the_range_and_are_at_most_twice_as_wide_as_equal_ones(domain: Number) -> None:
    for most in (256, 1000, 4096):
        grid, equal = make_grid(domain, most), make_equal_grid(domain, most)
        lows, highs = grid.low_ends(), grid.high_ends()
        assert grid.size <= most and lows[0] == domain.lo and highs[-1] == domain.hi
        assert np.allclose(lows[1:] - highs[:-1], float(domain.step)) and np.all(highs >= lows)
        assert np.max(highs - lows) <= 2 * np.max(equal.high_ends() - equal.low_ends()) + float(domain.step)


@pytest.mark.parametrize("most", [2, 3, 7, 24, 48, 64, 128])
@pytest.mark.parametrize("domain", RANGES, ids=str)
def test_few_cells_cover_the_range(domain: Number, most: int) -> None:
    grid = make_grid(domain, most)
    lows, highs = grid.low_ends(), grid.high_ends()
    assert grid.size <= most and lows[0] == domain.lo and highs[-1] == domain.hi
    assert np.allclose(lows[1:] - highs[:-1], float(domain.step)) and np.all(highs >= lows)


def test_few_cells_are_narrow_near_zero_too() -> None:
    """The named bug: 64 cells from -1,000 to 100,000 were equal ones of 1,579, with all delays of flights in one."""
    for most in (48, 64, 96, 128):
        grid = make_grid(declared(-1_000, 100_000), most)
        widths = grid.high_ends() - grid.low_ends() + 1
        for value, widest in ((-5, 4), (0, 1), (30, 16), (-60, 16)):
            assert widths[np.searchsorted(grid.low_ends(), value, side="right") - 1] <= widest


def test_values_get_a_cell_each_where_they_fit() -> None:
    grid = make_grid(declared(-40, 59), 100)
    assert grid.low_ends().tolist() == grid.high_ends().tolist() == list(range(-40, 60))


def test_a_range_a_hundred_times_too_wide_hardly_widens_cells_near_the_values() -> None:
    def width_at(value: float, most: int, high: int) -> float:
        grid = make_grid(declared(0, high), most)
        place = np.searchsorted(grid.low_ends(), value, side="right") - 1
        return float(grid.high_ends()[place] - grid.low_ends()[place] + 1)

    for value in (3_000, 36_000, 90_000):
        assert width_at(value, 4096, 10_000_000) <= 10.0 * width_at(value, 4096, 100_000)
        assert width_at(value, 4096, 10_000_000) <= 0.02 * value
        assert width_at(value, 4096, 1_000_000_000) <= 0.02 * value


@pytest.mark.parametrize("rows", [0, 5_000, 20_000, 1_000_000])
def test_bins_are_hardly_wider_than_equal_ones_and_narrow_near_zero(rows: int) -> None:
    domain = declared(0, 10_000_000)
    bins, equal = make_bins(domain, bins_for(rows)), make_equal_bins(domain)
    assert np.max(bins.high - bins.low) <= (1 if rows else 2) * np.max(equal.high - equal.low) + 2
    place = np.searchsorted(bins.low, 36_000, side="right") - 1
    assert bins.high[place] - bins.low[place] < 36_000 / 4


def test_moments_have_equal_bins_since_their_zero_means_nothing() -> None:
    bins = make_equal_bins(declared(0, 1_000_000_000))
    assert len(np.unique((bins.high - bins.low)[:-1])) == 1 and len(bins.low) <= 256
    assert len(make_equal_bins(declared(0, 400)).low) == 401
    assert len(make_equal_bins(declared(0, 400), 48).low) <= 48
