"""The fields of a description, in one table; the parser checks files against it and `json_schema` is built from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from dither.schema.model import SourceKind

FORMAT_VERSION = 1

Kind = Literal[
    "name", "text", "texts", "names", "boolean", "number", "moment", "version", "scalar", "names_by_name",
    "counts_by_name", "shape", "shapes", "shapes_by_name",
]  # fmt: skip


@dataclass(frozen=True)
class FieldSpec:
    """A field of a mapping: the kind of its value, a help text, its choices if any, and the shape of nested ones."""

    kind: Kind
    help: str
    required: bool = False
    choices: tuple[str, ...] = ()
    shape: str = ""


@dataclass(frozen=True)
class ObjectSpec:
    """A mapping: its fields, and the further fields of each variant, chosen by the value of `variant_field`."""

    subject: str
    fields: dict[str, FieldSpec]
    variant_field: str = ""
    variants: dict[str, dict[str, FieldSpec]] = field(default_factory=dict)

    def allowed_fields(self, variant: str = "") -> dict[str, FieldSpec]:
        """Return the fields that a variant of the mapping can have."""
        return self.fields | self.variants.get(variant, {})


_BOUND_HELP = "inclusive; chosen by the curator, never read from the data"
_PRECISIONS = ("day", "hour", "minute", "second", "millisecond", "microsecond")
_WINDOW_LENGTHS = ("day", "week", "month", "quarter", "year")

_ROW_CAP = FieldSpec(
    "counts_by_name", "table: the most rows of one unit that are ever read; rows beyond are dropped, by the unit alone"
)

_MOMENT_FIELDS = {
    "min": FieldSpec("moment", f"first instant, {_BOUND_HELP}", required=True),
    "max": FieldSpec("moment", f"last instant, {_BOUND_HELP}; a date alone means the end of that day", required=True),
}

SHAPES: dict[str, ObjectSpec] = {
    "dataset": ObjectSpec(
        "a dataset",
        {
            "version": FieldSpec("version", "the version of this format", required=True),
            "name": FieldSpec("name", "the dataset's name in queries", required=True),
            "description": FieldSpec("text", "a description for readers"),
            "population": FieldSpec("name", "datasets of one population share budgets; default: the name"),
            "data_version": FieldSpec(
                "text", "change it with the data; empties the cache of answers, resets no budget"
            ),
            "timezone": FieldSpec("text", "the time zone of timestamps without an offset; default: UTC"),
            "size_epsilon": FieldSpec(
                "number",
                "charged once, before the first question, for noisy sizes of the private tables; default: 0.01",
            ),
            "profile_epsilon": FieldSpec(
                "number", "charged once for each data_version, on first opening, for the profile; default: no profile"
            ),
            "tables": FieldSpec("shapes_by_name", "the tables", required=True, shape="table"),
            "units": FieldSpec("shapes_by_name", "the units of privacy", required=True, shape="unit"),
            "budgets": FieldSpec("shapes", "the caps on the privacy loss of each unit", required=True, shape="budget"),
            "policy": FieldSpec(
                "text", "one budget shared by everyone, or one per group", choices=("shared", "separate")
            ),
            "groups": FieldSpec("shapes", "analysts who share a budget", shape="group"),
        },
    ),
    "table": ObjectSpec(
        "a table",
        {
            "private": FieldSpec("boolean", "true if its records must be protected", required=True),
            "description": FieldSpec("text", "a description for readers"),
            "source": FieldSpec("shape", "the location of its records", required=True, shape="source"),
            "unique": FieldSpec("name", "a column with at most one row per value, enforced on reading"),
            "columns": FieldSpec(
                "shapes_by_name", "its columns; others of the source are never read", required=True, shape="column"
            ),
        },
    ),
    "source": ObjectSpec(
        "a source",
        {"kind": FieldSpec("text", "the engine or format", required=True, choices=get_args(SourceKind))},
        variant_field="kind",
        variants={
            "parquet": {"path": FieldSpec("text", "a file or pattern, relative to this description", required=True)},
            "csv": {
                "path": FieldSpec("text", "a file or pattern, relative to this description", required=True),
                "delimiter": FieldSpec("text", "the field separator; default: a comma"),
            },
            "duckdb": {
                "path": FieldSpec("text", "a database file, relative to this description", required=True),
                "table": FieldSpec("text", "a table or view of it", required=True),
            },
            "postgres": {
                "dsn_env": FieldSpec("text", "the environment variable with the connection string", required=True),
                "table": FieldSpec("text", "a table or view, with its schema if needed", required=True),
                "snapshot": FieldSpec("text", "a folder for what `dither prepare` copies, which is then read instead"),
            },
            "spark": {
                "path": FieldSpec("text", "a path that the cluster can read"),
                "format": FieldSpec("text", "the format of the files at path; default: parquet"),
                "table": FieldSpec("text", "a table of the session's catalogue, instead of a path"),
                "master": FieldSpec("text", "the address of a cluster; default: a local session"),
                "remote": FieldSpec("text", "a Spark Connect address, instead of a master"),
            },
        },
    ),
    "column": ObjectSpec(
        "a column",
        {
            "type": FieldSpec(
                "text",
                "the type of its values",
                required=True,
                choices=("integer", "decimal", "category", "boolean", "date", "timestamp", "identifier"),
            ),
            "description": FieldSpec("text", "a description for readers"),
            "nullable": FieldSpec("boolean", "true if values may be missing; default: false"),
            "default": FieldSpec("scalar", "replaces values that lie outside the domain and cannot be clamped"),
        },
        variant_field="type",
        variants={
            "integer": {
                "min": FieldSpec("number", f"least value, {_BOUND_HELP}", required=True),
                "max": FieldSpec("number", f"greatest value, {_BOUND_HELP}", required=True),
                "step": FieldSpec("number", "values are multiples of this step; default: 1"),
            },
            "decimal": {
                "min": FieldSpec("number", f"least value, {_BOUND_HELP}", required=True),
                "max": FieldSpec("number", f"greatest value, {_BOUND_HELP}", required=True),
                "step": FieldSpec("number", "values are multiples of this step, such as 0.01", required=True),
            },
            "category": {
                "values": FieldSpec("texts", "every possible value, whether or not it occurs in the data"),
                "values_from": FieldSpec("text", "table.column of a public table, instead of values"),
                "kind": FieldSpec(
                    "text", "the kind of values_from, if its column declares none", choices=("integer", "text")
                ),
            },
            "boolean": {},
            "date": _MOMENT_FIELDS,
            "timestamp": _MOMENT_FIELDS | {"precision": FieldSpec("text", "default: microsecond", choices=_PRECISIONS)},
            "identifier": {"kind": FieldSpec("text", "integer or text", required=True, choices=("integer", "text"))},
        },
    ),
    "unit": ObjectSpec(
        "a unit",
        {
            "kind": FieldSpec(
                "text",
                "all rows of a key, one row, or the rows of a key in a calendar window",
                required=True,
                choices=("user", "row", "window"),
            )
        },
        variant_field="kind",
        variants={
            "user": {
                "keys": FieldSpec("names_by_name", "table: key column, for each table that it covers", required=True),
                "max_rows": _ROW_CAP,
            },
            "row": {"tables": FieldSpec("names", "the tables whose rows are units", required=True)},
            "window": {
                "keys": FieldSpec("names_by_name", "table: key column, for each table that it covers", required=True),
                "times": FieldSpec("names_by_name", "table: the column that places a row in a window", required=True),
                "every": FieldSpec("text", "the length of a window", required=True, choices=_WINDOW_LENGTHS),
                "max_rows": _ROW_CAP,
            },
        },
    ),
    "budget": ObjectSpec(
        "a budget",
        {
            "unit": FieldSpec("name", "the unit of privacy that the budget protects", required=True),
            "kind": FieldSpec("text", "the privacy measure", required=True, choices=("pure", "zcdp", "renyi")),
        },
        variant_field="kind",
        variants={
            "pure": {"epsilon": FieldSpec("number", "the cap", required=True)},
            "zcdp": {
                "rho": FieldSpec("number", "the cap", required=True),
                "delta": FieldSpec("number", "for mechanisms that need one; 0 unless given"),
            },
            "renyi": {
                "order": FieldSpec("number", "the order, above 1; it cannot be changed later", required=True),
                "epsilon": FieldSpec("number", "the cap at that order", required=True),
                "delta": FieldSpec("number", "for mechanisms that need one; 0 unless given"),
            },
        },
    ),
    "group": ObjectSpec(
        "a group",
        {
            "name": FieldSpec("name", "the group's name", required=True),
            "analysts": FieldSpec("texts", "the accounts of its analysts"),
            "budgets": FieldSpec("shapes", "caps for the whole group", shape="budget"),
            "analyst_budgets": FieldSpec("shapes", "caps for each of its analysts", shape="budget"),
        },
    ),
}

NAME_PATTERN = "^[A-Za-z][A-Za-z0-9_]{0,62}$"

_SCHEMA_OF_KIND: dict[str, dict[str, Any]] = {
    "name": {"type": "string", "pattern": NAME_PATTERN},
    "text": {"type": ["string", "number"]},
    "texts": {"type": "array", "items": {"type": ["string", "number", "boolean"]}, "minItems": 1},
    "names": {"type": "array", "items": {"type": "string", "pattern": NAME_PATTERN}, "minItems": 1},
    "names_by_name": {"type": "object", "additionalProperties": {"type": "string"}, "minProperties": 1},
    "counts_by_name": {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1},
    "boolean": {"type": "boolean"},
    "number": {"type": ["number", "string"]},
    "moment": {"type": "string"},
    "version": {"const": FORMAT_VERSION},
    "scalar": {"type": ["string", "number", "boolean", "null"]},
}


def json_schema() -> dict[str, Any]:
    """Return the format as a JSON Schema for editors; `dither check` also checks what a schema cannot express."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A Dither dataset description, version 1",
        **_shape_schema(SHAPES["dataset"]),
        "$defs": {name: _shape_schema(shape) for name, shape in SHAPES.items() if name != "dataset"},
    }


def _shape_schema(shape: ObjectSpec) -> dict[str, Any]:
    """Return the JSON Schema of a mapping: one alternative for each variant."""
    if not shape.variant_field:
        return _object_schema(shape.fields)
    return {"oneOf": [_object_schema(_variant_fields(shape, variant)) for variant in shape.variants]}


def _variant_fields(shape: ObjectSpec, variant: str) -> dict[str, FieldSpec]:
    """Return the fields of a variant, with the variant as the only choice of its field."""
    chooser = shape.fields[shape.variant_field]
    return shape.allowed_fields(variant) | {
        shape.variant_field: FieldSpec("text", chooser.help, required=True, choices=(variant,))
    }


def _object_schema(fields: dict[str, FieldSpec]) -> dict[str, Any]:
    """Return the JSON Schema of an object with these fields."""
    return {
        "type": "object",
        "properties": {name: _field_schema(entry) for name, entry in fields.items()},
        "required": [name for name, entry in fields.items() if entry.required],
        "additionalProperties": False,
    }


def _field_schema(entry: FieldSpec) -> dict[str, Any]:
    """Return the JSON Schema of a field."""
    reference = {"$ref": f"#/$defs/{entry.shape}"}
    match entry.kind:
        case "shape":
            schema: dict[str, Any] = reference
        case "shapes":
            schema = {"type": "array", "items": reference}
        case "shapes_by_name":
            schema = {"type": "object", "additionalProperties": reference, "minProperties": 1}
        case _ if entry.choices:
            schema = {"enum": list(entry.choices)}
        case _:
            schema = dict(_SCHEMA_OF_KIND[entry.kind])
    return schema | {"description": entry.help}
