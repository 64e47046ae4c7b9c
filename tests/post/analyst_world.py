"""A clinic to ask about as analysts do: NULLs, repeated rows, categories without a row, people in one table only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

PEOPLE = 300
CITIES = ["Zug", "Bern", "Aarau"]
TABLES = ("people", "visits", "letters", "clinics")
SCHEMA = """
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
      age: {type: integer, min: 18, max: 82, nullable: true}
      born: {type: date, min: 1940-01-01, max: 2005-12-31}
      income: {type: decimal, min: 0, max: 200000, step: 0.01, nullable: true}
      smoker: {type: boolean, nullable: true}
      city: {type: category, values: [Zug, Bern, Aarau, Chur], nullable: true}
      plan: {type: category, values: [" Basic", "plus-XL", "none"]}
  visits:
    private: true
    source: {kind: parquet, path: visits.parquet}
    columns:
      person_id: {type: identifier, kind: integer}
      clinic_id: {type: category, values_from: clinics.clinic_id}
      kind: {type: category, values: [check, surgery, xray, phone]}
      day: {type: date, min: 2019-01-01, max: 2020-12-31}
      arrived: {type: timestamp, min: 2019-01-01, max: 2020-12-31, precision: second, nullable: true}
      cost: {type: integer, min: 0, max: 500, nullable: true}
      minutes: {type: integer, min: 0, max: 119}
      urgent: {type: boolean}
  letters:
    private: true
    source: {kind: parquet, path: letters.parquet}
    columns:
      person_id: {type: identifier, kind: integer}
      topic: {type: category, values: [bill, advice]}
      pages: {type: integer, min: 1, max: 9}
  clinics:
    private: false
    source: {kind: parquet, path: clinics.parquet}
    unique: clinic_id
    columns:
      clinic_id: {type: integer, min: 1, max: 12}
      region: {type: category, values: [north, south]}
      beds: {type: integer, min: 0, max: 400}
units:
  person:
    kind: user
    keys: {people: person_id, visits: person_id, letters: person_id}
budgets:
  - {unit: person, kind: zcdp, rho: 1000, delta: 1/10}
"""


def tables() -> dict[str, pa.Table]:
    """Build the tables; people 301 to 330 have visits but no row of their own, and some people have no visit."""
    random = np.random.default_rng(21)
    missing = random.random((5, PEOPLE)) < 0.1
    who = np.repeat(np.arange(1, PEOPLE + 31), np.minimum(random.geometric(0.35, PEOPLE + 30) - 1, 12))
    size = len(who)
    day = np.datetime64("2019-01-01") + random.integers(0, 731, size)
    arrived = day.astype("datetime64[s]") + random.integers(0, 86_400, size)
    visits: dict[str, Any] = {
        "person_id": who,
        "clinic_id": random.integers(1, 9, size),
        "kind": random.choice(["check", "surgery", "xray"], size, p=[0.6, 0.1, 0.3]),
        "day": pa.array(day),
        "arrived": pa.array(arrived.astype("datetime64[us]"), mask=random.random(size) < 0.1),
        "cost": pa.array(random.integers(0, 501, size), mask=random.random(size) < 0.2),
        "minutes": random.integers(0, 120, size),
        "urgent": random.random(size) < 0.3,
    }
    rows = pa.table(visits)
    writers = random.integers(1, PEOPLE + 31, 200)
    return {
        "people": pa.table({
            "person_id": np.arange(1, PEOPLE + 1),
            "age": pa.array(random.integers(18, 83, PEOPLE), mask=missing[0]),
            "born": pa.array(np.datetime64("1940-01-01") + random.integers(0, 24_106, PEOPLE)),
            "income": pa.array(np.round(random.random(PEOPLE) * 200_000, 2), mask=missing[1]),
            "smoker": pa.array(random.random(PEOPLE) < 0.3, mask=missing[2]),
            "city": pa.array(random.choice(CITIES, PEOPLE), mask=missing[3]),
            "plan": random.choice([" Basic", "plus-XL"], PEOPLE),
        }),
        "visits": pa.concat_tables([rows, rows.slice(0, 40)]),
        "letters": pa.table({
            "person_id": writers, "topic": random.choice(["bill", "advice"], 200), "pages": random.integers(1, 10, 200),
        }),
        "clinics": pa.table({
            "clinic_id": np.arange(1, 11), "region": random.choice(["north", "south"], 10),
            "beds": random.integers(0, 401, 10),
        }),
    }  # fmt: skip


def build(folder: Path) -> Path:
    """Write the tables and the description; return the path of the latter."""
    for name, table in tables().items():
        pq.write_table(table, folder / f"{name}.parquet")
    path = folder / "clinic.yml"
    path.write_text(SCHEMA)
    return path


def raw(folder: Path) -> duckdb.DuckDBPyConnection:
    """The same tables without any privacy, to compare with, and the functions of other dialects that DuckDB lacks."""
    connection = duckdb.connect()
    connection.execute(
        "CREATE MACRO width_bucket(x, low, high, count) AS least(count + 1, greatest(0, floor((x - low) * count"
        " / (high - low)) + 1))::INT"
    )
    connection.execute(
        "CREATE MACRO bucket(x, one, two, three) AS (x >= one)::INT + (x >= two)::INT + (x >= three)::INT"
    )
    for name in TABLES:
        connection.execute(f"CREATE VIEW {name} AS SELECT * FROM read_parquet('{folder / name}.parquet')")
    return connection
