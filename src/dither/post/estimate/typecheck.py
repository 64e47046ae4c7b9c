"""Type-check formulas over aggregates before any budget is spent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from dither.errors import Unsupported
from dither.plan.context import Context
from dither.plan.sql.scope import Scope
from dither.post.formulas import (
    Average,
    ChosenValue,
    ClampedTo,
    FixedValue,
    Formula,
    FunctionCall,
    KeyValue,
    NoisyCell,
    WindowSum,
    cells_of,
)
from dither.post.query.question import AggregateCall, Question
from dither.schema import Boolean, Category, Domain, Identifier, Moment, Number

ValueType = Literal["number", "text", "boolean", "date", "NULL"]
SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "mod": "%", "neg": "-"}
COMPARISON_FUNCTIONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "isin"})
LOGICAL_FUNCTIONS = frozenset({"and", "or", "not"})
SAME_TYPE_FUNCTIONS = frozenset({"coalesce", "nullif"})


def check_types(question: Question, context: Context) -> None:
    """Refuse a question whose columns, HAVING or ORDER BY combine values of different types."""
    scope = Scope(question.relation.domain(context))
    keys = [domain_type(key.domain(scope)) for _, key in question.keys]
    cells = [_aggregate_type(aggregate, scope) for aggregate in question.aggregates]
    for output in question.outputs:
        if isinstance(output.node, NoisyCell):
            continue
        if value_type(output.node, keys, cells) in {"text", "date"} and cells_of(output.node):
            raise Unsupported(
                f"{output.name!r} would be a text or a date that noisy numbers decide on, without an interval; "
                "ask for the numbers, and decide in your own code"
            )
    if question.having is not None:
        _require_type("boolean", "HAVING", [value_type(question.having, keys, cells)])
    for term in question.order:
        value_type(term.node, keys, cells)


def _aggregate_type(aggregate: AggregateCall, scope: Scope) -> ValueType:
    """Return the type of an aggregate: a date for MIN, MAX and quantiles of dates, else a number."""
    ranked = aggregate.kind in ("min", "max", "quantile")
    return "date" if ranked and isinstance(aggregate.values[0].domain(scope), Moment) else "number"


def domain_type(domain: Domain) -> ValueType:
    """Return the type of a GROUP BY key."""
    match domain:
        case Boolean():
            return "boolean"
        case Moment():
            return "date"
        case Number() | Identifier(kind="integer"):
            return "number"
        case Category(values) if all(isinstance(value, int) for value in values):
            return "number"
        case _:
            return "text"


def value_type(node: Formula, keys: Sequence[ValueType], cells: Sequence[ValueType] = ()) -> ValueType:
    """Return the type of a formula's values; refuse types that do not go together. Other cells are numbers."""
    match node:
        case NoisyCell(index) if index < len(cells):
            return cells[index]
        case KeyValue(index):
            return keys[index]
        case FixedValue(None):
            return "NULL"
        case FixedValue(bool()):
            return "boolean"
        case FixedValue(str()):
            return "text"
        case FunctionCall(name, arguments):
            return _result_type(name, [value_type(argument, keys, cells) for argument in arguments])
        case WindowSum(inner):
            _require_type("number", "SUM", [value_type(inner, keys, cells)])
            return "number"
        case NoisyCell() | FixedValue() | ChosenValue() | Average() | ClampedTo():
            return "number"


def _result_type(name: str, arguments: list[ValueType]) -> ValueType:
    """The type of a function's result; refuse arguments that it does not take."""
    if name == "case":
        paired = len(arguments) // 2 * 2
        _require_type("boolean", "WHEN", arguments[:paired:2])
        return _common_type("THEN and ELSE", [*arguments[1:paired:2], *arguments[paired:]])
    if name == "grouping":
        return "number"
    if name == "isnull":
        return "boolean"
    if name in COMPARISON_FUNCTIONS:
        _common_type("a comparison", arguments)
        return "boolean"
    if name in SAME_TYPE_FUNCTIONS:
        return _common_type(name.upper(), arguments)
    wanted: ValueType = "boolean" if name in LOGICAL_FUNCTIONS else "number"
    _require_type(wanted, SIGNS.get(name, name.upper()), arguments)
    return wanted


def _require_type(wanted: ValueType, where: str, types: Sequence[ValueType]) -> None:
    wrong = [one for one in types if one not in (wanted, "NULL")]
    if wrong:
        raise Unsupported(f"{where} takes a {wanted} here, not a {wrong[0]}")


def _common_type(where: str, types: Sequence[ValueType]) -> ValueType:
    known = sorted({one for one in types if one != "NULL"})
    if len(known) > 1:
        hint = "; compare dates with a date literal in WHERE instead" if "date" in known else ""
        raise Unsupported(f"{where} takes values of one type, not a {known[0]} and a {known[1]}{hint}")
    return known[0] if known else "NULL"
