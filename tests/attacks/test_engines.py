"""The error oracles on PostgreSQL and Spark: queries are answered or refused alike with and without one person."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from attacks.sites import COLUMNS, PERSON
from conftest import Tier
from dither.audit.attacks.oracles import EXPRESSIONS, QUERIES, SHAPES, fill_template
from dither.errors import DitherError, EngineFailure
from dither.plan.expressions import numeric
from dither.post.session import Session
from dither.privacy.kernel import LocalKernel
from dither.schema import Dataset, Source, load
from serve.servers import SALARY, town

pytestmark = pytest.mark.tier("test")
DSN = "DITHER_ATTACKS_DSN"
HEAVY = {"groups by values of the data"}
PEERS = {
    "division by zero", "remainder by zero", "square root in a CASE", "logarithm of zero", "overflow of an exponential",
    "overflow of a product", "a product near the end of the range", "an absolute value near the end",
    "cast to a small integer", "cast of a CASE of texts", "a giant text", "a regular expression that explodes",
    "a pattern that goes back and forth", "a group key inside an aggregate", "a key inside an aggregate",
    "as deep as allowed", "deep parentheses",
}  # fmt: skip


def outcome(session: Session, query: str) -> str:
    """Return the outcome of a query: answered, with the number of rows, or the full text of the error."""
    try:
        return f"answered {len(session.sql(query, epsilon='1/1000'))}"
    except DitherError as problem:
        return f"{problem.code} {problem}"


@contextmanager
def session(described: Dataset, ledger: Path) -> Iterator[Session]:
    kernel = LocalKernel(described, ledger)
    yield Session.from_kernel(kernel, "ann")
    kernel.close()


def differing_queries(
    pair: Callable[[Path], tuple[Dataset, Dataset]], folder: Path, queries: dict[str, str]
) -> dict[str, str]:
    """Return the queries whose outcome differs between neighbours or is an engine failure."""
    there, less = pair(folder)
    found = {}
    with session(there, folder / "a.sqlite") as one, session(less, folder / "b.sqlite") as two:
        for name, query in queries.items():
            ends = [outcome(each, query) for each in (one, two)]
            if ends[0] != ends[1] or ends[0].startswith((EngineFailure.code, DitherError.code + " ")):
                found[name] = "; ".join(ends)
    return found


def chosen_queries(step: int) -> dict[str, str]:
    """Return the queries that succeeded against other libraries, and every `step`-th of the others."""
    made = {name: f"SELECT {text} FROM {{t}}" for name, text in EXPRESSIONS.items()}
    made |= {name: text for name, text in QUERIES.items() if name not in HEAVY}
    made |= {name: shape() for name, shape in SHAPES.items()}
    chosen = dict(list(made.items())[::step]) | {name: made[name] for name in PEERS}
    return {name: fill_template(text, COLUMNS, SALARY) for name, text in chosen.items()}


def store_in_postgres(address: str) -> Callable[[Path], tuple[Dataset, Dataset]]:
    """Return a function that stores the town in PostgreSQL, in two schemas."""
    import psycopg

    types = {"id": "bigint", "age": "int", "salary": "int", "city": "text", "ill": "boolean", "place": "text",
             "spent": "double precision"}  # fmt: skip

    def pair(folder: Path) -> tuple[Dataset, Dataset]:
        made = []
        with psycopg.connect(address, autocommit=True) as connection:
            for schema, without in (("everyone", None), ("less", PERSON)):
                described = load(town(folder / schema, 100, without=without))
                connection.execute(f"CREATE SCHEMA {schema}")
                tables = {}
                for name, table in described.tables.items():
                    data = pq.read_table(folder / schema / f"{name}.parquet")
                    columns = ", ".join(f"{column} {types[column]}" for column in data.column_names)
                    connection.execute(f"CREATE TABLE {schema}.{name} ({columns})")
                    with connection.cursor() as cursor, cursor.copy(f"COPY {schema}.{name} FROM STDIN") as copy:
                        for row in data.to_pylist():
                            copy.write_row(list(row.values()))
                    source = Source("postgres", {"dsn_env": DSN, "table": f"{schema}.{name}"})
                    tables[name] = replace(table, source=source)
                made.append(replace(described, tables=tables))
        return made[0], made[1]

    return pair


def test_oracles_on_postgresql(postgres_database: str, tmp_path: Path, tier: Tier, monkeypatch: Any) -> None:
    monkeypatch.setenv(DSN, postgres_database)
    assert (
        differing_queries(
            store_in_postgres(postgres_database), tmp_path, chosen_queries(tier.pick(quick=9, test=1, deep=1))
        )
        == {}
    )


def test_an_unguarded_division_is_an_oracle_on_postgresql(
    postgres_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weakened build: 1 / (salary - 91000) fails for one person's record."""
    monkeypatch.setenv(DSN, postgres_database)
    monkeypatch.setattr(numeric, "null_if_zero", lambda value: value)
    query = {"division": "SELECT SUM(CLAMP(1 / (salary - 91000), -1, 1)) FROM people"}
    found = differing_queries(store_in_postgres(postgres_database), tmp_path, query)
    assert found["division"].startswith("engine_failure") and "answered 1" in found["division"]


def store_in_files(folder: Path) -> tuple[Dataset, Dataset]:
    """Store the town in files that Spark reads."""
    made = []
    for schema, without in (("everyone", None), ("less", PERSON)):
        described = load(town(folder / schema, 100, without=without))
        tables = {
            name: replace(table, source=Source("spark", {"path": str(folder / schema / f"{name}.parquet")}))
            for name, table in described.tables.items()
        }
        made.append(replace(described, tables=tables))
    return made[0], made[1]


def test_oracles_on_spark(spark: Any, tmp_path: Path, tier: Tier) -> None:
    assert spark is not None
    assert differing_queries(store_in_files, tmp_path, chosen_queries(tier.pick(quick=36, test=12, deep=1))) == {}


def test_an_unguarded_division_is_an_oracle_on_spark(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weakened build: no guard, Spark's default settings. 1 / (salary - 91000) fails for one person's record."""
    assert spark is not None
    settings = import_module("dither.access.engines.spark").SETTINGS  # needs pyspark, which may not be there
    monkeypatch.setitem(settings, "spark.sql.ansi.enabled", "true")
    monkeypatch.setattr(numeric, "null_if_zero", lambda value: value)
    query = {"division": "SELECT SUM(CLAMP(1 / (salary - 91000), -1, 1)) FROM people"}
    found = differing_queries(store_in_files, tmp_path, query)
    assert found["division"].startswith("engine_failure") and "answered 1" in found["division"]
