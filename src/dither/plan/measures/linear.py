"""Linear measures: integer combinations of another measure's cells."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from dither.errors import InvalidParameter, InvalidPlan, Unsupported
from dither.loss import Sensitivity
from dither.plan.context import Context
from dither.plan.measures.core import LARGEST_INT64, Axis, Measure, Vector, VectorQuery
from dither.plan.sql.statement import SqlStatement


@dataclass(frozen=True)
class LinearQuery(Measure):
    """Integer combinations of another measure's cells; each row of `weights` gives one cell."""

    proof = "linear_query.md"
    child: Measure
    weights: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        widths = {len(row) for row in self.weights}
        if len(widths) != 1 or any(abs(weight) > 1 << 31 for row in self.weights for weight in row):
            raise InvalidParameter(
                "the weights of a linear query must be rows of equal length, of integers from -2^31 to 2^31"
            )

    def axes(self, ctx: Context) -> tuple[Axis, ...]:
        if len(self.weights[0]) != self.child.size(ctx):
            raise InvalidPlan(
                f"the linear query has weights for {len(self.weights[0])} cells, its measure has {self.child.size(ctx)}"
            )
        return (Axis("row", tuple(range(len(self.weights)))),)

    def steps(self, ctx: Context) -> tuple[Fraction, ...]:
        steps = set(self.child.steps(ctx))
        if len(steps) != 1:
            raise Unsupported("a linear query needs a measure whose cells share one lattice step")
        return (steps.pop(),)

    def sensitivity(self, ctx: Context, unit: str) -> Sensitivity:
        self.axes(ctx)
        child = self.child.sensitivity(ctx, unit)
        columns = list(zip(*self.weights, strict=True))
        column_l1 = max(sum(map(abs, column)) for column in columns)
        column_l2_squared = max(sum(weight * weight for weight in column) for column in columns)
        row_l1 = max(sum(map(abs, row)) for row in self.weights)
        largest = max(abs(weight) for row in self.weights for weight in row)
        reachable_cells = child.l0 * max(sum(weight != 0 for weight in column) for column in columns)
        return Sensitivity(
            min(Fraction(sum(any(row) for row in self.weights)), reachable_cells),
            min(child.l1 * largest, child.linf * row_l1),
            child.l1 * column_l1,
            min(child.l2_squared * column_l1 * row_l1, child.l1 * child.l1 * column_l2_squared),
        )

    def vector_query(self, statement: SqlStatement) -> VectorQuery:
        self.axes(statement.ctx)
        return self.child.vector_query(statement)

    def finish(self, cells: Vector) -> Vector:
        return self.apply(self.child.finish(cells))

    def apply(self, vector: Vector) -> Vector:
        """Compute the combinations of the child's own vector."""
        return clamp_to_int64(np.array(self.weights, dtype=object) @ vector.astype(object))


def clamp_to_int64(values: NDArray[np.object_]) -> Vector:
    """Clamp integers of any size to 64 bits."""
    return np.array([max(-LARGEST_INT64, min(LARGEST_INT64, int(value))) for value in values], dtype=np.int64)
