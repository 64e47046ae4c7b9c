"""Answers and failures leave at public times; late ones are counted and, at a limit, lock the dataset."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from dither.errors import BudgetExceeded, EngineFailure, NotAllowed
from dither.loss import Pure
from dither.privacy.pacing import Schedule
from dither.privacy.protocol import Calibrate
from privacy.kernel_cases import counting
from privacy.ledger_cases import ManualClock, teams


def test_answers_and_failures_leave_at_the_same_public_instant(world: Any, opened: Any) -> None:
    clock = ManualClock()
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
    clock = ManualClock()
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


def test_choosing_many_keys_is_promised_more_time(world: Any, opened: Any) -> None:
    """Each choice draws for every candidate; otherwise three questions for many keys would be late, and lock."""
    room = opened(world(), schedule=Schedule(floor=1, row=0, node=0, cell=1_000_000))
    (part,) = counting().parts

    def promised(count: int) -> int:
        kind = Calibrate("top_k", Pure(1), (("count", count),))
        return room.kernel.quote(replace(counting(), parts=(replace(part, mechanism=kind),)), "ann").milliseconds

    assert promised(1) < promised(2) < promised(3)


@pytest.mark.tier("test")
def test_the_engine_is_cut_off_at_the_last_instant(world: Any, opened: Any) -> None:
    clock = ManualClock()
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
    """Eight ask at once, on four engines, and every answer is late: three leave, the others are refused uncharged."""
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
    assert len(room.rows("charge")) == 1 + 3  # the kernel's own, and those that passed the gate
    assert len(room.rows("charge")) - len(room.rows("answer")) == 3 - found.count("late")


def test_a_burst_of_misses_slows_a_class_until_the_curator_quickens_it(world: Any, opened: Any) -> None:
    """Predictions forget the misses; the cap on them, and the bits that they may tell, do not."""
    clock, schedule = ManualClock(), Schedule(floor=200, max_misses=5)
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


@pytest.mark.tier("test")
def test_a_recorded_answer_leaves_at_once_and_a_refusal_too(world: Any, opened: Any) -> None:
    clock = ManualClock()
    room = opened(world(1.5), clock=clock, schedule=Schedule())
    room.kernel.answer(counting(), "ann")
    start = clock.ticks
    assert room.kernel.answer(counting(), "bob").cached
    with pytest.raises(BudgetExceeded):
        room.kernel.answer(counting(repeat=1), "ann")
    assert clock.ticks == start


def test_unlocking_one_group_changes_nothing_for_another(world: Any, opened: Any) -> None:
    """Regression: under separate budgets, the residual bits in a group's statement showed that another was unlocked."""
    room = opened(world(100, policy="separate", groups=teams()), clock=ManualClock(), schedule=Schedule())
    for number in range(6):
        room.kernel.answer(counting("1/10", repeat=number), "cyd")
    room.spy.before = lambda: 1 / 0
    for number, account in enumerate(["ann", "ann", "ann", "cyd"]):
        with pytest.raises(EngineFailure):
            room.kernel.answer(counting("1/10", repeat=10 + number), account)
    seen, own = room.kernel.statement("shop", "cyd"), room.kernel.statement("shop", "ann")
    room.kernel.unlock("shop")
    assert room.kernel.statement("shop", "cyd") == seen and not room.kernel.locked("shop")
    assert room.kernel.statement("shop", "ann").residual_bits > own.residual_bits
    ledger = room.kernel.ledger
    assert [ledger.misses("shop", group)[1] for group in ("red", "blue")] == [0, 1]
    assert [ledger.unlock_count("shop", group) for group in ("", "red", "blue")] == [1, 1, 0]
