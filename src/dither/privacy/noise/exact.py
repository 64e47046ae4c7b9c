"""Integer bounds of irrational numbers, and comparisons of uniform numbers with them that read bits as needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from dither.errors import InvalidParameter
from dither.privacy.bits import Bits

Vector = NDArray[np.int64]
Enclosure = Callable[[int], tuple[int, int]]

SMALLEST_SCALE = Fraction(1, 1000)
LARGEST_SCALE = Fraction(1 << 40)


@dataclass(frozen=True)
class Widths:
    """The number of bits that each step reads first. Tests and the auditor narrow them; distributions stay the same."""

    guide: int = 16  # index an entry of the guide table
    word: int = 64  # find a cell by search; the first bits of a Bernoulli draw
    accept: int = 16  # first test of acceptance
    fine: int = 53  # second test of acceptance, against a polynomial
    more: int = 64  # every further test
    margin: float = 2.0**-40  # bounds the floating-point error of the polynomial
    cells: int = 32  # cells per unit of scale: from this number to twice it
    ticks: int = 37  # binary digits of an exponential variable drawn at once
    chunk: int = 1 << 16  # draws per batch
    padded: bool = True  # do a fixed amount of slow work in each batch


FULL = Widths()


def exp_enclosure(x: Fraction, precision: int) -> tuple[int, int]:
    """Return integers low <= 2^precision exp(-x) <= high, for rational x >= 0. Proof: exact_comparison.md."""
    if x >= precision:  # exp(-x) < 2^-x
        return (0, 1) if x else (1, 1)
    halvings = int(x).bit_length() + 6
    working = precision + halvings + 8
    low = high = term_low = term_high = 1 << working
    numerator, denominator, k = x.numerator, x.denominator << halvings, 0
    while term_high > 1:  # the alternating series at x / 2^halvings < 1/32, each term bounded
        k += 1
        term_low, term_high = term_low * numerator // (denominator * k), -(-term_high * numerator // (denominator * k))
        low, high = (low - term_high, high - term_low) if k & 1 else (low + term_low, high + term_high)
    low, high = low - term_high, high + term_high  # the rest of the series is below the last term
    for _ in range(halvings):
        low, high = low * low >> working, -(-high * high >> working)
    return low >> (working - precision), min(1 << precision, -(-high >> (working - precision)))


def rational_enclosure(p: Fraction, precision: int) -> tuple[int, int]:
    """Return integers low <= 2^precision p <= high."""
    low, rest = divmod(p.numerator << precision, p.denominator)
    return low, low + (rest > 0)


def decide_below(enclosure: Enclosure, bits: Bits, more: int, prefix: int = 0, precision: int = 0) -> bool:
    """Return whether the uniform number whose first `precision` bits are `prefix` is below the enclosed threshold.

    Read `more` bits at a time until the bounds decide.
    """
    while True:
        low, high = enclosure(precision)
        if prefix < low or prefix >= high:
            return prefix < low
        precision, prefix = precision + more, prefix << more | bits.integer(more)


def bernoulli_enclosed(enclosure: Enclosure, size: int, bits: Bits, widths: Widths) -> NDArray[np.bool_]:
    """Draw `size` uniform numbers; return whether each is below the enclosed threshold, in the same time either way."""
    words = bits.words(size, widths.word)
    low, high = enclosure(widths.word)
    result: NDArray[np.bool_] = words < low
    for i in np.flatnonzero((words >= low) & (words < high)):
        result[i] = decide_below(enclosure, bits, widths.more, int(words[i]), widths.word)
    return result


def check_exact(name: str, value: Fraction | int) -> Fraction:
    """Return an int or a Fraction as a Fraction; refuse any other type."""
    if isinstance(value, bool) or not isinstance(value, Fraction | int):
        raise InvalidParameter(f"{name} must be a Fraction or an int, got {type(value).__name__}")
    return Fraction(value)


def check_range(name: str, value: Fraction | int, least: Fraction | int, most: Fraction | int) -> None:
    """Refuse a parameter that is not an exact number from `least` to `most`."""
    if not least <= check_exact(name, value) <= most:
        raise InvalidParameter(f"{name} must be from {least} to {most}, got {str(value)[:40]}")


def check_size(size: int) -> None:
    """Refuse a negative number of draws."""
    if size < 0:
        raise InvalidParameter(f"size must not be negative, got {size}")
