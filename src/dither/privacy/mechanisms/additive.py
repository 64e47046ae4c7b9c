"""Mechanisms that add noise to every cell: discrete Laplace and Gaussian, geometric, staircase, snapping."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import final

import numpy as np

from dither.errors import InvalidParameter
from dither.loss import ZCDP, Pure, Sensitivity, round_up
from dither.privacy.accounting.conversion import pure_as_rho
from dither.privacy.bits import Bits
from dither.privacy.mechanisms.base import (
    HALF_INT64,
    Mechanism,
    Vector,
    changed_cells,
    check_integer,
    check_parameter,
    check_scale,
    max_change,
    saturating_add,
)
from dither.privacy.mechanisms.distributions import (
    DiscreteGaussianDistribution,
    DiscreteLaplaceDistribution,
    StaircaseDistribution,
)
from dither.privacy.noise import (
    LARGEST_SCALE,
    SMALLEST_SCALE,
    discrete_gaussian,
    discrete_laplace,
    geometric,
    staircase,
)

PIECE = 1 << 16  # draws of one call: more would leave the processor's cache, and take twice as long


def laplace_rho(scale: Fraction, sensitivity: Sensitivity) -> ZCDP:
    """Return the zCDP loss of Laplace noise: at most the sum of e tanh(e / 2) over the pure losses e of the cells."""
    most = max_change(sensitivity)
    if not most:
        return ZCDP(Fraction(0))
    squares = sensitivity.l2_squared / (2 * scale**2)
    return ZCDP(round_up(min(squares, pure_as_rho(round_up(most / scale)) * sensitivity.l1 / most)))


@final
@dataclass(frozen=True)
class DiscreteLaplace(Mechanism):
    """Adds an integer k with probability proportional to exp(-|k| / scale)."""

    name = "discrete_laplace"
    proof = "discrete_laplace.md"
    scale: Fraction

    def __post_init__(self) -> None:
        check_scale(self)

    def loss(self, sensitivity: Sensitivity) -> Pure:
        return Pure(round_up(sensitivity.l1 / self.scale))

    def zcdp_loss(self, sensitivity: Sensitivity) -> ZCDP:
        return laplace_rho(self.scale, sensitivity)

    def release(self, exact: Vector, bits: Bits) -> Vector:
        return saturating_add(exact, discrete_laplace(self.scale, len(exact), bits))

    @property
    def noise_distribution(self) -> DiscreteLaplaceDistribution:
        return DiscreteLaplaceDistribution(self.scale)


@final
@dataclass(frozen=True)
class DiscreteGaussian(Mechanism):
    """Adds an integer k with probability proportional to exp(-k^2 / (2 variance))."""

    name = "discrete_gaussian"
    proof = "discrete_gaussian.md"
    variance: Fraction

    def __post_init__(self) -> None:
        check_parameter(self, "variance", SMALLEST_SCALE**2, LARGEST_SCALE**2)

    def loss(self, sensitivity: Sensitivity) -> ZCDP:
        return ZCDP(round_up(sensitivity.l2_squared / (2 * self.variance)))

    def release(self, exact: Vector, bits: Bits) -> Vector:
        return saturating_add(exact, discrete_gaussian(self.variance, len(exact), bits))

    @property
    def noise_distribution(self) -> DiscreteGaussianDistribution:
        return DiscreteGaussianDistribution(self.variance)


@final
@dataclass(frozen=True)
class ColumnGaussian(Mechanism):
    """Adds discrete Gaussian noise to the columns of a table, with one variance for each column."""

    name = "column_gaussian"
    proof = "column_gaussian.md"
    variances: tuple[Fraction, ...]

    def __post_init__(self) -> None:
        if not self.variances:
            raise InvalidParameter("column_gaussian needs one variance for each column")
        object.__setattr__(self, "variances", tuple(column.variance for column in self.columns))

    @property
    def columns(self) -> tuple[DiscreteGaussian, ...]:
        """The mechanism of each column."""
        return tuple(map(DiscreteGaussian, self.variances))

    def loss(self, sensitivity: Sensitivity) -> ZCDP:
        return ZCDP(round_up(sensitivity.l2_squared / (2 * min(self.variances))))

    def check_length(self, size: int) -> None:
        if size % len(self.variances):
            raise InvalidParameter(f"column_gaussian has {len(self.variances)} variances, not one for each column")

    def release(self, exact: Vector, bits: Bits) -> Vector:
        table = exact.reshape(-1, len(self.variances))
        noisy = [column.release(table[:, place].copy(), bits) for place, column in enumerate(self.columns)]
        return np.stack(noisy, axis=1).reshape(-1)

    def release_columns(self, table: Vector, bits: Bits) -> None:
        """Replace the exact columns, the rows of `table`, by one draw of each, in pieces that stay in the cache."""
        for mechanism, column in zip(self.columns, table, strict=True):
            for start in range(0, len(column), PIECE):
                column[start : start + PIECE] = mechanism.release(column[start : start + PIECE], bits)


@final
@dataclass(frozen=True)
class Geometric(Mechanism):
    """Adds the difference of two geometric variables, then clamps the sum to two public limits."""

    name = "geometric"
    proof = "geometric.md"
    scale: Fraction
    lower: int = -HALF_INT64
    upper: int = HALF_INT64

    def __post_init__(self) -> None:
        check_scale(self)
        check_integer(self, "lower", -HALF_INT64, HALF_INT64)
        check_integer(self, "upper", self.lower, HALF_INT64)

    def loss(self, sensitivity: Sensitivity) -> Pure:
        return Pure(round_up(sensitivity.l1 / self.scale))

    def zcdp_loss(self, sensitivity: Sensitivity) -> ZCDP:
        return laplace_rho(self.scale, sensitivity)

    def release(self, exact: Vector, bits: Bits) -> Vector:
        noise = geometric(self.scale, len(exact), bits) - geometric(self.scale, len(exact), bits)
        return np.clip(saturating_add(exact, noise), self.lower, self.upper)

    @property
    def noise_distribution(self) -> DiscreteLaplaceDistribution:
        return DiscreteLaplaceDistribution(self.scale)


@final
@dataclass(frozen=True)
class Staircase(Mechanism):
    """Adds an integer k with probability proportional to exp(-epsilon * ceil((|k| + 1 - rise) / width))."""

    name = "staircase"
    proof = "staircase.md"
    epsilon: Fraction
    width: int
    rise: int

    def __post_init__(self) -> None:
        check_parameter(self, "epsilon", 1 / LARGEST_SCALE, 1 / SMALLEST_SCALE)
        check_integer(self, "width", 1, int(LARGEST_SCALE * min(Fraction(1), self.epsilon)))
        check_integer(self, "rise", 1, self.width)

    def loss(self, sensitivity: Sensitivity) -> Pure:
        # A cell that moves by d, an integer, climbs or descends at most ceil(d / width) steps (proof, step 2).
        changed, step = changed_cells(sensitivity), self.width
        by_cell = changed * -(-sensitivity.linf // step)
        by_total = (sensitivity.l1 + changed * (step - 1)) // step
        return Pure(round_up(min(by_cell, by_total) * self.epsilon))

    def release(self, exact: Vector, bits: Bits) -> Vector:
        return saturating_add(exact, staircase(self.epsilon, self.width, self.rise, len(exact), bits))

    @property
    def noise_distribution(self) -> StaircaseDistribution:
        return StaircaseDistribution(self.epsilon, self.width, self.rise)


@final
@dataclass(frozen=True)
class Snapping(Mechanism):
    """Clamps the value to `bound`, adds continuous Laplace noise, rounds to the grid, and clamps again."""

    name = "snapping"
    proof = "snapping.md"
    scale: Fraction
    bound: int

    def __post_init__(self) -> None:
        check_scale(self)
        check_integer(self, "bound", 1, HALF_INT64 // 2)

    @property
    def grid(self) -> int:
        """The least power of two that is at least the scale, and at least 2, so that rounding changes at integers."""
        return 1 << max(1, (-(-self.scale.numerator // self.scale.denominator) - 1).bit_length())

    def loss(self, sensitivity: Sensitivity) -> Pure:
        return Pure(round_up(sensitivity.l1 / self.scale))

    def zcdp_loss(self, sensitivity: Sensitivity) -> ZCDP:
        return laplace_rho(self.scale, sensitivity)

    def release(self, exact: Vector, bits: Bits) -> Vector:
        # Rounding depends only on the integer part of the continuous Laplace noise (proof, step 1).
        integer_noise = geometric(self.scale, len(exact), bits)
        integer_noise = np.where(bits.words(len(exact), 1) == 1, ~integer_noise, integer_noise)
        clipped = np.clip(exact, -self.bound, self.bound)
        noisy = np.clip(saturating_add(clipped, integer_noise), -HALF_INT64, HALF_INT64)
        snapped = (noisy + self.grid // 2) // self.grid * self.grid
        return np.clip(snapped, -self.bound, self.bound)
