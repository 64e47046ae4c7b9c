"""The power of an audit: the smallest violation that it would have refuted, and the samples that a smaller one needs.

Power depends on how common the event is that shows a violation. Figures for pure and Renyi claims are about events that
are as common, on the input on which they are likelier, as the event that was judged; a violation by rarer events needs
more samples. Other claims are usually made for Gaussian noise, whose violations are in its tails; figures for them are
about Gaussian noise of that true loss.

The probability of refuting is computed with the test that judged: the hits on both inputs are put as far below and
above their means as happens with probability 1 - `AIM`, in the direction that weakens the evidence most. `AIM` is above
the stated `POWER`, because the search may choose an event that is not quite the best.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from math import exp, floor, inf, isfinite, log, log10, sqrt

import numpy as np
from scipy import optimize, special, stats

from dither.audit.claim_syntax import as_claim, claim_text
from dither.audit.claims import MAX_STRENGTH, ceiling, compose_steps, delta, strength, tangent
from dither.audit.confidence import RARE, Counts, p_value, predicted_score, slope_at
from dither.errors import InvalidParameter
from dither.loss import ZCDP, Approximate, Loss, Pure, Renyi, rational

POWER, AIM = 0.9, 0.98
MAX_SAMPLES, SMALLEST = 1e15, 1e-12
# With more hits than this on both inputs, the exact test is replaced by its normal approximation, which is faster.
MANY_HITS = 300
# The search must see outputs this often to prefer them to commoner events that differ less.
MIN_SEARCH_HITS = 120
# A sequential audit learns its bets while it runs, and divides its wealth among several.
BETTING_SHARE, BETS = 0.6, 4
# The text says how many samples these multiples of the claimed strength, and of the claimed delta, would need.
NEAR_STRENGTH, NEAR_DELTA = 1.1, 10
# An audit is weak if it could not refute this multiple of the claimed strength.
LARGE_STRENGTH = 2

# Events of Gaussian noise, by their standard scores; the search may choose one this many times as common as the best.
SCORES, COMMONER = np.linspace(-2.0, 9.0, 441), 3.0
PROBABILITIES = np.concatenate([[0.0], np.geomspace(1e-12, 1.0, 400)])


@dataclass(frozen=True)
class AuditPower:
    """The violations that an audit could have refuted, by an event as common as the judged one.

    `probability` is that of the event on the input on which it is likelier, `runs` are the fresh runs on both inputs,
    that input first, out of `samples` in all. The probability is 1 only if the event is certain on both inputs; such
    an event shows nothing.
    """

    claim: Loss
    alpha: float
    probability: float
    runs: tuple[int, int]
    samples: int
    steps: int = 1
    sequential: bool = False

    @cached_property
    def detectable(self) -> float:
        """The smallest strength (epsilon, rho) that would have been refuted with probability `POWER`, or infinity."""
        stated = strength(self.claim)
        start = max(0.1 * stated, 1e-6)
        return stated + _smallest(lambda more: self._refutes_loss(self.claim, stated + more), start, MAX_STRENGTH)

    @cached_property
    def rarest_leak(self) -> float:
        """The smallest probability at which outputs that only one input has would have been refuted, or infinity."""
        return _smallest(self._notices, min(0.5, 20 / self.runs[0]), 1.0)

    def detects(self, violation: Loss | str) -> bool:
        """Return True if a true loss this large would have been refuted with probability `POWER`."""
        violation = as_claim(violation)
        _check_exceeds(violation, self.claim)
        return self._refutes_loss(violation, strength(violation))

    def samples_needed(self, violation: Loss | str) -> float:
        """Return about how many samples refute a true loss this large with probability `POWER`, or infinity."""
        return self._fewest_samples(lambda power: power.detects(violation))

    def samples_to_notice(self, leak: float) -> float:
        """Return about how many samples refute outputs that only one input has and that have this probability."""
        return self._fewest_samples(lambda power: power._notices(leak))

    def shortfall(self, violation: Loss | None = None) -> str:
        """Say why the audit was too weak to refute a true loss this large, or return "" if it was not.

        Without a violation, this is twice the claimed strength, and then a leak of ten times the claimed delta.
        """
        stated, leak = violation or violation_near(self.claim, LARGE_STRENGTH), NEAR_DELTA * delta(self.claim)
        if stated is not None and not self.detects(stated):
            return self._shortfall_text(f"a true loss of {claim_text(stated)}", self.samples_needed(stated))
        if violation is None and 0 < leak < self.rarest_leak:
            output = f"an output that only one input can have, of probability {leak:.2g} (10 times the claimed delta),"
            return self._shortfall_text(output, self.samples_to_notice(leak))
        return ""

    def _shortfall_text(self, what: str, needed: float) -> str:
        samples = f"{self.samples:,} samples; it needs {_samples_text(needed)}"
        return f"{what} would be refuted with probability below {POWER} by {samples}"

    def __str__(self) -> str:
        return "; ".join([self._detectable_text(), *self._near_text(), self._leak_text()])

    def _detectable_text(self) -> str:
        name, stated = strength_name(self.claim), f"the claim is {strength(self.claim):.4g}"
        if self.probability == 1:
            return "every output that was judged lies in the event on both inputs, so nothing was tested"
        start = f"with {self.samples:,} samples a true {name} of"
        event = f"by an event of probability {self.probability:.2g} on one input"
        if is_gaussian(self.claim):
            event = "if the noise were Gaussian"
        if not isfinite(self.detectable):
            return f"{start} {MAX_STRENGTH:g} would not have been refuted {event}; {stated}"
        return (
            f"{start} {self.detectable:.4g} or more would have been refuted with probability {POWER} {event}; {stated}"
        )

    def _near_text(self) -> list[str]:
        """Say how many samples a violation slightly larger than the claim needs, if these were too few."""
        near = violation_near(self.claim, NEAR_STRENGTH)
        if near is None or self.probability == 1 or self.detectable <= strength(near):
            return []
        samples = _samples_text(self.samples_needed(near))
        return [f"a true {strength_name(self.claim)} of {strength(near):.4g} needs {samples}"]

    def _leak_text(self) -> str:
        """Say how rare an output of one input alone may be, against the claimed delta."""
        text = (
            f"an output that only one input can have is noticed if its probability is at least {self.rarest_leak:.2g}"
        )
        allowed = delta(self.claim)
        if not allowed or self.rarest_leak <= NEAR_DELTA * allowed:
            return text
        samples = _samples_text(self.samples_to_notice(NEAR_DELTA * allowed))
        return f"{text}, and the claimed delta is {allowed:.2g}: {NEAR_DELTA} times that needs {samples}"

    def _fewest_samples(self, suffices: Callable[[AuditPower], bool]) -> float:
        return _round_up(
            self.samples * _smallest(lambda times: suffices(self._with_runs(times)), 1.0, MAX_SAMPLES / self.samples)
        )

    def _notices(self, leak: float) -> bool:
        """Return True if outputs of this probability, which only one input has, are found and refuted."""
        searched = sum(self.runs) if self.sequential else self.samples - sum(self.runs)
        return leak * searched / 2 >= MIN_SEARCH_HITS and self._refutes(leak, 0.0)

    def _with_runs(self, times: float) -> AuditPower:
        """Return the power of the same judgement with this many times the runs."""
        first, second = (max(1, round(times * runs)) for runs in self.runs)
        return replace(self, runs=(first, second), samples=round(times * self.samples))

    def _refutes_loss(self, loss: Loss, at: float) -> bool:
        """Return True if a true loss of this kind and strength refutes the claim with probability at least `POWER`."""
        if is_gaussian(loss):
            return self._refutes_gaussian(_gaussian_scale(loss, at))
        p = max(self.probability, delta(loss))
        return p < 1 and self._refutes(p, self._other_probability(loss, p, at))

    def _refutes_gaussian(self, scale: float) -> bool:
        """Return True if Gaussian noise of this scale refutes the claim, by its best event and by commoner ones."""
        q, p = special.ndtr(-SCORES), special.ndtr(self.steps / scale - SCORES)
        limit = ceiling(self.claim, strength(self.claim), self.steps)
        best = int(np.argmax(predicted_score(p, q, *self.runs, limit)))
        commoner = int(np.argmin(np.abs(p - min(COMMONER * p[best], 0.5))))
        return all(self._refutes(float(p[place]), float(q[place])) for place in {best, commoner})

    def _other_probability(self, loss: Loss, p: float, at: float) -> float:
        """Return the smallest probability for which the loss allows p on the other input."""
        limit = ceiling(loss, at, self.steps)
        return float(np.interp(p, limit(PROBABILITIES), PROBABILITIES))

    def _refutes(self, p: float, q: float) -> bool:
        """Return True if an event of these probabilities refutes the claim with probability at least `POWER`."""
        return self._bets_refute(p, q) if self.sequential else self._counts_refute(p, q)

    def _counts_refute(self, p: float, q: float) -> bool:
        limit = ceiling(self.claim, strength(self.claim), self.steps)
        slope = float(slope_at(limit, np.array([q]))[0])
        first, second = sqrt(p * (1 - p) / self.runs[0]), slope * sqrt(q * (1 - q) / self.runs[1])
        score, length = float(special.ndtri(AIM)), max(sqrt(first**2 + second**2), 1e-300)
        few = int(stats.binom.ppf(special.ndtr(-score * first / length), self.runs[0], p))
        many = int(stats.binom.ppf(special.ndtr(score * second / length), self.runs[1], q))
        rare = isinstance(self.claim, Pure) and p <= RARE
        if min(few, many) > MANY_HITS and not rare:
            shares = np.array([few / self.runs[0]]), np.array([many / self.runs[1]])
            return bool(predicted_score(*shares, *self.runs, limit)[0] >= -special.ndtri(self.alpha))
        return p_value(Counts(max(few, 0), self.runs[0], max(many, 0), self.runs[1], rare), limit) <= self.alpha

    def _bets_refute(self, p: float, q: float) -> bool:
        """Return True if the wealth of betting on the event probably reaches 1 / alpha."""
        epsilon, extra = self._implied_loss(q)
        stakes = np.geomspace(1e-6, 0.95, 60) / (2 * exp(epsilon) + extra)
        returns = np.log1p(np.stack([stakes * (2 - extra), -stakes * (2 * exp(epsilon) + extra), -stakes * extra]))
        chances = np.array([p / 2, q / 2, 1 - (p + q) / 2])
        mean, square = chances @ returns, chances @ returns**2
        runs = BETTING_SHARE * sum(self.runs)
        wealth = runs * mean - special.ndtri(AIM) * np.sqrt(runs * np.maximum(square - mean**2, 0.0))
        return bool(np.max(wealth) >= log(BETS / self.alpha))

    def _implied_loss(self, q: float) -> tuple[float, float]:
        if isinstance(self.claim, Pure | Approximate):
            return compose_steps(self.claim, strength(self.claim), self.steps)
        return tangent(self.claim, max(q, 1e-6), self.steps)


def _smallest(works: Callable[[float], bool], start: float, most: float) -> float:
    """Return the smallest positive number for which `works` is true, to 2%; infinity if there is none up to `most`."""
    low, high, factor = 0.0, min(start, most), 1.5
    while not works(high):
        if high >= most:
            return inf
        low, high, factor = high, min(factor * high, most), factor**2
    while low == 0 and high > SMALLEST:
        low, high, factor = (0.0, high / factor, factor**2) if works(high / factor) else (high / factor, high, factor)
    while high > 1.02 * low and high > SMALLEST:
        middle = sqrt(low * high)
        low, high = (low, middle) if works(middle) else (middle, high)
    return high


def is_gaussian(loss: Loss) -> bool:
    """Return True for losses that are usually stated for Gaussian noise."""
    return isinstance(loss, ZCDP) or (isinstance(loss, Approximate) and loss.delta > 0)


def _gaussian_scale(loss: Loss, at: float) -> float:
    """Return the scale of Gaussian noise with this true loss, for inputs that differ by 1."""
    if isinstance(loss, ZCDP):
        return 1 / sqrt(2 * at)

    def excess(log_scale: float) -> float:
        scale = exp(log_scale)
        first, second = special.log_ndtr([0.5 / scale - at * scale, -0.5 / scale - at * scale])
        return exp(first) - exp(min(at + second, 0.0)) - delta(loss)

    return exp(float(optimize.brentq(excess, log(1e-3), log(1e6))))


def violation_near(claim: Loss, times: float) -> Loss | None:
    """Return the claim with `times` its strength, or None if its strength is 0 or a curve."""
    larger = rational(strength(claim)) * rational(times)
    if not larger or isinstance(claim, Renyi):
        return None
    return replace(claim, rho=larger) if isinstance(claim, ZCDP) else replace(claim, epsilon=larger)


def strength_name(claim: Loss) -> str:
    """Return the name of a claim's strength."""
    if isinstance(claim, Renyi):
        return "multiple of the curve"
    return "rho" if isinstance(claim, ZCDP) else "epsilon"


def _check_exceeds(violation: Loss, claim: Loss) -> None:
    """Refuse a violation of another kind than the claim, or one that the claim allows."""
    kinds = (Pure, Approximate) if isinstance(claim, Pure | Approximate) else (type(claim),)
    if not isinstance(violation, kinds) or isinstance(claim, Renyi):
        raise InvalidParameter(
            f"a violation of {claim_text(claim)} must be of the same kind, and no curve; got {claim_text(violation)}"
        )
    if strength(violation) <= strength(claim) and delta(violation) <= delta(claim):
        raise InvalidParameter(
            f"a violation must be larger than the claim {claim_text(claim)}, got {claim_text(violation)}"
        )


def _samples_text(samples: float) -> str:
    return f"about {samples:,.0f} samples" if isfinite(samples) else "more samples than can be drawn"


def _round_up(samples: float) -> float:
    """Round a number of samples up to two digits."""
    if not isfinite(samples):
        return inf
    digit = 10.0 ** max(floor(log10(samples)) - 1, 0)
    return float(np.ceil(samples / digit) * digit)
