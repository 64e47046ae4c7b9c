"""Learners of scores: estimate from a sample how much likelier each output is on one input than on the other.

Every learner estimates the logarithm of the likelihood ratio; by the Neyman-Pearson lemma the best events are the sets
where that ratio is large. Learners range from tables over the bins of a single column, whose events a person can check
by hand, through surfaces over two columns and sums of tables over many, to boosted trees. Tables are smoothed by a
penalty on differences of neighbouring bins, whose strength is chosen on held-out outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import combinations
from typing import Any

import numpy as np
from numpy.polynomial import legendre
from numpy.typing import NDArray
from scipy import linalg, special

from dither.audit.blackbox.events import (
    BinCodes,
    CellScore,
    ColumnScore,
    Encoded,
    JointScore,
    OutcomeSpace,
    SampleTable,
    Score,
    SumScore,
    TreeScore,
    leaf_index,
)
from dither.audit.claims import Floats

BinMap = NDArray[np.intp]
Learner = Callable[[SampleTable], Score | None]

MAX_CELLS = 200_000
MAX_WIDTH = 400
CURVATURE_ROWS = 40_000
# A little more than 1/4, the largest curvature of the logistic loss of one output.
CURVATURE_BOUND = 0.27
# A regression reads columns in blocks with at most this many combinations of bins.
MAX_BLOCK_CODES = 1024
# The largest rows times columns of a regression, in the first rounds and in the last.
MAX_READ, MAX_READ_FINAL = 3_000_000, 10_000_000
# Strengths of the smoothing penalty for a single column, and for sums of tables.
SMOOTHNESS = (0.3, 30.0, 1000.0, 30_000.0)
PENALTIES = (3.0, 300.0)
# Coarse bins have equal sums of mass^power: 1 gives bins of equal mass, 0 keeps the resolution of the fine bins in the
# tails. The second power is for surfaces.
MASS_POWER, SURFACE_POWER = 0.4, 0.05
# The number of a surface's bins along each side; a feature with at most FEW_VALUES values has few.
SURFACE_BINS, FEW_VALUES = 40, 16


def small_sample_learners(space: OutcomeSpace) -> list[Learner]:
    """Return fast learners that do well on small samples."""
    chosen = [partial(coarse_column, column=column) for column in range(len(space.edges))] + _cell_learners(space)
    for columns in (space.columns_in("base"), space.columns_in("difference")):
        chosen.append(partial(sum_of_tables, columns=columns, bins=2))
    return chosen


def first_round_learners(space: OutcomeSpace) -> list[Learner]:
    """Return the learners for the first rounds of the search."""
    chosen = [partial(coarse_column, column=column) for column in range(len(space.edges))] + _cell_learners(space)
    chosen += [partial(polynomial_surface, pair=pair, degree=3) for pair in feature_pairs(space)]
    for columns in _column_families(space):
        chosen += [partial(sum_of_tables, columns=columns, bins=4), partial(shared_table, columns=columns, bins=2)]
    return chosen


def last_round_learners(space: OutcomeSpace) -> list[Learner]:
    """Return every learner, for the last round of the search."""
    chosen = [partial(smooth_column, column=column) for column in range(len(space.edges))] + _cell_learners(space)
    for pair in feature_pairs(space):
        chosen += [partial(polynomial_surface, pair=pair, degree=degree) for degree in (2, 3, 5)]
        chosen += [partial(polynomial_surface, pair=pair, degree=degree, free=True) for degree in (1, 3)]
    for columns in _column_families(space):
        final = partial(sum_of_tables, columns=columns, max_read=MAX_READ_FINAL)
        chosen += [partial(final, bins=4, power=1.0), partial(final, bins=3)]
        chosen += [partial(shared_table, columns=columns, bins=bins, max_read=MAX_READ_FINAL) for bins in (2, 8)]
    return [*chosen, trees]


def _cell_learners(space: OutcomeSpace) -> list[Learner]:
    """Return the learners of whole outputs, if outputs repeat."""
    return [partial(cells, shrink=shrink) for shrink in (False, True)] if space.discrete else []


def feature_pairs(space: OutcomeSpace, most: int = 4) -> list[tuple[int, int]]:
    """Return the pairs among the first entries of the outputs, and among the first summaries."""
    groups = (space.columns_in("base")[:most], space.columns_in("summary")[:most])
    return [pair for columns in groups for pair in combinations(columns, 2)]


def _column_families(space: OutcomeSpace) -> list[list[int]]:
    """Return groups of related columns: entries, the first entry with differences, and summaries."""
    base, differences = space.columns_in("base"), space.columns_in("difference")
    families = [base, base[:1] + differences, space.columns_in("summary")]
    return [columns for columns in families if len(columns) > 1]


def coarse_column(sample: SampleTable, column: int, bins: int = 12) -> Score | None:
    """Learn the log-ratio of each of a few bins of one feature."""
    group = coarse_bins(sample, column, bins, 1.0)
    a, b = (np.bincount(group, counts).astype(np.intp) for counts in sample.counts(column))
    return ColumnScore(column, _log_ratio(a, b)[group])


def smooth_column(sample: SampleTable, column: int) -> Score | None:
    """Learn the smoothed log-ratio of each bin of one feature."""
    used = len(sample.space.edges[column]) + 2
    early, late = (
        [side[:used] for side in part.counts(column)] for part in (sample.part(0, 2 / 3), sample.part(2 / 3, 1))
    )
    table = np.zeros(256)
    table[:used] = _smooth_log_ratios(early, late, _difference_penalty(used))
    return ColumnScore(column, table)


def cells(sample: SampleTable, shrink: bool) -> Score | None:
    """Learn the log-ratio of each distinct output; return None if there are too many outputs.

    With `shrink`, each log-ratio is moved towards 0 by its standard error.
    """
    keys, inverse = np.unique(np.concatenate([sample.a.keys, sample.b.keys]), return_inverse=True)
    if len(keys) > MAX_CELLS:
        return None
    first = np.bincount(inverse[: len(sample.a)], minlength=len(keys))
    second = np.bincount(inverse[len(sample.a) :], minlength=len(keys))
    ratio = _log_ratio(first, second)
    error = np.sqrt(1 / (first + 0.5) + 1 / (second + 0.5))
    return CellScore(keys, np.sign(ratio) * np.maximum(np.abs(ratio) - error, 0) if shrink else ratio)


def polynomial_surface(sample: SampleTable, pair: tuple[int, int], degree: int, free: bool = False) -> Score | None:
    """Fit a polynomial over two features; its few parameters make it reliable where outputs are rare.

    With `free`, each value of a feature of few values gets its own polynomial in the other feature; None if neither
    feature has few values.
    """
    first_map, second_map = (coarse_bins(sample, column, SURFACE_BINS, SURFACE_POWER) for column in pair)
    shape = (int(first_map.max()) + 1, int(second_map.max()) + 1)
    if free and min(shape) > FEW_VALUES:
        return None
    coarse = first_map, second_map
    first, second = (_count_cells(side, pair, coarse, shape) for side in (sample.a, sample.b))
    bases = [_basis(bin_map, degree, free) for bin_map in coarse]
    design = np.einsum("ai,bj->abij", *bases).reshape(shape[0] * shape[1], -1)
    weights, root = _fit_logistic(design, first, second)
    rows, shares = design @ root, (first + second) / max(first.sum() + second.sum(), 1)
    return JointScore(pair, coarse, (design @ weights).reshape(shape), rows - shares @ rows)


def _basis(bin_map: BinMap, degree: int, free: bool) -> Floats:
    """Return functions of a bin: polynomials and an indicator of NaN; with `free`, one for each bin if few."""
    size, start = int(bin_map.max()) + 1, int(bin_map[1])
    if free and size <= FEW_VALUES:
        return np.eye(size)
    result = np.zeros((size, degree + 1 + start))
    result[start:, : degree + 1] = legendre.legvander(np.linspace(-1, 1, size - start), degree)
    result[:start, degree + 1 :] = 1
    return result


def _fit_logistic(design: Floats, first: BinMap, second: BinMap, steps: int = 12) -> tuple[Floats, Floats]:
    """Fit a logistic regression on counts by Newton's method; return the weights and a root of their covariance."""
    total, shift = first + second, np.log((first.sum() + 1) / (second.sum() + 1))
    weights = np.zeros(design.shape[1])
    for _ in range(steps):
        chance = special.expit(design @ weights + shift)
        curvature = (design.T * (total * chance * (1 - chance))) @ design + np.eye(len(weights))
        move = np.linalg.solve(curvature, design.T @ (first - total * chance) - weights)
        weights = weights + np.clip(move, -1, 1)
        if np.max(np.abs(move)) < 1e-4:
            break
    return weights, _inverse_root(curvature)


def _inverse_root(curvature: Floats) -> Floats:
    """Return a matrix whose rows' inner products are the inverse of the curvature."""
    lower = linalg.cholesky(curvature, lower=True)
    result: Floats = linalg.solve_triangular(lower, np.eye(len(lower)), lower=True).T
    return result


def _count_cells(side: Encoded, pair: tuple[int, int], coarse: tuple[BinMap, BinMap], shape: tuple[int, int]) -> BinMap:
    """Return the number of outputs in each cell of a grid over two features."""
    cell = coarse[0][side.codes[:, pair[0]]] * shape[1] + coarse[1][side.codes[:, pair[1]]]
    return np.bincount(cell, minlength=shape[0] * shape[1])


def sum_of_tables(
    sample: SampleTable, columns: list[int], bins: int, power: float = MASS_POWER, max_read: int = MAX_READ
) -> Score | None:
    """Learn a sum of tables, one for each feature: logistic regression on indicators of bins."""
    if len(columns) < 2:
        return None
    coarse = [coarse_bins(sample, column, bins, power) for column in columns]
    width = max(int(bin_map.max()) for bin_map in coarse) + 1
    if len(columns) * width > MAX_WIDTH:
        return None
    part = _first_rows(sample, len(columns), max_read)
    early, late = part.part(0, 0.75), part.part(0.75, 1)
    own_tables = list(range(len(columns)))
    design, held_out = (_Design.of(half, columns, coarse, own_tables, width) for half in (early, late))
    fits = [_fit_tables(design, penalty) for penalty in PENALTIES]
    best, root = fits[int(np.argmax([_log_likelihood(held_out, tables) for tables, _ in fits]))]
    rows = np.stack([table * width + bin_map for table, bin_map in enumerate(coarse)])
    return SumScore(tuple(columns), best.ravel()[rows], rows, root)


def shared_table(sample: SampleTable, columns: list[int], bins: int, max_read: int = MAX_READ) -> Score | None:
    """Learn one table that all these features share, for outputs whose entries are alike."""
    if len(columns) < 3:
        return None
    coarse = [coarse_bins(sample, column, bins, 1.0) for column in columns]
    width = max(int(bin_map.max()) for bin_map in coarse) + 1
    design = _Design.of(_first_rows(sample, len(columns), max_read), columns, coarse, [0] * len(columns), width)
    tables, root = _fit_tables(design, PENALTIES[0], 4)
    rows = np.stack(coarse)
    return SumScore(tuple(columns), tables.ravel()[rows], rows, root)


def trees(sample: SampleTable, rounds: int = 8, depth: int = 2, rows: int = 400_000) -> Score | None:
    """Learn boosted trees over the entries and summaries of the outputs."""
    columns = sample.space.columns_in("base", "summary")
    if len(columns) < 2:
        return None
    first, second = sample.a[:rows], sample.b[:rows]
    codes = np.ascontiguousarray(np.concatenate([first.codes[:, columns], second.codes[:, columns]]).T)
    target = np.concatenate([np.ones(len(first)), np.zeros(len(second))])
    margin, splits, leaves = np.zeros(len(target)), [], []
    for _ in range(rounds):
        tree, values, places = _grow_tree(codes, target, margin, depth)
        margin += values[places]
        splits.append(tuple((columns[place], cut) for place, cut in tree))
        leaves.append(values)
    return TreeScore(tuple(splits), tuple(leaves))


def coarse_bins(sample: SampleTable, column: int, bins: int, power: float = MASS_POWER) -> BinMap:
    """Map the 256 fine bins to about `bins` coarser ones; NaN and bins of large mass stay separate."""
    first, second = sample.counts(column)
    mass = (first + second) / max(len(sample.a) + len(sample.b), 1)
    weight = mass**power
    middle = np.cumsum(weight) - weight / 2
    place = np.minimum(bins * middle / max(weight.sum(), 1e-300), bins - 1).astype(np.intp)
    alone = mass > 1 / bins
    alone[0] = mass[0] > 0
    starts = np.concatenate([[False], (np.diff(place) > 0) | alone[1:] | alone[:-1]])
    result: BinMap = np.cumsum(starts)
    return result


def _first_rows(sample: SampleTable, columns: int, max_read: int) -> SampleTable:
    """Return the first outputs, so many that rows times columns is about `max_read`."""
    rows = max(2000, max_read // columns)
    return SampleTable(sample.space, sample.a[:rows], sample.b[:rows])


def _log_ratio(a: NDArray[Any], b: NDArray[Any]) -> Floats:
    """Return the log-likelihood ratio of each cell, from its hits on each input; half a hit is added to both."""
    scale = (b.sum() + 1) / (a.sum() + 1)
    result: Floats = np.log((a * scale + 0.5) / (b + 0.5))
    return result


def _difference_penalty(length: int) -> Floats:
    """Return the quadratic penalty on differences of neighbouring bins; the first bin, of NaN, has no neighbour."""
    steps = np.diff(np.eye(length), axis=0)[1:]
    result: Floats = steps.T @ steps
    return result


def _smooth_log_ratios(early: list[NDArray[Any]], late: list[NDArray[Any]], penalty: Floats) -> Floats:
    """Estimate smooth log-ratios of counts; the smoothness is the one whose early fit best predicts the late counts."""
    fits = [_fit_log_ratios(early[0], early[1], strength * penalty) for strength in SMOOTHNESS]
    shift = np.log((late[0].sum() + 1) / (late[1].sum() + 1))
    log_likelihoods = [
        float(late[0] @ special.log_expit(fit + shift) + late[1] @ special.log_expit(-fit - shift)) for fit in fits
    ]
    best = SMOOTHNESS[int(np.argmax(log_likelihoods))]
    return _fit_log_ratios(early[0] + late[0], early[1] + late[1], best * penalty)


def _fit_log_ratios(first: NDArray[Any], second: NDArray[Any], penalty: Floats, steps: int = 6) -> Floats:
    """Estimate the log-ratio of each cell under a penalty, by Newton's method."""
    shift = np.log((first.sum() + 1) / (second.sum() + 1))
    total, result = first + second, np.zeros(len(first))
    ridge_penalty = penalty + 0.5 * np.eye(len(first))
    for _ in range(steps):
        chance = special.expit(result + shift)
        curvature = ridge_penalty + np.diag(np.maximum(total * chance * (1 - chance), 1e-9))
        move = linalg.solve(curvature, first - total * chance - ridge_penalty @ result, assume_a="pos")
        result = result + np.clip(move, -2, 2)
        if np.max(np.abs(move)) < 1e-3:
            break
    return result


@dataclass(frozen=True)
class _Block:
    """Some columns of coarse bins, combined as the digits of one code per output, and the table of each column."""

    codes: BinMap
    table_indices: tuple[int, ...]

    def sums(self, tables: Floats) -> Floats:
        """Return the sum of the tables for each code."""
        total = np.zeros(1)
        for index in self.table_indices:
            total = np.add.outer(total, tables[index]).ravel()
        return total

    def marginals(self, sums: Floats, bins: int) -> list[Floats]:
        """Return the marginal over the bins of each column, given a sum for each code."""
        cube = sums.reshape((bins,) * len(self.table_indices))
        axes = range(len(self.table_indices))
        return [cube.sum(axis=tuple(other for other in axes if other != axis)) for axis in axes]


@dataclass(frozen=True)
class _Design:
    """The design of a regression: coarse bins of both inputs, in blocks of columns that one lookup reads together."""

    blocks: tuple[_Block, ...]
    bins: int
    target: Floats

    @classmethod
    def of(
        cls, sample: SampleTable, columns: list[int], coarse: list[BinMap], table_indices: list[int], bins: int
    ) -> _Design:
        """Build the design of a sample; `table_indices` has the table that each column reads."""
        digits = max(1, int(np.log(MAX_BLOCK_CODES) / np.log(max(bins, 2))))
        blocks = []
        for start in range(0, len(columns), digits):
            codes = np.zeros(len(sample.a) + len(sample.b), np.intp)
            for column, bin_map in list(zip(columns, coarse, strict=True))[start : start + digits]:
                codes *= bins
                codes[: len(sample.a)] += bin_map[sample.a.codes[:, column]]
                codes[len(sample.a) :] += bin_map[sample.b.codes[:, column]]
            blocks.append(_Block(codes, tuple(table_indices[start : start + digits])))
        target = np.concatenate([np.ones(len(sample.a)), np.zeros(len(sample.b))])
        return cls(tuple(blocks), bins, target)

    @property
    def table_indices(self) -> list[int]:
        """The table that each column reads."""
        return [index for block in self.blocks for index in block.table_indices]

    @cached_property
    def shift(self) -> float:
        """The log of the ratio of the two inputs' numbers of runs."""
        first = self.target.sum()
        return float(np.log((first + 1) / (len(self.target) - first + 1)))

    def margin(self, tables: Floats) -> Floats:
        """Return the sum of the tables for each output."""
        total = np.zeros(len(self.target))
        for block in self.blocks:
            total += block.sums(tables)[block.codes]
        return total

    def gradient(self, residual: Floats) -> Floats:
        """Return, for each entry of each table, the sum of the residuals of the outputs that read it."""
        result = np.zeros((max(self.table_indices) + 1, self.bins))
        for block in self.blocks:
            codes = self.bins ** len(block.table_indices)
            sums: Floats = np.bincount(block.codes, residual, minlength=codes).astype(float)
            for index, marginal in zip(block.table_indices, block.marginals(sums, self.bins), strict=True):
                result[index] += marginal
        return result

    @cached_property
    def curvature(self) -> Floats:
        """A bound on the curvature of the loss (Boehning), estimated from some of the rows."""
        step = max(1, len(self.target) // CURVATURE_ROWS)
        rows = np.arange(len(self.target[::step]))
        matrix = np.zeros((len(rows), (max(self.table_indices) + 1) * self.bins), dtype=np.float32)
        for block in self.blocks:
            codes = block.codes[::step]
            for index in reversed(block.table_indices):
                codes, digit = np.divmod(codes, self.bins)
                matrix[rows, index * self.bins + digit] += 1
        matrix -= matrix.mean(axis=0)
        result: Floats = CURVATURE_BOUND * len(self.target) / len(rows) * (matrix.T @ matrix).astype(np.float64)
        return result


def _log_likelihood(design: _Design, tables: Floats) -> float:
    """Return the log-likelihood of the tables."""
    margin = design.margin(tables) + design.shift
    return float(special.log_expit(np.where(design.target > 0, margin, -margin)).sum())


def _fit_tables(design: _Design, penalty: float, steps: int = 8) -> tuple[Floats, Floats]:
    """Fit a penalised logistic regression; bounding the curvature once makes each step one pass over the data.

    Return the tables and a root of their covariance, both centred on the mean output.
    """
    tables = np.zeros((max(design.table_indices) + 1, design.bins))
    penalties = penalty * np.kron(np.eye(len(tables)), _difference_penalty(design.bins)) + np.eye(tables.size)
    bound = design.curvature + penalties
    bound += 1e-5 * np.max(np.diag(bound)) * np.eye(len(bound))
    factor = linalg.cho_factor(bound)
    for _ in range(steps):
        margin = design.margin(tables)
        residual = design.target - special.expit(margin - margin.mean() + design.shift)
        gradient = design.gradient(residual - residual.mean()) - (penalties @ tables.ravel()).reshape(tables.shape)
        move = linalg.cho_solve(factor, gradient.ravel()).reshape(tables.shape)
        tables = tables + move
        if np.max(np.abs(move)) < 3e-3 * np.max(np.abs(tables)) + 1e-9:
            break
    margin, reads = design.margin(tables), design.gradient(np.ones(len(design.target))).ravel() / len(design.target)
    chance = special.expit(margin - margin.mean() + design.shift)
    root = _inverse_root(bound) * np.sqrt(CURVATURE_BOUND / np.mean(chance * (1 - chance)))
    return tables - margin.mean() / len(design.table_indices), root - reads @ root / len(design.table_indices)


def _grow_tree(
    codes: BinCodes, target: Floats, margin: Floats, depth: int, rate: float = 0.3
) -> tuple[tuple[tuple[int, int], ...], Floats, BinMap]:
    """Grow a tree; each depth takes the cut that lowers the logistic loss most, summed over all leaves.

    Return the cuts, the values of the leaves, and the leaf of each output.
    """
    chance = special.expit(margin)
    gradient, curvature = target - chance, chance * (1 - chance)
    tree: list[tuple[int, int]] = []
    for level in range(depth):
        leaf = leaf_index(codes.T, tuple(tree))
        cuts = [_best_cut(codes[column], leaf, 1 << level, gradient, curvature) for column in range(len(codes))]
        column = int(np.argmax([gain for gain, _ in cuts]))
        tree.append((column, cuts[column][1]))
    leaf = leaf_index(codes.T, tuple(tree))
    total, weight = (np.bincount(leaf, values, minlength=1 << depth) for values in (gradient, curvature))
    return tuple(tree), rate * total / (weight + 5.0), leaf


def _best_cut(column: BinCodes, leaf: BinMap, leaves: int, gradient: Floats, curvature: Floats) -> tuple[float, int]:
    """Return the largest gain of a cut of one feature, and the cut."""
    cell = leaf * 256 + column
    slope, weight = (
        np.cumsum(np.bincount(cell, values, minlength=leaves * 256).reshape(leaves, 256), axis=1)
        for values in (gradient, curvature)
    )
    rest_slope, rest_weight = slope[:, -1:] - slope, weight[:, -1:] - weight
    gain = (slope**2 / (weight + 5.0) + rest_slope**2 / (rest_weight + 5.0)).sum(axis=0)
    cut = int(np.argmax(gain))
    return float(gain[cut]), cut
