"""The laws of the noise in an answer: exact on one lattice, closed or by Fourier for sums of several."""

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
    """The law of the noise that a mechanism adds, in the quantity's own unit."""
    match mechanism:
        case DiscreteLaplace(scale):
            return ScaledNoise("laplace", float(scale), float(step))
        case DiscreteGaussian(variance):
            return ScaledNoise("gaussian", math.sqrt(variance), float(step))
        case _:
            raise Unsupported(f"{mechanism.name} does not add noise of one law to every cell")


Floats = NDArray[np.float64]
Kind = Literal["laplace", "gaussian"]

GRID = 1 << 14
WIDE = 2_000.0
SETTLED = 1e-9


@dataclass(frozen=True)
class ScaledNoise:
    """Integer noise times `step`: discrete Laplace of scale `spread`, or discrete Gaussian of variance `spread`^2."""

    kind: Kind
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

    def scaled(self, factor: float) -> ScaledNoise:
        """The law of `factor` times this noise; both laws are symmetric."""
        return ScaledNoise(self.kind, self.spread, self.step * abs(factor))

    def characteristic_function(self, frequency: Floats) -> Floats:
        """The characteristic function, real because the noise is symmetric."""
        angle = frequency * self.step
        return _laplace_wave(self.spread, angle) if self.kind == "laplace" else _gaussian_wave(self.spread, angle)

    def quantile(self, level: Floats) -> Floats:
        """The quantiles at `level`, for simulated estimates; nothing here protects anything."""
        if _variance(self.kind, self.spread) < SETTLED:
            return np.zeros_like(level)
        return self.step * (
            _laplace_at(self.spread, level) if self.kind == "laplace" else _gaussian_at(self.spread, level)
        )


def _variance(kind: Kind, spread: float) -> float:
    if spread <= 0 or (kind == "laplace" and 1 / spread > 500):
        return 0.0
    if kind == "laplace":
        return 0.5 / math.sinh(0.5 / spread) ** 2
    if spread > 6:
        return spread**2
    weights, points = _gaussian_table(spread)
    return float((weights * points**2).sum())


def _laplace_wave(spread: float, angle: Floats) -> Floats:
    if spread <= 0 or 1 / spread > 500:
        return np.ones_like(angle)
    ratio = math.exp(-1 / spread)
    return np.asarray((1 - ratio) ** 2 / ((1 - ratio) ** 2 + 4 * ratio * np.sin(angle / 2) ** 2))


def _gaussian_wave(spread: float, angle: Floats) -> Floats:
    folded = angle - 2 * math.pi * np.round(angle / (2 * math.pi))
    if spread > 3:
        return np.asarray(np.exp(-0.5 * (spread * folded) ** 2))
    weights, points = _gaussian_table(spread)
    return np.asarray(
        (weights[:, None] * np.cos(points[:, None] * folded.ravel()[None, :])).sum(0).reshape(folded.shape)
    )


@lru_cache(maxsize=256)
def _gaussian_table(spread: float) -> tuple[Floats, Floats]:
    reach = max(2, math.ceil(40 * spread))
    points = np.arange(-reach, reach + 1, dtype=float)
    weights = np.exp(-0.5 * (points / max(spread, 1e-9)) ** 2)
    return weights / weights.sum(), points


def _laplace_at(spread: float, level: Floats) -> Floats:
    # P(K >= k) = r^k / (1 + r) for k >= 1, with r = exp(-1 / scale); the law is symmetric.
    tail = np.minimum(level, 1 - level)
    size = np.floor(-spread * (np.log(np.maximum(tail, 1e-300)) + math.log1p(math.exp(-1 / spread))))
    return np.asarray(np.sign(level - 0.5) * np.maximum(size, 0.0))


def _gaussian_at(spread: float, level: Floats) -> Floats:
    if spread > 6:
        return np.asarray(np.rint(math.sqrt(spread**2 - 1 / 12) * special.ndtri(level)))
    weights, points = _gaussian_table(spread)
    return np.asarray(points[np.searchsorted(np.cumsum(weights)[:-1], level, side="right")])


def interval_half_width(laws: Sequence[ScaledNoise], confidence: float) -> float:
    """The least (or, off one lattice, a hardly larger) t for which |sum of independent noise| <= t that often.

    >>> half_width([Law("laplace", 1.0)], 0.95)
    3.0
    """
    live = tuple(law for law in laws if law.variance > SETTLED * law.step**2)
    return _half_width(live, confidence) if live else 0.0


@lru_cache(maxsize=4096)
def _half_width(laws: tuple[ScaledNoise, ...], confidence: float) -> float:
    if len(laws) == 1:
        return laws[0].step * _lattice_half_width(laws[0], confidence)
    steps = {round(law.step, 12) for law in laws}
    total = math.sqrt(sum(law.variance for law in laws))
    if len(steps) == 1 and total < WIDE * laws[0].step:
        return _shared_lattice_half_width(laws, confidence)
    if all(law.kind == "gaussian" for law in laws):
        return float(total * _normal(confidence)) + _roughness(laws)
    return _smooth_half_width(laws, confidence) + _roughness(laws)


def _normal(confidence: float) -> float:
    return float(special.ndtri(0.5 + confidence / 2))


def _roughness(laws: Sequence[ScaledNoise]) -> float:
    """Half a step of the coarsest lattice: what a continuous law may miss of a discrete one."""
    return 0.5 * max(law.step for law in laws)


def _lattice_half_width(law: ScaledNoise, confidence: float) -> float:
    if law.kind == "laplace":
        # P(|K| > t) = 2 r^(t+1) / (1 + r) with r = exp(-1 / scale).
        ratio = math.exp(-1 / law.spread)
        return float(max(0, math.ceil(-law.spread * math.log((1 - confidence) * (1 + ratio) / 2) - 1 - 1e-9)))
    if law.spread > WIDE:
        return float(math.ceil(law.spread * _normal(confidence)))
    weights, points = _gaussian_table(law.spread)
    middle = len(points) // 2
    inside = weights[middle] + 2 * np.concatenate([[0.0], np.cumsum(weights[middle + 1 :])])
    return float(np.searchsorted(inside, confidence - 1e-12))


def _shared_lattice_half_width(laws: Sequence[ScaledNoise], confidence: float) -> float:
    frequency = np.asarray(2 * math.pi * np.fft.rfftfreq(1 << 17), np.float64)
    wave = np.prod([ScaledNoise(law.kind, law.spread).characteristic_function(frequency) for law in laws], axis=0)
    mass = np.fft.irfft(wave)
    inside = mass[0] + 2 * np.concatenate([[0.0], np.cumsum(mass[1 : len(mass) // 2])])
    return float(laws[0].step * np.searchsorted(inside, confidence - 1e-12))


def _smooth_half_width(laws: Sequence[ScaledNoise], confidence: float) -> float:
    spread = math.sqrt(sum(law.variance for law in laws))
    spacing = spread / 200
    frequency = np.asarray(2 * math.pi * np.fft.rfftfreq(GRID, spacing), np.float64)
    wave = np.prod([_smooth_wave(law, frequency) for law in laws], axis=0)
    mass = np.fft.irfft(wave)
    inside = mass[0] + 2 * np.concatenate([[0.0], np.cumsum(mass[1 : GRID // 2])])
    edges = (np.arange(len(inside)) + 0.5) * spacing
    return float(np.interp(confidence, inside, edges))


def _smooth_wave(law: ScaledNoise, frequency: Floats) -> Floats:
    if law.kind == "laplace":
        return np.asarray(1 / (1 + 0.5 * law.variance * frequency**2))
    return np.asarray(np.exp(-0.5 * law.variance * frequency**2))


@lru_cache(maxsize=64)
def _pair_table(confidence: float) -> tuple[Floats, Floats]:
    shares = np.concatenate([[0.0], np.geomspace(1e-4, 1.0, 160)])
    return shares, np.array([_pair_quantile(share, confidence) for share in shares])


def _pair_quantile(share: float, confidence: float) -> float:
    """The quantile of |L1 + share * L2| for unit Laplace noise, by bisection of its closed tail."""
    low, high = 0.0, 60.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _pair_tail(middle, share) > 1 - confidence else (low, middle)
    return high


def _pair_tail(point: float, share: float) -> float:
    if share < 1e-6:
        return math.exp(-point)
    if abs(1 - share) < 1e-4:
        return (1 + point / 2) * math.exp(-point)
    return (math.exp(-point) - share**2 * math.exp(-point / share)) / (1 - share**2)


def pair_half_width(first: ScaledNoise, second: ScaledNoise, weight: Floats, confidence: float) -> Floats:
    """For each w in `weight`, a t with |first + w second| <= t that often: what Fieller's interval inverts."""
    rough = 0.5 * np.maximum(first.step, np.abs(weight) * second.step)
    quiet = (first.variance < SETTLED * first.step**2) & (second.variance < SETTLED * second.step**2)
    if quiet:
        return np.zeros_like(weight)
    if first.kind == second.kind == "laplace":
        one, two = first.std / math.sqrt(2), np.abs(weight) * second.std / math.sqrt(2)
        most, least = np.maximum(one, two), np.minimum(one, two)
        shares, widths = _pair_table(confidence)
        return np.asarray(most * np.interp(least / np.maximum(most, 1e-300), shares, widths) + rough)
    total = np.sqrt(first.variance + weight**2 * second.variance)
    return np.asarray(total * _normal(confidence) + rough)
