"""From a loss to the mechanism that costs it: never more, and as near as its parameters allow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from math import exp
from typing import Any, assert_never

from dither.errors import InvalidParameter, Unsupported
from dither.loss import LARGEST_TERM, ZCDP, Approximate, Loss, Pure, Renyi, Sensitivity
from dither.privacy.accounting.conversion import largest_rho
from dither.privacy.accounting.rounding import digits_down, digits_up, exp_down, exp_up, log_up
from dither.privacy.mechanisms.additive import DiscreteGaussian, DiscreteLaplace, Geometric, Snapping, Staircase
from dither.privacy.mechanisms.base import HALF, Mechanism, as_cells
from dither.privacy.mechanisms.partitions import (
    GaussianThreshold,
    LaplaceThreshold,
    PartitionSelection,
    PublicThreshold,
    any_of,
)
from dither.privacy.mechanisms.quantiles import Quantiles
from dither.privacy.mechanisms.response import RandomizedResponse
from dither.privacy.mechanisms.selection import AboveThreshold, ExponentialMechanism, NoisyMax, SparseVector, TopK
from dither.privacy.noise import LARGEST_SCALE, SMALLEST_SCALE

HALVINGS = 50

Maker = Callable[..., Mechanism]  # (loss, sensitivity, **options)


def calibrate(kind: str, loss: Loss, sensitivity: Sensitivity, **options: Any) -> Mechanism:
    """The mechanism of that kind that costs at most `loss` at this sensitivity.

    >>> calibrate("discrete_laplace", Pure("1/10"), Sensitivity.of(l0=1, linf=3))
    DiscreteLaplace(scale=Fraction(30, 1))
    """
    if kind not in MAKERS:
        raise InvalidParameter(f"no mechanism is called {kind[:40]!r}; there are: {', '.join(MAKERS)}")
    try:
        return MAKERS[kind](loss, sensitivity, **options)
    except (TypeError, ArithmeticError) as error:
        raise InvalidParameter(f"{kind} is made from other options: {error}") from None


def rescale(make: Callable[..., Mechanism]) -> Maker:
    """For a kind whose pure loss is proportional to 1 / scale: the least scale that the loss allows."""

    def maker(loss: Loss, sensitivity: Sensitivity, **options: Any) -> Mechanism:
        def at(scale: Fraction) -> Mechanism:
            return make(scale=scale, **options)

        match loss:
            case Pure() | Approximate():
                return at(_ratio(_epsilon(at(Fraction(1)), sensitivity), loss.epsilon))
            case ZCDP() | Renyi():
                rho = _rho(loss)
                return at(_least(lambda scale: at(scale).zcdp_loss(sensitivity).rho <= rho))
            case _:
                assert_never(loss)

    return maker


def _epsilon(mechanism: Mechanism, sensitivity: Sensitivity) -> Fraction:
    loss = mechanism.loss(sensitivity)
    if isinstance(loss, Pure | Approximate):
        return loss.epsilon
    raise Unsupported(f"{mechanism.name} has no pure loss; ask for a zcdp loss, or an approximate one")


def _ratio(cost: Fraction, wanted: Fraction, least: Fraction = SMALLEST_SCALE) -> Fraction:
    """cost / wanted in few digits, rounded up; the least that is allowed where nothing is at stake."""
    if not wanted and cost:
        raise InvalidParameter("a release that depends on the data cannot cost nothing")
    exact = max(least, cost / wanted if cost else least)
    return exact if max(exact.numerator, exact.denominator) <= LARGEST_TERM else digits_up(exact)


def _least(fits: Callable[[Fraction], bool]) -> Fraction:
    """The least scale found that fits. It has been tried, so nothing rests on the search."""
    high = SMALLEST_SCALE
    while not fits(high):
        high = 2 * high
        if high > LARGEST_SCALE:
            raise InvalidParameter(f"so small a loss would need noise of a scale above {LARGEST_SCALE}")
    low = high / 2 if high > SMALLEST_SCALE else high
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def _rho(loss: Loss) -> Fraction:
    """The rho that a loss leaves room for."""
    match loss:
        case ZCDP():
            return loss.rho
        case Approximate():
            return largest_rho(loss.epsilon, loss.delta)
        case Renyi():
            return digits_down(min(epsilon / order for order, epsilon in loss.curve))
        case Pure():
            raise Unsupported("Gaussian noise has no pure loss; ask for a zcdp loss, or an approximate one")
        case _:
            assert_never(loss)


def _delta(loss: Loss) -> Fraction:
    """The delta that a loss leaves room for."""
    if isinstance(loss, Pure) or not loss.delta:
        raise Unsupported("naming keys that are not declared needs a loss with a delta")
    return loss.delta


def _gaussian(loss: Loss, sensitivity: Sensitivity) -> DiscreteGaussian:
    return DiscreteGaussian(_ratio(sensitivity.l2_squared / 2, _rho(loss), SMALLEST_SCALE**2))


def _staircase(loss: Loss, sensitivity: Sensitivity, width: int = 0) -> Mechanism:
    step = width or max(1, int(sensitivity.linf))

    def make(scale: Fraction) -> Staircase:
        epsilon = 1 / scale
        rise = round(step / (1 + exp(min(500.0, float(epsilon / 2)))))  # where the expected size of the noise is least
        return Staircase(epsilon, step, min(step, max(1, rise)))

    return rescale(make)(loss, sensitivity)


def _above(scale: Fraction, threshold: int, count: int = 1) -> AboveThreshold:
    return AboveThreshold(threshold, count, scale, scale * _wider(count))


def _sparse(scale: Fraction, threshold: int, count: int = 1) -> SparseVector:
    """Half of the loss for finding, half for answering."""
    wider = _wider(count)
    return SparseVector(
        threshold, count, scale, scale * wider, max(SMALLEST_SCALE, scale * count / (1 + 2 * count / wider))
    )


def _wider(count: int) -> Fraction:
    """The score's noise over the threshold's: the cube root of 2 count makes their sum smallest (Lyu et al. 2017)."""
    return Fraction(round(1000 * (2 * count) ** (1 / 3)), 1000)


def _quantiles(scale: Fraction, quantiles: tuple[Fraction, ...] = (Fraction(1, 2),)) -> Quantiles:
    return Quantiles(tuple(quantiles), scale)


def _partitions(loss: Loss, sensitivity: Sensitivity) -> Mechanism:
    delta, groups = _delta(loss), max(1, as_cells(sensitivity))
    each = digits_down(1 - exp_up(log_up(1 - delta) / groups)) if delta < 1 else delta
    if any_of(each, groups) > delta:
        each = digits_down(delta / groups)
    return rescale(lambda scale: PartitionSelection(1 / scale, each))(loss, sensitivity)


def _laplace_threshold(loss: Loss, sensitivity: Sensitivity) -> Mechanism:
    found = rescale(lambda scale: LaplaceThreshold(scale, HALF))(loss, sensitivity)
    return _lowest_threshold(found, _delta(loss), sensitivity)


def _gaussian_threshold(loss: Loss, sensitivity: Sensitivity) -> Mechanism:
    delta = _delta(loss)
    if isinstance(loss, Approximate):  # half of delta for the threshold, half for reading rho as epsilon
        delta, loss = delta / 2, replace(loss, delta=delta / 2)
    variance = _ratio(sensitivity.l2_squared / 2, _rho(loss), SMALLEST_SCALE**2)
    return _lowest_threshold(GaussianThreshold(variance, HALF), delta, sensitivity)


def _lowest_threshold(found: Mechanism, delta: Fraction, sensitivity: Sensitivity) -> Mechanism:
    """The lowest threshold at which the loss's delta fits."""

    def at(threshold: int) -> Mechanism:
        return replace(found, threshold=threshold)  # type: ignore[type-var]

    low, high = 0, HALF
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if at(middle).zcdp_loss(sensitivity).delta <= delta else (middle, high)
    return at(high)


def _response(loss: Loss, sensitivity: Sensitivity, categories: int = 2) -> Mechanism:
    always = RandomizedResponse(categories, Fraction(1))

    def make(scale: Fraction) -> RandomizedResponse:
        odds = exp_down(min(Fraction(40), 1 / scale)) * (1 - Fraction(1, 10**18))  # room for rounding the loss up
        return replace(always, flip_probability=digits_up(categories / (categories + odds - 1)))

    if isinstance(loss, Pure | Approximate):
        return make(_ratio(Fraction(as_cells(sensitivity)), loss.epsilon))
    return rescale(make)(loss, sensitivity)


MAKERS: dict[str, Maker] = {
    "discrete_laplace": rescale(DiscreteLaplace),
    "discrete_gaussian": _gaussian,
    "geometric": rescale(Geometric),
    "staircase": _staircase,
    "snapping": rescale(Snapping),
    "noisy_max": rescale(NoisyMax),
    "exponential": rescale(ExponentialMechanism),
    "top_k": rescale(TopK),
    "above_threshold": rescale(_above),
    "sparse_vector": rescale(_sparse),
    "quantiles": rescale(_quantiles),
    "partition_selection": _partitions,
    "laplace_threshold": _laplace_threshold,
    "gaussian_threshold": _gaussian_threshold,
    "public_threshold": rescale(PublicThreshold),
    "randomized_response": _response,
}
