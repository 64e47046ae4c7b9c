"""Draws follow the exact distributions of the mechanisms; moments and published distributions agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from mpmath import mpf
from scipy import stats

from cases import CASES, OUTSIDE, Case, Distribution, real, softmax
from dither.errors import Unsupported
from dither.privacy import mechanisms
from dither.privacy.bits import SystemBits
from dither.privacy.mechanisms import quantiles, saturating_add, selection
from privacy.mechanism_cases import MARGIN, every, words


def drawn(case: Case, exact: tuple[int, ...], size: int) -> Counter[Any]:
    values = np.array(exact, np.int64)
    bits = SystemBits()
    return Counter(tuple(case.mechanism.release(values, bits).tolist()) for _ in range(size))


def unlikely(seen: Counter[Any], distribution: Distribution) -> list[Any]:
    """Outcomes whose count is, on its own, too rare: exact binomial tails, shared over all outcomes.

    The chance that a right distribution gives any is at most 1e-11, whatever the number of outcomes.
    """
    size = sum(seen.values())
    level = 1e-11 / (len(distribution) + 1)
    chances = {output: min(1.0, max(0.0, float(p))) for output, p in distribution.items()}
    chances["other"] = max(0.0, 1 - sum(chances.values())) + float(OUTSIDE)
    counts = Counter({output: seen[output] for output in distribution})
    counts["other"] = size - sum(counts.values())
    found = []
    for output, p in chances.items():
        tail = min(stats.binom.cdf(counts[output], size, p), stats.binom.sf(counts[output] - 1, size, p))
        if tail < level / 2:
            found.append((output, counts[output], size * p))
    return found


@pytest.mark.parametrize("case", CASES, ids=every)
def test_draws_follow_the_distribution(case: Case, tier: Any) -> None:
    exact = case.pairs[0][0]
    size = tier.pick(quick=500, test=10_000, deep=50_000)
    seen = drawn(case, exact, size if len(exact) < 10 else size // 20)
    assert unlikely(seen, case.distribution(case.mechanism, exact)) == []  # 40 cases at 1e-11: below 1e-9 in all


def with_half_the_scale(case: Case) -> Case:
    scale: Fraction = case.mechanism.scale / 2  # type: ignore[attr-defined]
    return replace(case, mechanism=replace(case.mechanism, scale=scale))  # type: ignore[type-var]


def apart(one: Distribution, other: Distribution) -> float:
    """The distance in total variation."""
    return float(sum(abs(one.get(output, 0) - other.get(output, 0)) for output in {*one, *other}) / 2)


class Branch(Exception):
    """The script of choices ends here; `chances` are those of the next choice."""

    def __init__(self, chances: list[Any]) -> None:
        self.chances = chances


def followed(release: Callable[[], Any], module: Any, monkeypatch: pytest.MonkeyPatch) -> Distribution:
    """The exact distribution of a release that chooses with `draw_index` only: each script and its chance."""
    distribution: Distribution = {}
    open_ends: list[tuple[tuple[int, ...], Any]] = [((), mpf(1))]
    while open_ends:
        script, chance = open_ends.pop()
        left = iter(script)

        def scripted(misses: Any, rate: Fraction, bits: Any, left: Any = left) -> int:
            for place in left:
                return int(place)
            raise Branch(softmax([-real(rate * int(miss)) for miss in misses]))

        monkeypatch.setattr(module, "draw_index", scripted)
        try:
            output = tuple(release().tolist())
        except Branch as branch:
            open_ends += [((*script, place), chance * p) for place, p in enumerate(branch.chances)]
            continue
        distribution[output] = distribution.get(output, mpf(0)) + chance
    return distribution


CHOOSING = [
    case
    for case in CASES
    if case.mechanism.name in ("quantiles", "top_k", "exponential") and len(case.pairs[0][0]) < 10
]


@pytest.mark.parametrize("case", CHOOSING, ids=every)
def test_the_choices_have_exactly_the_written_distribution(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    module = quantiles if case.mechanism.name == "quantiles" else selection
    for exact, distribution in list(case.distributions().items())[:6]:
        values = np.array(exact, np.int64)
        found = followed(lambda values=values: case.mechanism.release(values, SystemBits()), module, monkeypatch)
        assert set(found) <= set(distribution)
        assert max(abs(found.get(output, 0) - p) for output, p in distribution.items()) < MARGIN


@pytest.mark.tier("test")
def test_draws_at_a_wrong_scale_are_caught() -> None:
    """A test of the test: noise of half the scale does not pass where it changes the distribution by a tenth."""
    tried = 0
    for case in CASES:
        if hasattr(case.mechanism, "scale"):
            wrong, exact = with_half_the_scale(case), case.pairs[0][0]
            right = case.distribution(case.mechanism, exact)
            if apart(wrong.distribution(wrong.mechanism, exact), right) > 0.1:
                tried += 1
                assert unlikely(drawn(wrong, exact, 6_000), right), case.id
    assert tried >= 12


@pytest.mark.tier("test")
@pytest.mark.parametrize("name", ["discrete_laplace", "discrete_gaussian", "geometric", "staircase"])
def test_moments_follow_theory(name: str) -> None:
    """A million cells: the mean of zero and the stated variance, each within 7 standard errors (1e-11)."""
    made = {
        "discrete_laplace": mechanisms.DiscreteLaplace(Fraction(40)),
        "discrete_gaussian": mechanisms.DiscreteGaussian(Fraction(900)),
        "geometric": mechanisms.Geometric(Fraction(3, 2)),
        "staircase": mechanisms.Staircase(Fraction(1, 2), 20, 6),
    }[name]
    size = 1_000_000
    noise = made.release(np.zeros(size, np.int64), SystemBits()).astype(float)
    std = made.std()
    assert abs(noise.mean()) < 7 * std / size**0.5
    spread = (noise**2).std() / size**0.5
    assert abs((noise**2).mean() - std**2) < 7 * spread


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.mechanism.name in ("discrete_laplace", "staircase")], ids=every
)
def test_the_public_distribution_is_the_distribution(case: Case) -> None:
    points = np.arange(-200, 201)
    mass = case.mechanism.noise_distribution.mass(points)
    assert mass.sum() == pytest.approx(1, abs=1e-9)
    assert np.sqrt((mass * points**2).sum()) == pytest.approx(case.mechanism.std(), rel=1e-7)
    expected = case.distribution(case.mechanism, (0,) * len(case.pairs[0][0]))
    if len(case.pairs[0][0]) == 1:
        assert float(expected[(3,)]) == pytest.approx(float(mass[203]), rel=1e-12)


@pytest.mark.parametrize("variance", [Fraction(1, 5), Fraction(2), Fraction(100)])
def test_the_public_gaussian_distribution(variance: Fraction) -> None:
    made = mechanisms.DiscreteGaussian(variance)
    points = np.arange(-200, 201)
    mass = made.noise_distribution.mass(points)
    assert mass.sum() == pytest.approx(1, abs=1e-12)
    assert np.sqrt((mass * points**2).sum()) == pytest.approx(made.std(), rel=1e-12)


def test_selection_has_no_noise_in_each_cell() -> None:
    with pytest.raises(Unsupported, match="noisy_max"):
        _ = mechanisms.NoisyMax(Fraction(1)).noise_distribution


@given(words, words)
def test_saturating_add(x: int, y: int) -> None:
    total = saturating_add(np.array([x], np.int64), np.array([y], np.int64))
    assert total[0] == max(-(2**63), min(2**63 - 1, x + y))
