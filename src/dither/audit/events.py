"""Events: sets of outputs, as a score and a threshold, and the learners that find scores worth thresholding.

Every learner estimates how much more likely an output is on one input than on the other; by the lemma of Neyman and
Pearson the best events are the sets where that ratio is large. Learners range from half-lines of a single column, whose
events a person can check by hand, to boosted trees over all columns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dither.audit import features
from dither.audit.claims import Floats

Codes = NDArray[np.uint8]
Keys = NDArray[np.uint64]

MOST_BINS = 240
MOST_CELLS = 200_000
MOST_DESIGN = 12_000_000


@dataclass(frozen=True)
class Encoded:
    """Outputs as bin numbers, one column for each feature, and a key for each whole row."""

    codes: Codes
    keys: Keys

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, part: Any) -> Encoded:
        return Encoded(self.codes[part], self.keys[part])


@dataclass(frozen=True)
class Space:
    """The features of a mechanism's outputs and the bins that each is cut into."""

    encoder: features.Encoder
    edges: tuple[Floats, ...]
    discrete: bool

    @classmethod
    def learn(cls, first: Any, second: Any, timed: bool = False, bits: bool = True) -> Space:
        """The space for outputs like these two samples; if timed, the first entry of each is the time."""
        encoder = features.learn(_joined(first, second), timed, bits)
        matrix = np.concatenate([encoder.read(first), encoder.read(second)])
        edges = tuple(_edges(feature.column(matrix)) for feature in encoder.features)
        distinct = len(np.unique(features.row_keys(matrix)))
        return cls(encoder, edges, distinct < max(64, len(matrix) // 4))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the features."""
        return tuple(feature.name for feature in self.encoder.features)

    def group(self, *groups: str) -> list[int]:
        """The features of these groups."""
        return [index for index, feature in enumerate(self.encoder.features) if feature.group in groups]

    def encode(self, outputs: Any, columns: tuple[int, ...] | None = None) -> Encoded:
        """Outputs in this space; only these columns, if given."""
        matrix = self.encoder.read(outputs)
        codes = np.zeros((len(matrix), len(self.edges)), dtype=np.uint8)
        for index in range(len(self.edges)) if columns is None else columns:
            codes[:, index] = _bin(self.encoder.features[index].column(matrix), self.edges[index])
        return Encoded(codes, features.row_keys(matrix))


class Score(ABC):
    """An estimate of how much more likely an output is on the first input: larger means more."""

    columns: tuple[int, ...]

    @abstractmethod
    def of(self, data: Encoded) -> Floats:
        """The score of each output."""

    @abstractmethod
    def describe(self, space: Space, above: bool, threshold: float) -> str:
        """The set of outputs whose score is at or beyond the threshold, in words."""


@dataclass(frozen=True)
class Event:
    """The outputs whose score is at or above (or at or below) a threshold."""

    space: Space = field(repr=False)
    score: Score = field(repr=False)
    threshold: float
    above: bool

    def contains(self, outputs: Any) -> NDArray[np.bool_]:
        """For each output, whether it lies in the event."""
        values = self.score.of(self.space.encode(outputs, self.score.columns))
        return values >= self.threshold if self.above else values <= self.threshold

    def __str__(self) -> str:
        return self.score.describe(self.space, self.above, self.threshold)


@dataclass(frozen=True)
class ColumnScore(Score):
    """A number for each bin of one feature."""

    column: int
    table: Floats

    @property
    def columns(self) -> tuple[int, ...]:  # type: ignore[override]
        """The one feature that is read."""
        return (self.column,)

    def of(self, data: Encoded) -> Floats:
        """The number of each output's bin."""
        result: Floats = self.table[data.codes[:, self.column]]
        return result

    def describe(self, space: Space, above: bool, threshold: float) -> str:
        """The bins as intervals or values."""
        chosen = self.table >= threshold if above else self.table <= threshold
        return f"{space.names[self.column]} in {_intervals(chosen, space.edges[self.column])}"


@dataclass(frozen=True)
class CellScore(Score):
    """A number for each distinct output."""

    keys: Keys
    values: Floats
    columns: tuple[int, ...] = ()

    def of(self, data: Encoded) -> Floats:
        """The number of each output; 0 for one never seen."""
        place = np.minimum(np.searchsorted(self.keys, data.keys), len(self.keys) - 1)
        return np.where(self.keys[place] == data.keys, self.values[place], 0.0)

    def describe(self, space: Space, above: bool, threshold: float) -> str:
        """How many distinct outputs there are."""
        chosen = self.values >= threshold if above else self.values <= threshold
        return f"one of {int(chosen.sum())} outputs, of {len(self.keys)} seen"


@dataclass(frozen=True)
class JointScore(Score):
    """A number for each pair of coarse bins of two features."""

    columns: tuple[int, int]
    coarse: tuple[NDArray[np.intp], NDArray[np.intp]]
    table: Floats

    def of(self, data: Encoded) -> Floats:
        """The number of each output's pair of bins."""
        first, second = (group[data.codes[:, column]] for group, column in zip(self.coarse, self.columns, strict=True))
        result: Floats = self.table[first, second]
        return result

    def describe(self, space: Space, above: bool, threshold: float) -> str:
        """The cells of the grid."""
        chosen = self.table >= threshold if above else self.table <= threshold
        names = " and ".join(space.names[column] for column in self.columns)
        return f"({names}) in {int(chosen.sum())} of {chosen.size} cells of a grid"


@dataclass(frozen=True)
class SumScore(Score):
    """A sum, over features, of a number for each bin: what logistic regression learns."""

    columns: tuple[int, ...]
    tables: Floats

    def of(self, data: Encoded) -> Floats:
        """The sum for each output."""
        total = np.zeros(len(data))
        for table, column in zip(self.tables, self.columns, strict=True):
            total += table[data.codes[:, column]]
        return total

    def describe(self, space: Space, above: bool, threshold: float) -> str:
        """The features in order of weight."""
        order = np.argsort(-np.ptp(self.tables, axis=1))[:6]
        names = ", ".join(space.names[self.columns[index]] for index in order)
        return (
            f"logistic score {'>=' if above else '<='} {threshold:.4g} over {len(self.columns)} features ({names}, ...)"
        )


@dataclass(frozen=True)
class TreeScore(Score):
    """A sum of trees that ask the same question of every output at each depth."""

    splits: tuple[tuple[tuple[int, int], ...], ...]
    leaves: tuple[Floats, ...]

    @property
    def columns(self) -> tuple[int, ...]:  # type: ignore[override]
        """The features that any tree reads."""
        return tuple(sorted({column for tree in self.splits for column, _ in tree}))

    def of(self, data: Encoded) -> Floats:
        """The sum of the leaves that each output falls into."""
        total = np.zeros(len(data))
        for tree, values in zip(self.splits, self.leaves, strict=True):
            total += values[_leaf(data.codes, tree)]
        return total

    def describe(self, space: Space, above: bool, threshold: float) -> str:
        """The number of trees and what they read."""
        names = ", ".join(space.names[column] for column in self.columns[:6])
        return f"score of {len(self.splits)} boosted trees {'>=' if above else '<='} {threshold:.4g} over {names}, ..."


@dataclass(frozen=True)
class Sample:
    """Encoded outputs of the two inputs."""

    space: Space
    a: Encoded
    b: Encoded


def columns_in_order(sample: Sample) -> list[Score]:
    """Half-lines of every feature: nothing is estimated, so these scores may be judged on the same sample."""
    ramp = np.arange(256, dtype=np.float64)
    return [ColumnScore(column, ramp) for column in range(len(sample.space.edges))]


def columns_by_ratio(sample: Sample) -> list[Score]:
    """For every feature, its bins in order of the estimated likelihood ratio."""
    return [ColumnScore(column, _ratio_table(sample, column)) for column in range(len(sample.space.edges))]


def coarse_columns(sample: Sample, bins: int = 12) -> list[Score]:
    """As `columns_by_ratio` with few bins, for small samples."""
    found: list[Score] = []
    for column in range(len(sample.space.edges)):
        group = _coarse(sample, column, bins)
        a, b = (np.bincount(group[side.codes[:, column]], minlength=bins + 1) for side in (sample.a, sample.b))
        found.append(ColumnScore(column, _log_ratio(a, b)[group]))
    return found


def cells(sample: Sample) -> list[Score]:
    """Whole outputs in order of the estimated ratio, where outputs repeat."""
    if not sample.space.discrete:
        return []
    keys, inverse = np.unique(np.concatenate([sample.a.keys, sample.b.keys]), return_inverse=True)
    if len(keys) > MOST_CELLS:
        return []
    first = np.bincount(inverse[: len(sample.a)], minlength=len(keys))
    second = np.bincount(inverse[len(sample.a) :], minlength=len(keys))
    careful = _log_ratio(first, second)
    doubt = np.sqrt(1 / (first + 0.5) + 1 / (second + 0.5))
    return [CellScore(keys, careful), CellScore(keys, np.sign(careful) * np.maximum(np.abs(careful) - doubt, 0))]


def joint(sample: Sample, most: int = 6, bins: int = 20) -> list[Score]:
    """Grids over pairs of features; the outputs themselves first."""
    chosen = sample.space.group("base")[:most] or list(range(min(most, len(sample.space.edges))))
    pairs = [(i, j) for place, i in enumerate(chosen) for j in chosen[place + 1 :]]
    return [_joint(sample, pair, bins) for pair in pairs]


def logistic(sample: Sample, columns: list[int], bins: int) -> list[Score]:
    """Logistic regression on indicators of coarse bins."""
    if len(columns) < 2 or len(columns) * (bins - 1) > 400:
        return []
    groups = [_coarse(sample, column, bins) for column in columns]
    width = len(columns) * bins
    rows = max(2000, min(len(sample.a), MOST_DESIGN // (2 * width)))
    design = np.concatenate([_design(side[:rows], columns, groups, bins) for side in (sample.a, sample.b)])
    target = np.concatenate([np.ones(min(rows, len(sample.a))), np.zeros(min(rows, len(sample.b)))])
    weights = _newton(design, target).reshape(len(columns), bins)
    tables = np.stack([weight[group] for weight, group in zip(weights, groups, strict=True)])
    return [SumScore(tuple(columns), tables)]


def tied(sample: Sample, columns: list[int], bins: int) -> list[Score]:
    """One table for all these features, for outputs that are many draws of one kind."""
    if len(columns) < 3:
        return []
    groups = [_coarse(sample, column, bins) for column in columns]
    design = np.concatenate([_counted(side, columns, groups, bins) for side in (sample.a, sample.b)])
    target = np.concatenate([np.ones(len(sample.a)), np.zeros(len(sample.b))])
    weights = _newton(design, target)
    return [SumScore(tuple(columns), np.stack([weights[group] for group in groups]))]


def trees(sample: Sample, rounds: int = 24, depth: int = 3, rows: int = 100_000) -> list[Score]:
    """Boosted trees over all features."""
    if len(sample.space.edges) < 2:
        return []
    first, second = sample.a[:rows], sample.b[:rows]
    codes = np.ascontiguousarray(np.concatenate([first.codes, second.codes]).T)
    target = np.concatenate([np.ones(len(first)), np.zeros(len(second))])
    margin, splits, leaves = np.zeros(len(target)), [], []
    for _ in range(rounds):
        tree, values, places = _grow(codes, target, margin, depth)
        margin += values[places]
        splits.append(tree)
        leaves.append(values)
    return [TreeScore(tuple(splits), tuple(leaves))]


def light(sample: Sample) -> list[Score]:
    """Learners that are quick and do well on small samples."""
    base, differences = sample.space.group("base"), sample.space.group("difference")
    found = coarse_columns(sample) + cells(sample)
    return found + logistic(sample, base, 2) + logistic(sample, differences, 2)


def thorough(sample: Sample) -> list[Score]:
    """Every learner."""
    base, differences = sample.space.group("base"), sample.space.group("difference")
    found = columns_by_ratio(sample) + cells(sample) + joint(sample)
    for bins in (2, 6):
        found += logistic(sample, base, bins) + logistic(sample, differences, bins)
    for columns in (base, base[:1] + differences):
        found += tied(sample, columns, 2) + tied(sample, columns, 8)
    return found + trees(sample)


def _joined(first: Any, second: Any) -> Any:
    if isinstance(first, np.ndarray) and isinstance(second, np.ndarray):
        return np.concatenate([first, second])
    return [*first, *second]


def _edges(column: Floats) -> Floats:
    """Where to cut: at every value if there are few, else at quantiles that are dense in both tails."""
    values = np.sort(column[~np.isnan(column)])
    distinct = np.unique(values)
    if len(distinct) <= MOST_BINS // 2:
        return distinct
    tails = np.geomspace(8 / len(values), 0.04, 22)
    quantiles = np.concatenate([tails, np.linspace(0.05, 0.95, 73), 1 - tails])
    cuts = values[(quantiles * (len(values) - 1)).astype(int)]
    starts, repeats = np.unique(cuts, return_counts=True)
    atoms = starts[repeats > 1]
    return np.unique(np.concatenate([starts, np.nextafter(atoms, np.inf)]))


def _bin(column: Floats, edges: Floats) -> Codes:
    """0 for NaN, else 1 + the number of edges at or below the value."""
    codes = 1 + np.searchsorted(edges, column, side="right")
    return np.where(np.isnan(column), 0, codes).astype(np.uint8)


def _log_ratio(a: NDArray[Any], b: NDArray[Any]) -> Floats:
    scale = (b.sum() + 1) / (a.sum() + 1)
    result: Floats = np.log((a * scale + 0.5) / (b + 0.5))
    return result


def _counts(sample: Sample, column: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    return (
        np.bincount(sample.a.codes[:, column], minlength=256),
        np.bincount(sample.b.codes[:, column], minlength=256),
    )


def _ratio_table(sample: Sample, column: int) -> Floats:
    return _log_ratio(*_counts(sample, column))


def _coarse(sample: Sample, column: int, bins: int) -> NDArray[np.intp]:
    """A map from the 256 fine bins to at most `bins` groups of about equal weight; NaN keeps to the first."""
    first, second = _counts(sample, column)
    mass = (first + second).astype(np.float64)
    middle = np.cumsum(mass) - mass / 2
    result: NDArray[np.intp] = np.minimum(bins * middle / max(mass.sum(), 1.0), bins - 1).astype(np.intp)
    if mass[0] > 0:
        result = np.minimum(result + 1, bins - 1)
        result[0] = 0
    return result


def _joint(sample: Sample, pair: tuple[int, int], bins: int) -> JointScore:
    groups = (_coarse(sample, pair[0], bins), _coarse(sample, pair[1], bins))
    first, second = (
        np.bincount(groups[0][side.codes[:, pair[0]]] * bins + groups[1][side.codes[:, pair[1]]], minlength=bins * bins)
        for side in (sample.a, sample.b)
    )
    return JointScore(pair, groups, _log_ratio(first, second).reshape(bins, bins))


def _design(side: Encoded, columns: list[int], groups: list[NDArray[np.intp]], bins: int) -> NDArray[np.float32]:
    result = np.zeros((len(side), len(columns) * bins), dtype=np.float32)
    rows = np.arange(len(side))
    for place, (column, group) in enumerate(zip(columns, groups, strict=True)):
        result[rows, place * bins + group[side.codes[:, column]]] = 1
    return result


def _counted(side: Encoded, columns: list[int], groups: list[NDArray[np.intp]], bins: int) -> NDArray[np.float32]:
    """How many of the columns fall into each bin, for every output."""
    result = np.zeros((len(side), bins), dtype=np.float32)
    rows = np.arange(len(side))
    for column, group in zip(columns, groups, strict=True):
        result[rows, group[side.codes[:, column]]] += 1
    return result


def _newton(design: NDArray[np.float32], target: Floats, ridge: float = 2.0, steps: int = 12) -> Floats:
    """Penalised logistic regression with the curvature bounded once (Boehning), so that each step is cheap and safe."""
    centre = design.mean(axis=0)
    curvature = 0.25 * (design.T @ design).astype(np.float64) + ridge * np.eye(design.shape[1])
    weights = np.zeros(design.shape[1])
    for _ in range(steps):
        chance = special.expit(design @ weights.astype(np.float32) - float(centre @ weights))
        move = np.linalg.solve(curvature, design.T @ (target - chance).astype(np.float32) - ridge * weights)
        weights = weights + move
        if np.max(np.abs(move)) < 1e-3:
            break
    return weights


def _leaf(codes: Codes, tree: tuple[tuple[int, int], ...]) -> NDArray[np.intp]:
    place = np.zeros(len(codes), dtype=np.intp)
    for column, cut in tree:
        place = 2 * place + (codes[:, column] > cut)
    return place


def _grow(
    codes: Codes, target: Floats, margin: Floats, depth: int, rate: float = 0.3
) -> tuple[tuple[tuple[int, int], ...], Floats, NDArray[np.intp]]:
    """One tree: at each depth the question that lowers the logistic loss most over all leaves together."""
    chance = special.expit(margin)
    gradient, curvature = target - chance, chance * (1 - chance)
    places = np.zeros(len(target), dtype=np.intp)
    tree: list[tuple[int, int]] = []
    for level in range(depth):
        gains = [_best_cut(codes[column], places, 1 << level, gradient, curvature) for column in range(len(codes))]
        column = int(np.argmax([gain for gain, _ in gains]))
        tree.append((column, gains[column][1]))
        places = 2 * places + (codes[column] > gains[column][1])
    total, weight = (np.bincount(places, values, minlength=1 << depth) for values in (gradient, curvature))
    return tuple(tree), rate * total / (weight + 5.0), places


def _best_cut(
    column: Codes, places: NDArray[np.intp], leaves: int, gradient: Floats, curvature: Floats
) -> tuple[float, int]:
    """The cut of one feature with the largest gain."""
    cells = places * 256 + column
    slope, weight = (
        np.cumsum(np.bincount(cells, values, minlength=leaves * 256).reshape(leaves, 256), axis=1)
        for values in (gradient, curvature)
    )
    rest_slope, rest_weight = slope[:, -1:] - slope, weight[:, -1:] - weight
    gain = (slope**2 / (weight + 5.0) + rest_slope**2 / (rest_weight + 5.0)).sum(axis=0)
    cut = int(np.argmax(gain))
    return float(gain[cut]), cut


def _intervals(chosen: NDArray[np.bool_], edges: Floats) -> str:
    """Chosen bins as a union of intervals, at most six of them spelled out."""
    limits = np.concatenate([[-np.inf], edges, [np.inf]])
    runs: list[tuple[int, int]] = []
    for code in range(1, len(limits)):
        if chosen[code] and runs and runs[-1][1] == code - 1:
            runs[-1] = (runs[-1][0], code)
        elif chosen[code]:
            runs.append((code, code))
    texts = [f"[{float(limits[first - 1])!r}, {float(limits[last])!r})" for first, last in runs]
    shown = ["nothing"] if chosen[0] else []
    shown += texts[:6] + ([f"{len(texts) - 6} more"] if len(texts) > 6 else [])
    return " or ".join(shown) or "no output"


Learner = Callable[[Sample], list[Score]]
