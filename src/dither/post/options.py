"""The options of a question: one table that Session, the command line, HTTP, OpenAPI and SQL text all read.

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
MOST_CONFIDENT = 0.9999

# How a value is written: an exact amount, a number, a probability, a whole number from 1 or from 0, a text, or a
# contribution bound.
Form = Literal["amount", "number", "probability", "positive", "count", "text", "contributions"]
# What takes an option: a single question, a batch, a split, an explanation, the text of a question.
Place = Literal["question", "batch", "split", "explain", "text"]
ASKED: tuple[Place, ...] = ("question", "batch", "split")


class QueryOptions(TypedDict, total=False):
    """The options that every question takes as arguments; `ResolvedOptions` explains each."""

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


@dataclass(frozen=True)
class Option:
    """The meaning of an option, the form of its values, and the kinds of query that take it."""

    help: str
    form: Form
    places: tuple[Place, ...]


def option(help: str, form: Form, *places: Place, default: Any = None) -> Any:
    """A field of `ResolvedOptions`."""
    return field(default=default, metadata={"option": Option(help, form, places)})


@dataclass(frozen=True)
class ResolvedOptions:
    """The options of a question, each with its default."""

    epsilon: Rational | None = option("spend this much epsilon, such as 0.5 or 1/2", "amount", *ASKED, "text")
    rho: Rational | None = option("spend this much zCDP", "amount", *ASKED, "text")
    max_error: Rational | None = option(
        "spend the least epsilon that brings every column this close", "number", "question", "batch", "text"
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
    repeat: int = option("another number is another draw, and another charge", "count", "question", "batch", default=0)

    def with_sql_options(self, written: Mapping[str, str], *refused: str) -> ResolvedOptions:
        """Add the options in a question's text, where no argument says otherwise."""
        if unwelcome := [name for name in refused if name in written]:
            raise InvalidParameter(f"OPTIONS({unwelcome[0]} = ...) cannot be written into this question")
        silent = self.epsilon is None and self.rho is None and self.max_error is None
        losses: dict[str, Any] = {name: written.get(name) for name in LOSSES} if silent else {}
        bound = _written_bound(written) if self.max_contributions is None else self.max_contributions
        delta = written.get("delta") if self.delta is None else self.delta
        confidence = written.get("confidence", self.confidence)
        return replace(self, **losses, max_contributions=bound, delta=delta, confidence=confidence)


OPTIONS: dict[str, Option] = {each.name: each.metadata["option"] for each in fields(ResolvedOptions)}
DEFAULTS: dict[str, Any] = {each.name: each.default for each in fields(ResolvedOptions)}


def options_of(place: Place) -> dict[str, Option]:
    """The options that a kind of question takes."""
    return {name: each for name, each in OPTIONS.items() if place in each.places}


def resolve_options(given: Mapping[str, Any], place: Place = "question") -> ResolvedOptions:
    """Check option names, and fill in defaults."""
    known = options_of(place)
    if unknown := [name for name in given if name not in known and given[name] != DEFAULTS.get(name)]:
        raise TypeError(f"no option {', '.join(unknown)} here; there are: {', '.join(known)}")
    return ResolvedOptions(**{name: value for name, value in given.items() if name in known})


def confidence_level(confidence: Rational) -> float:
    """Check the confidence of intervals."""
    level = float(rational(confidence, "confidence"))
    if not 0 < level <= MOST_CONFIDENT:
        raise InvalidParameter(f"confidence must lie between 0 and {MOST_CONFIDENT}, such as 0.95, got {level}")
    return level


def _written_bound(written: Mapping[str, str]) -> object:
    """The contribution bound in a question's text."""
    if "max_groups" not in written:
        return written.get("max_contributions")
    bound = {"max_groups": written["max_groups"], "max_rows_per_group": written.get("max_rows_per_group", "1")}
    for name, value in bound.items():
        if not value.isdigit():
            raise InvalidParameter(f"OPTIONS({name} = ...) takes a whole number, got {value[:40]!r}")
    return {name: int(value) for name, value in bound.items()}
