"""The tables of a description: sources, columns and their domains."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, tzinfo
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, cast
from zoneinfo import ZoneInfo

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
from dither.schema.parser.fields import CheckedFields, distinct, listed, named, sequence
from dither.schema.yaml_nodes import Node, excerpt

MOST_VALUES = 100_000


def tables_of(node: Node, directory: Path, zone: str) -> dict[str, Table]:
    """Every table of the file, by name."""
    plain = [
        (name, CheckedFields.of(body, "table", f"table {name}")) for name, _, body in named(node, "tables", "table")
    ]
    kinds = {(name, column): kind for name, entries in plain for column, kind in _key_kinds(entries)}
    public = {name for name, entries in plain if not scalars.boolean(entries.need("private"), entries.label("private"))}
    context = TableNames(directory, zone, kinds, public, {name for name, _ in plain})
    return {name: _table(name, entries, context) for name, entries in plain}


@dataclass(frozen=True)
class TableNames:
    """What a column may need to know of the rest of the file."""

    directory: Path
    zone: str
    kinds: dict[tuple[str, str], str]
    public: set[str]
    tables: set[str]

    def referred(self, node: Node, what: str) -> tuple[str, str]:
        """The public column that `table.column` names."""
        value = scalars.text(node, what)
        table, _, column = value.partition(".")
        if not column:
            node.place.refuse(f"{what} must be table.column of a public table; got {excerpt(value)}")
        if table not in self.tables:
            node.place.refuse(
                f"{what}: there is no table {excerpt(table)}; there are: {', '.join(sorted(self.tables))}"
            )
        if table not in self.public:
            node.place.refuse(f"{what}: table {table} is private, and its values are not public; use a public table")
        if (table, column) not in self.kinds:
            known = ", ".join(name for owner, name in self.kinds if owner == table)
            node.place.refuse(f"{what}: no column {excerpt(column)} in {table}; it has: {known}")
        return table, column


def _key_kinds(entries: CheckedFields) -> Iterator[tuple[str, str]]:
    """Each column of a table with the kind that a reference to it would have, '' where its type does not say."""
    for name, _, body in named(entries.need("columns"), entries.label("columns"), "column"):
        column = CheckedFields.of(body, "column", f"column {entries.what.removeprefix('table ')}.{name}")
        match column.variant:
            case "identifier":
                yield name, column.pick("kind", "text")
            case "integer":
                yield name, "integer"
            case "category" if column.get("values") is None:
                yield name, ""
            case _:
                yield name, "text"


def _table(name: str, entries: CheckedFields, context: TableNames) -> Table:
    columns = {
        column: _column(column, CheckedFields.of(body, "column", f"column {name}.{column}"), context)
        for column, _, body in named(entries.need("columns"), entries.label("columns"), "column")
    }
    unique = entries.read("unique", scalars.name, "")
    if unique and unique not in columns:
        entries.need("unique").place.refuse(f"unique: no column {unique!r} in {name}; it has: {listed(columns)}")
    return Table(
        name=name,
        private=name not in context.public,
        columns=columns,
        source=_source(entries.need("source"), f"source of {name}", context.directory),
        unique=unique or None,
        description=entries.read("description", scalars.text, ""),
    )


def _source(node: Node, what: str, directory: Path) -> Source:
    entries = CheckedFields.of(node, "source", what)
    options = {
        key: scalars.text(entries.need(key), entries.label(key))
        for key in entries.fields
        if key != "kind" and entries.get(key) is not None
    }
    if entries.variant == "spark" and ("path" in options) == ("table" in options):
        node.place.refuse(f"{what} needs either 'path:' or 'table:'")
    if "path" in options and "://" not in options["path"]:
        options["path"] = str(directory / options["path"])
    return Source(kind=cast(Any, entries.variant), options=options)


def _column(name: str, entries: CheckedFields, context: TableNames) -> Column:
    domain = _domain(entries, context)
    default = entries.read("default", lambda node, what: _default(node, what, domain, context), _stand_in(domain))
    return Column(name, domain, default, description=entries.read("description", scalars.text, ""))


def _domain(entries: CheckedFields, context: TableNames) -> Domain:
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
            return _moment(entries, "day", UTC, nullable)
        case "timestamp":
            precision = cast(Precision, entries.pick("precision", "microsecond"))
            return _moment(entries, precision, ZoneInfo(context.zone), nullable)
        case _:
            return Identifier(cast(Literal["integer", "text"], entries.pick("kind", "text")), nullable)


def _number(entries: CheckedFields, nullable: bool) -> Number:
    step = entries.read("step", scalars.positive, Fraction(1))
    if entries.variant == "integer" and step.denominator != 1:
        entries.need("step").place.refuse(f"{entries.label('step')} must be a whole number; use type: decimal")
    if step < scalars.FINEST:
        entries.need("step").place.refuse(f"{entries.label('step')} must be at least 1e-15")
    lo = scalars.multiple(entries.need("min"), step, entries.label("min"))
    hi = scalars.multiple(entries.need("max"), step, entries.label("max"))
    if lo > hi:
        entries.need("max").place.refuse(f"{entries.label('max')} must be at least min, {lo}; got {hi}")
    return Number(lo, hi, step, nullable)


def _moment(entries: CheckedFields, precision: Precision, zone: tzinfo, nullable: bool) -> Moment:
    lo = scalars.instant(entries.need("min"), zone, precision, entries.label("min"))
    hi = scalars.instant(entries.need("max"), zone, precision, entries.label("max"), last=True)
    if lo > hi:
        entries.need("max").place.refuse(f"{entries.label('max')} must not be before min")
    return Moment(lo, hi, precision, nullable)


def _values(entries: CheckedFields) -> tuple[str, ...]:
    node = entries.get("values")
    if node is None:
        entries.node.place.refuse(
            f"{entries.what} needs 'values: [...]', every value, or 'values_from: table.column' of a public table"
        )
    items = sequence(node, entries.label("values"))
    values = tuple(scalars.text(item, f"a value of {entries.what}") for item in items)
    if not 1 <= len(values) <= MOST_VALUES:
        node.place.refuse(f"{entries.label('values')} must hold 1 to {MOST_VALUES:,} values; use values_from for more")
    distinct(items, values, entries.label("values"))
    return values


def _reference(entries: CheckedFields, nullable: bool, context: TableNames) -> Reference:
    node = entries.need("values_from")
    if entries.get("values") is not None:
        node.place.refuse(f"{entries.what} has both 'values:' and 'values_from:'; keep one")
    table, column = context.referred(node, entries.label("values_from"))
    kind = context.kinds[table, column] or entries.pick("kind", "text")
    return Reference(table, column, cast(Literal["integer", "text"], kind), nullable)


def _stand_in(domain: Domain) -> Scalar:
    """What stands in where the description names no default: nothing if that is allowed, else the first value."""
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


def _default(node: Node, what: str, domain: Domain, context: TableNames) -> Scalar:
    match domain:
        case Number(lo=lo, hi=hi, step=step):
            value = scalars.multiple(node, step, what)
            return value if lo <= value <= hi else node.place.refuse(f"{what} must lie from {lo} to {hi}")
        case Moment(lo=lo, hi=hi, precision=precision):
            zone = UTC if precision == "day" else ZoneInfo(context.zone)
            instant = scalars.instant(node, zone, precision, what)
            return instant if lo <= instant <= hi else node.place.refuse(f"{what} must lie between min and max")
        case Category(values=values):
            text = scalars.text(node, what)
            return (
                text if text in values else node.place.refuse(f"{what} must be one of its values; got {excerpt(text)}")
            )
        case Boolean():
            return scalars.boolean(node, what)
        case Reference(kind="integer"):
            return int(scalars.multiple(node, Fraction(1), what))
        case Reference():
            return scalars.text(node, what)
        case Identifier():
            return node.place.refuse(f"{what}: an identifier has no default, since that would merge people; remove it")
