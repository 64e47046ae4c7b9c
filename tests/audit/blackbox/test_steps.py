"""Inputs more than one step apart: a claim allows them more, and their bounds are divided by the steps."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import replace
from fractions import Fraction
from math import exp, sqrt
from typing import Any

import numpy as np
import pytest
from scipy import special, stats

from dither import audit
from dither.audit import confidence as bounds
from dither.audit import neighbours
from dither.audit.blackbox import search, sequential
from dither.audit.blackbox.plan import AuditPlan
from dither.audit.blackbox.report import PrivacyResult
from dither.audit.blackbox.search import CandidateEvent
from dither.audit.claims import MAX_STRENGTH, ceiling, strength, tangent
from dither.audit.confidence import Counts
from dither.audit.neighbours import DistantPair, farther_pairs
from dither.audit.sampling import OutputSampler
from dither.errors import InvalidParameter
from dither.loss import ZCDP, Approximate, Loss, Pure, Renyi
from dither.privacy.mechanisms import DiscreteLaplace

STEP = 2.0**-20
GRID = np.concatenate([[0.0], np.geomspace(1e-9, 1, 60)])
COUNTS = [Counts(900, 5000, 400, 5000), Counts(4900, 5000, 10, 5000), Counts(100, 5000, 12, 5000, rare=True)]


def gaussian_delta(epsilon: float, sigma: float) -> float:
    """The least delta of Gaussian noise on a number that one step moves by 1 (Balle and Wang 2018)."""
    half, off = 1 / (2 * sigma), epsilon * sigma
    return float(stats.norm.cdf(half - off) - exp(epsilon) * stats.norm.cdf(-half - off))


def noisy(law: str, scale: float, seed: int) -> Any:
    """A number with noise, on a lattice."""
    rng = np.random.default_rng(seed)

    def mechanism(value: float, size: int) -> Any:
        return np.rint((value + getattr(rng, law)(scale=scale, size=size)) / STEP) * STEP

    return mechanism


# What a claim allows.


@pytest.mark.parametrize("claim", [Pure(1), Approximate(1, 1e-7), Approximate(1, "1/100")], ids=str)
@pytest.mark.parametrize("at", [0.0, 1e-6, 0.1, 0.7, 3.0])
def test_many_steps_are_one_step_put_into_itself(claim: Loss, at: float) -> None:
    one, allowed = ceiling(claim, at), GRID
    for steps in range(1, 40):
        allowed = one(allowed)
        assert ceiling(claim, at, steps)(GRID) == pytest.approx(allowed, rel=1e-9, abs=0)


def test_steps_of_a_stated_claim_have_a_tangent_of_their_own() -> None:
    assert tangent(Pure(0.5), 0.1, 4) == (2.0, 0.0)
    assert tangent(Approximate(0.5, 0.001), 0.1, 4) == pytest.approx((2.0, 0.001 * np.expm1(2) / np.expm1(0.5)))
    for q in (1e-4, 0.01, 0.2):
        epsilon, extra = tangent(ZCDP(0.01), q, 5)
        assert np.all(ceiling(ZCDP(0.25), 0.25)(GRID) <= exp(epsilon) * GRID + extra + 1e-9)


@pytest.mark.parametrize("steps", [2, 3, 8, 20])
@pytest.mark.parametrize("sigma", [1.0, 2.0, 5.0])
def test_rho_grows_with_the_square_of_the_steps(sigma: float, steps: int) -> None:
    """The named bug: rho grows with the number of steps, which Gaussian noise breaks."""
    rho, ends = 1 / (2 * sigma**2), np.linspace(-40, 40, 400)
    p, q = stats.norm.cdf((ends + steps) / sigma), stats.norm.cdf(ends / sigma)
    assert np.all(p <= ceiling(ZCDP(rho), rho, steps)(q) + 1e-9)
    assert np.any(p > ceiling(ZCDP(rho), rho * steps)(q) + 0.01)


def test_several_steps_of_gaussian_noise_lie_below_the_ceiling_of_its_delta() -> None:
    for sigma, epsilon in ((1.0, 0.5), (4.0, 0.1), (4.0, 1.0)):
        claim, ends = Approximate(epsilon, gaussian_delta(epsilon, sigma) * (1 + 1e-9)), np.linspace(-40, 40, 400)
        for steps in (1, 2, 5):
            p, q = stats.norm.cdf((ends + steps) / sigma), stats.norm.cdf(ends / sigma)
            assert np.all(p <= ceiling(claim, epsilon, steps)(q) + 1e-12)


# What counts of them refute.


@pytest.mark.tier("test")
@pytest.mark.parametrize("counts", COUNTS, ids=str)
@pytest.mark.parametrize("steps", [2, 8, 50])
def test_what_is_found_is_divided_by_the_steps(counts: Counts, steps: int) -> None:
    one, many = (bounds.epsilon_lower(counts, 0.0, 0.01, each) for each in (1, steps))
    assert one > 0.5
    assert steps * many == pytest.approx(one, rel=1e-3)
    assert bounds.strength_lower(counts, Pure(3), 0.01, steps) == pytest.approx(many, rel=1e-3)


@pytest.mark.tier("test")
@pytest.mark.parametrize("counts", COUNTS[:2], ids=str)
@pytest.mark.parametrize("steps", [1, 2, 8, 50])
def test_a_delta_grows_with_the_epsilon_that_is_refuted(counts: Counts, steps: int) -> None:
    claim, alpha = Approximate(0, "1/1000"), 0.01
    lower = bounds.epsilon_lower(counts, 0.001, alpha, steps)
    assert 0 < lower < bounds.epsilon_lower(counts, 0.0, alpha, steps)
    assert bounds.p_value(counts, ceiling(claim, lower, steps)) == pytest.approx(alpha, rel=0.05)
    assert bounds.p_value(counts, ceiling(claim, lower, steps)) <= alpha
    assert bounds.p_value(counts, ceiling(claim, 1.01 * lower, steps)) > alpha


@pytest.mark.tier("test")
def test_a_rho_that_is_found_is_divided_by_the_square_of_the_steps() -> None:
    for counts in COUNTS[:2]:
        one, many = (bounds.strength_lower(counts, ZCDP("1/2"), 0.01, steps) for steps in (1, 3))
        assert one > 0.04
        assert 9 * many == pytest.approx(one, rel=0.03)


@pytest.mark.tier("test")
def test_p_values_are_valid_several_steps_apart() -> None:
    """By enumeration, for a mechanism that lies exactly on the boundary."""
    runs, steps = 10, 3
    for claim in (Pure(0.3), Approximate(0.2, 0.02)):
        limit = ceiling(claim, strength(claim), steps)
        table = {
            (i, j): bounds.p_value(Counts(i, runs, j, runs), limit) for i in range(runs + 1) for j in range(runs + 1)
        }
        for q in (0.01, 0.1, 0.3):
            p = float(limit(np.array([q]))[0])
            first, second = (stats.binom.pmf(np.arange(runs + 1), runs, chance) for chance in (p, q))
            for alpha in (0.01, 0.05, 0.3):
                assert sum(first[i] * second[j] for (i, j), found in table.items() if found <= alpha) <= alpha


def test_a_smaller_excess_is_detectable_several_steps_apart() -> None:
    near, far = (bounds.detectable_strength(0.3, 10_000, Pure("1/10"), 0.01, steps) for steps in (1, 8))
    assert 0.1 < far < near < 0.3


# Whole audits.


@pytest.mark.tier("test")
@pytest.mark.parametrize("mode", ["fixed", "sequential"])
@pytest.mark.parametrize(
    ("law", "scale", "claim"),
    [
        ("laplace", 4.0, Pure("1/4")),
        ("normal", 2.0, Approximate("1/2", gaussian_delta(0.5, 2.0) * (1 + 1e-9))),
        ("normal", sqrt(2 * np.log(1.25 / 0.01)) / 0.5, Approximate("1/2", "1/100")),
        ("normal", 2.0, ZCDP("1/8")),
    ],
    ids=["laplace", "analytic gaussian", "classical gaussian", "concentrated gaussian"],
)
def test_true_claims_are_not_refuted_by_inputs_apart(law: str, scale: float, claim: Loss, mode: str) -> None:
    # At alpha 1e-9 each of these audits refutes a true claim with probability at most 1e-9.
    near = [(0.0, 1.0)]
    for pairs in (farther_pairs(near, 4), [*near, *farther_pairs(near, 2), *farther_pairs([(10.0, 9.0)], 5)]):
        result = audit.privacy(noisy(law, scale, 3), claim, pairs, samples=6_000, alpha=1e-9, mode=mode, seed=1)
        assert not result.refuted
        assert result.strength_lower <= strength(claim)
        assert isinstance(claim, ZCDP) or result.epsilon_lower <= strength(claim)
        assert result.detectable > strength(claim)


@pytest.mark.tier("test")
@pytest.mark.parametrize("mode", ["fixed", "sequential"])
def test_without_their_steps_true_claims_would_be_refuted(mode: str) -> None:
    for law, scale, claim in (
        ("laplace", 4.0, Pure("1/4")),
        ("normal", 2.0, Approximate("1/2", gaussian_delta(0.5, 2.0))),
        ("normal", 2.0, ZCDP("1/8")),
    ):
        pairs = [(a, b) for a, b in farther_pairs([(0.0, 1.0)], 4)]
        result = audit.privacy(noisy(law, scale, 3), claim, pairs, samples=6_000, alpha=1e-9, mode=mode, seed=1)
        assert result.refuted


@pytest.mark.tier("test")
@pytest.mark.parametrize("mode", ["fixed", "sequential"])
@pytest.mark.parametrize("claim", [Pure("1/4"), Approximate("1/4", "1/10000"), ZCDP("1/32")], ids=str)
def test_false_claims_are_refuted_by_inputs_apart(claim: Loss, mode: str) -> None:
    # Noise for twice the epsilon and, of Gaussian noise, four times the rho. Seeds are fixed.
    law, scale, true = ("normal", 2.0, 1 / 8) if isinstance(claim, ZCDP) else ("laplace", 2.0, 1 / 2)
    pairs = farther_pairs([(0.0, 1.0)], 4)
    result = audit.privacy(noisy(law, scale, 4), claim, pairs, samples=20_000, alpha=1e-3, mode=mode, seed=1)
    assert result.refuted
    assert strength(claim) <= result.strength_lower <= true
    assert result.evidence.steps == 4
    assert isinstance(claim, ZCDP) or result.epsilon_lower == result.strength_lower


@pytest.mark.tier("test")
@pytest.mark.parametrize("mode", ["fixed", "sequential"])
def test_the_epsilon_of_a_refuted_rho_is_divided_too(mode: str) -> None:
    # Laplace noise of epsilon 1/2, six steps apart; the bound is above it with probability at most 1e-6.
    pairs = farther_pairs([(0.0, 1.0)], 6)
    result = audit.privacy(noisy("laplace", 2.0, 7), ZCDP("1/50"), pairs, samples=6_000, alpha=1e-6, mode=mode, seed=1)
    assert result.refuted
    assert 0 < result.epsilon_lower <= 0.5


@pytest.mark.tier("test")
@pytest.mark.parametrize(("mode", "alpha"), [("fixed", 1e-4), ("sequential", 1e-2)])
def test_inputs_apart_tell_a_small_excess_with_far_fewer_samples(mode: str, alpha: float) -> None:
    # A fifth more epsilon than claimed. Of 5 seeds all refute with 20,000 samples, by p-values below 1e-5 (fixed) or
    # after 15,100 samples at most (sequential); none of neighbours with 80,000, by p-values above 2e-3 and 0.3.
    claim = Pure("1/10")
    for seed in range(2):
        near, far = (
            audit.privacy(noisy("laplace", 10 / 1.2, seed), claim, pairs, samples=samples, alpha=alpha, mode=mode,
                          seed=seed)
            for pairs, samples in (([(0.0, 1.0)], 80_000), (farther_pairs([(0.0, 1.0)], 8), 20_000))
        )  # fmt: skip
        assert far.refuted and not near.refuted
        assert near.epsilon_lower < 0.1 <= far.epsilon_lower <= 0.12


@pytest.mark.parametrize("claim", [Renyi(((2, "1/4"), (8, 1))), ZCDP("1/8", 1e-6), Renyi(((2, 1),), 1e-6)], ids=str)
def test_claims_that_say_nothing_of_several_steps_are_refused(claim: Loss) -> None:
    mechanism = noisy("normal", 2.0, 5)
    for mode in ("fixed", "sequential"):
        with pytest.raises(InvalidParameter, match="more than one step apart; pass neighbours only"):
            audit.privacy(mechanism, claim, [(0.0, 1.0), DistantPair(0.0, 2.0, steps=2)], samples=1000, mode=mode)
    # One step is what it says something of; alpha 1e-9.
    one = audit.privacy(mechanism, claim, [DistantPair(0.0, 1.0, steps=1)], samples=1000, alpha=1e-9, seed=1)
    assert not one.refuted and one.evidence.steps == 1


# Pairs.


@pytest.mark.parametrize("steps", [0, -1, 1.5, 8.0, True, "8", None, 10**9, np.int64(8)])
def test_steps_are_a_whole_number(steps: Any) -> None:
    with pytest.raises(InvalidParameter, match="a whole number from 1 to 10000"):
        DistantPair(0.0, 8.0, steps=steps)


def test_pairs_apart_are_pairs_that_keep_their_steps() -> None:
    pair = DistantPair([0.0], [8.0], steps=8)
    first, second = pair
    assert (first, second) == ([0.0], [8.0]) and len(pair) == 2
    assert repr(pair) == "DistantPair([0.0], [8.0], steps=8)"
    for made in (pickle.loads(pickle.dumps(pair)), copy.copy(pair), copy.deepcopy(pair)):
        assert type(made) is DistantPair and made == pair and made.steps == 8
    assert [neighbours.step_count(each) for each in (pair, (0.0, 8.0), ([0.0], [8.0]))] == [8, 1, 1]


def test_the_same_inputs_with_other_steps_are_another_pair() -> None:
    given = [
        DistantPair(0, 8, steps=8),
        (0, 8),
        DistantPair(0, 8, steps=4),
        DistantPair(0, 8, steps=8),
        [0, 8],
        DistantPair(3, 3, steps=2),
    ]
    kept = neighbours.distinct_pairs(given)
    assert [neighbours.step_count(pair) for pair in kept] == [8, 1, 4]
    assert [isinstance(pair, DistantPair) for pair in kept] == [True, False, True]
    assert kept[0] != kept[2] and len({*kept}) == 3


def test_the_change_is_made_so_many_times_over() -> None:
    assert [(*pair, neighbours.step_count(pair)) for pair in farther_pairs([(0.0, 1.0), (10, 9)], 3)] == [
        (0.0, 3.0, 3),
        (10, 7, 3),
    ]
    near = neighbours.all_differ(4)
    far = farther_pairs(near)
    for (a, b), pair in zip(near, far, strict=True):
        assert neighbours.step_count(pair) == 8
        assert pair[1] - pair[0] == pytest.approx(8 * (b - a), abs=1e-12)
        assert pair[0] is a  # so that pairs which shared an input share it still, and it is run once
    assert len({id(pair[0]) for pair in far}) == len({id(a) for a, _ in near}) < len(far)


# What is said of them.


def test_what_is_moved_farther_twice_is_as_many_steps_away() -> None:
    assert farther_pairs(farther_pairs([(0.0, 1.0)], 4), 3) == [DistantPair(0.0, 12.0, steps=12)]


@pytest.mark.parametrize(
    "pair",
    [(np.uint8([1]), np.uint8([0])), (np.int8([100]), np.int8([110])), (np.uint8(250), np.uint8(251)),
     (np.float16([0]), np.float16([10_000])), (0.0, 1e308)],
    ids=str,
)  # fmt: skip
def test_numbers_that_end_before_so_many_steps_are_not_moved(pair: Any) -> None:
    """The named bug: a number that wraps around, or becomes infinite, is not that many steps away."""
    with pytest.raises(InvalidParameter, match="8 steps overflow"):
        farther_pairs([pair])


@pytest.mark.parametrize(
    "pair",
    [([0], [1]), ("a", "b"), (False, True), (np.array([True]), np.array([False])), (np.zeros(1), np.zeros(2)),
     (None, 1.0), ({}, {1}), (0.0, np.inf), (np.nan, 1.0)],
    ids=str,
)  # fmt: skip
def test_only_finite_numbers_are_moved(pair: Any) -> None:
    with pytest.raises(InvalidParameter, match=r"use DistantPair\(a, b, steps\)"):
        farther_pairs([pair])


@pytest.mark.parametrize("kind", [float, np.float32, np.float16])
def test_what_is_moved_is_never_rounded_to_more(kind: Any) -> None:
    rng, rounded = np.random.default_rng(3), 0
    for start, end in rng.uniform(-1, 1, (200, 2)).astype(kind).tolist():
        a, b = np.array([start], dtype=kind), np.array([end], dtype=kind)
        moved = farther_pairs([(a, b)], 3)[0][1]
        exact = 3 * abs(Fraction(end) - Fraction(start))
        found = abs(Fraction(moved[0].item()) - Fraction(start))
        assert moved.dtype == kind and found <= exact
        rounded += found < exact
    assert rounded > 20


def test_exact_audits_are_of_neighbours() -> None:
    far = DistantPair([0], [8], steps=8)
    with pytest.raises(InvalidParameter, match="these are 8 steps apart"):
        audit.exact(DiscreteLaplace(Fraction(1)), far)
    with pytest.raises(InvalidParameter, match="got inputs 8 steps apart"):
        audit.random_dp(lambda rng: far, DiscreteLaplace(Fraction(1)))
    assert audit.exact(DiscreteLaplace(Fraction(1)), DistantPair([0], [1], steps=1)).certifies(Pure(1))


def test_a_pair_too_far_apart_to_bet_on_does_not_keep_others_from_being_bet_on() -> None:
    """The named bug: a growth of NaN counts as the largest."""
    pairs = [(0.0, 1.0), DistantPair(0.0, 10_000.0, steps=10_000)]
    found = audit.privacy(
        noisy("laplace", 1.0, 1), Pure("1/10"), pairs, samples=20_000, alpha=1e-3, mode="sequential", seed=1
    )
    assert found.refuted and found.epsilon_lower <= 1


@pytest.fixture(scope="module")
def refuted() -> PrivacyResult:
    return audit.privacy(noisy("laplace", 2.0, 6), Pure("1/4"), farther_pairs([(0.0, 1.0)]), samples=10_000, seed=1)


def test_evidence_says_how_many_steps_away_the_other_input_is(refuted: PrivacyResult) -> None:
    assert refuted.refuted and refuted.evidence.steps == 8
    assert "steps between them: 8" in str(refuted.evidence)
    assert "steps" not in str(replace(refuted.evidence, steps=1))


def test_the_report_says_how_many_steps_there_are(refuted: PrivacyResult) -> None:
    assert json.loads(refuted.report(kind="json"))["evidence"]["steps"] == 8
    assert "<tr><th>Steps between them</th><td>8, over which losses add up</td></tr>" in refuted.report()
    near = replace(refuted, evidence=replace(refuted.evidence, steps=1))
    assert json.loads(near.report(kind="json"))["evidence"]["steps"] == 1
    assert "Steps between them" not in near.report()


# Bets.


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 8.0, 36.0, 100.0, 300.0, 1e5])
@pytest.mark.parametrize("stake", sequential.STAKES)
def test_bets_on_the_coin_are_fair_however_large_epsilon_is(epsilon: float, stake: float) -> None:
    """The named bug: if a fair guess is nearly certain, the loss of a wrong one is NaN."""
    ratio = np.concatenate([np.linspace(-20, 20, 81), [-epsilon - 5, epsilon + 5, -epsilon / 2, epsilon / 2]])
    fair, unfair = special.expit(epsilon), special.expit(-epsilon)
    first, second = (sequential._log_returns(ratio, epsilon, stake, side) for side in (True, False))
    assert np.all(np.isfinite(first)) and np.all(np.isfinite(second))
    assert np.any(first != 0) == (epsilon <= MAX_STRENGTH)  # something is bet
    for chances in ((fair, unfair), (0.5, 0.5), (unfair, fair)):
        gain = chances[0] * np.expm1(first) + chances[1] * np.expm1(second)
        assert np.all(gain <= 1e-12 * unfair)


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0, 5.0])
def test_bets_of_moderate_epsilon_are_what_they_were(epsilon: float) -> None:
    ratio, fair = np.linspace(-12, 12, 241), 1 / (1 + exp(-epsilon))
    believed = special.expit(np.abs(ratio))
    for stake in sequential.STAKES:
        chance = np.where(believed > fair, fair + stake * (believed - fair), fair)
        for first in (True, False):
            right = (ratio > 0) == first
            expected = np.where(right, np.log(chance / fair), np.log((1 - chance) / (1 - fair)))
            assert sequential._log_returns(ratio, epsilon, stake, first) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("claim", [Approximate("1/10", "1/1000"), ZCDP("1/100")], ids=str)
@pytest.mark.parametrize("steps", [1, 4])
def test_bets_on_events_are_fair_several_steps_apart(claim: Loss, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The named bug: bets ignore the steps and refute true claims."""
    q, inside, outside, none = 0.1, np.array([True]), np.array([False]), np.array([], dtype=bool)
    p = float(ceiling(claim, strength(claim), steps)(np.array([q]))[0])
    monkeypatch.setattr(sequential, "_in_event", lambda lead, data: data)
    plan = AuditPlan(None, claim, (), 1000, 0.01, np.random.default_rng(), print)  # type: ignore[arg-type]
    bet = sequential.Bet((), (CandidateEvent(None, False, 0.0, 1.5 * p, q),), 0.0)  # type: ignore[arg-type]
    chances = {p / 2: (inside, none), q / 2: (none, inside), (1 - p) / 2: (outside, none), (1 - q) / 2: (none, outside)}
    returns = {
        chance: np.exp(sequential._batch_returns(plan, np.array([strength(claim)]), bet, *sides, steps))  # type: ignore[arg-type]
        for chance, sides in chances.items()
    }
    assert np.any(returns[p / 2] > 1)  # something is bet
    expected = sum(chance * back for chance, back in returns.items())
    assert np.all(expected <= 1 + 1e-9)
    assert isinstance(claim, ZCDP) or expected == pytest.approx(1, abs=1e-12)
    assert sequential._least_implied_epsilon(plan, bet, steps) == pytest.approx(tangent(claim, q, steps)[0] / steps)


def test_of_several_bets_in_place_of_a_claim_the_least_epsilon_is_refuted() -> None:
    claim = ZCDP("1/8")
    plan = AuditPlan(None, claim, (), 1000, 0.01, np.random.default_rng(), print)  # type: ignore[arg-type]
    leads = [
        CandidateEvent(None, False, 0.0, float(1.5 * ceiling(claim, 0.125)(np.array([q]))[0]), q) for q in (0.01, 0.1)
    ]  # type: ignore[arg-type]
    epsilons = [tangent(claim, lead.q)[0] for lead in leads]
    assert epsilons[0] != epsilons[1]
    assert sequential._least_implied_epsilon(plan, sequential.Bet((), tuple(leads), 0.0), 1) == min(epsilons)


def test_bets_promise_what_is_left_after_the_steps() -> None:
    """Under a true claim a distant pair has no expected growth, however different its outputs are."""
    for claim, pair in ((Pure("1/4"), DistantPair(0.0, 4.0, steps=4)), (Approximate("1/4", "1/1000"), (0.0, 4.0))):
        source, rng = OutputSampler.from_callable(noisy("laplace", 4.0, 8), True, False), np.random.default_rng(8)
        plan = AuditPlan(source, claim, (pair,), 4000, 0.01, rng, lambda stage, done, total: None)
        history = sequential._first_runs(plan, 0)
        far, near = (sequential._learn_bet(plan, replace(history, steps=steps)).growth for steps in (4, 1))
        assert far <= 0 < near
        assert history.steps == neighbours.step_count(pair)


def test_the_pair_that_is_worth_most_is_so_for_each_step() -> None:
    near, far = (search.worth_function(Pure("1/10"), 100_000, 0.01, steps) for steps in (1, 5))
    p, q = np.array([0.4]), np.array([0.2])
    assert far(p, q) == pytest.approx(near(p, q) / 5)
