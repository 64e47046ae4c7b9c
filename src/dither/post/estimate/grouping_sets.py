"""Put the answers of several grouping sets together: the rows of all of them, in the order that ORDER BY asks for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from dither.post.estimate.answer import Answer, AnswerColumn
from dither.post.estimate.answer_rows import sort_rows
from dither.post.estimate.clipping import Clipping
from dither.post.estimate.intervals import Estimate
from dither.post.formulas import Values, is_missing
from dither.post.query.question import Question


def join_answers(question: Question, answers: Sequence[Answer]) -> Answer:
    """Return one answer with the rows of all grouping sets; ORDER BY, LIMIT and OFFSET apply to them together."""
    if len(answers) == 1:
        return answers[0]
    shown = len(question.outputs)
    columns = [_join_columns([answer.columns[place] for answer in answers]) for place in range(len(answers[0].columns))]
    rows = list(range(sum(map(len, answers))))
    for term, column in reversed(list(zip(question.order, columns[shown:], strict=True))):
        rows = sort_rows(rows, column.estimate.value, term)
    rows = (
        rows[question.offset :] if question.limit is None else rows[question.offset : question.offset + question.limit]
    )
    lists = [[value for answer in answers for value in answer.keys.column(place).to_pylist()] for place in range(shown)]
    keys = {str(place): pa.array([values[row] for row in rows]) for place, values in enumerate(lists)}
    sets = (
        f"{len(answers)} grouping sets are measured separately and share the loss, so that their rows need not add up"
    )
    return replace(
        answers[0],
        columns=tuple(_take_rows(column, rows) for column in columns[:shown]),
        keys=pa.table(keys),
        bounds={tag: bound for answer in answers for tag, bound in answer.bounds.items()},
        notes=tuple(dict.fromkeys([*(note for answer in answers for note in answer.notes), sets])),
        draws=None,
    )


def _join_columns(columns: Sequence[AnswerColumn]) -> AnswerColumn:
    """Return a column with the rows of several; it is a key if it is one in some grouping set."""
    estimates = [column.estimate for column in columns]
    parts = (_join_values(getattr(each, name) for each in estimates) for name in ("value", "std_error", "low", "high"))
    clippings = [column.clipping for column in columns if column.clipping is not None]
    clipping = _join_clippings(clippings) if len(clippings) == len(columns) else None
    is_key = any(column.key for column in columns)
    first = columns[0]
    return AnswerColumn(
        first.name, Estimate(*parts), is_key, True, clipping, first.clipped_data, first.precision, first.additive
    )


def _join_clippings(parts: Sequence[Clipping]) -> Clipping:
    """Join what clipping removed from the columns of several grouping sets."""
    return Clipping(
        *(np.concatenate([getattr(part, name) for part in parts]) for name in ("estimate", "most", "noise"))
    )


def _join_values(parts: Iterable[Values]) -> Values:
    """Join arrays; numbers and texts become objects, with None for what is missing."""
    arrays = [np.asarray(part) for part in parts]
    if all(array.dtype.kind == "f" for array in arrays):
        return np.concatenate(arrays)
    whole: list[Any] = []
    for array in arrays:
        whole += [None if gone else value for value, gone in zip(array.tolist(), is_missing(array), strict=True)]
    return np.array(whole, dtype=object)


def _take_rows(column: AnswerColumn, rows: Sequence[int]) -> AnswerColumn:
    """Return some rows of a column."""
    found, size = column.estimate, len(column.estimate.value)
    parts = (part[list(rows)] for part in (found.value, found.std_error, found.low, found.high))
    clipping = None if column.clipping is None else column.clipping.take(rows, size)
    return replace(column, estimate=Estimate(*parts), clipping=clipping)
