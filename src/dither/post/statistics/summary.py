"""Describe a table for one stated loss; proportions and ratios, with sampling error on request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np
from scipy import special

from dither.errors import NotFound
from dither.post.estimate.answer import Answer, AnswerColumn
from dither.post.statistics.contingency import read_names
from dither.post.statistics.core import MeasuredPart, Measurements, Part, SourceRows, Statistic, quote_name
from dither.post.statistics.grid import ValueGrid, make_grid, plan_grid
from dither.post.statistics.quantiles import SAMPLING_NOTE
from dither.post.statistics.result import Result, key_column, noisy_column, result_fields
from dither.schema import Boolean, Category, Number

QUANTILES = tuple(Fraction(number, 100) for number in (5, 25, 50, 75, 95))
DESCRIBED_GRID = 1 << 14
MOMENT_WEIGHT = Fraction(2)


@dataclass(frozen=True, repr=False)
class Description(Result):
    """A description of a table: moments and quantiles of numbers, and `categories` with the counts of the others."""

    categories: Mapping[str, Answer] = field(default_factory=dict)

    def __str__(self) -> str:
        parts = [super().__str__() if len(self) else "\n".join(self.summary), *map(str, self.categories.values())]
        return "\n\n".join(parts)

    def _repr_html_(self) -> str:
        return "".join([super()._repr_html_(), *(answer._repr_html_() for answer in self.categories.values())])


def make_description(rows: SourceRows, columns: Any) -> Statistic[Description]:
    """Make the statistic that describes columns: by default, all whose values can be listed or averaged."""
    chosen = described_columns(rows, columns)
    numbers = [name for name in chosen if isinstance(rows.domain(name), Number)]
    others = [name for name in chosen if name not in numbers]
    grids = {name: make_grid(rows.domain(name), DESCRIBED_GRID) for name in numbers}
    parts = [Part(rows.plan(["COUNT(*) AS rows"]))]
    parts += [Part(rows.plan(moments(rows, name)), MOMENT_WEIGHT) for name in numbers]
    parts += [
        Part(plan_grid(rows, name, grids[name]), Fraction(1), "quantiles", (("quantiles", QUANTILES),))
        for name in numbers
    ]
    parts += [Part(rows.plan([f"COUNT(*) AS {quote_name(f'rows by {name}')}"], by=[name])) for name in others]

    def build(measured: Measurements) -> Description:
        total, *rest = measured.parts
        moment_parts, quantile_parts = rest[: len(numbers)], rest[len(numbers) : 2 * len(numbers)]
        answers = [part.answer(measured.settings, measured.releases) for part in moment_parts]
        counted = {
            name: part.answer(measured.settings, measured.releases)
            for name, part in zip(others, rest[2 * len(numbers) :], strict=True)
        }
        shown = [key_column("column", numbers), *stack_answers(answers, ("n", "mean", "std"))]
        shown += quantile_columns(quantile_parts, [grids[name] for name in numbers])
        size = total.answer(measured.settings, measured.releases).columns[-1].cell(0)
        note = "quantiles are shown without intervals; session.quantiles has them"
        return Description(
            **result_fields(
                measured, "description", shown if numbers else [], [f"{size} rows"], [note] if numbers else []
            ),
            categories=counted,
        )

    return Statistic(rows.settings, tuple(parts), build)


def moments(rows: SourceRows, name: str) -> list[str]:
    """Write the aggregates of a number's count, mean and standard deviation."""
    column = rows.column(name)
    values = {"rows": f"COUNT({column})", "mean": f"AVG({column})", "standard deviation": f"STDDEV({column})"}
    return [f"{value} AS {quote_name(f'{kind} of {name}')}" for kind, value in values.items()]


def described_columns(rows: SourceRows, columns: Any) -> list[str]:
    """Return the columns to describe; refuse unknown ones and those that cannot be described."""
    known = {
        name: domain for name, domain in rows.scope.columns.items() if isinstance(domain, Number | Category | Boolean)
    }
    if columns is None:
        if not known:
            raise NotFound("no column is a number, a category or true or false, so there is nothing to describe")
        return list(known)
    names = list(read_names("columns", columns))
    if not names or any(name not in known for name in names):
        raise NotFound(f"columns must be some of: {', '.join(known)}")
    return names


def stack_answers(answers: Sequence[Answer], names: Sequence[str]) -> list[AnswerColumn]:
    """Return a column for each name, with one row for each answer of a single row."""
    columns = []
    for position, name in enumerate(names):
        found = [answer.columns[position].estimate for answer in answers]
        parts = [
            np.array([float(np.atleast_1d(getattr(each, part))[0]) for each in found])
            for part in ("value", "std_error", "low", "high")
        ]
        columns.append(noisy_column(name, *parts))
    return columns


def quantile_columns(parts: Sequence[MeasuredPart], grids: Sequence[ValueGrid]) -> list[AnswerColumn]:
    """Return a column for each described quantile."""
    points = [grid.middles()[list(part.released[0].values)] for part, grid in zip(parts, grids, strict=True)]
    return [
        key_column(f"{float(level):.0%}", [float(own[index]) for own in points])
        for index, level in enumerate(QUANTILES)
    ]


# --- proportions and ratios ----------------------------------------------------------------------------------------


def make_proportion(rows: SourceRows, condition: str, by: Any, population: bool) -> Statistic[Result]:
    """Make the statistic of the share of rows that meet a condition."""
    keys = read_names("by", by)
    values = [f"COUNT(*) FILTER (WHERE {condition}) / COUNT(*) AS proportion", "COUNT(*) AS n"]
    plan = rows.plan(values, by=keys)

    def build(measured: Measurements) -> Result:
        answer = measured.parts[0].answer(measured.settings, measured.releases)
        columns = list(answer.columns[:-1])
        if population:
            columns[-1] = with_sampling(columns[-1], np.asarray(answer["n"].estimate.value), answer.confidence)
        notes = (*answer.notes, *((SAMPLING_NOTE,) if population else ()))
        return result_of(answer, columns, f"share of rows with {condition}", notes)

    return Statistic(rows.settings, (Part(plan),), build)


def make_ratio(rows: SourceRows, over: str, under: str, by: Any) -> Statistic[Result]:
    """Make the statistic of the ratio of two sums."""
    keys = read_names("by", by)
    plan = rows.plan([f"SUM({over}) / SUM({under}) AS ratio"], by=keys)

    def build(measured: Measurements) -> Result:
        answer = measured.parts[0].answer(measured.settings, measured.releases)
        return result_of(answer, answer.columns, f"sum of {over} over sum of {under}", answer.notes)

    return Statistic(rows.settings, (Part(plan),), build)


def result_of(answer: Answer, columns: Sequence[AnswerColumn], title: str, notes: Sequence[str]) -> Result:
    """Return an answer as a result with a title."""
    kept = {name: getattr(answer, name) for name in ("keys", "confidence", "loss", "releases", "bounds")}
    return Result(query=title, columns=tuple(columns), notes=tuple(notes), summary=(title,), **kept)


def with_sampling(column: AnswerColumn, sizes: np.ndarray, confidence: float) -> AnswerColumn:
    """Widen the interval of a proportion by its sampling error (Wilson's, at the noisy size)."""
    z = float(special.ndtri((1 + confidence) / 2))
    found = column.estimate
    share, size = np.clip(np.asarray(found.value, float), 0.0, 1.0), np.maximum(sizes, 1.0)
    centre = (share + z**2 / (2 * size)) / (1 + z**2 / size)
    half = z * np.sqrt(share * (1 - share) / size + z**2 / (4 * size**2)) / (1 + z**2 / size)
    low = share - np.hypot(share - found.low, share - (centre - half))
    high = share + np.hypot(found.high - share, centre + half - share)
    error = np.hypot(found.std_error, np.sqrt(share * (1 - share) / size))
    low, high = np.clip(low, 0.0, 1.0), np.clip(high, 0.0, 1.0)
    return replace(column, estimate=replace(found, std_error=error, low=low, high=high))
