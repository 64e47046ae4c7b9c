"""Aggregates reduced to the fewest sums: each is a recipe over terms, and equal terms are measured once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import reduce
from typing import Literal

from dither.errors import Unsupported
from dither.plan import expressions as expr
from dither.plan.domains import bounds_of
from dither.plan.expressions.core import Expr
from dither.plan.sql.scope import Scope
from dither.post.formulas import Average, ClampedTo, FixedValue, Formula, FunctionCall, NoisyCell
from dither.post.query.question import AggregateCall
from dither.schema import Number

Role = Literal["count", "sum", "centred", "product"]
FINEST = 1 << 24
CLIPPED_FINEST = 1 << 18
WIDEST = 1 << 30
ONE, ZERO = expr.LiteralValue(Fraction(1)), expr.LiteralValue(Fraction(0))


@dataclass(frozen=True)
class Term:
    """A sum over rows: its value lies within +-`most` steps; `role` says how much of the loss it deserves.

    Each row's value was rounded by at most `rounding`. `usual` is how many steps are expected where a bound that is
    still to be found decides on `most`.
    """

    value: Expr
    step: Fraction
    most: int
    role: Role
    rounding: Fraction = Fraction(0)
    usual: int = 1


@dataclass
class Terms:
    """Collects terms while recipes are written.

    `usual` is the scope at bounds that are likely, where `scope` is that at the largest: ranges are centred and terms
    weighted for it.
    """

    scope: Scope
    usual: Scope
    found: list[Term] = field(default_factory=list)
    averaged: frozenset[tuple[Expr, Expr | None]] = frozenset()
    finest: int = FINEST
    notes: list[str] = field(default_factory=list)

    def cell(self, value: Expr, role: Role) -> NoisyCell:
        """The cell of the sum of a value."""
        term = self._term(value, role)
        if term not in self.found:
            self.found.append(term)
        return NoisyCell(self.found.index(term))

    def _term(self, value: Expr, role: Role) -> Term:
        domain = value.domain(self.scope)
        if not isinstance(domain, Number):
            raise Unsupported(f"only numbers can be added up, and this is {_called(domain)}; COUNT it, or use a CASE")
        low, high = bounds_of(domain)
        most = max(abs(low), abs(high))
        if most > self.finest:
            return self._rounded(value, domain, most, role)
        return Term(value, domain.step, max(most, 1), role, usual=self._usual(value))

    def _usual(self, value: Expr) -> int:
        domain = value.domain(self.usual)
        return max(1, *map(abs, bounds_of(domain))) if isinstance(domain, Number) else 1

    def _rounded(self, value: Expr, domain: Number, most: int, role: Role) -> Term:
        """The term on a coarser lattice; squares and products lose nothing that noise would leave."""
        step = domain.step * -(-most // self.finest)
        if role != "product":
            if most >= WIDEST:
                raise Unsupported(
                    f"these values may lie anywhere from {domain.lo} to {domain.hi}, too wide to add up; "
                    "CLAMP(x, low, high) them to what you expect"
                )
            note = f"values from {domain.lo} to {domain.hi} are rounded to multiples of {step} before they are added up"
            self.notes.append(f"{note}; CLAMP(x, low, high) them for a finer sum")
        return replace(self._term(expr.Rounded("round", value, step), role), rounding=step / 2)

    def number(self, value: Expr) -> Number:
        """The declared range of a value that is averaged or added up."""
        domain = value.domain(self.scope)
        if not isinstance(domain, Number):
            raise Unsupported(f"this aggregate needs a number, and this is {_called(domain)}; COUNT it, or use a CASE")
        return domain

    def centre(self, value: Expr) -> Fraction:
        """The middle of the range that is likely."""
        domain = value.domain(self.usual)
        return middle(domain if isinstance(domain, Number) else self.number(value))

    # --- recipes -------------------------------------------------------------------------------------------------

    def node(self, aggregate: AggregateCall) -> Formula:
        """The recipe of an aggregate."""
        match aggregate.kind:
            case "count":
                return self.size(aggregate)
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
                raise TypeError(f"{aggregate.kind} is not a sum")

    def size(self, aggregate: AggregateCall) -> NoisyCell:
        """How many rows count: those under the condition whose values are not NULL."""
        nullable = [value for value in aggregate.values if value.domain(self.scope).nullable]
        present = [expr.Not(expr.IsNull(value)) for value in nullable]
        wanted = ([aggregate.condition] if aggregate.condition is not None else []) + present
        if not wanted:
            return self.cell(ONE, "count")
        return self.cell(expr.Case(((_all(wanted), ONE),), ZERO), "count")

    def total(self, aggregate: AggregateCall) -> Formula:
        """A sum: centre * size + centred sum where the average is asked too, else the plain sum."""
        (value,) = aggregate.values
        if (value, aggregate.condition) not in self.averaged:
            return self.cell(_given(aggregate, value), "sum")
        centre = self.centre(value)
        shifted = FunctionCall("mul", (FixedValue(float(centre)), self.size(aggregate)))
        return FunctionCall("add", (shifted, self.centred(aggregate, value)))

    def mean(self, aggregate: AggregateCall) -> Formula:
        """The average, from a sum around the middle of the declared range."""
        (value,) = aggregate.values
        domain = self.number(value)
        centre = float(self.centre(value))
        return Average(self.centred(aggregate, value), self.size(aggregate), centre, float(domain.lo), float(domain.hi))

    def centred(self, aggregate: AggregateCall, value: Expr) -> NoisyCell:
        """The sum of the distances from the middle, over the rows that count."""
        return self.cell(_given(aggregate, self.shifted(value)), "centred")

    def shifted(self, value: Expr) -> Expr:
        """The distance of a value from the middle of its range."""
        centre = self.centre(value)
        return expr.Arithmetic("-", value, expr.LiteralValue(centre)) if centre else value

    def squares(self, aggregate: AggregateCall, value: Expr) -> NoisyCell:
        """The sum of squared distances from the middle."""
        shifted = self.shifted(value)
        return self.cell(_given(aggregate, expr.Arithmetic("*", shifted, shifted)), "product")

    def variance(self, aggregate: AggregateCall, lost: int) -> Formula:
        """From sums of distances and of their squares, at most a quarter of the squared range (and a little)."""
        (value,) = aggregate.values
        domain = self.number(value)
        parts = (self.squares(aggregate, value), self.centred(aggregate, value), self.size(aggregate))
        most = float(domain.hi - domain.lo) ** 2 / (4 if lost == 0 else 2)
        return ClampedTo(FunctionCall("variance", (*parts, FixedValue(float(lost)))), 0.0, most)

    def covariance(self, aggregate: AggregateCall, lost: int) -> Formula:
        """From the sum of products around both middles."""
        first, second = aggregate.values
        both = expr.Arithmetic("*", self.shifted(first), self.shifted(second))
        product = self.cell(_given(aggregate, both), "product")
        sums = [self.cell(_present(aggregate, self.shifted(v), self.scope), "centred") for v in (first, second)]
        return FunctionCall("covariance", (product, *sums, self.size(aggregate), FixedValue(float(lost))))

    def correlation(self, aggregate: AggregateCall) -> Formula:
        """Covariance over the root of both variances, in [-1, 1]."""
        pair = self.covariance(aggregate, 0)
        roots = []
        for value in aggregate.values:
            shifted = self.shifted(value)
            squares = self.cell(_present(aggregate, expr.Arithmetic("*", shifted, shifted), self.scope), "product")
            total = self.cell(_present(aggregate, shifted, self.scope), "centred")
            roots.append(FunctionCall("variance", (squares, total, self.size(aggregate), FixedValue(0.0))))
        return ClampedTo(
            FunctionCall("div", (pair, FunctionCall("sqrt", (FunctionCall("mul", (roots[0], roots[1])),)))), -1.0, 1.0
        )


def middle(domain: Number) -> Fraction:
    """The lattice point nearest to the middle of a range."""
    low, high = bounds_of(domain)
    return domain.step * ((low + high) // 2)


def _all(conditions: list[Expr]) -> Expr:
    return conditions[0] if len(conditions) == 1 else expr.And(tuple(conditions))


def _given(aggregate: AggregateCall, value: Expr) -> Expr:
    if aggregate.condition is None:
        return value
    return expr.Case(((aggregate.condition, value),), ZERO)


def _present(aggregate: AggregateCall, value: Expr, scope: Scope) -> Expr:
    """The value in rows where none of the aggregate's values is NULL, and where its condition holds."""
    missing = [expr.Not(expr.IsNull(other)) for other in aggregate.values if other.domain(scope).nullable]
    wanted = ([aggregate.condition] if aggregate.condition is not None else []) + missing
    return expr.Case(((_all(wanted), value),), ZERO) if wanted else value


def _called(domain: object) -> str:
    name = type(domain).__name__.lower()
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"


DESERVES: dict[Role, Fraction] = {
    "count": Fraction(1),
    "sum": Fraction(8, 5),
    "centred": Fraction(8, 5),
    "product": Fraction(2),
}


def weights(terms: list[Term]) -> list[int]:
    """Whole factors that make each term take its share of one joint noise scale."""
    if len(terms) == 1:
        return [1]
    base = max(term.usual / DESERVES[term.role] for term in terms)
    return [max(1, round(base * DESERVES[term.role] / term.usual)) for term in terms]


def weighted(term: Term, factor: int) -> Expr:
    """The term's value times its factor."""
    if factor == 1:
        return term.value
    if term.value == ONE:
        return expr.LiteralValue(Fraction(factor))
    return expr.Arithmetic("*", expr.LiteralValue(Fraction(factor)), term.value)


def largest_row(terms: list[Term], factors: list[int]) -> int:
    """The most that one row can add to the weighted terms together, in steps."""
    return reduce(lambda total, pair: total + pair[0].most * pair[1], zip(terms, factors, strict=True), 0)
