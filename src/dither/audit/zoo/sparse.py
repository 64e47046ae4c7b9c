"""Correct and broken variants of the sparse vector technique, numbered as by Lyu, Su and Li (2017).

Answers are 1 (above), 0 (below) and -1 (not reached); where values are shown, below is -inf and not reached is NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from dither.audit import neighbours
from dither.audit.zoo import distributions
from dither.audit.zoo.member import Floats, Generator, Member, pure, round_to_lattice

EPSILON = 0.1
THRESHOLD = 1.0
QUERIES = tuple(neighbours.all_differ(10))


@dataclass(frozen=True)
class Variant:
    """A variant of sparse vector.

    `threshold`, `query` and `fresh` are the scales of the noise on the threshold, on the compared queries and on shown
    values. The run ends after `max_positives` positive answers. A positive shows the "answer" alone, the value that was
    "compared", its "gap" to the noisy threshold, or a value with "fresh" noise.
    """

    threshold: float
    query: float
    max_positives: int | None
    shows: str = "answer"
    fresh: float = 0.0


FIRST = Variant(2 / EPSILON, 4 / EPSILON, 1)
SECOND = Variant(2 / EPSILON, 4 / EPSILON, 1)
THIRD = Variant(2 / EPSILON, 2 / EPSILON, 1, "compared")
FOURTH = Variant(4 / EPSILON, 4 / (3 * EPSILON), 1)
FIFTH = Variant(2 / EPSILON, 0.0, None)
SIXTH = Variant(2 / EPSILON, 2 / EPSILON, None)
NUMERICAL = Variant(3 / EPSILON, 6 / EPSILON, 1, "fresh", 3 / EPSILON)
THIRD_TWICE = Variant(2 / EPSILON, 4 / EPSILON, 2, "compared")
FOURTH_TWICE = Variant(4 / EPSILON, 4 / (3 * EPSILON), 2)
GAP = Variant(2 / EPSILON, 4 / EPSILON, 1, "gap")


def members() -> list[Member]:
    """Return the members of this module."""
    return [
        _member("svt1", FIRST, True, "sparse vector as it should be", EPSILON, {"dpsniper": 0.0858, "statdp": 0.0298}),
        _member("svt2", SECOND, True, "Dwork and Roth's: the threshold's noise is renewed", EPSILON,
                {"dpsniper": 0.0859, "statdp": 0.0407}),
        _member("svt3", THIRD, False, "shows the very value that was compared", inf,
                {"dpsniper": 0.1822, "statdp": 0.1793}),
        _member("svt4", FOURTH, False, "query noise does not grow with the number of positives", 0.175,
                {"dpsniper": 0.1696, "statdp": 0.1719}),
        _member("svt5", FIFTH, False, "no noise on the queries, never stops", inf,
                {"dpsniper": 1.761, "statdp": 14.31}),
        _member("svt6", SIXTH, False, "never stops", inf, {"dpsniper": 0.2720, "statdp": 0.3220}),
        _member("numerical_svt", NUMERICAL, True, "shows a value with fresh noise", EPSILON, {"dpsniper": 0.0345}),
        _member("gap_svt", GAP, True,
                "shows the gap between value and noisy threshold, which is free (Ding et al. 2019)",
                EPSILON, {}),
        Member("svt34_parallel", pure(EPSILON), False, _parallel, QUERIES,
               "variants 3 and 4 on the same queries, two positives each", inf,
               published={"dpsniper": 0.2616, "statdp": 0.1963}),
    ]  # fmt: skip


def _member(
    name: str, variant: Variant, private: bool, about: str, true_epsilon: float, published: dict[str, float]
) -> Member:
    def sample(value: Floats, size: int, rng: Generator) -> Any:
        return run(variant, value, size, rng)

    def distribution(a: Floats, b: Floats) -> distributions.Pair:
        return _outcome_distribution(variant, a), _outcome_distribution(variant, b)

    known = distribution if variant.shows != "gap" else None
    return Member(name, pure(EPSILON), private, sample, QUERIES, about, true_epsilon, known, published=published)


def run(variant: Variant, value: Floats, size: int, rng: Generator) -> Any:
    """Make `size` independent runs, one per row."""
    queries = len(value)
    noise = rng.laplace(scale=variant.threshold, size=size)
    if variant.query == 0:
        noisy = np.tile(value, (size, 1))
    else:
        noisy = value + rng.laplace(scale=variant.query, size=(size, queries))
    above = noisy >= (THRESHOLD + noise)[:, None]
    reached = _reached_mask(above, variant.max_positives)
    if variant.shows == "answer":
        return np.where(reached, above, -1).astype(np.int8)
    shown = _shown_values(variant, value, noisy, noise, rng)
    return np.where(reached, np.where(above, round_to_lattice(shown), -np.inf), np.nan)


def _shown_values(variant: Variant, value: Floats, noisy: Floats, noise: Floats, rng: Generator) -> Floats:
    if variant.shows == "compared":
        return noisy
    if variant.shows == "gap":
        return noisy - (THRESHOLD + noise)[:, None]
    return np.asarray(value + rng.laplace(scale=variant.fresh, size=noisy.shape))


def _reached_mask(above: Any, max_positives: int | None) -> Any:
    """Return True for queries up to and including the last allowed positive."""
    if max_positives is None:
        return np.ones_like(above)
    return np.cumsum(above, axis=1) - above < max_positives


def _outcome_distribution(variant: Variant, value: Floats) -> Floats:
    noise = distributions.threshold_noise(variant.threshold)
    if variant.max_positives is None:
        return distributions.patterns(value, THRESHOLD, noise, variant.query)
    if variant.shows == "compared":
        return distributions.first_value(value, THRESHOLD, noise, variant.query)
    stops = distributions.first_above(value, THRESHOLD, noise, variant.query)
    return stops if variant.shows == "answer" else _with_shown_value(stops, value, variant.fresh)


def _with_shown_value(stops: Floats, value: Floats, scale: float) -> Floats:
    at = distributions.cuts(1.0, scale, 3000)
    parts = [
        chance * np.diff(distributions.laplace_cdf(at - centre, scale))
        for chance, centre in zip(stops, value, strict=False)
    ]
    return np.concatenate([*parts, stops[-1:]])


def _parallel(value: Floats, size: int, rng: Generator) -> Floats:
    first = run(THIRD_TWICE, value, size, rng)
    second = run(FOURTH_TWICE, value, size, rng).astype(float)
    return np.concatenate([first, second], axis=1)
