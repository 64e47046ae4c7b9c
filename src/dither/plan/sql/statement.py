"""Build one SQL statement from one plan: each relation once, as a named subquery, under names that no analyst chooses.

Visible columns are c0, c1, ... in order. Hidden columns are: u<i> and w<i>, the key and window of the dataset's i-th
unit; o, the pseudo-random order of rows; r<i>, a stored rank within the unit; b, the number of corrected values; x, the
trial: tests put many datasets into one table, separate them by a stored column, and query each as if it were alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from sqlglot import exp

from dither.errors import InvalidPlan, Unsupported
from dither.plan.context import Context
from dither.plan.domains import span, storage_type
from dither.plan.sql.builders import (
    MAX_ENUM_VALUES,
    Sql,
    StatementSize,
    and_,
    binary,
    call,
    case,
    cast,
    detach,
    integer,
    literal,
    not_,
    select,
    statement_size,
)
from dither.plan.sql.dialect import Dialect, RawKind
from dither.plan.sql.row_order import FOLD, MODULUS, HashPart, hash_order, low_bits, mix_hash
from dither.plan.sql.scope import Scope
from dither.schema import Boolean, Category, Domain, Moment, Number

if TYPE_CHECKING:
    from dither.plan.relations.core import Relation

MAX_SQL_NODES = 200_000


@dataclass(frozen=True)
class TableSource:
    """The SQL by which an engine reads a table, and the form in which its records are stored.

    `is_prepared`: the columns already hold encoded values, under the names of the schema (a prepared snapshot);
    `order_column`, `rank_columns`, `size_columns`: stored columns with the row's order, its rank within each unit, and
    the number of the unit's rows on its first row (0 on the others);
    `deduplicated`: the snapshot has one row per unique key, no rows beyond a cap on those of a unit, and none without a
    valid unit key.
    """

    source: Sql
    kinds: Mapping[str, RawKind]
    is_prepared: bool = False
    order_column: str | None = None
    rank_columns: Mapping[str, str] = field(default_factory=dict)
    size_columns: Mapping[str, str] = field(default_factory=dict)
    deduplicated: bool = False


def column_ref(name: str, table: str | None = None) -> Sql:
    """Refer to a column by one of this module's own names."""
    if table is None:
        return exp.Column(this=exp.to_identifier(name))
    return exp.Column(this=exp.to_identifier(name), table=exp.to_identifier(table))


def hash_part(value: Sql, domain: Domain, dialect: Dialect, as_enum: bool) -> HashPart:
    """Convert an encoded value to an integer of at most 40 bits; NULL gets an integer that no value has."""
    match domain:
        case Number() | Moment() if (bits := _bits(domain)) < FOLD.bit_length():
            return HashPart(_replace_null(value, domain, span(domain)[1] + 1), bits)
        case Boolean():
            return HashPart(case([(value, integer(2)), (not_(value), integer(1))], integer(0)), 2)
        case Category(values=values) if len(values) <= MAX_ENUM_VALUES:
            code = dialect.enum_position(value) if as_enum else dialect.position(value, values)
            return HashPart(_replace_null(code, domain, 0), len(values).bit_length())
        case _ if storage_type(domain) == "varchar":
            return HashPart(_replace_null(dialect.fingerprint(value), domain, -1), 32)
        case _:
            return HashPart(_replace_null(dialect.remainder(value, literal(FOLD)), domain, FOLD), FOLD.bit_length())


def _bits(domain: Domain) -> int:
    """Return the number of bits that hold every bounded value, and the integer that stands for its NULL."""
    lo, hi = span(domain)
    return max(abs(lo), abs(hi + 1)).bit_length()


def _replace_null(value: Sql, domain: Domain, replacement: int) -> Sql:
    """Replace NULL by an integer where the domain has NULL."""
    return exp.Coalesce(this=detach(value), expressions=[integer(replacement)]) if domain.nullable else value


def order_halves(order: Sql, dialect: Dialect) -> list[HashPart]:
    """Split a row's order into two parts that can be mixed further."""
    return [HashPart(low_bits(order), 31), HashPart(dialect.remainder(order.copy(), literal(MODULUS)), 31)]


class SqlStatement:
    """Builds the SQL of one plan over the engine's `sources`.

    `secret` keys the random samples; `counted_columns` names the columns whose corrections are counted; `trial` is the
    stored column that separates the datasets of tests; `keeps_order` is false if no operator needs the row order.
    """

    def __init__(
        self,
        ctx: Context,
        sources: Mapping[str, TableSource],
        dialect: Dialect | None = None,
        secret: int = 0,
        counted_columns: frozenset[str] = frozenset(),
        trial: str | None = None,
        keeps_order: bool = True,
    ) -> None:
        self.ctx = ctx
        self.sources = sources
        self.dialect = dialect or Dialect()
        self.secret = secret
        self.counted_columns = counted_columns
        self.trial = trial
        self.keeps_order = keeps_order
        self.size = StatementSize(0, 0, 0)
        self._names: dict[Relation, str] = {}
        self._bodies: list[tuple[str, exp.Select | exp.SetOperation]] = []
        self._derived: dict[str, str] = {}
        self._computed: dict[str, bool] = {}  # once for all uses, or anew for each; the engine decides on others

    def table(self, node: Relation) -> exp.Table:
        """Return the subquery that computes a relation, to be read once; equal relations share one."""
        if node not in self._names:
            self._names[node] = self.add_subquery(node.select(self)).name
        return _table(self._names[node])

    @contextmanager
    def replace_rows(self, nodes: Sequence[Relation], table: exp.Table) -> Iterator[None]:
        """Compute these relations in subqueries of their own, with these rows in the place of the last one."""
        known = self._names
        self._names = {node: name for node, name in known.items() if node not in nodes} | {nodes[-1]: table.name}
        try:
            yield
        finally:
            self._names = known

    def add_subquery(self, body: exp.Select | exp.SetOperation) -> exp.Table:
        """Add a named subquery, and return it as a table."""
        name = f"t{len(self._bodies)}"
        self._bodies.append((name, body))
        return _table(name)

    def derive(self, body: exp.Select, rows: exp.Table) -> exp.Table:
        """Add a subquery that adds columns to each row of another, which is what is kept if it is to be read once."""
        table = self.add_subquery(body)
        self._derived[table.name] = rows.name
        return table

    def read_once(self, table: exp.Table) -> None:
        """Have the engine compute a subquery once for all its uses, so that no row changes between them."""
        name = table.name
        if name in self._derived:
            self._computed[name], name = False, self._derived[name]
        self._computed[name] = True

    def scope(self, node: Relation, table: str | None = None) -> Scope:
        """Return the visible columns of a relation as the scope of its parent's expressions."""
        columns = node.domain(self.ctx)
        return Scope(columns, dict(zip(columns, self.visible_columns(node, table), strict=True)), self.dialect)

    def visible_columns(self, node: Relation, table: str | None = None) -> list[Sql]:
        """Return the visible columns of a relation for expressions and keys, with ENUMs cast back to text."""
        names, as_enum = [f"c{index}" for index in range(len(node.domain(self.ctx)))], node.enum_columns(self)
        columns = [(column_ref(name, table), name in as_enum) for name in names]
        return [self.dialect.from_enum(column) if is_enum else column for column, is_enum in columns]

    def unit_columns(self, unit: str) -> list[str]:
        """Return the names of the hidden columns that hold a unit."""
        index = list(self.ctx.dataset.units).index(unit)
        return [f"u{index}", f"w{index}"] if self.ctx.unit(unit).kind == "window" else [f"u{index}"]

    def rank_column(self, unit: str) -> str:
        """Return the name of the hidden column with a stored rank within the unit."""
        return f"r{list(self.ctx.dataset.units).index(unit)}"

    def size_column(self, unit: str) -> str:
        """Return the name of the hidden column of a scan with the stored number of a unit's rows."""
        return f"n{list(self.ctx.dataset.units).index(unit)}"

    def tracked_units(self, node: Relation) -> list[str]:
        """List the keyed units that are tracked by a relation's rows."""
        units = [name for name, unit in self.ctx.dataset.units.items() if unit.kind != "row"]
        return [name for name in units if self._tracks(node, name)]

    def _tracks(self, node: Relation, unit: str) -> bool:
        """Tell whether a relation's rows track a unit; those of a join that holds it fixed do not."""
        try:
            return node.stability(self.ctx, unit).tracks_unit
        except Unsupported:
            return False

    def hidden_column_names(self, units: Sequence[str]) -> list[str]:
        """List all hidden columns except the stored ranks, for rows that track these units."""
        return [*(column for unit in units for column in self.unit_columns(unit)), "o", "b", *self.trial_columns()]

    def trial_columns(self) -> list[str]:
        """List the hidden trial column, if there are trials: it is part of every key, partition and join."""
        return ["x"] if self.trial else []

    def counts_corrections(self) -> bool:
        """Tell whether to count corrections: columns are listed for it, and not every table is prepared."""
        return bool(self.counted_columns) and not all(
            table_source.is_prepared for table_source in self.sources.values()
        )

    def units_with_rank(self, node: Relation) -> list[str]:
        """List the units for which a relation still has the stored rank of each row."""
        return [unit for unit in self.tracked_units(node) if node.has_stored_rank(self, unit)]

    def mix_values(
        self, columns: Sequence[tuple[Sql, Domain]], seed: int, as_enum: frozenset[str] = frozenset()
    ) -> Sql:
        """Build a pseudo-random order from these values alone; `as_enum` names the columns stored as ENUMs."""
        return mix_hash(
            [hash_part(value, domain, self.dialect, value.name in as_enum) for value, domain in columns], seed
        )

    def mix_orders(self, orders: Sequence[Sql], seed: int) -> Sql:
        """Build a pseudo-random order from other orders; 0 if the plan needs no order."""
        if not self.keeps_order:
            return integer(0)
        return mix_hash([half for order in orders for half in order_halves(order, self.dialect)], seed)

    def sort_key(self, column: str) -> Sql:
        """Build the sort key from a column that holds an order."""
        return hash_order(self.dialect, column_ref(column))

    def first_rows(
        self, table: exp.Table, columns: Sequence[str], by: Sequence[Sql], limit: int, order: Sql | None = None
    ) -> exp.Select:
        """Select the first `limit` rows of each partition, in the rows' own pseudo-random order.

        `order` builds the column o, for rows that have none yet.
        """
        are_columns = all(isinstance(key, exp.Column) for key in by)
        if limit < self.dialect.many_rows or not are_columns or not self.dialect.shares_subqueries:
            return self._lowest_rows(self._add_order(table, columns, order), columns, by, limit)
        # Few partitions exceed a large limit: only their rows are ordered and sorted, all others are kept as they are.
        self.read_once(table)
        keys = [*(key.name for key in by), *self.trial_columns()]
        large = self.add_subquery(self.large_partitions(table, keys, limit))
        cut = self.cut_partitions(table, large, columns, by, limit, order)
        fitting = self.add_subquery(self.rows_among(table, large, self.unordered_columns(columns, order), keys, "ANTI"))
        kept = exp.union(cut, self._with_order(fitting, columns, order), distinct=False, copy=False)
        return select(*(column_ref(c) for c in columns)).from_(self.add_subquery(kept), copy=False)

    def cut_partitions(
        self,
        table: exp.Table,
        large: exp.Table,
        columns: Sequence[str],
        by: Sequence[Sql],
        limit: int,
        order: Sql | None,
    ) -> exp.Select:
        """Select the first `limit` rows of each partition that is listed, and of no others."""
        keys = [*(key.name for key in by), *self.trial_columns()]
        exceeding = self.add_subquery(
            self.rows_among(table, large, self.unordered_columns(columns, order), keys, "SEMI")
        )
        return self._lowest_rows(self._add_order(exceeding, columns, order), columns, by, limit)

    def unordered_columns(self, columns: Sequence[str], order: Sql | None) -> list[str]:
        """List the columns that rows have before they are ordered."""
        return [column for column in columns if order is None or column != "o"]

    def _with_order(self, table: exp.Table, columns: Sequence[str], order: Sql | None) -> exp.Select:
        """Select columns of rows, and the column o by its `order` where the rows have none yet."""
        made = [with_alias(order, c) if c == "o" and order is not None else column_ref(c) for c in columns]
        return select(*made).from_(table, copy=False)

    def _add_order(self, table: exp.Table, columns: Sequence[str], order: Sql | None) -> exp.Table:
        """Add a subquery of rows with their order and sort key."""
        if order is not None:
            table = self.add_subquery(self._with_order(table, columns, order))
        return self.add_subquery(self.with_sort_key(table, columns))

    def large_partitions(self, table: exp.Table, keys: Sequence[str], limit: int) -> exp.Select:
        """Select the partitions that have more than `limit` rows."""
        is_large = binary(exp.GT, exp.Count(this=exp.Star()), literal(limit))
        rows = select(*map(column_ref, keys)).from_(table.copy(), copy=False)
        return rows.group_by(*map(column_ref, keys), copy=False).having(is_large, copy=False)

    def rows_among(
        self, table: exp.Table, listed: exp.Table, columns: Sequence[str], keys: Sequence[str], kind: str
    ) -> exp.Select:
        """Select the rows of a table whose keys are listed (SEMI) or are not (ANTI); NULL is a key like any other."""
        same = [binary(exp.NullSafeEQ, column_ref(key, "x"), column_ref(key, "y")) for key in keys]
        rows, others = table.copy(), listed.copy()
        for source, name in ((rows, "x"), (others, "y")):
            source.set("alias", _alias(name))
        join = exp.Join(this=others, on=and_(same), kind=kind)
        return select(*(column_ref(c, "x") for c in columns)).from_(rows, copy=False).join(join, copy=False)

    def _lowest_rows(self, keyed: exp.Table, columns: Sequence[str], by: Sequence[Sql], limit: int) -> exp.Select:
        """Select the `limit` rows of each partition with the lowest sort keys s."""
        ties = columns if self.dialect.orders_ties else ()  # rows that tie then are equal, so either may be chosen
        window = exp.Window(
            this=exp.RowNumber(),
            partition_by=[*(key.copy() for key in by), *map(column_ref, self.trial_columns())],
            order=exp.Order(expressions=[column_ref("s"), *map(column_ref, ties)]),
        )
        ranked = select(*(column_ref(c) for c in columns), with_alias(window, "n")).from_(keyed, copy=False)
        in_limit = binary(exp.LTE, column_ref("n"), literal(limit))
        return select(*(column_ref(c) for c in columns)).from_(subquery(ranked), copy=False).where(in_limit, copy=False)

    def with_sort_key(self, table: exp.Table, columns: Sequence[str]) -> exp.Select:
        """Select rows together with s, their sort key."""
        # In a column of its own, the common parts of the sort key are computed once; inside the window they are not.
        return select(*(column_ref(c) for c in columns), with_alias(self.sort_key("o"), "s")).from_(table, copy=False)

    def finish(self, body: exp.Select) -> exp.Select:
        """Return the whole statement and set its `size`; refuse statements that are too large."""
        tables = [
            exp.CTE(this=part, alias=_alias(name), materialized=self._computed.get(name)) for name, part in self._bodies
        ]
        body.set("with_", exp.With(expressions=tables))
        self.size = statement_size(body)
        if self.size.nodes > MAX_SQL_NODES:
            raise InvalidPlan("the plan is too large; use fewer or simpler expressions")
        return body


def _table(name: str) -> exp.Table:
    """Refer to a table by one of this module's own names; built directly, since parsing a name is slow."""
    return exp.Table(this=exp.to_identifier(name))


def _alias(name: str) -> exp.TableAlias:
    return exp.TableAlias(this=exp.to_identifier(name))


def subquery(body: exp.Select) -> exp.Subquery:
    """Wrap a SELECT as a subquery in a FROM clause."""
    return exp.Subquery(this=body, alias=_alias("ranked"))


def join_select(
    columns: Sequence[Sql],
    first: tuple[exp.Table, str],
    second: tuple[exp.Table, str],
    on: Sql,
    how: Literal["inner", "left", "anti"],
) -> exp.Select:
    """Select columns from two tables, each under an alias, joined on a condition."""
    for table, name in (first, second):
        table.set("alias", _alias(name))
    kind = {"side": "LEFT"} if how == "left" else {"kind": how.upper()}
    join = exp.Join(this=second[0], on=on, **kind)
    return select(*columns).from_(first[0], copy=False).join(join, copy=False)


def with_alias(value: Sql, name: str) -> Sql:
    """Build `value AS name`."""
    return exp.Alias(this=detach(value), alias=exp.to_identifier(name))


def all_equal(pairs: Sequence[tuple[Sql, Sql]]) -> Sql:
    """Build the join condition that all pairs are equal."""
    return and_([binary(exp.EQ, left, right) for left, right in pairs])


def saturate(value: Sql, most: int, least: int | None = None) -> Sql:
    """Clamp a wide integer to [least, most] (`least` is -most by default) and cast it to 64 bits; NULL becomes 0."""
    present = exp.Coalesce(this=detach(value), expressions=[literal(0)])
    clamped = call("LEAST", call("GREATEST", present, literal(-most if least is None else least)), literal(most))
    return cast(clamped, "bigint")
