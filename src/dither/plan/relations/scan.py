"""Part of the former access.relation."""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from dither.errors import InvalidPlan
from dither.plan.context import Context
from dither.plan.domains import with_null
from dither.plan.expressions.core import ordinal
from dither.plan.relations.cleaning import clean_column, clean_encoded, clean_key, is_clean
from dither.plan.relations.core import Relation
from dither.plan.sql.builders import Sql, add_all, and_, case, integer, is_not_null, select
from dither.plan.sql.scope import Scope
from dither.plan.sql.statement import SqlStatement, column_ref, with_alias
from dither.plan.stability import NONE, Stability
from dither.schema import Domain, Moment


@dataclass(frozen=True)
class Scan(Relation):
    """A table of the dataset, each value corrected into its declared domain, rows without a valid unit key dropped."""

    proof = "scan.md"
    table: str

    def domain(self, ctx: Context) -> dict[str, Domain]:
        dropped = {unit.keys.get(self.table) for unit in ctx.dataset.units.values()}
        dropped |= {unit.times.get(self.table) for unit in ctx.dataset.units.values()}
        return {name: with_null(d, d.nullable and name not in dropped) for name, d in ctx.columns(self.table).items()}

    def stability(self, ctx: Context, unit: str) -> Stability:
        table, keys = ctx.table(self.table), ctx.unit(unit).keys
        if not table.private or self.table not in keys:
            return NONE
        enforced, kind = ctx.enforced(table), ctx.unit(unit).kind
        if kind == "user":
            return Stability(True, 1, 1) if enforced else Stability(True, None, None)
        if enforced:
            return Stability(False, 2, 2)
        return Stability(True, 1, 1) if kind == "row" else Stability(True, None, None)

    def select(self, statement: SqlStatement) -> exp.Select:
        ctx, columns = statement.ctx, [f"c{index}" for index in range(len(self.domain(statement.ctx)))]
        known, origin = statement.known(self), statement.origins[self.table]
        ranks = [statement.rank_column(unit) for unit in statement.ranks(self)]
        tagged = self._tagged(statement, statement.add(self._corrected(statement)), columns, known)
        table = ctx.table(self.table)
        if not ctx.enforced(table) or origin.unique:
            return tagged
        key = columns[list(self.domain(ctx)).index(str(table.unique))]
        carried = [*columns, *statement.hidden(known), *ranks]
        return statement.numbered(statement.add(tagged), carried, [column_ref(key)], 1)

    def _corrected(self, statement: SqlStatement) -> exp.Select:
        """Each raw value inside its domain, the number of corrections, and what a snapshot has stored."""
        origin, zone = statement.origins[self.table], statement.ctx.dataset.timezone
        names, dialect = {key: exp.column(key, quoted=True) for key in origin.kinds}, statement.dialect
        keys = {unit.keys.get(self.table) for unit in statement.ctx.dataset.units.values()}
        packed = self.packed(statement)
        picked: list[Sql] = []
        sure: list[Sql] = []
        for index, (name, column) in enumerate(statement.ctx.table(self.table).columns.items()):
            raw, kind = names[name], origin.kinds[name]
            cleaned = clean_encoded if f"c{index}" in packed else clean_key if name in keys else clean_column
            picked.append(with_alias(raw if origin.ready else cleaned(column, raw, kind, zone, dialect), f"c{index}"))
            if not origin.ready and name in statement.counted:
                sure.append(is_clean(column, raw, kind, dialect))
        picked.append(with_alias(_any_dirty(sure), "b"))
        picked += [with_alias(exp.column(str(statement.trial), quoted=True), name) for name in statement.trials()]
        stored = {"o": origin.order} if origin.order else {}
        stored |= {statement.rank_column(unit): column for unit, column in origin.ranks.items()}
        picked += [with_alias(exp.column(column, quoted=True), alias) for alias, column in stored.items()]
        return select(*picked).from_(origin.source.copy(), copy=False)

    def _tagged(self, statement: SqlStatement, table: exp.Table, columns: list[str], known: list[str]) -> exp.Select:
        """The hidden unit columns and order; rows without a valid unit key are dropped."""
        scope, origin = statement.scope(self), statement.origins[self.table]
        read, units = statement.ctx.columns(self.table), statement.ctx.dataset.units.values()
        sure = {name for name, domain in read.items() if not domain.nullable} - {u.keys.get(self.table) for u in units}
        missing = [name for name in self._unit_names(statement.ctx) if name not in sure and not origin.unique]
        picked: list[Sql] = [column_ref(column) for column in columns]
        for unit in known:
            values = self._unit_values(statement, unit, scope)
            picked += [with_alias(v, c) for v, c in zip(values, statement.unit_columns(unit), strict=True)]
        cells = [(column_ref(column), domain) for column, domain in zip(columns, scope.columns.values(), strict=True)]
        order = column_ref("o") if origin.order else statement.mix(cells, 1, self.packed(statement))
        if not (origin.order or statement.ordered or statement.ctx.enforced(statement.ctx.table(self.table))):
            order = integer(0)
        picked += [with_alias(order, "o"), *map(column_ref, ["b", *statement.trials()])]
        picked += [column_ref(statement.rank_column(unit)) for unit in statement.ranks(self)]
        body = select(*picked).from_(table, copy=False)
        valid = [is_not_null(scope.names[name]) for name in missing]
        return body.where(and_(valid), copy=False) if valid else body

    def _unit_names(self, ctx: Context) -> list[str]:
        units = ctx.dataset.units.values()
        found = [name for unit in units for name in (unit.keys.get(self.table), unit.times.get(self.table)) if name]
        return list(dict.fromkeys(found))

    def _unit_values(self, statement: SqlStatement, name: str, scope: Scope) -> list[Sql]:
        unit = statement.ctx.unit(name)
        values = [scope.names[str(unit.keys[self.table])]]
        if unit.kind == "window" and unit.every is not None:
            time = unit.times[self.table]
            moment = scope.columns[time]
            if not isinstance(moment, Moment):
                raise InvalidPlan(f"the window column {time} of {self.table} is not a moment")
            values.append(ordinal(scope.names[time], moment, unit.every, statement.dialect))
        return values

    def packed(self, statement: SqlStatement) -> frozenset[str]:
        if statement.origins[self.table].ready:
            return frozenset()
        declared, keys = statement.ctx.table(self.table).columns.items(), self._unit_names(statement.ctx)
        packs = statement.dialect.packs
        return frozenset(
            f"c{i}" for i, (name, column) in enumerate(declared) if name not in keys and packs(column.domain)
        )

    def ranked(self, statement: SqlStatement, unit: str) -> bool:
        return unit in statement.origins[self.table].ranks


def _any_dirty(conditions: list[Sql]) -> Sql:
    """How many of the conditions do not hold; where all do, none is counted one by one."""
    if not conditions:
        return integer(0)
    flags = [case([(condition, integer(0))], integer(1)) for condition in conditions]
    return case([(and_(conditions), integer(0))], add_all(flags))
