"""Exact distributions of the samplers, by enumeration of every continuation of the random bits."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import mpmath as mp
import numpy as np
import pytest

from dither.privacy.bits import Bits
from dither.privacy.noise import (
    Widths,
    bernoulli,
    bernoulli_exp,
    bernoulli_exp_each,
    discrete_gaussian,
    discrete_laplace,
    exponential,
    geometric,
    noisy_max,
    race,
    staircase,
    uniform_below,
)
from dither.privacy.noise.lattice import LatticeWeights, Sampler
from dither.privacy.noise.race import extend_digits
from privacy import exact_distributions
from privacy.noise_cases import (
    SMALL,
    SMALLEST,
    TICKS,
    WIDE_CELLS,
    F,
    assert_distribution,
    attempt_distribution,
    attempt_once,
    bits,
    cell_weights,
    draw_cell,
    keep,
)


@pytest.mark.parametrize("widths", [SMALL, SMALLEST], ids=["small", "smallest"])
@pytest.mark.parametrize("scale", [F(1, 1000), F(1, 3), F(1), F(3, 2)])
def test_laplace_by_enumeration(scale: Fraction, widths: Widths) -> None:
    assert_distribution(
        lambda bits: int(discrete_laplace(scale, 1, bits, widths)[0]), exact_distributions.laplace(scale), 1e-8
    )


@pytest.mark.parametrize("widths", [SMALL, SMALLEST], ids=["small", "smallest"])
@pytest.mark.parametrize("variance", [F(1, 10**6), F(1, 3), F(1), F(7, 2)])
def test_gaussian_by_enumeration(variance: Fraction, widths: Widths) -> None:
    assert_distribution(
        lambda bits: int(discrete_gaussian(variance, 1, bits, widths)[0]), exact_distributions.gaussian(variance), 1e-8
    )


@pytest.mark.parametrize("widths", [SMALLEST, replace(SMALLEST, cells=2, guide=4, word=6)], ids=["one", "two"])
@pytest.mark.parametrize("distribution", WIDE_CELLS, ids=str)
def test_one_attempt_by_enumeration(distribution: LatticeWeights, widths: Widths, tier: Any) -> None:
    sampler = Sampler(distribution, widths)
    assert sampler.k > 0
    assert_distribution(
        attempt_once(sampler), attempt_distribution(sampler), tier.pick(quick=0.1, test=5e-3, deep=5e-4)
    )


@pytest.mark.parametrize("distribution", WIDE_CELLS, ids=str)
def test_cells_by_enumeration(distribution: LatticeWeights) -> None:
    for widths in (SMALL, SMALLEST):
        sampler = Sampler(distribution, widths)
        weights = cell_weights(distribution, sampler.k, 400)
        total = mp.fsum(weights)
        assert_distribution(draw_cell(sampler), lambda cell, w=weights, t=total: w[cell] / t, 1e-8)


@pytest.mark.parametrize("widths", [SMALL, replace(SMALL, margin=0.3), replace(SMALL, cells=4, more=1)], ids=str)
@pytest.mark.parametrize("distribution", [LatticeWeights(1, F(37)), LatticeWeights(2, F(401))], ids=str)
def test_acceptance_by_enumeration(distribution: LatticeWeights, widths: Widths) -> None:
    """Also where the margin is so wide that nearly every comparison is refined."""
    sampler = Sampler(distribution, widths)
    for cell in (0, 1, 2, 7):
        for low in (0, 1, (1 << sampler.k) - 1):
            first = (cell >> 1 << sampler.k) + (cell & 1)
            p = mp.exp(exact_distributions.real(distribution.exponent(first) - distribution.exponent(first + low)))
            assert_distribution(keep(sampler, cell, low), lambda kept, p=p: p if kept else 1 - p, 1e-8)


@pytest.mark.parametrize("scale", [F(1, 3), F(3, 2)])
def test_geometric_by_enumeration(scale: Fraction) -> None:
    assert_distribution(
        lambda bits: int(geometric(scale, 1, bits, SMALL)[0]), exact_distributions.geometric(scale), 1e-8
    )


@pytest.mark.parametrize(("epsilon", "width", "rise"), [(F(2), 2, 1), (F(3, 2), 2, 2), (F(5), 1, 1)])
def test_staircase_by_enumeration(epsilon: Fraction, width: int, rise: int, tier: Any) -> None:
    distribution = exact_distributions.staircase(epsilon, width, rise)
    undecided = tier.pick(quick=0.4, test=0.1, deep=0.05)
    assert_distribution(
        lambda bits: int(staircase(epsilon, width, rise, 1, bits, SMALLEST)[0]), distribution, undecided
    )


@pytest.mark.parametrize("p", [F(0), F(1), F(1, 2), F(1, 3), F(127, 128), F(99, 1000)])
def test_bernoulli_by_enumeration(p: Fraction) -> None:
    distribution = {1: exact_distributions.real(p), 0: exact_distributions.real(1 - p)}
    assert_distribution(lambda bits: int(bernoulli(p, 1, bits, SMALL)[0]), distribution.__getitem__, 1e-9)


@pytest.mark.parametrize("x", [F(0), F(1, 100), F(1), F(7, 3), F(2000)])
def test_bernoulli_exp_by_enumeration(x: Fraction) -> None:
    p = mp.exp(-exact_distributions.real(x))
    distribution = {1: p, 0: 1 - p}
    assert_distribution(lambda bits: int(bernoulli_exp(x, 1, bits, SMALL)[0]), distribution.__getitem__, 1e-9)
    assert_distribution(
        lambda bits: int(bernoulli_exp_each(x / 3, np.array([3]), bits, TICKS)[0]), distribution.__getitem__, 2e-2
    )


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 13])
def test_uniform_below_by_enumeration(n: int) -> None:
    assert_distribution(lambda bits: int(uniform_below(n, 1, bits)[0]), lambda x: mp.mpf(1) / n, 1e-2)


def test_exponential_variables_by_enumeration() -> None:
    for precision in (0, 1):
        distribution = exact_distributions.geometric(F(1 << precision))
        assert_distribution(lambda bits, p=precision: exponential(p, bits, TICKS), distribution, 1e-6)
    assert_distribution(lambda bits: exponential(2, bits, TICKS), exact_distributions.geometric(F(4)), 5e-2)


@pytest.mark.parametrize(("precision", "more"), [(0, 1), (1, 2), (2, 3)])
def test_further_digits_by_enumeration(precision: int, more: int) -> None:
    """Given what is known, digit string d has probability proportional to exp(-d / 2^(precision + more))."""
    weights = [mp.exp(-mp.mpf(d) / 2 ** (precision + more)) for d in range(1 << more)]

    def run(bits: Bits) -> int:
        known, have = extend_digits(5, precision, bits, more)
        assert (known >> more, have) == (5, precision + more)
        return known & ((1 << more) - 1)

    assert_distribution(run, lambda d: weights[d] / mp.fsum(weights), 2e-2)


@pytest.mark.parametrize(("scores", "rate"), [([0, 1], F(1, 2)), ([4, 4], F(1)), ([-3, 5], F(1, 3))])
def test_noisy_max_by_enumeration(scores: list[int], rate: Fraction, tier: Any) -> None:
    distribution = exact_distributions.permute_and_flip(scores, rate)
    undecided = tier.pick(quick=0.4, test=0.25, deep=0.15)
    assert_distribution(
        lambda bits: noisy_max(np.array(scores), rate, bits, TICKS), distribution.__getitem__, undecided
    )


@pytest.mark.parametrize("nudges", [(0, 1, -1), (2, 1, 0), (-1, 0, 5), (3, 7, 8)])
def test_choices_are_decided_by_the_exact_numbers(nudges: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Exponential variables are replaced by given rationals, a few 2^-300 from a tie."""
    scores, rate = np.array([7, 5, 6]), F(1, 3)
    given = [3 - rate * score + F(nudge, 1 << 300) for score, nudge in zip(scores.tolist(), nudges, strict=True)]

    class Digits(int):
        """The first digits of a given number; remembers which."""

    def reveal(known: int, precision: int, bits: Bits, more: int) -> tuple[int, int]:
        where = known.where if isinstance(known, Digits) else [int(e * (1 << 37)) for e in given].index(known)
        digits = Digits(int(given[where] * (1 << precision + more)))
        digits.where = where
        return digits, precision + more

    monkeypatch.setattr(race, "exponential_ticks", lambda *_: np.array([int(e * (1 << 37)) for e in given]))
    monkeypatch.setattr(race, "extend_digits", reveal)
    assert noisy_max(scores, rate, bits) == nudges.index(max(nudges))
    counts = np.array([9, 9, 9])
    ties = [given[0] / 9 - F(1, 1 << 310), given[1] / 9 + F(1, 1 << 290), given[2] / 9 - F(1, 1 << 290)]
    assert [int(bernoulli_exp_each(tie, counts, bits)[i]) for i, tie in enumerate(ties)] == [1, 0, 1]
