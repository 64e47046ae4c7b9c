"""Domains: what values an expression can take. Intervals on a lattice, finite sets, nullability; all public."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from fractions import Fraction
from math import ceil, floor, gcd
from typing import Literal, overload

from dither.errors import InvalidPlan, Unsupported
from dither.schema import Boolean, Category, Domain, Every, Identifier, Moment, Number, Precision, Reference, Scalar

Period = Literal["second", "minute", "hour"] | Every

LARGEST = 1 << 62
FEW = 1 << 6
MOST_STEP = 10**36
DAY = 86_400_000_000
LENGTHS: dict[str, int] = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": DAY,
    "week": 7 * DAY,
}
EPOCH = datetime(1970, 1, 1)
NOTHING = Category(values=(), nullable=True)
TRUTH = Boolean()


@dataclass(frozen=True)
class Periods(Moment):
    """The starts of calendar periods between two moments: a moment that can be listed."""

    every: Period = "day"


def number(lo: int, hi: int, step: Fraction = Fraction(1), nullable: bool = False) -> Number:
    """The multiples lo*step .. hi*step; refused where there are none, or they or the step do not fit."""
    if lo > hi:
        raise InvalidPlan("no value lies between the bounds of an expression")
    if max(abs(lo), abs(hi)) > LARGEST:
        raise Unsupported("values could pass 2^62 steps of their lattice; CLAMP or ROUND the operands first")
    if max(step.numerator, step.denominator) > MOST_STEP:
        raise Unsupported(
            "the lattice of an expression is too fine or too coarse (beyond 1e36); ROUND the operands first"
        )
    return Number(lo * step, hi * step, step, nullable)


def bounds_of(domain: Number) -> tuple[int, int]:
    """The smallest and largest lattice integers of a number."""
    return ceil(domain.lo / domain.step), floor(domain.hi / domain.step)


def span(domain: Domain) -> tuple[int, int]:
    """The smallest and largest integers that hold a number or a moment."""
    if isinstance(domain, Number):
        return bounds_of(domain)
    if isinstance(domain, Moment):
        return domain.lo, domain.hi
    raise InvalidPlan(f"expected a number or a moment, got {describe(domain)}")


def is_possible(held: int | str | bool, domain: Domain) -> bool:
    """Whether a held value can occur: a number or moment within the bounds, an integer key of 64 bits."""
    if isinstance(held, bool) or not isinstance(held, int):
        return True
    lo, hi = span(domain) if isinstance(domain, Number | Moment) else (-(1 << 63), (1 << 63) - 1)
    return lo <= held <= hi


def as_number(domain: Domain, where: str) -> Number:
    """The domain if it is numeric."""
    if not isinstance(domain, Number):
        raise InvalidPlan(f"{where} takes numbers, got {describe(domain)}")
    return domain


def as_moment(domain: Domain, where: str) -> Moment:
    """The domain if it is a moment."""
    if not isinstance(domain, Moment):
        raise InvalidPlan(f"{where} takes dates and timestamps, got {describe(domain)}")
    return domain


def as_boolean(domain: Domain, where: str) -> Boolean:
    """The domain if it is a truth value (or a bare NULL)."""
    if domain == NOTHING:
        return Boolean(nullable=True)
    if not isinstance(domain, Boolean):
        raise InvalidPlan(f"{where} takes conditions, got {describe(domain)}")
    return domain


def as_category(domain: Domain, where: str) -> Category:
    """The domain if its texts are declared."""
    if not isinstance(domain, Category):
        raise InvalidPlan(f"{where} takes declared categories, got {describe(domain)}")
    return domain


def describe(domain: Domain) -> str:
    """A word for the kind of a domain."""
    return "NULL" if domain == NOTHING else type(domain).__name__.lower()


def with_null(domain: Domain, nullable: bool) -> Domain:
    """The same domain, with or without NULL."""
    return domain if domain.nullable == nullable else dataclasses.replace(domain, nullable=nullable)


def storage_type(domain: Domain) -> str:
    """The SQL type that holds a value."""
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
    """The coarsest lattice that holds all the given ones."""
    step = first
    for other in others:
        below = step.denominator * other.denominator
        step = Fraction(gcd(step.numerator * other.denominator, other.numerator * step.denominator), below)
    return step


def on_step(domain: Number, step: Fraction) -> Number:
    """The same numbers on a finer lattice; refused if they no longer fit."""
    lo, hi = bounds_of(domain)
    ratio = domain.step / step
    return number(int(lo * ratio), int(hi * ratio), step, domain.nullable)


def merge(domains: Sequence[Domain]) -> Domain:
    """The smallest domain of our kinds that contains all of them: what CASE, COALESCE and UNION give."""
    real = [domain for domain in domains if domain != NOTHING]
    if not real:
        return NOTHING
    nullable = any(domain.nullable for domain in domains)
    numbers = [d for d in real if isinstance(d, Number)]
    moments = [d for d in real if isinstance(d, Moment)]
    if len(numbers) == len(real):
        return _merge_numbers(numbers, nullable)
    if len(moments) == len(real):
        return _merge_moments(moments, nullable)
    return _merge_names(real, nullable)


def _merge_numbers(domains: Sequence[Number], nullable: bool) -> Number:
    step = common_step(*(domain.step for domain in domains))
    bounds = [bounds_of(on_step(domain, step)) for domain in domains]
    return number(min(lo for lo, _ in bounds), max(hi for _, hi in bounds), step, nullable)


def _merge_moments(domains: Sequence[Moment], nullable: bool) -> Moment:
    lo, hi = min(d.lo for d in domains), max(d.hi for d in domains)
    first = domains[0]
    if isinstance(first, Periods) and all(isinstance(d, Periods) and d.every == first.every for d in domains):
        return Periods(lo, hi, first.precision, nullable, first.every)
    finest = min((d.precision for d in domains), key=lambda precision: LENGTHS[precision])
    return Moment(lo, hi, finest, nullable)


def _merge_names(domains: Sequence[Domain], nullable: bool) -> Domain:
    if all(isinstance(d, Category) for d in domains):
        return Category(tuple(dict.fromkeys(v for d in domains if isinstance(d, Category) for v in d.values)), nullable)
    first = with_null(domains[0], nullable)
    if all(with_null(d, nullable) == first for d in domains):
        return first
    kinds = {d.kind for d in domains if isinstance(d, Reference | Identifier)}
    if len(kinds) == 1 and all(isinstance(d, Reference | Identifier) for d in domains):
        return Identifier(kinds.pop(), nullable)
    raise InvalidPlan(f"these kinds do not mix: {', '.join(sorted({describe(d) for d in domains}))}")


def truncate(moment: int, every: Period | Precision) -> int:
    """The start of the period that a moment lies in."""
    if every in LENGTHS:
        shift = 3 * DAY if every == "week" else 0
        return moment - (moment + shift) % LENGTHS[every]
    date = EPOCH + timedelta(microseconds=moment)
    month = {"month": date.month, "quarter": date.month - (date.month - 1) % 3, "year": 1}[every]
    return (datetime(date.year, month, 1) - EPOCH) // timedelta(microseconds=1)


def next_period(start: int, every: Period) -> int | None:
    """The start of the next period, or None at the end of the calendar."""
    if every in LENGTHS:
        return start + LENGTHS[every]
    date = EPOCH + timedelta(microseconds=start)
    months = date.year * 12 + date.month - 1 + {"month": 1, "quarter": 3, "year": 12}[every]
    if months // 12 > 9999:
        return None
    return (datetime(months // 12, months % 12 + 1, 1) - EPOCH) // timedelta(microseconds=1)


def period_starts(lo: int, hi: int, every: Period) -> Iterator[int]:
    """The starts of all periods that touch [lo, hi]."""
    moment: int | None = truncate(lo, every)
    while moment is not None and moment <= hi:
        yield moment
        moment = next_period(moment, every)


def number_of_periods(lo: int, hi: int, every: Period) -> int:
    """How many periods touch [lo, hi]."""
    if every in LENGTHS:
        return (truncate(hi, every) - truncate(lo, every)) // LENGTHS[every] + 1
    return sum(1 for _ in period_starts(lo, hi, every))


@dataclass(frozen=True)
class Lattice(Sequence[Scalar]):
    """Evenly spaced values in order, NULL last, made one by one: a plan with a million keys is checked in no time."""

    indices: range
    step: Fraction
    nullable: bool

    def __len__(self) -> int:
        return len(self.indices) + self.nullable

    @overload
    def __getitem__(self, place: int) -> Scalar: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Scalar]: ...
    def __getitem__(self, place: int | slice) -> Scalar | Sequence[Scalar]:
        if isinstance(place, slice):
            return tuple(self[each] for each in range(*place.indices(len(self))))
        if self.nullable and place in (len(self.indices), -1):
            return None
        return normalise(self.indices[place + (self.nullable and place < 0)] * self.step)

    @property
    def held(self) -> Lattice:
        """The same values as an engine holds them: by their index."""
        return replace(self, step=Fraction(1))


def _lattice(domain: Domain) -> Lattice | None:
    match domain:
        case Number(step=step):
            lo, hi = bounds_of(domain)
            return Lattice(range(lo, hi + 1), step, domain.nullable)
        case Periods(lo=first, hi=last, every=every) if every in LENGTHS:
            return Lattice(range(truncate(first, every), last + 1, LENGTHS[every]), Fraction(1), domain.nullable)
        case Moment(lo=first, hi=last, precision=precision) if precision in LENGTHS:
            every = _period(precision)
            return Lattice(range(truncate(first, every), last + 1, LENGTHS[every]), Fraction(1), domain.nullable)
        case _:
            return None


def domain_values(domain: Domain, limit: int, public: Sequence[Scalar] | None = None) -> Sequence[Scalar]:
    """Every value of a domain in its fixed order, NULL last; refused above `limit`."""
    many = cardinality(domain, public)
    if many > limit:
        raise Unsupported(
            f"a key with {many} declared values is too large (at most {limit}); group by something coarser"
        )
    spaced = _lattice(domain) if many > FEW else None
    return spaced if spaced is not None else (*_values(domain, public), *((None,) if domain.nullable else ()))


def cardinality(domain: Domain, public: Sequence[Scalar] | None = None) -> int:
    """The number of values of a domain, NULL included; at least one, since every record has a value."""
    return max(1, _many(domain, public) + domain.nullable)


def _many(domain: Domain, public: Sequence[Scalar] | None) -> int:
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
            return number_of_periods(first, last, _period(precision)) if precision in LENGTHS else 0
        case Reference() if public is not None:
            return len(public)
        case Reference(table=table, column=column):
            raise Unsupported(f"the public values of {table}.{column} are not at hand")
        case Identifier():
            raise Unsupported("an identifier cannot be a key of an answer: its values are nobody's business")


def _period(precision: Precision) -> Period:
    return precision  # type: ignore[return-value]


def _values(domain: Domain, public: Sequence[Scalar] | None) -> Sequence[Scalar]:
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
            return list(period_starts(first, last, _period(precision)))
        case _:
            return public or ()


def normalise(value: Fraction) -> Scalar:
    """An integer as int, any other rational as it is."""
    return int(value) if value.denominator == 1 else value


def index_of(value: Scalar, domain: Domain) -> int | str | bool | None:
    """How the engine holds a public value of a domain; NULL as None; refused where it is of another kind."""
    match domain, value:
        case _, None:
            return None
        case Number(step=step), int() | Fraction() if not isinstance(value, bool):
            exact = Fraction(value) / step
            return int(exact) if exact.denominator == 1 else None
        case Moment(), int() if not isinstance(value, bool):
            return value
        case Boolean(), bool():
            return value
        case Category(), str():
            return value
        case Reference(kind="text") | Identifier(kind="text"), str():
            return value
        case Reference(kind="integer") | Identifier(kind="integer"), int() if not isinstance(value, bool):
            return value
    raise InvalidPlan(f"{str(value)[:40]!r} cannot be compared with a {describe(domain)}")
