"""Part of the former access.measure."""

from __future__ import annotations

from dataclasses import dataclass

from dither.errors import Unsupported
from dither.loss import Sensitivity
from dither.plan.context import Context
from dither.plan.expressions.core import Expr, LiteralValue, domain_of
from dither.plan.measures.core import SATURATED, Axis, GroupKey, VectorQuery, bounded_sensitivity, stability_of
from dither.plan.measures.grouped import GroupedMeasure, grouped_select, sums_sensitivity, with_keys
from dither.plan.relations.core import Relation
from dither.plan.sql.builders import rows_count
from dither.plan.sql.scope import Scope
from dither.plan.sql.statement import SqlStatement, saturate
from dither.schema import Identifier


@dataclass(frozen=True)
class PartitionCounts(GroupedMeasure):
    """Rows per key that occurs, keys not declared: for partition selection; child bounded by BoundGroups or GroupBy."""

    proof = "partition_counts.md"
    child: Relation
    keys: tuple[GroupKey, ...]

    def summed(self) -> tuple[Expr, ...]:
        return (LiteralValue(1),)

    def axes(self, ctx: Context) -> tuple[Axis, ...]:
        raise Unsupported("the keys of this measure are not declared: they leave through partition selection only")

    def sensitivity(self, ctx: Context, unit: str) -> Sensitivity:
        found = stability_of(ctx, self.child, unit)
        self._check(ctx)
        keys, columns = tuple(key.value for key in self.keys), self.child.domain(ctx)
        return sums_sensitivity(found, unit, [1], bounded_sensitivity(found, unit), keys, columns)

    def _check(self, ctx: Context) -> None:
        scope = Scope(self.child.domain(ctx))
        if any(key.values is not None for key in self.keys):
            raise Unsupported("partition selection finds its keys in the data: list no values for them")
        if not self.keys or any(isinstance(domain_of(key.value, scope), Identifier) for key in self.keys):
            raise Unsupported("partition selection needs keys, and an identifier cannot be one")

    def plan(self, statement: SqlStatement) -> VectorQuery:
        self._check(statement.ctx)
        table = with_keys(statement, self.child, self.keys, (), (LiteralValue(1),), ())
        body = grouped_select(statement, table, len(self.keys), [saturate(rows_count(), SATURATED)])
        return VectorQuery(body, (), 1)
