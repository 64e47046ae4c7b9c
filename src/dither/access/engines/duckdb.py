"""DuckDB, in the process: reads Parquet, CSV and DuckDB files, with limits on memory, disk and time."""

from __future__ import annotations

import copy
import csv
import gzip
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from glob import glob
from pathlib import Path
from typing import TextIO

import duckdb
import pyarrow as pa
from sqlglot import exp

from dither.access.csv_quotes import first_unclosed_quote
from dither.access.engines.base import SqlEngine, kinds_of, time_limit, unreadable_source
from dither.errors import InvalidSchema
from dither.plan.sql.builders import Sql, binary, case, literal, select, sub
from dither.plan.sql.dialect import Dialect, RawKind
from dither.plan.sql.statement import TableSource
from dither.schema import Dataset, Table

# The memory limit of DuckDB for all engines over one dataset; the process then stays below 4 GB.
MEMORY = "3500MB"
# DuckDB retains about 10 KB for each statement that ranks rows, up to 20 MB, until it is closed; reopening takes 50 ms.
MAX_STATEMENTS = 64
KINDS: dict[str, RawKind] = {
    "TINYINT": "integer", "SMALLINT": "integer", "INTEGER": "integer", "BIGINT": "integer", "HUGEINT": "integer",
    "UTINYINT": "integer", "USMALLINT": "integer", "UINTEGER": "integer", "UBIGINT": "integer", "UHUGEINT": "integer",
    "FLOAT": "float", "DOUBLE": "float", "VARCHAR": "text", "BOOLEAN": "boolean", "DATE": "date",
    "TIMESTAMP": "timestamp", "TIMESTAMP_S": "timestamp", "TIMESTAMP_MS": "timestamp", "TIMESTAMP_NS": "timestamp",
    "TIMESTAMP WITH TIME ZONE": "instant", "TIMESTAMPTZ_NS": "instant",
}  # fmt: skip


def kind_of(declared: str) -> RawKind:
    """Return the kind of a DuckDB type."""
    if declared.startswith("DECIMAL"):
        return "decimal"
    return "text" if declared.startswith("ENUM") else KINDS.get(declared, "other")


def _floor_nanoseconds(source: Sql, stored: Mapping[str, str], table: Table) -> Sql:
    """Read nanoseconds as microseconds, rounded down: DuckDB's cast rounds to the nearest, perhaps to the next year."""
    names = [name for name in table.columns if stored.get(name) in ("TIMESTAMP_NS", "TIMESTAMPTZ_NS")]
    if not names:
        return source
    floored = [exp.alias_(_microseconds(exp.column(name, quoted=True)), name, quoted=True) for name in names]
    return select(exp.Star(replace=floored)).from_(source, copy=False).subquery("raw", copy=False)


def _microseconds(raw: Sql) -> Sql:
    """Build the timestamp of a column of nanoseconds."""
    nanoseconds = exp.Anonymous(this="epoch_ns", expressions=[raw])
    is_cut = binary(exp.LT, binary(exp.Mod, nanoseconds, literal(1000)), literal(0))
    floored = sub(binary(exp.IntDiv, nanoseconds, literal(1000)), case([(is_cut, literal(1))], literal(0)))
    return exp.Anonymous(this="make_timestamp", expressions=[floored])


def _csv_source(table: str, path: str, delimiter: str) -> Sql:
    """Read a CSV file with fixed options, every column as text.

    Types, quotes or widths guessed from the data would depend on all records: one record could change how the others
    are read. A record that does not fit is padded, cut or dropped, without effect on others.
    """
    names = _column_names(table, path, delimiter)
    lowered = [name.lower() for name in names]
    # A name that is empty or occurs twice cannot be declared, and gets a place number that no declared name has.
    column_types = [
        _option(
            exp.Literal.string(name if name and lowered.count(name.lower()) == 1 else f"{name}${place}"),
            exp.Literal.string("VARCHAR"),
        )
        for place, name in enumerate(names)
    ]
    csv_options: dict[str, Sql] = {
        "auto_detect": exp.false(),
        "columns": exp.Struct(expressions=column_types),
        "header": exp.true(),
        "delim": exp.Literal.string(delimiter),
        "quote": exp.Literal.string('"'),
        "escape": exp.Literal.string('"'),
        "comment": exp.Literal.string(""),
        "null_padding": exp.true(),
        "strict_mode": exp.false(),
        "ignore_errors": exp.true(),
        # A parallel reader fails on the whole file if a quoted line break is next to a short record.
        "parallel": exp.false(),
    }
    named_options = [_option(exp.to_identifier(name), value) for name, value in csv_options.items()]
    return exp.Anonymous(this="read_csv", expressions=[exp.Literal.string(path), *named_options])


def _check_quotes(table: str, path: str, delimiter: str) -> None:
    """Refuse files with an unclosed quote, before the first query: the quote would swallow records."""
    for file_path in sorted(glob(path)):
        with _open_text(file_path, errors="replace") as file:
            line = first_unclosed_quote(file, delimiter)
        if line is not None:
            raise InvalidSchema(
                f"a quote in line {line} of {Path(file_path).name}, a file of table {table}, is unclosed or misplaced"
                " and would swallow the records after it; close it, and double every quote inside a quoted field"
            )


def _option(name: Sql, value: Sql) -> Sql:
    return exp.PropertyEQ(this=name, expression=value)


def _column_names(table: str, path: str, delimiter: str) -> list[str]:
    """Return the names in the first line, the same in every file; they come from the curator, not from a record."""
    headers = [_first_line(file_path, delimiter) for file_path in sorted(glob(path))]
    if not headers:
        raise FileNotFoundError("no such file")
    if not headers[0] or any(names != headers[0] for names in headers):
        raise InvalidSchema(f"every file of table {table} must begin with the same line of column names ({path})")
    return headers[0]


def _first_line(path: str, delimiter: str) -> list[str]:
    """Return the fields of a file's first line."""
    with _open_text(path) as file:
        return next(csv.reader(file, delimiter=delimiter), [])


def _open_text(path: str, errors: str = "strict") -> TextIO:
    """Open a text file, which may be compressed with gzip."""
    if path.endswith(".gz"):
        return gzip.open(path, "rt", newline="", encoding="utf-8-sig", errors=errors)
    return open(path, newline="", encoding="utf-8-sig", errors=errors)


class DatabaseInstance:
    """One DuckDB instance, from when it is opened until its last statement has ended."""

    def __init__(self, scratch: str, setup: Sequence[str] = ()) -> None:
        # Two instances that overlap must not spill into each other's files.
        self._spill = tempfile.TemporaryDirectory(dir=scratch)
        self.connection = duckdb.connect(":memory:", config={"temp_directory": self._spill.name})
        self.statement_count = self.running_statements = 0
        self.had_failure = self.is_broken = False
        try:
            for statement in setup:
                self.connection.execute(statement)
        except duckdb.Error:
            self.close()
            raise

    @property
    def needs_replacement(self) -> bool:
        """True if the next statement must use a new instance: at once if this one is broken, else once it is idle."""
        return self.is_broken or (
            not self.running_statements and (self.had_failure or self.statement_count >= MAX_STATEMENTS)
        )

    def record_failure(self, problem: duckdb.Error) -> None:
        """Note that a statement failed; after fatal and internal errors DuckDB refuses all other statements."""
        self.had_failure = True
        self.is_broken |= isinstance(problem, duckdb.FatalException | duckdb.InternalException)

    def close(self) -> None:
        """Close the connection and remove its temporary files."""
        self.connection.close()
        self._spill.cleanup()


class Database:
    """A DuckDB shared by several engines of this process, reopened now and then while it is idle.

    One database per engine would cost 5 MB and nine threads each, and the memory that each keeps for its statements
    would add up.
    """

    def __init__(self) -> None:
        self.scratch = tempfile.TemporaryDirectory(prefix="dither-")
        self._instance = DatabaseInstance(self.scratch.name)
        self._engines: set[int] = set()
        self._lock = threading.Lock()
        self._setup: list[str] = []

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """The connection for later statements."""
        return self._instance.connection

    def run_setup(self, statement: str) -> None:
        """Run a setup statement now, and again whenever the database is reopened."""
        self._setup.append(statement)
        self.connection.execute(statement)

    @contextmanager
    def cursor(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """Open a connection for one statement; after a failed statement, the next uses a new instance."""
        instance = self._acquire()
        try:
            with closing(instance.connection.cursor()) as cursor:
                yield cursor
        except duckdb.Error as problem:
            with self._lock:
                instance.record_failure(problem)
            raise
        finally:
            self._release(instance)

    def _acquire(self) -> DatabaseInstance:
        """Return the instance for a statement; replace it first by a new one with the same setup if needed."""
        with self._lock:
            if self._instance.needs_replacement:
                replaced, self._instance = self._instance, DatabaseInstance(self.scratch.name, self._setup)
                self._retire(replaced)
            self._instance.running_statements += 1
            self._instance.statement_count += 1
            return self._instance

    def _release(self, instance: DatabaseInstance) -> None:
        """Return an instance after a statement, and close it if it has been replaced."""
        with self._lock:
            instance.running_statements -= 1
            if instance is not self._instance:
                self._retire(instance)

    def _retire(self, instance: DatabaseInstance) -> None:
        """Close a replaced instance once it is idle."""
        if not instance.running_statements:
            instance.close()

    def add_engine(self, engine: object) -> None:
        """Register one more engine."""
        with self._lock:
            self._engines.add(id(engine))

    def remove_engine(self, engine: object) -> None:
        """Unregister an engine, and close the database after the last one."""
        with self._lock:
            self._engines.discard(id(engine))
            if not self._engines:
                self._instance.close()
                self.scratch.cleanup()


class DuckDBEngine(SqlEngine):
    """Answers measures with DuckDB; only the aggregated groups leave it, as Arrow."""

    dialect = Dialect()

    def __init__(self, dataset: Dataset, memory: str = MEMORY, disk: str = "20GB", threads: int | None = None) -> None:
        self._database = Database()
        self._database.add_engine(self)
        self._running_cursor: duckdb.DuckDBPyConnection | None = None
        self._set_limits(memory, disk, threads)
        super().__init__(dataset)

    def another(self) -> DuckDBEngine:
        """Return one more engine over the same tables, which may run at the same time."""
        clone = copy.copy(self)
        clone._lock, clone._corrections, clone.failure = threading.Lock(), {}, None
        clone._running_cursor, clone.ctx = None, replace(self.ctx)
        self._database.add_engine(clone)
        return clone

    def _set_limits(self, memory: str, disk: str, threads: int | None) -> None:
        """Set the limits on memory, disk and threads, and the options on which results depend."""
        settings = {
            "memory_limit": memory,
            "max_temp_directory_size": disk,
            # The first rewrites ROW_NUMBER() <= k, which takes 2.5 times as long and spills without limit. The second
            # splits a window by the file's row groups, which takes 1.4 times as long. The third trusts Parquet's
            # statistics, which ignore NaN, and removes every check for it.
            "disabled_optimizers": "top_n_window_elimination,partitioned_execution,statistics_propagation",
            "preserve_insertion_order": "false",
            "TimeZone": "UTC",
        }
        for name, value in settings.items():
            self._set(name, exp.Literal.string(value))
        if threads is not None:
            self._set("threads", exp.Literal.number(threads))

    def _set(self, name: str, value: Sql) -> None:
        item = exp.SetItem(this=exp.EQ(this=exp.var(name), expression=value), kind="GLOBAL")
        self._run_setup(exp.Set(expressions=[item]))

    def _run_setup(self, statement: Sql) -> None:
        self._database.run_setup(self.dialect.render(statement))

    @property
    def _connection(self) -> duckdb.DuckDBPyConnection:
        """The connection for statements that run before the first query."""
        return self._database.connection

    def _lock_down(self, dataset: Dataset) -> None:
        """Forbid access outside the sources and changes of settings."""
        allowed = [
            exp.Literal.string(path)
            for path in dict.fromkeys([*self._readable_directories(dataset), self._database.scratch.name])
        ]
        self._set("allowed_directories", exp.Array(expressions=allowed))
        self._set("enable_external_access", exp.false())
        self._set("lock_configuration", exp.true())

    def _readable_directories(self, dataset: Dataset) -> list[str]:
        """List the directories that may be read."""
        return [str(Path(table.source.options["path"]).parent) for table in dataset.tables.values()]

    def _run(self, statement: Sql, deadline: float | None = None) -> pa.Table:
        with self._database.cursor() as self._running_cursor, time_limit(deadline, self.cancel):
            result: pa.Table = self._running_cursor.sql(self.dialect.render(statement)).to_arrow_table()
        return result

    def _batches(self, statement: Sql) -> Iterator[pa.RecordBatch]:
        with self._database.cursor() as self._running_cursor:
            yield from self._running_cursor.sql(self.dialect.render(statement)).fetch_record_batch(1 << 17)

    def _table_source(self, table: Table) -> TableSource:
        try:
            source = self._source(table, table.source.options)
            described = self._connection.execute(
                "DESCRIBE " + self.dialect.render(select(exp.Star()).from_(source.copy(), copy=False))
            ).fetchall()
            coarse = self._coarse_moments(table) if table.source.kind == "parquet" else {}
        except (duckdb.Error, OSError, EOFError, ValueError, TypeError, csv.Error) as error:
            raise unreadable_source(table, error) from None
        for name in coarse:
            self._check_moments(table, name, source)
        stored = {str(name): str(declared) for name, declared, *_ in described}
        kinds = kinds_of(table, {name: kind_of(declared) for name, declared in stored.items()})
        # An INT96 says nothing of a zone; those who write it mean UTC, and Spark reads it so.
        instants: dict[str, RawKind] = {name: "instant" for name, types in coarse.items() if "INT96" in types}
        return TableSource(_floor_nanoseconds(source, stored, table), kinds | instants)

    def _coarse_moments(self, table: Table) -> dict[str, str]:
        """Return the declared columns whose files store time in units with a wider range than microseconds."""
        schema = exp.Anonymous(this="parquet_schema", expressions=[exp.Literal.string(table.source.options["path"])])
        columns = ("name", "type", "converted_type", "logical_type")
        schema_rows = self._connection.execute(
            self.dialect.render(select(*map(exp.column, columns)).from_(schema, copy=False))
        ).fetchall()
        coarse_types = ("INT96", "TIMESTAMP_MILLIS", "MilliSeconds")
        types = {name: " ".join(map(str, kinds)) for name, *kinds in schema_rows if name in table.columns}
        return {name: kinds for name, kinds in types.items() if any(mark in kinds for mark in coarse_types)}

    def _check_moments(self, table: Table, name: str, source: Sql) -> None:
        """Read a column once: the reader fails on a moment out of range, and would fail in every query."""
        moments = exp.Anonymous(this="epoch_us", expressions=[exp.column(name, quoted=True)])
        read_all = select(exp.Anonymous(this="bit_xor", expressions=[moments])).from_(source.copy(), copy=False)
        try:
            self._connection.execute(self.dialect.render(read_all)).fetchall()
        except duckdb.Error:
            raise InvalidSchema(
                f"the column {name} of table {table.name} has timestamps outside the range of microseconds; store it in"
                " microseconds, or replace those values"
            ) from None

    def _source(self, table: Table, options: Mapping[str, str]) -> Sql:
        """Return the SQL that reads a table's files; attach DuckDB files read-only."""
        path = exp.Literal.string(options["path"])
        match table.source.kind:
            case "parquet":
                return exp.Anonymous(this="read_parquet", expressions=[path])
            case "csv":
                delimiter = options.get("delimiter", ",")
                csv_source = _csv_source(table.name, options["path"], delimiter)
                _check_quotes(table.name, options["path"], delimiter)
                return csv_source
            case _:
                name = f"source_{table.name}"
                attach = exp.Attach(
                    this=exp.alias_(path, name), expressions=[exp.AttachOption(this=exp.var("READ_ONLY"))]
                )
                self._run_setup(attach)
                return exp.table_(
                    options.get("table", table.name), db=options.get("schema", "main"), catalog=name, quoted=True
                )

    def cancel(self) -> None:
        """Stop the running statement, from another thread."""
        if self._running_cursor is not None:
            self._running_cursor.interrupt()

    def close(self) -> None:
        """Release the data and scratch files, unless other engines use them."""
        self._database.remove_engine(self)


def open_engine(dataset: Dataset, memory: str = MEMORY, disk: str = "20GB") -> DuckDBEngine:
    """Open an engine over the dataset's files."""
    return DuckDBEngine(dataset, memory, disk)
