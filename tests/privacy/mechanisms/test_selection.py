"""Selection: noisy max, the exponential mechanism, top k and the sparse vector technique."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp, mpf

from cases import noisy_max_distribution, real
from dither.loss import Pure, Sensitivity
from dither.privacy import mechanisms
from dither.privacy.bits import SystemBits
from dither.privacy.mechanisms.selection import draw_index, first_places, reaches
from privacy.mechanism_cases import words


@given(words, words, st.integers(-(2**62), 2**62), st.integers(-(2**62), 2**62))
def test_reaches_is_exact(score: int, noise: int, threshold: int, bar: int) -> None:
    answer = reaches(np.array([score], np.int64), np.array([noise], np.int64), threshold, bar)
    assert bool(answer[0]) == (score + noise >= threshold + bar)


@given(st.integers(-3, 3), st.integers(-3, 3), st.integers(-3, 3))
def test_reaches_at_the_edge(score: int, noise: int, bar: int) -> None:
    answer = reaches(np.array([score], np.int64), np.array([noise], np.int64), 0, bar)
    assert bool(answer[0]) == (score + noise >= bar)


def test_first_places() -> None:
    assert first_places(np.array([False, True, True, True]), 2).tolist() == [1, 2]
    assert first_places(np.array([False, True]), 3).tolist() == [1, -1, -1]


def test_noisy_max_is_permute_and_flip() -> None:
    """The largest score with exponential noise, by integration, has the distribution of permute-and-flip."""
    made, scores = mechanisms.NoisyMax(Fraction(2)), (2, 0, 1)
    distribution = noisy_max_distribution(made, scores)
    scale = real(made.scale)
    for i, score in enumerate(scores):

        def others(x: Any, i: int = i) -> Any:
            below = [1 - mp.exp(-max(mpf(0), x - other) / scale) for j, other in enumerate(scores) if j != i]
            return mp.exp(-(x - scores[i]) / scale) / scale * mp.fprod(below)

        assert abs(mp.quad(others, [score, 2, 3, 5, 10, 40, mp.inf]) - distribution[i,]) < mpf(10) ** -15


def test_selection_takes_the_whole_range_of_scores() -> None:
    """No overflow, no underflow: the far best candidate wins, ties are shared."""
    low, high = -(2**63), 2**63 - 1
    bits = SystemBits()
    scores = np.array([low, high, 0, high], np.int64)
    for made in (mechanisms.NoisyMax(1), mechanisms.ExponentialMechanism(1)):
        seen = {int(made.release(scores, bits)[0]) for _ in range(200)}
        assert seen == {1, 3}  # wrong by chance once in 2^199
    assert set(mechanisms.TopK(2, 1).release(scores, bits).tolist()) == {1, 3}
    all_low = np.full(3, low, np.int64)
    assert len({int(mechanisms.ExponentialMechanism(1).release(all_low, bits)[0]) for _ in range(400)}) == 3


def test_draw_goes_on_until_one_is_kept() -> None:
    assert draw_index(np.array([7, 0, 9], np.int64), Fraction(1000), SystemBits()) == 1


def test_the_exponential_mechanism_alone_has_bounded_range() -> None:
    sensitivity = Sensitivity.of(l0=9, linf=1)
    epsilon = Fraction(1, 10)
    scale = 2 / epsilon
    assert mechanisms.ExponentialMechanism(scale).zcdp_loss(sensitivity).rho == epsilon**2 / 8
    assert mechanisms.TopK(3, scale).zcdp_loss(sensitivity).rho == 3 * epsilon**2 / 8
    noisy = mechanisms.NoisyMax(scale).zcdp_loss(sensitivity).rho
    assert epsilon**2 / 2 * Fraction(99, 100) < noisy <= epsilon**2 / 2


def test_sparse_vector_has_the_corrected_constants() -> None:
    """Lyu, Su and Li: 1 / b1 + 2c / b2 (+ c / b3), where wrong variants leave out the c or the 2."""
    wide = Sensitivity.of(l0=1000, linf=1)
    assert mechanisms.AboveThreshold(0, 5, 10, 20).loss(wide) == Pure(Fraction(1, 10) + Fraction(10, 20))
    assert mechanisms.SparseVector(0, 5, 10, 20, 40).loss(wide) == Pure(Fraction(3, 5) + Fraction(5, 40))
    lone = Sensitivity.of(l0=1, linf=1)
    assert mechanisms.AboveThreshold(0, 5, 10, 20).loss(lone) == Pure(Fraction(1, 20))  # one noisy score tells all
