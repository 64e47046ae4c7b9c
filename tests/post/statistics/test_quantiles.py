"""Quantiles, distributions and histograms: exact at a huge epsilon, with intervals and bands that cover."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import duckdb
import numpy as np
import pytest

from dither.errors import InvalidParameter, Unsupported
from dither.post.noise import ScaledNoise
from dither.post.session import Session
from dither.post.statistics.consistency import Margin, agree
from dither.post.statistics.grid import FittedTree, draw_noise, make_tree
from dither.post.statistics.quantiles import public_edges, simultaneous_band, smooth
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
