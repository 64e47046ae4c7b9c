"""Choose the values of a search from its release: a bound, or the weights of a model; all of it is postprocessing."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dither.privacy.contribution_bound import choose_contribution_bound
from dither.privacy.protocol import BoundSearch, NewtonRule, ReleasedMeasurement


def choose_values(search: BoundSearch, released: ReleasedMeasurement, chosen: Mapping[str, int]) -> dict[str, int]:
    """Return the numbers that a search chose, by tag; `chosen` has those of earlier searches."""
    if isinstance(search.rule, NewtonRule):
        return newton_step(search, search.rule, released, chosen)
    return {search.tag: choose_contribution_bound(search, released.values, released.mechanism)}


def newton_step(
    search: BoundSearch, rule: NewtonRule, released: ReleasedMeasurement, chosen: Mapping[str, int]
) -> dict[str, int]:
    """Return the numbers of the new weights by tag: those of the start, minus a Newton step; within the grid.

    Negative eigenvalues of the noisy derivatives count as 0; the ridge keeps every divisor positive.
    """
    low, high, size = search.grid[0], search.grid[-1], rule.size
    middle, values = (low + high) // 2, np.array(released.values, float)
    start = np.array([chosen[f"{rule.start}.{place}"] - middle if rule.start else 0 for place in range(size)], float)
    derivatives = np.zeros((size, size))
    derivatives[np.triu_indices(size)] = values[size:]
    try:
        eigenvalues, axes = np.linalg.eigh(derivatives, UPLO="U")
    except np.linalg.LinAlgError:  # after the charge, nothing may fail
        return {tag: middle + int(weight) for tag, weight in zip(search.tags, start, strict=True)}
    divisors = np.maximum(eigenvalues, 0) + float(rule.ridge) * released.mechanism.std()
    divisors *= float(rule.divisor)
    weights = start - axes @ (axes.T @ values[:size] / divisors) / float(rule.step)
    numbers = np.clip(np.nan_to_num(np.rint(weights)) + middle, low, high).astype(np.int64)
    return dict(zip(search.tags, numbers.tolist(), strict=True))
