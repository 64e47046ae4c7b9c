"""One process for each state folder, by a lock that ends with the process that holds it, however that ends."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import IO

from dither.errors import InvalidParameter

PREDECESSOR_SECONDS = 20.0  # how long a supervised process waits for one that a killed supervisor left behind


def lock_folder(folder: Path, what: str) -> IO[str]:
    """Lock a folder until the returned file is closed or this process ends; raise if another process uses it.

    A process that a supervisor started waits for its predecessor to end; others are refused at once.
    """
    until = time.monotonic() + (PREDECESSOR_SECONDS if "DITHER_SUPERVISOR" in os.environ else 0.0)
    file = os.fdopen(os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+")
    while not _try_lock(file):
        if time.monotonic() >= until:
            file.close()
            raise InvalidParameter(f"another {what} already uses {folder}; stop it, or choose another --state")
        time.sleep(0.05)
    return file


def _try_lock(file: IO[str]) -> bool:
    """Lock a file; return false if another process holds the lock."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
