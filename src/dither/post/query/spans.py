"""Spans for the values of units with one row: sums within one need noise for half its length, wherever it lies.

Middle and length are chosen privately. The largest span is the whole declared range, so that its sum needs no more
noise than a plain one around the middle of the range.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from dither.plan import expressions as expr
from dither.plan.expressions.core import EstimatedValue, Expr
from dither.post.formulas import ChosenValue, FixedValue, Formula

ZERO = expr.LiteralValue(Fraction(0))
Shape = Literal["anchored", "central", "from zero"]


@dataclass(frozen=True)
class Span:
    """A span of `value` over the rows that meet `condition`; `half` is half its length.

    It lies around `anchor`, a private median, and is moved where it would leave the declared range. Without an anchor
    it has 0 in its middle, if it `is_central`, or begins at 0. Quotes assume the `likely` part of the largest length.
    Values may be squares of distances from the middle of another span: `squares_of` is then half the length of that.
    """

    value: Expr
    condition: Expr | None
    half: EstimatedValue
    anchor: EstimatedValue | None = None
    is_central: bool = False
    likely: Fraction = Fraction(1)
    squares_of: EstimatedValue | None = None

    @property
    def shape(self) -> Shape:
        """The way in which the span lies."""
        return "anchored" if self.anchor is not None else "central" if self.is_central else "from zero"

    @property
    def middle(self) -> Expr:
        """The middle of the span."""
        if self.anchor is None:
            return ZERO if self.is_central else self.half
        low, high = (expr.LiteralValue(end * self.anchor.step) for end in (self.anchor.lo, self.anchor.hi))
        inside = expr.LeastGreatest("least", (self.anchor, expr.Arithmetic("-", high, self.half)))
        return expr.LeastGreatest("greatest", (inside, expr.Arithmetic("+", low, self.half)))

    @property
    def middle_formula(self) -> Formula:
        """The middle of the span, as a formula."""
        if self.anchor is None:
            return FixedValue(0.0) if self.is_central else ChosenValue(self.half)
        return ChosenValue(self.anchor, self.half)

    @property
    def length_needed(self) -> Expr:
        """The length of the smallest span that holds the value: 0 for rows that do not count."""
        value = self.value
        if self.anchor is not None:
            low, high = (expr.LiteralValue(end * self.anchor.step) for end in (self.anchor.lo, self.anchor.hi))
            above = _smaller(_twice(expr.Arithmetic("-", value, self.anchor)), expr.Arithmetic("-", value, low))
            below = _smaller(_twice(expr.Arithmetic("-", self.anchor, value)), expr.Arithmetic("-", high, value))
            value = expr.LeastGreatest("greatest", (above, below))
        elif self.is_central:
            value = _twice(expr.Absolute(value))
        return value if self.condition is None else expr.Case(((self.condition, value),), ZERO)

    @property
    def per_step(self) -> Fraction:
        """The most that a value moves for each step that half the length lacks: only one end of a span may move."""
        return self.half.step if self.is_central else 2 * self.half.step


def _twice(value: Expr) -> Expr:
    return expr.Arithmetic("*", expr.LiteralValue(Fraction(2)), value)


def _smaller(one: Expr, other: Expr) -> Expr:
    return expr.LeastGreatest("least", (one, other))


def half_lengths(top: int) -> tuple[int, ...]:
    """Return the candidates for half a span's length: down from the largest, by the square root of two.

    They go down to one step: if most values were in the first bin, how their number falls beyond would be unknown.

    >>> half_lengths(20)
    (2, 3, 4, 5, 8, 10, 15, 20)
    """
    octaves = top.bit_length() - 1
    return tuple(sorted({math.ceil(top / 2 ** (place / 2) - 1e-6) for place in range(2 * octaves + 1)}))
