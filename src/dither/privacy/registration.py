"""Measurements of a dataset's size, taken privately at registration, so that schedules may depend on it."""

from __future__ import annotations

import json
from hashlib import sha256

from dither.errors import Unbounded
from dither.loss import Pure
from dither.plan.context import Context
from dither.plan.measures.core import Measure
from dither.plan.measures.sums import Count, count_units
from dither.plan.relations.bounding import LimitRowsPerUnit
from dither.plan.relations.core import Relation
from dither.plan.relations.scan import Scan
from dither.privacy.protocol import Calibrate, Measurement
from dither.schema import Dataset

SIZE_ROWS = 256  # at most this many rows of one unit count towards the noisy size


def size_measurements(ctx: Context) -> tuple[list[Measurement], list[str]]:
    """Return the measurements of a dataset's size, and the table of each ("" for the count of units).

    They count the clipped rows of every private table, then the units, and share the dataset's `size_epsilon`.
    """
    unit = _coarsest_unit(ctx)
    tables = [name for name, table in ctx.dataset.tables.items() if table.private and name in ctx.unit(unit).keys]
    counts: list[Measure] = [Count(_limited_scan(ctx, name, unit)) for name in tables]
    if tables and ctx.unit(unit).kind != "row":
        counts.append(count_units(Scan(tables[0]), unit))
    counted = [
        (measure, name) for measure, name in zip(counts, [*tables, ""], strict=False) if _is_bounded(ctx, measure)
    ]
    if not counted:
        return [], []
    calibration = Calibrate("discrete_laplace", Pure(ctx.dataset.size_epsilon / len(counted)))
    return [Measurement(measure, calibration) for measure, _ in counted], [name for _, name in counted]


def profile_id(dataset: Dataset) -> str:
    """Return the request id of a dataset's profile, one for each version of the data. Proof: profile.md."""
    return f"profile:{sha256(json.dumps([dataset.name, dataset.data_version]).encode()).hexdigest()[:40]}"


def _coarsest_unit(ctx: Context) -> str:
    """Return the coarsest unit with a budget."""
    order = ("user", "window", "row")
    return min((cap.unit for cap in ctx.dataset.budgets), key=lambda name: order.index(ctx.unit(name).kind))


def _limited_scan(ctx: Context, table: str, unit: str) -> Relation:
    """Return a scan of the table with at most SIZE_ROWS rows of each unit."""
    return Scan(table) if ctx.unit(unit).kind == "row" else LimitRowsPerUnit(Scan(table), unit, SIZE_ROWS)


def _is_bounded(ctx: Context, measure: Measure) -> bool:
    """Return whether the measure's sensitivity is bounded for every unit that has a budget."""
    try:
        for cap in ctx.dataset.budgets:
            measure.sensitivity(ctx, cap.unit)
    except Unbounded:
        return False
    return True
