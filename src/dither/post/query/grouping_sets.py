"""ROLLUP, CUBE and GROUPING SETS: the sets of keys that GROUP BY names, and one question for each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from sqlglot import exp

from dither.errors import Unsupported
from dither.post import formulas
from dither.post.query.question import Ordering, OutputColumn, Question
from dither.post.query.syntax import is_aggregate, nodes_outside_subqueries

MAX_SETS = 64
# The columns by which rows of several answers are put in order; they are not shown.
ORDER_COLUMN = "order by "
Terms = tuple[exp.Expr, ...]


def sets_of_terms(group: exp.Group) -> tuple[Terms, ...]:
    """Return the terms of each grouping set of GROUP BY; a plain GROUP BY has one set."""
    if group.args.get("rollup") or group.args.get("cube") or group.args.get("totals"):
        raise Unsupported("write GROUP BY ROLLUP (a, b) or GROUP BY CUBE (a, b), with the keys in parentheses")
    sizes = [_sets_of(term) for term in group.expressions]
    combined = tuple(tuple(dict.fromkeys(term for part in parts for term in part)) for parts in product(*sizes))
    if len(combined) > MAX_SETS:
        raise Unsupported(
            f"GROUP BY has {len(combined)} grouping sets, and the most is {MAX_SETS}; run several queries"
        )
    if len({frozenset(each) for each in combined}) < len(combined):
        raise Unsupported("a grouping set occurs twice in GROUP BY, and would be measured twice; name it once")
    return combined


def _sets_of(term: exp.Expr) -> list[Terms]:
    """Return the grouping sets of one term of GROUP BY."""
    match term:
        case exp.Rollup(expressions=parts):
            return [_flatten(parts[:size]) for size in range(len(parts), -1, -1)]
        case exp.Cube(expressions=parts):
            chosen = product((True, False), repeat=len(parts))
            return [_flatten([part for part, kept in zip(parts, flags, strict=True) if kept]) for flags in chosen]
        case exp.GroupingSets(expressions=parts):
            return [each for part in parts for each in _sets_of(part)]
        case exp.Tuple():
            return [_flatten([term])]
        case exp.Paren():
            return _sets_of(term.this)
        case _:
            return [(term,)]


def _flatten(parts: Sequence[exp.Expr]) -> Terms:
    """Return the terms of some parts; a tuple stands for all of its own."""
    return tuple(inner for part in parts for inner in (part.expressions if isinstance(part, exp.Tuple) else [part]))


def questions_of(question: Question) -> tuple[Question, ...]:
    """Return a question for each grouping set; a plain GROUP BY is itself the only one.

    Their answers are put in order together: the terms of ORDER BY are further columns, and no row is left out.
    """
    if not question.sets:
        return (question,)
    ordered = tuple(OutputColumn(f"{ORDER_COLUMN}{place}", term.node) for place, term in enumerate(question.order))
    return tuple(_question_of(question, kept, (*question.outputs, *ordered)) for kept in question.sets)


def _question_of(question: Question, kept: tuple[int, ...], outputs: tuple[OutputColumn, ...]) -> Question:
    """Return the question of one grouping set; the keys that it leaves out are NULL."""
    return replace(
        question,
        keys=tuple(question.keys[index] for index in kept),
        outputs=tuple(OutputColumn(output.name, _in_set(output.node, kept)) for output in outputs),
        having=_in_set(question.having, kept) if question.having is not None else None,
        order=tuple[Ordering, ...](),
        limit=None,
        offset=0,
        sets=(),
    )


def _in_set(node: formulas.Formula, kept: tuple[int, ...]) -> formulas.Formula:
    """Return a formula as it is in one grouping set: keys by their place in it, and GROUPING as a number."""
    match node:
        case formulas.KeyValue(index):
            return formulas.KeyValue(kept.index(index)) if index in kept else formulas.FixedValue(None)
        case formulas.FunctionCall("grouping", keys):
            bits = [isinstance(key, formulas.KeyValue) and key.index not in kept for key in keys]
            return formulas.FixedValue(float(sum(bit << place for place, bit in enumerate(reversed(bits)))))
        case formulas.FunctionCall(name, arguments):
            return formulas.FunctionCall(name, tuple(_in_set(argument, kept) for argument in arguments))
        case formulas.WindowSum():
            raise Unsupported(
                "SUM(...) OVER (...) does not go with ROLLUP, CUBE or GROUPING SETS, whose rows overlap; ask for the "
                "shares in a query of their own"
            )
        case _:
            return node


def refuse_grouping_sets(question: Question, option: str) -> None:
    """Refuse ROLLUP, CUBE and GROUPING SETS where an option takes a plain GROUP BY."""
    if question.sets:
        raise Unsupported(f"{option} takes a plain GROUP BY; run a query for each grouping set")


def terms_of_all(query: exp.Select) -> list[exp.Expr]:
    """Return the terms of GROUP BY ALL: the columns of SELECT without an aggregate."""
    items = [item.this if isinstance(item, exp.Alias) else item for item in query.expressions]
    return [item for item in items if not any(is_aggregate(part) for part in nodes_outside_subqueries(item))]
