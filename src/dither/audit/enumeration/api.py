"""The exact audit: rigorous bounds of each output's probability on two inputs, and of the privacy loss between them.

Let a and b be the lower bounds of the two distributions, and r and s their undecided masses. Then delta(epsilon) is at
most sum max(0, a - e^epsilon b) + r, and at least sum over any event of (a - e^epsilon b) - e^epsilon s. Exponentials
and logarithms are rounded in the direction that keeps each bound true.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy import special

from dither.audit.claim_syntax import json_number
from dither.audit.claims import ORDERS, Floats
from dither.audit.enumeration.paths import METHODS, UNIT, ExactDistribution, Rejected, Tape, Undecided
from dither.audit.enumeration.sampler_models import check_reproducible_code, exact_distribution
from dither.audit.neighbours import Pair, step_count
from dither.audit.sampling import mechanism_failure
from dither.errors import InvalidParameter, Unsupported
from dither.loss import ZCDP, Approximate, Loss, Pure, Rational, Renyi, rational, to_json
from dither.privacy.accounting.rounding import exp_down, exp_up, log_down
from dither.privacy.mechanisms import DiscreteGaussian, DiscreteLaplace, Mechanism, Staircase

# The proofs of these mechanisms show that the noise does not depend on the input and is added to it; results saturate
# only near 2^62. One enumeration therefore serves both inputs of a pair.
TRANSLATION_INVARIANT = (DiscreteLaplace, DiscreteGaussian, Staircase)
Verdict = Literal["certified", "refuted", "undecided"]
EPSILON_PRECISION = Fraction(1, 1 << 40)
LARGEST_EPSILON = Fraction(512)
TOLERANCE = 1e-6
MAX_EXCLUDED = 1e-12
# A result whose slack (the delta that undecided mass may be worth) is larger than this certifies nothing.
MAX_UNDECIDED = 1e-6
# The grid of orders behind a certified rho: orders are cosh(t)^2 with t evenly spaced, up to an order at which the
# largest loss no longer matters. The certified rho exceeds the least true one by about RHO_PRECISION.
RHO_PRECISION = 4e-8
WIDEST_STEP = 0.01  # between two values of t
SMALLEST_RHO_SHARE = 1e-9  # rho is taken to be at least this share of the largest loss
FEWEST_ORDERS = 500
MAX_TERMS = 1 << 27  # orders times outputs, unless that leaves fewer than FEWEST_ORDERS orders


@dataclass(frozen=True)
class ExactResult:
    """The output distributions on both inputs, and the bounds that they give of the loss, in both directions."""

    a: Any
    b: Any
    distribution_a: ExactDistribution
    distribution_b: ExactDistribution
    family: str

    @property
    def residual(self) -> float:
        """The larger of the two undecided masses."""
        return max(self.distribution_a.residual, self.distribution_b.residual)

    @property
    def runs(self) -> int:
        """The number of executions of the code, on both inputs together."""
        return self.distribution_a.runs + self.distribution_b.runs

    def delta_upper(self, epsilon: Rational) -> Fraction:
        """Return a delta at which the inputs are (epsilon, delta)-indistinguishable, in both directions."""
        growth = exp_down(rational(epsilon))
        return max(_delta_upper_bound(first, second, growth) for first, second in self._directions())

    def delta_lower(self, epsilon: Rational) -> Fraction:
        """Return a delta such that no smaller one is true for this epsilon."""
        growth = exp_up(rational(epsilon))
        return max(_delta_lower_bound(first, second, growth) for first, second in self._directions())

    def slack(self, epsilon: Rational) -> Fraction:
        """Return the delta that undecided mass may be worth: the mass on one input plus e^epsilon times the other's."""
        undecided = max(self.distribution_a.undecided, self.distribution_b.undecided)
        return (1 + exp_down(rational(epsilon))) * Fraction(undecided, UNIT)

    def epsilon_upper(self, delta: Rational = 0) -> float:
        """Return the least epsilon that is certified at `delta` plus the slack; infinity if none is."""
        if not self._fits(LARGEST_EPSILON, rational(delta)):
            return inf
        low, high = Fraction(0), LARGEST_EPSILON
        while high - low > EPSILON_PRECISION:
            middle = (low + high) / 2
            low, high = (low, middle) if self._fits(middle, rational(delta)) else (middle, high)
        return 0.0 if self._fits(Fraction(0), rational(delta)) else float(high)

    def _fits(self, epsilon: Fraction, delta: Fraction) -> bool:
        return self.delta_upper(epsilon) <= delta + self.slack(epsilon)

    def epsilon_lower(self) -> float:
        """Return an epsilon such that no smaller one is true at delta 0, from the largest proven likelihood ratio."""
        largest = max(self._loss_lower_bound(direction) for direction in range(2))
        return inf if largest >= LARGEST_EPSILON else max(0.0, float(largest))

    def worst(self) -> tuple[Hashable, tuple[Fraction, Fraction], tuple[Fraction, Fraction]]:
        """Return the output with the largest proven loss, and the bounds of its probability on each input."""
        outcome = self._worst_output(max(range(2), key=self._loss_lower_bound))
        return outcome, self.distribution_a.interval(outcome), self.distribution_b.interval(outcome)

    def renyi_upper(self, orders: Any = ORDERS) -> list[tuple[float, float]]:
        """Return pairs (order, divergence), over decided executions whose outputs occur on both inputs."""
        curves = [
            _renyi_divergences(*_shared_probabilities(first, second), np.array(orders))
            for first, second in self._directions()
        ]
        return [(float(order), float(max(values))) for order, *values in zip(orders, *curves, strict=True)]

    def rho_upper(self) -> float:
        """Return a rho that holds at every order once `excluded` is added to delta, computed in double precision."""
        return max(_rho_upper_bound(*_shared_probabilities(first, second)) for first, second in self._directions())

    @property
    def excluded(self) -> Fraction:
        """The mass that is undecided or leads to an output of one input alone: the larger of the two inputs' masses."""
        shared = [each for each in self.distribution_a.masses if each in self.distribution_b.masses]
        distributions = self.distribution_a, self.distribution_b
        shared_mass = min(sum(distribution.masses[each] for each in shared) for distribution in distributions)
        return Fraction(UNIT - shared_mass, UNIT)

    def verdict(self, claim: Loss, tolerance: float = TOLERANCE, max_excluded: float = MAX_EXCLUDED) -> Verdict:
        """Return "certified" if the enumeration proves the claim for these two inputs, "refuted" if it disproves it.

        Code in floats rounds its probabilities, so a claim is met if it is met within the tolerance, which is added to
        epsilon, rho or the Renyi curve, and multiplies delta by 1 + tolerance. For pure and approximate claims the
        slack counts as delta. Claims of zCDP and Renyi kind hold for the executions whose outputs occur on both inputs;
        the mass of all others, `excluded`, must be at most the claim's delta plus `max_excluded`.
        """
        if self._breaks(claim, tolerance, max_excluded):
            return "refuted"
        return "certified" if self._meets(claim, tolerance, max_excluded) else "undecided"

    def certifies(self, claim: Loss, tolerance: float = TOLERANCE, max_excluded: float = MAX_EXCLUDED) -> bool:
        """Return True if the verdict is "certified"."""
        return self.verdict(claim, tolerance, max_excluded) == "certified"

    def refutes(self, claim: Loss, tolerance: float = TOLERANCE) -> bool:
        """Return True if the verdict is "refuted"."""
        return self.verdict(claim, tolerance) == "refuted"

    def _meets(self, claim: Loss, tolerance: float, max_excluded: float) -> bool:
        """Return True if the upper bounds of the loss are within the claim."""
        if isinstance(claim, Pure | Approximate):
            decided = self.slack(claim.epsilon) <= Fraction(MAX_UNDECIDED)
            return decided and self._fits(*_add_tolerance(claim, tolerance))
        if self.excluded > claim.delta + Fraction(max_excluded):
            return False
        if isinstance(claim, ZCDP):
            return self.rho_upper() <= float(claim.rho) + tolerance
        limits = {float(order): float(value) + tolerance for order, value in claim.curve}
        return all(value <= limits[order] for order, value in self.renyi_upper(tuple(limits)))

    def _breaks(self, claim: Loss, tolerance: float, max_excluded: float) -> bool:
        """Return True if a lower bound of the loss is above the claim; zCDP and Renyi claims with a delta never are."""
        if isinstance(claim, Pure | Approximate):
            epsilon, delta = _add_tolerance(claim, tolerance)
            return self.delta_lower(epsilon) > delta
        if claim.delta:
            return False
        orders, limits = _renyi_limits(claim)
        return any(
            bool(
                (
                    _renyi_lower_bounds(first, second, orders, max_excluded)
                    > limits + tolerance * _scale(claim, orders)
                ).any()
            )
            for first, second in self._directions()
        )

    def __str__(self) -> str:
        outcome, on_a, on_b = self.worst()
        upper = self.epsilon_upper()
        delta = float(self.slack(Fraction(upper))) if upper < inf else 1.0
        return (
            f"epsilon is at least {self.epsilon_lower():.9g} and, with delta {delta:.3g}, at most {upper:.9g}; "
            f"the output {outcome} has probability {float(on_a[0]):.9g} on {self.a} and "
            f"{float(on_b[0]):.9g} on {self.b}; {self.runs} executions leave {self.residual:.3g} undecided; "
            f"holds for {self.family}"
        )

    def as_dict(self, claim: Loss | None = None) -> dict[str, Any]:
        """Return the result as plain JSON values; with a claim, also the verdict on it."""
        outcome, on_a, on_b = self.worst()
        verdict = (
            {} if claim is None else {"claim": to_json(claim), "verdict": self.verdict(claim), "tolerance": TOLERANCE}
        )
        return {
            **verdict, "a": repr(self.a), "b": repr(self.b), "epsilon_lower": json_number(self.epsilon_lower()),
            "epsilon_upper": json_number(self.epsilon_upper()), "residual": self.residual, "runs": self.runs,
            "outputs": len(self.distribution_a.masses), "worst_output": repr(outcome), "probability_a": float(on_a[0]),
            "probability_b": float(on_b[0]), "family": self.family,
        }  # fmt: skip

    def report(self, path: str | Path | None = None) -> str:
        """Return the result as JSON, and write it to `path` if one is given."""
        text = json.dumps(self.as_dict(), indent=2)
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text

    def _directions(self) -> list[tuple[ExactDistribution, ExactDistribution]]:
        return [(self.distribution_a, self.distribution_b), (self.distribution_b, self.distribution_a)]

    def _worst_output(self, direction: int) -> Hashable:
        """Return the output with the largest proven likelihood ratio in a direction."""
        first, second = self._directions()[direction]
        return max(first.masses, key=lambda each: Fraction(first.masses[each], max(1, _largest_mass(second, each))))

    def _loss_lower_bound(self, direction: int) -> Fraction:
        """Return the proven loss of the worst output in a direction."""
        first, second = self._directions()[direction]
        outcome = self._worst_output(direction)
        largest = _largest_mass(second, outcome)
        return log_down(Fraction(first.masses[outcome], largest)) if largest else LARGEST_EPSILON


def exact(
    mechanism: Callable[[Any, Tape], Any] | Mechanism,
    pair: Pair | Any,
    *,
    residual: float = 1e-15,
    most_runs: int = 1_000_000,
) -> ExactResult:
    """Enumerate `mechanism(input, bits)` on both inputs of a pair; `bits` is a `Bits` source that also has `random()`.

    A mechanism of Dither is passed as it is; its samplers are replaced as `sampler_models.py` describes. Enumeration
    ends when at most `residual` of the probability is undecided, or after `most_runs` executions on each input.
    """
    if isinstance(pair, str) or not hasattr(pair, "__len__") or len(pair) != 2:
        raise InvalidParameter("pair must be two inputs: (a, b)")
    if step_count(pair) > 1:
        raise InvalidParameter(f"exact needs neighbouring inputs; these are {step_count(pair)} steps apart")
    a, b = pair
    run = _runner(mechanism)
    if not isinstance(mechanism, Mechanism):
        for value in (a, b):
            check_reproducible_code(partial(run, value))
    first = _require_outputs(exact_distribution(partial(run, a), residual, most_runs))
    if isinstance(mechanism, TRANSLATION_INVARIANT):
        shift = np.asarray(b, np.int64) - np.asarray(a, np.int64)
        second = first.map_outcomes(lambda outcome: tuple((np.asarray(outcome) + shift).tolist()))
        family = f"every pair of inputs that differ by {shift.tolist()} ({mechanism.proof})"
        return ExactResult(a, b, first, second, family)
    second = _require_outputs(exact_distribution(partial(run, b), residual, most_runs))
    return ExactResult(a, b, first, second, "this pair alone")


def _require_outputs(distribution: ExactDistribution) -> ExactDistribution:
    if not distribution.masses:
        raise Unsupported(f"none of {distribution.runs} executions ended with an output; allow more runs")
    return distribution


def delta_of(claim: Loss) -> Fraction:
    """Return the delta that a claim states; 0 for a pure claim."""
    return Fraction(0) if isinstance(claim, Pure) else claim.delta


def _add_tolerance(claim: Pure | Approximate, tolerance: float) -> tuple[Fraction, Fraction]:
    """Return the epsilon and delta up to which a claim counts as met."""
    return claim.epsilon + Fraction(tolerance), delta_of(claim) * (1 + Fraction(tolerance))


def _renyi_limits(claim: ZCDP | Renyi) -> tuple[Floats, Floats]:
    """Return orders, and the largest divergence that the claim allows at each."""
    if isinstance(claim, ZCDP):
        return ORDERS, float(claim.rho) * ORDERS
    curve = np.array([(float(order), float(value)) for order, value in claim.curve])
    return curve[:, 0], curve[:, 1]


def _scale(claim: ZCDP | Renyi, orders: Floats) -> Floats:
    """Return what multiplies the tolerance at each order: a tolerance of rho is multiplied by the order."""
    return orders if isinstance(claim, ZCDP) else np.ones_like(orders)


def _renyi_lower_bounds(
    first: ExactDistribution, second: ExactDistribution, orders: Floats, max_excluded: float
) -> Floats:
    """Return at most the Renyi divergence at each order.

    Every output contributes p^order q^(1 - order), which grows with p and falls with q, so decided mass stands for p,
    and decided plus undecided mass for q. Outputs that the second input has not are merged into one, unless their mass
    is at most `max_excluded`.
    """
    shared = [each for each in first.masses if first.masses[each] and second.masses.get(each, 0)]
    alone = sum(mass for each, mass in first.masses.items() if not second.masses.get(each, 0))
    masses = [(first.masses[each], second.masses[each] + second.undecided) for each in shared]
    masses += [(alone, second.undecided)] if alone > UNIT * Fraction(max_excluded) else []
    if any(not largest for _, largest in masses):
        return np.full(len(orders), inf)
    if not masses:
        return np.zeros(len(orders))
    p, q = (np.array([float(Fraction(mass, UNIT)) for mass in side]) for side in zip(*masses, strict=True))
    return np.array([special.logsumexp(x * np.log(p) - (x - 1) * np.log(q)) / (x - 1) for x in orders])


def _runner(mechanism: Any) -> Callable[[Any, Tape], Any]:
    """Return a function that runs the mechanism on an input and a tape."""
    if isinstance(mechanism, Mechanism):
        return lambda value, tape: tuple(mechanism.release(np.asarray(value, np.int64), tape).tolist())
    if not callable(mechanism):
        raise InvalidParameter(
            f"exact needs a mechanism of Dither or a callable f(input, bits), got {type(mechanism).__name__}"
        )

    def run(value: Any, tape: Tape) -> Any:
        try:
            return mechanism(value, tape)
        except (Undecided, Rejected, ArithmeticError, ValueError):
            raise
        except Exception as error:
            if isinstance(error, AttributeError) and isinstance(error.obj, Tape):
                raise InvalidParameter(str(error)) from error
            if isinstance(error, TypeError) and str(error).startswith("Tape."):
                raise InvalidParameter(f"{str(error).replace('Tape.', 'bits.', 1)}; it has: {METHODS}") from error
            raise mechanism_failure(error, value) from error

    return run


def _largest_mass(distribution: ExactDistribution, outcome: Hashable) -> int:
    return distribution.masses.get(outcome, 0) + distribution.undecided


def _delta_upper_bound(first: ExactDistribution, second: ExactDistribution, growth: Fraction) -> Fraction:
    """Return at least the sum of max(0, p - growth q) over all outputs."""
    return _decided_excess(first, second, growth) + Fraction(first.undecided, UNIT)


def _delta_lower_bound(first: ExactDistribution, second: ExactDistribution, growth: Fraction) -> Fraction:
    """Return at most the sum of max(0, p - growth q) over all outputs."""
    return max(Fraction(0), _decided_excess(first, second, growth) - growth * Fraction(second.undecided, UNIT))


def _decided_excess(first: ExactDistribution, second: ExactDistribution, growth: Fraction) -> Fraction:
    """Return the sum of max(0, p - growth q) of the decided masses."""
    excess = sum(
        max(0, mass * growth.denominator - growth.numerator * second.masses.get(outcome, 0))
        for outcome, mass in first.masses.items()
    )
    return Fraction(excess, growth.denominator * UNIT)


def _shared_probabilities(first: ExactDistribution, second: ExactDistribution) -> tuple[Floats, Floats]:
    """Return both probabilities of each output that occurs on both inputs; each distribution is scaled to sum to 1."""
    shared = [each for each in first.masses if second.masses.get(each, 0) and first.masses[each]]
    p, q = (
        np.array([float(Fraction(distribution.masses[each], UNIT)) for each in shared])
        for distribution in (first, second)
    )
    return p / p.sum(), q / q.sum()


def _renyi_divergences(p: Floats, q: Floats, orders: Floats) -> Floats:
    """Return the Renyi divergence at each order; infinity if the distributions share no output."""
    if not len(p):
        return np.full(len(orders), inf)
    ratios, gaps = np.log(p) - np.log(q), orders - 1
    return np.array([_log_mean(p, gap * ratios) for gap in gaps]) / gaps


def _log_mean(p: Floats, logs: Floats) -> float:
    """Return log(sum of p e^logs), accurately also where it is close to 0 and where the sum is large."""
    if np.abs(logs).max() < 1:
        return float(np.log1p(p @ np.expm1(logs)))
    largest = logs.max()
    return float(largest + np.log(p @ np.exp(logs - largest)))


def _rho_upper_bound(p: Floats, q: Floats) -> float:
    """Return at least D(x) / x at every order x > 1, where D is the Renyi divergence.

    (x - 1) D(x) is convex in x. So between orders a < b it lies below its chord, and the chord lies below the larger of
    D(a)/a and D(b)/b times the chord of x (x - 1), which is x (x - 1) + (x - a) (b - x). Below the first order of the
    grid D is at most its value there; beyond the last order it is at most the largest log-likelihood ratio.
    """
    largest = float((np.log(p) - np.log(q)).max()) if len(p) else inf
    if not 0 < largest < inf:
        return max(0.0, largest)
    estimate = max(float((_renyi_divergences(p, q, ORDERS) / ORDERS).max()), largest * SMALLEST_RHO_SHARE)
    last = np.arccosh(np.sqrt(max(2.0, largest / estimate)))
    step = min(WIDEST_STEP, np.sqrt(RHO_PRECISION / estimate))
    steps = min(np.ceil(last / step), max(FEWEST_ORDERS, MAX_TERMS // len(p)))
    orders = np.cosh(np.linspace(0, last, int(steps) + 1)[1:]) ** 2  # makes the excess about equal between all of them
    divergences = _renyi_divergences(p, q, orders)
    low, ratios = orders[:-1], divergences / orders
    excess = np.diff(orders) ** 2 / (4 * low * (low - 1))
    between = np.maximum(ratios[:-1], ratios[1:]) * (1 + excess)
    return float(max(divergences[0], *between, largest / orders[-1]))
