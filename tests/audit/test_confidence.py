"""Exact inference: checked by enumeration, so there is nothing random and no false alarm in this file."""

from __future__ import annotations

from collections.abc import Callable
from math import exp, log, sqrt

import numpy as np
import pytest
from scipy import stats

from dither.audit import confidence as bounds
from dither.audit.blackbox import sequential
from dither.audit.claims import ceiling, delta, strength, tangent
from dither.audit.confidence import Counts
from dither.loss import ZCDP, Approximate, Loss, Pure, Renyi

RUNS = 10
CLAIMS: list[Loss] = [Pure(0), Pure(0.5), Pure(1.5), Approximate(0.5, 0.05)]


def rejection(claim: Loss, q: float, alpha: float, test: Callable[[Counts], float]) -> float:
    """The probability that a test of level alpha rejects a mechanism that lies exactly on the claim's boundary."""
    p = float(ceiling(claim, strength(claim))(np.array([q]))[0])
    first, second = (stats.binom.pmf(np.arange(RUNS + 1), RUNS, chance) for chance in (p, q))
    rejects = [(i, j) for i in range(RUNS + 1) for j in range(RUNS + 1) if test(Counts(i, RUNS, j, RUNS)) <= alpha]
    return float(sum(first[i] * second[j] for i, j in rejects))


def wald(claim: Loss) -> Callable[[Counts], float]:
    """A named bug: the normal approximation, which over-rejects on small samples."""

    def test(counts: Counts) -> float:
        p, q = counts.hits_a / RUNS, counts.hits_b / RUNS
        spread = sqrt((p * (1 - p) + exp(2 * strength(claim)) * q * (1 - q)) / RUNS) or 1e-9
        return float(stats.norm.sf((p - exp(strength(claim)) * q - delta(claim)) / spread))

    return test


@pytest.mark.tier("test")
@pytest.mark.parametrize("claim", CLAIMS, ids=str)
def test_p_values_are_valid_at_every_boundary_point(claim: Loss) -> None:
    limit = ceiling(claim, strength(claim))
    table = {(i, j): bounds.p_value(Counts(i, RUNS, j, RUNS), limit) for i in range(RUNS + 1) for j in range(RUNS + 1)}
    for q in (0.01, 0.1, 0.3, 0.5, 0.8):
        for alpha in (0.01, 0.05, 0.3):
            assert rejection(claim, q, alpha, lambda counts: table[counts.hits_a, counts.hits_b]) <= alpha


@pytest.mark.tier("test")
def test_levels_are_kept_and_nearly_reached_on_larger_samples() -> None:
    runs, alpha, epsilon = 80, 0.05, 0.4
    limit = ceiling(Pure(epsilon), epsilon)
    for q in (0.25, 0.45):
        total = 0.0
        for hits in range(runs + 1):
            weight = float(stats.binom.pmf(hits, runs, q))
            if weight < 1e-7:
                continue
            low, high = 0, runs + 1
            while low < high:
                middle = (low + high) // 2
                rejected = bounds.p_value(Counts(middle, runs, hits, runs), limit) <= alpha
                low, high = (low, middle) if rejected else (middle + 1, high)
            total += weight * float(stats.binom.sf(low - 1, runs, exp(epsilon) * q))
        assert 0.5 * alpha < total <= alpha


@pytest.mark.tier("test")
def test_p_values_are_valid_for_zcdp_claims() -> None:
    test_p_values_are_valid_at_every_boundary_point(ZCDP(0.1))


def test_the_normal_approximation_would_be_caught() -> None:
    worst = max(rejection(Pure(0.5), q, 0.05, wald(Pure(0.5))) for q in (0.01, 0.1, 0.3, 0.5))
    assert worst > 0.05


def fewest_that_refute(runs: tuple[int, int], hits_b: int, epsilon: float, alpha: float) -> int:
    """The fewest hits on the first input that refute, given those on the second; more than all runs if none."""
    low, high = 0, runs[0] + 1
    while low < high:
        middle = (low + high) // 2
        found = bounds.p_value(Counts(middle, runs[0], hits_b, runs[1], True), ceiling(Pure(epsilon), epsilon))
        low, high = (low, middle) if found <= alpha else (middle + 1, high)
    return low


@pytest.mark.tier("test")
@pytest.mark.parametrize(("runs", "chances"), [((2000, 2000), (5e-4, 4e-3)), ((500, 3000), (5e-4, 4e-3)),
                                               ((300, 300), (0.1, 0.3))], ids=str)  # fmt: skip
@pytest.mark.parametrize("epsilon", [0.0, 0.7])
def test_p_values_given_all_hits_are_valid(runs: tuple[int, int], chances: tuple[float, ...], epsilon: float) -> None:
    for alpha in (0.01, 0.05, 0.3):
        fewest = [fewest_that_refute(runs, hits, epsilon, alpha) for hits in range(min(runs[1], 150) + 1)]
        for q in chances:
            hits = stats.binom.pmf(np.arange(len(fewest)), runs[1], q)
            refutes = stats.binom.sf(np.array(fewest) - 1, runs[0], exp(epsilon) * q)
            assert float(hits @ refutes) <= alpha


def test_hits_given_their_total_have_fishers_noncentral_distribution() -> None:
    runs = (700, 400)
    for hits, epsilon in (((9, 2), 0.5), ((3, 0), 0.5), ((30, 11), 0.5), ((390, 20), 1.0)):
        limit = ceiling(Pure(epsilon), epsilon)
        most = stats.beta.isf(bounds.FLOOR_COST, hits[1] + 1, runs[1] - hits[1])
        allowed = exp(epsilon) * most
        odds = allowed * (1 - most) / (most * (1 - allowed))
        expected = stats.nchypergeom_fisher(sum(runs), runs[0], sum(hits), odds).sf(hits[0] - 1)
        found = bounds.p_value(Counts(hits[0], runs[0], hits[1], runs[1], True), limit)
        assert found == pytest.approx(expected + bounds.FLOOR_COST, rel=1e-9)


def test_few_hits_say_more_given_all_of_them() -> None:
    for hits, gain in (((19, 4), 1.8), ((100, 40), 1.05), ((400, 300), 1.06)):
        found = [
            bounds.epsilon_lower(Counts(hits[0], 5_000_000, hits[1], 5_000_000, rare), 0.0, 0.05)
            for rare in (False, True)
        ]
        assert found[1] > gain * found[0]
    assert bounds.epsilon_lower(Counts(5, 5_000_000, 0, 5_000_000, True), 0.0, 0.05) == pytest.approx(0.198, abs=0.001)
    assert bounds.epsilon_lower(Counts(100, 10_000, 0, 10_000, True), 0.01, 0.05) == 0  # at delta 0.01 that may be
    for hits in ((0, 0), (0, 9), (1, 1), (60, 100), (100, 100)):
        assert bounds.epsilon_lower(Counts(hits[0], 100, hits[1], 100, True), 0.0, 0.05) == 0


def test_it_is_sharper_than_two_clopper_pearson_bounds() -> None:
    for counts in (Counts(5250, 10_000, 4750, 10_000), Counts(60, 5000, 0, 5000), Counts(260, 50_000, 39, 50_000)):
        low = bounds.clopper_pearson(counts.hits_a, counts.runs_a, 0.05)[0]
        high = bounds.clopper_pearson(counts.hits_b, counts.runs_b, 0.05)[1]
        found = bounds.epsilon_lower(counts, 0.0, 0.05)
        assert log(low / high) < found < log(counts.hits_a / max(counts.hits_b, 1))


def test_clopper_pearson_agrees_with_scipy() -> None:
    for hits, runs in ((0, 50), (3, 50), (25, 50), (50, 50)):
        expected = stats.binomtest(hits, runs).proportion_ci(0.95, method="exact")
        assert bounds.clopper_pearson(hits, runs, 0.05) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_bounds_of_a_probability_are_right_where_scipys_inverse_is_not() -> None:
    """The named bug: with 999 hits, or 1000 runs without one, the inverse is far off."""
    for hits, runs in ((999, 10_089), (9090, 10_090), (999, 700_000_000), (1000, 10_089), (3, 1003), (0, 1000)):
        for tail in (0.005, 0.025, bounds.FLOOR_COST):
            low, high = bounds.clopper_pearson(hits, runs, 2 * tail)
            assert stats.binom.cdf(hits, runs, high) == pytest.approx(tail, rel=0.01)
            assert hits == 0 or stats.binom.sf(hits - 1, runs, low) == pytest.approx(tail, rel=0.01)


def test_tails_survive_underflow() -> None:
    p = np.array([1e-6])
    assert bounds._at_least(500_000, 1_000_000, p)[0] < -5e6
    assert bounds._at_most(10, 10_000_000, np.array([0.5]))[0] < -6e6


def test_no_hits_refute_nothing() -> None:
    assert bounds.epsilon_lower(Counts(0, 100, 0, 100), 0.0, 0.05) == 0
    assert bounds.epsilon_lower(Counts(50, 100, 50, 100), 0.0, 0.05) == 0
    assert bounds.epsilon_lower(Counts(100, 100, 0, 100), 0.0, 0.05) > 3


def test_prediction_is_close_to_the_exact_bound() -> None:
    for p, q in ((0.5, 0.45), (0.02, 0.001), (0.3, 0.0)):
        counts = Counts(round(p * 100_000), 100_000, round(q * 100_000), 100_000)
        predicted = float(bounds.predicted_epsilon(p, q, 100_000, 100_000, 0.05))
        assert predicted == pytest.approx(bounds.epsilon_lower(counts, 0.0, 0.05), rel=0.04)


def test_the_optimum_for_randomised_response() -> None:
    truth = np.array([0.75, 0.25])
    found = bounds.optimal_epsilon([(truth, truth[::-1])], 1_000_000, 0.05)
    assert 0.985 * log(3) < found < log(3)


def test_gaussian_noise_lies_on_or_below_the_zcdp_ceiling() -> None:
    z = np.linspace(-6, 6, 200)
    for rho in (0.01, 0.125, 1.0):
        shift = sqrt(2 * rho)
        p, q = stats.norm.cdf(z + shift), stats.norm.cdf(z)
        assert np.all(p <= ceiling(ZCDP(rho), rho)(q) + 1e-9)
        assert np.any(p > ceiling(ZCDP(rho), rho / 4)(q))
        curve = Renyi(tuple((order, order * rho) for order in (2, 4, 16)))
        assert np.all(p <= ceiling(curve, 1.0)(q) + 1e-9)


def test_a_delta_is_exempt_from_a_renyi_ceiling() -> None:
    q = np.array([0.0, 0.1, 0.9])
    assert np.all(ceiling(ZCDP(0.1, 0.01), 0.1)(q) >= ceiling(ZCDP(0.1), 0.1)(q))
    assert ceiling(ZCDP(0.1, 0.01), 0.1)(q)[0] == pytest.approx(0.01, abs=1e-6)


@pytest.mark.parametrize("claim", [ZCDP(0.1), ZCDP(1), Renyi(((2, 0.5), (8, 2)))], ids=str)
def test_tangents_cover_the_ceiling(claim: Loss) -> None:
    grid = np.linspace(0, 1, 2001)
    for q in (1e-4, 0.01, 0.2, 0.6):
        epsilon, extra = tangent(claim, q)
        assert np.all(ceiling(claim, strength(claim))(grid) <= exp(epsilon) * grid + extra + 1e-9)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_bets_on_the_coin_are_fair_at_the_boundary(epsilon: float) -> None:
    ratio = np.linspace(-6, 6, 101)
    fair = 1 / (1 + exp(-epsilon))
    for stake in (0.5, 1.0):
        first = np.exp(sequential._log_returns(ratio, epsilon, stake, True))
        second = np.exp(sequential._log_returns(ratio, epsilon, stake, False))
        for chance in (fair, 0.5, 1 - fair):
            assert np.all(chance * first + (1 - chance) * second <= 1 + 1e-12)
        assert np.max(np.abs(fair * first + (1 - fair) * second - 1)[ratio > 0]) < 1e-12


def test_bets_on_events_are_fair_at_the_boundary() -> None:
    epsilon, extra, q = 0.7, 0.01, 0.2
    p = exp(epsilon) * q + extra
    stake = sequential._best_stake(min(2 * p, 1.0), q, epsilon, extra)
    returns = (
        p / 2 * (1 + stake * (2 - extra))
        + q / 2 * (1 - stake * (2 * exp(epsilon) + extra))
        + (1 - (p + q) / 2) * (1 - stake * extra)
    )
    assert stake > 0
    assert returns == pytest.approx(1.0, abs=1e-12)


def test_power_shrinks_with_samples() -> None:
    few, many = (bounds.detectable_strength(0.3, runs, Pure(1), 0.01) for runs in (1000, 100_000))
    assert 1 < many < few < 2
