"""Expressions over dates and timestamps: constants, parts, truncation and differences."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from sqlglot import exp

from dither.errors import InvalidParameter, Unsupported
from dither.plan.domains import (
    DAY,
    EPOCH,
    PERIOD_LENGTHS,
    Period,
    Periods,
    as_moment,
    move_months,
    number,
    truncate,
)
from dither.plan.expressions.core import (
    FIRST_MOMENT,
    LAST_MOMENT,
    DatePartName,
    Expr,
    divide,
    modulo,
    period_number,
    period_number_sql,
)
from dither.plan.sql.builders import Sql, add, binary, cast, integer, literal, sub
from dither.plan.sql.scope import Scope
from dither.schema import Domain, Moment, Precision


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
        return integer(self.microseconds)


@dataclass(frozen=True)
class DatePart(Expr):
    """A part of a moment, as an integer."""

    part: DatePartName
    child: Expr

    def domain(self, scope: Scope) -> Domain:
        child = as_moment(self.child.domain(scope), self.part.upper())
        return number(*self._bounds(child), nullable=child.nullable)

    def _bounds(self, child: Moment) -> tuple[int, int]:
        """Return the smallest and largest value of the part between the moment's bounds."""
        first, last = (EPOCH + timedelta(microseconds=end) for end in (child.lo, child.hi))
        if self.part == "year":
            return first.year, last.year
        if self.part == "month" and first.year == last.year:
            return first.month, last.month
        return PART_BOUNDS[self.part]

    def sql(self, scope: Scope) -> Sql:
        child, value, dialect = (
            as_moment(self.child.domain(scope), self.part.upper()),
            self.child.sql(scope),
            scope.dialect,
        )
        match self.part:
            case "hour" | "minute" | "second":
                longer: Period = {"hour": "day", "minute": "hour", "second": "minute"}[self.part]  # type: ignore[assignment]
                rest_of_period = modulo(value, PERIOD_LENGTHS[longer], child.lo, dialect)
                return dialect.quotient(rest_of_period, literal(PERIOD_LENGTHS[self.part]))
            case "dayofweek":
                days_since_a_sunday = add(divide(value, DAY, child.lo, dialect), 4)
                return modulo(days_since_a_sunday, 7, child.lo // DAY + 4, dialect)
            case _:
                name = {"dayofyear": "doy"}.get(self.part, self.part)
                extracted = exp.Extract(this=exp.var(name), expression=dialect.to_timestamp(value))
                return cast(extracted, "bigint")


@dataclass(frozen=True)
class DateTrunc(Expr):
    """The start of the period that contains a moment, as a moment; its values can be listed, so it can be a key."""

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
        child, value, dialect = (
            as_moment(self.child.domain(scope), "DATE_TRUNC"),
            self.child.sql(scope),
            scope.dialect,
        )
        if self.every in PERIOD_LENGTHS:
            shift = 3 * DAY if self.every == "week" else 0
            return sub(value, modulo(add(value, shift), PERIOD_LENGTHS[self.every], child.lo, dialect))
        start = exp.TimestampTrunc(this=dialect.to_timestamp(value), unit=exp.var(self.every.upper()))
        return dialect.to_microseconds(start)


@dataclass(frozen=True)
class DateDiff(Expr):
    """The number of period starts after `start` and up to `end`; negative if `end` is earlier."""

    every: Period
    start: Expr
    end: Expr

    def copies(self, scope: Scope) -> int:
        return 2

    def domain(self, scope: Scope) -> Domain:
        start, end = self._moments(scope)
        (a, b), (c, d) = (tuple(period_number(t, self.every) for t in (m.lo, m.hi)) for m in (start, end))
        return number(c - b, d - a, nullable=start.nullable or end.nullable)

    def _moments(self, scope: Scope) -> tuple[Moment, Moment]:
        return as_moment(self.start.domain(scope), "DATE_DIFF"), as_moment(self.end.domain(scope), "DATE_DIFF")

    def sql(self, scope: Scope) -> Sql:
        start, end = self._moments(scope)
        first = period_number_sql(self.start.sql(scope), start, self.every, scope.dialect)
        return sub(period_number_sql(self.end.sql(scope), end, self.every, scope.dialect), first)


@dataclass(frozen=True)
class MovedMoment(Expr):
    """A moment moved by whole months, to the last day of the month where it has no such day, then by microseconds."""

    child: Expr
    months: int
    microseconds: int

    def __post_init__(self) -> None:
        if abs(self.months) > MAX_MONTHS or abs(self.microseconds) > LAST_MOMENT - FIRST_MOMENT:
            raise InvalidParameter("a moment can be moved by at most 9998 years")

    def copies(self, scope: Scope) -> int:
        return 2

    def domain(self, scope: Scope) -> Domain:
        child = as_moment(self.child.domain(scope), "an interval")
        lo, hi = child.lo, child.hi
        if self.months:
            # The last days of a month may all move to one day, whatever their hour: only the order of days is kept.
            rest = 0 if child.precision == "day" else DAY - 1
            lo, hi = move_months(lo - lo % DAY, self.months), move_months(hi - hi % DAY, self.months) + rest
        lo, hi = lo + self.microseconds, hi + self.microseconds
        if not FIRST_MOMENT <= lo <= hi <= LAST_MOMENT:
            raise Unsupported("a date moved by an interval must stay between the years 1 and 9999; use a shorter one")
        whole = self.microseconds % PERIOD_LENGTHS[child.precision] == 0
        return Moment(lo, hi, child.precision if whole else "microsecond", child.nullable)

    def sql(self, scope: Scope) -> Sql:
        self.domain(scope)
        value, dialect = self.child.sql(scope), scope.dialect
        if self.months:
            months = exp.Interval(this=exp.Literal.string(str(self.months)), unit=exp.var("MONTH"))
            value = dialect.to_microseconds(binary(exp.Add, dialect.to_timestamp(value), months))
        return add(value, self.microseconds)


MAX_MONTHS = 12 * 9998
PART_BOUNDS: dict[str, tuple[int, int]] = {
    "quarter": (1, 4), "month": (1, 12), "week": (1, 53), "day": (1, 31), "hour": (0, 23), "minute": (0, 59),
    "second": (0, 59), "dayofweek": (0, 6), "dayofyear": (1, 366),
}  # fmt: skip


def _precision(every: Period) -> Precision:
    return every if every in ("second", "minute", "hour") else "day"
