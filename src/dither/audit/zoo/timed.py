"""Right answers at the wrong time: outputs follow a private law, and the time that they take gives the noise away."""

from __future__ import annotations

from functools import partial
from hashlib import sha256
from math import exp, inf
from typing import Any

from dither.audit.zoo.member import Generator, Member, pure

SENSITIVITY = 20
PAIRS = ((0, SENSITIVITY),)
BLOCK = bytes(2048)


def members() -> list[Member]:
    """The members of this room."""
    return [
        Member("timing_leaky", pure(1), False, partial(_loops, constant=False), PAIRS,
               "a geometric sampler that counts up to its noise", inf, timed=True, one_by_one=True),
    ]  # fmt: skip


def _loops(value: int, size: int, rng: Generator, *, constant: bool) -> list[Any]:
    """Two-sided geometric noise of scale SENSITIVITY; each step of the noise costs a little work."""
    drawn = rng.geometric(1 - exp(-1 / SENSITIVITY), size=(2, size))
    outputs = []
    for first, second in drawn.T:
        noise = int(first - second)
        for _ in range(400 if constant else abs(noise)):
            sha256(BLOCK).digest()
        outputs.append(value + noise)
    return outputs
