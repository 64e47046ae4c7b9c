"""CSV files whose quotes do not close: found before anything is asked, since such a record swallows those after it."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable
from io import StringIO
from typing import Literal

LONGEST_RECORD = 2_000_000

State = Literal["closed", "open", "broken"]


def first_unclosed(lines: Iterable[str], delimiter: str) -> int | None:
    """The number of the first line, from 1, whose quotes reach into others; None if there is none.

    >>> first_unclosed(['a,b\\n', '1,"two\\n', 'lines"\\n', '3,"open\\n', '4,x\\n'], ",")
    4
    """
    plain = _plain(delimiter)
    parts: list[str] = []
    begun = length = 0
    for number, line in enumerate(lines, 1):
        if not parts:
            if '"' not in line or plain(line):
                continue
            begun = number
        parts.append(line)
        length += len(line)
        state = _state("".join(parts), delimiter) if '"' in line else "open"
        if state == "broken" or length > LONGEST_RECORD:
            return begun
        if state == "closed":
            parts, length = [], 0
    return begun if parts else None


def _plain(delimiter: str) -> Callable[[str], object]:
    """Whether a line is made of fields without quotes and of quoted ones, where something may follow the second quote.

    That something is the record's own harm: it is cut off, and the next record is read as it is.
    """
    d = re.escape(delimiter)
    cell = rf'(?:[^"{d}\r\n]*|"[^"\r\n]*"[^"{d}\r\n]*)'
    return re.compile(rf"{cell}(?:{d}{cell})*\r?\n?").fullmatch


def _state(text: str, delimiter: str) -> State:
    """Where a record stands at its end, in both readings of a quote after spaces: as an opening one or as any other."""
    found = {_read(text, delimiter, skip) for skip in (False, True)}
    if found <= {"closed"}:
        return "closed"
    return "open" if found == {"open"} else "broken"


def _read(text: str, delimiter: str, skip: bool) -> State:
    try:
        list(csv.reader(StringIO(text, newline=""), delimiter=delimiter, strict=True, skipinitialspace=skip))
    except csv.Error as error:
        return "open" if "end of data" in str(error) else "broken"
    return "closed"
