"""Snapshots give the integers of the records themselves, and are refused when they no longer stand for them."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlglot import exp
from typer.testing import CliRunner

import dither.access.snapshot as prepare_module
import plan.plans as plans
import plan.worlds as worlds
from dither.access.engines import open_engine
from dither.access.engines.duckdb import DuckDBEngine
from dither.access.snapshot import (
    FORMAT,
    STAMPED_BYTES,
    SnapshotEngine,
    prepare,
    read_manifest,
    snapshot_path,
    source_stamp,
)
from dither.cli import app
from dither.errors import DitherError, EngineFailure, InvalidSchema
from dither.plan import expressions as x
from dither.plan import measures as m
from dither.plan import relations as r
from dither.plan.context import Context
from dither.plan.measures.clipped import ClippedSums
from dither.plan.measures.statistics import histogram
from dither.plan.relations import unit_sizes
from dither.plan.sql.dialect import Dialect
from dither.plan.sql.statement import column_ref, join_select
from dither.plan.traversal import walk
from dither.schema import Column, Dataset, Domain, Identifier, Moment, Number, Source, Table, Unit
from plan.reference import Raw

ROWS = worlds.many()
BOUNDED = m.Count(r.LimitRowsPerUnit(r.Scan("actions"), "user", 7), (m.GroupKey("action", x.ColumnRef("action")),))


@pytest.fixture
def data(tmp_path: Path) -> Dataset:
    worlds.write(tmp_path, **ROWS)
    return worlds.dataset(tmp_path, worlds.USER, worlds.ACTION, worlds.MONTH)


def stored(dataset: Dataset, data: dict[str, Raw], path: Path) -> Dataset:
    """The random dataset with its records in files."""
    tables = {}
    for name, table in dataset.tables.items():
        file = path / f"{name}.parquet"
        pq.write_table(plans.arrow(data[name]).drop_columns(["trial"]), file)
        tables[name] = replace(table, source=Source("parquet", {"path": str(file)}))
    return replace(dataset, tables=tables)


def sized_measures(rng: Random, ctx: Context) -> list[m.Measure]:
    """Sizes of units and clipped counts over tables, alone, filtered, and joined to public tables that drop rows."""
    made: list[m.Measure] = []
    planner = plans.Planner(rng, ctx, single=True)
    for table in ("people", "events"):
        scan = r.Scan(table)
        joins: list[r.Relation] = [planner._public(scan, planner.writer(scan)) for _ in range(4)]
        for node in (scan, r.Filter(scan, planner.writer(scan).truth(1)), *joins):
            for unit in (name for name, each in ctx.dataset.units.items() if each.kind != "row"):
                made.append(m.contributions(node, unit, (Fraction(2), Fraction(3), Fraction(6))))
                made.append(m.ClippedSums(node, unit, (x.LiteralValue(1),), rng.choice([1, 2, 3])))
    return rng.sample(made, 12)


@pytest.mark.tier("test")
@pytest.mark.parametrize("many", [Dialect.many_rows, 0], ids=["few units are large", "every limit counts as large"])
def test_random_plans_give_the_same_integers(
    many: int, tier: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Parts of a few rows, so that units are split over files as in a large table."""
    monkeypatch.setattr(prepare_module, "ROWS_PER_PART", 4)
    datasets, checked, ranked = tier.pick(quick=6, test=20, deep=300), 0, 0
    monkeypatch.setattr(Dialect, "many_rows", many)
    sized, heavy = 0, 0
    for number in range(datasets):
        rng = Random(f"prepare:{number}")
        described = plans.schema(rng)
        place = tmp_path / str(number)
        place.mkdir()
        dataset = stored(described, plans.records(rng, described), place)
        plain = DuckDBEngine(dataset, threads=1)
        prepare(dataset)
        ready = open_engine(dataset)
        assert isinstance(ready, SnapshotEngine)
        assert ready.ctx == plain.ctx
        assert ready.inspect() == plain.inspect()
        for _ in range(10):
            planner = plans.Planner(rng, plain.ctx, single=True)
            measure = planner.measure(planner.relation(rng.choice([0, 1, 2, 3, 5])))
            if measure is None:
                continue
            assert ready.vector(measure, secret=5).tolist() == plain.vector(measure, secret=5).tolist(), measure
            checked += 1
            ranked += any(
                isinstance(node, r.LimitRowsPerUnit) and isinstance(node.child, r.Scan) for node in walk(measure)
            )
        for measure in sized_measures(rng, plain.ctx):
            try:
                exact = plain.vector(measure).tolist()
            except DitherError:
                continue
            assert ready.vector(measure).tolist() == exact, measure
            if isinstance(measure, m.ClippedSums):
                heavy += re.search(r"r\d = \d", ready.sql(measure)) is not None
            else:
                sized += re.search(r"n\d > 0", ready.sql(measure)) is not None
        plain.close()
        ready.close()
    with capsys.disabled():
        print(
            f"\n  tests/access: prepared: {checked} measures on {datasets} datasets, {ranked} by stored rank, 0 differ"
        )
    assert checked > 3 * datasets
    assert ranked > 0 and sized > 0 and (heavy > 0 or many)


def test_a_bound_reads_the_stored_rank(data: Dataset) -> None:
    prepare(data)
    engine = open_engine(data)
    assert isinstance(engine, SnapshotEngine)
    assert "ROW_NUMBER" not in engine.sql(BOUNDED)
    filtered = m.Count(
        r.LimitRowsPerUnit(r.Filter(r.Scan("actions"), x.In(x.ColumnRef("action"), ("like",))), "user", 7)
    )
    assert "ROW_NUMBER" in engine.sql(filtered)  # the bound applies after the filter: no row is lost to the others
    engine.close()


def counted_and_clipped() -> list[m.Measure]:
    """Rows of each person and clipped counts by topic: of all actions, and of those on links of one topic or listed."""
    scan, urls = (
        r.Scan("actions"),
        r.Project(r.Scan("urls"), (("link", x.ColumnRef("url")), ("topic", x.ColumnRef("topic")))),
    )
    news = r.Filter(urls, x.In(x.ColumnRef("topic"), ("news",)))
    listed, some = (r.PublicJoin(scan, public, (("url", "link"),)) for public in (urls, news))
    edges, topic = tuple(map(Fraction, range(2, 40))), (m.GroupKey("topic", x.ColumnRef("topic")),)
    of_users, to_users = r.UnitJoin(scan, r.Scan("users"), "user"), r.UnitJoin(r.Scan("users"), scan, "user")
    found: list[m.Measure] = [m.contributions(node, "user", edges) for node in (scan, listed, some, of_users, to_users)]
    found += [m.contributions(node, "month", edges) for node in (scan, some)]
    for node in (of_users, to_users):
        country = (m.GroupKey("country", x.ColumnRef("country")),)
        found.append(m.ClippedSums(node, "user", (x.LiteralValue(1),), 12, "l1", country))
    for node in (listed, some):
        found += [m.ClippedSums(node, "user", (x.LiteralValue(1),), bound, "l1", topic) for bound in (7, 12, 23)]
    return found


def without_partners(columns: Sequence[exp.Expr], first: Any, second: Any, on: exp.Expr, how: Any) -> exp.Select:
    """An inner join that keeps all rows of its first side."""
    if how != "inner":
        return join_select(columns, first, second, on, how)
    return exp.select(*(column.name for column in columns)).from_(first[0])


def with_absent_person(data: Dataset) -> None:
    """Add a person whose only action is on a link that is not listed, and who is no user."""
    folder = Path(data.tables["actions"].source.options["path"]).parent
    worlds.write(folder, **ROWS | {"actions": [*ROWS["actions"], (500, "u4", "like", worlds.YEAR_2020)]})


def differing(data: Dataset) -> list[m.Measure]:
    """The measures of which a snapshot gives other integers than the records."""
    plain, ready = DuckDBEngine(data, threads=1), open_engine(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Dialect, "many_rows", 1 << 40)  # no unit is known to fit
        exact = [plain.vector(each).tolist() for each in counted_and_clipped()]
    found = [ready.vector(each).tolist() for each in counted_and_clipped()]
    made = [each for each, one, other in zip(counted_and_clipped(), exact, found, strict=True) if one != other]
    texts = [ready.sql(each) for each in counted_and_clipped()]
    assert all("n0 > 0" in text or "n2 > 0" in text for text in texts[:7]) and all("r0 = " in t for t in texts[7:])
    plain.close()
    ready.close()
    return made


def test_stored_sizes_and_ranks_give_the_counts_of_the_rows(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows on a link that is not listed are dropped by the join, and not counted."""
    monkeypatch.setattr(Dialect, "many_rows", 0)
    with_absent_person(data)
    prepare(data)
    assert differing(data) == []


@pytest.mark.parametrize(
    "fault", ["dropped rows counted", "a row too many fits", "sizes of ranks", "persons without a partner counted"]
)
def test_a_fault_in_stored_sizes_is_found(fault: str, data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Dialect, "many_rows", 0)
    if fault == "sizes of ranks":  # on every row, not on the first alone
        monkeypatch.setattr(prepare_module, "_first_size", lambda made, unit: column_ref(made.size_column(unit)))
    with_absent_person(data)
    prepare(data)
    if fault == "dropped rows counted":
        monkeypatch.setattr(unit_sizes, "_without_dropped", lambda statement, join, sizes, hidden: sizes)
    if fault == "persons without a partner counted":
        monkeypatch.setattr(unit_sizes, "join_select", without_partners)
    if fault == "a row too many fits":
        stated = ClippedSums._heavy_rows
        wider = lambda self, *rest: stated(replace(self, bound=2 * self.bound), *rest)  # noqa: E731
        monkeypatch.setattr(ClippedSums, "_heavy_rows", wider)
    assert differing(data)


# Person, month, v and w. Persons 1 and 2 have several months; only of person 1 is each month large by itself.
VALUED = [
    *[(1, month, -100, 100) for month in (0, 1) for _ in range(5)],
    *[(2, month, -100, 100) for month in (2, 3) for _ in range(2)],
    *[(3, 2, -100, 100) for _ in range(3)],
    *[(4, 4, 1, None), (4, 4, 0, None), (4, 4, 0, 0)],
]
V, W = x.ColumnRef("v"), x.ColumnRef("w")
# Unit, values, bound, norm, and the sums computed by hand: one term for each unit with rows at -100 and 100.
CLIPPED: list[tuple[str, tuple[x.Expr, ...], int, Any, list[int]]] = [
    ("user", (V,), 200, "l1", [-200 - 200 - 200 + 1]),
    ("user", (V,), 299, "l1", [-299 - 299 - 299 + 1]),
    ("user", (V,), 300, "l1", [-300 - 300 - 300 + 1]),
    ("user", (V,), 301, "l2", [-301 - 301 - 300 + 1]),
    ("user", (W,), 300, "l1", [300 + 300 + 300]),
    ("user", (V, W), 500, "l1", [-250 - 250 - 250 + 1, 250 + 250 + 250]),  # 1000, 400 and 300 in each of two values
    ("user", (V, W), 400, "l2", [-282 - 282 - 282 + 1, 282 + 282 + 282]),  # over 1415, 566 and 425
    ("month", (V,), 200, "l1", [-200 - 200 - 200 - 200 - 200 + 1]),
    ("month", (V,), 299, "l2", [-299 - 299 - 200 - 200 - 299 + 1]),
    ("month", (V,), 301, "l1", [-301 - 301 - 200 - 200 - 300 + 1]),
    ("month", (V, W), 500, "l1", [-250 - 250 - 200 - 200 - 250 + 1, 250 + 250 + 200 + 200 + 250]),
]


@pytest.fixture
def valued(tmp_path: Path) -> Dataset:
    """One table with a column whose lower bound is the larger one, and a nullable one."""
    people, months, v, w = zip(*VALUED, strict=True)
    moments = pa.array([worlds.YEAR_2020 + (31 * month + 3) * worlds.DAY for month in months], pa.timestamp("us"))
    pq.write_table(pa.table({"id": people, "t": moments, "v": v, "w": w}), tmp_path / "visits.parquet")
    domains: dict[str, Domain] = {
        "id": Identifier("integer"),
        "t": Moment(worlds.YEAR_2020, worlds.YEAR_2020 + 365 * worlds.DAY),
        "v": Number(Fraction(-100), Fraction(1)),
        "w": Number(Fraction(-1), Fraction(100), nullable=True),
    }
    columns = {name: Column(name, domain) for name, domain in domains.items()}
    table = Table("visits", True, columns, Source("parquet", {"path": str(tmp_path / "visits.parquet")}))
    user = Unit("user", "user", {"visits": "id"})
    month = Unit("month", "window", {"visits": "id"}, {"visits": "t"}, "month")
    return Dataset("visits", "visits", "1", {"visits": table}, {"user": user, "month": month}, ())


def test_stored_ranks_clip_large_values_as_computed_by_hand(valued: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row may count for more than 1, through a lower bound or several values, and a person have many months."""
    monkeypatch.setattr(Dialect, "many_rows", 0)
    prepare(valued)
    plain, ready, wrong = DuckDBEngine(valued, threads=1), open_engine(valued), []
    assert isinstance(ready, SnapshotEngine)
    for unit, values, bound, norm, stated in CLIPPED:
        measure = m.ClippedSums(r.Scan("visits"), unit, values, bound, norm)
        case = unit, values, bound, norm
        assert re.search(r"r\d = \d", ready.sql(measure)), case  # the stored rank is what finds large units
        found = plain.vector(measure).tolist(), ready.vector(measure).tolist()
        wrong += [(case, found)] if found != (stated, stated) else []
    assert wrong == []
    plain.close()
    ready.close()


@pytest.mark.parametrize(("unit", "stated"), [("user", [1, 1, 1, 1]), ("month", [1, 3, 2, 0])])
def test_stored_sizes_do_not_count_missing_values(unit: str, stated: list[int], valued: Dataset) -> None:
    """COUNT(w) leaves out NULL, alone and next to COUNT(*)."""
    prepare(valued)
    plain, ready = DuckDBEngine(valued, threads=1), open_engine(valued)
    every, known = r.GroupAggregate("rows", "count"), r.GroupAggregate("known", "count", W)
    for aggregates in ((known,), (every, known)):
        grouped = r.GroupBy(r.Scan("visits"), (), aggregates, unit)
        measure = histogram(grouped, x.ColumnRef("known"), (Fraction(2), Fraction(4), Fraction(6)))
        assert (plain.vector(measure).tolist(), ready.vector(measure).tolist()) == (stated, stated)
    totals = m.SumVector(grouped, (x.ColumnRef("rows"), x.ColumnRef("known")))
    assert (plain.vector(totals).tolist(), ready.vector(totals).tolist()) == ([20, 18], [20, 18])
    plain.close()
    ready.close()


def test_parts_are_sorted_for_pruning(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare_module, "ROWS_PER_PART", 300)
    made = prepare(data)
    files = sorted((snapshot_path(data) / made.generation / "actions").iterdir())
    assert len(files) == 3
    owners: set[int] = set()
    for file in files:
        table = pq.read_table(file)
        digits = [rank.bit_length() for rank in table.column("rank$user").to_pylist()]
        assert digits == sorted(digits)
        here = set(table.column("user_id").to_pylist())
        assert not here & owners
        owners |= here
        assert "DICTIONARY" in str(pq.read_metadata(file).row_group(0).column(2).encodings)
    assert len(owners) == 37


def rewrite_a_source(data: Dataset, path: Path) -> Dataset:
    worlds.write(path, **{**ROWS, "actions": ROWS["actions"][:-1]})
    return data


def touch_a_source(data: Dataset, path: Path) -> Dataset:
    os.utime(path / "actions.parquet", ns=(1, 1))
    return data


def change_a_bound(data: Dataset, path: Path) -> Dataset:
    users = data.tables["users"]
    age = replace(users.columns["age"], domain=replace(users.columns["age"].domain, hi=Fraction(70)))
    return replace(data, tables={**data.tables, "users": replace(users, columns={**users.columns, "age": age})})


def change_the_zone(data: Dataset, path: Path) -> Dataset:
    return replace(data, timezone="Europe/Paris")


def drop_a_unit(data: Dataset, path: Path) -> Dataset:
    return replace(data, units={"user": data.units["user"]})


CHANGES = [rewrite_a_source, touch_a_source, change_a_bound, change_the_zone, drop_a_unit]


@pytest.mark.parametrize("change", CHANGES)
def test_a_stale_snapshot_is_refused(change: Any, data: Dataset, tmp_path: Path) -> None:
    prepare(data)
    changed = change(data, tmp_path)
    with pytest.raises(InvalidSchema, match="run `dither prepare` again, or delete the snapshot's folder"):
        open_engine(changed)
    prepare(changed)
    engine = open_engine(changed)
    assert isinstance(engine, SnapshotEngine)
    engine.close()


def test_a_change_at_either_end_of_a_large_source_is_noticed(data: Dataset, tmp_path: Path) -> None:
    """Files of the same name, size and time: unchanged, and with a changed byte at the start, or of the last 64 KiB."""
    path, size, stamps = tmp_path / "actions.parquet", 4 * STAMPED_BYTES, []
    for changed in (None, 0, STAMPED_BYTES - 1, size - STAMPED_BYTES, size - 1):
        content = bytearray(size)
        if changed is not None:
            content[changed] = 1
        path.write_bytes(content)
        os.utime(path, ns=(1, 1))
        stamps.append(source_stamp(data.tables["actions"], data))
    assert len(set(stamps)) == len(stamps)


def test_each_remedy_for_a_stale_snapshot_gives_todays_records(data: Dataset, tmp_path: Path) -> None:
    prepare(data)
    rewrite_a_source(data, tmp_path)
    counted = m.Count(r.Scan("actions"))
    shutil.move(snapshot_path(data), tmp_path / "away")
    engine = open_engine(data)
    assert not isinstance(engine, SnapshotEngine)
    found = engine.vector(counted).tolist()
    engine.close()
    shutil.move(tmp_path / "away", snapshot_path(data))
    prepare(data)
    engine = open_engine(data)
    assert engine.vector(counted).tolist() == found
    engine.close()


def test_a_newer_format_is_refused(data: Dataset) -> None:
    prepare(data)
    file = snapshot_path(data) / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format": FORMAT + 1}))
    with pytest.raises(InvalidSchema, match=f"format {FORMAT + 1}, this Dither reads {FORMAT}: upgrade"):
        open_engine(data)
    prepare(data)
    open_engine(data).close()


def test_a_damaged_manifest_is_refused(data: Dataset) -> None:
    prepare(data)
    (snapshot_path(data) / "manifest.json").write_text("{")
    with pytest.raises(InvalidSchema, match="damaged: run `dither prepare` again, or delete"):
        open_engine(data)


def test_a_failure_leaves_the_earlier_snapshot(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    before = prepare(data)
    wanted = open_engine(data).vector(BOUNDED).tolist()

    def fails(*_: Any) -> int:
        raise EngineFailure

    with monkeypatch.context() as patch:
        patch.setattr(prepare_module.SnapshotWriter, "_write", fails)
        with pytest.raises(EngineFailure):
            prepare(data)
    place = snapshot_path(data)
    assert read_manifest(place) == before
    assert sorted(entry.name for entry in place.iterdir()) == sorted(["manifest.json", before.generation])
    assert open_engine(data).vector(BOUNDED).tolist() == wanted


def test_a_first_failure_leaves_nothing(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare_module, "_publish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    monkeypatch.setattr(prepare_module.SnapshotWriter, "_write", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        prepare(data)
    assert not snapshot_path(data).exists()
    assert not isinstance(open_engine(data), SnapshotEngine)


def test_an_open_engine_outlives_the_next_snapshot(data: Dataset) -> None:
    """One generation before is kept, and no more."""
    prepare(data)
    engine = open_engine(data)
    wanted = engine.vector(BOUNDED).tolist()
    prepare(data)
    assert engine.vector(BOUNDED).tolist() == wanted
    prepare(data)
    assert sum(entry.is_dir() for entry in snapshot_path(data).iterdir()) == 2
    engine.close()


def test_records_that_change_meanwhile_are_noticed(data: Dataset, tmp_path: Path) -> None:
    def progress(table: str, done: int, parts: int) -> None:
        if table == "actions" and done == parts:
            touch_a_source(data, tmp_path)

    with pytest.raises(InvalidSchema, match="actions have changed"):
        prepare(data, progress=progress)
    assert read_manifest(snapshot_path(data)) is None


def test_the_recipe_belongs_to_the_format(data: Dataset) -> None:
    """How records are cleaned, ordered and ranked is part of the format: when this changes, FORMAT must be raised."""
    made, digest = prepare(data), sha256()
    for name in data.tables:
        table = pq.read_table(snapshot_path(data) / made.generation / name)
        digest.update(repr((table.column_names, sorted(map(str, table.to_pylist())))).encode())
    assert (FORMAT, digest.hexdigest()[:16]) == (5, "c51fb2a99c6e705f")


DESCRIPTION = """
version: 1
name: web
tables:
  users:
    private: true
    source: {kind: parquet, path: users.parquet}
    columns:
      id: {type: identifier, kind: integer}
      age: {type: integer, min: 18, max: 65}
units:
  user: {kind: user, keys: {users: id}}
budgets:
  - {unit: user, kind: pure, epsilon: 1}
"""


def test_the_command_writes_a_snapshot_and_says_what_was_corrected(data: Dataset, tmp_path: Path) -> None:
    (tmp_path / "dataset.yml").write_text(DESCRIPTION)
    done = CliRunner().invoke(app, ["prepare", str(tmp_path / "dataset.yml"), "--json"])
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert said["rows"] == {"users": 41}
    assert said["corrected_or_dropped"] == {"users.id": 1, "users.age": 1, "users": 1}
    shown = CliRunner().invoke(app, ["prepare", str(tmp_path / "dataset.yml"), "--out", str(tmp_path / "elsewhere")])
    assert "41 rows of users" in shown.stdout
    assert "1 row of users dropped" in shown.stdout


def test_spark_has_no_snapshots(tmp_path: Path) -> None:
    text = DESCRIPTION.replace("{kind: parquet, path: users.parquet}", "{kind: spark, table: users}")
    (tmp_path / "dataset.yml").write_text(text)
    done = CliRunner().invoke(app, ["prepare", str(tmp_path / "dataset.yml")])
    assert done.exit_code == 2
    assert "prepare reads files and PostgreSQL; spark reads the table users" in done.stderr
