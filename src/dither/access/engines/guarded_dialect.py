"""Casts that cannot fail, for engines without TRY_CAST, or whose casts may still raise.

A text is cast only where one of Dither's fixed patterns has matched, and the pattern is so strict that the cast
succeeds. CASE guards the cast: no engine here evaluates a branch that was not taken.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from sqlglot import exp

from dither.plan.sql.builders import (
    CLOCK_PATTERN,
    MOMENT_PATTERN,
    NUMBER_PATTERN,
    Sql,
    and_,
    binary,
    case,
    cast,
    detach,
    integer,
    literal,
    string,
)
from dither.plan.sql.dialect import Dialect
from dither.schema import Domain

INTEGER_PATTERN = "^(0|-?[1-9][0-9]{0,18})$"
MIN_INT64, MAX_INT64 = -(1 << 63), (1 << 63) - 1


class GuardedDialect(Dialect):
    """A dialect with plain casts guarded by patterns, and without ENUMs."""

    shares_subqueries = False

    def position(self, value: Sql, values: Sequence[str]) -> Sql:
        """Use one CASE branch for each constant."""
        return case([(binary(exp.EQ, value, string(v)), integer(i)) for i, v in enumerate(values, 1)], integer(0))

    def is_among(self, value: Sql, values: Sequence[str]) -> Sql:
        """Use IN."""
        return exp.In(this=detach(value), expressions=[string(v) for v in values])

    def uses_enum(self, domain: Domain) -> bool:
        """Return False: texts stay texts."""
        return False

    def compose(self, value: Sql) -> Sql:
        """Convert only texts beyond ASCII, which have more bytes than characters: the conversion is slow."""
        sizes = [exp.Anonymous(this=name, expressions=[detach(value)]) for name in ("char_length", "octet_length")]
        return case([(binary(exp.LT, *sizes), self.to_nfc(value))], value)

    @abstractmethod
    def to_nfc(self, value: Sql) -> Sql:
        """Convert a text that is not NULL to Unicode's NFC."""

    def parse_number(self, value: Sql) -> Sql:
        """Cast texts of up to 18 digits and exponents of two digits, which no double overflows."""
        return case([(self.matches(value, NUMBER_PATTERN), cast(value, "double"))])

    def parse_timestamp(self, value: Sql) -> Sql:
        """Cast only days that exist, in the years 1 to 9999, and times from 00:00 to 23:59:59."""
        return case([(self.matches(value, MOMENT_PATTERN), cast(self.extract(value, CLOCK_PATTERN), "timestamp"))])

    def parse_integer(self, value: Sql) -> Sql:
        """Cast canonical integers of up to 19 digits, after comparing them as wide numbers with the 64-bit bounds."""
        wide = self.widen(value)
        in_range = and_(
            [
                binary(exp.GTE, wide, self.widen(literal(MIN_INT64))),
                binary(exp.LTE, wide, self.widen(literal(MAX_INT64))),
            ]
        )
        return case([(self.matches(value, INTEGER_PATTERN), case([(in_range, cast(value, "bigint"))]))])

    def narrow_integer(self, value: Sql) -> Sql:
        """Cast directly, since these engines have no integers beyond 64 bits."""
        return cast(detach(value), "bigint")
