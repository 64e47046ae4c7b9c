"""Test whether the running time of a function depends on its input, with the power of the test.

A fair coin decides on which input each run is made. If the input makes no difference, then given all earlier runs and
the time of this one, the coin is still fair. The test bets on the coin after it has seen the time: on one input if the
time is at most a cut, on the other if not. Cuts and stakes come from earlier runs alone, so whatever the machine does
(drift, warm-up, garbage collection, a coarse clock, one run that slows the next), the money is expected to stay the
same, and it grows to 1 / alpha with probability at most alpha (Ville's inequality). The betting starts after a few runs
that set the first cuts, and is spread evenly over several cuts and both directions.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import inf, log, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dither.audit.arguments import check_alpha, check_count, seeded_generator
from dither.audit.claim_syntax import json_number
from dither.audit.claims import Floats
from dither.audit.sampling import Clock, mechanism_failure, reject_awaitable, time_calls
from dither.errors import InvalidParameter

LEVELS = np.array([0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95])
DIRECTIONS = np.array([1.0, -1.0])
# The cuts of a block of runs are quantiles of the runs in the window before it. Blocks are a tenth of all runs if those
# are few; the first block sets the first cuts and is not bet on.
LARGEST_BLOCK = 50
WINDOW = 200
LARGEST_STAKE = 0.9
POWER = 0.9


@dataclass(frozen=True)
class TimingResult:
    """The comparison of running times on two inputs, in seconds.

    `runs` were made on each input, and `below` of them took at most the cut at which the two inputs differ most. That
    cut is the quantile at `level` of the runs before; `cut` is its median. `detectable_shift` is the smallest
    difference that the test would detect with probability 90%.
    """

    refuted: bool
    p_value: float
    alpha: float
    runs: tuple[int, int]
    median_a: float
    median_b: float
    level: float
    cut: float
    below: tuple[int, int]
    detectable_shift: float

    @property
    def shares(self) -> tuple[float, float]:
        """The share of runs that took at most the cut, on each input."""
        return self.below[0] / max(self.runs[0], 1), self.below[1] / max(self.runs[1], 1)

    def __str__(self) -> str:
        medians = f"medians {self.median_a:.4g} and {self.median_b:.4g} s"
        if self.refuted:
            counts = f"{self.below[0]} of {self.runs[0]} and {self.below[1]} of {self.runs[1]}"
            cut = f"the {self.level:.0%} quantile of the runs before, about {self.cut:.4g} s"
            shown = f"{medians}; runs that took at most {cut}: {counts}"
            return f"REFUTED: times depend on the input (p = {self.p_value:.3g}); {shown}"
        power = f"a shift of {self.detectable_shift:.3g} s would have been detected with probability {POWER:.0%}"
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
    """Time `function` about `runs` times on each input; falsely report a difference with probability at most `alpha`.

    A fair coin chooses the input of every run. Inputs of plain data are copied for each run, so that their place in
    memory says nothing about them. The result names the cut at which the times differ most.
    """
    check_count("runs", runs, 100)
    check_count("warmup", warmup, 0)
    check_alpha(alpha)
    rng = seeded_generator(seed)
    if not callable(function):
        raise InvalidParameter(f"timing needs a function of one input, got {type(function).__name__}")
    for value in (a, b) * max(warmup, 1):
        _warm_up(function, value)
    sides = rng.integers(2, size=2 * runs)
    times = np.array([elapsed for elapsed, _ in time_calls(function, (a, b), sides.tolist(), clock)], float)
    return _compare(times / 1e9, sides == 0, alpha)


def _warm_up(function: Callable[[Any], Any], value: Any) -> None:
    """Run once without timing; raise if the function rejects this input."""
    try:
        reject_awaitable(function(value))
    except Exception as error:
        raise mechanism_failure(error, value) from error


def _compare(times: Floats, on_a: NDArray[np.bool_], alpha: float) -> TimingResult:
    """Bet on the coin of each run at every cut; the p-value is one over the mean of the money that is left."""
    block = min(LARGEST_BLOCK, len(times) // 10)
    cuts, expected = _moving_cuts(times, block)
    judged, labels = times[block:], on_a[block:]
    below = judged[:, None] <= cuts
    money = _money(below, expected, labels, alpha)
    best = int(np.argmax(money.max(axis=1)))
    p = float(min(1.0, np.exp(-special.logsumexp(money, b=1 / money.size))))
    counts = [(int(side.sum()), int(below[side, best].sum())) for side in (labels, ~labels)]
    medians = [float(np.median(side)) if len(side) else inf for side in (judged[labels], judged[~labels])]
    middle = cuts[:, len(LEVELS) // 2]
    return TimingResult(
        p <= alpha, p, alpha, (counts[0][0], counts[1][0]), medians[0], medians[1], float(LEVELS[best]),
        float(np.median(cuts[:, best])), (counts[0][1], counts[1][1]), _detectable_shift(judged - middle, times, alpha),
    )  # fmt: skip


def _moving_cuts(times: Floats, block: int) -> tuple[Floats, Floats]:
    """Return the cuts of every run after the first block, and the share of the window before it that is below each."""
    cuts, shares = [], []
    for start in range(block, len(times), block):
        window, size = times[max(0, start - WINDOW) : start], min(block, len(times) - start)
        levels = np.quantile(window, LEVELS)
        cuts.append(np.tile(levels, (size, 1)))
        shares.append(np.tile((window[:, None] <= levels).mean(axis=0), (size, 1)))
    return np.concatenate(cuts), np.concatenate(shares)


def _money(below: NDArray[np.bool_], expected: Floats, on_a: NDArray[np.bool_], alpha: float) -> Floats:
    """Return the logarithm of the money that each bet ends with: a row for each cut, a column for each direction.

    The stake is largest on the side of the cut where fewer runs are expected. A cut that no run of the window exceeds
    gets no stake.
    """
    spread = np.sqrt(expected * (1 - expected))
    scores = np.where(spread > 0, (below - expected) / np.maximum(spread, 1e-9), 0.0)
    stakes = np.clip(_needed_deviation(alpha) / sqrt(len(scores)) * scores, -LARGEST_STAKE, LARGEST_STAKE)
    gains = np.where(on_a, 1.0, -1.0)[:, None] * stakes
    return np.stack([np.log1p(direction * gains).sum(axis=0) for direction in DIRECTIONS], axis=1)


def _needed_deviation(alpha: float) -> float:
    """Return how many standard deviations one bet must be off by to refute alone, at the stake that needs fewest."""
    return sqrt(2 * log(len(LEVELS) * len(DIRECTIONS) / alpha))


def _detectable_shift(residuals: Floats, times: Floats, alpha: float) -> float:
    """Return the shift that some bet detects with probability POWER, at least a step of the clock; by bisection."""
    steps, ordered = np.diff(np.unique(times)), np.sort(residuals)
    low, high = 0.0, 2.0 * float(ordered[-1] - ordered[0])
    needed = _needed_deviation(alpha) + special.ndtri(POWER)
    if not len(steps) or _largest_deviation(ordered, high) < needed:
        return inf
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if _largest_deviation(ordered, middle) >= needed else (middle, high)
    return max(high, float(steps.min()))


def _largest_deviation(ordered: Floats, shift: float) -> float:
    """Return the standard deviations by which some bet is off on average if one input takes longer by `shift`."""
    cuts = np.quantile(np.concatenate([ordered, ordered + shift]), LEVELS)
    first, second = (np.searchsorted(ordered, cuts - gap, side="right") / len(ordered) for gap in (0.0, shift))
    expected = (first + second) / 2
    spread = np.sqrt(np.maximum(expected * (1 - expected), 1 / len(ordered)))
    return float((sqrt(len(ordered)) * (first - second) / (2 * spread)).max())
