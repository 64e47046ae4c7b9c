"""Verification: tampering, forged rows and truncation are detected."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dither.errors import LedgerError
from dither.privacy.ledger.keys import canonical_json
from dither.privacy.ledger.maintenance import verify
from dither.privacy.ledger.store import chain_row, open_store
from dither.privacy.protocol import LedgerHead
from privacy.ledger_cases import TamperedCopy, busy_ledger, execute


def test_a_second_answer_row_breaks_the_rules(tmp_path: Path) -> None:
    place = tmp_path / "l.sqlite"
    ledger = busy_ledger(str(place))
    ledger.close()
    store = open_store(place)
    answer = next(row for row in store.rows() if row.kind == "answer")
    extra = chain_row(store.head(), "answer", answer.time, answer.body.replace("the answer", "another draw"), "a" * 32)
    assert store.append(store.head(), [extra])
    assert verify(place).first_bad == extra.sequence


def test_an_untouched_ledger_verifies(place: str) -> None:
    ledger = busy_ledger(place)
    verdict = verify(place)
    assert verdict.sound and verdict.head == ledger.head and verdict.rows == 6


def test_a_change_of_any_byte_of_any_row_is_detected(tmp_path: Path, tier: Any) -> None:
    place = tmp_path / "l.sqlite"
    busy_ledger(str(place)).close()
    with sqlite3.connect(place) as connection:
        cells = [(row, column, str(value)) for row, *rest in connection.execute("SELECT * FROM rows")
                 for column, value in zip(("kind", "time", "body", "hash", "salt"), rest, strict=True)]  # fmt: skip
    spots = [(row, column, at, value) for row, column, value in cells for at in range(len(value))]
    chosen = spots if tier.name == "deep" else random.Random(5).sample(spots, tier.pick(quick=10, test=200, deep=0))
    for row, column, at, value in chosen:
        changed = value[:at] + chr(ord(value[at]) ^ 1) + value[at + 1 :]
        with TamperedCopy(place, tmp_path) as copy:
            execute(copy, f"UPDATE rows SET {column} = ? WHERE sequence = ?", changed, row)
            assert verify(copy).first_bad == row, (row, column, at)
    print(f"tampering: {len(chosen)} of {len(spots)} bytes changed one by one, each found at its row")


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM rows WHERE sequence = 4",
        "UPDATE rows SET sequence = 60 WHERE sequence = 6",
        "UPDATE state SET value = '0 0' WHERE key LIKE '[\"spent\"%'",
        "DELETE FROM state WHERE key LIKE '[\"answer\"%'",
        "INSERT INTO state VALUES ('[\"paid\",\"blue\"]', '3')",
        "INSERT INTO rows SELECT 7, kind, time, body, hash, salt FROM rows WHERE sequence = 6",
    ],
)
def test_rows_and_totals_cannot_be_dropped_moved_or_made_up(tmp_path: Path, statement: str) -> None:
    place = tmp_path / "l.sqlite"
    busy_ledger(str(place)).close()
    with TamperedCopy(place, tmp_path) as copy:
        execute(copy, statement)
        assert not verify(copy).sound


@pytest.mark.tier("test")
def test_a_forger_who_recomputes_the_hashes_still_breaks_a_rule(tmp_path: Path) -> None:
    """A charge that is edited breaks a rule, even if every hash after it is recomputed."""
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
        assert verify_relinked(place, tmp_path / "forged.sqlite", 5, edit).first_bad == 5


def verify_relinked(place: Path, forged: Path, sequence: int, edit: Callable[[dict[str, Any]], object]) -> Any:
    """Edit a row, recompute every hash, and verify the result."""
    for old in forged.parent.glob(f"{forged.name}*"):
        old.unlink()
    source, target = open_store(place), open_store(forged)
    head = target.head()
    for row in source.rows():
        body = json.loads(row.body)
        if row.sequence == sequence:
            edit(body)
        new = chain_row(head, row.kind, row.time, canonical_json(body), row.salt)
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
    changed = chain_row(before.head, row.kind, row.time, row.body.replace("the answer", "another draw"), row.salt)
    store.close()
    with TamperedCopy(place, tmp_path) as copy:
        execute(copy, "UPDATE rows SET body = ?, hash = ? WHERE sequence = 4", changed.body, changed.hash)
        assert verify(copy).first_bad == 5


def test_the_database_itself_refuses_to_change_rows(place: str) -> None:
    ledger = busy_ledger(place)
    before = ledger.rows()
    store = open_store(place)
    for statement in ("UPDATE rows SET body = 'x'", "DELETE FROM rows"):
        try:
            store._execute(statement)  # type: ignore[attr-defined]
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
    with TamperedCopy(place, tmp_path) as copy:
        execute(copy, "DELETE FROM rows WHERE sequence = 6")
        assert "seen" in verify(copy, seen_head=seen).problem
    assert verify(place, seen_head=seen).sound
    assert not verify(place, seen_head=LedgerHead(3, "f" * 64)).sound
