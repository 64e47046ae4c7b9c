"""Texts that are compared with moments, read as the dates that they mean: WHERE at < '2020-02-01'."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

from dither.errors import DitherError
from dither.plan import expressions as expr
from dither.plan.context import Context
from dither.plan.expressions.core import Expr
from dither.plan.relations.core import Relation
from dither.plan.sql.scope import Scope
from dither.post.query.question import Question
from dither.post.query.scalars import instant
from dither.schema import Moment

Domains = Callable[[], Scope]


def resolve_date_literals(question: Question, context: Context) -> Question:
    """The question with dates where its text had only their spelling."""
    relation = _below(question.relation, context)
    return _read(replace(question, relation=relation), _over(relation, context))  # type: ignore[no-any-return]


def _below(node: Relation, context: Context) -> Relation:
    """What a relation's own expressions compare; those of a join read two tables and compare no texts."""
    inputs = {name: _below(value, context) for name, value in vars(node).items() if isinstance(value, Relation)}
    node = replace(node, **inputs) if inputs else node  # type: ignore[type-var]
    if len(inputs) != 1:
        return node
    (child,) = inputs.values()
    return _read(node, _over(child, context))  # type: ignore[no-any-return]


def _over(relation: Relation, context: Context) -> Domains:
    return lambda: Scope(relation.domain(context))


def _read(node: Any, domains: Domains) -> Any:
    """Expressions inside a node, but not those of other relations."""
    if isinstance(node, tuple):
        return tuple(_read(item, domains) for item in node)
    if not is_dataclass(node) or isinstance(node, type):
        return node
    parts = {part.name: getattr(node, part.name) for part in fields(node)}
    changed = {name: _read(value, domains) for name, value in parts.items() if not isinstance(value, Relation)}
    made = replace(node, **{name: value for name, value in changed.items() if value is not parts[name]})
    return _compared(made, domains) if isinstance(made, Expr) else made


def _compared(node: Expr, domains: Domains) -> Expr:
    match node:
        case expr.Compare(left=left, right=expr.LiteralValue(str() as text)) if _moment(left, domains):
            return replace(node, right=instant(text))
        case expr.Compare(left=expr.LiteralValue(str() as text), right=right) if _moment(right, domains):
            return replace(node, left=instant(text))
        case expr.In(child=child, values=values) if _texts(values) and _moment(child, domains):
            return expr.In(child, tuple(instant(str(value)).microseconds for value in values))
        case _:
            return node


def _texts(values: tuple[object, ...]) -> bool:
    return bool(values) and all(isinstance(value, str) for value in values)


def _moment(node: Expr, domains: Domains) -> bool:
    """Whether a value is a moment; what has no domain is refused where it is looked at for its own sake."""
    try:
        return isinstance(node.domain(domains()), Moment)
    except DitherError:
        return False
