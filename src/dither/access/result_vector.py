"""From the groups that an engine returns to the vector over all declared keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dither.plan.context import Context
from dither.plan.domains import Lattice, normalise
from dither.plan.measures.core import Measure, Vector, VectorQuery
from dither.plan.measures.partitions import PartitionCounts
from dither.plan.relations.project import columns_read
from dither.plan.relations.scan import Scan
from dither.plan.sql.scope import Scope
from dither.plan.traversal import walk
from dither.schema import Number, Scalar

Held = int | str | bool | None


@dataclass(frozen=True)
class ReleasedGroups:
    """Undeclared keys and their counts: for partition selection, and for nobody else."""

    keys: tuple[tuple[Scalar, ...], ...]
    counts: Vector


def to_vector(measure: Measure, plan: VectorQuery, table: pa.Table) -> Vector:
    """The vector over every declared key, zero where no rows were; keys outside the declared ones are left out."""
    shape = [len(axis) for axis in plan.keys]
    positions = np.zeros(table.num_rows, dtype=np.int64)
    valid = np.ones(table.num_rows, dtype=bool)
    for index, axis in enumerate(plan.keys):
        found = _positions(table.column(f"k{index}"), axis)
        valid &= found >= 0
        positions = positions * len(axis) + np.maximum(found, 0)
    cells = np.zeros((prod(shape), plan.values), dtype=np.int64)
    for index in range(plan.values):
        cells[positions[valid], index] = _integers(table.column(f"v{index}"))[valid]
    return measure.finish(cells.reshape(-1))


def _positions(column: pa.ChunkedArray, axis: Sequence[Held]) -> NDArray[np.int64]:
    """Where each key stands on its axis, -1 where nowhere."""
    if isinstance(axis, Lattice):
        return _places(column, axis)
    texts = pa.types.is_dictionary, pa.types.is_string, pa.types.is_large_string
    dialect = any(is_text(column.type) for is_text in texts) or any(isinstance(value, str) for value in axis)
    kind = pa.string() if dialect else pa.int64()
    values = pa.array([int(v) if isinstance(v, int) else v for v in axis], type=kind)
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    found = pc.fill_null(pc.index_in(column.cast(kind), value_set=values), -1)
    return np.asarray(found.to_numpy(), dtype=np.int64)


def _places(column: pa.ChunkedArray, axis: Lattice) -> NDArray[np.int64]:
    """The same on evenly spaced keys, of which there may be millions: computed, not looked up."""
    spaced = axis.indices
    held = np.asarray(pc.fill_null(column.cast(pa.int64()), spaced.start).to_numpy(), dtype=np.int64)
    place, rest = np.divmod(held - spaced.start, spaced.step)
    found = np.where((held >= spaced.start) & (held < spaced.stop) & (rest == 0), place, -1)
    absent = np.asarray(pc.is_null(column).to_numpy(), dtype=bool)
    return np.where(absent, len(spaced) if axis.nullable else -1, found)


def _integers(column: pa.ChunkedArray) -> NDArray[np.int64]:
    return np.asarray(pc.fill_null(column.cast(pa.int64()), 0).to_numpy(), dtype=np.int64)


def to_groups(ctx: Context, measure: PartitionCounts, table: pa.Table) -> ReleasedGroups:
    """The keys that occur, as public values, in a fixed order, with their counts."""
    scope = Scope(measure.child.domain(ctx))
    columns = [table.column(f"k{index}").to_pylist() for index in range(len(measure.keys))]
    domains = [key.value.domain(scope) for key in measure.keys]
    shown = [
        [
            normalise(value * domain.step) if isinstance(domain, Number) and value is not None else value
            for value in column
        ]
        for column, domain in zip(columns, domains, strict=True)
    ]
    counts = _integers(table.column("v0"))
    keys = list(zip(*shown, strict=True))
    order = sorted(range(len(keys)), key=lambda row: tuple((value is None, str(value)) for value in keys[row]))
    return ReleasedGroups(tuple(keys[row] for row in order), counts[order])


def corrections_in(table: pa.Table) -> int:
    """How many corrected values went into an answer."""
    return int(sum(value or 0 for value in table.column("b").to_pylist()))


def read_columns(measure: Measure) -> frozenset[str]:
    """The names of the columns that a plan's expressions read: those whose corrections are counted."""
    return frozenset(columns_read(measure))


def tables_read(measure: Measure) -> frozenset[str]:
    """The tables that a plan scans."""
    return frozenset(node.table for node in walk(measure) if isinstance(node, Scan))
