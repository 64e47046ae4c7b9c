"""Domains: the public set of values that an expression can take; operations on them, and calendar periods."""

from __future__ import annotations

import dataclasses
import unicodedata
from calendar import monthrange
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from fractions import Fraction
from math import ceil, floor, gcd
from typing import Literal, overload

from dither.errors import InvalidPlan, Unsupported
from dither.schema import Boolean, Category, Domain, Every, Identifier, Moment, Number, Precision, Reference, Scalar

Period = Literal["second", "minute", "hour"] | Every

LARGEST_INTEGER = 1 << 62
MAX_LISTED = 1 << 6
MAX_STEP_TERM = 10**36
DAY = 86_400_000_000
PERIOD_LENGTHS: dict[str, int] = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": DAY,
    "week": 7 * DAY,
}
EPOCH = datetime(1970, 1, 1)
ONLY_NULL = Category(values=(), nullable=True)


@dataclass(frozen=True)
class Periods(Moment):
    """The starts of calendar periods between two moments, which can be listed."""

    every: Period = "day"


def number(lo: int, hi: int, step: Fraction = Fraction(1), nullable: bool = False) -> Number:
    """Build the Number lo*step .. hi*step; refuse an empty range, and bounds or steps that do not fit."""
    if lo > hi:
        raise InvalidPlan("an expression has no possible values: its lower bound exceeds its upper bound")
    if max(abs(lo), abs(hi)) > LARGEST_INTEGER:
        raise Unsupported("values could exceed 2^62 steps of their lattice; CLAMP or ROUND the operands first")
    if max(step.numerator, step.denominator) > MAX_STEP_TERM:
        raise Unsupported(
            "the lattice of an expression is too fine or too coarse (beyond 1e36); ROUND the operands first"
        )
    return Number(lo * step, hi * step, step, nullable)


def bounds_of(domain: Number) -> tuple[int, int]:
    """Return the smallest and largest lattice integers of a number."""
    return ceil(domain.lo / domain.step), floor(domain.hi / domain.step)


def span(domain: Domain) -> tuple[int, int]:
    """Return the smallest and largest integers that encode a number or a moment."""
    if isinstance(domain, Number):
        return bounds_of(domain)
    if isinstance(domain, Moment):
        return domain.lo, domain.hi
    raise InvalidPlan(f"expected a number or a moment, got {describe(domain)}")


def is_possible(encoded: int | str | bool, domain: Domain) -> bool:
    """Tell whether an encoded value lies within the bounds of its domain; integer keys must fit into 64 bits."""
    if isinstance(encoded, bool) or not isinstance(encoded, int):
        return True
    lo, hi = span(domain) if isinstance(domain, Number | Moment) else (-(1 << 63), (1 << 63) - 1)
    return lo <= encoded <= hi


def as_number(domain: Domain, operation: str) -> Number:
    """Return the domain, or refuse it if it is not numeric."""
    if not isinstance(domain, Number):
        raise InvalidPlan(f"{operation} takes numbers, got {describe(domain)}")
    return domain


def as_moment(domain: Domain, operation: str) -> Moment:
    """Return the domain, or refuse it if it is not a moment."""
    if not isinstance(domain, Moment):
        raise InvalidPlan(f"{operation} takes dates and timestamps, got {describe(domain)}")
    return domain


def as_boolean(domain: Domain, operation: str) -> Boolean:
    """Return the domain, or refuse it if it is neither a truth value nor a bare NULL."""
    if domain == ONLY_NULL:
        return Boolean(nullable=True)
    if not isinstance(domain, Boolean):
        raise InvalidPlan(f"{operation} takes conditions, got {describe(domain)}")
    return domain


def as_category(domain: Domain, operation: str) -> Category:
    """Return the domain, or refuse it if its texts are not declared."""
    if not isinstance(domain, Category):
        raise InvalidPlan(f"{operation} needs values: in the schema instead of a public table; got {describe(domain)}")
    return domain


def describe(domain: Domain) -> str:
    """Name the kind of a domain in one word, for messages."""
    return "NULL" if domain == ONLY_NULL else type(domain).__name__.lower()


def with_null(domain: Domain, nullable: bool) -> Domain:
    """Return the same domain, with or without NULL."""
    return domain if domain.nullable == nullable else dataclasses.replace(domain, nullable=nullable)


def storage_type(domain: Domain) -> str:
    """Return the SQL type that stores the values of a domain."""
    match domain:
        case Number() | Moment():
            return "bigint"
        case Boolean():
            return "boolean"
        case Category():
            return "varchar"
        case Reference(kind=kind) | Identifier(kind=kind):
            return "bigint" if kind == "integer" else "varchar"


def common_step(first: Fraction, *others: Fraction) -> Fraction:
    """Return the coarsest step whose lattice contains all given lattices."""
    step = first
    for other in others:
        common_denominator = step.denominator * other.denominator
        step = Fraction(gcd(step.numerator * other.denominator, other.numerator * step.denominator), common_denominator)
    return step


def to_step(domain: Number, step: Fraction) -> Number:
    """Return the same numbers on a finer lattice; refuse a lattice on which they exceed 2^62 steps."""
    lo, hi = bounds_of(domain)
    ratio = domain.step / step
    return number(int(lo * ratio), int(hi * ratio), step, domain.nullable)


def merge(domains: Sequence[Domain]) -> Domain:
    """Return the smallest domain that contains all the given ones: the result of CASE, COALESCE and UNION."""
    non_null = [domain for domain in domains if domain != ONLY_NULL]
    if not non_null:
        return ONLY_NULL
    nullable = any(domain.nullable for domain in domains)
    numbers = [d for d in non_null if isinstance(d, Number)]
    moments = [d for d in non_null if isinstance(d, Moment)]
    if len(numbers) == len(non_null):
        return _merge_numbers(numbers, nullable)
    if len(moments) == len(non_null):
        return _merge_moments(moments, nullable)
    return _merge_names(non_null, nullable)


def _merge_numbers(domains: Sequence[Number], nullable: bool) -> Number:
    step = common_step(*(domain.step for domain in domains))
    bounds = [bounds_of(to_step(domain, step)) for domain in domains]
    return number(min(lo for lo, _ in bounds), max(hi for _, hi in bounds), step, nullable)


def _merge_moments(domains: Sequence[Moment], nullable: bool) -> Moment:
    lo, hi = min(d.lo for d in domains), max(d.hi for d in domains)
    first = domains[0]
    if isinstance(first, Periods) and all(isinstance(d, Periods) and d.every == first.every for d in domains):
        return Periods(lo, hi, first.precision, nullable, first.every)
    finest = min((d.precision for d in domains), key=lambda precision: PERIOD_LENGTHS[precision])
    return Moment(lo, hi, finest, nullable)


def _merge_names(domains: Sequence[Domain], nullable: bool) -> Domain:
    """Merge categories, or identifiers and references of one kind; refuse other mixtures."""
    if all(isinstance(d, Category) for d in domains):
        return Category(tuple(dict.fromkeys(v for d in domains if isinstance(d, Category) for v in d.values)), nullable)
    first = with_null(domains[0], nullable)
    if all(with_null(d, nullable) == first for d in domains):
        return first
    kinds = {d.kind for d in domains if isinstance(d, Reference | Identifier)}
    if len(kinds) == 1 and all(isinstance(d, Reference | Identifier) for d in domains):
        return Identifier(kinds.pop(), nullable)
    raise InvalidPlan(
        f"values of different kinds cannot be combined: {', '.join(sorted({describe(d) for d in domains}))}"
    )


def truncate(moment: int, every: Period | Precision) -> int:
    """Return the start of the period that contains a moment."""
    if every in PERIOD_LENGTHS:
        shift = 3 * DAY if every == "week" else 0
        return moment - (moment + shift) % PERIOD_LENGTHS[every]
    date = EPOCH + timedelta(microseconds=moment)
    month = {"month": date.month, "quarter": date.month - (date.month - 1) % 3, "year": 1}[every]
    return (datetime(date.year, month, 1) - EPOCH) // timedelta(microseconds=1)


def move_months(moment: int, months: int) -> int:
    """Move a moment by calendar months, to the last day of the month where it has no such day."""
    date = EPOCH + timedelta(microseconds=moment)
    year, month = divmod(date.year * 12 + date.month - 1 + months, 12)
    if not 1 <= year <= 9999:
        raise Unsupported("a date moved by an interval must stay between the years 1 and 9999; use a shorter one")
    day = min(date.day, monthrange(year, month + 1)[1])
    return (date.replace(year=year, month=month + 1, day=day) - EPOCH) // timedelta(microseconds=1)


def next_period(start: int, every: Period) -> int | None:
    """Return the start of the next period, or None at the end of the calendar."""
    if every in PERIOD_LENGTHS:
        return start + PERIOD_LENGTHS[every]
    date = EPOCH + timedelta(microseconds=start)
    months = date.year * 12 + date.month - 1 + {"month": 1, "quarter": 3, "year": 12}[every]
    if months // 12 > 9999:
        return None
    return (datetime(months // 12, months % 12 + 1, 1) - EPOCH) // timedelta(microseconds=1)


def period_starts(lo: int, hi: int, every: Period) -> Iterator[int]:
    """Yield the starts of all periods that touch [lo, hi]."""
    moment: int | None = truncate(lo, every)
    while moment is not None and moment <= hi:
        yield moment
        moment = next_period(moment, every)


def number_of_periods(lo: int, hi: int, every: Period) -> int:
    """Count the periods that touch [lo, hi]."""
    if every in PERIOD_LENGTHS:
        return (truncate(hi, every) - truncate(lo, every)) // PERIOD_LENGTHS[every] + 1
    return sum(1 for _ in period_starts(lo, hi, every))


@dataclass(frozen=True)
class Lattice(Sequence[Scalar]):
    """Evenly spaced values in order, NULL last, computed on access: checking a plan with a million keys is fast."""

    indices: range
    step: Fraction
    nullable: bool

    def __len__(self) -> int:
        return len(self.indices) + self.nullable

    @overload
    def __getitem__(self, position: int) -> Scalar: ...
    @overload
    def __getitem__(self, position: slice) -> Sequence[Scalar]: ...
    def __getitem__(self, position: int | slice) -> Scalar | Sequence[Scalar]:
        if isinstance(position, slice):
            return tuple(self[offset] for offset in range(*position.indices(len(self))))
        if self.nullable and position in (len(self.indices), -1):
            return None
        return normalise(self.indices[position + (self.nullable and position < 0)] * self.step)

    @property
    def encoded(self) -> Lattice:
        """The same values as the engine encodes them: by their index."""
        return replace(self, step=Fraction(1))


def _as_lattice(domain: Domain) -> Lattice | None:
    """Return the evenly spaced values of a domain, or None if they are not evenly spaced."""
    match domain:
        case Number(step=step):
            lo, hi = bounds_of(domain)
            return Lattice(range(lo, hi + 1), step, domain.nullable)
        case Periods(lo=first, hi=last, every=every) if every in PERIOD_LENGTHS:
            return Lattice(range(truncate(first, every), last + 1, PERIOD_LENGTHS[every]), Fraction(1), domain.nullable)
        case Periods():  # months, quarters and years differ in length
            return None
        case Moment(lo=first, hi=last, precision=precision) if precision in PERIOD_LENGTHS:
            every = _as_period(precision)
            return Lattice(range(truncate(first, every), last + 1, PERIOD_LENGTHS[every]), Fraction(1), domain.nullable)
        case _:
            return None


def domain_values(domain: Domain, limit: int, public: Sequence[Scalar] | None = None) -> Sequence[Scalar]:
    """List every value of a domain in its fixed order, NULL last; refuse more than `limit` values."""
    count = cardinality(domain, public)
    if count > limit:
        raise Unsupported(
            f"a group key has {count} declared values, and at most {limit} are allowed; group by a coarser key"
        )
    lattice = _as_lattice(domain) if count > MAX_LISTED else None
    return lattice if lattice is not None else (*_list_values(domain, public), *((None,) if domain.nullable else ()))


def cardinality(domain: Domain, public: Sequence[Scalar] | None = None) -> int:
    """Count the values of a domain, NULL included; at least one, since every record has a value."""
    return max(1, _value_count(domain, public) + domain.nullable)


def _value_count(domain: Domain, public: Sequence[Scalar] | None) -> int:
    """Count the values of a domain without NULL."""
    match domain:
        case Number():
            lo, hi = bounds_of(domain)
            return max(0, hi - lo + 1)
        case Category(values=values):
            return len(values)
        case Boolean():
            return 2
        case Periods(lo=first, hi=last, every=every):
            return number_of_periods(first, last, every)
        case Moment(lo=first, hi=last, precision=precision):
            return number_of_periods(first, last, _as_period(precision)) if precision in PERIOD_LENGTHS else 0
        case Reference() if public is not None:
            return len(public)
        case Reference(table=table, column=column):
            raise Unsupported(
                f"the values of {table}.{column} have not been listed, so it cannot be a GROUP BY key here"
            )
        case Identifier():
            raise Unsupported("identifiers cannot be GROUP BY keys, since their values are private")


def _as_period(precision: Precision) -> Period:
    """Return a precision as the period of the same name."""
    return precision  # type: ignore[return-value]


def _list_values(domain: Domain, public: Sequence[Scalar] | None) -> Sequence[Scalar]:
    """List the values of a domain without NULL."""
    match domain:
        case Number(step=step):
            lo, hi = bounds_of(domain)
            return [normalise(index * step) for index in range(lo, hi + 1)]
        case Category(values=values):
            return values
        case Boolean():
            return (False, True)
        case Periods(lo=first, hi=last, every=every):
            return list(period_starts(first, last, every))
        case Moment(lo=first, hi=last, precision=precision):
            return list(period_starts(first, last, _as_period(precision)))
        case _:
            return public or ()


def normalise(value: Fraction) -> Scalar:
    """Return an integral Fraction as an int, any other unchanged."""
    return int(value) if value.denominator == 1 else value


def encode_value(value: Scalar, domain: Domain) -> int | str | bool | None:
    """Encode a public value as the engine does; None for NULL and for numbers off the lattice; refuse other kinds."""
    match domain, value:
        case _, None:
            return None
        case Number(step=step), int() | Fraction() if not isinstance(value, bool):
            steps = Fraction(value) / step
            return int(steps) if steps.denominator == 1 else None
        case Moment(), int() if not isinstance(value, bool):
            return value
        case Boolean(), bool():
            return value
        case Category() | Reference(kind="text") | Identifier(kind="text"), str():
            return unicodedata.normalize("NFC", value)
        case Reference(kind="integer") | Identifier(kind="integer"), int() if not isinstance(value, bool):
            return value
    raise InvalidPlan(f"{str(value)[:40]!r} cannot be compared with a {describe(domain)}")
