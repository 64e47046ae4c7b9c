"""Holes that a review found in how far one unit reaches: each test is the attack, and fails where it would succeed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dither.access.engines.duckdb import DuckDBEngine
from dither.access.snapshot import description_hash
from dither.errors import InvalidPlan, InvalidSchema
from dither.plan import expressions as x
from dither.plan import measures as m
from dither.plan import relations as r
from dither.plan.context import Context
from dither.plan.stability import PerKeyBound
from dither.schema import BudgetCap, Category, Column, Dataset, Domain, Identifier, Moment, Number, Source, Table, Unit
from dither.schema.parser import loads
from plan.trials import change, covers
from plan.worlds import DAY, YEAR_2020

USER = Unit("user", "user", {"t": "u"})
ID = Identifier("integer")
BUDGET = BudgetCap("user", "pure", epsilon=Fraction(1))
Columns = Mapping[str, tuple[Domain, pa.DataType]]


def described(
    path: Path,
    tables: Mapping[str, Columns],
    *units: Unit,
    unique: str | None = None,
    budgets: Sequence[BudgetCap] = (),
) -> Dataset:
    """A dataset over one Parquet file per table."""
    found = {
        name: Table(
            name,
            True,
            {key: Column(key, domain) for key, (domain, _) in columns.items()},
            Source("parquet", {"path": str(path / f"{name}.parquet")}),
            unique,
        )
        for name, columns in tables.items()
    }
    return Dataset("d", "d", "1", found, {unit.name: unit for unit in units}, tuple(budgets))


def world(
    path: Path, tables: Mapping[str, Columns], rows: Mapping[str, list[tuple[Any, ...]]], *units: Unit, **more: Any
) -> DuckDBEngine:
    """An engine over these rows."""
    path.mkdir(parents=True, exist_ok=True)
    for name, columns in tables.items():
        arrays = {k: pa.array([row[i] for row in rows[name]], type=t) for i, (k, (_, t)) in enumerate(columns.items())}
        pq.write_table(pa.table(arrays), path / f"{name}.parquet")
    return DuckDBEngine(described(path, tables, *units, **more), threads=1)


def check(before: DuckDBEngine, after: DuckDBEngine, measure: m.Measure, unit: str) -> None:
    """The stated sensitivity covers what adding the unit changed."""
    moved = change(before.vector(measure), after.vector(measure))
    assert moved.l0, "the attack should move something"
    assert covers(measure.sensitivity(before.ctx, unit), moved)


# --- Domains that count as empty ---


@pytest.mark.parametrize("empty", [Number(Fraction(2), Fraction(1)), Category(()), Moment(DAY, -DAY, "day")])
def test_a_domain_that_counts_as_empty_makes_nothing_free(tmp_path: Path, empty: Domain) -> None:
    ctx = Context(described(tmp_path, {"t": {"u": (ID, pa.int64()), "e": (empty, pa.int64())}}, USER))
    only = r.Project(r.Scan("t"), (("e", x.ColumnRef("e")),))
    assert r.Distinct(only).stability(ctx, "user").max_rows != 0
    assert r.GroupBy(r.Scan("t"), (("e", x.ColumnRef("e")),)).stability(ctx, "user").max_rows != 0
    assert r.GroupBy(r.Scan("t"), (("e", x.ColumnRef("e")),), (), "user").stability(ctx, "user").max_rows != 0


# --- Windows of several tables ---

MOMENTS = {
    "a": {"u": (ID, pa.int64()), "t": (Moment(YEAR_2020, YEAR_2020 + 365 * DAY), pa.timestamp("us"))},
    "b": {"u": (ID, pa.int64()), "t": (Moment(YEAR_2020 + 366 * DAY, YEAR_2020 + 730 * DAY), pa.timestamp("us"))},
}
BOTH = Unit("user", "user", {"a": "u", "b": "u"})
MONTH = Unit("month", "window", {"a": "u", "b": "u"}, {"a": "t", "b": "t"}, "month")


@pytest.mark.parametrize(
    "measure",
    [
        lambda both: m.Count(r.LimitRowsPerUnit(both, "month", 1)),
        lambda both: m.ClippedSums(both, "month", (x.LiteralValue(1),), 1, "l1"),
        lambda both: m.Count(r.GroupBy(both, (), (), "month")),
    ],
    ids=["bound", "clip", "group"],
)
def test_a_user_has_windows_in_every_table(tmp_path: Path, measure: Any) -> None:
    months = {"a": [YEAR_2020 + 31 * i * DAY for i in range(12)]}
    months["b"] = [YEAR_2020 + (366 + 31 * i) * DAY for i in range(11)]
    base = {name: [(1, times[0])] for name, times in months.items()}
    more = {name: base[name] + [(9, time) for time in times] for name, times in months.items()}
    before = world(tmp_path / "0", MOMENTS, base, BOTH, MONTH)
    after = world(tmp_path / "1", MOMENTS, more, BOTH, MONTH)
    check(before, after, measure(r.Union(r.Scan("a"), r.Scan("b"))), "user")


# --- Bounds per key below a filter ---

NUMBERS: dict[str, Columns] = {"t": {"u": (ID, pa.int64()), "x": (Number(Fraction(0), Fraction(1000)), pa.int64())}}
X = x.ColumnRef("x")


def between(child: r.Relation, lo: int, hi: int) -> r.Filter:
    return r.Filter(child, x.And((x.Compare(">=", X, x.LiteralValue(lo)), x.Compare("<=", X, x.LiteralValue(hi)))))


def test_a_key_that_a_filter_rescales_keeps_no_bound_per_key(tmp_path: Path) -> None:
    key = x.Rescale(X, 5)
    filtered = between(r.LimitGroupsPerUnit(r.Scan("t"), "user", (key,), 1, 11), 100, 140)
    before = world(tmp_path / "0", NUMBERS, {"t": [(1, 0)]}, USER)
    after = world(tmp_path / "1", NUMBERS, {"t": [(1, 0)] + [(9, 100 + 4 * i) for i in range(11)]}, USER)
    check(before, after, m.Count(filtered, (m.GroupKey("k", key),)), "user")


def test_a_key_that_is_a_column_keeps_its_bound_per_key_above_a_filter(tmp_path: Path) -> None:
    ctx = Context(described(tmp_path, NUMBERS, USER))
    filtered = between(r.LimitGroupsPerUnit(r.Scan("t"), "user", (X,), 2, 3), 100, 140)
    assert filtered.stability(ctx, "user").per_key == PerKeyBound((X,), 2, 3)


def test_a_bound_on_other_keys_is_of_no_use_even_where_an_operator_hands_it_on(tmp_path: Path) -> None:
    """The measure compares what the keys are computed with, whatever the operators below let through."""
    ctx, key = Context(described(tmp_path, NUMBERS, USER)), x.Rescale(X, 5)
    bounded = r.LimitGroupsPerUnit(r.Scan("t"), "user", (key,), 1, 11)
    found, whole = bounded.stability(ctx, "user"), bounded.domain(ctx)
    assert m.sums_sensitivity(found, "user", [1], 11, (key,), whole).l0 == 1
    narrowed = between(bounded, 100, 140).domain(ctx)
    assert m.sums_sensitivity(found, "user", [1], 11, (key,), narrowed).l0 == 11
    assert m.sums_sensitivity(found, "user", [1], 11, (x.Rescale(X, 6),), whole).l0 == 11
    one, truth = x.In(X, (1,)), x.In(X, (True,))
    by_one = replace(found, per_key=PerKeyBound((one,), 1, 11, (("x", whole["x"]),)))
    assert one == truth
    assert m.sums_sensitivity(by_one, "user", [1], 2, (truth,), whole).l0 == 2
    assert m.sums_sensitivity(by_one, "user", [1], 2, (one,), whole).l0 == 1


# --- Windows that a choice by a unique key reads ---

PERSON = Unit("month", "window", {"p": "u"}, {"p": "t"}, "month")
VISITS: dict[str, Columns] = {"p": MOMENTS["a"]}


@pytest.mark.parametrize("unique", ["u", None])
def test_one_row_per_key_is_chosen_among_all_windows(tmp_path: Path, unique: str | None) -> None:
    ctx = Context(described(tmp_path, VISITS, PERSON, unique=unique))
    since, until = x.Instant(YEAR_2020 + 31 * DAY), x.Instant(YEAR_2020 + 60 * DAY - 1)
    time = x.ColumnRef("t")
    february = r.Filter(r.Scan("p"), x.And((x.Compare(">=", time, since), x.Compare("<=", time, until))))
    whole, part = (YEAR_2020, YEAR_2020 + 365 * DAY), (since.microseconds, until.microseconds)
    assert r.window_range(ctx, m.Count(february), "month") == (whole if unique else part)


@pytest.mark.parametrize("capped", ["user", "month", None])
def test_rows_within_a_cap_are_chosen_among_all_windows(tmp_path: Path, capped: str | None) -> None:
    """A January row can push a February row out of its user's cap, but not out of February's own."""
    user = Unit("user", "user", {"p": "u"}, max_rows={"p": 2} if capped == "user" else {})
    month = replace(PERSON, max_rows={"p": 2} if capped == "month" else {})
    ctx = Context(described(tmp_path, VISITS, user, month))
    since, until = x.Instant(YEAR_2020 + 31 * DAY), x.Instant(YEAR_2020 + 60 * DAY - 1)
    time = x.ColumnRef("t")
    february = r.Filter(r.Scan("p"), x.And((x.Compare(">=", time, since), x.Compare("<=", time, until))))
    whole, part = (YEAR_2020, YEAR_2020 + 365 * DAY), (since.microseconds, until.microseconds)
    assert r.window_range(ctx, m.Count(february), "month") == (whole if capped == "user" else part)


# --- Caps on the rows of a unit ---

ROWS: dict[str, Columns] = {"t": {"u": (ID, pa.int64()), "x": (Number(Fraction(0), Fraction(9)), pa.int64())}}
CAPPED = replace(USER, max_rows={"t": 3})


def test_a_cap_is_kept_by_every_scan_and_bounds_what_a_unit_moves(tmp_path: Path) -> None:
    """Duplicates, rows without a key, renamed keys and a union of the table with itself."""
    rows = [(1, 5)] * 4 + [(1, place) for place in range(8)] + [(None, 1)] * 5 + [(2, 7)] * 2
    found = world(tmp_path / "a", ROWS, {"t": rows}, CAPPED)
    without = world(tmp_path / "b", ROWS, {"t": [row for row in rows if row[0] != 1]}, CAPPED)
    scan = r.Scan("t")
    renamed = r.Project(scan, (("u", x.ColumnRef("x")), ("x", x.LiteralValue(Fraction(1)))))
    for relation, most in ((scan, 3), (renamed, 3), (r.Union(scan, scan), 6), (r.Union(renamed, renamed), 6)):
        assert relation.stability(found.ctx, "user").max_rows == most
        assert found.vector(m.Count(relation)).tolist() == [most + most * 2 // 3]
        check(without, found, m.Count(relation), "user")


def test_a_cap_shows_the_rows_of_no_other_unit(tmp_path: Path) -> None:
    others = [(2, place) for place in range(9)]
    key = (m.GroupKey("x", x.ColumnRef("x")),)
    alone = world(tmp_path / "a", ROWS, {"t": others}, CAPPED).vector(m.Count(r.Scan("t"), key))
    crowded = world(tmp_path / "b", ROWS, {"t": others + [(1, 0)] * 50}, CAPPED).vector(m.Count(r.Scan("t"), key))
    assert (crowded - alone).tolist() == [3] + [0] * 9


@pytest.mark.parametrize(
    ("units", "said"),
    [
        ([replace(USER, max_rows={"t": 0})], "whole numbers from 1"),
        ([replace(USER, max_rows={"other": 2})], "no private table that it covers"),
        ([Unit("row", "row", {"t": None}, max_rows={"t": 2})], "no private table that it covers"),
        ([CAPPED, Unit("x", "user", {"t": "x"})], "by other keys"),
        ([CAPPED, replace(CAPPED, name="twin")], "only one unit"),
    ],
)
def test_a_cap_that_cannot_be_kept_is_refused(tmp_path: Path, units: list[Unit], said: str) -> None:
    with pytest.raises(InvalidSchema, match=said):
        described(tmp_path, ROWS, *units)


def test_another_cap_refuses_a_snapshot(tmp_path: Path) -> None:
    world(tmp_path, ROWS, {"t": [(1, 5)]}, USER).close()
    hashes = {
        description_hash(described(tmp_path, ROWS, replace(USER, max_rows=caps))) for caps in ({}, {"t": 3}, {"t": 4})
    }
    assert len(hashes) == 3


# --- Unit keys that are numbers or categories ---

COLOURS = Category(("r", "g"))
HALVES = Number(Fraction(0), Fraction(100), Fraction(1, 2))


@pytest.mark.parametrize(
    ("domain", "stored", "known", "one", "other"),
    [
        (Number(Fraction(0), Fraction(100)), pa.int64(), 7, 150, 200),
        (Number(Fraction(0), Fraction(100), Fraction(10)), pa.int64(), 20, 51, 53),
        (Number(Fraction(0), Fraction(100)), pa.float64(), 7.0, 50.2, 50.4),
        (HALVES, pa.string(), "7.5", "8.4", "8.6"),
        (Category(("ann", "bob")), pa.string(), "ann", "eve", "mallory"),
    ],
    ids=["outside", "off a coarse lattice", "off the lattice", "text off the lattice", "not listed"],
)
def test_an_invalid_unit_key_drops_its_row_and_merges_nobody(
    tmp_path: Path, domain: Domain, stored: pa.DataType, known: Any, one: Any, other: Any
) -> None:
    columns: dict[str, Columns] = {"t": {"u": (domain, stored), "c": (COLOURS, pa.string())}}
    rows = [(known, "r"), (one, "r"), (other, "g"), (None, "g")]
    found = world(tmp_path, columns, {"t": rows}, USER).vector(
        m.Count(r.Scan("t"), (m.GroupKey("c", x.ColumnRef("c")),))
    )
    assert found.tolist() == [1, 0]


def test_the_keys_of_a_unit_are_of_one_kind() -> None:
    table = "{{private: true, source: {{kind: parquet, path: {0}.parquet}}, columns: {{u: {{type: {1}}}}}}}"
    text = """version: 1
name: d
tables:
  a: %s
  b: %s
units: {user: {kind: user, keys: {a: u, b: u}}}
budgets: [{unit: user, kind: pure, epsilon: 1}]
"""
    halves, whole = "decimal, min: 0, max: 9, step: 0.5", "integer, min: 0, max: 9"
    loads(text % (table.format("a", whole), table.format("b", "identifier, kind: integer")), Path("."))
    for other in (halves, "identifier, kind: text", "'category', values: [a]"):
        with pytest.raises(InvalidSchema, match="of one kind"):
            loads(text % (table.format("a", whole), table.format("b", other)), Path("."))


# --- CSV files whose dialect would follow from their records ---


def csv_world(path: Path, text: str) -> DuckDBEngine:
    path.mkdir()
    (path / "t.csv").write_text(text)
    columns = {"u": Column("u", ID), "c": Column("c", Category(("other", "r", "g")))}
    table = Table("t", True, columns, Source("csv", {"path": str(path / "t.csv")}))
    return DuckDBEngine(Dataset("d", "d", "1", {"t": table}, {"user": USER}, ()), threads=1)


PLAIN = "".join(f"{i},r\n" for i in range(50))
SINGLE = "".join(f"{i},'r'\n" for i in range(50))


@pytest.mark.parametrize("base", [PLAIN, SINGLE], ids=["plain", "single quotes"])
@pytest.mark.parametrize(
    "row",
    [
        '99,"g"',
        "99,'a,b'",
        "99,r,more",
        "99,r,x,y,z",
        "99",
        "#99,r",
        '99,"r"x',
        '99,"a\nb"',
        "99;r",
        "99|r|g",
        "\\99,r",
    ],
)
@pytest.mark.parametrize("first", [True, False], ids=["first", "last"])
def test_one_record_of_a_csv_file_changes_no_other(tmp_path: Path, base: str, row: str, first: bool) -> None:
    by_colour = m.Count(r.LimitRowsPerUnit(r.Scan("t"), "user", 1), (m.GroupKey("c", x.ColumnRef("c")),))
    before = csv_world(tmp_path / "0", "u,c\n" + base)
    after = csv_world(tmp_path / "1", "u,c\n" + (f"{row}\n{base}" if first else f"{base}{row}\n"))
    moved = change(before.vector(by_colour), after.vector(by_colour))
    assert covers(by_colour.sensitivity(before.ctx, "user"), moved)


def test_the_columns_of_a_csv_file_are_those_of_its_first_line(tmp_path: Path) -> None:
    found = csv_world(tmp_path / "0", "c,it's,u\ng,1,1\nr,2,2\n")
    assert found.vector(m.Count(r.Scan("t"), (m.GroupKey("c", x.ColumnRef("c")),))).tolist() == [0, 1, 1]
    with pytest.raises(InvalidSchema):
        csv_world(tmp_path / "1", "")


# --- Deep plans ---


def test_a_deep_plan_is_read_once_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each operator used to ask the one below it several times: 2^40 questions here."""
    ctx, asked = Context(described(tmp_path, NUMBERS, USER)), [0]
    plan: r.Relation = r.Scan("t")
    for _ in range(40):
        plan = r.LimitRowsPerUnit(plan, "user", 1)

    def counted(self: Context, name: str) -> Unit:
        asked[0] += 1
        assert asked[0] < 10_000, "the plan takes exponential time"
        return self.dataset.units[name]

    monkeypatch.setattr(Context, "unit", counted)
    assert m.Count(plan).sensitivity(ctx, "user").l1 == 1


def test_what_is_remembered_belongs_to_one_context(tmp_path: Path) -> None:
    ctx, scan = Context(described(tmp_path, NUMBERS, USER)), r.Scan("t")
    assert scan.stability(ctx, "user").max_rows is None
    other = replace(ctx, dataset=described(tmp_path, NUMBERS, USER, unique="u"))
    assert scan.stability(other, "user").max_rows == 1
    one, truth = (r.Project(scan, (("k", x.In(X, (value,))),)) for value in (1, True))
    assert one == truth and one.domain(ctx)
    with pytest.raises(InvalidPlan):
        truth.domain(ctx)
