"""The operations in which SQL engines differ: `Dialect` is DuckDB's, and other engines override its methods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from sqlglot import exp

from dither.plan.sql.builders import (
    CLOCK_PATTERN,
    MAX_ENUM_VALUES,
    MOMENT_PATTERN,
    NUMBER_PATTERN,
    Sql,
    add,
    binary,
    call,
    case,
    cast,
    detach,
    literal,
    string,
    try_cast,
)
from dither.schema import Category, Domain

# How a column is stored; a timestamp has no zone or offset, an instant has one.
RawKind = Literal["integer", "decimal", "float", "text", "boolean", "date", "timestamp", "instant", "other"]


class Dialect:
    """SQL of DuckDB; another engine subclasses it and overrides the methods in which it differs."""

    sqlglot_name = "duckdb"
    many_rows = 128  # few partitions exceed a limit of so many rows or more: only those are sorted or clipped
    shares_subqueries = True  # a subquery that is read twice is computed once
    orders_ties = False  # parts of a statement may be computed again, and must choose the same rows

    def render(self, statement: Sql) -> str:
        """Return a statement as SQL text."""
        return statement.sql(dialect=self.sqlglot_name, copy=False)

    def quotient(self, left: Sql, right: Sql) -> Sql:
        """Build an integer division, truncated towards zero; NULL if an operand is NULL."""
        return binary(exp.IntDiv, left, right)

    def remainder(self, left: Sql, right: Sql) -> Sql:
        """Build the remainder of `quotient`, with the sign of the left side."""
        return binary(exp.Mod, left, right)

    def widen(self, value: Sql) -> Sql:
        """Cast an integer to a type whose sums cannot overflow (at least 38 digits)."""
        return cast(value, "hugeint")

    def exact_sum(self, value: Sql) -> Sql:
        """Build SUM in a type that cannot overflow; DuckDB sums 64-bit integers in 128 bits."""
        return exp.Sum(this=detach(value))

    def to_timestamp(self, microseconds: Sql) -> Sql:
        """Convert microseconds since 1970 to a timestamp without a zone."""
        return exp.Anonymous(this="make_timestamp", expressions=[detach(microseconds)])

    def to_microseconds(self, moment: Sql) -> Sql:
        """Convert a timestamp or date to microseconds since 1970; NULL for infinities and moments out of range."""
        return exp.Anonymous(this="epoch_us", expressions=[try_cast(moment, "timestamp")])

    def fingerprint(self, value: Sql) -> Sql:
        """Build a hash of a UTF-8 text below 2^32: the first 8 hexadecimal digits of its MD5."""
        digits = exp.Substring(this=exp.MD5(this=detach(value)), start=literal(1), length=literal(8))
        return cast(exp.Concat(expressions=[string("0x"), digits]), "bigint")

    def position(self, value: Sql, values: Sequence[str]) -> Sql:
        """Build the position of a text in a short list of constants, counted from 1; 0 if it is absent or NULL."""
        # DuckDB evaluates functions of one column, unlike CASE and COALESCE, once per entry of a dictionary.
        list_index = exp.Anonymous(this="list_position", expressions=[_text_array(values), detach(value)])
        return call("GREATEST", list_index, literal(0))

    def is_among(self, value: Sql, values: Sequence[str]) -> Sql:
        """Build the condition that a text is in a short list of constants; false or NULL for NULL."""
        return binary(exp.GT, self.position(value, values), literal(0))

    def uses_enum(self, domain: Domain) -> bool:
        """Tell whether the texts of a domain are stored as an ENUM: they are few and declared."""
        return isinstance(domain, Category) and 0 < len(domain.values) <= MAX_ENUM_VALUES

    def to_enum(self, value: Sql, values: Sequence[str]) -> Sql:
        """Cast a text to the ENUM of these values, which takes one byte; NULL if it is not one of them."""
        kind = exp.DataType(this=exp.DType.ENUM, expressions=[string(v) for v in values])
        return exp.TryCast(this=detach(value), to=kind)

    def enum_position(self, value: Sql) -> Sql:
        """Build the `position` of a text that is stored as an ENUM."""
        return add(cast(exp.Anonymous(this="enum_code", expressions=[detach(value)]), "bigint"), 1)

    def from_enum(self, value: Sql) -> Sql:
        """Cast an ENUM back to text."""
        return cast(value, "varchar")

    def compose(self, value: Sql) -> Sql:
        """Convert a text to Unicode's NFC; NUL, which engines cannot hold or stop at, is replaced."""
        return exp.Anonymous(this="nfc_normalize", expressions=[self.replace_nul(value)])

    def replace_nul(self, value: Sql) -> Sql:
        """Replace each NUL of a text by the character for unreadable ones."""
        nul = exp.Anonymous(this="chr", expressions=[literal(0)])
        return exp.Anonymous(this="replace", expressions=[detach(value), nul, string("\ufffd")])

    def matches(self, value: Sql, pattern: str) -> Sql:
        """Build the condition that a text matches one of Dither's own patterns; no pattern comes from an analyst."""
        return exp.RegexpLike(this=detach(value), expression=string(pattern))

    def is_nan(self, value: Sql) -> Sql:
        """Build the condition that a double is NaN."""
        return exp.Anonymous(this="isnan", expressions=[detach(value)])

    def parse_number(self, value: Sql) -> Sql:
        """Parse a text as a double, or NULL; never fails."""
        return case([(self.matches(value, NUMBER_PATTERN), try_cast(value, "double"))])

    def parse_boolean(self, value: Sql) -> Sql:
        """Parse a text as a truth value, or NULL; never fails."""
        lowered = exp.Lower(this=detach(value))
        true_words, false_words = ("true", "t", "yes", "1"), ("false", "f", "no", "0")
        return case(
            [
                (exp.In(this=lowered, expressions=[string(word) for word in true_words]), exp.true()),
                (exp.In(this=detach(lowered), expressions=[string(word) for word in false_words]), exp.false()),
            ]
        )

    def extract(self, value: Sql, pattern: str) -> Sql:
        """Return the part of a text that matches the first group of one of Dither's own patterns; '' if none does."""
        return exp.Anonymous(this="regexp_extract", expressions=[detach(value), string(pattern), literal(1)])

    def parse_timestamp(self, value: Sql) -> Sql:
        """Parse the date and time of a text up to its seconds, or NULL if the text is no moment; never fails."""
        return case([(self.matches(value, MOMENT_PATTERN), try_cast(self.extract(value, CLOCK_PATTERN), "timestamp"))])

    def date_to_timestamp(self, value: Sql) -> Sql:
        """Convert a date to a timestamp, or NULL if it is outside the range of timestamps; never fails."""
        return try_cast(value, "timestamp")

    def parse_integer(self, value: Sql) -> Sql:
        """Parse a text that is the canonical form of a 64-bit integer, or NULL; never fails."""
        number = try_cast(value, "bigint")
        is_canonical = binary(exp.EQ, cast(number, "varchar"), value)
        return case([(is_canonical, number)])

    def narrow_integer(self, value: Sql) -> Sql:
        """Convert an integer of any width to 64 bits, or NULL if it does not fit; never fails."""
        return try_cast(value, "bigint")


def _text_array(values: Sequence[str]) -> Sql:
    return exp.Array(expressions=[string(value) for value in values])
