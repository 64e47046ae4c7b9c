"""Clean a raw column: every record gets an encoded value inside the declared domain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial

from sqlglot import exp

from dither.plan.domains import PERIOD_LENGTHS, bounds_of, storage_type, truncate
from dither.plan.expressions.core import constant_sql, divide
from dither.plan.relations.moments import wall_clock
from dither.plan.sql.builders import (
    MAX_ENUM_VALUES,
    Sql,
    add,
    and_,
    binary,
    case,
    cast,
    clamp_integer,
    detach,
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
)
from dither.plan.sql.dialect import Dialect, RawKind
from dither.schema import Boolean, Category, Column, Domain, Identifier, Moment, Number, Reference


def clean_column(column: Column, raw: Sql, kind: RawKind, zone: str, dialect: Dialect) -> Sql:
    """Encode a raw column: clamp values to the domain; replace others by the default, or by NULL where allowed."""
    match column.domain:
        case Number():
            return _clean_number(column, column.domain, raw, kind, dialect)
        case Moment():
            return _clean_moment(column, column.domain, raw, kind, zone, dialect)
        case Boolean():
            return _with_fallback(column, raw, _parse_boolean(raw, kind, dialect))
        case Category():
            return _clean_category(column, column.domain, raw, kind, dialect)
        case Reference(kind="integer") | Identifier(kind="integer"):
            return _with_fallback(column, raw, _parse_integer(raw, kind, dialect))
        case Reference() | Identifier():
            return _with_fallback(column, raw, _as_name(raw, kind, dialect))


def clean_key(column: Column, raw: Sql, kind: RawKind, zone: str, dialect: Dialect) -> Sql:
    """Like `clean_column`, for a unit key: NULL for every value outside its domain, so that no two units merge."""
    domain = replace(column.domain, nullable=True)
    value = clean_column(replace(column, domain=domain, default=None), raw, kind, zone, dialect)
    if not isinstance(domain, Number):
        return value
    exact = case([(_is_on_lattice(domain, value, raw, kind, dialect), value)])
    return case([(_is_valid(domain, raw, kind, dialect), exact)])


def clean_to_enum(column: Column, raw: Sql, kind: RawKind, zone: str, dialect: Dialect) -> Sql:
    """Like `clean_column`, for texts that are stored as an ENUM."""
    if not isinstance(column.domain, Category):
        return clean_column(column, raw, kind, zone, dialect)
    values, fallback_text = column.domain.values, _fallback_text(column, column.domain)
    declared_or_null = dialect.to_enum(_as_declared(raw, kind, column.domain, dialect), values)
    if fallback_text is None:
        return declared_or_null
    filled = exp.Coalesce(this=declared_or_null, expressions=[dialect.to_enum(string(fallback_text), values)])
    return case([(is_not_null(raw), filled)]) if column.domain.nullable else filled


def _fallback_text(column: Column, domain: Category) -> str | None:
    """Return the text that replaces an invalid one, or None if NULL does."""
    if isinstance(column.default, str):
        return column.default
    return None if domain.nullable else domain.values[0]


def _is_on_lattice(domain: Number, value: Sql, raw: Sql, kind: RawKind, dialect: Dialect) -> Sql:
    """Build the condition that a number within its bounds was on the lattice before rounding."""
    up, down = domain.step.denominator, domain.step.numerator
    if kind == "integer":
        return binary(exp.EQ, times(value, down), times(cast(raw, "bigint"), up))
    before = _as_double(raw, kind, dialect)
    after = binary(exp.Div, binary(exp.Mul, cast(value, "double"), double(down)), double(up))
    # Beyond 2^53, different texts and decimals convert to the same double.
    return and_([binary(exp.EQ, before, after), binary(exp.LT, exp.Abs(this=detach(after)), double(1 << 53))])


def is_clean(column: Column, raw: Sql, kind: RawKind, zone: str, dialect: Dialect) -> Sql:
    """Build the condition that `clean_column` only rounds the value: it is in bounds, or an allowed NULL."""
    if isinstance(column.domain, Moment):
        valid = _is_between(wall_clock(column, raw, kind, zone, dialect), column.domain)
    else:
        valid = _is_valid(column.domain, raw, kind, dialect)
    return or_([is_null(raw), valid]) if column.domain.nullable else valid


def beyond_bounds(column: Column, raw: Sql, kind: RawKind, zone: str, dialect: Dialect) -> tuple[Sql, Sql]:
    """Build the conditions that a raw value is below and above its bounds; false for domains without bounds."""
    match column.domain:
        case Number() as domain:
            value = _comparable(raw, kind, dialect)
        case Moment() as domain:
            value = wall_clock(column, raw, kind, zone, dialect)
        case _:
            return exp.false(), exp.false()
    lo, hi = (_bound_literal(Fraction(bound)) for bound in (domain.lo, domain.hi))
    return binary(exp.LT, value, lo), binary(exp.GT, value, hi)


def _comparable(raw: Sql, kind: RawKind, dialect: Dialect) -> Sql:
    """Return a raw number in a type that compares with its bounds."""
    return raw if kind in ("integer", "decimal") else _as_double(raw, kind, dialect)


def _is_valid(domain: Domain, raw: Sql, kind: RawKind, dialect: Dialect) -> Sql:
    """Build the condition that a raw value is inside the domain."""
    match domain:
        case Number():
            return _is_between(_comparable(raw, kind, dialect), domain)
        case Boolean():
            return is_not_null(_parse_boolean(raw, kind, dialect))
        case Category(values=values):
            return _is_among(_as_declared(raw, kind, domain, dialect), values, dialect)
        case Reference(kind="integer") | Identifier(kind="integer"):
            return is_not_null(_parse_integer(raw, kind, dialect))
        case _:
            return is_not_null(_as_text(raw, kind))


def _is_between(value: Sql, domain: Number | Moment) -> Sql:
    """Build the condition that a number or moment lies within its bounds."""
    lo, hi = (_bound_literal(Fraction(bound)) for bound in (domain.lo, domain.hi))
    return and_([binary(exp.GTE, value, lo), binary(exp.LTE, value, hi)])


def fallback(column: Column) -> Sql:
    """Build the replacement of a value that cannot be clamped: the default, else NULL, else the first value."""
    domain, default = column.domain, column.default
    if default is None and (domain.nullable or isinstance(domain, Reference | Identifier)):
        return null(storage_type(domain))
    match domain:
        case Number():
            lo, hi = bounds_of(domain)
            wanted = Fraction(default) if isinstance(default, int | Fraction) else domain.lo
            return integer(min(max(round(wanted / domain.step), lo), hi))
        case Moment():
            return integer(_fallback_moment(column, domain))
        case Boolean():
            return constant_sql(default is True)
        case Category(values=values):
            return string(default if isinstance(default, str) else values[0])
        case _:
            return constant_sql(default) if isinstance(default, int | str) else null(storage_type(domain))


def _fallback_moment(column: Column, domain: Moment) -> int:
    """Return the moment that replaces an invalid one: the default within the bounds, else the least moment."""
    moment = min(max(column.default, domain.lo), domain.hi) if isinstance(column.default, int) else domain.lo
    return truncate(moment, domain.precision)


def _bound_literal(value: Fraction) -> Sql:
    """Build a bound as a constant that compares with raw numbers."""
    if value.denominator == 1:
        return exp.Literal.number(value.numerator)
    return binary(exp.Div, double(value.numerator), double(value.denominator))


def _null_replacement(column: Column) -> Sql:
    """Build the value that replaces a NULL record."""
    return null(storage_type(column.domain)) if column.domain.nullable else fallback(column)


def _with_fallback(column: Column, raw: Sql, value: Sql) -> Sql:
    """Return the value if it is not NULL; else the replacement of NULL if the record is NULL; else the fallback."""
    if column.default is None and storage_type(column.domain) != "boolean":
        return value
    return case([(is_not_null(value), value), (is_null(raw), _null_replacement(column))], fallback(column))


def _as_double(raw: Sql, kind: RawKind, dialect: Dialect) -> Sql:
    """Convert a raw number to a double; NaN and values that are not numbers become NULL."""
    match kind:
        case "text":
            value = dialect.parse_number(raw)
        case "integer" | "decimal" | "float":
            value = cast(raw, "double")
        case "boolean":
            value = cast(case([(raw, literal(1)), (not_(raw), literal(0))]), "double")
        case _:
            return null("double")
    return case([(not_(dialect.is_nan(value)), value)])


def _clean_number(column: Column, domain: Number, raw: Sql, kind: RawKind, dialect: Dialect) -> Sql:
    """Encode a raw number on its lattice, clamped to its bounds."""
    lo, hi = bounds_of(domain)
    if kind == "integer":
        inside = _integer_to_lattice(cast(raw, "bigint"), domain, dialect)
        value, missing = raw, (is_null(raw), _null_replacement(column))
    else:
        value = _as_double(raw, kind, dialect)
        inside = clamp_integer(_double_to_lattice(value, domain), lo, hi)
        missing = (is_null(raw), _null_replacement(column))
    least, most = _bound_literal(lo * domain.step), _bound_literal(hi * domain.step)
    is_inside = and_([binary(exp.GT, value, least), binary(exp.LT, value, most)])
    invalid = [(is_null(value), fallback(column))] if kind != "integer" else []
    return case([(is_inside, inside), missing, *invalid, (binary(exp.LTE, value, least), integer(lo))], integer(hi))


def _integer_to_lattice(value: Sql, domain: Number, dialect: Dialect) -> Sql:
    """Round an integer strictly between the bounds to the lattice, halves away from zero."""
    up, down = domain.step.denominator, domain.step.numerator
    if down == 1:
        return times(value, up)
    half = case([(binary(exp.LT, value, literal(0)), integer(-down))], integer(down))
    return dialect.quotient(add(times(value, 2 * up), half), literal(2 * down))


def _double_to_lattice(value: Sql, domain: Number) -> Sql:
    """Round a finite double to the lattice, halves away from zero."""
    up, down = double(domain.step.denominator), double(domain.step.numerator)
    scaled = binary(exp.Div, binary(exp.Mul, exp.Abs(this=detach(value)), up), down)
    size = cast(exp.Floor(this=binary(exp.Add, scaled, cast(exp.Literal.number("0.5"), "double"))), "bigint")
    if domain.lo >= 0:
        return size
    return case([(binary(exp.LT, value, double(0)), exp.Neg(this=size))], size.copy())


def _clean_moment(column: Column, domain: Moment, raw: Sql, kind: RawKind, zone: str, dialect: Dialect) -> Sql:
    """Encode a raw moment on the dataset's wall clock, truncated to its precision and clamped to its bounds."""
    value, start_of = wall_clock(column, raw, kind, zone, dialect), partial(truncate, every=domain.precision)
    length, truncated = PERIOD_LENGTHS[domain.precision], replace(column, default=_fallback_moment(column, domain))
    # The start of a period between the bounds lies between the starts of the bounds' periods.
    inside = value if length == 1 else times(divide(value, length, domain.lo, dialect), length)
    branches = [
        (and_([binary(exp.GT, value, integer(domain.lo)), binary(exp.LT, value, integer(domain.hi))]), inside),
        (is_null(raw), _null_replacement(truncated)),
        (is_null(value), null("bigint") if column.default is None and domain.nullable else fallback(truncated)),
        (binary(exp.LTE, value, integer(domain.lo)), integer(start_of(domain.lo))),
    ]
    return case(branches, integer(start_of(domain.hi)))


def _parse_boolean(raw: Sql, kind: RawKind, dialect: Dialect) -> Sql:
    """Convert a raw boolean, number or text to a truth value, or NULL."""
    match kind:
        case "boolean":
            return raw
        case "integer" | "float" | "decimal":
            return case([(binary(exp.EQ, raw, literal(1)), exp.true()), (binary(exp.EQ, raw, literal(0)), exp.false())])
        case "text":
            return dialect.parse_boolean(raw)
        case _:
            return null("boolean")


def _parse_integer(raw: Sql, kind: RawKind, dialect: Dialect) -> Sql:
    """Convert a raw integer, text or integral number to a 64-bit integer, or NULL."""
    match kind:
        case "integer":
            return dialect.narrow_integer(raw)
        case "text":
            return dialect.parse_integer(raw)
        case "float" | "decimal":
            value = _as_double(raw, kind, dialect)
            exact = and_(
                [
                    binary(exp.EQ, value, exp.Floor(this=detach(value))),
                    binary(exp.LT, exp.Abs(this=detach(value)), double(1 << 53)),
                ]
            )
            return case([(exact, cast(value, "bigint"))])
        case _:
            return null("bigint")


def _as_text(raw: Sql, kind: RawKind) -> Sql:
    """Convert a raw text, integer or boolean to text; other kinds become NULL."""
    return cast(raw, "varchar") if kind in ("text", "integer", "boolean") else null("varchar")


def _as_name(raw: Sql, kind: RawKind, dialect: Dialect) -> Sql:
    """Convert a raw value to text in Unicode's NFC, so that one name in two spellings is one."""
    value = _as_text(raw, kind)
    return dialect.compose(value) if kind == "text" else value


def _as_declared(raw: Sql, kind: RawKind, domain: Category, dialect: Dialect) -> Sql:
    """Convert a raw value to text for comparison with the declared ones; NFC matters only if one is not ASCII."""
    return _as_text(raw, kind) if all(map(str.isascii, domain.values)) else _as_name(raw, kind, dialect)


def _is_among(value: Sql, values: Sequence[str], dialect: Dialect) -> Sql:
    """Build the condition that a text is one of the constants."""
    if 0 < len(values) <= MAX_ENUM_VALUES:
        return dialect.is_among(value, values)
    return exp.In(this=detach(value), expressions=[string(v) for v in values])


def _clean_category(column: Column, domain: Category, raw: Sql, kind: RawKind, dialect: Dialect) -> Sql:
    """Return the declared text that a raw value equals, else its replacement."""
    value = _as_declared(raw, kind, domain, dialect)
    branches: list[tuple[Sql, Sql]] = [(_is_among(value, domain.values, dialect), value)] if domain.values else []
    return case([*branches, (is_null(raw), _null_replacement(column))], fallback(column))
