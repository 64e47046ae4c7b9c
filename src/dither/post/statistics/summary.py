"""Proportions and ratios, with sampling error on request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy import special

from dither.errors import InvalidParameter
from dither.post.estimate.answer import Answer, AnswerColumn
from dither.post.estimate.explain import IF_SPREAD, Expected
from dither.post.statistics.core import Measurements, Part, Statistic
from dither.post.statistics.power import share_with_sampling
from dither.post.statistics.quantiles import SAMPLING_NOTE
from dither.post.statistics.result import Result
from dither.post.statistics.source_rows import SourceRows
from dither.schema import Boolean


def make_proportion(rows: SourceRows, condition: str, keys: Sequence[str], population: bool) -> Statistic[Result]:
    """Make the statistic of the share of rows that meet a condition."""
    if condition.isidentifier() and not isinstance(rows.domain(condition), Boolean):
        raise InvalidParameter(f"{condition} is neither true nor false; give a condition, such as {condition} = ...")
    values = [f"COUNT(*) FILTER (WHERE {rows.column(condition)}) / COUNT(*) AS proportion", "COUNT(*) AS n"]
    plan = rows.plan(values, by=keys)

    def build(measured: Measurements) -> Result:
        answer = measured.parts[0].answer(measured.settings, measured.releases)
        columns = [column if column.key else as_share(column) for column in answer.columns[:-1]]
        if population:
            columns[-1] = with_sampling(columns[-1], np.asarray(answer["n"].estimate.value), answer.confidence)
        notes = (*answer.notes, *((SAMPLING_NOTE,) if population else ()))
        return result_of(answer, columns, f"share of rows with {condition}", notes)

    def extend(columns: Sequence[Expected]) -> list[Expected]:
        return share_with_sampling(columns, rows.settings.confidence) if population else list(columns)

    return Statistic(rows.settings, (Part(plan),), build, extend=extend)


def make_ratio(rows: SourceRows, over: str, under: str, keys: Sequence[str]) -> Statistic[Result]:
    """Make the statistic of the ratio of two sums."""
    settings = rows.settings
    planner = replace(settings.planner, spend=settings.spend)
    plan = planner.plan(rows.question([f"SUM({rows.column(over)}) / SUM({rows.column(under)}) AS ratio"], by=keys))

    def build(measured: Measurements) -> Result:
        answer = measured.parts[0].answer(measured.settings, measured.releases)
        return result_of(answer, answer.columns, f"sum of {over} over sum of {under}", answer.notes)

    def extend(columns: Sequence[Expected]) -> list[Expected]:
        return [replace(column, known=False, given=IF_SPREAD) for column in columns]

    return Statistic(rows.settings, (Part(plan),), build, extend=extend)


def result_of(answer: Answer, columns: Sequence[AnswerColumn], title: str, notes: Sequence[str]) -> Result:
    """Return an answer as a result with a title."""
    kept = {name: getattr(answer, name) for name in ("keys", "confidence", "loss", "releases", "bounds")}
    return Result(query=title, columns=tuple(columns), notes=tuple(notes), summary=(title,), **kept)


def as_share(column: AnswerColumn) -> AnswerColumn:
    """Move an estimate and its interval into the range from 0 to 1, in which every share lies."""
    found = column.estimate
    value, low, high = (np.clip(np.asarray(part, float), 0.0, 1.0) for part in (found.value, found.low, found.high))
    return replace(column, estimate=replace(found, value=value, low=low, high=high))


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
