"""How large a dataset is: measured privately when it is registered, so that time may depend on it."""

from __future__ import annotations

from dither.errors import Unbounded
from dither.loss import Pure
from dither.plan.context import Context
from dither.plan.measures.core import Measure
from dither.plan.measures.sums import Count, count_units
from dither.plan.relations.bounding import LimitRowsPerUnit
from dither.plan.relations.core import Relation
from dither.plan.relations.scan import Scan
from dither.privacy.protocol import Calibrate, Measurement

SIZE_ROWS = 256  # rows of one unit that count towards the noisy size


def size_measurements(ctx: Context) -> tuple[list[Measurement], list[str]]:
    """How a dataset's size is measured: clipped rows of every private table, then the units, for the size's epsilon."""
    unit = _sizing_unit(ctx)
    tables = [name for name, table in ctx.dataset.tables.items() if table.private and name in ctx.unit(unit).keys]
    counts: list[Measure] = [Count(_clipped(ctx, name, unit)) for name in tables]
    if tables and ctx.unit(unit).kind != "row":
        counts.append(count_units(Scan(tables[0]), unit))
    kept = [(measure, name) for measure, name in zip(counts, [*tables, ""], strict=False) if _bounded(ctx, measure)]
    if not kept:
        return [], []
    share = Calibrate("discrete_laplace", Pure(ctx.dataset.size_epsilon / len(kept)))
    return [Measurement(measure, share) for measure, _ in kept], [name for _, name in kept]


def _sizing_unit(ctx: Context) -> str:
    """The coarsest unit with a budget."""
    order = ("user", "window", "row")
    return min((cap.unit for cap in ctx.dataset.budgets), key=lambda name: order.index(ctx.unit(name).kind))


def _clipped(ctx: Context, table: str, unit: str) -> Relation:
    return Scan(table) if ctx.unit(unit).kind == "row" else LimitRowsPerUnit(Scan(table), unit, SIZE_ROWS)


def _bounded(ctx: Context, measure: Measure) -> bool:
    try:
        for cap in ctx.dataset.budgets:
            measure.sensitivity(ctx, cap.unit)
    except Unbounded:
        return False
    return True
