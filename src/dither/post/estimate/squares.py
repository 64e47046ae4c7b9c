"""Estimate how much clipping removed from variances: squares and sums lack the same units, which one search saw.

A unit beyond the span of its value is mostly beyond that of its square as well. The number of such units follows from
the search for the values, whose tail falls twice as fast as that of squares, and from how much was left of the squares.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property

import numpy as np
from scipy import special

from dither.plan.traversal import transform, walk
from dither.post.estimate.contribution import SQUARES_LEVEL, EstimatedBound, FoundSpan
from dither.post.estimate.intervals import NoisyColumn
from dither.post.estimate.measured import measured_columns
from dither.post.formulas import Formula, FunctionCall, NoisyCell, as_affine, cells_of, evaluate
from dither.post.noise import Floats
from dither.post.query.query_plan import CellRef, QueryPlan
from dither.post.query.question import OutputColumn
from dither.privacy.contribution_bound import WITHIN_BIN, ContributionModel, fit_contributions, weighted_sums
from dither.privacy.protocol import KnownSize, ReleasedMeasurement

# What clipping removed is no part of the sums that are read with this confidence.
CONFIDENCE = 0.95
# Squares are counted in steps of which the largest sum has this many.
STEPS = 2.0**60


@dataclass(frozen=True)
class EstimatedSquares(EstimatedBound):
    """A bound on squares of distances from the middle of a span, and what it removed from the sum of squares.

    That includes what the span removed from the sum of the values, as far as it changes the variance. `losses` has what
    a unit loses at the low end, in the middle and at the high end of each bin of the model, `step` is the model's step
    and `noise` the standard deviation of a cell's noise: all in steps of the bound.
    """

    draws: Floats = field(kw_only=True)
    losses: Floats = field(kw_only=True)
    step: float = field(kw_only=True)
    noise: float = field(kw_only=True)

    @cached_property
    def removed_draws(self) -> Floats:
        return self.draws

    @property
    def clips_nothing(self) -> bool:
        return not np.any(self.losses > 0)

    @property
    def total(self) -> float:
        return self.model.total() * self.step

    @cached_property
    def kept(self) -> float:
        return max(self.total - self.removed, 0.0)

    @property
    def bin_error(self) -> float:
        counts = np.maximum(np.median(self.model.draws, axis=0), 0)
        return WITHIN_BIN * float((counts * (self.losses[2] - self.losses[0])).sum())

    @property
    def removed_squares(self) -> float:
        squares = weighted_sums(np.maximum(self.model.draws, 0), mean_of_bins(self.losses) ** 2)
        return float(np.quantile(squares, SQUARES_LEVEL))

    def missing(self, share: Floats, confidence: float) -> tuple[Floats, Floats, Floats]:
        """Return what cells lack, so that the low end of an interval is that of what clipping left."""
        middle, less, more = super().missing(share, confidence)
        width = float(special.ndtri((1 + confidence) / 2)) * self.noise
        # Beside noise of this half-width, the low end lies that half-width below what is left.
        return middle, np.maximum(less, np.sqrt(middle**2 + 2 * np.abs(middle) * width)), more

    def levels(self, confidence: float) -> tuple[float, float]:
        """Return quantiles that leave all doubt above: clipping cannot have raised a variance."""
        return 0.0, confidence


def mean_of_bins(values: Floats) -> Floats:
    """Return the mean over each bin of what is known at its low end, for its mean unit and at its high end.

    It is that of the mean unit, as squares are, unless a limit lies within the bin.
    """
    return np.asarray(np.where(values[0] > 0, values[1], (values[0] + 4 * values[1] + values[2]) / 6))


@dataclass(frozen=True)
class VarianceCells:
    """The cells that a variance reads: the sum of squares, the sum of distances, and the formula and cell of rows."""

    squares: Formula
    square: int
    total: int
    rows: Formula

    @classmethod
    def of(cls, node: object) -> VarianceCells | None:
        """Return the cells of a formula, or None if it is not a variance of one noisy sum of squares."""
        match node:
            case FunctionCall("variance", (squares, NoisyCell(total), rows, _)):
                own = set(cells_of(squares)) - set(cells_of(rows))
                return cls(squares, own.pop(), total, rows) if len(own) == 1 else None
            case _:
                return None


@dataclass(frozen=True)
class SquaredSums:
    """The sums of squares, of distances from the middle of a span, and of rows, over all groups.

    `noise` is the standard deviation of one group's sum of squares around the anchor of the span.
    """

    squares: float
    distances: float
    rows: float
    noise: float
    groups: int


def pair_squares(
    plan: QueryPlan, released: Sequence[ReleasedMeasurement], bounds: Mapping[str, EstimatedBound]
) -> tuple[QueryPlan, dict[str, EstimatedBound]]:
    """Return a plan and bounds in which the squares of a variance allow for all that clipping removed from it."""
    found = {cells for node in walk(plan.outputs) if (cells := VarianceCells.of(node)) is not None}
    pairs = [cells for cells in found if _values_of(plan, cells, bounds) is not None]
    if not pairs:
        return plan, dict(bounds)
    columns = measured_columns(plan, released, bounds, CONFIDENCE)
    known = dict(bounds)
    for cells in pairs:
        known |= _with_squares(plan, cells, columns, bounds)
    return _with_unclipped_totals(plan, {cells.total for cells in pairs}), known


def _values_of(plan: QueryPlan, cells: VarianceCells, bounds: Mapping[str, EstimatedBound]) -> FoundSpan | None:
    """Return the span of the values of a variance, if one was found for them and one for their squares."""
    square, total = (plan.sources[index] for index in (cells.square, cells.total))
    if not isinstance(square, CellRef) or not isinstance(total, CellRef) or square.bound_tag not in bounds:
        return None
    tag = bounds[square.bound_tag or ""].squares_of
    return bounds[tag].span if tag and tag == total.bound_tag and tag in bounds else None


def _with_squares(
    plan: QueryPlan, cells: VarianceCells, columns: Sequence[NoisyColumn], bounds: Mapping[str, EstimatedBound]
) -> dict[str, EstimatedBound]:
    """Return the bound of the squares of a variance, with what it removed by the search for the values."""
    square, span = plan.sources[cells.square], _values_of(plan, cells, bounds)
    if not isinstance(square, CellRef) or span is None or square.bound_tag is None:
        return {}
    sums = _squared_sums(cells, columns, span.shift)
    step = float(square.quantity_per_step or 1)
    own = bounds[square.bound_tag]
    return {square.bound_tag: estimated_squares(own, span, sums, step, plan.selected is None)}


def _squared_sums(cells: VarianceCells, columns: Sequence[NoisyColumn], shift: float) -> SquaredSums:
    """Add up the noisy sums of all groups."""
    values = [column.values for column in columns]
    squares, distances, rows = (
        np.atleast_1d(np.asarray(evaluate(node, values, []), float))
        for node in (cells.squares, NoisyCell(cells.total), cells.rows)
    )
    weights = dict.fromkeys((cells.square, cells.total, *cells_of(cells.rows)), 0.0)
    for node, factor in ((cells.squares, 1.0), (NoisyCell(cells.total), 2 * shift), (cells.rows, shift**2)):
        form = as_affine(node)
        for index, weight in form.weights.items() if form is not None else ():
            weights[index] += factor * weight
    variance = sum(weight**2 * columns[index].noise.variance for index, weight in weights.items())
    return SquaredSums(
        float(squares.sum()), float(distances.sum()), float(rows.sum()), math.sqrt(variance), squares.size
    )


def estimated_squares(
    own: EstimatedBound, span: FoundSpan, sums: SquaredSums, step: float, every_row: bool
) -> EstimatedSquares:
    """Infer what was removed from a variance, of which a bound was found on squares; `step` is what its step is worth.

    The search for the values says how many units lie far from the anchor. Tails are likelier if they fit the sum of
    squares around it, if `every_row` is in that.
    """
    limit, shift = own.bound * step, abs(span.shift)
    reach = limit + 2 * shift * span.half + shift**2
    amount = sums.squares + 2 * span.shift * sums.distances + span.shift**2 * sums.rows
    noise = sums.noise * math.sqrt(sums.groups / 2)
    unit = max(reach * max(sums.rows, 1.0), span.farthest**2, abs(amount), noise) / STEPS
    clip, known, scale = (max(1, round(part / unit)) for part in (reach, amount, noise))
    sizes = (KnownSize(clip, known, scale, True),) if every_row else ()
    points, places = np.unique(
        np.maximum(np.round(span.distances(span.edges) ** 2 / unit), 1).astype(np.int64), return_inverse=True
    )
    counts = np.append(span.counts[0], np.bincount(places, span.counts[1:]))
    top = int(span.farthest**2 / unit)
    model = fit_contributions(points.tolist(), counts, span.scale, 1, top, top, sizes)
    ends = np.append(1.0, points), model.mean, model.upper
    away = np.maximum(np.sqrt(np.array(ends) * unit) - shift, 0.0)
    from_squares, from_sum = np.maximum(away**2 - limit, 0.0), np.maximum(away - span.half, 0.0)
    return _joint_squares(own, model, sums, (from_squares, from_sum), (step, unit, span.shift))


def _joint_squares(
    own: EstimatedBound,
    model: ContributionModel,
    sums: SquaredSums,
    lost: tuple[Floats, Floats],
    scales: tuple[float, float, float],
) -> EstimatedSquares:
    """Add up what squares and sum lost together, which is what the variance lost, times the rows.

    If a span was moved to stay in the range, all units beyond it lie on one side, and so does what its sum lacks.
    """
    from_squares, from_sum = lost
    step, unit, shift = scales
    rows, counts = max(sums.rows, 1.0), np.maximum(model.draws, 0)
    side = float(np.sign(shift)) * sums.distances / rows
    losses = np.maximum(from_squares - 2 * side * from_sum, 0.0) / step
    of_sum = weighted_sums(counts, mean_of_bins(from_sum)) ** 2 / rows
    draws = np.maximum(weighted_sums(counts, mean_of_bins(losses)) - of_sum / step, 0.0)
    known = {part.name: getattr(own, part.name) for part in fields(own)}
    return EstimatedSquares(
        **known | {"model": model, "draws": draws, "losses": losses, "step": unit / step, "noise": sums.noise / step}
    )


def _with_unclipped_totals(plan: QueryPlan, totals: set[int]) -> QueryPlan:
    """Let variances read copies of their sums that lack nothing, where an output reads these sums for nothing else."""
    copies = {index: len(plan.sources) + place for place, index in enumerate(sorted(totals))}
    sources = [plan.sources[index] for index in sorted(totals)]
    unclipped = tuple(replace(source, is_unclipped=True) for source in sources if isinstance(source, CellRef))

    def read_copy(node: object) -> object:
        cells = VarianceCells.of(node)
        if cells is None or cells.total not in copies or not isinstance(node, FunctionCall):
            return node
        squares, _, *rest = node.arguments
        return replace(node, arguments=(squares, NoisyCell(copies[cells.total]), *rest))

    def change(output: OutputColumn) -> OutputColumn:
        changed: OutputColumn = transform(output, read_copy)
        return output if copies.keys() & set(cells_of(changed.node)) else changed

    return replace(plan, sources=(*plan.sources, *unclipped), outputs=tuple(map(change, plan.outputs)))
