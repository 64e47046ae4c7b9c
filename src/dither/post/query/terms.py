"""Reduce aggregates to sums over rows: each aggregate is a formula over terms, and equal terms are measured once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Literal

from dither.errors import Unsupported
from dither.plan import expressions as expr
from dither.plan.domains import bounds_of
from dither.plan.expressions.core import EstimatedValue, Expr, LiteralValue
from dither.plan.sql.scope import Scope
from dither.post.formulas import Average, ChosenValue, ClampedTo, FixedValue, Formula, FunctionCall, NoisyCell
from dither.post.query.question import REGRESSIONS, AggregateCall
from dither.post.query.spans import ZERO, Span
from dither.schema import Identifier, Moment, Number

Role = Literal["count", "sum", "centred", "product"]
# Values of more steps are rounded to this many (fewer where sums are clipped); larger whole numbers are refused.
FINEST_STEPS = 1 << 24
CLIPPED_FINEST_STEPS = 1 << 18
# Products around private centres lie in the square of a range, most of them near 0: coarser steps would lose them.
FINEST_PRODUCT_STEPS = 1 << 30
MAX_STEPS = 1 << 30
ONE = expr.LiteralValue(Fraction(1))
NULL = expr.LiteralValue(None)


@dataclass(frozen=True)
class Term:
    """A sum over rows of a value within +-`max_steps` steps; `role` decides its share of the loss.

    Each row's value was rounded by at most `rounding`. `likely_steps` replaces `max_steps` in choosing weights, where
    `max_steps` depends on a bound that is still to be chosen. If the value is the distance from a private centre,
    `centre` says which, and `size` is the index of the term that counts its rows; so too for the middle of a `span`.
    """

    value: Expr
    step: Fraction
    max_steps: int
    role: Role
    rounding: Fraction = Fraction(0)
    likely_steps: int = 1
    centre: Centre | None = None
    size: int | None = None
    span: Span | None = None


@dataclass(frozen=True)
class Centre:
    """A centre to be chosen privately, near the median over units of each unit's mean of `value`."""

    value: Expr
    condition: Expr | None
    number: EstimatedValue


@dataclass
class Terms:
    """Collects the terms of aggregates.

    `scope` has the columns' domains at the largest bounds, `likely_scope` those at likely bounds, by which ranges are
    centred and terms weighted. `averaged` has the values, with conditions, whose average is also asked for. Terms have
    at most `finest_steps` steps: finer values are rounded. With `private_centres`, averages and products are summed
    around centres that are chosen privately, else around the middle of their range.
    """

    scope: Scope
    likely_scope: Scope
    terms: list[Term] = field(default_factory=list)
    averaged: frozenset[tuple[Expr, Expr | None]] = frozenset()
    finest_steps: int = FINEST_STEPS
    notes: list[str] = field(default_factory=list)
    private_centres: bool = False
    centres: list[Centre] = field(default_factory=list)

    def cell(self, value: Expr, role: Role) -> NoisyCell:
        """Return the cell of a value's sum, and add the term if it is new."""
        term = self._term(value, role)
        if term not in self.terms:
            self.terms.append(term)
        return NoisyCell(self.terms.index(term))

    def _term(self, value: Expr, role: Role, finest: int | None = None) -> Term:
        domain, finest = value.domain(self.scope), finest or self.finest_steps
        if not isinstance(domain, Number):
            raise Unsupported(
                f"only numbers can be added up, and this is {_domain_name(domain)}; {_count_advice(domain)}"
            )
        low, high = bounds_of(domain)
        most = max(abs(low), abs(high))
        if most > finest:
            return self._rounded_term(value, domain, most, role)
        return Term(value, domain.step, max(most, 1), role, likely_steps=self._likely_steps(value))

    def _likely_steps(self, value: Expr) -> int:
        domain = value.domain(self.likely_scope)
        return max(1, *map(abs, bounds_of(domain))) if isinstance(domain, Number) else 1

    def _rounded_term(self, value: Expr, domain: Number, most: int, role: Role) -> Term:
        """Make a term whose values are rounded to coarser steps, with a note unless noise hides it, as in products."""
        step = domain.step * -(-most // self.finest_steps)
        if role != "product":
            if most >= MAX_STEPS and domain.step >= 1:
                raise Unsupported(
                    f"values of this sum may be anything up to {_decimal(max(abs(domain.lo), abs(domain.hi)))}, so "
                    "that small ones would be lost in rounding; give a narrower range with CLAMP(x, low, high)"
                )
            note = (
                f"values that span {_decimal(domain.hi - domain.lo)} are rounded to multiples of {_decimal(step)} "
                "before they are added up; CLAMP(x, low, high) to a narrower range for a finer sum"
            )
            self.notes += [note] if note not in self.notes else []
        return replace(self._term(expr.Rounded("round", value, step), role), rounding=step / 2)

    def number_domain(self, value: Expr) -> Number:
        """Return the domain of an aggregated value; refuse what is not a number."""
        domain = value.domain(self.scope)
        if not isinstance(domain, Number):
            raise Unsupported(
                f"this aggregate needs a number, and this is {_domain_name(domain)}; {_count_advice(domain)}"
            )
        return domain

    def centre(self, aggregate: AggregateCall, value: Expr) -> EstimatedValue | LiteralValue:
        """The centre of a value: to be chosen privately, or the middle of its likely range."""
        if self.private_centres:
            return self.private_centre(aggregate, value)
        domain = value.domain(self.likely_scope)
        return expr.LiteralValue(middle(domain if isinstance(domain, Number) else self.number_domain(value)))

    def private_centre(self, aggregate: AggregateCall, value: Expr) -> EstimatedValue:
        """The centre of a value over the rows that an aggregate counts, one for each such pair."""
        conditions = self.row_conditions(aggregate)
        condition = _conjunction(conditions) if conditions else None
        for known in self.centres:
            if (known.value, known.condition) == (value, condition):
                return known.number
        domain = self.number_domain(value)
        number = EstimatedValue(f"centre{len(self.centres)}", *bounds_of(domain), domain.step)
        self.centres.append(Centre(value, condition, number))
        return number

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
            case kind if kind in REGRESSIONS:
                return self.regression(aggregate)
            case _:
                raise TypeError(f"{aggregate.kind} is not computed from sums")

    def row_conditions(self, aggregate: AggregateCall) -> list[Expr]:
        """The conditions of the rows that count: the aggregate's own, and that no value is NULL."""
        nullable = [value for value in aggregate.values if value.domain(self.scope).nullable]
        present = [expr.Not(expr.IsNull(value)) for value in nullable]
        return ([aggregate.condition] if aggregate.condition is not None else []) + present

    def row_count(self, aggregate: AggregateCall) -> NoisyCell:
        """The number of rows that meet the condition and whose values are not NULL."""
        conditions = self.row_conditions(aggregate)
        if not conditions:
            return self.cell(ONE, "count")
        return self.cell(expr.Case(((_conjunction(conditions), ONE),), ZERO), "count")

    def constant(self, value: Expr) -> Fraction | None:
        """The only number that a value can be, if there is one."""
        domain = value.domain(self.scope)
        return domain.lo if isinstance(domain, Number) and domain.lo == domain.hi else None

    def multiple_of_count(self, aggregate: AggregateCall, factor: Fraction) -> Formula:
        """A constant times the number of rows that count."""
        return FunctionCall("mul", (FixedValue(float(factor)), self.row_count(aggregate)))

    def total(self, aggregate: AggregateCall) -> Formula:
        """A sum: centre * row count + centred sum if the average is asked for too, else the plain sum."""
        (value,) = aggregate.values
        if (constant := self.constant(value)) is not None:
            return self.multiple_of_count(aggregate, constant)
        if (value, aggregate.condition) not in self.averaged:
            return self.cell(_value_or_zero(aggregate, value), "sum")
        offset = FunctionCall("mul", (self.centre_formula(aggregate, value), self.row_count(aggregate)))
        return FunctionCall("add", (offset, self.centred_sum(aggregate, value)))

    def centre_formula(self, aggregate: AggregateCall, value: Expr) -> FixedValue | ChosenValue:
        """The centre of a value as a formula."""
        centre = self.centre(aggregate, value)
        if isinstance(centre, EstimatedValue):
            return ChosenValue(centre)
        return FixedValue(float(Fraction(centre.value)))  # type: ignore[arg-type]

    def mean(self, aggregate: AggregateCall) -> Formula:
        """The average, from a sum around a centre."""
        (value,) = aggregate.values
        domain = self.number_domain(value)
        if (constant := self.constant(value)) is not None:
            parts = (self.multiple_of_count(aggregate, constant), self.row_count(aggregate))
            return ClampedTo(FunctionCall("div", parts), float(constant), float(constant))
        size, total = self.row_count(aggregate), self.centred_sum(aggregate, value)
        return Average(total, size, self.centre_formula(aggregate, value), float(domain.lo), float(domain.hi))

    def centred_sum(self, aggregate: AggregateCall, value: Expr) -> NoisyCell:
        """The sum of the values' distances from their centre, over the rows that count."""
        shifted = self.distance_from_centre(aggregate, value)
        if not self.private_centres:
            return self.cell(_value_or_zero(aggregate, shifted), "centred")
        return self.private_cell(aggregate, value, shifted)

    def private_cell(
        self, aggregate: AggregateCall, value: Expr, shifted: Expr, finest: int | None = None
    ) -> NoisyCell:
        """Return the cell of the distances from a private centre, over the rows that count."""
        size = self.row_count(aggregate).index
        centre = self.private_centre(aggregate, value)
        present, step = _value_if_present(aggregate, shifted, self.scope), self.number_domain(shifted).step
        if self.number_domain(present).step != step:  # the 0 of other rows has a finer step; it is a multiple of any
            present = expr.Rounded("round", present, step)
        term = self._term(present, "centred", finest)
        chosen = next(known for known in self.centres if known.number == centre)
        term = replace(term, centre=chosen, size=size)
        if term not in self.terms:
            self.terms.append(term)
        return NoisyCell(self.terms.index(term))

    def distance_from_centre(self, aggregate: AggregateCall, value: Expr) -> Expr:
        """The distance of a value from its centre."""
        centre = self.centre(aggregate, value)
        return value if centre == ZERO else expr.Arithmetic("-", value, centre)

    def product_sum(self, aggregate: AggregateCall, first: Expr, second: Expr) -> Formula:
        """The sum of products of two values' distances from their centres, over the rows that count.

        The products have a private centre of their own: their sum is that centre times the rows, and the distances.
        """
        both = expr.Arithmetic(
            "*", self.distance_from_centre(aggregate, first), self.distance_from_centre(aggregate, second)
        )
        if not self.private_centres:
            return self.cell(_value_if_present(aggregate, both, self.scope), "product")
        product = self.coarse(both)
        offset = FunctionCall("mul", (self.centre_formula(aggregate, product), self.row_count(aggregate)))
        shifted = self.distance_from_centre(aggregate, product)
        return FunctionCall("add", (offset, self.private_cell(aggregate, product, shifted, FINEST_PRODUCT_STEPS)))

    def coarse(self, value: Expr) -> Expr:
        """Round a product to so few steps that its distance from a centre has at most FINEST_PRODUCT_STEPS."""
        domain = self.number_domain(value)
        low, high = bounds_of(domain)
        if high - low <= FINEST_PRODUCT_STEPS:
            return value
        return expr.Rounded("round", value, domain.step * -(-(high - low) // FINEST_PRODUCT_STEPS))

    def variance(self, aggregate: AggregateCall, ddof: int) -> Formula:
        """The variance, from sums of distances and of their squares; `ddof` is 1 for a sample, 0 for a population.

        A population variance is at most a quarter of the squared range, a sample variance at most half.
        """
        (value,) = aggregate.values
        domain = self.number_domain(value)
        if self.constant(value) is not None:
            return self.multiple_of_count(aggregate, Fraction(0))
        total, size = self.centred_sum(aggregate, value), self.row_count(aggregate)
        parts = (self.product_sum(aggregate, value, value), total, size)
        most = float(domain.hi - domain.lo) ** 2 / (4 if ddof == 0 else 2)
        return ClampedTo(FunctionCall("variance", (*parts, FixedValue(float(ddof)))), 0.0, most)

    def covariance(self, aggregate: AggregateCall, ddof: int) -> Formula:
        """The covariance, from the sum of products around both middles; `ddof` is as for the variance."""
        first, second = aggregate.values
        if self.constant(first) is not None or self.constant(second) is not None:
            return self.multiple_of_count(aggregate, Fraction(0))
        sums = [self.sum_if_all_present(aggregate, value) for value in (first, second)]
        product = self.product_sum(aggregate, first, second)
        return FunctionCall("covariance", (product, *sums, self.row_count(aggregate), FixedValue(float(ddof))))

    def sum_if_all_present(self, aggregate: AggregateCall, value: Expr) -> NoisyCell:
        """The sum of a value's distances from its centre, over the rows in which no value of the aggregate is NULL."""
        shifted = self.distance_from_centre(aggregate, value)
        if self.private_centres:
            return self.private_cell(aggregate, value, shifted)
        return self.cell(_value_if_present(aggregate, shifted, self.scope), "centred")

    def correlation(self, aggregate: AggregateCall) -> Formula:
        """The correlation: the covariance over the root of both variances, clamped to [-1, 1]."""
        covariance = self.covariance(aggregate, 0)
        if any(self.constant(value) is not None for value in aggregate.values):
            return FunctionCall("div", (covariance, covariance))
        variances = [self.pair_variance(aggregate, value) for value in aggregate.values]
        return ClampedTo(
            FunctionCall(
                "div", (covariance, FunctionCall("sqrt", (FunctionCall("mul", (variances[0], variances[1])),)))
            ),
            -1.0,
            1.0,
        )

    # --- regressions ---------------------------------------------------------------------------------------------

    def regression(self, aggregate: AggregateCall) -> Formula:
        """Return the formula of REGR_SLOPE(y, x) or another aggregate of its family."""
        y, x = aggregate.values
        size = self.row_count(aggregate)
        match aggregate.kind:
            case "regr_count":
                return size
            case "regr_avgx":
                return self.pair_mean(aggregate, x)
            case "regr_avgy":
                return self.pair_mean(aggregate, y)
            case "regr_sxx":
                return FunctionCall("mul", (self.pair_variance(aggregate, x), size))
            case "regr_syy":
                return FunctionCall("mul", (self.pair_variance(aggregate, y), size))
            case "regr_sxy":
                return FunctionCall("mul", (self.covariance(aggregate, 0), size))
            case "regr_r2":
                correlation = self.correlation(aggregate)
                return ClampedTo(FunctionCall("mul", (correlation, correlation)), 0.0, 1.0)
            case "regr_intercept":
                rise = FunctionCall("mul", (self.slope(aggregate), self.pair_mean(aggregate, x)))
                return FunctionCall("sub", (self.pair_mean(aggregate, y), rise))
            case _:
                return self.slope(aggregate)

    def slope(self, aggregate: AggregateCall) -> Formula:
        """The covariance over the variance of x; undefined if x is always the same."""
        return FunctionCall("div", (self.covariance(aggregate, 0), self.pair_variance(aggregate, aggregate.values[1])))

    def pair_variance(self, aggregate: AggregateCall, value: Expr) -> Formula:
        """The population variance of a value, over the rows in which no value of the aggregate is NULL."""
        if self.constant(value) is not None:
            return self.multiple_of_count(aggregate, Fraction(0))
        squares, total = self.product_sum(aggregate, value, value), self.sum_if_all_present(aggregate, value)
        return FunctionCall("variance", (squares, total, self.row_count(aggregate), FixedValue(0.0)))

    def pair_mean(self, aggregate: AggregateCall, value: Expr) -> Formula:
        """The mean of a value, over the rows in which no value of the aggregate is NULL."""
        domain = self.number_domain(value)
        if (constant := self.constant(value)) is not None:
            parts = (self.multiple_of_count(aggregate, constant), self.row_count(aggregate))
            return ClampedTo(FunctionCall("div", parts), float(constant), float(constant))
        size, total = self.row_count(aggregate), self.sum_if_all_present(aggregate, value)
        return Average(total, size, self.centre_formula(aggregate, value), float(domain.lo), float(domain.hi))


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
