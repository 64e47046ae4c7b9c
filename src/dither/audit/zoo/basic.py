"""Counts, histograms and noisy maxima, from Ding et al. (2018), Bichsel et al. (2021) and mistakes made in Dither."""

from __future__ import annotations

from functools import partial
from math import inf, log
from typing import Any

import numpy as np

from dither.audit import neighbours
from dither.audit.zoo import distributions
from dither.audit.zoo.member import Floats, Generator, Member, pure, round_to_lattice

EPSILON = 0.1
COUNTS = ((0.0, 1.0),)
HISTOGRAM = tuple(neighbours.one_differs(5))
QUERIES = tuple(neighbours.all_differ(5))


def members() -> list[Member]:
    """Return the members of this module."""
    return _counts_and_histograms() + _maxima()


def _counts_and_histograms() -> list[Member]:
    return [
        Member("laplace", pure(EPSILON), True, partial(_laplace, scale=1 / EPSILON), COUNTS,
               "Laplace noise on a count", EPSILON, partial(_laplace_distribution, scale=1 / EPSILON),
               published={"dpsniper": 0.0976, "statdp": 0.0998}),
        Member("laplace_double", pure(1), False, partial(_laplace, scale=0.5), COUNTS,
               "Laplace noise with half the scale that the claim needs", 2.0,
               partial(_laplace_distribution, scale=0.5)),
        Member("laplace_quarter_more", pure(1), False, partial(_laplace, scale=0.8), COUNTS,
               "Laplace noise with four fifths of the scale", 1.25, partial(_laplace_distribution, scale=0.8)),
        Member("laplace_replaced", pure(1), False, partial(_laplace, scale=1.0), ((0.0, 2.0),),
               "the sensitivity of adding a record, claimed for replacing one", 2.0,
               partial(_laplace_distribution, scale=1.0)),
        Member("noisy_hist1", pure(EPSILON), True, partial(_laplace, scale=1 / EPSILON), HISTOGRAM,
               "a histogram with Laplace(1/epsilon)", EPSILON, partial(_histogram_distribution, scale=1 / EPSILON),
               published={"dpsniper": 0.0978, "statdp": 0.0994}),
        Member("noisy_hist2", pure(EPSILON), False, partial(_laplace, scale=EPSILON), HISTOGRAM,
               "a histogram with Laplace(epsilon): the scale upside down", 10.0,
               partial(_histogram_distribution, scale=EPSILON), published={"dpsniper": 4.602, "statdp": 10.002}),
        Member("laplace_parallel", pure(EPSILON), True, _many_laplace, COUNTS,
               "twenty Laplace answers at epsilon 0.005 each", EPSILON, _many_laplace_distribution,
               published={"dpsniper": 0.0350, "statdp": 0.0135}),
        Member("prefix_sum", pure(EPSILON), False, _prefix_sums, tuple(neighbours.all_differ(10)),
               "prefix sums of ten noisy numbers that may all change", 1.0, _prefix_sums_distribution,
               published={"dpsniper": 0.5774, "statdp": 0.3516}),
        Member("truncated_geometric", pure(EPSILON), False, _truncated_geometric, tuple((n, n + 1) for n in range(5)),
               "GeoSample of Balcer and Vadhan on 0..5, whose rounding costs a little", log(1 + 2.0**-3),
               _truncated_distribution, published={"dpsniper": 0.1156, "statdp": 0.1169}),
        Member("discrete_laplace", pure(1), True, partial(_discrete_laplace, zero_factor=1.0), ((0, 1),),
               "discrete Laplace noise", 1.0, partial(_discrete_distribution, zero_factor=1.0)),
        Member("negative_zero", pure(1), False, partial(_discrete_laplace, zero_factor=2.0), ((0, 1),),
               "discrete Laplace that forgets to reject negative zero", 1 + log(2),
               partial(_discrete_distribution, zero_factor=2.0)),
        Member("clamped_noise", pure(1), False, _clamped_noise, ((0, 1),), "noise cut off at 6 on either side", inf),
        Member("one_sided", pure(1), False, _one_sided, ((0, 1),), "geometric noise that is never negative", inf),
    ]  # fmt: skip


def _maxima() -> list[Member]:
    scale = 2 / EPSILON
    return [
        Member("noisy_max1", pure(EPSILON), True, partial(_argmax, noise="laplace"), QUERIES,
               "index of the largest, Laplace(2/epsilon)", EPSILON,
               partial(_winner_distribution, noise="laplace", scale=scale),
               published={"dpsniper": 0.0925, "statdp": 0.0921}),
        Member("noisy_max2", pure(EPSILON), True, partial(_argmax, noise="exponential"), QUERIES,
               "index of the largest, exponential noise", EPSILON,
               partial(_winner_distribution, noise="exponential", scale=scale),
               published={"dpsniper": 0.0979, "statdp": 0.0997}),
        Member("noisy_max3", pure(EPSILON), False, partial(_max, noise="laplace"), QUERIES,
               "the noisy value of the largest, Laplace", 0.25,
               partial(_max_distribution, noise="laplace", scale=scale),
               published={"dpsniper": 0.2488, "statdp": 0.1991}),
        Member("noisy_max4", pure(EPSILON), False, partial(_max, noise="exponential"), QUERIES,
               "the noisy value of the largest, exponential noise", inf,
               partial(_max_distribution, noise="exponential", scale=scale),
               published={"dpsniper": 0.3534, "statdp": 0.1988}),
        Member("noisy_max_single", pure(EPSILON), False, _argmax_single, QUERIES,
               "index of the largest with one noise for all the rest", None),
    ]  # fmt: skip


def _laplace(value: Any, size: int, rng: Generator, *, scale: float) -> Floats:
    exact = np.asarray(value, dtype=float)
    return round_to_lattice(exact + rng.laplace(scale=scale, size=(size, *exact.shape)))


def _laplace_distribution(a: float, b: float, *, scale: float) -> distributions.Pair:
    return distributions.additive(lambda x: distributions.laplace_cdf(x, scale), a, b, scale)


def _histogram_distribution(a: Floats, b: Floats, *, scale: float) -> distributions.Pair:
    """Return the distribution of the one cell that changes; the others do not depend on the input."""
    changed = int(np.argmax(np.abs(a - b)))
    return _laplace_distribution(float(a[changed]), float(b[changed]), scale=scale)


def _many_laplace(value: float, size: int, rng: Generator) -> Floats:
    return round_to_lattice(value + rng.laplace(scale=200.0, size=(size, 20)))


def _many_laplace_distribution(a: float, b: float) -> distributions.Pair:
    return distributions.product([_laplace_distribution(a, b, scale=200.0)] * 20, 2e-5)


def _prefix_sums(value: Floats, size: int, rng: Generator) -> Floats:
    noisy = round_to_lattice(value + rng.laplace(scale=1 / EPSILON, size=(size, len(value))))
    return np.cumsum(noisy, axis=1)


def _prefix_sums_distribution(a: Floats, b: Floats) -> distributions.Pair:
    parts = [_laplace_distribution(float(x), float(y), scale=1 / EPSILON) for x, y in zip(a, b, strict=True)]
    return distributions.product(parts)


def _truncated_weights(count: int, top: int = 5) -> Floats:
    """Return masses proportional to (k/(k+1))^distance, k = 2^3, with the mass beyond each end put on the end."""
    base = 8 / 9
    masses = base ** np.abs(np.arange(top + 1) - count)
    masses[[0, top]] = [base**count / (1 - base), base ** (top - count) / (1 - base)]
    return np.asarray(masses / masses.sum())


def _truncated_geometric(value: int, size: int, rng: Generator) -> Any:
    return np.searchsorted(np.cumsum(_truncated_weights(value))[:-1], rng.random(size), side="right")


def _truncated_distribution(a: int, b: int) -> distributions.Pair:
    return _truncated_weights(a), _truncated_weights(b)


def _geometric(size: int, rng: Generator, chance: float) -> Any:
    return rng.geometric(1 - chance, size=size) - 1


def _discrete_masses(centre: int, zero_factor: float) -> Floats:
    """Return the masses of discrete Laplace noise on -60 to 61; that of zero noise is multiplied by `zero_factor`."""
    masses = np.exp(-np.abs(np.arange(-60, 62) - centre).astype(float))
    masses[60 + centre] *= zero_factor
    return np.asarray(masses / masses.sum())


def _discrete_laplace(value: int, size: int, rng: Generator, *, zero_factor: float) -> Any:
    table = np.cumsum(_discrete_masses(0, zero_factor))
    return value + np.searchsorted(table[:-1], rng.random(size), side="right") - 60


def _discrete_distribution(a: int, b: int, *, zero_factor: float) -> distributions.Pair:
    return _discrete_masses(a, zero_factor), _discrete_masses(b, zero_factor)


def _clamped_noise(value: int, size: int, rng: Generator) -> Any:
    return value + np.clip(_discrete_laplace(0, size, rng, zero_factor=1.0), -6, 6)


def _one_sided(value: int, size: int, rng: Generator) -> Any:
    return value + _geometric(size, rng, float(np.exp(-1)))


def _add_noise(value: Floats, size: int, rng: Generator, noise: str) -> Floats:
    draw = rng.laplace if noise == "laplace" else rng.exponential
    return round_to_lattice(value + draw(scale=2 / EPSILON, size=(size, len(value))))


def _argmax(value: Floats, size: int, rng: Generator, *, noise: str) -> Any:
    return np.argmax(_add_noise(value, size, rng, noise), axis=1)


def _max(value: Floats, size: int, rng: Generator, *, noise: str) -> Floats:
    return np.asarray(np.max(_add_noise(value, size, rng, noise), axis=1))


def _argmax_single(value: Floats, size: int, rng: Generator) -> Any:
    noise = round_to_lattice(rng.laplace(scale=2 / EPSILON, size=(size, 2)))
    return np.argmax(
        value + np.concatenate([noise[:, :1], np.repeat(noise[:, 1:], len(value) - 1, axis=1)], axis=1), axis=1
    )


def _cdf(noise: str, scale: float) -> Any:
    function = distributions.laplace_cdf if noise == "laplace" else distributions.exponential_cdf
    return lambda x: function(x, scale)


def _density(noise: str, scale: float) -> Any:
    if noise == "laplace":
        return lambda x: distributions.laplace_density(x, scale)
    return lambda x: np.where(x >= 0, np.exp(-np.maximum(x, 0) / scale) / scale, 0.0)


def _winner_distribution(a: Floats, b: Floats, *, noise: str, scale: float) -> distributions.Pair:
    first, second = (distributions.winners(_cdf(noise, scale), _density(noise, scale), side, scale) for side in (a, b))
    return first, second


def _max_distribution(a: Floats, b: Floats, *, noise: str, scale: float) -> distributions.Pair:
    return distributions.largest(_cdf(noise, scale), a, b, scale)
