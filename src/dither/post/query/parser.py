"""Parse SQL into a question: a relation, aggregates to measure, and formulas that compute the columns from them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from dither.errors import InvalidQuery, NotFound, Unsupported
from dither.plan import expressions as expr
from dither.plan.relations.bounding import LimitRowsPerUnit
from dither.plan.relations.core import Relation
from dither.plan.relations.group_by import GroupAggregate as Grouped
from dither.plan.relations.group_by import GroupBy
from dither.post import formulas as recipe
from dither.post.options import options_of
from dither.post.query import supported_syntax as grammar
from dither.post.query.functions import BY_NODE
from dither.post.query.literals import is_literal, literal_value, sql_excerpt
from dither.post.query.question import AggregateCall, AggregateKind, Ordering, OutputColumn, Question
from dither.post.query.scalars import ExpressionTranslator, conjuncts
from dither.post.query.tables import (
    JoinBuilder,
    NamedColumn,
    NamedTable,
    dataset_table,
    equality,
    filter_rows,
    join_membership,
    project_columns,
    union_all,
)
from dither.schema import Dataset, Unit

LONGEST = 50_000
DEEPEST = 60
PRIVACY_OPTIONS = re.compile(r"\bSELECT\s+WITH\s+DIFFERENTIAL_PRIVACY\s*(?:OPTIONS\s*\(([^()]*)\))?", re.IGNORECASE)
FIRST_WORD = re.compile(r"[\s(]*([A-Za-z]+)")
# What may be written in OPTIONS(...): our options under their names, those of a bound, and BigQuery's words for them.
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
ROOTS: dict[type[exp.Expr], AggregateKind] = {
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
    exp.BitwiseAndAgg: "bits of people's values are not aggregated; COUNT_IF a condition instead",
    exp.BitwiseOrAgg: "bits of people's values are not aggregated; COUNT_IF a condition instead",
    exp.BitwiseXorAgg: "bits of people's values are not aggregated; COUNT_IF a condition instead",
}
# Functions of `post.formulas` over answers: operators here, the others where `functions` names one.
ON_ANSWERS: dict[type[exp.Expr], str] = {
    exp.Add: "add", exp.Sub: "sub", exp.Mul: "mul", exp.Div: "div", exp.Neg: "neg", exp.EQ: "eq", exp.NEQ: "ne",
    exp.LT: "lt", exp.LTE: "le", exp.GT: "gt", exp.GTE: "ge", exp.And: "and", exp.Or: "or", exp.Not: "not",
    **{node: function.formula for node, function in BY_NODE.items() if function.formula},
}  # fmt: skip
REFUSED_CLAUSES = {
    "windows": "window functions read other people's rows; aggregate per user in a subquery instead",
    "qualify": "QUALIFY filters by window functions; use HAVING on the answer instead",
    "laterals": "LATERAL is not supported; write the subquery as a join",
    "sample": "TABLESAMPLE is not supported; query the whole table, which costs no more",
    "pivots": "PIVOT is not supported; GROUP BY the column, and pivot the answer with pandas or polars",
    "locks": "FOR UPDATE is not supported, since queries only read; leave it out",
    "into": "SELECT INTO is not supported, since queries only read; leave INTO out",
    "connect": "CONNECT BY is not supported; recursive queries are refused",
    "match": "MATCH_RECOGNIZE is not supported; aggregate per user in a subquery instead",
}


@dataclass(frozen=True)
class QueryReader:
    """Translates one parsed query over a dataset, for one unit of privacy."""

    dataset: Dataset
    unit: Unit
    joiner: JoinBuilder
    named: Mapping[str, NamedTable] = field(default_factory=dict)

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
            source = reader.rows(cte.this).with_alias(cte.alias)
            reader = replace(reader, named={**reader.named, cte.alias.lower(): source})
        return reader

    def rows(self, query: exp.Expr) -> NamedTable:
        """Translate a subquery, whose rows are not released but read by the query around it."""
        reader = self.with_ctes(query)
        if isinstance(query, exp.Subquery):
            return reader.rows(query.this)
        if isinstance(query, exp.SetOperation):
            return reader.set_operation(query)
        if not isinstance(query, exp.Select):
            raise Unsupported(f"{sql_excerpt(query)} is not a table; write a subquery that begins with SELECT")
        refuse_clauses(query)
        refuse_row_order(query)
        source = reader.source(query)
        if _aggregating(query):
            return reader.translate_group_by(query, source)
        columns = _columns(query, source)
        return project_columns(source, columns, query.args.get("distinct") is not None, reader.unit)

    def set_operation(self, query: exp.SetOperation) -> NamedTable:
        """Translate UNION ALL and UNION; refuse INTERSECT and EXCEPT, which compare rows of different people."""
        if not isinstance(query, exp.Union):
            word = type(query).__name__.upper()
            raise Unsupported(f"{word} compares rows of different people; join on the unit's key or filter with WHERE")
        refuse_row_order(query)
        both = union_all(self.rows(query.this), self.rows(query.expression))
        if not query.args.get("distinct"):
            return both
        return project_columns(both, {f.name: expr.ColumnRef(f.column) for f in both.fields}, True, self.unit)

    def source(self, query: exp.Select) -> NamedTable:
        """Translate FROM, joins and WHERE."""
        origin = query.args.get("from_") or query.args.get("from")
        if origin is None:
            raise Unsupported("a query needs FROM with a private table, such as SELECT COUNT(*) FROM table")
        conditions = conjuncts(query.args["where"].this) if query.args.get("where") else []
        source = self.item(origin.this)
        for join in query.args.get("joins") or []:
            source, conditions = self.translate_join(source, join, conditions)
        return self.where(source, conditions)

    def item(self, node: exp.Expr) -> NamedTable:
        """Translate one item of FROM: a table, a WITH name or a subquery."""
        for argument, reason in (("sample", REFUSED_CLAUSES["sample"]), ("pivots", REFUSED_CLAUSES["pivots"])):
            if node.args.get(argument):
                raise Unsupported(reason)
        if isinstance(node, exp.Subquery):
            return self.rows(node.this).with_alias(node.alias)
        if not isinstance(node, exp.Table) or isinstance(node.this, exp.Func):
            raise Unsupported(f"{sql_excerpt(node)} is not a table; FROM takes tables of the dataset and subqueries")
        if node.args.get("db") or node.args.get("catalog"):
            raise Unsupported(
                f"{sql_excerpt(node)}: write the table's name alone, without a database schema or catalog"
            )
        known = self.named.get(node.name.lower())
        found = known if known is not None else dataset_table(self.dataset, self.unit, node.name)
        return found.with_alias(node.alias or node.name)

    def translate_join(self, source: NamedTable, join: exp.Join, conditions: list[Any]) -> tuple[NamedTable, list[Any]]:
        """Translate one JOIN; a comma takes its equalities from the conditions of WHERE, and returns the others."""
        other = self.item(join.this)
        for alias in {f.alias for f in source.fields} & {f.alias for f in other.fields}:
            raise InvalidQuery(f"two tables are called {alias!r}; give one of them another name with AS")
        if join.args.get("method") or join.kind.upper() in {"SEMI", "ANTI", "STRAIGHT", "ASOF"}:
            raise Unsupported(
                f"{(join.args.get('method') or join.kind).upper()} JOIN is not supported; write JOIN ... ON"
            )
        side = (join.side or "inner").lower()
        if join.args.get("using"):
            return self.joiner.using(source, other, [name.name for name in join.args["using"]], side), conditions
        if join.args.get("on") is not None:
            return self.joiner.join(source, other, join.args["on"], side), conditions
        linking = [part for part in conditions if equality(source, other, part)]
        if not linking:
            raise Unsupported("cross joins are not supported; write JOIN ... ON with an equality of two columns")
        condition = exp.and_(*(part.copy() for part in linking))
        return self.joiner.join(source, other, condition, "inner"), [part for part in conditions if part not in linking]

    def where(self, source: NamedTable, conditions: list[exp.Expr]) -> NamedTable:
        """Translate WHERE; IN (SELECT ...) becomes a join with a public table."""
        plain = []
        for part in conditions:
            inner, negated = (part.this, True) if isinstance(part, exp.Not) else (part, False)
            if isinstance(inner, exp.In) and inner.args.get("query") is not None:
                source = join_membership(source, inner, self.rows(inner.args["query"].this), negated)
            else:
                plain.append(part)
        to = source.translator()
        return filter_rows(source, [_condition(to, part) for part in plain])

    def translate_group_by(self, query: exp.Select, source: NamedTable) -> NamedTable:
        """Translate a subquery with GROUP BY, which is per unit if the unit's key is among its keys."""
        if not query.args.get("group"):
            raise Unsupported(
                "an aggregate in a subquery needs GROUP BY with the unit's key; "
                "a total over all units can only be asked for in the outermost SELECT, where noise is added"
            )
        keys, _ = _keys(query, source)
        by_unit = source.knows_unit and any(isinstance(key, expr.ColumnRef) and _is_key(source, key) for _, key in keys)
        inner = _Subquery(source, keys)
        outputs = [(_alias(item, position), inner.node(_bare(item))) for position, item in enumerate(query.expressions)]
        having = query.args.get("having")
        condition = inner.node(having.this) if having else None
        relation: Relation = GroupBy(
            source.relation, tuple(keys), tuple(inner.aggregates), self.unit.name if by_unit else None
        )
        key_names = {name for name, key in keys if isinstance(key, expr.ColumnRef) and _is_key(source, key)}
        if by_unit and len(key_names) == len(keys):
            relation = LimitRowsPerUnit(relation, self.unit.name, 1)  # there is one, and now the plan says so
        fields = tuple(
            NamedColumn("", name, name, key=name in key_names)
            for name, _ in (*keys, *_aggregate_names(inner.aggregates))
        )
        whole = filter_rows(NamedTable(relation, fields, source.private, by_unit), [condition] if condition else [])
        return project_columns(whole, _distinct_names(outputs), query.args.get("distinct") is not None, self.unit)

    # --- the question --------------------------------------------------------------------------------------------

    def question(self, query: exp.Expr, text: str, options: Mapping[str, str]) -> Question:
        """Translate the outermost SELECT, whose aggregates are released with noise."""
        reader = self.with_ctes(query)
        if isinstance(query, exp.Subquery):
            return reader.question(query.this, text, options)
        if isinstance(query, exp.SetOperation):
            raise Unsupported("UNION of answers is not supported; run the queries as a batch, and join their answers")
        if not isinstance(query, exp.Select):
            raise Unsupported("only SELECT is supported")
        refuse_clauses(query)
        if query.args.get("distinct") is not None:
            raise Unsupported(
                "SELECT DISTINCT would reveal which values are in the data; write SELECT x, COUNT(*) ... GROUP BY x"
            )
        return reader._answer(query, text, options)

    def _answer(self, query: exp.Select, text: str, options: Mapping[str, str]) -> Question:
        source = self.source(query)
        if not source.private or source.held_fixed:
            raise Unsupported(
                f"the unit {self.unit.name!r} covers no table of this query; read one that it covers"
                if source.held_fixed
                else "this query reads only public tables; read a private one"
            )
        if not _aggregating(query):
            for node in query.find_all(exp.Anonymous):
                ExpressionTranslator(lambda column: expr.ColumnRef(column.name))(node)
            raise Unsupported(
                "rows of private tables cannot be returned; ask for aggregates such as COUNT, SUM or AVG, with GROUP BY"
            )
        top = _OuterSelect(source, *_keys(query, source))
        outputs = tuple(OutputColumn(_title(item), top.node(_bare(item))) for item in query.expressions)
        top = replace(top, outputs={output.name.lower(): output.node for output in outputs})
        having = query.args.get("having")
        condition = top.node(having.this) if having else None
        order = tuple(top.ordering(term, outputs) for term in _terms(query))
        if not top.aggregates:
            raise Unsupported("group keys alone would reveal which groups exist; add an aggregate such as COUNT(*)")
        limit, offset = _count(query, "limit"), _count(query, "offset") or 0
        keys = tuple(top.keys)
        return Question(
            text, self.unit.name, source.relation, source.knows_unit, keys, tuple(top.aggregates), outputs, condition,
            order, limit, offset, options,
        )  # fmt: skip


@dataclass(frozen=True)
class _OuterSelect:
    """Collects the aggregates of the outermost SELECT, and translates the expressions around them into formulas."""

    source: NamedTable
    keys: list[tuple[str, expr.Expr]]
    aliases: Mapping[str, exp.Expr]
    aggregates: list[AggregateCall] = field(default_factory=list)
    outputs: Mapping[str, recipe.Formula] = field(default_factory=dict)

    def node(self, node: exp.Expr) -> recipe.Formula:
        """Translate an expression over aggregates and keys."""
        if isinstance(node, exp.Paren):
            return self.node(node.this)
        if _is_aggregate(node):
            return self.aggregate(node)
        if isinstance(node, exp.Column) and not node.table and node.name.lower() in self.outputs:
            return self.outputs[node.name.lower()]
        key = self.key(node)
        if key is not None:
            return key
        if is_literal(node):
            value = literal_value(node)
            return recipe.FixedValue(float(value) if isinstance(value, Fraction) else value)
        return self.function(node)

    def key(self, node: exp.Expr) -> recipe.KeyValue | None:
        """Return the GROUP BY key that equals an expression, or None."""
        if any(_is_aggregate(part) for part in node.walk()):
            return None
        try:
            value = self.source.translator()(node)
        except (NotFound, InvalidQuery, Unsupported):
            return None
        found = [index for index, (_, key) in enumerate(self.keys) if key == value]
        if found:
            return recipe.KeyValue(found[0])
        if isinstance(node, exp.Column):
            raise InvalidQuery(
                f"{sql_excerpt(node)} is neither aggregated nor in GROUP BY; add it to GROUP BY or aggregate it"
            )
        return None

    def function(self, node: exp.Expr) -> recipe.Formula:
        """Translate a function of noisy values and keys, computed after the noise is added."""
        match node:
            case exp.Case():
                return self._case(node)
            case exp.If():
                parts = (node.this, node.args["true"], node.args.get("false") or exp.Null())
                return recipe.FunctionCall("case", tuple(map(self.node, parts)))
            case exp.Is() if isinstance(node.expression, exp.Null):
                return recipe.FunctionCall("isnull", (self.node(node.this),))
            case exp.In() if node.expressions:
                return recipe.FunctionCall("isin", tuple(map(self.node, (node.this, *node.expressions))))
            case exp.Between():
                low = recipe.FunctionCall("ge", (self.node(node.this), self.node(node.args["low"])))
                return recipe.FunctionCall(
                    "and", (low, recipe.FunctionCall("le", (self.node(node.this), self.node(node.args["high"]))))
                )
            case exp.Cast() if node.to.this in exp.DataType.NUMERIC_TYPES:
                inner = self.node(node.this)
                return recipe.FunctionCall("round", (inner,)) if node.to.this in exp.DataType.INTEGER_TYPES else inner
            case exp.Column():
                self.source.find(node)
        name = ON_ANSWERS.get(type(node))
        if name is None:
            raise _refusal(node)
        return recipe.FunctionCall(name, tuple(map(self.node, _arguments(node))))

    def _case(self, node: exp.Case) -> recipe.Formula:
        parts: list[recipe.Formula] = []
        for branch in node.args["ifs"]:
            condition = self.node(branch.this)
            if node.this is not None:
                condition = recipe.FunctionCall("eq", (self.node(node.this), condition))
            parts += [condition, self.node(branch.args["true"])]
        if node.args.get("default") is not None:
            parts.append(self.node(node.args["default"]))
        return recipe.FunctionCall("case", tuple(parts))

    def aggregate(self, node: exp.Expr) -> recipe.Formula:
        """Translate an aggregate into a noisy cell; equal aggregates share one."""
        condition = None
        if isinstance(node, exp.Filter):
            condition, node = _condition(self.source.translator(), node.expression.this), node.this
        if type(node) in ROOTS:
            values = (self.value(node.this),)
            return recipe.FunctionCall("sqrt", (self.cell(AggregateCall(ROOTS[type(node)], values, condition)),))
        return self.cell(self.aggregate_call(node, condition))

    def aggregate_call(self, node: exp.Expr, condition: expr.Expr | None) -> AggregateCall:
        """Return the call of an aggregate, with its kind, arguments and condition."""
        if isinstance(node, exp.CountIf):
            return AggregateCall("count", (), _both(condition, _condition(self.source.translator(), node.this)))
        if isinstance(node, exp.Count):
            return self.count_call(node, condition)
        if isinstance(node, QUANTILES):
            value, level = _quantile(node)
            return AggregateCall("quantile", (self.value(value),), condition, level)
        kind = AGGREGATES.get(type(node))
        if kind is None:
            raise _refusal(node)
        if isinstance(node.this, exp.Distinct):
            raise Unsupported(
                f"{sql_excerpt(node)}: only COUNT takes DISTINCT; aggregate over a subquery with SELECT DISTINCT"
            )
        values = (node.this,) if node.args.get("expression") is None else (node.this, node.expression)
        return AggregateCall(kind, tuple(map(self.value, values)), condition)

    def count_call(self, node: exp.Count, condition: expr.Expr | None) -> AggregateCall:
        """Translate COUNT(*), COUNT(x), COUNT(DISTINCT unit's key) and COUNT(DISTINCT x)."""
        inner = node.this
        if isinstance(inner, exp.Distinct):
            columns = inner.expressions
            if len(columns) == 1 and isinstance(columns[0], exp.Column) and self.source.find(columns[0]).key:
                return AggregateCall("units", (), condition)
            return AggregateCall("distinct", tuple(map(self.source.translator(), columns)), condition)
        if inner is None or isinstance(inner, exp.Star) or (is_literal(inner) and not isinstance(inner, exp.Null)):
            return AggregateCall("count", (), condition)
        return AggregateCall("count", (self.source.translator()(inner),), condition)

    def value(self, node: exp.Expr) -> expr.Expr:
        """Translate the argument of an aggregate."""
        if any(_is_aggregate(part) for part in node.walk()):
            raise Unsupported(
                f"{sql_excerpt(node)}: aggregates cannot be nested; aggregate per user in a subquery, and then over it"
            )
        return self.source.translator()(node)

    def cell(self, aggregate: AggregateCall) -> recipe.NoisyCell:
        """Return the cell of an aggregate, and add the aggregate if it is new."""
        if aggregate not in self.aggregates:
            self.aggregates.append(aggregate)
        return recipe.NoisyCell(self.aggregates.index(aggregate))

    def ordering(self, term: exp.Expr, outputs: tuple[OutputColumn, ...]) -> Ordering:
        """Translate one ORDER BY term: a position, an alias or an expression."""
        inner, descending, first = term.this, bool(term.args.get("desc")), bool(term.args.get("nulls_first"))
        if is_literal(inner):
            position = literal_value(inner)
            if not isinstance(position, Fraction) or not 1 <= position <= len(outputs) or position.denominator != 1:
                raise InvalidQuery(f"ORDER BY {sql_excerpt(inner)}: positions go from 1 to {len(outputs)}")
            return Ordering(outputs[int(position) - 1].node, descending, first)
        return Ordering(self.node(inner), descending, first)


@dataclass(frozen=True)
class _Subquery:
    """Collects the aggregates of a subquery with GROUP BY, whose exact values are never released."""

    source: NamedTable
    keys: list[tuple[str, expr.Expr]]
    aggregates: list[Grouped] = field(default_factory=list)

    def node(self, node: exp.Expr) -> expr.Expr:
        """Translate an expression over keys and aggregates into one over the grouped relation."""
        if isinstance(node, exp.Paren):
            return self.node(node.this)
        if _is_aggregate(node):
            return self.aggregate(node)
        if not any(_is_aggregate(part) for part in node.walk()):
            value = self.source.translator()(node)
            for name, key in self.keys:
                if key == value:
                    return expr.ColumnRef(name)
        return _Replaced(self)(node)

    def aggregate(self, node: exp.Expr) -> expr.Expr:
        """Translate an aggregate; AVG is a sum over a count."""
        condition = None
        if isinstance(node, exp.Filter):
            condition, node = _condition(self.source.translator(), node.expression.this), node.this
        if isinstance(node, exp.CountIf):
            condition, node = (
                _both(condition, _condition(self.source.translator(), node.this)),
                exp.Count(this=exp.Star()),
            )
        if isinstance(node, exp.Avg):
            value = self.source.translator()(node.this)
            return expr.Arithmetic("/", self.column("sum", value, condition), self.column("count", value, condition))
        return self._simple(node, condition)

    def _simple(self, node: exp.Expr, condition: expr.Expr | None) -> expr.Expr:
        to = self.source.translator()
        match node:
            case exp.Count(this=exp.Distinct() as inner) if len(inner.expressions) == 1:
                return self.column("distinct", to(inner.expressions[0]), condition)
            case exp.Count(this=exp.Star()):
                return self.column("count", None, condition)
            case exp.Count() if not isinstance(node.this, exp.Distinct):
                return self.column("count", None if is_literal(node.this) else to(node.this), condition)
            case exp.Sum() | exp.Min() | exp.Max() if not isinstance(node.this, exp.Distinct):
                return self.column(type(node).__name__.lower(), to(node.this), condition)
        raise Unsupported(f"{sql_excerpt(node)}: a subquery may only have the aggregates COUNT, SUM, AVG, MIN and MAX")

    def column(self, kind: Any, value: expr.Expr | None, condition: expr.Expr | None) -> expr.Expr:
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


class _Replaced(ExpressionTranslator):
    """A translator that passes sub-expressions back to the subquery with GROUP BY, which knows keys and aggregates."""

    def __init__(self, inner: _Subquery) -> None:
        def resolve(column: exp.Column) -> expr.Expr:
            inner.source.find(column)
            raise InvalidQuery(
                f"{sql_excerpt(column)} is neither aggregated nor in GROUP BY; add it to GROUP BY or aggregate it"
            )

        super().__init__(resolve)
        object.__setattr__(self, "_inner", inner)
        object.__setattr__(self, "_top", True)

    def __call__(self, node: exp.Expr) -> expr.Expr:
        if self.__dict__["_top"]:
            object.__setattr__(self, "_top", False)
            return super().__call__(node)
        inner: _Subquery = self.__dict__["_inner"]
        return super().__call__(node) if isinstance(node, exp.Column) and not _keyed(inner, node) else inner.node(node)


def _keyed(inner: _Subquery, node: exp.Column) -> bool:
    return inner.source.translator()(node) in [key for _, key in inner.keys]


def _condition(to: ExpressionTranslator, node: exp.Expr) -> expr.Expr:
    if any(_is_aggregate(part) for part in node.walk()):
        raise Unsupported(
            f"{sql_excerpt(node)}: WHERE, FILTER and GROUP BY read single rows, so they cannot have an aggregate; "
            "use HAVING to filter groups, or ask for the aggregate first and write its value as a number"
        )
    return to(node)


def _both(first: expr.Expr | None, second: expr.Expr) -> expr.Expr:
    return second if first is None else expr.And((first, second))


def _is_aggregate(node: exp.Expr) -> bool:
    return isinstance(node, exp.AggFunc | exp.Filter | exp.WithinGroup) and not isinstance(node.parent, exp.Window)


def _aggregating(query: exp.Select) -> bool:
    if query.args.get("group") or query.args.get("having"):
        return True
    return any(_is_aggregate(part) for item in query.expressions for part in _own(item))


def _own(node: exp.Expr) -> list[exp.Expr]:
    return list(node.walk(prune=lambda inner: isinstance(inner, exp.Subquery | exp.Select)))


def _is_key(source: NamedTable, key: expr.ColumnRef) -> bool:
    return any(field.key and field.column == key.name for field in source.fields)


def _quantile(node: exp.Expr) -> tuple[exp.Expr, Fraction]:
    level: Any = Fraction(1, 2)
    value = node.this
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


def _arguments(node: exp.Expr) -> list[exp.Expr]:
    if isinstance(node, exp.Log) and node.args.get("expression") is not None:
        raise Unsupported("LOG with a base is not supported; write LN(x) / LN(base)")
    if isinstance(node, exp.Floor | exp.Ceil) and node.args.get("decimals") is not None:
        raise Unsupported(f"{sql_excerpt(node)}: only ROUND takes digits")
    extra = [node.args.get(name) for name in ("expression", "decimals")]
    return [part for part in (node.this, *extra, *node.expressions) if isinstance(part, exp.Expr)]


def _bare(item: exp.Expr) -> exp.Expr:
    return item.this if isinstance(item, exp.Alias) else item


def _title(item: exp.Expr) -> str:
    return item.alias_or_name if isinstance(item, exp.Alias | exp.Column) else item.sql(dialect="duckdb").lower()


def _alias(item: exp.Expr, position: int) -> str:
    if isinstance(item, exp.Star) or (isinstance(item, exp.Column) and isinstance(item.this, exp.Star)):
        raise Unsupported("* with GROUP BY is not supported; name the columns")
    return item.alias_or_name or f"column_{position + 1}"


def _aggregate_names(aggregates: list[Grouped]) -> list[tuple[str, None]]:
    return [(aggregate.name, None) for aggregate in aggregates]


def _distinct_names(columns: list[tuple[str, expr.Expr]]) -> dict[str, expr.Expr]:
    names = [name for name, _ in columns]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidQuery(f"the subquery has two columns called {twice[0]!r}; rename one with AS")
    return dict(columns)


def _columns(query: exp.Select, source: NamedTable) -> dict[str, expr.Expr]:
    to = source.translator()
    columns: list[tuple[str, expr.Expr]] = []
    for position, item in enumerate(query.expressions):
        inner = _bare(item)
        if isinstance(inner, exp.Star) or (isinstance(inner, exp.Column) and isinstance(inner.this, exp.Star)):
            if inner.args.get("except_") or inner.args.get("replace") or inner.args.get("rename"):
                raise Unsupported("* with EXCEPT, EXCLUDE or REPLACE is not supported; name the columns")
            alias = inner.table.lower() if isinstance(inner, exp.Column) else ""
            fields = [f for f in source.fields if alias in ("", f.alias.lower())]
            columns += [(field.name, expr.ColumnRef(field.column)) for field in fields]
        else:
            columns.append((item.alias_or_name or f"column_{position + 1}", to(inner)))
    return _distinct_names(columns)


def _keys(query: exp.Select, source: NamedTable) -> tuple[list[tuple[str, expr.Expr]], dict[str, exp.Expr]]:
    aliases = {item.alias.lower(): item.this for item in query.expressions if isinstance(item, exp.Alias)}
    group = query.args.get("group")
    if group is None:
        return [], aliases
    if any(group.args.get(kind) for kind in ("rollup", "cube", "grouping_sets", "all", "totals")):
        raise Unsupported(
            "ROLLUP, CUBE, GROUPING SETS and GROUP BY ALL are not supported; run one query per grouping, as a batch"
        )
    keys: list[tuple[str, expr.Expr]] = []
    for term in group.expressions:
        name, node = _group_term(query, source, aliases, term)
        keys.append((_fresh(name, keys), _condition(source.translator(), node)))
    return keys, aliases


def _fresh(name: str, keys: list[tuple[str, expr.Expr]]) -> str:
    taken = {known for known, _ in keys}
    return name if name not in taken else f"{name}_{len(taken)}"


def _group_term(
    query: exp.Select, source: NamedTable, aliases: Mapping[str, exp.Expr], term: exp.Expr
) -> tuple[str, exp.Expr]:
    if isinstance(term, exp.Rollup | exp.Cube | exp.GroupingSets | exp.Tuple):
        raise Unsupported(
            "ROLLUP, CUBE, GROUPING SETS and tuples are not supported; run one query per grouping, as a batch"
        )
    if is_literal(term):
        position = literal_value(term)
        if not isinstance(position, Fraction) or not 1 <= position <= len(query.expressions):
            raise InvalidQuery(f"GROUP BY {sql_excerpt(term)}: positions go from 1 to {len(query.expressions)}")
        item = query.expressions[int(position) - 1]
        return _title(item), _bare(item)
    if isinstance(term, exp.Column) and not term.table and not source.has(term) and term.name.lower() in aliases:
        return term.name, aliases[term.name.lower()]
    matching = [item for item in query.expressions if isinstance(item, exp.Alias) and item.this == term]
    return (matching[0].alias if matching else _title(term)), term


def _terms(query: exp.Select) -> list[exp.Expr]:
    order = query.args.get("order")
    return list(order.expressions) if order is not None else []


def _count(query: exp.Select, clause: str) -> int | None:
    node = query.args.get(clause)
    if node is None:
        return None
    if isinstance(node, exp.Fetch):
        raise Unsupported("FETCH is not supported; write LIMIT")
    value = literal_value(node.expression) if is_literal(node.expression) else None
    if not isinstance(value, Fraction) or value.denominator != 1 or value < 0:
        raise Unsupported(f"{clause.upper()} takes a literal whole number")
    return int(value)


def refuse_clauses(query: exp.Select) -> None:
    """Refuse clauses that are not supported in any SELECT."""
    for clause, reason in REFUSED_CLAUSES.items():
        if query.args.get(clause):
            raise Unsupported(reason)
    distinct = query.args.get("distinct")
    if distinct is not None and distinct.args.get("on") is not None:
        raise Unsupported("DISTINCT ON is not supported; aggregate per user with MIN or MAX instead")
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


def parse(text: str) -> exp.Expr:
    """Parse one SELECT statement; refuse texts that are too long or nested too deep."""
    if len(text) > LONGEST:
        raise InvalidQuery(f"the query has {len(text)} characters; the most is {LONGEST}")
    verb = FIRST_WORD.match(text)
    if verb is not None and verb.group(1).upper() not in {"SELECT", "WITH"}:
        raise Unsupported(f"{verb.group(1).upper()[:20]} is not supported; a query begins with SELECT or WITH")
    try:
        statements = [part for part in sqlglot.parse(text, dialect="duckdb") if part is not None]
    except (SqlglotError, RecursionError) as problem:
        raise InvalidQuery(f"the query cannot be parsed: {_first_line(problem)}") from None
    if len(statements) != 1:
        raise InvalidQuery(f"a query is one statement, got {len(statements)}; run several as a batch")
    _check_depth(statements[0])
    return statements[0]


def _first_line(problem: Exception) -> str:
    if isinstance(problem, RecursionError):
        return f"it is nested deeper than {DEEPEST} levels"
    line = re.sub(r"\x1b\[[0-9;]*m", "", str(problem)).splitlines()[0]
    return re.sub(r"<[^<>]*>", "something else", re.sub(r" for <class [^>]*>", "", line))[:200]


def _check_depth(query: exp.Expr) -> None:
    level, depth = [query], 0
    while level:
        level, depth = [child for node in level for child in node.iter_expressions()], depth + 1
        if depth > DEEPEST * 2:
            raise InvalidQuery(f"the query is nested deeper than {DEEPEST} levels; split it into subqueries")


def parse_query(
    text: str,
    dataset: Dataset,
    unit: str,
    *,
    row_limit: int | None = None,
    join_limit: int | None = None,
) -> Question:
    """Parse a SQL query over a dataset, under a unit of privacy; `OPTIONS(...)` in the text overrides the arguments."""
    plain, options = sql_options(text)
    name = options.get("unit", unit)
    if name not in dataset.units:
        raise NotFound(f"no unit {name!r}; there are: {', '.join(sorted(dataset.units))}")
    declared = dataset.units[name]
    _check_unit_column(options, declared)
    joiner = JoinBuilder(
        declared, _whole(options, "max_contributions", row_limit), _whole(options, "max_rows_per_key", join_limit)
    )
    parsed = parse(plain)
    grammar.check_size(parsed)
    question = QueryReader(dataset, declared, joiner).question(parsed, text, options)
    grammar.check(parsed)
    grammar.check_plan((question.relation, question.keys, question.aggregates))
    return question


def _whole(options: Mapping[str, str], name: str, given: int | None) -> int | None:
    value = options.get(name, "")
    return int(value) if value.isdigit() else given


def _check_unit_column(options: Mapping[str, str], unit: Unit) -> None:
    column = options.get("privacy_unit_column")
    if column is not None and column not in unit.keys.values():
        raise InvalidQuery(f"privacy_unit_column must be the declared key of the unit {unit.name!r}, not {column!r}")
