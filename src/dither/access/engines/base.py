"""The base of all SQL engines: builds one statement from a measure, runs it, and converts its groups to the vector."""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from sqlglot import exp

from dither.access.exact_cells import ROWS_PER_GROUP, CellReader, RowRange, TableKeys, write_sorted
from dither.access.inspection import ROWS_AT_OPENING, ColumnInspection, TableInspection, findings
from dither.access.result_vector import (
    GroupCounts,
    KeyHolders,
    columns_to_count,
    corrections_in,
    to_groups,
    to_vector,
)
from dither.errors import EngineFailure, InvalidSchema
from dither.plan.context import Context, PublicTableFacts
from dither.plan.measures.columns import ColumnCounts
from dither.plan.measures.core import Measure, Vector, VectorQuery
from dither.plan.measures.partitions import PartitionCounts
from dither.plan.relations.cleaning import beyond_bounds, is_clean
from dither.plan.relations.facts import needs_order
from dither.plan.relations.moments import source_with_moments
from dither.plan.relations.scan import Scan
from dither.plan.sql.builders import Sql, case, count_star, integer, is_not_null, is_null, select
from dither.plan.sql.dialect import Dialect, RawKind
from dither.plan.sql.statement import SqlStatement, TableSource, column_ref, with_alias
from dither.schema import Column, Dataset, Reference, Scalar, Table


class SqlEngine(ABC):
    """Answers measures with SQL; a subclass finds the tables, and runs and stops statements."""

    dialect: Dialect

    def __init__(self, dataset: Dataset) -> None:
        self._lock = threading.Lock()
        self._corrections: dict[str, int] = {}
        self.failure: str | None = None
        self.ctx = Context(dataset)
        self._sources = self._open_sources(dataset)
        self._lock_down(dataset)
        self.ctx = Context(dataset, self._facts())

    def _open_sources(self, dataset: Dataset) -> dict[str, TableSource]:
        """Find every table; name all that cannot be read at once."""
        sources, problems = {}, []
        for name, table in dataset.tables.items():
            try:
                sources[name] = self._table_source(table)
            except InvalidSchema as problem:
                problems.append(str(problem))
        if problems:
            raise InvalidSchema(*problems)
        return sources

    def _lock_down(self, dataset: Dataset) -> None:
        """Give up permissions that are not needed once the tables are found."""

    @abstractmethod
    def _table_source(self, table: Table) -> TableSource:
        """Return the SQL that reads a table and the kinds of its columns; raise InvalidSchema if it cannot be read."""

    @abstractmethod
    def _run(self, statement: Sql, deadline: float | None = None) -> pa.Table:
        """Run a statement for at most `deadline` seconds."""

    @abstractmethod
    def cancel(self) -> None:
        """Stop the running statement, from another thread."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection to the data."""

    def vector(self, measure: Measure, deadline: float | None = None, secret: int = 0) -> Vector:
        """Return the integers of a measure, one per declared cell."""
        query = measure.vector_query(self._statement(measure, secret))
        return to_vector(measure, query, self._run_safely(query.select, deadline))

    def groups(
        self, measure: PartitionCounts, deadline: float | None = None, secret: int = 0
    ) -> GroupCounts | KeyHolders:
        """Return the keys that occur and their counts, or the units that have them."""
        query = measure.vector_query(self._statement(measure, secret))
        return to_groups(self.ctx, measure, self._run_safely(query.select, deadline))

    def write_cells(self, measure: ColumnCounts, folder: Path, secret: int = 0) -> None:
        """Write the exact cells that have rows to a new private folder, sorted: the one read of a table's release."""
        query = measure.vector_query(self._statement(measure, secret))
        with self._lock:
            try:
                self._write_cells(query, folder)
            except Exception as error:  # a driver's error text may contain a value: for the curator only
                self.failure = str(error)
                raise EngineFailure from None

    def _write_cells(self, query: VectorQuery, folder: Path) -> None:
        """Write the groups of a query as cells."""
        write_sorted(query, self._counting_corrections(self._batches(query.select)), folder)

    def _counting_corrections(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches, and count the corrections in them."""
        for batch in batches:
            self._corrections["values"] = self._corrections.get("values", 0) + corrections_in(batch)
            yield batch

    def _batches(self, statement: Sql) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a statement in batches."""
        yield from self._run(statement).to_batches(max_chunksize=ROWS_PER_GROUP)

    def check_workers(self, folder: Path) -> None:
        """Refuse a private folder that a worker cannot use; this engine works in this process alone."""

    def each_part(
        self, folder: Path, keys: TableKeys, parts: Sequence[RowRange], work: Callable[[RowRange, Vector], str]
    ) -> Iterator[str]:
        """Call `work` on the exact columns of each part of the written cells, and yield what it returns."""
        cells = CellReader(folder, keys)
        for part in parts:
            yield work(part, cells.read(part))

    def sql(self, measure: Measure) -> str:
        """Return the SQL that would run, for the curator."""
        return self.dialect.render(measure.vector_query(self._statement(measure)).select)

    def _statement(self, measure: Measure, secret: int = 0) -> SqlStatement:
        """Start the statement of a measure."""
        counted_columns, ordered = columns_to_count(measure), needs_order(measure)
        return SqlStatement(self.ctx, self._sources, self.dialect, secret, counted_columns, keeps_order=ordered)

    def _run_safely(self, statement: Sql, deadline: float | None) -> pa.Table:
        """Run a statement; report any failure as an EngineFailure without details, and count corrections."""
        with self._lock:
            try:
                result = self._run(statement, deadline)
            except Exception as error:  # a driver's error text may contain a value: for the curator only
                self.failure = str(error)
                raise EngineFailure from None
        self._corrections["values"] = self._corrections.get("values", 0) + corrections_in(result)
        return result

    def corrections(self) -> Mapping[str, int]:
        """Return, for the curator, the number of values corrected in the answers so far."""
        return dict(self._corrections)

    def inspect(self) -> Mapping[str, int]:
        """Return, for the curator, corrected values by "table.column" and rows dropped for lack of a key by "table"."""
        return {key: n for name, table in self.inspect_tables().items() for key, n in table.counts(name).items()}

    def inspect_tables(self) -> Mapping[str, TableInspection]:
        """Return, for the curator, the corrections of every table with their kinds."""
        return {name: self._inspect_table(name) for name in self.ctx.dataset.tables}

    def findings(self) -> list[str]:
        """Return, for the curator, what a look at the first records of every table finds; never fails."""
        try:
            tables = {name: self._inspect_table(name, ROWS_AT_OPENING) for name in self.ctx.dataset.tables}
        except Exception as error:  # a driver's error text may contain a value: for the curator only
            return [f"the records could not be inspected: {str(error)[:500]}"]
        return list(findings(self.ctx.dataset, tables))

    def _inspect_table(self, name: str, limit: int | None = None) -> TableInspection:
        """Count the corrected values of each column and the dropped rows of one table, or of its first records only."""
        source, columns = self._sources[name], self.ctx.table(name).columns
        if limit is not None:
            first = select(exp.Star()).from_(source.source.copy(), copy=False).limit(limit, copy=False)
            source = replace(source, source=first.subquery("raw", copy=False))
        statement = SqlStatement(self.ctx, {**self._sources, name: source}, self.dialect, keeps_order=False)
        flags = {
            f"{key}{i}": flag
            for i, column in enumerate(columns.values())
            for key, flag in self._flags(column, source.kinds[column.name]).items()
        }
        selected = [with_alias(flag, key) for key, flag in flags.items()]
        flagged = statement.add_subquery(select(*selected).from_(source_with_moments(statement, name), copy=False))
        sums = [with_alias(exp.Sum(this=column_ref(key)), key) for key in flags]
        counted = self._run(statement.finish(select(*sums, with_alias(count_star(), "n")).from_(flagged, copy=False)))
        row = {key: int(value or 0) for key, value in counted.to_pylist()[0].items()}
        inspected = {
            key: ColumnInspection(source.kinds[key], row[f"c{i}"], row[f"m{i}"], row[f"l{i}"], row[f"h{i}"])
            for i, key in enumerate(columns)
        }
        capped = self._count_capped_rows(name, source)
        dropped = row["n"] - capped - self._count_valid_rows(name) if limit is None else 0
        return TableInspection(row["n"], dropped, inspected, capped)

    def _flags(self, column: Column, kind: RawKind) -> dict[str, Sql]:
        """Build 1 for a record that is corrected (c), missing (m), below (l) or above (h) its bounds, else 0."""
        raw, zone = exp.column(column.name, quoted=True), self.ctx.dataset.timezone
        below, above = beyond_bounds(column, raw, kind, zone, self.dialect)
        missing = exp.false() if column.domain.nullable else is_null(raw)
        flags = {key: case([(c, integer(1))], integer(0)) for key, c in {"m": missing, "l": below, "h": above}.items()}
        return flags | {"c": case([(is_clean(column, raw, kind, zone, self.dialect), integer(0))], integer(1))}

    def _count_capped_rows(self, table: str, source: TableSource) -> int:
        """Count the rows of a table, read from this source, that are dropped because their unit has too many."""
        if self.ctx.row_cap(table) is None:
            return 0
        units = {name: replace(unit, max_rows={}) for name, unit in self.ctx.dataset.units.items()}
        uncapped = replace(self.ctx, dataset=replace(self.ctx.dataset, units=units))
        return self._count_valid_rows(table, source, uncapped) - self._count_valid_rows(table, source)

    def _count_valid_rows(self, table: str, source: TableSource | None = None, ctx: Context | None = None) -> int:
        """Count the rows that a scan of the table keeps; from another source, or under another description."""
        sources = {**self._sources, table: source or self._sources[table]}
        statement = SqlStatement(ctx or self.ctx, sources, self.dialect, keeps_order=False)
        scan = statement.table(Scan(table))
        counted = self._run(statement.finish(select(with_alias(count_star(), "n")).from_(scan, copy=False)))
        return int(counted.column("n")[0].as_py())

    def _facts(self) -> PublicTableFacts:
        """Count the values and multiplicities of the columns of public tables, and of no others."""
        columns = [column.domain for table in self.ctx.dataset.tables.values() for column in table.columns.values()]
        referenced = {(domain.table, domain.column) for domain in columns if isinstance(domain, Reference)}
        public = [table for table in self.ctx.dataset.tables.values() if not table.private]
        values: dict[str, tuple[Scalar, ...]] = {}
        multiplicity: dict[str, int] = {}
        for table, name in ((public_table, name) for public_table in public for name in public_table.columns):
            frequencies = self._frequencies(table.name, name)
            multiplicity[f"{table.name}.{name}"] = max(frequencies.values(), default=0)
            if (table.name, name) in referenced:
                values[f"{table.name}.{name}"] = tuple(sorted(frequencies, key=lambda value: (str(type(value)), value)))
        return PublicTableFacts(values, multiplicity)

    def _frequencies(self, table: str, column: str) -> dict[Scalar, int]:
        """Count the rows of each value of a column, NULL excluded."""
        statement = SqlStatement(self.ctx, self._sources, self.dialect, keeps_order=False)
        scan = statement.table(Scan(table))
        key = column_ref(f"c{list(self.ctx.table(table).columns).index(column)}")
        body = select(with_alias(key, "k"), with_alias(count_star(), "n")).from_(scan, copy=False)
        body.where(is_not_null(key), copy=False)
        counted_rows = self._run(statement.finish(body.group_by(key.copy(), copy=False)))
        return dict(zip(counted_rows.column("k").to_pylist(), counted_rows.column("n").to_pylist(), strict=True))


def kinds_of(table: Table, stored: Mapping[str, RawKind]) -> dict[str, RawKind]:
    """Return the kind of each declared column; refuse a source that lacks one."""
    missing = [name for name in table.columns if name not in stored]
    if missing:
        raise InvalidSchema(
            f"the source of table {table.name}, {place_of(table)}, has no column {', '.join(missing)};"
            f" it has: {', '.join(stored)}"
        )
    return {name: stored[name] for name in table.columns}


def place_of(table: Table) -> str:
    """Return where a table's records are: a path, or a name in a database."""
    options = table.source.options
    return options.get("path") or options.get("table", table.name)


def unreadable_source(table: Table, reason: object, hint: str = "") -> InvalidSchema:
    """Build the error for a source that cannot be opened; only its curator opens it, and sees the path and reason."""
    first_line = next(iter(str(reason).strip().splitlines()), "")[:300]
    return InvalidSchema(f"the source of table {table.name} cannot be read: {place_of(table)}: {first_line}{hint}")


@contextlib.contextmanager
def time_limit(seconds: float | None, stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` after `seconds`, and again until the block ends: an early call may find nothing to stop."""
    if seconds is None:
        yield
        return
    ended = threading.Event()
    watcher = threading.Thread(target=_stop_repeatedly, args=(ended, seconds, stop), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _stop_repeatedly(ended: threading.Event, seconds: float, stop: Callable[[], None]) -> None:
    """Call `stop` after `seconds`, then every 50 ms, until the event is set."""
    wait = max(0.0, seconds)
    while not ended.wait(wait):
        stop()
        wait = 0.05
