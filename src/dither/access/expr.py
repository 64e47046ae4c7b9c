"""The scalar language: total functions of one row; bounds in, bounds out, SQL.

Nodes are frozen data, safe to decode from the wire by `BY_NAME`. A node never refers to a table: it is read in a
`Scope` (the domains of the columns around it), so `node.domain(scope)` and `node.sql(scope)` are pure functions of
the plan and the schema. Every node has a value for every record, inside `node.domain(scope)`.

How values are held: a Number is an integer `k` that stands for `k * step`; a Moment is an integer number of
microseconds of the dataset's wall clock; a Category or text key is text; a Boolean is a boolean; NULL is allowed
where the domain says `nullable`. There are no floats, except inside `Function` and `Power`, which round at once.

Meanings, the same on every engine: x / 0 and x % 0 are NULL; `/` and `%` go towards zero, `/` on a lattice of at most
a millionth of the operands' own; `round` takes halves away from zero; LEAST and GREATEST skip NULLs; AND, OR and NOT
are three-valued; text is compared by code points; weeks start on Monday; day of week 0 is Sunday; SQRT and LN of what they
are not defined for are NULL; EXP and POWER stop at 1e12.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from dither.schema import Every, Scalar

Part = Literal["year", "quarter", "month", "day", "hour", "minute", "second", "dayofweek", "dayofyear"]
Period = Literal["second", "minute", "hour"] | Every


class Expr(ABC):
    """A total function of one row."""


@dataclass(frozen=True)
class Column(Expr):
    """The value of a column of the relation below."""

    name: str


@dataclass(frozen=True)
class Constant(Expr):
    """A number, text, truth value or NULL written in the query."""

    value: Scalar


@dataclass(frozen=True)
class Instant(Expr):
    """A moment written in the query: microseconds since 1970 on the dataset's wall clock."""

    microseconds: int


@dataclass(frozen=True)
class Arithmetic(Expr):
    """Exact arithmetic on lattices; `/` and `%` go towards zero and give NULL where the divisor is 0."""

    op: Literal["+", "-", "*", "/", "%"]
    left: Expr
    right: Expr


@dataclass(frozen=True)
class Absolute(Expr):
    """The absolute value."""

    child: Expr


@dataclass(frozen=True)
class Rounded(Expr):
    """The multiple of `step` below, above or nearest: FLOOR, CEIL, ROUND(x) with step 1; ROUND(x, 2) with step 1/100."""

    how: Literal["floor", "ceil", "round"]
    child: Expr
    step: Fraction = Fraction(1)


@dataclass(frozen=True)
class Function(Expr):
    """SQRT, LN, EXP or LOGISTIC (1 / (1 + exp(-x))), rounded to `step`; NULL where not defined; at most 1e12."""

    name: Literal["sqrt", "ln", "exp", "logistic"]
    child: Expr
    step: Fraction = Fraction(1, 10**6)


@dataclass(frozen=True)
class Power(Expr):
    """POWER(child, exponent) for a public exponent, rounded to `step`; NULL where not defined; at most 1e12."""

    child: Expr
    exponent: Fraction
    step: Fraction = Fraction(1, 10**6)


@dataclass(frozen=True)
class Clamp(Expr):
    """The nearest value between two public numbers: the user's own CLAMP(x, lo, hi)."""

    child: Expr
    lo: Fraction
    hi: Fraction


@dataclass(frozen=True)
class Rescale(Expr):
    """The declared range of `child` stretched to the integers from -resolution to resolution (nearest, halves up)."""

    child: Expr
    resolution: int


@dataclass(frozen=True)
class Extreme(Expr):
    """LEAST or GREATEST of several numbers or moments, NULLs skipped."""

    which: Literal["least", "greatest"]
    children: tuple[Expr, ...]


@dataclass(frozen=True)
class Compare(Expr):
    """A comparison of two values of the same kind; identifiers and references allow = and <> only."""

    op: Literal["=", "<>", "<", "<=", ">", ">="]
    left: Expr
    right: Expr


@dataclass(frozen=True)
class And(Expr):
    """All of them (three-valued)."""

    children: tuple[Expr, ...]


@dataclass(frozen=True)
class Or(Expr):
    """Any of them (three-valued)."""

    children: tuple[Expr, ...]


@dataclass(frozen=True)
class Not(Expr):
    """Negation (three-valued)."""

    child: Expr


@dataclass(frozen=True)
class IsNull(Expr):
    """Whether the value is NULL; never NULL itself."""

    child: Expr


@dataclass(frozen=True)
class In(Expr):
    """Whether the value is among public ones (no NULLs; moments as microseconds)."""

    child: Expr
    values: tuple[Scalar, ...]


@dataclass(frozen=True)
class Case(Expr):
    """The value of the first branch (condition, value) whose condition is true, else the default."""

    branches: tuple[tuple[Expr, Expr], ...]
    default: Expr


@dataclass(frozen=True)
class Coalesce(Expr):
    """The first value that is not NULL."""

    children: tuple[Expr, ...]


@dataclass(frozen=True)
class NullIf(Expr):
    """NULL where left = right, else left."""

    left: Expr
    right: Expr


@dataclass(frozen=True)
class AsNumber(Expr):
    """1 for true, 0 for false."""

    child: Expr


@dataclass(frozen=True)
class DatePart(Expr):
    """A part of a moment, as an integer."""

    part: Part
    child: Expr


@dataclass(frozen=True)
class DateTrunc(Expr):
    """The start of the period that a moment lies in, as a moment; its domain can be listed, so it can be a key."""

    every: Period
    child: Expr


@dataclass(frozen=True)
class DateDiff(Expr):
    """How many starts of a period lie after `start` and up to `end` (negative the other way round)."""

    every: Period
    start: Expr
    end: Expr


@dataclass(frozen=True)
class Bucket(Expr):
    """How many of the public, ascending `edges` are at most the value: 0 to len(edges)."""

    child: Expr
    edges: tuple[Fraction, ...]


@dataclass(frozen=True)
class TextCase(Expr):
    """LOWER or UPPER of a declared category."""

    which: Literal["lower", "upper"]
    child: Expr


@dataclass(frozen=True)
class TextMatch(Expr):
    """Whether a declared category starts with, ends with or contains a public text."""

    how: Literal["prefix", "suffix", "contains"]
    child: Expr
    text: str


def between(child: Expr, lo: Expr, hi: Expr) -> Expr:
    """SQL's BETWEEN, both ends included."""
    return And((Compare(">=", child, lo), Compare("<=", child, hi)))


BY_NAME: dict[str, type[Expr]] = {
    node.__name__: node
    for node in (
        Column, Constant, Instant, Arithmetic, Absolute, Rounded, Function, Power, Clamp, Rescale, Extreme, Compare, And,
        Or, Not, IsNull, In, Case, Coalesce, NullIf, AsNumber, DatePart, DateTrunc, DateDiff, Bucket, TextCase, TextMatch,
    )
}  # fmt: skip
