"""Intervals hold the truth as often as they say, over many redraws of the noise on one exact vector.

False alarms: each coverage is compared with a binomial bound that a right interval passes but for a chance of 1e-12;
there are fewer than 300 such comparisons in a run, so a run raises a false alarm with a chance below 3e-10. Those of
folded functions draw from a fixed seed.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import pytest
from scipy import special
from scipy.stats import binom

from conftest import Tier
from dither.loss import ZCDP, Pure
from dither.post.contribution_bound import ContributionBound
from dither.post.estimate.draws import LONG_ROW, order_statistics
from dither.post.estimate.intervals import Banded, Measured, estimate, fieller_interval
from dither.post.estimate.measured import measured_columns
from dither.post.formulas import Average, ClampedTo, FixedValue, Formula, FunctionCall, NoisyCell, cells_of, evaluate
from dither.post.noise import ScaledNoise
from dither.post.query.parser import parse_query
from dither.post.query.planner import Planner
from dither.post.query.query_plan import QueryPlan
from dither.post.query.request import answer_measurements, mechanism_of
from dither.post.query.spend import Spend
from dither.post.session import Session
from dither.privacy.bits import SystemBits
from dither.privacy.mechanisms.calibration import calibrate
from dither.privacy.protocol import ReleasedMeasurement
from post.bare import BareKernel

CONFIDENCE = 0.95
ALARM = 1e-12
LINEAR = [
    "SELECT COUNT(*) FROM users",
    "SELECT SUM(age) FROM users",
    "SELECT SUM(salary) / 12 FROM users",
    "SELECT COUNT(*) + SUM(age) FROM users",
    "SELECT country, COUNT(*) FROM users GROUP BY country",
    "SELECT action, COUNT(*) FROM actions GROUP BY action",
    "SELECT COUNT(DISTINCT user_id) FROM actions",
    "SELECT COUNT(DISTINCT action) FROM actions",
    "SELECT COUNT(*) FILTER (WHERE vip), COUNT(*) FROM users",
]
RATIOS = [
    "SELECT AVG(age) FROM users",
    "SELECT country, AVG(age) FROM users GROUP BY country",
    "SELECT gender, AVG(salary), COUNT(*) FROM users GROUP BY gender",
    "SELECT SUM(salary) / COUNT(*) FROM users",
    "SELECT AVG(price) FROM actions",
    "SELECT AVG(age) * 2 + 1 FROM users",
]
CURVED = [
    "SELECT VARIANCE(age) FROM users",
    "SELECT STDDEV(age) FROM users",
    "SELECT STDDEV_POP(price) FROM actions",
    "SELECT COVAR_POP(age, salary) FROM users",
    "SELECT CORR(age, salary) FROM users",
    "SELECT COUNT(*) * AVG(age) FROM users",
]
RANKS = [
    "SELECT MEDIAN(age) FROM users",
    "SELECT QUANTILE_CONT(salary, 0.25) FROM users",
    "SELECT country, MEDIAN(age) FROM users GROUP BY country",
    "SELECT MIN(age), MAX(age) FROM users",
]


def planned(session: Session, query: str, budget: Spend) -> QueryPlan:
    question = parse_query(query, session.dataset, "user")
    return Planner(session.context, ContributionBound(max_rows=20), budget.gaussian).plan(question)


def released(
    session: Session, kernel: BareKernel, plan: QueryPlan, budget: Spend, times: int
) -> tuple[list[ReleasedMeasurement], list[ReleasedMeasurement]]:
    """What is released over `times` redraws of one exact vector, and the same without noise."""
    noisy, exact = [], []
    bits = SystemBits()
    for part in answer_measurements(plan, budget, session.context):
        sensitivity = part.measure.sensitivity(session.context, plan.unit)
        mechanism = mechanism_of(part, sensitivity)
        if part.measure not in kernel.exact:
            kernel.exact[part.measure] = kernel.vector(part.measure)
        vector = np.asarray(kernel.exact[part.measure], np.int64)
        drawn = mechanism.release(np.tile(vector, times), bits)
        steps = part.measure.steps(session.context)
        shared = (steps, (len(vector),), None, mechanism, sensitivity, mechanism.loss(sensitivity), ())
        noisy.append(ReleasedMeasurement(drawn, *shared))  # type: ignore[arg-type]
        quiet = calibrate("discrete_laplace", Pure(10**12), sensitivity)
        exact.append(ReleasedMeasurement(tuple(map(int, vector)), *shared[:3], quiet, *shared[4:]))
    return noisy, exact


def redraws(
    session: Session, kernel: BareKernel, plan: QueryPlan, budget: Spend, times: int, level: float = CONFIDENCE
) -> tuple[list[Any], list[Any]]:
    """Columns over `times` redraws of one exact vector, and the same columns without noise."""
    noisy, exact = released(session, kernel, plan, budget, times)
    return measured_columns(plan, noisy, {}, level), measured_columns(plan, exact, {}, level)


def coverages(
    session: Session, kernel: BareKernel, query: str, times: int, budget: Spend, level: float = CONFIDENCE
) -> list[tuple[float, bool]]:
    """For each group and column: how often the interval held the bounded truth, and whether its noise is wide."""
    plan = planned(session, query, budget)
    noisy, exact = redraws(session, kernel, plan, budget, times, level)
    groups = len(exact[0].estimate)
    results = []
    for output in plan.outputs:
        if not cells_of(output.node):
            continue
        found = estimate(output.node, noisy, [np.zeros(times * groups)] * len(plan.keys), level)
        truth = np.broadcast_to(
            evaluate(output.node, [s.estimate for s in exact], [np.zeros(groups)] * len(plan.keys)), (groups,)
        )
        wanted = np.tile(truth, times)
        slack = 1e-9 * (1 + np.abs(wanted))
        held = ((found.low <= wanted + slack) & (wanted - slack <= found.high)).reshape(times, groups)
        wide = all(isinstance(s, Measured) and s.noise.spread >= 10 for s in noisy)
        results += [(float(rate), wide) for rate in held.mean(axis=0)]
    return results


def fewest(times: int, level: float = CONFIDENCE) -> float:
    return float(binom.ppf(ALARM, times, level) - 1) / times


def most(times: int) -> float:
    return float(binom.isf(ALARM, times, 0.96) + 1) / times


BUDGETS = {"pure": Spend(Pure(1)), "zcdp": Spend(ZCDP(Fraction(1, 2)))}


@pytest.mark.parametrize("kind", BUDGETS)
@pytest.mark.parametrize("query", LINEAR + RATIOS)
def test_intervals_cover(query: str, kind: str, session: Session, kernel: BareKernel, tier: Tier) -> None:
    times = tier.pick(quick=500, test=2_000, deep=20_000)
    for rate, wide in coverages(session, kernel, query, times, BUDGETS[kind]):
        assert rate >= fewest(times), (query, rate)
        assert not wide or rate <= most(times), (query, rate)


@pytest.mark.tier("test")
@pytest.mark.parametrize("level", [0.5, 0.99, 0.999])
@pytest.mark.parametrize("query", [*LINEAR[:2], *RATIOS[:2], *CURVED[:2], *RANKS])
def test_intervals_cover_at_the_level_asked_for(
    query: str, level: float, session: Session, kernel: BareKernel, tier: Tier
) -> None:
    """What ignores the level (as MEDIAN once did) misses 0.999 with 2,000 redraws: 0.95 of them is far below."""
    times = tier.pick(quick=500, test=2_000, deep=20_000)
    for rate, _ in coverages(session, kernel, query, times, BUDGETS["pure"], level):
        assert rate >= fewest(times, level), (query, rate)


@pytest.mark.tier("test")
@pytest.mark.parametrize("query", CURVED)
def test_curved_functions_cover(query: str, session: Session, kernel: BareKernel, tier: Tier) -> None:
    times = tier.pick(quick=500, test=2_000, deep=20_000)
    for rate, wide in coverages(session, kernel, query, times, BUDGETS["pure"]):
        assert rate >= fewest(times), (query, rate)
        assert not wide or rate <= most(times), (query, rate)


@pytest.mark.parametrize("query", RANKS)
def test_ranks_cover(query: str, session: Session, kernel: BareKernel, tier: Tier) -> None:
    times = tier.pick(quick=300, test=2_000, deep=20_000)
    for rate, _ in coverages(session, kernel, query, times, BUDGETS["pure"]):
        assert rate >= fewest(times), (query, rate)


def test_noise_of_the_wrong_scale_is_caught(session: Session, kernel: BareKernel) -> None:
    """The named bug: intervals for noise of half its true scale. Coverage falls to about 0.78."""
    times = 2_000
    plan = planned(session, "SELECT COUNT(*) FROM users", BUDGETS["pure"])
    (noisy,), (exact,) = redraws(session, kernel, plan, BUDGETS["pure"], times)
    wrong = replace(noisy, noise=ScaledNoise("laplace", noisy.noise.spread / 2, noisy.noise.step))
    found = estimate(NoisyCell(0), [wrong], [], CONFIDENCE)
    rate = np.mean((found.low <= exact.values[0]) & (exact.values[0] <= found.high))
    assert rate < fewest(times)


def test_fieller_is_unbounded_where_the_size_may_be_zero() -> None:
    low, high = fieller_interval(
        np.array([50.0]), np.array([3.0]), ScaledNoise("laplace", 10.0), ScaledNoise("laplace", 10.0), 0.95
    )
    assert np.isinf(low).all() and np.isinf(high).all()
    node = Average(NoisyCell(0), NoisyCell(1), FixedValue(40.0), 18.0, 65.0)
    columns = [
        Measured(np.array([50.0]), ScaledNoise("laplace", 10.0)),
        Measured(np.array([3.0]), ScaledNoise("laplace", 10.0)),
    ]
    found = estimate(node, columns, [], 0.95)
    assert (found.low[0], found.high[0]) == (18.0, 65.0)


def test_fieller_agrees_with_the_quadratic_of_the_textbook() -> None:
    size, total, std = 1000.0, 400.0, 20.0
    low, high = fieller_interval(
        np.array([total]), np.array([size]), ScaledNoise("gaussian", std), ScaledNoise("gaussian", std), 0.95
    )
    z = 1.959964
    a, b, c = size**2 - (z * std) ** 2, -2 * size * total, total**2 - (z * std) ** 2
    roots = [(-b + sign * (b * b - 4 * a * c) ** 0.5) / (2 * a) for sign in (-1, 1)]
    assert np.allclose([low[0], high[0]], roots, rtol=3e-2)


def test_increasing_functions_map_the_interval() -> None:
    column = Measured(np.array([100.0]), ScaledNoise("laplace", 2.0))
    inner = estimate(NoisyCell(0), [column], [], 0.95)
    outer = estimate(FunctionCall("sqrt", (NoisyCell(0),)), [column], [], 0.95)
    assert np.allclose([outer.low, outer.high], np.sqrt([inner.low, inner.high]))


def test_clipping_widens_the_interval_to_the_side_it_removed_from() -> None:
    column = Measured(np.array([100.0]), ScaledNoise("laplace", 1.0), missing=10.0, less=4.0, more=40.0)
    found = estimate(NoisyCell(0), [column], [], 0.95)
    assert found.value[0] == 110.0
    assert found.low[0] == 110.0 - 5.0 and found.high[0] == 110 + np.hypot(3.0, 40.0)


def test_rounding_widens_the_interval_on_both_sides() -> None:
    column = Measured(np.array([100.0]), ScaledNoise("laplace", 1.0), rounding=7.0)
    found = estimate(NoisyCell(0), [column], [], 0.95)
    assert (found.low[0], found.value[0], found.high[0]) == (90.0, 100.0, 110.0)


FOLDED = {
    "ABS(a)": FunctionCall("abs", (NoisyCell(0),)),
    "ABS(a - b)": FunctionCall("abs", (FunctionCall("sub", (NoisyCell(0), NoisyCell(1))),)),
    "POWER(a, 2)": FunctionCall("power", (NoisyCell(0), FixedValue(2.0))),
    "a * a": FunctionCall("mul", (NoisyCell(0), NoisyCell(0))),
    "a % 7": FunctionCall("mod", (NoisyCell(0), FixedValue(7.0))),
}


@pytest.mark.tier("test")
@pytest.mark.parametrize("kind", ["laplace", "gaussian"])
@pytest.mark.parametrize("node", FOLDED.values(), ids=FOLDED)
@pytest.mark.parametrize("truth", [0.0, 3.0])
def test_functions_that_turn_back_cover(node: Formula, kind: Literal["laplace", "gaussian"], truth: float) -> None:
    """The named bug: quantiles of a folded distribution never include the fold, where the truth may be."""
    times, random = 2_000, np.random.default_rng(7)
    noise = ScaledNoise(kind, 9.0)
    columns = [Measured(truth + noise.quantile(random.random(times)), noise) for _ in range(2)]
    found = estimate(node, columns, [], CONFIDENCE)
    wanted = evaluate(node, [np.array([truth])] * 2, [])
    held = (found.low <= wanted + 1e-9) & (wanted - 1e-9 <= found.high)
    assert held.mean() >= fewest(times)


def test_variances_allow_for_clipping_of_each_sum() -> None:
    """What clipping removed is uncertain in each sum: simulated truths lie in the interval as often as it says."""
    values, less, more = (5_000.0, 0.0, 200.0), (300.0, 150.0, 10.0), (900.0, 150.0, 40.0)
    noise = ScaledNoise("laplace", 1e-6)
    columns = [
        Measured(np.array([value]), noise, missing=0.0, less=low, more=high)
        for value, low, high in zip(values, less, more, strict=True)
    ]
    node = FunctionCall("variance", (NoisyCell(0), NoisyCell(1), NoisyCell(2), FixedValue(1.0)))
    found = estimate(node, columns, [], CONFIDENCE)
    random, z = np.random.default_rng(4), special.ndtri((1 + CONFIDENCE) / 2)
    draws = random.standard_normal((3, 20_000)) / z
    there = [
        value + np.where(draw < 0, low * draw, high * draw)
        for value, low, high, draw in zip(values, less, more, draws, strict=True)
    ]
    truth = evaluate(node, there, [])
    inside = ((found.low <= truth) & (truth <= found.high)).mean()
    assert CONFIDENCE - 0.01 <= inside <= CONFIDENCE + 0.02


def test_a_clamped_formula_has_a_clamped_interval_even_where_it_is_undefined() -> None:
    """The named bug: a correlation of [-inf, inf]."""
    column = Measured(np.array([0.5]), ScaledNoise("laplace", 1.0))
    root = FunctionCall("sqrt", (FunctionCall("sub", (NoisyCell(0), FixedValue(1.0))),))
    found = estimate(ClampedTo(FunctionCall("div", (FixedValue(1.0), root)), -1.0, 1.0), [column], [], CONFIDENCE)
    assert (found.low[0], found.high[0]) == (-1.0, 1.0)


def test_a_chosen_column_keeps_its_band() -> None:
    band = Banded(np.array([40.0]), np.array([38.0]), np.array([45.0]))
    found = estimate(FunctionCall("mul", (FixedValue(-2.0), NoisyCell(0))), [band], [], 0.95)
    assert (found.low[0], found.value[0], found.high[0]) == (-90.0, -80.0, -76.0)


@pytest.mark.parametrize("confidence", [0.01, 0.5, 0.95])
@pytest.mark.parametrize("name", ["variance", "covariance"])
def test_an_interval_holds_its_own_estimate(name: str, confidence: float) -> None:
    """Noise moves a curved function to one side: its quantiles alone would leave the estimate out."""
    noise = ScaledNoise("laplace", 20.0, 1.0)
    sums = [Measured(np.array([value]), noise) for value in (40_000.0, 900.0, 800.0, 60.0)]
    used = sums if name == "covariance" else [sums[0], sums[1], sums[3]]
    node = FunctionCall(name, (*(NoisyCell(index) for index in range(len(used))), FixedValue(0.0)))
    found = estimate(node, used, [], confidence)
    assert found.low[0] <= found.value[0] <= found.high[0]


def test_infinite_simulated_values_leave_an_interval_and_an_error() -> None:
    huge = Measured(np.array([600.0]), ScaledNoise("laplace", 200.0, 1.0))
    node = FunctionCall("add", (FunctionCall("exp", (NoisyCell(0),)), FunctionCall("abs", (NoisyCell(0),))))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = estimate(node, [huge], [], 0.95)
    assert not np.isnan([found.low[0], found.high[0], found.std_error[0]]).any()
    assert found.low[0] <= found.value[0] <= found.high[0]


@pytest.mark.parametrize("size", [4096, LONG_ROW, 2 * LONG_ROW])
def test_order_statistics_are_those_of_sorted_rows(size: int) -> None:
    """Long rows are sorted at their ends only: also with ties, infinite values, sorted rows and positions between."""
    random = np.random.default_rng(1)
    rows = np.array(
        [
            random.standard_normal(size),
            random.integers(0, 3, size),
            np.where(random.random(size) < 0.3, np.inf, random.standard_cauchy(size)),
            np.sort(random.standard_normal(size)),
            np.zeros(size),
        ]
    )
    for positions in ((0, size - 1), (7, size - 9, size // 1000, size - 1 - size // 1000), (size // 3, size // 2)):
        for found, position in zip(order_statistics(rows, positions), positions, strict=True):
            assert np.array_equal(found, np.sort(rows, axis=1)[:, position])
