"""FROM, JOIN and WHERE: resolve names, and choose each join by what is public and what is the unit's key."""

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
from dither.plan.relations.mark_join import MarkJoin
from dither.plan.relations.project import Project, Union
from dither.plan.relations.scan import Scan
from dither.post.query.literals import sql_excerpt
from dither.post.query.scalars import ExpressionTranslator, conjuncts
from dither.schema import Boolean, Category, Dataset, Domain, Identifier, Reference, Unit

Pair = tuple["NamedColumn", "NamedColumn"]


@dataclass(frozen=True)
class NamedColumn:
    """A column in scope: written as `name` or `alias.name`, called `column` in the plan.

    `key` if it is the unit's key, `unique` if no two rows of its table share a value. `bare` is False if it must be
    written with its alias, because JOIN ... USING gives its name to the column of the other side. `equal_to` is another
    column of the plan to read instead: an inner join made them equal, and that one makes the better group key.
    """

    alias: str
    name: str
    column: str
    key: bool = False
    unique: bool = False
    domain: Domain | None = None
    bare: bool = True
    equal_to: str | None = None

    def reference(self) -> expr.ColumnRef:
        """Return the reference to this column in the plan."""
        return expr.ColumnRef(self.equal_to or self.column)


@dataclass(frozen=True)
class NamedTable:
    """A relation with the names of its columns.

    `knows_unit` if each row belongs to one unit. `held_fixed` if the table is private but not covered by the unit of
    privacy: neighbouring datasets agree on it.
    """

    relation: Relation
    fields: tuple[NamedColumn, ...]
    private: bool
    knows_unit: bool = False
    held_fixed: bool = False

    def find(self, node: exp.Column) -> NamedColumn:
        """Return the field that a column of the query refers to."""
        alias, name = node.table.lower(), node.name.lower()
        visible = [f for f in self.fields if (f.bare if not alias else f.alias.lower() == alias)]
        matches = [f for f in visible if f.name.lower() == name]
        if len(matches) > 1:
            raise InvalidQuery(f"{name!r} is in several tables; write one of: {_qualified_names(matches)}")
        if not matches:
            known = ", ".join(sorted({f.name for f in self.fields}))
            raise NotFound(f"no column {node.sql().replace(chr(34), '')!r}; there are: {known}")
        return matches[0]

    def has(self, node: exp.Column) -> bool:
        """Return True if the column refers to exactly one field."""
        try:
            return bool(self.find(node))
        except (NotFound, InvalidQuery):
            return False

    def translator(self) -> ExpressionTranslator:
        """Return a translator of SQL expressions over these fields into plan nodes."""
        return ExpressionTranslator(lambda node: self.find(node).reference())

    def with_alias(self, alias: str) -> NamedTable:
        """Return the same rows under another table name."""
        return replace(self, fields=tuple(replace(field, alias=alias) for field in self.fields))


def _qualified_names(fields: Iterable[NamedColumn]) -> str:
    return ", ".join(f"{field.alias}.{field.name}" for field in fields)


@dataclass(frozen=True)
class JoinBuilder:
    """Chooses the kind of a join.

    `row_limit` (max_contributions) and `join_limit` (max_rows_per_key) allow joins on other keys than the unit's.
    """

    unit: Unit
    row_limit: int | None
    join_limit: int | None

    def join(self, left: NamedTable, right: NamedTable, condition: exp.Expr | None, side: str) -> NamedTable:
        """Build left JOIN right ON condition."""
        right = rename_clashes(left, right)
        pairs, rest = _split_condition(left, right, condition)
        if side == "full" and not rest:
            return self._join_full(left, right, pairs)
        if not pairs:
            raise Unsupported(
                "a join needs ON with an equality between a column of each side; cross joins are not supported"
            )
        if rest and side != "inner":
            left, right = _filter_missing_side(left, right, rest, side)
            rest = []
        joined = self._choose(left, right, pairs, side)
        if rest:
            to = joined.translator()
            return replace(joined, relation=Filter(joined.relation, expr.And(tuple(map(to, rest)))))
        return joined

    def join_using(self, left: NamedTable, right: NamedTable, names: Iterable[str], side: str) -> NamedTable:
        """Build left JOIN right USING (names); the bare names mean the columns of the side whose rows are all kept."""
        columns = [exp.column(name) for name in names]
        right = rename_clashes(left, right)
        pairs = [(left.find(column), right.find(column)) for column in columns]
        if side == "full":
            return _hide_full_keys(self._join_full(left, right, pairs), pairs)
        joined = self._choose(left, right, pairs, side)
        hidden = {(one if side == "right" else two).column for one, two in pairs}
        fields = tuple(replace(field, bare=field.bare and field.column not in hidden) for field in joined.fields)
        return replace(joined, fields=fields)

    def _join_full(self, left: NamedTable, right: NamedTable, pairs: list[Pair]) -> NamedTable:
        """Build a FULL JOIN on the unit's key: a left join, and the right rows of units without a left row.

        Its last column is the key of the side that a row has.
        """
        on_key = len(pairs) == 1 and all(field.key for field in pairs[0]) and left.knows_unit and right.knows_unit
        if not on_key:
            raise Unsupported(
                "a FULL JOIN must be on the unit's key of two private tables; use a LEFT or RIGHT JOIN, or join both "
                "ways in two queries"
            )
        (one, two), key = pairs[0], f"{pairs[0][0].column} of either"
        names = [field.column for field in left.fields + right.fields]
        both = UnitJoin(left.relation, right.relation, self.unit.name, "left")
        matched = Project(both, (*((name, expr.ColumnRef(name)) for name in names), (key, expr.ColumnRef(one.column))))
        marked = MarkJoin(right.relation, left.relation, self.unit.name, key)
        missing = {field.column: expr.LiteralValue(None) for field in left.fields}
        alone = Project(
            Filter(marked, expr.Not(expr.ColumnRef(key))),
            (*((name, missing.get(name, expr.ColumnRef(name))) for name in names), (key, expr.ColumnRef(two.column))),
        )
        fields = tuple(replace(field, key=False, unique=False) for field in left.fields + right.fields)
        either = NamedColumn(key, one.name, key, key=True, bare=False)
        return NamedTable(Union(matched, alone), (*fields, either), private=True, knows_unit=True)

    def _choose(self, left: NamedTable, right: NamedTable, pairs: list[Pair], side: str) -> NamedTable:
        """Build the join that the privacy of both sides allows; its columns are those of the left side, then the right.

        An inner join makes the columns of each pair equal, and the one that is the better group key stands for both.
        """
        joined = self._build_join(left, right, pairs, side)
        order = [field.column for field in left.fields + right.fields]
        fields = sorted(joined.fields, key=lambda field: order.index(field.column))
        return replace(joined, fields=_with_equal_columns(fields, pairs) if side == "inner" else tuple(fields))

    def _build_join(self, left: NamedTable, right: NamedTable, pairs: list[Pair], side: str) -> NamedTable:
        if side not in {"inner", "left", "right"}:
            raise Unsupported(f"{side.upper()} JOIN is not supported; use an inner, left, right or full join")
        if not left.private and not right.private:
            raise Unsupported(
                "both tables of this join are public; have the curator join them and declare the result as a table"
            )
        if left.private and right.private and not left.held_fixed and not right.held_fixed:
            return self._join_private(left, right, pairs, side)
        if right.private and not right.held_fixed:
            mirrored = {"inner": "inner", "left": "right", "right": "left"}[side]
            return self._join_public(right, left, [(b, a) for a, b in pairs], mirrored)
        return self._join_public(left, right, pairs, side)

    def _join_private(self, left: NamedTable, right: NamedTable, pairs: list[Pair], side: str) -> NamedTable:
        """Join two private tables on the unit's key, else on another key with limits."""
        if side == "right":
            return self._join_private(right, left, [(b, a) for a, b in pairs], "left")
        if all(a.key and b.key for a, b in pairs) and left.knows_unit and right.knows_unit:
            kind: Any = side
            relation = UnitJoin(left.relation, right.relation, self.unit.name, kind)
            return NamedTable(relation, _join_fields(left, right, kind), private=True, knows_unit=True)
        if side != "inner":
            raise Unsupported("an outer join of private tables must be on the unit's key; use an inner join otherwise")
        return self._join_on_key(left, right, pairs)

    def _join_on_key(self, left: NamedTable, right: NamedTable, pairs: list[Pair]) -> NamedTable:
        """Join two private tables on another key than the unit's; its rows belong to no single unit."""
        if self.join_limit is None or self.row_limit is None:
            raise Unsupported(
                "joining private tables on a column that is not the unit's key mixes rows of different units; "
                "join on the unit's key, or give max_rows_per_key=K (rows of one key that each side keeps) "
                "and max_contributions=T (rows of one unit)"
            )
        sides = [
            LimitRowsPerUnit(s.relation, self.unit.name, self.row_limit) if s.knows_unit else s.relation
            for s in (left, right)
        ]
        on = tuple((a.column, b.column) for a, b in pairs)
        relation = KeyJoin(sides[0], sides[1], on, self.join_limit, self.join_limit)
        fields = tuple(replace(field, key=False) for field in left.fields + right.fields)
        return NamedTable(relation, fields, private=True)

    def _join_public(self, child: NamedTable, public: NamedTable, pairs: list[Pair], side: str) -> NamedTable:
        """Join a private table with a public one, or with one that is held fixed."""
        if public.held_fixed and not any(b.unique for _, b in pairs):
            raise Unsupported(
                f"the unit {self.unit.name!r} does not cover one table of this join, "
                "so that table may be joined on its unique key only"
            )
        if public.held_fixed and side == "right":
            raise Unsupported(
                f"the unit {self.unit.name!r} does not cover one table of this outer join; "
                "rows must be kept of the other table, the one that it covers"
            )
        kind: Literal["inner", "left", "right"] = "inner" if side == "inner" else "left" if side == "left" else "right"
        on = tuple((a.column, b.column) for a, b in pairs)
        relation = PublicJoin(child.relation, public.relation, on, kind)
        knows_unit = child.knows_unit and kind != "right"
        fields = tuple(replace(field, key=field.key and knows_unit) for field in child.fields) + public.fields
        return NamedTable(relation, fields, private=True, knows_unit=knows_unit)


def rename_clashes(left: NamedTable, right: NamedTable) -> NamedTable:
    """Rename the right side's plan columns that the left side also has."""
    taken = {field.column for field in left.fields}
    names = {field.column: field.column for field in right.fields}
    if not taken & set(names):
        return right
    for old in names:
        number = 2
        while names[old] in taken:
            names[old], number = f"{old}_{number}", number + 1
    relation = Project(right.relation, tuple((new, expr.ColumnRef(old)) for old, new in names.items()))
    fields = tuple(
        replace(f, column=names[f.column], equal_to=names[f.equal_to] if f.equal_to else None) for f in right.fields
    )
    return replace(right, relation=relation, fields=fields)


def _with_equal_columns(fields: Iterable[NamedColumn], pairs: Iterable[Pair]) -> tuple[NamedColumn, ...]:
    """Let the columns that an inner join made equal be read from the one of the two that is the better group key."""
    named = {field.column: field for field in fields}
    for pair in pairs:
        best, other = sorted((named[field.column] for field in pair), key=_key_rank)
        if _key_rank(best) < _key_rank(other):
            named[other.column] = replace(other, key=best.key, equal_to=best.reference().name)
    return tuple(named.values())


def _key_rank(field: NamedColumn) -> int:
    """Rank a column as a group key: the unit's key, listed values, other values, and last identifiers."""
    if field.key or isinstance(field.domain, Identifier):
        return 0 if field.key else 3
    return 1 if isinstance(field.domain, Category | Reference | Boolean) else 2


def _hide_full_keys(joined: NamedTable, pairs: Iterable[Pair]) -> NamedTable:
    """Let the bare name of a FULL JOIN's key mean that of the side that a row has."""
    hidden = {field.column for pair in pairs for field in pair}
    fields = tuple(replace(field, bare=field.bare and field.column not in hidden) for field in joined.fields)
    return replace(joined, fields=(*fields[:-1], replace(fields[-1], bare=True)))


def _join_fields(left: NamedTable, right: NamedTable, kind: str) -> tuple[NamedColumn, ...]:
    """The fields of a join; after a left join the right side's key may be NULL, so it is no longer the unit's key."""
    return left.fields + tuple(replace(f, key=f.key and kind == "inner") for f in right.fields)


def _split_condition(
    left: NamedTable, right: NamedTable, condition: exp.Expr | None
) -> tuple[list[Pair], list[exp.Expr]]:
    """Split ON into the equalities between both sides and the other conditions."""
    pairs: list[Pair] = []
    rest: list[exp.Expr] = []
    for part in conjuncts(condition) if condition is not None else []:
        pair = find_equality(left, right, part)
        pairs, rest = ([*pairs, pair], rest) if pair else (pairs, [*rest, part])
    return pairs, rest


def _filter_missing_side(
    left: NamedTable, right: NamedTable, conditions: list[exp.Expr], side: str
) -> tuple[NamedTable, NamedTable]:
    """Apply the conditions of an outer join's ON to the side whose rows may be missing, before the join."""
    kept, missing = (left, right) if side == "left" else (right, left)
    for part in conditions:
        columns = list(part.find_all(exp.Column))
        if side == "full" or not all(missing.has(column) for column in columns):
            raise Unsupported(
                f"{sql_excerpt(part)}: besides equalities, ON of an outer join may have conditions on the side that "
                "may be missing (of a LEFT JOIN, the right one); put others into CASE over the joined columns"
            )
        for column in columns:
            if not column.table and kept.has(column):
                raise InvalidQuery(f"{column.name!r} is in several tables; write it with its table's name")
    filtered = filter_rows(missing, map(missing.translator(), conditions))
    return (left, filtered) if side == "left" else (filtered, right)


def semi_join_pairs(source: NamedTable, other: NamedTable, join: exp.Join) -> tuple[list[Pair], NamedTable]:
    """Return the equalities of a semi- or anti-join, and its right side filtered by the other conditions of ON."""
    if join.args.get("using"):
        columns = [exp.column(name.name) for name in join.args["using"]]
        return [(source.find(column), other.find(column)) for column in columns], other
    pairs, rest = _split_condition(source, other, join.args.get("on"))
    return pairs, _filter_missing_side(source, other, rest, "left")[1] if rest else other


def find_equality(left: NamedTable, right: NamedTable, part: exp.Expr) -> Pair | None:
    """Return the fields that an equality compares, one of each side, or None if it is not such an equality."""
    if not (isinstance(part, exp.EQ) and isinstance(part.this, exp.Column) and isinstance(part.expression, exp.Column)):
        return None
    one, two = part.this, part.expression
    if left.has(one) and right.has(two) and not (left.has(two) and not two.table):
        return left.find(one), right.find(two)
    if left.has(two) and right.has(one):
        return left.find(two), right.find(one)
    return None


def dataset_table(dataset: Dataset, unit: Unit, name: str) -> NamedTable:
    """Return a table of the dataset, by its name in the schema."""
    names = {known.lower(): known for known in dataset.tables}
    if name.lower() not in names:
        raise NotFound(f"no table {name!r}; there are: {', '.join(sorted(dataset.tables))}")
    declared = dataset.tables[names[name.lower()]]
    covered = declared.private and declared.name in unit.keys
    # With a time window, the unit is a person in one window, and the key column alone does not identify it.
    key = unit.keys.get(declared.name) if covered and unit.kind == "user" else None
    fields = tuple(
        NamedColumn(declared.name, name, name, key=name == key, unique=name == declared.unique, domain=column.domain)
        for name, column in declared.columns.items()
    )
    return NamedTable(Scan(declared.name), fields, declared.private, covered, declared.private and not covered)


def filter_rows(source: NamedTable, conditions: Iterable[expr.Expr]) -> NamedTable:
    """Keep the rows for which every condition is true."""
    parts = tuple(conditions)
    if not parts:
        return source
    return replace(source, relation=Filter(source.relation, parts[0] if len(parts) == 1 else expr.And(parts)))


def project_columns(source: NamedTable, columns: Mapping[str, expr.Expr], distinct: bool, unit: Unit) -> NamedTable:
    """Build the SELECT or SELECT DISTINCT of a subquery without aggregates."""
    known_fields = {field.column: field for field in source.fields}
    fields = tuple(_column_of(name, value, known_fields, distinct) for name, value in columns.items())
    relation: Relation = Project(source.relation, tuple(columns.items()))
    if distinct:
        known = source.knows_unit and any(field.key for field in fields)
        relation = Distinct(relation, unit.name if known else None)
        return NamedTable(relation, fields, source.private, known, source.held_fixed)
    return NamedTable(relation, fields, source.private, source.knows_unit, source.held_fixed)


def _column_of(name: str, value: expr.Expr, known: Mapping[str, NamedColumn], distinct: bool) -> NamedColumn:
    """The field of a subquery's column, which has the properties of the column that it repeats, if it does."""
    field = known.get(value.name) if isinstance(value, expr.ColumnRef) else None
    if field is None:
        return NamedColumn("", name, name)
    return NamedColumn("", name, name, field.key, field.unique and not distinct, field.domain)


def union_all(left: NamedTable, right: NamedTable) -> NamedTable:
    """Build UNION ALL; columns match by position and take the left side's names."""
    if len(left.fields) != len(right.fields):
        raise InvalidQuery(
            f"both sides of UNION ALL need the same number of columns, got {len(left.fields)} and {len(right.fields)}"
        )
    if not (left.private and right.private):
        raise Unsupported(
            "UNION ALL with a public table is not supported; query the private one, and add the public rows yourself"
        )
    names = [(a.column, b.column) for a, b in zip(left.fields, right.fields, strict=True)]
    other = Project(right.relation, tuple((a, expr.ColumnRef(b)) for a, b in names))
    fields = tuple(
        replace(a, key=a.key and b.key, unique=False) for a, b in zip(left.fields, right.fields, strict=True)
    )
    knows = left.knows_unit and right.knows_unit
    return NamedTable(Union(_visible_columns(left), other), fields, private=True, knows_unit=knows)


def _visible_columns(source: NamedTable) -> Relation:
    """The relation reduced to its visible columns, in order."""
    return Project(source.relation, tuple((field.column, expr.ColumnRef(field.column)) for field in source.fields))
