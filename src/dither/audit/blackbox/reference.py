"""A reference: what the models that tell most of all outputs say of any event.

Some rare event of some score always looks good by luck. A model of few numbers knows more of rare outputs than is
counted there, since the common ones taught it, and its covariance tells how much. Events that were found on one half
of the outputs are referred to the model that was learned from the other half, which has not seen the luck of the first.
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
MOST_STEPS = 20


@dataclass(frozen=True)
class ReferencePairs:
    """A model learned from the whole sample and from each half of it."""

    sample: SampleTable
    halves: tuple[SampleTable, SampleTable]
    whole: Score
    parts: tuple[Score, Score]

    def says(self, score: Score, taught: tuple[Score, Score] | None, chain: BeliefChain, above: bool) -> Posterior:
        """The log-ratio of each event of a chain: of half-lines over all outputs, or found by scores of each half."""
        if taught is None or chain.places is None:
            found = [self._views[2].beyond(score, chain.thresholds, above, by_place=False)]
        else:
            views = zip(self._views, reversed(taught), strict=False)
            found = [view.beyond(each, chain.places, above, by_place=True) for view, each in views]
        likely, held = (np.sum([each[part] for each in found], axis=0) for part in (0, 1))
        first, second = len(self.sample.a), len(self.sample.b)
        ratio = np.log((likely + 0.5) / (first + 1)) - np.log((held - likely + 0.5) / (second + 1))
        return Posterior(ratio, np.concatenate([each[2] for each in found], axis=1) / np.maximum(held, 1)[:, None])

    @cached_property
    def _views(self) -> list[_View]:
        """Of each half, and of everything."""
        models = zip((*self.halves, self.sample), (*self.parts, self.whole), strict=True)
        return [_View.of(sample, model) for sample, model in models]


@dataclass(frozen=True)
class _View:
    """Outputs of each input, the model that learned from them, and how likely it thinks each is of the first input."""

    sides: tuple[Encoded, Encoded]
    model: Score
    chances: tuple[Floats, Floats]

    @classmethod
    def of(cls, sample: SampleTable, model: Score) -> _View:
        sides = sample.a, sample.b
        a, b = _chances([model.of(side) for side in sides], len(sample.a))
        return cls(sides, model, (a, b))

    def beyond(self, score: Score, cuts: Floats, above: bool, by_place: bool) -> Sums:
        """For each event, how many of its outputs are thought to be of the first input, how many it has, and doubts."""
        values = [score.of(side) for side in self.sides]
        cuts = _values_at(values, cuts, above) if by_place else cuts
        order, count = np.argsort(cuts, kind="stable"), len(cuts) + 1
        bins = [np.searchsorted(cuts[order], each, side="right" if above else "left") for each in values]
        each_side = list(zip(self.sides, bins, self.chances, strict=True))
        likely = np.sum([np.bincount(places, chances, minlength=count) for _, places, chances in each_side], axis=0)
        held = np.sum([np.bincount(places, minlength=count) for places in bins], axis=0)
        doubts = np.sum([self.model.doubts(side, places, count) for side, places, _ in each_side], axis=0)
        back = np.argsort(order, kind="stable")
        likely, held, doubts = (_summed(part, above)[back] for part in (likely, held, doubts))
        return likely, held, doubts


def _chances(scores: list[Floats], first: int) -> list[Floats]:
    """How likely each output is of the first input: by its score and a shift that makes as many as there are."""
    shift = float(np.log(first / len(scores[1])))
    for _ in range(MOST_STEPS):
        chances = [special.expit(each + shift) for each in scores]
        excess = sum(float(each.sum()) for each in chances) - first
        if abs(excess) < 1e-6 * first:
            break
        slope = sum(float((each * (1 - each)).sum()) for each in chances)
        shift -= float(np.clip(excess / max(slope, 1e-9), -1, 1))  # where scores are sure, there is hardly a slope
    return chances


def _summed(part: Floats, above: bool) -> Floats:
    """The bins at or beyond each cut, together."""
    return np.cumsum(part[::-1], axis=0)[::-1][1:] if above else np.cumsum(part, axis=0)[:-1]


def _values_at(values: list[Floats], places: Floats, above: bool) -> Floats:
    """The values at or beyond which outputs lie at or beyond these places among all: equal ones share their middle."""
    ordered = np.sort(np.concatenate(values))
    starts = np.flatnonzero(np.concatenate([[True], np.diff(ordered) > 0]))
    ends = np.append(starts[1:], len(ordered))
    middle, distinct = (starts + ends) / (2 * len(ordered)), ordered[starts]
    if above:
        return np.append(distinct, np.inf)[np.searchsorted(middle, places, side="left")]
    return np.append(-np.inf, distinct)[np.searchsorted(middle, places, side="right")]
