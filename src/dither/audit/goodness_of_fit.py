"""Test whether a sampler follows its distribution: several tests of one sample, with one false-alarm rate for all.

The distribution function turns every draw into a uniform number (for a discrete distribution, one spread uniformly over
the step), so that the statistic of each test has a known distribution under the null hypothesis.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from math import exp, inf, sqrt
from typing import Any

import numpy as np
from scipy import special, stats

from dither.audit.arguments import check_alpha, check_count, seeded_generator
from dither.audit.claim_syntax import json_number
from dither.audit.claims import Floats
from dither.audit.sampling import mechanism_failure
from dither.errors import InvalidParameter
from dither.privacy.mechanisms.distributions import NoiseDistribution

SMALLEST_EXPECTED = 10.0
MOST_BINS = 400
TAILS = (1e-2, 1e-3, 1e-4)
LAGS = (1, 2, 3, 7)
LOW_BITS = 4
FAR_TAIL = 2.0**-12  # a double below this has bits far beyond the 53rd binary place
GRID = 2.0**53  # inversion samplers draw uniform numbers that are multiples of 1 / GRID
SECTORS = 8  # equal parts of the interval between two such multiples
SHARP_SPACING = 2.0**-5  # the largest gap between neighbouring floats that is tested, in units of 1 / GRID
MOST_SPAN = 30_000_000  # integers in a table of masses
SUM_TOLERANCE = 1e-13  # rounding error of a sum of masses


@dataclass(frozen=True)
class FitTest:
    """One test: its statistic and its p-value."""

    name: str
    statistic: float
    p_value: float


@dataclass(frozen=True)
class FitResult:
    """The tests of one sample; a correct sampler is refuted with probability at most `alpha`."""

    draws: int
    alpha: float
    tests: tuple[FitTest, ...]

    @property
    def worst(self) -> FitTest:
        """The test with the smallest p-value."""
        return min(self.tests, key=lambda each: each.p_value)

    @property
    def p_value(self) -> float:
        """The p-value of all tests together, by Bonferroni's correction."""
        return min(1.0, self.worst.p_value * len(self.tests))

    @property
    def refuted(self) -> bool:
        """True if the tests show that the draws do not follow the distribution."""
        return self.p_value <= self.alpha

    def __getitem__(self, name: str) -> FitTest:
        return next(each for each in self.tests if each.name == name)

    def __str__(self) -> str:
        head = "REFUTED" if self.refuted else "not refuted"
        worst = f"{self.worst.name} = {self.worst.statistic:.6g} (p = {self.worst.p_value:.3g})"
        return f"{head}: {self.draws} draws, {len(self.tests)} tests, family p = {self.p_value:.3g}; worst {worst}"

    def report(self) -> str:
        """Return the result as JSON."""
        tests = [{**asdict(each), "statistic": json_number(each.statistic)} for each in self.tests]
        return json.dumps({**asdict(self), "tests": tests, "refuted": self.refuted, "p_value": self.p_value}, indent=2)


def fit(
    sampler: Callable[[int], Any],
    distribution: Any,
    *,
    draws: int = 1_000_000,
    alpha: float = 1e-6,
    seed: int | None = None,
) -> FitResult:
    """Test `sampler(size)` against a distribution.

    The distribution is one of `privacy.mechanisms.distributions`, a frozen one of scipy, or a mass function
    `f(integers) -> probabilities` of a discrete one. The seed only serves to spread discrete draws over their steps.
    """
    check_count("draws", draws, 1000)
    check_alpha(alpha)
    rng = seeded_generator(seed)
    if not (hasattr(distribution, "cdf") or isinstance(distribution, NoiseDistribution) or callable(distribution)):
        raise InvalidParameter(
            "the distribution must be one of dither.privacy.mechanisms.distributions, a frozen one of scipy, or a mass "
            f"function f(integers) -> probabilities; got {type(distribution).__name__}"
        )
    values = _draw(sampler, draws)
    if values.shape != (draws,):
        raise InvalidParameter(f"the sampler must return {draws} draws, got an array of shape {values.shape}")
    if impossible := _impossible_draws(values, distribution, alpha):
        return FitResult(draws, alpha, (impossible,))
    below, mass = _cdf_below_and_mass(distribution, values)
    spread = rng.random(draws)
    uniform = np.clip(below + mass * spread, 2.0**-60, 1 - 2.0**-53)
    if mass.any():
        return FitResult(draws, alpha, (*_uniformity_tests(uniform), chi_squared(values, distribution)))
    tests = [*_uniformity_tests(uniform), _equal_cells_test(uniform)]
    if values.dtype == np.float64:
        tests += [*_float_hole_tests(values), *_inverse_cdf_hole_tests(values, distribution)]
    return FitResult(draws, alpha, tuple(tests))


def _draw(sampler: Callable[[int], Any], draws: int) -> Any:
    try:
        return np.asarray(sampler(draws))
    except Exception as error:
        raise mechanism_failure(error, draws) from error


def _impossible_draws(values: Any, distribution: Any, alpha: float) -> FitTest | None:
    """Return a failed test for draws that are NaN, or too far out for a table of masses; None if there are none."""
    if values.dtype.kind == "f" and np.isnan(values).any():
        return FitTest("NaN draws", float(np.isnan(values).sum()), 0.0)
    if values.dtype.kind not in "iu" or int(values.max()) - int(values.min()) < MOST_SPAN:
        return None
    middle = int(np.median(values))
    points = np.arange(middle - MOST_SPAN // 20, middle + MOST_SPAN // 20 + 1)
    far = int(np.sum((values < points[0]) | (values > points[-1])))
    expected = max(0.0, 1.0 - float(np.sum(_masses(distribution, points)))) + SUM_TOLERANCE
    p_value = float(special.bdtrc(far - 1, len(values), expected))
    if p_value > alpha:
        raise InvalidParameter(
            f"the draws span more than {MOST_SPAN} integers, too many for a table of masses; test a smaller scale"
        )
    return FitTest("draws far out", float(far), p_value)


def _uniformity_tests(uniform: Floats) -> Iterator[FitTest]:
    yield anderson_darling(uniform)
    yield kolmogorov_smirnov(uniform)
    yield from _moment_tests(uniform)
    yield from _tail_tests(uniform)
    yield from _serial_tests(uniform)


# ---- distribution functions ----------------------------------------------------------------------------------------


def _cdf_below_and_mass(distribution: Any, values: Any) -> tuple[Floats, Floats]:
    """Return P(X < value) and P(X = value) for each value."""
    if hasattr(distribution, "cdf"):
        if hasattr(distribution, "pmf"):
            mass = np.asarray(distribution.pmf(values))
            return np.asarray(distribution.cdf(values)) - mass, mass
        return np.asarray(distribution.cdf(values)), np.zeros(len(values))
    points, masses = _support_and_masses(distribution, values)
    before = np.concatenate([[0.0], np.cumsum(masses)])
    outside = max(0.0, 1.0 - before[-1]) / 2  # the mass beyond all draws, half of it on each side
    place = values.astype(np.int64) - points[0]
    return before[place] + outside, masses[place]


def _support_and_masses(distribution: Any, values: Any) -> tuple[Any, Floats]:
    """Return the integers from the smallest to the largest value, and the probability of each."""
    if values.dtype.kind not in "iu":
        raise InvalidParameter(
            "a discrete distribution needs integer draws; for floats pass a distribution of scipy, such as "
            "scipy.stats.laplace(0, 5)"
        )
    points = np.arange(int(values.min()), int(values.max()) + 1)
    return points, _masses(distribution, points)


def _masses(distribution: Any, points: Any) -> Floats:
    """Return the probability of each of these integers."""
    if hasattr(distribution, "cdf"):
        masses = (
            distribution.pmf(points)
            if hasattr(distribution, "pmf")
            else distribution.cdf(points + 0.5) - distribution.cdf(points - 0.5)
        )
    else:
        masses = distribution.mass(points) if isinstance(distribution, NoiseDistribution) else distribution(points)
    return np.asarray(masses, float)


# ---- tests ---------------------------------------------------------------------------------------------------------


def anderson_darling(uniform: Floats) -> FitTest:
    """Test uniform numbers by Anderson and Darling's statistic, whose 99% point is 3.878125."""
    ordered = np.sort(uniform)
    count = len(ordered)
    odd = 2 * np.arange(1, count + 1) - 1
    statistic = -count - float(np.sum(odd * (np.log(ordered) + np.log1p(-ordered[::-1])))) / count
    return FitTest("Anderson-Darling", statistic, anderson_darling_p(statistic, count))


def anderson_darling_p(statistic: float, count: int) -> float:
    """Return P(A^2 > statistic), after Marsaglia and Marsaglia (2004); the far tail by its first eigenvalue."""
    if statistic > 8:
        return float(sqrt(3) * special.chdtrc(1, 2 * statistic))
    limit = _limiting_cdf(statistic)
    return float(min(1.0, max(0.0, 1 - limit - _finite_sample_correction(count, limit))))


def _limiting_cdf(z: float) -> float:
    """Return the distribution function of A^2 for infinitely many draws."""
    if z <= 0:
        return 0.0
    if z < 2:
        series = 2.00012 + (0.247105 - (0.0649821 - (0.0347962 - (0.0116720 - 0.00168691 * z) * z) * z) * z) * z
        return exp(-1.2337141 / z) / sqrt(z) * series
    series = 1.0776 - (2.30695 - (0.43424 - (0.082433 - (0.008056 - 0.0003146 * z) * z) * z) * z) * z
    return exp(-exp(series))


def _finite_sample_correction(count: int, x: float) -> float:
    """Return the correction of the limiting distribution function for a finite number of draws."""
    if x > 0.8:
        series = 745.2337 - (1705.091 - (1950.646 - (1116.360 - 255.7844 * x) * x) * x) * x
        return (-130.2137 + series * x) / count
    cut = 0.01265 + 0.1757 / count
    if x < cut:
        t = x / cut
        return sqrt(t) * (1 - t) * (49 * t - 102) * (0.0037 / count**2 + 0.00078 / count + 0.00006) / count
    t = (x - cut) / (0.8 - cut)
    series = -0.00022633 + (6.54034 - (14.6538 - (14.458 - (8.259 - 1.91864 * t) * t) * t) * t) * t
    return series * (0.04213 + 0.01365 / count) / count


def kolmogorov_smirnov(uniform: Floats) -> FitTest:
    """Test by the largest distance between the two distribution functions."""
    ordered, count = np.sort(uniform), len(uniform)
    steps = np.arange(count + 1) / count
    distance = float(max(np.max(steps[1:] - ordered), np.max(ordered - steps[:-1])))
    return FitTest("Kolmogorov-Smirnov", distance, float(min(1.0, stats.kstwo.sf(distance, count))))


def chi_squared(values: Any, distribution: Any) -> FitTest:
    """Test the counts of integers in bins of at least ten expected draws; the outermost bins are open."""
    points = np.arange(int(values.min()) - 1, int(values.max()) + 2)
    below, mass = (
        _cdf_below_and_mass(distribution, points)
        if hasattr(distribution, "cdf")
        else (None, _support_and_masses(distribution, points)[1])
    )
    seen = np.bincount((values - points[0]).astype(np.int64), minlength=len(points)).astype(float)
    expected = np.asarray(mass, float) * len(values)
    missing = len(values) - expected.sum()
    expected[0] += missing / 2 if below is None else max(0.0, float(below[0])) * len(values)
    expected[-1] += len(values) - expected.sum()
    return _pearson_test("chi-squared", *_merge_bins(seen, np.maximum(expected, 0)))


def _equal_cells_test(uniform: Floats) -> FitTest:
    cells = min(MOST_BINS, max(10, int(len(uniform) ** 0.4)))
    seen = np.bincount((uniform * cells).astype(np.int64), minlength=cells).astype(float)
    return _pearson_test("chi-squared", seen, np.full(cells, len(uniform) / cells))


def _merge_bins(seen: Floats, expected: Floats) -> tuple[Floats, Floats]:
    """Merge neighbouring bins until each expects enough draws."""
    goal = max(SMALLEST_EXPECTED, expected.sum() / MOST_BINS)
    group = np.minimum((np.cumsum(expected) - expected / 2) // goal, expected.sum() // goal - 1).astype(np.int64)
    _, group = np.unique(np.maximum(group, 0), return_inverse=True)
    return np.asarray(np.bincount(group, seen), float), np.asarray(np.bincount(group, expected), float)


def _pearson_test(name: str, seen: Floats, expected: Floats) -> FitTest:
    if np.any((expected <= 0) & (seen > 0)):
        return FitTest(name, inf, 0.0)
    possible = expected > 0
    statistic = float(np.sum((seen[possible] - expected[possible]) ** 2 / expected[possible]))
    return FitTest(name, statistic, float(special.chdtrc(max(1, int(possible.sum()) - 1), statistic)))


def _moment_tests(uniform: Floats) -> Iterator[FitTest]:
    """Test for shifts, wrong scales, skews and heavy tails by the means of Legendre polynomials.

    Each statistic is standard normal under the null hypothesis.
    """
    centred = 2 * uniform - 1
    for degree in (1, 2, 3, 4):
        score = special.eval_legendre(degree, centred) * sqrt(2 * degree + 1)
        z = float(score.mean() * sqrt(len(score)))
        yield FitTest(f"moment {degree}", z, float(2 * special.ndtr(-abs(z))))


def _tail_tests(uniform: Floats) -> Iterator[FitTest]:
    """Test the number of draws in each tail."""
    for share in TAILS:
        for name, count in (("lower", np.sum(uniform < share)), ("upper", np.sum(uniform >= 1 - share))):
            yield FitTest(f"{name} tail {share:g}", float(count), _binomial_p(int(count), len(uniform), share))


def _binomial_p(count: int, runs: int, share: float) -> float:
    at_most = special.bdtr(count, runs, share)
    at_least = special.bdtrc(count - 1, runs, share) if count else 1.0
    return float(min(1.0, 2 * min(at_most, at_least)))


def _serial_tests(uniform: Floats) -> Iterator[FitTest]:
    """Test the correlation with later draws, of the numbers and of their distance from the middle."""
    for lag in LAGS:
        for degree in (1, 2):
            score = special.eval_legendre(degree, 2 * uniform - 1) * sqrt(2 * degree + 1)
            z = float(np.sum(score[:-lag] * score[lag:]) / sqrt(len(score) - lag))
            yield FitTest(f"serial {lag}, degree {degree}", z, float(2 * special.ndtr(-abs(z))))


def _float_hole_tests(values: Any) -> Iterator[FitTest]:
    """Test for holes among the floats: of rounded real numbers, the last bits are uniform and few values repeat."""
    last = (values.view(np.uint64) & np.uint64((1 << LOW_BITS) - 1)).astype(np.int64)
    cells = 1 << LOW_BITS
    seen = np.bincount(last, minlength=cells).astype(np.float64)
    yield _pearson_test("last digits", seen, np.full(cells, len(last) / cells))
    repeats = len(values) - len(np.unique(values))
    expected = _likely_repeats(values)
    yield FitTest("repeated floats", float(repeats), float(special.pdtrc(repeats - 1, expected)) if repeats else 1.0)


def _likely_repeats(values: Any) -> float:
    """Return twice the expected number of repeated values among rounded real numbers.

    In each of 64 parts with equally many draws, it is the number of pairs divided by the number of floats.
    """
    edges = np.sort(values)[np.linspace(0, len(values) - 1, 65).astype(np.int64)]
    width, size = np.diff(edges), np.maximum(np.abs(edges[1:]), np.abs(edges[:-1]))
    floats = np.where(width > 0, width / np.spacing(size), np.inf)
    return len(values) ** 2 / 2.0**50 + float(np.sum((len(values) / 64) ** 2 / floats))


def _inverse_cdf_hole_tests(values: Any, distribution: Any) -> Iterator[FitTest]:
    """Test for holes that inversion sampling leaves: in a tail, its uniform numbers can be computed from the draws.

    They are integer multiples of 2^-53, or all at the same place between two multiples; those of a real number fall
    anywhere. Only draws whose neighbouring floats are much closer than 2^-53 are tested, so that all sectors have equal
    probability to within a few percent of a sector's standard error. The p-value is the binomial tail of the largest
    sector's count, times the number of sectors.
    """
    for name, tail in (("lower", distribution.cdf), ("upper", getattr(distribution, "sf", None))):
        if tail is None:
            continue
        beyond = np.asarray(tail(values), float)
        far = (beyond > 0) & (beyond < FAR_TAIL)
        outward = np.nextafter(values[far], -np.inf if name == "lower" else np.inf)
        sharp = np.abs(np.asarray(tail(outward), float) - beyond[far]) * GRID < SHARP_SPACING
        places = beyond[far][sharp] * GRID % 1.0
        sectors = np.bincount((places * SECTORS + 0.5).astype(np.int64) % SECTORS, minlength=SECTORS)
        most = int(sectors.max())
        p_value = SECTORS * float(special.bdtrc(most - 1, len(places), 1 / SECTORS)) if most else 1.0
        yield FitTest(f"{name} inverse", float(most), min(1.0, p_value))
