"""Find the least loss that brings the expected errors of a query within a wanted one."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from dither.loss import rational

# Losses are found up to this factor.
PRECISION = Fraction(1001, 1000)
# Expected errors may rise a little where a larger loss leads to another bound, so losses below are looked at too: this
# many of them, each this many times as large as the next.
LOOKED_BELOW, STEP = 12, 2**0.25


def least_epsilon(fits: Callable[[Fraction], bool], low: Fraction, high: Fraction) -> Fraction:
    """Return the least epsilon between `low`, which does not fit, and `high`, which fits."""
    low, high = _bisect(fits, low, high)
    below = [rational(f"{float(high) / STEP**place:.6g}") for place in range(1, LOOKED_BELOW + 1)]
    fitting = [place for place, epsilon in enumerate(below) if epsilon < low and fits(epsilon)]
    if fitting:
        place = fitting[-1]
        smaller = below[place + 1] if place + 1 < len(below) else below[place] / 2
        _, high = _bisect(fits, smaller, below[place])
    return rational(f"{float(high):.6g}")


def _bisect(fits: Callable[[Fraction], bool], low: Fraction, high: Fraction) -> tuple[Fraction, Fraction]:
    """Narrow a range whose upper end fits; on a logarithmic scale while it is wide."""
    while high > low * PRECISION:
        middle = (low + high) / 2 if high < 10 * low else rational(f"{(float(low) * float(high)) ** 0.5:.6g}")
        low, high = (low, middle) if fits(middle) else (middle, high)
    return low, high
