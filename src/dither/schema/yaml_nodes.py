"""YAML text as a tree whose every node knows its line; no anchors, no tags, limits on size and depth."""

from __future__ import annotations

import stat
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import yaml

from dither.errors import InvalidSchema

LARGEST_FILE = 4_000_000
MOST_NODES = 200_000
DEEPEST = 12
LONGEST_SHOWN = 40

# The C parser where it was built; both raise the same errors with the same marks.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class SourceLine:
    """A line of a file."""

    file: str
    line: int

    def refuse(self, message: str) -> NoReturn:
        """Raise the one-line error of this place."""
        raise InvalidSchema(f"{self.file}:{self.line}: {message}")


@dataclass(frozen=True)
class YamlText:
    """A scalar as it was written; `quoted` tells "null" from null."""

    place: SourceLine
    value: str
    quoted: bool = False


@dataclass(frozen=True)
class YamlList:
    """A list."""

    place: SourceLine
    items: tuple[Node, ...]


@dataclass(frozen=True)
class YamlMapping:
    """A mapping; keys are texts, each once."""

    place: SourceLine
    items: dict[str, Node]
    keys: dict[str, SourceLine]


Node = YamlText | YamlList | YamlMapping


def excerpt(text: object) -> str:
    """A text from the file, short and on one line."""
    value = str(text)
    return repr(value if len(value) <= LONGEST_SHOWN else value[:LONGEST_SHOWN] + "...")


def read(path: Path) -> Node:
    """The tree of a file."""
    place = SourceLine(str(path), 1)
    return parse(read_text(path, place), place.file)


def read_text(path: Path, place: SourceLine) -> str:
    """The text of a regular file of bounded size."""
    try:
        state = path.stat()
        if not stat.S_ISREG(state.st_mode):
            place.refuse("this is not a file; give the path of a YAML file")
        if state.st_size > LARGEST_FILE:
            place.refuse(
                f"the file is larger than {LARGEST_FILE:,} bytes; long lists belong in a public table: values_from"
            )
        return path.read_bytes()[: LARGEST_FILE + 1].decode("utf-8-sig")
    except UnicodeDecodeError:
        place.refuse("the file is not UTF-8 text")
    except (OSError, RuntimeError, ValueError) as error:
        place.refuse(f"the file cannot be read: {getattr(error, 'strerror', None) or 'not a valid path'}")


def parse(text: str, file: str) -> Node:
    """The tree of a text."""
    try:
        return _document(Events(text, file))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        line = mark.line + 1 if mark else 1
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "unreadable"
        SourceLine(file, line).refuse(f"not valid YAML: {' '.join(str(problem).split())}")


class Events:
    """The parser's events, counted."""

    def __init__(self, text: str, file: str) -> None:
        self.file = file
        self.count = 0
        self.events: Iterator[Any] = iter(yaml.parse(text, Loader=_Loader))

    def take(self) -> Any:
        """The next event, refused if it is one that descriptions do not use."""
        event = next(self.events)
        self.count += 1
        place = self.place(event)
        if self.count > MOST_NODES:
            place.refuse(f"more than {MOST_NODES:,} entries; long lists belong in a public table: values_from")
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            place.refuse("anchors (&) and aliases (*) are not used here; write the value out")
        if getattr(event, "tag", None) is not None:
            place.refuse("tags (!) are not used here; write a plain value")
        return event

    def place(self, event: Any) -> SourceLine:
        """Where an event begins."""
        return SourceLine(self.file, event.start_mark.line + 1)


def _document(events: Events) -> Node:
    events.take()
    if isinstance(first := events.take(), yaml.StreamEndEvent):
        events.place(first).refuse("the file is empty; start with 'version: 1'")
    root = _node(events, events.take(), 0)
    events.take()
    if not isinstance(more := events.take(), yaml.StreamEndEvent):
        events.place(more).refuse("one document only; remove the '---' and what follows")
    return root


def _node(events: Events, event: Any, depth: int) -> Node:
    place = events.place(event)
    if depth > DEEPEST:
        place.refuse(f"nested more than {DEEPEST} deep")
    match event:
        case yaml.ScalarEvent():
            return YamlText(place, unicodedata.normalize("NFC", event.value), quoted=bool(event.style))
        case yaml.SequenceStartEvent():
            return YamlList(place, tuple(_items(events, depth)))
        case _:
            return _mapping(events, place, depth)


def _items(events: Events, depth: int) -> Iterator[Node]:
    while not isinstance(event := events.take(), yaml.SequenceEndEvent):
        yield _node(events, event, depth + 1)


def _mapping(events: Events, place: SourceLine, depth: int) -> YamlMapping:
    items: dict[str, Node] = {}
    keys: dict[str, SourceLine] = {}
    while not isinstance(event := events.take(), yaml.MappingEndEvent):
        key = _node(events, event, depth + 1)
        if not isinstance(key, YamlText):
            key.place.refuse("a name was expected here, and a list or mapping came")
        if key.value in items:
            key.place.refuse(f"{excerpt(key.value)} is given twice, first on line {keys[key.value].line}")
        keys[key.value] = key.place
        items[key.value] = _node(events, events.take(), depth + 1)
    return YamlMapping(place, items, keys)
