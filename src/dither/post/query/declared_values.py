"""Refuse comparisons of a category with a text that it can never be: declared values are public, so a slip is seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any
from unicodedata import normalize

from dither.errors import DitherError, InvalidQuery
from dither.plan import expressions as expr
from dither.plan.context import Context
from dither.plan.expressions.core import Expr
from dither.plan.relations.core import Relation
from dither.plan.relations.filter import Filter
from dither.plan.sql.scope import Scope
from dither.plan.traversal import transform, walk
from dither.post.formulas import FixedValue, FunctionCall, KeyValue
from dither.post.query.question import Question
from dither.schema import Category

MOST_LISTED = 12
LazyScope = Callable[[], Scope]


def without_filters(relation: Relation, context: Context) -> Scope:
    """Return the columns of a relation with the values that they have before conditions leave some of them out."""
    everything: Relation = transform(relation, lambda node: node.child if isinstance(node, Filter) else node)
    return Scope(everything.domain(context))


def check_comparison(node: Expr, scope: LazyScope, unfiltered: LazyScope) -> None:
    """Refuse a comparison or an IN list with a text that is not among the declared values of the other side."""
    match node:
        case expr.Compare(op="=" | "<>", left=left, right=expr.LiteralValue(str() as text)):
            _check_texts(left, (text,), (scope, unfiltered))
        case expr.Compare(op="=" | "<>", left=expr.LiteralValue(str() as text), right=right):
            _check_texts(right, (text,), (scope, unfiltered))
        case expr.In(child=child, values=values):
            _check_texts(child, values, (scope, unfiltered))


def check_key_comparisons(question: Question, context: Context) -> None:
    """Refuse comparisons of GROUP BY keys, in SELECT, HAVING and ORDER BY, with texts that they can never be."""
    formulas = [*(output.node for output in question.outputs), *(term.node for term in question.order)]
    for node in (part for formula in (*formulas, question.having) for part in walk(formula)):
        match node:
            case FunctionCall("eq" | "ne" | "isin", arguments):
                keys = [question.keys[each.index][1] for each in arguments if isinstance(each, KeyValue)]
                texts = [each.value for each in arguments if isinstance(each, FixedValue)]
                if len(keys) == 1 and texts:
                    _check_texts(keys[0], texts, (lambda: without_filters(question.relation, context),))


def _check_texts(compared: Expr, values: Sequence[Any], scopes: Sequence[LazyScope]) -> None:
    """Refuse texts that are not among a category's values in any of the scopes; programs write '' for nothing."""
    texts = [value for value in values if isinstance(value, str) and value]
    if not texts or isinstance(compared, expr.LiteralValue):
        return
    declared: tuple[str, ...] = ()
    unknown = texts
    for scope in scopes:
        declared = _category_values(compared, scope)
        known = {normalize("NFC", value) for value in declared}
        unknown = [text for text in unknown if normalize("NFC", text) not in known]
        if not unknown or not declared:
            return
    name, whose = (compared.name, "declared") if isinstance(compared, expr.ColumnRef) else ("an expression", "possible")
    raise InvalidQuery(
        f"{name} is compared with {unknown[0][:40]!r}, which is none of its {whose} values: {_value_list(declared)}"
        f"{_suggestion(unknown[0], declared)}"
    )


def _category_values(compared: Expr, scope: LazyScope) -> tuple[str, ...]:
    """Return the values that a category can have; none for anything else, or where it is refused later."""
    try:
        domain = compared.domain(scope())
    except DitherError:
        return ()
    return domain.values if isinstance(domain, Category) else ()


def _value_list(values: Sequence[str]) -> str:
    """List values, as many as a message can hold."""
    more = f" and {len(values) - MOST_LISTED} more" if len(values) > MOST_LISTED else ""
    return ", ".join(repr(value[:40]) for value in values[:MOST_LISTED]) + more


def _suggestion(text: str, values: Sequence[str]) -> str:
    """Suggest the value that was probably meant."""
    folded = {value.casefold(): value for value in values}
    close = get_close_matches(text.casefold(), folded, 1)
    return f"; did you mean {folded[close[0]][:40]!r}?" if close else "; write one of them"
