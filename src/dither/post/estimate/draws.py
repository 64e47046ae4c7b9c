"""Intervals from simulated values: the order statistics of long rows, and standard deviations without their ends."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dither.post.noise import Floats

# Simulated intervals aim at this much more confidence: it covers the error of using finitely many points, and of
# simulating noise around the estimate instead of the truth.
SIMULATED_EXTRA = 0.002
# Of rows this long only the ends are sorted, found by a sample.
LONG_ROW = 1 << 15
SAMPLED_EVERY = 64


def interval_of_draws(simulated: Floats, confidence: float) -> tuple[Floats, Floats, Floats]:
    """The ends of an interval from quantiles of simulated values (NaN widens it), and their standard deviation."""
    tail = max((1 - confidence - SIMULATED_EXTRA) / 2, (1 - confidence) / 4)
    last = simulated.shape[1] - 1
    least, most = math.floor(tail * last), math.ceil((1 - tail) * last)
    if np.isfinite(simulated).all():
        low, high, *edges = order_statistics(simulated, (least, most, *_trimmed_positions(last)))
        return low, high, _trimmed_std(simulated, *edges)
    known = ~np.isnan(simulated)
    (low,) = order_statistics(np.where(known, simulated, -math.inf), (least,))
    (high,) = order_statistics(np.where(known, simulated, math.inf), (most,))
    finite = np.where(np.isfinite(simulated), simulated, 0.0)
    return low, high, _trimmed_std(finite, *order_statistics(finite, _trimmed_positions(last)))


def order_statistics(values: Floats, positions: Sequence[int]) -> list[Floats]:
    """The values at positions of each sorted row; unlike quantiles of NumPy, also where neighbours are infinite."""
    if values.shape[1] >= LONG_ROW:
        return [np.array(column) for column in zip(*(_tail_statistics(row, positions) for row in values), strict=True)]
    parted = np.partition(values, sorted(set(positions)), axis=1)
    return [np.array(parted[:, position]) for position in positions]


def _tail_statistics(row: Floats, positions: Sequence[int]) -> list[np.float64]:
    """The values at positions of a long sorted row, most of them near its ends: only what lies there is sorted."""
    size, sample = len(row), np.sort(row[::SAMPLED_EVERY])
    lowest, highest = (
        max((p for p in positions if p < size // 2), default=0),
        max((size - 1 - p for p in positions if p >= size // 2), default=0),
    )
    reach = [min(len(sample) - 1, 2 * position // SAMPLED_EVERY + SAMPLED_EVERY) for position in (lowest, highest)]
    low, high = row[row <= sample[reach[0]]], row[row >= sample[len(sample) - 1 - reach[1]]]
    if len(low) <= lowest or len(high) <= highest:
        low = high = row
    low, high = np.sort(low), np.sort(high)
    return [low[p] if p < size // 2 else high[p - size] for p in positions]


def _trimmed_positions(last: int) -> tuple[int, int]:
    """The positions of a row's outermost thousandths, rounded outwards."""
    return math.floor(0.001 * last), math.ceil(0.999 * last)


def _trimmed_std(simulated: Floats, least: Floats, most: Floats) -> Floats:
    """The standard deviation with the outermost thousandths clipped; without that, a ratio's may not exist."""
    with np.errstate(over="ignore", invalid="ignore"):
        std = np.clip(simulated, least[:, None], most[:, None]).std(axis=1)
    return np.where(np.isnan(std), math.inf, std)
