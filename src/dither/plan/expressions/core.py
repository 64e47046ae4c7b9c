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
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction
from typing import Literal

from sqlglot import exp

from dither.errors import InvalidParameter, InvalidPlan, Unsupported
from dither.plan.domains import (
    DAY,
    EPOCH,
    LARGEST,
    LENGTHS,
    NOTHING,
    Period,
    as_boolean,
    bounds_of,
    number,
    storage_type,
)
from dither.plan.sql.builders import Sql, add, binary, call, cast, double, integer, literal, null, string, times, within
from dither.plan.sql.dialect import Dialect
from dither.plan.sql.scope import Scope
from dither.schema import Boolean, Category, Domain, Moment, Number, Scalar

Part = Literal["year", "quarter", "month", "day", "hour", "minute", "second", "dayofweek", "dayofyear"]

CEILING = 10**12
FIRST_MOMENT, LAST_MOMENT = -62_135_596_800_000_000, 253_402_300_799_999_999
MOST_EDGES = 10_000
MOST_WEIGHT = 50_000
MOST_DEPTH = 40


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


def domain_of(node: Expr, scope: Scope) -> Domain:
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


def divide(value: Sql, divisor: int, lo: int, dialect: Dialect) -> Sql:
    """floor(value / divisor) for a public divisor, of a value that is at least `lo`."""
    shift = max(0, -(lo // divisor))
    return value if divisor == 1 else add(dialect.quotient(add(value, shift * divisor), literal(divisor)), -shift)


def modulo(value: Sql, divisor: int, lo: int, dialect: Dialect) -> Sql:
    """value - divisor * floor(value / divisor), of a value that is at least `lo`."""
    shift = max(0, -(lo // divisor))
    return dialect.remainder(add(value, shift * divisor), literal(divisor))


def convert(value: Sql, source: Domain, target: Domain) -> Sql:
    """A value of one domain in the form of a domain that contains it."""
    if source == NOTHING:
        return null(storage_type(target))
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


def snap(value: Sql, target: Number) -> Sql:
    """A finite double on the lattice of a domain, inside it."""
    return within(_nearest(value, target.step), *bounds_of(target))


@dataclass(frozen=True)
class ColumnRef(Expr):
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
class LiteralValue(Expr):
    """A number, text, truth value or NULL written in the query; 1 and TRUE are different constants."""

    value: Scalar

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LiteralValue) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> tuple[bool, Scalar]:
        return isinstance(self.value, bool), self.value

    def __post_init__(self) -> None:
        if isinstance(self.value, str):
            readable_value(self.value)
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
                return string(unicodedata.normalize("NFC", self.value))
            case _:
                return integer(Fraction(self.value).numerator)


def readable_value(value: str) -> str:
    """A text that every engine can hold: no lone surrogates, no NUL."""
    if "\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value):
        raise InvalidParameter("a text may not hold NUL or lone surrogate characters")
    return value


def condition(child: Expr, scope: Scope, where: str) -> Sql:
    """A condition as SQL; a bare NULL is the unknown truth value."""
    as_boolean(child.domain(scope), where)
    return null("boolean") if child.domain(scope) == NOTHING else child.sql(scope)


def constant_value(held: int | str | bool) -> Sql:
    """A held value as SQL."""
    match held:
        case bool():
            return exp.true() if held else exp.false()
        case str():
            return string(held)
        case _:
            return integer(held)


def clamp_real(value: Sql, least: float, most: float) -> Sql:
    """Clamp a real value to a range."""
    lo, hi = (cast(exp.Literal.string(repr(bound)), "double") for bound in (least, most))
    return call("LEAST", call("GREATEST", value, lo), hi)


def _nearest(value: Sql, step: Fraction) -> Sql:
    """The nearest lattice integer of a double, held at 62 bits before the cast: no record can make it fail."""
    scaled = binary(exp.Div, binary(exp.Mul, value, double(step.denominator)), double(step.numerator))
    rounded = exp.Floor(this=binary(exp.Add, scaled, cast(exp.Literal.number("0.5"), "double")))
    return cast(clamp_real(rounded, float(-LARGEST), float(LARGEST)), "bigint")


def _ordinal(moment: int, every: Period) -> int:
    if every in LENGTHS:
        return (moment + (3 * DAY if every == "week" else 0)) // LENGTHS[every]
    date = EPOCH + timedelta(microseconds=moment)
    months = {"month": 1, "quarter": 3, "year": 12}[every]
    return (date.year * 12 + date.month - 1) // months


def ordinal(value: Sql, domain: Moment, every: Period, dialect: Dialect) -> Sql:
    """The running number of the period that a moment lies in."""
    if every in LENGTHS:
        shift = 3 * DAY if every == "week" else 0
        return divide(add(value, shift), LENGTHS[every], domain.lo, dialect)
    instant = dialect.instant(value)
    year = cast(exp.Extract(this=exp.var("year"), expression=instant.copy()), "bigint")
    if every == "year":
        return year
    within = cast(exp.Extract(this=exp.var(every), expression=instant), "bigint")
    return add(add(times(year, 12 if every == "month" else 4), within), -1)
