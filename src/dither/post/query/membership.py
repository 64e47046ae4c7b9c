"""IN (SELECT ...), EXISTS, and semi- and anti-joins: by the unit's key, or by the unique key of a public table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from sqlglot import exp

from dither.errors import Unsupported
from dither.plan import expressions as expr
from dither.plan.relations.filter import Filter
from dither.plan.relations.joins import PublicJoin
from dither.plan.relations.mark_join import MarkJoin
from dither.plan.relations.project import Project
from dither.post.query.literals import sql_excerpt
from dither.post.query.scalars import conjuncts
from dither.post.query.syntax import has_aggregates, nodes_outside_subqueries
from dither.post.query.tables import NamedColumn, NamedTable, find_equality, rename_clashes
from dither.schema import Boolean, Unit

# The name of the column that tells whether a subquery has a row.
FOUND = "has a row"


def subquery_tests(nodes: Iterable[exp.Expr]) -> list[exp.Expr]:
    """Return each IN (SELECT ...) and EXISTS in some expressions, apart from those inside subqueries."""
    parts = (part for node in nodes for part in nodes_outside_subqueries(node))
    return [part for part in parts if isinstance(part, exp.Exists) or (isinstance(part, exp.In) and has_query(part))]


def has_query(node: exp.In) -> bool:
    """Return True for IN (SELECT ...), False for IN with a list."""
    return node.args.get("query") is not None


def is_condition_of(node: exp.Expr, where: exp.Expr | None) -> bool:
    """Return True if WHERE requires a test, or its negation, of every row."""
    parts = conjuncts(where) if where is not None else []
    return any(node is part or (isinstance(part, exp.Not) and node is part.this) for part in parts)


def find_key(source: NamedTable, node: exp.Expr, test: exp.Expr) -> NamedColumn:
    """Return the column on the left side of IN (SELECT ...)."""
    inner = node.this if isinstance(node, exp.Paren) else node
    if not isinstance(inner, exp.Column):
        raise Unsupported(f"{sql_excerpt(test)}: the left side of IN (SELECT ...) must be a column")
    return source.find(inner)


def matching_column(
    source: NamedTable, inner: NamedTable, select: exp.Select, test: exp.Expr
) -> tuple[str, exp.Select]:
    """Return the outer column that a correlated subquery compares, and the subquery that selects its inner one."""
    parts = conjuncts(select.args["where"].this) if select.args.get("where") else []
    linking = [part for part in parts if not all(inner.has(column) for column in part.find_all(exp.Column))]
    pairs = [find_equality(inner, source, part) for part in linking]
    if len(pairs) != 1 or pairs[0] is None or has_aggregates(select):
        raise Unsupported(
            f"{sql_excerpt(test)}: a subquery of EXISTS is tied to the query around it by one equality, such as "
            "v.person_id = p.person_id, and its other conditions read its own tables"
        )
    found, key = pairs[0]
    alone = select.copy()
    alone.set("expressions", [exp.column(found.name, table=found.alias or None)])
    rest = [part.copy() for part in parts if part not in linking]
    alone.set("where", exp.Where(this=exp.and_(*rest, copy=False)) if rest else None)
    return key.column, alone


def mark_rows(source: NamedTable, key: NamedColumn, other: NamedTable, unit: Unit, test: exp.Expr) -> NamedTable:
    """Add a column to a table: true where the key of a row occurs in `other`, a table of one column."""
    if len(other.fields) != 1:
        raise Unsupported(f"{sql_excerpt(test)}: the subquery must select one column, got {len(other.fields)}")
    other = rename_clashes(source, other)
    name = _unused_name(source)
    mark = NamedColumn(name, FOUND, name, domain=Boolean(), bare=False)
    if key.key and other.fields[0].key and source.knows_unit and other.knows_unit:
        relation = MarkJoin(source.relation, other.relation, unit.name, name)
        return replace(source, relation=relation, fields=(*source.fields, mark))
    _require_public_key(key, other, unit, test)
    joined, found = _join_public(source, key, other, "left")
    occurs = expr.Not(expr.IsNull(expr.ColumnRef(found)))
    value = expr.Case(((expr.IsNull(expr.ColumnRef(key.column)), expr.LiteralValue(None)),), occurs)
    return replace(source, relation=Project(joined, (*_columns(source), (name, value))), fields=(*source.fields, mark))


def keep_rows(
    source: NamedTable, key: NamedColumn, other: NamedTable, unit: Unit, test: exp.Expr, negated: bool
) -> NamedTable:
    """Keep the rows whose key occurs in `other`, or with `negated` those whose key does not."""
    if other.private:
        marked = mark_rows(source, key, other, unit, test)
        mark = expr.ColumnRef(marked.fields[-1].column)
        kept = Filter(marked.relation, expr.Not(mark) if negated else mark)
        return replace(source, relation=Project(kept, _columns(source)))
    other = rename_clashes(source, other)
    _require_public_key(key, other, unit, test)
    joined, found = _join_public(source, key, other, "left" if negated else "inner")
    if not negated:
        return replace(source, relation=joined)
    missing = expr.And((expr.IsNull(expr.ColumnRef(found)), expr.Not(expr.IsNull(expr.ColumnRef(key.column)))))
    return replace(source, relation=Filter(joined, missing))


def _columns(source: NamedTable) -> tuple[tuple[str, expr.Expr], ...]:
    """Return the columns of a table, as a projection keeps them."""
    return tuple((field.column, expr.ColumnRef(field.column)) for field in source.fields)


def _join_public(source: NamedTable, key: NamedColumn, other: NamedTable, how: str) -> tuple[PublicJoin, str]:
    """Join a public table by its unique key; return the join, and the name of that key in it."""
    found = other.fields[0].column
    kind = "inner" if how == "inner" else "left"
    return PublicJoin(source.relation, other.relation, ((key.column, found),), kind), found  # type: ignore[arg-type]


def _require_public_key(key: NamedColumn, other: NamedTable, unit: Unit, test: exp.Expr) -> None:
    """Refuse a subquery that is neither the unit's key of a private table nor the unique key of a public one."""
    if other.private:
        names = sorted({name for name in unit.keys.values() if name})
        advice = f"search for {names[0]}" if names else "a single row has no key"
        raise Unsupported(
            f"{sql_excerpt(test)}: a private table is searched by the key of the unit {unit.name} alone, on both "
            f"sides, so that rows of one {unit.name} decide about that {unit.name} only; {advice}"
        )
    if len(other.fields) != 1 or not other.fields[0].unique:
        raise Unsupported(f"{sql_excerpt(test)}: the subquery must select the unique key of a public table")


def _unused_name(source: NamedTable) -> str:
    """Return a name for a new column of the plan."""
    taken, number = {field.column for field in source.fields}, 1
    while f"subquery {number}" in taken:
        number += 1
    return f"subquery {number}"
