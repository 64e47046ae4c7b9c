"""Where a ledger's rows are kept: a SQLite file, or a PostgreSQL database that several kernels share.

A store knows nothing of budgets. It appends rows in one durable step that succeeds only if the ledger still ends where
the writer thinks it does. It keeps a snapshot of the state that followed from the rows up to some row, so that nobody
has to start from the first one, and notes beside the rows what is not in the chain.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from dither.errors import LedgerError
from dither.privacy.protocol import LedgerHead

FORMAT = 3
GENESIS = LedgerHead(0, "0" * 64)
BUSY_SECONDS = 60.0
MOST_REFUSALS = 10_000
TABLES = (
    "CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS rows (sequence {integer} PRIMARY KEY, kind TEXT NOT NULL, time TEXT NOT NULL,"
    " body TEXT NOT NULL, hash TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS state (key TEXT PRIMARY KEY, value TEXT NOT NULL){clustered}",
    "CREATE TABLE IF NOT EXISTS notes (number {integer} PRIMARY KEY, kind TEXT NOT NULL, about TEXT NOT NULL,"
    " time TEXT NOT NULL, body TEXT NOT NULL)",
    "CREATE INDEX IF NOT EXISTS notes_about ON notes (kind, about, number)",
)
SQLITE_GUARDS = (
    "CREATE TRIGGER IF NOT EXISTS rows_kept BEFORE UPDATE ON rows BEGIN SELECT RAISE(ABORT, 'append-only'); END",
    "CREATE TRIGGER IF NOT EXISTS rows_stay BEFORE DELETE ON rows BEGIN SELECT RAISE(ABORT, 'append-only'); END",
)
POSTGRES_GUARDS = (
    "CREATE OR REPLACE RULE rows_kept AS ON UPDATE TO rows DO INSTEAD NOTHING",
    "CREATE OR REPLACE RULE rows_stay AS ON DELETE TO rows DO INSTEAD NOTHING",
)
SNAPSHOT_AT = "SELECT '', value FROM meta WHERE name = 'state'"
REPLACING = "ON CONFLICT ({}) DO UPDATE SET value = excluded.value"
ENDING = """
WHERE %s = coalesce((SELECT hash FROM rows WHERE sequence = %s), %s)
AND NOT EXISTS (SELECT FROM state WHERE key = ANY(string_to_array(%s, E'\\n')))
"""
ARRAYS = "unnest(%b::bigint[], %b::text[], %b::text[], %b::text[], %b::text[])"
APPEND_ONE = f"INSERT INTO rows SELECT %s::bigint, %s, %s, %s, %s {ENDING}"
APPEND_ALL = f"INSERT INTO rows SELECT * FROM {ARRAYS} {ENDING}"  # noqa: S608 constants


class Row(NamedTuple):
    """A row of the chain: its hash covers everything before it."""

    sequence: int
    kind: str
    time: str
    body: str
    hash: str

    @property
    def head(self) -> LedgerHead:
        """The ledger's end, if this is its last row."""
        return LedgerHead(self.sequence, self.hash)


class SideNote(NamedTuple):
    """Something kept beside the chain: a refusal, a late answer, a lock."""

    number: int
    kind: str
    about: str
    time: str
    body: str


def chain_row(head: LedgerHead, kind: str, time: str, body: str) -> Row:
    """The row that follows `head`; only the body, which comes last, may hold a line's end."""
    if "\n" in kind or "\n" in time:
        raise LedgerError("a row's kind and time are single lines")
    sequence = head.sequence + 1
    covered = f"{head.hash}\n{sequence}\n{kind}\n{time}\n{body}"
    return Row(sequence, kind, time, body, hashlib.sha256(covered.encode()).hexdigest())


def open_store(place: str | Path, *, create: bool = True) -> Store:
    """Open the store at a file's path or a postgresql:// address; refuse an older or newer format."""
    text = str(place)
    postgres = text.startswith(("postgresql://", "postgres://"))
    store: Store = PostgresStore(text, create=create) if postgres else SqliteStore(Path(place), create=create)
    check_format(store.format())
    return store


class Store(ABC):
    """Rows, the state that follows from them, and notes beside them; `_mark` is how a driver spells a query's `?`."""

    _mark = "?"
    _among = "IN (SELECT value FROM json_each(?))"
    _pairs = "json_each(?)"
    _types: Mapping[str, str]
    _guards: Sequence[str]
    _process: int
    _connection: Any
    _inherited: tuple[object, ...] = ()  # a forked child must not close what its parent still uses

    @abstractmethod
    def append(self, head: LedgerHead, rows: Sequence[Row], absent: Sequence[str] = ()) -> bool:
        """Durably adds rows, all or none; false if the ledger ends elsewhere or its snapshot has a key of `absent`."""

    @abstractmethod
    def _connected(self) -> Any:
        """This process's connection."""

    @abstractmethod
    def _errors(self) -> AbstractContextManager[None]:
        """Turns the driver's errors into ours."""

    @abstractmethod
    def _alone(self) -> AbstractContextManager[None]:
        """One durable write transaction, which excludes others of its kind."""

    def _run(self, query: str, *values: object) -> None:
        with self._errors():
            self._connected().execute(query.replace("?", self._mark), values)

    def _all(self, query: str, *values: object) -> list[Any]:
        with self._errors():
            found: list[Any] = self._connected().execute(query.replace("?", self._mark), values).fetchall()
            return found

    def close(self) -> None:
        """Closes this process's connection."""
        if self._process == os.getpid():
            self._connection.close()

    def head(self) -> LedgerHead:
        """The ledger's end."""
        found = self._all("SELECT sequence, hash FROM rows ORDER BY sequence DESC LIMIT 1")
        return LedgerHead(*found[0]) if found else GENESIS

    def row(self, sequence: int) -> Row | None:
        """One row."""
        found = self._all("SELECT * FROM rows WHERE sequence = ?", sequence)
        return Row(*found[0]) if found else None

    def rows(self, after: int = 0) -> Iterator[Row]:
        """Every row after a sequence number, in order."""
        while found := self._all("SELECT * FROM rows WHERE sequence > ? ORDER BY sequence LIMIT 1000", after):
            yield from (Row(*each) for each in found)
            after = found[-1][0]

    def state(self, keys: Sequence[str]) -> tuple[int, dict[str, str]]:
        """The row up to which the snapshot goes, and the values in it of those keys that have one."""
        query = f"SELECT key, value FROM state WHERE key {self._among} UNION ALL {SNAPSHOT_AT}"  # noqa: S608
        found = dict(self._all(query, json.dumps(keys)))
        return int(found.pop("", 0)), found

    def all_state(self) -> dict[str, str]:
        """The whole snapshot."""
        return dict(self._all("SELECT key, value FROM state"))

    def state_at(self) -> int:
        """The row up to which the snapshot goes."""
        found = self._all("SELECT value FROM meta WHERE name = 'state'")
        return int(found[0][0]) if found else 0

    def snapshot(self, sequence: int, changes: Mapping[str, str]) -> None:
        """Moves the snapshot on to a row, in one transaction."""
        with self._alone():
            if self.state_at() > sequence:
                return
            self._keep(changes)
            self._set("state", sequence)

    def _keep(self, state: Mapping[str, str]) -> None:
        query = f"INSERT INTO state SELECT key, value FROM {self._pairs} WHERE true {REPLACING.format('key')}"  # noqa: S608
        self._run(query, json.dumps(state))

    def _set(self, name: str, value: int) -> None:
        self._run(f"INSERT INTO meta VALUES (?, ?) {REPLACING.format('name')}", name, str(value))  # noqa: S608

    def note(self, kind: str, about: str, time: str, body: str) -> None:
        """Keeps something beside the chain."""
        last = "(SELECT coalesce(max(number), 0) FROM notes)"
        with self._alone():
            self._run(f"INSERT INTO notes VALUES ({last} + 1, ?, ?, ?, ?)", kind, about, time, body)  # noqa: S608
            self._run(f"DELETE FROM notes WHERE kind = 'refusal' AND number <= {last} - ?", MOST_REFUSALS)  # noqa: S608

    def notes(self, kind: str, about: str) -> list[SideNote]:
        """What was noted, oldest first."""
        found = self._all("SELECT * FROM notes WHERE kind = ? AND about = ? ORDER BY number", kind, about)
        return [SideNote(*each) for each in found]

    def all_notes(self) -> list[SideNote]:
        """Everything that was noted, oldest first."""
        return [SideNote(*each) for each in self._all("SELECT * FROM notes ORDER BY number")]

    def format(self) -> int:
        """The version of the layout."""
        found = self._all("SELECT value FROM meta WHERE name = 'format'")
        return int(found[0][0]) if found else 0

    def _lay_out(self) -> None:
        """Makes the tables of a new ledger."""
        with self._alone():
            for statement in (*TABLES, *self._guards):
                self._run(statement.format_map(self._types))
            self._set("format", FORMAT)

    def rebuild(
        self, sequence: int, state: Mapping[str, str], rows: Iterable[Row] = (), notes: Iterable[SideNote] = ()
    ) -> None:
        """Fill an empty place with a copy, in one transaction."""
        with self._alone():
            for statement in (*TABLES, *self._guards):
                self._run(statement.format_map(self._types))
            self._run("DELETE FROM state")
            for table, found in (("rows", rows), ("notes", notes)):
                insert = f"INSERT INTO {table} VALUES ({', '.join([self._mark] * 5)})"  # noqa: S608 constants
                self._connected().cursor().executemany(insert, found)
            self._keep(state)
            self._set("state", sequence)
            self._set("format", FORMAT)


class SqliteStore(Store):
    """One file, in WAL mode, synced on every commit; safe to open from several processes."""

    _connection: sqlite3.Connection
    _types = {"integer": "INTEGER", "clustered": " WITHOUT ROWID"}
    _guards = SQLITE_GUARDS

    def __init__(self, path: Path, *, create: bool = True) -> None:
        if not create and not path.exists():
            raise LedgerError(f"there is no ledger at {path.name}")
        self._path = path
        if not path.exists():
            with suppress(OSError):  # the driver says what is wrong; answers and hashes are their owner's alone
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        self._open()
        if not self._all("SELECT 1 FROM sqlite_master WHERE name = 'meta'"):
            self._lay_out()

    def _open(self) -> None:
        with self._errors():
            self._process = os.getpid()
            self._connection = sqlite3.connect(
                self._path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            (mode,) = self._connection.execute("PRAGMA journal_mode=WAL").fetchone()
            self._connection.execute("PRAGMA synchronous=FULL")
        if mode != "wal":
            raise LedgerError("the ledger's file does not allow write-ahead logging")

    def _connected(self) -> sqlite3.Connection:
        """This process's connection; a forked child opens its own."""
        if self._process != os.getpid():
            self._inherited = (*self._inherited, self._connection)
            self._open()
        return self._connection

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as problem:
            raise LedgerError(f"the ledger's file could not be used: {problem}") from None

    @contextmanager
    def _alone(self) -> Iterator[None]:
        connection = self._connected()
        with self._errors():
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def append(self, head: LedgerHead, rows: Sequence[Row], absent: Sequence[str] = ()) -> bool:
        """Durably adds rows, if the ledger still ends at `head`; one transaction that excludes other writers."""
        with self._alone():
            if self.head() != head or (absent and self.state(absent)[1]):
                return False
            self._connection.executemany("INSERT INTO rows VALUES (?, ?, ?, ?, ?)", rows)
        return True


class PostgresStore(Store):
    """One database; writers take turns by the primary key of the row that both want to add."""

    _mark = "%s"
    _among = "= ANY(ARRAY(SELECT json_array_elements_text(?::json)))"
    _pairs = "json_each_text(?::json)"
    _types = {"integer": "BIGINT", "clustered": ""}
    _guards = POSTGRES_GUARDS

    def __init__(self, address: str, *, create: bool = True) -> None:
        import psycopg  # an optional extra

        self._driver = psycopg
        self._address = address
        self._open()
        if self._all("SELECT to_regclass('meta')") == [(None,)]:
            if not create:
                raise LedgerError("there is no ledger in this database")
            self._lay_out()

    def _open(self) -> None:
        with self._errors():
            self._process = os.getpid()
            self._connection = self._driver.connect(self._address, autocommit=True, connect_timeout=10)
            self._connection.execute("SET synchronous_commit = on")
            self._connection.execute("SET default_transaction_isolation = 'read committed'")
            # A plan that was made when a table was small would go on reading the whole of it.
            self._connection.execute("SET enable_seqscan = off")
            if self._connection.execute("SHOW fsync").fetchone() != ("on",):
                raise LedgerError("the database must run with fsync on: a charge has to survive a crash")

    def _connected(self) -> Any:
        """This process's connection, opened again after a fork or a failure."""
        if self._process != os.getpid() or self._connection.closed:
            self._inherited = (*self._inherited, self._connection)[-8:]
            self._open()
        return self._connection

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except self._driver.Error as problem:
            raise LedgerError(f"the ledger's database could not be used: {type(problem).__name__}") from None

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with self._errors(), self._connected().transaction():
            self._run("SELECT pg_advisory_xact_lock(1681)")
            yield

    def append(self, head: LedgerHead, rows: Sequence[Row], absent: Sequence[str] = ()) -> bool:
        """Durably adds rows, if the ledger still ends at `head`; one statement, so all or nothing."""
        query, values = (APPEND_ONE, rows[0]) if len(rows) == 1 else (APPEND_ALL, map(list, zip(*rows, strict=True)))
        ends = (head.hash, head.sequence, GENESIS.hash if head == GENESIS else "")
        with self._errors():
            try:
                done = self._connected().execute(query, (*values, *ends, "\n".join(absent)))
            except self._driver.errors.UniqueViolation:
                return False
        return bool(done.rowcount == len(rows))


def check_format(found: int) -> None:
    """Refuses a layout that this version does not read."""
    if found > FORMAT:
        raise LedgerError(f"the ledger has format {found}; this version reads up to {FORMAT}: install a newer Dither")
    if found < FORMAT:
        raise LedgerError(
            f"the ledger has format {found}, from before the first release; this version reads format {FORMAT}: "
            "start a new ledger, and lower its budgets by what the old one spent"
        )
