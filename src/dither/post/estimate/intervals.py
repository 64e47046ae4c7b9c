"""Estimates, standard errors and intervals of anything computed from noisy columns, from the known law of the noise."""

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
    cells_of,
    evaluate,
    folds_at,
    ratio,
    strip_monotone,
)
from dither.post.noise import SETTLED, Floats, ScaledNoise, interval_half_width, pair_half_width

POINTS = 1 << 12
SLAB = 1 << 22
MOST_CORNERED = 3
Missing = Literal["least", "missing", "most"]
MISSING: tuple[Missing, ...] = ("least", "missing", "most")
# A simulated interval aims a little wider, for the points' own error and for curvature seen at the wrong place.
SIMULATED_EXTRA = 0.002


@dataclass(frozen=True)
class Measured:
    """A noisy column: `values` carry noise of `law`; the truth lies `missing` beyond, somewhere in [least, most]."""

    values: Floats
    law: ScaledNoise
    missing: Floats | float = 0.0
    least: Floats | float = 0.0
    most: Floats | float = 0.0

    @property
    def estimate(self) -> Floats:
        """The noisy value plus the part that clipping is estimated to have removed."""
        return np.asarray(self.values + self.missing)

    @property
    def biased(self) -> bool:
        """Whether clipping may have removed something that was estimated."""
        return bool(np.any(self.least) or np.any(self.most))


@dataclass(frozen=True)
class Banded:
    """A column that was chosen, not measured with noise: the truth lies in [low, high], as often as asked for."""

    values: Floats
    low: Floats
    high: Floats
    confidence: float = 0.95

    @property
    def estimate(self) -> Floats:
        """The chosen value."""
        return self.values

    @property
    def std(self) -> Floats:
        """The standard deviation of normal noise that would have such a band."""
        return np.asarray((self.high - self.low) / (2 * special.ndtri((1 + self.confidence) / 2)))

    @property
    def law(self) -> ScaledNoise:
        """Normal noise of about the band's width, for what is computed further."""
        return ScaledNoise("gaussian", 1000.0, float(np.mean(self.std)) / 1000.0)


NoisyColumn = Measured | Banded


@dataclass(frozen=True)
class Estimate:
    """A column of an answer; `noise_std` is the part of the error that is noise."""

    value: Values
    std_error: Floats
    low: Floats
    high: Floats


def estimate(node: Formula, sources: Sequence[NoisyColumn], keys: Sequence[Values], confidence: float) -> Estimate:
    """The node's value for each group, with its standard error and an interval."""
    outer, core = strip_monotone(node)
    inner = _core(core, sources, keys, confidence)
    return _through(outer, inner) if outer else inner


def _core(node: Formula, sources: Sequence[NoisyColumn], keys: Sequence[Values], confidence: float) -> Estimate:
    used = cells_of(node)
    if not used:
        return _exact(evaluate(node, [], keys))
    form = as_affine(node)
    if form is not None and all(isinstance(sources[i], Measured) for i in used):
        return _affine(form, sources, confidence)
    if form is not None and len(used) == 1:
        return _band(form, sources)
    fraction = ratio(node)
    if fraction is not None and _separate(fraction) and all(isinstance(sources[i], Measured) for i in used):
        return _ratio(fraction, sources, confidence, evaluate(node, [s.estimate for s in sources], keys))
    return _simulated(node, sources, keys, confidence)


def _exact(value: Values) -> Estimate:
    number = value if value.dtype.kind in "fiu" else np.full(value.shape, math.nan)
    return Estimate(value, np.zeros(value.shape), np.asarray(number, float), np.asarray(number, float))


def _affine(form: Affine, sources: Sequence[NoisyColumn], confidence: float) -> Estimate:
    parts = [(sources[i], weight) for i, weight in sorted(form.weights.items()) if weight]
    laws = [source.law.scaled(weight) for source, weight in parts]
    width = interval_half_width(laws, confidence)
    noisy = np.asarray(form.constant + sum(weight * source.values for source, weight in parts))
    value = np.asarray(form.constant + sum(weight * source.estimate for source, weight in parts))
    low, high = _missing(parts)
    std = np.sqrt(sum(law.variance for law in laws) + np.square((high - low) / 4))
    return Estimate(value, _like(value, std), _like(value, noisy - width + low), _like(value, noisy + width + high))


def _like(value: Values, other: Values | float) -> Floats:
    return np.asarray(np.broadcast_to(other, np.shape(value)), float)


def _missing(parts: Sequence[tuple[NoisyColumn, float]]) -> tuple[Floats, Floats]:
    """The range of what clipping removed from a weighted sum."""
    low, high = np.asarray(0.0), np.asarray(0.0)
    for source, weight in parts:
        if isinstance(source, Measured):
            ends = np.asarray(weight * source.least), np.asarray(weight * source.most)
            low, high = low + np.minimum(*ends), high + np.maximum(*ends)
    return low, high


def _band(form: Affine, sources: Sequence[NoisyColumn]) -> Estimate:
    ((index, weight),) = form.weights.items()
    source = sources[index]
    if not isinstance(source, Banded):
        raise TypeError("a band needs a chosen column")
    ends = form.constant + weight * source.low, form.constant + weight * source.high
    low, high = np.minimum(*ends), np.maximum(*ends)
    return Estimate(form.constant + weight * source.values, np.asarray(abs(weight) * source.std), low, high)


def _separate(form: Ratio) -> bool:
    """Whether the two sides read one column each, different ones: then their noise is independent."""
    return len(form.over.weights) == len(form.under.weights) == 1 and not set(form.over.weights) & set(
        form.under.weights
    )


def _side(form: Affine, sources: Sequence[NoisyColumn]) -> tuple[Floats, ScaledNoise, Floats, Floats]:
    ((index, weight),) = form.weights.items()
    low, high = _missing([(sources[index], weight)])
    return form.constant + weight * sources[index].values, sources[index].law.scaled(weight), low, high


def _ratio(form: Ratio, sources: Sequence[NoisyColumn], confidence: float, value: Values) -> Estimate:
    """Fieller's interval: every r for which over - r * under is as small as its noise; cut to the known range."""
    over, law, over_low, over_high = _side(form.over, sources)
    under, under_law, under_low, under_high = _side(form.under, sources)
    corners = [
        fieller(over + shift, under + size, law, under_law, confidence)
        for shift in _ends(over_low, over_high)
        for size in _ends(under_low, under_high)
    ]
    low = np.minimum.reduce([form.offset + min_of(form.factor, ends) for ends in corners])
    high = np.maximum.reduce([form.offset + max_of(form.factor, ends) for ends in corners])
    slope = abs(form.factor) / np.maximum(np.abs(under), 1e-9)
    with np.errstate(all="ignore"):
        spread = slope * np.sqrt(
            law.variance + np.square(over / np.where(under == 0, np.nan, under)) * under_law.variance
        )
    widest = (form.high - form.low) / math.sqrt(12)
    std = np.fmin(spread, widest) if math.isfinite(widest) else spread
    return Estimate(value, std, np.clip(low, form.low, form.high), np.clip(high, form.low, form.high))


def _ends(low: Floats, high: Floats) -> list[Floats]:
    return [low] if np.array_equal(low, high) else [low, high]


def min_of(factor: float, ends: tuple[Floats, Floats]) -> Floats:
    """The lower end of factor * [low, high]."""
    return np.asarray(factor * (ends[0] if factor >= 0 else ends[1]))


def max_of(factor: float, ends: tuple[Floats, Floats]) -> Floats:
    """The upper end of factor * [low, high]."""
    return np.asarray(factor * (ends[1] if factor >= 0 else ends[0]))


def fieller(
    over: Floats, under: Floats, law: ScaledNoise, under_law: ScaledNoise, confidence: float
) -> tuple[Floats, Floats]:
    """Both ends of {r : |over - r under| <= t(r)}, infinite where the size could be zero."""
    over, under = np.broadcast_arrays(np.asarray(over, float), np.asarray(under, float))
    sure = np.abs(under) > interval_half_width([under_law], confidence)
    size = np.where(sure, under, 1.0)
    guess = over / size
    low = _edge(guess, size, law, under_law, confidence, -1.0)
    high = _edge(guess, size, law, under_law, confidence, +1.0)
    return np.where(sure, low, -math.inf), np.where(sure, high, math.inf)


def _edge(
    guess: Floats, size: Floats, law: ScaledNoise, under_law: ScaledNoise, confidence: float, side: float
) -> Floats:
    """The distance d from the guess with |size| d = t(guess + side d), by doubling and then bisection."""
    near = np.zeros_like(guess)
    far = pair_half_width(law, under_law, guess, confidence) / np.abs(size) + 1e-12
    for _ in range(40):
        short = np.abs(size) * far < pair_half_width(law, under_law, guess + side * far, confidence)
        if not short.any():
            break
        near, far = np.where(short, far, near), np.where(short, 2 * far, far)
    for _ in range(45):
        middle = (near + far) / 2
        short = np.abs(size) * middle < pair_half_width(law, under_law, guess + side * middle, confidence)
        near, far = np.where(short, middle, near), np.where(short, far, middle)
    return np.asarray(guess + side * far)


def _simulated(node: Formula, sources: Sequence[NoisyColumn], keys: Sequence[Values], confidence: float) -> Estimate:
    value = evaluate(node, [source.estimate for source in sources], keys)
    used = sorted(cells_of(node))
    count = _enough(confidence)
    noise = dict(zip(used, _points([sources[index].law for index in used], count), strict=True))
    size = max(np.size(sources[index].values) for index in used)
    rows = max(1, SLAB // count)
    slabs = [slice(start, start + rows) for start in range(0, size, rows)]
    ends = [_slab(node, sources, keys, noise, slab, confidence) for slab in slabs]
    std, low, high = (np.concatenate([end[part] for end in ends]) for part in range(3))
    return Estimate(value, std, low, high)


def _enough(confidence: float) -> int:
    """How many points an interval needs: some tens of them beyond each of its ends."""
    return max(POINTS, 1 << math.ceil(math.log2(64 / (1 - confidence))))


def _points(laws: Sequence[ScaledNoise], count: int) -> list[Floats]:
    """Noise at low-discrepancy points: an interval then needs thousands of them, not a million."""
    return [law.quantile(levels) for law, levels in zip(laws, _levels(len(laws), count), strict=True)]


@lru_cache(maxsize=16)
def _levels(dimension: int, count: int) -> tuple[Floats, ...]:
    """Kronecker points: multiples of powers of 1 / g, where g^(d+1) = g + 1, modulo 1."""
    base = 2.0
    for _ in range(60):
        base = (1 + base) ** (1 / (dimension + 1))
    steps = np.arange(1, count + 1)
    return tuple(np.clip((0.5 + steps * base**-power) % 1.0, 1e-9, 1 - 1e-9) for power in range(1, dimension + 1))


def _slab(
    node: Formula,
    sources: Sequence[NoisyColumn],
    keys: Sequence[Values],
    noise: dict[int, Floats],
    slab: slice,
    confidence: float,
) -> tuple[Floats, Floats, Floats]:
    found = []
    inside = _central([noise[index] / max(sources[index].law.std, SETTLED) for index in noise], confidence)
    for corner in _corners(sources, sorted(noise)):
        cells: list[Values] = [np.zeros(1)] * len(sources)
        for index, drawn in noise.items():
            cells[index] = _cut(_base(sources[index], corner.get(index, "least")), slab)[:, None] - drawn[None, :]
        drawn = np.asarray(evaluate(node, cells, [_cut(key, slab)[:, None] for key in keys]), float)
        low, high, spread = _spread(drawn, confidence)
        if folds_at(node):
            low, high = _image(drawn[:, inside])
        found.append((spread, low, high))
    spreads, lows, highs = zip(*found, strict=True)
    return np.maximum.reduce(spreads), np.minimum.reduce(lows), np.maximum.reduce(highs)


def _corners(sources: Sequence[NoisyColumn], used: Sequence[int]) -> list[dict[int, Missing]]:
    """How much may be missing from each cell, in every way, or, of many cells, one apart from the others."""
    levels = {index: _levels_of(sources[index]) for index in used}
    biased = [index for index in used if len(levels[index]) > 1]
    alike = [dict.fromkeys(biased, each) for each in MISSING] if biased else [{}]
    if len(biased) <= MOST_CORNERED:
        mixed = product(*(levels[index] for index in biased))
        return [*alike[1:2], *(dict(zip(biased, each, strict=True)) for each in mixed)]
    return alike + [base | {index: each} for base in alike for index in biased for each in MISSING]


def _levels_of(source: NoisyColumn) -> tuple[Missing, ...]:
    """What may be missing: nothing is between the ends where both signs may be."""
    if isinstance(source, Banded) or not source.biased:
        return ("least",)
    return MISSING if np.any(np.asarray(source.least) < 0) else ("least", "most")


def _central(noise: Sequence[Floats], confidence: float) -> NDArray[np.bool_]:
    """The points nearest to none, as many as the confidence says: a region that holds the true noise that often."""
    distance = np.sum(np.square(noise), axis=0)
    return np.asarray(distance <= np.quantile(distance, min(1.0, confidence + SIMULATED_EXTRA / 2), method="higher"))


def _image(drawn: Floats) -> tuple[Floats, Floats]:
    """All that a function makes of a region: for one that folds, quantiles of its values would miss the fold."""
    known = ~np.isnan(drawn)
    return np.where(known, drawn, -math.inf).min(axis=1), np.where(known, drawn, math.inf).max(axis=1)


def _base(source: NoisyColumn, missing: Missing) -> Floats:
    if isinstance(source, Banded):
        return source.values
    return np.asarray(source.values + getattr(source, missing))


def _cut(values: Values, slab: slice) -> Values:
    values = np.atleast_1d(values)
    return values[slab] if len(values) > 1 else values


def _spread(drawn: Floats, confidence: float) -> tuple[Floats, Floats, Floats]:
    tail = max((1 - confidence - SIMULATED_EXTRA) / 2, (1 - confidence) / 4)
    known = ~np.isnan(drawn)
    filled = np.where(known, drawn, -math.inf), np.where(known, drawn, math.inf)
    low = np.quantile(filled[0], tail, axis=1, method="lower")
    high = np.quantile(filled[1], 1 - tail, axis=1, method="higher")
    return low, high, _trimmed_std(np.where(known, drawn, 0.0))


def _trimmed_std(drawn: Floats) -> Floats:
    """The standard deviation without the outermost thousandth, which for a ratio may not exist."""
    edges = np.quantile(drawn, [0.001, 0.999], axis=1)
    return np.asarray(np.clip(drawn, edges[0][:, None], edges[1][:, None]).std(axis=1))


def _through(outer: Sequence[FunctionCall], inner: Estimate) -> Estimate:
    value, low, high = inner.value, inner.low, inner.high
    slope = np.asarray(1.0)
    for function in reversed(outer):
        slope = slope * _slope(function, value)
        value, low, high = (_apply(function, part) for part in (value, low, high))
    return Estimate(value, np.asarray(inner.std_error * slope), np.asarray(low, float), np.asarray(high, float))


def _apply(function: FunctionCall, value: Values) -> Values:
    """The function; below the domain of a root or logarithm its limit stands, so an interval keeps its lower end."""
    if function.name == "sqrt":
        value = np.maximum(value, 0.0)
    extra = [evaluate(argument, [], []) for argument in function.arguments[1:]]
    with np.errstate(all="ignore"):
        result = np.asarray(FUNCTIONS[function.name](value, *extra))
    return np.where(np.asarray(value) <= 0, -math.inf, result) if function.name in {"ln", "log10"} else result


def _slope(function: FunctionCall, value: Values) -> Floats:
    """How a small error grows through the function."""
    with np.errstate(all="ignore"):
        match function.name:
            case "sqrt":
                return np.asarray(0.5 / np.sqrt(np.maximum(value, SETTLED)))
            case "ln":
                return np.asarray(1 / np.maximum(value, SETTLED))
            case "log10":
                return np.asarray(1 / (math.log(10) * np.maximum(value, SETTLED)))
            case "exp":
                return np.asarray(np.exp(value))
            case _:
                return np.asarray(1.0)
