"""DuckDB, in the process: Parquet, CSV and DuckDB's own files; read-only, with limits on memory, disk and time."""

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

from dither.access.csv_quotes import first_unclosed
from dither.access.engines.base import SqlEngine, alarm, kinds_of
from dither.errors import InvalidSchema
from dither.plan.sql.builders import Sql, select
from dither.plan.sql.dialect import Dialect, RawKind
from dither.plan.sql.statement import TableSource
from dither.schema import Dataset, Table

# The most that DuckDB takes for all engines over one dataset; the process is then below 4 GB.
MEMORY = "3500MB"
# DuckDB keeps about 10 KB for each statement that ranks rows, up to 20 MB, and gives it back when it is closed; opening
# it again takes 50 ms.
STATEMENTS = 64
KINDS: dict[str, RawKind] = {
    "TINYINT": "integer", "SMALLINT": "integer", "INTEGER": "integer", "BIGINT": "integer", "HUGEINT": "integer",
    "UTINYINT": "integer", "USMALLINT": "integer", "UINTEGER": "integer", "UBIGINT": "integer", "UHUGEINT": "integer",
    "FLOAT": "float", "DOUBLE": "float", "VARCHAR": "text", "BOOLEAN": "boolean", "DATE": "date",
    "TIMESTAMP": "timestamp", "TIMESTAMP WITH TIME ZONE": "timestamp", "TIMESTAMP_S": "timestamp",
    "TIMESTAMP_MS": "timestamp", "TIMESTAMP_NS": "timestamp",
}  # fmt: skip


def kind_of(declared: str) -> RawKind:
    """How records of a DuckDB type are read."""
    if declared.startswith("DECIMAL"):
        return "decimal"
    return "text" if declared.startswith("ENUM") else KINDS.get(declared, "other")


def _csv(table: str, path: str, delimiter: str) -> Sql:
    """A CSV file in one fixed dialect, every column as text.

    Types, quotes or widths guessed from the data would be a function of all records: one of them could change how the
    others are read. A record that does not fit is padded, cut or left out, alone.
    """
    texts = [
        _option(exp.Literal.string(name), exp.Literal.string("VARCHAR")) for name in _header(table, path, delimiter)
    ]
    fixed: dict[str, Sql] = {
        "auto_detect": exp.false(),
        "columns": exp.Struct(expressions=texts),
        "header": exp.true(),
        "delim": exp.Literal.string(delimiter),
        "quote": exp.Literal.string('"'),
        "escape": exp.Literal.string('"'),
        "comment": exp.Literal.string(""),
        "null_padding": exp.true(),
        "strict_mode": exp.false(),
        "ignore_errors": exp.true(),
        # Read in parallel, a quoted line's end beside a short record would fail the whole file.
        "parallel": exp.false(),
    }
    named_options = [_option(exp.to_identifier(name), value) for name, value in fixed.items()]
    return exp.Anonymous(this="read_csv", expressions=[exp.Literal.string(path), *named_options])


def _check_quotes(table: str, path: str, delimiter: str) -> None:
    """Refuses files in which a quote is left open, while nothing has been asked yet: it would swallow records."""
    for each in sorted(glob(path)):
        try:
            with _opened(each, errors="replace") as file:
                line = first_unclosed(file, delimiter)
        except (OSError, EOFError):
            raise InvalidSchema(f"the source of table {table} cannot be read") from None
        if line is not None:
            raise InvalidSchema(
                f"a quote in line {line} of {Path(each).name}, a file of table {table}, is left open or misplaced, so"
                " that the records after it would be lost: close it, and double every quote inside a quoted field"
            )


def _option(name: Sql, value: Sql) -> Sql:
    return exp.PropertyEQ(this=name, expression=value)


def _header(table: str, path: str, delimiter: str) -> list[str]:
    """The names in the first line, the same in every file of a table: they are the curator's, not a record's."""
    try:
        found = [_first_line(each, delimiter) for each in sorted(glob(path))]
    except (OSError, EOFError, ValueError, TypeError, csv.Error):
        raise InvalidSchema(f"the source of table {table} cannot be read") from None
    if not found or not found[0] or any(names != found[0] for names in found):
        raise InvalidSchema(f"the files of table {table} must begin with one line of column names, the same in each")
    return found[0]


def _first_line(path: str, delimiter: str) -> list[str]:
    with _opened(path) as file:
        return next(csv.reader(file, delimiter=delimiter), [])


def _opened(path: str, errors: str = "strict") -> TextIO:
    if path.endswith(".gz"):
        return gzip.open(path, "rt", newline="", encoding="utf-8-sig", errors=errors)
    return open(path, newline="", encoding="utf-8-sig", errors=errors)


class Opening:
    """One DuckDB, from when it is opened until its last statement has ended."""

    def __init__(self, scratch: str, settled: Sequence[str] = ()) -> None:
        # Two that overlap must not spill into each other's files.
        self._spill = tempfile.TemporaryDirectory(dir=scratch)
        self.connection = duckdb.connect(":memory:", config={"temp_directory": self._spill.name})
        self.statements = self.at_work = 0
        self.worn = self.broken = False
        try:
            for statement in settled:
                self.connection.execute(statement)
        except duckdb.Error:
            self.close()
            raise

    @property
    def spent(self) -> bool:
        """Whether the next statement should find another one: at once if this one is broken, else once it is idle."""
        return self.broken or (not self.at_work and (self.worn or self.statements >= STATEMENTS))

    def failed(self, problem: duckdb.Error) -> None:
        """A statement failed; after some problems DuckDB refuses all others."""
        self.worn = True
        self.broken |= isinstance(problem, duckdb.FatalException | duckdb.InternalException)

    def close(self) -> None:
        """Gives everything back."""
        self.connection.close()
        self._spill.cleanup()


class Database:
    """One DuckDB of this process, which several engines share; while none is at work it is opened anew, now and then.

    One for each engine would cost 5 MB and nine threads, and what each keeps of its statements would add up.
    """

    def __init__(self) -> None:
        self.scratch = tempfile.TemporaryDirectory(prefix="dither-")
        self._opening = Opening(self.scratch.name)
        self._engines: set[int] = set()
        self._lock = threading.Lock()
        self._settled: list[str] = []

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """What later statements will use."""
        return self._opening.connection

    def settle(self, statement: str) -> None:
        """Runs what holds for every later statement, also once it is opened anew."""
        self._settled.append(statement)
        self.connection.execute(statement)

    @contextmanager
    def cursor(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A connection for one statement; after one that failed, the next finds a new database."""
        opening = self._entered()
        try:
            with closing(opening.connection.cursor()) as cursor:
                yield cursor
        except duckdb.Error as problem:
            with self._lock:
                opening.failed(problem)
            raise
        finally:
            self._left(opening)

    def _entered(self) -> Opening:
        """What a statement works on; a new one, as limited as the one before, where that is spent."""
        with self._lock:
            if self._opening.spent:
                before, self._opening = self._opening, Opening(self.scratch.name, self._settled)
                self._retire(before)
            self._opening.at_work += 1
            self._opening.statements += 1
            return self._opening

    def _left(self, opening: Opening) -> None:
        with self._lock:
            opening.at_work -= 1
            if opening is not self._opening:
                self._retire(opening)

    def _retire(self, opening: Opening) -> None:
        """Closes what nobody will use again, once nobody does."""
        if not opening.at_work:
            opening.close()

    def join(self, engine: object) -> None:
        """One more engine uses it."""
        with self._lock:
            self._engines.add(id(engine))

    def leave(self, engine: object) -> None:
        """An engine uses it no more; the last one closes it."""
        with self._lock:
            self._engines.discard(id(engine))
            if not self._engines:
                self._opening.close()
                self.scratch.cleanup()


class DuckDBEngine(SqlEngine):
    """Answers measures with DuckDB; only the aggregated groups leave it, as Arrow."""

    dialect = Dialect()

    def __init__(self, dataset: Dataset, memory: str = MEMORY, disk: str = "20GB", threads: int | None = None) -> None:
        self._database = Database()
        self._database.join(self)
        self._busy: duckdb.DuckDBPyConnection | None = None
        self._limit(memory, disk, threads)
        super().__init__(dataset)

    def another(self) -> DuckDBEngine:
        """One more engine over the same tables, which may be at work at the same time."""
        made = copy.copy(self)
        made._lock, made._corrections, made.failure = threading.Lock(), {}, None
        made._busy, made.ctx = None, replace(self.ctx)
        self._database.join(made)
        return made

    def _limit(self, memory: str, disk: str, threads: int | None) -> None:
        settings = {
            "memory_limit": memory,
            "max_temp_directory_size": disk,
            # The first rewrites ROW_NUMBER() <= k at 2.5 times the time and spills without end. The second splits a
            # window by the file's row groups, at 1.4 times the time. The third believes Parquet's statistics, which
            # leave NaN out, and folds away every check for it.
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
        self._settle(exp.Set(expressions=[item]))

    def _settle(self, statement: Sql) -> None:
        self._database.settle(self.dialect.render(statement))

    @property
    def _connection(self) -> duckdb.DuckDBPyConnection:
        """For what is found out before any question."""
        return self._database.connection

    def _lock_down(self, dataset: Dataset) -> None:
        """Nothing outside the sources can be read from here on, and no setting changed."""
        allowed = [
            exp.Literal.string(path) for path in dict.fromkeys([*self._places(dataset), self._database.scratch.name])
        ]
        self._set("allowed_directories", exp.Array(expressions=allowed))
        self._set("enable_external_access", exp.false())
        self._set("lock_configuration", exp.true())

    def _places(self, dataset: Dataset) -> list[str]:
        """The directories that may be read."""
        return [str(Path(table.source.options["path"]).parent) for table in dataset.tables.values()]

    def _run(self, statement: Sql, deadline: float | None = None) -> pa.Table:
        with self._database.cursor() as self._busy, alarm(deadline, self.cancel):
            found: pa.Table = self._busy.sql(self.dialect.render(statement)).to_arrow_table()
        return found

    def _origin(self, table: Table) -> TableSource:
        try:
            source = self._source(table, table.source.options)
            described = self._connection.execute(
                "DESCRIBE " + self.dialect.render(select(exp.Star()).from_(source.copy(), copy=False))
            ).fetchall()
            coarse = self._coarse_moments(table) if table.source.kind == "parquet" else []
        except duckdb.Error:
            raise InvalidSchema(f"the source of table {table.name} cannot be read") from None
        for name in coarse:
            self._check_moments(table, name, source)
        return TableSource(source, kinds_of(table, {str(row[0]): kind_of(str(row[1])) for row in described}))

    def _coarse_moments(self, table: Table) -> list[str]:
        """The declared columns whose files count time in units that reach further than microseconds do."""
        schema = exp.Anonymous(this="parquet_schema", expressions=[exp.Literal.string(table.source.options["path"])])
        columns = ("name", "type", "converted_type", "logical_type")
        found = self._connection.execute(
            self.dialect.render(select(*map(exp.column, columns)).from_(schema, copy=False))
        ).fetchall()
        marks = ("INT96", "TIMESTAMP_MILLIS", "MilliSeconds")
        coarse = {name for name, *kinds in found if any(mark in str(kind) for kind in kinds for mark in marks)}
        return [name for name in table.columns if name in coarse]

    def _check_moments(self, table: Table, name: str, source: Sql) -> None:
        """Reads a column once: the reader fails where a moment does not fit, and would do so for every question."""
        moments = exp.Anonymous(this="epoch_us", expressions=[exp.column(name, quoted=True)])
        every = select(exp.Anonymous(this="bit_xor", expressions=[moments])).from_(source.copy(), copy=False)
        try:
            self._connection.execute(self.dialect.render(every)).fetchall()
        except duckdb.Error:
            raise InvalidSchema(
                f"the column {name} of table {table.name} holds timestamps too far away to be read; store it in"
                " microseconds, or replace those values"
            ) from None

    def _source(self, table: Table, options: Mapping[str, str]) -> Sql:
        path = exp.Literal.string(options["path"])
        match table.source.kind:
            case "parquet":
                return exp.Anonymous(this="read_parquet", expressions=[path])
            case "csv":
                delimiter = options.get("delimiter", ",")
                found = _csv(table.name, options["path"], delimiter)
                _check_quotes(table.name, options["path"], delimiter)
                return found
            case _:
                name = f"source_{table.name}"
                attached = exp.Attach(
                    this=exp.alias_(path, name), expressions=[exp.AttachOption(this=exp.var("READ_ONLY"))]
                )
                self._settle(attached)
                return exp.table_(
                    options.get("table", table.name), db=options.get("schema", "main"), catalog=name, quoted=True
                )

    def cancel(self) -> None:
        """Stops what is running, from another thread."""
        if self._busy is not None:
            self._busy.interrupt()

    def close(self) -> None:
        """Lets go of the data and of scratch files, if no other engine needs them."""
        self._database.leave(self)


def open_engine(dataset: Dataset, memory: str = MEMORY, disk: str = "20GB") -> DuckDBEngine:
    """An engine over the dataset's files."""
    return DuckDBEngine(dataset, memory, disk)
