"""Parse YAML to a tree whose nodes carry their line numbers; without anchors or tags, of limited size and depth.

Reading goes on after a mistake, so that all of them are named at once. `finish` is the only way out.
"""

from __future__ import annotations

import stat
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import yaml

from dither.errors import InvalidSchema

MAX_FILE_BYTES = 4_000_000
MAX_NODES = 200_000
MAX_DEPTH = 12
MAX_EXCERPT = 40
MAX_MISTAKES = 50

T = TypeVar("T")

# The C parser if it is available; both raise the same errors at the same lines.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class SourceLine:
    """A line of a file, for error messages, and the mistakes that were found anywhere in the file."""

    file: str
    line: int
    mistakes: set[tuple[int, str]] = field(default_factory=set, compare=False, repr=False)

    def note(self, message: str) -> None:
        """Record a mistake on this line, and read on; `finish` refuses the file."""
        self.mistakes.add((self.line, f"{self.file}:{self.line}: {message}"))

    def refuse(self, message: str) -> NoReturn:
        """Record a mistake, and raise `InvalidSchema` with a one-line message that starts with the file and line."""
        self.note(message)
        raise InvalidSchema(f"{self.file}:{self.line}: {message}")

    @contextmanager
    def read_on(self) -> Iterator[None]:
        """Go on after the block if there is a mistake in it; `finish` refuses the file."""
        try:
            yield
        except InvalidSchema as error:
            if not self.mistakes:
                self.note(str(error))

    def finish(self, reader: Callable[[], T]) -> T:
        """Return what `reader` reads; after mistakes, raise `InvalidSchema` with all of them, by line."""
        try:
            value = reader()
        except InvalidSchema:
            if not self.mistakes:
                raise
        if not self.mistakes:
            return value
        found = [message for _, message in sorted(self.mistakes)]
        more = [f"and {len(found) - MAX_MISTAKES} more mistakes"] if len(found) > MAX_MISTAKES else []
        raise InvalidSchema(*found[:MAX_MISTAKES], *more) from None


@dataclass(frozen=True)
class YamlText:
    """A scalar as written in the file; `quoted` distinguishes "null" from null."""

    place: SourceLine
    value: str
    quoted: bool = False


@dataclass(frozen=True)
class YamlList:
    """A list of nodes."""

    place: SourceLine
    items: tuple[Node, ...]


@dataclass(frozen=True)
class YamlMapping:
    """A mapping with distinct text keys; `keys` holds the line of each key."""

    place: SourceLine
    items: dict[str, Node]
    keys: dict[str, SourceLine]


Node = YamlText | YamlList | YamlMapping


def excerpt(text: object) -> str:
    """Quote a text from the file for a message, shortened to `MAX_EXCERPT` characters."""
    value = str(text)
    return repr(value if len(value) <= MAX_EXCERPT else value[:MAX_EXCERPT] + "...")


def read(path: Path) -> Node:
    """Read and parse a file."""
    place = SourceLine(str(path), 1)
    return parse(read_text(path, place), place.file)


def read_text(path: Path, place: SourceLine) -> str:
    """Read a regular file of at most `MAX_FILE_BYTES` as UTF-8 text."""
    try:
        state = path.stat()
        if not stat.S_ISREG(state.st_mode):
            place.refuse("this is not a regular file; give the path of a YAML file")
        if state.st_size > MAX_FILE_BYTES:
            place.refuse(
                f"the file is larger than {MAX_FILE_BYTES:,} bytes; put long lists in a public table (values_from)"
            )
        return path.read_bytes()[: MAX_FILE_BYTES + 1].decode("utf-8-sig")
    except UnicodeDecodeError:
        place.refuse("the file is not UTF-8 text; save it as UTF-8")
    except (OSError, RuntimeError, ValueError) as error:
        raise InvalidSchema(f"{path}: cannot be read: {getattr(error, 'strerror', None) or 'invalid path'}") from None


def parse(text: str, file: str) -> Node:
    """Parse a YAML text; errors name `file`."""
    try:
        return _document(EventReader(text, file))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        line = mark.line + 1 if mark else 1
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "unreadable"
        SourceLine(file, line).refuse(f"not valid YAML: {' '.join(str(problem).split())}")


class EventReader:
    """The parser's events, with a limit on their number."""

    def __init__(self, text: str, file: str) -> None:
        self.file = file
        self.count = 0
        self.mistakes: set[tuple[int, str]] = set()
        self.events: Iterator[Any] = iter(yaml.parse(text, Loader=_Loader))

    def next_event(self) -> Any:
        """Return the next event; refuse anchors, aliases, tags and files with too many events."""
        event = next(self.events)
        self.count += 1
        place = self.line_of(event)
        if self.count > MAX_NODES:
            place.refuse(f"more than {MAX_NODES:,} entries; put long lists in a public table (values_from)")
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            place.refuse("anchors (&) and aliases (*) are not supported; write the value out")
        if getattr(event, "tag", None) is not None:
            place.refuse("tags (!) are not supported; write a plain value")
        return event

    def line_of(self, event: Any) -> SourceLine:
        """Return the line on which an event begins."""
        return SourceLine(self.file, event.start_mark.line + 1, self.mistakes)


def _document(events: EventReader) -> Node:
    """Read the only document of a file."""
    events.next_event()
    if isinstance(first := events.next_event(), yaml.StreamEndEvent):
        events.line_of(first).refuse("the file is empty; start with 'version: 1'")
    root = _node(events, events.next_event(), 0)
    events.next_event()
    if not isinstance(more := events.next_event(), yaml.StreamEndEvent):
        events.line_of(more).refuse("a file must hold one document only; remove '---' and everything after it")
    return root


def _node(events: EventReader, event: Any, depth: int) -> Node:
    """Read the node that begins with an event; refuse deep nesting."""
    place = events.line_of(event)
    if depth > MAX_DEPTH:
        place.refuse(f"nested more than {MAX_DEPTH} levels deep; a description needs fewer")
    match event:
        case yaml.ScalarEvent():
            return YamlText(place, unicodedata.normalize("NFC", event.value), quoted=bool(event.style))
        case yaml.SequenceStartEvent():
            return YamlList(place, tuple(_items(events, depth)))
        case _:
            return _mapping(events, place, depth)


def _items(events: EventReader, depth: int) -> Iterator[Node]:
    """Yield the nodes of a list."""
    while not isinstance(event := events.next_event(), yaml.SequenceEndEvent):
        yield _node(events, event, depth + 1)


def _mapping(events: EventReader, place: SourceLine, depth: int) -> YamlMapping:
    """Read a mapping; refuse duplicate keys and keys that are not texts."""
    items: dict[str, Node] = {}
    keys: dict[str, SourceLine] = {}
    while not isinstance(event := events.next_event(), yaml.MappingEndEvent):
        key = _node(events, event, depth + 1)
        if not isinstance(key, YamlText):
            key.place.refuse("a name was expected here; got a list or mapping")
        if key.value in items:
            key.place.note(f"{excerpt(key.value)} is given twice, first on line {keys[key.value].line}")
        keys[key.value] = key.place
        items[key.value] = _node(events, events.next_event(), depth + 1)
    return YamlMapping(place, items, keys)
