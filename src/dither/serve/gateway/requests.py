"""Read what an analyst sends as JSON, and check it field by field before anything else looks at it."""

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
    """A query, or a batch of them, with its options; `refine` is what to spend on the same query once again."""

    dataset: str
    queries: tuple[str, ...]
    options: dict[str, Any]
    request_id: str
    is_batch: bool = False
    refine: Rational | None = None
    threshold: int = 0


def read_query(body: bytes) -> QueryRequest:
    """Read the query that a body holds."""
    given = _object(body, QUESTION)
    request = _read(given, (_text(given, "query", LONGEST_QUERY),), "question")
    refine = _amount(given, "refine")
    if refine is not None and (rational(refine) <= 0 or request.options.get("delta") is not None):
        raise InvalidParameter("refine must be positive, and does not go with delta")
    return replace(request, refine=refine)


def read_split(body: bytes) -> QueryRequest:
    """Read a query that is asked of units with few rows and of units with more."""
    given = _object(body, SPLIT)
    threshold = _whole(given, "threshold", 1)
    if threshold is None:
        raise InvalidParameter("threshold must be a whole number from 1 up")
    return replace(_read(given, (_text(given, "query", LONGEST_QUERY),), "split"), threshold=threshold)


def read_any(body: bytes) -> QueryRequest:
    """Read the query, or the batch, that a body holds."""
    given = _object(body, tuple(dict.fromkeys((*QUESTION, *BATCH))))
    return read_batch(body) if "queries" in given else read_query(body)


def read_batch(body: bytes) -> QueryRequest:
    """Read the batch that a body holds."""
    given = _object(body, BATCH)
    queries = given.get("queries")
    if not isinstance(queries, list) or not 1 <= len(queries) <= MOST_QUERIES:
        raise InvalidParameter(f"queries must be a list of 1 to {MOST_QUERIES} texts")
    texts = tuple(_text({"query": query}, "query", LONGEST_QUERY) for query in queries)
    return replace(_read(given, texts, "batch"), is_batch=True)


def _read(given: dict[str, Any], queries: tuple[str, ...], place: Place) -> QueryRequest:
    """Read the fields that every body may have; an option that is null counts as not given."""
    options = {
        name: _READERS[option.form](given, name)
        for name, option in options_of(place).items()
        if given.get(name) is not None
    }
    request_id = "" if given.get("request_id") is None else _text(given, "request_id", 48)
    if request_id and not REQUEST_ID.fullmatch(request_id):
        raise InvalidParameter("request_id must be 1 to 48 of A-Z a-z 0-9 _ . -")
    return QueryRequest(_text(given, "dataset", 200), queries, options, request_id)


def _object(body: bytes, known: tuple[str, ...]) -> dict[str, Any]:
    try:
        # Numbers with a point stay text: 0.1 is to mean one tenth.
        given = json.loads(body, parse_float=str, parse_constant=_refuse, object_pairs_hook=_once)
    except (ValueError, RecursionError):
        raise InvalidParameter("the body must be a JSON object, in which no name stands twice") from None
    if not isinstance(given, dict):
        raise InvalidParameter("the body must be a JSON object")
    if unknown := set(given) - set(known):
        shown = ", ".join(repr(name[:40]) for name in sorted(unknown)[:5])
        raise InvalidParameter(f"no such fields: {shown}; there are: {', '.join(known)}")
    return given


def _refuse(text: str) -> Any:
    raise ValueError(text)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError
    return made


def _text(given: dict[str, Any], name: str, longest: int) -> str:
    value = given.get(name)
    if not isinstance(value, str) or not 1 <= len(value) <= longest or "\x00" in value or not _encodable(value):
        raise InvalidParameter(f"{name} must be a text of 1 to {longest} characters")
    return value


def _encodable(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _amount(given: dict[str, Any], name: str) -> Rational | None:
    value = given.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | str) or not AMOUNT.fullmatch(str(value)[:200]):
        raise InvalidParameter(f"{name} must be a number such as 0.1 or '1/10'")
    return rational(value, name)


def _number(given: dict[str, Any], name: str) -> float | None:
    amount = _amount(given, name)
    return None if amount is None else float(cast(float, amount))


def _whole(given: dict[str, Any], name: str, least: int) -> int | None:
    value = given.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**31:
        raise InvalidParameter(f"{name} must be a whole number from {least} up")
    return value


def _contributions(given: dict[str, Any], name: str) -> Any:
    value = given[name]
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
    "positive": lambda given, name: _whole(given, name, 1),
    "count": lambda given, name: _whole(given, name, 0),
    "text": lambda given, name: _text(given, name, 200),
    "contributions": _contributions,
}
