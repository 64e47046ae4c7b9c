"""Public distributions of the noise in one cell, in floats: for estimates and intervals, never used to draw."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.integer[Any]]

WIDE = 8.0  # above this standard deviation a Gaussian sum over the integers equals its integral in doubles


class NoiseDistribution(ABC):
    """A symmetric probability distribution on the integers."""

    @property
    @abstractmethod
    def std(self) -> float:
        """The standard deviation."""

    @abstractmethod
    def log_mass(self, points: Integers) -> Floats:
        """Return the logarithm of the probability of each point."""

    def mass(self, points: Integers) -> Floats:
        """Return the probability of each point."""
        return np.asarray(np.exp(self.log_mass(points)))


@dataclass(frozen=True)
class DiscreteLaplaceDistribution(NoiseDistribution):
    """Probability proportional to exp(-|k| / scale)."""

    scale: Fraction

    @property
    def std(self) -> float:
        rate = 1 / float(self.scale)
        return math.sqrt(2) * math.exp(-rate / 2) / -math.expm1(-rate)

    def log_mass(self, points: Integers) -> Floats:
        rate = 1 / float(self.scale)
        return np.asarray(math.log(math.tanh(rate / 2)) - np.abs(points) * rate)


@dataclass(frozen=True)
class DiscreteGaussianDistribution(NoiseDistribution):
    """Probability proportional to exp(-k^2 / (2 variance))."""

    variance: Fraction

    @property
    def std(self) -> float:
        spread = math.sqrt(self.variance)
        if spread > WIDE:
            return spread
        points = np.arange(-math.ceil(40 * spread) - 2, math.ceil(40 * spread) + 3)
        return math.sqrt(float((self.mass(points) * points**2).sum()))

    def log_mass(self, points: Integers) -> Floats:
        return np.asarray(-(np.asarray(points, float) ** 2) / (2 * float(self.variance)) - self._log_total())

    def _log_total(self) -> float:
        spread = math.sqrt(self.variance)
        if spread > WIDE:
            return math.log(spread) + math.log(2 * math.pi) / 2
        points = np.arange(1, math.ceil(40 * spread) + 3, dtype=float)
        return math.log1p(2 * float(np.exp(-(points**2) / (2 * float(self.variance))).sum()))


@dataclass(frozen=True)
class StaircaseDistribution(NoiseDistribution):
    """Probability proportional to exp(-epsilon * ceil((|k| + 1 - rise) / width))."""

    epsilon: Fraction
    width: int
    rise: int

    @property
    def std(self) -> float:
        ratio, w, r = math.exp(-float(self.epsilon)), float(self.width), float(self.rise)
        steps, steps_squared = ratio / (1 - ratio), ratio * (1 + ratio) / (1 - ratio) ** 2
        start = r + (w - 1) / 2
        outside = w**2 * steps_squared + 2 * w * steps * start + start**2 + (w**2 - 1) / 12
        middle = r * (r - 1) / 3
        inside = math.exp(-self._log_total()) * (2 * r - 1)
        return math.sqrt(inside * middle + (1 - inside) * outside)

    def log_mass(self, points: Integers) -> Floats:
        steps = -((self.rise - 1 - np.abs(points)) // self.width)
        return np.asarray(-float(self.epsilon) * steps - self._log_total())

    def _log_total(self) -> float:
        ratio = math.exp(-float(self.epsilon))
        return math.log(2 * self.rise - 1 + 2 * self.width * ratio / (1 - ratio))
