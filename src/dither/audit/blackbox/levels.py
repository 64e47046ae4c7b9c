"""Levels around a rare event: outputs that tell more count for more.

The best single event leaves out what lies just outside it and takes what lies deep inside for no more than what lies at
its edge. Where log-ratios grow as outputs grow rarer, weights tell a sixth more. They are settled before the judgement,
and whatever they are, it is valid: see `bounds.p_value`.
"""

from __future__ import annotations

import numpy as np
from scipy import special

from dither.audit.blackbox.events import Levels
from dither.audit.blackbox.search import Lead
from dither.audit.claims import LARGEST_STRENGTH, Floats
from dither.audit.confidence import ROUNDING

# Weights are at most this. They pay where events are rare: judging by levels shifts the log-ratio by about their
# probability p, which may be no more than this part of its error, so p^1.5 sqrt(runs) at most.
HEAVIEST, CHEAP = 12, 0.02
# How log-ratios grow is seen from events that are commoner by up to this factor's exponential.
OUTWARDS = 2.5


def reweighted(lead: Lead, runs: tuple[int, int], alpha: float) -> Levels | None:
    """Weights for the events around a rare one: an output counts the more, the likelier the first input is there.

    To tell an epsilon from a larger one by independent labels, the best weights are as (p - e^epsilon q) / (runs_a p +
    runs_b q); epsilon is the one that they can just tell from what is believed. None where weights do not pay, leave
    out most of the event that was chosen, or would be judged too roughly for so small an alpha.
    """
    thresholds, p, q = _rings(lead)
    enough, low, high = -float(special.ndtri(alpha)), 0.0, LARGEST_STRENGTH
    for _ in range(40):
        epsilon = (low + high) / 2
        signal = np.maximum(p - np.exp(epsilon) * q, 0.0)
        weights = signal / (runs[0] * p + runs[1] * q)
        told = np.sqrt(runs[0] * runs[1] * np.exp(-epsilon) * (weights @ signal))
        low, high = (epsilon, high) if told > enough else (low, epsilon)
    whole = np.rint(HEAVIEST * weights / max(weights.max(initial=0), 1e-300)).astype(int)
    kept = np.flatnonzero(np.diff(whole, prepend=0) > 0)
    held = (p + q)[kept[0] :].sum() if len(kept) > 1 else 0.0
    if not (lead.p + lead.q) / 2 < held < (CHEAP**2 / sum(runs)) ** (1 / 3) or alpha < 100 * ROUNDING:
        return None
    return Levels(lead.event.score, thresholds[kept], lead.event.above, tuple(map(int, whole[kept])))


def _rings(lead: Lead) -> tuple[Floats, Floats, Floats]:
    """What of each event of a chain lies in no narrower one, the widest first: its threshold and probabilities.

    Log-ratios are thought to grow inwards as they do from commoner events to the one that was chosen; if p is a power
    of the size of events, and p / q one with the exponent -growth, then p / q at their edge is less by 1 + growth.
    """
    thresholds, size, ratio = lead.nested
    order = np.argsort(-size, kind="stable")
    order = order[np.sort(np.unique(thresholds[order], return_index=True)[1])]
    thresholds, size, ratio = thresholds[order], size[order], ratio[order]
    away = np.log(size / (lead.p + lead.q))
    near = (away > -0.01) & (away < OUTWARDS)
    slope, at = np.polyfit(away[near], ratio[near], 1) if near.sum() > 1 else (0.0, 0.0)
    growth = max(-float(slope), 0.0)
    share = special.expit(at + growth * -away - np.log1p(growth))
    ring = np.maximum(size - np.append(size[1:], 0.0), 1e-12)
    return thresholds, ring * share, ring * (1 - share)
