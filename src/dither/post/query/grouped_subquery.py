"""Translate a subquery with GROUP BY: its aggregates become columns of a grouped relation, which are never released."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from sqlglot import exp

from dither.errors import InvalidQuery, Unsupported
from dither.plan import expressions as expr
from dither.plan.relations.group_by import GroupAggregate as Grouped
from dither.post.query.literals import sql_excerpt
from dither.post.query.scalars import ExpressionTranslator
from dither.post.query.syntax import conjoin, is_aggregate, is_present_literal, translate_condition
from dither.post.query.tables import NamedTable


@dataclass(frozen=True)
class GroupedSubquery:
    """Collects the aggregates of a subquery with GROUP BY, whose exact values are never released."""

    source: NamedTable
    keys: list[tuple[str, expr.Expr]]
    aggregates: list[Grouped] = field(default_factory=list)

    def translate(self, node: exp.Expr) -> expr.Expr:
        """Translate an expression over keys and aggregates into one over the grouped relation."""
        if isinstance(node, exp.Paren):
            return self.translate(node.this)
        if is_aggregate(node):
            return self.translate_aggregate(node)
        if not any(is_aggregate(part) for part in node.walk()):
            value = self.source.translator()(node)
            for name, key in self.keys:
                if key == value:
                    return expr.ColumnRef(name)
        return _OperandTranslator(self._refuse_column, self).translate_operator(node)

    def _refuse_column(self, column: exp.Column) -> expr.Expr:
        """Refuse a column that is no key: it is unknown, or it would have many values in a group."""
        self.source.find(column)
        raise InvalidQuery(
            f"{sql_excerpt(column)} is neither aggregated nor in GROUP BY; add it to GROUP BY or aggregate it"
        )

    def translate_aggregate(self, node: exp.Expr) -> expr.Expr:
        """Translate an aggregate; the mean of a unit has the range of the values that it averages."""
        condition = None
        if isinstance(node, exp.Filter):
            condition, node = translate_condition(self.source.translator(), node.expression.this), node.this
        if isinstance(node, exp.CountIf):
            condition, node = (
                conjoin(condition, translate_condition(self.source.translator(), node.this)),
                exp.Count(this=exp.Star()),
            )
        if isinstance(node, exp.Avg):
            return self.column_of("avg", self.source.translator()(node.this), condition)
        return self._translate_plain_aggregate(node, condition)

    def _translate_plain_aggregate(self, node: exp.Expr, condition: expr.Expr | None) -> expr.Expr:
        to = self.source.translator()
        match node:
            case exp.Count(this=exp.Distinct() as inner) if len(inner.expressions) == 1:
                return self.column_of("distinct", to(inner.expressions[0]), condition)
            case exp.Count(this=exp.Star()):
                return self.column_of("count", None, condition)
            case exp.Count() if not isinstance(node.this, exp.Distinct):
                return self.column_of("count", None if is_present_literal(node.this) else to(node.this), condition)
            case exp.Sum() | exp.Min() | exp.Max() if not isinstance(node.this, exp.Distinct):
                return self.column_of(type(node).__name__.lower(), to(node.this), condition)
        raise Unsupported(f"{sql_excerpt(node)}: a subquery may only have the aggregates COUNT, SUM, AVG, MIN and MAX")

    def column_of(self, kind: Any, value: expr.Expr | None, condition: expr.Expr | None) -> expr.Expr:
        """Return the column of the grouped relation that has an aggregate, and add it if it is new."""
        if condition is not None:
            value = expr.Case(
                ((condition, expr.LiteralValue(Fraction(1)) if value is None else value),), expr.LiteralValue(None)
            )
        for known in self.aggregates:
            if (known.kind, known.value) == (kind, value):
                return expr.ColumnRef(known.name)
        self.aggregates.append(Grouped(f"{kind}_{len(self.aggregates)}", kind, value))
        return expr.ColumnRef(self.aggregates[-1].name)


@dataclass(frozen=True)
class _OperandTranslator(ExpressionTranslator):
    """Passes the operands of an operator or function back to the subquery with GROUP BY around it."""

    subquery: GroupedSubquery

    def translate_operator(self, node: exp.Expr) -> expr.Expr:
        """Translate an operator or function; its handler calls this object for each operand."""
        return super().__call__(node)

    def __call__(self, node: exp.Expr) -> expr.Expr:
        if isinstance(node, exp.Column) and not _is_group_key(self.subquery, node):
            return self.resolve(node)
        return self.subquery.translate(node)


def _is_group_key(subquery: GroupedSubquery, node: exp.Column) -> bool:
    """Return True if a column is a GROUP BY key of the subquery."""
    return subquery.source.translator()(node) in [key for _, key in subquery.keys]
