"""Clusters of numbers by k-means on a noisy grid: one read, and as many rounds as it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import prod
from typing import Any

import numpy as np
from scipy.ndimage import correlate1d

from dither.errors import InvalidParameter, Unsupported
from dither.post.estimate.explain import Expected
from dither.post.estimate.quantiles import interval_factor
from dither.post.noise import Floats
from dither.post.options import read_whole
from dither.post.statistics.core import Statistic
from dither.post.statistics.design import frame_column, rows_without_null
from dither.post.statistics.marginals import Attribute, MarginalPlan, plan_marginals, read_attributes, table_of
from dither.post.statistics.number_bins import choose_bins, with_range_searches
from dither.post.statistics.result import Result, key_column, noisy_column, result_fields
from dither.post.statistics.source_rows import SourceRows
from dither.post.statistics.steps import Released
from dither.privacy.protocol import Measurement
from dither.schema import Number

MAX_COLUMNS, MAX_CLUSTERS = 8, 64
MAX_GRID, MOST_BINS = 1 << 15, 64
# Rows for each cell of the grid and unit of epsilon, and the guess of a unit's rows where they are not bounded.
ROWS_PER_CELL, ASSUMED_ROWS, ASSUMED_TABLE = 10, 16, 10_000
# Cells of less than this many standard deviations of noise count as empty.
EMPTY = 2.0
RESTARTS, ROUNDS = 20, 50
EQUAL_CLUSTERS = "if clusters have equal shares of the grid and of the rows"


@dataclass(frozen=True, repr=False)
class Clusters(Result):
    """Clusters of k-means: `cluster_centers_` in raw units, `sizes_`, `inertia_` as a share, and `predict`.

    Distances are in units of half the ranges of the grid. `center_errors_` has the standard errors by noise.
    """

    attributes: tuple[Attribute, ...] = ()
    cluster_centers_: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    center_errors_: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    sizes_: Floats = field(default_factory=lambda: np.zeros(0))
    inertia_: float = 0.0

    def predict(self, frame: Any) -> Floats:
        """Return the place of the nearest centre for each row of a frame."""
        raw = np.column_stack([np.array(frame_column(frame, a.name), float) for a in self.attributes])
        return nearest(raw / half_widths_of(self.attributes), self.cluster_centers_ / half_widths_of(self.attributes))


def make_clusters(rows: SourceRows, columns: Sequence[str], count: int, bins: int | None) -> Statistic[Clusters]:
    """Make the statistic of clusters."""
    if not 1 <= len(columns) <= MAX_COLUMNS:
        raise InvalidParameter(f"clusters need 1 to {MAX_COLUMNS} columns, got {len(columns)}")
    count = read_whole("count", count, 2)
    if count > MAX_CLUSTERS:
        raise InvalidParameter(f"count must be at most {MAX_CLUSTERS}, got {count}")
    if other := [name for name in columns if not isinstance(rows.domain(name), Number)]:
        raise Unsupported(f"{other[0]} is no number; clusters are found among numbers")
    wanted = grid_bins(rows, len(columns)) if bins is None else bins
    declared, relation = (
        read_attributes(rows, columns, dict.fromkeys(columns, wanted)),
        rows_without_null(rows, columns),
    )
    given = columns if bins is not None else ()
    private = choose_bins(rows, relation, declared, given, equal_cuts(wanted))
    attributes = private.attributes
    if prod(attribute.size for attribute in attributes) > MAX_GRID:
        raise InvalidParameter(f"the grid may have at most {MAX_GRID} cells; give fewer bins= or columns")
    plan = plan_marginals(rows, relation, [tuple(a.key for a in attributes)])
    plan = with_range_searches(plan, private)

    def finish(released: Released) -> Clusters:
        return build_clusters(plan, released, private.raw(released.chosen), count, bins is None)

    def expect(parts: Sequence[Sequence[Measurement]]) -> list[Expected]:
        return expected_clusters(plan, parts[0][0], private.assumed_attributes(), count)

    return plan.statistic(finish, expect)


def equal_cuts(bins: int) -> tuple[Fraction, ...]:
    """Return the cuts of bins of equal width from -1 to 1."""
    return tuple(Fraction(2 * place - bins, bins) for place in range(bins + 1))


def expected_clusters(
    plan: MarginalPlan, measurement: Measurement, attributes: Sequence[Attribute], count: int
) -> list[Expected]:
    """Return the expected errors of sizes and centres, as if clusters had equal shares of the grid and of the rows."""
    noise = plan.expected_noise(measurement)
    cells = prod(attribute.size for attribute in attributes) / count
    factor = float(interval_factor(np.array([cells]), noise, plan.settings.confidence)[0])
    found = [plan.error("rows of a cluster", noise.std * np.sqrt(cells), factor, False, EQUAL_CLUSTERS)]
    for attribute, half in zip(attributes, half_widths_of(attributes), strict=True):
        # The standard deviation of the cells of one of so many boxes of equal sides.
        apart = 2 * half / count ** (1 / len(attributes)) / np.sqrt(12)
        error = noise.std * np.sqrt(cells) * apart / (plan.size / count)
        found.append(plan.error(f"{attribute.name} of a centre", error, factor, True, EQUAL_CLUSTERS))
    return found


def grid_bins(rows: SourceRows, columns: int) -> int:
    """Return the bins of each column, for the rows that the tables seem to have."""
    spend, context = rows.settings.spend, rows.context
    epsilon = float(spend.amount) if not spend.gaussian else float(np.sqrt(2 * float(spend.amount)))
    known = max((context.noisy_rows(table) or 0 for table in context.dataset.tables), default=0) or ASSUMED_TABLE
    bounded = rows.question(["COUNT(*)"]).relation.stability(context, rows.settings.unit).max_rows
    per_unit = bounded or rows.settings.bound.max_rows or ASSUMED_ROWS
    bins = best_bins(known * epsilon / per_unit, columns)
    return int(max(2, min(bins, MOST_BINS, MAX_GRID ** (1 / columns))))


def best_bins(rows: float, columns: int) -> float:
    """Return the bins of each column for some rows at epsilon 1: those that Su and others found best (2016)."""
    return float((rows / ROWS_PER_CELL) ** (2 / (2 + columns)))


def merge_cells(
    table: Floats, noise: float, attributes: Sequence[Attribute]
) -> tuple[Floats, float, tuple[Attribute, ...]]:
    """Merge neighbouring cells of a grid that is too fine for the rows that it turns out to have."""
    wanted, merged = max(2.0, best_bins(max(0.0, table.sum()) * np.sqrt(2) / noise, table.ndim)), []
    for axis, attribute in enumerate(attributes):
        together = max(1, int(attribute.size / wanted))
        starts = range(0, attribute.size, together)
        table, noise = np.add.reduceat(table, starts, axis=axis), noise * np.sqrt(together)
        merged.append(replace(attribute, edges=(*attribute.edges[:-1:together], attribute.edges[-1])))
    return table, noise, tuple(merged)


def half_widths_of(attributes: Sequence[Attribute]) -> Floats:
    """Return half the width of each column's grid."""
    return np.array([float(attribute.edges[-1] - attribute.edges[0]) / 2 for attribute in attributes])


def nearest(points: Floats, centres: Floats) -> Floats:
    """Return the place of the nearest centre of each point."""
    distances = (points**2).sum(axis=1)[:, None] - 2 * points @ centres.T + (centres**2).sum(axis=1)
    return np.asarray(distances.argmin(axis=1))


def k_means(points: Floats, weights: Floats, count: int) -> Floats:
    """Return centres of least weighted squared distance, the best of several starts; a fixed sequence of numbers."""
    random = np.random.Generator(np.random.PCG64(0))
    best, least = points[:count], np.inf
    for _ in range(RESTARTS):
        centres = _spread_start(points, weights, count, random)
        for _ in range(ROUNDS):
            places = nearest(points, centres)
            totals = np.bincount(places, weights, count)
            sums = np.stack([np.bincount(places, weights * column, count) for column in points.T], axis=1)
            centres = np.where(totals[:, None] > 0, sums / np.maximum(totals, 1e-300)[:, None], centres)
        cost = float(weights @ ((points - centres[nearest(points, centres)]) ** 2).sum(axis=1))
        if cost < least:
            best, least = centres, cost
    return best


def _spread_start(points: Floats, weights: Floats, count: int, random: np.random.Generator) -> Floats:
    """Choose starting centres far from each other (k-means++)."""
    chosen = [points[random.choice(len(points), p=weights / weights.sum())]]
    while len(chosen) < count:
        distances = np.min([((points - centre) ** 2).sum(axis=1) for centre in chosen], axis=0) * weights
        total = float(distances.sum())
        share = distances / total if total > 0 else weights / weights.sum()
        chosen.append(points[random.choice(len(points), p=share)])
    return np.array(chosen)


@dataclass(frozen=True)
class FoundClusters:
    """Clusters of a grid in standard units: their centres, noisy rows, and the cells that are nearest to each."""

    centres: Floats
    places: np.ndarray
    sizes: np.ndarray
    cells: np.ndarray


def find_clusters(points: Floats, table: Floats, kept: np.ndarray, noise: float, count: int) -> FoundClusters:
    """Find at most `count` clusters that noise cannot have made: there are fewer, if it may have made one of those.

    The rows of a cluster are the noisy counts of all cells nearest to its centre: to add up only those that stand out
    would count noise as rows.
    """
    weights = np.where(kept, np.maximum(table, 0.0), 0.0)
    weights = weights if weights.sum() > 0 else np.ones(len(weights))
    for wanted in range(min(count, int((weights > 0).sum())), 0, -1):
        centres = k_means(points[weights > 0], weights[weights > 0], wanted)
        places = nearest(points, centres)
        sizes, cells = np.bincount(places, table, wanted), np.bincount(places, minlength=wanted)
        found = FoundClusters(centres, places, sizes, cells)
        if (sizes > certain(cells.sum()) * noise * np.sqrt(cells)).all():
            break
    return found


def certain(cells: float) -> float:
    """Return how many standard deviations of noise no one of so many cells exceeds, in 19 of 20 grids."""
    return float(np.log(10 * max(1.0, cells)) / np.sqrt(2))


def cells_with_rows(table: Floats, noise: float) -> np.ndarray:
    """Return the cells that have rows: by their own counts, or by those together with their neighbours'.

    In a large grid many empty cells exceed a few standard deviations of noise, and clusters would follow them.
    """
    limit = certain(table.size) * noise
    around, cells = table, np.ones(table.shape)
    for axis in range(table.ndim):
        around, cells = (correlate1d(part, np.ones(3), axis, mode="constant") for part in (around, cells))
    return np.asarray((table > limit) | ((table > EMPTY * noise) & (around > limit * np.sqrt(cells))))


def without_empty_bins(table: Floats, attributes: Sequence[Attribute]) -> tuple[Floats, tuple[Attribute, ...]]:
    """Leave out bins without a width: those of a private range beyond the declared one, which have noise alone."""
    left = []
    for axis, attribute in enumerate(attributes):
        if not attribute.edges:
            left.append(attribute)
            continue
        kept = [p for p in range(attribute.size) if attribute.edges[p] < attribute.edges[p + 1]]
        table = np.take(table, kept, axis=axis)
        left.append(replace(attribute, edges=(*(attribute.edges[p] for p in kept), attribute.edges[kept[-1] + 1])))
    return table, tuple(left)


def build_clusters(
    plan: MarginalPlan, released: Released, attributes: Sequence[Attribute], count: int, merge: bool
) -> Clusters:
    """Find the clusters of the noisy grid, after its cells were merged if it is too fine."""
    table = table_of(released, 0).reshape([attribute.size for attribute in attributes])
    table, attributes = without_empty_bins(table, attributes)
    noise, shape = released.noise().std, table.shape
    if merge:
        table, noise, attributes = merge_cells(table, noise, attributes)
    middles = [np.array([attribute.middle(p) for p in range(attribute.size)]) for attribute in attributes]
    raw = np.stack([axis.ravel() for axis in np.meshgrid(*middles, indexing="ij")], axis=1)
    units = half_widths_of(attributes)
    points, kept = raw / units, cells_with_rows(table, noise).ravel()
    found = find_clusters(points, table.ravel(), kept, noise, count)
    sizes, number = np.maximum(found.sizes, 1.0), len(found.centres)
    cells = np.bincount(found.places[kept], minlength=number)
    spread = ((points - found.centres[found.places]) ** 2) * kept[:, None]
    sums = np.stack([np.bincount(found.places, column, number) for column in spread.T], 1)
    errors = noise * np.sqrt(sums) / sizes[:, None]
    order = np.argsort(-found.sizes)
    raw_centres, raw_errors = (found.centres * units)[order], (errors * units)[order]
    factor = interval_factor(np.maximum(cells, 1)[order], released.noise(), plan.settings.confidence)
    size_errors = noise * np.sqrt(found.cells[order])
    size_factor = interval_factor(found.cells[order], released.noise(), plan.settings.confidence)
    columns = [
        key_column("cluster", list(range(number))),
        noisy_column("rows", found.sizes[order], size_errors, *interval(found.sizes[order], size_errors, size_factor)),
    ]
    for place, attribute in enumerate(attributes):
        value, error = raw_centres[:, place], raw_errors[:, place]
        columns.append(noisy_column(attribute.name, value, error, *interval(value, error, factor)))
    weights = np.where(kept, np.maximum(table.ravel(), 0.0), 0.0)
    whole = ((points - weights @ points / max(float(weights.sum()), 1e-300)) ** 2).sum(axis=1)
    inertia = float(weights @ spread.sum(axis=1)) / max(float(weights @ whole), 1e-300)
    notes = [
        *plan.notes,
        "rows with NULL in any column are left out; distances are in units of half the ranges of the grid",
        "intervals include the noise with rows kept in their clusters; not the width of cells, nor other clusterings",
    ]
    fields = result_fields(
        released.measurements, "cluster", columns, summary_lines(number, count, shape, table.shape, kept), notes
    )
    return Clusters(
        **fields, attributes=tuple(attributes), cluster_centers_=raw_centres, center_errors_=raw_errors,
        sizes_=found.sizes[order], inertia_=inertia,
    )  # fmt: skip


def summary_lines(
    number: int, count: int, shape: Sequence[int], used: Sequence[int], kept: np.ndarray
) -> tuple[str, ...]:
    """Say how many clusters there are, from which grid, and why there are fewer than were asked for."""
    bins = " x ".join(map(str, shape))
    merged = "" if used == shape else f", merged to {' x '.join(map(str, used))} since there are few rows"
    which = "1 cluster" if number == 1 else f"{number} clusters"
    lines = [f"{which} of {len(shape)} columns, from a noisy grid of {bins} cells{merged}"]
    if not kept.any():
        lines.append(
            "noise hides where rows are, so that the centre is that of the grid; spend more, or give fewer bins="
        )
    elif number < count:
        lines.append(
            f"{count} were asked for: noise hides whether there are more, or rows are in too few cells to tell"
        )
    return tuple(lines)


def interval(value: Floats, error: Floats, factor: Floats) -> tuple[Floats, Floats]:
    """Return the ends of intervals of some standard errors on each side."""
    return value - factor * error, value + factor * error
