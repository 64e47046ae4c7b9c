"""Conversion between kinds of privacy loss: pure, zCDP, Renyi and (epsilon, delta).

All results are exact rationals, or are rounded in the safe direction: losses and deltas up, caps down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import assert_never

from dither.errors import InvalidParameter
from dither.loss import ZCDP, Approximate, Loss, Pure, Rational, Renyi, rational, round_up
from dither.privacy.accounting.rounding import digits_down, digits_up, exp_down, exp_up, log_down, log_up

ORDERS = (*range(2, 33), *range(36, 65, 4), 80, 96, 128, 160, 192, 256)


# --- From one kind of loss to another -------------------------------------------------------------------------------


def pure_as_rho(epsilon: Fraction) -> Fraction:
    """Return the rho of an epsilon-DP mechanism: epsilon tanh(epsilon / 2), never above epsilon**2 / 2.

    Proof: pure_loss.md.
    """
    if epsilon > 100:
        return epsilon
    return digits_up(epsilon * (1 - 2 / (exp_up(epsilon) + 1)))


def pure_as_renyi(epsilon: Fraction, order: Fraction) -> Fraction:
    """Return the Renyi divergence of an epsilon-DP mechanism: log(cosh((a - 1/2) e) / cosh(e / 2)) / (a - 1).

    Proof: pure_loss.md.
    """
    top = log_up(1 + exp_up(-(2 * order - 1) * epsilon))
    bottom = log_down(1 + exp_down(-epsilon))
    return min(epsilon, max(Fraction(0), digits_up(epsilon + (top - bottom) / (order - 1))))


def as_zcdp(loss: Loss) -> ZCDP:
    """Convert a loss to (delta-approximate) zCDP; refuse a Renyi curve, which bounds no order beyond its own.

    Proof: kinds_of_loss.md.
    """
    match loss:
        case Pure():
            return ZCDP(pure_as_rho(loss.epsilon))
        case Approximate():
            return ZCDP(pure_as_rho(loss.epsilon), loss.delta)
        case ZCDP():
            return loss
        case Renyi():
            raise InvalidParameter("a Renyi loss at fixed orders does not imply zCDP; use a budget of kind renyi")
        case _:
            assert_never(loss)


def as_renyi(loss: Loss, orders: Iterable[Rational]) -> Renyi:
    """Convert a loss to a Renyi curve at the given orders.

    A Renyi loss is read at its next higher order, since the divergence grows with the order.

    Proof: kinds_of_loss.md.
    """
    exact = [rational(order, "order") for order in orders]
    return Renyi(tuple((order, round_up(renyi_divergence(loss, order))) for order in exact), delta_of(loss))


def renyi_divergence(loss: Loss, order: Fraction) -> Fraction:
    """Return a bound on the Renyi divergence at one order, outside events of probability delta."""
    match loss:
        case Pure() | Approximate():
            return pure_as_renyi(loss.epsilon, order)
        case ZCDP():
            return loss.rho * order
        case Renyi():
            above = [epsilon for point, epsilon in loss.curve if point >= order]
            if not above:
                raise InvalidParameter(
                    f"the Renyi curve ends at order {loss.curve[-1][0]}, below the wanted order {order}"
                )
            return above[0]
        case _:
            assert_never(loss)


def delta_of(loss: Loss) -> Fraction:
    """Return the delta of a loss: the probability of the events outside which it holds."""
    return Fraction(0) if isinstance(loss, Pure) else loss.delta


# --- (epsilon, delta) -----------------------------------------------------------------------------------------------


def epsilon_at(loss: Loss, delta: Rational) -> Fraction:
    """Return the epsilon of the (epsilon, delta) guarantee that the loss implies at this delta.

    Proof: epsilon_delta.md.

    >>> float(epsilon_at(ZCDP("1/8"), 1e-6)) < 2.42
    True
    """
    wanted, own_delta = rational(delta, "delta"), delta_of(loss)
    if isinstance(loss, Pure | Approximate) and own_delta <= wanted <= 1:
        return loss.epsilon
    if not own_delta < wanted < 1:
        raise InvalidParameter(f"delta must be above the loss's own delta {own_delta} and below 1, got {wanted}")
    remaining_delta = (wanted - own_delta) / (1 - own_delta)
    return digits_up(
        max(
            Fraction(0),
            smallest_bound(loss, lambda order: renyi_divergence(loss, order) + _epsilon_excess(order, remaining_delta)),
        )
    )


def _epsilon_excess(order: Fraction, delta: Fraction) -> Fraction:
    """Return the amount by which epsilon exceeds the Renyi divergence at an order, in the conversion to this delta."""
    return log_up(1 - 1 / order) - log_down(delta * order) / (order - 1)


def delta_at(loss: Loss, epsilon: Rational) -> Fraction:
    """Return the delta of the (epsilon, delta) guarantee that the loss implies at this epsilon.

    Proof: epsilon_delta.md.

    >>> delta_at(Pure(1), 1)
    Fraction(0, 1)
    """
    wanted, own_delta = rational(epsilon, "epsilon"), delta_of(loss)
    if wanted < 0:
        raise InvalidParameter(f"epsilon must be at least 0, got {wanted}")
    if isinstance(loss, Pure | Approximate):
        inner_delta = _pure_delta(loss.epsilon, wanted)
    else:
        inner_delta = smallest_bound(loss, lambda order: _renyi_delta(renyi_divergence(loss, order), order, wanted))
    return digits_up(min(Fraction(1), own_delta + (1 - own_delta) * inner_delta))


def _pure_delta(epsilon: Fraction, wanted: Fraction) -> Fraction:
    """Return an epsilon-DP mechanism's delta at a smaller epsilon: (e**epsilon - e**wanted) / (e**epsilon + 1)."""
    if epsilon <= wanted:
        return Fraction(0)
    return 1 - (exp_down(wanted - epsilon) + exp_down(-epsilon)) / (1 + exp_down(-epsilon))


def _renyi_delta(divergence: Fraction, order: Fraction, epsilon: Fraction) -> Fraction:
    """Return the delta at one order: exp((a - 1)(D - epsilon)) (1 - 1/a)**(a - 1) / a."""
    exponent = (order - 1) * (divergence - epsilon + log_up(1 - 1 / order)) - log_down(order)
    return exp_up(min(Fraction(0), exponent))


def largest_rho(epsilon: Rational, delta: Rational) -> Fraction:
    """Return a rho, as large as the search finds, such that rho-zCDP implies (epsilon, delta)-DP.

    Proof: epsilon_delta.md.
    """
    target_epsilon, target_delta = rational(epsilon, "epsilon"), rational(delta, "delta")
    if target_epsilon <= 0 or not 0 < target_delta < 1:
        raise InvalidParameter("an (epsilon, delta) budget needs epsilon above 0, and delta above 0 and below 1")
    return digits_down(
        max(Fraction(0), -_search_orders(lambda order: (_epsilon_excess(order, target_delta) - target_epsilon) / order))
    )


def smallest_bound(loss: Loss, bound: Callable[[Fraction], Fraction]) -> Fraction:
    """Return the smallest bound over the orders at which the loss is known."""
    if isinstance(loss, Renyi):
        return min(bound(order) for order, _ in loss.curve)
    return _search_orders(bound)


def _search_orders(bound: Callable[[Fraction], Fraction]) -> Fraction:
    """Search all orders above 1 for the smallest bound. Each bound is valid, so missing the optimum is safe."""
    best, gap = min((bound(1 + Fraction(2) ** power), Fraction(2) ** power) for power in range(-20, 45))
    for halving in range(1, 25):
        factor = 1 + Fraction(1, 2**halving)
        for candidate in (_round_to_64_bits(gap * factor), _round_to_64_bits(gap / factor)):
            best, gap = min((best, gap), (bound(1 + candidate), candidate))
    return best


def _round_to_64_bits(x: Fraction) -> Fraction:
    """Round x to a multiple of 2**-64."""
    return Fraction(round(x * 2**64), 2**64)
