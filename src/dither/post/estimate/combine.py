"""Several draws of one question as one answer: each weighs as much as its noise is small. Postprocessing alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dither.post.estimate.contribution import Found
from dither.post.estimate.intervals import Source
from dither.post.estimate.measured import sources
from dither.post.estimate.quantiles import quantile
from dither.post.formulas import Apply, Cell, Constant, Node
from dither.post.noise import Law, law
from dither.post.query.planner import Plan, Ranking, substitution
from dither.post.query.question import Output
from dither.privacy.protocol import ReleasedPart

QUIET = 1e-30


@dataclass(frozen=True)
class Drawn:
    """What an answer was computed from: its plan at the bounds found, and what was released for each draw of it."""

    plan: Plan
    draws: tuple[tuple[ReleasedPart, ...], ...]

    def again(self, released: Sequence[ReleasedPart]) -> Drawn:
        """With one draw more."""
        return Drawn(self.plan, (*self.draws, tuple(released)))


def combined(drawn: Drawn, bounds: Mapping[str, Found], confidence: float) -> tuple[Plan, list[Source]]:
    """The plan over the columns of all draws, where what was one column is their mean by inverse variance."""
    plan, columns, cells = drawn.plan, list[Source](), dict[int, Node]()
    for index, source in enumerate(plan.sources):
        if isinstance(source, Ranking):
            cells[index] = Cell(len(columns))
            columns.append(_ranked(source, drawn, confidence))
            continue
        own = [sources(replace(plan, sources=(source,)), draw, bounds, confidence)[0] for draw in drawn.draws]
        cells[index] = _mean(weights([column.law.variance for column in own]), len(columns))
        columns += own
    change = substitution(cells)
    return (
        replace(
            plan,
            outputs=tuple(Output(output.name, change(output.node)) for output in plan.outputs),
            having=None if plan.having is None else change(plan.having),
            order=tuple(replace(term, node=change(term.node)) for term in plan.order),
        ),
        columns,
    )


def weights(variances: Sequence[float]) -> list[float]:
    """Shares by inverse variance.

    >>> weights([1.0, 3.0])
    [0.75, 0.25]
    """
    sizes = [1 / max(variance, QUIET) for variance in variances]
    return [size / math.fsum(sizes) for size in sizes]


def _mean(shares: Sequence[float], first: int) -> Node:
    terms: list[Node] = [Apply("mul", (Constant(share), Cell(first + place))) for place, share in enumerate(shares)]
    total = terms[0]
    for term in terms[1:]:
        total = Apply("add", (total, term))
    return total


def _ranked(source: Ranking, drawn: Drawn, confidence: float) -> Source:
    """A quantile read off the mean of the histograms; its noise has a law of the heavier kind and their joint size."""
    parts = [draw[source.piece] for draw in drawn.draws]
    laws = [law(part.mechanism, part.steps[0]) for part in parts]
    shares = weights([law.variance for law in laws])
    tables = [np.array(part.values, float).reshape(-1, len(source.bins.low)) for part in parts]
    counts = sum(share * table for share, table in zip(shares, tables, strict=True))
    variance = math.fsum(share**2 * law.variance for share, law in zip(shares, laws, strict=True))
    heavy = any(law.kind == "laplace" for law in laws)
    fine = 1e-3 * max(math.sqrt(variance), QUIET)
    whole = Law("laplace" if heavy else "gaussian", 1000 / math.sqrt(2) if heavy else 1000.0, fine)
    return quantile(np.asarray(counts), laws[0] if len(laws) == 1 else whole, source.bins, source.wanted, confidence)
