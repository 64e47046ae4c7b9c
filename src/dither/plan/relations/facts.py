"""Public facts about a whole plan: whether it needs a row order, and the time range that it reads."""

from __future__ import annotations

from typing import Any

from dither.plan.context import Context
from dither.plan.domains import span
from dither.plan.relations.bounding import LimitGroupsPerUnit, LimitRowsPerUnit, Sample
from dither.plan.relations.core import Relation
from dither.plan.relations.filter import Filter
from dither.plan.relations.joins import KeyJoin
from dither.plan.relations.scan import Scan
from dither.plan.traversal import field_values, walk


def needs_order(plan: Any) -> bool:
    """Tell whether some operator of a plan selects rows by their pseudo-random order."""
    return any(isinstance(node, LimitRowsPerUnit | LimitGroupsPerUnit | KeyJoin | Sample) for node in walk(plan))


def window_range(ctx: Context, plan: Any, unit: str) -> tuple[int, int] | None:
    """Return the public time range from which a plan reads rows that a window unit covers; None if it reads none."""
    time_columns, ranges = ctx.unit(unit).times, []
    covered_scans = {node for node in walk(plan) if isinstance(node, Scan) and node.table in time_columns}
    for scan in covered_scans:
        filters = [node for node in walk(plan) if isinstance(node, Filter) and _base(node) == scan]
        read_unfiltered = any(
            child == scan for node in walk(plan) if not isinstance(node, Filter) for child in field_values(node)
        )
        # A unique key, or a cap on the rows of another unit, selects rows before any filter: a row of another window
        # can displace a row in the range.
        cap = ctx.row_cap(scan.table)
        selects_first = ctx.enforces_unique_key(ctx.table(scan.table)) or (cap is not None and cap[0] != unit)
        whole_range = read_unfiltered or plan == scan or selects_first
        nodes: list[Relation] = [scan] if whole_range else [*filters]
        ranges += [span(node.domain(ctx)[time_columns[scan.table]]) for node in nodes]
    return (min(lo for lo, _ in ranges), max(hi for _, hi in ranges)) if ranges else None


def _base(node: Relation) -> Relation:
    """Return the relation below any filters."""
    return _base(node.child) if isinstance(node, Filter) else node
