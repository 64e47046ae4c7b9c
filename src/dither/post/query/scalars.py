"""SQL expressions of one row, as sqlglot parses them, into the scalar language of the plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any, Literal, get_args

from sqlglot import exp

from dither.errors import InvalidParameter, InvalidQuery, Unsupported
from dither.loss import rational
from dither.plan import expressions as expr

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MOST_LITERALS = 1000
PARTS = {
    "dow": "dayofweek",
    "doy": "dayofyear",
    "weekday": "dayofweek",
    "dayofmonth": "day",
    **{part: part for part in get_args(expr.Part)},
}
PERIODS = ("second", "minute", "hour", "day", "week", "month", "quarter", "year")
Resolve = Callable[[exp.Column], expr.Expr]

NO_PATTERNS = "regular expressions are refused: their time depends on the data; use =, IN or LIKE 'prefix%'"
ADVICE: dict[type[exp.Expr], str] = {
    exp.Window: "window functions depend on other people's rows; aggregate per user in a subquery instead",
    exp.RegexpLike: NO_PATTERNS,
    exp.RegexpILike: NO_PATTERNS,
    exp.SimilarTo: NO_PATTERNS,
    exp.ILike: "ILIKE is not offered; write LOWER(column) LIKE 'prefix%'",
    exp.DPipe: "texts cannot be built; group by both columns instead of joining them",
    exp.Concat: "texts cannot be built; group by both columns instead of joining them",
    exp.Substring: "texts cannot be cut; use LIKE 'prefix%' or a CASE over the declared values",
    exp.Exists: "EXISTS is not offered; join on the unit's key or use IN with a public subquery",
    exp.Subquery: "a subquery inside an expression would read other rows; put it in FROM and join it",
    exp.Rand: "random values are refused: the same question must have the same answer",
    exp.CurrentTimestamp: "the current time is not part of the question; write a literal, DATE '2020-01-31'",
    exp.CurrentDate: "the current date is not part of the question; write it as a literal, DATE '2020-01-31'",
    exp.Star: "* stands for columns; name the ones you need",
    exp.Interval: "intervals are not offered; compare with a DATE or TIMESTAMP literal, or use DATE_DIFF",
    exp.Any: "ANY is not offered; write IN with a list",
    exp.All: "ALL is not offered; compare with the largest value of the list",
    exp.Array: "lists are not values here; write the members as columns or in IN (...)",
    exp.Struct: "structs are not values here; name each column",
    exp.JSONExtract: "JSON paths are not offered; declare the member as a column of the table",
    exp.Bracket: "subscripts are not offered; declare the element as a column of the table",
    exp.Placeholder: "parameters are not filled in here; write the value as a literal",
    exp.Parameter: "parameters are not filled in here; write the value as a literal",
    exp.Lambda: "functions are not values here; write a CASE",
    exp.Select: "a subquery inside an expression would read other rows; put it in FROM and join it",
    exp.NullSafeNEQ: "write x <> y OR x IS NULL",
    exp.NullSafeEQ: "write x = y AND x IS NOT NULL",
    exp.BitwiseAnd: "bits are not offered; use % and FLOOR(x / 2)",
    exp.BitwiseOr: "bits are not offered; use arithmetic",
    exp.BitwiseXor: "bits are not offered; use arithmetic",
    exp.BitwiseNot: "bits are not offered; use -x - 1",
    exp.BitwiseLeftShift: "bits are not offered; multiply by a power of two",
    exp.BitwiseRightShift: "bits are not offered; divide by a power of two",
    exp.Tuple: "tuples are not values here; compare each column",
    exp.JSONExtractScalar: "JSON paths are not offered; declare the member as a column of the table",
    exp.CurrentUser: "who asks is not part of the question",
    exp.RegexpExtract: NO_PATTERNS,
    exp.Length: "the length of a text is not offered; use a CASE over the declared values",
    exp.Trim: "texts are compared as declared; no trimming is needed",
    exp.AggFunc: "an aggregate cannot stand here; aggregates belong in SELECT, HAVING or ORDER BY",
}


def literal_value(node: exp.Expr) -> Fraction | str | bool | None:
    """The value of a literal, with a sign in front of it where there is one."""
    match node:
        case exp.Paren():
            return literal_value(node.this)
        case exp.Neg():
            value = literal_value(node.this)
            if isinstance(value, Fraction):
                return -value
        case exp.Literal():
            return str(node.this) if node.is_string else number(node.this)
        case exp.Boolean():
            return bool(node.this)
        case exp.Null():
            return None
        case _:
            pass
    raise Unsupported(f"{sql_excerpt(node)} must be a literal: a number, a text, TRUE, FALSE or NULL")


def number(text: str) -> Fraction:
    """A number as written, exactly."""
    try:
        return rational(text, "number")
    except InvalidParameter as problem:
        raise InvalidQuery(str(problem)) from None


def is_literal(node: exp.Expr) -> bool:
    """Whether the node is a literal, perhaps signed or in parentheses."""
    if isinstance(node, exp.Paren | exp.Neg):
        return is_literal(node.this)
    return isinstance(node, exp.Literal | exp.Boolean | exp.Null)


def sql_excerpt(node: exp.Expr) -> str:
    """The node as SQL, short enough for a message."""
    text = node.sql(dialect="duckdb")
    return text if len(text) <= 60 else text[:57] + "..."


def instant(text: str) -> expr.Instant:
    """A date or timestamp written as text."""
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidQuery(f"{text[:40]!r} is not a date; write it as '2020-01-31' or '2020-01-31 12:00:00'") from None
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    return expr.Instant((moment - EPOCH) // (datetime.resolution))


@dataclass(frozen=True)
class ExpressionTranslator:
    """Turns parsed scalars into plan nodes; `resolve` finds columns, `member` answers IN (SELECT ...)."""

    resolve: Resolve

    def __call__(self, node: exp.Expr) -> expr.Expr:
        handler = HANDLERS.get(type(node))
        if handler is not None:
            return handler(self, node)
        for kind, advice in ADVICE.items():
            if isinstance(node, kind):
                raise Unsupported(f"{sql_excerpt(node)}: {advice}")
        if isinstance(node, exp.Func):
            raise Unsupported(f"{_name(node)} is not offered; the functions are: {', '.join(FUNCTION_NAMES)}")
        raise Unsupported(f"{sql_excerpt(node)} is not offered here; see docs/sql.md for what a query may contain")

    def column(self, node: exp.Column) -> expr.Expr:
        """A column, wherever the name is found."""
        return self.resolve(node)

    def constant(self, node: exp.Expr) -> expr.Expr:
        """A literal."""
        return expr.LiteralValue(literal_value(node))

    def negative(self, node: exp.Expr) -> expr.Expr:
        """-x as 0 - x; a signed literal stays one."""
        if is_literal(node):
            return self.constant(node)
        return expr.Arithmetic("-", expr.LiteralValue(Fraction(0)), self(node.this))

    def compare(self, node: exp.Binary, op: Any) -> expr.Expr:
        """A comparison; texts that are compared with moments are read by `post.dates`."""
        return expr.Compare(op, self(node.this), self(node.expression))

    def arithmetic(self, node: exp.Binary, op: Any) -> expr.Expr:
        """An exact operation."""
        return expr.Arithmetic(op, self(node.this), self(node.expression))

    def whole_division(self, node: exp.IntDiv) -> expr.Expr:
        """a // b towards zero, which is the floor of the size with the sign of the quotient."""
        quotient = expr.Arithmetic("/", self(node.this), self(node.expression))
        down, up = expr.Rounded("floor", quotient), expr.Rounded("ceil", quotient)
        return expr.Case(((expr.Compare(">=", quotient, expr.LiteralValue(Fraction(0))), down),), up)

    def rounded(self, node: exp.Func, how: Any) -> expr.Expr:
        """FLOOR, CEIL and ROUND, the last two with a number of digits."""
        digits = node.args.get("decimals")
        places = literal_value(digits) if digits is not None else Fraction(0)
        if not isinstance(places, Fraction) or places.denominator != 1 or not -9 <= places <= 9:
            raise Unsupported("ROUND takes a literal number of digits from -9 to 9")
        return expr.Rounded(how, self(node.this), Fraction(10) ** -int(places))

    def power(self, node: exp.Pow) -> expr.Expr:
        """POWER with a public exponent."""
        exponent = literal_value(node.expression) if is_literal(node.expression) else None
        if not isinstance(exponent, Fraction):
            raise Unsupported(f"{sql_excerpt(node)}: the exponent must be a literal number, such as POWER(x, 2)")
        if exponent == 2:
            value = self(node.this)
            return expr.Arithmetic("*", value, value)
        return expr.Power(self(node.this), exponent)

    def logarithm(self, node: exp.Expr) -> expr.Expr:
        """LOG(x) is LN(x) / LN(10); LOG2 and other bases are refused."""
        if node.expression is not None and node.args.get("expression") is not None:
            raise Unsupported("LOG with a base is not offered; write LN(x) / LN(base) with the second a number")
        natural = expr.Function("ln", self(node.this))
        return expr.Arithmetic("*", natural, expr.LiteralValue(Fraction("0.434294481903251828")))

    def member(self, node: exp.In) -> expr.Expr:
        """x IN (literals)."""
        if node.args.get("query") is not None:
            raise Unsupported("IN (SELECT ...) stands alone in WHERE, joined to the rest by AND, over a public table")
        options = node.expressions
        if not options or not all(is_literal(option) or isinstance(option, exp.Cast) for option in options):
            raise Unsupported(f"{sql_excerpt(node)}: IN takes a list of literals or a subquery over a public table")
        if len(options) > MOST_LITERALS:
            raise Unsupported(f"IN takes at most {MOST_LITERALS} literals; put the list in a public table")
        return expr.In(self(node.this), tuple(self._listed(option) for option in options))

    def _listed(self, node: exp.Expr) -> Any:
        value = self(node)
        if isinstance(value, expr.Instant):
            return value.microseconds
        if isinstance(value, expr.LiteralValue) and value.value is not None:
            number = value.value
            return int(number) if isinstance(number, Fraction) and number.denominator == 1 else number
        raise Unsupported("NULL in an IN list never matches; use IS NULL")

    def between(self, node: exp.Between) -> expr.Expr:
        """x BETWEEN a AND b."""
        return expr.between(self(node.this), self(node.args["low"]), self(node.args["high"]))

    def case(self, node: exp.Case) -> expr.Expr:
        """CASE, with or without an operand; without ELSE it is NULL."""
        branches = []
        for branch in node.args["ifs"]:
            condition = self(branch.this)
            if node.this is not None:
                condition = expr.Compare("=", self(node.this), condition)
            branches.append((condition, self(branch.args["true"])))
        default = node.args.get("default")
        return expr.Case(tuple(branches), expr.LiteralValue(None) if default is None else self(default))

    def choice(self, node: exp.If) -> expr.Expr:
        """IF(condition, a, b)."""
        other = node.args.get("false")
        default = expr.LiteralValue(None) if other is None else self(other)
        return expr.Case(((self(node.this), self(node.args["true"])),), default)

    def is_test(self, node: exp.Is) -> expr.Expr:
        """IS NULL, IS TRUE and IS FALSE."""
        child = self(node.this)
        if isinstance(node.expression, exp.Null):
            return expr.IsNull(child)
        if isinstance(node.expression, exp.Boolean):
            wanted = child if node.expression.this else expr.Not(child)
            return expr.Coalesce((wanted, expr.LiteralValue(False)))
        raise Unsupported(f"{sql_excerpt(node)}: IS takes NULL, TRUE or FALSE")

    def like(self, node: exp.Like) -> expr.Expr:
        """LIKE and NOT LIKE with 'x', 'x%', '%x' and '%x%'."""
        pattern = literal_value(node.expression) if is_literal(node.expression) else None
        if not isinstance(pattern, str):
            raise Unsupported("LIKE takes a literal pattern such as 'prefix%'")
        text = pattern.strip("%")
        if "%" in text or "_" in text or len(pattern) - len(text) > 2:
            raise Unsupported("LIKE is offered as 'text', 'prefix%', '%suffix' and '%part%' only, without _")
        found = _matched(self(node.this), text, pattern.startswith("%"), pattern.endswith("%"))
        return expr.Not(found) if node.args.get("negate") else found

    def starts_with(self, node: exp.Expr, how: Any) -> expr.Expr:
        """STARTS_WITH, ENDS_WITH and CONTAINS."""
        text = literal_value(node.expression)
        if not isinstance(text, str):
            raise Unsupported(f"{_name(node)} takes a literal text")
        return expr.TextMatch(how, self(node.this), text)

    def extract(self, node: exp.Extract) -> expr.Expr:
        """EXTRACT(part FROM moment)."""
        return expr.DatePart(_part(node.this.name), self(node.expression))

    def truncated(self, node: exp.Expr) -> expr.Expr:
        """DATE_TRUNC('month', moment)."""
        return expr.DateTrunc(_period(node), self(node.this))

    def difference(self, node: exp.DateDiff) -> expr.Expr:
        """DATE_DIFF('day', start, end)."""
        return expr.DateDiff(_period(node), self(node.expression), self(node.this))

    def cast(self, node: exp.Cast) -> expr.Expr:
        """DATE '...' and TIMESTAMP '...'; a moment to its day; a truth value or number to a number."""
        target = node.to.this
        if target in exp.DataType.TEMPORAL_TYPES:
            if isinstance(node.this, exp.Literal) and node.this.is_string:
                return instant(str(node.this.this))
            if target == exp.DataType.Type.DATE:
                return expr.DateTrunc("day", self(node.this))
            return self(node.this)
        if target in exp.DataType.INTEGER_TYPES:
            return expr.Rounded("round", _numeric(self(node.this)))
        if target in exp.DataType.NUMERIC_TYPES:
            return _numeric(self(node.this))
        raise Unsupported(f"CAST to {node.to.sql()} is not offered; numbers, DATE and TIMESTAMP are")

    def bucket(self, node: exp.WidthBucket) -> expr.Expr:
        """WIDTH_BUCKET(x, low, high, count)."""
        ends = [literal_value(node.args[name]) for name in ("min_value", "max_value", "num_buckets")]
        low, high, count = (end if isinstance(end, Fraction) else Fraction(0) for end in ends)
        if not low < high or count.denominator != 1 or not 1 <= count <= 1000:
            raise Unsupported("WIDTH_BUCKET takes literals: a lower end, a higher end and a count from 1 to 1000")
        width = (high - low) / count
        return expr.Bucket(self(node.this), tuple(low + width * step for step in range(int(count) + 1)))

    def extreme(self, node: exp.Func, which: Any) -> expr.Expr:
        """LEAST and GREATEST."""
        return expr.LeastGreatest(which, tuple(self(part) for part in (node.this, *node.expressions)))

    def anonymous(self, node: exp.Anonymous) -> expr.Expr:
        """CLAMP, LOGISTIC, DATE_PART and BUCKET, which the parser does not know."""
        name, arguments = str(node.this).lower(), node.expressions
        if name == "clamp" and len(arguments) == 3:
            low, high = literal_value(arguments[1]), literal_value(arguments[2])
            if isinstance(low, Fraction) and isinstance(high, Fraction) and low <= high:
                return expr.Clamp(self(arguments[0]), low, high)
            raise Unsupported("CLAMP(x, low, high) takes two literal numbers, the lower first")
        if name == "date_part" and len(arguments) == 2:
            return expr.DatePart(_part(str(literal_value(arguments[0]))), self(arguments[1]))
        if name == "logistic" and len(arguments) == 1:
            return expr.Function("logistic", self(arguments[0]))
        if name == "bucket" and len(arguments) > 1:
            edges = [literal_value(edge) for edge in arguments[1:]]
            return expr.Bucket(self(arguments[0]), tuple(edge for edge in edges if isinstance(edge, Fraction)))
        raise Unsupported(f"{name.upper()} is not offered; the functions are: {', '.join(FUNCTION_NAMES)}")


def _name(node: exp.Expr) -> str:
    return node.sql_name() if isinstance(node, exp.Func) else type(node).__name__.upper()


def _matched(child: expr.Expr, text: str, open_start: bool, open_end: bool) -> expr.Expr:
    if not open_start and not open_end:
        return expr.Compare("=", child, expr.LiteralValue(text))
    how: Literal["prefix", "suffix", "contains"] = "contains" if open_start and open_end else "prefix"
    return expr.TextMatch("suffix" if open_start and not open_end else how, child, text)


def _numeric(child: expr.Expr) -> expr.Expr:
    logical = isinstance(child, expr.Compare | expr.And | expr.Or | expr.Not | expr.In | expr.IsNull | expr.TextMatch)
    return expr.AsNumber(child) if logical else child


def _part(name: str) -> Any:
    if name.lower() not in PARTS:
        raise Unsupported(f"there is no date part {name.lower()!r}; there are: {', '.join(get_args(expr.Part))}")
    return PARTS[name.lower()]


def _period(node: exp.Expr) -> Any:
    unit = node.args.get("unit")
    name = unit.name.lower() if unit is not None else "day"
    if name.startswith("week"):
        name = "week"
    if name not in PERIODS:
        raise Unsupported(f"there is no period {name!r}; there are: {', '.join(PERIODS)}")
    return name


def _flat(kind: type[exp.Connector], node: exp.Expr) -> list[exp.Expr]:
    if isinstance(node, exp.Paren):
        return _flat(kind, node.this)
    return [*_flat(kind, node.this), *_flat(kind, node.expression)] if isinstance(node, kind) else [node]


def conjuncts(node: exp.Expr) -> list[exp.Expr]:
    """The parts of a condition that AND joins."""
    return _flat(exp.And, node)


Handler = Callable[[ExpressionTranslator, Any], expr.Expr]
HANDLERS: dict[type[exp.Expr], Handler] = {
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
    exp.Mod: lambda to, node: to.arithmetic(node, "%"),
    exp.IntDiv: ExpressionTranslator.whole_division,
    exp.EQ: lambda to, node: to.compare(node, "="),
    exp.NEQ: lambda to, node: to.compare(node, "<>"),
    exp.LT: lambda to, node: to.compare(node, "<"),
    exp.LTE: lambda to, node: to.compare(node, "<="),
    exp.GT: lambda to, node: to.compare(node, ">"),
    exp.GTE: lambda to, node: to.compare(node, ">="),
    exp.And: lambda to, node: expr.And(tuple(map(to, _flat(exp.And, node)))),
    exp.Or: lambda to, node: expr.Or(tuple(map(to, _flat(exp.Or, node)))),
    exp.Not: lambda to, node: expr.Not(to(node.this)),
    exp.In: ExpressionTranslator.member,
    exp.Between: ExpressionTranslator.between,
    exp.Is: ExpressionTranslator.is_test,
    exp.Case: ExpressionTranslator.case,
    exp.If: ExpressionTranslator.choice,
    exp.Like: ExpressionTranslator.like,
    exp.StartsWith: lambda to, node: to.starts_with(node, "prefix"),
    exp.EndsWith: lambda to, node: to.starts_with(node, "suffix"),
    exp.Contains: lambda to, node: to.starts_with(node, "contains"),
    exp.Abs: lambda to, node: expr.Absolute(to(node.this)),
    exp.Floor: lambda to, node: to.rounded(node, "floor"),
    exp.Ceil: lambda to, node: to.rounded(node, "ceil"),
    exp.Round: lambda to, node: to.rounded(node, "round"),
    exp.Sqrt: lambda to, node: expr.Function("sqrt", to(node.this)),
    exp.Ln: lambda to, node: expr.Function("ln", to(node.this)),
    exp.Log: ExpressionTranslator.logarithm,
    exp.Exp: lambda to, node: expr.Function("exp", to(node.this)),
    exp.Pow: ExpressionTranslator.power,
    exp.Least: lambda to, node: to.extreme(node, "least"),
    exp.Greatest: lambda to, node: to.extreme(node, "greatest"),
    exp.Coalesce: lambda to, node: expr.Coalesce(tuple(map(to, (node.this, *node.expressions)))),
    exp.Nullif: lambda to, node: expr.NullIf(to(node.this), to(node.expression)),
    exp.Lower: lambda to, node: expr.TextCase("lower", to(node.this)),
    exp.Upper: lambda to, node: expr.TextCase("upper", to(node.this)),
    exp.Extract: ExpressionTranslator.extract,
    exp.Year: lambda to, node: expr.DatePart("year", to(node.this)),
    exp.Quarter: lambda to, node: expr.DatePart("quarter", to(node.this)),
    exp.Month: lambda to, node: expr.DatePart("month", to(node.this)),
    exp.Day: lambda to, node: expr.DatePart("day", to(node.this)),
    exp.DayOfMonth: lambda to, node: expr.DatePart("day", to(node.this)),
    exp.DayOfWeek: lambda to, node: expr.DatePart("dayofweek", to(node.this)),
    exp.DayOfYear: lambda to, node: expr.DatePart("dayofyear", to(node.this)),
    exp.Hour: lambda to, node: expr.DatePart("hour", to(node.this)),
    exp.Minute: lambda to, node: expr.DatePart("minute", to(node.this)),
    exp.Second: lambda to, node: expr.DatePart("second", to(node.this)),
    exp.TimestampTrunc: ExpressionTranslator.truncated,
    exp.DateTrunc: ExpressionTranslator.truncated,
    exp.DateDiff: ExpressionTranslator.difference,
    exp.Cast: ExpressionTranslator.cast,
    exp.WidthBucket: ExpressionTranslator.bucket,
    exp.Anonymous: ExpressionTranslator.anonymous,
}
FUNCTION_NAMES = (
    "ABS, BUCKET, CEIL, CLAMP, COALESCE, CONTAINS, DATE_DIFF, DATE_PART, DATE_TRUNC, ENDS_WITH, EXP, EXTRACT, FLOOR, "
    "GREATEST, LEAST, LN, LOG, LOGISTIC, LOWER, MOD, NULLIF, POWER, ROUND, SQRT, STARTS_WITH, UPPER, WIDTH_BUCKET"
).split(", ")
