"""The scalar language: total functions of one row; bounds in, bounds out, SQL.

Nodes are frozen data, safe to decode from the wire by `BY_NAME`. A node never refers to a table: it is read in a
`Scope` (the domains of the columns around it), so `node.domain(scope)` and `node.sql(scope)` are pure functions of
the plan and the schema. Every node has a value for every record, inside `node.domain(scope)`.

How values are held: a Number is an integer `k` that stands for `k * step`; a Moment is an integer number of
microseconds of the dataset's wall clock; a Category or text key is text; a Boolean is a boolean; NULL is allowed
where the domain says `nullable`. There are no floats, except inside `Function` and `Power`, which round at once.

Meanings, the same on every engine: x / 0 and x % 0 are NULL; `/` and `%` go towards zero, `/` on a lattice of at most
a millionth of the operands' own; `round` takes halves away from zero; LEAST and GREATEST skip NULLs; AND, OR and NOT
are three-valued; text is compared by code points; weeks start on Monday; day of week 0 is Sunday; SQRT and LN of what
they are not defined for are NULL; EXP and POWER stop at 1e12.
"""

from __future__ import annotations

import dataclasses
import math
import unicodedata
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from fractions import Fraction
from math import ceil, floor
from typing import Literal

from sqlglot import exp

from dither.access.domains import (
    DAY,
    EPOCH,
    LARGEST,
    LENGTHS,
    NOTHING,
    Period,
    Periods,
    as_boolean,
    as_category,
    as_moment,
    as_number,
    common_step,
    describe,
    ends,
    index_of,
    merge,
    number,
    on_step,
    physical,
    possible,
    span,
    truncate,
    with_null,
)
from dither.access.spelling import (
    Spelling,
    Sql,
    add,
    binary,
    both,
    call,
    case,
    cast,
    double,
    either,
    is_null,
    negated,
    null,
    own,
    plain,
    present,
    sub,
    text,
    times,
    whole,
    within,
)
from dither.errors import InvalidParameter, InvalidPlan, Unsupported
from dither.schema import Boolean, Category, Domain, Identifier, Moment, Number, Precision, Reference, Scalar

Part = Literal["year", "quarter", "month", "day", "hour", "minute", "second", "dayofweek", "dayofyear"]

CEILING = 10**12
FIRST_MOMENT, LAST_MOMENT = -62_135_596_800_000_000, 253_402_300_799_999_999
MOST_EDGES = 10_000
MOST_WEIGHT = 50_000
MOST_DEPTH = 40


@dataclass(frozen=True)
class Scope:
    """The columns around an expression: their domains, and for SQL their names and the engine's spelling."""

    columns: Mapping[str, Domain]
    names: Mapping[str, Sql] = field(default_factory=dict)
    spelling: Spelling = field(default_factory=Spelling)


class Expr(ABC):
    """A total function of one row."""

    @abstractmethod
    def domain(self, scope: Scope) -> Domain:
        """What values it can take, from the domains of the columns."""

    @abstractmethod
    def sql(self, scope: Scope) -> Sql:
        """SQL that cannot fail and stays inside the domain, in the form in which values are held."""

    def copies(self, scope: Scope) -> int:
        """How many times its SQL repeats the SQL of an operand, at most."""
        return 1


def typed(node: Expr, scope: Scope) -> Domain:
    """The domain of a whole expression, refused where its SQL would grow too large."""
    if weight(node, scope) > MOST_WEIGHT:
        raise InvalidPlan("an expression is too large; split it up or use fewer nested functions")
    return node.domain(scope)


def weight(node: Expr, scope: Scope, depth: int = 0) -> int:
    """An upper bound on the size of an expression's SQL, without building it."""
    if depth > MOST_DEPTH:
        raise InvalidPlan(f"an expression may be nested {MOST_DEPTH} deep, not more")
    below = sum(weight(child, scope, depth + 1) for child in operands(node))
    return 1 + below * node.copies(scope) if below < MOST_WEIGHT else below


def operands(node: Expr) -> Iterator[Expr]:
    """The expressions inside an expression."""
    pending: list[object] = [getattr(node, part.name) for part in dataclasses.fields(node)]  # type: ignore[arg-type]
    while pending:
        item = pending.pop()
        if isinstance(item, Expr):
            yield item
        elif isinstance(item, tuple):
            pending.extend(item)


def divided(value: Sql, divisor: int, lo: int, spelling: Spelling) -> Sql:
    """floor(value / divisor) for a public divisor, of a value that is at least `lo`."""
    shift = max(0, -(lo // divisor))
    return value if divisor == 1 else add(spelling.quotient(add(value, shift * divisor), plain(divisor)), -shift)


def modulo(value: Sql, divisor: int, lo: int, spelling: Spelling) -> Sql:
    """value - divisor * floor(value / divisor), of a value that is at least `lo`."""
    shift = max(0, -(lo // divisor))
    return spelling.remainder(add(value, shift * divisor), plain(divisor))


def convert(value: Sql, source: Domain, target: Domain) -> Sql:
    """A value of one domain in the form of a domain that contains it."""
    if source == NOTHING:
        return null(physical(target))
    if isinstance(source, Number) and isinstance(target, Number):
        return times(value, int(source.step / target.step))
    return value


def fits(size: int) -> int:
    """An intermediate integer that must stay within 62 bits."""
    if abs(size) > LARGEST:
        raise Unsupported("values could pass 2^62 steps of their lattice; CLAMP or ROUND the operands first")
    return size


def real(value: Sql, step: Fraction) -> Sql:
    """A lattice integer as the double nearest to what it stands for."""
    scaled = binary(exp.Mul, cast(value, "double"), double(step.numerator))
    return binary(exp.Div, scaled, double(step.denominator))


def snapped(value: Sql, target: Number) -> Sql:
    """A finite double on the lattice of a domain, inside it."""
    return within(_nearest(value, target.step), *ends(target))


@dataclass(frozen=True)
class Column(Expr):
    """The value of a column of the relation below."""

    name: str

    def domain(self, scope: Scope) -> Domain:
        if self.name not in scope.columns:
            raise InvalidPlan(f"no column {self.name[:40]!r}; there are: {', '.join(scope.columns)}")
        return scope.columns[self.name]

    def sql(self, scope: Scope) -> Sql:
        self.domain(scope)
        return scope.names[self.name].copy()


@dataclass(frozen=True, eq=False)
class Constant(Expr):
    """A number, text, truth value or NULL written in the query; 1 and TRUE are different constants."""

    value: Scalar

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Constant) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> tuple[bool, Scalar]:
        return isinstance(self.value, bool), self.value

    def __post_init__(self) -> None:
        if isinstance(self.value, str):
            legible(self.value)
        elif isinstance(self.value, float):
            raise InvalidParameter("write a constant as an integer or a Fraction, not as a float")

    def domain(self, scope: Scope) -> Domain:
        match self.value:
            case None:
                return NOTHING
            case bool():
                return Boolean()
            case str():
                return Category((unicodedata.normalize("NFC", self.value),))
            case _:
                exact = Fraction(self.value)
                return number(exact.numerator, exact.numerator, Fraction(1, exact.denominator))

    def sql(self, scope: Scope) -> Sql:
        match self.value:
            case None:
                return null("varchar")
            case bool():
                return exp.true() if self.value else exp.false()
            case str():
                return text(unicodedata.normalize("NFC", self.value))
            case _:
                return whole(Fraction(self.value).numerator)


@dataclass(frozen=True)
class Instant(Expr):
    """A moment written in the query: microseconds since 1970 on the dataset's wall clock."""

    microseconds: int

    def __post_init__(self) -> None:
        if not FIRST_MOMENT <= self.microseconds <= LAST_MOMENT:
            raise InvalidParameter("a moment must lie between the years 1 and 9999")

    def domain(self, scope: Scope) -> Domain:
        return Moment(self.microseconds, self.microseconds, "microsecond")

    def sql(self, scope: Scope) -> Sql:
        return whole(self.microseconds)


@dataclass(frozen=True)
class Arithmetic(Expr):
    """Exact arithmetic on lattices; `/` and `%` go towards zero and give NULL where the divisor is 0."""

    op: Literal["+", "-", "*", "/", "%"]
    left: Expr
    right: Expr

    def domain(self, scope: Scope) -> Domain:
        left, right = self._operands(scope)
        nullable = left.nullable or right.nullable
        match self.op:
            case "+" | "-":
                return self._linear(left, right, nullable)
            case "*":
                lo, hi = _product(ends(left), ends(right), same=self.left == self.right)
                return number(lo, hi, left.step * right.step, nullable)
            case "/":
                return _ratio(left, right)
            case "%":
                return _remainder(left, right)

    def _operands(self, scope: Scope) -> tuple[Number, Number]:
        where = f"the operator {self.op}"
        left = as_number(self.left.domain(scope), where)
        right = as_number(self.right.domain(scope), where)
        if self.op in ("*", "/"):
            return left, right
        step = common_step(left.step, right.step)
        return on_step(left, step), on_step(right, step)

    def _linear(self, left: Number, right: Number, nullable: bool) -> Number:
        (a, b), (c, d) = ends(left), ends(right)
        return (
            number(a + c, b + d, left.step, nullable) if self.op == "+" else number(a - d, b - c, left.step, nullable)
        )

    def sql(self, scope: Scope) -> Sql:
        self.domain(scope)
        (left, right), spelling = self._operands(scope), scope.spelling
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
                return spelling.quotient(times(a, _fineness(left)), nonzero(b))
            case "%":
                return spelling.remainder(a, nonzero(b))


@dataclass(frozen=True)
class Absolute(Expr):
    """The absolute value."""

    child: Expr

    def domain(self, scope: Scope) -> Domain:
        child = as_number(self.child.domain(scope), "ABS")
        lo, hi = ends(child)
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
        self._least(child)
        lo, hi = (self._round(Fraction(value) / self.step) for value in (child.lo, child.hi))
        return number(lo, hi, self.step, child.nullable)

    def _least(self, child: Number) -> int:
        """A bound below every intermediate integer; refused where one could pass 62 bits."""
        ratio = child.step / self.step
        fits(2 * (ends(child)[1] * ratio.numerator + ratio.denominator))
        return fits(2 * (min(ends(child)[0], 0) * ratio.numerator - ratio.denominator))

    def _round(self, value: Fraction) -> int:
        match self.how:
            case "floor":
                return floor(value)
            case "ceil":
                return ceil(value)
            case "round":
                return nearest(value)

    def sql(self, scope: Scope) -> Sql:
        child = as_number(self.child.domain(scope), "rounding")
        ratio, value, spelling = child.step / self.step, self.child.sql(scope), scope.spelling
        up, down = ratio.numerator, ratio.denominator
        lo = self._least(child)
        scaled = times(value, up)
        if down == 1:
            return scaled
        match self.how:
            case "floor":
                return divided(scaled, down, lo, spelling)
            case "ceil":
                return divided(add(scaled, down - 1), down, lo, spelling)
            case "round":
                half = plain(down) if child.lo >= 0 else _signed(value, down)
                return spelling.quotient(add(times(scaled, 2), half), plain(2 * down))


@dataclass(frozen=True)
class Function(Expr):
    """SQRT, LN, EXP or LOGISTIC (1 / (1 + exp(-x))), rounded to `step`; NULL where not defined; at most 1e12."""

    name: Literal["sqrt", "ln", "exp", "logistic"]
    child: Expr
    step: Fraction = Fraction(1, 10**6)

    def __post_init__(self) -> None:
        if not Fraction(1, 10**6) <= self.step <= CEILING:
            raise InvalidParameter("the step of a function must be between 1e-6 and 1e12")

    def copies(self, scope: Scope) -> int:
        return 2

    def domain(self, scope: Scope) -> Domain:
        child = as_number(self.child.domain(scope), self.name.upper())
        lo, hi = (self._at(value) for value in self._reach(child))
        lowest = 0 if self.name != "ln" else -CEILING
        most = min(ceil(hi / self.step) + 1, floor(CEILING / self.step))
        least = min(max(floor(lo / self.step) - 1, lowest), most)
        undefined = child.lo < 0 if self.name == "sqrt" else child.lo <= 0 if self.name == "ln" else False
        return number(least, most, self.step, child.nullable or undefined)

    def _reach(self, child: Number) -> tuple[float, float]:
        """The arguments that matter: where the function is defined, and not beyond where it stops."""
        least = {"sqrt": 0.0, "ln": float(child.step), "exp": -40.0, "logistic": -40.0}[self.name]
        most = {"sqrt": 1e24, "ln": 1e300, "exp": 27.7, "logistic": 40.0}[self.name]
        return tuple(min(max(float(end), least), most) for end in (child.lo, child.hi))  # type: ignore[return-value]

    def _at(self, value: float) -> Fraction:
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
        argument = _held(real(value, child.step), *self._reach(child))
        defined = binary(exp.GTE if self.name != "ln" else exp.GT, value, plain(0))
        if self.name in ("exp", "logistic"):
            defined = present(value)
        return case([(defined, snapped(self._call(argument), target))])

    def _call(self, argument: Sql) -> Sql:
        if self.name != "logistic":
            return call(self.name.upper(), argument)
        falling = call("EXP", exp.Neg(this=argument))
        return binary(exp.Div, double(1), binary(exp.Add, double(1), falling))


@dataclass(frozen=True)
class Power(Expr):
    """POWER(child, exponent) for a public exponent, rounded to `step`; NULL where not defined; at most 1e12."""

    child: Expr
    exponent: Fraction
    step: Fraction = Fraction(1, 10**6)

    def __post_init__(self) -> None:
        if not Fraction(1, 10**6) <= self.step <= CEILING or not Fraction(1, 64) <= abs(self.exponent) <= 64:
            raise InvalidParameter(
                "POWER takes an exponent between 1/64 and 64 (or minus that) and a step from 1e-6 to 1e12"
            )

    def copies(self, scope: Scope) -> int:
        return 8

    def domain(self, scope: Scope) -> Domain:
        child = as_number(self.child.domain(scope), "POWER")
        lo, hi = ends(child)
        values = [self._at(abs(float(end))) for end in (child.lo, child.hi)]
        if lo <= 0 <= hi:
            values.append(Fraction(0) if self.exponent > 0 else self._at(0.0))
        most = min(ceil(max(values) / self.step) + 1, floor(CEILING / self.step))
        least = min(max(floor(min(values) / self.step) - 1, 0), most)
        undefined = (lo <= 0 <= hi and self.exponent < 0) or (lo < 0 and not self._whole)
        return number(-most if self._odd and lo < 0 else least, most, self.step, child.nullable or undefined)

    @property
    def _whole(self) -> bool:
        return self.exponent.denominator == 1

    @property
    def _odd(self) -> bool:
        return self._whole and self.exponent.numerator % 2 == 1

    def _reach(self) -> tuple[float, float]:
        """The sizes of arguments beyond which the power rounds to 0 or stops at 1e12; none passes 1e300."""
        root = float(abs(self.exponent))
        bounds = (10.0 ** max(-13 / root, -300.0), 10.0 ** min(12 / root, 300.0))
        return bounds if self.exponent > 0 else (1 / bounds[1], 1 / bounds[0])

    def _at(self, size: float) -> Fraction:
        least, most = self._reach()
        return Fraction(math.pow(min(max(size, least), most), float(self.exponent)))

    def sql(self, scope: Scope) -> Sql:
        child, target = as_number(self.child.domain(scope), "POWER"), as_number(self.domain(scope), "POWER")
        value = self.child.sql(scope)
        exponent = real(whole(self.exponent.numerator), Fraction(1, self.exponent.denominator))
        raised = call("POWER", _held(exp.Abs(this=real(value, child.step)), *self._reach()), exponent)
        positive = snapped(raised, target) if not self._odd else within(_nearest(raised, self.step), *ends(target))
        branches = [(binary(exp.GT, value, plain(0)), positive)]
        if self.exponent > 0:
            branches.append((binary(exp.EQ, value, plain(0)), whole(0)))
        if self._whole:
            below = exp.Neg(this=exp.paren(_nearest(raised, self.step))) if self._odd else positive
            branches.append((binary(exp.LT, value, plain(0)), within(below, *ends(target))))
        return case(branches)


@dataclass(frozen=True)
class Clamp(Expr):
    """The nearest value between two public numbers: the user's own CLAMP(x, lo, hi)."""

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
        least, most = (min(max(end, lo), hi) for end in ends(child))
        return number(least, most, child.step, child.nullable)

    def sql(self, scope: Scope) -> Sql:
        child, value = as_number(self.child.domain(scope), "CLAMP"), self.child.sql(scope)
        lo, hi = ends(as_number(self.domain(scope), "CLAMP"))
        if not child.nullable:
            return within(value, lo, hi)
        below, above = binary(exp.LT, value, whole(lo)), binary(exp.GT, value, whole(hi))
        return case([(below, whole(lo)), (above, whole(hi))], value)


@dataclass(frozen=True)
class Rescale(Expr):
    """The declared range of `child` stretched to the integers from -resolution to resolution (nearest, halves up)."""

    child: Expr
    resolution: int

    def __post_init__(self) -> None:
        if not 1 <= self.resolution <= 1 << 31:
            raise InvalidParameter("the resolution of a rescaling must be between 1 and 2^31")

    def domain(self, scope: Scope) -> Domain:
        child = as_number(self.child.domain(scope), "rescaling")
        fits((4 * self.resolution + 1) * (ends(child)[1] - ends(child)[0]))
        return number(-self.resolution, self.resolution, nullable=child.nullable)

    def sql(self, scope: Scope) -> Sql:
        lo, hi = ends(as_number(self.child.domain(scope), "rescaling"))
        width, above = hi - lo, add(self.child.sql(scope), -lo)
        if width == 0:
            return times(above, 0)
        stretched = add(times(above, 4 * self.resolution), width)
        return add(scope.spelling.quotient(stretched, plain(2 * width)), -self.resolution)


@dataclass(frozen=True)
class Extreme(Expr):
    """LEAST or GREATEST of several numbers or moments, NULLs skipped."""

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
            on_step(d, merged.step) if isinstance(d, Number) and isinstance(merged, Number) else d for d in domains
        ]
        sure = [span(d) for d in aligned if not d.nullable] or [(span(merged)[0], span(merged)[1])]
        lo, hi = span(merged)
        lo, hi = (lo, min(h for _, h in sure)) if self.which == "least" else (max(low for low, _ in sure), hi)
        nullable = all(d.nullable for d in domains)
        if isinstance(merged, Number):
            return number(lo, hi, merged.step, nullable)
        return dataclasses.replace(as_moment(merged, "LEAST"), lo=lo, hi=hi, nullable=nullable)

    def sql(self, scope: Scope) -> Sql:
        merged = self.domain(scope)
        values = [convert(child.sql(scope), child.domain(scope), merged) for child in self.children]
        return call(self.which.upper(), *values) if len(values) > 1 else values[0]


@dataclass(frozen=True)
class Compare(Expr):
    """A comparison of two values of the same kind; identifiers and references allow = and <> only."""

    op: Literal["=", "<>", "<", "<=", ">", ">="]
    left: Expr
    right: Expr

    def copies(self, scope: Scope) -> int:
        return 2

    def domain(self, scope: Scope) -> Domain:
        left, right = self.left.domain(scope), self.right.domain(scope)
        self._check(left, right)
        return Boolean(nullable=left.nullable or right.nullable)

    def _check(self, left: Domain, right: Domain) -> None:
        if NOTHING in (left, right):
            return
        if isinstance(left, Number) and isinstance(right, Number):
            merge([left, right])
        if self.op in ("=", "<>"):
            if not _alike(left, right):
                raise InvalidPlan(f"a {describe(left)} cannot be compared with a {describe(right)}")
        elif isinstance(left, Category) and isinstance(right, Category):
            if not isinstance(self.right, Constant):
                raise Unsupported(f"the operator {self.op} on categories needs a constant on its right side")
        elif not (_alike(left, right) and isinstance(left, Number | Moment)):
            raise Unsupported(
                f"the operator {self.op} compares numbers or moments, not a {describe(left)} and a {describe(right)}"
            )

    def sql(self, scope: Scope) -> Sql:
        left, right = self.left.domain(scope), self.right.domain(scope)
        self._check(left, right)
        if NOTHING in (left, right):
            return null("boolean")
        a, b = self.left.sql(scope), self.right.sql(scope)
        if isinstance(left, Number) and isinstance(right, Number):
            merged = merge([left, right])
            return binary(OPERATORS[self.op], convert(a, left, merged), convert(b, right, merged))
        if isinstance(left, Category) and isinstance(right, Category) and self.op not in ("=", "<>"):
            return membership(a, [v for v in left.values if _ordered(self.op, v, right.values[0])], left)
        return binary(OPERATORS[self.op], a, b)


@dataclass(frozen=True)
class And(Expr):
    """All of them (three-valued)."""

    children: tuple[Expr, ...]

    def domain(self, scope: Scope) -> Domain:
        return Boolean(any(as_boolean(child.domain(scope), "AND").nullable for child in self.children))

    def sql(self, scope: Scope) -> Sql:
        return both([condition(child, scope, "AND") for child in self.children])


@dataclass(frozen=True)
class Or(Expr):
    """Any of them (three-valued)."""

    children: tuple[Expr, ...]

    def domain(self, scope: Scope) -> Domain:
        return Boolean(any(as_boolean(child.domain(scope), "OR").nullable for child in self.children))

    def sql(self, scope: Scope) -> Sql:
        return either([condition(child, scope, "OR") for child in self.children])


@dataclass(frozen=True)
class Not(Expr):
    """Negation (three-valued)."""

    child: Expr

    def domain(self, scope: Scope) -> Domain:
        return as_boolean(self.child.domain(scope), "NOT")

    def sql(self, scope: Scope) -> Sql:
        return negated(condition(self.child, scope, "NOT"))


@dataclass(frozen=True)
class IsNull(Expr):
    """Whether the value is NULL; never NULL itself."""

    child: Expr

    def domain(self, scope: Scope) -> Domain:
        self.child.domain(scope)
        return Boolean()

    def sql(self, scope: Scope) -> Sql:
        return is_null(self.child.sql(scope))


@dataclass(frozen=True)
class In(Expr):
    """Whether the value is among public ones (no NULLs; moments as microseconds)."""

    child: Expr
    values: tuple[Scalar, ...]

    def __post_init__(self) -> None:
        for value in self.values:
            if isinstance(value, str):
                legible(value)

    def copies(self, scope: Scope) -> int:
        return 2

    def domain(self, scope: Scope) -> Domain:
        child = self.child.domain(scope)
        self.held(child)
        return Boolean(child.nullable)

    def held(self, child: Domain) -> list[int | str | bool]:
        """The listed values as the engine holds them; those off the lattice or outside the bounds can never match."""
        if None in self.values:
            raise InvalidPlan("IN takes no NULL; use IS NULL")
        values = [unicodedata.normalize("NFC", v) if isinstance(v, str) else v for v in self.values]
        found = (index_of(value, child) for value in values)
        return [held for held in found if held is not None and possible(held, child)]

    def sql(self, scope: Scope) -> Sql:
        child = self.child.domain(scope)
        return membership(self.child.sql(scope), self.held(child), child)


@dataclass(frozen=True)
class Case(Expr):
    """The value of the first branch (condition, value) whose condition is true, else the default."""

    branches: tuple[tuple[Expr, Expr], ...]
    default: Expr

    def __post_init__(self) -> None:
        if not self.branches:
            raise InvalidPlan("CASE needs at least one branch")

    def domain(self, scope: Scope) -> Domain:
        for when, _ in self.branches:
            as_boolean(when.domain(scope), "CASE WHEN")
        return merge([then.domain(scope) for _, then in self.branches] + [self.default.domain(scope)])

    def sql(self, scope: Scope) -> Sql:
        merged = self.domain(scope)
        branches = [
            (condition(when, scope, "CASE WHEN"), convert(then.sql(scope), then.domain(scope), merged))
            for when, then in self.branches
        ]
        return case(branches, convert(self.default.sql(scope), self.default.domain(scope), merged))


@dataclass(frozen=True)
class Coalesce(Expr):
    """The first value that is not NULL."""

    children: tuple[Expr, ...]

    def __post_init__(self) -> None:
        if not self.children:
            raise InvalidPlan("COALESCE takes at least one value")

    def domain(self, scope: Scope) -> Domain:
        domains = [child.domain(scope) for child in self.children]
        return with_null(merge(domains), all(domain.nullable for domain in domains))

    def sql(self, scope: Scope) -> Sql:
        merged = self.domain(scope)
        values = [convert(child.sql(scope), child.domain(scope), merged) for child in self.children]
        return exp.Coalesce(this=values[0], expressions=values[1:]) if len(values) > 1 else values[0]


@dataclass(frozen=True)
class NullIf(Expr):
    """NULL where left = right, else left."""

    left: Expr
    right: Expr

    def copies(self, scope: Scope) -> int:
        return 2

    def domain(self, scope: Scope) -> Domain:
        left = self.left.domain(scope)
        Compare("=", self.left, self.right)._check(left, self.right.domain(scope))
        return with_null(left, True)

    def sql(self, scope: Scope) -> Sql:
        equal, kind = Compare("=", self.left, self.right).sql(scope), physical(self.left.domain(scope))
        return case([(equal, null(kind))], self.left.sql(scope))


@dataclass(frozen=True)
class AsNumber(Expr):
    """1 for true, 0 for false."""

    child: Expr

    def copies(self, scope: Scope) -> int:
        return 2

    def domain(self, scope: Scope) -> Domain:
        return number(0, 1, nullable=as_boolean(self.child.domain(scope), "a cast to a number").nullable)

    def sql(self, scope: Scope) -> Sql:
        value = condition(self.child, scope, "a cast to a number")
        return case([(value, whole(1)), (negated(value), whole(0))])


@dataclass(frozen=True)
class DatePart(Expr):
    """A part of a moment, as an integer."""

    part: Part
    child: Expr

    def domain(self, scope: Scope) -> Domain:
        child = as_moment(self.child.domain(scope), self.part.upper())
        return number(*self._bounds(child), nullable=child.nullable)

    def _bounds(self, child: Moment) -> tuple[int, int]:
        first, last = (EPOCH + timedelta(microseconds=end) for end in (child.lo, child.hi))
        if self.part == "year":
            return first.year, last.year
        if self.part == "month" and first.year == last.year:
            return first.month, last.month
        return PARTS[self.part]

    def sql(self, scope: Scope) -> Sql:
        child, value, spelling = (
            as_moment(self.child.domain(scope), self.part.upper()),
            self.child.sql(scope),
            scope.spelling,
        )
        match self.part:
            case "hour" | "minute" | "second":
                longer: Period = {"hour": "day", "minute": "hour", "second": "minute"}[self.part]  # type: ignore[assignment]
                within = modulo(value, LENGTHS[longer], child.lo, spelling)
                return spelling.quotient(within, plain(LENGTHS[self.part]))
            case "dayofweek":
                thursday = add(divided(value, DAY, child.lo, spelling), 4)
                return modulo(thursday, 7, child.lo // DAY + 4, spelling)
            case _:
                name = {"dayofyear": "doy"}.get(self.part, self.part)
                extracted = exp.Extract(this=exp.var(name), expression=spelling.instant(value))
                return cast(extracted, "bigint")


@dataclass(frozen=True)
class DateTrunc(Expr):
    """The start of the period that a moment lies in, as a moment; its domain can be listed, so it can be a key."""

    every: Period
    child: Expr

    def copies(self, scope: Scope) -> int:
        return 2

    def domain(self, scope: Scope) -> Domain:
        child = as_moment(self.child.domain(scope), "DATE_TRUNC")
        precision = _precision(self.every)
        return Periods(
            truncate(child.lo, self.every), truncate(child.hi, self.every), precision, child.nullable, self.every
        )

    def sql(self, scope: Scope) -> Sql:
        child, value, spelling = (
            as_moment(self.child.domain(scope), "DATE_TRUNC"),
            self.child.sql(scope),
            scope.spelling,
        )
        if self.every in LENGTHS:
            shift = 3 * DAY if self.every == "week" else 0
            return sub(value, modulo(add(value, shift), LENGTHS[self.every], child.lo, spelling))
        start = exp.TimestampTrunc(this=spelling.instant(value), unit=exp.var(self.every.upper()))
        return spelling.microseconds(start)


@dataclass(frozen=True)
class DateDiff(Expr):
    """How many starts of a period lie after `start` and up to `end` (negative the other way round)."""

    every: Period
    start: Expr
    end: Expr

    def copies(self, scope: Scope) -> int:
        return 2

    def domain(self, scope: Scope) -> Domain:
        start, end = self._moments(scope)
        (a, b), (c, d) = (tuple(_ordinal(t, self.every) for t in (m.lo, m.hi)) for m in (start, end))
        return number(c - b, d - a, nullable=start.nullable or end.nullable)

    def _moments(self, scope: Scope) -> tuple[Moment, Moment]:
        return as_moment(self.start.domain(scope), "DATE_DIFF"), as_moment(self.end.domain(scope), "DATE_DIFF")

    def sql(self, scope: Scope) -> Sql:
        start, end = self._moments(scope)
        first = ordinal(self.start.sql(scope), start, self.every, scope.spelling)
        return sub(ordinal(self.end.sql(scope), end, self.every, scope.spelling), first)


@dataclass(frozen=True)
class Bucket(Expr):
    """How many of the public, ascending `edges` are at most the value: 0 to len(edges)."""

    child: Expr
    edges: tuple[Fraction, ...]

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in zip(self.edges, self.edges[1:], strict=False))
        if not 1 <= len(self.edges) <= MOST_EDGES or not rising:
            raise InvalidParameter(f"bucket edges must be 1 to {MOST_EDGES} ascending numbers")

    def copies(self, scope: Scope) -> int:
        return 2 * len(self.edges) + 2

    def domain(self, scope: Scope) -> Domain:
        child = self.child.domain(scope)
        edges, (lo, hi) = self._edges(child), span(child)
        return number(bisect_right(edges, lo), bisect_right(edges, hi), nullable=child.nullable)

    def _edges(self, child: Domain) -> list[int]:
        """Each edge as the smallest held integer that reaches it."""
        step = child.step if isinstance(child, Number) else Fraction(1)
        return [ceil(edge / step) for edge in self.edges]

    def sql(self, scope: Scope) -> Sql:
        child, value = self.child.domain(scope), self.child.sql(scope)
        edges, (lo, hi) = self._edges(child), span(child)
        first, last = bisect_right(edges, lo), bisect_right(edges, hi)
        found = _search(value, edges, first, last)
        return case([(present(value), found)]) if child.nullable else found


@dataclass(frozen=True)
class TextCase(Expr):
    """LOWER or UPPER of a declared category."""

    which: Literal["lower", "upper"]
    child: Expr

    def copies(self, scope: Scope) -> int:
        return len(as_category(self.child.domain(scope), self.which.upper()).values) + 1

    def domain(self, scope: Scope) -> Domain:
        child = as_category(self.child.domain(scope), self.which.upper())
        return Category(tuple(dict.fromkeys(self._turn(value) for value in child.values)), child.nullable)

    def _turn(self, value: str) -> str:
        return unicodedata.normalize("NFC", value.lower() if self.which == "lower" else value.upper())

    def sql(self, scope: Scope) -> Sql:
        child, value = as_category(self.child.domain(scope), self.which.upper()), self.child.sql(scope)
        changed = [v for v in child.values if self._turn(v) != v]
        return (
            case([(binary(exp.EQ, value, text(v)), text(self._turn(v))) for v in changed], value) if changed else value
        )


@dataclass(frozen=True)
class TextMatch(Expr):
    """Whether a declared category starts with, ends with or contains a public text."""

    how: Literal["prefix", "suffix", "contains"]
    child: Expr
    text: str

    def __post_init__(self) -> None:
        legible(self.text)

    def copies(self, scope: Scope) -> int:
        return 2

    def domain(self, scope: Scope) -> Domain:
        return Boolean(as_category(self.child.domain(scope), "LIKE").nullable)

    def _matches(self, value: str) -> bool:
        wanted = unicodedata.normalize("NFC", self.text)
        match self.how:
            case "prefix":
                return value.startswith(wanted)
            case "suffix":
                return value.endswith(wanted)
            case "contains":
                return wanted in value

    def sql(self, scope: Scope) -> Sql:
        child = as_category(self.child.domain(scope), "LIKE")
        return membership(self.child.sql(scope), [value for value in child.values if self._matches(value)], child)


OPERATORS: dict[str, type[exp.Binary]] = {
    "=": exp.EQ, "<>": exp.NEQ, "<": exp.LT, "<=": exp.LTE, ">": exp.GT, ">=": exp.GTE
}  # fmt: skip
PARTS: dict[str, tuple[int, int]] = {
    "quarter": (1, 4), "month": (1, 12), "day": (1, 31), "hour": (0, 23), "minute": (0, 59), "second": (0, 59),
    "dayofweek": (0, 6), "dayofyear": (1, 366),
}  # fmt: skip


def legible(value: str) -> str:
    """A text that every engine can hold: no lone surrogates, no NUL."""
    if "\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value):
        raise InvalidParameter("a text may not hold NUL or lone surrogate characters")
    return value


def nearest(value: Fraction) -> int:
    """The nearest integer, halves away from zero."""
    size = floor(abs(value) + Fraction(1, 2))
    return size if value >= 0 else -size


def nonzero(value: Sql) -> Sql:
    """The value, or NULL where it is zero."""
    return exp.Nullif(this=own(value), expression=plain(0))


def condition(child: Expr, scope: Scope, where: str) -> Sql:
    """A condition as SQL; a bare NULL is the unknown truth value."""
    as_boolean(child.domain(scope), where)
    return null("boolean") if child.domain(scope) == NOTHING else child.sql(scope)


def membership(value: Sql, held: Sequence[int | str | bool], domain: Domain) -> Sql:
    """Whether a value is among public ones; NULL stays NULL."""
    if held:
        return exp.In(this=own(value), expressions=[constant(v) for v in held])
    return case([(is_null(value), null("boolean"))], exp.false())


def constant(held: int | str | bool) -> Sql:
    """A held value as SQL."""
    match held:
        case bool():
            return exp.true() if held else exp.false()
        case str():
            return text(held)
        case _:
            return whole(held)


def _product(left: tuple[int, int], right: tuple[int, int], same: bool) -> tuple[int, int]:
    corners = [a * b for a in left for b in right]
    if not same:
        return min(corners), max(corners)
    lo, hi = left
    return (0 if lo <= 0 <= hi else min(lo * lo, hi * hi)), max(lo * lo, hi * hi)


def _fineness(left: Number) -> int:
    """The power of ten, up to a million, by which a dividend can grow without passing 62 bits."""
    size = max(1, *(abs(end) for end in ends(left)))
    return max(k for k in (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000) if k == 1 or size * k <= LARGEST)


def _ratio(left: Number, right: Number) -> Number:
    (a, b), (c, d), grown = ends(left), ends(right), _fineness(left)
    divisors = {end for end in (c, d, *((1,) if c <= 1 <= d else ()), *((-1,) if c <= -1 <= d else ())) if end} or {1}
    quotients = [int(Fraction(end * grown, divisor)) for end in (a, b) for divisor in divisors]
    if a <= 0 <= b:
        quotients.append(0)
    nullable = left.nullable or right.nullable or c <= 0 <= d
    return number(min(quotients), max(quotients), left.step / right.step / grown, nullable)


def _remainder(left: Number, right: Number) -> Number:
    (a, b), (c, d) = ends(left), ends(right)
    most = max(abs(c), abs(d), 1) - 1
    nullable = left.nullable or right.nullable or c <= 0 <= d
    return number(-min(most, max(0, -a)), min(most, max(0, b)), left.step, nullable)


def _signed(value: Sql, size: int) -> Sql:
    return case([(binary(exp.LT, value, plain(0)), whole(-size))], whole(size))


def _held(value: Sql, least: float, most: float) -> Sql:
    lo, hi = (cast(exp.Literal.string(repr(bound)), "double") for bound in (least, most))
    return call("LEAST", call("GREATEST", value, lo), hi)


def _nearest(value: Sql, step: Fraction) -> Sql:
    """The nearest lattice integer of a double, held at 62 bits before the cast: no record can make it fail."""
    scaled = binary(exp.Div, binary(exp.Mul, value, double(step.denominator)), double(step.numerator))
    rounded = exp.Floor(this=binary(exp.Add, scaled, cast(exp.Literal.number("0.5"), "double")))
    return cast(_held(rounded, float(-LARGEST), float(LARGEST)), "bigint")


def _alike(left: Domain, right: Domain) -> bool:
    names = Identifier | Reference
    if isinstance(left, names) or isinstance(right, names):
        return (
            physical(left) == physical(right)
            and not isinstance(left, Moment)
            and not isinstance(right, Moment)
            and all(not isinstance(side, Number) or side.step == 1 for side in (left, right))
        )
    return any(isinstance(left, kind) and isinstance(right, kind) for kind in (Number, Moment, Boolean, Category))


def _ordered(op: str, left: str, right: str) -> bool:
    return {"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}[op]


def _precision(every: Period) -> Precision:
    return every if every in ("second", "minute", "hour") else "day"


def _ordinal(moment: int, every: Period) -> int:
    if every in LENGTHS:
        return (moment + (3 * DAY if every == "week" else 0)) // LENGTHS[every]
    date = EPOCH + timedelta(microseconds=moment)
    months = {"month": 1, "quarter": 3, "year": 12}[every]
    return (date.year * 12 + date.month - 1) // months


def ordinal(value: Sql, domain: Moment, every: Period, spelling: Spelling) -> Sql:
    """The running number of the period that a moment lies in."""
    if every in LENGTHS:
        shift = 3 * DAY if every == "week" else 0
        return divided(add(value, shift), LENGTHS[every], domain.lo, spelling)
    instant = spelling.instant(value)
    year = cast(exp.Extract(this=exp.var("year"), expression=instant.copy()), "bigint")
    if every == "year":
        return year
    within = cast(exp.Extract(this=exp.var(every), expression=instant), "bigint")
    return add(add(times(year, 12 if every == "month" else 4), within), -1)


def _search(value: Sql, edges: Sequence[int], first: int, last: int) -> Sql:
    """A balanced tree of comparisons: how many edges are at most the value, known to lie from first to last."""
    if first >= last:
        return whole(first)
    middle = (first + last) // 2
    below = binary(exp.LT, value, whole(edges[middle]))
    return case([(below, _search(value, edges, first, middle))], _search(value, edges, middle + 1, last))


def between(child: Expr, lo: Expr, hi: Expr) -> Expr:
    """SQL's BETWEEN, both ends included."""
    return And((Compare(">=", child, lo), Compare("<=", child, hi)))


BY_NAME: dict[str, type[Expr]] = {
    node.__name__: node
    for node in (
        Column, Constant, Instant, Arithmetic, Absolute, Rounded, Function, Power, Clamp, Rescale, Extreme, Compare,
        And, Or, Not, IsNull, In, Case, Coalesce, NullIf, AsNumber, DatePart, DateTrunc, DateDiff, Bucket, TextCase,
        TextMatch,
    )
}  # fmt: skip
