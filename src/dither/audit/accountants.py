"""Check an accountant against numerical integration, known compositions, matrix norms, and adaptive spending games.

An accountant is any object or module with some of the functions of `dither.privacy.accounting` under the same names;
functions that it lacks are reported as not offered. `charge(epsilon)` makes a budget and returns a function that
charges a `Pure` loss or raises; the games try to spend more than the budget.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import exp, inf, log, log1p, sqrt
from typing import Any

import numpy as np
from scipy import integrate, optimize, special

from dither.errors import DitherError, InvalidParameter
from dither.loss import ZCDP, Loss, Pure
from dither.privacy import accounting as ours
from dither.privacy.mechanisms import Mechanism
from dither.schema import BudgetCap

Charge = Callable[[Loss], Any]
TOLERANCE = 1e-9
EPSILONS = (0.01, 0.1, 0.5, 1.0, 3.0)
DELTAS = (1e-3, 1e-6, 1e-9)
ORDERS = (1.5, 2.0, 5.0, 20.0)


@dataclass(frozen=True)
class AccountantCheck:
    """One check; `passed` is None if the accountant does not offer the function."""

    name: str
    passed: bool | None
    detail: str = ""


@dataclass(frozen=True)
class AccountingResult:
    """The results of all checks of one accountant."""

    checks: tuple[AccountantCheck, ...]

    @property
    def failed(self) -> tuple[AccountantCheck, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if check.passed is False)

    @property
    def refuted(self) -> bool:
        """True if any check failed."""
        return bool(self.failed)

    def __str__(self) -> str:
        return "\n".join(
            f"{_verdict(check.passed)}  {check.name}{': ' if check.detail else ''}{check.detail}"
            for check in self.checks
        )


def _verdict(passed: bool | None) -> str:
    return {True: "right      ", False: "WRONG      ", None: "not offered"}[passed]


def accounting(accountant: Any = ours, charge: Callable[[Fraction], Charge] | None = None) -> AccountingResult:
    """Check an accountant; without arguments, Dither's own."""
    checks = [check for run_checks in CHECKS for check in run_checks(accountant)]
    if charge is None and all(check.passed is None for check in checks):
        raise InvalidParameter(
            "the accountant has none of the functions of dither.privacy.accounting that are checked, such as compose"
        )
    make_budget = _budget_of_dither if charge is None and accountant is ours else charge
    checks += _play_games(make_budget) if make_budget else [AccountantCheck("adaptivity games", None)]
    if accountant is ours:
        checks += _check_bypasses()
    return AccountingResult(tuple(checks))


def _check_function(
    accountant: Any, name: str, title: str, test: Callable[[Any], Iterator[str]]
) -> Iterator[AccountantCheck]:
    """Check one function of an accountant; `test` yields failures, and an error is a failure too.

    Tests compare by `not stated >= true`, so that NaN fails.
    """
    function = getattr(accountant, name, None)
    if function is None:
        yield AccountantCheck(title, None)
        return
    try:
        failures = list(test(function))
    except Exception as error:
        failures = [f"{name} raises {type(error).__name__}: {error}"]
    yield AccountantCheck(title, not failures, failures[0] if failures else "")


# ---- formulas, by integration --------------------------------------------------------------------------------------


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Return the delta of Gaussian noise whose mean shifts by `mu` standard deviations, integrating the densities."""
    start = epsilon / mu + mu / 2  # where the privacy loss reaches epsilon

    def excess(x: float) -> float:
        return exp(-((x - mu) ** 2) / 2) - exp(epsilon - x**2 / 2)

    area, _ = integrate.quad(excess, start, start + 40, epsabs=0, epsrel=1e-10, limit=400)
    return max(0.0, float(area) / sqrt(2 * np.pi))


def gaussian_epsilon(delta: float, mu: float) -> float:
    """Return the epsilon at a delta of Gaussian noise whose mean shifts by `mu` standard deviations."""
    return float(optimize.brentq(lambda epsilon: gaussian_delta(epsilon, mu) - delta, 0, 60 + mu**2, xtol=1e-10))


def response_divergence(epsilon: float, order: float) -> float:
    """Return the Renyi divergence of randomized response, the largest that pure epsilon allows."""
    p = special.expit(epsilon)
    return log(p**order * (1 - p) ** (1 - order) + (1 - p) ** order * p ** (1 - order)) / (order - 1)


def _check_epsilon_at(accountant: Any) -> Iterator[AccountantCheck]:
    def test(function: Any) -> Iterator[str]:
        for mu in (0.1, 0.5, 1.0, 3.0):
            for delta in DELTAS:
                stated = float(function(ZCDP(Fraction(mu) ** 2 / 2), Fraction(delta)))
                true = gaussian_epsilon(delta, mu)
                if not stated >= true - TOLERANCE:
                    yield f"rho = {mu**2 / 2:g} at delta {delta:g}: says {stated:.6g}, Gaussian noise costs {true:.6g}"

    yield from _check_function(accountant, "epsilon_at", "epsilon of Gaussian noise, by integration", test)


def _check_delta_at(accountant: Any) -> Iterator[AccountantCheck]:
    def test(function: Any) -> Iterator[str]:
        for mu in (0.1, 0.5, 1.0):
            for epsilon in EPSILONS:
                stated = float(function(ZCDP(Fraction(mu) ** 2 / 2), Fraction(epsilon)))
                true = gaussian_delta(epsilon, mu)
                if not stated >= true * (1 - TOLERANCE):
                    yield f"rho = {mu**2 / 2:g} at epsilon {epsilon:g}: says {stated:.6g}, it is {true:.6g}"

    yield from _check_function(accountant, "delta_at", "delta of Gaussian noise, by integration", test)


def _check_as_zcdp(accountant: Any) -> Iterator[AccountantCheck]:
    def test(function: Any) -> Iterator[str]:
        for epsilon in EPSILONS:
            rho = float(function(Pure(Fraction(epsilon))).rho)
            worst = max(response_divergence(epsilon, order) / order for order in (1.0001, *ORDERS))
            if not rho >= worst - TOLERANCE:
                yield f"epsilon {epsilon:g}: says rho = {rho:.6g}, randomized response reaches {worst:.6g}"

    yield from _check_function(accountant, "as_zcdp", "rho of pure losses, by randomized response", test)


def _check_as_renyi(accountant: Any) -> Iterator[AccountantCheck]:
    def test(function: Any) -> Iterator[str]:
        for epsilon in EPSILONS:
            curve = function(Pure(Fraction(epsilon)), [Fraction(order) for order in ORDERS]).curve
            for order, value in curve:
                if not float(value) >= response_divergence(epsilon, float(order)) - TOLERANCE:
                    yield f"epsilon {epsilon:g} at order {order}: says {float(value):.6g}"

    yield from _check_function(accountant, "as_renyi", "Renyi curves of pure losses, by randomized response", test)


def _check_sampled_loss(accountant: Any) -> Iterator[AccountantCheck]:
    def test(function: Any) -> Iterator[str]:
        for epsilon in EPSILONS:
            for rate in (0.001, 0.1, 0.9):
                stated = float(function(Pure(Fraction(epsilon)), Fraction(rate)).epsilon)
                true = log1p(rate * (exp(epsilon) - 1))
                if not stated >= true - TOLERANCE:
                    yield f"epsilon {epsilon:g} at rate {rate:g}: says {stated:.6g}, sampled response has {true:.6g}"

    yield from _check_function(accountant, "sampled_loss", "sampled randomized response", test)


# ---- known compositions --------------------------------------------------------------------------------------------


def _check_compose(accountant: Any) -> Iterator[AccountantCheck]:
    def test(function: Any) -> Iterator[str]:
        for count in (1, 2, 10, 100):
            total = function([Pure(Fraction(1, 10))] * count)
            if not float(total.epsilon) >= count / 10 - TOLERANCE:
                yield f"{count} pure losses of 1/10 add up to {count / 10:g}, it says {float(total.epsilon):.6g}"
            rho = function([ZCDP(Fraction(1, 200))] * count)
            if not float(rho.rho) >= count / 200 - TOLERANCE:
                yield f"{count} losses of rho 1/200 add up to {count / 200:g}, it says {float(rho.rho):.6g}"
        mixed = function([Pure(Fraction(1)), ZCDP(Fraction(1, 2))])
        least = max(response_divergence(1.0, order) / order for order in ORDERS) + 0.5
        if isinstance(mixed, ZCDP) and not float(mixed.rho) >= least - TOLERANCE:
            yield f"a pure loss of 1 and a rho of 1/2 reach {least:.6g}, it says {float(mixed.rho):.6g}"

    yield from _check_function(accountant, "compose", "known compositions", test)


def _check_group(accountant: Any) -> Iterator[AccountantCheck]:
    def test(function: Any) -> Iterator[str]:
        for size in (1, 2, 7):
            if not float(function(Pure(Fraction(1, 3)), size).epsilon) >= size / 3 - TOLERANCE:
                yield f"a group of {size} at epsilon 1/3"
            if not float(function(ZCDP(Fraction(1, 8)), size).rho) >= size**2 / 8 - TOLERANCE:
                yield f"a group of {size} at rho 1/8"

    yield from _check_function(accountant, "group", "groups", test)


# ---- matrix norms --------------------------------------------------------------------------------------------------


def _random_matrices() -> Iterator[tuple[list[list[int]], list[Fraction]]]:
    rng = random.Random(7)
    for rows, columns in ((1, 1), (3, 2), (4, 6), (8, 3)):
        weights = [[rng.randint(-3, 3) for _ in range(columns)] for _ in range(rows)]
        yield weights, [Fraction(rng.randint(1, 40), rng.randint(1, 5)) for _ in range(rows)]


def _check_joint_laplace(accountant: Any) -> Iterator[AccountantCheck]:
    def test(function: Any) -> Iterator[str]:
        for weights, scales in _random_matrices():
            scaled = np.diag([float(1 / scale) for scale in scales]) @ np.array(weights, float)  # D Q
            norm = float(np.abs(scaled).sum(axis=0).max())
            stated = float(function(weights, scales, 1).epsilon)
            if not abs(stated - norm) <= 1e-9 * max(1.0, norm):
                yield f"the largest L1 column norm of D Q is {norm:.6g}, it says {stated:.6g}"

    yield from _check_function(accountant, "joint_laplace", "linear queries with Laplace noise: the norm of D Q", test)


def _check_joint_gaussian(accountant: Any) -> Iterator[AccountantCheck]:
    def test(function: Any) -> Iterator[str]:
        for weights, variances in _random_matrices():
            scaled = np.diag([float(1 / variance) ** 0.5 for variance in variances]) @ np.array(weights, float)
            norm = float((scaled**2).sum(axis=0).max()) / 2
            stated = float(function(weights, variances, 1).rho)
            if not abs(stated - norm) <= 1e-9 * max(1.0, norm):
                yield f"half the largest squared L2 column norm is {norm:.6g}, it says {stated:.6g}"

    yield from _check_function(
        accountant, "joint_gaussian", "linear queries with Gaussian noise: the norm of D Q", test
    )


CHECKS = (
    _check_epsilon_at,
    _check_delta_at,
    _check_as_zcdp,
    _check_as_renyi,
    _check_sampled_loss,
    _check_compose,
    _check_group,
    _check_joint_laplace,
    _check_joint_gaussian,
)


# ---- games and bypasses --------------------------------------------------------------------------------------------


def _budget_of_dither(epsilon: Fraction) -> Charge:
    """Return the charge function of a budget that Dither's filter enforces, as in the ledger."""
    budget = ours.filter_of(BudgetCap(unit="row", kind="pure", epsilon=epsilon))
    spent = [0] * len(budget.cap)

    def charge(loss: Loss) -> None:
        new_spent = [before + cost for before, cost in zip(spent, budget.femto_cost(loss), strict=True)]
        if any(total > cap for total, cap in zip(new_spent, budget.cap, strict=True)):
            raise DitherError("over budget")
        spent[:] = new_spent

    return charge


def _play_games(charge: Callable[[Fraction], Charge]) -> list[AccountantCheck]:
    """Play every strategy, which chooses each loss after it sees the last decision, against a budget of 1."""
    return [_judge_game(name, _total_granted(charge(Fraction(1)), play)) for name, play in STRATEGIES.items()]


def _judge_game(name: str, total: Fraction) -> AccountantCheck:
    if total == 0:
        return AccountantCheck(name, None, "every charge was refused")
    return AccountantCheck(name, total <= 1, "" if total <= 1 else f"got {float(total):.6g} out of a budget of 1")


def _total_granted(charge: Charge, play: Callable[[Callable[[Fraction], bool]], None]) -> Fraction:
    """Return the total epsilon that a strategy was granted."""
    granted = Fraction(0)

    def ask(epsilon: Fraction) -> bool:
        nonlocal granted
        try:
            charge(Pure(epsilon))
        except Exception:
            return False
        granted += epsilon
        return True

    play(ask)
    return granted


def _halve_after_refusals(ask: Callable[[Fraction], bool]) -> None:
    """Halve the loss after each refusal; exploits rounding towards zero."""
    size = Fraction(3, 4)
    for _ in range(200):
        if not ask(size):
            size /= 2


def _ask_for_tiny_losses(ask: Callable[[Fraction], bool]) -> None:
    """Spend the whole budget, then ask for losses smaller than a counter's unit."""
    ask(Fraction(1))
    for _ in range(1000):
        ask(Fraction(1, 10**17))


def _ask_for_unit_fractions(ask: Callable[[Fraction], bool]) -> None:
    """Ask for losses 1/3, 1/4, ..., most of which have no finite decimal expansion."""
    for number in range(3, 400):
        ask(Fraction(1, number))


STRATEGIES = {
    "adaptivity: halving after each refusal": _halve_after_refusals,
    "adaptivity: tiny losses after the last charge": _ask_for_tiny_losses,
    "adaptivity: losses without a finite decimal": _ask_for_unit_fractions,
}


def _check_bypasses() -> list[AccountantCheck]:
    """Check that no mechanism without a loss and no negative or infinite loss can be made."""
    return [
        AccountantCheck("a mechanism without a loss cannot be defined", _raises(_define_lossless_mechanism)),
        AccountantCheck("a negative loss cannot be made", _raises(lambda: Pure(Fraction(-1)))),
        AccountantCheck("an infinite loss cannot be made", _raises(lambda: Pure(inf))),  # type: ignore[arg-type]
    ]


def _define_lossless_mechanism() -> None:
    type("Lossless", (Mechanism,), {"name": "lossless", "proof": "none.md", "release": lambda self, exact, bits: exact})


def _raises(action: Callable[[], Any]) -> bool:
    try:
        action()
    except Exception:
        return True
    return False
