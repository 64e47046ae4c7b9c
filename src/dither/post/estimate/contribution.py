"""Contribution bounds that were chosen privately from a noisy histogram, and estimates of what they clip."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dither.post.noise import Floats
from dither.privacy.contribution_bound import SIGNIFICANT_STDS, fit_tail

# Units above the bound may be this many times as common in a cell as on average.
UNEVENNESS = 2.0


@dataclass(frozen=True)
class EstimatedBound:
    """A contribution bound that was chosen privately, with estimates of what clipping to it keeps and removes.

    Amounts are in steps of the bound: `kept` and `removed` are totals over all units, `removed_high` is an
    upper bound on `removed`, `removed_squares` sums the squares of what each unit loses, and a row has at most
    `row_size`. Up to `unseen_units` units could contribute far more than all others without showing in the noise.
    """

    bound: int
    kept: float
    removed: float
    removed_high: float
    removed_squares: float
    row_size: int
    unseen_units: float

    @property
    def removed_ratio(self) -> float:
        """The total that clipping removed, divided by the total that it kept."""
        return self.removed / self.kept if self.kept > 0 else 0.0

    @property
    def removed_share(self) -> float:
        """The share of all contributions that clipping removed."""
        total = self.kept + self.removed
        return self.removed / total if total > 0 else 0.0

    def most_missing(self, share: Floats) -> Floats:
        """Bound what may be missing from cells with these shares of the kept total.

        Units above the bound may be twice as common in a cell as on average, and a cell's sum over them varies: two
        standard deviations are allowed, where each such unit lies in the cell with probability `share`.
        """
        return np.minimum(
            self.removed_high, UNEVENNESS * (self.removed_high * share + np.sqrt(self.removed_squares * share))
        )


def estimate_bound(bound: int, edges: tuple[int, ...], noisy: Floats, std: float, row_size: int = 1) -> EstimatedBound:
    """Estimate what a bound keeps and removes, from the noisy histogram that it was chosen from."""
    tail = fit_tail(edges, noisy, std, row_size)
    removed = tail.clipped_total(bound)
    removed_high = max(tail.clipped_total_high(bound), removed)
    return EstimatedBound(
        bound,
        tail.retained_total(bound),
        removed,
        removed_high,
        tail.clipped_squares(bound),
        row_size,
        SIGNIFICANT_STDS * std,
    )
