"""The profile: charged once for each version of the data, recorded, and shown to those who paid for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dither.errors import BudgetExceeded, InvalidParameter, NotAllowed
from dither.plan.context import PROFILE
from dither.privacy.codec import RESPONSE, decode
from dither.privacy.cost import recompute_losses
from dither.privacy.ledger.maintenance import verify
from dither.privacy.protocol import Release, Request
from privacy.kernel_cases import counting
from privacy.ledger_cases import ONE, teams


def published(room: Any, account: str = "ann") -> tuple[Request, Release] | None:
    """The profile that an analyst sees with the schema."""
    options = next(iter(room.kernel.schema("shop", account).tables.values())).source.options
    if PROFILE[0] not in options:
        return None
    request, release = (options[name].encode() for name in PROFILE)
    return decode(request, Request), decode(release, Release, RESPONSE)


def test_a_profile_is_charged_once_and_survives_a_restart(world: Any, opened: Any) -> None:
    room = opened(world())
    assert published(room) is None
    room.kernel.measure_profile(counting())
    first = published(room)
    assert first is not None and room.spent() == [ONE + ONE // 100]
    for _ in range(2):
        room = opened(world())
        room.kernel.measure_profile(counting())
        assert published(room) == first and not room.spy.reads
    assert room.spent() == [ONE + ONE // 100] and len(room.rows("charge")) == 2
    assert verify(room.place, recompute_losses).sound


def test_another_profile_of_the_same_data_is_refused_and_of_new_data_is_not(world: Any, opened: Any) -> None:
    room = opened(world())
    room.kernel.measure_profile(counting())
    with pytest.raises(InvalidParameter, match="already used for another query"):
        room.kernel.measure_profile(counting(epsilon=2))
    assert room.spent() == [ONE + ONE // 100]
    room = opened(world(data_version="2"))
    assert published(room) is None
    room.kernel.measure_profile(counting(epsilon=2))
    assert room.spent() == [3 * ONE + 2 * ONE // 100]


def test_a_profile_outlives_a_changed_description_of_the_same_data(world: Any, opened: Any) -> None:
    room = opened(world())
    room.kernel.measure_profile(counting())
    first = published(room)
    again = opened(replace(world(), description="other words"))
    assert published(again) == first and len(again.rows("charge")) == 3  # the size of the new version


def test_a_profile_beyond_the_budget_is_refused_and_reads_nothing(world: Any, opened: Any) -> None:
    room = opened(world(1))
    with pytest.raises(BudgetExceeded):
        room.kernel.measure_profile(counting())
    assert published(room) is None and not room.spy.reads and room.spent() == [ONE // 100]


def test_a_group_that_was_added_later_has_not_paid_and_does_not_see_it(world: Any, opened: Any) -> None:
    separate: dict[str, Any] = {"policy": "separate"}
    room = opened(world(**separate, groups=teams()[:1]))
    room.kernel.measure_profile(counting())
    assert published(room) is not None
    first = published(room)
    room = opened(world(**separate, groups=teams()))
    for _ in range(2):
        assert published(room, "ann") == first and published(room, "cyd") is None
        room.kernel.measure_profile(counting())
    assert len(room.rows("charge")) == 3 and not room.spy.reads  # two sizes and a profile


@pytest.mark.parametrize("policy", ["shared", "separate"])
def test_an_analyst_who_asks_the_same_request_first_does_not_block_a_profile(
    world: Any, opened: Any, policy: Any
) -> None:
    """Regression: the draw was the analyst's, and the profile was never published."""
    room = opened(world(policy=policy, groups=teams()))
    room.kernel.answer(counting(), "ann")
    room.kernel.measure_profile(counting())
    assert published(room, "ann") == published(room, "cyd") is not None
    assert max(each.spent for each in room.kernel.balances("shop"))[0] == 2 * ONE + ONE // 100
    assert verify(room.place, recompute_losses).sound


def test_no_analyst_can_take_the_place_of_a_profile(world: Any, opened: Any) -> None:
    room = opened(world())
    room.kernel.measure_profile(counting())
    with pytest.raises(NotAllowed):
        room.kernel.answer(counting(), "kernel")
    (identity,) = [row["request_id"] for row in room.rows("charge") if row["request_id"]]
    before = published(room)
    room.kernel.answer(counting(epsilon=2, request_id=identity), "ann")
    assert published(opened(world())) == before
