"""One row for each mechanism: parameters, neighbours, and its exact output distribution, written independently.

The distributions use 40 digits. Infinite outputs are cut to a window that is the same for both neighbours;
the rest has a probability below `OUTSIDE`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import chain, combinations, permutations, product
from typing import Any

from mpmath import mp, mpf

from dither.loss import Sensitivity
from dither.privacy.mechanisms import (
    AboveThreshold,
    ColumnGaussian,
    DiscreteGaussian,
    DiscreteLaplace,
    ExponentialMechanism,
    GaussianThreshold,
    Geometric,
    LaplaceThreshold,
    Mechanism,
    NoisyMax,
    NoisyMaxQuantiles,
    PartitionSelection,
    PublicThreshold,
    Quantiles,
    RandomizedResponse,
    Snapping,
    SparseVector,
    Staircase,
    TopK,
)

mp.dps = 40
OUTSIDE = mpf(10) ** -12

Exact = tuple[int, ...]
Distribution = dict[Hashable, Any]  # output -> probability


def real(value: Fraction | int) -> Any:
    """A rational in 40 digits."""
    exact = Fraction(value)
    return mpf(exact.numerator) / exact.denominator


@dataclass(frozen=True)
class Case:
    """A mechanism, inputs that are at most `sensitivity` apart, and the distribution of its output."""

    mechanism: Mechanism
    sensitivity: Sensitivity
    pairs: tuple[tuple[Exact, Exact], ...]
    distribution: Callable[[Any, Exact], Distribution]
    tight: float = 0.0  # some pair reaches at least this part of the stated pure loss or rho

    @property
    def id(self) -> str:
        return f"{self.mechanism.name}-{'-'.join(str(value) for value in self.mechanism.__dict__.values())}"

    def distributions(self) -> dict[Exact, Distribution]:
        """The distribution for each input."""
        return {exact: self._distribution(exact) for pair in self.pairs for exact in pair}

    @lru_cache(maxsize=None)  # noqa: B019, UP033
    def _distribution(self, exact: Exact) -> Distribution:
        return self.distribution(self.mechanism, exact)

    def both_ways(self) -> Iterator[tuple[Exact, Exact]]:
        """Every pair, in both directions."""
        for one, other in self.pairs:
            yield one, other
            yield other, one


def moved(sensitivity: Sensitivity, start: Exact) -> tuple[tuple[Exact, Exact], ...]:
    """All integer vectors within the sensitivity of `start`, paired with it."""
    reach = range(-int(sensitivity.linf), int(sensitivity.linf) + 1)
    found = []
    for change in product(reach, repeat=len(start)):
        sizes = [abs(step) for step in change if step]
        fits = len(sizes) <= sensitivity.l0 and sum(sizes) <= sensitivity.l1
        if sizes and fits and sum(size**2 for size in sizes) <= sensitivity.l2_squared:
            found.append((start, tuple(value + step for value, step in zip(start, change, strict=True))))
    return tuple(found)


# --- Distributions of single draws ------------------------------------------------------------------------------------


@lru_cache
def laplace_mass(scale: Fraction, k: int) -> Any:
    r = mp.exp(-1 / real(scale))
    return (1 - r) / (1 + r) * r ** abs(k)


@lru_cache
def laplace_reaches(scale: Fraction, k: int) -> Any:
    """P(noise >= k)."""
    r = mp.exp(-1 / real(scale))
    return r**k / (1 + r) if k > 0 else 1 - r ** (1 - k) / (1 + r)


@lru_cache
def gaussian_mass(variance: Fraction, k: int) -> Any:
    """The sum stops at 60: for the variances used here the rest is below the 40 digits."""
    total = mp.fsum(mp.exp(-(mpf(j) ** 2) / (2 * real(variance))) for j in range(-60, 61))
    return mp.exp(-(mpf(k) ** 2) / (2 * real(variance))) / total


def gaussian_reaches(variance: Fraction, k: int) -> Any:
    return mp.fsum(gaussian_mass(variance, j) for j in range(k, 61))


def staircase_weight(mechanism: Staircase, k: int) -> Any:
    steps = math.ceil(Fraction(abs(k) + 1 - mechanism.rise, mechanism.width))
    return mp.exp(-real(mechanism.epsilon) * steps)


def continuous_laplace_below(scale: Fraction, x: Fraction) -> Any:
    y = real(x) / real(scale)
    return mp.exp(y) / 2 if y < 0 else 1 - mp.exp(-y) / 2


# --- Distributions of outputs -----------------------------------------------------------------------------------------


def added(mass: Callable[[Any, int], Any], reach: int) -> Callable[[Any, Exact], Distribution]:
    """Independent noise on each cell; the window is around the origin, so the inputs must be small."""

    def distribution(mechanism: Any, exact: Exact) -> Distribution:
        cells = [{y: mass(mechanism, y - x) for y in range(-reach, reach + 1)} for x in exact]
        if len(exact) == 1:
            return {(y,): p for y, p in cells[0].items()}
        one, two = cells
        return {(y, z): p * q for y, p in one.items() for z, q in two.items()}

    return distribution


def laplace_distribution(reach: int) -> Callable[[Any, Exact], Distribution]:
    return added(lambda mechanism, k: laplace_mass(mechanism.scale, k), reach)


def gaussian_distribution(reach: int) -> Callable[[Any, Exact], Distribution]:
    return added(lambda mechanism, k: gaussian_mass(mechanism.variance, k), reach)


def column_distribution(reach: int) -> Callable[[Any, Exact], Distribution]:
    """Two columns, each with its own variance."""

    def distribution(mechanism: ColumnGaussian, exact: Exact) -> Distribution:
        pairs = zip(mechanism.variances, exact, strict=True)
        columns = [gaussian_distribution(reach)(DiscreteGaussian(v), (x,)) for v, x in pairs]
        return {(*one, *two): p * q for one, p in columns[0].items() for two, q in columns[1].items()}  # type: ignore[misc]

    return distribution


def staircase_distribution(reach: int) -> Callable[[Any, Exact], Distribution]:
    def mass(mechanism: Staircase, k: int) -> Any:
        far = mp.exp(-real(mechanism.epsilon))
        return staircase_weight(mechanism, k) / (2 * mechanism.rise - 1 + 2 * mechanism.width * far / (1 - far))

    return added(mass, reach)


def clamped_geometric_distribution(mechanism: Geometric, exact: Exact) -> Distribution:
    (x,) = exact
    distribution: Distribution = {
        (y,): laplace_mass(mechanism.scale, y - x) for y in range(mechanism.lower + 1, mechanism.upper)
    }
    distribution[mechanism.lower,] = laplace_reaches(mechanism.scale, x - mechanism.lower)
    distribution[mechanism.upper,] = laplace_reaches(mechanism.scale, mechanism.upper - x)
    return distribution


def snapping_distribution(mechanism: Snapping, exact: Exact) -> Distribution:
    """Mironov's mechanism on the real line: round to the grid after continuous noise, clamp before and after."""
    (x,) = exact
    grid = 2
    while grid < mechanism.scale:
        grid *= 2
    held = max(-mechanism.bound, min(mechanism.bound, x))
    distribution: Distribution = {}
    steps = -(-mechanism.bound // grid) + 1
    for step in range(-steps, steps + 1):
        low = (
            mpf(0)
            if step == -steps
            else continuous_laplace_below(mechanism.scale, Fraction(2 * step - 1, 2) * grid - held)
        )
        high = (
            mpf(1)
            if step == steps
            else continuous_laplace_below(mechanism.scale, Fraction(2 * step + 1, 2) * grid - held)
        )
        output = (max(-mechanism.bound, min(mechanism.bound, step * grid)),)
        distribution[output] = distribution.get(output, mpf(0)) + high - low
    return distribution


def noisy_max_distribution(mechanism: NoisyMax, exact: Exact) -> Distribution:
    return {(i,): p for i, p in enumerate(permute_and_flip([x / real(mechanism.scale) for x in exact]))}


def permute_and_flip(scores: list[Any]) -> list[Any]:
    """In a random order, the first whose coin shows heads: heads of its own, and one over 1 + the heads of others."""
    heads = [mp.exp(score - max(scores)) for score in scores]
    found: dict[Any, Any] = {}
    for i, own in enumerate(heads):
        if own not in found:
            chances = heads_distribution(heads[:i] + heads[i + 1 :])
            found[own] = own * mp.fsum(p / (1 + k) for k, p in enumerate(chances))
    return [found[own] for own in heads]


def heads_distribution(chances: list[Any]) -> list[Any]:
    """The probability of each number of heads among independent coins."""
    found = [mpf(1)]
    for p in chances:
        found = [a * (1 - p) + b * p for a, b in zip([*found, mpf(0)], [mpf(0), *found], strict=True)]
    return found


def softmax(scores: list[Any]) -> list[Any]:
    weights = [mp.exp(score - max(scores)) for score in scores]
    return [weight / mp.fsum(weights) for weight in weights]


def exponential_distribution(mechanism: ExponentialMechanism, exact: Exact) -> Distribution:
    return {(i,): p for i, p in enumerate(softmax([x / real(mechanism.scale) for x in exact]))}


def top_k_distribution(mechanism: TopK, exact: Exact) -> Distribution:
    distribution: Distribution = {}
    for order in permutations(range(len(exact)), mechanism.count):
        left, p = list(range(len(exact))), mpf(1)
        for i in order:
            p *= softmax([exact[j] / real(mechanism.scale) for j in left])[left.index(i)]
            left.remove(i)
        distribution[order] = p
    return distribution


def above_threshold_distribution(mechanism: Any, exact: Exact) -> Distribution:
    """For every bar, the chance of exactly these crossings; after the last one that counts, anything."""
    distribution: Distribution = {}
    bars = range(-90, 91)
    weights = [laplace_mass(mechanism.threshold_scale, bar) for bar in bars]
    up = [[laplace_reaches(mechanism.score_scale, mechanism.threshold + bar - x) for x in exact] for bar in bars]
    for size in range(mechanism.count + 1):
        for places in combinations(range(len(exact)), size):
            end = places[-1] + 1 if size == mechanism.count else len(exact)
            output = places + (-1,) * (mechanism.count - size)
            distribution[output] = mp.fsum(
                weight * mp.fprod(row[i] if i in places else 1 - row[i] for i in range(end))
                for weight, row in zip(weights, up, strict=True)
            )
    return distribution


def sparse_vector_distribution(mechanism: SparseVector, exact: Exact) -> Distribution:
    distribution: Distribution = {}
    window = range(-60, 66)
    for places, p in above_threshold_distribution(mechanism, exact).items():
        found = [i for i in places if i >= 0]
        for answers in product(window, repeat=len(found)):
            q = mp.fprod(
                laplace_mass(mechanism.answer_scale, y - exact[i]) for i, y in zip(found, answers, strict=True)
            )
            distribution[(*places, *answers, *((0,) * (mechanism.count - len(found))))] = p * q
    return distribution


def quantiles_distribution(mechanism: Quantiles | NoisyMaxQuantiles, exact: Exact) -> Distribution:
    """By rows, one at a time: lists of grid places, counted on each side; every way that the choices can fall."""

    chances = softmax if isinstance(mechanism, Quantiles) else permute_and_flip

    def outcomes(
        rows: list[int], first: int, last: int, wanted: list[Fraction], low: Fraction, high: Fraction
    ) -> Distribution:
        if not wanted:
            return {(): mpf(1)}
        middle = len(wanted) // 2
        q = (wanted[middle] - low) / (high - low)
        candidates = range(first, last + 1)
        distribution: Distribution = {}
        for v, p in zip(
            candidates, chances([score(rows, v, q) / real(mechanism.scale) for v in candidates]), strict=True
        ):
            ties = [row for row in rows if row == v]
            share = int(q * len(ties))
            left = [row for row in rows if row < v] + ties[:share]
            right = [row for row in rows if row > v] + ties[share:]
            lefts = outcomes(left, first, v, wanted[:middle], low, wanted[middle])
            rights = outcomes(right, v, last, wanted[middle + 1 :], wanted[middle], high)
            for (a, pa), (b, pb) in product(lefts.items(), rights.items()):
                key = (*a, v, *b)
                distribution[key] = distribution.get(key, mpf(0)) + p * pa * pb
        return distribution

    def score(rows: list[int], v: int, q: Fraction) -> Any:
        """Minus the distance of q n from the middles of the ranks that v covers, or from the gap that it lies in."""
        lowest, highest = sum(row < v for row in rows), sum(row <= v for row in rows)
        first, last = (lowest, lowest) if v not in rows else (lowest + Fraction(1, 2), highest - Fraction(1, 2))
        return -real(max(Fraction(0), first - q * len(rows), q * len(rows) - last))

    rows = list(chain.from_iterable([place] * count for place, count in enumerate(exact)))
    return outcomes(rows, 0, len(exact) - 1, list(mechanism.quantiles), Fraction(0), Fraction(1))


def kept(chances: list[Any]) -> Distribution:
    """The distribution of the set of groups that are named, each on its own."""
    distribution: Distribution = {}
    for named in product((False, True), repeat=len(chances)):
        output = tuple(i for i, is_named in enumerate(named) if is_named)
        distribution[output] = mp.fprod(p if is_named else 1 - p for p, is_named in zip(chances, named, strict=True))
    return distribution


def optimal_chance(epsilon: Fraction, delta: Fraction, units: int) -> Any:
    """The recursion of Desfontaines, Voss and Gipson, in 40 digits."""
    e, d, p = mp.exp(real(epsilon)), real(delta), mpf(0)
    for _ in range(units):
        p = min(e * p + d, 1 - (1 - p - d) / e, mpf(1))
    return p


def partition_distribution(mechanism: PartitionSelection, exact: Exact) -> Distribution:
    return kept([optimal_chance(mechanism.epsilon, mechanism.delta, units) for units in exact])


def laplace_threshold_distribution(mechanism: LaplaceThreshold, exact: Exact) -> Distribution:
    return kept([laplace_reaches(mechanism.scale, mechanism.threshold - x) if x > 0 else mpf(0) for x in exact])


def gaussian_threshold_distribution(mechanism: GaussianThreshold, exact: Exact) -> Distribution:
    return kept([gaussian_reaches(mechanism.variance, mechanism.threshold - x) if x > 0 else mpf(0) for x in exact])


def public_threshold_distribution(mechanism: PublicThreshold, exact: Exact) -> Distribution:
    return kept([laplace_reaches(mechanism.scale, mechanism.threshold - x) for x in exact])


def response_distribution(mechanism: RandomizedResponse, exact: Exact) -> Distribution:
    lie = real(mechanism.flip_probability) / mechanism.categories
    cells = [
        {c: lie + (1 - real(mechanism.flip_probability) if c == x else 0) for c in range(mechanism.categories)}
        for x in exact
    ]
    return {output: mp.fprod(cell[y] for cell, y in zip(cells, output, strict=True)) for output in product(*cells)}


# --- The rows -------------------------------------------------------------------------------------------------------


def row(
    mechanism: Mechanism,
    l0: int,
    linf: int,
    start: Exact,
    distribution: Callable[[Any, Exact], Distribution],
    tight: float = 0.0,
) -> Case:
    sensitivity = Sensitivity.of(l0=l0, linf=linf)
    return Case(mechanism, sensitivity, moved(sensitivity, start), distribution, tight)


def counts(
    mechanism: Mechanism,
    l0: int,
    linf: int,
    start: Exact,
    distribution: Callable[[Any, Exact], Distribution],
    tight: float = 0.0,
) -> Case:
    """As `row`, with inputs that are never negative, and inside the categories where there are any."""
    case = row(mechanism, l0, linf, start, distribution, tight)
    most = getattr(mechanism, "categories", 100) - 1
    pairs = tuple(pair for pair in case.pairs if min(pair[1]) >= 0 and max(pair[1]) <= most)
    return Case(mechanism, case.sensitivity, pairs, distribution, tight)


def pair(
    mechanism: Mechanism, one: Exact, other: Exact, distribution: Callable[[Any, Exact], Distribution], tight: float
) -> Case:
    """A single pair that comes near the stated loss, at just its own distance."""
    steps = [abs(x - y) for x, y in zip(one, other, strict=True)]
    size = Sensitivity.of(l0=sum(step > 0 for step in steps), linf=max(steps))
    return Case(mechanism, size, ((one, other),), distribution, tight)


half, third = Fraction(1, 2), Fraction(1, 3)

CASES = [
    row(DiscreteLaplace(half), 1, 1, (0,), laplace_distribution(60), 1.0),
    row(DiscreteLaplace(Fraction(7, 3)), 1, 3, (0,), laplace_distribution(120), 1.0),
    row(DiscreteLaplace(Fraction(2, 3)), 2, 2, (1, 0), laplace_distribution(22), 1.0),
    row(DiscreteGaussian(Fraction(2)), 1, 1, (0,), gaussian_distribution(40), 0.999),
    row(DiscreteGaussian(Fraction(9, 4)), 2, 2, (0, 1), gaussian_distribution(15), 0.99),
    row(DiscreteGaussian(Fraction(1, 5)), 1, 2, (0,), gaussian_distribution(10), 0.99),
    row(ColumnGaussian((Fraction(9, 4), Fraction(1))), 1, 2, (0, 1), column_distribution(15), 0.99),
    row(ColumnGaussian((Fraction(2), Fraction(3))), 1, 1, (0, 1), column_distribution(20), 0.99),
    row(Geometric(Fraction(2)), 1, 2, (0,), laplace_distribution(100), 1.0),
    row(Geometric(Fraction(2), lower=-3, upper=4), 1, 1, (3,), clamped_geometric_distribution, 1.0),
    row(Staircase(Fraction(1), 3, 1), 1, 3, (0,), staircase_distribution(120), 1.0),
    row(Staircase(half, 4, 2), 1, 9, (0,), staircase_distribution(300), 1.0),
    row(Staircase(Fraction(3), 2, 2), 2, 2, (0, 0), staircase_distribution(24), 1.0),
    row(Staircase(Fraction(1), 1, 1), 1, 2, (0,), staircase_distribution(60), 1.0),
    row(Snapping(Fraction(5, 2), 24), 1, 2, (3,), snapping_distribution, 0.999),
    row(Snapping(Fraction(3, 4), 7), 1, 1, (-7,), snapping_distribution, 0.999),
    row(NoisyMax(Fraction(2)), 3, 1, (2, 0, 1), noisy_max_distribution, 0.999),
    row(NoisyMax(Fraction(2)), 2, 1, (9, 0), noisy_max_distribution, 0.999),
    row(NoisyMax(third), 1, 1, (0, 0, 3), noisy_max_distribution, 0.999),
    row(ExponentialMechanism(Fraction(2)), 3, 1, (2, 0, 1), exponential_distribution, 0.8),
    row(ExponentialMechanism(Fraction(2)), 2, 1, (12, 0), exponential_distribution, 0.99),
    row(ExponentialMechanism(Fraction(3)), 1, 2, (0, 5), exponential_distribution, 0.8),
    row(TopK(2, Fraction(2)), 3, 1, (1, 0, 1), top_k_distribution, 0.6),
    row(TopK(2, Fraction(3)), 4, 1, (0, 2, 2, 20), top_k_distribution, 0.99),
    row(AboveThreshold(3, 1, Fraction(2), Fraction(3)), 3, 1, (2, 0, 3), above_threshold_distribution, 0.5),
    pair(
        AboveThreshold(0, 1, Fraction(2), Fraction(3)),
        (9,) * 6 + (-5,),
        (10,) * 6 + (-6,),
        above_threshold_distribution,
        0.98,
    ),
    pair(
        AboveThreshold(0, 2, Fraction(2), Fraction(3)),
        (9,) * 6 + (-5,) * 2,
        (10,) * 6 + (-6,) * 2,
        above_threshold_distribution,
        0.98,
    ),
    pair(AboveThreshold(0, 2, Fraction(3), Fraction(1)), (9, -2, -2), (10, -2, -2), above_threshold_distribution, 0.98),
    row(SparseVector(3, 1, Fraction(2), Fraction(3), Fraction(2)), 2, 1, (2, 4), sparse_vector_distribution, 0.5),
    pair(
        SparseVector(0, 1, Fraction(2), Fraction(3), Fraction(2)),
        (9,) * 6 + (-5,),
        (10,) * 6 + (-6,),
        sparse_vector_distribution,
        0.98,
    ),
    pair(
        Quantiles((half,), Fraction(5)),
        (0, 0, 2) + (0,) * 300 + (1,),
        (1, 0, 2) + (0,) * 300 + (1,),
        quantiles_distribution,
        0.95,
    ),
    counts(Quantiles((half,), Fraction(2)), 1, 1, (1, 0, 2, 0, 1), quantiles_distribution, 0.6),
    counts(Quantiles((third,), Fraction(2)), 2, 1, (2, 0, 1, 1), quantiles_distribution, 0.4),
    counts(
        Quantiles((Fraction(1, 4), half, Fraction(3, 4)), Fraction(2)), 2, 1, (1, 2, 0, 1), quantiles_distribution, 0.4
    ),
    counts(Quantiles((Fraction(1, 10), Fraction(9, 10)), Fraction(3)), 1, 2, (1, 0, 1), quantiles_distribution),
    counts(NoisyMaxQuantiles((half,), Fraction(2)), 1, 1, (1, 0, 2, 0, 1), quantiles_distribution, 0.69),
    pair(
        NoisyMaxQuantiles((half,), Fraction(5)),
        (0, 0, 2) + (0,) * 300 + (1,),
        (1, 0, 2) + (0,) * 300 + (1,),
        quantiles_distribution,
        0.9,
    ),
    counts(NoisyMaxQuantiles((third,), Fraction(2)), 2, 1, (2, 0, 1, 1), quantiles_distribution, 0.4),
    counts(
        NoisyMaxQuantiles((Fraction(1, 4), half, Fraction(3, 4)), Fraction(2)),
        2,
        1,
        (1, 2, 0, 1),
        quantiles_distribution,
        0.58,
    ),
    counts(PartitionSelection(Fraction(1), Fraction(1, 100)), 1, 1, (0, 4), partition_distribution),
    counts(PartitionSelection(half, Fraction(1, 1000)), 3, 1, (0, 3, 17), partition_distribution),
    counts(LaplaceThreshold(Fraction(2), 9), 2, 1, (0, 3), laplace_threshold_distribution),
    counts(LaplaceThreshold(Fraction(3), 14), 1, 2, (0, 1), laplace_threshold_distribution),
    counts(GaussianThreshold(Fraction(4), 8), 2, 1, (0, 3), gaussian_threshold_distribution),
    counts(GaussianThreshold(Fraction(1, 4), 4), 1, 2, (0, 2), gaussian_threshold_distribution),
    row(PublicThreshold(Fraction(2), 4), 2, 1, (0, 3), public_threshold_distribution, 0.8),
    counts(RandomizedResponse(2, third), 1, 1, (1, 0), response_distribution, 0.999),
    counts(RandomizedResponse(3, half), 2, 2, (0, 2), response_distribution, 0.999),
]
