"""Draft a description of files or PostgreSQL tables from names and types; the curator fills in every bound."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from glob import glob
from pathlib import Path

from dither.cli.draft_columns import (
    DELIMITERS,
    SAMPLE_RECORDS,
    DraftColumn,
    arrow_columns,
    catalogue_column,
    csv_columns,
    csv_delimiter,
)
from dither.errors import InvalidParameter, Unsupported
from dither.schema.parser.scalars import NAME

HEADER = """\
# A draft, from names and types alone: no bound and no list of values was read from the records.
# DECIDE marks what only a curator can decide. Everything in this file becomes public, so write what anyone could
# know without seeing the data: ages 0 to 120, all countries, the year of the survey. A bound taken from the records
# (the greatest salary, the diagnoses that occur) would reveal something about the people in them.
#
# The types of a column, with what each needs:
#   {{type: integer, min: 0, max: 120}}                values outside are moved to the nearest bound
#   {{type: decimal, min: 0, max: 500, step: 0.01}}    ... and rounded to a multiple of the step
#   {{type: category, values: [a, b, other], default: other}}    or values_from: table.column of a public table
#   {{type: boolean}}                                  true/false, yes/no, t/f, 1/0
#   {{type: date, min: 2024-01-01, max: 2024-12-31}}
#   {{type: timestamp, min: 2024-01-01, max: 2024-12-31, precision: second}}
#   {{type: identifier, kind: integer}} or kind: text    names people or things; compared and counted, never shown
# Any of them may have `nullable: true`: missing values then stay missing. Without it they become the least value,
# the first value or false.
# Delete the columns that nobody will query. {next_step}
version: 1
name: {name}
size_epsilon: 0.01 # spent once, before the first question, on noisy sizes of its private tables (for quotes)
"""

UNITS = """\
units: # DECIDE who is protected
  user: # all rows that share a key, across tables: a person, a household, a company
    kind: user
    keys: # for each private table, the column that names the person
{keys}
    # max_rows: {{{first}: 1000}} # if nobody can have more rows, by what is known beforehand; others are dropped
  # Instead, if every row is about somebody else (and `unit: row` in budgets):
  # row: {{kind: row, tables: [{names}]}}
budgets:
  - {{unit: user, kind: pure, epsilon: }} # DECIDE the loss of all answers together; docs/choosing-a-budget.md
# How many rows of one unit count in an answer, a query says (max_contributions=20 or
# max_contributions={{'max_rows': 20}}), or it is chosen privately, for a fifth of the query's loss.
# A table with `unique` on the unit's key has one row a unit, and needs no such bound.
"""

CSV_REMARK = f" # types from the form of the first {SAMPLE_RECORDS:,} records (digits, dates, true/false): check them"


@dataclass(frozen=True)
class DraftTable:
    """A table of a draft; `unique` is known from a catalogue, or None; `remark` is on all its columns."""

    name: str
    source: str
    columns: tuple[DraftColumn, ...]
    unique: str | None = None
    remark: str = ""

    def text(self) -> str:
        """Return the table in YAML."""
        unique = f"unique: {self.unique}" if self.unique else "# unique: a_column"
        return (
            f"  {self.name}:\n"
            "    private: true # false if everyone may see all of its rows, as of a list of shops; then leave it out of"
            " units\n"
            f"    source: {{{self.source}}}\n"
            f"    {unique} # no value of this column occurs twice, as in the key of a table with one row a person\n"
            f"    columns:{self.remark}\n" + "".join(f"      {column.text()}\n" for column in self.columns)
        )


def draft(tables: Sequence[DraftTable], out: Path | None) -> str:
    """Return the draft of a description in YAML."""
    file = "the file" if out is None else str(out)
    save = "Save this text as dataset.yml, then run: " if out is None else "Then run: "
    names = [table.name for table in tables]
    if len(set(names)) < len(names):
        raise InvalidParameter(f"two tables of {file} would have one name: {', '.join(sorted(names))}; rename a file")
    head = HEADER.format(name=names[0], next_step=f"{save}dither check {out or 'dataset.yml'}")
    keys = "\n".join(f"      {name}: # DECIDE" for name in names)
    units = UNITS.format(keys=keys, names=", ".join(names), first=names[0])
    return f"{head}tables:\n{''.join(table.text() for table in tables)}{units}"


def file_tables(paths: Iterable[str], out: Path | None) -> tuple[DraftTable, ...]:
    """Read the names and types of Parquet and CSV files, or of patterns such as 'sales/*.parquet'."""
    return tuple(_file_table(path, out.parent if out is not None else Path()) for path in paths)


def _file_table(path: str, directory: Path) -> DraftTable:
    """Read one file, or the first that matches a pattern; its path becomes relative to the description."""
    files = sorted(glob(path)) or [path]
    stem = Path(path).name.partition(".")[0]
    name = valid_name(stem if "*" not in stem and stem else Path(path).absolute().parent.name)
    place = f"path: {yaml_text(os.path.relpath(path, directory))}"
    if re.search(r"\.[ct]sv(\.gz)?$", path, re.IGNORECASE):
        delimiter = csv_delimiter(Path(files[0]))
        written = "" if delimiter == "," else f", delimiter: {DELIMITERS[delimiter]}"
        columns = csv_columns(Path(files[0]), delimiter)
        return DraftTable(name, f"kind: csv, {place}{written}", columns, remark=CSV_REMARK)
    return DraftTable(name, f"kind: parquet, {place}", arrow_columns(Path(files[0])))


def postgres_tables(address: str, dsn_env: str, names: Sequence[str]) -> tuple[DraftTable, ...]:
    """Read the names, types, nullability and unique columns of PostgreSQL tables from its catalogue."""
    try:
        from dither.access.catalogue import read_catalogue
    except ModuleNotFoundError:
        raise Unsupported("PostgreSQL needs the extra 'postgres'; run: pip install 'dither[postgres]'") from None
    return tuple(
        DraftTable(
            valid_name(table.name.rpartition(".")[2].strip('"')),
            f"kind: postgres, dsn_env: {dsn_env}, table: {yaml_text(table.name)}",
            tuple(catalogue_column(column) for column in table.columns),
            table.unique if table.unique is not None and NAME.fullmatch(table.unique) else None,
        )
        for table in read_catalogue(address, names)
    )


def valid_name(text: str) -> str:
    """Turn a file's or table's name into a valid one.

    >>> valid_name("2024 sales")
    't2024_sales'
    """
    name = re.sub(r"\W", "_", text, flags=re.ASCII)[:60]
    return name if NAME.fullmatch(name) else f"t{name}"


def yaml_text(text: str) -> str:
    """Return a text for a YAML mapping, in quotes if it has characters that mean something there."""
    return text if re.fullmatch(r"[\w./-]+", text) else "'" + text.replace("'", "''") + "'"
