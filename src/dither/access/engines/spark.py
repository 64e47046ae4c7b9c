"""Spark 4, by pyspark: local, on a standalone cluster or through Spark Connect; Parquet and tables of the catalogue.

The session's configuration is set, not assumed: ANSI mode off (a cast or an overflow in an expression is then never an
error), the clock in UTC, dates before 1582 as they are written, no substitution of ${variables} in a query. Texts are
cast behind patterns all the same. Wide sums are DECIMAL(38, 0). Answers come back as Arrow.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from uuid import uuid4

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import DataType
from sqlglot import exp

from dither.access.engines.base import SqlEngine, alarm, kinds_of
from dither.access.engines.casts import GuardedSpelling
from dither.access.spelling import RawKind, Sql, binary, both, case, cast, own, plain
from dither.access.statement import Origin
from dither.errors import InvalidSchema
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


def function(name: str, *arguments: Sql) -> Sql:
    """A function of Spark's own."""
    return exp.Anonymous(this=name, expressions=[own(argument) for argument in arguments])


class SparkSpelling(GuardedSpelling):
    """Spark's way."""

    dialect = "spark"

    def wide(self, value: Sql) -> Sql:
        """38 digits."""
        return exp.Cast(this=own(value), to=WIDE.copy())

    def total(self, value: Sql) -> Sql:
        """SUM of 64 bits would wrap; of 28 digits it has 38."""
        return exp.Sum(this=exp.Cast(this=own(value), to=SUMMED.copy()))

    def instant(self, microseconds: Sql) -> Sql:
        """A timestamp of the session, whose clock is UTC."""
        return function("timestamp_micros", microseconds)

    def microseconds(self, moment: Sql) -> Sql:
        """Timestamps with and without a zone are the same in UTC."""
        return function("unix_micros", cast(moment, "timestamp"))

    def moment_of_date(self, value: Sql) -> Sql:
        """Dates reach further than timestamps, and that cast fails in every mode."""
        day = function("unix_date", value)
        inside = both([binary(exp.GTE, day, plain(-SAFE_DAYS)), binary(exp.LTE, day, plain(SAFE_DAYS))])
        return case([(inside, cast(value, "timestamp"))])

    def fingerprint(self, value: Sql) -> Sql:
        """Hexadecimal digits by CONV."""
        digits = exp.Substring(this=exp.MD5(this=own(value)), start=plain(1), length=plain(8))
        return cast(function("conv", digits, plain(16), plain(10)), "bigint")

    def matches(self, value: Sql, pattern: str) -> Sql:
        r"""In Java's patterns $ also matches before a last line break; \z does not."""
        return super().matches(value, pattern.removesuffix("$") + r"\z")


class SparkEngine(SqlEngine):
    """Answers measures with Spark; only the aggregated groups leave the cluster, as Arrow."""

    spelling = SparkSpelling()
    failures = (PySparkException, MemoryError, OSError)

    def __init__(self, dataset: Dataset, partitions: str | None = None, session: SparkSession | None = None) -> None:
        self._tag = f"dither-{uuid4().hex}"
        self._views = 0
        self._session = configured(session or session_of(dataset), partitions)
        super().__init__(dataset)

    def _origin(self, table: Table) -> Origin:
        view = f"{self._tag}-{self._views}".replace("-", "_")
        self._views += 1
        try:
            frame = self._frame(table)
            stored = {name: kind_of(kind) for name, kind in frame.dtypes}
            frame.createOrReplaceTempView(view)
        except (PySparkException, OSError):
            raise InvalidSchema(f"the source of table {table.name} cannot be read") from None
        return Origin(_readable(table, view, dict(frame.dtypes)), kinds_of(table, stored))

    def _frame(self, table: Table) -> Any:
        options = table.source.options
        if "table" in options:
            return self._session.table(options["table"])
        kind = options.get("format", "parquet")
        reader = self._session.read.format(kind)
        # Types guessed from the data would be a function of the records: CSV is read as text.
        reader = reader.options(header="true", inferSchema="false") if kind == "csv" else reader
        return reader.load(options["path"])
