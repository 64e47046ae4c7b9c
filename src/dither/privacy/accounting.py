"""What losses add up to, what they mean, and the filters that stop them.

Everything here is an exact rational or is rounded in the safe direction: losses, deltas and powers up, caps down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import comb
from typing import ClassVar, assert_never

from dither.errors import InvalidParameter
from dither.loss import ZCDP, Approximate, Loss, Pure, Rational, Renyi, rational, rounded_up
from dither.privacy.directed import digits_down, digits_up, exp_down, exp_up, log_down, log_up
from dither.schema import BudgetCap

UNIT = 10**15
LARGEST_COST = 2**62  # what does not fit is charged as this, which no cap reaches
RESERVED = Fraction(1, 10)  # the part of an (epsilon, delta) budget's delta kept for mechanisms that have one
ORDERS = (*range(2, 33), *range(36, 65, 4), 80, 96, 128, 160, 192, 256)
FALSE_POSITIVES = (Fraction(1, 100), Fraction(1, 20), Fraction(1, 10), Fraction(1, 2))

Matrix = Sequence[Sequence[Rational]]


def units15(x: Fraction) -> int:
    """A loss in integers of 1e-15, rounded up: what the ledger counts in.

    Proof: filters.md.

    >>> units15(Fraction(1, 10)), units15(Fraction(1, 3))
    (100000000000000, 333333333333334)
    """
    return min(LARGEST_COST, -(-x.numerator * UNIT // x.denominator))


def _cap15(x: Fraction) -> int:
    """A cap in integers of 1e-15, rounded down."""
    units = x.numerator * UNIT // x.denominator
    if not 0 <= units < LARGEST_COST:
        raise InvalidParameter("a budget must be at least 0 and below 4611")
    return units


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


def privacy_curve(loss: Loss, deltas: Iterable[Rational]) -> tuple[tuple[Fraction, Fraction], ...]:
    """The epsilon at every delta.

    Proof: epsilon_delta.md.
    """
    return tuple((rational(delta, "delta"), epsilon_at(loss, delta)) for delta in deltas)


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


def group_table(loss: Loss, sizes: Iterable[int]) -> tuple[tuple[int, Loss], ...]:
    """The loss for groups of several sizes.

    Proof: group_privacy.md.
    """
    return tuple((size, group(loss, size)) for size in sizes)


def power(loss: Loss, false_positive: Rational) -> Fraction:
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


def meaning(loss: Loss, rates: Iterable[Rational] = FALSE_POSITIVES) -> tuple[tuple[Fraction, Fraction], ...]:
    """For each false positive rate, the highest power of any test for one unit's presence.

    Proof: meaning.md.
    """
    return tuple((rational(rate), power(loss, rate)) for rate in rates)


# --- Filters --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PureFilter:
    """Caps the sum of epsilons, and of deltas where the curator allowed any."""

    proof: ClassVar[str] = "filters.md"
    kind: ClassVar[str] = "pure"
    names: ClassVar[tuple[str, ...]] = ("epsilon", "delta")
    epsilon: Fraction
    delta: Fraction = Fraction(0)

    @property
    def cap(self) -> tuple[int, ...]:
        """The caps in 1e-15, rounded down."""
        return _cap15(self.epsilon), _cap15(self.delta)

    @property
    def guarantee(self) -> Pure | Approximate:
        """What holds as long as the cap is enforced, however the queries were chosen."""
        return Approximate(self.epsilon, self.delta) if self.delta else Pure(self.epsilon)

    def spend(self, loss: Loss) -> tuple[int, ...]:
        """The cost of a loss in 1e-15, rounded up."""
        match loss:
            case Pure() | Approximate():
                delta = _delta_of(loss)
                if delta and not self.delta:
                    raise _refused(loss, self.kind, "zcdp")
                return units15(loss.epsilon), units15(delta)
            case ZCDP():
                raise _refused(loss, self.kind, "zcdp")
            case Renyi():
                raise _refused(loss, self.kind, "renyi")
            case _:
                assert_never(loss)


@dataclass(frozen=True)
class ZCDPFilter:
    """Caps the sum of rhos and the sum of deltas."""

    proof: ClassVar[str] = "filters.md"
    kind: ClassVar[str] = "zcdp"
    names: ClassVar[tuple[str, ...]] = ("rho", "delta")
    rho: Fraction
    delta: Fraction = Fraction(0)

    @property
    def cap(self) -> tuple[int, ...]:
        """The caps in 1e-15, rounded down."""
        return _cap15(self.rho), _cap15(self.delta)

    @property
    def guarantee(self) -> ZCDP:
        """What holds as long as the cap is enforced, however the queries were chosen."""
        return ZCDP(self.rho, self.delta)

    def spend(self, loss: Loss) -> tuple[int, ...]:
        """The cost of a loss in 1e-15, rounded up."""
        if isinstance(loss, Renyi):
            raise _refused(loss, self.kind, "renyi")
        cost = as_zcdp(loss)
        return units15(cost.rho), units15(cost.delta)


@dataclass(frozen=True)
class RenyiFilter:
    """Caps the sum of divergences at each of a few orders that were fixed beforehand, and the sum of deltas."""

    proof: ClassVar[str] = "filters.md"
    kind: ClassVar[str] = "renyi"
    curve: tuple[tuple[Fraction, Fraction], ...]
    delta: Fraction = Fraction(0)

    def __post_init__(self) -> None:
        Renyi(self.curve, self.delta)  # refuses what is not a curve

    @property
    def names(self) -> tuple[str, ...]:
        """What each coordinate counts."""
        return (*(f"epsilon at order {order}" for order, _ in self.curve), "delta")

    @property
    def cap(self) -> tuple[int, ...]:
        """The caps in 1e-15, rounded down."""
        return (*(_cap15(epsilon) for _, epsilon in self.curve), _cap15(self.delta))

    @property
    def guarantee(self) -> Renyi:
        """What holds as long as the cap is enforced, however the queries were chosen."""
        return Renyi(self.curve, self.delta)

    def spend(self, loss: Loss) -> tuple[int, ...]:
        """The cost of a loss in 1e-15, rounded up."""
        cost = as_renyi(loss, [order for order, _ in self.curve])
        return (*(units15(epsilon) for _, epsilon in cost.curve), units15(cost.delta))


Filter = PureFilter | ZCDPFilter | RenyiFilter


@lru_cache(maxsize=256)
def filter_of(cap: BudgetCap) -> Filter:
    """The filter that enforces a declared budget.

    Proof: filters.md.
    """
    match cap.kind:
        case "pure" if cap.epsilon is not None and cap.rho is None:
            return PureFilter(cap.epsilon, cap.delta)
        case "zcdp" if cap.rho is not None and cap.epsilon is None:
            return ZCDPFilter(cap.rho, cap.delta)
        case "zcdp" if cap.epsilon is not None and cap.rho is None:
            return ZCDPFilter(largest_rho(cap.epsilon, cap.delta * (1 - RESERVED)), cap.delta * RESERVED)
        case "renyi" if cap.epsilon is not None and cap.order is not None and cap.rho is None:
            return RenyiFilter(((cap.order, cap.epsilon),), cap.delta)
        case _:
            raise InvalidParameter(
                "a budget needs epsilon (pure), rho or (epsilon, delta) (zcdp), order and epsilon (renyi)"
            )


def _refused(loss: Loss, kind: str, able: str) -> InvalidParameter:
    """The error that names a kind of budget that can take the loss."""
    return InvalidParameter(f"a budget of kind {kind} cannot take this {loss.kind} loss; one of kind {able} can")
