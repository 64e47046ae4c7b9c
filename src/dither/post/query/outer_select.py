"""Translate the outermost SELECT: its aggregates are measured, and the expressions around them become formulas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from sqlglot import exp

from dither.errors import InvalidQuery, NotFound, Unsupported
from dither.plan import expressions as expr
from dither.post import formulas
from dither.post.query.functions import BY_NODE
from dither.post.query.literals import is_literal, literal_value, sql_excerpt, sql_text
from dither.post.query.question import AggregateCall, AggregateKind, Ordering, OutputColumn
from dither.post.query.scalars import ExpressionTranslator
from dither.post.query.syntax import conjoin, is_aggregate, is_present_literal, translate_condition
from dither.post.query.tables import NamedTable

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
    exp.RegrSlope: "regr_slope",
    exp.RegrIntercept: "regr_intercept",
    exp.RegrR2: "regr_r2",
    exp.RegrCount: "regr_count",
    exp.RegrAvgx: "regr_avgx",
    exp.RegrAvgy: "regr_avgy",
    exp.RegrSxx: "regr_sxx",
    exp.RegrSyy: "regr_syy",
    exp.RegrSxy: "regr_sxy",
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


@dataclass(frozen=True)
class OuterSelect:
    """Collects the aggregates of the outermost SELECT, and translates the expressions around them into formulas."""

    source: NamedTable
    keys: list[tuple[str, expr.Expr]]
    aggregates: list[AggregateCall] = field(default_factory=list)
    outputs: Mapping[str, formulas.Formula] = field(default_factory=dict)

    def translate(self, node: exp.Expr) -> formulas.Formula:
        """Translate an expression over aggregates and keys."""
        if isinstance(node, exp.Paren):
            return self.translate(node.this)
        if is_aggregate(node):
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
        if any(is_aggregate(part) for part in node.walk()):
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
            case exp.Window():
                return self.translate_window(node)
            case exp.Grouping():
                return formulas.FunctionCall("grouping", tuple(map(self.translate_key, node.expressions)))
            case exp.Column():
                self.source.find(node)
        name = ANSWER_FUNCTIONS.get(type(node))
        if name is None:
            raise _refusal(node)
        return formulas.FunctionCall(name, tuple(map(self.translate, _answer_arguments(node))))

    def translate_key(self, node: exp.Expr) -> formulas.Formula:
        """Translate an argument of GROUPING, which is a key of GROUP BY."""
        key = self.translate(node)
        if not isinstance(key, formulas.KeyValue):
            raise InvalidQuery(f"GROUPING takes keys of GROUP BY, and {sql_excerpt(node)} is none")
        return key

    def translate_window(self, node: exp.Window) -> formulas.Formula:
        """Translate SUM(aggregate) OVER (...), which adds up noisy values over rows of the answer."""
        inner = self.translate(node.this.this) if isinstance(node.this, exp.Sum) else formulas.FixedValue(None)
        form = formulas.as_affine(inner)
        if form is None or form.constant or not self._are_totals(form.weights):
            raise Unsupported(
                f"{sql_excerpt(node)}: over the rows of an answer, SUM(COUNT(*)) OVER (...) and SUM(SUM(x)) OVER (...) "
                "are offered; other window functions would read rows of different people, or can be computed from the "
                "answer"
            )
        ordered = node.args["order"].expressions if node.args.get("order") else []
        terms = tuple((self.translate(term.this), bool(term.args.get("desc"))) for term in ordered)
        return formulas.WindowSum(inner, tuple(map(self.translate, node.args.get("partition_by") or ())), terms)

    def _are_totals(self, cells: Iterable[int]) -> bool:
        """Return True if cells are counts and sums, which can be added up over groups."""
        kinds = {self.aggregates[index].kind for index in cells}
        return bool(kinds) and kinds <= {"count", "sum", "units", "distinct"}

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
            condition, node = translate_condition(self.source.translator(), node.expression.this), node.this
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
                "count", (), conjoin(condition, translate_condition(self.source.translator(), node.this))
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
        if inner is None or isinstance(inner, exp.Star) or is_present_literal(inner):
            return AggregateCall("count", (), condition)
        return AggregateCall("count", (self.source.translator()(inner),), condition)

    def translate_argument(self, node: exp.Expr) -> expr.Expr:
        """Translate the argument of an aggregate."""
        if any(is_aggregate(part) for part in node.walk()):
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
    parts = node.walk(prune=lambda part: is_aggregate(part) or isinstance(part, exp.Query))
    inner = dict.fromkeys(sql_excerpt(part) for part in parts if is_aggregate(part))
    over_rows = node.copy().transform(lambda part: exp.column("x") if inner and is_aggregate(part) else part)
    try:
        ExpressionTranslator(lambda column: expr.ColumnRef(column.name))(over_rows)
    except Unsupported as refusal:
        return refusal
    if inner:
        named = " and ".join(sorted(inner, key=sql_text(node).find))
        return Unsupported(
            f"{sql_excerpt(node)}: this function takes values of single rows, and no aggregate; ask for {named} in "
            "columns of their own, and compute the rest from the answer"
        )
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
