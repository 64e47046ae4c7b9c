"""Runs random plans on an engine for many neighbouring datasets at once, and checks every promise of each plan."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from random import Random
from typing import Any, Protocol

import duckdb
import numpy as np
import pyarrow as pa
from sqlglot import exp

from dither.access.result_vector import to_vector
from dither.errors import DitherError
from dither.loss import Sensitivity
from dither.plan import measures, relations
from dither.plan.context import Context
from dither.plan.domains import bounds_of, storage_type
from dither.plan.measures.core import Measure, VectorQuery
from dither.plan.measures.linear import LinearQuery
from dither.plan.relations.core import Relation
from dither.plan.relations.facts import needs_order
from dither.plan.relations.scan import Scan
from dither.plan.sql.builders import cast
from dither.plan.sql.dialect import Dialect
from dither.plan.sql.scope import Scope
from dither.plan.sql.statement import SqlStatement, TableSource, column_ref
from dither.schema import Boolean, Category, Domain, Identifier, Moment, Number, Reference
from plan.plans import Case, arrow, cases, neighbours
from plan.reference import Interpreter, Raw, held

SECRET = 7
NORMS = ("l0", "linf", "l1", "l2_squared")

RELATION_NAMES = {node: name for name, node in relations.BY_NAME.items()}
MEASURE_NAMES = {node: name for name, node in measures.BY_NAME.items()}


class Violation(AssertionError):
    """A promise of a plan that its data broke; `kind` is one of a-f of the list in the tests."""

    def __init__(self, kind: str, detail: str, item: Case | None = None) -> None:
        super().__init__(f"({kind}) {detail}")
        self.kind, self.detail, self.item = kind, detail, item


class Bench(Protocol):
    """An engine on which small tables can be put and statements run."""

    dialect: Dialect

    def load(self, tables: dict[str, pa.Table]) -> dict[str, exp.Expr]:
        """Puts tables there and says how each is named in FROM."""

    def run(self, statement: exp.Expr) -> pa.Table:
        """Runs a statement."""


class DuckBench:
    """DuckDB with the settings of the engine."""

    dialect = Dialect()

    def __init__(self) -> None:
        self.connection = duckdb.connect(":memory:", config={"threads": 1})
        self.connection.execute("SET disabled_optimizers = 'top_n_window_elimination,statistics_propagation'")
        self.connection.execute("SET TimeZone = 'UTC'")

    def load(self, tables: dict[str, pa.Table]) -> dict[str, exp.Expr]:
        for name, table in tables.items():
            self.connection.register(f"raw_{name}", table)
        return {name: exp.to_table(f"raw_{name}") for name in tables}

    def run(self, statement: exp.Expr) -> pa.Table:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a copy of a few rows costs less than binding twice
            return self.connection.execute(self.dialect.render(statement)).to_arrow_table()


@dataclass
class Tally:
    """How much was run, and how close the data came to what was promised."""

    plans: int = 0
    neighbours: int = 0
    measures: int = 0
    statements: int = 0
    rows_reached: Counter[str] = field(default_factory=Counter)
    norms_reached: Counter[tuple[str, str]] = field(default_factory=Counter)

    def line(self, engine: str) -> str:
        return (
            f"{engine}: {self.plans} plans x {self.neighbours} neighbours, {self.measures} measures, "
            f"{self.statements} statements, 0 violations"
        )


@dataclass(frozen=True)
class Setting:
    """A dataset with its neighbours, put on an engine: one table each, told apart by a trial column."""

    bench: Bench
    ctx: Context
    data: dict[str, Raw]
    units: list[str]
    places: dict[str, exp.Expr]
    references: list[Interpreter]
    tally: Tally

    def origins(self) -> dict[str, TableSource]:
        return {name: TableSource(place, dict(self.data[name].kinds)) for name, place in self.places.items()}

    def run(self, statement: exp.Expr, node: Any) -> pa.Table:
        self.tally.statements += 1
        try:
            return self.bench.run(statement)
        except Exception as error:
            raise Violation("f", f"{node}: {str(error)[:600]}") from None


def settle(item: Case, bench: Bench, rng: Random, most: int, tally: Tally, references: int = 2) -> Setting:
    """The case's dataset and its neighbours on an engine."""
    others = neighbours(rng, item, most)
    versions = [item.data, *(version for _, version in others)]
    tables = {name: arrow(item.data[name], [version[name] for version in versions]) for name in item.data}
    plain = [Interpreter(item.ctx, version, SECRET) for version in versions[:references]]
    return Setting(bench, item.ctx, item.data, [unit for unit, _ in others], bench.load(tables), plain, tally)


def statement_for(setting: Setting, plan: Relation | Measure) -> SqlStatement:
    ordered = needs_order(plan)
    origins = setting.origins()
    return SqlStatement(
        setting.ctx, origins, setting.bench.dialect, SECRET, frozenset(), trial="trial", keeps_order=ordered
    )


def check(item: Case, bench: Bench, rng: Random, most: int, tally: Tally, references: int = 2) -> None:
    """All promises of one plan, for its dataset against each neighbour."""
    check_alone(item, settle(item, bench, rng, most, tally, references))


def check_alone(item: Case, setting: Setting) -> None:
    """All promises of one plan; its rows and its measure in statements of their own, as an engine runs them."""
    try:
        judge_rows(item, setting, rows_alone(item, setting))
        if item.measure is not None:
            judge_measure(item, setting, *measure_alone(item.measure, setting))
    except Violation as violation:
        violation.item = item
        raise
    counted(item, setting)


def counted(item: Case, setting: Setting) -> None:
    setting.tally.plans += 1
    setting.tally.neighbours += len(setting.units)
    setting.tally.measures += item.measure is not None


def rows_alone(item: Case, setting: Setting) -> pa.Table:
    statement, node = statement_for(setting, item.relation), item.relation
    columns = [column_ref(f"c{index}") for index in range(len(node.domain(item.ctx)))]
    return setting.run(statement.finish(exp.select(column_ref("x"), *columns).from_(statement.table(node))), node)


def measure_alone(measure: Measure, setting: Setting) -> tuple[VectorQuery, pa.Table]:
    plan = measure.vector_query(statement_for(setting, measure))
    return plan, setting.run(plan.select, measure)


# ---------------------------------------------------------------- several plans in one statement


class Shared(SqlStatement):
    """The subqueries of several plans; only scans are shared between plans, each plan is as it would be alone."""

    def finish(self, body: exp.Select) -> exp.Select:
        return body

    def next_plan(self) -> None:
        self._names = {node: name for node, name in self._names.items() if isinstance(node, Scan)}

    def together(self, branches: Sequence[Branch]) -> exp.Select:
        width = {kind: max(branch.kinds.count(kind) for branch in branches) for kind in SLOTS}
        sides = [branch.spread(number, width) for number, branch in enumerate(branches)]
        body = exp.select(exp.Star()).from_(_united(sides).subquery("every"))
        return super().finish(body)


def _united(sides: Sequence[exp.Select]) -> exp.Query:
    return sides[0] if len(sides) == 1 else exp.union(*sides, distinct=False, copy=False)


SLOTS = ("bigint", "varchar", "boolean")


@dataclass(frozen=True)
class Branch:
    """A named subquery, its columns and how each is held: one side of a union whose columns are slots by type."""

    table: exp.Table
    columns: tuple[str, ...]
    kinds: tuple[str, ...]

    def slots(self) -> list[str]:
        return [f"{kind}{self.kinds[:index].count(kind)}" for index, kind in enumerate(self.kinds)]

    def spread(self, number: int, width: dict[str, int]) -> exp.Select:
        filled = dict(zip(self.slots(), self.columns, strict=True))
        picked = [exp.alias_(exp.Literal.number(number), "q"), column_ref("x")]
        for kind in SLOTS:
            for slot in (f"{kind}{index}" for index in range(width[kind])):
                value = column_ref(filled[slot]) if slot in filled else cast(exp.null(), kind)
                picked.append(exp.alias_(value, slot))
        return exp.select(*picked).from_(self.table)

    def read(self, table: pa.Table) -> pa.Table:
        return pa.table([table.column("x"), *map(table.column, self.slots())], names=["x", *self.columns])


def key_kinds(ctx: Context, measure: Measure) -> list[str]:
    """How an engine holds the keys of a measure."""
    match measure:
        case LinearQuery(child=child):
            return key_kinds(ctx, child)
        case _:
            scope = Scope(measure.child.domain(ctx))
            return [storage_type(key.value.domain(scope)) for key in measure.keys]


def check_together(items: Sequence[Case], setting: Setting) -> None:
    """All promises of plans on one dataset, in one statement for those that need an order and one for the others."""
    for ordered in (False, True):
        some = [item for item in items if needs_order(item.measure or item.relation) is ordered]
        if some:
            try:
                _check_some(some, setting, ordered)
            except Violation as violation:
                if violation.item is None:
                    violation.item = next((item for item in some if breaks(item, setting)), None)
                raise


def breaks(item: Case, setting: Setting) -> bool:
    """Whether a statement of this plan alone fails."""
    try:
        rows_alone(item, setting)
        if item.measure is not None:
            measure_alone(item.measure, setting)
    except Violation:
        return True
    return False


def _check_some(items: Sequence[Case], setting: Setting, ordered: bool) -> None:
    shared = Shared(
        setting.ctx, setting.origins(), setting.bench.dialect, SECRET, frozenset(), trial="trial", keeps_order=ordered
    )
    branches: list[Branch] = []
    plans: list[VectorQuery | None] = []
    for item in items:
        shared.next_plan()
        kinds = tuple(storage_type(domain) for domain in item.relation.domain(item.ctx).values())
        branches.append(Branch(shared.table(item.relation), tuple(f"c{i}" for i in range(len(kinds))), kinds))
        plans.append(None if item.measure is None else item.measure.vector_query(shared))
        if plans[-1] is not None:
            branches.append(_measure_branch(shared, item.measure, plans[-1]))
    found = setting.run(shared.together(branches), [item.measure or item.relation for item in items])
    parts = iter([branch.read(part) for branch, part in zip(branches, split(found, "q", len(branches)), strict=True)])
    for item, plan in zip(items, plans, strict=True):
        try:
            judge_rows(item, setting, next(parts))
            if plan is not None:
                judge_measure(item, setting, plan, next(parts))
        except Violation as violation:
            violation.item = item
            raise
        counted(item, setting)


def _measure_branch(shared: Shared, measure: Measure, plan: VectorQuery) -> Branch:
    keys = key_kinds(shared.ctx, measure)
    keys = (*keys, *("bigint" for _ in range(len(plan.keys) - len(keys))))  # the number of a table's column
    names = [*(f"k{index}" for index in range(len(keys))), *(f"v{index}" for index in range(plan.value_count))]
    return Branch(shared.add_subquery(plan.select), tuple(names), (*keys, *("bigint" for _ in range(plan.value_count))))


def split(table: pa.Table, column: str, parts: int) -> list[pa.Table]:
    """The rows of each number from 0 to parts - 1, in one pass."""
    numbers = table.column(column).cast(pa.int64()).to_numpy()
    order = np.argsort(numbers, kind="stable")
    ends_at = np.searchsorted(numbers[order], np.arange(parts + 1))
    ordered = table.take(pa.array(order))
    return [ordered.slice(ends_at[i], ends_at[i + 1] - ends_at[i]) for i in range(parts)]


# ---------------------------------------------------------------- judging


def judge_rows(item: Case, setting: Setting, table: pa.Table) -> None:
    ctx, node = item.ctx, item.relation
    domain = node.domain(ctx)
    bags = [Counter[Any]() for _ in range(len(setting.units) + 1)]
    for trial, *values in zip(*(column.to_pylist() for column in table.columns), strict=True):
        bags[trial][tuple(values)] += 1
    for row in {row for bag in bags for row in bag}:
        for value, (name, d) in zip(row, domain.items(), strict=True):
            if not inside(value, d):
                raise Violation("c", f"column {name} of {node} has a value outside {d}")
    for number, reference in enumerate(setting.references):
        found = reference.rows(node)
        wanted = Counter(tuple(held(row.cells[name], d) for name, d in domain.items()) for row in found)
        if wanted != bags[number]:
            raise Violation("e", f"{node}\n reference {wanted - bags[number]}\n engine {bags[number] - wanted}")
    for bag, unit in zip(bags[1:], setting.units, strict=True):
        stated = node.stability(ctx, unit)
        moved = [abs(bags[0][row] - bag[row]) for row in {*bags[0], *bag}]
        rows, distinct = sum(moved), sum(count > 0 for count in moved)
        if stated.max_rows is not None and rows > stated.max_rows:
            raise Violation("b", f"{unit} moved {rows} rows of {node}, stated {stated.max_rows}")
        if stated.max_distinct_rows is not None and distinct > stated.max_distinct_rows:
            raise Violation("b", f"{unit} moved {distinct} different rows of {node}, stated {stated.max_distinct_rows}")
        if rows and rows == stated.max_rows:
            setting.tally.rows_reached[RELATION_NAMES[type(node)]] += 1


def judge_measure(item: Case, setting: Setting, plan: VectorQuery, table: pa.Table) -> None:
    measure, ctx = item.measure, item.ctx
    vectors = [to_vector(measure, plan, part) for part in split(table, "x", len(setting.units) + 1)]
    if any(len(vector) != measure.size(ctx) for vector in vectors):
        raise Violation("c", f"{measure} has the wrong shape")
    for number, reference in enumerate(setting.references):
        wanted = reference.vector(measure)
        if wanted != vectors[number].tolist():
            raise Violation("e", f"{measure}\n reference {wanted}\n engine {vectors[number].tolist()}")
    for vector, unit in zip(vectors[1:], setting.units, strict=True):
        try:
            stated = measure.sensitivity(ctx, unit)
        except DitherError:
            continue
        moved = change(vectors[0], vector)
        if not covers(stated, moved):
            raise Violation("a", f"{unit} moved {measure} by {moved}, stated {stated}")
        for norm in NORMS:
            if getattr(moved, norm) and getattr(moved, norm) == getattr(stated, norm):
                setting.tally.norms_reached[MEASURE_NAMES[type(measure)], norm] += 1


def change(first: np.ndarray, second: np.ndarray) -> Sensitivity:
    moves = [abs(int(a) - int(b)) for a, b in zip(first, second, strict=True)]
    norms = (sum(v > 0 for v in moves), max(moves, default=0), sum(moves), sum(v * v for v in moves))
    return Sensitivity(*map(Fraction, norms))


def covers(stated: Sensitivity, moved: Sensitivity) -> bool:
    return (
        moved.l0 <= stated.l0
        and moved.linf <= stated.linf
        and moved.l1 <= stated.l1
        and moved.l2_squared <= stated.l2_squared
    )


def inside(value: Any, domain: Domain) -> bool:
    if value is None:
        return domain.nullable
    match domain:
        case Number():
            return bounds_of(domain)[0] <= value <= bounds_of(domain)[1]
        case Moment(lo=lo, hi=hi):
            return lo <= value <= hi
        case Category(values=values):
            return value in values
        case Boolean():
            return isinstance(value, bool)
        case Reference(kind=kind) | Identifier(kind=kind):
            return isinstance(value, int if kind == "integer" else str)


def run_batch(rng: Random, bench: Bench, tally: Tally, size: int, *, alone: bool = False) -> None:
    """Several random plans on one random dataset with its neighbours: in one or two statements, or each alone."""
    items, most = cases(rng, size), rng.choice([2, 4])
    setting = settle(items[0], bench, rng, most, tally)
    if alone:
        for item in items:
            check_alone(item, setting)
    else:
        check_together(items, setting)
