"""Storage of a ledger's rows: a SQLite file, or a PostgreSQL database that several kernels share.

A store does not know about budgets. It appends rows in one durable step that succeeds only if the ledger still ends at
the head that the writer expects. It stores a snapshot of the state up to some row, so that readers need not replay the
ledger from the first row, and side notes that are not part of the hash chain.
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
MAX_REFUSALS = 10_000
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
UPSERT = "ON CONFLICT ({}) DO UPDATE SET value = excluded.value"
IF_HEAD_UNCHANGED = """
WHERE %s = coalesce((SELECT hash FROM rows WHERE sequence = %s), %s)
AND NOT EXISTS (SELECT FROM state WHERE key = ANY(string_to_array(%s, E'\\n')))
"""
ROW_ARRAYS = "unnest(%b::bigint[], %b::text[], %b::text[], %b::text[], %b::text[])"
APPEND_ONE = f"INSERT INTO rows SELECT %s::bigint, %s, %s, %s, %s {IF_HEAD_UNCHANGED}"
APPEND_ALL = f"INSERT INTO rows SELECT * FROM {ROW_ARRAYS} {IF_HEAD_UNCHANGED}"  # noqa: S608 constants


class Row(NamedTuple):
    """A row of the hash chain; its hash covers the row and every row before it."""

    sequence: int
    kind: str
    time: str
    body: str
    hash: str

    @property
    def head(self) -> LedgerHead:
        """The head of a ledger that ends with this row."""
        return LedgerHead(self.sequence, self.hash)


class SideNote(NamedTuple):
    """A note outside the hash chain: a refusal, a miss, an unlock or a latency reset."""

    number: int
    kind: str
    about: str
    time: str
    body: str


def chain_row(head: LedgerHead, kind: str, time: str, body: str) -> Row:
    """Return the row that follows `head`, with its hash; only the body, hashed last, may contain line breaks."""
    if "\n" in kind or "\n" in time:
        raise LedgerError("a row's kind and time must not contain line breaks")
    sequence = head.sequence + 1
    covered = f"{head.hash}\n{sequence}\n{kind}\n{time}\n{body}"
    return Row(sequence, kind, time, body, hashlib.sha256(covered.encode()).hexdigest())


def open_store(place: str | Path, *, create: bool = True) -> Store:
    """Open the store at a file path or postgresql:// address; raise if its format is older or newer."""
    text = str(place)
    postgres = text.startswith(("postgresql://", "postgres://"))
    store: Store = PostgresStore(text, create=create) if postgres else SqliteStore(Path(place), create=create)
    try:
        check_format(store.format())
    except LedgerError:
        store.close()
        raise
    return store


class Store(ABC):
    """Rows, a snapshot of their state, and side notes; `_marker` is the driver's form of a query's `?`."""

    _marker = "?"
    _key_in_list = "IN (SELECT value FROM json_each(?))"
    _key_value_pairs = "json_each(?)"
    _types: Mapping[str, str]
    _guards: Sequence[str]
    _process: int
    _connection: Any
    _inherited: tuple[object, ...] = ()  # connections of a parent process, which a forked child must not close

    @abstractmethod
    def append(self, head: LedgerHead, rows: Sequence[Row], absent: Sequence[str] = ()) -> bool:
        """Append all rows or none, durably; return False if the head differs or the snapshot has a key of `absent`."""

    @abstractmethod
    def _live_connection(self) -> Any:
        """Return this process's connection."""

    @abstractmethod
    def _translate_errors(self) -> AbstractContextManager[None]:
        """Convert the driver's errors to `LedgerError`."""

    @abstractmethod
    def _exclusive_transaction(self) -> AbstractContextManager[None]:
        """Run a durable write transaction that excludes other exclusive transactions."""

    def _execute(self, query: str, *values: object) -> None:
        """Run a statement without a result."""
        with self._translate_errors():
            self._live_connection().execute(query.replace("?", self._marker), values)

    def _fetch_all(self, query: str, *values: object) -> list[Any]:
        """Run a query and return its rows."""
        with self._translate_errors():
            stored: list[Any] = self._live_connection().execute(query.replace("?", self._marker), values).fetchall()
            return stored

    def close(self) -> None:
        """Close this process's connection."""
        if self._process == os.getpid():
            self._connection.close()

    def head(self) -> LedgerHead:
        """Return the head of the last row."""
        stored = self._fetch_all("SELECT sequence, hash FROM rows ORDER BY sequence DESC LIMIT 1")
        return LedgerHead(*stored[0]) if stored else GENESIS

    def row(self, sequence: int) -> Row | None:
        """Return a row by its sequence number, or None."""
        stored = self._fetch_all("SELECT * FROM rows WHERE sequence = ?", sequence)
        return Row(*stored[0]) if stored else None

    def rows(self, after: int = 0) -> Iterator[Row]:
        """Yield every row after a sequence number, in order."""
        while stored := self._fetch_all("SELECT * FROM rows WHERE sequence > ? ORDER BY sequence LIMIT 1000", after):
            yield from (Row(*each) for each in stored)
            after = stored[-1][0]

    def entries(self, keys: Sequence[str]) -> tuple[int, dict[str, str]]:
        """Return the snapshot's sequence number, and its values of those `keys` that it contains."""
        query = f"SELECT key, value FROM state WHERE key {self._key_in_list} UNION ALL {SNAPSHOT_AT}"  # noqa: S608
        stored = dict(self._fetch_all(query, json.dumps(keys)))
        return int(stored.pop("", 0)), stored

    def all_state(self) -> dict[str, str]:
        """Return the whole snapshot."""
        return dict(self._fetch_all("SELECT key, value FROM state"))

    def state_at(self) -> int:
        """Return the sequence number of the last row that the snapshot includes."""
        stored = self._fetch_all("SELECT value FROM meta WHERE name = 'state'")
        return int(stored[0][0]) if stored else 0

    def snapshot(self, sequence: int, changes: Mapping[str, str]) -> None:
        """Move the snapshot to a later row, in one transaction."""
        with self._exclusive_transaction():
            if self.state_at() > sequence:
                return
            self._write_state(changes)
            self._write_meta("state", sequence)

    def _write_state(self, entries: Mapping[str, str]) -> None:
        """Insert or replace entries of the snapshot."""
        query = f"INSERT INTO state SELECT key, value FROM {self._key_value_pairs} WHERE true {UPSERT.format('key')}"  # noqa: S608
        self._execute(query, json.dumps(entries))

    def _write_meta(self, name: str, value: int) -> None:
        """Insert or replace a number in the table of settings."""
        self._execute(f"INSERT INTO meta VALUES (?, ?) {UPSERT.format('name')}", name, str(value))  # noqa: S608

    def note(self, kind: str, about: str, time: str, body: str) -> None:
        """Add a side note; drop old refusals beyond `MAX_REFUSALS`."""
        last = "(SELECT coalesce(max(number), 0) FROM notes)"
        with self._exclusive_transaction():
            self._execute(f"INSERT INTO notes VALUES ({last} + 1, ?, ?, ?, ?)", kind, about, time, body)  # noqa: S608
            self._execute(f"DELETE FROM notes WHERE kind = 'refusal' AND number <= {last} - ?", MAX_REFUSALS)  # noqa: S608

    def notes(self, kind: str, about: str) -> list[SideNote]:
        """Return the notes of a kind about a dataset, oldest first."""
        stored = self._fetch_all("SELECT * FROM notes WHERE kind = ? AND about = ? ORDER BY number", kind, about)
        return [SideNote(*each) for each in stored]

    def all_notes(self) -> list[SideNote]:
        """Return all notes, oldest first."""
        return [SideNote(*each) for each in self._fetch_all("SELECT * FROM notes ORDER BY number")]

    def format(self) -> int:
        """Return the version of the ledger format, or 0 if there is none."""
        stored = self._fetch_all("SELECT value FROM meta WHERE name = 'format'")
        return int(stored[0][0]) if stored else 0

    def _create_tables(self) -> None:
        """Create the tables of a new ledger."""
        with self._exclusive_transaction():
            for statement in (*TABLES, *self._guards):
                self._execute(statement.format_map(self._types))
            self._write_meta("format", FORMAT)

    def rebuild(
        self, sequence: int, entries: Mapping[str, str], rows: Iterable[Row] = (), notes: Iterable[SideNote] = ()
    ) -> None:
        """Fill an empty store with a copied ledger, in one transaction."""
        with self._exclusive_transaction():
            for statement in (*TABLES, *self._guards):
                self._execute(statement.format_map(self._types))
            self._execute("DELETE FROM state")
            for table, stored in (("rows", rows), ("notes", notes)):
                insert = f"INSERT INTO {table} VALUES ({', '.join([self._marker] * 5)})"  # noqa: S608 constants
                self._live_connection().cursor().executemany(insert, stored)
            self._write_state(entries)
            self._write_meta("state", sequence)
            self._write_meta("format", FORMAT)


class SqliteStore(Store):
    """A SQLite file in WAL mode, synced at every commit; several processes can open it."""

    _connection: sqlite3.Connection
    _types = {"integer": "INTEGER", "clustered": " WITHOUT ROWID"}
    _guards = SQLITE_GUARDS

    def __init__(self, path: Path, *, create: bool = True) -> None:
        if not create and not path.exists():
            raise LedgerError(f"there is no ledger at {path.name}; check the path")
        self._path = path
        if not path.exists():
            with suppress(OSError):  # only the owner may read the file; the driver reports any error
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        self._open()
        if not self._fetch_all("SELECT 1 FROM sqlite_master WHERE name = 'meta'"):
            self._create_tables()

    def _open(self) -> None:
        """Connect to the file in WAL mode, with a sync at every commit."""
        with self._translate_errors():
            self._process = os.getpid()
            self._connection = sqlite3.connect(
                self._path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            (mode,) = self._connection.execute("PRAGMA journal_mode=WAL").fetchone()
            self._connection.execute("PRAGMA synchronous=FULL")
        if mode != "wal":
            raise LedgerError("the ledger's file does not support write-ahead logging; use a local file system")

    def _live_connection(self) -> sqlite3.Connection:
        """Return this process's connection; a forked child opens its own."""
        if self._process != os.getpid():
            self._inherited = (*self._inherited, self._connection)
            self._open()
        return self._connection

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as problem:
            raise LedgerError(f"the ledger's file could not be used: {problem}") from None

    @contextmanager
    def _exclusive_transaction(self) -> Iterator[None]:
        connection = self._live_connection()
        with self._translate_errors():
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def append(self, head: LedgerHead, rows: Sequence[Row], absent: Sequence[str] = ()) -> bool:
        """Append rows if the ledger still ends at `head`, in one transaction that excludes other writers."""
        with self._exclusive_transaction():
            if self.head() != head or (absent and self.entries(absent)[1]):
                return False
            self._connection.executemany("INSERT INTO rows VALUES (?, ?, ?, ?, ?)", rows)
        return True


class PostgresStore(Store):
    """A PostgreSQL database; of two concurrent writers, the primary key of the next row admits only one."""

    _marker = "%s"
    _key_in_list = "= ANY(ARRAY(SELECT json_array_elements_text(?::json)))"
    _key_value_pairs = "json_each_text(?::json)"
    _types = {"integer": "BIGINT", "clustered": ""}
    _guards = POSTGRES_GUARDS

    def __init__(self, address: str, *, create: bool = True) -> None:
        import psycopg  # an optional extra

        self._driver = psycopg
        self._address = address
        self._open()
        if self._fetch_all("SELECT to_regclass('meta')") == [(None,)]:
            if not create:
                raise LedgerError("there is no ledger in this database; check the address")
            self._create_tables()

    def _open(self) -> None:
        """Connect to the database; raise if it does not run with fsync on."""
        with self._translate_errors():
            self._process = os.getpid()
            self._connection = self._driver.connect(self._address, autocommit=True, connect_timeout=10)
            self._connection.execute("SET synchronous_commit = on")
            self._connection.execute("SET default_transaction_isolation = 'read committed'")
            # A cached query plan from when a table was small would keep scanning all of it.
            self._connection.execute("SET enable_seqscan = off")
            if self._connection.execute("SHOW fsync").fetchone() != ("on",):
                raise LedgerError("the database must run with fsync = on, so that a charge survives a crash")

    def _live_connection(self) -> Any:
        """Return this process's connection; open it again after a fork or a failure."""
        if self._process != os.getpid() or self._connection.closed:
            self._inherited = (*self._inherited, self._connection)[-8:]
            self._open()
        return self._connection

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except self._driver.Error as problem:
            raise LedgerError(f"the ledger's database could not be used: {type(problem).__name__}") from None

    @contextmanager
    def _exclusive_transaction(self) -> Iterator[None]:
        with self._translate_errors(), self._live_connection().transaction():
            self._execute("SELECT pg_advisory_xact_lock(1681)")
            yield

    def append(self, head: LedgerHead, rows: Sequence[Row], absent: Sequence[str] = ()) -> bool:
        """Append rows if the ledger still ends at `head`, in one atomic statement."""
        query, values = (APPEND_ONE, rows[0]) if len(rows) == 1 else (APPEND_ALL, map(list, zip(*rows, strict=True)))
        head_values = (head.hash, head.sequence, GENESIS.hash if head == GENESIS else "")
        with self._translate_errors():
            try:
                result = self._live_connection().execute(query, (*values, *head_values, "\n".join(absent)))
            except self._driver.errors.UniqueViolation:
                return False
        return bool(result.rowcount == len(rows))


def check_format(stored: int) -> None:
    """Raise if this version cannot read the ledger's format."""
    if stored > FORMAT:
        raise LedgerError(f"the ledger has format {stored}; this version reads up to {FORMAT}: install a newer Dither")
    if stored < FORMAT:
        raise LedgerError(
            f"the ledger has format {stored}, from before the first release; this version reads format {FORMAT}: "
            "start a new ledger, and lower its budgets by what the old one spent"
        )
