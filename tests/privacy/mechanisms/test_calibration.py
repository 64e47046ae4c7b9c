"""Calibration: the noise for a given loss never costs more than that loss, and hardly less."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dither.errors import DitherError
from dither.loss import ZCDP, Approximate, Pure, Renyi, Sensitivity
from dither.plan.measures.columns import MAX_COLUMNS
from dither.privacy import mechanisms
from dither.privacy.accounting.conversion import epsilon_at
from dither.privacy.mechanisms import BY_NAME, calibrate
from privacy.mechanism_cases import OPTIONS, PURE


def test_calibration_is_exact_where_rationals_are() -> None:
    sensitivity = Sensitivity.of(l0=3, linf=2)
    assert calibrate("discrete_laplace", Pure("1/10"), sensitivity) == mechanisms.DiscreteLaplace(60)
    assert calibrate("discrete_gaussian", ZCDP("1/10"), sensitivity) == mechanisms.DiscreteGaussian(60)
    assert calibrate("noisy_max", Pure("1/10"), sensitivity) == mechanisms.NoisyMax(40)
    assert calibrate("quantiles", Pure("1/10"), sensitivity) == mechanisms.Quantiles(("1/2",), 60)


@pytest.mark.parametrize("name", PURE)
@given(st.integers(1, 10**6), st.integers(1, 8), st.integers(1, 50))
@settings(max_examples=10, deadline=None)
def test_calibration_never_costs_more_and_hardly_less(name: str, epsilon: int, l0: int, linf: int) -> None:
    sensitivity = Sensitivity.of(l0=l0, linf=linf)
    loss = Pure(Fraction(epsilon, 10**5))
    cost = calibrate(name, loss, sensitivity, **OPTIONS.get(name, {})).loss(sensitivity)
    assert isinstance(cost, Pure)
    assert loss.epsilon * Fraction(999999, 10**6) <= cost.epsilon <= loss.epsilon


@pytest.mark.parametrize("name", [name for name in BY_NAME if name not in ("discrete_gaussian", "column_gaussian")])
@given(st.integers(1, 10**5), st.integers(1, 8))
@settings(max_examples=5, deadline=None)
def test_calibration_to_rho_never_costs_more_and_hardly_less(name: str, rho: int, l0: int) -> None:
    sensitivity = Sensitivity.of(l0=l0, linf=1)
    loss = ZCDP(Fraction(rho, 10**5), Fraction(1, 10**6))
    cost = calibrate(name, loss, sensitivity, **OPTIONS.get(name, {})).zcdp_loss(sensitivity)
    assert loss.rho * Fraction(999999, 10**6) <= cost.rho <= loss.rho
    assert cost.delta <= loss.delta


@pytest.mark.parametrize("name", ["partition_selection", "laplace_threshold", "gaussian_threshold"])
@pytest.mark.parametrize("groups", [1, 3, 40])
def test_keys_are_calibrated_to_epsilon_and_delta(name: str, groups: int) -> None:
    sensitivity = Sensitivity.of(l0=groups, linf=1)
    wanted = Approximate(1, 1e-6)
    cost = calibrate(name, wanted, sensitivity).loss(sensitivity)
    assert epsilon_at(cost, wanted.delta) <= wanted.epsilon
    if isinstance(cost, Approximate):
        assert cost.delta <= wanted.delta and cost.epsilon >= wanted.epsilon * Fraction(999, 1000)


def test_partition_selection_shares_epsilon_and_delta_over_groups() -> None:
    made = calibrate("partition_selection", Approximate(1, "1/1000"), Sensitivity.of(l0=4, linf=1))
    assert isinstance(made, mechanisms.PartitionSelection)
    assert made.epsilon == Fraction(1, 4)
    assert float(made.delta) == pytest.approx(1 - (1 - 1e-3) ** 0.25, rel=1e-12)
    assert made.delta > Fraction(1, 4000)


@pytest.mark.parametrize("name", PURE)
def test_nothing_at_stake_takes_the_least_noise(name: str) -> None:
    made = calibrate(name, Pure(1), Sensitivity.of(l0=0, linf=0), **OPTIONS.get(name, {}))
    assert made.loss(Sensitivity.of(l0=0, linf=0)) == Pure(0)


def test_other_kinds_of_loss() -> None:
    one = Sensitivity.of(l0=1, linf=1)
    gaussian = calibrate("discrete_gaussian", Approximate(1, 1e-6), one)
    assert epsilon_at(gaussian.loss(one), 1e-6) <= 1
    assert calibrate("discrete_gaussian", Renyi(((2, 1), (8, 2))), one).loss(one) == ZCDP(Fraction(1, 4))
    assert calibrate("discrete_laplace", Approximate(1, 1e-6), one) == mechanisms.DiscreteLaplace(1)


@pytest.mark.parametrize(
    ("name", "loss", "options"),
    [
        ("discrete_gaussian", Pure(1), {}),
        ("gaussian_threshold", Pure(1), {}),
        ("partition_selection", Pure(1), {}),
        ("laplace_threshold", ZCDP(1), {}),
        ("discrete_laplace", Pure(0), {}),
        ("discrete_laplace", Pure(1), {"colour": 1}),
        ("top_k", Pure(1), {}),
        ("laplace", Pure(1), {}),
        ("exponential", ZCDP("1e-40"), {}),
    ],
)
def test_what_cannot_be_calibrated_is_refused(name: str, loss: Any, options: dict[str, Any]) -> None:
    with pytest.raises(DitherError):
        calibrate(name, loss, Sensitivity.of(l0=1, linf=1), **options)


@pytest.mark.parametrize("columns", [0, -1, True, 2.0, "2", None, MAX_COLUMNS + 1, 10**9, 10**400])
def test_a_number_of_columns_that_no_table_has_is_refused(columns: Any) -> None:
    """A short request must not ask for a list that fills the memory; planted: without the limit, 10^9 does."""
    with pytest.raises(DitherError, match=f"columns must be an integer from 1 to {MAX_COLUMNS}"):
        calibrate("column_gaussian", ZCDP(1), Sensitivity.of(l0=2, linf=1), columns=columns)


junk = st.one_of(st.integers(), st.just(10**400), st.floats(), st.text(max_size=5), st.none(), st.lists(st.integers()))


@given(
    st.sampled_from(sorted(BY_NAME)), junk, junk, st.sampled_from([Pure(1), ZCDP("1/9", "1/99"), Approximate(1, "1/9")])
)
@settings(max_examples=100, deadline=None)
def test_junk_is_refused_with_our_own_errors(name: str, one: Any, other: Any, loss: Any) -> None:
    wanted = {"staircase": ["width"], "geometric": ["lower", "upper"]}.get(name, list(OPTIONS.get(name, {"colour": 1})))
    options = dict(zip(wanted, (one, other), strict=False))
    sensitivity = Sensitivity.of(l0=2, linf=1)
    try:
        made = calibrate(name, loss, sensitivity, **options)
    except DitherError:
        return
    assert made.zcdp_loss(sensitivity).rho >= 0
