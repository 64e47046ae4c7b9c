"""Clipping and sizes through joins: what is only counted may have changed, and what is read again must be the same."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dither.access import snapshot
from dither.access.engines.duckdb import DuckDBEngine
from dither.access.snapshot import open_engine, prepare
from dither.errors import EngineFailure, Unsupported
from dither.plan import expressions as x
from dither.plan import measures as m
from dither.plan import relations as r
from dither.plan.sql.dialect import Dialect
from dither.privacy.sql_size import check_compilable, scan_sizes
from dither.schema import Column, Dataset, Domain, Identifier, Number, Source, Table, Unit

ONE = (x.LiteralValue(1),)
VISITS, LINKS, PEOPLE = r.Scan("visits"), r.Scan("links"), r.Scan("people")
LISTED = r.PublicJoin(VISITS, LINKS, (("url", "link"),))


def write(path: Path, **columns: list[int]) -> None:
    pq.write_table(pa.table(columns), path)


def described(folder: Path, cap: int | None = None, unique: Mapping[str, str] = {"people": "id"}) -> Dataset:
    """Visits of people, who are a table of their own, to links, which are public."""
    small, person = Number(Fraction(0), Fraction(10)), Identifier("integer")
    columns: dict[str, dict[str, Domain]] = {
        "visits": {"uid": person, "url": small, "v": small},
        "people": {"id": person, "home": small},
        "links": {"link": small},
    }
    tables = {
        name: Table(
            name,
            name != "links",
            {column: Column(column, domain) for column, domain in domains.items()},
            Source("parquet", {"path": str(folder / f"{name}.parquet")}),
            unique.get(name),
        )
        for name, domains in columns.items()
    }
    caps = {"visits": cap} if cap is not None else {}
    return Dataset(
        "d", "d", "1", tables, {"user": Unit("user", "user", {"visits": "uid", "people": "id"}, max_rows=caps)}, ()
    )


def write_visits(folder: Path, first: int) -> None:
    """Write 200 visits of one person and five of another, from one of them on."""
    people, links = ([0] * 200 + [1] * 5)[first:], [row % 10 for row in range(first, 205)]
    write(folder / "visits.parquet", uid=people, url=links, v=[1] * len(people))


def test_a_public_file_that_has_changed_since_it_was_counted_breaks_no_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each link is there once when it is counted, and 100 times later; nobody's 200 rows may count as few then.

    The join itself leaves out links that got more rows; clipping must not rely on that.
    """
    monkeypatch.setattr(r.PublicJoin, "_counted_rows", lambda join, statement: statement.table(join.public))
    write(tmp_path / "links.parquet", link=list(range(10)))
    write(tmp_path / "people.parquet", id=[0, 1], home=[3, 4])
    write_visits(tmp_path, 0)
    engine = DuckDBEngine(described(tmp_path, 500))
    home = r.PublicJoin(r.Project(PEOPLE, (("home", x.ColumnRef("home")),)), LINKS, (("home", "link"),))
    # A computed column has no name in its table, which is no unique key either.
    computed = r.Project(LINKS, (("link", x.ColumnRef("link")), ("one", x.LiteralValue(1))))
    by_two = r.PublicJoin(VISITS, computed, (("v", "one"), ("url", "link")))
    joined = (LISTED, by_two, r.UnitJoin(VISITS, home, "user"))
    clipped = [m.ClippedSums(child, "user", ONE, 200, "l1") for child in joined]
    sizes = m.contributions(r.UnitJoin(VISITS, home, "user"), "user", (Fraction(2), Fraction(300)))
    write(tmp_path / "links.parquet", link=100 * list(range(10)))
    found = []
    for first in (0, 200):  # with and without a person of 200 rows
        write_visits(tmp_path, first)
        found.append([engine.vector(measure) for measure in (*clipped, sizes)])
    engine.close()
    *sums, counted = zip(*found, strict=True)
    assert all(abs(int(one[0]) - int(other[0])) <= 200 for one, other in sums)
    assert abs(counted[0] - counted[1]).sum() <= 1 and counted[0].sum() == 2


def test_a_public_file_that_has_changed_multiplies_nobodys_rows(tmp_path: Path) -> None:
    """Each link is there once when it is counted, and twice later: one row would then move a count by 2."""
    write(tmp_path / "links.parquet", link=list(range(10)))
    write(tmp_path / "people.parquet", id=[0, 1], home=[3, 4])
    write_visits(tmp_path, 0)
    engine = DuckDBEngine(described(tmp_path))
    one_row = r.LimitRowsPerUnit(VISITS, "user", 1)
    measure = m.Count(r.PublicJoin(one_row, LINKS, (("url", "link"),)))
    write(tmp_path / "links.parquet", link=2 * list(range(10)))
    found = []
    for first in (0, 200):
        write_visits(tmp_path, first)
        found.append(int(engine.vector(measure)[0]))
    engine.close()
    assert abs(found[0] - found[1]) <= measure.sensitivity(engine.ctx, "user").l1


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A person of six visits, one of two, and one of one who is not among the people; each link is there twice."""
    write(tmp_path / "visits.parquet", uid=[0] * 6 + [1] * 2 + [2], url=[0, 1, 2, 3, 4, 5, 0, 1, 2], v=[50] * 9)
    write(tmp_path / "people.parquet", id=[0, 1], home=[0, 0])
    write(tmp_path / "links.parquet", link=2 * list(range(6)))
    return tmp_path


@pytest.mark.parametrize("many_rows", [0, 1 << 40])
def test_rows_that_a_join_multiplies_are_clipped_and_those_without_a_partner_kept(
    many_rows: int, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers by hand: eight rows of the first are five, four of the second are four, and two of the third two."""
    monkeypatch.setattr(Dialect, "many_rows", many_rows)
    engine = DuckDBEngine(described(small, 4))
    assert engine.vector(m.ClippedSums(LISTED, "user", ONE, 5, "l1")).tolist() == [11]
    outer = r.UnitJoin(VISITS, PEOPLE, "user", "left")
    assert engine.vector(m.contributions(outer, "user", (Fraction(2), Fraction(4)))).tolist() == [1, 1, 1]
    engine.close()


def test_rows_that_a_join_repeats_are_counted_as_often_from_stored_sizes(small: Path) -> None:
    """Each link is there twice: six rows are twelve, two are four, and one is two."""
    dataset = described(small)
    plain = DuckDBEngine(dataset)
    prepare(dataset)
    ready = open_engine(dataset)
    for engine in (plain, ready):
        counted = engine.vector(m.contributions(LISTED, "user", (Fraction(3), Fraction(5), Fraction(13))))
        assert counted.tolist() == [1, 1, 1, 0]
        engine.close()


def test_rows_without_a_key_are_limited_like_those_of_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NULL is a group of a unit; where each limit counts as large, its rows are cut by a join on the group's key."""
    monkeypatch.setattr(Dialect, "many_rows", 0)
    missing = pa.array([None] * 5, pa.int64())
    pq.write_table(pa.table({"uid": [0] * 5, "v": missing}), tmp_path / "visits.parquet")
    value = Number(Fraction(0), Fraction(10), nullable=True)
    columns = {"uid": Column("uid", Identifier("integer")), "v": Column("v", value)}
    table = Table("visits", True, columns, Source("parquet", {"path": str(tmp_path / "visits.parquet")}))
    user = Unit("user", "user", {"visits": "uid"})
    engine = DuckDBEngine(Dataset("d", "d", "1", {"visits": table}, {"user": user}, ()))
    limited = r.LimitGroupsPerUnit(VISITS, "user", (x.ColumnRef("v"),), 1, 2)
    assert engine.vector(m.Count(limited)).tolist() == [2]
    engine.close()


def test_corrections_of_heavy_units_are_counted_once(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corrected = []
    for many_rows in (0, 1 << 40):
        monkeypatch.setattr(Dialect, "many_rows", many_rows)
        engine = DuckDBEngine(described(small, 4))
        rows = r.Filter(VISITS, x.Compare(">=", x.ColumnRef("v"), x.LiteralValue(0)))
        engine.vector(m.ClippedSums(rows, "user", ONE, 2, "l1"))
        corrected.append(engine.corrections()["values"])
        engine.close()
    assert corrected == [7, 7]


def test_a_limit_above_a_left_join_keeps_the_same_rows_with_and_without_a_snapshot(tmp_path: Path) -> None:
    write(
        tmp_path / "visits.parquet",
        uid=[row % 8 for row in range(40)], url=[row % 10 for row in range(40)], v=[row * 7 % 11 for row in range(40)],
    )  # fmt: skip
    write(tmp_path / "people.parquet", id=[0], home=[0])
    write(tmp_path / "links.parquet", link=list(range(5)))
    dataset = described(tmp_path, unique={"people": "id", "links": "link"})
    joined = r.PublicJoin(VISITS, LINKS, (("url", "link"),), "left")
    measure = m.Sum(r.LimitRowsPerUnit(joined, "user", 1), x.ColumnRef("v"))
    plain = DuckDBEngine(dataset)
    prepare(dataset)
    ready = open_engine(dataset)
    assert plain.vector(measure).tolist() == ready.vector(measure).tolist()
    for engine in (plain, ready):
        engine.close()


def test_a_snapshot_without_one_of_its_parts_is_not_read(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern would find what is left, and each of a statement's readings something else."""
    monkeypatch.setattr(snapshot, "ROWS_PER_PART", 3)
    dataset = described(small)
    made = prepare(dataset)
    engine = open_engine(dataset)
    measure = m.ClippedSums(VISITS, "user", ONE, 200, "l1")
    assert engine.vector(measure).tolist() == [9]
    parts = sorted((small / "d.snapshot" / made.generation / made.tables["visits"].directory).iterdir())
    assert len(parts) > 1
    parts[0].rename(parts[0].with_suffix(".away"))
    with pytest.raises(EngineFailure):
        engine.vector(measure)
    engine.close()


def test_sql_that_is_written_twice_for_clipping_is_refused_before_it_is_charged(small: Path) -> None:
    dataset = described(small)
    prepare(dataset)
    engine = open_engine(dataset)
    wide = x.Arithmetic("*", x.ColumnRef("v"), x.LiteralValue(100_000))
    rows = r.Filter(VISITS, x.Not(x.In(wide, tuple(range(40_000)))))
    values = (x.Clamp(x.ColumnRef("v"), Fraction(0), Fraction(1)),)
    ctx = replace(engine.ctx, scan_nodes=scan_sizes(engine.ctx))
    with pytest.raises(Unsupported, match="too large"):
        check_compilable(ctx, m.ClippedSums(rows, "user", values, 200, "l1"))
    check_compilable(ctx, m.Sum(rows, values[0]))
    engine.close()


def test_a_table_that_is_cleaned_anew_for_each_limit_is_measured_as_often(small: Path) -> None:
    """A limit below a cap, and sizes of units, each write the SQL that cleans a capped table once more."""
    engine = DuckDBEngine(described(small, 300))
    ctx = replace(engine.ctx, scan_nodes=scan_sizes(engine.ctx) | {"visits": 40_000})
    limits = [r.LimitRowsPerUnit(VISITS, "user", 200 + number) for number in range(6)]
    many: r.Relation = limits[0]
    sized: r.Relation = PEOPLE
    for number, each in enumerate(limits[1:]):
        many = r.Union(many, each)
        size = r.GroupBy(VISITS, (), (r.GroupAggregate(f"n{number}", "count"),), "user")
        sized = r.UnitJoin(sized, size, "user")
    check_compilable(ctx, m.Count(limits[0]))
    for rows in (many, sized):
        with pytest.raises(Unsupported, match="too large"):
            check_compilable(ctx, m.Count(rows))
    engine.close()


def test_a_choice_of_rows_is_made_once_beside_a_snapshot_that_is_read_twice(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that tie may be chosen otherwise when they are chosen again; filtered rows of a snapshot stay the same."""
    monkeypatch.setattr(Dialect, "many_rows", 0)
    dataset = described(small)
    prepare(dataset)
    engine = open_engine(dataset)
    at_home = r.Filter(PEOPLE, x.Compare(">=", x.ColumnRef("home"), x.LiteralValue(0)))
    chosen = r.LimitRowsPerUnit(r.Filter(VISITS, x.IsNull(x.ColumnRef("v"))), "user", 1)
    renamed = r.Project(chosen, (("w", x.ColumnRef("v")),))
    kept = [
        engine.sql(m.ClippedSums(r.UnitJoin(VISITS, side, "user"), "user", ONE, 4, "l1")).count("AS MATERIALIZED")
        for side in (at_home, renamed)
    ]
    assert kept[1] == kept[0] + 2  # the rows among which it chooses, and those that it chose
    engine.close()


def test_a_missing_value_hides_no_other_value_of_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that has one value but not the other adds to what its unit contributes: 5 x 10 are clipped to 20."""
    monkeypatch.setattr(Dialect, "many_rows", 0)
    empty = pa.array([None] * 5, pa.int64())
    pq.write_table(pa.table({"uid": [0] * 5, "v": [10] * 5, "w": empty}), tmp_path / "visits.parquet")
    value = Number(Fraction(0), Fraction(10), nullable=True)
    columns = {name: Column(name, value) for name in ("v", "w")} | {"uid": Column("uid", Identifier("integer"))}
    table = Table("visits", True, columns, Source("parquet", {"path": str(tmp_path / "visits.parquet")}))
    engine = DuckDBEngine(
        Dataset("d", "d", "1", {"visits": table}, {"user": Unit("user", "user", {"visits": "uid"})}, ())
    )
    measure = m.ClippedSums(VISITS, "user", (x.ColumnRef("v"), x.ColumnRef("w")), 20, "l1")
    assert engine.vector(measure).tolist() == [20, 0]
    engine.close()


def readings(text: str, file: str) -> int:
    """Count how often a statement may read a file: a subquery that is not kept is computed for each of its uses."""
    _, *parts = re.split(r"\b(t\d+) AS (MATERIALIZED |NOT MATERIALIZED |)\(", text)
    found: dict[str, int] = {}
    kept = 0
    for name, how, part in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        times = part.count(file) + sum(found.get(used, 0) for used in re.findall(r"(?:FROM|JOIN) (t\d+)\b", part))
        is_kept = how == "MATERIALIZED "
        kept, found[name] = kept + times * is_kept, times * (not is_kept)
    return kept + found[name]  # the last part holds the main query, which adds to what that part itself reads


CLIPPED = m.ClippedSums(VISITS, "user", (x.ColumnRef("v"),), 50, "l1")


@pytest.mark.parametrize(
    ("measure", "many_rows"),
    [
        (CLIPPED, 0),
        (CLIPPED, 1 << 40),
        (m.ClippedSums(VISITS, "user", ONE, 50, "l1"), 0),
        (m.ClippedSums(r.UnitJoin(VISITS, PEOPLE, "user"), "user", ONE, 50, "l1"), 0),
        (m.Sum(r.LimitRowsPerUnit(VISITS, "user", 50), x.ColumnRef("v")), 0),
        (m.contributions(LISTED, "user", (Fraction(2), Fraction(50))), 0),
    ],
)
@pytest.mark.parametrize("cap", [None, 4])
def test_a_statement_reads_a_file_once(
    cap: int | None, measure: m.Measure, many_rows: int, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read twice, a file might have changed in between: rows that are added would not be those that are clipped."""
    monkeypatch.setattr(Dialect, "many_rows", many_rows)
    unique = {"people": "id", "links": "link"}
    engine = DuckDBEngine(described(small, cap, unique))
    assert readings(engine.sql(measure), "visits.parquet") == 1
    engine.close()
