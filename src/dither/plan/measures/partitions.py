"""Counts per key for partition selection, with keys that come from the data."""

from __future__ import annotations

from dataclasses import dataclass

from dither.errors import Unsupported
from dither.loss import Sensitivity
from dither.plan.context import Context
from dither.plan.expressions.core import Expr, LiteralValue, domain_of
from dither.plan.measures.core import LARGEST_INT64, Axis, GroupKey, VectorQuery, require_row_bound, stability_of
from dither.plan.measures.grouped import GroupedMeasure, grouped_select, keyed_subquery, sums_sensitivity
from dither.plan.relations.core import Relation
from dither.plan.sql.builders import count_star
from dither.plan.sql.scope import Scope
from dither.plan.sql.statement import SqlStatement, saturate
from dither.schema import Identifier


@dataclass(frozen=True)
class PartitionCounts(GroupedMeasure):
    """Rows per key that occurs, for partition selection; the child is bounded by LimitGroupsPerUnit or GroupBy."""

    proof = "partition_counts.md"
    child: Relation
    keys: tuple[GroupKey, ...]

    def summands(self) -> tuple[Expr, ...]:
        return (LiteralValue(1),)

    def axes(self, ctx: Context) -> tuple[Axis, ...]:
        raise Unsupported(
            "the keys of this measure come from the data, so it has no axes; release them by partition selection"
        )

    def sensitivity(self, ctx: Context, unit: str) -> Sensitivity:
        unit_stability = stability_of(ctx, self.child, unit)
        self._check(ctx)
        keys, columns = tuple(key.value for key in self.keys), self.child.domain(ctx)
        return sums_sensitivity(unit_stability, unit, [1], require_row_bound(unit_stability, unit), keys, columns)

    def _check(self, ctx: Context) -> None:
        """Refuse listed values, identifiers, and the lack of keys."""
        scope = Scope(self.child.domain(ctx))
        if any(key.values is not None for key in self.keys):
            raise Unsupported("partition selection takes its keys from the data; do not list values for them")
        if not self.keys or any(isinstance(domain_of(key.value, scope), Identifier) for key in self.keys):
            raise Unsupported("partition selection needs at least one key, and identifiers cannot be keys")

    def vector_query(self, statement: SqlStatement) -> VectorQuery:
        self._check(statement.ctx)
        table = keyed_subquery(statement, self.child, self.keys, (), (LiteralValue(1),), ())
        body = grouped_select(statement, table, len(self.keys), [saturate(count_star(), LARGEST_INT64)])
        return VectorQuery(body, (), 1)
