"""Exponential variables to any number of binary digits, and mechanisms that select by comparing them.

The integer part of 2^p E, E ~ Exp(1), is geometric with scale 2^p; given the first p digits, the next ones are again
a truncated geometric variable.
"""

from __future__ import annotations

from fractions import Fraction
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dither.errors import InvalidParameter
from dither.privacy.bits import Bits
from dither.privacy.noise.exact import FULL, Vector, Widths, check_range, decide_below, exp_enclosure
from dither.privacy.noise.pools import draw

LARGEST_RATE = 1 << 40
ROUNDING = 2.0**-50  # above the relative error of three roundings to nearest


def fold_sign(laplace: Vector) -> Vector:
    """Return x or -x - 1, whichever is not negative: geometric with the same scale if x is discrete Laplace."""
    return laplace ^ (laplace >> 63)


def exponential_ticks(size: int, bits: Bits, widths: Widths) -> Vector:
    """Draw the integer parts of 2^widths.ticks E, E ~ Exp(1)."""
    return fold_sign(draw(1, Fraction(1 << widths.ticks), size, bits, widths))


def extend_digits(known: int, precision: int, bits: Bits, more: int) -> tuple[int, int]:
    """Draw `more` further binary digits of an exponential variable whose first `precision` digits are `known`."""
    while True:
        digits = bits.integer(more)
        if decide_below(partial(exp_enclosure, Fraction(digits, 1 << precision + more)), bits, more):
            return known << more | digits, precision + more


def exponential(precision: int, bits: Bits, widths: Widths = FULL) -> int:
    """Draw the integer part of 2^precision E, E ~ Exp(1), at any precision."""
    check_range("precision", precision, 0, 1 << 20)
    known, digits_known = int(exponential_ticks(1, bits, widths)[0]), widths.ticks
    while digits_known < precision:
        known, digits_known = extend_digits(known, digits_known, bits, widths.more)
    return known >> (digits_known - precision)


def bernoulli_exp_each(rate: Fraction, counts: Vector, bits: Bits, widths: Widths = FULL) -> Vector:
    """Draw 1 with probability exp(-rate * counts[i]) at place i, else 0; counts must not be negative.

    Proof: exact_selection.md.
    """
    check_range("rate", rate, 0, LARGEST_RATE)
    if np.any(counts < 0):
        raise InvalidParameter("counts must not be negative")
    known = exponential_ticks(len(counts), bits, widths)
    wanted = counts * float(rate * (1 << widths.ticks))
    doubt = wanted * ROUNDING
    result: NDArray[np.bool_] = known >= wanted + doubt
    for i in np.flatnonzero(~result & (known + 1 > wanted - doubt)):
        result[i] = _exceeds(int(known[i]), rate * int(counts[i]), bits, widths)
    return result.astype(np.int64)


def _exceeds(known: int, threshold: Fraction, bits: Bits, widths: Widths) -> bool:
    """Return whether the exponential variable that begins with `known` is at least `threshold`."""
    precision = widths.ticks
    while known < threshold * (1 << precision) < known + 1:
        known, precision = extend_digits(known, precision, bits, widths.more)
    return known >= threshold * (1 << precision)


def noisy_max(scores: Vector, rate: Fraction, bits: Bits, widths: Widths = FULL) -> int:
    """Return the place of the largest rate * scores[i] + E[i], E independent Exp(1): permute-and-flip, without ties.

    Proof: exact_selection.md.
    """
    check_range("rate", rate, 0, LARGEST_RATE)
    if len(scores) == 0:
        raise InvalidParameter("scores must not be empty")
    known = exponential_ticks(len(scores), bits, widths)
    gaps = scores.max().astype(np.uint64) - scores.astype(np.uint64)  # exact also where 64 signed bits overflow
    behind = gaps * float(rate * (1 << widths.ticks))
    doubt = (known + behind) * ROUNDING
    rivals = np.flatnonzero(known + 1 - behind + doubt >= (known - behind - doubt).max())
    contenders = {int(i): (-rate * int(gaps[i]), int(known[i])) for i in rivals}
    return compare_exponentials(contenders, widths.ticks, bits, widths.more)


def compare_exponentials(rivals: dict[int, tuple[Fraction, int]], precision: int, bits: Bits, more: int) -> int:
    """Return the place of the largest sum of a rational and an exponential variable with `precision` known digits."""
    unit = 1 << precision
    best = max(shift * unit + known for shift, known in rivals.values())
    left = {i: (shift, known) for i, (shift, known) in rivals.items() if shift * unit + known + 1 > best}
    if len(left) == 1:
        return next(iter(left))
    longer = {i: (shift, extend_digits(known, precision, bits, more)[0]) for i, (shift, known) in left.items()}
    return compare_exponentials(longer, precision + more, bits, more)
