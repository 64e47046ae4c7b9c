"""Joins, NULL and order, compared with raw DuckDB on tables with missing values, at an epsilon that leaves no noise."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dither
from dither.access.engines import open_engine
from dither.errors import DitherError, Unsupported
from dither.post.session import Session
from dither.schema import load
from post.bare import BareKernel

HUGE = 10**9
DATASET = """
version: 1
name: clinic
population: clinic
data_version: "1"
tables:
  people:
    private: true
    source: {kind: parquet, path: people.parquet}
    unique: person_id
    columns:
      person_id: {type: identifier, kind: integer}
      age: {type: integer, min: 18, max: 40, nullable: true}
      balance: {type: integer, min: -12, max: 12}
      joined: {type: date, min: 2015-01-01, max: 2015-01-31}
      smoker: {type: boolean, nullable: true}
      city: {type: category, values: [Zug, Bern, Aarau]}
      income: {type: integer, min: -2000000000, max: 2000000000}
  visits:
    private: true
    source: {kind: parquet, path: visits.parquet}
    columns:
      person_id: {type: identifier, kind: integer}
      clinic_id: {type: category, values_from: clinics.clinic_id}
      doctor_id: {type: identifier, kind: integer}
      cost: {type: integer, min: 0, max: 100, nullable: true}
  clinics:
    private: false
    source: {kind: parquet, path: clinics.parquet}
    unique: clinic_id
    columns:
      clinic_id: {type: integer, min: 1, max: 3000000}
      region: {type: category, values: [north, south]}
  doctors:
    private: false
    source: {kind: parquet, path: doctors.parquet}
    unique: doctor_id
    columns:
      doctor_id: {type: integer, min: 1, max: 5}
      title: {type: category, values: [Dr, Prof]}
units:
  person:
    kind: user
    keys: {people: person_id, visits: person_id}
  visit:
    kind: row
    tables: [visits]
budgets:
  - {unit: person, kind: zcdp, rho: 1000, delta: 1/10}
"""
PEOPLE = 300


def write(folder: Path) -> Path:
    """Write people of whom some never came, their visits, and public clinics of which some had no visit."""
    random = np.random.default_rng(18)
    missing = random.random((2, PEOPLE)) < 0.1
    who = np.repeat(np.arange(1, PEOPLE + 1), np.minimum(random.geometric(0.4, PEOPLE) - 1, 9))
    tables: dict[str, dict[str, Any]] = {
        "people": {
            "person_id": np.arange(1, PEOPLE + 1),
            "age": pa.array(random.integers(18, 41, PEOPLE), mask=missing[0]),
            "balance": random.integers(-12, 13, PEOPLE),
            "joined": pa.array(np.datetime64("2015-01-01") + random.integers(0, 31, PEOPLE)),
            "smoker": pa.array(random.random(PEOPLE) < 0.3, mask=missing[1]),
            "city": random.choice(["Zug", "Bern", "Aarau"], PEOPLE),
            "income": random.choice([-1_500_000_000, -20, 9, 10, 100, 1_000_000_000], PEOPLE),
        },
        "visits": {
            "person_id": who,
            "clinic_id": random.integers(1, 8, len(who)),
            "doctor_id": random.integers(1, 6, len(who)),
            "cost": pa.array(random.integers(0, 101, len(who)), mask=random.random(len(who)) < 0.2),
        },
        "clinics": {"clinic_id": np.arange(1, 11), "region": random.choice(["north", "south"], 10)},
        "doctors": {"doctor_id": np.arange(1, 6), "title": random.choice(["Dr", "Prof"], 5)},
    }
    for name, columns in tables.items():
        pq.write_table(pa.table(columns), folder / f"{name}.parquet")
    path = folder / "clinic.yml"
    path.write_text(DATASET)
    return path


@pytest.fixture(scope="module")
def clinic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("clinic"))


@pytest.fixture(scope="module")
def asked(clinic: Path) -> Iterator[Session]:
    engine = open_engine(load(clinic))
    yield Session.from_kernel(BareKernel(engine.ctx, engine.vector), "analyst")
    engine.close()


@pytest.fixture(scope="module")
def raw(clinic: Path) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    for name in ("people", "visits", "clinics", "doctors"):
        connection.execute(f"CREATE VIEW {name} AS SELECT * FROM read_parquet('{clinic.parent / name}.parquet')")
    return connection


def rows_of(session: Session, query: str) -> list[tuple[Any, ...]]:
    answer = session.sql(query, epsilon=HUGE, max_contributions=20)
    found = [tuple(row[column.name] for column in answer.columns) for row in answer.to_dicts()]
    return [tuple(round(value, 6) if isinstance(value, float) else value for value in row) for row in found]


JOINS = """
SELECT COUNT(person_id) AS n FROM visits RIGHT JOIN people USING (person_id)
SELECT COUNT(DISTINCT person_id) AS n FROM visits RIGHT JOIN people USING (person_id)
SELECT COUNT(DISTINCT person_id) AS n FROM visits JOIN people USING (person_id)
SELECT COUNT(DISTINCT person_id) AS n FROM people LEFT JOIN visits USING (person_id)
SELECT COUNT(person_id) AS n FROM visits LEFT JOIN people USING (person_id)
SELECT COUNT(DISTINCT visits.person_id) AS n FROM visits RIGHT JOIN people USING (person_id)
SELECT COUNT(DISTINCT people.person_id) AS n FROM visits RIGHT JOIN people USING (person_id)
SELECT COUNT(visits.person_id) AS n FROM people LEFT JOIN visits USING (person_id)
SELECT COUNT(v.person_id) AS n, COUNT(p.person_id) AS m FROM visits v RIGHT JOIN people p ON v.person_id = p.person_id
SELECT COUNT(person_id) AS n FROM (SELECT * FROM visits RIGHT JOIN people USING (person_id)) t
SELECT COUNT(person_id) AS n FROM (SELECT v.* FROM people p LEFT JOIN visits v USING (person_id)) t
SELECT COUNT(person_id) AS n FROM (SELECT p.* FROM visits v JOIN people p USING (person_id)) t
SELECT COUNT(*) AS n FROM (SELECT person_id, COUNT(cost) AS k FROM visits RIGHT JOIN people USING (person_id) GROUP BY person_id) t WHERE k = 0
SELECT COUNT(clinic_id) AS n FROM visits RIGHT JOIN clinics USING (clinic_id)
SELECT COUNT(visits.clinic_id) AS n FROM visits RIGHT JOIN clinics USING (clinic_id)
SELECT COUNT(clinic_id) AS n FROM clinics LEFT JOIN visits USING (clinic_id)
SELECT COUNT(*) AS n FROM people JOIN visits USING (person_id) JOIN (SELECT person_id, age FROM people) b USING (person_id)
SELECT COUNT(a.person_id) AS n FROM people a JOIN people b USING (person_id) JOIN people c USING (person_id)
SELECT region, COUNT(DISTINCT person_id) AS n FROM clinics JOIN visits USING (clinic_id) JOIN people USING (person_id) GROUP BY region ORDER BY 1
SELECT clinic_id, COUNT(*) AS n FROM visits JOIN clinics USING (clinic_id) GROUP BY clinic_id HAVING COUNT(*) > 0 ORDER BY 1
SELECT clinic_id, COUNT(*) AS n FROM clinics JOIN visits USING (clinic_id) GROUP BY clinic_id HAVING COUNT(*) > 0 ORDER BY 1
SELECT c.clinic_id, COUNT(*) AS n FROM clinics c JOIN visits v ON c.clinic_id = v.clinic_id GROUP BY c.clinic_id HAVING COUNT(*) > 0 ORDER BY 1
SELECT clinic_id, COUNT(*) AS n FROM clinics RIGHT JOIN visits USING (clinic_id) GROUP BY clinic_id HAVING COUNT(*) > 0 ORDER BY 1
SELECT doctor_id, COUNT(*) AS n FROM visits JOIN doctors USING (doctor_id) GROUP BY doctor_id ORDER BY 1
SELECT doctor_id, COUNT(*) AS n FROM doctors JOIN visits USING (doctor_id) GROUP BY doctor_id ORDER BY 1
SELECT COUNT(*) AS n FROM people JOIN (SELECT person_id FROM visits WHERE cost > 50 GROUP BY person_id) AS t USING (person_id)
SELECT COUNT(*) AS n FROM people LEFT JOIN (SELECT person_id FROM visits WHERE cost > 50 GROUP BY person_id) AS t USING (person_id) WHERE t.person_id IS NULL
SELECT title, clinic_id, COUNT(*) AS n FROM clinics JOIN visits USING (clinic_id) JOIN doctors USING (doctor_id) GROUP BY 1, 2 HAVING COUNT(*) > 0 ORDER BY 1, 2
""".strip().splitlines()  # noqa: E501


@pytest.mark.parametrize("query", [JOINS[0], JOINS[-8]])
def test_a_join_names_a_column_as_sql_does(query: str, asked: Session, raw: duckdb.DuckDBPyConnection) -> None:
    assert rows_of(asked, query) == raw.execute(query).fetchall()


@pytest.mark.tier("test")
def test_every_join_names_its_columns_as_sql_does(asked: Session, raw: duckdb.DuckDBPyConnection) -> None:
    for query in JOINS:
        assert rows_of(asked, query) == raw.execute(query).fetchall(), query


COUNTED = ["NULL", "(NULL)", "CAST(NULL AS INT)", "NULL::DATE", "1", "TRUE", "'a'", "*", "age", "COALESCE(NULL, age)",
           "CASE WHEN age > 30 THEN NULL END", "CASE WHEN age > 30 THEN NULL ELSE 1 END", "NULLIF(1, 1)"]  # fmt: skip


@pytest.mark.parametrize("value", COUNTED[:3])
def test_null_is_not_counted(value: str, asked: Session, raw: duckdb.DuckDBPyConnection) -> None:
    _check_counts(value, asked, raw)


@pytest.mark.tier("test")
def test_what_is_not_null_is_counted(asked: Session, raw: duckdb.DuckDBPyConnection) -> None:
    for value in COUNTED[3:]:
        _check_counts(value, asked, raw)


def _check_counts(value: str, asked: Session, raw: duckdb.DuckDBPyConnection) -> None:
    """Compare counts of a value: of all rows, by key, with FILTER, and for each person in a subquery."""
    per_person = f"SELECT person_id, COUNT({value}) AS k, COUNT({value}) FILTER (WHERE age > 20) AS j"
    for query in (
        f"SELECT COUNT({value}) AS n, COUNT({value}) FILTER (WHERE balance > 0) AS m FROM people",
        f"SELECT city, COUNT({value}) AS n FROM people GROUP BY city ORDER BY city",
        f"SELECT SUM(k) AS n, SUM(j) AS m FROM ({per_person} FROM people GROUP BY person_id) t",
    ):
        assert rows_of(asked, query) == raw.execute(query).fetchall()


@pytest.mark.parametrize("value", ["NULL", "CAST(NULL AS INT)", "CASE WHEN age > 30 THEN NULL END"])
@pytest.mark.parametrize("aggregate", ["SUM", "AVG", "MEDIAN"])
def test_an_aggregate_of_nothing_but_null_is_refused_by_name(asked: Session, aggregate: str, value: str) -> None:
    with pytest.raises(DitherError, match="NULL in every row"):
        asked.sql(f"SELECT {aggregate}({value}) AS n FROM people", epsilon=1)


ORDERS = ["", "DESC", "NULLS FIRST", "DESC NULLS FIRST", "DESC NULLS LAST"]


TRUTH = ["AVG(smoker)", "SUM(smoker::INT)", "AVG(CAST(smoker AS DOUBLE))", "COUNT(*) FILTER (WHERE smoker = 1)",
         "COUNT(*) FILTER (WHERE 0 = smoker)", "COUNT(*) FILTER (WHERE smoker < 1)", "SUM(smoker = 1)",
         "COUNT(*) FILTER (WHERE smoker IN (0))", "SUM((age > 30)::INT)", "COUNT(*) FILTER (WHERE smoker::INT = 1)",
         "SUM(CASE smoker WHEN 1 THEN 2 ELSE 3 END)", "COUNT(*) FILTER (WHERE smoker = 'true')"]  # fmt: skip


def test_a_truth_value_is_read_as_a_number_where_sql_does(asked: Session, raw: duckdb.DuckDBPyConnection) -> None:
    query = f"SELECT {', '.join(f'{value} AS c{number}' for number, value in enumerate(TRUTH))} FROM people"
    plain = query.replace("AVG(smoker)", "AVG(smoker::INT)").replace("SUM(smoker = 1)", "SUM((smoker = 1)::INT)")
    plain = plain.replace("IN (0)", "IN (FALSE)").replace("CASE smoker WHEN 1", "CASE WHEN smoker")
    (found,), (exact,) = rows_of(asked, query), raw.execute(plain).fetchall()
    assert found == pytest.approx(exact, abs=1e-4)
    query = "SELECT SUM(k) AS n FROM (SELECT person_id, SUM(smoker) AS k FROM people GROUP BY 1) t"
    assert rows_of(asked, query) == raw.execute(query.replace("SUM(smoker)", "SUM(smoker::INT)")).fetchall()


@pytest.mark.parametrize(("query", "unit", "advice"), [
    ("SELECT cost, COUNT(*) AS n FROM visits GROUP BY cost", "visit", "the unit visit is a single row"),
    ("SELECT COUNT(*) AS n FROM visits", "person", "this query has none"),
])  # fmt: skip
def test_delta_is_refused_with_the_true_reason(asked: Session, query: str, unit: str, advice: str) -> None:
    with pytest.raises(Unsupported, match=advice):
        asked.sql(query, epsilon=1, delta="1/1000", unit=unit)


@pytest.mark.tier("test")
@pytest.mark.parametrize("key", ["age", "balance", "joined", "smoker", "city"])
def test_keys_sort_by_their_type(key: str, asked: Session, raw: duckdb.DuckDBPyConnection) -> None:
    for order in ORDERS:
        query = f"SELECT {key}, COUNT(*) AS n FROM people GROUP BY {key} ORDER BY {key} {order}"
        assert rows_of(asked, query) == raw.execute(query).fetchall()
    query = f"SELECT {key}, city AS c, COUNT(*) AS n FROM people GROUP BY 1, 2 HAVING COUNT(*) > 0 ORDER BY 2 DESC, 1"
    assert rows_of(asked, query) == raw.execute(query).fetchall()


def test_selected_keys_sort_by_their_type_and_only_they_are_shown(
    clinic: Path, tmp_path: Path, raw: duckdb.DuckDBPyConnection
) -> None:
    session = dither.connect(clinic, ledger=tmp_path / "ledger.sqlite", another_ledger=True)
    options: dict[str, Any] = {"epsilon": 40, "delta": "1/100000", "max_contributions": 1}
    for keys in ("income", "income, city", "city, income"):
        query = f"SELECT {keys}, COUNT(*) AS n FROM people GROUP BY {keys} HAVING COUNT(*) > 0"
        answer = session.sql(query, **options)
        found = [tuple(row[name] for name in keys.split(", ")) for row in answer.to_dicts()]
        exact = {row[:-1]: row[-1] for row in raw.execute(query).fetchall()}
        common = {key for key, count in exact.items() if count > 9}
        assert set(found) <= set(exact) and common <= set(found)
        schema_order = ["Zug", "Bern", "Aarau"].index
        assert found == sorted(found, key=lambda key: tuple(schema_order(v) if isinstance(v, str) else v for v in key))
    few = "SELECT income, city, COUNT(*) AS n FROM people WHERE (income > 50) = (city = 'Zug') GROUP BY 1, 2"
    assert {(row["income"] > 50) == (row["city"] == "Zug") for row in session.sql(few, **options).to_dicts()} == {True}
    session.kernel.close()  # type: ignore[attr-defined]
