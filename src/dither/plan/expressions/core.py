"""Scalar expressions: total functions of one row, with bounds derived from the bounds of their columns, and their SQL.

Nodes are frozen data that is safe to decode from the wire through `BY_NAME`. A node never refers to a table: it is read
in a `Scope` (the domains of the columns around it), so `node.domain(scope)` and `node.sql(scope)` are pure functions of
the plan and the schema. Every node has a value for every record, inside `node.domain(scope)`.

Encoding of values: a Number is an integer `k` that represents `k * step`; a Moment is an integer number of microseconds
on the dataset's wall clock; a Category or text key is text; a Boolean is a boolean; NULL is allowed where the domain is
`nullable`. There are no floats, except inside `Function` and `Power`, which round at once.

The semantics are the same on every engine: x / 0 and x % 0 are NULL; `/` and `%` truncate towards zero, `/` to at most
six decimal digits more than its operands' steps; `round` rounds halves away from zero; LEAST and GREATEST skip NULLs;
AND, OR and NOT are three-valued; text is compared by code points; weeks start on Monday; day of week 0 is Sunday; SQRT
and LN are NULL where they are undefined; EXP and POWER are capped at 1e12.
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
    LARGEST_INTEGER,
    ONLY_NULL,
    PERIOD_LENGTHS,
    Period,
    as_boolean,
    bounds_of,
    number,
    storage_type,
)
from dither.plan.sql.builders import (
    Sql,
    add,
    binary,
    call,
    cast,
    clamp_integer,
    double,
    integer,
    literal,
    null,
    string,
    times,
)
from dither.plan.sql.dialect import Dialect
from dither.plan.sql.scope import Scope
from dither.schema import Boolean, Category, Domain, Moment, Number, Scalar

DatePartName = Literal["year", "quarter", "month", "week", "day", "hour", "minute", "second", "dayofweek", "dayofyear"]

MAX_FUNCTION_VALUE = 10**12
FIRST_MOMENT, LAST_MOMENT = -62_135_596_800_000_000, 253_402_300_799_999_999
MAX_EDGES = 10_000
MAX_WEIGHT = 50_000
MAX_DEPTH = 40


class Expr(ABC):
    """A total function of one row."""

    @abstractmethod
    def domain(self, scope: Scope) -> Domain:
        """Return the values that the expression can take, given the domains of the columns."""

    @abstractmethod
    def sql(self, scope: Scope) -> Sql:
        """Return SQL that cannot fail and computes the encoded value, inside the domain."""

    def copies(self, scope: Scope) -> int:
        """Return an upper bound on how often the SQL repeats the SQL of one operand."""
        return 1


def domain_of(node: Expr, scope: Scope) -> Domain:
    """Return the domain of a whole expression; refuse expressions whose SQL would be too large."""
    if weight(node, scope) > MAX_WEIGHT:
        raise InvalidPlan("an expression is too large; split it up or use fewer nested functions")
    return node.domain(scope)


def weight(node: Expr, scope: Scope, depth: int = 0) -> int:
    """Return an upper bound on the size of an expression's SQL, without building it."""
    if depth > MAX_DEPTH:
        raise InvalidPlan(f"an expression is nested more than {MAX_DEPTH} levels deep; split it up")
    operand_weight = sum(weight(child, scope, depth + 1) for child in operands(node))
    return 1 + operand_weight * node.copies(scope) if operand_weight < MAX_WEIGHT else operand_weight


def operands(node: Expr) -> Iterator[Expr]:
    """Yield the expressions directly inside an expression."""
    pending: list[object] = [getattr(node, field.name) for field in dataclasses.fields(node)]  # type: ignore[arg-type]
    while pending:
        item = pending.pop()
        if isinstance(item, Expr):
            yield item
        elif isinstance(item, tuple):
            pending.extend(item)


def divide(value: Sql, divisor: int, lo: int, dialect: Dialect) -> Sql:
    """Build floor(value / divisor) for a public divisor and a value of at least `lo`."""
    shift = max(0, -(lo // divisor))
    return value if divisor == 1 else add(dialect.quotient(add(value, shift * divisor), literal(divisor)), -shift)


def modulo(value: Sql, divisor: int, lo: int, dialect: Dialect) -> Sql:
    """Build value - divisor * floor(value / divisor) for a public divisor and a value of at least `lo`."""
    shift = max(0, -(lo // divisor))
    return dialect.remainder(add(value, shift * divisor), literal(divisor))


def convert(value: Sql, source: Domain, target: Domain) -> Sql:
    """Convert an encoded value from one domain to another that contains it."""
    if source == ONLY_NULL:
        return null(storage_type(target))
    if isinstance(source, Number) and isinstance(target, Number):
        return times(value, int(source.step / target.step))
    return value


def check_fits(size: int) -> int:
    """Return an intermediate integer unchanged; refuse one beyond 62 bits."""
    if abs(size) > LARGEST_INTEGER:
        raise Unsupported("values could exceed 2^62 steps of their lattice; CLAMP or ROUND the operands first")
    return size


def to_double(value: Sql, step: Fraction) -> Sql:
    """Convert a lattice integer to the double nearest to the number that it represents."""
    scaled = binary(exp.Mul, cast(value, "double"), double(step.numerator))
    return binary(exp.Div, scaled, double(step.denominator))


def snap_to_lattice(value: Sql, target: Number) -> Sql:
    """Round a finite double to the lattice of a domain and clamp it to the domain."""
    return clamp_integer(to_lattice_integer(value, target.step), *bounds_of(target))


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
            check_text(self.value)
        elif isinstance(self.value, float):
            raise InvalidParameter("a constant must be an int, Fraction, str, bool or None, not a float")

    def domain(self, scope: Scope) -> Domain:
        match self.value:
            case None:
                return ONLY_NULL
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


@dataclass(frozen=True)
class EstimatedValue(Expr):
    """A number that the kernel chooses privately: `value` steps, from `lo` to `hi`; equal tags get the same number.

    Its domain is the whole range, before and after the choice, so the choice changes no sensitivity.
    """

    tag: str
    lo: int
    hi: int
    step: Fraction = Fraction(1)
    value: int | None = None

    def __post_init__(self) -> None:
        if not -LARGEST_INTEGER <= self.lo <= self.hi <= LARGEST_INTEGER or self.step <= 0:
            raise InvalidParameter("an estimated value needs a range within 2^62 steps, and a step above 0")
        if self.value is not None and not self.lo <= self.value <= self.hi:
            raise InvalidParameter("an estimated value must lie in its range")

    def domain(self, scope: Scope) -> Domain:
        return number(self.lo, self.hi, self.step)

    def sql(self, scope: Scope) -> Sql:
        if self.value is None:
            raise InvalidPlan("the plan has an estimated value that no search fills in; add a search with its tag")
        return integer(self.value)


def check_text(value: str) -> str:
    """Return a text; refuse lone surrogates and NUL, which some engines cannot store."""
    if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise InvalidParameter("a text must not contain NUL or lone surrogate characters")
    return value


def condition_sql(child: Expr, scope: Scope, operation: str) -> Sql:
    """Build the SQL of a condition; a bare NULL becomes the unknown truth value."""
    as_boolean(child.domain(scope), operation)
    return null("boolean") if child.domain(scope) == ONLY_NULL else child.sql(scope)


def constant_sql(encoded: int | str | bool) -> Sql:
    """Build the SQL of an encoded constant."""
    match encoded:
        case bool():
            return exp.true() if encoded else exp.false()
        case str():
            return string(encoded)
        case _:
            return integer(encoded)


def clamp_double(value: Sql, least: float, most: float) -> Sql:
    """Clamp a double to a public range."""
    lo, hi = (cast(exp.Literal.string(repr(bound)), "double") for bound in (least, most))
    return call("LEAST", call("GREATEST", value, lo), hi)


def to_lattice_integer(value: Sql, step: Fraction) -> Sql:
    """Round a double to the nearest lattice integer, clamped to 62 bits before the cast: no record can make it fail."""
    scaled = binary(exp.Div, binary(exp.Mul, value, double(step.denominator)), double(step.numerator))
    rounded = exp.Floor(this=binary(exp.Add, scaled, cast(exp.Literal.number("0.5"), "double")))
    return cast(clamp_double(rounded, float(-LARGEST_INTEGER), float(LARGEST_INTEGER)), "bigint")


def period_number(moment: int, every: Period) -> int:
    """Return the number of the period that contains a public moment; consecutive periods have consecutive numbers."""
    if every in PERIOD_LENGTHS:
        return (moment + (3 * DAY if every == "week" else 0)) // PERIOD_LENGTHS[every]
    date = EPOCH + timedelta(microseconds=moment)
    months = {"month": 1, "quarter": 3, "year": 12}[every]
    return (date.year * 12 + date.month - 1) // months


def period_number_sql(value: Sql, domain: Moment, every: Period, dialect: Dialect) -> Sql:
    """Build the SQL of `period_number`."""
    if every in PERIOD_LENGTHS:
        shift = 3 * DAY if every == "week" else 0
        return divide(add(value, shift), PERIOD_LENGTHS[every], domain.lo, dialect)
    instant = dialect.to_timestamp(value)
    year = cast(exp.Extract(this=exp.var("year"), expression=instant.copy()), "bigint")
    if every == "year":
        return year
    part_of_year = cast(exp.Extract(this=exp.var(every), expression=instant), "bigint")
    return add(add(times(year, 12 if every == "month" else 4), part_of_year), -1)
