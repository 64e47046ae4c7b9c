"""Events: sets of outputs, defined by a score of encoded outputs and a threshold on it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dither.audit.blackbox import features, wording
from dither.audit.claims import Floats

BinCodes = NDArray[np.uint8]
RowKeys = NDArray[np.uint64]

MAX_BINS = 240
# The bins of all features together are computed from at most this many values.
MAX_SORTED_VALUES = 6_000_000
NO_COVARIANCE: Floats = np.zeros((0, 0))


@dataclass(frozen=True)
class Encoded:
    """Outputs as bin numbers, one column for each feature, and a key for each whole row."""

    codes: BinCodes
    keys: RowKeys

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, part: Any) -> Encoded:
        return Encoded(self.codes[part], self.keys[part])


@dataclass(frozen=True)
class OutcomeSpace:
    """The features of a mechanism's outputs and the edges of the bins of each.

    `discrete` means that outputs repeat often enough to be scored one by one, and `undefined` tells for each feature
    whether some output lacks it.
    """

    encoder: features.Encoder
    edges: tuple[Floats, ...]
    discrete: bool
    undefined: tuple[bool, ...]

    @classmethod
    def learn(cls, first: Any, second: Any, timed: bool = False, bits: bool = True) -> OutcomeSpace:
        """Learn a space from two samples of outputs; if timed, the first entry of each is the time."""
        encoder = features.learn_encoder(concatenate_outputs(first, second), timed, bits)
        return cls.from_matrices(encoder, encoder.read(first), encoder.read(second))

    @classmethod
    def from_matrices(cls, encoder: features.Encoder, first: Floats, second: Floats) -> OutcomeSpace:
        """Build a space from outputs that the encoder has read into matrices."""
        max_rows = max(1000, MAX_SORTED_VALUES // (2 * len(encoder.features)))
        matrix = np.concatenate([first[:max_rows], second[:max_rows]])
        edges = tuple(_edges(feature.column(matrix)) for feature in encoder.features)
        distinct = len(np.unique(features.row_keys(matrix)))
        undefined = tuple(bool(np.isnan(feature.column(matrix)).any()) for feature in encoder.features)
        return cls(encoder, edges, distinct < max(64, len(matrix) // 4), undefined)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the features."""
        return tuple(feature.name for feature in self.encoder.features)

    def describe(self, column: int, chosen: NDArray[np.bool_]) -> str:
        """Describe the chosen bins of a column."""
        label = self.encoder.features[column].label
        return wording.describe_bins(label, chosen, self.edges[column], self.undefined[column])

    def code(self, column: int, chosen: NDArray[np.bool_]) -> str:
        """Write the condition of the chosen bins of a column as a Python expression, or return ""."""
        label = self.encoder.features[column].label
        return wording.bins_as_code(label, chosen, self.edges[column], self.undefined[column])

    def columns_in(self, *groups: str) -> list[int]:
        """Return the columns of the features in these groups."""
        return [index for index, feature in enumerate(self.encoder.features) if feature.group in groups]

    def encode(self, outputs: Any, columns: tuple[int, ...] | None = None) -> Encoded:
        """Encode outputs; only these columns, if given."""
        return self.encode_matrix(self.encoder.read(outputs), columns)

    def encode_matrix(self, matrix: Floats, columns: tuple[int, ...] | None = None) -> Encoded:
        """Encode outputs that the encoder has read into a matrix; only these columns, if given."""
        codes = np.zeros((len(matrix), len(self.edges)), dtype=np.uint8)
        for index in range(len(self.edges)) if columns is None else columns:
            codes[:, index] = _bin_codes(self.encoder.features[index].column(matrix), self.edges[index])
        return Encoded(codes, features.row_keys(matrix))


class Score(ABC):
    """An estimate of the log-likelihood ratio of an output: larger where it is likelier on the first input."""

    columns: tuple[int, ...]
    # Rows whose inner products are the covariance of the learned parameters; empty if unknown.
    covariance_root: Floats = NO_COVARIANCE

    @abstractmethod
    def evaluate(self, data: Encoded) -> Floats:
        """Return the score of each output."""

    def covariance_rows(self, data: Encoded, bins: NDArray[np.intp], count: int) -> Floats:
        """Return a row for each bin, such that inner products of rows are covariances of the bins' sums of scores.

        Rows are empty if the covariance is unknown.
        """
        return np.zeros((count, 0))

    def value_counts(self, data: Encoded) -> tuple[Floats, Floats | None]:
        """Return values of the score and the number of outputs of each; None if each value is of one output."""
        return self.evaluate(data), None

    @abstractmethod
    def describe(self, space: OutcomeSpace, above: bool, threshold: float) -> str:
        """Describe the set of outputs whose score is at or beyond the threshold."""

    def code(self, space: OutcomeSpace, above: bool, threshold: float) -> str:
        """Write the condition of that set as a Python expression of `output`, or "" if it is too long for that."""
        return ""


@dataclass(frozen=True)
class Event:
    """The outputs whose score is at or above (or at or below) a threshold."""

    space: OutcomeSpace = field(repr=False)
    score: Score = field(repr=False)
    threshold: float
    above: bool

    def contains(self, outputs: Any) -> NDArray[np.bool_]:
        """Return a boolean for each output: True if it lies in the event."""
        return self.contains_encoded(self.space.encode(outputs, self.score.columns))

    def contains_encoded(self, data: Encoded) -> NDArray[np.bool_]:
        """Return a boolean for each encoded output: True if it lies in the event."""
        values = self.score.evaluate(data)
        return values >= self.threshold if self.above else values <= self.threshold

    def __str__(self) -> str:
        return self.score.describe(self.space, self.above, self.threshold)

    @property
    def code(self) -> str:
        """The event's condition as a Python expression of `output`, or "" if there is none."""
        return self.score.code(self.space, self.above, self.threshold)

    @property
    def reads_bits(self) -> bool:
        """True if the event depends on nothing but the low-order bits of floats."""
        groups = {self.space.encoder.features[column].group for column in self.score.columns}
        return groups == {"bits"}


@dataclass(frozen=True)
class Levels:
    """Nested events of one score, widest first, and the weight of the outputs in each that no narrower one contains."""

    score: Score = field(repr=False)
    thresholds: Floats
    above: bool
    weights: tuple[int, ...]

    def count(self, data: Encoded) -> NDArray[np.intp]:
        """Return the number of outputs of each weight."""
        sign = 1.0 if self.above else -1.0
        level = np.searchsorted(sign * self.thresholds, sign * self.score.evaluate(data), side="right")
        return np.bincount(level, minlength=len(self.weights) + 1)[1:]


@dataclass(frozen=True)
class ColumnScore(Score):
    """A score for each bin of one feature."""

    column: int
    table: Floats

    @property
    def columns(self) -> tuple[int, ...]:  # type: ignore[override]
        """The one column that the score reads."""
        return (self.column,)

    def evaluate(self, data: Encoded) -> Floats:
        """Return the score of each output's bin."""
        result: Floats = self.table[data.codes[:, self.column]]
        return result

    def value_counts(self, data: Encoded) -> tuple[Floats, Floats | None]:
        """Return the scores of the bins and the number of outputs in each."""
        return self.table, np.bincount(data.codes[:, self.column], minlength=len(self.table)).astype(np.float64)

    def describe(self, space: OutcomeSpace, above: bool, threshold: float) -> str:
        """Describe the bins as ranges, or name the categories."""
        return space.describe(self.column, self._chosen_bins(above, threshold))

    def code(self, space: OutcomeSpace, above: bool, threshold: float) -> str:
        """Write the ranges as a Python expression."""
        return space.code(self.column, self._chosen_bins(above, threshold))

    def _chosen_bins(self, above: bool, threshold: float) -> NDArray[np.bool_]:
        return self.table >= threshold if above else self.table <= threshold


@dataclass(frozen=True)
class CellScore(Score):
    """A score for each distinct output."""

    keys: RowKeys
    values: Floats
    columns: tuple[int, ...] = ()

    def evaluate(self, data: Encoded) -> Floats:
        """Return the score of each output; 0 for an output that the sample did not contain."""
        index = np.minimum(np.searchsorted(self.keys, data.keys), len(self.keys) - 1)
        return np.where(self.keys[index] == data.keys, self.values[index], 0.0)

    def describe(self, space: OutcomeSpace, above: bool, threshold: float) -> str:
        """Count the distinct outputs."""
        chosen = self.values >= threshold if above else self.values <= threshold
        return f"one of {int(chosen.sum())} outputs, of {len(self.keys)} distinct ones"


@dataclass(frozen=True)
class JointScore(Score):
    """A score for each pair of coarse bins of two features."""

    columns: tuple[int, int]
    coarse: tuple[NDArray[np.intp], NDArray[np.intp]]
    table: Floats
    covariance_root: Floats = field(default_factory=lambda: NO_COVARIANCE)

    def evaluate(self, data: Encoded) -> Floats:
        """Return the score of each output's pair of bins."""
        result: Floats = self.table.ravel()[self._cells(data)]
        return result

    def covariance_rows(self, data: Encoded, bins: NDArray[np.intp], count: int) -> Floats:
        """Return the rows, from the number of each bin's outputs in each cell."""
        cells = bins * self.table.size + self._cells(data)
        result: Floats = np.bincount(cells, minlength=count * self.table.size).reshape(count, -1) @ self.covariance_root
        return result

    def value_counts(self, data: Encoded) -> tuple[Floats, Floats | None]:
        """Return the scores of the cells and the number of outputs in each."""
        return self.table.ravel(), np.bincount(self._cells(data), minlength=self.table.size).astype(np.float64)

    def _cells(self, data: Encoded) -> NDArray[np.intp]:
        first, second = (group[data.codes[:, column]] for group, column in zip(self.coarse, self.columns, strict=True))
        result: NDArray[np.intp] = first * self.table.shape[1] + second
        return result

    def describe(self, space: OutcomeSpace, above: bool, threshold: float) -> str:
        """Count the cells of the grid."""
        chosen = self.table >= threshold if above else self.table <= threshold
        names = " and ".join(space.names[column] for column in self.columns)
        return f"({names}) in {int(chosen.sum())} of {chosen.size} cells of a grid"


@dataclass(frozen=True)
class CornerScore(Score):
    """The bin of the second feature, for outputs whose bin of the first lies in a range; others are in no event."""

    columns: tuple[int, int]
    first: int
    last: int
    above: bool

    def evaluate(self, data: Encoded) -> Floats:
        """Return the bin of the second feature, or a value outside of every event."""
        first, second = (data.codes[:, column] for column in self.columns)
        inside = (first >= self.first) & (first <= self.last) & (second > 0)
        return np.where(inside, second.astype(np.float64), -1.0 if self.above else 256.0)

    def describe(self, space: OutcomeSpace, above: bool, threshold: float) -> str:
        """Describe the ranges of both features."""
        ranges = zip(self.columns, self._chosen_bins(above, threshold), strict=True)
        texts = [space.describe(column, bins) for column, bins in ranges]
        return " and ".join(_in_brackets(text) for text in texts if text != "any output") or "any output"

    def code(self, space: OutcomeSpace, above: bool, threshold: float) -> str:
        """Write the ranges of both features as a Python expression."""
        ranges = zip(self.columns, self._chosen_bins(above, threshold), strict=True)
        conditions = [space.code(column, bins) for column, bins in ranges]
        return " and ".join(_in_brackets(condition) for condition in conditions) if all(conditions) else ""

    def _chosen_bins(self, above: bool, threshold: float) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        codes = np.arange(256)
        second = (codes >= threshold) if above else (codes > 0) & (codes <= threshold)
        return (codes >= self.first) & (codes <= self.last), second


@dataclass(frozen=True)
class SumScore(Score):
    """A sum over features of a score for each bin, as logistic regression learns it.

    `rows` maps each column's bins to rows of the covariance root.
    """

    columns: tuple[int, ...]
    tables: Floats
    rows: NDArray[np.intp] = field(default_factory=lambda: NO_COVARIANCE.astype(np.intp))
    covariance_root: Floats = field(default_factory=lambda: NO_COVARIANCE)

    def evaluate(self, data: Encoded) -> Floats:
        """Return the sum for each output."""
        total = np.zeros(len(data))
        for table, column in zip(self.tables, self.columns, strict=True):
            total += table[data.codes[:, column]]
        return total

    def covariance_rows(self, data: Encoded, bins: NDArray[np.intp], count: int) -> Floats:
        """Return the rows, from the number of each bin's outputs that read each entry of the tables."""
        width = len(self.covariance_root)
        reads = np.zeros(count * width)
        for rows, column in zip(self.rows, self.columns, strict=True):
            reads += np.bincount(bins * width + rows[data.codes[:, column]], minlength=len(reads))
        result: Floats = reads.reshape(count, width) @ self.covariance_root
        return result

    def describe(self, space: OutcomeSpace, above: bool, threshold: float) -> str:
        """Name the features with the largest ranges of scores."""
        order = np.argsort(-np.ptp(self.tables, axis=1))[:6]
        names = ", ".join(space.names[self.columns[index]] for index in order)
        return (
            f"logistic score {'>=' if above else '<='} {threshold:.4g} over {len(self.columns)} features ({names}, ...)"
        )


@dataclass(frozen=True)
class TreeScore(Score):
    """A sum of trees that split all nodes of a depth by the same feature and cut."""

    splits: tuple[tuple[tuple[int, int], ...], ...]
    leaves: tuple[Floats, ...]

    @property
    def columns(self) -> tuple[int, ...]:  # type: ignore[override]
        """The columns that any tree reads."""
        return tuple(sorted({column for tree in self.splits for column, _ in tree}))

    def evaluate(self, data: Encoded) -> Floats:
        """Return the sum of the leaves that each output falls into."""
        total = np.zeros(len(data))
        for tree, values in zip(self.splits, self.leaves, strict=True):
            total += values[leaf_index(data.codes, tree)]
        return total

    def describe(self, space: OutcomeSpace, above: bool, threshold: float) -> str:
        """Describe the trees by their number and their features."""
        names = ", ".join(space.names[column] for column in self.columns[:6])
        return f"score of {len(self.splits)} boosted trees {'>=' if above else '<='} {threshold:.4g} over {names}, ..."


@dataclass(frozen=True)
class MeanScore(Score):
    """The mean of several scores."""

    members: tuple[Score, ...]

    @property
    def columns(self) -> tuple[int, ...]:  # type: ignore[override]
        """The columns that any member reads."""
        return tuple(sorted({column for member in self.members for column in member.columns}))

    def evaluate(self, data: Encoded) -> Floats:
        """Return the mean for each output."""
        total = np.zeros(len(data))
        for member in self.members:
            total += member.evaluate(data)
        return total / len(self.members)

    def covariance_rows(self, data: Encoded, bins: NDArray[np.intp], count: int) -> Floats:
        """Return rows whose variances are the means of the members' variances.

        Averaging makes them no smaller, because all members learned from the same outputs.
        """
        rows = [member.covariance_rows(data, bins, count) for member in self.members]
        result: Floats = np.concatenate(rows, axis=1) / np.sqrt(len(rows))
        return result

    def describe(self, space: OutcomeSpace, above: bool, threshold: float) -> str:
        """Describe the scores by their number and their features."""
        names = ", ".join(space.names[column] for column in self.columns[:6])
        return f"mean of {len(self.members)} scores {'>=' if above else '<='} {threshold:.4g} over {names}, ..."


@dataclass(frozen=True)
class SampleTable:
    """Encoded outputs of the two inputs."""

    space: OutcomeSpace
    a: Encoded
    b: Encoded
    _bin_counts: dict[int, tuple[NDArray[np.intp], NDArray[np.intp]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def counts(self, column: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return the number of outputs of each input in each bin of a column, cached."""
        if column not in self._bin_counts:
            a, b = (np.bincount(side.codes[:, column], minlength=256) for side in (self.a, self.b))
            self._bin_counts[column] = a, b
        return self._bin_counts[column]

    def part(self, start: float, end: float) -> SampleTable:
        """Return the part of each input's outputs between two shares from 0 to 1."""
        cuts = [slice(int(start * len(side)), int(end * len(side))) for side in (self.a, self.b)]
        return SampleTable(self.space, self.a[cuts[0]], self.b[cuts[1]])


def concatenate_outputs(first: Any, second: Any) -> Any:
    """Concatenate the outputs of both inputs, as an array if possible, else as a list."""
    arrays = isinstance(first, np.ndarray) and isinstance(second, np.ndarray)
    return np.concatenate([first, second]) if arrays and first.shape[1:] == second.shape[1:] else [*first, *second]


def _edges(column: Floats) -> Floats:
    """Return bin edges: every value if there are few, else infinities and quantiles, dense in both tails.

    A value that covers several quantiles gets a bin of its own.
    """
    values = np.sort(column[~np.isnan(column)])
    distinct = np.unique(values)
    if len(distinct) <= MAX_BINS // 2:
        return distinct
    finite = values[np.isfinite(values)]
    tails = np.geomspace(4 / len(finite), 0.04, 22)
    quantiles = np.concatenate([tails, np.linspace(0.05, 0.95, 73), 1 - tails])
    cuts = finite[(quantiles * (len(finite) - 1)).astype(int)]
    starts, repeats = np.unique(cuts, return_counts=True)
    atoms = starts[repeats > 1]
    edges = np.concatenate([starts, np.nextafter(atoms, np.inf), finite[:1], distinct[~np.isfinite(distinct)]])
    return np.unique(edges)


def _bin_codes(column: Floats, edges: Floats) -> BinCodes:
    return wording.bin_numbers(column, edges).astype(np.uint8)


def leaf_index(codes: BinCodes, tree: tuple[tuple[int, int], ...]) -> NDArray[np.intp]:
    """Return the index of the leaf that each output falls into."""
    index = np.zeros(len(codes), dtype=np.intp)
    for column, cut in tree:
        index = 2 * index + (codes[:, column] > cut)
    return index


def _in_brackets(text: str) -> str:
    return f"({text})" if " or " in text else text
