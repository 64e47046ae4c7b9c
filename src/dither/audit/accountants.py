"""Is an accountant right? Its formulas against numerical integration, known totals, matrix norms, and games.

An accountant is any object or module with some of the functions of `dither.privacy.accounting` under the same names;
what it lacks is reported as not offered. `charge` makes a budget of a given epsilon and returns a function that charges
a `Pure` loss or raises: the games try to get more out of it than it holds.
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
    """One check: `passed` is None where the accountant does not offer the function."""

    name: str
    passed: bool | None
    detail: str = ""


@dataclass(frozen=True)
class AccountingResult:
    """All checks of one accountant."""

    checks: tuple[AccountantCheck, ...]

    @property
    def failed(self) -> tuple[AccountantCheck, ...]:
        """What was found wrong."""
        return tuple(each for each in self.checks if each.passed is False)

    @property
    def refuted(self) -> bool:
        """Whether anything was."""
        return bool(self.failed)

    def __str__(self) -> str:
        lines = [
            f"{_verdict(each.passed)}  {each.name}{': ' if each.detail else ''}{each.detail}" for each in self.checks
        ]
        return "\n".join(lines)


def _verdict(passed: bool | None) -> str:
    return {True: "right      ", False: "WRONG      ", None: "not offered"}[passed]


def accounting(accountant: Any = ours, charge: Callable[[Fraction], Charge] | None = None) -> AccountingResult:
    """Checks an accountant; without arguments, Dither's own."""
    found = [check for each in CHECKS for check in each(accountant)]
    if charge is None and all(check.passed is None for check in found):
        raise InvalidParameter("the accountant has no function of dither.privacy.accounting under its name")
    made = _own_charge if charge is None and accountant is ours else charge
    found += _games(made) if made else [AccountantCheck("adaptivity games", None)]
    if accountant is ours:
        found += _bypass()
    return AccountingResult(tuple(found))


def _offered(accountant: Any, name: str, what: str, test: Callable[[Any], Iterator[str]]) -> Iterator[AccountantCheck]:
    """A check that needs one function; what `test` yields are failures, and so is an error. NaN is never enough."""
    function = getattr(accountant, name, None)
    if function is None:
        yield AccountantCheck(what, None)
        return
    try:
        failures = list(test(function))
    except Exception as error:
        failures = [f"{name} raises {type(error).__name__}: {error}"]
    yield AccountantCheck(what, not failures, failures[0] if failures else "")


# ---- formulas, by integration --------------------------------------------------------------------------------------


def gaussian_delta(epsilon: float, mu: float) -> float:
    """The delta of Gaussian noise whose mean moves by `mu` standard deviations, by integration of the densities."""
    start = epsilon / mu + mu / 2  # where the privacy loss reaches epsilon

    def excess(x: float) -> float:
        return exp(-((x - mu) ** 2) / 2) - exp(epsilon - x**2 / 2)

    area, _ = integrate.quad(excess, start, start + 40, epsabs=0, epsrel=1e-10, limit=400)
    return max(0.0, float(area) / sqrt(2 * np.pi))


def gaussian_epsilon(delta: float, mu: float) -> float:
    """The epsilon of that noise at a delta."""
    return float(optimize.brentq(lambda epsilon: gaussian_delta(epsilon, mu) - delta, 0, 60 + mu**2, xtol=1e-10))


def response_divergence(epsilon: float, order: float) -> float:
    """The Renyi divergence of randomized response, the worst that pure epsilon allows."""
    p = special.expit(epsilon)
    return log(p**order * (1 - p) ** (1 - order) + (1 - p) ** order * p ** (1 - order)) / (order - 1)


def _epsilon_at(accountant: Any) -> Iterator[AccountantCheck]:
    def test(function: Any) -> Iterator[str]:
        for mu in (0.1, 0.5, 1.0, 3.0):
            for delta in DELTAS:
                stated, true = (
                    float(function(ZCDP(Fraction(mu) ** 2 / 2), Fraction(delta))),
                    gaussian_epsilon(delta, mu),
                )
                if not stated >= true - TOLERANCE:
                    yield f"rho = {mu**2 / 2:g} at delta {delta:g}: says {stated:.6g}, Gaussian noise costs {true:.6g}"

    yield from _offered(accountant, "epsilon_at", "epsilon of Gaussian noise, by integration", test)


def _delta_at(accountant: Any) -> Iterator[AccountantCheck]:
    def test(function: Any) -> Iterator[str]:
        for mu in (0.1, 0.5, 1.0):
            for epsilon in EPSILONS:
                stated = float(function(ZCDP(Fraction(mu) ** 2 / 2), Fraction(epsilon)))
                true = gaussian_delta(epsilon, mu)
                if not stated >= true * (1 - TOLERANCE):
                    yield f"rho = {mu**2 / 2:g} at epsilon {epsilon:g}: says {stated:.6g}, it is {true:.6g}"

    yield from _offered(accountant, "delta_at", "delta of Gaussian noise, by integration", test)


def _as_zcdp(accountant: Any) -> Iterator[AccountantCheck]:
    def test(function: Any) -> Iterator[str]:
        for epsilon in EPSILONS:
            rho = float(function(Pure(Fraction(epsilon))).rho)
            worst = max(response_divergence(epsilon, order) / order for order in (1.0001, *ORDERS))
            if not rho >= worst - TOLERANCE:
                yield f"epsilon {epsilon:g}: says rho = {rho:.6g}, randomized response reaches {worst:.6g}"

    yield from _offered(accountant, "as_zcdp", "rho of pure losses, by randomized response", test)


def _as_renyi(accountant: Any) -> Iterator[AccountantCheck]:
    def test(function: Any) -> Iterator[str]:
        for epsilon in EPSILONS:
            curve = function(Pure(Fraction(epsilon)), [Fraction(order) for order in ORDERS]).curve
            for order, value in curve:
                if not float(value) >= response_divergence(epsilon, float(order)) - TOLERANCE:
                    yield f"epsilon {epsilon:g} at order {order}: says {float(value):.6g}"

    yield from _offered(accountant, "as_renyi", "Renyi curves of pure losses, by randomized response", test)


def _subsampled(accountant: Any) -> Iterator[AccountantCheck]:
    def test(function: Any) -> Iterator[str]:
        for epsilon in EPSILONS:
            for rate in (0.001, 0.1, 0.9):
                stated = float(function(Pure(Fraction(epsilon)), Fraction(rate)).epsilon)
                true = log1p(rate * (exp(epsilon) - 1))
                if not stated >= true - TOLERANCE:
                    yield f"epsilon {epsilon:g} at rate {rate:g}: says {stated:.6g}, sampled response has {true:.6g}"

    yield from _offered(accountant, "subsampled", "sampled randomized response", test)


# ---- known compositions --------------------------------------------------------------------------------------------


def _compose(accountant: Any) -> Iterator[AccountantCheck]:
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

    yield from _offered(accountant, "compose", "known compositions", test)


def _group(accountant: Any) -> Iterator[AccountantCheck]:
    def test(function: Any) -> Iterator[str]:
        for size in (1, 2, 7):
            if not float(function(Pure(Fraction(1, 3)), size).epsilon) >= size / 3 - TOLERANCE:
                yield f"a group of {size} at epsilon 1/3"
            if not float(function(ZCDP(Fraction(1, 8)), size).rho) >= size**2 / 8 - TOLERANCE:
                yield f"a group of {size} at rho 1/8"

    yield from _offered(accountant, "group", "groups", test)


# ---- matrix norms --------------------------------------------------------------------------------------------------


def _matrices() -> Iterator[tuple[list[list[int]], list[Fraction]]]:
    rng = random.Random(7)
    for rows, columns in ((1, 1), (3, 2), (4, 6), (8, 3)):
        weights = [[rng.randint(-3, 3) for _ in range(columns)] for _ in range(rows)]
        yield weights, [Fraction(rng.randint(1, 40), rng.randint(1, 5)) for _ in range(rows)]


def _joint_laplace(accountant: Any) -> Iterator[AccountantCheck]:
    def test(function: Any) -> Iterator[str]:
        for weights, scales in _matrices():
            scaled = np.diag([float(1 / scale) for scale in scales]) @ np.array(weights, float)  # D Q
            norm = float(np.abs(scaled).sum(axis=0).max())
            stated = float(function(weights, scales, 1).epsilon)
            if not abs(stated - norm) <= 1e-9 * max(1.0, norm):
                yield f"the largest L1 column norm of D Q is {norm:.6g}, it says {stated:.6g}"

    yield from _offered(accountant, "joint_laplace", "linear queries with Laplace noise: the norm of D Q", test)


def _joint_gaussian(accountant: Any) -> Iterator[AccountantCheck]:
    def test(function: Any) -> Iterator[str]:
        for weights, variances in _matrices():
            scaled = np.diag([float(1 / variance) ** 0.5 for variance in variances]) @ np.array(weights, float)
            norm = float((scaled**2).sum(axis=0).max()) / 2
            stated = float(function(weights, variances, 1).rho)
            if not abs(stated - norm) <= 1e-9 * max(1.0, norm):
                yield f"half the largest squared L2 column norm is {norm:.6g}, it says {stated:.6g}"

    yield from _offered(accountant, "joint_gaussian", "linear queries with Gaussian noise: the norm of D Q", test)


CHECKS = (
    _epsilon_at, _delta_at, _as_zcdp, _as_renyi, _subsampled, _compose, _group, _joint_laplace, _joint_gaussian,
)  # fmt: skip


# ---- games and bypasses --------------------------------------------------------------------------------------------


def _own_charge(epsilon: Fraction) -> Charge:
    """A budget enforced by Dither's filter, as the ledger does it."""
    budget = ours.filter_of(BudgetCap(unit="row", kind="pure", epsilon=epsilon))
    spent = [0] * len(budget.cap)

    def charge(loss: Loss) -> None:
        wanted = [have + cost for have, cost in zip(spent, budget.spend(loss), strict=True)]
        if any(want > cap for want, cap in zip(wanted, budget.cap, strict=True)):
            raise DitherError("over budget")
        spent[:] = wanted

    return charge


def _games(charge: Callable[[Fraction], Charge]) -> list[AccountantCheck]:
    """Strategies that look at what was granted before they choose the next loss."""
    return [_game(name, _played(charge(Fraction(1)), play)) for name, play in STRATEGIES.items()]


def _game(name: str, total: Fraction) -> AccountantCheck:
    if total == 0:
        return AccountantCheck(name, None, "every charge was refused")
    return AccountantCheck(name, total <= 1, "" if total <= 1 else f"got {float(total):.6g} out of a budget of 1")


def _played(charge: Charge, play: Callable[[Callable[[Fraction], bool]], None]) -> Fraction:
    """What a strategy was granted."""
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


def _halving(ask: Callable[[Fraction], bool]) -> None:
    """Ever smaller losses, each after a refusal: what rounding towards zero gives away."""
    size = Fraction(3, 4)
    for _ in range(200):
        if not ask(size):
            size /= 2


def _grains(ask: Callable[[Fraction], bool]) -> None:
    """Fill the budget, then ask for less than any counter counts."""
    ask(Fraction(1))
    for _ in range(1000):
        ask(Fraction(1, 10**17))


def _thirds(ask: Callable[[Fraction], bool]) -> None:
    """Losses that no decimal holds."""
    for number in range(3, 400):
        ask(Fraction(1, number))


STRATEGIES = {
    "adaptivity: halving after each refusal": _halving,
    "adaptivity: grains after the last charge": _grains,
    "adaptivity: losses that no decimal holds": _thirds,
}


def _bypass() -> list[AccountantCheck]:
    """A mechanism without a loss, or a loss that pays back, must not be possible."""
    return [
        AccountantCheck("a mechanism without a loss cannot be defined", _raises(_lossless)),
        AccountantCheck("a negative loss cannot be made", _raises(lambda: Pure(Fraction(-1)))),
        AccountantCheck("an infinite loss cannot be made", _raises(lambda: Pure(inf))),  # type: ignore[arg-type]
    ]


def _lossless() -> None:
    type("Lossless", (Mechanism,), {"name": "lossless", "proof": "none.md", "release": lambda self, exact, bits: exact})


def _raises(action: Callable[[], Any]) -> bool:
    try:
        action()
    except Exception:
        return True
    return False
