"""From a plan to requests, and from releases to estimates: the arithmetic around the one door."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from dither.loss import ZCDP, Approximate, Loss, Pure, Sensitivity, rational
from dither.plan.context import Context
from dither.plan.measures.clipped import Clipped
from dither.plan.measures.core import Measure
from dither.plan.measures.partitions import PartitionCounts
from dither.plan.traversal import autos, fill
from dither.post.contribution_bound import FIND_SHARE
from dither.post.noise import law
from dither.post.query.planner import Plan, Search
from dither.post.query.spend import Spend
from dither.privacy.mechanisms import Mechanism, calibrate
from dither.privacy.protocol import AutoBound, Calibrate, Part, Request, Tradeoff

TYPICAL_ROWS = 16
LAPLACE, GAUSSIAN = "discrete_laplace", "discrete_gaussian"


def kind(context: Context, measure: Measure, unit: str, loss: Loss) -> str:
    """The kind of noise with the smaller variance among those that the loss allows."""
    if not isinstance(loss, ZCDP):
        return LAPLACE
    if isinstance(measure, Clipped) and measure.norm == "l2":
        return GAUSSIAN
    sensitivity = measure.sensitivity(context, unit)
    return min((GAUSSIAN, LAPLACE), key=lambda name: law(calibrate(name, loss, sensitivity), Fraction(1)).variance)


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
