"""The place of a dataset's ledger: one for each description, found beside it by sessions, commands and servers.

Beside `NAME.yml`, the file `NAME.ledger` is the ledger itself or, if the ledger is elsewhere, a note of its place and
identity. So whoever opens the description finds what was spent, and a second ledger for it is noticed.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

from dither.errors import LedgerError
from dither.privacy.ledger.store import attach_store, is_database

WAY_OUT = "give its place with --ledger, or --another-ledger to start its budgets again"


@dataclass(frozen=True)
class LedgerNote:
    """The place of a ledger (of a database: without user and password) and its identity."""

    place: str
    identity: str


def file_beside(description: Path) -> Path:
    """Return the file beside a description that is its ledger, or a note of it."""
    return description.absolute().with_suffix(".ledger")


def find_ledger(
    descriptions: Sequence[Path], default: Path, chosen: str | Path | None = None, *, another: bool = False
) -> str:
    """Return the one ledger of these descriptions: the chosen one, the one they have, or the default for a new one.

    Raise LedgerError if a description has another ledger, unless the curator allows `another`.
    """
    known = {path: note for path in _with_targets(descriptions) if (note := _read_note(path)) is not None}
    if chosen is None and not known:
        return str(default)
    if chosen is None and default.exists() and default not in map(file_beside, descriptions):
        chosen = default
    place = str(chosen) if chosen is not None else next(iter(known.values())).place
    if chosen is None and is_database(place):
        raise LedgerError(f"the ledger of {descriptions[0].name} is in {place}: give its address in DITHER_LEDGER")
    for path, note in () if another else known.items():
        _check_same(path, note, place)
    return place


def note_ledger(descriptions: Sequence[Path], place: str, identity: str) -> list[Path]:
    """Write a note of the ledger's place beside each description; return the descriptions where that failed.

    A ledger beside a description is never replaced by a note.
    """
    note = json.dumps(asdict(LedgerNote(_public_place(place), identity)), indent=2)
    failed = []
    for path in _with_targets(descriptions):
        beside = file_beside(path)
        if _is_ledger(beside) or (beside.exists() and beside.read_text() == note):
            continue
        try:
            draft = beside.with_suffix(".ledger.new")
            draft.write_text(note)
            draft.replace(beside)
        except OSError:
            failed.append(path)
    return failed


def _with_targets(descriptions: Sequence[Path]) -> list[Path]:
    """Return the descriptions, and the files that they lead to if they are symbolic links."""
    return list(dict.fromkeys(each for path in descriptions for each in (path.absolute(), path.resolve())))


def _read_note(description: Path) -> LedgerNote | None:
    """Return where the ledger of a description is, or None if nothing beside it says so."""
    beside = file_beside(description)
    if not beside.exists():
        return None
    if _is_ledger(beside):
        return LedgerNote(str(beside), _identity(str(beside)))
    try:
        return LedgerNote(**json.loads(beside.read_text()))
    except (ValueError, TypeError):
        raise LedgerError(f"{beside} is neither a ledger nor a note of one; remove it if {WAY_OUT}") from None


def _is_ledger(path: Path) -> bool:
    """Return True if a file is a ledger; a new one may be empty.

    SQLite itself reads the file: if it were opened here, closing it would drop this process's locks on it (POSIX), and
    another process could then remove the log that this one still writes to.
    """
    if not path.exists():
        return False
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            connection.execute("PRAGMA schema_version").fetchone()
    except sqlite3.Error as problem:
        return problem.sqlite_errorcode != sqlite3.SQLITE_NOTADB
    return True


def _check_same(description: Path, note: LedgerNote, place: str) -> None:
    """Raise LedgerError unless the ledger at a place is the one that a description has."""
    if not is_database(place) and not Path(place).exists():
        raise LedgerError(f"the ledger of {description.name} was at {note.place}; there is none at {place}; {WAY_OUT}")
    if _identity(place) != note.identity:
        raise LedgerError(
            f"{description.name} has its ledger at {note.place}; {_public_place(place)} is another one,"
            f" where its budgets would start again; {WAY_OUT}"
        )


def _identity(place: str) -> str:
    """Return the identity of the ledger at a place, whatever its format."""
    with closing(attach_store(place)) as store:
        return store.identity()


def _public_place(place: str) -> str:
    """Return an absolute path, or a database's address without user and password."""
    if not is_database(place):
        return str(Path(place).absolute())
    parts = urlsplit(place)
    return f"{parts.scheme}://{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}{parts.path}"
