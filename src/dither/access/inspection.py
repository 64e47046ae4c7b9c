"""Tell the curator what cleaning had to correct, and the likely cause. All of it depends on records: curator only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from dither.plan.sql.dialect import RawKind
from dither.schema import Boolean, Category, Column, Dataset, Domain, Identifier, Moment, Number, Reference
from dither.schema.summary import default_text

# Missing values that become one nobody chose move averages from few of them on.
LARGE_SHARE, MISSING_SHARE = Fraction(1, 20), Fraction(1, 100)
NEARLY_ALL = Fraction(9, 10)  # if more of a column's values become its declared default, that was hardly meant
ROWS_AT_OPENING = 100_000

READABLE: dict[str, tuple[RawKind, ...]] = {
    "a number": ("integer", "decimal", "float", "text", "boolean"),
    "a date or time": ("date", "timestamp", "instant", "text", "integer"),
    "true or false (1 or 0, but not 1.0)": ("boolean", "integer", "decimal", "float", "text"),
    "an integer key (233, but not 233.0 or 0233)": ("integer", "decimal", "float", "text"),
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

    @property
    def unreadable(self) -> int:
        """The values that are there and have no bound to be moved to."""
        return self.corrected - self.missing - self.below - self.above

    def count_unintended(self, column: Column, rows: int) -> int:
        """Count the corrections that a declared `default:` does not ask for."""
        if not column.default_is_declared:
            return self.corrected
        return self.corrected - self.missing - (self.unreadable if self.unreadable <= NEARLY_ALL * rows else 0)


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
            declared, rows = dataset.tables[name].columns[column], table.rows
            silent = 0 if declared.default_is_declared or isinstance(declared.domain, Identifier) else found.missing
            if found.count_unintended(declared, rows) > LARGE_SHARE * rows or 0 < rows * MISSING_SHARE <= silent:
                causes = "; ".join(_causes(declared, found, dataset.timezone))
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


def _causes(column: Column, found: ColumnInspection, zone: str) -> Iterator[str]:
    """Yield the likely causes of corrections, each with what the values become and what to change."""
    domain, wanted, default = column.domain, _value_kind(column.domain), default_text(column)
    if found.kind not in READABLE[wanted]:
        stored = "of a type that is not read" if found.kind == "other" else f"stored as {found.kind}"
        yield (
            f"the column is {stored}, and {wanted} is wanted, so that all become {default}; declare another type, or"
            " convert the column"
        )
        return
    if found.missing:
        advice = "" if column.default_is_declared else ", or the default that they should become"
        yield f"{found.missing:,} are missing and become {default}; declare nullable: true to keep them missing{advice}"
    if found.below + found.above:
        other = f", or times are in another zone than {zone}, or in another unit" if isinstance(domain, Moment) else ""
        yield f"{found.below:,} are below min and {found.above:,} above max; the bounds are too narrow{other}"
    if found.unreadable:
        yield f"{found.unreadable:,} become {default}, since they {_unreadable(domain, wanted)}"


def _value_kind(domain: Domain) -> str:
    match domain:
        case Number():
            return "a number"
        case Moment():
            return "a date or time"
        case Boolean():
            return "true or false (1 or 0, but not 1.0)"
        case Identifier(kind="integer") | Reference(kind="integer"):
            return "an integer key (233, but not 233.0 or 0233)"
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
