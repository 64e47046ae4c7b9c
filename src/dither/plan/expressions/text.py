"""Expressions over declared categories: LOWER, UPPER and LIKE, evaluated on the declared texts."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import Literal

from sqlglot import exp

from dither.plan.domains import as_category
from dither.plan.expressions.core import Expr, check_text
from dither.plan.expressions.logic import membership
from dither.plan.sql.builders import Sql, binary, case, string
from dither.plan.sql.scope import Scope
from dither.schema import Boolean, Category, Domain


@dataclass(frozen=True)
class TextCase(Expr):
    """LOWER or UPPER of a declared category."""

    which: Literal["lower", "upper"]
    child: Expr

    def copies(self, scope: Scope) -> int:
        return len(as_category(self.child.domain(scope), self.which.upper()).values) + 1

    def domain(self, scope: Scope) -> Domain:
        child = as_category(self.child.domain(scope), self.which.upper())
        return Category(tuple(dict.fromkeys(self._convert(value) for value in child.values)), child.nullable)

    def _convert(self, value: str) -> str:
        """Convert a declared text."""
        return unicodedata.normalize("NFC", value.lower() if self.which == "lower" else value.upper())

    def sql(self, scope: Scope) -> Sql:
        child, value = as_category(self.child.domain(scope), self.which.upper()), self.child.sql(scope)
        changed = [v for v in child.values if self._convert(v) != v]
        return (
            case([(binary(exp.EQ, value, string(v)), string(self._convert(v))) for v in changed], value)
            if changed
            else value
        )


@dataclass(frozen=True)
class TextMatch(Expr):
    """True if a declared category starts with, ends with or contains a public text."""

    how: Literal["prefix", "suffix", "contains"]
    child: Expr
    text: str

    def __post_init__(self) -> None:
        check_text(self.text)

    def copies(self, scope: Scope) -> int:
        return 2

    def domain(self, scope: Scope) -> Domain:
        return Boolean(as_category(self.child.domain(scope), "LIKE").nullable)

    def _matches(self, value: str) -> bool:
        """Tell whether a declared text matches."""
        pattern = unicodedata.normalize("NFC", self.text)
        match self.how:
            case "prefix":
                return value.startswith(pattern)
            case "suffix":
                return value.endswith(pattern)
            case "contains":
                return pattern in value

    def sql(self, scope: Scope) -> Sql:
        child = as_category(self.child.domain(scope), "LIKE")
        return membership(self.child.sql(scope), [value for value in child.values if self._matches(value)], child)
