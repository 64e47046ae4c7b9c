"""Ceilings that a privacy claim sets: the largest probability of an event on one input, given that on its neighbour.

Each kind of claim is a family of ceilings, one for each *strength*: epsilon for `Pure` and `Approximate`, rho for
`ZCDP`, a factor on the whole curve for `Renyi` (1 is the claim itself). An event of probability p on one input and q on
its neighbour refutes a strength when p is above the ceiling at q.

Inputs several steps apart, each step from one neighbour to the next, have ceilings too (group privacy). Epsilon grows
with the number of steps, delta as the geometric series of e^epsilon (one step's inequality substituted into the next),
rho with the square of the number of steps (Bun and Steinke 2016). This module derives no such ceiling for Renyi claims
or for zCDP claims with a delta.
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
MAX_STRENGTH = 300.0


def strength(claim: Loss) -> float:
    """Return the strength that the claim states: its epsilon, its rho, or 1 for a Renyi curve."""
    if not isinstance(claim, Pure | Approximate | ZCDP | Renyi):
        raise InvalidParameter(f"a claim must be a loss of dither.loss, such as Pure(1), got {claim!r}")
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
    """Return the delta that the claim states, 0 for pure claims."""
    return 0.0 if isinstance(claim, Pure) else float(claim.delta)


def extends_to_steps(claim: Loss) -> bool:
    """Return True if `ceiling` supports this claim for inputs several steps apart."""
    return isinstance(claim, Pure | Approximate) or (isinstance(claim, ZCDP) and claim.delta == 0)


def compose_steps(claim: Pure | Approximate, epsilon: float, steps: int) -> tuple[float, float]:
    """Return the total epsilon and delta over `steps` steps, each of this epsilon and of the claim's delta."""
    epsilon = min(epsilon, MAX_STRENGTH / steps)
    series = steps if epsilon == 0 else float(np.expm1(steps * epsilon) / np.expm1(epsilon))
    return steps * epsilon, min(delta(claim) * series, 1.0)


def ceiling(claim: Loss, at: float, steps: int = 1) -> Ceiling:
    """Return the ceiling of this kind of claim at strength `at`, for inputs `steps` steps apart.

    A ceiling is increasing and concave in the other input's probability.
    """
    at = min(at, MAX_STRENGTH)
    match claim:
        case Pure() | Approximate():
            epsilon, extra = compose_steps(claim, at, steps)
            return lambda q: _approximate_ceiling(q, epsilon, extra)
        case ZCDP():
            return lambda q: _renyi_ceiling(q, float(claim.delta), ORDERS, at * steps**2 * ORDERS)
        case Renyi():
            curve = np.array([[float(order), float(epsilon)] for order, epsilon in claim.curve])
            return lambda q: _renyi_ceiling(q, float(claim.delta), curve[:, 0], at * curve[:, 1])
        case _:
            assert_never(claim)


def tangent(claim: Loss, q: float, steps: int = 1) -> tuple[float, float]:
    """Return an (epsilon, delta) that the claim implies `steps` steps apart, tight for an event of probability `q`."""
    if isinstance(claim, Pure | Approximate):
        return compose_steps(claim, strength(claim), steps)
    limit = ceiling(claim, strength(claim), steps)
    low, middle, high = np.clip(np.array([q * 0.98, q, q * 1.02 + 1e-12]), 1e-12, 1 - 1e-9)
    at_low, at_middle, at_high = limit(np.array([low, middle, high]))
    slope = max((at_high - at_low) / (high - low), 1.0)
    return float(np.log(slope)), _smallest_delta(limit, slope, float(at_middle - slope * middle))


def _smallest_delta(limit: Ceiling, slope: float, guess: float) -> float:
    """Return a delta for which slope * q + delta covers the whole ceiling.

    Comparing the ceiling at the right end of each grid cell with the line at its left end rounds delta up.
    """
    grid = np.concatenate([[0.0], np.geomspace(1e-9, 1, 400)])
    largest_gap = float(np.max(limit(grid)[1:] - slope * grid[:-1]))
    return min(max(largest_gap, guess, 0.0), 1.0)


def _approximate_ceiling(q: Floats, epsilon: float, extra: float) -> Floats:
    """Return e^epsilon * q + extra, at most 1.

    The inequality for the event's complement is tested separately, as an event of the opposite direction.
    """
    return np.minimum(exp(epsilon) * q + extra, 1.0)


def _renyi_ceiling(q: Floats, extra: float, orders: Floats, limits: Floats) -> Floats:
    """Return the Renyi ceiling when an event of probability `extra` is exempt on either input."""
    inside = np.minimum(np.asarray(q, dtype=float) / max(1 - extra, 1e-300), 1.0)
    return np.minimum(extra + (1 - extra) * _largest_probability(inside, orders, limits), 1.0)


def _largest_probability(q: Floats, orders: Floats, limits: Floats) -> Floats:
    """Return the largest p whose two-point divergence from q is within the limit at every order, by bisection."""
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
    """Return the Renyi divergence between two Bernoulli distributions, in logarithms so that no power overflows."""
    with np.errstate(divide="ignore", invalid="ignore"):
        heads = _log_term(p, q, orders)
        tails = _log_term(1 - p, 1 - q, orders)
    result: Floats = np.logaddexp(heads, tails) / (orders - 1)
    return result


def _log_term(p: Any, q: Any, orders: Floats) -> Any:
    """Return log(p^order * q^(1 - order)), with its limits where p or q is 0."""
    value = orders * np.log(p) + (1 - orders) * np.log(q)
    return np.where(p <= 0, -np.inf, np.where(q <= 0, np.inf, value))
