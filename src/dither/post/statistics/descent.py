"""Logistic regression by noisy gradients alone: steps of a public length, and their gradients combined afterwards.

Where noise hides second derivatives, Newton steps fail. A unit's gradient is much smaller than its derivatives, since
the residuals of its rows cancel, so that many steps cost little. Every step divides the noisy gradient by the curvature
of columns that are spread as usual. All gradients are known in the end, and the combination of the weights whose
gradients cancel best (Anderson's) is nearer to the optimum than the last weights, for steps too long or too short.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from dither.plan.expressions.core import Expr, LiteralValue
from dither.plan.measures.core import Measure
from dither.plan.traversal import fill_values
from dither.post.estimate.explain import Expected, unknown_error
from dither.post.noise import Floats
from dither.post.query.typical_rows import TYPICAL_ROWS, row_noise, typical_rows
from dither.post.statistics.linear import table_rows
from dither.post.statistics.logistic import (
    WEIGHT_LIMIT,
    WEIGHT_STEPS,
    GradientMoments,
    LogisticFit,
    LogisticPlan,
)
from dither.post.statistics.moments import RADIUS
from dither.post.statistics.steps import Released, additive, expected_noise
from dither.privacy.protocol import BoundSearch, Measurement, NewtonRule

# Gradients in all, each for the same share of the loss.
GRADIENTS = 8
# The curvature of a probability, and the variance of a column in standard units.
CURVATURE, SPREAD = 0.2, 0.3
# The mean size of a column in standard units, and of a residual.
TYPICAL_SIZE, TYPICAL_RESIDUAL = 0.5, 0.5
# The rows of a unit, if nothing is known about them.
UNKNOWN_ROWS = 32.0
# Tables are taken to have at least this many times the noise in their numbers of rows, which may hide all of them.
LEAST_ROWS = 0.25
# The share of the loss for choosing centres and scales of numbers.
SEARCH_SHARE = Fraction(1, 4)
# The length of a step hardly depends on the noise of unused derivatives, which is this many times smaller.
FIRM = 50
DESCENT_NOTE = (
    f"noise hides second derivatives, so coefficients are those after {GRADIENTS} noisy gradients; intervals are "
    "rough: they include the noise at a typical curvature and how far the last weights moved, not what is left to the "
    "optimum"
)


@dataclass(frozen=True)
class DescentMoments(GradientMoments):
    """Sums of gradients alone, scaled into a ball of a public size, that of a typical unit with typically many rows."""

    @property
    def searches_radius(self) -> bool:
        """False: the size of the ball is public."""
        return False

    @property
    def typical_norm(self) -> float:
        """The norm of the gradient of a unit: residuals of its rows have either sign, so it grows as their root."""
        design, settings = self.design, self.settings
        rows = 1.0
        if self.most_rows != 1:
            typical = typical_rows(settings.context, design.rows, settings.unit)
            rows = UNKNOWN_ROWS if typical == TYPICAL_ROWS else max(1.0, typical / 2)
        columns = len(design.columns) * TYPICAL_SIZE
        row = math.hypot(1.0, columns / math.sqrt(max(1, len(design.columns)))) if self.gaussian else 1 + columns
        return TYPICAL_RESIDUAL * row * math.sqrt(rows) * (2.0 if rows == 1 else 1.0)

    def radius(self) -> Expr:
        """Return the lattice steps of one unit of a gradient."""
        return LiteralValue(Fraction(max(1, int(RADIUS / self.typical_norm))))


@dataclass(frozen=True)
class DescentPlan(LogisticPlan):
    """The plan of a descent: a gradient for each step, in the place of derivatives zeros."""

    @property
    def rounds(self) -> int:
        """The number of steps that the kernel takes."""
        return GRADIENTS - 1

    @property
    def searched(self) -> Fraction:
        """The share of the loss for choosing centres and scales."""
        return SEARCH_SHARE if self.moments.searches() else Fraction(0)

    @property
    def share(self) -> Fraction:
        """The share of the loss for each gradient."""
        return (1 - self.searched) / GRADIENTS

    @property
    def intercept(self) -> LiteralValue:
        """The constant that the intercept's weight is for: as large as the columns, so that all steps are as long."""
        return LiteralValue(Fraction(math.sqrt(SPREAD)).limit_denominator(16))

    @property
    def curvature(self) -> float:
        """The second derivatives of the loss by a weight, in units of a gradient, that steps are divided by."""
        return self.likely_rows * CURVATURE * SPREAD

    @property
    def likely_rows(self) -> float:
        """The number of rows, at least a share of its noise: far too long steps do more harm than too short ones."""
        rows, context = table_rows(self.moments), self.moments.settings.context
        known = any(context.noisy_rows(name) is not None for name in context.dataset.tables)
        return max(rows, LEAST_ROWS * row_noise(context)) if known else rows

    def measure(self, round_: int) -> Measure:
        """Build the measure of the gradient at the weights of a round; before the last, with zeros for derivatives."""
        zeros = [] if round_ == self.rounds else [LiteralValue(Fraction(0))] * (self.size * (self.size + 1) // 2)
        return self.sums(round_, [*self.gradient_cells(), *zeros])

    def newton_search(self, round_: int) -> BoundSearch:
        """Build the search of a step: a ridge of the public curvature, beside which the noise of the zeros is small."""
        made = super().newton_search(round_)
        if not isinstance(made.rule, NewtonRule):
            raise TypeError("a step of a descent has a rule")
        settings, measure = self.moments.settings, fill_values(self.measure(0), self.moments.assumed_choices(1))
        mechanism = additive(settings, measure, settings.spend.share(self.share))
        noise = expected_noise(settings.context, settings.unit, Measurement(measure, mechanism))
        ridge = FIRM * math.ceil(math.sqrt(2 * self.size))
        wanted = self.curvature * self.moments.per_unit({})
        divisor = Fraction(max(1e-6, wanted / (ridge * noise.std))).limit_denominator(10**6)
        return replace(made, rule=replace(made.rule, ridge=Fraction(ridge), divisor=divisor))

    @property
    def error_note(self) -> str:
        """A note on what the intervals include."""
        return DESCENT_NOTE

    def expected_errors(self, parts: Sequence[Sequence[Measurement]]) -> list[Expected]:
        """Say that the errors are unknown, since they include how far the last steps move."""
        reason = "it includes how far the last of several noisy steps moves, which depends on the records"
        return [unknown_error(name, reason) for name in (*self.coefficient_names, "accuracy")]

    def fit(self, released: Released, penalties: Floats) -> LogisticFit:
        """Combine the weights of all steps so that their noisy gradients cancel."""
        middle, per_unit = WEIGHT_LIMIT * WEIGHT_STEPS + 1, self.moments.per_unit(released.chosen)
        tags = [[f"weights{step}.{place}" for place in range(self.size)] for step in range(1, GRADIENTS)]
        later = [[(released.chosen[tag] - middle) / WEIGHT_STEPS for tag in own] for own in tags]
        weights = np.array([[0.0] * self.size, *later])
        results = list(released.releases[0].search_results or ())[-self.rounds :] if released.releases else []
        early = [np.array(result.values[: self.size], float) for result in results]
        early = early or [np.zeros(self.size)] * self.rounds  # in a rehearsal
        gradients = np.array([*early, released.values()]) / per_unit + penalties / per_unit * weights
        noise = released.noise().std / per_unit
        shares = anderson_shares(gradients, noise)
        moved = shares @ gradients / self.curvature
        found = shares @ weights - moved
        factor = noise * float(np.sqrt(shares @ shares)) / self.curvature
        errors = np.diag(np.hypot(factor, np.abs(found - weights[-1])))
        scale = np.ones(self.size)
        scale[0] = float(Fraction(self.intercept.value))  # type: ignore[arg-type]
        return LogisticFit(found * scale, errors * scale[:, None])


def anderson_shares(gradients: Floats, noise: float) -> Floats:
    """Return shares that add up to 1, so that the gradients times them nearly cancel; noise makes them more even."""
    products = gradients @ gradients.T + np.eye(len(gradients)) * (noise**2 * gradients.shape[1] + 1e-300)
    scaled = products / np.trace(products)
    found = np.linalg.solve(scaled + 1e-12 * np.eye(len(scaled)), np.ones(len(scaled)))
    return np.asarray(found / found.sum())
