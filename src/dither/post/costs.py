"""What a question costs budgets of other units than the one it was asked under."""

from __future__ import annotations

from collections.abc import Iterable
from math import sqrt
from typing import assert_never

from dither.loss import ZCDP, Approximate, Loss, Pure, Renyi
from dither.wire import UnitLoss

ROUNDING = 1e-9


def elsewhere(losses: Iterable[UnitLoss], unit: str, asked: Loss) -> tuple[str, ...]:
    """A note for each other budget that pays more than was asked for."""
    most = size(asked) * (1 + ROUNDING)
    others = [part for part in losses if part.unit != unit and size(part.loss) > most]
    return tuple(
        f"the {part.kind} budget of {part.unit} pays more than was asked for {unit}: {text(part.loss)}"
        for part in others
    )


def size(loss: Loss) -> float:
    """A loss as an epsilon, by which losses of different kinds are compared."""
    match loss:
        case Pure(epsilon=epsilon) | Approximate(epsilon=epsilon):
            return float(epsilon)
        case ZCDP(rho=rho):
            return sqrt(2 * rho)
        case Renyi(curve=curve):
            return max((float(epsilon) for _, epsilon in curve), default=0.0)
        case _:
            assert_never(loss)


def text(loss: Loss) -> str:
    """A loss in a few words.

    >>> text(Pure("6/5"))
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
            return f"a Renyi loss of at most epsilon {size(loss):g}"
        case _:
            assert_never(loss)
