"""Reduce aggregates to sums over rows: each aggregate is a formula over terms, and equal terms are measured once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Literal

from dither.errors import Unsupported
from dither.plan import expressions as expr
from dither.plan.domains import bounds_of
from dither.plan.expressions.core import Expr
from dither.plan.sql.scope import Scope
from dither.post.formulas import Average, ClampedTo, FixedValue, Formula, FunctionCall, NoisyCell
from dither.post.query.question import AggregateCall
from dither.schema import Identifier, Moment, Number

Role = Literal["count", "sum", "centred", "product"]
# Values of more steps are rounded to this many (fewer where sums are clipped), and beyond MAX_STEPS refused.
FINEST_STEPS = 1 << 24
CLIPPED_FINEST_STEPS = 1 << 18
MAX_STEPS = 1 << 30
ONE, ZERO = expr.LiteralValue(Fraction(1)), expr.LiteralValue(Fraction(0))


@dataclass(frozen=True)
class Term:
    """A sum over rows of a value within +-`max_steps` steps; `role` decides its share of the loss.

    Each row's value was rounded by at most `rounding`. `likely_steps` replaces `max_steps` in choosing weights, where
    `max_steps` depends on a bound that is still to be chosen.
    """

    value: Expr
    step: Fraction
    max_steps: int
    role: Role
    rounding: Fraction = Fraction(0)
    likely_steps: int = 1


@dataclass
class Terms:
    """Collects the terms of aggregates.

    `scope` has the columns' domains at the largest bounds, `likely_scope` those at likely bounds, by which ranges are
    centred and terms weighted. `averaged` has the values, with conditions, whose average is also asked for. Terms have
    at most `finest_steps` steps: finer values are rounded.
    """

    scope: Scope
    likely_scope: Scope
    terms: list[Term] = field(default_factory=list)
    averaged: frozenset[tuple[Expr, Expr | None]] = frozenset()
    finest_steps: int = FINEST_STEPS
    notes: list[str] = field(default_factory=list)

    def cell(self, value: Expr, role: Role) -> NoisyCell:
        """Return the cell of a value's sum, and add the term if it is new."""
        term = self._term(value, role)
        if term not in self.terms:
            self.terms.append(term)
        return NoisyCell(self.terms.index(term))

    def _term(self, value: Expr, role: Role) -> Term:
        domain = value.domain(self.scope)
        if not isinstance(domain, Number):
            raise Unsupported(
                f"only numbers can be added up, and this is {_domain_name(domain)}; {_count_advice(domain)}"
            )
        low, high = bounds_of(domain)
        most = max(abs(low), abs(high))
        if most > self.finest_steps:
            return self._rounded_term(value, domain, most, role)
        return Term(value, domain.step, max(most, 1), role, likely_steps=self._likely_steps(value))

    def _likely_steps(self, value: Expr) -> int:
        domain = value.domain(self.likely_scope)
        return max(1, *map(abs, bounds_of(domain))) if isinstance(domain, Number) else 1

    def _rounded_term(self, value: Expr, domain: Number, most: int, role: Role) -> Term:
        """Make a term whose values are rounded to coarser steps, with a note unless noise hides it, as in products."""
        step = domain.step * -(-most // self.finest_steps)
        if role != "product":
            if most >= MAX_STEPS:
                raise Unsupported(
                    f"this sum is too fine: its values go from {_decimal(domain.lo)} to {_decimal(domain.hi)} in steps "
                    f"of {_decimal(domain.step)}, and at most {MAX_STEPS} steps can be added up; "
                    "make the steps coarser with ROUND(x, 2), or the range narrower with CLAMP(x, low, high)"
                )
            self.notes.append(
                f"values from {_decimal(domain.lo)} to {_decimal(domain.hi)} are rounded to multiples of "
                f"{_decimal(step)} before they are added up; CLAMP(x, low, high) to a narrower range for a finer sum"
            )
        return replace(self._term(expr.Rounded("round", value, step), role), rounding=step / 2)

    def number_domain(self, value: Expr) -> Number:
        """Return the domain of an aggregated value; refuse what is not a number."""
        domain = value.domain(self.scope)
        if not isinstance(domain, Number):
            raise Unsupported(
                f"this aggregate needs a number, and this is {_domain_name(domain)}; {_count_advice(domain)}"
            )
        return domain

    def centre(self, value: Expr) -> Fraction:
        """The middle of a value's likely range."""
        domain = value.domain(self.likely_scope)
        return middle(domain if isinstance(domain, Number) else self.number_domain(value))

    # --- formulas ------------------------------------------------------------------------------------------------

    def formula(self, aggregate: AggregateCall) -> Formula:
        """Return the formula of an aggregate."""
        match aggregate.kind:
            case "count":
                return self.row_count(aggregate)
            case "sum":
                return self.total(aggregate)
            case "avg":
                return self.mean(aggregate)
            case "var_samp" | "var_pop":
                return self.variance(aggregate, 0 if aggregate.kind == "var_pop" else 1)
            case "covar_samp" | "covar_pop":
                return self.covariance(aggregate, 0 if aggregate.kind == "covar_pop" else 1)
            case "corr":
                return self.correlation(aggregate)
            case _:
                raise TypeError(f"{aggregate.kind} is not computed from sums")

    def row_count(self, aggregate: AggregateCall) -> NoisyCell:
        """The number of rows that meet the condition and whose values are not NULL."""
        nullable = [value for value in aggregate.values if value.domain(self.scope).nullable]
        present = [expr.Not(expr.IsNull(value)) for value in nullable]
        conditions = ([aggregate.condition] if aggregate.condition is not None else []) + present
        if not conditions:
            return self.cell(ONE, "count")
        return self.cell(expr.Case(((_conjunction(conditions), ONE),), ZERO), "count")

    def total(self, aggregate: AggregateCall) -> Formula:
        """A sum: centre * row count + centred sum if the average is asked for too, else the plain sum."""
        (value,) = aggregate.values
        if (value, aggregate.condition) not in self.averaged:
            return self.cell(_value_or_zero(aggregate, value), "sum")
        centre = self.centre(value)
        offset = FunctionCall("mul", (FixedValue(float(centre)), self.row_count(aggregate)))
        return FunctionCall("add", (offset, self.centred_sum(aggregate, value)))

    def mean(self, aggregate: AggregateCall) -> Formula:
        """The average, from a sum around the middle of the declared range."""
        (value,) = aggregate.values
        domain = self.number_domain(value)
        centre = float(self.centre(value))
        return Average(
            self.centred_sum(aggregate, value), self.row_count(aggregate), centre, float(domain.lo), float(domain.hi)
        )

    def centred_sum(self, aggregate: AggregateCall, value: Expr) -> NoisyCell:
        """The sum of the values' distances from the middle, over the rows that count."""
        return self.cell(_value_or_zero(aggregate, self.distance_from_centre(value)), "centred")

    def distance_from_centre(self, value: Expr) -> Expr:
        """The distance of a value from the middle of its range."""
        centre = self.centre(value)
        return expr.Arithmetic("-", value, expr.LiteralValue(centre)) if centre else value

    def squares(self, aggregate: AggregateCall, value: Expr) -> NoisyCell:
        """The sum of squared distances from the middle."""
        shifted = self.distance_from_centre(value)
        return self.cell(_value_or_zero(aggregate, expr.Arithmetic("*", shifted, shifted)), "product")

    def variance(self, aggregate: AggregateCall, ddof: int) -> Formula:
        """The variance, from sums of distances and of their squares; `ddof` is 1 for a sample, 0 for a population.

        A population variance is at most a quarter of the squared range, a sample variance at most half.
        """
        (value,) = aggregate.values
        domain = self.number_domain(value)
        parts = (self.squares(aggregate, value), self.centred_sum(aggregate, value), self.row_count(aggregate))
        most = float(domain.hi - domain.lo) ** 2 / (4 if ddof == 0 else 2)
        return ClampedTo(FunctionCall("variance", (*parts, FixedValue(float(ddof)))), 0.0, most)

    def covariance(self, aggregate: AggregateCall, ddof: int) -> Formula:
        """The covariance, from the sum of products around both middles; `ddof` is as for the variance."""
        first, second = aggregate.values
        both = expr.Arithmetic("*", self.distance_from_centre(first), self.distance_from_centre(second))
        product = self.cell(_value_or_zero(aggregate, both), "product")
        sums = [
            self.cell(_value_if_present(aggregate, self.distance_from_centre(v), self.scope), "centred")
            for v in (first, second)
        ]
        return FunctionCall("covariance", (product, *sums, self.row_count(aggregate), FixedValue(float(ddof))))

    def correlation(self, aggregate: AggregateCall) -> Formula:
        """The correlation: the covariance over the root of both variances, clamped to [-1, 1]."""
        covariance = self.covariance(aggregate, 0)
        variances = []
        for value in aggregate.values:
            shifted = self.distance_from_centre(value)
            squares = self.cell(
                _value_if_present(aggregate, expr.Arithmetic("*", shifted, shifted), self.scope), "product"
            )
            total = self.cell(_value_if_present(aggregate, shifted, self.scope), "centred")
            variances.append(FunctionCall("variance", (squares, total, self.row_count(aggregate), FixedValue(0.0))))
        return ClampedTo(
            FunctionCall(
                "div", (covariance, FunctionCall("sqrt", (FunctionCall("mul", (variances[0], variances[1])),)))
            ),
            -1.0,
            1.0,
        )


def middle(domain: Number) -> Fraction:
    """Return the lattice point nearest to the middle of a range."""
    low, high = bounds_of(domain)
    return domain.step * ((low + high) // 2)


def _conjunction(conditions: list[Expr]) -> Expr:
    return conditions[0] if len(conditions) == 1 else expr.And(tuple(conditions))


def _value_or_zero(aggregate: AggregateCall, value: Expr) -> Expr:
    """The value in rows where the aggregate's condition holds, else 0."""
    if aggregate.condition is None:
        return value
    return expr.Case(((aggregate.condition, value),), ZERO)


def _value_if_present(aggregate: AggregateCall, value: Expr, scope: Scope) -> Expr:
    """The value in rows where none of the aggregate's values is NULL, and where its condition holds, else 0."""
    present = [expr.Not(expr.IsNull(other)) for other in aggregate.values if other.domain(scope).nullable]
    conditions = ([aggregate.condition] if aggregate.condition is not None else []) + present
    return expr.Case(((_conjunction(conditions), value),), ZERO) if conditions else value


def _decimal(number: Fraction) -> str:
    return f"{float(number):.6g}"


def _count_advice(domain: object) -> str:
    if isinstance(domain, Identifier):
        return "ask for COUNT(DISTINCT ...) of it"
    return "ask for COUNT(*) grouped by it, or make it a number with CASE"


def _domain_name(domain: object) -> str:
    """The kind of a domain with its article, such as "a category"."""
    name = "date" if isinstance(domain, Moment) else type(domain).__name__.lower()
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"


# The precision that a term of each role gets relative to its range, compared with a count.
ROLE_WEIGHTS: dict[Role, Fraction] = {
    "count": Fraction(1),
    "sum": Fraction(8, 5),
    "centred": Fraction(8, 5),
    "product": Fraction(2),
}


def term_weights(terms: list[Term]) -> list[int]:
    """Choose a whole factor for each term, so that noise of one scale gives every term the precision of its role."""
    if len(terms) == 1:
        return [1]
    base = max(term.likely_steps / ROLE_WEIGHTS[term.role] for term in terms)
    return [max(1, round(base * ROLE_WEIGHTS[term.role] / term.likely_steps)) for term in terms]


def weighted_value(term: Term, factor: int) -> Expr:
    """Return the expression of a term's value times its factor."""
    if factor == 1:
        return term.value
    if term.value == ONE:
        return expr.LiteralValue(Fraction(factor))
    return expr.Arithmetic("*", expr.LiteralValue(Fraction(factor)), term.value)


def largest_row_steps(terms: list[Term], factors: list[int]) -> int:
    """Return the most that one row can add to the weighted terms together, in steps."""
    return sum(term.max_steps * factor for term, factor in zip(terms, factors, strict=True))
