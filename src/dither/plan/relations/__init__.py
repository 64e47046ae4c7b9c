"""Operators on tables: each states its domain, its stability and its SQL."""

from __future__ import annotations

from dither.plan.relations.bounding import BoundGroups, BoundRows, Sample
from dither.plan.relations.core import Relation
from dither.plan.relations.facts import windows_touched
from dither.plan.relations.filter import Where
from dither.plan.relations.group_by import Aggregate, Distinct, GroupBy
from dither.plan.relations.joins import KeyJoin, PublicJoin, UnitJoin
from dither.plan.relations.project import Project, Union
from dither.plan.relations.scan import Scan
from dither.plan.stability import Auto

BY_NAME: dict[str, type] = {
    node.__name__: node
    for node in (
        Auto, Scan, Where, Project, Union, Distinct, PublicJoin, UnitJoin, KeyJoin, Aggregate, GroupBy, Sample,
        BoundRows, BoundGroups,
    )
}  # fmt: skip
