"""Synthetic data and histograms of numbers whose declared range is far too wide, and counts that bounds cut."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from dither.plan.context import Context
from dither.plan.expressions.core import ColumnRef
from dither.post.session import Session
from dither.post.statistics.joint import Pairs
from dither.post.statistics.marginals import Attribute
from dither.post.statistics.number_bins import split_near_zero, trim_bins
from dither.post.statistics.synthesis import draw_values
from dither.post.statistics.synthesis_report import coarse_note
from post.bare import BareKernel
from post.written_world import opened_engines

pytestmark = pytest.mark.tier("test")

DESCRIPTION = """
version: 1
name: savers
tables:
  savers:
    private: true
    source: {kind: parquet, path: savers.parquet}
    unique: id
    columns:
      id: {type: identifier, kind: integer}
      pay: {type: decimal, min: 0, max: 10000, step: 0.001}
      wealth: {type: decimal, min: -100000, max: 100000, step: 0.001}
      owner: {type: boolean}
  bought:
    private: true
    source: {kind: parquet, path: bought.parquet}
    columns:
      person: {type: identifier, kind: integer}
      discs: {type: integer, min: 0, max: 10000}
units:
  person: {kind: user, keys: {savers: id, bought: person}}
budgets:
  - {unit: person, kind: pure, epsilon: 1000}
"""
PEOPLE = 4000


@pytest.fixture(scope="module")
def data() -> dict[str, np.ndarray]:
    random = np.random.default_rng(4)
    pay = np.round(random.lognormal(3.5, 0.6, PEOPLE), 3)
    wealth = np.round(np.where(random.random(PEOPLE) < 0.3, -1, 1) * random.lognormal(2, 1.2, PEOPLE), 3)
    rows = np.minimum(random.zipf(1.8, PEOPLE), 300)
    return {"pay": pay, "wealth": wealth, "rows": rows, "discs": random.geometric(0.5, rows.sum())}


@pytest.fixture(scope="module")
def savers(tmp_path_factory: pytest.TempPathFactory, data: dict[str, np.ndarray]) -> Iterator[Session]:
    people, wealth = np.arange(PEOPLE), data["wealth"]
    tables = {
        "savers": {"id": people, "pay": data["pay"], "wealth": wealth, "owner": wealth > 10},
        "bought": {"person": np.repeat(people, data["rows"]), "discs": data["discs"]},
    }
    with opened_engines(tmp_path_factory) as opened:
        engine = opened(DESCRIPTION, tables)
        yield Session.from_kernel(BareKernel(Context(engine.ctx.dataset), engine.vector), "analyst")


def test_bins_grow_with_the_distance_from_zero() -> None:
    edges = split_near_zero([Fraction(-90), Fraction(0), Fraction(90)], Fraction(1))
    assert list(map(int, edges)) == [-90, -30, -10, -3, -1, 0, 1, 3, 10, 30, 90]
    far = tuple(map(Fraction, (1900, 1950, 2000, 2050)))
    assert split_near_zero(far, Fraction(1)) == far


def pairs_of(counts: list[float]) -> Pairs:
    return {(0, 1): np.array([counts, counts]).T / 2}


def test_empty_ends_of_a_wide_range_are_left_out() -> None:
    edges = tuple(map(Fraction, (0, 1, 2, 4, 8, 16, 32)))
    wide, other = Attribute("a", ColumnRef("a"), (), edges), Attribute("b", ColumnRef("b"), (False, True))
    noisy = pairs_of([2.0, 300.0, 0.0, 200.0, 3.0, -4.0])
    tables, (kept, same) = trim_bins(noisy, [wide, other], [0], 1.0)
    assert list(map(int, kept.edges)) == [1, 2, 4, 8] and tables[0, 1].shape == (3, 2) and same is other
    untouched, _ = trim_bins(noisy, [wide, other], [], 1.0)
    assert untouched[0, 1].shape == (6, 2)
    nothing, (two, _) = trim_bins(pairs_of([0.0, 1.0, 0.0, 0.0, 0.0, 0.0]), [wide, other], [0], 1.0)
    assert nothing[0, 1].shape == (2, 2) and len(two.edges) == 3


def test_many_bins_with_few_rows_each_are_kept() -> None:
    """None stands out from noise of 10, all together do."""
    edges = tuple(map(Fraction, range(0, 101, 5)))
    even, other = Attribute("a", ColumnRef("a"), (), edges), Attribute("b", ColumnRef("b"), (False, True))
    tables, _ = trim_bins(pairs_of([25.0] * 20), [even, other], [0], 10.0)
    assert tables[0, 1].shape[0] == 20


def test_values_in_a_wide_last_bin_are_near_its_inner_end() -> None:
    edges = tuple(map(Fraction, (0, 100, 200, 10_000)))
    values = Attribute("a", ColumnRef("a"), (), edges)
    drawn = np.array(draw_values(values, np.array([0.9, 0.09, 0.01]), np.full(1000, 2), np.random.default_rng(1)))
    assert drawn.min() >= 200 and drawn.max() < 10_000 and np.median(drawn) < 300
    below = Attribute("a", ColumnRef("a"), (), tuple(-edge for edge in edges[::-1]))
    mirrored = np.array(draw_values(below, np.array([0.01, 0.09, 0.9]), np.zeros(1000, int), np.random.default_rng(1)))
    assert mirrored.max() < -200 <= 0 and mirrored.min() >= -10_000 and np.median(mirrored) > -300


def test_one_bin_with_most_rows_is_a_warning() -> None:
    values = Attribute("pay", ColumnRef("pay"), (), tuple(map(Fraction, (0, 1000, 2000, 3000))))
    (warning,) = coarse_note(values, np.array([0.98, 0.01, 0.01]))
    assert "98% of the rows have pay in one bin, from 0 to 1000" in warning and "made up" in warning
    assert "two bins" in coarse_note(values, np.array([0.5, 0.45, 0.05]))[0]
    assert coarse_note(values, np.array([0.4, 0.3, 0.3])) == []


def test_synthetic_numbers_of_wide_ranges_are_those_of_the_data(savers: Session, data: dict[str, np.ndarray]) -> None:
    made = savers.synthesize("savers", ["pay", "wealth", "owner"], epsilon=2)
    for name in ("pay", "wealth"):
        drawn, exact = np.array(made.rows.column(name).to_pylist()), data[name]
        spread = np.quantile(exact, 0.9) - np.quantile(exact, 0.1)
        for level in (0.1, 0.25, 0.5, 0.75, 0.9):
            assert abs(np.quantile(drawn, level) - np.quantile(exact, level)) < 0.2 * spread
        assert abs(drawn.mean() - exact.mean()) < 0.3 * spread
    assert any("synthetic values of pay lie from" in note for note in made.notes)


def test_synthetic_data_of_noise_alone_are_made(savers: Session) -> None:
    made = savers.synthesize("savers", ["pay", "wealth"], epsilon=0.0001)
    assert made.rows.column_names == ["pay", "wealth"] and made.rows.num_rows >= 1


def test_given_bins_stay_and_are_warned_of(savers: Session) -> None:
    made = savers.synthesize("savers", ["pay", "owner"], bins={"pay": 8}, epsilon=2)
    assert made.attributes[0].size == 8
    assert any(line.startswith("warning:") and "pay" in line for line in made.summary)
    assert "warning: " in str(made)


@pytest.mark.tier("test")
@pytest.mark.parametrize("bins", [[1, 2, 3, 4, 6], "private"])
def test_intervals_of_counts_cover_what_bounds_removed(savers: Session, data: dict[str, np.ndarray], bins: Any) -> None:
    """12 histograms at 95%: at least 80% of all bins are covered; a tenth were when nothing was added back."""
    hits = []
    for _ in range(12):
        found = savers.histogram("bought", "discs", bins=bins, most=6, epsilon=1)
        counts = np.histogram(data["discs"], [*found.edges[:-1], 20_000])[0]
        hits += [row["n_low"] <= n <= row["n_high"] for row, n in zip(found.to_dicts(), counts, strict=True)]
    assert np.mean(hits) >= 0.8
    assert any("what bounds removed" in note for note in found.notes)


def test_a_histogram_of_one_full_bin_suggests_private_ones(savers: Session) -> None:
    assert any("bins='private'" in note for note in savers.histogram("savers", "pay", epsilon=2).notes)
    given = savers.histogram("savers", "pay", bins=[5000], epsilon=2)
    assert not any("bins='private'" in note for note in given.notes)
