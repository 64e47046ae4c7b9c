"""What an analyst who knows the code would try: rewritten keys, error oracles, giant units, outer joins, metadata."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from sqlglot import exp

from dither.errors import DitherError, InvalidParameter, InvalidPlan, Unbounded, Unsupported
from dither.plan import expressions as x
from dither.plan import measures as m
from dither.plan import relations as r
from dither.plan.context import Context, PublicTableFacts
from dither.plan.sql.scope import Scope
from dither.plan.stability import EstimatedLimit
from dither.schema import Category, Identifier, Number, Unit
from plan.trials import change, covers
from plan.worlds import ACTION, MONTH, USER, YEAR_2020, dataset, engine, one_table

TOPICS = r.Project(r.Scan("urls"), (("page", x.ColumnRef("url")), ("topic", x.ColumnRef("topic"))))
BY_ACTION = (m.GroupKey("action", x.ColumnRef("action")),)
CTX = Context(
    dataset(Path("nowhere"), USER, ACTION, MONTH),
    PublicTableFacts({"urls.url": ("a",)}, {"urls.url": 1, "urls.topic": 2}),
)


def rewritten() -> Iterator[tuple[str, r.Relation]]:
    """Relations whose visible user_id lies."""
    scan = r.Scan("actions")
    rest = tuple((name, x.ColumnRef(name)) for name in ("url", "action", "t"))
    constant = r.Project(scan, (("user_id", x.LiteralValue(7)), *rest))
    fresh = r.Project(scan, (("user_id", x.DatePart("second", x.ColumnRef("t"))), *rest))
    liar = x.Case(
        ((x.Compare("=", x.ColumnRef("action"), x.LiteralValue("like")), x.LiteralValue(1)),), x.LiteralValue(2)
    )
    yield "constant", constant
    yield "function of another column", fresh
    yield "case", r.Project(scan, (("user_id", liar), *rest))
    yield "union", r.Union(constant, r.Project(scan, (("user_id", x.LiteralValue(8)), *rest)))


def heavy(user: int, rows: int) -> list[tuple[Any, ...]]:
    kinds = ("view", "like", "share")
    return [(user, "abc"[i % 3], kinds[i % 3], YEAR_2020 + i * 1_000_001) for i in range(rows)]


BASE = {
    "users": [(1, 30.0, "FR"), (2, 40.0, "DE")],
    "actions": heavy(1, 5) + heavy(2, 3) + [(4, "a", "like", YEAR_2020)],
    "urls": [("a", "news"), ("b", "sport"), ("d", "news")],
}
EXTRA = {"users": [(3, 50.0, "FR")], "actions": [*heavy(3, 200), (3, None, None, None), (3, "zzz", "view", YEAR_2020)]}


def worlds(path: Path, extra: dict[str, list[Any]] = EXTRA) -> tuple[Any, Any]:
    bigger = {name: [*rows, *extra.get(name, [])] for name, rows in BASE.items()}
    units = (USER, ACTION, MONTH)
    return engine(path / "base", *units, **BASE), engine(path / "more", *units, **bigger)


def promised(pair: tuple[Any, Any], measure: m.Measure, unit: str = "user") -> None:
    """The measured change is at most the stated one."""
    stated = measure.sensitivity(pair[0].ctx, unit)
    assert covers(stated, change(pair[0].vector(measure), pair[1].vector(measure))), measure


@pytest.mark.tier("test")
@pytest.mark.parametrize("name", [name for name, _ in rewritten()])
def test_a_rewritten_user_id_changes_nothing(name: str, tmp_path: Path) -> None:
    lying, pair = dict(rewritten())[name], worlds(tmp_path)
    promised(pair, m.Count(r.LimitRowsPerUnit(lying, "user", 3), BY_ACTION))
    promised(pair, m.Count(r.LimitGroupsPerUnit(lying, "user", (x.ColumnRef("user_id"),), 1, 2), BY_ACTION))
    promised(pair, m.count_units(lying, "user", BY_ACTION))
    promised(pair, m.ClippedSums(lying, "user", (x.LiteralValue(1),), 4, "l1", BY_ACTION))
    promised(pair, m.Count(r.UnitJoin(r.LimitRowsPerUnit(lying, "user", 2), r.Scan("users"), "user"), BY_ACTION))
    grouped = r.GroupBy(
        r.LimitRowsPerUnit(lying, "user", 3), (("user_id", x.ColumnRef("user_id")),), (r.GroupAggregate("n", "count"),)
    )
    promised(pair, m.Sum(grouped, x.Clamp(x.ColumnRef("n"), Fraction(0), Fraction(5))))
    self_join = r.KeyJoin(
        r.LimitRowsPerUnit(lying, "user", 2),
        r.Project(r.LimitRowsPerUnit(lying, "user", 2), (("other", x.ColumnRef("user_id")),)),
        (("user_id", "other"),),
        2,
        2,
    )
    promised(pair, m.Count(self_join, BY_ACTION))
    with pytest.raises(Unbounded):
        m.Count(lying, BY_ACTION).sensitivity(pair[0].ctx, "user")


def test_a_bound_is_refused_once_the_unit_is_lost() -> None:
    lost = r.GroupBy(r.Scan("actions"), (("user_id", x.ColumnRef("user_id")), ("action", x.ColumnRef("action"))))
    for node in (
        r.LimitRowsPerUnit(lost, "user", 1),
        r.LimitGroupsPerUnit(lost, "user", (x.ColumnRef("action"),), 1, 1),
    ):
        with pytest.raises(Unsupported, match="track their user"):
            node.stability(CTX, "user")
    with pytest.raises(Unsupported, match="track their user"):
        r.UnitJoin(lost, r.Scan("users"), "user").domain(CTX)


@pytest.mark.tier("test")
@pytest.mark.parametrize("how", ["inner", "left", "right"])
@pytest.mark.parametrize("bound", [1, 3])
def test_every_public_join_with_null_and_unmatched_keys(how: Any, bound: int, tmp_path: Path) -> None:
    pair = worlds(tmp_path)
    joined = r.PublicJoin(r.LimitRowsPerUnit(r.Scan("actions"), "user", bound), TOPICS, (("url", "page"),), how)
    promised(pair, m.Count(joined))
    promised(pair, m.Count(joined, (m.GroupKey("topic", x.ColumnRef("topic")),)))
    promised(pair, m.Count(r.Filter(joined, x.IsNull(x.ColumnRef("url")))))
    promised(pair, m.Count(r.Filter(joined, x.IsNull(x.ColumnRef("topic")))))


@pytest.mark.tier("test")
@pytest.mark.parametrize("how", ["inner", "left"])
def test_every_unit_join_with_a_missing_side(how: Any, tmp_path: Path) -> None:
    for extra in (EXTRA, {"users": [(4, 20.0, "DE")]}, {"actions": heavy(9, 40)}):
        pair = worlds(tmp_path / str(len(extra)) / next(iter(extra)), extra)
        users = r.Scan("users")
        actions = r.LimitRowsPerUnit(r.Scan("actions"), "user", 2)
        for left, right in ((actions, users), (users, actions)):
            joined = r.UnitJoin(left, right, "user", how)
            promised(pair, m.Count(joined, (m.GroupKey("country", x.ColumnRef("country")),)))
            promised(pair, m.Count(r.Filter(joined, x.IsNull(x.ColumnRef("age")))))


def test_outer_joins_on_other_keys_do_not_exist() -> None:
    assert "how" not in set(r.KeyJoin.__dataclass_fields__)


@pytest.mark.tier("test")
def test_a_unit_of_ten_million_rows(tmp_path: Path) -> None:
    """Bounds and clips hold whatever one unit brings."""
    rows, few = 10_000_000, 1_000
    columns = {"id": Identifier("integer"), "k": Category(("a", "b")), "v": Number(Fraction(-1000), Fraction(2**40))}
    unit = Unit("user", "user", {"t": "id"})

    def table(many: int) -> dict[str, pa.Array]:
        import numpy as np

        ids = np.concatenate([np.arange(few) % 100, np.full(many, 1000)])
        return {
            "id": pa.array(ids), "k": pa.array(np.array(["a", "b", "c"])[np.arange(len(ids)) % 3]),
            "v": pa.array(np.arange(len(ids)) * 2**33),
        }  # fmt: skip

    base = one_table(tmp_path / "base", columns, table(0), unit)
    more = one_table(tmp_path / "more", columns, table(rows), unit)
    keys = (m.GroupKey("k", x.ColumnRef("k")),)
    measures = [
        m.Count(r.LimitRowsPerUnit(r.Scan("t"), "user", 20), keys),
        m.ClippedSums(r.Scan("t"), "user", (x.ColumnRef("v"),), 10**6, "l2", keys),
        m.ClippedSums(r.Scan("t"), "user", (x.LiteralValue(1),), 1000, "l1", keys),
        m.count_units(r.Scan("t"), "user", keys),
        m.Sum(
            r.GroupBy(r.Scan("t"), (), (r.GroupAggregate("n", "count"),), "user"),
            x.Clamp(x.ColumnRef("n"), Fraction(0), Fraction(50)),
        ),
    ]
    for measure in measures:
        promised((base, more), measure)


def test_one_unit_in_every_group(tmp_path: Path) -> None:
    everywhere = [(3, url, action, YEAR_2020) for url, action in product("abd", ("view", "like", "share"))]
    pair = worlds(tmp_path, {"actions": everywhere})
    keys = (m.GroupKey("url", x.ColumnRef("url")), *BY_ACTION)
    wanted = tuple(key.value for key in keys)
    measure = m.Count(r.LimitGroupsPerUnit(r.Scan("actions"), "user", wanted, 9, 1), keys)
    stated = measure.sensitivity(pair[0].ctx, "user")
    assert change(pair[0].vector(measure), pair[1].vector(measure)) == stated
    assert (stated.l0, stated.linf, stated.l1, stated.l2_squared) == (9, 1, 9, 9)


@pytest.mark.tier("test")
@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("bound", [1, 2, 3, 7, 100, 12345])
def test_a_clipped_vector_has_norm_at_most_the_bound_exactly(norm: Any, bound: int, tmp_path: Path) -> None:
    actions = [
        (1, "a", kind, YEAR_2020 + i) for kind, many in (("view", 37), ("like", 11), ("share", 5)) for i in range(many)
    ]
    world = engine(tmp_path, actions=actions)
    values = (
        x.LiteralValue(1),
        x.Arithmetic(
            "*", x.LiteralValue(-97), x.AsNumber(x.Compare("=", x.ColumnRef("action"), x.LiteralValue("like")))
        ),
    )
    vector = world.vector(m.ClippedSums(r.Scan("actions"), "user", values, bound, norm, BY_ACTION)).tolist()
    size = sum(map(abs, vector)) if norm == "l1" else sum(v * v for v in vector)
    assert size <= (bound if norm == "l1" else bound * bound)
    assert bound < 100 or size > 0


def test_division_by_a_persons_salary_is_no_oracle(tmp_path: Path) -> None:
    """1 / (salary - 91000) answers, whoever is in the data, and costs the same."""
    ratio = x.Arithmetic("/", x.LiteralValue(1), x.Arithmetic("-", x.ColumnRef("age"), x.LiteralValue(30)))
    clipped = m.Sum(r.Scan("users"), x.Clamp(ratio, Fraction(-1), Fraction(1)))
    present, absent = engine(tmp_path / "a", users=[(1, 30.0, "FR")]), engine(tmp_path / "b", users=[(1, 31.0, "FR")])
    assert present.vector(clipped).tolist() == [0]
    assert absent.vector(clipped).tolist() == [1_000_000]
    assert clipped.sensitivity(present.ctx, "user") == clipped.sensitivity(absent.ctx, "user")


@pytest.mark.parametrize(
    "value",
    [
        x.Function("sqrt", x.Arithmetic("-", x.ColumnRef("age"), x.LiteralValue(60))),
        x.Function("ln", x.Arithmetic("-", x.ColumnRef("age"), x.LiteralValue(30))),
        x.Function("exp", x.Arithmetic("*", x.ColumnRef("age"), x.LiteralValue(1000))),
        x.Power(x.Arithmetic("-", x.ColumnRef("age"), x.LiteralValue(30)), Fraction(-3)),
        x.Power(x.Arithmetic("*", x.ColumnRef("age"), x.LiteralValue(10**9)), Fraction(64)),
        x.Arithmetic("%", x.ColumnRef("age"), x.Arithmetic("-", x.ColumnRef("age"), x.ColumnRef("age"))),
        x.Rescale(x.ColumnRef("age"), 1000),
    ],
)
def test_no_function_fails_on_a_record(value: x.Expr, tmp_path: Path) -> None:
    ages = [18.0, 30.0, 60.0, 65.0, float("inf"), float("-inf"), float("nan"), None, 1e308, -0.0]
    world = engine(tmp_path, users=[(i, age, "FR") for i, age in enumerate(ages)])
    assert len(world.vector(m.Sum(r.Scan("users"), value))) == 1


def test_texts_that_are_not_text_are_refused_before_any_data() -> None:
    for text in ("\ud800", "a\0b"):
        with pytest.raises(InvalidParameter):
            x.LiteralValue(text)
        with pytest.raises(InvalidParameter):
            x.TextMatch("prefix", x.ColumnRef("country"), text)


def test_quotes_in_constants_are_data() -> None:
    scope = Scope({"country": Category(("FR", "x'; DROP TABLE users; --"))}, {"country": exp.column("c0")})
    node = x.Compare("=", x.ColumnRef("country"), x.LiteralValue("x'; DROP TABLE users; --"))
    assert node.sql(scope).sql("duckdb") == "c0 = ('x''; DROP TABLE users; --')"


def test_identifiers_are_never_keys() -> None:
    with pytest.raises(Unsupported):
        m.Count(
            r.LimitRowsPerUnit(r.Scan("actions"), "user", 1), (m.GroupKey("user_id", x.ColumnRef("user_id")),)
        ).axes(CTX)
    with pytest.raises(Unsupported):
        m.PartitionCounts(
            r.LimitRowsPerUnit(r.Scan("actions"), "user", 1), (m.GroupKey("u", x.ColumnRef("user_id")),)
        ).sensitivity(CTX, "user")


def test_context_tables_are_joined_and_never_measured_alone() -> None:
    ctx = Context(dataset(Path("nowhere"), ACTION))
    people = r.Project(r.Scan("users"), (("id", x.ColumnRef("id")), ("country", x.ColumnRef("country"))))
    joined = r.PublicJoin(r.Scan("actions"), people, (("user_id", "id"),))
    assert m.Count(joined).sensitivity(ctx, "action").l1 == 1
    with pytest.raises(Unsupported, match="no privacy unit with a budget covers"):
        m.Count(r.Scan("users")).sensitivity(ctx, "action")
    with pytest.raises(Unbounded):
        r.PublicJoin(r.Scan("actions"), people, (("url", "country"),)).stability(ctx, "action")


def test_a_table_that_a_unit_covers_is_not_public() -> None:
    people = r.Project(r.Scan("users"), (("id", x.ColumnRef("id")),))
    with pytest.raises(Unsupported, match="covers the side of this join that is held fixed"):
        r.PublicJoin(r.Scan("actions"), people, (("user_id", "id"),)).stability(CTX, "user")


@pytest.mark.tier("test")
def test_metadata_do_not_depend_on_records(tmp_path: Path) -> None:
    """Domains, influence, sensitivity, shape, labels and SQL: identical for empty, tiny and large data."""
    sizes = (0, 3, 20_000)
    made = [
        engine(
            tmp_path / str(n),
            USER,
            ACTION,
            MONTH,
            users=[(i, 30.0, "FR") for i in range(n)],
            actions=heavy(1, n),
            urls=BASE["urls"],
        )
        for n in sizes
    ]
    joined = r.UnitJoin(r.LimitRowsPerUnit(r.Scan("actions"), "user", 2), r.Scan("users"), "user")
    keys = (
        m.GroupKey("country", x.ColumnRef("country")),
        m.GroupKey("url", x.ColumnRef("url")),
        m.GroupKey("month", x.DateTrunc("month", x.ColumnRef("t"))),
    )
    measure = m.SumVector(joined, (x.LiteralValue(1), x.ColumnRef("age")), keys)

    def metadata(world: Any) -> Any:
        ctx = world.ctx
        stated = [measure.sensitivity(ctx, unit) for unit in ctx.dataset.units]
        text = world.sql(measure).replace(ctx.dataset.tables["users"].source.options["path"].rsplit("/", 1)[0], "")
        return (
            joined.domain(ctx),
            stated,
            measure.size(ctx),
            list(measure.labels(ctx)),
            text,
            len(world.vector(measure)),
        )

    assert metadata(made[0]) == metadata(made[1]) == metadata(made[2])


@pytest.mark.parametrize(
    "build",
    [
        lambda: r.Project(r.Scan("users"), (("a", x.ColumnRef("age")), ("a", x.ColumnRef("age")))),
        lambda: m.Count(r.Scan("nobody")).sensitivity(CTX, "user"),
        lambda: m.Sum(r.Scan("users"), x.ColumnRef("country")).sensitivity(CTX, "user"),
        lambda: r.Filter(r.Scan("users"), x.ColumnRef("agee")).domain(CTX),
        lambda: r.Filter(r.Scan("users"), x.ColumnRef("age")).domain(CTX),
        lambda: r.Union(r.Scan("users"), r.Scan("actions")).domain(CTX),
        lambda: r.LimitRowsPerUnit(r.Scan("actions"), "user", 0),
        lambda: r.LimitRowsPerUnit(r.Scan("actions"), "user", True),
        lambda: r.LimitRowsPerUnit(r.Scan("actions"), "action", 3).domain(CTX),
        lambda: r.Sample(r.Scan("actions"), Fraction(3, 2)),
        lambda: x.Compare("<", x.ColumnRef("id"), x.LiteralValue(3)).domain(Scope(r.Scan("users").domain(CTX))),
        lambda: x.Compare("=", x.ColumnRef("age"), x.LiteralValue("FR")).domain(Scope(r.Scan("users").domain(CTX))),
        lambda: x.Instant(2**62),
        lambda: m.Count(r.LimitRowsPerUnit(r.Scan("actions"), "user", EstimatedLimit("t"))).sensitivity(CTX, "user"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_reason(build: Any) -> None:
    with pytest.raises(DitherError) as caught:
        build()
    assert len(str(caught.value)) > 20


@pytest.mark.parametrize(
    "grow",
    [
        lambda v: x.Clamp(x.NullIf(v, x.LiteralValue(3)), Fraction(0), Fraction(9)),
        lambda v: x.NullIf(v, x.LiteralValue(3)),
        lambda v: x.Power(v, Fraction(3, 2)),
        lambda v: x.Bucket(v, tuple(map(Fraction, range(5)))),
        lambda v: x.Arithmetic("+", v, x.LiteralValue(1)),
    ],
)
def test_a_plan_of_exploding_size_is_refused_before_it_explodes(grow: Any) -> None:
    value: x.Expr = x.ColumnRef("age")
    for _ in range(60):
        value = grow(value)
    with pytest.raises(InvalidPlan, match=r"too large|deep"):
        m.Sum(r.Scan("users"), value).sensitivity(CTX, "user")
