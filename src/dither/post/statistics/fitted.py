"""Columns of answers as margins of a fitted table, and their errors: noise that fitting lowers, and clipping's.

What contribution bounds may have removed from a cell does not shrink by fitting: margins lack the same rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy import special

from dither.post.estimate.answer import AnswerColumn
from dither.post.estimate.clipping import Clipping
from dither.post.noise import Floats
from dither.post.statistics.consistency import AgreedTable, Margin, clipping_errors


@dataclass(frozen=True)
class FittedTable:
    """A table that was fitted to margins, and how its intervals are made.

    They reach `factor` standard deviations of the noise, at a confidence, and end at `least` at the lowest.
    """

    table: AgreedTable
    margins: Sequence[Margin]
    factor: float
    confidence: float
    least: float = -np.inf

    def column(self, shown: AnswerColumn, keys: Sequence[str]) -> AnswerColumn:
        """Return a column with the fitted values of its margin, over keys in the column's order, and its errors."""
        own_keys = tuple(key for key in self.table.keys if key in keys)
        values, *fit_errors = (
            in_order(part, own_keys, keys) for part in (self.table.margin(keys), *self.clipping_errors[own_keys])
        )
        noise = np.full(len(values), np.sqrt(self.table.noise_variance(keys)))
        below, above = (
            known_or_infinite(np.fmax(fit, own))
            for fit, own in zip(fit_errors, clipping_reach(shown, self.confidence), strict=True)
        )
        width = self.factor * noise
        fitted = replace(
            shown.estimate,
            value=values,
            std_error=np.hypot(noise, deviation(below, above, self.confidence)),
            low=np.maximum(values - np.hypot(width, below), self.least),
            high=np.maximum(values + np.hypot(width, above), self.least),
        )
        return replace(shown, estimate=fitted, clipping=_with_reach(shown.clipping, noise, above))

    @cached_property
    def clipping_errors(self) -> Mapping[tuple[str, ...], tuple[Floats, Floats]]:
        """The most that the truth may lie below and above the fitted cells for what clipping removed, by keys."""
        return clipping_errors(self.table.sizes, self.margins)


def margin_of(column: AnswerColumn, keys: tuple[str, ...], sizes: Mapping[str, int], confidence: float) -> Margin:
    """Return a column as a margin, with the mean variance of its cells: of all errors, and of noise alone."""
    shape, found = tuple(sizes[key] for key in keys), column.estimate
    values, variance = np.asarray(found.value, float).reshape(shape), float(np.mean(found.std_error**2))
    if column.clipping is None:
        return Margin(keys, values, variance)
    below, above = (part.reshape(shape) for part in clipping_reach(column, confidence))
    return Margin(keys, values, variance, float(np.mean(column.clipping.noise**2)), below, above)


def clipping_reach(column: AnswerColumn, confidence: float) -> tuple[Floats, Floats]:
    """Return how much less and more than estimated clipping may have removed from each cell; zeros if nothing."""
    clipping, found = column.clipping, column.estimate
    if clipping is None:
        return np.zeros(len(found.value)), np.zeros(len(found.value))
    above = clipping.most - clipping.estimate
    both = 2 * deviation_factor(confidence) * np.sqrt(np.maximum(found.std_error**2 - clipping.noise**2, 0.0))
    return known_or_infinite(np.maximum(both - above, 0.0)), known_or_infinite(above)


def deviation(below: Floats, above: Floats, confidence: float) -> Floats:
    """Return the standard deviation of an error that reaches this far below and above at a confidence."""
    return np.asarray((below + above) / (2 * deviation_factor(confidence)))


def deviation_factor(confidence: float) -> float:
    """Return how many standard deviations of a normal distribution an interval reaches to either side."""
    return float(special.ndtri((1 + confidence) / 2))


def known_or_infinite(parts: Floats) -> Floats:
    """Return errors, infinite where they are not known."""
    return np.where(np.isnan(parts), np.inf, parts)


def in_order(cells: Floats, own_keys: Sequence[str], keys: Sequence[str]) -> Floats:
    """Return cells in another order of keys; a single one stands for all."""
    return np.transpose(cells, [own_keys.index(key) for key in keys]).ravel() if np.ndim(cells) else cells.ravel()


def _with_reach(clipping: Clipping | None, noise: Floats, above: Floats) -> Clipping | None:
    """Return what clipping removed, with the noise of the fit and the most that may be missing from it."""
    return None if clipping is None else replace(clipping, most=clipping.estimate + above, noise=noise)
