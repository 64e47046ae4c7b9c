"""Divide the loss of a query among what it measures, so that no column suffers much from the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from dither.plan.measures.core import Measure
from dither.plan.traversal import unfilled_limits, unfilled_values
from dither.post.contribution_bound import COUNT_WEIGHTS
from dither.post.formulas import Formula, KeyValue, cells_of
from dither.post.query.query_plan import MASS, CentreSearch, ContributionSearch, PlanBuilder, PlannedMeasure, QueryPlan

Search = CentreSearch | ContributionSearch


def divide_loss(
    builder: PlanBuilder, searches: Sequence[Search]
) -> tuple[tuple[PlannedMeasure, ...], tuple[Search, ...]]:
    """Return the measures and searches of a plan with their shares of the loss.

    Each aggregate would divide the loss in its own way if it were asked for alone. What several need gets the largest
    of these shares, so each gets at least what it would have with the loss divided by the number of aggregates.
    """
    measures, weights = [measure for measure, _ in builder.measures], [weight for _, weight in builder.measures]
    search_weights = [search.weight for search in searches]
    if searches and len(builder.nodes) > 1 and len(measures) > 1:
        alone = [_weights_alone(node, builder, searches) for node in builder.nodes.values()]
        weights = [max(each[0][place] for each in alone) for place in range(len(measures))]
        search_weights = [max(each[1][place] for each in alone) for place in range(len(searches))]
    total, whole = sum(weights, Fraction(0)), sum([*weights, *search_weights], Fraction(0))
    return (
        tuple(PlannedMeasure(measure, weight / total) for measure, weight in zip(measures, weights, strict=True)),
        tuple(replace(search, share=weight / whole) for search, weight in zip(searches, search_weights, strict=True)),
    )


def _weights_alone(
    node: Formula, builder: PlanBuilder, searches: Sequence[Search]
) -> tuple[list[Fraction], list[Fraction]]:
    """Return the shares of all measures and searches if one aggregate were asked for alone; 0 for what it lacks."""
    read = {builder.sources[cell].measure_index for cell in cells_of(node)}
    counts_alone = len(read) == 1 and all(_tags(builder.measures[place][0]) == {MASS} for place in read)
    answers = [
        Fraction(0) if place not in read else COUNT_WEIGHTS["answer"] if counts_alone else weight
        for place, (_, weight) in enumerate(builder.measures)
    ]
    needed = set[str]().union(*(_tags(builder.measures[place][0]) for place in read)) if read else set()
    for search in reversed(searches):  # a search may use the centres of those before it
        needed |= _tags(search.measure) if search.tag in needed else set()
    found = [search.weight if search.tag in needed else Fraction(0) for search in searches]
    whole = sum([*answers, *found], Fraction(0)) or Fraction(1)
    return [weight / whole for weight in answers], [weight / whole for weight in found]


def _tags(measure: Measure) -> set[str]:
    """Return the tags of the bounds and centres that a measure needs."""
    return {limit.tag for limit in unfilled_limits(measure)} | {value.tag for value in unfilled_values(measure)}


def share_notes(plan: QueryPlan) -> tuple[str, ...]:
    """Say which share of the loss each column got, if there are several and they were measured apart."""
    columns = [output for output in plan.outputs if not isinstance(output.node, KeyValue) and cells_of(output.node)]
    if len(columns) < 2 or len(plan.measures) < 2:
        return ()
    searched = sum((search.share for search in plan.searches), Fraction(0))
    shares = []
    for output in columns:
        read = {plan.sources[cell].measure_index for cell in cells_of(output.node)}
        share = (1 - searched) * sum((plan.measures[place].share for place in read), Fraction(0))
        shares.append(f"{float(share):.0%} for {output.name}")
    bounds = f"; {float(searched):.0%} chooses bounds and centres for all" if searched else ""
    return (
        f"part of the loss that was spent on what each column reads: {', '.join(shares)} (columns share what several "
        f"of them read, so these may add up to more than 100%){bounds}; fewer aggregates in one query leave more for "
        "each",
    )
