"""Read a dataset's description from YAML; errors name the line and say how to correct it."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, cast
from zoneinfo import ZoneInfo

from dither.errors import InvalidSchema
from dither.schema.model import (
    LARGEST_CAP,
    SAME_KEY_KIND,
    BudgetCap,
    Category,
    Dataset,
    Group,
    Identifier,
    Moment,
    Number,
    Reference,
    Table,
    Unit,
    key_kind,
)
from dither.schema.parser import scalars
from dither.schema.parser.fields import (
    CheckedFields,
    join_names,
    mapping,
    named_items,
    note_duplicates,
    sequence,
    suggest,
)
from dither.schema.parser.tables import UNREAD, read_tables
from dither.schema.spec import FORMAT_VERSION
from dither.schema.yaml_nodes import Node, YamlText, excerpt, parse, read


def load(path: str | Path) -> Dataset:
    """Read a dataset's description from a YAML file; paths in it are relative to the file."""
    file = Path(path)
    return _read_description(read(file), file.absolute().parent)


def loads(text: str, directory: Path, file: str = "dataset.yml") -> Dataset:
    """Read a dataset's description from YAML text; paths in it are relative to `directory`."""
    return _read_description(parse(text, file), directory)


def _read_description(root: Node, directory: Path) -> Dataset:
    """Read a description; refuse it with all of its mistakes."""
    return root.place.finish(lambda: _dataset(CheckedFields.of(root, "dataset", "the description"), directory))


def _dataset(entries: CheckedFields, directory: Path) -> Dataset:
    """Read the top level of a description, as far as its mistakes allow."""
    entries.read("version", _version, None)
    name = entries.read("name", scalars.name, "")
    zone = entries.read("timezone", _zone, "UTC")
    no_tables: dict[str, Table] = {}
    tables = entries.read("tables", lambda node, subject: read_tables(node, directory, zone), no_tables)
    no_units: dict[str, Unit] = {}
    units = entries.read("units", lambda node, subject: _units(node, tables), no_units)
    if units and all(unit.keys for unit in units.values()):
        _check_every_private_table_has_a_unit(entries.need("tables"), tables, units)
    no_budgets: tuple[BudgetCap, ...] = ()
    budgets = entries.read("budgets", lambda node, subject: _some_budgets(node, subject, units), no_budgets)
    return Dataset(
        name=name,
        population=entries.read("population", scalars.name, name),
        data_version=entries.read("data_version", scalars.text, "1"),
        tables=tables,
        units=units,
        budgets=budgets,
        policy=cast(Literal["shared", "separate"], entries.read_choice("policy", "shared")),
        groups=entries.read("groups", lambda node, subject: _groups(node, subject, units), ()),
        timezone=zone,
        size_epsilon=entries.read("size_epsilon", scalars.positive, Fraction(1, 100)),
        description=entries.read("description", scalars.text, ""),
        profile_epsilon=entries.read("profile_epsilon", scalars.positive, Fraction(0)),
    )


def _version(node: Node, subject: str) -> None:
    """Refuse any format version but the current one."""
    if not isinstance(node, YamlText) or node.value != str(FORMAT_VERSION):
        node.place.refuse(f"version must be {FORMAT_VERSION}, the only format that this version of Dither reads")


def _zone(node: Node, subject: str) -> str:
    """Read the name of a time zone."""
    value = scalars.text(node, subject)
    try:
        ZoneInfo(value)
    except (ValueError, OSError, LookupError):
        node.place.refuse(f"{subject} must be a time zone such as UTC or Europe/Paris; got {excerpt(value)}")
    return value


def _units(node: Node, tables: dict[str, Table]) -> dict[str, Unit]:
    """Read the units of privacy by name; one that is a mistake covers nothing."""
    units: dict[str, Unit] = {}
    for name, place, body in named_items(node, "units", "unit"):
        units[name] = Unit(name, "row", {})
        with place.read_on():
            units[name] = _unit(name, body, tables)
    return units


def _unit(name: str, node: Node, tables: dict[str, Table]) -> Unit:
    """Read a unit of privacy; refuse keys of different kinds."""
    entries = CheckedFields.of(node, "unit", f"unit {name}")
    if entries.variant == "row":
        nodes = sequence(entries.need("tables"), entries.label("tables"))
        covered: list[str] = []
        for item in nodes:
            with item.place.read_on():
                covered.append(_private_table(item, item, tables, entries.label("tables")))
        if not nodes:
            node.place.refuse(f"{entries.label('tables')} must name at least one table")
        if len(covered) < len(nodes):
            raise InvalidSchema(f"{entries.subject} has a mistake that was noted")
        return Unit(name, "row", dict.fromkeys(covered))
    keys = _columns_by_table(entries, "keys", tables, Identifier | Number | Category | Reference)
    if len({key_kind(tables[table].columns[column].domain) for table, column in keys.items()}) > 1:
        entries.need("keys").place.refuse(f"{entries.label('keys')} must be {SAME_KEY_KIND}")
    no_caps: dict[str, int] = {}
    caps = entries.read("max_rows", lambda node, subject: _row_caps(node, subject, tables, keys), no_caps)
    if entries.variant == "user":
        return Unit(name, "user", keys, max_rows=caps)
    times = _columns_by_table(entries, "times", tables, Moment)
    if set(times) != set(keys):
        entries.need("times").place.refuse(f"{entries.label('times')} must name the tables of keys: {join_names(keys)}")
    return Unit(name, "window", keys, times, cast(Any, entries.read_choice("every", "month")), caps)


def _row_caps(node: Node, subject: str, tables: dict[str, Table], keys: dict[str, str]) -> dict[str, int]:
    """Read the caps on rows by table; refuse tables that are public or that the unit does not cover."""
    caps: dict[str, int] = {}
    entries = mapping(node, subject)
    for name, place in entries.keys.items():
        table = _private_table(YamlText(place, name), YamlText(place, name), tables, subject)
        if table not in keys:
            place.refuse(f"{subject}: the unit does not cover table {table}; it covers: {join_names(keys)}")
        rows = scalars.number(entries.items[name], f"{subject} for {table}")
        if rows.denominator != 1 or not 1 <= rows <= LARGEST_CAP:
            entries.items[name].place.refuse(f"{subject} must be a whole number from 1 to 2^31; got {rows}")
        caps[table] = int(rows)
    return caps


def _private_table(node: Node, place: Node, tables: dict[str, Table], subject: str) -> str:
    """Read the name of a private table; `place` is the node that errors refer to."""
    table = scalars.text(node, subject)
    if tables and table not in tables:
        place.place.refuse(f"{subject}: there is no table {excerpt(table)}; {suggest(table, tables, 'there are:')}")
    if not tables or not tables[table].columns:
        raise InvalidSchema(f"{subject}: table {table} is a mistake that was noted")
    if not tables[table].private:
        place.place.refuse(f"{subject}: table {table} is public and cannot be part of a unit; remove it here")
    return table


def _columns_by_table(entries: CheckedFields, key: str, tables: dict[str, Table], kinds: Any) -> dict[str, str]:
    """Read a mapping of tables to columns whose domains must be of `kinds`."""
    subject = entries.label(key)
    tables_to_columns = mapping(entries.need(key), subject)
    columns: dict[str, str] = {}
    for name, place in tables_to_columns.keys.items():
        with place.read_on():
            table = _private_table(YamlText(place, name), YamlText(place, name), tables, subject)
            columns[table] = _column_of(tables[table], tables_to_columns.items[name], kinds, subject)
    if len(columns) < len(tables_to_columns.keys):
        raise InvalidSchema(f"{subject} has a mistake that was noted")
    return columns


def _column_of(table: Table, node: Node, kinds: Any, subject: str) -> str:
    """Read the name of a column whose domain must be of `kinds`."""
    if scalars.is_null(node):
        node.place.refuse(f"{subject} needs a column of {table.name}; it has: {join_names(table.columns)}")
    column = scalars.text(node, subject)
    if column not in table.columns:
        known = suggest(column, table.columns, "it has:")
        node.place.refuse(f"{subject}: no column {excerpt(column)} in {table.name}; {known}")
    if table.columns[column].domain is UNREAD:
        raise InvalidSchema(f"{subject}: column {column} is a mistake that was noted")
    if not isinstance(table.columns[column].domain, kinds):
        wanted = "a date or timestamp" if kinds is Moment else "an identifier, integer or category"
        node.place.refuse(f"{subject}: {table.name}.{column} must be {wanted}")
    return column


def _check_every_private_table_has_a_unit(node: Node, tables: dict[str, Table], units: dict[str, Unit]) -> None:
    """Note each private table that no unit covers."""
    covered = {table for unit in units.values() for table in unit.keys}
    for name, table in tables.items():
        if table.private and table.columns and name not in covered:
            mapping(node, "tables").keys[name].note(
                f"table {name} is private, but no unit covers it; add it to a unit's keys, or declare private: false"
            )


def _some_budgets(node: Node, subject: str, units: dict[str, Unit]) -> tuple[BudgetCap, ...]:
    """Read a list of at least one budget."""
    if not sequence(node, subject):
        node.place.refuse(f"{subject} needs at least one, such as - {{unit: user, kind: zcdp, rho: 1/2}}")
    return _budgets(node, subject, units)


def _budgets(node: Node, subject: str, units: dict[str, Unit]) -> tuple[BudgetCap, ...]:
    """Read a list of budgets."""
    budgets: list[BudgetCap] = []
    for number, item in enumerate(sequence(node, subject), start=1):
        with item.place.read_on():
            budgets.append(_budget(item, f"budget {number}", units))
    return tuple(budgets)


def _budget(node: Node, subject: str, units: dict[str, Unit]) -> BudgetCap:
    """Read a budget of a declared unit."""
    entries = CheckedFields.of(node, "budget", subject)
    unit = scalars.text(entries.need("unit"), entries.label("unit"))
    if units and unit not in units:
        entries.need("unit").place.note(f"{subject}: no unit {excerpt(unit)}; {suggest(unit, units, 'there are:')}")
    order = entries.read("order", scalars.positive, None)
    if order is not None and order <= 1:
        entries.need("order").place.refuse(f"{entries.label('order')} must be above 1; got {order}")
    return BudgetCap(
        unit=unit,
        kind=cast(Literal["pure", "zcdp", "renyi"], entries.variant),
        epsilon=entries.read("epsilon", _cap, None),
        rho=entries.read("rho", _cap, None),
        delta=entries.read("delta", _delta, Fraction(0)),
        order=order,
    )


def _cap(node: Node, subject: str) -> Fraction | None:
    """Read a positive cap of at most 1000."""
    value = scalars.positive(node, subject)
    if value > 1000:
        node.place.refuse(f"{subject} must be at most 1000; a larger cap protects nothing")
    return value


def _delta(node: Node, subject: str) -> Fraction:
    """Read a delta from 0 to below 1."""
    value = scalars.number(node, subject)
    if not 0 <= value < 1:
        node.place.refuse(f"{subject} must be at least 0 and below 1; got {value}")
    return value


def _groups(node: Node, subject: str, units: dict[str, Unit]) -> tuple[Group, ...]:
    """Read the groups of analysts; refuse a name that is given twice."""
    groups: dict[str, Group] = {}
    for item in sequence(node, subject):
        with item.place.read_on():
            group = _group(CheckedFields.of(item, "group", "a group"), units)
            if group.name in groups:
                item.place.note(f"group {group.name!r} is given twice")
            groups[group.name] = group
    return tuple(groups.values())


def _group(entries: CheckedFields, units: dict[str, Unit]) -> Group:
    """Read a group of analysts and its caps."""

    def budgets(node: Node, subject: str) -> tuple[BudgetCap, ...]:
        return _budgets(node, subject, units)

    return Group(
        name=scalars.name(entries.need("name"), entries.label("name")),
        analysts=entries.read("analysts", _analysts, ()),
        caps=entries.read("budgets", budgets, ()),
        analyst_caps=entries.read("analyst_budgets", budgets, ()),
    )


def _analysts(node: Node, subject: str) -> tuple[str, ...]:
    """Read the account names of a group; refuse duplicates."""
    items = sequence(node, subject)
    names = tuple(scalars.text(item, subject) for item in items)
    note_duplicates(items, names, subject)
    return names
