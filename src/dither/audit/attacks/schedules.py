"""Repeat an audit on a schedule and append one line of JSON for each run to a history file."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from os import SEEK_END
from pathlib import Path
from typing import Any

from dither.errors import InvalidParameter

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
MOST_OUTPUT = 4000
FOUND_STATUS = 1
UNREADABLE_STATUS = -1
CRASH_MESSAGE = "error: internal error"


@dataclass(frozen=True)
class ScheduleEntry:
    """One run of an audit: start, command, exit status, duration, and the end of its output."""

    started: str
    command: tuple[str, ...]
    status: int
    seconds: float
    output: str

    @property
    def passed(self) -> bool:
        """True if the audit found nothing."""
        return self.status == 0

    @property
    def ran(self) -> bool:
        """True if the run has a result; invalid input, a crash or an interruption gives none."""
        return self.passed or (self.status == FOUND_STATUS and CRASH_MESSAGE not in self.output)


def parse_interval(text: str) -> float:
    """Return the seconds in a text such as '30m', '12h' or '1d'."""
    number, unit = text[:-1], text[-1:]
    if unit not in UNITS or not number.replace(".", "", 1).isdecimal() or float(number) <= 0:
        raise InvalidParameter(f"an interval must be a number followed by s, m, h or d, such as 12h; got {text!r}")
    return float(number) * UNITS[unit]


def run_once(command: Sequence[str], history: Path) -> ScheduleEntry:
    """Run `dither audit <command>` in a process of its own and append the result to the history."""
    if not command or command[0] == "schedule":
        raise InvalidParameter("name the audit to repeat, for example: dither audit schedule -- service URL")
    _prepare_history(history)
    started, clock = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()
    process = subprocess.run(
        [sys.executable, "-m", "dither", "audit", *command], capture_output=True, text=True, check=False
    )
    output = (process.stdout + process.stderr)[-MOST_OUTPUT:]
    entry = ScheduleEntry(started, tuple(command), process.returncode, round(time.monotonic() - clock, 3), output)
    with history.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(entry)) + "\n")
    return entry


def _prepare_history(history: Path) -> None:
    """Check that the history can be written, and end a line that an interruption left unfinished."""
    try:
        history.parent.mkdir(parents=True, exist_ok=True)
        with history.open("a+b") as file:
            if file.seek(0, SEEK_END) and file.seek(-1, SEEK_END) >= 0 and file.read(1) != b"\n":
                file.write(b"\n")
    except OSError as error:
        raise InvalidParameter(f"the history {history} cannot be written: {error.strerror}") from None


def repeat_audit(
    command: Sequence[str],
    history: Path,
    every: float,
    times: int | None = None,
    sleep: Callable[[float], Any] = time.sleep,
) -> Iterator[ScheduleEntry]:
    """Run an audit again every `every` seconds, `times` times or without end; yield the entry of each run."""
    runs = 0
    while times is None or runs < times:
        if runs:
            sleep(every)
        yield run_once(command, history)
        runs += 1


def verdict(last: ScheduleEntry, before: Sequence[ScheduleEntry]) -> str:
    """Return the verdict of a run: a regression if the same audit passed the last time that it had a result."""
    if last.passed or not last.ran:
        return "passed" if last.passed else "FAILED (no result)"
    same_audit = [entry for entry in before if entry.command == last.command and entry.ran]
    return "REGRESSION" if same_audit and same_audit[-1].passed else "FOUND"


def format_history(entries: Sequence[ScheduleEntry]) -> list[str]:
    """Return one line of text for each run of the history."""
    return [
        f"{entry.started}  {verdict(entry, entries[:place])}  {entry.seconds} s  {' '.join(entry.command)}"
        for place, entry in enumerate(entries)
    ]


def read_history(history: Path) -> list[ScheduleEntry]:
    """Return the entries of the history, oldest first."""
    if not history.exists():
        return []
    lines = history.read_text(encoding="utf-8", errors="replace").splitlines()
    return [_parse_entry(line) for line in lines if line.strip()]


def _parse_entry(line: str) -> ScheduleEntry:
    """Parse a line of the history; an unreadable line becomes a run without a result."""
    try:
        entry = json.loads(line)
        return ScheduleEntry(**{**entry, "command": tuple(entry["command"])})
    except (ValueError, TypeError, KeyError):
        return ScheduleEntry("unreadable line", (), UNREADABLE_STATUS, 0.0, line)
