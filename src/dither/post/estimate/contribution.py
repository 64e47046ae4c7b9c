"""Contribution bounds that were chosen privately from a noisy histogram, and estimates of what they clip."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import special

from dither.post.noise import Floats
from dither.privacy.contribution_bound import UNEVENNESS, ContributionModel, weighted_sums

# The quantile of squares that stands for how unevenly heavy units spread over cells.
SQUARES_LEVEL = 0.84
# Where noise hides all units, clipping may have removed up to this many times what it left: the model is a guess then.
HIDDEN_SHARE = 1.0
# A tail is heavy if clipping may have removed more than this share of all contributions, and this many times as much as
# estimated.
HEAVY_TAIL, HEAVY_FACTOR = 0.04, 1.5


@dataclass(frozen=True)
class FoundSpan:
    """A span that was found for values of units with one row, and the histogram of lengths in which it was found.

    It lies around `anchor`, moved where it would leave the declared range from `low` to `high`; `half` is half its
    length. There are about `counts` units between the `edges`, with noise of a Laplace scale.
    """

    edges: Floats
    counts: Floats
    scale: float
    low: float
    high: float
    anchor: float
    half: float

    @property
    def shift(self) -> float:
        """The distance from the anchor to the middle of the span: 0, unless the range ends near the anchor."""
        return max(min(self.anchor, self.high - self.half), self.low + self.half) - self.anchor

    @property
    def farthest(self) -> float:
        """The largest distance of a value from the anchor."""
        return max(self.high - self.anchor, self.anchor - self.low)

    def distances(self, lengths: Floats) -> Floats:
        """Return how far from the anchor a value is that needs a span of a length: the farther of two sides."""
        near = min(self.high - self.anchor, self.anchor - self.low)
        return np.where(lengths <= 2 * near, lengths / 2, lengths - near)


@dataclass(frozen=True)
class EstimatedBound:
    """A contribution bound that was chosen privately, and what is inferred about the contributions that it clips.

    Amounts are in steps of the bound. What is removed from a `signed` sum may have either sign. `limit` and `seen`
    describe the most that a unit may add, and the most that stands out from the noise. A row has at most `row_size`.
    A `given` bound was not chosen, but stated by the analyst. The model may count more than contributes (`at_most`):
    then, and where noise hides all units, clipping may have removed anything from nothing on. It may come from a search
    for a `span`, or for one of squares, of which `squares_of` is the tag of the search for the values' span. Proof:
    clipping_intervals.md.
    """

    bound: int
    model: ContributionModel
    signed: bool = False
    limit: str = ""
    seen: str = ""
    row_size: int = 1
    given: bool = False
    at_most: bool = False
    span: FoundSpan | None = None
    squares_of: str = ""

    @cached_property
    def removed_draws(self) -> Floats:
        """The total that clipping removed, in each draw of the model."""
        return self.model.removed_totals(self.bound)

    @property
    def clips_nothing(self) -> bool:
        """True if no unit may contribute more than the bound: it is the cap of the description."""
        return bool(self.bound >= self.model.upper[-1])

    @cached_property
    def kept(self) -> float:
        """The median of what clipping left in all."""
        return float(np.median(weighted_sums(np.maximum(self.model.draws, 0), np.minimum(self.model.mean, self.bound))))

    @property
    def total(self) -> float:
        """The median of all contributions together."""
        return self.model.total()

    @property
    def bin_error(self) -> float:
        """The error of what clipping removed that comes from not knowing where in their bins the units lie."""
        return float(self.model.bin_error(self.bound))

    @property
    def removed_squares(self) -> float:
        """A high quantile of the sum of squares of what each unit loses."""
        return float(self.model.removed_squares(self.bound, SQUARES_LEVEL))

    def levels(self, confidence: float) -> tuple[float, float]:
        """Return the quantiles of what clipping removed to which an interval reaches."""
        return (1 - confidence) / 2, (1 + confidence) / 2

    @property
    def removed(self) -> float:
        """The median of what clipping removed in all."""
        return float(np.median(self.removed_draws))

    @property
    def removed_share(self) -> float:
        """The share of all contributions that clipping removed."""
        return min(self.removed / self.total, 1.0) if self.total > 0 else 0.0

    @property
    def removed_share_high(self) -> float:
        """The share of all contributions that clipping removed at most, with a probability of 97.5%."""
        total, high = self.total, float(np.quantile(self.removed_draws, 0.975))
        return min(high / max(total, high), 1.0) if max(total, high) > 0 else 0.0

    @property
    def heavy_tailed(self) -> bool:
        """True if clipping may have removed much, and far more than is estimated."""
        return self.removed_share_high > max(HEAVY_TAIL, HEAVY_FACTOR * self.removed_share)

    def missing(self, share: Floats, confidence: float) -> tuple[Floats, Floats, Floats]:
        """Return what cells with these shares of the total lack: an estimate, and how much less and more it may be.

        The heavy units that are clipped may spread over the cells otherwise than all others: by half on average, and by
        chance, each being in one cell with the probability `share`. Noise makes some shares negative: their estimates
        are, too, so that those of all cells add up to what is missing in all.
        """
        if self.clips_nothing:
            return (np.zeros_like(share),) * 3
        part, share = share, np.abs(share)
        if self.signed:
            middle = 0.0
            less = more = float(np.quantile(np.abs(self.removed_draws), confidence))
        else:
            least, most = self.levels(confidence)
            low, middle, high = np.quantile(self.removed_draws, [least, 0.5, most])
            from_nothing = self.at_most or not self.model.seen
            less, more = middle - (min(low, 0.0) if from_nothing else low), high - middle
        if not self.model.seen:
            more = max(more, HIDDEN_SHARE * self.kept)
            less = max(less, more) if self.signed else less
        # Two standard deviations at a confidence of 95%, and in proportion elsewhere.
        spread = 2 * _normal_quantile((1 + confidence) / 2) / _normal_quantile(0.975)
        rest = spread**2 * share**2 * self.bin_error**2
        if np.size(share) > 1:
            lean = UNEVENNESS * abs(self.removed)
            rest = rest + spread**2 * (share**2 * lean**2 + share * (1 - share) * self.removed_squares)
        return part * middle, np.sqrt((share * less) ** 2 + rest), np.sqrt((share * more) ** 2 + rest)


def _normal_quantile(level: float) -> float:
    return float(special.ndtri(level))
