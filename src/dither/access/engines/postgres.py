"""PostgreSQL 13 and later, by psycopg: read-only snapshots, a time limit on every statement, no value left to chance.

There is no TRY_CAST: texts are cast behind patterns, and values of types that reach further than 64 bits (numeric,
dates, timestamps) are held back before they are cast. Products of doubles fail where they underflow: what is nearly
zero is read as 1e-200. Text is compared in the collation "C", by code points. Give the
engine a role that may only SELECT; its transactions are READ ONLY in any case.
"""

from __future__ import annotations

import os
from functools import cache

import psycopg
import pyarrow as pa
from psycopg import IsolationLevel, postgres
from sqlglot import exp

from dither.access.engines.base import SqlEngine, kinds_of
from dither.access.engines.guarded_dialect import GuardedDialect
from dither.errors import InvalidSchema
from dither.plan.domains import DAY
from dither.plan.sql.builders import Sql, add, and_, binary, call, case, cast, detached, literal, string, times
from dither.plan.sql.dialect import RawKind
from dither.plan.sql.statement import TableSource
from dither.schema import Dataset, Table

KINDS: dict[str, RawKind] = {
    "int2": "integer", "int4": "integer", "int8": "integer", "float4": "float", "float8": "float", "numeric": "decimal",
    "text": "text", "varchar": "text", "bpchar": "text", "name": "text", "uuid": "text", "bool": "boolean",
    "date": "date", "timestamp": "timestamp", "timestamptz": "timestamp",
}  # fmt: skip
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
FIRST_DAY = -719_162
SAFE_DATES = ("4713-01-01 BC", "294000-01-01")
SAFE_MICROSECONDS = 9_000_000_000_000_000_000
SAFE_DIGITS = 200


def column_type(node: Sql, kind: str) -> Sql:
    """CAST to a type of PostgreSQL's own."""
    return exp.Cast(this=detached(node), to=_type(kind).copy())


@cache
def _type(kind: str) -> exp.DataType:
    return exp.DataType.build(kind, dialect="postgres")


def sql_function(name: str, *arguments: Sql) -> Sql:
    """A function of PostgreSQL's own."""
    return exp.Anonymous(this=name, expressions=[detached(argument) for argument in arguments])


class PostgresDialect(GuardedDialect):
    """PostgreSQL's way."""

    sqlglot_name = "postgres"

    def render(self, statement: Sql) -> str:
        """OFFSET 0 keeps subqueries apart: merged ones would repeat their expressions, again at each level."""
        for common in statement.find_all(exp.CTE):
            if isinstance(common.this, exp.Select) and not common.this.args.get("group"):
                common.this.set("offset", exp.Offset(expression=literal(0)))
        return super().render(statement)

    def quotient(self, left: Sql, right: Sql) -> Sql:
        """`/` of integers goes towards zero here."""
        divided = binary(exp.Div, left, right)
        divided.set("typed", True)
        return divided

    def wide(self, value: Sql) -> Sql:
        """NUMERIC has no limit that sums could reach; SUM of bigint is NUMERIC of itself."""
        return column_type(value, "numeric")

    def instant(self, microseconds: Sql) -> Sql:
        """Days and the rest apart: an interval times a number goes through a double."""
        positive = add(microseconds, -FIRST_DAY * DAY)
        days = column_type(add(self.quotient(positive, literal(DAY)), FIRST_DAY), "int")
        day = cast(binary(exp.Add, column_type(string("1970-01-01"), "date"), days), "timestamp")
        moment = exp.Interval(this=string("1"), unit=exp.var("microsecond"))
        return binary(exp.Add, day, exp.Paren(this=times(self.remainder(positive, literal(DAY)), moment)))

    def microseconds(self, moment: Sql) -> Sql:
        """EXTRACT gives an exact number, which may pass 64 bits at the end of the calendar."""
        exact = times(exp.Extract(this=exp.var("epoch"), expression=detached(moment)), 1_000_000)
        held = call("LEAST", call("GREATEST", exact, literal(-SAFE_MICROSECONDS)), literal(SAFE_MICROSECONDS))
        return case([(sql_function("isfinite", moment), cast(held, "bigint"))])

    def moment_of_date(self, value: Sql) -> Sql:
        """Dates reach further than timestamps."""
        first, last = (column_type(string(day), "date") for day in SAFE_DATES)
        inside = and_([binary(exp.GTE, value, first), binary(exp.LTE, value, last)])
        return case([(inside, cast(value, "timestamp"))])

    def fingerprint(self, value: Sql) -> Sql:
        """Hexadecimal digits are read as a bit string."""
        digits = exp.Substring(this=exp.MD5(this=detached(value)), start=literal(1), length=literal(8))
        return cast(column_type(exp.Paren(this=exp.Concat(expressions=[string("x"), digits])), "bit(32)"), "bigint")

    def is_nan(self, value: Sql) -> Sql:
        """NaN equals itself here."""
        return binary(exp.EQ, value, cast(string("NaN"), "double"))


class PostgresEngine(SqlEngine):
    """Answers measures with PostgreSQL; only the aggregated groups leave it."""

    dialect = PostgresDialect()

    def __init__(self, dataset: Dataset, memory: str = "256MB") -> None:
        self._address, self._memory = dsn_of(dataset), memory
        self._connection = self._connect()
        super().__init__(dataset)

    def _connect(self) -> psycopg.Connection[tuple[object, ...]]:
        try:
            connection = psycopg.connect(self._address)
            connection.isolation_level, connection.read_only = IsolationLevel.REPEATABLE_READ, True
            with connection.transaction():
                self._prepare(connection)
        except psycopg.Error:
            raise InvalidSchema("the PostgreSQL server of this dataset cannot be reached or used") from None
        return connection

    def _prepare(self, connection: psycopg.Connection[tuple[object, ...]]) -> None:
        encoding = connection.execute("SHOW server_encoding").fetchone()
        if encoding is None or encoding[0] != "UTF8":
            raise InvalidSchema("the database must be encoded in UTF8, so that texts are the same on every engine")
        for name, value in {**SETTINGS, "work_mem": self._memory, "client_encoding": "UTF8"}.items():
            if name != "search_path":
                connection.execute("SELECT pg_catalog.set_config(%s, %s, false)", (name, value))

    def _origin(self, table: Table) -> TableSource:
        try:
            with self._connection.transaction():
                place = self._place(table.source.options.get("table", table.name))
                columns = self._columns(place)
        except psycopg.Error:
            raise InvalidSchema(f"the source of table {table.name} cannot be read") from None
        kinds = kinds_of(table, {name: kind for name, (kind, _) in columns.items()})
        picked = [exp.alias_(columns[name][1], name, quoted=True) for name in table.columns]
        return TableSource(exp.select(*picked).from_(place).subquery("raw"), kinds)

    def _place(self, name: str) -> exp.Table:
        """The table's full name, looked up as the role's own search path would."""
        found = self._connection.execute(
            "SELECT n.nspname, c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n"
            " ON n.oid = c.relnamespace WHERE c.oid = pg_catalog.to_regclass(%s)",
            (name,),
        ).fetchone()
        if found is None:
            raise psycopg.ProgrammingError("no such table")
        return exp.table_(str(found[1]), db=str(found[0]), quoted=True)

    def _columns(self, place: exp.Table) -> dict[str, tuple[RawKind, Sql]]:
        """Each column's kind, and how it is read so that nothing later can fail on it."""
        cursor = self._connection.execute(self.dialect.render(exp.select("*").from_(place).limit(0)).encode())
        types = {column.name: (column.type_code, column.precision) for column in cursor.description or ()}
        enums = self._enums([code for code, _ in types.values()])
        return {name: _described(name, code, precision, enums) for name, (code, precision) in types.items()}

    def _enums(self, codes: list[int]) -> set[int]:
        query = "SELECT oid FROM pg_catalog.pg_type WHERE oid = ANY(%s) AND (typtype = 'e' OR typname = 'citext')"
        return {int(str(row[0])) for row in self._connection.execute(query, (codes,))}

    def _run(self, statement: Sql, deadline: float | None = None) -> pa.Table:
        if self._connection.closed:
            self._connection = self._connect()
        milliseconds = 0 if deadline is None else max(1, int(deadline * 1000))
        with self._connection.transaction(), self._connection.cursor(binary=True) as cursor:
            limits = "SELECT set_config('statement_timeout', %s, true), set_config('search_path', 'pg_catalog', true)"
            cursor.execute(limits, (str(milliseconds),))
            cursor.execute(self.dialect.render(statement).encode(), prepare=False)
            return as_arrow(cursor)

    def cancel(self) -> None:
        """Asks the server to stop."""
        self._connection.cancel_safe(timeout=10)

    def close(self) -> None:
        """Leaves the server."""
        self._connection.close()


def dsn_of(dataset: Dataset) -> str:
    """The address that the environment holds for all tables of a dataset."""
    names = {table.source.options["dsn_env"] for table in dataset.tables.values()}
    if len(names) != 1:
        raise InvalidSchema(f"the tables of one dataset must share one dsn_env, got {', '.join(sorted(names))}")
    name = names.pop()
    if name not in os.environ:
        raise InvalidSchema(f"the environment has no {name}; put the address of the PostgreSQL server there")
    return os.environ[name]


def _described(name: str, code: int, precision: int | None, enums: set[int]) -> tuple[RawKind, Sql]:
    known = postgres.types.get(code)
    kind = "text" if code in enums else KINDS.get(known.name, "other") if known else "other"
    long = kind == "decimal" and (precision is None or precision > SAFE_DIGITS)
    return kind, readable_columns(exp.column(name, quoted=True), kind, long=long)


def readable_columns(raw: Sql, kind: RawKind, *, long: bool = False) -> Sql:
    """A raw column as later expressions can take it: texts by code points, no number that arithmetic would refuse."""
    match kind:
        case "text":
            return exp.Collate(this=column_type(raw, "text"), expression=exp.to_identifier("C", quoted=True))
        case "float":
            least = cast(string(f"1e-{SAFE_DIGITS}"), "double")
            return _not_tiny(raw, least, raw)
        case "decimal" if long:
            return _short(raw)
        case _:
            return raw


def _short(raw: Sql) -> Sql:
    """A numeric of any length as one that a double can be made of."""
    most = exp.Literal.number(f"1e{SAFE_DIGITS}")
    held = call("LEAST", call("GREATEST", raw, exp.Neg(this=most)), most)
    rounded = _not_tiny(raw, exp.Literal.number(f"1e-{SAFE_DIGITS}"), sql_function("round", held, literal(SAFE_DIGITS)))
    return case([(binary(exp.EQ, raw, column_type(string("NaN"), "numeric")), raw)], rounded)


def _not_tiny(raw: Sql, least: Sql, otherwise: Sql) -> Sql:
    """What is nearly zero, and is not zero, grows to where no product underflows; it stays no integer."""
    tiny = and_([binary(exp.NEQ, raw, literal(0)), binary(exp.LT, exp.Abs(this=detached(raw)), least)])
    return case([(tiny, times(sql_function("sign", raw), least))], otherwise)


def as_arrow(cursor: psycopg.Cursor[tuple[object, ...]]) -> pa.Table:
    """The rows that a cursor holds, as Arrow."""
    rows = cursor.fetchall()
    described = cursor.description or []
    columns = list(zip(*rows, strict=True)) if rows else [() for _ in described]
    kinds = [postgres.types.get(column.type_code) for column in described]
    arrays = [
        pa.array(values, type=ARROW.get(kind.name) if kind else None)
        for values, kind in zip(columns, kinds, strict=True)
    ]
    return pa.table(arrays, names=[column.name for column in described])


def open_engine(dataset: Dataset, memory: str = "256MB") -> PostgresEngine:
    """An engine over the dataset's tables in PostgreSQL."""
    return PostgresEngine(dataset, memory)
