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
    # 300 audits: P[Binomial(300, 0.05) > 45] < 1e-9 over seeds.
    found = 0
    for seed in range(300):
        watch, rng = Watch(), np.random.default_rng(seed)
        even = worker(watch, lambda value: rng.exponential(0.001))  # noqa: B023
        found += audit.timing(even, 0, 1, runs=100, warmup=0, alpha=0.05, clock=watch, seed=seed).refuted
    assert found <= 45


def test_blocks_in_a_fixed_order_would_be_caught() -> None:
    """Regression: without random order, a function slower on every second call seemed to depend on its input."""
    watch, turns = Watch(), iter(range(10**9))
    alternating = worker(watch, lambda value: 0.001 * (1 + next(turns) % 2))
    assert not audit.timing(alternating, 0, 1, runs=500, alpha=1e-6, clock=watch, seed=3).refuted
    fixed = np.array([[1.0, 2.0]] * 500)
    from dither.audit import timing_channel as times

    assert times._compare(fixed, 1e-6).refuted


def test_bad_parameters_are_refused() -> None:
    with pytest.raises(InvalidParameter, match="100 runs"):
        audit.timing(lambda value: None, 0, 1, runs=10)


def leaky(watch: Watch, rng: np.random.Generator, constant: bool) -> Callable[[int], int]:
    """Return correct two-sided geometric noise of scale 20 that takes a microsecond per step, or a constant time."""

    def mechanism(value: int) -> int:
        noise = int(rng.geometric(1 - exp(-1 / 20)) - rng.geometric(1 - exp(-1 / 20)))
        watch.now += 50_000 + int(rng.exponential(2000)) + (0 if constant else 1000 * abs(noise))
        return value + noise

    return mechanism


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
