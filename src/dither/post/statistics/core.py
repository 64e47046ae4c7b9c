"""A statistic is one request and one charge: the parts it measures, and the function that builds its result.

    @statistic                                          in `interface.py`, the methods that Session inherits
    def medians(self, source, column, **options) -> Statistic[Medians]:
        rows = read_rows(self, source, options)   # a table's name, or a SELECT without aggregates; `source_rows.py`
        part = Part(rows.plan(["COUNT(*)"], by=[column]))
        return Statistic(rows.settings, (part,), build) # build(Measurements) -> Medians, a subclass of Result

The method is then called in two ways, with the same arguments:

    session.medians("people", "age", epsilon=1)         # asks: one charge of epsilon 1
    session.medians.quote("people", "age", epsilon=1)   # quotes: free, reads nothing

`rows.plan` is the planner of SQL queries: bounds of units with many rows are chosen privately in the same charge, and
`MeasuredPart.columns` allows for what they clip. A part may have other measures (`replace(plan, measures=...)`), and
another mechanism than additive noise (`Part(plan, mechanism="top_k", options=(("count", 3),))`). Parts share the loss
in proportion to their weights. Before anything is charged, `build` runs on made-up measurements at both ends of the
bounds, so that no result can fail after the charge.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import product as combinations
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

import numpy as np

from dither.errors import DitherError, InvalidParameter, Unsupported
from dither.loss import Loss
from dither.post.estimate.answer import Answer, build_answer
from dither.post.estimate.answer_rows import display_value, key_domains
from dither.post.estimate.combine import QuestionDraws
from dither.post.estimate.contribution import EstimatedBound
from dither.post.estimate.explain import Expected
from dither.post.estimate.intervals import NoisyColumn
from dither.post.estimate.losses import other_budget_notes
from dither.post.estimate.measured import ChosenBounds, chosen_bounds, measured_columns
from dither.post.estimate.prediction import predict_bounds
from dither.post.estimate.profile import Profile
from dither.post.estimate.quote import Quote, assumed_searches, batch_errors, batch_notes, bound_assumptions, size_notes
from dither.post.estimate.rehearsal import REHEARSALS, ends_of_bounds, made_up_release
from dither.post.estimate.squares import pair_squares
from dither.post.noise import Floats, ScaledNoise, interval_half_width, noise_of
from dither.post.query.batch import BatchPlan, QueryGroup
from dither.post.query.query_plan import CellRef, QueryPlan, fill_chosen, with_bounds, with_tags
from dither.post.query.request import mechanism_of, search_share, with_known_bounds
from dither.post.query.spend import Spend
from dither.post.statistics.arguments import read_arguments
from dither.post.statistics.source_rows import Asker, Settings
from dither.privacy.protocol import Calibrate, Measurement, Release, ReleasedMeasurement, Request

CHOSEN_LATER = "a contribution bound that is chosen when it is asked; give one, such as max_contributions=20"
MechanismOptions = tuple[tuple[str, int | Fraction | tuple[Fraction, ...]], ...]
P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound=Asker)


@dataclass(frozen=True)
class Part:
    """Measures of one plan, its weight in the loss, and the mechanism of its measures.

    Without a `mechanism`, each measure gets the additive noise of the least variance that the loss allows. `options`
    are those of `dither.privacy.mechanisms.calibrate`.
    """

    plan: QueryPlan
    weight: Fraction = Fraction(1)
    mechanism: str = ""
    options: MechanismOptions = ()


@dataclass(frozen=True)
class MeasuredPart:
    """The release of a part: its plan at the chosen bounds, its noisy integers, and the bounds."""

    plan: QueryPlan
    released: tuple[ReleasedMeasurement, ...]
    bounds: dict[str, EstimatedBound]
    limits: dict[str, int]

    def values(self, measure: int = 0) -> Floats:
        """Return the noisy values of a measure, one row for each group and one column for each of its sums."""
        part = self.released[measure]
        return np.asarray(np.array(part.values, float).reshape(-1, len(part.steps)) * np.array(part.steps, float))

    def noise(self, measure: int = 0, value: int = 0) -> ScaledNoise:
        """Return the distribution of the noise in each cell of one sum of a measure; cells are independent."""
        part = self.released[measure]
        return noise_of(part.mechanism, part.steps[value])

    def variances(self, measure: int = 0) -> Floats:
        """Return the variances of the noise of a measure's sums; the noise has no covariance."""
        return np.array([self.noise(measure, value).variance for value in range(len(self.released[measure].steps))])

    def columns(self, confidence: float) -> list[NoisyColumn]:
        """Return the noisy columns of the plan, with what clipping is estimated to have removed."""
        return measured_columns(self.plan, self.released, self.bounds, confidence)

    def with_paired_squares(self) -> MeasuredPart:
        """Return the part such that intervals of its variances allow for all that clipping removed from them."""
        plan, bounds = pair_squares(self.plan, self.released, self.bounds)
        return replace(self, plan=plan, bounds=bounds)

    def answer(self, settings: Settings, releases: Sequence[Release]) -> Answer:
        """Build the answer to the part's query, with intervals and notes."""
        level = settings.confidence
        answer = build_answer(self.plan, settings.context, self.columns(level), level, releases, self.bounds)
        return replace(answer, draws=QuestionDraws(replace(self.plan, searches=()), (self.released,)))


@dataclass(frozen=True)
class Measurements:
    """The releases of all parts of a statistic; there is no release yet when a result is rehearsed."""

    settings: Settings
    parts: tuple[MeasuredPart, ...]
    releases: tuple[Release, ...] = ()

    @property
    def loss(self) -> tuple[Loss, ...]:
        """The loss charged to the statistic's own unit."""
        losses = (part for release in self.releases for part in release.losses)
        return tuple(part.loss for part in losses if part.unit == self.settings.unit)

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes of the plans, without repetitions, and on budgets of other units that pay more."""
        spend, losses = self.settings.spend.loss, [part for release in self.releases for part in release.losses]
        own = dict.fromkeys(note for part in self.parts for note in part.plan.notes)
        return (*own, *self._bound_notes(), *other_budget_notes(losses, self.settings.unit, spend))

    def _bound_notes(self) -> tuple[str, ...]:
        """Say which contribution bounds were chosen privately."""
        limits = dict.fromkeys(bound.limit for part in self.parts for bound in part.bounds.values())
        unit = self.settings.unit
        note = f"contribution bounds chosen privately: each {unit} adds at most {', or '.join(limits)}"
        return (f"{note}; what is beyond counts less",) if limits else ()


@dataclass(frozen=True)
class Statistic(Generic[R]):
    """A statistic that can be asked or quoted: its parts, and the function that builds its result.

    `expect` computes the expected errors of a quote from the parts' measurements; by default they are those of the
    columns of the parts' queries, to which `extend` adds what follows from them.
    """

    settings: Settings
    parts: tuple[Part, ...]
    build: Callable[[Measurements], R]
    expect: Callable[[Sequence[Sequence[Measurement]]], Sequence[Expected]] | None = None
    notes: tuple[str, ...] = ()
    extend: Callable[[Sequence[Expected]], Sequence[Expected]] | None = field(default=None, kw_only=True)

    @property
    def batch(self) -> BatchPlan:
        """The parts as groups that share the loss in proportion to their weights."""
        groups = [
            QueryGroup((position,), with_tags(part.plan, f" {position}") if position else part.plan, part.weight)
            for position, part in enumerate(self.parts)
        ]
        return BatchPlan(tuple(groups))

    def ask(self) -> R:
        """Charge the loss once, and build the result from what is released."""
        batch, request = self.batch, self.request()
        self.rehearse(batch)
        settings = self.settings
        release = settings.asker.kernel.answer(request, settings.asker.token)
        chosen = chosen_bounds(batch, release)
        parts = [
            self._measured_part(group.plan, tuple(release.parts[batch.slice_of(position)[1]]), chosen[position])
            for position, group in enumerate(batch.groups)
        ]
        return self.build(Measurements(settings, tuple(parts), (release,)))

    def quote(self) -> Quote:
        """Compute the cost and the expected errors from public facts; read nothing and spend nothing."""
        batch, settings = self.batch, self.settings
        quoted = settings.asker.kernel.quote(self.request(), settings.asker.token)
        predicted = self._predicted_bounds(batch)
        columns = self._expected_errors(batch, predicted)
        return Quote(
            loss=settings.spend.loss,
            losses=quoted.losses,
            expected=columns,
            bounds=batch.default_bounds() | {tag: found.bound for tag, found in predicted.items()},
            affordable=quoted.affordable,
            free=quoted.free,
            time_class=quoted.time_class,
            milliseconds=quoted.milliseconds,
            notes=(
                *batch_notes([part.plan for part in self.parts]),
                *bound_assumptions(batch, predicted),
                *size_notes(columns, batch, settings.context),
                *self.notes,
                *other_budget_notes(quoted.losses, settings.unit, settings.spend.loss),
            ),
        )

    def request(self) -> Request:
        """Build the request of all parts and their searches."""
        measurements = [measurement for own in self.measurements() for measurement in own]
        return self.settings.request(measurements, self.batch.searches(self.settings.spend, self.settings.context))

    def measurements(self) -> list[tuple[Measurement, ...]]:
        """Build the measurements of each part, with its mechanism."""
        batch, context, total = self.batch, self.settings.context, self.settings.spend
        additive = batch.answer_measurements(total, context)
        return [
            _with_mechanism(part, batch.spend(group, total))
            if part.mechanism
            else tuple(additive[batch.slice_of(position)[1]])
            for position, (part, group) in enumerate(zip(_tagged_parts(self.parts, batch), batch.groups, strict=True))
        ]

    def rehearse(self, batch: BatchPlan) -> None:
        """Build the result from made-up measurements at both ends of the bounds; refuse if that fails."""
        with refused_if_it_fails():
            for parts in self._made_up_parts(batch):
                self.build(Measurements(self.settings, parts))

    def _made_up_parts(self, batch: BatchPlan) -> Iterator[tuple[MeasuredPart, ...]]:
        """Yield made-up releases of all parts: several kinds of numbers, at the lower and upper ends of the bounds."""
        ends = [list(ends_of_bounds(group.plan)) for group in batch.groups]
        for end, numbers in REHEARSALS:
            chosen = [own[end] for own in ends]
            yield tuple(
                self._measured_part(group.plan, self._made_up_releases(part, group, bounds, numbers), bounds)
                for part, group, bounds in zip(self.parts, batch.groups, chosen, strict=True)
            )

    def _made_up_releases(
        self, part: Part, group: QueryGroup, bounds: ChosenBounds, numbers: Callable[[int], int]
    ) -> tuple[ReleasedMeasurement, ...]:
        """Make up numbers for every measure, or places if the mechanism releases places."""
        context = self.settings.context
        plan = with_bounds(group.plan, context, bounds.limits)
        releases = tuple(made_up_release(context, planned.measure, numbers) for planned in plan.measures)
        if not part.mechanism:
            return releases
        return tuple(replace(each, values=made_up_places(part)) for each in releases)

    def _measured_part(
        self, plan: QueryPlan, released: tuple[ReleasedMeasurement, ...], chosen: ChosenBounds
    ) -> MeasuredPart:
        return MeasuredPart(
            with_bounds(plan, self.settings.context, chosen.limits), released, chosen.bounds, chosen.limits
        )

    def _predicted_bounds(self, batch: BatchPlan) -> dict[str, EstimatedBound]:
        """Return the bounds, by tag, that the dataset's profile leads to expect."""
        context, total = self.settings.context, self.settings.spend
        profile, found = Profile.of(context.dataset), dict[str, EstimatedBound]()
        if profile is None:
            return found
        for group in batch.groups:
            found |= predict_bounds(group.plan, profile, batch.spend(group, total), context, {})
        return found

    def _expected_errors(self, batch: BatchPlan, predicted: Mapping[str, EstimatedBound]) -> tuple[Expected, ...]:
        """Return the expected errors, as the statistic computes them or else of the columns of its queries."""
        measurements = self.measurements()
        if self.expect is None:
            return self.query_errors(measurements, predicted)
        bounds = batch.default_bounds() | {tag: found.bound for tag, found in predicted.items()}
        columns = self.expect([with_known_bounds(own, bounds) for own in measurements])
        assumed = [search.tag for group in batch.groups for search in assumed_searches(group.plan)]
        if predicted.keys() >= set(assumed):
            columns = [column if column.given or column.reason else replace(column, known=True) for column in columns]
        return tuple(columns)

    def query_errors(
        self, measurements: Sequence[Sequence[Measurement]], predicted: Mapping[str, EstimatedBound]
    ) -> tuple[Expected, ...]:
        """Return the expected errors of the columns of the parts' queries."""
        batch = self.batch
        additive = [place for place, part in enumerate(self.parts) if not part.mechanism]
        groups = tuple(replace(batch.groups[place], positions=(i,)) for i, place in enumerate(additive))
        flat = [measurement for place in additive for measurement in measurements[place]]
        plans = [group.plan for group in groups]
        level = self.settings.confidence
        found = batch_errors(self.settings.context, BatchPlan(groups), plans, flat, level, predicted=predicted)
        return found if self.extend is None else tuple(self.extend(found))


@contextmanager
def refused_if_it_fails() -> Iterator[None]:
    """Refuse a statistic whose result cannot be built from made-up measurements, before anything is spent."""
    try:
        with np.errstate(all="ignore"):
            yield
    except DitherError:
        raise
    except Exception as problem:
        raise Unsupported(
            f"the result of this statistic cannot be put together ({type(problem).__name__}: {problem}), so "
            "nothing was asked or spent; ask for something simpler, and please report it"
        ) from problem


def _tagged_parts(parts: Sequence[Part], batch: BatchPlan) -> list[Part]:
    """Return the parts with the plans of the batch, whose bounds have their own tags."""
    return [replace(part, plan=group.plan) for part, group in zip(parts, batch.groups, strict=True)]


def _with_mechanism(part: Part, budget: Spend) -> tuple[Measurement, ...]:
    """Build the measurements of a part whose mechanism is not additive noise."""
    rest = 1 - search_share(part.plan)
    return tuple(
        Measurement(planned.measure, Calibrate(part.mechanism, budget.share(rest * planned.share), part.options))
        for planned in part.plan.measures
    )


def made_up_places(part: Part) -> tuple[int, ...]:
    """Return places that a selection mechanism might release, for a rehearsal."""
    options: Mapping[str, Any] = dict(part.options)
    count = int(options.get("count", 1))
    match part.mechanism:
        case "noisy_max" | "exponential":
            return (0,)
        case "top_k":
            return tuple(range(count))
        case "above_threshold":
            return (0, *(-1,) * (count - 1))
        case "sparse_vector":
            return (0, *(-1,) * (count - 1), *(0,) * count)
        case "quantiles" | "noisy_max_quantiles":
            return (0,) * len(options.get("quantiles", (0,)))
        case _:
            raise InvalidParameter(f"a statistic cannot use the mechanism {part.mechanism!r}")


def expected_noise(
    settings: Settings, name: str, plan: QueryPlan, parts: Sequence[Measurement], source: int = 0, terms: int = 1
) -> Expected:
    """Return the expected error of a sum of `terms` cells of one column of a plan, from noise alone."""
    ref = plan.sources[source]
    part = parts[ref.measure_index]
    mechanism = mechanism_of(part, part.measure.sensitivity(settings.context, settings.unit))
    value, factor = (ref.value_index, ref.factor) if isinstance(ref, CellRef) else (0, 1)
    noise = noise_of(mechanism, part.measure.steps(settings.context)[value] / factor)
    half = interval_half_width([noise] * terms, settings.confidence)
    return Expected(name, noise.std * terms**0.5, half, False, known=not plan.searches)


def group_labels(settings: Settings, plan: QueryPlan, measure: int = 0) -> list[tuple[Any, ...]]:
    """Return the keys of a measure's groups in the order of its cells; refuse keys that depend on a chosen bound."""
    both = [at.measures[measure].measure.axes(settings.context) for at in ends_of_plan(plan)]
    if both[0] != both[-1]:
        raise Unsupported(f"the groups depend on {CHOSEN_LATER}")
    return list(combinations(*(axis.values for axis in both[0])))


def shown_labels(settings: Settings, plan: QueryPlan) -> list[tuple[Any, ...]]:
    """Return the keys of a plan's groups as answers show them: dates as dates, rationals as numbers."""
    domains = key_domains(ends_of_plan(plan)[0], settings.context)
    return [tuple(map(display_value, label, domains)) for label in group_labels(settings, plan)]


def ends_of_plan(plan: QueryPlan) -> tuple[QueryPlan, QueryPlan]:
    """Return a plan at the smallest and at the largest of the bounds that may be chosen."""
    first, last = ({search.tag: search.candidates[end] for search in plan.searches} for end in (0, -1))
    return fill_chosen(plan, first), fill_chosen(plan, last)


# --- methods of a session ------------------------------------------------------------------------------------------


class BoundStatistic(Generic[P, R]):
    """A statistic of one session: call it to ask; its `quote`, with the same arguments, is free."""

    def __init__(self, make: Callable[P, Statistic[R]]) -> None:
        self._make = make
        functools.update_wrapper(self, make)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Ask: charge the loss once and return the result."""
        return self._make_checked(args, kwargs).ask()

    def quote(self, *args: P.args, **kwargs: P.kwargs) -> Quote:
        """Compute the cost and the expected error; read nothing and spend nothing."""
        return self._make_checked(args, kwargs).quote()

    def _make_checked(self, args: tuple[Any, ...], given: dict[str, Any]) -> Statistic[R]:
        """Make the statistic from arguments that have the declared types."""
        bound = read_arguments(self._make, args, given)
        return self._make(*bound.args, **bound.kwargs)


class statistic(Generic[S, P, R]):
    """Turn a method that makes a `Statistic` into one that asks it, with `.quote` beside it."""

    def __init__(self, make: Callable[Concatenate[S, P], Statistic[R]]) -> None:
        self.__func__ = make
        self.__doc__ = make.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> statistic[S, P, R]: ...

    @overload
    def __get__(self, instance: S, owner: type) -> BoundStatistic[P, R]: ...

    def __get__(self, instance: S | None, owner: type) -> statistic[S, P, R] | BoundStatistic[P, R]:
        return self if instance is None else BoundStatistic(functools.partial(self.__func__, instance))
