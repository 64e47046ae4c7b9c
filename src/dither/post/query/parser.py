"""Parse SQL into a question: a relation, aggregates to measure, and formulas that compute the columns from them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import sqlglot
from sqlglot import TokenType, exp
from sqlglot.errors import SqlglotError

from dither.errors import InvalidQuery, NotFound, Unsupported
from dither.plan import expressions as expr
from dither.plan.relations.bounding import LimitRowsPerUnit
from dither.plan.relations.core import Relation
from dither.plan.relations.group_by import GroupAggregate as Grouped
from dither.plan.relations.group_by import GroupBy
from dither.post import formulas
from dither.post.options import options_of
from dither.post.query import supported_syntax
from dither.post.query.functions import BY_NODE
from dither.post.query.literals import is_literal, literal_value, move_to_wall_clock, sql_excerpt, sql_text
from dither.post.query.question import AggregateCall, AggregateKind, Ordering, OutputColumn, Question
from dither.post.query.scalars import MEMBERSHIP, ExpressionTranslator, conjuncts
from dither.post.query.tables import (
    JoinBuilder,
    NamedColumn,
    NamedTable,
    dataset_table,
    filter_rows,
    find_equality,
    join_membership,
    project_columns,
    union_all,
)
from dither.schema import Dataset, Unit

MAX_CHARACTERS = 50_000
MAX_DEPTH = 60
PRIVACY_OPTIONS = re.compile(r"\bSELECT\s+WITH\s+DIFFERENTIAL_PRIVACY\s*(?:OPTIONS\s*\(([^()]*)\))?", re.IGNORECASE)
FIRST_WORD = re.compile(r"[\s(]*([A-Za-z]+)")
# The names that OPTIONS(...) takes, with Dither's name for each; some are BigQuery's.
SQL_OPTIONS = {name: name for name in (*options_of("text"), "max_groups", "max_rows_per_group")} | {
    "max_groups_contributed": "max_groups",
    "privacy_unit": "unit",
    "privacy_unit_column": "privacy_unit_column",
}

AGGREGATES: dict[type[exp.Expr], AggregateKind] = {
    exp.Sum: "sum",
    exp.Avg: "avg",
    exp.Variance: "var_samp",
    exp.VariancePop: "var_pop",
    exp.CovarSamp: "covar_samp",
    exp.CovarPop: "covar_pop",
    exp.Corr: "corr",
    exp.Min: "min",
    exp.Max: "max",
}
# Standard deviations are square roots of these variances.
STANDARD_DEVIATIONS: dict[type[exp.Expr], AggregateKind] = {
    exp.Stddev: "var_samp",
    exp.StddevSamp: "var_samp",
    exp.StddevPop: "var_pop",
}
QUANTILES = (exp.Median, exp.PercentileCont, exp.PercentileDisc, exp.Quantile, exp.ApproxQuantile, exp.WithinGroup)
REFUSED_AGGREGATES: dict[type[exp.Expr], str] = {
    exp.ArrayAgg: "it would return people's values; ask for COUNT(*) grouped by the value",
    exp.GroupConcat: "it would return people's values; ask for COUNT(*) grouped by the value",
    exp.AnyValue: "it would return one person's value; ask for MEDIAN or for COUNT(*) grouped by the value",
    exp.First: "it would return one person's value; ask for MIN or for COUNT(*) grouped by the value",
    exp.Last: "it would return one person's value; ask for MAX or for COUNT(*) grouped by the value",
    exp.ArgMax: "it would return one person's value; ask for COUNT(*) grouped by the value",
    exp.ArgMin: "it would return one person's value; ask for COUNT(*) grouped by the value",
    exp.Mode: "ask for COUNT(*) grouped by the value, ORDER BY 2 DESC LIMIT 1",
    exp.ApproxDistinct: "write COUNT(DISTINCT x)",
    exp.LogicalAnd: "one row decides it; ask for COUNT(*) FILTER (WHERE NOT condition)",
    exp.LogicalOr: "one row decides it; ask for COUNT(*) FILTER (WHERE condition)",
    exp.ApproxTopK: "ask for COUNT(*) grouped by the value, ORDER BY 2 DESC LIMIT k",
    exp.Skewness: "only moments up to the second are offered; ask for AVG of a CLAMP of the power",
    exp.Kurtosis: "only moments up to the second are offered; ask for AVG of a CLAMP of the power",
    exp.RegrSlope: "regressions are not offered; write COVAR_POP(y, x) / VAR_POP(x) for REGR_SLOPE(y, x)",
    exp.RegrIntercept: "regressions are not offered; write AVG(y) - COVAR_POP(y, x) / VAR_POP(x) * AVG(x) for "
    "REGR_INTERCEPT(y, x)",
    exp.RegrR2: "regressions are not offered; write POWER(CORR(y, x), 2) for REGR_R2(y, x)",
    exp.RegrCount: "write COUNT(*) FILTER (WHERE y IS NOT NULL AND x IS NOT NULL) for REGR_COUNT(y, x)",
    exp.RegrAvgx: "write AVG(x) FILTER (WHERE y IS NOT NULL) for REGR_AVGX(y, x)",
    exp.RegrAvgy: "write AVG(y) FILTER (WHERE x IS NOT NULL) for REGR_AVGY(y, x)",
    exp.BitwiseAndAgg: "bits of people's values are not aggregated; COUNT_IF a condition instead",
    exp.BitwiseOrAgg: "bits of people's values are not aggregated; COUNT_IF a condition instead",
    exp.BitwiseXorAgg: "bits of people's values are not aggregated; COUNT_IF a condition instead",
}
# The functions of `post.formulas` that compute an operator or a SQL function over aggregates, after noise is added.
ANSWER_FUNCTIONS: dict[type[exp.Expr], str] = {
    exp.Add: "add", exp.Sub: "sub", exp.Mul: "mul", exp.Div: "div", exp.Neg: "neg", exp.EQ: "eq", exp.NEQ: "ne",
    exp.LT: "lt", exp.LTE: "le", exp.GT: "gt", exp.GTE: "ge", exp.And: "and", exp.Or: "or", exp.Not: "not",
    **{node: function.formula for node, function in BY_NODE.items() if function.formula},
}  # fmt: skip
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
        if _has_aggregates(query):
            return reader.translate_group_by(query, source)
        columns = _subquery_columns(query, source)
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
        return self.translate_where(source, conditions)

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
        if join.args.get("method") or join.kind.upper() in {"SEMI", "ANTI", "STRAIGHT", "ASOF"}:
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
        """Translate WHERE; IN (SELECT ...) becomes a join with a public table."""
        plain = []
        for part in conditions:
            inner, negated = (part.this, True) if isinstance(part, exp.Not) else (part, False)
            if isinstance(inner, exp.In) and inner.args.get("query") is not None:
                source = join_membership(source, inner, self.translate_subquery(inner.args["query"].this), negated)
            else:
                plain.append(part)
        to = source.translator()
        return filter_rows(source, [_translate_condition(to, part) for part in plain])

    def translate_group_by(self, query: exp.Select, source: NamedTable) -> NamedTable:
        """Translate a subquery with GROUP BY; if the unit's key is among its keys, each group belongs to one unit."""
        if not query.args.get("group"):
            raise Unsupported(
                "an aggregate in a subquery needs GROUP BY with the unit's key; "
                "a total over all units can only be asked for in the outermost SELECT, where noise is added"
            )
        keys = _group_keys(query, source)
        by_unit = source.knows_unit and any(
            isinstance(key, expr.ColumnRef) and _is_unit_key(source, key) for _, key in keys
        )
        inner = _GroupedSubquery(source, keys)
        outputs = [
            (_subquery_column_name(item, position), inner.translate(_without_alias(item)))
            for position, item in enumerate(query.expressions)
        ]
        having = query.args.get("having")
        condition = inner.translate(having.this) if having else None
        relation: Relation = GroupBy(
            source.relation, tuple(keys), tuple(inner.aggregates), self.unit.name if by_unit else None
        )
        key_names = {name for name, key in keys if isinstance(key, expr.ColumnRef) and _is_unit_key(source, key)}
        if by_unit and len(key_names) == len(keys):
            relation = LimitRowsPerUnit(relation, self.unit.name, 1)  # true already; this states it in the plan
        fields = tuple(
            NamedColumn("", name, name, key=name in key_names)
            for name in (*(name for name, _ in keys), *(aggregate.name for aggregate in inner.aggregates))
        )
        whole = filter_rows(NamedTable(relation, fields, source.private, by_unit), [condition] if condition else [])
        return project_columns(
            whole, _require_distinct_names(outputs), query.args.get("distinct") is not None, self.unit
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
        refuse_clauses(query)
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
        if not _has_aggregates(query):
            for node in query.find_all(exp.Anonymous):
                ExpressionTranslator(lambda column: expr.ColumnRef(column.name))(node)
            raise Unsupported(
                "rows of private tables cannot be returned; ask for aggregates such as COUNT, SUM or AVG, with GROUP BY"
            )
        top = _OuterSelect(source, _group_keys(query, source))
        outputs = tuple(
            OutputColumn(_column_title(item), top.translate(_without_alias(item))) for item in query.expressions
        )
        top = replace(top, outputs={output.name.lower(): output.node for output in outputs})
        having = query.args.get("having")
        condition = top.translate(having.this) if having else None
        order = tuple(top.translate_ordering(term, outputs) for term in _order_terms(query))
        if not top.aggregates:
            raise Unsupported("group keys alone would reveal which groups exist; add an aggregate such as COUNT(*)")
        limit, offset = _literal_row_count(query, "limit"), _literal_row_count(query, "offset") or 0
        keys = tuple(top.keys)
        return Question(
            text, self.unit.name, source.relation, source.knows_unit, keys, tuple(top.aggregates), outputs, condition,
            order, limit, offset,
        )  # fmt: skip


@dataclass(frozen=True)
class _OuterSelect:
    """Collects the aggregates of the outermost SELECT, and translates the expressions around them into formulas."""

    source: NamedTable
    keys: list[tuple[str, expr.Expr]]
    aggregates: list[AggregateCall] = field(default_factory=list)
    outputs: Mapping[str, formulas.Formula] = field(default_factory=dict)

    def translate(self, node: exp.Expr) -> formulas.Formula:
        """Translate an expression over aggregates and keys."""
        if isinstance(node, exp.Paren):
            return self.translate(node.this)
        if _is_aggregate(node):
            return self.translate_aggregate(node)
        if isinstance(node, exp.Column) and not node.table and node.name.lower() in self.outputs:
            return self.outputs[node.name.lower()]
        key = self.find_key(node)
        if key is not None:
            return key
        if is_literal(node):
            value = literal_value(node)
            return formulas.FixedValue(float(value) if isinstance(value, Fraction) else value)
        return self.translate_function(node)

    def find_key(self, node: exp.Expr) -> formulas.KeyValue | None:
        """Return the GROUP BY key that equals an expression, or None."""
        if any(_is_aggregate(part) for part in node.walk()):
            return None
        try:
            value = self.source.translator()(node)
        except (NotFound, InvalidQuery, Unsupported):
            return None
        found = [index for index, (_, key) in enumerate(self.keys) if key == value]
        if found:
            return formulas.KeyValue(found[0])
        if isinstance(node, exp.Column):
            raise InvalidQuery(
                f"{sql_excerpt(node)} is neither aggregated nor in GROUP BY; add it to GROUP BY or aggregate it"
            )
        return None

    def translate_function(self, node: exp.Expr) -> formulas.Formula:
        """Translate a function of noisy values and keys, computed after the noise is added."""
        match node:
            case exp.Case():
                return self._translate_case(node)
            case exp.If():
                parts = (node.this, node.args["true"], node.args.get("false") or exp.Null())
                return formulas.FunctionCall("case", tuple(map(self.translate, parts)))
            case exp.Is() if isinstance(node.expression, exp.Null):
                return formulas.FunctionCall("isnull", (self.translate(node.this),))
            case exp.In() if node.expressions:
                return formulas.FunctionCall("isin", tuple(map(self.translate, (node.this, *node.expressions))))
            case exp.Between():
                low = formulas.FunctionCall("ge", (self.translate(node.this), self.translate(node.args["low"])))
                return formulas.FunctionCall(
                    "and",
                    (low, formulas.FunctionCall("le", (self.translate(node.this), self.translate(node.args["high"])))),
                )
            case exp.Cast() if node.to.this in exp.DataType.NUMERIC_TYPES:
                inner = self.translate(node.this)
                return formulas.FunctionCall("round", (inner,)) if node.to.this in exp.DataType.INTEGER_TYPES else inner
            case exp.Column():
                self.source.find(node)
        name = ANSWER_FUNCTIONS.get(type(node))
        if name is None:
            raise _refusal(node)
        return formulas.FunctionCall(name, tuple(map(self.translate, _answer_arguments(node))))

    def _translate_case(self, node: exp.Case) -> formulas.Formula:
        parts: list[formulas.Formula] = []
        for branch in node.args["ifs"]:
            condition = self.translate(branch.this)
            if node.this is not None:
                condition = formulas.FunctionCall("eq", (self.translate(node.this), condition))
            parts += [condition, self.translate(branch.args["true"])]
        if node.args.get("default") is not None:
            parts.append(self.translate(node.args["default"]))
        return formulas.FunctionCall("case", tuple(parts))

    def translate_aggregate(self, node: exp.Expr) -> formulas.Formula:
        """Translate an aggregate into a noisy cell; equal aggregates share one."""
        condition = None
        if isinstance(node, exp.Filter):
            condition, node = _translate_condition(self.source.translator(), node.expression.this), node.this
        if isinstance(node.this, exp.Distinct) and not isinstance(node, exp.Count):
            raise Unsupported(
                f"{sql_excerpt(node)}: only COUNT takes DISTINCT; aggregate over a subquery with SELECT DISTINCT"
            )
        if type(node) in STANDARD_DEVIATIONS:
            values = (self.translate_argument(node.this),)
            return formulas.FunctionCall(
                "sqrt", (self.cell_of(AggregateCall(STANDARD_DEVIATIONS[type(node)], values, condition)),)
            )
        return self.cell_of(self.aggregate_call(node, condition))

    def aggregate_call(self, node: exp.Expr, condition: expr.Expr | None) -> AggregateCall:
        """Return the call of an aggregate, with its kind, arguments and condition."""
        if isinstance(node, exp.CountIf):
            return AggregateCall(
                "count", (), _conjoin(condition, _translate_condition(self.source.translator(), node.this))
            )
        if isinstance(node, exp.Count):
            return self.count_call(node, condition)
        if isinstance(node, QUANTILES):
            value, level = _quantile_arguments(node)
            return AggregateCall("quantile", (self.translate_argument(value),), condition, level)
        kind = AGGREGATES.get(type(node))
        if kind is None:
            raise _refusal(node)
        values = (node.this,) if node.args.get("expression") is None else (node.this, node.expression)
        return AggregateCall(kind, tuple(map(self.translate_argument, values)), condition)

    def count_call(self, node: exp.Count, condition: expr.Expr | None) -> AggregateCall:
        """Translate COUNT(*), COUNT(x), COUNT(DISTINCT unit's key) and COUNT(DISTINCT x)."""
        inner = node.this
        if isinstance(inner, exp.Distinct):
            columns = inner.expressions
            if len(columns) == 1 and isinstance(columns[0], exp.Column) and self.source.find(columns[0]).key:
                return AggregateCall("units", (), condition)
            return AggregateCall("distinct", tuple(map(self.source.translator(), columns)), condition)
        if inner is None or isinstance(inner, exp.Star) or _is_present_literal(inner):
            return AggregateCall("count", (), condition)
        return AggregateCall("count", (self.source.translator()(inner),), condition)

    def translate_argument(self, node: exp.Expr) -> expr.Expr:
        """Translate the argument of an aggregate."""
        if any(_is_aggregate(part) for part in node.walk()):
            raise Unsupported(
                f"{sql_excerpt(node)}: aggregates cannot be nested; aggregate per unit in a subquery, and then over it"
            )
        return self.source.translator()(node)

    def cell_of(self, aggregate: AggregateCall) -> formulas.NoisyCell:
        """Return the cell of an aggregate, and add the aggregate if it is new."""
        if aggregate not in self.aggregates:
            self.aggregates.append(aggregate)
        return formulas.NoisyCell(self.aggregates.index(aggregate))

    def translate_ordering(self, term: exp.Expr, outputs: tuple[OutputColumn, ...]) -> Ordering:
        """Translate one ORDER BY term: a position, an alias or an expression."""
        inner, descending, first = term.this, bool(term.args.get("desc")), bool(term.args.get("nulls_first"))
        if is_literal(inner):
            position = literal_value(inner)
            if not isinstance(position, Fraction) or not 1 <= position <= len(outputs) or position.denominator != 1:
                raise InvalidQuery(f"ORDER BY {sql_excerpt(inner)}: positions go from 1 to {len(outputs)}")
            return Ordering(outputs[int(position) - 1].node, descending, first)
        return Ordering(self.translate(inner), descending, first)


@dataclass(frozen=True)
class _GroupedSubquery:
    """Collects the aggregates of a subquery with GROUP BY, whose exact values are never released."""

    source: NamedTable
    keys: list[tuple[str, expr.Expr]]
    aggregates: list[Grouped] = field(default_factory=list)

    def translate(self, node: exp.Expr) -> expr.Expr:
        """Translate an expression over keys and aggregates into one over the grouped relation."""
        if isinstance(node, exp.Paren):
            return self.translate(node.this)
        if _is_aggregate(node):
            return self.translate_aggregate(node)
        if not any(_is_aggregate(part) for part in node.walk()):
            value = self.source.translator()(node)
            for name, key in self.keys:
                if key == value:
                    return expr.ColumnRef(name)
        return _OperandTranslator(self._refuse_column, self).translate_operator(node)

    def _refuse_column(self, column: exp.Column) -> expr.Expr:
        """Refuse a column that is no key: it is unknown, or it would have many values in a group."""
        self.source.find(column)
        raise InvalidQuery(
            f"{sql_excerpt(column)} is neither aggregated nor in GROUP BY; add it to GROUP BY or aggregate it"
        )

    def translate_aggregate(self, node: exp.Expr) -> expr.Expr:
        """Translate an aggregate; AVG is a sum over a count."""
        condition = None
        if isinstance(node, exp.Filter):
            condition, node = _translate_condition(self.source.translator(), node.expression.this), node.this
        if isinstance(node, exp.CountIf):
            condition, node = (
                _conjoin(condition, _translate_condition(self.source.translator(), node.this)),
                exp.Count(this=exp.Star()),
            )
        if isinstance(node, exp.Avg):
            value = self.source.translator()(node.this)
            return expr.Arithmetic(
                "/", self.column_of("sum", value, condition), self.column_of("count", value, condition)
            )
        return self._translate_plain_aggregate(node, condition)

    def _translate_plain_aggregate(self, node: exp.Expr, condition: expr.Expr | None) -> expr.Expr:
        to = self.source.translator()
        match node:
            case exp.Count(this=exp.Distinct() as inner) if len(inner.expressions) == 1:
                return self.column_of("distinct", to(inner.expressions[0]), condition)
            case exp.Count(this=exp.Star()):
                return self.column_of("count", None, condition)
            case exp.Count() if not isinstance(node.this, exp.Distinct):
                return self.column_of("count", None if _is_present_literal(node.this) else to(node.this), condition)
            case exp.Sum() | exp.Min() | exp.Max() if not isinstance(node.this, exp.Distinct):
                return self.column_of(type(node).__name__.lower(), to(node.this), condition)
        raise Unsupported(f"{sql_excerpt(node)}: a subquery may only have the aggregates COUNT, SUM, AVG, MIN and MAX")

    def column_of(self, kind: Any, value: expr.Expr | None, condition: expr.Expr | None) -> expr.Expr:
        """Return the column of the grouped relation that has an aggregate, and add it if it is new."""
        if condition is not None:
            value = expr.Case(
                ((condition, expr.LiteralValue(Fraction(1)) if value is None else value),), expr.LiteralValue(None)
            )
        for known in self.aggregates:
            if (known.kind, known.value) == (kind, value):
                return expr.ColumnRef(known.name)
        self.aggregates.append(Grouped(f"{kind}_{len(self.aggregates)}", kind, value))
        return expr.ColumnRef(self.aggregates[-1].name)


@dataclass(frozen=True)
class _OperandTranslator(ExpressionTranslator):
    """Passes the operands of an operator or function back to the subquery with GROUP BY around it."""

    subquery: _GroupedSubquery

    def translate_operator(self, node: exp.Expr) -> expr.Expr:
        """Translate an operator or function; its handler calls this object for each operand."""
        return super().__call__(node)

    def __call__(self, node: exp.Expr) -> expr.Expr:
        if isinstance(node, exp.Column) and not _is_group_key(self.subquery, node):
            return self.resolve(node)
        return self.subquery.translate(node)


def _is_group_key(subquery: _GroupedSubquery, node: exp.Column) -> bool:
    """Return True if a column is a GROUP BY key of the subquery."""
    return subquery.source.translator()(node) in [key for _, key in subquery.keys]


def _translate_condition(to: ExpressionTranslator, node: exp.Expr) -> expr.Expr:
    """Translate a condition or a key that is computed for each row; refuse aggregates in it."""
    if any(_is_aggregate(part) for part in _nodes_outside_subqueries(node)):
        raise Unsupported(
            f"{sql_excerpt(node)}: WHERE, FILTER and GROUP BY read single rows, so they cannot have an aggregate; "
            "use HAVING to filter groups, or ask for the aggregate first and write its value as a number"
        )
    return to(node)


def _join_refusal(kind: str) -> Unsupported:
    """Return the error for a kind of join that is not supported, with what to write instead."""
    if kind.upper() in {"SEMI", "ANTI"}:
        return Unsupported(f"{kind.upper()} JOIN is not supported; {MEMBERSHIP}")
    return Unsupported(f"{kind.upper()} JOIN is not supported; write JOIN ... ON, or JOIN ... USING with named columns")


def _conjoin(first: expr.Expr | None, second: expr.Expr) -> expr.Expr:
    return second if first is None else expr.And((first, second))


def _is_aggregate(node: exp.Expr) -> bool:
    return isinstance(node, exp.AggFunc | exp.Filter | exp.WithinGroup) and not isinstance(node.parent, exp.Window)


def _has_aggregates(query: exp.Select) -> bool:
    """Return True if a SELECT groups or aggregates, apart from its subqueries."""
    if query.args.get("group") or query.args.get("having"):
        return True
    return any(_is_aggregate(part) for item in query.expressions for part in _nodes_outside_subqueries(item))


def _nodes_outside_subqueries(node: exp.Expr) -> list[exp.Expr]:
    return list(node.walk(prune=lambda inner: isinstance(inner, exp.Subquery | exp.Select)))


def _is_unit_key(source: NamedTable, key: expr.ColumnRef) -> bool:
    """Return True if a plan column is the unit's key."""
    return any(field.key and field.column == key.name for field in source.fields)


def _is_present_literal(node: exp.Expr) -> bool:
    """Return True for a literal other than NULL, which COUNT counts in every row."""
    return is_literal(node) and literal_value(node) is not None


def _quantile_arguments(node: exp.Expr) -> tuple[exp.Expr, Fraction]:
    """Return the value and the level of MEDIAN, of a quantile, or of PERCENTILE_CONT(...) WITHIN GROUP (...)."""
    level: Any = Fraction(1, 2)
    value = node.this
    if isinstance(node, exp.WithinGroup) and not isinstance(value, exp.PercentileCont | exp.PercentileDisc):
        if type(value) in REFUSED_AGGREGATES:
            raise _refusal(value)
        raise Unsupported("only PERCENTILE_CONT and PERCENTILE_DISC take WITHIN GROUP; leave it out")
    if isinstance(node, exp.WithinGroup):
        ordered = node.expression.expressions[0]
        value, level = ordered.this, literal_value(node.this.this)
        level = 1 - level if ordered.args.get("desc") and isinstance(level, Fraction) else level
    elif not isinstance(node, exp.Median):
        given = node.args.get("quantile") or node.args.get("expression")
        level = literal_value(given) if given is not None else None
    if not isinstance(level, Fraction) or not 0 <= level <= 1:
        raise Unsupported(f"{sql_excerpt(node)}: the level of a quantile must be a literal number from 0 to 1")
    return value, level


def _refusal(node: exp.Expr) -> Unsupported:
    """Return the error for an expression that cannot be computed from aggregates, with the best advice known."""
    node = node.this if isinstance(node, exp.IgnoreNulls | exp.RespectNulls) else node
    for kind, advice in REFUSED_AGGREGATES.items():
        if isinstance(node, kind):
            return Unsupported(f"{sql_excerpt(node)}: {advice}")
    try:
        ExpressionTranslator(lambda column: expr.ColumnRef(column.name))(node)
    except Unsupported as refusal:
        return refusal
    return Unsupported(
        f"{sql_excerpt(node)} cannot be computed from noisy values; compute it inside the aggregate, or from the answer"
    )


def _answer_arguments(node: exp.Expr) -> list[exp.Expr]:
    """Return the arguments of a function over aggregates; refuse forms that only rows support."""
    if isinstance(node, exp.Log) and node.args.get("expression") is not None:
        raise Unsupported("LOG with a base cannot be computed from noisy values; write LN(x) / LN(base)")
    if isinstance(node, exp.Floor | exp.Ceil) and node.args.get("decimals") is not None:
        raise Unsupported(f"{sql_excerpt(node)}: only ROUND takes digits")
    extra = [node.args.get(name) for name in ("expression", "decimals")]
    return [part for part in (node.this, *extra, *node.expressions) if isinstance(part, exp.Expr)]


def _without_alias(item: exp.Expr) -> exp.Expr:
    return item.this if isinstance(item, exp.Alias) else item


def _column_title(item: exp.Expr) -> str:
    """Return the name of an answer's column: its alias, its column or its SQL in lower case."""
    return item.alias_or_name if isinstance(item, exp.Alias | exp.Column) else sql_text(item).lower()


def _subquery_column_name(item: exp.Expr, position: int) -> str:
    """Return the name of a column of a subquery with GROUP BY: its alias, its column or its position."""
    if isinstance(item, exp.Star) or (isinstance(item, exp.Column) and isinstance(item.this, exp.Star)):
        raise Unsupported("* with GROUP BY is not supported; name the columns")
    return item.alias_or_name or f"column_{position + 1}"


def _require_distinct_names(columns: list[tuple[str, expr.Expr]]) -> dict[str, expr.Expr]:
    """Return the columns of a subquery by name; refuse a name that occurs twice."""
    names = [name for name, _ in columns]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidQuery(f"the subquery has two columns called {twice[0]!r}; rename one with AS")
    return dict(columns)


def _subquery_columns(query: exp.Select, source: NamedTable) -> dict[str, expr.Expr]:
    """Translate the columns of a subquery without GROUP BY; * stands for all columns in scope."""
    to = source.translator()
    columns: list[tuple[str, expr.Expr]] = []
    for position, item in enumerate(query.expressions):
        inner = _without_alias(item)
        if isinstance(inner, exp.Star) or (isinstance(inner, exp.Column) and isinstance(inner.this, exp.Star)):
            if inner.args.get("except_") or inner.args.get("replace") or inner.args.get("rename"):
                raise Unsupported("* with EXCEPT, EXCLUDE or REPLACE is not supported; name the columns")
            alias = inner.table.lower() if isinstance(inner, exp.Column) else ""
            fields = [f for f in source.fields if (f.bare if not alias else f.alias.lower() == alias)]
            columns += [(field.name, field.reference()) for field in fields]
        else:
            columns.append((item.alias_or_name or f"column_{position + 1}", to(inner)))
    return _require_distinct_names(columns)


def _group_keys(query: exp.Select, source: NamedTable) -> list[tuple[str, expr.Expr]]:
    """Translate GROUP BY into named keys."""
    aliases = {item.alias.lower(): item.this for item in query.expressions if isinstance(item, exp.Alias)}
    group = query.args.get("group")
    if group is None:
        return []
    if any(group.args.get(kind) for kind in ("rollup", "cube", "grouping_sets", "all", "totals")):
        raise Unsupported(
            "ROLLUP, CUBE, GROUPING SETS and GROUP BY ALL are not supported; run one query per grouping, as a batch"
        )
    keys: list[tuple[str, expr.Expr]] = []
    for term in group.expressions:
        name, node = _group_key(query, source, aliases, term)
        keys.append((_unused_key_name(name, keys), _translate_condition(source.translator(), node)))
    return keys


def _unused_key_name(name: str, keys: list[tuple[str, expr.Expr]]) -> str:
    taken = {known for known, _ in keys}
    return name if name not in taken else f"{name}_{len(taken)}"


def _group_key(
    query: exp.Select, source: NamedTable, aliases: Mapping[str, exp.Expr], term: exp.Expr
) -> tuple[str, exp.Expr]:
    """Return the name and the expression of a GROUP BY term: a position, an alias or an expression."""
    if isinstance(term, exp.Rollup | exp.Cube | exp.GroupingSets | exp.Tuple):
        raise Unsupported(
            "ROLLUP, CUBE, GROUPING SETS and tuples are not supported; run one query per grouping, as a batch"
        )
    if is_literal(term):
        position = literal_value(term)
        if not isinstance(position, Fraction) or not 1 <= position <= len(query.expressions):
            raise InvalidQuery(f"GROUP BY {sql_excerpt(term)}: positions go from 1 to {len(query.expressions)}")
        item = query.expressions[int(position) - 1]
        return _column_title(item), _without_alias(item)
    if isinstance(term, exp.Column) and not term.table and not source.has(term) and term.name.lower() in aliases:
        return term.name, aliases[term.name.lower()]
    matching = [item for item in query.expressions if isinstance(item, exp.Alias) and item.this == term]
    return (matching[0].alias if matching else _column_title(term)), term


def _order_terms(query: exp.Select) -> list[exp.Expr]:
    order = query.args.get("order")
    return list(order.expressions) if order is not None else []


def _literal_row_count(query: exp.Select, clause: str) -> int | None:
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


def refuse_clauses(query: exp.Select) -> None:
    """Refuse clauses that are not supported in any SELECT."""
    for clause, reason in REFUSED_CLAUSES.items():
        if query.args.get(clause):
            raise Unsupported(reason)
    distinct = query.args.get("distinct")
    if distinct is not None and distinct.args.get("on") is not None:
        raise Unsupported("DISTINCT ON is not supported; aggregate per unit with MIN or MAX instead")
    for node in query.find_all(exp.Window):
        raise Unsupported(f"{sql_excerpt(node)}: {REFUSED_CLAUSES['windows']}")


def refuse_row_order(query: exp.Expr) -> None:
    """Refuse LIMIT, OFFSET and ORDER BY in a subquery, where they would choose among people's rows."""
    for clause in ("limit", "offset", "order"):
        if query.args.get(clause) is not None:
            word = "ORDER BY" if clause == "order" else clause.upper()
            raise Unsupported(
                f"{word} in a subquery would choose among people's rows; use it in the outermost SELECT, on the answer"
            )


def sql_options(text: str) -> tuple[str, dict[str, str]]:
    """Split SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS(...) into the plain query and its options, by Dither's names."""
    found = PRIVACY_OPTIONS.search(text)
    if found is None:
        return text, {}
    options: dict[str, str] = {}
    for part in filter(None, (piece.strip() for piece in (found.group(1) or "").split(","))):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name.lower() not in SQL_OPTIONS or not value:
            raise InvalidQuery(
                f"OPTIONS(...) takes name = value, got {part[:40]!r}; the names are: {', '.join(sorted(SQL_OPTIONS))}"
            )
        options[SQL_OPTIONS[name.lower()]] = value.strip("'\"")
    return text[: found.start()] + "SELECT" + text[found.end() :], options


def parse_statement(text: str) -> exp.Expr:
    """Parse one SELECT statement; refuse texts that are too long or nested too deep."""
    if len(text) > MAX_CHARACTERS:
        raise InvalidQuery(f"the query has {len(text)} characters; the most is {MAX_CHARACTERS}")
    verb = FIRST_WORD.match(text)
    if verb is not None and verb.group(1).upper() not in {"SELECT", "WITH"}:
        raise Unsupported(f"{verb.group(1).upper()[:20]} is not supported; a query begins with SELECT or WITH")
    try:
        _require_single_statement(text)
        statements = [part for part in sqlglot.parse(text, dialect="duckdb") if part is not None]
    except (SqlglotError, RecursionError) as problem:
        raise InvalidQuery(f"the query cannot be parsed: {_parse_error_text(problem)}") from None
    if not statements:
        raise InvalidQuery("the query is empty; write one such as SELECT COUNT(*) FROM table")
    _check_depth(statements[0])
    return statements[0]


def _require_single_statement(text: str) -> None:
    """Refuse several statements before they are parsed: the parser writes a warning about some that it cannot read."""
    kinds = [token.token_type for token in sqlglot.tokenize(text, dialect="duckdb")]
    after = kinds[kinds.index(TokenType.SEMICOLON) :] if TokenType.SEMICOLON in kinds else []
    if any(kind != TokenType.SEMICOLON for kind in after):
        raise InvalidQuery("a query is one statement, and this text has several; run them as a batch")


def _parse_error_text(problem: Exception) -> str:
    """Shorten a parser's error to one line without terminal colours and Python classes."""
    if isinstance(problem, RecursionError):
        return f"it is nested deeper than {MAX_DEPTH} levels"
    line = re.sub(r"\x1b\[[0-9;]*m", "", str(problem)).splitlines()[0]
    return re.sub(r"<[^<>]*>", "something else", re.sub(r" for <class [^>]*>", "", line))[:200]


def _check_depth(query: exp.Expr) -> None:
    """Refuse queries that are nested too deep; a level of SQL has about two levels of parsed nodes."""
    level, depth = [query], 0
    while level:
        level, depth = [child for node in level for child in node.iter_expressions()], depth + 1
        if depth > MAX_DEPTH * 2:
            raise InvalidQuery(f"the query is nested deeper than {MAX_DEPTH} levels; split it into subqueries")


def parse_query(
    text: str,
    dataset: Dataset,
    unit: str,
    *,
    row_limit: int | None = None,
    join_limit: int | None = None,
) -> Question:
    """Parse a SQL query over a dataset, under a unit of privacy.

    `row_limit` (max_contributions) and `join_limit` (max_rows_per_key) allow joins on other keys than the unit's.
    """
    plain, options = sql_options(text)
    if unit not in dataset.units:
        raise NotFound(f"no unit {unit!r}; there are: {', '.join(sorted(dataset.units))}")
    declared = dataset.units[unit]
    _check_unit_column(options, declared)
    joiner = JoinBuilder(declared, row_limit, join_limit)
    parsed = parse_statement(plain)
    supported_syntax.refuse_large_query(parsed)
    move_to_wall_clock(parsed, dataset.timezone)
    question = QueryReader(dataset, declared, joiner).translate_question(parsed, text)
    supported_syntax.refuse_unread_parts(parsed)
    supported_syntax.refuse_large_plan((question.relation, question.keys, question.aggregates))
    return question


def _check_unit_column(options: Mapping[str, str], unit: Unit) -> None:
    """Refuse a `privacy_unit_column`, BigQuery's option, that is not a key of the unit."""
    column = options.get("privacy_unit_column")
    if column is not None and column not in unit.keys.values():
        raise InvalidQuery(f"privacy_unit_column must be the declared key of the unit {unit.name!r}, not {column!r}")
