"""Estimates of how far synthetic data are from the data, for one, two and three columns at a time.

A fit follows the noise of the tables it is fitted to, so its distance from them says too little. The part that it
follows is estimated by refits to redrawn noise (a covariance penalty). What then remains of the squared distance is an
unbiased estimate of the error, with a spread that follows from the noise: nothing is called good that noise could hide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import prod

import numpy as np

from dither.post.noise import Floats, ScaledNoise
from dither.post.statistics.grid import draw_noise
from dither.post.statistics.joint import ITERATIONS, JointTable, Pairs, PairTree, fit_joint, total_count
from dither.post.statistics.marginals import Attribute

Columns = tuple[int, ...]
# Refits to redrawn noise; tables of more combinations than this are refitted once, in fewer iterations.
REFITS, LARGE_TABLE, FEW_ITERATIONS = 3, 1 << 15, 60
# The errors, as shares of rows in the wrong cell, up to which synthetic data are called good, and rough.
GOOD, ROUGH = 0.05, 0.15
# Variances of a squared draw, of noise of unit variance.
SQUARE_SPREAD = {"laplace": 5.0, "gaussian": 2.0}
ONE_SIDED = 1.645
MOST_TRIPLES = 30
# Values follow from bins more than from data if one bin, or two neighbours, have a larger share of rows than this, and
# are not narrow beside the spread of all values.
MOST_ROWS, NEARLY_ALL, NARROW = 0.6, 0.85, 0.1
# Bins of at most so many values show them well enough.
FEW_VALUES = 4


@dataclass(frozen=True)
class MarginError:
    """The error of a margin, as the share of rows in the wrong cell: an estimate, and what it is at most, by 95%."""

    noise: float
    error: float
    at_most: float

    @property
    def verdict(self) -> str:
        """One word: good only if even the upper end is small, bad if the estimate is large already."""
        if self.at_most <= GOOD:
            return "good"
        return "rough" if self.error <= ROUGH else "bad"


@dataclass(frozen=True)
class SynthesisErrors:
    """The errors of all single columns and pairs, and the mean distance that noise alone moves three columns."""

    margins: Mapping[Columns, MarginError]
    triples: float | None

    def mean(self, size: int) -> float:
        """Return the mean of the errors of margins of so many columns."""
        return float(np.mean([found.error for columns, found in self.margins.items() if len(columns) == size]))


def estimate_errors(
    joint: JointTable | PairTree, sizes: Sequence[int], pairs: Pairs, noise: ScaledNoise, refit: bool
) -> SynthesisErrors:
    """Estimate the errors of a fit; without `refit`, as if the fit did not follow the noise."""
    count = total_count(pairs)
    fitted, measured = fitted_margins(joint, pairs), measured_margins(sizes, pairs)
    variances = measured_margins(sizes, {pair: np.full(t.shape, noise.variance) for pair, t in pairs.items()}, True)
    penalties, triples = redraw(joint, sizes, pairs, noise) if refit else (dict.fromkeys(fitted, 0.0), None)
    margins = {
        columns: margin_error(
            fitted[columns], measured[columns] / count, variances[columns] / count**2, penalties[columns], noise.kind
        )
        for columns in fitted
    }
    return SynthesisErrors(margins, triples)


def margin_error(fitted: Floats, measured: Floats, variances: Floats, penalty: float, kind: str) -> MarginError:
    """Estimate the error of one margin from its squared distance to the noisy one, in shares of rows."""
    variance, cells = float(variances.mean()), fitted.size
    squares = float(((fitted - measured) ** 2).sum()) - cells * variance + 2 * penalty
    spread = np.sqrt(cells * SQUARE_SPREAD[kind] * variance**2 + 4 * variance * max(squares, 0.0))
    factor = distance_factor(cells)
    error = factor * np.sqrt(max(0.0, squares))
    at_most = factor * np.sqrt(max(0.0, squares) + ONE_SIDED * spread)
    noise = noise_distance(cells, variance)
    return MarginError(*(min(1.0, float(share)) for share in (noise, error, at_most)))


def distance_factor(cells: int) -> float:
    """Return the total variation distance of an evenly spread error of length 1."""
    return float(np.sqrt(2 / np.pi) * np.sqrt(cells) / 2)


def noise_distance(cells: int, variance: float) -> float:
    """Return about the distance, at most 1, that noise of a variance in each of so many cells makes."""
    return min(1.0, distance_factor(cells) * float(np.sqrt(cells * variance)))


def fitted_margins(joint: JointTable | PairTree, pairs: Pairs) -> dict[Columns, Floats]:
    """Return the fitted probabilities of single columns and of pairs."""
    tables: dict[Columns, Floats] = {(i, j): joint.pair(i, j) for i, j in pairs}
    singles: dict[Columns, Floats] = {}
    for (i, j), table in tables.items():
        singles[(i,)], singles[(j,)] = table.sum(axis=1), table.sum(axis=0)
    return {**dict(sorted(singles.items())), **tables}


def measured_margins(sizes: Sequence[int], pairs: Pairs, variances: bool = False) -> dict[Columns, Floats]:
    """Return the noisy counts of single columns, as means over their pairs, and of pairs; or their variances."""
    found: dict[Columns, Floats] = {}
    for column in range(len(sizes)):
        own = [table.sum(axis=1 if i == column else 0) for (i, j), table in pairs.items() if column in (i, j)]
        found[(column,)] = np.sum(own, axis=0) / len(own) ** (2 if variances else 1)
    found.update({(i, j): table for (i, j), table in pairs.items()})
    return found


def redraw(
    joint: JointTable | PairTree, sizes: Sequence[int], pairs: Pairs, noise: ScaledNoise
) -> tuple[dict[Columns, float], float | None]:
    """Refit to the fitted tables with redrawn noise: how far fits follow it, and how far it moves three columns."""
    large, count = prod(sizes) > LARGE_TABLE, total_count(pairs)
    random, base = np.random.default_rng(20_261_118), fitted_margins(joint, pairs)
    penalties, triples = dict.fromkeys(base, 0.0), []
    refits = 1 if large else REFITS
    for _ in range(refits):
        drawn = {pair: draw_noise(noise, table.shape, random) for pair, table in pairs.items()}
        made_up = {pair: count * base[pair] + error for pair, error in drawn.items()}
        refitted = fit_joint(sizes, made_up, noise.variance, FEW_ITERATIONS if large else ITERATIONS)
        errors, moved = measured_margins(sizes, drawn), fitted_margins(refitted, pairs)
        for columns in base:
            penalties[columns] += float(((moved[columns] - base[columns]) * errors[columns]).sum()) / count / refits
        triples += triple_distances(joint, refitted)
    return penalties, float(np.mean(triples)) if triples else None


def triple_distances(one: JointTable | PairTree, two: JointTable | PairTree) -> list[float]:
    """Return the distances of two joint tables over three columns at a time; none for trees."""
    if not isinstance(one, JointTable) or not isinstance(two, JointTable):
        return []
    columns = range(one.cells.ndim)
    found = []
    for kept in list(combinations(columns, 3))[:MOST_TRIPLES]:
        others = tuple(column for column in columns if column not in kept)
        found.append(float(np.abs(one.cells.sum(axis=others) - two.cells.sum(axis=others)).sum()) / 2)
    return found


def coarse_note(attribute: Attribute, shares: Floats) -> list[str]:
    """Warn if most values of a number lie in one bin, or nearly all in two: what is inside a bin is made up."""
    if not attribute.edges:
        return []
    edges = np.array([float(edge) for edge in attribute.edges])
    middles = (edges[:-1] + edges[1:]) / 2
    spread = float(np.sqrt(max(0.0, shares @ middles**2 - (shares @ middles) ** 2)))
    for bins, most, words in ((1, MOST_ROWS, "one bin"), (2, NEARLY_ALL, "two bins")):
        if bins > attribute.size:
            break
        together = np.convolve(shares, np.ones(bins), "valid")
        place = int(np.argmax(together))
        low, high = edges[place], edges[place + bins]
        wide = high - low > max(FEW_VALUES * bins * float(attribute.step), NARROW * spread)
        if together[place] > most and wide:
            return [
                f"warning: {together[place]:.0%} of the rows have {attribute.name} in {words}, from {low:g} to {high:g}"
                ": verdicts are about bins, and values inside a bin are made up; give narrower bins there, such as"
                f" bins={{'{attribute.name}': [...]}} with edges from session.quantiles"
            ]
    return []
