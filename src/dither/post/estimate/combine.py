"""Several draws of one question as one answer: each weighs as much as its noise is small. Postprocessing alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dither.post.estimate.contribution import EstimatedBound
from dither.post.estimate.intervals import NoisyColumn
from dither.post.estimate.measured import measured_columns
from dither.post.estimate.quantiles import quantile
from dither.post.formulas import FixedValue, Formula, FunctionCall, NoisyCell
from dither.post.noise import ScaledNoise, noise_of
from dither.post.query.planner import QuantileRef, QueryPlan, key_substitution
from dither.post.query.question import OutputColumn
from dither.privacy.protocol import ReleasedMeasurement

QUIET = 1e-30


@dataclass(frozen=True)
class QuestionDraws:
    """What an answer was computed from: its plan at the bounds found, and what was released for each draw of it."""

    plan: QueryPlan
    draws: tuple[tuple[ReleasedMeasurement, ...], ...]

    def with_draw(self, released: Sequence[ReleasedMeasurement]) -> QuestionDraws:
        """With one draw more."""
        return QuestionDraws(self.plan, (*self.draws, tuple(released)))


def combine_measurements(
    drawn: QuestionDraws, bounds: Mapping[str, EstimatedBound], confidence: float
) -> tuple[QueryPlan, list[NoisyColumn]]:
    """The plan over the columns of all draws, where what was one column is their mean by inverse variance."""
    plan, columns, cells = drawn.plan, list[NoisyColumn](), dict[int, Formula]()
    for index, source in enumerate(plan.sources):
        if isinstance(source, QuantileRef):
            cells[index] = NoisyCell(len(columns))
            columns.append(_ranked(source, drawn, confidence))
            continue
        own = [measured_columns(replace(plan, sources=(source,)), draw, bounds, confidence)[0] for draw in drawn.draws]
        cells[index] = _mean(inverse_variance_weights([column.law.variance for column in own]), len(columns))
        columns += own
    change = key_substitution(cells)
    return (
        replace(
            plan,
            outputs=tuple(OutputColumn(output.name, change(output.node)) for output in plan.outputs),
            having=None if plan.having is None else change(plan.having),
            order=tuple(replace(term, node=change(term.node)) for term in plan.order),
        ),
        columns,
    )


def inverse_variance_weights(variances: Sequence[float]) -> list[float]:
    """Shares by inverse variance.

    >>> weights([1.0, 3.0])
    [0.75, 0.25]
    """
    sizes = [1 / max(variance, QUIET) for variance in variances]
    return [size / math.fsum(sizes) for size in sizes]


def _mean(shares: Sequence[float], first: int) -> Formula:
    terms: list[Formula] = [
        FunctionCall("mul", (FixedValue(share), NoisyCell(first + place))) for place, share in enumerate(shares)
    ]
    total = terms[0]
    for term in terms[1:]:
        total = FunctionCall("add", (total, term))
    return total


def _ranked(source: QuantileRef, drawn: QuestionDraws, confidence: float) -> NoisyColumn:
    """A quantile read off the mean of the histograms; its noise has a law of the heavier kind and their joint size."""
    parts = [draw[source.piece] for draw in drawn.draws]
    laws = [noise_of(part.mechanism, part.steps[0]) for part in parts]
    shares = inverse_variance_weights([law.variance for law in laws])
    tables = [np.array(part.values, float).reshape(-1, len(source.bins.low)) for part in parts]
    counts = sum(share * table for share, table in zip(shares, tables, strict=True))
    variance = math.fsum(share**2 * law.variance for share, law in zip(shares, laws, strict=True))
    heavy = any(law.kind == "laplace" for law in laws)
    fine = 1e-3 * max(math.sqrt(variance), QUIET)
    whole = ScaledNoise("laplace" if heavy else "gaussian", 1000 / math.sqrt(2) if heavy else 1000.0, fine)
    return quantile(np.asarray(counts), laws[0] if len(laws) == 1 else whole, source.bins, source.wanted, confidence)
