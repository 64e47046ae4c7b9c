"""The most common keys by noisy maxima, and watching a series of counts for values above a threshold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from dither.errors import InvalidParameter, Unsupported
from dither.loss import rational
from dither.plan import expressions as expr
from dither.plan.measures.core import GroupKey
from dither.plan.measures.sums import Count
from dither.plan.relations.bounding import LimitGroupsPerUnit
from dither.plan.relations.core import Relation
from dither.plan.relations.group_by import GroupBy
from dither.post.estimate.explain import Expected
from dither.post.formulas import NoisyCell
from dither.post.noise import ScaledNoise, interval_half_width
from dither.post.options import excerpt
from dither.post.query.query_plan import CellRef, PlannedMeasure, QueryPlan
from dither.post.query.question import Question
from dither.post.statistics.core import (
    CHOSEN_LATER,
    Measurements,
    Part,
    Statistic,
    ends_of_plan,
    group_labels,
    shown_labels,
)
from dither.post.statistics.result import Result, key_column, noisy_column, result_fields
from dither.post.statistics.source_rows import Settings, SourceRows
from dither.privacy.mechanisms import AboveThreshold, Mechanism, SparseVector, calibrate
from dither.privacy.protocol import Calibrate, Measurement

Counted = Literal["units", "rows"]


@dataclass(frozen=True, repr=False)
class TopKeys(Result):
    """The most common keys, the most common first; `selected` has them as tuples.

    With the stated confidence, no key that was left out has more than `shortfall` above any that was selected.
    """

    selected: tuple[tuple[Any, ...], ...] = ()
    shortfall: float = 0.0


def make_top(rows: SourceRows, keys: Sequence[str], count: int, counted: Counted) -> Statistic[TopKeys]:
    """Make the statistic of the `count` most common combinations of keys."""
    plan = rows.plan(["COUNT(*) AS n"], by=keys)
    if counted == "units":
        plan = units_per_key(rows.settings, plan, rows.question(["COUNT(*) AS n"], by=keys))
    labels, shown = group_labels(rows.settings, plan), shown_labels(rows.settings, plan)
    if not 1 <= count <= len(labels):
        raise InvalidParameter(
            f"there are only {len(labels)} combinations of keys, and the top {excerpt(count)} were asked for"
        )
    # In zCDP an exponential mechanism costs a quarter of a noisy maximum with noise of the same scale.
    single = "exponential" if rows.settings.spend.gaussian else "noisy_max"
    mechanism, options = (single, ()) if count == 1 else ("top_k", (("count", count),))
    part = Part(plan, mechanism=mechanism, options=options)
    what = rows.settings.unit if counted == "units" else "row"

    def build(measured: Measurements) -> TopKeys:
        chosen = tuple(shown[place] for place in measured.parts[0].released[0].values)
        gap = selection_gap(measured.parts[0].released[0].mechanism, len(labels), count, measured.settings.confidence)
        gap /= steps_per_row(measured.parts[0].plan)
        columns = [key_column("place", range(1, count + 1))]
        columns += [key_column(key, [label[index] for label in chosen]) for index, key in enumerate(keys)]
        level = f"{measured.settings.confidence:.0%}"
        summary = [f"top {count} by {what}s; {level} sure that none left out has over {gap:,.0f} {what}s more"]
        note = "only places are released, no counts; ask session.table or session.sql for those"
        return TopKeys(
            **result_fields(measured, f"top {count} of {', '.join(keys)}", columns, summary, [note]),
            selected=chosen,
            shortfall=gap,
        )

    def expect(parts: Sequence[Sequence[Measurement]]) -> list[Expected]:
        gap = selection_gap(mechanism_at(rows.settings, parts[0][0]), len(labels), count, rows.settings.confidence)
        gap /= steps_per_row(plan)
        return [
            Expected(
                f"{what}s by which a key left out may exceed one selected", gap / 2, gap, False, known=not plan.searches
            )
        ]

    return Statistic(rows.settings, (part,), build, expect)


def units_per_key(settings: Settings, plan: QueryPlan, question: Question) -> QueryPlan:
    """Count each unit once in every key that it has, of all its rows; one unit then moves each count by at most 1."""
    if not question.knows_unit:
        raise Unsupported("units cannot be counted here, since a join or GROUP BY mixes them; give count='rows'")
    grouped: Relation = question.relation
    keys = tuple(GroupKey(key.name, expr.ColumnRef(key.name)) for key in plan.keys)
    if settings.context.dataset.units[settings.unit].kind != "row":
        row_per_key = GroupBy(question.relation, tuple((key.name, key.value) for key in plan.keys), (), settings.unit)
        most = len(group_labels(settings, plan))
        grouped = LimitGroupsPerUnit(row_per_key, settings.unit, tuple(key.value for key in keys), most, 1)
        measure = Count(grouped, keys)
    else:
        measure = Count(grouped, plan.keys)
    unit_note = tuple(note for note in plan.notes if note.startswith("unit of privacy"))
    source = CellRef(0, 0, 1, False, None)
    return replace(
        plan, measures=(PlannedMeasure(measure, Fraction(1)),), sources=(source,), searches=(), notes=unit_note
    )


def steps_per_row(plan: QueryPlan) -> float:
    """Return the number of steps that one row adds to a score."""
    source = plan.sources[0]
    return float(source.factor) if isinstance(source, CellRef) else 1.0


def mechanism_at(settings: Settings, part: Measurement) -> Mechanism:
    """Return the mechanism of a measurement, calibrated as the kernel does."""
    if not isinstance(part.mechanism, Calibrate):
        return part.mechanism
    sensitivity = part.measure.sensitivity(settings.context, settings.unit)
    return calibrate(part.mechanism.kind, part.mechanism.loss, sensitivity, **dict(part.mechanism.options))


def selection_gap(mechanism: Mechanism, candidates: int, count: int, confidence: float) -> float:
    """Return the score by which no candidate left out exceeds one selected, with probability `confidence`.

    Each of `count` exponential mechanisms selects one that is more than g below the best with a probability of at most
    candidates * exp(-g / scale).
    """
    scale = float(getattr(mechanism, "scale", 0))
    return scale * math.log(candidates * count / (1 - confidence))


# --- watching ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Alerts(Result):
    """The first keys of a series whose noisy value reaches a threshold, each with a fresh noisy value.

    `keys_above` has them as tuples. One charge covers the whole series of declared keys.
    """

    keys_above: tuple[tuple[Any, ...], ...] = field(default=())


def make_watch(
    rows: SourceRows, query: str, plan: QueryPlan, above: Any, alerts: int, values: bool
) -> Statistic[Alerts]:
    """Make the statistic that watches the series of a query's groups, in the order of their keys."""
    node = plan.outputs[-1].node
    if len(plan.measures) != 1 or not plan.keys or not isinstance(node, NoisyCell) or len(plan.sources) != 1:
        raise Unsupported(
            "watch takes a query with keys and one COUNT or SUM: SELECT day, COUNT(*) FROM t GROUP BY day"
        )
    source, threshold = plan.sources[0], rational(above, "above")
    if not isinstance(source, CellRef):
        raise Unsupported("watch takes a COUNT or a SUM")
    labels, shown = group_labels(rows.settings, plan), shown_labels(rows.settings, plan)
    if not 1 <= alerts <= len(labels):
        raise InvalidParameter(f"alerts= must be from 1 to {len(labels)}, the number of groups, got {excerpt(alerts)}")
    step, other = (at.measures[0].measure.steps(rows.context)[0] / source.factor for at in ends_of_plan(plan))
    if step != other:
        raise Unsupported(f"the step of these sums depends on {CHOSEN_LATER}")
    options = (("threshold", math.ceil(threshold / step)), ("count", alerts))
    part = Part(plan, mechanism="sparse_vector" if values else "above_threshold", options=options)
    names = [key.name for key in plan.keys]

    def build(measured: Measurements) -> Alerts:
        released = measured.parts[0].released[0]
        reached = [index for index, place in enumerate(released.values[:alerts]) if place >= 0]
        keys = tuple(shown[released.values[index]] for index in reached)
        columns = [key_column(name, [key[index] for key in keys]) for index, name in enumerate(names)]
        if values:
            found = np.array([float(released.values[alerts + index] * step) for index in reached])
            noise = answer_noise(released.mechanism, step)
            half = interval_half_width([noise], measured.settings.confidence)
            error = np.full(len(found), noise.std)
            columns.append(noisy_column(plan.outputs[-1].name, found, error, found - half, found + half))
        counted = f"{len(reached)} of at most {alerts}" if reached else "no"
        summary = [f"{counted} alerts among {len(labels)} keys, in their order, at or above {float(threshold):g}"]
        note = (
            "one charge covers all keys of this version of the data; after the last alert, later keys are not examined"
        )
        return Alerts(**result_fields(measured, query, columns, summary, [note]), keys_above=keys)

    def expect(parts: Sequence[Sequence[Measurement]]) -> list[Expected]:
        mechanism = mechanism_at(rows.settings, parts[0][0])
        noises = {"a value that is released": answer_noise(mechanism, step)} if values else {}
        noises["a comparison with the threshold"] = crossing_noise(mechanism, step)
        level = rows.settings.confidence
        return [
            Expected(name, noise.std, interval_half_width([noise], level), False, known=not plan.searches)
            for name, noise in noises.items()
        ]

    return Statistic(rows.settings, (part,), build, expect)


def answer_noise(mechanism: Mechanism, step: Fraction) -> ScaledNoise:
    """Return the noise of the values that a sparse vector releases."""
    scale = float(mechanism.answer_scale) if isinstance(mechanism, SparseVector) else 1.0
    return ScaledNoise("laplace", scale, float(step))


def crossing_noise(mechanism: Mechanism, step: Fraction) -> ScaledNoise:
    """Return the noise of a sparse vector's comparisons, of threshold and score together, as one Laplace noise."""
    if not isinstance(mechanism, SparseVector | AboveThreshold):
        return ScaledNoise("laplace", 1.0, float(step))
    return ScaledNoise(
        "laplace", math.hypot(float(mechanism.threshold_scale), float(mechanism.score_scale)), float(step)
    )
