"""Rehearse how an answer is put together, on public facts alone, so that nothing can fail after the charge."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from types import MappingProxyType
from typing import Any

from dither.errors import DitherError, Unsupported
from dither.loss import Pure
from dither.plan.context import Context
from dither.plan.measures.core import NO_CHANGE, Measure
from dither.post.estimate.answer import build_answer
from dither.post.estimate.combine import QuestionDraws, combine_measurements
from dither.post.estimate.contribution import EstimatedBound
from dither.post.estimate.measured import ChosenBounds, estimated_bound, measured_columns, with_span
from dither.post.estimate.squares import pair_squares
from dither.post.query.query_plan import ContributionSearch, QuantileRef, QueryPlan, bound_text, with_bounds
from dither.privacy.mechanisms import DiscreteLaplace
from dither.privacy.protocol import ReleasedMeasurement
from dither.schema import Scalar

CONFIDENCE = 0.9
NOISE = DiscreteLaplace(Fraction(2))
NO_BOUNDS: Mapping[str, EstimatedBound] = MappingProxyType({})


def rehearse(
    context: Context, plan: QueryPlan, draws: int = 1, chosen_before: Mapping[str, EstimatedBound] = NO_BOUNDS
) -> None:
    """Compute an answer from made-up measurements of a few groups, at both ends of the bounds; refuse if that fails.

    Bounds that earlier draws chose are not searched again.
    """
    try:
        for chosen in ends_of_bounds(plan):
            rehearsed = with_bounds(plan, context, chosen.limits)
            _check_groups(context, rehearsed)
            _rehearse_at(context, _with_few_groups(context, rehearsed), {**chosen_before, **chosen.bounds}, draws)
    except DitherError:
        raise
    except Exception as problem:
        raise Unsupported(
            f"the answer to this query cannot be put together ({type(problem).__name__}), so nothing was asked or "
            "spent; write it more simply, and please report it"
        ) from problem


def _rehearse_at(context: Context, plan: QueryPlan, bounds: dict[str, EstimatedBound], draws: int) -> None:
    """Put an answer together as a session does, from one draw and, if wanted, from several."""
    parts = tuple(made_up_release(context, planned.measure) for planned in plan.measures)
    plan, bounds = pair_squares(plan, parts, bounds)
    build_answer(plan, context, measured_columns(plan, parts, bounds, CONFIDENCE), CONFIDENCE, [], bounds)
    if draws > 1:
        combined, columns = combine_measurements(QuestionDraws(plan, (parts,) * draws), bounds, CONFIDENCE)
        build_answer(combined, context, columns, CONFIDENCE, [], bounds)


def ends_of_bounds(plan: QueryPlan) -> Iterator[ChosenBounds]:
    """Yield the smallest and the largest of the bounds that may be chosen, as if chosen from an empty histogram."""
    contributions = [search for search in plan.searches if isinstance(search, ContributionSearch)]
    fitted = {  # the histogram is the same at both ends, so it is fitted once
        search.tag: estimated_bound(search, (0,) * (len(search.edges) + 1), NOISE, search.candidates[0])
        for search in contributions
    }
    for end in (0, -1) if plan.searches else (0,):
        limits = {search.tag: search.candidates[end] for search in plan.searches}
        bounds = {
            search.tag: replace(
                fitted[search.tag],
                bound=search.candidates[end],
                limit=bound_text(search.candidates[end], search),
            )
            for search in contributions
        }
        yield ChosenBounds(
            limits,
            {
                search.tag: with_span(bounds[search.tag], search, (0,) * (len(search.edges) + 1), NOISE, limits)
                for search in contributions
            },
        )


def _check_groups(context: Context, plan: QueryPlan) -> None:
    """Refuse a plan whose measures do not have the same groups, or whose histograms do not have their bins."""
    shapes = {tuple(len(axis.values) for axis in _key_axes(context, plan, m.measure)) for m in plan.measures}
    bins = {(source.measure_index, len(source.bins.low)) for source in plan.sources if isinstance(source, QuantileRef)}
    measured = {(index, len(plan.measures[index].measure.axes(context)[-1].values)) for index, _ in bins}
    if len(shapes) != 1 or bins != measured:
        raise ValueError("the measures of the plan do not fit together")


def _key_axes(context: Context, plan: QueryPlan, measure: Measure) -> Sequence[Any]:
    return measure.axes(context)[: len(plan.keys)]


def _with_few_groups(context: Context, plan: QueryPlan) -> QueryPlan:
    """Return the plan with at most three values of each key, so that rehearsing takes no longer for many groups."""
    axes = _key_axes(context, plan, plan.measures[0].measure)
    few: list[tuple[Scalar, ...]] = [
        tuple(dict.fromkeys((axis.values[0], axis.values[len(axis.values) // 2], axis.values[-1]))) for axis in axes
    ]
    measures = tuple(replace(planned, measure=_with_keys(planned.measure, few)) for planned in plan.measures)
    return replace(plan, measures=measures)


def _with_keys(measure: Any, values: Sequence[tuple[Scalar, ...]]) -> Any:
    """Return a measure whose first keys have these values only."""
    listed = tuple(replace(key, values=own) for key, own in zip(measure.keys, values, strict=False))
    return replace(measure, keys=(*listed, *measure.keys[len(listed) :]))


def small_numbers(place: int) -> int:
    """Make up small numbers of either sign."""
    return 7 * place % 23 - 5


def large_numbers(place: int) -> int:
    """Make up numbers that are all far above the noise."""
    return 1000 + 7 * place % 23


def negative_numbers(place: int) -> int:
    """Make up numbers that are all below 0."""
    return -3 - place % 5


def zeros(place: int) -> int:
    """Make up nothing but zeros."""
    return 0 * place


# What a statistic is rehearsed with: the end of its bounds, and numbers that lead to other branches of its code.
REHEARSALS: tuple[tuple[int, Callable[[int], int]], ...] = (
    (0, small_numbers), (-1, small_numbers), (-1, large_numbers), (0, negative_numbers), (-1, zeros),
)  # fmt: skip


def made_up_release(
    context: Context, measure: Measure, numbers: Callable[[int], int] = small_numbers
) -> ReleasedMeasurement:
    """Return a release with made-up numbers."""
    steps = measure.steps(context)
    shape = (*(len(axis.values) for axis in measure.axes(context)), len(steps))
    values = tuple(map(numbers, range(measure.size(context))))
    return ReleasedMeasurement(values, steps, shape, None, NOISE, NO_CHANGE, Pure(Fraction(1)), ())
