"""Expressions over declared categories: LOWER, UPPER, SUBSTR and LIKE, evaluated on the declared texts."""

from __future__ import annotations

import unicodedata
from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal

from dither.errors import InvalidParameter
from dither.plan.domains import as_category
from dither.plan.expressions.core import Expr, check_text
from dither.plan.expressions.logic import membership
from dither.plan.sql.builders import Sql, case, string
from dither.plan.sql.scope import Scope
from dither.schema import Boolean, Category, Domain

MAX_CHARACTERS = 1000


class CategoryMap(Expr):
    """A function of a declared category, computed for each of its values beforehand: no text is built from a record."""

    child: Expr

    @abstractmethod
    def convert(self, value: str) -> str:
        """Apply the function to one declared value."""

    @abstractmethod
    def function_name(self) -> str:
        """Return the function's name in SQL, for error messages."""

    def copies(self, scope: Scope) -> int:
        return len(self._category(scope).values) + 1

    def domain(self, scope: Scope) -> Domain:
        child = self._category(scope)
        return Category(tuple(dict.fromkeys(self._normal_form(value) for value in child.values)), child.nullable)

    def sql(self, scope: Scope) -> Sql:
        category, value = self._category(scope), self.child.sql(scope)
        changed: dict[str, list[str]] = {}
        for each in category.values:
            if self._normal_form(each) != each:
                changed.setdefault(self._normal_form(each), []).append(each)
        branches = [(membership(value, values, category), string(result)) for result, values in changed.items()]
        return case(branches, value) if branches else value

    def _category(self, scope: Scope) -> Category:
        return as_category(self.child.domain(scope), self.function_name())

    def _normal_form(self, value: str) -> str:
        return unicodedata.normalize("NFC", self.convert(value))


@dataclass(frozen=True)
class TextCase(CategoryMap):
    """LOWER or UPPER of a declared category."""

    which: Literal["lower", "upper"]
    child: Expr

    def convert(self, value: str) -> str:
        return value.lower() if self.which == "lower" else value.upper()

    def function_name(self) -> str:
        return self.which.upper()


@dataclass(frozen=True)
class TextSlice(CategoryMap):
    """SUBSTR of a declared category: `length` characters (None: all) from position `start`, counted from 1."""

    child: Expr
    start: int
    length: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.start <= MAX_CHARACTERS or not 0 <= (self.length or 0) <= MAX_CHARACTERS:
            raise InvalidParameter(f"SUBSTR takes a start from 1 and a length from 0, both up to {MAX_CHARACTERS}")

    def convert(self, value: str) -> str:
        end = None if self.length is None else self.start - 1 + self.length
        return value[self.start - 1 : end]

    def function_name(self) -> str:
        return "SUBSTR"


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
