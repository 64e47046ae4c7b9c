"""Find CSV quotes that do not close, before the first query: such a record would swallow those after it."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable
from io import StringIO
from typing import Literal

LONGEST_RECORD = 2_000_000

State = Literal["closed", "open", "broken"]


def first_unclosed_quote(lines: Iterable[str], delimiter: str) -> int | None:
    r"""Return the number, from 1, of the first line whose quotes extend over other records; None if there is none.

    >>> first_unclosed_quote(['a,b\n', '1,"two\n', 'lines"\n', '3,"open\n', '4,x\n'], ",")
    4
    """
    plain = _match_plain_line(delimiter)
    parts: list[str] = []
    start = length = 0
    for number, line in enumerate(lines, 1):
        if not parts:
            if '"' not in line or plain(line):
                continue
            start = number
        parts.append(line)
        length += len(line)
        state = _quote_state("".join(parts), delimiter) if '"' in line else "open"
        if state == "broken" or length > LONGEST_RECORD:
            return start
        if state == "closed":
            parts, length = [], 0
    return start if parts else None


def _match_plain_line(delimiter: str) -> Callable[[str], object]:
    """Return a matcher for lines of unquoted and quoted fields, where text may follow the closing quote.

    Such text harms only its own record: it is cut off, and the next record is read correctly.
    """
    escaped = re.escape(delimiter)
    cell = rf'(?:[^"{escaped}\r\n]*|"[^"\r\n]*"[^"{escaped}\r\n]*)'
    return re.compile(rf"{cell}(?:{escaped}{cell})*\r?\n?").fullmatch


def _quote_state(text: str, delimiter: str) -> State:
    """Return the state at the end of a record; reading a quote after spaces as opening or as text must agree."""
    states = {_parse_record(text, delimiter, skip_spaces) for skip_spaces in (False, True)}
    if states <= {"closed"}:
        return "closed"
    return "open" if states == {"open"} else "broken"


def _parse_record(text: str, delimiter: str, skip_spaces: bool) -> State:
    """Parse a record strictly and return its state; `skip_spaces`: a quote after spaces opens a field."""
    try:
        list(csv.reader(StringIO(text, newline=""), delimiter=delimiter, strict=True, skipinitialspace=skip_spaces))
    except csv.Error as error:
        return "open" if "end of data" in str(error) else "broken"
    return "closed"
