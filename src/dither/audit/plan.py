"""Who is audited, for what, and with how much."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dither.audit.bounds import Counts, clopper_pearson
from dither.audit.neighbours import Pair
from dither.audit.report import Evidence
from dither.audit.sampling import Source
from dither.audit.search import Lead
from dither.loss import Loss

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Plan:
    """One audit, and how its samples are divided in fixed mode."""

    source: Source
    claim: Loss
    pairs: tuple[Pair, ...]
    samples: int
    alpha: float
    rng: np.random.Generator
    progress: Progress
    bits: bool = True

    @property
    def explore(self) -> int:
        """Runs on each input of each pair in the first look."""
        return max(50, min(150_000, int(0.2 * self.samples / (2 * len(self.pairs)))))

    @property
    def train(self) -> int:
        """Runs on each input of each finalist."""
        return max(100, min(600_000, int(0.12 * self.samples / (2 * self.finalists))))

    @property
    def finalists(self) -> int:
        """How many pairs are looked at closely."""
        return min(len(self.pairs), 3)

    @property
    def choose(self) -> int:
        """Runs on each input of each finalist, to choose among its events."""
        share = 0.06 if self.finalists == 1 else 0.16
        return max(50, int(share * self.samples / (2 * self.finalists)))

    @property
    def judge(self) -> int:
        """Runs on each input of the pair that is judged."""
        spent = self.explore * len(self.pairs) + (self.train + self.choose) * self.finalists
        return max(100, self.samples // 2 - spent)

    @property
    def total(self) -> int:
        """All runs of the audit."""
        spent = self.explore * len(self.pairs) + (self.train + self.choose) * self.finalists
        return 2 * (spent + self.judge)


def evidence(pair: Pair, lead: Lead, counts: Counts, p: float, alpha: float) -> Evidence:
    """The counts as evidence for people."""
    a, b = (pair[1], pair[0]) if lead.swapped else pair
    bounds_a = clopper_pearson(counts.hits_a, counts.runs_a, alpha)
    bounds_b = clopper_pearson(counts.hits_b, counts.runs_b, alpha)
    shares = counts.hits_a / counts.runs_a, counts.hits_b / counts.runs_b
    return Evidence(a, b, lead.event, shares[0], bounds_a, shares[1], bounds_b, p)
