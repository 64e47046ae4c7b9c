"""Chains of nested events, and Bayesian estimates of their log-ratios that discount the luck of rare events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dither.audit.claims import Floats

# The prior of the log-ratios is a random walk from common to rare events. While events grow rarer by a factor of e, its
# step is about the scale at first, and then grows by e^(speed/2) with each further factor.
WALK_SCALES, WALK_SPEEDS = np.geomspace(0.002, 10, 13), (-3.0, -1.0, 0.01, 0.35, 0.7, 1.0)
# The scale of the walk's common drift, relative to its steps.
TREND_SCALE = 2.0
# Nats by which a walk must make the counts likelier than no difference does; SPEED_PENALTY more for each greater speed.
EVIDENCE_PENALTY, SPEED_PENALTY = 3.0, 1.0
# A thinned chain has events whose numbers of hits differ by factors of about e^LOG_SPACING.
LOG_SPACING = 0.2


@dataclass(frozen=True)
class EventCounts:
    """The hits of each of some events in `runs` runs."""

    hits: NDArray[Any]
    runs: int


@dataclass(frozen=True)
class Posterior:
    """A model's estimates of nested events: their log-ratios, and rows whose inner products are the covariance."""

    log_ratio: Floats
    covariance_root: Floats

    def __getitem__(self, part: Any) -> Posterior:
        return Posterior(self.log_ratio[part], self.covariance_root[part])


@dataclass(frozen=True)
class BeliefChain:
    """Nested events, each the outputs beyond a threshold of one score, and their hits on each input.

    If each half of the outputs was scored by a score of its own, `ranks` has the thresholds as ranks among the outputs
    of a half, from 0 to 1. `model_posterior` has the estimates of a reference model, if one was consulted.
    """

    thresholds: Floats
    a: EventCounts
    b: EventCounts
    ranks: Floats | None = None
    model_posterior: Posterior | None = None

    def __getitem__(self, part: Any) -> BeliefChain:
        a, b = (EventCounts(side.hits[part], side.runs) for side in (self.a, self.b))
        ranks = None if self.ranks is None else self.ranks[part]
        model_posterior = None if self.model_posterior is None else self.model_posterior[part]
        return BeliefChain(self.thresholds[part], a, b, ranks, model_posterior)

    def thin(self) -> BeliefChain:
        """Keep one event of each size on a logarithmic scale, and drop those without hits."""
        hits = self.a.hits + self.b.hits
        size = np.where(hits > 0, np.rint(np.log(np.maximum(hits, 1)) / LOG_SPACING), -1)
        _, first = np.unique(size, return_index=True)
        return self[first[size[first] >= 0] if len(first) > 1 else first]


def posterior(chain: BeliefChain) -> tuple[float, Floats, Floats]:
    """Return the belief, 0 to 1, that the inputs differ, and the log-ratio of each event with its standard error.

    The prior is a random walk: the log-ratio starts at 0 for the certain event and drifts as events grow rarer. Walks
    of several scales and speeds are averaged by their evidence, against a penalty, so that no rare event is trusted
    for its luck. If a reference model has estimated the log-ratios, the walk describes the deviation from its estimate.
    """
    p, q = chain.a, chain.b
    observed = np.log((p.hits + 0.5) / (p.runs + 1)) - np.log((q.hits + 0.5) / (q.runs + 1))
    variance = 1 / (p.hits + 0.5) - 1 / (p.runs + 1) + 1 / (q.hits + 0.5) - 1 / (q.runs + 1)
    rarity = np.log((p.runs + q.runs + 1) / (p.hits + q.hits + 0.5))
    noise = np.minimum(variance[:, None], variance) + np.diag(1e-6 * variance + 1e-12)
    squared_scales = WALK_SCALES[:, None, None] ** 2
    priors = np.concatenate([_walk_covariance(rarity, speed) * squared_scales for speed in WALK_SPEEDS])
    gains = _evidence_gains(observed, noise, priors)
    belief = float(special.expit(gains.max()))
    model = chain.model_posterior
    if model is None:
        return belief, *_average_over_priors(observed, noise, priors, gains)
    deviation = observed - model.log_ratio
    gains = np.concatenate([[0.0], _evidence_gains(deviation, noise, priors)])
    no_walk = 0 * priors[:1]
    mean, error = _average_over_priors(deviation, noise, np.concatenate([no_walk, priors]), gains)
    return belief, model.log_ratio + mean, np.sqrt(error**2 + (model.covariance_root**2).sum(axis=1))


def _evidence_gains(observed: Floats, noise: Floats, priors: Floats) -> Floats:
    """Return the nats by which each prior makes the log-ratios likelier than noise alone does, less its penalty."""
    penalties = EVIDENCE_PENALTY + SPEED_PENALTY * np.repeat(np.arange(len(WALK_SPEEDS)), len(WALK_SCALES))
    return _log_likelihoods(observed, priors + noise) - _log_likelihoods(observed, noise[None]) - penalties


def _average_over_priors(observed: Floats, noise: Floats, priors: Floats, gains: Floats) -> tuple[Floats, Floats]:
    """Average the posterior means and standard errors over the likely priors, weighted by evidence."""
    weights = special.softmax(gains)
    likely = np.flatnonzero(weights > 0.02 * weights.max())
    means, errors = zip(*(_posterior_under_prior(observed, noise, prior) for prior in priors[likely]), strict=True)
    shares = weights[likely] / weights[likely].sum()
    return shares @ np.stack(means), shares @ np.stack(errors)


def _walk_covariance(rarity: Floats, speed: float) -> Floats:
    """Return the covariance of a random walk with a drift, whose clock runs as the rarity of events at this speed."""
    clock = np.expm1(speed * rarity) / speed
    result: Floats = np.minimum(clock[:, None], clock) + TREND_SCALE**2 * np.sqrt(np.outer(clock, clock))
    return result


def _log_likelihoods(observed: Floats, covariances: Floats) -> Floats:
    """Return the Gaussian log-likelihood of the log-ratios under each covariance, up to a constant."""
    factors = np.linalg.cholesky(covariances)
    scores = np.linalg.solve(factors, np.broadcast_to(observed[:, None], (len(factors), len(observed), 1)))[..., 0]
    result: Floats = -0.5 * (scores**2).sum(axis=1) - np.log(np.diagonal(factors, axis1=1, axis2=2)).sum(axis=1)
    return result


def _posterior_under_prior(observed: Floats, noise: Floats, prior: Floats) -> tuple[Floats, Floats]:
    """Return the posterior means of the log-ratios and their standard errors, under a Gaussian prior."""
    gain = np.linalg.solve(prior + noise, prior)
    variance = np.diag(prior) - np.einsum("ij,ij->j", prior, gain)
    return observed @ gain, np.sqrt(np.maximum(variance, 0.0))
