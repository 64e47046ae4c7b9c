"""Composition of privacy losses: sums, parallel and joint composition, sampling, and group privacy.

All results are exact rationals, or are rounded up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import comb
from typing import assert_never

from dither.errors import InvalidParameter
from dither.loss import ZCDP, Approximate, Loss, Pure, Rational, Renyi, rational, round_up
from dither.privacy.accounting.conversion import ORDERS, as_zcdp, delta_of, renyi_divergence
from dither.privacy.accounting.rounding import digits_up, exp_up, log_up

Matrix = Sequence[Sequence[Rational]]


# --- Several losses -------------------------------------------------------------------------------------------------


def compose(losses: Sequence[Loss]) -> Loss:
    """Return the loss of several answers together: the sum, in the weakest kind of loss among them.

    Proof: composition.md.
    """
    return _fold(losses, lambda parts: sum(parts, Fraction(0)))


def self_compose(loss: Loss, times: int) -> Loss:
    """Return the loss of the same mechanism applied `times` times.

    Proof: composition.md.
    """
    if times < 0:
        raise InvalidParameter(f"times must be at least 0, got {times}")
    return _fold([loss], lambda parts: times * parts[0])


def compose_parallel(losses: Sequence[Loss], straddle: int = 1) -> Loss:
    """Return the loss of answers over disjoint parts of the data, if one unit has rows in at most `straddle` parts.

    Proof: composition.md.
    """
    if straddle < 1:
        raise InvalidParameter(f"straddle must be at least 1 (a unit has rows in one part or more), got {straddle}")
    return _fold(losses, lambda parts: sum(sorted(parts)[-straddle:], Fraction(0)))


def _fold(losses: Sequence[Loss], join: Callable[[list[Fraction]], Fraction]) -> Loss:
    """Combine losses coordinate by coordinate with `join`, in the weakest kind of loss among them."""
    if not losses:
        return Pure(Fraction(0))
    delta = min(Fraction(1), round_up(join([delta_of(loss) for loss in losses])))
    curves = [loss for loss in losses if isinstance(loss, Renyi)]
    if curves:
        orders = sorted(set.intersection(*({order for order, _ in loss.curve} for loss in curves)))
        return Renyi(tuple((a, round_up(join([renyi_divergence(loss, a) for loss in losses]))) for a in orders), delta)
    if any(isinstance(loss, ZCDP) for loss in losses):
        return ZCDP(round_up(join([as_zcdp(loss).rho for loss in losses])), delta)
    epsilon = round_up(join([loss.epsilon for loss in losses if isinstance(loss, Pure | Approximate)]))
    return Approximate(epsilon, delta) if delta else Pure(epsilon)


def joint_laplace(weights: Matrix, scales: Sequence[Rational], rows: Rational) -> Pure:
    """Return the joint loss of linear queries over one partition with Laplace noise.

    Each query is a row of `weights` with a noise scale. The loss is the largest L1 norm of a column of weights over
    scales, times the `rows` that one unit can change.

    Proof: joint_cost.md.

    >>> joint_laplace([[1, 0], [0, 1], [1, 1]], [10, 10, 10], rows=1)
    Pure(epsilon=Fraction(1, 5))
    """
    noise = _positive_rationals(scales, "scale", len(weights))
    columns = _column_sums(weights, lambda weight, row: abs(weight) / noise[row])
    return Pure(round_up(max(columns) * _nonnegative(rows)))


def joint_gaussian(weights: Matrix, variances: Sequence[Rational], rows: Rational) -> ZCDP:
    """Return the joint loss of linear queries over one partition with Gaussian noise.

    Each query is a row of `weights` with a noise variance. The loss is half the largest squared L2 norm of a column of
    weights over standard deviations, times the square of the `rows` that one unit can change.

    Proof: joint_cost.md.

    >>> joint_gaussian([[1, 0], [0, 1], [1, 1]], [4, 4, 4], rows=1)
    ZCDP(rho=Fraction(1, 4), delta=Fraction(0, 1))
    """
    noise = _positive_rationals(variances, "variance", len(weights))
    columns = _column_sums(weights, lambda weight, row: weight * weight / noise[row])
    return ZCDP(round_up(max(columns) * _nonnegative(rows) ** 2 / 2))


def _column_sums(weights: Matrix, term: Callable[[Fraction, int], Fraction]) -> list[Fraction]:
    """Return the sum of `term(weight, row number)` over each column of the matrix."""
    if not weights or not weights[0] or len({len(row) for row in weights}) != 1:
        raise InvalidParameter(
            "the matrix of weights needs one row for each query and one column for each cell, rows of equal length"
        )
    totals = [Fraction(0)] * len(weights[0])
    for number, row in enumerate(weights):
        for cell, weight in enumerate(row):
            if weight:
                totals[cell] += term(rational(weight, "weight"), number)
    return totals


def _positive_rationals(values: Sequence[Rational], name: str, count: int) -> list[Fraction]:
    """Return the values as rationals; refuse values that are not positive, or not `count` in number."""
    exact = [rational(value, name) for value in values]
    if len(exact) != count or min(exact, default=Fraction(1)) <= 0:
        raise InvalidParameter(f"each of the {count} queries needs one positive {name}, got {len(exact)} values")
    return exact


def _nonnegative(rows: Rational) -> Fraction:
    """Return `rows`, the number of rows that one unit can change, as a rational; refuse a negative one."""
    exact = rational(rows, "rows")
    if exact < 0:
        raise InvalidParameter(f"rows must be at least 0, got {exact}")
    return exact


# --- Sampling -------------------------------------------------------------------------------------------------------


def sampled_loss(loss: Loss, rate: Rational) -> Pure | Approximate:
    """Return the loss if each unit as a whole is sampled with probability `rate`, in secret and anew for each charge.

    Proof: subsampling.md.
    """
    probability = _sampling_rate(rate)
    match loss:
        case Pure():
            return Pure(_amplified_epsilon(loss.epsilon, probability))
        case Approximate():
            return Approximate(_amplified_epsilon(loss.epsilon, probability), round_up(loss.delta * probability))
        case ZCDP() | Renyi():
            raise InvalidParameter(
                "sampling amplifies pure and approximate losses only; for Gaussian noise use subsampled_gaussian"
            )
        case _:
            assert_never(loss)


def _amplified_epsilon(epsilon: Fraction, rate: Fraction) -> Fraction:
    """Return log(1 + q (e**epsilon - 1)), computed as epsilon + log(q + (1 - q) e**-epsilon) and rounded up."""
    return min(epsilon, digits_up(max(Fraction(0), epsilon + log_up(rate + (1 - rate) * exp_up(-epsilon)))))


def _sampling_rate(rate: Rational) -> Fraction:
    """Return the sampling rate as a rational; refuse one that is not above 0 and at most 1."""
    exact = rational(rate, "rate")
    if not 0 < exact <= 1:
        raise InvalidParameter(f"a sampling rate must be above 0 and at most 1, got {exact}")
    return exact


def subsampled_gaussian(
    rate: Rational, variance: Rational, l2_squared: Rational, orders: Sequence[int] = ORDERS
) -> Renyi:
    """Return the loss of (discrete or continuous) Gaussian noise on a sum over units sampled with probability `rate`.

    Proof: subsampled_gaussian.md.
    """
    (noise,) = _positive_rationals([variance], "variance", 1)
    ratio = _nonnegative(l2_squared) / noise
    if any(order < 2 or order != int(order) for order in orders):
        raise InvalidParameter("the orders of a subsampled Gaussian must be integers of at least 2")
    return Renyi(tuple((Fraction(order), _sampled_divergence(_sampling_rate(rate), ratio, order)) for order in orders))


def _sampled_divergence(rate: Fraction, ratio: Fraction, order: int) -> Fraction:
    """Return log(sum_k C(a, k) (1 - q)**(a - k) q**k e**(k (k - 1) ratio / 2)) / (a - 1), rounded up."""
    most = order * (order - 1) * ratio / 2
    rate_powers, rest_powers = _powers(rate, order), _powers(1 - rate, order)
    growth = [exp_up(k * (k - 1) * ratio / 2 - most) for k in range(order + 1)]
    terms = [comb(order, k) * rate_powers[k] * rest_powers[order - k] * growth[k] for k in range(order + 1)]
    bound = (most + log_up(sum(terms, Fraction(0)))) / (order - 1)
    return min(round_up(order * ratio / 2), digits_up(max(Fraction(0), bound)))


def _powers(base: Fraction, most: int) -> list[Fraction]:
    """Return upper bounds of base**0 to base**most, with short numerators and denominators."""
    powers = [Fraction(1)]
    for _ in range(most):
        powers.append(_dyadic_up(powers[-1] * base))
    return powers


def _dyadic_up(x: Fraction) -> Fraction:
    """Round x up to 192 leading bits over a power of two."""
    shift = 192 - x.numerator.bit_length() + x.denominator.bit_length()
    return Fraction(-(-(x.numerator << shift) // x.denominator), 1 << shift) if shift > 0 else x


# --- Groups ---------------------------------------------------------------------------------------------------------


def group(loss: Loss, size: int) -> Loss:
    """Return the loss for `size` units, or actions, that change together (group privacy).

    Proof: group_privacy.md.
    """
    if size < 1:
        raise InvalidParameter(f"size must be at least 1, got {size}")
    match loss:
        case Pure():
            return Pure(round_up(size * loss.epsilon))
        case Approximate():
            return Approximate(round_up(size * loss.epsilon), _group_delta(loss, size))
        case ZCDP() if loss.delta == 0 or size == 1:
            return ZCDP(round_up(size * size * loss.rho), loss.delta)
        case ZCDP() | Renyi():
            raise InvalidParameter(
                f"group privacy has no rule for this {loss.kind} loss; convert it to (epsilon, delta) first"
            )
        case _:
            assert_never(loss)


def group_in_distinct_cells(loss: Loss, size: int) -> Loss:
    """Return the loss of Gaussian noise on a table for `size` actions, if the measure puts each in its own cell.

    Proof: group_privacy.md.
    """
    match loss:
        case ZCDP() if loss.delta == 0 and size >= 1:
            return ZCDP(round_up(size * loss.rho))
        case _:
            raise InvalidParameter(
                "grouping in distinct cells needs a zcdp loss without delta, and a size of at least 1"
            )


def _group_delta(loss: Approximate, size: int) -> Fraction:
    """Return delta (1 + e**epsilon + ... + e**((size - 1) epsilon)), at most 1, by doubling the number of terms."""
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
