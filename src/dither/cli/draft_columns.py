"""Draft declarations of columns: from Arrow types, from a database's catalogue, or from the form of CSV fields."""

from __future__ import annotations

import csv
import gzip
import re
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TextIO

import pyarrow as pa
import pyarrow.parquet

from dither.errors import InvalidParameter
from dither.schema.parser.scalars import NAME

if TYPE_CHECKING:
    from dither.access.catalogue import CatalogueColumn

SAMPLE_RECORDS = 1000  # of a CSV file, whose columns have no type
Form = Literal["integer", "decimal", "boolean", "date", "timestamp", "text", "unknown", "unreadable"]

DECLARATIONS: dict[Form, tuple[str, str]] = {
    "integer": (
        "{type: integer, min: , max: }",
        "DECIDE min and max; or make it an identifier, or a boolean if it is 0 or 1",
    ),
    "decimal": ("{type: decimal, min: , max: , step: }", "DECIDE min, max and step; or make it an integer"),
    "boolean": ("{type: boolean}", ""),
    "date": ("{type: date, min: , max: }", "DECIDE the first and the last day"),
    "timestamp": ("{type: timestamp, min: , max: , precision: second}", "DECIDE the first and the last day"),
    "text": (
        "{type: category, values: []}",
        "DECIDE all values; or values_from, or another type (identifier, date, ...)",
    ),
    "unknown": (
        "{type: }",
        "DECIDE the type: integer, decimal, category, boolean, date, timestamp or identifier (see above)",
    ),
}

MISSING = frozenset({"", "na", "n/a", "nan", "null", "none"})
_WHOLE = r"[+-]?(0|[1-9]\d{0,17})"
# As many decimals as are read, which are more than a double has.
_FLOAT = r"(\.\d{1,30})?(e[+-]?\d{1,3})?"
_DAY = r"\d{4}-\d{2}-\d{2}"
# The form of a field decides, never its size; a number with leading zeros is a code. The first that fits all counts.
FORMS: dict[Form, re.Pattern[str]] = {
    "boolean": re.compile(r"true|false|yes|no|t|f", re.IGNORECASE),
    "integer": re.compile(_WHOLE),
    "decimal": re.compile(_WHOLE + _FLOAT, re.IGNORECASE),
    "date": re.compile(_DAY),
    "timestamp": re.compile(rf"{_DAY}([ T]\d{{2}}:\d{{2}}(:\d{{2}}(\.\d+)?)?( ?(Z|[+-]\d{{2}}(:?\d{{2}})?))?)?"),
}

DELIMITERS = {",": '","', ";": '";"', "\t": '"\\t"', "|": '"|"'}  # with their form in YAML

CATALOGUE_FORMS: dict[str, Form] = {
    "int2": "integer", "int4": "integer", "int8": "integer", "float4": "decimal", "float8": "decimal",
    "numeric": "decimal", "bool": "boolean", "date": "date", "timestamp": "timestamp", "timestamptz": "timestamp",
    "text": "text", "varchar": "text", "bpchar": "text", "name": "text", "uuid": "text", "citext": "text",
    "enum": "text",
}  # fmt: skip


@dataclass(frozen=True)
class DraftColumn:
    """A column of a draft: its name, the form of its values, and remarks for the curator."""

    name: str
    form: Form
    nullable: bool = False
    remark: str = ""

    def text(self) -> str:
        """Return the declaration in YAML; one that cannot be read is commented out."""
        if not NAME.fullmatch(self.name):
            return f"# {printable(self.name)} cannot be described: rename it to letters, digits and _, a letter first"
        if self.form == "unreadable":
            return f"# {self.name}: {self.remark or 'values of this type'} cannot be read; convert the column to use it"
        declared, comment = DECLARATIONS[self.form]
        if self.nullable:
            declared = declared.removesuffix("}") + ", nullable: true}"
        notes = "; ".join(filter(None, (comment, self.remark)))
        return f"{self.name}: {declared}" + (f" # {notes}" if notes else "")


def printable(name: str) -> str:
    """Return a name as one printable line, shortened."""
    return ascii(name)[:80] if name.strip() else "a column without a name"


def arrow_columns(path: Path) -> tuple[DraftColumn, ...]:
    """Return the columns of a Parquet file, from its schema."""
    try:
        schema = pyarrow.parquet.read_schema(path)
    except FileNotFoundError:
        raise InvalidParameter(f"there is no file {path}") from None
    except (OSError, ValueError, pa.ArrowException):
        raise InvalidParameter(
            f"{path} cannot be read as Parquet; give Parquet or CSV files (.parquet, .csv, .tsv, .csv.gz),"
            " or PostgreSQL tables with --dsn-env"
        ) from None
    return tuple(DraftColumn(field.name, _arrow_form(field.type), remark=_arrow_remark(field.type)) for field in schema)


def _arrow_form(kind: pa.DataType) -> Form:
    """Return the form of an Arrow type's values."""
    types = pa.types
    if types.is_dictionary(kind):
        return _arrow_form(kind.value_type)
    checks: dict[Form, bool] = {
        "boolean": types.is_boolean(kind),
        "integer": types.is_integer(kind),
        "decimal": types.is_floating(kind) or types.is_decimal(kind),
        "date": types.is_date(kind),
        "timestamp": types.is_timestamp(kind),
        "text": types.is_string(kind) or types.is_large_string(kind) or types.is_null(kind),
    }
    return next((form for form, holds in checks.items() if holds), "unreadable")


def _arrow_remark(kind: pa.DataType) -> str:
    return f"values of type {kind}" if _arrow_form(kind) == "unreadable" else ""


def catalogue_column(column: CatalogueColumn) -> DraftColumn:
    """Return the draft of a column of a database, with what its catalogue says."""
    form = CATALOGUE_FORMS.get(column.type, "unreadable")
    remark = f"values of type {column.type}" if form == "unreadable" else ""
    if column.type == "enum":
        remark = "the labels of an enum type are part of the database's schema"
    return DraftColumn(column.name, form, column.nullable, remark)


def csv_delimiter(path: Path) -> str:
    """Return the character that separates the names in the first line of a CSV file."""
    try:
        with _open_text(path) as file:
            first = file.readline()
    except (OSError, EOFError, ValueError):
        return ","
    return max(DELIMITERS, key=first.count)


def csv_columns(path: Path, delimiter: str) -> tuple[DraftColumn, ...]:
    """Return the columns of a CSV file; types come from the form of the fields of its first records."""
    try:
        with _open_text(path) as file:
            reader = csv.reader(file, delimiter=delimiter)
            names = next(reader, [])
            sample = list(islice(reader, SAMPLE_RECORDS))
    except FileNotFoundError:
        raise InvalidParameter(f"there is no file {path}") from None
    except (OSError, EOFError, ValueError, csv.Error):
        raise InvalidParameter(f"{path} cannot be read as CSV in UTF-8; give Parquet or CSV files") from None
    return tuple(
        DraftColumn(name, form_of([record[place] for record in sample if place < len(record)]))
        for place, name in enumerate(names)
    )


def form_of(fields: list[str]) -> Form:
    """Return the form that all fields have; missing ones count for none.

    >>> form_of(["1", "", "2.5"]), form_of(["007"]), form_of(["2024-02-29T12:00:00Z"]), form_of([""])
    ('decimal', 'text', 'timestamp', 'unknown')
    """
    present = {field.strip() for field in fields if field.strip().lower() not in MISSING}
    if not present:
        return "unknown"
    return next((form for form, pattern in FORMS.items() if all(map(pattern.fullmatch, present))), "text")


def _open_text(path: Path) -> TextIO:
    """Open a text file, which may be compressed with gzip."""
    if path.suffix == ".gz":
        return gzip.open(path, "rt", newline="", encoding="utf-8-sig")
    return path.open(newline="", encoding="utf-8-sig")
