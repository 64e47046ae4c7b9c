"""Part of the former privacy.accounting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import comb
from typing import assert_never

from dither.errors import InvalidParameter
from dither.loss import ZCDP, Approximate, Loss, Pure, Rational, Renyi, rational, rounded_up
from dither.privacy.accounting.conversion import ORDERS, _delta_of, _divergence, as_zcdp
from dither.privacy.accounting.rounding import digits_up, exp_up, log_up

Matrix = Sequence[Sequence[Rational]]


# --- Several losses -------------------------------------------------------------------------------------------------


def compose(losses: Sequence[Loss]) -> Loss:
    """What answers together cost: the sum, in the weakest kind among them.

    Proof: composition.md.
    """
    return _fold(losses, lambda parts: sum(parts, Fraction(0)))


def repeated(loss: Loss, times: int) -> Loss:
    """What the same loss costs so many times.

    Proof: composition.md.
    """
    if times < 0:
        raise InvalidParameter(f"times must not be negative, got {times}")
    return _fold([loss], lambda parts: times * parts[0])


def parallel(losses: Sequence[Loss], straddle: int = 1) -> Loss:
    """What answers over disjoint parts cost, where one unit has rows in at most `straddle` parts.

    Proof: composition.md.
    """
    if straddle < 1:
        raise InvalidParameter(f"a unit must be allowed in at least one part, got {straddle}")
    return _fold(losses, lambda parts: sum(sorted(parts)[-straddle:], Fraction(0)))


def _fold(losses: Sequence[Loss], join: Callable[[list[Fraction]], Fraction]) -> Loss:
    """Joins losses coordinate by coordinate, in the weakest kind among them."""
    if not losses:
        return Pure(Fraction(0))
    delta = min(Fraction(1), rounded_up(join([_delta_of(loss) for loss in losses])))
    curves = [loss for loss in losses if isinstance(loss, Renyi)]
    if curves:
        orders = sorted(set.intersection(*({order for order, _ in loss.curve} for loss in curves)))
        return Renyi(tuple((a, rounded_up(join([_divergence(loss, a) for loss in losses]))) for a in orders), delta)
    if any(isinstance(loss, ZCDP) for loss in losses):
        return ZCDP(rounded_up(join([as_zcdp(loss).rho for loss in losses])), delta)
    epsilon = rounded_up(join([loss.epsilon for loss in losses if isinstance(loss, Pure | Approximate)]))
    return Approximate(epsilon, delta) if delta else Pure(epsilon)


def joint_laplace(weights: Matrix, scales: Sequence[Rational], rows: Rational) -> Pure:
    """The cost of linear queries over one partition, a row of `weights` and a scale each: the largest L1 column norm.

    Proof: joint_cost.md.

    >>> joint_laplace([[1, 0], [0, 1], [1, 1]], [10, 10, 10], rows=1)
    Pure(epsilon=Fraction(1, 5))
    """
    noise = _positive(scales, "scale", len(weights))
    columns = _columns(weights, lambda weight, row: abs(weight) / noise[row])
    return Pure(rounded_up(max(columns) * _rows(rows)))


def joint_gaussian(weights: Matrix, variances: Sequence[Rational], rows: Rational) -> ZCDP:
    """The cost of linear queries over one partition with Gaussian noise: half the largest squared L2 column norm.

    Proof: joint_cost.md.

    >>> joint_gaussian([[1, 0], [0, 1], [1, 1]], [4, 4, 4], rows=1)
    ZCDP(rho=Fraction(1, 4), delta=Fraction(0, 1))
    """
    noise = _positive(variances, "variance", len(weights))
    columns = _columns(weights, lambda weight, row: weight * weight / noise[row])
    return ZCDP(rounded_up(max(columns) * _rows(rows) ** 2 / 2))


def _columns(weights: Matrix, term: Callable[[Fraction, int], Fraction]) -> list[Fraction]:
    """The sum of each column's terms."""
    if not weights or not weights[0] or len({len(row) for row in weights}) != 1:
        raise InvalidParameter("the matrix of weights needs rows of one length, a row a query and a column a cell")
    totals = [Fraction(0)] * len(weights[0])
    for number, row in enumerate(weights):
        for cell, weight in enumerate(row):
            if weight:
                totals[cell] += term(rational(weight, "weight"), number)
    return totals


def _positive(values: Sequence[Rational], name: str, count: int) -> list[Fraction]:
    """As many positive rationals as there are queries."""
    exact = [rational(value, name) for value in values]
    if len(exact) != count or min(exact, default=Fraction(1)) <= 0:
        raise InvalidParameter(f"each of the {count} queries needs one positive {name}, got {len(exact)} values")
    return exact


def _rows(rows: Rational) -> Fraction:
    """How many rows of the partition one unit can move."""
    exact = rational(rows, "rows")
    if exact < 0:
        raise InvalidParameter(f"rows must not be negative, got {exact}")
    return exact


# --- Sampling -------------------------------------------------------------------------------------------------------


def subsampled(loss: Loss, rate: Rational) -> Pure | Approximate:
    """The loss where each unit as a whole takes part with probability `rate`, freshly and in secret, for one charge.

    Proof: subsampling.md.
    """
    kept = _rate(rate)
    match loss:
        case Pure():
            return Pure(_amplified(loss.epsilon, kept))
        case Approximate():
            return Approximate(_amplified(loss.epsilon, kept), rounded_up(loss.delta * kept))
        case ZCDP() | Renyi():
            raise InvalidParameter("sampling amplifies pure and approximate losses; Gaussian noise has its own rule")
        case _:
            assert_never(loss)


def _amplified(epsilon: Fraction, rate: Fraction) -> Fraction:
    """log(1 + q (e**epsilon - 1)), computed as epsilon + log(q + (1 - q) e**-epsilon)."""
    return min(epsilon, digits_up(max(Fraction(0), epsilon + log_up(rate + (1 - rate) * exp_up(-epsilon)))))


def _rate(rate: Rational) -> Fraction:
    """A sampling probability above 0."""
    exact = rational(rate, "rate")
    if not 0 < exact <= 1:
        raise InvalidParameter(f"a sampling rate must be above 0 and at most 1, got {exact}")
    return exact


def subsampled_gaussian(
    rate: Rational, variance: Rational, l2_squared: Rational, orders: Sequence[int] = ORDERS
) -> Renyi:
    """Discrete or continuous Gaussian noise on a sum over units that take part with probability `rate`.

    Proof: subsampled_gaussian.md.
    """
    (noise,) = _positive([variance], "variance", 1)
    ratio = _rows(l2_squared) / noise
    if any(order < 2 or order != int(order) for order in orders):
        raise InvalidParameter("the orders of a subsampled Gaussian must be integers from 2 up")
    return Renyi(tuple((Fraction(order), _sampled_divergence(_rate(rate), ratio, order)) for order in orders))


def _sampled_divergence(rate: Fraction, ratio: Fraction, order: int) -> Fraction:
    """log(sum_k C(a, k) (1 - q)**(a - k) q**k e**(k (k - 1) ratio / 2)) / (a - 1), the largest exponent taken out."""
    most = order * (order - 1) * ratio / 2
    taken, left = _powers(rate, order), _powers(1 - rate, order)
    growth = [exp_up(k * (k - 1) * ratio / 2 - most) for k in range(order + 1)]
    terms = [comb(order, k) * taken[k] * left[order - k] * growth[k] for k in range(order + 1)]
    bound = (most + log_up(sum(terms, Fraction(0)))) / (order - 1)
    return min(rounded_up(order * ratio / 2), digits_up(max(Fraction(0), bound)))


def _powers(base: Fraction, most: int) -> list[Fraction]:
    """At least base**0 to base**most, in short terms."""
    powers = [Fraction(1)]
    for _ in range(most):
        powers.append(_dyadic_up(powers[-1] * base))
    return powers


def _dyadic_up(x: Fraction) -> Fraction:
    """The next fraction above x with 192 leading bits over a power of two."""
    shift = 192 - x.numerator.bit_length() + x.denominator.bit_length()
    return Fraction(-(-(x.numerator << shift) // x.denominator), 1 << shift) if shift > 0 else x


# --- Groups and meaning ---------------------------------------------------------------------------------------------


def group(loss: Loss, size: int) -> Loss:
    """What the loss becomes for `size` units, or actions, that change together.

    Proof: group_privacy.md.
    """
    if size < 1:
        raise InvalidParameter(f"a group needs at least one member, got {size}")
    match loss:
        case Pure():
            return Pure(rounded_up(size * loss.epsilon))
        case Approximate():
            return Approximate(rounded_up(size * loss.epsilon), _group_delta(loss, size))
        case ZCDP() if loss.delta == 0 or size == 1:
            return ZCDP(rounded_up(size * size * loss.rho), loss.delta)
        case ZCDP() | Renyi():
            raise InvalidParameter(f"this {loss.kind} loss has no group rule; group its (epsilon, delta) instead")
        case _:
            assert_never(loss)


def group_in_distinct_cells(loss: Loss, size: int) -> Loss:
    """What Gaussian noise on a table costs for `size` actions, where the measure enforces that no two share a cell.

    Proof: group_privacy.md.
    """
    match loss:
        case ZCDP() if loss.delta == 0 and size >= 1:
            return ZCDP(rounded_up(size * loss.rho))
        case _:
            raise InvalidParameter("distinct cells help only a zcdp loss without delta, and at least one action")


def _group_delta(loss: Approximate, size: int) -> Fraction:
    """delta (1 + e**epsilon + ... + e**((size - 1) epsilon)), at most 1, by doubling the number of terms."""
    if loss.delta == 0:
        return loss.delta
    if (size - 1) * loss.epsilon >= log_up(1 / loss.delta):
        return Fraction(1)
    ratio = exp_up(loss.epsilon)
    total, following = Fraction(0), Fraction(1)
    for digit in f"{size:b}":
        total, following = _dyadic_up(total * (1 + following)), _dyadic_up(following * following)
        if digit == "1":
            total, following = total + following, _dyadic_up(following * ratio)
    return digits_up(min(Fraction(1), loss.delta * total))
