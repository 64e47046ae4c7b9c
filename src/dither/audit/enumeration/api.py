"""The exact audit: every probability of running code on two inputs, between rigorous bounds, and the privacy loss.

With lower bounds a, b of the two laws and what is left, r and s: delta(epsilon) is at most
sum max(0, a - e^epsilon b) + r, and at least sum over any event of (a - e^epsilon b) - e^epsilon s. Exponentials and
logarithms are rounded in the direction that keeps each bound true.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from dither.audit.claim_syntax import finite
from dither.audit.claims import ORDERS, Floats
from dither.audit.enumeration.paths import UNIT, ExactDistribution, Rejected, Tape, Undecided
from dither.audit.enumeration.sampler_models import exact_distribution, steady
from dither.audit.neighbours import Pair, steps
from dither.audit.sampling import failure
from dither.errors import InvalidParameter, Unsupported
from dither.loss import ZCDP, Approximate, Loss, Pure, Rational, rational, to_json
from dither.privacy.accounting.rounding import exp_down, exp_up, log_down
from dither.privacy.mechanisms import DiscreteGaussian, DiscreteLaplace, Mechanism, Staircase

# Their proofs show that the noise is drawn without looking at the input and added; saturation is 2^62 away.
INVARIANT = (DiscreteLaplace, DiscreteGaussian, Staircase)
FINEST = Fraction(1, 1 << 40)
LARGEST_EPSILON = Fraction(512)
WITHIN = 1e-6
ASIDE = 1e-12
# Nothing is certified of which more than this is undecided: that much a claim is allowed on top of its delta.
UNDECIDED = 1e-6
# A certified rho is about so much above the least. Orders: cosh(t)^2, t at most so far apart, up to one at which
# the largest loss no longer matters. There are so many orders at least, and so many numbers to work out at most.
CLOSE, COARSEST, SMALLEST = 4e-8, 0.01, 1e-9
FEWEST_ORDERS, WORK = 500, 1 << 27


@dataclass(frozen=True)
class ExactResult:
    """Both laws, and what they say about the loss between the two inputs, in both directions."""

    a: Any
    b: Any
    law_a: ExactDistribution
    law_b: ExactDistribution
    family: str

    @property
    def residual(self) -> float:
        """The larger of the two masses that are not decided."""
        return max(self.law_a.residual, self.law_b.residual)

    @property
    def runs(self) -> int:
        """Executions of the code."""
        return self.law_a.runs + self.law_b.runs

    def delta_upper(self, epsilon: Rational) -> Fraction:
        """The inputs are (epsilon, this delta)-indistinguishable, in both directions."""
        grow = exp_down(rational(epsilon))
        return max(_above(first, second, grow) for first, second in self._directions())

    def delta_lower(self, epsilon: Rational) -> Fraction:
        """No smaller delta is true for this epsilon."""
        grow = exp_up(rational(epsilon))
        return max(_surely_above(first, second, grow) for first, second in self._directions())

    def slack(self, epsilon: Rational) -> Fraction:
        """The delta that what is left may be worth: its mass on one input, e^epsilon times that on the other."""
        return (1 + exp_down(rational(epsilon))) * Fraction(max(self.law_a.left, self.law_b.left), UNIT)

    def epsilon_upper(self, delta: Rational = 0) -> float:
        """The least epsilon that is certified at `delta` and the slack; infinity if none is."""
        if not self._fits(LARGEST_EPSILON, rational(delta)):
            return inf
        low, high = Fraction(0), LARGEST_EPSILON
        while high - low > FINEST:
            middle = (low + high) / 2
            low, high = (low, middle) if self._fits(middle, rational(delta)) else (middle, high)
        return 0.0 if self._fits(Fraction(0), rational(delta)) else float(high)

    def _fits(self, epsilon: Fraction, delta: Fraction) -> bool:
        return self.delta_upper(epsilon) <= delta + self.slack(epsilon)

    def epsilon_lower(self) -> float:
        """No smaller epsilon is true at delta 0: the largest sure ratio of two probabilities."""
        found = max(self._sure_loss(*self._worst(each)) for each in range(2))
        return inf if found >= LARGEST_EPSILON else max(0.0, float(found))

    def worst(self) -> tuple[Hashable, tuple[Fraction, Fraction], tuple[Fraction, Fraction]]:
        """The output with the largest sure loss, and the bounds of its probability on each input."""
        place = max(range(2), key=lambda each: self._sure_loss(*self._worst(each)))
        outcome, _ = self._worst(place)
        return outcome, self.law_a.interval(outcome), self.law_b.interval(outcome)

    def renyi_upper(self, orders: Any = ORDERS) -> list[tuple[float, float]]:
        """(order, divergence) between the executions that are decided and lead to outputs of both inputs."""
        curves = [_renyi(*_shared(first, second), np.array(orders)) for first, second in self._directions()]
        return [(float(order), float(max(values))) for order, *values in zip(orders, *curves, strict=True)]

    def rho_upper(self) -> float:
        """A rho that is certified with `aside` added to its delta, for every order, in double precision."""
        return max(_rho(*_shared(first, second)) for first, second in self._directions())

    @property
    def aside(self) -> Fraction:
        """The larger of the two masses that are undecided or lead to an output of one input alone."""
        shared = [each for each in self.law_a.masses if each in self.law_b.masses]
        least = min(sum(law.masses[each] for each in shared) for law in (self.law_a, self.law_b))
        return Fraction(UNIT - least, UNIT)

    def certifies(self, claim: Loss, within: float = WITHIN, aside: float = ASIDE) -> bool:
        """Whether the claim is proved here, with `within` added to its strength, and to its delta the slack or `aside`.

        Claims of Renyi kind hold for the executions that lead to outputs of both inputs; the others' mass is set aside
        and must be within the claim's delta.
        """
        if isinstance(claim, Pure | Approximate):
            decided = self.slack(claim.epsilon) <= Fraction(UNDECIDED)
            return decided and self._fits(claim.epsilon + Fraction(within), delta_of(claim))
        if self.aside > claim.delta + Fraction(aside):
            return False
        if isinstance(claim, ZCDP):
            return self.rho_upper() <= float(claim.rho) + within
        limits = {float(order): float(value) + within for order, value in claim.curve}
        return all(value <= limits[order] for order, value in self.renyi_upper(tuple(limits)))

    def refutes(self, claim: Loss) -> bool:
        """Whether the claim is surely false between these two inputs (claims of pure and approximate kind)."""
        if not isinstance(claim, Pure | Approximate):
            raise InvalidParameter("only pure and approximate claims can be refuted exactly; others can be certified")
        return self.delta_lower(claim.epsilon) > rational(delta_of(claim))

    def __str__(self) -> str:
        outcome, on_a, on_b = self.worst()
        most = self.epsilon_upper()
        but = float(self.slack(Fraction(most))) if most < inf else 1.0
        return (
            f"epsilon is at least {self.epsilon_lower():.9g} and, but for delta {but:.3g}, at most {most:.9g}; "
            f"the output {outcome} has probability {float(on_a[0]):.9g} on {self.a} and "
            f"{float(on_b[0]):.9g} on {self.b}; {self.runs} executions leave {self.residual:.3g} undecided; "
            f"holds for {self.family}"
        )

    def as_dict(self, claim: Loss | None = None) -> dict[str, Any]:
        """The result as plain JSON values."""
        outcome, on_a, on_b = self.worst()
        verdict = {} if claim is None else {"claim": to_json(claim), "certified": self.certifies(claim)}
        return {
            **verdict, "a": repr(self.a), "b": repr(self.b), "epsilon_lower": finite(self.epsilon_lower()),
            "epsilon_upper": finite(self.epsilon_upper()), "residual": self.residual, "runs": self.runs,
            "outputs": len(self.law_a.masses), "worst_output": repr(outcome), "probability_a": float(on_a[0]),
            "probability_b": float(on_b[0]), "family": self.family,
        }  # fmt: skip

    def report(self, path: str | Path | None = None) -> str:
        """The result as JSON, written to `path` if given."""
        text = json.dumps(self.as_dict(), indent=2)
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text

    def _directions(self) -> list[tuple[ExactDistribution, ExactDistribution]]:
        return [(self.law_a, self.law_b), (self.law_b, self.law_a)]

    def _worst(self, place: int) -> tuple[Hashable, int]:
        first, second = self._directions()[place]
        best = max(first.masses, key=lambda each: Fraction(first.masses[each], max(1, _most(second, each))))
        return best, place

    def _sure_loss(self, outcome: Hashable, place: int) -> Fraction:
        first, second = self._directions()[place]
        most = _most(second, outcome)
        return log_down(Fraction(first.masses[outcome], most)) if most else LARGEST_EPSILON


def exact(
    mechanism: Callable[[Any, Tape], Any] | Mechanism,
    pair: Pair | Any,
    *,
    residual: float = 1e-15,
    most_runs: int = 1_000_000,
) -> ExactResult:
    """Enumerates `mechanism(input, bits)` on both inputs of a pair; `bits` is a `Bits` source with `random()` besides.

    A mechanism of Dither is taken as it is. Merged states and replaced samplers: see `enumeration.py`.
    """
    if isinstance(pair, str) or not hasattr(pair, "__len__") or len(pair) != 2:
        raise InvalidParameter("a pair is two inputs: (a, b)")
    if steps(pair) > 1:
        raise InvalidParameter(f"an exact audit is of neighbours, not of inputs {steps(pair)} steps apart")
    a, b = pair
    run = _runner(mechanism)
    if not isinstance(mechanism, Mechanism):
        for value in (a, b):
            steady(partial(run, value))
    first = _ended(exact_distribution(partial(run, a), residual, most_runs))
    if isinstance(mechanism, INVARIANT):
        by = np.asarray(b, np.int64) - np.asarray(a, np.int64)
        second = first.moved(lambda outcome: tuple((np.asarray(outcome) + by).tolist()))
        return ExactResult(
            a, b, first, second, f"every pair of inputs that differ by {by.tolist()} ({mechanism.proof})"
        )
    second = _ended(exact_distribution(partial(run, b), residual, most_runs))
    return ExactResult(a, b, first, second, "this pair alone")


def _ended(law: ExactDistribution) -> ExactDistribution:
    if not law.masses:
        raise Unsupported(f"none of {law.runs} executions ended with an output")
    return law


def delta_of(claim: Loss) -> Fraction:
    """The delta that a claim states."""
    return Fraction(0) if isinstance(claim, Pure) else claim.delta


def _runner(mechanism: Any) -> Callable[[Any, Tape], Any]:
    if isinstance(mechanism, Mechanism):
        return lambda value, tape: tuple(mechanism.release(np.asarray(value, np.int64), tape).tolist())
    if not callable(mechanism):
        raise InvalidParameter("exact needs a mechanism of Dither or a callable f(input, bits)")

    def run(value: Any, tape: Tape) -> Any:
        try:
            return mechanism(value, tape)
        except (Undecided, Rejected, ArithmeticError, ValueError):
            raise
        except Exception as error:
            raise failure(error, value) from error

    return run


def _most(law: ExactDistribution, outcome: Hashable) -> int:
    return law.masses.get(outcome, 0) + law.left


def _above(first: ExactDistribution, second: ExactDistribution, grow: Fraction) -> Fraction:
    """At least the sum of max(0, p - grow q)."""
    sure = sum(
        max(0, mass * grow.denominator - grow.numerator * second.masses.get(each, 0))
        for each, mass in first.masses.items()
    )
    return Fraction(sure, grow.denominator * UNIT) + Fraction(first.left, UNIT)


def _surely_above(first: ExactDistribution, second: ExactDistribution, grow: Fraction) -> Fraction:
    """At most the sum of max(0, p - grow q)."""
    sure = sum(
        max(0, mass * grow.denominator - grow.numerator * second.masses.get(each, 0))
        for each, mass in first.masses.items()
    )
    return max(Fraction(0), Fraction(sure, grow.denominator * UNIT) - grow * Fraction(second.left, UNIT))


def _shared(first: ExactDistribution, second: ExactDistribution) -> tuple[Floats, Floats]:
    """The probabilities of the outputs that both inputs have, each law scaled to 1."""
    shared = [each for each in first.masses if second.masses.get(each, 0) and first.masses[each]]
    p, q = (np.array([float(Fraction(law.masses[each], UNIT)) for each in shared]) for law in (first, second))
    return p / p.sum(), q / q.sum()


def _renyi(p: Floats, q: Floats, orders: Floats) -> Floats:
    """Divergences at some orders; infinity where there is nothing to compare."""
    if not len(p):
        return np.full(len(orders), inf)
    ratios, gaps = np.log(p) - np.log(q), orders - 1
    return np.array([_log_mean(p, gap * ratios) for gap in gaps]) / gaps


def _log_mean(p: Floats, logs: Floats) -> float:
    """log(sum of p e^logs), also where it is nearly 0 and where the sum is large."""
    if np.abs(logs).max() < 1:
        return float(np.log1p(p @ np.expm1(logs)))
    most = logs.max()
    return float(most + np.log(p @ np.exp(logs - most)))


def _rho(p: Floats, q: Floats) -> float:
    """At least the divergence over the order, at every order above 1.

    (x - 1) D(x) is convex in x. So between orders a < b it lies below its chord, and that below the larger of D(a)/a
    and D(b)/b times the chord of x (x - 1), which is x (x - 1) + (x - a) (b - x). Up to the first order, D is at most
    what it is there; from the last one on, at most the largest logarithm of a ratio.
    """
    largest = float((np.log(p) - np.log(q)).max()) if len(p) else inf
    if not 0 < largest < inf:
        return max(0.0, largest)
    seen = max(float((_renyi(p, q, ORDERS) / ORDERS).max()), largest * SMALLEST)
    last = np.arccosh(np.sqrt(max(2.0, largest / seen)))
    steps = min(np.ceil(last / min(COARSEST, np.sqrt(CLOSE / seen))), max(FEWEST_ORDERS, WORK // len(p)))
    orders = np.cosh(np.linspace(0, last, int(steps) + 1)[1:]) ** 2  # the excess is alike between all of them
    found = _renyi(p, q, orders)
    low, ratios = orders[:-1], found / orders
    excess = np.diff(orders) ** 2 / (4 * low * (low - 1))
    between = np.maximum(ratios[:-1], ratios[1:]) * (1 + excess)
    return float(max(found[0], *between, largest / orders[-1]))
