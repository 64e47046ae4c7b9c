"""Who is audited, for what, and with how much."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, log10

import numpy as np

from dither.audit.blackbox.report import Evidence
from dither.audit.blackbox.search import Lead
from dither.audit.confidence import Counts, clopper_pearson
from dither.audit.neighbours import Pair, steps
from dither.audit.sampling import OutputSampler
from dither.loss import Loss

Progress = Callable[[str, int, int], None]

# Of ten million samples, those of the search: of one pair and of several, whose outputs are one number, or more than
# that, of which there is more to learn. And how they are divided among the rounds: all pairs, the better half, the best
# two, the best one.
SEARCHING = {True: (0.10, 0.22), False: (0.20, 0.44)}
# Of longer outputs less is needed, by this factor, where inputs are several steps apart and so differ the more.
APART = 0.7
ROUNDS = {True: (0.33, 0.22, 0.22, 0.23), False: (0.23, 0.27, 0.20, 0.30)}
FEWEST_RUNS = 50


@dataclass(frozen=True)
class AuditPlan:
    """One audit, and how its samples are divided in fixed mode."""

    source: OutputSampler
    claim: Loss
    pairs: tuple[Pair, ...]
    samples: int
    alpha: float
    rng: np.random.Generator
    progress: Progress
    bits: bool = True

    def searching(self, narrow: bool) -> float:
        """The share of the samples that the search may use: the fewer there are, the more it needs."""
        share = SEARCHING[narrow][len(self.pairs) > 1] + 0.10 * log10(10_000_000 / self.samples)
        share *= APART if not narrow and any(steps(pair) > 1 for pair in self.pairs) else 1
        return min(0.5, max(0.1, share))

    def rounds(self, narrow: bool) -> tuple[tuple[int, int], ...]:
        """How many pairs take part in each round of the search, and how many runs it may use in all."""
        budget, pairs = self.searching(narrow) * self.samples, len(self.pairs)
        if pairs == 1:
            return ((1, int(budget)),)
        widths = (pairs, max(2, ceil(pairs / 2)), 2, 1)
        return tuple((width, int(share * budget)) for width, share in zip(widths, ROUNDS[narrow], strict=True))


def evidence(
    pair: Pair, lead: Lead, counts: Counts, p: float, alpha: float, examples: tuple[str, ...] = ()
) -> Evidence:
    """The counts as evidence for people; with examples, unless the event is told in words."""
    a, b = (pair[1], pair[0]) if lead.swapped else pair
    bounds_a = clopper_pearson(counts.hits_a, counts.runs_a, alpha)
    bounds_b = clopper_pearson(counts.hits_b, counts.runs_b, alpha)
    shares = counts.hits_a / counts.runs_a, counts.hits_b / counts.runs_b
    hits, runs = (counts.hits_a, counts.hits_b), (counts.runs_a, counts.runs_b)
    told = () if lead.plain else examples
    return Evidence(
        a, b, lead.event, shares[0], bounds_a, shares[1], bounds_b, p, hits, runs, told, steps(pair),
        counts.levels,
    )  # fmt: skip
