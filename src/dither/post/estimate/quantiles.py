"""Estimate medians, quantiles, minima and maxima from a noisy histogram over the declared range."""

from __future__ import annotations

import math

import numpy as np
from scipy import special

from dither.post.estimate.intervals import Banded
from dither.post.noise import Floats, ScaledNoise
from dither.post.query.bins import Bins, QuantileLevel

# Sums of fewer Laplace noises than this have heavier tails than a normal approximation allows.
FEW_TERMS = 10
# The chance that noise alone decides a minimum or maximum. A smaller one misses more of the outermost rows.
LIKELY_CHANCE = 0.1


def estimate_quantile(
    counts: Floats, noise: ScaledNoise, bins: Bins, level: QuantileLevel, confidence: float
) -> Banded:
    """Estimate a quantile from each row of noisy counts, with the range of bins that the noise leaves possible."""
    if level == "min":
        return _estimate_minimum(counts, noise, bins, confidence)
    if level == "max":
        negated = Bins(-bins.high[::-1], -bins.low[::-1], ())
        minimum = _estimate_minimum(counts[:, ::-1], noise, negated, confidence)
        return Banded(-minimum.values, -minimum.high, -minimum.low, confidence)
    return _estimate_level(counts, noise, bins, float(level), confidence)


def interval_factor(terms: np.ndarray, noise: ScaledNoise, confidence: float) -> Floats:
    """Return how many standard deviations a sum of `terms` noises stays within, with probability `confidence`.

    For Gaussian noise this is the normal quantile. A sum of Laplace noises has heavier tails: for few terms it is
    Laplace's own quantile, for many the normal one with the first Cornish-Fisher term for a kurtosis of 3 / terms.
    """
    normal = float(special.ndtri((1 + confidence) / 2))
    if noise.kind == "gaussian":
        return np.full(terms.shape, 1.01 * normal)
    normal_factor = normal + max(0.0, normal**3 - 3 * normal) / (8 * np.maximum(terms, FEW_TERMS))
    return np.where(
        terms < FEW_TERMS,
        max(normal, -math.log1p(-confidence) / math.sqrt(2)),
        np.maximum(normal_factor, 1.01 * normal),
    )


def _estimate_level(counts: Floats, noise: ScaledNoise, bins: Bins, level: float, confidence: float) -> Banded:
    """Estimate a quantile: the middle of the first and the last point where noisy cumulative counts cross the level."""
    size = counts.shape[1]
    cumulative = np.cumsum(counts, axis=1)
    excess = cumulative - level * cumulative[:, -1:]
    bins_below = np.arange(1, size + 1)
    terms = (1 - level) ** 2 * bins_below + level**2 * (size - bins_below)
    width = (
        noise.std * np.sqrt(terms) * interval_factor(np.minimum(bins_below, size - bins_below) + 1, noise, confidence)
    )
    tolerance = 1e-9 * (1 + np.abs(cumulative[:, -1:]))
    low, high = _first_and_last(_possible_bins(excess, width, tolerance))
    first_crossing = np.argmax(excess >= -tolerance, axis=1)
    last_crossing = size - np.argmax((excess < -tolerance)[:, ::-1], axis=1)
    last_crossing = np.where((excess < -tolerance).any(axis=1), np.minimum(last_crossing, size - 1), 0)
    value = (_interpolate(counts, excess, bins, first_crossing) + _interpolate(counts, excess, bins, last_crossing)) / 2
    return Banded(np.clip(value, bins.low[low], bins.high[high]), bins.low[low], bins.high[high], confidence)


def _possible_bins(excess: Floats, width: Floats, tolerance: Floats) -> np.ndarray:
    """Mark the bins of each row in which the level may be crossed: not reached before the bin, but reached after it."""
    excess_before = np.concatenate([np.zeros((len(excess), 1)), excess[:, :-1]], axis=1)
    width_before = np.concatenate([[0.0], width[:-1]])
    not_before = (excess_before - width_before <= tolerance) | (np.arange(excess.shape[1]) == 0)
    return np.asarray((excess + width >= -tolerance) & not_before)


def _interpolate(counts: Floats, excess: Floats, bins: Bins, bin_index: np.ndarray) -> Floats:
    """The point inside a bin where the level is crossed, if the bin's values are spread evenly."""
    rows = np.arange(len(counts))
    count = np.maximum(counts[rows, bin_index], 1e-9)
    share = np.clip(1 - excess[rows, bin_index] / count, 0.0, 1.0)
    return np.asarray(bins.low[bin_index] + share * (bins.high[bin_index] - bins.low[bin_index]))


def _first_and_last(possible: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The indexes of the first and the last possible bin of each row; of all bins if none is possible."""
    size = possible.shape[1]
    some = possible.any(axis=1)
    first = np.where(some, np.argmax(possible, axis=1), 0)
    last = np.where(some, size - 1 - np.argmax(possible[:, ::-1], axis=1), size - 1)
    return first, last


def _estimate_minimum(counts: Floats, noise: ScaledNoise, bins: Bins, confidence: float) -> Banded:
    """Estimate the smallest value; a single row decides it, so the band ends at the first bin that surely has rows."""
    terms = np.arange(1, counts.shape[1] + 1)
    width = noise.std * np.sqrt(terms) * interval_factor(terms, noise, confidence)
    low = _first_true(np.cumsum(counts, axis=1) + width >= 1 - 1e-9)
    high = _first_seen(counts, noise, (1 - confidence) / 2)
    likely = np.clip(_first_seen(counts, noise, LIKELY_CHANCE), low, high)
    return Banded(bins.low[likely], bins.low[low], bins.high[high], confidence)


def _first_seen(counts: Floats, noise: ScaledNoise, chance: float) -> np.ndarray:
    """Return the first bin that noise does not explain, with some of the bins before it; the last if it explains all.

    Noise alone lifts any of a row's windows of bins, of 1, 2, 4, ... bins each, above its level with at most `chance`.
    """
    size = counts.shape[1]
    lengths = [1 << place for place in range(size.bit_length())]
    cumulative = np.concatenate([np.zeros((len(counts), 1)), np.cumsum(counts, axis=1)], axis=1)
    seen = np.zeros(counts.shape, bool)
    for length in lengths:
        level = highest_sum(length, noise, chance / (size * len(lengths)))
        seen[:, length - 1 :] |= cumulative[:, length:] - cumulative[:, :-length] > level + 1e-9
    return _first_true(seen)


def highest_sum(terms: int, noise: ScaledNoise, chance: float) -> float:
    """Return what the sum of some noises exceeds with at most `chance`: for Laplace noise, by its Chernoff bound.

    >>> round(highest_sum(1, ScaledNoise("gaussian", 1.0), 0.025), 2)
    1.96
    """
    if noise.kind == "gaussian":
        return float(1.01 * noise.std * math.sqrt(terms) * special.ndtri(1 - chance))
    if terms == 1:
        return -noise.spread * noise.step * math.log(2 * chance)
    rates = np.linspace(0.01, 0.999, 400)
    return float(noise.spread * noise.step * ((-terms * np.log1p(-(rates**2)) - math.log(chance)) / rates).min())


def _first_true(condition: np.ndarray) -> np.ndarray:
    """The index of the first True of each row, or of its last element if there is none."""
    size = condition.shape[1]
    return np.asarray(np.where(condition.any(axis=1), np.argmax(condition, axis=1), size - 1))
