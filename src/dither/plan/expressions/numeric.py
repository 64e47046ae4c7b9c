"""Numeric expressions: exact arithmetic on lattices, rounding, clamping, buckets, and functions computed in doubles."""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor
from typing import Literal

from sqlglot import exp

from dither.errors import InvalidParameter, InvalidPlan
from dither.plan.domains import (
    LARGEST_INTEGER,
    as_boolean,
    as_moment,
    as_number,
    bounds_of,
    common_step,
    merge,
    number,
    span,
    to_step,
)
from dither.plan.expressions.core import (
    MAX_EDGES,
    MAX_FUNCTION_VALUE,
    Expr,
    check_fits,
    clamp_double,
    condition_sql,
    convert,
    divide,
    snap_to_lattice,
    to_double,
    to_lattice_integer,
)
from dither.plan.sql.builders import (
    Sql,
    add,
    binary,
    call,
    case,
    cast,
    clamp_integer,
    detach,
    double,
    integer,
    is_not_null,
    literal,
    not_,
    sub,
    times,
    wrap,
)
from dither.plan.sql.scope import Scope
from dither.schema import Domain, Number

# The edges of a column that one CASE tells apart.
FLAT_BRANCHES = 64


@dataclass(frozen=True)
class Arithmetic(Expr):
    """Exact arithmetic on lattices; `/` and `%` truncate towards zero and are NULL where the divisor is 0."""

    op: Literal["+", "-", "*", "/", "%"]
    left: Expr
    right: Expr

    def domain(self, scope: Scope) -> Domain:
        left, right = self._operands(scope)
        nullable = left.nullable or right.nullable
        match self.op:
            case "+" | "-":
                return self._sum_domain(left, right, nullable)
            case "*":
                lo, hi = _product_bounds(bounds_of(left), bounds_of(right), same=self.left == self.right)
                return number(lo, hi, left.step * right.step, nullable)
            case "/":
                return _quotient_domain(left, right)
            case "%":
                return _remainder_domain(left, right)

    def _operands(self, scope: Scope) -> tuple[Number, Number]:
        """Return the operands' domains, on a common lattice except for `*` and `/`."""
        operation = f"the operator {self.op}"
        left = as_number(self.left.domain(scope), operation)
        right = as_number(self.right.domain(scope), operation)
        if self.op in ("*", "/"):
            return left, right
        step = common_step(left.step, right.step)
        return to_step(left, step), to_step(right, step)

    def _sum_domain(self, left: Number, right: Number, nullable: bool) -> Number:
        """Return the domain of a sum or difference."""
        (a, b), (c, d) = bounds_of(left), bounds_of(right)
        return (
            number(a + c, b + d, left.step, nullable) if self.op == "+" else number(a - d, b - c, left.step, nullable)
        )

    def sql(self, scope: Scope) -> Sql:
        self.domain(scope)
        (left, right), dialect = self._operands(scope), scope.dialect
        a = convert(self.left.sql(scope), self.left.domain(scope), left)
        b = convert(self.right.sql(scope), self.right.domain(scope), right)
        match self.op:
            case "+":
                return add(a, b)
            case "-":
                return sub(a, b)
            case "*":
                return times(a, b)
            case "/":
                return dialect.quotient(times(a, _quotient_scale(left)), null_if_zero(b))
            case "%":
                return dialect.remainder(a, null_if_zero(b))


@dataclass(frozen=True)
class Absolute(Expr):
    """The absolute value."""

    child: Expr

    def domain(self, scope: Scope) -> Domain:
        child = as_number(self.child.domain(scope), "ABS")
        lo, hi = bounds_of(child)
        least = 0 if lo <= 0 <= hi else min(abs(lo), abs(hi))
        return number(least, max(abs(lo), abs(hi)), child.step, child.nullable)

    def sql(self, scope: Scope) -> Sql:
        return exp.Abs(this=self.child.sql(scope))


@dataclass(frozen=True)
class Rounded(Expr):
    """The multiple of `step` below, above or nearest: FLOOR, CEIL, ROUND(x); ROUND(x, 2) has step 1/100."""

    how: Literal["floor", "ceil", "round"]
    child: Expr
    step: Fraction = Fraction(1)

    def __post_init__(self) -> None:
        if self.step <= 0:
            raise InvalidParameter("the step of a rounding must be positive")

    def copies(self, scope: Scope) -> int:
        return 2

    def domain(self, scope: Scope) -> Domain:
        child = as_number(self.child.domain(scope), "rounding")
        self._smallest_intermediate(child)
        lo, hi = (self._round(Fraction(value) / self.step) for value in (child.lo, child.hi))
        return number(lo, hi, self.step, child.nullable)

    def _smallest_intermediate(self, child: Number) -> int:
        """Return a lower bound on every intermediate integer; refuse expressions in which one could exceed 62 bits."""
        ratio = child.step / self.step
        check_fits(2 * (bounds_of(child)[1] * ratio.numerator + ratio.denominator))
        return check_fits(2 * (min(bounds_of(child)[0], 0) * ratio.numerator - ratio.denominator))

    def _round(self, value: Fraction) -> int:
        """Round a public number."""
        match self.how:
            case "floor":
                return floor(value)
            case "ceil":
                return ceil(value)
            case "round":
                return round_half_away(value)

    def sql(self, scope: Scope) -> Sql:
        child = as_number(self.child.domain(scope), "rounding")
        ratio, value, dialect = child.step / self.step, self.child.sql(scope), scope.dialect
        up, down = ratio.numerator, ratio.denominator
        lo = self._smallest_intermediate(child)
        scaled = times(value, up)
        if down == 1:
            return scaled
        match self.how:
            case "floor":
                return divide(scaled, down, lo, dialect)
            case "ceil":
                return divide(add(scaled, down - 1), down, lo, dialect)
            case "round":
                half = literal(down) if child.lo >= 0 else _with_sign_of(value, down)
                return dialect.quotient(add(times(scaled, 2), half), literal(2 * down))


@dataclass(frozen=True)
class Function(Expr):
    """SQRT, LN, EXP or LOGISTIC (1 / (1 + exp(-x))), rounded to `step`; NULL where undefined; at most 1e12."""

    name: Literal["sqrt", "ln", "exp", "logistic"]
    child: Expr
    step: Fraction = Fraction(1, 10**6)

    def __post_init__(self) -> None:
        if not Fraction(1, 10**6) <= self.step <= MAX_FUNCTION_VALUE:
            raise InvalidParameter("the step of a function must be between 1e-6 and 1e12")

    def copies(self, scope: Scope) -> int:
        return 2

    def domain(self, scope: Scope) -> Domain:
        child = as_number(self.child.domain(scope), self.name.upper())
        lo, hi = (self._value_at(value) for value in self._argument_range(child))
        lowest = 0 if self.name != "ln" else -MAX_FUNCTION_VALUE
        most = min(ceil(hi / self.step) + 1, floor(MAX_FUNCTION_VALUE / self.step))
        least = min(max(floor(lo / self.step) - 1, lowest), most)
        undefined = child.lo < 0 if self.name == "sqrt" else child.lo <= 0 if self.name == "ln" else False
        return number(least, most, self.step, child.nullable or undefined)

    def _argument_range(self, child: Number) -> tuple[float, float]:
        """Return the range to which arguments are clamped: where the function is defined and its value not capped."""
        least = {"sqrt": 0.0, "ln": float(child.step), "exp": -40.0, "logistic": -40.0}[self.name]
        most = {"sqrt": 1e24, "ln": 1e300, "exp": 27.7, "logistic": 40.0}[self.name]
        return tuple(min(max(float(end), least), most) for end in (child.lo, child.hi))  # type: ignore[return-value]

    def _value_at(self, value: float) -> Fraction:
        """Compute the function at a public argument."""
        match self.name:
            case "sqrt":
                return Fraction(math.sqrt(value))
            case "ln":
                return Fraction(math.log(value))
            case "exp":
                return Fraction(math.exp(value))
            case "logistic":
                return Fraction(1 / (1 + math.exp(-value)))

    def sql(self, scope: Scope) -> Sql:
        child, target = as_number(self.child.domain(scope), self.name.upper()), as_number(self.domain(scope), self.name)
        value = self.child.sql(scope)
        argument = clamp_double(to_double(value, child.step), *self._argument_range(child))
        defined = binary(exp.GTE if self.name != "ln" else exp.GT, value, literal(0))
        if self.name in ("exp", "logistic"):
            defined = is_not_null(value)
        return case([(defined, snap_to_lattice(self._call(argument), target))])

    def _call(self, argument: Sql) -> Sql:
        if self.name != "logistic":
            return call(self.name.upper(), argument)
        falling = call("EXP", exp.Neg(this=argument))
        return binary(exp.Div, double(1), binary(exp.Add, double(1), falling))


@dataclass(frozen=True)
class Power(Expr):
    """POWER(child, exponent) for a public exponent, rounded to `step`; NULL where undefined; at most 1e12."""

    child: Expr
    exponent: Fraction
    step: Fraction = Fraction(1, 10**6)

    def __post_init__(self) -> None:
        if not Fraction(1, 10**6) <= self.step <= MAX_FUNCTION_VALUE or not Fraction(1, 64) <= abs(self.exponent) <= 64:
            raise InvalidParameter(
                "POWER takes an exponent of absolute value from 1/64 to 64, and a step from 1e-6 to 1e12"
            )

    def copies(self, scope: Scope) -> int:
        return 8

    def domain(self, scope: Scope) -> Domain:
        child = as_number(self.child.domain(scope), "POWER")
        lo, hi = bounds_of(child)
        values = [self._value_at(abs(float(end))) for end in (child.lo, child.hi)]
        if lo <= 0 <= hi:
            values.append(Fraction(0) if self.exponent > 0 else self._value_at(0.0))
        most = min(ceil(max(values) / self.step) + 1, floor(MAX_FUNCTION_VALUE / self.step))
        least = min(max(floor(min(values) / self.step) - 1, 0), most)
        undefined = (lo <= 0 <= hi and self.exponent < 0) or (lo < 0 and not self._is_integer)
        return number(-most if self._is_odd and lo < 0 else least, most, self.step, child.nullable or undefined)

    @property
    def _is_integer(self) -> bool:
        return self.exponent.denominator == 1

    @property
    def _is_odd(self) -> bool:
        return self._is_integer and self.exponent.numerator % 2 == 1

    def _argument_range(self) -> tuple[float, float]:
        """Return the range of absolute arguments beyond which the power is 0 or capped at 1e12; never above 1e300."""
        root = float(abs(self.exponent))
        bounds = (10.0 ** max(-13 / root, -300.0), 10.0 ** min(12 / root, 300.0))
        return bounds if self.exponent > 0 else (1 / bounds[1], 1 / bounds[0])

    def _value_at(self, size: float) -> Fraction:
        """Compute the power of a public absolute value, clamped to the range of arguments."""
        least, most = self._argument_range()
        return Fraction(math.pow(min(max(size, least), most), float(self.exponent)))

    def sql(self, scope: Scope) -> Sql:
        child, target = as_number(self.child.domain(scope), "POWER"), as_number(self.domain(scope), "POWER")
        value = self.child.sql(scope)
        exponent = to_double(integer(self.exponent.numerator), Fraction(1, self.exponent.denominator))
        raised = call(
            "POWER", clamp_double(exp.Abs(this=to_double(value, child.step)), *self._argument_range()), exponent
        )
        positive = (
            snap_to_lattice(raised, target)
            if not self._is_odd
            else clamp_integer(to_lattice_integer(raised, self.step), *bounds_of(target))
        )
        branches = [(binary(exp.GT, value, literal(0)), positive)]
        if self.exponent > 0:
            branches.append((binary(exp.EQ, value, literal(0)), integer(0)))
        if self._is_integer:
            below = exp.Neg(this=exp.paren(to_lattice_integer(raised, self.step))) if self._is_odd else positive
            branches.append((binary(exp.LT, value, literal(0)), clamp_integer(below, *bounds_of(target))))
        return case(branches)


@dataclass(frozen=True)
class Clamp(Expr):
    """CLAMP(x, lo, hi): the nearest value between two public numbers."""

    child: Expr
    lo: Fraction
    hi: Fraction

    def __post_init__(self) -> None:
        if self.lo > self.hi:
            raise InvalidParameter(f"CLAMP needs lo <= hi, got {self.lo} and {self.hi}")

    def copies(self, scope: Scope) -> int:
        return 3

    def domain(self, scope: Scope) -> Domain:
        child = as_number(self.child.domain(scope), "CLAMP")
        lo, hi = ceil(self.lo / child.step), floor(self.hi / child.step)
        if lo > hi:
            raise InvalidPlan(f"no multiple of {child.step} lies between {self.lo} and {self.hi}")
        least, most = (min(max(end, lo), hi) for end in bounds_of(child))
        return number(least, most, child.step, child.nullable)

    def sql(self, scope: Scope) -> Sql:
        child, value = as_number(self.child.domain(scope), "CLAMP"), self.child.sql(scope)
        lo, hi = bounds_of(as_number(self.domain(scope), "CLAMP"))
        if not child.nullable:
            return clamp_integer(value, lo, hi)
        below, above = binary(exp.LT, value, integer(lo)), binary(exp.GT, value, integer(hi))
        return case([(below, integer(lo)), (above, integer(hi))], value)


@dataclass(frozen=True)
class Rescale(Expr):
    """`child` mapped linearly from its declared range to the integers from -resolution to resolution, halves up."""

    child: Expr
    resolution: int

    def __post_init__(self) -> None:
        if not 1 <= self.resolution <= 1 << 31:
            raise InvalidParameter("the resolution of a rescaling must be between 1 and 2^31")

    def domain(self, scope: Scope) -> Domain:
        child = as_number(self.child.domain(scope), "rescaling")
        check_fits((4 * self.resolution + 1) * (bounds_of(child)[1] - bounds_of(child)[0]))
        return number(-self.resolution, self.resolution, nullable=child.nullable)

    def sql(self, scope: Scope) -> Sql:
        lo, hi = bounds_of(as_number(self.child.domain(scope), "rescaling"))
        width, above = hi - lo, add(self.child.sql(scope), -lo)
        if width == 0:
            return times(above, 0)
        stretched = add(times(above, 4 * self.resolution), width)
        return add(scope.dialect.quotient(stretched, literal(2 * width)), -self.resolution)


@dataclass(frozen=True)
class LeastGreatest(Expr):
    """LEAST or GREATEST of several numbers or moments; NULLs are skipped."""

    which: Literal["least", "greatest"]
    children: tuple[Expr, ...]

    def __post_init__(self) -> None:
        if not self.children:
            raise InvalidPlan("LEAST and GREATEST take at least one value")

    def domain(self, scope: Scope) -> Domain:
        domains = [child.domain(scope) for child in self.children]
        merged = merge(domains)
        span(merged)
        aligned = [
            to_step(d, merged.step) if isinstance(d, Number) and isinstance(merged, Number) else d for d in domains
        ]
        non_null_spans = [span(d) for d in aligned if not d.nullable] or [(span(merged)[0], span(merged)[1])]
        lo, hi = span(merged)
        lo, hi = (
            (lo, min(h for _, h in non_null_spans))
            if self.which == "least"
            else (max(low for low, _ in non_null_spans), hi)
        )
        nullable = all(d.nullable for d in domains)
        if isinstance(merged, Number):
            return number(lo, hi, merged.step, nullable)
        return dataclasses.replace(as_moment(merged, "LEAST"), lo=lo, hi=hi, nullable=nullable)

    def sql(self, scope: Scope) -> Sql:
        merged = self.domain(scope)
        values = [convert(child.sql(scope), child.domain(scope), merged) for child in self.children]
        return call(self.which.upper(), *values) if len(values) > 1 else values[0]


@dataclass(frozen=True)
class AsNumber(Expr):
    """1 for true, 0 for false."""

    child: Expr

    def copies(self, scope: Scope) -> int:
        return 2

    def domain(self, scope: Scope) -> Domain:
        return number(0, 1, nullable=as_boolean(self.child.domain(scope), "a cast to a number").nullable)

    def sql(self, scope: Scope) -> Sql:
        value = condition_sql(self.child, scope, "a cast to a number")
        return case([(value, integer(1)), (not_(value), integer(0))])


@dataclass(frozen=True)
class Bucket(Expr):
    """The bucket of a value: how many of the public, ascending `edges` are at most the value, 0 to len(edges)."""

    child: Expr
    edges: tuple[Fraction, ...]

    def __post_init__(self) -> None:
        ascending = all(a < b for a, b in zip(self.edges, self.edges[1:], strict=False))
        if not 1 <= len(self.edges) <= MAX_EDGES or not ascending:
            raise InvalidParameter(f"bucket edges must be 1 to {MAX_EDGES} ascending numbers")

    def copies(self, scope: Scope) -> int:
        return 2 * len(self.edges) + 2

    def domain(self, scope: Scope) -> Domain:
        child = self.child.domain(scope)
        edges, (lo, hi) = self._edges(child), span(child)
        return number(bisect_right(edges, lo), bisect_right(edges, hi), nullable=child.nullable)

    def _edges(self, child: Domain) -> list[int]:
        """Encode each edge as the smallest encoded integer that reaches it."""
        step = child.step if isinstance(child, Number) else Fraction(1)
        over, under = step.denominator, step.numerator
        return [-(-edge.numerator * over // (edge.denominator * under)) for edge in self.edges]

    def sql(self, scope: Scope) -> Sql:
        child, value = self.child.domain(scope), self.child.sql(scope)
        edges, (lo, hi) = self._edges(child), span(child)
        first, last = bisect_right(edges, lo), bisect_right(edges, hi)
        bucket = bisect_edges(value, edges, first, last)
        return case([(is_not_null(value), bucket)]) if child.nullable else bucket


def round_half_away(value: Fraction) -> int:
    """Round to the nearest integer, halves away from zero."""
    size = floor(abs(value) + Fraction(1, 2))
    return size if value >= 0 else -size


def null_if_zero(value: Sql) -> Sql:
    """Replace zero by NULL."""
    return exp.Nullif(this=detach(value), expression=literal(0))


def _product_bounds(left: tuple[int, int], right: tuple[int, int], same: bool) -> tuple[int, int]:
    """Return the bounds of a product; `same`: both factors are the same expression."""
    corners = [a * b for a in left for b in right]
    if not same:
        return min(corners), max(corners)
    lo, hi = left
    return (0 if lo <= 0 <= hi else min(lo * lo, hi * hi)), max(lo * lo, hi * hi)


def _quotient_scale(left: Number) -> int:
    """Return the power of ten, up to a million, by which a dividend can be multiplied without exceeding 62 bits."""
    size = max(1, *(abs(end) for end in bounds_of(left)))
    return max(k for k in (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000) if k == 1 or size * k <= LARGEST_INTEGER)


def _quotient_domain(left: Number, right: Number) -> Number:
    """Return the domain of a quotient, NULL included if the divisor can be 0."""
    (a, b), (c, d), scale = bounds_of(left), bounds_of(right), _quotient_scale(left)
    divisors = {end for end in (c, d, *((1,) if c <= 1 <= d else ()), *((-1,) if c <= -1 <= d else ())) if end} or {1}
    quotients = [int(Fraction(end * scale, divisor)) for end in (a, b) for divisor in divisors]
    if a <= 0 <= b:
        quotients.append(0)
    nullable = left.nullable or right.nullable or c <= 0 <= d
    return number(min(quotients), max(quotients), left.step / right.step / scale, nullable)


def _remainder_domain(left: Number, right: Number) -> Number:
    """Return the domain of a remainder, NULL included if the divisor can be 0."""
    (a, b), (c, d) = bounds_of(left), bounds_of(right)
    most = max(abs(c), abs(d), 1) - 1
    nullable = left.nullable or right.nullable or c <= 0 <= d
    return number(-min(most, max(0, -a)), min(most, max(0, b)), left.step, nullable)


def _with_sign_of(value: Sql, size: int) -> Sql:
    """Give a public size the sign of a value."""
    return case([(binary(exp.LT, value, literal(0)), integer(-size))], integer(size))


def bisect_edges(value: Sql, edges: Sequence[int], first: int, last: int) -> Sql:
    """Build the number of edges at most the value, a 64-bit integer known to be `first` to `last`."""
    return cast(_bisection(value, edges, first, last), "bigint")


def _bisection(value: Sql, edges: Sequence[int], first: int, last: int) -> Sql:
    """Build a balanced tree of CASEs, with one CASE for the last few edges of a column: databases read it faster.

    Constants are without casts, since databases take long to read hundreds of them.
    """
    few = FLAT_BRANCHES if isinstance(value, exp.Column) else 1  # anything else is computed again in each branch
    if last - first > few:
        middle = (first + last) // 2
        lower, upper = _bisection(value, edges, first, middle), _bisection(value, edges, middle + 1, last)
        return case([(_is_below(value, edges[middle]), lower)], upper)
    branches = [(_is_below(value, edges[place]), literal(place)) for place in range(first, last)]
    return case(branches, literal(last))


def _is_below(value: Sql, edge: int) -> Sql:
    return exp.LT(this=wrap(value), expression=literal(edge))
