"""Composition of several losses, joint costs of workloads, sampling and groups."""

from __future__ import annotations

import itertools
import math
import random
from fractions import Fraction
from importlib import import_module
from importlib.util import find_spec

import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mpf

from conftest import require
from dither.errors import InvalidParameter
from dither.loss import ZCDP, Approximate, Pure, Renyi
from dither.post.interpretation import group_privacy_table
from dither.privacy.accounting.composition import (
    compose,
    compose_parallel,
    group,
    group_in_distinct_cells,
    joint_gaussian,
    joint_laplace,
    sampled_loss,
    self_compose,
    subsampled_gaussian,
)
from dither.privacy.accounting.conversion import epsilon_at, pure_as_rho
from privacy.accounting_cases import NEAR, ROUNDING, discrete_gaussian, hockey, primes, rates, real, renyi, small, tiny

pytestmark = pytest.mark.usefixtures("precision")


# --- Several losses ---


def test_losses_add_in_the_weakest_kind() -> None:
    assert compose([]) == Pure(0)
    assert compose([Pure(0.1)] * 10) == self_compose(Pure(0.1), 10) == Pure(1)
    assert compose([Pure(1), Approximate(1, 1e-6)]) == Approximate(2, 1e-6)
    assert compose([Pure(1), ZCDP(1, 1e-6), ZCDP(2, 1e-6)]) == ZCDP(3 + pure_as_rho(Fraction(1)), 2e-6)
    assert compose([ZCDP(1), Renyi(((2, 1), (3, 1))), Renyi(((3, 5), (4, 9)))]) == Renyi(((3, 9),))
    with pytest.raises(InvalidParameter):
        compose([Renyi(((2, 1),)), Renyi(((3, 1),))])
    with pytest.raises(InvalidParameter):
        self_compose(Pure(1), -1)


def test_parallel_answers_cost_the_most_that_one_unit_can_touch() -> None:
    losses = [Pure(1), Pure(3), Pure(2)]
    assert compose_parallel(losses) == Pure(3)
    assert compose_parallel(losses, straddle=2) == Pure(5)
    assert compose_parallel(losses, straddle=9) == compose(losses) == Pure(6)
    assert compose_parallel([ZCDP(1, 1e-6), ZCDP(2)]) == ZCDP(2, 1e-6)
    with pytest.raises(InvalidParameter):
        compose_parallel(losses, straddle=0)


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


# --- Sampling ---


@given(small, rates, st.fractions(min_value=0, max_value=Fraction(1, 10), max_denominator=100))
def test_amplification_covers_both_directions(epsilon: Fraction, rate: Fraction, delta: Fraction) -> None:
    loss = sampled_loss(Approximate(epsilon, delta), rate)
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
    assert sampled_loss(Pure(1), 1) == Pure(1)
    for loss in (ZCDP(1), Renyi(((2, 1),))):
        with pytest.raises(InvalidParameter, match="Gaussian"):
            sampled_loss(loss, 0.5)
    for rate in (0, -1, 2):
        with pytest.raises(InvalidParameter, match="rate"):
            sampled_loss(Pure(1), rate)
        with pytest.raises(InvalidParameter, match="rate"):
            subsampled_gaussian(rate, 1, 1)
    for order in (1, 0, Fraction(5, 2)):
        with pytest.raises(InvalidParameter, match="integers"):
            subsampled_gaussian(0.5, 1, 1, [order])  # type: ignore[list-item]
    with pytest.raises(InvalidParameter, match="variance"):
        subsampled_gaussian(0.5, 0, 1)


@pytest.mark.parametrize("seed", range(12))
def test_subsampled_gaussian_against_the_discrete_distribution(seed: int) -> None:
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
        ours = self_compose(subsampled_gaussian(rate, Fraction(str(sigma)) ** 2, 1, list(range(2, 60))), 1000)
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


# --- Groups ---


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
