"""Resolve what depends on the domains of columns: texts compared with dates or categories, truth values as numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from dither.errors import DitherError
from dither.plan import expressions as expr
from dither.plan.context import Context
from dither.plan.expressions.core import Expr
from dither.plan.relations.core import Relation
from dither.plan.sql.scope import Scope
from dither.post.query.declared_values import check_comparison, check_key_comparisons, without_filters
from dither.post.query.intervals import resolve_date_arithmetic
from dither.post.query.literals import parse_instant
from dither.post.query.public_values import as_bins
from dither.post.query.question import Question
from dither.post.query.truth_values import read_as_number
from dither.schema import Moment, Number

NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")


@dataclass(frozen=True)
class LazyScope:
    """The columns of a relation, computed when they are needed, and the zone of their wall clock."""

    relation: Relation
    context: Context

    def __call__(self) -> Scope:
        return Scope(self.relation.domain(self.context))

    def before_filters(self) -> Scope:
        """The columns with the values that they have before conditions leave some of them out."""
        return without_filters(self.relation, self.context)

    def instant(self, text: str) -> expr.Instant:
        """Parse a text that is compared with a date or timestamp."""
        return parse_instant(text, self.context.dataset.timezone)


def resolve_date_literals(question: Question, context: Context) -> Question:
    """Replace text literals by dates, everywhere in a question where they are compared with a date or timestamp."""
    relation = _resolve_relation(question.relation, context)
    scope = LazyScope(relation, context)
    resolved: Question = _resolve_node(replace(question, relation=relation), scope)
    check_key_comparisons(resolved, context)
    return replace(resolved, keys=tuple((name, as_bins(key, scope())) for name, key in resolved.keys))


def _resolve_relation(node: Relation, context: Context) -> Relation:
    """Resolve the literals of a relation and of those below it; joins compare columns only, so they have none."""
    inputs = {
        name: _resolve_relation(value, context) for name, value in vars(node).items() if isinstance(value, Relation)
    }
    node = replace(node, **inputs) if inputs else node  # type: ignore[type-var]
    if len(inputs) != 1:
        return node
    (child,) = inputs.values()
    return _resolve_node(node, LazyScope(child, context))  # type: ignore[no-any-return]


def _resolve_node(node: Any, scope: LazyScope) -> Any:
    """Resolve the expressions inside a node, except those of other relations."""
    if isinstance(node, tuple):
        return tuple(_resolve_node(item, scope) for item in node)
    if not is_dataclass(node) or isinstance(node, type):
        return node
    parts = {part.name: getattr(node, part.name) for part in fields(node)}
    resolved = {name: _resolve_node(value, scope) for name, value in parts.items() if not isinstance(value, Relation)}
    changed = replace(node, **{name: value for name, value in resolved.items() if value is not parts[name]})
    changed = read_as_number(changed, scope)
    if not isinstance(changed, Expr):
        return changed
    compared = _resolve_comparison(changed, scope)
    check_comparison(compared, scope, scope.before_filters)
    return compared


def _resolve_comparison(node: Expr, scope: LazyScope) -> Expr:
    match node:
        case expr.Compare(left=left, right=expr.LiteralValue(str() as text)) if _is_of_kind(left, scope, Moment):
            return replace(node, right=scope.instant(text))
        case expr.Compare(left=expr.LiteralValue(str() as text), right=right) if _is_of_kind(right, scope, Moment):
            return replace(node, left=scope.instant(text))
        case expr.In(child=child, values=values) if _any_text(values) and _is_of_kind(child, scope, Moment):
            return expr.In(child, tuple(scope.instant(v).microseconds if isinstance(v, str) else v for v in values))
        case expr.Arithmetic("+" | "-", left) if _is_of_kind(left, scope, Moment):
            return resolve_date_arithmetic(node, scope())
        case expr.Compare(left=left, right=expr.LiteralValue(str() as text)) if NUMBER.fullmatch(text):
            return _require_unquoted(node, left, scope)
        case expr.Compare(left=expr.LiteralValue(str() as text), right=right) if NUMBER.fullmatch(text):
            return _require_unquoted(node, right, scope)
        case _:
            return node


def _require_unquoted(node: Expr, other: Expr, scope: LazyScope) -> Expr:
    """Return a comparison with a text of digits; refuse it, with advice, if the other side is a number."""
    if _is_of_kind(other, scope, Number):
        try:
            node.domain(scope())
        except DitherError as refusal:
            raise type(refusal)(f"{refusal}; write the number without quotes") from None
    return node


def _any_text(values: tuple[object, ...]) -> bool:
    return any(isinstance(value, str) for value in values)


def _is_of_kind(node: Expr, scope: LazyScope, kind: type[Moment | Number]) -> bool:
    """Return True if a value has this kind of domain; an expression without a domain is refused later."""
    try:
        return isinstance(node.domain(scope()), kind)
    except DitherError:
        return False
