"""The public description of a dataset: its classes, and `load`, which reads it from a YAML file."""

from __future__ import annotations

from dither.schema.model import (
    Boolean,
    BudgetCap,
    Category,
    Column,
    Dataset,
    Domain,
    Every,
    Group,
    Identifier,
    Moment,
    Number,
    Precision,
    Reference,
    Scalar,
    Source,
    Table,
    Unit,
)
from dither.schema.parser import load

__all__ = [
    "Boolean",
    "BudgetCap",
    "Category",
    "Column",
    "Dataset",
    "Domain",
    "Every",
    "Group",
    "Identifier",
    "Moment",
    "Number",
    "Precision",
    "Reference",
    "Scalar",
    "Source",
    "Table",
    "Unit",
    "load",
]
