"""Operators on tables: each states its domain, how far one unit moves it, and its SQL.

A plan is pure data that names tables, columns and units; it is read in a `Context(dataset, facts)` from
`dither.access.context`, which holds public knowledge only:

    relation.domain(ctx)           -> dict[str, Domain], the visible columns in order
    relation.influence(ctx, unit)  -> Influence(unit, rows, distinct): does each row know its unit; most rows that
                                      one unit moves (None: no bound); most distinct rows
    relation.select(statement)     -> SQL, for engines

Rows carry hidden provenance columns for every unit; no expression can read or rewrite them. A GroupBy, Distinct,
UnitJoin, BoundRows or BoundGroups names the unit that it works by. Column names of two joined sides must differ
(rename with Project). A limit may be `Auto(tag)`: the kernel replaces it by `fill(plan, {tag: value})`; `autos(plan)`
lists them. `windows_touched(ctx, plan, unit)` gives the public time range of a plan for window units.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, wraps
from hashlib import sha256
from math import ceil, floor, prod
from typing import Any, ClassVar, Literal, TypeVar

from sqlglot import exp

from dither.access.clean import clean, clean_key, clean_packed, sound
from dither.access.context import Context
from dither.access.domains import as_boolean, cardinality, ends, merge, number, physical, span, with_null
from dither.access.expr import (
    And,
    Column,
    Compare,
    Constant,
    Expr,
    In,
    Instant,
    IsNull,
    Not,
    Scope,
    condition,
    convert,
    legible,
    ordinal,
    typed,
)
from dither.access.spelling import (
    Sql,
    add,
    added,
    binary,
    both,
    case,
    cast,
    plain,
    present,
    rows_count,
    select,
    text,
    whole,
)
from dither.access.statement import Statement, aliased, equal, inner, met, named, saturated
from dither.errors import InvalidParameter, InvalidPlan, Unbounded, Unsupported
from dither.schema import Category, Domain, Identifier, Moment, Number, Reference, Table

MOST_ROWS = 1 << 31
MOST_SUM = 1 << 53
MOST_REMEMBERED = 1 << 14


@dataclass(frozen=True)
class Auto:
    """A bound that the kernel finds privately first, between 1 and `most`; the same tag means the same bound."""

    tag: str = "bound"
    most: int = 1 << 20


Limit = int | Auto


@dataclass(frozen=True)
class PerKey:
    """At most `rows` rows of one unit in each of at most `groups` values of `keys`.

    `read` holds the columns that the keys compute with, and their domains where the bound was set: a key's value may
    depend on them.
    """

    keys: tuple[Expr, ...]
    groups: int
    rows: int
    read: tuple[tuple[str, Domain], ...] = ()

    def means(self, keys: tuple[Expr, ...], columns: Mapping[str, Domain]) -> bool:
        """Whether these keys, over these columns, have the very values that were bounded."""
        # By their spelling: equal nodes may differ, since Constant(1) == Constant(True).
        return repr(self.keys) == repr(keys) and all(columns.get(name) == domain for name, domain in self.read)


@dataclass(frozen=True)
class Influence:
    """How far one unit moves a relation; None means without bound.

    While `unit` holds, each row carries its unit and a unit moves only its own rows, at most `rows` of them. Otherwise
    `rows` bounds the symmetric difference of the rows (with their order), and `distinct` that of the different rows.
    """

    unit: bool
    rows: int | None
    distinct: int | None
    per_key: PerKey | None = None


NONE = Influence(unit=False, rows=0, distinct=0)


def product(*factors: int | None) -> int | None:
    """Multiplication where None is infinite and zero wins."""
    if 0 in factors:
        return 0
    known = [factor for factor in factors if factor is not None]
    return prod(known) if len(known) == len(factors) else None


def total(*terms: int | None) -> int | None:
    """Addition where None is infinite."""
    known = [term for term in terms if term is not None]
    return sum(known) if len(known) == len(terms) else None


def least(*bounds: int | None) -> int | None:
    """The smallest bound where None is infinite."""
    known = [bound for bound in bounds if bound is not None]
    return min(known) if known else None


def fixed(limit: Limit) -> int:
    """A limit that is known; an automatic one must be filled first."""
    if isinstance(limit, Auto):
        raise Unbounded(f"the automatic bound {limit.tag!r} has not been found yet")
    return limit


def check_limit(limit: Limit, name: str) -> None:
    """Limits are integers from 1 to 2^31."""
    most = limit.most if isinstance(limit, Auto) else limit
    if type(most) is not int or not 1 <= most <= MOST_ROWS:
        raise InvalidParameter(f"{name} must be an integer from 1 to 2^31")


def remembered(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of a relation that is worked out once in a context, so that deep plans take no exponential time."""

    @wraps(method)
    def once(self: Relation, ctx: Context, *unit: str) -> Any:
        # By identity: equal nodes may differ, since In(x, (1,)) == In(x, (True,)). A held node keeps its id to itself.
        which = (id(self), method.__qualname__, *unit)
        held = ctx.memo.get(which)
        if held is None:
            if len(ctx.memo) >= MOST_REMEMBERED:
                ctx.memo.clear()
            held = ctx.memo[which] = (self, method(self, ctx, *unit))
        return held[1]

    return once


class Relation(ABC):
    """A table computed from tables."""

    proof: ClassVar[str]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "proof" not in cls.__dict__:
            raise TypeError(f"{cls.__name__} must name its proof: proof = '<file>.md'")
        for name in {"domain", "influence"} & vars(cls).keys():
            setattr(cls, name, remembered(vars(cls)[name]))

    @abstractmethod
    def domain(self, ctx: Context) -> dict[str, Domain]:
        """The visible columns in order; from the schema alone."""

    @abstractmethod
    def influence(self, ctx: Context, unit: str) -> Influence:
        """How far one unit moves it."""

    @abstractmethod
    def select(self, statement: Statement) -> exp.Select | exp.SetOperation:
        """SQL for visible and hidden columns."""

    def ranked(self, statement: Statement, unit: str) -> bool:
        """Whether rows are still those of a scan with a stored rank within the unit."""
        return False

    def packed(self, statement: Statement) -> frozenset[str]:
        """The columns c0, c1, ... in which a byte stands for one of few texts; all others are as they are read."""
        return frozenset()


def moved(ctx: Context, child: Influence, unit: str, by: str, each: int, bound: int | None) -> Influence:
    """The influence of `unit` after each unit of `by` keeps a choice of its own rows, at most `bound` of them.

    One changed row changes at most `each` rows of the choice. See bound_rows.md.
    """
    if unit == by:
        rows = least(child.rows, bound)
        return Influence(True, rows, least(child.distinct, rows))
    if ctx.coarser(unit, by) and child.unit:
        rows = least(child.rows, product(bound, ctx.windows(by)))
        return Influence(True, rows, least(child.distinct, rows))
    changed = product(each, child.rows)
    if ctx.coarser(by, unit):
        changed = least(changed, product(2, bound)) if child.rows != 0 else 0
    return Influence(False, changed, changed)


def needs_unit(ctx: Context, child: Relation, unit: str, what: str) -> None:
    """Refuses where rows no longer know the unit."""
    ctx.keyed(unit)
    if not child.influence(ctx, unit).unit:
        raise Unsupported(
            f"{what} by {unit} needs rows that know their {unit}: do it below the join or grouping that lost it"
        )


def passed(statement: Statement, node: Relation, ranks: bool, table: str | None = None) -> list[Sql]:
    """The hidden columns of a relation, handed on as they are."""
    columns = statement.hidden(statement.known(node))
    if ranks:
        columns += [statement.rank_column(unit) for unit in statement.ranks(node)]
    return [named(column, table) for column in columns]


def handed_on(statement: Statement, node: Relation) -> list[Sql]:
    """All columns of a relation but its stored ranks, as they are: for operators that only choose among rows."""
    columns: list[Sql] = [named(f"c{index}") for index in range(len(node.domain(statement.ctx)))]
    return [*columns, *passed(statement, node, ranks=False)]


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


@dataclass(frozen=True)
class Where(Relation):
    """The rows for which the condition is true; refines the domains of columns compared with constants."""

    proof = "where.md"
    child: Relation
    condition: Expr

    def domain(self, ctx: Context) -> dict[str, Domain]:
        columns = self.child.domain(ctx)
        as_boolean(typed(self.condition, Scope(columns)), "WHERE")
        for part in _conjuncts(self.condition):
            columns = _refined(columns, part)
        return columns

    def influence(self, ctx: Context, unit: str) -> Influence:
        child = self.child.influence(ctx, unit)
        if child.per_key is None or child.per_key.means(child.per_key.keys, self.domain(ctx)):
            return child
        return replace(child, per_key=None)

    def packed(self, statement: Statement) -> frozenset[str]:
        return self.child.packed(statement)

    def select(self, statement: Statement) -> exp.Select:
        table, scope = statement.table(self.child), statement.scope(self.child)
        columns = handed_on(statement, self.child)
        # The condition must hold: NULL drops the row.
        return select(*columns).from_(table, copy=False).where(condition(self.condition, scope, "WHERE"), copy=False)


def _conjuncts(node: Expr) -> Iterator[Expr]:
    if isinstance(node, And):
        for child in node.children:
            yield from _conjuncts(child)
    else:
        yield node


FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "<>": "<>"}


def _refined(columns: dict[str, Domain], part: Expr) -> dict[str, Domain]:
    """What a true conjunct says about a column; a contradiction says nothing, and the answer keeps its shape."""
    match part:
        case Compare(op=op, left=Column(name=name), right=(Constant() | Instant()) as bound):
            return {**columns, name: _compared(columns[name], op, bound.domain(Scope(columns)))}
        case Compare(op=op, left=(Constant() | Instant()) as bound, right=Column(name=name)):
            return {**columns, name: _compared(columns[name], FLIPPED[op], bound.domain(Scope(columns)))}
        case In(child=Column(name=name)):
            return {**columns, name: _listed(columns[name], part.held(columns[name]))}
        case Not(child=IsNull(child=Column(name=name))):
            return {**columns, name: with_null(columns[name], False)}
        case _:
            return columns


def _compared(domain: Domain, op: str, bound: Domain) -> Domain:
    domain = with_null(domain, False)
    match domain, bound:
        case Number(step=step), Number():
            return _cut(domain, op, floor(bound.lo / step), ceil(bound.lo / step))
        case Moment(), Moment():
            # Whole microseconds: what lies before an instant ends one earlier, in the window before it.
            return _cut(domain, op, bound.lo - (op == "<"), bound.lo + (op == ">"))
        case Category(values=values), Category(values=(wanted,)) if op == "=":
            return replace(domain, values=tuple(v for v in values if v == wanted) or values)
        case Category(values=values), Category(values=(wanted,)) if op == "<>":
            return replace(domain, values=tuple(v for v in values if v != wanted) or values)
        case _:
            return domain


def _cut(domain: Number | Moment, op: str, below: int, above: int) -> Domain:
    """The part of a domain on one side of a bound, which is included."""
    lo, hi = span(domain)
    match op:
        case "<" | "<=":
            hi = min(hi, below)
        case ">" | ">=":
            lo = max(lo, above)
        case "=":
            lo, hi = max(lo, above), min(hi, below)
    if lo > hi:
        return domain
    if isinstance(domain, Number):
        return number(lo, hi, domain.step, domain.nullable)
    return replace(domain, lo=lo, hi=hi)


def _listed(domain: Domain, held: list[int | str | bool]) -> Domain:
    domain = with_null(domain, False)
    if isinstance(domain, Category):
        return replace(domain, values=tuple(v for v in domain.values if v in held) or domain.values)
    whole_numbers = [value for value in held if isinstance(value, int)]
    if isinstance(domain, Number | Moment) and whole_numbers:
        low = _cut(domain, ">=", min(whole_numbers), min(whole_numbers))
        return _cut(low, "<=", max(whole_numbers), max(whole_numbers)) if isinstance(low, Number | Moment) else low
    return domain


@dataclass(frozen=True)
class Project(Relation):
    """New columns (name, expression), in order; hidden provenance stays."""

    proof = "project.md"
    child: Relation
    columns: tuple[tuple[str, Expr], ...]

    def __post_init__(self) -> None:
        distinct_names([name for name, _ in self.columns])

    def domain(self, ctx: Context) -> dict[str, Domain]:
        scope = Scope(self.child.domain(ctx))
        return {name: typed(value, scope) for name, value in self.columns}

    def influence(self, ctx: Context, unit: str) -> Influence:
        child = self.child.influence(ctx, unit)
        kept = {value.name for name, value in self.columns if isinstance(value, Column) and value.name == name}
        if child.per_key is None or all(reads(key) <= kept for key in child.per_key.keys):
            return child
        return replace(child, per_key=None)

    def select(self, statement: Statement) -> exp.Select:
        table, scope = statement.table(self.child), statement.scope(self.child)
        same = self._same(statement)
        picked = [
            aliased(named(same[f"c{index}"]) if f"c{index}" in same else value.sql(scope), f"c{index}")
            for index, (_, value) in enumerate(self.columns)
        ]
        return select(*picked, *passed(statement, self.child, ranks=True)).from_(table, copy=False)

    def _same(self, statement: Statement) -> dict[str, str]:
        """The columns that are packed columns of the child under another name."""
        names = {name: f"c{index}" for index, name in enumerate(self.child.domain(statement.ctx))}
        bare = {f"c{i}": names[v.name] for i, (_, v) in enumerate(self.columns) if isinstance(v, Column)}
        packed = self.child.packed(statement)
        return {new: old for new, old in bare.items() if old in packed}

    def packed(self, statement: Statement) -> frozenset[str]:
        return frozenset(self._same(statement))

    def ranked(self, statement: Statement, unit: str) -> bool:
        return self.child.ranked(statement, unit)


def distinct_names(names: list[str]) -> None:
    """Column names must differ."""
    if len(set(names)) != len(names):
        raise InvalidPlan("two columns have the same name; rename one of them")


def reads(node: Any) -> set[str]:
    """The columns that an expression, or a whole plan, reads."""
    return {part.name for part in walk(node) if isinstance(part, Column)}


def computed_with(keys: tuple[Expr, ...], columns: Mapping[str, Domain]) -> tuple[tuple[str, Domain], ...]:
    """The columns that keys compute with, and their domains; a bare column is handed on, whatever its domain."""
    names = {name for key in keys if not isinstance(key, Column) for name in reads(key)}
    return tuple((name, columns[name]) for name in sorted(names & columns.keys()))


@dataclass(frozen=True)
class Union(Relation):
    """UNION ALL of two relations with the same column names and kinds of domain."""

    proof = "union.md"
    left: Relation
    right: Relation

    def domain(self, ctx: Context) -> dict[str, Domain]:
        left = self.left.domain(ctx)
        right = left if self.left == self.right else self.right.domain(ctx)
        if list(left) != list(right):
            raise InvalidPlan("the two sides of a union must have the same columns in the same order")
        return {name: merge([left[name], right[name]]) for name in left}

    def influence(self, ctx: Context, unit: str) -> Influence:
        left = self.left.influence(ctx, unit)
        right = left if self.left == self.right else self.right.influence(ctx, unit)
        # Equal leaves are equal tables: a unit moves the same different rows in each.
        distinct = total(*(leaf.influence(ctx, unit).distinct for leaf in dict.fromkeys(self.leaves())))
        return Influence(left.unit and right.unit, total(left.rows, right.rows), distinct)

    def leaves(self) -> Iterator[Relation]:
        """What is united, through unions of unions."""
        for side in (self.left, self.right):
            if isinstance(side, Union):
                yield from side.leaves()
            else:
                yield side

    def select(self, statement: Statement) -> exp.SetOperation:
        merged, known = self.domain(statement.ctx), statement.known(self)
        sides = [
            self._side(statement, side, branch, merged, known) for branch, side in enumerate((self.left, self.right))
        ]
        return exp.union(*sides, distinct=False)

    def _side(
        self, statement: Statement, side: Relation, branch: int, merged: dict[str, Domain], known: list[str]
    ) -> exp.Select:
        table, scope = statement.table(side), statement.scope(side)
        picked = [
            aliased(convert(scope.names[name], scope.columns[name], merged[name]), f"c{index}")
            for index, name in enumerate(merged)
        ]
        hidden = [named(column) for unit in known for column in statement.unit_columns(unit)]
        order = aliased(statement.mix_orders([named("o")], 11 + branch), "o")
        return select(*picked, *hidden, order, *map(named, ["b", *statement.trials()])).from_(table, copy=False)


@dataclass(frozen=True)
class Distinct(Relation):
    """Each different row once; with `unit`, once per unit (SELECT DISTINCT with the unit's key among the columns)."""

    proof = "distinct.md"
    child: Relation
    unit: str | None = None

    def domain(self, ctx: Context) -> dict[str, Domain]:
        if self.unit is not None:
            needs_unit(ctx, self.child, self.unit, "DISTINCT")
        return self.child.domain(ctx)

    def influence(self, ctx: Context, unit: str) -> Influence:
        child = self.child.influence(ctx, unit)
        rows = least(child.distinct, self._most(ctx))
        if self.unit is None:
            return Influence(False, rows, rows)
        if unit == self.unit:
            return Influence(True, rows, rows)
        if ctx.coarser(unit, self.unit) and child.unit:
            return Influence(True, child.rows, child.rows)
        rows = rows if ctx.coarser(self.unit, unit) else child.rows
        return Influence(False, rows, rows)

    def _most(self, ctx: Context) -> int | None:
        """The number of different rows that the domains allow."""
        return product(*(_size(domain) for domain in self.child.domain(ctx).values()))

    def select(self, statement: Statement) -> exp.Select:
        units = [self.unit] if self.unit else []
        coarse = [u for u in statement.known(self) if u not in units]
        table, keys = statement.table(self.child), statement.visible(self.child)
        return grouped(statement, table, keys, [], self.domain(statement.ctx), units + coarse)


def _size(domain: Domain) -> int | None:
    """How many values a domain has, at least one; None where records may hold others than the listed ones."""
    # A zero would say that no unit moves anything: a domain that counts as empty must never make an answer free.
    return None if isinstance(domain, Identifier | Reference) else max(1, cardinality(domain))


def grouped(
    statement: Statement,
    table: exp.Table,
    keys: list[Sql],
    values: list[Sql],
    domain: dict[str, Domain],
    units: list[str],
) -> exp.Select:
    """One row per group, with an order that depends on the visible row and its unit alone."""
    hidden = [named(column) for unit in units for column in statement.unit_columns(unit)]
    picked = [aliased(value, f"g{index}") for index, value in enumerate([*keys, *values])]
    corrections = aliased(saturated(statement.spelling.total(named("b")), MOST_SUM), "b")
    body = select(*picked, *hidden, corrections, *map(named, statement.trials())).from_(table, copy=False)
    trials: list[Sql] = [named(column) for column in statement.trials()]
    by = [*keys, *hidden, *trials]
    body = body.group_by(*(key.copy() for key in by), copy=False) if by else body
    columns = [(named(f"g{index}"), each) for index, each in enumerate(domain.values())]
    columns += [(column, _unit_domain(statement, column)) for column in hidden]
    order = aliased(statement.mix(columns, 3) if statement.ordered else whole(0), "o")
    names = [aliased(named(f"g{index}"), f"c{index}") for index in range(len(domain))]
    return select(*names, *hidden, order, named("b"), *trials).from_(statement.add(body), copy=False)


def _unit_domain(statement: Statement, column: Sql) -> Domain:
    """How a hidden column is mixed into an order: a window is an integer, a key is as its table declares it."""
    index = int(column.name[1:])
    unit = list(statement.ctx.dataset.units.values())[index]
    table, key = next(iter(unit.keys.items()))
    declared = statement.ctx.table(table).columns[str(key)].domain
    kind: Literal["integer", "text"] = (
        "text" if physical(declared) == "varchar" and column.name[0] == "u" else "integer"
    )
    return Identifier(kind)


@dataclass(frozen=True)
class PublicJoin(Relation):
    """Join with a public table, or with a context table by its unique key; `on` pairs (child column, public column).

    inner; left: the private side is preserved; right: the public side is preserved (`urls LEFT JOIN actions`).
    `public` may be a Scan with Where and Project above it.
    """

    proof = "public_join.md"
    child: Relation
    public: Relation
    on: tuple[tuple[str, str], ...]
    how: Literal["inner", "left", "right"] = "inner"

    def __post_init__(self) -> None:
        if not self.on:
            raise InvalidPlan("a join needs at least one pair of columns")

    def domain(self, ctx: Context) -> dict[str, Domain]:
        self._source(ctx)
        left, right = self.child.domain(ctx), self.public.domain(ctx)
        check_on(left, right, self.on)
        return joined(left, right, left_missing=self.how == "right", right_missing=self.how == "left")

    def influence(self, ctx: Context, unit: str) -> Influence:
        if self.public.influence(ctx, unit).rows != 0:
            raise Unsupported(f"the {unit} unit covers both sides of this join; join on the unit's key instead")
        child, most = self.child.influence(ctx, unit), self.multiplicity(ctx)
        match self.how:
            case "inner":
                return Influence(child.unit, product(child.rows, most), product(child.distinct, most))
            case "left":
                most = max(1, most)
                return Influence(child.unit, product(child.rows, most), product(child.distinct, most))
            case "right":
                return Influence(False, product(2, most, child.rows), product(2, most, child.distinct))

    def multiplicity(self, ctx: Context) -> int:
        """The most public rows that one private row can meet."""
        table, names = self._source(ctx)
        counts = [ctx.multiplicity(table, names[column]) for _, column in self.on if column in names]
        known = [count for count in counts if count is not None]
        if not known:
            raise Unbounded(f"nobody has counted how often a key occurs in {table.name}; join by its unique column")
        return min(known)

    def _source(self, ctx: Context) -> tuple[Table, dict[str, str]]:
        """The table behind the public side, and which of its columns each name still is."""
        match self.public:
            case Scan(table=name):
                return ctx.table(name), {column: column for column in ctx.table(name).columns}
            case Where(child=child):
                return replace(self, public=child)._source(ctx)
            case Project(child=child, columns=columns):
                table, names = replace(self, public=child)._source(ctx)
                kept = {new: old.name for new, old in columns if isinstance(old, Column)}
                return table, {new: names[old] for new, old in kept.items() if old in names}
            case _:
                raise Unsupported("the public side of a join may be a table, filtered and projected, and nothing else")

    def select(self, statement: Statement) -> exp.Select:
        ctx, known = statement.ctx, statement.known(self)
        private, public = statement.table(self.child), statement.table(self.public)
        columns = join_columns(statement, self.child, self.public)
        hidden = [aliased(named(c, "l"), c) for unit in known for c in statement.unit_columns(unit)]
        if self.ranked_here(ctx):
            hidden += [aliased(named(c, "l"), c) for c in map(statement.rank_column, statement.ranks(self.child))]
        hidden += join_hidden(statement, seed=21, left=self.how != "right", right=self.how != "left")
        matched = equal([*join_pairs(statement, self.child, self.public, self.on), *join_trials(statement)])
        sides = (private, "l"), (public, "r")
        first, second = reversed(sides) if self.how == "right" else sides
        return met([*columns, *hidden], first, second, matched, "inner" if self.how == "inner" else "left")

    def ranked_here(self, ctx: Context) -> bool:
        """Whether each private row stays exactly one row."""
        return self.how == "left" and self.multiplicity(ctx) <= 1

    def ranked(self, statement: Statement, unit: str) -> bool:
        return self.ranked_here(statement.ctx) and self.child.ranked(statement, unit)


def check_on(left: dict[str, Domain], right: dict[str, Domain], on: tuple[tuple[str, str], ...]) -> None:
    """The columns of a join condition must exist and be comparable."""
    scope = {**{f"l.{name}": d for name, d in left.items()}, **{f"r.{name}": d for name, d in right.items()}}
    for one, other in on:
        Compare("=", Column(f"l.{one}"), Column(f"r.{other}")).domain(Scope(scope))


def joined(
    left: dict[str, Domain], right: dict[str, Domain], *, left_missing: bool = False, right_missing: bool = False
) -> dict[str, Domain]:
    """The columns of both sides, NULL where a side may be missing."""
    distinct_names([*left, *right])
    first = {name: with_null(domain, domain.nullable or left_missing) for name, domain in left.items()}
    return first | {name: with_null(domain, domain.nullable or right_missing) for name, domain in right.items()}


def join_columns(statement: Statement, left: Relation, right: Relation) -> list[Sql]:
    """The visible columns of both sides, numbered on."""
    both_sides = [*statement.visible(left, "l"), *statement.visible(right, "r")]
    return [aliased(column, f"c{index}") for index, column in enumerate(both_sides)]


def join_pairs(
    statement: Statement, left: Relation, right: Relation, on: tuple[tuple[str, str], ...]
) -> list[tuple[Sql, Sql]]:
    """The pairs of columns that must be equal, on a common lattice."""
    one, other = statement.scope(left, "l"), statement.scope(right, "r")
    pairs = []
    for a, b in on:
        first, second = one.columns[a], other.columns[b]
        target = merge([first, second]) if isinstance(first, Number) and isinstance(second, Number) else first
        shared = target if isinstance(target, Number) else second
        pairs.append((convert(one.names[a], first, target), convert(other.names[b], second, shared)))
    return pairs


def join_hidden(statement: Statement, seed: int, left: bool = True, right: bool = True) -> list[Sql]:
    """The order and the corrections of a joined row; a side that may be missing counts as zero."""
    sides = [(named("o", "l"), named("b", "l"), left), (named("o", "r"), named("b", "r"), right)]
    orders = [order if sure else exp.Coalesce(this=order, expressions=[plain(0)]) for order, _, sure in sides]
    counts = [count if sure else exp.Coalesce(this=count, expressions=[plain(0)]) for _, count, sure in sides]
    trials = [aliased(named(column, "l" if left else "r"), column) for column in statement.trials()]
    return [aliased(statement.mix_orders(orders, seed), "o"), aliased(add(*counts), "b"), *trials]


def join_trials(statement: Statement) -> list[tuple[Sql, Sql]]:
    """Rows of one trial meet rows of the same trial."""
    return [(named(column, "l"), named(column, "r")) for column in statement.trials()]


@dataclass(frozen=True)
class UnitJoin(Relation):
    """Join of two relations whose rows know their unit, on that unit's hidden key."""

    proof = "unit_join.md"
    left: Relation
    right: Relation
    unit: str
    how: Literal["inner", "left"] = "inner"

    def domain(self, ctx: Context) -> dict[str, Domain]:
        for side in (self.left, self.right):
            needs_unit(ctx, side, self.unit, "a join")
        return joined(self.left.domain(ctx), self.right.domain(ctx), right_missing=self.how == "left")

    def influence(self, ctx: Context, unit: str) -> Influence:
        left, right = self.left.influence(ctx, unit), self.right.influence(ctx, unit)
        if unit == self.unit:
            return Influence(True, self._own(left.rows, right.rows), self._own(left.distinct, right.distinct))
        most_left = self.left.influence(ctx, self.unit).rows
        most_right = self.right.influence(ctx, self.unit).rows
        if ctx.coarser(unit, self.unit) and left.unit and right.unit:
            rows = self._own(left.rows, most_right)
            rows = least(rows, product(most_left, right.rows)) if self.how == "inner" else rows
            return Influence(True, rows, rows)
        rows = total(self._own(left.rows, most_right), product(self._flips, most_left, right.rows))
        return Influence(left.unit and right.rows == 0, rows, rows)

    def _own(self, left: int | None, right: int | None) -> int | None:
        if self.how == "inner" or right is None:
            return product(left, right)
        return product(left, max(1, right))

    @property
    def _flips(self) -> int:
        """A changed right row changes its pairs and, in a left join, may fill or empty a missing side."""
        return 2 if self.how == "left" else 1

    def select(self, statement: Statement) -> exp.Select:
        columns, known = join_columns(statement, self.left, self.right), statement.known(self)
        hidden = [aliased(named(c, "l"), c) for unit in known for c in statement.unit_columns(unit)]
        hidden += join_hidden(statement, seed=31, right=self.how == "inner")
        keys = [(named(c, "l"), named(c, "r")) for c in statement.unit_columns(self.unit)]
        matched = equal([*keys, *join_trials(statement)])
        left, right = statement.table(self.left), statement.table(self.right)
        return met([*columns, *hidden], (left, "l"), (right, "r"), matched, self.how)


@dataclass(frozen=True)
class KeyJoin(Relation):
    """Inner join on other columns, after each side keeps at most so many rows per key, by an order of the row alone."""

    proof = "key_join.md"
    left: Relation
    right: Relation
    on: tuple[tuple[str, str], ...]
    left_limit: Limit
    right_limit: Limit

    def __post_init__(self) -> None:
        check_limit(self.left_limit, "the left limit of a join")
        check_limit(self.right_limit, "the right limit of a join")
        if not self.on:
            raise InvalidPlan("a join needs at least one pair of columns")

    def domain(self, ctx: Context) -> dict[str, Domain]:
        left, right = self.left.domain(ctx), self.right.domain(ctx)
        check_on(left, right, self.on)
        return joined(left, right)

    def influence(self, ctx: Context, unit: str) -> Influence:
        left, right = self.left.influence(ctx, unit), self.right.influence(ctx, unit)
        rows = total(
            product(2, left.rows, fixed(self.right_limit)),
            product(2, right.rows, fixed(self.left_limit)),
        )
        return Influence(False, rows, rows)

    def select(self, statement: Statement) -> exp.Select:
        columns = join_columns(statement, self.left, self.right)
        hidden = join_hidden(statement, seed=41)
        matched = equal([*join_pairs(statement, self.left, self.right, self.on), *join_trials(statement)])
        left = self._side(statement, self.left, [one for one, _ in self.on], fixed(self.left_limit))
        right = self._side(statement, self.right, [other for _, other in self.on], fixed(self.right_limit))
        return met([*columns, *hidden], (left, "l"), (right, "r"), matched, "inner")

    def _side(self, statement: Statement, side: Relation, keys: list[str], limit: int) -> exp.Table:
        scope, table = statement.scope(side), statement.table(side)
        columns = [*(f"c{index}" for index in range(len(scope.columns))), "o", "b", *statement.trials()]
        return statement.add(statement.numbered(table, columns, [scope.names[key] for key in keys], limit))


@dataclass(frozen=True)
class Aggregate:
    """A column of a GroupBy: count of rows or of non-NULL values, distinct values, sum, min or max.

    `value` is None for COUNT(*). Counts stop at 2^31 and sums at +-2^53 steps, or lower where the unit's rows are
    bounded; the sum of no values is 0.
    """

    name: str
    kind: Literal["count", "distinct", "sum", "min", "max"]
    value: Expr | None = None

    def __post_init__(self) -> None:
        if self.value is None and self.kind != "count":
            raise InvalidPlan(f"the aggregate {self.kind} needs a value")

    def domain(self, scope: Scope, rows: int, always: bool) -> Domain:
        """Its domain, for groups of at most `rows` rows; `always`: there is a row even when the group is empty."""
        value = typed(self.value, scope) if self.value is not None else None
        if self.kind in ("count", "distinct") or value is None:
            return number(0, min(rows, MOST_ROWS))
        if self.kind == "sum":
            if not isinstance(value, Number):
                raise InvalidPlan("SUM takes numbers")
            lo, hi = ends(value)
            return number(max(min(lo, 0) * rows, -MOST_SUM), min(max(hi, 0) * rows, MOST_SUM), value.step)
        span(value)
        return with_null(value, value.nullable or always)

    def sql(self, statement: Statement, scope: Scope, domain: Domain) -> Sql:
        """The aggregate, held inside its domain."""
        if self.value is None:
            return saturated(rows_count(), span(domain)[1])
        value = self.value.sql(scope)
        match self.kind:
            case "count":
                return saturated(exp.Count(this=value), span(domain)[1])
            case "distinct":
                return saturated(exp.Count(this=exp.Distinct(expressions=[value])), span(domain)[1])
            case "sum":
                lo, hi = span(domain)
                return saturated(statement.spelling.total(value), hi, lo)
            case "min":
                return exp.Min(this=value)
            case "max":
                return exp.Max(this=value)


@dataclass(frozen=True)
class GroupBy(Relation):
    """One row per group that occurs: key columns, then aggregates; with `unit`, groups are also split by unit."""

    proof = "group_by.md"
    child: Relation
    keys: tuple[tuple[str, Expr], ...]
    aggregates: tuple[Aggregate, ...] = ()
    unit: str | None = None

    def domain(self, ctx: Context) -> dict[str, Domain]:
        if self.unit is not None:
            needs_unit(ctx, self.child, self.unit, "GROUP BY")
        distinct_names([name for name, _ in self.keys] + [aggregate.name for aggregate in self.aggregates])
        scope = Scope(self.child.domain(ctx))
        columns = {name: typed(key, scope) for name, key in self.keys}
        rows, always = self._rows(ctx), not self.keys and self.unit is None
        return columns | {a.name: a.domain(scope, rows, always) for a in self.aggregates}

    def _rows(self, ctx: Context) -> int:
        """The most rows of one group."""
        if self.unit is None:
            return MOST_ROWS
        return least(self.child.influence(ctx, self.unit).rows, MOST_ROWS) or 0

    def influence(self, ctx: Context, unit: str) -> Influence:
        child, groups = self.child.influence(ctx, unit), self._groups(ctx)
        if self.unit is not None and unit == self.unit:
            rows = least(child.rows, groups)
            keys = tuple(Column(name) for name, _ in self.keys)
            return Influence(True, rows, rows, PerKey(keys, rows, 1) if rows is not None else None)
        if self.unit is not None and ctx.coarser(unit, self.unit) and child.unit:
            rows = least(child.rows, product(groups, ctx.windows(self.unit)))
            return Influence(True, rows, rows)
        one_place = self.unit is None or ctx.coarser(self.unit, unit)
        changed = product(2, least(child.rows, groups) if one_place and child.rows != 0 else child.rows)
        return Influence(False, changed, changed)

    def _groups(self, ctx: Context) -> int | None:
        """The number of groups (of each unit) that the keys' domains allow."""
        scope = Scope(self.child.domain(ctx))
        return product(*(_size(key.domain(scope)) for _, key in self.keys))

    def select(self, statement: Statement) -> exp.Select:
        domain, scope = self.domain(statement.ctx), statement.scope(self.child)
        inputs = [aliased(key.sql(scope), f"k{index}") for index, (_, key) in enumerate(self.keys)]
        keys: list[Sql] = [named(f"k{index}") for index in range(len(self.keys))]
        values = [a.sql(statement, scope, domain[a.name]) for a in self.aggregates]
        table = statement.table(self.child)
        table = statement.add(select(exp.Star(), *inputs).from_(table, copy=False)) if inputs else table
        return grouped(statement, table, keys, values, domain, statement.known(self))


@dataclass(frozen=True)
class Sample(Relation):
    """Each row, or each whole unit, kept with probability `rate` by a fresh secret; tags tell samples apart."""

    proof = "sample.md"
    child: Relation
    rate: Fraction
    unit: str | None = None
    tag: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise InvalidParameter("a sampling rate must be above 0 and at most 1")
        legible(self.tag)

    def domain(self, ctx: Context) -> dict[str, Domain]:
        if self.unit is not None:
            needs_unit(ctx, self.child, self.unit, "sampling")
        return self.child.domain(ctx)

    def influence(self, ctx: Context, unit: str) -> Influence:
        return self.child.influence(ctx, unit)

    def packed(self, statement: Statement) -> frozenset[str]:
        return self.child.packed(statement)

    def select(self, statement: Statement) -> exp.Select:
        names = statement.unit_columns(self.unit) if self.unit is not None else ["o"]
        # A keyed hash: whether one unit is kept says nothing about another, as amplification by sampling needs.
        text_of: Sql = text(sha256(f"{statement.secret}:{self.tag}".encode()).hexdigest())
        for name in names:
            text_of = binary(exp.DPipe, binary(exp.DPipe, text_of, text(":")), cast(named(name), "varchar"))
        kept = binary(exp.LT, statement.spelling.fingerprint(text_of), plain(floor(self.rate * (1 << 32))))
        columns = handed_on(statement, self.child)
        return select(*columns).from_(statement.table(self.child), copy=False).where(kept, copy=False)


@dataclass(frozen=True)
class BoundRows(Relation):
    """At most `limit` rows of each unit, chosen pseudo-randomly among that unit's own rows."""

    proof = "bound_rows.md"
    child: Relation
    unit: str
    limit: Limit

    def __post_init__(self) -> None:
        check_limit(self.limit, "a bound on rows")

    def domain(self, ctx: Context) -> dict[str, Domain]:
        needs_unit(ctx, self.child, self.unit, "a bound")
        return self.child.domain(ctx)

    def influence(self, ctx: Context, unit: str) -> Influence:
        needs_unit(ctx, self.child, self.unit, "a bound")
        child = self.child.influence(ctx, unit)
        after = moved(ctx, child, unit, self.unit, each=2, bound=fixed(self.limit))
        return replace(after, per_key=child.per_key) if after.unit else after

    def packed(self, statement: Statement) -> frozenset[str]:
        return self.child.packed(statement)

    def select(self, statement: Statement) -> exp.Select:
        table, limit = statement.table(self.child), fixed(self.limit)
        columns = handed_on(statement, self.child)
        if self.child.ranked(statement, self.unit):
            rank = named(statement.rank_column(self.unit))
            return select(*columns).from_(table, copy=False).where(binary(exp.LTE, rank, plain(limit)), copy=False)
        # The partition is the unit: the choice depends on this unit's rows alone (proof, step 2).
        by = [named(column) for column in statement.unit_columns(self.unit)]
        return statement.numbered(table, [column.name for column in columns], by, limit)


@dataclass(frozen=True)
class BoundGroups(Relation):
    """At most `rows` rows in each of at most `groups` values of `keys`, for each unit."""

    proof = "bound_groups.md"
    child: Relation
    unit: str
    keys: tuple[Expr, ...]
    groups: Limit
    rows: Limit

    def __post_init__(self) -> None:
        check_limit(self.groups, "a bound on groups")
        check_limit(self.rows, "a bound on rows per group")

    def domain(self, ctx: Context) -> dict[str, Domain]:
        needs_unit(ctx, self.child, self.unit, "a bound")
        columns = self.child.domain(ctx)
        for key in self.keys:
            typed(key, Scope(columns))
        return columns

    def influence(self, ctx: Context, unit: str) -> Influence:
        needs_unit(ctx, self.child, self.unit, "a bound")
        groups, rows = fixed(self.groups), fixed(self.rows)
        after = moved(ctx, self.child.influence(ctx, unit), unit, self.unit, each=1 + rows, bound=groups * rows)
        bound = PerKey(self.keys, groups, rows, computed_with(self.keys, self.child.domain(ctx)))
        return replace(after, per_key=bound) if unit == self.unit else after

    def packed(self, statement: Statement) -> frozenset[str]:
        return self.child.packed(statement)

    def select(self, statement: Statement) -> exp.Select:
        scope = statement.scope(self.child)
        columns = handed_on(statement, self.child)
        names, unit = [column.name for column in columns], [named(c) for c in statement.unit_columns(self.unit)]
        trials: list[Sql] = [named(column) for column in statement.trials()]
        domains = [key.domain(scope) for key in self.keys]
        picked = [aliased(key.sql(scope), f"k{index}") for index, key in enumerate(self.keys)]
        keys = [named(f"k{index}") for index in range(len(self.keys))]
        keyed = statement.add(select(*columns, *picked).from_(statement.table(self.child), copy=False))
        extended = [(c, _unit_domain(statement, c)) for c in unit] + list(zip(keys, domains, strict=True))
        mixed = aliased(statement.mix(extended, 51), "g")
        ordered = statement.add(select(*(named(n) for n in names), *keys, mixed).from_(keyed, copy=False))
        carried = [*names, *(key.name for key in keys), "g"]
        within = statement.numbered(ordered, carried, [*unit, *keys], fixed(self.rows))
        return self._groups(statement, statement.add(within), names, [*unit, *trials], keys)

    def _groups(
        self, statement: Statement, table: exp.Table, names: list[str], unit: list[Sql], keys: list[Sql]
    ) -> exp.Select:
        """The first groups of each unit, in an order of the group's keys and unit alone."""
        order = exp.Order(expressions=[statement.sorted_by("g"), *(key.copy() for key in keys)])
        window = exp.Window(this=exp.DenseRank(), partition_by=[u.copy() for u in unit], order=order)
        ranked = select(*(named(n) for n in names), aliased(window, "n")).from_(table, copy=False)
        kept = binary(exp.LTE, named("n"), plain(fixed(self.groups)))
        return select(*(named(n) for n in names)).from_(inner(ranked), copy=False).where(kept, copy=False)


Node = TypeVar("Node")


def walk(plan: Any) -> Iterator[Any]:
    """Every node of a plan, parents first."""
    left = [plan]
    while left:
        node = left.pop()
        if isinstance(node, tuple):
            left.extend(reversed(node))
        elif (names := _parts(node.__class__)) is not None:
            yield node
            left.extend(getattr(node, name) for name in reversed(names))


@cache
def _parts(kind: type) -> tuple[str, ...] | None:
    """The names of the parts of a kind of node; None for what is no node."""
    return tuple(part.name for part in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else None


def needs_order(plan: Any) -> bool:
    """Whether some operator of a plan chooses among rows."""
    return any(isinstance(node, BoundRows | BoundGroups | KeyJoin | Sample) for node in walk(plan))


def autos(plan: Any) -> frozenset[Auto]:
    """The automatic bounds of a plan that have not been filled."""
    return frozenset(node for node in walk(plan) if isinstance(node, Auto))


def fill(plan: Node, found: Mapping[str, int]) -> Node:
    """The plan with its automatic bounds replaced, each held between 1 and its `most`."""
    return _filled(plan, found)  # type: ignore[no-any-return]


def _filled(node: Any, found: Mapping[str, int]) -> Any:
    if isinstance(node, Auto):
        return max(1, min(found[node.tag], node.most)) if node.tag in found else node
    # What holds no bound stays the very node that it is: what is known about it need not be worked out again.
    if isinstance(node, tuple):
        items = [_filled(item, found) for item in node]
        return node if _same(items, node) else tuple(items)
    if (names := _parts(node.__class__)) is not None:
        before = [getattr(node, name) for name in names]
        after = [_filled(part, found) for part in before]
        return node if _same(after, before) else type(node)(**dict(zip(names, after, strict=True)))
    return node


def _same(ones: Sequence[Any], others: Sequence[Any]) -> bool:
    return all(one is other for one, other in zip(ones, others, strict=True))


def windows_touched(ctx: Context, plan: Any, unit: str) -> tuple[int, int] | None:
    """The public range of moments from which a plan reads rows that a window unit covers; None if it reads none."""
    times, spans = ctx.unit(unit).times, []
    covered = {node for node in walk(plan) if isinstance(node, Scan) and node.table in times}
    for scan in covered:
        top = [node for node in walk(plan) if isinstance(node, Where) and _base(node) == scan]
        bare = any(child == scan for node in walk(plan) if not isinstance(node, Where) for child in _inputs(node))
        # Keeping one row per unique key chooses before any filter: a row of another window can push one out.
        whole_range = bare or plan == scan or ctx.enforced(ctx.table(scan.table))
        nodes: list[Relation] = [scan] if whole_range else [*top]
        spans += [span(node.domain(ctx)[times[scan.table]]) for node in nodes]
    return (min(lo for lo, _ in spans), max(hi for _, hi in spans)) if spans else None


def _base(node: Relation) -> Relation:
    return _base(node.child) if isinstance(node, Where) else node


def _inputs(node: Any) -> list[Any]:
    return [getattr(node, name) for name in _parts(node.__class__) or ()]


BY_NAME: dict[str, type] = {
    node.__name__: node
    for node in (
        Auto, Scan, Where, Project, Union, Distinct, PublicJoin, UnitJoin, KeyJoin, Aggregate, GroupBy, Sample,
        BoundRows, BoundGroups,
    )
}  # fmt: skip
