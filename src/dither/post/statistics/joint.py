"""Joint distributions from noisy pair tables: one table of all columns, or a tree of pairs where that is too large.

The table is p(x) proportional to exp(sum of weights w_ij(x_i, x_j)) over independent columns. Its weights minimize
n log Z(w) - <w, noisy pairs> + variance min(PRIOR_ROWS / n, PRIOR_SHARE) / 2 |w|^2: it has the most entropy of those
whose pairs are as near the noisy ones as noise allows. With all columns as indicators, all pairs are one product of
three matrices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import prod

import numpy as np
from scipy.optimize import minimize

from dither.post.noise import Floats
from dither.post.statistics.consistency import project_to_simplex

Pairs = Mapping[tuple[int, int], Floats]
# The largest table of all columns; beyond, a tree of pairs.
MAX_CELLS = 1 << 20
# The entropy counts as much as this many rows beside the distance of pairs from their noisy tables; in small tables as
# this share of the rows, since it would hide strong dependence otherwise.
PRIOR_ROWS, PRIOR_SHARE = 600.0, 0.1
ITERATIONS = 200
LEAST_COUNT = 0.5


@dataclass(frozen=True)
class JointTable:
    """The probabilities of every combination of places, one axis for each column."""

    cells: Floats

    def pair(self, i: int, j: int) -> Floats:
        """Return the probabilities of a pair of columns."""
        others = tuple(axis for axis in range(self.cells.ndim) if axis not in (i, j))
        return np.asarray(self.cells.sum(axis=others))

    def draw(self, count: int, random: np.random.Generator) -> Floats:
        """Return the places of `count` rows, a column each: every combination as often as its share, within one."""
        ends = np.cumsum(self.cells.ravel())
        levels = (np.arange(count) + random.random()) / count * ends[-1]
        chosen = np.searchsorted(ends, levels, side="right").clip(0, len(ends) - 1)
        random.shuffle(chosen)
        return np.column_stack(np.unravel_index(chosen, self.cells.shape))


@dataclass(frozen=True)
class PairTree:
    """A tree of columns: the first column's probabilities, and for each other its parent and their joint table."""

    root: int
    first: Floats
    edges: tuple[tuple[int, int, Floats], ...]
    size: int

    def pair(self, i: int, j: int) -> Floats:
        """Return the probabilities of a pair of columns, along the path between them."""
        common = next(column for column in self._ancestors(i) if column in self._ancestors(j))
        share = self.first @ self._below(self.root, common)
        return np.asarray(np.einsum("r,ri,rj->ij", share, self._below(common, i), self._below(common, j)))

    def _parents(self) -> dict[int, tuple[int, Floats]]:
        return {child: (parent, table) for parent, child, table in self.edges}

    def _ancestors(self, column: int) -> list[int]:
        found = [column]
        while found[-1] != self.root:
            found.append(self._parents()[found[-1]][0])
        return found

    def _below(self, ancestor: int, column: int) -> Floats:
        """Return the probabilities of a column's places given those of an ancestor."""
        if column == ancestor:
            return np.eye(len(self.first) if column == self.root else self._parents()[column][1].shape[1])
        parent, table = self._parents()[column]
        return np.asarray(self._below(ancestor, parent) @ _conditional(table))

    def draw(self, count: int, random: np.random.Generator) -> Floats:
        """Return the places of `count` rows, a column each."""
        places = np.zeros((count, self.size), int)
        places[:, self.root] = random.choice(len(self.first), count, p=self.first)
        for parent, child, table in self.edges:
            ends = np.cumsum(_conditional(table), axis=1)[places[:, parent]]
            places[:, child] = (random.random(count)[:, None] > ends).sum(axis=1).clip(0, table.shape[1] - 1)
        return places


def _conditional(table: Floats) -> Floats:
    """Return the probabilities of the second column given the first; even where the first has none."""
    totals = table.sum(axis=1, keepdims=True)
    return np.asarray(np.where(totals > 0, table / np.where(totals > 0, totals, 1), 1 / table.shape[1]))


def fit_joint(
    sizes: Sequence[int], pairs: Pairs, variance: float, iterations: int = ITERATIONS
) -> JointTable | PairTree:
    """Fit a joint distribution to noisy pair tables, whose cells have noise of one variance."""
    if prod(sizes) <= MAX_CELLS:
        return fit_table(sizes, pairs, variance, iterations)
    return fit_tree(sizes, pairs)


def single_columns(sizes: Sequence[int], pairs: Pairs) -> list[Floats]:
    """Return the probabilities of each column, from the sums of its pairs weighted by their precision."""
    found = []
    for column, size in enumerate(sizes):
        sums, weight = np.zeros(size), 0.0
        for (i, j), table in pairs.items():
            if column in (i, j):
                other = 1 if column == i else 0
                sums, weight = sums + table.sum(axis=other) / table.shape[other], weight + 1 / table.shape[other]
        counts = np.maximum(sums / max(weight, 1e-300), LEAST_COUNT)
        found.append(counts / counts.sum())
    return found


def total_count(pairs: Pairs) -> float:
    """Return the number of rows, at least 1: the mean of the pairs' totals weighted by their precision."""
    weights = np.array([1 / table.size for table in pairs.values()])
    totals = np.array([table.sum() for table in pairs.values()])
    return max(1.0, float(weights @ totals / weights.sum()))


@dataclass(frozen=True)
class _Encoding:
    """Columns as indicators, in two halves: all pair tables of p are blocks of one matrix."""

    sizes: Sequence[int]
    left: tuple[int, ...]
    right: tuple[int, ...]

    @property
    def starts(self) -> list[int]:
        """The first indicator of each column."""
        return [0, *np.cumsum(self.sizes).tolist()]

    def indicators(self, columns: Sequence[int]) -> Floats:
        """Return the indicators of each combination of places of some columns, one combination in each column."""
        places = np.indices([self.sizes[column] for column in columns]).reshape(len(columns), -1)
        matrix = np.zeros((sum(self.sizes), places.shape[1]))
        for row, column in enumerate(columns):
            matrix[self.starts[column] + places[row], np.arange(places.shape[1])] = 1
        return matrix


def split_columns(sizes: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Split columns into two halves with about as many combinations each."""
    halves: tuple[list[int], list[int]] = ([], [])
    weights = [0.0, 0.0]
    for column in sorted(range(len(sizes)), key=lambda c: -sizes[c]):
        half = int(weights[1] < weights[0])
        halves[half].append(column)
        weights[half] += np.log(max(sizes[column], 1))
    return tuple(halves[0]), tuple(halves[1])


def fit_table(sizes: Sequence[int], pairs: Pairs, variance: float, iterations: int = ITERATIONS) -> JointTable:
    """Fit the table of all columns."""
    encoding = _Encoding(sizes, *split_columns(sizes))
    left, right = encoding.indicators(encoding.left), encoding.indicators(encoding.right)
    starts, count = encoding.starts, total_count(pairs)
    owners = np.repeat(np.arange(len(sizes)), sizes)
    upper = np.triu_indices(sum(sizes))
    used = tuple(index[owners[upper[0]] != owners[upper[1]]] for index in upper)
    noisy = np.zeros((sum(sizes),) * 2)
    for (i, j), table in pairs.items():
        noisy[starts[i] : starts[i] + sizes[i], starts[j] : starts[j] + sizes[j]] = table
        noisy[starts[j] : starts[j] + sizes[j], starts[i] : starts[i] + sizes[i]] = table.T
    base = np.log(np.concatenate(single_columns(sizes, pairs)))
    offset = (base @ left)[:, None] + (base @ right)[None, :]
    penalty = variance * min(PRIOR_ROWS / count, PRIOR_SHARE)

    def cells_at(weights: Floats) -> tuple[Floats, float]:
        """Return the probabilities at some weights, and the logarithm of their sum before they were normalised."""
        matrix = np.zeros(noisy.shape)
        matrix[used] = weights
        matrix = matrix + matrix.T
        rows = ((matrix @ left) * left).sum(axis=0) / 2
        columns = ((matrix @ right) * right).sum(axis=0) / 2
        logs = offset + rows[:, None] + columns[None, :] + left.T @ matrix @ right
        largest = float(logs.max())
        cells = np.exp(logs - largest)
        total = float(cells.sum())
        return cells / total, largest + float(np.log(total))

    def objective(weights: Floats) -> tuple[float, Floats]:
        cells, log_total = cells_at(weights)
        across = left @ cells @ right.T
        own = (left * cells.sum(axis=1)) @ left.T + (right * cells.sum(axis=0)) @ right.T
        slope = (count * (own + across + across.T) - noisy)[used] + penalty * weights
        value = count * log_total - float(noisy[used] @ weights) + penalty / 2 * float(weights @ weights)
        return value, slope

    options = {"maxiter": iterations, "maxfun": 2 * iterations}
    found = minimize(objective, np.zeros(len(used[0])), jac=True, method="L-BFGS-B", options=options)
    cells = np.nan_to_num(cells_at(np.nan_to_num(found.x))[0])
    order = (*encoding.left, *encoding.right)
    shaped = cells.reshape([sizes[column] for column in order])
    return JointTable(np.ascontiguousarray(np.transpose(shaped, np.argsort(order))))


def fit_tree(sizes: Sequence[int], pairs: Pairs) -> PairTree:
    """Fit a tree of pairs: those with most mutual information, by the noisy tables."""
    tables = {pair: _probabilities(table) for pair, table in pairs.items()}
    ranked = sorted(combinations(range(len(sizes)), 2), key=lambda pair: -mutual_information(tables[pair]))
    neighbours: dict[int, list[int]] = {column: [] for column in range(len(sizes))}
    part = list(range(len(sizes)))
    for i, j in ranked:
        if part[i] != part[j]:
            part = [part[i] if each == part[j] else each for each in part]
            neighbours[i].append(j)
            neighbours[j].append(i)
    edges, seen, queue = [], {0}, [0]
    while queue:
        parent = queue.pop(0)
        for child in neighbours[parent]:
            if child not in seen:
                table = tables[parent, child] if parent < child else tables[child, parent].T
                edges.append((parent, child, table))
                seen.add(child)
                queue.append(child)
    return PairTree(0, single_columns(sizes, pairs)[0], tuple(edges), len(sizes))


def _probabilities(table: Floats) -> Floats:
    """Return the nearest probabilities to a noisy table."""
    total = max(1.0, float(table.sum()))
    return np.asarray(project_to_simplex(table, total) / total)


def mutual_information(table: Floats) -> float:
    """Return the mutual information of the columns of a table of probabilities."""
    product = np.outer(table.sum(axis=1), table.sum(axis=0))
    positive = table > 0
    return float((table[positive] * np.log(table[positive] / product[positive])).sum())
