"""Strict JSON (version 2) for everything in `privacy.protocol`, driven by field types and tables of class names.

A node is an object whose "node" names its class; a rational is text such as "1/10" (or {"rational": "1/10"} in a field
that also allows text); there are no floats. The type of a field decides which values it accepts: a class name is looked
up among the classes of that type only. Decoding any other bytes raises a `DitherError` and no other exception.
"""

from __future__ import annotations

import hashlib
import json
import types
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from fractions import Fraction
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from dither.errors import DitherError, InvalidPlan
from dither.loss import LARGEST_TERM, rational
from dither.plan import expressions as expr
from dither.plan import measures as measure
from dither.plan import relations as relation
from dither.plan.context import Context
from dither.privacy import mechanisms
from dither.privacy import protocol as model
from dither.privacy.protocol import ReleaseRequest, Request

VERSION = 2
# Fields of messages in ledgers of format 3; no longer written, and ignored when read.
RETIRED_FIELDS = {"Request": {"expect_head"}, "Release": {"head"}}
# Fields added since, with the value at which they are not written: what older ledgers hold keeps its bytes and hashes.
ADDED_FIELDS: dict[str, Mapping[str, object]] = {
    "Unit": {"max_rows": {}},
    "Request": {"selection": None},
    "Release": {"selection_results": None},
    "Sensitivity": {"equal_shares": False},
    "Dataset": {"profile_epsilon": Fraction(0)},
    "BoundRule": {"sizes": ()},
    "HistoryEntry": {"request": ""},
}
T = TypeVar("T")

FAMILIES: dict[type, Mapping[str, type]] = {
    expr.Expr: expr.BY_NAME,
    relation.Relation: relation.BY_NAME,
    measure.Measure: measure.BY_NAME,
    mechanisms.Mechanism: mechanisms.BY_NAME,
}
# The names of plan nodes in JSON; other classes, whose names tests record, go by their own.
WIRE_NAMES = {kind: name for table in FAMILIES.values() for name, kind in table.items()}
NAMESPACE = {"Measure": measure.Measure, "Mechanism": mechanisms.Mechanism}


@dataclass(frozen=True)
class MessageLimits:
    """Limits on the size of a message: bytes, total number of values, and depth of nesting."""

    size: int
    values: int
    depth: int = 100


REQUEST = MessageLimits(size=1 << 22, values=200_000)
RESPONSE = MessageLimits(size=1 << 30, values=1 << 27)


def encode(value: object) -> bytes:
    """Return the canonical JSON of a message, a schema or a loss: equal values give equal bytes."""
    try:
        tree = {"version": VERSION, **_encode(type(value), value)}
        return json.dumps(tree, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    except (RecursionError, TypeError, ValueError, KeyError, AttributeError):
        raise InvalidPlan("the plan contains a value that cannot be encoded as JSON, or is nested too deeply") from None


def decode(data: bytes, kind: type[T], limits: MessageLimits = REQUEST) -> T:
    """Decode a value of class `kind`; refuse any other bytes."""
    if len(data) > limits.size:
        raise InvalidPlan(f"the message must be at most {limits.size} bytes, got {len(data)}")
    try:
        tree = json.loads(
            data, object_pairs_hook=_object_with_unique_names, parse_float=_refuse_float, parse_constant=_refuse_float
        )
        _check_extent(tree, limits)
        if not isinstance(tree, dict) or tree.pop("version", None) != VERSION:
            raise InvalidPlan(f'the message must be a JSON object with "version": {VERSION}')
        value: T = _decode(kind, tree, kind.__name__)
    except DitherError:
        raise
    except (ValueError, TypeError, RecursionError, ArithmeticError, LookupError, AttributeError):
        raise InvalidPlan("the message is not valid JSON of this protocol") from None
    return value


def digest(request: Request) -> str:
    """Return the hash that identifies a query: the whole request but its id and schema hash."""
    tree = _encode(Request, request)
    question = {name: value for name, value in tree.items() if name not in ("request_id", "schema_hash")}
    return hashlib.sha256(json.dumps(question, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def table_digest(request: ReleaseRequest) -> str:
    """Return the hash that identifies a static table, which is another question than the same request for an answer."""
    return hashlib.sha256(b"table " + digest(request.question).encode()).hexdigest()


def profile_digest(request: Request) -> str:
    """Return the hash that identifies a profile, which is another question than the same request of an analyst."""
    return hashlib.sha256(b"profile " + digest(request).encode()).hexdigest()


def schema_hash(context: Context) -> str:
    """Return a hash of the schema and public values that determine plans; budgets, groups and sources do not count."""
    cached = context.memo.get(("description",))
    if cached is None:
        cached = context.memo["description",] = (None, _hash_schema(context))
    known_hash: str = cached[1]
    return known_hash


def _hash_schema(context: Context) -> str:
    """Compute the hash that `schema_hash` caches."""
    dataset = context.dataset
    tables = {name: replace(table, source=replace(table.source, options={})) for name, table in dataset.tables.items()}
    stripped = replace(dataset, tables=tables, budgets=(), groups=(), policy="shared", data_version="")
    stripped = replace(stripped, profile_epsilon=Fraction(0))
    return hashlib.sha256(encode(stripped) + encode(context.facts)).hexdigest()


def _object_with_unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object as a dict; refuse duplicate names."""
    members = dict(pairs)
    if len(members) != len(pairs):
        raise InvalidPlan("the message has a duplicate name in a JSON object")
    return members


def _refuse_float(text: str) -> Any:
    """Refuse a float, which may have been rounded."""
    raise InvalidPlan(f"a number must be an integer or text such as '1/10', got {text[:20]}")


def _check_extent(tree: Any, limits: MessageLimits) -> None:
    """Refuse a message that is nested too deeply or has too many values, before anything is built from it."""
    layer, count = [tree], 0
    for _ in range(limits.depth):
        count += len(layer)
        if count > limits.values:
            raise InvalidPlan(f"the message must have at most {limits.values} values")
        layer = [inner for value in layer if isinstance(value, (dict, list)) for inner in _children(value)]
        if not layer:
            return
    raise InvalidPlan(f"the message must be nested at most {limits.depth} levels deep")


def _children(value: dict[str, Any] | list[Any]) -> list[Any]:
    """Return the values directly inside a JSON object or array."""
    return list(value.values()) if isinstance(value, dict) else value


@cache
def _init_fields(kind: Any) -> dict[str, tuple[Any, bool]]:
    """Return the fields that construct an instance: the type of each, and whether it is optional."""
    hints = get_type_hints(kind, localns=NAMESPACE)
    members = [part for part in fields(kind) if part.init]
    return {
        part.name: (hints[part.name], part.default is not MISSING or part.default_factory is not MISSING)
        for part in members
    }


@cache
def _allowed_classes(hint: Any) -> dict[str, type]:
    """Return the classes that a type allows, by name: the members of a family, or the class itself."""
    if get_origin(hint) in (Union, types.UnionType):
        return {name: kind for option in get_args(hint) for name, kind in _allowed_classes(option).items()}
    if hint in FAMILIES:
        return {name: kind for name, kind in FAMILIES[hint].items() if issubclass(kind, hint)}
    return {WIRE_NAMES.get(hint, hint.__name__): hint} if is_dataclass(hint) and isinstance(hint, type) else {}


def _union_members(hint: Any) -> tuple[Any, ...]:
    """Return the members of a union type, or the type itself."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _encode(hint: Any, value: Any) -> Any:
    """Encode a value as plain JSON, by the type of its field."""
    match value:
        case None | bool() | str():
            return value
        case int():
            return int(value)
        case Fraction():
            return {"rational": str(value)} if str in _union_members(hint) else str(value)
        case tuple():
            kinds = _item_types(hint, len(value))
            if set(map(type, value)) == {int}:
                return list(value)
            return [_encode(inner, item) for inner, item in zip(kinds, value, strict=True)]
        case Mapping():
            inner = get_args(_member_with_origin(hint, Mapping))[1]
            return {str(name): _encode(inner, item) for name, item in value.items()}
        case _:
            added = ADDED_FIELDS.get(type(value).__name__, {})
            return {"node": _node_name(hint, value)} | {
                name: _encode(inner, getattr(value, name))
                for name, (inner, _) in _init_fields(value.__class__).items()
                if name not in added or getattr(value, name) != added[name]
            }


def _node_name(hint: Any, value: Any) -> str:
    """Return the name of a node's class; refuse a class that the type of its field does not allow."""
    for name, kind in _allowed_classes(hint).items():
        if kind is type(value):
            return name
    raise InvalidPlan(f"unexpected {type(value).__name__[:60]}: its field does not allow this class")


def _member_with_origin(hint: Any, kind: type) -> Any:
    """Return the member of a union type whose origin is `kind`."""
    for option in _union_members(hint):
        if isinstance(origin := get_origin(option), type) and issubclass(origin, kind):
            return option
    raise InvalidPlan(f"unexpected {kind.__name__}: its field does not allow one")


def _item_types(hint: Any, length: int) -> list[Any]:
    """Return the type of each item of a tuple with `length` items."""
    inner = get_args(_member_with_origin(hint, tuple))
    if len(inner) == 2 and inner[1] is Ellipsis:
        return [inner[0]] * length
    if len(inner) != length:
        raise InvalidPlan(f"expected {len(inner)} values, got {length}")
    return list(inner)


def _decode(hint: Any, value: Any, path: str) -> Any:
    """Decode plain JSON into the value of a field of that type; `path` names the field in errors."""
    match value:
        case None | bool() | int():
            return _decode_plain(hint, value, path)
        case str():
            return _decode_text(hint, value, path)
        case list():
            inner = _item_types(hint, len(value))
            if set(inner) == set(map(type, value)) == {int}:
                return _decode_integers(value, path)
            return tuple(_decode(kind, item, path) for kind, item in zip(inner, value, strict=True))
        case {"rational": str(text)} if len(value) == 1 and Fraction in _union_members(hint):
            return rational(text)
        case {"node": str(name)} if _allowed_classes(hint):
            return _decode_node(hint, name, value, path)
        case _:
            inner = get_args(_member_with_origin(hint, Mapping))[1]
            return {name: _decode(inner, item, f"{path}.{name[:40]}") for name, item in value.items()}


def _decode_integers(values: list[int], path: str) -> tuple[int, ...]:
    """Return an array of integers as a tuple: what `_decode_plain` does for each, at once for millions of them."""
    if max(values) > LARGEST_TERM or min(values) < -LARGEST_TERM:
        raise InvalidPlan(f"{path}: an integer must have at most 60 digits")
    return tuple(values)


def _decode_plain(hint: Any, value: bool | int | None, path: str) -> bool | int | None:
    """Return a null, boolean or integer; refuse it if the type does not allow it."""
    allowed = {type(None) if option is None else option for option in _union_members(hint)}
    literals = [each for option in _union_members(hint) if get_origin(option) is Literal for each in get_args(option)]
    if type(value) not in allowed and value not in literals:
        raise InvalidPlan(f"{path}: unexpected value of type {type(value).__name__}")
    if type(value) is int and abs(value) > LARGEST_TERM:
        raise InvalidPlan(f"{path}: an integer must have at most 60 digits")
    return value


def _decode_text(hint: Any, value: str, path: str) -> str | Fraction:
    """Decode text as a string, a literal or a rational, as the type says."""
    options = _union_members(hint)
    literals = [each for option in options if get_origin(option) is Literal for each in get_args(option)]
    if str in options or value in literals:
        return value
    if Fraction in options:
        return rational(value, path)
    raise InvalidPlan(f"{path}: expected {' or '.join(map(str, literals))}" if literals else f"{path}: unexpected text")


def _decode_node(hint: Any, name: str, value: dict[str, Any], path: str) -> Any:
    """Construct an instance of the class that a JSON object names."""
    classes = _allowed_classes(hint)
    if name not in classes:
        raise InvalidPlan(f"{path}: unexpected node {name[:60]!r}; expected one of: {', '.join(sorted(classes))}")
    field_types = _init_fields(classes[name])
    missing = [field for field, (_, optional) in field_types.items() if not optional and field not in value]
    if missing or set(value) - set(field_types) - RETIRED_FIELDS.get(name, set()) - {"node"}:
        raise InvalidPlan(f"{path}: a {name} node must have the fields {', '.join(field_types)}")
    arguments = {
        field: _decode(field_types[field][0], value[field], f"{path}.{field}")
        for field in field_types
        if field in value
    }
    return classes[name](**arguments)


__all__ = [
    "REQUEST", "RESPONSE", "VERSION", "MessageLimits", "decode", "digest", "encode", "model", "profile_digest",
    "schema_hash", "table_digest",
]  # fmt: skip
