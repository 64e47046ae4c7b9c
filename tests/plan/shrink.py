"""Makes a plan that broke a promise small: operators, rows, columns and values go while it stays broken."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from fractions import Fraction
from random import Random
from typing import Any

from dither.plan import expressions as x
from dither.plan import measures as m
from dither.plan import relations as r
from dither.plan.context import Context
from dither.plan.traversal import walk
from dither.schema import Dataset
from plan.plans import Case, facts
from plan.reference import Raw
from plan.trials import Bench, Tally, Violation, check

MOST_CHECKS = 1_500
SORTS = (r.Relation, x.Expr, m.Measure)
PLAIN = (x.LiteralValue(1), x.LiteralValue(True), x.LiteralValue(None))
SIMPLE: dict[type, tuple[Any, ...]] = {int: (0, 1), float: (0.0, 1.0), str: ("", "1"), bool: (False,)}


def smallest(violation: Violation, bench: Bench) -> Violation:
    """The same violation on the smallest plan, schema and rows that were found, with all of them in its message."""
    if violation.item is None:
        return violation
    item = shrunk(violation.item, bench, violation.kind)
    found = broken(item, bench, violation.kind)
    if found is None:
        beside = f"{violation.detail}\nonly beside other plans; alone it holds:\n{described(item)}"
        return Violation(violation.kind, beside, item)
    return Violation(violation.kind, f"{found.detail}\nsmallest case found:\n{described(item)}", item)


def broken(item: Case, bench: Bench, kind: str) -> Violation | None:
    """The violation of that kind which a case shows, if any; a case that makes no sense shows none."""
    try:
        check(item, bench, Random(0), 99, Tally())
    except Violation as found:
        return found if found.kind == kind else None
    except Exception:
        return None
    return None


def shrunk(item: Case, bench: Bench, kind: str, most: int = MOST_CHECKS) -> Case:
    """Smaller and smaller cases that break the same promise, until none of the steps below leads further."""
    left = [most]

    def breaks(candidate: Case) -> bool:
        left[0] -= 1
        return left[0] >= 0 and broken(candidate, bench, kind) is not None

    before = None
    while before != size(item) and left[0] > 0:
        before = size(item)
        for steps in (plans, rows, units, columns, values):
            item = descended(item, steps, breaks)
    return item


def descended(item: Case, steps: Callable[[Case], Iterator[Case]], breaks: Callable[[Case], bool]) -> Case:
    """Follows the first step that still breaks and starts again from there."""
    smaller = next((found for found in steps(item) if size(found) < size(item) and breaks(found)), None)
    while smaller is not None:
        item = smaller
        smaller = next((found for found in steps(item) if size(found) < size(item) and breaks(found)), None)
    return item


def size(item: Case) -> tuple[int, ...]:
    """What is made small, the most important first; each step makes one of these smaller and none before it larger."""
    tables = item.ctx.dataset.tables.values()
    cells = [value for raw in item.data.values() for row in raw.rows for value in row.values()]
    return (
        sum(1 for _ in nodes(item)),
        numbers(item.measure) + numbers(item.relation),
        sum(len(raw.rows) for raw in item.data.values()),
        sum(1 + len(table.columns) for table in tables),
        len(item.ctx.dataset.units),
        sum(table.unique is not None for table in tables) + (item.ctx.dataset.timezone != "UTC"),
        sum(map(weight, cells)),
    )


def nodes(item: Case) -> Iterator[Any]:
    """Every operator and expression of a case; the plan below a measure counts once more only if it differs."""
    yield from walk(item.measure)
    yield from walk(item.relation)


def numbers(node: Any) -> int:
    """The sum of the whole numbers in a plan: bounds become small."""
    if isinstance(node, tuple):
        return sum(map(numbers, node))
    if dataclasses.is_dataclass(node):
        return sum(numbers(getattr(node, part.name)) for part in dataclasses.fields(node))
    return abs(node) if type(node) is int else 0


def weight(value: Any) -> int:
    """How far a value is from the plainest one: NULL, then zero, then one."""
    if value is None:
        return 0
    plain = SIMPLE.get(type(value), ())
    return 1 + next((index for index, other in enumerate(plain) if value == other), len(plain)) + len(str(value))


# ---------------------------------------------------------------- steps


def plans(item: Case) -> Iterator[Case]:
    """Without the measure, or with its plan alone; with any part replaced by something smaller."""
    yield dataclasses.replace(item, measure=None)
    if item.measure is not None:
        scans = [node for node in walk(item.relation) if isinstance(node, r.Scan) and node != item.relation]
        yield from (dataclasses.replace(item, relation=scan) for scan in scans[:1])
        yield from (dataclasses.replace(item, measure=found) for found in edits(item.measure))
    yield from (dataclasses.replace(item, relation=found) for found in edits(item.relation))


def edits(node: Any) -> Iterator[Any]:
    """The node with one part left out or replaced by a part of itself."""
    if isinstance(node, tuple):
        yield from (node[:index] + node[index + 1 :] for index in range(len(node)))
        for index, part in enumerate(node):
            yield from ((*node[:index], found, *node[index + 1 :]) for found in edits(part))
    elif dataclasses.is_dataclass(node):
        yield from _parts(node)
        for part in dataclasses.fields(node):
            for found in edits(getattr(node, part.name)):
                yield from _replaced(node, part.name, found)
    elif type(node) is int and node > 1:
        yield 1
    elif type(node) is Fraction and node.denominator > 1:
        yield Fraction(1)


def _parts(node: Any) -> Iterator[Any]:
    """What could stand where the node stands: parts of the same sort, plain constants for expressions."""
    sort = next((sort for sort in SORTS if isinstance(node, sort)), None)
    if sort is None:
        return
    below = [part for part in walk(node) if isinstance(part, sort) and part is not node]
    yield from sorted(below, key=lambda part: sum(1 for _ in walk(part)))
    if sort is x.Expr and below:
        yield from PLAIN


def _replaced(node: Any, name: str, value: Any) -> Iterator[Any]:
    try:
        yield dataclasses.replace(node, **{name: value})
    except Exception:
        return


def rows(item: Case) -> Iterator[Case]:
    """With runs of rows left out, long runs first."""
    for name, raw in item.data.items():
        length = len(raw.rows)
        while length:
            for start in range(0, len(raw.rows), length):
                kept = raw.rows[:start] + raw.rows[start + length :]
                yield remade(item, item.ctx.dataset, {**item.data, name: Raw(raw.kinds, kept)})
            length //= 2


def units(item: Case) -> Iterator[Case]:
    """With fewer units, no unique keys, and on UTC."""
    dataset = item.ctx.dataset
    for name in dataset.units:
        fewer = {key: unit for key, unit in dataset.units.items() if key != name}
        yield from _described_by(item, units=fewer)
    for name, table in dataset.tables.items():
        if table.unique is not None:
            yield from _described_by(item, tables={**dataset.tables, name: dataclasses.replace(table, unique=None)})
    yield from _described_by(item, timezone="UTC")


def columns(item: Case) -> Iterator[Case]:
    """With a table left out, or a column of a table and its records."""
    for name in item.ctx.dataset.tables:
        tables = {key: table for key, table in item.ctx.dataset.tables.items() if key != name}
        yield from _described_by(item, {key: raw for key, raw in item.data.items() if key != name}, tables=tables)
    for name, table in item.ctx.dataset.tables.items():
        for gone in table.columns:
            kept = {key: column for key, column in table.columns.items() if key != gone}
            raw = item.data[name]
            kinds = {key: kind for key, kind in raw.kinds.items() if key != gone}
            records = [{key: value for key, value in row.items() if key != gone} for row in raw.rows]
            tables = {**item.ctx.dataset.tables, name: dataclasses.replace(table, columns=kept)}
            yield from _described_by(item, {**item.data, name: Raw(kinds, records)}, tables=tables)


def values(item: Case) -> Iterator[Case]:
    """With a value replaced by NULL or a plain one."""
    for name, raw in item.data.items():
        for index, row in enumerate(raw.rows):
            for key, value in row.items():
                for other in (None, *SIMPLE.get(type(value), ())):
                    if weight(other) < weight(value):
                        changed = [*raw.rows[:index], {**row, key: other}, *raw.rows[index + 1 :]]
                        yield remade(item, item.ctx.dataset, {**item.data, name: Raw(raw.kinds, changed)})


def _described_by(item: Case, data: dict[str, Raw] | None = None, **changes: Any) -> Iterator[Case]:
    try:
        yield remade(item, dataclasses.replace(item.ctx.dataset, **changes), data or item.data)
    except Exception:
        return


def remade(item: Case, dataset: Dataset, data: dict[str, Raw]) -> Case:
    """The case over other records or another description, public facts counted again."""
    return Case(Context(dataset, facts(dataset, data)), data, item.relation, item.measure)


# ---------------------------------------------------------------- telling


def described(item: Case) -> str:
    """The plan, the schema and the rows of a case."""
    lines = [f"  plan: {item.relation}"]
    lines += [f"  measure: {item.measure}"] if item.measure is not None else []
    lines += [f"  unit {unit.name}: {unit.kind}, {dict(unit.keys)}" for unit in item.ctx.dataset.units.values()]
    for name, table in item.ctx.dataset.tables.items():
        raw = item.data[name]
        unique = f", one row per {table.unique}" if table.unique else ""
        lines.append(f"  table {name}{' (public)' if not table.private else ''}{unique}:")
        lines += [f"    {key}: {column.domain}, stored as {raw.kinds[key]}" for key, column in table.columns.items()]
        lines += [f"    row {tuple(row.values())}" for row in raw.rows] or ["    no rows"]
    return "\n".join(lines)
