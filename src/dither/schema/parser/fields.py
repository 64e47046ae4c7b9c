"""A mapping of the file checked against its shape, and lists and names in it."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from dither.schema.parser import scalars
from dither.schema.spec import SHAPES, FieldSpec
from dither.schema.yaml_nodes import Node, SourceLine, YamlList, YamlMapping, YamlText, excerpt

T = TypeVar("T")


@dataclass(frozen=True)
class CheckedFields:
    """A mapping that has been checked against its shape: known names only, nothing required missing."""

    node: YamlMapping
    fields: dict[str, FieldSpec]
    what: str
    variant: str = ""

    @classmethod
    def of(cls, node: Node, shape_name: str, what: str) -> CheckedFields:
        """Check a node against a shape."""
        shape = SHAPES[shape_name]
        if not isinstance(node, YamlMapping):
            node.place.refuse(f"{what} must be a mapping with {listed(shape.allowed())}")
        variant = ""
        if shape.by:
            chooser = node.items.get(shape.by) or missing(node.place, shape.by, shape.fields[shape.by], what)
            variant = scalars.choice(chooser, shape.fields[shape.by], f"{shape.by} of {what}")
        entries = cls(node, shape.allowed(variant), what, variant)
        entries._check()
        return entries

    def _check(self) -> None:
        for key, place in self.node.keys.items():
            if key not in self.fields:
                near = difflib.get_close_matches(key, self.fields, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"it may have {listed(self.fields)}"
                place.refuse(f"{self.what} has no entry {excerpt(key)}; {hint}")
        for key, entry in self.fields.items():
            if entry.required and self.get(key) is None:
                missing(self.node.place, key, entry, self.what)

    def get(self, key: str) -> Node | None:
        """The node of an entry, or None if it was left out or empty."""
        node = self.node.items.get(key)
        return None if node is None or scalars.is_null(node) else node

    def need(self, key: str) -> Node:
        """The node of an entry that has been checked to be there."""
        return self.node.items[key]

    def read(self, key: str, reader: Callable[[Node, str], T], default: T) -> T:
        """The value of an entry that may be left out."""
        node = self.get(key)
        return default if node is None else reader(node, self.label(key))

    def pick(self, key: str, default: str) -> str:
        """The value of an entry that has choices."""
        return self.read(key, lambda node, what: scalars.choice(node, self.fields[key], what), default)

    def label(self, key: str) -> str:
        """How errors speak of an entry."""
        return f"{key} of {self.what}"


def listed(names: object) -> str:
    """Names as a list for a message."""
    return ", ".join(cast(dict[str, Any], names))


def missing(place: SourceLine, key: str, entry: FieldSpec, what: str) -> Any:
    """Refuse a mapping that lacks a required entry."""
    sample = f"; it is one of {', '.join(entry.choices)}" if entry.choices else ""
    place.refuse(f"{what} needs '{key}:' ({entry.help}){sample}")


def sequence(node: Node, what: str) -> tuple[Node, ...]:
    """The items of a list."""
    if not isinstance(node, YamlList):
        node.place.refuse(f"{what} must be a list: [a, b] or lines that start with '- '")
    return node.items


def mapping(node: Node, what: str) -> YamlMapping:
    """A mapping that is not empty."""
    if not isinstance(node, YamlMapping) or not node.items:
        node.place.refuse(f"{what} must be a mapping with at least one 'name: ...'")
    return node


def named(node: Node, what: str, singular: str) -> Iterator[tuple[str, SourceLine, Node]]:
    """The entries of a mapping whose keys are names, equal in no spelling."""
    found = mapping(node, what)
    seen: dict[str, str] = {}
    for key, place in found.keys.items():
        scalars.name(YamlText(place, key), f"the name of {singular}")
        if key.lower() in seen:
            place.refuse(
                f"{singular} {key!r} overlaps {seen[key.lower()]!r}: names that differ in case only are one name in SQL"
            )
        seen[key.lower()] = key
        yield key, place, found.items[key]


def distinct(nodes: tuple[Node, ...], values: tuple[str, ...], what: str) -> None:
    """Refuse a list that holds a value twice."""
    seen: set[str] = set()
    for node, value in zip(nodes, values, strict=True):
        if value in seen:
            node.place.refuse(f"{what}: {excerpt(value)} is given twice")
        seen.add(value)
