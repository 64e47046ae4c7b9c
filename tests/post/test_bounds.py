"""Bounds that are found privately: near the best, honest about what they cut, and unmoved by noise alone."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from conftest import Tier
from dither.access.measure import Count
from dither.access.relation import Scan
from dither.errors import InvalidParameter
from dither.post.bounds import Bound, Found, bound_of, edges, found, ladder
from dither.post.laws import Law
from dither.privacy.mechanisms import DiscreteLaplace
from dither.privacy.tails import rung
from dither.wire import AutoBound, Tradeoff

ROW = 256
WORLDS = {
    "heavy tail": lambda random: random.poisson(np.minimum(random.pareto(1.5, 100_000) * 10, 5_000)),
    "about the same": lambda random: random.poisson(20, 20_000),
    "one row each": lambda random: np.ones(5_000, int),
    "few people": lambda random: np.minimum(random.geometric(0.1, 400) - 1, 60),
}


def histogram(masses: np.ndarray, points: tuple[int, ...]) -> np.ndarray:
    places = np.searchsorted(points, masses[masses > 0], side="right")
    return np.bincount(places, minlength=len(points) + 1).astype(float)


def chosen(noisy: np.ndarray, scale: float, noise: float, cells: int) -> Found:
    """The bound that the kernel would take from these counts, with what post says about it."""
    points = edges(ROW)
    mechanism = DiscreteLaplace(Fraction(scale))
    rule = Tradeoff(points, Fraction(noise), cells)
    search = AutoBound(Count(Scan("actions")), mechanism, ladder(points, 1 << 31), "mass", rule)
    return found(rung(search, [round(value) for value in noisy], mechanism), points, noisy, mechanism.std())


@pytest.mark.parametrize("name", WORLDS)
def test_found_bounds_are_useful_and_honest(name: str, tier: Tier) -> None:
    """Fixed seeds, so nothing here can fail by chance."""
    random = np.random.default_rng(6)
    masses = WORLDS[name](random) * float(ROW)
    points, law = edges(ROW), Law("laplace", 10.0)
    held = []
    for _ in range(tier.pick(quick=20, test=100, deep=400)):
        noisy = histogram(masses, points) + law.at(random.random(len(points) + 1))
        best = chosen(noisy, 10.0, 2**0.5 / 0.9, 6)
        kept = np.minimum(masses, best.bound).sum()
        removed = np.maximum(masses - best.bound, 0).sum()
        assert removed / kept < 0.5
        held.append(removed / kept <= 2 * best.inflation_high)
        assert best.bound <= 4 * masses.max() + ROW
    assert np.mean(held) >= 0.95


def test_without_noise_nothing_is_imagined() -> None:
    masses = np.full(1_000, 20.0 * ROW)
    points = edges(ROW)
    best = chosen(histogram(masses, points), 1e-3, 1e-6, 1)
    assert best.removed == pytest.approx(0.0, abs=masses.sum() * 0.01)
    assert best.bound >= 16 * ROW


def test_empty_data_have_a_bound_too() -> None:
    points, law = edges(ROW), Law("laplace", 10.0)
    noisy = law.at(np.random.default_rng(1).random(len(points) + 1))
    best = chosen(noisy, 10.0, 2**0.5 / 0.9, 6)
    assert best.bound >= 1 and np.isfinite(best.inflation_high)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (None, Bound(auto=True)),
        ("auto", Bound(auto=True)),
        (20, Bound(rows=20)),
        ("20", Bound(rows=20)),
        ({"groups": 3, "rows": 5}, Bound(rows=5, groups=3)),
        ({"rows": 5, "how": "rows"}, Bound(rows=5, how="rows")),
        ({"rows": "auto", "how": "rows"}, Bound(auto=True, how="rows")),
    ],
)
def test_ways_to_say_a_bound(given: object, meant: Bound) -> None:
    assert bound_of(given) == meant


@pytest.mark.parametrize(
    "given", [0, -1, True, 2.5, "many", {"groups": 3}, {"rows": 5, "more": 1}, {"rows": 5, "how": "x"}]
)
def test_bounds_that_mean_nothing(given: object) -> None:
    with pytest.raises(InvalidParameter):
        bound_of(given)
