"""Conversions between kinds of loss, and to (epsilon, delta), against exact values and OpenDP."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from fractions import Fraction
from importlib import import_module
from importlib.util import find_spec

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mpf

from conftest import require
from dither.errors import InvalidParameter
from dither.loss import ZCDP, Approximate, Pure, Renyi
from dither.privacy.accounting import conversion
from dither.privacy.accounting.composition import compose, group_in_distinct_cells
from dither.privacy.accounting.conversion import (
    as_renyi,
    as_zcdp,
    delta_at,
    epsilon_at,
    largest_rho,
    pure_as_renyi,
    pure_as_rho,
)
from privacy.accounting_cases import NEAR, ROUNDING, Distribution, hockey, real, renyi, response, small, tiny

pytestmark = pytest.mark.usefixtures("precision")


# --- From one kind to another ---


def random_pairs(seed: int, count: int) -> Iterator[tuple[Distribution, Distribution, Fraction]]:
    """Pairs of distributions whose log ratio lies within a random epsilon."""
    rng = random.Random(seed)
    for _ in range(count):
        epsilon = Fraction(rng.randint(1, 4000), 1000)
        second = [mpf(rng.random()) for _ in range(4)]
        second = [q / sum(second) for q in second]
        raw = [q * mpmath.exp(real(epsilon) * mpf(rng.uniform(-0.5, 0.5))) for q in second]
        yield [p / sum(raw) for p in raw], second, epsilon


@given(small, st.fractions(min_value=Fraction(101, 100), max_value=64, max_denominator=100))
@settings(max_examples=100)
def test_pure_as_renyi_is_randomised_response_exactly(epsilon: Fraction, order: Fraction) -> None:
    exact = renyi(*response(epsilon), order)
    assert exact - ROUNDING <= real(pure_as_renyi(epsilon, order)) <= exact + mpf(10) ** -18
    assert pure_as_renyi(epsilon, order) <= order * pure_as_rho(epsilon)


def test_pure_as_renyi_covers_every_distribution_within_epsilon() -> None:
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


# --- (epsilon, delta) ---


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
    with pytest.raises(InvalidParameter, match="at least 0"):
        delta_at(ZCDP(1), -1)


def test_the_renyi_conversion_uses_only_its_own_orders() -> None:
    orders = [2, 8, 11, 40]
    ours = epsilon_at(as_renyi(ZCDP("1/8"), orders), 1e-6)
    each = [a / 8 + math.log1p(-1 / a) - math.log(1e-6 * a) / (a - 1) for a in orders]
    assert min(each) - 1e-12 <= ours <= min(each) + NEAR


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


@pytest.mark.parametrize("order", ["3/2", "2", "7", "61/3"])
@pytest.mark.parametrize("delta", ["1/7", "1e-6", "3e-11"])
def test_epsilon_is_rounded_up_and_never_down(order: str, delta: str) -> None:
    """At one order the conversion is a closed form, known to 60 digits: the stated epsilon must not lie below it."""
    a, d = Fraction(order), Fraction(delta)
    divergences = [Fraction(number, 37) for number in range(30, 90, 7)]
    with mpmath.workdps(60):
        excess = mpmath.log(1 - 1 / real(a)) - mpmath.log(real(d) * real(a)) / (real(a) - 1)
        for divergence in divergences:
            stated, exact = epsilon_at(Renyi(((a, divergence),)), d), real(divergence) + excess
            assert exact <= real(stated) <= exact + mpf(10) ** -15


@pytest.mark.parametrize("rho", ["1/8", "1/3", "2", "1/1000"])
def test_zcdp_to_epsilon_is_not_below_the_best_order_that_was_found(rho: str) -> None:
    loss, delta = ZCDP(rho), Fraction(1, 10**6)
    found = conversion.smallest_bound(loss, lambda order: loss.rho * order + conversion._epsilon_excess(order, delta))
    assert found <= epsilon_at(loss, delta) <= found + Fraction(1, 10**15)
