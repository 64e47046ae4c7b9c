"""Noisy columns, with their noise and what clipping removed, from released measurements."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from dither.post.estimate.contribution import EstimatedBound, FoundSpan
from dither.post.estimate.intervals import Measured, NoisyColumn
from dither.post.estimate.quantiles import estimate_quantile
from dither.post.noise import Floats, ScaledNoise, noise_of
from dither.post.query.batch import BatchPlan
from dither.post.query.query_plan import CellRef, ContributionSearch, QuantileRef, QueryPlan, bound_text
from dither.privacy.contribution_bound import fit_contributions
from dither.privacy.mechanisms import Mechanism
from dither.privacy.protocol import Release, ReleasedMeasurement

# The sum of all cells is clear if its noise is at most this part of it.
CLEAR_TOTAL = 0.1


@dataclass(frozen=True)
class ChosenBounds:
    """The numbers that the kernel chose for a query, by tag, and the contribution bounds among them."""

    limits: dict[str, int]
    bounds: dict[str, EstimatedBound]


def chosen_bounds(batch: BatchPlan, release: Release) -> dict[int, ChosenBounds]:
    """Return the bounds and centres that the kernel chose for each query of a batch, by the query's position."""
    results: dict[int, ChosenBounds] = {}
    released = iter(zip(release.search_results or (), release.chosen_bounds or (), strict=True))
    for group in batch.groups:
        chosen = ChosenBounds({}, {})
        for search in group.plan.searches:
            histogram, number = next(released)
            chosen.limits[search.tag] = number
            if isinstance(search, ContributionSearch):
                found = estimated_bound(search, histogram.values, histogram.mechanism, number)
                chosen.bounds[search.tag] = with_span(
                    found, search, histogram.values, histogram.mechanism, chosen.limits
                )
        results.update(dict.fromkeys(group.positions, chosen))
    return results


def estimated_bound(
    search: ContributionSearch, values: Sequence[int], mechanism: Mechanism, bound: int
) -> EstimatedBound:
    """Infer from a released histogram what a bound clips."""
    scale = mechanism.std() / math.sqrt(2)
    top, sizes = search.candidates[-1], search.sizes
    model = fit_contributions(search.edges, values, scale, search.step, top, search.row_size, sizes)
    seen = bound_text(round(model.seen), search)
    given = len(search.candidates) == 1
    return EstimatedBound(bound, model, search.signed, bound_text(bound, search), seen, search.row_size, given)


def with_span(
    bound: EstimatedBound,
    search: ContributionSearch,
    values: Sequence[int],
    mechanism: Mechanism,
    limits: Mapping[str, int],
) -> EstimatedBound:
    """Return a bound with the span that its search found around a private median, or the tag of what it squares."""
    span = search.span
    if span is None or search.quantity is None:
        return bound
    if span.anchor is None:
        return replace(bound, squares_of=span.squares_of.tag if span.squares_of is not None else "")
    low, high, step = span.anchor.lo, span.anchor.hi, float(span.anchor.step)
    found = FoundSpan(
        np.array(search.edges, float) * float(search.quantity),
        np.array(values, float),
        mechanism.std() / math.sqrt(2),
        low * step,
        high * step,
        (low + limits[span.anchor.tag] - 1) * step,
        bound.bound * float(span.half.step),
    )
    return replace(bound, span=found)


def measured_columns(
    plan: QueryPlan, released: Sequence[ReleasedMeasurement], bounds: Mapping[str, EstimatedBound], confidence: float
) -> list[NoisyColumn]:
    """Build the noisy columns that a plan's formulas read."""
    every_key = plan.selected is None
    return [_noisy_column(source, plan.sources, released, bounds, confidence, every_key) for source in plan.sources]


def _noisy_column(
    source: CellRef | QuantileRef,
    sources: Sequence[CellRef | QuantileRef],
    released: Sequence[ReleasedMeasurement],
    bounds: Mapping[str, EstimatedBound],
    confidence: float,
    every_key: bool,
) -> NoisyColumn:
    part = released[source.measure_index]
    if isinstance(source, QuantileRef):
        counts = np.array(part.values, float).reshape(-1, len(source.bins.low))
        return estimate_quantile(counts, noise_of(part.mechanism, part.steps[0]), source.bins, source.level, confidence)
    step = part.steps[source.value_index] / source.factor
    table = np.array(part.values, float).reshape(-1, len(part.steps))
    values, noise = table[:, source.value_index] * float(step), noise_of(part.mechanism, step)
    bound = bounds.get(source.bound_tag or "")
    least = -math.inf if source.signed else 0.0
    if bound is None:
        most = math.inf if source.most is None else source.most
        return Measured(values, noise, rounding=source.rounding_error, most=most, least=least)
    per_step, rounded = float(source.quantity_per_step or step), np.zeros(1)
    sizes = sources[source.size_index] if source.size_index is not None else None
    if isinstance(sizes, CellRef):
        rows = np.array(released[sizes.measure_index].values, float).reshape(
            -1, len(released[sizes.measure_index].steps)
        )
        share = cell_shares(rows[:, sizes.value_index], rows[:, sizes.value_index].sum(), 1.0)
        rounded = source.row_rounding * np.maximum(rows[:, sizes.value_index] / sizes.factor, 0.0)
    else:
        total = clipped_total(table, noise_of(part.mechanism, Fraction(1)).std, bound, every_key)
        share = cell_shares(table[:, source.value_index], total, float(bound.bound))
    column = clipped_column(values, noise, share, bound, per_step, confidence)
    if source.is_unclipped:
        column = replace(column, missing=0.0, less=np.zeros(1), more=np.zeros(1))
    if source.row_rounding:
        column = replace(column, less=np.hypot(column.less, rounded), more=np.hypot(column.more, rounded))
    return replace(column, rounding=source.rounding_error, least=least)


def clipped_total(values: Floats, noise: float, bound: EstimatedBound, every_key: bool = True) -> float:
    """Return the sum of all cells, of which each has noise of this standard deviation, in steps of the bound.

    Where noise hides it, as with very many cells, or where cells are left out, the search knows it better.
    """
    if bound.signed or values.size == 1:
        return float(np.abs(values).sum())
    total = float(values.sum())
    clear = every_key and noise * math.sqrt(values.size) <= CLEAR_TOTAL * total
    return total if clear else bound.kept


def cell_shares(values: Floats, total: float, least: float) -> Floats:
    """Return the shares of cells in a total, which is at least `least`; noise makes some of them negative."""
    return np.clip(values / max(total, least), -1, 1)


def clipped_column(
    values: Floats, noise: ScaledNoise, share: Floats, bound: EstimatedBound, per_step: float, confidence: float
) -> Measured:
    """Build a column with an estimate of what clipping removed; `per_step` is the quantity of one step of the bound."""
    middle, less, more = (per_step * part for part in bound.missing(share, confidence))
    return Measured(values, noise, middle, less, more)
