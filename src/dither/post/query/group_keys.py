"""The keys of GROUP BY, and the columns of subqueries, by name."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from sqlglot import exp

from dither.errors import InvalidQuery, Unsupported
from dither.plan import expressions as expr
from dither.post.query.grouping_sets import sets_of_terms, terms_of_all
from dither.post.query.literals import is_literal, literal_value, sql_excerpt
from dither.post.query.syntax import column_title, translate_condition, without_alias
from dither.post.query.tables import NamedTable


def group_keys(query: exp.Select, source: NamedTable) -> list[tuple[str, expr.Expr]]:
    """Translate a plain GROUP BY into named keys; refuse grouping sets, whose rows would overlap."""
    keys, sets = grouped_keys(query, source)
    if len(sets) > 1:
        raise Unsupported("ROLLUP, CUBE and GROUPING SETS are for the outermost SELECT; use a plain GROUP BY here")
    return keys


def grouped_keys(
    query: exp.Select, source: NamedTable
) -> tuple[list[tuple[str, expr.Expr]], tuple[tuple[int, ...], ...]]:
    """Translate GROUP BY into named keys, and into the places of the keys of each grouping set."""
    group = query.args.get("group")
    if group is None:
        return [], ((),)
    aliases = {item.alias.lower(): item.this for item in query.expressions if isinstance(item, exp.Alias)}
    if group.args.get("all"):
        group.set("expressions", terms_of_all(query))
    keys: list[tuple[str, expr.Expr]] = []
    sets = []
    for terms in sets_of_terms(group):
        places = []
        for term in terms:
            name, node = _group_key(query, source, aliases, term)
            value = translate_condition(source.translator(), node)
            if value not in [known for _, known in keys]:
                keys.append((_unused_key_name(name, keys), value))
            places.append([known for _, known in keys].index(value))
        sets.append(tuple(dict.fromkeys(places)))
    return keys, tuple(sets)


def _unused_key_name(name: str, keys: list[tuple[str, expr.Expr]]) -> str:
    taken = {known for known, _ in keys}
    return name if name not in taken else f"{name}_{len(taken)}"


def _group_key(
    query: exp.Select, source: NamedTable, aliases: Mapping[str, exp.Expr], term: exp.Expr
) -> tuple[str, exp.Expr]:
    """Return the name and the expression of a GROUP BY term: a position, an alias or an expression."""
    if is_literal(term):
        position = literal_value(term)
        if not isinstance(position, Fraction) or not 1 <= position <= len(query.expressions):
            raise InvalidQuery(f"GROUP BY {sql_excerpt(term)}: positions go from 1 to {len(query.expressions)}")
        item = query.expressions[int(position) - 1]
        return column_title(item), without_alias(item)
    if isinstance(term, exp.Column) and not term.table and not source.has(term) and term.name.lower() in aliases:
        return term.name, aliases[term.name.lower()]
    matching = [item for item in query.expressions if isinstance(item, exp.Alias) and item.this == term]
    return (matching[0].alias if matching else column_title(term)), term


def is_unit_key(source: NamedTable, key: expr.ColumnRef) -> bool:
    """Return True if a plan column is the unit's key."""
    return any(field.key and field.column == key.name for field in source.fields)


def subquery_column_name(item: exp.Expr, position: int) -> str:
    """Return the name of a column of a subquery with GROUP BY: its alias, its column or its position."""
    if isinstance(item, exp.Star) or (isinstance(item, exp.Column) and isinstance(item.this, exp.Star)):
        raise Unsupported("* with GROUP BY is not supported; name the columns")
    return item.alias_or_name or f"column_{position + 1}"


def require_distinct_names(columns: list[tuple[str, expr.Expr]]) -> dict[str, expr.Expr]:
    """Return the columns of a subquery by name; refuse a name that occurs twice."""
    names = [name for name, _ in columns]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidQuery(f"the subquery has two columns called {twice[0]!r}; rename one with AS")
    return dict(columns)


def subquery_columns(query: exp.Select, source: NamedTable) -> dict[str, expr.Expr]:
    """Translate the columns of a subquery without GROUP BY; * stands for all columns in scope."""
    to = source.translator()
    columns: list[tuple[str, expr.Expr]] = []
    for position, item in enumerate(query.expressions):
        inner = without_alias(item)
        if isinstance(inner, exp.Star) or (isinstance(inner, exp.Column) and isinstance(inner.this, exp.Star)):
            if inner.args.get("except_") or inner.args.get("replace") or inner.args.get("rename"):
                raise Unsupported("* with EXCEPT, EXCLUDE or REPLACE is not supported; name the columns")
            alias = inner.table.lower() if isinstance(inner, exp.Column) else ""
            fields = [f for f in source.fields if (f.bare if not alias else f.alias.lower() == alias)]
            columns += [(field.name, field.reference()) for field in fields]
        else:
            columns.append((item.alias_or_name or f"column_{position + 1}", to(inner)))
    return require_distinct_names(columns)
