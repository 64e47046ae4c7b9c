"""The fields of a description, in one table: the loader checks against it and the JSON Schema is made from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

FORMAT_VERSION = 1

Kind = Literal[
    "name", "text", "texts", "names", "boolean", "number", "moment", "version", "scalar", "names_by_name", "shape",
    "shapes", "shapes_by_name",
]  # fmt: skip


@dataclass(frozen=True)
class FieldSpec:
    """One entry of a mapping: the kind of its value and, for people, what it means."""

    kind: Kind
    help: str
    required: bool = False
    choices: tuple[str, ...] = ()
    shape: str = ""


@dataclass(frozen=True)
class ObjectSpec:
    """A mapping: its fields, or by `by` the field whose value chooses further ones."""

    what: str
    fields: dict[str, FieldSpec]
    by: str = ""
    variants: dict[str, dict[str, FieldSpec]] = field(default_factory=dict)

    def allowed(self, variant: str = "") -> dict[str, FieldSpec]:
        """The fields that may stand here."""
        return self.fields | self.variants.get(variant, {})


_BOUND = "inclusive; chosen by the curator, never read from the data"
_PRECISIONS = ("day", "hour", "minute", "second", "millisecond", "microsecond")
_EVERY = ("day", "week", "month", "quarter", "year")

_MOMENT = {
    "min": FieldSpec("moment", f"first instant, {_BOUND}", required=True),
    "max": FieldSpec("moment", f"last instant, {_BOUND}; a date alone means the end of that day", required=True),
}

SHAPES: dict[str, ObjectSpec] = {
    "dataset": ObjectSpec(
        "a dataset",
        {
            "version": FieldSpec("version", "the version of this format", required=True),
            "name": FieldSpec("name", "the name by which analysts ask", required=True),
            "description": FieldSpec("text", "for people"),
            "population": FieldSpec("name", "datasets of one population share their budgets; the name unless given"),
            "data_version": FieldSpec(
                "text", "changed when new data come; empties the cache of answers, never a budget"
            ),
            "timezone": FieldSpec("text", "where a timestamp without offset belongs; UTC unless given"),
            "size_epsilon": FieldSpec("number", "spent once, on the private size; 0.01 unless given"),
            "tables": FieldSpec("shapes_by_name", "the tables", required=True, shape="table"),
            "units": FieldSpec("shapes_by_name", "what neighbours differ by", required=True, shape="unit"),
            "budgets": FieldSpec("shapes", "the caps on the loss of each unit", required=True, shape="budget"),
            "policy": FieldSpec(
                "text", "one budget whose answers all share, or one per group", choices=("shared", "separate")
            ),
            "groups": FieldSpec("shapes", "analysts who share a budget", shape="group"),
        },
    ),
    "table": ObjectSpec(
        "a table",
        {
            "private": FieldSpec("boolean", "whether its records are secret", required=True),
            "description": FieldSpec("text", "for people"),
            "source": FieldSpec("shape", "where its records are", required=True, shape="source"),
            "unique": FieldSpec("name", "a column with at most one row per value, enforced when read"),
            "columns": FieldSpec(
                "shapes_by_name", "its columns; others in the source are never read", required=True, shape="column"
            ),
        },
    ),
    "source": ObjectSpec(
        "a source",
        {
            "kind": FieldSpec(
                "text", "the engine or format", required=True, choices=("parquet", "csv", "duckdb", "postgres", "spark")
            )
        },
        by="kind",
        variants={
            "parquet": {"path": FieldSpec("text", "a file or pattern, relative to this description", required=True)},
            "csv": {
                "path": FieldSpec("text", "a file or pattern, relative to this description", required=True),
                "delimiter": FieldSpec("text", "a comma unless given"),
            },
            "duckdb": {
                "path": FieldSpec("text", "a database file, relative to this description", required=True),
                "table": FieldSpec("text", "a table or view of it", required=True),
            },
            "postgres": {
                "dsn_env": FieldSpec("text", "the environment variable that holds the address", required=True),
                "table": FieldSpec("text", "a table or view, with its schema if need be", required=True),
            },
            "spark": {
                "path": FieldSpec("text", "a path that the cluster can read"),
                "format": FieldSpec("text", "of the path; parquet unless given"),
                "table": FieldSpec("text", "a table of the session's catalogue, instead of a path"),
                "master": FieldSpec("text", "a cluster's address; a local session unless given"),
                "remote": FieldSpec("text", "a Spark Connect address, instead of a master"),
            },
        },
    ),
    "column": ObjectSpec(
        "a column",
        {
            "type": FieldSpec(
                "text",
                "what its values are",
                required=True,
                choices=("integer", "decimal", "category", "boolean", "date", "timestamp", "identifier"),
            ),
            "description": FieldSpec("text", "for people"),
            "nullable": FieldSpec("boolean", "whether a value may be missing; false unless given"),
            "default": FieldSpec("scalar", "stands in for a value that lies outside and cannot be clamped"),
        },
        by="type",
        variants={
            "integer": {
                "min": FieldSpec("number", f"least value, {_BOUND}", required=True),
                "max": FieldSpec("number", f"greatest value, {_BOUND}", required=True),
                "step": FieldSpec("number", "the lattice that values lie on; 1 unless given"),
            },
            "decimal": {
                "min": FieldSpec("number", f"least value, {_BOUND}", required=True),
                "max": FieldSpec("number", f"greatest value, {_BOUND}", required=True),
                "step": FieldSpec("number", "the lattice that values lie on, such as 0.01", required=True),
            },
            "category": {
                "values": FieldSpec("texts", "every value, present in the data or not"),
                "values_from": FieldSpec("text", "table.column of a public table, instead of values"),
                "kind": FieldSpec(
                    "text", "of the values in values_from, where that column does not say", choices=("integer", "text")
                ),
            },
            "boolean": {},
            "date": _MOMENT,
            "timestamp": _MOMENT | {"precision": FieldSpec("text", "microsecond unless given", choices=_PRECISIONS)},
            "identifier": {"kind": FieldSpec("text", "integer or text", required=True, choices=("integer", "text"))},
        },
    ),
    "unit": ObjectSpec(
        "a unit",
        {
            "kind": FieldSpec(
                "text",
                "all rows of a key, one row, or a key's rows in a calendar window",
                required=True,
                choices=("user", "row", "window"),
            )
        },
        by="kind",
        variants={
            "user": {
                "keys": FieldSpec("names_by_name", "table: key column, for each table that it covers", required=True)
            },
            "row": {"tables": FieldSpec("names", "the tables whose rows are units", required=True)},
            "window": {
                "keys": FieldSpec("names_by_name", "table: key column, for each table that it covers", required=True),
                "times": FieldSpec("names_by_name", "table: the column that places a row in a window", required=True),
                "every": FieldSpec("text", "the length of a window", required=True, choices=_EVERY),
            },
        },
    ),
    "budget": ObjectSpec(
        "a budget",
        {
            "unit": FieldSpec("name", "the unit that it protects", required=True),
            "kind": FieldSpec("text", "how losses add up", required=True, choices=("pure", "zcdp", "renyi")),
        },
        by="kind",
        variants={
            "pure": {"epsilon": FieldSpec("number", "the cap", required=True)},
            "zcdp": {
                "rho": FieldSpec("number", "the cap", required=True),
                "delta": FieldSpec("number", "for mechanisms that need one; 0 unless given"),
            },
            "renyi": {
                "order": FieldSpec("number", "the order, above 1, fixed for good", required=True),
                "epsilon": FieldSpec("number", "the cap at that order", required=True),
                "delta": FieldSpec("number", "for mechanisms that need one; 0 unless given"),
            },
        },
    ),
    "group": ObjectSpec(
        "a group",
        {
            "name": FieldSpec("name", "the group's name", required=True),
            "analysts": FieldSpec("texts", "its accounts"),
            "budgets": FieldSpec("shapes", "caps of the whole group", shape="budget"),
            "analyst_budgets": FieldSpec("shapes", "caps of each analyst in it", shape="budget"),
        },
    ),
}

NAME_PATTERN = "^[A-Za-z][A-Za-z0-9_]{0,62}$"

_PLAIN: dict[str, dict[str, Any]] = {
    "name": {"type": "string", "pattern": NAME_PATTERN},
    "text": {"type": ["string", "number"]},
    "texts": {"type": "array", "items": {"type": ["string", "number", "boolean"]}, "minItems": 1},
    "names": {"type": "array", "items": {"type": "string", "pattern": NAME_PATTERN}, "minItems": 1},
    "names_by_name": {"type": "object", "additionalProperties": {"type": "string"}, "minProperties": 1},
    "boolean": {"type": "boolean"},
    "number": {"type": ["number", "string"]},
    "moment": {"type": "string"},
    "version": {"const": FORMAT_VERSION},
    "scalar": {"type": ["string", "number", "boolean", "null"]},
}


def json_schema() -> dict[str, Any]:
    """The format as a JSON Schema, for editors; `dither check` says more."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A Dither dataset description, version 1",
        **_shape_schema(SHAPES["dataset"]),
        "$defs": {name: _shape_schema(shape) for name, shape in SHAPES.items() if name != "dataset"},
    }


def _shape_schema(shape: ObjectSpec) -> dict[str, Any]:
    if not shape.by:
        return _object(shape.fields)
    return {"oneOf": [_object(_fixed(shape, variant)) for variant in shape.variants]}


def _fixed(shape: ObjectSpec, variant: str) -> dict[str, FieldSpec]:
    chooser = shape.fields[shape.by]
    return shape.allowed(variant) | {shape.by: FieldSpec("text", chooser.help, required=True, choices=(variant,))}


def _object(fields: dict[str, FieldSpec]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: _field_schema(entry) for name, entry in fields.items()},
        "required": [name for name, entry in fields.items() if entry.required],
        "additionalProperties": False,
    }


def _field_schema(entry: FieldSpec) -> dict[str, Any]:
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
            schema = dict(_PLAIN[entry.kind])
    return schema | {"description": entry.help}
