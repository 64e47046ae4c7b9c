"""Medians, quantiles, minima and maxima read off a noisy histogram over the declared range."""

from __future__ import annotations

import math

import numpy as np
from scipy import special

from dither.post.estimate.intervals import Banded
from dither.post.noise import Floats, ScaledNoise
from dither.post.query.bins import FEW, Bins, Wanted


def quantile(counts: Floats, law: ScaledNoise, grid: Bins, wanted: Wanted, confidence: float) -> Banded:
    """For each row of noisy counts, the value at a level, and the bins that the noise leaves possible."""
    if wanted == "min":
        return _lowest(counts, law, grid, confidence)
    if wanted == "max":
        turned = Bins(-grid.high[::-1], -grid.low[::-1], ())
        found = _lowest(counts[:, ::-1], law, turned, confidence)
        return Banded(-found.values, -found.high, -found.low, confidence)
    return _level(counts, law, grid, float(wanted), confidence)


def reach(terms: np.ndarray, law: ScaledNoise, confidence: float) -> Floats:
    """How many standard deviations a sum of so many noises stays within, `confidence` often.

    Normal for Gaussian noise. Laplace noise has heavier tails: its own for few terms, and for many the normal's with
    the first term of Cornish and Fisher for a kurtosis of 3 / terms.
    """
    normal = float(special.ndtri((1 + confidence) / 2))
    if law.kind == "gaussian":
        return np.full(terms.shape, 1.01 * normal)
    many = normal + max(0.0, normal**3 - 3 * normal) / (8 * np.maximum(terms, FEW))
    return np.where(terms < FEW, max(normal, -math.log1p(-confidence) / math.sqrt(2)), np.maximum(many, 1.01 * normal))


def _level(counts: Floats, law: ScaledNoise, grid: Bins, level: float, confidence: float) -> Banded:
    size = counts.shape[1]
    through = np.cumsum(counts, axis=1)
    excess = through - level * through[:, -1:]
    below = np.arange(1, size + 1)
    terms = (1 - level) ** 2 * below + level**2 * (size - below)
    width = law.std * np.sqrt(terms) * reach(np.minimum(below, size - below) + 1, law, confidence)
    tiny = 1e-9 * (1 + np.abs(through[:, -1:]))
    possible = excess + width >= -tiny
    before = np.concatenate([np.zeros((len(counts), 1)), excess[:, :-1]], axis=1)
    wide = np.concatenate([[0.0], width[:-1]])
    possible &= (before - wide <= tiny) | (np.arange(size) == 0)
    low, high = _hull(possible)
    rising = np.argmax(excess >= -tiny, axis=1)
    falling = size - 1 - np.argmax((excess < -tiny)[:, ::-1], axis=1) + 1
    falling = np.where((excess < -tiny).any(axis=1), np.minimum(falling, size - 1), 0)
    value = (_within(counts, excess, grid, rising) + _within(counts, excess, grid, falling)) / 2
    return Banded(np.clip(value, grid.low[low], grid.high[high]), grid.low[low], grid.high[high], confidence)


def _within(counts: Floats, excess: Floats, grid: Bins, place: np.ndarray) -> Floats:
    """The point inside a bin where the level is crossed, as if its values were spread evenly."""
    rows = np.arange(len(counts))
    held = np.maximum(counts[rows, place], 1e-9)
    share = np.clip(1 - excess[rows, place] / held, 0.0, 1.0)
    return np.asarray(grid.low[place] + share * (grid.high[place] - grid.low[place]))


def _hull(possible: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first and last possible bin; everything where none is."""
    size = possible.shape[1]
    some = possible.any(axis=1)
    first = np.where(some, np.argmax(possible, axis=1), 0)
    last = np.where(some, size - 1 - np.argmax(possible[:, ::-1], axis=1), size - 1)
    return first, last


def _lowest(counts: Floats, law: ScaledNoise, grid: Bins, confidence: float) -> Banded:
    """The smallest value: one person can be it, so below the first bin that is surely reached nothing is excluded."""
    size = counts.shape[1]
    through = np.cumsum(counts, axis=1)
    terms = np.arange(1, size + 1)
    width = law.std * np.sqrt(terms) * reach(terms, law, confidence)
    low = _first(through + width >= 1 - 1e-9)
    high = _first(through - width >= 1 - 1e-9)
    value = _first(through - 1.4 * law.std * np.sqrt(terms) >= 0.5)
    place = np.clip(value, low, high)
    return Banded(grid.low[place], grid.low[low], grid.high[high], confidence)


def _first(reached: np.ndarray) -> np.ndarray:
    size = reached.shape[1]
    return np.asarray(np.where(reached.any(axis=1), np.argmax(reached, axis=1), size - 1))
