"""Kinds of values in what is computed from answers: a mistake is told before anything is spent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from dither.errors import Unsupported
from dither.plan.context import Context
from dither.plan.sql.scope import Scope
from dither.post.formulas import Average, ClampedTo, FixedValue, Formula, FunctionCall, KeyValue, NoisyCell, cells_of
from dither.post.query.question import Question
from dither.schema import Boolean, Category, Domain, Identifier, Moment, Number

ValueType = Literal["number", "text", "truth value", "moment", "NULL"]
COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "isin"})
LOGIC = frozenset({"and", "or", "not"})
SAME = frozenset({"coalesce", "nullif"})


def check_types(question: Question, context: Context) -> None:
    """Refuses a question whose answer could not be put together."""
    scope = Scope(question.relation.domain(context))
    keys = [domain_type(key.domain(scope)) for _, key in question.keys]
    for output in question.outputs:
        if value_type(output.node, keys) in {"text", "moment"} and cells_of(output.node):
            raise Unsupported(
                f"{output.name!r} would be chosen by noisy numbers; ask for the numbers and choose outside"
            )
    if question.having is not None:
        _all_of("truth value", "HAVING", [value_type(question.having, keys)])
    for term in question.order:
        value_type(term.node, keys)


def domain_type(domain: Domain) -> ValueType:
    """The kind of a grouping key."""
    match domain:
        case Boolean():
            return "truth value"
        case Moment():
            return "moment"
        case Number() | Identifier(kind="integer"):
            return "number"
        case Category(values) if all(isinstance(value, int) for value in values):
            return "number"
        case _:
            return "text"


def value_type(node: Formula, keys: Sequence[ValueType]) -> ValueType:
    """The kind of what a recipe computes; kinds that do not go together are refused."""
    match node:
        case KeyValue(index):
            return keys[index]
        case FixedValue(None):
            return "NULL"
        case FixedValue(bool()):
            return "truth value"
        case FixedValue(str()):
            return "text"
        case FunctionCall(name, arguments):
            return _applied(name, [value_type(argument, keys) for argument in arguments])
        case NoisyCell() | FixedValue() | Average() | ClampedTo():
            return "number"


def _applied(name: str, found: list[ValueType]) -> ValueType:
    if name == "case":
        whole = len(found) // 2 * 2
        _all_of("truth value", "WHEN", found[:whole:2])
        return _same("THEN and ELSE", [*found[1:whole:2], *found[whole:]])
    if name == "isnull" or name in COMPARISONS:
        _same("a comparison", found) if name != "isnull" else None
        return "truth value"
    if name in SAME:
        return _same(name.upper(), found)
    wanted: ValueType = "truth value" if name in LOGIC else "number"
    _all_of(wanted, name.upper(), found)
    return wanted


def _all_of(wanted: ValueType, where: str, found: Sequence[ValueType]) -> None:
    wrong = [one for one in found if one not in (wanted, "NULL")]
    if wrong:
        raise Unsupported(f"{where} takes a {wanted} here, not a {wrong[0]}")


def _same(where: str, found: Sequence[ValueType]) -> ValueType:
    known = sorted({one for one in found if one != "NULL"})
    if len(known) > 1:
        hint = "; filter moments in WHERE, by a date" if "moment" in known else ""
        raise Unsupported(f"{where} takes values of one kind, not a {known[0]} and a {known[1]}{hint}")
    return known[0] if known else "NULL"
