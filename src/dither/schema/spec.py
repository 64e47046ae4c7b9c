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
class Field:
    """One entry of a mapping: the kind of its value and, for people, what it means."""

    kind: Kind
    help: str
    required: bool = False
    choices: tuple[str, ...] = ()
    shape: str = ""


@dataclass(frozen=True)
class Shape:
    """A mapping: its fields, or by `by` the field whose value chooses further ones."""

    what: str
    fields: dict[str, Field]
    by: str = ""
    variants: dict[str, dict[str, Field]] = field(default_factory=dict)

    def allowed(self, variant: str = "") -> dict[str, Field]:
        """The fields that may stand here."""
        return self.fields | self.variants.get(variant, {})


_BOUND = "inclusive; chosen by the curator, never read from the data"
_PRECISIONS = ("day", "hour", "minute", "second", "millisecond", "microsecond")
_EVERY = ("day", "week", "month", "quarter", "year")

_MOMENT = {
    "min": Field("moment", f"first instant, {_BOUND}", required=True),
    "max": Field("moment", f"last instant, {_BOUND}; a date alone means the end of that day", required=True),
}

SHAPES: dict[str, Shape] = {
    "dataset": Shape(
        "a dataset",
        {
            "version": Field("version", "the version of this format", required=True),
            "name": Field("name", "the name by which analysts ask", required=True),
            "description": Field("text", "for people"),
            "population": Field("name", "datasets of one population share their budgets; the name unless given"),
            "data_version": Field("text", "changed when new data come; empties the cache of answers, never a budget"),
            "timezone": Field("text", "where a timestamp without offset belongs; UTC unless given"),
            "size_epsilon": Field("number", "spent once, on the private size; 0.01 unless given"),
            "tables": Field("shapes_by_name", "the tables", required=True, shape="table"),
            "units": Field("shapes_by_name", "what neighbours differ by", required=True, shape="unit"),
            "budgets": Field("shapes", "the caps on the loss of each unit", required=True, shape="budget"),
            "policy": Field(
                "text", "one budget whose answers all share, or one per group", choices=("shared", "separate")
            ),
            "groups": Field("shapes", "analysts who share a budget", shape="group"),
        },
    ),
    "table": Shape(
        "a table",
        {
            "private": Field("boolean", "whether its records are secret", required=True),
            "description": Field("text", "for people"),
            "source": Field("shape", "where its records are", required=True, shape="source"),
            "unique": Field("name", "a column with at most one row per value, enforced when read"),
            "columns": Field(
                "shapes_by_name", "its columns; others in the source are never read", required=True, shape="column"
            ),
        },
    ),
    "source": Shape(
        "a source",
        {
            "kind": Field(
                "text", "the engine or format", required=True, choices=("parquet", "csv", "duckdb", "postgres", "spark")
            )
        },
        by="kind",
        variants={
            "parquet": {"path": Field("text", "a file or pattern, relative to this description", required=True)},
            "csv": {
                "path": Field("text", "a file or pattern, relative to this description", required=True),
                "delimiter": Field("text", "a comma unless given"),
            },
            "duckdb": {
                "path": Field("text", "a database file, relative to this description", required=True),
                "table": Field("text", "a table or view of it", required=True),
            },
            "postgres": {
                "dsn_env": Field("text", "the environment variable that holds the address", required=True),
                "table": Field("text", "a table or view, with its schema if need be", required=True),
            },
            "spark": {
                "path": Field("text", "a path that the cluster can read"),
                "format": Field("text", "of the path; parquet unless given"),
                "table": Field("text", "a table of the session's catalogue, instead of a path"),
                "master": Field("text", "a cluster's address; a local session unless given"),
                "remote": Field("text", "a Spark Connect address, instead of a master"),
            },
        },
    ),
    "column": Shape(
        "a column",
        {
            "type": Field(
                "text",
                "what its values are",
                required=True,
                choices=("integer", "decimal", "category", "boolean", "date", "timestamp", "identifier"),
            ),
            "description": Field("text", "for people"),
            "nullable": Field("boolean", "whether a value may be missing; false unless given"),
            "default": Field("scalar", "stands in for a value that lies outside and cannot be clamped"),
        },
        by="type",
        variants={
            "integer": {
                "min": Field("number", f"least value, {_BOUND}", required=True),
                "max": Field("number", f"greatest value, {_BOUND}", required=True),
                "step": Field("number", "the lattice that values lie on; 1 unless given"),
            },
            "decimal": {
                "min": Field("number", f"least value, {_BOUND}", required=True),
                "max": Field("number", f"greatest value, {_BOUND}", required=True),
                "step": Field("number", "the lattice that values lie on, such as 0.01", required=True),
            },
            "category": {
                "values": Field("texts", "every value, present in the data or not"),
                "values_from": Field("text", "table.column of a public table, instead of values"),
                "kind": Field(
                    "text", "of the values in values_from, where that column does not say", choices=("integer", "text")
                ),
            },
            "boolean": {},
            "date": _MOMENT,
            "timestamp": _MOMENT | {"precision": Field("text", "microsecond unless given", choices=_PRECISIONS)},
            "identifier": {"kind": Field("text", "integer or text", required=True, choices=("integer", "text"))},
        },
    ),
    "unit": Shape(
        "a unit",
        {
            "kind": Field(
                "text",
                "all rows of a key, one row, or a key's rows in a calendar window",
                required=True,
                choices=("user", "row", "window"),
            )
        },
        by="kind",
        variants={
            "user": {"keys": Field("names_by_name", "table: key column, for each table that it covers", required=True)},
            "row": {"tables": Field("names", "the tables whose rows are units", required=True)},
            "window": {
                "keys": Field("names_by_name", "table: key column, for each table that it covers", required=True),
                "times": Field("names_by_name", "table: the column that places a row in a window", required=True),
                "every": Field("text", "the length of a window", required=True, choices=_EVERY),
            },
        },
    ),
    "budget": Shape(
        "a budget",
        {
            "unit": Field("name", "the unit that it protects", required=True),
            "kind": Field("text", "how losses add up", required=True, choices=("pure", "zcdp", "renyi")),
        },
        by="kind",
        variants={
            "pure": {"epsilon": Field("number", "the cap", required=True)},
            "zcdp": {
                "rho": Field("number", "the cap", required=True),
                "delta": Field("number", "for mechanisms that need one; 0 unless given"),
            },
            "renyi": {
                "order": Field("number", "the order, above 1, fixed for good", required=True),
                "epsilon": Field("number", "the cap at that order", required=True),
                "delta": Field("number", "for mechanisms that need one; 0 unless given"),
            },
        },
    ),
    "group": Shape(
        "a group",
        {
            "name": Field("name", "the group's name", required=True),
            "analysts": Field("texts", "its accounts"),
            "budgets": Field("shapes", "caps of the whole group", shape="budget"),
            "analyst_budgets": Field("shapes", "caps of each analyst in it", shape="budget"),
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


def _shape_schema(shape: Shape) -> dict[str, Any]:
    if not shape.by:
        return _object(shape.fields)
    return {"oneOf": [_object(_fixed(shape, variant)) for variant in shape.variants]}


def _fixed(shape: Shape, variant: str) -> dict[str, Field]:
    chooser = shape.fields[shape.by]
    return shape.allowed(variant) | {shape.by: Field("text", chooser.help, required=True, choices=(variant,))}


def _object(fields: dict[str, Field]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: _field_schema(entry) for name, entry in fields.items()},
        "required": [name for name, entry in fields.items() if entry.required],
        "additionalProperties": False,
    }


def _field_schema(entry: Field) -> dict[str, Any]:
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
