"""Explain a privacy loss: its epsilon-delta curve, the loss of groups, and the power of tests for one unit."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from dither.errors import InvalidParameter
from dither.loss import ZCDP, Approximate, Loss, Pure, Rational, Renyi, rational
from dither.privacy.accounting.composition import group
from dither.privacy.accounting.conversion import delta_of, epsilon_at, renyi_divergence, smallest_bound
from dither.privacy.accounting.rounding import digits_up, exp_down, exp_up, log_down, log_up
from dither.schema import BudgetCap

USUAL_DELTA = Fraction(1, 10**6)
FALSE_POSITIVE_RATES = (Fraction(1, 100), Fraction(1, 20), Fraction(1, 10), Fraction(1, 2))


def cap_loss(cap: BudgetCap) -> Loss:
    """Return a budget's limit as a loss."""
    match cap.kind:
        case "pure":
            return Pure(cap.epsilon or Fraction(0))
        case "zcdp":
            return ZCDP(cap.rho or Fraction(0), cap.delta)
        case "renyi":
            return Renyi(((cap.order or Fraction(2), cap.epsilon or Fraction(0)),), cap.delta)


def stated_epsilon(loss: Loss) -> tuple[Fraction, Fraction]:
    """Return the delta and epsilon with which a loss is stated where one pair must do.

    A pure loss has delta 0. Otherwise delta is twice the loss's own, of which the conversion to epsilon uses one half,
    or 1e-6 if it has none.
    """
    if isinstance(loss, Pure):
        return Fraction(0), loss.epsilon
    delta = 2 * delta_of(loss) or USUAL_DELTA
    return delta, epsilon_at(loss, delta)


def privacy_curve(loss: Loss, deltas: Iterable[Rational]) -> tuple[tuple[Fraction, Fraction], ...]:
    """Return the pairs (delta, epsilon) of a loss at the given deltas.

    Proof: epsilon_delta.md.
    """
    return tuple((rational(delta, "delta"), epsilon_at(loss, delta)) for delta in deltas)


def group_privacy_table(loss: Loss, sizes: Iterable[int]) -> tuple[tuple[int, Loss], ...]:
    """Return the pairs (size, loss) for groups of the given sizes.

    Proof: group_privacy.md.
    """
    return tuple((size, group(loss, size)) for size in sizes)


def power_of_test(loss: Loss, false_positive: Rational) -> Fraction:
    """Bound the power of every test with this false positive rate that tells two neighbouring datasets apart.

    Proof: meaning.md.
    """
    rate = rational(false_positive, "false positive rate")
    if not 0 <= rate <= 1:
        raise InvalidParameter(f"a false positive rate must lie between 0 and 1, got {rate}")
    if isinstance(loss, Pure | Approximate):
        return digits_up(_power_from_epsilon_delta(loss.epsilon, delta_of(loss), rate))
    loss_delta = delta_of(loss)
    if loss_delta >= 1 or rate == 0:
        return loss_delta
    inner = min(Fraction(1), rate / (1 - loss_delta))
    return digits_up(
        loss_delta
        + (1 - loss_delta)
        * smallest_bound(loss, lambda order: _power_from_renyi(renyi_divergence(loss, order), order, inner))
    )


def _power_from_epsilon_delta(epsilon: Fraction, delta: Fraction, rate: Fraction) -> Fraction:
    """Compute min(e**epsilon a + delta, 1 - e**-epsilon (1 - a - delta)) for the rate a; it is at most 1."""
    other = 1 - exp_down(-epsilon) * max(Fraction(0), 1 - rate - delta)
    if epsilon > 200:
        return other if rate else min(delta, other)
    return min(exp_up(epsilon) * rate + delta, other)


def _power_from_renyi(divergence: Fraction, order: Fraction, rate: Fraction) -> Fraction:
    """Bound the power given a Renyi divergence: min((e**D a)**(1 - 1/o), 1 - e**-D (1 - a)**(o / (o - 1)))."""
    first = exp_up(min(Fraction(0), (1 - 1 / order) * (divergence + log_up(rate))))
    if rate == 1:
        return first
    return min(first, 1 - exp_down(order / (order - 1) * log_down(1 - rate) - divergence))


def interpret(loss: Loss, rates: Iterable[Rational] = FALSE_POSITIVE_RATES) -> tuple[tuple[Fraction, Fraction], ...]:
    """Return the pairs (false positive rate, highest power of any test for one unit's presence).

    Proof: meaning.md.
    """
    return tuple((rational(rate), power_of_test(loss, rate)) for rate in rates)
