"""The private folder of a release in progress: its state survives kill -9 at any point. Proof: table_release.md.

    STAGING/                 mode 0700, of this user, not inside the output, on the same file system
      lock                   held by the one process that makes the release
      question               the digest of what is being released; another question is refused
      exact/                 the exact cells, written once before the first draw
      journal.jsonl          one durable line for each finished draw; a line without line break does not count
      parts/                 files of draws; those that the journal does not list are deleted
      manifest.json          the files to publish; the ledger records its digest
      publish/               links to the listed files, and the documents; renamed to the output

Every state is a prefix of: question, exact, journal, manifest, recorded, published, removed.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, astuple, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from dither.errors import Busy, InvalidParameter, ReleaseStopped

FORMAT = 1
FOLDERS = ("exact", "exact.unfinished", "parts", "publish")
FILES = ("journal.jsonl", "manifest.json", "staged.json", "question")  # in the order of their removal
BEFORE_QUESTION = {"lock", "question.unfinished"}
BEFORE_READING = BEFORE_QUESTION | {"question", "parts"}


@dataclass(frozen=True)
class PartReceipt:
    """The report of a worker on a part that it has drawn and written: number, file, rows, bytes and hash."""

    part: int
    file: str
    rows: int
    bytes: int
    sha256: str

    def __post_init__(self) -> None:
        if [type(value) for value in astuple(self)] != [int, str, int, int, str] or min(self.part, self.rows) < 0:
            raise TypeError("a receipt has a number, a file, rows, bytes and a hash")


def check_places(places: Any) -> list[int]:
    """Return the places of an admission, which are whole numbers from 0 on, increasing; refuse anything else."""
    whole = isinstance(places, list) and all(type(place) is int for place in places)
    if not whole or any(place <= before for before, place in pairwise([-1, *places])):
        raise TypeError("places are whole numbers from 0 on, increasing")
    return list(places)


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Make a file's content, or the names in a folder, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_durably(path: Path, content: bytes) -> None:
    """Write a file that is whole or absent after a crash."""
    unfinished = path.with_name(f"{path.name}.unfinished")
    unfinished.write_bytes(content)
    sync(unfinished)
    os.rename(unfinished, path)
    sync(path.parent)


def remove_folder(folder: Path) -> None:
    """Delete a folder under another name, so that a worker that is still busy with it writes nothing more into it."""
    removed = folder.with_name(f"{folder.name}.removed")
    shutil.rmtree(removed, ignore_errors=True)
    with suppress(OSError):
        os.rename(folder, removed)
    for path in (removed, folder):
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def clear_disk_errors(folder: Path) -> Iterator[None]:
    """Turn a full or read-only disk into an error that says how to continue; its text shows no record."""
    try:
        yield
    except OSError as error:
        raise ReleaseStopped(
            f"the release stopped while writing to {folder}: {os.strerror(error.errno or 0).lower()}; nothing was"
            " published, and a charge that was made stands; mend this and run the same release again to continue"
        ) from None


class Staging:
    """The folder of a release in progress, locked by this process until `close`."""

    def __init__(self, folder: Path, out: Path) -> None:
        self.folder, self.out = folder.absolute(), out.absolute()
        self.exact, self.parts = self.folder / "exact", self.folder / "parts"
        self._journal, self._manifest = self.folder / "journal.jsonl", self.folder / "manifest.json"
        self._publish, self._question = self.folder / "publish", self.folder / "question"
        self._check_places()
        with clear_disk_errors(self.folder):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._check_private()
        self._check_own()
        with clear_disk_errors(self.folder):
            self._lock = self._take_lock()
        self._checked: Sequence[tuple[str, str]] | None = None

    def _check_places(self) -> None:
        """Refuse a staging folder inside the output or around it, and an output that cannot be made."""
        inside = self.folder.resolve().is_relative_to(self.out.resolve())
        if inside or self.out.resolve().is_relative_to(self.folder.resolve()):
            raise InvalidParameter(f"the staging folder {self.folder} must lie outside the output {self.out}")
        if not self.out.parent.is_dir():
            raise InvalidParameter(f"the folder {self.out.parent} does not exist; make it first")
        if not os.access(self.out.parent, os.W_OK | os.X_OK):
            raise InvalidParameter(
                f"the folder {self.out.parent} is read-only; choose another output, or allow writing"
            )

    def _check_private(self) -> None:
        """Refuse a folder of another user, one that others may enter, and one on another file system."""
        state = os.lstat(self.folder)
        if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.geteuid() or stat.S_IMODE(state.st_mode) & 0o077:
            raise InvalidParameter(f"the staging folder {self.folder} must be a folder of this user with mode 0700")
        if state.st_dev != os.stat(self.out.parent).st_dev:
            raise InvalidParameter(
                f"the staging folder {self.folder} and the output {self.out} must be on one file system, since the"
                " output appears by one rename; give --staging a folder beside the output"
            )

    def _check_own(self) -> None:
        """Refuse a folder with files in which no release was begun: they are somebody's."""
        if set(os.listdir(self.folder)) - BEFORE_QUESTION and not self._question.is_file():
            raise InvalidParameter(
                f"the staging folder {self.folder} has files in it that are of no release; give a new or empty folder"
            )

    def _take_lock(self) -> int:
        """Lock the folder; refuse if another process has it."""
        place = self.folder / "lock"
        descriptor = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = place.exists() and os.stat(place).st_ino == os.fstat(descriptor).st_ino
        except BlockingIOError:
            held = False
        if not held:
            os.close(descriptor)
            raise Busy(f"another process is making this release, in {self.folder}; wait for it, then run it again")
        return descriptor

    def close(self) -> None:
        """Give up the lock."""
        os.close(self._lock)

    # --- Before the first draw ---

    def begin(self, question: str) -> None:
        """Note what is being released; refuse a folder in which another release has read records."""
        is_ours = self.belongs_to(question)
        if not is_ours and set(os.listdir(self.folder)) - BEFORE_READING:
            raise InvalidParameter(
                f"an unfinished release of another question is in {self.folder}: the spec, the data's version or"
                " the layout has changed; finish it with the old ones, or delete that folder to give it up"
                " (what it was charged stays spent)"
            )
        with clear_disk_errors(self.folder):
            if not is_ours or not self._question.exists():
                write_durably(self._question, question.encode())
            self.parts.mkdir(mode=0o700, exist_ok=True)

    def belongs_to(self, question: str) -> bool:
        """Return whether this folder is of this release, or of none yet."""
        return not self._question.exists() or self._question.read_bytes() == question.encode()

    def discard_draws(self) -> None:
        """Delete every draw and the exact cells: none was published, and the cells will be read again."""
        for path in (self._manifest, self._journal):
            path.unlink(missing_ok=True)
        sync(self.folder)
        for path in (self.exact, self.parts):
            remove_folder(path)
        self.parts.mkdir(mode=0o700)

    def has_cells(self) -> bool:
        """Return whether the exact cells are those that the journal notes; a folder that it does not note is not."""
        noted = next((line["cells"] for line in self._lines() if "cells" in line), None)
        return noted is not None and self._cell_digests() == noted

    def note_cells(self) -> None:
        """Note the files of the exact cells in the journal; they are durable already."""
        self.note({"cells": self._cell_digests()})

    def _cell_digests(self) -> dict[str, str]:
        """Return the SHA-256 of every file of the exact cells."""
        files = self.exact.rglob("*") if self.exact.is_dir() else ()
        return {path.relative_to(self.exact).as_posix(): file_digest(path) for path in files if path.is_file()}

    # --- The journal ---

    def journal(self) -> tuple[list[int] | None, dict[int, PartReceipt]]:
        """Return the admitted places and the receipts of finished parts; delete unlisted files."""
        lines = self._lines()
        try:
            admitted = next((check_places(line["admitted"]) for line in lines if "admitted" in line), None)
            receipts = [PartReceipt(**line["part"]) for line in lines if "part" in line]
        except (ValueError, TypeError):
            raise self._damage("the journal") from None
        listed = {receipt.file for receipt in receipts}
        for path in self.parts.iterdir():
            if path.name not in listed:
                path.unlink()
        return admitted, {receipt.part: receipt for receipt in receipts}

    def _lines(self) -> list[dict[str, Any]]:
        """Return the lines of the journal; drop a torn one, and refuse a journal that Dither did not write."""
        content = self._journal.read_bytes() if self._journal.exists() else b""
        whole, torn = content[: content.rfind(b"\n") + 1], content[content.rfind(b"\n") + 1 :]
        if torn:
            write_durably(self._journal, whole)
        try:
            return [dict(json.loads(line)) for line in whole.splitlines()]
        except (ValueError, TypeError, RecursionError):
            raise self._damage("the journal") from None

    def _damage(self, what: str) -> ReleaseStopped:
        """Build the error for a private folder that is not as Dither left it."""
        return ReleaseStopped(
            f"{what} of the release in {self.folder} is missing or damaged; nothing was published; delete that folder"
            " and run the release again: unless it was recorded already, it draws anew for one charge"
        )

    def note(self, line: Mapping[str, object]) -> None:
        """Append a line to the journal, durably: the draw that it describes is the one of its step."""
        is_new = not self._journal.exists()
        with open(self._journal, "ab") as file:
            file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            sync(self.folder)

    def note_part(self, receipt: PartReceipt) -> None:
        """Append the receipt of a finished part to the journal; its file is durable already."""
        self.note({"part": asdict(receipt)})

    # --- The manifest and the output ---

    def write_manifest(self, facts: Mapping[str, Any], receipts: Sequence[PartReceipt], suffix: str) -> str:
        """Check every file against its receipt, write the manifest, and return its digest."""
        files = [
            {"file": f"data/part-{r.part:05d}{suffix}", "rows": r.rows, "bytes": r.bytes, "sha256": r.sha256}
            for r in receipts
        ]
        staged = [receipt.file for receipt in receipts]
        self._check_files([(receipt.file, receipt.sha256) for receipt in receipts])
        content = {"format": FORMAT, **facts, "files": files}
        write_durably(self._manifest, json.dumps(content, indent=1).encode() + b"\n")
        write_durably(self.folder / "staged.json", json.dumps(staged).encode())
        return file_digest(self._manifest)

    def _check_files(self, digests: Sequence[tuple[str, str]]) -> None:
        """Refuse to publish files that are not those that were drawn."""
        if self._checked == digests:  # a moment ago, by this process, which holds the lock
            return
        for name, digest in digests:
            path = self.parts / name
            if not path.is_file() or file_digest(path) != digest:
                raise self._damage("a file")
        self._checked = digests

    def has_manifest(self, digest: str) -> bool:
        """Return whether this folder holds the manifest with this digest."""
        return self._manifest.is_file() and file_digest(self._manifest) == digest

    def build_output(self) -> Path:
        """Return a new folder with the manifest and a link to each file that it lists, under its public name."""
        try:
            listed = json.loads(self._manifest.read_bytes())["files"]
            staged = json.loads((self.folder / "staged.json").read_bytes())
            files = [(str(name), str(each["file"]), each["sha256"]) for name, each in zip(staged, listed, strict=True)]
        except (ValueError, TypeError, KeyError, RecursionError, FileNotFoundError):
            raise self._damage("the list of files") from None
        self._check_files([(name, digest) for name, _, digest in files])
        shutil.rmtree(self._publish, ignore_errors=True)
        (self._publish / "data").mkdir(parents=True)
        shutil.copyfile(self._manifest, self._publish / "manifest.json")
        for name, public_name, _ in files:
            os.link(self.parts / name, self._publish / public_name)
        return self._publish

    def publish(self) -> None:
        """Make the folder that was built the output, in one step, durably."""
        now = time.time_ns()  # one time for all files: how long each part took depends on the records
        for path in (*self._publish.rglob("*"), self._publish):
            path.chmod(0o755 if path.is_dir() else 0o644)
            os.utime(path, ns=(now, now))
            sync(path)
        if os.path.lexists(self.out):
            raise InvalidParameter(
                f"the output {self.out} has appeared meanwhile; move it away and run the release again"
            )
        os.rename(self._publish, self.out)
        sync(self.out.parent)

    def remove(self) -> None:
        """Delete what this release made: the exact cells first, the lock last, and the folder if nothing is left."""
        for name in FOLDERS:
            remove_folder(self.folder / name)
        for name in (*(f"{name}.unfinished" for name in FILES), *FILES, "lock"):
            (self.folder / name).unlink(missing_ok=True)
        with suppress(OSError):  # a file of somebody else
            self.folder.rmdir()
