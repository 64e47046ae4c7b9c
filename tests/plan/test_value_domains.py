"""Values that no engine can hold, domains without values, moments off their precision: each was a hole once."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dither.access.engines.duckdb import DuckDBEngine
from dither.errors import DitherError, InvalidPlan, InvalidSchema, Unsupported
from dither.plan import domains
from dither.plan import expressions as x
from dither.plan import measures as m
from dither.plan import relations as r
from dither.plan.context import Context
from dither.plan.domains import Lattice, cardinality, domain_values, encode_value, number
from dither.plan.sql.builders import integer
from dither.plan.sql.scope import Scope
from dither.privacy.sql_size import check_compilable
from dither.schema import Column, Dataset, Domain, Identifier, Moment, Number, Source, Table, Unit
from plan.trials import change, covers
from plan.worlds import DAY, YEAR_2020

USER = Unit("user", "user", {"t": "u"})
X = x.ColumnRef("x")
SCAN = r.Scan("t")
ONE_ROW = r.LimitRowsPerUnit(SCAN, "user", 1)
NOWHERE = Scope({})


def engine(
    path: Path, domain: Domain, rows: Sequence[tuple[int, Any]], kind: pa.DataType | None = None, zone: str = "UTC"
) -> DuckDBEngine:
    """A table of users `u` and values `x`."""
    path.mkdir()
    users, values = pa.array([u for u, _ in rows], pa.int64()), pa.array([v for _, v in rows], kind or pa.int64())
    pq.write_table(pa.table({"u": users, "x": values}), path / "t.parquet")
    columns = {"u": Column("u", Identifier("integer")), "x": Column("x", domain)}
    table = Table("t", True, columns, Source("parquet", {"path": str(path / "t.parquet")}), None)
    return DuckDBEngine(Dataset("d", "d", "1", {"t": table}, {"user": USER}, (), timezone=zone), threads=1)


CONSTANTS = {
    "exp": x.Function("exp", x.LiteralValue(100)),
    "coarse exp": x.Function("exp", x.LiteralValue(100), Fraction(10**12)),
    "sqrt": x.Function(
        "sqrt", x.Arithmetic("*", x.LiteralValue(10**9), x.Rounded("ceil", x.LiteralValue(1), Fraction(10**17)))
    ),
    "power": x.Power(x.LiteralValue(2), Fraction(64)),
    "negative power": x.Power(x.LiteralValue(-2), Fraction(63)),
}


@pytest.mark.parametrize("value", CONSTANTS.values(), ids=CONSTANTS.keys())
def test_what_stops_at_the_ceiling_still_has_a_value(value: x.Expr) -> None:
    domain = value.domain(NOWHERE)
    assert isinstance(domain, Number)
    assert domain.lo <= domain.hi
    assert cardinality(domain) >= 1


@pytest.mark.parametrize("name", ["exp", "power"])
def test_a_constant_beyond_the_ceiling_does_not_hide_a_user(tmp_path: Path, name: str) -> None:
    domain, few = Number(Fraction(0), Fraction(10**6)), [(1, 5)]
    before = engine(tmp_path / "a", domain, few)
    after = engine(tmp_path / "b", domain, [*few, *((9, i) for i in range(300))])
    columns = (("x", X), ("k", CONSTANTS[name]))
    free = r.Distinct(r.Project(SCAN, columns))
    measure = m.Count(r.Union(r.Project(ONE_ROW, columns), free))
    assert covers(measure.sensitivity(before.ctx, "user"), change(before.vector(measure), after.vector(measure)))


def test_no_domain_is_empty() -> None:
    with pytest.raises(InvalidPlan):
        number(1, 0)
    assert cardinality(Number(Fraction(2), Fraction(1))) == 1


def test_buckets_over_a_constant_at_the_ceiling_end() -> None:
    bucket = x.Bucket(CONSTANTS["exp"], (Fraction(10**12), Fraction(10**12 + 1)))
    assert bucket.sql(NOWHERE).sql()
    assert cardinality(bucket.domain(NOWHERE)) >= 1


HIT = x.Compare("=", X, x.LiteralValue(91_000))
BIG = x.Rounded("ceil", x.AsNumber(HIT), Fraction(10**17))
SQUARE = x.Arithmetic("*", BIG, BIG)
NEVER = x.LiteralValue(False)
ORACLES: dict[str, m.Measure] = {
    "sqrt": m.Sum(ONE_ROW, x.Function("sqrt", SQUARE)),
    "sqrt of more": m.Sum(ONE_ROW, x.Function("sqrt", x.Arithmetic("*", SQUARE, x.LiteralValue(100)))),
    "ln": m.Sum(ONE_ROW, x.Function("ln", SQUARE)),
    "exp": m.Sum(ONE_ROW, x.Function("exp", SQUARE)),
    "power": m.Sum(ONE_ROW, x.Power(SQUARE, Fraction(63))),
    "odd power": m.Sum(
        ONE_ROW, x.Power(x.Arithmetic("-", SQUARE, x.Rounded("ceil", X, Fraction(10**17))), Fraction(3))
    ),
    "IN beyond 64 bits": m.Count(r.Filter(ONE_ROW, x.And((HIT, x.In(X, (2**63,)))))),
    "IN in a branch": m.Count(r.Filter(ONE_ROW, x.Case(((HIT, x.In(X, (10**59, 7))),), NEVER))),
    "IN of users": m.Count(r.Filter(ONE_ROW, x.And((HIT, x.In(x.ColumnRef("u"), (2**63, -(2**63) - 1)))))),
}


@pytest.mark.parametrize("name", ORACLES)
def test_no_record_makes_an_engine_fail(tmp_path: Path, name: str) -> None:
    domain, quiet = Number(Fraction(0), Fraction(2**20)), [(1, 1), (2, 2)]
    for place, rows in (("a", quiet), ("b", [*quiet, (3, 91_000)])):
        source = engine(tmp_path / place, domain, rows)
        ORACLES[name].sensitivity(source.ctx, "user")
        source.vector(ORACLES[name])


def test_values_that_cannot_occur_match_nothing(tmp_path: Path) -> None:
    source = engine(tmp_path / "a", Number(Fraction(0), Fraction(9)), [(1, 0), (2, 4), (3, 9)])
    assert list(source.vector(m.Count(r.Filter(ONE_ROW, x.In(X, (4, 9, 10, 10**59)))))) == [2]
    assert list(source.vector(m.Count(r.Filter(ONE_ROW, x.Not(x.In(X, (10**59,))))))) == [3]
    assert list(source.vector(m.Count(ONE_ROW, (m.GroupKey("k", X, (4, 10**6)),)))) == [1, 0]


def refused(ctx: Context, measure: m.Measure) -> None:
    """Refused from the plan alone, as before a charge."""
    with pytest.raises(DitherError):
        measure.sensitivity(ctx, "user")
        check_compilable(ctx, measure)


def tower(height: int) -> x.Expr:
    value = wide = x.Rounded("ceil", X, Fraction(10**17))
    for _ in range(height):
        value = x.Arithmetic("*", value, wide)
    return value


@pytest.mark.parametrize("value", [10**59, -(10**59), 2**63])
def test_keys_beyond_64_bits_are_refused_before_the_charge(tmp_path: Path, value: int) -> None:
    ctx = engine(tmp_path / "a", Number(Fraction(0), Fraction(9)), [(1, 0)]).ctx
    refused(ctx, m.Count(ONE_ROW, (m.GroupKey("k", X, (1, value)),)))
    refused(ctx, m.Count(ONE_ROW, (m.GroupKey("k", x.ColumnRef("u"), (1, value)),)))


@pytest.mark.parametrize("value", ["\0", "a\ud800", "\udfffb"])
def test_keys_that_no_engine_can_hold_are_refused(value: str) -> None:
    with pytest.raises(DitherError):
        m.GroupKey("k", X, ("a", value))
    with pytest.raises(DitherError):
        r.Sample(SCAN, Fraction(1, 2), None, value)


def test_listed_keys_of_partitions_are_refused(tmp_path: Path) -> None:
    ctx = engine(tmp_path / "a", Number(Fraction(0), Fraction(9)), [(1, 0)]).ctx
    refused(ctx, m.PartitionCounts(r.LimitGroupsPerUnit(SCAN, "user", (X,), 1, 1), (m.GroupKey("k", X, (1,)),)))


def test_lattices_of_absurd_steps_are_refused(tmp_path: Path) -> None:
    ctx = engine(tmp_path / "a", Number(Fraction(0), Fraction(100)), [(1, 0)]).ctx
    for value in (
        tower(19),
        x.Function("sqrt", tower(19)),
        x.Function("ln", tower(19)),
        x.Power(tower(19), Fraction(2)),
    ):
        refused(ctx, m.Sum(ONE_ROW, value))


@pytest.mark.parametrize("exponent", [Fraction(1, 64), Fraction(-1, 64), Fraction(64), Fraction(-64), Fraction(1, 3)])
def test_every_exponent_has_bounds_that_hold(tmp_path: Path, exponent: Fraction) -> None:
    source = engine(tmp_path / "a", Number(Fraction(0), Fraction(100)), [(i, i) for i in range(101)])
    value = x.Power(X, exponent)
    domain = value.domain(Scope(SCAN.domain(source.ctx)))
    assert isinstance(domain, Number)
    shown = source.groups(
        m.PartitionCounts(r.LimitGroupsPerUnit(SCAN, "user", (value,), 1, 1), (m.GroupKey("k", value),))
    )
    found = [key for (key,) in shown.keys if key is not None]
    assert found
    assert all(domain.lo <= Fraction(key) <= domain.hi for key in found)
    assert (None,) not in shown.keys or domain.nullable


def test_constants_beyond_64_bits_are_never_spelled() -> None:
    for value in (1 << 63, -(1 << 63) - 1, 10**59):
        with pytest.raises(Unsupported):
            integer(value)
    assert integer((1 << 63) - 1).sql()


HOUR = 3_600_000_000
COARSE = {
    "day": (Moment(YEAR_2020, YEAR_2020 + DAY - 1, "day"), "UTC"),
    "hour": (Moment(YEAR_2020 + 7, YEAR_2020 + HOUR - 1, "hour"), "UTC"),
    "hour elsewhere": (Moment(YEAR_2020, YEAR_2020 + HOUR, "hour"), "Asia/Kolkata"),
    "minute": (Moment(YEAR_2020 - 5, YEAR_2020 + 61_000_001, "minute"), "Europe/Berlin"),
    "days before 1970": (Moment(-3 * DAY - 1, -DAY - 1, "day"), "UTC"),
}


@pytest.mark.parametrize("name", COARSE)
def test_a_coarse_moment_has_no_more_values_than_periods(tmp_path: Path, name: str) -> None:
    domain, zone = COARSE[name]
    offsets = (-(10**9), 0, 1, 7, 30_000_000, 60_000_000, HOUR // 2 - 7, 2 * HOUR // 3, HOUR + 5, 2 * HOUR, 3 * DAY)
    rows = [(1, domain.lo), *((9, domain.lo + offset) for offset in offsets), *((9, domain.hi + o) for o in (-1, 0))]
    before = engine(tmp_path / "a", domain, rows[:1], pa.timestamp("us"), zone)
    after = engine(tmp_path / "b", domain, rows, pa.timestamp("us"), zone)
    alone = r.Project(SCAN, (("x", X),))
    for relation in (r.Distinct(alone, "user"), r.GroupBy(SCAN, (("x", X),), (), "user"), r.Distinct(alone)):
        measure = m.Count(relation)
        moved = change(before.vector(measure), after.vector(measure))
        assert covers(measure.sensitivity(before.ctx, "user"), moved)


@pytest.mark.parametrize("kind", ["TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP", "TIMESTAMP_NS", "TIMESTAMPTZ"])
def test_timestamps_beyond_microseconds_are_read(tmp_path: Path, kind: str) -> None:
    far = pa.timestamp("s") if kind == "TIMESTAMP_S" else pa.timestamp("ms") if kind == "TIMESTAMP_MS" else None
    end = {"TIMESTAMP_S": 2**53, "TIMESTAMP_MS": 2**60}.get(kind, 2**50)
    values = pa.array([end, -end, 0], pa.int64()).cast(far or pa.timestamp("us"))
    with duckdb.connect(str(tmp_path / "d.duckdb")) as connection:
        connection.register("rows", pa.table({"u": pa.array([1, 2, 3], pa.int64()), "x": values}))
        connection.execute(f"CREATE TABLE t AS SELECT u, CAST(x AS {kind}) AS x FROM rows")
    columns = {"u": Column("u", Identifier("integer")), "x": Column("x", Moment(YEAR_2020, YEAR_2020 + DAY))}
    table = Table("t", True, columns, Source("duckdb", {"path": str(tmp_path / "d.duckdb")}), None)
    source = DuckDBEngine(Dataset("d", "d", "1", {"t": table}, {"user": USER}, ()), threads=1)
    assert sum(source.vector(m.Count(ONE_ROW, (m.GroupKey("h", x.DatePart("hour", X)),)))) == 3
    source.inspect()


LATTICES = {
    "numbers": number(-3, 5000, Fraction(1, 2)),
    "with NULL": number(0, 4096, nullable=True),
    "seconds": Moment(YEAR_2020, YEAR_2020 + DAY // 10, "second"),
    "NULL and seconds": Moment(YEAR_2020 + 1, YEAR_2020 + DAY // 10, "second", nullable=True),
}


@pytest.mark.parametrize("domain", LATTICES.values(), ids=LATTICES.keys())
def test_many_values_are_those_that_few_would_be(domain: Domain, monkeypatch: pytest.MonkeyPatch) -> None:
    lazy = domain_values(domain, 1 << 20)
    assert isinstance(lazy, Lattice)
    monkeypatch.setattr(domains, "MAX_LISTED", 1 << 20)
    eager = domain_values(domain, 1 << 20)
    assert isinstance(eager, tuple)
    assert (
        tuple(lazy) == eager
        and lazy[-3:] == eager[-3:]
        and lazy[-1] == eager[-1]
        and lazy[-2] == eager[-2]
        and len(lazy) == len(eager)
    )
    assert tuple(lazy.encoded) == tuple(encode_value(value, domain) for value in eager)


def test_a_plan_with_many_keys_is_appraised_without_listing_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small message once took the kernel minutes, before any charge."""

    def made(self: Lattice, place: int) -> None:
        raise AssertionError("a key was made before the charge")

    found = engine(tmp_path / "e", number(0, 1 << 25), [(1, 5)])
    monkeypatch.setattr(Lattice, "__getitem__", made)
    measure = m.Count(ONE_ROW, (m.GroupKey("x", X),))
    assert measure.size(found.ctx) == (1 << 25) + 1
    assert measure.sensitivity(found.ctx, "user").l1 == 1
    check_compilable(found.ctx, measure)


def test_many_keys_are_laid_out(tmp_path: Path) -> None:
    found = engine(tmp_path / "e", number(0, 9999), [(1, 5), (2, 9999), (3, 5)])
    vector = found.vector(m.Count(ONE_ROW, (m.GroupKey("x", X),)))
    assert (len(vector), int(vector[5]), int(vector[9999]), int(vector.sum())) == (10_000, 2, 1, 3)


def test_bounds_that_no_64_bit_step_reaches_are_refused(tmp_path: Path) -> None:
    """Putting 5e18 on a lattice of thousands once overflowed: one record, and every question failed."""
    with pytest.raises(InvalidSchema, match="too large for a step of 1000"):
        engine(tmp_path / "e", Number(Fraction(0), Fraction(9 * 10**18), Fraction(1000)), [(1, 5 * 10**18)])


@pytest.mark.parametrize("value", [4 * 10**18, -4 * 10**18, 1499, -1500, 2**63 - 1, -(2**63)])
def test_the_largest_bounds_that_are_taken_do_not_overflow(tmp_path: Path, value: int) -> None:
    most = Fraction(46 * 10**17)
    found = engine(tmp_path / "e", Number(-most, most, Fraction(1000)), [(1, value)])
    assert abs(int(found.vector(m.Sum(ONE_ROW, X))[0])) <= most / 1000


def test_missing_keys_of_many_have_the_last_cell(tmp_path: Path) -> None:
    found = engine(tmp_path / "e", number(0, 9999, nullable=True), [(1, 0), (2, None), (3, None)])
    vector = found.vector(m.Count(ONE_ROW, (m.GroupKey("x", X),)))
    assert (len(vector), int(vector[0]), int(vector[10_000]), int(vector.sum())) == (10_001, 1, 2, 3)
