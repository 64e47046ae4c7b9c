"""From a plan to requests, and from releases to estimates: the arithmetic around the one door."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from dither.loss import ZCDP, Approximate, Loss, Pure, Sensitivity, rational
from dither.plan.context import Context
from dither.plan.measures.clipped import ClippedSums
from dither.plan.measures.core import Measure
from dither.plan.measures.partitions import PartitionCounts
from dither.plan.traversal import fill_limits, unfilled_limits
from dither.post.contribution_bound import FIND_SHARE
from dither.post.noise import noise_of
from dither.post.query.planner import ContributionSearch, QueryPlan
from dither.post.query.spend import Spend
from dither.privacy.mechanisms import Mechanism, calibrate
from dither.privacy.protocol import BoundRule, BoundSearch, Calibrate, Measurement

TYPICAL_ROWS = 16
LAPLACE, GAUSSIAN = "discrete_laplace", "discrete_gaussian"


def kind(context: Context, measure: Measure, unit: str, loss: Loss) -> str:
    """The kind of noise with the smaller variance among those that the loss allows."""
    if not isinstance(loss, ZCDP):
        return LAPLACE
    if isinstance(measure, ClippedSums) and measure.norm == "l2":
        return GAUSSIAN
    sensitivity = measure.sensitivity(context, unit)
    return min((GAUSSIAN, LAPLACE), key=lambda name: noise_of(calibrate(name, loss, sensitivity), Fraction(1)).variance)


def selection_measurement(measure: PartitionCounts, budget: Spend, fraction: Fraction, delta: Fraction) -> Measurement:
    """Keys that enough units have, named for a part of the loss and `delta`."""
    share = budget.share(fraction)
    if isinstance(share, Pure):
        return Measurement(measure, Calibrate("laplace_threshold", Approximate(share.epsilon, delta)))
    return Measurement(measure, Calibrate("gaussian_threshold", ZCDP(share.rho, delta)))


def finding_share(plan: QueryPlan) -> Fraction:
    """The part of the loss that finds bounds."""
    return FIND_SHARE if plan.searches else Fraction(0)


def bound_searches(plan: QueryPlan, budget: Spend, context: Context) -> tuple[BoundSearch, ...]:
    """How each bound of a plan is found, in the same charge: a histogram of contributions, and a rule to read it."""
    loss = budget.share(FIND_SHARE / max(1, len(plan.searches)))
    return tuple(_searched(plan, search, budget, loss, context) for search in plan.searches)


def _searched(plan: QueryPlan, search: ContributionSearch, budget: Spend, loss: Loss, context: Context) -> BoundSearch:
    shares = [
        piece.share for piece in plan.pieces if search.tag in {auto.tag for auto in unfilled_limits(piece.measure)}
    ]
    noise = budget.noise((1 - finding_share(plan)) * max(shares, default=Fraction(1)))
    rule = BoundRule(search.points, rational(f"{noise:.6g}"), search.cells, search.row)
    finder = Calibrate(kind(context, search.measure, plan.unit, loss), loss)
    return BoundSearch(search.measure, finder, search.grid, search.tag, rule)


def answer_measurements(plan: QueryPlan, budget: Spend, context: Context) -> tuple[Measurement, ...]:
    """The pieces with what is left of the loss; their bounds are still to be found."""
    left, widest = 1 - finding_share(plan), {search.tag: search.grid[-1] for search in plan.searches}
    parts = []
    for piece in plan.pieces:
        loss = budget.share(left * piece.share)
        noise = kind(context, fill_limits(piece.measure, widest), plan.unit, loss)
        parts.append(Measurement(piece.measure, Calibrate(noise, loss)))
    return tuple(parts)


def with_known_bounds(parts: Sequence[Measurement], bounds: Mapping[str, int]) -> tuple[Measurement, ...]:
    """Parts as they are once their bounds are known."""
    return (
        tuple(Measurement(fill_limits(part.measure, bounds), part.mechanism) for part in parts)
        if bounds
        else tuple(parts)
    )


def mechanism_of(part: Measurement, sensitivity: Sensitivity) -> Mechanism:
    """The mechanism that a part will be released by."""
    if isinstance(part.mechanism, Calibrate):
        return calibrate(part.mechanism.kind, part.mechanism.loss, sensitivity)
    return part.mechanism


def default_bound(search: ContributionSearch) -> int:
    """A bound for quotes, where none has been found: sixteen rows' worth."""
    return min(TYPICAL_ROWS * search.row, search.grid[-1])
