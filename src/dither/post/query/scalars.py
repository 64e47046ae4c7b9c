"""Translate SQL expressions over one row, as sqlglot parses them, into expressions of the plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from fractions import Fraction
from typing import Any, Literal

from sqlglot import exp

from dither.errors import Unsupported
from dither.plan import expressions as expr
from dither.post.query.functions import BY_NODE, FUNCTION_NAMES, FUNCTIONS
from dither.post.query.intervals import is_interval, move_by
from dither.post.query.literals import is_literal, literal_value, parse_instant, sql_excerpt
from dither.post.query.text_functions import TextFunction, concatenation
from dither.post.query.truth_values import NumberCast

MAX_LITERALS = 1000
Resolve = Callable[[exp.Column], expr.Expr]

NO_PATTERNS = "regular expressions are not supported: their running time depends on data; use =, IN or LIKE 'prefix%'"
NO_FORMATS = "dates are not written as texts; group by YEAR(x) and MONTH(x), or by DATE_TRUNC('month', x)"
NO_INTERVALS = "an interval stands beside a date, as in day + INTERVAL 7 DAY; for a number of days, use DATE_DIFF"
MEMBERSHIP = (
    "EXISTS and IN (SELECT ...) are conditions of WHERE, CASE, FILTER or GROUP BY, with the unit's key on both sides; "
    "inside another subquery or in ON, put them into a subquery of their own"
)
SUBQUERY = (
    "a subquery inside an expression is not supported; ask for its value in a query of its own, and write the number "
    "here, or put the subquery in FROM and join it"
)
ADVICE: dict[type[exp.Expr], str] = {
    exp.Window: "window functions read other units' rows; aggregate per unit in a subquery instead",
    exp.RegexpLike: NO_PATTERNS,
    exp.RegexpILike: NO_PATTERNS,
    exp.SimilarTo: NO_PATTERNS,
    exp.Exists: MEMBERSHIP,
    exp.Subquery: SUBQUERY,
    exp.Rand: "random values are not supported: the same query must give the same answer",
    exp.CurrentTimestamp: "the current time is not available; write it as a literal, such as DATE '2020-01-31'",
    exp.CurrentDate: "the current date is not available; write it as a literal, such as DATE '2020-01-31'",
    exp.Star: "* is not supported here; name the columns",
    exp.Interval: NO_INTERVALS,
    exp.Any: "ANY is not supported; write IN with a list",
    exp.All: "ALL is not supported; compare with the largest value of the list",
    exp.Array: "arrays are not supported; write the elements as columns or in IN (...)",
    exp.Struct: "structs are not supported; name each column",
    exp.JSONExtract: "JSON paths are not supported; have the curator declare the member as a column of the table",
    exp.Bracket: "subscripts are not supported; have the curator declare the element as a column of the table",
    exp.Placeholder: "query parameters are not supported; write the value as a literal",
    exp.Parameter: "query parameters are not supported; write the value as a literal",
    exp.Lambda: "lambda functions are not supported; write a CASE",
    exp.Select: SUBQUERY,
    exp.BitwiseAnd: "bitwise operators are not supported; use % and FLOOR(x / 2)",
    exp.BitwiseOr: "bitwise operators are not supported; use arithmetic",
    exp.BitwiseXor: "bitwise operators are not supported; use arithmetic",
    exp.BitwiseNot: "bitwise operators are not supported; use -x - 1",
    exp.BitwiseLeftShift: "bitwise operators are not supported; multiply by a power of two",
    exp.BitwiseRightShift: "bitwise operators are not supported; divide by a power of two",
    exp.Tuple: "tuples are not supported; compare each column",
    exp.JSONExtractScalar: "JSON paths are not supported; have the curator declare the member as a column of the table",
    exp.CurrentUser: "the current user is not available in a query; leave it out",
    exp.RegexpExtract: NO_PATTERNS,
    exp.TimeToStr: NO_FORMATS,
    exp.ToChar: NO_FORMATS,
    exp.DateAdd: NO_INTERVALS,
    exp.DateSub: NO_INTERVALS,
    exp.TimestampAdd: NO_INTERVALS,
    exp.Trunc: "TRUNC is not supported; write FLOOR(x), or ROUND(x, digits)",
    exp.AggFunc: "this aggregate is not supported here; COUNT, SUM, AVG, MIN, MAX, MEDIAN, QUANTILE, STDDEV, "
    "VARIANCE, COVAR_SAMP, COVAR_POP and CORR are, in SELECT, HAVING and ORDER BY (see docs/sql.md)",
}


@dataclass(frozen=True)
class ExpressionTranslator:
    """Translates parsed expressions into those of the plan; `resolve` translates columns."""

    resolve: Resolve

    def __call__(self, node: exp.Expr) -> expr.Expr:
        handler = OPERATORS.get(type(node))
        if handler is not None:
            return handler(self, node)
        function = BY_NODE.get(type(node)) or FUNCTIONS.get(_function_name(node))
        if function is not None and function.build is not None:
            return function.build(self, node)
        for kind, advice in ADVICE.items():
            if isinstance(node, kind):
                raise Unsupported(f"{sql_excerpt(node)}: {advice}")
        if isinstance(node, exp.Func):
            name = _function_name(node)
            raise Unsupported(
                f"{name} is not supported{_suggest(name)}; docs/sql.md lists the aggregates, "
                "docs/functions.md the functions"
            )
        raise Unsupported(f"{sql_excerpt(node)} is not supported here; see docs/sql.md for what a query may contain")

    def column(self, node: exp.Column) -> expr.Expr:
        """Translate a column."""
        return self.resolve(node)

    def constant(self, node: exp.Expr) -> expr.Expr:
        """Translate a literal."""
        return expr.LiteralValue(literal_value(node))

    def negative(self, node: exp.Expr) -> expr.Expr:
        """Translate -x into 0 - x; a signed literal stays a literal."""
        if is_literal(node):
            return self.constant(node)
        return expr.Arithmetic("-", expr.LiteralValue(Fraction(0)), self(node.this))

    def compare(self, node: exp.Binary, op: Any) -> expr.Expr:
        """Translate a comparison; `date_literals` later converts texts that are compared with dates."""
        return expr.Compare(op, self(node.this), self(node.expression))

    def arithmetic(self, node: exp.Binary, op: Any) -> expr.Expr:
        """Translate +, -, *, / and %, and dates moved by an interval."""
        if op in ("+", "-") and is_interval(node.expression):
            return move_by(self(node.this), node.expression, 1 if op == "+" else -1)
        if op == "+" and is_interval(node.this):
            return move_by(self(node.expression), node.this, 1)
        return expr.Arithmetic(op, self(node.this), self(node.expression))

    def whole_division(self, node: exp.IntDiv) -> expr.Expr:
        """Translate a // b, which rounds the quotient towards zero."""
        quotient = expr.Arithmetic("/", self(node.this), self(node.expression))
        down, up = expr.Rounded("floor", quotient), expr.Rounded("ceil", quotient)
        return expr.Case(((expr.Compare(">=", quotient, expr.LiteralValue(Fraction(0))), down),), up)

    def member(self, node: exp.In) -> expr.Expr:
        """Translate x IN (literals)."""
        if node.args.get("query") is not None:
            raise Unsupported(f"{sql_excerpt(node)}: {MEMBERSHIP}")
        options = node.expressions
        if not options or not all(is_literal(option) or isinstance(option, exp.Cast) for option in options):
            raise Unsupported(f"{sql_excerpt(node)}: IN takes a list of literals or a subquery")
        if len(options) > MAX_LITERALS:
            raise Unsupported(f"IN takes at most {MAX_LITERALS} literals; put the list in a public table")
        return expr.In(self(node.this), tuple(self._list_member(option) for option in options))

    def _list_member(self, node: exp.Expr) -> Any:
        value = self(node)
        if isinstance(value, expr.Instant):
            return value.microseconds
        if isinstance(value, expr.LiteralValue) and value.value is not None:
            number = value.value
            return int(number) if isinstance(number, Fraction) and number.denominator == 1 else number
        raise Unsupported("NULL in an IN list never matches; use IS NULL")

    def between(self, node: exp.Between) -> expr.Expr:
        """Translate x BETWEEN a AND b."""
        return expr.between(self(node.this), self(node.args["low"]), self(node.args["high"]))

    def case(self, node: exp.Case) -> expr.Expr:
        """Translate CASE, with or without an operand; a missing ELSE is NULL."""
        branches = []
        for branch in node.args["ifs"]:
            condition = self(branch.this)
            if node.this is not None:
                condition = expr.Compare("=", self(node.this), condition)
            branches.append((condition, self(branch.args["true"])))
        default = node.args.get("default")
        return expr.Case(tuple(branches), expr.LiteralValue(None) if default is None else self(default))

    def choice(self, node: exp.If) -> expr.Expr:
        """Translate IF(condition, a, b)."""
        other = node.args.get("false")
        default = expr.LiteralValue(None) if other is None else self(other)
        return expr.Case(((self(node.this), self(node.args["true"])),), default)

    def is_test(self, node: exp.Is) -> expr.Expr:
        """Translate IS NULL, IS TRUE and IS FALSE."""
        child = self(node.this)
        if isinstance(node.expression, exp.Null):
            return expr.IsNull(child)
        if isinstance(node.expression, exp.Boolean):
            wanted = child if node.expression.this else expr.Not(child)
            return expr.Coalesce((wanted, expr.LiteralValue(False)))
        raise Unsupported(f"{sql_excerpt(node)}: IS takes NULL, TRUE or FALSE")

    def same(self, node: exp.Binary) -> expr.Expr:
        """Translate IS NOT DISTINCT FROM: equal, or both NULL."""
        left, right = self(node.this), self(node.expression)
        both_null = expr.And((expr.IsNull(left), expr.IsNull(right)))
        return expr.Or((both_null, expr.Coalesce((expr.Compare("=", left, right), expr.LiteralValue(False)))))

    def like(self, node: exp.Like | exp.ILike) -> expr.Expr:
        """Translate LIKE and ILIKE with a literal pattern, and their negations."""
        pattern = literal_value(node.expression) if is_literal(node.expression) else None
        if not isinstance(pattern, str):
            raise Unsupported("LIKE takes a literal pattern such as 'prefix%'")
        text, folded = pattern.strip("%"), isinstance(node, exp.ILike)
        if folded or "%" in text or "_" in text or len(pattern) - len(text) > 2:
            found: expr.Expr = TextFunction("ilike" if folded else "like", (self(node.this),), (pattern,))
        else:
            found = _match_text(self(node.this), text, pattern.startswith("%"), pattern.endswith("%"))
        return expr.Not(found) if node.args.get("negate") else found

    def cast(self, node: exp.Cast) -> expr.Expr:
        """Translate DATE '...', TIMESTAMP '...', and casts of a timestamp to DATE or of a truth value to a number."""
        target = node.to.this
        if is_literal(node.this) and literal_value(node.this) is None:
            return expr.LiteralValue(None)
        if target in exp.DataType.TEMPORAL_TYPES:
            if isinstance(node.this, exp.Literal) and node.this.is_string:
                return parse_instant(str(node.this.this), "UTC")  # `move_to_wall_clock` has removed the offset
            if target == exp.DataType.Type.DATE:
                return expr.DateTrunc("day", self(node.this))
            return self(node.this)
        if target in exp.DataType.INTEGER_TYPES:
            return NumberCast(self(node.this), whole=True)
        if target in exp.DataType.NUMERIC_TYPES:
            return NumberCast(self(node.this), whole=False)
        raise Unsupported(f"CAST to {node.to.sql()} is not supported; cast to a number type, DATE or TIMESTAMP")


# What other languages call an aggregate.
OTHER_NAMES = {"MEAN": "AVG", "AVERAGE": "AVG", "STD": "STDDEV", "STDEV": "STDDEV", "VAR": "VARIANCE", "LEN": "COUNT"}


def _suggest(name: str) -> str:
    """Suggest a function with a similar name."""
    close = [OTHER_NAMES[name]] if name in OTHER_NAMES else get_close_matches(name, FUNCTION_NAMES, 1)
    close = ["QUANTILE(x, q)"] if name.startswith("PERCENTILE") else close
    return f" (did you mean {close[0]}?)" if close else ""


def _function_name(node: exp.Expr) -> str:
    """The name of a function as it is written in SQL."""
    if isinstance(node, exp.Anonymous):
        return str(node.this).upper()
    return node.sql_name() if isinstance(node, exp.Func) else type(node).__name__.upper()


def _match_text(child: expr.Expr, text: str, open_start: bool, open_end: bool) -> expr.Expr:
    """Build the test of a LIKE pattern that may have % at its start and at its end."""
    if not open_start and not open_end:
        return expr.Compare("=", child, expr.LiteralValue(text))
    how: Literal["prefix", "suffix", "contains"] = "contains" if open_start and open_end else "prefix"
    return expr.TextMatch("suffix" if open_start and not open_end else how, child, text)


def _flatten(kind: type[exp.Connector], node: exp.Expr) -> list[exp.Expr]:
    """Return the operands of nested ANDs or ORs, without parentheses."""
    if isinstance(node, exp.Paren):
        return _flatten(kind, node.this)
    return [*_flatten(kind, node.this), *_flatten(kind, node.expression)] if isinstance(node, kind) else [node]


def conjuncts(node: exp.Expr) -> list[exp.Expr]:
    """Return the parts of a condition that AND joins."""
    return _flatten(exp.And, node)


Handler = Callable[[ExpressionTranslator, Any], expr.Expr]
# Operators and keywords; functions that are called by name are in `functions`.
OPERATORS: dict[type[exp.Expr], Handler] = {
    exp.Column: ExpressionTranslator.column,
    exp.Paren: lambda to, node: to(node.this),
    exp.Literal: ExpressionTranslator.constant,
    exp.Boolean: ExpressionTranslator.constant,
    exp.Null: ExpressionTranslator.constant,
    exp.Neg: ExpressionTranslator.negative,
    exp.Add: lambda to, node: to.arithmetic(node, "+"),
    exp.Sub: lambda to, node: to.arithmetic(node, "-"),
    exp.Mul: lambda to, node: to.arithmetic(node, "*"),
    exp.Div: lambda to, node: to.arithmetic(node, "/"),
    exp.IntDiv: ExpressionTranslator.whole_division,
    exp.EQ: lambda to, node: to.compare(node, "="),
    exp.NEQ: lambda to, node: to.compare(node, "<>"),
    exp.LT: lambda to, node: to.compare(node, "<"),
    exp.LTE: lambda to, node: to.compare(node, "<="),
    exp.GT: lambda to, node: to.compare(node, ">"),
    exp.GTE: lambda to, node: to.compare(node, ">="),
    exp.And: lambda to, node: expr.And(tuple(map(to, _flatten(exp.And, node)))),
    exp.Or: lambda to, node: expr.Or(tuple(map(to, _flatten(exp.Or, node)))),
    exp.Not: lambda to, node: expr.Not(to(node.this)),
    exp.In: ExpressionTranslator.member,
    exp.Between: ExpressionTranslator.between,
    exp.Is: ExpressionTranslator.is_test,
    exp.Case: ExpressionTranslator.case,
    exp.If: ExpressionTranslator.choice,
    exp.Like: ExpressionTranslator.like,
    exp.ILike: ExpressionTranslator.like,
    exp.NullSafeEQ: ExpressionTranslator.same,
    exp.NullSafeNEQ: lambda to, node: expr.Not(to.same(node)),
    exp.DPipe: lambda to, node: concatenation(to, [node.this, node.expression], "concatenate"),
    exp.Cast: ExpressionTranslator.cast,
    exp.TryCast: ExpressionTranslator.cast,
}
