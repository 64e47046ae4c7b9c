"""Files that only their owner may read: put right where they are the kernel's own, refused where they are a secret."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from dither.errors import InvalidParameter

OTHERS = 0o077
NOT_THE_GROUP = 0o027  # whoever owns a key may lend it to a group, for reading


def private_folder(place: Path) -> str:
    """Makes a folder for this user alone, or closes one that is there; says what was open before, if anything was."""
    if place.is_symlink() or (place.exists() and not place.is_dir()):
        raise InvalidParameter(f"{place} must be a folder of its own, and no link")
    place.mkdir(mode=0o700, exist_ok=True)
    if place.stat().st_uid != os.geteuid():
        raise InvalidParameter(f"{place} belongs to another user; it holds the ledger, and must be this one's")
    inside = [path for path in sorted(place.rglob("*")) if path.is_file() and not path.is_symlink()]
    found = [path for path in (place, *inside) if _mode(path) & OTHERS]
    for path in found:
        path.chmod(_mode(path) & ~OTHERS)
    names = ", ".join(str(path) for path in found)
    return f"closed to others, who could open it until now: {names}" if found else ""


def secret_file(place: Path) -> Path:
    """A file that holds a secret; refused where anyone on the machine could read or change it."""
    try:
        mode = _mode(place)
    except OSError:
        raise InvalidParameter(f"{place} cannot be read") from None
    if mode & NOT_THE_GROUP:
        raise InvalidParameter(f"{place} is a secret that others can open (mode {mode:o}): chmod 600 {place}")
    return place


def _mode(place: Path) -> int:
    return stat.S_IMODE(place.stat().st_mode)
