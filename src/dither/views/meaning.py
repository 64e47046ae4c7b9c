"""The meaning of a privacy loss as plain data and tables: tests for one unit, events, and groups of units."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from dither.loss import ZCDP, Approximate, Loss, Pure
from dither.post.display import loss_text
from dither.post.interpretation import group_privacy_table, interpret, stated_epsilon

Table = tuple[Sequence[str], Sequence[Sequence[str]]]


def power_data(loss: Loss) -> list[dict[str, str]]:
    """Return the highest power of tests for one unit, for some false-positive rates."""
    return [{"false_alarms": percent(rate), "power_at_most": percent(most)} for rate, most in interpret(loss)]


def event_data(loss: Loss, rates: Sequence[Fraction]) -> list[dict[str, str]]:
    """Return the highest probabilities of events with a unit's data, for some probabilities without them."""
    return [
        {"probability_without": percent(rate), "probability_with_at_most": percent(most)}
        for rate, most in interpret(loss, rates)
    ]


def group_data(loss: Loss, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Return the loss of groups of units by size; a loss without a rule for groups is converted first."""
    return [
        {"units": size, "loss": loss_text([grown])}
        for size, grown in group_privacy_table(_loss_with_group_rule(loss), sizes)
    ]


def _loss_with_group_rule(loss: Loss) -> Loss:
    """Convert a loss to a kind with a rule for group privacy."""
    match loss:
        case Pure() | Approximate() | ZCDP(delta=Fraction(numerator=0)):
            return loss
        case _:
            delta, epsilon = stated_epsilon(loss)
            return Approximate(epsilon, delta)


def percent(rate: Fraction) -> str:
    """Format a probability in percent, at most 100."""
    return f"{100 * min(float(rate), 1.0):.3g}%"


def meaning_tables(data: Mapping[str, Any]) -> Iterator[Table]:
    """Yield the tables of a meaning: its tests, its events if it has them, and its groups."""
    tests = [(row["false_alarms"], row["power_at_most"]) for row in data["tests"]]
    yield ("a test for one unit with a false-positive rate of", "detects it with probability at most"), tests
    if "events" in data:
        events = [(row["probability_without"], row["probability_with_at_most"]) for row in data["events"]]
        yield ("an event with this probability without the unit's data", "has at most this one with them"), events
    yield ("units that change together", "loss"), [(str(row["units"]), row["loss"]) for row in data["groups"]]
