"""The analyst's session: the same over a kernel in this process and over a remote one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from html import escape
from typing import Unpack

from dither.errors import InvalidParameter, NotFound
from dither.loss import ZCDP, Approximate, Pure, Rational, rational
from dither.plan.context import Context
from dither.post.contribution_bound import ContributionBound, parse_contribution_bound
from dither.post.display import Budgets, History, ReadableStatement, Tables
from dither.post.estimate import typecheck
from dither.post.estimate.answer import UNDEFINED, Answer, build_answer
from dither.post.estimate.combine import QuestionDraws, combine_measurements
from dither.post.estimate.explain import Expected, Explanation, explain_plan
from dither.post.estimate.losses import other_budget_notes
from dither.post.estimate.measured import chosen_bounds, measured_columns
from dither.post.estimate.prediction import predict_bounds
from dither.post.estimate.profile import Profile, use_profile
from dither.post.estimate.quote import Quote, assumed_searches, batch_errors, batch_notes, quote_assumptions
from dither.post.estimate.rehearsal import rehearse
from dither.post.estimate.solve import least_epsilon
from dither.post.estimate.squares import pair_squares
from dither.post.options import (
    QueryOptions,
    ResolvedOptions,
    read_option,
    read_request_id,
    read_text,
    read_whole,
)
from dither.post.planned_queries import PlannedQueries, as_shown, options_for, planner_for, with_shared_loss
from dither.post.query.batch import BatchPlan, plan_batch, released_parts_of
from dither.post.query.date_literals import resolve_date_literals
from dither.post.query.grouping_sets import ORDER_COLUMN, questions_of, refuse_grouping_sets
from dither.post.query.parser import parse_query
from dither.post.query.planner import Planner
from dither.post.query.query_plan import bound_name, with_bounds
from dither.post.query.question import Question
from dither.post.query.request import key_selection
from dither.post.query.selected_keys import SELECTION_NOTE, all_combinations, with_sample_keys, with_selected_keys
from dither.post.query.shares import share_notes
from dither.post.query.spend import Spend, parse_spend
from dither.post.query.split import (
    few_rows_note,
    many_rows_note,
    units_with_at_most,
    units_with_more_than,
    with_note,
    without_clipping,
)
from dither.post.statistics.interface import Statistics
from dither.post.statistics.source_rows import default_unit
from dither.privacy.codec import digest, schema_hash
from dither.privacy.protocol import (
    BoundSearch,
    CostQuote,
    Kernel,
    Measurement,
    Page,
    Request,
)
from dither.schema import Dataset
from dither.schema.model import table_names

# The account that is charged for what is measured when a dataset is opened: its noisy sizes, and its profile.
OPENED_BY = "kernel"
OPENING_NOTE = (
    "before its first question the dataset was charged, once, for noisy sizes (size_epsilon) and for a profile if it "
    "has one: see history; quotes are free"
)


@dataclass(frozen=True, repr=False)
class Session(Statistics):
    """Queries one dataset on behalf of one account; `token` is its token, or its name for a kernel in this process.

    `described` has the public facts that were known when the session began, possibly without noisy sizes.
    """

    kernel: Kernel
    name: str
    token: str
    described: Context

    @classmethod
    def from_kernel(cls, kernel: Kernel, token: str, dataset: str | None = None) -> Session:
        """Open a session over any kernel; without a name, on its only dataset."""
        known = kernel.datasets(token)
        if dataset is None and len(known) != 1:
            raise InvalidParameter(f"name the dataset (dataset=, --dataset): {', '.join(known) or 'there is none'}")
        name = read_text("dataset", dataset) if dataset is not None else known[0]
        if name not in known:
            raise NotFound(f"no dataset {name!r}; there are: {', '.join(known)}")
        return cls(kernel, name, token, _public_context(kernel, name, token))

    def __repr__(self) -> str:
        return f"session on {self.name}: tables {table_names(self.dataset)}; ask with session.sql(query, epsilon=...)"

    def _repr_html_(self) -> str:
        title = f"session on {self.name}: ask with session.sql(query, epsilon=...)"
        return f"<p>{escape(title)}</p>{self.tables._repr_html_()}"

    # --- public facts --------------------------------------------------------------------------------------------

    @cached_property
    def context(self) -> Context:
        """The public facts by which questions are planned; a kernel that has put its noisy sizes off measures them."""
        measure = getattr(self.kernel, "measure_size", None)
        if measure is None:
            return self.described
        measure(self.name)
        current = _public_context(self.kernel, self.name, self.token)
        # If the description has changed, the session keeps the old one, whose hash makes the kernel refuse requests.
        return current if schema_hash(current) == schema_hash(self.described) else self.described

    @property
    def dataset(self) -> Dataset:
        """The public description of the dataset."""
        return self.described.dataset

    @property
    def tables(self) -> Tables:
        """The tables, with the domain of each column."""
        return Tables.of(self.dataset)

    @property
    def profile(self) -> Profile | None:
        """The noisy facts that the curator had measured once, or None: they decide bounds, centres and quotes."""
        return Profile.of(self.dataset)

    @property
    def budget(self) -> Budgets:
        """The budgets that queries are charged to."""
        return Budgets(self.kernel.budget(self.name, self.token))

    @property
    def history(self) -> History:
        """The earlier charges that this account may see, oldest first."""
        entries = self.kernel.history(self.name, self.token)
        while entries and entries[0].sequence > 1:
            page = Page(before=entries[0].sequence)
            entries = (*self.kernel.history(self.name, self.token, page), *entries)
        return History(entries)

    @property
    def statement(self) -> ReadableStatement:
        """The facts of the dataset's privacy statement."""
        return ReadableStatement.of(self.kernel.statement(self.name, self.token))

    # --- queries -------------------------------------------------------------------------------------------------

    def sql(self, query: str, *, request_id: str = "", **options: Unpack[QueryOptions]) -> Answer:
        """Run a private SQL query and charge the budget.

        Give `epsilon=`, `rho=` or `max_error=`; the answer has estimates with intervals. Sending a `request_id` again
        is not charged twice.
        """
        resolved, request_id = options_for([query], options), read_request_id(request_id)
        planned = self._plan([query], resolved)
        return planned.join_sets(as_shown(self._answer(planned, request_id), resolved))[0]

    def quote(self, query: str, **options: Unpack[QueryOptions]) -> Quote:
        """Compute the cost and the expected error of a query from public facts; free.

        Only the noisy sizes among them, if this dataset's were not measured yet, are read and charged now, once.
        """
        resolved = options_for([query], options)
        return self._quote(self._plan([query], resolved))

    def explain(self, query: str, **options: Unpack[QueryOptions]) -> Explanation:
        """Explain how a query is understood: its measures, bounds, formulas and sensitivities; free."""
        resolved = replace(options_for([query], options), epsilon=1, rho=None, max_error=None)
        return explain_plan(self.context, self._plan([query], resolved).plans[0])

    def batch(self, queries: Sequence[str], *, request_id: str = "", **options: Unpack[QueryOptions]) -> list[Answer]:
        """Run several queries in one charge of the total; counts over one table share their joint cost."""
        resolved, request_id = options_for(queries, options, "batch"), read_request_id(request_id)
        planned = self._plan(queries, resolved)
        answers = planned.join_sets(as_shown(self._answer(planned, request_id), resolved))
        return with_shared_loss(answers, f"the loss is that of all {len(answers)} queries of the batch, charged once")

    def quote_batch(self, queries: Sequence[str], **options: Unpack[QueryOptions]) -> Quote:
        """Compute the cost of a batch and the expected error of each of its columns; free."""
        return self._quote(self._plan(queries, options_for(queries, options, "batch")))

    def split(self, query: str, threshold: int, **options: Unpack[QueryOptions]) -> tuple[Answer, Answer]:
        """Run a query twice in one charge: over units with at most `threshold` rows, and over units with more."""
        resolved, threshold = options_for([query], options, "split"), read_whole("threshold", threshold, 1)
        spend = parse_spend(resolved.epsilon, resolved.rho)
        question = self._parse(query, resolved)
        refuse_grouping_sets(question, "a split")
        light = Planner(self.context, ContributionBound(max_rows=threshold), spend.gaussian)
        heavy = planner_for(self.context, resolved, spend.gaussian)
        plans = (
            without_clipping(light.plan(units_with_at_most(question, threshold)), few_rows_note(question, threshold)),
            with_note(heavy.plan(units_with_more_than(question, threshold)), many_rows_note(question, threshold)),
        )
        planned = PlannedQueries(plans, spend, float(resolved.confidence), resolved.assumed_group_size)
        answers = as_shown(self._answer(planned, ""), resolved)
        one, two = with_shared_loss(answers, "the loss is that of both answers of the split, charged once")
        return one, two

    def refine(
        self, answer: Answer, *, epsilon: Rational | None = None, rho: Rational | None = None, request_id: str = ""
    ) -> Answer:
        """Run an answer's query again at the same contribution bounds, and combine all its draws.

        Each draw is weighted by the inverse of its noise variance; `answer.loss` then holds the cost of every draw.
        """
        draws = getattr(answer, "draws", None)
        if draws is None or {release.dataset for release in answer.releases} != {self.name}:
            raise InvalidParameter(
                "refine takes an answer that came from a session on this dataset, to a query with a plain GROUP BY"
            )
        self._check_version(answer, self.kernel.schema(self.name, self.token).data_version)
        given = {"epsilon": epsilon, "rho": rho}
        spend = parse_spend(*(None if value is None else read_option(name, value) for name, value in given.items()))
        request_id = read_request_id(request_id)
        rehearse(self.context, draws.plan, len(draws.draws) + 1, answer.bounds)
        batch = plan_batch(self.context, (draws.plan,))
        measurements = batch.answer_measurements(spend, self.context)
        release = self.kernel.answer(self._fresh_request(answer, measurements, request_id), self.token)
        self._check_version(answer, release.data_version)
        draws = draws.with_draw(release.parts)
        plan, columns = combine_measurements(draws, answer.bounds, answer.confidence)
        refined = build_answer(
            plan, self.context, columns, answer.confidence, [*answer.releases, release], answer.bounds
        )
        notes = other_budget_notes(release.losses, plan.unit, spend.loss)
        combined = f"{len(draws.draws)} draws are combined, each weighted by the inverse of its noise variance"
        kept = [note for note in answer.notes if "draws are combined" not in note and UNDEFINED not in note]
        return replace(refined, draws=draws, notes=tuple(dict.fromkeys([*kept, *refined.notes, *notes, combined])))

    def _check_version(self, answer: Answer, version: str) -> None:
        """Refuse to combine draws of different versions of the data."""
        if {release.data_version for release in answer.releases} != {version}:
            raise InvalidParameter("the data have a newer version than the answer; run the query again")

    def _fresh_request(self, answer: Answer, measurements: Sequence[Measurement], request_id: str) -> Request:
        """Build a request that differs from those of the earlier draws, so that the kernel draws new noise."""
        known = {release.digest for release in answer.releases}
        unit = answer.draws.plan.unit if answer.draws else ""
        repeats = range(1, len(known) + 2)
        requests = (self._request(unit, measurements, (), None, request_id, repeat) for repeat in repeats)
        return next(request for request in requests if digest(request) not in known)

    # --- planning and answering ----------------------------------------------------------------------------------

    def _parse(self, query: str, resolved: ResolvedOptions) -> Question:
        """Parse a query, and type-check it before anything is spent."""
        unit, bound = resolved.unit or default_unit(self.dataset), parse_contribution_bound(resolved.max_contributions)
        question = parse_query(
            query, self.dataset, unit, row_limit=bound.max_rows, join_limit=resolved.max_rows_per_key
        )
        question = resolve_date_literals(question, self.described)
        typecheck.check_types(question, self.described)
        return question

    def _plan(self, queries: Sequence[str], resolved: ResolvedOptions) -> PlannedQueries:
        """Plan queries, and decide what they spend."""
        if resolved.delta is not None:
            return self._plan_with_selection(queries[0], resolved)
        questions, confidence = (
            [self._parse(query, resolved) for query in queries],
            float(resolved.confidence),
        )
        if resolved.max_error is not None:
            return self._solve_epsilon(questions, resolved, confidence)
        spend = parse_spend(resolved.epsilon, resolved.rho)
        parts = [part for question in questions for part in questions_of(question)]
        planner = planner_for(self.context, resolved, spend.gaussian, Spend(spend.share(Fraction(1, len(parts)))))
        plans = tuple(map(planner.plan, parts))
        size, asked = resolved.assumed_group_size, tuple(questions)
        planned = PlannedQueries(plans, spend, confidence, size, repeat=resolved.repeat, questions=asked)
        return self._with_profile(planned)

    def _with_profile(self, planned: PlannedQueries) -> PlannedQueries:
        """Take what the dataset's profile knows instead of searching for it, and predict what is still searched for."""
        profile, spend = self.profile, planned.spend
        if profile is None or len(planned.plans) != 1:
            return planned
        (plan,) = planned.plans
        profiled = use_profile(plan, profile, spend, self.context)
        predicted = predict_bounds(plan, profile, spend, self.context, profiled.bounds)
        return replace(planned, plans=(profiled.plan,), known=profiled.bounds, predicted=predicted)

    def _solve_epsilon(
        self, questions: Sequence[Question], resolved: ResolvedOptions, confidence: float
    ) -> PlannedQueries:
        """Find the least epsilon, up to a thousandth of itself, that brings every column within `max_error`."""
        if resolved.epsilon is not None or resolved.rho is not None:
            raise InvalidParameter("give max_error= or a loss, not both: max_error= solves for epsilon")
        wanted = float(rational(resolved.max_error, "max_error"))  # type: ignore[arg-type]
        planner = planner_for(self.context, resolved, False)
        plans = tuple(planner.plan(part) for question in questions for part in questions_of(question))

        def plan_at(epsilon: Fraction) -> PlannedQueries:
            spend, size = Spend(Pure(epsilon)), resolved.assumed_group_size
            asked = tuple(questions)
            return self._with_profile(PlannedQueries(plans, spend, confidence, size, wanted, resolved.repeat, asked))

        low, high = Fraction(1, 10**6), Fraction(1000)
        likely = plan_at(Fraction(1))
        if assumed := [s for plan in likely.plans for s in assumed_searches(plan) if s.tag not in likely.predicted]:
            raise InvalidParameter(
                f"max_error= cannot be solved: the error depends on {bound_name(assumed[0].tag)}, which is chosen only "
                "when the query is asked; give max_contributions= as well, or epsilon= instead"
            )
        unknown = [column for column in self._columns(likely) if not column.known]
        if unknown:
            raise InvalidParameter(
                f"max_error= cannot be solved: the error of {unknown[0].name} depends on how the values are spread, "
                "which is seen only when the query is asked; give epsilon= instead"
            )
        if self._largest_half_width(plan_at(high)) > wanted:
            raise InvalidParameter(f"no epsilon up to {high} brings every column within {wanted:g}")
        return plan_at(least_epsilon(lambda epsilon: self._largest_half_width(plan_at(epsilon)) <= wanted, low, high))

    def _largest_half_width(self, planned: PlannedQueries) -> float:
        """Return the largest expected half width among all columns."""
        return max((column.half_width for column in self._columns(planned)), default=0.0)

    def _columns(self, planned: PlannedQueries) -> tuple[Expected, ...]:
        """Return the expected error of each column of planned queries."""
        return self._expected_errors(plan_batch(self.context, planned.plans), planned)

    def _expected_errors(
        self, batch: BatchPlan, planned: PlannedQueries, measurements: Sequence[Measurement] | None = None
    ) -> tuple[Expected, ...]:
        """Return the expected error of each column, at default values of bounds that are still to be chosen."""
        parts = batch.answer_measurements(planned.spend, self.context) if measurements is None else measurements
        size, predicted = planned.assumed_group_size, planned.predicted
        columns = batch_errors(self.context, batch, planned.plans, parts, planned.confidence, size, predicted)
        return tuple(column for column in columns if not column.name.startswith(ORDER_COLUMN))

    def _quote(self, planned: PlannedQueries) -> Quote:
        """Quote planned queries; keys that are still to be selected do not affect the cost."""
        batch = plan_batch(self.context, planned.plans)
        measurements = batch.answer_measurements(planned.spend, self.context)
        searches = batch.searches(planned.spend, self.context)
        unit, total = planned.plans[0].unit, planned.total or planned.spend.loss
        request = self._request(unit, measurements, searches, planned)
        quoted: CostQuote = self.kernel.quote(request, self.token)
        if planned.selection is not None:
            planned = replace(planned, plans=tuple(with_sample_keys(plan, self.context) for plan in planned.plans))
            batch = plan_batch(self.context, planned.plans)
            measurements = batch.answer_measurements(planned.spend, self.context)
        columns = tuple(column.if_all_left() for column in self._expected_errors(batch, planned, measurements))
        return Quote(
            loss=total,
            losses=quoted.losses,
            expected=columns,
            bounds=batch.default_bounds() | {tag: found.bound for tag, found in planned.predicted.items()},
            affordable=quoted.affordable,
            free=quoted.free,
            time_class=quoted.time_class,
            milliseconds=quoted.milliseconds,
            notes=(
                *batch_notes(planned.plans),
                *quote_assumptions(batch, columns, planned.predicted, self.context),
                *other_budget_notes(quoted.losses, unit, total),
                *(share_notes(planned.plans[0]) if len(planned.plans) == 1 else ()),
                *self._size_notes(),
                *(() if planned.selection is None else (SELECTION_NOTE,)),
                *(() if quoted.affordable or quoted.free else self._remaining_notes()),
            ),
        )

    def _size_notes(self) -> tuple[str, ...]:
        """Return a note on what opening the dataset was charged, while nothing else was."""
        entries = self.kernel.history(self.name, self.token)
        return (OPENING_NOTE,) if entries and all(entry.account == OPENED_BY for entry in entries) else ()

    def _remaining_notes(self) -> tuple[str, ...]:
        """Return a note on what each budget has left."""
        return tuple(f"the budget of unit {each.cap.unit} ({each.place}) has {each.left} left" for each in self.budget)

    def _request(
        self,
        unit: str,
        measurements: Sequence[Measurement],
        searches: Sequence[BoundSearch],
        planned: PlannedQueries | None = None,
        request_id: str = "",
        repeat: int = 0,
    ) -> Request:
        """Build a request pinned to this session's schema hash."""
        return Request(
            self.name, tuple(measurements), tuple(searches), unit=unit, request_id=request_id,
            repeat=repeat if planned is None else planned.repeat, schema_hash=schema_hash(self.context),
            selection=None if planned is None else planned.selection,
        )  # fmt: skip

    def _answer(self, planned: PlannedQueries, request_id: str) -> list[Answer]:
        """Send all queries as one request, which is one charge, and build an answer for each from the release."""
        batch = plan_batch(self.context, planned.plans)
        measurements = batch.answer_measurements(planned.spend, self.context)
        searches = batch.searches(planned.spend, self.context)
        for position, plan in enumerate(planned.plans):
            own = batch.plan_of(position, plan)
            rehearse(self.context, own if planned.selection is None else with_sample_keys(own, self.context))
        request = self._request(planned.plans[0].unit, measurements, searches, planned, request_id)
        release = self.kernel.answer(request, self.token)
        released = release.parts
        if planned.selection is not None:
            plan = with_selected_keys(planned.plans[0], self.context, release)
            planned, batch = replace(planned, plans=(plan,)), plan_batch(self.context, (plan,))
            released = all_combinations(plan, release.parts)
        chosen = chosen_bounds(batch, release)
        answers = []
        for position, plan in enumerate(planned.plans):
            limits, bounds = chosen[position].limits, {**chosen[position].bounds, **planned.known}
            own_plan = with_bounds(batch.plan_of(position, plan), self.context, limits)
            parts = tuple(released_parts_of(batch, position, released))
            own_plan, bounds = pair_squares(own_plan, parts, bounds)
            columns = measured_columns(own_plan, parts, bounds, planned.confidence)
            answer = build_answer(own_plan, self.context, columns, planned.confidence, [release], bounds)
            notes = other_budget_notes(release.losses, plan.unit, planned.total or planned.spend.loss)
            notes += (*share_notes(plan), *planned.selection_notes())
            draws = QuestionDraws(replace(own_plan, searches=()), (parts,))
            answers.append(replace(answer, notes=(*answer.notes, *notes), draws=draws))
        if planned.max_error is None:
            return answers
        return [planned.with_error_notes(answer, self._expected_errors(batch, planned)) for answer in answers]

    # --- partition selection -------------------------------------------------------------------------------------

    def _plan_with_selection(self, query: str, resolved: ResolvedOptions) -> PlannedQueries:
        """Plan a query whose keys are selected with a part of the loss; the rest is for the answer."""
        if resolved.max_error is not None:
            raise InvalidParameter("max_error= does not go with delta=: give epsilon= or rho=")
        question, spend = self._parse(query, resolved), parse_spend(resolved.epsilon, resolved.rho)
        refuse_grouping_sets(question, "delta=")
        delta = rational(resolved.delta or 0, "delta")
        shares = planner_for(self.context, resolved, spend.gaussian).selection_shares(question)
        selection, rest = key_selection(self.context, shares, spend, delta)
        plan = planner_for(self.context, resolved, rest.gaussian, rest).plan(question, select_keys=True)
        planned = PlannedQueries((plan,), rest, float(resolved.confidence), resolved.assumed_group_size)
        total = Approximate(spend.amount, delta) if isinstance(spend.loss, Pure) else ZCDP(spend.amount, delta)
        return replace(planned, repeat=resolved.repeat, questions=(question,), selection=selection, total=total)


def _public_context(kernel: Kernel, dataset: str, token: str) -> Context:
    """Return what a kernel publishes about a dataset."""
    return Context(kernel.schema(dataset, token), kernel.facts(dataset, token))
