"""Clusters of numbers by k-means on a noisy grid: one read, and as many rounds as it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from dither.errors import InvalidParameter, Unsupported
from dither.post.estimate.explain import Expected
from dither.post.estimate.quantiles import interval_factor
from dither.post.noise import Floats
from dither.post.options import read_whole
from dither.post.statistics.core import SourceRows, Statistic
from dither.post.statistics.design import frame_column, rows_without_null
from dither.post.statistics.marginals import Attribute, MarginalPlan, plan_marginals, read_attributes, table_of
from dither.post.statistics.result import Result, key_column, noisy_column, result_fields
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

    Distances are in units of half the declared widths. `center_errors_` has the standard errors by noise.
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
    attributes = read_attributes(rows, columns, dict.fromkeys(columns, wanted))
    if prod(attribute.size for attribute in attributes) > MAX_GRID:
        raise InvalidParameter(f"the grid may have at most {MAX_GRID} cells; give fewer bins= or columns")
    plan = plan_marginals(rows, rows_without_null(rows, columns), [tuple(a.key for a in attributes)])

    def finish(released: Released) -> Clusters:
        return build_clusters(plan, released, attributes, count, bins is None)

    def expect(parts: Sequence[Sequence[Measurement]]) -> list[Expected]:
        return expected_clusters(plan, parts[0][0], attributes, count)

    return plan.statistic(finish, expect)


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
    """Return half the declared width of each column."""
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


def build_clusters(
    plan: MarginalPlan, released: Released, attributes: Sequence[Attribute], count: int, merge: bool
) -> Clusters:
    """Find the clusters of the noisy grid, after its cells were merged if it is too fine."""
    table = table_of(released, 0).reshape([attribute.size for attribute in attributes])
    noise, shape = released.noise().std, table.shape
    if merge:
        table, noise, attributes = merge_cells(table, noise, attributes)
    middles = [np.array([attribute.middle(p) for p in range(attribute.size)]) for attribute in attributes]
    raw = np.stack([axis.ravel() for axis in np.meshgrid(*middles, indexing="ij")], axis=1)
    weights = np.where(table.ravel() > EMPTY * noise, table.ravel(), 0.0)
    weights = weights if weights.sum() > 0 else np.ones(len(weights))
    units = half_widths_of(attributes)
    points = raw / units
    kept = weights > 0
    centres = k_means(points[kept], weights[kept], count)
    places = nearest(points, centres)
    sizes = np.maximum(np.bincount(places[kept], weights[kept], count), 1.0)
    cells = np.bincount(places[kept], minlength=count)
    spread = ((points - centres[places]) ** 2) * kept[:, None]
    errors = noise * np.sqrt(np.stack([np.bincount(places, column, count) for column in spread.T], 1)) / sizes[:, None]
    order = np.argsort(-sizes)
    raw_centres, raw_errors = (centres * units)[order], (errors * units)[order]
    factor = interval_factor(cells[order], released.noise(), plan.settings.confidence)
    size_errors = noise * np.sqrt(cells[order])
    columns = [
        key_column("cluster", list(range(count))),
        noisy_column("rows", sizes[order], size_errors, *interval(sizes[order], size_errors, factor)),
    ]
    for place, attribute in enumerate(attributes):
        value, error = raw_centres[:, place], raw_errors[:, place]
        columns.append(noisy_column(attribute.name, value, error, *interval(value, error, factor)))
    whole = ((points - weights @ points / weights.sum()) ** 2).sum(axis=1)
    inertia = float(weights @ spread.sum(axis=1)) / max(float(weights @ whole), 1e-300)
    bins, used = " x ".join(map(str, shape)), " x ".join(map(str, table.shape))
    merged = "" if table.shape == shape else f", merged to {used} since there are few rows"
    summary = (f"{count} clusters of {len(attributes)} columns, from a noisy grid of {bins} cells{merged}",)
    notes = [
        *plan.notes,
        "rows with NULL in any column are left out; distances are in units of half the declared widths",
        "intervals include the noise with rows kept in their clusters; not the width of cells, nor other clusterings",
    ]
    fields = result_fields(released.measurements, "cluster", columns, summary, notes)
    return Clusters(
        **fields, attributes=tuple(attributes), cluster_centers_=raw_centres, center_errors_=raw_errors,
        sizes_=sizes[order], inertia_=inertia,
    )  # fmt: skip


def interval(value: Floats, error: Floats, factor: Floats) -> tuple[Floats, Floats]:
    """Return the ends of intervals of some standard errors on each side."""
    return value - factor * error, value + factor * error
