"""A world with every type of column, missing and hostile values, an empty table and several units of privacy."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

DATASET = """
version: 1
name: {name}
timezone: Europe/Vienna
tables:
  people:
    private: true
    source: {{kind: parquet, path: people.parquet}}
    unique: person
    columns:
      person: {{type: identifier, kind: integer}}
      age: {{type: integer, min: 0, max: 110, nullable: true}}
      income: {{type: decimal, min: -1000, max: 100000, step: 0.01, nullable: true}}
      share: {{type: decimal, min: 0, max: 1, step: 1/3}}
      huge: {{type: integer, min: -1000000000000, max: 1000000000000}}
      fixed: {{type: integer, min: 7, max: 7}}
      grade: {{type: category, values: [a, B, "c'"], nullable: true}}
      level: {{type: category, values: [1, 2, 5, 10]}}
      vip: {{type: boolean, nullable: true}}
      member: {{type: boolean}}
      born: {{type: date, min: 1900-01-01, max: 2024-12-31, nullable: true}}
      seen: {{type: timestamp, min: 2024-01-01, max: 2024-12-31, precision: second}}
      home: {{type: category, values_from: places.place, kind: text, nullable: true}}
  visits:
    private: true
    source: {{kind: parquet, path: visits.parquet}}
    columns:
      person: {{type: identifier, kind: integer}}
      place: {{type: category, values_from: places.place, kind: text, nullable: true}}
      kind: {{type: category, values: [walk, ride, other], default: other}}
      at: {{type: timestamp, min: 2024-01-01, max: 2024-12-31, precision: minute}}
      left_at: {{type: timestamp, min: 2024-01-01, max: 2025-01-31, nullable: true}}
      minutes: {{type: integer, min: -60, max: 600, nullable: true}}
      cost: {{type: decimal, min: 0, max: 99.5, step: 0.5}}
      paid: {{type: boolean}}
  nothing:
    private: true
    source: {{kind: parquet, path: nothing.parquet}}
    columns:
      person: {{type: identifier, kind: integer}}
      x: {{type: integer, min: -5, max: 5, nullable: true}}
      y: {{type: decimal, min: 0, max: 10, step: 0.1}}
      c: {{type: category, values: [p, q]}}
  places:
    private: false
    source: {{kind: parquet, path: places.parquet}}
    unique: place
    columns:
      place: {{type: category, values_from: places.place, kind: text}}
      zone: {{type: category, values: [north, south]}}
      size: {{type: integer, min: 0, max: 50}}
      opened: {{type: date, min: 2000-01-01, max: 2024-12-31}}
units:
  person: {{kind: user, keys: {{people: person, visits: person, nothing: person}}}}
  month: {{kind: window, keys: {{visits: person}}, times: {{visits: at}}, every: month}}
  visit: {{kind: row, tables: [visits]}}
budgets:
{budgets}
"""
BUDGETS = {
    "pure": "  - {unit: person, kind: pure, epsilon: 1000}\n",
    "zcdp": "  - {unit: person, kind: zcdp, rho: 1000, delta: 1/2}\n"
    "  - {unit: month, kind: zcdp, rho: 1000, delta: 1/2}\n"
    "  - {unit: visit, kind: zcdp, rho: 1000, delta: 1/2}\n",
}
PLACES = ["pier", "Übersee", "mill's", 'say "hi"', "gate"]
NUMBERS = [float("nan"), float("inf"), -float("inf"), None, 1e300, -1e300, 0.0, -0.0, 7.5, 1e-320, 2.0**53]
TEXTS = [None, "", "a", "B", "c'", "C'", "walk", "ride", "pier", "nowhere", "\x00", "é", "e\u0301", "'; DROP", "%"]


def _number(random: Random, low: float, high: float) -> float | None:
    return random.choice(NUMBERS) if random.random() < 0.15 else random.uniform(low, high)


def _text(random: Random, values: list[str]) -> str | None:
    return random.choice(TEXTS) if random.random() < 0.15 else random.choice(values)


def _moment(random: Random) -> datetime | None:
    if random.random() < 0.15:
        return random.choice([None, datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59), datetime(1970, 1, 1)])
    return datetime(2024, 1, 1) + timedelta(seconds=random.randrange(366 * 86_400))


def _boolean(random: Random) -> bool | None:
    return random.choice([True, False, None])


def people(random: Random, count: int) -> pa.Table:
    """One row for each person, some twice, some without a key."""
    rows = [
        {
            "person": random.choice([None, 1, 2]) if random.random() < 0.1 else number,
            "age": _number(random, 0, 110),
            "income": _number(random, -1000, 100_000),
            "share": _number(random, 0, 1),
            "huge": _number(random, -1e12, 1e12),
            "fixed": _number(random, 7, 7),
            "grade": _text(random, ["a", "B", "c'"]),
            "level": random.choice([1, 2, 5, 10, 3, None]),
            "vip": _boolean(random),
            "member": _boolean(random),
            "born": _moment(random),
            "seen": _moment(random),
            "home": _text(random, PLACES),
        }
        for number in range(count)
    ]
    return _table(rows, PEOPLE)


def visits(random: Random, count: int, people_count: int) -> pa.Table:
    """Many rows of a few people, none of others."""
    rows = [
        {
            "person": None if random.random() < 0.05 else int(people_count * random.random() ** 3),
            "place": _text(random, PLACES),
            "kind": _text(random, ["walk", "ride", "other"]),
            "at": _moment(random),
            "left_at": _moment(random),
            "minutes": _number(random, -60, 600),
            "cost": _number(random, 0, 99.5),
            "paid": _boolean(random),
        }
        for _ in range(count)
    ]
    return _table(rows, VISITS)


NUMBER, TEXT, MOMENT, BOOL, KEY = pa.float64(), pa.string(), pa.timestamp("us"), pa.bool_(), pa.int64()
PEOPLE: dict[str, Any] = {
    "person": KEY, "age": NUMBER, "income": NUMBER, "share": NUMBER, "huge": NUMBER, "fixed": NUMBER, "grade": TEXT,
    "level": KEY, "vip": BOOL, "member": BOOL, "born": MOMENT, "seen": MOMENT, "home": TEXT,
}  # fmt: skip
VISITS: dict[str, Any] = {
    "person": KEY, "place": TEXT, "kind": TEXT, "at": MOMENT, "left_at": MOMENT, "minutes": NUMBER, "cost": NUMBER,
    "paid": BOOL,
}  # fmt: skip
NOTHING: dict[str, Any] = {"person": KEY, "x": KEY, "y": NUMBER, "c": TEXT}
PUBLIC: dict[str, Any] = {"place": TEXT, "zone": TEXT, "size": KEY, "opened": pa.date32()}


def _table(rows: list[dict[str, Any]], columns: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(rows, pa.schema(list(columns.items())))


def build(folder: Path, budgets: str = "pure", seed: int = 1, count: int = 40) -> Path:
    """Write the tables and the description; return the path of the latter."""
    random = Random(seed)
    places = [
        {"place": place, "zone": random.choice(["north", "south"]), "size": 10 * number, "opened": date(2001, 2, 3)}
        for number, place in enumerate(PLACES)
    ]
    tables = {
        "people": people(random, count),
        "visits": visits(random, 5 * count, count),
        "nothing": _table([], NOTHING),
        "places": _table(places, PUBLIC),
    }
    for name, table in tables.items():
        pq.write_table(table, folder / f"{name}.parquet")
    path = folder / "dataset.yml"
    path.write_text(DATASET.format(name=f"hostile_{budgets}", budgets=BUDGETS[budgets]))
    return path
