"""Sums in which the contribution of each unit is clipped to an L1 or L2 ball."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import isqrt
from typing import Any, Literal

from sqlglot import exp

from dither.loss import Sensitivity
from dither.plan.context import Context
from dither.plan.domains import bounds_of
from dither.plan.expressions.core import Expr
from dither.plan.measures.core import (
    LARGEST_INT64,
    MAX_PER_UNIT,
    NO_CHANGE,
    Axis,
    GroupKey,
    Measure,
    VectorQuery,
    changed_vectors,
    stability_of,
)
from dither.plan.measures.grouped import encode_axes, grouped_select, keyed_subquery, numeric_domains
from dither.plan.measures.sums import SumVector
from dither.plan.relations.core import Relation, require_unit
from dither.plan.relations.unit_sizes import chain_to_scan, is_fixed
from dither.plan.sql.builders import Sql, add, add_all, and_, binary, case, cast, detach, literal, select, times
from dither.plan.sql.statement import SqlStatement, column_ref, join_select, saturate, with_alias
from dither.plan.stability import RowLimit, Stability, check_limit, known_limit


@dataclass(frozen=True)
class ClippedSums(Measure):
    """Sums per key, with each unit's whole vector first scaled into an L1 or L2 ball of radius `bound` (in steps).

    Scaling divides integers and truncates towards zero, so the norm is at most `bound` exactly, however many rows the
    unit has. A unit's sum in one cell is clamped to 2^31 before that.
    """

    proof = "clipped_sums.md"
    child: Relation
    unit: str
    values: tuple[Expr, ...]
    bound: RowLimit
    norm: Literal["l1", "l2"] = "l2"
    keys: tuple[GroupKey, ...] = ()

    def __post_init__(self) -> None:
        check_limit(self.bound, "a clipping bound")

    def _unclipped_sums(self) -> SumVector:
        """Return the same sums without clipping."""
        return SumVector(self.child, self.values, self.keys)

    def axes(self, ctx: Context) -> tuple[Axis, ...]:
        require_unit(ctx, self.child, self.unit, "clipping")
        return self._unclipped_sums().axes(ctx)

    def steps(self, ctx: Context) -> tuple[Fraction, ...]:
        return self._unclipped_sums().steps(ctx)

    def sensitivity(self, ctx: Context, unit: str) -> Sensitivity:
        unit_stability, radius, cells = stability_of(ctx, self.child, unit), known_limit(self.bound), self.size(ctx)
        require_unit(ctx, self.child, self.unit, "clipping")
        if unit_stability.max_rows == 0:
            return NO_CHANGE
        ball = self._ball_sensitivity(radius, changed_vectors(ctx, self.unit, unit, unit_stability), cells)
        return self._at_most_unclipped(ball, ctx, unit_stability, unit) if unit == self.unit else ball

    def _ball_sensitivity(self, radius: int, vectors: int, cells: int) -> Sensitivity:
        """Return the sensitivity of the sum of `vectors` integer vectors from the ball."""
        squares = (vectors * radius) ** 2
        if self.norm == "l1":
            norms = (min(cells, vectors * radius), vectors * radius, vectors * radius, squares)
        else:
            l1_norm = min(isqrt(cells * squares), vectors * radius * radius)
            norms = (min(cells, vectors * radius * radius), vectors * radius, l1_norm, squares)
        return Sensitivity(*map(Fraction, norms))

    def _at_most_unclipped(self, ball: Sensitivity, ctx: Context, unit_stability: Stability, unit: str) -> Sensitivity:
        """Lower the sensitivity to that of the unclipped sums, since clipping never lengthens a vector."""
        if unit_stability.max_rows is None:
            return ball
        plain_sums = self._unclipped_sums().sensitivity(ctx, unit)
        return Sensitivity(
            min(ball.l0, plain_sums.l0),
            min(ball.linf, plain_sums.linf),
            min(ball.l1, plain_sums.l1),
            min(ball.l2_squared, plain_sums.l2_squared),
        )

    def _never_clips(self, ctx: Context) -> bool:
        """Tell whether public facts keep every unit's vector within the ball, so that clipping changes nothing."""
        unit_stability, radius = stability_of(ctx, self.child, self.unit), known_limit(self.bound)
        if not unit_stability.tracks_unit or unit_stability.max_rows is None:
            return False
        longest = self._unclipped_sums().sensitivity(ctx, self.unit)
        fits = longest.l1 <= radius if self.norm == "l1" else longest.l2_squared <= radius * radius
        return fits and longest.linf <= MAX_PER_UNIT

    def vector_query(self, statement: SqlStatement) -> VectorQuery:
        if self._never_clips(statement.ctx):
            return self._unclipped_sums().vector_query(statement)
        scope, hidden = statement.scope(self.child), [*statement.unit_columns(self.unit), *statement.trial_columns()]
        encoded_keys = encode_axes(statement.ctx, self.keys, self.axes(statement.ctx), scope)
        table = self._clipped_rows(statement, encoded_keys, hidden)
        totals = [
            saturate(statement.dialect.exact_sum(column_ref(f"v{i}")), LARGEST_INT64) for i in range(len(self.values))
        ]
        return VectorQuery(grouped_select(statement, table, len(self.keys), totals), encoded_keys, len(totals))

    def _unit_rows(self, statement: SqlStatement, encoded_keys: tuple[Sequence[Any], ...]) -> exp.Table:
        """Return the keys, values and unit of every row."""
        unit = statement.unit_columns(self.unit)
        return keyed_subquery(statement, self.child, self.keys, encoded_keys, self.values, unit)

    def _clipped_rows(
        self, statement: SqlStatement, encoded_keys: tuple[Sequence[Any], ...], hidden: list[str]
    ) -> exp.Table:
        """Return keys and values whose sums are those of the clipped vectors."""
        table = self._unit_rows(statement, encoded_keys)
        if not self._most_units_fit(statement):
            return self._clip_units(statement, table, hidden)
        names = [f"v{index}" for index in range(len(self.values))]
        carried = [column.name for column in self._carried_columns(statement)]
        rows = self._heavy_rows(statement, encoded_keys, table, hidden)
        clipped = self._clip_units(statement, rows, hidden)
        # All rows are added as they are; those of heavy units are taken away again, and their clipped sums added.
        added = [
            select(*map(column_ref, [*carried, *names])).from_(each.copy(), copy=False) for each in (table, clipped)
        ]
        parts = [*added, self._taken_away(rows, carried, names)]
        return statement.add_subquery(exp.union(*parts, distinct=False, copy=False))

    def _taken_away(self, rows: exp.Table, carried: list[str], names: list[str]) -> exp.Select:
        """Select rows with the negatives of what they add."""
        negative = {"b", *names}
        columns = [
            with_alias(exp.Neg(this=column_ref(name)), name) if name in negative else column_ref(name)
            for name in (*carried, *names)
        ]
        return select(*columns).from_(rows.copy(), copy=False)

    def _most_units_fit(self, statement: SqlStatement) -> bool:
        """Tell whether units with many rows still fit into the ball, so that few need their sums by cell."""
        radius, most = known_limit(self.bound), statement.dialect.many_rows * self._largest_row(statement.ctx)
        return statement.dialect.shares_subqueries and most <= radius <= MAX_PER_UNIT

    def _largest_row(self, ctx: Context) -> int:
        """Return the most that the absolute values of one row add up to."""
        domains = numeric_domains(ctx, self.child, self.values)
        return sum(max(map(abs, bounds_of(domain))) for domain in domains)

    def _heavy_rows(
        self,
        statement: SqlStatement,
        encoded_keys: tuple[Sequence[Any], ...],
        table: exp.Table,
        hidden: list[str],
    ) -> exp.Table:
        """Return the rows of units, among them all whose absolute values add up to more than the radius."""
        chain = chain_to_scan(statement, self.child, self.unit)
        is_ranked = chain is not None and chain.scan.has_stored_rank(statement, self.unit)
        if chain is None or not (is_ranked or self._adds_constants(statement.ctx)):
            statement.read_once(table)  # the rows that are counted and clipped are those that are added
            names = [f"v{index}" for index in range(len(self.values))]
            carried = [column.name for column in self._carried_columns(statement)]
            columns = [*carried, *names, *statement.unit_columns(self.unit)]
            heavy = self._heavy_units(statement, table, hidden)
            rows = statement.add_subquery(statement.rows_among(table, heavy, columns, hidden, "SEMI"))
            statement.read_once(rows)
            return rows
        # Only a unit with more rows than fit has a row of the next rank (proof, step 8).
        fitting = known_limit(self.bound) // max(1, self._largest_row(statement.ctx))
        for relation in chain.others:
            if not (is_ranked and is_fixed(statement, relation)):
                statement.read_once(statement.table(relation))
        if is_ranked:  # a snapshot does not change: reading it again is cheaper than keeping its rows
            scanned = [statement.add_subquery(chain.scan.select(statement)) for _ in range(2)]
            is_next = binary(exp.EQ, column_ref(statement.rank_column(self.unit)), literal(fitting + 1))
            units = select(*map(column_ref, hidden)).from_(scanned[0], copy=False).where(is_next, copy=False)
        else:
            statement.read_once(statement.table(chain.scan))
            scanned = [statement.table(chain.scan)] * 2
            units = statement.large_partitions(scanned[0], hidden, fitting)
        heavy = statement.add_subquery(units)
        columns = chain.scan.columns(statement)
        some = statement.add_subquery(statement.rows_among(scanned[1], heavy, columns, hidden, "SEMI"))
        statement.read_once(some)  # or else an engine may join all rows first
        with statement.replace_rows(chain.nodes, some):
            return self._unit_rows(statement, encoded_keys)

    def _heavy_units(self, statement: SqlStatement, table: exp.Table, hidden: list[str]) -> exp.Table:
        """List the units whose absolute values add up to more than the radius: others fit in any norm."""
        sizes = [
            exp.Coalesce(this=exp.Abs(this=column_ref(f"v{i}")), expressions=[literal(0)])
            for i in range(len(self.values))
        ]
        size = statement.dialect.exact_sum(add_all([statement.dialect.widen(cell) for cell in sizes]))
        is_heavy = binary(exp.GT, size, literal(known_limit(self.bound)))
        units = select(*map(column_ref, hidden)).from_(table.copy(), copy=False)
        return statement.add_subquery(units.group_by(*map(column_ref, hidden), copy=False).having(is_heavy, copy=False))

    def _adds_constants(self, ctx: Context) -> bool:
        """Tell whether all rows add the same, so that counting them is enough."""
        return all(len(set(bounds_of(domain))) == 1 for domain in numeric_domains(ctx, self.child, self.values))

    def _clip_units(self, statement: SqlStatement, table: exp.Table, hidden: list[str]) -> exp.Table:
        """Return the clipped sum of every unit in every cell."""
        table = self._sum_per_unit(statement, table, hidden)
        return self._clip(statement, self._with_norms(statement, table, hidden))

    def _keys(self) -> list[Sql]:
        return [column_ref(f"k{index}") for index in range(len(self.keys))]

    def _carried_columns(self, statement: SqlStatement) -> list[Sql]:
        """Return the columns that every subquery passes on: keys, corrections and trial."""
        return [*self._keys(), column_ref("b"), *map(column_ref, statement.trial_columns())]

    def _sum_per_unit(self, statement: SqlStatement, table: exp.Table, hidden: list[str]) -> exp.Table:
        """Sum the values of each unit per key, clamped to 2^31."""
        group_columns = [*self._keys(), *map(column_ref, hidden)]
        sums = [
            with_alias(saturate(statement.dialect.exact_sum(column_ref(f"v{index}")), MAX_PER_UNIT), f"s{index}")
            for index in range(len(self.values))
        ]
        corrections = with_alias(saturate(statement.dialect.exact_sum(column_ref("b")), MAX_PER_UNIT), "b")
        return statement.add_subquery(
            select(*group_columns, *sums, corrections)
            .from_(table, copy=False)
            .group_by(*(key.copy() for key in group_columns), copy=False)
        )

    def _with_norms(self, statement: SqlStatement, table: exp.Table, hidden: list[str]) -> exp.Table:
        """Add to each cell the unit's norm over all its cells: the sum of absolute values, or of squares."""
        cells = [column_ref(f"s{index}") for index in range(len(self.values))]
        sizes: list[Sql] = [exp.Abs(this=detach(cell)) if self.norm == "l1" else times(cell, cell) for cell in cells]
        size = add_all([statement.dialect.widen(cell_size) for cell_size in sizes])
        if statement.dialect.shares_subqueries:
            return self._joined_norms(statement, table, hidden, exp.Sum(this=size))
        window = exp.Window(this=exp.Sum(this=size), partition_by=[column_ref(column) for column in hidden])
        return statement.add_subquery(
            select(*self._carried_columns(statement), *cells, with_alias(window, "n")).from_(table, copy=False)
        )

    def _joined_norms(self, statement: SqlStatement, table: exp.Table, hidden: list[str], norm: Sql) -> exp.Table:
        """Add the unit's norm by a join with the norms of all units, which sorts nothing; NULL is one unit."""
        by = [column_ref(column) for column in hidden]
        statement.read_once(table)  # sums are clipped by norms of the same rows
        totals = select(*by, with_alias(norm, "n")).from_(table.copy(), copy=False)
        norms = statement.add_subquery(totals.group_by(*(column.copy() for column in by), copy=False))
        cells = [column_ref(f"s{index}") for index in range(len(self.values))]
        kept = [column_ref(column.name, "x") for column in (*self._carried_columns(statement), *cells)]
        same = [binary(exp.NullSafeEQ, column_ref(column, "x"), column_ref(column, "y")) for column in hidden]
        columns = [*kept, column_ref("n", "y")]
        return statement.add_subquery(join_select(columns, (table, "x"), (norms, "y"), and_(same), "inner"))

    def _clip(self, statement: SqlStatement, table: exp.Table) -> exp.Table:
        """Multiply each cell by bound / norm, truncated towards zero, where the norm exceeds the bound."""
        radius, dialect = known_limit(self.bound), statement.dialect
        if self.norm == "l2":
            table = self._with_root(statement, table)
        limit = literal(radius if self.norm == "l1" else radius * radius)
        norm = cast(column_ref("n"), "bigint") if self.norm == "l1" else column_ref("root")
        fits_already = binary(exp.LTE, column_ref("n"), limit)
        scaled = []
        for index in range(len(self.values)):
            cell = column_ref(f"s{index}")
            shrunk = dialect.quotient(times(cell, radius), exp.Nullif(this=detach(norm), expression=literal(0)))
            scaled.append(with_alias(case([(fits_already, cell)], shrunk), f"v{index}"))
        return statement.add_subquery(select(*self._carried_columns(statement), *scaled).from_(table, copy=False))

    def _with_root(self, statement: SqlStatement, table: exp.Table) -> exp.Table:
        """Add the smallest integer whose square is at least n: the double's root is off by one at most, so try four."""
        cells = [column_ref(f"s{index}") for index in range(len(self.values))]
        guess = cast(exp.Floor(this=exp.Sqrt(this=cast(column_ref("n"), "double"))), "bigint")
        with_guess = statement.add_subquery(
            select(*self._carried_columns(statement), *cells, column_ref("n"), with_alias(guess, "g")).from_(
                table, copy=False
            )
        )
        candidates = [add(column_ref("g"), offset) for offset in (-1, 0, 1)]
        branches = [(binary(exp.GTE, self._square(statement, t), column_ref("n")), t) for t in candidates]
        root = with_alias(case(branches, add(column_ref("g"), 2)), "root")
        return statement.add_subquery(
            select(*self._carried_columns(statement), *cells, column_ref("n"), root).from_(with_guess, copy=False)
        )

    def _square(self, statement: SqlStatement, value: Sql) -> Sql:
        wide = statement.dialect.widen(value)
        return times(wide, wide)
