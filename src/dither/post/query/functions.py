"""The SQL functions that a query may call, one entry each: the parser, refusals and docs/functions.md read this table.

To add a function, add an entry to FUNCTIONS and a query to tests/post/corpus. If no node of `plan.expressions` computes
it, add the node there too: its class holds its domain and its SQL for every engine.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, get_args

from sqlglot import exp

from dither.errors import Unsupported
from dither.plan import expressions as expr
from dither.post.query.intervals import is_interval, move_by
from dither.post.query.literals import is_literal, literal_integer, literal_value, sql_excerpt
from dither.post.query.text_functions import TextFunction, concatenation

Translate = Callable[[exp.Expr], expr.Expr]
Build = Callable[[Translate, Any], expr.Expr]

DATE_PARTS = {
    "dow": "dayofweek",
    "doy": "dayofyear",
    "weekday": "dayofweek",
    "dayofmonth": "day",
    **{part: part for part in get_args(expr.DatePartName)},
}
PERIODS = ("second", "minute", "hour", "day", "week", "month", "quarter", "year")


@dataclass(frozen=True)
class SqlFunction:
    """A SQL function: its usage and meaning for readers, its parsed form, and the plan expression that it becomes.

    `nodes` are the classes by which sqlglot parses it; a function that sqlglot does not know has none and is found by
    its name. `build` makes the expression. `reads` names the arguments of the nodes that `build` reads, if they are not
    just `this` and `expression`; a call with others is refused. `formula` is the function of `post.formulas` that
    computes the same over answers, if there is one.
    """

    usage: str
    summary: str
    nodes: tuple[type[exp.Expr], ...] = ()
    build: Build | None = None
    reads: str = ""
    formula: str = ""


# --- builders --------------------------------------------------------------------------------------------------------


def _round(how: Any) -> Build:
    """FLOOR, CEIL and ROUND, with a literal number of digits."""

    def build(translate: Translate, node: exp.Func) -> expr.Expr:
        given = node.args.get("decimals")
        digits = 0 if given is None else literal_integer(given)
        if digits is None or not -9 <= digits <= 9:
            raise Unsupported("ROUND takes a literal number of digits from -9 to 9")
        return expr.Rounded(how, translate(node.this), Fraction(10) ** -digits)

    return build


def _real_function(name: Any) -> Build:
    """A real function of one number."""
    return lambda translate, node: expr.Function(name, translate(node.this))


def _power(translate: Translate, node: exp.Pow) -> expr.Expr:
    """POWER with a public exponent."""
    exponent = literal_value(node.expression) if is_literal(node.expression) else None
    if not isinstance(exponent, Fraction):
        raise Unsupported(f"{sql_excerpt(node)}: the exponent must be a literal number, such as POWER(x, 2)")
    if exponent == 2:
        value = translate(node.this)
        return expr.Arithmetic("*", value, value)
    return expr.Power(translate(node.this), exponent)


def _logarithm(translate: Translate, node: exp.Log) -> expr.Expr:
    """LOG(x) to base 10, and LOG(base, x) for a literal base: LN(x) / LN(base), to five digits."""
    given, value = (None, node.this) if node.args.get("expression") is None else (node.this, node.expression)
    base = Fraction(10) if given is None else literal_value(given) if is_literal(given) else None
    if not isinstance(base, Fraction) or not 2 <= base <= 1000:
        raise Unsupported(f"{sql_excerpt(node)}: the base of LOG must be a literal number from 2 to 1000")
    factor = Fraction(f"{1 / math.log(base):.9f}")  # nine digits keep the product within 62 bits
    product = expr.Arithmetic("*", expr.Function("ln", translate(value)), expr.LiteralValue(factor))
    return expr.Rounded("round", product, Fraction(1, 10**5))  # LN has six, and the factor may be above 1


def _least_greatest(which: Any) -> Build:
    return lambda translate, node: expr.LeastGreatest(which, tuple(map(translate, (node.this, *node.expressions))))


def _text_match(how: Any) -> Build:
    """STARTS_WITH, ENDS_WITH and CONTAINS, with a literal text."""

    def build(translate: Translate, node: exp.Func) -> expr.Expr:
        text = literal_value(node.expression)
        if not isinstance(text, str):
            raise Unsupported(f"{node.sql_name()} takes a literal text")
        return expr.TextMatch(how, translate(node.this), text)

    return build


def _text_case(which: Any) -> Build:
    return lambda translate, node: expr.TextCase(which, translate(node.this))


def _substring(translate: Translate, node: exp.Substring) -> expr.Expr:
    """SUBSTR with a literal start and length."""
    start, length = node.args.get("start"), node.args.get("length")
    first, count = literal_integer(start), literal_integer(length)
    if first is None or (length is not None and count is None):
        raise Unsupported(f"{sql_excerpt(node)}: SUBSTR takes literal numbers, such as SUBSTR(country, 1, 2)")
    return expr.TextSlice(translate(node.this), first, count)


def _left_slice(translate: Translate, node: exp.Left) -> expr.Expr:
    count = literal_integer(node.expression)
    if count is None:
        raise Unsupported(f"{sql_excerpt(node)}: LEFT takes a literal number, such as LEFT(country, 2)")
    return expr.TextSlice(translate(node.this), 1, count)


def _text_function(name: str, *arguments: str) -> Build:
    """A function of declared texts, with literal arguments by their names in the parsed call."""

    def build(translate: Translate, node: exp.Func) -> expr.Expr:
        given = [literal_value(node.args[argument]) for argument in arguments]
        values = [int(each) if isinstance(each, Fraction) else each for each in given]
        if any(each is None or isinstance(each, bool) for each in values):
            raise Unsupported(f"{sql_excerpt(node)}: the arguments after the first must be literal texts or numbers")
        return TextFunction(name, (translate(node.this),), tuple(values))

    return build


def _trim(translate: Translate, node: exp.Trim) -> expr.Expr:
    """TRIM, LTRIM and RTRIM, of spaces or of literal characters."""
    given = node.args.get("expression")
    characters = literal_value(given) if given is not None else " "
    if not isinstance(characters, str):
        raise Unsupported(f"{sql_excerpt(node)}: TRIM takes literal characters")
    name = {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(str(node.args.get("position") or ""), "trim")
    return TextFunction(name, (translate(node.this),), (characters,))


def _date_part(part: Any) -> Build:
    return lambda translate, node: expr.DatePart(part, translate(node.this))


def _extract(translate: Translate, node: exp.Extract) -> expr.Expr:
    return _named_part(node.this.name, translate(node.expression))


def _iso_weekday(moment: expr.Expr) -> expr.Expr:
    """Monday is 1 and Sunday 7; DAYOFWEEK has Sunday as 0."""
    shifted = expr.Arithmetic("+", expr.DatePart("dayofweek", moment), expr.LiteralValue(Fraction(6)))
    return expr.Arithmetic(
        "+", expr.Arithmetic("%", shifted, expr.LiteralValue(Fraction(7))), expr.LiteralValue(Fraction(1))
    )


def _named_part(name: str, moment: expr.Expr) -> expr.Expr:
    """Build the part of a moment with this name in SQL."""
    if name.lower() == "isodow":
        return _iso_weekday(moment)
    if name.lower() not in DATE_PARTS:
        raise Unsupported(
            f"there is no date part {name.lower()!r}; there are: {', '.join(get_args(expr.DatePartName))}"
        )
    part: Any = DATE_PARTS[name.lower()]
    return expr.DatePart(part, moment)


def _period(node: exp.Expr) -> Any:
    """Return the period that DATE_TRUNC or DATE_DIFF names."""
    unit = node.args.get("unit")
    name = unit.name.lower() if unit is not None else "day"
    if name.startswith("week"):
        name = "week"
    if name not in PERIODS:
        raise Unsupported(f"there is no period {name!r}; there are: {', '.join(PERIODS)}")
    return name


def _move(translate: Translate, node: exp.Func, sign: int) -> expr.Expr:
    """DATE_ADD and DATE_SUB, with an interval."""
    if not is_interval(node.expression):
        raise Unsupported(f"{sql_excerpt(node)}: write it as moment + INTERVAL 7 DAY")
    return move_by(translate(node.this), node.expression, sign)


def _width_bucket(translate: Translate, node: exp.WidthBucket) -> expr.Expr:
    ends = [literal_value(node.args[name]) for name in ("min_value", "max_value", "num_buckets")]
    low, high, count = (end if isinstance(end, Fraction) else Fraction(0) for end in ends)
    if not low < high or count.denominator != 1 or not 1 <= count <= 1000:
        raise Unsupported("WIDTH_BUCKET takes literals: a lower end, a higher end and a count from 1 to 1000")
    width = (high - low) / count
    return expr.Bucket(translate(node.this), tuple(low + width * step for step in range(int(count) + 1)))


# Functions that sqlglot does not know arrive by name, with a list of arguments.


def _clamp(translate: Translate, node: exp.Anonymous) -> expr.Expr:
    value, low, high = _arguments(node, 3)
    ends = literal_value(low), literal_value(high)
    if isinstance(ends[0], Fraction) and isinstance(ends[1], Fraction) and ends[0] <= ends[1]:
        return expr.Clamp(translate(value), ends[0], ends[1])
    raise Unsupported("CLAMP(x, low, high) takes two literal numbers, the lower first")


def _bucket(translate: Translate, node: exp.Anonymous) -> expr.Expr:
    value, *edges = node.expressions or [None]
    numbers = [literal_value(edge) for edge in edges]
    if not numbers or not all(isinstance(edge, Fraction) for edge in numbers):
        raise Unsupported("BUCKET(x, edge, ...) takes a number and at least one literal edge")
    return expr.Bucket(translate(value), tuple(edge for edge in numbers if isinstance(edge, Fraction)))


def _arguments(node: exp.Anonymous, count: int) -> list[exp.Expr]:
    """Return the arguments of a call; refuse a wrong number of them."""
    if len(node.expressions) != count:
        name = str(node.this).upper()
        raise Unsupported(f"{name} takes {count} arguments, got {len(node.expressions)}; write {FUNCTIONS[name].usage}")
    return list(node.expressions)


# --- the table -------------------------------------------------------------------------------------------------------

FUNCTIONS: dict[str, SqlFunction] = {
    "ABS": SqlFunction(
        "ABS(x)", "absolute value", (exp.Abs,), lambda to, node: expr.Absolute(to(node.this)), formula="abs"
    ),
    "BUCKET": SqlFunction(
        "BUCKET(x, edge, ...)", "number of literal edges that x reaches: a histogram's bin", build=_bucket
    ),
    "CEIL": SqlFunction(
        "CEIL(x)", "x rounded up to a whole number", (exp.Ceil,), _round("ceil"), "this decimals", formula="ceil"
    ),
    "CLAMP": SqlFunction("CLAMP(x, low, high)", "x clamped to literal bounds", build=_clamp),
    "COALESCE": SqlFunction(
        "COALESCE(x, y, ...)",
        "first value that is not NULL",
        (exp.Coalesce,),
        lambda to, node: expr.Coalesce(tuple(map(to, (node.this, *node.expressions)))),
        "this expressions",
        "coalesce",
    ),
    "CONCAT": SqlFunction(
        "CONCAT(x, y, ...)",
        "categories and texts joined, NULL as nothing; x || y is NULL if one of them is",
        (exp.Concat,),
        lambda to, node: concatenation(to, node.expressions, "concat"),
        "expressions safe coalesce",
    ),
    "CONTAINS": SqlFunction(
        "CONTAINS(x, 'text')", "whether a category contains a literal text", (exp.Contains,), _text_match("contains")
    ),
    "DATE_DIFF": SqlFunction(
        "DATE_DIFF('day', start, end)",
        "number of period boundaries between two moments",
        (exp.DateDiff,),
        lambda to, node: expr.DateDiff(_period(node), to(node.expression), to(node.this)),
        "this expression unit date_part_boundary",
    ),
    "DATE_PART": SqlFunction(
        "DATE_PART('hour', moment)",
        "part of a moment: " + ", ".join(get_args(expr.DatePartName)),
        build=lambda to, node: _named_part(str(literal_value(_arguments(node, 2)[0])), to(node.expressions[1])),
    ),
    "DATE_TRUNC": SqlFunction(
        "DATE_TRUNC('month', moment)",
        "start of the period that a moment lies in: " + ", ".join(PERIODS),
        (exp.TimestampTrunc, exp.DateTrunc),
        lambda to, node: expr.DateTrunc(_period(node), to(node.this)),
        "this unit",
    ),
    "DATE_ADD": SqlFunction(
        "DATE_ADD(moment, INTERVAL 7 DAY)",
        "moment moved by a literal interval, also written moment + INTERVAL 7 DAY",
        (exp.DateAdd,),
        lambda to, node: _move(to, node, 1),
        "this expression unit",
    ),
    "DATE_SUB": SqlFunction(
        "DATE_SUB(moment, INTERVAL 7 DAY)",
        "moment moved back, also written moment - INTERVAL 7 DAY",
        (exp.DateSub,),
        lambda to, node: _move(to, node, -1),
        "this expression unit",
    ),
    "ENDS_WITH": SqlFunction(
        "ENDS_WITH(x, 'text')", "whether a category ends with a literal text", (exp.EndsWith,), _text_match("suffix")
    ),
    "EXP": SqlFunction("EXP(x)", "exponential, to six digits", (exp.Exp,), _real_function("exp"), formula="exp"),
    "EXTRACT": SqlFunction("EXTRACT(hour FROM moment)", "same as DATE_PART", (exp.Extract,), _extract),
    "FLOOR": SqlFunction(
        "FLOOR(x)", "x rounded down to a whole number", (exp.Floor,), _round("floor"), "this decimals", formula="floor"
    ),
    "GREATEST": SqlFunction(
        "GREATEST(x, y, ...)",
        "largest of several values",
        (exp.Greatest,),
        _least_greatest("greatest"),
        "this expressions ignore_nulls",
        "greatest",
    ),
    "ISODOW": SqlFunction(
        "ISODOW(moment)",
        "day of the week, Monday 1 to Sunday 7; also DATE_PART('isodow', moment)",
        (exp.DayOfWeekIso,),
        lambda to, node: _iso_weekday(to(node.this)),
    ),
    "LEFT": SqlFunction(
        "LEFT(x, length)", "first characters of a category, a literal number of them", (exp.Left,), _left_slice
    ),
    "LEAST": SqlFunction(
        "LEAST(x, y, ...)",
        "smallest of several values",
        (exp.Least,),
        _least_greatest("least"),
        "this expressions ignore_nulls",
        "least",
    ),
    "LN": SqlFunction(
        "LN(x)", "natural logarithm, to six digits; NULL unless x > 0", (exp.Ln,), _real_function("ln"), formula="ln"
    ),
    "LENGTH": SqlFunction("LENGTH(x)", "number of characters of a category", (exp.Length,), _text_function("length")),
    "LOG": SqlFunction(
        "LOG(base, x)",
        "logarithm to a literal base, to five digits; LOG(x) and LOG10(x) are to base 10, LOG2(x) to base 2",
        (exp.Log,),
        _logarithm,
        formula="log10",
    ),
    "LOGISTIC": SqlFunction(
        "LOGISTIC(x)",
        "1 / (1 + EXP(-x)), to six digits",
        build=lambda to, node: expr.Function("logistic", to(_arguments(node, 1)[0])),
    ),
    "LOWER": SqlFunction("LOWER(x)", "category in lower case", (exp.Lower,), _text_case("lower")),
    "MOD": SqlFunction(
        "MOD(x, y)",
        "remainder, also written x % y",
        (exp.Mod,),
        lambda to, node: expr.Arithmetic("%", to(node.this), to(node.expression)),
        formula="mod",
    ),
    "NULLIF": SqlFunction(
        "NULLIF(x, y)",
        "NULL where x = y, else x",
        (exp.Nullif,),
        lambda to, node: expr.NullIf(to(node.this), to(node.expression)),
        formula="nullif",
    ),
    "POWER": SqlFunction(
        "POWER(x, 3)", "x to a literal power, to six digits; POWER(x, 2) is exact", (exp.Pow,), _power, formula="power"
    ),
    "REPLACE": SqlFunction(
        "REPLACE(x, 'old', 'new')",
        "category with a literal text replaced by another",
        (exp.Replace,),
        _text_function("replace", "expression", "replacement"),
        "this expression replacement",
    ),
    "REVERSE": SqlFunction("REVERSE(x)", "category read backwards", (exp.Reverse,), _text_function("reverse")),
    "RIGHT": SqlFunction(
        "RIGHT(x, length)", "last characters of a category", (exp.Right,), _text_function("right", "expression")
    ),
    "ROUND": SqlFunction(
        "ROUND(x, digits)",
        "x to a literal number of digits, halves away from zero",
        (exp.Round,),
        _round("round"),
        "this decimals",
        "round",
    ),
    "SIGN": SqlFunction("SIGN(x)", "-1, 0 or 1; over answers only", (exp.Sign,), formula="sign"),
    "SPLIT_PART": SqlFunction(
        "SPLIT_PART(x, '-', 1)",
        "part of a category between literal separators, counted from 1",
        (exp.SplitPart,),
        _text_function("split_part", "delimiter", "part_index"),
        "this delimiter part_index",
    ),
    "SQRT": SqlFunction(
        "SQRT(x)", "square root, to six digits; NULL unless x >= 0", (exp.Sqrt,), _real_function("sqrt"), formula="sqrt"
    ),
    "STARTS_WITH": SqlFunction(
        "STARTS_WITH(x, 'text')",
        "whether a category starts with a literal text",
        (exp.StartsWith,),
        _text_match("prefix"),
    ),
    "STRPOS": SqlFunction(
        "STRPOS(x, 'text')",
        "place of a literal text in a category, from 1; 0 if it is not there",
        (exp.StrPosition,),
        _text_function("strpos", "substr"),
        "this substr",
    ),
    "SUBSTR": SqlFunction(
        "SUBSTR(x, start, length)",
        "part of a category, between literal positions; LEFT(x, length) is its beginning",
        (exp.Substring,),
        _substring,
        "this start length",
    ),
    "TRIM": SqlFunction(
        "TRIM(x)",
        "category without spaces at its ends; also LTRIM and RTRIM",
        (exp.Trim,),
        _trim,
        "this expression position",
    ),
    "UPPER": SqlFunction("UPPER(x)", "category in upper case", (exp.Upper,), _text_case("upper")),
    "WIDTH_BUCKET": SqlFunction(
        "WIDTH_BUCKET(x, low, high, count)",
        "number of the equal bin that x lies in; 0 below and count + 1 above",
        (exp.WidthBucket,),
        _width_bucket,
        "this min_value max_value num_buckets",
    ),
    **{
        name: SqlFunction(f"{name}(moment)", f"same as DATE_PART('{part}', moment)", nodes, _date_part(part))
        for name, part, nodes in (
            ("YEAR", "year", (exp.Year,)),
            ("QUARTER", "quarter", (exp.Quarter,)),
            ("MONTH", "month", (exp.Month,)),
            ("WEEK", "week", (exp.Week, exp.WeekOfYear)),
            ("DAY", "day", (exp.Day, exp.DayOfMonth)),
            ("DAYOFWEEK", "dayofweek", (exp.DayOfWeek,)),
            ("DAYOFYEAR", "dayofyear", (exp.DayOfYear,)),
            ("HOUR", "hour", (exp.Hour,)),
            ("MINUTE", "minute", (exp.Minute,)),
            ("SECOND", "second", (exp.Second,)),
        )
    },
}
BY_NODE = {node: function for function in FUNCTIONS.values() for node in function.nodes}
FUNCTION_NAMES = sorted(name for name, function in FUNCTIONS.items() if function.build is not None)
