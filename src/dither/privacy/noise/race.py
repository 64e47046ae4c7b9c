"""Exponential variables to any number of binary digits, and the choices that are made by comparing them.

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
from dither.privacy.noise.exact import FULL, Vector, Widths, check, exp_enclosure, refine
from dither.privacy.noise.pools import draw

LARGEST_RATE = 1 << 40
ROUNDING = 2.0**-50  # more than three roundings to nearest lose


def combine(laplace: Vector) -> Vector:
    """x or -x - 1, whichever is not negative: geometric with the same scale if x is discrete Laplace."""
    return laplace ^ (laplace >> 63)


def as_words(size: int, bits: Bits, widths: Widths) -> Vector:
    """The integer parts of 2^widths.ticks E, E ~ Exp(1)."""
    return combine(draw(1, Fraction(1 << widths.ticks), size, bits, widths))


def extend(known: int, precision: int, bits: Bits, more: int) -> tuple[int, int]:
    """`more` further digits of an exponential variable whose first `precision` are `known`."""
    while True:
        digits = bits.integer(more)
        if refine(partial(exp_enclosure, Fraction(digits, 1 << precision + more)), bits, more):
            return known << more | digits, precision + more


def exponential(precision: int, bits: Bits, widths: Widths = FULL) -> int:
    """The integer part of 2^precision E, E ~ Exp(1), at any precision."""
    check("precision", precision, 0, 1 << 20)
    known, have = int(as_words(1, bits, widths)[0]), widths.ticks
    while have < precision:
        known, have = extend(known, have, bits, widths.more)
    return known >> (have - precision)


def bernoulli_exp_each(rate: Fraction, counts: Vector, bits: Bits, widths: Widths = FULL) -> Vector:
    """1 with probability exp(-rate * counts[i]) at place i, else 0; counts are not negative.

    Proof: exact_selection.md.
    """
    check("rate", rate, 0, LARGEST_RATE)
    if np.any(counts < 0):
        raise InvalidParameter("counts must not be negative")
    known = as_words(len(counts), bits, widths)
    wanted = counts * float(rate * (1 << widths.ticks))
    doubt = wanted * ROUNDING
    result: NDArray[np.bool_] = known >= wanted + doubt
    for i in np.flatnonzero(~result & (known + 1 > wanted - doubt)):
        result[i] = _exceeds(int(known[i]), rate * int(counts[i]), bits, widths)
    return result.astype(np.int64)


def _exceeds(known: int, threshold: Fraction, bits: Bits, widths: Widths) -> bool:
    """Whether the exponential variable that begins with `known` is at least `threshold`."""
    precision = widths.ticks
    while known < threshold * (1 << precision) < known + 1:
        known, precision = extend(known, precision, bits, widths.more)
    return known >= threshold * (1 << precision)


def noisy_max(scores: Vector, rate: Fraction, bits: Bits, widths: Widths = FULL) -> int:
    """The place of the largest rate * scores[i] + E[i], E independent Exp(1): permute-and-flip, without ties.

    Proof: exact_selection.md.
    """
    check("rate", rate, 0, LARGEST_RATE)
    if len(scores) == 0:
        raise InvalidParameter("scores must not be empty")
    known = as_words(len(scores), bits, widths)
    gaps = scores.max().astype(np.uint64) - scores.astype(np.uint64)  # exact also where 64 signed bits overflow
    behind = gaps * float(rate * (1 << widths.ticks))
    doubt = (known + behind) * ROUNDING
    rivals = np.flatnonzero(known + 1 - behind + doubt >= (known - behind - doubt).max())
    contenders = {int(i): (-rate * int(gaps[i]), int(known[i])) for i in rivals}
    return compare_exponentials(contenders, widths.ticks, bits, widths.more)


def compare_exponentials(rivals: dict[int, tuple[Fraction, int]], precision: int, bits: Bits, more: int) -> int:
    """The place of the largest sum of a rational and an exponential variable, of which `precision` digits are known."""
    unit = 1 << precision
    best = max(shift * unit + known for shift, known in rivals.values())
    left = {i: (shift, known) for i, (shift, known) in rivals.items() if shift * unit + known + 1 > best}
    if len(left) == 1:
        return next(iter(left))
    longer = {i: (shift, extend(known, precision, bits, more)[0]) for i, (shift, known) in left.items()}
    return compare_exponentials(longer, precision + more, bits, more)
