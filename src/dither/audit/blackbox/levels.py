"""Weighted levels around a rare event: outputs with larger likelihood ratios get larger weights.

The best single event ignores the outputs just outside it, and counts those deep inside no more than those at its edge.
Where log-ratios grow as outputs grow rarer, weights improve the bound by a sixth. They are chosen before the test,
which is valid for any weights: see `confidence.p_value`.
"""

from __future__ import annotations

import numpy as np
from scipy import special

from dither.audit.blackbox.events import Levels
from dither.audit.blackbox.search import CandidateEvent
from dither.audit.claims import MAX_STRENGTH, Floats
from dither.audit.confidence import ROUNDING

# The largest weight. Weights pay where events are rare: testing by levels shifts the log-ratio by about the events'
# probability p. That shift, relative to the standard error, is about p^1.5 sqrt(runs) and must be below MAX_SHIFT.
MAX_WEIGHT, MAX_SHIFT = 12, 0.02
# The growth of log-ratios is fitted on events commoner than the chosen one by a factor of up to e^FIT_RANGE.
FIT_RANGE = 2.5


def choose_levels(candidate: CandidateEvent, runs: tuple[int, int], alpha: float) -> Levels | None:
    """Choose weighted levels around a rare event; the larger the estimated likelihood ratio, the larger the weight.

    To distinguish an epsilon from a larger one by independent labels, the best weights are proportional to
    (p - e^epsilon q) / (runs_a p + runs_b q). Epsilon is the largest that these runs are expected to refute. Return
    None if weights do not pay, cover less than half of the chosen event, or if alpha is too small for the test's
    rounding error.
    """
    thresholds, p, q = _rings(candidate)
    needed_score, low, high = -float(special.ndtri(alpha)), 0.0, MAX_STRENGTH
    for _ in range(40):
        epsilon = (low + high) / 2
        signal = np.maximum(p - np.exp(epsilon) * q, 0.0)
        weights = signal / (runs[0] * p + runs[1] * q)
        score = np.sqrt(runs[0] * runs[1] * np.exp(-epsilon) * (weights @ signal))
        low, high = (epsilon, high) if score > needed_score else (low, epsilon)
    rounded = np.rint(MAX_WEIGHT * weights / max(weights.max(initial=0), 1e-300)).astype(int)
    starts = np.flatnonzero(np.diff(rounded, prepend=0) > 0)
    covered = (p + q)[starts[0] :].sum() if len(starts) > 1 else 0.0
    largest = (MAX_SHIFT**2 / sum(runs)) ** (1 / 3)
    if not (candidate.p + candidate.q) / 2 < covered < largest or alpha < 100 * ROUNDING:
        return None
    event = candidate.event
    return Levels(event.score, thresholds[starts], event.above, tuple(map(int, rounded[starts])))


def _rings(candidate: CandidateEvent) -> tuple[Floats, Floats, Floats]:
    """Return the thresholds of nested events, widest first, and the probabilities of each without the next narrower.

    Log-ratios are extrapolated inwards: they grow as they do from commoner events to the chosen one. If p is a power of
    the size of events, and p / q is a power with the exponent -growth, then p / q at an event's edge is smaller than
    in the whole event by the factor 1 + growth.
    """
    thresholds, size, log_ratio = candidate.nested
    order = np.argsort(-size, kind="stable")
    order = order[np.sort(np.unique(thresholds[order], return_index=True)[1])]
    thresholds, size, log_ratio = thresholds[order], size[order], log_ratio[order]
    relative_size = np.log(size / (candidate.p + candidate.q))
    near = (relative_size > -0.01) & (relative_size < FIT_RANGE)
    slope, intercept = np.polyfit(relative_size[near], log_ratio[near], 1) if near.sum() > 1 else (0.0, 0.0)
    growth = max(-float(slope), 0.0)
    share = special.expit(intercept + growth * -relative_size - np.log1p(growth))
    ring = np.maximum(size - np.append(size[1:], 0.0), 1e-12)
    return thresholds, ring * share, ring * (1 - share)
