"""Estimates, standard errors and confidence intervals of formulas, from the known distributions of the noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dither.post.estimate.draws import SIMULATED_EXTRA, interval_of_draws
from dither.post.formulas import (
    FUNCTIONS,
    Affine,
    ClampedTo,
    Formula,
    FunctionCall,
    Ratio,
    Values,
    as_affine,
    as_ratio,
    cells_of,
    evaluate,
    is_folding,
    range_of,
    strip_increasing,
    without_range,
)
from dither.post.noise import NEGLIGIBLE, Floats, ScaledNoise, interval_half_width, pair_half_width

SIMULATED_POINTS = 1 << 12
# Steps of a bisection: the end of an interval is known to a billionth of its distance.
BISECTIONS = 30
VALUES_PER_SLAB = 1 << 22


@dataclass(frozen=True)
class Measured:
    """A noisy column.

    `values` carry `noise`, and lack what clipping removed: about `missing`, by at most `less` less and `more` more at
    the confidence of the intervals. Rounding may have moved them by `rounding`. The exact values are at least `least`
    and at most `most`; intervals end there, and estimates may be less, so that they add up without a bias.
    """

    values: Floats
    noise: ScaledNoise
    missing: Floats | float = 0.0
    less: Floats | float = 0.0
    more: Floats | float = 0.0
    rounding: float = 0.0
    most: float = math.inf
    least: float = -math.inf

    @property
    def estimate(self) -> Floats:
        """The noisy values plus the estimate of what clipping removed, but not more than is possible."""
        return np.asarray(np.minimum(self.values + self.missing, self.most))

    @property
    def biased(self) -> bool:
        """True if clipping or rounding may have changed the values."""
        return bool(np.any(self.less) or np.any(self.more))


@dataclass(frozen=True)
class Banded:
    """A column of quantiles: the truth lies in [low, high] with probability `confidence`."""

    values: Floats
    low: Floats
    high: Floats
    confidence: float = 0.95

    @property
    def estimate(self) -> Floats:
        """The estimated quantiles."""
        return self.values

    @property
    def std(self) -> Floats:
        """The standard deviation of normal noise whose interval would be as wide as the band."""
        return np.asarray((self.high - self.low) / (2 * special.ndtri((1 + self.confidence) / 2)))

    @property
    def noise(self) -> ScaledNoise:
        """Normal noise of about the band's width, for formulas over the column."""
        return ScaledNoise("gaussian", 1000.0, float(np.mean(self.std)) / 1000.0)


NoisyColumn = Measured | Banded


@dataclass(frozen=True)
class Estimate:
    """A column of an answer: for each group a value, its standard error and the ends of its interval."""

    value: Values
    std_error: Floats
    low: Floats
    high: Floats


def estimate(node: Formula, sources: Sequence[NoisyColumn], keys: Sequence[Values], confidence: float) -> Estimate:
    """Estimate a formula for each group, with its standard error and a confidence interval."""
    outer, core = strip_increasing(node)
    inner = _with_value_inside(_estimate_core(core, sources, keys, confidence))
    return _apply_increasing(outer, inner) if outer else inner


def _with_value_inside(found: Estimate) -> Estimate:
    """Widen intervals that leave out their own estimate.

    Quantiles of a curved function's simulated values may do so: the noise moves a variance, a product or a ratio to one
    side more than to the other.
    """
    if np.asarray(found.value).dtype.kind != "f":
        return found
    return replace(found, low=np.fmin(found.low, found.value), high=np.fmax(found.high, found.value))


def _estimate_core(
    node: Formula, sources: Sequence[NoisyColumn], keys: Sequence[Values], confidence: float
) -> Estimate:
    """Estimate a formula by the most exact method that applies: exact, affine, band, Fieller's ratio, or simulation."""
    if isinstance(node, ClampedTo):
        inner = _estimate_core(without_range(node.inner), sources, keys, confidence)
        return _within_range(inner, inner.value, node.low, node.high)
    used = cells_of(node)
    if not used:
        return _estimate_exact(evaluate(node, [], keys))
    form = as_affine(node)
    if form is not None and all(isinstance(sources[i], Measured) for i in used):
        return _estimate_affine(form, sources, confidence)
    if form is not None and len(used) == 1:
        return _estimate_band(form, sources)
    fraction = as_ratio(node)
    if (
        fraction is not None
        and _has_independent_sides(fraction)
        and all(isinstance(sources[i], Measured) for i in used)
    ):
        return _estimate_ratio(fraction, sources, confidence, evaluate(node, [s.estimate for s in sources], keys))
    return _estimate_by_simulation(node, sources, keys, confidence)


def _within_range(found: Estimate, free: Values, least: float, most: float) -> Estimate:
    """Clip an estimate and its interval to the range of the truth; `free` are the estimates as noise left them.

    Where noise moved one out of the range, the interval also reaches as far into the range as if the estimate were at
    the nearest end. What is left inside by clipping alone may have no width, and says nothing about the noise.
    """
    with np.errstate(invalid="ignore"):
        shift = np.nan_to_num(np.clip(free, least, most) - free, nan=0.0, posinf=0.0, neginf=0.0)
    low, high = np.fmin(found.low, found.low + shift), np.fmax(found.high, found.high + shift)
    return Estimate(
        np.clip(found.value, least, most), found.std_error, np.clip(low, least, most), np.clip(high, least, most)
    )


def _estimate_exact(value: Values) -> Estimate:
    """Estimate a formula over keys and literals, which has no error."""
    number = value if value.dtype.kind in "fiu" else np.full(value.shape, math.nan)
    return Estimate(value, np.zeros(value.shape), np.asarray(number, float), np.asarray(number, float))


def _estimate_affine(form: Affine, sources: Sequence[NoisyColumn], confidence: float) -> Estimate:
    """Estimate a weighted sum of measured columns, from the distribution of the sum of their noises."""
    parts = [(sources[i], weight) for i, weight in sorted(form.weights.items()) if weight]
    noises = [source.noise.times(weight) for source, weight in parts]
    width = interval_half_width(noises, confidence)
    value = np.asarray(form.constant + sum(weight * source.estimate for source, weight in parts))
    below, above = _clipping_error(parts)
    rounding = sum(abs(weight) * source.rounding for source, weight in parts if isinstance(source, Measured))
    clipping_std = (below + above) / (2 * special.ndtri((1 + confidence) / 2))
    std = np.sqrt(sum(noise.variance for noise in noises) + np.square(clipping_std))
    ends = value - np.hypot(width, below) - rounding, value + np.hypot(width, above) + rounding
    low, high = (np.clip(end, *_possible_range(form, parts)) for end in ends)
    return Estimate(value, _broadcast_like(value, std), _broadcast_like(value, low), _broadcast_like(value, high))


def _possible_range(form: Affine, parts: Sequence[tuple[NoisyColumn, float]]) -> tuple[float, float]:
    """The range of the exact value of a weighted sum, from the least and the most that its columns can be."""
    low = high = form.constant
    for source, weight in parts:
        ends = (source.least, source.most) if isinstance(source, Measured) else (-math.inf, math.inf)
        least, most = sorted(weight * end for end in ends)
        low, high = low + least, high + most
    return low, high


def _broadcast_like(value: Values, other: Values | float) -> Floats:
    return np.asarray(np.broadcast_to(other, np.shape(value)), float)


def _clipping_error(parts: Sequence[tuple[NoisyColumn, float]]) -> tuple[Floats, Floats]:
    """The amounts by which a weighted sum may lack less and more than estimated; the columns may all err alike."""
    below, above = np.asarray(0.0), np.asarray(0.0)
    for source, weight in parts:
        if isinstance(source, Measured):
            less, more = (source.less, source.more) if weight >= 0 else (source.more, source.less)
            below, above = below + abs(weight) * np.asarray(less), above + abs(weight) * np.asarray(more)
    return below, above


def _estimate_band(form: Affine, sources: Sequence[NoisyColumn]) -> Estimate:
    """Estimate an affine function of one quantile, by mapping its band."""
    ((index, weight),) = form.weights.items()
    source = sources[index]
    if not isinstance(source, Banded):
        raise TypeError("only quantile columns have a band")
    ends = form.constant + weight * source.low, form.constant + weight * source.high
    low, high = np.minimum(*ends), np.maximum(*ends)
    return Estimate(form.constant + weight * source.values, np.asarray(abs(weight) * source.std), low, high)


def _has_independent_sides(form: Ratio) -> bool:
    """Return True if both sides of a ratio read one column each, and not the same: their noise is then independent."""
    over, under = set(form.over.weights), set(form.under.weights)
    return len(over) == len(under) == 1 and not over & under


@dataclass(frozen=True)
class _RatioSide:
    """One side of a ratio: its estimates, its noise, and how much less and more it may be for what was clipped."""

    value: Floats
    noise: ScaledNoise
    below: Floats
    above: Floats


def _ratio_side(form: Affine, sources: Sequence[NoisyColumn]) -> _RatioSide:
    ((index, weight),) = form.weights.items()
    source = sources[index]
    below, above = _clipping_error([(source, weight)])
    rounding = abs(weight) * source.rounding if isinstance(source, Measured) else 0.0
    return _RatioSide(
        np.asarray(form.constant + weight * source.estimate),
        source.noise.times(weight),
        below + rounding,
        above + rounding,
    )


def _estimate_ratio(form: Ratio, sources: Sequence[NoisyColumn], confidence: float, value: Values) -> Estimate:
    """Estimate a ratio by Fieller's interval, clamped to its known range."""
    over, under = _ratio_side(form.over, sources), _ratio_side(form.under, sources)
    ends = fieller_interval(
        over.value, under.value, over.noise, under.noise, confidence, np.maximum(over.below, over.above), under.below
    )
    # Rows that are missing from the denominator pull the ratio towards zero.
    pull = np.abs(under.value) / np.maximum(np.abs(under.value) + under.above, NEGLIGIBLE)
    with np.errstate(invalid="ignore"):
        ends = np.fmin(ends[0], ends[0] * pull), np.fmax(ends[1], ends[1] * pull)
    low, high = form.offset + lower_end(form.factor, ends), form.offset + upper_end(form.factor, ends)
    if math.isfinite(form.high - form.low):  # the size of an average is positive: one that noise hides tells nothing
        low, high = np.where(under.value > 0, low, -math.inf), np.where(under.value > 0, high, math.inf)
    slope = abs(form.factor) / np.maximum(np.abs(under.value), 1e-9)
    z = special.ndtri((1 + confidence) / 2)
    with np.errstate(all="ignore"):
        ratio = over.value / np.where(under.value == 0, np.nan, under.value)
        over_variance = over.noise.variance + np.square(np.maximum(over.below, over.above) / z)
        under_variance = under.noise.variance + np.square(np.maximum(under.below, under.above) / z)
        spread = slope * np.sqrt(over_variance + np.square(ratio) * under_variance)
        free = form.offset + form.factor * ratio
    found = Estimate(value, _std_within(spread, form.low, form.high), low, high)
    return _within_range(found, free, form.low, form.high)


def _std_within(std: Floats, low: float, high: float) -> Floats:
    """Return standard errors, at most that of a value that may be anywhere in the range, if the range is finite."""
    widest = (high - low) / math.sqrt(12)
    return np.asarray(np.fmin(std, widest) if math.isfinite(widest) else std)


def lower_end(factor: float, ends: tuple[Floats, Floats]) -> Floats:
    """Return the lower end of factor * [low, high]."""
    return np.asarray(factor * (ends[0] if factor >= 0 else ends[1]))


def upper_end(factor: float, ends: tuple[Floats, Floats]) -> Floats:
    """Return the upper end of factor * [low, high]."""
    return np.asarray(factor * (ends[1] if factor >= 0 else ends[0]))


def fieller_interval(
    over: Floats,
    under: Floats,
    over_noise: ScaledNoise,
    under_noise: ScaledNoise,
    confidence: float,
    over_error: Floats | float = 0.0,
    under_error: Floats | float = 0.0,
) -> tuple[Floats, Floats]:
    """Return both ends of {r : |over - r * under| <= t(r)}.

    Here t(r) is the half width of the noise of over - r * under, and of errors of these sizes that clipping left. The
    ends are infinite where `under` could be zero.
    """
    over, under, over_error, under_error = np.broadcast_arrays(
        np.asarray(over, float), np.asarray(under, float), np.asarray(over_error, float), np.asarray(under_error, float)
    )
    sure = np.abs(under) > np.hypot(interval_half_width([under_noise], confidence), under_error)
    size = np.where(sure, under, 1.0)

    def half_width(ratio: Floats) -> Floats:
        noise = pair_half_width(over_noise, under_noise, ratio, confidence)
        return np.asarray(np.sqrt(np.square(noise) + np.square(over_error) + np.square(ratio * under_error)))

    low, high = _fieller_ends(over / size, size, half_width)
    return np.where(sure, low, -math.inf), np.where(sure, high, math.inf)


def _fieller_ends(guess: Floats, size: Floats, half_width: Callable[[Floats], Floats]) -> Floats:
    """Find guess - d and guess + d with |size| * d = half_width at that end, by doubling each d and then bisection."""
    side = np.array([-1.0, 1.0]).reshape(2, *(1 for _ in np.shape(guess)))
    near = np.zeros((2, *np.shape(guess)))
    far = near + half_width(guess) / np.abs(size) + 1e-12
    for _ in range(40):
        short = np.abs(size) * far < half_width(guess + side * far)
        if not short.any():
            break
        near, far = np.where(short, far, near), np.where(short, 2 * far, far)
    for _ in range(BISECTIONS):
        middle = (near + far) / 2
        short = np.abs(size) * middle < half_width(guess + side * middle)
        near, far = np.where(short, middle, near), np.where(short, far, middle)
    return np.asarray(guess + side * far)


def _estimate_by_simulation(
    node: Formula, sources: Sequence[NoisyColumn], keys: Sequence[Values], confidence: float
) -> Estimate:
    """Estimate any formula by evaluating it at simulated errors, in slabs of groups that fit into memory.

    An average is simulated without its range: draws clipped to one end would hide the noise.
    """
    cells = [source.estimate for source in sources]
    value, node, bounds = evaluate(node, cells, keys), without_range(node), range_of(node)
    used, count = sorted(cells_of(node)), _simulation_size(confidence)
    errors = _simulated_errors(sources, used, count)
    size = max(np.size(sources[index].values) for index in used)
    rows = max(1, VALUES_PER_SLAB // count)
    slabs = [slice(start, start + rows) for start in range(0, size, rows)]
    ends = [_simulate_slab(node, sources, keys, errors, slab, confidence) for slab in slabs]
    std, low, high = (np.concatenate([end[part] for end in ends]) for part in range(3))
    if bounds is None:
        return Estimate(value, std, low, high)
    found = Estimate(value, _std_within(std, *bounds), low, high)
    return _within_range(found, evaluate(node, cells, keys), *bounds)


def _simulation_size(confidence: float) -> int:
    """The number of points to simulate: enough to leave some tens of them beyond each end of the interval."""
    return max(SIMULATED_POINTS, 1 << math.ceil(math.log2(64 / (1 - confidence))))


@dataclass(frozen=True)
class _SimulatedError:
    """Points of a column's error: its noise, and the clipping error in standard deviations (None if not clipped)."""

    noise: Floats
    clipping: Floats | None


def _simulated_errors(sources: Sequence[NoisyColumn], used: Sequence[int], count: int) -> dict[int, _SimulatedError]:
    """Errors at low-discrepancy points: thousands of them are as exact as a million random ones."""
    clipped = [index for index in used if isinstance(source := sources[index], Measured) and source.biased]
    levels = iter(_kronecker_points(len(used) + len(clipped), count))
    noise = {index: sources[index].noise.quantile(next(levels)) for index in used}
    clipping = {index: special.ndtri(next(levels)) for index in clipped}
    return {index: _SimulatedError(noise[index], clipping.get(index)) for index in used}


@lru_cache(maxsize=8)
def _kronecker_points(dimension: int, count: int) -> tuple[Floats, ...]:
    """Kronecker points: multiples, modulo 1, of the powers of 1 / g, where g^(d+1) = g + 1."""
    base = 2.0
    for _ in range(60):
        base = (1 + base) ** (1 / (dimension + 1))
    steps = np.arange(1, count + 1)
    return tuple(np.clip((0.5 + steps * base**-power) % 1.0, 1e-9, 1 - 1e-9) for power in range(1, dimension + 1))


def _simulate_slab(
    node: Formula,
    sources: Sequence[NoisyColumn],
    keys: Sequence[Values],
    errors: dict[int, _SimulatedError],
    slab: slice,
    confidence: float,
) -> tuple[Floats, Floats, Floats]:
    """Simulate some groups; return their standard errors and both ends of their intervals."""
    cells: list[Values] = [np.zeros(1)] * len(sources)
    for index, error in errors.items():
        estimates = _slice_values(sources[index].estimate, slab)[:, None]
        cells[index] = estimates - error.noise[None, :] + _clipping_points(sources[index], error, slab, confidence)
    simulated = np.asarray(evaluate(node, cells, [_slice_values(key, slab)[:, None] for key in keys]), float)
    low, high, std = interval_of_draws(simulated, confidence)
    if is_folding(node):
        distances = [error.noise / max(sources[index].noise.std, NEGLIGIBLE) for index, error in errors.items()]
        distances += [error.clipping for error in errors.values() if error.clipping is not None]
        low, high = _range_over_region(simulated[:, _central_region(distances, confidence)])
    return std, low, high


def _clipping_points(source: NoisyColumn, error: _SimulatedError, slab: slice, confidence: float) -> Floats | float:
    """The simulated errors of what clipping removed: half a normal distribution to either side."""
    if error.clipping is None or isinstance(source, Banded):
        return 0.0
    z = special.ndtri((1 + confidence) / 2)
    less, more = (_slice_values(np.asarray(part, float), slab)[:, None] / z for part in (source.less, source.more))
    return np.asarray(np.where(error.clipping < 0, less * error.clipping, more * error.clipping))


def _central_region(noise: Sequence[Floats], confidence: float) -> NDArray[np.bool_]:
    """Select the simulated points nearest to no noise: a region with the probability `confidence`."""
    distance = np.sum(np.square(noise), axis=0)
    return np.asarray(distance <= np.quantile(distance, min(1.0, confidence + SIMULATED_EXTRA / 2), method="higher"))


def _range_over_region(simulated: Floats) -> tuple[Floats, Floats]:
    """The least and the largest value over the central region; quantiles of a folding function would miss the fold."""
    known = ~np.isnan(simulated)
    return np.where(known, simulated, -math.inf).min(axis=1), np.where(known, simulated, math.inf).max(axis=1)


def _slice_values(values: Values, slab: slice) -> Values:
    values = np.atleast_1d(values)
    return values[slab] if len(values) > 1 else values


def _apply_increasing(outer: Sequence[FunctionCall], inner: Estimate) -> Estimate:
    """Map an estimate through increasing functions, innermost first."""
    value, low, high = inner.value, inner.low, inner.high
    slope = np.asarray(1.0)
    for function in reversed(outer):
        slope = slope * _slope(function, value)
        value, low, high = (_apply_function(function, part) for part in (value, low, high))
    with np.errstate(all="ignore"):
        std = np.asarray(inner.std_error * slope)
    return Estimate(value, np.where(np.isnan(std), math.inf, std), np.asarray(low, float), np.asarray(high, float))


def _apply_function(function: FunctionCall, value: Values) -> Values:
    """Apply a function; below the domain of a root or logarithm return its limit, to keep the low end of intervals."""
    if function.name == "sqrt":
        value = np.maximum(value, 0.0)
    extra = [evaluate(argument, [], []) for argument in function.arguments[1:]]
    with np.errstate(all="ignore"):
        result = np.asarray(FUNCTIONS[function.name](value, *extra))
    return np.where(np.asarray(value) <= 0, -math.inf, result) if function.name in {"ln", "log10"} else result


def _slope(function: FunctionCall, value: Values) -> Floats:
    """The derivative of a function, by which it scales a small error."""
    with np.errstate(all="ignore"):
        match function.name:
            case "sqrt":
                return np.asarray(0.5 / np.sqrt(np.maximum(value, NEGLIGIBLE)))
            case "ln":
                return np.asarray(1 / np.maximum(value, NEGLIGIBLE))
            case "log10":
                return np.asarray(1 / (math.log(10) * np.maximum(value, NEGLIGIBLE)))
            case "exp":
                return np.asarray(np.exp(value))
            case _:
                return np.asarray(1.0)
