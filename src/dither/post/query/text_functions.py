"""Functions of declared texts, computed for each declared value beforehand: the plan has a CASE over the values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import prod
from typing import Any

from sqlglot import exp

from dither.errors import Unsupported
from dither.plan import expressions as expr
from dither.plan.domains import ONLY_NULL, describe
from dither.plan.expressions.core import Expr
from dither.plan.sql.builders import Sql
from dither.plan.sql.scope import Scope
from dither.schema import Boolean, Category, Domain

MAX_COMBINATIONS = 1_000
MAX_LENGTH = 1_000
Text = str | None


def _matches(text: str, pattern: str) -> bool:
    """Match a LIKE pattern, in time proportional to both lengths."""
    # reach[i] says whether the pattern so far fits the first i characters.
    reach = [True] + [False] * len(text)
    for sign in pattern:
        if sign == "%":
            for place in range(1, len(reach)):
                reach[place] = reach[place] or reach[place - 1]
        else:
            reach = [False] + [reach[i] and sign in ("_", text[i]) for i in range(len(text))]
    return reach[-1]


def _split_part(text: str, delimiter: str, place: int) -> str:
    parts = text.split(delimiter) if delimiter else [text]
    index = place - 1 if place > 0 else len(parts) + place
    return parts[index] if 0 <= index < len(parts) else ""


# Each takes the texts of its columns, of which none is NULL except in CONCAT, and its literal arguments.
FUNCTIONS: dict[str, Callable[..., str | int | bool]] = {
    "like": _matches,
    "ilike": lambda text, pattern: _matches(text.lower(), pattern.lower()),
    "length": len,
    "reverse": lambda text: text[::-1],
    "right": lambda text, length: text[-length:] if length > 0 else "",
    "trim": lambda text, characters: text.strip(characters),
    "ltrim": lambda text, characters: text.lstrip(characters),
    "rtrim": lambda text, characters: text.rstrip(characters),
    "replace": lambda text, old, new: text.replace(old, new) if old else text,
    "strpos": lambda text, part: text.find(part) + 1,
    "split_part": _split_part,
    "concat": lambda *texts: "".join(text or "" for text in texts),
    "concatenate": lambda *texts: "".join(texts),
}


@dataclass(frozen=True)
class TextFunction(Expr):
    """A function of declared texts; `resolve` replaces it, once the domains of columns are known."""

    name: str
    children: tuple[Expr, ...]
    arguments: tuple[Any, ...] = ()

    def resolve(self, scope: Scope) -> Expr:
        """Return a CASE over the declared values of the columns."""
        values = [_texts_of(child.domain(scope), self.name) for child in self.children]
        if prod(map(len, values)) > MAX_COMBINATIONS:
            raise Unsupported(
                f"{self.name.upper()} has over {MAX_COMBINATIONS} combinations of declared values; use fewer columns"
            )
        branches: dict[Any, list[tuple[Text, ...]]] = {}
        for texts in product(*values):
            branches.setdefault(self._result(texts), []).append(texts)
        nothing = expr.LiteralValue(None)
        cases = tuple(
            (self._condition(scope, combinations), _literal(result))
            for result, combinations in branches.items()
            if result is not None
        )
        return expr.Case(cases, nothing) if cases else nothing

    def _result(self, texts: tuple[Text, ...]) -> str | int | bool | None:
        """Apply the function to one combination of texts; NULL gives NULL, except in CONCAT."""
        if None in texts and self.name != "concat":
            return None
        result = FUNCTIONS[self.name](*texts, *self.arguments)
        if isinstance(result, str) and len(result) > MAX_LENGTH:
            raise Unsupported(f"{self.name.upper()} makes a text of more than {MAX_LENGTH} characters; shorten it")
        return result

    def _condition(self, scope: Scope, combinations: Sequence[tuple[Text, ...]]) -> Expr:
        """Return the condition that the columns have one of some combinations of values."""
        if len(self.children) == 1:
            return _is_one_of(self.children[0], [texts[0] for texts in combinations], scope)
        tests = tuple(
            expr.And(tuple(_is_one_of(child, [text], scope) for child, text in zip(self.children, texts, strict=True)))
            for texts in combinations
        )
        return tests[0] if len(tests) == 1 else expr.Or(tests)

    def domain(self, scope: Scope) -> Domain:
        return self.resolve(scope).domain(scope)

    def sql(self, scope: Scope) -> Sql:
        return self.resolve(scope).sql(scope)


def _texts_of(domain: Domain, name: str) -> tuple[Text, ...]:
    """Return the texts that a value can be, NULL last."""
    if domain == ONLY_NULL:
        return (None,)
    if isinstance(domain, Boolean):
        return ("true", "false", *((None,) if domain.nullable else ()))
    if not isinstance(domain, Category):
        raise Unsupported(
            f"{name.upper()} takes categories with declared values, texts and truth values, not a {describe(domain)}"
        )
    return (*domain.values, *((None,) if domain.nullable else ()))


def _is_one_of(child: Expr, texts: Sequence[Text], scope: Scope) -> Expr:
    """Return the condition that a column is one of some texts, or NULL if that is among them."""
    known: list[Any] = [text for text in texts if text is not None]
    if isinstance(child.domain(scope), Boolean):
        known = [text == "true" for text in known]
    tests: list[Expr] = [expr.In(child, tuple(known))] if known else []
    if None in texts:
        tests.append(expr.IsNull(child))
    return tests[0] if len(tests) == 1 else expr.Or(tuple(tests))


def _literal(result: str | int | bool) -> Expr:
    if isinstance(result, int) and not isinstance(result, bool):
        return expr.LiteralValue(Fraction(result))
    return expr.LiteralValue(result)


def concatenation(translate: Callable[[exp.Expr], Expr], parts: Sequence[exp.Expr], name: str) -> Expr:
    """Return the concatenation of texts; nested ones are joined into one."""
    children: list[Expr] = []
    for part in parts:
        value = translate(part)
        children += value.children if isinstance(value, TextFunction) and value.name == name else [value]
    return TextFunction(name, tuple(children))
