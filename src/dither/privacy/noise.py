"""Exact samplers on the integers, from lazily read random bits.

A comparison of a uniform number with a threshold is decided from a prefix of the number's bits only where integer
bounds of the threshold put every continuation on one side; otherwise more bits are read and the bounds are tightened.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import isqrt

import numpy as np
from numpy.typing import NDArray

from dither.errors import InvalidParameter
from dither.privacy.bits import Bits

Vector = NDArray[np.int64]
Enclosure = Callable[[int], tuple[int, int]]

SMALLEST_SCALE = Fraction(1, 1000)
LARGEST_SCALE = Fraction(1 << 40)
LARGEST = (1 << 63) - 1


def discrete_laplace(scale: Fraction, size: int, bits: Bits) -> Vector:
    """Integers x with probability proportional to exp(-|x| / scale)."""
    _check("scale", scale, SMALLEST_SCALE, LARGEST_SCALE)
    return _vector(lambda: _laplace(scale, bits), size)


def discrete_gaussian(variance: Fraction, size: int, bits: Bits) -> Vector:
    """Integers x with probability proportional to exp(-x^2 / (2 variance))."""
    _check("variance", variance, SMALLEST_SCALE**2, LARGEST_SCALE**2)
    return _vector(lambda: _gaussian(variance, bits), size)


def geometric(scale: Fraction, size: int, bits: Bits) -> Vector:
    """Integers x >= 0 with probability proportional to exp(-x / scale)."""
    _check("scale", scale, SMALLEST_SCALE, LARGEST_SCALE)
    return _vector(lambda: _geometric(scale, bits), size)


def staircase(epsilon: Fraction, width: int, rise: int, size: int, bits: Bits) -> Vector:
    """Integers x with probability proportional to exp(-epsilon * ceil((|x| + 1 - rise) / width)), 1 <= rise <= width.

    The middle step is |x| < rise; every further step is `width` integers on each side.
    """
    _check_staircase(epsilon, width, rise)
    return _vector(lambda: _staircase(epsilon, width, rise, bits), size)


def bernoulli(p: Fraction, size: int, bits: Bits) -> Vector:
    """1 with probability p, else 0."""
    _check("p", p, Fraction(0), Fraction(1))
    return _vector(lambda: _below(lambda precision: _rational(p, precision), bits), size)


def bernoulli_exp(x: Fraction, size: int, bits: Bits) -> Vector:
    """1 with probability exp(-x), else 0."""
    _check("x", x, Fraction(0), LARGEST_SCALE)
    return _vector(lambda: _below(lambda precision: exp_enclosure(x, precision), bits), size)


def bernoulli_exp_each(rate: Fraction, counts: Vector, bits: Bits) -> Vector:
    """1 with probability exp(-rate * counts[i]) at place i, else 0; counts are not negative."""
    _check("rate", rate, Fraction(0), LARGEST_SCALE)
    return np.array([_below(lambda p, c=int(c): exp_enclosure(rate * c, p), bits) for c in counts], np.int64)


def uniform_below(n: int, size: int, bits: Bits) -> Vector:
    """Integers from 0 to n - 1, equally likely."""
    _check("n", Fraction(n), Fraction(1), Fraction(1 << 63))
    return _vector(lambda: _uniform(n, bits), size)


def noisy_max(scores: Vector, rate: Fraction, bits: Bits) -> int:
    """The place of the largest rate * scores[i] + E[i], E independent Exp(1): permute-and-flip, without ties."""
    _check("rate", rate, Fraction(0), LARGEST_SCALE)
    if not len(scores):
        raise InvalidParameter("scores must not be empty")
    waiting = list(range(len(scores)))
    best = int(scores.max())
    while True:
        at = waiting.pop(_uniform(len(waiting), bits))
        if _below(lambda p: exp_enclosure(rate * (best - int(scores[at])), p), bits):
            return at


def exp_enclosure(x: Fraction, precision: int) -> tuple[int, int]:
    """Integers low <= 2^precision exp(-x) <= high, for rational x >= 0."""
    halvings = (x.numerator // x.denominator).bit_length() + 6
    guard = precision + halvings + 8
    low = high = sum_low = sum_high = 1 << guard
    n, d, k = x.numerator, x.denominator << halvings, 0
    while high > 1:  # Taylor at x / 2^halvings <= 1/32, each term enclosed
        k += 1
        low, high = low * n // (d * k), -(-high * n // (d * k))
        sum_low, sum_high = (sum_low - high, sum_high - low) if k & 1 else (sum_low + low, sum_high + high)
    sum_low, sum_high = sum_low - high, sum_high + high  # the rest of an alternating series
    for _ in range(halvings):
        sum_low, sum_high = sum_low * sum_low >> guard, -(-sum_high * sum_high >> guard)
    return sum_low >> (guard - precision), min(1 << precision, -(-sum_high >> (guard - precision)))


def _check(name: str, value: Fraction, least: Fraction, most: Fraction) -> None:
    if not least <= value <= most:
        raise InvalidParameter(f"{name} must be from {least} to {most}, got {value}")


def _check_staircase(epsilon: Fraction, width: int, rise: int) -> None:
    _check("width / epsilon", width / epsilon if epsilon > 0 else Fraction(-1), SMALLEST_SCALE, LARGEST_SCALE)
    _check("1 / epsilon", 1 / epsilon, SMALLEST_SCALE, LARGEST_SCALE)
    _check("width", Fraction(width), Fraction(1), LARGEST_SCALE)
    _check("rise", Fraction(rise), Fraction(1), Fraction(width))


def _vector(draw: Callable[[], int], size: int) -> Vector:
    return np.array([max(-LARGEST, min(LARGEST, draw())) for _ in range(size)], np.int64)


def _rational(p: Fraction, precision: int) -> tuple[int, int]:
    low, rest = divmod(p.numerator << precision, p.denominator)
    return low, low + (rest > 0)


def _below(enclosure: Enclosure, bits: Bits) -> bool:
    """Whether a uniform number is below the threshold that `enclosure(precision)` bounds in units of 2^-precision."""
    precision, prefix = 0, 0
    while True:
        precision, prefix = precision + 64, prefix << 64 | bits.integer(64)
        low, high = enclosure(precision)
        if prefix < low or prefix >= high:
            return prefix < low


def _uniform(n: int, bits: Bits) -> int:
    while True:
        drawn = bits.integer((n - 1).bit_length())
        if drawn < n:
            return drawn


def _logistic(x: Fraction, precision: int) -> tuple[int, int]:
    """Bounds of exp(-x) / (1 + exp(-x))."""
    low, high = exp_enclosure(x, precision + 2)
    one = 1 << precision + 2
    return (low << precision) // (one + low), -(-(high << precision) // (one + high))


def _geometric(scale: Fraction, bits: Bits) -> int:
    """Binary digits of a geometric variable are independent; whole blocks of 2^top are counted by failures."""
    top = (scale.numerator // scale.denominator).bit_length()
    blocks = 0
    while _below(lambda p: exp_enclosure((1 << top) / scale, p), bits):
        blocks += 1
    digits = sum(_below(lambda p, j=j: _logistic((1 << j) / scale, p), bits) << j for j in range(top))
    return (blocks << top) + digits


def _laplace(scale: Fraction, bits: Bits) -> int:
    negative = _below(lambda p: _logistic(1 / scale, p), bits)
    magnitude = _geometric(scale, bits)
    return ~magnitude if negative else magnitude


def _gaussian(variance: Fraction, bits: Bits) -> int:
    """Canonne, Kamath and Steinke: a Laplace proposal, kept with the right probability."""
    t = isqrt(variance.numerator // variance.denominator) + 1
    while True:
        drawn = _laplace(Fraction(t), bits)
        gap = (abs(drawn) - variance / t) ** 2 / (2 * variance)
        if _below(lambda p, gap=gap: exp_enclosure(gap, p), bits):
            return drawn


def _middle(epsilon: Fraction, width: int, rise: int, precision: int) -> tuple[int, int]:
    """Bounds of the probability of the middle step: (2 rise - 1)(1 - b) / ((2 rise - 1)(1 - b) + 2 width b)."""
    guard = precision + 64 + width.bit_length()
    low, high = exp_enclosure(epsilon, guard)
    most, least = ((2 * rise - 1) * ((1 << guard) - b) for b in (low, high))
    return (least << precision) // (least + 2 * width * high), -(-(most << precision) // (most + 2 * width * low))


def _staircase(epsilon: Fraction, width: int, rise: int, bits: Bits) -> int:
    if _below(lambda p: _middle(epsilon, width, rise, p), bits):
        return _uniform(2 * rise - 1, bits) - (rise - 1)
    magnitude = rise + width * _geometric(1 / epsilon, bits) + _uniform(width, bits)
    return -magnitude if bits.integer(1) else magnitude
