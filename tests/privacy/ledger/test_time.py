"""Time in the ledger never goes back, whatever the clock does; a curator can end a time that was wrong."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dither.errors import InvalidParameter, InvalidToken
from dither.loss import Pure
from dither.privacy.ledger import Ledger
from dither.privacy.ledger.maintenance import backup, restore, verify
from privacy.ledger_cases import ManualClock, charge_for, dataset, pay


def test_a_clock_set_back_over_a_clean_restart_dates_no_row_before_its_predecessors(place: str, tmp_path: Path) -> None:
    """Regression: `verify` and `backup` failed for ever after."""
    clock = ManualClock()
    ledger = Ledger(place, clock)
    ledger.register(dataset(1))
    pay(ledger, charge_for(1))
    ledger.close()
    clock.pass_days(-400)
    later = Ledger(place, clock)
    pay(later, charge_for(2))
    times = [row.time for row in later.rows()]
    assert times == sorted(times) and verify(place).sound
    assert backup(place, tmp_path / "copy.sqlite") == later.head


@pytest.mark.parametrize("ended", ["a clean stop", "a kill"])
def test_a_token_that_was_refused_as_expired_is_never_accepted_again(place: str, ended: str) -> None:
    """Regression: after a restart with the clock set back, although no row was written since it expired."""
    clock = ManualClock()
    ledger = Ledger(place, clock)
    token = ledger.add_account("ann", "analyst", days=1)
    clock.pass_days(2)
    with pytest.raises(InvalidToken):
        ledger.authenticate(token)
    if ended == "a clean stop":
        ledger.close()
    clock.pass_days(-2)
    with pytest.raises(InvalidToken):
        Ledger(place, clock).authenticate(token)


def test_a_clock_that_was_far_ahead_is_undone_by_the_curator(place: str) -> None:
    clock = ManualClock()
    ledger = Ledger(place, clock)
    ledger.register(dataset(1))
    token = ledger.add_account("ann", "analyst", days=30)
    with pytest.raises(InvalidParameter, match="nothing to set back"):
        ledger.reset_time()
    clock.pass_days(3650)
    pay(ledger, charge_for(1))
    clock.pass_days(-3650)
    with pytest.raises(InvalidToken):
        ledger.authenticate(token)
    fresh = ledger.add_account("bob", "analyst", days=1)  # lasts by the ledger's time: new tokens work at once
    assert ledger.authenticate(fresh).name == "bob"
    other = Ledger(place, clock)  # another process, which catches up with the row
    assert ledger.reset_time("uid 0").startswith("2035-12-30")
    for each in (ledger, other, Ledger(place, clock)):
        assert each.authenticate(token).name == "ann"
        assert each.now() == clock.now == datetime(2026, 1, 1, tzinfo=UTC)
    pay(other, charge_for(2))
    times = [row.time for row in other.rows() if row.kind != "clock"]
    assert times != sorted(times) and verify(place).sound
    assert [row.kind for row in other.rows()][-2:] == ["clock", "charge"]
    for each in (ledger, other):
        each.close()
    clock.pass_days(-1)
    assert Ledger(place, clock).now() == clock.now + timedelta(days=1)


def test_a_copy_keeps_the_time_that_was_seen(place: str, tmp_path: Path) -> None:
    """Regression: a token that was refused as expired was accepted from a backup and from a restored ledger."""
    clock = ManualClock(datetime(2999, 1, 1, tzinfo=UTC))
    ledger = Ledger(place, clock)
    token = ledger.add_account("ann", "analyst", days=1)
    clock.pass_days(2)
    with pytest.raises(InvalidToken):
        ledger.authenticate(token)
    seen = ledger.head
    ledger.close()
    clock.pass_days(-2)
    backup(place, tmp_path / "copy.sqlite")
    restore(tmp_path / "copy.sqlite", tmp_path / "back.sqlite")
    Ledger(tmp_path / "back.sqlite", clock).mark_gap(seen, Pure(0))
    for copy in (tmp_path / "copy.sqlite", tmp_path / "back.sqlite"):
        with pytest.raises(InvalidToken):
            Ledger(copy, clock).authenticate(token)
    assert [row.time[:10] for row in Ledger(tmp_path / "back.sqlite", clock).rows()] == [
        "2999-01-01", "2999-01-03", "2999-01-03",
    ]  # fmt: skip


@pytest.mark.parametrize("seen_by", ["now", "authenticate"])
def test_a_time_that_a_running_kernel_has_seen_outlives_it_and_can_be_set_back(place: str, seen_by: str) -> None:
    """Regression: it was forgotten by a kill and by a reload, and `reset_time` elsewhere found nothing to set back."""
    clock = ManualClock()
    running = Ledger(place, clock)
    running.register(dataset(1))
    token = running.add_account("ann", "analyst", days=9999)
    clock.pass_days(3650)
    assert running.now() == clock.now if seen_by == "now" else running.authenticate(token).name == "ann"
    clock.pass_days(-3650)
    other = Ledger(place, clock)
    pay(other, charge_for(1))
    other.close()  # moves the snapshot, so that the running kernel reads its state anew
    running.history("shop", None)
    for each in (running, Ledger(place, clock)):
        assert each.now() == clock.now + timedelta(days=3650)
    assert Ledger(place, clock).reset_time().startswith("2035-12-30")
    assert running.now() == Ledger(place, clock).now() == clock.now
    running.close()
    assert Ledger(place, clock).now() == clock.now and verify(place).sound
