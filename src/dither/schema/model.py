"""What is public about a dataset: tables, columns, domains, units of privacy, budgets."""

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
    """One of a few declared texts, compared in NFC."""

    values: tuple[str, ...]
    nullable: bool = False


@dataclass(frozen=True)
class Reference:
    """A value of a column of a public table: a long public list of keys."""

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
    """A date (precision day) or a timestamp, in microseconds since 1970 in UTC, bounds included."""

    lo: int
    hi: int
    precision: Precision = "microsecond"
    nullable: bool = False


@dataclass(frozen=True)
class Identifier:
    """An opaque name of a person or thing: may be compared and counted, never read or released."""

    kind: Literal["integer", "text"]
    nullable: bool = False


Domain = Number | Category | Reference | Boolean | Moment | Identifier
Scalar = int | Fraction | str | bool | None


@dataclass(frozen=True)
class Column:
    """A column, its domain, and what stands in for a value that lies outside and cannot be clamped."""

    name: str
    domain: Domain
    default: Scalar = None
    description: str = ""


@dataclass(frozen=True)
class Source:
    """Where a table's records are; `options` are engine-specific (path, table, dsn_env...)."""

    kind: Literal["parquet", "csv", "duckdb", "postgres", "spark"]
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """A table; `unique` is a key that holds at most one row per value, and is enforced when read."""

    name: str
    private: bool
    columns: Mapping[str, Column]
    source: Source
    unique: str | None = None
    description: str = ""


@dataclass(frozen=True)
class Unit:
    """What neighbours differ by: all rows of a key, one row, or a key's rows in one calendar window.

    `keys` maps each table that the unit covers to its key column (row units: the table to None);
    `times` maps it to the column that places a row in a window.
    """

    name: str
    kind: Literal["user", "row", "window"]
    keys: Mapping[str, str | None]
    times: Mapping[str, str] = field(default_factory=dict)
    every: Every | None = None


@dataclass(frozen=True)
class BudgetCap:
    """A cap on the loss of one unit. kind pure: epsilon; zcdp: rho and delta; renyi: order, epsilon and delta."""

    unit: str
    kind: Literal["pure", "zcdp", "renyi"]
    epsilon: Fraction | None = None
    rho: Fraction | None = None
    delta: Fraction = Fraction(0)
    order: Fraction | None = None


@dataclass(frozen=True)
class Group:
    """Analysts who share a budget; under a shared policy the caps lie below the dataset's."""

    name: str
    analysts: tuple[str, ...] = ()
    caps: tuple[BudgetCap, ...] = ()
    analyst_caps: tuple[BudgetCap, ...] = ()


@dataclass(frozen=True)
class Dataset:
    """The whole public description; `dither.schema.parser` reads it from YAML."""

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

    def __post_init__(self) -> None:
        for unit in self.units.values():
            _check_unit(unit, self.tables)
        for table in self.tables.values():
            for column in table.columns.values():
                if isinstance(column.domain, Number):
                    _check_number(f"column {column.name} of {table.name}", column.domain)


def fits_lattice(most: Fraction, step: Fraction) -> bool:
    """Whether integers up to `most` can be put on multiples of a step (coarser ones take twice as much)."""
    largest = most * step.denominator
    return largest < 1 << 63 if step.numerator == 1 else 2 * largest + step.numerator < 1 << 63


def _check_number(what: str, domain: Number) -> None:
    """Records are put on their lattice in 64-bit integers, which must not overflow on the way."""
    most = max(abs(domain.lo), abs(domain.hi))
    if not fits_lattice(most, domain.step):
        raise InvalidSchema(
            f"{what}: bounds of up to {most} are too large for steps of {domain.step}; use smaller ones"
        )


def _check_unit(unit: Unit, tables: Mapping[str, Table]) -> None:
    """A unit's keys name one kind of thing in all its tables, and its windows are told by moments."""
    what = f"unit {unit.name}"
    keys = [_domain(tables, table, key, what) for table, key in unit.keys.items() if unit.kind != "row"]
    if any(isinstance(domain, Boolean | Moment) for domain in keys):
        raise InvalidSchema(f"the keys of {what} must be identifiers, integers or categories")
    if len({key_kind(domain) for domain in keys}) > 1:
        raise InvalidSchema(f"the keys of {what} must be {ONE_KIND}")
    if unit.kind == "window":
        times = [_domain(tables, table, time, what) for table, time in unit.times.items()]
        if set(unit.times) != set(unit.keys) or unit.every is None or not all(isinstance(t, Moment) for t in times):
            raise InvalidSchema(f"{what} needs a period, and a date or timestamp in each of its tables")


def _domain(tables: Mapping[str, Table], table: str, column: str | None, what: str) -> Domain:
    if table not in tables or column is None or column not in tables[table].columns:
        raise InvalidSchema(f"{what} names a column that does not exist, in table {table}")
    return tables[table].columns[column].domain


ONE_KIND = "of one kind: all texts, or all integers with the same step"


def key_kind(domain: Domain) -> tuple[str, Fraction]:
    """What two tables must share for equal keys to be the same unit."""
    match domain:
        case Number(step=step):
            return "integer", step
        case Identifier(kind=kind) | Reference(kind=kind):
            return kind, Fraction(1)
        case _:
            return "text", Fraction(1)
