"""JSON v2 for everything in `privacy.protocol`: strict both ways, driven by field types and a table of names.

A node is an object whose "node" names its class; a rational is text such as "1/10" (or {"rational": "1/10"} where text
is allowed too); there are no floats. What may stand in a field is decided by that field's type: a name is looked up
among the classes of that type and nowhere else. Bytes that are not such JSON give a `DitherError`, never another.
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
from dither.privacy.protocol import Request

VERSION = 2
T = TypeVar("T")

FAMILIES: dict[type, Mapping[str, type]] = {
    expr.Expr: expr.BY_NAME,
    relation.Relation: relation.BY_NAME,
    measure.Measure: measure.BY_NAME,
    mechanisms.Mechanism: mechanisms.BY_NAME,
}
NAMESPACE = {"Measure": measure.Measure, "Mechanism": mechanisms.Mechanism}


@dataclass(frozen=True)
class MessageLimits:
    """How large a message may be: bytes, nesting, and values in all."""

    size: int
    values: int
    depth: int = 100


REQUEST = MessageLimits(size=1 << 22, values=200_000)
RESPONSE = MessageLimits(size=1 << 30, values=1 << 27)


def encode(value: object) -> bytes:
    """The canonical JSON of anything in `privacy.protocol`, a schema or a loss: equal values give equal bytes."""
    try:
        tree = {"version": VERSION, **_encode(type(value), value)}
        return json.dumps(tree, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    except (RecursionError, TypeError, ValueError, KeyError, AttributeError):
        raise InvalidPlan("the plan holds something that cannot be sent, or is nested too deeply") from None


def decode(data: bytes, kind: type[T], limits: MessageLimits = REQUEST) -> T:
    """The value of class `kind` that the bytes describe; anything else is refused."""
    if len(data) > limits.size:
        raise InvalidPlan(f"the message must be at most {limits.size} bytes, got {len(data)}")
    try:
        tree = json.loads(data, object_pairs_hook=_object, parse_float=_no_float, parse_constant=_no_float)
        _measure(tree, limits)
        if not isinstance(tree, dict) or tree.pop("version", None) != VERSION:
            raise InvalidPlan(f"the message must be an object of version {VERSION}")
        value: T = _decode(kind, tree, kind.__name__)
    except DitherError:
        raise
    except (ValueError, TypeError, RecursionError, ArithmeticError, LookupError, AttributeError):
        raise InvalidPlan("the message is not JSON of the form that Dither writes") from None
    return value


def digest(request: Request) -> str:
    """What tells questions apart: the whole request but its id, and the head and description that it expects."""
    tree = _encode(Request, request)
    question = {name: value for name, value in tree.items() if name not in ("request_id", "expect_head", "described")}
    return hashlib.sha256(json.dumps(question, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def schema_hash(context: Context) -> str:
    """A hash of what gives cells their names: tables, units and public values; not budgets, sizes or sources."""
    held = context.memo.get(("description",))
    if held is None:
        held = context.memo["description",] = (None, _described(context))
    found: str = held[1]
    return found


def _described(context: Context) -> str:
    dataset = context.dataset
    tables = {name: replace(table, source=replace(table.source, options={})) for name, table in dataset.tables.items()}
    bare = replace(dataset, tables=tables, budgets=(), groups=(), policy="shared", data_version="")
    return hashlib.sha256(encode(bare) + encode(context.facts)).hexdigest()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose names are all different."""
    made = dict(pairs)
    if len(made) != len(pairs):
        raise InvalidPlan("a name stands twice in one object")
    return made


def _no_float(text: str) -> Any:
    raise InvalidPlan(f"numbers with a point cross as text such as '1/10', got {text[:20]}")


def _measure(tree: Any, limits: MessageLimits) -> None:
    """Refuses what is nested too deeply or holds too many values, before anything is built from it."""
    layer, count = [tree], 0
    for _ in range(limits.depth):
        count += len(layer)
        if count > limits.values:
            raise InvalidPlan(f"the message must hold at most {limits.values} values")
        layer = [inner for value in layer if isinstance(value, dict | list) for inner in _inside(value)]
        if not layer:
            return
    raise InvalidPlan(f"the message must be nested at most {limits.depth} deep")


def _inside(value: dict[str, Any] | list[Any]) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value


@cache
def _hints(kind: Any) -> dict[str, tuple[Any, bool]]:
    """The fields that make an instance: the type of each, and whether it may be left out."""
    hints = get_type_hints(kind, localns=NAMESPACE)
    made = [part for part in fields(kind) if part.init]
    return {
        part.name: (hints[part.name], part.default is not MISSING or part.default_factory is not MISSING)
        for part in made
    }


@cache
def _classes(hint: Any) -> dict[str, type]:
    """The classes by name that a type allows: the members of a family, or the class itself."""
    if get_origin(hint) in (Union, types.UnionType):
        return {name: kind for option in get_args(hint) for name, kind in _classes(option).items()}
    if hint in FAMILIES:
        return {name: kind for name, kind in FAMILIES[hint].items() if issubclass(kind, hint)}
    return {hint.__name__: hint} if is_dataclass(hint) and isinstance(hint, type) else {}


def _options(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _encode(hint: Any, value: Any) -> Any:
    """A value as plain JSON, by the type of its field."""
    match value:
        case None | bool() | str():
            return value
        case int():
            return int(value)
        case Fraction():
            return {"rational": str(value)} if str in _options(hint) else str(value)
        case tuple():
            return [_encode(inner, item) for inner, item in zip(_items(hint, len(value)), value, strict=True)]
        case Mapping():
            inner = get_args(_origin(hint, Mapping))[1]
            return {str(name): _encode(inner, item) for name, item in value.items()}
        case _:
            return {"node": _name(hint, value)} | {
                name: _encode(inner, getattr(value, name)) for name, (inner, _) in _hints(value.__class__).items()
            }


def _name(hint: Any, value: Any) -> str:
    """The name of a node's class, if the type of its field allows it."""
    for name, kind in _classes(hint).items():
        if kind is type(value):
            return name
    raise InvalidPlan(f"a {type(value).__name__[:60]} cannot stand here")


def _origin(hint: Any, kind: type) -> Any:
    """The option of a type whose origin is `kind`."""
    for option in _options(hint):
        if isinstance(origin := get_origin(option), type) and issubclass(origin, kind):
            return option
    raise InvalidPlan(f"a {kind.__name__} cannot stand here")


def _items(hint: Any, length: int) -> list[Any]:
    """The type of each item of a tuple."""
    inner = get_args(_origin(hint, tuple))
    if len(inner) == 2 and inner[1] is Ellipsis:
        return [inner[0]] * length
    if len(inner) != length:
        raise InvalidPlan(f"wanted {len(inner)} values, got {length}")
    return list(inner)


def _decode(hint: Any, value: Any, path: str) -> Any:
    """The value that plain JSON stands for in a field of that type."""
    match value:
        case None | bool() | int():
            return _plain(hint, value, path)
        case str():
            return _text(hint, value, path)
        case list():
            inner = _items(hint, len(value))
            return tuple(_decode(kind, item, path) for kind, item in zip(inner, value, strict=True))
        case {"rational": str(text)} if len(value) == 1 and Fraction in _options(hint):
            return rational(text)
        case {"node": str(name)}:
            return _node(hint, name, value, path)
        case _:
            inner = get_args(_origin(hint, Mapping))[1]
            return {name: _decode(inner, item, f"{path}.{name[:40]}") for name, item in value.items()}


def _plain(hint: Any, value: bool | int | None, path: str) -> bool | int | None:
    """NULL, a truth value or an integer, where the type allows it."""
    allowed = {type(None) if option is None else option for option in _options(hint)}
    literals = [each for option in _options(hint) if get_origin(option) is Literal for each in get_args(option)]
    if type(value) not in allowed and value not in literals:
        raise InvalidPlan(f"{path}: a value of this kind cannot stand here")
    if type(value) is int and abs(value) > LARGEST_TERM:
        raise InvalidPlan(f"{path}: integers have at most 60 digits")
    return value


def _text(hint: Any, value: str, path: str) -> str | Fraction:
    """Text, one of a few words, or a rational, as the type says."""
    options = _options(hint)
    literals = [each for option in options if get_origin(option) is Literal for each in get_args(option)]
    if str in options or value in literals:
        return value
    if Fraction in options:
        return rational(value, path)
    raise InvalidPlan(f"{path}: wanted one of {', '.join(map(str, literals))}" if literals else f"{path}: no text here")


def _node(hint: Any, name: str, value: dict[str, Any], path: str) -> Any:
    """An instance of the class that the object names."""
    classes = _classes(hint)
    if name not in classes:
        raise InvalidPlan(f"{path}: no {name[:60]!r} here; there is: {', '.join(sorted(classes))}")
    known = _hints(classes[name])
    missing = [field for field, (_, optional) in known.items() if not optional and field not in value]
    if missing or set(value) - set(known) - {"node"}:
        raise InvalidPlan(f"{path}: a {name} has the fields {', '.join(known)}")
    given = {field: _decode(known[field][0], value[field], f"{path}.{field}") for field in known if field in value}
    return classes[name](**given)


__all__ = ["REQUEST", "RESPONSE", "VERSION", "MessageLimits", "decode", "digest", "encode", "model", "schema_hash"]
