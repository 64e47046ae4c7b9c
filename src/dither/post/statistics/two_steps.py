"""Logistic regression on single rows by two steps: sums of products once, then a gradient alone.

The first step measures the gradient at zero with the sums of products of all columns, which are its derivatives there.
The second measures the gradient alone, at the weights that the first step found. How the gradient changes from there
follows from the same sums of products, as if scores had a normal distribution. Second derivatives are paid for once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from dither.plan.measures.core import Measure
from dither.post.noise import Floats, noise_of
from dither.post.statistics.design import Scaling
from dither.post.statistics.logistic import (
    WEIGHT_LIMIT,
    GradientMoments,
    LogisticFit,
    LogisticPlan,
    ridge_of,
)
from dither.post.statistics.steps import Released

# Rows are moved to private limits in about this share: a smaller range has less noise, and weights hardly change.
MOVED_ROWS = Fraction(1, 20)
# Rows that are predicted are moved to limits this many times as far, if fitted rows have squares of this mean size: in
# a column of which few values are far from the rest, all of those were moved, and a second step means nothing.
PREDICTED_REACH, SPREAD_OUT = 2, 0.1
# Second derivatives at zero are the sums of products times this.
CURVATURE_AT_ZERO = 0.25
NODES, NODE_WEIGHTS = np.polynomial.hermite_e.hermegauss(41)
MAX_STEPS, CONVERGED = 50, 1e-9


@dataclass(frozen=True)
class TwoStepMoments(GradientMoments):
    """Moments of rows that are moved into narrower ranges."""

    @property
    def moved_rows(self) -> Fraction:
        """The share of rows that are moved to private limits."""
        return MOVED_ROWS


@dataclass(frozen=True)
class TwoStepPlan(LogisticPlan):
    """The plan of two steps: one search with second derivatives, and the gradient at its weights."""

    @property
    def rounds(self) -> int:
        """The number of steps that the kernel takes."""
        return 1

    @property
    def share(self) -> Fraction:
        """The share of the loss for the first step: half of what is left."""
        return (1 - self.searched) / 2

    @property
    def coarser(self) -> int:
        """Second derivatives are measured as finely as the gradient, since both steps use them."""
        return 1

    @property
    def ridge(self) -> Fraction:
        """Half of the usual ridge, since a second step follows."""
        return Fraction(ridge_of(self.size), 2)

    @property
    def error_note(self) -> str:
        """A note on what the intervals include."""
        return TWO_STEPS_NOTE

    def measure(self, round_: int) -> Measure:
        """Build the measure of the gradient at the weights of a round; at zero, with its derivatives."""
        return super().measure(0) if round_ == 0 else self.sums(round_, self.gradient_cells())

    def prediction_scaling(self, scaling: Scaling, released: Released) -> Scaling:
        """Return a scaling that moves predicted rows less than fitted ones, in columns that are spread out."""
        derivatives, _ = self._derivatives(released)
        squares = np.diag(derivatives)[1:] / max(float(derivatives[0, 0]), 1e-9)
        return replace(scaling, reach=scaling.reach * np.where(squares >= SPREAD_OUT, PREDICTED_REACH, 1.0))

    def fit(self, released: Released, penalties: Floats) -> LogisticFit:
        """Find the weights at which the noisy gradient would be zero."""
        start, gradient, noise = self.start(released), released.values(), released.noise().std
        derivatives, spread = self._derivatives(released)
        products = as_products(derivatives, spread)
        weights = second_step(products, start, gradient, penalties)
        inverse = np.linalg.inv(expected_gradient(products, weights)[1] + np.diag(penalties))
        changes = [
            _change(products + spread * cell / CURVATURE_AT_ZERO, start, weights) - _change(products, start, weights)
            for cell in _cells(self.size)
        ]
        hidden = hidden_errors(derivatives, spread, weights)
        return LogisticFit(weights, np.hstack([-inverse * noise, -inverse @ np.array(changes).T, hidden]))

    def _derivatives(self, released: Released) -> tuple[Floats, float]:
        """Return the noisy second derivatives at zero that the first step released, and their noise."""
        if not released.releases:  # in a rehearsal
            return np.eye(self.size), 1.0
        result = (released.releases[0].search_results or ())[-1]
        found = np.zeros((self.size, self.size))
        found[np.triu_indices(self.size)] = np.array(result.values[self.size :], float) * float(result.steps[-1])
        return np.triu(found) + np.triu(found, 1).T, noise_of(result.mechanism, result.steps[-1]).std


def hidden_errors(derivatives: Floats, noise: float, weights: Floats) -> Floats:
    """Return how far weights may be shrunk along axes whose derivatives noise hides, one column for each axis.

    Such derivatives were taken to be as large as noise can make them. If they are smaller, weights along the axis are
    larger in the same ratio; below one standard deviation of noise the ratio is unknown.
    """
    eigenvalues, axes = np.linalg.eigh(derivatives)
    least = max(ridge_of(len(derivatives)) * noise, 1e-9)
    ratio = least / np.maximum(np.minimum(eigenvalues, least), least / ridge_of(len(derivatives)))
    return np.asarray(axes * np.abs(axes.T @ weights) * (ratio - 1))


def _cells(size: int) -> list[Floats]:
    """Return the symmetric matrices that each cell of an upper triangle is the only entry of."""
    found = []
    for i, j in zip(*np.triu_indices(size), strict=True):
        cell = np.zeros((size, size))
        cell[i, j] = cell[j, i] = 1.0
        found.append(cell)
    return found


def as_products(derivatives: Floats, noise: float) -> Floats:
    """Return sums of products from noisy second derivatives at zero, with eigenvalues above what noise can make."""
    eigenvalues, axes = np.linalg.eigh(derivatives)
    least = max(ridge_of(len(derivatives)) * noise, 1e-9)
    return np.asarray(axes @ np.diag(np.maximum(eigenvalues, least)) @ axes.T / CURVATURE_AT_ZERO)


def expected_gradient(products: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Return the sum of probability times row, and its derivatives, for rows whose scores have a normal distribution.

    The first column is 1, so `products` has the number of rows and the sums of all columns.
    """
    rows = max(float(products[0, 0]), 1e-9)
    means = products[0] / rows
    covariances = products / rows - np.outer(means, means)
    along = covariances @ weights
    scores = means @ weights + np.sqrt(max(0.0, float(weights @ along))) * NODES
    chances = 1 / (1 + np.exp(-np.clip(scores, -500, 500)))
    slopes = chances * (1 - chances)
    shares = NODE_WEIGHTS / NODE_WEIGHTS.sum()
    mean, slope = shares @ chances, shares @ slopes
    bend, twist = shares @ (slopes * (1 - 2 * chances)), shares @ (slopes * (1 - 6 * slopes))
    crossed = np.outer(along, means)
    derivatives = slope * products / rows + bend * (crossed + crossed.T) + twist * np.outer(along, along)
    return rows * (mean * means + slope * along), rows * derivatives


def _change(products: Floats, start: Floats, weights: Floats) -> Floats:
    """Return by how much the expected gradient changes between two weights."""
    return expected_gradient(products, weights)[0] - expected_gradient(products, start)[0]


def second_step(products: Floats, start: Floats, gradient: Floats, penalties: Floats) -> Floats:
    """Return the weights at which a gradient, measured at `start`, is expected to be zero; by Newton's method."""
    weights, at_start = start, expected_gradient(products, start)[0]
    firm = 1e-9 * np.trace(products) * np.eye(len(start))
    for _ in range(MAX_STEPS):
        expected, derivatives = expected_gradient(products, weights)
        left = gradient + expected - at_start + penalties * weights
        step = np.linalg.solve(derivatives + np.diag(penalties) + firm, left)
        longest = float(np.abs(step).max())
        weights = np.clip(weights - step / max(1.0, longest), -WEIGHT_LIMIT, WEIGHT_LIMIT)
        if longest < CONVERGED:
            break
    return np.asarray(weights)


TWO_STEPS_NOTE = (
    "coefficients are those after two noisy steps from zero, the second as if scores had a normal distribution; "
    "intervals include the noise of both, not sampling error, and not what is left to the optimum"
)
