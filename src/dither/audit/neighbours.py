"""Pairs of neighbouring inputs worth auditing: small, and as different as neighbours can be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from hashlib import sha256
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dither.errors import InvalidParameter

MAX_STEPS = 10_000
NUMERIC = (int, float, np.number, np.ndarray)
Pair = tuple[Any, Any]
Vector = NDArray[np.float64]


class DistantPair(tuple[Any, Any]):
    """Two inputs that are `steps` steps apart, each step from one neighbour to the next.

    A claim about neighbours also limits such pairs, since losses add up over the steps. The audit divides the epsilon
    that it measures by the number of steps, and its error with it.

    >>> DistantPair(0.0, 8.0, steps=8)
    DistantPair(0.0, 8.0, steps=8)
    """

    steps: int

    def __new__(cls, a: Any, b: Any, steps: int) -> DistantPair:
        if type(steps) is not int or not 1 <= steps <= MAX_STEPS:
            raise InvalidParameter(f"steps must be a whole number from 1 to {MAX_STEPS}, got {steps!r}")
        pair = super().__new__(cls, (a, b))
        pair.steps = steps
        return pair

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DistantPair) and self.steps == other.steps and tuple(self) == tuple(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((*self, self.steps))

    def __repr__(self) -> str:
        return f"DistantPair({self[0]!r}, {self[1]!r}, steps={self.steps})"

    def __reduce__(self) -> tuple[Any, ...]:
        return DistantPair, (*self, self.steps)


def step_count(pair: Pair) -> int:
    """Return the number of steps between the inputs of a pair: 1 unless it is a `DistantPair`."""
    return pair.steps if isinstance(pair, DistantPair) else 1


def farther_pairs(pairs: Iterable[Pair], times: int = 8) -> list[Pair]:
    """Return the pairs with the change from the first input to the second repeated `times` times.

    Inputs must be numbers or arrays of them. The stated number of steps is right only if the same change leads
    from any input to a neighbour of it.

    >>> farther_pairs([(0.0, 1.0)])
    [DistantPair(0.0, 8.0, steps=8)]
    """
    return [DistantPair(pair[0], _repeat_change(*pair, times), times * step_count(pair)) for pair in pairs]


def _repeat_change(a: Any, b: Any, times: int) -> Any:
    """Return a + times * (b - a), computed exactly; rounding is towards `a`, so that the distance is never exceeded."""
    arrays = [np.asarray(value) if isinstance(value, NUMERIC) else np.zeros(0, dtype=object) for value in (a, b)]
    first, second = arrays
    if first.shape != second.shape or any(array.dtype.kind not in "iuf" or array.itemsize > 8 for array in arrays):
        raise InvalidParameter(
            "farther_pairs takes numbers or arrays of equal shape; for other inputs use DistantPair(a, b, steps)"
        )
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        raise InvalidParameter("farther_pairs takes finite numbers; for other inputs use DistantPair(a, b, steps)")
    dtype = np.result_type(first, second)
    ends = [tuple(map(Fraction, both)) for both in zip(first.ravel().tolist(), second.ravel().tolist(), strict=True)]
    targets = [start + times * (end - start) for start, end in ends]
    least, most = _dtype_range(dtype)
    if any(not least <= target <= most for target in targets):
        raise InvalidParameter(f"{times} steps overflow the type {dtype}: use a wider type or fewer steps")
    result = np.array([float(target) if dtype.kind == "f" else int(target) for target in targets], dtype=dtype)
    for place, ((start, _), target) in enumerate(zip(ends, targets, strict=True)):
        if abs(Fraction(result[place].item()) - start) > abs(target - start):
            result[place] = np.nextafter(result[place], dtype.type(start))
    return result.reshape(first.shape) if isinstance(a, np.ndarray) else result[0].item()


def _dtype_range(dtype: np.dtype[Any]) -> tuple[Fraction, Fraction]:
    """Return the least and the largest finite number of a type."""
    limits: Any = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
    return Fraction(int(limits.min)), Fraction(int(limits.max))


def tiny() -> list[Pair]:
    """Return the neighbouring pairs of four small datasets: empty, then with (0, 0), (100, 1) and (50, 0) added."""
    chain: list[list[tuple[int, int]]] = [[], [(0, 0)], [(100, 1), (0, 0)], [(100, 1), (50, 0), (0, 0)]]
    return list(pairwise(chain))


def records(low: float = 0.0, high: float = 1.0, sizes: Sequence[int] = (0, 1, 2, 5)) -> list[Pair]:
    """Return pairs of lists, filled with `low` or `high`, of which the second has one record more."""
    pairs: list[Pair] = []
    for size in sizes:
        for filling in (low, high) if size else (low,):
            for extra in (low, high):
                pairs.append(([filling] * size, [filling] * size + [extra]))
    return pairs


def one_differs(length: int = 5, change: float = 1.0) -> list[Pair]:
    """Return pairs of vectors that differ in one entry, like histograms of neighbouring datasets."""
    base = np.ones(length)
    pairs = []
    for index, difference in ((0, change), (0, -change), (length - 1, change)):
        other = base.copy()
        other[index] += difference
        pairs.append((base, other))
    return pairs


def all_differ(length: int = 5, change: float = 1.0) -> list[Pair]:
    """Return pairs of query answers of which each may change by `change`: the patterns of Ding et al. (2018)."""
    ones, half = np.ones(length), length // 2
    up, down = ones + change, ones - change
    patterns: list[Vector] = [
        _replace_first(up, ones),  # one above
        _replace_first(down, ones),  # one below
        _replace_first(up, down),  # one above, the rest below
        _replace_first(down, up),  # one below, the rest above
        np.concatenate([down[:half], up[half:]]),  # half and half
        up,
        down,
    ]
    crossed = (np.concatenate([ones[:half], down[half:]]), np.concatenate([down[:half], ones[half:]]))
    return [(ones, pattern) for pattern in patterns] + [crossed]


def from_strategy(strategy: Any, count: int = 30, seed: int = 0) -> list[Pair]:
    """Draw distinct pairs from a Hypothesis strategy for pairs; needs the package `hypothesis`."""
    try:
        from hypothesis import HealthCheck, Phase, given, settings
        from hypothesis import seed as with_seed
    except ImportError:
        raise InvalidParameter(
            "neighbours from a strategy need the package hypothesis: pip install hypothesis"
        ) from None
    pairs: list[Pair] = []

    @with_seed(seed)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(pair: Pair) -> None:
        pairs.append(pair)

    collect()
    return distinct_pairs(pairs)


def distinct_pairs(pairs: Any) -> list[Pair]:
    """Return each pair once and drop pairs of equal inputs; `pairs` may be a Hypothesis strategy."""
    if hasattr(pairs, "example") and not isinstance(pairs, Iterable):
        return from_strategy(pairs)
    if not isinstance(pairs, Iterable):
        raise InvalidParameter(f"neighbours must be pairs of inputs: [(a, b), ...], got {pairs!r:.60}")
    seen: dict[str, Pair] = {}
    for pair in pairs:
        if isinstance(pair, str) or not hasattr(pair, "__len__") or len(pair) != 2:
            raise InvalidParameter("neighbours must be pairs of inputs: [(a, b), ...]")
        a, b = pair
        first, second = fingerprint(a), fingerprint(b)
        if first != second:
            seen.setdefault(f"{step_count(pair)} {first} {second}", pair if isinstance(pair, DistantPair) else (a, b))
    return list(seen.values())


def fingerprint(value: Any) -> str:
    """Return a text that is equal for equal inputs; unlike `repr`, it covers long arrays and tables completely."""
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}[{','.join(fingerprint(entry) for entry in value)}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key!r}:{fingerprint(entry)}' for key, entry in value.items())}}}"
    if hasattr(value, "columns") and hasattr(value, "__array__"):
        return f"{list(value.columns)!r}{fingerprint(np.asarray(value))}"
    if isinstance(value, np.ndarray):
        content = fingerprint(value.tolist()) if value.dtype.hasobject else sha256(value.tobytes()).hexdigest()
        return f"{value.dtype}{value.shape}{content}"
    return repr(value)


def _replace_first(first: Vector, rest: Vector) -> Vector:
    """Return `rest` with its first entry taken from `first`."""
    return np.concatenate([first[:1], rest[1:]])
