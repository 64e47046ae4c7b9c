"""Weighted levels around a rare event: their weights and counts, and the validity of the test for any weights."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from math import comb, exp, log
from typing import Any

import numpy as np
import pytest
from scipy import special, stats

from dither import audit
from dither.audit import confidence as bounds
from dither.audit import zoo
from dither.audit.blackbox import api as blackbox
from dither.audit.blackbox.events import ColumnScore, Encoded, Event, Levels
from dither.audit.blackbox.levels import MAX_SHIFT, MAX_WEIGHT, choose_levels
from dither.audit.blackbox.search import CandidateEvent
from dither.audit.claims import ceiling
from dither.audit.confidence import Counts, Level
from dither.loss import ZCDP, Approximate, Loss, Pure

SCORE = ColumnScore(0, np.arange(256.0))


def counted(weights: tuple[int, ...], a: tuple[int, ...], b: tuple[int, ...], runs: tuple[int, int]) -> Counts:
    levels = tuple(Level(*each) for each in zip(weights, a, b, strict=True))
    return Counts(sum(a), runs[0], sum(b), runs[1], True, levels)


def lead(size: Any, ratio: Any, chosen: int, *, above: bool = True) -> CandidateEvent:
    """A candidate among nested events, widest first."""
    thresholds = np.arange(len(size), dtype=float) * (1 if above else -1)
    share = float(special.expit(ratio[chosen]))
    event = Event(None, SCORE, float(thresholds[chosen]), above)  # type: ignore[arg-type]
    nested = thresholds, np.asarray(size), np.asarray(ratio)
    return CandidateEvent(event, False, 1.0, size[chosen] * share, size[chosen] * (1 - share), nested)


def growing(most: float, count: int = 12, growth: float = 0.5) -> tuple[Any, Any]:
    size = most * np.exp(-0.5 * np.arange(count))
    return size, 0.5 - growth * np.log(size / most)


@pytest.mark.parametrize("runs", [(6, 7), (4, 12), (11, 6)])
@pytest.mark.parametrize("odds", [(1.0, 1.0), (2.5, 2.5), (2.5, 0.4), (0.4, 2.5)])
def test_independent_labels_put_no_less_weight_on_the_first_input(
    runs: tuple[int, int], odds: tuple[float, float]
) -> None:
    """The distribution of labels given all hits, enumerated, for odds up to the larger of two, and its bound."""
    held, weights = (3, 2), (2, 5)
    others = sum(runs) - sum(held)
    law = dict.fromkeys(range(17), 0.0)
    for a in product(range(held[0] + 1), range(held[1] + 1)):
        ways = np.prod([comb(h, n) * o**n for h, n, o in zip(held, a, odds, strict=True)])
        left = runs[0] - sum(a)
        law[weights[0] * a[0] + weights[1] * a[1]] += float(ways) * (comb(others, left) if left >= 0 else 0)
    total = sum(law.values())
    largest = max(odds) * runs[0] / (runs[1] - sum(held) + 1)
    for least in range(17):
        exact = sum(mass for weight, mass in law.items() if weight >= least) / total
        bound = bounds._weighted_tail(least, weights, held, largest / (1 + largest))
        assert exact <= bound + 1e-12


def test_the_weight_of_independent_labels() -> None:
    rng = np.random.default_rng(1)
    for _ in range(40):
        count = int(rng.integers(1, 6))
        weights, hits = rng.integers(1, 13, count).tolist(), rng.integers(0, 300, count).tolist()
        chance, law = float(rng.uniform(0.02, 0.98)), np.ones(1)
        for weight, held in zip(weights, hits, strict=True):
            part = np.zeros(weight * held + 1)
            part[::weight] = stats.binom.pmf(np.arange(held + 1), held, chance)
            law = np.convolve(law, part)
        tails = np.cumsum(law[::-1])[::-1]
        for least in rng.integers(0, len(law), 10):
            found = bounds._weighted_tail(int(least), weights, hits, chance)
            assert found == pytest.approx(tails[least], abs=bounds.ROUNDING)


@pytest.mark.tier("test")
@pytest.mark.parametrize("weights", [(1, 3), (1, 12)])
@pytest.mark.parametrize("epsilon", [0.0, 1.0])
def test_p_values_by_levels_are_valid(weights: tuple[int, int], epsilon: float) -> None:
    """At the boundary of the claim, every outcome of two levels that is not rarer than 1e-9 in all."""
    runs, q, limit = (2000, 3000), (6e-4, 2e-4), ceiling(Pure(epsilon), epsilon)
    p = tuple(exp(epsilon) * each for each in q)
    most = tuple(int(stats.binom.isf(1e-5, n, each)) for n, side in zip(runs, (p, q), strict=True) for each in side)
    outcomes = {}
    for hits in product(*(range(each + 1) for each in most)):
        chance = stats_of(hits[:2], runs[0], p) * stats_of(hits[2:], runs[1], q)
        if chance > 1e-9:
            outcomes[hits] = chance, bounds.p_value(counted(weights, hits[:2], hits[2:], runs), limit)
    for alpha in (0.01, 0.05, 0.3):
        assert 0 < sum(chance for chance, found in outcomes.values() if found <= alpha) <= alpha


def stats_of(hits: tuple[int, ...], runs: int, chances: tuple[float, ...]) -> float:
    """The probability of these hits of the levels in so many runs."""
    rest = runs - sum(hits)
    ways = special.gammaln(runs + 1) - special.gammaln(rest + 1) - sum(special.gammaln(n + 1) for n in hits)
    likely = sum(n * log(chance) for n, chance in zip(hits, chances, strict=True))
    return float(np.exp(ways + likely + rest * np.log1p(-sum(chances))))


def test_levels_are_judged_by_the_largest_odds_that_all_of_them_may_have() -> None:
    """Computed in another way: the bound on q is from the hits of all levels; its error and the sum's are added."""
    runs, epsilon = (700, 400), 0.5
    for weights, a, b in (((1, 4), (6, 3), (2, 0)), ((2, 3, 7), (4, 9, 2), (1, 1, 0)), ((1, 12), (0, 5), (3, 0))):
        most = stats.beta.isf(bounds.FLOOR_COST, sum(b) + 1, runs[1] - sum(b))
        ratio = exp(epsilon) * (1 - most) / (1 - exp(epsilon) * most) * runs[0] / (runs[1] - sum(a) - sum(b) + 1)
        law = np.ones(1)
        for weight, first, second in zip(weights, a, b, strict=True):
            part = np.zeros(weight * (first + second) + 1)
            part[::weight] = stats.binom.pmf(np.arange(first + second + 1), first + second, ratio / (1 + ratio))
            law = np.convolve(law, part)
        expected = law[int(np.dot(weights, a)) :].sum() + bounds.FLOOR_COST + bounds.ROUNDING
        found = bounds.p_value(counted(weights, a, b, runs), ceiling(Pure(epsilon), epsilon))
        assert found == pytest.approx(expected, rel=1e-9, abs=0)
    sure = bounds.p_value(counted((1, 2), (4000, 900), (0, 0), (9_000_000, 9_000_000)), ceiling(Pure(1), 1.0))
    assert sure >= bounds.ROUNDING
    # Of too many hits, whose weights are equal, no sum is needed, and none of its error is added.
    held, runs = (700_000, 300_000), (9 * 10**9, 10**9)
    many = counted((1, 12), (held[0] - 400, held[1] - 200), (400, 200), runs)
    odds = 9 / (1 - (sum(held) - 1) / runs[1])
    expected = stats.binom.sf(sum(held) - 601, sum(held), odds / (1 + odds))
    assert bounds.p_value(many, ceiling(Pure(0), 0.0)) == pytest.approx(
        expected + bounds.FLOOR_COST, rel=1e-6, abs=1e-14
    )


def test_one_level_is_judged_as_one_event() -> None:
    for hits in ((29, 3), (8, 0), (400, 300)):
        one = counted((7,), hits[:1], hits[1:], (2_000_000, 5_000_000))
        found = [bounds.epsilon_lower(each, 0.0, 0.05) for each in (one, replace(one, levels=()))]
        assert found[0] == pytest.approx(found[1], rel=2e-3)
        assert found[0] <= found[1] + 1e-4  # two bounds that are safe, of which this is the safer


def test_weights_tell_more_where_the_inner_hits_are_of_one_input() -> None:
    grown = counted((1, 4, 9), (40, 20, 12), (30, 5, 0), (2_000_000, 2_000_000))
    flat = replace(grown, levels=tuple(replace(level, weight=1) for level in grown.levels))
    assert bounds.epsilon_lower(grown, 0.0, 0.05) > 1.3 * bounds.epsilon_lower(flat, 0.0, 0.05)


@pytest.mark.tier("test")
def test_what_levels_cannot_judge() -> None:
    limit = ceiling(Pure(1), 1.0)
    assert bounds.p_value(counted((1, 2), (0, 0), (0, 0), (100, 100)), limit) == 1
    assert bounds.p_value(counted((1, 2), (90, 9), (90, 9), (100, 100)), limit) == 1
    assert bounds.p_value(counted((1, 2), (110, 40), (0, 0), (1000, 100)), limit) == 1  # more hits than other runs
    claim: Loss
    for claim in (Approximate(1, "1/1000"), ZCDP("1/2")):  # their ceilings are no multiples of q
        assert bounds.p_value(counted((1, 2), (600, 400), (0, 0), (10**6, 10**6)), ceiling(claim, 0.1)) == 1
        counts = counted((1, 2), (40, 9), (3, 0), (10_000, 10_000))
        assert bounds.strength_lower(counts, claim, 0.05) == bounds.strength_lower(
            Counts(49, 10_000, 3, 10_000), claim, 0.05
        )


@pytest.mark.parametrize("more", [0, 1])
def test_more_hits_than_can_be_weighed_have_equal_weights(more: int) -> None:
    runs, limit = (4_000_000, 4_000_000), ceiling(Pure("1/10"), 0.1)
    rest = bounds.MAX_WEIGHTED_HITS + more - 1200
    found = counted((1, 9), (rest // 2, 700), (rest - rest // 2, 500), runs)
    alike = replace(found, levels=tuple(replace(level, weight=1) for level in found.levels))
    assert (bounds.p_value(found, limit) == bounds.p_value(alike, limit)) is bool(more)


@pytest.mark.parametrize("above", [True, False])
def test_levels_part_what_the_widest_event_holds(above: bool) -> None:
    codes = np.random.default_rng(2).integers(0, 256, (5000, 1)).astype(np.uint8)
    data = Encoded(codes, codes[:, 0].astype(np.uint64))
    cuts = [200.0, 220.0, 250.0] if above else [50.0, 20.0, 3.0]
    found = Levels(SCORE, np.array(cuts), above, (1, 5, 12)).count(data)
    beyond = [(codes[:, 0] >= cut if above else codes[:, 0] <= cut).sum() for cut in cuts]
    assert list(found) == [beyond[0] - beyond[1], beyond[1] - beyond[2], beyond[2]]


@pytest.mark.parametrize("above", [True, False])
def test_weights_grow_inwards_if_log_ratios_do(above: bool) -> None:
    size, ratio = growing(1e-3)
    found = choose_levels(lead(size, ratio, 7, above=above), (4_000_000, 4_000_000), 0.05)
    assert found is not None and found.above is above
    assert list(found.weights) == sorted(set(found.weights)) and found.weights[-1] == MAX_WEIGHT
    assert len(found.weights) > 3 and np.all(np.diff(found.thresholds * (1 if above else -1)) > 0)


def test_weights_are_left_out_where_they_do_not_pay() -> None:
    runs = (4_000_000, 4_000_000)
    size, ratio = growing(1e-3)
    assert choose_levels(lead(size, np.full(len(size), 1.0), 7), runs, 0.05) is None  # nothing grows
    assert choose_levels(lead(size, ratio[::-1], 7), runs, 0.05) is None  # it falls
    assert choose_levels(lead(size[:1], ratio[:1], 0), runs, 0.05) is None  # there is one event
    assert choose_levels(replace(lead(size, ratio, 7), nested=CandidateEvent.nested), runs, 0.05) is None
    common = MAX_SHIFT ** (2 / 3) / sum(runs) ** (1 / 3)
    assert choose_levels(lead(*growing(30 * common, 6), 4), runs, 0.05) is None
    # What grows up to a common event is not said to grow on, however far inwards: its hits would be left out.
    assert choose_levels(lead(*growing(0.9, 30), 1), runs, 0.05) is None
    assert choose_levels(lead(*growing(30 * common, 16), 10), runs, 0.05) is not None


@pytest.mark.parametrize("way", [1, -1])
def test_weights_are_chosen_before_the_counts_and_reported(way: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The named bugs: weights chosen by the hits that they test, or hits of the two inputs exchanged."""
    order: list[str] = []
    monkeypatch.setattr(blackbox, "CHUNK_VALUES", 400_000)
    count, weigh = blackbox._count_hits, blackbox.choose_levels
    monkeypatch.setattr(blackbox, "choose_levels", lambda *given: order.append("weights") or weigh(*given))
    monkeypatch.setattr(blackbox, "_count_hits", lambda *given: order.append("counts") or count(*given))
    member = zoo.member("noisy_max4")
    found = audit.privacy(
        member.mechanism(5), Pure("1/10"), [member.neighbours[5][::way]], samples=1_000_000, alpha=0.05, seed=5
    )
    assert order == ["weights", "counts"]
    levels = found.evidence.levels
    assert len(levels) > 1 and found.refuted
    held = [sum(level.hits_a for level in levels), sum(level.hits_b for level in levels)]
    assert all(inside >= hits > 0 for inside, hits in zip(held, found.evidence.hits, strict=True))
    counts = Counts(*np.column_stack([found.evidence.hits, found.evidence.runs]).ravel().tolist(), True, levels)
    assert found.epsilon_lower == bounds.strength_lower(counts, found.claim, 0.05)
    assert found.p_value == bounds.p_value(counts, ceiling(found.claim, 0.1))
    told = json.loads(found.report(kind="json"))["evidence"]["levels"]
    assert told == [vars(each) for each in levels]
    assert all(each.within.startswith("output < ") for each in levels)
    assert f"{levels[-1].weight}: {levels[-1].hits_a} and {levels[-1].hits_b} hits (output &lt; " in found.report()


@pytest.mark.parametrize("way", [1, -1])
def test_what_was_counted_is_judged_whatever_it_is(way: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The named bugs: weights, or which test it is, by the counts; levels that do not speak for it left out; one chunk.

    Weights that are the wrong way round, and outputs 0 to 9 that come in turn, so that everyone can count them.
    """
    judged: list[Counts] = []
    verdict, turn = blackbox._verdict, {0: 0, 1: 0}

    def in_turn(value: int, size: int) -> Any:
        places = turn[value] + np.arange(size)
        turn[value] += size
        return np.where(places % 2 == 0, places // 2 % 10, 0 if value else 5)

    def stub(lead: CandidateEvent, runs: tuple[int, int], alpha: float) -> Levels:
        turn[0] = turn[1] = 0
        columns = np.arange(256.0)
        return Levels(ColumnScore(0, columns), np.array([1.0, 4.0, 7.0, 10.0]), True, (12, 3, 5, 1))

    monkeypatch.setattr(blackbox, "CHUNK_VALUES", 4000)
    monkeypatch.setattr(blackbox, "choose_levels", stub)
    monkeypatch.setattr(blackbox, "_verdict", lambda *given: judged.extend(given[3]) or verdict(*given))
    result = audit.privacy(in_turn, Pure(1), [(0, 1)[::way]], samples=6000, alpha=0.05, seed=1)
    assert result.p_value == bounds.p_value(judged[0], ceiling(Pure(1), 1.0)) > 0.01
    assert bounds.p_value(replace(judged[0], levels=()), ceiling(Pure(1), 1.0)) < 1e-9
    assert result.epsilon_lower == bounds.strength_lower(judged[0], Pure(1), 0.05)
    runs = (judged[0].runs_a, judged[0].runs_b)
    assert [level.weight for level in judged[0].levels] == [12, 3, 5, 1]
    # Bins are numbered from 2. Half of the outputs are 5 on the input 0, and 0 on the input 1; the others come in turn.
    shares = np.array([[2, 3, 13, 2], [12, 3, 3, 2]]) / 20
    found = np.array([[level.hits_a for level in judged[0].levels], [level.hits_b for level in judged[0].levels]])
    first = int(found[0, 0] > found[0, 2])
    assert found / np.array(runs)[:, None] == pytest.approx(shares[[first, 1 - first]], abs=0.01)


@pytest.mark.tier("test")
@pytest.mark.parametrize("claim", [Approximate("1/10", 1e-9), ZCDP("1/200")], ids=str)
def test_other_claims_are_not_judged_in_levels(claim: Loss, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[CandidateEvent] = []
    monkeypatch.setattr(blackbox, "choose_levels", lambda lead, *given: asked.append(lead))
    member = zoo.member("noisy_max4")
    for stated, count in ((claim, 0), (Pure("1/10"), 1)):
        audit.privacy(member.mechanism(5), stated, [member.neighbours[5]], samples=20_000, alpha=0.05, seed=5)
        assert len(asked) == count


@pytest.mark.tier("test")
def test_levels_find_more_than_the_best_event_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    member = zoo.member("noisy_max4")

    def mean() -> float:
        found = [
            audit.privacy(
                member.mechanism(seed), Pure("1/10"), [member.neighbours[5]], samples=1_000_000, alpha=0.05, seed=seed
            ).epsilon_lower
            for seed in range(12)
        ]
        return float(np.mean(found))

    with_levels = mean()
    monkeypatch.setattr(blackbox, "choose_levels", lambda *given: None)
    assert with_levels > 1.02 * mean()
