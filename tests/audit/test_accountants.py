from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest
from scipy.stats import norm

from dither.audit.accountants import accounting, gaussian_delta
from dither.loss import ZCDP, Pure
from dither.privacy import accounting as ours

F = Fraction


def test_our_accountant_passes_every_check() -> None:
    found = accounting()
    assert not found.refuted, str(found)
    assert all(each.passed for each in found.checks) and len(found.checks) >= 15


def test_the_integral_is_the_known_formula() -> None:
    for epsilon, mu in ((0.1, 0.5), (1.0, 1.0), (3.0, 1.0)):
        known = norm.cdf(mu / 2 - epsilon / mu) - 2.718281828459045**epsilon * norm.cdf(-mu / 2 - epsilon / mu)
        assert gaussian_delta(epsilon, mu) == pytest.approx(known, rel=1e-8)


WRONG: dict[str, tuple[Callable[..., Any], str]] = {
    "epsilon_at": (lambda loss, delta: loss.rho, "Gaussian"),
    "delta_at": (lambda loss, epsilon: ours.delta_at(loss, epsilon) / 100, "Gaussian"),
    "as_zcdp": (lambda loss: ZCDP(loss.epsilon**2 / 10), "randomized response"),
    "as_renyi": (lambda loss, orders: ours.as_renyi(Pure(loss.epsilon / 2), orders), "randomized response"),
    "sampled_loss": (lambda loss, rate: Pure(loss.epsilon * rate), "sampled"),
    "compose": (lambda losses: losses[0], "compositions"),
    "group": (lambda loss, size: loss, "groups"),
    "joint_laplace": (lambda weights, scales, rows: Pure(F(1, 100)), "Laplace"),
    "joint_gaussian": (lambda weights, scales, rows: ZCDP(F(1, 100)), "Gaussian"),
}


@pytest.mark.parametrize("name", list(WRONG))
def test_a_wrong_formula_is_found(name: str) -> None:
    function, named = WRONG[name]
    found = accounting(SimpleNamespace(**{name: function}))
    assert [named in each.name for each in found.failed] == [True]
    assert sum(each.passed is None for each in found.checks) == len(found.checks) - 1


def lenient(rounds: Callable[[Fraction], float]) -> Callable[[Fraction], Callable[[Any], None]]:
    """Return a budget whose counter rounds."""

    def make(epsilon: Fraction) -> Callable[[Any], None]:
        spent: list[Any] = [0]

        def charge(loss: Any) -> None:
            if spent[0] + rounds(loss.epsilon) > epsilon:
                raise ValueError("over budget")
            spent[0] += rounds(loss.epsilon)

        return charge

    return make


def test_games_are_won_against_counters_that_round() -> None:
    nothing = SimpleNamespace()
    assert accounting(nothing, lenient(lambda x: round(float(x), 6))).refuted
    floats = accounting(nothing, lenient(float))  # 1.0 + 1e-17 == 1.0
    assert any("tiny losses" in each.name for each in floats.failed)
    exact = accounting(nothing, lenient(lambda x: x))  # type: ignore[arg-type,return-value]
    assert not exact.refuted
