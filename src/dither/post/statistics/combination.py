"""Combine everything released about a table: generalised least squares over counts and sums, at no cost.

Counts of the same rows by different keys are margins of one table over all of those keys. Each answer has noise of its
own, so that the fit to all of them is better than any one, and all of them agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from dither.errors import InvalidParameter
from dither.plan.expressions.core import Expr
from dither.plan.relations.core import Relation
from dither.post.estimate.answer import Answer, AnswerColumn
from dither.post.formulas import KeyValue, NoisyCell
from dither.post.query.query_plan import QueryPlan
from dither.post.query.question import AggregateCall
from dither.post.statistics.consistency import Margin, agree
from dither.post.statistics.contingency import ContingencyTable, normal_factor
from dither.post.statistics.fitted import FittedTable, margin_of

MOST_CELLS = 2_000_000
COMBINED_NOTE = "combined with {others} by least squares, at no cost; the measurements stay as they were"


@dataclass(frozen=True)
class Quantity:
    """One count or sum over one relation, which a column measures."""

    relation: Relation
    aggregate: AggregateCall


@dataclass(frozen=True)
class MeasuredColumn:
    """A column of an answer that is a margin of a quantity: its place, its keys, and the number of values of each."""

    answer: int
    column: int
    quantity: Quantity
    keys: tuple[Expr, ...]
    sizes: tuple[int, ...]
    source: tuple[Any, ...]


def combine_answers(answers: Sequence[Answer]) -> list[Answer]:
    """Return the answers with every count and sum replaced by its best estimate from all of them."""
    flat = [each for answer in answers for each in parts_of(answer)]
    if not flat:
        raise InvalidParameter("combine needs answers of this session, such as combine(first, second)")
    check_versions(flat)
    columns = [column for place, answer in enumerate(flat) for column in linear_columns(place, answer)]
    combined = list(flat)
    for quantity in dict.fromkeys(column.quantity for column in columns):
        own = [column for column in columns if column.quantity == quantity]
        if len({column.source for column in own}) < 2:
            continue
        for place, changed in fitted_columns(flat, own):
            combined[place.answer] = with_column(combined[place.answer], place.column, changed, len(own) - 1)
    return combined


def parts_of(answer: Any) -> list[Answer]:
    """Return the measured margins of a contingency table, or the answer itself."""
    if isinstance(answer, ContingencyTable):
        return list(answer.raw.values())
    if not isinstance(answer, Answer) or answer.draws is None:
        raise InvalidParameter("combine takes answers of session.sql and session.batch, and tables of session.table")
    return [answer]


def check_versions(answers: Sequence[Answer]) -> None:
    """Refuse answers about different datasets or versions of the data."""
    versions = {(release.dataset, release.data_version) for answer in answers for release in answer.releases}
    if len(versions) > 1:
        raise InvalidParameter("the answers are about different datasets or versions of the data; combine those of one")


def linear_columns(place: int, answer: Answer) -> Iterator[MeasuredColumn]:
    """Yield the columns of an answer that are a count or a sum over all declared keys."""
    if answer.draws is None or answer.draws.plan.having is not None or answer.draws.plan.question.limit is not None:
        return
    plan: QueryPlan = answer.draws.plan
    question = plan.question
    sizes = [len(answer.keys.column(p).unique()) for p, c in enumerate(plan.outputs) if isinstance(c.node, KeyValue)]
    in_order = [c.node.index for c in plan.outputs if isinstance(c.node, KeyValue)]
    if in_order != list(range(len(plan.keys))) or prod(sizes) != len(answer) or plan.order or question.offset:
        return
    for position, (output, asked) in enumerate(zip(plan.outputs, question.outputs, strict=True)):
        if isinstance(output.node, NoisyCell) and isinstance(asked.node, NoisyCell):
            quantity = Quantity(question.relation, question.aggregates[asked.node.index])
            keys = tuple(value for _, value in question.keys)
            digests = tuple(release.digest for release in answer.releases)
            source = (digests, output.node.index, keys)
            yield MeasuredColumn(place, position, quantity, keys, tuple(sizes), source)


def fitted_columns(
    answers: Sequence[Answer], own: Sequence[MeasuredColumn]
) -> Iterator[tuple[MeasuredColumn, AnswerColumn]]:
    """Fit one table to all columns of a quantity, each released measurement once; yield the fitted columns."""
    sizes: dict[Expr, int] = {}
    for column in own:
        sizes.update(zip(column.keys, column.sizes, strict=True))
    if prod(sizes.values()) > MOST_CELLS:
        raise InvalidParameter(f"together the keys have {prod(sizes.values()):,} combinations; combine fewer answers")
    names = {key: f"key {index}" for index, key in enumerate(sizes)}
    named = {names[key]: size for key, size in sizes.items()}
    confidence = answers[own[0].answer].confidence

    def margin_of_column(column: MeasuredColumn) -> Margin:
        shown = answers[column.answer].columns[column.column]
        return margin_of(shown, tuple(names[key] for key in column.keys), named, answers[column.answer].confidence)

    margins = [margin_of_column(column) for column in {column.source: column for column in own}.values()]
    fitted = FittedTable(agree(named, margins), margins, normal_factor(True, confidence), confidence)
    for column in own:
        shown = answers[column.answer].columns[column.column]
        yield column, fitted.column(shown, [names[key] for key in column.keys])


def with_column(answer: Answer, position: int, column: AnswerColumn, others: int) -> Answer:
    """Return an answer with one column replaced, and a note that says so."""
    columns = list(answer.columns)
    columns[position] = column
    note = COMBINED_NOTE.format(others=f"{others} other column{'' if others == 1 else 's'}")
    return replace(answer, columns=tuple(columns), notes=tuple(dict.fromkeys((*answer.notes, note))))
