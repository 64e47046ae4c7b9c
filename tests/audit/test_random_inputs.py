from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from dither.audit.random_inputs import random_dp, share_above
from dither.errors import InvalidParameter
from dither.privacy.mechanisms import DiscreteLaplace

Pair = tuple[list[int], list[int]]


def incomes(rng: np.random.Generator) -> Pair:
    """Return two sums of clamped incomes, without and with one more person."""
    rest = int(np.minimum(rng.poisson(2, 5), 3).sum())
    return [rest], [rest + int(min(rng.poisson(1), 3))]


def test_typical_pairs_lose_less_than_the_worst_ones() -> None:
    mechanism = DiscreteLaplace(Fraction(3))  # pure epsilon 1 for one person who may add 3
    found = random_dp(incomes, mechanism, epsilon="2/3", pairs=50, seed=1, residual=1e-6)
    assert found.epsilon == pytest.approx(2 / 3) and 0 < found.above < 15
    assert found.above / 50 < found.gamma < 0.35 and "confidence 0.99" in str(found)
    bound = random_dp(incomes, mechanism, epsilon="1.00001", pairs=20, seed=1, residual=1e-6)
    assert bound.gamma == pytest.approx(1 - 0.01 ** (1 / 20))


def test_epsilon_may_be_chosen_by_other_pairs_than_those_that_judge() -> None:
    found = random_dp(incomes, DiscreteLaplace(Fraction(3)), pairs=20, seed=2, residual=1e-6)
    assert len(found.losses) == 10 and 0.3 < found.epsilon <= 1.0001


def test_bounds_are_binomial() -> None:
    losses = np.array([0.0] * 99 + [2.0])
    assert share_above(losses, 1.0, 0.05) == pytest.approx(0.0466, abs=2e-3)
    assert share_above(losses, -1.0, 0.05) == 1.0


def test_confidence_holds() -> None:
    """The share of pairs above epsilon is 0.1; gamma may be below that in at most 5 of 100 repetitions."""
    low = 0
    for seed in range(400):
        found = random_dp(
            lambda rng: (0, rng.random()), loss=lambda a, b: b, epsilon="0.9", pairs=60, alpha=0.05, seed=seed
        )
        low += found.gamma < 0.1
    assert low <= 50  # P(Binomial(400, 0.05) > 50) < 1e-9


def test_required_arguments() -> None:
    with pytest.raises(InvalidParameter):
        random_dp(incomes)
