"""Faults, planted one at a time: what the random plans must find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from inspect import signature
from random import Random
from typing import Any

import pytest
from sqlglot import exp

import dither.plan.expressions.numeric as numeric
import dither.plan.measures.clipped as clipped
import dither.plan.measures.grouped as grouped
import dither.plan.measures.partitions as partitions
import dither.plan.relations as relation
import dither.plan.relations.cleaning as clean
import dither.plan.relations.unit_sizes as unit_sizes
import dither.plan.sql.builders as builders
import plan.plans as plans
import plan.trials as trials
from dither.plan.context import Context
from dither.plan.sql.dialect import Dialect
from dither.plan.sql.statement import SqlStatement, column_ref, with_alias
from dither.plan.stability import Stability
from dither.schema import Number
from plan.trials import Bench, Tally, Violation


def unguarded_division(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(numeric, "null_if_zero", lambda value: value)
    patch.setattr(Dialect, "quotient", lambda self, a, b: builders.cast(builders.binary(exp.Div, a, b), "bigint"))


def missing_clamp(patch: pytest.MonkeyPatch) -> None:
    def unclamped(column: Any, domain: Number, raw: Any, kind: str, dialect: Any) -> Any:
        if kind != "integer":
            return number(column, domain, raw, kind, dialect)
        return builders.case(
            [(clean.is_null(raw), clean._null_replacement(column))], clean._integer_to_lattice(raw, domain, dialect)
        )

    number = clean._clean_number
    patch.setattr(clean, "_clean_number", unclamped)


def union_counted_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(relation.Union, "stability", lambda self, ctx, unit: self.left.stability(ctx, unit))


def group_by_stability_one(patch: pytest.MonkeyPatch) -> None:
    stated = relation.GroupBy.stability

    def halved(self: Any, ctx: Any, unit: str) -> Stability:
        found = stated(self, ctx, unit)
        if found.tracks_unit or found.max_rows is None:
            return found
        return Stability(False, found.max_rows // 2, found.max_rows // 2)

    patch.setattr(relation.GroupBy, "stability", halved)


def distinct_merges_units(patch: pytest.MonkeyPatch) -> None:
    def merged(self: Any, statement: SqlStatement) -> Any:
        keys = statement.visible_columns(self.child)
        hidden = [c for unit in statement.tracked_units(self) for c in statement.unit_columns(unit)]
        picked = [with_alias(exp.Min(this=column_ref(c)), c) for c in [*hidden, "o", "b"]]
        trial = [column_ref(c) for c in statement.trial_columns()]
        body = builders.select(*keys, *picked, *trial).from_(statement.table(self.child))
        return body.group_by(*(key.copy() for key in keys), *trial)

    patch.setattr(relation.Distinct, "select", merged)


def multiplicity_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(relation.PublicJoin, "multiplicity", lambda self, ctx: 1)


def nan_passes_the_clamp(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Dialect, "is_nan", lambda self, value: exp.false())


def saturation_missing(patch: pytest.MonkeyPatch) -> None:
    def unsaturated(value: Any, most: int, least: int | None = None) -> Any:
        return builders.cast(exp.Coalesce(this=value.copy(), expressions=[builders.literal(0)]), "bigint")

    for module in (grouped, clipped, partitions):
        patch.setattr(module, "saturate", unsaturated)


def keys_from_data(patch: pytest.MonkeyPatch) -> None:
    whole = trials.to_vector
    patch.setattr(
        trials, "to_vector", lambda m, plan, table: whole(m, plan, table)[: table.num_rows * plan.value_count]
    )


def rank_not_per_unit(patch: pytest.MonkeyPatch) -> None:
    numbered = SqlStatement.first_rows

    def among_all(*given: Any) -> Any:
        call = signature(numbered).bind(*given)
        call.arguments["by"] = []
        return numbered(*call.args)

    patch.setattr(SqlStatement, "first_rows", among_all)


def marks_of_others_counted_not(patch: pytest.MonkeyPatch) -> None:
    """States only the rows of the left side, also for units whose rows turn the marks of others."""
    patch.setattr(relation.MarkJoin, "stability", lambda self, ctx, unit: self.left.stability(ctx, unit))


def marks_without_distinct(patch: pytest.MonkeyPatch) -> None:
    """Joins all rows of the right side, not one per unit, so that rows of the left side are repeated."""
    patch.setattr(exp.Select, "distinct", lambda self, **_: self)


def cap_not_kept(patch: pytest.MonkeyPatch) -> None:
    """A scan that keeps one row more of each unit than the description allows."""
    selected = relation.Scan.select

    def loosened(self: Any, statement: SqlStatement) -> Any:
        ctx = statement.ctx
        caps = {k: replace(u, max_rows={t: n + 1 for t, n in u.max_rows.items()}) for k, u in ctx.dataset.units.items()}
        statement.ctx = replace(ctx, dataset=replace(ctx.dataset, units=caps))
        try:
            return selected(self, statement)
        finally:
            statement.ctx = ctx

    patch.setattr(relation.Scan, "select", loosened)


def cap_forgets_displaced_rows(patch: pytest.MonkeyPatch) -> None:
    """A capped scan that states, for the rows and windows of a unit, what they moved before the cap."""
    stated = relation.Scan.stability

    def undisplaced(self: Any, ctx: Any, unit: str) -> Stability:
        cap = ctx.row_cap(self.table)
        if cap is None or unit == cap[0] or ctx.unit(unit).kind == "user":
            return stated(self, ctx, unit)
        return self._uncapped_stability(ctx, unit)

    patch.setattr(relation.Scan, "stability", undisplaced)


def huge_numbers(patch: pytest.MonkeyPatch) -> None:
    """Not a fault: steers the generator to sums that pass 64 bits."""
    patch.setattr(plans, "number_domain", lambda rng: Number(Fraction(-(2**61)), Fraction(2**61)))


def every_limit_is_large(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Dialect, "many_rows", 0)


def large_partitions_missed(patch: pytest.MonkeyPatch) -> None:
    stated = SqlStatement.large_partitions
    every_limit_is_large(patch)
    patch.setattr(
        SqlStatement, "large_partitions", lambda self, table, keys, limit: stated(self, table, keys, limit + 1)
    )


def heavy_units_missed(patch: pytest.MonkeyPatch) -> None:
    stated = clipped.ClippedSums._heavy_rows

    def twice_as_wide(self: Any, *given: Any) -> Any:
        return stated(replace(self, bound=2 * self.bound), *given)

    every_limit_is_large(patch)
    patch.setattr(clipped.ClippedSums, "_heavy_rows", twice_as_wide)


def clipped_rows_counted_twice(patch: pytest.MonkeyPatch) -> None:
    """Adds the clipped sums of units to all their rows, of which none are taken away."""
    stated = clipped.ClippedSums._taken_away
    every_limit_is_large(patch)
    patch.setattr(clipped.ClippedSums, "_taken_away", lambda self, *given: stated(self, *given).where(exp.false()))


def partners_multiply_rows(patch: pytest.MonkeyPatch) -> None:
    """Takes a join on the unit's key for one with a single row of each unit."""
    every_limit_is_large(patch)
    patch.setattr(relation.UnitJoin, "sides_with_one_row", lambda self, ctx, unit: (self.left, self.right))


def rows_cut_without_order(patch: pytest.MonkeyPatch) -> None:
    """Cuts the rows of large partitions before they have their order."""
    stated = SqlStatement._with_order
    every_limit_is_large(patch)
    patch.setattr(
        SqlStatement,
        "_with_order",
        lambda self, table, columns, order: stated(self, table, columns, order and builders.integer(0)),
    )


def cut_rows_counted(patch: pytest.MonkeyPatch) -> None:
    """Counts, of a unit beyond its cap, all rows that match a public row, also those that are cut."""

    def uncut(self: Any, table: Any, large: Any, columns: Any, by: Any, limit: Any, order: Any) -> Any:
        keys = [*(key.name for key in by), *self.trial_columns()]
        rows = self.rows_among(table, large, self.unordered_columns(columns, order), keys, "SEMI")
        return self._with_order(self.add_subquery(rows), columns, order)

    every_limit_is_large(patch)
    stated = unit_sizes._matches_under_cap

    def counted(*given: Any) -> Any:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(SqlStatement, "cut_partitions", uncut)
            return stated(*given)

    patch.setattr(unit_sizes, "_matches_under_cap", counted)


def unmatched_rows_counted(patch: pytest.MonkeyPatch) -> None:
    """Counts, of a unit within its cap, also the rows that a join with a public table drops."""
    stated = unit_sizes._matches

    def always_matched(*given: Any) -> Any:
        body = stated(*given)
        body.expressions[-1].set("this", builders.integer(1))
        return body

    every_limit_is_large(patch)
    patch.setattr(unit_sizes, "_matches", always_matched)


def cap_of_others_counted(patch: pytest.MonkeyPatch) -> None:
    """Counts the rows of each unit before a cap, whichever unit the cap is on."""
    capped = Context.row_cap
    stated = unit_sizes._sizes_of_scan

    def counted(statement: Any, scan: Any, unit: str, hidden: Any) -> Any:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Context, "row_cap", lambda self, table: (found := capped(self, table)) and (unit, found[1]))
            return stated(statement, scan, unit, hidden)

    patch.setattr(unit_sizes, "_sizes_of_scan", counted)


def clipping_left_out(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(clipped.ClippedSums, "_never_clips", lambda self, ctx: True)


FAULTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], tuple[str, ...]]] = {
    "unguarded division": (unguarded_division, ("where", "project")),
    "missing clamp": (missing_clamp, ("project",)),
    "union counted once": (union_counted_once, ("union",)),
    "group-by stability 1": (group_by_stability_one, ("group",)),
    "distinct that merges units": (distinct_merges_units, ("distinct",)),
    "join multiplicity ignored": (multiplicity_ignored, ("public",)),
    "marks of others not counted": (marks_of_others_counted_not, ("mark",)),
    "marks that repeat rows": (marks_without_distinct, ("mark",)),
    "NaN passing a clamp": (nan_passes_the_clamp, ("where",)),
    "saturation missing": (saturation_missing, ("rows",)),
    "key set from data": (keys_from_data, ("rows",)),
    "rank not per unit": (rank_not_per_unit, ("rows",)),
    "large partitions missed": (large_partitions_missed, ("rows",)),
    "heavy units missed": (heavy_units_missed, ("rows",)),
    "clipped rows counted twice": (clipped_rows_counted_twice, ("rows",)),
    "partners multiply rows": (partners_multiply_rows, ("unit",)),
    "rows cut without order": (rows_cut_without_order, ("project",)),
    "unmatched rows counted": (unmatched_rows_counted, ("public",)),
    "clipping left out": (clipping_left_out, ("rows",)),
    "cap not kept": (cap_not_kept, ("project",)),
    "cap forgets displaced rows": (cap_forgets_displaced_rows, ("project",)),
}


def steer(fault: str, patch: pytest.MonkeyPatch) -> None:
    """The generator, steered to the operator at fault."""
    plant, kinds = FAULTS[fault]
    patch.setattr(plans, "STEPS", kinds)
    if plant is saturation_missing:
        huge_numbers(patch)


def found(fault: str, bench: Bench, patch: pytest.MonkeyPatch, batches: int = 120) -> tuple[int, Violation] | None:
    """Plants a fault: after how many plans, run as the promises are, one shows it, and how; None if none does."""
    FAULTS[fault][0](patch)
    for number in range(batches):
        try:
            trials.run_batch(Random(number), bench, Tally(), 5, alone=number % 8 == 7)
        except Violation as violation:
            return 5 * (number + 1), violation
    return None
