"""Requests that are refused before the charge: nothing is read and nothing is spent."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from sqlglot import exp

from dither.errors import BudgetExceeded, DitherError, InvalidPlan, Unbounded, Unsupported
from dither.loss import Pure, Sensitivity
from dither.plan.context import Context
from dither.plan.expressions.core import ColumnRef, LiteralValue
from dither.plan.expressions.logic import Compare, Or
from dither.plan.measures import clipped
from dither.plan.measures.clipped import ClippedSums
from dither.plan.measures.core import GroupKey
from dither.plan.measures.partitions import PartitionCounts
from dither.plan.measures.sums import Count, Sum, SumVector
from dither.plan.relations.bounding import LimitGroupsPerUnit, LimitRowsPerUnit
from dither.plan.relations.filter import Filter
from dither.plan.relations.project import Project
from dither.plan.relations.scan import Scan
from dither.plan.sql.builders import binary
from dither.plan.stability import EstimatedLimit
from dither.privacy.cost import recompute_losses
from dither.privacy.ledger.maintenance import verify
from dither.privacy.mechanisms import DiscreteGaussian, DiscreteLaplace
from dither.privacy.protocol import Measurement, Request
from privacy.kernel_cases import KINDS, counting

# --- Bad plans, and requests beyond the budget ---


@pytest.mark.parametrize(
    ("measure", "error"),
    [
        (Count(Scan("actions"), KINDS), Unbounded),
        (Count(LimitRowsPerUnit(Scan("nothing"), "user", 1)), InvalidPlan),
        (Count(LimitRowsPerUnit(Scan("actions"), "nobody", 1)), InvalidPlan),
        (Sum(LimitRowsPerUnit(Scan("users"), "user", 1), ColumnRef("nothing")), InvalidPlan),
        (Count(LimitRowsPerUnit(Scan("actions"), "user", EstimatedLimit())), InvalidPlan),
        (Count(LimitRowsPerUnit(Scan("actions"), "user", 1), (GroupKey("who", ColumnRef("user_id")),)), Unsupported),
        (PartitionCounts(LimitGroupsPerUnit(Scan("actions"), "user", (ColumnRef("kind"),), 1, 1), KINDS), Unsupported),
        (
            Count(LimitRowsPerUnit(Scan("users"), "user", 1), (GroupKey("a", ColumnRef("age"), (Fraction(1, 2),)),)),
            InvalidPlan,
        ),
    ],
)
def test_a_bad_plan_is_refused_before_the_charge(world: Any, opened: Any, measure: Any, error: Any) -> None:
    room = opened(world())
    before = room.kernel.ledger.head
    request = Request("shop", (Measurement(measure, DiscreteLaplace(Fraction(20))),))
    with pytest.raises(error):
        room.kernel.answer(request, "ann")
    with pytest.raises(error):
        room.kernel.quote(request, "ann")
    assert room.kernel.ledger.head == before and not room.spy.reads


@pytest.mark.tier("test")
def test_one_bad_part_refuses_the_batch(world: Any, opened: Any) -> None:
    room = opened(world())
    before = room.kernel.ledger.head
    bad = Measurement(Count(Scan("actions"), KINDS), DiscreteLaplace(Fraction(1)))
    with pytest.raises(Unbounded):
        room.kernel.answer(replace(counting(), parts=(*counting().parts, bad)), "ann")
    assert room.kernel.ledger.head == before and not room.spy.reads


def test_beyond_the_budget_nothing_is_read_and_the_refusal_is_noted(world: Any, opened: Any) -> None:
    room = opened(world(1))
    with pytest.raises(BudgetExceeded, match="nothing was read"):
        room.kernel.answer(counting(1), "ann")
    assert not room.spy.reads
    (note,) = room.kernel.ledger.refusals("shop")
    assert json.loads(note.body) == {"account": "ann", "reason": "budget_exceeded"}


@pytest.mark.tier("test")
def test_a_loss_that_the_budget_cannot_take_names_one_that_can(world: Any, opened: Any) -> None:
    room = opened(world())
    part = Measurement(counting().parts[0].measure, DiscreteGaussian(Fraction(400)))
    with pytest.raises(DitherError, match="zcdp"):
        room.kernel.answer(Request("shop", (part,)), "ann")
    assert not room.spy.reads


# --- Only plain data gets in ---


@dataclass(frozen=True)
class Liar(Count):
    """A measure that says it cannot be moved."""

    proof = "count.md"

    def sensitivity(self, ctx: Context, unit: str) -> Sensitivity:
        return Sensitivity.of(l0=1, linf=Fraction(1, 10**6))


@dataclass(frozen=True)
class Whisperer(DiscreteLaplace):  # type: ignore[misc]
    """A mechanism that adds nothing."""

    name = "whisperer"
    proof = "discrete_laplace.md"

    def loss(self, sensitivity: Sensitivity) -> Pure:
        return Pure(0)

    def release(self, exact: Any, bits: Any) -> Any:
        return exact


def test_code_does_not_cross_the_door(world: Any, opened: Any) -> None:
    room = opened(world())
    honest = counting().parts[0]
    liar = Liar(LimitRowsPerUnit(Scan("actions"), "user", 20), KINDS)
    for part in (Measurement(liar, honest.mechanism), Measurement(honest.measure, Whisperer(Fraction(1)))):
        with pytest.raises(InvalidPlan, match="does not allow this class"):
            room.kernel.answer(Request("shop", (part,)), "ann")
    assert not room.spy.reads


class Slippery(int):
    """A number that multiplies to nothing."""

    def __mul__(self, other: Any) -> int:
        return 0

    __rmul__ = __mul__


def test_what_is_appraised_is_plain_data(world: Any, opened: Any) -> None:
    room = opened(world())
    plain, _ = room.kernel._cost_request(room.kernel._datasets["shop"], counting(repeat=Slippery(20)))
    assert type(plain.repeat) is int and plain.repeat == 20


# --- Plans that are too deep or too wide ---


ONES = (LiteralValue(1),) * 1701


def vector_of(size: int, norm: Any = "l1") -> Request:
    """A vector of so many sums, clipped together."""
    measure = ClippedSums(Scan("actions"), "user", (LiteralValue(1),) * size, 5, norm)
    return Request("shop", (Measurement(measure, DiscreteLaplace(Fraction(50))),))


@pytest.mark.tier("test")
@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_a_wide_vector_is_answered(world: Any, opened: Any, norm: str) -> None:
    """Its norm is a sum of 400 terms: nested into each other they would be too deep to be written as SQL."""
    room = opened(world(100))
    assert len(room.kernel.answer(vector_of(400, norm), "ann").parts[0].values) == 400


def test_a_long_condition_is_answered(world: Any, opened: Any) -> None:
    """A chain of a thousand ORs is flat to those who write and read it."""
    room = opened(world(100))
    either = Or(tuple(Compare("=", ColumnRef("age"), LiteralValue(18 + number % 40)) for number in range(1000)))
    request = Request("shop", (Measurement(Count(Filter(Scan("users"), either)), DiscreteLaplace(Fraction(1))),))
    assert room.kernel.answer(request, "ann").parts


def test_what_would_be_too_deep_is_refused_before_the_charge(world: Any, opened: Any, monkeypatch: Any) -> None:
    """Terms that stand inside each other, as they once did: 400 of them made the engine fail after the charge."""

    def nested(terms: Any) -> Any:
        return reduce(lambda left, right: binary(exp.Add, left, right), terms)

    monkeypatch.setattr(clipped, "add_all", nested)
    room = opened(world(100))
    before = room.kernel.ledger.head
    with pytest.raises(Unsupported, match="too large, too deep or too wide"):
        room.kernel.answer(vector_of(400), "ann")
    with pytest.raises(Unsupported, match="too wide"):
        room.kernel.answer(
            Request("shop", (replace(counting().parts[0], measure=SumVector(Scan("users"), ONES)),)), "ann"
        )
    assert room.kernel.ledger.head == before and not room.kernel.ledger.misses("shop")[0]
    assert room.kernel.answer(vector_of(20), "ann").parts


def test_what_is_too_wide_inside_is_refused_before_the_charge(world: Any, opened: Any) -> None:
    """A count of rows that were made 1,700 columns wide: one number comes out, and yet PostgreSQL gives up on it."""
    room = opened(world(100))
    wide = Project(Scan("users"), tuple((f"k{number}", ColumnRef("age")) for number in range(1700)))
    before = room.kernel.ledger.head
    with pytest.raises(Unsupported, match="too wide"):
        room.kernel.answer(Request("shop", (Measurement(Count(wide), DiscreteLaplace(Fraction(1))),)), "ann")
    assert room.kernel.ledger.head == before


@pytest.mark.tier("test")
def test_a_ledger_is_sound_though_its_plans_would_no_longer_be_taken(
    world: Any, opened: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    """How deep or wide a plan may be is no part of what it costs: verifying goes by the losses alone."""
    room = opened(world(100))
    room.kernel.answer(vector_of(400), "ann")
    monkeypatch.setattr("dither.privacy.sql_size.MAX_COLUMNS", 300)
    with pytest.raises(Unsupported, match="too wide"):
        room.kernel.answer(vector_of(400), "ann")
    assert verify(tmp_path / "ledger.sqlite", recompute_losses).sound
