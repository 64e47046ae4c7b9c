"""Check a published folder, such as a copy: every file is there, whole, listed, and the ledger knows the manifest."""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path

from dither.errors import ReleaseStopped
from dither.privacy.staging import FORMAT, file_digest
from dither.release.documents import CHECKSUMS

LINE = re.compile(r"([0-9a-f]{64})  ([^\n]+)")
MANIFEST = "manifest.json"
MAX_LIST_BYTES = 1 << 28  # more than a million parts


def check_folder(folder: Path) -> str:
    """Check the files of a folder against its checksums and its manifest; return the digest of the manifest."""
    _refuse_special_files(folder)
    sums = _read_checksums(folder)
    found = {path.relative_to(folder).as_posix() for path in _files(folder)} - {CHECKSUMS}
    problems = [f"{ascii(name)[1:-1]} is missing" for name in sorted(sums.keys() - found)]
    problems += [f"{ascii(name)[1:-1]} is not listed in {CHECKSUMS}" for name in sorted(found - sums.keys())]
    problems += [
        f"{name} differs from its checksum"
        for name in sorted(sums.keys() & found)
        if file_digest(folder / name) != sums[name]
    ]
    if not problems:
        problems += _manifest_problems(folder, sums)
    if problems:
        raise _refusal(folder, problems)
    return sums[MANIFEST]


def check_recorded(folder: Path, digest: str, answers: list[str]) -> None:
    """Refuse a folder whose manifest is not among the answers that a ledger has recorded."""
    if digest not in {_recorded_manifest(answer) for answer in answers}:
        raise _refusal(folder, ["its manifest is not one that the ledger of this dataset has recorded"])


def _files(folder: Path) -> list[Path]:
    """Return all files below a folder."""
    return [Path(place) / name for place, _, names in os.walk(folder) for name in names]


def _refuse_special_files(folder: Path) -> None:
    """Refuse links, whose target may change or be elsewhere, and pipes and devices, which cannot be checked."""
    if not folder.is_dir():
        raise ReleaseStopped(f"{folder} is not a folder; give --verify the folder of a published release")
    entries = [Path(place) / name for place, folders, names in os.walk(folder) for name in (*folders, *names)]
    special = sorted(path for path in entries if stat.S_IFMT(path.lstat().st_mode) not in (stat.S_IFREG, stat.S_IFDIR))
    if special:
        names = [ascii(path.relative_to(folder).as_posix())[1:-1] for path in special]
        raise _refusal(folder, [f"{name} is a link or a special file, not a file of its own" for name in names])


def _read_checksums(folder: Path) -> dict[str, str]:
    """Return the digest of each listed file."""
    path = folder / CHECKSUMS
    if not path.is_file():
        raise _refusal(folder, [f"it has no file {CHECKSUMS}"])
    if path.stat().st_size > MAX_LIST_BYTES:
        raise _refusal(folder, [f"{CHECKSUMS} is longer than {MAX_LIST_BYTES:,} bytes"])
    lines = [LINE.fullmatch(line) for line in path.read_text(errors="replace").splitlines()]
    if any(line is None for line in lines):
        raise _refusal(folder, [f"{CHECKSUMS} has a line that is not a checksum and a name"])
    sums = {line[2]: line[1] for line in lines if line is not None}
    if len(sums) != len(lines):
        raise _refusal(folder, [f"{CHECKSUMS} lists a file twice"])
    return sums


def _manifest_problems(folder: Path, sums: dict[str, str]) -> list[str]:
    """Return what is wrong between the manifest and the files of `data/`."""
    if MANIFEST not in sums:
        return [f"it has no file {MANIFEST}"]
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        version, listed = manifest["format"], {entry["file"]: entry["sha256"] for entry in manifest["files"]}
    except (ValueError, TypeError, KeyError, RecursionError):
        return [f"{MANIFEST} lists no files"]
    if version != FORMAT:
        return [f"{MANIFEST} has another format than {FORMAT}, perhaps of a newer Dither; verify it with that version"]
    data = {name: digest for name, digest in sums.items() if name.startswith("data/")}
    return [] if listed == data else [f"{MANIFEST} lists other files than data/ has"]


def _recorded_manifest(answer: str) -> str | None:
    """Return the digest of the manifest that a recorded answer names, if it is that of a table."""
    found = json.loads(answer)
    return found.get("manifest") if isinstance(found, dict) else None


def _refusal(folder: Path, problems: list[str]) -> ReleaseStopped:
    """Build the error for a folder that is not a whole release."""
    more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
    return ReleaseStopped(
        f"{folder} is not a whole release: {'; '.join(problems[:5])}{more}; copy it again from where it was published"
    )
