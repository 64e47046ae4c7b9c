"""Statistics of many draws, and faults that they must find."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chi2

from dither.privacy.bits import SystemBits
from dither.privacy.noise import (
    bernoulli,
    bernoulli_exp,
    bernoulli_exp_each,
    discrete_gaussian,
    discrete_laplace,
    geometric,
    noisy_max,
    staircase,
    uniform_below,
)
from privacy import exact_distributions
from privacy.noise_cases import ALARM, F, assert_counts, grouped

SCALES = [F(1, 2), F(1), F(5), F(100), F(10**6), F(10**9), F(1 << 40)]
SAMPLERS = [(1, scale) for scale in SCALES] + [(2, scale**2) for scale in SCALES] + [(2, F(2, 7)), (1, F(200, 3))]


def chi_squared(values: NDArray[np.int64], distribution: exact_distributions.Cumulative) -> float:
    """How far the statistic is from where it would raise the alarm; negative is an alarm."""
    scale = float(distribution.parameter) ** (1 / distribution.power)
    edges = np.unique(np.round(np.linspace(-5, 5, 61) * scale).astype(np.int64))
    expected = np.diff(distribution(edges), prepend=0, append=1) * len(values)
    counts = np.bincount(np.searchsorted(edges, values), minlength=len(edges) + 1)
    observed, wanted = grouped(counts, expected)
    statistic = ((observed - wanted) ** 2 / wanted).sum()
    return float(chi2.isf(ALARM, len(wanted)) - statistic)


def spread(values: NDArray[np.int64], distribution: exact_distributions.Cumulative) -> NDArray[np.float64]:
    """Uniform numbers, sorted: each value is spread over the step of its distribution function."""
    below, upto = distribution(values - 1), distribution(values)
    uniform = below + (upto - below) * np.random.default_rng().random(len(values))
    uniform.sort()
    return np.clip(uniform, 1e-300, 1 - 2.0**-53)


def anderson_darling(uniform: NDArray[np.float64]) -> float:
    """P(A^2 > z) is about sqrt(3 / (pi z)) exp(-z): 5e-10 at 20 (and 1% at 3.878)."""
    n = len(uniform)
    weights = 2 * np.arange(1, n + 1) - 1
    return 20 - float(-n - (weights * (np.log(uniform) + np.log1p(-uniform[::-1]))).sum() / n)


def kolmogorov_smirnov(uniform: NDArray[np.float64]) -> float:
    """Dvoretzky, Kiefer, Wolfowitz, Massart: P(sqrt(n) D > t) <= 2 exp(-2 t^2)."""
    n = len(uniform)
    steps = np.arange(n + 1) / n
    distance = max(float((steps[1:] - uniform).max()), float((uniform - steps[:-1]).max()))
    return float(np.sqrt(np.log(2 / ALARM) / 2) - np.sqrt(n) * distance)


def low_digits(values: NDArray[np.int64], scale: float) -> float:
    """The last four binary digits are uniform to 1e-9 from scale 30 on, and independent from one value to the next."""
    if scale < 100:
        return 1.0
    digits = values & 15
    pairs = np.bincount(digits[:-1:2] * 16 + digits[1::2], minlength=256)
    expected = pairs.sum() / 256
    return float(chi2.isf(ALARM, 255) - ((pairs - expected) ** 2 / expected).sum())


def margins(values: NDArray[np.int64], power: int, parameter: Fraction) -> list[float]:
    distribution = exact_distributions.Cumulative(power, parameter)
    uniform = spread(values, distribution)
    scale = float(parameter) ** (1 / power)
    return [
        chi_squared(values, distribution),
        anderson_darling(uniform),
        kolmogorov_smirnov(uniform),
        low_digits(values, scale),
    ]


def sample(power: int, parameter: Fraction, size: int) -> NDArray[np.int64]:
    return (discrete_laplace if power == 1 else discrete_gaussian)(parameter, size, SystemBits())


@pytest.mark.parametrize(("power", "parameter"), SAMPLERS, ids=str)
def test_draws_follow_the_distribution(power: int, parameter: Fraction, tier: Any) -> None:
    size = tier.pick(quick=100_000, test=1_000_000, deep=10_000_000)
    assert min(margins(sample(power, parameter, size), power, parameter)) > 0


@pytest.mark.parametrize(("power", "parameter"), [(1, F(5)), (2, F(10**12))])
def test_pooled_draws_follow_the_distribution(power: int, parameter: Fraction) -> None:
    values = np.concatenate([sample(power, parameter, size) for size in (1, 7, 100, 1000) * 90])
    assert min(margins(values, power, parameter)) > 0


@pytest.mark.parametrize("scale", [F(1, 2), F(30), F(10**7)])
def test_geometric_draws_follow_the_distribution(scale: Fraction) -> None:
    """Given a fair sign (as -x - 1) a geometric variable is not Laplace; its own distribution function is simple."""
    values = geometric(scale, 200_000, SystemBits())
    q = np.exp(-1 / float(scale))
    uniform = -np.expm1(-values / float(scale)) + (1 - q) * q**values * np.random.default_rng().random(len(values))
    uniform.sort()
    uniform = np.clip(uniform, 1e-300, 1 - 2.0**-53)
    assert anderson_darling(uniform) > 0
    assert kolmogorov_smirnov(uniform) > 0


def test_counts_of_another_distribution_are_noticed() -> None:
    """A rare cell that is half too full is seen, and a single draw where hardly any is expected is not."""
    assert_counts(np.array([199_999, 1]), [1 - 1e-8, 1e-8])
    with pytest.raises(AssertionError):
        assert_counts(np.array([180_000, 18_500, 1_500]), [0.9, 0.095, 0.005])


@pytest.mark.parametrize(("epsilon", "width", "rise"), [(F(1), 10, 4), (F(1, 10), 3, 3), (F(3), 1, 1), (F(2), 1000, 1)])
def test_staircase_draws_follow_the_distribution(epsilon: Fraction, width: int, rise: int) -> None:
    values = staircase(epsilon, width, rise, 200_000, SystemBits())
    distribution = exact_distributions.staircase(epsilon, width, rise)
    probabilities = np.array([float(distribution(x)) for x in range(-6 * width, 6 * width + 1)])
    edges = np.arange(-6 * width, 6 * width + 1, max(1, width // 5))
    parts = np.add.reduceat(probabilities[:-1], edges[:-1] + 6 * width)
    inside = values[(values >= edges[0]) & (values < edges[-1])]
    counts = np.histogram(inside, edges)[0]
    assert_counts(np.append(counts, len(values) - len(inside)), [*parts, 1 - parts.sum()])


def test_other_draws_follow_the_distribution() -> None:
    bits = SystemBits()
    assert_counts(np.bincount(bernoulli(F(1, 3), 100_000, bits), minlength=2), [2 / 3, 1 / 3])
    p = float(mp.exp(-mp.mpf(1) / 7))
    assert_counts(np.bincount(bernoulli_exp(F(1, 7), 100_000, bits), minlength=2), [1 - p, p])
    assert_counts(np.bincount(bernoulli_exp_each(F(1, 70), np.full(100_000, 10), bits), minlength=2), [1 - p, p])
    assert_counts(np.bincount(uniform_below(11, 100_000, bits), minlength=11), [1 / 11] * 11)
    large = uniform_below(3 << 61, 100_000, bits)
    assert_counts(np.bincount(large >> 61, minlength=3), [1 / 3] * 3)


@pytest.mark.parametrize(
    ("scores", "rate"), [([3, 1, 2, 2], F(1, 2)), ([0, 0, 0], F(0)), ([2**62, 2**62 - 3], F(1, 3))]
)
def test_noisy_max_follows_the_distribution(scores: list[int], rate: Fraction, tier: Any) -> None:
    bits, vector = SystemBits(), np.array(scores)
    draws = [noisy_max(vector, rate, bits) for _ in range(tier.pick(quick=5_000, test=50_000, deep=300_000))]
    distribution = [float(p) for p in exact_distributions.permute_and_flip(scores, rate)]
    assert_counts(np.bincount(draws, minlength=len(scores)), distribution)


def test_noisy_max_at_the_ends_of_the_range() -> None:
    scores = np.array([-(2**63), 2**63 - 1])
    assert noisy_max(scores, F(1), SystemBits()) == 1
    assert noisy_max(scores[::-1].copy(), F(1 << 40), SystemBits()) == 0


FAULTS: dict[str, Callable[[NDArray[np.int64]], NDArray[np.int64]]] = {
    "shifted by one": lambda x: x + 1,
    "wrong sign at zero": lambda x: np.where(x < 0, x + 1, x),
    "even only": lambda x: x & ~1,
    "clamped": lambda x: np.clip(x, -8, 8),
    "scale one percent too small": lambda x: np.where(np.random.default_rng().random(len(x)) < 0.05, x * 4 // 5, x),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_statistics_catch(fault: str) -> None:
    for power, parameter in ((1, F(5)), (2, F(25))):
        values = FAULTS[fault](sample(power, parameter, 400_000))
        assert min(margins(values, power, parameter)) < 0
