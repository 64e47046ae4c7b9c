"""Queries as they are planned for one charge: their plans, options and loss, and what their answers show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from dither.errors import InvalidParameter
from dither.loss import ZCDP, Approximate, Loss
from dither.plan.context import Context
from dither.post.contribution_bound import parse_contribution_bound
from dither.post.estimate.answer import Answer, without_negatives
from dither.post.estimate.contribution import EstimatedBound
from dither.post.estimate.explain import Expected
from dither.post.estimate.grouping_sets import join_answers
from dither.post.options import Place, QueryOptions, ResolvedOptions, read_queries, resolve_options
from dither.post.query.parser import sql_options
from dither.post.query.planner import Planner
from dither.post.query.query_plan import QueryPlan
from dither.post.query.question import Question
from dither.post.query.spend import Spend
from dither.privacy.protocol import KeySelection


@dataclass(frozen=True)
class PlannedQueries:
    """Planned queries and the loss they spend; `max_error` is the half width for which that loss was solved.

    `questions` has the queries as they were asked: one with grouping sets has a plan for each of them. With a
    `selection` of keys before, `total` is the loss of both.
    By tag, `known` has the bounds that the dataset's profile gave, and `predicted` also those that it leads to expect.
    """

    plans: tuple[QueryPlan, ...]
    spend: Spend
    confidence: float
    assumed_group_size: float | None
    max_error: float | None = None
    repeat: int = 0
    questions: tuple[Question, ...] = ()
    selection: KeySelection | None = None
    total: Loss | None = None
    known: Mapping[str, EstimatedBound] = field(default_factory=dict)
    predicted: Mapping[str, EstimatedBound] = field(default_factory=dict)

    def join_sets(self, answers: Sequence[Answer]) -> list[Answer]:
        """Return one answer for each query; the answers of its grouping sets are put together."""
        rest, whole = list(answers), []
        for question in self.questions:
            count = max(1, len(question.sets))
            whole.append(join_answers(question, rest[:count]))
            rest = rest[count:]
        return whole

    def selection_notes(self) -> tuple[str, ...]:
        """Return a note on the number of keys that were selected, if they were."""
        if self.selection is None or not isinstance(self.total, Approximate | ZCDP):
            return ()
        keys = len(self.plans[0].selected or ())
        return (f"{keys} keys were selected privately, with delta {self.total.delta}; rarer ones are left out",)

    def with_error_notes(self, answer: Answer, columns: Sequence[Expected]) -> Answer:
        """Add notes on the assumptions under which `max_error` was solved, and on intervals that are wider."""
        estimates = [column.estimate for column in answer.columns if not column.key]
        with np.errstate(invalid="ignore"):
            widths = [np.max(np.nan_to_num(e.high - e.low, posinf=np.inf), initial=0.0) / 2 for e in estimates]
        sizes = sorted({round(column.rows) for column in columns if column.rows is not None})
        notes = [f"max_error= was solved as if each group had {size:,} rows" for size in sizes]
        if self.max_error is not None and max(widths, default=0.0) > self.max_error:
            notes.append(f"some intervals are wider than {self.max_error:g}: the data were not as assumed")
        return replace(answer, notes=(*answer.notes, *notes))


def options_for(queries: Sequence[str], options: QueryOptions, place: Place = "question") -> ResolvedOptions:
    """Resolve the options of queries, from arguments and, for a single query, from its text."""
    written = [sql_options(query)[1] for query in read_queries(queries)]
    if len(queries) > 1 and any(written):
        raise InvalidParameter(
            "queries of a batch share one loss and cannot have OPTIONS(...); give the options as arguments"
        )
    return resolve_options(options, place, written[0])


def planner_for(context: Context, resolved: ResolvedOptions, gaussian: bool, spend: Spend | None = None) -> Planner:
    """Return the planner for a query's options, of which each question may `spend` so much, if that is known."""
    bound = parse_contribution_bound(resolved.max_contributions)
    return Planner(context, bound, gaussian, resolved.optimize_for, spend)


def as_shown(answers: Sequence[Answer], resolved: ResolvedOptions) -> list[Answer]:
    """Change what answers show as the options ask for; what was measured stays."""
    return [without_negatives(answer) if resolved.nonnegative else answer for answer in answers]


def with_shared_loss(answers: Sequence[Answer], note: str) -> list[Answer]:
    """Add a note to each of several answers that one charge paid for; a single answer stays as it is."""
    return [replace(answer, notes=(*answer.notes, note)) for answer in answers] if len(answers) > 1 else list(answers)
