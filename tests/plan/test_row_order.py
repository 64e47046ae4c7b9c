"""The pseudo-random order by which rows are chosen: fair to every row, the same in SQL and in Python."""

from __future__ import annotations

from itertools import combinations
from math import comb
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats

import plan.reference as reference
from dither.access.engines.duckdb import DuckDBEngine
from dither.plan import expressions as x
from dither.plan import measures as m
from dither.plan import relations as r
from dither.plan.sql import statement as statement_module
from dither.plan.sql.builders import integer
from dither.plan.sql.dialect import Dialect
from dither.plan.sql.row_order import FOLD, MIXED_BITS, MODULUS, HashPart, coefficient, hash_order, mix_hash
from dither.schema import BudgetCap, Category, Column, Dataset, Identifier, Number, Source, Table, Unit

PEOPLE, KINDS, KEPT = 40_000, 8, 3


def dataset(file: Path) -> Dataset:
    columns = {
        "person": Column("person", Identifier("integer")),
        "kind": Column("kind", Category(tuple("abcdefgh"))),
        "amount": Column("amount", Number(0, 7)),
    }
    table = Table("rows", True, columns, Source("parquet", {"path": str(file)}))
    units = {"person": Unit("person", "user", {"rows": "person"})}
    return Dataset("order", "order", "1", {"rows": table}, units, (BudgetCap("person", "pure", 1),))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> DuckDBEngine:
    """Everybody has the same eight rows; people are numbered, as people are."""
    kinds = np.tile(np.arange(KINDS), PEOPLE)
    file = tmp_path_factory.mktemp("order") / "rows.parquet"
    rows = {"person": np.repeat(np.arange(PEOPLE), KINDS), "kind": np.array(list("abcdefgh"))[kinds], "amount": kinds}
    pq.write_table(pa.table(rows), file)
    return DuckDBEngine(dataset(file))


def chosen(engine: DuckDBEngine) -> np.ndarray:
    """How often each kind of row was kept."""
    bounded = r.LimitRowsPerUnit(r.Scan("rows"), "person", KEPT)
    return engine.vector(m.Count(bounded, (m.GroupKey("kind", x.ColumnRef("kind")),)))


def unfair(counts: np.ndarray) -> float:
    """The probability of such counts if each person's rows were chosen at random; the order is fixed, so is this."""
    share = KEPT / KINDS
    spread_of = PEOPLE * share * (1 - share) * KINDS / (KINDS - 1)
    return float(stats.chi2.sf(np.sum((counts - PEOPLE * share) ** 2) / spread_of, KINDS - 1))


# The order is a fixed function: this has one outcome. For a random function it would fail with probability 1e-9.
def test_every_kind_of_row_is_kept_equally_often(engine: DuckDBEngine) -> None:
    counts = chosen(engine)
    assert counts.sum() == PEOPLE * KEPT
    assert unfair(counts) > 1e-9


def test_without_the_cube_some_rows_would_come_first(engine: DuckDBEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def straight(dialect: Dialect, order: object) -> object:
        return order

    monkeypatch.setattr(statement_module, "hash_order", straight)
    assert unfair(chosen(engine)) < 1e-9


# As above: a fixed function, 1e-9 for a random one.
def test_every_pair_of_rows_is_kept_equally_often() -> None:
    domains = {"person": Identifier("integer"), "kind": Category(tuple("abcdefgh")), "amount": Number(0, 7)}
    people, counts = 4_000, dict.fromkeys(combinations(range(KINDS), 2), 0)
    for person in range(people):
        rows = [{"person": person, "kind": "abcdefgh"[kind], "amount": kind} for kind in range(KINDS)]
        orders = [reference.spread(reference.scramble(reference.order_of(row, domains), 1)) for row in rows]
        for pair in combinations(sorted(sorted(range(KINDS), key=orders.__getitem__)[:2]), 2):
            counts[pair] += 1
    expected = people / comb(KINDS, 2)
    assert stats.chi2.sf(sum((n - expected) ** 2 / expected for n in counts.values()), comb(KINDS, 2) - 1) > 1e-9


def test_the_order_never_overflows_and_keeps_rows_apart(engine: DuckDBEngine) -> None:
    """The largest parts of each size, many of them: SQL and Python agree, within 62 bits."""
    random = Random(1)
    for count in (1, 2, 7, 8, 40, 300):
        sizes = [random.choice((1, 2, 31, 32, 40)) for _ in range(count)]
        values = [random.choice((-1, 1)) * (2**bits - 1) for bits in sizes]
        sql = mix_hash([HashPart(integer(value), bits) for value, bits in zip(values, sizes, strict=True)], 1)
        place = hash_order(Dialect(), sql)
        found = engine._connection.execute(f"SELECT {Dialect().render(sql)}, {Dialect().render(place)}").fetchall()[0]
        order = reference.scramble(zip(values, sizes, strict=True), 1)
        assert found == (order, reference.spread(order))
        assert max(map(abs, found)) < 2**62


def test_cubing_permutes_the_residues() -> None:
    assert MODULUS % 3 == 2  # so 3 does not divide MODULUS - 1
    assert all(pow(base, number - 1, number) == 1 for number in (MODULUS, FOLD) for base in (2, 3, 5, 7, 11, 13))
    assert coefficient(1, 0, 20).bit_length() == 20
    assert MIXED_BITS == 62
