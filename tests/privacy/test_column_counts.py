"""Counts by key and column: the joint cost of columns, and that no smaller one would do."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import product
from random import Random

import pytest

from dither.errors import DitherError, InvalidPlan
from dither.loss import ZCDP
from dither.plan import measures as m
from dither.plan import relations as r
from dither.plan.context import Context
from dither.plan.expressions import And, ColumnRef, Compare, Expr, In, LiteralValue, Not
from dither.plan.measures import columns
from dither.plan.measures.columns import worst_split
from dither.privacy.budget_loss import column_loss
from dither.privacy.codec import encode
from dither.privacy.cost import privacy_cost, recompute_losses
from dither.privacy.mechanisms import ColumnGaussian, DiscreteGaussian
from dither.privacy.protocol import Measurement, ReleaseRequest, Request
from dither.schema import BudgetCap, Category, Column, Dataset, Identifier, Source, Table, Unit

KINDS = tuple(f"kind{number}" for number in range(14))
SIGMAS = (2228, 40, 14, 22, *(10,) * 10)
ACTIONS = r.Scan("actions")


def is_kind(*kinds: str) -> Expr:
    return In(ColumnRef("kind"), kinds) if len(kinds) > 1 else Compare("=", ColumnRef("kind"), LiteralValue(kinds[0]))


def context(*budgets: BudgetCap) -> Context:
    fields = {"user": Identifier("integer"), "kind": Category(KINDS), "place": Category(("a", "b"))}
    source = Source("parquet", {"path": "nowhere"})
    table = Table("actions", True, {name: Column(name, domain) for name, domain in fields.items()}, source)
    units = {
        "user": Unit("user", "user", {"actions": "user"}),
        "action": Unit("action", "row", {"actions": None}),
    }
    caps = budgets or (BudgetCap("action", "zcdp", rho=Fraction(1), delta=Fraction(1, 10**6)),)
    return Context(Dataset("world", "world", "1", {"actions": table}, units, caps))


def table_of(*conditions: Expr | None, child: r.Relation = ACTIONS) -> m.ColumnCounts:
    return m.ColumnCounts(child, tuple(m.CountColumn(f"n{i}", each) for i, each in enumerate(conditions)))


def loss(measure: m.ColumnCounts, sigmas: Sequence[int], unit: str = "action") -> Fraction:
    mechanism = ColumnGaussian(tuple(Fraction(sigma) ** 2 for sigma in sigmas))
    return column_loss(context(), unit, measure, mechanism).rho


def test_disjoint_columns_cost_one_action_the_largest_loss() -> None:
    assert loss(table_of(is_kind("kind0"), is_kind("kind1")), (10, 10)) == Fraction(1, 200)
    assert loss(table_of(*map(is_kind, KINDS)), SIGMAS) == Fraction(1, 200)


@pytest.mark.parametrize(
    ("conditions", "expected"),
    {
        "overlapping lists": ((is_kind("kind0", "kind1"), is_kind("kind1", "kind2")), Fraction(1, 100)),
        "all rows besides": ((None, is_kind("kind0")), Fraction(1, 100)),
        "other columns of the data": ((is_kind("kind0"), In(ColumnRef("place"), ("a",))), Fraction(1, 100)),
        "told apart by the second": (
            (And((is_kind("kind0"), In(ColumnRef("place"), ("a",)))), In(ColumnRef("place"), ("b",))), Fraction(1, 200),
        ),
        "a negated condition says nothing": ((is_kind("kind0"), Not(is_kind("kind0"))), Fraction(1, 100)),
        "a contradiction": ((And((is_kind("kind0"), is_kind("kind1"))), is_kind("kind0")), Fraction(1, 200)),
    }.values(),
)  # fmt: skip
def test_columns_are_disjoint_only_if_the_plan_proves_it(conditions: tuple[Expr, ...], expected: Fraction) -> None:
    assert loss(table_of(*conditions), (10, 10)) == expected


def test_a_bounded_user_costs_the_worst_split() -> None:
    five = r.LimitRowsPerUnit(ACTIONS, "user", 5)
    assert loss(table_of(*map(is_kind, KINDS), child=five), SIGMAS, "user") == Fraction(25, 200)
    two_each = r.LimitGroupsPerUnit(ACTIONS, "user", (ColumnRef("kind"),), 3, 2)
    halves = table_of(*map(is_kind, KINDS), child=two_each)
    assert loss(halves, SIGMAS, "user") == 3 * Fraction(4, 200)  # two rows in three columns, not six in one


def worst_by_hand(weights: Sequence[Fraction], limits: Sequence[int], rows: int) -> Fraction:
    splits = (each for each in product(*(range(limit + 1) for limit in limits)) if sum(each) <= rows)
    return max(sum((w * n * n for w, n in zip(weights, each, strict=True)), Fraction(0)) for each in splits)


def random_splits(count: int) -> list[tuple[list[Fraction], list[int], int]]:
    random = Random(5)
    return [
        (
            [Fraction(random.randint(0, 9), random.randint(1, 5)) for _ in range(size)],
            [random.randint(0, 4) for _ in range(size)],
            random.randint(0, 9),
        )
        for size in (random.randint(1, 4) for _ in range(count))
    ]


def test_the_worst_split_by_enumeration() -> None:
    for weights, limits, rows in random_splits(150):
        assert worst_split(weights, limits, rows) == worst_by_hand(weights, limits, rows)


def test_enumeration_sees_a_split_that_leaves_out_the_rest() -> None:
    """A search over full and empty columns alone would be too small for some of these cases."""

    def full_only(weights: Sequence[Fraction], limits: Sequence[int], rows: int) -> Fraction:
        splits = (e for e in product(*((0, limit) for limit in limits)) if sum(e) <= rows)
        return max(sum((w * n * n for w, n in zip(weights, e, strict=True)), Fraction(0)) for e in splits)

    assert any(full_only(*each) < worst_by_hand(*each) for each in random_splits(150))


def test_an_unfinished_search_is_an_upper_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "MAX_SPLITS", 3)
    for weights, limits, rows in random_splits(60):
        assert worst_split(weights, limits, rows) >= worst_by_hand(weights, limits, rows)


def test_the_cost_of_a_request_has_the_joint_loss() -> None:
    mechanism = ColumnGaussian((Fraction(100), Fraction(400)))
    question = Request("world", (Measurement(table_of(is_kind("kind0"), is_kind("kind1")), mechanism),), unit="action")
    (found,) = privacy_cost(context(), question).losses
    assert found.loss == ZCDP(Fraction(1, 200))
    assert recompute_losses(context(), encode(ReleaseRequest(question)).decode())[0] == (found,)
    separate = [Measurement(table_of(is_kind(kind)), DiscreteGaussian(Fraction(100))) for kind in KINDS[:2]]
    assert privacy_cost(context(), Request("world", tuple(separate), unit="action")).losses[0].loss == ZCDP("1/100")


def test_a_wrong_number_of_variances_is_refused() -> None:
    for variances in ((Fraction(1),), (Fraction(1),) * 4):
        question = Measurement(table_of(is_kind("kind0"), is_kind("kind1")), ColumnGaussian(variances))
        with pytest.raises(DitherError, match=r"2 columns|4 variances"):
            privacy_cost(context(), Request("world", (question,), unit="action"))


def test_columns_need_names_and_a_bound() -> None:
    with pytest.raises(InvalidPlan, match="different names"):
        m.ColumnCounts(ACTIONS, (m.CountColumn("n"), m.CountColumn("n")))
    with pytest.raises(DitherError, match="any number of rows"):
        loss(table_of(None), (1,), "user")
