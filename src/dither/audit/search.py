"""Finding promising events: scores are learned on one part of the sample and tried on the other, and the other way.

Thresholds are chosen on what the tries give together, so the whole sample teaches and the whole sample tells; the score
is then learned once more from everything. Nothing of this is judged: judgement takes fresh runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dither.audit import learners
from dither.audit.bounds import division, predicted_epsilon, predicted_score, slope_at
from dither.audit.claims import Floats, ceiling, strength
from dither.audit.events import ColumnScore, Committee, CornerScore, Event, Sample, Score, Space
from dither.audit.learners import Learner
from dither.loss import Loss, Pure

Worth = Callable[[Any, Any], Any]

# Standard errors taken off log-ratios: at first, to choose thresholds and pairs; at last, to choose thresholds and the
# best of many scores, of outputs that are one number and of longer ones; and the best of many, again and again.
CAUTION, LAST, MISTRUST = 0.8, {True: (0.8, 1.5), False: (0.3, 1.0)}, 2.0
# Hits that make what is said of one of many scores, which read several columns, half as doubtful again.
FEW = 100.0
# The best learners on so many outputs of each input learn from all of them, and those whose scores tell most of all
# outputs; others take time that they are not worth.
SHORT_ROWS, SHORTLIST, MOST_TELLING = 400_000, 12, 3
SMALL = 1e-3
# Log-ratios wander by so much at first when events grow rarer by a factor of e, and then by e^(speed/2) times as much.
REACHES, SPEEDS = np.geomspace(0.002, 10, 13), (-3.0, -1.0, 0.01, 0.35, 0.7, 1.0)
TREND = 2.0
# Nats by which counts must be likelier before they are believed, and again before each greater speed is.
DOUBT, HASTE = 3.0, 1.0
# Events are looked at whose numbers of hits differ by about this factor's exponential.
APART = 0.2
# There are many corners: those are looked at of which an event is so many standard errors off.
PROMISING = 2.5
# A learned score that tells less than this part of what the best tells is left out.
SERIOUS = 0.75
# So many of the best scores are averaged.
COMMITTEES = (3, 6)
# A threshold is not carried over if more or less lies beyond it than was tried, by this factor's exponential.
MOST_OFF = 0.2


@dataclass(frozen=True)
class Tally:
    """How often each of some events happened in so many runs."""

    hits: NDArray[Any]
    runs: int


@dataclass(frozen=True)
class Lead:
    """An event that looks good, and what it promises; `swapped`: likelier on the second input."""

    event: Event
    swapped: bool
    worth: float
    p: float
    q: float

    @property
    def plain(self) -> bool:
        """Whether a person can check it by hand."""
        return isinstance(self.event.score, ColumnScore | CornerScore)


def worth(claim: Loss, runs: int, alpha: float) -> Worth:
    """What an event of probabilities (p, q) will be worth after `runs` more runs: an epsilon, or standard errors."""
    limit = ceiling(claim, strength(claim))

    def value(p: Any, q: Any) -> Any:
        first = first_share(claim, p, q, runs) * 2 * runs
        if not isinstance(claim, Pure):
            return predicted_score(p, q, first, 2 * runs - first, limit)
        epsilon = predicted_epsilon(p, q, first, 2 * runs - first, alpha)
        # Where nothing is promised, what differs most, by standard errors, is the best: not the event that is sure.
        off = predicted_score(p, q, first, 2 * runs - first, ceiling(claim, 0.0))
        return np.where(epsilon > 0, epsilon, -SMALL / (1 + np.maximum(off, 0.0)))

    return value


def first_share(claim: Loss, p: Any, q: Any, runs: int) -> Any:
    """The share of the runs that the input on which the event is likelier should have."""
    q = np.asarray(q, dtype=float) + 1.0 / runs
    slope = p / q if isinstance(claim, Pure) else slope_at(ceiling(claim, strength(claim)), np.minimum(q, 1.0))
    return division(p, q, slope, runs)


@dataclass(frozen=True)
class Try:
    """A score, and how often each input's outputs lay at or above, and at or below, thresholds of it.

    A learned score is larger where the first input is likelier, and was learned from each half of the outputs too, with
    some `gain` on the other: nats by which it makes it likelier which input each output is of. Of others either input
    may be the likelier, in `any_way`.
    """

    score: Score
    above: Chain | None
    below: Chain | None
    any_way: bool = False
    halves: tuple[Score, Score] | None = None
    gain: float = 0.0


@dataclass(frozen=True)
class Chain:
    """Nested events: the outputs beyond each of some thresholds, and how often they happened on each input."""

    thresholds: Floats
    a: Tally
    b: Tally

    def __getitem__(self, part: Any) -> Chain:
        return Chain(self.thresholds[part], *(Tally(side.hits[part], side.runs) for side in (self.a, self.b)))


def tries(sample: Sample, teachers: list[Learner]) -> list[Try]:
    """Half-lines and corners are not learned, so they are tried on everything; learned scores on what did not teach."""
    found = [_half_lines(sample, column) for column in range(len(sample.space.edges))]
    found += [done for pair in learners.pairs(sample.space) for done in _corners(sample, pair)]
    halves = sample.part(0, 0.5), sample.part(0.5, 1)
    return found + [done for learner in teachers if (done := _learned(sample, halves, learner)) is not None]


def shortlist(sample: Sample, teachers: list[Learner], value: Worth) -> list[Learner]:
    """The learners that do best on a part of the sample, by their events or in all; all of them if it is small."""
    if len(sample.a) <= SHORT_ROWS or len(teachers) <= SHORTLIST:
        return teachers
    part = sample.part(0, SHORT_ROWS / len(sample.a))
    halves = part.part(0, 0.5), part.part(0.5, 1)
    tried = [(learner, _learned(part, halves, learner)) for learner in teachers]
    worths = [
        -np.inf if done is None else max(lead.worth for lead in _best(sample.space, done, value, *LAST[False]))
        for _, done in tried
    ]
    gains = [-np.inf if done is None else done.gain for _, done in tried]
    first, telling = (np.argsort(-np.array(values), kind="stable") for values in (worths, gains))
    return [teachers[place] for place in sorted({*first[:SHORTLIST], *telling[:MOST_TELLING]})]


def leads(space: Space, found: list[Try], value: Worth, caution: float, suspicion: float) -> list[Lead]:
    """The best events of each score, best first; thresholds and scores are compared some standard errors down."""
    made = [lead for done in serious(found) for lead in _best(space, done, value, caution, suspicion)]
    return sorted(made, key=lambda lead: -lead.worth)


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


def _half_lines(sample: Sample, column: int) -> Try:
    hits = [np.bincount(side.codes[:, column], minlength=256) for side in (sample.a, sample.b)]
    score = ColumnScore(column, np.arange(256, dtype=np.float64))
    runs = len(sample.a), len(sample.b)
    return Try(score, _beyond(hits, runs, True), _beyond(hits, runs, False), any_way=True)


def _corners(sample: Sample, pair: tuple[int, int]) -> list[Try]:
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


def _promising(chain: Chain) -> bool:
    """Whether any of the events is some standard errors off, as few are by chance."""
    a, b = chain.a.hits + 0.5, chain.b.hits + 0.5
    off = np.log(a / chain.a.runs) - np.log(b / chain.b.runs)
    return bool(np.any(np.abs(off) > PROMISING * np.sqrt(1 / a + 1 / b)))


def _beyond(hits: list[NDArray[Any]], runs: tuple[int, int], above: bool) -> Chain:
    """How often each side's bin was at or above each bin, or at or below."""
    order = slice(None, None, -1 if above else 1)
    tallies = (Tally(np.cumsum(side[order])[order], total) for side, total in zip(hits, runs, strict=True))
    return Chain(np.arange(256, dtype=np.float64), *tallies)


def _learned(sample: Sample, halves: tuple[Sample, Sample], learner: Learner) -> Try | None:
    """A score that is learned on each half and tried on the other."""
    final, one, other = learner(sample), learner(halves[0]), learner(halves[1])
    if final is None or one is None or other is None:
        return None
    return _crossed(sample, halves, final, (one, other))


def committees(sample: Sample, tried: list[Try], value: Worth) -> list[Try]:
    """What the best few learned scores say together: they estimate one thing, and err each in its own way."""
    learned = [done for done in serious(tried) if done.halves is not None]
    worths = [max(lead.worth for lead in _best(sample.space, done, value, *LAST[False])) for done in learned]
    order = [learned[place] for place in np.argsort(-np.array(worths), kind="stable")]
    halves = sample.part(0, 0.5), sample.part(0.5, 1)
    return [_together(sample, halves, order[:size]) for size in COMMITTEES if size <= len(order)]


def _together(sample: Sample, halves: tuple[Sample, Sample], members: list[Try]) -> Try:
    taught = [done.halves for done in members if done.halves is not None]
    parts = Committee(tuple(one for one, _ in taught)), Committee(tuple(other for _, other in taught))
    return _crossed(sample, halves, Committee(tuple(done.score for done in members)), parts)


def _crossed(sample: Sample, halves: tuple[Sample, Sample], final: Score, parts: tuple[Score, Score]) -> Try:
    """What each half says of the score that was learned from the other."""
    one, other = parts
    placed = _places(other, halves[0]), _places(one, halves[1])
    tried = [_Values.of([half[side] for half in placed]) for side in (0, 1)]
    whole = _Values.of([final.weighed(sample.a), final.weighed(sample.b)])
    thresholds = _Values.of([(values.ordered, values.weights) for values in tried]).spread()
    above = [Tally(values.total - values.before(thresholds, "left"), values.total) for values in tried]
    below = [Tally(values.before(thresholds, "right"), values.total) for values in tried]
    gain = _gain(other, halves[0]) + _gain(one, halves[1])
    return Try(final, _carried(whole, above, True), _carried(whole, below, False), halves=parts, gain=gain)


def _gain(score: Score, sample: Sample) -> float:
    """Nats by which a score makes it likelier which input each output is of."""
    shift = np.log(len(sample.a) / len(sample.b))
    total = -len(sample.a) * special.log_expit(shift) - len(sample.b) * special.log_expit(-shift)
    for sign, side in ((1, sample.a), (-1, sample.b)):
        values, weights = score.weighed(side)
        total += np.sum(special.log_expit(sign * (values + shift)) * (1.0 if weights is None else weights))
    return float(total)


def _places(score: Score, sample: Sample) -> list[tuple[Floats, Floats | None]]:
    """For each output of both inputs, or each value, the share of all whose score is less: halves differ in scale."""
    sides = [_in_order(*score.weighed(side)) for side in (sample.a, sample.b)]
    both = _Values.of(sides)
    places = [(both.before(values, "left") + both.before(values, "right")) / (2 * both.total) for values, _ in sides]
    return [(place, weights) for place, (_, weights) in zip(places, sides, strict=True)]


def _in_order(values: Floats, weights: Floats | None) -> tuple[Floats, Floats | None]:
    """The values of single outputs sorted, which makes every search among them quick."""
    return (np.sort(values), None) if weights is None else (values, weights)


def _carried(whole: _Values, tallies: list[Tally], above: bool) -> Chain:
    """Thresholds of the whole sample's score beyond which there lies as much as was tried, where there are such."""
    starts = np.concatenate([[True], np.diff(whole.ordered) > 0])
    values = whole.ordered[starts][:: -1 if above else 1]
    held = whole.total - whole.before(values, "left") if above else whole.before(values, "right")
    wanted = (tallies[0].hits + tallies[1].hits) / (tallies[0].runs + tallies[1].runs) * whole.total
    sizes, goals = np.log(held), np.log(np.maximum(wanted, 0.5))
    after = np.clip(np.searchsorted(sizes, goals), 1, len(sizes) - 1) if len(sizes) > 1 else np.zeros(len(goals), int)
    nearest = np.where(goals - sizes[after - 1] < sizes[after] - goals, after - 1, after)
    off = np.abs(sizes[nearest] - goals)
    return Chain(values[nearest], *tallies)[off <= max(MOST_OFF, off.min())]


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


def _best(space: Space, done: Try, value: Worth, caution: float, suspicion: float) -> list[Lead]:
    """The best threshold of a score in each direction."""
    found = []
    for high, tried in ((True, done.above), (False, done.below)):
        if tried is None:
            continue
        chain = tried[_kept(tried)]
        belief, log_ratio, error = believed(chain.a, chain.b)
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
            likely = mass[best] / (1 + 1 / ratio[best]), mass[best] / (1 + ratio[best])
            believable = belief * promised if promised > 0 else promised
            found.append(Lead(event, swapped, believable, *map(float, likely)))
    return found


def _kept(chain: Chain) -> NDArray[np.intp]:
    """Events that differ in size from each other, and have happened at all."""
    hits = chain.a.hits + chain.b.hits
    size = np.where(hits > 0, np.rint(np.log(np.maximum(hits, 1)) / APART), -1)
    _, first = np.unique(size, return_index=True)
    return first[size[first] >= 0] if len(first) > 1 else first


def believed(p: Tally, q: Tally) -> tuple[float, Floats, Floats]:
    """Whether a chain of nested events tells the inputs apart; the log-ratio of each event, and its error, after all.

    The log-ratio is thought to wander from 0, for the event that is sure, as events grow rarer. How far and how fast it
    wanders is weighed by how likely that makes the counts, against some doubt; no rare event is believed for its luck.
    """
    seen = np.log((p.hits + 0.5) / (p.runs + 1)) - np.log((q.hits + 0.5) / (q.runs + 1))
    error = 1 / (p.hits + 0.5) - 1 / (p.runs + 1) + 1 / (q.hits + 0.5) - 1 / (q.runs + 1)
    rarity = np.log((p.runs + q.runs + 1) / (p.hits + q.hits + 0.5))
    noise = np.minimum(error[:, None], error) + np.diag(1e-6 * error + 1e-12)
    priors = np.concatenate([_wander(rarity, speed) * REACHES[:, None, None] ** 2 for speed in SPEEDS])
    doubts = DOUBT + HASTE * np.repeat(np.arange(len(SPEEDS)), len(REACHES))
    gains = _likelihoods(seen, priors + noise) - _likelihoods(seen, noise[None]) - doubts
    weights = special.softmax(gains)
    kept = np.flatnonzero(weights > 0.02 * weights.max())
    ratios, errors = zip(*(_posterior(seen, noise, prior) for prior in priors[kept]), strict=True)
    shares = weights[kept] / weights[kept].sum()
    return float(special.expit(gains.max())), shares @ np.stack(ratios), shares @ np.stack(errors)


def _wander(rarity: Floats, speed: float) -> Floats:
    """The covariance of log-ratios that wander, the faster the rarer the event, to and fro and in one direction."""
    clock = np.expm1(speed * rarity) / speed
    result: Floats = np.minimum(clock[:, None], clock) + TREND**2 * np.sqrt(np.outer(clock, clock))
    return result


def _likelihoods(seen: Floats, covariances: Floats) -> Floats:
    """How likely the log-ratios are under each covariance."""
    factors = np.linalg.cholesky(covariances)
    scores = np.linalg.solve(factors, np.broadcast_to(seen[:, None], (len(factors), len(seen), 1)))[..., 0]
    result: Floats = -0.5 * (scores**2).sum(axis=1) - np.log(np.diagonal(factors, axis1=1, axis2=2)).sum(axis=1)
    return result


def _posterior(seen: Floats, noise: Floats, prior: Floats) -> tuple[Floats, Floats]:
    """What the log-ratios are believed to be, and their standard errors."""
    gain = np.linalg.solve(prior + noise, prior)
    spread = np.diag(prior) - np.einsum("ij,ij->j", prior, gain)
    return seen @ gain, np.sqrt(np.maximum(spread, 0.0))
