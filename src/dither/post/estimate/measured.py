"""Noisy columns, with their noise and what clipping removed, from released measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from dither.post.estimate.contribution import EstimatedBound, estimate_bound
from dither.post.estimate.intervals import Measured, NoisyColumn
from dither.post.estimate.quantiles import estimate_quantile
from dither.post.noise import Floats, ScaledNoise, noise_of
from dither.post.query.batch import BatchPlan
from dither.post.query.planner import CellRef, QuantileRef, QueryPlan
from dither.privacy.protocol import Release, ReleasedMeasurement


def estimated_bounds(batch: BatchPlan, release: Release) -> dict[int, dict[str, EstimatedBound]]:
    """Return the contribution bounds that the kernel chose for each query of a batch, by the query's position."""
    results: dict[int, dict[str, EstimatedBound]] = {}
    released = iter(zip(release.search_results or (), release.chosen_bounds or (), strict=True))
    for group in batch.groups:
        bounds = {}
        for search in group.plan.searches:
            histogram, bound = next(released)
            counts, std = np.array(histogram.values, float), histogram.mechanism.std()
            bounds[search.tag] = estimate_bound(bound, search.edges, counts, std, search.row_size)
        results.update(dict.fromkeys(group.positions, bounds))
    return results


def measured_columns(
    plan: QueryPlan, released: Sequence[ReleasedMeasurement], bounds: Mapping[str, EstimatedBound], confidence: float
) -> list[NoisyColumn]:
    """Build the noisy columns that a plan's formulas read."""
    return [_noisy_column(source, released, bounds, confidence) for source in plan.sources]


def _noisy_column(
    source: CellRef | QuantileRef,
    released: Sequence[ReleasedMeasurement],
    bounds: Mapping[str, EstimatedBound],
    confidence: float,
) -> NoisyColumn:
    part = released[source.measure_index]
    if isinstance(source, QuantileRef):
        counts = np.array(part.values, float).reshape(-1, len(source.bins.low))
        return estimate_quantile(counts, noise_of(part.mechanism, part.steps[0]), source.bins, source.level, confidence)
    step = part.steps[source.value_index] / source.factor
    table = np.array(part.values, float).reshape(-1, len(part.steps))
    values, noise = table[:, source.value_index] * float(step), noise_of(part.mechanism, step)
    bound = bounds.get(source.bound_tag or "")
    if bound is None:
        column = Measured(values, noise)
    else:
        kept, per_step = np.abs(table).sum(axis=1), float(source.quantity_per_step or step)
        column = clipped_column(values, noise, kept, bound, source.signed, per_step)
    if not source.rounding_error:
        return column
    return replace(
        column,
        missing_low=column.missing_low - source.rounding_error,
        missing_high=column.missing_high + source.rounding_error,
    )


def clipped_column(
    values: Floats, noise: ScaledNoise, kept: Floats, bound: EstimatedBound, signed: bool, per_step: float
) -> Measured:
    """Build a column with an estimate of what clipping removed: the same share of every cell.

    `kept` is what clipping left of each cell, in steps of the bound, and `per_step` the quantity of one such step. A
    cell may have lost more or less, up to `EstimatedBound.most_missing`; what a signed sum lost may have either sign.
    """
    blur = 2 * noise.std / per_step
    most = per_step * bound.most_missing((kept + blur) / (kept.sum() + blur))
    least = -most if signed else np.zeros_like(most)
    return Measured(values, noise, np.clip(bound.removed_ratio * values, least, most), least, most)
