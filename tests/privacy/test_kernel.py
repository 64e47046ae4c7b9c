"""The door: charge before read, one constant error, nothing fresh uncharged, and no other way to the data."""

from __future__ import annotations

import ast
import gc
import json
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache, reduce
from operator import and_, or_
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from sqlglot import exp

from dither.access.engines import Engine, open_engine
from dither.access.engines.duckdb import Database, DuckDBEngine
from dither.errors import (
    BudgetExceeded,
    DitherError,
    EngineFailure,
    InvalidPlan,
    LedgerError,
    NotAllowed,
    Unbounded,
    Unsupported,
)
from dither.loss import ZCDP, Approximate, Pure, Sensitivity
from dither.plan.context import Context, PublicTableFacts
from dither.plan.expressions.core import ColumnRef, LiteralValue
from dither.plan.expressions.logic import Compare, Or
from dither.plan.expressions.time import Instant
from dither.plan.measures.clipped import ClippedSums
from dither.plan.measures.core import GroupKey, Measure
from dither.plan.measures.linear import LinearQuery
from dither.plan.measures.partitions import PartitionCounts
from dither.plan.measures.statistics import contributions
from dither.plan.measures.sums import Count, Sum, SumVector
from dither.plan.relations.bounding import LimitGroupsPerUnit, LimitRowsPerUnit, Sample
from dither.plan.relations.filter import Filter
from dither.plan.relations.project import Project
from dither.plan.relations.scan import Scan
from dither.plan.sql.builders import binary
from dither.plan.stability import EstimatedLimit
from dither.privacy import cost as appraisal_module
from dither.privacy import kernel as kernel_module
from dither.privacy.accounting.composition import subsampled
from dither.privacy.accounting.units import to_femto
from dither.privacy.contribution_bound import choose_contribution_bound
from dither.privacy.cost import recompute_losses
from dither.privacy.kernel import LocalKernel
from dither.privacy.ledger.maintenance import backup, restore, verify
from dither.privacy.mechanisms import DiscreteGaussian, DiscreteLaplace
from dither.privacy.pacing import Schedule
from dither.privacy.protocol import BoundRule, BoundSearch, Calibrate, LedgerHead, Measurement, Release, Request
from dither.schema import Dataset, Source, Unit
from privacy.ledger_cases import DAY, HeldClock, dataset, pure, teams, zcdp

ONE = 10**15
SOURCE = Path(kernel_module.__file__).parents[1]
KINDS = (GroupKey("kind", ColumnRef("kind")),)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Dataset]:
    """Files of 300 people with 20 actions each, and descriptions of them."""
    place = tmp_path_factory.mktemp("world")
    duckdb.sql(
        f"""COPY (SELECT range::bigint AS user_id, (18 + range % 40)::int AS age,
        ['DE', 'FR', 'other'][1 + range % 3] AS country FROM range(300)) TO '{place}/users.parquet'"""
    )
    duckdb.sql(
        f"""COPY (SELECT (range % 300)::bigint AS user_id, ['view', 'click', 'share'][1 + range % 3] AS kind,
        make_timestamp((range * 3600 * 1000000)::bigint) AS at FROM range(6000)) TO '{place}/actions.parquet'"""
    )

    def described(epsilon: Any = 10, **changes: Any) -> Dataset:
        made = dataset(epsilon, **changes)
        tables = {
            name: replace(table, source=Source("parquet", {"path": f"{place}/{name}.parquet"}))
            for name, table in made.tables.items()
        }
        return replace(made, tables=tables)

    return described


@dataclass
class Spy:
    """An engine that counts what is read, and does something first."""

    inner: Engine
    reads: list[Measure] = field(default_factory=list)
    before: Callable[[], object] = lambda: None
    deadlines: list[float | None] = field(default_factory=list)
    secrets: list[int] = field(default_factory=list)
    failure: str | None = None

    @property
    def ctx(self) -> Context:
        return self.inner.ctx

    def vector(self, measure: Measure, deadline: float | None = None, secret: int = 0) -> Any:
        self.reads.append(measure)
        self.deadlines.append(deadline)
        self.secrets.append(secret)
        self.before()
        return self.inner.vector(measure, deadline, secret)

    def groups(self, measure: PartitionCounts, deadline: float | None = None, secret: int = 0) -> Any:
        self.reads.append(measure)
        self.before()
        return self.inner.groups(measure, deadline, secret)

    def corrections(self) -> Any:
        return self.inner.corrections()

    def cancel(self) -> None:
        self.inner.cancel()

    def close(self) -> None:
        self.inner.close()


@dataclass
class Room:
    """A kernel, the engine behind it and the place of its ledger."""

    kernel: LocalKernel
    spies: list[Spy]
    place: Path

    @property
    def spy(self) -> Spy:
        return self.spies[0]

    def rows(self, kind: str) -> list[Any]:
        return [json.loads(row.body) for row in self.kernel.ledger.rows() if row.kind == kind]

    def spent(self, account: str = "ann", level: str = "dataset") -> list[int]:
        return [each.spent[0] for each in self.kernel.budget("shop", account) if each.level == level]


@pytest.fixture
def opened(tmp_path: Path) -> Any:
    """Opens kernels whose engine is watched; a second one at the same place is a restart."""
    rooms: list[Room] = []

    def opening(described: Dataset, place: Path | None = None, **options: Any) -> Room:
        spies: list[Spy] = []

        def watched(each: Dataset) -> Spy:
            spies.append(Spy(open_engine(each)))
            return spies[-1]

        where = place or tmp_path / "ledger.sqlite"
        made = LocalKernel(described, where, engine=watched, **options)
        rooms.append(Room(made, spies, where))
        spies[0].reads.clear()
        return rooms[-1]

    yield opening
    for room in rooms:
        room.kernel.close()


def counting(epsilon: Any = 1, limit: int = 20, **changes: Any) -> Request:
    """Actions by kind, each person bounded."""
    measure = Count(LimitRowsPerUnit(Scan("actions"), "user", limit), KINDS)
    return replace(Request("shop", (Measurement(measure, Calibrate("discrete_laplace", Pure(epsilon))),)), **changes)


# --- The five lines ---


def test_the_charge_is_durable_before_anything_is_read(world: Any, opened: Any) -> None:
    room = opened(world())
    seen: list[int] = []

    def look() -> None:
        fresh = kernel_module.Ledger(room.place)
        seen.append(fresh.balances("shop", "ann", {})[0].spent[0])
        fresh.close()

    room.spy.before = look
    room.kernel.answer(counting("1/2"), "ann")
    assert seen == [ONE // 2 + ONE // 100]


def test_the_answer_is_recorded_before_it_leaves(world: Any, opened: Any) -> None:
    room = opened(world())
    answer = room.kernel.answer(counting(), "ann")
    recorded = room.rows("answer")[-1]
    assert json.loads(recorded["release"])["parts"][0]["values"] == list(answer.parts[0].values)
    assert answer.head == room.kernel.ledger.head


@pytest.mark.tier("test")
def test_an_answer_that_cannot_be_recorded_does_not_leave(world: Any, opened: Any, monkeypatch: Any) -> None:
    room = opened(world())

    def full(*_: Any) -> str:
        raise LedgerError("the disk is full")

    monkeypatch.setattr(room.kernel.ledger, "record", full)
    with pytest.raises(EngineFailure):
        room.kernel.answer(counting(), "ann")
    assert room.spent() == [ONE + ONE // 100]


def test_the_release_says_what_was_done(world: Any, opened: Any) -> None:
    room = opened(world())
    (part,) = room.kernel.answer(counting(), "ann").parts
    assert part.mechanism == DiscreteLaplace(Fraction(20))
    assert part.shape == (3, 1) and len(part.values) == 3
    assert part.sensitivity.l1 == 20 and part.loss == Pure(1)
    assert part.notes[0] == "at most 20 rows of each user counted, chosen pseudo-randomly"
    assert all(abs(value - 2000) < 1000 for value in part.values)  # Laplace(20): false alarm 3 e^-50


@pytest.mark.tier("test")
def test_noise_is_added_and_differs_between_draws(world: Any, opened: Any) -> None:
    """Laplace(10^6): two draws of three cells agree with probability below 1e-17."""
    room = opened(world(1000))
    drawn = {room.kernel.answer(wide(number), "ann").parts[0].values for number in range(8)}
    assert len(drawn) == 8
    assert room.spent() == [8 * 20 * ONE // 10**6 + ONE // 100]


# --- Refusals before the charge ---


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
        with pytest.raises(InvalidPlan, match="cannot stand here"):
            room.kernel.answer(Request("shop", (part,)), "ann")
    assert not room.spy.reads


# --- After the charge: one constant error ---


@pytest.mark.parametrize("problem", [ValueError("salary 91000"), MemoryError(), EngineFailure(), InvalidPlan("oops")])
def test_every_failure_after_the_charge_looks_the_same(world: Any, opened: Any, problem: Exception) -> None:
    room = opened(world())

    def fail() -> None:
        raise problem

    room.spy.before = fail
    with pytest.raises(EngineFailure) as caught:
        room.kernel.answer(counting(), "ann")
    assert str(caught.value) == str(EngineFailure()) and caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    assert room.spent() == [ONE + ONE // 100]
    assert room.kernel.log.events[-1]["error"] == type(problem).__name__


@pytest.mark.tier("test")
def test_a_charge_without_an_answer_is_answered_later_without_another_charge(world: Any, opened: Any) -> None:
    room = opened(world())
    room.spy.before = lambda: 1 / 0
    for _ in range(3):
        with pytest.raises(EngineFailure):
            room.kernel.answer(counting(), "ann")
    room.spy.before = lambda: None
    first = room.kernel.answer(counting(), "ann")
    assert room.kernel.answer(counting(), "ann").parts == first.parts
    assert room.spent() == [ONE + ONE // 100]
    assert len(room.rows("answer")) == 2


# --- No uncharged fresh draw: restart, retry, fork, registration, version, group ---


@pytest.mark.tier("test")
def test_no_uncharged_fresh_draw_however_often_things_happen_again(world: Any, opened: Any) -> None:
    room = opened(world())
    request = counting(request_id="r")
    first = room.kernel.answer(request, "ann")
    size = dict(room.kernel._datasets["shop"].rows)
    for number in range(5):
        room = opened(world())
        again = room.kernel.answer(request, "ann")
        other = room.kernel.answer(replace(request, request_id=f"r{number}"), "bob")
        room.kernel.register(world())
        assert again.parts == other.parts == first.parts and again.cached
        assert room.kernel._datasets["shop"].rows == size
        assert not room.spy.reads
    assert room.spent() == [ONE + ONE // 100]
    assert len(room.rows("charge")) == len(room.rows("answer")) == 2


@pytest.mark.tier("test")
def test_a_new_version_pays_for_its_size_and_for_every_answer_again(world: Any, opened: Any) -> None:
    room = opened(world(4))
    room.kernel.answer(counting(), "ann")
    for number in range(2, 4):
        room = opened(world(4, data_version=str(number)))
        room.kernel.answer(counting(), "ann")
        assert room.spent() == [number * ONE + number * ONE // 100]
    room = opened(world(4, data_version="4"))
    with pytest.raises(BudgetExceeded):
        room.kernel.answer(counting(), "ann")


@pytest.mark.tier("test")
def test_where_no_budget_is_left_a_new_version_keeps_the_old_size(world: Any, opened: Any) -> None:
    room = opened(world("1/100"))
    size = dict(room.kernel._datasets["shop"].rows)
    assert set(size) == {"users", "actions"}
    again = opened(world("1/100", data_version="2"))
    assert again.kernel._datasets["shop"].rows == size
    assert len(again.rows("answer")) == 1


@pytest.mark.tier("test")
def test_the_size_is_the_first_charge_and_costs_its_epsilon(world: Any, opened: Any) -> None:
    room = opened(world())
    (charge,) = room.rows("charge")
    assert charge["account"] == "kernel"
    assert charge["losses"] == [["user", "pure", {"kind": "pure", "epsilon": "1/100"}]]
    assert [row.kind for row in room.kernel.ledger.rows()][:2] == ["dataset", "charge"]


@pytest.mark.tier("test")
def test_a_kernel_whose_description_was_replaced_stops(world: Any, opened: Any) -> None:
    old = opened(world())
    opened(world(data_version="2"))
    with pytest.raises(LedgerError, match="restarted"):
        old.kernel.answer(counting(), "ann")
    assert not old.spy.reads


def test_a_second_group_gets_the_recorded_answer_for_the_full_price_and_the_full_wait(world: Any, opened: Any) -> None:
    clock = HeldClock()
    room = opened(world(2, policy="separate", groups=teams()), clock=clock, schedule=Schedule())
    first = room.kernel.answer(counting(), "ann")
    waited = clock.ticks
    room.spy.reads.clear()
    second = room.kernel.answer(counting(), "cyd")
    assert clock.ticks - waited == waited
    assert second.parts == first.parts and not second.cached and not room.spy.reads
    assert room.spent("cyd", "group") == room.spent("ann", "group") == [ONE + ONE // 100]
    third = room.kernel.answer(counting(), "dan")
    assert third.parts == first.parts and third.cached
    assert not room.kernel.quote(counting(repeat=1), "cyd").free


@pytest.mark.tier("test")
def test_a_forked_kernel_draws_its_own_noise_and_shares_the_budget(world: Any, opened: Any) -> None:
    room = opened(world(3))
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            other = LocalKernel(world(3), room.place)
            values = other.answer(wide(1), "ann").parts[0].values
            os.write(write, json.dumps(values).encode())
        finally:
            os._exit(0)
    theirs = json.loads(os.read(read, 10_000))
    os.waitpid(child, 0)
    mine = room.kernel.answer(wide(2), "ann").parts[0].values
    assert list(mine) != theirs  # Laplace(10^6), three cells: equal with probability below 1e-17
    room.kernel.answer(counting(2), "ann")
    with pytest.raises(BudgetExceeded):
        room.kernel.answer(counting(1, repeat=3), "ann")


def wide(draw: int) -> Request:
    """The count with so much noise that equal draws mean equal bits."""
    return replace(
        counting(repeat=draw), parts=(replace(counting().parts[0], mechanism=DiscreteLaplace(Fraction(10**6))),)
    )


# --- What things cost ---


def test_one_person_in_every_group_pays_the_sum(world: Any, opened: Any) -> None:
    """Batches, WHERE-split questions and disjoint keys: disjoint rows are not disjoint people."""
    room = opened(world())
    kinds = ("view", "click", "share")
    split = [
        Measurement(
            Count(
                LimitRowsPerUnit(
                    Filter(Scan("actions"), Compare("=", ColumnRef("kind"), LiteralValue(kind))), "user", 5
                )
            ),
            Calibrate("discrete_laplace", Pure("1/2")),
        )
        for kind in kinds
    ]
    assert room.kernel.quote(Request("shop", tuple(split)), "ann").losses[0].loss == Pure("3/2")
    listed = [
        Measurement(
            Count(LimitRowsPerUnit(Scan("actions"), "user", 5), (GroupKey("kind", ColumnRef("kind"), (kind,)),)),
            part.mechanism,
        )
        for kind, part in zip(kinds, split, strict=True)
    ]
    assert room.kernel.quote(Request("shop", tuple(listed)), "ann").losses[0].loss == Pure("3/2")
    for part in split:
        room.kernel.answer(Request("shop", (part,)), "ann")
    assert room.spent() == [3 * ONE // 2 + ONE // 100]


def test_questions_over_one_partition_cost_their_joint_norm(world: Any, opened: Any) -> None:
    room = opened(world())
    base = counting(limit=2).parts[0].measure
    queries = [LinearQuery(base, (tuple(int(cell == at) for cell in range(3)),)) for at in range(3)]
    apart = Request("shop", tuple(Measurement(query, DiscreteLaplace(Fraction(4))) for query in queries))
    assert room.kernel.quote(apart, "ann").losses[0].loss == Pure("1/2")
    both = Request("shop", (*apart.parts, Measurement(base, DiscreteLaplace(Fraction(8)))))
    assert room.kernel.quote(both, "ann").losses[0].loss == Pure("3/4")
    everyone = Measurement(LinearQuery(base, ((1, 1, 1),)), DiscreteLaplace(Fraction(4)))
    assert room.kernel.quote(Request("shop", (*apart.parts, everyone)), "ann").losses[0].loss == Pure(1)


def test_what_is_charged_jointly_is_read_once(world: Any, opened: Any) -> None:
    """If the data moved between two reads, the joint cost would be too low."""
    room = opened(world(1000))
    base = counting(limit=2).parts[0].measure
    quiet = DiscreteLaplace(Fraction(1, 40))  # moves one of five cells with probability below 10 e^-40
    parts = (Measurement(LinearQuery(base, ((1, 1, 1), (1, 0, 0))), quiet), Measurement(base, quiet))
    total, single = room.kernel.answer(Request("shop", parts), "ann").parts
    assert room.spy.reads == [base]
    assert total.values[1] == single.values[0] and total.values[0] == sum(single.values) == 600


def sampled(tag: str = "", rate: str = "1/4") -> Measure:
    """People, of whom each takes part with a probability."""
    return Count(Sample(Scan("users"), Fraction(rate), "user", tag))


def asked(*measures: Measure, mechanism: Any = DiscreteLaplace(Fraction(1))) -> Request:
    return Request("shop", tuple(Measurement(measure, mechanism) for measure in measures))


def test_a_sample_of_whole_units_is_charged_its_discount_once_for_the_whole_request(world: Any, opened: Any) -> None:
    room = opened(world())
    acts = Count(LimitRowsPerUnit(Sample(Scan("actions"), Fraction(1, 4), "user"), "user", 1))
    size = room.spent()[0]
    room.kernel.answer(asked(sampled()), "ann")
    one = to_femto(subsampled(Pure(1), "1/4").epsilon)
    assert room.spent() == [size + one] and one < ONE // 2
    room.kernel.answer(asked(sampled(), acts), "ann")
    two = to_femto(subsampled(Pure(2), "1/4").epsilon)
    assert room.spent() == [size + one + two] and two > 2 * one
    room.kernel.answer(asked(sampled("a"), sampled("b")), "ann")
    assert room.spent() == [size + one + two + 2 * ONE]
    assert verify(room.place, recompute_losses).sound


def test_a_zcdp_budget_gives_no_discount_for_a_sample(world: Any, opened: Any) -> None:
    room = opened(world(budgets=(zcdp(10),)))
    before = room.spent()[0]
    room.kernel.answer(asked(sampled(), mechanism=DiscreteGaussian(Fraction(1))), "ann")
    assert room.spent() == [before + ONE // 2]


def test_a_charge_reads_with_one_secret_and_the_next_charge_with_another(world: Any, opened: Any) -> None:
    """128 random bits: two charges share a secret with probability below 1e-38."""
    room = opened(world())
    room.spy.secrets.clear()
    for tag in ("a", "b"):
        room.kernel.answer(asked(sampled(tag), Count(LimitRowsPerUnit(Scan("actions"), "user", 1))), "ann")
    first, second, third, fourth = room.spy.secrets
    assert first == second != third == fourth


def test_a_secret_has_128_random_bits_and_samples_depend_on_each(world: Any, opened: Any) -> None:
    """Each bit is seen both ways in 40 secrets; 256 times 2^-40 is the false alarm, 2.4e-10."""
    room = opened(world(1000))
    room.spy.secrets.clear()
    for draw in range(40):
        room.kernel.answer(replace(asked(sampled(), mechanism=DiscreteLaplace(Fraction(20))), repeat=draw), "ann")
    assert reduce(or_, room.spy.secrets) == 2**128 - 1 and reduce(and_, room.spy.secrets) == 0
    engine: Any = room.spy.inner

    def dialect(secret: int) -> str:
        return str(engine.dialect.render(sampled().plan(engine._statement(sampled(), secret)).select))

    assert len({dialect(0), *(dialect(1 << bit) for bit in range(128))}) == 129


@pytest.mark.tier("test")
def test_joint_cost_of_gaussian_questions_in_rho(world: Any, opened: Any) -> None:
    room = opened(world(budgets=(zcdp(10),)))
    base = counting(limit=2).parts[0].measure
    queries = [LinearQuery(base, (tuple(int(cell == at) for cell in range(3)),)) for at in range(3)]
    request = Request("shop", tuple(Measurement(query, DiscreteGaussian(Fraction(4))) for query in queries))
    assert room.kernel.quote(request, "ann").losses[0].loss == ZCDP("1/2")


@pytest.mark.tier("test")
def test_every_unit_with_a_budget_is_charged_and_must_be_bounded(world: Any, opened: Any) -> None:
    units = {**dataset().units, "row": Unit("row", "row", {"actions": None})}
    room = opened(world(budgets=(pure(10), pure(10, "row")), units=units))
    by_row = Request("shop", (Measurement(Count(Scan("actions"), KINDS), DiscreteLaplace(Fraction(1))),), unit="row")
    with pytest.raises(Unbounded):
        room.kernel.answer(by_row, "ann")
    assert not room.spy.reads
    quote = room.kernel.quote(counting(1, unit="user"), "ann")
    assert [(each.unit, each.loss) for each in quote.losses] == [("user", Pure(1)), ("row", Pure("1/10"))]


@pytest.mark.tier("test")
def test_a_window_budget_charges_the_windows_that_the_predicate_can_touch(world: Any, opened: Any) -> None:
    units = {"month": Unit("month", "window", {"actions": "user_id"}, {"actions": "at"}, "month")}
    room = opened(world(budgets=(pure(1, "month"),), units=units))
    january = Filter(Scan("actions"), Compare("<=", ColumnRef("at"), Instant(31 * DAY - 1)))
    early = Measurement(Count(LimitRowsPerUnit(january, "month", 5)), Calibrate("discrete_laplace", Pure("1/2")))
    room.kernel.answer(Request("shop", (early,)), "ann")
    spent = {each.window: each.spent[0] for each in room.kernel.budget("shop", "ann")}
    assert len(spent) == 12
    assert spent["1970-01-01"] == ONE // 2 + ONE // 100
    assert set(spent.values()) == {ONE // 2 + ONE // 100, ONE // 100}
    later = Filter(Scan("actions"), Compare(">=", ColumnRef("at"), Instant(31 * DAY)))
    room.kernel.answer(
        Request(
            "shop",
            (Measurement(Count(LimitRowsPerUnit(later, "month", 5)), Calibrate("discrete_laplace", Pure("3/4"))),),
        ),
        "ann",
    )
    with pytest.raises(BudgetExceeded, match="window 1970-02-01"):
        quarter = Calibrate("discrete_laplace", Pure("1/4"))
        room.kernel.answer(
            Request("shop", (Measurement(Count(LimitRowsPerUnit(Scan("actions"), "month", 5)), quarter),)), "ann"
        )
    assert verify(room.place, recompute_losses).sound


# --- Two steps, one charge ---

GRID = tuple(2**power for power in range(8))


def automatic(epsilon: Any = 1) -> Request:
    find = contributions(Scan("actions"), "user", tuple(Fraction(edge) for edge in GRID))
    chooser = Calibrate("quantiles", Pure(1), (("quantiles", (Fraction(1, 2),)),))
    measure = Count(LimitRowsPerUnit(Scan("actions"), "user", EstimatedLimit()), KINDS)
    part = Measurement(measure, Calibrate("discrete_laplace", Pure(epsilon)))
    return Request("shop", (part,), (BoundSearch(find, chooser, GRID),))


def test_an_automatic_bound_is_one_charge_and_two_draws(world: Any, opened: Any) -> None:
    room = opened(world())
    quote = room.kernel.quote(automatic(), "ann")
    assert quote.losses[0].loss == Pure(2)
    answer = room.kernel.answer(automatic(), "ann")
    assert answer.chosen_bounds == (32,)  # everyone has 20 rows; 300 people at epsilon 1: false alarm below e^-100
    assert answer.parts[0].mechanism == DiscreteLaplace(Fraction(32))
    assert "at most 32 rows" in answer.parts[0].notes[0]
    assert answer.losses[0].loss == Pure(2) and room.spent() == [2 * ONE + ONE // 100]
    assert len(room.rows("charge")) == 2 and len(room.spy.reads) == 2
    assert room.kernel.answer(automatic(), "ann").chosen_bounds == (32,)
    assert len(room.spy.reads) == 2
    assert verify(room.place, recompute_losses).sound


@pytest.mark.tier("test")
def test_an_automatic_bound_with_a_fixed_scale_is_charged_at_its_dearest(world: Any, opened: Any) -> None:
    room = opened(world(1000))
    (part,) = automatic().parts
    request = replace(automatic(), parts=(replace(part, mechanism=DiscreteLaplace(Fraction(1))),))
    assert room.kernel.quote(request, "ann").losses[0].loss == Pure(128 + 1)


POINTS = GRID


def ruled(epsilon: Any = "9/10", **changes: Any) -> Request:
    """The session's way: a tenth for a histogram of contributions, whose rule finds the bound; the rest answers."""
    find = contributions(Scan("actions"), "user", tuple(Fraction(edge) for edge in POINTS))
    finder = Calibrate("discrete_laplace", Pure("1/10"))
    measure = Count(LimitRowsPerUnit(Scan("actions"), "user", EstimatedLimit("rows", 64)), KINDS)
    part = Measurement(measure, Calibrate("discrete_laplace", Pure(epsilon)))
    search = BoundSearch(find, finder, GRID, "rows", BoundRule(POINTS, Fraction(3, 2), 3))
    return replace(Request("shop", (part,), (search,)), **changes)


def test_a_rule_finds_the_bound_within_the_one_charge(world: Any, opened: Any) -> None:
    room = opened(world())
    assert room.kernel.quote(ruled(), "ann").losses[0].loss == Pure(1)
    answer = room.kernel.answer(ruled(request_id="once"), "ann")
    assert room.spent() == [ONE + ONE // 100] and len(room.rows("charge")) == 2
    (bound,), (found,), (part,) = answer.chosen_bounds, answer.search_results, answer.parts
    assert bound in GRID and part.mechanism == DiscreteLaplace(min(bound, 64) / Fraction(9, 10))
    assert len(found.values) == len(POINTS) + 1 and found.loss == Pure("1/10") and part.loss == Pure("9/10")
    assert bound == choose_contribution_bound(ruled().searches[0], found.values, found.mechanism)
    assert [type(measure) for measure in room.spy.reads] == [Count, Count]
    assert verify(room.place, recompute_losses).sound


def test_retries_and_repetitions_of_two_steps_are_one_answer(world: Any, opened: Any) -> None:
    room = opened(world())
    first = room.kernel.answer(ruled(request_id="once"), "ann")
    again, cached = room.kernel.answer(ruled(request_id="once"), "ann"), room.kernel.answer(ruled(), "bob")
    for other in (again, cached):
        assert (other.chosen_bounds, other.search_results, other.parts) == (
            first.chosen_bounds,
            first.search_results,
            first.parts,
        ) and other.cached
    assert room.spent() == [ONE + ONE // 100] and len(room.spy.reads) == 2
    assert room.kernel.quote(ruled(), "bob").free
    assert len(room.kernel.history("shop", "bob")) == len(room.rows("charge"))


def test_a_refused_question_in_two_steps_costs_nothing(world: Any, opened: Any) -> None:
    """The first step alone would have been affordable."""
    room = opened(world("1/2"))
    with pytest.raises(BudgetExceeded):
        room.kernel.answer(ruled(), "ann")
    assert room.spent() == [ONE // 100] and room.spy.reads == []
    part = ruled().parts[0]
    unbounded = Measurement(Count(Scan("actions"), KINDS), part.mechanism)
    with pytest.raises(Unbounded):
        room.kernel.answer(ruled("1/10", parts=(replace(part, mechanism=unbounded.mechanism), unbounded)), "ann")
    assert room.spent() == [ONE // 100] and room.spy.reads == []


def test_a_crash_between_the_two_draws_leaves_the_whole_charge_and_one_answer(world: Any, opened: Any) -> None:
    room = opened(world())
    room.spy.before = lambda: 1 / 0 if len(room.spy.reads) == 2 else None
    with pytest.raises(EngineFailure):
        room.kernel.answer(ruled(request_id="once"), "ann")
    assert room.spent() == [ONE + ONE // 100]
    room.spy.before = lambda: None
    answer = room.kernel.answer(ruled(request_id="once"), "ann")
    assert answer.chosen_bounds is not None and room.spent() == [ONE + ONE // 100]


def test_the_time_of_two_steps_is_public(world: Any, opened: Any, monkeypatch: Any) -> None:
    """Whatever bound is found, the answer leaves when the quote said."""
    clock = HeldClock()
    room = opened(world(), clock=clock, schedule=Schedule(floor=200))
    promised = room.kernel.quote(ruled(), "ann")
    for number, bound in enumerate(GRID):
        monkeypatch.setattr(kernel_module, "choose_contribution_bound", lambda *_, bound=bound: bound)
        start = clock.ticks
        assert room.kernel.answer(ruled("1/100", repeat=number), "ann").chosen_bounds == (bound,)
        assert clock.ticks - start == promised.milliseconds


@pytest.mark.parametrize(
    "bug",
    [
        "the first step is free",
        "the answer is priced at the smallest bound",
        "only the first part is priced at every bound",
    ],
)
def test_a_wrong_price_of_two_steps_is_caught(bug: str, world: Any, opened: Any, monkeypatch: Any) -> None:
    """The loss that a release really has, from its own mechanisms and sensitivities, is never above the charge."""

    def excess(room: Room, request: Request) -> Fraction:
        release = room.kernel.answer(request, "ann")
        drawn = [*(release.search_results or ()), *release.parts]
        real = sum((each.mechanism.loss(each.sensitivity).epsilon for each in drawn), Fraction(0))
        return real - release.losses[0].loss.epsilon

    fixed = replace(ruled().parts[0], mechanism=DiscreteLaplace(Fraction(20)))
    request = ruled(parts=(fixed, fixed))
    room = opened(world(1000))
    assert excess(room, request) <= 0
    total = appraisal_module._total
    wrong: dict[str, Any] = {
        "the first step is free": lambda ctx, cap, find, options: total(ctx, cap, (), options),
        "the answer is priced at the smallest bound": lambda ctx, cap, find, options: total(
            ctx, cap, find, [steps[:1] for steps in options]
        ),
        "only the first part is priced at every bound": lambda ctx, cap, find, options: total(
            ctx, cap, find, [options[0], *(steps[:1] for steps in options[1:])]
        ),
    }
    monkeypatch.setattr(appraisal_module, "_total", wrong[bug])
    monkeypatch.setattr(kernel_module, "choose_contribution_bound", lambda search, *_: search.grid[-1])
    assert excess(room, replace(request, repeat=1)) > 0


def test_every_budget_pays_the_dearest_bound_of_its_own() -> None:
    """Noise for a user's T rows costs one action 1/T of the loss: dearest for actions is the smallest bound."""
    action = Unit("action", "row", {"actions": None})
    described = dataset(10, units={**dataset().units, "action": action}, budgets=(pure(10), pure(10, unit="action")))
    priced = appraisal_module.privacy_cost(Context(described), ruled())
    by_unit = {loss.unit: loss.loss for loss in priced.losses}
    assert by_unit["user"] == Pure(1)
    at = {}
    for bound in (1, 64):
        (step,) = appraisal_module.steps_at_bounds(Context(described), ruled(), (bound,))
        at[bound] = step.mechanism.loss(step.measure.sensitivity(Context(described), "action")).epsilon
    assert at[1] > at[64]
    (find,) = priced.searches
    first = find.mechanism.loss(find.measure.sensitivity(Context(described), "action")).epsilon
    assert by_unit["action"] == Pure(first + at[1])


@pytest.mark.parametrize("points", [(1, 2), (1, 2, 4, 8, 16, 32, 64, 128, 256)])
def test_a_rule_that_cannot_read_its_counts_is_refused_before_the_charge(points: Any, world: Any, opened: Any) -> None:
    room = opened(world())
    (search,) = ruled().searches
    with pytest.raises(InvalidPlan, match="needs"):
        room.kernel.answer(ruled(searches=(replace(search, rule=BoundRule(points, Fraction(1), 1)),)), "ann")
    chooser = Calibrate("quantiles", Pure(1), (("quantiles", (Fraction(1, 2),)),))
    with pytest.raises(Unsupported):
        room.kernel.answer(ruled(searches=(replace(search, mechanism=chooser),)), "ann")
    assert room.spent() == [ONE // 100]


def test_bounds_of_one_request_have_tags_of_their_own() -> None:
    (search,) = ruled().searches
    with pytest.raises(InvalidPlan, match="another tag"):
        ruled(searches=(search, search))


# --- Keys that are not declared ---


@pytest.mark.tier("test")
def test_undeclared_keys_leave_through_partition_selection_only(world: Any, opened: Any) -> None:
    budget = (zcdp(100, delta="1/1000"),)
    room = opened(world(budgets=budget))
    measure = PartitionCounts(LimitGroupsPerUnit(Scan("actions"), "user", (ColumnRef("kind"),), 1, 1), KINDS)
    naming = Measurement(measure, Calibrate("partition_selection", Approximate(1, "1/100000")))
    (part,) = room.kernel.answer(Request("shop", (naming,)), "ann").parts
    assert set(part.keys or ()) <= {("view",), ("click",), ("share",)} and part.values == () and part.shape == ()
    with pytest.raises(Unsupported, match="partition selection only"):
        room.kernel.answer(Request("shop", (Measurement(measure, DiscreteGaussian(Fraction(100))),)), "ann")


# --- Time ---


def test_answers_and_failures_leave_at_the_same_public_instant(world: Any, opened: Any) -> None:
    clock = HeldClock()
    room = opened(world(), clock=clock, schedule=Schedule(floor=200))
    promised = room.kernel.quote(counting(), "ann").milliseconds
    for took in (0, 1, promised // 2, promised):
        room.spy.before = lambda took=took: setattr(clock, "ticks", clock.ticks + took)
        start = clock.ticks
        room.kernel.answer(counting(repeat=took + 1), "ann")
        assert clock.ticks - start == promised
    room.spy.before = lambda: 1 / 0
    start = clock.ticks
    with pytest.raises(EngineFailure):
        room.kernel.answer(counting(repeat=99), "ann")
    assert clock.ticks - start == promised


@pytest.mark.tier("test")
def test_a_miss_moves_to_the_next_instant_is_counted_and_at_three_locks(world: Any, opened: Any) -> None:
    clock = HeldClock()
    room = opened(world(100), clock=clock, schedule=Schedule(floor=200))
    promised = room.kernel.quote(counting(), "ann").milliseconds
    for number in range(3):
        expected = promised << number
        assert room.kernel.quote(counting(repeat=number), "ann").milliseconds == expected
        room.spy.before = lambda wait=expected + 1: setattr(clock, "ticks", clock.ticks + wait)
        start = clock.ticks
        room.kernel.answer(counting(repeat=number), "ann")
        assert clock.ticks - start == 2 * expected
    before = room.kernel.ledger.head
    with pytest.raises(NotAllowed, match="locked"):
        room.kernel.answer(counting(repeat=3), "ann")
    assert room.kernel.ledger.head == before
    again = opened(world(100), clock=clock, schedule=Schedule(floor=200))
    with pytest.raises(NotAllowed, match="locked"):
        again.kernel.answer(counting(repeat=3), "ann")
    before = again.kernel.statement("shop", "ann").residual_bits
    again.kernel.unlock("shop")
    assert again.kernel.statement("shop", "ann").residual_bits > before, "three more may be late"
    again.kernel.answer(counting(repeat=3), "ann")
    assert again.kernel.quote(counting(repeat=4), "ann").milliseconds == promised << 3


@pytest.mark.tier("test")
def test_the_engine_is_cut_off_at_the_last_instant(world: Any, opened: Any) -> None:
    clock = HeldClock()
    room = opened(world(), clock=clock, schedule=Schedule(floor=200))
    promised = room.kernel.quote(counting(), "ann").milliseconds

    def cut_off() -> None:
        clock.ticks += 8 * promised
        raise EngineFailure

    room.spy.before = cut_off
    start = clock.ticks
    with pytest.raises(EngineFailure):
        room.kernel.answer(counting(), "ann")
    assert room.spy.deadlines[-1] == 8 * promised / 1000
    assert clock.ticks - start == 8 * promised


def test_late_answers_under_way_together_do_not_pass_the_cap(world: Any, opened: Any) -> None:
    """Eight ask at once, on four engines, and every answer is late: three leave, the others find the dataset locked."""
    room = opened(world(1000), schedule=Schedule(floor=1, row=0, cell=0), slots=4)
    for spy in room.spies:
        spy.before = lambda: time.sleep(0.02)
    found: list[str] = []

    def ask(number: int) -> None:
        try:
            room.kernel.answer(counting(repeat=number), "ann")
            found.append("late")
        except (EngineFailure, NotAllowed) as problem:
            found.append(problem.code)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(room.kernel.ledger.misses("shop")[0]) == 3 == len(found) - found.count(NotAllowed.code)
    room.kernel.unlock("shop")
    assert len(room.rows("charge")) - len(room.rows("answer")) == 8 - found.count("late")


ONES = (LiteralValue(1),) * 1701


def vector_of(size: int, norm: Any = "l1") -> Request:
    """A vector of so many sums, clipped together."""
    measure = ClippedSums(Scan("actions"), "user", (LiteralValue(1),) * size, 5, norm)
    return Request("shop", (Measurement(measure, DiscreteLaplace(Fraction(50))),))


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

    monkeypatch.setattr("dither.plan.sql.builders.add_all", nested)
    room = opened(world(100))
    before = room.kernel.ledger.head
    with pytest.raises(Unsupported, match="nested too deeply"):
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


def test_a_ledger_is_sound_though_its_plans_would_no_longer_be_taken(
    world: Any, opened: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    """How deep or wide a plan may be is no part of what it costs: verifying goes by the losses alone."""
    room = opened(world(100))
    room.kernel.answer(vector_of(400), "ann")
    monkeypatch.setattr("dither.privacy.cost.MOST_COLUMNS", 300)
    with pytest.raises(Unsupported, match="too wide"):
        room.kernel.answer(vector_of(400), "ann")
    assert verify(tmp_path / "ledger.sqlite", recompute_losses).sound


def test_a_burst_of_misses_slows_a_class_until_the_curator_quickens_it(world: Any, opened: Any) -> None:
    """Predictions forget the misses; the cap on them, and the bits that they may tell, do not."""
    clock, schedule = HeldClock(), Schedule(floor=200, most_misses=5)
    room = opened(world(100), clock=clock, schedule=schedule)
    promised = room.kernel.quote(counting(), "ann").milliseconds
    for number in range(4):
        room.spy.before = lambda wait=2 * (promised << number): setattr(clock, "ticks", clock.ticks + wait)
        room.kernel.answer(counting(repeat=number), "ann")
    room.spy.before = lambda: None
    assert room.kernel.quote(counting(repeat=4), "ann").milliseconds == promised << 4
    bits = room.kernel.statement("shop", "ann").residual_bits
    room.kernel.reset_latency("shop")
    assert room.kernel.quote(counting(repeat=4), "ann").milliseconds == promised
    assert room.kernel.statement("shop", "ann").residual_bits == bits
    assert room.kernel.ledger.misses("shop")[1] == 4
    start = clock.ticks
    room.kernel.answer(counting(repeat=4), "ann")
    assert clock.ticks - start == promised
    room.spy.before = lambda: setattr(clock, "ticks", clock.ticks + promised + 1)
    room.kernel.answer(counting(repeat=5), "ann")
    assert room.kernel.locked("shop"), "the fifth miss, quickened or not"
    assert room.kernel.quote(counting(repeat=6), "ann").milliseconds == 2 * promised


def test_corrections_of_every_engine_are_counted_also_of_those_that_failed(world: Any, opened: Any) -> None:
    room = opened(world(100), slots=3)
    for number, spy in enumerate(room.spies):
        spy.corrections = lambda count=10**number: {"values": count}
    assert room.kernel.corrections("shop") == {"values": 111}
    busy = room.kernel._registered("shop").engines
    slots = [busy.get() for _ in range(3)]
    assert room.kernel.corrections("shop") == {"values": 111}, "without waiting for engines that are at work"
    for slot in slots:
        busy.put(slot)

    def breaks() -> None:
        raise EngineFailure

    for spy in room.spies:
        spy.before = breaks
    for number in range(6):  # each engine fails once, and is opened again by the next that gets its place
        with suppress(EngineFailure):
            room.kernel.answer(counting(repeat=number), "ann")
    assert len(room.spies) == 6 and room.kernel.corrections("shop") == {"values": 111}


def test_corrections_are_counted_once_though_an_engine_cannot_be_opened_again(
    world: Any, opened: Any, monkeypatch: Any
) -> None:
    room = opened(world(100))
    room.spy.corrections = lambda: {"values": 7}
    (slot,) = room.kernel._registered("shop").slots
    slot.failed = True
    with monkeypatch.context() as while_it_lasts:
        while_it_lasts.setattr(room.kernel, "_open", lambda _: (_ for _ in ()).throw(EngineFailure))
        for number in range(3):
            with pytest.raises(EngineFailure):
                room.kernel.answer(counting(repeat=number), "ann")
            assert room.kernel.corrections("shop") == {"values": 7}
    room.kernel.answer(counting(repeat=9), "ann")
    assert room.kernel.corrections("shop") == {"values": 7}


def test_an_engine_that_failed_is_opened_again_and_one_that_was_cut_off_is_not(world: Any, opened: Any) -> None:
    clock = HeldClock()
    room = opened(world(100), clock=clock, schedule=Schedule(floor=200, most_misses=9))

    def breaks() -> None:
        raise EngineFailure

    room.spy.before = breaks
    with pytest.raises(EngineFailure):
        room.kernel.answer(counting(), "ann")
    assert len(room.spies) == 1, "opening another is no part of the failed answer's time"
    assert room.kernel.answer(counting(), "ann").parts
    assert len(room.spies) == 2

    def cut_off() -> None:
        clock.ticks += 10**7
        raise EngineFailure

    room.spies[1].before = cut_off
    with pytest.raises(EngineFailure):
        room.kernel.answer(counting(repeat=1), "ann")
    room.spies[1].before = lambda: None
    assert room.kernel.answer(counting(repeat=1), "ann").parts
    assert len(room.spies) == 2


def test_an_engine_that_failed_is_replaced_on_the_database_of_the_others(
    world: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    """The named bug: each that failed had a database of its own from then on, with its own 3.5 GB and threads."""
    kernel, made = LocalKernel(world(100), tmp_path / "ledger.sqlite", slots=3), list[Database]()
    slots, opening = kernel._registered("shop").slots, Database.__init__
    monkeypatch.setattr(Database, "__init__", lambda self: (made.append(self), opening(self))[1])
    first = slots[0].engine._database

    def ask(*draws: int) -> None:
        for draw in draws:
            assert kernel.answer(counting(repeat=draw), "ann").parts

    slots[0].failed = slots[2].failed = True
    ask(1, 2, 3)
    assert made == [] and {slot.engine._database for slot in slots} == {first} and len(first._engines) == 3
    assert len({id(slot.engine) for slot in slots}) == 3 and not any(slot.failed for slot in slots)
    for slot in slots:
        slot.failed = True
    ask(4, 5, 6)  # where none is sound, what is wrong may be the database: it is opened once, for all of them
    assert [slot.engine._database for slot in slots] == made * 3 and len(made) == 1
    assert not Path(first.scratch.name).exists()
    kernel.close()
    assert not Path(made[0].scratch.name).exists()


def test_a_kernel_starts_on_a_restored_ledger_whose_size_was_never_recorded(
    world: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    """The size may have been drawn and shown in the stretch that was lost: it is not drawn again."""
    with monkeypatch.context() as while_it_lasts, pytest.raises(EngineFailure):
        while_it_lasts.setattr(DuckDBEngine, "vector", lambda *_: (_ for _ in ()).throw(EngineFailure))
        LocalKernel(world(100), tmp_path / "ledger.sqlite")
    backup(tmp_path / "ledger.sqlite", tmp_path / "copy.sqlite")
    restore(tmp_path / "copy.sqlite", tmp_path / "back.sqlite")
    ledger = kernel_module.Ledger(tmp_path / "back.sqlite")
    ledger.mark_gap(LedgerHead(99, "f" * 64), Pure(1))
    ledger.close()
    kernel = LocalKernel(world(100), tmp_path / "back.sqlite")
    assert kernel._registered("shop").rows == {} and kernel.answer(counting(), "ann").parts
    assert [row.kind for row in kernel.ledger.rows()].count("answer") == 1
    kernel.close()


def test_a_kernel_starts_with_a_dataset_that_only_the_lost_stretch_knew(world: Any, tmp_path: Path) -> None:
    """It is registered again, as spent."""
    ledger = kernel_module.Ledger(tmp_path / "ledger.sqlite")
    ledger.mark_gap(LedgerHead(99, "f" * 64), None)
    ledger.close()
    kernel = LocalKernel(world(10), tmp_path / "ledger.sqlite")
    with pytest.raises(BudgetExceeded, match="0 left"):
        kernel.answer(counting(), "ann")
    assert {row.kind for row in kernel.ledger.rows()} == {"gap", "dataset"}
    kernel.close()


def test_an_engine_that_finds_other_public_tables_is_not_used(world: Any, opened: Any, monkeypatch: Any) -> None:
    """Multiplicities of public tables are part of the sensitivity that was charged."""
    room = opened(world(100))
    room.spy.before = lambda: (_ for _ in ()).throw(EngineFailure)
    with pytest.raises(EngineFailure):
        room.kernel.answer(counting(), "ann")
    other = PublicTableFacts({}, {("users", "age"): 2})
    monkeypatch.setattr(Spy, "ctx", property(lambda spy: replace(spy.inner.ctx, facts=other)))
    with pytest.raises(EngineFailure):
        room.kernel.answer(counting(), "ann")
    assert room.spies[-1].reads == []
    monkeypatch.undo()
    assert room.kernel.answer(counting(), "ann").parts


@pytest.mark.tier("test")
def test_a_recorded_answer_leaves_at_once_and_a_refusal_too(world: Any, opened: Any) -> None:
    clock = HeldClock()
    room = opened(world(1.5), clock=clock, schedule=Schedule())
    room.kernel.answer(counting(), "ann")
    start = clock.ticks
    assert room.kernel.answer(counting(), "bob").cached
    with pytest.raises(BudgetExceeded):
        room.kernel.answer(counting(repeat=1), "ann")
    assert clock.ticks == start


# --- Who may do what ---


def test_tokens_and_roles_are_checked_by_the_kernel_itself(world: Any, opened: Any) -> None:
    room = opened(world(groups=teams()), trusted=False)
    analyst = room.kernel.ledger.add_account("ann", "analyst")
    outsider = room.kernel.ledger.add_account("eve", "analyst")
    auditor = room.kernel.ledger.add_account("aud", "auditor")
    assert room.kernel.answer(counting(), analyst).parts
    for token in ("ann", "", "kernel", analyst[:-1], outsider, auditor):
        with pytest.raises(NotAllowed):
            room.kernel.answer(counting(), token)
        with pytest.raises(NotAllowed):
            room.kernel.quote(counting(), token)
    assert room.kernel.datasets(outsider) == () and room.kernel.datasets(analyst) == ("shop",)
    assert room.kernel.ledger_rows("shop", auditor)[-1].kind == "account" or room.kernel.ledger_rows("shop", auditor)
    for call in (room.kernel.schema, room.kernel.budget, room.kernel.history, room.kernel.statement, room.kernel.facts):
        assert call("shop", analyst) is not None
        with pytest.raises(NotAllowed):
            call("shop", outsider)
        with pytest.raises(NotAllowed):
            call("nothing", analyst)
    with pytest.raises(NotAllowed):
        room.kernel.ledger_rows("shop", analyst)


def test_auditors_and_curators_do_not_ask(world: Any, opened: Any) -> None:
    room = opened(world(), trusted=False)
    for role in ("auditor", "curator"):
        token = room.kernel.ledger.add_account(role, role)
        with pytest.raises(NotAllowed):
            room.kernel.answer(counting(), token)
        assert room.kernel.ledger_rows("shop", token)


class Slippery(int):
    """A number that multiplies to nothing."""

    def __mul__(self, other: Any) -> int:
        return 0

    __rmul__ = __mul__


def test_what_is_appraised_is_plain_data(world: Any, opened: Any) -> None:
    room = opened(world())
    plain, _ = room.kernel._cost_request(room.kernel._datasets["shop"], counting(repeat=Slippery(20)))
    assert type(plain.repeat) is int and plain.repeat == 20


@pytest.mark.tier("test")
def test_nobody_speaks_as_the_kernel(world: Any, opened: Any) -> None:
    room = opened(world())
    for name in ("kernel", ""):
        with pytest.raises(NotAllowed):
            room.kernel.answer(counting(), name)


@pytest.mark.tier("test")
def test_the_schema_does_not_say_where_the_records_are(world: Any, opened: Any) -> None:
    room = opened(world())
    shown = repr(room.kernel.schema("shop", "ann")) + repr(room.kernel.ledger_rows("shop", "ann"))
    assert "parquet'" in shown and ".parquet" not in shown


@pytest.mark.tier("test")
def test_a_kernel_behind_a_seen_head_refuses(world: Any, opened: Any) -> None:
    room = opened(world())
    head = room.kernel.answer(counting(), "ann").head
    room.kernel.answer(counting(repeat=1, expect_head=head), "ann")
    with pytest.raises(LedgerError, match="mark the gap"):
        room.kernel.answer(counting(repeat=2, expect_head=LedgerHead(head.sequence + 9, "0" * 64)), "ann")


def test_a_quote_works_with_the_engine_taken_away(world: Any, opened: Any) -> None:
    room = opened(world())
    taken = room.kernel._datasets["shop"].engines.get()
    quote = room.kernel.quote(counting(), "ann")
    assert quote.losses[0].loss == Pure(1) and quote.affordable and not quote.free
    assert not room.kernel.quote(counting(11), "ann").affordable
    room.kernel._datasets["shop"].engines.put(taken)


# --- The verifier recomputes losses from plans ---


def test_the_verifier_recomputes_every_loss_from_its_plan(world: Any, opened: Any) -> None:
    room = opened(world())
    room.kernel.answer(counting(), "ann")
    assert verify(room.place, recompute_losses).sound
    ledger = room.kernel.ledger
    house = room.kernel._datasets["shop"]
    wrong = replace(
        room.kernel._charge_for(house, *room.kernel._cost_request(house, counting(repeat=7)), "ann"),
        losses=tuple(replace(each, loss=Pure("1/2")) for each in room.kernel.quote(counting(), "ann").losses),
    )
    ledger.charge(wrong)
    verdict = verify(room.place, recompute_losses)
    assert verdict.first_bad == ledger.head.sequence and "losses do not follow" in verdict.problem
    assert verify(room.place).sound


# --- There is no other path ---


@cache
def trees() -> dict[str, ast.Module]:
    """Every module of the package, parsed."""
    paths = SOURCE.rglob("*.py")
    return {".".join(path.relative_to(SOURCE).with_suffix("").parts): ast.parse(path.read_text()) for path in paths}


@cache
def callers() -> dict[str, set[str]]:
    """By the name of an attribute: the functions of the package that call it with something (locks are let go bare)."""
    found: dict[str, set[str]] = {}
    for module, tree in trees().items():
        for scope in ast.walk(tree):
            if isinstance(scope, ast.FunctionDef):
                for node in ast.walk(scope):
                    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                        found.setdefault(node.func.attr, set()).add(f"{module}:{scope.name}")
    return found


def calls(name: str) -> set[str]:
    """Functions in the package that call an attribute of that name."""
    return callers().get(name, set())


def outside(found: set[str], *rooms: str) -> set[str]:
    return {each for each in found if not each.startswith(rooms)}


def test_only_the_kernel_reads_and_draws_and_only_with_a_receipt() -> None:
    """Walks every call in the package. Engines and mechanisms may call themselves; the auditor has no data, and by the
    import contracts neither have `post` and the gateway."""
    assert outside(calls("vector"), "access.engines", "audit", "post") == {"privacy.kernel:_vector"}
    assert calls("_vector") == {"privacy.kernel:_read"}
    assert outside(calls("groups"), "access.engines", "audit") == {"privacy.kernel:_read_groups"}
    drawing = outside(calls("release"), "audit", "privacy.mechanisms", "access.engines")
    assert drawing == {"privacy.kernel:_draw_all", "privacy.kernel:_draw"}
    tree = ast.parse((SOURCE / "privacy" / "kernel.py").read_text())
    for name in ("_read", "_read_groups", "_draw"):
        (function,) = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name]
        assert ast.unparse(function.body[0]).startswith("self._receipt.redeem("), name


def test_receipts_are_minted_in_one_place() -> None:
    minted = set()
    for module, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Receipt":
                minted.add(module)
    assert minted == {"privacy.ledger.ledger"}


def test_engines_are_imported_by_the_kernel_alone() -> None:
    importers = set()
    for module, tree in trees().items():
        for node in ast.walk(tree):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if any(name.startswith("dither.access.engines") for name in names):
                importers.add(module)
    curators = {"cli.prepare"}  # `dither prepare` writes a snapshot where the data are, and answers nothing
    others = {each for each in importers if not each.startswith(("access.", "audit"))} - curators
    assert others == {"privacy.kernel"}


@pytest.mark.tier("test")
def test_a_receipt_serves_each_step_once(world: Any, opened: Any, monkeypatch: Any) -> None:
    room = opened(world())
    original = kernel_module.ReceiptedRead.release

    def twice(self: Any, name: str, step: Any) -> Any:
        original(self, name, step)
        return original(self, name, step)

    monkeypatch.setattr(kernel_module.ReceiptedRead, "release", twice)
    with pytest.raises(EngineFailure):
        room.kernel.answer(counting(), "ann")
    assert "taken already" in str(room.kernel.log.events[-1]["detail"])


@pytest.mark.tier("test")
def test_answers_survive_the_wire(world: Any, opened: Any) -> None:
    from dither.privacy.codec import RESPONSE, decode, encode

    room = opened(world())
    answer = room.kernel.answer(automatic(), "ann")
    assert decode(encode(answer), Release, RESPONSE) == answer
    quote = room.kernel.quote(automatic(), "ann")
    assert decode(encode(quote), type(quote), RESPONSE) == quote
    for value in (
        room.kernel.statement("shop", "ann"),
        room.kernel.schema("shop", "ann"),
        room.kernel.facts("shop", "ann"),
    ):
        assert decode(encode(value), type(value), RESPONSE) == value  # type: ignore[arg-type]
    assert np.array(answer.parts[0].values, dtype=np.int64).shape == (3,)


def test_answers_and_quotes_leave_no_objects_behind(world: Any, tmp_path: Path) -> None:
    kernel = LocalKernel(world(), tmp_path / "flat.sqlite")

    def left_by(draws: range) -> int:
        for draw in draws:
            kernel.answer(counting(Fraction(1, 1000), repeat=draw, request_id=f"r{draw}"), "ann")
            kernel.quote(counting(Fraction(1, 1000), repeat=draw + 1000), "ann")
        gc.collect()
        return len(gc.get_objects())

    first, second = left_by(range(20)), left_by(range(20, 60))
    kernel.close()
    # One container kept for each would be 40 for the answers and 40 for the quotes.
    assert second - first < 30
