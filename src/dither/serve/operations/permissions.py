"""File permissions: restrict the kernel's own folder to its owner, and refuse secrets that other users can read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from dither.errors import InvalidParameter

OTHERS_BITS = 0o077
KEY_FORBIDDEN_BITS = 0o027  # the owner of a key may let a group read it


def secure_private_folder(folder: Path) -> str:
    """Create a folder for this user alone, or restrict an existing one; return a notice if other users had access."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise InvalidParameter(f"{folder} must be a folder, not a file or a symbolic link")
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.geteuid():
        raise InvalidParameter(f"{folder} holds the ledger, and must belong to the user that runs the kernel")
    was_open = bool(_mode(folder) & OTHERS_BITS)
    for path in (folder, *sorted(folder.rglob("*"))):
        if path.is_file() or path == folder:
            _close_to_others(path)
    return f"other users could open {folder}; from now on only this user can" if was_open else ""


def _close_to_others(path: Path) -> None:
    if not path.is_symlink() and _mode(path) & OTHERS_BITS:
        path.chmod(_mode(path) & ~OTHERS_BITS)


def check_secret_file(path: Path) -> Path:
    """Return the path of a file that holds a secret; raise InvalidParameter if other users could read or change it."""
    try:
        mode = _mode(path)
    except OSError:
        raise InvalidParameter(f"{path} cannot be read") from None
    if mode & KEY_FORBIDDEN_BITS:
        raise InvalidParameter(f"other users can open the secret {path} (mode {mode:o}); run: chmod 600 {path}")
    return path


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)
