"""An optional figure by privacy loss distributions, valid only where every parameter was fixed in advance.

It needs the package dp-accounting. Budgets never use it: they hold for parameters chosen after earlier answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from fractions import Fraction
from importlib import import_module
from typing import TYPE_CHECKING, Any

from dither.errors import InvalidParameter, Unsupported
from dither.loss import Approximate, Pure, Rational, Sensitivity, rational
from dither.privacy.mechanisms.additive import DiscreteGaussian, DiscreteLaplace, Geometric

if TYPE_CHECKING:
    from dither.privacy.mechanisms.base import Mechanism

FIXED_IN_ADVANCE = (
    "valid only if every query and parameter was fixed before the first answer; not enforced by any budget"
)
GRID = 1e-4  # the step on which losses are discretised, always so that the result dominates
SMALLEST_DELTA = Fraction(1, 10**9)
FLOAT_ERROR = 1e-11  # far above what the Fourier transforms of dp-accounting lose
PLACES = Decimal("0.0001")


@dataclass(frozen=True)
class Fixed:
    """Answers whose mechanism was fixed in advance, so many times."""

    mechanism: Mechanism
    sensitivity: Sensitivity
    times: int = 1

    def __post_init__(self) -> None:
        if self.times < 1:
            raise InvalidParameter(f"times must be at least 1, got {self.times}")


@dataclass(frozen=True)
class Figure:
    """An epsilon, rounded up, at a delta, and the condition under which it holds."""

    epsilon: Decimal
    delta: Fraction
    holds: str = FIXED_IN_ADVANCE


def pld_figure(answers: Sequence[Fixed], delta: Rational) -> Figure:
    """The epsilon of all the answers together, for parameters fixed in advance."""
    wanted = rational(delta, "delta")
    if not SMALLEST_DELTA <= wanted < 1 or not answers:
        raise InvalidParameter("a figure needs at least one answer and a delta from 1e-9 up to 1")
    library = _library()
    parts = [_one_cell(library, answer).self_compose(_copies(answer)) for answer in answers]
    total = parts[0]
    for part in parts[1:]:
        total = total.compose(part)
    reached = float(total.get_epsilon_for_delta(float(wanted) * (1 - FLOAT_ERROR) - FLOAT_ERROR))
    epsilon = Decimal(reached) + Decimal("0.000001")
    return Figure(epsilon.quantize(PLACES, rounding=ROUND_CEILING), wanted)


def _copies(answer: Fixed) -> int:
    """How many cells one unit can move, over all the times; a mechanism taken as a whole counts once."""
    whole = not isinstance(answer.mechanism, DiscreteGaussian | DiscreteLaplace | Geometric)
    return answer.times if whole else answer.times * max(1, int(answer.sensitivity.l0))


def _one_cell(library: Any, answer: Fixed) -> Any:
    """The loss distribution of one cell that moves as far as it can; a smaller move is dominated by a larger one."""
    move = int(-(-answer.sensitivity.linf // 1))
    options = {"value_discretization_interval": GRID}
    match answer.mechanism:
        case DiscreteGaussian(variance=variance):
            sigma = float(variance) ** 0.5
            return library.from_discrete_gaussian_mechanism(sigma, move, use_connect_dots=True, **options)
        case DiscreteLaplace(scale=scale) | Geometric(scale=scale):
            return library.from_discrete_laplace_mechanism(float(1 / scale), move, use_connect_dots=True, **options)
        case other:
            return _whole(library, other.loss(answer.sensitivity), options)


def _whole(library: Any, loss: object, options: dict[str, float]) -> Any:
    """The loss distribution of the worst mechanism with a pure or approximate loss."""
    match loss:
        case Pure(epsilon=epsilon):
            worst = library.common.DifferentialPrivacyParameters(float(epsilon), 0.0)
        case Approximate(epsilon=epsilon, delta=delta):
            worst = library.common.DifferentialPrivacyParameters(float(epsilon), float(delta))
        case _:
            raise Unsupported("a privacy loss distribution needs Gaussian, Laplace, pure or approximate answers")
    return library.from_privacy_parameters(worst, **options)


def _library() -> Any:
    """The package that knows privacy loss distributions."""
    try:
        return import_module("dp_accounting.pld.privacy_loss_distribution")
    except ImportError:
        raise Unsupported("this figure needs dp-accounting: pip install dp-accounting") from None
