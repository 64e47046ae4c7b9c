"""The meaning of a loss: curves of epsilon against delta, and the power of tests."""

from __future__ import annotations

from fractions import Fraction

import mpmath
import pytest
from hypothesis import given
from mpmath import mpf

from dither.errors import InvalidParameter
from dither.loss import ZCDP, Approximate, Loss, Pure, Renyi
from dither.post.interpretation import interpret, power_of_test, privacy_curve
from dither.privacy.accounting.conversion import as_renyi
from privacy.accounting_cases import ROUNDING, Distribution, discrete_gaussian, rates, real, response, small

pytestmark = pytest.mark.usefixtures("precision")


def test_the_whole_curve_falls_as_delta_grows() -> None:
    curve = privacy_curve(ZCDP("1/8"), [Fraction(1, 10**places) for places in range(1, 16)])
    epsilons = [epsilon for _, epsilon in curve]
    assert epsilons == sorted(epsilons) and len(curve) == 15


@given(small, rates)
def test_power_of_a_pure_loss_is_reached_by_randomised_response(epsilon: Fraction, rate: Fraction) -> None:
    first, second = response(epsilon)
    exact = most_powerful(first, second, real(rate))
    assert exact <= real(power_of_test(Pure(epsilon), rate)) + ROUNDING
    assert real(power_of_test(Pure(epsilon), rate)) <= exact + mpf(10) ** -18


def most_powerful(first: Distribution, second: Distribution, rate: mpf) -> mpf:
    """The power of the Neyman-Pearson test at a false positive rate."""
    reached = mpf(0)
    for p, q in sorted(
        zip(first, second, strict=True), key=lambda pair: -pair[0] / pair[1] if pair[1] else -mpmath.inf
    ):
        part = min(mpf(1), rate / q) if q else mpf(1)
        reached, rate = reached + p * part, max(mpf(0), rate - q)
    return reached


@pytest.mark.parametrize("loss", [ZCDP("1/8"), ZCDP("1/8", "1/50"), as_renyi(ZCDP("1/8"), [2, 5, 20])])
def test_power_of_gaussian_noise_is_covered(loss: Loss) -> None:
    base, moved = (discrete_gaussian(Fraction(4), s, 80) for s in (0, 1))
    leak = real(loss.delta) if not isinstance(loss, Pure) else mpf(0)
    first = [leak, *((1 - leak) * p for p in moved), mpf(0)]
    second = [mpf(0), *((1 - leak) * q for q in base), leak]
    for rate, most in interpret(loss):
        assert most_powerful(first, second, real(rate)) <= real(most) <= 1


def test_power_outside_delta_is_taken_of_what_remains() -> None:
    """A high order is nearly pure, so that a bound which forgets f / (1 - delta) falls below the truth."""
    loss = Renyi(as_renyi(Pure(1), [400]).curve, delta="3/10")
    (yes, no), (_, also) = response(Fraction(1))
    first = [mpf("0.3"), mpf("0.7") * yes, mpf("0.7") * no, mpf(0)]
    second = [mpf(0), mpf("0.7") * no, mpf("0.7") * also, mpf("0.3")]
    exact = most_powerful(first, second, mpf("0.1"))
    assert exact <= real(power_of_test(loss, "1/10")) <= exact + mpf("0.01")


def test_meaning_in_the_words_of_the_paper() -> None:
    ((rate, most),) = interpret(Pure("1/10"), ["1/20"])
    assert rate == Fraction(1, 20) and 0 <= real(most) - mpmath.exp(mpf(1) / 10) / 20 < mpf(10) ** -18
    assert power_of_test(Approximate(0, 1e-3), 0.05) == Fraction("0.051")
    assert power_of_test(Approximate(1, 1e-3), 0) == power_of_test(ZCDP(1, 1e-3), 0) == Fraction("0.001")
    assert (
        power_of_test(Pure(10_000), 0.5) == 1 and power_of_test(Pure(10_000), 0) == 0 and power_of_test(ZCDP(1), 1) == 1
    )
    with pytest.raises(InvalidParameter):
        power_of_test(Pure(1), 2)
