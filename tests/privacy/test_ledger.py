"""The ledger: every level charged in one durable step, nothing refunded, nothing forged, on SQLite and PostgreSQL."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from dither.errors import BudgetExceeded, InvalidParameter, InvalidSchema, LedgerError, NotAllowed, NotFound
from dither.loss import ZCDP, Approximate, Pure, rational, to_json
from dither.privacy.ledger import KERNEL, Ledger, Receipt, RecordedAnswer
from dither.privacy.ledger import ledger as chain
from dither.privacy.ledger import log as writing
from dither.privacy.ledger.maintenance import backup, restore, verify
from dither.privacy.ledger.state import Population, budget_cost, canonical, key
from dither.privacy.ledger.store import FORMAT, PostgresStore, SqliteStore, Store, chain_row, open_store
from dither.privacy.protocol import LedgerHead, UnitLoss
from dither.schema import Group, Source, Unit
from privacy.ledger_cases import HeldClock, claim, dataset, losses, paid, pure, spent, teams, zcdp

ONE = 10**15
FIXTURES = Path(__file__).parent / "fixtures"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.tier("test"))])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a ledger can be made: the same tests run on both databases."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_database"))
    return str(tmp_path / "ledger.sqlite")


@pytest.fixture
def ledger(place: str) -> Iterator[Ledger]:
    made = Ledger(place)
    made.register(dataset(1))
    yield made
    made.close()


# --- Charges ---


def test_ten_tenths_are_one_and_the_next_1e_minus_15_is_refused(ledger: Ledger) -> None:
    for number in range(10):
        paid(ledger, claim(number, "1/10"))
    assert spent(ledger) == [(ONE, 0)]
    with pytest.raises(BudgetExceeded, match="nothing was read"):
        ledger.charge(claim("one more", Fraction(1, ONE)))
    assert spent(ledger) == [(ONE, 0)]


def test_what_is_smaller_than_the_ledgers_unit_is_rounded_up(ledger: Ledger) -> None:
    paid(ledger, claim(1, Fraction(1, 10**30)))
    assert spent(ledger) == [(1, 0)]


def test_reciprocals_of_primes_neither_grow_nor_drift(tmp_path: Path, tier: Any) -> None:
    ledger = Ledger(tmp_path / "l.sqlite")
    ledger.register(dataset(4))
    primes = [n for n in range(2, 18_000) if all(n % d for d in range(2, int(n**0.5) + 1))]
    primes = primes[: tier.pick(quick=50, test=2000, deep=2000)]
    for prime in primes:
        paid(ledger, claim(prime, Fraction(1, prime)))
    exact = sum(Fraction(1, prime) for prime in primes)
    ((total, _),) = spent(ledger)
    assert exact <= Fraction(total, ONE) <= exact + Fraction(len(primes), ONE)
    assert max(len(row.body) for row in ledger.rows() if row.kind == "charge") < 1000


def test_a_refused_charge_leaves_no_row_at_any_level(place: str) -> None:
    ledger = Ledger(place)
    ledger.register(dataset(1, groups=teams(caps=(pure("1/2"),), analyst_caps=(pure("1/4"),))))
    paid(ledger, claim(1, "1/4"))
    before = ledger.head
    with pytest.raises(BudgetExceeded, match="account ann"):
        ledger.charge(claim(2, Fraction(1, ONE)))
    paid(ledger, claim(3, "1/4", "bob"))
    with pytest.raises(BudgetExceeded, match=r"group red|account bob"):
        ledger.charge(claim(4, Fraction(1, ONE), "bob"))
    paid(ledger, claim(5, "1/4", "cyd"))
    paid(ledger, claim(6, "1/4", "dan"))
    assert ledger.head.sequence == before.sequence + 3
    assert spent(ledger, "ann") == [(ONE, 0)]
    assert spent(ledger, "ann", "group") == [(ONE // 2, 0)]
    assert spent(ledger, "dan", "analyst") == [(ONE // 4, 0)]


def test_every_level_is_charged_for_every_budget(place: str) -> None:
    both = (pure(1), zcdp(1), pure(2, "row"))
    units = {**dataset().units, "row": Unit("row", "row", {"actions": None})}
    ledger = Ledger(place)
    ledger.register(dataset(budgets=both, units=units, groups=teams(caps=both, analyst_caps=both)))
    cost = (*losses(user=Pure("1/8")), *losses(user=ZCDP("1/128")), *losses(row=Pure("1/4")))
    paid(ledger, claim(1, losses=cost))
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
        ledger.charge(claim(1))


def test_a_loss_that_the_budget_cannot_express_is_refused_by_name(ledger: Ledger) -> None:
    before = ledger.head
    wrong = [replace(each, kind="pure") for each in losses(user=ZCDP("1/10"))]
    with pytest.raises(InvalidParameter, match="zcdp"):
        ledger.charge(claim(1, losses=tuple(wrong)))
    with pytest.raises((InvalidParameter, BudgetExceeded)):
        ledger.charge(claim(1, losses=(replace(wrong[0], loss=Approximate("1/10", "1/1000")),)))
    assert ledger.head == before


def test_one_person_in_every_part_pays_the_sum(ledger: Ledger) -> None:
    """Batches, WHERE-split questions and disjoint keys: the ledger knows no parallel composition, each charge adds."""
    for country in ("DE", "FR", "other"):
        paid(ledger, claim(f"count where country = {country}", "1/5"))
    assert spent(ledger) == [(3 * ONE // 5, 0)]


# --- The same question, retries, versions ---


def test_the_same_question_costs_nothing_twice_under_a_shared_budget(place: str) -> None:
    ledger = Ledger(place)
    ledger.register(dataset(1, groups=teams()))
    receipt = paid(ledger, claim("q", "1/2"))
    assert ledger.record(receipt, "the answer") == "the answer"
    for account in ("ann", "bob", "cyd"):
        again = ledger.charge(claim("q", "1/2", account))
        assert again == RecordedAnswer(receipt.sequence, "the answer", paid=True)
    assert spent(ledger) == [(ONE // 2, 0)]


def test_a_second_group_pays_for_the_recorded_answer_without_a_redraw(place: str) -> None:
    ledger = Ledger(place)
    ledger.register(dataset(1, policy="separate", groups=teams()))
    receipt = paid(ledger, claim("q", "3/4"))
    ledger.record(receipt, "the answer")
    assert ledger.charge(claim("q", "3/4", "bob")) == RecordedAnswer(receipt.sequence, "the answer", paid=True)
    assert ledger.charge(claim("q", "3/4", "cyd")) == RecordedAnswer(receipt.sequence, "the answer", paid=False)
    assert ledger.charge(claim("q", "3/4", "dan")) == RecordedAnswer(receipt.sequence, "the answer", paid=True)
    assert spent(ledger, "ann", "group") == spent(ledger, "cyd", "group") == [(3 * ONE // 4, 0)]
    with pytest.raises(BudgetExceeded, match="group blue"):
        ledger.charge(claim("p", "1/2", "cyd"))
    with pytest.raises(NotAllowed):
        ledger.charge(claim("q", "3/4", "eve"))
    assert [len(ledger.history("shop", name)) for name in ("ann", "cyd")] == [1, 1]


def test_a_second_group_that_cannot_pay_does_not_get_the_recorded_answer(place: str) -> None:
    ledger = Ledger(place)
    ledger.register(dataset(1, policy="separate", groups=teams()))
    ledger.record(paid(ledger, claim("q", "3/4")), "the answer")
    paid(ledger, claim("other", "1/2", "cyd"))
    with pytest.raises(BudgetExceeded):
        ledger.charge(claim("q", "3/4", "cyd"))


def test_the_kernels_own_questions_are_paid_by_every_group(place: str) -> None:
    ledger = Ledger(place)
    ledger.register(dataset(1, policy="separate", groups=teams()))
    ledger.record(paid(ledger, claim("size", "1/100", KERNEL)), "size")
    assert spent(ledger, "ann", "group") == spent(ledger, "cyd", "group") == [(ONE // 100, 0)]
    ledger.register(dataset(1, policy="separate", groups=(*teams(), Group("green", ("gil",)))))
    assert ledger.charge(claim("size", "1/100", KERNEL)) == RecordedAnswer(2, "size", paid=False)
    assert spent(ledger, "gil", "group") == spent(ledger, "ann", "group") == [(ONE // 100, 0)]


def test_a_request_id_stands_for_one_question(ledger: Ledger) -> None:
    first = paid(ledger, claim("q", "1/4", request_id="r1"))
    again = paid(ledger, claim("q", "1/4", request_id="r1"))
    assert again.sequence == first.sequence
    ledger.record(again, "the answer")
    assert ledger.record(first, "another draw") == "the answer"
    assert ledger.charge(claim("q", "1/4", request_id="r1")) == RecordedAnswer(first.sequence, "the answer", paid=True)
    with pytest.raises(InvalidParameter, match="another question"):
        ledger.charge(claim("other", "1/4", request_id="r1"))
    assert paid(ledger, claim("other", "1/4", "bob", request_id="r1")).sequence != first.sequence
    assert spent(ledger) == [(ONE // 2, 0)]


def test_a_charge_without_an_answer_stays_spent_and_can_still_be_answered(place: str) -> None:
    ledger = Ledger(place)
    ledger.register(dataset(1))
    first = paid(ledger, claim("q", "3/4"))
    ledger.close()
    later = Ledger(place)
    assert spent(later) == [(3 * ONE // 4, 0)]
    again = paid(later, claim("q", "3/4"))
    assert again.sequence == first.sequence
    assert spent(later) == [(3 * ONE // 4, 0)]
    with pytest.raises(BudgetExceeded):
        later.charge(claim("p", "1/2"))


def test_a_new_version_empties_the_cache_and_never_the_budget(ledger: Ledger) -> None:
    ledger.record(paid(ledger, claim("q", "1/4", request_id="a")), "old")
    unanswered = paid(ledger, claim("u", "1/4", request_id="b"))
    ledger.register(dataset(1, data_version="2"))
    assert isinstance(ledger.charge(claim("q", "1/4")), Receipt)
    assert spent(ledger) == [(3 * ONE // 4, 0)]
    assert ledger.charge(claim("q", "1/4", request_id="a")) == RecordedAnswer(2, "old", paid=True)
    with pytest.raises(InvalidParameter, match="earlier version"):
        ledger.charge(claim("u", "1/4", request_id="b"))
    assert ledger.record(unanswered, "late") == "late"


def test_a_changed_description_is_a_new_question_too(ledger: Ledger) -> None:
    ledger.record(paid(ledger, claim("q", "1/4")), "old")
    users = dataset().tables["users"]
    wider = replace(users, columns={**users.columns, "age": replace(users.columns["age"], default=Fraction(30))})
    ledger.register(dataset(1, tables={**dataset().tables, "users": wider}))
    assert isinstance(ledger.charge(claim("q", "1/4")), Receipt)


def test_registering_again_changes_nothing(ledger: Ledger) -> None:
    before = ledger.head
    for _ in range(3):
        ledger.register(dataset(1))
    assert ledger.head == before


def test_receipts_come_from_charges_only_and_each_step_is_drawn_once(ledger: Ledger) -> None:
    with pytest.raises(LedgerError):
        Receipt(object(), 1, "")
    receipt = paid(ledger, claim(1))
    receipt.redeem("part 0")
    with pytest.raises(LedgerError):
        receipt.redeem("part 0")


def test_a_second_answer_row_breaks_the_rules(tmp_path: Path) -> None:
    place = tmp_path / "l.sqlite"
    ledger = busy_ledger(str(place))
    ledger.close()
    store = open_store(place)
    answer = next(row for row in store.rows() if row.kind == "answer")
    extra = chain_row(store.head(), "answer", answer.time, answer.body.replace("the answer", "another draw"))
    assert store.append(store.head(), [extra])
    assert verify(place).first_bad == extra.sequence


def test_a_snapshot_and_the_rows_after_it_are_the_whole_state(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots every third row, by two ledgers in turn, with restarts in between: nothing is lost or counted twice."""
    monkeypatch.setattr(writing, "SNAPSHOT_ROWS", 3)
    Ledger(place).register(dataset(1))
    first, second = Ledger(place), Ledger(place)
    for number in range(20):
        ledger = (first, second, Ledger(place))[number % 3]
        ledger.charge(claim(number, "1/100"))
        assert spent(ledger) == [((number + 1) * ONE // 100, 0)]
        assert verify(place).sound
    assert open_store(place).state_at() >= 18
    assert [isinstance(first.charge(claim(number, "1/100")), Receipt) for number in range(20)] == [True] * 20
    assert spent(second) == [(ONE // 5, 0)]


def together(ledger: Ledger, *claims: Any) -> list[Any]:
    """Charges that are decided and written in one step, as those of clients who wait together."""
    tickets: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger, "_submit", lambda decide, wants: tickets.append(writing.PendingWrite(decide, wants)))
        for each in claims:
            ledger.charge(each)
    ledger._serve(tickets)
    return tickets


def test_a_question_that_only_the_snapshot_knows_is_not_taken_for_new(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Questions are presumed new and the write makes sure of it: alone, beside fresh ones, or where none is written."""
    monkeypatch.setattr(writing, "SNAPSHOT_ROWS", 1)
    first = Ledger(place)
    first.register(dataset(1))
    known = paid(first, claim("q", "9/10", request_id="r"))
    first.record(known, "the answer")
    answer = RecordedAnswer(known.sequence, "the answer", paid=True)
    again, retried = claim("q", "9/10"), claim("q", "9/10", request_id="r")
    assert Ledger(place).charge(again) == answer
    assert Ledger(place).charge(retried) == answer
    fresh, repeated, greedy = together(Ledger(place), claim("p", "1/20"), retried, claim("g", "1/2"))
    assert isinstance(fresh.result(), Receipt)
    assert repeated.result() == answer
    with pytest.raises(BudgetExceeded):
        greedy.result()
    assert spent(first) == [(19 * ONE // 20, 0)]
    assert verify(place).sound


def test_an_answer_needs_a_charge(ledger: Ledger) -> None:
    receipt = paid(ledger, claim(1))
    receipt.sequence = 1  # the dataset's row
    with pytest.raises(LedgerError, match="belongs to the charge"):
        ledger.record(receipt, "forged")


# --- Populations, budgets as rows, windows ---


def test_a_view_of_the_same_people_shares_their_budget(place: str) -> None:
    ledger = Ledger(place)
    ledger.register(dataset(1))
    ledger.register(dataset(5, name="view"))
    paid(ledger, claim(1, "3/4"))
    with pytest.raises(BudgetExceeded):
        ledger.charge(claim(2, "1/2", dataset="view"))
    paid(ledger, claim(3, "1/4", dataset="view"))
    assert spent(ledger) == [(ONE, 0)]


def test_nobody_escapes_by_another_name_unit_or_file(ledger: Ledger) -> None:
    paid(ledger, claim(1, "3/4"))
    with pytest.raises(InvalidSchema, match="another population"):
        ledger.register(dataset(1, population="fresh"))
    with pytest.raises(InvalidSchema, match="another population holds these records"):
        ledger.register(dataset(1, name="fresh", population="fresh"))
    units = {**dataset().units, "row": Unit("row", "row", {"actions": None})}
    with pytest.raises(InvalidSchema, match="other budgets"):
        ledger.register(dataset(name="rows", budgets=(pure(9, "row"),), units=units))
    with pytest.raises(InvalidSchema, match="other budgets or another policy"):
        ledger.register(dataset(name="view", policy="separate", groups=teams()))
    with pytest.raises(InvalidSchema, match="means something else"):
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


def test_budget_changes_are_rows_and_reach_back(ledger: Ledger) -> None:
    paid(ledger, claim(1, "3/4"))
    ledger.register(dataset("1/2"))
    with pytest.raises(BudgetExceeded, match="0 left"):
        ledger.charge(claim(2, Fraction(1, ONE)))
    ledger.register(dataset(1, groups=teams(analyst_caps=(pure("3/4"),))))
    with pytest.raises(BudgetExceeded, match="account ann"):
        ledger.charge(claim(3, "1/8"))
    assert [row.kind for row in ledger.rows()] == ["dataset", "charge", "dataset", "dataset"]


def monthly(**changes: Any) -> Any:
    units = {"month": Unit("month", "window", {"actions": "user_id"}, {"actions": "at"}, "month")}
    return dataset(budgets=(pure(1, "month"),), units=units, **changes)


def by_month(question: str, epsilon: str, *months: str) -> Any:
    return claim(question, losses=losses(month=Pure(epsilon)), windows={"month": months})


def test_each_window_has_a_budget_of_its_own(place: str) -> None:
    ledger = Ledger(place)
    ledger.register(monthly())
    paid(ledger, by_month("q", "3/4", "2026-01", "2026-02"))
    with pytest.raises(BudgetExceeded, match="window 2026-02"):
        ledger.charge(by_month("p", "1/2", "2026-02", "2026-03"))
    paid(ledger, by_month("p", "1/2", "2026-03"))
    paid(ledger, by_month("r", "1/4", "2026-01"))
    balances = ledger.balances("shop", "ann", {"month": ["2026-01", "2026-02", "2026-03"]})
    assert [each.spent[0] * 4 // ONE for each in balances] == [4, 3, 2]
    with pytest.raises(LedgerError, match="windows"):
        ledger.charge(claim("w", losses=losses(month=Pure("1/2"))))


# --- Accounts ---


def test_tokens_are_hashed_expire_and_end(place: str) -> None:
    clock = HeldClock()
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
    clock = HeldClock()
    ledger = Ledger(place, clock)
    ledger.register(dataset(1))
    token = ledger.add_account("ann", "analyst", days=1)
    clock.pass_days(2)
    paid(ledger, claim(1))
    clock.now -= timedelta(days=400)
    paid(ledger, claim(2))
    with pytest.raises(NotAllowed):
        ledger.authenticate(token)
    times = [row.time for row in ledger.rows()]
    assert times == sorted(times)
    assert spent(ledger) == [(ONE // 5, 0)]
    assert verify(place).sound


# --- Refusals and misses stand apart ---


def test_refusals_are_kept_apart_and_do_not_pile_up(place: str) -> None:
    ledger = Ledger(place)
    ledger.register(dataset(1))
    before = ledger.head
    ledger.refuse("ann", "shop", "budget_exceeded")
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


def test_what_was_slow_is_quick_again_after_the_curator_says_so(place: str) -> None:
    """By class and dataset, and also after a restart; the count of misses stays."""
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


# --- The chain: verification, tampering, truncation, copies ---


def busy_ledger(place: str) -> Ledger:
    """A ledger with every kind of row but restores."""
    ledger = Ledger(place, HeldClock())
    ledger.register(dataset(1, groups=teams(), policy="separate"))
    ledger.add_account("ann", "analyst", days=3)
    ledger.record(paid(ledger, claim("q", "1/4", request_id="r")), "the answer")
    ledger.charge(claim("q", "1/4", "cyd"))
    paid(ledger, claim("p", "1/8", "dan"))
    return ledger


def test_an_untouched_ledger_verifies(place: str) -> None:
    ledger = busy_ledger(place)
    verdict = verify(place)
    assert verdict.sound and verdict.head == ledger.head and verdict.rows == 6


def test_any_byte_of_any_row_is_missed_when_changed(tmp_path: Path, tier: Any) -> None:
    place = tmp_path / "l.sqlite"
    busy_ledger(str(place)).close()
    with sqlite3.connect(place) as connection:
        cells = [(row, column, str(value)) for row, *rest in connection.execute("SELECT * FROM rows")
                 for column, value in zip(("kind", "time", "body", "hash"), rest, strict=True)]  # fmt: skip
    spots = [(row, column, at, value) for row, column, value in cells for at in range(len(value))]
    chosen = spots if tier.name == "deep" else random.Random(5).sample(spots, tier.pick(quick=10, test=200, deep=0))
    for row, column, at, value in chosen:
        changed = value[:at] + chr(ord(value[at]) ^ 1) + value[at + 1 :]
        with tampered(place, tmp_path) as copy:
            execute(copy, f"UPDATE rows SET {column} = ? WHERE sequence = ?", changed, row)
            assert verify(copy).first_bad == row, (row, column, at)
    print(f"tampering: {len(chosen)} of {len(spots)} bytes changed one by one, each found at its row")


class tampered:
    """A copy to change."""

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


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM rows WHERE sequence = 4",
        "UPDATE rows SET sequence = 60 WHERE sequence = 6",
        "UPDATE state SET value = '0 0' WHERE key LIKE '[\"spent\"%'",
        "DELETE FROM state WHERE key LIKE '[\"answer\"%'",
        "INSERT INTO state VALUES ('[\"paid\",\"blue\"]', '3')",
        "INSERT INTO rows SELECT 7, kind, time, body, hash FROM rows WHERE sequence = 6",
    ],
)
def test_rows_and_totals_cannot_be_dropped_moved_or_made_up(tmp_path: Path, statement: str) -> None:
    place = tmp_path / "l.sqlite"
    busy_ledger(str(place)).close()
    with tampered(place, tmp_path) as copy:
        execute(copy, statement)
        assert not verify(copy).sound


@pytest.mark.tier("test")
def test_a_forger_who_recomputes_the_hashes_still_breaks_a_rule(tmp_path: Path) -> None:
    """Rewriting a charge with a smaller cost, or a third answer, and linking everything anew: the rules do not hold."""
    place = tmp_path / "l.sqlite"
    ledger = busy_ledger(str(place))
    ledger.close()
    edits: list[Callable[[dict[str, Any]], object]] = [
        lambda body: body.update(costs=[[1, 0]]),
        lambda body: body.update(losses=[["user", "pure", {"kind": "pure", "epsilon": "1/100"}]]),
        lambda body: body.update(groups=[]),
        lambda body: body.update(of=None),
        lambda body: body.update(account="ann"),
        lambda body: body.update(version="9"),
    ]
    for edit in edits:
        assert relinked(place, tmp_path / "forged.sqlite", 5, edit).first_bad == 5


def relinked(place: Path, forged: Path, sequence: int, edit: Callable[[dict[str, Any]], object]) -> Any:
    """The verdict on a ledger whose row was edited and whose hashes were all computed again."""
    for old in forged.parent.glob(f"{forged.name}*"):
        old.unlink()
    source, target = open_store(place), open_store(forged)
    head = target.head()
    for row in source.rows():
        body = json.loads(row.body)
        if row.sequence == sequence:
            edit(body)
        new = chain_row(head, row.kind, row.time, canonical(body))
        assert target.append(head, [new])
        head = new.head
    target.close()
    return verify(forged)


def test_a_row_that_was_rehashed_by_itself_shows_in_the_next(tmp_path: Path) -> None:
    place = tmp_path / "l.sqlite"
    busy_ledger(str(place)).close()
    store = open_store(place)
    before, row = store.row(3), store.row(4)
    assert before is not None and row is not None and row.kind == "answer"
    changed = chain_row(before.head, row.kind, row.time, row.body.replace("the answer", "another draw"))
    store.close()
    with tampered(place, tmp_path) as copy:
        execute(copy, "UPDATE rows SET body = ?, hash = ? WHERE sequence = 4", changed.body, changed.hash)
        assert verify(copy).first_bad == 5


def test_the_database_itself_refuses_to_change_rows(place: str) -> None:
    ledger = busy_ledger(place)
    before = ledger.rows()
    store = open_store(place)
    for statement in ("UPDATE rows SET body = 'x'", "DELETE FROM rows"):
        try:
            store._run(statement)  # type: ignore[attr-defined]
        except LedgerError:
            continue
    assert ledger.rows() == before


def test_truncation_shows_against_a_seen_head(tmp_path: Path) -> None:
    place = tmp_path / "l.sqlite"
    ledger = busy_ledger(str(place))
    seen = ledger.head
    assert ledger.check_head(seen) and ledger.check_head(LedgerHead(0, "0" * 64))
    with pytest.raises(LedgerError, match="mark the gap"):
        ledger.check_head(LedgerHead(seen.sequence, "f" * 64))
    with pytest.raises(LedgerError, match="mark the gap"):
        ledger.check_head(LedgerHead(seen.sequence + 1, "f" * 64))
    ledger.close()
    with tampered(place, tmp_path) as copy:
        execute(copy, "DELETE FROM rows WHERE sequence = 6")
        assert "seen" in verify(copy, seen=seen).problem
    assert verify(place, seen=seen).sound
    assert not verify(place, seen=LedgerHead(3, "f" * 64)).sound


def test_a_restored_copy_is_closed_until_the_gap_is_marked(place: str, tmp_path: Path) -> None:
    ledger = Ledger(place)
    ledger.register(dataset(1, groups=teams(analyst_caps=(pure(1),))))
    paid(ledger, claim(1, "1/4"))
    copied = backup(place, tmp_path / "backup.sqlite")
    assert copied == ledger.head
    paid(ledger, claim(2, "1/4"))
    seen = ledger.head
    back = tmp_path / "back.sqlite"
    assert restore(tmp_path / "backup.sqlite", back) == copied
    restored = Ledger(back)
    with pytest.raises(LedgerError, match="closed after a restore"):
        restored.charge(claim(3, "1/4"))
    with pytest.raises(LedgerError, match="mark the gap"):
        restored.check_head(seen)
    restored.mark_gap(seen, Pure("1/4"))
    assert not restored.check_head(seen) and restored.check_head(restored.head)
    assert spent(restored) == [(ONE // 2, 0)]
    paid(restored, claim(3, "1/2"))
    with pytest.raises(BudgetExceeded):
        restored.charge(claim(4, Fraction(1, ONE)))
    assert verify(back).sound
    for taken in (lambda: backup(place, tmp_path / "backup.sqlite"), lambda: restore(tmp_path / "backup.sqlite", back)):
        with pytest.raises(LedgerError, match="overwrites"):
            taken()


def copied(place: Path) -> Path:
    """A backup of a ledger that has gone on since, so that what the copy says was spent is too little."""
    ledger = Ledger(place / "first.sqlite")
    ledger.register(dataset(1))
    paid(ledger, claim(1, "1/4"))
    backup(place / "first.sqlite", place / "copy.sqlite")
    paid(ledger, claim(2, "3/4"))
    ledger.close()
    return place / "copy.sqlite"


def lets_spend(place: str | Path) -> bool:
    """Whether a kernel that starts on this ledger now would charge a question, and answer it."""
    if str(place).startswith("postgres"):  # it would wait for whoever writes, who here waits for it
        place = f"{place}{'&' if '?' in str(place) else '?'}options=-c%20lock_timeout%3D100"
    try:
        ledger = Ledger(place, create=False)
    except LedgerError:
        return False
    try:
        return ledger.preview(claim(3, "1/2")) == (False, True)
    except (LedgerError, NotFound):
        return False
    finally:
        ledger.close()


def before_each_statement(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Acts before whatever a store is about to do, but not while it acts."""
    acting = False

    def watched(connected: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def first(self: Any) -> Any:
            nonlocal acting
            if not acting:
                acting = True
                try:
                    act()
                finally:
                    acting = False
            return connected(self)

        return first

    for kind in (SqliteStore, PostgresStore):
        monkeypatch.setattr(kind, "_connected", watched(kind._connected))


def test_a_restore_is_closed_from_its_first_moment(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The named bug: rows were copied first and the mark came after, so a kernel that started between them answered."""
    copy, seen = copied(tmp_path), list[bool]()
    Ledger(place).close()
    before_each_statement(monkeypatch, lambda: seen.append(lets_spend(place)))
    restore(copy, place)
    monkeypatch.undo()
    assert len(seen) > 5 and not any(seen) and not lets_spend(place)
    assert lets_spend(copy) and verify(place).sound
    Ledger(place).mark_gap(LedgerHead(9, "f" * 64), Pure("1/4"))
    assert lets_spend(place)


def test_a_restore_that_is_killed_leaves_nothing_or_a_closed_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The named bug: cut off before the mark, a copy was a ledger like any other, with less spent than there was."""
    copy, back, left, killed = copied(tmp_path), tmp_path / "back.sqlite", 0, 0

    def count_down() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt

    while True:
        left = killed
        with monkeypatch.context() as patch:
            before_each_statement(patch, count_down)
            try:
                restore(copy, back)
                break
            except KeyboardInterrupt:
                killed += 1
        if back.exists():
            assert not lets_spend(back)
            for each in tmp_path.glob("back.sqlite*"):
                each.unlink()
    assert killed > 10 and not lets_spend(back) and verify(back).sound


def test_a_ledger_that_is_in_use_is_not_restored_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that started on the empty place keeps it, and one that was only about to finds the closed copy."""
    copy, early = copied(tmp_path), Ledger(tmp_path / "back.sqlite")
    taken = [early]

    def take() -> None:
        if taken and open_store(tmp_path / "back.sqlite").head().sequence == 0:
            taken.pop().register(dataset(1))

    restore(copy, tmp_path / "other.sqlite")
    with monkeypatch.context() as patch:
        before_each_statement(patch, take)
        with pytest.raises(LedgerError, match="overwrites"):
            restore(copy, tmp_path / "back.sqlite")
    assert early.head.sequence == 1 and verify(tmp_path / "back.sqlite").sound
    waiting = Ledger(tmp_path / "third.sqlite")
    restore(copy, tmp_path / "third.sqlite")
    waiting.register(dataset(1))
    with pytest.raises(LedgerError, match="closed after a restore"):
        waiting.charge(claim(3, "1/4"))


@pytest.mark.parametrize("policy", ["shared", "separate"])
def test_what_may_have_been_answered_in_a_lost_stretch_is_not_drawn_again(
    place: str, tmp_path: Path, policy: str
) -> None:
    """The named bug: a charge that had no answer yet when the copy was made gave a second draw for the same loss."""
    ledger, back = Ledger(place), tmp_path / "back.sqlite"
    ledger.register(dataset(1, policy=policy, groups=teams()))
    receipt = paid(ledger, claim(1, "1/4", request_id="mine"))
    answered = paid(ledger, claim(2, "1/8"))
    ledger.record(answered, "known")
    backup(place, tmp_path / "copy.sqlite")
    ledger.record(receipt, "given to the analyst")
    restore(tmp_path / "copy.sqlite", back)
    restored, again = Ledger(back), [claim(1, "1/4"), claim(1, "1/4", request_id="mine"), claim(1, "1/4", "cyd")]
    for _ in ("closed", "open"):
        for asked in again:
            with pytest.raises(BudgetExceeded, match="another draw"):
                restored.charge(asked)
            assert restored.preview(asked) == (False, False)
        restored.mark_gap(ledger.head, Pure(0))
    assert [row.kind for row in restored.rows()].count("charge") == 2
    assert restored.charge(claim(2, "1/8")) == RecordedAnswer(answered.sequence, "known", paid=True)
    since = paid(restored, claim(3, "1/4"))  # what is charged since then can be drawn after a crash, as ever
    assert paid(Ledger(back), claim(3, "1/4")).sequence == since.sequence
    assert verify(back).sound


def test_a_gap_of_unknown_size_spends_everything(place: str) -> None:
    ledger = Ledger(place)
    ledger.register(monthly(groups=teams()))
    ledger.mark_gap(LedgerHead(99, "a" * 64), None)
    for account in ("ann", "cyd"):
        for month in ("2026-01", "2031-12"):
            with pytest.raises(BudgetExceeded):
                ledger.charge(replace(by_month(f"{account}{month}", "1/1000", month), account=account))
    assert verify(place).sound


def elsewhere(**changes: Any) -> Any:
    """A dataset of other people."""
    made = dataset(1, name="shop2", population="others", **changes)
    tables = {
        name: replace(table, source=Source("parquet", {"path": f"2{name}"})) for name, table in made.tables.items()
    }
    return replace(made, tables=tables)


def alone(policy: str = "separate", **caps: Any) -> Any:
    """One group of one analyst."""
    return dataset(1, policy=policy, groups=(Group("red", ("ann",), **caps),))


UNKNOWN: dict[str, tuple[list[Any], Any, Any]] = {
    "the first population": ([], dataset(1), claim(1, "7/8")),
    "a population": ([dataset(1)], elsewhere(), claim(1, "7/8", dataset="shop2")),
    "a group": ([alone()], dataset(1, policy="separate", groups=teams()), claim(1, "7/8", "cyd")),
    "a capped group": (
        [alone("shared")],
        dataset(9, groups=(Group("red", ("ann",)), Group("blue", ("cyd",), caps=(pure(1),)))),
        claim(1, "7/8", "cyd"),
    ),
    "an analyst": (
        [alone("shared", analyst_caps=(pure(1),))],
        dataset(9, groups=(Group("red", ("ann", "bob"), analyst_caps=(pure(1),)),)),
        claim(1, "7/8", "bob"),
    ),
    "a budget": (
        [dataset(1)],
        dataset(1, budgets=(pure(1), zcdp("1/2"))),
        claim(1, losses=(UnitLoss("user", "pure", Pure("1/8")), UnitLoss("user", "zcdp", ZCDP("31/64")))),
    ),
    "a window": (
        [dataset(1)],
        replace(elsewhere(), units=monthly().units, budgets=monthly().budgets),
        by_month("q", "7/8", "2031-12"),
    ),
}


@pytest.mark.parametrize("left", ["3/4", None])
@pytest.mark.parametrize("what", UNKNOWN)
def test_what_was_registered_in_a_lost_stretch_starts_with_what_the_gap_spent(
    tmp_path: Path, what: str, left: str | None
) -> None:
    """The named bug: what the backup did not know began afresh after the gap, and was spent a second time."""
    before, lost, asked = UNKNOWN[what]
    asked = replace(asked, dataset=lost.name)
    ledger, back = Ledger(tmp_path / "l"), tmp_path / "back"
    for each in before:
        ledger.register(each)
    backup(tmp_path / "l", tmp_path / "copy")
    ledger.register(lost)
    paid(ledger, asked)
    restore(tmp_path / "copy", back)
    restored = Ledger(back)
    restored.mark_gap(ledger.head, None if left is None else Pure(1 - rational(left)))
    restored.close()  # the gap is in the snapshot now
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
    """However often a group leaves and comes back, and whether or not it was there when the gap was marked."""
    ledger, both = Ledger(place), dataset(1, policy="separate", groups=teams())
    for number, listed in enumerate((both, alone(), both)):
        ledger.register(listed)
        ledger.mark_gap(LedgerHead(99 + number, "a" * 64), Pure("1/8"))
    for listed in (alone(), both, replace(both, data_version="2")):
        ledger.register(listed)
    for account in ("ann", "cyd"):
        assert spent(ledger, account, "group") == [(3 * ONE // 8, 0)]
    assert verify(place).sound


def test_an_analyst_who_is_capped_only_after_a_gap_starts_with_it(place: str) -> None:
    """What an account without a cap spent is kept; the gap joins it when there is a cap that it can count against."""
    ledger = Ledger(place)
    ledger.register(dataset(1))
    paid(ledger, claim(1, "1/4"))
    ledger.mark_gap(LedgerHead(99, "a" * 64), Pure("1/4"))
    paid(ledger, claim(2, "1/8"))
    ledger.register(alone("shared", analyst_caps=(pure(1),)))
    assert spent(ledger, "ann", "analyst") == spent(ledger) == [(5 * ONE // 8, 0)]
    assert verify(place).sound


def test_a_gap_that_a_later_budget_cannot_count_keeps_it_out(place: str) -> None:
    ledger = Ledger(place)
    ledger.register(dataset(1, budgets=(zcdp(1),)))
    ledger.mark_gap(LedgerHead(99, "a" * 64), ZCDP("1/4"))
    with pytest.raises(InvalidParameter, match="budget of kind pure cannot take this zcdp loss"):
        ledger.register(elsewhere())
    ledger.register(elsewhere(budgets=(zcdp(1),)))
    assert [each.spent for each in ledger.balances("shop2", "ann", {})] == [(ONE // 4, 0)]


def test_a_gap_of_an_earlier_version_counts_as_it_did(place: str) -> None:
    """It named its populations; files that hold its effects must verify, so these stay as they were, key by key."""
    ledger = Ledger(place)
    ledger.register(dataset(1))
    head = {"sequence": 99, "hash": "a" * 64}
    old = {"by": "kernel", "head": head, "populations": ["customers"], "spent": to_json(Pure("1/4"))}
    for _ in range(2):
        ledger._submit(lambda draft: draft.add("gap", old))
    assert spent(ledger) == [(ONE // 2, 0)]
    ledger.register(elsewhere())
    assert [each.spent for each in ledger.balances("shop2", "ann", {})] == [(0, 0)]
    ledger.close()
    assert not any(name.startswith('["gaps"') for name in open_store(place).all_state())
    ledger = Ledger(place)
    ledger.mark_gap(LedgerHead(100, "b" * 64), Pure("1/8"))
    ledger._submit(lambda draft: draft.add("gap", old))
    ledger.register(replace(elsewhere(groups=teams(caps=(pure(1),))), data_version="2"))
    assert spent(ledger) == [(7 * ONE // 8, 0)]
    assert [each.spent for each in ledger.balances("shop2", "ann", {})] == [(ONE // 8, 0)] * 2
    with pytest.raises(LedgerError, match="no population"):
        ledger._submit(lambda draft: draft.add("gap", {**old, "populations": ["nobody"]}))
    assert verify(place).sound


def test_a_gap_that_was_wiped_from_the_state_is_found(tmp_path: Path) -> None:
    place = tmp_path / "l.sqlite"
    ledger = Ledger(place)
    ledger.register(dataset(1))
    ledger.mark_gap(LedgerHead(99, "a" * 64), Pure("1/4"))
    ledger.close()
    for change in ("DELETE FROM state", "UPDATE state SET value = '7'"):
        for kept in ('["gaps"]', '["gaps",_%'):
            with tampered(place, tmp_path) as copy:
                execute(copy, f"{change} WHERE key LIKE '{kept}'")
                assert "running totals" in verify(copy).problem


def test_a_gap_changes_nobodys_later_share(place: str) -> None:
    """What the kernel asks for itself is paid by the groups and not by their analysts, before a gap and after it."""
    ledger = Ledger(place)
    groups = tuple(Group(name, (account,), analyst_caps=(pure(1),)) for name, account in (("a", "ann"), ("b", "bob")))
    ledger.register(dataset(1, policy="separate", groups=groups))
    ledger.mark_gap(LedgerHead(99, "a" * 64), Pure("1/4"))
    paid(ledger, claim("size", "1/8", KERNEL))
    assert spent(ledger, "ann", "group") == [(3 * ONE // 8, 0)]
    assert spent(ledger, "ann", "analyst") == [(ONE // 4, 0)]
    ledger.close()
    assert spent(Ledger(place), "ann", "analyst") == [(ONE // 4, 0)]
    assert verify(place).sound


def test_a_copy_keeps_what_was_late_and_what_the_curator_did_about_it(place: str, tmp_path: Path) -> None:
    """A restore gives back no misses: the lock, the predictions and the statement count on."""
    ledger = Ledger(place)
    ledger.register(dataset(1))
    for act in (ledger.unlock, ledger.reset_latency, lambda name: None):
        ledger.record_miss("shop", "class")
        act("shop")
    ledger.close()
    backup(place, tmp_path / "copy.sqlite")
    restore(tmp_path / "copy.sqlite", tmp_path / "back.sqlite")
    back = Ledger(tmp_path / "back.sqlite")
    misses, since = back.misses("shop")
    assert (len(misses), since, back.unlocked("shop"), back.latency_step("shop", "class")) == (3, 2, 1, 1)


def test_what_is_noted_is_copied_in_one_write(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand refusals, each kept by itself, took 40 s; a copy that was cut off then had rows and no misses."""
    ledger = Ledger(place)
    ledger.register(dataset(1))
    ledger.refuse("ann", "shop", "budget_exceeded")
    ledger.record_miss("shop", "class")
    ledger.close()
    monkeypatch.setattr(Store, "note", lambda *_: pytest.fail("one by one"))
    backup(place, tmp_path / "copy.sqlite")
    kept = open_store(tmp_path / "copy.sqlite").all_notes()
    assert kept == open_store(place).all_notes() and [note.kind for note in kept] == ["refusal", "miss"]


@pytest.mark.tier("test")
def test_a_copy_of_a_copy_is_the_same_chain(place: str, tmp_path: Path) -> None:
    busy_ledger(place)
    backup(place, tmp_path / "one.sqlite")
    backup(tmp_path / "one.sqlite", tmp_path / "two.sqlite")
    assert verify(tmp_path / "two.sqlite") == verify(place)


# --- Formats ---


def test_a_ledger_of_an_older_format_is_refused_by_name(tmp_path: Path) -> None:
    place = tmp_path / "old.sqlite"
    shutil.copy(FIXTURES / "ledger_format2.sqlite", place)
    before = place.read_bytes()
    for act in (Ledger, verify, lambda old: backup(old, tmp_path / "copy.sqlite")):
        with pytest.raises(LedgerError, match=f"format 2, .* reads format {FORMAT}: start a new ledger"):
            act(place)
    assert place.read_bytes() == before and not (tmp_path / "copy.sqlite").exists()


def test_a_newer_format_is_refused(place: str) -> None:
    Ledger(place).close()
    open_store(place)._run("UPDATE meta SET value = '99'")  # type: ignore[attr-defined]
    for act in (Ledger, verify):
        with pytest.raises(LedgerError, match="newer"):
            act(place)


# --- Trouble: full disks, read-only and broken files, forks, two kernels ---


@pytest.mark.tier("test")
def test_a_full_disk_charges_nothing_and_loses_nothing(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l.sqlite")
    ledger.register(dataset(1000))
    ledger._store._connection.execute("PRAGMA max_page_count = 30")  # type: ignore[attr-defined]
    done = 0
    with pytest.raises(LedgerError, match="full"):
        for number in range(1000):
            ledger.charge(claim(number, "1/10"))
            done += 1
    assert 0 < done < 1000
    assert spent(ledger) == [(done * ONE // 10, 0)]
    ledger._store._connection.execute("PRAGMA max_page_count = 100000")  # type: ignore[attr-defined]
    ledger.charge(claim("more room", "1/10"))
    assert spent(ledger) == [((done + 1) * ONE // 10, 0)]
    ledger.close()
    assert verify(tmp_path / "l.sqlite").sound


LIMITED = """
import resource, sys
from privacy.ledger_cases import claim, dataset, spent
from dither.errors import LedgerError
from dither.privacy.ledger import Ledger
ledger = Ledger(sys.argv[1]); ledger.register(dataset(1000))
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
done = 0
try:
    for number in range(100_000):
        ledger.charge(claim(number, "1/1000")); done += 1
except LedgerError:
    print(done)
"""


@pytest.mark.tier("test")
def test_a_file_size_limit_is_a_clear_error_and_nothing_is_lost(tmp_path: Path) -> None:
    place = tmp_path / "l.sqlite"
    ran = run_child(LIMITED, str(place))
    done = int(ran.stdout)
    assert done > 10
    ledger = Ledger(place)
    assert len([row for row in ledger.rows() if row.kind == "charge"]) >= done
    assert verify(place).sound
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


def run_child(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True, text=True, check=True, timeout=120, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip


def test_a_read_only_file_refuses_to_charge(tmp_path: Path) -> None:
    place = tmp_path / "l.sqlite"
    Ledger(place).register(dataset(1))
    ledger = Ledger(place)
    ledger._store._connection.execute("PRAGMA query_only = 1")  # type: ignore[attr-defined]
    with pytest.raises(LedgerError, match="readonly"):
        ledger.charge(claim(1))
    assert ledger.rows()[-1].kind == "dataset"


@pytest.mark.parametrize("damage", [b"not a database at all, only text" * 64, b"SQLite format 3\0" + b"\0" * 4000])
def test_a_broken_file_is_a_clear_error(tmp_path: Path, damage: bytes) -> None:
    place = tmp_path / "l.sqlite"
    place.write_bytes(damage)
    with pytest.raises(LedgerError):
        Ledger(place).register(dataset(1))
    with pytest.raises(LedgerError):
        verify(place)


@pytest.mark.tier("test")
def test_a_file_damaged_in_use_gives_ledger_errors_only(tmp_path: Path) -> None:
    place = tmp_path / "l.sqlite"
    ledger = Ledger(place)
    ledger.register(dataset(100))
    for number in range(50):
        ledger.charge(claim(number))
    ledger.close()
    whole = bytearray(place.read_bytes())
    whole[4096:8192] = bytes(random.Random(1).randbytes(4096))
    place.write_bytes(whole)
    with pytest.raises(LedgerError):
        broken = Ledger(place)
        for number in range(60):
            broken.charge(claim(f"new {number}"))
        if not verify(place).sound:
            raise LedgerError("found by the verifier")


def test_missing_ledgers_are_not_made_by_readers(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="no ledger"):
        verify(tmp_path / "none.sqlite")
    assert not (tmp_path / "none.sqlite").exists()


def test_two_ledgers_on_one_place_see_each_other(place: str) -> None:
    one, two = Ledger(place), Ledger(place)
    one.register(dataset(1))
    two.charge(claim(1, "1/2"))
    one.charge(claim(2, "1/2"))
    with pytest.raises(BudgetExceeded):
        two.charge(claim(3, Fraction(1, ONE)))
    one.record(paid(one, claim(1, "1/2")), "one's")
    assert two.charge(claim(1, "1/2")) == RecordedAnswer(2, "one's", paid=True)
    assert verify(place).sound


def test_a_forked_child_charges_the_same_budget(ledger: Ledger) -> None:
    ledger.charge(claim("parent", "1/2"))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            ledger.charge(claim("child", "1/2"))
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    with pytest.raises(BudgetExceeded):
        ledger.charge(claim("parent again", Fraction(1, ONE)))
    assert spent(ledger) == [(ONE, 0)]


# --- Races ---


def race(place: str, seed: int, results: Any) -> None:
    """Charges random costs until the budget refuses; returns what was accepted."""
    ledger, chance, accepted = Ledger(place), random.Random(seed), 0
    for number in range(12):
        cost = chance.randrange(1, ONE // 8)
        try:
            ledger.charge(claim(f"{seed}/{number}", Fraction(cost, ONE)))
            accepted += cost
        except BudgetExceeded:
            pass
    results.append(accepted)


def test_64_threads_racing_for_the_last_1_never_pass_it(place: str) -> None:
    shared = Ledger(place)
    shared.register(dataset(1))
    accepted: list[int] = []

    def run(seed: int) -> None:
        chance = random.Random(seed)
        for number in range(12):
            cost = chance.randrange(1, ONE // 8)
            try:
                shared.charge(claim(f"{seed}/{number}", Fraction(cost, ONE)))
                accepted.append(cost)
            except BudgetExceeded:
                pass

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(accepted) == spent(shared)[0][0] <= ONE
    assert sum(accepted) > ONE - ONE // 8
    assert verify(place).sound
    print(f"race: 64 threads, {64 * 12} charges, {len(accepted)} accepted, sum {sum(accepted) / ONE:.15f} of 1")


def race_in_process(place: str, seed: int, pipe: Any) -> None:
    accepted: list[int] = []
    race(place, seed, accepted)
    pipe.send(accepted)
    os._exit(0)  # the parent's services are not the child's to stop


@pytest.mark.tier("test")
def test_64_processes_racing_for_the_last_1_never_pass_it(place: str, tier: Any) -> None:
    Ledger(place).register(dataset(1))
    context = multiprocessing.get_context("fork")
    pipes = []
    processes = []
    for seed in range(64):
        here, there = context.Pipe(duplex=False)
        pipes.append(here)
        processes.append(context.Process(target=race_in_process, args=(place, seed, there)))
    for process in processes:
        process.start()
    accepted = [sum(pipe.recv()) for pipe in pipes]
    for process in processes:
        process.join()
    assert sum(accepted) == spent(Ledger(place))[0][0] <= ONE
    assert sum(accepted) > ONE - ONE // 8
    assert verify(place).sound
    print(f"race: 64 processes, {64 * 12} charges, sum accepted {sum(accepted) / ONE:.15f} of 1")


# --- kill -9 ---


class Killer:
    """Kills its own process with SIGKILL when so many lines of the ledger have been executed."""

    def __init__(self, last: int) -> None:
        self._left = last

    def __call__(self, frame: Any, event: str, argument: Any) -> Any:
        if f"{os.sep}ledger{os.sep}" in frame.f_code.co_filename:
            self._left -= 1
            if self._left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return self


def charge_until_killed(place: str, seed: int, released: int) -> None:
    """Charges and answers; what it hands out, it first writes to a file."""
    ledger = Ledger(place)
    ledger.describe("shop")
    sys.settrace(Killer(random.Random(seed).randrange(1, 2500)))
    for number in range(100):
        receipt = ledger.charge(claim(f"{seed}/{number}", "1/1000", request_id=f"{seed}.{number}"))
        if isinstance(receipt, Receipt):
            ledger.record(receipt, f"draw {seed}/{number}")
            os.write(released, f"{seed}/{number}\n".encode())


def test_kill_9_at_any_step_never_releases_more_than_was_spent(place: str, tmp_path: Path, tier: Any) -> None:
    """A child kills itself between two random lines of a charge or an answer; what it released is in a file."""
    rounds = tier.pick(quick=5, test=50, deep=500)
    Ledger(place).register(dataset(4000))
    released = os.open(tmp_path / "released", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    for seed in range(rounds):
        child = os.fork()
        if child == 0:
            try:
                charge_until_killed(place, seed, released)
            finally:
                os._exit(1)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
        if seed % 25 == 24:
            Ledger(place).close()  # moves the snapshot on: the next children start from it
    ledger = Ledger(place)
    names = (tmp_path / "released").read_text().split()
    charges = [json.loads(row.body)["request"] for row in ledger.rows() if row.kind == "charge"]
    assert {f"question {name}" for name in names} <= set(charges)
    assert spent(ledger)[0][0] == len(charges) * ONE // 1000 >= len(names) * ONE // 1000
    assert len(set(names)) == len(names) >= rounds // 4
    assert len(charges) > len(names), "some child must have died between its charge and its answer"
    assert verify(place).sound
    for name in names:
        again = ledger.charge(claim(name, "1/1000", request_id=name.replace("/", ".")))
        assert again == RecordedAnswer(getattr(again, "sequence", 0), f"draw {name}", paid=True)
    kind = "PostgreSQL" if place.startswith("postgres") else "SQLite"
    print(f"kill -9: {rounds} kills on {kind}, {len(charges)} charges, {len(names)} releases, none uncharged")


def test_keys_of_state_are_unambiguous() -> None:
    assert key("a", "b") != key("a,b") and key("a", 'b","c') != key("a", "b", "c") and key("a", 1) != key("a", "1")


def test_what_is_remembered_of_questions_is_bounded() -> None:
    # Each question has names of its own, and each set of windows its own totals: neither may pile up.
    for number in range(3000):
        key("question", str(number))
    assert key.cache_info().currsize <= 1 << 10
    population = Population("people", (dataset(1),))
    for number in range(3000):
        population.balances_for((), f"a{number}", {}, fresh=True)
        population.costs(json.dumps([["user", "pure", to_json(Pure(Fraction(1, number + 1)))]]))
    assert max(len(population._pools), len(population._costs)) < 300
    assert budget_cost.cache_info().currsize <= 1 << 10


def test_history_tells_of_the_latest_rows_only(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(8):
        paid(ledger, claim(number, "1/100"))
    everything = ledger.history("shop", "ann")
    assert len(everything) == 8 and chain.HISTORY_ROWS <= 2000
    monkeypatch.setattr(chain, "HISTORY_ROWS", 3)
    latest = ledger.history("shop", "ann")
    assert 0 < len(latest) <= 3 and latest == everything[-len(latest) :]
