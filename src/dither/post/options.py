"""The options of a query: one table that Session, the command line, HTTP, OpenAPI and SQL text all read.

To add an option, add a line to `QueryOptions` and a field to `ResolvedOptions`, and use it where it takes effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypedDict

from dither.errors import InvalidParameter
from dither.loss import Rational, rational

CONFIDENCE = 0.95
LOSSES = ("epsilon", "rho", "max_error")
MAX_CONFIDENCE = 0.9999

# The form of an option's values: an exact amount, a number, a probability, a whole number from 1 ("positive") or from 0
# ("count"), a text, a contribution bound, or yes or no ("flag").
Form = Literal["amount", "number", "probability", "positive", "count", "text", "contributions", "flag"]
# Where an option may be given: for a single query, a batch, a split, an explanation, or in the text of a query.
Place = Literal["question", "batch", "split", "explain", "text"]
ASKED: tuple[Place, ...] = ("question", "batch", "split")


class QueryOptions(TypedDict, total=False):
    """The options that a query takes as arguments; `ResolvedOptions` explains each."""

    epsilon: Rational | None
    rho: Rational | None
    max_error: Rational | None
    max_contributions: object
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

    epsilon: Rational | None = option("spend this much epsilon, such as 0.5 or 1/2", "amount", *ASKED, "text")
    rho: Rational | None = option("spend this much zCDP", "amount", *ASKED, "text")
    max_error: Rational | None = option(
        "spend the least epsilon that brings every column this close to the truth",
        "number",
        "question",
        "batch",
        "text",
    )
    max_contributions: object = option(
        "rows that one unit may add: a number, auto, or max_groups=3,max_rows_per_group=5 (,how=clip or rows)",
        "contributions", *ASKED, "explain", "text",
    )  # fmt: skip
    confidence: Rational = option(
        "confidence level of the intervals", "probability", *ASKED, "text", default=CONFIDENCE
    )
    unit: str | None = option("unit of privacy; by default the first budget's", "text", *ASKED, "explain", "text")
    max_rows_per_key: int | None = option(
        "rows of one key that a join on another key keeps", "positive", *ASKED, "explain", "text"
    )
    delta: Rational | None = option(
        "select keys that the schema does not list, privately, for half of the loss", "amount", "question", "text"
    )
    assumed_group_size: float | None = option(
        "rows of a group, for expected errors that depend on it", "number", *ASKED
    )
    repeat: int = option(
        "a different number asks for a new draw, and is charged again", "count", "question", "batch", default=0
    )
    nonnegative: bool = option(
        "raise negative counts, and sums that cannot be negative, to 0; the raw values stay in the measurements",
        "flag", *ASKED, default=False,
    )  # fmt: skip

    def with_sql_options(self, written: Mapping[str, str], *refused: str) -> ResolvedOptions:
        """Add the options in a query's text: confidence replaces the argument, and others only fill in what is missing.

        `parse_query` reads the options `unit` and `max_rows_per_key` of the text.
        """
        if unwelcome := [name for name in refused if name in written]:
            raise InvalidParameter(f"OPTIONS({unwelcome[0]} = ...) cannot be written in this query; leave it out")
        no_loss_given = self.epsilon is None and self.rho is None and self.max_error is None
        losses: dict[str, Any] = {name: written.get(name) for name in LOSSES} if no_loss_given else {}
        bound = _bound_in_sql(written) if self.max_contributions is None else self.max_contributions
        delta = written.get("delta") if self.delta is None else self.delta
        confidence = written.get("confidence", self.confidence)
        return replace(self, **losses, max_contributions=bound, delta=delta, confidence=confidence)


OPTIONS: dict[str, Option] = {each.name: each.metadata["option"] for each in fields(ResolvedOptions)}
DEFAULTS: dict[str, Any] = {each.name: each.default for each in fields(ResolvedOptions)}


def options_of(place: Place) -> dict[str, Option]:
    """Return the options that may be given in one place."""
    return {name: each for name, each in OPTIONS.items() if place in each.places}


def resolve_options(given: Mapping[str, Any], place: Place = "question") -> ResolvedOptions:
    """Refuse unknown options, and fill in defaults."""
    known = options_of(place)
    if unknown := [name for name in given if name not in known and given[name] != DEFAULTS.get(name)]:
        raise TypeError(f"no option {', '.join(unknown)} here; there are: {', '.join(known)}")
    return ResolvedOptions(**{name: value for name, value in given.items() if name in known})


def confidence_level(confidence: Rational) -> float:
    """Return the confidence of intervals as a number; refuse one that is out of range."""
    level = float(rational(confidence, "confidence"))
    if not 0 < level <= MAX_CONFIDENCE:
        raise InvalidParameter(f"confidence must lie between 0 and {MAX_CONFIDENCE}, such as 0.95, got {level}")
    return level


def _bound_in_sql(written: Mapping[str, str]) -> object:
    """Return the contribution bound that a query's text gives, or None."""
    if "max_groups" not in written:
        return written.get("max_contributions")
    bound = {"max_groups": written["max_groups"], "max_rows_per_group": written.get("max_rows_per_group", "1")}
    for name, value in bound.items():
        if not value.isdigit():
            raise InvalidParameter(f"OPTIONS({name} = ...) takes a whole number, got {value[:40]!r}")
    return {name: int(value) for name, value in bound.items()}
