"""A structured fuzzer of plans: it swaps, repeats, drops or replaces parts of real requests."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

ABSURD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**63 - 1, -(2**63), 2**63, 10**59, 10**61, 1.5, "", "0", "1/0", "-1/2",
    "1/3", "999999999999/1", "x" * 5000, "\u0000", "\ud800", "' OR 1=1 --", "user", "people", "salary", [], {}, [[]],
    {"node": "scan"}, {"node": "scan", "table": "people"}, {"node": "nothing"}, {"rational": "1/7"},
    {"node": "column", "name": "salary"}, {"node": "literal_value", "value": 0},
)  # fmt: skip


def _paths(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path to every value in a tree of objects and lists."""
    yield path
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in inner:
        yield from _paths(value, (*path, key))


def _value_at(tree: Any, path: Sequence[Any]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def _role(path: Sequence[Any]) -> Any:
    """Return the name of the field that a path leads to, and True if the path ends at an item of a list in it."""
    names = [key for key in path if isinstance(key, str)]
    return (names[-1] if names else "", isinstance(path[-1], int) if path else False)


def _replace_at(tree: Any, path: Sequence[Any], value: Any) -> Any:
    """Return the tree with another value at a path; the tree itself changes."""
    if not path:
        return value
    _value_at(tree, path[:-1])[path[-1]] = value
    return tree


class Fuzzer:
    """Makes plans by mutating sample requests; the same samples and seed give the same plans."""

    def __init__(self, samples: Sequence[bytes], seed: int) -> None:
        self._random = Random(seed)
        self._samples = [json.loads(sample) for sample in samples]
        values = [(path, _value_at(sample, path)) for sample in self._samples for path in _paths(sample)]
        self._nodes = [value for _, value in values if isinstance(value, dict) and "node" in value]
        self._values_by_role: dict[Any, list[Any]] = {}
        for path, value in values:
            self._values_by_role.setdefault(_role(path), []).append(value)

    def plans(self, count: int) -> Iterator[bytes]:
        """Yield `count` plans as JSON."""
        for _ in range(count):
            tree = copy.deepcopy(self._random.choice(self._samples))
            change = self._random.choice((self._mutate, self._exchange))
            for _ in range(self._random.choice((1, 1, 1, 2, 2, 3, 5))):
                tree = change(tree)
            yield json.dumps(tree).encode(errors="replace")

    def _exchange(self, tree: Any) -> Any:
        """Replace a value by another one of the same field, or change a number; most such plans have a valid form."""
        path = self._random.choice(list(_paths(tree))[1:])
        value = _value_at(tree, path)
        if isinstance(value, int) and not isinstance(value, bool) and self._random.random() < 0.5:
            return _replace_at(tree, path, value + self._random.choice((-1, 1, 10, -value, value)))
        return _replace_at(
            tree, path, copy.deepcopy(self._random.choice(self._values_by_role.get(_role(path), [value])))
        )

    def _mutate(self, tree: Any) -> Any:
        """Replace, drop, add, stretch or nest a value, without regard to the form of plans."""
        random = self._random
        path = random.choice(list(_paths(tree)))
        value = _value_at(tree, path)
        match random.randrange(7):
            case 0:
                return _replace_at(tree, path, copy.deepcopy(random.choice(ABSURD)))
            case 1:
                return _replace_at(tree, path, copy.deepcopy(random.choice(self._nodes)))
            case 2 if isinstance(value, int) and not isinstance(value, bool):
                return _replace_at(
                    tree, path, value * random.choice((-1, 0, 2, 1000, 10**12)) + random.choice((-1, 0, 1))
                )
            case 3 if isinstance(value, dict) and value:
                value.pop(random.choice(list(value)))
                return tree
            case 4 if isinstance(value, dict):
                value[random.choice(("node", "child", "unit", "loss", "extra"))] = copy.deepcopy(random.choice(ABSURD))
                return tree
            case 5 if isinstance(value, list):
                return _replace_at(tree, path, value * random.choice((0, 2, 50, 400)))
            case _:
                return self._wrap(tree, path, value)

    def _wrap(self, tree: Any, path: tuple[Any, ...], value: Any) -> Any:
        """Nest a node inside copies of itself; replace any other value by one from another path."""
        if not isinstance(value, dict) or "child" not in value:
            other = self._random.choice(list(_paths(tree)))
            return _replace_at(tree, path, copy.deepcopy(_value_at(tree, other)))
        for _ in range(self._random.choice((1, 3, 60, 120))):
            value = {**value, "child": value}
        return _replace_at(tree, path, value)
