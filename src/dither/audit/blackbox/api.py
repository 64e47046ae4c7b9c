"""The black-box audit: is there a pair of neighbours and an event that break the claim?

Fixed mode spends a stated number of samples: a little on every pair, more on the better half, much on what there is to
learn about the best, and most of them, fresh, on judging one event of it; the input on which the event is rarer has
more of the runs. Sequential mode (`sequential.py`) stops as soon as the evidence suffices. In both, nothing that is
judged was seen by the search.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import numpy as np

from dither.audit import neighbours
from dither.audit.blackbox import events, features, learners, search
from dither.audit.blackbox.events import Levels, OutcomeSpace, SampleTable
from dither.audit.blackbox.features import Encoder
from dither.audit.blackbox.levels import reweighted
from dither.audit.blackbox.plan import FEWEST_RUNS, AuditPlan, Progress, evidence
from dither.audit.blackbox.plots import Tracer
from dither.audit.blackbox.report import PrivacyResult
from dither.audit.blackbox.search import Lead
from dither.audit.blackbox.sequential import sequential
from dither.audit.claim_syntax import claim_text
from dither.audit.claims import ceiling, delta, grows, strength
from dither.audit.confidence import RARE, Counts, Level, as_weighed, detectable, epsilon_lower, p_value, strength_lower
from dither.audit.neighbours import Pair, steps
from dither.audit.sampling import OutputSampler
from dither.errors import InvalidParameter
from dither.loss import Approximate, Loss, Pure

CHUNK_VALUES = 4_000_000
# Runs on each input that make it worth while to try every learner.
ENOUGH = 3000
# More outputs of an input than these teach little more, and take long.
MOST_ROWS = 1_600_000


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
    strength(claim)  # refuses what is no claim
    _check(samples, alpha, mode)
    source = OutputSampler.of(mechanism, vectorised, timed)
    rng = np.random.default_rng(seed)
    pairs = tuple(_pairs(source, neighbours, rng))
    if not grows(claim) and any(steps(pair) > 1 for pair in pairs):
        raise InvalidParameter(
            f"{claim_text(claim)} says nothing of inputs more than one step apart; name neighbours only"
        )
    plan = AuditPlan(source, claim, pairs, samples, alpha, rng, progress or (lambda stage, done, total: None), bits)
    started = time.process_time()
    return fixed(plan, started) if mode == "fixed" else sequential(plan, started)


def fixed(plan: AuditPlan, started: float) -> PrivacyResult:
    """The audit with a stated number of samples."""
    looks, narrow = [Look(pair) for pair in plan.pairs], _narrow(plan)
    spent, rounds = 2 * FEWEST_RUNS, plan.rounds(narrow)
    kept = int(plan.samples * (1 - plan.searching(narrow)) / 2)
    for place, (width, budget) in enumerate(rounds):
        looks = sorted(looks, key=lambda look: -look.worth)[:width]
        drawn = _drawn(plan, looks, budget)
        spent += sum(len(side) for side in {id(side): side for pair in drawn for side in pair}.values())
        last = place == len(rounds) - 1
        # Claims other than pure ones are valued in standard errors already.
        sure = search.LAST[narrow] if last and isinstance(plan.claim, Pure) else (search.CAUTION, search.CAUTION)
        if last and not narrow:  # where there is much to choose from, not by the runs in which the pair looked good
            looks = [replace(look, seen=look.recent) for look in looks]
        looks = [_closer(plan, look, drawn[done], kept, sure, last, done) for done, look in enumerate(looks)]
    return _judge(plan, looks[0].pair, list(looks[0].leads), max(200, plan.samples - spent), started)


def _narrow(plan: AuditPlan) -> bool:
    """Whether outputs are one number each, by a first glance at them."""
    glance = plan.source.draw_pair(*plan.pairs[0], (FEWEST_RUNS, FEWEST_RUNS), plan.rng)
    encoder = features.learn(events.joined(*glance), plan.source.timed, plan.bits)
    return sum(feature.group == "base" for feature in encoder.features) == 1


@dataclass(frozen=True)
class Look:
    """A pair, what was seen of it, of that the last, and what it all promises."""

    pair: Pair
    encoder: Encoder | None = None
    seen: tuple[Any, ...] = ()
    recent: tuple[Any, ...] = ()
    leads: tuple[Lead, ...] = ()

    @property
    def worth(self) -> float:
        """What the best event of the pair is worth."""
        return self.leads[0].worth if self.leads else 0.0


def _pairs(source: OutputSampler, given: Sequence[Pair] | None, rng: np.random.Generator) -> list[Pair]:
    if given is None:
        return neighbours.probed(lambda value: source.draw_pair(value, value, (1, 1), rng))
    found = neighbours.distinct(given)
    if not found:
        raise InvalidParameter("there must be at least one pair of different neighbours")
    return found


def _check(samples: int, alpha: float, mode: str) -> None:
    if not isinstance(samples, int):
        raise InvalidParameter(f"samples must be a whole number such as 1_000_000, got {samples!r}")
    if samples < 1000:
        raise InvalidParameter(f"an audit needs at least 1000 samples, got {samples}")
    if not 0 < alpha < 0.5:
        raise InvalidParameter(f"alpha must be between 0 and 0.5, got {alpha}")
    if mode not in ("fixed", "sequential"):
        raise InvalidParameter(f"mode must be 'fixed' or 'sequential', got {mode!r}")


def _drawn(plan: AuditPlan, looks: list[Look], budget: int) -> list[tuple[Any, Any]]:
    """Runs of every pair; an input that several pairs share is run once, unless times are compared."""
    if plan.source.timed:
        each = max(FEWEST_RUNS, budget // (2 * len(looks)))
        return [plan.source.draw_pair(*look.pair, (each, each), plan.rng) for look in looks]
    inputs = {id(value): value for look in looks for value in look.pair}
    each = max(FEWEST_RUNS, budget // len(inputs))
    runs = {key: plan.source.draw(value, each) for key, value in inputs.items()}
    return [(runs[id(look.pair[0])], runs[id(look.pair[1])]) for look in looks]


def _closer(
    plan: AuditPlan,
    look: Look,
    more: tuple[Any, Any],
    kept: int,
    doubts: tuple[float, float],
    last: bool,
    done: int,
) -> Look:
    """A closer look at a pair, with more of its outputs; the last is with every learner."""
    plan.progress("search" if last else "explore", done, len(plan.pairs))
    value = search.worth(plan.claim, kept, plan.alpha, steps(look.pair))
    encoder = look.encoder or features.learn(events.joined(*more), plan.source.timed, plan.bits)
    read = [encoder.read(side) for side in more]
    seen = [np.concatenate(both) for both in zip(look.seen, read, strict=True)] if look.seen else read
    space = OutcomeSpace.of(encoder, *seen)
    sample = SampleTable(space, *(space.place(side[:MOST_ROWS]) for side in seen))
    chosen = learners.thorough(space) if last and len(sample.a) >= ENOUGH else learners.quick(space)
    tried = search.tries(sample, search.shortlist(sample, chosen, value) if last else chosen)
    tried += search.committees(sample, tried, value) if last else []
    more_tried, reference = search.referred(sample, tried) if last else ([], None)
    found = search.leads(space, [*tried, *more_tried], value, *doubts, reference)
    return Look(look.pair, encoder, tuple(seen), tuple(read), tuple(found))


def _judge(plan: AuditPlan, pair: Pair, found: list[Lead], left: int, started: float) -> PrivacyResult:
    """Fresh runs of one pair decide on the best event; one that a person can check by hand is counted too."""
    plain = [] if found[0].plain else [lead for lead in found if lead.plain][:1]
    judged, pure = [found[0], *plain], isinstance(plan.claim, Pure)
    share = search.first_share(plan.claim, np.array([found[0].p]), np.array([found[0].q]), left, steps(pair))
    likelier = int(share[0] * left)
    runs = (left - likelier, likelier) if found[0].swapped else (likelier, left - likelier)
    levels = reweighted(found[0], (likelier, left - likelier), plan.alpha) if pure else None
    hits, rows, tracer = _count(plan, pair, judged, levels, runs)
    counted = [_counts(plan.claim, lead, row, runs) for lead, row in zip(judged, hits, strict=True)]
    if levels is not None:
        ordered = rows.T[:: -1 if found[0].swapped else 1].tolist()
        within = [str(replace(found[0].event, threshold=float(each))) for each in levels.thresholds]
        taken = [Level(*each) for each in zip(levels.weights, ordered[0], ordered[1], within, strict=True)]
        counted[0] = replace(counted[0], levels=as_weighed(tuple(taken)))
    return _verdict(plan, pair, judged, counted, tracer, started)


def _count(
    plan: AuditPlan, pair: Pair, found: list[Lead], levels: Levels | None, runs: tuple[int, int]
) -> tuple[Any, Any, Tracer]:
    """How often each event, and each level if there are any, happens in fresh runs on each input."""
    hits, space = np.zeros((len(found), 2), dtype=np.int64), found[0].event.space
    rows = np.zeros((len(levels.weights) if levels else 0, 2), dtype=np.int64)
    columns = tuple(sorted({column for lead in found for column in lead.event.score.columns}))
    tracer, done = Tracer(found[0]), 0
    for sizes in _chunks(runs, space):
        plan.progress("judge", done, sum(runs))
        outputs = plan.source.draw_pair(*pair, sizes, plan.rng)
        encoded = [space.encode(side, columns) for side in outputs]
        hits += np.array([[int(lead.event.holds(side).sum()) for side in encoded] for lead in found])
        if levels is not None:
            rows += np.column_stack([levels.counts(side) for side in encoded])
        tracer.add(*outputs)
        done += sum(sizes)
    return hits, rows, tracer


def _verdict(
    plan: AuditPlan, pair: Pair, judged: list[Lead], counted: list[Counts], tracer: Tracer, started: float
) -> PrivacyResult:
    """The first event alone decides; the other may be shown instead, with what it says by itself."""
    first, runs, far = counted[0], counted[0].runs_b, steps(pair)
    limit = ceiling(plan.claim, strength(plan.claim), far)
    p = p_value(first, limit)
    lower = strength_lower(first, plan.claim, plan.alpha, far)
    pure = isinstance(plan.claim, Pure | Approximate)
    epsilon = lower if pure else epsilon_lower(first, delta(plan.claim), plan.alpha, far)
    shown = len(judged) - 1 if p <= plan.alpha and _as_good(plan, counted[-1], lower, far) else 0
    return PrivacyResult(
        plan.claim, "fixed", plan.alpha, p <= plan.alpha, p, epsilon, lower,
        evidence(
            pair, judged[shown], counted[shown], p_value(counted[shown], limit), plan.alpha,
            () if shown else tracer.examples,
        ),
        plan.samples, len(plan.pairs),
        detectable(max(first.hits_b, 0.5) / runs, runs, plan.claim, plan.alpha, far),
        time.process_time() - started, tracer.plots(),
    )  # fmt: skip


def _as_good(plan: AuditPlan, counts: Counts, lower: float, far: int) -> bool:
    """Whether the event that a person can check by hand refutes the claim too, and nearly as much."""
    return strength_lower(counts, plan.claim, plan.alpha, far) > max(strength(plan.claim), 0.8 * lower)


def _counts(claim: Loss, lead: Lead, hits: Any, runs: tuple[int, int]) -> Counts:
    """The counts, and how they are to be judged, which is settled by what was thought of the event before."""
    first, second = (1, 0) if lead.swapped else (0, 1)
    rare = isinstance(claim, Pure) and lead.p <= RARE
    return Counts(int(hits[first]), runs[first], int(hits[second]), runs[second], rare)


def _chunks(runs: tuple[int, int], space: OutcomeSpace) -> list[tuple[int, int]]:
    """Sizes that keep memory bounded."""
    size = max(1000, CHUNK_VALUES // max(4, len(space.edges) + len(space.encoder.labels)))
    count = max(1, ceil(max(runs) / size))
    parts = [[total * (place + 1) // count - total * place // count for place in range(count)] for total in runs]
    return list(zip(*parts, strict=True))
