"""Datasets, charges and a manual clock for the tests of the ledger, pacing and the kernel."""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

from dither.loss import ZCDP, Loss, Pure, Rational, rational
from dither.privacy.ledger import Charge, Ledger, OwnCharge, Receipt, RecordedAnswer
from dither.privacy.protocol import UnitLoss
from dither.schema import BudgetCap, Category, Column, Dataset, Group, Identifier, Moment, Number, Source, Table, Unit

DAY = 86_400_000_000
ONE = 10**15  # a total of 1, in the units of the ledger


def pure(epsilon: Rational, unit: str = "user") -> BudgetCap:
    return BudgetCap(unit, "pure", epsilon=rational(epsilon))


def zcdp(rho: Rational, unit: str = "user", delta: Rational = 0) -> BudgetCap:
    return BudgetCap(unit, "zcdp", rho=rational(rho), delta=rational(delta))


def dataset(epsilon: Rational = 1, **changes: Any) -> Dataset:
    """Return a dataset of two private tables; `changes` replace its fields."""
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
    """Return two groups of two analysts each."""
    return (Group("red", ("ann", "bob"), **caps), Group("blue", ("cyd", "dan"), **caps))


@dataclass
class AnyVersion:
    """A version that equals every version, so that the ledger accepts a charge for its current one."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


def charge_for(question: object, epsilon: Rational = "1/10", account: str = "ann", **changes: Any) -> Charge:
    """Return a charge of a pure loss for a query, identified by a text, on the ledger's current version."""
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
    """Return unit losses of the kind of each loss."""
    kinds: Mapping[type, Any] = {Pure: "pure", ZCDP: "zcdp"}
    return tuple(UnitLoss(unit, kinds[type(loss)], loss) for unit, loss in by_unit.items())


def pay(ledger: Ledger, wanted: Charge) -> Receipt:
    """Charge the ledger for a query that must be new; return the receipt."""
    receipt = ledger.charge(wanted)
    assert isinstance(receipt, Receipt)
    return receipt


def recorded(sequence: int, release: str, *, paid: bool) -> RecordedAnswer:
    """Return a recorded answer to compare with; the account's own charge is not compared."""
    return RecordedAnswer(sequence, release, paid, OwnCharge(0, 0, "", "", ()))


def total_spent(ledger: Ledger, account: str = "ann", level: str = "dataset") -> list[tuple[int, ...]]:
    """Return the totals spent at a level, in units of 1e-15."""
    return [each.spent for each in ledger.balances("shop", account, {}) if each.level == level]


@dataclass
class ManualClock:
    """A clock that moves only when a test or a wait moves it."""

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
    """Return units for people and for the months of people."""
    return {**dataset().units, "month": Unit("month", "window", {"actions": "user_id"}, {"actions": "at"}, "month")}


def monthly(**changes: Any) -> Any:
    units = {"month": Unit("month", "window", {"actions": "user_id"}, {"actions": "at"}, "month")}
    return dataset(budgets=(pure(1, "month"),), units=units, **changes)


def charge_for_months(question: str, epsilon: str, *months: str) -> Any:
    return charge_for(question, losses=losses(month=Pure(epsilon)), windows={"month": months})


def busy_ledger(place: str) -> Ledger:
    """Return a ledger with dataset, account, charge and answer rows."""
    ledger = Ledger(place, ManualClock())
    ledger.register(dataset(1, groups=teams(), policy="separate"))
    ledger.add_account("ann", "analyst", days=3)
    ledger.record(pay(ledger, charge_for("q", "1/4", request_id="r")), "the answer")
    ledger.charge(charge_for("q", "1/4", "cyd"))
    pay(ledger, charge_for("p", "1/8", "dan"))
    return ledger


class TamperedCopy:
    """A copy of a SQLite ledger without the triggers that protect its rows."""

    def __init__(self, place: Path, scratch: Path) -> None:
        self._copy = scratch / "copy.sqlite"
        for old in scratch.glob("copy.sqlite*"):
            old.unlink()
        shutil.copy(place, self._copy)

    def __enter__(self) -> Path:
        execute(self._copy, "DROP TRIGGER rows_kept")
        execute(self._copy, "DROP TRIGGER rows_stay")
        return self._copy

    def __exit__(self, *_: object) -> None:
        pass


def execute(place: Path, statement: str, *values: object) -> None:
    connection = sqlite3.connect(place)
    with connection:
        connection.execute(statement, values)
    connection.close()


def other_population(**changes: Any) -> Any:
    """Return a dataset of another population."""
    built = dataset(1, name="shop2", population="others", **changes)
    tables = {
        name: replace(table, source=Source("parquet", {"path": f"2{name}"})) for name, table in built.tables.items()
    }
    return replace(built, tables=tables)


def one_analyst(policy: str = "separate", **caps: Any) -> Any:
    """Return a dataset with one group of one analyst."""
    return dataset(1, policy=policy, groups=(Group("red", ("ann",), **caps),))
