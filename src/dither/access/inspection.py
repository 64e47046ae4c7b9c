"""Tell the curator what cleaning had to correct, and the likely cause. All of it depends on records: curator only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from dither.plan.sql.dialect import RawKind
from dither.schema import Boolean, Category, Dataset, Domain, Identifier, Moment, Number, Reference

LARGE_SHARE = Fraction(1, 20)
ROWS_AT_OPENING = 100_000

READABLE: dict[str, tuple[RawKind, ...]] = {
    "a number": ("integer", "decimal", "float", "text", "boolean"),
    "a date or time": ("date", "timestamp", "instant", "text", "integer"),
    "true or false": ("boolean", "integer", "decimal", "float", "text"),
    "an integer key": ("integer", "decimal", "float", "text"),
    "a text": ("text", "integer", "boolean"),
}


@dataclass(frozen=True)
class ColumnInspection:
    """The corrected values of a column: how many in all, and of these the missing ones and those beyond a bound."""

    kind: RawKind
    corrected: int
    missing: int = 0
    below: int = 0
    above: int = 0


@dataclass(frozen=True)
class TableInspection:
    """The records of a table, and the corrections in each column.

    A scan drops `dropped` of the records for their keys, and further `capped` ones that are beyond a unit's max_rows.
    """

    rows: int
    dropped: int
    columns: Mapping[str, ColumnInspection]
    capped: int = 0

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TableInspection:
        """Read what a snapshot's manifest has stored."""
        columns = {k: ColumnInspection(**c) for k, c in data["columns"].items()}
        return cls(data["rows"], data["dropped"], columns, data.get("capped", 0))

    def counts(self, table: str) -> dict[str, int]:
        """Return corrected values by "table.column", dropped rows by "table", and those beyond a cap apart."""
        dropped = {table: self.dropped, f"{table} (beyond max_rows)": self.capped}
        return {f"{table}.{name}": column.corrected for name, column in self.columns.items()} | dropped


def findings(dataset: Dataset, tables: Mapping[str, TableInspection]) -> Iterator[str]:
    """Yield a sentence for each empty table, and for each column or table of which a large part was corrected."""
    for name, table in tables.items():
        if not table.rows:
            yield f"table {name} has no rows"
        for column, found in table.columns.items():
            if found.corrected > LARGE_SHARE * table.rows:
                causes = "; ".join(_causes(dataset.tables[name].columns[column].domain, found, dataset.timezone))
                yield f"{_share(found.corrected, table.rows)} values of {name}.{column} are corrected: {causes}"
        if table.dropped > LARGE_SHARE * table.rows:
            yield (
                f"{_share(table.dropped, table.rows)} rows of {name} are dropped: their unit's key or time cannot be"
                " read, or they repeat a value of the unique column"
            )
        if table.capped:
            yield (
                f"{_share(table.capped, table.rows)} rows of {name} are beyond max_rows of their unit and are never"
                " read; if units can have that many, raise max_rows"
            )


def _share(part: int, whole: int) -> str:
    return f"{part:,} of {whole:,} ({100 * part / whole:.0f}%)"


def _causes(domain: Domain, found: ColumnInspection, zone: str) -> Iterator[str]:
    """Yield the likely causes of corrections, each with what to change."""
    wanted = _value_kind(domain)
    if found.kind not in READABLE[wanted]:
        stored = "of a type that is not read" if found.kind == "other" else f"stored as {found.kind}"
        yield f"the column is {stored}, and {wanted} is wanted; declare another type, or convert the column"
        return
    if found.missing:
        yield f"{found.missing:,} are missing; declare nullable: true, or the default that they should become"
    if beyond := found.below + found.above:
        other = f", or times are in another zone than {zone}, or in another unit" if isinstance(domain, Moment) else ""
        yield f"{found.below:,} are below min and {found.above:,} above max; the bounds are too narrow{other}"
    if found.corrected - found.missing - beyond > 0:
        yield f"{found.corrected - found.missing - beyond:,} {_unreadable(domain, wanted)}"


def _value_kind(domain: Domain) -> str:
    match domain:
        case Number():
            return "a number"
        case Moment():
            return "a date or time"
        case Boolean():
            return "true or false"
        case Identifier(kind="integer") | Reference(kind="integer"):
            return "an integer key"
        case _:
            return "a text"


def _unreadable(domain: Domain, wanted: str) -> str:
    match domain:
        case Category():
            return "are not among the declared values; they are misspelt, in another case, or left out of values:"
        case Moment():
            return "are not spelt as dates or times are read; write 2024-01-31 12:00:00, perhaps with Z or +01:00"
        case _:
            return f"cannot be read as {wanted}; convert the column, or declare another type"
