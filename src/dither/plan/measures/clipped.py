"""Part of the former access.measure."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import isqrt
from typing import Literal

from sqlglot import exp

from dither.loss import Sensitivity
from dither.plan.context import Context
from dither.plan.expressions.core import Expr
from dither.plan.measures.core import (
    MOST_PER_UNIT,
    NO_CHANGE,
    SATURATED,
    Axis,
    GroupKey,
    Measure,
    VectorQuery,
    bounded_sensitivity,
    stability_of,
)
from dither.plan.measures.grouped import declared_keys, grouped_select, with_keys
from dither.plan.measures.sums import SumVector
from dither.plan.relations.core import Relation, require_unit
from dither.plan.sql.builders import Sql, add, add_all, binary, case, cast, detached, literal, select, times
from dither.plan.sql.statement import SqlStatement, column_ref, saturate, with_alias
from dither.plan.stability import RowLimit, Stability, check_limit, known_limit


@dataclass(frozen=True)
class ClippedSums(Measure):
    """Sums per key where each unit's whole vector is first scaled into an L1 or L2 ball of radius `bound` (steps).

    Integer division towards zero, so the norm is at most `bound` exactly, however many rows the unit has. A unit's sum
    in one cell is held at 2^31 before that.
    """

    proof = "clipped.md"
    child: Relation
    unit: str
    values: tuple[Expr, ...]
    bound: RowLimit
    norm: Literal["l1", "l2"] = "l2"
    keys: tuple[GroupKey, ...] = ()

    def __post_init__(self) -> None:
        check_limit(self.bound, "a clipping bound")

    def _open(self) -> SumVector:
        return SumVector(self.child, self.values, self.keys)

    def axes(self, ctx: Context) -> tuple[Axis, ...]:
        require_unit(ctx, self.child, self.unit, "clipping")
        return self._open().axes(ctx)

    def steps(self, ctx: Context) -> tuple[Fraction, ...]:
        return self._open().steps(ctx)

    def sensitivity(self, ctx: Context, unit: str) -> Sensitivity:
        found, radius, cells = stability_of(ctx, self.child, unit), known_limit(self.bound), self.size(ctx)
        require_unit(ctx, self.child, self.unit, "clipping")
        if found.max_rows == 0:
            return NO_CHANGE
        if unit == self.unit:
            return self._smaller(self._ball(radius, 1, cells), ctx, found, unit)
        if ctx.coarser(unit, self.unit) and found.tracks_unit:
            return self._ball(radius, ctx.windows(self.unit), cells)
        if ctx.coarser(self.unit, unit):
            return self._ball(radius, 2, cells)
        return self._ball(radius, 2 * bounded_sensitivity(found, unit), cells)

    def _ball(self, radius: int, many: int, cells: int) -> Sensitivity:
        """The sum of so many integer vectors of the ball."""
        squares = (many * radius) ** 2
        if self.norm == "l1":
            norms = (min(cells, many * radius), many * radius, many * radius, squares)
        else:
            one = min(isqrt(cells * squares), many * radius * radius)
            norms = (min(cells, many * radius * radius), many * radius, one, squares)
        return Sensitivity(*map(Fraction, norms))

    def _smaller(self, ball: Sensitivity, ctx: Context, found: Stability, unit: str) -> Sensitivity:
        """Clipping never lengthens a vector: few small rows may stay below the radius anyway."""
        if found.max_rows is None:
            return ball
        plain_sums = self._open().sensitivity(ctx, unit)
        return Sensitivity(
            min(ball.l0, plain_sums.l0),
            min(ball.linf, plain_sums.linf),
            min(ball.l1, plain_sums.l1),
            min(ball.l2_squared, plain_sums.l2_squared),
        )

    def plan(self, statement: SqlStatement) -> VectorQuery:
        scope, hidden = statement.scope(self.child), [*statement.unit_columns(self.unit), *statement.trials()]
        held = declared_keys(statement.ctx, self.keys, self.axes(statement.ctx), scope)
        table = with_keys(statement, self.child, self.keys, held, self.values, statement.unit_columns(self.unit))
        table = self._per_unit(statement, table, hidden)
        table = self._with_norms(statement, table, hidden)
        table = self._scaled(statement, table)
        totals = [saturate(statement.dialect.total(column_ref(f"v{i}")), SATURATED) for i in range(len(self.values))]
        return VectorQuery(grouped_select(statement, table, len(self.keys), totals), held, len(totals))

    def _keys(self) -> list[Sql]:
        return [column_ref(f"k{index}") for index in range(len(self.keys))]

    def _kept(self, statement: SqlStatement) -> list[Sql]:
        return [*self._keys(), column_ref("b"), *map(column_ref, statement.trials())]

    def _per_unit(self, statement: SqlStatement, table: exp.Table, hidden: list[str]) -> exp.Table:
        """Each unit's sums per key, held at 2^31."""
        by = [*self._keys(), *map(column_ref, hidden)]
        sums = [
            with_alias(saturate(statement.dialect.total(column_ref(f"v{index}")), MOST_PER_UNIT), f"s{index}")
            for index in range(len(self.values))
        ]
        corrections = with_alias(saturate(statement.dialect.total(column_ref("b")), MOST_PER_UNIT), "b")
        return statement.add(
            select(*by, *sums, corrections).from_(table, copy=False).group_by(*(key.copy() for key in by), copy=False)
        )

    def _with_norms(self, statement: SqlStatement, table: exp.Table, hidden: list[str]) -> exp.Table:
        """Beside each cell, the unit's norm over all its cells: the sum of sizes, or of squares."""
        cells = [column_ref(f"s{index}") for index in range(len(self.values))]
        sizes: list[Sql] = [exp.Abs(this=detached(cell)) if self.norm == "l1" else times(cell, cell) for cell in cells]
        size = add_all([statement.dialect.wide(each) for each in sizes])
        window = exp.Window(this=exp.Sum(this=size), partition_by=[column_ref(column) for column in hidden])
        return statement.add(select(*self._kept(statement), *cells, with_alias(window, "n")).from_(table, copy=False))

    def _scaled(self, statement: SqlStatement, table: exp.Table) -> exp.Table:
        """Each cell times bound / norm, towards zero, where the norm passes the bound."""
        radius, dialect = known_limit(self.bound), statement.dialect
        if self.norm == "l2":
            table = self._with_root(statement, table)
        limit = literal(radius if self.norm == "l1" else radius * radius)
        norm = cast(column_ref("n"), "bigint") if self.norm == "l1" else column_ref("root")
        fits_already = binary(exp.LTE, column_ref("n"), limit)
        scaled = []
        for index in range(len(self.values)):
            cell = column_ref(f"s{index}")
            shrunk = dialect.quotient(times(cell, radius), exp.Nullif(this=detached(norm), expression=literal(0)))
            scaled.append(with_alias(case([(fits_already, cell)], shrunk), f"v{index}"))
        return statement.add(select(*self._kept(statement), *scaled).from_(table, copy=False))

    def _with_root(self, statement: SqlStatement, table: exp.Table) -> exp.Table:
        """The smallest integer whose square is at least n: a double's root is within one of it, so four are tried."""
        cells = [column_ref(f"s{index}") for index in range(len(self.values))]
        near = cast(exp.Floor(this=exp.Sqrt(this=cast(column_ref("n"), "double"))), "bigint")
        with_guess = statement.add(
            select(*self._kept(statement), *cells, column_ref("n"), with_alias(near, "g")).from_(table, copy=False)
        )
        tries = [add(column_ref("g"), offset) for offset in (-1, 0, 1)]
        branches = [(binary(exp.GTE, self._square(statement, t), column_ref("n")), t) for t in tries]
        root = with_alias(case(branches, add(column_ref("g"), 2)), "root")
        return statement.add(
            select(*self._kept(statement), *cells, column_ref("n"), root).from_(with_guess, copy=False)
        )

    def _square(self, statement: SqlStatement, value: Sql) -> Sql:
        wide = statement.dialect.wide(value)
        return times(wide, wide)
