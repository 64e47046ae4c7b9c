"""Read the catalogue of a PostgreSQL database for `dither init`: names, types and constraints, never a record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import psycopg

from dither.errors import InvalidParameter

TABLES = (
    "SELECT c.oid::regclass::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
    " WHERE c.relkind IN ('r', 'v', 'm', 'p', 'f') AND n.nspname NOT IN ('pg_catalog', 'information_schema')"
    " AND n.nspname NOT LIKE 'pg\\_t%' ORDER BY 1 LIMIT 50"
)
# The base type of a domain counts, and an enum is called that.
COLUMNS = (
    "SELECT a.attname, CASE WHEN b.typtype = 'e' THEN 'enum' ELSE b.typname END, NOT a.attnotnull FROM pg_attribute a"
    " JOIN pg_type t ON t.oid = a.atttypid JOIN pg_type b ON b.oid = COALESCE(NULLIF(t.typbasetype, 0), t.oid)"
    " WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"
)
UNIQUE = (
    "SELECT a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]"
    " WHERE i.indrelid = to_regclass(%s) AND i.indisunique AND i.indisvalid AND i.indnkeyatts = 1 AND i.indpred IS NULL"
    " ORDER BY i.indisprimary DESC, a.attnum LIMIT 1"
)


@dataclass(frozen=True)
class CatalogueColumn:
    """A column of a database's table, as its catalogue declares it."""

    name: str
    type: str
    nullable: bool


@dataclass(frozen=True)
class CatalogueTable:
    """A table of a database; `unique` is its primary key, or another unique column, if that is a single column."""

    name: str
    columns: tuple[CatalogueColumn, ...]
    unique: str | None


def read_catalogue(address: str, names: Sequence[str]) -> tuple[CatalogueTable, ...]:
    """Read the tables with these names; refuse unknown ones and list those that there are."""
    try:
        with psycopg.connect(address) as connection:
            connection.read_only = True
            tables = [_table(connection, name) for name in names]
            known = ", ".join(str(row[0]) for row in connection.execute(TABLES))
    except psycopg.Error:
        raise InvalidParameter(
            "cannot connect to the PostgreSQL server; check its address, role and password"
        ) from None
    missing = [table.name for table in tables if not table.columns]
    if missing or not tables:
        lacks = f"no table {', '.join(missing)}" if missing else "name at least one table"
        raise InvalidParameter(f"{lacks}; the database has: {known or 'none that this role can see'}")
    return tuple(tables)


def _table(connection: psycopg.Connection[tuple[object, ...]], name: str) -> CatalogueTable:
    """Read the columns and the unique column of one table; an unknown one has no columns."""
    columns = [
        CatalogueColumn(str(column), str(kind), bool(nullable))
        for column, kind, nullable in connection.execute(COLUMNS, (name,))
    ]
    unique = connection.execute(UNIQUE, (name,)).fetchone()
    return CatalogueTable(name, tuple(columns), str(unique[0]) if unique else None)
