"""Part of the former access.relation."""

from __future__ import annotations

from typing import Any

from dither.plan.context import Context
from dither.plan.domains import span
from dither.plan.relations.bounding import LimitGroupsPerUnit, LimitRowsPerUnit, Sample
from dither.plan.relations.core import Relation
from dither.plan.relations.filter import Filter
from dither.plan.relations.joins import KeyJoin
from dither.plan.relations.scan import Scan
from dither.plan.traversal import _inputs, walk


def needs_order(plan: Any) -> bool:
    """Whether some operator of a plan chooses among rows."""
    return any(isinstance(node, LimitRowsPerUnit | LimitGroupsPerUnit | KeyJoin | Sample) for node in walk(plan))


def window_range(ctx: Context, plan: Any, unit: str) -> tuple[int, int] | None:
    """The public range of moments from which a plan reads rows that a window unit covers; None if it reads none."""
    times, spans = ctx.unit(unit).times, []
    covered = {node for node in walk(plan) if isinstance(node, Scan) and node.table in times}
    for scan in covered:
        top = [node for node in walk(plan) if isinstance(node, Filter) and _base(node) == scan]
        bare = any(child == scan for node in walk(plan) if not isinstance(node, Filter) for child in _inputs(node))
        # Keeping one row per unique key chooses before any filter: a row of another window can push one out.
        whole_range = bare or plan == scan or ctx.enforced(ctx.table(scan.table))
        nodes: list[Relation] = [scan] if whole_range else [*top]
        spans += [span(node.domain(ctx)[times[scan.table]]) for node in nodes]
    return (min(lo for lo, _ in spans), max(hi for _, hi in spans)) if spans else None


def _base(node: Relation) -> Relation:
    return _base(node.child) if isinstance(node, Filter) else node
