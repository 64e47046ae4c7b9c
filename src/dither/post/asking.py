"""From a plan to requests, and from releases to estimates: the arithmetic around the one door."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from dither.access.context import Context
from dither.access.measure import Clipped, Measure, PartitionCounts
from dither.access.relation import autos, fill
from dither.errors import InvalidParameter, Unsupported
from dither.loss import ZCDP, Approximate, Loss, Pure, Rational, Sensitivity, rational
from dither.post.bounds import FIND_SHARE, Found, found
from dither.post.intervals import Banded, Measured, Source
from dither.post.laws import Floats, Law
from dither.post.plan import Plan, Ranking, Reading, Search
from dither.post.quantiles import quantile
from dither.privacy.mechanisms import DiscreteGaussian, DiscreteLaplace, Mechanism, calibrate
from dither.wire import AutoBound, Calibrate, Part, ReleasedPart, Request, Tradeoff

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

    def noise(self, fraction: Fraction) -> float:
        """The standard deviation that a part of it brings to a cell, for each step that one unit may move it."""
        share = float(self.amount * fraction)
        return math.sqrt(2) / share if isinstance(self.loss, Pure) else 1 / math.sqrt(2 * share)

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


def searches(plan: Plan, budget: Spend, context: Context) -> tuple[AutoBound, ...]:
    """How each bound of a plan is found, in the same charge: a histogram of contributions, and a rule to read it."""
    loss = budget.share(FIND_SHARE / max(1, len(plan.searches)))
    return tuple(_searched(plan, search, budget, loss, context) for search in plan.searches)


def _searched(plan: Plan, search: Search, budget: Spend, loss: Loss, context: Context) -> AutoBound:
    shares = [piece.share for piece in plan.pieces if search.tag in {auto.tag for auto in autos(piece.measure)}]
    noise = budget.noise((1 - finding_share(plan)) * max(shares, default=Fraction(1)))
    rule = Tradeoff(search.points, rational(f"{noise:.6g}"), search.cells, search.row)
    finder = Calibrate(kind(context, search.measure, plan.unit, loss), loss)
    return AutoBound(search.measure, finder, search.grid, search.tag, rule)


def answer_parts(plan: Plan, budget: Spend, context: Context) -> tuple[Part, ...]:
    """The pieces with what is left of the loss; their bounds are still to be found."""
    left, widest = 1 - finding_share(plan), {search.tag: search.grid[-1] for search in plan.searches}
    parts = []
    for piece in plan.pieces:
        loss = budget.share(left * piece.share)
        noise = kind(context, fill(piece.measure, widest), plan.unit, loss)
        parts.append(Part(piece.measure, Calibrate(noise, loss)))
    return tuple(parts)


def filled(parts: Sequence[Part], bounds: Mapping[str, int]) -> tuple[Part, ...]:
    """Parts as they are once their bounds are known."""
    return tuple(Part(fill(part.measure, bounds), part.mechanism) for part in parts) if bounds else tuple(parts)


def mechanism_of(part: Part, sensitivity: Sensitivity) -> Mechanism:
    """The mechanism that a part will be released by."""
    if isinstance(part.mechanism, Calibrate):
        return calibrate(part.mechanism.kind, part.mechanism.loss, sensitivity)
    return part.mechanism


def find(search: Search, released: ReleasedPart, bound: int) -> Found:
    """A bound that was found, with what it keeps and removes."""
    return found(bound, search.points, np.array(released.values, float), released.mechanism.std(), search.row)


def guess(search: Search) -> int:
    """A bound for quotes, where none has been found: sixteen rows' worth."""
    return min(TYPICAL_ROWS * search.row, search.grid[-1])


def request(
    dataset: str,
    unit: str,
    parts: Sequence[Part],
    bounds: Sequence[AutoBound] = (),
    request_id: str = "",
    draw: int = 0,
) -> Request:
    """Bounds to be found and parts to be answered as one request in one charge."""
    return Request(dataset, tuple(parts), tuple(bounds) or None, unit=unit, request_id=request_id, draw=draw)


def sources(
    plan: Plan, released: Sequence[ReleasedPart], bounds: Mapping[str, Found], confidence: float
) -> list[Source]:
    """The columns that the recipe reads, from what was released."""
    return [_source(source, released, bounds, confidence) for source in plan.sources]


def _source(
    source: Reading | Ranking, released: Sequence[ReleasedPart], bounds: Mapping[str, Found], confidence: float
) -> Source:
    part = released[source.piece]
    if isinstance(source, Ranking):
        counts = np.array(part.values, float).reshape(-1, len(source.bins.low))
        return quantile(counts, law(part.mechanism, part.steps[0]), source.bins, source.wanted, confidence)
    step = part.steps[source.value] / source.factor
    table = np.array(part.values, float).reshape(-1, len(part.steps))
    values, noise = table[:, source.value] * float(step), law(part.mechanism, step)
    bound = bounds.get(source.clipped or "")
    whole = np.abs(table).sum(axis=1)
    found = (
        Measured(values, noise)
        if bound is None
        else clipped(values, noise, whole, bound, source.signed, float(source.worth or step))
    )
    return replace(found, least=found.least - source.slack, most=found.most + source.slack) if source.slack else found


def clipped(values: Floats, noise: Law, mass: Floats, bound: Found, signed: bool, worth: float) -> Measured:
    """What clipping removed: the same share everywhere is the estimate; `worth` is what a unit of mass stands for.

    Which cells lost how much is not known: see `Found.most`. Of signed sums, either sign may be missing.
    """
    blur = 2 * noise.std / worth
    most = worth * bound.most((mass + blur) / (mass.sum() + blur))
    least = -most if signed else np.zeros_like(most)
    return Measured(values, noise, np.clip(bound.inflation * values, least, most), least, most)


def banded(source: Source) -> bool:
    """Whether a source was chosen, not measured with noise."""
    return isinstance(source, Banded)
