"""The analyst's session: the same over a kernel in this process and over a remote one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from importlib import import_module
from pathlib import Path
from typing import Any

from dither.access.context import Context
from dither.access.relation import fill
from dither.errors import InvalidParameter, NotFound
from dither.loss import Loss, Pure, Rational, rational
from dither.post import asking, kinds
from dither.post.answers import Answer, assemble
from dither.post.asking import Spend, spend
from dither.post.batches import Whole, joined, split_answers
from dither.post.bounds import Bound, bound_of
from dither.post.explaining import Expected, Explanation, expected, explanation
from dither.post.plan import Plan, Planner
from dither.post.questions import Question
from dither.post.sql import read
from dither.post.subpopulations import heavy, light
from dither.schema import Dataset
from dither.wire import Balance, Entry, Kernel, Quote, Statement

CONFIDENCE = 0.95
MOST_CONFIDENT = 0.9999


@dataclass(frozen=True)
class Price:
    """What a question would cost and how far off its answer would be; nothing is read and nothing spent."""

    loss: Loss
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

    def sql(
        self,
        query: str,
        *,
        epsilon: Rational | None = None,
        rho: Rational | None = None,
        within: float | None = None,
        bound: object = None,
        confidence: float = CONFIDENCE,
        unit: str | None = None,
        join_rows: int | None = None,
        delta: Rational | None = None,
        request_id: str = "",
        draw: int = 0,
    ) -> Answer:
        """Asks, pays exactly `epsilon` (or `rho`), and gives estimates with intervals.

        With `delta`, keys that the schema does not list are first selected privately, for half of the loss.
        """
        if delta is not None:
            return self._selected(
                query, spend(epsilon, rho), rational(delta, "delta"), bound, _level(confidence), unit, draw
            )
        asked = self._asked(query, epsilon, rho, within, bound, confidence, unit, join_rows)
        return self._answer([asked.plan], asked.spend, asked.confidence, request_id, draw)[0]

    def quote(
        self,
        query: str,
        *,
        epsilon: Rational | None = None,
        rho: Rational | None = None,
        within: float | None = None,
        bound: object = None,
        confidence: float = CONFIDENCE,
        unit: str | None = None,
        join_rows: int | None = None,
        rows: float | None = None,
    ) -> Price:
        """Cost and expected error of a question, from public facts; `rows` is a guess at the size of a group."""
        asked = self._asked(query, epsilon, rho, within, bound, confidence, unit, join_rows)
        return self._price(asked, rows)

    def explain(
        self, query: str, *, bound: object = None, unit: str | None = None, join_rows: int | None = None
    ) -> Explanation:
        """How a query is understood: measures, bounds, recipe, sensitivity; free."""
        asked = self._asked(query, 1, None, None, bound, CONFIDENCE, unit, join_rows)
        return explanation(self.context, asked.plan)

    def batch(
        self,
        queries: Sequence[str],
        *,
        epsilon: Rational | None = None,
        rho: Rational | None = None,
        bound: object = None,
        confidence: float = CONFIDENCE,
        unit: str | None = None,
        request_id: str = "",
        draw: int = 0,
    ) -> list[Answer]:
        """Several questions in one charge of the total; counts over one table share their joint cost."""
        budget, plans = self._batch(queries, epsilon, rho, bound, unit)
        return self._answer(plans, budget, _level(confidence), request_id, draw)

    def quote_batch(
        self,
        queries: Sequence[str],
        *,
        epsilon: Rational | None = None,
        rho: Rational | None = None,
        bound: object = None,
        confidence: float = CONFIDENCE,
        unit: str | None = None,
        rows: float | None = None,
    ) -> Price:
        """What a batch would cost and how far off each of its columns would be."""
        budget, plans = self._batch(queries, epsilon, rho, bound, unit)
        whole = joined(self.context, plans, budget)
        parts = asking.filled(whole.answer_parts(budget, self.context), whole.guesses())
        columns = tuple(
            column
            for place, plan in enumerate(plans)
            for column in expected(self.context, plan, whole.parts_of(place, parts), _level(confidence), rows)
        )
        return self._priced(whole, plans[0].unit, budget, columns, plans[0].notes)

    def split(
        self,
        query: str,
        threshold: int,
        *,
        epsilon: Rational | None = None,
        rho: Rational | None = None,
        bound: object = None,
        confidence: float = CONFIDENCE,
        unit: str | None = None,
    ) -> tuple[Answer, Answer]:
        """The same question of light units (at most `threshold` rows) and of heavy ones, each bounded."""
        budget, how = spend(epsilon, rho), bound_of(bound)
        question = self._read(query, unit, how, None)
        plans = [
            Planner(self.context, Bound(rows=threshold), budget.gaussian).plan(light(question, threshold)),
            Planner(self.context, how, budget.gaussian).plan(heavy(question, threshold)),
        ]
        one, two = self._answer(plans, budget, _level(confidence), "", 0)
        return one, two

    # --- inside --------------------------------------------------------------------------------------------------

    def _read(self, query: str, unit: str | None, bound: Bound, join_rows: int | None) -> Question:
        name = unit or default_unit(self.dataset)
        question = read(query, self.dataset, name, row_limit=bound.rows, join_limit=join_rows)
        kinds.check(question, self.context)
        return question

    def _selected(
        self,
        query: str,
        budget: Spend,
        delta: Fraction,
        bound: object,
        confidence: float,
        unit: str | None,
        draw: int,
    ) -> Answer:
        """Keys that enough units have, then the question over those."""
        how, half = bound_of(bound), Fraction(1, 2)
        question = self._read(query, unit, how, None)
        planner = Planner(self.context, how, budget.gaussian)
        part = asking.selection_part(planner.undeclared(question), budget, half, delta)
        first = self.kernel.answer(asking.request(self.name, question.unit, [part], draw=draw), self.token)
        keys = first.parts[0].keys or ()
        listed = {
            name: tuple(dict.fromkeys(key[place] for key in keys)) for place, (name, _) in enumerate(question.keys)
        }
        plan = planner.plan(question, listed) if keys else None
        if plan is None:
            raise NotFound("no key had enough units behind it to be named; spend more, or group by something coarser")
        (answer,) = self._answer([plan], Spend(budget.share(half)), confidence, "", draw)
        note = f"{len(keys)} keys were selected privately, with delta {delta}; rarer ones are left out"
        return replace(answer, releases=(first, *answer.releases), notes=(*answer.notes, note))

    def _asked(
        self,
        query: str,
        epsilon: Rational | None,
        rho: Rational | None,
        within: float | None,
        bound: object,
        confidence: float,
        unit: str | None,
        join_rows: int | None,
    ) -> _Asked:
        question = self._read(query, unit, bound_of(bound), join_rows)
        options = dict(question.options)
        given = {"epsilon": epsilon, "rho": rho, "within": within}
        chosen = {name: value if value is not None else options.get(name) for name, value in given.items()}
        how = bound_of(_bound_option(options) if bound is None else bound)
        level = _level(options.get("confidence", confidence))
        if chosen["within"] is not None:
            return self._solved(question, how, level, chosen)
        budget = spend(chosen["epsilon"], chosen["rho"])
        return _Asked(Planner(self.context, how, budget.gaussian).plan(question), budget, level)

    def _solved(self, question: Question, bound: Bound, confidence: float, chosen: dict[str, Any]) -> _Asked:
        """The least epsilon, up to a thousandth of itself, at which every column is within the width asked for."""
        if chosen["epsilon"] is not None or chosen["rho"] is not None:
            raise InvalidParameter("give within= or a loss, not both: within= solves for epsilon")
        wanted = float(rational(chosen["within"], "within"))
        plan = Planner(self.context, bound, False).plan(question)
        low, high = Fraction(1, 10**6), Fraction(1000)
        if self._widest(plan, high, confidence) > wanted:
            raise InvalidParameter(f"no epsilon up to {high} brings every column within {wanted}")
        while high > low * Fraction(1001, 1000):
            middle = (low + high) / 2 if high < 10 * low else rational(f"{(float(low) * float(high)) ** 0.5:.6g}")
            low, high = (low, middle) if self._widest(plan, middle, confidence) <= wanted else (middle, high)
        return _Asked(plan, Spend(Pure(rational(f"{float(high):.6g}"))), confidence)

    def _widest(self, plan: Plan, epsilon: Fraction, confidence: float) -> float:
        budget = Spend(Pure(epsilon))
        guesses = {search.tag: asking.guess(search) for search in plan.searches}
        parts = asking.filled(asking.answer_parts(plan, budget, self.context), guesses)
        columns = expected(self.context, plan, parts, confidence, None)
        if any(column.needs_rows for column in columns):
            raise InvalidParameter(
                "within= needs columns whose noise is known in advance (COUNT, SUM and sums of them); "
                "for averages and ratios, give epsilon= or quote(..., rows=...)"
            )
        return max((column.half_width for column in columns), default=0.0)

    def _price(self, asked: _Asked, rows: float | None) -> Price:
        whole = joined(self.context, [asked.plan], asked.spend)
        parts = asking.filled(whole.answer_parts(asked.spend, self.context), whole.guesses())
        columns = expected(self.context, asked.plan, parts, asked.confidence, rows)
        return self._priced(whole, asked.plan.unit, asked.spend, columns, asked.plan.notes)

    def _priced(
        self, whole: Whole, unit: str, budget: Spend, columns: tuple[Expected, ...], notes: tuple[str, ...]
    ) -> Price:
        parts, searches = whole.answer_parts(budget, self.context), whole.searches(budget, self.context)
        quoted: Quote = self.kernel.quote(asking.request(self.name, unit, parts, searches), self.token)
        found = whole.guesses()
        unsure = tuple(
            f"the bound on {tag} is found when asked; shown as if it were {value}" for tag, value in found.items()
        )
        return Price(
            budget.loss, columns, found, quoted.affordable, quoted.free, quoted.time_class, quoted.milliseconds,
            (*notes, *unsure),
        )  # fmt: skip

    def _batch(
        self, queries: Sequence[str], epsilon: Rational | None, rho: Rational | None, bound: object, unit: str | None
    ) -> tuple[Spend, list[Plan]]:
        if not queries:
            raise InvalidParameter("a batch needs at least one query")
        budget, how = spend(epsilon, rho), bound_of(bound)
        planner = Planner(self.context, how, budget.gaussian)
        return budget, [planner.plan(self._read(query, unit, how, None)) for query in queries]

    def _answer(
        self, plans: Sequence[Plan], budget: Spend, confidence: float, request_id: str, draw: int
    ) -> list[Answer]:
        """Asks for everything at once, bounds that are to be found included: one charge."""
        whole = joined(self.context, plans, budget)
        parts, searches = whole.answer_parts(budget, self.context), whole.searches(budget, self.context)
        request = asking.request(self.name, plans[0].unit, parts, searches, request_id, draw)
        release = self.kernel.answer(request, self.token)
        found = whole.found(release)
        answers = []
        for place, plan in enumerate(plans):
            own, bounds = whole.plan_of(place, plan), found[place]
            columns = asking.sources(own, split_answers(whole, place, release.parts), bounds, confidence)
            limits = {tag: bound.bound for tag, bound in bounds.items()}
            answers.append(assemble(_filled(own, limits), self.context, columns, confidence, [release], bounds))
        return answers


@dataclass(frozen=True)
class _Asked:
    """A question with all its options settled."""

    plan: Plan
    spend: Spend
    confidence: float


def _filled(plan: Plan, limits: Mapping[str, int]) -> Plan:
    return fill(plan, limits) if limits else plan


def _level(confidence: Rational) -> float:
    level = float(rational(confidence, "confidence"))
    if not 0 < level <= MOST_CONFIDENT:
        raise InvalidParameter(f"confidence must lie between 0 and {MOST_CONFIDENT}, such as 0.95, got {level}")
    return level


def _bound_option(options: Mapping[str, str]) -> object:
    if "groups" not in options:
        return options.get("bound")
    named = {"groups": options["groups"], "rows": options.get("rows_per_group", "1")}
    for name, value in named.items():
        if not value.isdigit():
            raise InvalidParameter(f"OPTIONS({name} = ...) takes a whole number, got {value[:40]!r}")
    return {name: int(value) for name, value in named.items()}


def default_unit(dataset: Dataset) -> str:
    """The unit of the first budget: what questions are answered under unless they say otherwise."""
    if not dataset.budgets:
        raise InvalidParameter(f"the dataset {dataset.name!r} has no budget; the curator must declare one")
    return dataset.budgets[0].unit


def connect(
    target: str | Path,
    *,
    account: str | None = None,
    token: str | None = None,
    dataset: str | None = None,
    **options: Any,
) -> Session:
    """A session: of a description's path with `account=`, or of a gateway's address with `token=`."""
    if str(target).startswith(("http://", "https://")):
        if token is None:
            raise InvalidParameter("a remote session needs token=; the curator hands it out")
        client = import_module("dither.serve.client")
        return Session.over(client.connect(str(target), token, **options), token, dataset)
    local = import_module("dither.privacy.kernel")
    who = account if account is not None else "analyst"
    return Session.over(local.open_kernel(target, **options), who, dataset)
