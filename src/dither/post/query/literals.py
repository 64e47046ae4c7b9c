"""Parse the literals of a query: numbers, texts, dates."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta
from fractions import Fraction
from zoneinfo import ZoneInfo

from sqlglot import ErrorLevel, exp

from dither.errors import InvalidParameter, InvalidQuery, Unsupported
from dither.loss import rational
from dither.plan import expressions as expr

EPOCH = datetime(1970, 1, 1)


def literal_value(node: exp.Expr) -> Fraction | str | bool | None:
    """Return the value of a literal, which may have a sign in front of it."""
    match node:
        case exp.Paren():
            return literal_value(node.this)
        case exp.Neg():
            value = literal_value(node.this)
            if isinstance(value, Fraction):
                return -value
        case exp.Literal():
            return str(node.this) if node.is_string else parse_number(node.this)
        case exp.Boolean():
            return bool(node.this)
        case exp.Null():
            return None
        case _:
            pass
    raise Unsupported(f"{sql_excerpt(node)} must be a literal: a number, a text, TRUE, FALSE or NULL")


def literal_integer(node: exp.Expr | None) -> int | None:
    """Return the value of a literal integer, or None if the node is something else."""
    value = literal_value(node) if node is not None and is_literal(node) else None
    return int(value) if isinstance(value, Fraction) and value.denominator == 1 else None


def parse_number(text: str) -> Fraction:
    """Parse a number as an exact rational."""
    try:
        return rational(text, "number")
    except InvalidParameter:
        raise InvalidQuery(
            f"the number {text[:40]} has too many digits; a number in a query has at most 60 before and after its point"
        ) from None


def is_literal(node: exp.Expr) -> bool:
    """Return True for a literal, perhaps signed or in parentheses."""
    if isinstance(node, exp.Paren | exp.Neg):
        return is_literal(node.this)
    return isinstance(node, exp.Literal | exp.Boolean | exp.Null)


def sql_text(node: exp.Expr) -> str:
    """Write a node as SQL; what DuckDB lacks is written as it came, without a warning."""
    return node.sql(dialect="duckdb", unsupported_level=ErrorLevel.IGNORE)


def sql_excerpt(node: exp.Expr) -> str:
    """Write a node as SQL, short enough for a message."""
    text = sql_text(node)
    return text if len(text) <= 60 else text[:57] + "..."


def parse_instant(text: str, zone: str) -> expr.Instant:
    """Parse a date or timestamp; one with an offset is moved to the wall clock of `zone`, any other is there."""
    try:
        moment = datetime.fromisoformat(text.strip())
        moment = moment.astimezone(ZoneInfo(zone)).replace(tzinfo=None) if moment.tzinfo else moment
    except (ValueError, OverflowError):
        raise InvalidQuery(f"{text[:40]!r} is not a date; write it as '2020-01-31' or '2020-01-31 12:00:00'") from None
    return expr.Instant((moment - EPOCH) // datetime.resolution)


def move_to_wall_clock(parsed: exp.Expr, zone: str) -> None:
    """Rewrite, in place, each date and timestamp literal with an offset as a reading of the wall clock of `zone`."""
    for node in parsed.find_all(exp.Cast):
        text = node.this
        if node.to.this in exp.DataType.TEMPORAL_TYPES and isinstance(text, exp.Literal) and text.is_string:
            with suppress(InvalidQuery, InvalidParameter):  # the translation refuses it, if it is reached
                moment = EPOCH + timedelta(microseconds=parse_instant(str(text.this), zone).microseconds)
                text.set("this", moment.isoformat(" "))
