"""The inputs that a mechanism takes, and the pairs of neighbours in them where mechanisms tend to break.

Every domain yields pairs at its ends, pairs with equal records (ties), empty inputs where there are any, and NaN where
it is an input. No pair leaves the domain: what a mechanism does with other inputs says nothing about its claim.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from math import inf, isfinite, isnan, nan
from typing import Any, Protocol, runtime_checkable

import numpy as np

from dither.audit.neighbours import Pair, distinct_pairs
from dither.audit.stability import ValueDomain, Vectors
from dither.errors import InvalidParameter

# With more values than this, only some pairs of choices are tried.
MOST_CROSSED_CHOICES = 7
MOST_EXAMPLES = 8
ASK_FOR_DOMAIN = (
    "say which inputs the mechanism takes: domain=Numbers(0, 100) for a count from 0 to 100, Choices([0, 1]) for one "
    "person's answer, Records(0, 1) for lists of numbers from 0 to 1, {'age': [0, 120]} for lists of rows, "
    "Examples([data]) for data like yours; or pass pairs, neighbours=[(a, b), ...]"
)


@runtime_checkable
class InputDomain(Protocol):
    """The inputs of a mechanism."""

    def neighbours(self) -> list[Pair]:
        """Return pairs of neighbours that are worth auditing."""


@dataclass(frozen=True)
class Choices:
    """One of a few inputs, such as one person's answer; any two of them are neighbours.

    >>> Choices([0, 1]).neighbours()
    [(0, 1)]
    """

    values: Collection[Any]

    def __post_init__(self) -> None:
        if not _is_collection(self.values) or len(self.values) < 2:
            raise InvalidParameter("choices must be a list of at least two inputs, such as Choices([0, 1])")

    def neighbours(self) -> list[Pair]:
        """Return all pairs of a few values; of many, the first with each of the others, and each with the next."""
        values = list(self.values)
        if len(values) <= MOST_CROSSED_CHOICES:
            return list(combinations(values, 2))
        some = values[: MOST_CROSSED_CHOICES - 1] + values[-1:]
        return [(values[0], each) for each in some[1:]] + list(pairwise(some[1:]))


@dataclass(frozen=True)
class Numbers:
    """Numbers from `low` to `high`, such as counts and sums; neighbours differ by at most `change`.

    With whole numbers alone, inputs are whole. With `nan`, NaN is an input as well, and a neighbour of every number.

    >>> Numbers(0, 1).neighbours()
    [(0, 1)]
    """

    low: float = -inf
    high: float = inf
    change: float = 1
    nan: bool = False

    def __post_init__(self) -> None:
        if not self.low < self.high or not 0 < self.change < inf:
            raise InvalidParameter(
                f"numbers need low < high and a finite change above 0; got {self.low}, {self.high} and {self.change}"
            )

    def neighbours(self) -> list[Pair]:
        """Return pairs at both ends, around 0, and at ten times the change; they are as far apart as neighbours are."""
        step = min(self.change, self.high - self.low)
        whole = all(not isfinite(end) or isinstance(end, int) for end in (self.low, self.high)) and step == int(step)
        starts = [self.low, self.high - step, 0, -step, 10 * step]
        convert = int if whole else float
        inside = [each for each in starts if isfinite(each) and self.low <= each and each + step <= self.high]
        pairs: list[Pair] = [(convert(each), convert(each + step)) for each in inside]
        return distinct_pairs(pairs + [(each, nan) for pair in pairs[:2] for each in pair[:1] if self.nan])


@dataclass(frozen=True)
class Records:
    """Lists of numbers from `low` to `high`, of any length; a neighbour has one number more.

    With `nan`, a record may be NaN.
    """

    low: float = 0.0
    high: float = 1.0
    nan: bool = False
    longest: int = 5

    def __post_init__(self) -> None:
        if not -inf < self.low < self.high < inf or self.longest < 1:
            raise InvalidParameter(
                f"records need finite low < high and longest >= 1; got {self.low}, {self.high} and {self.longest}"
            )

    def neighbours(self) -> list[Pair]:
        """Return pairs from empty lists, from lists of equal numbers, and from lists with both ends in them."""
        ends = [self.low, self.high]
        extras = [*ends, *([type(self.low)(0)] if self.low < 0 < self.high else []), *([nan] if self.nan else [])]
        rests = [[], [self.low], [self.high], [self.low] * self.longest, [self.high] * self.longest, ends]
        rests += [[nan]] if self.nan else []
        return distinct_pairs((rest, [*rest, extra]) for rest in rests for extra in extras)


@dataclass(frozen=True)
class Examples:
    """Datasets that the mechanism takes: lists, arrays or data frames; neighbours differ by one of their records."""

    datasets: Sequence[Any]

    def __post_init__(self) -> None:
        if not isinstance(self.datasets, list | tuple) or not all(hasattr(each, "__len__") for each in self.datasets):
            raise InvalidParameter("examples must be a list of datasets, such as Examples([[1, 2, 3]])")
        if not any(len(each) for each in self.datasets) or any(isinstance(each, str | dict) for each in self.datasets):
            raise InvalidParameter(
                "examples must be lists, arrays or data frames of records, and one must not be empty"
            )

    def neighbours(self) -> list[Pair]:
        """Return pairs without the first or the last record, with the last one twice, and with one record or none."""
        pairs = []
        for data in list(self.datasets)[:MOST_EXAMPLES]:
            places = list(range(len(data)))
            if places:
                changes = [(places[1:], places), (places[:-1], places), (places, [*places, places[-1]]), ([], [0])]
                pairs += [(_select(data, a), _select(data, b)) for a, b in changes]
        return distinct_pairs(pairs)


def neighbours_in(domain: Any) -> list[Pair]:
    """Return pairs of neighbours of a domain: one of this module, columns as in `audit.transformation`, or a set."""
    if isinstance(domain, Mapping):
        domain = ValueDomain(domain)
    if isinstance(domain, set | frozenset | range):
        domain = Choices(sorted(domain, key=repr) if isinstance(domain, set | frozenset) else domain)
    if isinstance(domain, ValueDomain):
        return _row_pairs(domain)
    if isinstance(domain, Vectors):
        return _vector_pairs(domain)
    if isinstance(domain, type) or not isinstance(domain, InputDomain):
        raise InvalidParameter(f"{domain!r} is no domain; {ASK_FOR_DOMAIN}")
    return domain.neighbours()


def _is_collection(values: Any) -> bool:
    return isinstance(values, Collection) and not isinstance(values, str)


def _select(data: Any, places: list[int]) -> Any:
    """Return the records at these places, in the kind of collection that the data is."""
    if hasattr(data, "iloc"):
        return data.iloc[places].reset_index(drop=True)
    if isinstance(data, np.ndarray):
        return data[np.array(places, dtype=np.int64)]
    return type(data)(data[place] for place in places)


def _row_pairs(domain: ValueDomain) -> list[Pair]:
    """Return lists of rows and, for neighbours, one more unit's rows: at every end or value of each column.

    The rest is empty, has the same values as the new unit, or has the first value of every column.
    """
    first = {name: _edges(values)[0] for name, values in domain.columns.items()}
    edges = [{**first, name: value} for name, values in domain.columns.items() for value in _edges(values)]
    pairs: list[Pair] = []
    for row in edges:
        for rest in ([], [row], [first, row]):
            others, extra = [dict(each) for each in rest], [dict(row)] * (domain.rows if domain.unit else 1)
            pairs.append(_with_units(domain, others, extra))
    return distinct_pairs(pairs)


def _with_units(domain: ValueDomain, rest: list[dict[str, Any]], extra: list[dict[str, Any]]) -> Pair:
    """Give the rows of the rest and of the new unit different identifiers, if the domain has any."""
    if domain.unit is not None:
        units = _edges(domain.columns[domain.unit])
        rest = [{**row, domain.unit: units[-1]} for row in rest]
        extra = [{**row, domain.unit: units[0]} for row in extra]
    return rest, rest + extra


def _edges(values: Sequence[Any]) -> list[Any]:
    """Return the ends of a range, with 0 if it is inside, or a list of values as it is."""
    numeric = [each for each in values if isinstance(each, int | float) and not isinstance(each, bool)]
    if len(values) != 2 or len(numeric) != 2 or any(map(isnan, numeric)):
        return list(values)
    low, high = numeric
    return [low, high, *([type(low)(0)] if low < 0 < high else [])]


def _vector_pairs(domain: Vectors) -> list[Pair]:
    """Return lists of equal numbers, or half of them low and half high, with the first or last one replaced."""
    low, high, half = domain.low, domain.high, domain.size // 2
    bases = [[low] * domain.size, [high] * domain.size, [low] * half + [high] * (domain.size - half)]
    pairs = []
    for base in bases:
        for place in (0, domain.size - 1):
            pairs += [(base, [*base[:place], value, *base[place + 1 :]]) for value in (low, (low + high) / 2, high)]
    return distinct_pairs(pairs)
