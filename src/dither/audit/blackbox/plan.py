"""The parameters of one audit, and the division of its samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, log10
from typing import Any

import numpy as np

from dither.audit.blackbox.explain import FloatLeak
from dither.audit.blackbox.power import AuditPower
from dither.audit.blackbox.report import Evidence
from dither.audit.blackbox.search import CandidateEvent
from dither.audit.blackbox.sweep import Sweep
from dither.audit.confidence import Counts, clopper_pearson
from dither.audit.neighbours import Pair, step_count
from dither.audit.sampling import OutputSampler
from dither.loss import Loss

Progress = Callable[[str, int, int], None]

# The search's share of ten million samples, for one pair and for several; True if each output is a single number.
# Longer outputs need more, since there is more to learn.
SEARCH_SHARES = {True: (0.10, 0.22), False: (0.20, 0.44)}
# Longer outputs need fewer samples, by this factor, if some inputs are several steps apart and so differ more.
DISTANT_FACTOR = 0.7
# The share of each round in the search's samples: all pairs, the better half, the best two, the best one.
ROUND_SHARES = {True: (0.33, 0.22, 0.22, 0.23), False: (0.23, 0.27, 0.20, 0.30)}
MIN_RUNS = 50


@dataclass(frozen=True)
class AuditPlan:
    """The parameters of one audit, and the division of its samples in fixed mode.

    `narrow` means that each output is a single number. `sweep` says which pairs were tried before the search, if any.
    """

    sampler: OutputSampler
    claim: Loss
    pairs: tuple[Pair, ...]
    samples: int
    alpha: float
    rng: np.random.Generator
    progress: Progress
    bits: bool = True
    sweep: Sweep | None = None

    @property
    def swept(self) -> int:
        """The samples that a sweep has used."""
        return self.sweep.samples if self.sweep else 0

    def draw_pairs(self, pairs: Sequence[Pair], budget: int) -> list[tuple[Any, Any]]:
        """Draw outputs of every pair; an input shared by several pairs is run once, unless times are compared."""
        if self.sampler.timed:
            runs = max(MIN_RUNS, budget // (2 * len(pairs)))
            return [self.sampler.draw_pair(*pair, (runs, runs), self.rng) for pair in pairs]
        inputs = {id(value): value for pair in pairs for value in pair}
        runs = max(MIN_RUNS, budget // len(inputs))
        outputs = {key: self.sampler.draw(value, runs) for key, value in inputs.items()}
        return [(outputs[id(pair[0])], outputs[id(pair[1])]) for pair in pairs]

    def search_share(self, narrow: bool) -> float:
        """Return the share of the samples that the search may use; it grows as the samples get fewer."""
        share = SEARCH_SHARES[narrow][len(self.pairs) > 1] + 0.10 * log10(10_000_000 / self.samples)
        share *= DISTANT_FACTOR if not narrow and any(step_count(pair) > 1 for pair in self.pairs) else 1
        return min(0.5, max(0.1, share))

    def rounds(self, narrow: bool) -> tuple[tuple[int, int], ...]:
        """Return the number of pairs and the total number of runs of each round of the search."""
        budget, pairs = self.search_share(narrow) * self.samples, len(self.pairs)
        if pairs == 1:
            return ((1, int(budget)),)
        widths = (pairs, max(2, ceil(pairs / 2)), 2, 1)
        return tuple((width, int(share * budget)) for width, share in zip(widths, ROUND_SHARES[narrow], strict=True))


def make_evidence(
    pair: Pair,
    candidate: CandidateEvent,
    counts: Counts,
    p: float,
    alpha: float,
    examples: tuple[str, ...] = (),
    leak: FloatLeak | None = None,
) -> Evidence:
    """Build the evidence to show from the counts; omit the examples if a person can check the event by hand."""
    a, b = (pair[1], pair[0]) if candidate.swapped else pair
    bounds_a = clopper_pearson(counts.hits_a, counts.runs_a, alpha)
    bounds_b = clopper_pearson(counts.hits_b, counts.runs_b, alpha)
    shares = counts.hits_a / counts.runs_a, counts.hits_b / counts.runs_b
    hits, runs = (counts.hits_a, counts.hits_b), (counts.runs_a, counts.runs_b)
    shown = () if candidate.checkable_by_hand else examples
    return Evidence(
        a, b, candidate.event, shares[0], bounds_a, shares[1], bounds_b, p, hits, runs, shown, step_count(pair),
        counts.levels, leak if candidate.event.reads_bits else None,
    )  # fmt: skip


def make_power(plan: AuditPlan, pair: Pair, counts: Counts, samples: int) -> AuditPower:
    """Build the power of an audit from the counts of the event that it judged, or of one of probability a half.

    Commoner events seldom have the largest ratio: most of their outputs are about as likely on the other input.
    """
    certain = counts.hits_a == counts.runs_a and counts.hits_b == counts.runs_b
    share = min(max(counts.hits_a, 0.5) / counts.runs_a, 0.5)
    return AuditPower(
        plan.claim, plan.alpha, 1.0 if certain else share, (counts.runs_a, counts.runs_b), samples, step_count(pair)
    )
