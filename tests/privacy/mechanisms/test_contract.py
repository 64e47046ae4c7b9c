"""The loss that a mechanism states covers its exact output distribution; a distance of zero costs nothing."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from mpmath import mp, mpf

from cases import CASES, OUTSIDE, Case, real
from dither.loss import ZCDP, Approximate, Pure, Sensitivity
from dither.privacy.accounting.conversion import delta_at
from privacy.mechanism_cases import MARGIN, every

ORDERS = (1.001, 1.0625, 1.5, 2, 4, 16, 64)
LONE = ("partition_selection", "laplace_threshold", "gaussian_threshold")


# --- Divergences, computed ---


Logs = np.ndarray[Any, Any]


@lru_cache
def logs(case: Case) -> dict[Any, Logs]:
    """The logarithms of each distribution's probabilities, over the same outputs in the same order; -inf for never."""
    distributions = case.distributions()
    outputs = sorted({output for distribution in distributions.values() for output in distribution})
    with np.errstate(divide="ignore"):
        return {
            exact: np.log([float(distribution.get(output, 0)) for output in outputs])
            for exact, distribution in distributions.items()
        }


def largest(case: Case, divergence: Callable[[Logs, Logs], float]) -> float:
    """Over every pair, in both directions."""
    known = logs(case)
    with np.errstate(invalid="ignore"):
        return max(divergence(known[one], known[other]) for one, other in case.both_ways())


def log_ratio(one: Logs, other: Logs) -> float:
    return float(np.nanmax(one - other))


def renyi(one: Logs, other: Logs, order: float) -> float:
    if np.isinf(other[one > -np.inf]).any():
        return float("inf")
    terms = order * one + (1 - order) * other
    return float(np.logaddexp.reduce(terms[one > -np.inf]) / (order - 1))


def excess(one: Logs, other: Logs, epsilon: Fraction) -> float:
    """The least delta that goes with epsilon for these two distributions."""
    return float(np.maximum(0, np.exp(one) - np.exp(other + float(epsilon))).sum())


def precise(case: Case) -> Any:
    """The largest log ratio in 40 digits."""
    distributions = case.distributions()
    known = logs(case)
    outputs = sorted({output for distribution in distributions.values() for output in distribution})
    best = max(case.both_ways(), key=lambda pair: log_ratio(known[pair[0]], known[pair[1]]))
    at = outputs[int(np.nanargmax(known[best[0]] - known[best[1]]))]
    return mp.log(distributions[best[0]][at] / distributions[best[1]][at])


# --- The contract ---


@pytest.mark.parametrize("case", CASES, ids=every)
def test_the_written_distribution_is_a_distribution(case: Case) -> None:
    for distribution in case.distributions().values():
        assert abs(mp.fsum(distribution.values()) - 1) < OUTSIDE


EPSILONS = (Fraction(0), Fraction(1, 10), Fraction(1, 2), Fraction(2))


@pytest.mark.parametrize("case", CASES, ids=every)
def test_the_loss_covers_the_exact_distribution(case: Case) -> None:
    loss = case.mechanism.loss(case.sensitivity)
    match loss:
        case Pure():
            seen = precise(case)
            assert real(loss.epsilon) * case.tight - MARGIN <= seen <= real(loss.epsilon) + MARGIN
        case Approximate():
            seen = largest(case, lambda one, other: excess(one, other, loss.epsilon))
            assert seen <= float(loss.delta) * (1 + 1e-9)
        case ZCDP() if loss.delta:
            for epsilon in EPSILONS:
                seen = largest(case, lambda one, other, epsilon=epsilon: excess(one, other, epsilon))
                assert seen <= delta_at(loss, epsilon)
        case ZCDP():
            seen = max(
                largest(case, lambda one, other, order=order: renyi(one, other, order)) / order for order in ORDERS
            )
            assert float(loss.rho) * case.tight <= seen <= float(loss.rho) * (1 + 1e-9)
        case _:
            pytest.fail("a mechanism's own loss is pure, approximate or zCDP")


@pytest.mark.parametrize("case", CASES, ids=every)
def test_the_zcdp_loss_covers_the_exact_distribution(case: Case) -> None:
    loss = case.mechanism.zcdp_loss(case.sensitivity)
    if loss.delta:
        for epsilon in EPSILONS:
            seen = largest(case, lambda one, other, epsilon=epsilon: excess(one, other, epsilon))
            assert seen <= delta_at(loss, epsilon)
        return
    seen = max(largest(case, lambda one, other, order=order: renyi(one, other, order)) / order for order in ORDERS)
    assert seen <= float(loss.rho) * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize("case", [case for case in CASES if case.mechanism.name in LONE], ids=every)
def test_delta_is_what_a_unit_alone_needs(case: Case) -> None:
    """A unit alone in its groups: the stated delta is reached, but for the bound on a Gaussian tail, and no more."""
    groups, rows = int(case.sensitivity.l0), int(case.sensitivity.linf)
    distribution, empty = (case.distribution(case.mechanism, (count,) * groups) for count in (rows, 0))
    assert empty[()] == 1
    seen, stated = 1 - distribution[()], real(case.mechanism.zcdp_loss(case.sensitivity).delta)
    assert seen - MARGIN <= stated <= seen * (mpf("1.2") if "gaussian" in case.mechanism.name else 1 + mpf(10) ** -15)


@pytest.mark.parametrize("case", CASES, ids=every)
@pytest.mark.parametrize("nothing", [(0, 0), (3, 0)])
def test_no_distance_costs_nothing(case: Case, nothing: tuple[int, int]) -> None:
    still = Sensitivity.of(l0=nothing[0], linf=nothing[1])
    loss = case.mechanism.loss(still)
    assert (loss.rho if isinstance(loss, ZCDP) else loss.epsilon) == 0  # type: ignore[union-attr]
    assert getattr(loss, "delta", 0) == 0
    assert case.mechanism.zcdp_loss(still) == ZCDP(Fraction(0))


@pytest.mark.parametrize("case", CASES, ids=every)
def test_a_longer_way_never_costs_less(case: Case) -> None:
    costs = []
    for l0, linf in [(1, 1), (2, 1), (5, 1)]:
        sensitivity = Sensitivity.of(l0=l0, linf=linf)
        loss = case.mechanism.loss(sensitivity)
        costs.append(loss.rho if isinstance(loss, ZCDP) else loss.epsilon)  # type: ignore[union-attr]
    assert costs == sorted(costs) and costs[0] > 0
