"""Calibration: find the mechanism of a given kind with the least noise whose loss is at most a given one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from math import exp
from typing import Any, assert_never

from dither.errors import DitherError, InvalidParameter, Unsupported
from dither.loss import LARGEST_TERM, ZCDP, Approximate, Loss, Pure, Renyi, Sensitivity
from dither.privacy.accounting.conversion import largest_rho
from dither.privacy.accounting.rounding import digits_down, digits_up, exp_down, exp_up, log_up
from dither.privacy.mechanisms.additive import (
    ColumnGaussian,
    DiscreteGaussian,
    DiscreteLaplace,
    Geometric,
    Snapping,
    Staircase,
)
from dither.privacy.mechanisms.base import HALF_INT64, Mechanism, changed_cells
from dither.privacy.mechanisms.partitions import (
    GaussianThreshold,
    LaplaceThreshold,
    PartitionSelection,
    PublicThreshold,
    any_probability,
)
from dither.privacy.mechanisms.quantiles import NoisyMaxQuantiles, Quantiles
from dither.privacy.mechanisms.response import RandomizedResponse
from dither.privacy.mechanisms.selection import AboveThreshold, ExponentialMechanism, NoisyMax, SparseVector, TopK
from dither.privacy.noise import LARGEST_SCALE, SMALLEST_SCALE

HALVINGS = 50
MOST_COLUMNS = 256  # of a table of counts, as in dither.plan.measures.columns
TOO_SMALL = f"the loss is too small: its noise would need a scale above {LARGEST_SCALE}; spend more, or add up less"

Calibrator = Callable[..., Mechanism]  # (loss, sensitivity, **options)


def calibrate(kind: str, loss: Loss, sensitivity: Sensitivity, **options: Any) -> Mechanism:
    """Return the mechanism of this kind, with as little noise as possible, that costs at most `loss`.

    >>> calibrate("discrete_laplace", Pure("1/10"), Sensitivity.of(l0=1, linf=3))
    DiscreteLaplace(scale=Fraction(30, 1))
    """
    if kind not in KINDS:
        raise InvalidParameter(f"no mechanism is called {kind[:40]!r}; the kinds are: {', '.join(KINDS)}")
    try:
        return KINDS[kind][1](loss, sensitivity, **options)
    except DitherError:
        raise
    except (TypeError, ValueError, ArithmeticError) as error:
        raise InvalidParameter(f"{kind} does not take these options: {error}") from None


def calibrate_scale(make: Callable[..., Mechanism]) -> Calibrator:
    """Return a calibrator that finds the smallest scale, for a kind whose pure loss is proportional to 1 / scale."""

    def calibrator(loss: Loss, sensitivity: Sensitivity, **options: Any) -> Mechanism:
        def mechanism_at(scale: Fraction) -> Mechanism:
            return make(scale=scale, **options)

        match loss:
            case Pure() | Approximate():
                scale = _scale_for(_pure_epsilon(mechanism_at(Fraction(1)), sensitivity), loss.epsilon)
                if scale > LARGEST_SCALE:
                    raise InvalidParameter(TOO_SMALL)
                return mechanism_at(scale)
            case ZCDP() | Renyi():
                rho = _rho_of(loss)
                return mechanism_at(
                    _smallest_scale(lambda scale: mechanism_at(scale).zcdp_loss(sensitivity).rho <= rho)
                )
            case _:
                assert_never(loss)

    return calibrator


def _pure_epsilon(mechanism: Mechanism, sensitivity: Sensitivity) -> Fraction:
    """Return the epsilon that the mechanism costs; refuse one without a pure or approximate loss."""
    loss = mechanism.loss(sensitivity)
    if isinstance(loss, Pure | Approximate):
        return loss.epsilon
    raise Unsupported(f"{mechanism.name} has no pure loss; give a zcdp or an approximate loss")


def _scale_for(cost: Fraction, wanted: Fraction, least: Fraction = SMALLEST_SCALE) -> Fraction:
    """Return cost / wanted in few digits, rounded up and at least `least`; `least` if the cost is 0."""
    if not wanted and cost:
        raise InvalidParameter("a release that depends on the data needs a loss above 0")
    exact = max(least, cost / wanted if cost else least)
    return exact if max(exact.numerator, exact.denominator) <= LARGEST_TERM else digits_up(exact)


def _smallest_scale(fits: Callable[[Fraction], bool]) -> Fraction:
    """Search for the smallest scale that fits; the result was tested, so it is valid even if not the smallest."""
    high = SMALLEST_SCALE
    while not fits(high):
        high = 2 * high
        if high > LARGEST_SCALE:
            raise InvalidParameter(TOO_SMALL)
    low = high / 2 if high > SMALLEST_SCALE else high
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def _rho_of(loss: Loss) -> Fraction:
    """Return the largest rho that a loss allows."""
    match loss:
        case ZCDP():
            return loss.rho
        case Approximate():
            return largest_rho(loss.epsilon, loss.delta)
        case Renyi():
            return digits_down(min(epsilon / order for order, epsilon in loss.curve))
        case Pure():
            raise Unsupported("Gaussian noise has no pure loss; give a zcdp or an approximate loss")
        case _:
            assert_never(loss)


def _delta_of(loss: Loss) -> Fraction:
    """Return the delta that a loss allows; refuse a loss without one."""
    if isinstance(loss, Pure) or not loss.delta:
        raise Unsupported("releasing undeclared keys needs a loss with delta above 0")
    return loss.delta


def _discrete_gaussian(loss: Loss, sensitivity: Sensitivity) -> DiscreteGaussian:
    """Return discrete Gaussian noise of the smallest variance that the loss allows."""
    return DiscreteGaussian(_scale_for(sensitivity.l2_squared / 2, _rho_of(loss), SMALLEST_SCALE**2))


def _staircase(loss: Loss, sensitivity: Sensitivity, width: int = 0) -> Mechanism:
    """Return staircase noise with steps of `width` (default: the sensitivity of a cell)."""
    step = width or max(1, int(sensitivity.linf))

    def make(scale: Fraction) -> Staircase:
        epsilon = 1 / scale
        rise = round(step / (1 + exp(min(500.0, float(epsilon / 2)))))  # minimizes the expected size of the noise
        return Staircase(epsilon, step, min(step, max(1, rise)))

    return calibrate_scale(make)(loss, sensitivity)


def _above_threshold(scale: Fraction, threshold: int, count: int = 1) -> AboveThreshold:
    """Build a mechanism whose threshold has noise of this scale, and its scores of a larger one."""
    return AboveThreshold(threshold, count, scale, scale * _score_noise_ratio(count))


def _sparse_vector(scale: Fraction, threshold: int, count: int = 1) -> SparseVector:
    """Build a sparse vector mechanism that spends half of its loss on finding places and half on answering."""
    ratio = _score_noise_ratio(count)
    return SparseVector(
        threshold, count, scale, scale * ratio, max(SMALLEST_SCALE, scale * count / (1 + 2 * count / ratio))
    )


def _score_noise_ratio(count: int) -> Fraction:
    """Return the score noise over the threshold noise: (2 count)^(1/3) minimizes their sum (Lyu et al. 2017)."""
    return Fraction(round(1000 * (2 * count) ** (1 / 3)), 1000)


def _quantiles(make: Callable[..., Mechanism]) -> Calibrator:
    """Return a calibrator of a quantile mechanism; the default is the median."""

    def make_at(scale: Fraction, quantiles: tuple[Fraction, ...] = (Fraction(1, 2),)) -> Mechanism:
        return make(tuple(quantiles), scale)

    return calibrate_scale(make_at)


def _partition_selection(loss: Loss, sensitivity: Sensitivity) -> Mechanism:
    """Return partition selection that splits the delta over the groups that one unit can be in."""
    delta, groups = _delta_of(loss), max(1, changed_cells(sensitivity))
    group_delta = digits_down(1 - exp_up(log_up(1 - delta) / groups)) if delta < 1 else delta
    if any_probability(group_delta, groups) > delta:
        group_delta = digits_down(delta / groups)
    return calibrate_scale(lambda scale: PartitionSelection(1 / scale, group_delta))(loss, sensitivity)


def _laplace_threshold(loss: Loss, sensitivity: Sensitivity) -> Mechanism:
    """Return the Laplace threshold of the smallest scale, then of the lowest threshold."""
    mechanism = calibrate_scale(lambda scale: LaplaceThreshold(scale, HALF_INT64))(loss, sensitivity)
    return _lowest_threshold(mechanism, _delta_of(loss), sensitivity)


def _gaussian_threshold(loss: Loss, sensitivity: Sensitivity) -> Mechanism:
    """Return the Gaussian threshold of the smallest variance, then of the lowest threshold."""
    delta = _delta_of(loss)
    if isinstance(loss, Approximate):  # half of delta for the threshold, half for the conversion to rho
        delta, loss = delta / 2, replace(loss, delta=delta / 2)
    variance = _scale_for(sensitivity.l2_squared / 2, _rho_of(loss), SMALLEST_SCALE**2)
    return _lowest_threshold(GaussianThreshold(variance, HALF_INT64), delta, sensitivity)


def _lowest_threshold(mechanism: Mechanism, delta: Fraction, sensitivity: Sensitivity) -> Mechanism:
    """Return the mechanism with the lowest threshold at which its delta is at most `delta`."""

    def mechanism_at(threshold: int) -> Mechanism:
        return replace(mechanism, threshold=threshold)  # type: ignore[type-var]

    low, high = 0, HALF_INT64
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if mechanism_at(middle).zcdp_loss(sensitivity).delta <= delta else (middle, high)
    return mechanism_at(high)


def _randomized_response(loss: Loss, sensitivity: Sensitivity, categories: int = 2) -> Mechanism:
    """Return randomized response with the smallest flip probability that the loss allows."""
    constant = RandomizedResponse(categories, Fraction(1))

    def make(scale: Fraction) -> RandomizedResponse:
        odds = exp_down(min(Fraction(40), 1 / scale)) * (1 - Fraction(1, 10**18))  # slack, since the loss is rounded up
        return replace(constant, flip_probability=digits_up(categories / (categories + odds - 1)))

    if isinstance(loss, Pure | Approximate):
        return make(_scale_for(Fraction(changed_cells(sensitivity)), loss.epsilon))
    return calibrate_scale(make)(loss, sensitivity)


def _column_gaussian(loss: Loss, sensitivity: Sensitivity, columns: Any) -> Mechanism:
    """Return the same variance for every column; refuse a number of columns that no table has, before listing them."""
    if isinstance(columns, bool) or not isinstance(columns, int) or not 1 <= columns <= MOST_COLUMNS:
        raise InvalidParameter(
            f"columns must be an integer from 1 to {MOST_COLUMNS}; give the number that the table has"
        )
    return ColumnGaussian((_discrete_gaussian(loss, sensitivity).variance,) * columns)


# The only mechanisms that a request can name: the class of each, and how it is made to cost at most a given loss.
KINDS: dict[str, tuple[type[Mechanism], Calibrator]] = {
    "discrete_laplace": (DiscreteLaplace, calibrate_scale(DiscreteLaplace)),
    "discrete_gaussian": (DiscreteGaussian, _discrete_gaussian),
    "column_gaussian": (ColumnGaussian, _column_gaussian),
    "geometric": (Geometric, calibrate_scale(Geometric)),
    "staircase": (Staircase, _staircase),
    "snapping": (Snapping, calibrate_scale(Snapping)),
    "noisy_max": (NoisyMax, calibrate_scale(NoisyMax)),
    "exponential": (ExponentialMechanism, calibrate_scale(ExponentialMechanism)),
    "top_k": (TopK, calibrate_scale(TopK)),
    "above_threshold": (AboveThreshold, calibrate_scale(_above_threshold)),
    "sparse_vector": (SparseVector, calibrate_scale(_sparse_vector)),
    "quantiles": (Quantiles, _quantiles(Quantiles)),
    "noisy_max_quantiles": (NoisyMaxQuantiles, _quantiles(NoisyMaxQuantiles)),
    "partition_selection": (PartitionSelection, _partition_selection),
    "laplace_threshold": (LaplaceThreshold, _laplace_threshold),
    "gaussian_threshold": (GaussianThreshold, _gaussian_threshold),
    "public_threshold": (PublicThreshold, calibrate_scale(PublicThreshold)),
    "randomized_response": (RandomizedResponse, _randomized_response),
}
BY_NAME: dict[str, type[Mechanism]] = {name: mechanism for name, (mechanism, _) in KINDS.items()}
