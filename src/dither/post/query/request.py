"""Build the measurements and bound searches of a request from a plan and the loss that it may spend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from dither.loss import ZCDP, Approximate, Loss, Pure, Sensitivity, rational
from dither.plan.context import Context
from dither.plan.measures.clipped import ClippedSums
from dither.plan.measures.core import Measure
from dither.plan.measures.partitions import KeyShares, PartitionCounts
from dither.plan.relations.scan import Scan
from dither.plan.traversal import fill_limits, unfilled_limits, walk
from dither.post.noise import noise_of
from dither.post.query.query_plan import CentreSearch, ContributionSearch, QueryPlan
from dither.post.query.spend import Spend
from dither.privacy.accounting.conversion import epsilon_at, largest_rho
from dither.privacy.mechanisms import Mechanism, calibrate
from dither.privacy.protocol import BoundRule, BoundSearch, Calibrate, KeySelection, Measurement

# The share of the loss that selects keys, and of each round in it; up to FEW_KEYS keys a unit, Laplace noise is better.
SELECTION_SHARE = Fraction(2, 3)
ROUNDS = (Fraction(1, 20), Fraction(19, 20))
FEW_KEYS = 2
MOST_PAIRS = 50_000_000  # of units and keys, which the kernel holds in memory; one round of counts takes less
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


def key_selection(context: Context, measure: KeyShares, spend: Spend, delta: Fraction) -> tuple[KeySelection, Spend]:
    """Build the selection of the keys that enough units have, and return what it leaves of the spend for the answer.

    If a unit has one or two keys only, one threshold with Laplace noise finds the most. Else Gaussian noise does, also
    in the answer: the loss is then counted in rho, and half of `delta` converts it to epsilon. Of two rounds, the first
    cheaply finds the keys that very many have. In large tables, one round counts units in the engine.
    """
    limit, counts = getattr(measure.child, "groups", 1), PartitionCounts(measure.child, measure.keys)
    if isinstance(spend.loss, Pure) and limit <= FEW_KEYS:
        kind = "partition_selection" if limit == 1 else "laplace_threshold"
        wanted = Approximate(spend.share(SELECTION_SHARE).epsilon, delta)  # type: ignore[union-attr]
        return KeySelection((Measurement(counts, Calibrate(kind, wanted)),)), Spend(spend.share(1 - SELECTION_SHARE))
    conversion = delta / 2 if isinstance(spend.loss, Pure) else Fraction(0)
    rho = rho_within(spend.amount, conversion) if isinstance(spend.loss, Pure) else spend.amount
    large = sum(context.noisy_rows(node.table) or 0 for node in walk(measure) if isinstance(node, Scan)) > MOST_PAIRS
    measured, parts = (counts, (Fraction(1),)) if large else (measure, ROUNDS)
    rounds = tuple(
        Measurement(
            measured,
            Calibrate("gaussian_threshold", ZCDP(rho * SELECTION_SHARE * part, (delta - conversion) * part)),
        )
        for part in parts
    )
    return KeySelection(rounds, conversion), Spend(ZCDP(rho * (1 - SELECTION_SHARE)))


def rho_within(epsilon: Fraction, delta: Fraction) -> Fraction:
    """Return a rho, nearly the largest, that the kernel converts to at most this epsilon at this delta."""
    rho = largest_rho(epsilon, delta)
    while epsilon_at(ZCDP(rho), delta) > epsilon:
        rho *= Fraction(999_999, 1_000_000)
    return rho


def search_share(plan: QueryPlan) -> Fraction:
    """The fraction of the loss that choosing bounds and centres takes."""
    return sum((search.share for search in plan.searches), Fraction(0))


def bound_searches(plan: QueryPlan, budget: Spend, context: Context) -> tuple[BoundSearch, ...]:
    """Build the searches of a plan's bounds and centres."""
    return tuple(bound_search(plan, search, budget, context) for search in plan.searches)


def bound_search(
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
    rule = BoundRule(
        search.edges,
        rational(f"{noise:.6g}"),
        search.cells,
        search.row_size,
        search.step,
        search.signed,
        search.sizes,
    )
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
    """Return the bound that quotes assume before one is chosen: a typical one; or the middle of a centre's range."""
    if isinstance(search, CentreSearch):
        return search.candidates[len(search.candidates) // 2]
    if len(search.candidates) == 1:
        return search.candidates[0]
    return min(max(1, round(search.typical_rows * search.row_size)), search.candidates[-1])
