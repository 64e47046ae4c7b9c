"""Guess how many rows a typical bound leaves each unit, from the noisy sizes that a kernel publishes."""

from __future__ import annotations

from collections.abc import Iterable

from dither.plan.context import Context
from dither.plan.relations.core import Relation
from dither.plan.relations.scan import Scan
from dither.plan.traversal import walk

# The guess where sizes are unknown, or their noise is too large to tell.
TYPICAL_ROWS = 16
# A typical bound is this many times the mean number of rows.
ABOVE_MEAN = 4
# Bounds that must leave out hardly any row are this many times a typical one, but no more than 256 rows, or twice it.
ABOVE_TYPICAL, TAIL_ROWS = 16, 256
# Sizes count at most this many rows of a unit; they tell something from this many times the scale of their noise on.
SIZE_ROWS, CLEAR = 256, 4
# Laplace noise is within this many times its scale with a probability of 95%.
WITHIN = 3.0


def typical_rows(context: Context, relation: Relation, unit: str) -> int:
    """Return a likely bound on the rows of one unit: a few times their mean number, or 16 if that is not known."""
    tables = {node.table for node in walk(relation) if isinstance(node, Scan)}
    rows = max((context.noisy_rows(table) or 0 for table in tables), default=0)
    units, scale = known_units(context, unit) or 0, size_noise(context)
    if units < CLEAR * scale or rows < CLEAR * row_noise(context):
        return TYPICAL_ROWS
    return max(1, round(ABOVE_MEAN * rows / units))


def tail_rows(context: Context, relation: Relation, unit: str) -> int:
    """Return a likely bound on the rows of one unit that leaves out hardly any row, if some units have far more."""
    typical = typical_rows(context, relation, unit)
    return max(2 * typical, min(ABOVE_TYPICAL * typical, TAIL_ROWS))


def known_units(context: Context, unit: str) -> int | None:
    """Return the noisy number of units, if the unit is the only one of its kind, which was counted."""
    people = {cap.unit for cap in context.dataset.budgets if context.unit(cap.unit).kind == "user"}
    return context.noisy_units() if people == {unit} else None


def row_noise(context: Context) -> float:
    """Return about the scale of the noise in the number of rows."""
    return size_noise(context) * SIZE_ROWS


def size_error(context: Context, relations: Iterable[Relation], unit: str) -> float:
    """Return about how far the noisy number of rows of the tables that relations read may be off, 19 times of 20."""
    scans = [Scan(node.table) for relation in relations for node in walk(relation) if isinstance(node, Scan)]
    most = (scan.stability(context, unit).max_rows for scan in scans)
    rows = max((SIZE_ROWS if each is None else min(each, SIZE_ROWS) for each in most), default=SIZE_ROWS)
    return WITHIN * size_noise(context) * rows


def unit_error(context: Context) -> float:
    """Return about how far the noisy number of units may be off, 19 times of 20."""
    return WITHIN * size_noise(context)


def size_noise(context: Context) -> float:
    """Return about the scale of the noise in the number of units; that in rows is SIZE_ROWS times as large."""
    private = sum(table.private for table in context.dataset.tables.values())
    return (private + 1) / float(context.dataset.size_epsilon)
