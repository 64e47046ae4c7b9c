"""Budgets: populations share them, descriptions cannot bypass them, and each window has its own."""

from __future__ import annotations

from fractions import Fraction

import pytest

from dither.errors import BudgetExceeded, InvalidSchema, LedgerError
from dither.loss import Pure
from dither.privacy.ledger import Ledger
from dither.schema import Group, Unit
from privacy.ledger_cases import (
    ONE,
    charge_for,
    charge_for_months,
    dataset,
    losses,
    monthly,
    pay,
    pure,
    teams,
    total_spent,
    zcdp,
)


def test_a_view_of_the_same_people_shares_their_budget(place: str) -> None:
    ledger = Ledger(place)
    ledger.register(dataset(1))
    ledger.register(dataset(5, name="view"))
    pay(ledger, charge_for(1, "3/4"))
    with pytest.raises(BudgetExceeded):
        ledger.charge(charge_for(2, "1/2", dataset="view"))
    pay(ledger, charge_for(3, "1/4", dataset="view"))
    assert total_spent(ledger) == [(ONE, 0)]


def test_nobody_escapes_by_another_name_unit_or_file(ledger: Ledger) -> None:
    pay(ledger, charge_for(1, "3/4"))
    with pytest.raises(InvalidSchema, match="another population"):
        ledger.register(dataset(1, population="fresh"))
    with pytest.raises(InvalidSchema, match="another population holds these records"):
        ledger.register(dataset(1, name="fresh", population="fresh"))
    units = {**dataset().units, "row": Unit("row", "row", {"actions": None})}
    with pytest.raises(InvalidSchema, match="other budgets"):
        ledger.register(dataset(name="rows", budgets=(pure(9, "row"),), units=units))
    with pytest.raises(InvalidSchema, match="other budgets or another policy"):
        ledger.register(dataset(name="view", policy="separate", groups=teams()))
    with pytest.raises(InvalidSchema, match="another kind"):
        ledger.register(dataset(name="view", units={"user": Unit("user", "row", {"actions": None})}))


def test_descriptions_without_a_usable_budget_are_refused(place: str) -> None:
    ledger = Ledger(place)
    with pytest.raises(InvalidSchema, match="at least one budget"):
        ledger.register(dataset(budgets=()))
    with pytest.raises(InvalidSchema, match="not declared"):
        ledger.register(dataset(budgets=(pure(1, "nobody"),)))
    with pytest.raises(InvalidSchema, match="one group"):
        ledger.register(dataset(policy="separate", groups=(Group("a", ("x",)), Group("b", ("x",)))))
    with pytest.raises(InvalidSchema, match="no budget for"):
        ledger.register(dataset(groups=teams(caps=(zcdp(1),))))
    assert ledger.head.sequence == 0


@pytest.mark.parametrize("names", [("", "blue"), ("red ", "blue"), (" red", "blue"), ("red\n", "blue"), ("red", "red")])
def test_group_names_are_those_that_a_description_in_yaml_may_have(place: str, names: tuple[str, str]) -> None:
    """Regression: group "" saw the charges of all others, and late answers of "red " were not counted."""
    ledger = Ledger(place)
    with pytest.raises(InvalidSchema, match="each group needs a name of its own, of letters, digits and underscores"):
        ledger.register(dataset(policy="separate", groups=(Group(names[0], ("ann",)), Group(names[1], ("cyd",)))))
    assert ledger.head.sequence == 0


def test_budget_changes_are_rows_and_reach_back(ledger: Ledger) -> None:
    pay(ledger, charge_for(1, "3/4"))
    ledger.register(dataset("1/2"))
    with pytest.raises(BudgetExceeded, match="0 left"):
        ledger.charge(charge_for(2, Fraction(1, ONE)))
    ledger.register(dataset(1, groups=teams(analyst_caps=(pure("3/4"),))))
    with pytest.raises(BudgetExceeded, match="account ann"):
        ledger.charge(charge_for(3, "1/8"))
    assert [row.kind for row in ledger.rows()] == ["dataset", "charge", "dataset", "dataset"]


def test_each_window_has_a_budget_of_its_own(place: str) -> None:
    ledger = Ledger(place)
    ledger.register(monthly())
    pay(ledger, charge_for_months("q", "3/4", "2026-01", "2026-02"))
    with pytest.raises(BudgetExceeded, match="window 2026-02"):
        ledger.charge(charge_for_months("p", "1/2", "2026-02", "2026-03"))
    pay(ledger, charge_for_months("p", "1/2", "2026-03"))
    pay(ledger, charge_for_months("r", "1/4", "2026-01"))
    balances = ledger.balances("shop", "ann", {"month": ["2026-01", "2026-02", "2026-03"]})
    assert [each.spent[0] * 4 // ONE for each in balances] == [4, 3, 2]
    with pytest.raises(LedgerError, match="windows"):
        ledger.charge(charge_for("w", losses=losses(month=Pure("1/2"))))
