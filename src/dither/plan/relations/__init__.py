"""Relational operators: each states its domain, its stability and its SQL."""

from __future__ import annotations

from dither.plan.relations.bounding import LimitGroupsPerUnit, LimitRowsPerUnit, Sample
from dither.plan.relations.core import Relation
from dither.plan.relations.facts import window_range
from dither.plan.relations.filter import Filter
from dither.plan.relations.group_by import Distinct, GroupAggregate, GroupBy
from dither.plan.relations.joins import KeyJoin, PublicJoin, UnitJoin
from dither.plan.relations.mark_join import MarkJoin
from dither.plan.relations.project import Project, Union
from dither.plan.relations.scan import Scan
from dither.plan.stability import EstimatedLimit

# The only relations that a request can name. These wire names stay the same when a class is renamed.
BY_NAME: dict[str, type] = {
    "estimated_limit": EstimatedLimit,
    "scan": Scan,
    "filter": Filter,
    "project": Project,
    "union": Union,
    "distinct": Distinct,
    "public_join": PublicJoin,
    "unit_join": UnitJoin,
    "key_join": KeyJoin,
    "mark_join": MarkJoin,
    "group_aggregate": GroupAggregate,
    "group_by": GroupBy,
    "sample": Sample,
    "limit_rows_per_unit": LimitRowsPerUnit,
    "limit_groups_per_unit": LimitGroupsPerUnit,
}
