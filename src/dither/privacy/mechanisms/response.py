"""Randomized response: each cell tells the truth, or sometimes anything."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import final

import numpy as np

from dither.loss import ZCDP, Pure, Sensitivity, rounded_up
from dither.privacy.accounting.conversion import pure_as_rho
from dither.privacy.accounting.rounding import digits_up, log_up
from dither.privacy.bits import Bits
from dither.privacy.mechanisms.base import Mechanism, Vector, as_cells, check_integer, check_parameter
from dither.privacy.noise import bernoulli, uniform_below


@final
@dataclass(frozen=True)
class RandomizedResponse(Mechanism):
    """Replaces each cell, with probability `lie`, by one of the categories 0, 1, ... chosen uniformly."""

    name = "randomized_response"
    proof = "randomized_response.md"
    categories: int
    flip_probability: Fraction

    def __post_init__(self) -> None:
        check_integer(self, "categories", 2, 1 << 32)
        check_parameter(self, "flip_probability", Fraction(1, 1 << 60), 1)

    @property
    def epsilon(self) -> Fraction:
        """At least log(P(true answer) / P(a given other answer)): the loss of one cell."""
        return digits_up(
            max(Fraction(0), log_up(1 + self.categories * (1 - self.flip_probability) / self.flip_probability))
        )

    def loss(self, sensitivity: Sensitivity) -> Pure:
        return Pure(rounded_up(as_cells(sensitivity) * self.epsilon))

    def zcdp_loss(self, sensitivity: Sensitivity) -> ZCDP:
        return ZCDP(rounded_up(as_cells(sensitivity) * pure_as_rho(self.epsilon)))

    def release(self, exact: Vector, bits: Bits) -> Vector:
        lies = bernoulli(self.flip_probability, len(exact), bits)
        anything = uniform_below(self.categories, len(exact), bits)
        return np.where(lies == 1, anything, np.clip(exact, 0, self.categories - 1))
