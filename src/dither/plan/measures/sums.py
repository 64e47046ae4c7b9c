"""Counts and sums over declared keys."""

from __future__ import annotations

from dataclasses import dataclass

from dither.errors import InvalidPlan
from dither.plan.expressions.core import ColumnRef, Expr, LiteralValue
from dither.plan.measures.core import GroupKey
from dither.plan.measures.grouped import GroupedMeasure
from dither.plan.relations.core import Relation
from dither.plan.relations.group_by import GroupBy


@dataclass(frozen=True)
class Count(GroupedMeasure):
    """Rows per key."""

    proof = "count.md"
    child: Relation
    keys: tuple[GroupKey, ...] = ()

    def summands(self) -> tuple[Expr, ...]:
        return (LiteralValue(1),)


@dataclass(frozen=True)
class Sum(GroupedMeasure):
    """The sum of a value per key, in steps of its lattice; NULL adds nothing."""

    proof = "sum.md"
    child: Relation
    value: Expr
    keys: tuple[GroupKey, ...] = ()

    def summands(self) -> tuple[Expr, ...]:
        return (self.value,)


@dataclass(frozen=True)
class SumVector(GroupedMeasure):
    """Several sums per key in one pass, with their joint sensitivity; LiteralValue(1) counts rows."""

    proof = "sum_vector.md"
    child: Relation
    values: tuple[Expr, ...]
    keys: tuple[GroupKey, ...] = ()

    def __post_init__(self) -> None:
        if not self.values:
            raise InvalidPlan("SumVector needs at least one value")

    def summands(self) -> tuple[Expr, ...]:
        return self.values


def count_units(child: Relation, unit: str, keys: tuple[GroupKey, ...] = ()) -> Count:
    """Count the distinct units in each key."""
    named_keys = tuple((key.name, key.value) for key in keys)
    outer = tuple(GroupKey(key.name, ColumnRef(key.name), key.values) for key in keys)
    return Count(GroupBy(child, named_keys, (), unit), outer)
