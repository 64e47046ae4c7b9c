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

from dither.audit.bounds import division, predicted_epsilon, predicted_score, slope_at
from dither.audit.claims import Floats, ceiling, strength
from dither.audit.events import ColumnScore, Event, Sample, Score, Space
from dither.audit.learners import Learner
from dither.loss import Loss, Pure

Worth = Callable[[Any, Any], Any]

# Standard errors taken off log-ratios: where thresholds or pairs are chosen, and where the last of many scores is.
CAUTION, SUSPICION = 0.8, 2.0
# Log-ratios wander by so much at first when events grow rarer by a factor of e, and then by e^(speed/2) times as much.
REACHES, SPEEDS = np.geomspace(0.002, 10, 13), (-3.0, -1.0, 0.01, 0.35, 0.7, 1.0)
TREND = 2.0
# Nats by which counts must be likelier before they are believed, and again before each greater speed is.
DOUBT, HASTE = 3.0, 1.0
# Events are looked at whose numbers of hits differ by about this factor's exponential.
APART = 0.12


@dataclass(frozen=True)
class Tally:
    """How often each of some events happened in so many runs."""

    hits: NDArray[Any]
    runs: int


@dataclass(frozen=True)
class Lead:
    """An event that looks good: `swapped` if it is likelier on the second input."""

    event: Event
    swapped: bool
    worth: float
    p: float
    q: float

    @property
    def plain(self) -> bool:
        """Whether a person can check it by hand."""
        return isinstance(self.event.score, ColumnScore)


def worth(claim: Loss, runs: int, alpha: float) -> Worth:
    """What an event of probabilities (p, q) will be worth after `runs` more runs: an epsilon, or standard errors."""
    limit = ceiling(claim, strength(claim))

    def value(p: Any, q: Any) -> Any:
        first = first_share(claim, p, q, runs) * 2 * runs
        if isinstance(claim, Pure):
            return predicted_epsilon(p, q, first, 2 * runs - first, alpha)
        return predicted_score(p, q, first, 2 * runs - first, limit)

    return value


def first_share(claim: Loss, p: Any, q: Any, runs: int) -> Any:
    """The share of the runs that the input on which the event is likelier should have."""
    q = np.asarray(q, dtype=float) + 1.0 / runs
    slope = p / q if isinstance(claim, Pure) else slope_at(ceiling(claim, strength(claim)), np.minimum(q, 1.0))
    return division(p, q, slope, runs)


@dataclass(frozen=True)
class Try:
    """A score, and how often each input's outputs lay at or above, and at or below, thresholds of it."""

    score: Score
    above: Chain
    below: Chain


@dataclass(frozen=True)
class Chain:
    """Nested events: the outputs beyond each of some thresholds, and how often they happened on each input."""

    thresholds: Floats
    a: Tally
    b: Tally


def tries(sample: Sample, learners: list[Learner]) -> list[Try]:
    """Half-lines are not learned, so they are tried on everything; learned scores on what did not teach them."""
    found = [_half_lines(sample, column) for column in range(len(sample.space.edges))]
    halves = sample.part(0, 0.5), sample.part(0.5, 1)
    return found + [done for learner in learners if (done := _learned(sample, halves, learner)) is not None]


def leads(space: Space, found: list[Try], value: Worth, suspicion: float = SUSPICION) -> list[Lead]:
    """The best events of each score, best first; scores are compared some standard errors down."""
    made = [lead for done in found for lead in _best(space, done, value, suspicion)]
    return sorted(made, key=lambda lead: -lead.worth)


def distinct(found: list[Lead], most: int) -> list[Lead]:
    """The best lead and others that differ from it in kind or in size."""
    chosen: list[Lead] = []
    for lead in found:
        if len(chosen) < most and np.isfinite(lead.worth) and all(_differs(lead, other) for other in chosen):
            chosen.append(lead)
    return chosen or found[:1]


def _differs(one: Lead, other: Lead) -> bool:
    """Whether two events are of another kind, read something else, or differ in size."""
    kinds = [(type(lead.event.score), lead.event.score.columns, lead.swapped) for lead in (one, other)]
    if (one.p, one.q) == (other.p, other.q):
        return False
    return kinds[0] != kinds[1] or not 0.6 < (one.p + 1e-9) / (other.p + 1e-9) < 1.7


def _half_lines(sample: Sample, column: int) -> Try:
    hits = [np.bincount(side.codes[:, column], minlength=256) for side in (sample.a, sample.b)]
    ramp, runs = np.arange(256, dtype=np.float64), [len(sample.a), len(sample.b)]
    above = Chain(ramp, *(Tally(np.cumsum(side[::-1])[::-1], total) for side, total in zip(hits, runs, strict=True)))
    below = Chain(ramp, *(Tally(np.cumsum(side), total) for side, total in zip(hits, runs, strict=True)))
    return Try(ColumnScore(column, ramp), above, below)


def _learned(sample: Sample, halves: tuple[Sample, Sample], learner: Learner) -> Try | None:
    """A score that is learned on each half and tried on the other."""
    final, one, other = learner(sample), learner(halves[0]), learner(halves[1])
    if final is None or one is None or other is None:
        return None
    tried = [
        _Values.of([other.weighed(halves[0].a), one.weighed(halves[1].a)]),
        _Values.of([other.weighed(halves[0].b), one.weighed(halves[1].b)]),
    ]
    whole = _Values.of([final.weighed(sample.a), final.weighed(sample.b)])
    thresholds = _Values.of([(values.ordered, values.weights) for values in tried]).spread()
    above = [Tally(values.total - values.before(thresholds, "left"), values.total) for values in tried]
    below = [Tally(values.before(thresholds, "right"), values.total) for values in tried]
    return Try(
        final,
        Chain(whole.at(1 - _share(above)), *above),
        Chain(whole.at(_share(below), -0.5), *below),
    )


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
            return cls(np.sort(values), np.ones(len(values)), np.arange(len(values) + 1, dtype=np.float64))
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


def _share(tallies: list[Tally]) -> Floats:
    """How many of all outputs lie beyond each threshold."""
    result: Floats = (tallies[0].hits + tallies[1].hits) / (tallies[0].runs + tallies[1].runs)
    return result


def _best(space: Space, done: Try, value: Worth, suspicion: float) -> list[Lead]:
    """The best threshold of a score in each direction."""
    found = []
    for high, chain in ((True, done.above), (False, done.below)):
        kept = _kept(chain)
        likelier, other = (chain.a, chain.b) if high else (chain.b, chain.a)
        p, q = Tally(likelier.hits[kept], likelier.runs), Tally(other.hits[kept], other.runs)
        belief, log_ratio, error = believed(p, q)
        ratio = np.exp(log_ratio - CAUTION * error)
        mass = p.hits / p.runs + q.hits / q.runs
        best = int(np.argmax(value(mass * ratio / (1 + ratio), mass / (1 + ratio))))
        worst = np.exp(log_ratio[best : best + 1] - suspicion * error[best])
        worth = float(value(mass[best] * worst / (1 + worst), mass[best] / (1 + worst))[0])
        event = Event(space, done.score, float(chain.thresholds[kept][best]), high)
        likely = mass[best] / (1 + 1 / ratio[best]), mass[best] / (1 + ratio[best])
        found.append(Lead(event, not high, belief * worth if worth > 0 else worth, *map(float, likely)))
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
