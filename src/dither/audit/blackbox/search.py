"""Finding promising events: scores are learned on one part of the sample and tried on the other, and the other way.

Thresholds are chosen on what the tries give together, so the whole sample teaches and the whole sample tells; the score
is then learned once more from everything. Nothing of this is judged: judgement takes fresh runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dither.audit.blackbox import learners
from dither.audit.blackbox.belief import BeliefChain, EventCounts, posterior
from dither.audit.blackbox.events import ColumnScore, Committee, CornerScore, Event, OutcomeSpace, SampleTable, Score
from dither.audit.blackbox.learners import Learner
from dither.audit.blackbox.reference import ReferencePairs
from dither.audit.claims import Floats, ceiling, strength
from dither.audit.confidence import division, predicted_epsilon, predicted_score, slope_at
from dither.loss import Loss, Pure

Worth = Callable[[Any, Any], Any]

# Standard errors taken off log-ratios: at first, to choose thresholds and pairs; at last, to choose thresholds and the
# best of many scores, of outputs that are one number and of longer ones; and the best of many, again and again.
CAUTION, LAST, MISTRUST = 0.8, {True: (0.8, 1.5), False: (0.3, 1.0)}, 2.0
# Hits that make what is said of one of many scores, which read several columns, half as doubtful again.
FEW = 100.0
# The best learners on so many outputs of each input (fewer, if they have many features) learn from all of them, and
# those whose scores tell most of all outputs; others take time that they are not worth.
SHORT_ROWS, SHORT_VALUES, SHORTLIST, MOST_TELLING = 400_000, 12_000_000, 12, 3
SMALL = 1e-3
# There are many corners: those are looked at of which an event is so many standard errors off.
PROMISING = 2.5
# A learned score that tells less than this part of what the best tells is left out.
SERIOUS = 0.75
# Models that tell so much of what the best tells, and so many of them, are the reference on the events of all scores;
# it is heard on so many scores at most.
TELLING, MEMBERS, MOST_HEARD = 0.97, 8, 25
# So many of the best scores are averaged.
COMMITTEES = (3, 6)
# A threshold is not carried over if more or less lies beyond it than was tried, by this factor's exponential.
MOST_OFF = 0.2
NONE: Floats = np.zeros(0)


@dataclass(frozen=True)
class Lead:
    """An event that looks good, and what it promises; `swapped`: likelier on the second input.

    `nested` has the thresholds of all events of its score, their sizes p + q, and what is believed of their log-ratios.
    """

    event: Event
    swapped: bool
    worth: float
    p: float
    q: float
    nested: tuple[Floats, Floats, Floats] = field(default=(NONE, NONE, NONE), repr=False, compare=False)

    @property
    def plain(self) -> bool:
        """Whether a person can check it by hand."""
        return isinstance(self.event.score, ColumnScore | CornerScore)


def worth(claim: Loss, runs: int, alpha: float, steps: int = 1) -> Worth:
    """What an event of probabilities (p, q) will be worth after `runs` more runs: an epsilon, or standard errors."""
    limit = ceiling(claim, strength(claim), steps)

    def value(p: Any, q: Any) -> Any:
        first = first_share(claim, p, q, runs, steps) * 2 * runs
        if not isinstance(claim, Pure):
            return predicted_score(p, q, first, 2 * runs - first, limit)
        epsilon = predicted_epsilon(p, q, first, 2 * runs - first, alpha) / steps
        # Where nothing is promised, what differs most, by standard errors, is the best: not the event that is sure.
        off = predicted_score(p, q, first, 2 * runs - first, ceiling(claim, 0.0))
        return np.where(epsilon > 0, epsilon, -SMALL / (1 + np.maximum(off, 0.0)))

    return value


def first_share(claim: Loss, p: Any, q: Any, runs: int, steps: int = 1) -> Any:
    """The share of the runs that the input on which the event is likelier should have."""
    q = np.asarray(q, dtype=float) + 1.0 / runs
    limit = ceiling(claim, strength(claim), steps)
    slope = p / q if isinstance(claim, Pure) else slope_at(limit, np.minimum(q, 1.0))
    return division(p, q, slope, runs)


@dataclass(frozen=True)
class Try:
    """A score, and how often each input's outputs lay at or above, and at or below, thresholds of it.

    A learned score is larger where the first input is likelier, and was learned from each half of the outputs too, with
    some `gain` on the other: nats by which it makes it likelier which input each output is of. Of others either input
    may be the likelier, in `any_way`.
    """

    score: Score
    above: BeliefChain | None
    below: BeliefChain | None
    any_way: bool = False
    halves: tuple[Score, Score] | None = None
    gain: float = 0.0


def tries(sample: SampleTable, teachers: list[Learner]) -> list[Try]:
    """Half-lines and corners are not learned, so they are tried on everything; learned scores on what did not teach."""
    found = [_half_lines(sample, column) for column in range(len(sample.space.edges))]
    found += [done for pair in learners.pairs(sample.space) for done in _corners(sample, pair)]
    halves = sample.part(0, 0.5), sample.part(0.5, 1)
    return found + [done for learner in teachers if (done := _learned(sample, halves, learner)) is not None]


def shortlist(sample: SampleTable, teachers: list[Learner], value: Worth) -> list[Learner]:
    """The learners that do best on a part of the sample, by their events or in all; all of them if it is small."""
    rows = min(SHORT_ROWS, SHORT_VALUES // len(sample.space.edges))
    if len(sample.a) <= rows or len(teachers) <= SHORTLIST:
        return teachers
    part = sample.part(0, rows / len(sample.a))
    halves = part.part(0, 0.5), part.part(0.5, 1)
    tried = [(learner, _learned(part, halves, learner)) for learner in teachers]
    worths = [
        -np.inf if done is None else max(lead.worth for lead in _best(sample.space, done, value, *LAST[False]))
        for _, done in tried
    ]
    gains = [-np.inf if done is None else done.gain for _, done in tried]
    first, telling = (np.argsort(-np.array(values), kind="stable") for values in (worths, gains))
    return [teachers[place] for place in sorted({*first[:SHORTLIST], *telling[:MOST_TELLING]})]


def leads(
    space: OutcomeSpace,
    found: list[Try],
    value: Worth,
    caution: float,
    suspicion: float,
    reference: ReferencePairs | None = None,
) -> list[Lead]:
    """The best events of each score, best first; thresholds and scores are compared some standard errors down.

    If there is a reference, it is heard on the best of them until the best is one on which it was heard.
    """
    kept = serious(found)
    made, heard = [_best(space, done, value, caution, suspicion) for done in kept], list[int]()
    while reference is not None and len(heard) < MOST_HEARD:
        best = int(np.argmax([each[0].worth for each in made]))
        if best in heard:
            break
        made[best] = _best(space, _retold(kept[best], reference), value, caution, suspicion)
        heard.append(best)
    order = sorted(range(len(made)), key=lambda place: (place not in heard, -made[place][0].worth))
    return [lead for place in order for lead in made[place]]


def referred(sample: SampleTable, found: list[Try]) -> tuple[list[Try], ReferencePairs | None]:
    """The models that tell most of all outputs, as one more score, and as a reference on the events of all scores."""
    able = [done for done in serious(found) if done.score.root.size]
    most = max((done.gain for done in able), default=0.0)
    members = sorted((done for done in able if done.gain >= TELLING * most), key=lambda done: -done.gain)[:MEMBERS]
    if most <= 0:
        return [], None
    halves, (whole, parts) = (sample.part(0, 0.5), sample.part(0.5, 1)), _together(members)
    again = [_crossed(sample, halves, whole, parts)] if len(members) > 1 else []
    return again, ReferencePairs(sample, halves, whole, parts)


def _retold(done: Try, reference: ReferencePairs) -> Try:
    """The same, with what the reference says of its events."""
    above, below = (
        None if chain is None else replace(chain, said=reference.says(done.score, done.halves, chain, high))
        for high, chain in ((True, done.above and done.above.apart()), (False, done.below and done.below.apart()))
    )
    return replace(done, above=above, below=below)


def serious(found: list[Try]) -> list[Try]:
    """All but the learned scores that tell much less of all outputs than the best of them does, if it reads several.

    What a score tells of all outputs is known far better than what it tells of the rare ones that make its best event.
    Of many scores that tell little, some one has a rare event that looks good. Scores of whole outputs stay: they may
    tell all of one output, and follow noise in the others.
    """
    best = max(found, key=lambda done: done.gain, default=None)
    if best is None or len(best.score.columns) == 1:
        return found
    whole = [done.any_way or not done.score.columns for done in found]
    return [done for done, kept in zip(found, whole, strict=True) if kept or done.gain >= SERIOUS * best.gain]


def distinct(found: list[Lead], most: int) -> list[Lead]:
    """The best lead and others that differ from it in kind or in size."""
    result: list[Lead] = []
    for lead in found:
        if len(result) < most and np.isfinite(lead.worth) and all(_differs(lead, other) for other in result):
            result.append(lead)
    return result or found[:1]


def _differs(one: Lead, other: Lead) -> bool:
    """Whether two events are of another kind, read something else, or differ in size."""
    kinds = [(type(lead.event.score), lead.event.score.columns, lead.swapped) for lead in (one, other)]
    if (one.p, one.q) == (other.p, other.q):
        return False
    return kinds[0] != kinds[1] or not 0.6 < (one.p + 1e-9) / (other.p + 1e-9) < 1.7


def _half_lines(sample: SampleTable, column: int) -> Try:
    hits = list(sample.counts(column))
    score = ColumnScore(column, np.arange(256, dtype=np.float64))
    runs = len(sample.a), len(sample.b)
    return Try(score, _beyond(hits, runs, True), _beyond(hits, runs, False), any_way=True)


def _corners(sample: SampleTable, pair: tuple[int, int]) -> list[Try]:
    """A half-line of one feature where another, which has few values, lies at or beyond one of them."""
    few, other = sorted(pair, key=lambda column: len(sample.space.edges[column]))
    values, runs = len(sample.space.edges[few]), (len(sample.a), len(sample.b))
    if not 1 < values <= learners.FEW_VALUES:
        return []
    grids = [
        np.bincount(side.codes[:, few] * np.intp(256) + side.codes[:, other], minlength=65536).reshape(256, 256)
        for side in (sample.a, sample.b)
    ]
    found = []
    for first, last in [(start, values + 1) for start in range(3, values + 2)] + [
        (1, end) for end in range(2, values + 1)
    ]:
        hits = [grid[first : last + 1].sum(axis=0) for grid in grids]
        for side in hits:
            side[0] = 0  # where the other feature is missing
        for above in (True, False):
            chain, score = _beyond(hits, runs, above)[1:], CornerScore((few, other), first, last, above)
            if _promising(chain):
                found.append(Try(score, chain if above else None, None if above else chain, any_way=True))
    return found


def _promising(chain: BeliefChain) -> bool:
    """Whether any of the events is some standard errors off, as few are by chance."""
    a, b = chain.a.hits + 0.5, chain.b.hits + 0.5
    off = np.log(a / chain.a.runs) - np.log(b / chain.b.runs)
    return bool(np.any(np.abs(off) > PROMISING * np.sqrt(1 / a + 1 / b)))


def _beyond(hits: list[NDArray[Any]], runs: tuple[int, int], above: bool) -> BeliefChain:
    """How often each side's bin was at or above each bin, or at or below."""
    order = slice(None, None, -1 if above else 1)
    a, b = (EventCounts(np.cumsum(side[order])[order], total) for side, total in zip(hits, runs, strict=True))
    return BeliefChain(np.arange(256, dtype=np.float64), a, b)


def _learned(sample: SampleTable, halves: tuple[SampleTable, SampleTable], learner: Learner) -> Try | None:
    """A score that is learned on each half and tried on the other."""
    final, one, other = learner(sample), learner(halves[0]), learner(halves[1])
    if final is None or one is None or other is None:
        return None
    return _crossed(sample, halves, final, (one, other))


def committees(sample: SampleTable, tried: list[Try], value: Worth) -> list[Try]:
    """What the best few learned scores say together: they estimate one thing, and err each in its own way."""
    learned = [done for done in serious(tried) if done.halves is not None]
    worths = [max(lead.worth for lead in _best(sample.space, done, value, *LAST[False])) for done in learned]
    order = [learned[place] for place in np.argsort(-np.array(worths), kind="stable")]
    halves = sample.part(0, 0.5), sample.part(0.5, 1)
    return [_crossed(sample, halves, *_together(order[:size])) for size in COMMITTEES if size <= len(order)]


def _together(members: list[Try]) -> tuple[Score, tuple[Score, Score]]:
    """The mean of the scores, and of those that were learned from each half."""
    taught = [done.halves for done in members if done.halves is not None]
    parts = Committee(tuple(one for one, _ in taught)), Committee(tuple(other for _, other in taught))
    return Committee(tuple(done.score for done in members)), parts


def _crossed(
    sample: SampleTable, halves: tuple[SampleTable, SampleTable], final: Score, parts: tuple[Score, Score]
) -> Try:
    """What each half says of the score that was learned from the other."""
    one, other = parts
    placed = _places(other, halves[0]), _places(one, halves[1])
    tried = [_Values.of([half[side] for half in placed]) for side in (0, 1)]
    whole = _Values.of([final.weighed(sample.a), final.weighed(sample.b)])
    thresholds = _Values.of([(values.ordered, values.weights) for values in tried]).spread()
    above = [EventCounts(values.total - values.before(thresholds, "left"), values.total) for values in tried]
    below = [EventCounts(values.before(thresholds, "right"), values.total) for values in tried]
    gain = _gain(other, halves[0]) + _gain(one, halves[1])
    chains = _carried(whole, thresholds, above, True), _carried(whole, thresholds, below, False)
    return Try(final, *chains, halves=parts, gain=gain)


def _gain(score: Score, sample: SampleTable) -> float:
    """Nats by which a score makes it likelier which input each output is of."""
    shift = np.log(len(sample.a) / len(sample.b))
    total = -len(sample.a) * special.log_expit(shift) - len(sample.b) * special.log_expit(-shift)
    for sign, side in ((1, sample.a), (-1, sample.b)):
        values, weights = score.weighed(side)
        total += np.sum(special.log_expit(sign * (values + shift)) * (1.0 if weights is None else weights))
    return float(total)


def _places(score: Score, sample: SampleTable) -> list[tuple[Floats, Floats | None]]:
    """For each output of both inputs, or each value, the share of all whose score is less: halves differ in scale."""
    sides = [_in_order(*score.weighed(side)) for side in (sample.a, sample.b)]
    both = _Values.of(sides)
    places = [(both.before(values, "left") + both.before(values, "right")) / (2 * both.total) for values, _ in sides]
    return [(place, weights) for place, (_, weights) in zip(places, sides, strict=True)]


def _in_order(values: Floats, weights: Floats | None) -> tuple[Floats, Floats | None]:
    """The values of single outputs sorted, which makes every search among them quick."""
    return (np.sort(values), None) if weights is None else (values, weights)


def _carried(whole: _Values, places: Floats, tallies: list[EventCounts], above: bool) -> BeliefChain:
    """Thresholds of the whole sample's score beyond which there lies as much as was tried, where there are such."""
    starts = np.concatenate([[True], np.diff(whole.ordered) > 0])
    values = whole.ordered[starts][:: -1 if above else 1]
    held = whole.total - whole.before(values, "left") if above else whole.before(values, "right")
    wanted = (tallies[0].hits + tallies[1].hits) / (tallies[0].runs + tallies[1].runs) * whole.total
    sizes, goals = np.log(held), np.log(np.maximum(wanted, 0.5))
    after = np.clip(np.searchsorted(sizes, goals), 1, len(sizes) - 1) if len(sizes) > 1 else np.zeros(len(goals), int)
    nearest = np.where(goals - sizes[after - 1] < sizes[after] - goals, after - 1, after)
    off = np.abs(sizes[nearest] - goals)
    return BeliefChain(values[nearest], tallies[0], tallies[1], places)[off <= max(MOST_OFF, off.min())]


@dataclass(frozen=True)
class _Values:
    """Values of a score in order, how many outputs have each, and how many have one before it."""

    ordered: Floats
    weights: Floats
    until: Floats

    @classmethod
    def of(cls, parts: list[tuple[Floats, Floats | None]]) -> _Values:
        values = np.concatenate([part for part, _ in parts])
        if all(weights is None for _, weights in parts):
            ordered = np.sort(values, kind="stable")
            return cls(ordered, np.ones(len(values)), np.arange(len(values) + 1, dtype=np.float64))
        weights = np.concatenate([np.ones(len(part)) if weights is None else weights for part, weights in parts])
        order = np.argsort(values[weights > 0], kind="stable")
        held = weights[weights > 0][order]
        return cls(values[weights > 0][order], held, np.concatenate([[0.0], np.cumsum(held)]))

    @property
    def total(self) -> int:
        return int(self.until[-1])

    def before(self, thresholds: Floats, side: Literal["left", "right"]) -> Floats:
        """How many outputs lie below each threshold, or at it too."""
        result: Floats = self.until[np.searchsorted(self.ordered, thresholds, side=side)]
        return result

    def at(self, shares: Floats, off: float = 0.5) -> Floats:
        """The values of the outputs that come after (or, with a negative offset, end) these shares of all."""
        place = np.searchsorted(self.until, np.rint(shares * self.total) + off) - 1
        return self.ordered[np.clip(place, 0, len(self.ordered) - 1)]

    def spread(self) -> Floats:
        """Values that are dense in both tails."""
        tails = np.geomspace(4 / self.total, 0.05, 60)
        shares = np.concatenate([[0.0], tails, np.linspace(0.05, 0.95, 120), 1 - tails, [1.0]])
        return np.unique(self.at(np.clip(shares, 0, 1)))


def _best(space: OutcomeSpace, done: Try, value: Worth, caution: float, suspicion: float) -> list[Lead]:
    """The best threshold of a score in each direction."""
    found = []
    for high, tried in ((True, done.above), (False, done.below)):
        if tried is None:
            continue
        chain = tried.apart()
        belief, log_ratio, error = posterior(chain)
        mass = chain.a.hits / chain.a.runs + chain.b.hits / chain.b.runs
        for swapped in (False, True) if done.any_way else (not high,):
            sign = -1 if swapped else 1
            ratio = np.exp(sign * log_ratio - caution * error)
            best = int(np.argmax(value(mass * ratio / (1 + ratio), mass / (1 + ratio))))
            hits = float(chain.a.hits[best] + chain.b.hits[best])
            many = 1.0 if isinstance(done.score, ColumnScore) else np.sqrt(1 + FEW / max(hits, 1.0))
            doubted = np.exp(sign * log_ratio[[best]] - suspicion * many * error[[best]])
            promised = float(value(mass[[best]] * doubted / (1 + doubted), mass[[best]] / (1 + doubted))[0])
            event = Event(space, done.score, float(chain.thresholds[best]), high)
            believable = belief * promised if promised > 0 else promised
            likely = float(mass[best] / (1 + 1 / ratio[best])), float(mass[best] / (1 + ratio[best]))
            nested = chain.thresholds, mass, sign * log_ratio
            found.append(Lead(event, swapped, believable, *likely, nested))
    return sorted(found, key=lambda lead: -lead.worth)
