"""Serve proof pages and published audit reports."""

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
DOCUMENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
MEDIA_TYPES = {".md": "text/markdown", ".json": "application/json", ".html": "text/html", ".txt": "text/plain"}
MOST_BYTES = 1 << 24
CLOCK_RESOLUTION_NS = 2_000_000_000  # the coarsest clock of a file system


class FileStamp(NamedTuple):
    """The identity of one state of a file; users can set `modified`, but not `changed`, the time of the last change."""

    device: int
    inode: int
    bytes: int
    modified: int
    changed: int


def list_documents(folder: Path | None) -> list[Path]:
    """List the documents in a folder: readable small files of known types, without symbolic links."""
    if folder is None or not folder.is_dir():
        return []
    return [path for path in sorted(folder.iterdir()) if _is_document(path)]


def _is_document(path: Path) -> bool:
    named = DOCUMENT_NAME.fullmatch(path.name) is not None and path.suffix in MEDIA_TYPES
    return named and path.is_file() and not path.is_symlink() and _readable(path)


def _readable(path: Path) -> bool:
    return os.access(path, os.R_OK) and path.stat().st_size <= MOST_BYTES


class DocumentFolder:
    """The documents of one folder with their SHA-256 hashes; an unchanged file is hashed once."""

    def __init__(self, folder: Path | None, now: Callable[[], int] = time.time_ns) -> None:
        self.folder, self._now = folder, now
        self._hashes: dict[Path, tuple[FileStamp, str]] = {}

    def entries(self) -> list[dict[str, Any]]:
        """Return the name, size and hash of each document, so that two readers can compare what they read."""
        listed, hashes = [], {}
        for path in list_documents(self.folder):
            with suppress(OSError):  # the file may have been removed since
                stamp, digest = self._hash(path)
                listed.append({"name": path.name, "bytes": stamp.bytes, "sha256": digest})
                hashes[path] = stamp, digest
        # A file can change twice within the resolution of its clock: hash files that changed just now again.
        newest_reusable = self._now() - CLOCK_RESOLUTION_NS
        self._hashes = {
            path: (stamp, digest) for path, (stamp, digest) in hashes.items() if stamp.changed < newest_reusable
        }
        return listed

    def _hash(self, path: Path) -> tuple[FileStamp, str]:
        """Return the stamp and hash of a file, without reading it if its stamp is the same as before."""
        with path.open("rb") as file:
            state = os.fstat(file.fileno())
            stamp = FileStamp(state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
            if path in self._hashes and self._hashes[path][0] == stamp:
                return self._hashes[path]
            return stamp, hashlib.file_digest(file, "sha256").hexdigest()


def read_document(folder: Path | None, name: str) -> tuple[bytes, str]:
    """Return the content and type of a document; `name` is compared with those listed and never used as a path."""
    for path in list_documents(folder):
        if path.name == name:
            return path.read_bytes(), MEDIA_TYPES[path.suffix]
    raise NotFound("there is no document of that name; the listing of its folder has the names")
