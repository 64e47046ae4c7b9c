"""What every other engine must show: the integers of the reference on random plans, functions within a step."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import pyarrow as pa
import pytest
from sqlglot import exp

import plan.plans as plans
import plan.trials as trials
from dither.plan import expressions as x
from dither.plan import measures as m
from dither.plan import relations as r
from dither.plan.context import Context
from dither.plan.sql.statement import SqlStatement, TableSource, column_ref
from dither.schema import Column, Dataset, Identifier, Number, Source, Table, Unit
from plan.reference import Raw
from plan.shrink import smallest
from plan.trials import Bench, DuckBench, Tally, Violation

STEPS = (Fraction(1, 10**6), Fraction(3))
EXPONENTS = (Fraction(2), Fraction(3), Fraction(1, 2), Fraction(-1), Fraction(-3), Fraction(7, 3))
FUNCTIONS = [
    *(x.Function(name, x.ColumnRef("v"), step) for name in ("sqrt", "ln", "exp", "logistic") for step in STEPS),
    *(x.Power(x.ColumnRef("v"), exponent) for exponent in EXPONENTS),
]
ACTIONS = r.LimitRowsPerUnit(r.Scan("actions"), "user", 7)
MEASURES = [
    m.Count(ACTIONS, (m.GroupKey("url", x.ColumnRef("url")), m.GroupKey("action", x.ColumnRef("action")))),
    m.Count(ACTIONS, (m.GroupKey("month", x.DateTrunc("month", x.ColumnRef("t"))),)),
    m.Sum(r.Scan("users"), x.ColumnRef("age"), (m.GroupKey("country", x.ColumnRef("country")),)),
    m.ClippedSums(
        r.Scan("actions"), "user", (x.LiteralValue(1),), 5, "l2", (m.GroupKey("action", x.ColumnRef("action")),)
    ),
    m.Count(r.UnitJoin(ACTIONS, r.Scan("users"), "user"), (m.GroupKey("age", x.ColumnRef("age")),)),
]


def random_plans(bench: Bench, count: int, seed: int, batch: int = 5, alone: int = 4) -> Tally:
    """Random cases from a fixed seed, each with several neighbours, checked for promises a, b, c, e and f.

    One batch in `alone` has every plan in statements of its own, as an engine would run it.
    """
    tally = Tally()
    for number in range(-(-count // batch)):
        try:
            trials.run_batch(Random(f"{seed}:{number}"), bench, tally, batch, alone=number % alone == 0)
        except Violation as violation:
            raise smallest(violation, bench) from None
    return tally


def promises_hold(
    bench: Bench, name: str, count: int, seed: int, capsys: pytest.CaptureFixture[str], alone: int = 4
) -> None:
    """Random plans on an engine, with a line that says how many there were."""
    tally = random_plans(bench, count, seed, alone=alone)
    with capsys.disabled():
        print(f"\n  tests/access: {tally.line(name)}")
    assert tally.plans == count


def largest_difference(bench: Bench) -> int:
    """The largest difference, in steps, between this engine's functions and DuckDB's, over many arguments."""
    mine, theirs = (_applied(place) for place in (bench, DuckBench()))
    assert mine.keys() == theirs.keys()
    worst = 0
    for value, results in theirs.items():
        for a, b in zip(mine[value], results, strict=True):
            assert (a is None) == (b is None)
            worst = max(worst, abs(a - b) if a is not None else 0)
    return worst


def _applied(bench: Bench) -> dict[int, tuple[int | None, ...]]:
    values = [*range(-300, 2_000), *(10**k for k in range(4, 7)), *(-(10**k) for k in range(4, 7))]
    domain = Number(Fraction(-(10**6), 100), Fraction(10**6, 100), Fraction(1, 100))
    columns = {"id": Column("id", Identifier("integer")), "v": Column("v", domain)}
    table = Table("t", True, columns, Source("parquet", {"path": "nowhere"}))
    ctx = Context(Dataset("d", "p", "1", {"t": table}, {"user": Unit("user", "user", {"t": "id"})}, ()))
    raw = Raw({"id": "integer", "v": "float"}, [{"id": i, "v": v / 100} for i, v in enumerate(values)])
    place = bench.load({"t": plans.arrow(raw)})["t"]
    node = r.Project(r.Scan("t"), (("v", x.ColumnRef("v")), *((f"f{i}", f) for i, f in enumerate(FUNCTIONS))))
    statement = SqlStatement(ctx, {"t": TableSource(place, raw.kinds)}, bench.dialect, keeps_order=False)
    names = [column_ref(f"c{index}") for index in range(len(FUNCTIONS) + 1)]
    body = exp.select(*names).from_(statement.table(node))
    found: pa.Table = bench.run(statement.finish(body))
    rows = zip(*(column.to_pylist() for column in found.columns), strict=True)
    return {row[0]: tuple(row[1:]) for row in rows}
