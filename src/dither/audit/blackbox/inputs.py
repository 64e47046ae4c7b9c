"""Describe inputs: as short texts, as Python expressions, and by where two of them differ."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from dither.audit.neighbours import fingerprint

MAX_TEXT = 200
# An input is written into a program if it is no longer than this; at most MAX_DIFFERENCES places are named.
MAX_CODE, MAX_DIFFERENCES = 120, 3


def shorten(value: Any) -> str:
    """Return a text of at most 200 characters for a value."""
    value = value.item() if isinstance(value, np.generic) else value
    text = np.array2string(value, threshold=20) if isinstance(value, np.ndarray) else repr(value)
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 3] + "..."


def as_code(value: Any) -> str:
    """Return a Python expression for an input, or "" if it has none that is short."""
    is_array = isinstance(value, np.ndarray)
    text = repr(value.tolist() if isinstance(value, np.ndarray | np.generic) else value)
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return ""
    text = f"np.array({text})" if is_array else text
    return text if len(text) <= MAX_CODE else ""


def describe_difference(a: Any, b: Any) -> str:
    """Say in which entries, keys, members or rows two inputs differ; return "" for numbers, texts and the like.

    >>> describe_difference([0, 0, 5], [0, 0, 7])
    'entry 2 is 5 in the first and 7 in the second'
    >>> describe_difference([1.0], [1.0, 0.0])
    'only the second has 0.0'
    """
    a, b = _as_plain(a), _as_plain(b)
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return _join([_key_difference(key, a, b) for key in [*a, *(key for key in b if key not in a)]])
    if isinstance(a, set | frozenset) and isinstance(b, set | frozenset):
        return _join([_only("first", a - b), _only("second", b - a)])
    if not isinstance(a, list | tuple) or not isinstance(b, list | tuple):
        return ""
    if len(a) != len(b):
        extra = [_multiset_difference(*sides) for sides in ((a, b), (b, a))]
        return _join([_only("first", extra[0]), _only("second", extra[1])]) or "their order"
    return _join([_entry_difference(f"entry {place}", *both) for place, both in enumerate(zip(a, b, strict=True))])


def _as_plain(value: Any) -> Any:
    """Convert tables to lists of rows, arrays to lists, dataclasses to dictionaries."""
    if hasattr(value, "to_dict") and hasattr(value, "columns"):
        return value.to_dict("records")
    if isinstance(value, np.ndarray):
        return value.tolist()
    if is_dataclass(value) and not isinstance(value, type):
        return {attribute.name: getattr(value, attribute.name) for attribute in fields(value)}
    return value


def _key_difference(key: Hashable, a: Mapping[Any, Any], b: Mapping[Any, Any]) -> str:
    if key not in a or key not in b:
        return _only("second" if key in b else "first", [key])
    return _entry_difference(f"[{key!r}]", a[key], b[key])


def _entry_difference(place: str, a: Any, b: Any) -> str:
    """Say how two entries at one place differ, by their own entries if they are long; "" if they do not."""
    if fingerprint(a) == fingerprint(b):
        return ""
    first, second = shorten(a), shorten(b)
    inner = describe_difference(a, b) if max(len(first), len(second)) > MAX_CODE else ""
    return f"in {place}, {inner}" if inner else f"{place} is {first} in the first and {second} in the second"


def _multiset_difference(a: Any, b: Any) -> list[Any]:
    """Return the entries of the first that the second lacks."""
    counts, result = Counter(map(fingerprint, b)), []
    for entry in a:
        if counts[fingerprint(entry)]:
            counts[fingerprint(entry)] -= 1
        else:
            result.append(entry)
    return result


def _only(side: str, entries: Any) -> str:
    """Say that only one input has some entries."""
    listed = [shorten(entry) for entry in entries]
    more = [f"{len(listed) - MAX_DIFFERENCES} more"] if len(listed) > MAX_DIFFERENCES else []
    return f"only the {side} has {', '.join(listed[:MAX_DIFFERENCES] + more)}" if listed else ""


def _join(texts: list[str]) -> str:
    found = [text for text in texts if text]
    more = [f"{len(found) - MAX_DIFFERENCES} more differences"] if len(found) > MAX_DIFFERENCES else []
    return "; ".join(found[:MAX_DIFFERENCES] + more)
