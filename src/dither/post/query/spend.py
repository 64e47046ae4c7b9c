"""Part of the former post.asking."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from dither.errors import InvalidParameter
from dither.loss import ZCDP, Pure, Rational, rational


@dataclass(frozen=True)
class Spend:
    """What a question may cost: a pure loss, or one in rho."""

    loss: Pure | ZCDP

    @property
    def amount(self) -> Fraction:
        """Epsilon or rho."""
        return self.loss.epsilon if isinstance(self.loss, Pure) else self.loss.rho

    def share(self, fraction: Fraction) -> Pure | ZCDP:
        """A part of it; shares that add up to one add up to all of it, exactly."""
        return Pure(self.loss.epsilon * fraction) if isinstance(self.loss, Pure) else ZCDP(self.loss.rho * fraction)

    def noise(self, fraction: Fraction) -> float:
        """The standard deviation that a part of it brings to a cell, for each step that one unit may move it."""
        share = float(self.amount * fraction)
        return math.sqrt(2) / share if isinstance(self.loss, Pure) else 1 / math.sqrt(2 * share)

    @property
    def gaussian(self) -> bool:
        """Whether Gaussian noise is allowed: a pure loss has none."""
        return isinstance(self.loss, ZCDP)


def parse_spend(epsilon: Rational | None, rho: Rational | None) -> Spend:
    """What `epsilon=` or `rho=` mean; one of them."""
    if (epsilon is None) == (rho is None):
        raise InvalidParameter("give epsilon= or rho= (or within=), and only one of them")
    loss = Pure(rational(epsilon, "epsilon")) if epsilon is not None else ZCDP(rational(rho or 0, "rho"))
    amount = loss.epsilon if isinstance(loss, Pure) else loss.rho
    if amount <= 0:
        raise InvalidParameter("a question that depends on data costs more than 0")
    return Spend(loss)
