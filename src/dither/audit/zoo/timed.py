"""Mechanisms whose outputs are private, but whose running time reveals the noise."""

from __future__ import annotations

from hashlib import sha256
from math import exp, inf
from typing import Any

from dither.audit.zoo.member import Generator, Member, pure

SENSITIVITY = 20
PAIRS = ((0, SENSITIVITY),)
BLOCK = bytes(2048)


def members() -> list[Member]:
    """Return the members of this module."""
    return [
        Member("timing_leaky", pure(1), False, _noise_by_counting, PAIRS,
               "a geometric sampler that counts up to its noise", inf, timed=True, one_by_one=True),
    ]  # fmt: skip


def _noise_by_counting(value: int, size: int, rng: Generator) -> list[Any]:
    """Add two-sided geometric noise of scale SENSITIVITY by work that grows with the noise."""
    draws = rng.geometric(1 - exp(-1 / SENSITIVITY), size=(2, size))
    outputs = []
    for first, second in draws.T:
        noise = int(first - second)
        for _ in range(abs(noise)):
            sha256(BLOCK).digest()
        outputs.append(value + noise)
    return outputs
