"""Answers: an Arrow table with estimates, standard errors and intervals, and everything that was done to get them."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction
from importlib import import_module
from itertools import product
from math import sqrt
from typing import Any, assert_never

import numpy as np
import pyarrow as pa

from dither.errors import Unsupported
from dither.loss import ZCDP, Approximate, Loss, Pure, Renyi
from dither.loss import to_json as loss_to_json
from dither.plan.context import Context
from dither.plan.sql.scope import Scope
from dither.post.estimate.combine import QuestionDraws
from dither.post.estimate.contribution import EstimatedBound
from dither.post.estimate.intervals import Estimate, NoisyColumn, estimate
from dither.post.estimate.typecheck import ValueType, domain_type, value_type
from dither.post.formulas import KeyValue, Values, cells_of, evaluate, missing
from dither.post.query.planner import QueryPlan, axes
from dither.post.query.question import Ordering
from dither.privacy.protocol import Release, UnitLoss
from dither.schema import Domain, Moment, Scalar

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SHOWN = 60


@dataclass(frozen=True)
class AnswerColumn:
    """A column of an answer; keys have no error."""

    name: str
    estimate: Estimate
    key: bool


@dataclass(frozen=True)
class Answer:
    """The answer to one question; `table` holds each column with `_std_error`, `_low` and `_high` beside it."""

    query: str
    columns: tuple[AnswerColumn, ...]
    keys: pa.Table
    confidence: float
    loss: tuple[Loss, ...]
    releases: tuple[Release, ...]
    bounds: dict[str, EstimatedBound]
    notes: tuple[str, ...]
    draws: QuestionDraws | None = field(default=None, repr=False, compare=False)

    @property
    def table(self) -> pa.Table:
        """The answer as an Arrow table."""
        made: dict[str, Any] = {}
        for place, column in enumerate(self.columns):
            name = _free(column.name, made)
            if column.key:
                made[name] = self.keys.column(place)
                continue
            made[name] = _arrow(column.estimate.value)
            made[_free(f"{name}_std_error", made)] = pa.array(column.estimate.std_error)
            made[_free(f"{name}_low", made)] = pa.array(column.estimate.low)
            made[_free(f"{name}_high", made)] = pa.array(column.estimate.high)
        return pa.table(made)

    def __len__(self) -> int:
        return int(self.keys.num_rows)

    def __getitem__(self, name: str) -> AnswerColumn:
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(f"no column {name!r}; there are: {', '.join(column.name for column in self.columns)}")

    def value(self) -> float:
        """The single number of an answer with one row and one computed column."""
        computed = [column for column in self.columns if not column.key]
        if len(self) != 1 or len(computed) != 1:
            raise Unsupported(f"this answer has {len(self)} rows and {len(computed)} columns; use table or to_pandas()")
        return float(computed[0].estimate.value[0])

    def to_pandas(self) -> Any:
        """The table as a pandas frame (needs pandas)."""
        needed("pandas")
        return self.table.to_pandas()

    def to_polars(self) -> Any:
        """The table as a polars frame (needs polars)."""
        return needed("polars").from_arrow(self.table)

    def to_dicts(self) -> list[dict[str, Any]]:
        """The table as a list of rows."""
        rows: list[dict[str, Any]] = self.table.to_pylist()
        return rows

    @property
    def losses(self) -> tuple[UnitLoss, ...]:
        """What every budget was charged; `loss` is that of the question's own unit."""
        return tuple(part for release in self.releases for part in release.losses)

    @property
    def measurements(self) -> list[dict[str, Any]]:
        """The raw measurements, those that found bounds first: mechanism, scale, sensitivity, clamps, loss of each."""
        return [
            _described(part) for release in self.releases for part in (*(release.search_results or ()), *release.parts)
        ]

    def plot(self, column: str | None = None) -> Any:
        """A chart of one column with its intervals (needs matplotlib)."""
        computed = [c for c in self.columns if not c.key]
        chosen = self[column] if column is not None else computed[0]
        labels = [", ".join(map(str, row.values())) or chosen.name for row in self.keys.to_pylist()] or [chosen.name]
        _, axis = import_module("matplotlib.pyplot").subplots()
        values = np.asarray(chosen.estimate.value, float)
        errors = np.maximum([values - chosen.estimate.low, chosen.estimate.high - values], 0.0)
        axis.errorbar(values, range(len(values)), xerr=errors, fmt="o", capsize=3)
        axis.set_yticks(range(len(values)), labels)
        axis.set_xlabel(f"{chosen.name} ({self.confidence:.0%} intervals)")
        axis.invert_yaxis()
        return axis

    def _repr_html_(self) -> str:
        """A table for notebooks, with a bar for every interval."""
        head = "".join(f"<th>{html.escape(column.name)}</th>" for column in self.columns)
        count = min(len(self), SHOWN)
        rows = "".join(f"<tr>{''.join(self._cell(c, place, row) for place, c in enumerate(self.columns))}</tr>"
                       for row in range(count))  # fmt: skip
        more = f"<p>{len(self) - count} more rows</p>" if len(self) > count else ""
        costs = ", ".join(f"{name} {value}" for loss in self.loss for name, value in loss_to_json(loss).items())
        foot = html.escape(f"{self.confidence:.0%} intervals; cost: {costs}")
        return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{more}<p>{foot}</p>"

    def _cell(self, column: AnswerColumn, place: int, row: int) -> str:
        if column.key:
            return f"<td>{html.escape(str(self.keys.column(place)[row].as_py()))}</td>"
        found = column.estimate
        value, low, high = (_number(part, row) for part in (found.value, found.low, found.high))
        return f"<td title='{low} to {high}'>{value} {_bar(found, row)}<br><small>{low} to {high}</small></td>"

    def __str__(self) -> str:
        names = [column.name for column in self.columns]
        lines = [" | ".join(names)]
        for row in range(min(len(self), SHOWN)):
            lines.append(" | ".join(self._text(column, place, row) for place, column in enumerate(self.columns)))
        return "\n".join(lines)

    def _text(self, column: AnswerColumn, place: int, row: int) -> str:
        if column.key:
            return str(self.keys.column(place)[row].as_py())
        found = column.estimate
        return f"{_number(found.value, row)} [{_number(found.low, row)}, {_number(found.high, row)}]"


def _free(name: str, taken: dict[str, Any]) -> str:
    number = 2
    wanted = name
    while name in taken:
        name, number = f"{wanted}_{number}", number + 1
    return name


def _arrow(values: Values) -> pa.Array:
    values = np.asarray(values)
    return pa.array(values.tolist()) if values.dtype.kind not in "fiub" else pa.array(values)


def _number(values: Values, row: int) -> str:
    value = np.asarray(values)[row]
    return html.escape(str(value)) if not isinstance(value, float | int | np.number) else f"{float(value):,.6g}"


def _bar(found: Estimate, row: int) -> str:
    """A small drawing of one interval on the scale of the whole column."""
    finite = [part[np.isfinite(part)] for part in (found.low, found.high)]
    if not len(finite[0]) or not len(finite[1]) or not np.isfinite([found.low[row], found.high[row]]).all():
        return ""
    first, last = min(float(finite[0].min()), 0.0), float(finite[1].max())
    width = (last - first) or 1.0
    left, right = (100 * (float(end) - first) / width for end in (found.low[row], found.high[row]))
    middle = 100 * (float(np.asarray(found.value, float)[row]) - first) / width
    return (
        "<svg width='104' height='10'>"
        f"<line x1='{2 + left:.1f}' x2='{2 + right:.1f}' y1='5' y2='5' stroke='currentColor'/>"
        f"<circle cx='{2 + middle:.1f}' cy='5' r='2.5' fill='currentColor'/></svg>"
    )


def _described(part: Any) -> dict[str, Any]:
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
    """The columns asked for, filtered, ordered and cut as the query says."""
    found = axes(context, plan)
    rows = list(product(*(values for _, values in found)))
    domains = _key_domains(plan, context)
    raw = [_key_values([row[place] for row in rows], domain) for place, domain in enumerate(domains)]
    kinds = [domain_type(domain) for domain in domains]
    estimates = [
        _as_kind(estimate(output.node, columns, raw, confidence), value_type(output.node, kinds))
        for output in plan.outputs
    ]
    size = len(rows)
    chosen = _chosen(plan, columns, raw, size)
    shown = [_key_text([row[place] for row in rows], domain) for place, domain in enumerate(domains)]
    made, keys = [], {}
    for place, (output, result) in enumerate(zip(plan.outputs, estimates, strict=True)):
        is_key = isinstance(output.node, KeyValue)
        made.append(AnswerColumn(output.name, _taken(result, chosen, size), is_key))
        values = shown[output.node.index] if isinstance(output.node, KeyValue) else [None] * size
        keys[str(place)] = pa.array([values[row] for row in chosen])
    losses = tuple(unit.loss for release in releases for unit in release.losses if unit.unit == plan.unit)
    table = pa.table(keys)
    return Answer(
        plan.question.text, tuple(made), table, confidence, losses, tuple(releases), bounds, _notes(plan, bounds)
    )


def _as_kind(found: Estimate, wanted: ValueType) -> Estimate:
    """Truth values as such; they are computed as 1, 0 and unknown."""
    if wanted != "truth value":
        return found
    values = [None if value != value else bool(value) for value in np.atleast_1d(found.value)]
    return replace(found, value=np.array(values, dtype=object).reshape(np.shape(found.value)))


def _notes(plan: QueryPlan, bounds: dict[str, EstimatedBound]) -> tuple[str, ...]:
    notes = list(plan.notes)
    for tag, found in bounds.items():
        share = f"{found.inflation:.1%}" if found.kept else "unknown"
        notes.append(
            f"bound on {tag} found privately: {found.bound}; clipping removed about {share} of what it kept; "
            f"fewer than about {found.unseen:.0f} units far heavier than all others would not show: not allowed for"
        )
    return tuple(notes)


def _taken(result: Estimate, chosen: Sequence[int], size: int) -> Estimate:
    def cut(values: Values) -> Any:
        return np.broadcast_to(np.asarray(values), (size,))[list(chosen)]

    return Estimate(cut(result.value), cut(result.std_error), cut(result.low), cut(result.high))


def _chosen(plan: QueryPlan, columns: Sequence[NoisyColumn], keys: list[Values], size: int) -> list[int]:
    """Which rows HAVING keeps, in the order of ORDER BY, cut by LIMIT: all on noisy values."""
    cells = [column.estimate for column in columns]
    kept = np.ones(size, bool)
    if plan.having is not None:
        kept = np.broadcast_to(evaluate(plan.having, cells, keys), (size,)) == 1
    rows = [row for row in range(size) if kept[row]]
    for term in reversed(plan.order):
        rows = _ordered(rows, np.broadcast_to(evaluate(term.node, cells, keys), (size,)), term)
    first = plan.question.offset
    return rows[first:] if plan.question.limit is None else rows[first : first + plan.question.limit]


def _ordered(rows: list[int], values: Values, term: Ordering) -> list[int]:
    absent = missing(values)
    known = sorted((row for row in rows if not absent[row]), key=lambda row: values[row], reverse=term.descending)
    unknown = [row for row in rows if absent[row]]
    return unknown + known if term.nulls_first else known + unknown


def _key_domains(plan: QueryPlan, context: Context) -> list[Domain]:
    scope = Scope(plan.question.relation.domain(context))
    return [key.value.domain(scope) for key in plan.keys]


def _key_values(values: list[Scalar], domain: Domain) -> Values:
    """Keys for computing: numbers, moments and truth values as floats, texts as objects."""
    if domain_type(domain) != "text":
        return np.array([math.nan if value is None else float(value) for value in values])
    return np.array(values, dtype=object)


def _key_text(values: list[Scalar], domain: Domain) -> list[Any]:
    """Keys for showing: dates as dates, rationals as numbers."""
    return [_shown(value, domain) for value in values]


def _shown(value: Scalar, domain: Domain) -> Any:
    if isinstance(domain, Moment) and isinstance(value, int) and not isinstance(value, bool):
        moment = EPOCH + timedelta(microseconds=value)
        return date(moment.year, moment.month, moment.day) if domain.precision == "day" else moment.replace(tzinfo=None)
    return float(value) if isinstance(value, Fraction) else value


def measured_cells(plan: QueryPlan) -> frozenset[int]:
    """The sources that some output reads."""
    return frozenset().union(*(cells_of(output.node) for output in plan.outputs))


def needed(package: str) -> Any:
    """A package that is not of the core."""
    try:
        return import_module(package)
    except ModuleNotFoundError:
        raise Unsupported(f"this needs {package}: pip install {package}; table and to_dicts() do without") from None


ROUNDING = 1e-9


def other_budget_notes(losses: Iterable[UnitLoss], unit: str, asked: Loss) -> tuple[str, ...]:
    """A note for each other budget that pays more than was asked for."""
    most = size(asked) * (1 + ROUNDING)
    others = [part for part in losses if part.unit != unit and size(part.loss) > most]
    return tuple(
        f"the {part.kind} budget of {part.unit} pays more than was asked for {unit}: {text(part.loss)}"
        for part in others
    )


def size(loss: Loss) -> float:
    """A loss as an epsilon, by which losses of different kinds are compared."""
    match loss:
        case Pure(epsilon=epsilon) | Approximate(epsilon=epsilon):
            return float(epsilon)
        case ZCDP(rho=rho):
            return sqrt(2 * rho)
        case Renyi(curve=curve):
            return max((float(epsilon) for _, epsilon in curve), default=0.0)
        case _:
            assert_never(loss)


def text(loss: Loss) -> str:
    """A loss in a few words.

    >>> text(Pure("6/5"))
    'epsilon 1.2'
    """
    match loss:
        case Pure(epsilon=epsilon):
            return f"epsilon {float(epsilon):g}"
        case Approximate(epsilon=epsilon, delta=delta):
            return f"epsilon {float(epsilon):g}, delta {float(delta):g}"
        case ZCDP(rho=rho):
            return f"rho {float(rho):g}"
        case Renyi():
            return f"a Renyi loss of at most epsilon {size(loss):g}"
        case _:
            assert_never(loss)
