"""The cost of a request: the largest loss over all candidate bounds, however it is found."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import product
from typing import Any

import pytest

from dither.errors import DitherError
from dither.loss import ZCDP, Loss, Pure
from dither.plan.context import Context
from dither.plan.expressions import ColumnRef, Compare, LiteralValue
from dither.plan.measures import ClippedSums, Count, GroupKey, LinearQuery
from dither.plan.measures.core import Axis
from dither.plan.measures.statistics import contributions
from dither.plan.relations import Filter, GroupAggregate, GroupBy, LimitGroupsPerUnit, LimitRowsPerUnit, Scan
from dither.plan.stability import EstimatedLimit
from dither.privacy import cost
from dither.privacy.accounting.composition import compose_parallel
from dither.privacy.budget_loss import step_loss
from dither.privacy.mechanisms import DiscreteGaussian, DiscreteLaplace, TopK
from dither.privacy.protocol import BoundSearch, Calibrate, Measurement, Request
from dither.schema import Unit
from privacy.ledger_cases import dataset, pure, zcdp

GRID = (1, 2, 3, 4, 6, 8, 11, 16, 23, 32)
ACTION = Unit("action", "row", {"actions": None})
LIMIT = EstimatedLimit("rows")
HISTOGRAM = contributions(Scan("actions"), "user", tuple(map(Fraction, GRID)))
SEARCH = BoundSearch(HISTOGRAM, DiscreteLaplace(Fraction(1)), GRID, "rows")
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
        priced = part.calibrated_at(ctx, unit, bounds)
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
    ends = [
        step_loss(ctx, budget, part.calibrated_at(ctx, "user", choice))
        for choice in (part.choices[0], part.choices[-1])
    ]
    assert ends[0].epsilon > ends[1].epsilon  # type: ignore[union-attr]
    assert cost._largest_loss(ctx, budget, "user", part) == ends[0]


# --- Limits below a GROUP BY change the domain of its counts, and so the cells of the answer ---

PER_USER = GroupBy(LimitRowsPerUnit(Scan("actions"), "user", LIMIT), (), (GroupAggregate("n", "count"),), "user")
BY_NUMBER = Count(PER_USER, (GroupKey("n", ColumnRef("n")),))


def asking(measure: Any, mechanism: Any, grid: tuple[int, ...] = GRID) -> Request:
    return Request("shop", (Measurement(measure, mechanism),), (replace(SEARCH, grid=grid),))


def above(least: int) -> Count:
    """Users with so many rows; where that is beyond the limit, the domain of their number stays whole."""
    condition = Compare(">=", ColumnRef("n"), LiteralValue(Fraction(least)))
    limit = EstimatedLimit("rows", 2**28)
    per_user = replace(PER_USER, child=LimitRowsPerUnit(Scan("actions"), "user", limit))
    return Count(Filter(per_user, condition), (GroupKey("n", ColumnRef("n")),))


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (asking(LinearQuery(BY_NUMBER, ((1,) * 33,)), Calibrate("discrete_laplace", Pure(1))), "33"),
        (asking(BY_NUMBER, Calibrate("top_k", Pure(1), (("count", 20),))), "20"),
        (asking(BY_NUMBER, TopK(20, Fraction(1000))), "20"),
        (asking(above(2**27 + 1), Calibrate("discrete_laplace", Pure(1)), (2**27, 2**27 + 1)), "declared values"),
    ],
    ids=["weights", "candidates", "candidates of a fixed mechanism", "cells"],
)
def test_what_fits_only_at_the_largest_bound_is_refused_before_the_charge(request_: Request, words: str) -> None:
    """Each was once charged, and failed once a smaller bound was chosen."""
    ctx = Context(dataset(10))
    with pytest.raises(DitherError, match=words):
        cost.privacy_cost(ctx, request_)
    largest = replace(request_, searches=(replace(request_.searches[0], grid=request_.searches[0].grid[-1:]),))
    assert cost.privacy_cost(ctx, largest).steps


def test_the_work_counts_the_most_cells_of_any_bound() -> None:
    request = asking(above(51), Calibrate("discrete_laplace", Pure(1)), (50, 51))
    found = cost.privacy_cost(Context(dataset(10)), request)
    assert found.steps[0].quoted.shape == (1, 1) and found.cells == 51 + len(GRID) + 1


def test_no_table_of_keys_is_kept_for_every_bound() -> None:
    """Memory of a quote: a long list of keys was once kept for each of the bounds."""
    ctx = Context(dataset(10))
    cost.privacy_cost(ctx, asking(BY_NUMBER, DiscreteLaplace(Fraction(1))))
    kept = [
        value for _, value in ctx.memo.values() if isinstance(value, tuple) and value and isinstance(value[0], Axis)
    ]
    assert kept == []


def test_another_unit_that_pays_the_wanted_loss_at_the_largest_bound_may_pay_more_at_smaller_ones() -> None:
    """Noise for two rows of a user costs one action just the wanted loss, noise for one row twice that."""
    budget = pure(10, unit="action")
    ctx = Context(dataset(10, units={**dataset().units, "action": ACTION}, budgets=(budget,)))
    wanted = MECHANISMS["laplace for a pure loss"]
    part = cost._bounded_part((replace(SEARCH, grid=(1, 2)),), Measurement(MEASURES["rows kept"], wanted))
    assert step_loss(ctx, budget, part.calibrated_at(ctx, "user", {"rows": 2})) == wanted.loss
    assert cost._largest_loss(ctx, budget, "user", part) == Pure(2 * wanted.loss.epsilon)


KINDS = (GroupKey("kind", ColumnRef("kind")),)
ONE_ROW_OF_EACH_KIND = Count(LimitGroupsPerUnit(Scan("actions"), "user", (ColumnRef("kind"),), 3, 1), KINDS)


@pytest.mark.parametrize(
    ("mechanism", "budget"),
    [(DiscreteLaplace(Fraction(10)), pure(10)), (DiscreteGaussian(Fraction(10)), zcdp(10))],
    ids=["laplace", "gaussian"],
)
@pytest.mark.parametrize("rows", [((1, 1, 1), (1, 1, 0)), ((1, 1, 1), (1, 1, 1)), ((2, 1, 0), (0, 1, 2), (1, 1, 1))])
def test_linear_queries_cost_all_the_cells_that_a_unit_changes(
    rows: tuple[tuple[int, ...], ...], mechanism: Any, budget: Any
) -> None:
    """One person may have a row of every kind: the noise of all answers must cover the worst such change."""
    ctx = Context(dataset(10, budgets=(budget,)))
    parts = tuple(Measurement(LinearQuery(ONE_ROW_OF_EACH_KIND, (row,)), mechanism) for row in rows)
    (charged,) = cost.privacy_cost(ctx, Request("shop", parts)).losses
    assert charged.loss == cost.privacy_cost(ctx, Request("shop", parts[::-1])).losses[0].loss
    for change in product((0, 1), repeat=3):
        moved = [abs(sum(w * c for w, c in zip(row, change, strict=True))) for row in rows]
        if isinstance(charged.loss, Pure):
            assert charged.loss.epsilon >= sum(Fraction(each, 10) for each in moved)
        else:
            assert charged.loss.rho >= sum(Fraction(each**2, 20) for each in moved)  # type: ignore[union-attr]
