"""The search: estimates of rare events, and thresholds that keep the sizes of the events that were tried."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from dither import audit
from dither.audit.blackbox import learners, search
from dither.audit.blackbox.belief import BeliefChain, EventCounts, posterior
from dither.audit.blackbox.events import (
    ColumnScore,
    CornerScore,
    Event,
    JointScore,
    MeanScore,
    OutcomeSpace,
    SampleTable,
    SumScore,
)
from dither.audit.blackbox.search import CAUTION
from dither.loss import Pure

RUNS = 200_000
SHARES = np.exp(-np.arange(0.0, 9.6, 0.12))


def chain(rng: np.random.Generator, ratio: np.ndarray) -> BeliefChain:
    """Counts of nested events, whose shares on the second input are `SHARES`."""
    found = []
    for shares in (SHARES * np.exp(ratio), SHARES):
        rings = rng.multinomial(RUNS, np.append(-np.diff(shares), shares[-1]) / shares[0])
        found.append(EventCounts(np.cumsum(rings[::-1])[::-1], RUNS))
    return BeliefChain(SHARES, *found)


def test_luck_is_not_believed() -> None:
    """Two equal inputs: the luckiest rare event often looks like a large epsilon, and is estimated near 0."""
    # Seeds are fixed. The named bug: to take each event's own counts at their word.
    value = search.worth_function(Pure(0.1), 2_000_000, 0.05)
    rng = np.random.default_rng(14)
    naive, sober = [], []
    for _ in range(60):
        counted = chain(rng, np.zeros(len(SHARES)))
        (p, q), (belief, ratio, error) = (counted.a, counted.b), posterior(counted)
        ratio = ratio - CAUTION * error
        naive.append(float(np.max(value(p.hits / RUNS, q.hits / RUNS))))
        mass = (p.hits + q.hits) / RUNS
        sober.append(belief * max(0.0, float(np.max(value(mass / (1 + np.exp(-ratio)), mass / (1 + np.exp(ratio)))))))
    assert np.quantile(naive, 0.75) > 0.2
    assert np.quantile(sober, 0.9) < 0.05


@pytest.mark.parametrize("ratio", [0.2 * np.minimum(-2 * np.log(SHARES), 1), 0.04 * np.expm1(-0.4 * np.log(SHARES))])
def test_what_many_events_say_together_is_believed(ratio: np.ndarray) -> None:
    """A ratio that is constant as events grow rarer, and one that grows: both are estimated from few counts."""
    rng = np.random.default_rng(15)
    errors = []
    for _ in range(20):
        belief, found, error = posterior(chain(rng, ratio))
        assert belief > 0.99
        errors.append(found - CAUTION * error - ratio)
    off = np.mean(errors, axis=0)
    # On average cautious everywhere, and not by more than two fifths of the truth where there are hundreds of hits.
    assert off.max() < 0.02
    assert np.all(off[SHARES > 3e-3] > -0.4 * ratio[SHARES > 3e-3] - 0.02)


def test_the_event_holds_as_much_as_what_was_tried() -> None:
    """Scores learned from halves and the whole differ in scale; thresholds match by how many outputs they cut off."""
    rng = np.random.default_rng(16)
    a, b = (np.rint((shift + rng.laplace(size=(20_000, 6))) * 1024) / 1024 for shift in (0.3, 0.0))
    space = OutcomeSpace.learn(a, b)
    sample = SampleTable(space, space.encode(a), space.encode(b))
    tried = search.try_scores(sample, [partial(learners.shared_table, columns=space.columns_in("base"), bins=8)])[-1:]
    for lead in search.candidate_events(
        space, tried, search.worth_function(Pure(1), 100_000, 0.05), search.CAUTION, search.CAUTION
    ):
        held = np.mean([lead.event.contains(side).mean() for side in (a, b)])
        assert held == pytest.approx((lead.p + lead.q) / 2, rel=0.1)


def test_a_score_of_few_values_keeps_its_size() -> None:
    """A score of few values may have no threshold of the size that was tried; far larger ones are left out."""
    # The named bug: a threshold goes to the value at that share, and the event is twenty times what was believed.
    rng = np.random.default_rng(17)
    a, b = ((rng.random((20_000, 4)) < chance).astype(float) for chance in (0.2, 0.1))
    space = OutcomeSpace.learn(a, b)
    sample = SampleTable(space, space.encode(a), space.encode(b))
    columns = space.columns_in("base")
    chosen = [partial(learners.shared_table, columns=columns, bins=2), partial(learners.trees, rounds=2)]
    for done in search.try_scores(sample, chosen)[-2:]:
        for high, found in ((True, done.above), (False, done.below)):
            assert found is not None
            for threshold, first, second in zip(found.thresholds, found.a.hits, found.b.hits, strict=True):
                event = Event(space, done.score, float(threshold), high)
                held = np.mean([event.contains(side).mean() for side in (a, b)])
                assert abs(np.log(held / ((first + second) / 40_000))) <= search.MAX_LOG_SIZE_ERROR + 1e-9


def test_halves_of_another_scale_are_tried_as_one() -> None:
    """A score that is twice as large on one half is the same score: events match by rank, not by value."""
    rng = np.random.default_rng(18)
    a, b = rng.normal(0.5, 1, (20_000, 2)), rng.normal(0, 1, (20_000, 2))
    space = OutcomeSpace.learn(a, b)
    sample = SampleTable(space, space.encode(a), space.encode(b))
    scales = iter([1.0, 1.0, 5.0])

    def learner(part: SampleTable) -> ColumnScore:
        return ColumnScore(0, next(scales) * np.arange(256.0))

    above = search.try_scores(sample, [learner])[-1].above
    assert above is not None
    hits = above.a.hits[np.argmin(np.abs(above.a.hits + above.b.hits - 4000))]
    best = np.sum(a[:, 0] >= np.quantile(np.concatenate([a[:, 0], b[:, 0]]), 0.9))
    assert hits == pytest.approx(best, rel=0.05)


def test_corners_are_found_and_read_by_hand() -> None:
    """Inputs that differ only where one feature is small and another beyond a number: found, and described in words."""
    rng = np.random.default_rng(19)
    sides = []
    for chance in (0.06, 0.03):
        place, value = rng.integers(0, 8, 60_000).astype(float), rng.normal(size=60_000)
        moved = (place <= 2) & (rng.random(60_000) < chance)
        sides.append(np.column_stack([place, np.where(moved, np.abs(value) + 3, value)]))
    space = OutcomeSpace.learn(*sides)
    sample = SampleTable(space, *(space.encode(side) for side in sides))
    found = search.candidate_events(
        space, search.try_scores(sample, []), search.worth_function(Pure(0.1), 100_000, 0.05), 0.8, 2.0
    )
    assert found[0].checkable_by_hand and isinstance(found[0].event.score, CornerScore)
    best = next(lead for lead in found if lead.event.score.columns == (0, 1))
    assert best.worth > 0.8 * found[0].worth and not best.swapped
    assert str(best.event).startswith("output[0] < 3.0 and output[1] >= ")
    low = float(str(best.event).split("output[1] >= ")[1])
    for side in sides:
        assert np.array_equal(best.event.contains(side), (side[:, 0] <= 2) & (side[:, 1] >= low))


@pytest.mark.parametrize("swapped", [False, True])
def test_half_lines_are_tried_both_ways(swapped: bool) -> None:
    """An upper tail may be likelier on either input."""
    rng = np.random.default_rng(20)
    sides = [rng.laplace(shift, 1, 20_000) for shift in ((0, 1) if swapped else (1, 0))]
    space = OutcomeSpace.learn(*sides)
    sample = SampleTable(space, *(space.encode(side) for side in sides))
    found = search.candidate_events(
        space, search.try_scores(sample, []), search.worth_function(Pure(0.1), 10_000, 0.05), 0.8, 2.0
    )
    upper = [lead for lead in found if lead.event.above and lead.swapped == swapped]
    assert upper[0].worth > 0.5


def test_averaged_scores_gain_more() -> None:
    """Two numbers of little information each: the mean of their scores has more gain than either."""
    rng = np.random.default_rng(22)
    sides = [np.rint(1024 * rng.laplace(shift, 1, (40_000, 3))) / 1024 for shift in (0.2, 0.0)]
    space = OutcomeSpace.learn(*sides)
    sample = SampleTable(space, *(space.encode(side) for side in sides))
    value = search.worth_function(Pure(0.1), 100_000, 0.05)
    alone = search.try_scores(sample, [partial(learners.coarse_column, column=column) for column in range(3)])
    together = search.average_trials(sample, alone, value)
    assert [len(done.score.members) for done in together if isinstance(done.score, MeanScore)] == [3]
    best = [
        search.candidate_events(space, found, value, *search.FINAL_CAUTION[False])[0]
        for found in (alone[-3:], together)
    ]
    assert best[1].worth > 1.3 * best[0].worth
    held = np.mean([best[1].event.contains(side).mean() for side in sides])
    assert held == pytest.approx((best[1].p + best[1].q) / 2, rel=0.25)


def test_a_rare_event_of_many_scores_is_doubted_more_than_one_of_a_column() -> None:
    """The named bug: three dozen hits of one of many corners were trusted, and the test refuted nothing."""
    space = OutcomeSpace.learn(np.arange(40.0), np.arange(40.0))
    value = search.worth_function(Pure(0.1), 3_000_000, 0.05)
    worths = {}
    for hits in (8, 30_000):
        counts = np.array([hits, 2 * hits, 4 * hits])
        chain = BeliefChain(np.arange(3.0), EventCounts(3 * counts, 1_000_000), EventCounts(counts, 1_000_000))
        for score in (ColumnScore(0, np.arange(256.0)), SumScore((0,), np.zeros((1, 256)))):
            done = search.ScoreTrial(score, chain, None)
            worths[hits, type(score)] = search.candidate_events(space, [done], value, 0.3, 2.0)[0].worth
    assert worths[8, SumScore] < 0.93 * worths[8, ColumnScore]
    assert worths[30_000, SumScore] == pytest.approx(worths[30_000, ColumnScore], rel=0.01)


@pytest.mark.tier("test")
def test_scores_of_much_smaller_gain_are_left_out() -> None:
    """Twenty Laplace columns: their sum has half the gain of the best score, and rare events that look good."""
    # The named bug: with ten million samples a surface over sum and smallest was judged, at a ninth of the optimum.
    rng = np.random.default_rng(33)
    a, b = (np.rint(64 * rng.laplace(shift, 1, (60_000, 20))) / 64 for shift in (0.05, 0.0))
    space = OutcomeSpace.learn(a, b)
    sample = SampleTable(space, space.encode(a), space.encode(b))
    pair = tuple(space.names.index(name) for name in ("the sum of the numbers", "the smallest number"))
    chosen = [
        partial(learners.shared_table, columns=space.columns_in("base"), bins=2),
        partial(learners.polynomial_surface, pair=pair, degree=3),
        partial(learners.smooth_column, column=0),
    ]
    tried = search.try_scores(sample, chosen)
    tied, surface, column = tried[-3:]
    # By the laws: 20 x 0.05^2 / 8 nats of each output, for the sum about half of it.
    assert 0.8 < tied.gain / (2 * 60_000 * 20 * 0.05**2 / 8) < 1.2
    assert 0.3 < surface.gain / tied.gain < 0.65
    assert 0.02 < column.gain / tied.gain < 0.1
    kept = [id(done) for done in search.drop_weak_scores(tried)]
    assert kept == [id(done) for done in tried if done.either_direction or done is tied]
    assert len(kept) == len(tried) - 2
    assert (
        len(search.drop_weak_scores([column, *tried[:5]])) == 6
    )  # where the best reads one column, what others read may matter
    value = search.worth_function(Pure("1/10"), 100_000, 0.05)
    assert search.average_trials(sample, tried, value) == []  # three would make one
    assert len(search.average_trials(sample, [*tried, tied, tied], value)) == 1
    assert not any(
        isinstance(lead.event.score, JointScore) for lead in search.candidate_events(space, tried, value, 0.3, 1.0)
    )


@pytest.mark.tier("test")
def test_a_leak_of_one_output_is_found_beside_what_all_columns_tell() -> None:
    """One of 4,096 outputs leaks once in 250 runs; each column is a little informative too, all together much more."""
    # The named bug: scores of whole outputs were left out, as they follow noise in the other 4,095.
    rng = np.random.default_rng(34)

    def leaky(value: int, size: int) -> np.ndarray:
        found = (rng.random((size, 12)) < 0.5 + 0.004 * value).astype(np.int64)
        found[(rng.random(size) < 4e-3) & (value == 1)] = [1, 0, 1, 1, 0, 0, 1, 0, 1, 0, 0, 1]
        return found

    for seed in (1, 2, 3):
        assert audit.privacy(leaky, Pure("1/10"), [(0, 1)], samples=400_000, seed=seed).epsilon_lower > 2
