"""The cost of a request: the largest loss over all candidate bounds, however it is found."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from dither.loss import ZCDP, Loss, Pure
from dither.plan.context import Context
from dither.plan.expressions import LiteralValue
from dither.plan.measures import ClippedSums, Count
from dither.plan.relations import LimitRowsPerUnit, Scan
from dither.plan.stability import EstimatedLimit
from dither.privacy import cost
from dither.privacy.accounting.composition import compose_parallel
from dither.privacy.mechanisms import DiscreteLaplace
from dither.privacy.protocol import BoundSearch, Calibrate, Measurement
from dither.schema import Unit
from privacy.ledger_cases import dataset, pure, zcdp

GRID = (1, 2, 3, 4, 6, 8, 11, 16, 23, 32)
ACTION = Unit("action", "row", {"actions": None})
LIMIT = EstimatedLimit("rows")
SEARCH = BoundSearch(Count(Scan("actions")), DiscreteLaplace(Fraction(1)), GRID, "rows")
MEASURES = {
    "rows kept": Count(LimitRowsPerUnit(Scan("actions"), "user", LIMIT)),
    "clipped, l1": ClippedSums(Scan("actions"), "user", (LiteralValue(1),), LIMIT, "l1"),
    "clipped, l2": ClippedSums(Scan("actions"), "user", (LiteralValue(1),), LIMIT, "l2"),
}
MECHANISMS: dict[str, Any] = {
    "laplace for a pure loss": Calibrate("discrete_laplace", Pure("1/3")),
    "laplace for a zcdp loss": Calibrate("discrete_laplace", ZCDP("1/7")),
    "gaussian for a zcdp loss": Calibrate("discrete_gaussian", ZCDP("1/7")),
    "more than the least noise": Calibrate("discrete_laplace", Pure(10**9)),
    "a fixed scale": DiscreteLaplace(Fraction(5)),
}


def by_hand(ctx: Context, budget: Any, unit: str, part: Any) -> Loss:
    """Every bound, one by one."""
    losses = []
    for bounds in part.choices:
        priced = part.price(ctx, unit, bounds)
        sensitivity = priced.measure.sensitivity(ctx, budget.unit)
        kinds = {"pure": priced.mechanism.loss, "zcdp": priced.mechanism.zcdp_loss}
        losses.append(kinds[budget.kind](sensitivity))
    return compose_parallel(losses)


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("unit", ["user", "action"])
@pytest.mark.parametrize("budget", [pure(10), zcdp(10), pure(10, unit="action")], ids=lambda b: f"{b.kind} {b.unit}")
def test_the_largest_loss_is_that_over_all_bounds(measure: str, mechanism: str, unit: str, budget: Any) -> None:
    if budget.kind == "pure" and "gaussian" in mechanism:
        return  # has no pure loss: refused elsewhere
    ctx = Context(dataset(10, units={**dataset().units, "action": ACTION}, budgets=(budget,)))
    part = cost._bounded_part((SEARCH,), Measurement(MEASURES[measure], MECHANISMS[mechanism]))
    assert [choice["rows"] for choice in part.choices] == list(GRID)
    assert cost._largest_loss(ctx, budget, unit, part) == by_hand(ctx, budget, unit, part)


def test_other_units_may_pay_most_at_the_smallest_bound() -> None:
    """The shortcut is for the unit that the noise is calibrated for: for actions the smallest bound is the dearest."""
    budget = pure(10, unit="action")
    ctx = Context(dataset(10, units={**dataset().units, "action": ACTION}, budgets=(budget,)))
    part = cost._bounded_part((SEARCH,), Measurement(MEASURES["rows kept"], MECHANISMS["laplace for a pure loss"]))
    ends = [cost._loss(ctx, budget, part.price(ctx, "user", choice)) for choice in (part.choices[0], part.choices[-1])]
    assert ends[0].epsilon > ends[1].epsilon  # type: ignore[union-attr]
    assert cost._largest_loss(ctx, budget, "user", part) == ends[0]
