"""Exact inference on two counts, and an anytime-valid test: nothing here relies on a normal approximation.

`p_value` combines the two exact binomial tests of a null point (p, q) by weighted z-scores, which is valid for any
fixed weights, and takes the largest value over the whole boundary of the claim; each cell of the boundary's grid is
judged by its worst corners, so that the grid errs on the safe side. This is never less sharp than two Clopper-Pearson
bounds by much, and for common events nearly 1.7 times sharper. Of rare events it is not sharp: their hits are few, and
both counts are rounded to the safe side. They are judged by how all hits are shared between the two inputs; the rarest
ones together with rarer and commoner ones around them, each level with its weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, isclose, log, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dither.audit.claims import LARGEST_STRENGTH, Ceiling, Floats, ceiling, strength
from dither.loss import Approximate, Loss, Pure, rational

GRID = 400
# However unlike the two probabilities are, each input has at least a tenth of the runs.
DIVISION = (0.1, 0.9)
# A z-score below -8 is counted as -8: either coordinate does that with probability 6.3e-16, which is added back.
LOWEST_SCORE = -8.0
FLOOR_COST = 2e-15
# So few hits expected that none at all has probability above a half: no count of them speaks against the null, and a
# ceiling that is steep at 0 (Renyi of a low order) would give them all the weight.
SILENT = 0.5
# Events that are thought to be at most so likely are judged given how often they happen in all, if the claim is pure.
# With a thousand hits that is sharper by a hundredth, with ten by a half; where events are common, less sharp.
RARE = 0.03
# More hits than these have equal weights. Of fewer, Fourier's sum is wrong by less than this: 3e-12 was seen.
MOST_WEIGHED, ROUNDING = 5000, 1e-11


@dataclass(frozen=True)
class Level:
    """Outputs of one weight, how often they happened on the two inputs, and, in words, they and what is inside them."""

    weight: int
    hits_a: int
    hits_b: int
    within: str = ""


@dataclass(frozen=True)
class Counts:
    """How often an event happened on the two inputs in fresh runs.

    If it was thought to be `rare` before they were made, it is judged given how often it happened in all. If there are
    levels, which have nothing in common, they are judged instead: the weight and the hits of each.
    """

    hits_a: int
    runs_a: int
    hits_b: int
    runs_b: int
    rare: bool = False
    levels: tuple[Level, ...] = ()


def clopper_pearson(hits: int, runs: int, alpha: float) -> tuple[float, float]:
    """A two-sided interval for a probability that misses with probability at most `alpha`.

    >>> [round(x, 3) for x in clopper_pearson(0, 100, 0.05)]
    [0.0, 0.036]
    """
    return 1 - _at_most_likely(runs - hits, runs, alpha / 2), _at_most_likely(hits, runs, alpha / 2)


def _at_most_likely(hits: int, runs: int, tail: float) -> float:
    """The probability at which so few hits have this chance: what is above it is thought unlikely.

    The inverse of scipy is wrong by far for some shapes of 1000, so it is tried, and if need be asked of shapes nearby,
    for which it is right and a little larger.
    """
    if hits == runs:
        return 1.0
    found = float(special.betainccinv(hits + 1, runs - hits, tail))
    if isclose(float(special.betaincc(hits + 1, runs - hits, found)), tail, rel_tol=1e-6):
        return found
    return float(special.betainccinv(hits + 1.001, runs - hits - 0.001, tail))


def p_value(counts: Counts, limit: Ceiling) -> float:
    """The largest probability, over all that the ceiling allows, of evidence as strong as these counts."""
    if counts.levels:
        return _p_value_by_levels(counts, limit)
    if counts.rare:
        return _p_value_in_all(counts, limit)
    edges = _boundary(counts, limit)
    for _ in range(2):
        cells = _cell_p_values(counts, limit, edges)
        edges = _refine(edges, cells)
    return float(min(1.0, np.max(_cell_p_values(counts, limit, edges))))


def _p_value_in_all(counts: Counts, limit: Ceiling) -> float:
    """How likely so many of all hits are on the first input, if the odds of the event there are as large as they may.

    Given all hits, Fisher's noncentral hypergeometric law has the ratio of the odds as its only parameter, and puts the
    more on the first input the larger it is. Where the ceiling is a multiple of q, it is the larger the larger q is;
    but for `FLOOR_COST`, q is at most the bound that its count gives.
    """
    odds, total = _largest_odds(counts.hits_b, counts.runs_b, limit), counts.hits_a + counts.hits_b
    if odds == inf or counts.hits_a == 0:
        return 1.0
    fewest, all_of_them = max(0, total - counts.runs_b), min(total, counts.runs_a)
    hits = np.arange(fewest, all_of_them, dtype=np.float64)
    steps = np.log((counts.runs_a - hits) * (total - hits) / ((hits + 1) * (counts.runs_b - total + hits + 1)))
    weights = np.concatenate([[0.0], np.cumsum(steps + odds)])
    tail = special.logsumexp(weights[counts.hits_a - fewest :]) - special.logsumexp(weights)
    return float(min(1.0, np.exp(tail) + FLOOR_COST))


def _largest_odds(hits_b: int, runs_b: int, limit: Ceiling) -> float:
    """The logarithm of the largest ratio of odds that a ceiling, a multiple of q, allows an event of so many hits."""
    most = _at_most_likely(hits_b, runs_b, FLOOR_COST)
    half, allowed = limit(np.array([most / 2, most])).tolist()
    if allowed >= 1 or not isclose(2 * half, allowed, rel_tol=1e-9):  # another ceiling may allow more where q is small
        return inf
    return log(allowed / (1 - allowed)) - log(most / (1 - most))


def _p_value_by_levels(counts: Counts, limit: Ceiling) -> float:
    """How likely hits of so much weight are on the first input, if each hit is there as likely as it may be.

    Given all hits, and that H of all runs are hits, each labelling of them is as likely as the product of the odds of
    those on the first input, times the number of ways to share the other runs, which grows by no more than the factor
    runs_a / (runs_b - H + 1) with each hit there. Labels that are independent, with that factor on their odds, have a
    law that this one is a decreasing multiple of; so, by the inequality of Harris, they put no less weight there.
    """
    levels = as_weighed(counts.levels)
    hits, weights = [level.hits_a + level.hits_b for level in levels], [level.weight for level in levels]
    others, first = counts.runs_b - sum(hits) + 1, sum(level.hits_a for level in levels)
    odds = _largest_odds(sum(level.hits_b for level in levels), counts.runs_b, limit)
    if odds == inf or others <= 0 or first == 0:
        return 1.0
    chance = float(special.expit(odds + log(counts.runs_a / others)))
    if min(weights) == max(weights):
        return float(min(1.0, special.betainc(first, sum(hits) - first + 1, chance) + FLOOR_COST))
    found = sum(level.weight * level.hits_a for level in levels)
    return float(min(1.0, max(0.0, _weighed_tail(found, weights, hits, chance)) + FLOOR_COST + ROUNDING))


def as_weighed(levels: tuple[Level, ...]) -> tuple[Level, ...]:
    """With equal weights, if there are too many hits: which depends on how many there are in all, not on whose."""
    if sum(level.hits_a + level.hits_b for level in levels) <= MOST_WEIGHED:
        return levels
    return tuple(replace(level, weight=1) for level in levels)


def _weighed_tail(least: int, weights: Sequence[int], hits: Sequence[int], chance: float) -> float:
    """The chance that independent labels, each 1 with this chance, have at least so much weight: by Fourier's sum."""
    size = sum(weight * held for weight, held in zip(weights, hits, strict=True)) + 1
    turns = np.exp(-2j * np.pi * np.arange(size // 2 + 1) / size)
    spectrum = np.ones(len(turns), dtype=np.complex128)
    for weight, held in zip(weights, hits, strict=True):
        spectrum *= (1 - chance + chance * turns**weight) ** held
    return float(np.fft.irfft(spectrum, size)[least:].sum())


def strength_lower(counts: Counts, claim: Loss, alpha: float, steps: int = 1) -> float:
    """The largest strength of this kind of claim that the counts refute at level `alpha`; 0 if none."""
    if not isinstance(claim, Pure):  # other ceilings are no multiples of q
        counts = replace(counts, rare=False, levels=())
    if p_value(counts, ceiling(claim, 0.0, steps)) > alpha:
        return 0.0
    low, high = 0.0, max(4 * strength(claim), 1.0)
    while high < LARGEST_STRENGTH / steps and p_value(counts, ceiling(claim, high, steps)) <= alpha:
        low, high = high, 2 * high
    tolerance, least = (1e-4, 1e-3 / steps) if isinstance(claim, Pure | Approximate) else (1e-2, 1e-3 / steps**2)
    while high - low > tolerance * max(low, least):
        middle = (low + high) / 2
        low, high = (middle, high) if p_value(counts, ceiling(claim, middle, steps)) <= alpha else (low, middle)
    return low


def epsilon_lower(counts: Counts, delta: float, alpha: float, steps: int = 1) -> float:
    """The largest epsilon that the counts refute at this delta."""
    claim = Approximate(rational(0), rational(delta)) if delta else Pure(rational(0))
    return strength_lower(counts, claim, alpha, steps)


def division(p: Any, q: Any, slope: Any, runs: float) -> Any:
    """The share of the runs that the first input should have: as its standard error to the sum of both (Neyman)."""
    p, q = np.clip(p, 1 / runs, 1 - 1 / runs), np.clip(q, 1 / runs, 1 - 1 / runs)
    first, second = np.sqrt(p * (1 - p)), slope * np.sqrt(q * (1 - q))
    return np.clip(first / (first + second), *DIVISION)


def predicted_epsilon(p: Any, q: Any, runs_a: Any, runs_b: Any, alpha: float, delta: float = 0.0) -> Any:
    """About what `epsilon_lower` will be for an event of these probabilities: quick, for choosing events only."""
    z = -float(special.ndtri(alpha))
    p, q = np.asarray(p, dtype=float), np.asarray(q, dtype=float) + 1.0 / runs_b
    gap, spread_p, spread_q = (
        np.maximum(p - delta, 0.0),
        p * np.maximum(1 - p, 0.0) / runs_a,
        q * np.maximum(1 - q, 0.0) / runs_b,
    )
    # The root r of gap - r q = z sqrt(spread_p + r^2 spread_q), written without cancellation.
    sure = np.maximum(gap * gap - z * z * spread_p, 0.0)
    ratio = sure / (gap * q + z * np.sqrt(spread_q * sure + q * q * spread_p) + 1e-300)
    return np.where(ratio > 0, np.log(np.maximum(ratio, 1e-300)), -inf)


def predicted_score(p: Any, q: Any, runs_a: Any, runs_b: Any, limit: Ceiling) -> Any:
    """About how many standard deviations the event will lie above the ceiling."""
    p, q = np.asarray(p, dtype=float), np.clip(np.asarray(q, dtype=float) + 1.0 / runs_b, 0, 1)
    noise = np.maximum(p * (1 - p), 0.0) / runs_a + slope_at(limit, q) ** 2 * q * (1 - q) / runs_b
    return (p - limit(q)) / np.sqrt(noise + 1.0 / (runs_a * runs_b))


def slope_at(limit: Ceiling, q: Any) -> Any:
    """How fast a ceiling rises."""
    step = np.maximum(q * 1e-3, 1e-9)
    return (limit(np.minimum(q + step, 1.0)) - limit(q)) / step


def optimal_epsilon(laws: Sequence[tuple[Floats, Floats]], runs: int, alpha: float, delta: float = 0.0) -> float:
    """What the best event of the best pair gives with `runs` runs on each input, when the exact laws are known."""
    found = max(
        (best_set(*law, runs, alpha, delta) for p, q in laws for law in ((p, q), (q, p))), key=lambda best: best[0]
    )
    hits = [min(runs, round(share * runs)) for share in found[1:]]
    return epsilon_lower(Counts(hits[0], runs, hits[1], runs, found[1] <= RARE and not delta), delta, alpha)


def best_set(p: Floats, q: Floats, runs: int, alpha: float, delta: float = 0.0) -> tuple[float, float, float]:
    """The most that a set of outputs promises, and its probabilities.

    By the lemma of Neyman and Pearson, the best set of outputs is one where the ratio is largest.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        order = np.argsort(-np.where(q > 0, p / q, np.where(p > 0, inf, 0.0)), kind="stable")
    above_p, above_q = np.cumsum(p[order]), np.cumsum(q[order])
    values = predicted_epsilon(above_p, above_q, runs, runs, alpha, delta)
    best = int(np.argmax(values))
    return float(values[best]), float(above_p[best]), float(above_q[best])


def detectable(q: float, runs: int, claim: Loss, alpha: float, steps: int = 1, power: float = 0.9) -> float:
    """The smallest strength that so many runs would have refuted with this power, by an event as likely as this."""
    enough = float(special.ndtri(power)) - float(special.ndtri(alpha))
    stated, at_q = strength(claim), np.array([q])
    limit = ceiling(claim, stated, steps)

    def refuted(at: float) -> bool:
        p = ceiling(claim, at, steps)(at_q)
        return bool(predicted_score(p, at_q, runs, runs, limit)[0] >= enough)

    low, high = stated, max(4 * stated, 1.0)
    while high < LARGEST_STRENGTH and not refuted(high):
        high *= 2
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if refuted(middle) else (middle, high)
    return high


def _boundary(counts: Counts, limit: Ceiling) -> Floats:
    """Points of [0, 1] for the second probability: dense where either count makes the null point plausible."""
    spread = np.linspace(-9, 9, GRID)
    near_b = _around(counts.hits_b, counts.runs_b, spread)
    wanted = _around(counts.hits_a, counts.runs_a, spread)
    ladder = np.concatenate([[0.0], np.geomspace(1e-4 / counts.runs_b, 1.0, 200)])
    base = np.unique(np.concatenate([ladder, near_b]))
    near_a = np.interp(wanted, limit(base), base)
    return np.unique(np.clip(np.concatenate([base, near_a, [0.0, 1.0]]), 0.0, 1.0))


def _around(hits: int, runs: int, spread: Floats) -> Floats:
    """Probabilities that lie this many standard deviations from the observed one, on the square-root scale."""
    centre = np.arcsin(sqrt((hits + 0.375) / (runs + 0.75)))
    result: Floats = np.sin(np.clip(centre + spread / (2 * sqrt(runs + 0.5)), 0, np.pi / 2)) ** 2
    return result


def _cell_p_values(counts: Counts, limit: Ceiling, edges: Floats) -> Floats:
    """For each cell between neighbouring edges, a bound on the p-value of every null point inside it."""
    q_low, q_high = edges[:-1], edges[1:]
    p = limit(edges)
    p_low, p_high = p[:-1], p[1:]
    middle, p_middle = (q_low + q_high) / 2, (p_low + p_high) / 2
    slope = _slopes(q_low, q_high, p_low, p_high)
    weight_a = np.sqrt(np.maximum(p_middle * (1 - p_middle), 1e-18) / counts.runs_a)
    weight_b = slope * np.sqrt(np.maximum(middle * (1 - middle), 1e-18) / counts.runs_b)
    weight_b = np.where(q_low * counts.runs_b > SILENT, weight_b, 0.0)
    z_a = _score(_at_least(counts.hits_a, counts.runs_a, p_high), _at_most(counts.hits_a - 1, counts.runs_a, p_high))
    z_b = _score(_at_most(counts.hits_b, counts.runs_b, q_low), _at_least(counts.hits_b + 1, counts.runs_b, q_low))
    z = (weight_a * z_a + weight_b * z_b) / np.hypot(weight_a, weight_b)
    result: Floats = special.ndtr(-z) + FLOOR_COST
    return result


def _slopes(q_low: Floats, q_high: Floats, p_low: Floats, p_high: Floats) -> Floats:
    """How fast the ceiling rises in each cell; where it nears 1, as fast as it did before, so that q keeps its say."""
    slope = (p_high - p_low) / np.maximum(q_high - q_low, 1e-300)
    rising = np.flatnonzero(p_high < 0.95)
    last = int(rising[-1]) if len(rising) else 0
    result: Floats = np.maximum(np.where(np.arange(len(slope)) > last, slope[last], slope), 1e-12)
    return result


def _refine(edges: Floats, cells: Floats) -> Floats:
    """More edges inside the cells that decide the maximum."""
    chosen = np.flatnonzero(cells >= np.max(cells) * 0.98)[:40]
    fractions = np.linspace(0, 1, 9)[1:-1]
    extra = edges[chosen, None] + (edges[chosen + 1] - edges[chosen])[:, None] * fractions
    return np.unique(np.concatenate([edges, extra.ravel()]))


def _at_least(hits: int, runs: int, p: Floats) -> Floats:
    """log P[Binomial(runs, p) >= hits], by Chernoff's bound where it underflows."""
    if hits <= 0:
        return np.zeros_like(p)
    if hits > runs:
        return np.full_like(p, -inf)
    return _log_tail(special.betainc(hits, runs - hits + 1, p), hits / runs, runs, p, p < hits / runs)


def _at_most(hits: int, runs: int, p: Floats) -> Floats:
    """log P[Binomial(runs, p) <= hits], by Chernoff's bound where it underflows."""
    if hits >= runs:
        return np.zeros_like(p)
    if hits < 0:
        return np.full_like(p, -inf)
    return _log_tail(special.betaincc(hits + 1, runs - hits, p), hits / runs, runs, p, p > hits / runs)


def _log_tail(tail: Floats, share: float, runs: int, p: Floats, far: NDArray[np.bool_]) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        exact = np.log(tail)
        chernoff = -runs * (special.rel_entr(share, p) + special.rel_entr(1 - share, 1 - p))
    result: Floats = np.where(far & (tail < 1e-290), np.where(np.isnan(chernoff), -inf, chernoff), exact)
    return result


def _score(log_tail: Floats, log_complement: Floats) -> Floats:
    """The z-score of a p-value, accurate at both ends and floored."""
    small = -special.ndtri_exp(np.minimum(log_tail, -1e-300))
    large = special.ndtri_exp(np.minimum(log_complement, -1e-300))
    result: Floats = np.maximum(np.where(log_tail < -log(2), small, large), LOWEST_SCORE)
    return result
