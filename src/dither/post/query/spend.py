"""The privacy loss that a query may spend, and its division into shares."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from dither.errors import InvalidParameter
from dither.loss import ZCDP, Pure, Rational, rational


@dataclass(frozen=True)
class Spend:
    """The loss that a query may spend: pure epsilon, or zCDP."""

    loss: Pure | ZCDP

    @property
    def amount(self) -> Fraction:
        """The loss as a number: its epsilon or its rho."""
        return self.loss.epsilon if isinstance(self.loss, Pure) else self.loss.rho

    @property
    def rough_epsilon(self) -> float:
        """The epsilon at which Laplace noise in a sum errs as much: rho is the square of its half."""
        return 2 * math.sqrt(self.amount) if self.gaussian else float(self.amount)

    def share(self, fraction: Fraction) -> Pure | ZCDP:
        """Return a fraction of the loss; fractions that add up to 1 add up to exactly the whole loss."""
        return Pure(self.loss.epsilon * fraction) if isinstance(self.loss, Pure) else ZCDP(self.loss.rho * fraction)

    def noise(self, fraction: Fraction) -> float:
        """Return the standard deviation of noise for a fraction of the loss, at sensitivity 1."""
        share = float(self.amount * fraction)
        return math.sqrt(2) / share if isinstance(self.loss, Pure) else 1 / math.sqrt(2 * share)

    @property
    def gaussian(self) -> bool:
        """True if Gaussian noise is allowed; a pure loss does not allow it."""
        return isinstance(self.loss, ZCDP)

    @property
    def quantile_kind(self) -> str:
        """The mechanism for quantiles: noisy maxima are nearer for a pure loss, exponential mechanisms for zCDP."""
        return "quantiles" if self.gaussian else "noisy_max_quantiles"


def parse_spend(epsilon: Rational | None, rho: Rational | None) -> Spend:
    """Read the options `epsilon=` and `rho=`, of which exactly one is given."""
    if (epsilon is None) == (rho is None):
        raise InvalidParameter(
            "give epsilon= or rho=, and only one of them (a query or a batch may have max_error= instead)"
        )
    loss = Pure(rational(epsilon, "epsilon")) if epsilon is not None else ZCDP(rational(rho or 0, "rho"))
    amount = loss.epsilon if isinstance(loss, Pure) else loss.rho
    if amount <= 0:
        raise InvalidParameter("epsilon and rho must be more than 0: a query of private data costs something")
    return Spend(loss)
