"""Bounds that nobody has to guess: found by a private histogram of contributions, with the clipping they cause."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dither.post.noise import Floats
from dither.privacy.contribution_bound import SURE, fit_tail

UNEVEN = 2.0


@dataclass(frozen=True)
class EstimatedBound:
    """A bound, the mass that it keeps and removes, about and at most, and the sum of squares of what units lose.

    So many units (`unseen`) could be far heavier than all others without showing through the noise.
    """

    bound: int
    kept: float
    removed: float
    removed_high: float
    squares: float
    unseen: float

    @property
    def inflation(self) -> float:
        """What was removed, relative to what was kept."""
        return self.removed / self.kept if self.kept > 0 else 0.0

    def most(self, share: Floats) -> Floats:
        """The most that may be missing from cells with these shares of what was kept.

        Heavy units may be twice as common in a cell as elsewhere, and the few heaviest fall where they fall: so many
        standard deviations of a sum over units of which each lies in the cell with a chance of `share`.
        """
        return np.minimum(self.removed_high, UNEVEN * (self.removed_high * share + np.sqrt(self.squares * share)))


def estimate_bound(bound: int, points: tuple[int, ...], noisy: Floats, std: float, row: int = 1) -> EstimatedBound:
    """A bound with what it keeps and removes, from the noisy counts by which it was found."""
    shape = fit_tail(points, noisy, std, row)
    removed = shape.removed(bound)
    most = max(shape.removed_high(bound), removed)
    return EstimatedBound(bound, shape.kept(bound), removed, most, shape.squares(bound), SURE * std)
