"""Distributions of noise: exact half widths on a lattice, sums of several noises, quantile functions."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from dither.post.noise import ScaledNoise, interval_half_width, pair_half_width
from dither.privacy.mechanisms.distributions import DiscreteGaussianDistribution, DiscreteLaplaceDistribution

SPREADS = [0.3, 1.0, 2.5, 10.0, 300.0]


def masses(noise: ScaledNoise, reach: int) -> np.ndarray:
    """The probabilities of -reach..reach, from the privacy layer's own distribution."""
    points = np.arange(-reach, reach + 1)
    if noise.kind == "laplace":
        return DiscreteLaplaceDistribution(Fraction(noise.spread)).mass(points)
    return DiscreteGaussianDistribution(Fraction(noise.spread) ** 2).mass(points)


@pytest.mark.parametrize(("kind", "spread"), product(["laplace", "gaussian"], SPREADS))
def test_half_width_is_the_least_that_holds_often_enough(kind: str, spread: float) -> None:
    noise = ScaledNoise(kind, spread)  # type: ignore[arg-type]
    width = int(interval_half_width([noise], 0.95))
    reach = width + 1
    mass = masses(noise, reach)
    inside = mass[reach - width : reach + width + 1].sum()
    assert inside >= 0.95 - 1e-9
    assert width == 0 or inside - 2 * mass[reach + width] < 0.95


@pytest.mark.parametrize(("kind", "spread"), product(["laplace", "gaussian"], SPREADS))
def test_std_is_that_of_the_privacy_layer(kind: str, spread: float) -> None:
    theirs = (
        DiscreteLaplaceDistribution(Fraction(spread))
        if kind == "laplace"
        else DiscreteGaussianDistribution(Fraction(spread) ** 2)
    )
    assert ScaledNoise(kind, spread, 0.25).std == pytest.approx(theirs.std / 4, rel=1e-9)  # type: ignore[arg-type]


@pytest.mark.parametrize("spreads", [(1.0, 3.0), (2.0, 2.0, 2.0), (10.0, 30.0)])
def test_sums_on_one_lattice_are_exact(spreads: tuple[float, ...]) -> None:
    noises = [ScaledNoise("laplace", spread) for spread in spreads]
    reach = 4000
    total = np.array([1.0])
    for noise in noises:
        total = np.convolve(total, masses(noise, reach // len(noises)))
    middle, width = len(total) // 2, int(interval_half_width(noises, 0.95))
    assert total[middle - width : middle + width + 1].sum() >= 0.95 - 1e-9
    assert total[middle - width + 1 : middle + width].sum() < 0.95


@pytest.mark.parametrize("weight", [0.0, 0.001, 0.5, 1.0, 7.0])
def test_pairs_have_their_closed_tail(weight: float) -> None:
    one, two = ScaledNoise("laplace", 5e3), ScaledNoise("laplace", 2e3)
    width = pair_half_width(one, two, np.array([weight]), 0.95)[0]
    levels = (np.arange(400_000) + 0.5) / 400_000
    noise = one.quantile(levels) + weight * two.quantile((levels * 0.6180339887498949 * 400_000) % 1.0)
    assert np.mean(np.abs(noise) <= width) == pytest.approx(0.95, abs=0.002)


@pytest.mark.parametrize(("kind", "spread"), product(["laplace", "gaussian"], SPREADS))
def test_quantile_functions_give_the_distribution(kind: str, spread: float) -> None:
    noise = ScaledNoise(kind, spread)  # type: ignore[arg-type]
    drawn = noise.quantile((np.arange(200_000) + 0.5) / 200_000)
    reach = math.ceil(3 * spread) + 1
    expected = masses(noise, reach)
    seen = np.array([np.mean(drawn == point) for point in range(-reach, reach + 1)])
    assert np.abs(seen - expected).max() < 2e-3


def test_no_noise_has_no_width() -> None:
    assert interval_half_width([ScaledNoise("laplace", 0.001)], 0.95) == 0.0
    assert interval_half_width([], 0.95) == 0.0
