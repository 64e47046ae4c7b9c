"""How SQL is spelled: builders shared by all engines, and the few spellings in which engines differ.

`Spelling` is written for DuckDB; another engine subclasses it and overrides what its dialect says otherwise. Every
method takes and returns sqlglot expressions: nothing is pasted together as text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from dither.errors import Unsupported

Sql = exp.Expr
FEW_VALUES = 32
NUMBER = "^[-+]?[0-9]{1,18}([.][0-9]{1,18})?([eE][-+]?[0-9]{1,2})?$"
# Only days that exist, in the years 1 to 9999, and no 24:00: engines differ about the rest, or fail on it.
YEAR = "(000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
LEAP = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
MONTHS = "(0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8])"
TIME = "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]([.][0-9]{1,6})?"
MOMENT = f"^({YEAR}-({MONTHS})|{LEAP}-02-29)([ T]{TIME})?$"


def integer(value: int) -> Sql:
    """A 64-bit integer constant; refused where it is none, before an engine could fail on it."""
    return cast(literal(value), "bigint")


def literal(value: int) -> Sql:
    """An integer constant that stands beside a 64-bit operand."""
    if not fits_64_bits(value):
        raise Unsupported("a number in the plan does not fit into 64 bits")
    return exp.Literal.number(value)


def fits_64_bits(value: int) -> bool:
    """Whether every engine can hold an integer."""
    return -(1 << 63) <= value < 1 << 63


def double(value: int) -> Sql:
    """An integer as a double constant."""
    return cast(exp.Literal.number(value), "double")


def string(value: str) -> Sql:
    """A text constant, escaped by the generator."""
    return exp.Literal.string(value)


def null(kind: str) -> Sql:
    """A typed NULL."""
    return cast(exp.null(), kind)


def detached(node: Sql) -> Sql:
    """A node that may become part of another: itself while it is nobody's, else a copy."""
    return node if node.parent is None else node.copy()


TYPES = {
    "bigint": exp.DType.BIGINT,
    "double": exp.DType.DOUBLE,
    "varchar": exp.DType.VARCHAR,
    "boolean": exp.DType.BOOLEAN,
    "timestamp": exp.DType.TIMESTAMP,
    "hugeint": exp.DType.INT128,
}


def cast(node: Sql, kind: str) -> Sql:
    """CAST(node AS kind)."""
    return exp.Cast(this=detached(node), to=exp.DataType(this=TYPES[kind]))


def try_cast(node: Sql, kind: str) -> Sql:
    """The cast, NULL where it is not possible."""
    return exp.TryCast(this=detached(node), to=exp.DataType(this=TYPES[kind]))


def wrap(node: Sql) -> Sql:
    """A node that can stand as an operand."""
    atomic = isinstance(node, exp.Column | exp.Cast | exp.Func | exp.Case | exp.Paren | exp.Null | exp.Boolean) or (
        isinstance(node, exp.Literal) and not node.is_string
    )
    return detached(node) if atomic else exp.Paren(this=detached(node))


def binary(kind: type[exp.Binary], left: Sql, right: Sql) -> Sql:
    """An infix operator with its operands in parentheses where needed."""
    first = wrap(left)
    return kind(this=first, expression=wrap(right) if right is not first else first.copy())


def add(left: Sql, right: Sql | int) -> Sql:
    """The sum; adding the constant 0 leaves the left side alone."""
    if isinstance(right, int):
        return (
            left if right == 0 else binary(exp.Add, left, literal(right)) if right > 0 else sub(left, literal(-right))
        )
    return binary(exp.Add, left, right)


def add_all(terms: Sequence[Sql]) -> Sql:
    """The sum of terms, at least one; nested no deeper than it must be."""
    if len(terms) == 1:
        return terms[0]
    middle = (len(terms) + 1) // 2
    return binary(exp.Add, add_all(terms[:middle]), add_all(terms[middle:]))


@dataclass(frozen=True)
class Extent:
    """How large a statement is: its nodes, how many of them stand inside each other, and the columns of a SELECT."""

    nodes: int
    depth: int
    columns: int


def extent(tree: Sql) -> Extent:
    """A statement's extent at its largest; a chain of ANDs or ORs is written and read as one."""
    nodes = depth = columns = 0
    left = [(tree, 1)]
    while left:
        node, level = left.pop()
        nodes, depth = nodes + 1, max(depth, level)
        if isinstance(node, exp.Select):
            columns = max(columns, len(node.expressions))
        chain = type(node) if isinstance(node, exp.Connector) else None
        left += [(child, level if type(child) is chain else level + 1) for child in node.iter_expressions()]
    return Extent(nodes, depth, columns)


def sub(left: Sql, right: Sql) -> Sql:
    """The difference."""
    return binary(exp.Sub, left, right)


def times(left: Sql, right: Sql | int) -> Sql:
    """The product; multiplying by the constant 1 leaves the left side alone."""
    if isinstance(right, int):
        return left if right == 1 else binary(exp.Mul, left, literal(right))
    return binary(exp.Mul, left, right)


def and_(conditions: Sequence[Sql]) -> Sql:
    """The conjunction."""
    return exp.and_(*map(detached, conditions), copy=False) if conditions else exp.true()


def or_(conditions: Sequence[Sql]) -> Sql:
    """The disjunction."""
    return exp.or_(*map(detached, conditions), copy=False) if conditions else exp.false()


def not_(condition: Sql) -> Sql:
    """NOT."""
    return exp.not_(detached(condition), copy=False)


def is_null(value: Sql) -> Sql:
    """Whether there is no value."""
    return binary(exp.Is, value, exp.null())


def is_not_null(value: Sql) -> Sql:
    """Whether there is a value."""
    return not_(is_null(value))


def case(branches: Sequence[tuple[Sql, Sql]], default: Sql | None = None) -> Sql:
    """CASE WHEN ... THEN ... ELSE ... END; without branches, the default."""
    if not branches and default is not None:
        return detached(default)
    result = exp.Case(ifs=[exp.If(this=detached(when), true=detached(then)) for when, then in branches])
    if default is not None:
        result.set("default", detached(default))
    return result


def call(name: str, *arguments: Sql) -> Sql:
    """A function of SQL known to sqlglot by that name."""
    return exp.func(name, *map(detached, arguments), copy=False)


def select(*columns: Sql) -> exp.Select:
    """SELECT of these columns; builders on it may change it in place (copy=False), since nobody else has it yet."""
    return exp.Select(expressions=[detached(column) for column in columns])


def within(value: Sql, lo: int, hi: int) -> Sql:
    """The nearest integer from lo to hi; the value must not be NULL."""
    return call("LEAST", call("GREATEST", value, integer(lo)), integer(hi))


def rows_count() -> Sql:
    """COUNT(*)."""
    return exp.Count(this=exp.Star())
