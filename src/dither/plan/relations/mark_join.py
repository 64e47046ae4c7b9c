"""The MarkJoin operator: IN, EXISTS and their negations, by the unit's key."""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from dither.plan.context import Context
from dither.plan.relations.core import Relation, require_unit
from dither.plan.relations.joins import trial_pairs
from dither.plan.relations.project import check_distinct_names
from dither.plan.sql.builders import is_not_null, select
from dither.plan.sql.statement import SqlStatement, all_equal, column_ref, join_select, with_alias
from dither.plan.stability import Stability, add_up, multiply
from dither.schema import Boolean, Domain


@dataclass(frozen=True)
class MarkJoin(Relation):
    """Every row of `left`, with a column `name`: true if the row's unit has a row in `right`, else false."""

    proof = "mark_join.md"
    left: Relation
    right: Relation
    unit: str
    name: str

    def domain(self, ctx: Context) -> dict[str, Domain]:
        for side in (self.left, self.right):
            require_unit(ctx, side, self.unit, "a join")
        columns = self.left.domain(ctx)
        check_distinct_names([*columns, self.name])
        return {**columns, self.name: Boolean()}

    def stability(self, ctx: Context, unit: str) -> Stability:
        left, right = self.left.stability(ctx, unit), self.right.stability(ctx, unit)
        if unit == self.unit:
            return Stability(True, left.max_rows, left.max_distinct_rows)
        if ctx.is_coarser(unit, self.unit) and left.tracks_unit and right.tracks_unit:
            return Stability(True, left.max_rows, left.max_rows)
        flipped = multiply(2, self.left.stability(ctx, self.unit).max_rows, right.max_rows)
        rows = add_up(left.max_rows, flipped)
        return Stability(left.tracks_unit and right.max_rows == 0, rows, rows)

    def select(self, statement: SqlStatement) -> exp.Select:
        keys, trials = statement.unit_columns(self.unit), statement.trial_columns()
        # One row per unit: a left join with it neither repeats nor drops a row of the left side.
        present = select(*map(column_ref, (*keys, *trials))).from_(statement.table(self.right), copy=False)
        units = statement.add_subquery(present.distinct(copy=False))
        columns = [*statement.visible_columns(self.left, "l"), is_not_null(column_ref(keys[0], "r"))]
        visible = [with_alias(column, f"c{index}") for index, column in enumerate(columns)]
        tracked = statement.tracked_units(self)
        hidden = [with_alias(column_ref(c, "l"), c) for c in statement.hidden_column_names(tracked)]
        matched = all_equal([*((column_ref(c, "l"), column_ref(c, "r")) for c in keys), *trial_pairs(statement)])
        return join_select([*visible, *hidden], (statement.table(self.left), "l"), (units, "r"), matched, "left")
