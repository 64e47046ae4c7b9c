"""Does a sampler follow its law? Several tests of one sample, with one stated false-alarm rate over all of them.

Every draw is turned into a uniform number by the law's distribution function (spread uniformly over its step where
the law is discrete), so that under the null each test has a known law.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from math import exp, inf, sqrt
from typing import Any

import numpy as np
from scipy import special, stats

from dither.audit.claim_syntax import finite
from dither.audit.claims import Floats
from dither.audit.sampling import failure
from dither.errors import InvalidParameter
from dither.privacy.mechanisms.distributions import NoiseDistribution

SMALLEST_EXPECTED = 10.0
MOST_BINS = 400
TAILS = (1e-2, 1e-3, 1e-4)
LAGS = (1, 2, 3, 7)
LOW_BITS = 4
FAR = 2.0**-12  # of a probability below this, doubles show digits far beyond the 53rd
GRID = 2.0**53
SECTORS = 8
SHARP = 2.0**-5
MOST_SPAN = 30_000_000
ROUNDED = 1e-13  # a sum of masses may lack this


@dataclass(frozen=True)
class FitTest:
    """One test: its statistic and its p-value."""

    name: str
    statistic: float
    p_value: float


@dataclass(frozen=True)
class FitResult:
    """All tests of one sample; with probability at most `alpha` a right sampler is refuted."""

    draws: int
    alpha: float
    tests: tuple[FitTest, ...]

    @property
    def worst(self) -> FitTest:
        """The test that speaks most against the sampler."""
        return min(self.tests, key=lambda each: each.p_value)

    @property
    def p_value(self) -> float:
        """Of the whole family."""
        return min(1.0, self.worst.p_value * len(self.tests))

    @property
    def refuted(self) -> bool:
        """Whether the draws do not follow the law."""
        return self.p_value <= self.alpha

    def __getitem__(self, name: str) -> FitTest:
        return next(each for each in self.tests if each.name == name)

    def __str__(self) -> str:
        head = "REFUTED" if self.refuted else "not refuted"
        found = f"{self.worst.name} = {self.worst.statistic:.6g} (p = {self.worst.p_value:.3g})"
        return f"{head}: {self.draws} draws, {len(self.tests)} tests, family p = {self.p_value:.3g}; worst {found}"

    def report(self) -> str:
        """The result as JSON."""
        tests = [{**asdict(each), "statistic": finite(each.statistic)} for each in self.tests]
        return json.dumps({**asdict(self), "tests": tests, "refuted": self.refuted, "p_value": self.p_value}, indent=2)


def fit(
    sampler: Callable[[int], Any], law: Any, *, draws: int = 1_000_000, alpha: float = 1e-6, seed: int | None = None
) -> FitResult:
    """Tests `sampler(size)` against a law: one of `privacy.mechanisms.distributions`, scipy's, or a mass function.

    A mass function `law(integers) -> probabilities` makes the law discrete. The seed is for the spreading of discrete
    draws alone.
    """
    if draws < 1000 or not 0 < alpha < 0.5:
        raise InvalidParameter("fit needs at least 1000 draws and alpha between 0 and 0.5")
    if not (hasattr(law, "cdf") or isinstance(law, NoiseDistribution) or callable(law)):
        raise InvalidParameter(
            "a law is one of dither.privacy.mechanisms.distributions, a frozen law of scipy, or a mass function"
        )
    values = _drawn(sampler, draws)
    if values.shape != (draws,):
        raise InvalidParameter(f"the sampler was asked for {draws} draws and gave an array of shape {values.shape}")
    if stranger := _strangers(values, law, alpha):
        return FitResult(draws, alpha, (stranger,))
    below, mass = _distribution(law, values)
    spread = np.random.default_rng(seed).random(draws)
    uniform = np.clip(below + mass * spread, 2.0**-60, 1 - 2.0**-53)
    found = [*_tests(uniform), chi_squared(values, law) if mass.any() else _equal_cells(uniform)]
    holes = () if mass.any() or values.dtype != np.float64 else (*_raw_bits(values), *_inverted(values, law))
    return FitResult(draws, alpha, (*found, *holes))


def _drawn(sampler: Callable[[int], Any], draws: int) -> Any:
    try:
        return np.asarray(sampler(draws))
    except Exception as error:
        raise failure(error, draws) from error


def _strangers(values: Any, law: Any, alpha: float) -> FitTest | None:
    """Draws that no law explains: what is no number, or so far out that the table of a law cannot reach it."""
    if values.dtype.kind == "f" and np.isnan(values).any():
        return FitTest("draws that are no numbers", float(np.isnan(values).sum()), 0.0)
    if values.dtype.kind not in "iu" or int(values.max()) - int(values.min()) < MOST_SPAN:
        return None
    middle = int(np.median(values))
    points = np.arange(middle - MOST_SPAN // 20, middle + MOST_SPAN // 20 + 1)
    far = int(np.sum((values < points[0]) | (values > points[-1])))
    expected = max(0.0, 1.0 - float(np.sum(_masses(law, points)))) + ROUNDED
    p_value = float(special.bdtrc(far - 1, len(values), expected))
    if p_value > alpha:
        raise InvalidParameter(f"the draws span more than {MOST_SPAN} integers, too many for a table of the law")
    return FitTest("draws far out", float(far), p_value)


def _tests(uniform: Floats) -> Iterator[FitTest]:
    yield anderson_darling(uniform)
    yield kolmogorov_smirnov(uniform)
    yield from _moments(uniform)
    yield from _tails(uniform)
    yield from _serial(uniform)


# ---- distribution functions ----------------------------------------------------------------------------------------


def _distribution(law: Any, values: Any) -> tuple[Floats, Floats]:
    """P(X < value) and P(X = value) for each value."""
    if hasattr(law, "cdf"):
        if hasattr(law, "pmf"):
            mass = np.asarray(law.pmf(values))
            return np.asarray(law.cdf(values)) - mass, mass
        return np.asarray(law.cdf(values)), np.zeros(len(values))
    points, masses = _support(law, values)
    before = np.concatenate([[0.0], np.cumsum(masses)])
    outside = max(0.0, 1.0 - before[-1]) / 2  # what lies beyond all draws, half on each side
    place = values.astype(np.int64) - points[0]
    return before[place] + outside, masses[place]


def _support(law: Any, values: Any) -> tuple[Any, Floats]:
    if values.dtype.kind not in "iu":
        raise InvalidParameter(
            "the law is discrete: a mass function needs integer draws; for floats give a law of scipy, such as "
            "scipy.stats.laplace(0, 5)"
        )
    points = np.arange(int(values.min()), int(values.max()) + 1)
    return points, _masses(law, points)


def _masses(law: Any, points: Any) -> Floats:
    """The probability of each of these integers."""
    if hasattr(law, "cdf"):
        masses = law.pmf(points) if hasattr(law, "pmf") else law.cdf(points + 0.5) - law.cdf(points - 0.5)
    else:
        masses = law.mass(points) if isinstance(law, NoiseDistribution) else law(points)
    return np.asarray(masses, float)


# ---- tests ---------------------------------------------------------------------------------------------------------


def anderson_darling(uniform: Floats) -> FitTest:
    """The statistic of Anderson and Darling for uniform numbers; its 99% point is 3.878125."""
    ordered = np.sort(uniform)
    count = len(ordered)
    odd = 2 * np.arange(1, count + 1) - 1
    statistic = -count - float(np.sum(odd * (np.log(ordered) + np.log1p(-ordered[::-1])))) / count
    return FitTest("Anderson-Darling", statistic, anderson_darling_p(statistic, count))


def anderson_darling_p(statistic: float, count: int) -> float:
    """P(A^2 > statistic), after Marsaglia and Marsaglia (2004); the far tail by its first eigenvalue."""
    if statistic > 8:
        return float(sqrt(3) * special.chdtrc(1, 2 * statistic))
    limit = _limit(statistic)
    return float(min(1.0, max(0.0, 1 - limit - _correction(count, limit))))


def _limit(z: float) -> float:
    """The distribution function of A^2 for infinitely many draws."""
    if z <= 0:
        return 0.0
    if z < 2:
        series = 2.00012 + (0.247105 - (0.0649821 - (0.0347962 - (0.0116720 - 0.00168691 * z) * z) * z) * z) * z
        return exp(-1.2337141 / z) / sqrt(z) * series
    series = 1.0776 - (2.30695 - (0.43424 - (0.082433 - (0.008056 - 0.0003146 * z) * z) * z) * z) * z
    return exp(-exp(series))


def _correction(count: int, x: float) -> float:
    """What the limit lacks for a finite number of draws."""
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
    """The largest distance between the two distribution functions."""
    ordered, count = np.sort(uniform), len(uniform)
    steps = np.arange(count + 1) / count
    distance = float(max(np.max(steps[1:] - ordered), np.max(ordered - steps[:-1])))
    return FitTest("Kolmogorov-Smirnov", distance, float(min(1.0, stats.kstwo.sf(distance, count))))


def chi_squared(values: Any, law: Any) -> FitTest:
    """Counts of integers in bins of at least ten expected draws, the last bin open on each side."""
    points = np.arange(int(values.min()) - 1, int(values.max()) + 2)
    below, mass = _distribution(law, points) if hasattr(law, "cdf") else (None, _support(law, points)[1])
    seen = np.bincount((values - points[0]).astype(np.int64), minlength=len(points)).astype(float)
    expected = np.asarray(mass, float) * len(values)
    missing = len(values) - expected.sum()
    expected[0] += missing / 2 if below is None else max(0.0, float(below[0])) * len(values)
    expected[-1] += len(values) - expected.sum()
    return _pearson("chi-squared", *_merged(seen, np.maximum(expected, 0)))


def _equal_cells(uniform: Floats) -> FitTest:
    cells = min(MOST_BINS, max(10, int(len(uniform) ** 0.4)))
    seen = np.bincount((uniform * cells).astype(np.int64), minlength=cells).astype(float)
    return _pearson("chi-squared", seen, np.full(cells, len(uniform) / cells))


def _merged(seen: Floats, expected: Floats) -> tuple[Floats, Floats]:
    """Neighbouring bins together until each expects enough."""
    goal = max(SMALLEST_EXPECTED, expected.sum() / MOST_BINS)
    group = np.minimum((np.cumsum(expected) - expected / 2) // goal, expected.sum() // goal - 1).astype(np.int64)
    _, group = np.unique(np.maximum(group, 0), return_inverse=True)
    return np.asarray(np.bincount(group, seen), float), np.asarray(np.bincount(group, expected), float)


def _pearson(name: str, seen: Floats, expected: Floats) -> FitTest:
    if np.any((expected <= 0) & (seen > 0)):
        return FitTest(name, inf, 0.0)
    kept = expected > 0
    statistic = float(np.sum((seen[kept] - expected[kept]) ** 2 / expected[kept]))
    return FitTest(name, statistic, float(special.chdtrc(max(1, int(kept.sum()) - 1), statistic)))


def _moments(uniform: Floats) -> Iterator[FitTest]:
    """Means of Legendre polynomials: shifts, widths, skews and heavy tails, each standard normal under the null."""
    centred = 2 * uniform - 1
    for degree in (1, 2, 3, 4):
        score = special.eval_legendre(degree, centred) * sqrt(2 * degree + 1)
        z = float(score.mean() * sqrt(len(score)))
        yield FitTest(f"moment {degree}", z, float(2 * special.ndtr(-abs(z))))


def _tails(uniform: Floats) -> Iterator[FitTest]:
    """How many draws lie far out, on each side."""
    for share in TAILS:
        for name, count in (("lower", np.sum(uniform < share)), ("upper", np.sum(uniform >= 1 - share))):
            yield FitTest(f"{name} tail {share:g}", float(count), _binomial(int(count), len(uniform), share))


def _binomial(count: int, runs: int, share: float) -> float:
    at_most = special.bdtr(count, runs, share)
    at_least = special.bdtrc(count - 1, runs, share) if count else 1.0
    return float(min(1.0, 2 * min(at_most, at_least)))


def _serial(uniform: Floats) -> Iterator[FitTest]:
    """Correlation with later draws, of the numbers and of their distance from the middle."""
    for lag in LAGS:
        for degree in (1, 2):
            score = special.eval_legendre(degree, 2 * uniform - 1) * sqrt(2 * degree + 1)
            z = float(np.sum(score[:-lag] * score[lag:]) / sqrt(len(score) - lag))
            yield FitTest(f"serial {lag}, degree {degree}", z, float(2 * special.ndtr(-abs(z))))


def _raw_bits(values: Any) -> Iterator[FitTest]:
    """Holes in the floats: the last digits of a rounded real number are even-handed, and hardly any value repeats."""
    last = (values.view(np.uint64) & np.uint64((1 << LOW_BITS) - 1)).astype(np.int64)
    cells = 1 << LOW_BITS
    seen = np.bincount(last, minlength=cells).astype(np.float64)
    yield _pearson("last digits", seen, np.full(cells, len(last) / cells))
    repeats = len(values) - len(np.unique(values))
    expected = _likely_repeats(values)
    yield FitTest("repeated floats", float(repeats), float(special.pdtrc(repeats - 1, expected)) if repeats else 1.0)


def _likely_repeats(values: Any) -> float:
    """Twice as many repeats as draws of all digits would have: in each of 64 parts, pairs over the floats in it."""
    edges = np.sort(values)[np.linspace(0, len(values) - 1, 65).astype(np.int64)]
    width, size = np.diff(edges), np.maximum(np.abs(edges[1:]), np.abs(edges[:-1]))
    floats = np.where(width > 0, width / np.spacing(size), np.inf)
    return len(values) ** 2 / 2.0**50 + float(np.sum((len(values) / 64) ** 2 / floats))


def _inverted(values: Any, law: Any) -> Iterator[FitTest]:
    """Holes that an inverted distribution function leaves: far out, its uniform numbers can be read off the draws.

    They are whole multiples of 2^-53, or all at the same place between two; those of a real number fall anywhere. Only
    draws whose float neighbours are much closer than that are judged, so that the sectors are even to a few percent
    of a sector's own standard error; the largest of the sectors' counts is binomial but for a factor.
    """
    for name, tail in (("lower", law.cdf), ("upper", getattr(law, "sf", None))):
        if tail is None:
            continue
        beyond = np.asarray(tail(values), float)
        far = (beyond > 0) & (beyond < FAR)
        outward = np.nextafter(values[far], -np.inf if name == "lower" else np.inf)
        sharp = np.abs(np.asarray(tail(outward), float) - beyond[far]) * GRID < SHARP
        places = beyond[far][sharp] * GRID % 1.0
        sectors = np.bincount((places * SECTORS + 0.5).astype(np.int64) % SECTORS, minlength=SECTORS)
        most = int(sectors.max())
        p_value = SECTORS * float(special.bdtrc(most - 1, len(places), 1 / SECTORS)) if most else 1.0
        yield FitTest(f"{name} inverse", float(most), min(1.0, p_value))
