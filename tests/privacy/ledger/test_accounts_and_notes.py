"""Accounts and their tokens; refusals and misses, which are noted outside the hash chain."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from dither.errors import InvalidParameter, NotAllowed, NotFound
from dither.privacy.ledger import Ledger
from dither.privacy.ledger.maintenance import verify
from privacy.ledger_cases import ONE, ManualClock, charge_for, dataset, pay, total_spent


def test_tokens_are_hashed_expire_and_end(place: str) -> None:
    clock = ManualClock()
    ledger = Ledger(place, clock)
    token = ledger.add_account("ann", "analyst", days=30)
    assert ledger.authenticate(token).name == "ann"
    assert all(token not in row.body for row in ledger.rows())
    second = ledger.add_account("ann", "auditor")
    assert ledger.authenticate(second).role == "auditor"
    for wrong in (token, "", "dither_", second[:-1], second + "x"):
        with pytest.raises(NotAllowed, match="not valid"):
            ledger.authenticate(wrong)
    third = ledger.add_account("ann", "analyst", days=30)
    clock.pass_days(31)
    with pytest.raises(NotAllowed):
        ledger.authenticate(third)
    fourth = ledger.add_account("ann", "analyst")
    ledger.revoke_account("ann")
    with pytest.raises(NotAllowed):
        ledger.authenticate(fourth)
    with pytest.raises(NotFound):
        ledger.revoke_account("nobody")
    with pytest.raises(InvalidParameter):
        ledger.add_account("kernel", "analyst")
    with pytest.raises(InvalidParameter):
        ledger.add_account("ann", "king")


def test_turning_the_clock_back_revives_no_token_and_breaks_no_chain(place: str) -> None:
    clock = ManualClock()
    ledger = Ledger(place, clock)
    ledger.register(dataset(1))
    token = ledger.add_account("ann", "analyst", days=1)
    clock.pass_days(2)
    pay(ledger, charge_for(1))
    clock.now -= timedelta(days=400)
    pay(ledger, charge_for(2))
    with pytest.raises(NotAllowed):
        ledger.authenticate(token)
    times = [row.time for row in ledger.rows()]
    assert times == sorted(times)
    assert total_spent(ledger) == [(ONE // 5, 0)]
    assert verify(place).sound


def test_refusals_are_kept_apart_and_do_not_pile_up(place: str) -> None:
    ledger = Ledger(place)
    ledger.register(dataset(1))
    before = ledger.head
    ledger.record_refusal("ann", "shop", "budget_exceeded")
    assert ledger.head == before
    (note,) = ledger.refusals("shop")
    assert json.loads(note.body) == {"account": "ann", "reason": "budget_exceeded"}


def test_misses_survive_a_restart_until_unlocked(place: str) -> None:
    ledger = Ledger(place)
    for _ in range(3):
        ledger.record_miss("shop", "class")
    ledger.close()
    later = Ledger(place)
    assert later.misses("shop")[1] == 3
    later.unlock("shop")
    later.record_miss("shop", "class")
    assert (len(later.misses("shop")[0]), later.misses("shop")[1]) == (4, 1)


def test_a_latency_reset_clears_the_earlier_misses_of_a_dataset(place: str) -> None:
    """A latency reset applies by time class and dataset and survives a restart; the count of misses stays."""
    ledger = Ledger(place)
    for name in ("class", "class", "other"):
        ledger.record_miss("shop", name)
    ledger.record_miss("elsewhere", "class")
    assert [ledger.latency_step("shop", name) for name in ("class", "other", "none")] == [2, 1, 0]
    ledger.reset_latency("shop")
    ledger.close()
    later = Ledger(place)
    later.record_miss("shop", "class")
    assert [later.latency_step("shop", name) for name in ("class", "other")] == [1, 0]
    assert later.latency_step("elsewhere", "class") == 1 and later.misses("shop")[1] == 4
