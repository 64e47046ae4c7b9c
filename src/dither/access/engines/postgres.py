"""PostgreSQL 13 and later, by psycopg: read-only snapshots, and a time limit on every statement.

There is no TRY_CAST: texts are cast behind patterns, and values of types with a wider range than 64 bits (numeric,
dates, timestamps) are clamped before they are cast. Products of doubles fail where they underflow: values closer to
zero than 1e-200 are read as 1e-200 with their sign. Text is compared in the collation "C", by code points. Give the
engine a role that may only SELECT; its transactions are READ ONLY in any case.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import psycopg
import pyarrow as pa
from psycopg import IsolationLevel, postgres
from sqlglot import exp

from dither.access.engines.base import SqlEngine, kinds_of, unreadable_source
from dither.access.engines.guarded_dialect import GuardedDialect
from dither.errors import InvalidSchema
from dither.plan.domains import DAY
from dither.plan.sql.builders import Sql, add, and_, binary, call, case, cast, detach, literal, string, times
from dither.plan.sql.dialect import RawKind
from dither.plan.sql.statement import TableSource
from dither.schema import Dataset, Table

KINDS: dict[str, RawKind] = {
    "int2": "integer", "int4": "integer", "int8": "integer", "float4": "float", "float8": "float", "numeric": "decimal",
    "text": "text", "varchar": "text", "bpchar": "text", "name": "text", "uuid": "text", "bool": "boolean",
    "date": "date", "timestamp": "timestamp", "timestamptz": "instant",
}  # fmt: skip
ROWS_PER_FETCH = 50_000
ARROW = {"int2": pa.int64(), "int4": pa.int64(), "int8": pa.int64(), "bool": pa.bool_()} | dict.fromkeys(
    ("text", "varchar", "bpchar", "name"), pa.string()
)
SETTINGS = {
    "search_path": "pg_catalog",
    "TimeZone": "UTC",
    "DateStyle": "ISO, YMD",
    "standard_conforming_strings": "on",
    "transform_null_equals": "off",
    "default_transaction_read_only": "on",
    "jit": "off",
}
FIRST_DAY = -719_162  # 0001-01-01, in days since 1970
# Within these ranges, casts and arithmetic cannot fail.
SAFE_DATES = ("4713-01-01 BC", "294000-01-01")
SAFE_MICROSECONDS = 9_000_000_000_000_000_000
SAFE_DIGITS = 200


def cast_to(node: Sql, kind: str) -> Sql:
    """Build a CAST to a PostgreSQL type."""
    return exp.Cast(this=detach(node), to=_data_type(kind).copy())


@cache
def _data_type(kind: str) -> exp.DataType:
    return exp.DataType.build(kind, dialect="postgres")


def function_call(name: str, *arguments: Sql) -> Sql:
    """Build a call of a PostgreSQL function."""
    return exp.Anonymous(this=name, expressions=[detach(argument) for argument in arguments])


class PostgresDialect(GuardedDialect):
    """SQL of PostgreSQL."""

    sqlglot_name = "postgres"

    def render(self, statement: Sql) -> str:
        """Add OFFSET 0 to subqueries: the planner would merge them and repeat their expressions at each level."""
        for common in statement.find_all(exp.CTE):
            if isinstance(common.this, exp.Select) and not common.this.args.get("group"):
                common.this.set("offset", exp.Offset(expression=literal(0)))
        return super().render(statement)

    def quotient(self, left: Sql, right: Sql) -> Sql:
        """Use `/`, which truncates integers towards zero here."""
        divided = binary(exp.Div, left, right)
        divided.set("typed", True)
        return divided

    def widen(self, value: Sql) -> Sql:
        """Cast to NUMERIC, which sums cannot overflow; SUM of bigint is NUMERIC already."""
        return cast_to(value, "numeric")

    def to_timestamp(self, microseconds: Sql) -> Sql:
        """Add days and the rest separately: an interval times a number is computed in doubles."""
        since_first_day = add(microseconds, -FIRST_DAY * DAY)
        days = cast_to(add(self.quotient(since_first_day, literal(DAY)), FIRST_DAY), "int")
        day = cast(binary(exp.Add, cast_to(string("1970-01-01"), "date"), days), "timestamp")
        one_microsecond = exp.Interval(this=string("1"), unit=exp.var("microsecond"))
        return binary(
            exp.Add, day, exp.Paren(this=times(self.remainder(since_first_day, literal(DAY)), one_microsecond))
        )

    def to_microseconds(self, moment: Sql) -> Sql:
        """Clamp the exact number of EXTRACT, which may exceed 64 bits at the calendar's end; NULL for infinities."""
        exact = times(exp.Extract(this=exp.var("epoch"), expression=detach(moment)), 1_000_000)
        clamped = call("LEAST", call("GREATEST", exact, literal(-SAFE_MICROSECONDS)), literal(SAFE_MICROSECONDS))
        return case([(function_call("isfinite", moment), cast(clamped, "bigint"))])

    def date_to_timestamp(self, value: Sql) -> Sql:
        """Cast only dates in the range of timestamps, which is narrower."""
        first, last = (cast_to(string(day), "date") for day in SAFE_DATES)
        inside = and_([binary(exp.GTE, value, first), binary(exp.LTE, value, last)])
        return case([(inside, cast(value, "timestamp"))])

    def fingerprint(self, value: Sql) -> Sql:
        """Read the hexadecimal digits as a bit string."""
        digits = exp.Substring(this=exp.MD5(this=detach(value)), start=literal(1), length=literal(8))
        return cast(cast_to(exp.Paren(this=exp.Concat(expressions=[string("x"), digits])), "bit(32)"), "bigint")

    def to_nfc(self, value: Sql) -> Sql:
        """Use NORMALIZE; texts hold no NUL here."""
        return function_call("normalize", value)

    def extract(self, value: Sql, pattern: str) -> Sql:
        """Use SUBSTRING, which is NULL where nothing matches."""
        return exp.Coalesce(this=function_call("substring", value, string(pattern)), expressions=[string("")])

    def is_nan(self, value: Sql) -> Sql:
        """Compare with NaN, which equals itself here."""
        return binary(exp.EQ, value, cast(string("NaN"), "double"))


class PostgresEngine(SqlEngine):
    """Answers measures with PostgreSQL; only the aggregated groups leave it."""

    dialect = PostgresDialect()

    def __init__(self, dataset: Dataset, memory: str = "256MB") -> None:
        self._address, self._memory = dsn_of(dataset), memory
        self._connection = self._connect()
        super().__init__(dataset)

    def _connect(self) -> psycopg.Connection[tuple[object, ...]]:
        """Open a read-only connection with the required settings; refuse an unreachable server."""
        try:
            connection = psycopg.connect(self._address)
            connection.isolation_level, connection.read_only = IsolationLevel.REPEATABLE_READ, True
            with connection.transaction():
                self._prepare(connection)
        except psycopg.Error:
            raise InvalidSchema(
                "cannot connect to the PostgreSQL server of this dataset; check its address and role"
            ) from None
        return connection

    def _prepare(self, connection: psycopg.Connection[tuple[object, ...]]) -> None:
        """Check the encoding of the database and set the connection's settings."""
        encoding = connection.execute("SHOW server_encoding").fetchone()
        if encoding is None or encoding[0] != "UTF8":
            raise InvalidSchema("the encoding of the PostgreSQL database must be UTF8")
        for name, value in {**SETTINGS, "work_mem": self._memory, "client_encoding": "UTF8"}.items():
            if name != "search_path":
                connection.execute("SELECT pg_catalog.set_config(%s, %s, false)", (name, value))

    def _table_source(self, table: Table) -> TableSource:
        try:
            with self._connection.transaction():
                source_table = self._qualified_table(table.source.options.get("table", table.name))
                columns = self._columns(source_table)
        except psycopg.Error as error:
            raise unreadable_source(table, error) from None
        kinds = kinds_of(table, {name: kind for name, (kind, _) in columns.items()})
        readable = [exp.alias_(columns[name][1], name, quoted=True) for name in table.columns]
        return TableSource(exp.select(*readable).from_(source_table).subquery("raw"), kinds)

    def _qualified_table(self, name: str) -> exp.Table:
        """Return the table's full name, looked up in the role's own search path."""
        full_name = self._connection.execute(
            "SELECT n.nspname, c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n"
            " ON n.oid = c.relnamespace WHERE c.oid = pg_catalog.to_regclass(%s)",
            (name,),
        ).fetchone()
        if full_name is None:
            raise psycopg.ProgrammingError("there is no such table, or this role may not see it")
        return exp.table_(str(full_name[1]), db=str(full_name[0]), quoted=True)

    def _columns(self, source_table: exp.Table) -> dict[str, tuple[RawKind, Sql]]:
        """Return each column's kind, and the expression that reads it so that no later operation can fail on it."""
        cursor = self._connection.execute(self.dialect.render(exp.select("*").from_(source_table).limit(0)).encode())
        types = {column.name: (column.type_code, column.precision) for column in cursor.description or ()}
        text_types = self._text_like_types([code for code, _ in types.values()])
        return {name: _describe_column(name, code, precision, text_types) for name, (code, precision) in types.items()}

    def _text_like_types(self, codes: list[int]) -> set[int]:
        """Return those type codes that are enums or citext."""
        query = "SELECT oid FROM pg_catalog.pg_type WHERE oid = ANY(%s) AND (typtype = 'e' OR typname = 'citext')"
        return {int(str(row[0])) for row in self._connection.execute(query, (codes,))}

    def _run(self, statement: Sql, deadline: float | None = None) -> pa.Table:
        with self._transaction(deadline), self._connection.cursor(binary=True) as cursor:
            cursor.execute(self.dialect.render(statement).encode(), prepare=False)
            return as_arrow(cursor)

    def _batches(self, statement: Sql) -> Iterator[pa.RecordBatch]:
        with self._transaction(None), self._connection.cursor(name="cells", binary=True) as cursor:
            cursor.execute(self.dialect.render(statement).encode())
            while (rows := as_arrow(cursor, ROWS_PER_FETCH)).num_rows:
                yield from rows.to_batches()

    @contextmanager
    def _transaction(self, deadline: float | None) -> Iterator[None]:
        """Begin a transaction with the limits of one statement, on a new connection if the old one was lost."""
        if self._connection.closed:
            self._connection = self._connect()
        milliseconds = 0 if deadline is None else max(1, int(deadline * 1000))
        with self._connection.transaction():
            self._connection.execute(
                "SELECT set_config('statement_timeout', %s, true), set_config('search_path', 'pg_catalog', true),"
                " set_config('cursor_tuple_fraction', '1', true)",
                (str(milliseconds),),
            )
            yield

    def cancel(self) -> None:
        """Ask the server to stop the running statement."""
        self._connection.cancel_safe(timeout=10)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def dsn_of(dataset: Dataset) -> str:
    """Return the server address from the environment variable that all tables of a dataset name."""
    names = {table.source.options["dsn_env"] for table in dataset.tables.values()}
    if len(names) != 1:
        raise InvalidSchema(f"the tables of one dataset must share one dsn_env, got {', '.join(sorted(names))}")
    name = names.pop()
    if name not in os.environ:
        raise InvalidSchema(
            f"the environment variable {name} is not set; set it to the address of the PostgreSQL server"
        )
    return os.environ[name]


def _describe_column(name: str, code: int, precision: int | None, text_types: set[int]) -> tuple[RawKind, Sql]:
    """Return the kind of a column and the expression that reads it."""
    type_info = postgres.types.get(code)
    kind = "text" if code in text_types else KINDS.get(type_info.name, "other") if type_info else "other"
    long = kind == "decimal" and (precision is None or precision > SAFE_DIGITS)
    return kind, readable_column(exp.column(name, quoted=True), kind, long=long)


def readable_column(raw: Sql, kind: RawKind, *, long: bool = False) -> Sql:
    """Convert a raw column for later expressions: texts compare by code points, numbers cannot make arithmetic fail."""
    match kind:
        case "text":
            return exp.Collate(this=cast_to(raw, "text"), expression=exp.to_identifier("C", quoted=True))
        case "float":
            least = cast(string(f"1e-{SAFE_DIGITS}"), "double")
            return _raise_tiny(raw, least, raw)
        case "decimal" if long:
            return _shorten_numeric(raw)
        case _:
            return raw


def _shorten_numeric(raw: Sql) -> Sql:
    """Convert a numeric of any length to one that can be cast to a double."""
    most = exp.Literal.number(f"1e{SAFE_DIGITS}")
    clamped = call("LEAST", call("GREATEST", raw, exp.Neg(this=most)), most)
    rounded = _raise_tiny(
        raw, exp.Literal.number(f"1e-{SAFE_DIGITS}"), function_call("round", clamped, literal(SAFE_DIGITS))
    )
    return case([(binary(exp.EQ, raw, cast_to(string("NaN"), "numeric")), raw)], rounded)


def _raise_tiny(raw: Sql, least: Sql, normal: Sql) -> Sql:
    """Replace nonzero values closer to zero than `least` by `least` with their sign, so that no product underflows."""
    tiny = and_([binary(exp.NEQ, raw, literal(0)), binary(exp.LT, exp.Abs(this=detach(raw)), least)])
    return case([(tiny, times(function_call("sign", raw), least))], normal)


def as_arrow(cursor: psycopg.Cursor[tuple[object, ...]], most: int | None = None) -> pa.Table:
    """Fetch all rows of a cursor, or the next `most`, as Arrow."""
    rows = cursor.fetchall() if most is None else cursor.fetchmany(most)
    column_descriptions = cursor.description or []
    columns = list(zip(*rows, strict=True)) if rows else [() for _ in column_descriptions]
    kinds = [postgres.types.get(column.type_code) for column in column_descriptions]
    arrays = [
        pa.array(values, type=ARROW.get(kind.name) if kind else None)
        for values, kind in zip(columns, kinds, strict=True)
    ]
    return pa.table(arrays, names=[column.name for column in column_descriptions])


def open_engine(dataset: Dataset, memory: str = "256MB") -> PostgresEngine:
    """Open an engine over the dataset's tables in PostgreSQL."""
    return PostgresEngine(dataset, memory)
