"""Counts per key for partition selection, with keys that come from the data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import isqrt, prod
from typing import Any, TypeVar

import numpy as np

from dither.errors import Unsupported
from dither.loss import Sensitivity
from dither.plan.context import Context
from dither.plan.expressions.core import Expr, LiteralValue, domain_of
from dither.plan.measures.core import (
    LARGEST_INT64,
    MAX_CELLS,
    MAX_SELECTED,
    NO_CHANGE,
    Axis,
    GroupKey,
    SelectedValues,
    Vector,
    VectorQuery,
    changed_vectors,
    require_row_bound,
    stability_of,
)
from dither.plan.measures.grouped import GroupedMeasure, grouped_select, keyed_subquery, sums_sensitivity
from dither.plan.relations.core import Relation, require_unit
from dither.plan.sql.builders import count_star, select
from dither.plan.sql.scope import Scope
from dither.plan.sql.statement import SqlStatement, column_ref, saturate
from dither.plan.traversal import transform
from dither.schema import Identifier, Scalar

SHARE = 1 << 16  # the most that the squares of one unit's shares add up to is the square of this
Node = TypeVar("Node")


@dataclass(frozen=True)
class PartitionCounts(GroupedMeasure):
    """Rows per key that occurs, for partition selection; the child is bounded by LimitGroupsPerUnit or GroupBy."""

    proof = "partition_counts.md"
    child: Relation
    keys: tuple[GroupKey, ...]

    def summands(self) -> tuple[Expr, ...]:
        return (LiteralValue(1),)

    def axes(self, ctx: Context) -> tuple[Axis, ...]:
        raise Unsupported(
            "the keys of this measure come from the data, so it has no axes; release them by partition selection"
        )

    def sensitivity(self, ctx: Context, unit: str) -> Sensitivity:
        unit_stability = stability_of(ctx, self.child, unit)
        self._check(ctx)
        keys, columns = tuple(key.value for key in self.keys), self.child.domain(ctx)
        return sums_sensitivity(unit_stability, unit, [1], require_row_bound(unit_stability, unit), keys, columns)

    def _check(self, ctx: Context) -> None:
        """Refuse listed values, identifiers, and the lack of keys."""
        scope = Scope(self.child.domain(ctx))
        if any(key.values is not None for key in self.keys):
            raise Unsupported("partition selection takes its keys from the data; do not list values for them")
        if not self.keys or any(isinstance(domain_of(key.value, scope), Identifier) for key in self.keys):
            raise Unsupported("partition selection needs at least one key, and identifiers cannot be keys")

    def vector_query(self, statement: SqlStatement) -> VectorQuery:
        self._check(statement.ctx)
        table = keyed_subquery(statement, self.child, self.keys, (), (LiteralValue(1),), ())
        body = grouped_select(statement, table, len(self.keys), [saturate(count_star(), LARGEST_INT64)])
        return VectorQuery(body, (), 1)


def share_of(keys: int) -> int:
    """Return what a unit with this many keys adds to each: the largest integer with keys * share^2 <= SHARE^2."""
    return isqrt(SHARE * SHARE // keys)


@dataclass(frozen=True)
class KeyShares(PartitionCounts):
    """Shares per key that occurs, for partition selection: a unit divides its share equally among the keys it has.

    The child has one row for each unit and key, and at most a known number of keys for each unit. The SQL returns these
    rows; shares are computed from them, for all keys or for those that are still open.
    """

    proof = "key_shares.md"
    unit: str

    def sensitivity(self, ctx: Context, unit: str) -> Sensitivity:
        unit_stability = stability_of(ctx, self.child, unit)
        self._check(ctx)
        most_keys = self._most_keys(ctx)
        if unit_stability.max_rows == 0:
            return NO_CHANGE
        vectors = changed_vectors(ctx, self.unit, unit, unit_stability)
        l1_norm, squares = vectors * isqrt(most_keys * SHARE * SHARE), (vectors * SHARE) ** 2
        norms = map(Fraction, (vectors * most_keys, vectors * SHARE, l1_norm, squares))
        return Sensitivity(*norms, equal_shares=vectors == 1)

    def _most_keys(self, ctx: Context) -> int:
        """Return the most keys that one unit has; refuse rows without a bound, or with several for a unit and key."""
        require_unit(ctx, self.child, self.unit, "sharing")
        bound, columns = self.child.stability(ctx, self.unit).per_key, self.child.domain(ctx)
        if bound is None or bound.max_rows != 1 or not bound.applies_to(tuple(k.value for k in self.keys), columns):
            raise Unsupported("shares need one row for each unit and key, and a limit on the keys of a unit")
        return bound.max_groups

    def vector_query(self, statement: SqlStatement) -> VectorQuery:
        self._check(statement.ctx)
        hidden = statement.unit_columns(self.unit)
        table = keyed_subquery(statement, self.child, self.keys, (), (), hidden)
        names = [*(f"k{index}" for index in range(len(self.keys))), *hidden, *statement.trial_columns(), "b"]
        return VectorQuery(statement.finish(select(*map(column_ref, names)).from_(table, copy=False)), (), 0)


# --- Keys that a request selects first, as the listed keys of its parts ---


def fill_keys(plan: Node, columns: Sequence[tuple[Scalar, ...]]) -> Node:
    """List the values of the keys of a plan that were still to be selected; `columns` has those of each key."""

    def fill(node: Any) -> Any:
        if isinstance(node, GroupKey) and isinstance(node.values, SelectedValues):
            return replace(node, values=columns[node.values.position])
        return node

    return transform(plan, fill)  # type: ignore[no-any-return]


def key_columns(keys: Iterable[tuple[Scalar, ...]]) -> tuple[tuple[Scalar, ...], ...]:
    """Return the different values of each column of keys, in the order of their first occurrence."""
    return tuple(tuple(dict.fromkeys(column)) for column in zip(*keys, strict=True))


def fitting_keys(keys: Iterable[tuple[Scalar, ...]], cells: int) -> tuple[tuple[Scalar, ...], ...]:
    """Return the first MAX_SELECTED keys, without those that would make all combinations of values too many.

    Each combination has at most `cells` cells, and the most cells are MAX_CELLS.
    """
    kept: list[tuple[Scalar, ...]] = []
    columns: list[set[Scalar]] = []
    for key in keys:
        columns = columns or [set() for _ in key]
        sizes = [len(known) + (value not in known) for known, value in zip(columns, key, strict=True)]
        if len(kept) < MAX_SELECTED and prod(sizes) * cells <= MAX_CELLS:
            kept.append(key)
            for known, value in zip(columns, key, strict=True):
                known.add(value)
    return tuple(kept)


def selected_cells(exact: Vector, keys: Sequence[tuple[Scalar, ...]]) -> Vector:
    """Return the cells of these keys, in their order, from the cells of all combinations of their values."""
    columns = key_columns(keys)
    places = np.zeros(len(keys), dtype=np.int64)
    for column, values in zip(zip(*keys, strict=True), columns, strict=True):
        position = {value: index for index, value in enumerate(values)}
        places = places * len(values) + np.array([position[value] for value in column], dtype=np.int64)
    return exact.reshape(prod(map(len, columns)), -1)[places].reshape(-1)
