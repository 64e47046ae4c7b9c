"""Name what a sum adds up, for notes: the values of a column, their squares, or the products of two columns."""

from __future__ import annotations

from collections.abc import Sequence

from dither.plan import expressions as expr
from dither.plan.expressions.core import Expr
from dither.plan.measures.core import Measure
from dither.plan.measures.grouped import GroupedMeasure
from dither.plan.relations.group_by import GroupBy
from dither.plan.traversal import walk

UNNAMED = "values"


def summed_text(measure: Measure) -> str:
    """Name what a search adds up for each unit; `values` if its term is none of those that have a name."""
    grouped = [node for node in walk(measure) if isinstance(node, GroupBy) and node.aggregates]
    keys = [key.value for key in measure.keys] if isinstance(measure, GroupedMeasure) else []
    # The innermost aggregates read the columns; a row of a unit with one row is measured without any.
    terms = [each.value for each in grouped[-1].aggregates if each.value is not None] if grouped else keys
    text = term_text(terms[0]) if len(terms) == 1 else UNNAMED
    return _product_text(text, keys) if grouped else text


def _product_text(text: str, keys: Sequence[Expr]) -> str:
    """Name a term of the rows of a subquery, whose columns add up what `text` names: these may be multiplied."""
    match _factors(keys[0]) if len(keys) == 1 else ():
        case (one, other):
            kind = "squares" if one == other else "products"
            return kind + text.removeprefix(UNNAMED) if text.startswith(UNNAMED) else kind
        case _:
            return text


def term_text(term: Expr) -> str:
    """Name a term.

    >>> term_text(expr.ColumnRef("x")), term_text(expr.Arithmetic("*", expr.ColumnRef("x"), expr.ColumnRef("x")))
    ('values of x', 'squares of x')
    """
    match _factors(term):
        case (one,):
            return f"values of {one}"
        case (one, other) if one == other:
            return f"squares of {one}"
        case (one, other):
            return f"products of {one} and {other}"
        case _:
            return UNNAMED


def _factors(node: Expr) -> tuple[str, ...]:
    """Return the columns whose product a term is, but for constants that are added; none if it is anything else."""
    match node:
        case expr.ColumnRef(name):
            return (name,)
        case expr.Rounded(child=child) | expr.Clamp(child=child) | expr.Bucket(child=child):
            return _factors(child)
        case expr.Absolute(child=child) | expr.Coalesce(children=(child, expr.LiteralValue())):
            return _factors(child)
        case expr.Case(branches=((_, child),), default=expr.LiteralValue()):
            return _factors(child)
        case expr.LeastGreatest(children=children):
            found = {_factors(child) for child in children}
            return found.pop() if len(found) == 1 else ()
        case expr.Arithmetic("*", left, right):
            return tuple(name for side in (left, right) if not _is_constant(side) for name in _factors(side))
        case expr.Arithmetic("-", left, right) if _is_constant(left) or _is_constant(right):
            return _factors(right if _is_constant(left) else left)
        case _:
            return ()


def _is_constant(node: Expr) -> bool:
    return not any(isinstance(part, expr.ColumnRef) for part in walk(node))
