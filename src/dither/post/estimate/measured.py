"""Noisy columns with their noise and clipping, built from what the kernel released."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from dither.post.estimate.contribution import EstimatedBound, estimate_bound
from dither.post.estimate.intervals import Banded, Measured, NoisyColumn
from dither.post.estimate.quantiles import quantile
from dither.post.noise import Floats, ScaledNoise, noise_of
from dither.post.query.batch import BatchPlan
from dither.post.query.planner import CellRef, ContributionSearch, QuantileRef, QueryPlan
from dither.privacy.protocol import Release, ReleasedMeasurement


def estimated_bound(search: ContributionSearch, released: ReleasedMeasurement, bound: int) -> EstimatedBound:
    """A bound that was found, with what it keeps and removes."""
    return estimate_bound(bound, search.points, np.array(released.values, float), released.mechanism.std(), search.row)


def estimated_bounds(batch: BatchPlan, release: Release) -> dict[int, dict[str, EstimatedBound]]:
    """The contribution bounds that the kernel chose for each question of a batch, by the place of the question."""
    results: dict[int, dict[str, EstimatedBound]] = {}
    released = iter(zip(release.search_results or (), release.chosen_bounds or (), strict=True))
    for group in batch.groups:
        own = {search.tag: estimated_bound(search, *next(released)) for search in group.plan.searches}
        results.update(dict.fromkeys(group.places, own))
    return results


def measured_columns(
    plan: QueryPlan, released: Sequence[ReleasedMeasurement], bounds: Mapping[str, EstimatedBound], confidence: float
) -> list[NoisyColumn]:
    """The columns that the recipe reads, from what was released."""
    return [_source(source, released, bounds, confidence) for source in plan.sources]


def _source(
    source: CellRef | QuantileRef,
    released: Sequence[ReleasedMeasurement],
    bounds: Mapping[str, EstimatedBound],
    confidence: float,
) -> NoisyColumn:
    part = released[source.piece]
    if isinstance(source, QuantileRef):
        counts = np.array(part.values, float).reshape(-1, len(source.bins.low))
        return quantile(counts, noise_of(part.mechanism, part.steps[0]), source.bins, source.wanted, confidence)
    step = part.steps[source.value] / source.factor
    table = np.array(part.values, float).reshape(-1, len(part.steps))
    values, noise = table[:, source.value] * float(step), noise_of(part.mechanism, step)
    bound = bounds.get(source.clipped or "")
    whole = np.abs(table).sum(axis=1)
    found = (
        Measured(values, noise)
        if bound is None
        else with_clipping(values, noise, whole, bound, source.signed, float(source.worth or step))
    )
    return replace(found, least=found.least - source.slack, most=found.most + source.slack) if source.slack else found


def with_clipping(
    values: Floats, noise: ScaledNoise, mass: Floats, bound: EstimatedBound, signed: bool, worth: float
) -> Measured:
    """What clipping removed: the same share everywhere is the estimate; `worth` is what a unit of mass stands for.

    Which cells lost how much is not known: see `Found.most`. Of signed sums, either sign may be missing.
    """
    blur = 2 * noise.std / worth
    most = worth * bound.most((mass + blur) / (mass.sum() + blur))
    least = -most if signed else np.zeros_like(most)
    return Measured(values, noise, np.clip(bound.inflation * values, least, most), least, most)


def is_banded(source: NoisyColumn) -> bool:
    """Whether a source was chosen, not measured with noise."""
    return isinstance(source, Banded)
