"""Test whether the running time of a function depends on its input, by interleaved runs, with the power of the test."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import inf, sqrt
from typing import Any

import numpy as np
from scipy import special

from dither.audit.claim_syntax import json_number
from dither.audit.claims import Floats
from dither.audit.sampling import Clock, mechanism_failure, reject_awaitable
from dither.errors import InvalidParameter

QUANTILES = np.array([0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95])


@dataclass(frozen=True)
class TimingResult:
    """The comparison of running times on two inputs, in seconds.

    `shares` are the shares of runs below `quantile` on each input, at the time where they differ most.
    `detectable_shift` is the smallest difference that the test would probably detect.
    """

    refuted: bool
    p_value: float
    alpha: float
    runs: int
    median_a: float
    median_b: float
    quantile: float
    shares: tuple[float, float]
    detectable_shift: float

    def __str__(self) -> str:
        medians = f"medians {self.median_a:.4g} and {self.median_b:.4g} s"
        if self.refuted:
            shares = f"{self.shares[0]:.3f} and {self.shares[1]:.3f}"
            difference = f"share of runs below {self.quantile:.4g} s: {shares}"
            return f"REFUTED: times depend on the input (p = {self.p_value:.3g}); {medians}; {difference}"
        power = f"a shift of {self.detectable_shift:.3g} s would have been detected"
        return f"not refuted (p = {self.p_value:.3g}); {medians}; {power}"

    def report(self) -> str:
        """Return the result as JSON."""
        return json.dumps({**asdict(self), "detectable_shift": json_number(self.detectable_shift)}, indent=2)


def timing(
    function: Callable[[Any], Any],
    a: Any,
    b: Any,
    *,
    runs: int = 2000,
    alpha: float = 0.01,
    warmup: int = 50,
    seed: int | None = None,
    clock: Clock = time.perf_counter_ns,
) -> TimingResult:
    """Time `function` on both inputs in random order; falsely report a difference with probability at most `alpha`.

    Each block of two runs has both inputs in random order, so that drift cannot look like a difference: given the two
    times of each block, every assignment of inputs is equally likely under the null hypothesis. The tests count the
    blocks in which the two inputs fall on different sides of a fixed time.
    """
    if runs < 100 or not 0 < alpha < 0.5:
        raise InvalidParameter(
            f"timing needs at least 100 runs on each input and alpha between 0 and 0.5; got {runs} and {alpha}"
        )
    if not callable(function):
        raise InvalidParameter(f"timing needs a function of one input, got {type(function).__name__}")
    rng = np.random.default_rng(seed)
    for value in (a, b) * max(warmup, 1):
        _warm_up(function, value)
    times = _time_blocks(function, a, b, runs, rng, clock)
    return _compare(times / 1e9, alpha)


def _warm_up(function: Callable[[Any], Any], value: Any) -> None:
    """Run once without timing; raise if the function rejects this input."""
    try:
        reject_awaitable(function(value))
    except Exception as error:
        raise mechanism_failure(error, value) from error


def _time_blocks(
    function: Callable[[Any], Any], a: Any, b: Any, runs: int, rng: np.random.Generator, clock: Clock
) -> Floats:
    times = np.empty((runs, 2))
    for block, swapped in enumerate(rng.random(runs) < 0.5):
        for side in (1, 0) if swapped else (0, 1):
            started = clock()
            function((a, b)[side])
            times[block, side] = clock() - started
    return times


def _compare(times: Floats, alpha: float) -> TimingResult:
    """Run sign tests at several cuts and of the differences; correct the p-value for the number of tests."""
    cuts = np.quantile(times, QUANTILES)
    tests = [_sign_test(times[:, 0] <= cut, times[:, 1] <= cut) for cut in cuts]
    tests.append(_sign_test(times[:, 0] < times[:, 1], times[:, 1] < times[:, 0]))
    best = int(np.argmin(tests))
    cut = float(cuts[min(best, len(cuts) - 1)])
    p = min(1.0, min(tests) * len(tests))
    shares = float(np.mean(times[:, 0] <= cut)), float(np.mean(times[:, 1] <= cut))
    medians = float(np.median(times[:, 0])), float(np.median(times[:, 1]))
    return TimingResult(
        p <= alpha, p, alpha, len(times), *medians, cut, shares, _detectable_shift(times, alpha / len(tests))
    )


def _sign_test(first: Any, second: Any) -> float:
    """Return the p-value of an exact two-sided sign test: in blocks where only one holds, either is equally likely."""
    only_first, only_second = int(np.sum(first & ~second)), int(np.sum(second & ~first))
    if only_first + only_second == 0:
        return 1.0
    return float(min(1.0, 2 * special.bdtr(min(only_first, only_second), only_first + only_second, 0.5)))


def _detectable_shift(times: Floats, alpha: float, power: float = 0.9) -> float:
    """Return the shift that the sign test of the differences detects with this power, at least a step of the clock."""
    level = 0.5 + (special.ndtri(1 - alpha / 2) + special.ndtri(power)) / (2 * sqrt(len(times)))
    differences = np.abs(times[:, 0] - times[:, 1])
    symmetric = np.concatenate([differences, -differences])
    steps = np.diff(np.unique(times))
    return max(float(np.quantile(symmetric, min(level, 1.0))), float(steps.min()) if len(steps) else inf)
