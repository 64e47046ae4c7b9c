"""Read single values of a description: texts, names, numbers and instants; errors say what to write."""

from __future__ import annotations

import re
from datetime import date, datetime, time, timedelta, tzinfo
from fractions import Fraction

from dither.schema.model import Precision, fits_int64
from dither.schema.spec import NAME_PATTERN, FieldSpec
from dither.schema.yaml_nodes import Node, YamlText, excerpt

LARGEST_NUMBER = 2**53
SMALLEST_STEP = Fraction(1, 10**15)
EPOCH = datetime(1970, 1, 1)
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
_MAX_TEXT_LENGTH = 10_000


def text(node: Node, subject: str) -> str:
    """Read a printable text of bounded length."""
    if not isinstance(node, YamlText) or is_null(node):
        node.place.refuse(f"{subject} is empty or not a text; write one (docs/datasets.md lists what it may be)")
    if len(node.value) > _MAX_TEXT_LENGTH or not node.value.isprintable():
        node.place.refuse(f"{subject} must be at most {_MAX_TEXT_LENGTH:,} printable characters")
    return node.value


def name(node: Node, subject: str) -> str:
    """Read a name that is a valid identifier in every engine."""
    value = text(node, subject)
    if not NAME.fullmatch(value):
        node.place.refuse(f"{subject} must be at most 63 letters, digits and _, a letter first; got {excerpt(value)}")
    return value


def delimiter(node: Node, subject: str) -> str:
    """Read the character that separates the fields of a line; unlike other texts it may be a tab."""
    value = node.value if isinstance(node, YamlText) else ""
    if len(value) != 1 or value == '"' or not (value.isprintable() or value == "\t"):
        node.place.refuse(f'{subject} must be one character such as ; or a tab, "\\t", and no quote')
    return value


def choice(node: Node, entry: FieldSpec, subject: str) -> str:
    """Read one of the texts that a field allows."""
    value = text(node, subject)
    if entry.choices and value not in entry.choices:
        node.place.refuse(f"{subject} must be one of {', '.join(entry.choices)}; got {excerpt(value)}")
    return value


def boolean(node: Node, subject: str) -> bool:
    """Read true or false."""
    if not isinstance(node, YamlText) or node.value not in ("true", "false"):
        node.place.refuse(f"{subject} must be true or false")
    return node.value == "true"


def number(node: Node, subject: str) -> Fraction:
    """Read an exact rational such as 3, 0.01, 1e-6 or 1/3."""
    if not isinstance(node, YamlText) or not _NUMBER.fullmatch(node.value):
        received = f"; got {excerpt(node.value)}" if isinstance(node, YamlText) else ""
        node.place.refuse(f"{subject} must be a number such as 3, 0.01, 1e-6 or 1/3{received}")
    try:
        return Fraction(node.value)
    except ZeroDivisionError:
        node.place.refuse(f"{subject} must be a number (its denominator is 0)")


def positive(node: Node, subject: str) -> Fraction:
    """Read a number above 0."""
    value = number(node, subject)
    if value <= 0:
        node.place.refuse(f"{subject} must be above 0; got {value}")
    return value


def multiple(node: Node, step: Fraction, subject: str) -> Fraction:
    """Read a multiple of `step` that is small enough for exact arithmetic in every engine."""
    value = number(node, subject)
    if abs(value / step) > LARGEST_NUMBER:
        node.place.refuse(f"{subject} must be at most 2^53 steps from 0; use smaller bounds or a larger step")
    if not fits_int64(abs(value), step):
        node.place.refuse(f"{subject} is too large for a step of {step}: it must be below 2^62/{step.denominator}")
    if value % step:
        node.place.refuse(f"{subject} must be a multiple of the step {step}; got {value}")
    return value


def instant(node: Node, zone: tzinfo, precision: Precision, subject: str, *, last: bool = False) -> int:
    """Read a date or time as microseconds since 1970 on the wall clock of `zone`, floored to `precision`.

    With `last`, a date without a time means the end of that day.
    """
    value = text(node, subject)
    try:
        moment = _moment(value, zone, last=last and precision != "day")
        micros = (moment - EPOCH) // timedelta(microseconds=1)
    except (ValueError, OverflowError):
        node.place.refuse(
            f"{subject} must be a date or time such as 2024-01-31 or 2024-01-31T12:00:00Z; got {excerpt(value)}"
        )
    return micros - micros % MICROSECONDS[precision]


def _moment(value: str, zone: tzinfo, *, last: bool) -> datetime:
    """Parse a date or time; a time with an offset is moved to the wall clock of `zone`."""
    if re.fullmatch(r"\d{4}-\d{2}-\d{2}", value):
        return datetime.combine(date.fromisoformat(value), time.max if last else time.min)
    moment = datetime.fromisoformat(value)
    return moment.astimezone(zone).replace(tzinfo=None) if moment.tzinfo else moment


def is_null(node: Node) -> bool:
    """Return True if the node is empty or an unquoted null."""
    return isinstance(node, YamlText) and not node.quoted and node.value in ("", "null", "~", "Null", "NULL")
