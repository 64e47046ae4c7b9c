"""Casts that cannot fail, for engines that have no TRY_CAST or where a cast may still raise.

A text is cast only where a fixed pattern of ours has matched, and the pattern is so strict that the cast succeeds.
CASE guards it: no engine here evaluates a branch that was not taken.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from dither.plan.sql.builders import MOMENT, NUMBER, Sql, and_, binary, case, cast, detached, integer, literal, string
from dither.plan.sql.dialect import Dialect
from dither.schema import Domain

INTEGER = "^(0|-?[1-9][0-9]{0,18})$"
LEAST, MOST = -(1 << 63), (1 << 63) - 1


class GuardedDialect(Dialect):
    """Plain casts behind patterns; constants compared one by one."""

    def position(self, value: Sql, values: Sequence[str]) -> Sql:
        """A branch for each constant."""
        return case([(binary(exp.EQ, value, string(v)), integer(i)) for i, v in enumerate(values, 1)], integer(0))

    def among(self, value: Sql, values: Sequence[str]) -> Sql:
        """IN."""
        return exp.In(this=detached(value), expressions=[string(v) for v in values])

    def packs(self, domain: Domain) -> bool:
        """Texts stay texts."""
        return False

    def number_of_text(self, value: Sql) -> Sql:
        """The pattern allows 18 digits and exponents of two digits: no double overflows."""
        return case([(self.matches(value, NUMBER), cast(value, "double"))])

    def moment_of_text(self, value: Sql) -> Sql:
        """The pattern allows days that exist, in the years 1 to 9999, and times from 00:00:00 to 23:59:59.999999."""
        return case([(self.matches(value, MOMENT), cast(value, "timestamp"))])

    def integer_of_text(self, value: Sql) -> Sql:
        """The usual spelling of up to 19 digits, compared as a wide number before it is cast to 64 bits."""
        wide = self.wide(value)
        fits = and_([binary(exp.GTE, wide, self.wide(literal(LEAST))), binary(exp.LTE, wide, self.wide(literal(MOST)))])
        return case([(self.matches(value, INTEGER), case([(fits, cast(value, "bigint"))]))])

    def integer_of_wide(self, value: Sql) -> Sql:
        """These engines have no integers beyond 64 bits."""
        return cast(detached(value), "bigint")
