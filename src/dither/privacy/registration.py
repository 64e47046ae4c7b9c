"""Measurements of a dataset's size, taken privately at registration, so that schedules may depend on it."""

from __future__ import annotations

import json
from hashlib import sha256

from dither.errors import Unbounded, Unsupported
from dither.loss import Pure
from dither.plan.context import Context
from dither.plan.measures.core import Measure
from dither.plan.measures.sums import Count, count_units
from dither.plan.relations.bounding import LimitRowsPerUnit
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
    counted = [(_size_measure(ctx, name, unit), name) for name in tables]
    if tables and ctx.unit(unit).kind != "row":
        counted.append((count_units(Scan(tables[0]), unit), ""))
    counted = [(measure, name) for measure, name in counted if _is_bounded(ctx, measure)]
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


def _size_measure(ctx: Context, table: str, unit: str) -> Measure:
    """Return the count of a table with at most SIZE_ROWS rows of each unit, or of all its rows if a cap bounds them."""
    limited, whole = Count(LimitRowsPerUnit(Scan(table), unit, SIZE_ROWS)), Count(Scan(table))
    return limited if ctx.unit(unit).kind != "row" and _is_bounded(ctx, limited) else whole


def _is_bounded(ctx: Context, measure: Measure) -> bool:
    """Return whether the measure has a bounded sensitivity for every unit that has a budget."""
    try:
        for cap in ctx.dataset.budgets:
            measure.sensitivity(ctx, cap.unit)
    except (Unbounded, Unsupported):  # a cap on another unit's rows loses track of this unit
        return False
    return True
