"""Charges: every level is charged in one step, amounts are exact, and a refused charge leaves no trace."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from dither.errors import BudgetExceeded, InvalidParameter, LedgerError
from dither.loss import ZCDP, Approximate, Pure
from dither.privacy.ledger import Ledger, Receipt
from dither.privacy.ledger.keys import key
from dither.schema import Unit
from privacy.ledger_cases import ONE, charge_for, dataset, losses, pay, pure, teams, total_spent, zcdp


def test_ten_tenths_are_one_and_the_next_1e_minus_15_is_refused(ledger: Ledger) -> None:
    for number in range(10):
        pay(ledger, charge_for(number, "1/10"))
    assert total_spent(ledger) == [(ONE, 0)]
    with pytest.raises(BudgetExceeded, match="nothing was read"):
        ledger.charge(charge_for("one more", Fraction(1, ONE)))
    assert total_spent(ledger) == [(ONE, 0)]


def test_a_first_charge_reads_nothing_but_what_its_append_checks(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: each looked for a draw of its query, which no new query has, by a query of its own."""
    pay(ledger, charge_for("before"))
    fetch, queries = ledger._store._fetch_all, list[str]()

    def counting(query: str, *values: object) -> list[Any]:
        queries.append(query)
        return fetch(query, *values)

    monkeypatch.setattr(ledger._store, "_fetch_all", counting)
    receipt = ledger.charge(charge_for("new"))
    assert isinstance(receipt, Receipt) and not receipt.again
    assert len(queries) <= 2 and not any("WHERE sequence" in query for query in queries)
    again = ledger.charge(charge_for("new"))
    assert isinstance(again, Receipt) and again.again and again.own == receipt.own
    assert again.sequence == receipt.sequence


def test_a_lone_charge_on_sqlite_is_four_statements(tmp_path: Path) -> None:
    """Regression: the last row and the new question were looked up by two queries, the second through JSON."""
    ledger, statements = Ledger(tmp_path / "l.sqlite"), list[str]()
    ledger.register(dataset(4))
    pay(ledger, charge_for("before"))
    ledger._store._live_connection().set_trace_callback(statements.append)
    ledger.charge(charge_for("new"))
    assert [text.split()[0] for text in statements] == ["BEGIN", "SELECT", "INSERT", "COMMIT"]
    ledger.close()


@pytest.mark.parametrize("parts", [("paid", 7, None), ('é\n"\\', "\ud800", "\x00", -1, 10**30), ("", ""), ("gaps",)])
def test_the_keys_of_state_are_json_lists(parts: tuple[Any, ...]) -> None:
    assert key(*parts) == json.dumps(parts, separators=(",", ":"))


def test_what_is_smaller_than_the_ledgers_unit_is_rounded_up(ledger: Ledger) -> None:
    pay(ledger, charge_for(1, Fraction(1, 10**30)))
    assert total_spent(ledger) == [(1, 0)]


def test_reciprocals_of_primes_neither_grow_nor_drift(tmp_path: Path, tier: Any) -> None:
    ledger = Ledger(tmp_path / "l.sqlite")
    ledger.register(dataset(4))
    primes = [n for n in range(2, 18_000) if all(n % d for d in range(2, int(n**0.5) + 1))]
    primes = primes[: tier.pick(quick=50, test=2000, deep=2000)]
    for prime in primes:
        pay(ledger, charge_for(prime, Fraction(1, prime)))
    exact = sum(Fraction(1, prime) for prime in primes)
    ((total, _),) = total_spent(ledger)
    assert exact <= Fraction(total, ONE) <= exact + Fraction(len(primes), ONE)
    assert max(len(row.body) for row in ledger.rows() if row.kind == "charge") < 1000


def test_a_refused_charge_leaves_no_row_at_any_level(place: str) -> None:
    ledger = Ledger(place)
    ledger.register(dataset(1, groups=teams(caps=(pure("1/2"),), analyst_caps=(pure("1/4"),))))
    pay(ledger, charge_for(1, "1/4"))
    before = ledger.head
    with pytest.raises(BudgetExceeded, match="account ann"):
        ledger.charge(charge_for(2, Fraction(1, ONE)))
    pay(ledger, charge_for(3, "1/4", "bob"))
    with pytest.raises(BudgetExceeded, match=r"group red|account bob"):
        ledger.charge(charge_for(4, Fraction(1, ONE), "bob"))
    pay(ledger, charge_for(5, "1/4", "cyd"))
    pay(ledger, charge_for(6, "1/4", "dan"))
    assert ledger.head.sequence == before.sequence + 3
    assert total_spent(ledger, "ann") == [(ONE, 0)]
    assert total_spent(ledger, "ann", "group") == [(ONE // 2, 0)]
    assert total_spent(ledger, "dan", "analyst") == [(ONE // 4, 0)]


def test_every_level_is_charged_for_every_budget(place: str) -> None:
    both = (pure(1), zcdp(1), pure(2, "row"))
    units = {**dataset().units, "row": Unit("row", "row", {"actions": None})}
    ledger = Ledger(place)
    ledger.register(dataset(budgets=both, units=units, groups=teams(caps=both, analyst_caps=both)))
    cost = (*losses(user=Pure("1/8")), *losses(user=ZCDP("1/128")), *losses(row=Pure("1/4")))
    pay(ledger, charge_for(1, losses=cost))
    balances = ledger.balances("shop", "ann", {})
    assert [(each.level, each.cap.unit, each.cap.kind) for each in balances] == [
        (level, cap.unit, cap.kind) for cap in both for level in ("dataset", "group", "analyst")
    ]
    assert {each.spent[0] for each in balances} == {ONE // 8, ONE // 128, ONE // 4}


def test_a_charge_must_state_a_loss_for_every_budget(place: str) -> None:
    ledger = Ledger(place)
    units = {**dataset().units, "row": Unit("row", "row", {"actions": None})}
    ledger.register(dataset(budgets=(pure(1), pure(1, "row")), units=units))
    with pytest.raises(LedgerError, match=r"no loss for: row"):
        ledger.charge(charge_for(1))


def test_a_loss_that_the_budget_cannot_express_is_refused_by_name(ledger: Ledger) -> None:
    before = ledger.head
    wrong = [replace(each, kind="pure") for each in losses(user=ZCDP("1/10"))]
    with pytest.raises(InvalidParameter, match="zcdp"):
        ledger.charge(charge_for(1, losses=tuple(wrong)))
    with pytest.raises((InvalidParameter, BudgetExceeded)):
        ledger.charge(charge_for(1, losses=(replace(wrong[0], loss=Approximate("1/10", "1/1000")),)))
    assert ledger.head == before


def test_one_person_in_every_part_pays_the_sum(ledger: Ledger) -> None:
    """The ledger has no parallel composition: charges for disjoint parts of the data add up."""
    for country in ("DE", "FR", "other"):
        pay(ledger, charge_for(f"count where country = {country}", "1/5"))
    assert total_spent(ledger) == [(3 * ONE // 5, 0)]


def test_receipts_come_from_charges_only_and_each_step_is_drawn_once(ledger: Ledger) -> None:
    with pytest.raises(LedgerError):
        Receipt(object(), 1, pay(ledger, charge_for(0)).own)
    receipt = pay(ledger, charge_for(1))
    receipt.redeem("part 0")
    with pytest.raises(LedgerError):
        receipt.redeem("part 0")


def test_an_answer_needs_a_charge(ledger: Ledger) -> None:
    receipt = pay(ledger, charge_for(1))
    receipt.own = replace(receipt.own, row=1)  # the dataset's row
    with pytest.raises(LedgerError, match="refer to a charge"):
        ledger.record(receipt, "forged")


@pytest.mark.parametrize("cap", [1000, 4000])
def test_a_cap_is_compared_exactly_where_floats_are_too_coarse(tmp_path: Path, cap: int) -> None:
    """The neighbours of 1e18 among floats are 128 apart: a cap compared in floats lets 1e-15 more through."""
    assert float(cap * ONE + 1) == float(cap * ONE)
    ledger = Ledger(tmp_path / "l.sqlite")
    ledger.register(dataset(cap))
    pay(ledger, charge_for("most", cap - 1))
    too_much, exact = charge_for("too much", 1 + Fraction(1, ONE)), charge_for("exact", 1)
    assert ledger.preview(too_much) == (False, False)
    with pytest.raises(BudgetExceeded, match="nothing was read"):
        ledger.charge(too_much)
    assert total_spent(ledger) == [((cap - 1) * ONE, 0)]
    assert ledger.preview(exact) == (False, True)
    pay(ledger, exact)
    assert total_spent(ledger) == [(cap * ONE, 0)]
    assert ledger.preview(charge_for("one more", Fraction(1, ONE))) == (False, False)
