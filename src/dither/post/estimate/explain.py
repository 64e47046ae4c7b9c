"""Compute expected errors and describe plans from public facts, before any budget is spent."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod
from types import MappingProxyType

import numpy as np

from dither.errors import Unbounded
from dither.plan.context import Context
from dither.plan.measures.core import Measure
from dither.plan.traversal import fill_limits, unfilled_limits
from dither.post.display import html_lines
from dither.post.estimate.contribution import EstimatedBound
from dither.post.estimate.error_kinds import STEP_FUNCTIONS, is_bounded_by_noise
from dither.post.estimate.intervals import Banded, Measured, NoisyColumn, estimate
from dither.post.estimate.moments import distance_unit
from dither.post.estimate.prediction import counts_units, drops_rows, expected_rows
from dither.post.estimate.windows import typical_windows
from dither.post.formulas import (
    Average,
    ChosenValue,
    ClampedTo,
    FixedValue,
    Formula,
    FunctionCall,
    KeyValue,
    NoisyCell,
    WindowSum,
    as_affine,
    cells_of,
    strip_increasing,
)
from dither.post.noise import noise_of
from dither.post.query.query_plan import (
    LARGEST_BOUNDS,
    CellRef,
    CentreSearch,
    ContributionSearch,
    QuantileRef,
    QueryPlan,
    bound_name,
    precision_of,
)
from dither.post.query.request import mechanism_of, search_share
from dither.privacy.protocol import Measurement

DEFAULT_GROUP_SIZE = 1000.0
AT_BOUNDS, IF_SPREAD = "at the bounds assumed", "if values are spread evenly over their range"
IF_ALL_LEFT = "if all rows are left"
WHOLE_RANGE = "at most, as with the whole declared range"
UNKNOWN = "unknown until asked"


def rows_text(rows: float, counted: str = "row") -> str:
    """Return a number of rows, or of units that have one row each, in words."""
    return f"{rows:,.0f} {counted}{'' if round(rows) == 1 else 's'}"


@dataclass(frozen=True, repr=False)
class Expected:
    """The expected error of a column: its standard error and half the width of its interval, from noise alone.

    If `needs_rows`, the error depends on the size of a group, and the figures assume groups of `rows` rows. If not
    `known`, it depends on what is chosen or found only when the query is asked: the figures assume `given` (a bound, or
    how values are spread), and are nan if nothing can be said, for the `reason` given. Errors of dates have a `unit`.
    The rows are those of a subquery's units where units are `counted`, and at most as many if they are `filtered`.
    """

    name: str
    std_error: float
    half_width: float
    needs_rows: bool
    rows: float | None = None
    known: bool = True
    unit: str = ""
    given: str = ""
    reason: str = ""
    counted: str = "row"
    filtered: bool = False

    @property
    def width(self) -> str:
        """Half the width of the interval in words."""
        if self.reason:
            return f"{UNKNOWN}: {self.reason}"
        where = f" in a group of {rows_text(self.rows, self.counted)}" if self.rows is not None else ""
        width = f"{self.half_width:,.3g}" if math.isfinite(self.half_width) else "anything: too few data for this loss"
        width += f" {self.unit}{where}" if self.unit else where
        if not self.known and IF_SPREAD in self.given:
            return f"{UNKNOWN}: it depends on how the values are spread"  # which nothing public predicts
        if not self.known:
            return f"{UNKNOWN} ({width} {self.given or AT_BOUNDS})"
        return f"{width} {self.given}" if self.given else width

    def if_all_left(self) -> Expected:
        """Return the error as one that is not known, if conditions or joins may leave fewer rows than it assumes."""
        given = ", ".join(filter(None, (self.given, IF_ALL_LEFT)))
        return replace(self, known=False, given=given) if self.filtered else self

    def __repr__(self) -> str:
        return (
            f"{self.name}: {self.width}" if self.reason or not self.known else f"{self.name}: expected ± {self.width}"
        )

    def _repr_html_(self) -> str:
        return html_lines(repr(self))


def unknown_error(name: str, reason: str) -> Expected:
    """Return an error of which nothing can be said from public facts, with the reason in a plain sentence."""
    return Expected(name, math.nan, math.nan, False, known=False, reason=reason)


def expected_errors(
    context: Context,
    plan: QueryPlan,
    parts: Sequence[Measurement],
    confidence: float,
    rows: float | None,
    assumed: Collection[int] = (),
    bounds: Mapping[str, EstimatedBound] = MappingProxyType({}),
    whole: Collection[int] = (),
) -> tuple[Expected, ...]:
    """Compute the expected error of each noisy column of the answer.

    Bounds of `assumed` parts are not known yet; for those in `bounds`, by tag, errors include what clipping removes.
    Of `whole` parts it is known that no bound needs more noise than the one assumed.
    """
    size = default_group_size(context, plan, parts) if rows is None else float(rows)
    columns: Sequence[NoisyColumn] = [
        _with_clipping(
            _typical_column(context, plan, parts, source, size), context, plan, parts, source, bounds, confidence
        )
        for source in plan.sources
    ]
    relation, unit_counted = plan.question.relation, counts_units(context, plan.question.relation, plan.unit)
    counted, filtered = plan.unit if unit_counted else "row", rows is None and drops_rows(relation)
    measures = plan.sources
    axes = parts[0].measure.axes(context)[: len(plan.keys)]
    windows = typical_windows(plan, columns, [len(axis.values) for axis in axes], confidence)
    plan, columns = windows.plan, windows.columns
    sources = [*measures, *(measures[i] for _, i in windows.added)]
    read = [source.measure_index for source in sources]
    errors = []
    for output in plan.outputs:
        if isinstance(output.node, KeyValue) or not cells_of(output.node):
            continue
        keys = [np.zeros(1)] * len(plan.keys)
        result = estimate(output.node, columns, keys, confidence)
        depends = _depends_on_rows(output.node, plan)
        with np.errstate(invalid="ignore"):
            # Both ends may be infinite: then nothing is known about the column.
            width = float(np.max(np.nan_to_num(result.high - result.low, nan=np.inf, posinf=np.inf))) / 2
        known = all(read[index] not in assumed for index in cells_of(output.node))
        at_most = any(read[index] in whole for index in cells_of(output.node))
        std_error, unit, precision = float(np.max(result.std_error)), "", precision_of(plan, output.node)
        if precision is not None:
            unit, length = distance_unit(precision)
            std_error, width = std_error / length, width / length
        evenly = not is_bounded_by_noise(output.node, sources)
        reasons = ((AT_BOUNDS, not known), (WHOLE_RANGE, known and at_most), (IF_SPREAD, evenly))
        given = ", ".join(text for text, wanted in reasons if wanted)
        rows_assumed = size if depends else None
        errors.append(
            Expected(
                output.name,
                std_error,
                width,
                depends,
                rows_assumed,
                known and not at_most and not evenly,
                unit,
                given,
                counted=counted,
                filtered=filtered and depends,
            )
        )
    return tuple(errors)


def default_group_size(context: Context, plan: QueryPlan, parts: Sequence[Measurement]) -> float:
    """Return the rows that are expected in all divided by the number of groups, or 1000 if no size is known."""
    rows = expected_rows(context, plan.question.relation, plan.unit)
    groups = prod(len(axis.values) for axis in parts[0].measure.axes(context)[: len(plan.keys)])
    return DEFAULT_GROUP_SIZE if rows is None else max(1.0, rows / groups)


def _typical_column(
    context: Context, plan: QueryPlan, parts: Sequence[Measurement], source: CellRef | QuantileRef, rows: float
) -> NoisyColumn:
    """Build a noisy column for one group of `rows` rows, with values spread evenly over their declared range."""
    part = parts[source.measure_index]
    mechanism = mechanism_of(part, part.measure.sensitivity(context, plan.unit))
    steps = part.measure.steps(context)
    if isinstance(source, QuantileRef):
        low, high = source.bins.low, source.bins.high
        noise = noise_of(mechanism, steps[0]).std * np.sqrt(len(low)) / max(rows, 1.0)
        width = (high[-1] - low[0]) * min(1.0, noise)
        middle = np.array([(low[0] + high[-1]) / 2])
        return Banded(middle, middle - width / 2, middle + width / 2)
    step = steps[source.value_index] / source.factor
    return Measured(np.array([rows * float(source.typical_per_row)]), noise_of(mechanism, step))


def _with_clipping(
    column: NoisyColumn,
    context: Context,
    plan: QueryPlan,
    parts: Sequence[Measurement],
    source: CellRef | QuantileRef,
    bounds: Mapping[str, EstimatedBound],
    confidence: float,
) -> NoisyColumn:
    """Add to a typical column what its bound is expected to remove from one of several equal groups."""
    bound = bounds.get(source.bound_tag or "") if isinstance(source, CellRef) else None
    if bound is None or not isinstance(column, Measured) or not isinstance(source, CellRef):
        return column
    measure = parts[source.measure_index].measure
    groups = prod(len(axis.values) for axis in measure.axes(context)[: len(plan.keys)])
    per_step = float(source.quantity_per_step or measure.steps(context)[source.value_index] / source.factor)
    shares = np.full(min(groups, 2), 1 / groups)
    _, less, more = (per_step * part[:1] for part in bound.missing(shares, confidence))
    return replace(column, less=less, more=more)


def _depends_on_rows(node: Formula, plan: QueryPlan) -> bool:
    """Return True if a column's error depends on the size of a group; that of an affine formula is fixed."""
    outer, core = strip_increasing(node)
    quantiles = {index for index, source in enumerate(plan.sources) if isinstance(source, QuantileRef)}
    has_quantile = not quantiles.isdisjoint(cells_of(node))
    return has_quantile or as_affine(core) is None or any(function.name not in STEP_FUNCTIONS for function in outer)


@dataclass(frozen=True, repr=False)
class Explanation:
    """A description of a query's plan, in lines of text."""

    lines: tuple[str, ...]

    def __repr__(self) -> str:
        return "\n".join(self.lines)

    def _repr_html_(self) -> str:
        return html_lines(repr(self))


def explain_plan(context: Context, plan: QueryPlan) -> Explanation:
    """Describe the measures of a plan, with size, sensitivity and share of the loss, and the formulas over them."""
    lines = [f"unit of privacy: {plan.unit}"]
    for search in plan.searches:
        lines.append(
            f"first, in the same charge, {_search_text(search)} chooses {bound_name(search.tag)} among "
            f"{len(search.candidates)} candidates ({share_text(search.share)})"
        )
    for position, planned in enumerate(plan.measures):
        measure, share = fill_limits(planned.measure, LARGEST_BOUNDS), planned.share * (1 - search_share(plan))
        size = measure.size(context)
        cells = f"{size:,} cell{'' if size == 1 else 's'}"
        lines.append(f"measure {position}: {type(measure).__name__}, {cells}, {share_text(share)}")
        lines.append(f"  sensitivity in steps: {_sensitivity_text(context, plan, planned.measure)}")
    lines += [f"column {output.name} = {formula_text(output.node)}" for output in plan.outputs]
    if plan.having is not None:
        lines.append(f"HAVING, applied to noisy values: {formula_text(plan.having)}")
    lines.append(f"where {'; '.join(_symbol_meanings(plan))}")
    return Explanation(tuple(lines))


def _search_text(search: CentreSearch | ContributionSearch) -> str:
    """Say what a search reads."""
    centre = isinstance(search, CentreSearch)
    return "a private median of each unit's mean" if centre else "a noisy histogram of contributions"


def share_text(share: Fraction) -> str:
    """Write a share of the loss in words.

    >>> share_text(Fraction(1)), share_text(Fraction(4, 5))
    ('the whole loss', '4/5 of the loss')
    """
    named = {Fraction(1): "the whole loss", Fraction(1, 2): "half of the loss"}
    return named.get(share, f"{share} of the loss")


def _symbol_meanings(plan: QueryPlan) -> Iterator[str]:
    """Say what the symbols of `formula_text` stand for."""
    for measure in range(len(plan.measures)):
        cells = [f"c{index}" for index, source in enumerate(plan.sources) if source.measure_index == measure]
        if len(cells) == 1:
            yield f"{cells[0]} is the noisy value of measure {measure}"
        elif cells:
            yield f"{', '.join(cells)} are the noisy values of measure {measure}"
    yield from (f"k{index} is the key {key.name}" for index, key in enumerate(plan.keys))


def _sensitivity_text(context: Context, plan: QueryPlan, measure: Measure) -> str:
    """Write the sensitivity of a measure, or say what it follows from if a bound is still to be chosen."""
    largest = fill_limits(measure, LARGEST_BOUNDS)
    if chosen := sorted({bound_name(limit.tag) for limit in unfilled_limits(largest)}):
        return f"{' and '.join(chosen)}, which is chosen privately when the query is asked"
    try:
        sensitivity = largest.sensitivity(context, plan.unit)
    except Unbounded as problem:
        return str(problem)
    when = "at the largest bound: " if unfilled_limits(measure) else ""
    return f"{when}L0 {sensitivity.l0}, Linf {sensitivity.linf}, L1 {sensitivity.l1}, L2^2 {sensitivity.l2_squared}"


def window_text(inner: Formula, partition: Sequence[Formula], order: Sequence[tuple[Formula, bool]]) -> str:
    """Write a sum over a window as text."""
    by = f" of equal {', '.join(map(formula_text, partition))}" if partition else ""
    upto = f" up to this one by {', '.join(formula_text(term) for term, _ in order)}" if order else ""
    return f"the sum of {formula_text(inner)} over the rows{by}{upto}"


def formula_text(node: Formula) -> str:
    """Write a formula as text; c0, c1... are noisy columns, k0, k1... keys."""
    match node:
        case NoisyCell(index):
            return f"c{index}"
        case KeyValue(index):
            return f"k{index}"
        case Average(total, size, centre, low, high):
            return f"{formula_text(centre)} + {formula_text(total)} / {formula_text(size)} within [{low:g}, {high:g}]"
        case WindowSum(inner, partition, order):
            return window_text(inner, partition, order)
        case ClampedTo(inner, low, high):
            return f"{formula_text(inner)} within [{low:g}, {high:g}]"
        case FunctionCall(name, arguments):
            return f"{name}({', '.join(map(formula_text, arguments))})"
        case FixedValue(float() as value):
            return f"{value:g}"
        case FixedValue(value):
            return str(value)
        case ChosenValue(value):
            return value.tag
