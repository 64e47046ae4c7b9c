"""Part of the former privacy.accounting."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from dither.errors import InvalidParameter
from dither.loss import Approximate, Loss, Pure, Rational, rational
from dither.privacy.accounting.composition import group
from dither.privacy.accounting.conversion import _delta_of, _divergence, _least, epsilon_at
from dither.privacy.accounting.rounding import digits_up, exp_down, exp_up, log_down, log_up

FALSE_POSITIVES = (Fraction(1, 100), Fraction(1, 20), Fraction(1, 10), Fraction(1, 2))


def privacy_curve(loss: Loss, deltas: Iterable[Rational]) -> tuple[tuple[Fraction, Fraction], ...]:
    """The epsilon at every delta.

    Proof: epsilon_delta.md.
    """
    return tuple((rational(delta, "delta"), epsilon_at(loss, delta)) for delta in deltas)


def group_privacy_table(loss: Loss, sizes: Iterable[int]) -> tuple[tuple[int, Loss], ...]:
    """The loss for groups of several sizes.

    Proof: group_privacy.md.
    """
    return tuple((size, group(loss, size)) for size in sizes)


def power_of_test(loss: Loss, false_positive: Rational) -> Fraction:
    """The most that an event of probability `false_positive` can have on a neighbour: the power of the best test.

    Proof: meaning.md.
    """
    rate = rational(false_positive, "false positive rate")
    if not 0 <= rate <= 1:
        raise InvalidParameter(f"a false positive rate must be between 0 and 1, got {rate}")
    if isinstance(loss, Pure | Approximate):
        return digits_up(_likely(loss.epsilon, _delta_of(loss), rate))
    own = _delta_of(loss)
    if own >= 1 or rate == 0:
        return own
    inner = min(Fraction(1), rate / (1 - own))
    return digits_up(own + (1 - own) * _least(loss, lambda order: _hoelder(_divergence(loss, order), order, inner)))


def _likely(epsilon: Fraction, delta: Fraction, rate: Fraction) -> Fraction:
    """min(e**epsilon a + delta, 1 - e**-epsilon (1 - a - delta)), at most 1."""
    other = 1 - exp_down(-epsilon) * max(Fraction(0), 1 - rate - delta)
    if epsilon > 200:
        return other if rate else min(delta, other)
    return min(exp_up(epsilon) * rate + delta, other)


def _hoelder(divergence: Fraction, order: Fraction, rate: Fraction) -> Fraction:
    """The power that a Renyi divergence allows: min((e**D a)**(1 - 1/o), 1 - e**-D (1 - a)**(o / (o - 1)))."""
    first = exp_up(min(Fraction(0), (1 - 1 / order) * (divergence + log_up(rate))))
    if rate == 1:
        return first
    return min(first, 1 - exp_down(order / (order - 1) * log_down(1 - rate) - divergence))


def interpret(loss: Loss, rates: Iterable[Rational] = FALSE_POSITIVES) -> tuple[tuple[Fraction, Fraction], ...]:
    """For each false positive rate, the highest power of any test for one unit's presence.

    Proof: meaning.md.
    """
    return tuple((rational(rate), power_of_test(loss, rate)) for rate in rates)
