"""Part of the former access.expr."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sqlglot import exp

from dither.errors import InvalidPlan, Unsupported
from dither.plan.domains import NOTHING, as_boolean, describe, index_of, is_possible, merge, storage_type, with_null
from dither.plan.expressions.core import Expr, LiteralValue, condition, constant_value, convert, readable_value
from dither.plan.sql.builders import Sql, and_, binary, case, detached, is_null, not_, null, or_
from dither.plan.sql.scope import Scope
from dither.schema import Boolean, Category, Domain, Identifier, Moment, Number, Reference, Scalar


@dataclass(frozen=True)
class Compare(Expr):
    """A comparison of two values of the same kind; identifiers and references allow = and <> only."""

    op: Literal["=", "<>", "<", "<=", ">", ">="]
    left: Expr
    right: Expr

    def copies(self, scope: Scope) -> int:
        return 2

    def domain(self, scope: Scope) -> Domain:
        left, right = self.left.domain(scope), self.right.domain(scope)
        self._check(left, right)
        return Boolean(nullable=left.nullable or right.nullable)

    def _check(self, left: Domain, right: Domain) -> None:
        if NOTHING in (left, right):
            return
        if isinstance(left, Number) and isinstance(right, Number):
            merge([left, right])
        if self.op in ("=", "<>"):
            if not _alike(left, right):
                raise InvalidPlan(f"a {describe(left)} cannot be compared with a {describe(right)}")
        elif isinstance(left, Category) and isinstance(right, Category):
            if not isinstance(self.right, LiteralValue):
                raise Unsupported(f"the operator {self.op} on categories needs a constant on its right side")
        elif not (_alike(left, right) and isinstance(left, Number | Moment)):
            raise Unsupported(
                f"the operator {self.op} compares numbers or moments, not a {describe(left)} and a {describe(right)}"
            )

    def sql(self, scope: Scope) -> Sql:
        left, right = self.left.domain(scope), self.right.domain(scope)
        self._check(left, right)
        if NOTHING in (left, right):
            return null("boolean")
        a, b = self.left.sql(scope), self.right.sql(scope)
        if isinstance(left, Number) and isinstance(right, Number):
            merged = merge([left, right])
            return binary(OPERATORS[self.op], convert(a, left, merged), convert(b, right, merged))
        if isinstance(left, Category) and isinstance(right, Category) and self.op not in ("=", "<>"):
            return membership(a, [v for v in left.values if _ordered(self.op, v, right.values[0])], left)
        return binary(OPERATORS[self.op], a, b)


@dataclass(frozen=True)
class And(Expr):
    """All of them (three-valued)."""

    children: tuple[Expr, ...]

    def domain(self, scope: Scope) -> Domain:
        return Boolean(any(as_boolean(child.domain(scope), "AND").nullable for child in self.children))

    def sql(self, scope: Scope) -> Sql:
        return and_([condition(child, scope, "AND") for child in self.children])


@dataclass(frozen=True)
class Or(Expr):
    """Any of them (three-valued)."""

    children: tuple[Expr, ...]

    def domain(self, scope: Scope) -> Domain:
        return Boolean(any(as_boolean(child.domain(scope), "OR").nullable for child in self.children))

    def sql(self, scope: Scope) -> Sql:
        return or_([condition(child, scope, "OR") for child in self.children])


@dataclass(frozen=True)
class Not(Expr):
    """Negation (three-valued)."""

    child: Expr

    def domain(self, scope: Scope) -> Domain:
        return as_boolean(self.child.domain(scope), "NOT")

    def sql(self, scope: Scope) -> Sql:
        return not_(condition(self.child, scope, "NOT"))


@dataclass(frozen=True)
class IsNull(Expr):
    """Whether the value is NULL; never NULL itself."""

    child: Expr

    def domain(self, scope: Scope) -> Domain:
        self.child.domain(scope)
        return Boolean()

    def sql(self, scope: Scope) -> Sql:
        return is_null(self.child.sql(scope))


@dataclass(frozen=True)
class In(Expr):
    """Whether the value is among public ones (no NULLs; moments as microseconds)."""

    child: Expr
    values: tuple[Scalar, ...]

    def __post_init__(self) -> None:
        for value in self.values:
            if isinstance(value, str):
                readable_value(value)

    def copies(self, scope: Scope) -> int:
        return 2

    def domain(self, scope: Scope) -> Domain:
        child = self.child.domain(scope)
        self.held(child)
        return Boolean(child.nullable)

    def held(self, child: Domain) -> list[int | str | bool]:
        """The listed values as the engine holds them; those off the lattice or outside the bounds can never match."""
        if None in self.values:
            raise InvalidPlan("IN takes no NULL; use IS NULL")
        values = [unicodedata.normalize("NFC", v) if isinstance(v, str) else v for v in self.values]
        found = (index_of(value, child) for value in values)
        return [held for held in found if held is not None and is_possible(held, child)]

    def sql(self, scope: Scope) -> Sql:
        child = self.child.domain(scope)
        return membership(self.child.sql(scope), self.held(child), child)


@dataclass(frozen=True)
class Case(Expr):
    """The value of the first branch (condition, value) whose condition is true, else the default."""

    branches: tuple[tuple[Expr, Expr], ...]
    default: Expr

    def __post_init__(self) -> None:
        if not self.branches:
            raise InvalidPlan("CASE needs at least one branch")

    def domain(self, scope: Scope) -> Domain:
        for when, _ in self.branches:
            as_boolean(when.domain(scope), "CASE WHEN")
        return merge([then.domain(scope) for _, then in self.branches] + [self.default.domain(scope)])

    def sql(self, scope: Scope) -> Sql:
        merged = self.domain(scope)
        branches = [
            (condition(when, scope, "CASE WHEN"), convert(then.sql(scope), then.domain(scope), merged))
            for when, then in self.branches
        ]
        return case(branches, convert(self.default.sql(scope), self.default.domain(scope), merged))


@dataclass(frozen=True)
class Coalesce(Expr):
    """The first value that is not NULL."""

    children: tuple[Expr, ...]

    def __post_init__(self) -> None:
        if not self.children:
            raise InvalidPlan("COALESCE takes at least one value")

    def domain(self, scope: Scope) -> Domain:
        domains = [child.domain(scope) for child in self.children]
        return with_null(merge(domains), all(domain.nullable for domain in domains))

    def sql(self, scope: Scope) -> Sql:
        merged = self.domain(scope)
        values = [convert(child.sql(scope), child.domain(scope), merged) for child in self.children]
        return exp.Coalesce(this=values[0], expressions=values[1:]) if len(values) > 1 else values[0]


@dataclass(frozen=True)
class NullIf(Expr):
    """NULL where left = right, else left."""

    left: Expr
    right: Expr

    def copies(self, scope: Scope) -> int:
        return 2

    def domain(self, scope: Scope) -> Domain:
        left = self.left.domain(scope)
        Compare("=", self.left, self.right)._check(left, self.right.domain(scope))
        return with_null(left, True)

    def sql(self, scope: Scope) -> Sql:
        equal, kind = Compare("=", self.left, self.right).sql(scope), storage_type(self.left.domain(scope))
        return case([(equal, null(kind))], self.left.sql(scope))


OPERATORS: dict[str, type[exp.Binary]] = {
    "=": exp.EQ, "<>": exp.NEQ, "<": exp.LT, "<=": exp.LTE, ">": exp.GT, ">=": exp.GTE
}  # fmt: skip


def membership(value: Sql, held: Sequence[int | str | bool], domain: Domain) -> Sql:
    """Whether a value is among public ones; NULL stays NULL."""
    if held:
        return exp.In(this=detached(value), expressions=[constant_value(v) for v in held])
    return case([(is_null(value), null("boolean"))], exp.false())


def _alike(left: Domain, right: Domain) -> bool:
    names = Identifier | Reference
    if isinstance(left, names) or isinstance(right, names):
        return (
            storage_type(left) == storage_type(right)
            and not isinstance(left, Moment)
            and not isinstance(right, Moment)
            and all(not isinstance(side, Number) or side.step == 1 for side in (left, right))
        )
    return any(isinstance(left, kind) and isinstance(right, kind) for kind in (Number, Moment, Boolean, Category))


def _ordered(op: str, left: str, right: str) -> bool:
    return {"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}[op]


def between(child: Expr, lo: Expr, hi: Expr) -> Expr:
    """SQL's BETWEEN, both ends included."""
    return And((Compare(">=", child, lo), Compare("<=", child, hi)))
