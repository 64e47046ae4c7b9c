"""One plan as one SQL statement: each relation once, as a named subquery, under names that no analyst chooses.

Visible columns are c0, c1, ... in order. Hidden ones: u<i> and w<i>, the key and window of the dataset's i-th unit;
o, the pseudo-random order of rows; r<i>, a stored rank within the unit; b, how many values were corrected; x, the
trial: many datasets at once, told apart by a stored column, each answered as if it were alone (for tests).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from sqlglot import exp

from dither.errors import InvalidPlan
from dither.plan.context import Context
from dither.plan.domains import span, storage_type
from dither.plan.sql.builders import (
    FEW_VALUES,
    Extent,
    Sql,
    and_,
    binary,
    call,
    case,
    cast,
    detached,
    extent,
    integer,
    literal,
    not_,
    select,
)
from dither.plan.sql.dialect import Dialect, RawKind
from dither.plan.sql.row_order import FOLD, MODULUS, HashPart, hash_order, low_bits, mix_hash
from dither.plan.sql.scope import Scope
from dither.schema import Boolean, Category, Domain, Moment, Number

if TYPE_CHECKING:
    from dither.plan.relations.core import Relation

MOST_SQL_NODES = 200_000


@dataclass(frozen=True)
class TableSource:
    """Where an engine finds a table, and what it knows about how the records are stored.

    `ready`: the columns already hold values in their held form, under the names of the schema (a prepared snapshot);
    `order` and `ranks`: stored columns with the row's order and its rank within each unit; `unique`: one row per
    unique key was made sure of when the snapshot was written, and rows without a valid unit key were dropped.
    """

    source: Sql
    kinds: Mapping[str, RawKind]
    ready: bool = False
    order: str | None = None
    ranks: Mapping[str, str] = field(default_factory=dict)
    unique: bool = False


def column_ref(name: str, table: str | None = None) -> Sql:
    """A column by a name of ours."""
    if table is None:
        return exp.Column(this=exp.to_identifier(name))
    return exp.Column(this=exp.to_identifier(name), table=exp.to_identifier(table))


def hash_part(value: Sql, domain: Domain, dialect: Dialect, packed: bool) -> HashPart:
    """A held value as an integer of at most 40 bits, NULL apart from the rest."""
    match domain:
        case Number() | Moment() if (bits := _bits(domain)) < FOLD.bit_length():
            return HashPart(_or_else(value, domain, span(domain)[1] + 1), bits)
        case Boolean():
            return HashPart(case([(value, integer(2)), (not_(value), integer(1))], integer(0)), 2)
        case Category(values=values) if len(values) <= FEW_VALUES:
            place = dialect.place(value) if packed else dialect.position(value, values)
            return HashPart(_or_else(place, domain, 0), len(values).bit_length())
        case _ if storage_type(domain) == "varchar":
            return HashPart(_or_else(dialect.fingerprint(value), domain, -1), 32)
        case _:
            return HashPart(_or_else(dialect.remainder(value, literal(FOLD)), domain, FOLD), FOLD.bit_length())


def _bits(domain: Domain) -> int:
    """The bits of a bounded value, and of what stands for its NULL."""
    lo, hi = span(domain)
    return max(abs(lo), abs(hi + 1)).bit_length()


def _or_else(value: Sql, domain: Domain, spare: int) -> Sql:
    return exp.Coalesce(this=detached(value), expressions=[integer(spare)]) if domain.nullable else value


def halves(order: Sql, dialect: Dialect) -> list[HashPart]:
    """A row's order as two parts to mix further."""
    return [HashPart(low_bits(order), 31), HashPart(dialect.remainder(order.copy(), literal(MODULUS)), 31)]


class SqlStatement:
    """Builds the SQL of a plan; engines give it the origins of the tables."""

    def __init__(
        self,
        ctx: Context,
        origins: Mapping[str, TableSource],
        dialect: Dialect | None = None,
        secret: int = 0,
        counted: frozenset[str] = frozenset(),
        trial: str | None = None,
        ordered: bool = True,
    ) -> None:
        self.ctx = ctx
        self.origins = origins
        self.dialect = dialect or Dialect()
        self.secret = secret
        self.counted = counted
        self.trial = trial
        self.ordered = ordered
        self.extent = Extent(0, 0, 0)
        self._names: dict[Relation, str] = {}
        self._bodies: list[tuple[str, exp.Select | exp.SetOperation]] = []

    def table(self, node: Relation) -> exp.Table:
        """The subquery that computes a relation, to be read once; equal relations share one."""
        if node not in self._names:
            self._names[node] = self.add(node.select(self)).name
        return _table(self._names[node])

    def add(self, body: exp.Select | exp.SetOperation) -> exp.Table:
        """Names a subquery, and gives it back to be read once."""
        name = f"t{len(self._bodies)}"
        self._bodies.append((name, body))
        return _table(name)

    def scope(self, node: Relation, table: str | None = None) -> Scope:
        """The visible columns of a relation, for its parent's expressions."""
        columns = node.domain(self.ctx)
        return Scope(columns, dict(zip(columns, self.visible(node, table), strict=True)), self.dialect)

    def visible(self, node: Relation, table: str | None = None) -> list[Sql]:
        """The visible columns of a relation, for expressions and keys: no text is packed."""
        names, packed = [f"c{index}" for index in range(len(node.domain(self.ctx)))], node.packed(self)
        columns = [(column_ref(name, table), name in packed) for name in names]
        return [self.dialect.unpacked(column) if small else column for column, small in columns]

    def unit_columns(self, unit: str) -> list[str]:
        """The hidden columns that hold a unit."""
        index = list(self.ctx.dataset.units).index(unit)
        return [f"u{index}", f"w{index}"] if self.ctx.unit(unit).kind == "window" else [f"u{index}"]

    def rank_column(self, unit: str) -> str:
        """The hidden column with a stored rank within the unit."""
        return f"r{list(self.ctx.dataset.units).index(unit)}"

    def known(self, node: Relation) -> list[str]:
        """The keyed units that a relation's rows know."""
        units = [name for name, unit in self.ctx.dataset.units.items() if unit.kind != "row"]
        return [name for name in units if node.stability(self.ctx, name).tracks_unit]

    def hidden(self, units: Sequence[str]) -> list[str]:
        """All hidden columns but the stored ranks, for rows that know these units."""
        return [*(column for unit in units for column in self.unit_columns(unit)), "o", "b", *self.trials()]

    def trials(self) -> list[str]:
        """The hidden column of the trial, if there are trials: part of every key, partition and join."""
        return ["x"] if self.trial else []

    def counts(self) -> bool:
        """Whether corrections can occur and are asked for; a snapshot's were counted when it was written."""
        return bool(self.counted) and not all(origin.ready for origin in self.origins.values())

    def ranks(self, node: Relation) -> list[str]:
        """The units for which a relation still has the stored rank of each row."""
        return [unit for unit in self.known(node) if node.ranked(self, unit)]

    def mix(self, columns: Sequence[tuple[Sql, Domain]], seed: int, packed: frozenset[str] = frozenset()) -> Sql:
        """A pseudo-random order that depends on these values alone, some of them packed."""
        return mix_hash(
            [hash_part(value, domain, self.dialect, value.name in packed) for value, domain in columns], seed
        )

    def mix_orders(self, orders: Sequence[Sql], seed: int) -> Sql:
        """A pseudo-random order from other orders; 0 where the plan needs none."""
        if not self.ordered:
            return integer(0)
        return mix_hash([half for order in orders for half in halves(order, self.dialect)], seed)

    def sorted_by(self, column: str) -> Sql:
        """What rows are sorted by, for a column that holds an order."""
        return hash_order(self.dialect, column_ref(column))

    def numbered(self, table: exp.Table, columns: Sequence[str], by: Sequence[Sql], limit: int) -> exp.Select:
        """The first `limit` rows of each partition, in the rows' own pseudo-random order."""
        window = exp.Window(
            this=exp.RowNumber(),
            partition_by=[*(key.copy() for key in by), *map(column_ref, self.trials())],
            order=exp.Order(expressions=[column_ref("s")]),
        )
        ranked = select(*(column_ref(c) for c in columns), with_alias(window, "n")).from_(
            self.add(self.placed(table, columns)), copy=False
        )
        kept = binary(exp.LTE, column_ref("n"), literal(limit))
        return select(*(column_ref(c) for c in columns)).from_(subquery(ranked), copy=False).where(kept, copy=False)

    def placed(self, table: exp.Table, columns: Sequence[str]) -> exp.Select:
        """Rows as they go into a sort, with s, what they are sorted by."""
        # In a column of its own the order's common parts are worked out once; inside the window they would not be.
        return select(*(column_ref(c) for c in columns), with_alias(self.sorted_by("o"), "s")).from_(table, copy=False)

    def finish(self, body: exp.Select) -> exp.Select:
        """The whole statement; its extent is known from then on."""
        tables = [exp.CTE(this=part, alias=_alias(name)) for name, part in self._bodies]
        body.set("with_", exp.With(expressions=tables))
        self.extent = extent(body)
        if self.extent.nodes > MOST_SQL_NODES:
            raise InvalidPlan("the plan is too large; use fewer or simpler expressions")
        return body


def _table(name: str) -> exp.Table:
    """A table by a name of ours: made, since parsing it would take longer than all else."""
    return exp.Table(this=exp.to_identifier(name))


def _alias(name: str) -> exp.TableAlias:
    return exp.TableAlias(this=exp.to_identifier(name))


def subquery(body: exp.Select) -> exp.Subquery:
    """A subquery in its place."""
    return exp.Subquery(this=body, alias=_alias("ranked"))


def join_select(
    columns: Sequence[Sql],
    first: tuple[exp.Table, str],
    second: tuple[exp.Table, str],
    on: Sql,
    how: Literal["inner", "left"],
) -> exp.Select:
    """Columns of two tables, each under a name, joined where a condition holds."""
    for table, name in (first, second):
        table.set("alias", _alias(name))
    kind = {"kind": "INNER"} if how == "inner" else {"side": "LEFT"}
    join = exp.Join(this=second[0], on=on, **kind)
    return select(*columns).from_(first[0], copy=False).join(join, copy=False)


def with_alias(value: Sql, name: str) -> Sql:
    """value AS name."""
    return exp.Alias(this=detached(value), alias=exp.to_identifier(name))


def equals(pairs: Sequence[tuple[Sql, Sql]]) -> Sql:
    """All pairs equal: a join condition."""
    return and_([binary(exp.EQ, left, right) for left, right in pairs])


def saturate(value: Sql, most: int, least: int | None = None) -> Sql:
    """A wide integer held from `least` (-most) to `most`, in 64 bits; NULL is 0."""
    present = exp.Coalesce(this=detached(value), expressions=[literal(0)])
    held = call("LEAST", call("GREATEST", present, literal(-most if least is None else least)), literal(most))
    return cast(held, "bigint")
