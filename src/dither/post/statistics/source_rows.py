"""The rows that a statistic reads, with the settings it is asked with: those of a table, or of a query."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypedDict

from dither.errors import InvalidParameter, NotFound
from dither.loss import Rational
from dither.plan.context import Context
from dither.plan.expressions.core import Expr
from dither.plan.sql.scope import Scope
from dither.post.contribution_bound import ContributionBound, parse_contribution_bound
from dither.post.estimate import typecheck
from dither.post.options import read_request_id, resolve_options
from dither.post.query.date_literals import resolve_date_literals
from dither.post.query.parser import parse_query
from dither.post.query.planner import Planner
from dither.post.query.query_plan import QueryPlan, at_largest_bounds
from dither.post.query.question import Question
from dither.post.query.spend import Spend, parse_spend
from dither.privacy.codec import schema_hash
from dither.privacy.protocol import BoundSearch, Kernel, Measurement, Request
from dither.schema import Dataset, Domain


class Asker(Protocol):
    """The parts of a session that a statistic needs: a kernel, a dataset, an account, and the public facts."""

    @property
    def kernel(self) -> Kernel:
        """The kernel that answers."""

    @property
    def name(self) -> str:
        """The name of the dataset."""

    @property
    def token(self) -> str:
        """The account's token."""

    @property
    def context(self) -> Context:
        """The dataset's public facts."""


class StatisticOptions(TypedDict, total=False):
    """The options of every statistic; they mean what they mean for a query (`dither.post.options`)."""

    epsilon: Rational | None
    rho: Rational | None
    max_contributions: object
    confidence: Rational
    unit: str | None
    max_rows_per_key: int | None
    repeat: int
    request_id: str


@dataclass(frozen=True)
class Settings:
    """The session, the unit, the loss, the contribution bound and the confidence that a statistic is asked with."""

    asker: Asker
    unit: str
    spend: Spend
    bound: ContributionBound
    confidence: float
    join_limit: int | None
    repeat: int
    request_id: str

    @property
    def context(self) -> Context:
        """The dataset's public facts."""
        return self.asker.context

    @property
    def planner(self) -> Planner:
        """The planner of questions with these settings."""
        return Planner(self.context, self.bound, self.spend.gaussian)

    def request(self, measurements: Iterable[Measurement], searches: Sequence[BoundSearch]) -> Request:
        """Build a request, pinned to the description that the session knows."""
        return Request(
            self.asker.name,
            tuple(measurements),
            tuple(searches),
            unit=self.unit,
            request_id=self.request_id,
            repeat=self.repeat,
            schema_hash=schema_hash(self.context),
        )


def read_settings(asker: Asker, options: StatisticOptions) -> Settings:
    """Check the options of a statistic and fill in defaults."""
    given = {name: value for name, value in options.items() if name != "request_id"}
    resolved, dataset = resolve_options(given, "statistic"), asker.context.dataset
    unit = resolved.unit or default_unit(dataset)
    if unit not in dataset.units:
        raise NotFound(f"no unit {unit!r}; there are: {', '.join(sorted(dataset.units))}")
    return Settings(
        asker=asker,
        unit=unit,
        spend=parse_spend(resolved.epsilon, resolved.rho),
        bound=parse_contribution_bound(resolved.max_contributions),
        confidence=float(resolved.confidence),
        join_limit=resolved.max_rows_per_key,
        repeat=resolved.repeat,
        request_id=read_request_id(options.get("request_id", "")),
    )


def default_unit(dataset: Dataset) -> str:
    """Return the unit of the first budget, under which queries are answered unless they name another."""
    if not dataset.budgets:
        raise InvalidParameter(f"the dataset {dataset.name!r} has no budget; the curator must declare one")
    return dataset.budgets[0].unit


@dataclass(frozen=True)
class SourceRows:
    """The rows that a statistic reads: those of a table, or of a SELECT ... FROM ... WHERE without aggregates."""

    settings: Settings
    source: str

    @property
    def context(self) -> Context:
        """The dataset's public facts."""
        return self.settings.context

    def query(self, values: Sequence[str], by: Sequence[str] = (), where: str = "") -> str:
        """Write the SQL query of aggregates over these rows, for each group of the keys."""
        rows = quote_name(self.source) if is_table(self.context.dataset, self.source) else f"({self.source}) AS rows_"
        keys = [self.column(key) for key in by]
        selected = ", ".join([*(f"{key} AS {quote_name(name)}" for key, name in zip(keys, by, strict=True)), *values])
        condition, grouping = (["WHERE", where] if where else []), (["GROUP BY", ", ".join(keys)] if keys else [])
        return " ".join(["SELECT", selected, "FROM", rows, *condition, *grouping])

    def column(self, text: str) -> str:
        """Write a column's name with quotes; an expression such as FLOOR(age / 10) stays as it is."""
        return quote_name(text) if text.isidentifier() else text

    def question(self, values: Sequence[str], by: Sequence[str] = (), where: str = "") -> Question:
        """Parse and type-check the query of aggregates over these rows."""
        return self.parse(self.query(values, by, where))

    def parse(self, text: str) -> Question:
        """Parse and type-check a query with the settings of the statistic."""
        settings, dataset = self.settings, self.context.dataset
        limit, join_limit = settings.bound.max_rows, settings.join_limit
        parsed = parse_query(text, dataset, settings.unit, row_limit=limit, join_limit=join_limit)
        question = resolve_date_literals(parsed, self.context)
        typecheck.check_types(question, self.context)
        return question

    def plan(self, values: Sequence[str], by: Sequence[str] = (), where: str = "") -> QueryPlan:
        """Plan the measures of aggregates over these rows, with private bounds for units with many rows."""
        return self.settings.planner.plan(self.question(values, by, where))

    def expression(self, text: str) -> Expr:
        """Return the plan node of a column or of an SQL expression over these rows."""
        (aggregate,) = self.question([f"COUNT({self.column(text)})"]).aggregates
        if not aggregate.values:
            raise InvalidParameter(
                f"{text[:60]!r} is the same in every row; give a column or an expression over columns"
            )
        return aggregate.values[0]

    def domain(self, text: str) -> Domain:
        """Return the declared domain of a column, or that which an expression has by its columns."""
        return self.expression(text).domain(self.scope)

    @property
    def scope(self) -> Scope:
        """The columns of these rows, with their domains at the largest bounds."""
        return Scope(at_largest_bounds(self.question(["COUNT(*)"]).relation).domain(self.context))


def read_rows(asker: Asker, source: Any, options: StatisticOptions) -> SourceRows:
    """Return the rows of a source, checked with the options of the statistic."""
    settings = read_settings(asker, options)
    if not isinstance(source, str) or not source.strip():
        raise InvalidParameter("the first argument must be the name of a table, or a query such as SELECT a FROM t")
    if not is_table(asker.context.dataset, source) and not source.lstrip("( \n\t").lower().startswith(
        ("select", "with")
    ):
        known = ", ".join(asker.context.dataset.tables)
        raise NotFound(f"no table {source[:60]!r}; there are: {known}; a query must begin with SELECT")
    return SourceRows(settings, source.strip().rstrip(";"))


def plan_query(asker: Asker, query: str, options: StatisticOptions) -> tuple[SourceRows, QueryPlan]:
    """Plan a whole query, with its own aggregates and keys."""
    rows = read_rows(asker, query, options)
    return rows, rows.settings.planner.plan(rows.parse(query))


def is_table(dataset: Dataset, source: str) -> bool:
    """Return True if a source is the name of a table."""
    return source.strip().lower() in {name.lower() for name in dataset.tables}


def quote_name(name: str) -> str:
    """Write a name as an SQL identifier."""
    return '"' + name.strip().replace('"', '""') + '"'
