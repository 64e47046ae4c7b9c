"""Values that no engine can hold, domains without values, moments off their precision: each was a hole once."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from access.trials import change, covers
from dither.access import expr as x
from dither.access import measure as m
from dither.access import relation as r
from dither.access.domains import cardinality, number
from dither.access.engines.duckdb import DuckDBEngine
from dither.errors import InvalidPlan
from dither.schema import Column, Dataset, Domain, Identifier, Number, Source, Table, Unit

USER = Unit("user", "user", {"t": "u"})
X = x.Column("x")
SCAN = r.Scan("t")
ONE_ROW = r.BoundRows(SCAN, "user", 1)
NOWHERE = x.Scope({})


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
    "exp": x.Function("exp", x.Constant(100)),
    "coarse exp": x.Function("exp", x.Constant(100), Fraction(10**12)),
    "sqrt": x.Function(
        "sqrt", x.Arithmetic("*", x.Constant(10**9), x.Rounded("ceil", x.Constant(1), Fraction(10**17)))
    ),
    "power": x.Power(x.Constant(2), Fraction(64)),
    "negative power": x.Power(x.Constant(-2), Fraction(63)),
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
