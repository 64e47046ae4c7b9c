"""FROM, JOIN and WHERE: names resolved, joins chosen by what is public and what is the unit's key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from sqlglot import exp

from dither.errors import InvalidQuery, NotFound, Unsupported
from dither.plan import expressions as expr
from dither.plan.relations.bounding import LimitRowsPerUnit
from dither.plan.relations.core import Relation
from dither.plan.relations.filter import Filter
from dither.plan.relations.group_by import Distinct
from dither.plan.relations.joins import KeyJoin, PublicJoin, UnitJoin
from dither.plan.relations.project import Project, Union
from dither.plan.relations.scan import Scan
from dither.post.query.scalars import ExpressionTranslator, conjuncts, sql_excerpt
from dither.schema import Dataset, Unit

Pair = tuple["NamedColumn", "NamedColumn"]


@dataclass(frozen=True)
class NamedColumn:
    """A column in scope: how it may be written, what the plan calls it, whether it is the unit's own key."""

    alias: str
    name: str
    column: str
    key: bool = False
    unique: bool = False


@dataclass(frozen=True)
class NamedTable:
    """A relation and the names by which a query may speak of its columns."""

    relation: Relation
    fields: tuple[NamedColumn, ...]
    private: bool
    knows_unit: bool = False
    context: bool = False

    def find(self, node: exp.Column) -> NamedColumn:
        """The field that a column of the query means."""
        alias, name = node.table.lower(), node.name.lower()
        found = [f for f in self.fields if f.name.lower() == name and alias in ("", f.alias.lower())]
        if len(found) > 1:
            raise InvalidQuery(f"{name!r} is in several tables; write one of: {_options(found)}")
        if not found:
            raise NotFound(f"no column {node.sql()!r}; there are: {', '.join(sorted({f.name for f in self.fields}))}")
        return found[0]

    def has(self, node: exp.Column) -> bool:
        """Whether exactly one field answers to the name."""
        try:
            return bool(self.find(node))
        except (NotFound, InvalidQuery):
            return False

    def translator(self) -> ExpressionTranslator:
        """Turns scalars over these fields into plan nodes."""
        return ExpressionTranslator(lambda node: expr.ColumnRef(self.find(node).column))

    def aliased(self, alias: str) -> NamedTable:
        """The same rows under another table name."""
        return replace(self, fields=tuple(replace(field, alias=alias) for field in self.fields))


def _options(fields: Iterable[NamedColumn]) -> str:
    return ", ".join(f"{field.alias}.{field.name}" for field in fields)


@dataclass(frozen=True)
class JoinBuilder:
    """Chooses the operator for a join; `row_limit` and `join_limit` serve joins on keys other than the unit's."""

    unit: Unit
    row_limit: int | None
    join_limit: int | None

    def join(self, left: NamedTable, right: NamedTable, condition: exp.Expr | None, side: str) -> NamedTable:
        """left JOIN right ON condition."""
        right = _renamed(left, right)
        pairs, rest = _split(left, right, condition)
        if not pairs:
            raise Unsupported("a join needs an equality between a column of each side; cross joins are not offered")
        joined = self._choose(left, right, pairs, side)
        if rest and side != "inner":
            raise Unsupported("an outer join takes equalities only; put other conditions in a subquery or in WHERE")
        if rest:
            to = joined.translator()
            return replace(joined, relation=Filter(joined.relation, expr.And(tuple(map(to, rest)))))
        return joined

    def using(self, left: NamedTable, right: NamedTable, names: Iterable[str], side: str) -> NamedTable:
        """left JOIN right USING (names): the left column stands for both."""
        columns = [exp.column(name) for name in names]
        right = _renamed(left, right)
        pairs = [(left.find(column), right.find(column)) for column in columns]
        joined = self._choose(left, right, pairs, side)
        hidden = {second.column for _, second in pairs}
        return replace(joined, fields=tuple(field for field in joined.fields if field.column not in hidden))

    def _choose(self, left: NamedTable, right: NamedTable, pairs: list[Pair], side: str) -> NamedTable:
        if side not in {"inner", "left", "right"}:
            raise Unsupported(f"{side.upper()} JOIN is not offered: use an inner or a left join")
        if not left.private and not right.private:
            raise Unsupported(
                "both tables of this join are public; join them outside, and declare the result as a table"
            )
        if left.private and right.private and not left.context and not right.context:
            return self._private(left, right, pairs, side)
        if right.private and not right.context:
            turned = {"inner": "inner", "left": "right", "right": "left"}[side]
            return self._public(right, left, [(b, a) for a, b in pairs], turned)
        return self._public(left, right, pairs, side)

    def _private(self, left: NamedTable, right: NamedTable, pairs: list[Pair], side: str) -> NamedTable:
        if side == "right":
            return self._private(right, left, [(b, a) for a, b in pairs], "left")
        if all(a.key and b.key for a, b in pairs) and left.knows_unit and right.knows_unit:
            how: Any = side
            relation = UnitJoin(left.relation, right.relation, self.unit.name, how)
            return NamedTable(relation, _merged(left, right, how), private=True, knows_unit=True)
        if side != "inner":
            raise Unsupported("outer joins of private tables are offered on the unit's key only")
        return self._by_key(left, right, pairs)

    def _by_key(self, left: NamedTable, right: NamedTable, pairs: list[Pair]) -> NamedTable:
        if self.join_limit is None or self.row_limit is None:
            raise Unsupported(
                "joining private tables on a column that is not the unit's key mixes people's rows; "
                "give join_rows=K (rows kept per key, each side) and bound=T (rows per unit), or join on the unit's key"
            )
        sides = [
            LimitRowsPerUnit(s.relation, self.unit.name, self.row_limit) if s.knows_unit else s.relation
            for s in (left, right)
        ]
        on = tuple((a.column, b.column) for a, b in pairs)
        relation = KeyJoin(sides[0], sides[1], on, self.join_limit, self.join_limit)
        fields = tuple(replace(field, key=False) for field in left.fields + right.fields)
        return NamedTable(relation, fields, private=True)

    def _public(self, child: NamedTable, public: NamedTable, pairs: list[Pair], side: str) -> NamedTable:
        if public.context and not any(b.unique for _, b in pairs):
            raise Unsupported("this table is held fixed under the unit, and may be joined by its unique key only")
        if public.context and side == "right":
            raise Unsupported("this table is held fixed under the unit; put it on the other side of the outer join")
        how: Literal["inner", "left", "right"] = "inner" if side == "inner" else "left" if side == "left" else "right"
        on = tuple((a.column, b.column) for a, b in pairs)
        relation = PublicJoin(child.relation, public.relation, on, how)
        kept = child.knows_unit and how != "right"
        fields = tuple(replace(field, key=field.key and kept) for field in child.fields) + public.fields
        return NamedTable(relation, fields, private=True, knows_unit=kept)


def _renamed(left: NamedTable, right: NamedTable) -> NamedTable:
    """The right side with plan names that the left does not use."""
    taken = {field.column for field in left.fields}
    names = {field.column: field.column for field in right.fields}
    if not taken & set(names):
        return right
    for old in names:
        number = 2
        while names[old] in taken:
            names[old], number = f"{old}_{number}", number + 1
    relation = Project(right.relation, tuple((new, expr.ColumnRef(old)) for old, new in names.items()))
    return replace(right, relation=relation, fields=tuple(replace(f, column=names[f.column]) for f in right.fields))


def _merged(left: NamedTable, right: NamedTable, how: str) -> tuple[NamedColumn, ...]:
    """After a left join the right side's key may be NULL, so it no longer stands for the unit."""
    return left.fields + tuple(replace(f, key=f.key and how == "inner") for f in right.fields)


def _split(left: NamedTable, right: NamedTable, condition: exp.Expr | None) -> tuple[list[Pair], list[exp.Expr]]:
    pairs: list[Pair] = []
    rest: list[exp.Expr] = []
    for part in conjuncts(condition) if condition is not None else []:
        pair = equality(left, right, part)
        pairs, rest = ([*pairs, pair], rest) if pair else (pairs, [*rest, part])
    return pairs, rest


def equality(left: NamedTable, right: NamedTable, part: exp.Expr) -> Pair | None:
    """The pair of fields that an equality connects, one of each side."""
    if not (isinstance(part, exp.EQ) and isinstance(part.this, exp.Column) and isinstance(part.expression, exp.Column)):
        return None
    one, two = part.this, part.expression
    if left.has(one) and right.has(two) and not (left.has(two) and not two.table):
        return left.find(one), right.find(two)
    if left.has(two) and right.has(one):
        return left.find(two), right.find(one)
    return None


def table(dataset: Dataset, unit: Unit, name: str) -> NamedTable:
    """A table of the dataset, named as in the schema."""
    found = {known.lower(): known for known in dataset.tables}
    if name.lower() not in found:
        raise NotFound(f"no table {name!r}; there are: {', '.join(sorted(dataset.tables))}")
    declared = dataset.tables[found[name.lower()]]
    covered = declared.private and declared.name in unit.keys
    # Under a window unit the key column names a person, and the unit is that person in one window: not the same.
    key = unit.keys.get(declared.name) if covered and unit.kind == "user" else None
    fields = tuple(
        NamedColumn(declared.name, column, column, key=column == key, unique=column == declared.unique)
        for column in declared.columns
    )
    return NamedTable(Scan(declared.name), fields, declared.private, covered, declared.private and not covered)


def filtered(source: NamedTable, conditions: Iterable[expr.Expr]) -> NamedTable:
    """The rows for which every condition is true."""
    parts = tuple(conditions)
    if not parts:
        return source
    return replace(source, relation=Filter(source.relation, parts[0] if len(parts) == 1 else expr.And(parts)))


def projected(source: NamedTable, columns: Mapping[str, expr.Expr], distinct: bool, unit: Unit) -> NamedTable:
    """SELECT of plain columns and expressions in a subquery."""
    keys = {field.column for field in source.fields if field.key}
    unique = {field.column for field in source.fields if field.unique}
    fields = tuple(
        NamedColumn("", name, name, _is(value, keys), _is(value, unique) and not distinct)
        for name, value in columns.items()
    )
    relation: Relation = Project(source.relation, tuple(columns.items()))
    if distinct:
        known = source.knows_unit and any(field.key for field in fields)
        relation = Distinct(relation, unit.name if known else None)
        return NamedTable(relation, fields, source.private, known, source.context)
    return NamedTable(relation, fields, source.private, source.knows_unit, source.context)


def _is(value: expr.Expr, names: set[str]) -> bool:
    return isinstance(value, expr.ColumnRef) and value.name in names


def union(left: NamedTable, right: NamedTable) -> NamedTable:
    """UNION ALL, by position; the left side's names stand."""
    if len(left.fields) != len(right.fields):
        raise InvalidQuery("both sides of UNION ALL need the same number of columns")
    if not (left.private and right.private):
        raise Unsupported("UNION ALL with a public table is not offered; ask of the private one and add outside")
    names = [(a.column, b.column) for a, b in zip(left.fields, right.fields, strict=True)]
    other = Project(right.relation, tuple((a, expr.ColumnRef(b)) for a, b in names))
    fields = tuple(
        replace(a, key=a.key and b.key, unique=False) for a, b in zip(left.fields, right.fields, strict=True)
    )
    knows = left.knows_unit and right.knows_unit
    return NamedTable(Union(_cut(left), other), fields, private=True, knows_unit=knows)


def _cut(source: NamedTable) -> Relation:
    """The relation with exactly the visible columns, in order."""
    return Project(source.relation, tuple((field.column, expr.ColumnRef(field.column)) for field in source.fields))


def member(source: NamedTable, node: exp.In, public: NamedTable, negated: bool) -> NamedTable:
    """x IN (SELECT key FROM public): a join with the public keys, which are unique."""
    if public.private:
        raise Unsupported(
            f"{sql_excerpt(node)}: the subquery of IN must read a public table; join the private one instead"
        )
    if len(public.fields) != 1 or not public.fields[0].unique:
        raise Unsupported(f"{sql_excerpt(node)}: the subquery must select the unique key of a public table")
    if not isinstance(node.this, exp.Column):
        raise Unsupported(f"{sql_excerpt(node)}: the left of IN (SELECT ...) must be a column")
    public = _renamed(source, public)
    on = ((source.find(node.this).column, public.fields[0].column),)
    joined = PublicJoin(source.relation, public.relation, on, "left" if negated else "inner")
    relation: Relation = joined
    if negated:
        unmatched = expr.IsNull(expr.ColumnRef(public.fields[0].column))
        relation = Filter(joined, expr.And((unmatched, expr.Not(expr.IsNull(expr.ColumnRef(on[0][0]))))))
    return replace(source, relation=relation)
