"""Runs a random case on an engine for many neighbouring datasets at once, and checks every promise of the plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import floor
from random import Random
from typing import Any, Protocol

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from access.plans import Case, arrow, case, neighbours
from access.reference import Interpreter, Raw, held
from dither.access.domains import ends
from dither.access.engines.layout import laid_out
from dither.access.measure import Measure
from dither.access.relation import Relation, needs_order, walk
from dither.access.spelling import Spelling
from dither.access.statement import Origin, Statement, named
from dither.errors import DitherError
from dither.loss import Sensitivity
from dither.schema import Boolean, Category, Domain, Identifier, Moment, Number, Reference

SECRET = 7


class Violation(AssertionError):
    """A promise of a plan that its data broke; `kind` is one of a-f of the list in the tests."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"({kind}) {detail}")
        self.kind = kind


class Bench(Protocol):
    """An engine on which small tables can be put and statements run."""

    spelling: Spelling

    def load(self, tables: dict[str, pa.Table]) -> dict[str, exp.Expr]:
        """Puts tables there and says how each is named in FROM."""

    def run(self, statement: exp.Expr) -> pa.Table:
        """Runs a statement."""


class DuckBench:
    """DuckDB with the settings of the engine."""

    spelling = Spelling()

    def __init__(self) -> None:
        self.connection = duckdb.connect(":memory:", config={"threads": 1})
        self.connection.execute("SET disabled_optimizers = 'top_n_window_elimination,statistics_propagation'")
        self.connection.execute("SET TimeZone = 'UTC'")

    def load(self, tables: dict[str, pa.Table]) -> dict[str, exp.Expr]:
        for name, table in tables.items():
            self.connection.register(f"raw_{name}", table)
        return {name: exp.to_table(f"raw_{name}") for name in tables}

    def run(self, statement: exp.Expr) -> pa.Table:
        return self.connection.execute(self.spelling.render(statement)).to_arrow_table()


@dataclass
class Tally:
    """How much was run, and how close the data came to what was promised."""

    plans: int = 0
    neighbours: int = 0
    measures: int = 0
    rows_reached: Counter[str] = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self.rows_reached = Counter()

    def line(self, engine: str) -> str:
        return f"{engine}: {self.plans} plans x {self.neighbours} neighbours, {self.measures} measures, 0 violations"


def statement_for(bench: Bench, item: Case, places: dict[str, exp.Expr], measure: Measure | None = None) -> Statement:
    origins = {name: Origin(place, dict(item.data[name].kinds)) for name, place in places.items()}
    ordered = needs_order(item.relation if measure is None else measure)
    return Statement(item.ctx, origins, bench.spelling, SECRET, frozenset(), trial="trial", ordered=ordered)


def loaded(bench: Bench, item: Case, versions: Sequence[dict[str, Raw]]) -> dict[str, exp.Expr]:
    return bench.load({name: arrow(item.data[name], [version[name] for version in versions]) for name in item.data})


def check(item: Case, bench: Bench, rng: Random, most: int, tally: Tally, references: int = 2) -> None:
    """All promises for the base dataset against each neighbour."""
    others = neighbours(rng, item, most)
    versions = [item.data, *(version for _, version in others)]
    units = [unit for unit, _ in others]
    places = loaded(bench, item, versions)
    check_rows(item, bench, places, versions, units, references, tally)
    if item.measure is not None:
        check_measure(item, bench, places, versions, units, references)
        tally.measures += 1
    tally.plans += 1
    tally.neighbours += len(units)


def check_rows(
    item: Case,
    bench: Bench,
    places: dict[str, exp.Expr],
    versions: Sequence[dict[str, Raw]],
    units: Sequence[str],
    references: int,
    tally: Tally,
) -> None:
    ctx, node = item.ctx, item.relation
    statement = statement_for(bench, item, places)
    domain = node.domain(ctx)
    columns = [named(f"c{index}") for index in range(len(domain))]
    table = run(bench, statement.finish(exp.select(named("x"), *columns).from_(statement.table(node))), node)
    bags = [Counter[Any]() for _ in versions]
    for trial, *values in zip(*(column.to_pylist() for column in table.columns), strict=True):
        bags[trial][tuple(values)] += 1
    for row in {row for bag in bags for row in bag}:
        for value, (name, d) in zip(row, domain.items(), strict=True):
            if not inside(value, d):
                raise Violation("c", f"column {name} of {node} has a value outside {d}")
    for number in range(min(references, len(versions))):
        found = Interpreter(ctx, versions[number], SECRET).rows(node)
        wanted = Counter(tuple(held(row.cells[name], d) for name, d in domain.items()) for row in found)
        if wanted != bags[number]:
            raise Violation("e", f"{node}\n reference {wanted - bags[number]}\n engine {bags[number] - wanted}")
    for bag, unit in zip(bags[1:], units, strict=True):
        stated = node.influence(ctx, unit)
        moved = Counter({row: abs(bags[0][row] - bag[row]) for row in {*bags[0], *bag}})
        rows, distinct = sum(moved.values()), sum(count > 0 for count in moved.values())
        if stated.rows is not None and rows > stated.rows:
            raise Violation("b", f"{unit} moved {rows} rows of {node}, stated {stated.rows}")
        if stated.distinct is not None and distinct > stated.distinct:
            raise Violation("b", f"{unit} moved {distinct} different rows of {node}, stated {stated.distinct}")
        if rows and rows == stated.rows:
            tally.rows_reached[type(node).__name__] += 1


def run(bench: Bench, statement: exp.Expr, node: Any) -> pa.Table:
    try:
        return bench.run(statement)
    except Exception as error:
        raise Violation("f", f"{node}: {str(error)[:600]}") from None


def check_measure(
    item: Case,
    bench: Bench,
    places: dict[str, exp.Expr],
    versions: Sequence[dict[str, Raw]],
    units: Sequence[str],
    references: int,
) -> None:
    measure, ctx = item.measure, item.ctx
    plan = measure.plan(statement_for(bench, item, places, measure))
    table = run(bench, plan.select, measure)
    trials = table.column("x")
    vectors = [laid_out(measure, plan, table.filter(pc.equal(trials, number))) for number in range(len(versions))]
    if any(len(vector) != measure.size(ctx) for vector in vectors):
        raise Violation("c", f"{measure} has the wrong shape")
    for number in range(min(references, len(versions))):
        wanted = Interpreter(ctx, versions[number], SECRET).vector(measure)
        if wanted != vectors[number].tolist():
            raise Violation("e", f"{measure}\n reference {wanted}\n engine {vectors[number].tolist()}")
    for vector, unit in zip(vectors[1:], units, strict=True):
        try:
            stated = measure.sensitivity(ctx, unit)
        except DitherError:
            continue
        moved = change(vectors[0], vector)
        if not covers(stated, moved):
            raise Violation("a", f"{unit} moved {measure} by {moved}, stated {stated}")


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
            return ends(domain)[0] <= value <= ends(domain)[1]
        case Moment(lo=lo, hi=hi):
            return lo <= value <= hi
        case Category(values=values):
            return value in values
        case Boolean():
            return isinstance(value, bool)
        case Reference(kind=kind) | Identifier(kind=kind):
            return isinstance(value, int if kind == "integer" else str)


def run_cases(rng: Random, bench: Bench, tally: Tally, most: int = 4, exact: bool = True) -> None:
    """One random case with its neighbours."""
    check(case(rng, exact), bench, rng, most, tally)


def nodes(item: Case) -> set[str]:
    """The names of the operators in a case."""
    return {type(node).__name__ for node in walk(item.relation) if isinstance(node, Relation)}


__all__ = ["Bench", "DuckBench", "Tally", "Violation", "change", "check", "covers", "floor", "nodes", "run_cases"]
