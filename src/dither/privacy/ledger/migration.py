"""Migrate a ledger from format 3 to format 4: rows get a column for their salt, and the state is computed anew.

The rows stay as they are, so every head that was seen before stays valid. Everything is one transaction: a process that
is killed leaves the old ledger or the new one.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

from dither.errors import LedgerError
from dither.privacy.bits import SystemBits
from dither.privacy.ledger.added_budgets import PrivacyCostFunction
from dither.privacy.ledger.keys import KERNEL
from dither.privacy.ledger.maintenance import LedgerReplay, VerificationResult, verify
from dither.privacy.ledger.store import FORMAT, GENESIS, MIGRATES_FROM, Row, Store, attach_store, new_salt
from dither.privacy.protocol import LedgerHead

FORMAT_3_TABLES = (
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE rows (sequence INTEGER PRIMARY KEY, kind TEXT NOT NULL, time TEXT NOT NULL, body TEXT NOT NULL,"
    " hash TEXT NOT NULL)",
    "CREATE TABLE state (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE notes (number INTEGER PRIMARY KEY, kind TEXT NOT NULL, about TEXT NOT NULL, time TEXT NOT NULL,"
    " body TEXT NOT NULL)",
    "CREATE INDEX notes_about ON notes (kind, about, number)",
)


def migrate(place: str | Path, copy: Path, privacy_cost: PrivacyCostFunction | None = None) -> VerificationResult:
    """Migrate a ledger in place, after copying it to a new SQLite file; return the result of its verification.

    Like `verify`, it checks the losses of all charges if `privacy_cost` is given; if one is wrong, nothing is changed.
    """
    store = attach_store(place)
    try:
        if store.format() != MIGRATES_FROM:
            raise LedgerError(f"the ledger has format {store.format()}; only format {MIGRATES_FROM} can be migrated")
        with store.exclusive_transaction():
            _copy_format_3(store, copy)
            store.add_salt_column()
            _rebuild_state(store, privacy_cost)
    finally:
        store.close()
    result = verify(place, privacy_cost)
    if not result.sound:
        raise LedgerError(f"the migrated ledger is not valid ({result.problem}); the copy {copy.name} is unchanged")
    return result


def _copy_format_3(store: Store, copy: Path) -> None:
    """Copy a ledger of format 3 to a SQLite file; a copy that an interrupted migration left is kept."""
    if copy.exists():
        if _last_hash(copy) != store.head().hash:
            raise LedgerError(f"{copy.name} already exists and holds something else; choose another name")
        return
    draft = copy.with_name(f"{copy.name}.new")
    draft.unlink(missing_ok=True)
    with closing(sqlite3.connect(draft)) as target, target:
        for statement in FORMAT_3_TABLES:
            target.execute(statement)
        for table in ("meta", "rows", "state", "notes"):
            for stored in store.table(table):
                target.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(stored))})", stored)  # noqa: S608
    draft.chmod(0o600)
    draft.replace(copy)


def _last_hash(copy: Path) -> str:
    """Return the hash of the last row of a copy, or "" if it is no ledger."""
    try:
        with closing(sqlite3.connect(copy)) as connection:
            found = connection.execute("SELECT hash FROM rows ORDER BY sequence DESC LIMIT 1").fetchone()
    except sqlite3.Error:
        return ""
    return str(found[0]) if found else GENESIS.hash


def _rebuild_state(store: Store, privacy_cost: PrivacyCostFunction | None) -> None:
    """Check every row, compute the state by the rules of this format, and compare the totals with the stored ones."""
    replay, totals, snapshot = LedgerReplay(store), store.all_state(), store.state_at()
    if snapshot == 0:
        _check_totals(totals, {})
    for row in store.rows():
        replay.apply_row(row)
        if privacy_cost is not None and row.kind == "charge":
            replay.check_losses(json.loads(row.body), privacy_cost)
        if row.sequence == snapshot:
            _check_totals(totals, replay.state)
    if replay.head.sequence < snapshot:
        raise LedgerError("the ledger ends before the row of its snapshot; nothing was changed")
    added = _answers_of_later_charges(replay, replay.head)
    # The head always moves: a process of format 3 that still runs can then neither append nor replace the snapshot.
    added.append(replay.add("act", {"act": "migrate", "by": KERNEL, "of": ""}))
    store.write_migrated(added, replay.head.sequence, replay.state)
    for name, value in (("format", str(FORMAT)), ("identity", new_salt(SystemBits()))):
        store.write_meta(name, value)


def _check_totals(stored: dict[str, str], computed: dict[str, str]) -> None:
    """Raise if the totals of the stored snapshot do not follow from the rows."""
    before, after = ({name: each for name, each in state.items() if name.startswith('["spent",')}
                     for state in (stored, computed))  # fmt: skip
    if before != after:
        raise LedgerError("the running totals do not follow from the rows; nothing was changed")


def _answers_of_later_charges(replay: LedgerReplay, end: LedgerHead) -> list[Row]:
    """Return the rows that mark charges for another group's recorded draw as answered; format 3 had none."""
    later = [sequence for sequence in range(1, end.sequence + 1) if replay.shares_draw(sequence)]
    return [replay.add("answer", {"charge": sequence, "release": ""}) for sequence in later]
