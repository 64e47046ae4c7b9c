"""The black-box audit: is there a pair of neighbours and an event that break the claim?

Fixed mode spends a stated number of samples: a little on every pair, more on the best ones, and most of them, fresh, on
judging at most three events of one pair, among which alpha is divided. Sequential mode (`sequential.py`) stops as soon
as the evidence suffices. In both, nothing that is judged was seen by the search.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dither.audit import events, neighbours, search
from dither.audit.bounds import Counts, detectable, epsilon_lower, p_value, strength_lower
from dither.audit.claims import ceiling, delta, strength
from dither.audit.events import ColumnScore, Encoded, Sample, Space
from dither.audit.neighbours import Pair
from dither.audit.plan import Plan, Progress, evidence
from dither.audit.plots import Tracer
from dither.audit.report import PrivacyResult
from dither.audit.sampling import Source
from dither.audit.search import Lead
from dither.audit.sequential import sequential
from dither.errors import InvalidParameter
from dither.loss import Approximate, Loss, Pure

CHUNK_VALUES = 4_000_000
SHARES = (0.6, 0.2, 0.2)
MOST_LEADS = 12


def privacy(
    mechanism: Callable[..., Any],
    claim: Loss,
    neighbours: Sequence[Pair] | None = None,
    *,
    samples: int = 1_000_000,
    alpha: float = 0.01,
    mode: str = "fixed",
    vectorised: bool | None = None,
    timed: bool = False,
    bits: bool = True,
    seed: int | None = None,
    progress: Progress | None = None,
) -> PrivacyResult:
    """Looks for neighbours and an event that break `claim`; with probability at most `alpha` it wrongs a true claim.

    `timed` makes the time of each call a part of its output; `bits=False` asks about the algorithm on real numbers and
    leaves out what the bits of its floats give away.
    """
    source = Source.of(mechanism, vectorised, timed)
    rng = np.random.default_rng(seed)
    pairs = tuple(_pairs(source, neighbours, rng))
    _check(samples, alpha, mode)
    plan = Plan(source, claim, pairs, samples, alpha, rng, progress or (lambda stage, done, total: None), bits)
    started = time.process_time()
    return fixed(plan, started) if mode == "fixed" else sequential(plan, started)


def fixed(plan: Plan, started: float) -> PrivacyResult:
    """The audit with a stated number of samples."""
    value = search.worth(plan.claim, plan.judge, plan.alpha)
    first = [_look(plan, pair, plan.explore, value, events.light, place) for place, pair in enumerate(plan.pairs)]
    order = sorted(range(len(first)), key=lambda place: -first[place][1][0].worth)[: plan.finalists]
    finals = [_closer(plan, plan.pairs[place], first[place][0], value) for place in order]
    best = max(range(len(finals)), key=lambda place: finals[place][0].worth)
    return _judge(plan, plan.pairs[order[best]], search.finalists(finals[best], len(SHARES)), started)


def _pairs(source: Source, given: Sequence[Pair] | None, rng: np.random.Generator) -> list[Pair]:
    if given is None:
        return neighbours.probed(lambda value: source.draw_pair(value, value, (1, 1), rng))
    found = neighbours.distinct(given)
    if not found:
        raise InvalidParameter("there must be at least one pair of different neighbours")
    return found


def _check(samples: int, alpha: float, mode: str) -> None:
    if samples < 1000:
        raise InvalidParameter(f"an audit needs at least 1000 samples, got {samples}")
    if not 0 < alpha < 0.5:
        raise InvalidParameter(f"alpha must be between 0 and 0.5, got {alpha}")
    if mode not in ("fixed", "sequential"):
        raise InvalidParameter(f"mode must be 'fixed' or 'sequential', got {mode!r}")


def _look(
    plan: Plan, pair: Pair, runs: int, value: search.Worth, learner: events.Learner, done: int
) -> tuple[Sample, list[Lead]]:
    """A first, quick look at a pair."""
    plan.progress("explore", done, len(plan.pairs))
    a, b = plan.source.draw_pair(*pair, (runs, runs), plan.rng)
    space = Space.learn(a, b, plan.source.timed, plan.bits)
    sample = Sample(space, space.encode(a), space.encode(b))
    return sample, search.leads(sample, value, learner)


def _closer(plan: Plan, pair: Pair, seen: Sample, value: search.Worth) -> list[Lead]:
    """All learners, on a larger sample of a promising pair."""
    parts_a, parts_b = [seen.a], [seen.b]
    for size in _chunks(plan.train, seen.space):
        plan.progress("search", sum(map(len, parts_a[1:])), plan.train)
        a, b = plan.source.draw_pair(*pair, (size, size), plan.rng)
        parts_a.append(seen.space.encode(a))
        parts_b.append(seen.space.encode(b))
    sample = Sample(seen.space, _merge(parts_a), _merge(parts_b))
    found = search.shortlist(search.leads(sample, value, events.thorough), MOST_LEADS)
    hits, _ = _count(plan, pair, found, plan.choose, "choose")
    return search.again(found, hits, plan.choose, value)


def _judge(plan: Plan, pair: Pair, found: list[Lead], started: float) -> PrivacyResult:
    """Fresh runs of one pair decide; alpha is divided among the events."""
    hits, tracer = _count(plan, pair, found, plan.judge, "judge")
    shares = np.array(SHARES[: len(found)]) / sum(SHARES[: len(found)]) * plan.alpha
    return _verdict(plan, pair, found, hits, shares, tracer, started)


def _count(plan: Plan, pair: Pair, found: list[Lead], runs: int, stage: str) -> tuple[Any, Tracer]:
    """How often each event happens in fresh runs on each input."""
    hits = np.zeros((len(found), 2), dtype=np.int64)
    tracer, done = Tracer(found[0]), 0
    for size in _chunks(runs, found[0].event.space):
        plan.progress(stage, done, runs)
        outputs = plan.source.draw_pair(*pair, (size, size), plan.rng)
        hits += np.array([[int(lead.event.contains(side).sum()) for side in outputs] for lead in found])
        tracer.add(*outputs)
        done += size
    return hits, tracer


def _verdict(
    plan: Plan, pair: Pair, found: list[Lead], hits: Any, shares: Any, tracer: Tracer, started: float
) -> PrivacyResult:
    counted = [_counts(lead, row, plan.judge) for lead, row in zip(found, hits, strict=True)]
    limit = ceiling(plan.claim, strength(plan.claim))
    # Each event has its own share of alpha: p-values are put on the scale of the whole.
    scaled = [
        min(1.0, p_value(counts, limit) * plan.alpha / float(share))
        for counts, share in zip(counted, shares, strict=True)
    ]
    lower = [strength_lower(counts, plan.claim, float(share)) for counts, share in zip(counted, shares, strict=True)]
    best = max(range(len(found)), key=lambda place: (lower[place], -scaled[place]))
    shown = _plainest(found, lower, strength(plan.claim), best)
    epsilon = max(lower) if isinstance(plan.claim, Pure | Approximate) else _epsilon(plan, counted, shares)
    q = max(counted[best].hits_b, 0.5) / plan.judge
    return PrivacyResult(
        plan.claim, "fixed", plan.alpha, min(scaled) <= plan.alpha, min(scaled), epsilon, lower[best],
        evidence(pair, found[shown], counted[shown], scaled[shown], plan.alpha), plan.total, len(plan.pairs),
        detectable(q, plan.judge, plan.claim, float(shares[best])), time.process_time() - started, tracer.plots(),
    )  # fmt: skip


def _epsilon(plan: Plan, counted: list[Counts], shares: Any) -> float:
    """A bound on epsilon at the claim's delta, from the same counts."""
    extra = delta(plan.claim)
    return max(epsilon_lower(counts, extra, float(share)) for counts, share in zip(counted, shares, strict=True))


def _plainest(found: list[Lead], lower: list[float], stated: float, best: int) -> int:
    """The event to show: one that a person can check by hand, if it too refutes the claim and nearly as much."""
    for place, lead in enumerate(found):
        if isinstance(lead.event.score, ColumnScore) and lower[place] > max(stated, 0.8 * lower[best]):
            return place
    return best


def _counts(lead: Lead, hits: Any, runs: int) -> Counts:
    first, second = (int(hits[1]), int(hits[0])) if lead.swapped else (int(hits[0]), int(hits[1]))
    return Counts(first, runs, second, runs)


def _chunks(total: int, space: Space) -> list[int]:
    """Sizes that keep memory bounded."""
    size = max(1000, CHUNK_VALUES // max(4, len(space.edges) + len(space.encoder.labels)))
    return [size] * (total // size) + ([total % size] if total % size else [])


def _merge(parts: list[Encoded]) -> Encoded:
    return Encoded(np.concatenate([part.codes for part in parts]), np.concatenate([part.keys for part in parts]))
