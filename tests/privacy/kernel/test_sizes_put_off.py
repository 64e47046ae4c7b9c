"""Sizes that are put off: measured before the first charge of a question, once, whatever happens meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import pytest

from dither.errors import EngineFailure, NotAllowed
from dither.privacy.pacing import Schedule
from dither.privacy.protocol import Request
from dither.privacy.registration import size_measurements
from privacy.kernel_cases import Room, counting
from privacy.ledger_cases import ONE, ManualClock

SIZE = ONE // 100


def later(dataset: str) -> nullcontext[None]:
    return nullcontext()


def accounts(room: Room) -> list[str]:
    return [charge["account"] for charge in room.rows("charge")]


def sized(room: Room) -> bool:
    return "rows" in room.kernel.schema("shop", "ann").tables["users"].source.options


def test_nothing_is_read_or_charged_before_the_first_question(world: Any, opened: Any) -> None:
    room = opened(world(), size_later=later)
    room.kernel.quote(counting(), "ann")
    room.kernel.statement("shop", "ann")
    assert not room.spy.reads and not accounts(room) and room.spent() == [0] and not sized(room)
    room.kernel.answer(counting(), "ann")
    parts, _ = size_measurements(room.kernel._datasets["shop"].context)
    assert room.spy.reads == [*(part.measure for part in parts), counting().parts[0].measure]
    assert accounts(room) == ["kernel", "ann"] and room.spent() == [SIZE + ONE] and sized(room)


def test_the_measurement_is_that_of_registration(world: Any, opened: Any, tmp_path: Any) -> None:
    """The same request and charge: what one process measured, a server that registers the dataset finds recorded."""
    room = opened(world(), size_later=later)
    room.kernel.measure_size("shop")
    at_once = opened(world(), tmp_path / "other.sqlite")
    (own,), (other,) = room.rows("charge"), at_once.rows("charge")
    assert (own["request"], own["losses"], own["digest"]) == (other["request"], other["losses"], other["digest"])
    server = opened(world(), schedule=Schedule(), clock=ManualClock())
    assert server.kernel._datasets["shop"].rows == room.kernel._datasets["shop"].rows
    assert not server.spy.reads and len(server.rows("charge")) == 1


def test_a_profile_or_another_question_after_the_measurement_reads_no_size_again(world: Any, opened: Any) -> None:
    room = opened(world(), size_later=later)
    room.kernel.measure_profile(Request("shop", counting().parts))
    assert accounts(room) == ["kernel", "kernel"] and len(room.spy.reads) == 4
    room.kernel.answer(counting(2), "ann")
    again = opened(world(), size_later=later)
    again.kernel.answer(counting(3), "ann")
    assert len(room.spy.reads) == 5 and len(again.spy.reads) == 1
    assert again.kernel._datasets["shop"].rows == room.kernel._datasets["shop"].rows


@pytest.mark.parametrize("ends", [ArithmeticError, KeyboardInterrupt], ids=["fails", "is killed"])
def test_a_measurement_that_ends_before_its_record_is_made_again_for_nothing(
    ends: type[BaseException], world: Any, opened: Any
) -> None:
    room = opened(world(), size_later=later)

    def end() -> None:
        raise ends

    room.spy.before = end
    for _ in range(2):
        with pytest.raises(EngineFailure if ends is ArithmeticError else ends):
            room.kernel.answer(counting(), "ann")
    assert accounts(room) == ["kernel"] and not room.rows("answer")
    room.spy.before = lambda: None
    for each in (room, opened(world(), size_later=later)):
        each.kernel.answer(counting(), "ann")
        assert accounts(each) == ["kernel", "ann"] and each.spent() == [SIZE + ONE] and sized(each)


def test_first_questions_at_once_measure_once(world: Any, opened: Any) -> None:
    """A second thread waits for the first: the lock is held while records are read."""
    shown: list[bool] = []
    start = threading.Barrier(4)

    @contextmanager
    def measuring(dataset: str) -> Iterator[None]:
        shown.append(room.kernel._sizing.locked())
        yield

    def ask(number: int) -> None:
        start.wait()
        room.kernel.answer(counting(number), "ann")

    room = opened(world(1000), size_later=measuring, slots=2)
    threads = [threading.Thread(target=ask, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert shown == [True] and accounts(room) == ["kernel", "ann", "ann", "ann", "ann"]
    assert len([read for spy in room.spies for read in spy.reads]) == 3 + 4


def test_two_kernels_that_measure_at_once_charge_once_and_agree(world: Any, opened: Any) -> None:
    """The second measures while the first reads; the release that is recorded first is that of both."""
    room, other = (opened(world(), size_later=later) for _ in range(2))

    def overtake() -> None:
        room.spy.before = lambda: None
        other.kernel.answer(counting(), "bob")

    room.spy.before = overtake
    room.kernel.answer(counting(), "ann")
    assert accounts(room) == ["kernel", "bob"]  # the second question finds the answer of the first
    assert room.kernel._datasets["shop"].rows == other.kernel._datasets["shop"].rows
    assert room.spent() == [SIZE + ONE]


@pytest.mark.parametrize("options", [{"trusted": False}, {"schedule": Schedule(), "clock": ManualClock()}])
def test_a_kernel_that_serves_others_measures_at_registration(options: dict[str, Any], world: Any, opened: Any) -> None:
    with pytest.raises(NotAllowed, match="before it accepts questions"):
        opened(world(), size_later=later, **options)
    assert accounts(opened(world(), **options)) == ["kernel"]


def test_a_dataset_that_is_registered_anew_meanwhile_stays_so(world: Any, opened: Any) -> None:
    """Regression: the measurement put the registration back that it had begun with."""
    newer = replace(world(), data_version="2")

    @contextmanager
    def registering(dataset: str) -> Iterator[None]:
        yield
        if room.kernel._datasets[dataset].context.dataset != newer:
            room.kernel.register(newer)

    room = opened(world(), size_later=registering)
    room.kernel.measure_size("shop")
    assert room.kernel._datasets["shop"].context.dataset == newer
    room.kernel.answer(counting(), "ann")
    assert sized(room)
