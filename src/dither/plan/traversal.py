"""Part of the former access.relation."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

from dither.plan.stability import Auto

Node = TypeVar("Node")


def walk(plan: Any) -> Iterator[Any]:
    """Every node of a plan, parents first."""
    left = [plan]
    while left:
        node = left.pop()
        if isinstance(node, tuple):
            left.extend(reversed(node))
        elif (names := _parts(node.__class__)) is not None:
            yield node
            left.extend(getattr(node, name) for name in reversed(names))


@cache
def _parts(kind: type) -> tuple[str, ...] | None:
    """The names of the parts of a kind of node; None for what is no node."""
    return tuple(part.name for part in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else None


def autos(plan: Any) -> frozenset[Auto]:
    """The automatic bounds of a plan that have not been filled."""
    return frozenset(node for node in walk(plan) if isinstance(node, Auto))


def fill(plan: Node, found: Mapping[str, int]) -> Node:
    """The plan with its automatic bounds replaced, each held between 1 and its `most`."""
    return _filled(plan, found)  # type: ignore[no-any-return]


def _filled(node: Any, found: Mapping[str, int]) -> Any:
    if isinstance(node, Auto):
        return max(1, min(found[node.tag], node.most)) if node.tag in found else node
    # What holds no bound stays the very node that it is: what is known about it need not be worked out again.
    if isinstance(node, tuple):
        items = [_filled(item, found) for item in node]
        return node if _same(items, node) else tuple(items)
    if (names := _parts(node.__class__)) is not None:
        before = [getattr(node, name) for name in names]
        after = [_filled(part, found) for part in before]
        return node if _same(after, before) else type(node)(**dict(zip(names, after, strict=True)))
    return node


def _same(ones: Sequence[Any], others: Sequence[Any]) -> bool:
    return all(one is other for one, other in zip(ones, others, strict=True))


def _inputs(node: Any) -> list[Any]:
    return [getattr(node, name) for name in _parts(node.__class__) or ()]
