"""Stated costs against figures worked out by hand, and against dp-accounting and OpenDP."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest

from conftest import require
from dither.loss import ZCDP, Pure, Sensitivity
from dither.privacy import mechanisms
from dither.privacy.accounting.conversion import epsilon_at, pure_as_rho

# --- By hand ---


def test_the_stated_costs() -> None:
    """Figures worked out by hand, at a distance where every norm is different: two cells by 3."""
    s = Sensitivity.of(l0=2, linf=3)
    assert mechanisms.DiscreteLaplace(12).loss(s) == mechanisms.Geometric(12).loss(s) == Pure("1/2")
    assert mechanisms.Snapping(12, 64).loss(s) == mechanisms.PublicThreshold(12, 9).loss(s) == Pure("1/2")
    assert mechanisms.DiscreteGaussian(9).loss(s) == ZCDP(1)
    assert mechanisms.ColumnGaussian((Fraction(36), Fraction(9))).loss(s) == ZCDP(1)
    assert mechanisms.Staircase("1/4", 2, 1).loss(s) == Pure(1)  # two steps in each cell
    assert mechanisms.Staircase("1/4", 4, 1).loss(s) == Pure("1/2")  # one
    uneven = Sensitivity(*map(Fraction, (2, 9, 10, 82)))
    assert mechanisms.Staircase("1/4", 4, 1).loss(uneven) == Pure(1)  # 9 is three steps, 1 is one
    assert mechanisms.TopK(2, 12).loss(s) == Pure(1)
    sparse = mechanisms.SparseVector(0, 1, 12, 12, 12)
    assert sparse.loss(s) == Pure(Fraction(6, 12) + Fraction(3, 12))
    crossing = pure_as_rho(Fraction(1, 2))
    assert sparse.zcdp_loss(s) == ZCDP(crossing + Fraction(9, 2 * 144))
    assert replace(sparse, count=5).zcdp_loss(s) == ZCDP(crossing + Fraction(18, 2 * 144))
    deciles = mechanisms.Quantiles(("1/10", "9/10"), 12)
    assert deciles.loss(s) == Pure(Fraction(2 * 6, 12) * (Fraction(9, 10) + Fraction(8, 9)))
    assert deciles.zcdp_loss(s) == ZCDP(Fraction(36, 2 * 144) * (Fraction(9, 10) ** 2 + Fraction(8, 9) ** 2))
    three = mechanisms.Quantiles(("1/10", "2/10", "9/10"), 12)
    assert three.loss(s) == Pure(Fraction(2 * 6, 12) * (Fraction(8, 10) + Fraction(7, 8)))
    groups = Sensitivity.of(l0=3, linf=1)
    assert mechanisms.PartitionSelection("1/5", "1/100").loss(groups).epsilon == Fraction(3, 5)
    assert mechanisms.PartitionSelection("1/5", "1/100").zcdp_loss(groups).rho == 3 * pure_as_rho(Fraction(1, 5))


def test_the_stated_costs_of_laplace_noise_in_rho() -> None:
    """The squares where few cells move far, the hyperbolic tangent where all that move do."""
    uneven, far = Sensitivity(*map(Fraction, (10, 5, 10, 30))), Sensitivity.of(l0=2, linf=30)
    assert mechanisms.DiscreteLaplace(100).zcdp_loss(uneven).rho == Fraction(30, 2 * 100**2)
    assert mechanisms.DiscreteLaplace(2).zcdp_loss(far).rho == 2 * pure_as_rho(Fraction(15))


# --- Other libraries ---


@pytest.fixture(scope="module")
def losses() -> Any:
    """The privacy loss distributions of dp-accounting."""
    require(find_spec("dp_accounting"), "comparison with dp-accounting: pip install dp-accounting")
    return import_module("dp_accounting.pld.privacy_loss_distribution")


@pytest.mark.tier("test")
@pytest.mark.parametrize(("scale", "step"), [(1, 1), (5, 2), (20, 7)])
def test_laplace_agrees_with_dp_accounting(losses: Any, scale: int, step: int) -> None:
    theirs = losses.from_discrete_laplace_mechanism(1 / scale, sensitivity=step, value_discretization_interval=1e-4)
    ours = float(mechanisms.DiscreteLaplace(scale).loss(Sensitivity.of(l0=1, linf=step)).epsilon)
    assert theirs.get_epsilon_for_delta(0) == pytest.approx(ours, abs=2e-4)


@pytest.mark.tier("test")
@pytest.mark.parametrize(("variance", "step"), [(100, 1), (4, 2)])
def test_gaussian_covers_dp_accounting(losses: Any, variance: int, step: int) -> None:
    theirs = losses.from_discrete_gaussian_mechanism(
        variance**0.5, sensitivity=step, value_discretization_interval=1e-4
    )
    loss = mechanisms.DiscreteGaussian(variance).loss(Sensitivity.of(l0=1, linf=step))
    tight, ours = theirs.get_epsilon_for_delta(1e-6), float(epsilon_at(loss, 1e-6))
    assert tight <= ours <= 1.15 * tight


@pytest.mark.tier("test")
def test_figures_agree_with_opendp() -> None:
    require(find_spec("opendp"), "comparison with OpenDP: pip install opendp")
    dp = import_module("opendp.prelude")
    dp.enable_features("contrib")
    vector = (dp.vector_domain(dp.atom_domain(T=int)), dp.l1_distance(T=int))
    s = Sensitivity.of(l0=1, linf=3)
    laplace = dp.m.make_laplace(*vector, scale=7.0).map(3)
    assert float(mechanisms.DiscreteLaplace(7).loss(s).epsilon) == pytest.approx(laplace, rel=1e-12)
    squared = (dp.vector_domain(dp.atom_domain(T=int)), dp.l2_distance(T=int))
    gaussian = dp.m.make_gaussian(*squared, scale=7.0).map(3)
    assert float(mechanisms.DiscreteGaussian(49).loss(s).rho) == pytest.approx(gaussian, rel=1e-12)
    scores = (dp.vector_domain(dp.atom_domain(T=int)), dp.linf_distance(T=int))
    many = Sensitivity.of(l0=50, linf=3)
    flip = dp.m.make_noisy_max(*scores, dp.max_divergence(), scale=7.0).map(3)
    assert float(mechanisms.NoisyMax(7).loss(many).epsilon) == pytest.approx(flip, rel=1e-12)
    gumbel = dp.m.make_noisy_max(*scores, dp.zero_concentrated_divergence(), scale=7.0).map(3)
    assert float(mechanisms.ExponentialMechanism(7).zcdp_loss(many).rho) == pytest.approx(gumbel, rel=1e-12)
    ours = mechanisms.RandomizedResponse(4, Fraction(2, 5))
    truth = dp.m.make_randomized_response(
        categories=[0, 1, 2, 3], prob=float(1 - ours.flip_probability + ours.flip_probability / 4)
    ).map(1)
    assert float(ours.epsilon) == pytest.approx(truth, rel=1e-12)
