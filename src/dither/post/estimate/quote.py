"""Quotes: the cost and the expected error of queries, computed without reading or spending anything."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from dither.loss import Loss
from dither.plan.context import Context
from dither.plan.traversal import unfilled_limits
from dither.post.display import html_table, loss_text, rough_number
from dither.post.estimate.contribution import EstimatedBound
from dither.post.estimate.explain import Expected, expected_errors, rows_text
from dither.post.estimate.prediction import drops_rows
from dither.post.estimate.profile import Profile
from dither.post.query.batch import BatchPlan
from dither.post.query.query_plan import ContributionSearch, QueryPlan, bound_name, bound_text, with_bounds
from dither.post.query.request import default_bound, with_known_bounds
from dither.post.query.typical_rows import size_error, unit_error
from dither.privacy.protocol import Measurement, UnitLoss

PREDICTED_NOTE = "the expected errors follow from the dataset's profile; a rough one may put them off by a factor of 3"
SIZE_NOTE = ", from the noisy size of the table"
FEWER_LEFT = "; WHERE or a join may leave fewer, and errors are then larger"
ROUGH_NOTE = "; a small table's is rough"
EVERY_ROW_NOTE = "they are expected as if every row met the conditions and had a match; with fewer rows, sums err less"


@dataclass(frozen=True, repr=False)
class Quote:
    """The cost and the expected error of a query, computed without reading or spending anything.

    `loss` is that of the query's own unit; `losses` holds what every budget would be charged.
    """

    loss: Loss
    losses: tuple[UnitLoss, ...]
    expected: tuple[Expected, ...]
    bounds: Mapping[str, int]
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

    @property
    def cost(self) -> str:
        """The cost in words, and whether the budget covers it."""
        if self.free:
            return f"cost: nothing more, because this was answered before for {loss_text([self.loss])}"
        asked = loss_text([self.loss])
        others = [each.loss for each in self.losses if type(each.loss) is not type(self.loss)]
        charged = " or ".join(dict.fromkeys(loss_text([loss]) for loss in others))
        paid = f", charged to the budget as {charged}" if charged else ""
        return f"cost: {asked}{paid}; {'affordable' if self.affordable else 'exceeds the budget'}"

    def __repr__(self) -> str:
        return "\n".join([*map(repr, self.expected), self.cost, *(f"note: {note}" for note in self.notes)])

    def _repr_html_(self) -> str:
        rows = [(column.name, column.width) for column in self.expected]
        return html_table(("column", "expected ±"), rows, below=[self.cost, *self.notes])


def batch_notes(plans: Sequence[QueryPlan]) -> tuple[str, ...]:
    """Return the notes on planned queries; one that does not concern all of them names its queries."""
    places: dict[str, list[str]] = {}
    for number, plan in enumerate(plans, 1):
        for note in dict.fromkeys(plan.notes):
            places.setdefault(note, []).append(str(number))
    return tuple(
        note if len(numbers) == len(plans) else f"query {', '.join(numbers)}: {note}"
        for note, numbers in places.items()
    )


def assumed_searches(plan: QueryPlan) -> list[ContributionSearch]:
    """Return the searches whose bound may come out larger than quotes assume."""
    contributions = [search for search in plan.searches if isinstance(search, ContributionSearch)]
    return [search for search in contributions if default_bound(search) < search.candidates[-1]]


def ranged_searches(plan: QueryPlan) -> list[ContributionSearch]:
    """Return the searches whose bound may come out smaller than quotes assume: the whole declared range."""
    return [search for search in plan.searches if isinstance(search, ContributionSearch) and search.is_range]


def quote_assumptions(
    batch: BatchPlan,
    columns: Sequence[Expected],
    predicted: Mapping[str, EstimatedBound] = MappingProxyType({}),
    context: Context | None = None,
) -> tuple[str, ...]:
    """Return notes on what a quote assumes about the data; `predicted` has the bounds that a profile shows."""
    fewer = FEWER_LEFT if any(column.filtered for column in columns) else ""
    return (
        *bound_assumptions(batch, predicted),
        *(
            f"the errors of averages and ratios assume about {rows_text(size, counted)} in each group"
            f"{_size_source(counted)} unless assumed_group_size= says otherwise{_size_error(counted, batch, context)}"
            f"{fewer}"
            for size, counted in _assumed_sizes(columns)
        ),
    )


def bound_assumptions(batch: BatchPlan, predicted: Mapping[str, EstimatedBound]) -> tuple[str, ...]:
    """Return notes on the bounds that a quote assumes."""
    bounds = (
        f"{bound_name(search.tag)} is chosen privately when asked; this quote assumes "
        f"{bound_text(default_bound(search), search)}"
        for group in batch.groups
        for search in assumed_searches(group.plan)
        if search.tag not in predicted
    )
    return (
        *dict.fromkeys(bounds),
        *([PREDICTED_NOTE] if predicted else []),
        *(
            [EVERY_ROW_NOTE]
            if predicted and any(drops_rows(group.plan.question.relation) for group in batch.groups)
            else []
        ),
    )


def _assumed_sizes(columns: Sequence[Expected]) -> list[tuple[int, str]]:
    """Return the sizes of groups that errors assume, each with what it counts: rows, or units with one row each."""
    return sorted({(round(column.rows), column.counted) for column in columns if column.rows is not None})


def _size_source(counted: str) -> str:
    """Say where a size is from."""
    return SIZE_NOTE if counted == "row" else f", from the noisy number of {counted}s"


def _size_error(counted: str, batch: BatchPlan | None, context: Context | None) -> str:
    """Say how far a noisy number of rows or units may be off, if its noise is known."""
    if batch is None or context is None or Profile.of(context.dataset) is not None:
        return ROUGH_NOTE
    if counted != "row":
        return f"; that number may be off by about {rough_number(unit_error(context))} {counted}s"
    plans = [group.plan for group in batch.groups]
    error = max((size_error(context, [plan.question.relation], plan.unit) for plan in plans), default=0.0)
    return f"; that size may be off by about {rough_number(error)} rows"


def size_notes(
    columns: Sequence[Expected], batch: BatchPlan | None = None, context: Context | None = None
) -> tuple[str, ...]:
    """Return notes on the numbers of rows that the expected errors of a statistic assume."""
    return tuple(
        f"errors that say so assume about {rows_text(size, counted)}{_size_source(counted)}"
        f"{_size_error(counted, batch, context)}"
        for size, counted in _assumed_sizes(columns)
    )


def batch_errors(
    context: Context,
    batch: BatchPlan,
    plans: Sequence[QueryPlan],
    measurements: Sequence[Measurement],
    confidence: float,
    group_size: float | None = None,
    predicted: Mapping[str, EstimatedBound] = MappingProxyType({}),
) -> tuple[Expected, ...]:
    """Return the expected error of each column, at default values of bounds that are still to be chosen.

    For bounds that are `predicted`, errors include what clipping removes.
    """
    defaults = batch.default_bounds() | {tag: found.bound for tag, found in predicted.items()}
    assumed = {search.tag for group in batch.groups for search in assumed_searches(group.plan)} - predicted.keys()
    ranges = {search.tag for group in batch.groups for search in ranged_searches(group.plan)} - predicted.keys()
    known = with_known_bounds(measurements, defaults)
    return tuple(
        column
        for position, plan in enumerate(plans)
        for column in expected_errors(
            context,
            with_bounds(batch.plan_of(position, plan), context, defaults),
            batch.measurements_of(position, known),
            confidence,
            group_size,
            _parts_with(assumed, batch.measurements_of(position, measurements)),
            predicted,
            _parts_with(ranges, batch.measurements_of(position, measurements)),
        )
    )


def _parts_with(tags: Collection[str], parts: Sequence[Measurement]) -> list[int]:
    """Return the places of the parts whose bounds have one of some tags."""
    bounds = [{limit.tag for limit in unfilled_limits(part.measure)} for part in parts]
    return [place for place, own in enumerate(bounds) if not own.isdisjoint(tags)]
