"""The number of rows of each unit without grouping all rows: from stored sizes, or before a cap cuts them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sqlglot import exp

from dither.plan.relations.core import Relation
from dither.plan.relations.filter import Filter
from dither.plan.relations.joins import PublicJoin, UnitJoin, join_pairs, trial_pairs
from dither.plan.relations.project import Project
from dither.plan.relations.scan import Scan
from dither.plan.sql.builders import Sql, and_, binary, call, count_star, literal, select, sub
from dither.plan.sql.statement import SqlStatement, all_equal, column_ref, join_select, with_alias
from dither.plan.traversal import walk


@dataclass(frozen=True)
class ScanChain:
    """The relations from one down to a scan, each row of which leads to at most one row of the first, of its unit.

    `others` are the sides that they join to those rows.
    """

    nodes: tuple[Relation, ...]
    others: tuple[Relation, ...]
    scan: Scan


def chain_to_scan(statement: SqlStatement, node: Relation, unit: str) -> ScanChain | None:
    """Return the relations from this one down to a scan whose rows stay one row each of the same unit, or None."""
    others: tuple[Relation, ...] = ()
    match node:
        case Scan():
            return ScanChain((node,), (), node)
        case Filter(child=child) | Project(child=child):
            pass
        case PublicJoin(child=child, how="inner" | "left") if _matches_once(statement, node):
            others = (node.public,)
        case UnitJoin() if (sides := _sides_with_one_row(statement, node, unit)) is not None:
            child, others = sides[0], sides[1:]
        case _:
            return None
    below = chain_to_scan(statement, child, unit)
    return below and ScanChain((node, *below.nodes), (*others, *below.others), below.scan)


def is_fixed(statement: SqlStatement, node: Relation) -> bool:
    """Tell whether reading rows again surely gives the same rows: a snapshot's, filtered at most."""
    match node:
        case Filter(child=child) | Project(child=child):
            return is_fixed(statement, child)
        case Scan(table=table):
            return statement.sources[table].is_prepared and statement.sources[table].deduplicated
        case _:
            return False


def _matches_once(statement: SqlStatement, join: PublicJoin) -> bool:
    """Tell whether a row surely matches at most one public row.

    It is not enough that the public rows were counted, since their file may have changed: they are a snapshot's, or
    joined on a key of which every statement keeps one row.
    """
    table, names = join.source(statement.ctx)
    is_key = any(names.get(column) == table.unique for _, column in join.on)
    surely = statement.sources[table.name].is_prepared or (is_key and statement.ctx.enforces_unique_key(table))
    return surely and join.multiplicity(statement.ctx) <= 1


def _sides_with_one_row(statement: SqlStatement, join: UnitJoin, unit: str) -> tuple[Relation, Relation] | None:
    """Return the sides of a join, if the second one surely has at most one row of each unit."""
    sides = join.sides_with_one_row(statement.ctx, unit)
    joins = [node for node in walk(sides[1]) if isinstance(node, PublicJoin)] if sides is not None else []
    return sides if all(_matches_once(statement, node) for node in joins) else None


def sizes_of_units(
    statement: SqlStatement, node: Relation, unit: str, hidden: Sequence[str]
) -> exp.Select | exp.SetOperation | None:
    """Select each unit that has rows, with their number `n`; None if only the rows that remain tell it.

    Sizes are stored, or counted before a cap cuts rows. An inner join with a public table may drop rows; one with a
    side that has at most one row of each unit keeps all rows of a unit or none.
    """
    match node:
        case Project(child=child):
            return sizes_of_units(statement, child, unit, hidden)
        case Scan():
            return _sizes_of_scan(statement, node, unit, hidden)
        case UnitJoin(how="inner") if (sides := _sides_with_one_row(statement, node, unit)) is not None:
            sizes = sizes_of_units(statement, sides[0], unit, hidden)
            if sizes is None:
                return None
            by = [*statement.unit_columns(unit), *statement.trial_columns()]
            same = all_equal([(column_ref(column, "l"), column_ref(column, "r")) for column in by])
            columns = [column_ref(column, "l") for column in (*hidden, "n")]
            other = statement.table(sides[1])
            return join_select(columns, (statement.add_subquery(sizes), "l"), (other, "r"), same, "inner")
        case PublicJoin(child=Scan(table=table) as scan, how="inner") if node.multiplicity(statement.ctx) <= 1:
            if unit in statement.sources[table].size_columns:
                return _without_dropped(statement, node, _stored_sizes(statement, scan, unit, hidden), hidden)
            return _matches_under_cap(statement, node, scan, unit, hidden)
        case _:
            return None


def _sizes_of_scan(statement: SqlStatement, scan: Scan, unit: str, hidden: Sequence[str]) -> exp.Select | None:
    """Select the sizes of units in a scan."""
    if unit in statement.sources[scan.table].size_columns:
        return _stored_sizes(statement, scan, unit, hidden)
    cap = statement.ctx.row_cap(scan.table)
    if cap is None or cap[0] != unit:
        return None
    # A unit keeps all rows up to the cap: which ones does not matter for their number.
    return _count_by(scan.rows(statement), hidden, cap[1])


def _count_by(table: exp.Table, hidden: Sequence[str], most: int) -> exp.Select:
    """Count the rows of each unit, up to a number."""
    units: list[Sql] = [column_ref(column) for column in hidden]
    number = call("LEAST", count_star(), literal(most))
    body = select(*units, with_alias(number, "n")).from_(table.copy(), copy=False)
    return body.group_by(*(column.copy() for column in units), copy=False)


def _stored_sizes(statement: SqlStatement, scan: Scan, unit: str, hidden: Sequence[str]) -> exp.Select:
    """Select the stored sizes of a scan's units."""
    units: list[Sql] = [column_ref(column) for column in hidden]
    size = column_ref(statement.size_column(unit))
    sizes = select(*units, with_alias(size, "n")).from_(statement.add_subquery(scan.select(statement)), copy=False)
    return sizes.where(binary(exp.GT, size.copy(), literal(0)), copy=False)


def _without_dropped(statement: SqlStatement, join: PublicJoin, sizes: exp.Select, hidden: Sequence[str]) -> exp.Select:
    """Subtract from each unit's size the number of its rows that match no public row; leave out units without rows."""
    rows, public = statement.add_subquery(join.child.select(statement)), statement.table(join.public)
    units = [column_ref(column, "l") for column in hidden]
    matched = all_equal(join_pairs(statement, join.child, join.public, join.on))
    dropped = join_select([*units, with_alias(count_star(), "m")], (rows, "l"), (public, "r"), matched, "anti")
    counted = statement.add_subquery(dropped.group_by(*(column.copy() for column in units), copy=False))
    same = [binary(exp.NullSafeEQ, column_ref(column, "x"), column_ref(column, "y")) for column in hidden]
    lost = exp.Coalesce(this=column_ref("m", "y"), expressions=[literal(0)])
    columns = [*(column_ref(column, "x") for column in hidden), with_alias(sub(column_ref("n", "x"), lost), "n")]
    left = join_select(columns, (statement.add_subquery(sizes), "x"), (counted, "y"), and_(same), "left")
    kept = binary(exp.GT, column_ref("n"), literal(0))
    names = map(column_ref, [*hidden, "n"])
    return select(*names).from_(statement.add_subquery(left), copy=False).where(kept, copy=False)


def _matches_under_cap(
    statement: SqlStatement, join: PublicJoin, scan: Scan, unit: str, hidden: Sequence[str]
) -> exp.SetOperation | None:
    """Count each unit's kept rows that match a public row, with those that match none in one pass.

    Only of units beyond a large cap does it matter which rows are kept.
    """
    cap, dialect = statement.ctx.row_cap(scan.table), statement.dialect
    if cap is None or cap[0] != unit or cap[1] < dialect.many_rows or not dialect.shares_subqueries:
        return None
    rows = scan.rows(statement)
    statement.read_once(rows)  # the rows that are counted are those that are cut
    matches = statement.add_subquery(_matches(statement, join, rows, hidden, "left"))
    units: list[Sql] = [column_ref(column) for column in hidden]
    numbers = [with_alias(count_star(), "a"), with_alias(exp.Count(this=column_ref("m")), "n")]
    counted = select(*units, *numbers).from_(matches, copy=False)
    counts = statement.add_subquery(counted.group_by(*(column.copy() for column in units), copy=False))
    statement.read_once(counts)  # a unit is within the cap or beyond it, not both
    is_within, has_rows = binary(exp.LTE, column_ref("a"), literal(cap[1])), binary(exp.GT, column_ref("n"), literal(0))
    within = select(*map(column_ref, [*hidden, "n"])).from_(counts.copy(), copy=False)
    within = within.where(and_([is_within, has_rows]), copy=False)
    beyond = select(*map(column_ref, hidden)).from_(counts.copy(), copy=False)
    beyond = beyond.where(binary(exp.GT, column_ref("a"), literal(cap[1])), copy=False)
    unit_key = [column_ref(column) for column in statement.unit_columns(unit)]
    large, columns = statement.add_subquery(beyond), scan.columns(statement)
    kept = statement.cut_partitions(rows, large, columns, unit_key, cap[1], scan.order(statement))
    cut = statement.add_subquery(_matches(statement, join, statement.add_subquery(kept), hidden, "inner"))
    return exp.union(within, _count_by(cut, hidden, cap[1]), distinct=False, copy=False)


def _matches(
    statement: SqlStatement, join: PublicJoin, rows: exp.Table, hidden: Sequence[str], how: Literal["inner", "left"]
) -> exp.Select:
    """Select the units of rows of a join's scan, with `m`, which is NULL for those that match no public row."""
    pairs = join_pairs(statement, join.child, join.public, join.on)
    columns = [*(column_ref(column, "l") for column in hidden), with_alias(pairs[0][1], "m")]
    matched = all_equal([*pairs, *trial_pairs(statement)])
    return join_select(columns, (rows.copy(), "l"), (statement.table(join.public), "r"), matched, how)
