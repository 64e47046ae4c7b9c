"""A reference model, fitted to all outputs, that estimates the log-ratio of any event.

Among many scores, some rare event always looks good by luck. A model with few parameters estimates rare outputs better
than their counts do, because it learns from the common ones, and its covariance gives the error. Events selected by a
score from one half of the outputs are estimated by the model fitted to the other half, which that luck does not affect.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import special

from dither.audit.blackbox.belief import BeliefChain, Posterior
from dither.audit.blackbox.events import Encoded, SampleTable, Score
from dither.audit.claims import Floats

Sums = tuple[Floats, Floats, Floats]
MAX_STEPS = 20


@dataclass(frozen=True)
class ReferenceModel:
    """A model fitted to the whole sample and to each half of it."""

    sample: SampleTable
    halves: tuple[SampleTable, SampleTable]
    model: Score
    half_models: tuple[Score, Score]

    def posterior_of(
        self, score: Score, half_scores: tuple[Score, Score] | None, chain: BeliefChain, above: bool
    ) -> Posterior:
        """Estimate the log-ratio of each event of a chain.

        Events of a learned score are those of its two half scores, each on the half that did not teach it; events of
        other scores are on all outputs.
        """
        if half_scores is None or chain.ranks is None:
            sums = [self._views[2].event_sums(score, chain.thresholds, above, by_rank=False)]
        else:
            views = zip(self._views, reversed(half_scores), strict=False)
            sums = [view.event_sums(other, chain.ranks, above, by_rank=True) for view, other in views]
        of_first, total = (np.sum([each[part] for each in sums], axis=0) for part in (0, 1))
        first, second = len(self.sample.a), len(self.sample.b)
        log_ratio = np.log((of_first + 0.5) / (first + 1)) - np.log((total - of_first + 0.5) / (second + 1))
        rows = np.concatenate([each[2] for each in sums], axis=1)
        return Posterior(log_ratio, rows / np.maximum(total, 1)[:, None])

    @cached_property
    def _views(self) -> list[_ModelView]:
        """The views of each half and of the whole sample."""
        models = zip((*self.halves, self.sample), (*self.half_models, self.model), strict=True)
        return [_ModelView.of(sample, model) for sample, model in models]


@dataclass(frozen=True)
class _ModelView:
    """Outputs of both inputs, the model fitted to them, and its probability that each output is of the first input."""

    sides: tuple[Encoded, Encoded]
    model: Score
    chances: tuple[Floats, Floats]

    @classmethod
    def of(cls, sample: SampleTable, model: Score) -> _ModelView:
        sides = sample.a, sample.b
        a, b = _first_input_chances([model.evaluate(side) for side in sides], len(sample.a))
        return cls(sides, model, (a, b))

    def event_sums(self, score: Score, cuts: Floats, above: bool, by_rank: bool) -> Sums:
        """Return, for each event, the expected outputs of the first input, all its outputs, and covariance rows.

        An event is the outputs whose score is at or beyond a cut; with `by_rank`, cuts are ranks from 0 to 1.
        """
        values = [score.evaluate(side) for side in self.sides]
        cuts = _values_at_ranks(values, cuts, above) if by_rank else cuts
        order, count = np.argsort(cuts, kind="stable"), len(cuts) + 1
        bins = [np.searchsorted(cuts[order], side, side="right" if above else "left") for side in values]
        of_first = np.sum(
            [np.bincount(codes, chances, minlength=count) for codes, chances in zip(bins, self.chances, strict=True)],
            axis=0,
        )
        total = np.sum([np.bincount(codes, minlength=count) for codes in bins], axis=0)
        rows = np.sum(
            [self.model.covariance_rows(side, codes, count) for side, codes in zip(self.sides, bins, strict=True)],
            axis=0,
        )
        back = np.argsort(order, kind="stable")
        of_first, total, rows = (_cumulate(part, above)[back] for part in (of_first, total, rows))
        return of_first, total, rows


def _first_input_chances(scores: list[Floats], first: int) -> list[Floats]:
    """Return the probability that each output is of the first input.

    It is the logistic function of the score plus a shift, chosen so that the probabilities sum to `first`.
    """
    shift = float(np.log(first / len(scores[1])))
    for _ in range(MAX_STEPS):
        chances = [special.expit(side + shift) for side in scores]
        excess = sum(float(side.sum()) for side in chances) - first
        if abs(excess) < 1e-6 * first:
            break
        slope = sum(float((side * (1 - side)).sum()) for side in chances)
        shift -= float(np.clip(excess / max(slope, 1e-9), -1, 1))  # the slope vanishes where all scores are extreme
    return chances


def _cumulate(part: Floats, above: bool) -> Floats:
    """Sum the bins at or beyond each cut."""
    return np.cumsum(part[::-1], axis=0)[::-1][1:] if above else np.cumsum(part, axis=0)[:-1]


def _values_at_ranks(values: list[Floats], ranks: Floats, above: bool) -> Floats:
    """Return values that cut off the outputs at or beyond these ranks; equal values share their middle rank."""
    ordered = np.sort(np.concatenate(values))
    starts = np.flatnonzero(np.concatenate([[True], np.diff(ordered) > 0]))
    ends = np.append(starts[1:], len(ordered))
    middle, distinct = (starts + ends) / (2 * len(ordered)), ordered[starts]
    if above:
        return np.append(distinct, np.inf)[np.searchsorted(middle, ranks, side="left")]
    return np.append(-np.inf, distinct)[np.searchsorted(middle, ranks, side="right")]
