"""The append-only log: checks concurrent writes against the current state and commits them in batches."""

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
from dither.privacy.bits import Bits, SystemBits
from dither.privacy.ledger.descriptions import DescriptionCache
from dither.privacy.ledger.keys import canonical_json
from dither.privacy.ledger.state import LedgerState
from dither.privacy.ledger.store import GENESIS, Row, Store, chain_row, new_salt, open_store
from dither.privacy.pacing import Clock, SystemClock
from dither.privacy.protocol import LedgerHead

BATCH = 128  # the most writes of one commit
GATHER_SECONDS = 0.001
SNAPSHOT_ROWS = 1024  # rows between two snapshots of the state
MINUTE = len("2026-01-01T00:00")  # the part of a time that names its minute
T = TypeVar("T")
# Prefixes of the state keys whose values stay in memory.
_HOT_PREFIXES = ('["spent",', '["charges",', '["population",', '["dataset",', '["account",', '["closed"]')


class _Overtaken(Exception):
    """Another process has moved the snapshot past the last row that this process has applied."""


class PendingWrite(Generic[T]):
    """A write that waits to be decided and committed with a batch, and its outcome."""

    def __init__(self, decide: Callable[[WriteBatch], T], needed_keys: Callable[[LedgerState], list[str]]) -> None:
        self._decide, self.needed_keys = decide, needed_keys
        self.done = False
        self._gate = threading.Lock()
        self._gate.acquire()
        self._outcome: T | None = None
        self._problem: Exception | None = None

    def wait(self) -> None:
        """Wait until the write is done, or until its thread must lead the next batch."""
        self._gate.acquire()

    def wake(self) -> None:
        """End the wait."""
        self._gate.release()

    def run(self, batch: WriteBatch) -> None:
        """Decide this write on the state after the earlier writes of the batch."""
        self._problem = None
        try:
            self._outcome = self._decide(batch)
        except _Overtaken:
            raise
        except Exception as problem:
            self._problem = problem

    def fail(self, problem: BaseException) -> None:
        """Record a failure to commit the batch, unless the write already failed by itself."""
        known = problem if isinstance(problem, LedgerError) else LedgerError("the ledger could not be written")
        self._problem = self._problem or known

    def result(self) -> T:
        """Return the outcome, or raise the error."""
        if self._problem is not None:
            raise self._problem
        return self._outcome  # type: ignore[return-value]


class WriteBatch:
    """Rows that will be committed together."""

    def __init__(self, state: LedgerState, head: LedgerHead, time: str, bits: Bits) -> None:
        self.state, self.head, self.time, self._bits = state, head, time, bits
        self.rows: list[Row] = []

    def add(self, kind: str, body: Mapping[str, Any]) -> Row:
        """Add a row if the rules allow it; return the row."""
        self.state.apply(kind, body, self.head.sequence + 1)
        row = chain_row(self.head, kind, self.time, canonical_json(body), new_salt(self._bits))
        self.rows.append(row)
        self.head = row.head
        return row


class AppendLog:
    """An append-only hash chain of rows that many threads and processes write, and the state that follows from it."""

    def __init__(self, place: str | Path, clock: Clock | None = None, *, create: bool = True) -> None:
        self._store: Store = open_store(place, create=create)
        self.place, self.identity = str(place), self._store.identity()
        self._clock = clock or SystemClock()
        self._bits: Bits = SystemBits()
        self._reset_for_process()

    def _reset_for_process(self) -> None:
        """Create the locks, queue and caches of this process; a forked child needs its own."""
        self._process = os.getpid()
        self._lock, self._queue_lock, self._has_leader, self._expected = threading.RLock(), threading.Lock(), False, 0
        self._waiting: list[PendingWrite[Any]] = []
        self._decoded, self._remembered_minute = DescriptionCache(), ""
        self._reload()

    def _reload(self) -> None:
        """Reload the state from the snapshot and the rows after it."""
        self._changes: dict[str, str] = {}
        self._hot: dict[str, str | None] = {}
        self._snapshot_sequence = self._store.state_at()
        last = self._snapshot_row()
        self.head, self._time = (GENESIS, "") if last is None else (last.head, last.time)
        self._catch_up()
        self._time = max(self._time, self._store.meta("clock"))

    def _catch_up(self) -> None:
        """Apply the rows that other writers have added; reload if the snapshot has moved past this process."""
        try:
            for row in self._store.rows(self.head.sequence):
                self._apply_row(row)
        except _Overtaken:
            self._reload()

    def _snapshot_row(self) -> Row | None:
        """Return the row that the snapshot ends with, or None for a new ledger."""
        row = self._store.row(self._snapshot_sequence)
        if row is None and self._snapshot_sequence:
            raise LedgerError("the ledger ends before the row of its snapshot")
        return row

    def _apply_row(self, row: Row) -> None:
        """Check and apply a row that was written after the snapshot."""
        if chain_row(self.head, row.kind, row.time, row.body, row.salt) != row:
            raise LedgerError(f"row {row.sequence} of the ledger does not follow from the rows before it")
        state = self._new_state()
        state.apply(row.kind, json.loads(row.body), row.sequence, format_3=not row.salt)
        self._record_changes(state.updates)
        self.head, self._time = row.head, row.time if row.kind == "clock" else max(self._time, row.time)

    def _record_changes(self, updates: Mapping[str, str]) -> None:
        """Record state changes since the snapshot; hot keys also stay in memory after the next snapshot."""
        self._changes.update(updates)
        self._hot.update({name: value for name, value in updates.items() if name.startswith(_HOT_PREFIXES)})

    def _submit(
        self, decide: Callable[[WriteBatch], T], needed_keys: Callable[[LedgerState], list[str]] = lambda state: []
    ) -> T:
        """Queue a write and return its outcome once it is durable; one waiting thread commits for all."""
        if self._process != os.getpid():
            self._reset_for_process()
        write = PendingWrite(decide, needed_keys)
        with self._queue_lock:
            self._waiting.append(write)
            is_leader, self._has_leader = not self._has_leader, True
        if not is_leader:
            write.wait()
        if not write.done:
            self._lead()
        return write.result()

    def _lead(self) -> None:
        """Commit the waiting writes as one batch, then let the first thread that arrived meanwhile lead the next."""
        self._wait_for_more()
        with self._queue_lock:
            writes = self._waiting[:BATCH]
            del self._waiting[: len(writes)]
        try:
            with self._lock:
                self._write_with_retry(writes)
        finally:
            with self._queue_lock:
                next_leader = self._waiting[:1]
                self._has_leader, self._expected = bool(next_leader), min(BATCH, len(self._waiting) + len(writes))
            for write in writes:
                write.done = True
            for write in (*next_leader, *writes):
                write.wake()

    def _wait_for_more(self) -> None:
        """Wait briefly for as many writes as the last batch suggests, so that they share one commit."""
        until = time.monotonic() + GATHER_SECONDS
        while len(self._waiting) < self._expected and time.monotonic() < until:
            time.sleep(GATHER_SECONDS / 20)

    def _write_with_retry(self, writes: list[PendingWrite[Any]]) -> None:
        """Commit a batch, catching up with other writers until it succeeds; on failure mark every write as failed."""
        try:
            written = self._write(writes, presume_new=True)
            while not written:
                self._catch_up()
                written = self._write(writes, presume_new=False)
        except BaseException as problem:
            for write in writes:
                write.fail(problem)
            if not isinstance(problem, LedgerError):
                raise

    def _write(self, writes: list[PendingWrite[Any]], presume_new: bool) -> bool:
        """Decide every write and commit the resulting rows; return False if another writer was faster.

        With `presume_new`, queries are taken to be new without reading the snapshot; the commit itself checks this.
        """
        batch = self._new_batch(self._new_state())
        try:
            wanted_keys = dict.fromkeys(name for write in writes for name in write.needed_keys(batch.state))
            unseen = [name for name in wanted_keys if name not in self._changes] if presume_new else []
            batch.state.fetch(wanted_keys, absent=unseen)
            for write in writes:
                write.run(batch)
        except _Overtaken:
            return False
        if not (self._store.append(self.head, batch.rows, unseen) if batch.rows else not unseen and self._is_current()):
            return False
        self._record_changes(batch.state.updates)
        self.head, self._time = batch.head, batch.time
        if self.head.sequence - self._snapshot_sequence >= SNAPSHOT_ROWS:
            self._snapshot()
        return True

    def _new_batch(self, state: LedgerState) -> WriteBatch:
        """Return an empty batch of rows after the last one, with the present time."""
        return WriteBatch(state, self.head, self._now(), self._bits)

    def _is_current(self) -> bool:
        """Return True if no other writer has added rows."""
        return self._store.head() == self.head

    def _snapshot(self) -> None:
        """Move the snapshot to the last row; on failure the rows are unaffected and a later write tries again."""
        with suppress(LedgerError):
            self._store.snapshot(self.head.sequence, self._changes)
            self._snapshot_sequence, self._changes = self.head.sequence, {}

    def _new_state(self) -> LedgerState:
        """Return the state after the last applied row, for deciding and applying rows."""
        return LedgerState(self._read_state, self._store.row, self._decoded, self._hot)

    def _read_state(self, names: list[str]) -> dict[str, str]:
        """Read state as of the last row that this process has applied; raise `_Overtaken` if the snapshot is newer."""
        known = {name: self._changes.get(name, self._hot.get(name)) for name in names}
        rest = [name for name, value in known.items() if value is None and name not in self._hot]
        stored_sequence, stored = self._store.entries(rest) if rest else (0, {})
        if stored_sequence > self.head.sequence:
            raise _Overtaken
        self._hot.update({name: stored.get(name) for name in rest if name.startswith(_HOT_PREFIXES)})
        return stored | {name: value for name, value in known.items() if value is not None}

    def _read_state_or_newer(self, names: list[str]) -> dict[str, str]:
        """Read state for readers, which may use a newer snapshot: reload and read again."""
        try:
            return self._read_state(names)
        except _Overtaken:
            self._reload()
            return self._read_state_or_newer(names)

    def _now(self) -> str:
        """Return the current time as text: the clock's, but never earlier than a row or a time seen before.

        It is stored once a minute, so that a time far ahead is known to other processes, which may set it back.
        """
        self._time = max(self._time, utc_text(self._clock.utc()))
        if self._time[:MINUTE] != self._remembered_minute:
            self._remember_time()
        return self._time

    def _remember_time(self) -> None:
        """Store the latest time seen, so that a clock that is set back revives nothing after a restart."""
        with suppress(LedgerError):
            if self._is_current():
                if self._time > self._store.meta("clock"):
                    self._store.write_meta("clock", self._time)
                self._remembered_minute = self._time[:MINUTE]

    @contextmanager
    def _latest_state(self) -> Iterator[LedgerState]:
        """Yield the current state, under the lock."""
        if self._process != os.getpid():
            self._reset_for_process()
        with self._lock:
            self._catch_up()
            yield LedgerState(self._read_state_or_newer, self._store.row, self._decoded)

    def close(self) -> None:
        """Write a last snapshot and the latest time seen, and close the database."""
        if self._process == os.getpid():
            if self._changes:
                self._snapshot()
            self._remember_time()
        self._store.close()


def utc_text(moment: datetime) -> str:
    """Format a UTC time to the second."""
    return f"{moment.replace(tzinfo=None).isoformat(timespec='seconds')}Z"
