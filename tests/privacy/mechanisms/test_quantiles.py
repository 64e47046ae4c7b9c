"""Quantiles: their costs, and points that are near the wanted ranks and in order."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cases import quantiles_distribution
from dither.loss import Pure, Sensitivity
from dither.privacy import mechanisms
from dither.privacy.bits import SystemBits
from dither.privacy.mechanisms import quantiles


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(1, 9), st.integers(1, 9))
def test_misses_are_distances_of_ranks(counts: list[int], below: int, above: int) -> None:
    found = quantiles.rank_errors(np.array(counts, np.int64), below, above)
    target = Fraction(below * sum(counts), below + above)
    for place, miss in enumerate(found.tolist()):
        half = Fraction(1, 2) if counts[place] else Fraction(0)
        low, high = sum(counts[:place]) + half, sum(counts[: place + 1]) - half
        assert Fraction(miss, 2 * (below + above)) == max(Fraction(0), low - target, target - high)


@given(st.lists(st.integers(-3, 5), min_size=1, max_size=6), st.integers(1, 9), st.integers(1, 9), st.data())
def test_a_row_moves_no_score_by_more_than_the_larger_share(
    counts: list[int], below: int, above: int, data: st.DataObject
) -> None:
    """The step of the proof that the loss rests on; an error of half a row in the score fails it."""
    changes = data.draw(st.lists(st.integers(-2, 2), min_size=len(counts), max_size=len(counts)))
    before, after = (quantiles.rank_errors(np.array(each, np.int64), below, above) for each in (
        counts, [count + change for count, change in zip(counts, changes, strict=True)]
    ))  # fmt: skip
    most = 2 * max(below, above) * sum(map(abs, changes))
    assert np.abs(before - after).max() <= most


def test_an_odd_row_is_the_median_and_ties_cover_all_their_ranks() -> None:
    assert quantiles.rank_errors(np.array([0, 1, 0, 1, 0, 1, 0], np.int64), 1, 1).tolist() == [6, 4, 2, 0, 2, 4, 6]
    assert quantiles.rank_errors(np.array([7, 1, 1, 1], np.int64), 1, 1).tolist() == [0, 10, 14, 18]


def test_several_quantiles_cost_less_than_one_mechanism_each() -> None:
    one = Sensitivity.of(l0=1, linf=1)
    deciles = tuple(Fraction(i, 10) for i in range(1, 10))
    together = mechanisms.Quantiles(deciles, 10)
    apart = [mechanisms.Quantiles((q,), 10) for q in deciles]
    assert together.loss(one).epsilon < sum(made.loss(one).epsilon for made in apart) * Fraction(2, 5)
    assert together.zcdp_loss(one).rho < sum(made.zcdp_loss(one).rho for made in apart) * Fraction(2, 5)


def test_one_quantile_costs_the_rank_times_the_larger_share() -> None:
    for rows in (1, 4):
        sensitivity = Sensitivity.of(l0=1, linf=rows)
        for q in (Fraction(1, 2), Fraction(1, 10), Fraction(9, 10)):
            assert mechanisms.Quantiles((q,), 20).loss(sensitivity) == Pure(2 * rows * max(q, 1 - q) / 20)


def test_quantiles_are_near_and_in_order() -> None:
    """At a scale of a thousandth of the rows, each chosen point is within a hundredth of its rank (miss: e^-100)."""
    counts = np.random.default_rng(1).poisson(1000, 500).astype(np.int64)
    made = mechanisms.Quantiles(tuple(Fraction(i, 8) for i in range(1, 8)), 500)
    places = made.release(counts, SystemBits())
    shares = np.cumsum(counts)[places] / counts.sum()
    assert (np.diff(places) >= 0).all()
    assert np.abs(shares - np.arange(1, 8) / 8).max() < 0.05


def test_quantiles_of_mostly_one_value() -> None:
    counts = np.array([0, 0, 90_000, 4_000, 3_000, 3_000], np.int64)
    made = mechanisms.Quantiles(("1/4", "1/2", "3/4"), 10)
    assert made.release(counts, SystemBits()).tolist() == [2, 2, 2]


def test_quantiles_of_huge_counts_do_not_overflow() -> None:
    counts = np.array([2**63 - 1, 2**63 - 1, -(2**63)], np.int64)
    assert set(mechanisms.Quantiles(("1/2",), 1).release(counts, SystemBits()).tolist()) <= {0, 1, 2}


def test_noisy_maxima_are_nearer_than_exponential_mechanisms_at_the_same_loss() -> None:
    """By their exact distributions: the mean distance from the median, for five rows at each point and epsilon 1/3."""
    counts, one, means = (5, 5, 5, 5, 5), Sensitivity.of(l0=1, linf=1), []
    for kind in (mechanisms.NoisyMaxQuantiles, mechanisms.Quantiles):
        made = kind((Fraction(1, 2),), Fraction(3))
        assert made.loss(one) == Pure("1/3")
        means.append(sum(p * abs(place - 2) for (place,), p in quantiles_distribution(made, counts).items()))
    assert means[0] < 0.9 * means[1]


def test_noisy_maxima_take_a_million_points() -> None:
    made = mechanisms.NoisyMaxQuantiles(("1/4", "1/2", "3/4"), 1)
    places = made.release(np.full(1 << 20, 100, np.int64), SystemBits())
    assert np.abs(places - np.array([1, 2, 3]) * (1 << 18)).max() < 5  # a point away is 100 scales away
    made.check_length(1 << 20)


def test_no_score_of_the_largest_counts_overflows() -> None:
    """Scores are doubled for half rows: what fits without them would wrap around, and keep to no sensitivity."""
    seen: list[list[int]] = []

    def select(errors: np.ndarray, rate: Fraction) -> int:
        seen.append(errors.tolist())
        return 0

    large, whole = 1 << 62, 10_000
    most = quantiles.HALF_INT64 // (4 * 3 * whole)
    for counts in ([large] * 3, [large, 0, 0], [0, 0, large], [-large, large, -large]):
        made = mechanisms.NoisyMaxQuantiles((Fraction(whole - 1, whole),), 1)
        quantiles.release_points(made, np.array(counts, np.int64), select)
        held = [max(-most, min(most, count)) for count in counts]
        assert seen[-1] == [exact_error(held, point, whole - 1, 1) for point in range(3)]


def exact_error(counts: list[int], point: int, below: int, above: int) -> int:
    """Compute the score of a point in integers of any size."""
    less, here, more = sum(counts[:point]), counts[point], sum(counts[point + 1 :])
    half = max(0, min(1, here))
    too_high = above * (2 * less + half) - below * (2 * (here + more) - half)
    too_low = below * (2 * more + half) - above * (2 * (less + here) - half)
    return max(0, too_high, too_low)
