"""What auditors read beside the ledger: the proofs of this version, and reports of audits that were laid out."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Any

from dither.errors import NotFound

PROOFS = Path(__file__).resolve().parents[1] / "proofs"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
KINDS = {".md": "text/markdown", ".json": "application/json", ".html": "text/html", ".txt": "text/plain"}
MOST_BYTES = 1 << 24


def papers(folder: Path | None) -> list[Path]:
    """The papers in a folder: small files of known kinds, and no links."""
    if folder is None or not folder.is_dir():
        return []
    return [path for path in sorted(folder.iterdir()) if _fits(path)]


def _fits(path: Path) -> bool:
    known = NAME.fullmatch(path.name) is not None and path.suffix in KINDS
    return known and path.is_file() and not path.is_symlink() and _readable(path)


def _readable(path: Path) -> bool:
    return os.access(path, os.R_OK) and path.stat().st_size <= MOST_BYTES


def papers_data(folder: Path | None) -> list[dict[str, Any]]:
    """Their names, sizes and hashes, so that two readers know that they read the same."""
    found = ((path, path.read_bytes()) for path in papers(folder))
    return [{"name": path.name, "bytes": len(text), "sha256": hashlib.sha256(text).hexdigest()} for path, text in found]


def paper(folder: Path | None, name: str) -> tuple[bytes, str]:
    """One of them, and its kind; a name is looked up among those that are there, and never made into a path."""
    for path in papers(folder):
        if path.name == name:
            return path.read_bytes(), KINDS[path.suffix]
    raise NotFound("there is no such paper")
