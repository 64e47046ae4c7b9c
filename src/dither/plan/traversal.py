"""Traversal of plan nodes: iterate over a plan, and fill in its estimated limits."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Any, TypeVar

from dither.plan.expressions.core import EstimatedValue
from dither.plan.stability import EstimatedLimit

Node = TypeVar("Node")
# A tuple of these alone, such as the edges of a histogram, holds no node.
PLAIN = frozenset((Fraction, int, str, bool, type(None)))


def walk(plan: Any) -> Iterator[Any]:
    """Yield every node of a plan, parents first."""
    pending = [plan]
    while pending:
        node = pending.pop()
        if isinstance(node, tuple):
            pending.extend(() if PLAIN.issuperset(map(type, node)) else reversed(node))
        elif (names := _field_names(node.__class__)) is not None:
            yield node
            pending.extend(getattr(node, name) for name in reversed(names))


@cache
def _field_names(kind: type) -> tuple[str, ...] | None:
    """Return the field names of a node class, or None if it is not a dataclass."""
    return tuple(part.name for part in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else None


def unfilled_limits(plan: Any) -> frozenset[EstimatedLimit]:
    """Return the estimated limits of a plan that have not been filled in."""
    return frozenset(node for node in walk(plan) if isinstance(node, EstimatedLimit))


def unfilled_values(plan: Any) -> frozenset[EstimatedValue]:
    """Return the estimated values of a plan that have not been filled in."""
    return frozenset(node for node in walk(plan) if isinstance(node, EstimatedValue) and node.value is None)


def fill_limits(plan: Node, limits: Mapping[str, int]) -> Node:
    """Replace the estimated limits of a plan by values, clamped to [1, most]; keep limits whose tag has no value."""

    def fill(node: Any) -> Any:
        if isinstance(node, EstimatedLimit) and node.tag in limits:
            return max(1, min(limits[node.tag], node.most))
        return node

    return transform(plan, fill)  # type: ignore[no-any-return]


def fill_values(plan: Node, chosen: Mapping[str, int]) -> Node:
    """Fill in the estimated values of a plan, by tag: number n means n - 1 steps above the low end of the range."""

    def fill(node: Any) -> Any:
        if isinstance(node, EstimatedValue) and node.value is None and node.tag in chosen:
            return replace(node, value=max(node.lo, min(node.lo + chosen[node.tag] - 1, node.hi)))
        return node

    return transform(plan, fill)  # type: ignore[no-any-return]


def transform(node: Any, change: Callable[[Any], Any]) -> Any:
    """Rebuild a plan bottom-up: call `change` on each node after its fields have been rebuilt.

    An unchanged node is returned itself, not as a copy, so that cached results still apply to it.
    """
    if isinstance(node, tuple):
        if PLAIN.issuperset(map(type, node)):
            return node
        items = [transform(item, change) for item in node]
        return node if _identical(items, node) else tuple(items)
    if (names := _field_names(node.__class__)) is None:
        return node
    before = [getattr(node, name) for name in names]
    after = [transform(part, change) for part in before]
    return change(node if _identical(after, before) else type(node)(**dict(zip(names, after, strict=True))))


def _identical(first: Sequence[Any], second: Sequence[Any]) -> bool:
    return all(one is other for one, other in zip(first, second, strict=True))


def field_values(node: Any) -> list[Any]:
    """Return the values of a node's fields in order; an empty list for a value that is not a node."""
    return [getattr(node, name) for name in _field_names(node.__class__) or ()]
