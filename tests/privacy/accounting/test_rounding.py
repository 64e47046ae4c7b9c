"""The enclosures contain the truth, computed by mpmath with twice the bits, and are tight."""

from __future__ import annotations

from fractions import Fraction

import mpmath
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dither.errors import InvalidParameter
from dither.privacy.accounting.rounding import (
    LARGEST_EXPONENT,
    digits_down,
    digits_up,
    exp_down,
    exp_up,
    log_down,
    log_up,
)

TIGHT = Fraction(1, 10**45)
positive = st.builds(Fraction, st.integers(1, 10**60), st.integers(1, 10**60))
exponents = st.fractions(min_value=-LARGEST_EXPONENT, max_value=LARGEST_EXPONENT, max_denominator=10**60)


def real(x: Fraction) -> mpmath.mpf:
    """A rational as a real of 512 bits."""
    return mpmath.mpf(x.numerator) / x.denominator


@given(positive)
@example(Fraction(1))
@example(1 + Fraction(1, 10**59))
@example(1 - Fraction(1, 10**59))
@example(Fraction(2**199 - 1, 2**199))
def test_logarithms_are_enclosed(x: Fraction) -> None:
    with mpmath.workprec(512):
        assert real(log_down(x)) <= mpmath.log(real(x)) <= real(log_up(x))
    assert log_up(x) - log_down(x) < TIGHT


@given(exponents)
@example(Fraction(0))
@example(Fraction(LARGEST_EXPONENT))
@example(Fraction(-LARGEST_EXPONENT))
@example(Fraction(1, 10**59))
@example(Fraction(-1, 10**59))
def test_exponentials_are_enclosed(x: Fraction) -> None:
    with mpmath.workprec(512):
        assert real(exp_down(x)) <= mpmath.exp(real(x)) <= real(exp_up(x))
    assert exp_up(x) - exp_down(x) < TIGHT * exp_down(x)


def test_beyond_the_range_the_direction_still_holds() -> None:
    far = Fraction(LARGEST_EXPONENT) + 1
    assert exp_down(-far) == 0 and 0 < exp_up(-far) < TIGHT
    assert exp_down(far) == exp_down(Fraction(LARGEST_EXPONENT))
    with pytest.raises(InvalidParameter):
        exp_up(far)
    with pytest.raises(InvalidParameter):
        log_up(Fraction(0))


@given(st.one_of(positive, positive.map(lambda x: -x)))
def test_decimals_are_on_their_side_and_near(x: Fraction) -> None:
    assert digits_down(x) <= x <= digits_up(x)
    assert digits_up(x) - digits_down(x) <= max(abs(x) / 10**18, Fraction(1, 10**60))
