"""Choose a contribution bound from a noisy histogram of how much units contribute.

All of this is postprocessing of a release. It runs inside the kernel so that one charge pays for choosing the bound and
for answering at it. A unit's contribution is its number of rows, or the size of its values; the histogram counts the
units in each bin of a public grid. A bound C scales a contribution x down to min(x, C). The number of units in
each bin is inferred from the noisy counts: up to the last bin that noise cannot explain, by those counts; beyond it
by a tail that falls ever faster (log-concave in the logarithm of the contribution, a Pareto tail at the slowest). Tails
are weighed by the likelihood of all noisy counts, and the bound with the least expected error is chosen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dither.privacy.mechanisms import Mechanism
from dither.privacy.protocol import BoundRule, BoundSearch, KnownSize

Floats = NDArray[np.float64]

# The chance that noise alone lifts any bin above the level at which it counts as seen.
FALSE_BIN = 1e-5
# Numbers of neighbouring bins that are judged together.
SEEN_TOGETHER = (1, 2, 4)
# Humps: units spread around some bin, by widths in bins below and above it: in the logarithm of the contribution they
# fall like an exponential (power 1) or a Gaussian (2). Beyond a seen bin they have this prior probability: noise alone
# makes one believable (at 2.5%) at most once in a few thousand searches.
HUMPS = [(0.3, 0.3, 1), (0.7, 0.7, 1), (1.5, 0.7, 1), (1.5, 1.5, 1), (3.0, 1.5, 1), (3.0, 2.5, 1)]
HUMPS += [(0.5, 0.5, 2), (1, 1, 2), (2, 1, 2), (2, 2, 2), (4, 2, 2), (4, 4, 2), (8, 2, 2), (8, 4, 2)]
HUMP_PRIOR = 1e-4
MAX_CENTRES, HUMP_TOTALS = 64, 10
ROWS_AT_ONCE = 256
# Where no bin is seen, a hump is this much less likely (on a logarithmic scale) for each bin above that of one row, and
# for each below.
FALL_ABOVE, FALL_BELOW = 0.35, 0.1
# A tail may start this many bins before the last one seen, or after it; a bin left free between costs a factor.
BINS_BEFORE, BINS_AFTER, FREE_BIN = 5, 5, 0.03
# Tails: the count of a bin over that of the one before, at most, and from where ratios are tried in small steps; and by
# how much this ratio falls from bin to bin.
MAX_RATIO, FINE_RATIOS = 0.68, 0.45
LOG_BENDS = np.log([1.0, 0.97, 0.93, 0.88, 0.8, 0.65, 0.4, 0.1])
BEND_PRIOR = np.array([0.7, *[0.3 / 7] * 7])
# The relative error that a tail of this form may have in each bin.
MISFIT = 0.1
# The error of the mean contribution in a bin, in widths of the bin; and how unevenly heavy units spread over cells.
WITHIN_BIN, UNEVENNESS = 0.15, 0.5
DRAWS = 400
LARGEST_COUNT = 1e12
# Less noise than this is treated as this much; draws with it stay whole numbers.
LEAST_SCALE = 0.01


@dataclass(frozen=True)
class ContributionModel:
    """Draws of the true number of units in each bin, given the noisy histogram.

    `upper` is the largest contribution of each bin, `width` the bin's width, `mean` the mean contribution of its
    units, and each row of `draws` is one possible set of counts. Noise does not explain the counts up to `seen`, which
    is 0 if it explains them all; beyond, it could hide up to about `hidden` units in one bin.
    """

    upper: Floats
    width: Floats
    mean: Floats
    draws: Floats
    seen: float
    hidden: float

    def removed_totals(self, bounds: ArrayLike) -> Floats:
        """Return what bounds remove from all units together, in each draw; a column for each of several bounds."""
        return weighted_sums(self.draws, self._excess(bounds))

    def removed_squares(self, bounds: ArrayLike, level: float = 0.5) -> Floats:
        """Return a quantile of the sum of squares of what each unit loses: how uneven clipping may be."""
        squares = weighted_sums(np.maximum(self.draws, 0), self._excess(bounds) ** 2)
        return np.asarray(np.quantile(squares, level, axis=0))

    def bin_error(self, bounds: ArrayLike) -> Floats:
        """Return the error of `removed_totals` that comes from not knowing where in their bins the units lie."""
        counts = np.maximum(np.median(self.draws, axis=0), 0)
        return WITHIN_BIN * weighted_sums(counts * self.width, self._excess(bounds) > 0)

    def total(self) -> float:
        """Return the median of all contributions together."""
        return float(np.median(weighted_sums(np.maximum(self.draws, 0), self.mean)))

    def _excess(self, bounds: ArrayLike) -> Floats:
        """Return what each bound removes from a unit of each bin: a row for each of several bounds."""
        least = np.asarray(bounds, float)[..., None]
        return np.where(self.upper > least, np.maximum(self.mean - least, 0.0), 0.0)


def weighted_sums(counts: Floats, weights: ArrayLike) -> Floats:
    """Return the sum over bins of counts times weights, for each row of either.

    It uses one thread: tables of counts are small, and the threads of a matrix product would spin after it for longer
    than it takes.
    """
    sums = np.einsum("...j,kj->...k", counts, np.atleast_2d(weights))
    return np.asarray(sums.reshape(np.shape(counts)[:-1] + np.shape(weights)[:-1]))


def fit_contributions(
    points: Sequence[int],
    noisy: Sequence[float] | Floats,
    scale: float,
    step: int = 1,
    top: int = 0,
    row: int = 1,
    sizes: Sequence[KnownSize] = (),
) -> ContributionModel:
    """Infer the number of units in each bin from noisy counts, where noise has about this Laplace scale.

    Bin j + 1 holds contributions from `points[j]` to the next point; contributions are multiples of `step`, and none
    is above `top` if that lies in the last bin (by default, there is one more bin's worth). A row contributes at most
    `row`. Tails that do not fit known `sizes` are less likely.
    """
    return _fit_once(tuple(points), tuple(map(float, noisy)), max(scale, LEAST_SCALE), step, top, row, tuple(sizes))


@lru_cache(maxsize=32)
def _fit_once(
    points: tuple[int, ...],
    noisy: tuple[float, ...],
    scale: float,
    step: int,
    top: int,
    row: int,
    sizes: tuple[KnownSize, ...],
) -> ContributionModel:
    """Fit the model; once for the same release, as the rule that chooses a bound and the answer both read it."""
    edges = np.asarray(points, float)
    counts = np.clip(np.asarray(noisy), -LARGEST_COUNT, LARGEST_COUNT)
    last = float(top) if top >= edges[-1] else edges[-1] * (edges[-1] / edges[-2] if len(edges) > 1 else 2.0)
    lower = np.concatenate([[min(float(step), edges[0])], edges])
    upper = np.maximum(np.concatenate([edges - step, [last]]), lower)
    last_seen = _last_seen(counts, scale)
    known = _Sizes(sizes, np.sqrt(lower * upper), scale)
    draws = _draw_counts(counts, scale, last_seen, int(np.searchsorted(edges, row, side="right")), known)
    mean = _mean_positions(lower, upper, np.median(draws, axis=0), scale)
    seen, hidden = float(upper[last_seen]) if last_seen >= 0 else 0.0, scale * _seen_level(1, len(counts))
    return ContributionModel(upper, upper - lower, mean, draws, seen, hidden)


def _mean_positions(lower: Floats, upper: Floats, counts: Floats, scale: float) -> Floats:
    """Return the mean contribution in each bin, if its density slopes as between the neighbouring bins.

    In the last bin are those that a cap has cut, at its end.
    """
    values = np.maximum(counts, 0) + scale
    slope = np.zeros(len(values))
    slope[1:-1] = np.clip(0.5 * np.log(values[2:] / values[:-2]), -4, 4)
    slope[np.abs(slope) < 1e-3] = 1e-3
    means = lower + (upper - lower) * (1 / (1 - np.exp(-slope)) - 1 / slope)
    return np.append(means[:-1], upper[-1])


@dataclass(frozen=True)
class _Tails:
    """Possible counts beyond the bins of `head`, their logarithmic weights, and the bin after which they are drawn."""

    head: Floats
    counts: Floats
    weights: Floats
    start: int

    def whole(self, rows: NDArray[np.int64]) -> Floats:
        """Return the counts of some rows in all bins."""
        return np.concatenate([np.tile(self.head, (len(rows), 1)), self.counts[rows]], axis=1)


@dataclass(frozen=True)
class _Sizes:
    """Weighs possible counts of units, which contribute about `middles`, by what is public about all together."""

    known: Sequence[KnownSize]
    middles: Floats
    scale: float

    def fit(self, tails: _Tails) -> Floats:
        """Return the log-likelihood of the sizes; counts before the start of tails have the noise of the histogram."""
        fit, bins = np.zeros(len(tails.counts)), len(tails.head)
        for size in self.known:
            weights = np.minimum(self.middles, size.clip)
            noise = self.scale * math.sqrt(float((weights[: tails.start + 1] ** 2).sum()))
            amounts = weighted_sums(tails.counts, weights[bins:]) + float((tails.head * weights[:bins]).sum())
            missing = size.amount - amounts
            misfit = np.abs(missing) if size.whole else np.maximum(-missing, 0)
            fit -= misfit / (size.scale + MISFIT * abs(size.amount) + noise)
        return fit


def _last_seen(noisy: Floats, scale: float) -> int:
    """Return the last bin that noise does not explain, by its own count or that of a few bins up to it, or -1."""
    seen = [-1]
    for bins in SEEN_TOGETHER:
        sums = np.convolve(noisy, np.ones(bins))[: len(noisy)]
        level = scale * _seen_level(bins, len(noisy))
        # The last of several bins must have a share of their count, or it is not the last.
        seen += np.flatnonzero((sums > level) & (noisy > sums / (2 * bins))).tolist()
    return int(max(seen))


@lru_cache(maxsize=64)
def _seen_level(bins: int, size: int) -> float:
    """Return a level that Laplace noises of scale 1 in this many bins together exceed rarely, anywhere in `size`."""
    chance = FALSE_BIN / (size * len(SEEN_TOGETHER))
    if bins == 1:
        return -math.log(2 * chance)
    rates = np.linspace(0.01, 0.999, 200)
    return float(((-bins * np.log1p(-(rates**2)) - math.log(chance)) / rates).min())


def _draw_counts(noisy: Floats, scale: float, last_seen: int, row_bin: int, sizes: _Sizes) -> Floats:
    """Draw true counts given the noisy ones: with fresh noise up to where a tail starts, Poisson from the tail on."""
    last_start = min(last_seen + BINS_AFTER, len(noisy) - 2)
    first_start = min(max(last_seen - BINS_BEFORE, 0), last_start)
    starts = range(first_start, last_start + 1) if last_seen >= 0 else ()
    tails = [_tails_from(start, last_seen, first_start, noisy, scale) for start in starts]
    if last_seen < len(noisy) - 1:
        tails.append(_humps(tails, noisy, scale, last_seen, row_bin))
    weights = np.concatenate([each.weights + sizes.fit(each) for each in tails])
    cumulative = np.cumsum(np.exp(weights - weights.max()))
    # The draws are the same for the same release: this is a fixed sequence of numbers, not noise that protects anyone.
    sequence = np.random.Generator(np.random.PCG64(0))
    levels = (np.arange(DRAWS) + sequence.random(DRAWS)) / DRAWS
    chosen = np.searchsorted(cumulative / cumulative[-1], levels).clip(0, len(weights) - 1)
    known = noisy + sequence.laplace(0, scale, (DRAWS, len(noisy)))
    known[:, last_seen + 1 :] = np.maximum(known[:, last_seen + 1 :], 0)
    counts, begins = _rows_of(tails, chosen)
    beyond = np.arange(len(noisy)) > begins[:, None]
    return np.where(beyond, sequence.poisson(np.clip(counts, 0, LARGEST_COUNT)), known)


def _rows_of(tails: Sequence[_Tails], chosen: NDArray[np.int64]) -> tuple[Floats, NDArray[np.int64]]:
    """Return the counts and the starts of some tails, by increasing number through all of them."""
    ends = np.cumsum([len(each.weights) for each in tails])
    parts = np.split(chosen, np.searchsorted(chosen, ends[:-1]))
    firsts = ends - [len(each.weights) for each in tails]
    counts = [each.whole(part - first) for each, part, first in zip(tails, parts, firsts, strict=True)]
    return np.concatenate(counts), np.repeat([each.start for each in tails], [len(part) for part in parts])


def _tails_from(start: int, last_seen: int, first_start: int, noisy: Floats, scale: float) -> _Tails:
    """Weigh all tails that start at one bin by the likelihood of the noisy counts."""
    bins, top = len(noisy), max(noisy[start], 2 * scale, 1.0)
    ratios = _ratios(round(math.log2(top), 1), start < last_seen)
    log_ratios, places = np.log(ratios), np.arange(bins + 20 - start)
    # From bin to bin, the count is multiplied by the ratio, and the ratio by the bend.
    straight = np.exp(np.maximum(math.log(top) + log_ratios[:, None] * (places + 1), -700))
    bent = np.exp(np.maximum(LOG_BENDS[:, None] * (places * (places + 1) / 2), -700))
    counts = (straight[:, None] * bent).reshape(-1, len(places))
    # Units beyond the last bin count in its last bin.
    counts[:, bins - start - 2] = counts[:, bins - start - 2 :].sum(axis=1)
    counts = counts[:, : bins - start - 1]
    fit = _fit(noisy[start + 1 :], counts, scale) + _free_bins_fit(noisy[last_seen : start + 1], scale)
    fit -= max(min(start, last_seen) - first_start, 0) * math.log(max(noisy.max(), 2.0))
    prior = np.outer(np.gradient(log_ratios) / -log_ratios[0], BEND_PRIOR).ravel()
    from_seen = log_ratios[:, None] + LOG_BENDS * max(last_seen - start, 0)
    falls = from_seen.ravel() <= math.log(MAX_RATIO) + 1e-9
    weights = np.where(falls, fit + np.log(np.maximum(prior, 1e-300)), -1e300)
    return _Tails(noisy[: start + 1], counts, weights, max(start, last_seen))


def _humps(tails: Sequence[_Tails], noisy: Floats, scale: float, last_seen: int, row_bin: int) -> _Tails:
    """Weigh humps beyond the last bin seen, on top of the likeliest tail: of any place, width and total."""
    size = len(noisy) - last_seen - 1
    likeliest = max(tails, key=lambda each: float(each.weights.max()), default=None)
    base = np.zeros(len(noisy)) if likeliest is None else likeliest.whole(np.array([likeliest.weights.argmax()]))[0]
    weight = 0.0 if likeliest is None else float(likeliest.weights.max())
    rest = noisy[last_seen + 1 :]
    totals = np.geomspace(max(scale / 4, 1.0), max(2 * float(rest.sum()), 20 * scale, 2.0), HUMP_TOTALS)
    counts = (_hump_shapes(size)[:, None] * totals[:, None]).reshape(-1, size)
    counts += base[last_seen + 1 :]
    fit = _fit(rest, counts, scale) - _fit(rest, base[None, last_seen + 1 :], scale) - math.log(len(counts))
    if likeliest is None:
        centres = _hump_centres(size)
        fall = FALL_ABOVE * np.maximum(centres - row_bin, 0) + FALL_BELOW * np.maximum(row_bin - centres, 0)
        fit = fit - np.repeat(fall, len(HUMPS) * HUMP_TOTALS)
    return _Tails(base[: last_seen + 1], counts, weight + fit + math.log(HUMP_PRIOR), last_seen)


def _hump_centres(size: int) -> Floats:
    return np.linspace(0, size - 1, min(size, MAX_CENTRES))


@lru_cache(maxsize=16)
def _hump_shapes(size: int) -> Floats:
    """Return the shares of a hump in each of some bins: a row for each centre and width."""
    below, above, power = np.array(HUMPS).T[:, :, None]
    away = np.arange(size) - _hump_centres(size)[:, None, None]
    shapes = np.exp(-np.minimum(np.abs(away / np.where(away < 0, below, above)) ** power, 700))
    return np.asarray((shapes / shapes.sum(axis=-1, keepdims=True)).reshape(-1, size))


def _fit(noisy: Floats, counts: Floats, scale: float) -> Floats:
    """Return the log-likelihood of noisy counts, with noise of a Laplace scale and a relative error of the model.

    Many rows of counts are taken a few at a time, so that what is computed on the way stays in the processor's cache.
    """
    fit = np.empty(len(counts))
    for first in range(0, len(counts), ROWS_AT_ONCE):
        some = counts[first : first + ROWS_AT_ONCE]
        spread = scale + MISFIT * some
        fit[first : first + ROWS_AT_ONCE] = -(np.abs(noisy - some) / spread + np.log(2 * spread)).sum(axis=-1)
    return fit


@lru_cache(maxsize=512)
def _ratios(log_top: float, may_rise: bool) -> Floats:
    """Return the ratios to try from one bin to the next: from a tenth of one unit left to the largest ratio.

    Near that, small steps matter: what a heavy tail adds changes a lot with its ratio.
    """
    few, some = np.geomspace(0.1 / 2**log_top, 0.1, 11)[:-1], np.geomspace(0.1, FINE_RATIOS, 12)[:-1]
    rising = np.geomspace(MAX_RATIO, 1.0, 6)[1:] if may_rise else np.empty(0)
    return np.concatenate([few, some, np.geomspace(FINE_RATIOS, MAX_RATIO, 19), rising])


def _free_bins_fit(noisy: Floats, scale: float) -> float:
    """Return the log-likelihood of bins after the first, each with a uniform prior up to the noisy count before it."""
    if len(noisy) < 2:
        return 0.0
    most = np.maximum(noisy[:-1], 2 * scale)
    inside = _laplace_cdf(noisy[1:] / scale) - _laplace_cdf((noisy[1:] - most) / scale)
    return float(np.log(FREE_BIN * inside / most + 1e-300).sum())


def _laplace_cdf(x: Floats) -> Floats:
    return np.where(x < 0, 0.5 * np.exp(np.minimum(x, 0)), 1 - 0.5 * np.exp(-np.maximum(x, 0)))


def bound_errors(model: ContributionModel, bounds: Sequence[int], rule: BoundRule) -> Floats:
    """Return the expected squared error of a typical cell at each bound: of the noise, and of what is removed.

    The estimate of what is removed is added back to unsigned sums, so only its error counts. The typical cell has a
    share of the total between that of an only cell and that of equal cells.
    """
    share, noise = 1 / math.sqrt(rule.cells), float(rule.noise) * np.asarray(bounds, float)
    low, middle, high = np.quantile(model.removed_totals(bounds), [0.16, 0.5, 0.84], axis=0)
    spread = np.maximum(np.abs(low), np.abs(high)) if rule.signed else (high - low) / 2
    error = noise**2 + share**2 * (spread**2 + model.bin_error(bounds) ** 2)
    if rule.cells > 1:
        error += (share * UNEVENNESS * middle) ** 2 + share * (1 - share) * model.removed_squares(bounds)
    return np.asarray(error)


def choose_contribution_bound(search: BoundSearch, values: Sequence[int], mechanism: Mechanism) -> int:
    """Return the grid point that a search chose: the one of least error by its rule, or at the released index."""
    grid, rule = search.grid, search.rule
    if not isinstance(rule, BoundRule):
        index = values[0] if values else 0
        return grid[min(max(index, 0), len(grid) - 1)]
    scale = mechanism.std() / math.sqrt(2)
    model = fit_contributions(rule.points, values, scale, rule.step, grid[-1], rule.row, rule.sizes)
    return grid[int(np.argmin(bound_errors(model, grid, rule)))]
