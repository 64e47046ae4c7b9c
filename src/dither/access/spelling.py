"""How SQL is spelled: builders shared by all engines, and the few spellings in which engines differ.

`Spelling` is written for DuckDB; another engine subclasses it and overrides what its dialect says otherwise. Every
method takes and returns sqlglot expressions: nothing is pasted together as text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

from sqlglot import exp

from dither.errors import Unsupported
from dither.schema import Category, Domain

Sql = exp.Expr
RawKind = Literal["integer", "decimal", "float", "text", "boolean", "date", "timestamp", "other"]

# A prime below 2^31 with which cubing permutes the residues, and the largest prime below 2^40.
MODULUS = (1 << 31) - 69
FOLD = (1 << 40) - 87
LOW_BITS = (1 << 31) - 1
MIXED_BITS = 62
FEW_VALUES = 32
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


TYPES = {
    "bigint": exp.DType.BIGINT,
    "double": exp.DType.DOUBLE,
    "varchar": exp.DType.VARCHAR,
    "boolean": exp.DType.BOOLEAN,
    "timestamp": exp.DType.TIMESTAMP,
    "hugeint": exp.DType.INT128,
}


def cast(node: Sql, kind: str) -> Sql:
    """CAST(node AS kind)."""
    return exp.Cast(this=own(node), to=exp.DataType(this=TYPES[kind]))


def try_cast(node: Sql, kind: str) -> Sql:
    """The cast, NULL where it is not possible."""
    return exp.TryCast(this=own(node), to=exp.DataType(this=TYPES[kind]))


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


def added(terms: Sequence[Sql]) -> Sql:
    """The sum of terms, at least one; nested no deeper than it must be."""
    if len(terms) == 1:
        return terms[0]
    middle = (len(terms) + 1) // 2
    return binary(exp.Add, added(terms[:middle]), added(terms[middle:]))


@dataclass(frozen=True)
class Extent:
    """How large a statement is: its nodes, how many of them stand inside each other, and the columns of a SELECT."""

    nodes: int
    depth: int
    columns: int


def extent(tree: Sql) -> Extent:
    """A statement's extent at its largest; a chain of ANDs or ORs is written and read as one."""
    nodes = depth = columns = 0
    left = [(tree, 1)]
    while left:
        node, level = left.pop()
        nodes, depth = nodes + 1, max(depth, level)
        if isinstance(node, exp.Select):
            columns = max(columns, len(node.expressions))
        chain = type(node) if isinstance(node, exp.Connector) else None
        left += [(child, level if type(child) is chain else level + 1) for child in node.iter_expressions()]
    return Extent(nodes, depth, columns)


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


def either(conditions: Sequence[Sql]) -> Sql:
    """The disjunction."""
    return exp.or_(*map(own, conditions), copy=False) if conditions else exp.false()


def negated(condition: Sql) -> Sql:
    """NOT."""
    return exp.not_(own(condition), copy=False)


def is_null(value: Sql) -> Sql:
    """Whether there is no value."""
    return binary(exp.Is, value, exp.null())


def present(value: Sql) -> Sql:
    """Whether there is a value."""
    return negated(is_null(value))


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
        return exp.Anonymous(this="epoch_us", expressions=[try_cast(moment, "timestamp")])

    def fingerprint(self, value: Sql) -> Sql:
        """The first 8 hexadecimal digits of the md5 of a text in UTF-8, as an integer below 2^32."""
        digits = exp.Substring(this=exp.MD5(this=own(value)), start=plain(1), length=plain(8))
        return cast(exp.Concat(expressions=[text("0x"), digits]), "bigint")

    def position(self, value: Sql, values: Sequence[str]) -> Sql:
        """Where a text stands among few constants, counted from 1; 0 where nowhere, and for NULL."""
        # Functions of one column, unlike CASE and COALESCE, are worked out once for each entry of a dictionary.
        found = exp.Anonymous(this="list_position", expressions=[_texts(values), own(value)])
        return call("GREATEST", found, plain(0))

    def among(self, value: Sql, values: Sequence[str]) -> Sql:
        """Whether a text is one of few constants; not true for NULL."""
        return binary(exp.GT, self.position(value, values), plain(0))

    def packs(self, domain: Domain) -> bool:
        """Whether records of a domain are held packed: they are one of few texts."""
        return isinstance(domain, Category) and 0 < len(domain.values) <= FEW_VALUES

    def packed(self, value: Sql, values: Sequence[str]) -> Sql:
        """One of few texts as a byte, NULL where it is none."""
        kind = exp.DataType(this=exp.DType.ENUM, expressions=[text(v) for v in values])
        return exp.TryCast(this=own(value), to=kind)

    def place(self, value: Sql) -> Sql:
        """The `position` of a packed text."""
        return add(cast(exp.Anonymous(this="enum_code", expressions=[own(value)]), "bigint"), 1)

    def unpacked(self, value: Sql) -> Sql:
        """A packed text as it is read."""
        return cast(value, "varchar")

    def matches(self, value: Sql, pattern: str) -> Sql:
        """Whether a text has a form of ours; no pattern comes from an analyst."""
        return exp.RegexpLike(this=own(value), expression=text(pattern))

    def is_nan(self, value: Sql) -> Sql:
        """Whether a double is NaN."""
        return exp.Anonymous(this="isnan", expressions=[own(value)])

    def number_of_text(self, value: Sql) -> Sql:
        """The double that a text spells, or NULL; never fails."""
        return case([(self.matches(value, NUMBER), try_cast(value, "double"))])

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
        return case([(self.matches(value, MOMENT), try_cast(value, "timestamp"))])

    def moment_of_date(self, value: Sql) -> Sql:
        """A date as a timestamp, NULL where the calendar of timestamps does not reach; never fails."""
        return try_cast(value, "timestamp")

    def integer_of_text(self, value: Sql) -> Sql:
        """The 64-bit integer whose usual spelling is this text, or NULL; never fails."""
        number = try_cast(value, "bigint")
        spelled = binary(exp.EQ, cast(number, "varchar"), value)
        return case([(spelled, number)])

    def integer_of_wide(self, value: Sql) -> Sql:
        """An integer of any width as 64 bits, or NULL where it does not fit; never fails."""
        return try_cast(value, "bigint")


def _texts(values: Sequence[str]) -> Sql:
    return exp.Array(expressions=[text(value) for value in values])


@dataclass(frozen=True)
class Part:
    """An integer of fewer than so many bits, beside its sign: what an order is made of."""

    value: Sql
    bits: int


def mixed(parts: Sequence[Part], seed: int) -> Sql:
    """An integer between -2^62 and 2^62 made of other integers, the same on every engine; `spread` before comparing.

    A sum with coefficients from the seed, each as large as its part leaves room for: nothing overflows, so nothing need
    be reduced, and no engine needs a hash function of its own.
    """
    room = MIXED_BITS - (len(parts) + 1).bit_length()
    factors = [whole(coefficient(seed, index, room - part.bits)) for index, part in enumerate(parts)]
    terms = [binary(exp.Mul, part.value, factor) for part, factor in zip(parts, factors, strict=True)]
    return added([whole(coefficient(seed, -1, room)), *terms])


def coefficient(seed: int, index: int, bits: int) -> int:
    """A pseudo-random integer of exactly so many bits."""
    half = 1 << (bits - 1)
    return half + int.from_bytes(sha256(f"{seed}:{index}".encode()).digest()[:8]) % half


def spread(spelling: Spelling, order: Sql) -> Sql:
    """What rows are sorted by: the cube of an order modulo a prime, then the order's low bits.

    x -> x^3 permutes the residues, and with the low bits the order is known again: it is unequal for unequal orders.
    Without the cube the orders of two rows would differ by the same amount for every unit, and one kind of row would
    come first more often than another.
    """
    residue = spelling.remainder(order, plain(MODULUS))
    square = spelling.remainder(times(residue, residue), plain(MODULUS))
    cube = spelling.remainder(times(square, residue), plain(MODULUS))
    return add(times(cube, 1 << 31), low_bits(order))


def low_bits(order: Sql) -> Sql:
    """The last 31 bits."""
    return binary(exp.BitwiseAnd, order, plain(LOW_BITS))
