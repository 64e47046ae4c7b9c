"""Compare and describe losses: what other budgets pay beside the query's own unit."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import assert_never

from dither.loss import ZCDP, Approximate, Loss, Pure, Renyi
from dither.privacy.protocol import UnitLoss

ROUNDING_TOLERANCE = 1e-9


def other_budget_notes(losses: Iterable[UnitLoss], unit: str, asked: Loss) -> tuple[str, ...]:
    """Return a note for each budget of another unit that pays more than the query asks to spend."""
    limit = loss_as_epsilon(asked) * (1 + ROUNDING_TOLERANCE)
    others = [part for part in losses if part.unit != unit and loss_as_epsilon(part.loss) > limit]
    return tuple(
        f"the {part.kind} budget of unit {part.unit} pays {describe_loss(part.loss)}, "
        f"more than the query asks to spend for unit {unit}"
        for part in others
    )


def loss_as_epsilon(loss: Loss) -> float:
    """Convert a loss to an epsilon, roughly, to compare losses of different kinds."""
    match loss:
        case Pure(epsilon=epsilon) | Approximate(epsilon=epsilon):
            return float(epsilon)
        case ZCDP(rho=rho):
            return math.sqrt(2 * rho)
        case Renyi(curve=curve):
            return max((float(epsilon) for _, epsilon in curve), default=0.0)
        case _:
            assert_never(loss)


def describe_loss(loss: Loss) -> str:
    """Describe a loss in a few words.

    >>> loss_text(Pure("6/5"))
    'epsilon 1.2'
    """
    match loss:
        case Pure(epsilon=epsilon):
            return f"epsilon {float(epsilon):g}"
        case Approximate(epsilon=epsilon, delta=delta):
            return f"epsilon {float(epsilon):g}, delta {float(delta):g}"
        case ZCDP(rho=rho):
            return f"rho {float(rho):g}"
        case Renyi():
            return f"a Renyi loss of at most epsilon {loss_as_epsilon(loss):g}"
        case _:
            assert_never(loss)
