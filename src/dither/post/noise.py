"""Distributions of the noise in an answer: exact on one lattice, closed-form or by Fourier transform for sums."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dither.errors import Unsupported
from dither.privacy.mechanisms import DiscreteGaussian, DiscreteLaplace, Mechanism


def noise_of(mechanism: Mechanism, step: Fraction) -> ScaledNoise:
    """Return the distribution of the noise that a mechanism adds, in the unit of the measured quantity."""
    match mechanism:
        case DiscreteLaplace(scale):
            return ScaledNoise("laplace", float(scale), float(step))
        case DiscreteGaussian(variance):
            return ScaledNoise("gaussian", math.sqrt(variance), float(step))
        case _:
            raise Unsupported(f"{mechanism.name} does not add noise of one distribution to every cell")


Floats = NDArray[np.float64]
NoiseKind = Literal["laplace", "gaussian"]

FOURIER_POINTS = 1 << 14
# Noise of more steps than this is treated as continuous.
WIDE_NOISE = 2_000.0
NEGLIGIBLE = 1e-9


@dataclass(frozen=True)
class ScaledNoise:
    """Integer noise times `step`: discrete Laplace of scale `spread`, or discrete Gaussian of variance `spread`^2."""

    kind: NoiseKind
    spread: float
    step: float = 1.0

    @property
    def variance(self) -> float:
        """The variance, in the column's own unit."""
        return self.step**2 * _variance(self.kind, self.spread)

    @property
    def std(self) -> float:
        """The standard deviation, in the column's own unit."""
        return math.sqrt(self.variance)

    def times(self, factor: float) -> ScaledNoise:
        """Return the distribution of `factor` times this noise; its sign does not matter, as the noise is symmetric."""
        return ScaledNoise(self.kind, self.spread, self.step * abs(factor))

    def characteristic_function(self, frequency: Floats) -> Floats:
        """The characteristic function, real because the noise is symmetric."""
        angle = frequency * self.step
        return (
            _laplace_characteristic(self.spread, angle)
            if self.kind == "laplace"
            else _gaussian_characteristic(self.spread, angle)
        )

    def quantile(self, level: Floats) -> Floats:
        """Return the quantiles at `level`; they simulate intervals, and are never used to protect data."""
        if _variance(self.kind, self.spread) < NEGLIGIBLE:
            return np.zeros_like(level)
        return self.step * (
            _laplace_quantile(self.spread, level) if self.kind == "laplace" else _gaussian_quantile(self.spread, level)
        )


def _variance(kind: NoiseKind, spread: float) -> float:
    if spread <= 0 or (kind == "laplace" and 1 / spread > 500):
        return 0.0
    if kind == "laplace":
        return 0.5 / math.sinh(0.5 / spread) ** 2
    if spread > 6:
        return spread**2
    weights, points = _gaussian_table(spread)
    return float((weights * points**2).sum())


def _laplace_characteristic(spread: float, angle: Floats) -> Floats:
    if spread <= 0 or 1 / spread > 500:
        return np.ones_like(angle)
    ratio = math.exp(-1 / spread)
    return np.asarray((1 - ratio) ** 2 / ((1 - ratio) ** 2 + 4 * ratio * np.sin(angle / 2) ** 2))


def _gaussian_characteristic(spread: float, angle: Floats) -> Floats:
    folded = angle - 2 * math.pi * np.round(angle / (2 * math.pi))
    if spread > 3:
        return np.asarray(np.exp(-0.5 * (spread * folded) ** 2))
    weights, points = _gaussian_table(spread)
    return np.asarray(
        (weights[:, None] * np.cos(points[:, None] * folded.ravel()[None, :])).sum(0).reshape(folded.shape)
    )


@lru_cache(maxsize=256)
def _gaussian_table(spread: float) -> tuple[Floats, Floats]:
    """The probabilities of discrete Gaussian noise, and its values."""
    reach = max(2, math.ceil(40 * spread))
    points = np.arange(-reach, reach + 1, dtype=float)
    weights = np.exp(-0.5 * (points / max(spread, 1e-9)) ** 2)
    return weights / weights.sum(), points


def _laplace_quantile(spread: float, level: Floats) -> Floats:
    # P(K >= k) = r^k / (1 + r) for k >= 1, with r = exp(-1 / scale), and K is symmetric.
    tail = np.minimum(level, 1 - level)
    size = np.floor(-spread * (np.log(np.maximum(tail, 1e-300)) + math.log1p(math.exp(-1 / spread))))
    return np.asarray(np.sign(level - 0.5) * np.maximum(size, 0.0))


def _gaussian_quantile(spread: float, level: Floats) -> Floats:
    if spread > 6:
        return np.asarray(np.rint(math.sqrt(spread**2 - 1 / 12) * special.ndtri(level)))
    weights, points = _gaussian_table(spread)
    return np.asarray(points[np.searchsorted(np.cumsum(weights)[:-1], level, side="right")])


def interval_half_width(noises: Sequence[ScaledNoise], confidence: float) -> float:
    """Return t such that |sum of independent noises| <= t with probability at least `confidence`.

    It is the least such t for a single noise and on one lattice, and hardly larger otherwise.

    >>> interval_half_width([ScaledNoise("laplace", 1.0)], 0.95)
    3.0
    """
    noisy = tuple(noise for noise in noises if noise.variance > NEGLIGIBLE * noise.step**2)
    return _half_width(noisy, confidence) if noisy else 0.0


@lru_cache(maxsize=4096)
def _half_width(noises: tuple[ScaledNoise, ...], confidence: float) -> float:
    if len(noises) == 1:
        return noises[0].step * _lattice_half_width(noises[0], confidence)
    steps = {round(noise.step, 12) for noise in noises}
    total = math.sqrt(sum(noise.variance for noise in noises))
    if len(steps) == 1 and total < WIDE_NOISE * noises[0].step:
        return _shared_lattice_half_width(noises, confidence)
    if all(noise.kind == "gaussian" for noise in noises):
        return float(total * _normal_quantile(confidence)) + _discretization_error(noises)
    return _continuous_half_width(noises, confidence) + _discretization_error(noises)


def _normal_quantile(confidence: float) -> float:
    return float(special.ndtri(0.5 + confidence / 2))


def _discretization_error(noises: Sequence[ScaledNoise]) -> float:
    """Half a step of the coarsest lattice: the error of treating discrete noise as continuous."""
    return 0.5 * max(noise.step for noise in noises)


def _lattice_half_width(noise: ScaledNoise, confidence: float) -> float:
    """The least half width of a single noise, in steps."""
    if noise.kind == "laplace":
        # P(|K| > t) = 2 r^(t+1) / (1 + r) with r = exp(-1 / scale).
        ratio = math.exp(-1 / noise.spread)
        return float(max(0, math.ceil(-noise.spread * math.log((1 - confidence) * (1 + ratio) / 2) - 1 - 1e-9)))
    if noise.spread > WIDE_NOISE:
        return float(math.ceil(noise.spread * _normal_quantile(confidence)))
    weights, points = _gaussian_table(noise.spread)
    middle = len(points) // 2
    inside = weights[middle] + 2 * np.concatenate([[0.0], np.cumsum(weights[middle + 1 :])])
    return float(np.searchsorted(inside, confidence - 1e-12))


def _shared_lattice_half_width(noises: Sequence[ScaledNoise], confidence: float) -> float:
    """The least half width of a sum of noises with one step, from the inverse Fourier transform."""
    frequency = np.asarray(2 * math.pi * np.fft.rfftfreq(1 << 17), np.float64)
    characteristic = np.prod(
        [ScaledNoise(noise.kind, noise.spread).characteristic_function(frequency) for noise in noises], axis=0
    )
    mass = np.fft.irfft(characteristic)
    inside = mass[0] + 2 * np.concatenate([[0.0], np.cumsum(mass[1 : len(mass) // 2])])
    return float(noises[0].step * np.searchsorted(inside, confidence - 1e-12))


def _continuous_half_width(noises: Sequence[ScaledNoise], confidence: float) -> float:
    """The half width of a sum of continuous noises with the same variances, from the inverse Fourier transform."""
    spread = math.sqrt(sum(noise.variance for noise in noises))
    spacing = spread / 200
    frequency = np.asarray(2 * math.pi * np.fft.rfftfreq(FOURIER_POINTS, spacing), np.float64)
    characteristic = np.prod([_continuous_characteristic(noise, frequency) for noise in noises], axis=0)
    mass = np.fft.irfft(characteristic)
    inside = mass[0] + 2 * np.concatenate([[0.0], np.cumsum(mass[1 : FOURIER_POINTS // 2])])
    edges = (np.arange(len(inside)) + 0.5) * spacing
    return float(np.interp(confidence, inside, edges))


def _continuous_characteristic(noise: ScaledNoise, frequency: Floats) -> Floats:
    if noise.kind == "laplace":
        return np.asarray(1 / (1 + 0.5 * noise.variance * frequency**2))
    return np.asarray(np.exp(-0.5 * noise.variance * frequency**2))


@lru_cache(maxsize=64)
def _pair_table(confidence: float) -> tuple[Floats, Floats]:
    """Shares from 0 to 1, and `_pair_quantile` at each, to interpolate between."""
    shares = np.concatenate([[0.0], np.geomspace(1e-4, 1.0, 160)])
    return shares, np.array([_pair_quantile(share, confidence) for share in shares])


def _pair_quantile(share: float, confidence: float) -> float:
    """The quantile of |L1 + share * L2| for unit Laplace noise, by bisection of its closed-form tail."""
    low, high = 0.0, 60.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _pair_tail(middle, share) > 1 - confidence else (low, middle)
    return high


def _pair_tail(point: float, share: float) -> float:
    """The probability that |L1 + share * L2| exceeds a point."""
    if share < 1e-6:
        return math.exp(-point)
    if abs(1 - share) < 1e-4:
        return (1 + point / 2) * math.exp(-point)
    return (math.exp(-point) - share**2 * math.exp(-point / share)) / (1 - share**2)


def pair_half_width(first: ScaledNoise, second: ScaledNoise, weight: Floats, confidence: float) -> Floats:
    """Return, for each w in `weight`, a t with |first + w * second| <= t with probability `confidence`.

    Fieller's interval of a ratio inverts this.
    """
    discretization_error = 0.5 * np.maximum(first.step, np.abs(weight) * second.step)
    both_negligible = (first.variance < NEGLIGIBLE * first.step**2) & (second.variance < NEGLIGIBLE * second.step**2)
    if both_negligible:
        return np.zeros_like(weight)
    if first.kind == second.kind == "laplace":
        one, two = first.std / math.sqrt(2), np.abs(weight) * second.std / math.sqrt(2)
        most, least = np.maximum(one, two), np.minimum(one, two)
        shares, widths = _pair_table(confidence)
        return np.asarray(most * np.interp(least / np.maximum(most, 1e-300), shares, widths) + discretization_error)
    total = np.sqrt(first.variance + weight**2 * second.variance)
    return np.asarray(total * _normal_quantile(confidence) + discretization_error)
