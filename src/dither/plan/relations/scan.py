"""Part of the former access.relation."""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from dither.errors import InvalidPlan
from dither.plan.context import Context
from dither.plan.domains import with_null
from dither.plan.expressions.core import ordinal
from dither.plan.relations.cleaning import clean, clean_key, clean_packed, sound
from dither.plan.relations.core import Relation
from dither.plan.sql.builders import (
    Sql,
    added,
    both,
    case,
    present,
    select,
    whole,
)
from dither.plan.sql.scope import Scope
from dither.plan.sql.statement import Statement, aliased, named
from dither.plan.stability import NONE, Influence
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

    def influence(self, ctx: Context, unit: str) -> Influence:
        table, keys = ctx.table(self.table), ctx.unit(unit).keys
        if not table.private or self.table not in keys:
            return NONE
        enforced, kind = ctx.enforced(table), ctx.unit(unit).kind
        if kind == "user":
            return Influence(True, 1, 1) if enforced else Influence(True, None, None)
        if enforced:
            return Influence(False, 2, 2)
        return Influence(True, 1, 1) if kind == "row" else Influence(True, None, None)

    def select(self, statement: Statement) -> exp.Select:
        ctx, columns = statement.ctx, [f"c{index}" for index in range(len(self.domain(statement.ctx)))]
        known, origin = statement.known(self), statement.origins[self.table]
        ranks = [statement.rank_column(unit) for unit in statement.ranks(self)]
        tagged = self._tagged(statement, statement.add(self._corrected(statement)), columns, known)
        table = ctx.table(self.table)
        if not ctx.enforced(table) or origin.unique:
            return tagged
        key = columns[list(self.domain(ctx)).index(str(table.unique))]
        carried = [*columns, *statement.hidden(known), *ranks]
        return statement.numbered(statement.add(tagged), carried, [named(key)], 1)

    def _corrected(self, statement: Statement) -> exp.Select:
        """Each raw value inside its domain, the number of corrections, and what a snapshot has stored."""
        origin, zone = statement.origins[self.table], statement.ctx.dataset.timezone
        names, spelling = {key: exp.column(key, quoted=True) for key in origin.kinds}, statement.spelling
        keys = {unit.keys.get(self.table) for unit in statement.ctx.dataset.units.values()}
        packed = self.packed(statement)
        picked: list[Sql] = []
        sure: list[Sql] = []
        for index, (name, column) in enumerate(statement.ctx.table(self.table).columns.items()):
            raw, kind = names[name], origin.kinds[name]
            cleaned = clean_packed if f"c{index}" in packed else clean_key if name in keys else clean
            picked.append(aliased(raw if origin.ready else cleaned(column, raw, kind, zone, spelling), f"c{index}"))
            if not origin.ready and name in statement.counted:
                sure.append(sound(column, raw, kind, spelling))
        picked.append(aliased(_unsound(sure), "b"))
        picked += [aliased(exp.column(str(statement.trial), quoted=True), name) for name in statement.trials()]
        stored = {"o": origin.order} if origin.order else {}
        stored |= {statement.rank_column(unit): column for unit, column in origin.ranks.items()}
        picked += [aliased(exp.column(column, quoted=True), alias) for alias, column in stored.items()]
        return select(*picked).from_(origin.source.copy(), copy=False)

    def _tagged(self, statement: Statement, table: exp.Table, columns: list[str], known: list[str]) -> exp.Select:
        """The hidden unit columns and order; rows without a valid unit key are dropped."""
        scope, origin = statement.scope(self), statement.origins[self.table]
        read, units = statement.ctx.columns(self.table), statement.ctx.dataset.units.values()
        sure = {name for name, domain in read.items() if not domain.nullable} - {u.keys.get(self.table) for u in units}
        missing = [name for name in self._unit_names(statement.ctx) if name not in sure and not origin.unique]
        picked: list[Sql] = [named(column) for column in columns]
        for unit in known:
            values = self._unit_values(statement, unit, scope)
            picked += [aliased(v, c) for v, c in zip(values, statement.unit_columns(unit), strict=True)]
        cells = [(named(column), domain) for column, domain in zip(columns, scope.columns.values(), strict=True)]
        order = named("o") if origin.order else statement.mix(cells, 1, self.packed(statement))
        if not (origin.order or statement.ordered or statement.ctx.enforced(statement.ctx.table(self.table))):
            order = whole(0)
        picked += [aliased(order, "o"), *map(named, ["b", *statement.trials()])]
        picked += [named(statement.rank_column(unit)) for unit in statement.ranks(self)]
        body = select(*picked).from_(table, copy=False)
        valid = [present(scope.names[name]) for name in missing]
        return body.where(both(valid), copy=False) if valid else body

    def _unit_names(self, ctx: Context) -> list[str]:
        units = ctx.dataset.units.values()
        found = [name for unit in units for name in (unit.keys.get(self.table), unit.times.get(self.table)) if name]
        return list(dict.fromkeys(found))

    def _unit_values(self, statement: Statement, name: str, scope: Scope) -> list[Sql]:
        unit = statement.ctx.unit(name)
        values = [scope.names[str(unit.keys[self.table])]]
        if unit.kind == "window" and unit.every is not None:
            time = unit.times[self.table]
            moment = scope.columns[time]
            if not isinstance(moment, Moment):
                raise InvalidPlan(f"the window column {time} of {self.table} is not a moment")
            values.append(ordinal(scope.names[time], moment, unit.every, statement.spelling))
        return values

    def packed(self, statement: Statement) -> frozenset[str]:
        if statement.origins[self.table].ready:
            return frozenset()
        declared, keys = statement.ctx.table(self.table).columns.items(), self._unit_names(statement.ctx)
        packs = statement.spelling.packs
        return frozenset(
            f"c{i}" for i, (name, column) in enumerate(declared) if name not in keys and packs(column.domain)
        )

    def ranked(self, statement: Statement, unit: str) -> bool:
        return unit in statement.origins[self.table].ranks


def _unsound(conditions: list[Sql]) -> Sql:
    """How many of the conditions do not hold; where all do, none is counted one by one."""
    if not conditions:
        return whole(0)
    flags = [case([(condition, whole(0))], whole(1)) for condition in conditions]
    return case([(both(conditions), whole(0))], added(flags))
