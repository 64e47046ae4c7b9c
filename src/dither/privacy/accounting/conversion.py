"""What losses add up to, what they mean, and the filters that stop them.

Everything here is an exact rational or is rounded in the safe direction: losses, deltas and powers up, caps down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import assert_never

from dither.errors import InvalidParameter
from dither.loss import ZCDP, Approximate, Loss, Pure, Rational, Renyi, rational, rounded_up
from dither.privacy.accounting.rounding import digits_down, digits_up, exp_down, exp_up, log_down, log_up

ORDERS = (*range(2, 33), *range(36, 65, 4), 80, 96, 128, 160, 192, 256)


# --- From one kind of loss to another -------------------------------------------------------------------------------


def pure_as_rho(epsilon: Fraction) -> Fraction:
    """The zCDP of an epsilon-private mechanism: epsilon tanh(epsilon / 2), never above epsilon**2 / 2.

    Proof: pure_loss.md.
    """
    if epsilon > 100:
        return epsilon
    return digits_up(epsilon * (1 - 2 / (exp_up(epsilon) + 1)))


def pure_as_renyi(epsilon: Fraction, order: Fraction) -> Fraction:
    """The Renyi divergence of an epsilon-private mechanism: log(cosh((a - 1/2) e) / cosh(e / 2)) / (a - 1).

    Proof: pure_loss.md.
    """
    top = log_up(1 + exp_up(-(2 * order - 1) * epsilon))
    bottom = log_down(1 + exp_down(-epsilon))
    return min(epsilon, max(Fraction(0), digits_up(epsilon + (top - bottom) / (order - 1))))


def as_zcdp(loss: Loss) -> ZCDP:
    """The loss as (delta-approximate) zCDP; a Renyi curve at a few orders bounds no other order and is refused.

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
            raise InvalidParameter("a Renyi loss at fixed orders is not zCDP; a budget of kind renyi can take it")
        case _:
            assert_never(loss)


def as_renyi(loss: Loss, orders: Iterable[Rational]) -> Renyi:
    """The loss at the given orders; a curve is read at its next order, since the divergence grows with the order.

    Proof: kinds_of_loss.md.
    """
    exact = [rational(order, "order") for order in orders]
    return Renyi(tuple((order, rounded_up(_divergence(loss, order))) for order in exact), _delta_of(loss))


def _divergence(loss: Loss, order: Fraction) -> Fraction:
    """A bound on the Renyi divergence at one order, outside the loss's delta."""
    match loss:
        case Pure() | Approximate():
            return pure_as_renyi(loss.epsilon, order)
        case ZCDP():
            return loss.rho * order
        case Renyi():
            above = [epsilon for point, epsilon in loss.curve if point >= order]
            if not above:
                raise InvalidParameter(f"this Renyi curve ends at order {loss.curve[-1][0]}, below order {order}")
            return above[0]
        case _:
            assert_never(loss)


def _delta_of(loss: Loss) -> Fraction:
    """The probability outside which the loss holds."""
    return Fraction(0) if isinstance(loss, Pure) else loss.delta


# --- (epsilon, delta) -----------------------------------------------------------------------------------------------


def epsilon_at(loss: Loss, delta: Rational) -> Fraction:
    """The epsilon of an (epsilon, delta) guarantee that the loss implies.

    Proof: epsilon_delta.md.

    >>> float(epsilon_at(ZCDP("1/8"), 1e-6)) < 2.42
    True
    """
    wanted, own = rational(delta, "delta"), _delta_of(loss)
    if isinstance(loss, Pure | Approximate) and own <= wanted <= 1:
        return loss.epsilon
    if not own < wanted < 1:
        raise InvalidParameter(f"delta must be above the loss's own delta {own} and below 1, got {wanted}")
    rest = (wanted - own) / (1 - own)
    return digits_up(max(Fraction(0), _least(loss, lambda order: _divergence(loss, order) + _excess(order, rest))))


def _excess(order: Fraction, delta: Fraction) -> Fraction:
    """What the step from Renyi divergence at an order to (epsilon, delta) adds to epsilon."""
    return log_up(1 - 1 / order) - log_down(delta * order) / (order - 1)


def delta_at(loss: Loss, epsilon: Rational) -> Fraction:
    """The delta of an (epsilon, delta) guarantee that the loss implies.

    Proof: epsilon_delta.md.

    >>> delta_at(Pure(1), 1)
    Fraction(0, 1)
    """
    wanted, own = rational(epsilon, "epsilon"), _delta_of(loss)
    if wanted < 0:
        raise InvalidParameter(f"epsilon must not be negative, got {wanted}")
    if isinstance(loss, Pure | Approximate):
        inner = _pure_delta(loss.epsilon, wanted)
    else:
        inner = _least(loss, lambda order: _renyi_delta(_divergence(loss, order), order, wanted))
    return digits_up(min(Fraction(1), own + (1 - own) * inner))


def _pure_delta(epsilon: Fraction, wanted: Fraction) -> Fraction:
    """The delta of an epsilon-private mechanism at a smaller epsilon: (e**epsilon - e**wanted) / (e**epsilon + 1)."""
    if epsilon <= wanted:
        return Fraction(0)
    return 1 - (exp_down(wanted - epsilon) + exp_down(-epsilon)) / (1 + exp_down(-epsilon))


def _renyi_delta(divergence: Fraction, order: Fraction, epsilon: Fraction) -> Fraction:
    """The delta at one order: exp((a - 1)(D - epsilon)) (1 - 1/a)**(a - 1) / a."""
    exponent = (order - 1) * (divergence - epsilon + log_up(1 - 1 / order)) - log_down(order)
    return exp_up(min(Fraction(0), exponent))


def largest_rho(epsilon: Rational, delta: Rational) -> Fraction:
    """The largest rho found whose zCDP implies (epsilon, delta).

    Proof: epsilon_delta.md.
    """
    target, failure = rational(epsilon, "epsilon"), rational(delta, "delta")
    if target <= 0 or not 0 < failure < 1:
        raise InvalidParameter("an (epsilon, delta) budget needs epsilon above 0 and delta between 0 and 1")
    return digits_down(max(Fraction(0), -_search(lambda order: (_excess(order, failure) - target) / order)))


def _least(loss: Loss, bound: Callable[[Fraction], Fraction]) -> Fraction:
    """The smallest bound over the orders at which the loss is known."""
    if isinstance(loss, Renyi):
        return min(bound(order) for order, _ in loss.curve)
    return _search(bound)


def _search(bound: Callable[[Fraction], Fraction]) -> Fraction:
    """The smallest bound found over all orders above 1. Each is valid, so nothing rests on reaching the optimum."""
    best, gap = min((bound(1 + Fraction(2) ** power), Fraction(2) ** power) for power in range(-20, 45))
    for halving in range(1, 25):
        factor = 1 + Fraction(1, 2**halving)
        for candidate in (_short(gap * factor), _short(gap / factor)):
            best, gap = min((best, gap), (bound(1 + candidate), candidate))
    return best


def _short(x: Fraction) -> Fraction:
    """About x, in few digits."""
    return Fraction(round(x * 2**64), 2**64)
