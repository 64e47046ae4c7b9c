"""What can be learned from the numbers themselves: membership, averages of many draws, reconstruction."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Guess:
    """How often a secret bit was guessed, and how often that may be."""

    right: int
    trials: int
    most: float
    margin: float

    @property
    def rate(self) -> float:
        """The share of right guesses."""
        return self.right / self.trials

    @property
    def learned(self) -> bool:
        """Whether the guesses are better than the loss allows, beyond the error of the sample."""
        return self.rate > self.most + self.margin


def most_right(epsilon: float, delta: float = 0.0) -> float:
    """The best accuracy of guessing one unit's bit that a loss allows: (e^eps + delta) / (1 + e^eps)."""
    return min(1.0, (math.exp(epsilon) + delta) / (1 + math.exp(epsilon)))


def guessing(
    there: Callable[[int], float], absent: Callable[[int], float], threshold: float, epsilon: float, trials: int,
    false_alarm: float = 1e-9,
) -> Guess:  # fmt: skip
    """Guesses by a threshold whether a unit is in the data; `there(i)` and `absent(i)` draw a fresh statistic."""
    right = sum((there(i) > threshold) + (absent(i) <= threshold) for i in range(trials))
    margin = math.sqrt(math.log(1 / false_alarm) / (2 * 2 * trials))  # Hoeffding, one-sided
    return Guess(right, 2 * trials, most_right(epsilon), margin)


def subsets(people: int, questions: int, number: int = 1) -> NDArray[np.int64]:
    """Random subsets of people, one a row."""
    random = Random(number)
    return np.array([[random.random() < 0.5 for _ in range(people)] for _ in range(questions)], np.int64)


def reconstructed(asked: NDArray[np.int64], answers: Sequence[float]) -> NDArray[np.bool_]:
    """Everybody's bit from noisy counts over subsets (Dinur and Nissim 2003), by least squares."""
    found, *_ = np.linalg.lstsq(asked.astype(float), np.asarray(answers, float), rcond=None)
    return np.asarray(found > 0.5)
