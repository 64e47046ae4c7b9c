"""Mechanisms that select places of a vector of scores: noisy max, exponential, top-k, sparse vector."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import final

import numpy as np
from numpy.typing import NDArray

from dither.errors import InvalidParameter
from dither.loss import ZCDP, Pure, Sensitivity, round_up
from dither.privacy.accounting.conversion import as_zcdp
from dither.privacy.bits import Bits
from dither.privacy.mechanisms.base import (
    HALF_INT64,
    Mechanism,
    Vector,
    check_integer,
    check_scale,
    max_change,
    saturating_add,
)
from dither.privacy.noise import bernoulli_exp_each, discrete_laplace, noisy_max, uniform_below

PROPOSALS = 16  # per candidate: all proposals of a round are rejected with probability below e^-16
MAX_CHOICES = 1 << 16
MAX_CANDIDATES = 1 << 18
MAX_WORK = 1 << 24


def gap_sensitivity(sensitivity: Sensitivity) -> Fraction:
    """Return the most by which one unit changes the difference of two scores."""
    return min(2 * sensitivity.linf, sensitivity.l1)


def check_candidates(size: int, least: int = 1, most: int = MAX_CANDIDATES) -> None:
    """Check that there are enough candidates, and not too many for the memory that the choice needs."""
    if not least <= size <= most:
        raise InvalidParameter(f"the mechanism needs {least} to {most} candidates, got {size}")


def gaps_below_best(scores: Vector) -> Vector:
    """Return how far each score, clipped to 63 bits, is below the best."""
    clipped = np.clip(scores, -HALF_INT64, HALF_INT64)
    return np.asarray(clipped.max() - clipped)


def draw_index(distances: Vector, rate: Fraction, bits: Bits) -> int:
    """Draw place i with probability proportional to exp(-rate * distances[i]), by rejection from a uniform proposal."""
    while True:
        proposed = uniform_below(len(distances), PROPOSALS * len(distances), bits)
        accepted = np.flatnonzero(bernoulli_exp_each(rate, distances[proposed], bits))
        if len(accepted):
            return int(proposed[accepted[0]])


@final
@dataclass(frozen=True)
class NoisyMax(Mechanism):
    """Selects the place of the largest score after adding exponential noise to each (permute-and-flip)."""

    name = "noisy_max"
    proof = "noisy_max.md"
    scale: Fraction

    def __post_init__(self) -> None:
        check_scale(self)

    def check_length(self, size: int) -> None:
        check_candidates(size)

    def loss(self, sensitivity: Sensitivity) -> Pure:
        return Pure(round_up(gap_sensitivity(sensitivity) / self.scale))

    def release(self, exact: Vector, bits: Bits) -> Vector:
        self.check_length(len(exact))
        return np.array([noisy_max(-gaps_below_best(exact), 1 / self.scale, bits)], np.int64)


@final
@dataclass(frozen=True)
class ExponentialMechanism(Mechanism):
    """Selects place i with probability proportional to exp(scores[i] / scale)."""

    name = "exponential"
    proof = "exponential.md"
    scale: Fraction

    def __post_init__(self) -> None:
        check_scale(self)

    def check_length(self, size: int) -> None:
        check_candidates(size)

    def loss(self, sensitivity: Sensitivity) -> Pure:
        return Pure(round_up(gap_sensitivity(sensitivity) / self.scale))

    def zcdp_loss(self, sensitivity: Sensitivity) -> ZCDP:
        # The log ratio of the two output distributions stays within an interval of this length (proof, step 2).
        return ZCDP(round_up((gap_sensitivity(sensitivity) / self.scale) ** 2 / 8))

    def release(self, exact: Vector, bits: Bits) -> Vector:
        self.check_length(len(exact))
        return np.array([draw_index(gaps_below_best(exact), 1 / self.scale, bits)], np.int64)


@final
@dataclass(frozen=True)
class TopK(Mechanism):
    """Selects `count` different places, one exponential mechanism after another, each over the remaining places."""

    name = "top_k"
    proof = "top_k.md"
    count: int
    scale: Fraction

    def __post_init__(self) -> None:
        check_integer(self, "count", 1, MAX_CHOICES)
        check_scale(self)

    def check_length(self, size: int) -> None:
        check_candidates(size, self.count)
        if self.work(size) > MAX_WORK:
            raise InvalidParameter(f"at most {MAX_WORK // size} of {size} candidates can be chosen, got {self.count}")

    def work(self, size: int) -> int:
        return size * self.count  # each choice draws for every candidate

    def loss(self, sensitivity: Sensitivity) -> Pure:
        return Pure(round_up(self.count * gap_sensitivity(sensitivity) / self.scale))

    def zcdp_loss(self, sensitivity: Sensitivity) -> ZCDP:
        return ZCDP(round_up(self.count * (gap_sensitivity(sensitivity) / self.scale) ** 2 / 8))

    def release(self, exact: Vector, bits: Bits) -> Vector:
        self.check_length(len(exact))
        remaining = np.arange(len(exact))
        chosen = []
        for _ in range(self.count):
            index = draw_index(gaps_below_best(exact[remaining]), 1 / self.scale, bits)
            chosen.append(remaining[index])
            remaining = np.delete(remaining, index)
        return np.array(chosen, np.int64)


def reaches(scores: Vector, noise: Vector, threshold: int, threshold_noise: int) -> NDArray[np.bool_]:
    """Return where scores + noise >= threshold + threshold_noise, comparing half-sums so that nothing overflows."""
    target = threshold + threshold_noise
    half = (scores >> 1) + (noise >> 1) + (scores & noise & 1)
    return np.asarray((half > target >> 1) | ((half == target >> 1) & ((scores ^ noise) & 1 >= target & 1)))


def first_places(above: NDArray[np.bool_], count: int) -> Vector:
    """Return the first `count` places that are set, padded with -1."""
    places = np.full(count, -1, np.int64)
    reached = np.flatnonzero(above)[:count]
    places[: len(reached)] = reached
    return places


def crossing_loss(mechanism: AboveThreshold | SparseVector, sensitivity: Sensitivity) -> Pure:
    """Return the loss of the comparisons: the smaller of the sparse vector bound and that of noise on every score."""
    most = max_change(sensitivity)
    sparse_vector_bound = most / mechanism.threshold_scale + 2 * mechanism.count * most / mechanism.score_scale
    return Pure(round_up(min(sparse_vector_bound, sensitivity.l1 / mechanism.score_scale)))


def crossings(mechanism: AboveThreshold | SparseVector, exact: Vector, bits: Bits) -> Vector:
    """Return the first places whose noisy score reaches the noisy threshold; all of the noise is always drawn."""
    threshold_noise = int(discrete_laplace(mechanism.threshold_scale, 1, bits)[0])
    noise = discrete_laplace(mechanism.score_scale, len(exact), bits)
    return first_places(reaches(exact, noise, mechanism.threshold, threshold_noise), mechanism.count)


@final
@dataclass(frozen=True)
class AboveThreshold(Mechanism):
    """Selects the first `count` places whose noisy score reaches a noisy threshold; -1 if there are fewer."""

    name = "above_threshold"
    proof = "above_threshold.md"
    threshold: int
    count: int
    threshold_scale: Fraction
    score_scale: Fraction

    def __post_init__(self) -> None:
        check_integer(self, "threshold", -HALF_INT64, HALF_INT64)
        check_integer(self, "count", 1, MAX_CHOICES)
        check_scale(self, "threshold_scale")
        check_scale(self, "score_scale")

    def loss(self, sensitivity: Sensitivity) -> Pure:
        return crossing_loss(self, sensitivity)

    def release(self, exact: Vector, bits: Bits) -> Vector:
        return crossings(self, exact, bits)


@final
@dataclass(frozen=True)
class SparseVector(Mechanism):
    """Selects places as `AboveThreshold` does, then releases their scores with fresh noise; 0 for a place -1."""

    name = "sparse_vector"
    proof = "sparse_vector.md"
    threshold: int
    count: int
    threshold_scale: Fraction
    score_scale: Fraction
    answer_scale: Fraction

    def __post_init__(self) -> None:
        check_integer(self, "threshold", -HALF_INT64, HALF_INT64)
        check_integer(self, "count", 1, MAX_CHOICES)
        check_scale(self, "threshold_scale")
        check_scale(self, "score_scale")
        check_scale(self, "answer_scale")

    def loss(self, sensitivity: Sensitivity) -> Pure:
        answers = min(self.count * sensitivity.linf, sensitivity.l1) / self.answer_scale
        return Pure(round_up(crossing_loss(self, sensitivity).epsilon + answers))

    def zcdp_loss(self, sensitivity: Sensitivity) -> ZCDP:
        squares = min(self.count * sensitivity.linf**2, sensitivity.l2_squared)
        crossing = as_zcdp(crossing_loss(self, sensitivity)).rho
        return ZCDP(round_up(crossing + squares / (2 * self.answer_scale**2)))

    def release(self, exact: Vector, bits: Bits) -> Vector:
        places = crossings(self, exact, bits)
        answers = saturating_add(exact[places], discrete_laplace(self.answer_scale, self.count, bits))
        return np.concatenate([places, np.where(places < 0, 0, answers)])
