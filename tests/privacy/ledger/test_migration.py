"""Migration from format 3: stored ledgers become format 4, keep their balances and answers, and lose nothing."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from dither.errors import LedgerError
from dither.privacy.codec import RESPONSE, decode
from dither.privacy.cost import recompute_losses
from dither.privacy.ledger import Ledger, Receipt
from dither.privacy.ledger.keys import canonical_json
from dither.privacy.ledger.maintenance import backup, verify
from dither.privacy.ledger.migration import migrate
from dither.privacy.ledger.store import GENESIS, attach_store, chain_row
from dither.privacy.protocol import LedgerHead, Release
from privacy.ledger.test_durability import Killer
from privacy.ledger_cases import ONE, ManualClock, charge_for, dataset, recorded, teams, total_spent

FIXTURES = Path(__file__).parents[1] / "fixtures"
OLD = FIXTURES / "ledger_format3.sqlite"


def stored_ledger(place: str, fixture: Path = OLD) -> str:
    """Put the stored ledger of format 3 at a place: a copy of the file, or its tables in a database."""
    if not place.startswith("postgres"):
        shutil.copy(fixture, place)
        return place
    source = sqlite3.connect(fixture)
    with psycopg.connect(place, autocommit=True) as target:
        for (statement,) in source.execute("SELECT sql FROM sqlite_master WHERE sql LIKE 'CREATE TABLE%'"):
            target.execute(statement.replace("INTEGER", "BIGINT").replace(" WITHOUT ROWID", ""))
        for table in ("meta", "rows", "state", "notes"):
            for row in source.execute(f"SELECT * FROM {table}"):
                target.execute(f"INSERT INTO {table} VALUES ({', '.join(['%s'] * len(row))})", row)
        for rule in ("UPDATE", "DELETE"):
            target.execute(f"CREATE RULE rows_{rule.lower()} AS ON {rule} TO rows DO INSTEAD NOTHING")
    source.close()
    return place


def last_hash(fixture: Path) -> tuple[int, str]:
    with sqlite3.connect(fixture) as connection:
        found: tuple[int, str] = connection.execute("SELECT sequence, hash FROM rows ORDER BY sequence DESC").fetchone()
    return found


def test_an_old_ledger_is_refused_with_the_command_that_migrates_it(place: str, tmp_path: Path) -> None:
    stored_ledger(place)
    for act in (Ledger, verify, lambda old: backup(old, tmp_path / "copy.sqlite")):
        with pytest.raises(LedgerError, match=r"format 3; .* run: dither ledger migrate"):
            act(place)
    assert not (tmp_path / "copy.sqlite").exists()


def test_a_migrated_ledger_keeps_its_rows_balances_answers_and_notes(place: str, tmp_path: Path) -> None:
    """The stored ledger has rows of every kind, a snapshot behind its end, and a row dated before its predecessors."""
    stored_ledger(place)
    result = migrate(place, tmp_path / "old.sqlite")
    sequence, digest = last_hash(OLD)
    assert result.sound and result.rows == sequence + 2  # the answer of the second group is received; the migration
    ledger = Ledger(place, ManualClock())
    assert ledger.rows()[sequence - 1].hash == digest and ledger.check_head(LedgerHead(sequence, digest))
    gap, size = ONE // 20, ONE // 100
    assert total_spent(ledger, "ann", "group") == [(size + ONE // 4 + gap + 6 * ONE // 50, 0)]
    assert total_spent(ledger, "cyd", "group") == [(size + ONE // 4 + ONE // 8 + gap, 0)]
    assert [(entry.sequence, entry.account, entry.answered) for entry in ledger.history("shop", "cyd")] == [
        (1, "kernel", True), (2, "cyd", True), (3, "dan", False),
    ]  # fmt: skip
    assert ledger.charge(charge_for("q", "1/4", request_id="r")) == recorded(7, "the answer", paid=True)
    assert ledger.charge(charge_for("q", "1/4", "dan")) == recorded(7, "the answer", paid=True)
    assert len(ledger.misses("shop")[0]) == 1 and ledger.misses("shop")[1] == 0 and len(ledger.refusals("shop")) == 1
    assert isinstance(ledger.charge(charge_for("new", "1/50")), Receipt)
    assert all(row.salt for row in ledger.rows()[sequence:]) and verify(place).sound
    with pytest.raises(LedgerError, match="only format 3"):
        migrate(place, tmp_path / "again.sqlite")


def test_the_copy_that_a_migration_keeps_can_be_migrated_too(place: str, tmp_path: Path) -> None:
    stored_ledger(place)
    migrate(place, tmp_path / "old.sqlite")
    assert last_hash(tmp_path / "old.sqlite") == last_hash(OLD)
    assert migrate(tmp_path / "old.sqlite", tmp_path / "older.sqlite").sound


def test_what_a_kernel_recorded_can_be_read_and_checked_after_migration(place: str, tmp_path: Path) -> None:
    """Requests and releases of format 3 have fields that are no longer written."""
    stored_ledger(place, FIXTURES / "kernel_format3.sqlite")
    migrate(place, tmp_path / "old.sqlite")
    assert verify(place, recompute_losses).sound
    ledger = Ledger(place)
    answers = [json.loads(row.body)["release"] for row in ledger.rows() if row.kind == "answer"]
    releases = [decode(text.encode(), Release, RESPONSE) for text in answers if text]
    assert len(answers) == 4 and [len(release.parts[0].values) for release in releases] == [1, 3, 3]


@pytest.mark.parametrize(
    "damage", ["UPDATE state SET value = '1 0' WHERE key LIKE '[\"spent\"%'", "UPDATE rows SET body = body || ' '"]
)
def test_a_damaged_ledger_is_not_migrated(tmp_path: Path, damage: str) -> None:
    place = tmp_path / "l.sqlite"
    shutil.copy(OLD, place)
    with sqlite3.connect(place) as connection:
        connection.execute("DROP TRIGGER rows_kept")
        connection.execute(damage)
    with pytest.raises(LedgerError):
        migrate(place, tmp_path / "old.sqlite")
    with sqlite3.connect(place) as connection:
        assert connection.execute("SELECT value FROM meta WHERE name = 'format'").fetchone() == ("3",)
        assert len(connection.execute("SELECT * FROM rows").fetchone()) == 5


def test_a_ledger_whose_losses_were_lowered_is_not_migrated(tmp_path: Path) -> None:
    """Regression: rows that were chained again with smaller losses were migrated, although `verify` refuses them."""
    place, head = tmp_path / "l.sqlite", GENESIS
    shutil.copy(FIXTURES / "kernel_format3.sqlite", place)
    with sqlite3.connect(place) as connection:
        connection.execute("DROP TRIGGER rows_kept")
        for sequence, kind, time, text in connection.execute("SELECT sequence, kind, time, body FROM rows").fetchall():
            body = json.loads(text)
            if kind == "charge":
                body["losses"] = [[unit, of, {**loss, "epsilon": "1/1000000"}] for unit, of, loss in body["losses"]]
                body["costs"] = [[10**9, *cost[1:]] for cost in body["costs"]]
            row = chain_row(head, kind, time, canonical_json(body), "")
            connection.execute("UPDATE rows SET body = ?, hash = ? WHERE sequence = ?", (row.body, row.hash, sequence))
            head = row.head
        connection.execute("DELETE FROM state")
        connection.execute("DELETE FROM meta WHERE name = 'state'")
    with pytest.raises(LedgerError, match="losses of the charge do not match its plan"):
        migrate(place, tmp_path / "old.sqlite", recompute_losses)
    assert attach_store(place).format() == 3
    assert migrate(place, tmp_path / "old.sqlite").sound and not verify(place, recompute_losses).sound


def test_a_process_of_format_3_that_still_runs_changes_nothing_more(place: str, tmp_path: Path) -> None:
    """Regression: it could append to the ledger in a database, and overwrote the state of a file when it closed."""
    shutil.copy(OLD, tmp_path / "short.sqlite")
    with closing(sqlite3.connect(tmp_path / "short.sqlite")) as connection, connection:
        for statement in ("DROP TRIGGER rows_stay", "DELETE FROM rows WHERE sequence > 2", "DELETE FROM state"):
            connection.execute(statement)
        connection.execute("DELETE FROM meta WHERE name = 'state'")
    stored_ledger(place, tmp_path / "short.sqlite")
    migrate(place, tmp_path / "old.sqlite")
    store, old_head = attach_store(place), LedgerHead(*last_hash(tmp_path / "short.sqlite"))
    assert not store.append(old_head, [chain_row(old_head, "act", "2030-01-01T00:00:00Z", "{}", "")])
    store.snapshot(old_head.sequence, {"of the old process": "1"})
    assert verify(place).sound and Ledger(place).head.sequence == old_head.sequence + 1


def test_a_migration_never_overwrites_a_file(tmp_path: Path) -> None:
    place, copy = tmp_path / "l.sqlite", tmp_path / "old.sqlite"
    shutil.copy(OLD, place)
    copy.write_text("something else")
    with pytest.raises(LedgerError, match="holds something else"):
        migrate(place, copy)
    assert copy.read_text() == "something else" and last_hash(place) == last_hash(OLD)


def test_a_migration_killed_at_any_step_loses_nothing(place: str, tmp_path: Path, tier: Any) -> None:
    """Each child kills itself after a number of lines; the next migration, or the ledger itself, is whole."""
    rounds, finished = tier.pick(quick=4, test=25, deep=200), 0
    stored_ledger(place)
    copy = tmp_path / "old.sqlite"
    for number in range(rounds):
        child = os.fork()
        if child == 0:
            try:
                sys.settrace(Killer(1 + 11_000 * number // rounds))
                migrate(place, copy)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        try:
            assert verify(place).sound
            finished += 1
        except LedgerError as problem:
            assert "format 3" in str(problem) and not finished
    if not finished:
        assert migrate(place, copy).sound
    assert total_spent(Ledger(place), "ann", "group") == [(ONE * 43 // 100, 0)]
    assert last_hash(copy) == last_hash(OLD)


def test_a_new_ledger_needs_no_migration(place: str, tmp_path: Path) -> None:
    Ledger(place).register(dataset(1, groups=teams()))
    with pytest.raises(LedgerError, match="only format 3"):
        migrate(place, tmp_path / "old.sqlite")
