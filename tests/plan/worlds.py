"""Small datasets as files, for tests that go through the DuckDB engine."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dither.access.engines.duckdb import DuckDBEngine
from dither.schema import Category, Column, Dataset, Domain, Identifier, Moment, Number, Reference, Source, Table, Unit

YEAR_2020 = 1_577_836_800_000_000
DAY = 86_400_000_000
USER = Unit("user", "user", {"users": "id", "actions": "user_id"})
ACTION = Unit("action", "row", {"actions": None})
MONTH = Unit("month", "window", {"actions": "user_id"}, {"actions": "t"}, "month")

COLUMNS: dict[str, dict[str, Domain]] = {
    "users": {
        "id": Identifier("integer"),
        "age": Number(Fraction(18), Fraction(65)),
        "country": Category(("FR", "DE", "other")),
    },
    "actions": {
        "user_id": Identifier("integer"),
        "url": Reference("urls", "url", "text"),
        "action": Category(("view", "like", "share")),
        "t": Moment(YEAR_2020, YEAR_2020 + 365 * DAY),
    },
    "urls": {"url": Identifier("text"), "topic": Category(("news", "sport"))},
}  # fmt: skip
TYPES = {
    "id": pa.int64(), "age": pa.float64(), "country": pa.string(), "user_id": pa.int64(), "url": pa.string(),
    "action": pa.string(), "t": pa.timestamp("us"), "topic": pa.string(),
}  # fmt: skip


def table(name: str, path: Path, unique: str | None = None) -> Table:
    columns = {key: Column(key, domain) for key, domain in COLUMNS[name].items()}
    return Table(name, name != "urls", columns, Source("parquet", {"path": str(path / f"{name}.parquet")}), unique)


def dataset(path: Path, *units: Unit) -> Dataset:
    tables = {
        "users": table("users", path, "id"),
        "actions": table("actions", path),
        "urls": table("urls", path, "url"),
    }
    return Dataset("web", "web", "1", tables, {unit.name: unit for unit in units or (USER, ACTION)}, ())


def write(path: Path, **rows: list[tuple[Any, ...]]) -> None:
    """Writes each table's rows, with the columns in the order of the schema."""
    for name, columns in COLUMNS.items():
        found = rows.get(name, [])
        arrays = {key: pa.array([row[i] for row in found], type=TYPES[key]) for i, key in enumerate(columns)}
        pq.write_table(pa.table(arrays), path / f"{name}.parquet")


def many(unlisted: str = "spam") -> dict[str, list[tuple[Any, ...]]]:
    """Rows of every table, some of them outside their domains: ages, countries, actions, a key twice, a key missing."""
    actions = ["view", "like", "share", unlisted]
    return {
        "users": [(i, 18.0 + i % 60, "FR" if i % 3 else "ZZ") for i in range(40)]
        + [(1, 99.0, "DE"), (None, 20.0, "FR")],
        "actions": [(i % 37, f"u{i % 5}", actions[i % 4], YEAR_2020 + i * DAY // 3) for i in range(900)],
        "urls": [(f"u{i}", "news" if i % 2 else "sport") for i in range(4)],
    }


def engine(path: Path, *units: Unit, **rows: list[tuple[Any, ...]]) -> DuckDBEngine:
    """An engine over freshly written tables."""
    path.mkdir(parents=True, exist_ok=True)
    write(path, **rows)
    return DuckDBEngine(dataset(path, *units), threads=1)


def one_table(
    path: Path, columns: Mapping[str, Domain], values: Mapping[str, pa.Array], unit: Unit, unique: str | None = None
) -> DuckDBEngine:
    """An engine over a single private table."""
    path.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(dict(values)), path / "t.parquet")
    source = Source("parquet", {"path": str(path / "t.parquet")})
    declared = Table("t", True, {key: Column(key, domain) for key, domain in columns.items()}, source, unique)
    return DuckDBEngine(Dataset("d", "d", "1", {"t": declared}, {unit.name: unit}, ()), threads=1)
