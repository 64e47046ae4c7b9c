"""Before anything is spent: expected errors from public facts, and how a query was understood."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from dither.errors import Unbounded
from dither.plan.context import Context
from dither.plan.relations.scan import Scan
from dither.plan.traversal import fill_limits, walk
from dither.post.contribution_bound import FIND_SHARE
from dither.post.estimate.intervals import Banded, Measured, NoisyColumn, estimate
from dither.post.formulas import (
    Average,
    ClampedTo,
    FixedValue,
    Formula,
    FunctionCall,
    KeyValue,
    NoisyCell,
    as_affine,
    cells_of,
    strip_monotone,
)
from dither.post.noise import noise_of
from dither.post.query.planner import MOST, CellRef, QuantileRef, QueryPlan
from dither.post.query.request import finding_share, mechanism_of
from dither.privacy.protocol import Measurement

TYPICAL_ROWS = 1000.0
STRAIGHT = frozenset({"round", "floor", "ceil"})


@dataclass(frozen=True)
class Expected:
    """How far off a column will be: standard error and half the width of its interval, by noise alone.

    Where `needs_rows` holds, the error depends on the size of a group, and the figures are for `rows` of them.
    """

    name: str
    std_error: float
    half_width: float
    needs_rows: bool
    rows: float | None = None


def expected(
    context: Context, plan: QueryPlan, parts: Sequence[Measurement], confidence: float, rows: float | None
) -> tuple[Expected, ...]:
    """The expected error of each computed column."""
    size = group_size(context, plan, parts) if rows is None else float(rows)
    columns = [_imagined(context, plan, parts, source, size) for source in plan.sources]
    made = []
    for output in plan.outputs:
        if isinstance(output.node, KeyValue) or not cells_of(output.node):
            continue
        keys = [np.zeros(1)] * len(plan.keys)
        found = estimate(output.node, columns, keys, confidence)
        depends = _depends(output.node, plan)
        with np.errstate(invalid="ignore"):
            # Both ends may be infinite: then nothing is known about the column.
            width = float(np.max(np.nan_to_num(found.high - found.low, nan=np.inf, posinf=np.inf))) / 2
        made.append(Expected(output.name, float(np.max(found.std_error)), width, depends, size if depends else None))
    return tuple(made)


def group_size(context: Context, plan: QueryPlan, parts: Sequence[Measurement]) -> float:
    """How many rows a group may have: the noisy size of the largest table, in equal parts, or a thousand."""
    tables = {node.table for node in walk(plan.question.relation) if isinstance(node, Scan)}
    sizes = [size for table in sorted(tables) if (size := context.rows(table)) is not None]
    groups = prod(len(axis.values) for axis in parts[0].measure.axes(context)[: len(plan.keys)])
    return max(1.0, max(sizes) / groups) if sizes else TYPICAL_ROWS


def _imagined(
    context: Context, plan: QueryPlan, parts: Sequence[Measurement], source: CellRef | QuantileRef, rows: float
) -> NoisyColumn:
    """A column as it might come back from a group of that many rows, spread evenly over the declared range."""
    part = parts[source.piece]
    mechanism = mechanism_of(part, part.measure.sensitivity(context, plan.unit))
    steps = part.measure.steps(context)
    if isinstance(source, QuantileRef):
        low, high = source.bins.low, source.bins.high
        noise = noise_of(mechanism, steps[0]).std * np.sqrt(len(low)) / max(rows, 1.0)
        width = (high[-1] - low[0]) * min(1.0, noise)
        middle = np.array([(low[0] + high[-1]) / 2])
        return Banded(middle, middle - width / 2, middle + width / 2)
    step = steps[source.value] / source.factor
    return Measured(np.array([rows * float(source.typical)]), noise_of(mechanism, step))


def _depends(node: Formula, plan: QueryPlan) -> bool:
    """Whether the error of a column depends on the data: it does not for sums of measured columns, rounded or not."""
    outer, core = strip_monotone(node)
    ranked = any(isinstance(plan.sources[index], QuantileRef) for index in cells_of(node))
    return ranked or as_affine(core) is None or any(function.name not in STRAIGHT for function in outer)


@dataclass(frozen=True)
class Explanation:
    """How a query is understood, in lines that a person can read."""

    lines: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(self.lines)


def explanation(context: Context, plan: QueryPlan) -> Explanation:
    """Measures with their shape, sensitivity and share of the loss; then what is computed from them."""
    lines = [f"unit of privacy: {plan.unit}"]
    when = " (at the largest bound)" if plan.searches else ""
    for search in plan.searches:
        lines.append(
            f"first, in the same charge, a private histogram finds the bound on {search.tag} among {len(search.grid)} "
            f"from {search.grid[0]} to {search.grid[-1]} ({FIND_SHARE / len(plan.searches)} of the loss)"
        )
    for place, piece in enumerate(plan.pieces):
        measure, share = fill_limits(piece.measure, MOST), piece.share * (1 - finding_share(plan))
        lines.append(f"measure {place}: {type(measure).__name__}, {measure.size(context)} cells, {share} of the loss")
        lines.append(f"  sensitivity in steps{when}: {_norms(context, plan, measure)}")
    lines += [f"column {output.name} = {describe(output.node)}" for output in plan.outputs]
    if plan.having is not None:
        lines.append(f"rows kept, on noisy values: {describe(plan.having)}")
    return Explanation(tuple(lines))


def _norms(context: Context, plan: QueryPlan, measure: object) -> str:
    try:
        found = measure.sensitivity(context, plan.unit)  # type: ignore[attr-defined]
    except Unbounded as problem:
        return str(problem)
    return f"L0 {found.l0}, Linf {found.linf}, L1 {found.l1}, L2^2 {found.l2_squared}"


def describe(node: Formula) -> str:
    """A recipe as text; c0, c1... are measured columns, k0, k1... keys."""
    match node:
        case NoisyCell(index):
            return f"c{index}"
        case KeyValue(index):
            return f"k{index}"
        case Average(total, size, centre, low, high):
            return f"{centre:g} + {describe(total)} / {describe(size)} within [{low:g}, {high:g}]"
        case ClampedTo(inner, low, high):
            return f"{describe(inner)} within [{low:g}, {high:g}]"
        case FunctionCall(name, arguments):
            return f"{name}({', '.join(map(describe, arguments))})"
        case FixedValue(value):
            return str(value)
