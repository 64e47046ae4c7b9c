"""Distances between neighbours and the privacy losses that they cost, as exact rationals."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from dither.errors import InvalidParameter

Rational = int | str | float | Decimal | Fraction

LARGEST_TERM = 10**60


def rational(value: Rational, name: str = "value") -> Fraction:
    """The exact rational that a person means: 0.1 is 1/10.

    >>> rational(0.1), rational("2/3")
    (Fraction(1, 10), Fraction(2, 3))
    """
    if isinstance(value, bool):
        raise InvalidParameter(f"{name} must be a number, got {value}")
    try:
        exact = Fraction(repr(value)) if isinstance(value, float) else Fraction(value)
    except (ValueError, TypeError, ZeroDivisionError, OverflowError):
        raise InvalidParameter(f"{name} must be a finite number such as 0.1 or '1/10', got {str(value)[:40]!r}") from None
    if max(abs(exact.numerator), exact.denominator) > LARGEST_TERM:
        raise InvalidParameter(f"{name} must have at most 60 digits above and below the line")
    return exact


@dataclass(frozen=True)
class Sensitivity:
    """How far one unit can move a vector: cells changed, and norms of the change."""

    l0: Fraction
    linf: Fraction
    l1: Fraction
    l2_squared: Fraction

    @classmethod
    def of(cls, *, l0: Rational, linf: Rational) -> Sensitivity:
        """At most `l0` cells, each by at most `linf`."""
        cells, most = rational(l0), rational(linf)
        return cls(cells, most, cells * most, cells * most * most)
