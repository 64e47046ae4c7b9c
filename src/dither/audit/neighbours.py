"""Pairs of neighbouring inputs worth trying: as different as neighbours can be, and small."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from hashlib import sha256
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dither.errors import InvalidParameter

MOST_STEPS = 10_000
NUMERIC = (int, float, np.number, np.ndarray)
Pair = tuple[Any, Any]
Vector = NDArray[np.float64]


class Apart(tuple[Any, Any]):
    """Two inputs with some neighbours between them: so many steps lead from the one to the other.

    A claim about neighbours says something about these too: losses add up over the steps. What is found is divided by
    their number, and so is its error.

    >>> Apart(0.0, 8.0, steps=8)
    Apart(0.0, 8.0, steps=8)
    """

    steps: int

    def __new__(cls, a: Any, b: Any, steps: int) -> Apart:
        if type(steps) is not int or not 1 <= steps <= MOST_STEPS:
            raise InvalidParameter(f"inputs are 1 to {MOST_STEPS} whole steps apart, not {steps!r}")
        pair = super().__new__(cls, (a, b))
        pair.steps = steps
        return pair

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Apart) and self.steps == other.steps and tuple(self) == tuple(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((*self, self.steps))

    def __repr__(self) -> str:
        return f"Apart({self[0]!r}, {self[1]!r}, steps={self.steps})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Apart, (*self, self.steps)


def steps(pair: Pair) -> int:
    """How many steps from neighbour to neighbour lead from one input of a pair to the other."""
    return pair.steps if isinstance(pair, Apart) else 1


def farther(pairs: Iterable[Pair], times: int = 8) -> list[Pair]:
    """The same pairs with the change made so many times over, which is as many steps.

    For numbers and arrays of them, and where neighbours are all inputs that differ as much, wherever they are.

    >>> farther([(0.0, 1.0)])
    [Apart(0.0, 8.0, steps=8)]
    """
    return [Apart(pair[0], _moved(*pair, times), times * steps(pair)) for pair in pairs]


def _moved(a: Any, b: Any, times: int) -> Any:
    """The first input with the change to the second made so many times; never rounded to more than that."""
    given = [np.asarray(each) if isinstance(each, NUMERIC) else np.zeros(0, dtype=object) for each in (a, b)]
    first, second = given
    if first.shape != second.shape or any(each.dtype.kind not in "iuf" or each.itemsize > 8 for each in given):
        raise InvalidParameter("farther moves numbers and arrays of one shape; for other inputs say Apart(a, b, steps)")
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        raise InvalidParameter("farther moves finite numbers; for other inputs say Apart(a, b, steps)")
    kind = np.result_type(first, second)
    ends = [tuple(map(Fraction, both)) for both in zip(first.ravel().tolist(), second.ravel().tolist(), strict=True)]
    moved = [start + times * (end - start) for start, end in ends]
    least, most = _range(kind)
    if any(not least <= each <= most for each in moved):
        raise InvalidParameter(f"numbers of kind {kind} end before {times} steps: use wider ones")
    result = np.array([float(each) if kind.kind == "f" else int(each) for each in moved], dtype=kind)
    for place, ((start, _), wanted) in enumerate(zip(ends, moved, strict=True)):
        if abs(Fraction(result[place].item()) - start) > abs(wanted - start):
            result[place] = np.nextafter(result[place], kind.type(start))
    return result.reshape(first.shape) if isinstance(a, np.ndarray) else result[0].item()


def _range(kind: np.dtype[Any]) -> tuple[Fraction, Fraction]:
    limits: Any = np.finfo(kind) if kind.kind == "f" else np.iinfo(kind)
    return Fraction(int(limits.min)), Fraction(int(limits.max))


def counts(sensitivity: float = 1.0) -> list[Pair]:
    """One number that one person moves by `sensitivity`."""
    return [(0.0, float(sensitivity)), (10.0, 10.0 + sensitivity)]


def tiny() -> list[Pair]:
    """The four datasets of the guidelines: no record, then (0, 0), (100, 1) and (50, 0) join."""
    chain: list[list[tuple[int, int]]] = [[], [(0, 0)], [(100, 1), (0, 0)], [(100, 1), (50, 0), (0, 0)]]
    return list(pairwise(chain))


def records(low: float = 0.0, high: float = 1.0, sizes: Sequence[int] = (0, 1, 2, 5)) -> list[Pair]:
    """Lists of numbers at the ends of a range, to which one record is added."""
    pairs: list[Pair] = []
    for size in sizes:
        for filling in (low, high) if size else (low,):
            for extra in (low, high):
                pairs.append(([filling] * size, [filling] * size + [extra]))
    return pairs


def one_differs(length: int = 5, change: float = 1.0) -> list[Pair]:
    """Vectors of which one entry changes: a histogram."""
    base = np.ones(length)
    pairs = []
    for place, by in ((0, change), (0, -change), (length - 1, change)):
        other = base.copy()
        other[place] += by
        pairs.append((base, other))
    return pairs


def all_differ(length: int = 5, change: float = 1.0) -> list[Pair]:
    """Vectors of query answers that all may change by at most `change`: the patterns of Ding et al. (2018)."""
    ones, half = np.ones(length), length // 2
    up, down = ones + change, ones - change
    patterns: list[Vector] = [
        _first(up, ones),  # one above
        _first(down, ones),  # one below
        _first(up, down),  # one above, the rest below
        _first(down, up),  # one below, the rest above
        np.concatenate([down[:half], up[half:]]),  # half and half
        up,
        down,
    ]
    crossed = (np.concatenate([ones[:half], down[half:]]), np.concatenate([down[:half], ones[half:]]))
    return [(ones, pattern) for pattern in patterns] + [crossed]


def generated(strategy: Any, count: int = 30, seed: int = 0) -> list[Pair]:
    """Pairs drawn from a Hypothesis strategy for pairs; the package `hypothesis` is needed for this alone."""
    try:
        from hypothesis import HealthCheck, Phase, given, settings
        from hypothesis import seed as fixed
    except ImportError:
        raise InvalidParameter("generated neighbours need the package hypothesis: pip install hypothesis") from None
    drawn: list[Pair] = []

    @fixed(seed)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(pair: Pair) -> None:
        drawn.append(pair)

    collect()
    return distinct(drawn)


def distinct(pairs: Any) -> list[Pair]:
    """Each pair once, without those whose inputs are equal; pairs may be given as a Hypothesis strategy."""
    if hasattr(pairs, "example") and not isinstance(pairs, Iterable):
        return generated(pairs)
    seen: dict[str, Pair] = {}
    for pair in pairs:
        if isinstance(pair, str) or not hasattr(pair, "__len__") or len(pair) != 2:
            raise InvalidParameter("neighbours are pairs of inputs: [(a, b), ...]")
        a, b = pair
        first, second = fingerprint(a), fingerprint(b)
        if first != second:
            seen.setdefault(f"{steps(pair)} {first} {second}", pair if isinstance(pair, Apart) else (a, b))
    return list(seen.values())


def fingerprint(value: Any) -> str:
    """A text that is equal for equal inputs, however long they are: that of an array or a table leaves nothing out."""
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}[{','.join(fingerprint(each) for each in value)}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key!r}:{fingerprint(each)}' for key, each in value.items())}}}"
    if hasattr(value, "columns") and hasattr(value, "__array__"):
        return f"{list(value.columns)!r}{fingerprint(np.asarray(value))}"
    if isinstance(value, np.ndarray):
        held = fingerprint(value.tolist()) if value.dtype.hasobject else sha256(value.tobytes()).hexdigest()
        return f"{value.dtype}{value.shape}{held}"
    return repr(value)


def probed(draw: Callable[[Any], Any]) -> list[Pair]:
    """The first family of pairs that the mechanism accepts, for a caller who named none."""
    reasons: list[str] = []
    for family in (counts(), records(), tiny()):
        reason = next(filter(None, (_refusal(draw, value) for pair in family for value in pair)), None)
        if reason is None:
            return family
        reasons.append(reason)
    raise InvalidParameter(
        f"no standard input was accepted; name the neighbours: neighbours=[(a, b), ...]. {reasons[0]}"
    )


def _refusal(draw: Callable[[Any], Any], value: Any) -> str | None:
    """Why the mechanism does not take an input."""
    try:
        draw(value)
    except Exception as error:
        return str(error)
    return None


def _first(first: Vector, rest: Vector) -> Vector:
    return np.concatenate([first[:1], rest[1:]])
