"""Distributions, divergences by definition and strategies, for the tests of the accounting rules."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import mpmath
from hypothesis import strategies as st
from mpmath import mpf

NEAR = 1e-6
ROUNDING = mpf(10) ** -30  # above what mpmath loses with 160 bits
Distribution = Sequence[mpf]
small = st.fractions(min_value=Fraction(1, 1000), max_value=5, max_denominator=1000)
rates = st.fractions(min_value=Fraction(1, 1000), max_value=1, max_denominator=1000)
tiny = st.integers(1, 12).map(lambda places: Fraction(1, 10**places))


def real(x: Fraction | int) -> mpf:
    """A rational as a real."""
    return mpf(Fraction(x).numerator) / Fraction(x).denominator


def renyi(first: Distribution, second: Distribution, order: Fraction) -> mpf:
    """The Renyi divergence of two distributions on the same points, by its definition."""
    a = real(order)
    return mpmath.log(sum(p**a * q ** (1 - a) for p, q in zip(first, second, strict=True) if p)) / (a - 1)


def hockey(first: Distribution, second: Distribution, epsilon: Fraction) -> mpf:
    """The smallest delta at an epsilon, by its definition."""
    return sum(max(mpf(0), p - mpmath.exp(real(epsilon)) * q) for p, q in zip(first, second, strict=True))


def response(epsilon: Fraction) -> tuple[Distribution, Distribution]:
    """Randomised response, the worst case of a pure loss."""
    e = mpmath.exp(real(epsilon))
    return (e / (1 + e), 1 / (1 + e)), (1 / (1 + e), e / (1 + e))


def discrete_gaussian(variance: Fraction, shift: int, reach: int) -> Distribution:
    """The distribution of integer Gaussian noise around `shift`, from -reach to reach."""
    weights = [mpmath.exp(-mpf((k - shift) ** 2) / (2 * real(variance))) for k in range(-reach, reach + 1)]
    total = sum(weights)
    return [weight / total for weight in weights]


def primes(count: int) -> list[int]:
    """The first primes."""
    sieve = bytearray([1]) * 20_000
    for n in range(2, 142):
        sieve[n * n :: n] = bytes(len(range(n * n, 20_000, n)))
    return [n for n in range(2, 20_000) if sieve[n]][:count]
