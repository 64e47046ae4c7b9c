"""Check mappings, lists and names of the file against the fields that `schema.spec` allows."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar, cast

from dither.errors import InvalidSchema
from dither.schema.parser import scalars
from dither.schema.spec import SHAPES, FieldSpec
from dither.schema.yaml_nodes import Node, SourceLine, YamlList, YamlMapping, YamlText, excerpt

T = TypeVar("T")


@dataclass(frozen=True)
class CheckedFields:
    """A mapping that was checked against its shape: unknown names and missing required fields are noted as mistakes.

    `subject` names the mapping in error messages.
    """

    node: YamlMapping
    fields: dict[str, FieldSpec]
    subject: str
    variant: str = ""

    @classmethod
    def of(cls, node: Node, shape_name: str, subject: str) -> CheckedFields:
        """Check a node against a shape and return its fields."""
        shape = SHAPES[shape_name]
        if not isinstance(node, YamlMapping):
            node.place.refuse(f"{subject} must be a mapping with {join_names(shape.allowed_fields())}")
        variant = ""
        if shape.variant_field:
            chooser = node.items.get(shape.variant_field)
            if chooser is None or scalars.is_null(chooser):
                refuse_missing(node.place, {shape.variant_field: shape.fields[shape.variant_field]}, subject)
            variant = scalars.choice(chooser, shape.fields[shape.variant_field], f"{shape.variant_field} of {subject}")
        entries = cls(node, shape.allowed_fields(variant), subject, variant)
        entries._check()
        return entries

    def _check(self) -> None:
        """Note unknown names and missing required fields."""
        for key, place in self.node.keys.items():
            if key not in self.fields:
                place.note(f"{self.subject} has no entry {excerpt(key)}; {suggest(key, self.fields, 'it can have')}")
        missing = {key: entry for key, entry in self.fields.items() if entry.required and self.get(key) is None}
        if missing:
            with self.node.place.read_on():
                refuse_missing(self.node.place, missing, self.subject)

    def get(self, key: str) -> Node | None:
        """Return the node of an entry, or None if it is missing or empty."""
        node = self.node.items.get(key)
        return None if node is None or scalars.is_null(node) else node

    def need(self, key: str) -> Node:
        """Return the node of a required entry; refuse a mapping without it."""
        node = self.get(key)
        if node is None:
            raise InvalidSchema(f"{self.subject} needs '{key}:'; that was noted")
        return node

    def read(self, key: str, reader: Callable[[Node, str], T], default: T) -> T:
        """Return the value of an entry, or `default` if it is missing or a mistake, which is then noted."""
        value, node = default, self.get(key)
        if node is not None:
            with node.place.read_on():
                value = reader(node, self.label(key))
        return value

    def read_bounds(self, reader: Callable[[Node, str, bool], T]) -> tuple[T, T]:
        """Return the values of `min` and `max`, the last argument of the reader; refuse after looking at both."""
        lo = self.read("min", lambda node, subject: reader(node, subject, False), None)
        hi = self.read("max", lambda node, subject: reader(node, subject, True), None)
        if lo is None or hi is None:
            raise InvalidSchema("min or max is a mistake that was noted")
        return lo, hi

    def read_choice(self, key: str, default: str) -> str:
        """Return the value of an optional entry that must be one of its choices, or `default` if it is missing."""
        return self.read(key, lambda node, subject: scalars.choice(node, self.fields[key], subject), default)

    def label(self, key: str) -> str:
        """Return the name of an entry for error messages."""
        return f"{key} of {self.subject}"


def join_names(names: object) -> str:
    """Join names with commas for a message."""
    return ", ".join(cast(dict[str, Any], names))


def suggest(name: str, known: Iterable[str], listed: str) -> str:
    """Return the most similar known name as a suggestion; if there is none, list all of them."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {close[0]!r}?" if close else f"{listed} {', '.join(known)}"


def refuse_missing(place: SourceLine, missing: dict[str, FieldSpec], subject: str) -> NoReturn:
    """Refuse a mapping that lacks required entries."""
    names = ", ".join(f"'{key}:'" for key in missing)
    entry, *more = missing.values()
    choices = f"; use one of {', '.join(entry.choices)}" if entry.choices and not more else ""
    place.refuse(f"{subject} needs {names}{'' if more else f' ({entry.help}){choices}'}")


def sequence(node: Node, subject: str) -> tuple[Node, ...]:
    """Return the items of a list; refuse any other node."""
    if not isinstance(node, YamlList):
        node.place.refuse(f"{subject} must be a list: [a, b] or lines that start with '- '")
    return node.items


def mapping(node: Node, subject: str) -> YamlMapping:
    """Return a mapping that is not empty; refuse any other node."""
    if not isinstance(node, YamlMapping) or not node.items:
        node.place.refuse(f"{subject} must be a mapping with at least one 'name: ...'")
    return node


def named_items(node: Node, subject: str, singular: str) -> Iterator[tuple[str, SourceLine, Node]]:
    """Yield the entries of a mapping whose keys are names; note bad names, and names that differ only in case."""
    checked = mapping(node, subject)
    seen: dict[str, str] = {}
    for key, place in checked.keys.items():
        with place.read_on():
            scalars.name(YamlText(place, key), f"the name of {singular}")
        if key.lower() in seen:
            place.note(f"{singular} {key!r} overlaps {seen[key.lower()]!r}: SQL does not distinguish case; rename one")
        seen[key.lower()] = key
        yield key, place, checked.items[key]


def note_duplicates(nodes: tuple[Node, ...], values: tuple[str, ...], subject: str) -> None:
    """Note each value that a list contains twice."""
    seen: set[str] = set()
    for node, value in zip(nodes, values, strict=True):
        if value in seen:
            node.place.note(f"{subject}: {excerpt(value)} is given twice")
        seen.add(value)
