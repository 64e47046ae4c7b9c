"""No fresh draw without a charge, after a restart, a retry, a fork, a new version or in a second group."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import Any

import pytest

from dither.errors import BudgetExceeded, EngineFailure, LedgerError, NotAllowed
from dither.privacy.kernel import LocalKernel
from dither.privacy.pacing import Schedule
from dither.schema import Group, Unit
from privacy.kernel_cases import automatic, counting, wide
from privacy.ledger_cases import ONE, ManualClock, pure, teams


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


@pytest.mark.parametrize("ends", [ArithmeticError, KeyboardInterrupt], ids=["fails", "is killed"])
def test_a_retry_after_a_draw_is_counted_before_it_reads(world: Any, opened: Any, ends: type[BaseException]) -> None:
    """Regression: the bits of timing counted charges, so that retries with fresh draws were free."""
    schedule = Schedule(max_misses=3)
    room = opened(world(100), clock=ManualClock(), schedule=schedule)
    request = automatic()

    def end_after_the_search() -> None:
        if len(room.spy.reads) % 2 == 0:
            raise ends

    for attempt in range(1, 4):
        room.spy.before = end_after_the_search
        with pytest.raises(EngineFailure if ends is ArithmeticError else ends):
            room.kernel.answer(request, "ann")
        assert len(room.rows("charge")) == 2 and room.kernel.ledger.attempts("shop") == 1 + attempt
        assert room.kernel.statement("shop", "ann").residual_bits == schedule.residual_bits(1 + attempt)
    room.spy.before = lambda: None
    if ends is ArithmeticError:
        with pytest.raises(NotAllowed, match="locked"):
            room.kernel.answer(request, "ann")
        room.kernel.unlock("shop")
    assert room.kernel.answer(request, "ann").parts == room.kernel.answer(request, "ann").parts
    assert room.kernel.ledger.attempts("shop") == 5 and len(room.rows("charge")) == 2
    again = opened(world(100), clock=ManualClock(), schedule=schedule)
    assert again.kernel.ledger.attempts("shop") == 5


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
    assert set(size) == {"users", "actions", ""}  # tables, and the number of units
    again = opened(world("1/100", data_version="2"))
    assert again.kernel._datasets["shop"].rows == size
    assert len(again.rows("answer")) == 1


@pytest.mark.tier("test")
def test_a_group_that_did_not_pay_for_a_size_does_not_see_it(world: Any, opened: Any) -> None:
    """Regression: a group without budget saw the size that the others had paid for before it was added."""
    late = Group("late", ("eve",), caps=(pure("1/1000"),))
    size = dict(opened(world(policy="separate", groups=teams())).kernel._datasets["shop"].rows)
    assert set(size) == {"users", "actions", ""}  # tables, and the number of units
    added = opened(world(policy="separate", groups=(*teams(), late)))
    assert added.kernel._datasets["shop"].rows == {}
    assert not {"rows", "units"} & set(added.kernel.schema("shop", "eve").tables["users"].source.options)
    poor = teams(caps=(pure("1/100"),))  # both have paid for the first version, and cannot for the second
    assert opened(world(policy="separate", groups=poor, data_version="2")).kernel._datasets["shop"].rows == size
    later = opened(world(policy="separate", groups=(*poor, late), data_version="3"))
    assert (
        later.kernel._datasets["shop"].rows == {}
        and max(each.spent for each in later.kernel.balances("shop"))[0] == ONE // 100
    )


@pytest.mark.tier("test")
def test_a_size_is_measured_where_a_cap_belongs_to_a_unit_without_a_budget(world: Any, opened: Any) -> None:
    """Regression: rows capped by user do not track their months, and the data could not be opened."""
    keys = {"actions": "user_id"}
    units = {
        "user": Unit("user", "user", {"users": "user_id", **keys}, max_rows={"actions": 5}),
        "month": Unit("month", "window", keys, {"actions": "at"}, "month"),
    }
    room = opened(world(units=units, budgets=(pure(10, "month"),)))
    assert set(room.kernel._datasets["shop"].rows) == {"actions"}
    assert max(each.spent for each in room.kernel.balances("shop"))[0] == ONE // 100


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
    with pytest.raises(LedgerError, match="restart this kernel"):
        old.kernel.answer(counting(), "ann")
    assert not old.spy.reads


def test_a_second_group_gets_the_recorded_answer_for_the_full_price_and_the_full_wait(world: Any, opened: Any) -> None:
    clock = ManualClock()
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
            other.close()
        finally:
            os._exit(0)
    theirs = json.loads(os.read(read, 10_000))
    os.waitpid(child, 0)
    mine = room.kernel.answer(wide(2), "ann").parts[0].values
    assert list(mine) != theirs  # Laplace(10^6), three cells: equal with probability below 1e-17
    room.kernel.answer(counting(2), "ann")
    with pytest.raises(BudgetExceeded):
        room.kernel.answer(counting(1, repeat=3), "ann")
