"""The base class of mechanisms, and the public limits that all of them share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import fields
from fractions import Fraction
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dither.errors import InvalidParameter, Unsupported
from dither.loss import ZCDP, Loss, Sensitivity, rational
from dither.privacy.accounting.conversion import as_zcdp
from dither.privacy.bits import Bits
from dither.privacy.mechanisms.distributions import NoiseDistribution
from dither.privacy.noise import LARGEST_SCALE, SMALLEST_SCALE

Vector = NDArray[np.int64]

# No mechanism adds noise of a larger scale, so none costs less than FLOOR for each lattice step of sensitivity.
FLOOR = 1 / LARGEST_SCALE
HALF_INT64 = (1 << 62) - 1  # two integers up to this size add up within 64 bits


class Mechanism(ABC):
    """Releases a vector of exact integers with noise, and states the privacy loss of doing so."""

    name: ClassVar[str]
    proof: ClassVar[str]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for required in ("name", "proof", "loss", "release"):
            if required not in cls.__dict__:
                raise TypeError(
                    f"{cls.__name__} must define its own {required}; see 'add a mechanism' in docs/design.md"
                )
        if not cls.proof.endswith(".md"):
            raise TypeError(f"{cls.__name__} must name its proof: proof = '<file>.md'")

    @abstractmethod
    def loss(self, sensitivity: Sensitivity) -> Loss:
        """Return an upper bound of the loss for any two inputs at most `sensitivity` apart."""

    @abstractmethod
    def release(self, exact: Vector, bits: Bits) -> Vector:
        """Return one draw. Only the kernel calls this, after it has charged the loss."""

    def check_length(self, size: int) -> None:
        """Refuse, before any charge, a vector length that `release` cannot take."""

    def work(self, size: int) -> int:
        """Return how many cells' worth of noise a release of this length draws, for the schedule of answers."""
        return size

    def zcdp_loss(self, sensitivity: Sensitivity) -> ZCDP:
        """Return the loss for zCDP budgets: the one that `loss` implies, or a smaller bound that the proof gives."""
        return as_zcdp(self.loss(sensitivity))

    @property
    def noise_distribution(self) -> NoiseDistribution:
        """The distribution of the noise in each cell, in floats, for estimates and intervals only."""
        raise Unsupported(f"{self.name} does not add the same noise to every cell")

    def std(self) -> float:
        """Return the standard deviation of the noise in each cell, in lattice steps."""
        return self.noise_distribution.std

    def describe(self) -> dict[str, object]:
        """Describe the mechanism for the release: its name, parameters (rationals as text) and proof."""
        settings = {field.name: _as_json(getattr(self, field.name)) for field in fields(self)}  # type: ignore[arg-type]
        return {"mechanism": self.name, **settings, "proof": self.proof, "does": (self.__doc__ or "").split("\n")[0]}


def _as_json(value: object) -> object:
    """Return a parameter as JSON: a tuple as a list, a rational as text."""
    if isinstance(value, tuple):
        return [_as_json(item) for item in value]
    return str(value) if isinstance(value, Fraction) else value


def check_parameter(self: Mechanism, name: str, least: Fraction | int, most: Fraction | int) -> None:
    """Convert a field of a mechanism to an exact rational; refuse one outside two public limits."""
    value = rational(getattr(self, name), name)
    if not least <= value <= most:
        raise InvalidParameter(f"{name} must be from {least} to {most}, got {value}")
    object.__setattr__(self, name, value)


def check_scale(self: Mechanism, name: str = "scale") -> None:
    """Check that a noise scale is one that the samplers take."""
    check_parameter(self, name, SMALLEST_SCALE, LARGEST_SCALE)


def check_integer(self: Mechanism, name: str, least: int, most: int) -> None:
    """Check that a field is an integer between two public limits."""
    value = getattr(self, name)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidParameter(f"{name} must be an integer from {least} to {most}, got {value!r}")


def changed_cells(sensitivity: Sensitivity) -> int:
    """Return the number of cells that one unit can change; 0 if it can change none by a positive amount."""
    return int(sensitivity.l0) if sensitivity.linf else 0


def max_change(sensitivity: Sensitivity) -> Fraction:
    """Return the most by which one unit can change a cell."""
    return min(sensitivity.linf, sensitivity.l1)


def saturating_add(exact: Vector, noise: Vector) -> Vector:
    """Return the sums, clamped to 64 bits; the noisy sum is clamped, so this is postprocessing."""
    total = exact + noise
    overflowed = ((exact ^ total) & (noise ^ total)) < 0
    if not overflowed.any():
        return total
    limits = np.iinfo(np.int64)
    return np.where(overflowed, np.where(exact < 0, limits.min, limits.max), total)
