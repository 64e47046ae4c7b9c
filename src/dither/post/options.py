"""The options of a question: given as arguments, or in its text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypedDict

from dither.errors import InvalidParameter
from dither.loss import Rational, rational

CONFIDENCE = 0.95
LOSSES = ("epsilon", "rho", "within")
MOST_CONFIDENT = 0.9999


class Options(TypedDict, total=False):
    """How a question is asked.

    `epsilon`, `rho` or `within` (solve for the epsilon that brings every column this close) say what it may cost;
    `bound` how one unit is bounded ("auto", a number of rows, or {"groups": G, "rows": R}); `confidence` that of the
    intervals; `unit` the unit of privacy; `join_rows` how many rows of one key a join on another key keeps. With
    `delta`, keys that the schema does not list are first selected privately, for half of the loss. `rows` is a guess
    at the size of a group, for errors that depend on it.
    """

    epsilon: Rational | None
    rho: Rational | None
    within: Rational | None
    bound: object
    confidence: Rational
    unit: str | None
    join_rows: int | None
    delta: Rational | None
    rows: float | None


@dataclass(frozen=True)
class Chosen:
    """The options of a question, each with its default."""

    epsilon: Rational | None = None
    rho: Rational | None = None
    within: Rational | None = None
    bound: object = None
    confidence: Rational = CONFIDENCE
    unit: str | None = None
    join_rows: int | None = None
    delta: Rational | None = None
    rows: float | None = None

    def told(self, options: Mapping[str, str], *unwelcome: str) -> Chosen:
        """With the options in a question's text, where arguments do not say otherwise."""
        if refused := [name for name in unwelcome if name in options]:
            raise InvalidParameter(f"OPTIONS({refused[0]} = ...) cannot be written into this question")
        silent = self.epsilon is None and self.rho is None and self.within is None
        losses: dict[str, Any] = {name: options.get(name) for name in LOSSES} if silent else {}
        bound = _bound_option(options) if self.bound is None else self.bound
        delta = options.get("delta") if self.delta is None else self.delta
        return replace(self, **losses, bound=bound, delta=delta, confidence=options.get("confidence", self.confidence))


def settled(options: Options, *unwelcome: str) -> Chosen:
    """Options as given, checked by name; some questions do not take all of them."""
    known = [field.name for field in fields(Chosen) if field.name not in unwelcome]
    given: dict[str, Any] = dict(options)
    refused = [name for name in given if name not in known and given[name] is not None]
    if refused:
        raise TypeError(f"no option {', '.join(refused)} here; there are: {', '.join(known)}")
    return Chosen(**{name: value for name, value in given.items() if name in known})


def level(confidence: Rational) -> float:
    """The confidence of intervals."""
    found = float(rational(confidence, "confidence"))
    if not 0 < found <= MOST_CONFIDENT:
        raise InvalidParameter(f"confidence must lie between 0 and {MOST_CONFIDENT}, such as 0.95, got {found}")
    return found


def _bound_option(options: Mapping[str, str]) -> object:
    if "groups" not in options:
        return options.get("bound")
    named = {"groups": options["groups"], "rows": options.get("rows_per_group", "1")}
    for name, value in named.items():
        if not value.isdigit():
            raise InvalidParameter(f"OPTIONS({name} = ...) takes a whole number, got {value[:40]!r}")
    return {name: int(value) for name, value in named.items()}
