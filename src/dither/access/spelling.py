"""How SQL is spelled: builders shared by all engines, and the few spellings in which engines differ.

`Spelling` is written for DuckDB; another engine subclasses it and overrides what its dialect says otherwise. Every
method takes and returns sqlglot expressions: nothing is pasted together as text.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Literal

from sqlglot import exp

from dither.errors import Unsupported

Sql = exp.Expr
RawKind = Literal["integer", "decimal", "float", "text", "boolean", "date", "timestamp", "other"]

MODULUS = (1 << 31) - 1
NUMBER = "^[-+]?[0-9]{1,18}([.][0-9]{1,18})?([eE][-+]?[0-9]{1,2})?$"
# Only days that exist, in the years 1 to 9999, and no 24:00: engines differ about the rest, or fail on it.
YEAR = "(000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
LEAP = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
MONTHS = "(0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8])"
TIME = "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]([.][0-9]{1,6})?"
MOMENT = f"^({YEAR}-({MONTHS})|{LEAP}-02-29)([ T]{TIME})?$"


def whole(value: int) -> Sql:
    """A 64-bit integer constant; refused where it is none, before an engine could fail on it."""
    return cast(plain(value), "bigint")


def plain(value: int) -> Sql:
    """An integer constant that stands beside a 64-bit operand."""
    if not fits_64_bits(value):
        raise Unsupported("a number in the plan does not fit into 64 bits")
    return exp.Literal.number(value)


def fits_64_bits(value: int) -> bool:
    """Whether every engine can hold an integer."""
    return -(1 << 63) <= value < 1 << 63


def double(value: int) -> Sql:
    """An integer as a double constant."""
    return cast(exp.Literal.number(value), "double")


def text(value: str) -> Sql:
    """A text constant, escaped by the generator."""
    return exp.Literal.string(value)


def null(kind: str) -> Sql:
    """A typed NULL."""
    return cast(exp.null(), kind)


def own(node: Sql) -> Sql:
    """A node that may become part of another: itself while it is nobody's, else a copy."""
    return node if node.parent is None else node.copy()


TYPES = {name: exp.DataType.build(name) for name in ("bigint", "double", "varchar", "boolean", "timestamp", "hugeint")}


def cast(node: Sql, kind: str) -> Sql:
    """CAST(node AS kind)."""
    return exp.Cast(this=own(node), to=TYPES[kind].copy())


def wrap(node: Sql) -> Sql:
    """A node that can stand as an operand."""
    atomic = isinstance(node, exp.Column | exp.Cast | exp.Func | exp.Case | exp.Paren | exp.Null | exp.Boolean) or (
        isinstance(node, exp.Literal) and not node.is_string
    )
    return own(node) if atomic else exp.Paren(this=own(node))


def binary(kind: type[exp.Binary], left: Sql, right: Sql) -> Sql:
    """An infix operator with its operands in parentheses where needed."""
    first = wrap(left)
    return kind(this=first, expression=wrap(right) if right is not first else first.copy())


def add(left: Sql, right: Sql | int) -> Sql:
    """The sum; adding the constant 0 leaves the left side alone."""
    if isinstance(right, int):
        return left if right == 0 else binary(exp.Add, left, plain(right)) if right > 0 else sub(left, plain(-right))
    return binary(exp.Add, left, right)


def sub(left: Sql, right: Sql) -> Sql:
    """The difference."""
    return binary(exp.Sub, left, right)


def times(left: Sql, right: Sql | int) -> Sql:
    """The product; multiplying by the constant 1 leaves the left side alone."""
    if isinstance(right, int):
        return left if right == 1 else binary(exp.Mul, left, plain(right))
    return binary(exp.Mul, left, right)


def both(conditions: Sequence[Sql]) -> Sql:
    """The conjunction."""
    return exp.and_(*map(own, conditions), copy=False) if conditions else exp.true()


def case(branches: Sequence[tuple[Sql, Sql]], default: Sql | None = None) -> Sql:
    """CASE WHEN ... THEN ... ELSE ... END; without branches, the default."""
    if not branches and default is not None:
        return own(default)
    result = exp.Case(ifs=[exp.If(this=own(when), true=own(then)) for when, then in branches])
    if default is not None:
        result.set("default", own(default))
    return result


def call(name: str, *arguments: Sql) -> Sql:
    """A function of SQL known to sqlglot by that name."""
    return exp.func(name, *map(own, arguments), copy=False)


def select(*columns: Sql) -> exp.Select:
    """SELECT of these columns; builders on it may change it in place (copy=False), since nobody else has it yet."""
    return exp.Select(expressions=[own(column) for column in columns])


def within(value: Sql, lo: int, hi: int) -> Sql:
    """The nearest integer from lo to hi; the value must not be NULL."""
    return call("LEAST", call("GREATEST", value, whole(lo)), whole(hi))


def rows_count() -> Sql:
    """COUNT(*)."""
    return exp.Count(this=exp.Star())


class Spelling:
    """DuckDB's way; other engines override."""

    dialect = "duckdb"

    def render(self, statement: Sql) -> str:
        """The SQL text."""
        return statement.sql(dialect=self.dialect, copy=False)

    def quotient(self, left: Sql, right: Sql) -> Sql:
        """Integer division towards zero; NULL by NULL."""
        return binary(exp.IntDiv, left, right)

    def remainder(self, left: Sql, right: Sql) -> Sql:
        """The remainder of `quotient`, with the sign of the left side."""
        return binary(exp.Mod, left, right)

    def wide(self, value: Sql) -> Sql:
        """The integer in a type whose sums cannot overflow (at least 38 digits)."""
        return cast(value, "hugeint")

    def total(self, value: Sql) -> Sql:
        """SUM over rows in a type that cannot overflow; DuckDB sums 64 bits in 128."""
        return exp.Sum(this=own(value))

    def instant(self, microseconds: Sql) -> Sql:
        """Microseconds since 1970 as a timestamp without a zone."""
        return exp.Anonymous(this="make_timestamp", expressions=[own(microseconds)])

    def microseconds(self, moment: Sql) -> Sql:
        """A timestamp or date as microseconds since 1970; NULL for infinities and where microseconds do not reach."""
        near = exp.TryCast(this=own(moment), to=exp.DataType.build("timestamp"))
        return exp.Anonymous(this="epoch_us", expressions=[near])

    def fingerprint(self, value: Sql) -> Sql:
        """The first 8 hexadecimal digits of the md5 of a text in UTF-8, as an integer below 2^32."""
        digits = exp.Substring(this=exp.MD5(this=own(value)), start=plain(1), length=plain(8))
        return cast(exp.Concat(expressions=[text("0x"), digits]), "bigint")

    def matches(self, value: Sql, pattern: str) -> Sql:
        """Whether a text has a form of ours; no pattern comes from an analyst."""
        return exp.RegexpLike(this=own(value), expression=text(pattern))

    def is_nan(self, value: Sql) -> Sql:
        """Whether a double is NaN."""
        return exp.Anonymous(this="isnan", expressions=[own(value)])

    def number_of_text(self, value: Sql) -> Sql:
        """The double that a text spells, or NULL; never fails."""
        return case([(self.matches(value, NUMBER), exp.TryCast(this=own(value), to=exp.DataType.build("double")))])

    def boolean_of_text(self, value: Sql) -> Sql:
        """The truth value that a text spells, or NULL; never fails."""
        lowered = exp.Lower(this=own(value))
        truths, lies = ("true", "t", "yes", "1"), ("false", "f", "no", "0")
        return case(
            [
                (exp.In(this=lowered, expressions=[text(word) for word in truths]), exp.true()),
                (exp.In(this=own(lowered), expressions=[text(word) for word in lies]), exp.false()),
            ]
        )

    def moment_of_text(self, value: Sql) -> Sql:
        """The timestamp that a text spells, or NULL; never fails."""
        return case([(self.matches(value, MOMENT), exp.TryCast(this=own(value), to=exp.DataType.build("timestamp")))])

    def moment_of_date(self, value: Sql) -> Sql:
        """A date as a timestamp, NULL where the calendar of timestamps does not reach; never fails."""
        return exp.TryCast(this=own(value), to=exp.DataType.build("timestamp"))

    def integer_of_text(self, value: Sql) -> Sql:
        """The 64-bit integer whose usual spelling is this text, or NULL; never fails."""
        number = exp.TryCast(this=own(value), to=exp.DataType.build("bigint"))
        spelled = binary(exp.EQ, cast(number, "varchar"), value)
        return case([(spelled, number)])

    def integer_of_wide(self, value: Sql) -> Sql:
        """An integer of any width as 64 bits, or NULL where it does not fit; never fails."""
        return exp.TryCast(this=own(value), to=exp.DataType.build("bigint"))


def mixed(spelling: Spelling, parts: Sequence[Sql], seed: int) -> Sql:
    """An integer below 2^62 made of integers of at most 34 bits, the same on every engine; `spread` before comparing.

    Two linear combinations modulo the prime 2^31 - 1, with coefficients from the seed: one remainder for every seven
    parts. No sum of products passes 2^63, so no engine overflows, and none needs a hash function of its own.
    """
    high, low = (_residue(spelling, parts, f"{seed}:{half}") for half in ("high", "low"))
    return add(times(high, 1 << 31), low)


def _residue(spelling: Spelling, parts: Sequence[Sql], seed: str) -> Sql:
    state: Sql = whole(coefficient(seed, -1))
    for start in range(0, max(len(parts), 1), 7):
        for index, part in enumerate(parts[start : start + 7], start):
            state = add(state, times(part, coefficient(seed, index)))
        state = spelling.remainder(state, plain(MODULUS))
        if start + 7 < len(parts):
            state = times(state, coefficient(seed, -2))
    return state


def coefficient(seed: str, index: int) -> int:
    """A pseudo-random integer from 1 to 2^25."""
    return 1 + int.from_bytes(sha256(f"{seed}:{index}".encode()).digest()[:4]) % (1 << 25)


def spread(spelling: Spelling, order: Sql) -> Sql:
    """What rows are sorted by: the high half h of an order as h^5 modulo 2^31 - 1, then the low half.

    x -> x^5 permutes the residues (5 does not divide 2^31 - 2). Without it the orders of two rows would differ by the
    same amount for every unit, and one kind of row would come first more often than another.
    """
    high = spelling.quotient(order, plain(1 << 31))
    square = spelling.remainder(times(high, high), plain(MODULUS))
    fourth = spelling.remainder(times(square, square), plain(MODULUS))
    fifth = spelling.remainder(times(fourth, high), plain(MODULUS))
    return add(times(fifth, 1 << 31), spelling.remainder(order, plain(1 << 31)))
