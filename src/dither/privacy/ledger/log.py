"""How rows get into the ledger: those who wait are served together, in one durable step, on the state as it stands."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Generic, TypeVar

from dither.errors import LedgerError
from dither.privacy.ledger.state import DescriptionCache, LedgerState, canonical
from dither.privacy.ledger.store import GENESIS, Row, Store, chain_row, open_store
from dither.privacy.pacing import Clock, SystemClock
from dither.privacy.protocol import LedgerHead

BATCH = 128
GATHER_SECONDS = 0.001
SNAPSHOT_ROWS = 1024
T = TypeVar("T")
_HOT = ('["spent",', '["charges",', '["population",', '["dataset",', '["account",', '["closed"]')  # kept in memory


class _Overtaken(Exception):
    """Another process has moved the snapshot past the last row that was seen here."""


class PendingWrite(Generic[T]):
    """One decision that waits for its turn, and then its outcome."""

    def __init__(self, decide: Callable[[WriteBatch], T], wants: Callable[[LedgerState], list[str]]) -> None:
        self._decide, self.wants = decide, wants
        self.done = False
        self._gate = threading.Lock()
        self._gate.acquire()
        self._outcome: T | None = None
        self._problem: Exception | None = None

    def wait(self) -> None:
        """Waits until it is done, or until it is its turn to lead."""
        self._gate.acquire()

    def wake(self) -> None:
        """Ends the wait."""
        self._gate.release()

    def run(self, draft: WriteBatch) -> None:
        """Decides, on the state as the tickets before it leave it."""
        self._problem = None
        try:
            self._outcome = self._decide(draft)
        except _Overtaken:
            raise
        except Exception as problem:
            self._problem = problem

    def fail(self, problem: BaseException) -> None:
        """What was decided may not have been written."""
        known = problem if isinstance(problem, LedgerError) else LedgerError("the ledger could not be written")
        self._problem = self._problem or known

    def result(self) -> T:
        """The outcome, or the error."""
        if self._problem is not None:
            raise self._problem
        return self._outcome  # type: ignore[return-value]


class WriteBatch:
    """Rows that are about to be written together."""

    def __init__(self, book: LedgerState, head: LedgerHead, last_time: str, now: str) -> None:
        self.book, self.head, self.time = book, head, max(now, last_time)
        self.rows: list[Row] = []

    def add(self, kind: str, body: Mapping[str, Any]) -> Row:
        """The next row, if the rules allow it."""
        self.book.apply(kind, body, self.head.sequence + 1)
        row = chain_row(self.head, kind, self.time, canonical(body))
        self.rows.append(row)
        self.head = row.head
        return row


class AppendLog:
    """An append-only chain of rows that many threads and processes write, and the state that follows from it."""

    def __init__(self, place: str | Path, clock: Clock | None = None, *, create: bool = True) -> None:
        self._store: Store = open_store(place, create=create)
        self._clock = clock or SystemClock()
        self._renew()

    def _renew(self) -> None:
        """What belongs to one process: a forked child starts with its own."""
        self._process = os.getpid()
        self._turn, self._queue, self._led, self._expected = threading.RLock(), threading.Lock(), False, 0
        self._waiting: list[PendingWrite[Any]] = []
        self._memory = DescriptionCache()
        self._forget()

    def _forget(self) -> None:
        """Starts from the snapshot and the rows after it."""
        self._changes: dict[str, str] = {}
        self._hot: dict[str, str | None] = {}
        self._base = self._store.state_at()
        self.head, self._time = self._base_head(), ""
        self._catch_up()

    def _catch_up(self) -> None:
        """Takes in the rows that others have written; should the snapshot overtake this, starts from there."""
        try:
            for row in self._store.rows(self.head.sequence):
                self._take(row)
        except _Overtaken:
            self._forget()

    def _base_head(self) -> LedgerHead:
        row = self._store.row(self._base)
        if row is None and self._base:
            raise LedgerError("the ledger's rows end before its snapshot")
        return row.head if row else GENESIS

    def _take(self, row: Row) -> None:
        """Takes in a row that was written after the snapshot, by the rules."""
        if chain_row(self.head, row.kind, row.time, row.body) != row:
            raise LedgerError(f"row {row.sequence} of the ledger does not follow from those before it")
        book = self._book()
        book.apply(row.kind, json.loads(row.body), row.sequence)
        self._remember(book.updates)
        self.head, self._time = row.head, row.time

    def _remember(self, updates: Mapping[str, str]) -> None:
        """What rows after the snapshot changed; the hot part is at hand in any case."""
        self._changes.update(updates)
        self._hot.update({name: value for name, value in updates.items() if name.startswith(_HOT)})

    def _submit(
        self, decide: Callable[[WriteBatch], T], wants: Callable[[LedgerState], list[str]] = lambda book: []
    ) -> T:
        """What was decided, once it is durable: one of those who wait leads, and writes for all of them."""
        if self._process != os.getpid():
            self._renew()
        ticket = PendingWrite(decide, wants)
        with self._queue:
            self._waiting.append(ticket)
            leads, self._led = not self._led, True
        if not leads:
            ticket.wait()
        if not ticket.done:
            self._lead()
        return ticket.result()

    def _lead(self) -> None:
        """Serves those who wait, and lets the first of those who came meanwhile lead next."""
        self._gather()
        with self._queue:
            tickets = self._waiting[:BATCH]
            del self._waiting[: len(tickets)]
        try:
            with self._turn:
                self._serve(tickets)
        finally:
            with self._queue:
                following = self._waiting[:1]
                self._led, self._expected = bool(following), min(BATCH, len(self._waiting) + len(tickets))
            for ticket in tickets:
                ticket.done = True
            for ticket in (*following, *tickets):
                ticket.wake()

    def _gather(self) -> None:
        """Waits a moment for as many as were here last time: they share one durable step."""
        until = time.monotonic() + GATHER_SECONDS
        while len(self._waiting) < self._expected and time.monotonic() < until:
            time.sleep(GATHER_SECONDS / 20)

    def _serve(self, tickets: list[PendingWrite[Any]]) -> None:
        try:
            written = self._write(tickets, presuming=True)
            while not written:
                self._catch_up()
                written = self._write(tickets, presuming=False)
        except BaseException as problem:
            for ticket in tickets:
                ticket.fail(problem)
            if not isinstance(problem, LedgerError):
                raise

    def _write(self, tickets: list[PendingWrite[Any]], presuming: bool) -> bool:
        """Decides for every ticket and writes what they decided; false if another writer was faster.

        When presuming, questions are taken for new without looking, and the same step that writes makes sure of it.
        """
        draft = WriteBatch(self._book(), self.head, self._time, self._now())
        try:
            asked = dict.fromkeys(name for ticket in tickets for name in ticket.wants(draft.book))
            new = [name for name in asked if name not in self._changes] if presuming else []
            draft.book.fetch(asked, absent=new)
            for ticket in tickets:
                ticket.run(draft)
        except _Overtaken:
            return False
        if not (self._store.append(self.head, draft.rows, new) if draft.rows else not new and self._current()):
            return False
        self._remember(draft.book.updates)
        self.head, self._time = draft.head, draft.rows[-1].time if draft.rows else self._time
        if self.head.sequence - self._base >= SNAPSHOT_ROWS:
            self._snapshot()
        return True

    def _current(self) -> bool:
        return self._store.head() == self.head

    def _snapshot(self) -> None:
        """Moves the snapshot on; if that fails the rows still stand, and it is tried again later."""
        with suppress(LedgerError):
            self._store.snapshot(self.head.sequence, self._changes)
            self._base, self._changes = self.head.sequence, {}

    def _book(self) -> LedgerState:
        return LedgerState(self._state, self._store.row, self._memory, self._hot)

    def _state(self, names: list[str]) -> dict[str, str]:
        """State after the last row that was seen."""
        known = {name: self._changes.get(name, self._hot.get(name)) for name in names}
        rest = [name for name, value in known.items() if value is None and name not in self._hot]
        at, found = self._store.state(rest) if rest else (0, {})
        if at > self.head.sequence:
            raise _Overtaken
        self._hot.update({name: found.get(name) for name in rest if name.startswith(_HOT)})
        return found | {name: value for name, value in known.items() if value is not None}

    def _state_or_newer(self, names: list[str]) -> dict[str, str]:
        """The same for readers, who may see a little ahead."""
        try:
            return self._state(names)
        except _Overtaken:
            self._forget()
            return self._state_or_newer(names)

    def _now(self) -> str:
        return utc_text(self._clock.utc())

    @contextmanager
    def _reading(self) -> Iterator[LedgerState]:
        """The state as it stands."""
        if self._process != os.getpid():
            self._renew()
        with self._turn:
            self._catch_up()
            yield LedgerState(self._state_or_newer, self._store.row, self._memory)

    def close(self) -> None:
        """Lets go of the database."""
        if self._changes and self._process == os.getpid():
            self._snapshot()
        self._store.close()


def utc_text(moment: datetime) -> str:
    """A moment to the second."""
    return f"{moment.replace(tzinfo=None).isoformat(timespec='seconds')}Z"
