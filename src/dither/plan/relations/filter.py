"""The Filter operator, which also narrows the domains of columns compared with constants."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil, floor

from sqlglot import exp

from dither.plan.context import Context
from dither.plan.domains import as_boolean, number, span, with_null
from dither.plan.expressions.core import ColumnRef, Expr, LiteralValue, condition_sql, domain_of
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
    """The rows for which the condition is true; narrows the domains of columns compared with constants."""

    proof = "filter.md"
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
        if child.per_key is None or child.per_key.applies_to(child.per_key.keys, self.domain(ctx)):
            return child
        return replace(child, per_key=None)

    def enum_columns(self, statement: SqlStatement) -> frozenset[str]:
        return self.child.enum_columns(statement)

    def select(self, statement: SqlStatement) -> exp.Select:
        table, scope = statement.table(self.child), statement.scope(self.child)
        columns = all_columns(statement, self.child)
        # Only a true condition keeps the row: NULL drops it.
        return (
            select(*columns).from_(table, copy=False).where(condition_sql(self.condition, scope, "WHERE"), copy=False)
        )


def _conjuncts(node: Expr) -> Iterator[Expr]:
    """Yield the conditions that are joined by AND."""
    if isinstance(node, And):
        for child in node.children:
            yield from _conjuncts(child)
    else:
        yield node


MIRRORED_OPERATORS = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "<>": "<>"}


def _refine(columns: dict[str, Domain], part: Expr) -> dict[str, Domain]:
    """Narrow the domain of the column that a true conjunct restricts; a contradiction leaves the domain unchanged."""
    match part:
        case Compare(op=op, left=ColumnRef(name=name), right=(LiteralValue() | Instant()) as bound):
            return {**columns, name: _refine_comparison(columns[name], op, bound.domain(Scope(columns)))}
        case Compare(op=op, left=(LiteralValue() | Instant()) as bound, right=ColumnRef(name=name)):
            return {
                **columns,
                name: _refine_comparison(columns[name], MIRRORED_OPERATORS[op], bound.domain(Scope(columns))),
            }
        case In(child=ColumnRef(name=name)):
            return {**columns, name: _restrict_to_values(columns[name], part.encoded_values(columns[name]))}
        case Not(child=IsNull(child=ColumnRef(name=name))):
            return {**columns, name: with_null(columns[name], False)}
        case _:
            return columns


def _refine_comparison(domain: Domain, op: str, bound: Domain) -> Domain:
    """Narrow a domain by a comparison with a constant that is true."""
    domain = with_null(domain, False)
    match domain, bound:
        case Number(step=step), Number():
            return _intersect(domain, op, floor(bound.lo / step), ceil(bound.lo / step))
        case Moment(), Moment():
            # In whole microseconds, moments before an instant end one microsecond earlier, in the window before it.
            return _intersect(domain, op, bound.lo - (op == "<"), bound.lo + (op == ">"))
        case Category(values=values), Category(values=(constant,)) if op == "=":
            return replace(domain, values=tuple(v for v in values if v == constant) or values)
        case Category(values=values), Category(values=(constant,)) if op == "<>":
            return replace(domain, values=tuple(v for v in values if v != constant) or values)
        case _:
            return domain


def _intersect(domain: Number | Moment, op: str, below: int, above: int) -> Domain:
    """Return the part of a domain on one side of a bound (included), or the whole domain if that part is empty."""
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


def _restrict_to_values(domain: Domain, encoded_values: list[int | str | bool]) -> Domain:
    """Narrow a domain to the values of an IN that is true."""
    domain = with_null(domain, False)
    if isinstance(domain, Category):
        return replace(domain, values=tuple(v for v in domain.values if v in encoded_values) or domain.values)
    integers = [value for value in encoded_values if isinstance(value, int)]
    if isinstance(domain, Number | Moment) and integers:
        low = _intersect(domain, ">=", min(integers), min(integers))
        return _intersect(low, "<=", max(integers), max(integers)) if isinstance(low, Number | Moment) else low
    return domain
