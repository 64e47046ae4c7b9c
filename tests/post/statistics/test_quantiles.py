"""Quantiles, distributions and histograms: exact at a huge epsilon, with intervals and bands that cover."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import duckdb
import numpy as np
import pytest

from dither.errors import InvalidParameter, Unsupported
from dither.post.estimate.quantiles import estimate_quantile
from dither.post.noise import ScaledNoise
from dither.post.query.bins import bins_for, make_bins
from dither.post.session import Session
from dither.post.statistics.consistency import Margin, agree
from dither.post.statistics.grid import FittedTree, draw_noise, make_tree, simulate_errors
from dither.post.statistics.quantiles import (
    interval_share,
    leaves_for,
    level_intervals,
    public_edges,
    simultaneous_band,
    smooth,
)
from dither.schema import Number

SALARY = Number(Fraction(0), Fraction(300_000), Fraction(1))


@pytest.mark.parametrize(("most", "levels"), [(30, 1), (1000, 2), (4096, 3)])
def test_a_tree_has_levels_whose_cells_divide_evenly(most: int, levels: int) -> None:
    tree = make_tree(SALARY, most)
    assert len(tree.levels) == levels and tree.leaves >= tree.grid.size
    for wide, narrow in pairwise(tree.levels):
        factor = wide.merged // narrow.merged
        assert wide.merged == factor * narrow.merged
        assert wide.low_ends().tolist() == narrow.low_ends()[::factor].tolist()


def test_quantiles_equal_the_truth_at_a_huge_epsilon(session: Session, truth: duckdb.DuckDBPyConnection) -> None:
    found = session.quantiles("users", "age", [0.1, 0.5, 0.9], epsilon=1000)
    for row in found.to_dicts():
        level = row["level"]
        exact = truth.sql(f"SELECT quantile_disc(age, {level}) FROM users").fetchall()[0]
        assert abs(row["age"] - exact[0]) <= 1
        assert row["age_low"] <= exact[0] <= row["age_high"]


@pytest.mark.tier("test")
def test_intervals_of_quantiles_cover(session: Session, truth: duckdb.DuckDBPyConnection) -> None:
    """60 draws at 95%: at least 42 cover, or a false alarm of 1e-9."""
    row = truth.sql("SELECT quantile_disc(salary, 0.5) FROM users").fetchall()[0]

    found = [session.quantiles("users", "salary", 0.5, epsilon=2).to_dicts()[0] for _ in range(60)]
    assert sum(each["salary_low"] <= row[0] <= each["salary_high"] for each in found) >= 42
    assert np.median([each["salary_high"] - each["salary_low"] for each in found]) < 150_000


# --- intervals of many tables, with noise of the tree drawn here ---------------------------------------------------

LEVELS = [0.1, 0.25, 0.5, 0.75, 0.9]
ROWS, DRAWS = 20_000, 200


def made_up(kind: str) -> np.ndarray:
    random = np.random.default_rng(7)
    match kind:
        case "lognormal":
            return np.rint(random.lognormal(10.5, 0.8, ROWS))
        case "bimodal":
            return np.where(random.random(ROWS) < 0.5, random.integers(1000, 1200, ROWS), 90_000)
        case "discrete":
            return random.choice([0, 1000, 5000, 20_000, 50_000], ROWS, p=[0.3, 0.3, 0.2, 0.1, 0.1])
        case "signed":
            return np.rint(random.normal(0, 3000, ROWS))
        case _:
            return 1_700_000_000 + random.integers(0, 30_000_000, ROWS)


def intervals(kind: str, low: int, high: int, draws: int) -> tuple[np.ndarray, np.ndarray]:
    """Return how often the intervals of each level contain the quantile, and their median half-widths in ranks."""
    values, share = np.sort(np.clip(made_up(kind), low, high)), float(interval_share(ROWS))
    tree = make_tree(Number(Fraction(low), Fraction(high), Fraction(1)), leaves_for(ROWS * share))
    noise, random = ScaledNoise("laplace", len(tree.digits) / share), np.random.default_rng(11)
    names = tuple(f"digit {depth}" for depth in range(len(tree.digits)))
    exact = [np.diff(np.append(np.searchsorted(values, level.low_ends()), ROWS)) for level in tree.levels]
    errors = simulate_errors(tree, (noise,) * len(exact))
    true = values[[math.ceil(level * ROWS) - 1 for level in LEVELS]]
    covered, halves = np.zeros(len(LEVELS)), []
    for _ in range(draws):
        margins = []
        for depth, counts in enumerate(exact, 1):
            padded = np.zeros(math.prod(tree.digits[:depth]))
            padded[: len(counts)] = counts + draw_noise(noise, (len(counts),), random)
            margins.append(Margin(names[:depth], padded.reshape(tree.digits[:depth]), noise.variance))
        cells = agree(dict(zip(names, tree.digits, strict=True)), margins).cells.ravel()[: tree.grid.size]
        settings: Any = SimpleNamespace(settings=SimpleNamespace(confidence=0.95))
        lows, highs = level_intervals(FittedTree(tree, cells, errors, True), LEVELS, settings, False)
        covered += (lows <= true) & (true <= highs)
        halves.append((np.searchsorted(values, highs, "right") - np.searchsorted(values, lows)) / 2)
    return covered, np.median(halves, axis=0)


@pytest.mark.tier("test")
@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [
        ("lognormal", 0, 300_000),
        ("lognormal", 0, 10_000_000),
        ("bimodal", 0, 10_000_000),
        ("discrete", 0, 10_000_000),
        ("signed", -1_000_000, 1_000_000),
        ("far", 1_600_000_000, 1_800_000_000),
    ],
)
def test_intervals_cover_for_narrow_and_wide_ranges(kind: str, low: int, high: int) -> None:
    """200 draws at 95%: each level covers in at least 172, or a false alarm of 1e-6."""
    covered, _ = intervals(kind, low, high, DRAWS)
    assert covered.min() >= 172


def test_widening_a_declared_range_a_hundredfold_hardly_widens_an_interval() -> None:
    _, honest = intervals("lognormal", 0, 300_000, 8)
    _, wide = intervals("lognormal", 0, 30_000_000, 8)
    assert np.all(wide <= 1.6 * honest + 20)
    assert np.all(wide <= 300)


def test_intervals_of_sql_cover_and_are_narrow_for_a_wide_range() -> None:
    """200 draws at 95%: at least 172 cover, or a false alarm of 1e-6."""
    values, random = np.sort(made_up("lognormal")), np.random.default_rng(3)
    bins = make_bins(Number(Fraction(0), Fraction(10_000_000), Fraction(1)), bins_for(ROWS))
    exact, noise = np.diff(np.append(np.searchsorted(values, bins.low), ROWS)), ScaledNoise("laplace", 1.0)
    counts = exact + draw_noise(noise, (DRAWS, len(exact)), random)
    for level in LEVELS:
        found = estimate_quantile(counts, noise, bins, Fraction(str(level)), 0.95)
        true = values[math.ceil(level * ROWS) - 1]
        assert np.sum((found.low <= true) & (true <= found.high)) >= 172
        assert np.median(found.high - found.low) < 0.06 * true


def test_the_share_of_intervals_falls_with_the_rows() -> None:
    shares = [interval_share(rows) for rows in (0, 2_000, 20_000, 100_000, 10_000_000)]
    assert shares == sorted(shares, reverse=True) and shares[0] == Fraction(1, 2) and shares[-1] == Fraction(1, 40)
    assert [leaves_for(rows) for rows in (100, 1_000, 5_000, 10_000)] == [256, 1024, 4096, 8000]


@pytest.mark.tier("test")
def test_sampling_error_widens_intervals(session: Session) -> None:
    plain = session.quantiles("users", "salary", 0.5, epsilon=100).to_dicts()[0]
    wide = session.quantiles("users", "salary", 0.5, epsilon=100, population=True)
    row = wide.to_dicts()[0]
    assert row["salary_high"] - row["salary_low"] > plain["salary_high"] - plain["salary_low"]
    assert any("sampling error" in note for note in wide.notes)


@pytest.mark.tier("test")
def test_the_band_contains_the_whole_function(session: Session, truth: duckdb.DuckDBPyConnection) -> None:
    """40 draws at 95%: at least 24 contain all of it, or a false alarm of 1e-9."""
    values = np.sort([age for (age,) in truth.sql("SELECT age FROM users").fetchall()])
    inside = 0
    for _ in range(40):
        found = session.distribution("users", "age", epsilon=2)
        exact = np.searchsorted(values, found.values, side="right") / len(values)
        estimate = found.columns[-1].estimate
        inside += bool(np.all((estimate.low <= exact + 1e-9) & (exact - 1e-9 <= estimate.high)))
    assert inside >= 24


def test_a_pointwise_band_would_not_contain_it() -> None:
    """A planted fault: 1.96 standard errors at every point miss the function somewhere far more often than in 5%."""
    random, tree = np.random.default_rng(1), make_tree(SALARY, 1000)
    noise, sizes = ScaledNoise("gaussian", 5.0), dict(zip("ab", tree.digits, strict=True))

    def errors(draws: int) -> np.ndarray:
        levels = [("a",), ("a", "b")]
        margins = [
            Margin(("draw", *keys), draw_noise(noise, (draws, *(sizes[k] for k in keys)), random), noise.variance)
            for keys in levels
        ]
        return agree({"draw": draws, **sizes}, margins).cells.reshape(draws, -1)[:, : tree.grid.size]

    fitted = FittedTree(tree, np.full(tree.grid.size, 10.0), errors(512), laplace=False)
    share, std, low, high = simultaneous_band(fitted, 0.95, population=False)
    truly = errors(400)
    total = fitted.total
    off = np.abs((np.cumsum(truly, axis=1) - share * truly.sum(axis=1, keepdims=True)) / total)
    simultaneous, pointwise = (float(np.mean(np.all(off <= w + 1e-12, axis=1))) for w in (high - share, 1.96 * std))
    assert simultaneous > 0.85 and pointwise < 0.6
    assert np.all(low <= share)


def test_a_distribution_can_be_asked_both_ways(session: Session) -> None:
    found = session.distribution("users", "age", epsilon=1000)
    share, low, high = found.at(40)
    assert low <= share <= high and 0.3 < share < 0.7
    value, first, last = found.quantile(0.5)
    assert first <= value <= last and 35 < value < 48
    assert found.at(0) == (0.0, 0.0, 0.0)
    assert "50% |" in repr(found)


def test_smoothing_never_falls() -> None:
    assert np.all(np.diff(smooth(np.array([0.0, 0.3, 0.2, 0.5, 0.4, 1.0]))) >= 0)


@pytest.mark.parametrize("bins", [5, [20, 30, 40, 50], "private"])
def test_histograms_equal_the_truth_at_a_huge_epsilon(
    session: Session, truth: duckdb.DuckDBPyConnection, bins: object
) -> None:
    found = session.histogram("users", "age", bins=bins, most=5, epsilon=1000)  # type: ignore[arg-type]
    assert sum(row["n"] for row in found.to_dicts()) == pytest.approx(400, abs=1e-6)
    for row in found.to_dicts():
        last = row["to"] == found.edges[-1]
        where = f"age >= {row['from']} AND age {'<=' if last else '<'} {row['to']}"
        exact = truth.sql(f"SELECT COUNT(*) FROM users WHERE {where}").fetchall()[0]
        assert row["n"] == pytest.approx(exact[0], abs=1e-6)


def test_private_edges_follow_the_rows(session: Session) -> None:
    found = session.histogram("users", "salary", bins="private", most=4, epsilon=500)
    counts = [row["n"] for row in found.to_dicts()]
    assert len(counts) == 4 and max(counts) - min(counts) < 30


def test_units_with_many_rows_have_quantiles_too(session: Session, truth: duckdb.DuckDBPyConnection) -> None:
    found = session.quantiles("actions", "seconds", 0.5, epsilon=500)
    exact = truth.sql("SELECT quantile_disc(seconds, 0.5) FROM actions").fetchall()[0]
    assert abs(found.to_dicts()[0]["seconds"] - exact[0]) <= 20
    assert any("contribution bounds chosen privately" in note for note in found.notes)


@pytest.mark.parametrize("level", [0, 1, 1.5, []])
def test_levels_are_checked(blind: Session, level: object) -> None:
    with pytest.raises(InvalidParameter, match=r"between 0 and 1|a list of 1 to 10,000 values"):
        blind.quantiles("users", "age", level, epsilon=1)


def test_refusals(blind: Session) -> None:
    with pytest.raises(Unsupported, match="needs a number"):
        blind.quantiles("users", "country", epsilon=1)
    with pytest.raises(InvalidParameter, match="no edge lies inside"):
        blind.histogram("users", "age", bins=[1000], epsilon=1)
    with pytest.raises(InvalidParameter, match="'private'"):
        blind.histogram("users", "age", bins="secret", epsilon=1)  # type: ignore[arg-type]
    assert public_edges(SALARY, 3) == (100_001, 200_002)


def test_quotes_are_free(blind: Session) -> None:
    for quote in (
        blind.quantiles.quote("users", "age", epsilon=1),
        blind.distribution.quote("users", "age", epsilon=1),
        blind.histogram.quote("users", "age", epsilon=1),
        blind.histogram.quote("users", "age", bins="private", epsilon=1),
    ):
        assert quote.expected[0].half_width > 0


# --- points alone --------------------------------------------------------------------------------------------------


def test_points_alone_take_the_whole_loss_and_equal_the_truth(
    session: Session, truth: duckdb.DuckDBPyConnection
) -> None:
    found = session.quantiles("users", "age", [0.1, 0.5, 0.9], intervals=False, epsilon=1000)
    assert [list(row) for row in found.to_dicts()] == [["level", "age"]] * 3
    assert [measured.mechanism.name for release in found.releases for measured in release.parts] == [
        "noisy_max_quantiles"
    ]
    for row in found.to_dicts():
        exact = truth.sql(f"SELECT quantile_disc(age, {row['level']}) FROM users").fetchall()[0]
        assert abs(row["age"] - exact[0]) <= 1


@pytest.mark.tier("test")
def test_the_rank_of_a_point_is_off_by_no_more_than_quoted(session: Session, truth: duckdb.DuckDBPyConnection) -> None:
    """The quoted bound fails for at most 1 in 20 of 60 draws, or 11 with a probability below 1e-3."""
    quoted = session.quantiles.quote("users", "salary", [0.25, 0.5], intervals=False, epsilon=1).expected[0]
    values = np.sort([row[0] for row in truth.sql("SELECT salary FROM users WHERE salary IS NOT NULL").fetchall()])
    far = 0
    for _ in range(60):
        for row in session.quantiles("users", "salary", [0.25, 0.5], intervals=False, epsilon=1).to_dicts():
            below, through = (np.searchsorted(values, row["salary"], side=side) for side in ("left", "right"))
            wanted = row["level"] * len(values)
            far += not below - quoted.half_width <= wanted <= through + quoted.half_width
    assert far <= 11


def test_points_alone_have_no_sampling_error(blind: Session) -> None:
    with pytest.raises(InvalidParameter, match="intervals=True"):
        blind.quantiles.quote("users", "age", intervals=False, population=True, epsilon=1)
