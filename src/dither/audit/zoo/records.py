"""Statistics of lists of records (means, sums, selected keys), with mistakes that occur in practice."""

from __future__ import annotations

from functools import partial
from math import exp, inf, log
from typing import Any

import numpy as np

from dither.audit import neighbours
from dither.audit.neighbours import Pair
from dither.audit.zoo.member import Floats, Generator, Member, approximate, pure, round_to_lattice

LISTS = tuple(neighbours.records(0.0, 1.0))
DELTA = 0.001
KEYS: tuple[Pair, ...] = (({"a": 3}, {"a": 3, "b": 1}), ({"a": 1}, {"a": 2}), ({}, {"b": 1}))
DEVIATIONS = (([8.0] * 1000, [8.0] * 999 + [0.0]), ([4.0] * 1000, [4.0] * 999 + [0.0]))
TINY = tuple(neighbours.tiny())


def members() -> list[Member]:
    """Return the members of this module."""
    return [
        Member("private_mean", pure(1), False, _negative_count, LISTS,
               "DP-Auditorium's 'private' mean: a noisy count below zero makes the noise 1e-12", inf),
        Member("mean_exact_count", pure(1), False, _exact_count, LISTS, "a noisy sum over the exact count", inf),
        Member("mean_size_scale", pure(1), False, _size_scale, LISTS,
               "noise of the mean scaled by the exact count", inf),
        Member("mean", pure(1), True, _mean, LISTS, "a noisy sum over a noisy count", 1.0),
        Member("size_leaking_sum", pure(1), False, _leaking_sum, LISTS,
               "a noisy sum beside the exact number of records", inf),
        Member("peeking_sum", pure(1), False, _peeking, LISTS, "a sum clamped at the largest value present", inf),
        Member("tiny_sum", pure(1), False, partial(_tiny_sum, scale=50.0), TINY,
               "a sum over four small datasets with half the noise that it needs", 2.0),
        Member("tiny_sum_right", pure(1), True, partial(_tiny_sum, scale=100.0), TINY,
               "the same with enough noise", 1.0),
        Member("sum_of_squared_deviations", pure(1), False, _deviations, DEVIATIONS,
               "noise for a sensitivity of 40.60 that is really 63.94, as in OpenDP 0.16", 63.936 / 40.60),
        Member("partition_selection", approximate(1, DELTA), True, partial(_selection, shift=1.0), KEYS,
               "keys whose noisy count passes a threshold", 1.0),
        Member("partition_selection_off_by_one", approximate(1, DELTA), False, partial(_selection, shift=0.0), KEYS,
               "the same with a threshold that is one too low", None),
    ]  # fmt: skip


def _negative_count(value: list[float], size: int, rng: Generator) -> Any:
    noisy = len(value) + rng.laplace(scale=2.0, size=size)
    scale = np.where(noisy > 0, 2.0 / np.maximum(noisy, 1e-3), 1e-12)
    return sum(value) / max(len(value), 1) + rng.laplace(size=size) * scale


def _exact_count(value: list[float], size: int, rng: Generator) -> Floats:
    return round_to_lattice((sum(value) + rng.laplace(size=size)) / max(len(value), 1))


def _size_scale(value: list[float], size: int, rng: Generator) -> Floats:
    count = max(len(value), 1)
    return round_to_lattice(sum(value) / count + rng.laplace(scale=1 / count, size=size))


def _mean(value: list[float], size: int, rng: Generator) -> Floats:
    total = round_to_lattice(sum(value) + rng.laplace(scale=2.0, size=size))
    count = round_to_lattice(len(value) + rng.laplace(scale=2.0, size=size))
    return np.asarray(total / np.maximum(count, 1.0))


def _leaking_sum(value: list[float], size: int, rng: Generator) -> Floats:
    return np.column_stack([round_to_lattice(sum(value) + rng.laplace(size=size)), np.full(size, float(len(value)))])


def _peeking(value: list[float], size: int, rng: Generator) -> Floats:
    return round_to_lattice(sum(value) + rng.laplace(scale=max(value, default=0.0) + 1e-3, size=size))


def _tiny_sum(value: list[tuple[int, int]], size: int, rng: Generator, *, scale: float) -> Floats:
    return round_to_lattice(sum(first for first, _ in value) + rng.laplace(scale=scale, size=size))


def _deviations(value: list[float], size: int, rng: Generator) -> Floats:
    values = np.asarray(value)
    return round_to_lattice(((values - values.mean()) ** 2).sum() + rng.laplace(scale=40.60, size=size))


def _selection(value: dict[str, int], size: int, rng: Generator, *, shift: float) -> list[Any]:
    """Select keys by noisy counts with discrete Laplace noise.

    A key of one record passes with probability at most delta; with a `shift` of 0, with e times that probability.
    """
    # P[noise >= t] = e^-t / (1 + 1/e) for t >= 1
    threshold = 1 + int(np.ceil(log(1 / (DELTA * (1 + exp(-1)))))) - (1 - shift)
    names = sorted(value)
    counts = np.array([value[name] for name in names], dtype=float)
    noise = rng.geometric(1 - exp(-1), size=(2, size, len(names)))
    passed = counts + noise[0] - noise[1] >= threshold
    return [frozenset(name for name, selected in zip(names, row, strict=True) if selected) for row in passed]
