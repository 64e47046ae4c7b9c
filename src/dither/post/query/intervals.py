"""Dates moved by intervals: DATE '2020-01-31' - INTERVAL 3 MONTH, day + INTERVAL 7 DAY, and differences of dates."""

from __future__ import annotations

from fractions import Fraction

from sqlglot import exp

from dither.errors import Unsupported
from dither.plan import expressions as expr
from dither.plan.domains import PERIOD_LENGTHS, move_months
from dither.plan.expressions.core import Expr
from dither.plan.sql.scope import Scope
from dither.post.query.literals import literal_value, parse_number, sql_excerpt
from dither.schema import Moment, Number

MONTHS = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}
DAY = PERIOD_LENGTHS["day"]


def is_interval(node: exp.Expr) -> bool:
    """Return True for INTERVAL '3' DAY, perhaps in parentheses."""
    return isinstance(node.this if isinstance(node, exp.Paren) else node, exp.Interval)


def move_by(value: Expr, node: exp.Expr, sign: int) -> Expr:
    """Return a moment moved by an interval; a literal is moved at once."""
    interval = node.this if isinstance(node, exp.Paren) else node
    months, microseconds = _length(interval)
    months, microseconds = sign * months, sign * microseconds
    if isinstance(value, expr.Instant):
        return expr.Instant(move_months(value.microseconds, months) + microseconds)
    return expr.MovedMoment(value, months, microseconds)


def _length(node: exp.Expr) -> tuple[int, int]:
    """Return the months and microseconds of an interval."""
    unit = node.args.get("unit")
    name = unit.name.upper().removesuffix("S") if unit is not None else ""
    amount = node.this
    text = isinstance(amount, exp.Literal) and amount.is_string
    count = parse_number(str(amount.this).strip()) if text else literal_value(amount) if amount is not None else None
    known = name in MONTHS or name.lower() in PERIOD_LENGTHS
    if not known or not isinstance(count, Fraction) or count.denominator != 1:
        raise Unsupported(
            f"{sql_excerpt(node)}: an interval is a literal whole number of one unit, such as INTERVAL 3 MONTH; the "
            "units are SECOND, MINUTE, HOUR, DAY, WEEK, MONTH, QUARTER and YEAR"
        )
    if name in MONTHS:
        return int(count) * MONTHS[name], 0
    return 0, int(count) * PERIOD_LENGTHS[name.lower()]


def resolve_date_arithmetic(node: expr.Arithmetic, scope: Scope) -> Expr:
    """Read date - date as a number of days, and date + 7 as the date 7 days later, as SQL does."""
    left, right = node.left.domain(scope), node.right.domain(scope)
    match node.op, left, right:
        case "-", Moment(), Moment():
            if not _is_date(node.left, left) or not _is_date(node.right, right):
                raise Unsupported(
                    "the difference of two timestamps is an interval, which is not a number; write DATE_DIFF('hour', "
                    "start, end)"
                )
            return expr.DateDiff("day", node.right, node.left)
        case "+" | "-", Moment(), Number(lo=days, hi=other, step=step) if days == other and days % 1 == 0 and step:
            return expr.MovedMoment(node.left, 0, int(days) * DAY * (1 if node.op == "+" else -1))
        case _:
            return node


def _is_date(value: Expr, domain: Moment) -> bool:
    """Return True for a date: a moment at midnight."""
    return value.microseconds % DAY == 0 if isinstance(value, expr.Instant) else domain.precision == "day"
