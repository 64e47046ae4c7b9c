"""The exact output distributions of the zoo's members on two inputs, by numerical integration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Pair = tuple[Floats, Floats]

NODES = 8001


def laplace_cdf(x: Any, scale: float) -> Floats:
    """Return P[Laplace(scale) <= x]."""
    x = np.asarray(x, dtype=float)
    result: Floats = np.where(
        x < 0, 0.5 * np.exp(np.minimum(x, 0) / scale), 1 - 0.5 * np.exp(-np.maximum(x, 0) / scale)
    )
    return result


def laplace_density(x: Any, scale: float) -> Floats:
    """Return the density of Laplace(scale) at x."""
    result: Floats = np.exp(-np.abs(np.asarray(x, dtype=float)) / scale) / (2 * scale)
    return result


def exponential_cdf(x: Any, scale: float) -> Floats:
    """Return P[Exponential(scale) <= x]."""
    result: Floats = -np.expm1(-np.maximum(np.asarray(x, dtype=float), 0) / scale)
    return result


def cuts(centre: float, spread: float, count: int = 6000) -> Floats:
    """Return cut points of bins that reach far into both tails, with finer steps near the centre."""
    reach = spread * 40
    near = np.linspace(centre - 6, centre + 6, 481)
    return np.unique(np.concatenate([[-np.inf], centre + np.linspace(-reach, reach, count), near, [np.inf]]))


def additive(cdf: Callable[[Floats], Floats], a: float, b: float, spread: float) -> Pair:
    """Return the masses of bins for a + noise and for b + noise."""
    at = cuts((a + b) / 2, spread)
    first, second = (np.diff(cdf(at - shift)) for shift in (a, b))
    return np.maximum(first, 0), np.maximum(second, 0)


def largest(cdf: Callable[[Floats], Floats], a: Floats, b: Floats, spread: float) -> Pair:
    """Return the masses of bins for the largest entry of a + noise and of b + noise."""
    at = cuts(float(np.mean(np.concatenate([a, b]))), spread, 20_000)
    first, second = (np.diff(np.prod([cdf(at - shift) for shift in side], axis=0)) for side in (a, b))
    return np.maximum(first, 0), np.maximum(second, 0)


def winners(
    cdf: Callable[[Floats], Floats], density: Callable[[Floats], Floats], values: Floats, spread: float
) -> Floats:
    """Return the probability that each entry has the largest noisy value."""
    grid = np.linspace(values.min() - 30 * spread, values.max() + 40 * spread, 60_001)
    terms = np.stack([cdf(grid - value) for value in values])
    chances = []
    for place, value in enumerate(values):
        others = np.prod(np.delete(terms, place, axis=0), axis=0)
        chances.append(float(np.trapezoid(density(grid - value) * others, grid)))
    result = np.array(chances)
    return np.asarray(result / result.sum())


def product(parts: list[Pair], step: float = 1e-4) -> Pair:
    """Combine independent outputs: return the distribution of the sum of their log-likelihood ratios, on both inputs.

    The sum preserves every likelihood ratio, so no event distinguishes the inputs better.
    """
    masses, lowest = np.array([1.0]), 0
    for p, q in parts:
        keep = (p > 1e-9) & (q > 1e-9)
        ratio = np.rint(np.log(p[keep] / q[keep]) / step).astype(int)
        lowest += int(ratio.min())
        masses = np.convolve(masses, np.bincount(ratio - ratio.min(), p[keep]))
    other = masses * np.exp(-(lowest + np.arange(len(masses))) * step)
    return masses / masses.sum(), other / other.sum()


def threshold_noise(scale: float) -> Pair:
    """Return nodes and weights to integrate over the threshold's Laplace noise, with a node at the density's kink."""
    half = np.concatenate([np.linspace(0, 6, 2401), np.linspace(6, 45 * scale, NODES)[1:]])
    nodes = np.concatenate([-half[:0:-1], half])
    weights = laplace_density(nodes, scale) * np.gradient(nodes)
    return nodes, weights / weights.sum()


def first_above(values: Floats, threshold: float, noise: Pair, scale: float) -> Floats:
    """Return the probability that sparse vector stops at each query, the first one above; the last entry is never."""
    nodes, weights = noise
    below = np.stack([laplace_cdf(threshold + nodes - value, scale) for value in values])
    before = np.concatenate([np.ones((1, len(nodes))), np.cumprod(below, axis=0)])
    chances = [float(weights @ (before[place] * (1 - below[place]))) for place in range(len(values))]
    return np.array([*chances, float(weights @ before[-1])])


def patterns(values: Floats, threshold: float, noise: Pair, scale: float) -> Floats:
    """Return the probability of every pattern of answers of a sparse vector that never stops."""
    nodes, weights = noise
    if scale == 0:
        below = np.stack([(value < threshold + nodes).astype(float) for value in values])
    else:
        below = np.stack([laplace_cdf(threshold + nodes - value, scale) for value in values])
    half = len(values) // 2
    early, late = _all_patterns(below[:half]), _all_patterns(below[half:])
    result: Floats = ((early * weights) @ late.T).ravel()
    return result


def _all_patterns(below: Floats) -> Floats:
    """Return the probability of every pattern of these answers, for each node of the threshold's noise."""
    chances = np.ones((1, below.shape[1]))
    for chance in below:
        chances = np.stack([chances * chance, chances * (1 - chance)], axis=1).reshape(-1, below.shape[1])
    return chances


def first_value(values: Floats, threshold: float, noise: Pair, scale: float) -> Floats:
    """Return the masses of bins for a sparse vector that stops at the first query above and shows its noisy value.

    The noisy value is the one that was compared with the threshold. The last mass is that of never stopping.
    """
    nodes, weights = noise
    below = np.stack([laplace_cdf(threshold + nodes - value, scale) for value in values])
    before = np.concatenate([np.ones((1, len(nodes))), np.cumprod(below, axis=0)])
    at = np.linspace(-12 * scale, 12 * scale, 4801)
    masses = []
    for place, value in enumerate(values):
        reached = np.interp(at[:-1] + np.diff(at) / 2 - threshold, nodes, np.cumsum(weights * before[place]))
        masses.append(reached * np.diff(laplace_cdf(at - value, scale)))
    masses.append(np.array([float(weights @ before[-1])]))
    return np.concatenate(masses)
