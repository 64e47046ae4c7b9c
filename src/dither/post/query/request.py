"""Build the measurements and bound searches of a request from a plan and the loss that it may spend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from dither.loss import ZCDP, Approximate, Loss, Pure, Sensitivity, rational
from dither.plan.context import Context
from dither.plan.measures.clipped import ClippedSums
from dither.plan.measures.core import Measure
from dither.plan.measures.partitions import PartitionCounts
from dither.plan.traversal import fill_limits, unfilled_limits
from dither.post.noise import noise_of
from dither.post.query.query_plan import CentreSearch, ContributionSearch, QueryPlan
from dither.post.query.spend import Spend
from dither.privacy.mechanisms import Mechanism, calibrate
from dither.privacy.protocol import BoundRule, BoundSearch, Calibrate, Measurement

TYPICAL_ROWS = 16
# Bounds that would need more noise than this are no candidates; kernels refuse noise a few times as large.
LARGEST_NOISE = 1 << 38
LAPLACE, GAUSSIAN = "discrete_laplace", "discrete_gaussian"


def noise_kind(context: Context, measure: Measure, unit: str, loss: Loss) -> str:
    """Choose the kind of noise: of those that the loss allows, the one with the smallest variance."""
    if not isinstance(loss, ZCDP):
        return LAPLACE
    if isinstance(measure, ClippedSums) and measure.norm == "l2":
        return GAUSSIAN
    sensitivity = measure.sensitivity(context, unit)
    return min((GAUSSIAN, LAPLACE), key=lambda name: noise_of(calibrate(name, loss, sensitivity), Fraction(1)).variance)


def selection_measurement(measure: PartitionCounts, budget: Spend, fraction: Fraction, delta: Fraction) -> Measurement:
    """Build the measurement that selects the keys that enough units have, for a fraction of the loss and `delta`."""
    share = budget.share(fraction)
    if isinstance(share, Pure):
        return Measurement(measure, Calibrate("laplace_threshold", Approximate(share.epsilon, delta)))
    return Measurement(measure, Calibrate("gaussian_threshold", ZCDP(share.rho, delta)))


def search_share(plan: QueryPlan) -> Fraction:
    """The fraction of the loss that choosing bounds and centres takes."""
    return sum((search.share for search in plan.searches), Fraction(0))


def bound_searches(plan: QueryPlan, budget: Spend, context: Context) -> tuple[BoundSearch, ...]:
    """Build the searches of a plan's bounds and centres."""
    return tuple(_bound_search(plan, search, budget, context) for search in plan.searches)


def _bound_search(
    plan: QueryPlan, search: CentreSearch | ContributionSearch, budget: Spend, context: Context
) -> BoundSearch:
    """Build a search: a private median of the units' means, or a noisy histogram and the rule that reads it."""
    loss = budget.share(search.share)
    if isinstance(search, CentreSearch):
        return BoundSearch(search.measure, Calibrate("quantiles", loss), search.candidates, search.tag)
    shares = [
        planned.share
        for planned in plan.measures
        if search.tag in {limit.tag for limit in unfilled_limits(planned.measure)}
    ]
    noise = budget.noise((1 - search_share(plan)) * max(shares, default=Fraction(1)))
    rule = BoundRule(search.edges, rational(f"{noise:.6g}"), search.cells, search.row_size, search.step, search.signed)
    mechanism = Calibrate(noise_kind(context, search.measure, plan.unit, loss), loss)
    affordable = tuple(bound for bound in search.candidates if noise * bound <= LARGEST_NOISE)
    return BoundSearch(search.measure, mechanism, affordable or search.candidates[:1], search.tag, rule)


def answer_measurements(plan: QueryPlan, budget: Spend, context: Context) -> tuple[Measurement, ...]:
    """Build a plan's measurements from the rest of the loss; their bounds are still to be chosen."""
    rest, largest_bounds = 1 - search_share(plan), {search.tag: search.candidates[-1] for search in plan.searches}
    measurements = []
    for planned in plan.measures:
        loss = budget.share(rest * planned.share)
        noise = noise_kind(context, fill_limits(planned.measure, largest_bounds), plan.unit, loss)
        measurements.append(Measurement(planned.measure, Calibrate(noise, loss)))
    return tuple(measurements)


def with_known_bounds(parts: Sequence[Measurement], bounds: Mapping[str, int]) -> tuple[Measurement, ...]:
    """Fill in the bounds of measurements, by tag."""
    if not bounds:
        return tuple(parts)
    return tuple(Measurement(fill_limits(part.measure, bounds), part.mechanism) for part in parts)


def mechanism_of(part: Measurement, sensitivity: Sensitivity) -> Mechanism:
    """Return the mechanism of a measurement, calibrated to its sensitivity."""
    if isinstance(part.mechanism, Calibrate):
        return calibrate(part.mechanism.kind, part.mechanism.loss, sensitivity)
    return part.mechanism


def default_bound(search: CentreSearch | ContributionSearch) -> int:
    """Return the bound that quotes assume before one is chosen: sixteen rows; or the middle of a centre's range."""
    if isinstance(search, CentreSearch):
        return search.candidates[len(search.candidates) // 2]
    if len(search.candidates) == 1:
        return search.candidates[0]
    return min(TYPICAL_ROWS * search.row_size, search.candidates[-1])
