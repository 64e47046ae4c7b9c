"""Intervals of linear contrasts of noisy least-squares coefficients, which stay valid when noise hides a column.

A noisy fit solves (G + E) b = g + e, with noise E and e in the sums of products. Its error is the inverse of G + E
times e - E b, at the *exact* coefficients b. Fieller's interval has every value that the noise leaves possible: it
solves a quadratic equation in the value instead of pretending that G is known. Where a contrast's own part of G is not
clearly above its noise, no finite interval is valid, and there is none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dither.post.noise import Floats
from dither.post.statistics.moments import Moments

# A contrast is known if its own sum of squares is this many standard deviations of its noise or more.
SURE = 5.0


@dataclass(frozen=True)
class ContrastIntervals:
    """Values of contrasts with standard errors and the ends of their intervals; infinite where noise hides them."""

    values: Floats
    std_errors: Floats
    lows: Floats
    highs: Floats

    @property
    def hidden(self) -> np.ndarray:
        """True for each contrast that noise hides."""
        return np.isinf(self.std_errors)


def score_noise(moments: Moments, weights: Floats) -> Floats:
    """Return the map from the cells' unit noise to the noise of the normal equations' errors at some weights."""
    extended = np.append(-weights, 1.0)

    def derivative(change: Floats) -> Floats:
        return np.asarray(change[:-1] @ extended)

    return moments.map_of(derivative)


def contrast_intervals(
    moments: Moments, gram: Floats, contrasts: Floats, confidence: float, sampling: float = 0.0
) -> ContrastIntervals:
    """Return the intervals of contrasts (rows) of the coefficients of the last term on the others.

    `gram` is the noisy matrix of sums of products with penalties. `sampling` is the variance of a residual, for
    intervals about a population, or 0.
    """
    inverse = np.linalg.pinv(gram)
    weights = inverse @ moments.matrix[:-1, -1]
    still = score_noise(moments, weights)
    found = []
    for contrast in contrasts:
        row = contrast @ inverse
        direction = inverse @ row
        length = float(contrast @ direction)
        direction = direction / length if length > 0 else direction
        moving = row @ (score_noise(moments, weights + direction) - still)
        found.append(
            (contrast @ weights, *fieller_ends(row @ still, moving, moments, confidence, row @ gram @ row * sampling))
        )
    values, errors, lows, highs = np.array(found, float).T
    return ContrastIntervals(values, errors, values + lows, values + highs)


def fieller_ends(
    still: Floats, moving: Floats, moments: Moments, confidence: float, sampling: float
) -> tuple[float, float, float]:
    """Return a standard error and the ends of all distances t with |t| at most a factor times the error at t.

    The error at t has the variance |still + t moving|^2 + sampling.
    """
    base, speed = float(still @ still) + sampling, float(moving @ moving)
    if not SURE**2 * speed < 1 or not np.isfinite(base):
        return np.inf, -np.inf, np.inf
    factor = error_factor(still, moments, sampling, confidence)
    first, middle = 1 - factor**2 * speed, factor**2 * float(still @ moving)
    root = float(np.sqrt(middle**2 + first * factor**2 * base))
    return float(np.sqrt(base)), (middle - root) / first, (middle + root) / first


def error_factor(still: Floats, moments: Moments, sampling: float, confidence: float) -> float:
    """Return how many standard deviations an error stays within with the confidence, by simulation."""
    extra = np.random.Generator(np.random.PCG64(1)).standard_normal(len(moments.draws))
    errors = moments.draws @ still + np.sqrt(sampling) * extra
    base = np.sqrt(float(still @ still) + sampling)
    return float(np.quantile(np.abs(errors), confidence) / max(base, 1e-300))
