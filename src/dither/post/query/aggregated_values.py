"""The sizes and signs of the values that aggregates add up or rank, and how many there can be."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import prod
from typing import Any

from dither.errors import Unsupported
from dither.plan import expressions as expr
from dither.plan.context import Context
from dither.plan.domains import bounds_of, cardinality
from dither.plan.expressions.core import Expr
from dither.plan.measures.core import GroupKey, Measure
from dither.plan.measures.sums import Count, Sum, SumVector
from dither.plan.relations.core import Relation
from dither.plan.relations.project import Project
from dither.plan.relations.scan import Scan
from dither.plan.sql.scope import Scope
from dither.post.query.bins import QuantileLevel
from dither.post.query.question import AggregateCall
from dither.post.query.terms import ONE, Term, weighted_value
from dither.schema import Boolean, Category, Domain, Identifier, Moment, Number, Reference, Scalar


def has_stored_ranks(relation: Relation, context: Context) -> bool:
    """Return True if the rows are those of a table with stored ranks, each at most once."""
    match relation:
        case Scan(table=table):
            return context.has_stored_ranks(table)
        case Project(child=child):
            return has_stored_ranks(child, context)
        case _:
            return False


def quantile_level(aggregate: AggregateCall) -> QuantileLevel:
    """Return the level of a quantile, or which end of the range is asked for."""
    if aggregate.kind == "min" or aggregate.kind == "max":
        return aggregate.kind
    if aggregate.level is None:
        raise TypeError("a quantile has a level")
    return aggregate.level


def plain_sums(relation: Relation, terms: list[Term], factors: list[int], keys: tuple[GroupKey, ...]) -> Measure:
    """Build the measure of terms over rows that are bounded already."""
    values = tuple(weighted_value(term, factor) for term, factor in zip(terms, factors, strict=True))
    if values == (ONE,):
        return Count(relation, keys)
    return Sum(relation, values[0], keys) if len(values) == 1 else SumVector(relation, values, keys)


def may_be_negative(term: Term, scope: Scope) -> bool:
    """Return True if a term's values may be negative."""
    domain = term.value.domain(scope)
    return isinstance(domain, Number) and bounds_of(domain)[0] < 0


def typical_per_row(term: Term, signed: bool) -> Fraction:
    """Guess what a row adds to a term: a third of the most for a square, else half of it, or 0 for a signed sum."""
    if term.role == "count":
        return Fraction(1)
    if term.role == "product":
        return term.likely_steps * term.step / 3 if _is_square(term.value) else Fraction(0)
    return Fraction(0) if signed else term.likely_steps * term.step / 2


def _is_square(value: Expr) -> bool:
    match value:
        case expr.Arithmetic("*", left, right):
            return left == right
        case expr.Rounded(child=inner) | expr.Case(branches=((_, inner),)):
            return _is_square(inner)
        case _:
            return False


def count_values(domains: Sequence[Domain]) -> int | None:
    """Return the number of values, or of combinations of values, that columns declare, or None if one does not."""
    if not all(isinstance(domain, Number | Category | Boolean) for domain in domains):
        return None
    return prod(cardinality(domain) - domain.nullable for domain in domains)


def without_null(value: Expr, scope: Scope) -> Expr:
    """Return a value whose domain has no NULL, for rows that were filtered to have none: the bin of NULL is left out.

    A filter takes NULL out of the domain of a column, but not out of that of an expression over columns.
    """
    domain = value.domain(scope)
    if not isinstance(domain, Number) or not domain.nullable:
        return value
    return expr.Coalesce((value, expr.LiteralValue(min(max(domain.lo, Fraction(0)), domain.hi))))


def in_domain_order(values: Sequence[Scalar], domain: Domain) -> tuple[Scalar, ...]:
    """Sort key values as a declared key has them: a category's in the order of the schema, and NULL last."""
    order = {value: index for index, value in enumerate(domain.values)} if isinstance(domain, Category) else {}
    known: list[Any] = [value for value in values if value is not None]
    return (*sorted(known, key=lambda value: order.get(value, value)), *((None,) if None in values else ()))


def sample_value(domain: Domain, context: Context) -> Scalar:
    """Return some value of a domain, as a placeholder for a key that is not selected yet."""
    match domain:
        case Number(lo=lo) | Moment(lo=lo):
            return lo
        case Category(values=values):
            return values[0] if values else None
        case Boolean():
            return False
        case Reference(table=table, column=column) if public := context.public_values(table, column):
            return public[0]
        case Reference(kind="text"):
            return ""
        case Reference():
            return 0
        case Identifier():
            raise Unsupported("an identifier cannot be a GROUP BY key of the answer")
