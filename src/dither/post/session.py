"""The analyst's session: the same over a kernel in this process and over a remote one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Unpack

import numpy as np

from dither.errors import BudgetExceeded, Busy, InvalidParameter, NotFound
from dither.loss import ZCDP, Approximate, Loss, Pure, Rational, rational
from dither.plan.context import Context
from dither.plan.sql.scope import Scope
from dither.post.contribution_bound import Bound, bound_of
from dither.post.estimate import typecheck as kinds
from dither.post.estimate.answer import Answer, assemble, elsewhere
from dither.post.estimate.combine import Drawn, combined
from dither.post.estimate.explain import Expected, Explanation, expected, explanation
from dither.post.estimate.measured import estimated_bounds, sources
from dither.post.options import Chosen, Options, level, settled
from dither.post.query import request as asking
from dither.post.query.batch import Whole, joined, split_answers
from dither.post.query.date_literals import dated
from dither.post.query.parser import options_of, read
from dither.post.query.planner import Plan, Planner, first_value, fitted
from dither.post.query.question import Question
from dither.post.query.request import TYPICAL_ROWS
from dither.post.query.spend import Spend, spend
from dither.post.query.split import heavy, light
from dither.privacy.codec import description, digest
from dither.privacy.protocol import AutoBound, Balance, Entry, Kernel, Part, Quote, Request, Statement, UnitLoss
from dither.schema import Dataset


@dataclass(frozen=True)
class Price:
    """What a question would cost and how far off its answer would be; nothing is read and nothing spent.

    `loss` is that to the question's own unit; `losses` what every budget would be charged.
    """

    loss: Loss
    losses: tuple[UnitLoss, ...]
    expected: tuple[Expected, ...]
    bound: Mapping[str, int]
    affordable: bool
    free: bool
    time_class: str
    milliseconds: int
    notes: tuple[str, ...]

    def __getitem__(self, name: str) -> Expected:
        for column in self.expected:
            if column.name == name:
                return column
        raise KeyError(f"no column {name!r}; there are: {', '.join(column.name for column in self.expected)}")


@dataclass(frozen=True)
class Session:
    """Asks one dataset on behalf of one account; `token` is an account's name where the kernel is in this process."""

    kernel: Kernel
    name: str
    token: str
    context: Context = field(repr=False)

    @classmethod
    def over(cls, kernel: Kernel, token: str, dataset: str | None = None) -> Session:
        """A session over any kernel; without a name, its only dataset."""
        known = kernel.datasets(token)
        if dataset is None and len(known) != 1:
            raise InvalidParameter(f"name the dataset: {', '.join(known) or 'there is none'}")
        name = dataset if dataset is not None else known[0]
        if name not in known:
            raise NotFound(f"no dataset {name!r}; there are: {', '.join(known)}")
        return cls(kernel, name, token, Context(kernel.schema(name, token), kernel.facts(name, token)))

    # --- what is public ------------------------------------------------------------------------------------------

    @property
    def dataset(self) -> Dataset:
        """What is public about the dataset."""
        return self.context.dataset

    @property
    def tables(self) -> dict[str, dict[str, Any]]:
        """The tables, their columns and the domains of these."""
        return {
            table.name: {name: column.domain for name, column in table.columns.items()}
            for table in self.dataset.tables.values()
        }

    @property
    def budget(self) -> tuple[Balance, ...]:
        """The budgets that questions are charged to."""
        return self.kernel.budget(self.name, self.token)

    @property
    def history(self) -> tuple[Entry, ...]:
        """Earlier charges that this account may see."""
        return self.kernel.history(self.name, self.token)

    @property
    def statement(self) -> Statement:
        """The facts of the dataset's privacy statement."""
        return self.kernel.statement(self.name, self.token)

    # --- asking --------------------------------------------------------------------------------------------------

    def sql(self, query: str, *, request_id: str = "", draw: int = 0, **options: Unpack[Options]) -> Answer:
        """Asks, pays exactly `epsilon` (or `rho`, or what `within` needs), and gives estimates with intervals."""
        chosen = told([query], options)
        if chosen.delta is not None:
            return self._selected(query, chosen, request_id, draw)
        (answer,) = self._answer(self._asked([query], chosen), request_id, draw)
        return answer

    def quote(self, query: str, *, draw: int = 0, **options: Unpack[Options]) -> Price:
        """Cost and expected error of a question, from public facts; nothing is read and nothing spent."""
        chosen = told([query], options)
        if chosen.delta is not None:
            return self._selection(query, chosen, draw)
        return self._price(self._asked([query], chosen), draw)

    def explain(self, query: str, **options: Unpack[Options]) -> Explanation:
        """How a query is understood: measures, bounds, recipe, sensitivity; free."""
        chosen = replace(told([query], options), epsilon=1, rho=None, within=None)
        return explanation(self.context, self._asked([query], chosen).plans[0])

    def batch(
        self, queries: Sequence[str], *, request_id: str = "", draw: int = 0, **options: Unpack[Options]
    ) -> list[Answer]:
        """Several questions in one charge of the total; counts over one table share their joint cost."""
        return self._answer(self._asked(queries, told(queries, options, "delta")), request_id, draw)

    def quote_batch(self, queries: Sequence[str], *, draw: int = 0, **options: Unpack[Options]) -> Price:
        """What a batch would cost and how far off each of its columns would be."""
        return self._price(self._asked(queries, told(queries, options, "delta")), draw)

    def split(self, query: str, threshold: int, **options: Unpack[Options]) -> tuple[Answer, Answer]:
        """The same question of light units (at most `threshold` rows) and of heavy ones, each bounded."""
        chosen = told([query], options, "delta", "within")
        budget, how = spend(chosen.epsilon, chosen.rho), bound_of(chosen.bound)
        question = self._read(query, chosen)
        plans = (
            Planner(self.context, Bound(rows=threshold), budget.gaussian).plan(light(question, threshold)),
            Planner(self.context, how, budget.gaussian).plan(heavy(question, threshold)),
        )
        one, two = self._answer(_Asked(plans, budget, level(chosen.confidence), chosen.rows), "", 0)
        return one, two

    def remeasure(
        self, answer: Answer, *, epsilon: Rational | None = None, rho: Rational | None = None, request_id: str = ""
    ) -> Answer:
        """Spends more on an answer's question, at the bounds found before, and combines all draws of it.

        Each counts by the inverse of its noise's variance; `answer.loss` then holds what every draw cost.
        """
        if answer.drawn is None or {release.dataset for release in answer.releases} != {self.name}:
            raise InvalidParameter("only an answer that a session of this dataset gave can be measured again")
        self._check_version(answer, self.kernel.schema(self.name, self.token).data_version)
        asked = _Asked((answer.drawn.plan,), spend(epsilon, rho), answer.confidence, None)
        whole = joined(self.context, asked.plans, asked.spend)
        parts = whole.answer_parts(asked.spend, self.context)
        release = self.kernel.answer(self._afresh(answer, parts, request_id), self.token)
        self._check_version(answer, release.data_version)
        drawn = answer.drawn.again(release.parts)
        plan, columns = combined(drawn, answer.bounds, answer.confidence)
        made = assemble(plan, self.context, columns, answer.confidence, [*answer.releases, release], answer.bounds)
        notes = elsewhere(release.losses, plan.unit, asked.spend.loss)
        said = f"{len(drawn.draws)} draws are combined, each by the inverse of its noise's variance"
        kept = [note for note in answer.notes if "draws are combined" not in note]
        return replace(made, drawn=drawn, notes=tuple(dict.fromkeys([*kept, *notes, said])))

    def _check_version(self, answer: Answer, version: str) -> None:
        if {release.data_version for release in answer.releases} != {version}:
            raise InvalidParameter("the data are of another version than the answer; ask the question anew")

    def _afresh(self, answer: Answer, parts: Sequence[Part], request_id: str) -> Request:
        """A request that none of an answer's draws was released for: the same noise twice would count double."""
        known = {release.digest for release in answer.releases}
        unit = answer.drawn.plan.unit if answer.drawn else ""
        made = (self._request(unit, parts, (), request_id, draw) for draw in range(1, len(known) + 2))
        return next(request for request in made if digest(request) not in known)

    # --- inside --------------------------------------------------------------------------------------------------

    def _read(self, query: str, chosen: Chosen) -> Question:
        name, bound = chosen.unit or default_unit(self.dataset), bound_of(chosen.bound)
        question = read(query, self.dataset, name, row_limit=bound.rows, join_limit=chosen.join_rows)
        question = dated(question, self.context)
        kinds.check(question, self.context)
        return question

    def _asked(self, queries: Sequence[str], chosen: Chosen) -> _Asked:
        """Questions with all their options settled."""
        questions, how = [self._read(query, chosen) for query in queries], level(chosen.confidence)
        if chosen.within is not None:
            return self._solved(questions, chosen, how)
        budget = spend(chosen.epsilon, chosen.rho)
        planner = Planner(self.context, bound_of(chosen.bound), budget.gaussian)
        return _Asked(tuple(map(planner.plan, questions)), budget, how, chosen.rows)

    def _solved(self, questions: Sequence[Question], chosen: Chosen, confidence: float) -> _Asked:
        """The least epsilon, up to a thousandth of itself, at which every column is within the width asked for."""
        if chosen.epsilon is not None or chosen.rho is not None:
            raise InvalidParameter("give within= or a loss, not both: within= solves for epsilon")
        wanted = float(rational(chosen.within, "within"))  # type: ignore[arg-type]
        plans = tuple(map(Planner(self.context, bound_of(chosen.bound), False).plan, questions))

        def asked(epsilon: Fraction) -> _Asked:
            return _Asked(plans, Spend(Pure(epsilon)), confidence, chosen.rows, wanted)

        low, high = Fraction(1, 10**6), Fraction(1000)
        if self._widest(asked(high)) > wanted:
            raise InvalidParameter(f"no epsilon up to {high} brings every column within {wanted:g}")
        while high > low * Fraction(1001, 1000):
            middle = (low + high) / 2 if high < 10 * low else rational(f"{(float(low) * float(high)) ** 0.5:.6g}")
            low, high = (low, middle) if self._widest(asked(middle)) <= wanted else (middle, high)
        return asked(rational(f"{float(high):.6g}"))

    def _widest(self, asked: _Asked) -> float:
        whole = joined(self.context, asked.plans, asked.spend)
        return max((column.half_width for column in self._expected(whole, asked)), default=0.0)

    def _expected(self, whole: Whole, asked: _Asked) -> tuple[Expected, ...]:
        """How far off each column would be, at bounds that are guessed where they are still to be found."""
        guesses = whole.guesses()
        parts = asking.filled(whole.answer_parts(asked.spend, self.context), guesses)
        plans = [fitted(whole.plan_of(place, plan), self.context, guesses) for place, plan in enumerate(asked.plans)]
        return tuple(
            column
            for place, plan in enumerate(plans)
            for column in expected(self.context, plan, whole.parts_of(place, parts), asked.confidence, asked.rows)
        )

    def _price(self, asked: _Asked, draw: int, more: Sequence[Part] = (), loss: Loss | None = None) -> Price:
        whole = joined(self.context, asked.plans, asked.spend)
        parts, searches = whole.answer_parts(asked.spend, self.context), whole.searches(asked.spend, self.context)
        request = self._request(asked.plans[0].unit, [*more, *parts], searches, draw=draw)
        quoted: Quote = self.kernel.quote(request, self.token)
        columns = self._expected(whole, asked)
        total, unit = loss or asked.spend.loss, asked.plans[0].unit
        notes = (*asked.plans[0].notes, *assumed(whole, columns), *elsewhere(quoted.losses, unit, total))
        return Price(
            total, quoted.losses, columns, whole.guesses(), quoted.affordable, quoted.free, quoted.time_class,
            quoted.milliseconds, notes,
        )  # fmt: skip

    def _request(
        self, unit: str, parts: Sequence[Part], searches: Sequence[AutoBound], request_id: str = "", draw: int = 0
    ) -> Request:
        """A request that is refused once cells have other names than this session knows."""
        made = asking.request(self.name, unit, parts, searches, request_id, draw)
        return replace(made, described=description(self.context))

    def _answer(self, asked: _Asked, request_id: str, draw: int) -> list[Answer]:
        """Asks for everything at once, bounds that are to be found included: one charge."""
        whole = joined(self.context, asked.plans, asked.spend)
        parts, searches = whole.answer_parts(asked.spend, self.context), whole.searches(asked.spend, self.context)
        request = self._request(asked.plans[0].unit, parts, searches, request_id, draw)
        release = self.kernel.answer(request, self.token)
        found = estimated_bounds(whole, release)
        answers = []
        for place, plan in enumerate(asked.plans):
            bounds = found[place]
            limits = {tag: bound.bound for tag, bound in bounds.items()}
            own = fitted(whole.plan_of(place, plan), self.context, limits)
            parts_of_it = tuple(split_answers(whole, place, release.parts))
            columns = sources(own, parts_of_it, bounds, asked.confidence)
            answer = assemble(own, self.context, columns, asked.confidence, [release], bounds)
            notes = elsewhere(release.losses, plan.unit, asked.spend.loss)
            drawn = Drawn(replace(own, searches=()), (parts_of_it,))
            answers.append(replace(answer, notes=(*answer.notes, *notes), drawn=drawn))
        return [asked.judged(answer, self._expected(whole, asked)) for answer in answers] if asked.within else answers

    # --- keys that the schema does not list --------------------------------------------------------------------------

    def _selecting(self, query: str, chosen: Chosen) -> _Selecting:
        """How keys are selected, for half of the loss: the other half answers."""
        if chosen.within is not None:
            raise InvalidParameter("within= does not go with delta=: give epsilon= or rho=")
        question, budget = self._read(query, chosen), spend(chosen.epsilon, chosen.rho)
        planner = Planner(self.context, bound_of(chosen.bound), budget.gaussian)
        delta, half = rational(chosen.delta or 0, "delta"), Fraction(1, 2)
        part = asking.selection_part(planner.undeclared(question), budget, half, delta)
        return _Selecting(question, planner, part, Spend(budget.share(half)), delta)

    def _selection(self, query: str, chosen: Chosen, draw: int) -> Price:
        """What selecting keys and answering would cost together; how many there will be does not matter to it."""
        how = self._selecting(query, chosen)
        scope = Scope(how.question.relation.domain(self.context))
        listed = {name: (first_value(key.domain(scope), self.context),) for name, key in how.question.keys}
        asked = _Asked((how.planner.plan(how.question, listed),), how.spend, level(chosen.confidence), chosen.rows)
        loss = spend(chosen.epsilon, chosen.rho).loss
        total = Approximate(loss.epsilon, how.delta) if isinstance(loss, Pure) else ZCDP(loss.rho, how.delta)
        return self._price(asked, draw, [how.part], total)

    def _selected(self, query: str, chosen: Chosen, request_id: str, draw: int) -> Answer:
        """Keys that enough units have, then the question over those; refused if not both can be paid."""
        how = self._selecting(query, chosen)
        suffix = f"{request_id}:keys" if request_id else ""
        request = self._request(how.question.unit, [how.part], (), suffix, draw)
        # Where the keys are paid for, the answer is either paid for too, or refused before anything is spent.
        if not (self._selection(query, chosen, draw).affordable or self.kernel.quote(request, self.token).free):
            raise BudgetExceeded("the budget does not cover selecting keys and answering; nothing was spent")
        first = self.kernel.answer(request, self.token)
        keys = first.parts[0].keys or ()
        if not keys:
            raise NotFound(
                "no key had enough units behind it to be named; spend more, or group by something coarser "
                "(half of the loss was spent on looking)"
            )
        listed = {
            name: tuple(dict.fromkeys(key[place] for key in keys)) for place, (name, _) in enumerate(how.question.keys)
        }
        asked = _Asked((how.planner.plan(how.question, listed),), how.spend, level(chosen.confidence), chosen.rows)
        try:
            (answer,) = self._answer(asked, request_id, draw)
        except Busy:
            raise Busy("the keys are selected and paid for; ask again: they are not charged twice") from None
        note = f"{len(keys)} keys were selected privately, with delta {how.delta}; rarer ones are left out"
        return replace(answer, releases=(first, *answer.releases), notes=(*answer.notes, note))


@dataclass(frozen=True)
class _Asked:
    """Questions with all their options settled; `within` is the width for which the loss was solved."""

    plans: tuple[Plan, ...]
    spend: Spend
    confidence: float
    rows: float | None
    within: float | None = None

    def judged(self, answer: Answer, columns: Sequence[Expected]) -> Answer:
        """An answer with a note where it is wider than was asked for, and on what the loss was solved."""
        shown = [column.estimate for column in answer.columns if not column.key]
        with np.errstate(invalid="ignore"):
            widths = [np.max(np.nan_to_num(e.high - e.low, posinf=np.inf), initial=0.0) / 2 for e in shown]
        sizes = sorted({round(column.rows) for column in columns if column.rows is not None})
        notes = [f"within= was solved as if each group had {size:,} rows" for size in sizes]
        if answer.bounds:
            notes.append(f"within= was solved as if one unit had {TYPICAL_ROWS} rows, before bounds were found")
        if self.within is not None and max(widths, default=0.0) > self.within:
            notes.append(f"some intervals are wider than {self.within:g}: the data were not as assumed")
        return replace(answer, notes=(*answer.notes, *notes))


@dataclass(frozen=True)
class _Selecting:
    """A question whose keys are selected first."""

    question: Question
    planner: Planner
    part: Part
    spend: Spend
    delta: Fraction


def told(queries: Sequence[str], options: Options, *unwelcome: str) -> Chosen:
    """Options as given; those in the text of a single question count like arguments."""
    if not queries:
        raise InvalidParameter("a batch needs at least one query")
    if isinstance(queries, str) or not all(isinstance(query, str) for query in queries):
        raise InvalidParameter("a question is a text, such as 'SELECT COUNT(*) FROM people'; a batch is a list of them")
    written = [options_of(query)[1] for query in queries]
    if len(queries) > 1 and any(written):
        raise InvalidParameter("the questions of a batch share one loss: give its options as arguments")
    return settled(options, *unwelcome).told(written[0], *unwelcome)


def assumed(whole: Whole, columns: Sequence[Expected]) -> tuple[str, ...]:
    """What a quote rests on where the data decide."""
    sizes = sorted({round(column.rows) for column in columns if column.rows is not None})
    return (
        *(
            f"the bound on {tag} is found when asked; shown as if it were {bound}"
            for tag, bound in whole.guesses().items()
        ),
        *(f"averages and ratios are shown as if each group had {size:,} rows" for size in sizes),
    )


def default_unit(dataset: Dataset) -> str:
    """The unit of the first budget: what questions are answered under unless they say otherwise."""
    if not dataset.budgets:
        raise InvalidParameter(f"the dataset {dataset.name!r} has no budget; the curator must declare one")
    return dataset.budgets[0].unit
