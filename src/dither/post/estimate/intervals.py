"""Estimates, standard errors and confidence intervals of formulas, from the known distributions of the noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dither.post.formulas import (
    FUNCTIONS,
    Affine,
    Formula,
    FunctionCall,
    Ratio,
    Values,
    as_affine,
    as_ratio,
    cells_of,
    evaluate,
    is_folding,
    strip_increasing,
)
from dither.post.noise import NEGLIGIBLE, Floats, ScaledNoise, interval_half_width, pair_half_width

SIMULATED_POINTS = 1 << 12
VALUES_PER_SLAB = 1 << 22
MAX_BIASED_COLUMNS = 3
# Fields of `Measured`: the least, the estimated and the largest amount that may be missing from a column.
Missing = Literal["missing_low", "missing", "missing_high"]
MISSING: tuple[Missing, ...] = ("missing_low", "missing", "missing_high")
# Simulated intervals aim at this much more confidence: it covers the error of using finitely many points, and of
# simulating noise around the estimate instead of the truth.
SIMULATED_EXTRA = 0.002


@dataclass(frozen=True)
class Measured:
    """A noisy column.

    `values` carry `noise`, and lack what clipping and rounding removed: about `missing`, and an amount in
    [missing_low, missing_high].
    """

    values: Floats
    noise: ScaledNoise
    missing: Floats | float = 0.0
    missing_low: Floats | float = 0.0
    missing_high: Floats | float = 0.0

    @property
    def estimate(self) -> Floats:
        """The noisy values plus the estimate of what clipping removed."""
        return np.asarray(self.values + self.missing)

    @property
    def biased(self) -> bool:
        """True if clipping or rounding may have changed the values."""
        return bool(np.any(self.missing_low) or np.any(self.missing_high))


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
    inner = _estimate_core(core, sources, keys, confidence)
    return _apply_increasing(outer, inner) if outer else inner


def _estimate_core(
    node: Formula, sources: Sequence[NoisyColumn], keys: Sequence[Values], confidence: float
) -> Estimate:
    """Estimate a formula by the most exact method that applies: exact, affine, band, Fieller's ratio, or simulation."""
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


def _estimate_exact(value: Values) -> Estimate:
    """Estimate a formula over keys and literals, which has no error."""
    number = value if value.dtype.kind in "fiu" else np.full(value.shape, math.nan)
    return Estimate(value, np.zeros(value.shape), np.asarray(number, float), np.asarray(number, float))


def _estimate_affine(form: Affine, sources: Sequence[NoisyColumn], confidence: float) -> Estimate:
    """Estimate a weighted sum of measured columns, from the distribution of the sum of their noises."""
    parts = [(sources[i], weight) for i, weight in sorted(form.weights.items()) if weight]
    noises = [source.noise.times(weight) for source, weight in parts]
    width = interval_half_width(noises, confidence)
    noisy = np.asarray(form.constant + sum(weight * source.values for source, weight in parts))
    value = np.asarray(form.constant + sum(weight * source.estimate for source, weight in parts))
    low, high = _missing_range(parts)
    std = np.sqrt(sum(noise.variance for noise in noises) + np.square((high - low) / 4))
    return Estimate(
        value,
        _broadcast_like(value, std),
        _broadcast_like(value, noisy - width + low),
        _broadcast_like(value, noisy + width + high),
    )


def _broadcast_like(value: Values, other: Values | float) -> Floats:
    return np.asarray(np.broadcast_to(other, np.shape(value)), float)


def _missing_range(parts: Sequence[tuple[NoisyColumn, float]]) -> tuple[Floats, Floats]:
    """The range of what clipping and rounding removed from a weighted sum."""
    low, high = np.asarray(0.0), np.asarray(0.0)
    for source, weight in parts:
        if isinstance(source, Measured):
            ends = np.asarray(weight * source.missing_low), np.asarray(weight * source.missing_high)
            low, high = low + np.minimum(*ends), high + np.maximum(*ends)
    return low, high


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


def _ratio_side(form: Affine, sources: Sequence[NoisyColumn]) -> tuple[Floats, ScaledNoise, Floats, Floats]:
    """One side of a ratio: its noisy values, its noise, and the range of what may be missing."""
    ((index, weight),) = form.weights.items()
    low, high = _missing_range([(sources[index], weight)])
    return form.constant + weight * sources[index].values, sources[index].noise.times(weight), low, high


def _estimate_ratio(form: Ratio, sources: Sequence[NoisyColumn], confidence: float, value: Values) -> Estimate:
    """Estimate a ratio by Fieller's interval, at every extreme of what may be missing, clamped to its known range."""
    over, over_noise, over_low, over_high = _ratio_side(form.over, sources)
    under, under_noise, under_low, under_high = _ratio_side(form.under, sources)
    corners = [
        fieller_interval(over + shift, under + size, over_noise, under_noise, confidence)
        for shift in _distinct_ends(over_low, over_high)
        for size in _distinct_ends(under_low, under_high)
    ]
    low = np.minimum.reduce([form.offset + lower_end(form.factor, ends) for ends in corners])
    high = np.maximum.reduce([form.offset + upper_end(form.factor, ends) for ends in corners])
    slope = abs(form.factor) / np.maximum(np.abs(under), 1e-9)
    with np.errstate(all="ignore"):
        spread = slope * np.sqrt(
            over_noise.variance + np.square(over / np.where(under == 0, np.nan, under)) * under_noise.variance
        )
    widest = (form.high - form.low) / math.sqrt(12)
    std = np.fmin(spread, widest) if math.isfinite(widest) else spread
    return Estimate(value, std, np.clip(low, form.low, form.high), np.clip(high, form.low, form.high))


def _distinct_ends(low: Floats, high: Floats) -> list[Floats]:
    return [low] if np.array_equal(low, high) else [low, high]


def lower_end(factor: float, ends: tuple[Floats, Floats]) -> Floats:
    """Return the lower end of factor * [low, high]."""
    return np.asarray(factor * (ends[0] if factor >= 0 else ends[1]))


def upper_end(factor: float, ends: tuple[Floats, Floats]) -> Floats:
    """Return the upper end of factor * [low, high]."""
    return np.asarray(factor * (ends[1] if factor >= 0 else ends[0]))


def fieller_interval(
    over: Floats, under: Floats, over_noise: ScaledNoise, under_noise: ScaledNoise, confidence: float
) -> tuple[Floats, Floats]:
    """Return both ends of {r : |over - r * under| <= t(r)}.

    Here t(r) is the half width of the noise of over - r * under. The ends are infinite where `under` could be zero.
    """
    over, under = np.broadcast_arrays(np.asarray(over, float), np.asarray(under, float))
    sure = np.abs(under) > interval_half_width([under_noise], confidence)
    size = np.where(sure, under, 1.0)
    guess = over / size
    low = _fieller_end(guess, size, over_noise, under_noise, confidence, -1.0)
    high = _fieller_end(guess, size, over_noise, under_noise, confidence, +1.0)
    return np.where(sure, low, -math.inf), np.where(sure, high, math.inf)


def _fieller_end(
    guess: Floats, size: Floats, over_noise: ScaledNoise, under_noise: ScaledNoise, confidence: float, side: float
) -> Floats:
    """Find guess + side * d with |size| * d = t(guess + side * d), by doubling d and then bisection."""
    near = np.zeros_like(guess)
    far = pair_half_width(over_noise, under_noise, guess, confidence) / np.abs(size) + 1e-12
    for _ in range(40):
        short = np.abs(size) * far < pair_half_width(over_noise, under_noise, guess + side * far, confidence)
        if not short.any():
            break
        near, far = np.where(short, far, near), np.where(short, 2 * far, far)
    for _ in range(45):
        middle = (near + far) / 2
        short = np.abs(size) * middle < pair_half_width(over_noise, under_noise, guess + side * middle, confidence)
        near, far = np.where(short, middle, near), np.where(short, far, middle)
    return np.asarray(guess + side * far)


def _estimate_by_simulation(
    node: Formula, sources: Sequence[NoisyColumn], keys: Sequence[Values], confidence: float
) -> Estimate:
    """Estimate any formula by evaluating it at simulated noise, in slabs of groups that fit into memory."""
    value = evaluate(node, [source.estimate for source in sources], keys)
    used = sorted(cells_of(node))
    count = _simulation_size(confidence)
    noise = dict(zip(used, _simulated_noise([sources[index].noise for index in used], count), strict=True))
    size = max(np.size(sources[index].values) for index in used)
    rows = max(1, VALUES_PER_SLAB // count)
    slabs = [slice(start, start + rows) for start in range(0, size, rows)]
    ends = [_simulate_slab(node, sources, keys, noise, slab, confidence) for slab in slabs]
    std, low, high = (np.concatenate([end[part] for end in ends]) for part in range(3))
    return Estimate(value, std, low, high)


def _simulation_size(confidence: float) -> int:
    """The number of points to simulate: enough to leave some tens of them beyond each end of the interval."""
    return max(SIMULATED_POINTS, 1 << math.ceil(math.log2(64 / (1 - confidence))))


def _simulated_noise(noises: Sequence[ScaledNoise], count: int) -> list[Floats]:
    """Noise at low-discrepancy points: thousands of them are as exact as a million random ones."""
    return [noise.quantile(levels) for noise, levels in zip(noises, _kronecker_points(len(noises), count), strict=True)]


@lru_cache(maxsize=16)
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
    noise: dict[int, Floats],
    slab: slice,
    confidence: float,
) -> tuple[Floats, Floats, Floats]:
    """Simulate some groups; return their standard errors and both ends of their intervals."""
    results = []
    inside = _central_region([noise[index] / max(sources[index].noise.std, NEGLIGIBLE) for index in noise], confidence)
    for corner in _corners(sources, sorted(noise)):
        cells: list[Values] = [np.zeros(1)] * len(sources)
        for index, points in noise.items():
            base = _values_with_missing(sources[index], corner.get(index, "missing_low"))
            cells[index] = _slice_values(base, slab)[:, None] - points[None, :]
        simulated = np.asarray(evaluate(node, cells, [_slice_values(key, slab)[:, None] for key in keys]), float)
        low, high, std = _interval_of_draws(simulated, confidence)
        if is_folding(node):
            low, high = _range_over_region(simulated[:, inside])
        results.append((std, low, high))
    stds, lows, highs = zip(*results, strict=True)
    return np.maximum.reduce(stds), np.minimum.reduce(lows), np.maximum.reduce(highs)


def _corners(sources: Sequence[NoisyColumn], used: Sequence[int]) -> list[dict[int, Missing]]:
    """Combinations of how much is missing from each biased column.

    With few such columns these are all combinations of extremes; with many, all columns alike except at most one.
    """
    levels = {index: _missing_levels(sources[index]) for index in used}
    biased = [index for index in used if len(levels[index]) > 1]
    alike = [dict.fromkeys(biased, level) for level in MISSING] if biased else [{}]
    if len(biased) <= MAX_BIASED_COLUMNS:
        mixed = product(*(levels[index] for index in biased))
        return [*alike[1:2], *(dict(zip(biased, combination, strict=True)) for combination in mixed)]
    return alike + [base | {index: level} for base in alike for index in biased for level in MISSING]


def _missing_levels(source: NoisyColumn) -> tuple[Missing, ...]:
    """The missing amounts to try for a column: both ends, and the estimate too where either sign is possible."""
    if isinstance(source, Banded) or not source.biased:
        return ("missing_low",)
    return MISSING if np.any(np.asarray(source.missing_low) < 0) else ("missing_low", "missing_high")


def _central_region(noise: Sequence[Floats], confidence: float) -> NDArray[np.bool_]:
    """Select the simulated points nearest to no noise: a region with the probability `confidence`."""
    distance = np.sum(np.square(noise), axis=0)
    return np.asarray(distance <= np.quantile(distance, min(1.0, confidence + SIMULATED_EXTRA / 2), method="higher"))


def _range_over_region(simulated: Floats) -> tuple[Floats, Floats]:
    """The least and the largest value over the central region; quantiles of a folding function would miss the fold."""
    known = ~np.isnan(simulated)
    return np.where(known, simulated, -math.inf).min(axis=1), np.where(known, simulated, math.inf).max(axis=1)


def _values_with_missing(source: NoisyColumn, missing: Missing) -> Floats:
    if isinstance(source, Banded):
        return source.values
    return np.asarray(source.values + getattr(source, missing))


def _slice_values(values: Values, slab: slice) -> Values:
    values = np.atleast_1d(values)
    return values[slab] if len(values) > 1 else values


def _interval_of_draws(simulated: Floats, confidence: float) -> tuple[Floats, Floats, Floats]:
    """The ends of an interval from quantiles of simulated values (NaN widens it), and their standard deviation."""
    tail = max((1 - confidence - SIMULATED_EXTRA) / 2, (1 - confidence) / 4)
    known = ~np.isnan(simulated)
    filled = np.where(known, simulated, -math.inf), np.where(known, simulated, math.inf)
    low = np.quantile(filled[0], tail, axis=1, method="lower")
    high = np.quantile(filled[1], 1 - tail, axis=1, method="higher")
    return low, high, _trimmed_std(np.where(known, simulated, 0.0))


def _trimmed_std(simulated: Floats) -> Floats:
    """The standard deviation with the outermost thousandths clipped; without that, a ratio's may not exist."""
    edges = np.quantile(simulated, [0.001, 0.999], axis=1)
    return np.asarray(np.clip(simulated, edges[0][:, None], edges[1][:, None]).std(axis=1))


def _apply_increasing(outer: Sequence[FunctionCall], inner: Estimate) -> Estimate:
    """Map an estimate through increasing functions, innermost first."""
    value, low, high = inner.value, inner.low, inner.high
    slope = np.asarray(1.0)
    for function in reversed(outer):
        slope = slope * _slope(function, value)
        value, low, high = (_apply_function(function, part) for part in (value, low, high))
    return Estimate(value, np.asarray(inner.std_error * slope), np.asarray(low, float), np.asarray(high, float))


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
