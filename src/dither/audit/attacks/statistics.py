"""Attacks on the released numbers themselves: membership, averages of many draws, reconstruction."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class GuessResult:
    """The right guesses of a secret bit, the rate that the loss allows, and the margin for sampling error."""

    right: int
    trials: int
    allowed_rate: float
    margin: float

    @property
    def rate(self) -> float:
        """The share of right guesses."""
        return self.right / self.trials

    @property
    def learned(self) -> bool:
        """True if the rate exceeds the allowed one by more than the margin."""
        return self.rate > self.allowed_rate + self.margin


def best_accuracy(epsilon: float, delta: float = 0.0) -> float:
    """Return the best accuracy of guessing one unit's bit that a loss allows: (e^eps + delta) / (1 + e^eps)."""
    return min(1.0, (math.exp(epsilon) + delta) / (1 + math.exp(epsilon)))


def guess_membership(
    present: Callable[[int], float], absent: Callable[[int], float], threshold: float, epsilon: float, trials: int,
    false_alarm: float = 1e-9,
) -> GuessResult:  # fmt: skip
    """Guess by a threshold whether a unit is in the data; `present(i)` and `absent(i)` draw a fresh statistic."""
    right = sum((present(i) > threshold) + (absent(i) <= threshold) for i in range(trials))
    margin = math.sqrt(math.log(1 / false_alarm) / (2 * 2 * trials))  # Hoeffding, one-sided
    return GuessResult(right, 2 * trials, best_accuracy(epsilon), margin)


def random_subsets(people: int, queries: int, seed: int = 1) -> NDArray[np.int64]:
    """Return random subsets of people, one per row, as zeros and ones."""
    random = Random(seed)
    return np.array([[random.random() < 0.5 for _ in range(people)] for _ in range(queries)], np.int64)


def reconstruct(subsets: NDArray[np.int64], answers: Sequence[float]) -> NDArray[np.bool_]:
    """Estimate each person's bit from noisy counts over subsets by least squares (Dinur and Nissim 2003)."""
    estimates, *_ = np.linalg.lstsq(subsets.astype(float), np.asarray(answers, float), rcond=None)
    return np.asarray(estimates > 0.5)
