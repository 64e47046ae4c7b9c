"""What auditors read beside the ledger: the proofs of this version, and reports of audits that were laid out."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from dither.errors import NotFound

PROOFS = Path(__file__).resolve().parents[2] / "proofs"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
KINDS = {".md": "text/markdown", ".json": "application/json", ".html": "text/html", ".txt": "text/plain"}
MOST_BYTES = 1 << 24
SETTLED = 2_000_000_000  # nanoseconds: no file system's clock is coarser


class FileStamp(NamedTuple):
    """What tells one state of a file from another; nobody can set the time of a change."""

    device: int
    inode: int
    bytes: int
    written: int
    changed: int


def list_documents(folder: Path | None) -> list[Path]:
    """The papers in a folder: small files of known kinds, and no links."""
    if folder is None or not folder.is_dir():
        return []
    return [path for path in sorted(folder.iterdir()) if _fits(path)]


def _fits(path: Path) -> bool:
    known = NAME.fullmatch(path.name) is not None and path.suffix in KINDS
    return known and path.is_file() and not path.is_symlink() and _readable(path)


def _readable(path: Path) -> bool:
    return os.access(path, os.R_OK) and path.stat().st_size <= MOST_BYTES


class DocumentFolder:
    """The papers of one folder, with their hashes; a file that stays as it was is read once."""

    def __init__(self, folder: Path | None, now: Callable[[], int] = time.time_ns) -> None:
        self.folder, self._now = folder, now
        self._known: dict[Path, tuple[FileStamp, str]] = {}

    def listed(self) -> list[dict[str, Any]]:
        """Their names, sizes and hashes, so that two readers know that they read the same."""
        found, known = [], {}
        for path in list_documents(self.folder):
            with suppress(OSError):  # it may be gone by now
                stamp, digest = self._hashed(path)
                found.append({"name": path.name, "bytes": stamp.bytes, "sha256": digest})
                known[path] = stamp, digest
        # What was written just now may be written again without its clock moving on.
        oldest = self._now() - SETTLED
        self._known = {path: (stamp, digest) for path, (stamp, digest) in known.items() if stamp.changed < oldest}
        return found

    def _hashed(self, path: Path) -> tuple[FileStamp, str]:
        with path.open("rb") as file:
            state = os.fstat(file.fileno())
            stamp = FileStamp(state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
            if path in self._known and self._known[path][0] == stamp:
                return self._known[path]
            return stamp, hashlib.file_digest(file, "sha256").hexdigest()


def read_document(folder: Path | None, name: str) -> tuple[bytes, str]:
    """One of them, and its kind; a name is looked up among those that are there, and never made into a path."""
    for path in list_documents(folder):
        if path.name == name:
            return path.read_bytes(), KINDS[path.suffix]
    raise NotFound("there is no such paper")
