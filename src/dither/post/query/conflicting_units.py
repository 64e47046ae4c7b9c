"""Find tables that two units with budgets cover by different keys: no limit on rows holds for both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dither.errors import Unbounded
from dither.plan.context import Context
from dither.plan.measures.core import Measure
from dither.plan.relations.bounding import LimitRowsPerUnit
from dither.plan.relations.core import Relation
from dither.plan.relations.scan import Scan
from dither.plan.traversal import walk


def conflicts(context: Context) -> Iterator[str]:
    """Yield, for each table of which no rows can be asked for, which units are in each other's way, and what to do."""
    for table in context.dataset.tables.values():
        if table.private and (pair := conflicting_units(context, table.name)) is not None:
            yield conflict_text(table.name, *pair)


def conflict_text(table: str, one: str, other: str) -> str:
    """Say why the rows of a table cannot be bounded for two units, and what to do."""
    return (
        f"the units {one} and {other} both have a budget and cover table {table} by different keys: a limit on "
        f"the rows of each {one} does not bound what one {other} changes, so no query of {table} can be answered; "
        "leave one of the two out of budgets, or declare it with kind: row, which protects single rows"
    )


def conflicting_units(context: Context, table: str) -> tuple[str, str] | None:
    """Return two units with budgets of which one stays unbounded whatever is limited; None if limits can hold for all.

    A limit on the rows of one unit moves up to two rows for each row of another (limit_rows_per_unit.md), and another
    unit that is not coarser may have any number of those.
    """
    covering = [name for name in context.budgeted_units if _covers(context, name, table)]
    keyed = [name for name in covering if context.unit(name).kind != "row"]
    if len(keyed) < 2:
        return None
    unbounded: list[tuple[str, str]] = []
    for own in keyed:
        limited = LimitRowsPerUnit(Scan(table), own, 1)
        left = [other for other in covering if limited.stability(context, other).max_rows is None]
        if not left:
            return None
        unbounded.append((own, left[0]))
    return unbounded[0]


def _covers(context: Context, unit: str, table: str) -> bool:
    """Return True if rows of a table belong to a unit."""
    scanned: Relation = Scan(table)
    return scanned.stability(context, unit).max_rows != 0


def refuse_conflicting_units(context: Context, relation: Relation, unit: str, measures: Iterable[Measure]) -> None:
    """Refuse measures that stay unbounded for a unit because another one covers the same table by a different key.

    Their limits are filled in.
    """
    tables = {node.table for node in walk(relation) if isinstance(node, Scan)}
    pairs = {table: pair for table in sorted(tables) if (pair := conflicting_units(context, table)) is not None}
    if not pairs:
        return
    table, pair = next(iter(pairs.items()))
    for measure in measures:
        for other in context.budgeted_units:
            try:
                if other != unit:
                    measure.sensitivity(context, other)
            except Unbounded:
                raise Unbounded(conflict_text(table, *pair)) from None
