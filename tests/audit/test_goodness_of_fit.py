from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy import stats

from dither.audit.goodness_of_fit import anderson_darling, anderson_darling_p, fit
from dither.errors import InvalidParameter
from dither.privacy.bits import SystemBits
from dither.privacy.mechanisms.distributions import DiscreteGaussianDistribution, DiscreteLaplaceDistribution
from dither.privacy.noise import discrete_gaussian, discrete_laplace

F = Fraction
ALPHA = 1e-10  # the false-alarm rate of each test of a right sampler below


def test_the_point_of_the_guidelines() -> None:
    assert anderson_darling_p(3.878125, 10**7) == pytest.approx(0.01, abs=5e-6)
    assert anderson_darling_p(2.492, 10**6) == pytest.approx(0.05, abs=2e-5)
    assert anderson_darling_p(8.001, 10**6) == pytest.approx(anderson_darling_p(7.999, 10**6), rel=0.05)


def test_p_values_of_small_samples_are_uniform() -> None:
    rng = np.random.default_rng(3)
    found = [anderson_darling(rng.random(8)).p_value for _ in range(4000)]
    assert stats.kstest(found, "uniform").pvalue > 1e-9  # a fixed seed


def fine_laplace(size: int) -> Any:
    """Draw Laplace noise as the logarithm of 53 random bits after a random number of leading zero bits."""
    rng = np.random.default_rng()
    uniform = (rng.integers(1 << 52, 1 << 53, size=size) + rng.random(size)) * 2.0 ** -(52 + rng.geometric(0.5, size))
    return np.where(rng.random(size) < 0.5, -1, 1) * np.log(uniform)


@pytest.mark.parametrize(
    ("sampler", "distribution"),
    [
        (lambda size: discrete_laplace(F(5), size, SystemBits()), DiscreteLaplaceDistribution(F(5))),
        (lambda size: discrete_gaussian(F(30), size, SystemBits()), DiscreteGaussianDistribution(F(30))),
        (lambda size: np.random.default_rng().normal(size=size), stats.norm()),
        (lambda size: np.random.default_rng().poisson(4, size=size), stats.poisson(4)),
        (lambda size: fine_laplace(size), stats.laplace()),
        (lambda size: 1e6 + np.random.default_rng().normal(size=size), stats.norm(1e6)),
    ],
    ids=["laplace", "gaussian", "normal", "poisson", "float Laplace of many bits", "normal far from 0"],
)
def test_right_samplers_pass(sampler: Callable[[int], Any], distribution: Any, tier: Any) -> None:
    found = fit(sampler, distribution, draws=tier.pick(quick=100_000, test=300_000, deep=10_000_000), alpha=ALPHA)
    assert not found.refuted, str(found)
    assert "not refuted" in str(found) and '"refuted": false' in found.report()


def coarse(size: int) -> Any:
    return np.round(np.random.default_rng().normal(size=size) * 2.0**30) / 2.0**30


def dependent(size: int) -> Any:
    z = np.random.default_rng().normal(size=size + 1)
    return (z[:-1] + 0.1 * z[1:]) / np.sqrt(1.01)


def light_tails(size: int) -> Any:
    z = np.random.default_rng().normal(size=size)
    return np.where(np.abs(z) > 3, z / 2, z)


@pytest.mark.tier("test")
@pytest.mark.parametrize(
    ("sampler", "distribution", "named"),
    [
        (lambda size: discrete_laplace(F(51, 10), size, SystemBits()), DiscreteLaplaceDistribution(F(5)), "moment"),
        (lambda size: np.random.default_rng().normal(0.02, size=size), stats.norm(), "moment 1"),
        (dependent, stats.norm(), "serial 1"),
        (light_tails, stats.norm(), "tail"),
        (coarse, stats.norm(), "last digits"),
        (lambda size: np.random.default_rng().random(size), stats.uniform(), "last digits"),
        (lambda size: np.abs(discrete_laplace(F(5), size, SystemBits())), DiscreteLaplaceDistribution(F(5)), ""),
        (lambda size: np.random.default_rng().laplace(size=size), stats.laplace(), "inverse"),
        (lambda size: stats.norm.ppf(np.random.default_rng().random(size)), stats.norm(), "lower inverse"),
        (lambda size: -np.log1p(-np.random.default_rng().random(size)), stats.expon(), "upper inverse"),
        (
            lambda size: stats.logistic.ppf(np.random.default_rng().integers(1, 1 << 40, size) / 2.0**40),
            stats.logistic(),
            "inverse",
        ),
    ],
    ids=[
        "scale 2% off",
        "shifted",
        "dependent",
        "light tails",
        "coarse",
        "floats of 53 bits",
        "one-sided",
        "numpy's Laplace",
        "normal by inversion",
        "exponential by inversion",
        "40 bits inverted",
    ],
)
def test_named_bugs_are_caught(sampler: Callable[[int], Any], distribution: Any, named: str) -> None:
    found = fit(sampler, distribution, draws=400_000, alpha=1e-9)
    assert found.refuted, str(found)
    assert min((each.p_value for each in found.tests if named in each.name), default=1.0) < 1e-9


def test_draws_that_cannot_be_tested_are_refused() -> None:
    with pytest.raises(InvalidParameter, match="shape"):
        fit(lambda size: np.zeros(size + 1), stats.norm())
    with pytest.raises(InvalidParameter, match="integer"):
        fit(lambda size: np.zeros(size), DiscreteLaplaceDistribution(F(1)))
