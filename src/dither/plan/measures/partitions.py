"""Part of the former access.measure."""

from __future__ import annotations

from dataclasses import dataclass

from dither.errors import Unsupported
from dither.loss import Sensitivity
from dither.plan.context import Context
from dither.plan.expressions.core import Constant, Expr, typed
from dither.plan.measures.core import SATURATED, Axis, Key, Plan, bounded, influence_of
from dither.plan.measures.grouped import _Grouped, collected, keyed, sums_sensitivity
from dither.plan.relations.core import Relation
from dither.plan.sql.builders import (
    rows_count,
)
from dither.plan.sql.scope import Scope
from dither.plan.sql.statement import Statement, saturated
from dither.schema import Identifier


@dataclass(frozen=True)
class PartitionCounts(_Grouped):
    """Rows per key that occurs, keys not declared: for partition selection; child bounded by BoundGroups or GroupBy."""

    proof = "partition_counts.md"
    child: Relation
    keys: tuple[Key, ...]

    def summed(self) -> tuple[Expr, ...]:
        return (Constant(1),)

    def axes(self, ctx: Context) -> tuple[Axis, ...]:
        raise Unsupported("the keys of this measure are not declared: they leave through partition selection only")

    def sensitivity(self, ctx: Context, unit: str) -> Sensitivity:
        found = influence_of(ctx, self.child, unit)
        self._check(ctx)
        keys, columns = tuple(key.value for key in self.keys), self.child.domain(ctx)
        return sums_sensitivity(found, unit, [1], bounded(found, unit), keys, columns)

    def _check(self, ctx: Context) -> None:
        scope = Scope(self.child.domain(ctx))
        if any(key.values is not None for key in self.keys):
            raise Unsupported("partition selection finds its keys in the data: list no values for them")
        if not self.keys or any(isinstance(typed(key.value, scope), Identifier) for key in self.keys):
            raise Unsupported("partition selection needs keys, and an identifier cannot be one")

    def plan(self, statement: Statement) -> Plan:
        self._check(statement.ctx)
        table = keyed(statement, self.child, self.keys, (), (Constant(1),), ())
        body = collected(statement, table, len(self.keys), [saturated(rows_count(), SATURATED)])
        return Plan(body, (), 1)
