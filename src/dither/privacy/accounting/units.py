"""The integer unit in which the ledger counts losses: 1e-15."""

from __future__ import annotations

from fractions import Fraction

FEMTO = 10**15
LARGEST_COST = 2**62  # a larger cost is charged as this one, which is above every cap


def to_femto(x: Fraction) -> int:
    """Return a loss in units of 1e-15, rounded up, as the ledger counts it.

    Proof: filters.md.

    >>> to_femto(Fraction(1, 10)), to_femto(Fraction(1, 3))
    (100000000000000, 333333333333334)
    """
    return min(LARGEST_COST, -(-x.numerator * FEMTO // x.denominator))
