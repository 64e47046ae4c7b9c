"""Part of the former access.spelling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from sqlglot import exp

from dither.plan.sql.builders import (
    FEW_VALUES,
    MOMENT,
    NUMBER,
    Sql,
    add,
    binary,
    call,
    case,
    cast,
    detached,
    literal,
    string,
    try_cast,
)
from dither.schema import Category, Domain

RawKind = Literal["integer", "decimal", "float", "text", "boolean", "date", "timestamp", "other"]


class Dialect:
    """DuckDB's way; other engines override."""

    sqlglot_name = "duckdb"

    def render(self, statement: Sql) -> str:
        """The SQL text."""
        return statement.sql(dialect=self.sqlglot_name, copy=False)

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
        return exp.Sum(this=detached(value))

    def instant(self, microseconds: Sql) -> Sql:
        """Microseconds since 1970 as a timestamp without a zone."""
        return exp.Anonymous(this="make_timestamp", expressions=[detached(microseconds)])

    def microseconds(self, moment: Sql) -> Sql:
        """A timestamp or date as microseconds since 1970; NULL for infinities and where microseconds do not reach."""
        return exp.Anonymous(this="epoch_us", expressions=[try_cast(moment, "timestamp")])

    def fingerprint(self, value: Sql) -> Sql:
        """The first 8 hexadecimal digits of the md5 of a text in UTF-8, as an integer below 2^32."""
        digits = exp.Substring(this=exp.MD5(this=detached(value)), start=literal(1), length=literal(8))
        return cast(exp.Concat(expressions=[string("0x"), digits]), "bigint")

    def position(self, value: Sql, values: Sequence[str]) -> Sql:
        """Where a text stands among few constants, counted from 1; 0 where nowhere, and for NULL."""
        # Functions of one column, unlike CASE and COALESCE, are worked out once for each entry of a dictionary.
        found = exp.Anonymous(this="list_position", expressions=[_texts(values), detached(value)])
        return call("GREATEST", found, literal(0))

    def among(self, value: Sql, values: Sequence[str]) -> Sql:
        """Whether a text is one of few constants; not true for NULL."""
        return binary(exp.GT, self.position(value, values), literal(0))

    def packs(self, domain: Domain) -> bool:
        """Whether records of a domain are held packed: they are one of few texts."""
        return isinstance(domain, Category) and 0 < len(domain.values) <= FEW_VALUES

    def packed(self, value: Sql, values: Sequence[str]) -> Sql:
        """One of few texts as a byte, NULL where it is none."""
        kind = exp.DataType(this=exp.DType.ENUM, expressions=[string(v) for v in values])
        return exp.TryCast(this=detached(value), to=kind)

    def place(self, value: Sql) -> Sql:
        """The `position` of a packed text."""
        return add(cast(exp.Anonymous(this="enum_code", expressions=[detached(value)]), "bigint"), 1)

    def unpacked(self, value: Sql) -> Sql:
        """A packed text as it is read."""
        return cast(value, "varchar")

    def matches(self, value: Sql, pattern: str) -> Sql:
        """Whether a text has a form of ours; no pattern comes from an analyst."""
        return exp.RegexpLike(this=detached(value), expression=string(pattern))

    def is_nan(self, value: Sql) -> Sql:
        """Whether a double is NaN."""
        return exp.Anonymous(this="isnan", expressions=[detached(value)])

    def number_of_text(self, value: Sql) -> Sql:
        """The double that a text spells, or NULL; never fails."""
        return case([(self.matches(value, NUMBER), try_cast(value, "double"))])

    def boolean_of_text(self, value: Sql) -> Sql:
        """The truth value that a text spells, or NULL; never fails."""
        lowered = exp.Lower(this=detached(value))
        truths, lies = ("true", "t", "yes", "1"), ("false", "f", "no", "0")
        return case(
            [
                (exp.In(this=lowered, expressions=[string(word) for word in truths]), exp.true()),
                (exp.In(this=detached(lowered), expressions=[string(word) for word in lies]), exp.false()),
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
        dialect = binary(exp.EQ, cast(number, "varchar"), value)
        return case([(dialect, number)])

    def integer_of_wide(self, value: Sql) -> Sql:
        """An integer of any width as 64 bits, or NULL where it does not fit; never fails."""
        return try_cast(value, "bigint")


def _texts(values: Sequence[str]) -> Sql:
    return exp.Array(expressions=[string(value) for value in values])
