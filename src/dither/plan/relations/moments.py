"""Read dates and timestamps on the dataset's wall clock: one without an offset is there already, an instant is moved.

Texts and instants of a zone are converted in subqueries of their own, so that the conversion appears once in the
statement however often cleaning refers to the result. The subqueries add a column `name$`, which no schema declares.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from functools import cache
from itertools import pairwise
from zoneinfo import ZoneInfo

from sqlglot import exp

from dither.plan.domains import DAY, EPOCH
from dither.plan.sql.builders import (
    Sql,
    add,
    add_all,
    binary,
    call,
    case,
    cast,
    detach,
    integer,
    literal,
    null,
    select,
    string,
    sub,
    times,
)
from dither.plan.sql.dialect import Dialect, RawKind
from dither.plan.sql.statement import SqlStatement
from dither.schema import Column, Moment

FIRST_DAY_END, LAST_MOMENT = -62_135_510_400_000_000, 253_402_300_799_999_999
BEFORE_OFFSET = ":[0-9.]+ ?"  # a colon tells the sign of an offset from the hyphens of a date


def source_with_moments(statement: SqlStatement, table: str) -> Sql:
    """Return a table's source, with a column `name$` on the wall clock for each moment that must be converted."""
    source, zone = statement.sources[table], statement.ctx.dataset.timezone
    wanted = {
        name: (column.domain, source.kinds[name])
        for name, column in statement.ctx.table(table).columns.items()
        if isinstance(column.domain, Moment) and not source.is_prepared and is_converted(source.kinds[name], zone)
    }
    if not wanted:
        return source.source.copy()
    parsed = {name: _instant(_raw(name), kind, statement.dialect) for name, (_, kind) in wanted.items()}
    if zone == "UTC":
        return _with_columns(statement, source.source.copy(), {f"{name}$": value for name, value in parsed.items()})
    instants = _with_columns(statement, source.source.copy(), {f"{name}$$": value for name, value in parsed.items()})
    clocks = {
        f"{name}$": _on_wall_clock(name, domain, kind, zone, statement.dialect)
        for name, (domain, kind) in wanted.items()
    }
    return _with_columns(statement, instants, clocks)


def is_converted(kind: RawKind, zone: str) -> bool:
    """Tell whether moments stored as this kind are converted in a subquery: texts, and instants of another zone."""
    return kind == "text" or (kind in ("instant", "integer") and zone != "UTC")


def wall_clock(column: Column, raw: Sql, kind: RawKind, zone: str, dialect: Dialect) -> Sql:
    """Return the microseconds of a stored moment on the wall clock; NULL if it cannot be read."""
    return _raw(f"{column.name}$") if is_converted(kind, zone) else _instant(raw, kind, dialect)


def _raw(name: str) -> Sql:
    return exp.column(name, quoted=True)


def _with_columns(statement: SqlStatement, source: Sql, columns: Mapping[str, Sql]) -> Sql:
    """Add a subquery with more columns than its source."""
    added = [exp.alias_(value, name, quoted=True) for name, value in columns.items()]
    return statement.add_subquery(select(exp.Star(), *added).from_(source, copy=False))


def _instant(raw: Sql, kind: RawKind, dialect: Dialect) -> Sql:
    """Convert a stored moment to microseconds since 1970: in UTC if it has a zone or offset, else as written."""
    match kind:
        case "timestamp" | "instant":
            return dialect.to_microseconds(raw)
        case "date":
            return dialect.to_microseconds(dialect.date_to_timestamp(raw))
        case "integer":
            return dialect.narrow_integer(raw)
        case "text":
            return _parse_text(raw, dialect)
        case _:
            return null("bigint")


def _parse_text(raw: Sql, dialect: Dialect) -> Sql:
    """Parse a text; every part is cut out by a pattern, so that no cast can fail and engines read the same digits."""
    whole = dialect.to_microseconds(dialect.parse_timestamp(raw))
    fraction = _integer_at(_pad(dialect.extract(raw, "[.]([0-9]{1,6})")), 1, 6)
    offset = _pad(call("REPLACE", dialect.extract(raw, f"{BEFORE_OFFSET}([-+][0-9:]+)$"), string(":"), string("")))
    seconds = add_all([times(_integer_at(offset, start, 2), unit) for start, unit in ((2, 3600), (4, 60), (6, 1))])
    local, shift = add(whole, fraction), times(seconds, 1_000_000)
    return case([(dialect.matches(raw, f"{BEFORE_OFFSET}-[0-9:]+$"), add(local, shift))], sub(local, shift))


def _pad(digits: Sql) -> Sql:
    """Append zeros, so that each part of a shorter spelling is 0."""
    return exp.Concat(expressions=[digits, string("000000")])


def _integer_at(text: Sql, start: int, length: int) -> Sql:
    """Read some digits of a text, counted from 1."""
    return cast(exp.Substring(this=detach(text), start=literal(start), length=literal(length)), "bigint")


def _on_wall_clock(name: str, domain: Moment, kind: RawKind, zone: str, dialect: Dialect) -> Sql:
    """Move an instant to the wall clock; one a day beyond the bounds stays beyond them. Naive texts are there."""
    value, first, last = _raw(f"{name}$$"), domain.lo - DAY, domain.hi + DAY
    shifts = zone_offsets(first, last, zone)
    branches: list[tuple[Sql, Sql]] = [
        (binary(exp.LT, value, integer(first)), integer(first)),
        (binary(exp.GT, value, integer(last)), integer(last)),
        *((binary(exp.LT, value, integer(end)), add(value, shift)) for (_, shift), (end, _) in pairwise(shifts)),
    ]
    moved = case(branches, add(value, shifts[-1][1]))
    if kind != "text":
        return moved
    return case([(dialect.matches(_raw(name), f"(Z|UTC|{BEFORE_OFFSET}[-+][0-9:]+)$"), moved)], value)


@cache
def zone_offsets(lo: int, hi: int, zone: str) -> tuple[tuple[int, int], ...]:
    """List the UTC offsets of a zone between two instants, as (first microsecond, microseconds to add)."""
    zone_info = ZoneInfo(zone)
    transitions = [(lo, _offset_at(lo, zone_info))]
    for day in range(lo, hi + DAY, DAY):
        end = min(day + DAY, hi)
        if _offset_at(end, zone_info) != transitions[-1][1]:
            transitions.append(
                (_offset_change(transitions[-1][0] if day == lo else day, end, zone_info), _offset_at(end, zone_info))
            )
    return tuple(transitions)


def _offset_at(moment: int, zone_info: ZoneInfo) -> int:
    """Return the zone's UTC offset at an instant, in microseconds."""
    # ZoneInfo cannot convert the calendar's first day and last year: there, use the offset of an instant nearby.
    utc = EPOCH + timedelta(microseconds=min(max(moment, FIRST_DAY_END), LAST_MOMENT))
    shift = (
        zone_info.fromutc(utc.replace(tzinfo=zone_info)).utcoffset() if utc.year < 9999 else zone_info.utcoffset(utc)
    )
    return (shift or timedelta()) // timedelta(microseconds=1)


def _offset_change(before: int, after: int, zone_info: ZoneInfo) -> int:
    """Find, by bisection, the first microsecond in (before, after] whose offset is that of `after`."""
    target_offset = _offset_at(after, zone_info)
    while after - before > 1:
        middle = (before + after) // 2
        before, after = (before, middle) if _offset_at(middle, zone_info) == target_offset else (middle, after)
    return after
