"""The public noisy sizes of private tables, as far as they say something about the units that a search counts."""

from __future__ import annotations

from math import ceil

from dither.plan.context import Context
from dither.plan.relations.bounding import LimitGroupsPerUnit, LimitRowsPerUnit
from dither.plan.relations.core import Relation
from dither.plan.relations.filter import Filter
from dither.plan.relations.joins import PublicJoin
from dither.plan.relations.mark_join import MarkJoin
from dither.plan.relations.project import Project
from dither.plan.relations.scan import Scan
from dither.post.query.typical_rows import SIZE_ROWS, known_units, size_noise
from dither.privacy.protocol import LARGEST_BOUND, KnownSize


def public_sizes(
    context: Context, relation: Relation, unit: str, row_size: int, step: int, sums: bool
) -> tuple[KnownSize, ...]:
    """Return what is public about the units of a relation and their contributions, of which a row has `row_size`.

    The noisy size of a table counts at most SIZE_ROWS rows of each unit. Conditions leave fewer rows than that, and
    `sums` of values may be far smaller than their rows allow.
    """
    table, units, scale = _counted_table(context, relation), known_units(context, unit), size_noise(context)
    rows = context.noisy_rows(table) if table is not None else None
    if table is None or units is None or rows is None or rows < 1:
        return ()
    whole = relation == Scan(table)
    known = [(SIZE_ROWS * row_size, rows * row_size, ceil(scale * SIZE_ROWS * row_size), whole and not sums)]
    if table == _first_table(context, unit):
        known.append((step, units * step, ceil(scale * step), whole))
    return tuple(KnownSize(*size) for size in known if max(size) <= LARGEST_BOUND)


def _first_table(context: Context, unit: str) -> str | None:
    """Return the table whose units were counted, as a kernel chooses it."""
    tables = context.dataset.tables.items()
    return next((name for name, table in tables if table.private and name in context.unit(unit).keys), None)


def _counted_table(context: Context, relation: Relation) -> str | None:
    """Return the table of which a relation has some of the rows, each at most once; None if there is no such table."""
    match relation:
        case Scan(table=table):
            return table
        case Filter(child=child) | Project(child=child):
            return _counted_table(context, child)
        case LimitRowsPerUnit(child=child) | LimitGroupsPerUnit(child=child):
            return _counted_table(context, child)
        case MarkJoin(left=left):
            return _counted_table(context, left)
        case PublicJoin(child=child) if relation.multiplicity(context) == 1:
            return _counted_table(context, child)
        case _:
            return None
