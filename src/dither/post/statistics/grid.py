"""Counts over a grid of a column's declared range, and trees of such counts that give the count of any range.

A tree measures the counts of wide, medium and narrow cells. Its leaves are the cells of a table whose keys are the
digits of their number, and its levels are margins of that table, so least squares makes all levels agree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from dither.plan import expressions as expr
from dither.plan.expressions.core import Expr
from dither.plan.measures.clipped import ClippedSums
from dither.plan.measures.core import Measure
from dither.plan.measures.sums import Count
from dither.plan.relations.filter import Filter
from dither.post.estimate.measured import cell_shares
from dither.post.noise import Floats, ScaledNoise
from dither.post.query.aggregated_values import without_null
from dither.post.query.query_plan import CellRef, QueryPlan
from dither.post.query.question import Question
from dither.post.query.value_grid import ValueGrid, cell_key, make_grid
from dither.post.statistics.consistency import Margin, agree
from dither.post.statistics.core import MeasuredPart
from dither.post.statistics.source_rows import SourceRows

# Ranges of up to this many cells need one level, and up to this many two; a tree has at most MOST_LEAVES by default.
ONE_LEVEL, TWO_LEVELS, MOST_LEAVES = 32, 1024, 4096
# A fit is simulated so often, but fewer times if it has so many leaves that this takes long.
SIMULATIONS, SIMULATED_LEAVES = 512, 1 << 21
# Noise hides a total that is not above this many of its standard deviations.
CLEAR_TOTAL = 4.0
MANY_GROUPS = "groups, one for every declared key"


def plan_grid(rows: SourceRows, column: str, grid: ValueGrid, *, ranked: bool = False) -> QueryPlan:
    """Plan the counts of the rows in each cell of a grid; rows without a value are left out.

    Where quantiles are chosen from the counts, they are `ranked`: a unit moves a rank by as much as it adds to all
    cells together, so its counts are bounded in L1.
    """
    plan = plan_cells(rows, column, grid_question(rows, column, grid), ranked=ranked)
    return replace(plan, notes=tuple(note for note in plan.notes if MANY_GROUPS not in note))


def plan_cells(rows: SourceRows, column: str, question: Question, *, ranked: bool = False) -> QueryPlan:
    """Plan the counts of a grid's question, without the rows that have no value.

    Those are left out after the rows of units are bounded: the bound is then the same for all columns, and the ranks
    of rows that a curator stored serve for it.
    """
    planner = rows.settings.planner
    plan = (replace(planner, gaussian=False) if ranked else planner).plan(question)
    if not rows.domain(column).nullable:
        return plan
    present = expr.Not(expr.IsNull(rows.expression(column)))
    measures = tuple(replace(each, measure=_filter_counts(each.measure, present)) for each in plan.measures)
    return replace(plan, measures=measures)


def _filter_counts(measure: Measure, condition: Expr) -> Measure:
    """Return counts of the rows for which a condition holds, of those that a bound keeps."""
    if not isinstance(measure, Count | ClippedSums):
        raise TypeError("the counts of a grid are counts, or counts that are clipped")
    return replace(measure, child=Filter(measure.child, condition))


def grid_question(rows: SourceRows, column: str, grid: ValueGrid) -> Question:
    """Ask for the counts of the rows in each cell of a grid; a row without a value is in the cell nearest to 0."""
    question, value = rows.question(["COUNT(*) AS n"]), without_null(rows.expression(column), rows.scope)
    return replace(question, keys=(("cell", cell_key(value, grid)),))


@dataclass(frozen=True)
class Tree:
    """A tree over a grid: `digits` are the numbers of branches of its levels, whose product covers the grid."""

    grid: ValueGrid
    digits: tuple[int, ...]

    @property
    def levels(self) -> list[ValueGrid]:
        """The grid of each level, from the widest cells to the leaves."""
        return [self.grid.coarser(math.prod(self.digits[depth:])) for depth in range(1, len(self.digits) + 1)]

    @property
    def leaves(self) -> int:
        """The number of leaves, of which those beyond the grid are empty."""
        return math.prod(self.digits)


def make_tree(domain: object, most: int = MOST_LEAVES) -> Tree:
    """Make a tree of one to three levels over a declared range."""
    grid = make_grid(domain, most)
    levels = 1 if grid.size <= ONE_LEVEL else 2 if grid.size <= TWO_LEVELS else 3
    branches = math.ceil(grid.size ** (1 / levels) - 1e-9)
    first = -(-grid.size // branches ** (levels - 1))
    return Tree(grid, (first, *(branches,) * (levels - 1)))


def plan_tree(rows: SourceRows, column: str, tree: Tree) -> list[QueryPlan]:
    """Plan the counts of each level of a tree."""
    return [plan_grid(rows, column, level) for level in tree.levels]


@dataclass(frozen=True)
class FittedTree:
    """The fitted counts of a tree's leaves, and simulated errors of them: one row for each simulation."""

    tree: Tree
    counts: Floats
    errors: Floats
    laplace: bool

    @property
    def cumulative(self) -> Floats:
        """The estimated number of rows up to each leaf."""
        return np.cumsum(self.counts)

    @cached_property
    def cumulative_errors(self) -> Floats:
        """The simulated errors of `cumulative`."""
        return np.cumsum(self.errors, axis=1)

    def excess_variances(self, level: float) -> Floats:
        """Return the variances of `cumulative - level * total`."""
        own, shared, whole = self._rank_moments
        return np.asarray(np.maximum(own - 2 * level * shared + level**2 * whole, 0.0))

    @cached_property
    def _rank_moments(self) -> tuple[Floats, Floats, float]:
        """The variances of `cumulative`, its covariances with the total, and the variance of the total."""
        errors = self.cumulative_errors - self.cumulative_errors.mean(axis=0)
        total = errors[:, -1]
        return np.einsum("ij,ij->j", errors, errors) / len(errors), total @ errors / len(errors), float(total.var())

    @property
    def total(self) -> float:
        """The estimated number of all rows."""
        return float(self.counts.sum())

    def between(self, edges: Sequence[int]) -> tuple[Floats, Floats]:
        """Return the counts between consecutive numbers of leaves, and their standard errors."""
        counts = np.add.reduceat(self.counts, edges)
        return counts, np.asarray(np.add.reduceat(self.errors, edges, axis=1).std(axis=0))


def fit_tree(tree: Tree, parts: Sequence[MeasuredPart], restored: bool = False) -> FittedTree:
    """Fit all levels of a tree, and simulate the errors of the fit; see `level_counts` for `restored`."""
    measured = [level_counts(part, restored) for part in parts]
    if restored and any(part.bounds for part in parts):
        measured = on_one_scale(tree, measured)
    elif any(part.plan.searches for part in parts):
        measured = same_totals(measured)
    noises = tuple(noise for _, noise in measured)
    margins = [
        Margin(names, _pad(counts[None, :], shape)[0], noise.variance)
        for (names, shape), (counts, noise) in zip(_levels(tree.digits), measured, strict=True)
    ]
    cells = agree(_sizes(tree.digits), margins).cells.ravel()[: tree.grid.size]
    errors = simulate_errors(tree, noises)
    return FittedTree(tree, cells, errors, any(noise.kind == "laplace" for noise in noises))


def same_totals(measured: Sequence[tuple[Floats, ScaledNoise]]) -> list[tuple[Floats, ScaledNoise]]:
    """Scale levels of a tree, and their noise, to the largest of their totals, unless noise hides one.

    Each level may have a bound on rows of its own, so that they add up to different totals. To make them agree, the fit
    would put the difference into all leaves alike, as if many rows were where there are none.
    """
    totals = [float(counts.sum()) for counts, _ in measured]
    errors = [noise.std * math.sqrt(counts.size) for counts, noise in measured]
    if any(total <= CLEAR_TOTAL * error for total, error in zip(totals, errors, strict=True)):
        return list(measured)
    factors = [max(totals) / total for total in totals]
    return [(counts * factor, noise.times(factor)) for (counts, noise), factor in zip(measured, factors, strict=True)]


@lru_cache(maxsize=2)
def simulate_errors(tree: Tree, noises: tuple[ScaledNoise, ...]) -> Floats:
    """Return simulated errors of a tree's leaves, one row for each simulation; rehearsals and results share them."""
    random, draws = np.random.default_rng(20_261_118), min(SIMULATIONS, SIMULATED_LEAVES // tree.leaves)
    margins = []
    for (names, shape), level, noise in zip(_levels(tree.digits), tree.levels, noises, strict=True):
        drawn = _pad(draw_noise(noise, (draws, level.size), random), shape)
        margins.append(Margin(("draw", *names), drawn, noise.variance))
    cells = agree({"draw": draws, **_sizes(tree.digits)}, margins).cells
    return np.ascontiguousarray(cells.reshape(draws, -1)[:, : tree.grid.size])


def _levels(digits: tuple[int, ...]) -> list[tuple[tuple[str, ...], tuple[int, ...]]]:
    """Return the keys of each level of a tree, and their numbers of values."""
    names = tuple(_sizes(digits))
    return [(names[:depth], digits[:depth]) for depth in range(1, len(digits) + 1)]


def _sizes(digits: tuple[int, ...]) -> dict[str, int]:
    return {f"digit {depth}": size for depth, size in enumerate(digits)}


def on_one_scale(tree: Tree, levels: Sequence[tuple[Floats, ScaledNoise]]) -> list[tuple[Floats, ScaledNoise]]:
    """Scale the counts of all levels to those of the first: their bounds differ, and so do errors of what was removed.

    Only cells with rows say by how much: the scale is that of a regression of the first level on another's sums.
    """
    first = levels[0][0]
    found = [levels[0]]
    for (_, shape), (counts, noise) in zip(_levels(tree.digits)[1:], levels[1:], strict=True):
        sums = _pad(counts[None, :], shape)[0].reshape(shape[0], -1).sum(axis=1)[: len(first)]
        squares = float(sums @ sums)
        scale = float(first @ sums) / squares if squares > 0 else 1.0
        found.append((counts * min(2.0, max(0.5, scale)), noise))
    return found


def level_counts(part: MeasuredPart, restored: bool = False) -> tuple[Floats, ScaledNoise]:
    """Return the noisy counts of a part with a single count, and their noise.

    Counts that are `restored` have what a bound is estimated to have removed added back.
    """
    source = part.plan.sources[0]
    factor = source.factor if isinstance(source, CellRef) else 1
    counts = part.values()[:, 0] / factor
    for bound in part.bounds.values() if restored else ():
        share = cell_shares(counts, float(counts.sum()), 1.0)
        counts = counts + row_step(part) * bound.missing(share, 0.95)[0]
    return counts, part.noise().times(1 / factor)


def row_step(part: MeasuredPart) -> float:
    """Return the rows that a step of a part's bound stands for."""
    source = part.plan.sources[0]
    if not isinstance(source, CellRef):
        return 1.0
    return float(source.quantity_per_step or part.released[0].steps[source.value_index] / source.factor)


def _pad(counts: Floats, shape: tuple[int, ...]) -> Floats:
    """Give counts the shape of a level, with zeros beyond the range."""
    padded = np.zeros((len(counts), math.prod(shape)))
    padded[:, : counts.shape[1]] = counts
    return padded.reshape(len(counts), *shape)


def draw_noise(noise: ScaledNoise, shape: tuple[int, ...], random: np.random.Generator) -> Floats:
    """Simulate noise of the same variance, for intervals and tests; it never protects data."""
    if noise.kind == "laplace":
        return np.asarray(random.laplace(0.0, noise.std / math.sqrt(2), shape))
    return np.asarray(random.normal(0.0, noise.std, shape))
