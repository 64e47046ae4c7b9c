"""The classes of a dataset's public description: tables, columns, domains, units of privacy, budgets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

from dither.errors import InvalidSchema

Precision = Literal["day", "hour", "minute", "second", "millisecond", "microsecond"]
Every = Literal["day", "week", "month", "quarter", "year"]


@dataclass(frozen=True)
class Number:
    """Multiples of `step` from `lo` to `hi`; integers have step 1."""

    lo: Fraction
    hi: Fraction
    step: Fraction = Fraction(1)
    nullable: bool = False


@dataclass(frozen=True)
class Category:
    """One of a declared list of texts, compared in Unicode NFC."""

    values: tuple[str, ...]
    nullable: bool = False


@dataclass(frozen=True)
class Reference:
    """One of the values of a column of a public table: a category with a long list of values."""

    table: str
    column: str
    kind: Literal["integer", "text"]
    nullable: bool = False


@dataclass(frozen=True)
class Boolean:
    """True or false."""

    nullable: bool = False


@dataclass(frozen=True)
class Moment:
    """A date (precision day) or a timestamp, in microseconds on the dataset's wall clock; both bounds are inclusive."""

    lo: int
    hi: int
    precision: Precision = "microsecond"
    nullable: bool = False


@dataclass(frozen=True)
class Identifier:
    """An opaque identifier of a person or thing: it can be compared and counted, but never released."""

    kind: Literal["integer", "text"]
    nullable: bool = False


LARGEST_CAP = 1 << 31

Domain = Number | Category | Reference | Boolean | Moment | Identifier
Scalar = int | Fraction | str | bool | None


@dataclass(frozen=True)
class Column:
    """A column and its domain; `default` replaces values that lie outside the domain and cannot be clamped.

    `default_is_declared` says that the file contains it: for the curator's warnings, and no part of the schema.
    """

    name: str
    domain: Domain
    default: Scalar = None
    description: str = ""
    default_is_declared: bool = field(default=False, init=False, compare=False, repr=False)


SourceKind = Literal["parquet", "csv", "duckdb", "postgres", "spark"]


@dataclass(frozen=True)
class Source:
    """The location of a table's records; `options` depend on the engine (path, table, dsn_env...)."""

    kind: SourceKind
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """A table; `unique` names a column with at most one row per value, which is enforced on reading."""

    name: str
    private: bool
    columns: Mapping[str, Column]
    source: Source
    unique: str | None = None
    description: str = ""


@dataclass(frozen=True)
class Unit:
    """The unit of privacy: all rows of a key, one row, or the rows of a key in one calendar window.

    Neighbouring datasets differ by one unit.

    `keys` maps each table that the unit covers to its key column (row units: the table to None);
    `times` maps it to the column that places a row in a window; `max_rows` maps it to the most rows of one unit that
    are ever read, if there is such a cap.
    """

    name: str
    kind: Literal["user", "row", "window"]
    keys: Mapping[str, str | None]
    times: Mapping[str, str] = field(default_factory=dict)
    every: Every | None = None
    max_rows: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class BudgetCap:
    """A cap on the privacy loss of one unit.

    pure: epsilon, and delta if any; zcdp: rho and delta, or epsilon and delta; renyi: order, epsilon and delta.
    """

    unit: str
    kind: Literal["pure", "zcdp", "renyi"]
    epsilon: Fraction | None = None
    rho: Fraction | None = None
    delta: Fraction = Fraction(0)
    order: Fraction | None = None


@dataclass(frozen=True)
class Group:
    """Analysts who share a budget; under a shared policy its caps apply in addition to the dataset's."""

    name: str
    analysts: tuple[str, ...] = ()
    caps: tuple[BudgetCap, ...] = ()
    analyst_caps: tuple[BudgetCap, ...] = ()


@dataclass(frozen=True, repr=False)
class Dataset:
    """The public description of a dataset; `dither.schema.parser.load` reads it from a YAML file."""

    name: str
    population: str
    data_version: str
    tables: Mapping[str, Table]
    units: Mapping[str, Unit]
    budgets: tuple[BudgetCap, ...]
    policy: Literal["shared", "separate"] = "shared"
    groups: tuple[Group, ...] = ()
    timezone: str = "UTC"
    size_epsilon: Fraction = Fraction(1, 100)
    description: str = ""
    profile_epsilon: Fraction = Fraction(0)

    def __repr__(self) -> str:
        return f"dataset {self.name}: tables {table_names(self)}; units {', '.join(self.units)}"

    def __post_init__(self) -> None:
        for unit in self.units.values():
            _check_unit(unit, self.tables)
        for name in {name for unit in self.units.values() for name in unit.max_rows}:
            _check_row_cap(name, self.tables, self.units)
        for table in self.tables.values():
            for column in table.columns.values():
                if isinstance(column.domain, Number):
                    _check_number(f"column {column.name} of {table.name}", column.domain)


def table_names(dataset: Dataset) -> str:
    """Join the names of the tables, and say which are public."""
    return ", ".join(name + ("" if table.private else " (public)") for name, table in dataset.tables.items())


def fits_int64(bound: Fraction, step: Fraction) -> bool:
    """Return True if values up to `bound` can be rounded to multiples of `step` in 64-bit integers.

    Rounding to a step that is not 1/n needs twice the range.
    """
    largest = bound * step.denominator
    return largest < 1 << 63 if step.numerator == 1 else 2 * largest + step.numerator < 1 << 63


def _check_number(subject: str, domain: Number) -> None:
    """Reject bounds that would overflow the 64-bit integers in which records are rounded to their step."""
    bound = max(abs(domain.lo), abs(domain.hi))
    if not fits_int64(bound, domain.step):
        raise InvalidSchema(
            f"{subject}: bounds of up to {bound} are too large for a step of {domain.step}; declare smaller bounds"
        )


def _check_unit(unit: Unit, tables: Mapping[str, Table]) -> None:
    """Check that a unit's keys have the same kind in all tables, and that a window unit has a period and times."""
    subject = f"unit {unit.name}"
    keys = [_domain_of(tables, table, key, subject) for table, key in unit.keys.items() if unit.kind != "row"]
    if any(isinstance(domain, Boolean | Moment) for domain in keys):
        raise InvalidSchema(f"the keys of {subject} must be identifiers, integers or categories")
    if len({key_kind(domain) for domain in keys}) > 1:
        raise InvalidSchema(f"the keys of {subject} must be {SAME_KEY_KIND}")
    if unit.kind == "window":
        times = [_domain_of(tables, table, time, subject) for table, time in unit.times.items()]
        if set(unit.times) != set(unit.keys) or unit.every is None or not all(isinstance(t, Moment) for t in times):
            raise InvalidSchema(f"{subject} needs a period, and a date or timestamp in each of its tables")


def _check_row_cap(table: str, tables: Mapping[str, Table], units: Mapping[str, Unit]) -> None:
    """Check the cap on a table's rows: one unit's, of a private table that no keyed unit covers by another key.

    Rows beyond a cap are dropped by the key of its unit. Under another key, one person's rows could drop another's.
    """
    capped = [unit for unit in units.values() if table in unit.max_rows]
    keys = {unit.keys[table] for unit in units.values() if unit.kind != "row" and table in unit.keys}
    if len(capped) != 1:
        raise InvalidSchema(f"only one unit can have max_rows for table {table}; remove the others")
    (unit,) = capped
    rows = unit.max_rows[table]
    if unit.kind == "row" or table not in unit.keys or table not in tables or not tables[table].private:
        raise InvalidSchema(f"max_rows of unit {unit.name}: {table} is no private table that it covers by a key")
    if type(rows) is not int or not 1 <= rows <= LARGEST_CAP:
        raise InvalidSchema(f"max_rows of unit {unit.name} must be whole numbers from 1 to 2^31; got {rows}")
    if len(keys) > 1:
        raise InvalidSchema(
            f"max_rows of unit {unit.name}: other units cover table {table} by other keys, and the rows of one person"
            " could then drop those of another; remove max_rows"
        )


def _domain_of(tables: Mapping[str, Table], table: str, column: str | None, subject: str) -> Domain:
    """Return the domain of a column; refuse a name that does not exist."""
    if table not in tables or column is None or column not in tables[table].columns:
        raise InvalidSchema(
            f"{subject} names table {table} and a key or time column in it, but one of them does not exist"
        )
    return tables[table].columns[column].domain


SAME_KEY_KIND = "of one kind: all texts, or all integers with the same step"


def key_kind(domain: Domain) -> tuple[str, Fraction]:
    """Return the type and step of a key; equal keys of two tables are the same unit only if these agree."""
    match domain:
        case Number(step=step):
            return "integer", step
        case Identifier(kind=kind) | Reference(kind=kind):
            return kind, Fraction(1)
        case _:
            return "text", Fraction(1)
