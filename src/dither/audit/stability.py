"""Test stability, sensitivity and Lipschitz claims of a function on generated neighbours.

Tables are lists of rows; a neighbour has one more unit's rows. Vectors have a public length; a neighbour has one value
replaced. A counterexample is reduced, row by row and value by value, while it still breaks the claim.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from itertools import groupby
from math import inf, isnan, nextafter
from numbers import Real
from typing import Any, Protocol

from dither.audit.claim_syntax import json_number
from dither.errors import InvalidParameter

Row = dict[str, Any]
Rows = list[Row]
Data = list[Any]
Distance = Callable[[Any, Any], float]
MOST_ROWS = 6
MOST_SHOWN = 12
# A function is tried on this many tables to find out if it takes rows or data frames.
PROBES = 5
# Errors of a function of data frames that is given a list.
FAILS_ON_LISTS = ("list indices must be integers", "'list' object has no attribute")
INSTALL_PANDAS = "pandas is not installed; run: pip install 'dither[pandas]'"


class InputSpace(Protocol):
    """The inputs of a function: generates and simplifies pairs of neighbours."""

    def pair(self, rng: random.Random) -> tuple[Data, Data]:
        """Return two random neighbours."""

    def copy(self, data: Data) -> Data:
        """Return a copy that the function may change."""

    def simplifications(self, a: Data, b: Data) -> Iterator[tuple[Data, Data]]:
        """Yield simpler neighbours to try in place of these."""


@dataclass(frozen=True)
class ValueDomain:
    """Tables whose columns have a list of values each, or the two ends of a range of integers or floats.

    `unit` names the column that identifies the unit of a row; without it every row is a unit of its own. A unit has at
    most `rows` rows.
    """

    columns: Mapping[str, Sequence[Any]]
    unit: str | None = None
    rows: int = 1

    def __post_init__(self) -> None:
        if not self.columns or not all(_is_nonempty_list(values) for values in self.columns.values()):
            raise InvalidParameter("a domain needs at least one column, and each column a list of values or two ends")
        if reversed_ends := [
            name for name, values in self.columns.items() if _is_range(values) and values[0] > values[1]
        ]:
            raise InvalidParameter(
                f"the low end of a range must come first; swap the ends of: {', '.join(reversed_ends)}"
            )
        if self.rows < 1:
            raise InvalidParameter(f"rows, the most rows of a unit, must be at least 1; got {self.rows}")
        if self.unit is not None and self.unit not in self.columns:
            raise InvalidParameter(f"no column {self.unit!r}; there are: {', '.join(self.columns)}")

    def row(self, rng: random.Random) -> Row:
        """Return a random row; the ends of ranges are drawn often."""
        return {name: _random_value(values, rng) for name, values in self.columns.items()}

    def pair(self, rng: random.Random) -> tuple[Rows, Rows]:
        """Return two random neighbours; the second has one more unit's rows."""
        rest = [self.row(rng) for _ in range(rng.randint(0, MOST_ROWS))]
        extra = [self.row(rng) for _ in range(rng.randint(1, self.rows))]
        if self.unit is None:
            return rest, rest + extra[:1]
        unit = extra[0][self.unit]
        rest = [row for row in rest if row[self.unit] != unit]
        return rest, rest + [{**row, self.unit: unit} for row in extra]

    def copy(self, data: Data) -> Data:
        """Return copies of the rows."""
        return [dict(row) for row in data]

    def simplifications(self, a: Data, b: Data) -> Iterator[tuple[Data, Data]]:
        """Yield neighbours with one row less, then with one value replaced by its column's simplest."""
        extra = b[len(a) :]
        for place in range(len(a)):
            rest = a[:place] + a[place + 1 :]
            yield rest, rest + extra
        for place in range(len(extra) if len(extra) > 1 else 0):
            yield a, a + extra[:place] + extra[place + 1 :]
        for place, row in enumerate(b):
            for name, values in self.columns.items():
                simplest = min(values, key=lambda each: (abs(each) if isinstance(each, int | float) else 0, str(each)))
                if name != self.unit and row[name] != simplest:
                    changed = [{**each, name: simplest} if at == place else each for at, each in enumerate(b)]
                    yield changed[: len(a)], changed


@dataclass(frozen=True)
class Vectors:
    """Lists of `size` numbers from `low` to `high`; neighbours differ in one number, at any position.

    They differ by at most `change` in it, if that is given: by 1 for counts of which a person is in one.
    """

    size: int
    low: float
    high: float
    change: float | None = None

    def __post_init__(self) -> None:
        if self.change is not None and not 0 < self.change < inf:
            raise InvalidParameter(f"the change of a number must be finite and above 0, got {self.change}")
        if self.size < 1 or not self.low < self.high:
            raise InvalidParameter(
                f"vectors need size >= 1 and low < high; got size {self.size}, low {self.low}, high {self.high}"
            )

    @property
    def special_values(self) -> list[float]:
        """The ends, the quarters, and the floats next to the ends."""
        quarters = [self.low + (self.high - self.low) * part / 4 for part in range(5)]
        return [*quarters, nextafter(self.low, inf), nextafter(self.high, -inf)]

    def pair(self, rng: random.Random) -> tuple[Data, Data]:
        """Return a random list (of equal values, of two values, or of any) and a copy with one value replaced."""
        kind, values = rng.randrange(3), [self._value(rng) for _ in range(3)]
        first = rng.randrange(self.size + 1) if kind == 1 else 0
        a = values[:1] * first + values[1:2] * (self.size - first)
        if kind == 2:
            a = [rng.uniform(self.low, self.high) for _ in range(self.size)]
        place = rng.choice((0, self.size - 1, rng.randrange(self.size)))
        return a, [*a[:place], self.nearest(a[place], values[2]), *a[place + 1 :]]

    def nearest(self, old: float, new: float) -> float:
        """Return the number nearest to `new` that may replace `old`."""
        return new if self.change is None else min(max(new, old - self.change), old + self.change)

    def _value(self, rng: random.Random) -> float:
        return rng.choice(self.special_values) if rng.random() < 0.75 else rng.uniform(self.low, self.high)

    def copy(self, data: Data) -> Data:
        """Return a copy of the list."""
        return list(data)

    def simplifications(self, a: Data, b: Data) -> Iterator[tuple[Data, Data]]:
        """Yield neighbours whose values are all equal except the last, which is replaced, with simpler values."""
        place = next((at for at in range(self.size) if a[at] != b[at]), 0)
        complexity = (len(set(a)), place != self.size - 1, self._rank(a[0]), self._rank(b[place]))
        for base in sorted({*a[:2], *self.special_values}):
            for other in sorted({b[place], *self.special_values}):
                simpler = (1, False, self._rank(base), self._rank(other))
                if simpler < complexity and base != other == self.nearest(base, other):
                    yield [base] * self.size, [*[base] * (self.size - 1), other]

    def _rank(self, value: float) -> int:
        return self.special_values.index(value) if value in self.special_values else len(self.special_values)


@dataclass(frozen=True)
class ClaimedFunction:
    """A function, its inputs, and the largest change of its result between neighbours that it claims."""

    function: Callable[[Data], Any]
    space: InputSpace
    claimed: float


def _is_nonempty_list(values: Any) -> bool:
    return isinstance(values, Sequence) and not isinstance(values, str) and len(values) > 0


def _is_range(values: Sequence[Any]) -> bool:
    return len(values) == 2 and all(isinstance(end, int | float) and not isinstance(end, bool) for end in values)


def _random_value(values: Sequence[Any], rng: random.Random) -> Any:
    """Return one of several values, or a random number of a range."""
    if not _is_range(values):
        return rng.choice(list(values))
    low, high = values
    if rng.random() < 0.5:
        return rng.choice((low, high))
    return rng.randint(low, high) if isinstance(low, int) and isinstance(high, int) else rng.uniform(low, high)


@dataclass(frozen=True)
class TransformationResult:
    """The largest change of the result that was seen, and neighbours that break the claim, if there are any."""

    claimed: float
    largest: float
    pairs: int
    counterexample: tuple[Data, Data] | None
    error: str = ""

    @property
    def refuted(self) -> bool:
        """True if the claim is false."""
        return self.counterexample is not None

    def __str__(self) -> str:
        if self.counterexample is None:
            return (
                f"not refuted: on {self.pairs} pairs the result changes by at most {self.largest:g}, "
                f"{self.claimed:g} is claimed"
            )
        a, b = (summarize_data(each) for each in self.counterexample)
        failure = f"; on one of them the function fails: {self.error}" if self.error else ""
        change = f"the result changes by {self.largest:.7g}, more than {self.claimed:.7g}"
        return f"REFUTED: {change}, between {a} and {b}{failure}"

    def as_dict(self) -> dict[str, Any]:
        """Return the result as plain JSON values."""
        pair = self.counterexample
        return {
            "refuted": self.refuted, "claimed": self.claimed, "largest": json_number(self.largest), "pairs": self.pairs,
            **({"error": self.error} if self.error else {}),
            "counterexample": None if pair is None else [summarize_data(data) for data in pair],
        }  # fmt: skip


def summarize_data(data: Data) -> str:
    """Return data as text; long lists by runs of equal values."""
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
    data_frames: bool | None = None,
) -> TransformationResult:
    """Search for neighbours between which the result of `function` changes by more than `claimed`.

    A table is given to the function as a list of rows, each a dictionary, or as a pandas data frame if `data_frames`;
    by default as a data frame if the function's annotation says so, or if it fails on rows and not on data frames.
    A counterexample is reduced before it is returned. Without `distance`, tables (rows, lists of rows, data frames) are
    compared as multisets, and numbers, vectors and dictionaries of numbers by the L1 distance. An error or NaN on one
    side only is an infinite change.
    """
    if not isinstance(claimed, Real) or not 0 <= float(claimed) < inf or pairs < 1:
        raise InvalidParameter(
            "claimed must be a finite number of at least 0 (distance is the next argument), and pairs at least 1"
        )
    space = ValueDomain(domain) if isinstance(domain, Mapping) else domain
    if isinstance(space, ValueDomain) and _wants_frames(function, space, data_frames):
        function = frame(function, space)
    measure = _change_measure(function, space, distance or result_distance)
    rng, largest, limit = random.Random(seed), -inf, float(claimed)
    for tried in range(1, pairs + 1):
        a, b = space.pair(rng)
        change = measure(a, b)
        largest = max(largest, change)
        if change > limit * (1 + 1e-9):
            small = shrink(a, b, lambda one, two: measure(one, two) > limit * (1 + 1e-9), space)
            return TransformationResult(limit, measure(*small), tried, small, _error_text(function, space, *small))
    if largest < 0:
        tables = isinstance(space, ValueDomain) and find_spec("pandas") is None
        hint = f". It was given lists of rows; if it takes data frames: {INSTALL_PANDAS}" if tables else ""
        raise InvalidParameter(f"the function failed on every pair: {_error_text(function, space, a, b)}{hint}")
    return TransformationResult(limit, largest, pairs, None)


def _error_text(function: Callable[[Data], Any], space: InputSpace, *sides: Data) -> str:
    """Return the function's first error on these inputs as text, or ""."""
    results = [_call_or_error(function, space.copy(side)) for side in sides]
    errors = [result for result in results if isinstance(result, Exception)]
    return f"{type(errors[0]).__name__}: {errors[0]}" if errors else ""


def sql(query: str, connection: Any, domain: ValueDomain, name: str = "t") -> Callable[[Rows], Any]:
    """Turn a query into a function on lists of rows; `connection`, of DuckDB, sees the rows as the table `name`."""
    pyarrow = import_module("pyarrow")
    types = {column: pyarrow.array(list(values)).type for column, values in domain.columns.items()}

    def run(rows: Rows) -> Rows:
        columns = {column: pyarrow.array([row[column] for row in rows], kind) for column, kind in types.items()}
        connection.register(name, pyarrow.table(columns))
        cursor = connection.execute(query)
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    return run


def frame(function: Callable[[Any], Any], domain: ValueDomain) -> Callable[[Rows], Any]:
    """Turn a function on pandas data frames into one on lists of rows."""
    if find_spec("pandas") is None:
        raise InvalidParameter(f"the function takes data frames, but {INSTALL_PANDAS}")
    pandas = import_module("pandas")
    return lambda rows: function(pandas.DataFrame(rows, columns=list(domain.columns)))


def _wants_frames(function: Callable[[Data], Any], domain: ValueDomain, stated: bool | None) -> bool:
    """Return True if the function takes data frames, as stated, annotated, or found by trying both on a few tables.

    Without pandas, a function that fails on lists as only functions of data frames do is refused.
    """
    if stated is not None:
        return stated
    annotations = {name: str(kind) for name, kind in getattr(function, "__annotations__", {}).items()}
    if any("DataFrame" in kind for name, kind in annotations.items() if name != "return"):
        return True
    rng = random.Random(0)
    tables = [domain.pair(rng)[1] for _ in range(PROBES)]
    if not all(_fails(function, domain.copy(rows)) for rows in tables):
        return False
    if find_spec("pandas") is None:
        error = _error_text(function, domain, *tables)
        if any(text in error for text in FAILS_ON_LISTS):
            raise InvalidParameter(f"the function seems to take data frames, but {INSTALL_PANDAS} (on rows: {error})")
        return False
    return not all(_fails(frame(function, domain), domain.copy(rows)) for rows in tables)


def _fails(function: Callable[[Data], Any], data: Data) -> bool:
    return isinstance(_call_or_error(function, data), Exception)


def result_distance(a: Any, b: Any) -> float:
    """Return the distance of two results: the symmetric difference of tables, the L1 distance of numbers."""
    a, b = _to_python(a), _to_python(b)
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return sum(result_distance(a.get(key, 0), b.get(key, 0)) for key in {*a, *b})
    if isinstance(a, list) and isinstance(b, list):
        return _list_distance(a, b)
    if isinstance(a, str) or isinstance(b, str) or a is None or b is None:
        return 0.0 if a == b else inf
    one, two = float(a), float(b)
    if one == two or (isnan(one) and isnan(two)):
        return 0.0
    return inf if isnan(one - two) else abs(one - two)


def _list_distance(a: list[Any], b: list[Any]) -> float:
    """Compare lists of rows, and lists of different lengths, as multisets; others entry by entry."""
    tables = all(isinstance(each, Mapping | list | tuple) for each in a + b)
    if not tables and len(a) == len(b):
        return sum(result_distance(one, two) for one, two in zip(a, b, strict=True))
    first, second = (Counter(repr(each) for each in side) for side in (a, b))
    return float(sum(((first - second) + (second - first)).values()))


def _to_python(value: Any) -> Any:
    """Convert arrays and data frames to lists."""
    if hasattr(value, "to_dict") and hasattr(value, "columns"):
        return value.to_dict("records")
    if hasattr(value, "to_dict"):
        return value.to_dict()
    return value.tolist() if hasattr(value, "tolist") else value


def _change_measure(
    function: Callable[[Data], Any], space: InputSpace, distance: Distance
) -> Callable[[Data, Data], float]:
    """Return a function that measures the change of the result between neighbours.

    An error on one side is an infinite change; on both sides, -inf, so that it never is the largest.
    """

    def measure(a: Data, b: Data) -> float:
        results = [_call_or_error(function, space.copy(side)) for side in (a, b)]
        failed = [isinstance(result, Exception) for result in results]
        if any(failed):
            return -inf if all(failed) else inf
        change = float(distance(*results))
        return inf if isnan(change) else change

    return measure


def _call_or_error(function: Callable[[Data], Any], data: Data) -> Any:
    try:
        return function(data)
    except Exception as error:
        return error


def shrink(a: Data, b: Data, breaks_claim: Callable[[Data, Data], bool], space: InputSpace) -> tuple[Data, Data]:
    """Return the simplest pair found that still breaks the claim."""
    while True:
        simpler = (pair for pair in space.simplifications(a, b) if breaks_claim(*pair))
        pair = next(simpler, None)
        if pair is None:
            return a, b
        a, b = pair
