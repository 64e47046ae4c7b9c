"""Two separate, rotated logs of JSON lines: a public one, and a private one for the curator.

Events that may depend on a record (corrected values, engine errors, pacing misses) go to the private log only. Other
modules write with `logging.getLogger("dither.public")` or `logging.getLogger("dither.private")`, and pass the fields as
`extra={"event": {...}}`; until `open_logs` is called the private log discards its events.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

PUBLIC, PRIVATE, ACCESS = "dither.public", "dither.private", "dither-access"
LARGEST_FILE = 10_000_000
BACKUP_FILES = 5


class JsonLineFormatter(logging.Formatter):
    """Format one event as one line of JSON; private lines may contain the exception."""

    def __init__(self, *, exceptions: bool) -> None:
        super().__init__()
        self.exceptions = exceptions

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "event", {}),
        }
        if self.exceptions and record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True, default=str)


class OwnerOnlyFileHandler(RotatingFileHandler):
    """A rotated file that only its owner can read."""

    def _open(self) -> Any:
        return os.fdopen(
            os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a", encoding="utf-8"
        )


@dataclass(frozen=True)
class Logs:
    """The two open logs."""

    public: logging.Logger
    private: logging.Logger

    def close(self) -> None:
        """Detach and close both files."""
        for logger in (self.public, self.private):
            for handler in list(logger.handlers):
                logger.removeHandler(handler)
                handler.close()


def open_logs(directory: Path, *, max_bytes: int = LARGEST_FILE, backups: int = BACKUP_FILES) -> Logs:
    """Open public.jsonl and private.jsonl in `directory`; only their owner can read them there."""
    directory.mkdir(parents=True, exist_ok=True)
    public, private = (
        OwnerOnlyFileHandler(directory / name, maxBytes=max_bytes, backupCount=backups, encoding="utf-8")
        for name in ("public.jsonl", "private.jsonl")
    )
    return Logs(_attach(PUBLIC, public, exceptions=False), _attach(PRIVATE, private, exceptions=True))


def open_access_log(path: Path) -> logging.Logger:
    """Open the gateway's log of requests, one line each, without queries, tokens or names that a client chose."""
    file = OwnerOnlyFileHandler(path, maxBytes=LARGEST_FILE, backupCount=BACKUP_FILES, encoding="utf-8")
    return _attach(ACCESS, file, exceptions=False)


def _attach(name: str, handler: logging.Handler, *, exceptions: bool) -> logging.Logger:
    """Attach a handler to a logger, in place of earlier ones."""
    handler.setFormatter(JsonLineFormatter(exceptions=exceptions))
    logger = logging.getLogger(name)
    for old in list(logger.handlers):
        logger.removeHandler(old)
        old.close()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    return logger


# Before its file is open, an event of these logs must not reach the process's error stream.
for _name in (PRIVATE, ACCESS):
    logging.getLogger(_name).addHandler(logging.NullHandler())
    logging.getLogger(_name).propagate = False
