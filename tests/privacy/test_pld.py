"""The optional figure for parameters fixed in advance: above the exact value, near it, and labelled."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from importlib.util import find_spec

import mpmath
import pytest

from conftest import require
from dither.errors import InvalidParameter, Unsupported
from dither.loss import ZCDP, Sensitivity
from dither.privacy.accounting.conversion import epsilon_at
from dither.privacy.mechanisms.additive import DiscreteGaussian, DiscreteLaplace, Staircase
from privacy.pld import FIXED_IN_ADVANCE, Fixed, pld_figure

pytestmark = pytest.mark.tier("test")  # dp-accounting takes seconds to import
ONE = Sensitivity.of(l0=1, linf=1)


@pytest.fixture(autouse=True)
def library() -> None:
    """dp-accounting, or a printed reason."""
    require(find_spec("dp_accounting"), "privacy loss distributions: pip install dp-accounting")


def exact_gaussian(sigma: float, delta: float) -> float:
    """The exact epsilon of continuous Gaussian noise, which integer noise of this size matches to far beyond 1e-6."""

    def over(epsilon: mpmath.mpf) -> mpmath.mpf:
        edge, half = epsilon * sigma, mpmath.mpf(1) / (2 * sigma)
        return mpmath.ncdf(half - edge) - mpmath.exp(epsilon) * mpmath.ncdf(-half - edge) - delta

    low, high = mpmath.mpf(0), mpmath.mpf(20)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if over(middle) > 0 else (low, middle)
    return float(high)


def test_a_hundred_gaussian_answers_fixed_in_advance() -> None:
    figure = pld_figure([Fixed(DiscreteGaussian(400), ONE, times=100)], 1e-6)
    exact = exact_gaussian(2, 1e-6)
    assert abs(exact - 2.2541) < 1e-4
    assert Decimal(exact) <= figure.epsilon <= Decimal("2.2541") + Decimal("0.001")
    assert figure.epsilon <= Decimal(float(epsilon_at(ZCDP("1/8"), 1e-6)))
    assert figure.holds == FIXED_IN_ADVANCE and "fixed" in figure.holds


@pytest.mark.parametrize(("cells", "move", "times"), [(1, 1, 1), (4, 1, 3), (1, 3, 5), (9, 2, 1)])
def test_gaussian_figures_are_above_the_exact_one(cells: int, move: int, times: int) -> None:
    answer = Fixed(DiscreteGaussian(900), Sensitivity.of(l0=cells, linf=move), times)
    exact = exact_gaussian(30 / (move * math.sqrt(cells * times)), 1e-5)
    assert exact <= pld_figure([answer], 1e-5).epsilon <= exact + 0.001


def test_different_answers_together_never_pass_the_simple_sum() -> None:
    answers = [Fixed(DiscreteLaplace(10), ONE, times=5), Fixed(Staircase("1/10", 5, 2), ONE)]
    assert Decimal("0.3") < pld_figure(answers, 1e-9).epsilon <= Decimal("0.6001")
    assert pld_figure(answers[:1], 1e-5).epsilon < Decimal("0.5")
    alone = pld_figure([Fixed(DiscreteLaplace(10), ONE)], 1e-9).epsilon
    assert Decimal("0.1") <= alone <= Decimal("0.1002")


def test_what_has_no_figure_says_so() -> None:
    class Odd:
        def loss(self, _: Sensitivity) -> ZCDP:
            return ZCDP(1)

    with pytest.raises(Unsupported):
        pld_figure([Fixed(Odd(), ONE)], 1e-6)  # type: ignore[arg-type]
    for delta in (0, 1e-12, 1):
        with pytest.raises(InvalidParameter):
            pld_figure([Fixed(DiscreteLaplace(10), ONE)], delta)
    with pytest.raises(InvalidParameter):
        pld_figure([], 1e-6)
    with pytest.raises(InvalidParameter):
        Fixed(DiscreteLaplace(Fraction(10)), ONE, times=0)
