"""The cost of requests: joint norms, samples, several units and time windows; the verifier recomputes it."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import reduce
from operator import and_, or_
from typing import Any

import pytest

from dither.errors import BudgetExceeded, Unbounded
from dither.loss import ZCDP, Pure
from dither.plan.expressions.core import ColumnRef, LiteralValue
from dither.plan.expressions.logic import Compare
from dither.plan.expressions.time import Instant
from dither.plan.measures.core import GroupKey, Measure
from dither.plan.measures.linear import LinearQuery
from dither.plan.measures.sums import Count
from dither.plan.relations.bounding import LimitRowsPerUnit, Sample
from dither.plan.relations.filter import Filter
from dither.plan.relations.scan import Scan
from dither.privacy.accounting.composition import sampled_loss
from dither.privacy.accounting.units import to_femto
from dither.privacy.cost import recompute_losses
from dither.privacy.ledger.maintenance import verify
from dither.privacy.mechanisms import DiscreteGaussian, DiscreteLaplace
from dither.privacy.protocol import Calibrate, Measurement, Request
from dither.schema import Unit
from privacy.kernel_cases import KINDS, counting
from privacy.ledger_cases import DAY, ONE, dataset, pure, zcdp


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
    one = to_femto(sampled_loss(Pure(1), "1/4").epsilon)
    assert room.spent() == [size + one] and one < ONE // 2
    room.kernel.answer(asked(sampled(), acts), "ann")
    two = to_femto(sampled_loss(Pure(2), "1/4").epsilon)
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
        return str(engine.dialect.render(sampled().vector_query(engine._statement(sampled(), secret)).select))

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


def test_a_quote_works_with_the_engine_taken_away(world: Any, opened: Any) -> None:
    room = opened(world())
    taken = room.kernel._datasets["shop"].engines.get()
    quote = room.kernel.quote(counting(), "ann")
    assert quote.losses[0].loss == Pure(1) and quote.affordable and not quote.free
    assert not room.kernel.quote(counting(11), "ann").affordable
    room.kernel._datasets["shop"].engines.put(taken)


def test_the_verifier_recomputes_every_loss_from_its_plan(world: Any, opened: Any) -> None:
    room = opened(world())
    room.kernel.answer(counting(), "ann")
    assert verify(room.place, recompute_losses).sound
    ledger = room.kernel.ledger
    house = room.kernel._datasets["shop"]
    wrong = replace(
        room.kernel._build_charge(house, *room.kernel._cost_request(house, counting(repeat=7)), "ann"),
        losses=tuple(replace(each, loss=Pure("1/2")) for each in room.kernel.quote(counting(), "ann").losses),
    )
    ledger.charge(wrong)
    verdict = verify(room.place, recompute_losses)
    assert verdict.first_bad == ledger.head.sequence and "do not match its plan" in verdict.problem
    assert verify(room.place).sound
