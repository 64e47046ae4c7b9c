"""Certify every mechanism of Dither by enumerating its own code, and detect faults injected into that code."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from dither.audit.enumeration import sampler_models
from dither.audit.enumeration.api import exact
from dither.audit.enumeration.certify import CASES, LISTED_CASES, CertifiedCase, certificate, default_cases
from dither.audit.enumeration.paths import UNIT, ExactDistribution
from dither.audit.enumeration.sampler_models import exact_distribution, sampler_distribution
from dither.cli.audit import app
from dither.errors import NotFound
from dither.loss import ZCDP, Approximate, Pure, Sensitivity
from dither.privacy.mechanisms import BY_NAME, DiscreteLaplace, ExponentialMechanism, NoisyMax, selection
from dither.privacy.noise import FULL, lattice, race

F = Fraction


SLOW = ("noisy_max", "noisy_max_quantiles", "top_k")  # seconds each


def cases() -> Iterator[Any]:
    for number, case in enumerate(CASES):
        slow = case.mechanism.name in SLOW or (case.gap_reason and "threshold_scale" in str(case.mechanism))
        tiers = ["deep"] if case.large else ["test"] if slow else []
        yield pytest.param(case, id=f"{number} {case.mechanism.name}", marks=[pytest.mark.tier(tier) for tier in tiers])


@pytest.mark.parametrize("case", cases())
def test_mechanisms_are_certified_on_canonical_pairs(case: CertifiedCase) -> None:
    made, found = certificate(case)
    print(made)
    claim = case.claim
    assert made.certified and made.residual <= 1e-15
    if isinstance(claim, Pure):
        assert not found.refutes(claim) and made.at_most <= float(claim.epsilon) + 1e-6
        if not case.gap_reason:
            assert made.at_least is not None and made.at_least >= float(claim.epsilon) - 1e-6
            assert not found.certifies(Pure(claim.epsilon - F(1, 1000))) and found.refutes(
                Pure(claim.epsilon - F(1, 1000))
            )
    elif isinstance(claim, Approximate):
        assert not found.refutes(claim)
    elif not case.gap_reason and not claim.delta:
        assert not found.certifies(ZCDP(claim.rho * F(99, 100)), tolerance=min(1e-6, float(claim.rho) / 1000))


def test_every_mechanism_has_a_pair() -> None:
    assert {case.mechanism.name for case in CASES} == set(BY_NAME)


def test_a_new_mechanism_with_a_scale_has_a_pair() -> None:
    listed = [case for case in LISTED_CASES if case.mechanism.name != "discrete_laplace"]
    (case,) = default_cases(listed)
    assert case == CertifiedCase(DiscreteLaplace(F(1)), (0,), (1,))
    assert not list(default_cases(LISTED_CASES))
    assert certificate(case)[0].certified


def test_the_pairs_that_cost_their_delta() -> None:
    """A group of one unit against none loses the claimed delta, to six digits."""
    for case in CASES:
        claim = case.claim
        if isinstance(claim, Approximate) and case.a == (0,):
            _, found = certificate(case)
            assert float(found.delta_lower(claim.epsilon)) == pytest.approx(float(claim.delta), rel=1e-6)


def probability(distribution: ExactDistribution, outcome: Any) -> float:
    return float(F(distribution.masses[outcome], UNIT))


@pytest.mark.tier("test")
@pytest.mark.parametrize(("scores", "rate"), [([0, 1], F(1)), ([0, 2], F(1, 3))])
def test_noisy_max_is_permute_and_flip(scores: list[int], rate: Fraction) -> None:
    found = exact_distribution(lambda tape: selection.noisy_max(np.array(scores), rate, tape), 1e-15)
    lead = float(rate) * (scores[1] - scores[0])
    assert found.residual <= 1e-15
    assert probability(found, 0) == pytest.approx(math.exp(-lead) / 2, abs=1e-14)


@pytest.mark.parametrize("widths", [{"ticks": 2, "more": 2}, {"ticks": 3, "more": 4}], ids=str)
@pytest.mark.tier("test")
def test_the_distribution_does_not_depend_on_the_widths(widths: dict[str, int], fresh: None, monkeypatch: Any) -> None:
    """The narrow widths of the enumeration rely on this, besides the proof."""
    monkeypatch.setattr(sampler_models, "NARROW", replace(FULL, **widths))
    found = exact_distribution(lambda tape: selection.noisy_max(np.array([0, 1]), F(1, 3), tape), 1e-4, 3000)
    low, high = found.interval(0)
    assert low <= math.exp(-1 / 3) / 2 <= high <= low + F(1, 15)


def test_three_candidates_follow_the_exponential_mechanism() -> None:
    found = exact(ExponentialMechanism(F(3)), ([0, 1, 2], [1, 0, 2]))
    weights = [math.exp(score / 3) for score in (0, 1, 2)]
    for place in range(3):
        assert probability(found.distribution_a, (place,)) == pytest.approx(weights[place] / sum(weights), abs=1e-14)


# ---- faults in the code that is enumerated -------------------------------------------------------------------------


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget distributions enumerated from other code, and follow ties less far, to be quick."""
    monkeypatch.setattr(sampler_models, "MOST_TIED_DIGITS", 24)
    kept, sampler_models._state.distributions = sampler_models._state.distributions, {}
    yield
    sampler_models._state.distributions = kept


def loser() -> float:
    found = exact_distribution(lambda tape: selection.noisy_max(np.array([0, 0]), F(1), tape), 1e-6)
    return probability(found, 0)


@pytest.mark.tier("test")
def test_ties_that_go_to_the_first_are_seen(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def first_of_a_tie(rivals: Any, precision: int, bits: Any, more: int) -> int:
        best = max(shift * (1 << precision) + known for shift, known in rivals.values())
        return next(i for i, (shift, known) in rivals.items() if shift * (1 << precision) + known + 1 > best)

    assert loser() == pytest.approx(0.5, abs=1e-5)
    sampler_models._state.distributions.clear()
    monkeypatch.setattr(race, "compare_exponentials", first_of_a_tie)
    assert abs(loser() - 0.5) > 0.05


@pytest.mark.tier("test")
def test_digits_without_their_rejection_are_seen(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """With uniform further digits, production would be off by 2^-37, which no sample shows."""
    monkeypatch.setattr(race, "decide_below", lambda *given: True)
    found = exact_distribution(
        lambda tape: int(race.bernoulli_exp_each(F(1, 3), np.array([1]), tape, sampler_models.NARROW)[0]), 1e-6
    )
    assert abs(probability(found, 1) - math.exp(-1 / 3)) > 1e-3


@pytest.mark.tier("test")
def test_a_choice_that_gives_up_is_seen(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def gives_up(misses: Any, rate: Fraction, bits: Any) -> int:
        proposed = selection.uniform_below(len(misses), selection.PROPOSALS * len(misses), bits)
        kept = np.flatnonzero(selection.bernoulli_exp_each(rate, misses[proposed], bits))
        return int(proposed[kept[0]] if len(kept) else proposed[0])

    monkeypatch.setattr(selection, "draw_index", gives_up)
    found = exact(ExponentialMechanism(F(1)), ([0, 17], [1, 16]))
    assert abs(probability(found.distribution_a, (0,)) - math.exp(-17)) > 0.1


@pytest.mark.tier("test")
def test_noise_of_half_the_scale_is_refuted(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = selection.noisy_max
    monkeypatch.setattr(
        selection, "noisy_max", lambda scores, rate, bits, widths=None: whole(scores, 2 * rate, bits, widths)
    )
    claim = NoisyMax(F(1)).loss(Sensitivity.of(l0=2, linf=1))
    found = exact(NoisyMax(F(1)), ([0, 2], [1, 1]), residual=1e-6)
    assert found.refutes(claim) and found.epsilon_lower() == pytest.approx(4, abs=1e-3)


# ---- wide samplers, as they run in production ----------------------------------------------------------------------


@pytest.mark.tier("test")
def test_a_wide_gaussian_at_full_width() -> None:
    found = sampler_distribution(lattice.sampler(2, F(4096)))
    total = sum(math.exp(-(k**2) / 8192) for k in range(-1000, 1001))
    worst = max(abs(probability(found, k) / (math.exp(-(k**2) / 8192) / total) - 1) for k in range(-400, 401))
    assert found.residual < 2e-24 and worst < 1e-13


# ---- the command ---------------------------------------------------------------------------------------------------


def test_the_command_prints_certificates() -> None:
    done = CliRunner().invoke(app, ["certify", "exponential", "--json"])
    assert done.exit_code == 0 and [each["certified"] for each in json.loads(done.stdout)] == [True]
    shown = CliRunner().invoke(app, ["certify", "public_threshold"])
    assert shown.exit_code == 0 and "yes" in shown.stdout
    assert isinstance(CliRunner().invoke(app, ["certify", "nothing"]).exception, NotFound)
