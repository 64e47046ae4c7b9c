"""Questions whose keys the same request selects: plans before and after the keys are known, and their cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from dither.errors import NotFound
from dither.plan.context import Context
from dither.plan.measures.partitions import fill_keys, key_columns
from dither.plan.sql.scope import Scope
from dither.post.query.aggregated_values import in_domain_order, sample_value
from dither.post.query.query_plan import QueryPlan, at_largest_bounds
from dither.privacy.protocol import Release, ReleasedMeasurement
from dither.schema import Scalar

SELECTION_NOTE = (
    "two thirds of the loss select the keys, and all is charged even if none is released: only those that enough units "
    "share are; the expected errors are those of a released key"
)

Columns = tuple[tuple[Scalar, ...], ...]


def with_sample_keys(plan: QueryPlan, context: Context) -> QueryPlan:
    """Return a plan with one sample key in place of those that are still to be selected."""
    scope = Scope(at_largest_bounds(plan.question.relation).domain(context))
    return fill_keys(plan, [(sample_value(key.domain(scope), context),) for _, key in plan.question.keys])


def with_selected_keys(plan: QueryPlan, context: Context, release: Release) -> QueryPlan:
    """Return a plan with the keys that were selected; refuse a release without any."""
    keys = release.parts[0].keys or ()
    if not keys:
        raise NotFound(
            "no key had enough units behind it to be released; spend more, or group by something coarser "
            "(the loss was spent: that no key is common is an answer, too)"
        )
    scope = Scope(at_largest_bounds(plan.question.relation).domain(context))
    columns = zip(key_columns(keys), plan.question.keys, strict=True)
    ordered = [in_domain_order(values, key.domain(scope)) for values, (_, key) in columns]
    return replace(fill_keys(plan, ordered), selected=frozenset(keys))


def all_combinations(plan: QueryPlan, parts: Sequence[ReleasedMeasurement]) -> tuple[ReleasedMeasurement, ...]:
    """Return measurements of selected keys as measurements of all combinations of their values: 0 for other ones."""
    columns = tuple(key.values for key in plan.keys if isinstance(key.values, tuple))
    return tuple(_all_combinations(columns, part) for part in parts)


def _all_combinations(columns: Columns, part: ReleasedMeasurement) -> ReleasedMeasurement:
    positions = [{value: index for index, value in enumerate(values)} for values in columns]
    places = np.zeros(len(part.keys or ()), dtype=np.int64)
    for number, position in enumerate(positions):
        places = places * len(position) + np.array([position[key[number]] for key in part.keys or ()], dtype=np.int64)
    cells = np.zeros((prod(map(len, columns)), prod(part.shape[1:])), dtype=np.int64)
    cells[places] = np.array(part.values, dtype=np.int64).reshape(len(places), -1)
    return replace(part, values=tuple(cells.ravel().tolist()), shape=(*map(len, columns), *part.shape[1:]), keys=None)
