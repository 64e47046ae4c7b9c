"""Exact samplers on the integers, which read random bits only as they need them.

A uniform number is compared with a threshold by a prefix of its bits. If bounds of the threshold do not decide the
comparison for every continuation of the prefix, more bits are read and the bounds are tightened by integer arithmetic.
No undecided number is discarded, so that each distribution is exact if the bits are fair. Values beyond 64 bits
saturate; at the largest scale their probability is below exp(-2^20).
"""

from __future__ import annotations

from fractions import Fraction
from functools import partial

import numpy as np

from dither.privacy.bits import Bits
from dither.privacy.noise.exact import (
    FULL,
    LARGEST_SCALE,
    SMALLEST_SCALE,
    Vector,
    Widths,
    bernoulli_enclosed,
    check_range,
    check_size,
    exp_enclosure,
    rational_enclosure,
)
from dither.privacy.noise.pools import draw
from dither.privacy.noise.race import bernoulli_exp_each, exponential, fold_sign, noisy_max

__all__ = [
    "FULL",
    "LARGEST_SCALE",
    "SMALLEST_SCALE",
    "Widths",
    "bernoulli",
    "bernoulli_exp",
    "bernoulli_exp_each",
    "discrete_gaussian",
    "discrete_laplace",
    "exp_enclosure",
    "exponential",
    "geometric",
    "noisy_max",
    "staircase",
    "uniform_below",
]


def discrete_laplace(scale: Fraction, size: int, bits: Bits, widths: Widths = FULL) -> Vector:
    """Draw integers x with probability proportional to exp(-|x| / scale)."""
    return draw(1, scale, size, bits, widths)


def discrete_gaussian(variance: Fraction, size: int, bits: Bits, widths: Widths = FULL) -> Vector:
    """Draw integers x with probability proportional to exp(-x^2 / (2 variance))."""
    return draw(2, variance, size, bits, widths)


def geometric(scale: Fraction, size: int, bits: Bits, widths: Widths = FULL) -> Vector:
    """Draw integers x >= 0 with probability proportional to exp(-x / scale). Proof: exact_draws.md."""
    return fold_sign(discrete_laplace(scale, size, bits, widths))


def staircase(epsilon: Fraction, width: int, rise: int, size: int, bits: Bits, widths: Widths = FULL) -> Vector:
    """Draw integers x with probability proportional to exp(-epsilon * ceil((|x| + 1 - rise) / width)).

    The middle step is |x| < rise, 1 <= rise <= width; every further step has `width` integers on each side.

    Proof: exact_draws.md.
    """
    check_range("epsilon", epsilon, 1 / LARGEST_SCALE, 1 / SMALLEST_SCALE)
    check_range("width", width, 1, min(LARGEST_SCALE, LARGEST_SCALE * epsilon))
    check_range("rise", rise, 1, width)
    middle = bernoulli_enclosed(partial(_middle_enclosure, epsilon, width, rise), size, bits, widths)
    centre = uniform_below(2 * rise - 1, size, bits) - (rise - 1)
    steps = np.minimum(geometric(1 / Fraction(epsilon), size, bits, widths), (1 << 62) // width)
    side = rise + width * steps + uniform_below(width, size, bits)
    negative = bits.words(size, 1).astype(np.bool_)
    return np.where(middle, centre, np.where(negative, -side, side))


def _middle_enclosure(epsilon: Fraction, width: int, rise: int, precision: int) -> tuple[int, int]:
    """Return bounds of the middle step's chance a / (a + 2 width b), b = exp(-epsilon), a = (2 rise - 1)(1 - b)."""
    unit = precision + 64 + width.bit_length()
    low, high = exp_enclosure(epsilon, unit)
    least, most = ((2 * rise - 1) * ((1 << unit) - b) for b in (high, low))
    return (least << precision) // (least + 2 * width * high), -(-(most << precision) // (most + 2 * width * low))


def bernoulli(p: Fraction, size: int, bits: Bits, widths: Widths = FULL) -> Vector:
    """Draw 1 with probability p, else 0."""
    check_range("p", p, 0, 1)
    check_size(size)
    return bernoulli_enclosed(partial(rational_enclosure, p), size, bits, widths).astype(np.int64)


def bernoulli_exp(x: Fraction, size: int, bits: Bits, widths: Widths = FULL) -> Vector:
    """Draw 1 with probability exp(-x), else 0."""
    check_range("x", x, 0, LARGEST_SCALE)
    check_size(size)
    return bernoulli_enclosed(partial(exp_enclosure, x), size, bits, widths).astype(np.int64)


def uniform_below(n: int, size: int, bits: Bits) -> Vector:
    """Draw integers from 0 to n - 1, equally likely. Proof: exact_draws.md."""
    check_range("n", n, 1, 1 << 63)
    check_size(size)
    values = np.zeros(size, np.int64)
    waiting = np.arange(size if n > 1 else 0)
    while len(waiting):
        values[waiting] = bits.words(len(waiting), (n - 1).bit_length())
        waiting = waiting[values[waiting] >= n]
    return values
