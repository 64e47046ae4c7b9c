"""Part of the former privacy.accounting."""

from __future__ import annotations

from fractions import Fraction

FEMTO = 10**15
LARGEST_COST = 2**62  # what does not fit is charged as this, which no cap reaches


def to_femto(x: Fraction) -> int:
    """A loss in integers of 1e-15, rounded up: what the ledger counts in.

    Proof: filters.md.

    >>> units15(Fraction(1, 10)), units15(Fraction(1, 3))
    (100000000000000, 333333333333334)
    """
    return min(LARGEST_COST, -(-x.numerator * FEMTO // x.denominator))
