"""How a plan becomes a statement: its tree is built, not parsed, and every node stands in one place."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from functools import cache
from random import Random
from typing import Any

import duckdb
import pytest
from sqlglot import Parser, exp

import plan.plans as plans
from dither.access.engines.postgres import PostgresDialect
from dither.access.engines.spark import SparkDialect
from dither.plan import expressions as x
from dither.plan import measures as m
from dither.plan import relations as r
from dither.plan.expressions.numeric import FLAT_BRANCHES, bisect_edges
from dither.plan.sql.builders import Sql, and_, binary, literal, or_, statement_size
from dither.plan.sql.dialect import Dialect
from dither.plan.sql.statement import SqlStatement, TableSource, column_ref
from dither.plan.stability import EstimatedLimit
from dither.plan.traversal import fill_limits, walk

SPELLINGS = (Dialect(), PostgresDialect(), SparkDialect())


@cache
def cases() -> list[plans.Case]:
    return [item for seed in range(24) if (item := plans.case(Random(seed), exact=False)).measure is not None]


def statements() -> Iterator[tuple[exp.Select, SqlStatement]]:
    """Random measures as statements, in every spelling."""
    for item in cases():
        sources = {name: exp.Table(this=exp.to_identifier(name)) for name in item.data}
        origins = {name: TableSource(source, item.data[name].kinds) for name, source in sources.items()}
        for dialect in SPELLINGS:
            statement = SqlStatement(item.ctx, origins, dialect, counted_columns=frozenset(item.data))
            yield item.measure.vector_query(statement).select, statement


def test_nothing_is_parsed_to_spell_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table's name, given as text, once cost a quarter of the whole statement."""
    before = [found for found, _ in statements()]  # and whatever is parsed once, for all plans, has been

    def parse(*_: Any, **__: Any) -> None:
        raise AssertionError("something was parsed")

    monkeypatch.setattr(Parser, "_parse", parse)
    with pytest.raises(AssertionError, match="parsed"):
        exp.to_table("t")
    assert [found for found, _ in statements()] == before and len(before) > 50


def test_every_node_stands_in_one_place() -> None:
    """A node with two parents would be changed in both places by whoever changes one."""
    for found, _ in statements():
        nodes = list(found.walk())
        assert len({id(node) for node in nodes}) == len(nodes)
        assert all(child.parent is node for node in nodes for child in node.iter_expressions())


def test_the_extent_of_a_statement_is_known() -> None:
    for found, statement in statements():
        assert statement.size.nodes == sum(1 for _ in found.walk())
        assert statement.size.columns == max(len(each.expressions) for each in found.find_all(exp.Select))
        assert statement.size.depth <= max(node.depth for node in found.walk()) + 1


def test_a_chain_is_not_deep_and_a_nest_is() -> None:
    names = [column_ref(f"c{index}") for index in range(50)]
    assert statement_size(and_(names)).depth == statement_size(or_(names)).depth == 3
    nest = names[0]
    for name in names[1:]:
        nest = and_([or_([nest, name]), name])
    assert statement_size(nest).depth > 50


def test_a_filled_plan_keeps_what_holds_no_bound() -> None:
    """What is known about a part of a plan is kept by the part's identity, over all bounds that are tried."""
    below = r.Filter(r.Scan("actions"), x.IsNull(x.ColumnRef("url")))
    plan = m.Count(r.LimitRowsPerUnit(below, "user", EstimatedLimit()), (m.GroupKey("action", x.ColumnRef("action")),))
    one, two = (fill_limits(plan, {"bound": limit}) for limit in (1, 2))
    assert one == m.Count(r.LimitRowsPerUnit(below, "user", 1), plan.keys) and two.child.limit == 2
    assert one.child.child is two.child.child is below and one.keys is plan.keys
    assert fill_limits(below, {"bound": 1}) is below and fill_limits(plan, {}) is plan


def test_a_plan_is_walked_parents_first_and_from_left_to_right() -> None:
    left, right = r.Scan("users"), r.Scan("actions")
    plan = m.Count(r.Union(left, right), (m.GroupKey("a", x.ColumnRef("a")), m.GroupKey("b", x.ColumnRef("b"))))
    found = [*walk(plan)]
    assert found == [plan, plan.child, left, right, plan.keys[0], x.ColumnRef("a"), plan.keys[1], x.ColumnRef("b")]
    assert [*walk(r.Scan)] == [] == [*walk("text")]


@pytest.mark.parametrize("edges", [1, 2, FLAT_BRANCHES, FLAT_BRANCHES + 1, 3 * FLAT_BRANCHES])
@pytest.mark.parametrize("computed", [False, True])
def test_a_value_falls_between_its_edges(edges: int, computed: bool) -> None:
    """One CASE tells few edges of a column apart; many edges, or those of what is computed, need a tree of them."""
    points = [5 * place - 7 for place in range(edges)]
    value: Sql = binary(exp.Add, exp.column("v"), literal(1)) if computed else exp.column("v")
    spelled = Dialect().render(bisect_edges(value, points, 0, edges))
    rows = duckdb.sql(f"SELECT v, {spelled} FROM range(-20, {5 * edges + 20}) AS t(v)").fetchall()
    assert rows == [(v, bisect_right(points, v + computed)) for v in range(-20, 5 * edges + 20)]
    cases = len(list(bisect_edges(value, points, 0, edges).find_all(exp.Case)))
    assert cases == edges if computed else (cases == 1) == (edges <= FLAT_BRANCHES)
