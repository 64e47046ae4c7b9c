"""Operators on tables: each states its domain, its stability and its SQL."""

from __future__ import annotations

from dither.plan.relations.bounding import BoundGroups, BoundRows, Sample
from dither.plan.relations.core import MOST_REMEMBERED, Relation, handed_on, needs_unit, passed, remembered
from dither.plan.relations.facts import needs_order, windows_touched
from dither.plan.relations.filter import FLIPPED, Where
from dither.plan.relations.group_by import MOST_SUM, Aggregate, Distinct, GroupBy, grouped
from dither.plan.relations.joins import (
    KeyJoin,
    PublicJoin,
    UnitJoin,
    check_on,
    join_columns,
    join_hidden,
    join_pairs,
    join_trials,
    joined,
)
from dither.plan.relations.project import Project, Union, computed_with, distinct_names, reads
from dither.plan.relations.scan import Scan
from dither.plan.stability import Auto

BY_NAME: dict[str, type] = {
    node.__name__: node
    for node in (
        Auto, Scan, Where, Project, Union, Distinct, PublicJoin, UnitJoin, KeyJoin, Aggregate, GroupBy, Sample,
        BoundRows, BoundGroups,
    )
}  # fmt: skip

__all__ = [
    "BY_NAME",
    "FLIPPED",
    "MOST_REMEMBERED",
    "MOST_SUM",
    "Aggregate",
    "BoundGroups",
    "BoundRows",
    "Distinct",
    "GroupBy",
    "KeyJoin",
    "Project",
    "PublicJoin",
    "Relation",
    "Sample",
    "Scan",
    "Union",
    "UnitJoin",
    "Where",
    "check_on",
    "computed_with",
    "distinct_names",
    "grouped",
    "handed_on",
    "join_columns",
    "join_hidden",
    "join_pairs",
    "join_trials",
    "joined",
    "needs_order",
    "needs_unit",
    "passed",
    "reads",
    "remembered",
    "windows_touched",
]
