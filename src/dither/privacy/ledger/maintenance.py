"""Maintain a ledger from outside: verify it offline, copy it, put a copy back."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from dither.errors import DitherError, LedgerError
from dither.loss import to_json
from dither.plan.context import Context
from dither.privacy.ledger.log import utc_text
from dither.privacy.ledger.state import DescriptionCache, LedgerState, canonical
from dither.privacy.ledger.store import GENESIS, Row, Store, chain_row, open_store
from dither.privacy.pacing import SystemClock
from dither.privacy.protocol import LedgerHead, UnitLoss

Appraise = Callable[[Context, str], tuple[tuple[UnitLoss, ...], Mapping[str, tuple[str, ...]]]]


@dataclass(frozen=True)
class VerificationResult:
    """How far a ledger holds: its rows and end, and the first row that does not fit (None if all do) and why."""

    rows: int
    head: LedgerHead
    first_bad: int | None = None
    problem: str = ""

    @property
    def sound(self) -> bool:
        """Whether every row fits."""
        return not self.problem


def verify(place: str | Path, appraise: Appraise | None = None, seen: LedgerHead | None = None) -> VerificationResult:
    """Recomputes hashes, rules, sums and (given `appraise`) losses from the ledger alone, and names the first misfit.

    `seen` is an end that was seen before: a chain does not show by itself that its last rows were cut off.
    """
    store = open_store(place, create=False)
    try:
        return _verify(store, appraise, seen)
    finally:
        store.close()


def _verify(store: Store, appraise: Appraise | None, seen: LedgerHead | None) -> VerificationResult:
    replay, at, snapshot = LedgerReplay(store), 0, {}
    try:
        for row in store.rows():
            if replay.head.sequence == store.state_at():
                snapshot = dict(replay.state)
            at = replay.head.sequence + 1
            replay.take(row)
            if appraise is not None and row.kind == "charge":
                replay.check_losses(json.loads(row.body), appraise)
            if seen is not None and row.sequence == seen.sequence and row.hash != seen.hash:
                raise LedgerError("the hash differs from the one that was seen")
    except DitherError as problem:
        return VerificationResult(replay.head.sequence, replay.head, at, str(problem))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        return VerificationResult(replay.head.sequence, replay.head, at, "the row is malformed")
    if seen is not None and replay.head.sequence < seen.sequence:
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
    """The state after each row, worked out anew by the rules."""

    def __init__(self, store: Store) -> None:
        self._store, self._memory = store, DescriptionCache()
        self._checked = ""
        self.state: dict[str, str] = {}
        self.head = GENESIS

    def take(self, row: Row) -> None:
        """Takes in the next row; raises if it does not follow from those before it."""
        if chain_row(self.head, row.kind, row.time, row.body) != row:
            raise LedgerError("the row's hash does not follow from the row and those before it")
        if row.time < self._checked:
            raise LedgerError("the row's time lies before the previous row's")
        body = json.loads(row.body)
        if canonical(body) != row.body:
            raise LedgerError("the row's body is not in canonical form")
        self._book().apply(row.kind, body, row.sequence)
        self.state.update(self._last.updates)
        self.head, self._checked = row.head, row.time

    def add(self, kind: str, body: Mapping[str, Any]) -> Row:
        """A further row, made now."""
        now = utc_text(SystemClock().utc())
        row = chain_row(self.head, kind, max(now, self._checked), canonical(body))
        self.take(row)
        return row

    def _book(self) -> LedgerState:
        def read(names: list[str]) -> dict[str, str]:
            return {name: self.state[name] for name in names if name in self.state}

        self._last = LedgerState(read, self._store.row, self._memory)
        return self._last

    def check_losses(self, body: Mapping[str, Any], appraise: Appraise) -> None:
        """Whether a charge's losses are those of its plan under the dataset's description at that time."""
        losses, windows = appraise(self._book().described(body["dataset"]).context, body["request"])
        if [[each.unit, each.kind, to_json(each.loss)] for each in losses] != body["losses"]:
            raise LedgerError("the losses do not follow from the plan")
        if {unit: list(names) for unit, names in windows.items()} != body["windows"]:
            raise LedgerError("the windows do not follow from the plan")


def backup(place: str | Path, copy: Path) -> LedgerHead:
    """Copies a ledger into a new SQLite file; returns the copy's end."""
    if copy.exists():
        raise LedgerError(f"{copy.name} exists already; a backup never overwrites")
    source, target = open_store(place, create=False), open_store(copy)
    try:
        return _copy(source, target)
    finally:
        source.close()
        target.close()


def restore(copy: Path, place: str | Path) -> LedgerHead:
    """Puts a copy in an empty place, closed until the curator marks what was spent since; returns the copy's end."""
    source, target = open_store(copy, create=False), open_store(place)
    try:
        return _copy(source, target, closed=True)
    finally:
        source.close()
        target.close()


def _copy(source: Store, target: Store, *, closed: bool = False) -> LedgerHead:
    """Copies every row, once each has passed the rules, the state that they lead to, and what is noted beside them.

    All of it, and the mark that closes a restored ledger, is there at once or not at all: nobody finds a copy that lets
    spend what was spent since.
    """
    replay = LedgerReplay(source)
    for row in source.rows():
        replay.take(row)
    head = replay.head
    rows = (row for row in source.rows() if row.sequence <= head.sequence)  # a ledger that is backed up goes on
    mark = [replay.add("restore", {"head": asdict(head)})] if closed else []
    try:
        # Misses count towards the lock and the statement also after a restore.
        target.rebuild(replay.head.sequence, replay.state, chain(rows, mark), source.all_notes())
    except LedgerError:
        if target.head() != GENESIS:
            raise LedgerError("there is a ledger at that place already; a copy never overwrites") from None
        raise
    return head
