"""Gaps: the loss of a lost ledger segment counts once against every total, known then or only later."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from dither.errors import BudgetExceeded, InvalidParameter
from dither.loss import ZCDP, Pure, rational
from dither.privacy.ledger import KERNEL, Ledger
from dither.privacy.ledger.maintenance import backup, restore, verify
from dither.privacy.protocol import LedgerHead, UnitLoss
from dither.schema import Group
from privacy.ledger_cases import (
    ONE,
    TamperedCopy,
    charge_for,
    charge_for_months,
    dataset,
    execute,
    monthly,
    one_analyst,
    other_population,
    pay,
    pure,
    teams,
    total_spent,
    zcdp,
)


def test_a_gap_of_unknown_size_spends_everything(place: str) -> None:
    ledger = Ledger(place)
    ledger.register(monthly(groups=teams()))
    ledger.mark_gap(LedgerHead(99, "a" * 64), None)
    for account in ("ann", "cyd"):
        for month in ("2026-01", "2031-12"):
            with pytest.raises(BudgetExceeded):
                ledger.charge(replace(charge_for_months(f"{account}{month}", "1/1000", month), account=account))
    assert verify(place).sound


LOST_REGISTRATIONS: dict[str, tuple[list[Any], Any, Any]] = {
    "the first population": ([], dataset(1), charge_for(1, "7/8")),
    "a population": ([dataset(1)], other_population(), charge_for(1, "7/8", dataset="shop2")),
    "a group": ([one_analyst()], dataset(1, policy="separate", groups=teams()), charge_for(1, "7/8", "cyd")),
    "a capped group": (
        [one_analyst("shared")],
        dataset(9, groups=(Group("red", ("ann",)), Group("blue", ("cyd",), caps=(pure(1),)))),
        charge_for(1, "7/8", "cyd"),
    ),
    "an analyst": (
        [one_analyst("shared", analyst_caps=(pure(1),))],
        dataset(9, groups=(Group("red", ("ann", "bob"), analyst_caps=(pure(1),)),)),
        charge_for(1, "7/8", "bob"),
    ),
    "a budget": (
        [dataset(1)],
        dataset(1, budgets=(pure(1), zcdp("1/2"))),
        charge_for(1, losses=(UnitLoss("user", "pure", Pure("1/8")), UnitLoss("user", "zcdp", ZCDP("31/64")))),
    ),
    "a window": (
        [dataset(1)],
        replace(other_population(), units=monthly().units, budgets=monthly().budgets),
        charge_for_months("q", "7/8", "2031-12"),
    ),
}


@pytest.mark.parametrize("left", ["3/4", None])
@pytest.mark.parametrize("what", LOST_REGISTRATIONS)
def test_what_was_registered_in_a_lost_stretch_starts_with_what_the_gap_spent(
    tmp_path: Path, what: str, left: str | None
) -> None:
    """Regression: totals that the backup did not know started at zero after the gap, and were spent twice."""
    before, lost, asked = LOST_REGISTRATIONS[what]
    asked = replace(asked, dataset=lost.name)
    ledger, back = Ledger(tmp_path / "l"), tmp_path / "back"
    for each in before:
        ledger.register(each)
    backup(tmp_path / "l", tmp_path / "copy")
    ledger.register(lost)
    pay(ledger, asked)
    restore(tmp_path / "copy", back)
    restored = Ledger(back)
    restored.mark_gap(ledger.head, None if left is None else Pure(1 - rational(left)))
    restored.close()  # writes the gap to the snapshot
    restored = Ledger(back)
    restored.register(lost)
    restored.register(lost)
    with pytest.raises(BudgetExceeded):
        restored.charge(asked)
    within = Fraction(1, ONE) if left is None else rational(left)
    kinds = {"pure": Pure(within), "zcdp": ZCDP(within / 2)}
    affordable = replace(asked, losses=tuple(replace(each, loss=kinds[each.kind]) for each in asked.losses))
    assert restored.preview(affordable) == (False, left is not None)
    again = Ledger(back)
    assert again.preview(affordable) == restored.preview(affordable)
    assert verify(back).sound
    restored.close()
    assert verify(back).sound


def test_a_total_holds_every_gap_once(place: str) -> None:
    """A group counts each gap once, however often it leaves and returns, and even if it was absent at the gap."""
    ledger, both = Ledger(place), dataset(1, policy="separate", groups=teams())
    for number, listed in enumerate((both, one_analyst(), both)):
        ledger.register(listed)
        ledger.mark_gap(LedgerHead(99 + number, "a" * 64), Pure("1/8"))
    for listed in (one_analyst(), both, replace(both, data_version="2")):
        ledger.register(listed)
    for account in ("ann", "cyd"):
        assert total_spent(ledger, account, "group") == [(3 * ONE // 8, 0)]
    assert verify(place).sound


def test_an_analyst_who_is_capped_only_after_a_gap_starts_with_it(place: str) -> None:
    """An uncapped account's spending is counted from the start; the gap is added once the account has a cap."""
    ledger = Ledger(place)
    ledger.register(dataset(1))
    pay(ledger, charge_for(1, "1/4"))
    ledger.mark_gap(LedgerHead(99, "a" * 64), Pure("1/4"))
    pay(ledger, charge_for(2, "1/8"))
    ledger.register(one_analyst("shared", analyst_caps=(pure(1),)))
    assert total_spent(ledger, "ann", "analyst") == total_spent(ledger) == [(5 * ONE // 8, 0)]
    assert verify(place).sound


def test_a_gap_that_a_later_budget_cannot_count_keeps_it_out(place: str) -> None:
    ledger = Ledger(place)
    ledger.register(dataset(1, budgets=(zcdp(1),)))
    ledger.mark_gap(LedgerHead(99, "a" * 64), ZCDP("1/4"))
    with pytest.raises(InvalidParameter, match="budget of kind pure cannot take this zcdp loss"):
        ledger.register(other_population())
    ledger.register(other_population(budgets=(zcdp(1),)))
    assert [each.spent for each in ledger.balances("shop2", "ann", {})] == [(ONE // 4, 0)]


def test_a_gap_that_was_wiped_from_the_state_is_found(tmp_path: Path) -> None:
    place = tmp_path / "l.sqlite"
    ledger = Ledger(place)
    ledger.register(dataset(1))
    ledger.mark_gap(LedgerHead(99, "a" * 64), Pure("1/4"))
    ledger.close()
    for change in ("DELETE FROM state", "UPDATE state SET value = '7'"):
        for kept in ('["gaps"]', '["gaps",_%'):
            with TamperedCopy(place, tmp_path) as copy:
                execute(copy, f"{change} WHERE key LIKE '{kept}'")
                assert "running totals" in verify(copy).problem


def test_a_gap_changes_nobodys_later_share(place: str) -> None:
    """The kernel's own queries are paid by the groups and not by their analysts, before and after a gap."""
    ledger = Ledger(place)
    groups = tuple(Group(name, (account,), analyst_caps=(pure(1),)) for name, account in (("a", "ann"), ("b", "bob")))
    ledger.register(dataset(1, policy="separate", groups=groups))
    ledger.mark_gap(LedgerHead(99, "a" * 64), Pure("1/4"))
    pay(ledger, charge_for("size", "1/8", KERNEL))
    assert total_spent(ledger, "ann", "group") == [(3 * ONE // 8, 0)]
    assert total_spent(ledger, "ann", "analyst") == [(ONE // 4, 0)]
    ledger.close()
    assert total_spent(Ledger(place), "ann", "analyst") == [(ONE // 4, 0)]
    assert verify(place).sound
