"""Intervals of means and variances near the ends of their range: they hold the truth, and show the noise that hides it.

False alarms: coverages are compared with the binomial bounds of `test_intervals`, and noise comes from fixed seeds.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest

from dither.post.estimate.intervals import Estimate, Measured, estimate
from dither.post.formulas import Average, ClampedTo, FixedValue, Formula, FunctionCall, NoisyCell
from dither.post.noise import ScaledNoise
from post.estimate.test_intervals import CONFIDENCE, fewest

TIMES = 2_000
HIGH = 10_000.0
KINDS: list[Literal["laplace", "gaussian"]] = ["laplace", "gaussian"]


def redrawn(node: Formula, exact: list[float], noises: list[ScaledNoise]) -> Estimate:
    """Estimate a formula for many redraws of the noise in its columns."""
    random = np.random.default_rng(11)
    columns = [
        Measured(value + noise.quantile(random.random(TIMES)), noise)
        for value, noise in zip(exact, noises, strict=True)
    ]
    return estimate(node, columns, [], CONFIDENCE)


def check(found: Estimate, truth: float, low: float, high: float) -> None:
    """Check the coverage, that intervals stay in the range, and that none claims to be exact."""
    assert ((found.low <= truth) & (truth <= found.high)).mean() >= fewest(TIMES)
    assert (found.low >= low).all() and (found.high <= high).all()
    assert ((found.low <= found.value) & (found.value <= found.high)).all()
    assert (found.high - found.low > 0).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [3.0, 40.0, 600.0])
@pytest.mark.parametrize("mean", [0.0, 37.0, HIGH / 2, HIGH])
@pytest.mark.parametrize("centre", [0.0, HIGH / 2])
@pytest.mark.parametrize("columns", [2, 3])
def test_means_near_an_end_of_a_wide_range_cover(
    size: float, mean: float, centre: float, columns: int, kind: Literal["laplace", "gaussian"]
) -> None:
    """Two columns are read by Fieller's interval, three by simulation: its draws must not be clipped to the end."""
    total: Formula = NoisyCell(0) if columns == 2 else FunctionCall("add", (NoisyCell(0), NoisyCell(2)))
    node = Average(total, NoisyCell(1), FixedValue(centre), 0.0, HIGH)
    noises = [ScaledNoise(kind, 200.0, HIGH / 200), ScaledNoise(kind, 10.0), ScaledNoise(kind, 200.0)]
    exact = [size * (mean - centre), size, 0.0]
    check(redrawn(node, exact[:columns], noises[:columns]), mean, 0.0, HIGH)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [40.0, 600.0])
@pytest.mark.parametrize("deviation", [0.0, 30.0])
@pytest.mark.parametrize("root", [False, True])
def test_variances_that_noise_makes_negative_cover(
    size: float, deviation: float, root: bool, kind: Literal["laplace", "gaussian"]
) -> None:
    parts = (NoisyCell(0), NoisyCell(1), NoisyCell(2), FixedValue(1.0))
    node: Formula = ClampedTo(FunctionCall("variance", parts), 0.0, HIGH**2 / 2)
    node = FunctionCall("sqrt", (node,)) if root else node
    noises = [ScaledNoise(kind, 200.0, HIGH**2 / 4e4), ScaledNoise(kind, 200.0, HIGH / 200), ScaledNoise(kind, 4.0)]
    found = redrawn(node, [deviation**2 * (size - 1), 0.0, size], noises)
    truth, most = (deviation, HIGH / 2**0.5) if root else (deviation**2, HIGH**2 / 2)
    check(found, truth, 0.0, most * (1 + 1e-12))


def test_an_average_far_outside_its_range_shows_as_much_noise_as_one_at_the_end() -> None:
    """The named bug: 0 [0, 0], where the noise moved the whole interval below the range."""
    noises = [ScaledNoise("laplace", 100.0), ScaledNoise("laplace", 0.1)]
    node = Average(NoisyCell(0), NoisyCell(1), FixedValue(0.0), 0.0, HIGH)
    totals, sizes = np.array([-900.0, -301.0, 0.0]), np.array([100.0, 100.0, 100.0])
    found = estimate(node, [Measured(totals, noises[0]), Measured(sizes, noises[1])], [], CONFIDENCE)
    assert (found.low == 0.0).all() and (found.value == 0.0).all()
    assert found.high == pytest.approx(np.full(3, 3.0), rel=0.02)


def test_an_average_of_a_size_that_is_surely_too_small_is_unknown() -> None:
    """The size of a group cannot be negative: noise alone left it, and it says nothing about the mean."""
    noise = ScaledNoise("laplace", 5.0)
    node = Average(NoisyCell(0), NoisyCell(1), FixedValue(50.0), 0.0, 100.0)
    found = estimate(node, [Measured(np.array([3.0]), noise), Measured(np.array([-27.0]), noise)], [], CONFIDENCE)
    assert (found.low[0], found.high[0]) == (0.0, 100.0)
