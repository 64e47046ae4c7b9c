"""Verify a ledger offline, back it up and restore it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from dither.errors import DitherError, LedgerError
from dither.loss import to_json
from dither.privacy.bits import SystemBits
from dither.privacy.ledger.added_budgets import PrivacyCostFunction, earlier_losses
from dither.privacy.ledger.descriptions import DatasetVersion, DescriptionCache
from dither.privacy.ledger.keys import canonical_json, key
from dither.privacy.ledger.log import utc_text
from dither.privacy.ledger.state import LedgerState
from dither.privacy.ledger.store import GENESIS, Row, Store, chain_row, new_salt, open_store
from dither.privacy.pacing import SystemClock
from dither.privacy.protocol import LedgerHead


@dataclass(frozen=True)
class VerificationResult:
    """The outcome of a verification: the number of valid rows, their head, the first invalid row and its problem."""

    rows: int
    head: LedgerHead
    first_bad: int | None = None
    problem: str = ""

    @property
    def sound(self) -> bool:
        """True if no problem was found."""
        return not self.problem


def verify(
    place: str | Path, privacy_cost: PrivacyCostFunction | None = None, seen_head: LedgerHead | None = None
) -> VerificationResult:
    """Recompute hashes, rules, totals and (given `privacy_cost`) losses from the ledger; report the first problem.

    `seen_head` is a head that was seen earlier: a hash chain alone does not show that its last rows were cut off.
    """
    store = open_store(place, create=False)
    try:
        return _verify(store, privacy_cost, seen_head)
    finally:
        store.close()


def _verify(store: Store, privacy_cost: PrivacyCostFunction | None, seen_head: LedgerHead | None) -> VerificationResult:
    """Replay every row and compare the stored snapshot with the replayed state."""
    replay, position, snapshot = LedgerReplay(store), 0, {}
    try:
        for row in store.rows():
            if replay.head.sequence == store.state_at():
                snapshot = dict(replay.state)
            position = replay.head.sequence + 1
            if privacy_cost is not None and row.kind == "dataset":
                replay.check_earlier_losses(row, privacy_cost)
            replay.apply_row(row)
            if privacy_cost is not None and row.kind == "charge":
                replay.check_losses(json.loads(row.body), privacy_cost)
            if seen_head is not None and row.sequence == seen_head.sequence and row.hash != seen_head.hash:
                raise LedgerError("the row's hash differs from the seen head")
    except DitherError as problem:
        return VerificationResult(replay.head.sequence, replay.head, position, str(problem))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        return VerificationResult(replay.head.sequence, replay.head, position, "the row is malformed")
    if seen_head is not None and replay.head.sequence < seen_head.sequence:
        return VerificationResult(
            replay.head.sequence, replay.head, replay.head.sequence + 1, "the ledger ends before a seen head"
        )
    snapshot = replay.state if replay.head.sequence == store.state_at() else snapshot
    if store.all_state() != snapshot or store.state_at() > replay.head.sequence:
        return VerificationResult(
            replay.head.sequence, replay.head, None, "the running totals do not follow from the rows"
        )
    return VerificationResult(replay.head.sequence, replay.head)


class LedgerReplay:
    """Recompute the ledger's state row by row under the rules."""

    def __init__(self, store: Store) -> None:
        self._store, self._decoded = store, DescriptionCache()
        self._last_time, self._salted = "", False
        self.state: dict[str, str] = {}
        self.head = GENESIS

    def apply_row(self, row: Row) -> None:
        """Apply the next row; raise if it does not follow from the rows before it."""
        if chain_row(self.head, row.kind, row.time, row.body, row.salt) != row:
            raise LedgerError("the row's hash does not match its contents and the row before it")
        if self._salted and not row.salt:
            raise LedgerError("the row has no salt, although earlier rows have one")
        # Rows of format 3 could be dated earlier, after a clock was set back; only a clock row may do so since.
        if row.salt and row.time < self._last_time and row.kind != "clock":
            raise LedgerError("the row's time is earlier than the previous row's")
        body = json.loads(row.body)
        if canonical_json(body) != row.body:
            raise LedgerError("the row's body is not canonical JSON")
        self._new_state().apply(row.kind, body, row.sequence, format_3=not row.salt)
        self.state.update(self._last_state.updates)
        self.head, self._last_time, self._salted = row.head, row.time, bool(row.salt)

    def add(self, kind: str, body: Mapping[str, Any]) -> Row:
        """Make and apply a row with the current time, or the latest that the ledger has seen; return it."""
        time = max(utc_text(SystemClock().utc()), self._last_time, self._store.meta("clock"))
        row = chain_row(self.head, kind, time, canonical_json(body), new_salt(SystemBits()))
        self.apply_row(row)
        return row

    def shares_draw(self, sequence: int) -> bool:
        """Return True if a row is a charge for a draw that an earlier charge received, and has no answer of its own."""
        row = self._store.row(sequence)
        root = json.loads(row.body).get("of") if row is not None and row.kind == "charge" else None
        return root is not None and key("draw", root) in self.state and key("answer", sequence) not in self.state

    def _new_state(self) -> LedgerState:
        """Return the rules on the state replayed so far."""

        def read(names: list[str]) -> dict[str, str]:
            return {name: self.state[name] for name in names if name in self.state}

        self._last_state = LedgerState(read, self._store.row, self._decoded)
        return self._last_state

    def check_earlier_losses(self, row: Row, privacy_cost: PrivacyCostFunction) -> None:
        """Check that the losses by which a dataset row starts an added budget follow from the earlier plans."""
        body = json.loads(row.body)
        dataset = DatasetVersion.of(body).dataset
        added = self._new_state().added_budgets(dataset) if row.salt else ()
        before = (each for each in self._store.rows() if each.sequence < row.sequence) if added else ()
        if added and earlier_losses(before, dataset, added, privacy_cost) != body.get("earlier"):
            raise LedgerError("the losses of earlier charges for an added budget do not match their plans")

    def check_losses(self, body: Mapping[str, Any], privacy_cost: PrivacyCostFunction) -> None:
        """Check that a charge's losses and windows follow from its plan and the dataset's description at that row."""
        losses, windows = privacy_cost(self._new_state().description(body["dataset"]).context, body["request"])
        if [[each.unit, each.kind, to_json(each.loss)] for each in losses] != body["losses"]:
            raise LedgerError("the losses of the charge do not match its plan")
        if {unit: list(names) for unit, names in windows.items()} != body["windows"]:
            raise LedgerError("the windows of the charge do not match its plan")


def backup(place: str | Path, copy: Path) -> LedgerHead:
    """Copy a ledger into a new SQLite file; return the copy's head."""
    if copy.exists():
        raise LedgerError(f"{copy.name} already exists; a backup never overwrites a file: choose another name")
    source, target = open_store(place, create=False), open_store(copy)
    try:
        return _copy(source, target)
    finally:
        source.close()
        target.close()


def restore(copy: Path, place: str | Path) -> LedgerHead:
    """Restore a copy to an empty place, closed until the curator marks the gap as spent; return the copy's head."""
    source, target = open_store(copy, create=False), open_store(place)
    try:
        return _copy(source, target, closed=True)
    finally:
        source.close()
        target.close()


def _copy(source: Store, target: Store, *, closed: bool = False) -> LedgerHead:
    """Check every row, then copy the rows, the state that follows from them, the side notes and the latest time seen.

    The copy and the row that closes a restored ledger are written in one transaction, so nobody can open a copy that
    would allow budget to be spent twice.
    """
    replay = LedgerReplay(source)
    for row in source.rows():
        replay.apply_row(row)
    head = replay.head
    rows = (row for row in source.rows() if row.sequence <= head.sequence)  # the source may grow while it is copied
    closing_rows = [replay.add("restore", {"head": asdict(head)})] if closed else []
    try:
        # Side notes are copied too: misses before a restore still count towards the lock and the privacy statement.
        chained, meta = chain(rows, closing_rows), {name: source.meta(name) for name in ("identity", "clock")}
        target.rebuild(replay.head.sequence, replay.state, chained, source.all_notes(), meta)
    except LedgerError:
        if target.head() != GENESIS:
            raise LedgerError("there is already a ledger at that place; a copy never overwrites one") from None
        raise
    return head
