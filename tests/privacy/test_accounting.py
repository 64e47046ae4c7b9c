"""Accounting rules against numerical integration, exact transcripts, other libraries and the literature."""

from __future__ import annotations

import ast
import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mpf

from conftest import require
from dither.errors import InvalidParameter
from dither.loss import ZCDP, Approximate, Loss, Pure, Renyi
from dither.post.interpretation import group_privacy_table, interpret, power_of_test, privacy_curve
from dither.privacy import accounting
from dither.privacy.accounting.composition import (
    compose,
    group,
    group_in_distinct_cells,
    joint_gaussian,
    joint_laplace,
    parallel,
    repeated,
    subsampled,
    subsampled_gaussian,
)
from dither.privacy.accounting.conversion import (
    as_renyi,
    as_zcdp,
    delta_at,
    epsilon_at,
    largest_rho,
    pure_as_renyi,
    pure_as_rho,
)
from dither.privacy.accounting.filters import Filter, PureFilter, RenyiFilter, ZCDPFilter, filter_of
from dither.privacy.accounting.units import LARGEST_COST, to_femto
from dither.schema import BudgetCap

NEAR = 1e-6
ROUNDING = mpf(10) ** -30  # above what mpmath loses with 160 bits
Law = Sequence[mpf]

small = st.fractions(min_value=Fraction(1, 1000), max_value=5, max_denominator=1000)
rates = st.fractions(min_value=Fraction(1, 1000), max_value=1, max_denominator=1000)
tiny = st.integers(1, 12).map(lambda places: Fraction(1, 10**places))


@pytest.fixture(autouse=True, scope="module")
def precision() -> Iterator[None]:
    """160 bits for every exact value of this file."""
    with mpmath.workprec(160):
        yield


def real(x: Fraction | int) -> mpf:
    """A rational as a real."""
    return mpf(Fraction(x).numerator) / Fraction(x).denominator


def renyi(first: Law, second: Law, order: Fraction) -> mpf:
    """The Renyi divergence of two laws on the same points, by its definition."""
    a = real(order)
    return mpmath.log(sum(p**a * q ** (1 - a) for p, q in zip(first, second, strict=True) if p)) / (a - 1)


def hockey(first: Law, second: Law, epsilon: Fraction) -> mpf:
    """The smallest delta at an epsilon, by its definition."""
    return sum(max(mpf(0), p - mpmath.exp(real(epsilon)) * q) for p, q in zip(first, second, strict=True))


def response(epsilon: Fraction) -> tuple[Law, Law]:
    """Randomised response, the worst case of a pure loss."""
    e = mpmath.exp(real(epsilon))
    return (e / (1 + e), 1 / (1 + e)), (1 / (1 + e), e / (1 + e))


def discrete_gaussian(variance: Fraction, shift: int, reach: int) -> Law:
    """The law of integer Gaussian noise around `shift`, from -reach to reach."""
    weights = [mpmath.exp(-mpf((k - shift) ** 2) / (2 * real(variance))) for k in range(-reach, reach + 1)]
    total = sum(weights)
    return [weight / total for weight in weights]


def random_pairs(seed: int, count: int) -> Iterator[tuple[Law, Law, Fraction]]:
    """Pairs of laws whose log ratio lies within a random epsilon."""
    rng = random.Random(seed)
    for _ in range(count):
        epsilon = Fraction(rng.randint(1, 4000), 1000)
        second = [mpf(rng.random()) for _ in range(4)]
        second = [q / sum(second) for q in second]
        raw = [q * mpmath.exp(real(epsilon) * mpf(rng.uniform(-0.5, 0.5))) for q in second]
        yield [p / sum(raw) for p in raw], second, epsilon


# --- From one kind to another ---------------------------------------------------------------------------------------


@given(small, st.fractions(min_value=Fraction(101, 100), max_value=64, max_denominator=100))
@settings(max_examples=100)
def test_pure_as_renyi_is_randomised_response_exactly(epsilon: Fraction, order: Fraction) -> None:
    exact = renyi(*response(epsilon), order)
    assert exact - ROUNDING <= real(pure_as_renyi(epsilon, order)) <= exact + mpf(10) ** -18
    assert pure_as_renyi(epsilon, order) <= order * pure_as_rho(epsilon)


def test_pure_as_renyi_covers_every_law_within_epsilon() -> None:
    for first, second, epsilon in random_pairs(1, 200):
        for order in (Fraction(11, 10), Fraction(2), Fraction(7)):
            assert renyi(first, second, order) <= real(pure_as_renyi(epsilon, order)) + ROUNDING


@given(small)
def test_pure_as_rho_is_the_slope_at_order_one(epsilon: Fraction) -> None:
    rho, order = pure_as_rho(epsilon), 1 + Fraction(1, 10**9)
    slope = renyi(*response(epsilon), order) / real(order)
    assert slope - ROUNDING <= real(rho) <= slope + mpf(10) ** -7
    assert rho <= min(epsilon, epsilon**2 / 2) * (1 + Fraction(1, 10**18))


def test_pure_as_rho_by_integration_of_laplace_noise() -> None:
    for epsilon, order in itertools.product((0.3, 1, 2.5), (1.5, 3, 10)):
        a, e = mpf(order), mpf(epsilon)
        ratio = mpmath.quad(
            lambda x, a=a, e=e: e / 2 * mpmath.exp(-a * e * abs(x) - (1 - a) * e * abs(x - 1)),
            [-mpmath.inf, 0, 1, mpmath.inf],
        )
        assert mpmath.log(ratio) / (a - 1) <= real(pure_as_renyi(Fraction(str(epsilon)), Fraction(str(order))))


def test_zcdp_of_gaussian_noise_by_integration() -> None:
    rng = random.Random(2)
    for _ in range(5):
        variance, order = mpf(rng.uniform(0.5, 9)), Fraction(rng.randint(11, 80), 10)
        loss = ZCDP(Fraction(1, 2) / Fraction(str(variance)))
        density = [lambda x, m=m, v=variance: mpmath.exp(-((x - m) ** 2) / (2 * v)) for m in (0, 1)]
        a = real(order)
        points = [-40 - 8 * a, 0, a, 40 + 8 * a]
        ratio = mpmath.quad(lambda x, a=a, d=density: d[1](x) ** a * d[0](x) ** (1 - a), points)
        exact = mpmath.log(ratio / mpmath.sqrt(2 * mpmath.pi * variance)) / (a - 1)
        assert abs(exact - real(as_renyi(loss, [order]).curve[0][1])) < NEAR


def test_a_curve_is_read_at_the_next_order_and_no_further() -> None:
    curve = Renyi(((2, 1), (4, 3)))
    assert as_renyi(curve, [Fraction(3, 2), 2, 3, 4]).curve == ((Fraction(3, 2), 1), (2, 1), (3, 3), (4, 3))
    with pytest.raises(InvalidParameter, match="ends at order 4"):
        as_renyi(curve, [5])
    with pytest.raises(InvalidParameter, match="renyi"):
        as_zcdp(curve)


def test_delta_survives_every_change_of_kind() -> None:
    assert as_zcdp(Approximate(1, 1e-6)).delta == as_renyi(Approximate(1, 1e-6), [2]).delta == Fraction(1, 10**6)
    assert as_renyi(ZCDP(1, 1e-6), [2]) == Renyi(((2, 2),), 1e-6)


# --- (epsilon, delta) -----------------------------------------------------------------------------------------------


def tight_epsilon(rho: Fraction, delta: Fraction) -> mpf:
    """The least epsilon over all orders, by ternary search with 160 bits: what ours must reach, and not undercut."""

    def at(log_gap: mpf) -> mpf:
        gap = mpmath.exp(log_gap)
        return real(rho) * (1 + gap) + mpmath.log(gap / (1 + gap)) - mpmath.log(real(delta) * (1 + gap)) / gap

    low, high = mpf(-12), mpf(30)
    for _ in range(120):
        left, right = (2 * low + high) / 3, (low + 2 * high) / 3
        low, high = (low, right) if at(left) < at(right) else (left, high)
    return max(mpf(0), at(low))


@pytest.mark.parametrize("rho", ["1/100000", "1/100", "1/8", "2.56", "30"])
@pytest.mark.parametrize("delta", ["1e-3", "1e-6", "1e-10", "1e-30"])
def test_zcdp_to_epsilon_is_tight(rho: str, delta: str) -> None:
    ours = epsilon_at(ZCDP(rho), delta)
    tight = tight_epsilon(Fraction(rho), Fraction(delta))
    assert tight - ROUNDING <= real(ours) <= tight + NEAR


def test_a_hundred_gaussian_answers() -> None:
    loss = compose([ZCDP(Fraction(1, 2 * 20**2))] * 100)
    assert loss == ZCDP("1/8")
    assert Fraction("2.4190931") < epsilon_at(loss, 1e-6) <= Fraction("2.42")


def gaussian_delta(rho: Fraction, epsilon: Fraction) -> mpf:
    """The exact delta of Gaussian noise, by integration."""
    sigma = 1 / mpmath.sqrt(2 * real(rho))
    edge = real(epsilon) * sigma**2 + mpf(1) / 2  # beyond it the first density exceeds e^epsilon times the second
    first = mpmath.quad(lambda x: mpmath.npdf(x, 1, sigma), [edge, edge + 10 * sigma, mpmath.inf])
    second = mpmath.quad(lambda x: mpmath.npdf(x, 0, sigma), [edge, edge + 10 * sigma, mpmath.inf])
    return first - mpmath.exp(real(epsilon)) * second


@pytest.mark.parametrize("rho", ["1/200", "1/8", "1", "4"])
def test_delta_is_never_below_the_integral(rho: str) -> None:
    for epsilon in map(Fraction, ("1/10", "1", "3")):
        ours = delta_at(ZCDP(rho), epsilon)
        assert gaussian_delta(Fraction(rho), epsilon) <= real(ours)
        assert 0 < ours <= 1


@given(small, tiny)
@settings(max_examples=40)
def test_epsilon_and_delta_are_inverse(rho: Fraction, delta: Fraction) -> None:
    epsilon = epsilon_at(ZCDP(rho), delta)
    if epsilon:
        assert delta * Fraction("0.99999") <= delta_at(ZCDP(rho), epsilon) <= delta * (1 + Fraction(1, 10**12))


@given(st.fractions(min_value=Fraction(1, 100), max_value=20, max_denominator=100), tiny)
@settings(max_examples=40)
def test_the_largest_rho_fits_and_nothing_much_larger_does(epsilon: Fraction, delta: Fraction) -> None:
    rho = largest_rho(epsilon, delta)
    assert epsilon_at(ZCDP(rho), delta) <= epsilon * (1 + Fraction(1, 10**12))
    assert epsilon_at(ZCDP(rho * (1 + Fraction(1, 10**5))), delta) > epsilon


def test_delta_of_a_pure_loss_is_that_of_randomised_response() -> None:
    for wanted in map(Fraction, ("0", "1/2", "99/100")):
        exact = hockey(*response(Fraction(1)), wanted)
        assert exact - ROUNDING <= real(delta_at(Pure(1), wanted)) <= exact + mpf(10) ** -18
    assert delta_at(Pure(1), 1) == delta_at(Pure(1), 2) == 0
    assert delta_at(Approximate(1, "1/10"), 1) == Fraction(1, 10)


def test_a_loss_with_its_own_delta_needs_more() -> None:
    assert epsilon_at(Approximate(1, 1e-6), 1e-6) == 1
    assert epsilon_at(ZCDP("1/8", 5e-7), 1e-6) >= epsilon_at(ZCDP("1/8"), 5e-7) - Fraction(1, 10**5)
    for loss in (ZCDP("1/8", 1e-6), Renyi(((2, 1),), 1e-6), Approximate(1, 1e-3)):
        with pytest.raises(InvalidParameter, match="delta"):
            epsilon_at(loss, 1e-7)
    with pytest.raises(InvalidParameter, match="delta"):
        epsilon_at(ZCDP(1), 0)
    with pytest.raises(InvalidParameter, match="negative"):
        delta_at(ZCDP(1), -1)


def test_the_renyi_conversion_uses_only_its_own_orders() -> None:
    orders = [2, 8, 11, 40]
    ours = epsilon_at(as_renyi(ZCDP("1/8"), orders), 1e-6)
    each = [a / 8 + math.log1p(-1 / a) - math.log(1e-6 * a) / (a - 1) for a in orders]
    assert min(each) - 1e-12 <= ours <= min(each) + NEAR


def test_the_whole_curve_falls_as_delta_grows() -> None:
    curve = privacy_curve(ZCDP("1/8"), [Fraction(1, 10**places) for places in range(1, 16)])
    epsilons = [epsilon for _, epsilon in curve]
    assert epsilons == sorted(epsilons) and len(curve) == 15


def test_conversions_of_the_url_shares_release() -> None:
    """The codebook of February 2020: 14 columns, delta 1e-5, published 1.84 by the looser formula."""
    columns = [(51914, 2228), (17, 40), (2, 14), (5, 22), *[(1, 10)] * 10]
    total = compose([group_in_distinct_cells(ZCDP(Fraction(1, 2 * sigma**2)), k) for k, sigma in columns])
    assert isinstance(total, ZCDP)
    rho = float(total.rho)
    loose = rho + math.sqrt(4 * rho * math.log(math.sqrt(math.pi * rho) / 1e-5))
    assert abs(loose - 1.82) < 0.005
    assert abs(epsilon_at(total, 1e-5) - Fraction("1.58")) < Fraction("0.005")


@pytest.mark.tier("test")
def test_opendp_agrees() -> None:
    require(find_spec("opendp"), "comparison with OpenDP: pip install opendp")
    dp = import_module("opendp.prelude")
    dp.enable_features("contrib")
    space = dp.atom_domain(T=float, nan=False), dp.absolute_distance(T=float)
    for sigma, delta in itertools.product((0.5, 2.0, 20.0), (1e-3, 1e-6, 1e-9)):
        theirs = dp.c.make_zCDP_to_approxDP(space >> dp.m.then_gaussian(sigma)).map(1.0).epsilon(delta)
        ours = epsilon_at(ZCDP(Fraction(1, 2) / Fraction(str(sigma)) ** 2), delta)
        assert abs(float(ours) - theirs) <= NEAR


# --- Several losses -------------------------------------------------------------------------------------------------


def test_losses_add_in_the_weakest_kind() -> None:
    assert compose([]) == Pure(0)
    assert compose([Pure(0.1)] * 10) == repeated(Pure(0.1), 10) == Pure(1)
    assert compose([Pure(1), Approximate(1, 1e-6)]) == Approximate(2, 1e-6)
    assert compose([Pure(1), ZCDP(1, 1e-6), ZCDP(2, 1e-6)]) == ZCDP(3 + pure_as_rho(Fraction(1)), 2e-6)
    assert compose([ZCDP(1), Renyi(((2, 1), (3, 1))), Renyi(((3, 5), (4, 9)))]) == Renyi(((3, 9),))
    with pytest.raises(InvalidParameter):
        compose([Renyi(((2, 1),)), Renyi(((3, 1),))])
    with pytest.raises(InvalidParameter):
        repeated(Pure(1), -1)


def test_parallel_answers_cost_the_most_that_one_unit_can_touch() -> None:
    losses = [Pure(1), Pure(3), Pure(2)]
    assert parallel(losses) == Pure(3)
    assert parallel(losses, straddle=2) == Pure(5)
    assert parallel(losses, straddle=9) == compose(losses) == Pure(6)
    assert parallel([ZCDP(1, 1e-6), ZCDP(2)]) == ZCDP(2, 1e-6)
    with pytest.raises(InvalidParameter):
        parallel(losses, straddle=0)


def test_sums_of_many_primes_stay_short() -> None:
    total = compose([Pure(Fraction(1, p)) for p in primes(2000)])
    assert isinstance(total, Pure) and total.epsilon.denominator <= 10**60


@st.composite
def workloads(draw: st.DrawFn) -> tuple[list[list[Fraction]], list[Fraction]]:
    """A small matrix of weights, and a noise parameter for each row."""
    rows, columns = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    weight = st.fractions(min_value=-3, max_value=3, max_denominator=4)
    matrix = draw(st.lists(st.lists(weight, min_size=columns, max_size=columns), min_size=rows, max_size=rows))
    return matrix, draw(st.lists(small, min_size=rows, max_size=rows))


@given(workloads(), st.integers(1, 3))
def test_joint_costs_cover_every_change_of_the_histogram(
    workload: tuple[list[list[Fraction]], list[Fraction]], rows: int
) -> None:
    matrix, noise = workload
    laplace, gaussian = joint_laplace(matrix, noise, rows).epsilon, joint_gaussian(matrix, noise, rows).rho
    reached = []
    for change in itertools.product(range(-rows, rows + 1), repeat=len(matrix[0])):
        if sum(map(abs, change)) <= rows:
            moved = [sum(w * h for w, h in zip(row, change, strict=True)) for row in matrix]
            reached.append(sum(abs(m) / b for m, b in zip(moved, noise, strict=True)))
            assert reached[-1] <= laplace
            assert sum(m * m / v for m, v in zip(moved, noise, strict=True)) / 2 <= gaussian
    assert max(reached) == laplace


def test_joint_costs_of_known_workloads() -> None:
    identity = [[int(i == j) for j in range(8)] for i in range(8)]
    prefixes = [[int(j <= i) for j in range(8)] for i in range(8)]
    assert joint_laplace(identity, [10] * 8, rows=1) == Pure("1/10")
    assert joint_laplace(prefixes, [10] * 8, rows=1) == Pure("8/10")
    assert joint_gaussian(prefixes, [4] * 8, rows=2) == ZCDP(4 * 8 / 8)
    assert joint_laplace([*identity, [1] * 8], [10] * 9, rows=3) == Pure("6/10")


@pytest.mark.parametrize(
    ("matrix", "noise", "rows"),
    [([], [], 1), ([[]], [1], 1), ([[1], [1, 2]], [1, 1], 1), ([[1]], [0], 1), ([[1]], [1, 1], 1), ([[1]], [1], -1)],
)
def test_a_malformed_workload_is_refused(matrix: list[list[int]], noise: list[int], rows: int) -> None:
    for joint in (joint_laplace, joint_gaussian):
        with pytest.raises(InvalidParameter):
            joint(matrix, noise, rows)


# --- Sampling -------------------------------------------------------------------------------------------------------


@given(small, rates, st.fractions(min_value=0, max_value=Fraction(1, 10), max_denominator=100))
def test_amplification_covers_both_directions(epsilon: Fraction, rate: Fraction, delta: Fraction) -> None:
    loss = subsampled(Approximate(epsilon, delta), rate)
    e, d, q = mpmath.exp(real(epsilon)), real(delta), real(rate)
    out = [d, (1 - d) / (1 + e), (1 - d) * e / (1 + e), 0], [0, (1 - d) * e / (1 + e), (1 - d) / (1 + e), d]
    mixed = [(1 - q) * a + q * b for a, b in zip(*out, strict=True)]
    bound = real(rate * delta)
    assert hockey(mixed, out[0], loss.epsilon) <= bound + ROUNDING
    assert hockey(out[0], mixed, loss.epsilon) <= bound + ROUNDING
    tight = mpmath.log(1 + q * (e - 1))
    assert tight - ROUNDING <= real(loss.epsilon) <= tight + mpf(10) ** -18
    assert isinstance(loss, Approximate) and loss.delta == rate * delta


def test_sampling_everyone_changes_nothing_and_zcdp_is_refused() -> None:
    assert subsampled(Pure(1), 1) == Pure(1)
    for loss in (ZCDP(1), Renyi(((2, 1),))):
        with pytest.raises(InvalidParameter, match="Gaussian"):
            subsampled(loss, 0.5)
    for rate in (0, -1, 2):
        with pytest.raises(InvalidParameter, match="rate"):
            subsampled(Pure(1), rate)
        with pytest.raises(InvalidParameter, match="rate"):
            subsampled_gaussian(rate, 1, 1)
    for order in (1, 0, Fraction(5, 2)):
        with pytest.raises(InvalidParameter, match="integers"):
            subsampled_gaussian(0.5, 1, 1, [order])  # type: ignore[list-item]
    with pytest.raises(InvalidParameter, match="variance"):
        subsampled_gaussian(0.5, 0, 1)


@pytest.mark.parametrize("seed", range(12))
def test_subsampled_gaussian_against_the_discrete_law(seed: int) -> None:
    """Both directions, summed over the integers; the worse one is met within 1e-6."""
    rng = random.Random(seed)
    rate, order = Fraction(rng.randint(1, 999), 1000), rng.choice([2, 3, 5, 9])
    variance, shift = Fraction(rng.randint(50, 900), 100), rng.randint(1, 3)
    reach = shift * order + 1 + int(14 * math.sqrt(variance))
    with mpmath.workprec(400):
        base, moved = (discrete_gaussian(variance, s, reach) for s in (0, shift))
        mixed = [(1 - real(rate)) * a + real(rate) * b for a, b in zip(base, moved, strict=True)]
        adding, removing = renyi(base, mixed, Fraction(order)), renyi(mixed, base, Fraction(order))
    ours = subsampled_gaussian(rate, variance, shift**2, [order]).curve[0][1]
    assert adding <= removing + ROUNDING
    assert removing - ROUNDING <= real(ours) <= removing + NEAR


def test_subsampled_gaussian_against_the_continuous_integral() -> None:
    rng = random.Random(3)
    for order in (2, 4, 16):
        q, v = mpf(rng.uniform(0.01, 0.5)), mpf(rng.uniform(1, 6))
        sigma = mpmath.sqrt(v)

        def mixture(x: mpf, q: mpf = q, sigma: mpf = sigma) -> mpf:
            return (1 - q) * mpmath.npdf(x, 0, sigma) + q * mpmath.npdf(x, 1, sigma)

        def ratio(x: mpf, order: int = order, sigma: mpf = sigma) -> mpf:
            return mixture(x) ** order * mpmath.npdf(x, 0, sigma) ** (1 - order)

        exact = mpmath.log(mpmath.quad(ratio, [-14 * sigma, 0, order, order + 14 * sigma])) / (order - 1)
        rational = (Fraction(str(q)), Fraction(str(v)))
        ours = subsampled_gaussian(
            rational[0].limit_denominator(10**30), rational[1].limit_denominator(10**30), 1, [order]
        )
        assert abs(real(ours.curve[0][1]) - exact) < NEAR


@pytest.mark.tier("test")
def test_subsampled_gaussian_against_dp_accounting() -> None:
    """Training with 1,000 steps at rate 0.01: the same curve within 1e-6."""
    require(find_spec("dp_accounting"), "comparison with dp-accounting: pip install dp-accounting")
    events, rdp = import_module("dp_accounting"), import_module("dp_accounting.rdp")
    for rate, sigma in ((0.01, 1.0), (0.001, 0.7), (0.2, 3.0)):
        ours = repeated(subsampled_gaussian(rate, Fraction(str(sigma)) ** 2, 1, list(range(2, 60))), 1000)
        accountant = rdp.RdpAccountant(list(range(2, 60)))
        event = events.PoissonSampledDpEvent(rate, events.GaussianDpEvent(sigma))
        accountant.compose(event, 1000)
        theirs = accountant.get_epsilon(1e-5)
        assert theirs - NEAR <= float(epsilon_at(ours, 1e-5)) <= theirs + NEAR


def test_without_sampling_the_gaussian_is_plain_zcdp() -> None:
    assert subsampled_gaussian(1, 4, 1, [2, 3]).curve == ((2, Fraction(2, 8)), (3, Fraction(3, 8)))
    assert subsampled_gaussian(0.5, 4, 0, [2]).curve == ((2, 0),)


def test_small_noise_and_high_orders_stay_finite() -> None:
    curve = subsampled_gaussian("1/1000000", "1/100", 1).curve
    assert all(0 < epsilon <= order * 50 for order, epsilon in curve)


# --- Groups and meaning ---------------------------------------------------------------------------------------------


def test_group_losses() -> None:
    assert group(Pure(0.1), 7) == Pure(0.7)
    assert group(ZCDP("1/8"), 3) == ZCDP("9/8")
    assert group_in_distinct_cells(ZCDP("1/8"), 3) == ZCDP("3/8")
    assert group(Approximate(0, 1e-6), 5) == Approximate(0, 5e-6)
    assert group(Approximate(1, 0), 5) == Approximate(5, 0)
    assert group(Approximate(1, 1e-6), 1000) == Approximate(1000, 1)
    steep = group(Approximate(2, 1e-6), 7)  # close to 1, and not yet there
    assert isinstance(steep, Approximate) and Fraction("0.18") < steep.delta < Fraction("0.19")
    assert group_privacy_table(Pure(1), [1, 2]) == ((1, Pure(1)), (2, Pure(2)))
    for loss in (ZCDP(1, 1e-6), Renyi(((2, 1),))):
        with pytest.raises(InvalidParameter, match="epsilon, delta"):
            group(loss, 2)
    for refused in (Pure(1), ZCDP(1, 1e-6), Approximate(1, 0)):
        with pytest.raises(InvalidParameter, match="distinct cells"):
            group_in_distinct_cells(refused, 2)
    for nobody in (group, group_in_distinct_cells):
        with pytest.raises(InvalidParameter):
            nobody(ZCDP(1), 0)


@given(small, st.integers(1, 60), tiny)
def test_group_delta_is_the_geometric_sum(epsilon: Fraction, size: int, delta: Fraction) -> None:
    grouped = group(Approximate(epsilon, delta), size)
    assert isinstance(grouped, Approximate)
    exact = min(mpf(1), real(delta) * sum(mpmath.exp(real(i * epsilon)) for i in range(size)))
    assert exact - ROUNDING <= real(grouped.delta) <= exact * (1 + mpf(10) ** -18)


def test_group_zcdp_covers_chains_of_discrete_gaussians() -> None:
    for size, order in itertools.product((2, 3, 5), (Fraction(3, 2), Fraction(4))):
        base, moved = (discrete_gaussian(Fraction(9), s, 120) for s in (0, size))
        bound = group(ZCDP("1/18"), size)
        assert isinstance(bound, ZCDP)
        assert renyi(moved, base, order) <= real(bound.rho * order) + ROUNDING


@given(small, rates)
def test_power_of_a_pure_loss_is_reached_by_randomised_response(epsilon: Fraction, rate: Fraction) -> None:
    first, second = response(epsilon)
    exact = most_powerful(first, second, real(rate))
    assert exact <= real(power_of_test(Pure(epsilon), rate)) + ROUNDING
    assert real(power_of_test(Pure(epsilon), rate)) <= exact + mpf(10) ** -18


def most_powerful(first: Law, second: Law, rate: mpf) -> mpf:
    """The power of the Neyman-Pearson test at a false positive rate."""
    reached = mpf(0)
    for p, q in sorted(
        zip(first, second, strict=True), key=lambda pair: -pair[0] / pair[1] if pair[1] else -mpmath.inf
    ):
        part = min(mpf(1), rate / q) if q else mpf(1)
        reached, rate = reached + p * part, max(mpf(0), rate - q)
    return reached


@pytest.mark.parametrize("loss", [ZCDP("1/8"), ZCDP("1/8", "1/50"), as_renyi(ZCDP("1/8"), [2, 5, 20])])
def test_power_of_gaussian_noise_is_covered(loss: Loss) -> None:
    base, moved = (discrete_gaussian(Fraction(4), s, 80) for s in (0, 1))
    leak = real(loss.delta) if not isinstance(loss, Pure) else mpf(0)
    first = [leak, *((1 - leak) * p for p in moved), mpf(0)]
    second = [mpf(0), *((1 - leak) * q for q in base), leak]
    for rate, most in interpret(loss):
        assert most_powerful(first, second, real(rate)) <= real(most) <= 1


def test_power_outside_delta_is_taken_of_what_remains() -> None:
    """A high order is nearly pure, so that a bound which forgets f / (1 - delta) falls below the truth."""
    loss = Renyi(as_renyi(Pure(1), [400]).curve, delta="3/10")
    (yes, no), (_, also) = response(Fraction(1))
    first = [mpf("0.3"), mpf("0.7") * yes, mpf("0.7") * no, mpf(0)]
    second = [mpf(0), mpf("0.7") * no, mpf("0.7") * also, mpf("0.3")]
    exact = most_powerful(first, second, mpf("0.1"))
    assert exact <= real(power_of_test(loss, "1/10")) <= exact + mpf("0.01")


def test_meaning_in_the_words_of_the_paper() -> None:
    ((rate, most),) = interpret(Pure("1/10"), ["1/20"])
    assert rate == Fraction(1, 20) and 0 <= real(most) - mpmath.exp(mpf(1) / 10) / 20 < mpf(10) ** -18
    assert power_of_test(Approximate(0, 1e-3), 0.05) == Fraction("0.051")
    assert power_of_test(Approximate(1, 1e-3), 0) == power_of_test(ZCDP(1, 1e-3), 0) == Fraction("0.001")
    assert (
        power_of_test(Pure(10_000), 0.5) == 1 and power_of_test(Pure(10_000), 0) == 0 and power_of_test(ZCDP(1), 1) == 1
    )
    with pytest.raises(InvalidParameter):
        power_of_test(Pure(1), 2)


# --- Filters --------------------------------------------------------------------------------------------------------


def primes(count: int) -> list[int]:
    """The first primes."""
    sieve = bytearray([1]) * 20_000
    for n in range(2, 142):
        sieve[n * n :: n] = bytes(len(range(n * n, 20_000, n)))
    return [n for n in range(2, 20_000) if sieve[n]][:count]


def fits(spent: tuple[int, ...], cost: tuple[int, ...], cap: tuple[int, ...]) -> bool:
    """The rule that the ledger enforces."""
    return all(a + b <= c for a, b, c in zip(spent, cost, cap, strict=True))


def add(spent: tuple[int, ...], cost: tuple[int, ...]) -> tuple[int, ...]:
    """The coordinates after a charge."""
    return tuple(a + b for a, b in zip(spent, cost, strict=True))


def test_ten_tenths_use_up_a_budget_exactly() -> None:
    for enforced, loss, least in (
        (PureFilter(Fraction(1)), Pure(0.1), Pure(1e-15)),
        (ZCDPFilter(Fraction(1)), ZCDP(0.1), ZCDP(1e-15)),
        (RenyiFilter(((Fraction(2), Fraction(1)),)), Renyi(((2, 0.1),)), Renyi(((2, 1e-15),))),
    ):
        spent = (0,) * len(enforced.cap)
        for _ in range(10):
            assert fits(spent, enforced.spend(loss), enforced.cap)
            spent = add(spent, enforced.spend(loss))
        assert spent == enforced.cap
        assert not fits(spent, enforced.spend(least), enforced.cap)
        assert not fits(spent, enforced.spend(type(loss)(*shrunk(least))), enforced.cap)


def shrunk(loss: Loss) -> tuple[object, ...]:
    """A loss a billion times smaller: it still costs a unit."""
    match loss:
        case Pure():
            return (loss.epsilon / 10**9,)
        case ZCDP():
            return (loss.rho / 10**9,)
        case Renyi():
            return (tuple((order, epsilon / 10**9) for order, epsilon in loss.curve),)
        case _:
            raise TypeError(loss)


def test_caps_are_rounded_down() -> None:
    third = 10**15 // 3
    assert (
        PureFilter(Fraction(1, 3), Fraction(1, 3)).cap == ZCDPFilter(Fraction(1, 3), Fraction(1, 3)).cap == (third,) * 2
    )
    assert RenyiFilter(((Fraction(2), Fraction(1, 3)),)).cap == (third, 0)
    assert to_femto(Fraction(1, 3)) == third + 1


def test_two_thousand_primes_neither_drift_nor_grow() -> None:
    enforced, spent, exact = PureFilter(Fraction(4)), (0, 0), Fraction(0)
    for p in primes(2000):
        spent, exact = add(spent, enforced.spend(Pure(Fraction(1, p)))), exact + Fraction(1, p)
    assert exact <= Fraction(spent[0], 10**15) <= exact + Fraction(2000, 10**15)
    assert spent[0].bit_length() <= 63


@given(st.fractions(min_value=0, max_value=10**6))
def test_units_are_rounded_up_by_less_than_one(x: Fraction) -> None:
    assert x <= Fraction(to_femto(x), 10**15) < x + Fraction(1, 10**15) or to_femto(x) == LARGEST_COST


def test_every_cost_fits_into_sixty_three_bits_and_an_enormous_one_never_passes() -> None:
    enforced = PureFilter(Fraction(4611))
    cost = enforced.spend(Pure(10**50))
    assert cost[0] + enforced.cap[0] < 2**63 and not fits((0, 0), cost, enforced.cap)
    for declared in (Fraction(5000), Fraction(-1)):
        with pytest.raises(InvalidParameter):
            _ = PureFilter(declared).cap


@pytest.mark.parametrize(
    ("enforced", "loss", "able"),
    [
        (PureFilter(Fraction(1)), ZCDP(0.1), "zcdp"),
        (PureFilter(Fraction(1)), Approximate(0.1, 1e-6), "zcdp"),
        (PureFilter(Fraction(1)), Renyi(((2, 0.1),)), "renyi"),
        (ZCDPFilter(Fraction(1)), Renyi(((2, 0.1),)), "renyi"),
    ],
)
def test_a_loss_that_a_kind_cannot_express_is_refused(enforced: Filter, loss: Loss, able: str) -> None:
    with pytest.raises(InvalidParameter, match=f"kind {able} can"):
        enforced.spend(loss)


def test_costs_of_each_kind_in_each_budget() -> None:
    unit = 10**15
    assert PureFilter(Fraction(1)).spend(Approximate(1, 0)) == (unit, 0)
    assert PureFilter(Fraction(1), Fraction(1, 10**6)).spend(Approximate(1, 1e-9)) == (unit, 10**6)
    assert ZCDPFilter(Fraction(1)).spend(ZCDP(1, 1e-9)) == (unit, 10**6)
    assert ZCDPFilter(Fraction(1)).spend(Approximate(1, 1e-9)) == (to_femto(pure_as_rho(Fraction(1))), 10**6)
    order = RenyiFilter(((Fraction(2), Fraction(1)), (Fraction(8), Fraction(1))))
    assert order.spend(ZCDP(1, 1e-9)) == (2 * unit, 8 * unit, 10**6)
    assert order.spend(Pure(1)) == (*(to_femto(pure_as_renyi(Fraction(1), Fraction(a))) for a in (2, 8)), 0)
    assert len(order.names) == len(order.cap) == 3


def test_budgets_as_declared() -> None:
    one, delta = Fraction(1), Fraction(1, 10**6)
    assert filter_of(BudgetCap("user", "pure", epsilon=one)) == PureFilter(one)
    assert filter_of(BudgetCap("user", "zcdp", rho=one, delta=delta)) == ZCDPFilter(one, delta)
    assert filter_of(BudgetCap("user", "renyi", epsilon=one, order=Fraction(9))) == RenyiFilter(((Fraction(9), one),))
    both = filter_of(BudgetCap("user", "zcdp", epsilon=one, delta=delta))
    assert both == ZCDPFilter(largest_rho(one, delta * 9 / 10), delta / 10)
    assert epsilon_at(both.guarantee, delta) <= one
    for wrong in (
        BudgetCap("user", "pure"),
        BudgetCap("user", "zcdp"),
        BudgetCap("user", "zcdp", epsilon=one),
        BudgetCap("user", "zcdp", epsilon=one, rho=one, delta=delta),
        BudgetCap("user", "renyi", epsilon=one),
        BudgetCap("user", "renyi", epsilon=one, order=Fraction(1)),
    ):
        with pytest.raises(InvalidParameter):
            filter_of(wrong)


# An exact model of full adaptivity: every round's mechanism depends on the answers so far, and the laws of all
# transcripts are computed. A mechanism answers one of four letters; "!" and "?" betray the data with probability delta.


def one_round(epsilon: Fraction, delta: Fraction) -> dict[str, tuple[mpf, mpf]]:
    """The worst mechanism with a given (epsilon, delta): its law on either neighbour."""
    (yes, no), d = response(epsilon)[0], real(delta)
    return {"1": ((1 - d) * yes, (1 - d) * no), "0": ((1 - d) * no, (1 - d) * yes), "!": (d, mpf(0)), "?": (mpf(0), d)}


Strategy = Callable[[str], Approximate]
Rule = Callable[[tuple[int, ...], tuple[int, ...], tuple[int, ...]], bool]


def transcripts(enforced: Filter, strategy: Strategy, rounds: int, rule: Rule = fits) -> tuple[Law, Law]:
    """The laws of whole transcripts on two neighbours, when the filter stops the strategy."""
    live = [("", (0,) * len(enforced.cap), mpf(1), mpf(1))]
    for _ in range(rounds):
        following = []
        for history, spent, first, second in live:
            wanted = strategy(history)
            cost = enforced.spend(wanted)
            if not rule(spent, cost, enforced.cap):
                following.append((history + ".", spent, first, second))
                continue
            for letter, (p, q) in one_round(wanted.epsilon, wanted.delta).items():
                if first * p or second * q:
                    following.append((history + letter, add(spent, cost), first * p, second * q))
        live = following
    return [first for _, _, first, _ in live], [second for _, _, _, second in live]


def greedy(seed: int, with_delta: bool) -> Strategy:
    """Spends more where the answers so far look telling, and a different amount on every history."""

    def choose(history: str) -> Approximate:
        rng = random.Random(f"{seed}{history}")
        leaning = abs(history.count("1") - history.count("0"))
        epsilon = Fraction(rng.choice([1, 2, 3, 5, 8]), 10) * (1 + leaning)
        return Approximate(epsilon, Fraction(rng.choice([0, 1, 3]), 100) if with_delta else 0)

    return choose


def kept(enforced: Filter, first: Law, second: Law) -> bool:
    """Whether two laws satisfy the filter's guarantee."""
    match enforced:
        case PureFilter():
            return hockey(first, second, enforced.epsilon) <= real(enforced.delta) + ROUNDING
        case ZCDPFilter(delta=delta) if delta == 0:
            orders = [Fraction(101, 100), Fraction(2), Fraction(5), Fraction(20)]
            return all(renyi(first, second, a) <= real(a * enforced.rho) + ROUNDING for a in orders)
        case RenyiFilter(delta=delta) if delta == 0:
            return all(renyi(first, second, a) <= real(epsilon) + ROUNDING for a, epsilon in enforced.curve)
        case _:
            points = [Fraction(n, 4) for n in range(1, 20)]
            return all(hockey(first, second, e) <= allowed_delta(enforced.guarantee, e) + ROUNDING for e in points)


@cache
def allowed_delta(loss: Loss, epsilon: Fraction) -> mpf:
    """The delta that a guarantee allows, worked out once."""
    return real(delta_at(loss, epsilon))


FILTERS: list[Filter] = [
    PureFilter(Fraction(1)),
    PureFilter(Fraction(2), Fraction(4, 100)),
    ZCDPFilter(Fraction(1, 2)),
    ZCDPFilter(Fraction(1), Fraction(5, 100)),
    RenyiFilter(((Fraction(3), Fraction(3, 2)),)),
    RenyiFilter(((Fraction(2), Fraction(1)), (Fraction(8), Fraction(3))), Fraction(5, 100)),
]


@pytest.mark.parametrize("enforced", FILTERS, ids=lambda enforced: f"{enforced.kind}-{enforced.delta}")
def test_a_filter_holds_against_adaptive_strategies(enforced: Filter, tier: object) -> None:
    for seed in range(tier.pick(quick=6, test=40, deep=200)):  # type: ignore[attr-defined]
        first, second = transcripts(enforced, greedy(seed, with_delta=enforced.delta > 0), rounds=5)
        assert kept(enforced, first, second) and kept(enforced, second, first)
        assert abs(sum(first) - 1) < NEAR


def test_the_model_catches_a_filter_that_lets_the_last_charge_through() -> None:
    """A named bug: checking the balance before, not after, the charge."""
    broken = []
    for enforced in FILTERS:
        held = True
        for seed in range(6):
            strategy = greedy(seed, with_delta=enforced.delta > 0)
            laws = transcripts(enforced, strategy, 5, rule=lambda spent, _, cap: all(map(int.__le__, spent, cap)))
            held = held and kept(enforced, *laws)
        broken.append(not held)
    assert all(broken)


def test_the_model_catches_a_filter_that_charges_half() -> None:
    """A named bug: rho = epsilon^2 / 8 for a mechanism that is only pure."""

    class Cheap(ZCDPFilter):
        def spend(self, loss: Loss) -> tuple[int, ...]:
            return tuple(cost // 4 for cost in super().spend(loss))

    found = [
        not kept(Cheap(Fraction(1, 2)), *transcripts(Cheap(Fraction(1, 2)), greedy(s, False), 5)) for s in range(6)
    ]
    assert any(found)


@given(st.lists(st.tuples(small, tiny), min_size=1, max_size=30), st.sampled_from(FILTERS))
def test_what_was_let_through_never_exceeds_the_declared_cap(
    wanted: list[tuple[Fraction, Fraction]], enforced: Filter
) -> None:
    spent, passed = (0,) * len(enforced.cap), []
    for epsilon, delta in wanted:
        loss = Approximate(epsilon, delta if enforced.delta else 0)
        if fits(spent, enforced.spend(loss), enforced.cap):
            spent = add(spent, enforced.spend(loss))
            passed.append(loss)
    total = compose(passed)
    assert isinstance(total, Pure | Approximate)
    assert sum((loss.delta for loss in passed), Fraction(0)) <= enforced.delta
    if isinstance(enforced, PureFilter):
        assert total.epsilon <= enforced.epsilon


# --- The house ------------------------------------------------------------------------------------------------------


def test_every_public_rule_has_a_proof() -> None:
    pages = Path(accounting.__file__).parents[2] / "proofs"
    covered = " ".join(page.read_text() for page in pages.glob("*.md")).replace(",", " ").split()
    rules = [
        f"{module}:{node.name}"
        for module, file in rule_files().items()
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name[0] != "_"
    ]
    assert len(rules) > 25
    assert [rule for rule in rules if rule not in covered] == []


def rule_files() -> dict[str, Path]:
    """The modules that hold rules of composition, conversion and interpretation."""
    folder = Path(accounting.__file__).parent
    files = {f"dither.privacy.accounting.{file.stem}": file for file in sorted(folder.glob("*.py"))}
    return files | {"dither.post.interpretation": folder.parents[1] / "post" / "interpretation.py"}


def test_no_float_and_no_libm_in_the_claims() -> None:
    files = sorted(Path(accounting.__file__).parent.glob("*.py"))
    assert {"composition.py", "conversion.py", "filters.py", "rounding.py", "units.py"} <= {file.name for file in files}
    for file in files:
        tree = ast.parse(file.read_text())
        for node in ast.walk(tree):
            assert not (isinstance(node, ast.Constant) and isinstance(node.value, float)), node.lineno
            assert not (isinstance(node, ast.Name) and node.id == "float"), node.lineno
            if isinstance(node, ast.ImportFrom) and node.module == "math":
                assert [name.name for name in node.names] == ["comb"]
            assert not isinstance(node, ast.Import), node.lineno
