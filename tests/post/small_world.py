"""A small world to ask about: people, what they did with which page, and the public pages."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dither.plan.context import PublicTableFacts

CORPUS = Path(__file__).parent / "corpus"
PEOPLE = 400
COUNTRIES = ["AT", "CH", "DE", "FR", "IT", "NL"]
ACTIONS = ["view", "click", "share", "like", "comment", "report"]

DATASET = """
version: 1
name: world
population: world
data_version: "1"
tables:
  users:
    private: true
    source: {kind: parquet, path: users.parquet}
    unique: user_id
    columns:
      user_id: {type: identifier, kind: integer}
      age: {type: integer, min: 18, max: 65}
      country: {type: category, values: [AT, CH, DE, FR, IT, NL]}
      gender: {type: category, values: [f, m, x]}
      salary: {type: integer, min: 0, max: 300000}
      joined: {type: date, min: 2015-01-01, max: 2019-12-31}
      vip: {type: boolean}
  actions:
    private: true
    source: {kind: parquet, path: actions.parquet}
    columns:
      user_id: {type: identifier, kind: integer}
      url_id: {type: category, values_from: urls.url_id}
      action: {type: category, values: [view, click, share, like, comment, report]}
      moment: {type: timestamp, min: 2019-01-01, max: 2020-12-31, precision: second}
      seconds: {type: integer, min: 0, max: 600}
      price: {type: decimal, min: 0, max: 100, step: 0.01}
  urls:
    private: false
    source: {kind: parquet, path: urls.parquet}
    unique: url_id
    columns:
      url_id: {type: integer, min: 1, max: 30}
      topic: {type: category, values: [news, sport, art]}
      shares: {type: integer, min: 0, max: 1000}
      year: {type: integer, min: 2010, max: 2019}
units:
  user:
    kind: user
    keys: {users: user_id, actions: user_id}
  action:
    kind: row
    tables: [actions]
budgets:
  - {unit: user, kind: pure, epsilon: 1000}
"""


def people(random: np.random.Generator) -> pa.Table:
    """One row for each person."""
    days = random.integers(0, 1826, PEOPLE)
    return pa.table(
        {
            "user_id": np.arange(1, PEOPLE + 1),
            "age": random.integers(18, 66, PEOPLE),
            "country": random.choice(COUNTRIES, PEOPLE),
            "gender": random.choice(["f", "m", "x"], PEOPLE, p=[0.45, 0.45, 0.1]),
            "salary": random.integers(0, 300_001, PEOPLE),
            "joined": pa.array((np.datetime64("2015-01-01") + days).astype("datetime64[D]")),
            "vip": random.random(PEOPLE) < 0.2,
        }
    )


def actions(random: np.random.Generator) -> pa.Table:
    """Many rows for some people, none for a few."""
    counts = np.minimum(random.geometric(0.1, PEOPLE) - 1, 60)
    who = np.repeat(np.arange(1, PEOPLE + 1), counts)
    size = len(who)
    moments = np.datetime64("2019-01-01T00:00:00", "s") + random.integers(0, 63_072_000, size)
    return pa.table(
        {
            "user_id": who,
            "url_id": random.integers(1, 31, size),
            "action": random.choice(ACTIONS, size, p=[0.5, 0.2, 0.1, 0.1, 0.07, 0.03]),
            "moment": pa.array(moments.astype("datetime64[us]")),
            "seconds": random.integers(0, 601, size),
            "price": np.round(random.random(size) * 100, 2),
        }
    )


def urls(random: np.random.Generator) -> pa.Table:
    """The public pages."""
    return pa.table(
        {
            "url_id": np.arange(1, 31),
            "topic": random.choice(["news", "sport", "art"], 30),
            "shares": random.integers(0, 1001, 30),
            "year": random.integers(2010, 2020, 30),
        }
    )


def facts() -> PublicTableFacts:
    """What may be counted in the public table."""
    return PublicTableFacts({"urls.url_id": tuple(range(1, 31))}, {"urls.url_id": 1})


def build(folder: Path) -> Path:
    """Writes the tables and the description; gives the path of the latter."""
    random = np.random.default_rng(20261115)
    for name, make in (("users", people), ("actions", actions), ("urls", urls)):
        pq.write_table(make(random), folder / f"{name}.parquet")
    path = folder / "dataset.yml"
    path.write_text(DATASET)
    return path


def raw(folder: Path) -> duckdb.DuckDBPyConnection:
    """The same tables without any privacy, to compare with."""
    connection = duckdb.connect()
    for name in ("users", "actions", "urls"):
        connection.execute(f"CREATE VIEW {name} AS SELECT * FROM read_parquet('{folder / name}.parquet')")
    return connection


def statements(name: str) -> list[str]:
    """The queries of a corpus file, one a line; lines that begin with -- are headings."""
    lines = (CORPUS / name).read_text().splitlines()
    return [line.rstrip(";") for line in lines if line.strip() and not line.startswith("--")]
