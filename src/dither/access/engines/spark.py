"""Spark 4, by pyspark: local, on a standalone cluster or through Spark Connect; reads Parquet and catalogue tables.

The session's configuration is set, not assumed: ANSI mode off (a cast or an overflow in an expression is then never an
error, in persistent views of the catalogue neither), the clock in UTC, dates before 1582 as they are written, no
substitution of ${variables} in a query. Global temporary views keep the configuration of their maker and are refused;
SQL functions that a view calls keep theirs too, and a curator must not name such a view. Texts are cast behind patterns
all the same. Wide sums are DECIMAL(38, 0). Answers are returned as Arrow.
"""

from __future__ import annotations

import os
import re
import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import expr
from pyspark.sql.types import StructField
from sqlglot import exp

from dither.access.cell_tasks import (
    CELLS,
    FILES,
    PROBLEMS,
    REPORTS,
    CheckWorker,
    NumberCells,
    WorkOnParts,
    WriteCells,
    installed_version,
    range_width,
)
from dither.access.engines.base import SqlEngine, kinds_of, time_limit, unreadable_source
from dither.access.engines.guarded_dialect import MAX_INT64, GuardedDialect
from dither.access.exact_cells import RowRange, TableKeys, begin_cells, finish_cells
from dither.errors import EngineFailure, InvalidParameter, InvalidSchema
from dither.plan.measures.core import Vector, VectorQuery
from dither.plan.sql.builders import Sql, and_, binary, case, cast, detach, literal, string
from dither.plan.sql.dialect import RawKind
from dither.plan.sql.statement import TableSource
from dither.schema import Dataset, Table

KINDS: dict[str, RawKind] = {
    "tinyint": "integer", "smallint": "integer", "int": "integer", "bigint": "integer", "float": "float",
    "double": "float", "string": "text", "boolean": "boolean", "date": "date", "timestamp": "instant",
    "timestamp_ntz": "timestamp",
}  # fmt: skip
SETTINGS = {
    "spark.sql.ansi.enabled": "false",
    "spark.sql.legacy.useCurrentConfigsForView": "true",  # a view's own, such as ANSI mode, could fail on a record
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.variable.substitute": "false",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
    "spark.sql.optimizer.windowGroupLimitThreshold": "-1",
    "spark.sql.decimalOperations.allowPrecisionLoss": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000000",
}
HIVE_HINT = (
    "; the catalogue is that of this session alone: for tables of a Hive metastore, set spark.sql.catalogImplementation"
    " to hive in spark-defaults.conf"
)
SAFE_DAYS = 106_000_000  # timestamps reach this many days before and after 1970
WIDE = exp.DataType.build("decimal(38, 0)")
PARTS_PER_CORE = 4  # in one job; what a killed driver has to draw again is two jobs
REMOTE_CORES = 8  # a server does not say how many it has
SUM_INPUT = exp.DataType.build("decimal(28, 0)")


def function_call(name: str, *arguments: Sql) -> Sql:
    """Build a call of a Spark function."""
    return exp.Anonymous(this=name, expressions=[detach(argument) for argument in arguments])


class SparkDialect(GuardedDialect):
    """SQL of Spark."""

    sqlglot_name = "spark"
    orders_ties = True

    def widen(self, value: Sql) -> Sql:
        """Cast to a decimal of 38 digits."""
        return exp.Cast(this=detach(value), to=WIDE.copy())

    def exact_sum(self, value: Sql) -> Sql:
        """Sum decimals of 28 digits, whose SUM has 38: a SUM of 64-bit integers would wrap."""
        return exp.Sum(this=exp.Cast(this=detach(value), to=SUM_INPUT.copy()))

    def to_timestamp(self, microseconds: Sql) -> Sql:
        """Return a timestamp of the session, whose clock is UTC."""
        return function_call("timestamp_micros", microseconds)

    def to_microseconds(self, moment: Sql) -> Sql:
        """Cast to an instant first: the session's clock is UTC, which leaves a timestamp without a zone as written."""
        return function_call("unix_micros", cast(moment, "timestamp"))

    def date_to_timestamp(self, value: Sql) -> Sql:
        """Cast only dates in the range of timestamps: the cast of others fails in every mode."""
        day = function_call("unix_date", value)
        inside = and_([binary(exp.GTE, day, literal(-SAFE_DAYS)), binary(exp.LTE, day, literal(SAFE_DAYS))])
        return case([(inside, cast(value, "timestamp"))])

    def fingerprint(self, value: Sql) -> Sql:
        """Convert the hexadecimal digits with CONV."""
        digits = exp.Substring(this=exp.MD5(this=detach(value)), start=literal(1), length=literal(8))
        return cast(function_call("conv", digits, literal(16), literal(10)), "bigint")

    def matches(self, value: Sql, pattern: str) -> Sql:
        r"""End the pattern with \z: in Java's patterns $ also matches before a final line break."""
        return super().matches(value, pattern.removesuffix("$") + r"\z")

    def compose(self, value: Sql) -> Sql:
        """Replace NUL in texts of any kind."""
        return super().compose(self.replace_nul(value))

    def to_nfc(self, value: Sql) -> Sql:
        """Call the library of Unicode that Spark 4 includes, since no SQL function does this."""
        method = string("com.ibm.icu.text.Normalizer"), string("compose")
        return function_call("reflect", *method, value, exp.false())

    def narrow_integer(self, value: Sql) -> Sql:
        """Check the range first: unsigned 64-bit integers of Parquet are decimals here, and a cast would wrap them."""
        least = binary(exp.Sub, literal(-MAX_INT64), literal(1))
        in_range = and_([binary(exp.GTE, value, least), binary(exp.LTE, value, literal(MAX_INT64))])
        return case([(in_range, cast(value, "bigint"))])


class SparkEngine(SqlEngine):
    """Answers measures with Spark; only the aggregated groups leave the cluster, as Arrow."""

    dialect = SparkDialect()

    def __init__(self, dataset: Dataset, partitions: str | None = None, session: SparkSession | None = None) -> None:
        for table in dataset.tables.values():
            if re.match(r"\s*`?global_temp`?\s*\.", table.source.options.get("table", ""), re.IGNORECASE):
                raise unreadable_source(table, "a global temporary view: create a persistent view or name the table")
        self._tag = f"dither-{uuid4().hex}"
        self._session = with_settings(session or session_of(dataset), partitions)
        self._remote = "connect" in type(self._session).__module__
        super().__init__(dataset)

    def _table_source(self, table: Table) -> TableSource:
        view = f"{self._tag}_{table.name}"
        try:
            frame = self._frame(table)
            frame.createOrReplaceTempView(exp.to_identifier(view, quoted=True).sql("spark"))
        except (PySparkException, OSError) as error:
            raise unreadable_source(table, error, self._catalogue_hint(table, error)) from None
        stored = {field.name: declared_type(field) for field in frame.schema}
        kinds = kinds_of(table, {name: kind_of(kind) for name, kind in stored.items()})
        readable = [_readable_column(name, stored[name]) for name in table.columns]
        return TableSource(exp.select(*readable).from_(exp.to_identifier(view, quoted=True)).subquery("raw"), kinds)

    def _catalogue_hint(self, table: Table, error: Exception) -> str:
        """Return what may be the matter if a table is not found by its name: no metastore is configured."""
        if "table" not in table.source.options or not isinstance(error, AnalysisException):
            return ""
        return "" if self._session.conf.get("spark.sql.catalogImplementation", None) == "hive" else HIVE_HINT

    def _frame(self, table: Table) -> DataFrame:
        """Return the data frame of a table."""
        options = table.source.options
        if "table" in options:
            return self._session.table(options["table"])
        kind = options.get("format", "parquet")
        reader = self._session.read.format(kind)
        # CSV is read as text, since inferred types would depend on the records.
        reader = reader.options(header="true", inferSchema="false") if kind == "csv" else reader
        return reader.load(options["path"])

    def _run(self, statement: Sql, deadline: float | None = None) -> pa.Table:
        self._tag_jobs()
        with time_limit(deadline, self.cancel):
            return self._session.sql(self.dialect.render(statement)).toArrow()

    def _write_cells(self, query: VectorQuery, folder: Path) -> None:
        """Have the workers number the cells, sort them by ranges and write files, of which the reported ones count."""
        self._tag_jobs()
        attempts = begin_cells(folder)
        groups = self._session.sql(self.dialect.render(query.select))
        cells = groups.mapInArrow(NumberCells(replace(query, select=exp.Select())), CELLS)
        ordered = cells.repartition(expr(f"cell div {range_width(query)}")).sortWithinPartitions("cell")
        files = ordered.mapInArrow(WriteCells(attempts), FILES).collect()
        self._corrections["values"] = self._corrections.get("values", 0) + sum(row["corrections"] for row in files)
        finish_cells(attempts, [row["file"] for row in files], folder)

    def check_workers(self, folder: Path) -> None:
        """Refuse a private folder that a worker does not share, and workers with another version of Dither."""
        sample, content = folder / f"{secrets.token_hex(16)}.check", secrets.token_bytes(16)
        sample.write_bytes(content)
        try:
            found = self._run_tasks(CheckWorker(sample, content, installed_version()), self._wave(), PROBLEMS)
            problem = next((row["problem"] for row in found if row["problem"]), "")
        except Exception as error:  # of this job, which reads no record
            reasons = [line.strip() for line in str(error).splitlines() if "Error" in line]
            problem = f"a worker cannot run Dither: {(reasons or [str(error)])[-1][:300]}"
        finally:
            sample.unlink()
        if problem:
            raise InvalidParameter(
                f"the Spark cluster cannot make this release: {problem}; its workers need the driver's user, version of"
                " Dither and file system (--staging); nothing was charged"
            )

    def each_part(
        self, folder: Path, keys: TableKeys, parts: Sequence[RowRange], work: Callable[[RowRange, Vector], str]
    ) -> Iterator[str]:
        """Call `work` on the workers; each job takes some parts, and the next one starts before it ends."""
        release, size = secrets.token_hex(16), self._wave()
        waves = [tuple(parts[first : first + size]) for first in range(0, len(parts), size)]
        tasks = (WorkOnParts(folder, keys, wave, work, release) for wave in waves)
        with ThreadPoolExecutor(2) as pool:
            try:
                for reports in pool.map(self._reports, tasks):
                    yield from reports
            finally:
                self.cancel()

    def _reports(self, task: WorkOnParts) -> list[str]:
        """Work on some parts in one job: of each part, the report of one attempt returns."""
        try:
            found = self._run_tasks(task, len(task.parts), REPORTS)
        except Exception as error:  # a worker's error text may contain a value: for the curator only
            self.failure = str(error)
            raise EngineFailure from None
        for problem in (row["problem"] for row in found if row["problem"]):
            raise OSError(problem, os.strerror(problem))
        return [row["report"] for row in found]

    def _run_tasks(self, task: Callable[..., Iterator[pa.RecordBatch]], count: int, columns: str) -> list[Row]:
        """Run a function once in each of `count` tasks, and return the rows of one attempt of each."""
        self._tag_jobs()
        found: list[Row] = self._session.range(0, count, 1, count).mapInArrow(task, columns).collect()
        return found

    def _wave(self) -> int:
        """Return the number of tasks of one job."""
        cores = REMOTE_CORES if self._remote else self._session.sparkContext.defaultParallelism
        return PARTS_PER_CORE * cores

    def _tag_jobs(self) -> None:
        """Tag the jobs that this thread starts, to cancel them later: by a job group, or by a tag of Spark Connect."""
        if self._remote:
            self._session.addTag(self._tag)
        else:
            self._session.sparkContext.setJobGroup(self._tag, "dither", interruptOnCancel=True)

    def cancel(self) -> None:
        """Interrupt the jobs of this engine."""
        if self._remote:
            self._session.interruptTag(self._tag)
        else:
            self._session.sparkContext.cancelJobGroup(self._tag)

    def close(self) -> None:
        """Drop this engine's views; the Spark application belongs to the process, and other engines may share it."""
        for name in self.ctx.dataset.tables:
            self._session.catalog.dropTempView(f"{self._tag}_{name}")


def session_of(dataset: Dataset) -> SparkSession:
    """Open a new session on the cluster that the dataset names, or on this machine."""
    masters = {table.source.options.get("master", "local[*]") for table in dataset.tables.values()}
    remotes = {table.source.options.get("remote", "") for table in dataset.tables.values()}
    if len(masters) != 1 or len(remotes) != 1:
        raise InvalidSchema("all tables of one dataset must be on the same Spark cluster")
    try:
        if remote := remotes.pop():
            return SparkSession.builder.remote(remote).create()
        master = masters.pop()
        if master.startswith("local"):
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers on this machine run the same Python
        builder = SparkSession.builder.master(master).appName("dither")
        ui_settings = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
        return builder.config(map=ui_settings).getOrCreate().newSession()
    except (PySparkException, OSError, RuntimeError):
        raise InvalidSchema(
            "cannot connect to the Spark cluster of this dataset; check its master or remote address"
        ) from None


def with_settings(session: SparkSession, partitions: str | None) -> SparkSession:
    """Set every setting on which a result or an error depends, and return the session."""
    shuffle_settings = {} if partitions is None else {"spark.sql.shuffle.partitions": partitions}
    for name, value in {**SETTINGS, **shuffle_settings}.items():
        session.conf.set(name, value)
    return session


def declared_type(field: StructField) -> str:
    """Return the type of a column as its table declares it: Spark shows char(n), which it pads, as a string."""
    return str(field.metadata.get("__CHAR_VARCHAR_TYPE_STRING", field.dataType.simpleString()))


def kind_of(declared: str) -> RawKind:
    """Return the kind of a Spark type; Parquet's unsigned 64-bit integers are decimal(20,0) in Spark."""
    if declared.startswith("decimal"):
        return "integer" if declared == "decimal(20,0)" else "decimal"
    return "text" if declared.startswith(("string", "char(", "varchar(")) else KINDS.get(declared, "other")


def _readable_column(name: str, declared: str) -> Sql:
    """Select a column, with text in the binary collation whatever collation the table declares, and char(n) trimmed."""
    raw = exp.column(name, quoted=True)
    if declared.startswith("char("):
        return exp.alias_(function_call("rtrim", raw), name, quoted=True)
    if declared.startswith("string collate"):
        return exp.alias_(function_call("collate", raw, string("UTF8_BINARY")), name, quoted=True)
    return raw


def open_engine(dataset: Dataset, partitions: str | None = None) -> SparkEngine:
    """Open an engine over the dataset's files or tables in Spark."""
    return SparkEngine(dataset, partitions)
