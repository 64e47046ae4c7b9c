"""Parse the JSON body of a request and check each field, before any other code uses it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

from dither.errors import InvalidParameter
from dither.loss import Rational, rational
from dither.post.options import Form, Place, options_of

REQUEST_ID = re.compile(r"[A-Za-z0-9_.-]{1,48}")
AMOUNT = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?|-?[0-9]+/[0-9]+")
MOST_QUERIES = 64
LONGEST_QUERY = 50_000
QUESTION = ("dataset", "query", *options_of("question"), "request_id", "refine")
BATCH = ("dataset", "queries", *options_of("batch"), "request_id")
SPLIT = ("dataset", "query", *options_of("split"), "threshold")


@dataclass(frozen=True)
class QueryRequest:
    """A query or a batch of queries with its options; `refine` is the loss to spend on the same query again."""

    dataset: str
    queries: tuple[str, ...]
    options: dict[str, Any]
    request_id: str
    is_batch: bool = False
    refine: Rational | None = None
    threshold: int = 0


def read_query(body: bytes) -> QueryRequest:
    """Parse a body that holds one query."""
    fields = _object(body, QUESTION)
    request = _read(fields, (_text(fields, "query", LONGEST_QUERY),), "question")
    refine = _amount(fields, "refine")
    if refine is not None and (rational(refine) <= 0 or request.options.get("delta") is not None):
        raise InvalidParameter("refine must be above 0, and cannot be combined with delta")
    return replace(request, refine=refine)


def read_split(body: bytes) -> QueryRequest:
    """Parse a query that is answered twice: for units with at most `threshold` rows, and for units with more."""
    fields = _object(body, SPLIT)
    threshold = _whole(fields, "threshold", 1)
    if threshold is None:
        raise InvalidParameter("threshold must be a whole number of at least 1")
    return replace(_read(fields, (_text(fields, "query", LONGEST_QUERY),), "split"), threshold=threshold)


def read_any(body: bytes) -> QueryRequest:
    """Parse a body that holds either one query or a batch."""
    fields = _object(body, tuple(dict.fromkeys((*QUESTION, *BATCH))))
    return read_batch(body) if "queries" in fields else read_query(body)


def read_batch(body: bytes) -> QueryRequest:
    """Parse a body that holds a batch of queries."""
    fields = _object(body, BATCH)
    queries = fields.get("queries")
    if not isinstance(queries, list) or not 1 <= len(queries) <= MOST_QUERIES:
        raise InvalidParameter(f"queries must be a list of 1 to {MOST_QUERIES} strings")
    texts = tuple(_text({"query": query}, "query", LONGEST_QUERY) for query in queries)
    return replace(_read(fields, texts, "batch"), is_batch=True)


def _read(fields: dict[str, Any], queries: tuple[str, ...], place: Place) -> QueryRequest:
    """Parse the fields common to all bodies; an option that is null counts as absent."""
    options = {
        name: _READERS[option.form](fields, name)
        for name, option in options_of(place).items()
        if fields.get(name) is not None
    }
    request_id = "" if fields.get("request_id") is None else _text(fields, "request_id", 48)
    if request_id and not REQUEST_ID.fullmatch(request_id):
        raise InvalidParameter("request_id must have 1 to 48 characters out of A-Z a-z 0-9 _ . -")
    if fields.get("dataset") is None:
        raise InvalidParameter("dataset is missing; name the dataset")
    return QueryRequest(_text(fields, "dataset", 200), queries, options, request_id)


def _object(body: bytes, known: tuple[str, ...]) -> dict[str, Any]:
    """Parse a JSON object; raise InvalidParameter for duplicate and unknown keys."""
    try:
        # Keep decimal numbers as strings, so that 0.1 means exactly one tenth.
        fields = json.loads(body, parse_float=str, parse_constant=_reject_constant, object_pairs_hook=_unique_keys)
    except (ValueError, RecursionError):
        raise InvalidParameter("the body must be a JSON object without duplicate keys") from None
    if not isinstance(fields, dict):
        raise InvalidParameter("the body must be a JSON object")
    if unknown := set(fields) - set(known):
        names = ", ".join(repr(name[:40]) for name in sorted(unknown)[:5])
        raise InvalidParameter(f"unknown fields: {names}; the fields are: {', '.join(known)}")
    return fields


def _reject_constant(text: str) -> Any:
    """Raise ValueError for NaN and Infinity."""
    raise ValueError(text)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a dictionary; raise ValueError for duplicate keys."""
    parsed = dict(pairs)
    if len(parsed) != len(pairs):
        raise ValueError
    return parsed


def _text(fields: dict[str, Any], name: str, longest: int) -> str:
    """Return a field that must be a string."""
    value = fields.get(name)
    if not isinstance(value, str) or not 1 <= len(value) <= longest or "\x00" in value or not _is_encodable(value):
        raise InvalidParameter(f"{name} must be a string of 1 to {longest} characters")
    return value


def _is_encodable(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _amount(fields: dict[str, Any], name: str) -> Rational | None:
    """Return a field that must be an exact number, or None."""
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | str) or not AMOUNT.fullmatch(str(value)[:200]):
        raise InvalidParameter(f"{name} must be a number such as 0.1 or '1/10'")
    return rational(value, name)


def _number(fields: dict[str, Any], name: str) -> float | None:
    """Return a field that must be a number, or None."""
    amount = _amount(fields, name)
    return None if amount is None else float(cast(float, amount))


def _whole(fields: dict[str, Any], name: str, least: int) -> int | None:
    """Return a field that must be a whole number of at least `least`, or None."""
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**31:
        raise InvalidParameter(f"{name} must be a whole number of at least {least}")
    return value


def _flag(fields: dict[str, Any], name: str) -> bool:
    """Return a field that must be true or false."""
    value = fields[name]
    if not isinstance(value, bool):
        raise InvalidParameter(f"{name} must be true or false")
    return value


def _contributions(fields: dict[str, Any], name: str) -> Any:
    """Return a field that must be a contribution bound."""
    value = fields[name]
    if value == "auto" or (type(value) is int and 1 <= value < 2**31):
        return value
    if isinstance(value, dict) and all(
        item in ("clip", "rows") if key == "how" else type(item) is int and 1 <= item < 2**31
        for key, item in value.items()
    ):
        return value
    raise InvalidParameter(f"{name} must be 'auto', a number of rows, or {{'max_groups': G, 'max_rows_per_group': R}}")


_READERS: dict[Form, Callable[[dict[str, Any], str], Any]] = {
    "amount": _amount,
    "number": _number,
    "probability": _number,
    "positive": lambda fields, name: _whole(fields, name, 1),
    "count": lambda fields, name: _whole(fields, name, 0),
    "text": lambda fields, name: _text(fields, name, 200),
    "contributions": _contributions,
    "flag": _flag,
}
