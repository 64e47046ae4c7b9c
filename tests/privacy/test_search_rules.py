"""Weights chosen by Newton steps: within their grid whatever is released, in their order, and in one charge."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from dither.errors import InvalidPlan
from dither.loss import Pure, Sensitivity
from dither.plan.context import Context
from dither.plan.expressions import AsNumber, ColumnRef, Compare, LiteralValue
from dither.plan.expressions.core import EstimatedValue
from dither.plan.measures import ClippedSums, Count
from dither.plan.relations import LimitRowsPerUnit, Scan
from dither.plan.stability import EstimatedLimit
from dither.privacy.cost import privacy_cost
from dither.privacy.mechanisms import DiscreteLaplace
from dither.privacy.protocol import (
    BoundSearch,
    Calibrate,
    Measurement,
    NewtonRule,
    ReleasedMeasurement,
    Request,
)
from dither.privacy.search_rules import choose_values
from privacy.ledger_cases import dataset

GRID = (1, 2001)
STEP = Fraction(1, 100)
NOISE = Calibrate("discrete_laplace", Pure(1))


def release(values: list[int]) -> ReleasedMeasurement:
    mechanism = DiscreteLaplace(Fraction(1))
    sensitivity = Sensitivity.of(l0=1, linf=1)
    return ReleasedMeasurement(tuple(values), (Fraction(1),), (len(values),), None, mechanism, sensitivity, Pure(1), ())


def search(tag: str = "w", start: str = "", size: int = 2, measure: Any = None, **rule: Any) -> BoundSearch:
    return BoundSearch(measure, NOISE, GRID, tag, NewtonRule(size, STEP, start, Fraction(1, 10**9), **rule))


def weights(numbers: dict[str, int]) -> list[float]:
    return [float((number - 1001) * STEP) for number in numbers.values()]


def test_a_newton_step_solves_for_the_weights() -> None:
    derivatives, wanted = np.array([[400, 100], [100, 300]]), np.array([1.5, -2.0])
    gradient = -derivatives @ wanted
    chosen = choose_values(search(), release([*map(int, gradient), 400, 100, 300]), {})
    assert list(chosen) == ["w.0", "w.1"]
    assert weights(chosen) == pytest.approx(wanted, abs=0.011)
    again = choose_values(search("v", "w"), release([0, 0, 400, 100, 300]), chosen)
    assert weights(again) == weights(chosen)
    halved = choose_values(search(divisor=Fraction(2)), release([*map(int, 2 * gradient), 400, 100, 300]), {})
    assert halved == chosen


@pytest.mark.parametrize("extreme", [-(1 << 63), -1, 0, 1, (1 << 63) - 1])
def test_weights_stay_within_their_grid_whatever_is_released(extreme: int) -> None:
    random = np.random.default_rng(0)
    for _ in range(50):
        values = [int(value) for value in random.choice([extreme, 0, 5, -7], 5)]
        assert all(GRID[0] <= number <= GRID[1] for number in choose_values(search(), release(values), {}).values())


def clicks(*tags: str) -> ClippedSums:
    """A gradient of one weight and its derivative; each tag adds an estimated value to the expression."""
    values: list[Any] = [AsNumber(Compare("<", ColumnRef("age"), LiteralValue(Fraction(30))))] * 2
    for tag in tags:
        values[0] = AsNumber(Compare("<", ColumnRef("age"), EstimatedValue(tag, -1000, 1000)))
    return ClippedSums(Scan("users"), "user", tuple(values), 5)


def request(*searches: BoundSearch, part: Any = None) -> Request:
    last = clicks(searches[-1].tags[0]) if part is None else part
    return Request("shop", (Measurement(last, NOISE),), searches, unit="user")


def test_steps_of_a_model_are_one_charge_of_their_sum() -> None:
    first, second = search("w1", size=1, measure=clicks()), search("w2", "w1", 1, clicks("w1.0"))
    cost = privacy_cost(Context(dataset()), request(first, second))
    assert [loss.loss for loss in cost.losses if loss.unit == "user"] == [Pure(3)]


@pytest.mark.parametrize(
    "bad",
    [
        lambda: request(search("w1", "nobody", 1, clicks())),
        lambda: request(search("w1", size=2, measure=clicks())),
        lambda: request(search("w2", "w1", 1, clicks()), search("w1", size=1, measure=clicks())),
        lambda: request(search("w1", size=1, measure=clicks("w1.0"))),
        lambda: request(search("w1", size=1, measure=clicks()), part=clicks("w1.7")),
        lambda: request(
            search("w1", size=1, measure=clicks()),
            part=ClippedSums(Scan("users"), "user", clicks("w1.0").values, EstimatedLimit("w1", 9)),
        ),
        lambda: request(
            search("w1", size=1, measure=clicks()),
            part=Count(LimitRowsPerUnit(Scan("users"), "user", EstimatedLimit("w1.0", 9))),
        ),
    ],
    ids=["unknown start", "cells", "order", "own value", "unknown value", "limit of the search", "limit of a weight"],
)
def test_searches_that_could_fail_after_the_charge_are_refused(bad: Any) -> None:
    with pytest.raises(InvalidPlan):
        privacy_cost(Context(dataset()), bad())


@pytest.mark.parametrize("fields", [(0, STEP), (200, STEP), (1, Fraction(0)), (1, STEP, "", Fraction(0))])
def test_rules_out_of_range_are_refused(fields: Any) -> None:
    with pytest.raises(InvalidPlan):
        NewtonRule(*fields)
