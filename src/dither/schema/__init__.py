"""What is public about a dataset: its nouns, and the file that states them."""

from __future__ import annotations

from dither.schema.load import load
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
