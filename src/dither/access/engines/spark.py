"""Spark 4, by pyspark: local, on a standalone cluster or through Spark Connect; Parquet and tables of the catalogue.

The session's configuration is set, not assumed: ANSI mode off (a cast or an overflow in an expression is then never an
error), the clock in UTC, dates before 1582 as they are written, no substitution of ${variables} in a query. Texts are
cast behind patterns all the same. Wide sums are DECIMAL(38, 0). Answers come back as Arrow.
"""

from __future__ import annotations

from uuid import uuid4

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from sqlglot import exp

from dither.access.engines.base import SqlEngine, alarm, kinds_of
from dither.access.engines.guarded_dialect import MOST, GuardedDialect
from dither.errors import InvalidSchema
from dither.plan.sql.builders import Sql, and_, binary, case, cast, detached, literal, string
from dither.plan.sql.dialect import RawKind
from dither.plan.sql.statement import TableSource
from dither.schema import Dataset, Table

KINDS: dict[str, RawKind] = {
    "tinyint": "integer", "smallint": "integer", "int": "integer", "bigint": "integer", "float": "float",
    "double": "float", "string": "text", "boolean": "boolean", "date": "date", "timestamp": "timestamp",
    "timestamp_ntz": "timestamp",
}  # fmt: skip
SETTINGS = {
    "spark.sql.ansi.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.variable.substitute": "false",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
    "spark.sql.optimizer.windowGroupLimitThreshold": "-1",
    "spark.sql.decimalOperations.allowPrecisionLoss": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000000",
}
SAFE_DAYS = 106_000_000
WIDE = exp.DataType.build("decimal(38, 0)")
SUMMED = exp.DataType.build("decimal(28, 0)")


def sql_function(name: str, *arguments: Sql) -> Sql:
    """A function of Spark's own."""
    return exp.Anonymous(this=name, expressions=[detached(argument) for argument in arguments])


class SparkDialect(GuardedDialect):
    """Spark's way."""

    sqlglot_name = "spark"

    def wide(self, value: Sql) -> Sql:
        """38 digits."""
        return exp.Cast(this=detached(value), to=WIDE.copy())

    def total(self, value: Sql) -> Sql:
        """SUM of 64 bits would wrap; of 28 digits it has 38."""
        return exp.Sum(this=exp.Cast(this=detached(value), to=SUMMED.copy()))

    def instant(self, microseconds: Sql) -> Sql:
        """A timestamp of the session, whose clock is UTC."""
        return sql_function("timestamp_micros", microseconds)

    def microseconds(self, moment: Sql) -> Sql:
        """Timestamps with and without a zone are the same in UTC."""
        return sql_function("unix_micros", cast(moment, "timestamp"))

    def moment_of_date(self, value: Sql) -> Sql:
        """Dates reach further than timestamps, and that cast fails in every mode."""
        day = sql_function("unix_date", value)
        inside = and_([binary(exp.GTE, day, literal(-SAFE_DAYS)), binary(exp.LTE, day, literal(SAFE_DAYS))])
        return case([(inside, cast(value, "timestamp"))])

    def fingerprint(self, value: Sql) -> Sql:
        """Hexadecimal digits by CONV."""
        digits = exp.Substring(this=exp.MD5(this=detached(value)), start=literal(1), length=literal(8))
        return cast(sql_function("conv", digits, literal(16), literal(10)), "bigint")

    def matches(self, value: Sql, pattern: str) -> Sql:
        r"""In Java's patterns $ also matches before a last line break; \z does not."""
        return super().matches(value, pattern.removesuffix("$") + r"\z")

    def integer_of_wide(self, value: Sql) -> Sql:
        """Unsigned 64-bit integers of Parquet are decimals here, and a cast would wrap them."""
        least = binary(exp.Sub, literal(-MOST), literal(1))
        fits = and_([binary(exp.GTE, value, least), binary(exp.LTE, value, literal(MOST))])
        return case([(fits, cast(value, "bigint"))])


class SparkEngine(SqlEngine):
    """Answers measures with Spark; only the aggregated groups leave the cluster, as Arrow."""

    dialect = SparkDialect()

    def __init__(self, dataset: Dataset, partitions: str | None = None, session: SparkSession | None = None) -> None:
        self._tag = f"dither-{uuid4().hex}"
        self._session = with_settings(session or session_of(dataset), partitions)
        self._remote = "connect" in type(self._session).__module__
        super().__init__(dataset)

    def _origin(self, table: Table) -> TableSource:
        view = f"{self._tag}_{table.name}"
        try:
            frame = self._frame(table)
            frame.createOrReplaceTempView(exp.to_identifier(view, quoted=True).sql("spark"))
        except (PySparkException, OSError):
            raise InvalidSchema(f"the source of table {table.name} cannot be read") from None
        stored: dict[str, str] = dict(frame.dtypes)
        kinds = kinds_of(table, {name: kind_of(kind) for name, kind in stored.items()})
        picked = [_readable(name, stored[name]) for name in table.columns]
        return TableSource(exp.select(*picked).from_(exp.to_identifier(view, quoted=True)).subquery("raw"), kinds)

    def _frame(self, table: Table) -> DataFrame:
        options = table.source.options
        if "table" in options:
            return self._session.table(options["table"])
        kind = options.get("format", "parquet")
        reader = self._session.read.format(kind)
        # Types guessed from the data would be a function of the records: CSV is read as text.
        reader = reader.options(header="true", inferSchema="false") if kind == "csv" else reader
        return reader.load(options["path"])

    def _run(self, statement: Sql, deadline: float | None = None) -> pa.Table:
        self._mark()
        with alarm(deadline, self.cancel):
            return self._session.sql(self.dialect.render(statement)).toArrow()

    def _mark(self) -> None:
        """What this thread starts can be found again: by a job group, or by a tag through Spark Connect."""
        if self._remote:
            self._session.addTag(self._tag)
        else:
            self._session.sparkContext.setJobGroup(self._tag, "dither", interruptOnCancel=True)

    def cancel(self) -> None:
        """Interrupts what this engine has started."""
        if self._remote:
            self._session.interruptTag(self._tag)
        else:
            self._session.sparkContext.cancelJobGroup(self._tag)

    def close(self) -> None:
        """Forgets the tables; the Spark application belongs to the process, and other engines may share it."""
        for name in self.ctx.dataset.tables:
            self._session.catalog.dropTempView(f"{self._tag}_{name}")


def session_of(dataset: Dataset) -> SparkSession:
    """A session of its own on the cluster that the dataset names, or on this machine."""
    masters = {table.source.options.get("master", "local[*]") for table in dataset.tables.values()}
    remotes = {table.source.options.get("remote", "") for table in dataset.tables.values()}
    if len(masters) != 1 or len(remotes) != 1:
        raise InvalidSchema("the tables of one dataset must be on one Spark cluster")
    try:
        if remote := remotes.pop():
            return SparkSession.builder.remote(remote).create()
        builder = SparkSession.builder.master(masters.pop()).appName("dither")
        quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
        return builder.config(map=quiet).getOrCreate().newSession()
    except (PySparkException, OSError, RuntimeError):
        raise InvalidSchema("the Spark cluster of this dataset cannot be reached or used") from None


def with_settings(session: SparkSession, partitions: str | None) -> SparkSession:
    """The session, with every setting on which a meaning or an error depends."""
    shuffles = {} if partitions is None else {"spark.sql.shuffle.partitions": partitions}
    for name, value in {**SETTINGS, **shuffles}.items():
        session.conf.set(name, value)
    return session


def kind_of(declared: str) -> RawKind:
    """How records of a Spark type are read; unsigned 64-bit integers of Parquet come as decimal(20,0)."""
    if declared.startswith("decimal"):
        return "integer" if declared == "decimal(20,0)" else "decimal"
    return "text" if declared.startswith("string") else KINDS.get(declared, "other")


def _readable(name: str, declared: str) -> Sql:
    """Text is compared by its bytes, whatever collation the table declares."""
    raw = exp.column(name, quoted=True)
    if declared.startswith("string collate"):
        return exp.alias_(sql_function("collate", raw, string("UTF8_BINARY")), name, quoted=True)
    return raw


def open_engine(dataset: Dataset, partitions: str | None = None) -> SparkEngine:
    """An engine over the dataset's files or tables in Spark."""
    return SparkEngine(dataset, partitions)
