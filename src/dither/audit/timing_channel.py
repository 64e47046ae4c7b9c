"""Does the time that something takes depend on its input? A two-sample test on interleaved runs, with its power."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import inf, sqrt
from typing import Any

import numpy as np
from scipy import special

from dither.audit.claim_syntax import finite
from dither.audit.claims import Floats
from dither.audit.sampling import Clock, check_awaited, failure
from dither.errors import InvalidParameter

QUANTILES = np.array([0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95])


@dataclass(frozen=True)
class TimingResult:
    """Whether the times on two inputs differ, by how much, and the smallest difference that would have been seen."""

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
            found = f"below {self.quantile:.4g} s: {shares}"
            return f"REFUTED: times depend on the input (p = {self.p_value:.3g}); {medians}; {found}"
        kept = f"a shift of {self.detectable_shift:.3g} s would have been found"
        return f"not refuted (p = {self.p_value:.3g}); {medians}; {kept}"

    def report(self) -> str:
        """The result as JSON."""
        return json.dumps({**asdict(self), "detectable_shift": finite(self.detectable_shift)}, indent=2)


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
    """Runs `function` on both inputs in random order; with probability at most `alpha` it wrongs an even-handed one.

    Each block of two runs has both inputs in an order chosen by a coin, so that drift cannot look like a difference:
    given the two times of each block, every assignment of inputs is equally likely under the null, and the tests count
    in how many blocks the two inputs fall on different sides of a fixed time.
    """
    if runs < 100 or not 0 < alpha < 0.5:
        raise InvalidParameter("timing needs at least 100 runs on each input and alpha between 0 and 0.5")
    if not callable(function):
        raise InvalidParameter(f"timing needs a function of one input, got {type(function).__name__}")
    rng = np.random.default_rng(seed)
    for value in (a, b) * max(warmup, 1):
        _warm(function, value)
    times = _blocks(function, a, b, runs, rng, clock)
    return _compare(times / 1e9, alpha)


def _warm(function: Callable[[Any], Any], value: Any) -> None:
    """A run that is not timed; what is no function of this input is told."""
    try:
        check_awaited(function(value))
    except Exception as error:
        raise failure(error, value) from error


def _blocks(
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
    """Sign tests at several cuts and of the whole, with the p-value corrected for their number."""
    cuts = np.quantile(times, QUANTILES)
    tests = [_sign(times[:, 0] <= cut, times[:, 1] <= cut) for cut in cuts]
    tests.append(_sign(times[:, 0] < times[:, 1], times[:, 1] < times[:, 0]))
    best = int(np.argmin(tests))
    cut = float(cuts[min(best, len(cuts) - 1)])
    p = min(1.0, min(tests) * len(tests))
    shares = float(np.mean(times[:, 0] <= cut)), float(np.mean(times[:, 1] <= cut))
    medians = float(np.median(times[:, 0])), float(np.median(times[:, 1]))
    return TimingResult(p <= alpha, p, alpha, len(times), *medians, cut, shares, _detectable(times, alpha / len(tests)))


def _sign(first: Any, second: Any) -> float:
    """Exact two-sided sign test: among blocks where only one of the two holds, either is equally likely."""
    one, other = int(np.sum(first & ~second)), int(np.sum(second & ~first))
    if one + other == 0:
        return 1.0
    few = min(one, other)
    return float(min(1.0, 2 * special.bdtr(few, one + other, 0.5)))


def _detectable(times: Floats, alpha: float, power: float = 0.9) -> float:
    """The shift of one input's times that the sign test of the differences would find: at least a step of the clock."""
    wanted = 0.5 + (special.ndtri(1 - alpha / 2) + special.ndtri(power)) / (2 * sqrt(len(times)))
    differences = np.abs(times[:, 0] - times[:, 1])
    symmetric = np.concatenate([differences, -differences])
    steps = np.diff(np.unique(times))
    return max(float(np.quantile(symmetric, min(wanted, 1.0))), float(steps.min()) if len(steps) else inf)
