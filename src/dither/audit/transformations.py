"""Data access: do a function's stability, sensitivity and Lipschitz claims hold on generated neighbours?

Tables are lists of rows; a neighbour has one unit's rows more. A counterexample is made smaller, row by row and value
by value, for as long as it stays one.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from importlib import import_module
from math import inf
from typing import Any

import pyarrow

from dither.errors import InvalidParameter

Row = dict[str, Any]
Rows = list[Row]
Distance = Callable[[Any, Any], float]
MOST_ROWS = 6


@dataclass(frozen=True)
class Domain:
    """What a table may hold: for each column a list of values, or two ends of a range of integers or floats.

    `unit` names the column whose value says to whom a row belongs; without it every row is a unit of its own.
    `rows` limits how many rows one unit has.
    """

    columns: Mapping[str, Sequence[Any]]
    unit: str | None = None
    rows: int = 1

    def __post_init__(self) -> None:
        if not self.columns or any(len(values) == 0 for values in self.columns.values()):
            raise InvalidParameter("a domain needs at least one column, and each column at least one value")
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


def _value(values: Sequence[Any], rng: random.Random) -> Any:
    """One of several values; between two numbers, anything from one to the other."""
    if len(values) != 2 or any(isinstance(end, bool) or not isinstance(end, int | float) for end in values):
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
    counterexample: tuple[Rows, Rows] | None

    @property
    def refuted(self) -> bool:
        """Whether the claim is false."""
        return self.counterexample is not None

    def __str__(self) -> str:
        if self.counterexample is None:
            return f"not refuted: {self.pairs} pairs moved the result by at most {self.largest:g} of {self.claimed:g}"
        a, b = self.counterexample
        return f"REFUTED: the result moves by {self.largest:g}, more than {self.claimed:g}, between {a} and {b}"


def transformation(
    function: Callable[[Rows], Any],
    domain: Domain,
    claimed: float | Fraction,
    distance: Distance | None = None,
    *,
    pairs: int = 500,
    seed: int = 0,
) -> TransformationResult:
    """Searches for neighbours between which `function` moves by more than `claimed`; a wrong claim is shown small.

    The distance is that of multisets for tables (rows, lists of rows, data frames), of L1 for numbers, vectors and
    dictionaries of numbers; an error on one side only is an infinite distance.
    """
    measure = _moved(function, distance or change)
    rng, largest, limit = random.Random(seed), 0.0, float(claimed)
    for tried in range(1, pairs + 1):
        a, b = domain.pair(rng)
        moved = measure(a, b)
        largest = max(largest, moved)
        if moved > limit * (1 + 1e-9):
            small = shrunk(a, b, lambda one, two: measure(one, two) > limit * (1 + 1e-9), domain)
            return TransformationResult(limit, measure(*small), tried, small)
    return TransformationResult(limit, largest, pairs, None)


def sql(query: str, connection: Any, domain: Domain, name: str = "t") -> Callable[[Rows], Any]:
    """A query as a function on tables: `connection` is DuckDB's, which sees the rows as a table of this name."""
    types = {column: pyarrow.array(list(values)).type for column, values in domain.columns.items()}

    def run(rows: Rows) -> Rows:
        columns = {column: pyarrow.array([row[column] for row in rows], kind) for column, kind in types.items()}
        connection.register(name, pyarrow.table(columns))
        cursor = connection.execute(query)
        names = [each[0] for each in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    return run


def frame(function: Callable[[Any], Any], domain: Domain) -> Callable[[Rows], Any]:
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
    return abs(float(a) - float(b))


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


def _moved(function: Callable[[Rows], Any], distance: Distance) -> Callable[[Rows, Rows], float]:
    def measure(a: Rows, b: Rows) -> float:
        results = [_tried(function, side) for side in (a, b)]
        failed = [isinstance(each, Exception) for each in results]
        if any(failed):
            return 0.0 if all(failed) else inf
        return distance(*results)

    return measure


def _tried(function: Callable[[Rows], Any], rows: Rows) -> Any:
    try:
        return function([dict(row) for row in rows])
    except Exception as error:
        return error


def shrunk(a: Rows, b: Rows, broken: Callable[[Rows, Rows], bool], domain: Domain) -> tuple[Rows, Rows]:
    """A smaller pair that still breaks the claim: fewer rows, then plainer values."""
    smaller = True
    while smaller:
        smaller = False
        for one, two in _simpler(a, b, domain):
            if broken(one, two):
                a, b, smaller = one, two, True
                break
    return a, b


def _simpler(a: Rows, b: Rows, domain: Domain) -> Iterator[tuple[Rows, Rows]]:
    extra = b[len(a) :]
    for place in range(len(a)):
        rest = a[:place] + a[place + 1 :]
        yield rest, rest + extra
    for place in range(len(extra) if len(extra) > 1 else 0):
        yield a, a + extra[:place] + extra[place + 1 :]
    for place, row in enumerate(b):
        for name, values in domain.columns.items():
            plainest = min(values, key=lambda each: (abs(each) if isinstance(each, int | float) else 0, str(each)))
            if name != domain.unit and row[name] != plainest:
                changed = [{**each, name: plainest} if at == place else each for at, each in enumerate(b)]
                yield changed[: len(a)], changed
