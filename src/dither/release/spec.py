"""Read the file that describes a static release; every error names its line."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

from dither.errors import DitherError
from dither.loss import rational
from dither.schema.yaml_nodes import Node, SourceLine, YamlList, YamlMapping, YamlText, excerpt, read

ROWS_PER_PART = 1 << 20
MAX_ROWS_PER_PART = 1 << 24
MAX_REPEAT = (1 << 31) - 1
FORMATS = ("parquet", "csv")
INTEGER = re.compile(r"-?[0-9]{1,20}", re.ASCII)

TOP = {
    "version": "1",
    "name": "a short name of the release, for its files",
    "title": "a title for readers",
    "description": "a sentence or two for readers",
    "dataset": "the dataset description, relative to this file",
    "from": "the SQL after FROM: a table, or a join",
    "where": "an SQL condition on the rows",
    "unit": "the unit of privacy",
    "keys": "the columns that name a row, each an SQL expression over declared values",
    "columns": "the counts, each with its condition and its noise",
    "admission": "a noisy threshold for the values of the first key",
    "privacy": "a total loss to solve noise from",
    "max_rows": "the most rows counted of one unit",
    "max_rows_per_key": "the most rows of one unit with one key, and the most keys",
    "max_rows_per_value": "the most rows of one unit for each value of the column that tells columns apart",
    "consistency": "columns to add: nonnegative",
    "output": "the files: format, rows_per_part",
    "repeat": "a new number draws and charges again",
}
REQUIRED = ("version", "name", "dataset", "from", "unit", "keys", "columns")
ENTRIES = {
    "a key": ("sql", "values", "description"),
    "a column": ("where", "sigma", "error", "k", "description"),
    "admission": ("where", "threshold", "scale", "description"),
    "privacy": ("rho", "epsilon", "delta", "column_rho"),
    "max_rows_per_key": ("rows", "keys"),
    "max_rows_per_value": ("column", "rows", "values"),
    "consistency": ("nonnegative",),
    "output": ("format", "rows_per_part"),
}


@dataclass(frozen=True)
class KeySpec:
    """A key: an SQL expression over declared values, or over the values listed here."""

    name: str
    sql: str
    values: tuple[str, ...] | None = None
    description: str = ""


@dataclass(frozen=True)
class ColumnSpec:
    """A column of counts: its condition, and its noise by `sigma`, by the wanted 95% `error`, or solved.

    `k` is a number of actions for which the statement reports the loss: that of a user with so many.
    """

    name: str
    where: str | None = None
    sigma: Fraction | None = None
    error: Fraction | None = None
    k: int = 1
    description: str = ""


@dataclass(frozen=True)
class AdmissionSpec:
    """A value of the first key is released if the rows that meet `where`, plus Laplace noise, reach the threshold."""

    threshold: int
    scale: Fraction
    where: str | None = None
    description: str = ""


@dataclass(frozen=True)
class PrivacySpec:
    """The loss that noise is solved from: in total for one unit, or for each column and a user with k actions."""

    rho: Fraction | None = None
    epsilon: Fraction | None = None
    delta: Fraction = Fraction(1, 100_000)
    column_rho: Fraction | None = None


@dataclass(frozen=True)
class ValueLimit:
    """At most `rows` rows of one unit for each value of `column`, and rows with at most `values` of its values."""

    column: str
    rows: int
    values: int


@dataclass(frozen=True)
class ReleaseSpec:
    """A static release as its file describes it."""

    name: str
    dataset: Path
    source: str
    unit: str
    keys: tuple[KeySpec, ...]
    columns: tuple[ColumnSpec, ...]
    title: str = ""
    description: str = ""
    where: str | None = None
    admission: AdmissionSpec | None = None
    privacy: PrivacySpec = PrivacySpec()
    max_rows: int | None = None
    key_limit: tuple[int, int] | None = None
    value_limit: ValueLimit | None = None
    nonnegative: bool = False
    format: Literal["parquet", "csv"] = "parquet"
    rows_per_part: int = ROWS_PER_PART
    repeat: int = 0


def load_spec(path: str | Path) -> ReleaseSpec:
    """Read a release's file; refuse unknown and missing entries, with a line number."""
    place = Path(path)
    root = read(place)
    return root.place.finish(lambda: _release(place, _entries(root, TOP, "the release"), root.place))


def _release(place: Path, top: Mapping[str, Node], start: SourceLine) -> ReleaseSpec:
    """Read the top level of a release's file."""
    missing = [name for name in REQUIRED if name not in top]
    for name in missing[:-1]:
        start.note(f"the release needs '{name}:' ({TOP[name]})")
    if missing:
        start.refuse(f"the release needs '{missing[-1]}:' ({TOP[missing[-1]]})")
    if _text(top["version"], "version") != "1":
        top["version"].place.refuse("version must be 1")
    output = _options(top, "output")
    form = _text(output["format"], "format") if "format" in output else "parquet"
    if form not in FORMATS:
        output["format"].place.refuse(f"format must be one of {', '.join(FORMATS)}, got {excerpt(form)}")
    consistency = _options(top, "consistency")
    name = _text(top["name"], "name")
    if not name.replace("_", "").replace("-", "").isalnum() or not name.isascii():
        top["name"].place.refuse("name may have letters, digits, - and _ only, since files are named by it")
    spec = ReleaseSpec(
        name=name,
        dataset=place.parent / _text(top["dataset"], "dataset"),
        source=_text(top["from"], "from"),
        unit=_text(top["unit"], "unit"),
        keys=tuple(_key(key, node) for key, node in _name_entries(top["keys"], "keys")),
        columns=tuple(_column(key, node) for key, node in _name_entries(top["columns"], "columns")),
        title=_optional_text(top, "title"),
        description=_optional_text(top, "description"),
        where=_optional_text(top, "where") or None,
        admission=_admission(top["admission"]) if "admission" in top else None,
        privacy=_privacy(_options(top, "privacy")),
        max_rows=_integer(top["max_rows"], "max_rows", 1) if "max_rows" in top else None,
        key_limit=_key_limit(top["max_rows_per_key"]) if "max_rows_per_key" in top else None,
        value_limit=_value_limit(top["max_rows_per_value"]) if "max_rows_per_value" in top else None,
        nonnegative="nonnegative" in consistency and _truth(consistency["nonnegative"], "nonnegative"),
        format="csv" if form == "csv" else "parquet",
        rows_per_part=_integer(output["rows_per_part"], "rows_per_part", 1, MAX_ROWS_PER_PART)
        if "rows_per_part" in output
        else ROWS_PER_PART,
        repeat=_integer(top["repeat"], "repeat", 0, MAX_REPEAT) if "repeat" in top else 0,
    )
    _check_names(spec, top["columns"].place)
    return spec


def _check_names(spec: ReleaseSpec, place: SourceLine) -> None:
    """Refuse two columns of the files with one name; most programs do not tell names apart by case."""
    copies = [f"{column.name}_nonnegative" for column in spec.columns if spec.nonnegative]
    names = [*(key.name for key in spec.keys), *(column.name for column in spec.columns), *copies]
    twice = [name for name, count in Counter(map(str.lower, names)).items() if count > 1]
    if twice:
        place.refuse(f"two columns of the files would be called {twice[0]!r}; give every key and column another name")


def _key(name: str, node: Node) -> KeySpec:
    """Read a key: SQL alone, or a mapping."""
    if isinstance(node, YamlText):
        return KeySpec(name, node.value)
    entries = _entries(node, ENTRIES["a key"], f"the key {name}")
    values = entries.get("values")
    if values is not None and not isinstance(values, YamlList):
        values.place.refuse(f"values of the key {name} must be a list")
    listed = None if values is None else tuple(_text(item, "a value") for item in values.items)
    sql = _text(entries["sql"], "sql") if "sql" in entries else name
    return KeySpec(name, sql, listed, _optional_text(entries, "description"))


def _column(name: str, node: Node) -> ColumnSpec:
    """Read a column of counts."""
    entries = _entries(node, ENTRIES["a column"], f"the column {name}")
    if "sigma" in entries and "error" in entries:
        entries["error"].place.refuse(f"the column {name} takes sigma or error, not both")
    return ColumnSpec(
        name,
        _optional_text(entries, "where") or None,
        _rational(entries["sigma"], f"sigma of {name}") if "sigma" in entries else None,
        _rational(entries["error"], f"error of {name}") if "error" in entries else None,
        _integer(entries["k"], f"k of {name}", 1) if "k" in entries else 1,
        _optional_text(entries, "description"),
    )


def _admission(node: Node) -> AdmissionSpec:
    """Read the admission of items."""
    entries = _entries(node, ENTRIES["admission"], "admission")
    for name in ("threshold", "scale"):
        if name not in entries:
            node.place.refuse(f"admission needs '{name}:'")
    return AdmissionSpec(
        _integer(entries["threshold"], "threshold", -(1 << 60)),
        _rational(entries["scale"], "scale"),
        _optional_text(entries, "where") or None,
        _optional_text(entries, "description"),
    )


def _privacy(entries: Mapping[str, Node]) -> PrivacySpec:
    """Read the loss that noise is solved from."""
    given = {name: _rational(node, name) for name, node in entries.items()}
    if len(given.keys() & {"rho", "epsilon", "column_rho"}) > 1:
        next(iter(entries.values())).place.refuse("privacy takes one of rho, epsilon and column_rho")
    if given.get("delta", 0) >= 1:
        entries["delta"].place.refuse("delta must be below 1, such as 1/100000: it is a probability")
    return PrivacySpec(**given)


def _key_limit(node: Node) -> tuple[int, int]:
    """Read the limits on the keys of a unit, and on its rows in each."""
    entries = _entries(node, ENTRIES["max_rows_per_key"], "max_rows_per_key")
    for name in ("rows", "keys"):
        if name not in entries:
            node.place.refuse(f"max_rows_per_key needs '{name}:'")
    return _integer(entries["keys"], "keys", 1), _integer(entries["rows"], "rows", 1)


def _value_limit(node: Node) -> ValueLimit:
    """Read the limit on rows for each value of a column."""
    entries = _entries(node, ENTRIES["max_rows_per_value"], "max_rows_per_value")
    for name in ("column", "rows", "values"):
        if name not in entries:
            node.place.refuse(f"max_rows_per_value needs '{name}:'")
    rows, values = (_integer(entries[name], name, 1) for name in ("rows", "values"))
    return ValueLimit(_text(entries["column"], "column"), rows, values)


# --- Nodes of the file ---


def _entries(node: Node, allowed: Any, subject: str) -> dict[str, Node]:
    """Return the entries of a mapping that are known; note the others as mistakes."""
    if not isinstance(node, YamlMapping):
        node.place.refuse(f"{subject} must be a mapping with {', '.join(allowed)}")
    for name, place in node.keys.items():
        if name not in allowed:
            close = difflib.get_close_matches(name, allowed, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"it can have {', '.join(allowed)}"
            place.note(f"{subject} has no entry {excerpt(name)}; {hint}")
    return {name: item for name, item in node.items.items() if name in allowed}


def _options(top: Mapping[str, Node], name: str) -> dict[str, Node]:
    """Return the entries of an optional mapping."""
    return _entries(top[name], ENTRIES[name], name) if name in top else {}


def _name_entries(node: Node, subject: str) -> list[tuple[str, Node]]:
    """Return the entries of a mapping from names to nodes."""
    if not isinstance(node, YamlMapping) or not node.items:
        node.place.refuse(f"{subject} must be a mapping with at least one name")
    for name, place in node.keys.items():
        if not name.isidentifier() or not name.isascii():
            place.refuse(f"{excerpt(name)} in {subject} must be a name of letters, digits and _")
    return list(node.items.items())


def _text(node: Node, subject: str) -> str:
    """Return a text."""
    if not isinstance(node, YamlText):
        node.place.refuse(f"{subject} must be a single value")
    return node.value.strip()


def _optional_text(entries: Mapping[str, Node], name: str) -> str:
    """Return the text of an entry, or ""."""
    return _text(entries[name], name) if name in entries else ""


def _integer(node: Node, subject: str, least: int, most: int = 1 << 60) -> int:
    """Return an integer within limits."""
    text = _text(node, subject).replace("_", "")
    if not INTEGER.fullmatch(text) or not least <= int(text) <= most:
        node.place.refuse(f"{subject} must be an integer of at least {least} and at most {most}, got {excerpt(text)}")
    return int(text)


def _rational(node: Node, subject: str) -> Fraction:
    """Return a positive exact number such as 0.1 or 1/10."""
    text = _text(node, subject)
    try:
        value = rational(text, subject)
    except DitherError as error:
        node.place.refuse(str(error))
    if value <= 0:
        node.place.refuse(f"{subject} must be above 0, got {excerpt(text)}")
    return value


def _truth(node: Node, subject: str) -> bool:
    """Return true or false."""
    text = _text(node, subject).lower()
    if text not in ("true", "false"):
        node.place.refuse(f"{subject} must be true or false, got {excerpt(text)}")
    return text == "true"
