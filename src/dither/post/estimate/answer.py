"""Answers: estimates with standard errors and intervals, their cost, and the releases that they were computed from."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa

from dither.errors import DitherError, Unsupported
from dither.loss import Loss
from dither.loss import to_json as loss_to_json
from dither.plan.context import Context
from dither.post.display import answer_text, html_lines, loss_text
from dither.post.estimate.answer_rows import (
    display_keys,
    key_domains,
    keys_for_formulas,
    select_rows,
    take_rows,
)
from dither.post.estimate.clipping import (
    Clipping,
    clipping_notes,
    clipping_of,
    is_clipped,
    two_errors_note,
    without_clipping,
)
from dither.post.estimate.combine import QuestionDraws
from dither.post.estimate.contribution import EstimatedBound
from dither.post.estimate.error_kinds import error_kind
from dither.post.estimate.intervals import Estimate, NoisyColumn, estimate
from dither.post.estimate.moments import show_estimate
from dither.post.estimate.typecheck import ValueType, domain_type, value_type
from dither.post.estimate.wide import wide_notes
from dither.post.estimate.windows import estimate_with_windows, resolve_windows
from dither.post.formulas import Formula, KeyValue, NoisyCell, Values, as_affine, cells_of, is_missing
from dither.post.query.query_plan import CellRef, QueryPlan, answer_axes, at_largest_bounds, precision_of
from dither.privacy.protocol import Release, UnitLoss
from dither.schema import Precision

MAX_ROWS_SHOWN = 60


@dataclass(frozen=True, repr=False)
class AnswerColumn:
    """A column of an answer: a GROUP BY key, which is exact, or a noisy column.

    `value`, `interval`, `std_error`, `noise` and `clipped` are single numbers if the query has no GROUP BY, and arrays
    with one element per row of the answer if it has (`grouped`). `estimate` and `clipping` always have arrays. With a
    `precision`, the estimate is in microseconds and shown as dates, with errors in days, or seconds for timestamps.
    Counts and sums are `additive`: a chart shows them as bars that start at 0.
    """

    name: str
    estimate: Estimate
    key: bool
    grouped: bool = True
    clipping: Clipping | None = None
    clipped_data: bool = False
    precision: Precision | None = None
    additive: bool = False

    @cached_property
    def shown(self) -> Estimate:
        """The estimate as it is shown: dates, if it is in microseconds."""
        return self.estimate if self.precision is None else show_estimate(self.estimate, self.precision)

    @property
    def title(self) -> str:
        """The name, and whether the column is about clipped data."""
        return f"{self.name} (of clipped data)" if self.clipped_data else self.name

    @property
    def value(self) -> Any:
        """The estimate."""
        return self._scalar_or_array(self.shown.value)

    @property
    def interval(self) -> tuple[Any, Any]:
        """The lower and the upper end of the confidence interval."""
        return self._scalar_or_array(self.shown.low), self._scalar_or_array(self.shown.high)

    @property
    def std_error(self) -> Any:
        """The standard error: of the noise, and of what clipping removed where that is estimated."""
        return self._scalar_or_array(self.shown.std_error)

    @property
    def noise(self) -> Any:
        """The standard error of the noise alone."""
        return self._scalar_or_array(self.shown.std_error if self.clipping is None else self.clipping.noise)

    @property
    def clipped(self) -> tuple[Any, Any]:
        """The amount that clipping removed: an estimate, which `value` includes, and the most; zeros if nothing."""
        if self.clipping is None:
            nothing = self._scalar_or_array(np.zeros(len(self.estimate.value)))
            return nothing, nothing
        return self._scalar_or_array(self.clipping.estimate), self._scalar_or_array(self.clipping.most)

    def _scalar_or_array(self, values: Values) -> Any:
        """The only element of an answer without GROUP BY; HAVING may have left none, then the empty array."""
        if self.grouped or len(values) != 1:
            return values
        return float(values[0]) if isinstance(values[0], np.number) else values[0]

    def cell(self, row: int) -> str:
        """The estimate of a row with its interval, as text: every place that shows answers writes it like this."""
        value, low, high = self.texts(row)
        return value if self.key or self._is_exact(row) else f"{value} [{low}, {high}]"

    def _is_exact(self, row: int) -> bool:
        """Return True for a value without noise, such as that of GROUPING()."""
        low, high = (np.asarray(part)[row] for part in (self.estimate.low, self.estimate.high))
        return bool(low == high and np.asarray(self.estimate.std_error)[row] == 0)

    def texts(self, row: int) -> tuple[str, str, str]:
        """The estimate of a row and the ends of its interval, with the digits that the error leaves meaningful."""
        parts = [np.asarray(part)[row] for part in (self.shown.value, self.shown.low, self.shown.high)]
        digits = _meaningful_digits(self.shown, row)
        value, low, high = (_format_number(part, digits) for part in parts)
        return value, low, high

    def __repr__(self) -> str:
        size = len(self.estimate.value)
        shown = [self.cell(row) for row in range(min(size, MAX_ROWS_SHOWN))]
        more = [rows_left_out(size)] if size > MAX_ROWS_SHOWN else []
        return f"{self.title}: " + "\n  ".join([*shown, *more])

    def _repr_html_(self) -> str:
        return html_lines(repr(self))


@dataclass(frozen=True, repr=False)
class Answer:
    """The answer to one query.

    `answer["n"]` is a column with its `value`, `interval`, `noise` and `clipped`; `table` has all columns, each noisy
    one with `_std_error`, `_low` and `_high` beside it, and `_clipped` where a bound may have removed something. `loss`
    is what the query's own unit was charged, `notes` are remarks on bounds and errors that the intervals do not cover.
    """

    query: str
    columns: tuple[AnswerColumn, ...]
    keys: pa.Table
    confidence: float
    loss: tuple[Loss, ...]
    releases: tuple[Release, ...]
    bounds: dict[str, EstimatedBound]
    notes: tuple[str, ...]
    draws: QuestionDraws | None = field(default=None, compare=False)

    @property
    def table(self) -> pa.Table:
        """The answer as an Arrow table."""
        arrays: dict[str, Any] = {}
        for position, column in enumerate(self.columns):
            name = _unused_name(column.name, arrays)
            if column.key:
                arrays[name] = self.keys.column(position)
                continue
            arrays[name] = _to_arrow(column.shown.value)
            arrays[_unused_name(f"{name}_std_error", arrays)] = pa.array(column.shown.std_error)
            arrays[_unused_name(f"{name}_low", arrays)] = pa.array(column.shown.low)
            arrays[_unused_name(f"{name}_high", arrays)] = pa.array(column.shown.high)
            if column.clipping is not None:
                arrays[_unused_name(f"{name}_clipped", arrays)] = pa.array(column.clipping.estimate)
        return pa.table(arrays)

    def __len__(self) -> int:
        return int(self.keys.num_rows)

    def __getitem__(self, name: str) -> AnswerColumn:
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(f"no column {name!r}; there are: {', '.join(column.name for column in self.columns)}")

    def value(self) -> float:
        """Return the number of an answer with one row and one noisy column."""
        noisy = [column for column in self.columns if not column.key]
        if len(self) != 1 or len(noisy) != 1:
            raise Unsupported(
                f"value() needs one row and one noisy column, and this answer has {len(self)} and {len(noisy)}; "
                'use answer["name"].value, table or to_pandas()'
            )
        if noisy[0].precision is not None:
            raise Unsupported(f'value() returns a number, and this is a date; use answer["{noisy[0].name}"].value')
        return float(noisy[0].estimate.value[0])

    def to_pandas(self) -> Any:
        """Return the table as a pandas DataFrame (needs pandas)."""
        import_optional("pandas")
        return self.table.to_pandas()

    def to_polars(self) -> Any:
        """Return the table as a polars DataFrame (needs polars)."""
        return import_optional("polars").from_arrow(self.table)

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return the table as a list of rows."""
        rows: list[dict[str, Any]] = self.table.to_pylist()
        return rows

    @property
    def losses(self) -> tuple[UnitLoss, ...]:
        """The losses charged to all budgets; `loss` has those of the query's own unit."""
        return tuple(part for release in self.releases for part in release.losses)

    @property
    def measurements(self) -> list[dict[str, Any]]:
        """The raw measurements with mechanism, sensitivity and loss of each; those that chose bounds come first."""
        return [
            _measurement_dict(part)
            for release in self.releases
            for part in (*(release.search_results or ()), *release.parts)
        ]

    def plot(self, column: str | None = None) -> Any:
        """Plot one column with its intervals (needs matplotlib); by default the first that is not a key."""
        noisy = [c for c in self.columns if not c.key]
        chosen = self[column] if column is not None else noisy[0]
        labels = [", ".join(self._key_texts(row)) or chosen.name for row in range(len(self))]
        _, axis = import_optional("matplotlib.pyplot").subplots()
        values = np.asarray(chosen.estimate.value, float)
        errors = np.maximum([values - chosen.estimate.low, chosen.estimate.high - values], 0.0)
        axis.errorbar(values, range(len(values)), xerr=errors, fmt="o", capsize=3)
        axis.set_yticks(range(len(values)), labels)
        axis.set_xlabel(f"{chosen.name} ({self.confidence:.0%} intervals)")
        axis.invert_yaxis()
        return axis

    def _key_texts(self, row: int) -> list[str]:
        """The keys of a row as text."""
        places = [place for place, column in enumerate(self.columns) if column.key]
        return [answer_text(self.keys.column(place)[row].as_py()) for place in places]

    def _repr_html_(self) -> str:
        """The answer as an HTML table for notebooks, with a bar for every interval."""
        head = "".join(f"<th>{html.escape(column.title)}</th>" for column in self.columns)
        rows = "".join(f"<tr>{self._html_cells(row)}</tr>" for row in range(min(len(self), MAX_ROWS_SHOWN)))
        more = f"<p>{rows_left_out(len(self))}</p>" if len(self) > MAX_ROWS_SHOWN else ""
        foot = "".join(f"<p>{html.escape(line)}</p>" for line in self._remarks())
        return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{more}{foot}"

    def _remarks(self) -> list[str]:
        """The cost and the notes."""
        cost = f"cost: {loss_text(self.loss)} ({self.confidence:.0%} intervals)"
        return [cost, *(f"note: {note}" for note in self.notes)]

    def _html_cells(self, row: int) -> str:
        return "".join(self._html_cell(column, position, row) for position, column in enumerate(self.columns))

    def _html_cell(self, column: AnswerColumn, position: int, row: int) -> str:
        if column.key:
            return f"<td>{html.escape(answer_text(self.keys.column(position)[row].as_py()))}</td>"
        value, low, high = map(html.escape, column.texts(row))
        picture = _interval_svg(column.estimate, row, 0.0 if column.precision is None else math.inf)
        return f"<td title='{low} to {high}'>{value} {picture}<br><small>[{low}, {high}]</small></td>"

    def __str__(self) -> str:
        lines = [" | ".join(column.title for column in self.columns)]
        for row in range(min(len(self), MAX_ROWS_SHOWN)):
            lines.append(" | ".join(self.cells(row)))
        if len(self) > MAX_ROWS_SHOWN:
            lines.append(rows_left_out(len(self)))
        return "\n".join(lines)

    def __repr__(self) -> str:
        return "\n".join([str(self), *self._remarks()])

    def cells(self, row: int) -> list[str]:
        """Return a row as text: keys, and estimates with their intervals."""
        return [
            answer_text(self.keys.column(place)[row].as_py()) if column.key else column.cell(row)
            for place, column in enumerate(self.columns)
        ]


def rows_left_out(size: int) -> str:
    """Say how many of the rows are not shown."""
    more = size - MAX_ROWS_SHOWN
    return f"... and {more} more row{'s' if more > 1 else ''}"


def _unused_name(name: str, taken: dict[str, Any]) -> str:
    """The name, or the first of name_2, name_3... that is not taken."""
    wanted, number = name, 2
    while name in taken:
        name, number = f"{wanted}_{number}", number + 1
    return name


def _to_arrow(values: Values) -> pa.Array:
    values = np.asarray(values)
    return pa.array(values.tolist()) if values.dtype.kind not in "fiub" else pa.array(values)


def _format_number(value: Any, digits: int | None) -> str:
    if isinstance(value, bool | np.bool_) or not isinstance(value, float | int | np.number):
        return answer_text(value)
    text = f"{float(value):,.6g}" if digits is None else f"{float(value):,.{digits}f}"
    return text.removeprefix("-") if not text.strip("-0.,") else text


def _meaningful_digits(result: Estimate, row: int) -> int | None:
    """Return the decimals that an error leaves meaningful: none for whole numbers; None if the error is not known."""
    parts = [np.asarray(part) for part in (result.value, result.low, result.high)]
    if not all(part.dtype.kind in "fiu" for part in parts):
        return None
    if all(bool(np.all(part == np.floor(part))) for part in parts):
        return 0
    half = (float(result.high[row]) - float(result.low[row])) / 2
    return min(6, max(0, 1 - math.floor(math.log10(half)))) if 0 < half < math.inf else None


def _interval_svg(result: Estimate, row: int, start: float) -> str:
    """Draw one interval on the scale of the whole column, from `start` at the latest; empty if an end is infinite."""
    finite = [part[np.isfinite(part)] for part in (result.low, result.high)]
    ends = (np.asarray(result.value, float), result.low, result.high)
    if not len(finite[0]) or not len(finite[1]) or not np.isfinite([part[row] for part in ends]).all():
        return ""
    first, last = min(float(finite[0].min()), start), float(finite[1].max())
    width = (last - first) or 1.0
    left, right = (100 * (float(end) - first) / width for end in (result.low[row], result.high[row]))
    middle = 100 * (float(np.asarray(result.value, float)[row]) - first) / width
    return (
        "<svg width='104' height='10'>"
        f"<line x1='{2 + left:.1f}' x2='{2 + right:.1f}' y1='5' y2='5' stroke='currentColor'/>"
        f"<circle cx='{2 + middle:.1f}' cy='5' r='2.5' fill='currentColor'/></svg>"
    )


def _measurement_dict(part: Any) -> dict[str, Any]:
    return {
        "values": list(part.values),
        "steps": [str(step) for step in part.steps],
        "shape": list(part.shape),
        **part.mechanism.describe(),
        "sensitivity": {name: str(value) for name, value in vars(part.sensitivity).items()},
        "loss": loss_to_json(part.loss),
        "notes": list(part.notes),
    }


def build_answer(
    plan: QueryPlan,
    context: Context,
    columns: Sequence[NoisyColumn],
    confidence: float,
    releases: Sequence[Release],
    bounds: dict[str, EstimatedBound],
) -> Answer:
    """Compute the columns that a query selects, then apply its HAVING, ORDER BY and LIMIT to the noisy values."""
    groups = list(product(*(values for _, values in answer_axes(context, plan))))
    domains = key_domains(plan, context)
    key_values = [
        keys_for_formulas([group[position] for group in groups], domain) for position, domain in enumerate(domains)
    ]
    key_types = [domain_type(domain) for domain in domains]
    windows = resolve_windows(plan, columns, key_values, len(groups), confidence)
    plan, columns = windows.plan, windows.columns
    estimates = [
        _restore_booleans(
            estimate_with_windows(output.node, windows, key_values, confidence), value_type(output.node, key_types)
        )
        for output in plan.outputs
    ]
    unclipped = without_clipping(columns)
    noise_alone = [
        estimate(output.node, unclipped, key_values, confidence) if is_clipped(output.node, columns) else found
        for output, found in zip(plan.outputs, estimates, strict=True)
    ]
    clippings = [
        clipping_of(output.node, columns, key_values, found, alone) if is_clipped(output.node, columns) else None
        for output, found, alone in zip(plan.outputs, estimates, noise_alone, strict=True)
    ]
    size = len(groups)
    rows = select_rows(plan, columns, key_values, groups)
    displayed = [display_keys([group[position] for group in groups], domain) for position, domain in enumerate(domains)]
    answer_columns, keys, undefined = [], {}, list[str]()
    for position, (output, result) in enumerate(zip(plan.outputs, estimates, strict=True)):
        is_key = isinstance(output.node, KeyValue)
        clipping = clippings[position]
        answer_columns.append(
            AnswerColumn(
                output.name, take_rows(result, rows, size), is_key, bool(plan.keys),
                None if clipping is None else clipping.take(rows, size),
                bool(plan.clipped_to and cells_of(output.node)), precision_of(plan, output.node),
                _is_additive(output.node, plan),
            )
        )  # fmt: skip
        if cells_of(output.node):
            undefined += undefined_notes(answer_columns[-1])
        values = displayed[output.node.index] if isinstance(output.node, KeyValue) else [None] * size
        keys[str(position)] = pa.array([values[row] for row in rows])
    losses = tuple(unit.loss for release in releases for unit in release.losses if unit.unit == plan.unit)

    one_row = _has_one_row(plan, context)
    wide = [
        note
        for output, column, alone in zip(plan.outputs, answer_columns, noise_alone, strict=True)
        if cells_of(output.node) and column.precision is None
        for note in wide_notes(
            column.name,
            column.estimate,
            take_rows(alone, rows, size),
            losses,
            plan.unit,
            one_row=one_row,
            kind=error_kind(output.node, windows.sources),
        )
    ]
    return Answer(
        plan.question.text, tuple(answer_columns), pa.table(keys), confidence, losses, tuple(releases), bounds,
        (*plan.notes, *clipping_notes(plan, bounds), *_two_errors_notes(answer_columns, confidence), *undefined, *wide),
    )  # fmt: skip


def _has_one_row(plan: QueryPlan, context: Context) -> bool:
    """Return True if a unit has at most one of the rows that a query reads."""
    try:
        return at_largest_bounds(plan.question.relation).stability(context, plan.unit).max_rows == 1
    except DitherError:
        return False


def _is_additive(node: Formula, plan: QueryPlan) -> bool:
    """Return True for counts, sums, and what is added up from them."""
    form = as_affine(node)
    cells = form.weights if form is not None else {}
    known = len(plan.sources)  # cells beyond are totals over groups
    return bool(cells) and all(index >= known or isinstance(plan.sources[index], CellRef) for index in cells)


def _two_errors_notes(columns: Iterable[AnswerColumn], confidence: float) -> list[str]:
    """Tell noise and clipping apart for each column that has both."""
    return [
        two_errors_note(column.name, column.clipping, confidence, (column.estimate.high - column.estimate.low) / 2)
        for column in columns
        if column.clipping is not None and len(column.estimate.value)
    ]


UNDEFINED = "by the noisy values, as a quotient of 0 or a variance of one row is"


def undefined_notes(column: AnswerColumn) -> tuple[str, ...]:
    """Return a note if a noisy column has no value in some rows of the answer."""
    missing = int(np.sum(is_missing(np.asarray(column.estimate.value))))
    if not missing:
        return ()
    where = "" if len(column.estimate.value) == 1 else f" in {missing} of {len(column.estimate.value)} rows"
    return (f"{column.name} is left undefined{where} {UNDEFINED}; spend more, or ask about larger groups",)


def without_negatives(answer: Answer) -> Answer:
    """Raise what is below 0 to 0, ends of intervals too, in the columns that are a count or a sum without a sign."""
    if answer.draws is None:
        return answer
    plan = answer.draws.plan

    def clip(column: AnswerColumn, node: Formula) -> AnswerColumn:
        source = plan.sources[node.index] if isinstance(node, NoisyCell) else None
        if not isinstance(source, CellRef) or source.signed:
            return column
        found = column.estimate
        value, low, high = (np.maximum(part, 0.0) for part in (found.value, found.low, found.high))
        return replace(column, estimate=replace(found, value=value, low=low, high=high))

    pairs = zip(answer.columns, plan.outputs, strict=True)
    return replace(answer, columns=tuple(clip(column, output.node) for column, output in pairs))


def _restore_booleans(result: Estimate, wanted: ValueType) -> Estimate:
    """Convert the 1.0, 0.0 and NaN of a boolean column back to True, False and None."""
    if wanted != "boolean":
        return result
    values = [None if value != value else bool(value) for value in np.atleast_1d(result.value)]
    return replace(result, value=np.array(values, dtype=object).reshape(np.shape(result.value)))


def import_optional(package: str) -> Any:
    """Import an optional package, or say how to install it."""
    try:
        return import_module(package)
    except ModuleNotFoundError:
        package = package.partition(".")[0]
        raise Unsupported(
            f"this needs {package}: pip install {package}, or use table or to_dicts(), which do not need it"
        ) from None
