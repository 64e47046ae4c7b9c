"""Part of the former access.relation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil, floor

from sqlglot import exp

from dither.plan.context import Context
from dither.plan.domains import as_boolean, number, span, with_null
from dither.plan.expressions.core import ColumnRef, Expr, LiteralValue, condition, domain_of
from dither.plan.expressions.logic import And, Compare, In, IsNull, Not
from dither.plan.expressions.time import Instant
from dither.plan.relations.core import Relation, all_columns
from dither.plan.sql.builders import select
from dither.plan.sql.scope import Scope
from dither.plan.sql.statement import SqlStatement
from dither.plan.stability import Stability
from dither.schema import Category, Domain, Moment, Number


@dataclass(frozen=True)
class Filter(Relation):
    """The rows for which the condition is true; refines the domains of columns compared with constants."""

    proof = "where.md"
    child: Relation
    condition: Expr

    def domain(self, ctx: Context) -> dict[str, Domain]:
        columns = self.child.domain(ctx)
        as_boolean(domain_of(self.condition, Scope(columns)), "WHERE")
        for part in _conjuncts(self.condition):
            columns = _refine(columns, part)
        return columns

    def stability(self, ctx: Context, unit: str) -> Stability:
        child = self.child.stability(ctx, unit)
        if child.per_key is None or child.per_key.means(child.per_key.keys, self.domain(ctx)):
            return child
        return replace(child, per_key=None)

    def packed(self, statement: SqlStatement) -> frozenset[str]:
        return self.child.packed(statement)

    def select(self, statement: SqlStatement) -> exp.Select:
        table, scope = statement.table(self.child), statement.scope(self.child)
        columns = all_columns(statement, self.child)
        # The condition must hold: NULL drops the row.
        return select(*columns).from_(table, copy=False).where(condition(self.condition, scope, "WHERE"), copy=False)


def _conjuncts(node: Expr) -> Iterator[Expr]:
    if isinstance(node, And):
        for child in node.children:
            yield from _conjuncts(child)
    else:
        yield node


FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "<>": "<>"}


def _refine(columns: dict[str, Domain], part: Expr) -> dict[str, Domain]:
    """What a true conjunct says about a column; a contradiction says nothing, and the answer keeps its shape."""
    match part:
        case Compare(op=op, left=ColumnRef(name=name), right=(LiteralValue() | Instant()) as bound):
            return {**columns, name: _refine_comparison(columns[name], op, bound.domain(Scope(columns)))}
        case Compare(op=op, left=(LiteralValue() | Instant()) as bound, right=ColumnRef(name=name)):
            return {**columns, name: _refine_comparison(columns[name], FLIPPED[op], bound.domain(Scope(columns)))}
        case In(child=ColumnRef(name=name)):
            return {**columns, name: _keep_values(columns[name], part.held(columns[name]))}
        case Not(child=IsNull(child=ColumnRef(name=name))):
            return {**columns, name: with_null(columns[name], False)}
        case _:
            return columns


def _refine_comparison(domain: Domain, op: str, bound: Domain) -> Domain:
    domain = with_null(domain, False)
    match domain, bound:
        case Number(step=step), Number():
            return _intersect(domain, op, floor(bound.lo / step), ceil(bound.lo / step))
        case Moment(), Moment():
            # Whole microseconds: what lies before an instant ends one earlier, in the window before it.
            return _intersect(domain, op, bound.lo - (op == "<"), bound.lo + (op == ">"))
        case Category(values=values), Category(values=(wanted,)) if op == "=":
            return replace(domain, values=tuple(v for v in values if v == wanted) or values)
        case Category(values=values), Category(values=(wanted,)) if op == "<>":
            return replace(domain, values=tuple(v for v in values if v != wanted) or values)
        case _:
            return domain


def _intersect(domain: Number | Moment, op: str, below: int, above: int) -> Domain:
    """The part of a domain on one side of a bound, which is included."""
    lo, hi = span(domain)
    match op:
        case "<" | "<=":
            hi = min(hi, below)
        case ">" | ">=":
            lo = max(lo, above)
        case "=":
            lo, hi = max(lo, above), min(hi, below)
    if lo > hi:
        return domain
    if isinstance(domain, Number):
        return number(lo, hi, domain.step, domain.nullable)
    return replace(domain, lo=lo, hi=hi)


def _keep_values(domain: Domain, held: list[int | str | bool]) -> Domain:
    domain = with_null(domain, False)
    if isinstance(domain, Category):
        return replace(domain, values=tuple(v for v in domain.values if v in held) or domain.values)
    whole_numbers = [value for value in held if isinstance(value, int)]
    if isinstance(domain, Number | Moment) and whole_numbers:
        low = _intersect(domain, ">=", min(whole_numbers), min(whole_numbers))
        return (
            _intersect(low, "<=", max(whole_numbers), max(whole_numbers)) if isinstance(low, Number | Moment) else low
        )
    return domain
