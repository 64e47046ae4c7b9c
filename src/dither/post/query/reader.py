"""Translate a parsed query: FROM, joins and WHERE into a relation, the outermost SELECT into a question."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sqlglot import exp

from dither.errors import InvalidQuery, Unsupported
from dither.plan import expressions as expr
from dither.plan.relations.bounding import LimitRowsPerUnit
from dither.plan.relations.core import Relation
from dither.plan.relations.group_by import GroupBy
from dither.post.query import supported_syntax
from dither.post.query.group_keys import (
    group_keys,
    grouped_keys,
    is_unit_key,
    require_distinct_names,
    subquery_column_name,
    subquery_columns,
)
from dither.post.query.grouped_subquery import GroupedSubquery
from dither.post.query.literals import sql_excerpt
from dither.post.query.membership import (
    find_key,
    has_query,
    is_condition_of,
    keep_rows,
    mark_rows,
    matching_column,
    subquery_tests,
)
from dither.post.query.outer_select import OuterSelect
from dither.post.query.question import OutputColumn, Question
from dither.post.query.scalars import ExpressionTranslator, conjuncts
from dither.post.query.syntax import (
    REFUSED_CLAUSES,
    column_title,
    has_aggregates,
    literal_row_count,
    order_terms,
    refuse_clauses,
    refuse_row_order,
    translate_condition,
    without_alias,
)
from dither.post.query.tables import (
    JoinBuilder,
    NamedColumn,
    NamedTable,
    dataset_table,
    filter_rows,
    find_equality,
    project_columns,
    semi_join_pairs,
    union_all,
)
from dither.schema import Dataset, Unit


@dataclass(frozen=True)
class QueryReader:
    """Translates one parsed query over a dataset, for one unit of privacy; `ctes` has the tables that WITH names."""

    dataset: Dataset
    unit: Unit
    joiner: JoinBuilder
    ctes: Mapping[str, NamedTable] = field(default_factory=dict)

    # --- relations -----------------------------------------------------------------------------------------------

    def with_ctes(self, query: exp.Expr) -> QueryReader:
        """Return this reader with the subqueries that the query's WITH names."""
        clause = query.args.get("with_") or query.args.get("with")
        if clause is None:
            return self
        if clause.args.get("recursive"):
            raise Unsupported("WITH RECURSIVE is not supported; write the steps as separate subqueries")
        reader = self
        for cte in clause.expressions:
            source = reader.translate_subquery(cte.this).with_alias(cte.alias)
            reader = replace(reader, ctes={**reader.ctes, cte.alias.lower(): source})
        return reader

    def translate_subquery(self, query: exp.Expr) -> NamedTable:
        """Translate a subquery; the query around it reads its rows, and they are never released."""
        reader = self.with_ctes(query)
        if isinstance(query, exp.Subquery):
            return reader.translate_subquery(query.this)
        if isinstance(query, exp.SetOperation):
            return reader.translate_set_operation(query)
        if not isinstance(query, exp.Select):
            raise Unsupported(f"{sql_excerpt(query)} is not a table; write a subquery that begins with SELECT")
        refuse_clauses(query)
        refuse_row_order(query)
        source = reader.translate_from(query)
        if has_aggregates(query):
            return reader.translate_group_by(query, source)
        columns = subquery_columns(query, source)
        return project_columns(source, columns, query.args.get("distinct") is not None, reader.unit)

    def translate_set_operation(self, query: exp.SetOperation) -> NamedTable:
        """Translate UNION ALL and UNION; refuse INTERSECT and EXCEPT, which compare rows of different people."""
        if not isinstance(query, exp.Union):
            word = type(query).__name__.upper()
            raise Unsupported(f"{word} compares rows of different people; join on the unit's key or filter with WHERE")
        refuse_row_order(query)
        both = union_all(self.translate_subquery(query.this), self.translate_subquery(query.expression))
        if not query.args.get("distinct"):
            return both
        return project_columns(both, {f.name: expr.ColumnRef(f.column) for f in both.fields}, True, self.unit)

    def translate_from(self, query: exp.Select) -> NamedTable:
        """Translate FROM, the joins and WHERE into one table."""
        origin = query.args.get("from_") or query.args.get("from")
        if origin is None:
            raise Unsupported("a query needs FROM with a private table, such as SELECT COUNT(*) FROM table")
        conditions = conjuncts(query.args["where"].this) if query.args.get("where") else []
        source = self.translate_from_item(origin.this)
        for join in query.args.get("joins") or []:
            source, conditions = self.translate_join(source, join, conditions)
        return self.translate_where(self.mark_subqueries(source, query), conditions)

    def mark_subqueries(self, source: NamedTable, query: exp.Select) -> NamedTable:
        """Add a column for each IN (SELECT ...) and EXISTS of a SELECT, which replaces it there.

        A test of WHERE that every row must pass is left to `translate_where`.
        """
        clauses = [query.args.get(name) for name in ("where", "group", "having", "order")]
        where = query.args["where"].this if query.args.get("where") else None
        for test in subquery_tests([*query.expressions, *(clause for clause in clauses if clause is not None)]):
            if not is_condition_of(test, where):
                source = mark_rows(source, *self.translate_test(source, test), self.unit, test)
                test.replace(exp.column(source.fields[-1].name, table=source.fields[-1].alias))
        return source

    def translate_test(self, source: NamedTable, test: exp.Expr) -> tuple[NamedColumn, NamedTable]:
        """Translate IN (SELECT ...) or EXISTS: return the column that is searched for, and the table to search in."""
        supported_syntax.refuse_unread_parts(test)
        if isinstance(test, exp.In):
            return find_key(source, test.this, test), self.translate_subquery(test.args["query"].this)
        select = test.this.this if isinstance(test.this, exp.Subquery) else test.this
        if not isinstance(select, exp.Select):
            raise Unsupported(f"{sql_excerpt(test)}: EXISTS takes a subquery that begins with SELECT")
        reader = self.with_ctes(select)
        whole = select.copy()
        whole.set("where", None)
        key, alone = matching_column(source, reader.translate_from(whole), select, test)
        return next(field for field in source.fields if field.column == key), reader.translate_subquery(alone)

    def translate_semi_join(self, source: NamedTable, other: NamedTable, join: exp.Join) -> NamedTable:
        """Translate SEMI JOIN and ANTI JOIN, which keep rows with a match and rows without one."""
        test = exp.Join(this=join.this, on=join.args.get("on"), using=join.args.get("using"), kind=join.kind)
        pairs, other = semi_join_pairs(source, other, join)
        if len(pairs) != 1:
            raise Unsupported(f"{sql_excerpt(test)}: a semi- or anti-join needs one equality, of the unit's key")
        key, found = pairs[0]
        only = project_columns(other, {found.name: found.reference()}, False, self.unit)
        return keep_rows(source, key, only, self.unit, test, join.kind.upper() == "ANTI")

    def translate_from_item(self, node: exp.Expr) -> NamedTable:
        """Translate one item of FROM: a table, a WITH name or a subquery."""
        for argument, reason in (("sample", REFUSED_CLAUSES["sample"]), ("pivots", REFUSED_CLAUSES["pivots"])):
            if node.args.get(argument):
                raise Unsupported(reason)
        if isinstance(node, exp.Subquery):
            return self.translate_subquery(node.this).with_alias(node.alias)
        if not isinstance(node, exp.Table) or isinstance(node.this, exp.Func):
            raise Unsupported(f"{sql_excerpt(node)} is not a table; FROM takes tables of the dataset and subqueries")
        if node.args.get("db") or node.args.get("catalog"):
            raise Unsupported(
                f"{sql_excerpt(node)}: write the table's name alone, without a database schema or catalog"
            )
        known = self.ctes.get(node.name.lower())
        found = known if known is not None else dataset_table(self.dataset, self.unit, node.name)
        return found.with_alias(node.alias or node.name)

    def translate_join(self, source: NamedTable, join: exp.Join, conditions: list[Any]) -> tuple[NamedTable, list[Any]]:
        """Translate one JOIN; return the joined table and the conditions of WHERE that are still to be applied.

        Tables that a comma joins take their equalities from these conditions.
        """
        other = self.translate_from_item(join.this)
        for alias in {f.alias for f in source.fields} & {f.alias for f in other.fields}:
            raise InvalidQuery(f"two tables are called {alias!r}; give one of them another name with AS")
        if join.kind.upper() in {"SEMI", "ANTI"}:
            return self.translate_semi_join(source, other, join), conditions
        if join.args.get("method") or join.kind.upper() in {"STRAIGHT", "ASOF"}:
            raise _join_refusal(join.args.get("method") or join.kind)
        side = (join.side or "inner").lower()
        if join.args.get("using"):
            return self.joiner.join_using(source, other, [name.name for name in join.args["using"]], side), conditions
        if join.args.get("on") is not None:
            return self.joiner.join(source, other, join.args["on"], side), conditions
        linking = [part for part in conditions if find_equality(source, other, part)]
        if not linking:
            raise Unsupported("cross joins are not supported; write JOIN ... ON with an equality of two columns")
        condition = exp.and_(*(part.copy() for part in linking))
        return self.joiner.join(source, other, condition, "inner"), [part for part in conditions if part not in linking]

    def translate_where(self, source: NamedTable, conditions: list[exp.Expr]) -> NamedTable:
        """Translate WHERE; IN (SELECT ...) and EXISTS become joins by the unit's key, or with a public table."""
        plain = []
        for part in conditions:
            inner, negated = (part.this, True) if isinstance(part, exp.Not) else (part, False)
            if isinstance(inner, exp.Exists) or (isinstance(inner, exp.In) and has_query(inner)):
                source = keep_rows(source, *self.translate_test(source, inner), self.unit, inner, negated)
            else:
                plain.append(part)
        to = source.translator()
        return filter_rows(source, [translate_condition(to, part) for part in plain])

    def translate_group_by(self, query: exp.Select, source: NamedTable) -> NamedTable:
        """Translate a subquery with GROUP BY; if the unit's key is among its keys, each group belongs to one unit."""
        if not query.args.get("group"):
            raise Unsupported(
                "an aggregate in a subquery needs GROUP BY with the unit's key; "
                "a total over all units can only be asked for in the outermost SELECT, where noise is added"
            )
        keys = group_keys(query, source)
        by_unit = source.knows_unit and any(
            isinstance(key, expr.ColumnRef) and is_unit_key(source, key) for _, key in keys
        )
        inner = GroupedSubquery(source, keys)
        outputs = [
            (subquery_column_name(item, position), inner.translate(without_alias(item)))
            for position, item in enumerate(query.expressions)
        ]
        having = query.args.get("having")
        condition = inner.translate(having.this) if having else None
        relation: Relation = GroupBy(
            source.relation, tuple(keys), tuple(inner.aggregates), self.unit.name if by_unit else None
        )
        key_names = {name for name, key in keys if isinstance(key, expr.ColumnRef) and is_unit_key(source, key)}
        if by_unit and len(key_names) == len(keys):
            relation = LimitRowsPerUnit(relation, self.unit.name, 1)  # true already; this states it in the plan
        fields = tuple(
            NamedColumn("", name, name, key=name in key_names)
            for name in (*(name for name, _ in keys), *(aggregate.name for aggregate in inner.aggregates))
        )
        whole = filter_rows(NamedTable(relation, fields, source.private, by_unit), [condition] if condition else [])
        return project_columns(
            whole, require_distinct_names(outputs), query.args.get("distinct") is not None, self.unit
        )

    # --- the question --------------------------------------------------------------------------------------------

    def translate_question(self, query: exp.Expr, text: str) -> Question:
        """Translate the outermost SELECT, whose aggregates are released with noise."""
        reader = self.with_ctes(query)
        if isinstance(query, exp.Subquery):
            return reader.translate_question(query.this, text)
        if isinstance(query, exp.SetOperation):
            raise Unsupported("UNION of answers is not supported; run the queries as a batch, and join their answers")
        if not isinstance(query, exp.Select):
            raise Unsupported("only SELECT is supported")
        refuse_clauses(query, outermost=True)
        if query.args.get("distinct") is not None:
            raise Unsupported(
                "SELECT DISTINCT would reveal which values are in the data; write SELECT x, COUNT(*) ... GROUP BY x"
            )
        return reader._translate_aggregates(query, text)

    def _translate_aggregates(self, query: exp.Select, text: str) -> Question:
        """Translate a SELECT with aggregates over a private table."""
        source = self.translate_from(query)
        if not source.private or source.held_fixed:
            raise Unsupported(
                f"the unit {self.unit.name!r} covers no table of this query; read one that it covers"
                if source.held_fixed
                else "this query reads only public tables, which need no privacy; read them directly"
            )
        if not has_aggregates(query):
            for node in query.find_all(exp.Anonymous):
                ExpressionTranslator(lambda column: expr.ColumnRef(column.name))(node)
            raise Unsupported(
                "rows of private tables cannot be returned; ask for aggregates such as COUNT, SUM or AVG, with GROUP BY"
            )
        grouped, sets = grouped_keys(query, source)
        top = OuterSelect(source, grouped)
        outputs = tuple(
            OutputColumn(column_title(item), top.translate(without_alias(item))) for item in query.expressions
        )
        top = replace(top, outputs={output.name.lower(): output.node for output in outputs})
        having = query.args.get("having")
        condition = top.translate(having.this) if having else None
        order = tuple(top.translate_ordering(term, outputs) for term in order_terms(query))
        if not top.aggregates:
            raise Unsupported("group keys alone would reveal which groups exist; add an aggregate such as COUNT(*)")
        limit, offset = literal_row_count(query, "limit"), literal_row_count(query, "offset") or 0
        keys = tuple(top.keys)
        return Question(
            text, self.unit.name, source.relation, source.knows_unit, keys, tuple(top.aggregates), outputs, condition,
            order, limit, offset, sets if len(sets) > 1 else (),
        )  # fmt: skip


def _join_refusal(kind: str) -> Unsupported:
    """Return the error for a kind of join that is not supported, with what to write instead."""
    return Unsupported(f"{kind.upper()} JOIN is not supported; write JOIN ... ON, or JOIN ... USING with named columns")
