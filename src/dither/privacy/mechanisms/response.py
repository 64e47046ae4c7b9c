"""Randomized response: each cell is released as it is, or replaced by a random category."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import final

import numpy as np

from dither.loss import ZCDP, Pure, Sensitivity, round_up
from dither.privacy.accounting.conversion import pure_as_rho
from dither.privacy.accounting.rounding import digits_up, log_up
from dither.privacy.bits import Bits
from dither.privacy.mechanisms.base import Mechanism, Vector, changed_cells, check_integer, check_parameter
from dither.privacy.noise import bernoulli, uniform_below


@final
@dataclass(frozen=True)
class RandomizedResponse(Mechanism):
    """Replaces each cell, with probability `flip_probability`, by one of the categories 0, 1, ... chosen uniformly."""

    name = "randomized_response"
    proof = "randomized_response.md"
    categories: int
    flip_probability: Fraction

    def __post_init__(self) -> None:
        check_integer(self, "categories", 2, 1 << 32)
        check_parameter(self, "flip_probability", Fraction(1, 1 << 60), 1)

    @property
    def epsilon(self) -> Fraction:
        """The loss of one cell: log(P(true answer) / P(a given other answer)), rounded up."""
        return digits_up(
            max(Fraction(0), log_up(1 + self.categories * (1 - self.flip_probability) / self.flip_probability))
        )

    def loss(self, sensitivity: Sensitivity) -> Pure:
        return Pure(round_up(changed_cells(sensitivity) * self.epsilon))

    def zcdp_loss(self, sensitivity: Sensitivity) -> ZCDP:
        return ZCDP(round_up(changed_cells(sensitivity) * pure_as_rho(self.epsilon)))

    def release(self, exact: Vector, bits: Bits) -> Vector:
        replaced = bernoulli(self.flip_probability, len(exact), bits)
        uniform = uniform_below(self.categories, len(exact), bits)
        return np.where(replaced == 1, uniform, np.clip(exact, 0, self.categories - 1))
