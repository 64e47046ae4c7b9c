"""Comparisons, conditions and the expressions that choose among values: AND, OR, NOT, IN, CASE, COALESCE, NULLIF."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sqlglot import exp

from dither.errors import InvalidPlan, Unsupported
from dither.plan.domains import (
    ONLY_NULL,
    as_boolean,
    describe,
    encode_value,
    is_possible,
    merge,
    storage_type,
    with_null,
)
from dither.plan.expressions.core import Expr, LiteralValue, check_text, condition_sql, constant_sql, convert
from dither.plan.sql.builders import Sql, and_, binary, case, detach, is_null, not_, null, or_
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
        """Refuse operands whose kinds cannot be compared by this operator."""
        if ONLY_NULL in (left, right):
            return
        if isinstance(left, Number) and isinstance(right, Number):
            merge([left, right])
        if self.op in ("=", "<>"):
            if not _are_comparable(left, right):
                raise InvalidPlan(f"a {describe(left)} cannot be compared with a {describe(right)}")
        elif isinstance(left, Category) and isinstance(right, Category):
            if not isinstance(self.right, LiteralValue):
                raise Unsupported(f"the operator {self.op} on categories needs a constant on its right side")
        elif not (_are_comparable(left, right) and isinstance(left, Number | Moment)):
            raise Unsupported(
                f"the operator {self.op} compares numbers or moments, not a {describe(left)} and a {describe(right)}"
            )

    def sql(self, scope: Scope) -> Sql:
        left, right = self.left.domain(scope), self.right.domain(scope)
        self._check(left, right)
        if ONLY_NULL in (left, right):
            return null("boolean")
        a, b = self.left.sql(scope), self.right.sql(scope)
        if isinstance(left, Number) and isinstance(right, Number):
            merged = merge([left, right])
            return binary(OPERATORS[self.op], convert(a, left, merged), convert(b, right, merged))
        if isinstance(left, Category) and isinstance(right, Category) and self.op not in ("=", "<>"):
            return membership(a, [v for v in left.values if _compare_texts(self.op, v, right.values[0])], left)
        return binary(OPERATORS[self.op], a, b)


@dataclass(frozen=True)
class And(Expr):
    """The conjunction of conditions (three-valued)."""

    children: tuple[Expr, ...]

    def domain(self, scope: Scope) -> Domain:
        return Boolean(any(as_boolean(child.domain(scope), "AND").nullable for child in self.children))

    def sql(self, scope: Scope) -> Sql:
        return and_([condition_sql(child, scope, "AND") for child in self.children])


@dataclass(frozen=True)
class Or(Expr):
    """The disjunction of conditions (three-valued)."""

    children: tuple[Expr, ...]

    def domain(self, scope: Scope) -> Domain:
        return Boolean(any(as_boolean(child.domain(scope), "OR").nullable for child in self.children))

    def sql(self, scope: Scope) -> Sql:
        return or_([condition_sql(child, scope, "OR") for child in self.children])


@dataclass(frozen=True)
class Not(Expr):
    """The negation of a condition (three-valued)."""

    child: Expr

    def domain(self, scope: Scope) -> Domain:
        return as_boolean(self.child.domain(scope), "NOT")

    def sql(self, scope: Scope) -> Sql:
        return not_(condition_sql(self.child, scope, "NOT"))


@dataclass(frozen=True)
class IsNull(Expr):
    """True if the value is NULL, else false; never NULL."""

    child: Expr

    def domain(self, scope: Scope) -> Domain:
        self.child.domain(scope)
        return Boolean()

    def sql(self, scope: Scope) -> Sql:
        return is_null(self.child.sql(scope))


@dataclass(frozen=True)
class In(Expr):
    """True if the value is one of the public values (which exclude NULL; moments are in microseconds)."""

    child: Expr
    values: tuple[Scalar, ...]

    def __post_init__(self) -> None:
        for value in self.values:
            if isinstance(value, str):
                check_text(value)

    def copies(self, scope: Scope) -> int:
        return 2

    def domain(self, scope: Scope) -> Domain:
        child = self.child.domain(scope)
        self.encoded_values(child)
        return Boolean(child.nullable)

    def encoded_values(self, child: Domain) -> list[int | str | bool]:
        """Encode the listed values as the engine does; leave out those off the lattice or out of bounds."""
        if None in self.values:
            raise InvalidPlan("an IN list cannot contain NULL; use IS NULL")
        values = [unicodedata.normalize("NFC", v) if isinstance(v, str) else v for v in self.values]
        encoded_list = (encode_value(value, child) for value in values)
        return [encoded for encoded in encoded_list if encoded is not None and is_possible(encoded, child)]

    def sql(self, scope: Scope) -> Sql:
        child = self.child.domain(scope)
        return membership(self.child.sql(scope), self.encoded_values(child), child)


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
            (condition_sql(when, scope, "CASE WHEN"), convert(then.sql(scope), then.domain(scope), merged))
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


def membership(value: Sql, encoded: Sequence[int | str | bool], domain: Domain) -> Sql:
    """Build the condition that a value is one of the encoded public values; NULL for NULL."""
    if encoded:
        return exp.In(this=detach(value), expressions=[constant_sql(v) for v in encoded])
    return case([(is_null(value), null("boolean"))], exp.false())


def _are_comparable(left: Domain, right: Domain) -> bool:
    """Tell whether values of two domains can be compared for equality."""
    key_kinds = Identifier | Reference
    if isinstance(left, key_kinds) or isinstance(right, key_kinds):
        return (
            storage_type(left) == storage_type(right)
            and not isinstance(left, Moment)
            and not isinstance(right, Moment)
            and all(not isinstance(side, Number) or side.step == 1 for side in (left, right))
        )
    return any(isinstance(left, kind) and isinstance(right, kind) for kind in (Number, Moment, Boolean, Category))


def _compare_texts(op: str, left: str, right: str) -> bool:
    """Compare two public texts by code points."""
    return {"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}[op]


def between(child: Expr, lo: Expr, hi: Expr) -> Expr:
    """Build SQL's BETWEEN, both ends included."""
    return And((Compare(">=", child, lo), Compare("<=", child, hi)))
