"""Parse the literals of a query: numbers, texts, dates."""

from __future__ import annotations

from datetime import UTC, datetime
from fractions import Fraction

from sqlglot import exp

from dither.errors import InvalidParameter, InvalidQuery, Unsupported
from dither.loss import rational
from dither.plan import expressions as expr

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


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
    except InvalidParameter as problem:
        raise InvalidQuery(str(problem)) from None


def is_literal(node: exp.Expr) -> bool:
    """Return True for a literal, perhaps signed or in parentheses."""
    if isinstance(node, exp.Paren | exp.Neg):
        return is_literal(node.this)
    return isinstance(node, exp.Literal | exp.Boolean | exp.Null)


def sql_excerpt(node: exp.Expr) -> str:
    """Write a node as SQL, short enough for a message."""
    text = node.sql(dialect="duckdb")
    return text if len(text) <= 60 else text[:57] + "..."


def parse_instant(text: str) -> expr.Instant:
    """Parse a date or timestamp; without a time zone it is in UTC."""
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidQuery(f"{text[:40]!r} is not a date; write it as '2020-01-31' or '2020-01-31 12:00:00'") from None
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    return expr.Instant((moment - EPOCH) // datetime.resolution)
