"""What every mechanism is, and the public limits that all of them share."""

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

# No mechanism adds noise of a larger scale, so none spends less than FLOOR for each lattice step of sensitivity.
FLOOR = 1 / LARGEST_SCALE
MOST_CELLS = 1 << 32
HALF = (1 << 62) - 1


class Mechanism(ABC):
    """Turns exact integers into a release, and states what that costs."""

    name: ClassVar[str]
    proof: ClassVar[str]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for needed in ("name", "proof", "loss", "release"):
            if needed not in cls.__dict__:
                raise TypeError(f"{cls.__name__} must define its own {needed}; see 'add a mechanism' in docs/design.md")
        if not cls.proof.endswith(".md"):
            raise TypeError(f"{cls.__name__} must name its proof: proof = '<file>.md'")

    @abstractmethod
    def loss(self, sensitivity: Sensitivity) -> Loss:
        """An upper bound for any two inputs at most `sensitivity` apart."""

    @abstractmethod
    def release(self, exact: Vector, bits: Bits) -> Vector:
        """One draw. Called by the kernel only, after `loss` has been charged."""

    def admit(self, size: int) -> None:
        """Refuses, before any charge, a vector of a length that `release` cannot take."""

    def zcdp_loss(self, sensitivity: Sensitivity) -> ZCDP:
        """The loss for budgets that count in rho: what `loss` implies, or a smaller bound that the proof gives."""
        return as_zcdp(self.loss(sensitivity))

    @property
    def noise_distribution(self) -> NoiseDistribution:
        """The law of the noise in each cell; floats, for estimates and intervals only."""
        raise Unsupported(f"{self.name} does not add the same noise to every cell")

    def std(self) -> float:
        """The standard deviation of the noise in each cell, in lattice steps."""
        return self.noise_distribution.std

    def describe(self) -> dict[str, object]:
        """What was done, for the release's own account of itself; rationals as text."""
        shown = {field.name: _shown(getattr(self, field.name)) for field in fields(self)}  # type: ignore[arg-type]
        return {"mechanism": self.name, **shown, "proof": self.proof, "does": (self.__doc__ or "").split("\n")[0]}


def _shown(value: object) -> object:
    if isinstance(value, tuple):
        return [_shown(item) for item in value]
    return str(value) if isinstance(value, Fraction) else value


def check_parameter(self: Mechanism, name: str, least: Fraction | int, most: Fraction | int) -> None:
    """Makes a field of a mechanism that is being made an exact rational between two public limits."""
    value = rational(getattr(self, name), name)
    if not least <= value <= most:
        raise InvalidParameter(f"{name} must be from {least} to {most}, got {value}")
    object.__setattr__(self, name, value)


def check_scale(self: Mechanism, name: str = "scale") -> None:
    """A noise scale between the smallest and the largest that the samplers take."""
    check_parameter(self, name, SMALLEST_SCALE, LARGEST_SCALE)


def check_integer(self: Mechanism, name: str, least: int, most: int) -> None:
    """An integer between two public limits."""
    value = getattr(self, name)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidParameter(f"{name} must be an integer from {least} to {most}, got {value!r}")


def as_cells(sensitivity: Sensitivity) -> int:
    """How many cells one unit can really change: none where it can change none by anything."""
    return int(sensitivity.l0) if sensitivity.linf else 0


def max_value(sensitivity: Sensitivity) -> Fraction:
    """The most that one cell can move."""
    return min(sensitivity.linf, sensitivity.l1)


def saturating_add(exact: Vector, noise: Vector) -> Vector:
    """The sums, held inside 64 bits; holding is done to the sum, so it is postprocessing."""
    total = exact + noise
    overflowed = ((exact ^ total) & (noise ^ total)) < 0
    limits = np.iinfo(np.int64)
    return np.where(overflowed, np.where(exact < 0, limits.min, limits.max), total)
