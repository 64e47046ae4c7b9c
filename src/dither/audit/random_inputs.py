"""Positive evidence: random differential privacy, from pairs sampled from a distribution of data.

If none of n sampled pairs has a loss above epsilon (with delta), then with confidence 1 - alpha a fresh pair exceeds it
with probability below gamma, 1 - alpha^(1/n) (exact binomial bounds for more than none).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import exp
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dither.audit.enumeration.api import exact
from dither.audit.neighbours import Pair, steps
from dither.errors import InvalidParameter
from dither.loss import Rational, rational


@dataclass(frozen=True)
class RandomResult:
    """(epsilon, delta, gamma)-random differential privacy, with its confidence."""

    epsilon: float
    delta: float
    gamma: float
    alpha: float
    losses: tuple[float, ...]

    @property
    def above(self) -> int:
        """Sampled pairs whose loss is larger."""
        return sum(each > self.epsilon for each in self.losses)

    def __str__(self) -> str:
        seen = f"{self.above} of {len(self.losses)} above"
        return (
            f"with confidence {1 - self.alpha:g}: the loss of a fresh pair is at most epsilon {self.epsilon:.6g} at "
            f"delta {self.delta:g}, but for a share of {self.gamma:.4g} of all pairs ({seen})"
        )


def random_dp(
    draw: Callable[[np.random.Generator], Pair],
    mechanism: Any = None,
    *,
    loss: Callable[[Any, Any], float] | None = None,
    epsilon: Rational | None = None,
    delta: Rational = 0,
    pairs: int = 300,
    alpha: float = 0.01,
    residual: float = 1e-9,
    seed: int | None = None,
) -> RandomResult:
    """Samples pairs, takes the exact loss of each, and states a confidence.

    The loss comes from `loss(a, b)` or from the exact audit of `mechanism`. Without an `epsilon`, half of the pairs
    choose it (their largest loss) and the other half judge it.
    """
    if pairs < 10 or not 0 < alpha < 1 or (mechanism is None) == (loss is None):
        raise InvalidParameter("random_dp needs 10 pairs or more, alpha in (0, 1), and a mechanism or a loss")
    rng, allowed = np.random.default_rng(seed), rational(delta)
    if not 0 <= allowed < 1 or (epsilon is not None and rational(epsilon) < 0):
        raise InvalidParameter("delta must be in [0, 1) and epsilon must not be negative")
    of = loss or (lambda a, b: _exact_loss(mechanism, a, b, allowed, residual))
    losses = np.array([of(*_pair(draw(rng))) for _ in range(pairs)], float)
    if np.isnan(losses).any():
        raise InvalidParameter("a loss was not a number; an unknown loss is infinite: float('inf')")
    judged = losses if epsilon is not None else losses[pairs // 2 :]
    limit = float(rational(epsilon)) if epsilon is not None else float(losses[: pairs // 2].max())
    extra = 0.0 if loss else (1 + exp(min(limit, 500.0))) * residual  # what the exact audit leaves undecided
    return RandomResult(limit, float(allowed) + extra, share_above(judged, limit, alpha), alpha, tuple(judged.tolist()))


def _pair(drawn: Any) -> Pair:
    if not hasattr(drawn, "__len__") or len(drawn) != 2:
        raise InvalidParameter("draw(rng) gives a pair of inputs: (a, b)")
    if steps(drawn) > 1:
        raise InvalidParameter(f"draw(rng) gives a pair of neighbours, not inputs {steps(drawn)} steps apart")
    return drawn[0], drawn[1]


def share_above(losses: NDArray[np.float64], epsilon: float, alpha: float) -> float:
    """At confidence 1 - alpha, an upper bound of the share of pairs whose loss is above epsilon."""
    above, count = int(np.sum(losses > epsilon)), len(losses)
    return 1.0 if above == count else float(special.betaincinv(above + 1, count - above, 1 - alpha))


def _exact_loss(mechanism: Any, a: Any, b: Any, delta: Fraction, residual: float) -> float:
    if np.array_equal(a, b):
        return 0.0
    return exact(mechanism, (a, b), residual=residual).epsilon_upper(delta)
