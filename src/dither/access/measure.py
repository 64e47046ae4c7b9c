"""Measures: relation -> vector of integers, with its public shape, its sensitivity and its SQL.

    measure.axes(ctx)              -> tuple[Axis(name, values)], the declared keys in their fixed order
    measure.size(ctx)              -> number of cells = product of the axes' lengths x number of values
    measure.labels(ctx)            -> iterator over key tuples, in the order of the vector (values innermost)
    measure.steps(ctx)             -> one lattice step per value: cell integer * step = the quantity
    measure.sensitivity(ctx, unit) -> Sensitivity in steps, exact; raises Unbounded when one unit moves it without limit
    engine.vector(measure)         -> int64 vector of that size (cells without rows are 0)

The vector is flat in C order over shape (len(axis_1), ..., len(axis_k), len(values)). Key values are Fractions or
ints for numbers, text, booleans, microseconds for moments, None for NULL (last). `PartitionCounts` has no axes: its
keys come from the data; `engine.groups(measure)` returns them with their counts, for partition selection only.

    count_units(child, unit, keys)       distinct units (per key)
    histogram(child, value, edges, keys) rows per bin
    contributions(child, unit, edges)    units by number of rows: what an automatic bound is found from
    covariance(child, values)            sums of products of all pairs, with 1 as the first value
    gradient(child, ...)                 per-unit clipped gradient sums

A unit whose influence is 0 (a table that it does not cover) costs nothing, provided that another unit of the dataset
is moved; a measure that no unit moves is refused.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product as cartesian
from math import floor, isqrt, prod
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from sqlglot import exp

from dither.access.context import Context
from dither.access.domains import Lattice, ends, index_of, listed, span
from dither.access.expr import (
    Arithmetic,
    Bucket,
    Column,
    Constant,
    Expr,
    Function,
    Rounded,
    Scope,
    _search,
    constant,
    legible,
    typed,
)
from dither.access.relation import (
    Aggregate,
    GroupBy,
    Influence,
    Limit,
    PerKey,
    Relation,
    check_limit,
    fixed,
    needs_unit,
)
from dither.access.spelling import (
    Sql,
    add,
    added,
    binary,
    both,
    case,
    cast,
    either,
    fits_64_bits,
    is_null,
    own,
    plain,
    present,
    rows_count,
    select,
    times,
    whole,
)
from dither.access.statement import Statement, aliased, named, saturated
from dither.errors import InvalidParameter, InvalidPlan, Unbounded, Unsupported
from dither.loss import Sensitivity
from dither.schema import Domain, Identifier, Number, Reference, Scalar

MOST_CELLS = 1 << 26
SATURATED = (1 << 63) - 1
MOST_PER_UNIT = 1 << 31

Vector = NDArray[np.int64]


@dataclass(frozen=True)
class Key:
    """A grouping expression; its keys are its declared domain, or the listed public `values` (other rows fall out)."""

    name: str
    value: Expr
    values: tuple[Scalar, ...] | None = None

    def __post_init__(self) -> None:
        for value in self.values or ():
            if isinstance(value, str):
                legible(value)


@dataclass(frozen=True)
class Axis:
    """The declared keys of one grouping expression, in their fixed order."""

    name: str
    values: Sequence[Scalar]


class Measure(ABC):
    """A vector of integers computed from a relation."""

    proof: ClassVar[str]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "proof" not in cls.__dict__:
            raise TypeError(f"{cls.__name__} must name its proof: proof = '<file>.md'")

    @abstractmethod
    def axes(self, ctx: Context) -> tuple[Axis, ...]:
        """The declared keys, in their fixed order."""

    @abstractmethod
    def steps(self, ctx: Context) -> tuple[Fraction, ...]:
        """One lattice step for each value."""

    @abstractmethod
    def sensitivity(self, ctx: Context, unit: str) -> Sensitivity:
        """How far one unit moves the vector, in steps."""

    @abstractmethod
    def plan(self, statement: Statement) -> Plan:
        """SQL for the cells that have rows, and how to lay them out."""

    def size(self, ctx: Context) -> int:
        """The number of cells."""
        return prod(len(axis.values) for axis in self.axes(ctx)) * len(self.steps(ctx))

    def labels(self, ctx: Context) -> Iterator[tuple[Scalar, ...]]:
        """The key tuples in the order of the vector; each stands for `len(steps)` cells."""
        return cartesian(*(axis.values for axis in self.axes(ctx)))

    def finish(self, cells: Vector) -> Vector:
        """What is left to do with the laid-out cells."""
        return cells


@dataclass(frozen=True)
class Plan:
    """A statement that returns columns k0.. (held keys), v0.. (integers) and b (corrections), and the keys' order."""

    select: exp.Select
    keys: tuple[Sequence[Any], ...]
    values: int


NO_CHANGE = Sensitivity(Fraction(0), Fraction(0), Fraction(0), Fraction(0))


def influence_of(ctx: Context, child: Relation, unit: str) -> Influence:
    """The influence of a unit on what is measured; refused where no unit with a budget moves it."""
    found = child.influence(ctx, unit)
    if found.rows == 0 and all(child.influence(ctx, other).rows == 0 for other in ctx.budgeted):
        raise Unsupported("no unit of privacy covers these rows: join them to a table that one covers")
    return found


def bounded(found: Influence, unit: str) -> int:
    """The rows that one unit moves, or an error that says how to bound them."""
    if found.rows is not None:
        return found.rows
    if found.unit:
        raise Unbounded(f"one {unit} could change any number of rows: bound the rows of each {unit} first")
    raise Unbounded(
        f"one {unit} could change any number of rows: bound them below the join or grouping that loses the {unit}"
    )


def sums_sensitivity(
    found: Influence,
    unit: str,
    sizes: Sequence[int],
    cells: int,
    keys: tuple[Expr, ...],
    columns: Mapping[str, Domain],
) -> Sensitivity:
    """The joint sensitivity of sums of values of at most these sizes, grouped by `keys` of `columns` into `cells`."""
    rows = bounded(found, unit)
    moving = [size for size in sizes if size]
    most, one, two = max(moving, default=0), sum(moving), sum(size * size for size in moving)
    groups, each, squares = min(rows, cells), rows, rows * rows
    ones = rows
    if found.per_key is not None and found.per_key.means(keys, columns) and rows:
        groups, each, ones, squares = _by_key(found.per_key, rows, cells)
    return Sensitivity(*(Fraction(norm) for norm in (groups * len(moving), each * most, ones * one, squares * two)))


def _by_key(bound: PerKey, rows: int, cells: int) -> tuple[int, int, int, int]:
    """Groups, rows in one group, rows in all, and the largest sum of squares of rows per group."""
    groups, each = min(bound.groups, cells, rows), min(bound.rows, rows)
    ones = min(rows, groups * each)
    full, rest = divmod(ones, each)
    return groups, each, ones, full * each * each + rest * rest


class _Grouped(Measure):
    """Sums of values over declared keys."""

    proof = "sums.md"
    child: Relation
    keys: tuple[Key, ...]

    @abstractmethod
    def summed(self) -> tuple[Expr, ...]:
        """What is summed; NULL adds nothing."""

    def axes(self, ctx: Context) -> tuple[Axis, ...]:
        columns = self.child.domain(ctx)
        axes = tuple(axis_of(ctx, key, columns) for key in self.keys)
        if prod(len(axis.values) for axis in axes) * len(self.summed()) > MOST_CELLS:
            raise Unsupported(f"an answer may have at most {MOST_CELLS} cells; group by fewer or coarser keys")
        return axes

    def steps(self, ctx: Context) -> tuple[Fraction, ...]:
        return tuple(domain.step for domain in number_domains(ctx, self.child, self.summed()))

    def sensitivity(self, ctx: Context, unit: str) -> Sensitivity:
        found = influence_of(ctx, self.child, unit)
        sizes = [max(map(abs, ends(domain))) for domain in number_domains(ctx, self.child, self.summed())]
        cells = prod(len(axis.values) for axis in self.axes(ctx))
        keys, columns = tuple(key.value for key in self.keys), self.child.domain(ctx)
        return sums_sensitivity(found, unit, sizes, cells, keys, columns)

    def plan(self, statement: Statement) -> Plan:
        scope = statement.scope(self.child)
        keys = held_keys(statement.ctx, self.keys, self.axes(statement.ctx), scope)
        table = keyed(statement, self.child, self.keys, keys, self.summed(), ())
        totals = [self._total(statement, index, value) for index, value in enumerate(self.summed())]
        return Plan(collected(statement, table, len(self.keys), totals), keys, len(totals))

    def _total(self, statement: Statement, index: int, value: Expr) -> Sql:
        if value == Constant(1):
            return saturated(rows_count(), SATURATED)
        return saturated(statement.spelling.total(named(f"v{index}")), SATURATED)


def number_domains(ctx: Context, child: Relation, values: tuple[Expr, ...]) -> list[Number]:
    """The domains of what is summed."""
    scope = Scope(child.domain(ctx))
    domains = [typed(value, scope) for value in values]
    for domain in domains:
        if not isinstance(domain, Number):
            raise InvalidPlan("only numbers can be summed; count with a condition instead")
    return [domain for domain in domains if isinstance(domain, Number)]


def axis_of(ctx: Context, key: Key, columns: Mapping[str, Domain]) -> Axis:
    """The declared keys of an expression."""
    domain = typed(key.value, Scope(columns))
    if isinstance(domain, Identifier):
        raise Unsupported("an identifier cannot be a key of an answer")
    if key.values is not None:
        if len(set(key.values)) != len(key.values) or not key.values:
            raise InvalidPlan(f"the listed values of the key {key.name[:40]!r} must be different, and at least one")
        return Axis(key.name, key.values)
    public = ctx.public_values(domain.table, domain.column) if isinstance(domain, Reference) else None
    return Axis(key.name, listed(domain, MOST_CELLS, public))


def held_keys(ctx: Context, keys: tuple[Key, ...], axes: tuple[Axis, ...], scope: Scope) -> tuple[Sequence[Any], ...]:
    """Each axis in the form in which the engine holds its values; what is off the lattice can never occur."""
    domains = [key.value.domain(scope) for key in keys]
    found: list[Sequence[Any]] = []
    for axis, domain in zip(axes, domains, strict=True):
        if isinstance(axis.values, Lattice):
            found.append(axis.values.held)
            continue
        held = tuple(index_of(value, domain) for value in axis.values)
        if any(h is None and value is not None for h, value in zip(held, axis.values, strict=True)):
            raise InvalidPlan(f"a listed value of the key {axis.name[:40]!r} is not on its lattice")
        if any(isinstance(h, int) and not fits_64_bits(h) for h in held):
            raise InvalidPlan(f"a listed value of the key {axis.name[:40]!r} does not fit into 64 bits")
        found.append(held)
    return tuple(found)


def keyed(
    statement: Statement,
    child: Relation,
    keys: tuple[Key, ...],
    held: tuple[Sequence[Any], ...],
    values: tuple[Expr, ...],
    hidden: Sequence[str],
) -> exp.Table:
    """A subquery of keys k0.., values v0.., hidden columns and corrections; rows with unlisted keys left out."""
    scope = statement.scope(child)
    picked = [aliased(_grouped_by(statement, child, key, scope), f"k{index}") for index, key in enumerate(keys)]
    picked += [aliased(value.sql(scope), f"v{index}") for index, value in enumerate(values)]
    hidden = [*hidden, *statement.trials()]
    body = select(*picked, *(named(column) for column in hidden), named("b")).from_(statement.table(child), copy=False)
    listed_keys = [_among(named(f"k{i}"), held[i]) for i, key in enumerate(keys) if key.values is not None]
    if not listed_keys:
        return statement.add(body)
    columns = [*(f"k{i}" for i in range(len(keys))), *(f"v{i}" for i in range(len(values))), *hidden, "b"]
    return statement.add(
        select(*map(named, columns)).from_(statement.add(body), copy=False).where(both(listed_keys), copy=False)
    )


def _grouped_by(statement: Statement, child: Relation, key: Key, scope: Scope) -> Sql:
    """A key as groups are told apart by it: a packed text stays packed where it is compared with nothing."""
    if isinstance(key.value, Column) and key.values is None and key.value.name in scope.columns:
        column = f"c{list(scope.columns).index(key.value.name)}"
        if column in child.packed(statement):
            return named(column)
    return key.value.sql(scope)


def _among(value: Sql, held: Sequence[int | str | bool | None]) -> Sql:
    listed_values = exp.In(this=own(value), expressions=[constant(v) for v in held if v is not None])
    empty = is_null(value)
    if None not in held:
        return listed_values
    return either([listed_values, empty]) if len(held) > 1 else empty


def collected(statement: Statement, table: exp.Table, keys: int, totals: list[Sql]) -> exp.Select:
    """The totals of each group of keys, and how many corrections went into them."""
    names = [named(f"k{index}") for index in range(keys)]
    picked = [*names, *(aliased(value, f"v{index}") for index, value in enumerate(totals))]
    corrections = saturated(statement.spelling.total(named("b")), SATURATED) if statement.counts() else whole(0)
    picked.append(aliased(corrections, "b"))
    trials = [named(column) for column in statement.trials()]
    body, by = select(*picked, *trials).from_(table, copy=False), [*names, *trials]
    return statement.finish(body.group_by(*(name.copy() for name in by), copy=False) if by else body)


@dataclass(frozen=True)
class Count(_Grouped):
    """Rows per key."""

    proof = "count.md"
    child: Relation
    keys: tuple[Key, ...] = ()

    def summed(self) -> tuple[Expr, ...]:
        return (Constant(1),)


@dataclass(frozen=True)
class Sum(_Grouped):
    """Sum of a value per key, in steps of its lattice; NULL adds nothing."""

    proof = "sum.md"
    child: Relation
    value: Expr
    keys: tuple[Key, ...] = ()

    def summed(self) -> tuple[Expr, ...]:
        return (self.value,)


@dataclass(frozen=True)
class Sums(_Grouped):
    """Several sums per key in one pass, with their joint sensitivity; Constant(1) counts rows."""

    proof = "sums.md"
    child: Relation
    values: tuple[Expr, ...]
    keys: tuple[Key, ...] = ()

    def __post_init__(self) -> None:
        if not self.values:
            raise InvalidPlan("Sums needs at least one value")

    def summed(self) -> tuple[Expr, ...]:
        return self.values


@dataclass(frozen=True)
class RankCounts(Measure):
    """For each point of a public ascending grid, how many values are at most it; then how many values there are."""

    proof = "rank_counts.md"
    child: Relation
    value: Expr
    grid: tuple[Fraction, ...]

    def __post_init__(self) -> None:
        Bucket(self.value, self.grid)

    def axes(self, ctx: Context) -> tuple[Axis, ...]:
        self._edges(ctx)
        return (Axis("at most", (*self.grid, None)),)

    def steps(self, ctx: Context) -> tuple[Fraction, ...]:
        return (Fraction(1),)

    def _edges(self, ctx: Context) -> list[int]:
        """For each point the smallest held integer above it, or the nearest that separates the values as well."""
        domain = typed(self.value, Scope(self.child.domain(ctx)))
        lo, hi = span(domain)
        step = domain.step if isinstance(domain, Number) else Fraction(1)
        return [min(max(floor(point / step) + 1, lo), hi + 1) for point in self.grid]

    def sensitivity(self, ctx: Context, unit: str) -> Sensitivity:
        rows, cells = bounded(influence_of(ctx, self.child, unit), unit), len(self.grid) + 1
        return Sensitivity.of(l0=cells if rows else 0, linf=rows)

    def plan(self, statement: Statement) -> Plan:
        scope, edges = statement.scope(self.child), self._edges(statement.ctx)
        picked = aliased(self.value.sql(scope), "v0")
        rest = [named(column) for column in ("b", *statement.trials())]
        body = select(picked, *rest).from_(statement.table(self.child), copy=False)
        bins = aliased(_search(named("v0"), edges, 0, len(edges)), "k0")
        table = statement.add(
            select(bins, *rest).from_(statement.add(body), copy=False).where(present(named("v0")), copy=False)
        )
        totals = [saturated(rows_count(), SATURATED)]
        return Plan(collected(statement, table, 1, totals), (tuple(range(len(edges) + 1)),), 1)

    def finish(self, cells: Vector) -> Vector:
        return held_integers(np.cumsum(cells.astype(object)))


@dataclass(frozen=True)
class Clipped(Measure):
    """Sums per key where each unit's whole vector is first scaled into an L1 or L2 ball of radius `bound` (steps).

    Integer division towards zero, so the norm is at most `bound` exactly, however many rows the unit has. A unit's sum
    in one cell is held at 2^31 before that.
    """

    proof = "clipped.md"
    child: Relation
    unit: str
    values: tuple[Expr, ...]
    bound: Limit
    norm: Literal["l1", "l2"] = "l2"
    keys: tuple[Key, ...] = ()

    def __post_init__(self) -> None:
        check_limit(self.bound, "a clipping bound")

    def _open(self) -> Sums:
        return Sums(self.child, self.values, self.keys)

    def axes(self, ctx: Context) -> tuple[Axis, ...]:
        needs_unit(ctx, self.child, self.unit, "clipping")
        return self._open().axes(ctx)

    def steps(self, ctx: Context) -> tuple[Fraction, ...]:
        return self._open().steps(ctx)

    def sensitivity(self, ctx: Context, unit: str) -> Sensitivity:
        found, radius, cells = influence_of(ctx, self.child, unit), fixed(self.bound), self.size(ctx)
        needs_unit(ctx, self.child, self.unit, "clipping")
        if found.rows == 0:
            return NO_CHANGE
        if unit == self.unit:
            return self._smaller(self._ball(radius, 1, cells), ctx, found, unit)
        if ctx.coarser(unit, self.unit) and found.unit:
            return self._ball(radius, ctx.windows(self.unit), cells)
        if ctx.coarser(self.unit, unit):
            return self._ball(radius, 2, cells)
        return self._ball(radius, 2 * bounded(found, unit), cells)

    def _ball(self, radius: int, many: int, cells: int) -> Sensitivity:
        """The sum of so many integer vectors of the ball."""
        squares = (many * radius) ** 2
        if self.norm == "l1":
            norms = (min(cells, many * radius), many * radius, many * radius, squares)
        else:
            one = min(isqrt(cells * squares), many * radius * radius)
            norms = (min(cells, many * radius * radius), many * radius, one, squares)
        return Sensitivity(*map(Fraction, norms))

    def _smaller(self, ball: Sensitivity, ctx: Context, found: Influence, unit: str) -> Sensitivity:
        """Clipping never lengthens a vector: few small rows may stay below the radius anyway."""
        if found.rows is None:
            return ball
        plain_sums = self._open().sensitivity(ctx, unit)
        return Sensitivity(
            min(ball.l0, plain_sums.l0),
            min(ball.linf, plain_sums.linf),
            min(ball.l1, plain_sums.l1),
            min(ball.l2_squared, plain_sums.l2_squared),
        )

    def plan(self, statement: Statement) -> Plan:
        scope, hidden = statement.scope(self.child), [*statement.unit_columns(self.unit), *statement.trials()]
        held = held_keys(statement.ctx, self.keys, self.axes(statement.ctx), scope)
        table = keyed(statement, self.child, self.keys, held, self.values, statement.unit_columns(self.unit))
        table = self._per_unit(statement, table, hidden)
        table = self._with_norms(statement, table, hidden)
        table = self._scaled(statement, table)
        totals = [saturated(statement.spelling.total(named(f"v{i}")), SATURATED) for i in range(len(self.values))]
        return Plan(collected(statement, table, len(self.keys), totals), held, len(totals))

    def _keys(self) -> list[Sql]:
        return [named(f"k{index}") for index in range(len(self.keys))]

    def _kept(self, statement: Statement) -> list[Sql]:
        return [*self._keys(), named("b"), *map(named, statement.trials())]

    def _per_unit(self, statement: Statement, table: exp.Table, hidden: list[str]) -> exp.Table:
        """Each unit's sums per key, held at 2^31."""
        by = [*self._keys(), *map(named, hidden)]
        sums = [
            aliased(saturated(statement.spelling.total(named(f"v{index}")), MOST_PER_UNIT), f"s{index}")
            for index in range(len(self.values))
        ]
        corrections = aliased(saturated(statement.spelling.total(named("b")), MOST_PER_UNIT), "b")
        return statement.add(
            select(*by, *sums, corrections).from_(table, copy=False).group_by(*(key.copy() for key in by), copy=False)
        )

    def _with_norms(self, statement: Statement, table: exp.Table, hidden: list[str]) -> exp.Table:
        """Beside each cell, the unit's norm over all its cells: the sum of sizes, or of squares."""
        cells = [named(f"s{index}") for index in range(len(self.values))]
        sizes: list[Sql] = [exp.Abs(this=own(cell)) if self.norm == "l1" else times(cell, cell) for cell in cells]
        size = added([statement.spelling.wide(each) for each in sizes])
        window = exp.Window(this=exp.Sum(this=size), partition_by=[named(column) for column in hidden])
        return statement.add(select(*self._kept(statement), *cells, aliased(window, "n")).from_(table, copy=False))

    def _scaled(self, statement: Statement, table: exp.Table) -> exp.Table:
        """Each cell times bound / norm, towards zero, where the norm passes the bound."""
        radius, spelling = fixed(self.bound), statement.spelling
        if self.norm == "l2":
            table = self._with_root(statement, table)
        limit = plain(radius if self.norm == "l1" else radius * radius)
        norm = cast(named("n"), "bigint") if self.norm == "l1" else named("root")
        fits_already = binary(exp.LTE, named("n"), limit)
        scaled = []
        for index in range(len(self.values)):
            cell = named(f"s{index}")
            shrunk = spelling.quotient(times(cell, radius), exp.Nullif(this=own(norm), expression=plain(0)))
            scaled.append(aliased(case([(fits_already, cell)], shrunk), f"v{index}"))
        return statement.add(select(*self._kept(statement), *scaled).from_(table, copy=False))

    def _with_root(self, statement: Statement, table: exp.Table) -> exp.Table:
        """The smallest integer whose square is at least n: a double's root is within one of it, so four are tried."""
        cells = [named(f"s{index}") for index in range(len(self.values))]
        near = cast(exp.Floor(this=exp.Sqrt(this=cast(named("n"), "double"))), "bigint")
        with_guess = statement.add(
            select(*self._kept(statement), *cells, named("n"), aliased(near, "g")).from_(table, copy=False)
        )
        tries = [add(named("g"), offset) for offset in (-1, 0, 1)]
        branches = [(binary(exp.GTE, self._square(statement, t), named("n")), t) for t in tries]
        root = aliased(case(branches, add(named("g"), 2)), "root")
        return statement.add(select(*self._kept(statement), *cells, named("n"), root).from_(with_guess, copy=False))

    def _square(self, statement: Statement, value: Sql) -> Sql:
        wide = statement.spelling.wide(value)
        return times(wide, wide)


@dataclass(frozen=True)
class Linear(Measure):
    """Integer combinations of another measure's cells; each row of `weights` gives one cell."""

    proof = "linear.md"
    child: Measure
    weights: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        widths = {len(row) for row in self.weights}
        if len(widths) != 1 or any(abs(weight) > 1 << 31 for row in self.weights for weight in row):
            raise InvalidParameter("the weights of a linear map must be rows of equal length of integers up to 2^31")

    def axes(self, ctx: Context) -> tuple[Axis, ...]:
        if len(self.weights[0]) != self.child.size(ctx):
            raise InvalidPlan(
                f"the linear map takes {len(self.weights[0])} cells, its measure has {self.child.size(ctx)}"
            )
        return (Axis("row", tuple(range(len(self.weights)))),)

    def steps(self, ctx: Context) -> tuple[Fraction, ...]:
        steps = set(self.child.steps(ctx))
        if len(steps) != 1:
            raise Unsupported("a linear map needs cells that share one lattice step")
        return (steps.pop(),)

    def sensitivity(self, ctx: Context, unit: str) -> Sensitivity:
        self.axes(ctx)
        child = self.child.sensitivity(ctx, unit)
        columns = list(zip(*self.weights, strict=True))
        column_one = max(sum(map(abs, column)) for column in columns)
        column_two = max(sum(weight * weight for weight in column) for column in columns)
        row_one = max(sum(map(abs, row)) for row in self.weights)
        largest = max(abs(weight) for row in self.weights for weight in row)
        reached = child.l0 * max(sum(weight != 0 for weight in column) for column in columns)
        return Sensitivity(
            min(Fraction(sum(any(row) for row in self.weights)), reached),
            min(child.l1 * largest, child.linf * row_one),
            child.l1 * column_one,
            min(child.l2_squared * column_one * row_one, child.l1 * child.l1 * column_two),
        )

    def plan(self, statement: Statement) -> Plan:
        self.axes(statement.ctx)
        return self.child.plan(statement)

    def finish(self, cells: Vector) -> Vector:
        return self.applied(self.child.finish(cells))

    def applied(self, vector: Vector) -> Vector:
        """The combinations of the child's own vector."""
        return held_integers(np.array(self.weights, dtype=object) @ vector.astype(object))


def held_integers(values: NDArray[np.object_]) -> Vector:
    """Integers of any size held within 64 bits."""
    return np.array([max(-SATURATED, min(SATURATED, int(value))) for value in values], dtype=np.int64)


@dataclass(frozen=True)
class PartitionCounts(_Grouped):
    """Rows per key that occurs, keys not declared: for partition selection; child bounded by BoundGroups or GroupBy."""

    proof = "partition_counts.md"
    child: Relation
    keys: tuple[Key, ...]

    def summed(self) -> tuple[Expr, ...]:
        return (Constant(1),)

    def axes(self, ctx: Context) -> tuple[Axis, ...]:
        raise Unsupported("the keys of this measure are not declared: they leave through partition selection only")

    def sensitivity(self, ctx: Context, unit: str) -> Sensitivity:
        found = influence_of(ctx, self.child, unit)
        self._check(ctx)
        keys, columns = tuple(key.value for key in self.keys), self.child.domain(ctx)
        return sums_sensitivity(found, unit, [1], bounded(found, unit), keys, columns)

    def _check(self, ctx: Context) -> None:
        scope = Scope(self.child.domain(ctx))
        if any(key.values is not None for key in self.keys):
            raise Unsupported("partition selection finds its keys in the data: list no values for them")
        if not self.keys or any(isinstance(typed(key.value, scope), Identifier) for key in self.keys):
            raise Unsupported("partition selection needs keys, and an identifier cannot be one")

    def plan(self, statement: Statement) -> Plan:
        self._check(statement.ctx)
        table = keyed(statement, self.child, self.keys, (), (Constant(1),), ())
        body = collected(statement, table, len(self.keys), [saturated(rows_count(), SATURATED)])
        return Plan(body, (), 1)


def count_units(child: Relation, unit: str, keys: tuple[Key, ...] = ()) -> Count:
    """How many different units there are, in each key."""
    named_keys = tuple((key.name, key.value) for key in keys)
    outer = tuple(Key(key.name, Column(key.name), key.values) for key in keys)
    return Count(GroupBy(child, named_keys, (), unit), outer)


def histogram(child: Relation, value: Expr, edges: tuple[Fraction, ...], keys: tuple[Key, ...] = ()) -> Count:
    """Rows per bin: bin i holds the values from edge i-1 (included) to edge i."""
    return Count(child, (*keys, Key("bin", Bucket(value, edges), tuple(range(len(edges) + 1)))))


def contributions(child: Relation, unit: str, edges: tuple[Fraction, ...]) -> Count:
    """Units by how many rows they have: bin i holds those with at least edge i-1 and fewer than edge i rows."""
    per_unit = GroupBy(child, (), (Aggregate("rows", "count"),), unit)
    return histogram(per_unit, Column("rows"), edges)


def covariance(child: Relation, values: tuple[Expr, ...]) -> Sums:
    """Sums of products of all pairs i <= j of (1, *values): the count, the sums, the squares and the products."""
    terms = (Constant(1), *values)
    pairs = [(i, j) for i in range(len(terms)) for j in range(i, len(terms))]
    return Sums(child, tuple(_times(terms[i], terms[j]) for i, j in pairs))


def _times(left: Expr, right: Expr) -> Expr:
    return right if left == Constant(1) else Arithmetic("*", left, right)


def gradient(
    child: Relation,
    unit: str,
    features: tuple[Expr, ...],
    target: Expr,
    weights: tuple[Fraction, ...],
    *,
    kind: Literal["linear", "logistic"],
    bound: Limit,
    step: Fraction = Fraction(1, 1000),
) -> Clipped:
    """The gradient of a loss at public weights, summed over units, each clipped to an L2 norm of `bound` steps."""
    score: Expr = Constant(0)
    for weight, feature in zip(weights, features, strict=True):
        score = Arithmetic("+", score, Rounded("round", Arithmetic("*", Constant(weight), feature), step))
    if kind == "logistic":
        score = Function("logistic", score, step)
    residual = Arithmetic("-", score, target)
    parts = tuple(Rounded("round", Arithmetic("*", residual, feature), step) for feature in features)
    return Clipped(child, unit, parts, bound)


BY_NAME: dict[str, type] = {
    node.__name__: node for node in (Key, Count, Sum, Sums, RankCounts, Clipped, Linear, PartitionCounts)
}
