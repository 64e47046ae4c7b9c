"""Data access: do a function's stability, sensitivity and Lipschitz claims hold on generated neighbours?

Tables are lists of rows; a neighbour has one unit's rows more. Vectors have a public length; a neighbour has one value
replaced. A counterexample is made smaller, row by row and value by value, for as long as it stays one.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import groupby
from math import inf, isnan, nextafter
from numbers import Real
from typing import Any, Protocol

from dither.audit.claim_syntax import finite
from dither.errors import InvalidParameter

Row = dict[str, Any]
Rows = list[Row]
Data = list[Any]
Distance = Callable[[Any, Any], float]
MOST_ROWS = 6
MOST_SHOWN = 12


class InputSpace(Protocol):
    """What a function may be given, and how two neighbours are made and made simpler."""

    def pair(self, rng: random.Random) -> tuple[Data, Data]:
        """Two neighbours."""

    def copied(self, data: Data) -> Data:
        """A copy that the function may change."""

    def simpler(self, a: Data, b: Data) -> Iterator[tuple[Data, Data]]:
        """Simpler neighbours to try in place of these."""


@dataclass(frozen=True)
class ValueDomain:
    """What a table may hold: for each column a list of values, or two ends of a range of integers or floats.

    `unit` names the column whose value says to whom a row belongs; without it every row is a unit of its own.
    `rows` limits how many rows one unit has.
    """

    columns: Mapping[str, Sequence[Any]]
    unit: str | None = None
    rows: int = 1

    def __post_init__(self) -> None:
        if not self.columns or not all(_is_listed(values) for values in self.columns.values()):
            raise InvalidParameter("a domain needs at least one column, and each column a list of values or two ends")
        if wrong := [name for name, values in self.columns.items() if _is_range(values) and values[0] > values[1]]:
            raise InvalidParameter(f"the low end comes before the high end; not so in: {', '.join(wrong)}")
        if self.rows < 1:
            raise InvalidParameter(f"a unit has at least one row, got {self.rows}")
        if self.unit is not None and self.unit not in self.columns:
            raise InvalidParameter(f"no column {self.unit!r}; there are: {', '.join(self.columns)}")

    def row(self, rng: random.Random) -> Row:
        """One row; the ends of a range come up often."""
        return {name: _value(values, rng) for name, values in self.columns.items()}

    def pair(self, rng: random.Random) -> tuple[Rows, Rows]:
        """Two neighbours: the second has the rows of one unit more."""
        rest = [self.row(rng) for _ in range(rng.randint(0, MOST_ROWS))]
        extra = [self.row(rng) for _ in range(rng.randint(1, self.rows))]
        if self.unit is None:
            return rest, rest + extra[:1]
        who = extra[0][self.unit]
        rest = [row for row in rest if row[self.unit] != who]
        return rest, rest + [{**row, self.unit: who} for row in extra]

    def copied(self, data: Data) -> Data:
        """Copies of the rows."""
        return [dict(row) for row in data]

    def simpler(self, a: Data, b: Data) -> Iterator[tuple[Data, Data]]:
        """Fewer rows, then plainer values."""
        extra = b[len(a) :]
        for place in range(len(a)):
            rest = a[:place] + a[place + 1 :]
            yield rest, rest + extra
        for place in range(len(extra) if len(extra) > 1 else 0):
            yield a, a + extra[:place] + extra[place + 1 :]
        for place, row in enumerate(b):
            for name, values in self.columns.items():
                plainest = min(values, key=lambda each: (abs(each) if isinstance(each, int | float) else 0, str(each)))
                if name != self.unit and row[name] != plainest:
                    changed = [{**each, name: plainest} if at == place else each for at, each in enumerate(b)]
                    yield changed[: len(a)], changed


@dataclass(frozen=True)
class Vectors:
    """Lists of `size` numbers from `low` to `high`; neighbours differ in one of them, wherever it stands."""

    size: int
    low: float
    high: float

    def __post_init__(self) -> None:
        if self.size < 1 or not self.low < self.high:
            raise InvalidParameter("vectors need at least one number, and a low end below the high end")

    @property
    def marks(self) -> list[float]:
        """The ends, the quarters, and the floats next to the ends."""
        quarters = [self.low + (self.high - self.low) * part / 4 for part in range(5)]
        return [*quarters, nextafter(self.low, inf), nextafter(self.high, -inf)]

    def pair(self, rng: random.Random) -> tuple[Data, Data]:
        """All equal, two values, or any; one of them is replaced."""
        kind, values = rng.randrange(3), [self._value(rng) for _ in range(3)]
        first = rng.randrange(self.size + 1) if kind == 1 else 0
        a = values[:1] * first + values[1:2] * (self.size - first)
        if kind == 2:
            a = [rng.uniform(self.low, self.high) for _ in range(self.size)]
        place = rng.choice((0, self.size - 1, rng.randrange(self.size)))
        return a, [*a[:place], values[2], *a[place + 1 :]]

    def _value(self, rng: random.Random) -> float:
        return rng.choice(self.marks) if rng.random() < 0.75 else rng.uniform(self.low, self.high)

    def copied(self, data: Data) -> Data:
        """Another list."""
        return list(data)

    def simpler(self, a: Data, b: Data) -> Iterator[tuple[Data, Data]]:
        """All but the replaced value equal, then plainer values."""
        place = next((at for at in range(self.size) if a[at] != b[at]), 0)
        shape = (len(set(a)), place != self.size - 1, self._rank(a[0]), self._rank(b[place]))
        for base in sorted({*a[:2], *self.marks}):
            for other in sorted({b[place], *self.marks}):
                plainer = (1, False, self._rank(base), self._rank(other))
                if plainer < shape and base != other:
                    yield [base] * self.size, [*[base] * (self.size - 1), other]

    def _rank(self, value: float) -> int:
        return self.marks.index(value) if value in self.marks else len(self.marks)


@dataclass(frozen=True)
class Stated:
    """A function, what it may be given, and the most that it says its result moves."""

    function: Callable[[Data], Any]
    space: InputSpace
    claimed: float


def _is_listed(values: Any) -> bool:
    return isinstance(values, Sequence) and not isinstance(values, str) and len(values) > 0


def _is_range(values: Sequence[Any]) -> bool:
    return len(values) == 2 and all(isinstance(end, int | float) and not isinstance(end, bool) for end in values)


def _value(values: Sequence[Any], rng: random.Random) -> Any:
    """One of several values; between two numbers, anything from one to the other."""
    if not _is_range(values):
        return rng.choice(list(values))
    low, high = values
    if rng.random() < 0.5:
        return rng.choice((low, high))
    return rng.randint(low, high) if isinstance(low, int) and isinstance(high, int) else rng.uniform(low, high)


@dataclass(frozen=True)
class TransformationResult:
    """The largest change that was seen, and neighbours that break the claim if there are any."""

    claimed: float
    largest: float
    pairs: int
    counterexample: tuple[Data, Data] | None
    error: str = ""

    @property
    def refuted(self) -> bool:
        """Whether the claim is false."""
        return self.counterexample is not None

    def __str__(self) -> str:
        if self.counterexample is None:
            return f"not refuted: {self.pairs} pairs moved the result by at most {self.largest:g} of {self.claimed:g}"
        a, b = (listed(each) for each in self.counterexample)
        failed = f"; on one of them the function fails: {self.error}" if self.error else ""
        moved = f"the result moves by {self.largest:.7g}, more than {self.claimed:.7g}"
        return f"REFUTED: {moved}, between {a} and {b}{failed}"

    def as_dict(self) -> dict[str, Any]:
        """The result as plain JSON values."""
        return {
            "refuted": self.refuted, "claimed": self.claimed, "largest": finite(self.largest), "pairs": self.pairs,
            **({"error": self.error} if self.error else {}),
            "counterexample": None if self.counterexample is None else [listed(each) for each in self.counterexample],
        }  # fmt: skip


def listed(data: Data) -> str:
    """Data in words: long lists by how often each value stands there in a row."""
    if len(data) <= MOST_SHOWN:
        return str(data)
    runs = [(value, len(list(group))) for value, group in groupby(data)]
    shown = [f"{count} x {value!r}" if count > 1 else repr(value) for value, count in runs[:MOST_SHOWN]]
    return f"[{', '.join(shown)}{', ...' if len(runs) > MOST_SHOWN else ''}]"


def transformation(
    function: Callable[[Data], Any],
    domain: InputSpace | Mapping[str, Sequence[Any]],
    claimed: Any,
    distance: Distance | None = None,
    *,
    pairs: int = 500,
    seed: int = 0,
) -> TransformationResult:
    """Searches for neighbours between which `function` moves by more than `claimed`; a wrong claim is shown small.

    The distance is that of multisets for tables (rows, lists of rows, data frames), of L1 for numbers, vectors and
    dictionaries of numbers; an error or NaN on one side only is an infinite distance.
    """
    if not isinstance(claimed, Real) or not 0 <= float(claimed) < inf or pairs < 1:
        raise InvalidParameter("the claim is a number from 0 on (a distance comes after it), for one pair or more")
    space = ValueDomain(domain) if isinstance(domain, Mapping) else domain
    measure = _moved(function, space, distance or change)
    rng, largest, limit = random.Random(seed), -inf, float(claimed)
    for tried in range(1, pairs + 1):
        a, b = space.pair(rng)
        moved = measure(a, b)
        largest = max(largest, moved)
        if moved > limit * (1 + 1e-9):
            small = shrunk(a, b, lambda one, two: measure(one, two) > limit * (1 + 1e-9), space)
            return TransformationResult(limit, measure(*small), tried, small, _error(function, space, *small))
    if largest < 0:
        raise InvalidParameter(f"the function failed on every pair: {_error(function, space, a, b)}")
    return TransformationResult(limit, largest, pairs, None)


def _error(function: Callable[[Data], Any], space: InputSpace, *sides: Data) -> str:
    """What the function fails with on one of these, if it does."""
    failed = [each for each in (_tried(function, space.copied(side)) for side in sides) if isinstance(each, Exception)]
    return f"{type(failed[0]).__name__}: {failed[0]}" if failed else ""


def sql(query: str, connection: Any, domain: ValueDomain, name: str = "t") -> Callable[[Rows], Any]:
    """A query as a function on tables: `connection` is DuckDB's, which sees the rows as a table of this name."""
    pyarrow = import_module("pyarrow")
    types = {column: pyarrow.array(list(values)).type for column, values in domain.columns.items()}

    def run(rows: Rows) -> Rows:
        columns = {column: pyarrow.array([row[column] for row in rows], kind) for column, kind in types.items()}
        connection.register(name, pyarrow.table(columns))
        cursor = connection.execute(query)
        names = [each[0] for each in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    return run


def frame(function: Callable[[Any], Any], domain: ValueDomain) -> Callable[[Rows], Any]:
    """A function on pandas data frames as one on lists of rows."""
    pandas = import_module("pandas")
    return lambda rows: function(pandas.DataFrame(rows, columns=list(domain.columns)))


def change(a: Any, b: Any) -> float:
    """How far two results are apart: multisets of rows, or numbers by L1."""
    a, b = _plain(a), _plain(b)
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return sum(change(a.get(key, 0), b.get(key, 0)) for key in {*a, *b})
    if isinstance(a, list) and isinstance(b, list):
        return _between_lists(a, b)
    if isinstance(a, str) or isinstance(b, str) or a is None or b is None:
        return 0.0 if a == b else inf
    one, two = float(a), float(b)
    if one == two or (isnan(one) and isnan(two)):
        return 0.0
    return inf if isnan(one - two) else abs(one - two)


def _between_lists(a: list[Any], b: list[Any]) -> float:
    tables = all(isinstance(each, Mapping | list | tuple) for each in a + b)
    if not tables and len(a) == len(b):
        return sum(change(one, two) for one, two in zip(a, b, strict=True))
    first, second = (Counter(repr(each) for each in side) for side in (a, b))
    return float(sum(((first - second) + (second - first)).values()))


def _plain(value: Any) -> Any:
    """Arrays and data frames as lists."""
    if hasattr(value, "to_dict") and hasattr(value, "columns"):
        return value.to_dict("records")
    if hasattr(value, "to_dict"):
        return value.to_dict()
    return value.tolist() if hasattr(value, "tolist") else value


def _moved(function: Callable[[Data], Any], space: InputSpace, distance: Distance) -> Callable[[Data, Data], float]:
    def measure(a: Data, b: Data) -> float:
        results = [_tried(function, space.copied(side)) for side in (a, b)]
        failed = [isinstance(each, Exception) for each in results]
        if any(failed):
            return -inf if all(failed) else inf
        moved = float(distance(*results))
        return inf if isnan(moved) else moved

    return measure


def _tried(function: Callable[[Data], Any], data: Data) -> Any:
    try:
        return function(data)
    except Exception as error:
        return error


def shrunk(a: Data, b: Data, broken: Callable[[Data, Data], bool], space: InputSpace) -> tuple[Data, Data]:
    """A smaller pair that still breaks the claim."""
    smaller = True
    while smaller:
        smaller = False
        for one, two in space.simpler(a, b):
            if broken(one, two):
                a, b, smaller = one, two, True
                break
    return a, b
