"""Exact tests and confidence bounds from two counts; p-values and bounds rely on no normal approximation.

`p_value` combines the two exact binomial tests of a null point (p, q) by weighted z-scores, which is valid for any
fixed weights, and takes the largest value over the whole boundary of the claim. Each cell of the boundary's grid is
evaluated at its worst corners, so that the grid errs on the safe side. The result is never much weaker than two
Clopper-Pearson bounds, and nearly 1.7 times sharper for common events.

For rare events it is not sharp: hits are few, and both counts are rounded to the safe side. Rare events are tested
conditionally on the total number of hits, by how many of them are on the first input. The rarest are tested together
with the rarer and commoner events around them, in levels of different weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, isclose, log, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dither.audit.claims import MAX_STRENGTH, Ceiling, Floats, ceiling, strength
from dither.loss import Approximate, Loss, Pure, rational

GRID = 400
# Each input gets at least a tenth of the runs, however different the two probabilities are.
SHARE_RANGE = (0.1, 0.9)
# A z-score below -8 is raised to -8. Each of the two is that low with probability 6.3e-16; FLOOR_COST covers both.
LOWEST_SCORE = -8.0
FLOOR_COST = 2e-15
# With at most this many expected hits, no hit at all has probability above a half. Then no count is evidence against
# the null, but a ceiling that is steep at 0 (Renyi of a low order) would give that count all the weight.
SILENT_HITS = 0.5
# Under a pure claim, events expected to have at most this probability are tested conditionally on their total hits.
# That is sharper by a hundredth with a thousand hits, by a half with ten; for common events it is less sharp.
RARE = 0.03
# With more hits than this, all weights are equal. With fewer, the error of the Fourier sum is below ROUNDING; the
# largest error observed was 3e-12.
MAX_WEIGHTED_HITS, ROUNDING = 5000, 1e-11


@dataclass(frozen=True)
class Level:
    """The hits of one level on each input, and their weight; `within` describes the level with all narrower ones."""

    weight: int
    hits_a: int
    hits_b: int
    within: str = ""


@dataclass(frozen=True)
class Counts:
    """The hits of an event in fresh runs on the two inputs.

    `rare` must be chosen before these runs; the test is then conditional on the total number of hits. If there are
    `levels`, which are disjoint, the test uses their weighted hits instead.
    """

    hits_a: int
    runs_a: int
    hits_b: int
    runs_b: int
    rare: bool = False
    levels: tuple[Level, ...] = ()


def clopper_pearson(hits: int, runs: int, alpha: float) -> tuple[float, float]:
    """Return a two-sided confidence interval for a probability, which misses it with probability at most `alpha`.

    >>> [round(x, 3) for x in clopper_pearson(0, 100, 0.05)]
    [0.0, 0.036]
    """
    return 1 - _upper_bound(runs - hits, runs, alpha / 2), _upper_bound(hits, runs, alpha / 2)


def _upper_bound(hits: int, runs: int, tail: float) -> float:
    """Return the probability p at which `hits` or fewer hits have probability `tail`: an upper confidence bound.

    scipy's inverse is far off for some shape parameters around 1000. It is checked, and if wrong, evaluated at nearby
    parameters, where it is right and slightly larger.
    """
    if hits == runs:
        return 1.0
    bound = float(special.betainccinv(hits + 1, runs - hits, tail))
    if isclose(float(special.betaincc(hits + 1, runs - hits, bound)), tail, rel_tol=1e-6):
        return bound
    return float(special.betainccinv(hits + 1.001, runs - hits - 0.001, tail))


def p_value(counts: Counts, limit: Ceiling) -> float:
    """Return a bound on the probability of evidence as strong as these counts, over all (p, q) the ceiling allows."""
    if counts.levels:
        return _p_value_by_levels(counts, limit)
    if counts.rare:
        return _p_value_given_total(counts, limit)
    edges = _boundary_grid(counts, limit)
    for _ in range(2):
        cells = _cell_p_values(counts, limit, edges)
        edges = _refine(edges, cells)
    return float(min(1.0, np.max(_cell_p_values(counts, limit, edges))))


def _p_value_given_total(counts: Counts, limit: Ceiling) -> float:
    """Return the probability of at least `hits_a` of all hits on the first input, at the largest odds ratio allowed.

    Given the total number of hits, those on the first input have Fisher's noncentral hypergeometric distribution, whose
    only parameter is the odds ratio; the larger the ratio, the more hits on the first input. Where the ceiling is a
    multiple of q, the ratio grows with q. With probability at least 1 - `FLOOR_COST`, q is at most the upper confidence
    bound from its count.
    """
    log_odds_ratio = _largest_log_odds_ratio(counts.hits_b, counts.runs_b, limit)
    total = counts.hits_a + counts.hits_b
    if log_odds_ratio == inf or counts.hits_a == 0:
        return 1.0
    fewest, most = max(0, total - counts.runs_b), min(total, counts.runs_a)
    hits = np.arange(fewest, most, dtype=np.float64)
    steps = np.log((counts.runs_a - hits) * (total - hits) / ((hits + 1) * (counts.runs_b - total + hits + 1)))
    log_weights = np.concatenate([[0.0], np.cumsum(steps + log_odds_ratio)])
    log_tail = special.logsumexp(log_weights[counts.hits_a - fewest :]) - special.logsumexp(log_weights)
    return float(min(1.0, np.exp(log_tail) + FLOOR_COST))


def _largest_log_odds_ratio(hits_b: int, runs_b: int, limit: Ceiling) -> float:
    """Return the log of the largest odds ratio that the ceiling allows, at the upper confidence bound on q.

    Return infinity if the ceiling is not a multiple of q: it may allow a larger ratio at smaller q.
    """
    largest_q = _upper_bound(hits_b, runs_b, FLOOR_COST)
    half, allowed = limit(np.array([largest_q / 2, largest_q])).tolist()
    if allowed >= 1 or not isclose(2 * half, allowed, rel_tol=1e-9):
        return inf
    return log(allowed / (1 - allowed)) - log(largest_q / (1 - largest_q))


def _p_value_by_levels(counts: Counts, limit: Ceiling) -> float:
    """Bound the probability of at least the observed weight on the first input, at the largest odds ratio allowed.

    Given the H hits among all runs, the probability of a labelling (the input of each hit) is proportional to the
    product of the odds ratios of the hits on the first input, times the number of ways to divide the other runs. Each
    hit more on the first input multiplies that number by at most runs_a / (runs_b - H + 1). Consider independent labels
    whose odds include that factor. The true distribution of the labels is a decreasing multiple of theirs, so by
    Harris's inequality independent labels put no less weight on the first input.
    """
    levels = drop_weights_if_many_hits(counts.levels)
    hits, weights = [level.hits_a + level.hits_b for level in levels], [level.weight for level in levels]
    first, other_runs = sum(level.hits_a for level in levels), counts.runs_b - sum(hits) + 1
    log_odds_ratio = _largest_log_odds_ratio(sum(level.hits_b for level in levels), counts.runs_b, limit)
    if log_odds_ratio == inf or other_runs <= 0 or first == 0:
        return 1.0
    chance = float(special.expit(log_odds_ratio + log(counts.runs_a / other_runs)))
    if min(weights) == max(weights):
        return float(min(1.0, special.betainc(first, sum(hits) - first + 1, chance) + FLOOR_COST))
    observed = sum(level.weight * level.hits_a for level in levels)
    return float(min(1.0, max(0.0, _weighted_tail(observed, weights, hits, chance)) + FLOOR_COST + ROUNDING))


def drop_weights_if_many_hits(levels: tuple[Level, ...]) -> tuple[Level, ...]:
    """Set all weights to 1 if there are too many hits in total, whichever inputs they are on."""
    if sum(level.hits_a + level.hits_b for level in levels) <= MAX_WEIGHTED_HITS:
        return levels
    return tuple(replace(level, weight=1) for level in levels)


def _weighted_tail(least: int, weights: Sequence[int], hits: Sequence[int], chance: float) -> float:
    """Return the probability that a sum of independent weighted Bernoulli labels is at least `least`.

    Each level has `hits` labels of its weight, each 1 with probability `chance`. The distribution of the sum is the
    inverse Fourier transform of the product of the labels' characteristic functions.
    """
    size = sum(weight * count for weight, count in zip(weights, hits, strict=True)) + 1
    roots_of_unity = np.exp(-2j * np.pi * np.arange(size // 2 + 1) / size)
    spectrum = np.ones(len(roots_of_unity), dtype=np.complex128)
    for weight, count in zip(weights, hits, strict=True):
        spectrum *= (1 - chance + chance * roots_of_unity**weight) ** count
    return float(np.fft.irfft(spectrum, size)[least:].sum())


def strength_lower(counts: Counts, claim: Loss, alpha: float, steps: int = 1) -> float:
    """Return the largest strength of this kind of claim that the counts refute at level `alpha`; 0 if none."""
    if not isinstance(claim, Pure):  # other ceilings are not multiples of q
        counts = replace(counts, rare=False, levels=())
    if p_value(counts, ceiling(claim, 0.0, steps)) > alpha:
        return 0.0
    low, high = 0.0, max(4 * strength(claim), 1.0)
    while high < MAX_STRENGTH / steps and p_value(counts, ceiling(claim, high, steps)) <= alpha:
        low, high = high, 2 * high
    tolerance, least = (1e-4, 1e-3 / steps) if isinstance(claim, Pure | Approximate) else (1e-2, 1e-3 / steps**2)
    while high - low > tolerance * max(low, least):
        middle = (low + high) / 2
        low, high = (middle, high) if p_value(counts, ceiling(claim, middle, steps)) <= alpha else (low, middle)
    return low


def epsilon_lower(counts: Counts, delta: float, alpha: float, steps: int = 1) -> float:
    """Return the largest epsilon that the counts refute at this delta."""
    claim = Approximate(rational(0), rational(delta)) if delta else Pure(rational(0))
    return strength_lower(counts, claim, alpha, steps)


def neyman_share(p: Any, q: Any, slope: Any, runs: float) -> Any:
    """Return the share of the runs that the first input should get, in proportion to its spread (Neyman allocation)."""
    p, q = np.clip(p, 1 / runs, 1 - 1 / runs), np.clip(q, 1 / runs, 1 - 1 / runs)
    first, second = np.sqrt(p * (1 - p)), slope * np.sqrt(q * (1 - q))
    return np.clip(first / (first + second), *SHARE_RANGE)


def predicted_epsilon(p: Any, q: Any, runs_a: Any, runs_b: Any, alpha: float, delta: float = 0.0) -> Any:
    """Approximate `epsilon_lower` for an event of these probabilities; fast, and used only to choose events."""
    z = -float(special.ndtri(alpha))
    p, q = np.asarray(p, dtype=float), np.asarray(q, dtype=float) + 1.0 / runs_b
    gap = np.maximum(p - delta, 0.0)
    variance_p, variance_q = p * np.maximum(1 - p, 0.0) / runs_a, q * np.maximum(1 - q, 0.0) / runs_b
    # The root r of gap - r q = z sqrt(variance_p + r^2 variance_q), written without cancellation.
    excess = np.maximum(gap * gap - z * z * variance_p, 0.0)
    ratio = excess / (gap * q + z * np.sqrt(variance_q * excess + q * q * variance_p) + 1e-300)
    return np.where(ratio > 0, np.log(np.maximum(ratio, 1e-300)), -inf)


def predicted_score(p: Any, q: Any, runs_a: Any, runs_b: Any, limit: Ceiling) -> Any:
    """Approximate the number of standard errors by which the event will lie above the ceiling."""
    p, q = np.asarray(p, dtype=float), np.clip(np.asarray(q, dtype=float) + 1.0 / runs_b, 0, 1)
    variance = np.maximum(p * (1 - p), 0.0) / runs_a + slope_at(limit, q) ** 2 * q * (1 - q) / runs_b
    return (p - limit(q)) / np.sqrt(variance + 1.0 / (runs_a * runs_b))


def slope_at(limit: Ceiling, q: Any) -> Any:
    """Return the slope of a ceiling at `q`."""
    step = np.maximum(q * 1e-3, 1e-9)
    return (limit(np.minimum(q + step, 1.0)) - limit(q)) / step


def optimal_epsilon(
    distributions: Sequence[tuple[Floats, Floats]], runs: int, alpha: float, delta: float = 0.0
) -> float:
    """Return the `epsilon_lower` of the best event of the best pair, with `runs` runs on each input.

    `distributions` has the exact output probabilities of each pair of inputs.
    """
    directions = (direction for p, q in distributions for direction in ((p, q), (q, p)))
    _, p_set, q_set = max((best_set(*both, runs, alpha, delta) for both in directions), key=lambda best: best[0])
    hits = [min(runs, round(share * runs)) for share in (p_set, q_set)]
    return epsilon_lower(Counts(hits[0], runs, hits[1], runs, p_set <= RARE and not delta), delta, alpha)


def best_set(p: Floats, q: Floats, runs: int, alpha: float, delta: float = 0.0) -> tuple[float, float, float]:
    """Return the best set of outputs: its predicted epsilon and its two probabilities.

    By the Neyman-Pearson lemma, a best set contains the outputs of the largest likelihood ratios.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        order = np.argsort(-np.where(q > 0, p / q, np.where(p > 0, inf, 0.0)), kind="stable")
    above_p, above_q = np.cumsum(p[order]), np.cumsum(q[order])
    values = predicted_epsilon(above_p, above_q, runs, runs, alpha, delta)
    best = int(np.argmax(values))
    return float(values[best]), float(above_p[best]), float(above_q[best])


def detectable_strength(q: float, runs: int, claim: Loss, alpha: float, steps: int = 1, power: float = 0.9) -> float:
    """Return the smallest strength that `runs` runs on each input detect with this power, by an event of probability q.

    A strength is detected if a mechanism of that strength refutes the claim.
    """
    needed_score = float(special.ndtri(power)) - float(special.ndtri(alpha))
    stated, at_q = strength(claim), np.array([q])
    limit = ceiling(claim, stated, steps)

    def refuted(at: float) -> bool:
        p = ceiling(claim, at, steps)(at_q)
        return bool(predicted_score(p, at_q, runs, runs, limit)[0] >= needed_score)

    low, high = stated, max(4 * stated, 1.0)
    while high < MAX_STRENGTH and not refuted(high):
        high *= 2
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if refuted(middle) else (middle, high)
    return high


def _boundary_grid(counts: Counts, limit: Ceiling) -> Floats:
    """Return grid points for the second probability, dense where either count makes the null point plausible."""
    deviations = np.linspace(-9, 9, GRID)
    near_b = _probabilities_around(counts.hits_b, counts.runs_b, deviations)
    plausible_p = _probabilities_around(counts.hits_a, counts.runs_a, deviations)
    geometric = np.concatenate([[0.0], np.geomspace(1e-4 / counts.runs_b, 1.0, 200)])
    base = np.unique(np.concatenate([geometric, near_b]))
    near_a = np.interp(plausible_p, limit(base), base)
    return np.unique(np.clip(np.concatenate([base, near_a, [0.0, 1.0]]), 0.0, 1.0))


def _probabilities_around(hits: int, runs: int, deviations: Floats) -> Floats:
    """Return probabilities these many standard deviations from the observed one, by the arcsine transform."""
    centre = np.arcsin(sqrt((hits + 0.375) / (runs + 0.75)))
    result: Floats = np.sin(np.clip(centre + deviations / (2 * sqrt(runs + 0.5)), 0, np.pi / 2)) ** 2
    return result


def _cell_p_values(counts: Counts, limit: Ceiling, edges: Floats) -> Floats:
    """Return, for each cell between neighbouring edges, a bound on the p-value of every null point inside it."""
    q_low, q_high = edges[:-1], edges[1:]
    p = limit(edges)
    p_low, p_high = p[:-1], p[1:]
    middle, p_middle = (q_low + q_high) / 2, (p_low + p_high) / 2
    slope = _slopes(q_low, q_high, p_low, p_high)
    weight_a = np.sqrt(np.maximum(p_middle * (1 - p_middle), 1e-18) / counts.runs_a)
    weight_b = slope * np.sqrt(np.maximum(middle * (1 - middle), 1e-18) / counts.runs_b)
    weight_b = np.where(q_low * counts.runs_b > SILENT_HITS, weight_b, 0.0)
    z_a = _z_score(_at_least(counts.hits_a, counts.runs_a, p_high), _at_most(counts.hits_a - 1, counts.runs_a, p_high))
    z_b = _z_score(_at_most(counts.hits_b, counts.runs_b, q_low), _at_least(counts.hits_b + 1, counts.runs_b, q_low))
    z = (weight_a * z_a + weight_b * z_b) / np.hypot(weight_a, weight_b)
    result: Floats = special.ndtr(-z) + FLOOR_COST
    return result


def _slopes(q_low: Floats, q_high: Floats, p_low: Floats, p_high: Floats) -> Floats:
    """Return the slope of the ceiling in each cell; above 0.95, the last slope below, so that q keeps its weight."""
    slope = (p_high - p_low) / np.maximum(q_high - q_low, 1e-300)
    rising = np.flatnonzero(p_high < 0.95)
    last = int(rising[-1]) if len(rising) else 0
    result: Floats = np.maximum(np.where(np.arange(len(slope)) > last, slope[last], slope), 1e-12)
    return result


def _refine(edges: Floats, cells: Floats) -> Floats:
    """Add edges inside the cells whose p-values are near the maximum."""
    chosen = np.flatnonzero(cells >= np.max(cells) * 0.98)[:40]
    fractions = np.linspace(0, 1, 9)[1:-1]
    extra = edges[chosen, None] + (edges[chosen + 1] - edges[chosen])[:, None] * fractions
    return np.unique(np.concatenate([edges, extra.ravel()]))


def _at_least(hits: int, runs: int, p: Floats) -> Floats:
    """Return log P[Binomial(runs, p) >= hits], or Chernoff's bound on it where the probability underflows."""
    if hits <= 0:
        return np.zeros_like(p)
    if hits > runs:
        return np.full_like(p, -inf)
    return _log_tail(special.betainc(hits, runs - hits + 1, p), hits / runs, runs, p, p < hits / runs)


def _at_most(hits: int, runs: int, p: Floats) -> Floats:
    """Return log P[Binomial(runs, p) <= hits], or Chernoff's bound on it where the probability underflows."""
    if hits >= runs:
        return np.zeros_like(p)
    if hits < 0:
        return np.full_like(p, -inf)
    return _log_tail(special.betaincc(hits + 1, runs - hits, p), hits / runs, runs, p, p > hits / runs)


def _log_tail(tail: Floats, share: float, runs: int, p: Floats, far: NDArray[np.bool_]) -> Floats:
    """Return the log of a tail probability, or Chernoff's bound where `far` and too small for floats."""
    with np.errstate(divide="ignore", invalid="ignore"):
        exact = np.log(tail)
        chernoff = -runs * (special.rel_entr(share, p) + special.rel_entr(1 - share, 1 - p))
    result: Floats = np.where(far & (tail < 1e-290), np.where(np.isnan(chernoff), -inf, chernoff), exact)
    return result


def _z_score(log_tail: Floats, log_complement: Floats) -> Floats:
    """Return the z-score of a p-value, accurate at both ends and at least `LOWEST_SCORE`."""
    small = -special.ndtri_exp(np.minimum(log_tail, -1e-300))
    large = special.ndtri_exp(np.minimum(log_complement, -1e-300))
    result: Floats = np.maximum(np.where(log_tail < -log(2), small, large), LOWEST_SCORE)
    return result
