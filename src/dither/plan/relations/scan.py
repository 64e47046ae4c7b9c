"""The Scan operator: reads a table and corrects its values into their declared domains."""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from dither.errors import InvalidPlan
from dither.plan.context import Context
from dither.plan.domains import with_null
from dither.plan.expressions.core import period_number_sql
from dither.plan.relations.cleaning import clean_column, clean_key, clean_to_enum, is_clean
from dither.plan.relations.core import Relation
from dither.plan.relations.moments import source_with_moments
from dither.plan.sql.builders import Sql, add_all, and_, case, integer, is_not_null, select
from dither.plan.sql.scope import Scope
from dither.plan.sql.statement import SqlStatement, column_ref, with_alias
from dither.plan.stability import UNAFFECTED, Stability, stability_after_bounding
from dither.schema import Domain, Moment


@dataclass(frozen=True)
class Scan(Relation):
    """A table of the dataset: each value corrected into its declared domain, rows without a valid unit key dropped.

    If the description caps the rows of a unit, at most that many are kept, chosen among that unit's own rows.
    """

    proof = "scan.md"
    table: str

    def domain(self, ctx: Context) -> dict[str, Domain]:
        key_and_time_columns = {unit.keys.get(self.table) for unit in ctx.dataset.units.values()}
        key_and_time_columns |= {unit.times.get(self.table) for unit in ctx.dataset.units.values()}
        return {
            name: with_null(d, d.nullable and name not in key_and_time_columns)
            for name, d in ctx.columns(self.table).items()
        }

    def stability(self, ctx: Context, unit: str) -> Stability:
        uncapped, cap = self._uncapped_stability(ctx, unit), ctx.row_cap(self.table)
        if cap is None:
            return uncapped
        return stability_after_bounding(ctx, uncapped, unit, cap[0], changes_per_row=2, bound=cap[1])

    def _uncapped_stability(self, ctx: Context, unit: str) -> Stability:
        """Return the stability of the cleaned rows, before a cap on the rows of a unit."""
        table, keys = ctx.table(self.table), ctx.unit(unit).keys
        if not table.private or self.table not in keys:
            return UNAFFECTED
        enforced, kind = ctx.enforces_unique_key(table), ctx.unit(unit).kind
        if kind == "user":
            return Stability(True, 1, 1) if enforced else Stability(True, None, None)
        if enforced:
            return Stability(False, 2, 2)
        return Stability(True, 1, 1) if kind == "row" else Stability(True, None, None)

    def select(self, statement: SqlStatement) -> exp.Select:
        return self.select_rows(statement, statement.ctx.row_cap(self.table))

    def select_rows(self, statement: SqlStatement, cap: tuple[str, int] | None) -> exp.Select:
        """Select the cleaned rows with at most so many of each unit, which may be fewer than the table's own cap."""
        partition, order = self._partition(statement, cap), self.order(statement)
        if partition is None:
            return self._with_hidden_columns(statement, self._valid_rows(statement), order)
        # Rows are ordered where they are chosen: under a large cap few are.
        made = None if statement.sources[self.table].order_column else order
        return statement.first_rows(self.rows(statement), self.columns(statement), *partition, made)

    def columns(self, statement: SqlStatement) -> list[str]:
        """Return the names of the columns of the rows that are kept, except stored sizes."""
        tracked = statement.tracked_units(self)
        ranks = [statement.rank_column(unit) for unit in statement.units_with_rank(self)]
        return [*self._visible(statement), *statement.hidden_column_names(tracked), *ranks]

    def _visible(self, statement: SqlStatement) -> list[str]:
        return [f"c{index}" for index in range(len(self.domain(statement.ctx)))]

    def _partition(self, statement: SqlStatement, cap: tuple[str, int] | None) -> tuple[list[Sql], int] | None:
        """Return the columns of whose values each keeps so many rows, and that number; None if all rows are kept."""
        ctx, table = statement.ctx, statement.ctx.table(self.table)
        if statement.sources[self.table].deduplicated and cap == ctx.row_cap(self.table):
            return None
        if cap is not None:
            # The partition is the unit: the choice depends on this unit's rows alone (limit_rows_per_unit.md, step 2).
            return [column_ref(column) for column in statement.unit_columns(cap[0])], cap[1]
        if not ctx.enforces_unique_key(table):
            return None
        return [column_ref(self._visible(statement)[list(self.domain(ctx)).index(str(table.unique))])], 1

    def _clean_columns(self, statement: SqlStatement) -> exp.Select:
        """Select the cleaned columns, the number of corrections, and the order and ranks that a snapshot has stored."""
        table_source, zone = statement.sources[self.table], statement.ctx.dataset.timezone
        names, dialect = {key: exp.column(key, quoted=True) for key in table_source.kinds}, statement.dialect
        keys = {unit.keys.get(self.table) for unit in statement.ctx.dataset.units.values()}
        enum_columns = self.enum_columns(statement)
        selected: list[Sql] = []
        clean_conditions: list[Sql] = []
        for index, (name, column) in enumerate(statement.ctx.table(self.table).columns.items()):
            raw, kind = names[name], table_source.kinds[name]
            clean = clean_to_enum if f"c{index}" in enum_columns else clean_key if name in keys else clean_column
            selected.append(
                with_alias(raw if table_source.is_prepared else clean(column, raw, kind, zone, dialect), f"c{index}")
            )
            if not table_source.is_prepared and name in statement.counted_columns:
                clean_conditions.append(is_clean(column, raw, kind, zone, dialect))
        selected.append(with_alias(_count_corrections(clean_conditions), "b"))
        selected += [
            with_alias(exp.column(str(statement.trial), quoted=True), name) for name in statement.trial_columns()
        ]
        stored = {"o": table_source.order_column} if table_source.order_column else {}
        stored |= {statement.rank_column(unit): column for unit, column in table_source.rank_columns.items()}
        stored |= {statement.size_column(unit): column for unit, column in table_source.size_columns.items()}
        selected += [with_alias(exp.column(column, quoted=True), alias) for alias, column in stored.items()]
        return select(*selected).from_(source_with_moments(statement, self.table), copy=False)

    def order(self, statement: SqlStatement) -> Sql:
        """Build the order of a row from its cleaned columns, where no order is stored; 0 if nothing needs one."""
        if statement.sources[self.table].order_column:
            return column_ref("o")
        ctx, domains = statement.ctx, self.domain(statement.ctx).values()
        chooses = ctx.enforces_unique_key(ctx.table(self.table)) or ctx.row_cap(self.table) is not None
        if not (statement.keeps_order or chooses):
            return integer(0)
        cells = [(column_ref(c), domain) for c, domain in zip(self._visible(statement), domains, strict=True)]
        return statement.mix_values(cells, 1, self.enum_columns(statement))

    def rows(self, statement: SqlStatement) -> exp.Table:
        """Add a subquery of all rows without an order that is not stored; read once, only cleaned columns are kept."""
        cleaned = self._valid_rows(statement)
        order = self.order(statement) if statement.sources[self.table].order_column else None
        return statement.derive(self._with_hidden_columns(statement, cleaned, order), cleaned)

    def _valid_rows(self, statement: SqlStatement) -> exp.Table:
        """Add a subquery of the cleaned columns of all rows that have a valid unit key."""
        cleaned = statement.add_subquery(self._clean_columns(statement))
        if statement.sources[self.table].deduplicated:
            return cleaned
        read, units = statement.ctx.columns(self.table), statement.ctx.dataset.units.values()
        never_null = {name for name, domain in read.items() if not domain.nullable} - {
            u.keys.get(self.table) for u in units
        }
        names, nullable = statement.scope(self).names, self._unit_column_names(statement.ctx)
        valid = [is_not_null(names[name]) for name in nullable if name not in never_null]
        if not valid:
            return cleaned
        return statement.add_subquery(select(exp.Star()).from_(cleaned, copy=False).where(and_(valid), copy=False))

    def _with_hidden_columns(self, statement: SqlStatement, table: exp.Table, order: Sql | None) -> exp.Select:
        """Add the hidden unit columns, and the order if it is given."""
        scope, tracked = statement.scope(self), statement.tracked_units(self)
        selected: list[Sql] = [column_ref(column) for column in self._visible(statement)]
        for unit in tracked:
            values = self._unit_column_values(statement, unit, scope)
            selected += [with_alias(v, c) for v, c in zip(values, statement.unit_columns(unit), strict=True)]
        selected += [with_alias(order, "o")] if order is not None else []
        selected += map(column_ref, ["b", *statement.trial_columns()])
        selected += [column_ref(statement.rank_column(unit)) for unit in statement.units_with_rank(self)]
        selected += [column_ref(statement.size_column(u)) for u in statement.sources[self.table].size_columns]
        return select(*selected).from_(table.copy(), copy=False)

    def _unit_column_names(self, ctx: Context) -> list[str]:
        """List the columns that hold the key or time of some unit."""
        units = ctx.dataset.units.values()
        column_names = [
            name for unit in units for name in (unit.keys.get(self.table), unit.times.get(self.table)) if name
        ]
        return list(dict.fromkeys(column_names))

    def _unit_column_values(self, statement: SqlStatement, name: str, scope: Scope) -> list[Sql]:
        """Return the SQL of a unit's key and, for a window unit, of its window."""
        unit = statement.ctx.unit(name)
        values = [scope.names[str(unit.keys[self.table])]]
        if unit.kind == "window" and unit.every is not None:
            time = unit.times[self.table]
            moment = scope.columns[time]
            if not isinstance(moment, Moment):
                raise InvalidPlan(f"the window column {time} of {self.table} must be a date or timestamp")
            values.append(period_number_sql(scope.names[time], moment, unit.every, statement.dialect))
        return values

    def enum_columns(self, statement: SqlStatement) -> frozenset[str]:
        if statement.sources[self.table].is_prepared:
            return frozenset()
        declared, keys = statement.ctx.table(self.table).columns.items(), self._unit_column_names(statement.ctx)
        uses_enum = statement.dialect.uses_enum
        return frozenset(
            f"c{i}" for i, (name, column) in enumerate(declared) if name not in keys and uses_enum(column.domain)
        )

    def has_stored_rank(self, statement: SqlStatement, unit: str) -> bool:
        return unit in statement.sources[self.table].rank_columns


def _count_corrections(conditions: list[Sql]) -> Sql:
    """Count the conditions that do not hold; the common case that all hold is tested first."""
    if not conditions:
        return integer(0)
    flags = [case([(condition, integer(0))], integer(1)) for condition in conditions]
    return case([(and_(conditions), integer(0))], add_all(flags))
