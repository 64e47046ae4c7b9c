"""Every example that the guidelines give for the data access layer (numbers 41 to 47), by name."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pyarrow as pa
import pytest

from dither.errors import Unbounded, Unsupported
from dither.loss import Sensitivity
from dither.plan.context import Context
from dither.plan.domains import bounds_of
from dither.plan.expressions.core import ColumnRef, LiteralValue
from dither.plan.expressions.logic import Compare
from dither.plan.expressions.numeric import Arithmetic
from dither.plan.measures.core import GroupKey
from dither.plan.measures.linear import LinearQuery
from dither.plan.measures.sums import Count, Sum, count_units
from dither.plan.relations.bounding import Sample
from dither.plan.relations.core import Relation
from dither.plan.relations.filter import Filter
from dither.plan.relations.group_by import Distinct, GroupBy
from dither.plan.relations.joins import PublicJoin, UnitJoin
from dither.plan.relations.project import Project as Select
from dither.plan.relations.project import Union
from dither.plan.relations.scan import Scan
from dither.schema import Category, Dataset, Identifier, Number, Source, Table, Unit
from dither.schema import Column as Declared
from plan.worlds import USER, YEAR_2020, engine, one_table

EMPLOYEE = Unit("employee", "user", {"employees": "employee_id"})


def employees(most: int = 300_000) -> Context:
    columns = {
        "employee_id": Identifier("text"),
        "age": Number(Fraction(18), Fraction(65)),
        "title": Category(("clerk", "manager", "director")),
        "salary": Number(Fraction(0), Fraction(most)),
    }
    table = Table(
        "employees",
        True,
        {name: Declared(name, domain) for name, domain in columns.items()},
        Source("parquet", {"path": "employees.parquet"}),
        "employee_id",
    )
    return Context(Dataset("firm", "firm", "1", {"employees": table}, {"employee": EMPLOYEE}, ()))


def five_self_unions() -> Relation:
    node: Relation = Scan("employees")
    for _ in range(5):
        node = Union(node, node)
    return node


def test_41_a_top_coded_age_keeps_its_bound_though_nobody_is_that_old(tmp_path: Path) -> None:
    columns = {"id": Identifier("integer"), "age": Number(Fraction(0), Fraction(115))}
    unit = Unit("person", "user", {"t": "id"})
    young = one_table(tmp_path, columns, {"id": pa.array([1]), "age": pa.array([30])}, unit, "id")
    assert Scan("t").domain(young.ctx)["age"] == Number(Fraction(0), Fraction(115))
    assert young.vector(Sum(Scan("t"), ColumnRef("age"))).tolist() == [30]


def test_42_tables_grouped_tables_and_vectors_each_state_their_stability() -> None:
    ctx = employees()
    table = Filter(Scan("employees"), Compare(">", ColumnRef("salary"), LiteralValue(30_000)))
    grouped = GroupBy(Scan("employees"), (("title", ColumnRef("title")),))
    vector = Count(Scan("employees"), (GroupKey("title", ColumnRef("title")),))
    assert table.stability(ctx, "employee").max_rows == 1
    assert grouped.stability(ctx, "employee").max_rows == 2
    assert vector.sensitivity(ctx, "employee").l1 == 1


def test_43_workers_younger_than_25_are_between_18_and_25() -> None:
    ctx = employees()
    young = Filter(Scan("employees"), Compare("<", ColumnRef("age"), LiteralValue(25)))
    assert bounds_of(young.domain(ctx)["age"]) == (18, 25)


def test_43_the_bounds_stay_when_no_row_is_left(tmp_path: Path) -> None:
    world = engine(tmp_path, users=[(1, 60.0, "FR")])
    young = Filter(Scan("users"), Compare("<", ColumnRef("age"), LiteralValue(25)))
    assert bounds_of(young.domain(world.ctx)["age"]) == (18, 25)
    assert world.vector(Count(young, (GroupKey("age", ColumnRef("age")),))).tolist() == [0] * 8


def test_43_a_contradiction_is_still_answered(tmp_path: Path) -> None:
    world = engine(tmp_path, users=[(1, 60.0, "FR")])
    nobody = Filter(
        Filter(Scan("users"), Compare("<", ColumnRef("age"), LiteralValue(20))),
        Compare(">", ColumnRef("age"), LiteralValue(60)),
    )
    assert world.vector(Count(nobody)).tolist() == [0]
    assert Count(nobody).sensitivity(world.ctx, "user").l1 == 1


def test_43_broken_records_are_corrected_and_counted_for_the_curator(tmp_path: Path) -> None:
    world = engine(tmp_path, users=[(1, 200.0, "FR"), (2, float("nan"), "XX"), (3, 30.0, "DE"), (None, 20.0, "FR")])
    assert world.vector(Sum(Scan("users"), ColumnRef("age"))).tolist() == [65 + 18 + 30]
    assert world.corrections() == {"values": 2}
    assert {key: n for key, n in world.inspect().items() if n} == {
        "users.age": 2, "users.country": 1, "users.id": 1, "users": 1,
    }  # fmt: skip


def test_44_group_by_gives_every_possible_key(tmp_path: Path) -> None:
    world = engine(tmp_path, users=[(1, 30.0, "FR"), (2, 31.0, "FR")])
    measure = Count(Scan("users"), (GroupKey("country", ColumnRef("country")), GroupKey("age", ColumnRef("age"))))
    vector = world.vector(measure)
    assert len(vector) == 3 * 48 == measure.size(world.ctx)
    assert list(measure.labels(world.ctx))[:2] == [("FR", 18), ("FR", 19)]
    assert vector.sum() == 2


def test_45_five_self_unions_move_32_rows() -> None:
    assert five_self_unions().stability(employees(), "employee").max_rows == 32


def test_45_the_sum_of_salaries_after_five_self_unions_needs_scale_300000_times_32() -> None:
    chosen = Filter(five_self_unions(), Compare("=", ColumnRef("employee_id"), LiteralValue("1234567")))
    stated = Sum(chosen, ColumnRef("salary")).sensitivity(employees(), "employee")
    assert stated.l1 == 300_000 * 32


def test_45_group_by_has_stability_two() -> None:
    assert GroupBy(Scan("employees"), (("age", ColumnRef("age")),)).stability(employees(), "employee").max_rows == 2


def test_45_limit_and_order_by_are_not_offered_on_private_tables() -> None:
    import dither.plan.relations as module

    assert not {"Limit", "OrderBy", "Sort", "Window"} & set(module.BY_NAME)


def test_45_bernoulli_sampling_has_stability_one() -> None:
    assert Sample(Scan("employees"), Fraction(1, 10)).stability(employees(), "employee").max_rows == 1


def test_45_select_where_and_distinct_have_stability_one() -> None:
    ctx = employees()
    select = Select(Scan("employees"), (("age", ColumnRef("age")), ("salary", ColumnRef("salary"))))
    assert select.stability(ctx, "employee").max_rows == 1
    assert (
        Filter(select, Compare(">", ColumnRef("salary"), LiteralValue(30_000))).stability(ctx, "employee").max_rows == 1
    )
    assert Distinct(select).stability(ctx, "employee").max_rows == 1


def test_45_distinct_after_five_self_unions_brings_the_stability_back_to_one() -> None:
    columns = (("salary", ColumnRef("salary")), ("employee_id", ColumnRef("employee_id")))
    node: Relation = Select(Scan("employees"), columns)
    for _ in range(5):
        node = Union(node, node)
    assert node.stability(employees(), "employee").max_rows == 32
    assert Distinct(node).stability(employees(), "employee").max_rows == 1
    assert Distinct(node, "employee").stability(employees(), "employee").max_rows == 1


def test_45_distinct_after_self_unions_measured(tmp_path: Path) -> None:
    world = engine(tmp_path, users=[(1, 30.0, "FR"), (2, 40.0, "DE")])
    node: Relation = Scan("users")
    for _ in range(5):
        node = Union(node, node)
    assert world.vector(Count(node)).tolist() == [64]
    assert world.vector(Count(Distinct(node))).tolist() == [2]


def test_46_and_47_each_operator_and_measure_names_a_proof_page() -> None:
    import dither.plan.measures as measures
    import dither.plan.relations as relations

    pages = Path(measures.__file__).parents[2] / "proofs"
    proved = [node for module in (relations, measures) for node in module.BY_NAME.values() if hasattr(node, "proof")]
    assert len(proved) == 21
    assert all((pages / node.proof).is_file() for node in proved)


def test_47_twice_the_sum_of_salaries_has_sensitivity_600000() -> None:
    ctx = employees()
    total = Sum(Scan("employees"), ColumnRef("salary"))
    assert total.sensitivity(ctx, "employee") == Sensitivity.of(l0=1, linf=300_000)
    assert LinearQuery(total, ((2,),)).sensitivity(ctx, "employee") == Sensitivity.of(l0=1, linf=600_000)
    doubled = Sum(Scan("employees"), Arithmetic("*", LiteralValue(2), ColumnRef("salary")))
    assert doubled.sensitivity(ctx, "employee") == Sensitivity.of(l0=1, linf=600_000)


def test_47_a_sum_between_two_bounds_moves_by_the_larger_of_them() -> None:
    ctx = employees()
    centred = Sum(Scan("employees"), Arithmetic("-", ColumnRef("salary"), LiteralValue(100_000)))
    assert centred.sensitivity(ctx, "employee").linf == 200_000


def test_1_questions_across_all_three_tables(tmp_path: Path) -> None:
    """Number 1 of the list: user-level questions with joins, without collapsing a user to one row."""
    actions = [
        (1, "a", "view", YEAR_2020),
        (1, "b", "like", YEAR_2020),
        (2, "a", "view", YEAR_2020),
        (2, "a", "share", YEAR_2020),
    ]
    world = engine(
        tmp_path,
        USER,
        users=[(1, 30.0, "FR"), (2, 40.0, "DE")],
        actions=actions,
        urls=[("a", "news"), ("b", "sport")],
    )
    topics = Select(Scan("urls"), (("page", ColumnRef("url")), ("topic", ColumnRef("topic"))))
    joined = UnitJoin(PublicJoin(Scan("actions"), topics, (("url", "page"),)), Scan("users"), "user")
    keys = (GroupKey("country", ColumnRef("country")), GroupKey("topic", ColumnRef("topic")))
    with pytest.raises(Unbounded, match="limit the rows of each user"):
        Count(joined, keys).sensitivity(world.ctx, "user")
    assert world.vector(count_units(joined, "user", keys)).reshape(3, 2).tolist() == [[1, 1], [1, 0], [0, 0]]
    assert world.vector(Count(joined, keys)).reshape(3, 2).tolist() == [[1, 1], [2, 0], [0, 0]]


def test_a_public_table_alone_is_not_measured(tmp_path: Path) -> None:
    world = engine(tmp_path, urls=[("a", "news")])
    with pytest.raises(Unsupported, match="no privacy unit with a budget covers"):
        Count(Scan("urls")).sensitivity(world.ctx, "user")
