"""Events: sets of outputs, as a score of encoded outputs and a threshold on it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dither.audit.blackbox import features
from dither.audit.claims import Floats

Codes = NDArray[np.uint8]
Keys = NDArray[np.uint64]

MOST_BINS = 240
# Bins are cut by this many values at most, of all features together.
MOST_SORTED = 6_000_000
UNKNOWN: Floats = np.zeros((0, 0))


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
class OutcomeSpace:
    """The features of a mechanism's outputs and the bins that each is cut into."""

    encoder: features.Encoder
    edges: tuple[Floats, ...]
    discrete: bool

    @classmethod
    def learn(cls, first: Any, second: Any, timed: bool = False, bits: bool = True) -> OutcomeSpace:
        """The space for outputs like these two samples; if timed, the first entry of each is the time."""
        encoder = features.learn(joined(first, second), timed, bits)
        return cls.of(encoder, encoder.read(first), encoder.read(second))

    @classmethod
    def of(cls, encoder: features.Encoder, first: Floats, second: Floats) -> OutcomeSpace:
        """The space for outputs that were read already."""
        most = max(1000, MOST_SORTED // (2 * len(encoder.features)))
        matrix = np.concatenate([first[:most], second[:most]])
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
        return self.place(self.encoder.read(outputs), columns)

    def place(self, matrix: Floats, columns: tuple[int, ...] | None = None) -> Encoded:
        """Outputs that were read already, in this space."""
        codes = np.zeros((len(matrix), len(self.edges)), dtype=np.uint8)
        for index in range(len(self.edges)) if columns is None else columns:
            codes[:, index] = _bin(self.encoder.features[index].column(matrix), self.edges[index])
        return Encoded(codes, features.row_keys(matrix))


class Score(ABC):
    """An estimate of how much more likely an output is on the first input: larger means more."""

    columns: tuple[int, ...]
    # Rows whose inner products are the covariance of what was learned; none where it is not known.
    root: Floats = UNKNOWN

    @abstractmethod
    def of(self, data: Encoded) -> Floats:
        """The score of each output."""

    def doubts(self, data: Encoded, bins: NDArray[np.intp], count: int) -> Floats:
        """For each bin, a row; inner products of rows are covariances of the sums of the scores of its outputs.

        Rows are empty where no covariance is known.
        """
        return np.zeros((count, 0))

    def weighed(self, data: Encoded) -> tuple[Floats, Floats | None]:
        """Values of the score and how many outputs have each; None if each value stands for one output."""
        return self.of(data), None

    @abstractmethod
    def describe(self, space: OutcomeSpace, above: bool, threshold: float) -> str:
        """The set of outputs whose score is at or beyond the threshold, in words."""


@dataclass(frozen=True)
class Event:
    """The outputs whose score is at or above (or at or below) a threshold."""

    space: OutcomeSpace = field(repr=False)
    score: Score = field(repr=False)
    threshold: float
    above: bool

    def contains(self, outputs: Any) -> NDArray[np.bool_]:
        """For each output, whether it lies in the event."""
        return self.holds(self.space.encode(outputs, self.score.columns))

    def holds(self, data: Encoded) -> NDArray[np.bool_]:
        """The same for outputs that are encoded already."""
        values = self.score.of(data)
        return values >= self.threshold if self.above else values <= self.threshold

    def __str__(self) -> str:
        return self.score.describe(self.space, self.above, self.threshold)


@dataclass(frozen=True)
class Levels:
    """Nested events of one score, the widest first; weights are of the outputs that lie in no narrower one."""

    score: Score = field(repr=False)
    thresholds: Floats
    above: bool
    weights: tuple[int, ...]

    def counts(self, data: Encoded) -> NDArray[np.intp]:
        """How many outputs have each weight."""
        sign = 1.0 if self.above else -1.0
        level = np.searchsorted(sign * self.thresholds, sign * self.score.of(data), side="right")
        return np.bincount(level, minlength=len(self.weights) + 1)[1:]


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

    def weighed(self, data: Encoded) -> tuple[Floats, Floats | None]:
        """The numbers of the bins, and how many outputs lie in each."""
        return self.table, np.bincount(data.codes[:, self.column], minlength=len(self.table)).astype(np.float64)

    def describe(self, space: OutcomeSpace, above: bool, threshold: float) -> str:
        """The bins as intervals or values, or the categories."""
        chosen = self.table >= threshold if above else self.table <= threshold
        if space.encoder.categories:
            edges = space.edges[self.column]
            return f"output {space.encoder.members(lambda code: bool(chosen[_bin(np.array([code]), edges)[0]]))}"
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

    def describe(self, space: OutcomeSpace, above: bool, threshold: float) -> str:
        """How many distinct outputs there are."""
        chosen = self.values >= threshold if above else self.values <= threshold
        return f"one of {int(chosen.sum())} outputs, of {len(self.keys)} seen"


@dataclass(frozen=True)
class JointScore(Score):
    """A number for each pair of coarse bins of two features."""

    columns: tuple[int, int]
    coarse: tuple[NDArray[np.intp], NDArray[np.intp]]
    table: Floats
    root: Floats = field(default_factory=lambda: UNKNOWN)

    def of(self, data: Encoded) -> Floats:
        """The number of each output's pair of bins."""
        result: Floats = self.table.ravel()[self._cells(data)]
        return result

    def doubts(self, data: Encoded, bins: NDArray[np.intp], count: int) -> Floats:
        """From how many outputs of each bin lie in each cell."""
        cells = bins * self.table.size + self._cells(data)
        result: Floats = np.bincount(cells, minlength=count * self.table.size).reshape(count, -1) @ self.root
        return result

    def weighed(self, data: Encoded) -> tuple[Floats, Floats | None]:
        """The numbers of the cells, and how many outputs lie in each."""
        return self.table.ravel(), np.bincount(self._cells(data), minlength=self.table.size).astype(np.float64)

    def _cells(self, data: Encoded) -> NDArray[np.intp]:
        first, second = (group[data.codes[:, column]] for group, column in zip(self.coarse, self.columns, strict=True))
        result: NDArray[np.intp] = first * self.table.shape[1] + second
        return result

    def describe(self, space: OutcomeSpace, above: bool, threshold: float) -> str:
        """The cells of the grid."""
        chosen = self.table >= threshold if above else self.table <= threshold
        names = " and ".join(space.names[column] for column in self.columns)
        return f"({names}) in {int(chosen.sum())} of {chosen.size} cells of a grid"


@dataclass(frozen=True)
class CornerScore(Score):
    """The bin of the second feature where that of the first lies in a range; elsewhere beyond every threshold."""

    columns: tuple[int, int]
    first: int
    last: int
    above: bool

    def of(self, data: Encoded) -> Floats:
        """The bin, or one that no event holds."""
        first, second = (data.codes[:, column] for column in self.columns)
        inside = (first >= self.first) & (first <= self.last) & (second > 0)
        return np.where(inside, second.astype(np.float64), -1.0 if self.above else 256.0)

    def describe(self, space: OutcomeSpace, above: bool, threshold: float) -> str:
        """Both half-lines."""
        codes = np.arange(256)
        chosen = (
            (codes >= self.first) & (codes <= self.last),
            (codes >= threshold) if above else (codes > 0) & (codes <= threshold),
        )
        return " and ".join(
            f"{space.names[column]} in {_intervals(held, space.edges[column])}"
            for column, held in zip(self.columns, chosen, strict=True)
        )


@dataclass(frozen=True)
class SumScore(Score):
    """A sum, over features, of a number for each bin: what logistic regression learns."""

    columns: tuple[int, ...]
    tables: Floats
    rows: NDArray[np.intp] = field(default_factory=lambda: UNKNOWN.astype(np.intp))
    root: Floats = field(default_factory=lambda: UNKNOWN)

    def of(self, data: Encoded) -> Floats:
        """The sum for each output."""
        total = np.zeros(len(data))
        for table, column in zip(self.tables, self.columns, strict=True):
            total += table[data.codes[:, column]]
        return total

    def doubts(self, data: Encoded, bins: NDArray[np.intp], count: int) -> Floats:
        """From how often the outputs of each bin read each entry of the tables: `rows` has its place in the root."""
        width, held = len(self.root), np.zeros(count * len(self.root))
        for rows, column in zip(self.rows, self.columns, strict=True):
            held += np.bincount(bins * width + rows[data.codes[:, column]], minlength=len(held))
        result: Floats = held.reshape(count, width) @ self.root
        return result

    def describe(self, space: OutcomeSpace, above: bool, threshold: float) -> str:
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
            total += values[leaf(data.codes, tree)]
        return total

    def describe(self, space: OutcomeSpace, above: bool, threshold: float) -> str:
        """The number of trees and what they read."""
        names = ", ".join(space.names[column] for column in self.columns[:6])
        return f"score of {len(self.splits)} boosted trees {'>=' if above else '<='} {threshold:.4g} over {names}, ..."


@dataclass(frozen=True)
class Committee(Score):
    """The mean of several scores."""

    members: tuple[Score, ...]

    @property
    def columns(self) -> tuple[int, ...]:  # type: ignore[override]
        """The features that any member reads."""
        return tuple(sorted({column for member in self.members for column in member.columns}))

    def of(self, data: Encoded) -> Floats:
        """The mean for each output."""
        total = np.zeros(len(data))
        for member in self.members:
            total += member.of(data)
        return total / len(self.members)

    def doubts(self, data: Encoded, bins: NDArray[np.intp], count: int) -> Floats:
        """The mean of the members' variances: they learned from the same outputs."""
        rows = [member.doubts(data, bins, count) for member in self.members]
        result: Floats = np.concatenate(rows, axis=1) / np.sqrt(len(rows))
        return result

    def describe(self, space: OutcomeSpace, above: bool, threshold: float) -> str:
        """How many scores there are and what they read."""
        names = ", ".join(space.names[column] for column in self.columns[:6])
        return f"mean of {len(self.members)} scores {'>=' if above else '<='} {threshold:.4g} over {names}, ..."


@dataclass(frozen=True)
class SampleTable:
    """Encoded outputs of the two inputs."""

    space: OutcomeSpace
    a: Encoded
    b: Encoded
    _counted: dict[int, tuple[NDArray[np.intp], NDArray[np.intp]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def counts(self, column: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """How many outputs of each input lie in each bin of a feature; counted once."""
        if column not in self._counted:
            a, b = (np.bincount(side.codes[:, column], minlength=256) for side in (self.a, self.b))
            self._counted[column] = a, b
        return self._counted[column]

    def part(self, start: float, end: float) -> SampleTable:
        """The outputs from one share of each input's to another."""
        cuts = [slice(int(start * len(side)), int(end * len(side))) for side in (self.a, self.b)]
        return SampleTable(self.space, self.a[cuts[0]], self.b[cuts[1]])


def joined(first: Any, second: Any) -> Any:
    """Both inputs' outputs together."""
    arrays = isinstance(first, np.ndarray) and isinstance(second, np.ndarray)
    return np.concatenate([first, second]) if arrays and first.shape[1:] == second.shape[1:] else [*first, *second]


def _edges(column: Floats) -> Floats:
    """Where to cut: at every value if there are few, else at infinities and at quantiles, dense in both tails."""
    values = np.sort(column[~np.isnan(column)])
    distinct = np.unique(values)
    if len(distinct) <= MOST_BINS // 2:
        return distinct
    finite = values[np.isfinite(values)]
    tails = np.geomspace(4 / len(finite), 0.04, 22)
    quantiles = np.concatenate([tails, np.linspace(0.05, 0.95, 73), 1 - tails])
    cuts = finite[(quantiles * (len(finite) - 1)).astype(int)]
    starts, repeats = np.unique(cuts, return_counts=True)
    atoms = starts[repeats > 1]
    edges = np.concatenate([starts, np.nextafter(atoms, np.inf), finite[:1], distinct[~np.isfinite(distinct)]])
    return np.unique(edges)


def _bin(column: Floats, edges: Floats) -> Codes:
    """0 for NaN, else 1 + the number of edges at or below the value."""
    codes = 1 + np.searchsorted(edges, column, side="right")
    return np.where(np.isnan(column), 0, codes).astype(np.uint8)


def leaf(codes: Codes, tree: tuple[tuple[int, int], ...]) -> NDArray[np.intp]:
    """The leaf of a tree that each output falls into."""
    place = np.zeros(len(codes), dtype=np.intp)
    for column, cut in tree:
        place = 2 * place + (codes[:, column] > cut)
    return place


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
