"""An audit that is repeated, and the history that it leaves: one line of JSON for each run, only ever added to."""

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
FOUND = 1
UNREADABLE = -1
CRASHED = "error: internal error"


@dataclass(frozen=True)
class ScheduleEntry:
    """One run: when, what, how it ended, and the end of what it said."""

    started: str
    command: tuple[str, ...]
    status: int
    seconds: float
    output: str

    @property
    def passed(self) -> bool:
        """Whether nothing was found."""
        return self.status == 0

    @property
    def ran(self) -> bool:
        """Whether there is a result: bad input, a crash or an interruption gives none."""
        return self.passed or (self.status == FOUND and CRASHED not in self.output)


def interval(text: str) -> float:
    """Seconds in '30m', '12h' or '1d'."""
    number, unit = text[:-1], text[-1:]
    if unit not in UNITS or not number.replace(".", "", 1).isdecimal() or float(number) <= 0:
        raise InvalidParameter(f"an interval is a number and one of s, m, h, d, such as 12h; got {text!r}")
    return float(number) * UNITS[unit]


def once(command: Sequence[str], history: Path) -> ScheduleEntry:
    """Runs `dither audit <command>` in a process of its own and adds the result to the history."""
    if not command or command[0] == "schedule":
        raise InvalidParameter("say which audit to repeat, for example: dither audit schedule -- service URL")
    _ready(history)
    started, clock = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "dither", "audit", *command], capture_output=True, text=True, check=False
    )
    said = (done.stdout + done.stderr)[-MOST_OUTPUT:]
    entry = ScheduleEntry(started, tuple(command), done.returncode, round(time.monotonic() - clock, 3), said)
    with history.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(entry)) + "\n")
    return entry


def _ready(history: Path) -> None:
    """The history can be added to; a line that an interruption left unfinished is ended."""
    try:
        history.parent.mkdir(parents=True, exist_ok=True)
        with history.open("a+b") as file:
            if file.seek(0, SEEK_END) and file.seek(-1, SEEK_END) >= 0 and file.read(1) != b"\n":
                file.write(b"\n")
    except OSError as error:
        raise InvalidParameter(f"the history {history} cannot be written: {error.strerror}") from None


def repeated(
    command: Sequence[str],
    history: Path,
    every: float,
    times: int | None = None,
    sleep: Callable[[float], Any] = time.sleep,
) -> Iterator[ScheduleEntry]:
    """Runs again and again; `times` ends it."""
    done = 0
    while times is None or done < times:
        if done:
            sleep(every)
        yield once(command, history)
        done += 1


def verdict(last: ScheduleEntry, before: Sequence[ScheduleEntry]) -> str:
    """In a word; what passed the last time that this audit had a result and does not now is a regression."""
    if last.passed or not last.ran:
        return "passed" if last.passed else "FAILED (no result)"
    same = [each for each in before if each.command == last.command and each.ran]
    return "REGRESSION" if same and same[-1].passed else "FOUND"


def format_result(kept: Sequence[ScheduleEntry]) -> list[str]:
    """The history in words, one line for each run."""
    return [
        f"{each.started}  {verdict(each, kept[:place])}  {each.seconds} s  {' '.join(each.command)}"
        for place, each in enumerate(kept)
    ]


def entries(history: Path) -> list[ScheduleEntry]:
    """The history, oldest first."""
    if not history.exists():
        return []
    return [_entry(line) for line in history.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]


def _entry(line: str) -> ScheduleEntry:
    """A line of the history; one that cannot be read is shown as a run without a result."""
    try:
        read = json.loads(line)
        return ScheduleEntry(**{**read, "command": tuple(read["command"])})
    except (ValueError, TypeError, KeyError):
        return ScheduleEntry("unreadable line", (), UNREADABLE, 0.0, line)
