"""Reading a raw column: every record gets a value inside the declared domain, in the form in which values are held."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

from sqlglot import exp

from dither.plan.context import offsets, on_wall_clock, zoned
from dither.plan.domains import LENGTHS, bounds_of, span, storage_type, truncate
from dither.plan.expressions.core import constant_value, divide
from dither.plan.sql.builders import (
    FEW_VALUES,
    Sql,
    add,
    and_,
    binary,
    case,
    cast,
    detached,
    double,
    integer,
    is_not_null,
    is_null,
    literal,
    not_,
    null,
    or_,
    string,
    times,
    within,
)
from dither.plan.sql.dialect import Dialect, RawKind
from dither.schema import Boolean, Category, Column, Domain, Identifier, Moment, Number, Reference


def clean_column(column: Column, raw: Sql, kind: RawKind, zone: str, dialect: Dialect) -> Sql:
    """The held value of a raw column: clamped, moved to the default, or NULL where the domain allows it."""
    match column.domain:
        case Number():
            return _number(column, column.domain, raw, kind, dialect)
        case Moment():
            return _moment(column, column.domain, raw, kind, zone, dialect)
        case Boolean():
            return _otherwise(column, raw, _boolean(raw, kind, dialect))
        case Category():
            return _category(column, column.domain, raw, kind, dialect)
        case Reference(kind="integer") | Identifier(kind="integer"):
            return _otherwise(column, raw, _integer(raw, kind, dialect))
        case Reference() | Identifier():
            return _otherwise(column, raw, _text(raw, kind))


def clean_key(column: Column, raw: Sql, kind: RawKind, zone: str, dialect: Dialect) -> Sql:
    """As `clean`, for a column that names a unit: NULL for all but the values of its domain, so that no two merge."""
    domain = replace(column.domain, nullable=True)
    value = clean_column(replace(column, domain=domain, default=None), raw, kind, zone, dialect)
    if not isinstance(domain, Number):
        return value
    exact = case([(_unmoved(domain, value, raw, kind, dialect), value)])
    return case([(_valid(domain, raw, kind, dialect), exact)])


def clean_encoded(column: Column, raw: Sql, kind: RawKind, zone: str, dialect: Dialect) -> Sql:
    """As `clean`, for one of few texts that is held packed."""
    if not isinstance(column.domain, Category):
        return clean_column(column, raw, kind, zone, dialect)
    value, values, spare = _text(raw, kind), column.domain.values, _spare_text(column, column.domain)
    if any(unicodedata.normalize("NFD", declared) != declared for declared in values):
        return dialect.packed(clean_column(column, raw, kind, zone, dialect), values)
    found = dialect.packed(value, values)
    if spare is None:
        return found
    filled = exp.Coalesce(this=found, expressions=[dialect.packed(string(spare), values)])
    return case([(is_not_null(raw), filled)]) if column.domain.nullable else filled


def _spare_text(column: Column, domain: Category) -> str | None:
    """The text that stands in for an invalid one; None where NULL does."""
    if isinstance(column.default, str):
        return column.default
    return None if domain.nullable else domain.values[0]


def _unmoved(domain: Number, value: Sql, raw: Sql, kind: RawKind, dialect: Dialect) -> Sql:
    """Whether a number within its bounds was on the lattice before it was put there."""
    up, down = domain.step.denominator, domain.step.numerator
    if kind == "integer":
        return binary(exp.EQ, times(value, down), times(cast(raw, "bigint"), up))
    before = _double(raw, kind, dialect)
    after = binary(exp.Div, binary(exp.Mul, cast(value, "double"), double(down)), double(up))
    # Beyond 2^53 different texts and decimals are the same double.
    return and_([binary(exp.EQ, before, after), binary(exp.LT, exp.Abs(this=detached(after)), double(1 << 53))])


def is_clean(column: Column, raw: Sql, kind: RawKind, dialect: Dialect) -> Sql:
    """True where `clean` need not correct the record: a value inside its bounds, or an allowed NULL."""
    valid = _valid(column.domain, raw, kind, dialect)
    return or_([is_null(raw), valid]) if column.domain.nullable else valid


def _valid(domain: Domain, raw: Sql, kind: RawKind, dialect: Dialect) -> Sql:
    match domain:
        case Number():
            value = raw if kind in ("integer", "decimal") else _double(raw, kind, dialect)
            return and_([binary(exp.GTE, value, _bound(domain.lo)), binary(exp.LTE, value, _bound(domain.hi))])
        case Moment():
            value = _microseconds(raw, kind, dialect)
            return and_([binary(exp.GTE, value, integer(domain.lo)), binary(exp.LTE, value, integer(domain.hi))])
        case Boolean():
            return is_not_null(_boolean(raw, kind, dialect))
        case Category(values=values):
            return _among(_text(raw, kind), _spelled(values), dialect)
        case Reference(kind="integer") | Identifier(kind="integer"):
            return is_not_null(_integer(raw, kind, dialect))
        case _:
            return is_not_null(_text(raw, kind))


def fallback(column: Column) -> Sql:
    """What stands in for a value that cannot be clamped: the default, else NULL, else a fixed value of the domain."""
    domain, default = column.domain, column.default
    if default is None and (domain.nullable or isinstance(domain, Reference | Identifier)):
        return null(storage_type(domain))
    match domain:
        case Number():
            lo, hi = bounds_of(domain)
            wanted = Fraction(default) if isinstance(default, int | Fraction) else Fraction(0)
            return integer(min(max(round(wanted / domain.step), lo), hi))
        case Moment():
            return integer(_spare_moment(column, domain))
        case Boolean():
            return constant_value(default is True)
        case Category(values=values):
            return string(default if isinstance(default, str) else values[0])
        case _:
            return constant_value(default) if isinstance(default, int | str) else null(storage_type(domain))


def _spare_moment(column: Column, domain: Moment) -> int:
    return min(max(column.default, domain.lo), domain.hi) if isinstance(column.default, int) else domain.lo


def _bound(value: Fraction) -> Sql:
    if value.denominator == 1:
        return exp.Literal.number(value.numerator)
    return binary(exp.Div, double(value.numerator), double(value.denominator))


def _missing(column: Column) -> Sql:
    """What a NULL becomes."""
    return null(storage_type(column.domain)) if column.domain.nullable else fallback(column)


def _otherwise(column: Column, raw: Sql, value: Sql) -> Sql:
    """The value where there is one; what a NULL becomes where the record has none; else the fallback."""
    if column.default is None and storage_type(column.domain) != "boolean":
        return value
    return case([(is_not_null(value), value), (is_null(raw), _missing(column))], fallback(column))


def _double(raw: Sql, kind: RawKind, dialect: Dialect) -> Sql:
    """A raw number as a double; NaN and what is no number as NULL."""
    match kind:
        case "text":
            value = dialect.number_of_text(raw)
        case "integer" | "decimal" | "float":
            value = cast(raw, "double")
        case "boolean":
            value = cast(case([(raw, literal(1)), (not_(raw), literal(0))]), "double")
        case _:
            return null("double")
    return case([(not_(dialect.is_nan(value)), value)])


def _number(column: Column, domain: Number, raw: Sql, kind: RawKind, dialect: Dialect) -> Sql:
    lo, hi = bounds_of(domain)
    if kind == "integer":
        inside = _scaled(cast(raw, "bigint"), domain, dialect)
        value, missing = raw, (is_null(raw), _missing(column))
    else:
        value = _double(raw, kind, dialect)
        inside = within(_snapped(value, domain), lo, hi)
        missing = (is_null(raw), _missing(column))
    least, most = _bound(lo * domain.step), _bound(hi * domain.step)
    common = and_([binary(exp.GT, value, least), binary(exp.LT, value, most)])
    invalid = [(is_null(value), fallback(column))] if kind != "integer" else []
    return case([(common, inside), missing, *invalid, (binary(exp.LTE, value, least), integer(lo))], integer(hi))


def _scaled(value: Sql, domain: Number, dialect: Dialect) -> Sql:
    """An integer strictly between the bounds, on the lattice, halves away from zero."""
    up, down = domain.step.denominator, domain.step.numerator
    if down == 1:
        return times(value, up)
    half = case([(binary(exp.LT, value, literal(0)), integer(-down))], integer(down))
    return dialect.quotient(add(times(value, 2 * up), half), literal(2 * down))


def _snapped(value: Sql, domain: Number) -> Sql:
    """A finite double on the lattice, halves away from zero."""
    up, down = double(domain.step.denominator), double(domain.step.numerator)
    scaled = binary(exp.Div, binary(exp.Mul, exp.Abs(this=detached(value)), up), down)
    size = cast(exp.Floor(this=binary(exp.Add, scaled, cast(exp.Literal.number("0.5"), "double"))), "bigint")
    if domain.lo >= 0:
        return size
    return case([(binary(exp.LT, value, double(0)), exp.Neg(this=size))], size.copy())


def _microseconds(raw: Sql, kind: RawKind, dialect: Dialect) -> Sql:
    match kind:
        case "timestamp":
            return dialect.microseconds(raw)
        case "date":
            return dialect.microseconds(dialect.moment_of_date(raw))
        case "text":
            return dialect.microseconds(dialect.moment_of_text(raw))
        case "integer":
            return dialect.integer_of_wide(raw)
        case _:
            return null("bigint")


def _moment(column: Column, domain: Moment, raw: Sql, kind: RawKind, zone: str, dialect: Dialect) -> Sql:
    value, here = _microseconds(raw, kind, dialect), on_wall_clock(domain, zone)
    local = _local(value, domain, zone) if zoned(domain, zone) else value
    length = LENGTHS[domain.precision]
    inside = local if length == 1 else times(divide(local, length, span(here)[0], dialect), length)
    # On one clock the start of a period lies between the starts of the bounds' periods.
    held = within(inside, *span(here)) if zoned(domain, zone) else inside
    spare = replace(column, default=_local_end(_spare_moment(column, domain), domain, zone), domain=here)
    common = and_([binary(exp.GT, value, integer(domain.lo)), binary(exp.LT, value, integer(domain.hi))])
    branches = [
        (common, held),
        (is_null(raw), _missing(spare)),
        (is_null(value), null("bigint") if column.default is None and domain.nullable else fallback(spare)),
        (binary(exp.LTE, value, integer(domain.lo)), integer(_local_end(domain.lo, domain, zone))),
    ]
    return case(branches, integer(_local_end(domain.hi, domain, zone)))


def _local(value: Sql, domain: Moment, zone: str) -> Sql:
    shifts = offsets(domain.lo, domain.hi, zone)
    if len(shifts) == 1:
        return add(value, shifts[0][1])
    branches = [(binary(exp.LT, value, integer(end)), integer(shift)) for (_, shift), (end, _) in pairwise(shifts)]
    return add(value, case(branches, integer(shifts[-1][1])))


def _local_end(moment: int, domain: Moment, zone: str) -> int:
    """A moment of the domain on the wall clock, at the start of its period: two ends of one period are one value."""
    shifts = offsets(domain.lo, domain.hi, zone) if zoned(domain, zone) else ((domain.lo, 0),)
    return truncate(moment + [shift for start, shift in shifts if start <= moment][-1], domain.precision)


def _boolean(raw: Sql, kind: RawKind, dialect: Dialect) -> Sql:
    match kind:
        case "boolean":
            return raw
        case "integer" | "float" | "decimal":
            return case([(binary(exp.EQ, raw, literal(1)), exp.true()), (binary(exp.EQ, raw, literal(0)), exp.false())])
        case "text":
            return dialect.boolean_of_text(raw)
        case _:
            return null("boolean")


def _integer(raw: Sql, kind: RawKind, dialect: Dialect) -> Sql:
    match kind:
        case "integer":
            return dialect.integer_of_wide(raw)
        case "text":
            return dialect.integer_of_text(raw)
        case "float" | "decimal":
            value = _double(raw, kind, dialect)
            exact = and_(
                [
                    binary(exp.EQ, value, exp.Floor(this=detached(value))),
                    binary(exp.LT, exp.Abs(this=detached(value)), double(1 << 53)),
                ]
            )
            return case([(exact, cast(value, "bigint"))])
        case _:
            return null("bigint")


def _text(raw: Sql, kind: RawKind) -> Sql:
    return cast(raw, "varchar") if kind in ("text", "integer", "boolean") else null("varchar")


def _spelled(values: Sequence[str]) -> list[str]:
    """The declared texts and their decomposed spellings."""
    return list(dict.fromkeys(form for v in values for form in (v, unicodedata.normalize("NFD", v))))


def _among(value: Sql, values: Sequence[str], dialect: Dialect) -> Sql:
    if 0 < len(values) <= FEW_VALUES:
        return dialect.among(value, values)
    return exp.In(this=detached(value), expressions=[string(v) for v in values])


def _category(column: Column, domain: Category, raw: Sql, kind: RawKind, dialect: Dialect) -> Sql:
    value = _text(raw, kind)
    branches: list[tuple[Sql, Sql]] = [(_among(value, domain.values, dialect), value)] if domain.values else []
    for declared in domain.values:
        if (other := unicodedata.normalize("NFD", declared)) not in domain.values:
            branches.append((binary(exp.EQ, value, string(other)), string(declared)))
    return case([*branches, (is_null(raw), _missing(column))], fallback(column))
