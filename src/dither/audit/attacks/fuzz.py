"""A structured fuzzer of plans: real requests with parts swapped, stretched, dropped, doubled or made absurd."""

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


def _places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a tree."""
    yield path
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in inner:
        yield from _places(value, (*path, key))


def _at(tree: Any, path: Sequence[Any]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def _role(path: Sequence[Any]) -> Any:
    """The name of the field that a place belongs to, and whether it is an item of that field."""
    names = [key for key in path if isinstance(key, str)]
    return (names[-1] if names else "", isinstance(path[-1], int) if path else False)


def _put(tree: Any, path: Sequence[Any], value: Any) -> Any:
    """The tree with another value at a place."""
    if not path:
        return value
    _at(tree, path[:-1])[path[-1]] = value
    return tree


class Fuzzer:
    """Makes plans from seeds; the same numbers give the same plans."""

    def __init__(self, seeds: Sequence[bytes], number: int) -> None:
        self._random = Random(number)
        self._seeds = [json.loads(seed) for seed in seeds]
        self._nodes = [
            _at(seed, path)
            for seed in self._seeds
            for path in _places(seed)
            if isinstance(_at(seed, path), dict) and "node" in _at(seed, path)
        ]
        self._seen: dict[Any, list[Any]] = {}
        for seed in self._seeds:
            for path in _places(seed):
                self._seen.setdefault(_role(path), []).append(_at(seed, path))

    def plans(self, count: int) -> Iterator[bytes]:
        """So many plans as bytes."""
        for _ in range(count):
            tree = copy.deepcopy(self._random.choice(self._seeds))
            change = self._random.choice((self._changed, self._exchanged))
            for _ in range(self._random.choice((1, 1, 1, 2, 2, 3, 5))):
                tree = change(tree)
            yield json.dumps(tree).encode(errors="replace")

    def _exchanged(self, tree: Any) -> Any:
        """Something replaced by what stands in the same role elsewhere: most such plans have the right form."""
        path = self._random.choice(list(_places(tree))[1:])
        value = _at(tree, path)
        if isinstance(value, int) and not isinstance(value, bool) and self._random.random() < 0.5:
            return _put(tree, path, value + self._random.choice((-1, 1, 10, -value, value)))
        return _put(tree, path, copy.deepcopy(self._random.choice(self._seen.get(_role(path), [value]))))

    def _changed(self, tree: Any) -> Any:
        random = self._random
        places = list(_places(tree))
        path = random.choice(places)
        value = _at(tree, path)
        match random.randrange(7):
            case 0:
                return _put(tree, path, copy.deepcopy(random.choice(ABSURD)))
            case 1:
                return _put(tree, path, copy.deepcopy(random.choice(self._nodes)))
            case 2 if isinstance(value, int) and not isinstance(value, bool):
                return _put(tree, path, value * random.choice((-1, 0, 2, 1000, 10**12)) + random.choice((-1, 0, 1)))
            case 3 if isinstance(value, dict) and value:
                value.pop(random.choice(list(value)))
                return tree
            case 4 if isinstance(value, dict):
                value[random.choice(("node", "child", "unit", "loss", "extra"))] = random.choice(ABSURD)
                return tree
            case 5 if isinstance(value, list):
                return _put(tree, path, value * random.choice((0, 2, 50, 400)))
            case _:
                return self._wrapped(tree, path, value)

    def _wrapped(self, tree: Any, path: tuple[Any, ...], value: Any) -> Any:
        """A node inside many of its own kind."""
        if not isinstance(value, dict) or "child" not in value:
            other = self._random.choice(list(_places(tree)))
            return _put(tree, path, copy.deepcopy(_at(tree, other)))
        for _ in range(self._random.choice((1, 3, 60, 120))):
            value = {**value, "child": value}
        return _put(tree, path, value)
