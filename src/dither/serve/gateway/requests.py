"""Parse the JSON body of a request and check each field, before any other code uses it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from dither.errors import InvalidParameter
from dither.loss import Rational
from dither.post.options import Place, options_of, read_amount, read_option, read_text, read_whole

REQUEST_ID = re.compile(r"[A-Za-z0-9_.-]{1,48}")
MOST_QUERIES = 64
LONGEST_QUERY = 50_000
QUESTION = ("dataset", "query", *options_of("question"), "request_id", "refine")
BATCH = ("dataset", "queries", *options_of("batch"), "request_id")
SPLIT = ("dataset", "query", *options_of("split"), "threshold")


@dataclass(frozen=True)
class QueryRequest:
    """A query or a batch of queries with its options; `refine` is the loss to spend on the same query again.

    `dataset` is empty if the request names none: then it means the account's only one.
    """

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
    request = _read(fields, (read_text("query", fields.get("query"), LONGEST_QUERY),), "question")
    refine = None if fields.get("refine") is None else read_amount("refine", fields["refine"])
    if refine is not None and request.options.get("delta") is not None:
        raise InvalidParameter("refine cannot be combined with delta")
    return replace(request, refine=refine)


def read_split(body: bytes) -> QueryRequest:
    """Parse a query that is answered twice: for units with at most `threshold` rows, and for units with more."""
    fields = _object(body, SPLIT)
    threshold = read_whole("threshold", fields.get("threshold"), 1)
    return replace(
        _read(fields, (read_text("query", fields.get("query"), LONGEST_QUERY),), "split"), threshold=threshold
    )


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
    texts = tuple(read_text("query", query, LONGEST_QUERY) for query in queries)
    return replace(_read(fields, texts, "batch"), is_batch=True)


def _read(fields: dict[str, Any], queries: tuple[str, ...], place: Place) -> QueryRequest:
    """Parse the fields common to all bodies; an option that is null counts as absent."""
    options = {name: read_option(name, fields[name]) for name in options_of(place) if fields.get(name) is not None}
    request_id = "" if fields.get("request_id") is None else read_text("request_id", fields["request_id"], 48)
    if request_id and not REQUEST_ID.fullmatch(request_id):
        raise InvalidParameter("request_id must have 1 to 48 characters out of A-Z a-z 0-9 _ . -")
    dataset = "" if fields.get("dataset") is None else read_text("dataset", fields["dataset"])
    return QueryRequest(dataset, queries, options, request_id)


def _object(body: bytes, known: tuple[str, ...]) -> dict[str, Any]:
    """Parse a JSON object; raise InvalidParameter for duplicate and unknown keys."""
    try:
        # Keep the digits of numbers, so that 0.1 means exactly one tenth.
        fields = json.loads(body, parse_float=Decimal, parse_constant=_reject_constant, object_pairs_hook=_unique_keys)
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
