"""Holes that a review found in what is charged: each test is the attack, and fails where it would succeed."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from dither.errors import InvalidPlan, InvalidSchema, NotAllowed, Unsupported
from dither.loss import ZCDP, Pure
from dither.plan.context import Context
from dither.plan.expressions.core import ColumnRef, LiteralValue
from dither.plan.expressions.logic import Compare
from dither.plan.measures.core import GroupKey, Measure
from dither.plan.measures.statistics import contributions
from dither.plan.measures.sums import Count, Sum
from dither.plan.relations.bounding import LimitRowsPerUnit
from dither.plan.relations.core import Relation
from dither.plan.relations.filter import Filter
from dither.plan.relations.joins import KeyJoin, PublicJoin
from dither.plan.relations.project import Project
from dither.plan.relations.scan import Scan
from dither.plan.stability import EstimatedLimit
from dither.privacy.cost import privacy_cost
from dither.privacy.ledger import Ledger
from dither.privacy.ledger.maintenance import verify
from dither.privacy.mechanisms import DiscreteLaplace
from dither.privacy.protocol import BoundRule, BoundSearch, Calibrate, Measurement, Request, UnitLoss
from dither.schema import Column, Dataset, Group, Identifier, Moment, Unit
from privacy.ledger_cases import DAY, charge_for, dataset, pure, teams, zcdp

# --- Private records that no budget covers ---

ACTION = Unit("action", "row", {"actions": None})
PERSON = Unit("user", "user", {"users": "user_id"})
# Budgets on actions alone: the people are private, and only their own unit, which has no budget, covers them.
UNPAID = replace(dataset(), units={"user": PERSON, "action": ACTION}, budgets=(pure(1, "action"),))
CONTEXT = replace(UNPAID, units={"action": ACTION})
NOISE = DiscreteLaplace(Fraction(1, 100))


def price(described: Dataset, measure: Measure) -> Any:
    return privacy_cost(Context(described), Request("shop", (Measurement(measure, NOISE),))).losses


ACTIONS = Project(Scan("actions"), (("who", ColumnRef("user_id")), ("kind", ColumnRef("kind"))))


def with_people(how: Any) -> Relation:
    return PublicJoin(ACTIONS, Scan("users"), (("who", "user_id"),), how)


@pytest.mark.parametrize(
    ("described", "free"),
    [
        (UNPAID, Scan("users")),
        (UNPAID, LimitRowsPerUnit(Scan("users"), "user", 1)),
        (CONTEXT, with_people("right")),
        (CONTEXT, KeyJoin(ACTIONS, Scan("users"), (("who", "user_id"),), 1, 1)),
    ],
    ids=["scan", "bounded", "right join", "key join"],
)
def test_records_that_no_budget_covers_are_not_read(described: Dataset, free: Relation) -> None:
    with pytest.raises(Unsupported, match=r"no budget covers|no privacy unit with a budget covers"):
        price(described, Sum(free, ColumnRef("age")))


@pytest.mark.parametrize("how", ["inner", "left"])
def test_records_that_no_budget_covers_may_be_context(how: str) -> None:
    (loss,) = price(CONTEXT, Count(with_people(how), (GroupKey("country", ColumnRef("country")),)))
    assert loss.loss.epsilon == 100


def test_the_same_records_are_read_once_a_budget_pays() -> None:
    paid = replace(UNPAID, budgets=(pure(1, "action"), pure(1)))
    assert [loss.loss.epsilon for loss in price(paid, Count(Scan("users")))] == [0, 100]


# --- Descriptions that would forget what was spent ---

MONTH = Unit("user", "window", {"actions": "user_id"}, {"actions": "at"}, "month")
WINDOWED = replace(dataset(), units={"user": MONTH})


def keyed(unit: Unit = PERSON, **keys: str) -> Dataset:
    """Return the dataset, whose tables have households and a second time, with other keys of its unit."""
    household, seen = Column("household", Identifier("integer")), Column("seen", Moment(0, DAY), 0)
    tables = {
        name: replace(table, columns={**table.columns, "household": household, "seen": seen})
        for name, table in dataset().tables.items()
    }
    return replace(dataset(), tables=tables, units={"user": replace(unit, keys=keys)})


def costless(ctx: Context, request: str) -> tuple[tuple[UnitLoss, ...], dict[str, tuple[str, ...]]]:
    """The cost of the charges of these tests, which have no request: a little for every budget."""
    losses = tuple(
        UnitLoss(cap.unit, cap.kind, Pure(Fraction(1, 10)) if cap.kind == "pure" else ZCDP(Fraction(1, 100)))
        for cap in ctx.dataset.budgets
    )
    return losses, {}


def registered(place: Path, first: Dataset, *, spent: bool) -> Ledger:
    ledger = Ledger(place)
    ledger.register(first)
    if spent:
        windows = {"user": ("1970-01-01",)} if first.units["user"].kind == "window" else {}
        ledger.charge(charge_for("q", windows=windows))
    return ledger


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (dataset(), dataset(budgets=(zcdp("1/2"),))),
        (dataset(), replace(dataset(), units={"user": MONTH})),
        (dataset(), dataset(policy="separate", groups=teams())),
        (dataset(), replace(dataset(), units={"person": replace(PERSON, name="person")}, budgets=(pure(1, "person"),))),
        (WINDOWED, replace(WINDOWED, units={"user": replace(MONTH, every="week")})),
        (WINDOWED, replace(WINDOWED, timezone="Asia/Tokyo")),
        (WINDOWED, keyed(replace(MONTH, times={"actions": "seen"}), actions="user_id")),
        (dataset(), keyed(users="household", actions="user_id")),
        (dataset(), keyed(users="user_id")),
        (keyed(users="user_id"), dataset()),
    ],
    ids=["kind", "unit", "policy", "renamed", "every", "time zone", "times", "keys", "a key less", "a key more"],
)
def test_a_budget_that_was_spent_of_stays_as_declared(tmp_path: Path, first: Dataset, then: Dataset) -> None:
    registered(tmp_path / "0", first, spent=False).register(then)
    with pytest.raises(NotAllowed, match="has spent from its budgets"):
        registered(tmp_path / "1", first, spent=True).register(then, privacy_cost=costless)


@pytest.mark.parametrize("first", [dataset(), keyed(users="user_id")], ids=["counted", "held fixed"])
def test_a_table_that_was_removed_comes_back_with_its_key_only(tmp_path: Path, first: Dataset) -> None:
    """A key could otherwise be changed in two steps. A new table may have any key: no earlier answer has read it."""
    ledger = registered(tmp_path / "1", first, spent=True)
    people = {"users": first.tables["users"]}
    ledger.register(replace(first, tables=people, units={"user": PERSON}))
    with pytest.raises(NotAllowed, match=r"actions \(key of user\) must stay as declared"):
        ledger.register(keyed(users="user_id", actions="household"))
    logins = {**people, "logins": replace(first.tables["actions"], name="logins")}
    both = replace(PERSON, keys={"users": "user_id", "logins": "user_id"})
    ledger.register(replace(first, tables=logins, units={"user": both}))
    ledger.register(first)
    assert verify(tmp_path / "1").sound


def test_caps_may_change_and_budgets_be_added_after_spending(tmp_path: Path) -> None:
    ledger = registered(tmp_path / "1", dataset(), spent=True)
    ledger.register(dataset(budgets=(pure(5), zcdp("1/2"))), privacy_cost=costless)


def grouped(red: str, blue: str, names: tuple[str, str] = ("red", "blue"), **changes: Any) -> Dataset:
    """Return the dataset with separate budgets of two groups, whose analysts are given as words."""
    groups = tuple(Group(name, tuple(each.split())) for name, each in zip(names, (red, blue), strict=True))
    return dataset(policy="separate", groups=groups, **changes)


@pytest.mark.parametrize(
    "then",
    [
        grouped("ann bob", "cyd", ("crimson", "blue")),
        grouped("bob", "cyd ann"),
        grouped("bob", "cyd ann", name="view"),
    ],
    ids=["renamed", "moved", "moved in another dataset"],
)
def test_an_account_that_has_asked_stays_in_its_group(tmp_path: Path, then: Dataset) -> None:
    """Regression: it got the budget of another group on top of what it had spent of the first one's."""
    ledger = registered(tmp_path / "0", grouped("ann bob", "cyd"), spent=True)
    for described in (grouped("ann", "cyd bob"), grouped("bob", "cyd"), grouped("ann bob", "cyd eve")):
        ledger.register(described)  # who has not asked may move
    for before in (grouped("ann bob", "cyd"), grouped("bob", "cyd")):
        ledger.register(before)
        with pytest.raises((NotAllowed, InvalidSchema), match=r"account 'ann' (has asked as|belongs to another)"):
            ledger.register(then)
    assert verify(tmp_path / "0").sound
    fresh = registered(tmp_path / "1", grouped("ann bob", "cyd"), spent=False)
    if then.name == "shop":
        fresh.register(then)


def test_an_account_has_one_group_in_all_datasets_of_a_population(tmp_path: Path) -> None:
    ledger = registered(tmp_path / "0", grouped("ann bob", "cyd"), spent=False)
    ledger.register(grouped("ann", "cyd dan", name="view"))
    with pytest.raises(InvalidSchema, match="account 'ann' belongs to another group in dataset"):
        ledger.register(grouped("bob", "cyd ann", name="third"))


def test_datasets_of_one_population_share_the_clock_of_their_windows(tmp_path: Path) -> None:
    ledger = registered(tmp_path / "0", WINDOWED, spent=False)
    with pytest.raises(InvalidSchema, match="another time zone"):
        ledger.register(replace(WINDOWED, name="other", timezone="Asia/Tokyo"))


# --- Options of a mechanism ---


@pytest.mark.parametrize("name", ["kind", "loss", "sensitivity"])
def test_an_option_with_the_name_of_an_argument_is_refused(name: str) -> None:
    asked = Calibrate("discrete_laplace", Pure(Fraction(1)), ((name, Fraction(1)),))
    with pytest.raises(InvalidPlan):
        privacy_cost(
            Context(dataset()),
            Request("shop", (Measurement(Count(LimitRowsPerUnit(Scan("users"), "user", 1)), asked),)),
        )


# --- Too many bounds ---


def test_bounds_times_parts_are_capped() -> None:
    half = Calibrate("discrete_laplace", Pure(Fraction(1, 2)))
    counted = Count(LimitRowsPerUnit(Scan("actions"), "user", EstimatedLimit()))
    find = contributions(Scan("actions"), "user", (Fraction(2), Fraction(4)))
    bound = BoundSearch(find, half, tuple(range(1, 65)))
    parts = tuple(Measurement(counted, half) for _ in range(17))
    with pytest.raises(InvalidPlan, match="combinations of bounds"):
        privacy_cost(Context(dataset()), Request("shop", parts, (bound,)))


LADDER = (1, 2)


@pytest.mark.parametrize(
    "made",
    [
        lambda find: BoundSearch(find, NOISE, (10**50,), "x", BoundRule(LADDER, Fraction(1), 1)),
        lambda find: BoundSearch(find, NOISE, LADDER, "x", BoundRule((1, 10**59), Fraction(1), 1)),
        lambda find: BoundSearch(find, NOISE, LADDER, "x", BoundRule(LADDER, Fraction(10**60), 1)),
        lambda find: BoundSearch(find, NOISE, LADDER, "x", BoundRule(LADDER, Fraction(1), 10**40)),
    ],
    ids=["grid", "points", "noise", "cells"],
)
def test_no_rule_fails_after_the_charge(made: Any) -> None:
    """Numbers that no float holds once made the rule fail when all was paid: a miss for a part in 10^11 of a budget."""
    with pytest.raises(InvalidPlan, match=r"2\^62"):
        made(Count(Scan("users")))


def test_a_bound_that_no_part_uses_is_refused() -> None:
    search = BoundSearch(Count(Scan("users")), Calibrate("discrete_laplace", Pure(1)), LADDER, "x")
    request = Request("shop", (Measurement(Count(Scan("users")), NOISE),), searches=(search,))
    with pytest.raises(InvalidPlan, match="no part uses the bound 'x'"):
        privacy_cost(Context(dataset()), request)


def test_bounds_times_the_plan_are_capped() -> None:
    """A plan is worked out once for each bound that it may have: 36 kB once took the kernel 25 s, before any charge."""
    child: Relation = LimitRowsPerUnit(Scan("users"), "user", EstimatedLimit("x"))
    for _ in range(60):
        child = Filter(child, Compare(">", ColumnRef("age"), LiteralValue(20)))
    find = BoundSearch(
        contributions(Scan("users"), "user", (Fraction(1), Fraction(2))), NOISE, tuple(range(1, 257)), "x"
    )
    part = Measurement(Count(child), Calibrate("discrete_laplace", Pure(1)))
    with pytest.raises(InvalidPlan, match="use fewer bounds"):
        privacy_cost(Context(dataset()), Request("shop", (part, part, part), searches=(find,)))
