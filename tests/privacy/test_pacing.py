"""Release instants follow from public facts, exactly; misses are counted and bounded."""

from __future__ import annotations

from math import log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dither.errors import InvalidParameter
from dither.privacy.pacing import DOUBLINGS, Schedule, SystemClock, Work, departure

WORK = Work(passes=2, sorts=1, rows=1_000_000, cells=100)
counts = st.integers(0, 10**12)


def test_the_instants_are_the_prediction_and_its_doublings() -> None:
    schedule = Schedule(floor=100, row=1000, cell=1000)
    first = schedule.prediction(WORK, 0)
    assert schedule.instants(5000, WORK, 0) == tuple(5000 + first * factor for factor in (1, 2, 4, 8))
    assert schedule.prediction(WORK, 2) == 4 * first


@given(counts, counts)
def test_only_orders_of_magnitude_are_told_apart(one: int, two: int) -> None:
    schedule = Schedule()
    same = one.bit_length() == two.bit_length()
    ours, theirs = Work(1, 1, one, 1), Work(1, 1, two, 1)
    assert (ours.time_class == theirs.time_class) == same
    if same:
        assert schedule.prediction(ours, 0) == schedule.prediction(theirs, 0)


@given(counts, counts)
def test_more_rows_never_wait_less(one: int, two: int) -> None:
    schedule = Schedule()
    low, high = sorted((one, two))
    assert schedule.prediction(Work(1, 0, low, 1), 0) <= schedule.prediction(Work(1, 0, high, 1), 0)


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=50))
def test_what_leaves_leaves_at_one_of_the_instants(ready: list[int]) -> None:
    instants = Schedule(floor=500).instants(0, Work(0, 0, 0, 0), 0)
    for took in ready:
        leaving = departure(instants, took)
        assert leaving.instant in instants
        assert leaving.instant >= min(took, instants[-1])
        assert leaving.missed == (took > instants[0])


def test_being_ready_at_the_instant_itself_is_not_a_miss() -> None:
    assert not departure((10, 20), 10).missed
    assert departure((10, 20), 11).missed
    assert departure((10, 20), 99) == departure((10, 20), 20)


def test_residual_bits_bound_the_ways_to_be_late() -> None:
    schedule = Schedule()
    assert schedule.residual_bits(0) == 0
    one_late = 1 + 1000 * 2 * DOUBLINGS
    assert log2(one_late) < schedule.residual_bits(1000) < 3 * log2(1000 * 2 * DOUBLINGS)
    assert Schedule(max_misses=1).residual_bits(1000) == (one_late - 1).bit_length()
    assert Schedule(max_misses=2).residual_bits(1000, unlocked=2) == Schedule(max_misses=6).residual_bits(1000)


def test_a_noisy_size_below_zero_is_zero() -> None:
    assert Work(1, 1, -5, 1).time_class == Work(1, 1, 0, 1).time_class


@pytest.mark.parametrize("fields", [{"floor": 0}, {"row": -1}, {"cell": -1}, {"max_misses": 0}])
def test_schedules_that_make_no_sense_are_refused(fields: dict[str, int]) -> None:
    with pytest.raises(InvalidParameter):
        Schedule(**fields)


def test_the_systems_clock_waits_until_the_instant() -> None:
    clock = SystemClock()
    instant = clock.milliseconds() + 20
    clock.wait_until(instant)
    assert clock.milliseconds() >= instant
    clock.wait_until(instant - 1000)
    assert clock.utc().tzinfo is not None


def test_a_large_plan_over_few_rows_has_time_to_be_read() -> None:
    """4,000 conditions over fifty rows once left late three times: a dataset was locked for next to nothing."""
    small, large = Work(1, 0, 50, 1, nodes=10), Work(1, 0, 50, 1, nodes=12_000)
    assert Schedule().prediction(large, 0) >= Schedule().prediction(small, 0) + 12_000
    assert small.time_class != large.time_class
