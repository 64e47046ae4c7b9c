"""Restrict a question to units with at most a threshold of rows, or to units with more."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Literal

from dither.errors import InvalidParameter, Unsupported
from dither.plan.expressions.core import ColumnRef, LiteralValue
from dither.plan.expressions.logic import Compare
from dither.plan.relations.filter import Filter
from dither.plan.relations.group_by import GroupAggregate, GroupBy
from dither.plan.relations.joins import UnitJoin
from dither.post.query.query_plan import CLIPPED_NOTE, QueryPlan
from dither.post.query.question import Question

ROWS_OF_UNIT = "rows_of_unit"


def units_with_at_most(question: Question, threshold: int) -> Question:
    """Restrict a question to units with at most `threshold` rows."""
    return _restrict_units(question, threshold, "<=")


def units_with_more_than(question: Question, threshold: int) -> Question:
    """Restrict a question to units with more than `threshold` rows."""
    return _restrict_units(question, threshold, ">")


def few_rows_note(question: Question, threshold: int) -> str:
    """Return the label of a split's first answer."""
    return f"answer about each {question.unit} with at most {threshold:,} rows: their rows are all counted"


def many_rows_note(question: Question, threshold: int) -> str:
    """Return the label of a split's second answer."""
    return f"answer about each {question.unit} with more than {threshold:,} rows"


def with_note(plan: QueryPlan, note: str) -> QueryPlan:
    """Return a plan with a first note."""
    return replace(plan, notes=(note, *plan.notes))


def without_clipping(plan: QueryPlan, note: str) -> QueryPlan:
    """Return the plan over units with few rows, which its bound does not clip, with a first note that says so."""
    notes = tuple(each for each in plan.notes if not each.startswith(CLIPPED_NOTE))
    return with_note(replace(plan, clipped_to="", notes=notes), note)


def _restrict_units(question: Question, threshold: int, op: Literal["<=", ">"]) -> Question:
    if threshold < 1:
        raise InvalidParameter(f"the threshold of a split must be at least 1 row, got {threshold}")
    if not question.knows_unit:
        raise Unsupported(
            "a split needs rows that belong to one unit each, and a join or GROUP BY in this query mixes units; "
            "leave it out, or join on the unit's key"
        )
    counts = GroupBy(question.relation, (), (GroupAggregate(ROWS_OF_UNIT, "count"),), question.unit)
    chosen = Filter(counts, Compare(op, ColumnRef(ROWS_OF_UNIT), LiteralValue(Fraction(threshold))))
    return replace(question, relation=UnitJoin(question.relation, chosen, question.unit))
