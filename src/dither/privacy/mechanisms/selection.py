"""Choosing places of a vector of integer scores: noisy max, exponential mechanism, top-k, sparse vector."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import final

import numpy as np
from numpy.typing import NDArray

from dither.errors import InvalidParameter
from dither.loss import ZCDP, Pure, Sensitivity, rounded_up
from dither.privacy.accounting.conversion import as_zcdp
from dither.privacy.bits import Bits
from dither.privacy.mechanisms.base import (
    HALF,
    Mechanism,
    Vector,
    check_integer,
    check_scale,
    max_value,
    saturating_add,
)
from dither.privacy.noise import bernoulli_exp_each, discrete_laplace, noisy_max, uniform_below

PROPOSALS = 16  # for each candidate: then all are refused with a probability below e^-16
MOST_CHOICES = 1 << 16
MOST_CANDIDATES = 1 << 18


def span(sensitivity: Sensitivity) -> Fraction:
    """The most by which one unit moves the difference of two scores."""
    return min(2 * sensitivity.linf, sensitivity.l1)


def admit_candidates(size: int, least: int = 1) -> None:
    """There must be enough to choose from, and no more than fits in memory sixteen times."""
    if not least <= size <= MOST_CANDIDATES:
        raise InvalidParameter(f"there must be from {least} to {MOST_CANDIDATES} candidates, got {size}")


def gaps(scores: Vector) -> Vector:
    """How far each score, held inside 63 bits, is below the best."""
    held = np.clip(scores, -HALF, HALF)
    return np.asarray(held.max() - held)


def draw(misses: Vector, rate: Fraction, bits: Bits) -> int:
    """Place i with probability proportional to exp(-rate * misses[i]): a uniform proposal, kept by a coin."""
    while True:
        proposed = uniform_below(len(misses), PROPOSALS * len(misses), bits)
        kept = np.flatnonzero(bernoulli_exp_each(rate, misses[proposed], bits))
        if len(kept):
            return int(proposed[kept[0]])


@final
@dataclass(frozen=True)
class NoisyMax(Mechanism):
    """The place of the largest score after adding exponential noise of the given scale to each (permute-and-flip)."""

    name = "noisy_max"
    proof = "noisy_max.md"
    scale: Fraction

    def __post_init__(self) -> None:
        check_scale(self)

    def admit(self, size: int) -> None:
        admit_candidates(size)

    def loss(self, sensitivity: Sensitivity) -> Pure:
        return Pure(rounded_up(span(sensitivity) / self.scale))

    def release(self, exact: Vector, bits: Bits) -> Vector:
        self.admit(len(exact))
        return np.array([noisy_max(-gaps(exact), 1 / self.scale, bits)], np.int64)


@final
@dataclass(frozen=True)
class ExponentialMechanism(Mechanism):
    """The place i with probability proportional to exp(scores[i] / scale)."""

    name = "exponential"
    proof = "exponential.md"
    scale: Fraction

    def __post_init__(self) -> None:
        check_scale(self)

    def admit(self, size: int) -> None:
        admit_candidates(size)

    def loss(self, sensitivity: Sensitivity) -> Pure:
        return Pure(rounded_up(span(sensitivity) / self.scale))

    def zcdp_loss(self, sensitivity: Sensitivity) -> ZCDP:
        # The log ratio of two laws stays within an interval of this length (proof, step 2).
        return ZCDP(rounded_up((span(sensitivity) / self.scale) ** 2 / 8))

    def release(self, exact: Vector, bits: Bits) -> Vector:
        self.admit(len(exact))
        return np.array([draw(gaps(exact), 1 / self.scale, bits)], np.int64)


@final
@dataclass(frozen=True)
class TopK(Mechanism):
    """`count` different places, one exponential mechanism after another, each over those that are left."""

    name = "top_k"
    proof = "top_k.md"
    count: int
    scale: Fraction

    def __post_init__(self) -> None:
        check_integer(self, "count", 1, MOST_CHOICES)
        check_scale(self)

    def admit(self, size: int) -> None:
        admit_candidates(size, self.count)

    def loss(self, sensitivity: Sensitivity) -> Pure:
        return Pure(rounded_up(self.count * span(sensitivity) / self.scale))

    def zcdp_loss(self, sensitivity: Sensitivity) -> ZCDP:
        return ZCDP(rounded_up(self.count * (span(sensitivity) / self.scale) ** 2 / 8))

    def release(self, exact: Vector, bits: Bits) -> Vector:
        self.admit(len(exact))
        left = np.arange(len(exact))
        chosen = []
        for _ in range(self.count):
            at = draw(gaps(exact[left]), 1 / self.scale, bits)
            chosen.append(left[at])
            left = np.delete(left, at)
        return np.array(chosen, np.int64)


def reaches(scores: Vector, noise: Vector, threshold: int, bar: int) -> NDArray[np.bool_]:
    """Where scores + noise >= threshold + bar, without overflow: twice a half-sum and its last bit."""
    wanted = threshold + bar
    half = (scores >> 1) + (noise >> 1) + (scores & noise & 1)
    return np.asarray((half > wanted >> 1) | ((half == wanted >> 1) & ((scores ^ noise) & 1 >= wanted & 1)))


def first(above: NDArray[np.bool_], count: int) -> Vector:
    """The first `count` places that are set, then -1."""
    places = np.full(count, -1, np.int64)
    found = np.flatnonzero(above)[:count]
    places[: len(found)] = found
    return places


def crossing_loss(mechanism: AboveThreshold | SparseVector, sensitivity: Sensitivity) -> Pure:
    """The cost of comparing: the bar moves and the chosen scores' noise follows, or else every score's noise moves."""
    most = max_value(sensitivity)
    few = most / mechanism.threshold_scale + 2 * mechanism.count * most / mechanism.score_scale
    return Pure(rounded_up(min(few, sensitivity.l1 / mechanism.score_scale)))


def crossings(mechanism: AboveThreshold | SparseVector, exact: Vector, bits: Bits) -> Vector:
    """The first places whose noisy score reaches the noisy threshold; all of the noise is drawn every time."""
    bar = int(discrete_laplace(mechanism.threshold_scale, 1, bits)[0])
    noise = discrete_laplace(mechanism.score_scale, len(exact), bits)
    return first(reaches(exact, noise, mechanism.threshold, bar), mechanism.count)


@final
@dataclass(frozen=True)
class AboveThreshold(Mechanism):
    """The first `count` places whose noisy score reaches a noisy threshold, in order; -1 where there are fewer."""

    name = "above_threshold"
    proof = "above_threshold.md"
    threshold: int
    count: int
    threshold_scale: Fraction
    score_scale: Fraction

    def __post_init__(self) -> None:
        check_integer(self, "threshold", -HALF, HALF)
        check_integer(self, "count", 1, MOST_CHOICES)
        check_scale(self, "threshold_scale")
        check_scale(self, "score_scale")

    def loss(self, sensitivity: Sensitivity) -> Pure:
        return crossing_loss(self, sensitivity)

    def release(self, exact: Vector, bits: Bits) -> Vector:
        return crossings(self, exact, bits)


@final
@dataclass(frozen=True)
class SparseVector(Mechanism):
    """The places that `AboveThreshold` gives, then as many answers: those scores with fresh noise, 0 for a -1."""

    name = "sparse_vector"
    proof = "sparse_vector.md"
    threshold: int
    count: int
    threshold_scale: Fraction
    score_scale: Fraction
    answer_scale: Fraction

    def __post_init__(self) -> None:
        check_integer(self, "threshold", -HALF, HALF)
        check_integer(self, "count", 1, MOST_CHOICES)
        check_scale(self, "threshold_scale")
        check_scale(self, "score_scale")
        check_scale(self, "answer_scale")

    def loss(self, sensitivity: Sensitivity) -> Pure:
        answers = min(self.count * sensitivity.linf, sensitivity.l1) / self.answer_scale
        return Pure(rounded_up(crossing_loss(self, sensitivity).epsilon + answers))

    def zcdp_loss(self, sensitivity: Sensitivity) -> ZCDP:
        squares = min(self.count * sensitivity.linf**2, sensitivity.l2_squared)
        crossing = as_zcdp(crossing_loss(self, sensitivity)).rho
        return ZCDP(rounded_up(crossing + squares / (2 * self.answer_scale**2)))

    def release(self, exact: Vector, bits: Bits) -> Vector:
        places = crossings(self, exact, bits)
        answers = saturating_add(exact[places], discrete_laplace(self.answer_scale, self.count, bits))
        return np.concatenate([places, np.where(places < 0, 0, answers)])
