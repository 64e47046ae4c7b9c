"""State: snapshots, batches that presume queries to be new, state keys and bounded caches."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from dither.errors import BudgetExceeded
from dither.loss import Pure, to_json
from dither.privacy.ledger import Ledger, Receipt, log
from dither.privacy.ledger.keys import key
from dither.privacy.ledger.maintenance import verify
from dither.privacy.ledger.populations import Population, budget_cost
from dither.privacy.ledger.store import open_store
from privacy.ledger_cases import ONE, charge_for, dataset, pay, recorded, total_spent


def test_a_snapshot_and_the_rows_after_it_are_the_whole_state(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three ledgers write in turn, with a snapshot every third row: no row is lost or counted twice."""
    monkeypatch.setattr(log, "SNAPSHOT_ROWS", 3)
    Ledger(place).register(dataset(1))
    first, second = Ledger(place), Ledger(place)
    for number in range(20):
        ledger = (first, second, Ledger(place))[number % 3]
        ledger.charge(charge_for(number, "1/100"))
        assert total_spent(ledger) == [((number + 1) * ONE // 100, 0)]
        assert verify(place).sound
    assert open_store(place).state_at() >= 18
    assert [isinstance(first.charge(charge_for(number, "1/100")), Receipt) for number in range(20)] == [True] * 20
    assert total_spent(second) == [(ONE // 5, 0)]


def charge_together(ledger: Ledger, *charges: Any) -> list[Any]:
    """Decide and write charges in one batch, as for clients that wait together."""
    writes: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            ledger,
            "_submit",
            lambda decide, needed_keys: writes.append(log.PendingWrite(decide, needed_keys)),
        )
        for each in charges:
            ledger.charge(each)
    ledger._write_with_retry(writes)
    return writes


def test_a_question_that_only_the_snapshot_knows_is_not_taken_for_new(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queries are presumed new and the commit checks it: alone, beside new queries, or if nothing is written."""
    monkeypatch.setattr(log, "SNAPSHOT_ROWS", 1)
    first = Ledger(place)
    first.register(dataset(1))
    known = pay(first, charge_for("q", "9/10", request_id="r"))
    first.record(known, "the answer")
    answer = recorded(known.sequence, "the answer", paid=True)
    again, retried = charge_for("q", "9/10"), charge_for("q", "9/10", request_id="r")
    assert Ledger(place).charge(again) == answer
    assert Ledger(place).charge(retried) == answer
    fresh, repeated, greedy = charge_together(Ledger(place), charge_for("p", "1/20"), retried, charge_for("g", "1/2"))
    assert isinstance(fresh.result(), Receipt)
    assert repeated.result() == answer
    with pytest.raises(BudgetExceeded):
        greedy.result()
    assert total_spent(first) == [(19 * ONE // 20, 0)]
    assert verify(place).sound


def test_keys_of_state_are_unambiguous() -> None:
    assert key("a", "b") != key("a,b") and key("a", 'b","c') != key("a", "b", "c") and key("a", 1) != key("a", "1")


def test_caches_of_keys_balances_and_costs_are_bounded() -> None:
    # Each query has its own keys and each set of windows its own totals: neither cache may grow without bound.
    for number in range(3000):
        key("question", str(number))
    assert key.cache_info().currsize <= 1 << 10
    population = Population("people", (dataset(1),))
    for number in range(3000):
        population.balances_for((), f"a{number}", {}, fresh=True)
        population.costs([["user", "pure", to_json(Pure(Fraction(1, number + 1)))]])
    assert max(len(population._balances), len(population._costs)) < 300
    assert budget_cost.cache_info().currsize <= 1 << 10
