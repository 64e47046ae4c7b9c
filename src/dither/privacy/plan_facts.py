"""Public facts of plans: the windows that they touch, the work that they make, and what they do to the data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from dither.plan.context import Context
from dither.plan.domains import EPOCH, period_starts
from dither.plan.expressions.numeric import Clamp
from dither.plan.measures.clipped import ClippedSums
from dither.plan.measures.core import Measure
from dither.plan.relations.bounding import LimitGroupsPerUnit, LimitRowsPerUnit, Sample
from dither.plan.relations.facts import window_range
from dither.plan.relations.group_by import Distinct, GroupBy
from dither.plan.relations.joins import KeyJoin, UnitJoin
from dither.plan.relations.mark_join import MarkJoin
from dither.plan.relations.scan import Scan
from dither.plan.traversal import walk
from dither.privacy.pacing import Work
from dither.schema import Moment


def touched_windows(ctx: Context, measures: Iterable[Measure], unit: str) -> tuple[str, ...]:
    """Return the names of the windows that the plans' public time ranges touch."""
    spans = [span for measure in measures if (span := window_range(ctx, measure, unit)) is not None]
    every = ctx.unit(unit).every
    if not spans or every is None:
        return ()
    lo, hi = min(lo for lo, _ in spans), max(hi for _, hi in spans)
    return tuple(window_name(start) for start in period_starts(lo, hi, every))


def window_name(start: int) -> str:
    """Name a window by its first day."""
    return (EPOCH + timedelta(microseconds=start)).strftime("%Y-%m-%d")


def windows_of(ctx: Context, unit: str) -> tuple[str, ...]:
    """Return the names of all windows of a unit within its declared time ranges."""
    declared = ctx.unit(unit)
    spans = [ctx.columns(table)[column] for table, column in declared.times.items()]
    moments = [domain for domain in spans if isinstance(domain, Moment)]
    if not moments or declared.every is None:
        return ()
    lo, hi = min(moment.lo for moment in moments), max(moment.hi for moment in moments)
    return tuple(window_name(start) for start in period_starts(lo, hi, declared.every))


def work_of(measures: Iterable[Measure], rows: Mapping[str, int], cells: int) -> Work:
    """Estimate the work of plans: passes and sorts over tables of noisy size `rows`, cells, and plan nodes."""
    nodes = [node for measure in measures for node in walk(measure)]
    scans = [node.table for node in nodes if isinstance(node, Scan)]
    sorting_nodes = (LimitRowsPerUnit, LimitGroupsPerUnit, GroupBy, Distinct, UnitJoin, MarkJoin, KeyJoin, ClippedSums)
    sorts, rows_read = (
        sum(isinstance(node, sorting_nodes) for node in nodes),
        sum(rows.get(table, 0) for table in scans),
    )
    return Work(len(scans), sorts, rows_read, cells, len(nodes))


def describe_processing(ctx: Context, measure: Measure) -> tuple[str, ...]:
    """Describe the clamping, bounding, sampling and correcting in a plan, one note each."""
    notes = [_describe_node(node) for node in walk(measure)]
    tables = sorted({node.table for node in walk(measure) if isinstance(node, Scan) and ctx.table(node.table).private})
    correction = f"values of {', '.join(tables)} outside their declared domains are moved into them" if tables else ""
    return tuple(dict.fromkeys(text for text in (*notes, correction) if text))


def _describe_node(node: Any) -> str:
    """Describe what one node does to the data; "" if it needs no note."""
    match node:
        case LimitRowsPerUnit(unit=unit, limit=limit):
            return f"at most {limit} rows of each {unit} counted, chosen pseudo-randomly"
        case LimitGroupsPerUnit(unit=unit, groups=groups, rows=rows):
            return f"at most {rows} rows of each {unit} in each of at most {groups} groups counted"
        case ClippedSums(unit=unit, bound=bound, norm=norm):
            return f"each {unit}'s sums scaled into an {norm.upper()} ball of radius {bound} steps"
        case KeyJoin(left_limit=left, right_limit=right):
            return f"at most {left} rows on the left and {right} on the right joined for each key"
        case Sample(rate=rate, unit=unit):
            return f"each {unit or 'row'} kept with probability {rate}"
        case Clamp(lo=lo, hi=hi):
            return f"values clamped to between {lo} and {hi}"
        case _:
            return ""
