"""Minima and maxima from noisy histograms: their intervals hold, and noise in empty bins does not decide them."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from dither.post.estimate import quantiles
from dither.post.estimate.quantiles import estimate_quantile, highest_sum
from dither.post.noise import Floats, ScaledNoise
from dither.post.query.bins import make_bins
from dither.schema import Number

DRAWS, MOST = 1500, 256
NOISES = {
    "laplace": (ScaledNoise("laplace", 3.0), lambda random, shape: np.round(random.laplace(0, 3.0, shape))),
    "gaussian": (ScaledNoise("gaussian", 4.0), lambda random, shape: np.round(random.normal(0, 4.0, shape))),
}
Noise = tuple[ScaledNoise, Callable[..., Floats]]


def noisy_counts(values: Floats, domain: Number, noise: Noise, seed: int) -> Floats:
    """Redraw the histogram of values over a declared range."""
    edges = make_bins(domain, MOST).low[1:]
    counts = np.bincount(np.searchsorted(edges, values, side="right"), minlength=len(edges) + 1)
    return np.asarray(counts + noise[1](np.random.default_rng(seed), (DRAWS, len(counts))))


@pytest.mark.parametrize("kind", NOISES)
@pytest.mark.parametrize(
    ("values", "most"), [(np.arange(500.0, 1500.0), 100_000), (np.full(300, 50.0), 100), (np.array([7.0]), 1000)]
)
def test_intervals_of_extremes_hold_in_wide_ranges(kind: str, values: Floats, most: int) -> None:
    """A right interval fails this with a probability below 1e-9: fewer than 92.5% of 1,500 draws where 97.5% hold."""
    domain = Number(Fraction(0), Fraction(most))
    counts = noisy_counts(values, domain, NOISES[kind], 1)
    for level, truth in (("min", values.min()), ("max", values.max())):
        found = estimate_quantile(counts, NOISES[kind][0], make_bins(domain, MOST), level, 0.95)  # type: ignore[arg-type]
        assert ((found.low <= truth) & (truth <= found.high)).mean() > 0.925


@pytest.mark.parametrize("kind", NOISES)
def test_noise_in_empty_bins_seldom_decides_a_maximum(kind: str) -> None:
    """A declared range that is a hundred times too wide moves the maximum of a dense table in at most a tenth of draws.

    A right estimate fails with a probability below 1e-9: 15% of 1,500 draws, where at most 10% are expected.
    """
    domain, values = Number(Fraction(0), Fraction(100_000)), np.repeat(np.arange(1000.0), 20)
    found = estimate_quantile(
        noisy_counts(values, domain, NOISES[kind], 2), NOISES[kind][0], make_bins(domain, MOST), "max", 0.95
    )
    assert (np.abs(found.values - 1000) > 1000).mean() < 0.15


def test_levels_for_one_look_would_let_noise_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: each window is judged as if it were the only one."""
    monkeypatch.setattr(
        quantiles, "highest_sum", lambda terms, noise, chance: highest_sum(terms, noise, chance * 256 * 9)
    )
    with pytest.raises(AssertionError):
        test_noise_in_empty_bins_seldom_decides_a_maximum("laplace")
    with pytest.raises(AssertionError):
        test_intervals_of_extremes_hold_in_wide_ranges("laplace", np.arange(500.0, 1500.0), 100_000)


@pytest.mark.parametrize("terms", [1, 2, 5, 40])
def test_sums_of_laplace_noises_stay_below_their_level(terms: int) -> None:
    """A right level is exceeded by more than 1.5 times its chance with a probability below 1e-9."""
    noise, chance = NOISES["laplace"][0], 1e-3
    sums = np.random.default_rng(5).laplace(0, 3.0, (400_000, terms)).sum(axis=1)
    assert (sums > highest_sum(terms, noise, chance)).mean() < 1.5 * chance
