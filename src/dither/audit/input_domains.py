"""The inputs that a mechanism takes, and the pairs of neighbours in them where mechanisms tend to break.

Every domain yields pairs at its ends, pairs with equal records (ties), empty inputs where there are any, and NaN where
it is an input. It also yields candidates for a sweep, all over the domain: each step of a short range, else small and
round numbers, powers of two and random places. No pair leaves the domain: what a mechanism does with other inputs says
nothing about its claim.
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

# With more values than this, only some pairs of choices are always tried.
MOST_CROSSED_CHOICES = 7
# A sweep tries each step of a range of at most MOST_STEPS; else every step up to SMALL, and RANDOM_PLACES.
MOST_STEPS, SMALL, RANDOM_PLACES = 399, 20, 60
ROUND_NUMBERS = sorted(
    {base * 10**power for base in (1, 2, 5) for power in range(1, 13)} | {2**power for power in range(5, 41)}
)
MOST_EXAMPLES = 8
# A sweep leaves single records out of examples of at most this many.
LARGEST_SWEPT = 2000
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


@runtime_checkable
class SweptDomain(InputDomain, Protocol):
    """The inputs of a mechanism, with candidates for a sweep."""

    def neighbours_throughout(self, rng: np.random.Generator) -> list[Pair]:
        """Return pairs of neighbours all over the domain, those that are likelier to show a fault first."""


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

    def neighbours_throughout(self, rng: np.random.Generator) -> list[Pair]:
        """Return each value with the next, the first with each of the others, and random pairs."""
        values = list(self.values)[: MOST_STEPS + 1]
        places = rng.integers(len(values), size=(RANDOM_PLACES, 2)).tolist()
        others = [(values[0], each) for each in values[1:]]
        return distinct_pairs([*pairwise(values), *others, *((values[one], values[other]) for one, other in places)])


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
        step = self._step
        pairs = self._pairs_from([self.low, self.high - step, 0, -step, 10 * step])
        return distinct_pairs(pairs + [(each, nan) for pair in pairs[:2] for each in pair[:1] if self.nan])

    def neighbours_throughout(self, rng: np.random.Generator) -> list[Pair]:
        """Return each step from the small numbers on, steps to and from round ones, and then all, or random ones."""
        step, origin = self._step, 0 if self.low <= 0 < self.high else self.low if isfinite(self.low) else self.high
        small = [origin + sign * count * step for count in range(SMALL) for sign in (1, -1)]
        near = [start for number in ROUND_NUMBERS for start in (number - step, number, -number - step, -number)]
        length = (self.high - self.low) / step
        if length <= MOST_STEPS:
            places = [self.low + count * step for count in rng.permutation(int(length)).tolist()]
        else:
            places = self._random_starts(rng)
        return distinct_pairs(self._pairs_from([*small, *near, *places]))

    @property
    def _step(self) -> float:
        """The distance of neighbours."""
        return min(self.change, self.high - self.low)

    def _random_starts(self, rng: np.random.Generator) -> list[float]:
        """Return random multiples of the step, uniform and of every size."""
        ends = [max(self.low, -1e12), min(self.high, 1e12)]
        if ends[0] >= ends[1]:
            return []
        uniform = rng.uniform(ends[0], ends[1], size=RANDOM_PLACES // 2)
        spread = np.exp(rng.uniform(0, np.log(1e12), size=RANDOM_PLACES // 2)) * rng.choice([-1, 1])
        return [float(each) for each in np.floor(np.concatenate([uniform, spread]) / self._step) * self._step]

    def _pairs_from(self, starts: Sequence[float]) -> list[Pair]:
        """Return the pairs from these numbers to the next step, as far as they are in the domain."""
        step, ends = self._step, (self.low, self.high)
        whole = all(not isfinite(end) or isinstance(end, int) for end in ends) and step == int(step)
        convert = int if whole else float
        inside = [each for each in starts if isfinite(each) and self.low <= each and each + step <= self.high]
        return [(convert(each), convert(each + step)) for each in inside]


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

    def neighbours_throughout(self, rng: np.random.Generator) -> list[Pair]:
        """Return equal numbers, and random ones, from one record to four times `longest`: counts cross thresholds."""
        most = 4 * self.longest + 1
        chains = ([self.high] * most, [self.low] * most, _random_numbers(self.low, self.high, most, rng))
        return distinct_pairs(pair for chain in chains for pair in _growing(chain))


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

    def neighbours_throughout(self, rng: np.random.Generator) -> list[Pair]:
        """Return the first records, one more each time, and the data without a random record."""
        pairs = []
        for data in list(self.datasets)[:MOST_EXAMPLES]:
            count = len(data)
            pairs += [(_select(data, a), _select(data, b)) for a, b in _growing(list(range(min(count, SMALL + 1))))]
            whole = _select(data, list(range(count)))
            for left_out in rng.permutation(count)[:RANDOM_PLACES].tolist() if count <= LARGEST_SWEPT else ():
                pairs.append((_select(data, [place for place in range(count) if place != left_out]), whole))
        return distinct_pairs(pairs)


def neighbours_in(domain: Any) -> list[Pair]:
    """Return pairs of neighbours of a domain: one of this module, columns as in `audit.transformation`, or a set."""
    domain = _as_domain(domain)
    if isinstance(domain, ValueDomain):
        return _row_pairs(domain)
    if isinstance(domain, Vectors):
        return _vector_pairs(domain)
    if isinstance(domain, type) or not isinstance(domain, InputDomain):
        raise InvalidParameter(f"{domain!r} is no domain; {ASK_FOR_DOMAIN}")
    return domain.neighbours()


def neighbours_throughout(domain: Any, rng: np.random.Generator) -> list[Pair]:
    """Return candidates for a sweep of a domain, all over it; a domain of another kind may have none."""
    domain = _as_domain(domain)
    if isinstance(domain, ValueDomain):
        return _growing_rows(domain)
    if isinstance(domain, Vectors):
        return _vector_pairs_throughout(domain, rng)
    return domain.neighbours_throughout(rng) if isinstance(domain, SweptDomain) else []


def _as_domain(domain: Any) -> Any:
    """Return the domain that columns or a set stand for."""
    if isinstance(domain, Mapping):
        return ValueDomain(domain)
    if isinstance(domain, set | frozenset | range):
        return Choices(sorted(domain, key=repr) if isinstance(domain, set | frozenset) else domain)
    return domain


def _growing(records: list[Any]) -> list[Pair]:
    """Return the first records, and one more of them, for every number of them."""
    starts = [records[:count] for count in range(len(records) + 1)]
    return list(pairwise(starts))


def _random_numbers(low: float, high: float, count: int, rng: np.random.Generator) -> list[float]:
    """Return random whole numbers if both ends are whole, else some of the 1025 that divide the range evenly."""
    shares = rng.integers(1025, size=count).tolist()
    if isinstance(low, int) and isinstance(high, int):
        return [low + (high - low) * share // 1024 for share in shares]
    return [low + (high - low) * (share / 1024) for share in shares]


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


def _growing_rows(domain: ValueDomain) -> list[Pair]:
    """Return equal rows, one more each time, for every end or value of each column; each row is a unit of its own."""
    first = {name: _edges(values)[0] for name, values in domain.columns.items()}
    pairs: list[Pair] = []
    for name, values in domain.columns.items():
        for value in _edges(values):
            rows = [{**first, name: value} for _ in range(SMALL + 1)]
            if domain.unit is not None:
                units = _units(domain.columns[domain.unit], SMALL + 1)
                rows = [{**row, domain.unit: unit} for row, unit in zip(rows, units, strict=False)]
            pairs += _growing(rows)
    return distinct_pairs(pairs)


def _units(values: Sequence[Any], most: int) -> list[Any]:
    """Return distinct identifiers: of a range of integers, the first ones."""
    if len(values) == 2 and all(type(each) is int for each in values):
        return list(range(values[0], min(values[1], values[0] + most - 1) + 1))
    return list(dict.fromkeys(values))[:most]


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
            values = [domain.nearest(base[place], value) for value in (low, (low + high) / 2, high)]
            pairs += [(base, [*base[:place], value, *base[place + 1 :]]) for value in values]
    return distinct_pairs(pairs)


def _vector_pairs_throughout(domain: Vectors, rng: np.random.Generator) -> list[Pair]:
    """Return lists whose first or last number takes the steps that `Numbers` would; the others are random or low."""
    others = _random_numbers(domain.low, domain.high, domain.size, rng)
    change = domain.high - domain.low if domain.change is None else domain.change
    pairs: list[Pair] = []
    for a, b in Numbers(domain.low, domain.high, change).neighbours_throughout(rng):
        for base, place in ((others, 0), ([domain.low] * domain.size, domain.size - 1)):
            pairs.append(([*base[:place], a, *base[place + 1 :]], [*base[:place], b, *base[place + 1 :]]))
    return distinct_pairs(pairs)
