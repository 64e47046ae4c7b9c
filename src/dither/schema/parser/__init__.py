"""Read a dataset's description from YAML; errors name the line and say how to correct it."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, cast
from zoneinfo import ZoneInfo

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
from dither.schema.parser.fields import CheckedFields, join_names, mapping, named_items, refuse_duplicates, sequence
from dither.schema.parser.tables import read_tables
from dither.schema.spec import FORMAT_VERSION
from dither.schema.yaml_nodes import Node, YamlText, excerpt, parse, read


def load(path: str | Path) -> Dataset:
    """Read a dataset's description from a YAML file; paths in it are relative to the file."""
    file = Path(path)
    return _dataset(CheckedFields.of(read(file), "dataset", "the description"), file.absolute().parent)


def loads(text: str, directory: Path, file: str = "dataset.yml") -> Dataset:
    """Read a dataset's description from YAML text; paths in it are relative to `directory`."""
    return _dataset(CheckedFields.of(parse(text, file), "dataset", "the description"), directory)


def _dataset(entries: CheckedFields, directory: Path) -> Dataset:
    """Read the top level of a description."""
    _version(entries.need("version"))
    name = scalars.name(entries.need("name"), "name")
    zone = entries.read("timezone", _zone, "UTC")
    tables = read_tables(entries.need("tables"), directory, zone)
    units = _units(entries.need("units"), tables)
    _check_every_private_table_has_a_unit(entries.need("tables"), tables, units)
    budgets = _budgets(entries.need("budgets"), "budgets", units)
    if not budgets:
        entries.need("budgets").place.refuse("budgets needs at least one, such as - {unit: user, kind: zcdp, rho: 1/2}")
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


def _version(node: Node) -> None:
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
    """Read the units of privacy by name."""
    return {name: _unit(name, body, tables) for name, _, body in named_items(node, "units", "unit")}


def _unit(name: str, node: Node, tables: dict[str, Table]) -> Unit:
    """Read a unit of privacy; refuse keys of different kinds."""
    entries = CheckedFields.of(node, "unit", f"unit {name}")
    if entries.variant == "row":
        nodes = sequence(entries.need("tables"), entries.label("tables"))
        covered = [_private_table(item, item, tables, entries.label("tables")) for item in nodes]
        if not covered:
            node.place.refuse(f"{entries.label('tables')} must name at least one table")
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
    if table not in tables:
        place.place.refuse(f"{subject}: there is no table {excerpt(table)}; there are: {join_names(tables)}")
    if not tables[table].private:
        place.place.refuse(f"{subject}: table {table} is public and cannot be part of a unit; remove it here")
    return table


def _columns_by_table(entries: CheckedFields, key: str, tables: dict[str, Table], kinds: Any) -> dict[str, str]:
    """Read a mapping of tables to columns whose domains must be of `kinds`."""
    subject = entries.label(key)
    tables_to_columns = mapping(entries.need(key), subject)
    columns: dict[str, str] = {}
    for name, place in tables_to_columns.keys.items():
        table = _private_table(YamlText(place, name), YamlText(place, name), tables, subject)
        node = tables_to_columns.items[name]
        if scalars.is_null(node):
            known = join_names(tables[table].columns)
            node.place.refuse(f"{subject} needs a column of {table}; it has: {known}")
        column = scalars.text(node, subject)
        if column not in tables[table].columns:
            node.place.refuse(
                f"{subject}: no column {excerpt(column)} in {table}; it has: {join_names(tables[table].columns)}"
            )
        if not isinstance(tables[table].columns[column].domain, kinds):
            wanted = "a date or timestamp" if kinds is Moment else "an identifier, integer or category"
            node.place.refuse(f"{subject}: {table}.{column} must be {wanted}")
        columns[table] = column
    return columns


def _check_every_private_table_has_a_unit(node: Node, tables: dict[str, Table], units: dict[str, Unit]) -> None:
    """Refuse a private table that no unit covers."""
    covered = {table for unit in units.values() for table in unit.keys}
    for name, table in tables.items():
        if table.private and name not in covered:
            mapping(node, "tables").keys[name].refuse(
                f"table {name} is private, but no unit covers it; add it to a unit's keys, or declare private: false"
            )


def _budgets(node: Node, subject: str, units: dict[str, Unit]) -> tuple[BudgetCap, ...]:
    """Read a list of budgets."""
    return tuple(
        _budget(item, f"budget {number}", units) for number, item in enumerate(sequence(node, subject), start=1)
    )


def _budget(node: Node, subject: str, units: dict[str, Unit]) -> BudgetCap:
    """Read a budget of a declared unit."""
    entries = CheckedFields.of(node, "budget", subject)
    unit = scalars.text(entries.need("unit"), entries.label("unit"))
    if unit not in units:
        entries.need("unit").place.refuse(f"{subject}: no unit {excerpt(unit)}; there are: {join_names(units)}")
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
        group = _group(CheckedFields.of(item, "group", "a group"), units)
        if group.name in groups:
            item.place.refuse(f"group {group.name!r} is given twice")
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
    refuse_duplicates(items, names, subject)
    return names
