"""Chains of nested events, and what is believed of the rare ones among them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dither.audit.claims import Floats

# Log-ratios wander by so much at first when events grow rarer by a factor of e, and then by e^(speed/2) times as much.
REACHES, SPEEDS = np.geomspace(0.002, 10, 13), (-3.0, -1.0, 0.01, 0.35, 0.7, 1.0)
TREND = 2.0
# Nats by which counts must be likelier before they are believed, and again before each greater speed is.
DOUBT, HASTE = 3.0, 1.0
# Events are looked at whose numbers of hits differ by about this factor's exponential.
APART = 0.2


@dataclass(frozen=True)
class EventCounts:
    """How often each of some events happened in so many runs."""

    hits: NDArray[Any]
    runs: int


@dataclass(frozen=True)
class Posterior:
    """What a model says of nested events: their log-ratios, and rows whose inner products are the covariance."""

    ratio: Floats
    root: Floats

    def __getitem__(self, part: Any) -> Posterior:
        return Posterior(self.ratio[part], self.root[part])


@dataclass(frozen=True)
class BeliefChain:
    """Nested events: the outputs beyond each of some thresholds, and how often they happened on each input.

    If they were found on halves of the outputs, each by a score of its own, then beyond these `places` among them.
    """

    thresholds: Floats
    a: EventCounts
    b: EventCounts
    places: Floats | None = None
    said: Posterior | None = None

    def __getitem__(self, part: Any) -> BeliefChain:
        a, b = (EventCounts(side.hits[part], side.runs) for side in (self.a, self.b))
        places = None if self.places is None else self.places[part]
        return BeliefChain(self.thresholds[part], a, b, places, None if self.said is None else self.said[part])

    def apart(self) -> BeliefChain:
        """Events of these that differ in size from each other, and have happened at all."""
        hits = self.a.hits + self.b.hits
        size = np.where(hits > 0, np.rint(np.log(np.maximum(hits, 1)) / APART), -1)
        _, first = np.unique(size, return_index=True)
        return self[first[size[first] >= 0] if len(first) > 1 else first]


def posterior(chain: BeliefChain) -> tuple[float, Floats, Floats]:
    """Whether a chain of nested events tells the inputs apart; the log-ratio of each event, and its error, after all.

    The log-ratio is thought to wander from 0, for the event that is sure, as events grow rarer. How far and how fast it
    wanders is weighed by how likely that makes the counts, against some doubt; no rare event is believed for its luck.
    Where a model has said what the log-ratios are, they are thought to wander from that, if at all.
    """
    p, q = chain.a, chain.b
    seen = np.log((p.hits + 0.5) / (p.runs + 1)) - np.log((q.hits + 0.5) / (q.runs + 1))
    error = 1 / (p.hits + 0.5) - 1 / (p.runs + 1) + 1 / (q.hits + 0.5) - 1 / (q.runs + 1)
    rarity = np.log((p.runs + q.runs + 1) / (p.hits + q.hits + 0.5))
    noise = np.minimum(error[:, None], error) + np.diag(1e-6 * error + 1e-12)
    priors = np.concatenate([_wander(rarity, speed) * REACHES[:, None, None] ** 2 for speed in SPEEDS])
    gains = _gains(seen, noise, priors)
    belief = float(special.expit(gains.max()))
    if chain.said is None:
        return belief, *_weighed(seen, noise, priors, gains)
    away = seen - chain.said.ratio
    priors, gains = np.concatenate([0 * priors[:1], priors]), np.concatenate([[0.0], _gains(away, noise, priors)])
    ratio, doubt = _weighed(away, noise, priors, gains)
    return belief, chain.said.ratio + ratio, np.sqrt(doubt**2 + (chain.said.root**2).sum(axis=1))


def _gains(seen: Floats, noise: Floats, priors: Floats) -> Floats:
    """Nats by which each way of wandering makes the counts likelier than none does, against some doubt."""
    doubts = DOUBT + HASTE * np.repeat(np.arange(len(SPEEDS)), len(REACHES))
    return _likelihoods(seen, priors + noise) - _likelihoods(seen, noise[None]) - doubts


def _weighed(seen: Floats, noise: Floats, priors: Floats, gains: Floats) -> tuple[Floats, Floats]:
    """What is believed after all, over the ways of wandering that are likely."""
    weights = special.softmax(gains)
    kept = np.flatnonzero(weights > 0.02 * weights.max())
    ratios, errors = zip(*(_posterior(seen, noise, prior) for prior in priors[kept]), strict=True)
    shares = weights[kept] / weights[kept].sum()
    return shares @ np.stack(ratios), shares @ np.stack(errors)


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
