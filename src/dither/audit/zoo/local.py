"""Local mechanisms and selection: RAPPOR, randomised response, the exponential mechanism."""

from __future__ import annotations

from functools import partial
from math import exp, log
from typing import Any

import numpy as np

from dither.audit import neighbours
from dither.audit.zoo import distributions
from dither.audit.zoo.member import Floats, Generator, Member, pure

BITS, HASHES = 20, 4
EPSILON = 0.1
FIRST = np.isin(np.arange(BITS), [0, 3, 7, 12]).astype(float)
SECOND = np.isin(np.arange(BITS), [1, 5, 11, 18]).astype(float)
WORDS = ((FIRST, SECOND),)
UTILITIES = tuple(neighbours.all_differ(5))


def members() -> list[Member]:
    """Return the members of this module."""
    rappor = 0.375 + 0.25 * 0.55
    return [
        _bitwise("rappor", rappor, "RAPPOR with f=0.75, p=0.45, q=0.55: 20 bits, 4 hashes", 0.3008, 0.2416),
        _bitwise("one_time_rappor", 0.525, "one-time RAPPOR with f=0.95: 20 bits, 4 hashes", 0.5999, 0.4706),
        _response("randomised_response", exp(1) / (1 + exp(1)), True, "tells the truth with probability e/(1+e)"),
        _response("generous_response", 0.8, False, "tells the truth with probability 0.8"),
        _choice("exponential", 2.0, True, "the exponential mechanism"),
        _choice("exponential_without_two", 1.0, False, "the exponential mechanism without the 2 in its exponent"),
    ]


def _bitwise(name: str, chance: float, about: str, dpsniper: float, statdp: float) -> Member:
    """Return a member that keeps each bit's value with probability `chance`."""
    true = 2 * HASHES * log(chance / (1 - chance))
    return Member(
        name, pure(EPSILON), False, partial(_bits, chance=chance), WORDS, about, true,
        partial(_bits_distribution, chance=chance), published={"dpsniper": dpsniper, "statdp": statdp},
    )  # fmt: skip


def _bits(value: Floats, size: int, rng: Generator, *, chance: float) -> Any:
    ones = np.where(value == 1, chance, 1 - chance).astype(np.float32)
    return (rng.random((size, BITS), dtype=np.float32) < ones).astype(np.int8)


def _bits_distribution(a: Floats, b: Floats, *, chance: float) -> distributions.Pair:
    of_one, of_zero = np.array([1 - chance, chance]), np.array([chance, 1 - chance])
    parts = [(of_one, of_zero) if x > y else (of_zero, of_one) for x, y in zip(a, b, strict=True) if x != y]
    return distributions.product(parts, log(chance / (1 - chance)))


def _response(name: str, chance: float, private: bool, about: str) -> Member:
    def sample(value: int, size: int, rng: Generator) -> Any:
        return np.where(rng.random(size) < chance, value, 1 - value)

    def distribution(a: int, b: int) -> distributions.Pair:
        truth = {0: np.array([chance, 1 - chance]), 1: np.array([1 - chance, chance])}
        return truth[a], truth[b]

    return Member(name, pure(1), private, sample, ((0, 1),), about, log(chance / (1 - chance)), distribution)


def _choice(name: str, divisor: float, private: bool, about: str) -> Member:
    def probabilities(value: Floats) -> Floats:
        weights = np.exp(value / divisor)
        return np.asarray(weights / weights.sum())

    def sample(value: Floats, size: int, rng: Generator) -> Any:
        return np.searchsorted(np.cumsum(probabilities(value))[:-1], rng.random(size), side="right")

    def distribution(a: Floats, b: Floats) -> distributions.Pair:
        return probabilities(a), probabilities(b)

    return Member(name, pure(1), private, sample, UTILITIES, about, None, distribution)
