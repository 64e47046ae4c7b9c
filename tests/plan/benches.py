"""PostgreSQL and Spark as places on which random cases run: tiny tables in, any statement, Arrow out."""

from __future__ import annotations

from typing import Any

import psycopg
import pyarrow as pa
from sqlglot import exp

from dither.access.engines.postgres import SETTINGS, PostgresDialect, as_arrow, readable_column
from dither.access.engines.spark import SparkDialect, with_settings
from plan.plans import ARROW

POSTGRES_TYPES = {
    pa.int64(): "bigint",
    pa.float64(): "double precision",
    pa.decimal128(18, 3): "numeric(18, 3)",
    pa.string(): "text",
    pa.bool_(): "boolean",
    pa.timestamp("us"): "timestamp",
    pa.timestamp("us", "UTC"): "timestamptz",
    pa.date32(): "date",
}
KINDS = {kind: name for name, kind in ARROW.items()}


class PostgresBench:
    """PostgreSQL with the settings of the engine, on temporary tables."""

    dialect = PostgresDialect()

    def __init__(self, address: str) -> None:
        self.connection = psycopg.connect(address, autocommit=True)
        for name, value in SETTINGS.items():
            if name != "default_transaction_read_only":
                self.connection.execute("SELECT set_config(%s, %s, false)", (name, value))

    def load(self, tables: dict[str, pa.Table]) -> dict[str, exp.Expr]:
        for name, table in tables.items():
            columns = ", ".join(f'"{field.name}" {POSTGRES_TYPES[field.type]}' for field in table.schema)
            self.connection.execute(f"DROP TABLE IF EXISTS pg_temp.raw_{name}")
            self.connection.execute(f"CREATE TEMP TABLE raw_{name} ({columns})")
            with self.connection.cursor() as cursor, cursor.copy(f"COPY pg_temp.raw_{name} FROM STDIN") as copy:
                for row in zip(*(copied_texts(column) for column in table.columns), strict=True):
                    copy.write_row(row)
        return {name: self._source(name, table) for name, table in tables.items()}

    def _source(self, name: str, table: pa.Table) -> exp.Expr:
        columns = [
            (field.name, readable_column(exp.column(field.name, quoted=True), KINDS[field.type]))
            for field in table.schema
        ]
        picked = [exp.alias_(value, alias, quoted=True) for alias, value in columns]
        return exp.select(*picked).from_(exp.table_(f"raw_{name}", db="pg_temp")).subquery("raw")

    def run(self, statement: exp.Expr) -> pa.Table:
        with self.connection.cursor(binary=True) as cursor:
            cursor.execute(self.dialect.render(statement).encode(), prepare=False)
            return as_arrow(cursor)


class SparkBench:
    """Spark with the settings of the engine; tiny tables are answered by the optimizer's own evaluation."""

    dialect = SparkDialect()

    def __init__(self, session: Any) -> None:
        """Takes the session over: its settings and its temporary views."""
        self.session = with_settings(session, "1")

    def load(self, tables: dict[str, pa.Table]) -> dict[str, exp.Expr]:
        for name, table in tables.items():
            # Spark Connect takes no table without rows.
            some = table if table.num_rows else pa.table([pa.nulls(1, f.type) for f in table.schema], table.schema)
            frame = self.session.createDataFrame(some).where("true" if table.num_rows else "false")
            frame.createOrReplaceTempView(f"raw_{name}")
        return {name: exp.to_table(f"raw_{name}") for name in tables}

    def run(self, statement: exp.Expr) -> pa.Table:
        return self.session.sql(self.dialect.render(statement)).toArrow()


def copied_texts(column: pa.ChunkedArray) -> list[Any]:
    """What COPY reads: microseconds and days as ISO text with BC where need be."""
    if pa.types.is_timestamp(column.type):
        return [None if v is None else moment(v) for v in column.cast(pa.int64()).to_pylist()]
    if pa.types.is_date(column.type):
        return [None if v is None else moment(v * 86_400_000_000) for v in column.cast(pa.int32()).to_pylist()]
    return column.to_pylist()


def moment(microseconds: int) -> str:
    """A moment of any year of the proleptic calendar in PostgreSQL's spelling."""
    days, rest = divmod(microseconds, 86_400_000_000)
    days += 719_468
    era, day = divmod(days, 146_097)
    year = (day - day // 1_460 + day // 36_524 - day // 146_096) // 365
    ordinal = day - (365 * year + year // 4 - year // 100)
    month = (5 * ordinal + 2) // 153
    date = ordinal - (153 * month + 2) // 5 + 1
    month, year = (month + 3, year + era * 400) if month < 10 else (month - 9, year + era * 400 + 1)
    seconds, fraction = divmod(rest, 1_000_000)
    shown = f"{abs(year) + 1 if year <= 0 else year:04d}-{month:02d}-{date:02d}"
    clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{fraction:06d}"
    return f"{shown} {clock}{' BC' if year <= 0 else ''}"
