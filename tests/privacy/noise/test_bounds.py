"""Enclosures of exp and of cumulative distributions hold and are tight."""

from __future__ import annotations

from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest

from dither.privacy import noise
from dither.privacy.noise import FULL, exp_enclosure, lattice
from dither.privacy.noise.lattice import LatticeWeights, Sampler, thresholds
from privacy import exact_distributions
from privacy.noise_cases import F, cell_weights


@pytest.mark.parametrize("precision", [0, 1, 5, 16, 64, 200, 1000])
@pytest.mark.parametrize("x", [F(0), F(1, 10**9), F(1, 3), F(1), F(31, 32), F(7, 2), F(100), F(5001, 7), F(10**6)])
def test_exp_enclosure_holds_and_is_tight(x: Fraction, precision: int) -> None:
    low, high = exp_enclosure(x, precision)
    with mp.workdps(400):
        assert low <= mp.exp(-exact_distributions.real(x)) * 2**precision <= high
    assert high - low <= 2


@pytest.mark.parametrize("precision", [8, 64, 128])
@pytest.mark.parametrize(
    "distribution",
    [
        LatticeWeights(1, F(1, 2)),
        LatticeWeights(1, F(7)),
        LatticeWeights(1, F(1000, 3)),
        LatticeWeights(2, F(1, 10)),
        LatticeWeights(2, F(30)),
        LatticeWeights(2, F(10**5)),
    ],
)
def test_thresholds_enclose_the_cumulative_distribution_of_the_cells(
    distribution: LatticeWeights, precision: int
) -> None:
    k = Sampler(distribution, FULL).k
    lows, slack = thresholds(distribution, k, precision)
    weights = cell_weights(distribution, k, len(lows) + len(lows) // 2 + 100)
    total, partial_sum = mp.fsum(weights), mp.mpf(0)
    assert slack <= 3
    for low, weight in zip(lows, weights, strict=False):
        partial_sum += weight
        assert low <= partial_sum / total * 2**precision <= low + slack


def test_the_polynomial_is_within_its_margin() -> None:
    x = np.append(np.random.default_rng(5).random(2000) / 2, [0, 0.5])
    worst = max(
        abs(y - mp.exp(-mp.mpf(v))) for v, y in zip(x.tolist(), lattice.exp_polynomial(x).tolist(), strict=True)
    )
    assert worst < 2**-44


@pytest.mark.parametrize("precision", [0, 1, 7, 64, 300])
@pytest.mark.parametrize(("epsilon", "width", "rise"), [(F(1), 10, 4), (F(1, 1 << 20), 1 << 20, 1), (F(700), 5, 5)])
def test_the_middle_step_is_enclosed(epsilon: Fraction, width: int, rise: int, precision: int) -> None:
    low, high = noise._middle_enclosure(epsilon, width, rise, precision)
    with mp.workdps(800):
        b = mp.exp(-exact_distributions.real(epsilon))
        a = (2 * rise - 1) * (1 - b)
        assert low <= a / (a + 2 * width * b) * 2**precision <= high
    assert high - low <= 2
