"""The base class of the results of statistics: answers with a summary above their table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from html import escape
from typing import Any

import numpy as np
import pyarrow as pa

from dither.post.display import answer_text
from dither.post.estimate.answer import Answer, AnswerColumn
from dither.post.estimate.intervals import Estimate
from dither.post.statistics.core import Measurements


@dataclass(frozen=True, repr=False)
class Result(Answer):
    """The result of a statistic: a table with intervals, as answers have, below a few lines of summary.

    `loss`, `measurements`, `notes`, `table`, `to_pandas()`, `to_dicts()` and `plot()` are those of an answer.
    """

    summary: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [*self.summary, *([super().__str__()] if self.columns else [])]
        return "\n".join(lines)

    def cells(self, row: int) -> list[str]:
        """Return a row as text: keys, and estimates with their intervals."""
        return [self._cell(column, row) for column in self.columns]

    def _cell(self, column: AnswerColumn, row: int) -> str:
        """Return a cell as text; one without an estimate or an interval is unknown."""
        if column.key:
            return plain_text(column.estimate.value[row])
        found = column.estimate
        nothing = np.isnan([float(part[row]) for part in (found.value, found.low, found.high)]).all()
        return "unknown" if nothing else column.cell(row)

    def _repr_html_(self) -> str:
        lines = "".join(f"<p>{escape(line)}</p>" for line in self.summary)
        return lines + super()._repr_html_()


def plain_text(value: Any) -> str:
    """Write a key; a number without the digits that binary fractions add, and "unknown" where there is none."""
    if isinstance(value, float) and math.isnan(value):
        return "unknown"
    return f"{value:.10g}" if isinstance(value, float) else answer_text(value)


def key_column(name: str, values: Sequence[Any]) -> AnswerColumn:
    """Return a column of exact values, such as names and keys."""
    nothing = np.zeros(len(values))
    return AnswerColumn(name, Estimate(np.array(list(values), dtype=object), nothing, nothing, nothing), key=True)


def noisy_column(name: str, value: Any, std_error: Any, low: Any, high: Any) -> AnswerColumn:
    """Return a column of estimates with standard errors and intervals."""
    return AnswerColumn(name, Estimate(*(np.asarray(part, float) for part in (value, std_error, low, high))), False)


def result_fields(
    measured: Measurements,
    title: str,
    columns: Sequence[AnswerColumn],
    summary: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> Mapping[str, Any]:
    """Return the fields of a `Result`, with cost and notes of what was measured; pass them on by **."""
    keys = {
        f"{position}": pa.array(_plain_keys(column) if column.key else [None] * len(column.estimate.value))
        for position, column in enumerate(columns)
    }
    return {
        "query": title,
        "columns": tuple(columns),
        "keys": pa.table(keys),
        "confidence": measured.settings.confidence,
        "loss": measured.loss,
        "releases": measured.releases,
        "bounds": {tag: bound for part in measured.parts for tag, bound in part.bounds.items()},
        "notes": (*measured.notes, *notes),
        "summary": tuple(summary),
    }


def _plain_keys(column: AnswerColumn) -> list[Any]:
    """Return keys as Arrow takes them: rationals as numbers."""
    return [float(value) if isinstance(value, Fraction) else value for value in column.estimate.value]
