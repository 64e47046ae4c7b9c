"""Random differential privacy: bound the share of input pairs whose loss is large, from sampled pairs.

If none of n sampled pairs has a loss above epsilon (at delta), then with confidence 1 - alpha a fresh pair exceeds
epsilon with probability at most gamma = 1 - alpha^(1/n). If some pairs do, gamma is an exact binomial bound.
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
from dither.audit.neighbours import Pair, step_count
from dither.errors import InvalidParameter
from dither.loss import Rational, rational


@dataclass(frozen=True)
class RandomResult:
    """(epsilon, delta, gamma)-random differential privacy at confidence 1 - alpha, with the losses of the pairs."""

    epsilon: float
    delta: float
    gamma: float
    alpha: float
    losses: tuple[float, ...]

    @property
    def above(self) -> int:
        """The number of pairs whose loss is above epsilon."""
        return sum(each > self.epsilon for each in self.losses)

    def __str__(self) -> str:
        return (
            f"with confidence {1 - self.alpha:g}: the loss of a fresh pair is at most epsilon {self.epsilon:.6g} at "
            f"delta {self.delta:g}, except for a share of {self.gamma:.4g} of all pairs "
            f"({self.above} of {len(self.losses)} above)"
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
    """Sample pairs of neighbours by `draw(rng)`, compute the loss of each, and bound the share above epsilon.

    The loss is `loss(a, b)`, or comes from the exact audit of `mechanism`. Without `epsilon`, the largest loss of the
    first half of the pairs is used, and the other half tests it.
    """
    if pairs < 10 or not 0 < alpha < 1 or (mechanism is None) == (loss is None):
        raise InvalidParameter(
            "random_dp needs at least 10 pairs, alpha in (0, 1), and either a mechanism or a loss, not both"
        )
    rng, allowed = np.random.default_rng(seed), rational(delta)
    if not 0 <= allowed < 1 or (epsilon is not None and rational(epsilon) < 0):
        raise InvalidParameter("delta must be in [0, 1) and epsilon must not be negative")
    pair_loss = loss or (lambda a, b: _exact_loss(mechanism, a, b, allowed, residual))
    losses = np.array([pair_loss(*_check_pair(draw(rng))) for _ in range(pairs)], float)
    if np.isnan(losses).any():
        raise InvalidParameter("loss(a, b) returned NaN or None; return float('inf') for an unknown loss")
    tested = losses if epsilon is not None else losses[pairs // 2 :]
    limit = float(rational(epsilon)) if epsilon is not None else float(losses[: pairs // 2].max())
    undecided = 0.0 if loss else (1 + exp(min(limit, 500.0))) * residual  # the slack of the exact audit
    gamma = share_above(tested, limit, alpha)
    return RandomResult(limit, float(allowed) + undecided, gamma, alpha, tuple(tested.tolist()))


def _check_pair(pair: Any) -> Pair:
    if not hasattr(pair, "__len__") or len(pair) != 2:
        raise InvalidParameter("draw(rng) must return a pair of inputs: (a, b)")
    if step_count(pair) > 1:
        raise InvalidParameter(f"draw(rng) must return neighbours, got inputs {step_count(pair)} steps apart")
    return pair[0], pair[1]


def share_above(losses: NDArray[np.float64], epsilon: float, alpha: float) -> float:
    """Return an upper bound, at confidence 1 - alpha, of the share of pairs whose loss is above epsilon."""
    above, count = int(np.sum(losses > epsilon)), len(losses)
    return 1.0 if above == count else float(special.betaincinv(above + 1, count - above, 1 - alpha))


def _exact_loss(mechanism: Any, a: Any, b: Any, delta: Fraction, residual: float) -> float:
    if np.array_equal(a, b):
        return 0.0
    return exact(mechanism, (a, b), residual=residual).epsilon_upper(delta)
