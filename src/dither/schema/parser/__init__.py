"""From a dataset's YAML file to the nouns, with errors that name the line and say what to write."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, cast
from zoneinfo import ZoneInfo

from dither.schema.model import (
    ONE_KIND,
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
from dither.schema.parser.fields import CheckedFields, distinct, listed, mapping, named, sequence
from dither.schema.parser.tables import tables_of
from dither.schema.spec import FORMAT_VERSION
from dither.schema.yaml_nodes import Node, YamlText, excerpt, parse, read


def load(path: str | Path) -> Dataset:
    """The dataset that a YAML file describes; paths in it are relative to the file."""
    file = Path(path)
    return _dataset(CheckedFields.of(read(file), "dataset", "the description"), file.absolute().parent)


def loads(text: str, directory: Path, file: str = "dataset.yml") -> Dataset:
    """The dataset that a YAML text describes; paths in it are relative to `directory`."""
    return _dataset(CheckedFields.of(parse(text, file), "dataset", "the description"), directory)


def _dataset(entries: CheckedFields, directory: Path) -> Dataset:
    _version(entries.need("version"))
    name = scalars.name(entries.need("name"), "name")
    zone = entries.read("timezone", _zone, "UTC")
    tables = tables_of(entries.need("tables"), directory, zone)
    units = _units(entries.need("units"), tables)
    _every_private_table_has_a_unit(entries.need("tables"), tables, units)
    budgets = _budgets(entries.need("budgets"), "budgets", units)
    if not budgets:
        entries.need("budgets").place.refuse("budgets must hold at least one: - {unit: user, kind: zcdp, rho: 1/2}")
    return Dataset(
        name=name,
        population=entries.read("population", scalars.name, name),
        data_version=entries.read("data_version", scalars.text, "1"),
        tables=tables,
        units=units,
        budgets=budgets,
        policy=cast(Literal["shared", "separate"], entries.pick("policy", "shared")),
        groups=entries.read("groups", lambda node, what: _groups(node, what, units), ()),
        timezone=zone,
        size_epsilon=entries.read("size_epsilon", scalars.positive, Fraction(1, 100)),
        description=entries.read("description", scalars.text, ""),
    )


def _version(node: Node) -> None:
    if not isinstance(node, YamlText) or node.value != str(FORMAT_VERSION):
        node.place.refuse(f"version must be {FORMAT_VERSION}, the format that this Dither reads")


def _zone(node: Node, what: str) -> str:
    value = scalars.text(node, what)
    try:
        ZoneInfo(value)
    except (ValueError, OSError, LookupError):
        node.place.refuse(f"{what} must be a zone such as UTC or Europe/Paris; got {excerpt(value)}")
    return value


def _units(node: Node, tables: dict[str, Table]) -> dict[str, Unit]:
    return {name: _unit(name, body, tables) for name, _, body in named(node, "units", "unit")}


def _unit(name: str, node: Node, tables: dict[str, Table]) -> Unit:
    entries = CheckedFields.of(node, "unit", f"unit {name}")
    if entries.variant == "row":
        nodes = sequence(entries.need("tables"), entries.label("tables"))
        covered = [_private_table(item, item, tables, entries.label("tables")) for item in nodes]
        if not covered:
            node.place.refuse(f"{entries.label('tables')} must name at least one table")
        return Unit(name, "row", dict.fromkeys(covered))
    keys = _columns_by_table(entries, "keys", tables, Identifier | Number | Category | Reference)
    if len({key_kind(tables[table].columns[column].domain) for table, column in keys.items()}) > 1:
        entries.need("keys").place.refuse(f"{entries.label('keys')} must be {ONE_KIND}")
    if entries.variant == "user":
        return Unit(name, "user", keys)
    times = _columns_by_table(entries, "times", tables, Moment)
    if set(times) != set(keys):
        entries.need("times").place.refuse(f"{entries.label('times')} must name the tables of keys: {listed(keys)}")
    return Unit(name, "window", keys, times, cast(Any, entries.pick("every", "month")))


def _private_table(node: Node, place: Node, tables: dict[str, Table], what: str) -> str:
    table = scalars.text(node, what)
    if table not in tables:
        place.place.refuse(f"{what}: there is no table {excerpt(table)}; there are: {listed(tables)}")
    if not tables[table].private:
        place.place.refuse(f"{what}: table {table} is public, and needs no protection; remove it here")
    return table


def _columns_by_table(entries: CheckedFields, key: str, tables: dict[str, Table], kinds: Any) -> dict[str, str]:
    what = entries.label(key)
    given = mapping(entries.need(key), what)
    found: dict[str, str] = {}
    for name, place in given.keys.items():
        table = _private_table(YamlText(place, name), YamlText(place, name), tables, what)
        node = given.items[name]
        column = scalars.text(node, what)
        if column not in tables[table].columns:
            node.place.refuse(
                f"{what}: no column {excerpt(column)} in {table}; it has: {listed(tables[table].columns)}"
            )
        if not isinstance(tables[table].columns[column].domain, kinds):
            wanted = "a date or timestamp" if kinds is Moment else "an identifier, integer or category"
            node.place.refuse(f"{what}: {table}.{column} must be {wanted}")
        found[table] = column
    return found


def _every_private_table_has_a_unit(node: Node, tables: dict[str, Table], units: dict[str, Unit]) -> None:
    covered = {table for unit in units.values() for table in unit.keys}
    for name, table in tables.items():
        if table.private and name not in covered:
            mapping(node, "tables").keys[name].refuse(
                f"table {name} is private, but no unit covers it; add it to the keys of a unit, or say private: false"
            )


def _budgets(node: Node, what: str, units: dict[str, Unit]) -> tuple[BudgetCap, ...]:
    return tuple(_budget(item, f"budget {number}", units) for number, item in enumerate(sequence(node, what), start=1))


def _budget(node: Node, what: str, units: dict[str, Unit]) -> BudgetCap:
    entries = CheckedFields.of(node, "budget", what)
    unit = scalars.text(entries.need("unit"), entries.label("unit"))
    if unit not in units:
        entries.need("unit").place.refuse(f"{what}: there is no unit {excerpt(unit)}; there are: {listed(units)}")
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


def _cap(node: Node, what: str) -> Fraction | None:
    value = scalars.positive(node, what)
    if value > 1000:
        node.place.refuse(f"{what} must be at most 1000; beyond that nothing is protected")
    return value


def _delta(node: Node, what: str) -> Fraction:
    value = scalars.number(node, what)
    if not 0 <= value < 1:
        node.place.refuse(f"{what} must be at least 0 and below 1; got {value}")
    return value


def _groups(node: Node, what: str, units: dict[str, Unit]) -> tuple[Group, ...]:
    groups: dict[str, Group] = {}
    for item in sequence(node, what):
        group = _group(CheckedFields.of(item, "group", "a group"), units)
        if group.name in groups:
            item.place.refuse(f"group {group.name!r} is given twice")
        groups[group.name] = group
    return tuple(groups.values())


def _group(entries: CheckedFields, units: dict[str, Unit]) -> Group:
    def budgets(node: Node, what: str) -> tuple[BudgetCap, ...]:
        return _budgets(node, what, units)

    return Group(
        name=scalars.name(entries.need("name"), entries.label("name")),
        analysts=entries.read("analysts", _analysts, ()),
        caps=entries.read("budgets", budgets, ()),
        analyst_caps=entries.read("analyst_budgets", budgets, ()),
    )


def _analysts(node: Node, what: str) -> tuple[str, ...]:
    items = sequence(node, what)
    names = tuple(scalars.text(item, what) for item in items)
    distinct(items, names, what)
    return names
