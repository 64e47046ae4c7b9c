"""Builders of SQL expressions that all engines share.

Every function takes and returns sqlglot expressions: no SQL is concatenated as text. The operations in which engines
differ are methods of `dither.plan.sql.dialect.Dialect`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from dither.errors import Unsupported

Sql = exp.Expr
MAX_ENUM_VALUES = 32
# Some programs leave out the zero before or after the point, write more digits than a double has, or pad with spaces.
NUMBER_PATTERN = "^ {0,30}[-+]?([0-9]{1,18}([.][0-9]{0,30})?|[.][0-9]{1,30})([eE][-+]?[0-9]{1,2})? {0,30}$"
# Only days that exist, in the years 1 to 9999, and no 24:00: engines disagree on other texts, or fail on them.
YEAR = "(000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
LEAP = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
MONTHS = "(0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8])"
TIME = "([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9]([.][0-9]{1,9})?)?"
OFFSET = " ?(Z|UTC|[-+](0[0-9]|1[0-5])(:?[0-5][0-9](:?[0-5][0-9])?)?)"
MOMENT_PATTERN = f"^({YEAR}-({MONTHS})|{LEAP}-02-29)([ T]{TIME}({OFFSET})?)?$"
CLOCK_PATTERN = "^([0-9-]+([ T][0-9:]+)?)"


def integer(value: int) -> Sql:
    """Build a 64-bit integer constant; refuse integers that do not fit, before an engine could fail on them."""
    return cast(literal(value), "bigint")


def literal(value: int) -> Sql:
    """Build an untyped integer constant, to be used beside a 64-bit operand."""
    if not fits_64_bits(value):
        raise Unsupported("a number in the plan does not fit into 64 bits; use a smaller one")
    return exp.Literal.number(value)


def fits_64_bits(value: int) -> bool:
    """Tell whether every engine can store an integer."""
    return -(1 << 63) <= value < 1 << 63


def double(value: int) -> Sql:
    """Build a double constant from an integer."""
    return cast(exp.Literal.number(value), "double")


def string(value: str) -> Sql:
    """Build a text constant, escaped by the SQL generator."""
    return exp.Literal.string(value)


def null(kind: str) -> Sql:
    """Build a typed NULL."""
    return cast(exp.null(), kind)


def detach(node: Sql) -> Sql:
    """Return a node that can be put under a new parent: the node itself if it has no parent yet, else a copy."""
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
    """Build CAST(node AS kind)."""
    return exp.Cast(this=detach(node), to=exp.DataType(this=TYPES[kind]))


def try_cast(node: Sql, kind: str) -> Sql:
    """Build TRY_CAST(node AS kind), which is NULL where the cast is not possible."""
    return exp.TryCast(this=detach(node), to=exp.DataType(this=TYPES[kind]))


def wrap(node: Sql) -> Sql:
    """Put a node in parentheses unless it can be an operand without them."""
    atomic = isinstance(node, exp.Column | exp.Cast | exp.Func | exp.Case | exp.Paren | exp.Null | exp.Boolean) or (
        isinstance(node, exp.Literal) and not node.is_string
    )
    return detach(node) if atomic else exp.Paren(this=detach(node))


def binary(kind: type[exp.Binary], left: Sql, right: Sql) -> Sql:
    """Build an infix operator, with its operands in parentheses where needed."""
    first = wrap(left)
    return kind(this=first, expression=wrap(right) if right is not first else first.copy())


def add(left: Sql, right: Sql | int) -> Sql:
    """Build a sum; adding the constant 0 returns the left side."""
    if isinstance(right, int):
        return (
            left if right == 0 else binary(exp.Add, left, literal(right)) if right > 0 else sub(left, literal(-right))
        )
    return binary(exp.Add, left, right)


def add_all(terms: Sequence[Sql]) -> Sql:
    """Build the sum of one or more terms as a balanced tree, to limit nesting."""
    if len(terms) == 1:
        return terms[0]
    middle = (len(terms) + 1) // 2
    return binary(exp.Add, add_all(terms[:middle]), add_all(terms[middle:]))


@dataclass(frozen=True)
class StatementSize:
    """The size of a statement: its number of nodes, its nesting depth, and the columns of its widest SELECT."""

    nodes: int
    depth: int
    columns: int


def statement_size(tree: Sql) -> StatementSize:
    """Measure a statement; a chain of ANDs or of ORs counts as one level, since it is written and parsed flat."""
    nodes = depth = columns = 0
    level, layer, below = 1, [tree], list[Sql]()
    while layer:
        depth, below = level, list[Sql]()
        for node in layer:  # grows by the members of a chain
            nodes += 1
            kind = node.__class__
            if kind is exp.Select:
                columns = max(columns, len(node.expressions))
            for child in node.iter_expressions():
                chained = child.__class__ is kind and isinstance(child, exp.Connector)
                (layer if chained else below).append(child)
        level, layer = level + 1, below
    return StatementSize(nodes, depth, columns)


def sub(left: Sql, right: Sql) -> Sql:
    """Build a difference."""
    return binary(exp.Sub, left, right)


def times(left: Sql, right: Sql | int) -> Sql:
    """Build a product; multiplying by the constant 1 returns the left side."""
    if isinstance(right, int):
        return left if right == 1 else binary(exp.Mul, left, literal(right))
    return binary(exp.Mul, left, right)


def and_(conditions: Sequence[Sql]) -> Sql:
    """Build a conjunction; TRUE if there are no conditions."""
    return exp.and_(*map(detach, conditions), copy=False) if conditions else exp.true()


def or_(conditions: Sequence[Sql]) -> Sql:
    """Build a disjunction; FALSE if there are no conditions."""
    return exp.or_(*map(detach, conditions), copy=False) if conditions else exp.false()


def not_(condition: Sql) -> Sql:
    """Build a negation."""
    return exp.not_(detach(condition), copy=False)


def is_null(value: Sql) -> Sql:
    """Build `value IS NULL`."""
    return binary(exp.Is, value, exp.null())


def is_not_null(value: Sql) -> Sql:
    """Build `NOT value IS NULL`."""
    return not_(is_null(value))


def case(branches: Sequence[tuple[Sql, Sql]], default: Sql | None = None) -> Sql:
    """Build CASE WHEN ... THEN ... ELSE ... END; without branches, return the default."""
    if not branches and default is not None:
        return detach(default)
    result = exp.Case(ifs=[exp.If(this=detach(when), true=detach(then)) for when, then in branches])
    if default is not None:
        result.set("default", detach(default))
    return result


def call(name: str, *arguments: Sql) -> Sql:
    """Build a call of a function that sqlglot knows by this name."""
    return exp.func(name, *map(detach, arguments), copy=False)


def select(*columns: Sql) -> exp.Select:
    """Build a SELECT of these columns; callers may change it in place (copy=False), since nothing else refers to it."""
    return exp.Select(expressions=[detach(column) for column in columns])


def clamp_integer(value: Sql, lo: int, hi: int) -> Sql:
    """Clamp an integer to [lo, hi]; the value must not be NULL."""
    return call("LEAST", call("GREATEST", value, integer(lo)), integer(hi))


def count_star() -> Sql:
    """Build COUNT(*)."""
    return exp.Count(this=exp.Star())
