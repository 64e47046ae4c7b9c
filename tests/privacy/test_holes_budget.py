"""Holes that a review found in what is charged: each test is the attack, and fails where it would succeed."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from dither.access.context import Context
from dither.access.expr import Column
from dither.access.measure import Count, Key, Measure, Sum
from dither.access.relation import BoundRows, KeyJoin, Project, PublicJoin, Relation, Scan
from dither.errors import Unsupported
from dither.privacy.appraisal import appraise
from dither.privacy.mechanisms import DiscreteLaplace
from dither.schema import Dataset, Unit
from dither.wire import Part, Request
from privacy.ledger_cases import dataset, pure

# --- Private records that no budget covers ---

ACTION = Unit("action", "row", {"actions": None})
PERSON = Unit("user", "user", {"users": "user_id"})
# Budgets on actions alone: the people are private, and only their own unit, which has no budget, covers them.
UNPAID = replace(dataset(), units={"user": PERSON, "action": ACTION}, budgets=(pure(1, "action"),))
CONTEXT = replace(UNPAID, units={"action": ACTION})
NOISE = DiscreteLaplace(Fraction(1, 100))


def price(described: Dataset, measure: Measure) -> Any:
    return appraise(Context(described), Request("shop", (Part(measure, NOISE),))).losses


ACTIONS = Project(Scan("actions"), (("who", Column("user_id")), ("kind", Column("kind"))))


def with_people(how: Any) -> Relation:
    return PublicJoin(ACTIONS, Scan("users"), (("who", "user_id"),), how)


@pytest.mark.parametrize(
    ("described", "free"),
    [
        (UNPAID, Scan("users")),
        (UNPAID, BoundRows(Scan("users"), "user", 1)),
        (CONTEXT, with_people("right")),
        (CONTEXT, KeyJoin(ACTIONS, Scan("users"), (("who", "user_id"),), 1, 1)),
    ],
    ids=["scan", "bounded", "right join", "key join"],
)
def test_records_that_no_budget_covers_are_not_read(described: Dataset, free: Relation) -> None:
    with pytest.raises(Unsupported, match=r"no budget covers|no unit of privacy covers"):
        price(described, Sum(free, Column("age")))


@pytest.mark.parametrize("how", ["inner", "left"])
def test_records_that_no_budget_covers_may_be_context(how: str) -> None:
    (loss,) = price(CONTEXT, Count(with_people(how), (Key("country", Column("country")),)))
    assert loss.loss.epsilon == 100


def test_the_same_records_are_read_once_a_budget_pays() -> None:
    paid = replace(UNPAID, budgets=(pure(1, "action"), pure(1)))
    assert [loss.loss.epsilon for loss in price(paid, Count(Scan("users")))] == [0, 100]
