"""Combine several draws of one query into one answer, weighted by inverse variance; this is post-processing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dither.post.estimate.contribution import EstimatedBound
from dither.post.estimate.intervals import NoisyColumn
from dither.post.estimate.measured import measured_columns
from dither.post.estimate.quantiles import estimate_quantile
from dither.post.formulas import FixedValue, Formula, FunctionCall, NoisyCell
from dither.post.noise import ScaledNoise, noise_of
from dither.post.query.query_plan import CellRef, QuantileRef, QueryPlan, cell_substitution
from dither.post.query.question import OutputColumn
from dither.privacy.protocol import ReleasedMeasurement

LEAST_VARIANCE = 1e-30


@dataclass(frozen=True)
class QuestionDraws:
    """The plan of a query at its chosen bounds, and the released measurements of each of its draws."""

    plan: QueryPlan
    draws: tuple[tuple[ReleasedMeasurement, ...], ...]

    def with_draw(self, released: Sequence[ReleasedMeasurement]) -> QuestionDraws:
        """Return these draws and one more."""
        return QuestionDraws(self.plan, (*self.draws, tuple(released)))


def combine_measurements(
    draws: QuestionDraws, bounds: Mapping[str, EstimatedBound], confidence: float
) -> tuple[QueryPlan, list[NoisyColumn]]:
    """Return the noisy columns of all draws, and the plan that reads the weighted mean of each column's draws."""
    plan, columns, cells = draws.plan, list[NoisyColumn](), dict[int, Formula]()
    sources = list[CellRef | QuantileRef]()  # of each column: later steps read a column's source by its index
    for index, source in enumerate(plan.sources):
        if isinstance(source, QuantileRef):
            cells[index] = NoisyCell(len(columns))
            columns.append(_combine_quantile(source, draws, confidence))
            sources.append(source)
            continue
        drawn = [measured_columns(plan, draw, bounds, confidence)[index] for draw in draws.draws]
        weights = inverse_variance_weights([column.noise.variance for column in drawn])
        cells[index] = _weighted_mean(weights, len(columns))
        columns += drawn
        sources += [source] * len(drawn)
    substitute = cell_substitution(cells)
    combined = replace(
        plan,
        sources=tuple(sources),
        outputs=tuple(OutputColumn(output.name, substitute(output.node)) for output in plan.outputs),
        having=None if plan.having is None else substitute(plan.having),
        order=tuple(replace(term, node=substitute(term.node)) for term in plan.order),
    )
    return combined, columns


def inverse_variance_weights(variances: Sequence[float]) -> list[float]:
    """Return weights proportional to inverse variances, with sum 1.

    >>> inverse_variance_weights([1.0, 3.0])
    [0.75, 0.25]
    """
    precisions = [1 / max(variance, LEAST_VARIANCE) for variance in variances]
    return [precision / math.fsum(precisions) for precision in precisions]


def _weighted_mean(weights: Sequence[float], first: int) -> Formula:
    """The formula of the weighted sum of the columns from index `first` on."""
    terms: list[Formula] = [
        FunctionCall("mul", (FixedValue(weight), NoisyCell(first + position)))
        for position, weight in enumerate(weights)
    ]
    total = terms[0]
    for term in terms[1:]:
        total = FunctionCall("add", (total, term))
    return total


def _combine_quantile(source: QuantileRef, draws: QuestionDraws, confidence: float) -> NoisyColumn:
    """Estimate a quantile from the weighted mean of the histograms.

    The mean's noise has the variance of the weighted sum; it is treated as Laplace if any draw is.
    """
    parts = [draw[source.measure_index] for draw in draws.draws]
    noises = [noise_of(part.mechanism, part.steps[0]) for part in parts]
    weights = inverse_variance_weights([noise.variance for noise in noises])
    tables = [np.array(part.values, float).reshape(-1, len(source.bins.low)) for part in parts]
    counts = sum(weight * table for weight, table in zip(weights, tables, strict=True))
    variance = math.fsum(weight**2 * noise.variance for weight, noise in zip(weights, noises, strict=True))
    # Noise of a thousand steps per standard deviation, so that the lattice does not matter.
    step = 1e-3 * max(math.sqrt(variance), LEAST_VARIANCE)
    if any(noise.kind == "laplace" for noise in noises):
        combined = ScaledNoise("laplace", 1000 / math.sqrt(2), step)
    else:
        combined = ScaledNoise("gaussian", 1000.0, step)
    noise = noises[0] if len(noises) == 1 else combined
    return estimate_quantile(np.asarray(counts), noise, source.bins, source.level, confidence)
