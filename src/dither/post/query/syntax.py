"""Parts of a parsed SELECT: aggregates, conditions, names and row counts, and the clauses that are refused."""

from __future__ import annotations

from fractions import Fraction

from sqlglot import exp

from dither.errors import Unsupported
from dither.plan import expressions as expr
from dither.post.query.literals import is_literal, literal_value, sql_excerpt, sql_text
from dither.post.query.scalars import ExpressionTranslator


def is_aggregate(node: exp.Expr) -> bool:
    """Return True if a node is an aggregate, and not part of a window function."""
    aggregates = isinstance(node, exp.AggFunc | exp.Filter | exp.WithinGroup) and not isinstance(node, exp.Grouping)
    return aggregates and not isinstance(node.parent, exp.Window)


def has_aggregates(query: exp.Select) -> bool:
    """Return True if a SELECT groups or aggregates, apart from its subqueries."""
    if query.args.get("group") or query.args.get("having"):
        return True
    return any(is_aggregate(part) for item in query.expressions for part in nodes_outside_subqueries(item))


def nodes_outside_subqueries(node: exp.Expr) -> list[exp.Expr]:
    """Return a node and all nodes below it, apart from subqueries."""
    return list(node.walk(prune=lambda inner: isinstance(inner, exp.Subquery | exp.Select)))


def is_present_literal(node: exp.Expr) -> bool:
    """Return True for a literal other than NULL, which COUNT counts in every row."""
    return is_literal(node) and literal_value(node) is not None


def translate_condition(to: ExpressionTranslator, node: exp.Expr) -> expr.Expr:
    """Translate a condition or a key that is computed for each row; refuse aggregates in it."""
    if any(is_aggregate(part) for part in nodes_outside_subqueries(node)):
        raise Unsupported(
            f"{sql_excerpt(node)}: WHERE, FILTER and GROUP BY read single rows, so they cannot have an aggregate; "
            "use HAVING to filter groups, or ask for the aggregate first and write its value as a number"
        )
    return to(node)


def conjoin(first: expr.Expr | None, second: expr.Expr) -> expr.Expr:
    """Join a condition, if there is one, to another by AND."""
    return second if first is None else expr.And((first, second))


def without_alias(item: exp.Expr) -> exp.Expr:
    """Return the expression of a SELECT's item."""
    return item.this if isinstance(item, exp.Alias) else item


def column_title(item: exp.Expr) -> str:
    """Return the name of an answer's column: its alias, its column or its SQL in lower case."""
    return item.alias_or_name if isinstance(item, exp.Alias | exp.Column) else sql_text(item).lower()


def order_terms(query: exp.Select) -> list[exp.Expr]:
    """Return the terms of ORDER BY."""
    order = query.args.get("order")
    return list(order.expressions) if order is not None else []


def literal_row_count(query: exp.Select, clause: str) -> int | None:
    """Return the number of LIMIT or OFFSET, or None if the query has no such clause."""
    node = query.args.get(clause)
    if node is None:
        return None
    if isinstance(node, exp.Fetch):
        raise Unsupported("FETCH is not supported; write LIMIT")
    value = literal_value(node.expression) if is_literal(node.expression) else None
    if not isinstance(value, Fraction) or value.denominator != 1 or value < 0:
        raise Unsupported(f"{clause.upper()} takes a literal whole number")
    if clause == "limit" and value == 0:
        raise Unsupported(
            "LIMIT 0 returns no row and would be charged; to see a query's columns and cost, ask for a quote"
        )
    return int(value)


REFUSED_CLAUSES = {
    "windows": "window functions read other units' rows; aggregate per unit in a subquery instead",
    "qualify": "QUALIFY filters by window functions; use HAVING on the answer instead",
    "laterals": "LATERAL is not supported; write the subquery as a join",
    "sample": "TABLESAMPLE is not supported; query the whole table, which costs no more",
    "pivots": "PIVOT is not supported; GROUP BY the column, and pivot the answer with pandas or polars",
    "locks": "FOR UPDATE is not supported, since queries only read; leave it out",
    "into": "SELECT INTO is not supported, since queries only read; leave INTO out",
    "connect": "CONNECT BY is not supported; recursive queries are refused",
    "match": "MATCH_RECOGNIZE is not supported; aggregate per unit in a subquery instead",
}


def refuse_clauses(query: exp.Select, outermost: bool = False) -> None:
    """Refuse clauses that are not supported in any SELECT; the outermost one may have sums over windows."""
    for clause, reason in REFUSED_CLAUSES.items():
        if query.args.get(clause):
            raise Unsupported(reason)
    distinct = query.args.get("distinct")
    if distinct is not None and distinct.args.get("on") is not None:
        raise Unsupported("DISTINCT ON is not supported; aggregate per unit with MIN or MAX instead")
    for node in () if outermost else query.find_all(exp.Window):
        raise Unsupported(f"{sql_excerpt(node)}: {REFUSED_CLAUSES['windows']}")


def refuse_row_order(query: exp.Expr) -> None:
    """Refuse LIMIT, OFFSET and ORDER BY in a subquery, where they would choose among people's rows."""
    for clause in ("limit", "offset", "order"):
        if query.args.get(clause) is not None:
            word = "ORDER BY" if clause == "order" else clause.upper()
            raise Unsupported(
                f"{word} in a subquery would choose among people's rows; use it in the outermost SELECT, on the answer"
            )
