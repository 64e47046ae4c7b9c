"""SUM(...) OVER (...) over the rows of an answer: noisy totals of other rows, as columns beside a row's own values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dither.plan.traversal import transform, walk
from dither.post.estimate.intervals import Banded, Estimate, Measured, NoisyColumn, estimate
from dither.post.formulas import (
    Formula,
    FunctionCall,
    KeyValue,
    NoisyCell,
    Values,
    WindowSum,
    cells_of,
    evaluate,
)
from dither.post.noise import Floats, ScaledNoise, interval_half_width
from dither.post.query.query_plan import CellRef, QuantileRef, QueryPlan, cell_substitution

# Up to this many noises are added up exactly, and more are as good as normal.
MAX_ADDED = 64
# Rows are estimated by the number of others in their windows, up to this many different numbers.
MAX_SIZES = 64


@dataclass(frozen=True)
class Windows:
    """The windows of a plan, replaced by sums: `plan` reads `columns`, of which the last are totals of other rows.

    `sizes` has, for each row, the number of other rows in each window; `added` has the window of each added column,
    and the column that it adds up.
    """

    plan: QueryPlan
    columns: tuple[NoisyColumn, ...]
    sizes: NDArray[np.int64]
    added: tuple[tuple[int, int], ...]

    @property
    def sources(self) -> list[CellRef | QuantileRef]:
        """The source of each column; a total of other rows has that of the column that it adds up."""
        own = self.plan.sources
        return [*own, *(own[index] for _, index in self.added)]


def resolve_windows(
    plan: QueryPlan, columns: Sequence[NoisyColumn], keys: Sequence[Values], size: int, confidence: float
) -> Windows:
    """Replace each window of a plan by its row's own value plus a column of what the other rows of the window add.

    A row and the others have independent noise, so that a share of a total gets the interval of such a ratio.
    """
    nodes = list(dict.fromkeys(node for node in walk((plan.outputs, plan.order)) if isinstance(node, WindowSum)))
    extended, sizes, added = list(columns), np.zeros((size, len(nodes)), np.int64), list[tuple[int, int]]()
    replaced: dict[WindowSum, Formula] = {}
    cells = [column.estimate for column in columns]
    kept = _passing_rows(plan, cells, keys, size)
    for place, node in enumerate(nodes):
        window = _Window(*_order_rows(node, cells, keys, kept))
        sizes[:, place] = window.add_others(np.ones(size))
        others: dict[int, Formula] = {}
        for index in sorted(cells_of(node.inner)):
            others[index] = NoisyCell(len(extended))
            most = int(sizes[:, place].max(initial=0))
            extended.append(_total_of_others(columns[index], window, size, most, confidence))
            added.append((place, index))
        replaced[node] = FunctionCall("add", (node.inner, cell_substitution(others)(node.inner)))
    changed = transform(plan, lambda node: replaced.get(node, node) if isinstance(node, WindowSum) else node)
    return Windows(changed, tuple(extended), sizes, tuple(added))


def estimate_with_windows(node: Formula, windows: Windows, keys: Sequence[Values], confidence: float) -> Estimate:
    """Estimate a formula; rows whose windows have more rows carry more noise."""
    first = len(windows.columns) - len(windows.added)
    used = [place for place in range(len(windows.added)) if first + place in cells_of(node)]
    if not used:
        return estimate(node, windows.columns, keys, confidence)
    of_rows = windows.sizes[:, [windows.added[place][0] for place in used]]
    different, inverse = np.unique(of_rows, axis=0, return_inverse=True)
    if len(different) > MAX_SIZES:
        return estimate(node, windows.columns, keys, confidence)
    whole = [np.zeros(len(of_rows)) for _ in range(4)]
    for number, counts in enumerate(different):
        rows = np.flatnonzero(inverse.ravel() == number)
        columns = [_rows_of(column, rows) for column in windows.columns]
        for place, count in zip(used, counts, strict=True):
            single = windows.columns[windows.added[place][1]]
            columns[first + place] = _with_noise_of(columns[first + place], single, int(count), confidence)
        part = estimate(node, columns, [np.atleast_1d(key)[rows] for key in keys], confidence)
        for values, found in zip(whole, (part.value, part.std_error, part.low, part.high), strict=True):
            values[rows] = found
    return Estimate(whole[0], whole[1], whole[2], whole[3])


@dataclass(frozen=True)
class _Window:
    """Rows in the order of a window: `order` sorts them, `group` numbers the partitions, `peer` ties in the order.

    Without an order, each window is its whole partition: all its rows are peers.
    """

    order: NDArray[np.int64]
    group: NDArray[np.int64]
    peer: NDArray[np.int64]
    kept: NDArray[np.bool_]

    def add_others(self, values: Floats) -> Floats:
        """For each row, add up the values of the other rows of its window."""
        sorted_values = np.where(self.kept, values, 0.0)[self.order]
        running = np.cumsum(sorted_values)
        starts = _first_places(self.group)
        before = np.concatenate([[0.0], running])[starts]
        last = len(self.peer) - 1 - _first_places(self.peer[::-1])[::-1]
        result = np.empty(len(values))
        result[self.order] = running[last] - before - sorted_values
        return result


def _first_places(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each place of a sorted list, the first place with the same label."""
    new = np.concatenate([[True], labels[1:] != labels[:-1]])
    return np.maximum.accumulate(np.where(new, np.arange(len(labels)), 0))


def _passing_rows(plan: QueryPlan, cells: Sequence[Values], keys: Sequence[Values], size: int) -> NDArray[np.bool_]:
    """The rows that HAVING keeps: windows read no others."""
    if plan.having is None:
        return np.ones(size, bool)
    return np.asarray(np.broadcast_to(evaluate(plan.having, cells, keys), (size,)) == 1)


def _order_rows(
    node: WindowSum, cells: Sequence[Values], keys: Sequence[Values], kept: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Sort rows by partition and then by the window's order; number partitions and ties."""
    size = len(kept)
    ranks = [_ranks(np.broadcast_to(evaluate(part, cells, keys), (size,)), False) for part in node.partition]
    orders = [
        _ranks(np.broadcast_to(evaluate(term, cells, keys), (size,)), descending) for term, descending in node.order
    ]
    order = np.lexsort([*reversed(orders), *reversed(ranks)]) if ranks or orders else np.arange(size)
    group = _labels(ranks, order)
    return order, group, _labels([*ranks, *orders], order), kept


def _labels(ranks: Sequence[NDArray[np.int64]], order: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number the runs of equal ranks along an order."""
    if not len(order):
        return order
    new = np.zeros(len(order), bool)
    for rank in ranks:
        new[1:] |= rank[order][1:] != rank[order][:-1]
    return np.cumsum(new)


def _ranks(values: Values, descending: bool) -> NDArray[np.int64]:
    """Rank values, equal ones alike; NULL comes last."""
    missing = np.array([value is None or value != value for value in values.tolist()], bool)
    known = sorted(
        {value for value, gone in zip(values.tolist(), missing, strict=True) if not gone}, reverse=descending
    )
    places: dict[Any, int] = {value: place for place, value in enumerate(known)}
    return np.array([len(known) if gone else places[v] for v, gone in zip(values.tolist(), missing, strict=True)])


def _total_of_others(column: NoisyColumn, window: _Window, size: int, count: int, confidence: float) -> Measured:
    """Build the column of what the other rows of each window add."""
    if isinstance(column, Banded):
        raise TypeError("only counts and sums can be added up over a window")

    def total(values: Floats | float) -> Floats:
        return window.add_others(np.asarray(np.broadcast_to(np.asarray(values, float), (size,))))

    summed = Measured(
        total(column.values),
        column.noise,
        total(column.missing),
        total(column.less),
        total(column.more),
        count * column.rounding,
    )
    return _with_noise_of(summed, column, count, confidence)


def _with_noise_of(column: NoisyColumn, single: NoisyColumn, count: int, confidence: float) -> Measured:
    """Give a total the noise of `count` values: that of one, or normal noise with an interval as wide as the sum's."""
    if not isinstance(column, Measured):
        raise TypeError("only counts and sums can be added up over a window")
    return replace(column, noise=sum_of_noises(single.noise, count, confidence))


def sum_of_noises(noise: ScaledNoise, count: int, confidence: float) -> ScaledNoise:
    """Return noise like the sum of `count` independent ones."""
    if count <= 1:
        return noise.times(float(count))
    spread = math.sqrt(count) * noise.std
    if noise.kind == "laplace" and count <= MAX_ADDED:
        z = float(special.ndtri(0.5 + confidence / 2))
        spread = max(spread, interval_half_width([noise] * count, confidence) / z)
    return ScaledNoise("gaussian", spread / noise.step if noise.step else 0.0, noise.step)


def typical_windows(
    plan: QueryPlan, columns: Sequence[NoisyColumn], key_sizes: Sequence[int], confidence: float
) -> Windows:
    """Replace the windows of a plan for expected errors: every row of a window is like the one row of `columns`."""
    one_row = resolve_windows(plan, columns, [np.zeros(1)] * len(key_sizes), 1, confidence)
    nodes = list(dict.fromkeys(node for node in walk((plan.outputs, plan.order)) if isinstance(node, WindowSum)))
    extended = list(one_row.columns)
    for number, (place, index) in enumerate(one_row.added, len(columns)):
        parted = {part.index for part in nodes[place].partition if isinstance(part, KeyValue)}
        others = math.prod(size for key, size in enumerate(key_sizes) if key not in parted) - 1
        single = columns[index]
        if isinstance(single, Measured):
            summed = replace(single, values=np.asarray(single.values * float(others)))
            extended[number] = _with_noise_of(summed, single, others, confidence)
    return replace(one_row, columns=tuple(extended))


def _rows_of(column: NoisyColumn, rows: NDArray[np.int64]) -> NoisyColumn:
    """Return some rows of a column."""
    if isinstance(column, Banded):
        return replace(column, values=column.values[rows], low=column.low[rows], high=column.high[rows])
    missing, less, more = (_some(part, rows) for part in (column.missing, column.less, column.more))
    return replace(column, values=column.values[rows], missing=missing, less=less, more=more)


def _some(values: Floats | float, rows: NDArray[np.int64]) -> Floats | float:
    """Return the values of some rows; a single value holds for all rows."""
    return np.atleast_1d(values)[rows] if np.size(values) > 1 else values
