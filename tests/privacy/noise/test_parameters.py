"""Parameters that are refused, and the type and size of results."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from dither.errors import InvalidParameter
from dither.privacy.noise import (
    bernoulli,
    bernoulli_exp,
    bernoulli_exp_each,
    discrete_gaussian,
    discrete_laplace,
    exponential,
    geometric,
    noisy_max,
    staircase,
    uniform_below,
)
from privacy.noise_cases import F, bits


@pytest.mark.parametrize(
    "call",
    [
        lambda: discrete_laplace(F(1, 1001), 1, bits),
        lambda: discrete_laplace(F((1 << 40) + 1), 1, bits),
        lambda: discrete_laplace(F(0), 1, bits),
        lambda: discrete_laplace(F(-1), 5000, bits),
        lambda: discrete_laplace(0.5, 1, bits),  # type: ignore[arg-type]
        lambda: discrete_laplace(True, 1, bits),
        lambda: discrete_laplace("1", 1, bits),  # type: ignore[arg-type]
        lambda: discrete_laplace(F(1), -1, bits),
        lambda: discrete_gaussian(F(1, 10**6 + 1), 1, bits),
        lambda: discrete_gaussian(F((1 << 80) + 1), 1, bits),
        lambda: geometric(F(0), 1, bits),
        lambda: staircase(F(0), 1, 1, 1, bits),
        lambda: staircase(F(1), 0, 1, 1, bits),
        lambda: staircase(F(1), 3, 4, 1, bits),
        lambda: staircase(F(1), 3, 0, 1, bits),
        lambda: staircase(F(1, 1 << 30), 1 << 20, 1, 1, bits),
        lambda: bernoulli(F(4, 3), 1, bits),
        lambda: bernoulli(F(-1, 3), 1, bits),
        lambda: bernoulli(F(1, 3), -1, bits),
        lambda: bernoulli_exp(F(-1), 1, bits),
        lambda: bernoulli_exp_each(F(1), np.array([1, -1]), bits),
        lambda: uniform_below(0, 1, bits),
        lambda: uniform_below((1 << 63) + 1, 1, bits),
        lambda: uniform_below(2, -1, bits),
        lambda: noisy_max(np.array([], np.int64), F(1), bits),
        lambda: noisy_max(np.array([1]), F(-1), bits),
        lambda: exponential(-1, bits),
    ],
)
def test_other_parameters_are_refused(call: Callable[[], object]) -> None:
    with pytest.raises(InvalidParameter):
        call()


@pytest.mark.parametrize("size", [0, 1, 4096, 4097, 65537])
@pytest.mark.parametrize("scale", [F(1, 1000), F(1 << 40)])
def test_results_are_int64_of_the_size_asked_for(size: int, scale: Fraction) -> None:
    for values in (
        discrete_laplace(scale, size, bits),
        discrete_gaussian(scale**2, size, bits),
        geometric(scale, size, bits),
        bernoulli(F(1, 2), size, bits),
        uniform_below(7, size, bits),
        staircase(F(1), 3, 2, size, bits),
    ):
        assert values.dtype == np.int64
        assert values.shape == (size,)
