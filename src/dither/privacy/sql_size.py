"""The size of the SQL that a plan compiles to, so that SQL too large for a database is refused before the charge."""

from __future__ import annotations

from collections import Counter
from typing import assert_never

from sqlglot import exp

from dither.errors import Unsupported
from dither.plan.context import Context
from dither.plan.measures.clipped import ClippedSums
from dither.plan.measures.core import Measure
from dither.plan.relations.facts import needs_order
from dither.plan.relations.project import columns_read
from dither.plan.relations.scan import Scan
from dither.plan.sql.builders import count_star, select
from dither.plan.sql.dialect import RawKind
from dither.plan.sql.statement import MAX_SQL_NODES, SqlStatement, TableSource
from dither.plan.traversal import walk
from dither.schema import Boolean, Category, Domain, Identifier, Moment, Number, Reference, Table

MAX_COLUMNS = 1_600  # PostgreSQL rejects any SELECT of more than 1,664 columns
MAX_DEPTH = 150  # usual plans have 30 to 50 levels; Python and databases fail at several hundred


def check_compilable(ctx: Context, measure: Measure) -> None:
    """Build the SQL of a plan as an engine would; refuse, before the charge, SQL that is too large for a database.

    The SQL that cleans a table depends on the schema alone. If its size is known, its tables are read as if prepared,
    and the size is added.
    """
    tables = {node.table for node in walk(measure) if isinstance(node, Scan)}
    measured = tables <= ctx.scan_nodes.keys()
    sources = {name: typical_source(ctx.table(name), is_prepared=measured) for name in tables}
    counted = frozenset(columns_read(measure))
    statement = SqlStatement(ctx, sources, counted_columns=counted, keeps_order=needs_order(measure))
    query = measure.vector_query(statement)
    # A capped table is cleaned anew for each limit below its cap, and for its units' sizes.
    froms = [part.this.args["from_"].this for part in query.select.ctes if "from_" in part.this.args]
    read = Counter(table.name for table in froms if isinstance(table, exp.Table) and table.this.quoted)
    nodes = sum(read[name] * ctx.scan_nodes[name] for name in tables) if measured else 0
    # Where ranks are stored, the rows of heavy units are selected by the same SQL once more.
    nodes += statement.size.nodes * (1 + any(isinstance(node, ClippedSums) for node in walk(measure)))
    most = max(MAX_COLUMNS, *(len(table.columns) + 64 for table in ctx.dataset.tables.values()))
    if nodes > MAX_SQL_NODES or statement.size.depth > MAX_DEPTH or statement.size.columns > most:
        raise Unsupported("the plan's SQL would be too large, too deep or too wide for a database; split the query")


def scan_sizes(ctx: Context) -> dict[str, int]:
    """Measure the SQL that reads and cleans each table, with everything that a plan may make it compute."""
    sizes = {}
    for name, table in ctx.dataset.tables.items():
        sources, every_column = {name: typical_source(table)}, frozenset(table.columns)
        statement = SqlStatement(ctx, sources, counted_columns=every_column)
        statement.finish(select(count_star()).from_(statement.table(Scan(name)), copy=False))
        sizes[name] = statement.size.nodes
    return sizes


def typical_source(table: Table, is_prepared: bool = False) -> TableSource:
    """Return a source that stands for a table in any engine, to build SQL without opening one."""
    kinds = {name: typical_kind(column.domain) for name, column in table.columns.items()}
    source = exp.Table(this=exp.to_identifier(table.name, quoted=True))
    return TableSource(source, kinds, is_prepared, "o" if is_prepared else None, deduplicated=is_prepared)


def typical_kind(domain: Domain) -> RawKind:
    """Return the kind of raw column that usually stores values of a domain; for moments the one with most SQL."""
    match domain:
        case Number():
            return "decimal"
        case Boolean():
            return "boolean"
        case Moment():
            return "text"
        case Category():
            return "text"
        case Reference(kind=kind) | Identifier(kind=kind):
            return kind
        case _:
            assert_never(domain)
