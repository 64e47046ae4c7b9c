"""The options of a query: one table that Session, the command line, HTTP, OpenAPI and SQL text all read.

To add an option, add a line to `QueryOptions` and a field to `ResolvedOptions`, and use it where it takes effect. Every
value is checked here, by the reader of its form, before anything else sees it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from fractions import Fraction
from operator import index
from typing import Any, Literal, TypedDict

from dither.errors import InvalidParameter
from dither.loss import Rational, rational
from dither.post.contribution_bound import OPTIMIZE_FOR, OptimizeFor, parse_contribution_bound

CONFIDENCE = 0.95
LOSSES = ("epsilon", "rho", "max_error")
MAX_CONFIDENCE = 0.9999
LONGEST_TEXT = 200
LARGEST_WHOLE = 2**31 - 1
AMOUNT = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?[0-9]+/[0-9]+")
# A session appends ":keys" or ":refine" to a name; the kernel takes up to 64 characters.
REQUEST_ID = re.compile(r"[A-Za-z0-9_.:-]{0,56}")

# The form of an option's values: an exact number above 0 ("amount") or between 0 and 1 ("probability"), a whole number
# from 1 ("positive") or from 0 ("count"), a text, a contribution bound, what a bound is best for ("aim"), or yes or no
# ("flag").
Form = Literal["amount", "probability", "positive", "count", "text", "contributions", "aim", "flag"]
# Where an option may be given: for a single query, a batch, a split, an explanation, in the text of a query, or for a
# statistic.
Place = Literal["question", "batch", "split", "explain", "text", "statistic"]
ASKED: tuple[Place, ...] = ("question", "batch", "split")
ANY: tuple[Place, ...] = (*ASKED, "statistic")


class QueryOptions(TypedDict, total=False):
    """The options that a query takes as arguments; `ResolvedOptions` explains each."""

    epsilon: Rational | None
    rho: Rational | None
    max_error: Rational | None
    max_contributions: object
    optimize_for: str
    confidence: Rational
    unit: str | None
    max_rows_per_key: int | None
    delta: Rational | None
    assumed_group_size: float | None
    repeat: int
    nonnegative: bool


@dataclass(frozen=True)
class Option:
    """The meaning of an option, the form of its values, and the places where it may be given."""

    help: str
    form: Form
    places: tuple[Place, ...]


def option(help: str, form: Form, *places: Place, default: Any = None) -> Any:
    """Declare a field of `ResolvedOptions`."""
    return field(default=default, metadata={"option": Option(help, form, places)})


@dataclass(frozen=True)
class ResolvedOptions:
    """The options of a query; those that were not given have their defaults."""

    epsilon: Rational | None = option("spend this much epsilon, such as 0.5 or 1/2", "amount", *ANY, "text")
    rho: Rational | None = option("spend this much zCDP", "amount", *ANY, "text")
    max_error: Rational | None = option(
        "spend the least epsilon that brings every column this close to the truth",
        "amount",
        "question",
        "batch",
        "text",
    )
    max_contributions: object = option(
        "rows that one unit may add: auto, 20, 20,report (a fifth of the loss estimates what that removes), or"
        " max_groups=3,max_rows_per_group=5; each but auto may have ,how=clip or ,how=rows",
        "contributions", *ANY, "explain", "text",
    )  # fmt: skip
    optimize_for: OptimizeFor = option(
        "what a contribution bound that is chosen is best for: answer (all groups), total, typical or smallest",
        "aim", *ASKED, "explain", "text", default="answer",
    )  # fmt: skip
    confidence: Rational = option("confidence level of the intervals", "probability", *ANY, "text", default=CONFIDENCE)
    unit: str | None = option("unit of privacy; by default the first budget's", "text", *ANY, "explain", "text")
    max_rows_per_key: int | None = option(
        "rows of one key that a join on another key keeps", "positive", *ANY, "explain", "text"
    )
    delta: Rational | None = option(
        "select keys that the schema does not list, privately, for two thirds of the loss",
        "probability",
        "question",
        "text",
    )
    assumed_group_size: float | None = option(
        "rows of a group, for expected errors that depend on it", "amount", *ASKED
    )
    repeat: int = option(
        "a different number asks for a new draw, and is charged again",
        "count",
        "question",
        "batch",
        "statistic",
        default=0,
    )
    nonnegative: bool = option(
        "raise negative counts, and sums that cannot be negative, to 0; the raw values stay in the measurements",
        "flag", *ASKED, default=False,
    )  # fmt: skip


OPTIONS: dict[str, Option] = {each.name: each.metadata["option"] for each in fields(ResolvedOptions)}
DEFAULTS: dict[str, Any] = {each.name: each.default for each in fields(ResolvedOptions)}


def options_of(place: Place) -> dict[str, Option]:
    """Return the options that may be given in one place."""
    return {name: each for name, each in OPTIONS.items() if place in each.places}


def resolve_options(
    given: Mapping[str, Any], place: Place = "question", written: Mapping[str, str] | None = None
) -> ResolvedOptions:
    """Check the options of a query and fill in defaults; `written` are those of OPTIONS(...) in its text.

    An option may be given in both places, with the same value; two different values are refused.
    """
    known = options_of(place)
    if unknown := [name for name in given if name not in known and given[name] != DEFAULTS.get(name)]:
        raise TypeError(f"no option {', '.join(unknown)} here; there are: {', '.join(known)}")
    arguments = {name: value for name, value in given.items() if name in known and value is not None}
    texts = _options_in_sql(written or {})
    if unwelcome := [name for name in texts if name not in known]:
        raise InvalidParameter(f"OPTIONS({unwelcome[0]} = ...) cannot be written in this query; leave it out")
    _refuse_two_values(arguments, texts)
    return ResolvedOptions(**read_options({**arguments, **texts}))


def _refuse_two_values(arguments: Mapping[str, Any], texts: Mapping[str, Any]) -> None:
    """Refuse an option whose value in the text differs from the argument; the three ways to give a loss are one."""
    names: list[tuple[str, ...]] = [LOSSES, *((name,) for name in OPTIONS if name not in LOSSES)]
    for together in names:
        argued, said = ({name: side[name] for name in together if name in side} for side in (arguments, texts))
        if argued and said and read_options(argued) != read_options(said):
            one, two = (", ".join(f"{name} = {value}" for name, value in side.items()) for side in (said, argued))
            raise InvalidParameter(
                f"OPTIONS(...) in the query has {one}, and the argument is {two}; give one of them, or the same twice"
            )


def read_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Check the values of options by their forms."""
    return {name: read_option(name, value) for name, value in given.items()}


def read_option(name: str, value: Any) -> Any:
    """Check the value of an option by its form, and return it as code uses it."""
    return READERS[OPTIONS[name].form](name, value)


def read_amount(name: str, value: Any) -> Fraction:
    """Return a number above 0, exactly."""
    exact = _read_number(name, value)
    if exact <= 0:
        raise InvalidParameter(f"{name} must be more than 0, got {excerpt(value)}")
    return exact


def read_probability(name: str, value: Any) -> Fraction:
    """Return a number between 0 and 1, exactly."""
    exact = _read_number(name, value)
    most = rational(MAX_CONFIDENCE) if name == "confidence" else Fraction(1)
    if not 0 < exact <= most or exact == 1:
        raise InvalidParameter(f"{name} must lie between 0 and {float(most):g}, got {excerpt(value)}")
    return exact


def _read_number(name: str, value: Any) -> Fraction:
    if isinstance(value, str) and not AMOUNT.fullmatch(value[:LONGEST_TEXT]):
        raise InvalidParameter(f"{name} must be a number such as 0.1 or '1/10', got {excerpt(value)}")
    return rational(value, name)


def read_whole(name: str, value: Any, least: int) -> int:
    """Return a whole number from `least` to 2^31 - 1; text with its digits counts as one."""
    wanted = f"{name} must be a whole number from {least} to {LARGEST_WHOLE}"
    try:
        if isinstance(value, bool):
            raise TypeError
        number = int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else index(value)
    except (TypeError, ValueError):
        raise InvalidParameter(f"{wanted}, got {excerpt(value)}") from None
    if not least <= number <= LARGEST_WHOLE:
        raise InvalidParameter(f"{wanted}, got {excerpt(value)}")
    return number


def read_text(name: str, value: Any, longest: int = LONGEST_TEXT) -> str:
    """Return a text of at least one character that can be stored."""
    if not isinstance(value, str) or not 1 <= len(value) <= longest or not is_storable(value):
        raise InvalidParameter(f"{name} must be a text of 1 to {longest} characters, got {excerpt(value)}")
    return value


def is_storable(value: str) -> bool:
    """Tell whether a text has no characters that databases refuse."""
    return "\x00" not in value and not any("\ud800" <= character <= "\udfff" for character in value)


def read_aim(name: str, value: Any) -> OptimizeFor:
    """Return what a chosen contribution bound is best for."""
    aim = OPTIMIZE_FOR.get(value.lower()) if isinstance(value, str) else None
    if aim is None:
        raise InvalidParameter(f"{name} must be one of {', '.join(map(str, OPTIMIZE_FOR))}, got {excerpt(value)}")
    return aim


def read_flag(name: str, value: Any) -> bool:
    """Return True or False."""
    if not isinstance(value, bool):
        raise InvalidParameter(f"{name} must be true or false, got {excerpt(value)}")
    return value


def read_request_id(value: Any) -> str:
    """Return the name that a caller gives to a request, or "" if it gives none."""
    if value is None:
        return ""
    if not isinstance(value, str) or not REQUEST_ID.fullmatch(value):
        raise InvalidParameter(
            f"request_id must be a text of at most 56 characters from A-Z a-z 0-9 _ . : -, got {excerpt(value)}"
        )
    return value


def read_queries(queries: Any) -> Sequence[str]:
    """Return the queries of a batch."""
    if not isinstance(queries, list | tuple) or not all(isinstance(query, str) for query in queries):
        raise InvalidParameter(
            "a query must be a string, such as 'SELECT COUNT(*) FROM people', and a batch a list of them"
        )
    if not queries:
        raise InvalidParameter("a batch needs at least one query")
    return queries


def excerpt(value: object) -> str:
    """Write a value that was refused, short enough for a message."""
    text = repr(value) if isinstance(value, str | int | float) or value is None else f"a {type(value).__name__}"
    return text if len(text) <= 40 else text[:37] + "..."


READERS: dict[Form, Callable[[str, Any], Any]] = {
    "amount": read_amount,
    "probability": read_probability,
    "positive": lambda name, value: read_whole(name, value, 1),
    "count": lambda name, value: read_whole(name, value, 0),
    "text": read_text,
    "contributions": lambda name, value: parse_contribution_bound(value),
    "aim": read_aim,
    "flag": read_flag,
}


def _options_in_sql(written: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of a query's text by their names in `OPTIONS`; the parts of a contribution bound are one."""
    options: dict[str, Any] = {name: value for name, value in written.items() if name in OPTIONS}
    if "max_groups" in written:
        parts = {"max_groups": written["max_groups"], "max_rows_per_group": written.get("max_rows_per_group", "1")}
        options["max_contributions"] = {name: read_whole(name, value, 1) for name, value in parts.items()}
    return options
