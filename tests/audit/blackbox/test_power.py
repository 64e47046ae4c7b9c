"""AuditPower: what an audit says that it could have refuted, it does refute, about as often as it says."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from math import exp, inf
from typing import Any

import numpy as np
import pytest

from dither import audit
from dither.audit.blackbox.power import AuditPower, violation_near
from dither.audit.claims import ceiling, strength
from dither.audit.confidence import Counts, p_value
from dither.errors import InvalidParameter
from dither.loss import ZCDP, Approximate, Loss, Pure, Renyi

STEP = 2.0**-20
# The scale of Gaussian noise for (1, 1e-2) by the classical formula, which is claimed to give (1, 1e-6).
WRONG_DELTA = float(np.sqrt(2 * np.log(1.25 / 1e-2)))

Mechanism = Callable[[float, int], Any]


def laplace(epsilon: float, seed: Any) -> Mechanism:
    rng = np.random.default_rng(seed)
    return lambda value, size: np.rint((value + rng.laplace(scale=1 / epsilon, size=size)) / STEP) * STEP


def response(epsilon: float, seed: Any) -> Mechanism:
    rng, truthful = np.random.default_rng(seed), exp(epsilon) / (1 + exp(epsilon))
    return lambda value, size: np.where(rng.random(size) < truthful, value, 1 - value)


def gaussian(scale: float, seed: Any) -> Mechanism:
    rng = np.random.default_rng(seed)
    return lambda value, size: np.rint((value + scale * rng.standard_normal(size)) / STEP) * STEP


def concentrated(rho: float, seed: Any) -> Mechanism:
    return gaussian(1 / np.sqrt(2 * rho), seed)


@pytest.mark.parametrize(
    ("claim", "mode"),
    [
        (Approximate(1, "1e-6"), "fixed"),
        *(
            pytest.param(claim, mode, marks=pytest.mark.tier("test"))
            for claim in (ZCDP("1/8"), Renyi(((8, 1),)), Approximate(1, "1e-6"))
            for mode in ("sequential", "fixed")
        ),
    ],
)
def test_no_event_is_certain_if_outputs_differ(claim: Loss, mode: str) -> None:
    """The named bug: if nothing looks worse than the claim, the certain event is best, and says nothing."""
    result = audit.privacy(gaussian(WRONG_DELTA, 1), claim, [(0.0, 1.0)], samples=4000, alpha=1e-6, mode=mode, seed=0)
    assert not result.refuted
    assert 0 < result.evidence.probability_b < result.evidence.probability_a < 0.9


@pytest.mark.tier("test")
def test_a_wrong_delta_is_refuted_if_samples_suffice() -> None:
    # With the best event, these samples refute in about 99 of 100 runs; seeds are fixed.
    mechanism = gaussian(WRONG_DELTA, 1)
    result = audit.privacy(mechanism, "epsilon=1, delta=1e-6", [(0.0, 1.0)], samples=10_000_000, seed=1, bits=False)
    assert result.refuted and result.epsilon_lower > 1


TEST, DEEP = pytest.mark.tier("test"), pytest.mark.tier("deep")


@pytest.mark.parametrize(
    ("make", "claim", "mode"),
    [
        pytest.param(laplace, Pure(1), "fixed", marks=TEST),
        pytest.param(laplace, Pure("1/10"), "fixed", marks=TEST),
        pytest.param(response, Pure(1), "fixed", marks=TEST),
        pytest.param(concentrated, ZCDP("1/2"), "fixed", marks=DEEP),
        pytest.param(laplace, Pure(1), "sequential", marks=TEST),
    ],
)
def test_what_is_said_to_be_detectable_is_refuted(make: Any, claim: Loss, mode: str) -> None:
    # If each is refuted with probability 0.9, fewer than 6 of 16 are with probability 3e-8.
    options: dict[str, Any] = {"samples": 6000, "alpha": 0.01, "mode": mode}
    said = audit.privacy(make(strength(claim), 0), claim, [(0, 1)], seed=0, **options)
    assert strength(claim) < said.detectable < 4 * strength(claim)
    found = (
        audit.privacy(make(said.detectable, [seed, 1]), claim, [(0, 1)], seed=seed, **options).refuted
        for seed in range(16)
    )
    assert len(list(islice(filter(None, found), 6))) == 6  # no more are run than it takes


@pytest.mark.tier("test")
@pytest.mark.parametrize("claim", [Pure(1), Pure("1/10"), Renyi(((8, 1),))])
@pytest.mark.parametrize("p", [0.5, 0.02])
def test_the_stated_power_is_that_of_the_test(claim: Loss, p: float) -> None:
    """Counts at the stated strength, drawn from their distribution: at least nine in ten refute the claim."""
    power = AuditPower(claim, 0.01, p, (9000, 11_000), 30_000)
    q = power._other_probability(claim, p, power.detectable)
    limit, rng, rare = ceiling(claim, strength(claim)), np.random.default_rng(1), isinstance(claim, Pure) and p < 0.03
    drawn = zip(rng.binomial(9000, p, 40).tolist(), rng.binomial(11_000, q, 40).tolist(), strict=True)
    # Of 40 draws that refute with probability 0.9, fewer than 24 do with probability 8e-8.
    assert sum(p_value(Counts(a, 9000, b, 11_000, rare), limit) <= 0.01 for a, b in drawn) >= 24


def test_more_samples_detect_less_and_the_number_needed_suffices() -> None:
    few, many = (AuditPower(Pure(1), 1e-6, 0.4, (runs, runs), 3 * runs) for runs in (10_000, 1_000_000))
    assert 1 < many.detectable < few.detectable < 2
    assert many.rarest_leak < few.rarest_leak < 1
    assert not few.detects("epsilon=1.1") and few.detects(Pure(3))
    needed = few.samples_needed("epsilon=1.1")
    assert few._with_runs(needed / few.samples).detects(Pure("11/10"))
    assert not few._with_runs(0.9 * needed / few.samples).detects(Pure("11/10"))
    assert "epsilon of 1.1 needs about" in str(few) and f"{needed:,.0f} samples" in str(few)
    assert few.samples_to_notice(few.rarest_leak / 10) == pytest.approx(10 * few.samples, rel=0.15)


def test_a_certain_event_has_no_power() -> None:
    result = audit.privacy(lambda value, size: np.zeros(size), "epsilon=1", [(0, 1)], samples=1000, seed=1)
    assert result.detectable == inf and "nothing was tested" in str(result)
    assert "needs more samples than can be drawn" in result.power.shortfall()


def test_a_small_delta_is_beyond_few_samples() -> None:
    power = AuditPower(Approximate(1, "1e-6"), 1e-6, 0.03, (60_000, 80_000), 200_000)
    assert (
        power.rarest_leak > 1e-4
        and "epsilon=2, delta=1e-06 would be refuted with probability below" in power.shortfall()
    )
    assert "10 times the claimed delta" in power._with_runs(10).shortfall()
    assert power.shortfall(Approximate(5, "1e-6")) == ""
    assert "needs about" in power.shortfall(Approximate(1, "1e-4"))


def test_a_violation_must_exceed_the_claim() -> None:
    power = AuditPower(Pure(1), 0.01, 0.5, (1000, 1000), 3000)
    for violation in ("epsilon=1", "epsilon=1/2", "rho=1", "order=8, epsilon=3"):
        with pytest.raises(InvalidParameter, match="violation"):
            power.detects(violation)
    assert violation_near(Renyi(((8, 1),)), 2) is None and violation_near(ZCDP("1/2"), 2) == ZCDP(1)
