"""Limits that are filled in stay within what the plan allows, and plans without them stay the same object."""

from __future__ import annotations

import pytest

from dither.plan.measures import Count
from dither.plan.relations import LimitRowsPerUnit, Scan
from dither.plan.stability import EstimatedLimit
from dither.plan.traversal import fill_limits, unfilled_limits

PLAN = Count(LimitRowsPerUnit(Scan("actions"), "user", EstimatedLimit("rows", 8)))


@pytest.mark.parametrize(("chosen", "filled"), [(3, 3), (8, 8), (100, 8), (1, 1), (0, 1), (-5, 1)])
def test_a_limit_is_clamped_between_one_and_the_most_that_the_plan_states(chosen: int, filled: int) -> None:
    assert fill_limits(PLAN, {"rows": chosen}) == Count(LimitRowsPerUnit(Scan("actions"), "user", filled))


def test_other_tags_and_other_plans_stay_as_they_are() -> None:
    assert fill_limits(PLAN, {"other": 3}) is PLAN and unfilled_limits(PLAN) == {EstimatedLimit("rows", 8)}
    filled = fill_limits(PLAN, {"rows": 3})
    assert filled.child.child is PLAN.child.child and not unfilled_limits(filled)  # type: ignore[attr-defined]
