"""Draft a description of data files from their column names and types; the curator fills in every bound."""

from __future__ import annotations

import csv
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet

from dither.errors import InvalidParameter
from dither.schema.parser.scalars import NAME

HEADER = """\
# A draft. Fill in each empty entry: these are decisions that only a curator can make.
# Bounds and values are left empty on purpose: everything in this file becomes public, and a bound taken from the
# records (the greatest salary, the diagnoses that occur) would reveal something about the people in them.
# Write what anyone could know without seeing the data: ages 0 to 120, all countries, the year of the survey.
# Then: dither check {name}.yml
version: 1
name: {name}
"""

UNITS = """\
units:
  user: # who is protected: all rows that share a key, across tables
    kind: user
    keys: # each private table, and its column that names the person
{keys}
budgets:
  - {{unit: user, kind: pure, epsilon: }} # the total privacy loss of all answers together
"""


def draft(paths: list[Path]) -> str:
    """Return the YAML draft of a description of Parquet or CSV files; it reads names and types, never a value."""
    head = HEADER.format(name=_name(paths[0].stem))
    units = UNITS.format(keys="\n".join(f"      {_name(path.stem)}: " for path in paths))
    return f"{head}tables:\n{''.join(_table(path) for path in paths)}{units}"


def _table(path: Path) -> str:
    """Return the YAML draft of a table."""
    kind = "csv" if path.suffix.lower() in (".csv", ".tsv") else "parquet"
    columns = "".join(f"      {_name(name)}: {text}\n" for name, text in _columns(path, kind))
    return (
        f"  {_name(path.stem)}:\n    private: true\n    source: {{kind: {kind}, path: {path}}}\n    columns:\n{columns}"
    )


def _columns(path: Path, kind: str) -> list[tuple[str, str]]:
    """Return column names with draft declarations; CSV columns get no type, since it would come from their values."""
    try:
        if kind == "csv":
            with path.open(newline="", encoding="utf-8-sig") as file:
                return [(name, "{type: }") for name in next(csv.reader(file), [])]
        return [(field.name, _column(field.type)) for field in pyarrow.parquet.read_schema(path)]
    except (OSError, ValueError, csv.Error, pa.ArrowException):
        raise InvalidParameter(f"{path} cannot be read as {kind}; give a Parquet or CSV file") from None


def _column(kind: pa.DataType) -> str:
    """Return the draft declaration of a column of an Arrow type."""
    if pa.types.is_boolean(kind):
        return "{type: boolean}"
    if pa.types.is_integer(kind):
        return "{type: integer, min: , max: } # or {type: identifier, kind: integer}"
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "{type: decimal, min: , max: , step: }"
    if pa.types.is_date(kind):
        return "{type: date, min: , max: }"
    if pa.types.is_timestamp(kind):
        return "{type: timestamp, min: , max: , precision: second}"
    return "{type: category, values: []} # or {type: identifier, kind: text}"


def _name(text: str) -> str:
    """Return a valid name unchanged; quote any other text, so that `dither check` asks for another name."""
    return text if NAME.fullmatch(text) else repr(text)
