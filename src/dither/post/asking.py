"""From a plan to requests, and from releases to estimates: the arithmetic around the one door."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from dither.access.context import Context
from dither.access.measure import Clipped, Measure, PartitionCounts
from dither.access.relation import fill
from dither.errors import InvalidParameter, Unsupported
from dither.loss import ZCDP, Approximate, Loss, Pure, Rational, Sensitivity, rational
from dither.post.bounds import FIND_SHARE, Found, choose, tail
from dither.post.intervals import Banded, Measured, Source
from dither.post.laws import Floats, Law
from dither.post.plan import Plan, Ranking, Reading, Search
from dither.post.quantiles import quantile
from dither.privacy.mechanisms import DiscreteGaussian, DiscreteLaplace, Mechanism, calibrate
from dither.wire import Calibrate, Part, ReleasedPart, Request

TYPICAL_ROWS = 16
LAPLACE, GAUSSIAN = "discrete_laplace", "discrete_gaussian"


@dataclass(frozen=True)
class Spend:
    """What a question may cost: a pure loss, or one in rho."""

    loss: Pure | ZCDP

    @property
    def amount(self) -> Fraction:
        """Epsilon or rho."""
        return self.loss.epsilon if isinstance(self.loss, Pure) else self.loss.rho

    def share(self, fraction: Fraction) -> Pure | ZCDP:
        """A part of it; shares that add up to one add up to all of it, exactly."""
        return Pure(self.loss.epsilon * fraction) if isinstance(self.loss, Pure) else ZCDP(self.loss.rho * fraction)

    def epsilon(self, fraction: Fraction) -> float:
        """The part as an epsilon of the same noise, for choosing bounds."""
        share = self.amount * fraction
        return float(share) if isinstance(self.loss, Pure) else math.sqrt(2 * float(share))

    @property
    def gaussian(self) -> bool:
        """Whether Gaussian noise is allowed: a pure loss has none."""
        return isinstance(self.loss, ZCDP)


def spend(epsilon: Rational | None, rho: Rational | None) -> Spend:
    """What `epsilon=` or `rho=` mean; one of them."""
    if (epsilon is None) == (rho is None):
        raise InvalidParameter("give epsilon= or rho= (or within=), and only one of them")
    loss = Pure(rational(epsilon, "epsilon")) if epsilon is not None else ZCDP(rational(rho or 0, "rho"))
    amount = loss.epsilon if isinstance(loss, Pure) else loss.rho
    if amount <= 0:
        raise InvalidParameter("a question that depends on data costs more than 0")
    return Spend(loss)


def kind(context: Context, measure: Measure, unit: str, loss: Loss) -> str:
    """The kind of noise with the smaller variance among those that the loss allows."""
    if not isinstance(loss, ZCDP):
        return LAPLACE
    if isinstance(measure, Clipped) and measure.norm == "l2":
        return GAUSSIAN
    sensitivity = measure.sensitivity(context, unit)
    return min((GAUSSIAN, LAPLACE), key=lambda name: law(calibrate(name, loss, sensitivity), Fraction(1)).variance)


def law(mechanism: Mechanism, step: Fraction) -> Law:
    """The law of the noise that a mechanism adds, in the quantity's own unit."""
    match mechanism:
        case DiscreteLaplace(scale):
            return Law("laplace", float(scale), float(step))
        case DiscreteGaussian(variance):
            return Law("gaussian", math.sqrt(variance), float(step))
        case _:
            raise Unsupported(f"{mechanism.name} does not add noise of one law to every cell")


def selection_part(measure: PartitionCounts, budget: Spend, fraction: Fraction, delta: Fraction) -> Part:
    """Keys that enough units have, named for a part of the loss and `delta`."""
    share = budget.share(fraction)
    if isinstance(share, Pure):
        return Part(measure, Calibrate("laplace_threshold", Approximate(share.epsilon, delta)))
    return Part(measure, Calibrate("gaussian_threshold", ZCDP(share.rho, delta)))


def finding_share(plan: Plan) -> Fraction:
    """The part of the loss that finds bounds."""
    return FIND_SHARE if plan.searches else Fraction(0)


def search_parts(plan: Plan, budget: Spend, context: Context) -> tuple[Part, ...]:
    """One histogram of contributions for each bound to be found."""
    if not plan.searches:
        return ()
    loss = budget.share(FIND_SHARE / len(plan.searches))
    return tuple(
        Part(search.measure, Calibrate(kind(context, search.measure, plan.unit, loss), loss))
        for search in plan.searches
    )


def answer_parts(plan: Plan, budget: Spend, context: Context, found: Mapping[str, int]) -> tuple[Part, ...]:
    """The pieces with their bounds filled in, and what is left of the loss."""
    left = 1 - finding_share(plan)
    parts = []
    for piece in plan.pieces:
        measure, loss = fill(piece.measure, found), budget.share(left * piece.share)
        parts.append(Part(measure, Calibrate(kind(context, measure, plan.unit, loss), loss)))
    return tuple(parts)


def mechanism_of(part: Part, sensitivity: Sensitivity) -> Mechanism:
    """The mechanism that a part will be released by."""
    if isinstance(part.mechanism, Calibrate):
        return calibrate(part.mechanism.kind, part.mechanism.loss, sensitivity)
    return part.mechanism


def find(search: Search, released: ReleasedPart, budget: Spend, plan: Plan) -> Found:
    """The bound that suits a noisy histogram of contributions."""
    noise = law(released.mechanism, Fraction(1)).std
    shape = tail(search.points, np.array(released.values, float), noise)
    return choose(shape, budget.epsilon(1 - finding_share(plan)), search.cells)


def guess(search: Search, budget: Spend) -> Found:
    """A bound for quotes, where none has been found: sixteen rows' worth."""
    return Found(min(TYPICAL_ROWS * search.row, search.points[-1]), 0.0, 0.0, 0.0)


def request(dataset: str, unit: str, parts: Sequence[Part], request_id: str = "", draw: int = 0) -> Request:
    """Parts as one request in one charge."""
    return Request(dataset, tuple(parts), unit=unit, request_id=request_id, draw=draw)


def sources(plan: Plan, released: Sequence[ReleasedPart], found: Mapping[str, Found]) -> list[Source]:
    """The columns that the recipe reads, from what was released."""
    return [_source(source, plan, released, found) for source in plan.sources]


def _source(
    source: Reading | Ranking, plan: Plan, released: Sequence[ReleasedPart], found: Mapping[str, Found]
) -> Source:
    part = released[source.piece]
    if isinstance(source, Ranking):
        counts = np.array(part.values, float).reshape(-1, len(source.bins.low))
        return quantile(counts, law(part.mechanism, part.steps[0]), source.bins, source.wanted)
    step = part.steps[source.value] / source.factor
    values = np.array(part.values, float).reshape(-1, len(part.steps))[:, source.value] * float(step)
    noise = law(part.mechanism, step)
    bound = found.get(source.clipped or "")
    return Measured(values, noise) if bound is None else _clipped(source, values, noise, bound)


def _clipped(source: Reading, values: Floats, noise: Law, bound: Found) -> Measured:
    """What clipping removed: the same share everywhere is the estimate; twice the cautious share is allowed for."""
    most = 2 * bound.inflation_high * (np.abs(values) + 2 * noise.std)
    missing = np.clip(bound.inflation * values, -most, most)
    least = -most if source.signed else np.zeros_like(most)
    return Measured(values, noise, missing if source.signed else np.maximum(missing, 0.0), least, most)


def banded(source: Source) -> bool:
    """Whether a source was chosen, not measured with noise."""
    return isinstance(source, Banded)
