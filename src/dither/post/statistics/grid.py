"""Counts over a grid of a column's declared range, and trees of such counts that give the count of any range.

A tree measures the counts of wide, medium and narrow cells. Its leaves are the cells of a table whose keys are the
digits of their number, and its levels are margins of that table, so least squares makes all levels agree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from dither.errors import Unsupported
from dither.plan import expressions as expr
from dither.plan.domains import bounds_of
from dither.plan.expressions.core import Expr
from dither.plan.measures.clipped import ClippedSums
from dither.plan.measures.core import Measure
from dither.plan.measures.sums import Count
from dither.plan.relations.filter import Filter
from dither.post.noise import Floats, ScaledNoise
from dither.post.query.aggregated_values import without_null
from dither.post.query.query_plan import CellRef, QueryPlan
from dither.post.query.question import Question
from dither.post.statistics.consistency import Margin, agree
from dither.post.statistics.core import MeasuredPart, SourceRows
from dither.schema import Number

# Ranges of up to this many cells need one level, and up to this many two; a tree has at most MOST_LEAVES.
ONE_LEVEL, TWO_LEVELS, MOST_LEAVES = 64, 1024, 4096
SIMULATIONS = 512
MANY_GROUPS = "groups, one for every declared key"


@dataclass(frozen=True)
class ValueGrid:
    """Equal cells of a column's range: cell i has the values from lo + i * width up to those below the next cell.

    The values are multiples of `step`, from `lo` to `hi`.
    """

    lo: Fraction
    hi: Fraction
    step: Fraction
    width: Fraction
    size: int

    def low_ends(self) -> Floats:
        """Return the smallest value of each cell."""
        return np.asarray(float(self.lo) + np.arange(self.size) * float(self.width))

    def high_ends(self) -> Floats:
        """Return the largest value of each cell."""
        ends = self.low_ends() + float(self.width - self.step)
        return np.asarray(np.minimum(ends, float(self.hi)))

    def middles(self) -> Floats:
        """Return the middle of each cell."""
        return (self.low_ends() + self.high_ends()) / 2

    def coarser(self, factor: int) -> ValueGrid:
        """Return the grid whose cells are `factor` of these each."""
        return replace(self, width=self.width * factor, size=-(-self.size // factor))


def make_grid(domain: object, most: int) -> ValueGrid:
    """Divide a declared range into at most `most` equal cells; into its values, if there are no more."""
    if not isinstance(domain, Number):
        raise Unsupported("this needs a number with a declared range; count other columns with session.table")
    first, last = bounds_of(domain)
    per_cell = -(-(last - first + 1) // most)
    width, size = per_cell * domain.step, -(-(last - first + 1) // per_cell)
    return ValueGrid(Fraction(domain.lo), Fraction(domain.hi), domain.step, width, size)


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
    question, value = rows.question(["COUNT(*) AS n"]), rows.expression(column)
    shifted = expr.Arithmetic("-", without_null(value, rows.scope), expr.LiteralValue(grid.lo))
    return replace(question, keys=(("cell", _floor(shifted, grid.width)),))


def _floor(value: Expr, width: Fraction) -> Expr:
    """Return the expression of the multiple of `width` at or below a value."""
    return expr.Rounded("floor", value, width)


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

    @property
    def cumulative_errors(self) -> Floats:
        """The simulated errors of `cumulative`."""
        return np.cumsum(self.errors, axis=1)

    @property
    def total(self) -> float:
        """The estimated number of all rows."""
        return float(self.counts.sum())

    def between(self, edges: Sequence[int]) -> tuple[Floats, Floats]:
        """Return the counts between consecutive numbers of leaves, and their standard errors."""
        counts = np.add.reduceat(self.counts, edges)
        return counts, np.asarray(np.add.reduceat(self.errors, edges, axis=1).std(axis=0))


def fit_tree(tree: Tree, parts: Sequence[MeasuredPart]) -> FittedTree:
    """Fit all levels of a tree, and simulate the errors of the fit."""
    measured = [level_counts(part) for part in parts]
    random = np.random.default_rng(20_261_118)
    names = tuple(f"digit {depth}" for depth in range(len(tree.digits)))
    sizes = dict(zip(names, tree.digits, strict=True))
    margins, noises = [], []
    for depth, (counts, noise) in enumerate(measured, 1):
        keys, shape = names[:depth], tree.digits[:depth]
        margins.append(Margin(keys, _pad(counts[None, :], shape)[0], noise.variance))
        drawn = _pad(draw_noise(noise, (SIMULATIONS, len(counts)), random), shape)
        noises.append(Margin(("draw", *keys), drawn, noise.variance))
    cells = agree(sizes, margins).cells.ravel()[: tree.grid.size]
    errors = agree({"draw": SIMULATIONS, **sizes}, noises).cells.reshape(SIMULATIONS, -1)[:, : tree.grid.size]
    return FittedTree(tree, cells, errors, any(noise.kind == "laplace" for _, noise in measured))


def level_counts(part: MeasuredPart) -> tuple[Floats, ScaledNoise]:
    """Return the noisy counts of a part with a single count, and their noise."""
    source = part.plan.sources[0]
    factor = source.factor if isinstance(source, CellRef) else 1
    return part.values()[:, 0] / factor, part.noise().times(1 / factor)


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
