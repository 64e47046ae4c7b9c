"""What an analyst sends as JSON, checked field by field before anything else looks at it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Any, cast

from dither.errors import InvalidParameter
from dither.loss import Rational, rational

REQUEST_ID = re.compile(r"[A-Za-z0-9_.-]{1,48}")
AMOUNT = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?|-?[0-9]+/[0-9]+")
MOST_QUERIES = 64
LONGEST_QUERY = 50_000
SPLIT = ("dataset", "query", "threshold", "epsilon", "rho", "bound", "confidence", "unit", "join_rows", "rows")
SHARED = (
    "dataset",
    "epsilon",
    "rho",
    "within",
    "bound",
    "confidence",
    "unit",
    "join_rows",
    "rows",
    "request_id",
    "draw",
)
ONE = (*SHARED, "query", "delta", "remeasure")
MANY = (*SHARED, "queries")


@dataclass(frozen=True)
class Asked:
    """A question, or a batch of them, with its options; `more` is what to spend on the same question once again."""

    dataset: str
    queries: tuple[str, ...]
    options: dict[str, Any]
    request_id: str
    draw: int
    many: bool = False
    more: Rational | None = None
    threshold: int = 0


def read_one(body: bytes) -> Asked:
    """The question that a body holds."""
    given = _object(body, ONE)
    asked = _asked(given, (_text(given, "query", LONGEST_QUERY),), {"delta": _amount(given, "delta")})
    more = _amount(given, "remeasure")
    if more is not None and (rational(more) <= 0 or asked.options["delta"] is not None):
        raise InvalidParameter("remeasure must be positive, and does not go with delta")
    return replace(asked, more=more)


def read_split(body: bytes) -> Asked:
    """The question that is asked of light units and of heavy ones."""
    given = _object(body, SPLIT)
    threshold = _whole(given, "threshold", 1)
    if threshold is None:
        raise InvalidParameter("threshold must be a whole number from 1 up")
    asked = _asked(given, (_text(given, "query", LONGEST_QUERY),), {})
    return replace(asked, threshold=threshold)


def read_any(body: bytes) -> Asked:
    """The question, or the batch, that a body holds."""
    given = _object(body, tuple(dict.fromkeys((*ONE, *MANY))))
    return read_many(body) if "queries" in given else read_one(body)


def read_many(body: bytes) -> Asked:
    """The batch that a body holds."""
    given = _object(body, MANY)
    queries = given.get("queries")
    if not isinstance(queries, list) or not 1 <= len(queries) <= MOST_QUERIES:
        raise InvalidParameter(f"queries must be a list of 1 to {MOST_QUERIES} texts")
    texts = tuple(_text({"query": query}, "query", LONGEST_QUERY) for query in queries)
    return replace(_asked(given, texts, {}), many=True)


def _asked(given: dict[str, Any], queries: tuple[str, ...], more: dict[str, Any]) -> Asked:
    confidence = _number(given, "confidence")
    options = {
        "epsilon": _amount(given, "epsilon"),
        "rho": _amount(given, "rho"),
        "within": _number(given, "within"),
        "join_rows": _whole(given, "join_rows", 1),
        "rows": _number(given, "rows"),
        "bound": _bound(given.get("bound")),
        "unit": None if given.get("unit") is None else _text(given, "unit", 200),
        **({} if confidence is None else {"confidence": confidence}),
        **more,
    }
    request_id = "" if given.get("request_id") is None else _text(given, "request_id", 48)
    if request_id and not REQUEST_ID.fullmatch(request_id):
        raise InvalidParameter("request_id must be 1 to 48 of A-Z a-z 0-9 _ . -")
    return Asked(_text(given, "dataset", 200), queries, options, request_id, _whole(given, "draw", 0) or 0)


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


def _bound(value: Any) -> Any:
    if value is None or value == "auto":
        return value
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 2**31:
        return value
    if isinstance(value, dict) and all(
        item in ("clip", "rows") if name == "how" else type(item) is int and 1 <= item < 2**31
        for name, item in value.items()
    ):
        return value
    raise InvalidParameter("bound must be 'auto', a number of rows, or {'groups': G, 'rows': R}")
