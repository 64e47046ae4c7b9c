"""Read the tables of a description: sources, columns and their domains."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import tzinfo
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, cast
from zoneinfo import ZoneInfo

from dither.errors import InvalidSchema
from dither.schema.model import (
    Boolean,
    Category,
    Column,
    Domain,
    Identifier,
    Moment,
    Number,
    Precision,
    Reference,
    Scalar,
    Source,
    Table,
)
from dither.schema.parser import scalars
from dither.schema.parser.fields import CheckedFields, named_items, note_duplicates, sequence, suggest
from dither.schema.yaml_nodes import Node, excerpt

MAX_VALUES = 100_000

# Stands in for the domain of a column that is a mistake; what refers to the column is no mistake of its own.
UNREAD = Identifier("text")


def read_tables(node: Node, directory: Path, zone: str) -> dict[str, Table]:
    """Read every table of the file; return them by name, without columns if they are a mistake."""
    bodies: dict[str, CheckedFields] = {}
    tables: dict[str, Table] = {}
    context = TableNames(directory, zone, {}, {})
    for name, place, body in named_items(node, "tables", "table"):
        tables[name] = Table(name, True, {}, Source("parquet"))
        context.private[name] = None
        with place.read_on():
            bodies[name] = entries = CheckedFields.of(body, "table", f"table {name}")
            context.private[name] = entries.read("private", scalars.boolean, None)
            context.kinds.update({(name, column): kind for column, kind in _key_kinds(entries)})
    for name, entries in bodies.items():
        with entries.node.place.read_on():
            tables[name] = _table(name, entries, context)
    return tables


@dataclass(frozen=True)
class TableNames:
    """The parts of the file that a column's declaration may refer to: column kinds, and which tables are private.

    `private` is None for a table that does not say whether it is.
    """

    directory: Path
    zone: str
    kinds: dict[tuple[str, str], str]
    private: dict[str, bool | None]

    def resolve_reference(self, node: Node, subject: str) -> tuple[str, str]:
        """Return the table and column that a `table.column` text names; refuse any that is not public."""
        value = scalars.text(node, subject)
        table, _, column = value.partition(".")
        if not column:
            node.place.refuse(f"{subject} must be table.column of a public table; got {excerpt(value)}")
        if table not in self.private:
            node.place.refuse(
                f"{subject}: there is no table {excerpt(table)}; {suggest(table, sorted(self.private), 'there are:')}"
            )
        if self.private[table]:
            node.place.refuse(f"{subject}: table {table} is private, so its values are secret; use a public table")
        if self.private[table] is not None and (table, column) not in self.kinds:
            columns = [name for owner, name in self.kinds if owner == table]
            node.place.refuse(
                f"{subject}: no column {excerpt(column)} in {table}; {suggest(column, columns, 'it has:')}"
            )
        return table, column


def _key_kinds(entries: CheckedFields) -> Iterator[tuple[str, str]]:
    """Yield each column with the kind that a reference to it would have, or '' if its type does not determine one."""
    for name, place, body in named_items(entries.need("columns"), entries.label("columns"), "column"):
        kind = "text"
        with place.read_on():
            column = CheckedFields.of(body, "column", f"column {entries.subject.removeprefix('table ')}.{name}")
            match column.variant:
                case "identifier":
                    kind = column.read_choice("kind", "text")
                case "integer":
                    kind = "integer"
                case "category" if column.get("values") is None:
                    kind = ""
        yield name, kind


def _table(name: str, entries: CheckedFields, context: TableNames) -> Table:
    """Read a table with its columns and source."""
    columns: dict[str, Column] = {}
    for column, place, body in named_items(entries.need("columns"), entries.label("columns"), "column"):
        columns[column] = Column(column, UNREAD)
        with place.read_on():
            columns[column] = _column(column, CheckedFields.of(body, "column", f"column {name}.{column}"), context)
    unique = entries.read("unique", scalars.name, "")
    if unique and unique not in columns:
        entries.need("unique").place.note(
            f"unique: no column {unique!r} in {name}; {suggest(unique, columns, 'it has:')}"
        )
    private = context.private[name]
    if private is None:
        raise InvalidSchema(f"table {name} needs 'private:'; that was noted")
    return Table(
        name=name,
        private=private,
        columns=columns,
        source=entries.read(
            "source", lambda node, _: _source(node, f"source of {name}", context.directory), Source("parquet")
        ),
        unique=unique or None,
        description=entries.read("description", scalars.text, ""),
    )


def _source(node: Node, subject: str, directory: Path) -> Source:
    """Read a source; make a relative path absolute."""
    entries = CheckedFields.of(node, "source", subject)
    options = {
        key: (scalars.delimiter if key == "delimiter" else scalars.text)(entries.need(key), entries.label(key))
        for key in entries.fields
        if key != "kind" and entries.get(key) is not None
    }
    if entries.variant == "spark" and ("path" in options) == ("table" in options):
        node.place.refuse(f"{subject} needs either 'path:' or 'table:', and not both")
    for key in ("path", "snapshot"):
        if key in options and "://" not in options[key]:
            options[key] = str(directory / options[key])
    return Source(kind=cast(Any, entries.variant), options=options)


def _column(name: str, entries: CheckedFields, context: TableNames) -> Column:
    """Read a column, its domain and default."""
    domain = _domain(entries, context)
    default = entries.read(
        "default", lambda node, subject: _default(node, subject, domain, context), _implicit_default(domain)
    )
    column = Column(name, domain, default, description=entries.read("description", scalars.text, ""))
    object.__setattr__(column, "default_is_declared", entries.get("default") is not None)
    return column


def _domain(entries: CheckedFields, context: TableNames) -> Domain:
    """Read the domain of a column by its type."""
    nullable = entries.read("nullable", scalars.boolean, False)
    match entries.variant:
        case "integer" | "decimal":
            return _number(entries, nullable)
        case "category" if entries.get("values_from") is not None:
            return _reference(entries, nullable, context)
        case "category":
            return Category(_values(entries), nullable)
        case "boolean":
            return Boolean(nullable)
        case "date":
            return _moment(entries, "day", ZoneInfo(context.zone), nullable)
        case "timestamp":
            precision = cast(Precision, entries.read_choice("precision", "microsecond"))
            return _moment(entries, precision, ZoneInfo(context.zone), nullable)
        case _:
            return Identifier(cast(Literal["integer", "text"], entries.read_choice("kind", "text")), nullable)


def _number(entries: CheckedFields, nullable: bool) -> Number:
    """Read the bounds and step of a number."""
    step = Fraction(1) if entries.get("step") is None else scalars.positive(entries.need("step"), entries.label("step"))
    if entries.variant == "integer" and step.denominator != 1:
        entries.need("step").place.refuse(f"{entries.label('step')} must be an integer, or use type: decimal")
    if step < scalars.SMALLEST_STEP:
        entries.need("step").place.refuse(f"{entries.label('step')} must be at least 1e-15")
    lo, hi = entries.read_bounds(lambda node, subject, _: scalars.multiple(node, step, subject))
    if lo > hi:
        entries.need("max").place.refuse(f"{entries.label('max')} must be at least min, {lo}; got {hi}")
    return Number(lo, hi, step, nullable)


def _moment(entries: CheckedFields, precision: Precision, zone: tzinfo, nullable: bool) -> Moment:
    """Read the bounds of a date or timestamp."""
    lo, hi = entries.read_bounds(lambda node, subject, last: scalars.instant(node, zone, precision, subject, last=last))
    if lo > hi:
        entries.need("max").place.refuse(f"{entries.label('max')} must not be before min")
    return Moment(lo, hi, precision, nullable)


def _values(entries: CheckedFields) -> tuple[str, ...]:
    """Read the values of a category; refuse duplicates."""
    node = entries.get("values")
    if node is None:
        entries.node.place.refuse(
            f"{entries.subject} needs 'values: [...]' or 'values_from: table.column' of a public table"
        )
    items = sequence(node, entries.label("values"))
    values = tuple(scalars.text(item, f"a value of {entries.subject}") for item in items)
    if not 1 <= len(values) <= MAX_VALUES:
        node.place.refuse(f"{entries.label('values')} must list 1 to {MAX_VALUES:,} values; use values_from for more")
    note_duplicates(items, values, entries.label("values"))
    return values


def _reference(entries: CheckedFields, nullable: bool, context: TableNames) -> Reference:
    """Read the public column that lists the values of a category."""
    node = entries.need("values_from")
    if entries.get("values") is not None:
        node.place.refuse(f"{entries.subject} has both 'values:' and 'values_from:'; remove one")
    table, column = context.resolve_reference(node, entries.label("values_from"))
    kind = context.kinds[table, column] or entries.read_choice("kind", "text")
    return Reference(table, column, cast(Literal["integer", "text"], kind), nullable)


def _implicit_default(domain: Domain) -> Scalar:
    """Return the default of a column that declares none: None if nullable or opaque, else the first value."""
    if domain.nullable:
        return None
    match domain:
        case Number(lo=lo):
            return lo
        case Moment(lo=lo):
            return lo
        case Category(values=values):
            return values[0]
        case Boolean():
            return False
        case Reference() | Identifier():
            return None


def _default(node: Node, subject: str, domain: Domain, context: TableNames) -> Scalar:
    """Read a default; refuse one that lies outside the domain."""
    match domain:
        case Number(lo=lo, hi=hi, step=step):
            value = scalars.multiple(node, step, subject)
            return value if lo <= value <= hi else node.place.refuse(f"{subject} must lie between {lo} and {hi}")
        case Moment(lo=lo, hi=hi, precision=precision):
            instant = scalars.instant(node, ZoneInfo(context.zone), precision, subject)
            return instant if lo <= instant <= hi else node.place.refuse(f"{subject} must lie between min and max")
        case Category(values=values):
            text = scalars.text(node, subject)
            if text not in values:
                node.place.refuse(f"{subject} must be one of its values; got {excerpt(text)}")
            return text
        case Boolean():
            return scalars.boolean(node, subject)
        case Reference(kind="integer"):
            return int(scalars.multiple(node, Fraction(1), subject))
        case Reference():
            return scalars.text(node, subject)
        case Identifier():
            return node.place.refuse(f"{subject}: an identifier has no default (it would merge people); remove it")
