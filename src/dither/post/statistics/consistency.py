"""Tables that agree: weighted least squares over all noisy margins of one table, non-negative and whole on request.

The margins of a table over keys k1, k2, ... are sums of its cells. Noise of one variance in every cell of a margin
makes the least-squares problem diagonal in the interactions of the keys: on the interaction of a set T of keys, the
margin over the keys m has the eigenvalue (number of cells that it adds up) if T is a subset of m, and 0 otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, combinations
from math import prod

import numpy as np

from dither.post.noise import Floats

ITERATIONS = 400
LEAST_VARIANCE = 1e-18


@dataclass(frozen=True)
class Margin:
    """Noisy sums of a table's cells over all keys but `keys`: an array with an axis for each, and its variance.

    Where the variance also allows for what clipping removed, `noise` is that of the noise alone, and the exact values
    may lie `below` and `above` by these amounts besides.
    """

    keys: tuple[str, ...]
    values: Floats
    variance: float
    noise: float | None = None
    below: Floats | None = None
    above: Floats | None = None


@dataclass(frozen=True)
class AgreedTable:
    """The least-squares estimate of a table's cells; `precisions` has that of each interaction of keys.

    `noise_precisions` are those of the noise alone, where margins have other errors, too.
    """

    sizes: Mapping[str, int]
    cells: Floats
    precisions: Mapping[tuple[str, ...], float]
    noise_precisions: Mapping[tuple[str, ...], float] = field(default_factory=dict)

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of the table, one for each axis of its cells."""
        return tuple(self.sizes)

    def margin(self, keys: Sequence[str]) -> Floats:
        """Add up the cells over all keys but these, in the order of the table's keys."""
        others = tuple(axis for axis, key in enumerate(self.keys) if key not in keys)
        return np.asarray(self.cells.sum(axis=others))

    def variance(self, keys: Sequence[str]) -> float:
        """Return the variance of a cell of a margin; infinite if no measurement determines it."""
        return self._variance(keys, self.precisions)

    def noise_variance(self, keys: Sequence[str]) -> float:
        """Return the variance of a cell of a margin from noise alone."""
        return self._variance(keys, self.noise_precisions)

    def _variance(self, keys: Sequence[str], precisions: Mapping[tuple[str, ...], float]) -> float:
        own = [key for key in self.keys if key in keys]
        added = prod(size for key, size in self.sizes.items() if key not in keys)
        total = 0.0
        for subset in subsets(own):
            share = prod(1 - 1 / self.sizes[k] if k in subset else 1 / self.sizes[k] for k in own)
            if share:
                total += added * share / precisions[subset] if precisions[subset] else np.inf
        return total


def subsets(keys: Sequence[str]) -> list[tuple[str, ...]]:
    """Return all subsets of keys, in the order of the keys."""
    return list(chain.from_iterable(combinations(keys, size) for size in range(len(keys) + 1)))


def agree(sizes: Mapping[str, int], margins: Sequence[Margin]) -> AgreedTable:
    """Estimate the cells of a table from noisy margins by weighted least squares; every margin then agrees.

    Interactions of keys that no margin has are taken to be none.
    """
    keys, shape = tuple(sizes), tuple(sizes.values())
    precisions = dict.fromkeys(subsets(keys), 0.0)
    noises = dict.fromkeys(subsets(keys), 0.0)
    weighted = np.zeros(shape)
    for margin in margins:
        weight = 1 / max(margin.variance, LEAST_VARIANCE)
        added = prod(size for key, size in sizes.items() if key not in margin.keys)
        for subset in subsets([key for key in keys if key in margin.keys]):
            precisions[subset] += added * weight
            noises[subset] += added * weight * (1.0 if margin.noise is None else weight * margin.noise)
        weighted = weighted + weight * spread(margin, keys)
    by_noise = {subset: own**2 / noises[subset] if noises[subset] else np.inf for subset, own in precisions.items()}
    by_noise |= {subset: 0.0 for subset, own in precisions.items() if not own}
    return AgreedTable(dict(sizes), _solve(weighted, keys, precisions), precisions, by_noise)


def clipping_errors(
    sizes: Mapping[str, int], margins: Sequence[Margin]
) -> dict[tuple[str, ...], tuple[Floats, Floats]]:
    """Return how far below and above the fitted cells the truth may be for what clipping removed, by their keys.

    The cells of one margin err together, in proportion to what each may lack; different margins err by themselves, as
    their bounds differ.
    """
    errors = {frozenset(each.keys): (np.asarray(0.0), np.asarray(0.0)) for each in margins}
    for chosen in margins:
        if chosen.below is None or chosen.above is None:
            continue
        less, more = (_response(sizes, margins, chosen, part) for part in (chosen.below, chosen.above))
        for keys, (below, above) in errors.items():
            down, up = less.margin(list(keys)), more.margin(list(keys))
            errors[keys] = np.hypot(below, np.maximum(down, -up)), np.hypot(above, np.maximum(up, -down))
    return {tuple(key for key in sizes if key in keys): found for keys, found in errors.items()}


def _response(sizes: Mapping[str, int], margins: Sequence[Margin], chosen: Margin, shift: Floats) -> AgreedTable:
    """Return by how much a fit moves if one of its margins moves by a shift."""
    return agree(
        sizes, [replace(each, values=shift if each is chosen else np.zeros_like(each.values)) for each in margins]
    )


def spread(margin: Margin, keys: Sequence[str]) -> Floats:
    """Give a margin an axis of length 1 for each key that it adds up."""
    order = [margin.keys.index(key) for key in keys if key in margin.keys]
    moved = np.transpose(margin.values, order)
    places = [slice(None) if key in margin.keys else None for key in keys]
    return np.asarray(moved[tuple(places)])


def _solve(weighted: Floats, keys: tuple[str, ...], precisions: Mapping[tuple[str, ...], float]) -> Floats:
    """Divide each interaction of a table by its precision, one axis after another."""
    parts: dict[tuple[str, ...], Floats] = {(): weighted}
    for axis, key in enumerate(keys):
        split: dict[tuple[str, ...], Floats] = {}
        for subset, part in parts.items():
            mean = part.mean(axis=axis, keepdims=True)
            split[subset] = mean
            split[(*subset, key)] = part - mean
        parts = split
    total = np.zeros(weighted.shape)
    for subset, part in parts.items():
        if precisions[subset]:
            total = total + part / precisions[subset]
    return total


def without_negatives(table: AgreedTable, margins: Sequence[Margin]) -> AgreedTable:
    """Return the nearest table, by the margins' precisions, that has no negative cell and the same total.

    A negative total becomes 0. The number of steps is fixed, so that this cannot fail.
    """
    weights = [(margin.keys, 1 / max(margin.variance, LEAST_VARIANCE)) for margin in margins]
    largest = sum(weight * prod(s for k, s in table.sizes.items() if k not in keys) for keys, weight in weights)
    total, goal = max(0.0, float(table.cells.sum())), table.cells
    cells = ahead = project_to_simplex(goal, total)
    pace = 1.0
    for _ in range(ITERATIONS):
        gap = AgreedTable(table.sizes, ahead - goal, table.precisions)
        slope = sum(w * spread(Margin(k, gap.margin(k), 1.0), table.keys) for k, w in weights)
        latest = project_to_simplex(ahead - slope / largest, total)
        faster = (1 + np.sqrt(1 + 4 * pace**2)) / 2
        ahead = latest + (pace - 1) / faster * (latest - cells)
        cells, pace = latest, faster
    return replace(table, cells=cells)


def project_to_simplex(cells: Floats, total: float) -> Floats:
    """Return the nearest cells that are not negative and add up to a total."""
    flat = np.sort(cells.ravel())[::-1]
    excess = (np.cumsum(flat) - total) / np.arange(1, len(flat) + 1)
    last = int(np.max(np.flatnonzero(flat - excess >= 0), initial=0))
    return np.asarray(np.maximum(cells - excess[last], 0.0))


def with_whole_numbers(table: AgreedTable) -> AgreedTable:
    """Round the cells so that every sum of consecutive ones is within 1 of what it was, and of the first ones 1/2."""
    sums = np.round(np.cumsum(table.cells.ravel()))
    cells: Floats = np.asarray(np.diff(sums, prepend=0.0), np.float64).reshape(table.cells.shape)
    return replace(table, cells=cells)
