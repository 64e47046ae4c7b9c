"""One person is one unit however their name is spelt in Unicode: in every engine, prepared or not, and across joins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest

from dither.access.engines import open_engine
from dither.access.engines.spark import SparkEngine
from dither.access.snapshot import SnapshotEngine, prepare
from dither.plan import expressions as x
from dither.plan import measures as m
from dither.plan import relations as r
from dither.schema import Category, Column, Dataset, Identifier, Reference, Source, Table, Unit

DSN = "DITHER_NAMES_DSN"
# Zoé in three spellings, Ann in two of the Kelvin sign's kind, and names that are different people.
PEOPLE = [
    ("Zoé", "Köln"),
    ("Zoe\u0301", "Ko\u0308ln"),
    ("ṩ", "Bonn"),
    ("s\u0307\u0323", "Bonn"),
    ("s\u0323\u0307", "x"),
]
ALONE = [("K", "Bonn"), ("\u212a", "Köln"), ("zoé", "Bonn"), ("Zoé ", "Bonn"), ("Zoe", "Bonn")]
VISITS = [("Zoe\u0301", "Köln"), ("Zoé", "Ko\u0308ln"), ("\u1e63\u0307", "Köln"), ("nobody", "Köln")]
CITIES = [("Ko\u0308ln",), ("Bonn",)]
TABLES = {"people": PEOPLE + ALONE, "visits": VISITS, "cities": CITIES}
UNITS = 6  # Zoé, ṩ, K, zoé, "Zoé " and Zoe


def declared(place: Callable[[str], Source]) -> Dataset:
    city = Category(("Bonn", "Köln", "other"))
    tables = {
        "people": Table("people", True, columns(name=Identifier("text"), city=city), place("people")),
        "visits": Table(
            "visits", True, columns(name=Identifier("text"), city=Reference("cities", "city", "text")), place("visits")
        ),
        "cities": Table("cities", False, columns(city=Identifier("text")), place("cities"), "city"),
    }
    return Dataset("d", "d", "1", tables, {"person": Unit("person", "user", {"people": "name", "visits": "name"})}, ())


def columns(**domains: Any) -> dict[str, Column]:
    return {
        name: Column(name, domain, "other" if isinstance(domain, Category) else None)
        for name, domain in domains.items()
    }


def stored(name: str) -> pa.Table:
    names = ("city",) if name == "cities" else ("name", "city")
    return pa.table({key: [row[i] for row in TABLES[name]] for i, key in enumerate(names)})


def on_parquet(path: Path) -> Dataset:
    for name in TABLES:
        pq.write_table(stored(name), path / f"{name}.parquet")
    return declared(lambda name: Source("parquet", {"path": str(path / f"{name}.parquet")}))


def on_csv(path: Path) -> Dataset:
    for name in TABLES:
        pc.write_csv(stored(name), path / f"{name}.csv")
    return declared(lambda name: Source("csv", {"path": str(path / f"{name}.csv")}))


def check(engine: Any) -> None:
    """Units, the rows that a limit keeps, categories, references, joins and literals all see one spelling."""
    people, visits = r.Scan("people"), r.Scan("visits")
    assert engine.vector(m.count_units(people, "person")).tolist() == [UNITS]
    assert engine.vector(m.Count(r.LimitRowsPerUnit(people, "person", 1))).tolist() == [UNITS]
    assert engine.vector(m.count_units(visits, "person")).tolist() == [3]
    by_city = engine.vector(m.Count(people, (m.GroupKey("city", x.ColumnRef("city")),)))
    assert by_city.tolist() == [6, 3, 1]
    by_place = engine.vector(m.Count(visits, (m.GroupKey("city", x.ColumnRef("city")),)))
    assert engine.ctx.facts.values["cities.city"] == ("Bonn", "Köln")
    assert by_place.tolist() == [0, 4, 0]
    towns = r.Project(r.Scan("cities"), (("town", x.ColumnRef("city")),))
    joined = r.PublicJoin(visits, towns, (("city", "town"),), "inner")
    assert engine.vector(m.Count(joined)).tolist() == [4]
    for spelling in ("Zoé", "Zoe\u0301"):
        found = r.Filter(people, x.Compare("=", x.ColumnRef("name"), x.LiteralValue(spelling)))
        listed = r.Filter(people, x.In(x.ColumnRef("name"), (spelling,)))
        assert [engine.vector(m.Count(each)).tolist() for each in (found, listed)] == [[2], [2]]
        key = m.GroupKey("city", x.ColumnRef("city"), ("Ko\u0308ln" if spelling == "Zoé" else "Köln",))
        assert engine.vector(m.Count(visits, (key,))).tolist() == [4]


@pytest.mark.parametrize("kind", [on_parquet, on_csv])
def test_one_person_is_one_unit_in_files(kind: Callable[[Path], Dataset], tmp_path: Path) -> None:
    data = kind(tmp_path)
    plain = open_engine(data)
    check(plain)
    counted = plain.inspect()  # type: ignore[attr-defined]
    assert (counted["people.city"], counted["people.name"], counted["people"]) == (1, 0, 0)
    plain.close()
    prepare(data)
    ready = open_engine(data)
    assert isinstance(ready, SnapshotEngine)
    check(ready)
    ready.close()


@pytest.fixture
def names_in_postgres(postgres_database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Dataset]:
    monkeypatch.setenv(DSN, postgres_database)
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        for name, rows in TABLES.items():
            kinds = "city text" if name == "cities" else "name varchar(40), city text"
            connection.execute(f"CREATE TABLE {name} ({kinds})")
            marks = ", ".join(["%s"] * len(rows[0]))
            connection.cursor().executemany(f"INSERT INTO {name} VALUES ({marks})", rows)
    yield declared(lambda name: Source("postgres", {"dsn_env": DSN, "table": name}))


def test_one_person_is_one_unit_in_postgres(names_in_postgres: Dataset) -> None:
    engine = open_engine(names_in_postgres)
    check(engine)
    engine.close()


@pytest.mark.tier("test")
def test_one_person_is_one_unit_in_spark(spark: Any, tmp_path: Path) -> None:
    on_parquet(tmp_path)
    data = declared(lambda name: Source("spark", {"path": str(tmp_path / f"{name}.parquet")}))
    engine = SparkEngine(data, "1", spark.newSession())
    check(engine)
    assert engine.inspect()["people.city"] == 1
    engine.close()


def test_nul_merges_nobody(tmp_path: Path) -> None:
    """DuckDB's own conversion stops at NUL: two people whose names agree up to it were one."""
    pq.write_table(pa.table({"name": ["é\0a", "é\0b", "e\u0301\0a", "K\0a", "\u212a\0a"]}), tmp_path / "t.parquet")
    table = Table("t", True, columns(name=Identifier("text")), Source("parquet", {"path": str(tmp_path / "t.parquet")}))
    engine = open_engine(Dataset("d", "d", "1", {"t": table}, {"person": Unit("person", "user", {"t": "name"})}, ()))
    assert engine.vector(m.count_units(r.Scan("t"), "person")).tolist() == [3]
    engine.close()
