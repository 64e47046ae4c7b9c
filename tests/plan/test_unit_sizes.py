"""Sizes of units without grouping all rows, and clipping through joins: the counts of the rows that remain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

import plan.faults as faults
from dither.access.engines.duckdb import DuckDBEngine
from dither.plan import expressions as x
from dither.plan import measures as m
from dither.plan import relations as r
from dither.plan.context import Context
from dither.plan.relations import group_by
from dither.plan.sql.dialect import Dialect
from dither.schema import Unit
from plan import worlds

CAP, UNITS = 6, (worlds.USER, worlds.ACTION, worlds.MONTH)
# Person, rows on listed links, rows on others. A cap of 6 cuts rows of persons 4 to 6; person 7 is no user.
PERSONS = [(1, 3, 0), (2, 4, 2), (3, 0, 2), (4, 4, 8), (5, 7, 0), (6, 0, 9), (7, 5, 1)]
ROWS = {
    "users": [(person, 30.0, "FR") for person in range(1, 7)],
    "urls": [("u0", "news"), ("u1", "sport")],
    "actions": [
        (
            person,
            f"u{row % 2 if row < listed else 2 + row % 5}",
            ("view", "like")[row % 2],
            worlds.YEAR_2020 + worlds.DAY * (7 * row % 50),
        )
        for person, listed, others in PERSONS
        for row in range(listed + others)
    ],
}
EDGES = tuple(map(Fraction, range(2, 12)))
SCAN = r.Scan("actions")
LISTED = r.PublicJoin(
    SCAN, r.Project(r.Scan("urls"), (("link", x.ColumnRef("url")), ("topic", x.ColumnRef("topic")))), (("url", "link"),)
)
OF_USERS = r.UnitJoin(SCAN, r.Scan("users"), "user")
TO_USERS = r.UnitJoin(r.Scan("users"), SCAN, "user")


def engine_with_cap(path: Path, unit: Unit) -> DuckDBEngine:
    """An engine over the records, with a cap on the rows of a unit; every limit counts as large."""
    units = [replace(each, max_rows={"actions": CAP}) if each == unit else each for each in UNITS]
    return worlds.engine(path, *units, **ROWS)


@pytest.fixture(autouse=True)
def every_limit_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Dialect, "many_rows", 0)


def measures(ctx: Context) -> list[m.Measure]:
    """Rows of each person, and of each of their months, in a capped table, and in its joins; clipped counts of them."""
    nodes: list[r.Relation] = [SCAN, LISTED, OF_USERS, TO_USERS]
    found: list[m.Measure] = [m.contributions(node, "user", EDGES) for node in nodes]
    # Pairs of a person's rows: as many as the square of their number.
    pairs = r.UnitJoin(SCAN, r.Project(SCAN, (("other", x.ColumnRef("url")),)), "user")
    found.append(m.contributions(pairs, "user", tuple(map(Fraction, range(2, 40)))))
    by = (m.GroupKey("action", x.ColumnRef("action")),)
    found += [m.ClippedSums(node, "user", (x.LiteralValue(1),), 4, "l1", by) for node in (*nodes, pairs)]
    if SCAN.stability(ctx, "month").tracks_unit:
        found += [m.contributions(node, "month", EDGES) for node in (SCAN, LISTED)]
    return found


def integers(engine: DuckDBEngine) -> list[list[int]]:
    return [engine.vector(each).tolist() for each in measures(engine.ctx)]


def plainly(engine: DuckDBEngine) -> list[list[int]]:
    """The same integers from the rows that remain: no size of a unit is known, and no unit is known to fit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(group_by, "sizes_of_units", lambda *given: None)
        patch.setattr(Dialect, "many_rows", 1 << 40)
        return integers(engine)


def test_sizes_before_a_cap_are_those_of_the_rows_that_are_kept(tmp_path: Path) -> None:
    engine = engine_with_cap(tmp_path, worlds.USER)
    exact = plainly(engine)
    assert integers(engine) == exact
    # Persons by number of rows, from 1 to 11: 2, 3, and 6 for those who are cut and persons 2 and 7.
    assert exact[0] == [0, 1, 1, 0, 0, 5, 0, 0, 0, 0, 0]
    assert exact[2] == exact[3] == [0, 1, 1, 0, 0, 4, 0, 0, 0, 0, 0]  # person 7 is no user
    # On listed links: 3, 4, 5 and 6 rows are certain; of the twelve of person 4 any six are kept.
    assert min(exact[1][rows - 1] for rows in (3, 4, 5, 6)) >= 1
    assert sum(exact[1]) in (4, 5)
    engine.close()


def test_a_cap_on_months_is_no_cap_on_persons(tmp_path: Path) -> None:
    engine = engine_with_cap(tmp_path, worlds.MONTH)
    exact = plainly(engine)
    assert integers(engine) == exact
    # Person 4 keeps six of nine rows in January, and three in February.
    assert exact[0] == [0, 1, 1, 0, 0, 2, 1, 0, 2, 0, 0]
    engine.close()


@pytest.mark.parametrize(
    ("plant", "capped"),
    [
        (faults.cut_rows_counted, worlds.USER),
        (faults.unmatched_rows_counted, worlds.USER),
        (faults.cap_of_others_counted, worlds.MONTH),
        (faults.partners_multiply_rows, worlds.USER),
        (faults.clipped_rows_counted_twice, worlds.USER),
        (faults.heavy_units_missed, worlds.USER),
        (faults.rows_cut_without_order, worlds.USER),
    ],
)
def test_a_fault_in_sizes_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], capped: Unit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_with_cap(tmp_path, capped)
    exact = plainly(engine)
    plant(monkeypatch)
    assert integers(engine) != exact
    engine.close()
