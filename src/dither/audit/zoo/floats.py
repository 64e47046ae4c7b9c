"""Floating-point noise as libraries draw it, and Gaussian noise of the wrong scale."""

from __future__ import annotations

from math import inf, log, sqrt
from typing import Any

import numpy as np

from dither.audit.zoo.member import Floats, Generator, Member, Sampler, approximate, pure, round_to_lattice, zcdp
from dither.loss import Loss

CLASSICAL = sqrt(2 * log(1.25 / 1e-5))
APPROXIMATE = approximate(1, "0.00001")
COUNTS = ((0.0, 1.0),)


def members() -> list[Member]:
    """Return the members of this module."""
    return [
        _broken("float_laplace", pure(0.1), _inverse, "Laplace noise by inversion (Mironov 2012)"),
        _broken("float_laplace_library", pure(0.1), lambda value, size, rng: value + rng.laplace(scale=10.0, size=size),
                "Laplace noise of a numerical library"),
        _broken("float_laplace_four_uniforms", pure(1), _four_uniforms,
                "Laplace noise as a product form of four uniforms (Holohan and Braghin 2021), as in diffprivlib"),
        _broken("float_gaussian_box_muller", APPROXIMATE, _box_muller, "Gaussian noise by Box and Muller's transform"),
        _broken("float_gaussian_polar", APPROXIMATE, _polar, "Gaussian noise by Marsaglia's polar method"),
        _broken("float_gaussian_ziggurat", APPROXIMATE,
                lambda value, size, rng: value + CLASSICAL * rng.normal(size=size), "Gaussian noise by a ziggurat"),
        _broken("float_gaussian_fine_lattice", APPROXIMATE, _fine_lattice,
                "Gaussian noise on a lattice finer than the sum can hold, as in python-dp"),
        Member("precision", pure(1), False, _precision, ((0.0, 0.1),),
               "noise on a lattice, added to a value that is not (Haney et al. 2022)", inf),
        _gaussian("gaussian", APPROXIMATE, CLASSICAL, True, "Gaussian noise with the classical sigma"),
        _gaussian("gaussian_half_sigma", APPROXIMATE, CLASSICAL / 2, False, "Gaussian noise with half that sigma"),
        _gaussian("gaussian_wrong_log", APPROXIMATE, sqrt(log(1.25 / 1e-5) / log(10)), False,
                  "Gaussian noise whose sigma took the logarithm to base 10 and lost the 2"),
        _gaussian("gaussian_zcdp", zcdp("1/8"), 2.0, True, "Gaussian noise, sigma 2, rho 1/8"),
        _gaussian("gaussian_zcdp_variance", zcdp("1/8"), sqrt(2.0), False, "variance 2 where sigma 2 was meant"),
    ]  # fmt: skip


def _broken(name: str, claim: Loss, sample: Sampler, about: str) -> Member:
    return Member(name, claim, False, sample, COUNTS, about, inf)


def _gaussian(name: str, claim: Loss, sigma: float, private: bool, about: str) -> Member:
    def sample(value: float, size: int, rng: Generator) -> Floats:
        return round_to_lattice(value + sigma * rng.normal(size=size))

    return Member(name, claim, private, sample, COUNTS, about)


def _inverse(value: float, size: int, rng: Generator) -> Any:
    chance = rng.random(size) - 0.5
    return value - 10.0 * np.sign(chance) * np.log1p(-2 * np.abs(chance))


def _four_uniforms(value: float, size: int, rng: Generator) -> Any:
    first, second, third, fourth = rng.random((4, size))
    noise = np.log(1 - first) * np.cos(np.pi * second) + np.log(1 - third) * np.cos(np.pi * fourth)
    return value - noise


def _box_muller(value: float, size: int, rng: Generator) -> Any:
    radius, angle = rng.random((2, size))
    return value + CLASSICAL * np.sqrt(-2 * np.log(1 - radius)) * np.cos(2 * np.pi * angle)


def _polar(value: float, size: int, rng: Generator) -> Any:
    points = 2 * rng.random((2, 2 * size + 200)) - 1
    square = (points**2).sum(axis=0)
    inside = (square > 0) & (square < 1)
    x, square = points[0][inside][:size], square[inside][:size]
    return value + CLASSICAL * x * np.sqrt(-2 * np.log(square) / square)


def _fine_lattice(value: float, size: int, rng: Generator) -> Any:
    return value + round_to_lattice(CLASSICAL * rng.normal(size=size), 2.0**-54)


def _precision(value: float, size: int, rng: Generator) -> Any:
    return value + round_to_lattice(rng.laplace(scale=0.1, size=size), 2.0**-10)
