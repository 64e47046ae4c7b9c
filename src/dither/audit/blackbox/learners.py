"""Learners of scores: which outputs are likelier on one input than on the other, and how much.

Every learner estimates the logarithm of the likelihood ratio; by the lemma of Neyman and Pearson the best events are
the sets where that ratio is large. Learners range from tables over the bins of a single column, whose events a person
can check by hand, through surfaces over two columns and sums of tables over many, to boosted trees. Neighbouring bins
of a table are held together, as firmly as predicts best the outputs that were held back.
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
    CellScore,
    Codes,
    ColumnScore,
    Encoded,
    JointScore,
    OutcomeSpace,
    SampleTable,
    Score,
    SumScore,
    TreeScore,
    leaf,
)
from dither.audit.claims import Floats

Groups = NDArray[np.intp]
Learner = Callable[[SampleTable], Score | None]

MOST_CELLS = 200_000
MOST_WIDTH = 400
CURVATURE_ROWS = 40_000
# A little more than the largest curvature that an output can have, which is a quarter.
BOUND = 0.27
# Columns of a regression are read together as long as there are no more combinations of their bins.
MOST_IN_BLOCK = 1024
# Rows times columns of the largest regression, in a first look and in the last.
MOST_READ, MOST_READ_AT_LAST = 3_000_000, 10_000_000
# How strongly neighbouring bins are held together: from hardly to nearly equal.
SMOOTHNESS = (0.3, 30.0, 1000.0, 30_000.0)
PENALTIES = (3.0, 300.0)
# Bins grow with the power of their mass: 1 gives bins of equal mass, 0 as many in the tails as the fine bins have.
MASS_POWER, FLAT = 0.4, 0.05
# Bins of a surface along each side; a feature has few values if it has no more than these.
FINE, FEW_VALUES = 40, 16


def light(space: OutcomeSpace) -> list[Learner]:
    """Learners that are quick and do well on small samples."""
    found = [partial(coarse_column, column=column) for column in range(len(space.edges))] + _cells(space)
    for columns in (space.group("base"), space.group("difference")):
        found.append(partial(additive, columns=columns, bins=2))
    return found


def quick(space: OutcomeSpace) -> list[Learner]:
    """Learners for a first look at a pair."""
    found = [partial(coarse_column, column=column) for column in range(len(space.edges))] + _cells(space)
    found += [partial(surface, pair=pair, degree=3) for pair in pairs(space)]
    for columns in _families(space):
        found += [partial(additive, columns=columns, bins=4), partial(tied, columns=columns, bins=2)]
    return found


def thorough(space: OutcomeSpace) -> list[Learner]:
    """Every learner."""
    found = [partial(smooth_column, column=column) for column in range(len(space.edges))] + _cells(space)
    for pair in pairs(space):
        found += [partial(surface, pair=pair, degree=degree) for degree in (2, 3, 5)]
        found += [partial(surface, pair=pair, degree=degree, free=True) for degree in (1, 3)]
    for columns in _families(space):
        last = partial(additive, columns=columns, most=MOST_READ_AT_LAST)
        found += [partial(last, bins=4, power=1.0), partial(last, bins=3)]
        found += [partial(tied, columns=columns, bins=bins, most=MOST_READ_AT_LAST) for bins in (2, 8)]
    return [*found, trees]


def _cells(space: OutcomeSpace) -> list[Learner]:
    return [partial(cells, doubtful=doubtful) for doubtful in (False, True)] if space.discrete else []


def pairs(space: OutcomeSpace, most: int = 4) -> list[tuple[int, int]]:
    """Pairs of features that may tell more together: of the outputs themselves, and of what sums them up."""
    groups = (space.group("base")[:most], space.group("summary")[:most])
    return [pair for columns in groups for pair in combinations(columns, 2)]


def _families(space: OutcomeSpace) -> list[list[int]]:
    """Columns that may belong together: the outputs, their steps from one to the next, summaries of the whole."""
    base, steps = space.group("base"), space.group("difference")
    found = [base, base[:1] + steps, space.group("summary")]
    return [columns for columns in found if len(columns) > 1]


def coarse_column(sample: SampleTable, column: int, bins: int = 12) -> Score | None:
    """The ratio of each of a few bins of one feature."""
    group = groups(sample, column, bins, 1.0)
    a, b = (np.bincount(group, counts).astype(np.intp) for counts in sample.counts(column))
    return ColumnScore(column, _log_ratio(a, b)[group])


def smooth_column(sample: SampleTable, column: int) -> Score | None:
    """The ratio of each bin of one feature, smoothed."""
    used = len(sample.space.edges[column]) + 2
    early, late = sample.part(0, 2 / 3), sample.part(2 / 3, 1)
    table = np.zeros(256)
    table[:used] = _smoothed(
        [side[:used] for side in early.counts(column)], [side[:used] for side in late.counts(column)], _path(used)
    )
    return ColumnScore(column, table)


def cells(sample: SampleTable, doubtful: bool) -> Score | None:
    """The ratio of each whole output, where outputs repeat; if doubtful, drawn towards none by its standard error."""
    keys, inverse = np.unique(np.concatenate([sample.a.keys, sample.b.keys]), return_inverse=True)
    if len(keys) > MOST_CELLS:
        return None
    first = np.bincount(inverse[: len(sample.a)], minlength=len(keys))
    second = np.bincount(inverse[len(sample.a) :], minlength=len(keys))
    ratio = _log_ratio(first, second)
    doubt = np.sqrt(1 / (first + 0.5) + 1 / (second + 0.5))
    return CellScore(keys, np.sign(ratio) * np.maximum(np.abs(ratio) - doubt, 0) if doubtful else ratio)


def surface(sample: SampleTable, pair: tuple[int, int], degree: int, free: bool = False) -> Score | None:
    """A polynomial over two features: few numbers to learn, so it may be trusted where outputs are rare.

    If `free`, a feature of few values has a polynomial of the other feature for each of them.
    """
    coarse = (groups(sample, pair[0], FINE, FLAT), groups(sample, pair[1], FINE, FLAT))
    shape = (int(coarse[0].max()) + 1, int(coarse[1].max()) + 1)
    if free and min(shape) > FEW_VALUES:
        return None
    first, second = (_grid(side, pair, coarse, shape) for side in (sample.a, sample.b))
    sides = [_basis(group, degree, free) for group in coarse]
    design = np.einsum("ai,bj->abij", *sides).reshape(shape[0] * shape[1], -1)
    weights, root = _logistic(design, first, second)
    doubts, held = design @ root, (first + second) / max(first.sum() + second.sum(), 1)
    return JointScore(pair, coarse, (design @ weights).reshape(shape), doubts - held @ doubts)


def _basis(group: Groups, degree: int, free: bool) -> Floats:
    """Functions of a bin: polynomials, and one for what is not a number; or one for each bin, if there are few."""
    size, start = int(group.max()) + 1, int(group[1])
    if free and size <= FEW_VALUES:
        return np.eye(size)
    result = np.zeros((size, degree + 1 + start))
    result[start:, : degree + 1] = legendre.legvander(np.linspace(-1, 1, size - start), degree)
    result[:start, degree + 1 :] = 1
    return result


def _logistic(design: Floats, first: Groups, second: Groups, steps: int = 12) -> tuple[Floats, Floats]:
    """Logistic regression on counts, by Newton's method: the weights, and a root of their covariance."""
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
    """A matrix whose rows' inner products are the inverse of the curvature."""
    lower = linalg.cholesky(curvature, lower=True)
    result: Floats = linalg.solve_triangular(lower, np.eye(len(lower)), lower=True).T
    return result


def _grid(side: Encoded, pair: tuple[int, int], coarse: tuple[Groups, Groups], shape: tuple[int, int]) -> Groups:
    """How many outputs lie in each cell of a grid over two features."""
    cell = coarse[0][side.codes[:, pair[0]]] * shape[1] + coarse[1][side.codes[:, pair[1]]]
    return np.bincount(cell, minlength=shape[0] * shape[1])


def additive(
    sample: SampleTable, columns: list[int], bins: int, power: float = MASS_POWER, most: int = MOST_READ
) -> Score | None:
    """A table for each feature, and the sum of what they say: logistic regression on indicators of bins."""
    if len(columns) < 2:
        return None
    coarse = [groups(sample, column, bins, power) for column in columns]
    width = max(int(group.max()) for group in coarse) + 1
    if len(columns) * width > MOST_WIDTH:
        return None
    few = _few(sample, len(columns), most)
    early, late = few.part(0, 0.75), few.part(0.75, 1)
    owners = list(range(len(columns)))
    design, held_back = (_Design.of(part, columns, coarse, owners, width) for part in (early, late))
    fits = [_newton(design, penalty) for penalty in PENALTIES]
    best, root = fits[int(np.argmax([_likelihood(held_back, fit) for fit, _ in fits]))]
    rows = np.stack([place * width + group for place, group in enumerate(coarse)])
    return SumScore(tuple(columns), best.ravel()[rows], rows, root)


def tied(sample: SampleTable, columns: list[int], bins: int, most: int = MOST_READ) -> Score | None:
    """One table for all these features, for outputs that are many draws of one kind."""
    if len(columns) < 3:
        return None
    coarse = [groups(sample, column, bins, 1.0) for column in columns]
    width = max(int(group.max()) for group in coarse) + 1
    design = _Design.of(_few(sample, len(columns), most), columns, coarse, [0] * len(columns), width)
    tables, root = _newton(design, PENALTIES[0], 4)
    rows = np.stack(coarse)
    return SumScore(tuple(columns), tables.ravel()[rows], rows, root)


def trees(sample: SampleTable, rounds: int = 8, depth: int = 2, rows: int = 400_000) -> Score | None:
    """Boosted trees over the outputs and what sums them up."""
    columns = sample.space.group("base", "summary")
    if len(columns) < 2:
        return None
    first, second = sample.a[:rows], sample.b[:rows]
    codes = np.ascontiguousarray(np.concatenate([first.codes[:, columns], second.codes[:, columns]]).T)
    target = np.concatenate([np.ones(len(first)), np.zeros(len(second))])
    margin, splits, leaves = np.zeros(len(target)), [], []
    for _ in range(rounds):
        tree, values, places = _grow(codes, target, margin, depth)
        margin += values[places]
        splits.append(tuple((columns[place], cut) for place, cut in tree))
        leaves.append(values)
    return TreeScore(tuple(splits), tuple(leaves))


def groups(sample: SampleTable, column: int, bins: int, power: float = MASS_POWER) -> Groups:
    """A map from the 256 fine bins to about `bins` coarser ones; NaN and values that hold much mass stand alone."""
    first, second = sample.counts(column)
    mass = (first + second) / max(len(sample.a) + len(sample.b), 1)
    weight = mass**power
    middle = np.cumsum(weight) - weight / 2
    place = np.minimum(bins * middle / max(weight.sum(), 1e-300), bins - 1).astype(np.intp)
    alone = mass > 1 / bins
    alone[0] = mass[0] > 0
    starts = np.concatenate([[False], (np.diff(place) > 0) | alone[1:] | alone[:-1]])
    result: Groups = np.cumsum(starts)
    return result


def _few(sample: SampleTable, columns: int, most: int) -> SampleTable:
    rows = max(2000, most // columns)
    return SampleTable(sample.space, sample.a[:rows], sample.b[:rows])


def _log_ratio(a: NDArray[Any], b: NDArray[Any]) -> Floats:
    scale = (b.sum() + 1) / (a.sum() + 1)
    result: Floats = np.log((a * scale + 0.5) / (b + 0.5))
    return result


def _path(length: int) -> Floats:
    """The penalty on differences of neighbouring bins; the first stands alone."""
    steps = np.diff(np.eye(length), axis=0)[1:]
    result: Floats = steps.T @ steps
    return result


def _smoothed(early: list[NDArray[Any]], late: list[NDArray[Any]], penalty: Floats) -> Floats:
    """Log-ratios of counts; how smooth, is chosen by what predicts the later counts from the earlier."""
    fits = [_penalised(early[0], early[1], strength * penalty) for strength in SMOOTHNESS]
    shift = np.log((late[0].sum() + 1) / (late[1].sum() + 1))
    gains = [
        float(late[0] @ special.log_expit(fit + shift) + late[1] @ special.log_expit(-fit - shift)) for fit in fits
    ]
    best = SMOOTHNESS[int(np.argmax(gains))]
    return _penalised(early[0] + late[0], early[1] + late[1], best * penalty)


def _penalised(first: NDArray[Any], second: NDArray[Any], penalty: Floats, steps: int = 6) -> Floats:
    """The log-ratio of each cell under a penalty, by Newton's method."""
    shift = np.log((first.sum() + 1) / (second.sum() + 1))
    total, result = first + second, np.zeros(len(first))
    kept = penalty + 0.5 * np.eye(len(first))
    for _ in range(steps):
        chance = special.expit(result + shift)
        curvature = kept + np.diag(np.maximum(total * chance * (1 - chance), 1e-9))
        move = linalg.solve(curvature, first - total * chance - kept @ result, assume_a="pos")
        result = result + np.clip(move, -2, 2)
        if np.max(np.abs(move)) < 1e-3:
            break
    return result


@dataclass(frozen=True)
class _Block:
    """Some grouped columns of both inputs as one number of that many digits, and which table each column reads."""

    codes: Groups
    owners: tuple[int, ...]

    def sums(self, tables: Floats) -> Floats:
        """The sum of the tables for each number."""
        total = np.zeros(1)
        for owner in self.owners:
            total = np.add.outer(total, tables[owner]).ravel()
        return total

    def shares(self, sums: Floats, bins: int) -> list[Floats]:
        """What each column has of sums over the numbers."""
        cube = sums.reshape((bins,) * len(self.owners))
        places = range(len(self.owners))
        return [cube.sum(axis=tuple(other for other in places if other != place)) for place in places]


@dataclass(frozen=True)
class _Design:
    """Grouped columns of both inputs, several in a block so that one look reads them all."""

    blocks: tuple[_Block, ...]
    bins: int
    target: Floats

    @classmethod
    def of(cls, sample: SampleTable, columns: list[int], coarse: list[Groups], owners: list[int], bins: int) -> _Design:
        """The design for a sample."""
        digits = max(1, int(np.log(MOST_IN_BLOCK) / np.log(max(bins, 2))))
        blocks = []
        for start in range(0, len(columns), digits):
            codes = np.zeros(len(sample.a) + len(sample.b), np.intp)
            for column, group in list(zip(columns, coarse, strict=True))[start : start + digits]:
                codes *= bins
                codes[: len(sample.a)] += group[sample.a.codes[:, column]]
                codes[len(sample.a) :] += group[sample.b.codes[:, column]]
            blocks.append(_Block(codes, tuple(owners[start : start + digits])))
        target = np.concatenate([np.ones(len(sample.a)), np.zeros(len(sample.b))])
        return cls(tuple(blocks), bins, target)

    @property
    def owners(self) -> list[int]:
        """Which table each column reads."""
        return [owner for block in self.blocks for owner in block.owners]

    @cached_property
    def shift(self) -> float:
        """The logarithm of the ratio of the numbers of runs."""
        first = self.target.sum()
        return float(np.log((first + 1) / (len(self.target) - first + 1)))

    def margin(self, tables: Floats) -> Floats:
        """The sum of the tables for each output."""
        total = np.zeros(len(self.target))
        for block in self.blocks:
            total += block.sums(tables)[block.codes]
        return total

    def slope(self, residual: Floats) -> Floats:
        """For each entry of each table, the sum of the residuals of the outputs that read it."""
        result = np.zeros((max(self.owners) + 1, self.bins))
        for block in self.blocks:
            sums: Floats = np.bincount(block.codes, residual, minlength=self.bins ** len(block.owners)).astype(float)
            for owner, share in zip(block.owners, block.shares(sums, self.bins), strict=True):
                result[owner] += share
        return result

    @cached_property
    def curvature(self) -> Floats:
        """A bound on the curvature of the loss (Boehning), from some of the rows."""
        step = max(1, len(self.target) // CURVATURE_ROWS)
        rows = np.arange(len(self.target[::step]))
        matrix = np.zeros((len(rows), (max(self.owners) + 1) * self.bins), dtype=np.float32)
        for block in self.blocks:
            codes = block.codes[::step]
            for owner in reversed(block.owners):
                codes, digit = np.divmod(codes, self.bins)
                matrix[rows, owner * self.bins + digit] += 1
        matrix -= matrix.mean(axis=0)
        result: Floats = BOUND * len(self.target) / len(rows) * (matrix.T @ matrix).astype(np.float64)
        return result


def _likelihood(design: _Design, tables: Floats) -> float:
    margin = design.margin(tables) + design.shift
    return float(special.log_expit(np.where(design.target > 0, margin, -margin)).sum())


def _newton(design: _Design, penalty: float, steps: int = 8) -> tuple[Floats, Floats]:
    """Penalised logistic regression with the curvature bounded once, so that each step is one pass.

    Returns the tables and a root of their covariance, both less what all outputs have in common.
    """
    tables = np.zeros((max(design.owners) + 1, design.bins))
    held = penalty * np.kron(np.eye(len(tables)), _path(design.bins)) + np.eye(tables.size)
    bound = design.curvature + held
    bound += 1e-5 * np.max(np.diag(bound)) * np.eye(len(bound))
    factor = linalg.cho_factor(bound)
    for _ in range(steps):
        margin = design.margin(tables)
        residual = design.target - special.expit(margin - margin.mean() + design.shift)
        slope = design.slope(residual - residual.mean()) - (held @ tables.ravel()).reshape(tables.shape)
        move = linalg.cho_solve(factor, slope.ravel()).reshape(tables.shape)
        tables = tables + move
        if np.max(np.abs(move)) < 3e-3 * np.max(np.abs(tables)) + 1e-9:
            break
    margin, reads = design.margin(tables), design.slope(np.ones(len(design.target))).ravel() / len(design.target)
    chance = special.expit(margin - margin.mean() + design.shift)
    root = _inverse_root(bound) * np.sqrt(BOUND / np.mean(chance * (1 - chance)))
    return tables - margin.mean() / len(design.owners), root - reads @ root / len(design.owners)


def _grow(
    codes: Codes, target: Floats, margin: Floats, depth: int, rate: float = 0.3
) -> tuple[tuple[tuple[int, int], ...], Floats, Groups]:
    """One tree: at each depth the question that lowers the logistic loss most over all leaves together."""
    chance = special.expit(margin)
    gradient, curvature = target - chance, chance * (1 - chance)
    tree: list[tuple[int, int]] = []
    for level in range(depth):
        places = leaf(codes.T, tuple(tree))
        gains = [_best_cut(codes[column], places, 1 << level, gradient, curvature) for column in range(len(codes))]
        column = int(np.argmax([gain for gain, _ in gains]))
        tree.append((column, gains[column][1]))
    places = leaf(codes.T, tuple(tree))
    total, weight = (np.bincount(places, values, minlength=1 << depth) for values in (gradient, curvature))
    return tuple(tree), rate * total / (weight + 5.0), places


def _best_cut(column: Codes, places: Groups, leaves: int, gradient: Floats, curvature: Floats) -> tuple[float, int]:
    """The cut of one feature with the largest gain."""
    cell = places * 256 + column
    slope, weight = (
        np.cumsum(np.bincount(cell, values, minlength=leaves * 256).reshape(leaves, 256), axis=1)
        for values in (gradient, curvature)
    )
    rest_slope, rest_weight = slope[:, -1:] - slope, weight[:, -1:] - weight
    gain = (slope**2 / (weight + 5.0) + rest_slope**2 / (rest_weight + 5.0)).sum(axis=0)
    cut = int(np.argmax(gain))
    return float(gain[cut]), cut
