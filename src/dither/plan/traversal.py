"""Part of the former access.relation."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

from dither.plan.stability import EstimatedLimit

Node = TypeVar("Node")


def walk(plan: Any) -> Iterator[Any]:
    """Every node of a plan, parents first."""
    left = [plan]
    while left:
        node = left.pop()
        if isinstance(node, tuple):
            left.extend(reversed(node))
        elif (names := _field_names(node.__class__)) is not None:
            yield node
            left.extend(getattr(node, name) for name in reversed(names))


@cache
def _field_names(kind: type) -> tuple[str, ...] | None:
    """The names of the parts of a kind of node; None for what is no node."""
    return tuple(part.name for part in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else None


def unfilled_limits(plan: Any) -> frozenset[EstimatedLimit]:
    """The automatic bounds of a plan that have not been filled."""
    return frozenset(node for node in walk(plan) if isinstance(node, EstimatedLimit))


def fill_limits(plan: Node, found: Mapping[str, int]) -> Node:
    """The plan with its automatic bounds replaced, each held between 1 and its `most`."""
    return _fill(plan, found)  # type: ignore[no-any-return]


def _fill(node: Any, found: Mapping[str, int]) -> Any:
    if isinstance(node, EstimatedLimit):
        return max(1, min(found[node.tag], node.most)) if node.tag in found else node
    # What holds no bound stays the very node that it is: what is known about it need not be worked out again.
    if isinstance(node, tuple):
        items = [_fill(item, found) for item in node]
        return node if _identical(items, node) else tuple(items)
    if (names := _field_names(node.__class__)) is not None:
        before = [getattr(node, name) for name in names]
        after = [_fill(part, found) for part in before]
        return node if _identical(after, before) else type(node)(**dict(zip(names, after, strict=True)))
    return node


def _identical(ones: Sequence[Any], others: Sequence[Any]) -> bool:
    return all(one is other for one, other in zip(ones, others, strict=True))


def _inputs(node: Any) -> list[Any]:
    return [getattr(node, name) for name in _field_names(node.__class__) or ()]
