"""What a claim allows one event: the largest probability on one input, given its probability on the neighbour.

A claim of every kind is a family of such ceilings, one for each *strength*: epsilon for `Pure` and `Approximate`, rho
for `ZCDP`, a factor on the whole curve for `Renyi` (1 is the claim itself). An event of probability p on one input and
q on its neighbour refutes a strength when p is above the ceiling at q.

Inputs that are several steps apart, each from one neighbour to the next, have ceilings too: epsilon grows with the
number of steps, delta as the geometric series of e^epsilon (the inequality of one step put into that of the next), rho
with its square (Bun and Steinke 2016). Of Renyi claims, and where some event is exempt from rho, nothing is said here.
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp
from typing import Any, assert_never

import numpy as np
from numpy.typing import NDArray

from dither.errors import InvalidParameter
from dither.loss import ZCDP, Approximate, Loss, Pure, Renyi

Floats = NDArray[np.float64]
Ceiling = Callable[[Floats], Floats]

ORDERS = np.concatenate([[1.1, 1.3, 1.6], np.geomspace(2, 200, 11)])
LARGEST_STRENGTH = 300.0


def strength(claim: Loss) -> float:
    """The number that the claim states."""
    if not isinstance(claim, Pure | Approximate | ZCDP | Renyi):
        raise InvalidParameter(f"a claim is a loss of dither.loss, such as Pure(1), got {claim!r}")
    match claim:
        case Pure() | Approximate():
            return float(claim.epsilon)
        case ZCDP():
            return float(claim.rho)
        case Renyi():
            return 1.0
        case _:
            assert_never(claim)


def delta(claim: Loss) -> float:
    """The delta that the claim states, 0 for pure claims."""
    return 0.0 if isinstance(claim, Pure) else float(claim.delta)


def grows(claim: Loss) -> bool:
    """Whether the claim says something about inputs that are several steps apart."""
    return isinstance(claim, Pure | Approximate) or (isinstance(claim, ZCDP) and claim.delta == 0)


def together(claim: Pure | Approximate, at: float, steps: int) -> tuple[float, float]:
    """The epsilon and the delta that so many steps of a strength have together."""
    at = min(at, LARGEST_STRENGTH / steps)
    series = steps if at == 0 else float(np.expm1(steps * at) / np.expm1(at))
    return steps * at, min(delta(claim) * series, 1.0)


def ceiling(claim: Loss, at: float, steps: int = 1) -> Ceiling:
    """The ceiling of this kind of claim at a strength: increasing and concave in the other input's probability."""
    at = min(at, LARGEST_STRENGTH)
    match claim:
        case Pure() | Approximate():
            epsilon, extra = together(claim, at, steps)
            return lambda q: _hockey_stick(q, epsilon, extra)
        case ZCDP():
            return lambda q: _outside(q, float(claim.delta), ORDERS, at * steps**2 * ORDERS)
        case Renyi():
            curve = np.array([[float(order), float(epsilon)] for order, epsilon in claim.curve])
            return lambda q: _outside(q, float(claim.delta), curve[:, 0], at * curve[:, 1])
        case _:
            assert_never(claim)


def tangent(claim: Loss, q: float, steps: int = 1) -> tuple[float, float]:
    """An (epsilon, delta) that the claim implies so many steps apart, tight for an event of probability `q`."""
    if isinstance(claim, Pure | Approximate):
        return together(claim, strength(claim), steps)
    limit = ceiling(claim, strength(claim), steps)
    low, middle, high = np.clip(np.array([q * 0.98, q, q * 1.02 + 1e-12]), 1e-12, 1 - 1e-9)
    at_low, at_middle, at_high = limit(np.array([low, middle, high]))
    slope = max((at_high - at_low) / (high - low), 1.0)
    return float(np.log(slope)), _smallest_delta(limit, slope, float(at_middle - slope * middle))


def _smallest_delta(limit: Ceiling, slope: float, guess: float) -> float:
    """The delta that makes slope * q + delta cover the whole ceiling, a little more than the grid says."""
    grid = np.concatenate([[0.0], np.geomspace(1e-9, 1, 400)])
    covers = float(np.max(limit(grid)[1:] - slope * grid[:-1]))
    return min(max(covers, guess, 0.0), 1.0)


def _hockey_stick(q: Floats, epsilon: float, extra: float) -> Floats:
    """One inequality for each event; its twin for the complement is judged as an event of the other direction."""
    return np.minimum(exp(epsilon) * q + extra, 1.0)


def _outside(q: Floats, extra: float, orders: Floats, limits: Floats) -> Floats:
    """The Renyi ceiling when an event of probability `extra` is exempt on either input."""
    inside = np.minimum(np.asarray(q, dtype=float) / max(1 - extra, 1e-300), 1.0)
    return np.minimum(extra + (1 - extra) * _renyi(inside, orders, limits), 1.0)


def _renyi(q: Floats, orders: Floats, limits: Floats) -> Floats:
    """The largest p whose two-point divergence from q stays within the limit at every order."""
    q = np.clip(np.asarray(q, dtype=float), 0.0, 1.0)[:, None]
    low, high = np.broadcast_arrays(q, np.ones_like(q))
    low, high = low.copy(), high.copy()
    for _ in range(34):
        middle = (low + high) / 2
        fits = np.all(_divergence(middle, q, orders) <= limits, axis=1, keepdims=True)
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    result: Floats = high[:, 0]
    return result


def _divergence(p: Floats, q: Floats, orders: Floats) -> Floats:
    """Renyi divergence between two coins, by logarithms so that no power overflows."""
    with np.errstate(divide="ignore", invalid="ignore"):
        heads = _term(p, q, orders)
        tails = _term(1 - p, 1 - q, orders)
    result: Floats = np.logaddexp(heads, tails) / (orders - 1)
    return result


def _term(p: Any, q: Any, orders: Floats) -> Any:
    value = orders * np.log(p) + (1 - orders) * np.log(q)
    return np.where(p <= 0, -np.inf, np.where(q <= 0, np.inf, value))
