"""Single values of a description: names, numbers, instants; each refused with the line and what to write."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from fractions import Fraction

from dither.schema.model import Precision, fits_lattice
from dither.schema.spec import NAME_PATTERN, FieldSpec
from dither.schema.yaml_nodes import Node, YamlText, excerpt

LARGEST_NUMBER = 2**53
FINEST = Fraction(1, 10**15)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECONDS: dict[Precision, int] = {
    "day": 86_400_000_000,
    "hour": 3_600_000_000,
    "minute": 60_000_000,
    "second": 1_000_000,
    "millisecond": 1_000,
    "microsecond": 1,
}

NAME = re.compile(NAME_PATTERN)
_NUMBER = re.compile(r"[+-]?\d{1,30}(\.\d{1,30})?([eE][+-]?\d{1,2})?|[+-]?\d{1,30}/\d{1,30}")
_LONGEST_TEXT = 10_000


def text(node: Node, what: str) -> str:
    """A text, as written."""
    if not isinstance(node, YamlText) or is_null(node):
        node.place.refuse(f"{what} must be a text")
    if len(node.value) > _LONGEST_TEXT or not node.value.isprintable():
        node.place.refuse(f"{what} must be at most {_LONGEST_TEXT:,} printable characters")
    return node.value


def name(node: Node, what: str) -> str:
    """A name that is safe in every engine."""
    value = text(node, what)
    if not NAME.fullmatch(value):
        node.place.refuse(f"{what} must be letters, digits and _, a letter first, at most 63; got {excerpt(value)}")
    return value


def choice(node: Node, entry: FieldSpec, what: str) -> str:
    """One of the texts that a field allows."""
    value = text(node, what)
    if entry.choices and value not in entry.choices:
        node.place.refuse(f"{what} must be one of {', '.join(entry.choices)}; got {excerpt(value)}")
    return value


def boolean(node: Node, what: str) -> bool:
    """true or false."""
    if not isinstance(node, YamlText) or node.value not in ("true", "false"):
        node.place.refuse(f"{what} must be true or false")
    return node.value == "true"


def number(node: Node, what: str) -> Fraction:
    """An exact rational: 3, 0.01, 1e-6 or 1/3."""
    if not isinstance(node, YamlText) or not _NUMBER.fullmatch(node.value):
        came = f"; got {excerpt(node.value)}" if isinstance(node, YamlText) else ""
        node.place.refuse(f"{what} must be a number such as 3, 0.01, 1e-6 or 1/3{came}")
    try:
        return Fraction(node.value)
    except ZeroDivisionError:
        node.place.refuse(f"{what} must be a number; nothing is divided by 0")


def positive(node: Node, what: str) -> Fraction:
    """A number above zero."""
    value = number(node, what)
    if value <= 0:
        node.place.refuse(f"{what} must be above 0; got {value}")
    return value


def multiple(node: Node, step: Fraction, what: str) -> Fraction:
    """A number on the lattice of `step`, small enough for exact arithmetic in every engine."""
    value = number(node, what)
    if abs(value / step) > LARGEST_NUMBER:
        node.place.refuse(f"{what} must be at most 2^53 steps from 0")
    if not fits_lattice(abs(value), step):
        node.place.refuse(f"{what} is too large for a step of {step}: below 2^62, please")
    if value % step:
        node.place.refuse(f"{what} must be a multiple of the step {step}; got {value}")
    return value


def instant(node: Node, zone: tzinfo, precision: Precision, what: str, *, last: bool = False) -> int:
    """Microseconds since 1970 in UTC, floored to the precision; a date alone as `last` means the end of that day."""
    value = text(node, what)
    try:
        moment = _moment(value, zone, last=last and precision != "day")
        micros = (moment - EPOCH) // timedelta(microseconds=1)
    except (ValueError, OverflowError):
        node.place.refuse(
            f"{what} must be a date or time such as 2024-01-31 or 2024-01-31T12:00:00Z; got {excerpt(value)}"
        )
    return micros - micros % MICROSECONDS[precision]


def _moment(value: str, zone: tzinfo, *, last: bool) -> datetime:
    if re.fullmatch(r"\d{4}-\d{2}-\d{2}", value):
        day = date.fromisoformat(value)
        return datetime.combine(day, time.max if last else time.min, tzinfo=zone)
    moment = datetime.fromisoformat(value)
    return moment if moment.tzinfo else moment.replace(tzinfo=zone)


def is_null(node: Node) -> bool:
    """Whether nothing was written."""
    return isinstance(node, YamlText) and not node.quoted and node.value in ("", "null", "~", "Null", "NULL")
