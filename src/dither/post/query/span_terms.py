"""Terms over rows of which each unit has one: sums of values of many steps are taken within privately chosen spans."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil

from dither.plan import expressions as expr
from dither.plan.domains import bounds_of
from dither.plan.expressions.core import EstimatedValue, Expr
from dither.plan.sql.scope import Scope
from dither.post.formulas import ChosenValue, FixedValue, Formula, FunctionCall, NoisyCell
from dither.post.query.query_plan import VALUES
from dither.post.query.question import AggregateCall
from dither.post.query.spans import ZERO, Shape, Span
from dither.post.query.terms import MAX_STEPS, ROLE_WEIGHTS, Role, Term, Terms
from dither.schema import Number

# Values of fewer steps keep their plain sum: a span could make them little more precise.
MANY_STEPS = 1_000
# What searches need, as an epsilon for each of the units: less than this many in all would hide where most values lie.
UNITS_NEEDED = 1_000
# Where a limit on rows below makes the range, plain sums need so much noise that spans are better from here on, except
# for squares, whose tails would be hidden.
UNITS_NEEDED_ABOVE_LIMIT = 600
# A search has at most the first share of the loss, and no less than the second: for the length, and for the middle.
LENGTH_SHARES, LENGTH_UNITS = (Fraction(1, 10), Fraction(3, 50)), 400
MIDDLE_SHARES, MIDDLE_UNITS = (Fraction(1, 25), Fraction(1, 50)), 150
# There most of the range is empty, and the few far out decide the error: the length has this many times its share.
SHARE_ABOVE_LIMIT = 3
# Wider values are rounded to this many steps, which noise hides.
SPAN_STEPS = 1 << 30


@dataclass(frozen=True)
class SearchShares:
    """The shares of the searches for a span, in what its sum and the count of its rows would have alone."""

    middle: Fraction
    length: Fraction


def search_shares(units: float, epsilon: float, gaussian: bool, needed: float = UNITS_NEEDED) -> SearchShares | None:
    """Return the shares of searches among this many units, or None if too few are known.

    They need an absolute epsilon, not a share of the loss. Gaussian noise falls with the root of its share only.

    >>> search_shares(100_000, 1, False) == search_shares(10_000, 10, False), search_shares(500, 1, False)
    (True, None)
    """
    informative = units * epsilon
    if informative < needed:
        return None
    parts = []
    for (most, least), wanted in ((MIDDLE_SHARES, MIDDLE_UNITS), (LENGTH_SHARES, LENGTH_UNITS)):
        share = min(most, max(least, Fraction(wanted / informative).limit_denominator(1000)))
        parts.append((2 * share) ** 2 if gaussian else share)
    return SearchShares(*parts)


def role_weight(role: Role, gaussian: bool) -> Fraction:
    """Return the weight of a term's loss: its precision beside that of a count, squared for Gaussian noise."""
    weight = ROLE_WEIGHTS[role]
    return weight**2 if gaussian else weight


@dataclass
class SpanTerms(Terms):
    """Collects the terms of aggregates over rows of which each unit has one: values of many steps get spans.

    `ample_scope` has the domains of columns where a limit on rows below is so large that hardly any unit reaches it.
    """

    spans: list[Span] = field(default_factory=list)
    ample_scope: Scope | None = None

    def is_wide(self, value: Expr) -> bool:
        """Return True if a value has so many steps that a span may be far shorter than its range."""
        domain = value.domain(self.scope)
        steps = bounds_of(domain)[1] - bounds_of(domain)[0] if isinstance(domain, Number) else 0
        whole = isinstance(domain, Number) and domain.step >= 1
        return steps >= MANY_STEPS and (steps < MAX_STEPS or not whole or self.likely_part(value) < 1)

    def likely_part(self, value: Expr) -> Fraction:
        """Return the part of a value's range that is left at likely limits on the rows below."""
        return self.range_in(value, self.likely_scope) / (self.range_in(value, self.scope) or 1)

    def range_in(self, value: Expr, scope: Scope) -> Fraction:
        """Return the length of a number's range where columns have the domains of a scope."""
        domain = value.domain(scope)
        return domain.hi - domain.lo if isinstance(domain, Number) else Fraction(0)

    def span(
        self,
        aggregate: AggregateCall,
        value: Expr,
        shape: Shape = "anchored",
        likely: Fraction | None = None,
        squared: Expr | None = None,
    ) -> Span:
        """Return the span of a value over the rows that an aggregate counts, one for each such pair.

        The value may be the square of the distance of a `squared` one from the middle of its span.
        """
        conditions = self.row_conditions(aggregate)
        condition = (conditions[0] if len(conditions) == 1 else expr.And(tuple(conditions))) if conditions else None
        number, domain = len(self.spans), self.number_domain(value)
        low, high = bounds_of(domain)
        top = max(abs(low), abs(high)) if shape == "central" else -(-(high - low) // 2)
        half = EstimatedValue(f"{VALUES}{number}", 1, max(1, top), domain.step)
        anchor = EstimatedValue(f"centre{number}", low, high, domain.step) if shape == "anchored" else None
        likely = self.likely_part(value) if likely is None else likely
        squares_of = self.span(aggregate, self.coarse(squared)).half if squared is not None else None
        span = Span(value, condition, half, anchor, shape == "central", likely, squares_of)
        for known in self.spans:
            if (known.value, known.condition, known.shape) == (value, condition, shape):
                return known
        self.spans.append(span)
        return span

    def span_cell(self, aggregate: AggregateCall, span: Span, role: Role) -> NoisyCell:
        """Return the cell of the distances of values from the middle of their span, over the rows that count."""
        size = None if role == "sum" else self.row_count(aggregate).index
        shifted: Expr = span.value
        if not span.is_central:
            shifted = expr.Arithmetic("-", shifted, span.middle)
        if span.condition is not None:
            shifted = expr.Case(((span.condition, shifted),), ZERO)
        step = span.half.step
        if self.number_domain(shifted).step != step:  # the 0 of other rows has a finer step; it is a multiple of any
            shifted = expr.Rounded("round", shifted, step)
        steps = max(1, *map(abs, bounds_of(self.number_domain(shifted))))
        rounding = step / 2 if isinstance(span.value, expr.Rounded) else Fraction(0)
        term = Term(shifted, step, steps, role, rounding, steps, size=size, span=span)
        if term not in self.terms:
            self.terms.append(term)
        return NoisyCell(self.terms.index(term))

    # --- what differs for values of many steps -------------------------------------------------------------------

    def total(self, aggregate: AggregateCall) -> Formula:
        """A sum, around 0 unless the average is asked for too."""
        (value,) = aggregate.values
        if self.constant(value) is not None or not self.is_wide(value):
            return super().total(aggregate)
        if (value, aggregate.condition) not in self.averaged:
            return self.span_sum(aggregate, self.coarse(value), "sum", "central")
        return self.span_sum(aggregate, self.coarse(value), "centred")

    def span_sum(
        self,
        aggregate: AggregateCall,
        value: Expr,
        role: Role,
        shape: Shape = "anchored",
        likely: Fraction | None = None,
        squared: Expr | None = None,
    ) -> Formula:
        """The sum of a value: the middle of its span times the rows, and the distances from it."""
        span = self.span(aggregate, value, shape, likely, squared)
        cell = self.span_cell(aggregate, span, role)
        if span.is_central:
            return cell
        return FunctionCall("add", (FunctionCall("mul", (span.middle_formula, self.row_count(aggregate))), cell))

    def centre_formula(self, aggregate: AggregateCall, value: Expr) -> FixedValue | ChosenValue:
        """The middle of a value's span as a formula."""
        if not self.is_wide(value):
            return super().centre_formula(aggregate, value)
        span = self.span(aggregate, self.coarse(value))
        return ChosenValue(span.anchor or span.half, span.half)

    def distance_from_centre(self, aggregate: AggregateCall, value: Expr) -> Expr:
        """The distance of a value from the middle of its span."""
        if not self.is_wide(value):
            return super().distance_from_centre(aggregate, value)
        span = self.span(aggregate, self.coarse(value))
        return expr.Arithmetic("-", span.value, span.middle)

    def centred_sum(self, aggregate: AggregateCall, value: Expr) -> NoisyCell:
        """The sum of the values' distances from the middle of their span, over the rows that count."""
        if not self.is_wide(value):
            return super().centred_sum(aggregate, value)
        return self.span_cell(aggregate, self.span(aggregate, self.coarse(value)), "centred")

    def sum_if_all_present(self, aggregate: AggregateCall, value: Expr) -> NoisyCell:
        """The sum of a value's distances, over the rows in which no value of the aggregate is NULL."""
        return (
            self.centred_sum(aggregate, value) if self.is_wide(value) else super().sum_if_all_present(aggregate, value)
        )

    def product_sum(self, aggregate: AggregateCall, first: Expr, second: Expr) -> Formula:
        """The sum of products of two values' distances from their middles, over the rows that count."""
        if not (self.is_wide(first) or self.is_wide(second)):
            return super().product_sum(aggregate, first, second)
        one, other = (self.distance_within_range(aggregate, value) for value in (first, second))
        product = self.coarse(expr.Arithmetic("*", one, other))
        shape: Shape = "central" if bounds_of(self.number_domain(product))[0] else "from zero"
        likely = [self.likely_distance(aggregate, value) for value in (first, second)]
        squared = first if first == second else None
        return self.span_sum(aggregate, product, "product", shape, likely[0] * likely[1], squared)

    def distance_within_range(self, aggregate: AggregateCall, value: Expr) -> Expr:
        """The distance of a value from the middle of its span, at most half of its range.

        Distances from the middle of the whole range are no larger, so that nothing is cut if the span is the range.
        """
        distance = self.distance_from_centre(aggregate, value)
        if not self.is_wide(value):
            return distance
        most = self.largest_distance(aggregate, value)
        return expr.Clamp(distance, -most, most)

    def largest_distance(self, aggregate: AggregateCall, value: Expr) -> Fraction:
        """Return half of a value's range, or less if squares of that would have to be rounded.

        Few units, if any, reach half of the range at an ample limit on the rows below, but at the largest one squares
        would be rounded to more than most of them are.
        """
        half = self.span(aggregate, self.coarse(value)).half
        ample = self.range_in(value, self.ample_scope or self.scope) / 2
        steps = half.hi if half.hi**2 <= SPAN_STEPS else max(1, min(half.hi, ceil(ample / half.step)))
        return steps * half.step

    def likely_distance(self, aggregate: AggregateCall, value: Expr) -> Fraction:
        """Return the part of the largest distance of a value from its middle that quotes assume."""
        if not self.is_wide(value):
            return Fraction(1)
        likely = self.range_in(value, self.likely_scope) / 2
        return min(Fraction(1), likely / self.largest_distance(aggregate, value))

    def coarse(self, value: Expr) -> Expr:
        """Round a value to the most steps that a span may have; first leave out what an ample limit on rows would."""
        if self.steps_of(value) > SPAN_STEPS:
            value = self.within_ample_range(value)
        if (steps := self.steps_of(value)) <= SPAN_STEPS:
            return value
        return expr.Rounded("round", value, self.number_domain(value).step * -(-steps // SPAN_STEPS))

    def steps_of(self, value: Expr) -> int:
        """Return the number of steps from one end of a value's range to the other."""
        low, high = bounds_of(self.number_domain(value))
        return high - low

    def within_ample_range(self, value: Expr) -> Expr:
        """Clamp a value to its range at an ample limit on the rows below, if that is shorter."""
        if self.ample_scope is None or self.range_in(value, self.ample_scope) >= self.range_in(value, self.scope):
            return value
        ample = value.domain(self.ample_scope)
        return expr.Clamp(value, ample.lo, ample.hi) if isinstance(ample, Number) else value
