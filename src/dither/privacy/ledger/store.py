"""Storage of a ledger's rows: a SQLite file, or a PostgreSQL database that several kernels share.

A store does not know about budgets. It appends rows in one durable step that succeeds only if the ledger still ends at
the head that the writer expects. It stores a snapshot of the state up to some row, so that readers need not replay the
ledger from the first row, and side notes that are not part of the hash chain.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from dither.errors import LedgerError
from dither.privacy.bits import Bits, SystemBits
from dither.privacy.protocol import LedgerHead

FORMAT, MIGRATES_FROM = 4, 3
SALT_BITS = 128
SALT = re.compile(r"[0-9a-f]{32}")
GENESIS = LedgerHead(0, "0" * 64)
BUSY_SECONDS = 60.0
MAX_REFUSALS = 10_000
TABLES = (
    "CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS rows (sequence {integer} PRIMARY KEY, kind TEXT NOT NULL, time TEXT NOT NULL,"
    " body TEXT NOT NULL, hash TEXT NOT NULL, salt TEXT NOT NULL DEFAULT '')",
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
LAST_AND_ANY_KEY = (
    "SELECT sequence, hash, EXISTS (SELECT 1 FROM state WHERE key IN ({})) FROM rows ORDER BY sequence DESC LIMIT 1"
)
UPSERT = "ON CONFLICT ({}) DO UPDATE SET value = excluded.value"
IF_HEAD_UNCHANGED = """
WHERE %s = coalesce((SELECT hash FROM rows WHERE sequence = %s), %s)
AND NOT EXISTS (SELECT FROM state WHERE key = ANY(string_to_array(%s, E'\\n')))
"""
ROW_ARRAYS = "unnest(%b::bigint[], %b::text[], %b::text[], %b::text[], %b::text[], %b::text[])"
APPEND_ONE = f"INSERT INTO rows SELECT %s::bigint, %s, %s, %s, %s, %s {IF_HEAD_UNCHANGED}"
APPEND_ALL = f"INSERT INTO rows SELECT * FROM {ROW_ARRAYS} {IF_HEAD_UNCHANGED}"  # noqa: S608 constants


class Row(NamedTuple):
    """A row of the hash chain; its hash covers the row, its salt and every row before it.

    Without the salt, which analysts never see, a hash would confirm a guess of what the row holds.
    """

    sequence: int
    kind: str
    time: str
    body: str
    hash: str
    salt: str

    @property
    def head(self) -> LedgerHead:
        """The head of a ledger that ends with this row."""
        return LedgerHead(self.sequence, self.hash)


class SideNote(NamedTuple):
    """A note outside the hash chain: a refusal, a miss, a retry, an unlock or a latency reset."""

    number: int
    kind: str
    about: str
    time: str
    body: str


def chain_row(head: LedgerHead, kind: str, time: str, body: str, salt: str) -> Row:
    """Return the row that follows `head`, with its hash; only the body, hashed last, may contain line breaks.

    Rows of format 3 have no salt.
    """
    if "\n" in kind or "\n" in time or (salt and not SALT.fullmatch(salt)):
        raise LedgerError("a row's kind and time must not contain line breaks, and its salt must be 32 digits")
    sequence = head.sequence + 1
    before, after = f"{head.hash}\n{sequence}\n{kind}\n{time}\n", f"{salt}\n{body}" if salt else body
    return Row(sequence, kind, time, body, hashlib.sha256((before + after).encode()).hexdigest(), salt)


def new_salt(bits: Bits) -> str:
    """Return the secret salt of a new row."""
    return f"{bits.integer(SALT_BITS):032x}"


def open_store(place: str | Path, *, create: bool = True) -> Store:
    """Open the store at a file path or postgresql:// address; raise if its format is older or newer."""
    store = attach_store(place, create=create)
    try:
        check_format(store.format())
    except LedgerError:
        store.close()
        raise
    return store


def attach_store(place: str | Path, *, create: bool = False) -> Store:
    """Open the store at a file path or postgresql:// address, whatever its format."""
    postgres = is_database(str(place))
    return PostgresStore(str(place), create=create) if postgres else SqliteStore(Path(place), create=create)


def is_database(place: str) -> bool:
    """Return True for the address of a database, False for a file path."""
    return place.startswith(("postgresql://", "postgres://"))


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
    def exclusive_transaction(self) -> AbstractContextManager[None]:
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

    def rows_at(self, sequences: Sequence[int]) -> list[Row]:
        """Return the rows with these sequence numbers, in order."""
        marks = ", ".join("?" * len(sequences)) or "NULL"
        stored = self._fetch_all(f"SELECT * FROM rows WHERE sequence IN ({marks}) ORDER BY sequence", *sequences)  # noqa: S608
        return [Row(*each) for each in stored]

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
        return int(self.meta("state") or 0)

    def snapshot(self, sequence: int, changes: Mapping[str, str]) -> None:
        """Move the snapshot to a later row, in one transaction."""
        with self.exclusive_transaction():
            if self.state_at() > sequence:
                return
            self._write_state(changes)
            self.write_meta("state", sequence)

    def _write_state(self, entries: Mapping[str, str]) -> None:
        """Insert or replace entries of the snapshot."""
        query = f"INSERT INTO state SELECT key, value FROM {self._key_value_pairs} WHERE true {UPSERT.format('key')}"  # noqa: S608
        self._execute(query, json.dumps(entries))

    def write_meta(self, name: str, value: int | str) -> None:
        """Insert or replace a value in the table of settings."""
        self._execute(f"INSERT INTO meta VALUES (?, ?) {UPSERT.format('name')}", name, str(value))  # noqa: S608

    def check_writable(self) -> None:
        """Write a number that means nothing as durably as a charge; raise LedgerError if that fails."""
        with self.exclusive_transaction():
            self.write_meta("probe", time.time_ns())

    def meta(self, name: str) -> str:
        """Return a value of the table of settings, or "" if there is none."""
        stored = self._fetch_all("SELECT value FROM meta WHERE name = ?", name)
        return str(stored[0][0]) if stored else ""

    def identity(self) -> str:
        """Return the random name that tells this ledger from all others; copies keep it."""
        return self.meta("identity")

    def note(self, kind: str, about: str, time: str, body: str) -> None:
        """Add a side note; drop old refusals beyond `MAX_REFUSALS`."""
        last = "(SELECT coalesce(max(number), 0) FROM notes)"
        with self.exclusive_transaction():
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
        return int(self.meta("format") or 0)

    def _create_tables(self) -> None:
        """Create the tables of a new ledger."""
        with self.exclusive_transaction():
            for statement in (*TABLES, *self._guards):
                self._execute(statement.format_map(self._types))
            self.write_meta("format", FORMAT)
            self.write_meta("identity", new_salt(SystemBits()))

    def rebuild(
        self,
        sequence: int,
        entries: Mapping[str, str],
        rows: Iterable[Row] = (),
        notes: Iterable[SideNote] = (),
        meta: Mapping[str, str] | None = None,
    ) -> None:
        """Fill an empty store with a copied ledger, in one transaction."""
        with self.exclusive_transaction():
            for statement in (*TABLES, *self._guards):
                self._execute(statement.format_map(self._types))
            self._execute("DELETE FROM state")
            self._insert_all("rows", rows)
            self._insert_all("notes", notes)
            self._write_state(entries)
            for name, value in {"state": str(sequence), "format": str(FORMAT), **(meta or {})}.items():
                self.write_meta(name, value)

    def table(self, name: str) -> Iterator[tuple[Any, ...]]:
        """Yield all rows of one of the tables as they are stored."""
        yield from self._fetch_all(f"SELECT * FROM {name}")  # noqa: S608 constants

    def add_salt_column(self) -> None:
        """Add the column that format 4 has and format 3 lacks."""
        self._execute("ALTER TABLE rows ADD COLUMN salt TEXT NOT NULL DEFAULT ''")

    def write_migrated(self, rows: Iterable[Row], sequence: int, entries: Mapping[str, str]) -> None:
        """Append rows and replace the snapshot, inside a transaction of the caller."""
        self._insert_all("rows", rows)
        self._execute("DELETE FROM state")
        self._write_state(entries)
        self.write_meta("state", sequence)

    def _insert_all(self, table: str, stored: Iterable[Row] | Iterable[SideNote]) -> None:
        """Insert many rows or notes."""
        columns = len(Row._fields if table == "rows" else SideNote._fields)
        insert = f"INSERT INTO {table} VALUES ({', '.join([self._marker] * columns)})"  # noqa: S608 constants
        self._live_connection().cursor().executemany(insert, stored)


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
            self._connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()  # makes the log, if there is none
            self._inode = self._path.stat().st_ino
        if mode != "wal":
            raise LedgerError("the ledger's file does not support write-ahead logging; use a local file system")
        self._log_path = f"{self._path}-wal"
        self._log_inode = os.stat(self._log_path).st_ino

    def _check_log(self) -> None:
        """Raise LedgerError if the log was removed or replaced: what is written to it now is lost to everybody else."""
        try:
            same = os.stat(self._log_path).st_ino == self._log_inode
        except OSError:
            same = False
        if not same:
            raise LedgerError("the ledger's log was removed or replaced while the kernel ran; restart the kernel")

    def check_writable(self) -> None:
        """Raise LedgerError also if the path leads to another file than the one that is open."""
        self._check_log()
        if not self._path.exists() or self._path.stat().st_ino != self._inode:
            raise LedgerError("the ledger's file was removed or replaced while the kernel ran; restart the kernel")
        super().check_writable()

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
    def exclusive_transaction(self) -> Iterator[None]:
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
        query = LAST_AND_ANY_KEY.format(", ".join("?" * len(absent)))
        with self.exclusive_transaction():
            # A ledger without rows has no snapshot, so no key of `absent` either.
            last = self._connection.execute(query, absent).fetchone() or (GENESIS.sequence, GENESIS.hash, 0)
            if last != (head.sequence, head.hash, 0):
                return False
            self._connection.executemany("INSERT INTO rows VALUES (?, ?, ?, ?, ?, ?)", rows)
        self._check_log()
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
    def exclusive_transaction(self) -> Iterator[None]:
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
    if stored == MIGRATES_FROM:
        raise LedgerError(f"the ledger has format {stored}; stop its kernels and run: dither ledger migrate LEDGER")
    if stored < FORMAT:
        raise LedgerError(
            f"the ledger has format {stored}, from before the first release; this version reads format {FORMAT}: "
            "start a new ledger, and lower its budgets by what the old one spent"
        )
