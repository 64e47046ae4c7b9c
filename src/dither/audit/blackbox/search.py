"""Search for promising events: learn scores on each half of the sample and evaluate them on the other half.

Thresholds are chosen on both evaluations together, so that the whole sample serves for learning and for evaluation; the
score is then learned once more from the whole sample. The test uses fresh runs, none of these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dither.audit.blackbox import learners
from dither.audit.blackbox.belief import BeliefChain, EventCounts, posterior
from dither.audit.blackbox.events import ColumnScore, CornerScore, Event, MeanScore, OutcomeSpace, SampleTable, Score
from dither.audit.blackbox.learners import Learner
from dither.audit.blackbox.reference import ReferenceModel
from dither.audit.claims import Floats, ceiling, strength
from dither.audit.confidence import neyman_share, predicted_epsilon, predicted_score, slope_at
from dither.loss import Loss, Pure, rational

WorthFunction = Callable[[Any, Any], Any]

# The number of standard errors subtracted from log-ratios. CAUTION: in the first rounds, for thresholds and pairs.
# FINAL_CAUTION: in the last round, for thresholds and for the best of many scores; True if each output is a single
# number. SEQUENTIAL_CAUTION: in sequential mode, which chooses the best of many scores again and again.
CAUTION, FINAL_CAUTION, SEQUENTIAL_CAUTION = 0.8, {True: (0.8, 1.5), False: (0.3, 1.0)}, 2.0
# For scores that are not of a single column, an event's error is multiplied by sqrt(1 + FEW_HITS / hits).
FEW_HITS = 100.0
# On large samples, learners first try SHORT_ROWS outputs of each input (fewer, if they have many features). Only the
# SHORTLIST best by their events and the MAX_BY_GAIN best by their gain learn from all outputs; others are too slow.
SHORT_ROWS, SHORT_VALUES, SHORTLIST, MAX_BY_GAIN = 400_000, 12_000_000, 12, 3
SMALL_WORTH = 1e-3
# Claims other than pure ones are compared by the part of the claim that an event refutes: none of it, half, or all.
PARTS_OF_CLAIM = (0.0, 0.5, 1.0)
# Corners are many; only those with an event off by this many standard errors are tried.
PROMISING_ERRORS = 2.5
# Learned scores whose gain is below this share of the best gain are dropped.
MIN_GAIN_SHARE = 0.75
# The reference model averages up to MAX_REFERENCE_MEMBERS models whose gain is at least this share of the best gain. It
# is consulted on at most MAX_CONSULTED scores.
REFERENCE_GAIN_SHARE, MAX_REFERENCE_MEMBERS, MAX_CONSULTED = 0.97, 8, 25
# The numbers of best scores that are averaged.
AVERAGE_SIZES = (3, 6)
# A threshold is dropped if no value of the final score cuts off as many outputs, up to the factor e^MAX_LOG_SIZE_ERROR.
MAX_LOG_SIZE_ERROR = 0.2
# An event is shown instead of the best if it is simpler and its probability and log-ratio are at least this share of
# the best one's; the effort of reading a feature.
NEARLY_AS_GOOD, FEATURE_EFFORT = 0.7, {"base": 0, "difference": 1, "summary": 2, "bits": 1}
EMPTY: Floats = np.zeros(0)


@dataclass(frozen=True)
class CandidateEvent:
    """A promising event, its worth, and its estimated probabilities p on the likelier input and q on the other.

    `swapped` means that the event is likelier on the second input. `nested` has the thresholds of all events of its
    score, their sizes p + q, and their estimated log-ratios.
    """

    event: Event
    swapped: bool
    worth: float
    p: float
    q: float
    nested: tuple[Floats, Floats, Floats] = field(default=(EMPTY, EMPTY, EMPTY), repr=False, compare=False)

    @property
    def checkable_by_hand(self) -> bool:
        """True if a person can check the event by hand: it is a range of one or two features."""
        return isinstance(self.event.score, ColumnScore | CornerScore)

    @property
    def complexity(self) -> int:
        """The effort of checking the event by hand: less for one feature, for a half-line, and for a simple feature."""
        score, features = self.event.score, self.event.space.encoder.features
        half_line = not isinstance(score, ColumnScore) or bool(np.all(np.diff(score.table) > 0))
        effort = sum(FEATURE_EFFORT[features[column].group] for column in score.columns)
        return effort + 3 * len(score.columns) + (not half_line)


def plain_event(candidates: list[CandidateEvent]) -> CandidateEvent | None:
    """Return the simplest event to check by hand, of those nearly as common and as telling as the best one, if any."""
    checkable = [each for each in candidates if each.checkable_by_hand]
    if not checkable:
        return None
    best = max(checkable, key=lambda each: each.worth)
    least_p, least_ratio = NEARLY_AS_GOOD * best.p, (best.p / best.q) ** NEARLY_AS_GOOD
    near = [
        each
        for each in checkable
        if each.swapped == best.swapped and each.p >= least_p and each.p >= least_ratio * each.q
    ]
    return min(near, key=lambda each: (each.complexity, -each.worth), default=best)


def worth_function(claim: Loss, runs: int, alpha: float, steps: int = 1) -> WorthFunction:
    """Return a function of (p, q): the predicted worth of such an event after `runs` fresh runs on each input.

    For a pure claim, the worth is the lower bound on epsilon. For other claims it is the number of standard errors
    above the ceiling; events below it are compared by the part of the claim that they refute, and have negative worth.
    If an event refutes nothing, its worth is larger the more standard errors its probabilities differ by.
    """
    limits = [ceiling(claim, share * strength(claim), steps) for share in PARTS_OF_CLAIM]
    no_loss = ceiling(Pure(rational(0)), 0.0)

    def worth(p: Any, q: Any) -> Any:
        first = first_share(claim, p, q, runs, steps) * 2 * runs
        difference = predicted_score(p, q, first, 2 * runs - first, no_loss)
        nothing = -SMALL_WORTH / (1 + np.maximum(difference, 0.0))
        if isinstance(claim, Pure):
            epsilon = predicted_epsilon(p, q, first, 2 * runs - first, alpha) / steps
            return np.where(epsilon > 0, epsilon, nothing)
        scores = [predicted_score(p, q, first, 2 * runs - first, limit) for limit in limits]
        return _worth_of_scores(scores, -float(special.ndtri(alpha)), nothing)

    return worth


def _worth_of_scores(scores: list[Any], needed: float, nothing: Any) -> Any:
    """Return the worth of events from their scores against growing parts of a claim: the score against all of it.

    If that is not positive, the worth is negative, and larger the larger the part that is refuted; between two parts,
    the score that refutes is interpolated.
    """
    refuted = np.zeros_like(scores[0])
    for (part, larger_part), (score, larger_score) in zip(pairwise(PARTS_OF_CLAIM), pairwise(scores), strict=True):
        between = np.clip((score - needed) / np.maximum(score - larger_score, 1e-300), 0.0, 1.0)
        refuted = np.where(score > needed, part + (larger_part - part) * between, refuted)
    below = np.where(refuted > 0, -SMALL_WORTH * (1 - refuted), nothing - SMALL_WORTH)
    return np.where(scores[-1] > 0, scores[-1], below)


def first_share(claim: Loss, p: Any, q: Any, runs: int, steps: int = 1) -> Any:
    """Return the share of the runs for the input on which the event is likelier."""
    q = np.asarray(q, dtype=float) + 1.0 / runs
    limit = ceiling(claim, strength(claim), steps)
    slope = p / q if isinstance(claim, Pure) else slope_at(limit, np.minimum(q, 1.0))
    return neyman_share(p, q, slope, runs)


@dataclass(frozen=True)
class ScoreTrial:
    """A score, and chains of the events at or above, and at or below, its thresholds.

    A learned score is larger where the first input is likelier. `half_scores` were learned from each half of the
    outputs; `gain` is the log-likelihood that they gain on the other half, for the input of each output. With
    `either_direction`, the score is not learned: an event on either side may be likelier on either input.
    """

    score: Score
    above: BeliefChain | None
    below: BeliefChain | None
    either_direction: bool = False
    half_scores: tuple[Score, Score] | None = None
    gain: float = 0.0


def try_scores(sample: SampleTable, chosen: list[Learner]) -> list[ScoreTrial]:
    """Try half-lines and corners, which are not learned, on the whole sample, and learned scores by cross-fitting."""
    trials = [_half_lines(sample, column) for column in range(len(sample.space.edges))]
    trials += [trial for pair in learners.feature_pairs(sample.space) for trial in _corners(sample, pair)]
    halves = sample.part(0, 0.5), sample.part(0.5, 1)
    return trials + [trial for learner in chosen if (trial := _cross_fit(sample, halves, learner)) is not None]


def shortlist(sample: SampleTable, chosen: list[Learner], worth: WorthFunction) -> list[Learner]:
    """Return the best learners on a part of the sample, by their events or by gain; all of them if it is small."""
    rows = min(SHORT_ROWS, SHORT_VALUES // len(sample.space.edges))
    if len(sample.a) <= rows or len(chosen) <= SHORTLIST:
        return chosen
    part = sample.part(0, rows / len(sample.a))
    halves = part.part(0, 0.5), part.part(0.5, 1)
    trials = [_cross_fit(part, halves, learner) for learner in chosen]
    worths = [-np.inf if trial is None else _best_worth(sample.space, trial, worth) for trial in trials]
    gains = [-np.inf if trial is None else trial.gain for trial in trials]
    by_worth, by_gain = (np.argsort(-np.array(values), kind="stable") for values in (worths, gains))
    return [chosen[place] for place in sorted({*by_worth[:SHORTLIST], *by_gain[:MAX_BY_GAIN]})]


def candidate_events(
    space: OutcomeSpace,
    trials: list[ScoreTrial],
    worth: WorthFunction,
    threshold_caution: float,
    score_caution: float,
    reference: ReferenceModel | None = None,
) -> list[CandidateEvent]:
    """Return the best events of each score, best first.

    Thresholds of a score are compared after subtracting `threshold_caution` standard errors from their log-ratios,
    scores after subtracting `score_caution`. A reference, if any, is consulted on the best score, until the best is one
    on which it was consulted.
    """
    cautions = threshold_caution, score_caution
    strong = drop_weak_scores(trials)
    candidates = [_best_candidates(space, trial, worth, *cautions) for trial in strong]
    consulted: list[int] = []
    while reference is not None and len(consulted) < MAX_CONSULTED:
        best = int(np.argmax([of_score[0].worth for of_score in candidates]))
        if best in consulted:
            break
        candidates[best] = _best_candidates(space, _consult_reference(strong[best], reference), worth, *cautions)
        consulted.append(best)
    order = sorted(range(len(strong)), key=lambda place: (place not in consulted, -candidates[place][0].worth))
    return [candidate for place in order for candidate in candidates[place]]


def build_reference(sample: SampleTable, trials: list[ScoreTrial]) -> tuple[list[ScoreTrial], ReferenceModel | None]:
    """Average the models of the largest gain; return the average as a trial, if of several, and as a reference."""
    models = [trial for trial in drop_weak_scores(trials) if trial.score.covariance_root.size]
    best_gain = max((trial.gain for trial in models), default=0.0)
    if best_gain <= 0:
        return [], None
    good = [trial for trial in models if trial.gain >= REFERENCE_GAIN_SHARE * best_gain]
    members = sorted(good, key=lambda trial: -trial.gain)[:MAX_REFERENCE_MEMBERS]
    halves, (model, half_models) = (sample.part(0, 0.5), sample.part(0.5, 1)), _average_scores(members)
    average = [_cross_trial(sample, halves, model, half_models)] if len(members) > 1 else []
    return average, ReferenceModel(sample, halves, model, half_models)


def _consult_reference(trial: ScoreTrial, reference: ReferenceModel) -> ScoreTrial:
    """Return the trial with the reference model's estimates of its events."""

    def consult(chain: BeliefChain | None, above: bool) -> BeliefChain | None:
        if chain is None:
            return None
        thinned = chain.thin()
        posterior_of_model = reference.posterior_of(trial.score, trial.half_scores, thinned, above)
        return replace(thinned, model_posterior=posterior_of_model)

    return replace(trial, above=consult(trial.above, True), below=consult(trial.below, False))


def drop_weak_scores(trials: list[ScoreTrial]) -> list[ScoreTrial]:
    """Drop learned scores whose gain is far below the best, unless the best reads a single column.

    The gain over all outputs is known far better than the log-ratio of the rare outputs in a score's best event, and
    among many scores of little gain, some have a rare event that looks good by luck. Scores of distinct outputs stay:
    they may be right about one output while they fit noise in the others.
    """
    best = max(trials, key=lambda trial: trial.gain, default=None)
    if best is None or len(best.score.columns) == 1:
        return trials
    return [
        trial
        for trial in trials
        if trial.either_direction or not trial.score.columns or trial.gain >= MIN_GAIN_SHARE * best.gain
    ]


def distinct_candidates(candidates: list[CandidateEvent], most: int) -> list[CandidateEvent]:
    """Return the best event and up to `most` - 1 others that differ in kind or in size."""
    result: list[CandidateEvent] = []
    for candidate in candidates:
        if len(result) < most and np.isfinite(candidate.worth) and all(_differ(candidate, other) for other in result):
            result.append(candidate)
    return result or candidates[:1]


def _differ(one: CandidateEvent, other: CandidateEvent) -> bool:
    """Return True if two events have different kinds of scores, columns, directions or sizes."""
    kinds = [(type(each.event.score), each.event.score.columns, each.swapped) for each in (one, other)]
    if (one.p, one.q) == (other.p, other.q):
        return False
    return kinds[0] != kinds[1] or not 0.6 < (one.p + 1e-9) / (other.p + 1e-9) < 1.7


def _half_lines(sample: SampleTable, column: int) -> ScoreTrial:
    """Try the half-lines of one feature: its values at or above, and at or below, each bin."""
    hits = list(sample.counts(column))
    score = ColumnScore(column, np.arange(256, dtype=np.float64))
    runs = len(sample.a), len(sample.b)
    above, below = (_half_line_chain(hits, runs, direction) for direction in (True, False))
    return ScoreTrial(score, above, below, either_direction=True)


def _corners(sample: SampleTable, pair: tuple[int, int]) -> list[ScoreTrial]:
    """Try the half-lines of one feature on the outputs where another, of few values, is at or beyond one of them."""
    few, other = sorted(pair, key=lambda column: len(sample.space.edges[column]))
    values, runs = len(sample.space.edges[few]), (len(sample.a), len(sample.b))
    if not 1 < values <= learners.FEW_VALUES:
        return []
    grids = [
        np.bincount(side.codes[:, few] * np.intp(256) + side.codes[:, other], minlength=65536).reshape(256, 256)
        for side in (sample.a, sample.b)
    ]
    upper_ranges = [(start, values + 1) for start in range(3, values + 2)]
    lower_ranges = [(1, end) for end in range(2, values + 1)]
    trials = []
    for first, last in upper_ranges + lower_ranges:
        hits = [grid[first : last + 1].sum(axis=0) for grid in grids]
        for side in hits:
            side[0] = 0  # the bin of outputs without the other feature
        for above in (True, False):
            chain, score = _half_line_chain(hits, runs, above)[1:], CornerScore((few, other), first, last, above)
            if _is_promising(chain):
                upper, lower = (chain, None) if above else (None, chain)
                trials.append(ScoreTrial(score, upper, lower, either_direction=True))
    return trials


def _is_promising(chain: BeliefChain) -> bool:
    """Return True if some event's log-ratio is more standard errors from 0 than is likely by chance."""
    a, b = chain.a.hits + 0.5, chain.b.hits + 0.5
    log_ratio = np.log(a / chain.a.runs) - np.log(b / chain.b.runs)
    return bool(np.any(np.abs(log_ratio) > PROMISING_ERRORS * np.sqrt(1 / a + 1 / b)))


def _half_line_chain(hits: list[NDArray[Any]], runs: tuple[int, int], above: bool) -> BeliefChain:
    """Return the chain of the events at or above each bin, or at or below it, from the hits of each bin."""
    order = slice(None, None, -1 if above else 1)
    a, b = (EventCounts(np.cumsum(side[order])[order], total) for side, total in zip(hits, runs, strict=True))
    return BeliefChain(np.arange(256, dtype=np.float64), a, b)


def _cross_fit(sample: SampleTable, halves: tuple[SampleTable, SampleTable], learner: Learner) -> ScoreTrial | None:
    """Learn a score on the sample and on each half of it, and try each half's score on the other half."""
    final, one, other = learner(sample), learner(halves[0]), learner(halves[1])
    if final is None or one is None or other is None:
        return None
    return _cross_trial(sample, halves, final, (one, other))


def average_trials(sample: SampleTable, trials: list[ScoreTrial], worth: WorthFunction) -> list[ScoreTrial]:
    """Try averages of the best few learned scores: they estimate the same log-ratio with different errors."""
    learned = [trial for trial in drop_weak_scores(trials) if trial.half_scores is not None]
    worths = [_best_worth(sample.space, trial, worth) for trial in learned]
    ordered = [learned[place] for place in np.argsort(-np.array(worths), kind="stable")]
    halves = sample.part(0, 0.5), sample.part(0.5, 1)
    sizes = [size for size in AVERAGE_SIZES if size <= len(ordered)]
    return [_cross_trial(sample, halves, *_average_scores(ordered[:size])) for size in sizes]


def _average_scores(members: list[ScoreTrial]) -> tuple[Score, tuple[Score, Score]]:
    """Return the mean of the scores, and the means of the scores learned from each half."""
    pairs = [trial.half_scores for trial in members if trial.half_scores is not None]
    half_means = MeanScore(tuple(one for one, _ in pairs)), MeanScore(tuple(other for _, other in pairs))
    return MeanScore(tuple(trial.score for trial in members)), half_means


def _cross_trial(
    sample: SampleTable, halves: tuple[SampleTable, SampleTable], final: Score, half_scores: tuple[Score, Score]
) -> ScoreTrial:
    """Try each half's score on the other half, and carry the thresholds over to the final score.

    Thresholds of the two half scores are put together by rank, since the scores differ in scale.
    """
    one, other = half_scores
    ranks_by_half = _rank_scores(other, halves[0]), _rank_scores(one, halves[1])
    ranks = [_WeightedValues.of([half[side] for half in ranks_by_half]) for side in (0, 1)]
    final_values = _WeightedValues.of([final.value_counts(sample.a), final.value_counts(sample.b)])
    thresholds = _WeightedValues.of([(side.ordered, side.weights) for side in ranks]).threshold_grid()
    above = [EventCounts(side.total - side.count_below(thresholds, "left"), side.total) for side in ranks]
    below = [EventCounts(side.count_below(thresholds, "right"), side.total) for side in ranks]
    return ScoreTrial(
        final,
        _map_thresholds(final_values, thresholds, above, True),
        _map_thresholds(final_values, thresholds, below, False),
        half_scores=half_scores,
        gain=_gain(other, halves[0]) + _gain(one, halves[1]),
    )


def _gain(score: Score, sample: SampleTable) -> float:
    """Return the log-likelihood, in nats, that the score gains over no score for the input of each output."""
    shift = np.log(len(sample.a) / len(sample.b))
    total = -len(sample.a) * special.log_expit(shift) - len(sample.b) * special.log_expit(-shift)
    for sign, side in ((1, sample.a), (-1, sample.b)):
        values, weights = score.value_counts(side)
        total += np.sum(special.log_expit(sign * (values + shift)) * (1.0 if weights is None else weights))
    return float(total)


def _rank_scores(score: Score, sample: SampleTable) -> list[tuple[Floats, Floats | None]]:
    """Return, for each input, the ranks (0 to 1) of its scores among those of both inputs, and their weights."""
    sides = [_sort_unweighted(*score.value_counts(side)) for side in (sample.a, sample.b)]
    both = _WeightedValues.of(sides)
    return [
        ((both.count_below(values, "left") + both.count_below(values, "right")) / (2 * both.total), weights)
        for values, weights in sides
    ]


def _sort_unweighted(values: Floats, weights: Floats | None) -> tuple[Floats, Floats | None]:
    """Sort values without weights, which makes searching for them fast."""
    return (np.sort(values), None) if weights is None else (values, weights)


def _map_thresholds(final: _WeightedValues, ranks: Floats, counts: list[EventCounts], above: bool) -> BeliefChain:
    """Map thresholds, given as ranks with counts of the half scores, to thresholds of the final score.

    Each threshold maps to the value of the final score that cuts off the nearest number of outputs; those without a
    near one are dropped.
    """
    starts = np.concatenate([[True], np.diff(final.ordered) > 0])
    values = final.ordered[starts][:: -1 if above else 1]
    cut_off = final.total - final.count_below(values, "left") if above else final.count_below(values, "right")
    wanted = (counts[0].hits + counts[1].hits) / (counts[0].runs + counts[1].runs) * final.total
    sizes, goals = np.log(cut_off), np.log(np.maximum(wanted, 0.5))
    after = np.clip(np.searchsorted(sizes, goals), 1, len(sizes) - 1) if len(sizes) > 1 else np.zeros(len(goals), int)
    nearest = np.where(goals - sizes[after - 1] < sizes[after] - goals, after - 1, after)
    error = np.abs(sizes[nearest] - goals)
    chain = BeliefChain(values[nearest], counts[0], counts[1], ranks)
    return chain[error <= max(MAX_LOG_SIZE_ERROR, error.min())]


@dataclass(frozen=True)
class _WeightedValues:
    """Sorted values, the number of outputs of each as its weight, and the cumulative weights, starting at 0."""

    ordered: Floats
    weights: Floats
    cumulative: Floats

    @classmethod
    def of(cls, parts: list[tuple[Floats, Floats | None]]) -> _WeightedValues:
        """Put values and their weights together; without weights, each value counts once."""
        values = np.concatenate([part for part, _ in parts])
        if all(weights is None for _, weights in parts):
            ordered = np.sort(values, kind="stable")
            return cls(ordered, np.ones(len(values)), np.arange(len(values) + 1, dtype=np.float64))
        weights = np.concatenate([np.ones(len(part)) if weights is None else weights for part, weights in parts])
        values, weights = values[weights > 0], weights[weights > 0]
        order = np.argsort(values, kind="stable")
        return cls(values[order], weights[order], np.concatenate([[0.0], np.cumsum(weights[order])]))

    @property
    def total(self) -> int:
        """The total weight."""
        return int(self.cumulative[-1])

    def count_below(self, thresholds: Floats, side: Literal["left", "right"]) -> Floats:
        """Return the number of outputs below each threshold; with side "right", at or below it."""
        result: Floats = self.cumulative[np.searchsorted(self.ordered, thresholds, side=side)]
        return result

    def quantiles(self, shares: Floats) -> Floats:
        """Return the values just after these shares of all outputs."""
        place = np.searchsorted(self.cumulative, np.rint(shares * self.total) + 0.5) - 1
        return self.ordered[np.clip(place, 0, len(self.ordered) - 1)]

    def threshold_grid(self) -> Floats:
        """Return quantiles that are dense in both tails."""
        tails = np.geomspace(4 / self.total, 0.05, 60)
        shares = np.concatenate([[0.0], tails, np.linspace(0.05, 0.95, 120), 1 - tails, [1.0]])
        return np.unique(self.quantiles(np.clip(shares, 0, 1)))


def _best_worth(space: OutcomeSpace, trial: ScoreTrial, worth: WorthFunction) -> float:
    """Return the worth of the best event of a score, with the final caution for longer outputs."""
    return max(candidate.worth for candidate in _best_candidates(space, trial, worth, *FINAL_CAUTION[False]))


def _best_candidates(
    space: OutcomeSpace, trial: ScoreTrial, worth: WorthFunction, threshold_caution: float, score_caution: float
) -> list[CandidateEvent]:
    """Return the event at the best threshold of a score in each direction, best first.

    A log-ratio and the size p + q of an event give p and q. The threshold is chosen with `threshold_caution` standard
    errors subtracted from the log-ratio; the event's worth subtracts `score_caution` of them and is scaled by belief.
    """
    candidates = []
    for above, tried in ((True, trial.above), (False, trial.below)):
        if tried is None:
            continue
        chain = tried.thin()
        belief, log_ratio, error = posterior(chain)
        size = chain.a.hits / chain.a.runs + chain.b.hits / chain.b.runs
        for swapped in (False, True) if trial.either_direction else (not above,):
            sign = -1 if swapped else 1
            ratio = np.exp(sign * log_ratio - threshold_caution * error)
            best = int(np.argmax(worth(size * ratio / (1 + ratio), size / (1 + ratio))))
            hits = float(chain.a.hits[best] + chain.b.hits[best])
            inflation = 1.0 if isinstance(trial.score, ColumnScore) else np.sqrt(1 + FEW_HITS / max(hits, 1.0))
            low_ratio = np.exp(sign * log_ratio[[best]] - score_caution * inflation * error[[best]])
            low_worth = float(worth(size[[best]] * low_ratio / (1 + low_ratio), size[[best]] / (1 + low_ratio))[0])
            event = Event(space, trial.score, float(chain.thresholds[best]), above)
            scaled_worth = belief * low_worth if low_worth > 0 else low_worth
            p, q = float(size[best] / (1 + 1 / ratio[best])), float(size[best] / (1 + ratio[best]))
            nested = chain.thresholds, size, sign * log_ratio
            candidates.append(CandidateEvent(event, swapped, scaled_worth, p, q, nested))
    return sorted(candidates, key=lambda candidate: -candidate.worth)
