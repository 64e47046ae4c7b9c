"""Datasets, claims and a held clock for the tests of ledger, pacing and kernel."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

from dither.loss import ZCDP, Loss, Pure, Rational, rational
from dither.privacy.ledger import Charge, Ledger, Receipt
from dither.privacy.protocol import UnitLoss
from dither.schema import BudgetCap, Category, Column, Dataset, Group, Identifier, Moment, Number, Source, Table, Unit

DAY = 86_400_000_000


def pure(epsilon: Rational, unit: str = "user") -> BudgetCap:
    return BudgetCap(unit, "pure", epsilon=rational(epsilon))


def zcdp(rho: Rational, unit: str = "user", delta: Rational = 0) -> BudgetCap:
    return BudgetCap(unit, "zcdp", rho=rational(rho), delta=rational(delta))


def dataset(epsilon: Rational = 1, **changes: Any) -> Dataset:
    """Two private tables of one population; `changes` replace fields."""
    people = {
        "user_id": Column("user_id", Identifier("integer")),
        "age": Column("age", Number(Fraction(18), Fraction(65)), Fraction(18)),
        "country": Column("country", Category(("DE", "FR", "other")), "other"),
    }
    actions = {
        "user_id": Column("user_id", Identifier("integer")),
        "kind": Column("kind", Category(("view", "click", "share")), "view"),
        "at": Column("at", Moment(0, 364 * DAY), 0),
    }
    made = Dataset(
        name="shop",
        population="customers",
        data_version="1",
        tables={
            "users": Table("users", True, people, Source("parquet", {"path": "users.parquet"}), unique="user_id"),
            "actions": Table("actions", True, actions, Source("parquet", {"path": "actions.parquet"})),
        },
        units={"user": Unit("user", "user", {"users": "user_id", "actions": "user_id"})},
        budgets=(pure(epsilon),),
    )
    return replace(made, **changes)


def teams(**caps: Any) -> tuple[Group, ...]:
    """Two groups of two analysts."""
    return (Group("red", ("ann", "bob"), **caps), Group("blue", ("cyd", "dan"), **caps))


@dataclass
class AnyVersion:
    """Stands for the version that the ledger holds."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


def claim(question: object, epsilon: Rational = "1/10", account: str = "ann", **changes: Any) -> Charge:
    """A charge of a pure loss for a question that a text tells apart, of whatever version the ledger holds."""
    made = Charge(
        dataset="shop",
        version=AnyVersion(),  # type: ignore[arg-type]
        account=account,
        digest=hashlib.sha256(str(question).encode()).hexdigest(),
        request=f"question {question}",
        losses=(UnitLoss("user", "pure", Pure(rational(epsilon))),),
        windows={},
    )
    return replace(made, **changes)


def losses(**by_unit: Loss) -> tuple[UnitLoss, ...]:
    """Losses by unit, each as the budgets of its own kind count it."""
    kinds: Mapping[type, Any] = {Pure: "pure", ZCDP: "zcdp"}
    return tuple(UnitLoss(unit, kinds[type(loss)], loss) for unit, loss in by_unit.items())


def paid(ledger: Ledger, wanted: Charge) -> Receipt:
    """A charge that must be fresh."""
    receipt = ledger.charge(wanted)
    assert isinstance(receipt, Receipt)
    return receipt


def spent(ledger: Ledger, account: str = "ann", level: str = "dataset") -> list[tuple[int, ...]]:
    """What was spent at a level, in 1e-15."""
    return [each.spent for each in ledger.balances("shop", account, {}) if each.level == level]


@dataclass
class HeldClock:
    """Time that moves only when a test, or a wait, moves it."""

    now: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    ticks: int = 0
    waits: list[int] = field(default_factory=list)

    def utc(self) -> datetime:
        return self.now

    def milliseconds(self) -> int:
        return self.ticks

    def wait_until(self, instant: int) -> None:
        self.waits.append(instant)
        self.ticks = max(self.ticks, instant)

    def pass_days(self, days: float) -> None:
        self.now += timedelta(days=days)


def monthly_units() -> dict[str, Unit]:
    """People, and people's months."""
    return {**dataset().units, "month": Unit("month", "window", {"actions": "user_id"}, {"actions": "at"}, "month")}
