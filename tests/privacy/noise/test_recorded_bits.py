"""Recorded bits give the recorded values."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from dither.privacy.bits import Bits
from dither.privacy.noise import (
    bernoulli,
    bernoulli_exp,
    discrete_gaussian,
    discrete_laplace,
    exponential,
    geometric,
    noisy_max,
    staircase,
    uniform_below,
)
from privacy.doubles import RecordedBits
from privacy.noise_cases import SMALL, F

VECTORS = Path(__file__).parents[1] / "noise_vectors.json"
RECORDED: dict[str, Callable[[Bits], NDArray[np.int64]]] = {
    "laplace 1/2": partial(discrete_laplace, F(1, 2), 70_000),
    "laplace 100": partial(discrete_laplace, F(100), 70_000),
    "laplace 2^40": partial(discrete_laplace, F(1 << 40), 70_000),
    "gaussian 2": partial(discrete_gaussian, F(2), 70_000),
    "gaussian 10^12": partial(discrete_gaussian, F(10**12), 70_000),
    "gaussian small widths": lambda bits: discrete_gaussian(F(30), 300, bits, SMALL),
    "geometric 3": partial(geometric, F(3), 1000),
    "staircase": partial(staircase, F(1), 10, 4, 1000),
    "bernoulli 1/3": partial(bernoulli, F(1, 3), 1000),
    "bernoulli exp 1": partial(bernoulli_exp, F(1), 1000),
    "uniform below 1000": partial(uniform_below, 1000, 1000),
    "noisy max": lambda bits: np.array([noisy_max(np.arange(50), F(1, 9), bits) for _ in range(100)]),
    "exponential": lambda bits: np.array([exponential(60, bits) for _ in range(100)]),
}


def record(name: str) -> dict[str, object]:
    values = RECORDED[name](RecordedBits(name))
    digest = hashlib.sha256(values.astype("<i8").tobytes()).hexdigest()
    return {"first": values[:12].tolist(), "sha256": digest}


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_bits_give_the_recorded_values(name: str) -> None:
    """To record again, after a deliberate change: PYTHONPATH=tests python tests/privacy/noise/test_recorded_bits.py"""
    assert record(name) == json.loads(VECTORS.read_text())[name]


if __name__ == "__main__":
    VECTORS.write_text(json.dumps({name: record(name) for name in RECORDED}, indent=1) + "\n")
