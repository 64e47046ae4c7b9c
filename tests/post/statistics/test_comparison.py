"""Tests that allow for noise keep their level where naive ones do not, and find what is there."""

from __future__ import annotations

import math
from math import comb
from typing import Any

import numpy as np
import pytest
from scipy import stats

from dither.errors import InvalidParameter, Unsupported
from dither.post.noise import ScaledNoise
from dither.post.session import Session
from dither.post.statistics import comparison
from dither.post.statistics.comparison import (
    GroupMeans,
    group_means,
    population_note,
    tail_share,
    trend_test,
    weighted_spread,
)
from dither.post.statistics.grid import draw_noise
from dither.post.statistics.independence import chi_squared_test, noisy_chi_squared
from dither.post.statistics.source_rows import read_rows

REDRAWS = 400
NOISE = ScaledNoise("laplace", 8.0)


def most_rejections(redraws: int, level: float = 0.05, alarm: float = 1e-9) -> int:
    """The number of rejections that a test of this level exceeds with a probability below `alarm`."""
    tail, k = 1.0, 0
    while tail > alarm:
        tail -= comb(redraws, k) * level**k * (1 - level) ** (redraws - k)
        k += 1
    return k


def null_tables(random: np.random.Generator, redraws: int, size: int = 300) -> np.ndarray:
    cells = np.outer([0.5, 0.3, 0.2], [0.6, 0.4]).ravel()
    tables = random.multinomial(size, cells, redraws).astype(float)
    return (tables + draw_noise(NOISE, tables.shape, random)).reshape(redraws, 3, 2)


def test_the_chi_squared_test_keeps_its_level_and_a_naive_one_does_not() -> None:
    """400 null tables; a false alarm has probability 1e-9. The naive test rejects nearly half of them."""
    tables = null_tables(np.random.default_rng(1), REDRAWS)
    aware = [chi_squared_test(table, NOISE, 499, seed).p_value for seed, table in enumerate(tables)]
    assert sum(p <= 0.05 for p in aware) <= most_rejections(REDRAWS)
    naive = stats.chi2.sf(noisy_chi_squared(tables, 0.0), df=2)
    assert np.mean(naive <= 0.05) > 0.3


def test_the_chi_squared_test_finds_dependence() -> None:
    random = np.random.default_rng(2)
    cells = np.array([0.4, 0.1, 0.1, 0.2, 0.1, 0.1])
    tables = random.multinomial(600, cells, 60).astype(float)
    noisy = (tables + draw_noise(NOISE, tables.shape, random)).reshape(60, 3, 2)
    found = [chi_squared_test(table, NOISE, 499, seed) for seed, table in enumerate(noisy)]
    assert np.mean([each.p_value <= 0.05 for each in found]) > 0.9
    assert 0.3 < np.mean([each.cramers_v for each in found]) < 0.6


def test_an_empty_table_has_no_evidence() -> None:
    assert chi_squared_test(np.full((2, 2), -1.0), NOISE).p_value == 1.0


class FakeAnswer(dict[str, Any]):
    """Columns by name, as group_means reads them."""


def fake_answer(random: np.random.Generator, means: np.ndarray, size: int, noise: float) -> Any:
    """The estimates that noisy counts and sums of normal values would have."""
    rows = random.normal(means, 1.0, (size, len(means)))
    kind = ScaledNoise("laplace", 1000.0)
    drawn = draw_noise(kind, (len(means),), random) / kind.std * noise
    columns = {
        "n": (np.full(len(means), float(size)), np.full(len(means), 1.0)),
        "mean": (rows.mean(axis=0) + drawn / size, np.full(len(means), noise / size)),
        "variance": (rows.var(axis=0), np.full(len(means), 0.1)),
    }
    made = {}
    for name, (value, error) in columns.items():
        estimate = type("E", (), {"value": value, "std_error": error})()
        made[name] = type("C", (), {"estimate": estimate, "noise": error})()
    return FakeAnswer(made)


def test_comparisons_keep_their_level_and_naive_ones_do_not() -> None:
    """300 draws of three equal means under noise of twice the sampling error; a false alarm has probability 1e-9."""
    random, size, noise = np.random.default_rng(3), 100, 20.0
    aware, naive = 0, 0
    for _ in range(300):
        groups = group_means(fake_answer(random, np.zeros(3), size, noise), "abc", 20.0, "laplace")
        weights = 1 / groups.errors.var(axis=0)
        found = float(weighted_spread(groups.means[None], weights)[0])
        aware += tail_share(weighted_spread(groups.errors, weights), found) <= 0.05
        blind = float(weighted_spread(groups.means[None], size / groups.variances)[0])
        naive += bool(stats.chi2.sf(blind, df=2) <= 0.05)
    assert aware <= most_rejections(300)
    assert naive > 150


@pytest.mark.parametrize("strength", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("std", [0.0, 40.0])
def test_intervals_of_the_strength_cover(strength: float, std: float) -> None:
    """200 tables at 95%: at least 172 cover, or a false alarm of 1e-6; noise as large as a cell's square root or more.

    Regression test: the strength was a number without an interval, 1.00 beside a p-value of 0.247.
    """
    pattern = np.array([[1, -1, 0], [-1, 1, 0]]) * strength / 6 * math.sqrt(6 / 4)
    random, noise = np.random.default_rng(8), ScaledNoise("gaussian", max(std, 1e-9))
    tables = random.multinomial(3000, (np.full((2, 3), 1 / 6) + pattern).ravel(), 200).reshape(-1, 2, 3)
    found = [chi_squared_test(table + random.normal(0, std, (2, 3)), noise, 399) for table in tables]
    covered = [each.interval[0] <= strength + 1e-9 and strength <= each.interval[1] for each in found]
    assert sum(covered) >= 172
    assert all(each.interval[0] <= each.cramers_v <= each.interval[1] for each in found if each.cramers_v >= 0)
    assert np.median([each.interval[1] - each.interval[0] for each in found]) < 0.4


def test_what_a_span_may_leave_out_widens_intervals_and_not_the_test() -> None:
    """Regression test: it counted as an error of each group, so that 1% of equal groups were rejected for 5%.

    200 draws from a fixed seed: about 20 are rejected at 10%, and hardly any with the errors of the intervals.
    """
    random, rejected = np.random.default_rng(9), 0
    for _ in range(200):
        answer = fake_answer(random, np.zeros(3), 100, 10.0)
        answer["mean"].estimate.std_error = np.full(3, 0.2)
        groups = group_means(answer, "abc", 20.0, "laplace")
        weights = 1 / groups.errors_within.var(axis=0)
        found = float(weighted_spread(groups.means[None], weights)[0])
        rejected += tail_share(weighted_spread(groups.errors_within, weights), found) <= 0.1
        assert (groups.std_errors > 0.2).all() and (groups.errors_within.std(axis=0) < 0.17).all()
    assert 4 <= rejected <= 30


def test_trends_are_found_with_their_sign() -> None:
    random = np.random.default_rng(4)
    groups = group_means(fake_answer(random, np.arange(4.0), 200, 5.0), "abcd", 20.0, "laplace")
    weights = 1 / groups.errors.var(axis=0)
    slope, _, p_value = trend_test(groups.means, (groups.errors, groups.errors), weights, np.arange(4.0), 0.95)
    assert slope[1] <= 1 <= slope[2] and p_value < 0.001
    assert trend_test(groups.means, (groups.errors, groups.errors), weights, np.ones(4), 0.95)[2] == 1.0


def test_sessions_compare_groups(session: Session) -> None:
    people = "SELECT gender, age, vip, CASE WHEN age > 40 THEN age + 20 ELSE age END AS old FROM users"
    same = session.compare(people, "age", "gender", epsilon=100)
    assert same.defined and same.p_value > 1e-4
    halves = session.compare("SELECT age > 40 AS late, age FROM users", "age", "late", epsilon=100)
    assert halves.difference is not None and 15 < halves.difference[1] < halves.difference[2] < 35
    assert halves.p_value < 0.001
    shares = session.compare("users", "vip", "gender", epsilon=100)
    assert all(0 <= row["mean"] <= 0.6 for row in shares.to_dicts())


@pytest.mark.parametrize("trend", [None, [0, 1]])
def test_a_session_tests_what_lies_within_the_span_and_its_intervals_allow_for_what_lies_beyond(
    session: Session, trend: list[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The named bug: tests with the errors of the intervals, which reject too seldom, or intervals with the others."""
    draws = np.random.default_rng(1).normal(size=(999, 2))

    def two_groups(*_: object) -> GroupMeans:
        sizes, sure = np.full(2, 1000.0), np.full(2, True)
        return GroupMeans(("a", "b"), sizes, np.array([0.0, 1.0]), np.ones(2), draws * 10, draws / 100, sure)

    monkeypatch.setattr(comparison, "group_means", two_groups)
    found = session.compare("SELECT age > 40 AS late, age FROM users", "age", "late", trend=trend, epsilon=1)
    interval = found.difference if trend is None else found.slope
    assert found.p_value < 0.01 and interval is not None
    assert interval[1] < -10 and interval[2] > 10


def test_sessions_test_trends(session: Session) -> None:
    found = session.compare(
        "SELECT FLOOR(age / 10) AS decade, age FROM users", "age", "decade", trend=True, epsilon=200
    )
    assert found.slope is not None and found.slope[1] < 10 < found.slope[2] + 2
    assert found.p_value < 0.001


def test_small_groups_are_left_out(session: Session) -> None:
    found = session.compare("users", "age", "country", epsilon="1/1000")
    assert not found.defined and found.p_value == 1.0
    assert any("noise hides their size" in note for note in found.notes)


def test_sessions_test_independence(session: Session) -> None:
    apart = session.independence("users", "country", "gender", epsilon=10)
    assert apart.p_value > 1e-4 and len(apart) == 18
    alike = session.independence("SELECT age > 40 AS late, age > 50 AS later FROM users", "late", "later", epsilon=10)
    assert alike.p_value < 0.01 and alike.cramers_v > 0.3


def test_refusals(blind: Session) -> None:
    with pytest.raises(Unsupported, match="neither a number"):
        blind.compare("users", "country", "gender", epsilon=1)
    with pytest.raises(InvalidParameter, match="needs a key that is a number"):
        blind.compare("users", "age", "gender", trend=True, epsilon=1)
    with pytest.raises(InvalidParameter, match="a score for each of the 3 groups"):
        blind.compare("users", "age", "gender", trend=[1, 2], epsilon=1)


def test_quotes_are_free(blind: Session) -> None:
    assert blind.compare.quote("users", "age", "gender", epsilon=1)["mean"].half_width > 0
    assert blind.independence.quote("users", "country", "gender", epsilon=1)["a cell"].half_width > 0


def test_rows_for_each_person_and_key_can_be_compared_and_watched(session: Session) -> None:
    """Regression: 'the limit rows has not been estimated yet', since labels were read before the bound was chosen."""
    each = "SELECT user_id, action, COUNT(*) AS n FROM actions GROUP BY user_id, action"
    found = session.compare(each, "n", "action", epsilon=10)
    assert len(found) == 6 and 0 <= found.p_value <= 1
    alerts = session.watch(f"SELECT action, SUM(n) AS n FROM ({each}) AS e GROUP BY action", above=10**9, epsilon=1)
    assert alerts.keys_above == ()


def test_rows_that_are_units_are_not_said_to_belong_to_one(blind: Session) -> None:
    row, user = (read_rows(blind, "actions", {"epsilon": 1, "unit": unit}).settings for unit in ("action", "user"))
    assert "rows of one" not in population_note(row)
    assert "rows of one user are treated as independent too" in population_note(user)
