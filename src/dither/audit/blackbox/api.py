"""The black-box audit: search for a pair of neighbours and an event that break the claim.

If a domain is given, a sweep over many of its pairs adds the most suspicious ones to the few that are always searched
(`sweep.py`). Fixed mode spends a given number of samples. The search first runs every pair, then drops pairs in rounds
and gives the remaining ones more runs. Most samples go to the test: fresh runs of the best pair, which test its best
event. The input on which the event is rarer gets more of them. Sequential mode (`sequential.py`) stops as soon as the
evidence suffices. In both modes, the test uses no output that the search or the sweep has seen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import numpy as np

from dither.audit import neighbours
from dither.audit.arguments import check_alpha, check_count, seeded_generator
from dither.audit.blackbox import events, features, learners, search
from dither.audit.blackbox.events import Levels, OutcomeSpace, SampleTable
from dither.audit.blackbox.features import Encoder
from dither.audit.blackbox.levels import choose_levels
from dither.audit.blackbox.plan import MIN_RUNS, AuditPlan, Progress, make_evidence, make_power
from dither.audit.blackbox.plots import PlotRecorder
from dither.audit.blackbox.report import PrivacyResult
from dither.audit.blackbox.search import CandidateEvent
from dither.audit.blackbox.sequential import audit_sequential
from dither.audit.blackbox.sweep import sweep_domain
from dither.audit.claim_syntax import as_claim, claim_text
from dither.audit.claims import ceiling, delta, extends_to_steps, strength
from dither.audit.confidence import (
    RARE,
    Counts,
    Level,
    drop_weights_if_many_hits,
    epsilon_lower,
    p_value,
    strength_lower,
)
from dither.audit.input_domains import ASK_FOR_DOMAIN, neighbours_in, neighbours_throughout
from dither.audit.neighbours import Pair, step_count
from dither.audit.sampling import OutputSampler, callable_name
from dither.errors import InvalidParameter
from dither.loss import Approximate, Loss, Pure

CHUNK_VALUES = 4_000_000
# With at least this many runs on each input, the last round tries every learner.
ENOUGH_RUNS = 3000
# The search learns from at most this many outputs of an input; more improve it little and take long.
MAX_ROWS = 1_600_000


def privacy(
    mechanism: Callable[..., Any],
    claim: Loss | str,
    neighbours: Sequence[Pair] | None = None,
    *,
    domain: Any = None,
    samples: int = 1_000_000,
    alpha: float = 0.01,
    mode: str = "fixed",
    vectorised: bool | None = None,
    timed: bool = False,
    bits: bool = True,
    seed: int | None = None,
    progress: Progress | None = None,
) -> PrivacyResult:
    """Search for neighbours and an event that break `claim`; reject a true claim with probability at most `alpha`.

    A claim is text such as "epsilon=1" or "epsilon=1, delta=1e-6", or a loss of `dither.loss`. Pass `neighbours`, pairs
    of inputs, or the `domain` of the inputs, from which pairs are taken (`Numbers`, `Choices`, `Records`, `Examples` of
    `dither.audit`, or columns). `timed=True` includes the time of each call in its output. `bits=False` audits the
    algorithm on real numbers: it ignores what the low-order bits of floats reveal.
    """
    claim = as_claim(claim)
    _check_options(samples, alpha, mode)
    sampler = OutputSampler.from_callable(mechanism, vectorised, timed)
    rng = seeded_generator(seed)
    pairs = tuple(_choose_pairs(neighbours, domain))
    if not extends_to_steps(claim) and any(step_count(pair) > 1 for pair in pairs):
        raise InvalidParameter(
            f"the claim {claim_text(claim)} has no known bound for inputs more than one step apart; "
            "pass neighbours only, no DistantPair"
        )
    plan = AuditPlan(sampler, claim, pairs, samples, alpha, rng, progress or (lambda stage, done, total: None), bits)
    started = time.process_time()
    plan = sweep_domain(plan, [] if domain is None else neighbours_throughout(domain, rng), brief=mode == "sequential")
    result = audit_fixed(plan, started) if mode == "fixed" else audit_sequential(plan, started)
    name = callable_name(mechanism)
    return replace(result, mechanism=name, vectorised=sampler.vectorised, seed=seed, sweep=plan.sweep)


def audit_fixed(plan: AuditPlan, started: float) -> PrivacyResult:
    """Run the audit that spends a given number of samples."""
    searches, narrow = [PairSearch(pair) for pair in plan.pairs], _has_single_numbers(plan)
    spent, rounds = 2 * MIN_RUNS + plan.swept, plan.rounds(narrow)
    test_runs = int((plan.samples * (1 - plan.search_share(narrow)) - plan.swept) / 2)
    for place, (width, budget) in enumerate(rounds):
        searches = sorted(searches, key=lambda each: -each.worth)[:width]
        batches = plan.draw_pairs([each.pair for each in searches], budget)
        spent += sum(len(side) for side in {id(side): side for batch in batches for side in batch}.values())
        last = place == len(rounds) - 1
        # The worth of events under other claims is in standard errors already.
        final = last and isinstance(plan.claim, Pure)
        cautions = search.FINAL_CAUTION[narrow] if final else (search.CAUTION, search.CAUTION)
        if last and not narrow:
            # With many scores to choose from, leave out the runs that selected the pair in earlier rounds.
            searches = [replace(each, outputs=each.recent_outputs) for each in searches]
        searches = [
            _search_pair(plan, each, batches[done], test_runs, cautions, last, done)
            for done, each in enumerate(searches)
        ]
    return _judge(plan, searches[0].pair, list(searches[0].candidates), max(200, plan.samples - spent), started)


def _has_single_numbers(plan: AuditPlan) -> bool:
    """Return True if the first outputs of the first pair are one number each."""
    outputs = plan.sampler.draw_pair(*plan.pairs[0], (MIN_RUNS, MIN_RUNS), plan.rng)
    encoder = features.learn_encoder(events.concatenate_outputs(*outputs), plan.sampler.timed, plan.bits)
    return sum(feature.group == "base" for feature in encoder.features) == 1


@dataclass(frozen=True)
class PairSearch:
    """The state of the search on one pair: its outputs as matrices, all and those of the last round, and its events."""

    pair: Pair
    encoder: Encoder | None = None
    outputs: tuple[Any, ...] = ()
    recent_outputs: tuple[Any, ...] = ()
    candidates: tuple[CandidateEvent, ...] = ()

    @property
    def worth(self) -> float:
        """The worth of the pair's best event."""
        return self.candidates[0].worth if self.candidates else 0.0


def _choose_pairs(pairs: Sequence[Pair] | None, domain: Any) -> list[Pair]:
    """Return the distinct pairs of the caller and of the domain."""
    if pairs is None and domain is None:
        raise InvalidParameter(ASK_FOR_DOMAIN)
    given = [] if pairs is None else neighbours.distinct_pairs(pairs)
    distinct = neighbours.distinct_pairs([*given, *([] if domain is None else neighbours_in(domain))])
    if not distinct:
        raise InvalidParameter("neighbours must contain at least one pair of different inputs")
    return distinct


def _check_options(samples: int, alpha: float, mode: str) -> None:
    """Refuse options out of range."""
    check_count("samples", samples, 1000)
    check_alpha(alpha)
    if mode not in ("fixed", "sequential"):
        raise InvalidParameter(f"mode must be 'fixed' or 'sequential', got {mode!r}")


def _search_pair(
    plan: AuditPlan,
    current: PairSearch,
    batch: tuple[Any, Any],
    test_runs: int,
    cautions: tuple[float, float],
    last: bool,
    done: int,
) -> PairSearch:
    """Search a pair for events, with another batch of its outputs; the last round tries every learner."""
    plan.progress("search" if last else "explore", done, len(plan.pairs))
    worth = search.worth_function(plan.claim, test_runs, plan.alpha, step_count(current.pair))
    encoder = current.encoder or features.learn_encoder(
        events.concatenate_outputs(*batch), plan.sampler.timed, plan.bits
    )
    recent = [encoder.read(side) for side in batch]
    outputs = (
        [np.concatenate(both) for both in zip(current.outputs, recent, strict=True)] if current.outputs else recent
    )
    space = OutcomeSpace.from_matrices(encoder, *outputs)
    sample = SampleTable(space, *(space.encode_matrix(side[:MAX_ROWS]) for side in outputs))
    chosen = (
        learners.last_round_learners(space)
        if last and len(sample.a) >= ENOUGH_RUNS
        else learners.first_round_learners(space)
    )
    trials = search.try_scores(sample, search.shortlist(sample, chosen, worth) if last else chosen)
    trials += search.average_trials(sample, trials, worth) if last else []
    reference_trials, reference = search.build_reference(sample, trials) if last else ([], None)
    candidates = search.candidate_events(space, [*trials, *reference_trials], worth, *cautions, reference)
    return PairSearch(current.pair, encoder, tuple(outputs), tuple(recent), tuple(candidates))


def _judge(plan: AuditPlan, pair: Pair, candidates: list[CandidateEvent], left: int, started: float) -> PrivacyResult:
    """Test the best event on fresh runs of its pair; count an event that a person can check by hand too."""
    best, pure, plain = candidates[0], isinstance(plan.claim, Pure), search.plain_event(candidates)
    judged = [best] if plain is None or plain is best else [best, plain]
    share = search.first_share(plan.claim, np.array([best.p]), np.array([best.q]), left, step_count(pair))
    likelier = int(share[0] * left)
    runs = (left - likelier, likelier) if best.swapped else (likelier, left - likelier)
    levels = choose_levels(best, (likelier, left - likelier), plan.alpha) if pure else None
    hits, level_hits, recorder = _count_hits(plan, pair, judged, levels, runs)
    counted = [_to_counts(plan.claim, candidate, row, runs) for candidate, row in zip(judged, hits, strict=True)]
    if levels is not None:
        hits_a, hits_b = level_hits.T[:: -1 if best.swapped else 1].tolist()
        within = [str(replace(best.event, threshold=float(threshold))) for threshold in levels.thresholds]
        counted_levels = [Level(*each) for each in zip(levels.weights, hits_a, hits_b, within, strict=True)]
        counted[0] = replace(counted[0], levels=drop_weights_if_many_hits(tuple(counted_levels)))
    return _verdict(plan, pair, judged, counted, recorder, started)


def _count_hits(
    plan: AuditPlan, pair: Pair, judged: list[CandidateEvent], levels: Levels | None, runs: tuple[int, int]
) -> tuple[Any, Any, PlotRecorder]:
    """Draw fresh runs and count the hits of each event, and of each level if any, on each input."""
    hits, space = np.zeros((len(judged), 2), dtype=np.int64), judged[0].event.space
    level_hits = np.zeros((len(levels.weights) if levels else 0, 2), dtype=np.int64)
    columns = tuple(sorted({column for candidate in judged for column in candidate.event.score.columns}))
    bits_event = next((each.event for each in judged if each.event.reads_bits), None)
    recorder, done = PlotRecorder(judged[0], bits_event), 0
    for sizes in _chunks(runs, space):
        plan.progress("judge", done, sum(runs))
        outputs = plan.sampler.draw_pair(*pair, sizes, plan.rng)
        encoded = [space.encode(side, columns) for side in outputs]
        hits += np.array([[int(each.event.contains_encoded(side).sum()) for side in encoded] for each in judged])
        if levels is not None:
            level_hits += np.column_stack([levels.count(side) for side in encoded])
        recorder.add(*outputs)
        done += sum(sizes)
    return hits, level_hits, recorder


def _verdict(
    plan: AuditPlan,
    pair: Pair,
    judged: list[CandidateEvent],
    counted: list[Counts],
    recorder: PlotRecorder,
    started: float,
) -> PrivacyResult:
    """Decide by the first event; show the other as evidence if it refutes the claim nearly as strongly by itself."""
    first, steps = counted[0], step_count(pair)
    limit = ceiling(plan.claim, strength(plan.claim), steps)
    p = p_value(first, limit)
    lower = strength_lower(first, plan.claim, plan.alpha, steps)
    states_epsilon = isinstance(plan.claim, Pure | Approximate)
    epsilon = lower if states_epsilon else epsilon_lower(first, delta(plan.claim), plan.alpha, steps)
    shown = len(judged) - 1 if p <= plan.alpha and _is_nearly_as_strong(plan, counted[-1], lower, steps) else 0
    return PrivacyResult(
        plan.claim, "fixed", plan.alpha, p <= plan.alpha, p, epsilon, lower,
        make_evidence(
            pair, judged[shown], counted[shown], p_value(counted[shown], limit), plan.alpha,
            () if shown else recorder.examples, recorder.leak,
        ),
        plan.samples, len(plan.pairs),
        make_power(plan, pair, first, plan.samples), time.process_time() - started, recorder.plots(),
    )  # fmt: skip


def _is_nearly_as_strong(plan: AuditPlan, counts: Counts, lower: float, steps: int) -> bool:
    """Return True if these counts refute the claim too, with a bound of at least 0.8 times `lower`."""
    return strength_lower(counts, plan.claim, plan.alpha, steps) > max(strength(plan.claim), 0.8 * lower)


def _to_counts(claim: Loss, candidate: CandidateEvent, hits: Any, runs: tuple[int, int]) -> Counts:
    """Return the counts of an event; it is rare by the search's estimate of its probability, not by these counts."""
    first, second = (1, 0) if candidate.swapped else (0, 1)
    rare = isinstance(claim, Pure) and candidate.p <= RARE
    return Counts(int(hits[first]), runs[first], int(hits[second]), runs[second], rare)


def _chunks(runs: tuple[int, int], space: OutcomeSpace) -> list[tuple[int, int]]:
    """Divide the runs on both inputs into batches of bounded memory."""
    size = max(1000, CHUNK_VALUES // max(4, len(space.edges) + len(space.encoder.labels)))
    count = max(1, ceil(max(runs) / size))
    parts = [[total * (place + 1) // count - total * place // count for place in range(count)] for total in runs]
    return list(zip(*parts, strict=True))
