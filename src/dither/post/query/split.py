"""The two sub-populations that a threshold makes: units with at most so many rows, and the others."""

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
from dither.post.query.question import Question

COUNTED = "rows_of_unit"


def at_most(question: Question, threshold: int) -> Question:
    """The question asked of units with at most `threshold` rows."""
    return _of(question, threshold, "<=")


def more_than(question: Question, threshold: int) -> Question:
    """The question asked of units with more than `threshold` rows."""
    return _of(question, threshold, ">")


def _of(question: Question, threshold: int, op: Literal["<=", ">"]) -> Question:
    if threshold < 1:
        raise InvalidParameter("the threshold between light and heavy units must be at least 1 row")
    if not question.knows_unit:
        raise Unsupported(
            "rows no longer know their unit here, so units cannot be told apart; ask below the join or group"
        )
    counts = GroupBy(question.relation, (), (GroupAggregate(COUNTED, "count"),), question.unit)
    chosen = Filter(counts, Compare(op, ColumnRef(COUNTED), LiteralValue(Fraction(threshold))))
    return replace(question, relation=UnitJoin(question.relation, chosen, question.unit))
