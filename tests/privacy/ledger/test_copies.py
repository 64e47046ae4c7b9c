"""Backups and restores: a restored copy is closed until the curator marks the gap."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from dither.errors import BudgetExceeded, LedgerError, NotFound
from dither.loss import Pure
from dither.privacy.ledger import Ledger
from dither.privacy.ledger.maintenance import backup, restore, verify
from dither.privacy.ledger.store import PostgresStore, SqliteStore, Store, open_store
from dither.privacy.protocol import LedgerHead
from privacy.ledger_cases import ONE, busy_ledger, charge_for, dataset, pay, pure, recorded, teams, total_spent


def test_a_restored_copy_is_closed_until_the_gap_is_marked(place: str, tmp_path: Path) -> None:
    ledger = Ledger(place)
    ledger.register(dataset(1, groups=teams(analyst_caps=(pure(1),))))
    pay(ledger, charge_for(1, "1/4"))
    backup_head = backup(place, tmp_path / "backup.sqlite")
    assert backup_head == ledger.head
    pay(ledger, charge_for(2, "1/4"))
    seen = ledger.head
    back = tmp_path / "back.sqlite"
    assert restore(tmp_path / "backup.sqlite", back) == backup_head
    restored = Ledger(back)
    with pytest.raises(LedgerError, match="closed after a restore"):
        restored.charge(charge_for(3, "1/4"))
    with pytest.raises(LedgerError, match="mark the gap"):
        restored.check_head(seen)
    restored.mark_gap(seen, Pure("1/4"))
    assert not restored.check_head(seen) and restored.check_head(restored.head)
    assert total_spent(restored) == [(ONE // 2, 0)]
    pay(restored, charge_for(3, "1/2"))
    with pytest.raises(BudgetExceeded):
        restored.charge(charge_for(4, Fraction(1, ONE)))
    assert verify(back).sound
    for taken in (lambda: backup(place, tmp_path / "backup.sqlite"), lambda: restore(tmp_path / "backup.sqlite", back)):
        with pytest.raises(LedgerError, match="overwrites"):
            taken()


def outdated_backup(place: Path) -> Path:
    """Return a backup of a ledger that was charged again later, so that the copy understates the spending."""
    ledger = Ledger(place / "first.sqlite")
    ledger.register(dataset(1))
    pay(ledger, charge_for(1, "1/4"))
    backup(place / "first.sqlite", place / "copy.sqlite")
    pay(ledger, charge_for(2, "3/4"))
    ledger.close()
    return place / "copy.sqlite"


def lets_spend(place: str | Path) -> bool:
    """Return True if a kernel that starts on this ledger now could charge and answer a query."""
    if str(place).startswith("postgres"):  # it would wait for the writer, which waits for it
        place = f"{place}{'&' if '?' in str(place) else '?'}options=-c%20lock_timeout%3D100"
    try:
        ledger = Ledger(place, create=False)
    except LedgerError:
        return False
    try:
        return ledger.preview(charge_for(3, "1/2")) == (False, True)
    except (LedgerError, NotFound):
        return False
    finally:
        ledger.close()


def before_each_statement(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Call `act` before each statement of a store, but not for statements that `act` itself runs."""
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
        monkeypatch.setattr(kind, "_live_connection", watched(kind._live_connection))


def test_a_restore_is_closed_from_its_first_moment(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: rows were copied before the ledger was closed, so a kernel that started in between could answer."""
    copy, seen = outdated_backup(tmp_path), list[bool]()
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
    """Regression: a restore that was killed before it closed the copy left an open ledger that understated spending."""
    copy, back, left, killed = outdated_backup(tmp_path), tmp_path / "back.sqlite", 0, 0

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
    """A kernel that wrote to the empty place first keeps it; one that had only opened it finds the closed copy."""
    copy, early = outdated_backup(tmp_path), Ledger(tmp_path / "back.sqlite")
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
        waiting.charge(charge_for(3, "1/4"))


@pytest.mark.parametrize("policy", ["shared", "separate"])
def test_what_may_have_been_answered_in_a_lost_stretch_is_not_drawn_again(
    place: str, tmp_path: Path, policy: str
) -> None:
    """Regression: a charge without an answer in the backup allowed a second draw for the same loss."""
    ledger, back = Ledger(place), tmp_path / "back.sqlite"
    ledger.register(dataset(1, policy=policy, groups=teams()))
    receipt = pay(ledger, charge_for(1, "1/4", request_id="mine"))
    answered = pay(ledger, charge_for(2, "1/8"))
    ledger.record(answered, "known")
    backup(place, tmp_path / "copy.sqlite")
    ledger.record(receipt, "given to the analyst")
    restore(tmp_path / "copy.sqlite", back)
    restored, again = (
        Ledger(back),
        [charge_for(1, "1/4"), charge_for(1, "1/4", request_id="mine"), charge_for(1, "1/4", "bob")],
    )
    for _ in ("closed", "open"):
        for asked in again:
            with pytest.raises(BudgetExceeded, match="another repeat"):
                restored.charge(asked)
            assert restored.preview(asked) == (False, False)
        restored.mark_gap(ledger.head, Pure(0))
    assert [row.kind for row in restored.rows()].count("charge") == 2
    if policy == "separate":  # a group that did not pay draws anew: a refusal would tell it that others asked
        fresh = pay(restored, charge_for(1, "1/4", "cyd"))
        restored.record(fresh, "another group's")
        with pytest.raises(BudgetExceeded, match="another repeat"):
            restored.charge(charge_for(1, "1/4"))
    assert restored.charge(charge_for(2, "1/8")) == recorded(answered.sequence, "known", paid=True)
    since = pay(restored, charge_for(3, "1/4"))  # charges after the restore can still be drawn after a crash
    assert pay(Ledger(back), charge_for(3, "1/4")).sequence == since.sequence
    assert verify(back).sound


def test_a_copy_keeps_what_was_late_and_what_the_curator_did_about_it(place: str, tmp_path: Path) -> None:
    """A restore resets no misses: the lock, the latency predictions and the statement still count them."""
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
    assert (len(misses), since, back.unlock_count("shop"), back.latency_step("shop", "class")) == (3, 2, 1, 1)


def test_what_is_noted_is_copied_in_one_write(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: copying 10,000 refusals one by one took 40 s, and an interrupted copy had rows but no misses."""
    ledger = Ledger(place)
    ledger.register(dataset(1))
    ledger.record_refusal("ann", "shop", "budget_exceeded")
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
