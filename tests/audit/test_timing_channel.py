"""The timing test, mostly on a simulated clock, where false alarms are impossible. No wall time is asserted."""

from __future__ import annotations

from collections.abc import Callable
from math import exp
from typing import Any

import numpy as np
import pytest

from dither import audit
from dither.audit import zoo
from dither.audit.sampling import OutputSampler
from dither.errors import InvalidParameter
from dither.loss import Pure


class Watch:
    """A clock that advances only when the code under test says so."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


def worker(watch: Watch, seconds: Callable[[Any], float]) -> Callable[[Any], None]:
    """Return a function that takes as many seconds as `seconds(input)` says."""

    def function(value: Any) -> None:
        watch.now += int(1e9 * seconds(value))

    return function


def test_a_shift_is_found_and_stated() -> None:
    watch, rng = Watch(), np.random.default_rng(1)
    slow = worker(watch, lambda value: 0.001 + 0.0005 * value + rng.exponential(0.001))
    result = audit.timing(slow, 0, 1, clock=watch, seed=2)
    assert result.refuted
    assert result.median_b > result.median_a
    assert result.shares[0] > result.shares[1]
    assert '"refuted": true' in result.report()


def test_a_difference_in_spread_alone_is_found() -> None:
    watch, rng = Watch(), np.random.default_rng(1)
    uneven = worker(watch, lambda value: 1.0 + rng.uniform(-0.1, 0.1) * (1 + value))
    assert audit.timing(uneven, 0, 1, clock=watch, seed=2).refuted


def test_drift_does_not_look_like_a_difference() -> None:
    # 40 audits at alpha 1e-9 each: false alarms below 1e-7 over seeds, none with these.
    for seed in range(40):
        watch, rng = Watch(), np.random.default_rng(seed)
        steps = iter(range(10**9))
        drifting = worker(watch, lambda value: 0.001 * (1 + next(steps) / 100) + rng.exponential(0.001))  # noqa: B023
        assert not audit.timing(drifting, 0, 1, runs=200, alpha=1e-9, clock=watch, seed=seed).refuted


def test_p_values_of_input_independent_code_are_not_too_small() -> None:
    # 100 audits: P[Binomial(100, 0.05) > 22] < 1e-8 over seeds.
    found = 0
    for seed in range(100):
        watch, rng = Watch(), np.random.default_rng(seed)
        even = worker(watch, lambda value: rng.exponential(0.001))  # noqa: B023
        found += audit.timing(even, 0, 1, runs=100, warmup=0, alpha=0.05, clock=watch, seed=seed).refuted
    assert found <= 22


# Input-independent times that no pairing makes exchangeable: what the machine does, given the number of the call, the
# input of the call before and a generator. Nanoseconds.
DISTURBANCES: dict[str, Callable[[int, int, np.random.Generator], float]] = {
    "every second call": lambda call, before, rng: 1000 * (1 + call % 2),
    "the call before": lambda call, before, rng: 1000 + 300 * before + rng.exponential(100),
    "warm-up": lambda call, before, rng: 1000 + 1e6 / (1 + call) + rng.exponential(100),
    "garbage collection": lambda call, before, rng: 1000 + 50_000 * (call % 70 == 0) + rng.exponential(100),
    "two speeds of the processor": lambda call, before, rng: (1000 + rng.exponential(20)) * (1 + call // 137 % 2),
    "a coarse clock": lambda call, before, rng: 1000 * (rng.random() < 0.1),
    "a clock that stands still": lambda call, before, rng: 0,
}


@pytest.mark.parametrize("name", DISTURBANCES)
def test_what_the_machine_does_is_no_difference(name: str) -> None:
    # Eight cases of 10 audits at alpha 1e-9: false alarms below 1e-7 over seeds, none with these.
    for seed in range(10):
        watch, rng, before, calls = Watch(), np.random.default_rng(seed), [0], iter(range(10**9))

        def disturbed(value: int) -> None:
            watch.now += int(DISTURBANCES[name](next(calls), before[0], rng))  # noqa: B023
            before[0] = value  # noqa: B023

        result = audit.timing(disturbed, 0, 1, runs=500, alpha=1e-9, clock=watch, seed=seed)
        assert not result.refuted, result


def test_the_place_of_an_input_in_memory_is_no_difference() -> None:
    watch, one = Watch(), [0.5] * 3
    other, calls = list(one), iter(range(10**9))
    by_address = worker(watch, lambda value: 1e-6 * (1 + (value is one)) + 1e-9 * (next(calls) % 7))
    assert not audit.timing(by_address, one, other, runs=500, alpha=1e-9, clock=watch, seed=1).refuted


def test_an_input_with_an_identity_is_not_copied() -> None:
    places = object(), object()
    seen: set[int] = set()
    audit.timing(lambda value: seen.add(id(value)), *places, runs=100, warmup=0)
    assert seen == {id(place) for place in places}


def test_the_result_quotes_the_cut_that_refuted() -> None:
    """One input has a slow tail: 30% of its runs take three times as long, and the others are all alike."""
    watch, rng = Watch(), np.random.default_rng(1)
    tailed = worker(watch, lambda value: 3e-6 if value and rng.random() < 0.3 else 1e-6 + rng.uniform(0, 1e-8))
    result = audit.timing(tailed, 0, 1, clock=watch, seed=2)
    assert result.refuted and result.level in (0.75, 0.9)
    assert result.shares[0] == pytest.approx(0.95, abs=0.05) and result.shares[1] < 0.75
    assert f"{result.below[0]} of {result.runs[0]} and {result.below[1]} of {result.runs[1]}" in str(result)
    assert f"{result.level:.0%} quantile" in str(result) and sum(result.runs) == 3950


@pytest.mark.parametrize("alpha", [0.01, 1e-9])
def test_the_stated_shift_is_detected_nine_times_in_ten(alpha: float) -> None:
    watch, rng = Watch(), np.random.default_rng(1)
    plain = audit.timing(worker(watch, lambda value: rng.normal(1e-3, 1e-4)), 0, 1, clock=watch, seed=1, alpha=alpha)
    shift, found = plain.detectable_shift, 0
    shifted = worker(watch, lambda value: rng.normal(1e-3 + shift * value, 1e-4))
    for seed in range(10):
        found += audit.timing(shifted, 0, 1, clock=watch, seed=seed, alpha=alpha).refuted
    assert not plain.refuted and found >= 6  # P[Binomial(10, 0.9) < 6] is 0.0016 over seeds; these find 9 and 10


def loop(additions: int) -> Callable[[int], int]:
    """Return a function of one input that takes a time in proportion to `additions`, whatever the input."""

    def function(value: int) -> int:
        total = 0
        for _ in range(additions):
            total += value
        return total

    return function


@pytest.mark.tier("test")
def test_identical_inputs_are_not_told_apart_on_the_real_clock() -> None:
    """12 audits at each of five speeds, from 0.3 to 4 microseconds a call: P[Binomial(60, 0.01) > 8] < 1e-8.

    Regression: the side was known to the loop around the clock, and each input had one place in memory for all runs;
    equal tables that were made one after the other were told apart in 79 of 100 audits.
    """
    refuted = {
        size: sum(
            audit.timing(lambda rows: sum(sorted(rows.values())), *equal_tables(size), runs=1000, seed=seed).refuted
            for seed in range(12)
        )
        for size in (1, 5, 30, 100, 300)
    }
    assert sum(refuted.values()) <= 8, refuted


def equal_tables(size: int) -> list[dict[str, float]]:
    """Return two equal dictionaries that share no memory."""
    return [{f"person {number}": float(number) for number in range(size)} for _ in range(2)]


@pytest.mark.tier("test")
def test_a_planted_leak_is_found_on_the_real_clock() -> None:
    """One addition in ten is left out on one input; 5 audits at each of three speeds."""
    for additions in (20, 100, 400):
        short, long = loop(additions * 9 // 10), loop(additions)
        leaky = lambda value: long(7) if value else short(7)  # noqa: B023, E731
        found = [audit.timing(leaky, 0, 1, alpha=1e-9, seed=seed).refuted for seed in range(5)]
        assert any(found), additions


def test_bad_parameters_are_refused() -> None:
    wrong: list[dict[str, Any]] = [
        {"runs": 10},
        {"runs": "x"},
        {"alpha": "x"},
        {"alpha": 2},
        {"seed": "x"},
        {"warmup": -1},
    ]
    for given in wrong:
        with pytest.raises(InvalidParameter, match=next(iter(given))):
            audit.timing(lambda value: None, 0, 1, **given)


def leaky(watch: Watch, rng: np.random.Generator, constant: bool) -> Callable[[int], int]:
    """Return correct two-sided geometric noise of scale 20 that takes a microsecond per step, or a constant time."""

    def mechanism(value: int) -> int:
        noise = int(rng.geometric(1 - exp(-1 / 20)) - rng.geometric(1 - exp(-1 / 20)))
        watch.now += 50_000 + int(rng.exponential(2000)) + (0 if constant else 1000 * abs(noise))
        return value + noise

    return mechanism


@pytest.mark.tier("test")
@pytest.mark.parametrize("mode", ["fixed", "sequential"])
def test_noise_that_takes_time_is_refuted_through_the_time_channel(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch()
    monkeypatch.setattr(OutputSampler, "clock", watch, raising=False)
    monkeypatch.setattr(OutputSampler.__init__, "__defaults__", (False, watch))
    for constant in (False, True):
        mechanism = leaky(watch, np.random.default_rng(4), constant)
        result = audit.privacy(mechanism, Pure(1), [(0, 20)], samples=12_000, alpha=1e-4, mode=mode, timed=True, seed=5)
        assert result.refuted is not constant
    blind = audit.privacy(leaky(watch, np.random.default_rng(4), False), Pure(1), [(0, 20)], samples=12_000, alpha=1e-4)
    assert not blind.refuted


@pytest.mark.tier("test")
def test_the_leaky_sampler_is_refuted_on_the_real_clock() -> None:
    member = zoo.member("timing_leaky")
    found = [
        audit.privacy(member.mechanism(seed), member.claim, member.neighbours, samples=12_000, timed=True, seed=seed)
        for seed in range(3)
    ]
    assert any(result.refuted for result in found)


def test_timed_outputs_do_not_show_where_an_input_lies_in_memory() -> None:
    watch, one = Watch(), [0.5] * 3
    by_address = worker(watch, lambda value: 1e-6 * (1 + (value is one)))
    sampler = OutputSampler(lambda value: by_address(value) or 0, False, True, watch)
    first, second = sampler.draw_pair(one, list(one), (50, 50), np.random.default_rng(1))
    assert np.array_equal(first, second) and len(first) == 50
